//! Homa inside an event loop that serves other things too: RPCs on one socket, and a TCP port
//! that tells how many there were.
//!
//! `cargo run --example mio_event_loop -- 127.0.0.1:4000 127.0.0.1:4001`

use std::io::{self, Write};
use std::net::SocketAddr;

use homa_mio::{Event, Socket};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

const HOMA: Token = Token(0);
const TCP: Token = Token(1);

fn run(homa: SocketAddr, tcp: SocketAddr) -> io::Result<()> {
    let mut socket = Socket::bind(homa)?;
    let mut listener = TcpListener::bind(tcp)?;
    let mut poll = Poll::new()?;
    poll.registry()
        .register(&mut socket, HOMA, Interest::READABLE)?;
    poll.registry()
        .register(&mut listener, TCP, Interest::READABLE)?;
    let mut events = Events::with_capacity(16);
    let mut served = 0;
    loop {
        // The socket's timers are due whether or not it is readable.
        while let Some(event) = socket.poll()? {
            if let Event::Request { rpc, message, .. } = event {
                served += 1;
                let _ = socket.reply(rpc, message);
            }
        }
        poll.poll(&mut events, socket.timeout())?;
        for event in &events {
            if event.token() == TCP {
                while let Ok((mut stream, _)) = listener.accept() {
                    // A visitor may have gone already.
                    let _ = writeln!(stream, "{served} requests served");
                }
            }
        }
    }
}

fn main() -> io::Result<()> {
    let address = |at, default: &str| {
        let text = std::env::args().nth(at).unwrap_or(default.into());
        text.parse().map_err(io::Error::other)
    };
    run(address(1, "127.0.0.1:4000")?, address(2, "127.0.0.1:4001")?)
}
