//! The core links without `std` and without a heap: see `no_alloc/README.md`.

use std::path::Path;
use std::process::{Command, Output};

/// A small 32-bit machine and a bare 64-bit one.
const TARGETS: [&str; 2] = ["thumbv7em-none-eabi", "x86_64-unknown-none"];

fn is_installed(target: &str) -> bool {
    let asked = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .expect("rustc runs");
    let libraries = String::from_utf8(asked.stdout).expect("a path");
    asked.status.success() && Path::new(libraries.trim()).is_dir()
}

fn build(target: &str, features: &[&str]) -> Output {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/no_alloc");
    Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--target", target])
        .args(features)
        .current_dir(package)
        .env("CARGO_TARGET_DIR", env!("CARGO_TARGET_TMPDIR"))
        // Flags for the host's linker or sanitizers mean nothing there.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .expect("cargo runs")
}

#[test]
fn links_without_std_and_without_a_heap() {
    for target in TARGETS {
        if !is_installed(target) {
            eprintln!("skipped: target not installed (rustup target add {target})");
            continue;
        }
        let proof = build(target, &[]);
        let said = String::from_utf8_lossy(&proof.stderr);
        assert!(proof.status.success(), "{target}: {said}");

        // The proof proves something: with one `Vec` in it, it fails for want of a heap.
        let counterexample = build(target, &["--features", "counterexample"]);
        let said = String::from_utf8_lossy(&counterexample.stderr);
        assert!(!counterexample.status.success(), "{target}");
        assert!(said.contains("no global memory allocator"), "{said}");
    }
}
