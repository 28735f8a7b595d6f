//! Sends a text to an echo server and prints the answer.
//!
//! `cargo run --example echo_client -- 127.0.0.1:4000 "hello"`

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use homa_mio::Socket;

fn echo(server: SocketAddr, text: &str) -> Result<String, Box<dyn Error>> {
    let mut socket = Socket::bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let answer = socket.call(server, text.as_bytes())?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().unwrap_or("127.0.0.1:4000".into()).parse()?;
    let text = args.next().unwrap_or("hello".into());
    println!("{}", echo(server, &text)?);
    Ok(())
}
