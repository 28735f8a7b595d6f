//! Homa over a UDP socket of the standard library: the complete loop, on both sides.
//!
//! `cargo run -p homa-proto --example udp_loop`

use std::io::{ErrorKind::*, Result};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use homa_proto::{Config, Endpoint, Event, HeapBuffer, HeapBuffers};
use homa_proto::{Instant, Limits, RequestOptions, Storage};

/// An endpoint on a socket. It sends the same kind of memory that it receives, so that a message
/// can be changed in place and sent back.
struct Node {
    endpoint: Endpoint<'static, HeapBuffer, HeapBuffers>,
    socket: UdpSocket,
    start: std::time::Instant,
    packets: Vec<u8>,
}

impl Node {
    fn bind(seed: u128) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // What a socket's receive buffer is sure to hold where nobody has made it larger.
        let receive_buffer = 64 * 1024;
        let config = Config {
            receive_buffer,
            ..Config::default()
        };
        // Nothing is ever allocated beyond these two bounds.
        let tables = Storage::boxed(Limits::default());
        let memory = HeapBuffers::new(16 << 20);
        let mut endpoint = Endpoint::new(config, seed, tables, memory).expect("sound settings");
        let port = socket.local_addr()?.port();
        endpoint.open_port(port).expect("the first port");
        let (start, packets) = (std::time::Instant::now(), vec![0; 65_536]);
        Ok(Self {
            endpoint,
            socket,
            start,
            packets,
        })
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Sends all that may go now.
    fn transmit(&mut self) {
        while let Some(batch) = self.endpoint.poll_transmit(self.now(), &mut self.packets) {
            // Several packets for one destination, or a single one.
            let packet_len = batch.segment_size.unwrap_or(batch.len);
            for packet in self.packets[..batch.len].chunks(packet_len) {
                // What gets lost here or on the way is asked for again.
                let _ = self.socket.send_to(packet, batch.to);
            }
        }
    }

    /// Sleeps until a packet or a timeout comes, and takes it in.
    fn receive(&mut self) -> Result<()> {
        let sleep = self.endpoint.poll_timeout().map(|(at, _)| {
            // To the socket, zero would mean no timeout.
            at.duration_since(self.now()).max(Duration::from_micros(1))
        });
        self.socket.set_read_timeout(sleep)?;
        match self.socket.recv_from(&mut self.packets) {
            Ok((len, from)) => {
                let (now, packet) = (self.now(), &self.packets[..len]);
                // A dropped packet has been counted; there is nothing else to do about it.
                let _ = self.endpoint.handle_packet(now, from, None, packet);
            }
            Err(error) => match error.kind() {
                // The last of them: an earlier packet met no open port.
                WouldBlock | TimedOut | Interrupted | ConnectionRefused => {}
                _ => return Err(error),
            },
        }
        // It may be too early, which does no harm.
        self.endpoint.handle_timeout(self.now());
        Ok(())
    }
}

/// Answers requests in capital letters until so many answers have been acknowledged.
fn serve(node: &mut Node, mut count: usize) -> Result<()> {
    while count > 0 {
        node.transmit();
        node.receive()?;
        while let Some(event) = node.endpoint.poll_event() {
            let now = node.now();
            match event {
                Event::Request {
                    rpc, mut message, ..
                } => {
                    message.make_ascii_uppercase();
                    let sent = node.endpoint.send_response(now, rpc, message);
                    sent.unwrap_or_else(|error| node.endpoint.recycle(now, error.message));
                }
                Event::Released { response, .. } => {
                    node.endpoint.recycle(now, response);
                    count -= 1;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Sends all requests at once and checks the answers.
fn ask(node: &mut Node, server: SocketAddr, requests: &[Vec<u8>]) -> Result<()> {
    for (cookie, request) in (0..).zip(requests) {
        let (now, message) = (node.now(), HeapBuffer::from(request.clone()));
        let options = RequestOptions {
            cookie,
            ..RequestOptions::default()
        };
        let rpc = node
            .endpoint
            .send_request(now, server.into(), message, options);
        rpc.expect("a free slot");
    }
    loop {
        node.transmit();
        // Not before: the last acknowledgement has to go, too.
        if node.endpoint.live_rpcs() == 0 && node.endpoint.poll_timeout().is_none() {
            return Ok(());
        }
        node.receive()?;
        while let Some(event) = node.endpoint.poll_event() {
            match event {
                Event::Response {
                    cookie, message, ..
                } => {
                    assert_eq!(*message, requests[cookie as usize].to_ascii_uppercase());
                    println!("answer {cookie}: {} bytes", message.len());
                    node.endpoint.recycle(node.now(), message);
                }
                Event::Failed { error, .. } => return Err(std::io::Error::other(error)),
                _ => {}
            }
        }
    }
}

fn main() -> Result<()> {
    // In earnest, seeds are random numbers of the system.
    let (mut client, mut server) = (Node::bind(1)?, Node::bind(2)?);
    let address = server.socket.local_addr()?;
    let serving = std::thread::spawn(move || serve(&mut server, 3));
    let long = vec![b'x'; 1_000_000];
    ask(
        &mut client,
        address,
        &[b"hello".to_vec(), long, b"overtakes".to_vec()],
    )?;
    serving.join().expect("the server does not panic")
}

#[test]
fn every_answer_comes() {
    main().unwrap();
}
