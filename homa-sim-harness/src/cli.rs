//! The command line of `homa-sim`.

mod loss;
mod sustain;
mod sweep;
mod tune;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::experiment::{
    Cutoffs, Experiment, LoadCounts, Pattern, TRANSPORTS, Watch, Ways, one_line,
};
use crate::fuzz::{self, Range, Verdict};
use crate::packet::HostId;
use crate::report::{self, Report};
use crate::svg;
use crate::topology::Buffer;

/// Simulates Homa and TCP in datacenter networks: reproducible to the bit by seed.
#[derive(Parser)]
#[command(name = "homa-sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One experiment.
    Run(RunArgs),
    /// One experiment with several transports, side by side.
    Compare(RunArgs),
    /// Many experiments, in parallel: every combination of loads, seeds, overcommitment and transports.
    Sweep(SweepArgs),
    /// Small RPCs over a lossy network: times at several loss rates, and whether anything is asked for without need.
    Loss(loss::LossArgs),
    /// Plays fault scenarios, one per seed, until a number or a time is reached or one fails.
    FuzzSeeds(FuzzArgs),
    /// Plays one fault scenario again and shows its last events.
    Replay(ReplayArgs),
}

#[derive(Args)]
struct FuzzArgs {
    /// Scenarios to play; 0: as many as the time allows.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Stop after so many minutes; 0: when the count is reached.
    #[arg(long, default_value_t = 0.0)]
    minutes: f64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Scenarios at the same time; 0: one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Go on after a failure, and list all failures at the end.
    #[arg(long)]
    keep_going: bool,
    /// Draw only what seeds meant at first.
    #[arg(long)]
    narrow: bool,
}

/// What seeds draw.
fn range(narrow: bool) -> Range {
    match narrow {
        true => Range::Narrow,
        false => Range::Wide,
    }
}

#[derive(Args)]
struct ReplayArgs {
    /// The seed.
    #[arg(long)]
    seed: u64,
    /// How many of the last events to show.
    #[arg(long, default_value_t = 60)]
    events: usize,
    /// Draw only what seeds meant at first.
    #[arg(long)]
    narrow: bool,
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    experiment: ExperimentArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Transports, separated by commas: homa, newreno, cubic, dctcp, oracle.
    #[arg(long, value_delimiter = ',')]
    transports: Vec<String>,
    /// Try several settings for each TCP (1, 3 and 10 connections for each pair, timeouts of at least 200 and 1000 µs,
    /// for DCTCP three marking thresholds) and report the one with the lowest P99 slowdown weighted by count.
    #[arg(long, conflicts_with = "pcap_host")]
    best_tcp: bool,
    /// Write a pcap file of this host's link (with --pcap-file).
    #[arg(long, requires = "pcap_file")]
    pcap_host: Option<HostId>,
    /// The pcap file; of several transports only the first is captured.
    #[arg(long, requires = "pcap_host")]
    pcap_file: Option<PathBuf>,
}

#[derive(Args)]
struct SweepArgs {
    #[command(flatten)]
    experiment: ExperimentArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Transports, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "homa")]
    transports: Vec<String>,
    /// Loads, separated by commas.
    #[arg(long, value_delimiter = ',')]
    loads: Vec<f64>,
    /// Seeds, separated by commas.
    #[arg(long, value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Overcommitment of Homa, separated by commas.
    #[arg(long, value_delimiter = ',')]
    overcommits: Vec<u8>,
    /// Look for the highest load that is sustained, for each overcommitment (1 to 8 unless set): at which the backlog
    /// does not grow.
    #[arg(long)]
    sustained: bool,
    /// Runs at the same time; 0: one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

