//! The core alone: two endpoints joined in memory.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use homa_bench::bench_core::{LARGE, Order, Pair, SMALL, Shape, crowd};

fn core(c: &mut Criterion) {
    let mut group = c.benchmark_group("core");
    let mut bench = |name: &str, shape: Shape, throughput: Throughput| {
        group.throughput(throughput);
        group.bench_function(name, |bencher| {
            let mut pair = Pair::new(shape).expect("two endpoints");
            // Every slot and buffer has been used before anything is measured.
            pair.run(2 * shape.live as u64).expect("warm-up");
            bencher.iter_custom(|rpcs| pair.run(rpcs).expect("exchange").elapsed);
        });
    };
    bench("rpc_100b", SMALL, Throughput::Elements(1));
    bench("rpc_1mb", LARGE, Throughput::Bytes(LARGE.request as u64));
    for (name, live, order) in [
        ("rpc_100b_live_100", 100, Order::Oldest),
        ("rpc_100b_live_100k", 100_000, Order::Oldest),
        ("rpc_100b_live_100k_random", 100_000, Order::Random),
    ] {
        bench(name, crowd(live, order), Throughput::Elements(1));
    }
    group.finish();
}

criterion_group!(benches, core);
criterion_main!(benches);
