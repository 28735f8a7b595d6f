//! The `homa` tool.

use std::process::ExitCode;

use clap::Parser;
use homa_bench::{alloc, cli};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("homa: {error:#}");
            ExitCode::FAILURE
        }
    }
}
