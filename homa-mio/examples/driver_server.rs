//! A server whose socket has a thread of its own. It answers short requests at once, and hands
//! long ones to another thread, which answers when it is done.
//!
//! `cargo run --example driver_server -- 127.0.0.1:4000`

use std::net::SocketAddr;
use std::sync::mpsc::sync_channel;
use std::thread;

use homa_mio::{Driver, Request, Socket};

/// Requests that may wait for the worker.
const BACKLOG: usize = 64;

fn answer(request: Request) {
    let (mut message, responder) = request.into_parts();
    message.make_ascii_uppercase();
    // The received memory goes back. That it has a right length is sure.
    let _ = responder.reply(message);
}

fn serve(address: SocketAddr) -> std::io::Result<()> {
    let (work, worker) = sync_channel::<Request>(BACKLOG);
    thread::spawn(move || worker.into_iter().for_each(answer));
    let server = Driver::builder().serve(
        move || Socket::bind(address),
        move |request| {
            if request.len() < 1000 {
                answer(request);
            } else {
                // If the worker has too much to do the request is refused: it is dropped.
                let _ = work.try_send(request);
            }
        },
    )?;
    println!("listening on {}", server.local_addr());
    server.join()?;
    Ok(())
}

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:4000");
    serve(address.parse().map_err(std::io::Error::other)?)
}
