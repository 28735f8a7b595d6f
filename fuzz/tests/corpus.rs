//! The inputs that are kept for each target, on any compiler.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// Replays all inputs of a target. What fails is told by its file.
fn replay(name: &str, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut count = 0;
    for entry in fs::read_dir(&directory).expect("inputs are kept for each target") {
        let file = entry.expect("the directory can be read").path();
        let input = fs::read(&file).expect("an input can be read");
        assert!(
            catch_unwind(|| target(&input)).is_ok(),
            "{}",
            file.display()
        );
        count += 1;
    }
    assert!(count > 10, "{count} inputs in {}", directory.display());
}

#[test]
fn parse() {
    replay("parse", homa_fuzz::parse);
}

#[test]
fn endpoint() {
    replay("endpoint", homa_fuzz::endpoint);
}

#[test]
fn pair() {
    replay("pair", homa_fuzz::pair);
}

#[test]
fn differential() {
    replay("differential", homa_fuzz::differential);
}

#[test]
fn driver() {
    replay("driver", homa_fuzz::driver);
}
