//! In a steady state the driver allocates nothing.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod driver;

#[path = "../../homa-mio/tests/shared/mod.rs"]
mod shared;

#[path = "../../homa-mio/tests/shared/allocations.rs"]
mod tests;
