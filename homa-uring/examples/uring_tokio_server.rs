//! A server over io_uring whose requests are answered by tasks of tokio.
//!
//! `cargo run --example uring_tokio_server -- 127.0.0.1:4000`

use std::net::SocketAddr;
use std::sync::Arc;

use homa_uring::{Driver, Request, bind_or_mio};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Tasks that may be at work at once.
const TASKS: usize = 1024;

fn serve(address: SocketAddr) -> std::io::Result<()> {
    let (runtime, room) = (Handle::current(), Arc::new(Semaphore::new(TASKS)));
    let handler = move |request: Request| {
        // If there are too many the request is dropped, and thereby refused.
        if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
            runtime.spawn(async move {
                // Whatever takes time.
                tokio::task::yield_now().await;
                let (message, responder) = request.into_parts();
                let _ = responder.reply(message);
                drop(permit);
            });
        }
    };
    // The ring is made on the thread that uses it.
    let server = Driver::builder().serve(move || bind_or_mio(address), handler)?;
    println!("listening on {}", server.local_addr());
    eprintln!("io_uring is {}", server.stats().socket.io_uring);
    server.join()?;
    Ok(())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:4000");
    let address = address.parse().map_err(std::io::Error::other)?;
    tokio::task::spawn_blocking(move || serve(address)).await?
}
