//! The figures as bars.

use std::fmt::Write;

use super::figures::{Figures, ScenarioFigures};
use super::{Scenario, Transport};

const WIDTH: f64 = 760.0;
/// Where bars begin, and how long the longest is.
const LEFT: f64 = 170.0;
const LONGEST: f64 = 440.0;
const BAR: f64 = 18.0;
const STEP: f64 = 24.0;
const TITLE: f64 = 34.0;
const GAP: f64 = 22.0;

/// A picture: for each scenario a bar for each transport, a thin line from the least run to the
/// most.
pub(super) fn svg(figures: &Figures) -> String {
    let mut body = String::new();
    let mut y = GAP;
    for (scenario, found) in &figures.scenarios {
        y = group(&mut body, *scenario, found, y);
    }
    let text = format!(
        "MTU {}; medians of {} runs of {} ms, thin lines from the least to the most",
        figures.mtu, figures.runs, figures.run_millis
    );
    label(&mut body, 10.0, y, "start", "note", &text);
    let height = y + GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<style>\n\
         text {{ font: 13px sans-serif; fill: #222 }}\n\
         .title {{ font-weight: bold }}\n.note {{ font-size: 11px; fill: #555 }}\n\
         .homa {{ fill: #2a6fb0 }}\n.rival {{ fill: #b9b9b9 }}\n.bound {{ fill: #7d7d7d }}\n\
         line {{ stroke: #222 }}\n</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// Draws a scenario from `y` down; where the next one begins.
fn group(body: &mut String, scenario: Scenario, found: &ScenarioFigures, mut y: f64) -> f64 {
    let figure = scenario.figure();
    let bars: Vec<_> = found
        .transports
        .iter()
        .filter_map(|(transport, cell)| {
            let middle = cell.medians?.figure(figure)?;
            let runs = cell.samples.iter().filter_map(|run| run.figure(figure));
            let (least, most) = runs.fold((middle, middle), |(least, most), run| {
                (least.min(run), most.max(run))
            });
            Some((*transport, middle, least, most))
        })
        .collect();
    // A run that went far astray would flatten all bars: its line is cut instead.
    let longest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    if longest <= 0.0 {
        return y;
    }
    let better = if figure.more_is_better() {
        "more is better"
    } else {
        "less is better"
    };
    let title = format!("{}: {} ({better})", scenario.name(), figure.title());
    label(body, 10.0, y, "start", "title", &title);
    y += TITLE - STEP / 2.0;
    for (transport, middle, least, most) in bars {
        let x = |value: f64| LEFT + LONGEST * (value / longest).min(1.1);
        let center = y + BAR / 2.0;
        label(
            body,
            LEFT - 8.0,
            center + 4.0,
            "end",
            "name",
            &transport.name(),
        );
        let _ = writeln!(
            body,
            "<rect class=\"{}\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\"/>\n\
             <line x1=\"{:.1}\" y1=\"{center}\" x2=\"{:.1}\" y2=\"{center}\"/>",
            class(transport),
            x(middle) - LEFT,
            x(least),
            x(most),
        );
        let at = x(most).max(x(middle)) + 8.0;
        label(body, at, center + 4.0, "start", "value", &number(middle));
        y += STEP;
    }
    y + GAP
}

fn class(transport: Transport) -> &'static str {
    if transport.is_homa() {
        "homa"
    } else if transport == Transport::RawUdp {
        "bound"
    } else {
        "rival"
    }
}

/// Three significant digits or so.
fn number(value: f64) -> String {
    let digits = match value {
        ..1.0 => 3,
        1.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Text that has nothing to escape: names, figures and our own words.
fn label(body: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
    let _ = writeln!(
        body,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}
