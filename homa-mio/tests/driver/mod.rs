//! The driver that the shared tests are to run over.

#![allow(dead_code, unused_imports, unreachable_pub)]

use homa_mio::sys::{Faulty, Plan};
pub use homa_mio::*;

/// The driver's datagrams, with faults.
pub fn faulty<P: Plan>(plan: P) -> Faulty<P> {
    Faulty::new(plan)
}