#[derive(Args)]
struct OutputArgs {
    /// Write all figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write figures by message length as CSV.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Write a plot of times by message length, and beside it (FILE-slowdown.svg) one of slowdown by share of messages.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Published curves to draw into the plot of slowdown: a CSV file with the columns workload, load, transport,
    /// message_bytes, percent_of_messages, slowdown_p50, slowdown_p99.
    #[arg(long, requires = "svg")]
    published: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum LoadCountsArg {
    Wire,
    Payload,
}

#[derive(Clone, Copy, ValueEnum)]
enum CutoffsArg {
    Learned,
    FromWorkload,
    Converged,
}

#[derive(Clone, Copy, ValueEnum)]
enum PatternArg {
    Poisson,
    Incast,
    Barrier,
    KvCache,
    AllToAll,
    AllReduce,
}

#[derive(Clone, Copy, ValueEnum)]
enum WaysArg {
    Auto,
    Spray,
    Flow,
}

/// Flags override the file, and the file overrides the preset.
#[derive(Args)]
struct ExperimentArgs {
    /// A published set-up: sigcomm18 or atc21.
    #[arg(long)]
    preset: Option<String>,
    /// An experiment as TOML; its keys are the names of these flags, and more.
    #[arg(long, conflicts_with = "preset")]
    config: Option<PathBuf>,
    /// single-switch, leaf-spine, or a TOML file.
    #[arg(long)]
    topology: Option<String>,
    /// Hosts of a single switch.
    #[arg(long)]
    hosts: Option<usize>,
    /// Speed of host links, Gb/s.
    #[arg(long)]
    gbps: Option<f64>,
    /// Racks of a leaf–spine network.
    #[arg(long)]
    racks: Option<usize>,
    /// Hosts of a rack.
    #[arg(long)]
    per_rack: Option<usize>,
    /// Spine switches.
    #[arg(long)]
    spines: Option<usize>,
    /// Speed of links between switches, Gb/s.
    #[arg(long)]
    uplink_gbps: Option<f64>,
    /// Latency of a switch, ns.
    #[arg(long)]
    switch_ns: Option<u64>,
    /// Buffer of each switch in KB, shared with dynamic thresholds; 0: no limit.
    #[arg(long)]
    buffer_kb: Option<u64>,
    /// Share of the free buffer that one queue may take.
    #[arg(long, requires = "buffer_kb")]
    alpha: Option<f64>,
    /// ECN marking threshold in bytes.
    #[arg(long)]
    ecn_bytes: Option<u64>,
    /// Priority levels of the network, 1 to 8.
    #[arg(long)]
    levels: Option<u8>,
    /// Choice among several ways.
    #[arg(long)]
    ways: Option<WaysArg>,
    /// Traffic pattern.
    #[arg(long)]
    pattern: Option<PatternArg>,
    /// w1 to w5, or a number of bytes.
    #[arg(long)]
    workload: Option<String>,
    /// Cut messages to this many bytes; 0: not.
    #[arg(long)]
    cap: Option<u32>,
    /// Share of the host links' bandwidth, for example 0.8.
    #[arg(long)]
    load: Option<f64>,
    /// What load counts: all bytes on the wire that messages need as Homa packets, or message data only.
    #[arg(long)]
    load_counts: Option<LoadCountsArg>,
    /// What comes back: none, echo, or a number of bytes.
    #[arg(long)]
    reply: Option<String>,
    /// Share of messages that go to the first tenth of the hosts.
    #[arg(long)]
    skew: Option<f64>,
    /// Milliseconds of simulated time that are measured.
    #[arg(long)]
    millis: Option<f64>,
    /// Time before that, as a share of it.
    #[arg(long)]
    warmup: Option<f64>,
    /// Milliseconds to wait for unfinished messages after the last arrival.
    #[arg(long)]
    drain_millis: Option<f64>,
    /// Bytes of a job: of an answer (incast), for one expert (all-to-all), of the vector (all-reduce).
    #[arg(long)]
    job_bytes: Option<u32>,
    /// Computation between two steps of a job, µs.
    #[arg(long)]
    compute_us: Option<u64>,
    /// Steps of a job.
    #[arg(long)]
    steps: Option<u32>,
    /// Answers at once (incast); 0: one of each other host.
    #[arg(long)]
    fan_in: Option<u32>,
    /// Jobs: the traffic of the workload goes beside the job, at the given load.
    #[arg(long)]
    background: bool,
    /// Homa: messages granted at once.
    #[arg(long)]
    overcommit: Option<u8>,
    /// Homa: unscheduled bytes of a message; 0: derived.
    #[arg(long)]
    unscheduled_bytes: Option<u32>,
    /// Homa: bytes granted and not received, over all messages of a host; 0: derived.
    #[arg(long)]
    max_incoming: Option<u64>,
    /// Homa: bytes granted ahead to one message; 0: derived.
    #[arg(long)]
    window: Option<u32>,
    /// Homa: smallest grant, in bytes; 0: every byte as soon as it may be granted.
    #[arg(long)]
    min_grant: Option<u32>,
    /// Homa: where the cutoffs of unscheduled priorities come from.
    #[arg(long)]
    cutoffs: Option<CutoffsArg>,
    /// Homa: silence before a RESEND, µs.
    #[arg(long)]
    resend_floor_us: Option<u64>,
    /// Homa: how long a gap may be mere reordering, ns; 0: derived.
    #[arg(long)]
    reorder_ns: Option<u64>,
    /// Homa: how far ahead of the link packets go to the card, ns.
    #[arg(long)]
    nic_backlog_ns: Option<u64>,
    /// Homa: share for the oldest message, per mille.
    #[arg(long)]
    fifo_permille: Option<u16>,
    /// TCP: initial window, segments.
    #[arg(long)]
    initial_window: Option<u32>,
    /// TCP: shortest retransmission timeout, µs.
    #[arg(long)]
    rto_min_us: Option<u64>,
    /// TCP: connections between two hosts.
    #[arg(long)]
    connections: Option<u16>,
    /// Share of packets that are lost.
    #[arg(long)]
    loss: Option<f64>,
    /// Fixes everything random.
    #[arg(long)]
    seed: Option<u64>,
}

impl ExperimentArgs {
    fn experiment(&self) -> Result<Experiment, String> {
        let mut to = match (&self.preset, &self.config) {
            (Some(name), _) => Experiment::preset(name)?,
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                Experiment::from_toml(&text)?
            }
            (None, None) => Experiment::default(),
        };
        macro_rules! take {
            ($($flag:ident => $field:expr),* $(,)?) => {
                $(if let Some(value) = self.$flag.clone() { $field = value; })*
            };
        }
        take! {
            topology => to.topology,
            hosts => to.hosts,
            gbps => to.gbps,
            racks => to.racks,
            per_rack => to.per_rack,
            spines => to.spines,
            uplink_gbps => to.uplink_gbps,
            switch_ns => to.switch_ns,
            levels => to.levels,
            workload => to.workload,
            cap => to.cap,
            load => to.load,
            reply => to.reply,
            skew => to.skew,
            millis => to.millis,
            warmup => to.warmup,
            drain_millis => to.drain_millis,
            job_bytes => to.job.bytes,
            compute_us => to.job.compute_us,
            steps => to.job.steps,
            fan_in => to.job.fan_in,
            overcommit => to.homa.overcommit,
            unscheduled_bytes => to.homa.unscheduled_bytes,
            max_incoming => to.homa.max_incoming,
            window => to.homa.window,
            min_grant => to.homa.min_grant,
            resend_floor_us => to.homa.resend_floor_us,
            reorder_ns => to.homa.reorder_ns,
            nic_backlog_ns => to.homa.nic_backlog_ns,
            fifo_permille => to.homa.fifo_permille,
            initial_window => to.tcp.initial_window,
            rto_min_us => to.tcp.rto_min_us,
            connections => to.tcp.connections,
            loss => to.faults.loss,
            seed => to.seed,
        }
        to.job.background |= self.background;
        if self.ecn_bytes.is_some() {
            to.ecn_bytes = self.ecn_bytes;
        }
        if let Some(kb) = self.buffer_kb {
            to.buffer = match kb {
                0 => Buffer::Infinite,
                kb => Buffer::Shared {
                    bytes: kb * 1000,
                    alpha: self.alpha.unwrap_or(1.0),
                },
            };
        }
        if let Some(ways) = self.ways {
            to.ways = match ways {
                WaysArg::Auto => Ways::Auto,
                WaysArg::Spray => Ways::Spray,
                WaysArg::Flow => Ways::Flow,
            };
        }
        if let Some(counts) = self.load_counts {
            to.load_counts = match counts {
                LoadCountsArg::Wire => LoadCounts::Wire,
                LoadCountsArg::Payload => LoadCounts::Payload,
            };
        }
        if let Some(cutoffs) = self.cutoffs {
            to.homa.cutoffs = match cutoffs {
                CutoffsArg::Learned => Cutoffs::Learned,
                CutoffsArg::FromWorkload => Cutoffs::FromWorkload,
                CutoffsArg::Converged => Cutoffs::Converged,
            };
        }
        if let Some(pattern) = self.pattern {
            to.pattern = match pattern {
                PatternArg::Poisson => Pattern::Poisson,
                PatternArg::Incast => Pattern::Incast,
                PatternArg::Barrier => Pattern::Barrier,
                PatternArg::KvCache => Pattern::KvCache,
                PatternArg::AllToAll => Pattern::AllToAll,
                PatternArg::AllReduce => Pattern::AllReduce,
            };
        }
        to.check()?;
        Ok(to)
    }
}

