//! What is fuzzed, and what must hold. Each target is a function from bytes, which panics if
//! something does not hold.

mod endpoint;
mod parse;

pub use endpoint::endpoint;
pub use parse::parse;
