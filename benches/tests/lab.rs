//! The lab as a user meets it. Where network namespaces cannot be made these tests say so and
//! prove nothing.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// One lab at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A small network.
const SMALL: [&str; 3] = ["lab", "--hosts", "3"];
/// Short messages: enough samples within a moment.
const SHORT: [&str; 6] = ["--rate", "50mbit", "--workload", "w1", "--load", "0.05"];

fn lab(seconds: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homa"));
    command.args(SMALL).args(["--seconds", seconds]).args(args);
    command.stdin(Stdio::null());
    command
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Why the lab cannot run here, if that is what `output` says.
fn missing(output: &Output) -> bool {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let missing = [
        "cannot make network namespaces",
        "(package iproute2)",
        "qdisc kind is unknown",
        "Operation not supported",
        "this kernel has no TCP",
    ];
    let found = !output.status.success() && missing.iter().any(|what| stderr.contains(what));
    if found {
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        println!("skipped: {}", stderr.trim());
    }
    found
}

fn names() -> Vec<u8> {
    let list = Command::new("ip").args(["netns", "list"]).output();
    list.map_or_else(|_| Vec::new(), |output| output.stdout)
}

#[test]
fn the_lab_compares_and_leaves_nothing_behind() {
    let _alone = alone();
    let before = names();
    for (extra, name) in [(&[][..], "4"), (&["--ipv6"], "6")] {
        let [json, csv, svg] =
            ["json", "csv", "svg"].map(|kind| path(&format!("lab{name}.{kind}")));
        let output = lab("0.5", &SHORT)
            .args([
                "--transports",
                "homa-mio,tcp-cubic",
                "--tcp-connections",
                "1,2",
            ])
            .args(extra)
            .arg("--json")
            .arg(&json)
            .arg("--csv")
            .arg(&csv)
            .arg("--svg")
            .arg(&svg)
            .output()
            .unwrap();
        if missing(&output) {
            return;
        }
        assert!(output.status.success(), "{output:?}");
        let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        let transports = json["transports"].as_array().unwrap();
        assert_eq!(transports.len(), 2);
        for transport in transports {
            let class = &transport["classes"][0];
            assert_eq!(class["max_bytes"], 1_400);
            assert!(class["count"].as_u64().unwrap() >= 1_000, "{class}");
            for key in ["p50_us", "p99_us", "p999_us", "slowdown_p99"] {
                assert!(class[key].as_f64().unwrap() > 0.0, "{key}: {class}");
            }
            for variant in transport["variants"].as_array().unwrap() {
                assert_eq!(
                    (&variant["errors"], &variant["unfinished"]),
                    (&0.into(), &0.into())
                );
                // All hosts ran the same schedule over every transport.
                assert_eq!(variant["classes"][0]["count"], class["count"]);
            }
        }
        assert!(json["ratios"]["short_p99_tcp_vs_homa"].as_f64().unwrap() > 0.0);
        priorities_reach_their_queues(transports);
        let csv = std::fs::read_to_string(csv).unwrap();
        assert!(
            csv.lines().count() > 4 && csv.starts_with("transport,"),
            "{csv}"
        );
        assert!(
            std::fs::read_to_string(svg)
                .unwrap()
                .contains("tcp-cubic P99")
        );
    }
    assert_eq!(names(), before);
}

/// Homa's control packets are in the first queue, its data in several, and all of TCP, and of Homa
/// without marks, in the last.
fn priorities_reach_their_queues(transports: &[Value]) {
    let packets = |variant: &Value, priority: usize| {
        let queue = &variant["queues"][priority];
        assert_eq!(queue["priority"], priority);
        queue["packets"].as_u64().unwrap()
    };
    let homa = &transports[0]["variants"];
    assert!(packets(&homa[0], 7) > 0, "{homa}");
    for flat in [&homa[1], &transports[1]["variants"][0]] {
        assert!(packets(flat, 0) > 0);
        assert!(
            (1..8).all(|priority| packets(flat, priority) == 0),
            "{flat}"
        );
    }
}

/// The processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let found = std::fs::read_dir("/proc").unwrap().flatten();
    let pid = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in brackets, may hold anything; state and parent follow.
        let after = stat.rsplit(')').next().unwrap_or_default();
        after.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    found.filter_map(pid).filter(is_child).collect()
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    !matches!(after.split_whitespace().next(), None | Some("Z" | "X"))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what} takes too long"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn however_the_lab_is_ended_its_hosts_end_too() {
    let _alone = alone();
    let before = names();
    let once = ["--transports", "tcp-cubic", "--tcp-connections", "1"];
    if missing(&lab("0.5", &SHORT).args(once).output().unwrap()) {
        return;
    }
    for signal in ["-INT", "-TERM", "-KILL"] {
        let child = lab("100", &SHORT)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lab = Running(child);
        let pid = lab.0.id();
        until("a lab with three hosts", || children(pid).len() >= 3);
        let hosts = children(pid);
        let sent = Command::new("kill")
            .args([signal, &pid.to_string()])
            .status();
        assert!(sent.unwrap().success());
        assert!(!lab.0.wait().unwrap().success());
        // A namespace goes with the last process in it.
        until("the end of the hosts", || {
            !hosts.iter().any(|&host| is_running(host))
        });
    }
    assert_eq!(names(), before);
}

#[test]
fn jobs_take_steps() {
    let _alone = alone();
    for pattern in ["barrier", "kv", "incast"] {
        let json = path(&format!("{pattern}.json"));
        let output = lab("2", &["--pattern", pattern, "--load", "0.1"])
            .args([
                "--transports",
                "homa-mio,tcp-reno",
                "--tcp-connections",
                "2",
            ])
            .arg("--json")
            .arg(&json)
            .output()
            .unwrap();
        if missing(&output) {
            return;
        }
        assert!(output.status.success(), "{output:?}");
        let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        for transport in json["transports"].as_array().unwrap() {
            for variant in transport["variants"].as_array().unwrap() {
                let steps = &variant["steps"];
                assert!(steps["count"].as_u64().unwrap() > 0, "{variant}");
                // A step holds 1 ms of computation, and waits for the network.
                assert!(steps["p50_us"].as_f64().unwrap() > 1_000.0, "{steps}");
                let idle = steps["idle_share"].as_f64().unwrap();
                assert!(idle > 0.0 && idle < 1.0, "{steps}");
            }
        }
        assert!(json["ratios"]["step_mean_tcp_vs_homa"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn wrong_arguments_have_a_code_of_their_own() {
    for args in [
        &["--hosts", "1"][..],
        &["--rate", "fast"],
        &["--queue", "0"],
        &["--workload", "w9"],
        &["--load", "0"],
        &["--load", "nan"],
        &["--transports", "pigeon"],
        &["--tcp-connections", "0"],
        &["--pattern", "none"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_homa"));
        let output = command.arg("lab").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    }
}
