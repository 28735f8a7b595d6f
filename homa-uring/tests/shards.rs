//! Several drivers on one port, and several for one client.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod driver;

#[path = "../../homa-mio/tests/shared/mod.rs"]
mod shared;

#[path = "../../homa-mio/tests/shared/shards.rs"]
mod tests;
