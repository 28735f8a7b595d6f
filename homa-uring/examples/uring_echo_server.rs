//! A server over io_uring, and nothing else, that answers each request with the request itself.
//!
//! `cargo run --example uring_echo_server -- 127.0.0.1:4000`

use std::net::SocketAddr;
use std::time::Duration;

use homa_uring::{Event, Socket, Wait};

fn serve(address: SocketAddr) -> std::io::Result<()> {
    let mut socket = Socket::builder()
        // Quick answers while there are requests, and no work for the processor otherwise.
        .wait(Wait::Adaptive(Duration::from_micros(50)))
        .bind(address)?;
    println!("listening on {}", socket.local_addr());
    loop {
        if let Some(Event::Request { rpc, message, .. }) = socket.wait(None)? {
            // The received memory goes back as it is. If the client has gone there is no one to
            // answer.
            let _ = socket.reply(rpc, message);
        }
    }
}

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:4000");
    serve(address.parse().map_err(std::io::Error::other)?)
}
