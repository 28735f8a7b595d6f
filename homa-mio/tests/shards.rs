//! Several drivers on one port, and several for one client.

#![allow(missing_docs)]

mod driver;
mod shared;

#[path = "shared/shards.rs"]
mod tests;
