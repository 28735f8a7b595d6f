//! `homa-sim`: see `homa-sim --help`.

fn main() -> std::process::ExitCode {
    homa_sim_harness::cli::main()
}
