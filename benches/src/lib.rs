//! What the `homa` tool and the benchmarks are made of.

pub mod load;
pub mod raw_udp;
pub mod report;
pub mod sys;
pub mod tcp;
pub mod transport;
pub mod workload;
