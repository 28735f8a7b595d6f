//! Sends texts to an echo server by io_uring, all at once, and awaits the answers under tokio.
//!
//! `cargo run --example uring_tokio_client -- 127.0.0.1:4000 one two three`

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use homa_uring::{Driver, bind_or_mio};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().unwrap_or("127.0.0.1:4000".into());
    let server: SocketAddr = server.parse()?;
    // The ring is made on the thread that uses it.
    let driver = Driver::builder().spawn(|| bind_or_mio((Ipv4Addr::UNSPECIFIED, 0).into()))?;
    let client = driver.client();
    // A call is on its way once it is made, if it has room.
    let calls: Vec<_> = args
        .map(|text| client.call(server, text.as_bytes()))
        .collect();
    for call in calls {
        println!("{}", String::from_utf8_lossy(&call.await?));
    }
    eprintln!("io_uring is {}", driver.shutdown()?.socket.io_uring);
    Ok(())
}
