//! Homa and TCP over loopback, client and server on a thread each.

use std::time::Duration;

use anyhow::Result;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use homa_bench::load::{ClosedLoop, closed_loop};
use homa_bench::transport::{CLIENT_CPU, Pair, Reply, ServerThread, Setup};
use homa_bench::workload::Pattern;
use homa_bench::{homa, sys, tcp};

fn homa(setup: Setup) -> Result<Pair> {
    homa::Driver::Mio.pair(setup)
}

fn tcp(setup: Setup) -> Result<Pair> {
    tcp::pair(setup, tcp::Choice::default())
}

fn driver(c: &mut Criterion) {
    sys::pin(CLIENT_CPU);
    for (name, pair) in [("homa", homa as fn(Setup) -> Result<Pair>), ("tcp", tcp)] {
        let mut group = c.benchmark_group(name);
        let mut bench = |name: &str, size: u32, outstanding: usize, reply: Reply| {
            let (mut client, server) = pair(Setup::spinning(reply)).expect("a client and a server");
            let mut thread = ServerThread::spawn(vec![server]).expect("a thread");
            thread.select(0);
            let pattern = Pattern::new(1, size as usize);
            let mut first_id = 1;
            group.throughput(match reply {
                Reply::Echo => Throughput::Elements(1),
                Reply::FirstByte => Throughput::Bytes(size.into()),
            });
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|rpcs| {
                    let shape = ClosedLoop {
                        outstanding,
                        reply,
                        first_id,
                        duration: Duration::MAX,
                        count: rpcs as usize,
                        patience: Duration::from_secs(5),
                    };
                    first_id += rpcs;
                    let run =
                        closed_loop(client.as_mut(), shape, &pattern, &mut || size).expect("a run");
                    assert_eq!(run.errors, 0, "{:?}", run.first_error);
                    run.elapsed
                });
            });
            thread.stop().expect("the server");
        };
        bench("rpc_100b", 100, 1, Reply::Echo);
        bench("rpc_100b_32_in_flight", 100, 32, Reply::Echo);
        bench("rpc_1mb", 1_000_000, 4, Reply::FirstByte);
        group.finish();
    }
}

criterion_group!(benches, driver);
criterion_main!(benches);
