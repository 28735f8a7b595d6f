//! The examples work.

#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};

/// An example's program: built along with the tests, next to them.
fn example(name: &str, args: &[&str]) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    let mut command = Command::new(path.join(name));
    command.args(args).stdout(Stdio::piped());
    command
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts a server, which tells its address.
fn server(name: &str) -> (Killed, String) {
    let mut server = Killed(example(name, &["127.0.0.1:0"]).spawn().unwrap());
    let mut line = String::new();
    let output = server.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    (server, address)
}

fn output(name: &str, args: &[&str]) -> String {
    let output = example(name, args).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

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
