//! The best settings of a TCP: the rival is not to lose by its settings.

use crate::experiment::{Experiment, Watch};
use crate::report::Report;

/// Connections between two hosts that are tried.
const CONNECTIONS: [u16; 3] = [1, 3, 10];
/// Retransmission timeouts that are tried, in microseconds: what data centres set, and the shortest of RFC 6298.
const RTO_MIN_US: [u64; 2] = [1000, 200];
/// Marking thresholds that are tried for DCTCP, in multiples of the one derived from the link.
const MARKS: [f64; 3] = [1.0, 0.5, 2.0];

/// Every setting to try for `transport`; for others than TCP only the one given.
fn candidates(experiment: &Experiment, transport: &str) -> Vec<Experiment> {
    if !["newreno", "cubic", "dctcp"].contains(&transport) {
        return vec![experiment.clone()];
    }
    let marks: &[f64] = if transport == "dctcp" { &MARKS } else { &[1.0] };
    let mut all = Vec::new();
    for connections in CONNECTIONS {
        for rto_min_us in RTO_MIN_US {
            for factor in marks {
                let mut candidate = experiment.clone();
                candidate.tcp.connections = connections;
                candidate.tcp.rto_min_us = rto_min_us;
                candidate.ecn_bytes = Some((experiment.ecn_threshold() as f64 * factor) as u64);
                all.push(candidate);
            }
        }
    }
    all
}

/// Runs `transport` with every candidate; the report is that with the lowest P99 slowdown over all lengths, weighted by the
/// number of messages: what is best for short ones alone may ruin the long ones. `tried` hears of each report.
pub(super) fn best(
    experiment: &Experiment,
    transport: &str,
    tried: &mut dyn FnMut(&Report),
) -> Result<Report, String> {
    let mut best: Option<Report> = None;
    for candidate in candidates(experiment, transport) {
        let mut watch = Watch {
            progress: &mut |_, _| {},
            capture: None,
        };
        let report = candidate.run(transport, &mut watch)?;
        tried(&report);
        if best
            .as_ref()
            .is_none_or(|best| figure(&report) < figure(best))
        {
            best = Some(report);
        }
    }
    best.ok_or_else(|| "nothing to try".into())
}

/// What counts. Unfinished messages count as the worst.
fn figure(report: &Report) -> (u64, f64) {
    (report.unfinished, report.count_weighted_p99_slowdown)
}
