//! In a steady state the driver allocates nothing.

#![allow(missing_docs)]

mod driver;
mod shared;

#[path = "shared/allocations.rs"]
mod tests;
