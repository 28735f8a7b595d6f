//! The tool as a user meets it.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Commands that spin on every CPU run one at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn homa(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homa"));
    command.args(args).stdin(Stdio::null());
    command
}

fn json_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn read_json(path: &PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The command has failed with exit code 1 and said why in one line, which is returned.
fn one_line_error(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

/// A server in a process of its own, ended with the test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut process = homa(&["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { process, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn demo_compares_and_writes_json() {
    let _alone = alone();
    let path = json_path("demo.json");
    let start = Instant::now();
    let output = homa(&["demo", "--seconds", "1", "--json", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(start.elapsed() < Duration::from_secs(25));
    assert!(
        output.stderr.is_empty(),
        "no progress bar without a terminal: {output:?}"
    );
    let json = read_json(&path);
    assert_eq!(json["errors"], 0);
    let rpcs = json["rpcs"].as_u64().unwrap();
    assert!(rpcs > 50, "{json}");
    let classes = json["classes"].as_array().unwrap();
    let count: u64 = classes.iter().map(|c| c["count"].as_u64().unwrap()).sum();
    assert_eq!(count, rpcs);
    for class in classes.iter().filter(|class| class["count"] != 0) {
        for key in ["homa_p50_us", "homa_p99_us", "tcp_p50_us", "tcp_p99_us"] {
            assert!(class[key].as_f64().unwrap() > 0.0, "{class}");
        }
    }
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("1,000,000 B"), "{stdout}");
}

#[test]
fn call_reaches_a_server_with_every_size() {
    let _alone = alone();
    let server = Server::start();
    for (size, count) in [("1", 1000), ("1000000", 20), ("16777216", 3)] {
        let path = json_path(&format!("call-{size}.json"));
        let path = path.to_str().unwrap();
        let count_text = count.to_string();
        let args = [
            "call",
            &server.address,
            "--size",
            size,
            "--count",
            &count_text,
        ];
        let output = homa(&args).args(["--json", path]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let json = read_json(&path.into());
        assert_eq!(json["rpcs"], count);
        let (p50, p99) = (
            json["p50_us"].as_f64().unwrap(),
            json["p99_us"].as_f64().unwrap(),
        );
        assert!(p50 > 0.0 && p99 >= p50, "{json}");
    }
}

#[test]
fn nobody_there_is_told_in_one_line() {
    // Bound and closed again: a port that nobody listens on.
    let address = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let start = Instant::now();
    let args = [
        "call",
        &address.to_string(),
        "--size",
        "100",
        "--count",
        "1",
    ];
    let error = one_line_error(&homa(&args).output().unwrap());
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(error.contains("no answer"), "{error}");
}

#[test]
fn a_server_killed_in_a_call_is_told_in_one_line() {
    let _alone = alone();
    let mut server = Server::start();
    let call = homa(&[
        "call",
        &server.address,
        "--size",
        "1000000",
        "--count",
        "100000000",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    server.process.kill().unwrap();
    let killed = Instant::now();
    let error = one_line_error(&call.wait_with_output().unwrap());
    assert!(
        killed.elapsed() < Duration::from_secs(2),
        "{:?}",
        killed.elapsed()
    );
    assert!(error.contains("silent"), "{error}");
}

#[test]
fn an_address_in_use_is_told_in_one_line() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = one_line_error(&homa(&["serve", "--listen", &address]).output().unwrap());
    assert!(
        error.contains(&address) && error.contains("in use"),
        "{error}"
    );
}

#[test]
fn a_json_file_that_cannot_be_written_is_told_before_the_run() {
    let path = json_path("no/such/directory.json");
    let start = Instant::now();
    let args = ["demo", "--seconds", "60", "--json", path.to_str().unwrap()];
    let error = one_line_error(&homa(&args).output().unwrap());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(error.contains("directory.json"), "{error}");
}

#[test]
fn wrong_arguments_have_a_code_of_their_own() {
    for args in [
        &["demo", "--seconds", "soon"][..],
        &["demo", "--seconds", "0"],
        &["demo", "--seconds", "nan"],
        &["demo", "--load", "1.5"],
        &["demo", "--driver", "pigeon"],
        &["call", "nowhere", "--size", "1"],
        &["call", "127.0.0.1:1", "--size", "0"],
        &["call", "127.0.0.1:1", "--size", "99999999999"],
        &["call", "127.0.0.1:1", "--count", "0"],
        &["serve"],
        &["race", "--mtu", "100"],
        &["race", "--scenarios", "horses"],
        &["race", "--runs", "0"],
        &["nonsense"],
        &[],
    ] {
        let output = homa(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn bench_core_writes_its_figures() {
    let _alone = alone();
    let path = json_path("core.json");
    let args = ["bench", "core", "--quick", "--json", path.to_str().unwrap()];
    let output = homa(&args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let json = read_json(&path);
    for key in [
        "rpcs_per_second_100b",
        "gbps_1mb",
        "ns_per_packet_100",
        "ns_per_packet_100k",
        "bytes_per_rpc",
        "bytes_per_peer",
    ] {
        assert!(json[key].as_f64().unwrap() > 0.0, "{key}: {json}");
    }
    assert_eq!(json["steady_state_allocations"], 0);
}

/// Has the system refuse io_uring to a command, as containers do.
#[cfg(target_os = "linux")]
fn without_io_uring(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;

    // The system call's number is the first word of what a filter sees.
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refuse = move || {
        let mut steps = [
            step(LOAD, 0, 0, 0),
            step(EQUAL, 0, 1, libc::SYS_io_uring_setup as u32),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_mut_ptr(),
        };
        let set = |option: libc::c_int, a: libc::c_ulong, b: *const libc::sock_fprog| {
            // SAFETY: neither option touches memory of this process but the filter, which lives.
            match unsafe { libc::prctl(option, a, b, 0, 0) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        set(libc::PR_SET_NO_NEW_PRIVS, 1, std::ptr::null())?;
        let mode = libc::SECCOMP_MODE_FILTER.into();
        set(libc::PR_SET_SECCOMP, mode, &raw const filter)
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(refuse) }
}

#[cfg(target_os = "linux")]
#[test]
fn demo_runs_without_io_uring_and_says_so() {
    let _alone = alone();
    let mut command = homa(&["demo", "--seconds", "0.5", "--driver", "uring"]);
    let output = without_io_uring(&mut command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let said = "homa-mio in place of homa-uring, io_uring off: refused";
    assert!(stdout.contains(said), "{stdout}");
    // The race leaves it out and says so.
    let mut command = homa(&["race", "--runs", "1", "--millis", "20"]);
    command.args([
        "--scenarios",
        "latency",
        "--transports",
        "homa-uring,homa-mio",
    ]);
    let output = without_io_uring(&mut command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains("homa-uring: no socket for homa-uring"),
        "{stdout}"
    );
}

#[test]
fn race_writes_figures_ratios_and_a_picture() {
    let _alone = alone();
    let (path, picture) = (json_path("race.json"), json_path("race.svg"));
    let args = ["race", "--runs", "1", "--millis", "30", "--json"];
    let output = homa(&args)
        .arg(&path)
        .arg("--svg")
        .arg(&picture)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let json = read_json(&path);
    // io_uring and BBR are not everywhere, and an open load may be too much for a slow machine.
    for (scenario, transports) in [
        (
            "throughput",
            &["raw-udp", "homa-mio", "tcp-cubic", "quic"][..],
        ),
        (
            "throughput-sleeping",
            &["raw-udp", "homa-mio", "tcp-cubic", "quic"],
        ),
        (
            "latency",
            &["raw-udp", "homa-mio", "tcp-cubic", "quic", "grpc"],
        ),
        (
            "latency-sleeping",
            &["raw-udp", "homa-mio", "tcp-cubic", "quic", "grpc"],
        ),
        ("rate", &["homa-mio", "tcp-cubic", "quic", "grpc"]),
        ("rate-sleeping", &["homa-mio", "tcp-cubic", "quic", "grpc"]),
        ("rate-peers", &["homa-mio", "tcp-cubic", "quic", "grpc"]),
        ("mixed", &["homa-mio", "tcp-cubic", "tcp-cubic-by-size"]),
    ] {
        for transport in transports {
            let cell = &json["scenarios"][scenario]["transports"][transport];
            assert_eq!(cell["errors"], 0, "{scenario} {transport}: {cell}");
            for key in ["gbps", "cpu_seconds_per_gigabyte", "gbps_per_core_second"] {
                let value = cell[key].as_f64();
                assert!(value > Some(0.0), "{scenario} {transport} {key}: {cell}");
            }
            assert_eq!(cell["runs"].as_array().unwrap().len(), 1);
            assert!(!cell["settings"].as_str().unwrap().is_empty());
        }
    }
    for ratio in [
        "throughput_vs_raw",
        "throughput_vs_tcp",
        "throughput_vs_quic",
        "gbps_per_core_second",
        "latency_vs_raw",
        "rate_vs_tcp",
        "rate_vs_grpc",
        "mixed_p99_tcp_vs_homa",
        "syscalls_per_rpc",
    ] {
        let value = json["ratios"][ratio].as_f64();
        assert!(value > Some(0.0), "{ratio}: {}", json["ratios"]);
    }
    assert!(json["ratios"]["allocations_per_rpc"].is_number());
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    assert!(picture.matches("class=\"homa\"").count() >= 8, "{picture}");
}

#[test]
fn race_runs_what_is_chosen_alone() {
    let _alone = alone();
    let path = json_path("race-chosen.json");
    let output = homa(&["race", "--runs", "1", "--millis", "20", "--mtu", "9000"])
        .args([
            "--scenarios",
            "latency,rate",
            "--transports",
            "homa-mio,tcp-cubic",
        ])
        .arg("--json")
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let json = read_json(&path);
    let scenarios = json["scenarios"].as_object().unwrap();
    assert!(scenarios.keys().eq(["latency", "rate"]), "{json}");
    for figures in scenarios.values() {
        let transports = figures["transports"].as_object().unwrap();
        assert!(transports.keys().eq(["homa-mio", "tcp-cubic"]), "{figures}");
    }
    assert_eq!(json["mtu"], 9000);
    assert_eq!(json["ratios"]["throughput_vs_raw"], Value::Null);
}

#[test]
fn soak_checks_itself() {
    let _alone = alone();
    let json = json_path("soak.json");
    let mut soak = homa(&["soak", "--minutes", "0.05", "--json"]);
    let output = soak.arg(&json).output().unwrap();
    let figures = read_json(&json);
    assert!(figures["rpcs"].as_u64().unwrap() > 0, "{figures}");
    assert_eq!(figures["unexplained_errors"], 0, "{figures}");
    assert_eq!(figures["duplicate_executions"], 0, "{figures}");
    assert_eq!(figures["descriptors_grown"], 0, "{figures}");
    assert!(figures["lost_percent"].as_f64().unwrap() > 0.1, "{figures}");
    assert!(figures["rss_slope_kib_per_minute"].is_number());
    assert!(figures["partition_freed_after_s"].is_number(), "{figures}");
    assert_eq!(figures["loss"].as_array().unwrap().len(), 4);
    // On a busy machine throughput varies by more than what a dead peer may cost.
    let failures = figures["failures"].as_array().unwrap();
    let only_noise = failures
        .iter()
        .all(|what| what.as_str().unwrap().contains("a dead peer costs"));
    assert!(only_noise, "{figures}");
    assert_eq!(output.status.success(), failures.is_empty(), "{output:?}");
}
