//! tmp
use homa_bench::load::*;
use homa_bench::*;
use std::time::Duration;
fn main() {
    sys::pin(0);
    let d = Duration::from_millis(500);
    let pattern = workload::Pattern::new(1, 1_000_000);
    for _ in 0..3 {
        let raw = raw_udp::throughput(d).unwrap();
        let pp = raw_udp::ping_pong(100, d).unwrap().class(0, 1000);
        let tp = tcp::ping_pong(100, d).unwrap().class(0, 1000);
        println!("raw {raw:?} pp {pp:?} tcp {tp:?}");
        for (reply, out, size) in [
            (transport::Reply::FirstByte, 4, 1_000_000u32),
            (transport::Reply::FirstByte, 16, 1_000_000u32),
            (transport::Reply::Echo, 16, 0),
            (transport::Reply::Echo, 32, 100),
            (transport::Reply::Echo, 1, 100),
        ] {
            let (mut c, s) = tcp::pair(reply).unwrap();
            let mut t = transport::ServerThread::spawn(vec![s]).unwrap();
            t.select(0);
            let mut rng = workload::Rng::new(1);
            let sizes = workload::Sizes::w4();
            let shape = ClosedLoop {
                outstanding: out,
                reply,
                first_id: 1,
                duration: d,
                patience: d,
            };
            let run = closed_loop(c.as_mut(), shape, &pattern, &mut || {
                if size == 0 {
                    sizes.draw(&mut rng)
                } else {
                    size
                }
            })
            .unwrap();
            println!(
                "  tcp {reply:?} {out} {size}: {:.2} Gb/s {:.0}/s {:?} {} errors",
                run.gbps(),
                run.rate(),
                run.latencies.class(0, 2_000_000),
                run.errors
            );
            t.stop().unwrap();
        }
    }
}
