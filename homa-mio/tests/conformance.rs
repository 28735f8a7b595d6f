//! What users rely on, over real sockets on loopback: the suite is that of `homa-sim-harness`.

#![allow(missing_docs, unreachable_pub)]

#[path = "common/testbed.rs"]
mod testbed;

use homa_mio::sys::Os;
use testbed::Sockets;

homa_sim_harness::conformance!(Sockets::new(|| Os));
