//! Homa in an epoll loop written by hand: one thread, a server and a client, a socket each.
//!
//! `cargo run -p homa-proto --example epoll_loop` (Linux 5.11 or newer)

#![cfg_attr(not(target_os = "linux"), allow(unused_imports, dead_code))]

use std::io::{ErrorKind::*, Result};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use homa_proto::{Config, Endpoint, Event, HeapBuffer, HeapBuffers};
use homa_proto::{Instant, Limits, RequestOptions, Storage};
#[cfg(target_os = "linux")]
use rustix::event::epoll;

/// Packets read from one socket before others and the timers have their turn.
const BUDGET: usize = 64;

struct Node {
    endpoint: Endpoint<'static, HeapBuffer, HeapBuffers>,
    socket: UdpSocket,
    /// Bytes of answers.
    answered: usize,
}

impl Node {
    fn bind(seed: u128) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let config = Config::default();
        let tables = Storage::boxed(Limits::default());
        let memory = HeapBuffers::new(16 << 20);
        let mut endpoint = Endpoint::new(config, seed, tables, memory).expect("sound settings");
        // What a socket's receive buffer is sure to hold where nobody has made it larger.
        endpoint.set_receive_buffer(64 * 1024);
        let port = socket.local_addr()?.port();
        endpoint.open_port(port).expect("the first port");
        Ok(Self {
            endpoint,
            socket,
            answered: 0,
        })
    }

    /// Takes in what has come, within a budget: epoll tells again of what is left.
    fn receive(&mut self, now: Instant, packet: &mut [u8]) -> Result<()> {
        for _ in 0..BUDGET {
            match self.socket.recv_from(packet) {
                Ok((len, from)) => {
                    // A dropped packet has been counted.
                    let _ = self.endpoint.handle_packet(now, from, None, &packet[..len]);
                }
                Err(error) => match error.kind() {
                    WouldBlock => break,
                    // An earlier packet met no open port; or a signal came.
                    ConnectionRefused | Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Serves the timer, answers, and sends all that may go.
    fn advance(&mut self, now: Instant, packets: &mut [u8]) {
        if let Some((due, _)) = self.endpoint.poll_timeout()
            && due <= now
        {
            self.endpoint.handle_timeout(now);
        }
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Request { rpc, message, .. } => {
                    // The memory of the request carries the answer.
                    let sent = self.endpoint.send_response(now, rpc, message);
                    sent.unwrap_or_else(|error| self.endpoint.recycle(now, error.message));
                }
                Event::Response { message, .. } => {
                    self.answered += message.len();
                    self.endpoint.recycle(now, message);
                }
                Event::Released { response, .. } => self.endpoint.recycle(now, response),
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        while let Some(batch) = self.endpoint.poll_transmit(now, packets) {
            let packet_len = batch.segment_size.unwrap_or(batch.len);
            for packet in packets[..batch.len].chunks(packet_len) {
                // What gets lost here or on the way is asked for again.
                let _ = self.socket.send_to(packet, batch.to);
            }
        }
    }

    fn call(&mut self, now: Instant, to: SocketAddr, message: Vec<u8>) {
        let (message, options) = (message.into(), RequestOptions::default());
        let rpc = self.endpoint.send_request(now, to.into(), message, options);
        rpc.expect("a free slot");
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<()> {
    // In earnest, seeds are random numbers of the system.
    let mut nodes = [Node::bind(1)?, Node::bind(2)?];
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (token, node) in (0..).zip(&nodes) {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&epoll, &node.socket, data, epoll::EventFlags::IN)?;
    }
    let start = std::time::Instant::now();
    let clock = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
    let server = nodes[1].socket.local_addr()?;
    for len in [100, 1_000_000, 1000] {
        nodes[0].call(clock(), server, vec![7; len]);
    }
    let (mut packets, mut ready) = (vec![0; 65_536], Vec::with_capacity(8));
    loop {
        for node in &mut nodes {
            node.advance(clock(), &mut packets);
        }
        if nodes.iter().all(|node| node.endpoint.live_rpcs() == 0) {
            assert_eq!(nodes[0].answered, 1_001_100);
            return Ok(());
        }
        let timeouts = nodes.iter_mut().map(|node| node.endpoint.poll_timeout());
        let first = timeouts.flatten().map(|(at, _)| at).min();
        let sleep = first.map(|at| at.duration_since(clock()).try_into().expect("short"));
        ready.clear();
        let buffer = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&epoll, buffer, sleep.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &ready {
            nodes[event.data.u64() as usize].receive(clock(), &mut packets)?;
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
#[test]
fn every_answer_comes() {
    main().unwrap();
}
