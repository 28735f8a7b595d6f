//! Sends texts to a server from a task each, under tokio, and prints the answers as they come.
//!
//! `cargo run --example tokio_client -- 127.0.0.1:4000 one two three`

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use homa_mio::{Driver, Socket};
use tokio::task::JoinSet;
use tokio::time::timeout;

async fn call(server: SocketAddr, texts: Vec<String>) -> Result<(), Box<dyn Error>> {
    let driver = Driver::builder()
        // Beyond it calls wait for their turn.
        .in_flight(32)
        .spawn(|| Socket::bind((Ipv4Addr::UNSPECIFIED, 0).into()))?;
    let mut tasks = JoinSet::new();
    for text in texts {
        let client = driver.client();
        tasks.spawn(async move {
            // A call that is dropped, as after this time, is cancelled.
            let call = client.call(server, text.as_bytes());
            timeout(Duration::from_secs(5), call).await
        });
    }
    while let Some(answer) = tasks.join_next().await {
        println!("{}", String::from_utf8_lossy(&answer???));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().unwrap_or("127.0.0.1:4000".into()).parse()?;
    call(server, args.collect()).await
}
