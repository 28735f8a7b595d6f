//! Handles: calls and answers from any thread, over a driver's thread.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod driver;

#[path = "../../homa-mio/tests/shared/mod.rs"]
mod shared;

#[path = "../../homa-mio/tests/shared/handles.rs"]
mod tests;
