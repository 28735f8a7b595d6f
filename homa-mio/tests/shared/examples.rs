//! Running examples, for the tests of each driver.

#![allow(missing_docs, dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// An example's program: built along with the tests, in a directory above theirs.
pub fn example(name: &str, args: &[&str]) -> Command {
    let test = std::env::current_exe().unwrap();
    let mut places = test
        .ancestors()
        .map(|place| place.join("examples").join(name));
    let path = places.find(|path| path.is_file());
    let mut command = Command::new(path.expect("cargo builds the examples for tests"));
    command.args(args).stdout(Stdio::piped());
    command
}

pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts a server, which tells its address.
pub fn server(name: &str) -> (Killed, String) {
    let mut server = Killed(example(name, &["127.0.0.1:0"]).spawn().unwrap());
    let mut line = String::new();
    let output = server.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    (server, address)
}

pub fn output(name: &str, args: &[&str]) -> String {
    let output = example(name, args).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}
