//! The examples work.

#![allow(missing_docs)]

#[path = "shared/examples.rs"]
mod shared;

use std::io::Read;
use std::net::{SocketAddr, TcpStream, UdpSocket};

use shared::{Killed, example, output, server};

fn echo(server: &str, text: &str) -> String {
    output("echo_client", &[server, text])
}

#[test]
fn the_echo_client_gets_an_answer_from_the_echo_server() {
    let (_server, address) = server("echo_server");
    assert_eq!(echo(&address, "over and out"), "over and out\n");
}

#[test]
fn clients_and_servers_on_threads_of_their_own_and_under_tokio_work_together() {
    let long = "long ".repeat(10_000);
    let long = long.trim();
    for name in ["driver_server", "tokio_server"] {
        let (_server, address) = server(name);
        let texts = [&address, "one", long, "three"];
        let expected = format!("ONE\n{}\nTHREE\n", long.to_uppercase());
        assert!(output("driver_client", &texts) == expected);
        // These come in any order.
        let output = output("tokio_client", &texts);
        let mut lines: Vec<_> = output.lines().collect();
        lines.sort_unstable();
        let mut expected: Vec<_> = expected.lines().collect();
        expected.sort_unstable();
        assert!(lines == expected);
    }
}

#[test]
fn the_event_loop_serves_both_of_its_sockets() {
    // Ports that are free now.
    let free = |socket: UdpSocket| socket.local_addr().unwrap();
    let homa: SocketAddr = free(UdpSocket::bind("127.0.0.1:0").unwrap());
    let tcp: SocketAddr = free(UdpSocket::bind("127.0.0.1:0").unwrap());
    let (homa, tcp) = (homa.to_string(), tcp.to_string());
    let _server = Killed(example("mio_event_loop", &[&homa, &tcp]).spawn().unwrap());
    let mut served = String::new();
    for tries in 1.. {
        match TcpStream::connect(&tcp) {
            Ok(_) => break,
            Err(error) if tries == 500 => panic!("{error}"),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
    for text in ["one", "two", "three"] {
        assert_eq!(echo(&homa, text).trim(), text);
    }
    TcpStream::connect(&tcp)
        .unwrap()
        .read_to_string(&mut served)
        .unwrap();
    assert_eq!(served, "3 requests served\n");
}