/// Everything that goes into a JSON file.
#[derive(Serialize)]
struct Document<'a> {
    experiment: &'a Experiment,
    transports: &'a [Report],
}

/// Runs the command line; the exit code is 2 where it asks for what does not exist.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let text = error.to_string();
            let line = one_line(&text);
            // The first line may end in the middle: what is missing follows on the next.
            let rest = text.lines().nth(1).unwrap_or("").trim();
            let space = if rest.is_empty() { "" } else { " " };
            eprintln!(
                "homa-sim: {}{space}{rest}",
                line.trim_start_matches("error: ")
            );
            return ExitCode::from(2);
        }
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    let done = match cli.command {
        Command::Run(args) => run(&args, &["homa"]),
        Command::Compare(args) => run(&args, &["homa", "dctcp", "cubic"]),
        Command::Sweep(args) if args.sustained => sustain::sustain(&args),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Loss(args) => loss::loss(&args),
        Command::FuzzSeeds(args) => fuzz_seeds(&args),
        Command::Replay(args) => Ok(replay(args.seed, range(args.narrow), args.events)),
    };
    match done {
        Ok(code) => code,
        Err(line) => {
            eprintln!("homa-sim: {line}");
            ExitCode::from(2)
        }
    }
}

/// Prints; whoever stopped listening misses it.
fn show(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn check_transports(names: &[String]) -> Result<(), String> {
    match names
        .iter()
        .find(|name| !TRANSPORTS.contains(&name.as_str()))
    {
        Some(name) => Err(format!(
            "no transport is called '{name}' (there are {})",
            TRANSPORTS.join(", ")
        )),
        None => Ok(()),
    }
}

fn run(args: &RunArgs, default: &[&str]) -> Result<ExitCode, String> {
    let experiment = args.experiment.experiment()?;
    let transports = if args.transports.is_empty() {
        default.iter().map(|&name| name.to_owned()).collect()
    } else {
        args.transports.clone()
    };
    check_transports(&transports)?;
    let mut capture = args.pcap_host.zip(args.pcap_file.clone());
    let mut reports = Vec::new();
    for name in &transports {
        let bar = progress_bar(&experiment, name);
        let begun = std::time::Instant::now();
        if args.best_tcp {
            let report = tune::best(&experiment, name, &mut |tried| {
                bar.println(format!(
                    "{} ({}): P99 slowdown {:.2}, of one packet {:.1} µs",
                    tried.transport,
                    tried.settings,
                    tried.count_weighted_p99_slowdown,
                    tried.one_packet.p99_us
                ));
            })?;
            bar.finish_and_clear();
            show(&format!("{}\n", report.table()));
            reports.push(report);
            continue;
        }
        let report = experiment.run(
            name,
            &mut Watch {
                progress: &mut |now, events| {
                    let rate = events as f64 / begun.elapsed().as_secs_f64().max(1e-6);
                    bar.set_position(now / 1000);
                    bar.set_message(format!(
                        "{:.1} ms, {:.1} M events/s",
                        now as f64 / 1e6,
                        rate / 1e6
                    ));
                },
                capture: capture.take(),
            },
        )?;
        bar.finish_and_clear();
        show(&format!("{}\n", report.table()));
        reports.push(report);
    }
    if reports.len() > 1 {
        show(&report::comparison(&reports));
    }
    write_outputs(&args.output, &experiment, &reports)?;
    Ok(ExitCode::SUCCESS)
}

fn progress_bar(experiment: &Experiment, name: &str) -> ProgressBar {
    let micros = experiment.millis * 1000.0 * (1.1 + experiment.warmup);
    let bar = ProgressBar::new(micros as u64);
    // The template is a constant; without it the bar is only plainer.
    if let Ok(style) = ProgressStyle::with_template("{prefix:>8} {wide_bar} {msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar
}

fn write_outputs(
    output: &OutputArgs,
    experiment: &Experiment,
    reports: &[Report],
) -> Result<(), String> {
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    if let Some(path) = &output.json {
        let document = Document {
            experiment,
            transports: reports,
        };
        let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
        write(path, text)?;
    }
    if let Some(path) = &output.csv {
        write(path, report::csv(reports))?;
    }
    if let Some(path) = &output.svg {
        write(path, svg::times(reports))?;
        let published = match &output.published {
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| format!("{}: {error}", file.display()))?;
                svg::read_published(&text, &experiment.workload)?
            }
            None => Vec::new(),
        };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let beside = path.with_file_name(format!("{stem}-slowdown.svg"));
        write(&beside, svg::slowdowns(reports, &published))?;
    }
    Ok(())
}

