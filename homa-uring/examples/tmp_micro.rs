#![allow(missing_docs)]
use homa_mio::sys::*;
use homa_uring::*;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Instant;
fn median(mut v: Vec<u64>) -> (u64, u64) {
    v.sort_unstable();
    (v[v.len() / 10], v[v.len() / 2])
}
fn run<S: Sys>(name: &str, mut sys: S) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    sys.ask(socket.as_fd(), Ask::Gro).unwrap();
    sys.start(socket.as_fd()).unwrap();
    let mut memory = vec![0; sys.receive_memory()];
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let bytes = [1_u8; 140];
    let batch = Outgoing {
        to: sink.local_addr().unwrap(),
        local: None,
        tos: None,
        start: 0,
        len: 140,
        segment_size: None,
    };
    let mut send = Vec::new();
    let mut recv = Vec::new();
    let mut none = Vec::new();
    let mut out = Vec::new();
    let mut b = [0; 2000];
    let mut into = [Incoming::NONE; 1];
    let _ = sys.receive(socket.as_fd(), &mut memory, &mut into);
    for _ in 0..50_000 {
        let t = Instant::now();
        sys.send(socket.as_fd(), &bytes, &[batch]).unwrap();
        send.push(t.elapsed().as_nanos() as u64);
        sink.recv(&mut b).unwrap();
        let t = Instant::now();
        sink.send_to(&bytes, socket.local_addr().unwrap()).unwrap();
        out.push(t.elapsed().as_nanos() as u64);
        let t = Instant::now();
        let n = sys.receive(socket.as_fd(), &mut memory, &mut into).unwrap();
        recv.push(t.elapsed().as_nanos() as u64);
        assert_eq!(n, 1);
        let t = Instant::now();
        let _ = sys.receive(socket.as_fd(), &mut memory, &mut into).is_err();
        none.push(t.elapsed().as_nanos() as u64);
    }
    println!(
        "{name:10} send {:?} | peer's sendto {:?} | receive {:?} | receive nothing {:?}",
        median(send),
        median(out),
        median(recv),
        median(none)
    );
}
fn main() {
    let only = std::env::args().nth(1);
    for _ in 0..3 {
        if only.is_none() {
            run("os", Os);
        }
        run("deferred", Uring::default());
        if only.is_none() {
            run("coop", Uring::default().rung(Rung::Cooperative));
        }
    }
}
