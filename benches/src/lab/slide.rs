//! The slide of ATC '21 and of the talks on it: message length against round trip.

use super::figures::Report;
use homa_sim_harness::svg::{self, Line};

/// P50 and P99 of every transport in its best setting.
pub(super) fn draw(report: &Report) -> String {
    let mut lines = Vec::new();
    for transport in &report.transports {
        let Some(best) = transport.best() else {
            continue;
        };
        for (name, dashed) in [("P99", false), ("P50", true)] {
            let points = best.curve.iter().filter_map(|class| {
                let us = if dashed { class.p50_us } else { class.p99_us };
                Some((f64::from(class.max_bytes), us?))
            });
            lines.push(Line {
                name: format!("{} {name}", transport.name),
                group: transport.name.into(),
                dashed,
                points: points.collect(),
            });
        }
    }
    let note = format!("{}; {}", report.setting(), report.machine);
    svg::log_log(
        "Round trip by message length: Homa and TCP across a real kernel's switch",
        "message length, bytes (request and reply)",
        "round trip, µs",
        &lines,
        &note,
    )
}
