//! A thread that sleeps because memory is short wakes up when another thread gives some back.

#![allow(missing_docs)]

mod driver;
mod shared;

#[path = "shared/wake.rs"]
mod tests;
