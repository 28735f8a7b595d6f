//! A server under tokio: each request is answered by a task.
//!
//! `cargo run --example tokio_server -- 127.0.0.1:4000`

use std::net::SocketAddr;
use std::time::Duration;

use homa_mio::{Driver, Request, Socket};
use tokio::sync::mpsc;

/// Requests that may wait for the runtime.
const BACKLOG: usize = 1024;

async fn answer(request: Request) {
    // Whatever takes time.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let (mut message, responder) = request.into_parts();
    message.make_ascii_uppercase();
    let _ = responder.reply(message);
}

async fn serve(address: SocketAddr) -> std::io::Result<()> {
    let (sender, mut requests) = mpsc::channel(BACKLOG);
    let server = Driver::builder().serve(
        move || Socket::bind(address),
        // What finds no room is dropped, and thereby refused.
        move |request| drop(sender.try_send(request)),
    )?;
    println!("listening on {}", server.local_addr());
    while let Some(request) = requests.recv().await {
        tokio::spawn(answer(request));
    }
    // The driver has ended, and this says why.
    server.join()?;
    Ok(())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:4000");
    serve(address.parse().map_err(std::io::Error::other)?).await
}
