//! The command line, as a user meets it.

use std::path::PathBuf;
use std::process::{Command, Output};

fn homa_sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_homa-sim"))
        .args(args)
        .output()
        .unwrap()
}

fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    dir.join(format!("{}-{name}", std::process::id()))
}

const SMALL: [&str; 8] = [
    "--hosts",
    "4",
    "--gbps",
    "10",
    "--millis",
    "1",
    "--workload",
    "w2",
];

#[test]
fn another_process_finds_the_same_trace() {
    let hash = |name: &str| {
        let path = scratch(name);
        let file = path.to_str().unwrap();
        let mut args = vec!["compare", "--json", file];
        args.extend(SMALL);
        let output = homa_sim(&args);
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let transports = json["transports"].as_array().unwrap();
        assert_eq!(transports.len(), 3);
        for report in transports {
            assert!(report["events_per_second"].as_f64().unwrap() > 0.0);
            let classes = report["classes"].as_array().unwrap();
            assert!(!classes.is_empty());
            for field in [
                "max_bytes",
                "count",
                "p50_slowdown",
                "p99_slowdown",
                "p50_us",
                "p99_us",
            ] {
                assert!(classes[0][field].is_number(), "{field}");
            }
        }
        transports
            .iter()
            .map(|report| report["trace_hash"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(hash("a.json"), hash("b.json"));
}

#[test]
fn mistakes_end_with_one_line_and_code_2() {
    for args in [
        &["run", "--workload", "w7"][..],
        &["run", "--transports", "quic"],
        &["run", "--preset", "atc99"],
        &["run", "--topology", "ring"],
        &["run", "--load", "7"],
        &["run", "--load", "much"],
        &["run", "--nonsense"],
        &["run", "--config", "/nowhere.toml"],
        &["fly"],
        &["fuzz-seeds", "--count", "0"],
        &["compare", "--hosts", "1"],
    ] {
        let output = homa_sim(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        assert!(text.starts_with("homa-sim: "), "{text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn plots_csv_and_captures_are_written() {
    let (svg, csv, pcap) = (scratch("p.svg"), scratch("p.csv"), scratch("p.pcap"));
    let mut args = vec![
        "run",
        "--transports",
        "homa",
        "--svg",
        svg.to_str().unwrap(),
        "--csv",
        csv.to_str().unwrap(),
        "--pcap-host",
        "1",
        "--pcap-file",
        pcap.to_str().unwrap(),
    ];
    args.extend(SMALL);
    let output = homa_sim(&args);
    assert!(output.status.success(), "{output:?}");
    for name in ["p.svg", "p-slowdown.svg"] {
        let text = std::fs::read_to_string(scratch(name)).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("homa P99") && !text.contains("NaN"));
    }
    let text = std::fs::read_to_string(csv).unwrap();
    assert!(text.lines().count() > 10);
    let bytes = std::fs::read(pcap).unwrap();
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    assert_eq!(bytes[20..24], 101u32.to_le_bytes());
    let (mut at, mut packets) = (24, 0);
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        let packet = &bytes[at + 16..at + 16 + length];
        assert_eq!(packet[0], 0x45);
        assert_eq!(packet[9], 146);
        assert_eq!(
            usize::from(u16::from_be_bytes([packet[2], packet[3]])),
            length
        );
        let sum: u32 = packet[..20]
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        homa_proto::wire::Repr::parse(&packet[20..], 1 << 24).unwrap();
        at += 16 + length;
        packets += 1;
    }
    assert!(packets > 100);
}

#[test]
fn seeds_are_played_and_replayed() {
    let output = homa_sim(&["fuzz-seeds", "--count", "20"]);
    assert!(output.status.success(), "{output:?}");
    let output = homa_sim(&["replay", "--seed", "3"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no violation") && text.contains("received"));
}

/// Small RPCs on a lossy network. The run is too short for the limits that `loss` checks by itself: peers have yet to be learnt.
#[test]
fn losses_are_repaired_in_few_round_trips() {
    let path = scratch("loss.json");
    homa_sim(&["loss", "--millis", "20", "--json", path.to_str().unwrap()]);
    let text = std::fs::read_to_string(&path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = json["times"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!(row["failed"], 0, "{row}");
        let most = match row["loss"].as_f64().unwrap() {
            loss if loss > 0.01 => 60.0,
            _ => 8.0,
        };
        assert!(row["p999_round_trips"].as_f64().unwrap() < most, "{row}");
    }
    let without = json["without_loss"].as_array().unwrap();
    assert_eq!(without.len(), 4);
    for row in without {
        assert!(row["share"].as_f64().unwrap() < 0.005, "{row}");
    }
}

#[test]
fn the_best_settings_of_tcp_are_named() {
    let mut args = vec!["run", "--transports", "dctcp", "--best-tcp"];
    args.extend(SMALL);
    let output = homa_sim(&args);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("connections a pair, timeout at least"),
        "{text}"
    );
}

#[test]
fn the_highest_sustained_load_is_found() {
    let mut args = vec!["sweep", "--sustained", "--overcommits", "1,8"];
    args.extend(SMALL);
    let output = homa_sim(&args);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
}
