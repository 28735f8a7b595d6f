//! What users rely on, over real sockets on loopback: the suite is that of `homa-sim-harness`.

#![allow(missing_docs, unreachable_pub)]
#![cfg(target_os = "linux")]

mod driver;

#[path = "../../homa-mio/tests/shared/testbed.rs"]
mod testbed;

homa_sim_harness::conformance!(testbed::Sockets::new());
