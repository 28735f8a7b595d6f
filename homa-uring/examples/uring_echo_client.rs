//! Sends texts to an echo server, all at once, and prints the answers as they come.
//!
//! `cargo run --example uring_echo_client -- 127.0.0.1:4000 "hello" "world"`

use std::error::Error;
use std::net::Ipv4Addr;

use homa_uring::{Event, RequestOptions, bind_or_mio};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().unwrap_or("127.0.0.1:4000".into());
    let server: std::net::SocketAddr = server.parse()?;
    // Over system calls where io_uring is forbidden.
    let mut socket = bind_or_mio((Ipv4Addr::UNSPECIFIED, 0).into())?;
    eprintln!("io_uring is {}", socket.stats().io_uring);
    for text in args {
        let options = RequestOptions::default();
        socket.request(server, text.as_bytes(), options)?;
    }
    while socket.live_rpcs() > 0 {
        match socket.wait(None)? {
            Some(Event::Response { message, .. }) => {
                println!("{}", String::from_utf8_lossy(&message));
            }
            Some(Event::Failed { error, .. }) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
