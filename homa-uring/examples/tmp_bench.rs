#![allow(missing_docs)]
use homa_mio::generic::Socket;
use homa_mio::sys::{Os, Sys};
use homa_uring::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn pin(cpu: usize) {
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn run<S: Sys + Send + 'static>(
    name: &str,
    make: impl Fn() -> S,
    wait: Wait,
    len: usize,
    window: usize,
    time: Duration,
    peers: usize,
) {
    let options = || Options::default().wait(wait).sys(make());
    let mut server = options().bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        pin(1);
        let mut reply = vec![0_u8; if len > 10_000 { 100 } else { 0 }];
        while !stopped.load(Ordering::Relaxed) {
            for _ in 0..64 {
                if let Some(Event::Request { rpc, message, .. }) =
                    server.wait(Some(Duration::from_millis(20))).unwrap()
                {
                    if reply.is_empty() {
                        let _ = server.reply(rpc, message);
                    } else {
                        drop(message);
                        let m = server.message(&reply);
                        let _ = server.reply(rpc, m);
                        reply[0] += 1;
                    }
                }
            }
        }
        server.stats()
    });
    pin(0);
    let _ = peers;
    let mut client: Socket<S> = options().bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut lat = Vec::with_capacity(1 << 22);
    let start = Instant::now();
    let mut done = 0_u64;
    let mut free: Vec<Message> = (0..window)
        .map(|_| Message::from(vec![7_u8; len]))
        .collect();
    let mut warm = true;
    let mut t0 = start;
    let mut calls0 = 0;
    loop {
        let now = Instant::now();
        if warm && now - start > time / 5 {
            warm = false;
            t0 = now;
            done = 0;
            calls0 = client.stats().io.system_calls();
            lat.clear();
        }
        if now - start > time {
            break;
        }
        let sent = now;
        while let Some(m) = free.pop() {
            client
                .request(address, m, RequestOptions::default())
                .unwrap();
        }
        if let Some(Event::Response { request, .. }) = client.wait(None).unwrap() {
            free.push(request);
            done += 1;
            if window == 1 {
                lat.push(sent.elapsed().as_nanos() as u32);
            }
        }
    }
    let elapsed = t0.elapsed().as_secs_f64();
    let cs = client.stats();
    let calls = cs.io.system_calls() - calls0;
    stop.store(true, Ordering::Relaxed);
    while client.live_rpcs() > 0 {
        let _ = client.wait(Some(Duration::from_millis(1))).unwrap();
    }
    let ss = thread.join().unwrap();
    lat.sort_unstable();
    let p = |q: f64| {
        lat.get((lat.len() as f64 * q) as usize)
            .copied()
            .unwrap_or(0) as f64
            / 1000.0
    };
    let server_per = ss.io.system_calls() as f64 / ss.core.requests_received.max(1) as f64;
    println!(
        "{name:24} {:9.0} rpc/s {:6.2} Gb/s p50 {:6.2} p99 {:6.2} us; calls/rpc client {:.3} server {:.3}; resends {} short {} rearm {} overfl {} joined {}",
        done as f64 / elapsed,
        done as f64 * len as f64 * 8.0 / elapsed / 1e9,
        p(0.5),
        p(0.99),
        calls as f64 / done as f64,
        server_per,
        cs.core.resends_sent + ss.core.resends_sent,
        ss.io.ring_buffers_short,
        ss.io.ring_rearmed,
        ss.io.ring_overflows,
        ss.io.joined_received
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let len: usize = args[1].parse().unwrap();
    let window: usize = args[2].parse().unwrap();
    let wait = match args[3].as_str() {
        "spin" => Wait::Spin,
        "sleep" => Wait::Sleep,
        _ => Wait::Adaptive(Duration::from_micros(50)),
    };
    let time = Duration::from_millis(args[4].parse().unwrap());
    let rounds: usize = args[5].parse().unwrap();
    let which: Vec<&str> = args[6..].iter().map(|s| s.as_str()).collect();
    for _ in 0..rounds {
        for &w in &which {
            let mut parts = w.split(':');
            match parts.next().unwrap() {
                "mio" => run("mio", || Os, wait, len, window, time, 1),
                _ => {
                    let rung = match parts.next().unwrap_or("d") {
                        "c" => Rung::Cooperative,
                        "p" => Rung::Plain,
                        _ => Rung::Deferred,
                    };
                    let buffers: u16 = parts.next().unwrap_or("64").parse().unwrap();
                    let multi = parts.next().unwrap_or("m") == "m";
                    run(
                        w,
                        move || {
                            Uring::default()
                                .rung(rung)
                                .buffers(buffers)
                                .multishot(multi)
                        },
                        wait,
                        len,
                        window,
                        time,
                        1,
                    )
                }
            }
        }
    }
}
