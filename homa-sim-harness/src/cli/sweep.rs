//! Many experiments at the same time.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::ProgressBar;

use super::{SweepArgs, check_transports, show, thread_count, write_outputs};
use crate::experiment::Watch;
use crate::report::Report;

/// Runs every combination.
pub(super) fn sweep(args: &SweepArgs) -> Result<ExitCode, String> {
    let base = args.experiment.experiment()?;
    check_transports(&args.transports)?;
    fn or<T: Clone>(list: &[T], one: T) -> Vec<T> {
        if list.is_empty() {
            vec![one]
        } else {
            list.to_vec()
        }
    }
    let mut jobs = Vec::new();
    for &load in &or(&args.loads, base.load) {
        for &overcommit in &or(&args.overcommits, base.homa.overcommit) {
            for &seed in &or(&args.seeds, base.seed) {
                for name in &args.transports {
                    let mut experiment = base.clone();
                    experiment.load = load;
                    experiment.homa.overcommit = overcommit;
                    experiment.seed = seed;
                    experiment.check()?;
                    jobs.push((experiment, name.clone()));
                }
            }
        }
    }
    let bar = ProgressBar::new(jobs.len() as u64);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<Report, String>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..thread_count(args.threads).min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((experiment, name)) = jobs.get(at) else {
                        break;
                    };
                    let mut watch = Watch {
                        progress: &mut |_, _| {},
                        capture: None,
                    };
                    let report = experiment.run(name, &mut watch);
                    bar.inc(1);
                    if let Ok(mut results) = results.lock() {
                        results.push((at, report));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut results = results.into_inner().map_err(|error| error.to_string())?;
    results.sort_by_key(|result| result.0);
    let mut table = format!(
        "{:>9} {:>6} {:>10} {:>6} {:>9} {:>10} {:>9} {:>9} {:>11} {:>8} {:>9}\n",
        "transport",
        "load",
        "overcommit",
        "seed",
        "goodput",
        "unfinished",
        "tenth P99",
        "weighted",
        "largest P99",
        "wasted %",
        "drops"
    );
    let mut reports = Vec::new();
    for (at, report) in results {
        let report = report?;
        let (experiment, _) = &jobs[at];
        table += &format!(
            "{:>9} {:>6} {:>10} {:>6} {:>9.3} {:>10} {:>9.2} {:>9.2} {:>11.2} {:>8.1} {:>9}\n",
            report.transport,
            report.load,
            experiment.homa.overcommit,
            report.seed,
            report.goodput_gbps,
            report.unfinished,
            report.smallest_tenth.p99_slowdown,
            report.count_weighted_p99_slowdown,
            report
                .by_length
                .last()
                .map_or(0.0, |class| class.p99_slowdown),
            report.wasted_bandwidth * 100.0,
            report.drops
        );
        reports.push(report);
    }
    show(&table);
    write_outputs(&args.output, &base, &reports)?;
    Ok(ExitCode::SUCCESS)
}
