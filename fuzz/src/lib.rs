//! What is fuzzed, and what must hold. Each target is a function from bytes, which panics if
//! something does not hold.

mod differential;
mod driver;
mod endpoint;
mod input;
mod pair;
mod parse;

pub use differential::differential;
pub use driver::driver;
pub use endpoint::endpoint;
pub use pair::pair;
pub use parse::parse;
