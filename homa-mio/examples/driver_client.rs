//! Sends texts to a server, all at once, and prints the answers in the order of the texts.
//!
//! `cargo run --example driver_client -- 127.0.0.1:4000 one two three`

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use homa_mio::{Driver, Socket};

fn call(server: SocketAddr, texts: &[String]) -> Result<(), Box<dyn Error>> {
    let driver = Driver::builder().spawn(|| Socket::bind((Ipv4Addr::UNSPECIFIED, 0).into()))?;
    // Handles can be cloned and go to other threads.
    let client = driver.client();
    let calls: Vec<_> = texts
        .iter()
        .map(|text| client.call(server, text.as_bytes()))
        .collect();
    for call in calls {
        println!("{}", String::from_utf8_lossy(&call.wait()?));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().unwrap_or("127.0.0.1:4000".into()).parse()?;
    call(server, &args.collect::<Vec<_>>())
}
