//! Handles: calls and answers from any thread, over a driver's thread.

#![allow(missing_docs)]

mod driver;
mod shared;

#[path = "shared/handles.rs"]
mod tests;
