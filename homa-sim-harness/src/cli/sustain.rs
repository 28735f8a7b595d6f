//! The highest load that is sustained, by overcommitment.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::ProgressBar;
use serde::Serialize;

use super::{SweepArgs, check_transports, show, thread_count};
use crate::experiment::{Experiment, Watch};
use crate::svg;

/// A load is sustained if in the second half of the run so many bytes arrive for every 100 that links could have carried of those begun. That the backlog
/// does not grow at all cannot be asked: near full load it takes seconds until it would no longer grow under any transport.
const SUSTAINED_SHARE: f64 = 0.98;
/// Loads are looked for between these, in per cent.
const LOADS: (u32, u32) = (40, 100);

/// What was found for one overcommitment.
#[derive(Clone, Debug, Serialize)]
struct Found {
    transport: String,
    overcommit: u8,
    /// The highest load that is sustained.
    load: f64,
    /// Share of what could have arrived that did, at that load and at 0.01 more.
    share: f64,
    share_above: f64,
}

/// Looks for the highest load of every overcommitment by halving the interval, to one per cent.
pub(super) fn sustain(args: &SweepArgs) -> Result<ExitCode, String> {
    let base = args.experiment.experiment()?;
    check_transports(&args.transports)?;
    if !args.loads.is_empty() || args.output.csv.is_some() || args.output.published.is_some() {
        return Err("--sustained looks for the loads, and writes --json and --svg only".into());
    }
    let overcommits = match args.overcommits.len() {
        0 => (1..=8).collect(),
        _ => args.overcommits.clone(),
    };
    let jobs: Vec<(String, u8)> = args
        .transports
        .iter()
        .flat_map(|name| overcommits.iter().map(|&count| (name.clone(), count)))
        .collect();
    for (_, overcommit) in &jobs {
        experiment(&base, *overcommit, LOADS.1).check()?;
    }
    let bar = ProgressBar::new(jobs.len() as u64);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..thread_count(args.threads).min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((name, overcommit)) = jobs.get(at) else {
                        break;
                    };
                    let found = find(&base, name, *overcommit);
                    bar.inc(1);
                    if let Ok(mut results) = results.lock() {
                        results.push((at, found));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut results = results.into_inner().map_err(|error| error.to_string())?;
    results.sort_by_key(|(at, _)| *at);
    let found = results
        .into_iter()
        .map(|(_, found)| found)
        .collect::<Result<Vec<Found>, String>>()?;
    let mut table = format!(
        "sustained: in the second half of the run {:.0} % arrives of what links could have carried\n\
         {:>9} {:>14} {:>12} {:>8} {:>18}\n",
        SUSTAINED_SHARE * 100.0,
        "transport",
        "overcommitment",
        "highest load",
        "arrived",
        "arrived at +0.01"
    );
    for row in &found {
        table += &format!(
            "{:>9} {:>14} {:>12.2} {:>8.3} {:>18.3}\n",
            row.transport, row.overcommit, row.load, row.share, row.share_above
        );
    }
    show(&table);
    let write = |path: &std::path::Path, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    if let Some(path) = &args.output.json {
        let text = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
        write(path, text)?;
    }
    if let Some(path) = &args.output.svg {
        let points: Vec<(u8, f64)> = found.iter().map(|row| (row.overcommit, row.load)).collect();
        let note = format!("{}, {}", base.topology, base.describe_traffic());
        write(path, svg::sustained(&points, &note))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn experiment(base: &Experiment, overcommit: u8, percent: u32) -> Experiment {
    let mut experiment = base.clone();
    experiment.homa.overcommit = overcommit;
    experiment.load = f64::from(percent) / 100.0;
    // What is left at the end is not waited for.
    experiment.drain_millis = 0.0;
    experiment
}

fn find(base: &Experiment, transport: &str, overcommit: u8) -> Result<Found, String> {
    let share = |percent: u32| {
        let mut watch = Watch {
            progress: &mut |_, _| {},
            capture: None,
        };
        let report = experiment(base, overcommit, percent).run(transport, &mut watch)?;
        Ok::<f64, String>(report.arrived_share / report.possible_share)
    };
    // Sustained at `low`, as far as one knows, and not at `high`.
    let (mut low, mut high) = (LOADS.0, LOADS.1 + 1);
    let (mut at_low, mut at_high) = (f64::NAN, f64::NAN);
    while high - low > 1 {
        let middle = low.midpoint(high);
        let arrived = share(middle)?;
        if arrived >= SUSTAINED_SHARE {
            (low, at_low) = (middle, arrived);
        } else {
            (high, at_high) = (middle, arrived);
        }
    }
    Ok(Found {
        transport: transport.into(),
        overcommit,
        load: f64::from(low) / 100.0,
        share: at_low,
        share_above: at_high,
    })
}