/// Plays a seed; a panic is a violation too.
fn play(seed: u64, range: Range, log: usize) -> Verdict {
    std::panic::catch_unwind(|| fuzz::play(seed, range, log)).unwrap_or_else(|_| Verdict {
        seed,
        violation: Some("panic".into()),
        ..Verdict::default()
    })
}

fn replay(seed: u64, range: Range, events: usize) -> ExitCode {
    let verdict = play(seed, range, events);
    let mut text = format!("seed {seed}: {}\n", verdict.scenario);
    for line in &verdict.log {
        text += &format!("{line}\n");
    }
    for (name, value) in &verdict.counters {
        text += &format!("{name} {value}; ");
    }
    let (answered, failed) = verdict.outcomes;
    text += "\n";
    text += &format!(
        "{} events, trace {:016x}; {answered} RPCs answered, {failed} failed\n",
        verdict.events, verdict.trace_hash
    );
    show(&text);
    match verdict.violation {
        Some(violation) => {
            show(&format!("VIOLATION: {violation}\n"));
            ExitCode::FAILURE
        }
        None => {
            show("no violation\n");
            ExitCode::SUCCESS
        }
    }
}

fn fuzz_seeds(args: &FuzzArgs) -> Result<ExitCode, String> {
    if args.count == 0 && args.minutes <= 0.0 {
        return Err("neither --count nor --minutes says when to stop".into());
    }
    if !(0.0..=1e6).contains(&args.minutes) {
        return Err(format!("{} is no possible number of minutes", args.minutes));
    }
    let limit = match args.count {
        0 => u64::MAX,
        count => count,
    };
    let begun = std::time::Instant::now();
    let late = || args.minutes > 0.0 && begun.elapsed().as_secs_f64() > args.minutes * 60.0;
    let bar = ProgressBar::new(if args.count == 0 { 0 } else { args.count });
    let (next, events) = (AtomicU64::new(0), AtomicU64::new(0));
    let (played, answered, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failures: Mutex<Vec<Verdict>> = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..thread_count(args.threads) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && !late() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= limit {
                        break;
                    }
                    let verdict = play(args.start.wrapping_add(number), range(args.narrow), 0);
                    played.fetch_add(1, Ordering::Relaxed);
                    events.fetch_add(verdict.events, Ordering::Relaxed);
                    answered.fetch_add(verdict.outcomes.0, Ordering::Relaxed);
                    failed.fetch_add(verdict.outcomes.1, Ordering::Relaxed);
                    bar.inc(1);
                    if verdict.violation.is_some() {
                        stop.fetch_or(!args.keep_going, Ordering::Relaxed);
                        if let Ok(mut failures) = failures.lock() {
                            failures.push(verdict);
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    show(&format!(
        "{} seeds from {}, {} events, {} RPCs answered, {} failed with an error, {:.1} s\n",
        load(&played),
        args.start,
        load(&events),
        load(&answered),
        load(&failed),
        begun.elapsed().as_secs_f64()
    ));
    let mut failures = failures.into_inner().map_err(|error| error.to_string())?;
    failures.sort_by_key(|failure| failure.seed);
    let Some(first) = failures.first() else {
        return Ok(ExitCode::SUCCESS);
    };
    if args.keep_going {
        for failure in &failures {
            let violation = failure.violation.as_deref().unwrap_or("");
            show(&format!("seed {}: {violation}\n", failure.seed));
        }
    } else {
        replay(first.seed, range(args.narrow), 40);
    }
    show(&format!(
        "{} of {} seeds failed; replay with: homa-sim replay --seed {}{}\n",
        failures.len(),
        load(&played),
        first.seed,
        if args.narrow { " --narrow" } else { "" }
    ));
    Ok(ExitCode::FAILURE)
}

fn thread_count(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}
