//! The `homa` tool.
fn main() {}
