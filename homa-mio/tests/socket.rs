//! RPCs over real sockets on loopback.

#![allow(missing_docs)]

mod driver;
mod shared;

#[path = "shared/socket.rs"]
mod tests;
