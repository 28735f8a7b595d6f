//! The examples work.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

#[path = "../../homa-mio/tests/shared/examples.rs"]
mod shared;

use shared::{output, server};

#[test]
fn the_echo_client_gets_its_answers_from_the_echo_server() {
    let (_server, address) = server("uring_echo_server");
    let long = "long ".repeat(10_000);
    let texts = ["one", "two", long.trim()];
    let output = output("uring_echo_client", &[&[&*address], &texts[..]].concat());
    // They come in any order.
    let mut lines: Vec<_> = output.lines().collect();
    lines.sort_unstable();
    let mut expected = texts;
    expected.sort_unstable();
    assert!(lines == expected);
}

#[test]
fn handles_work_under_tokio() {
    let long = "long ".repeat(10_000);
    for name in ["uring_echo_server", "uring_tokio_server"] {
        let (_server, address) = server(name);
        let expected = format!("one\n{long}\nthree\n");
        let texts = [&*address, "one", &*long, "three"];
        assert!(output("uring_tokio_client", &texts) == expected);
    }
}
