//! What the `homa` tool and the benchmarks are made of.

pub mod alloc;
pub mod bench_core;
pub mod bench_cost;
pub mod cli;
pub mod demo;
pub mod grpc;
pub mod homa;
#[cfg(target_os = "linux")]
pub mod lab;
pub mod load;
pub mod quic;
pub mod race;
pub mod raw_udp;
pub mod report;
pub mod serve;
pub mod soak;
pub mod sys;
pub mod tcp;
mod tokio_turns;
pub mod transport;
pub mod workload;
