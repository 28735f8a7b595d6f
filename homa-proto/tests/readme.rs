//! What the READMEs show is what is compiled and run as examples.

use std::fs;
use std::path::Path;

/// The Rust code blocks of a Markdown file.
fn blocks(markdown: &str) -> Vec<&str> {
    let parts = markdown.split("\n```rust\n").skip(1);
    parts
        .map(|part| part.split("```").next().expect("an end"))
        .collect()
}

#[test]
fn code_in_the_readmes_is_that_of_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| fs::read_to_string(root.join(path)).expect(path);
    let core = read("homa-proto/examples/udp_loop.rs");
    let examples = [
        core.clone(),
        read("homa-mio/examples/echo_client.rs"),
        read("homa-mio/examples/echo_server.rs"),
    ];
    let of_core = read("homa-proto/README.md");
    assert_eq!(blocks(&of_core).len(), 1);
    assert!(core.contains(blocks(&of_core)[0]), "homa-proto/README.md");

    let of_all = read("README.md");
    assert_eq!(blocks(&of_all).len(), 3);
    for block in blocks(&of_all) {
        let shown = examples.iter().any(|example| example.contains(block));
        assert!(shown, "in README.md, but in no example:\n{block}");
    }
}
