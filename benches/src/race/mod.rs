//! `homa race`: Homa beside what one would take instead, all in one run on loopback.
//!
//! The transports of a scenario take turns (A B C A B C …), so that a noisy moment of the machine
//! does not hit one of them alone; each figure is the median of its runs. One client thread and one
//! server thread, each pinned to a CPU, carry every transport.

mod figures;
mod scenario;
mod svg;
mod track;
mod transports;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

pub use figures::{Cell, Figures, Sample};
pub use scenario::Scenario;
pub use transports::Transport;

use crate::sys;
use crate::transport::CLIENT_CPU;

/// What is run.
#[derive(Debug, Args)]
pub struct Options {
    /// Fewer and shorter runs.
    #[arg(long)]
    pub quick: bool,
    /// The largest IP packet, in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..=9000))]
    pub mtu: u16,
    /// Only these scenarios.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub scenarios: Vec<Scenario>,
    /// Only these transports.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub transports: Vec<Transport>,
    /// How often each transport runs in each scenario; 7, or 3 if quick.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: Option<u16>,
    /// Milliseconds of each run; 500, or 150 if quick. An open load runs twice as long.
    #[arg(long, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub millis: Option<u64>,
}

/// Runs the race; `progress` hears how many of how many runs are done.
pub fn run(options: &Options, progress: &mut dyn FnMut(usize, usize)) -> Result<Figures> {
    // Before this thread is pinned to one of them.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    sys::pin(CLIENT_CPU);
    let runs = options.runs.unwrap_or(if options.quick { 3 } else { 7 });
    let millis = options
        .millis
        .unwrap_or(if options.quick { 150 } else { 500 });
    let plan = track::Plan {
        mtu: options.mtu,
        runs: runs.into(),
        duration: Duration::from_millis(millis),
        cpus,
    };
    let chosen = |scenario: Scenario| -> Vec<Transport> {
        let enters = |transport: &Transport| {
            (options.transports.is_empty() || options.transports.contains(transport))
                && transport.enters(scenario)
        };
        Transport::ALL.iter().copied().filter(enters).collect()
    };
    let scenarios = Scenario::ALL
        .into_iter()
        .filter(|scenario| options.scenarios.is_empty() || options.scenarios.contains(scenario));
    let entries: Vec<_> = scenarios
        .map(|scenario| (scenario, chosen(scenario)))
        .collect();
    let total: usize = entries.iter().map(|(_, transports)| transports.len()).sum();
    let total = total * plan.runs;
    let mut done = 0;
    let mut figures = Figures::new(&plan);
    progress(done, total);
    for (scenario, transports) in entries {
        let cells = track::race(scenario, &transports, &plan, &mut || {
            done += 1;
            progress(done, total);
        })?;
        figures.add(scenario, cells);
    }
    progress(total, total);
    figures.finish();
    Ok(figures)
}
