//! A server that answers each request with the request itself.
//!
//! `cargo run --example echo_server -- 127.0.0.1:4000`

use std::net::SocketAddr;

use homa_mio::{Event, Socket};

fn serve(address: SocketAddr) -> std::io::Result<()> {
    let mut socket = Socket::bind(address)?;
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
