//! RPCs over real sockets on loopback.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod driver;

#[path = "../../homa-mio/tests/shared/mod.rs"]
mod shared;

#[path = "../../homa-mio/tests/shared/socket.rs"]
mod tests;
