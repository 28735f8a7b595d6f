//! Small RPCs over a lossy network, and what is asked for without need where nothing is lost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use super::show;
use crate::experiment::{Experiment, Watch};
use crate::report::Report;
use crate::sim::Software;

/// The round trip of a 100-byte RPC on the idle network.
const ROUND_TRIP_US: f64 = 10.0;
/// Loss rates.
const RATES: [f64; 4] = [0.0, 0.001, 0.01, 0.05];
/// Bytes of a request, and of its answer, that takes several packets.
const SEVERAL_PACKETS: &str = "5000";
/// In round trips: the longest P99.9 at 1 % loss where the only packet, or the last, was lost, and where a gap shows.
const LIMITS: (f64, f64) = (20.0, 5.0);
/// The most RESENDs without need, as a share of all packets.
const NEEDLESS_LIMIT: f64 = 0.001;

#[derive(Args)]
pub(super) struct LossArgs {
    /// Write all figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Milliseconds of simulated time for each row.
    #[arg(long, default_value_t = 200.0)]
    millis: f64,
    /// Silence before a RESEND, µs: what covers the scheduling noise of the hosts.
    #[arg(long, default_value_t = 20)]
    resend_floor_us: u64,
    /// Fixes everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Times of one kind of RPC at one loss rate.
#[derive(Serialize)]
struct Times {
    /// What can be lost.
    lost: &'static str,
    loss: f64,
    rpcs: u64,
    failed: u64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// P99.9 in round trips of `ROUND_TRIP_US`: the time of an RPC of 100 bytes without loss.
    p999_round_trips: f64,
    resends: u64,
    packets: u64,
}

/// RESENDs where nothing is lost.
#[derive(Serialize)]
struct Needless {
    traffic: String,
    pauses: &'static str,
    packets: u64,
    resends: u64,
    share: f64,
}

#[derive(Serialize)]
struct Document {
    round_trip_us: f64,
    resend_floor_us: u64,
    times: Vec<Times>,
    without_loss: Vec<Needless>,
    within_limits: bool,
}

/// Ten hosts at 25 Gb/s on one switch, where an RPC of 100 bytes takes 10 µs.
fn network(args: &LossArgs) -> Experiment {
    let mut experiment = Experiment {
        hosts: 10,
        gbps: 25.0,
        software: Software {
            tx_ns: 2200,
            rx_ns: 2220,
            ..Software::default()
        },
        workload: "100".into(),
        reply: "echo".into(),
        load: 0.02,
        millis: args.millis,
        seed: args.seed,
        ..Experiment::default()
    };
    experiment.homa.resend_floor_us = args.resend_floor_us;
    // Room for all that comes while a host pauses: what is dropped for want of slots is lost indeed.
    experiment.homa.rpcs = 16_384;
    experiment
}

fn counter(report: &Report, name: &str) -> u64 {
    let found = report.counters.iter().find(|counter| counter.0 == name);
    found.map_or(0, |counter| counter.1)
}

fn times(args: &LossArgs, gaps: bool, loss: f64, watch: &mut Watch<'_>) -> Result<Times, String> {
    let mut experiment = network(args);
    experiment.faults.loss = loss;
    if gaps {
        experiment.workload = SEVERAL_PACKETS.into();
        experiment.load = 0.2;
        // Full packets only: others of the message follow each of them.
        experiment.faults.spare_below = u32::from(experiment.mtu);
    }
    let report = experiment.run("homa", watch)?;
    let all = &report.all;
    Ok(Times {
        lost: if gaps {
            "one of several, others follow"
        } else {
            "the only packet"
        },
        loss,
        rpcs: all.count,
        failed: report.messages.failed,
        p50_us: all.p50_us,
        p99_us: all.p99_us,
        p999_us: all.p999_us,
        p999_round_trips: all.p999_us / ROUND_TRIP_US,
        resends: counter(&report, "resends_sent"),
        packets: counter(&report, "packets_sent"),
    })
}

fn needless(
    args: &LossArgs,
    workload: &str,
    load: f64,
    pauses: bool,
    watch: &mut Watch<'_>,
) -> Result<Needless, String> {
    let mut experiment = network(args);
    experiment.workload = workload.into();
    experiment.cap = 1_000_000;
    experiment.load = load;
    if pauses {
        (experiment.pause_every_ms, experiment.pause_ms) = (500.0, 2.0);
    }
    let report = experiment.run("homa", watch)?;
    let (packets, resends) = (
        counter(&report, "packets_sent"),
        counter(&report, "resends_sent"),
    );
    Ok(Needless {
        traffic: format!("{workload} at load {load}"),
        pauses: if pauses {
            "2 ms about every 500 ms"
        } else {
            "none"
        },
        packets,
        resends,
        share: resends as f64 / packets.max(1) as f64,
    })
}

/// Prints the tables; fails when a limit is passed.
pub(super) fn loss(args: &LossArgs) -> Result<ExitCode, String> {
    network(args).check()?;
    let bar = ProgressBar::new(2 * RATES.len() as u64 + 4);
    let mut watch = Watch {
        progress: &mut |_, _| bar.tick(),
        capture: None,
    };
    let mut rows = Vec::new();
    for gaps in [false, true] {
        for rate in RATES {
            rows.push(times(args, gaps, rate, &mut watch)?);
            bar.inc(1);
        }
    }
    let mut without_loss = Vec::new();
    for (workload, load) in [("100", 0.1), ("w4", 0.8)] {
        for pauses in [false, true] {
            without_loss.push(needless(args, workload, load, pauses, &mut watch)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let limit = |row: &Times| match row.lost {
        "the only packet" => LIMITS.0,
        _ => LIMITS.1,
    };
    let within_limits = rows
        .iter()
        .all(|row| row.failed == 0 && (row.loss > 0.01 || row.p999_round_trips < limit(row)))
        && without_loss.iter().all(|row| row.share < NEEDLESS_LIMIT);
    show(&table(&rows, &without_loss));
    if let Some(path) = &args.json {
        let document = Document {
            round_trip_us: ROUND_TRIP_US,
            resend_floor_us: args.resend_floor_us,
            times: rows,
            without_loss,
            within_limits,
        };
        let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if within_limits {
        Ok(ExitCode::SUCCESS)
    } else {
        show("a limit is passed\n");
        Ok(ExitCode::FAILURE)
    }
}

fn table(times: &[Times], without_loss: &[Needless]) -> String {
    let mut out = format!(
        "{:<30} {:>6} {:>8} {:>7} {:>8} {:>8} {:>9} {:>13} {:>9}\n",
        "what is lost",
        "loss",
        "RPCs",
        "failed",
        "P50 µs",
        "P99 µs",
        "P99.9 µs",
        "round trips",
        "RESENDs"
    );
    for row in times {
        out += &format!(
            "{:<30} {:>5.1}% {:>8} {:>7} {:>8.1} {:>8.1} {:>9.1} {:>13.1} {:>9}\n",
            row.lost,
            row.loss * 100.0,
            row.rpcs,
            row.failed,
            row.p50_us,
            row.p99_us,
            row.p999_us,
            row.p999_round_trips,
            row.resends
        );
    }
    out += &format!(
        "\n{:<20} {:<26} {:>10} {:>9} {:>10}\n",
        "nothing lost", "hosts pause", "packets", "RESENDs", "share"
    );
    for row in without_loss {
        out += &format!(
            "{:<20} {:<26} {:>10} {:>9} {:>9.4}%\n",
            row.traffic,
            row.pauses,
            row.packets,
            row.resends,
            row.share * 100.0
        );
    }
    out
}
