#![allow(missing_docs)]
use homa_uring::*;
use std::time::Duration;
fn run(wait: Wait, rung: Rung, multishot: bool) {
    let make = || Socket::builder().wait(wait).sys(Uring::default().rung(rung).multishot(multishot));
    let mut server = make().bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            if let Some(Event::Request { rpc, message, .. }) = server.wait(Some(Duration::from_millis(20))).unwrap() {
                let _ = server.reply(rpc, message);
            }
        }
        server.stats()
    });
    let mut client = make().bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for len in [1, 100, 1415, 5000, 100_000, 1 << 20, 16 << 20] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
        let t = std::time::Instant::now();
        assert!(*client.call(address, &bytes).unwrap() == *bytes);
        println!("{len}: {:?}", t.elapsed());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    println!("{:?}", client.stats());
    println!("{:?}", thread.join().unwrap());
    let t = std::time::Instant::now();
    drop(client);
    println!("drop {:?}", t.elapsed());
}
#[test]
fn all() {
    for wait in [Wait::Sleep, Wait::Spin] {
        for rung in [Rung::Deferred, Rung::Cooperative, Rung::Plain] {
            for multishot in [true, false] {
                println!("=== {wait:?} {rung:?} {multishot}");
                run(wait, rung, multishot);
            }
        }
    }
}
