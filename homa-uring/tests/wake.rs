//! A thread that sleeps because memory is short wakes up when another thread gives some back.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod driver;

#[path = "../../homa-mio/tests/shared/mod.rs"]
mod shared;

#[path = "../../homa-mio/tests/shared/wake.rs"]
mod tests;
