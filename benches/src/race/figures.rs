//! What the race found: medians, spreads and the ratios that matter.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::scenario::Figure;
use super::track::Plan;
use super::{Scenario, Transport, svg};
use crate::report::{CLASS_BOUNDS, Latencies, median, micros, table, thousands};
use crate::sys;

/// The longest message that counts as short in a mixed load: about a packet.
const SHORT: u32 = 1_400;
/// Runs that differ by more than this, of their median, make a figure doubtful.
const WIDE: f64 = 0.3;

/// The figures of a run, or the medians of several.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    /// Payload of requests, in Gb/s.
    pub gbps: f64,
    /// RPCs that ended well, per second; 0 for raw bulk, which has none.
    pub rpcs_per_second: f64,
    /// Median latency; of a mixed load, that of messages up to 1,400 B.
    pub p50_us: Option<f64>,
    /// 99th percentile, likewise.
    pub p99_us: Option<f64>,
    /// Processor time of both ends together, all threads and the load itself included.
    pub cpu_us_per_rpc: Option<f64>,
    /// That of the client's thread alone.
    pub client_cpu_us_per_rpc: Option<f64>,
    /// Processor time of both ends for 10^9 bytes of requests.
    pub cpu_seconds_per_gigabyte: f64,
    /// Payload for each second of processor time.
    pub gbps_per_core_second: f64,
    /// Of both ends together, those that found nothing included; `None`: not counted.
    pub system_calls_per_rpc: Option<f64>,
    /// Of both ends' threads; `None`: not counted.
    pub allocations_per_rpc: Option<f64>,
}

impl Sample {
    pub(super) fn new(
        scenario: Scenario,
        latencies: &Latencies,
        bytes: u64,
        elapsed: Duration,
        cpu: Duration,
        system_calls: Option<u64>,
    ) -> Self {
        let rpcs = (!latencies.is_empty()).then_some(latencies.len() as f64);
        let up_to = match scenario {
            Scenario::Mixed => SHORT,
            _ => u32::MAX,
        };
        let class = latencies.class(0, up_to);
        let (seconds, cpu, bytes) = (elapsed.as_secs_f64(), cpu.as_secs_f64(), bytes as f64);
        Self {
            gbps: bytes * 8.0 / seconds / 1e9,
            rpcs_per_second: rpcs.unwrap_or(0.0) / seconds,
            p50_us: class.p50_us,
            p99_us: class.p99_us,
            cpu_us_per_rpc: rpcs.map(|rpcs| cpu * 1e6 / rpcs),
            client_cpu_us_per_rpc: None,
            cpu_seconds_per_gigabyte: cpu / bytes * 1e9,
            gbps_per_core_second: bytes * 8.0 / cpu / 1e9,
            system_calls_per_rpc: system_calls
                .zip(rpcs)
                .map(|(calls, rpcs)| calls as f64 / rpcs),
            allocations_per_rpc: None,
        }
    }

    /// The median of each figure; `None` where no run has it.
    fn medians(samples: &[Self]) -> Self {
        let some = |figure: fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = samples.iter().filter_map(figure).collect();
            (!values.is_empty()).then(|| median(&values))
        };
        let all =
            |figure: fn(&Self) -> f64| median(&samples.iter().map(figure).collect::<Vec<_>>());
        Self {
            gbps: all(|s| s.gbps),
            rpcs_per_second: all(|s| s.rpcs_per_second),
            p50_us: some(|s| s.p50_us),
            p99_us: some(|s| s.p99_us),
            cpu_us_per_rpc: some(|s| s.cpu_us_per_rpc),
            client_cpu_us_per_rpc: some(|s| s.client_cpu_us_per_rpc),
            cpu_seconds_per_gigabyte: all(|s| s.cpu_seconds_per_gigabyte),
            gbps_per_core_second: all(|s| s.gbps_per_core_second),
            system_calls_per_rpc: some(|s| s.system_calls_per_rpc),
            allocations_per_rpc: some(|s| s.allocations_per_rpc),
        }
    }

    pub(super) fn figure(&self, figure: Figure) -> Option<f64> {
        match figure {
            Figure::Gbps => Some(self.gbps),
            Figure::Rate => Some(self.rpcs_per_second / 1e6),
            Figure::P50 => self.p50_us,
            Figure::P99 => self.p99_us,
        }
    }
}

/// Messages of a mixed load by size.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// The largest size; the class below ends where this one begins.
    pub max_bytes: u32,
    /// RPCs in all runs.
    pub count: usize,
    /// Median of the runs' medians.
    pub p50_us: Option<f64>,
    /// Median of the runs' 99th percentiles.
    pub p99_us: Option<f64>,
}

/// A transport in a scenario.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cell {
    /// Medians of the runs; nothing if there was none.
    #[serde(flatten)]
    pub medians: Option<Sample>,
    /// Of the scenario's own figure: largest less smallest, over the median.
    pub spread: Option<f64>,
    /// How much the process grew with this transport and its first run. The kernel's socket buffers
    /// are not in it.
    pub memory_bytes: Option<u64>,
    /// What an open load offered, each way.
    pub offered_gbps: Option<f64>,
    /// By message size, in a mixed load.
    pub classes: Vec<Class>,
    /// RPCs that failed or were answered wrongly.
    pub errors: u64,
    /// What the first of them was.
    pub first_error: Option<String>,
    /// Why there are no figures.
    pub missing: Option<String>,
    /// How it was set.
    pub settings: String,
    /// Each run.
    #[serde(rename = "runs")]
    pub samples: Vec<Sample>,
    #[serde(skip)]
    pub(super) latencies: Vec<Latencies>,
}

impl Cell {
    fn summarize(&mut self, figure: Figure) {
        if self.samples.is_empty() {
            return;
        }
        let medians = Sample::medians(&self.samples);
        let values = self.samples.iter().filter_map(|s| s.figure(figure));
        let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        self.spread = medians.figure(figure).map(|middle| (most - least) / middle);
        self.medians = Some(medians);
        let mut over = 0;
        for max_bytes in CLASS_BOUNDS {
            let runs: Vec<_> = self
                .latencies
                .iter()
                .map(|l| l.class(over, max_bytes))
                .collect();
            let count = runs.iter().map(|class| class.count).sum();
            let middle = |values: Vec<f64>| (!values.is_empty()).then(|| median(&values));
            if count > 0 {
                self.classes.push(Class {
                    max_bytes,
                    count,
                    p50_us: middle(runs.iter().filter_map(|class| class.p50_us).collect()),
                    p99_us: middle(runs.iter().filter_map(|class| class.p99_us).collect()),
                });
            }
            over = max_bytes;
        }
        self.latencies.clear();
    }
}

/// A ratio, and what it is to reach.
struct Goal {
    name: &'static str,
    what: &'static str,
    at_least: f64,
    aim: f64,
    more_is_better: bool,
}

const fn goal(
    name: &'static str,
    what: &'static str,
    at_least: f64,
    aim: f64,
    more_is_better: bool,
) -> Goal {
    Goal {
        name,
        what,
        at_least,
        aim,
        more_is_better,
    }
}

const GOALS: [Goal; 10] = [
    goal(
        "throughput_vs_raw",
        "throughput, Homa / raw UDP",
        0.8,
        0.95,
        true,
    ),
    goal(
        "throughput_vs_tcp",
        "throughput, Homa / best TCP",
        1.0,
        1.5,
        true,
    ),
    goal(
        "throughput_vs_quic",
        "throughput, Homa / QUIC",
        4.0,
        10.0,
        true,
    ),
    goal(
        "gbps_per_core_second",
        "payload for a core-second, Gb/s",
        15.0,
        30.0,
        true,
    ),
    goal(
        "latency_vs_raw",
        "100 B spinning P50, Homa / raw UDP",
        1.25,
        1.1,
        false,
    ),
    goal("rate_vs_tcp", "100 B rate, Homa / best TCP", 1.5, 5.0, true),
    goal("rate_vs_grpc", "100 B rate, Homa / gRPC", 10.0, 30.0, true),
    goal(
        "mixed_p99_tcp_vs_homa",
        "mixed, P99 up to 1,400 B, best TCP / Homa",
        5.0,
        13.0,
        true,
    ),
    goal(
        "syscalls_per_rpc",
        "system calls for an RPC of 100 B",
        0.2,
        0.05,
        false,
    ),
    goal(
        "allocations_per_rpc",
        "allocations for an RPC of 100 B",
        0.0,
        0.0,
        false,
    ),
];

/// A scenario, as JSON has it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ScenarioFigures {
    /// By the transport's name.
    pub transports: BTreeMap<Transport, Cell>,
}

/// What the race found.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// By the scenario's name.
    pub scenarios: BTreeMap<Scenario, ScenarioFigures>,
    /// By stable names; `null` where a side is missing. Best against best: the better driver, the
    /// better congestion control, spinning or sleeping.
    pub ratios: BTreeMap<&'static str, Option<f64>>,
    /// The largest IP packet, in bytes.
    pub mtu: u16,
    /// Runs of each transport in each scenario.
    pub runs: usize,
    /// Of each run, in milliseconds.
    pub run_millis: u64,
    /// What makes the figures doubtful.
    pub warnings: Vec<String>,
    /// That this process may use.
    pub cpus: usize,
    #[serde(skip)]
    processor: Option<sys::Processor>,
}

impl Figures {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            scenarios: BTreeMap::new(),
            ratios: BTreeMap::new(),
            mtu: plan.mtu,
            runs: plan.runs,
            run_millis: plan.duration.as_millis() as u64,
            warnings: Vec::new(),
            cpus: plan.cpus,
            processor: sys::processor(),
        }
    }

    pub(super) fn add(&mut self, scenario: Scenario, cells: Vec<(Transport, Cell)>) {
        let figure = scenario.figure();
        let transports = &mut self.scenarios.entry(scenario).or_default().transports;
        for (transport, mut cell) in cells {
            cell.summarize(figure);
            transports.insert(transport, cell);
        }
    }

    /// Ratios and warnings, once all is there.
    pub(super) fn finish(&mut self) {
        use Scenario::{Latency, Mixed, Rate, RateSleeping, Throughput, ThroughputSleeping};
        let bulk = [Throughput, ThroughputSleeping];
        let rate = [Rate, RateSleeping];
        let homa = Transport::is_homa;
        let tcp = Transport::is_tcp;
        let ratio = |over: Option<f64>, under: Option<f64>| Some(over? / under?);
        let gbps = |who: fn(Transport) -> bool| self.best(&bulk, who, Figure::Gbps);
        let rates = |who: fn(Transport) -> bool| self.best(&rate, who, Figure::Rate);
        let p99 = |who: fn(Transport) -> bool| self.best(&[Mixed], who, Figure::P99);
        let p50 = |who: fn(Transport) -> bool| self.best(&[Latency], who, Figure::P50);
        let raw = |transport| transport == Transport::RawUdp;
        let least = |scenarios: &[Scenario], value: fn(&Sample) -> Option<f64>| {
            self.of(scenarios, homa)
                .filter_map(|s| value(&s))
                .reduce(f64::min)
        };
        let per_core = self
            .of(&bulk, homa)
            .map(|sample| sample.gbps_per_core_second)
            .reduce(f64::max);
        let allocations = self
            .of(&[Rate], homa)
            .filter_map(|sample| sample.allocations_per_rpc)
            .reduce(f64::max);
        let quic = |transport| transport == Transport::Quic;
        let grpc = |transport| transport == Transport::Grpc;
        self.ratios = BTreeMap::from([
            ("throughput_vs_raw", ratio(gbps(homa), gbps(raw))),
            ("throughput_vs_tcp", ratio(gbps(homa), gbps(tcp))),
            ("throughput_vs_quic", ratio(gbps(homa), gbps(quic))),
            ("gbps_per_core_second", per_core),
            ("latency_vs_raw", ratio(p50(homa), p50(raw))),
            ("rate_vs_tcp", ratio(rates(homa), rates(tcp))),
            ("rate_vs_grpc", ratio(rates(homa), rates(grpc))),
            ("mixed_p99_tcp_vs_homa", ratio(p99(tcp), p99(homa))),
            ("syscalls_per_rpc", least(&rate, |s| s.system_calls_per_rpc)),
            ("allocations_per_rpc", allocations),
        ]);
        self.warn();
    }

    fn warn(&mut self) {
        if self.cpus < 2 {
            self.warnings
                .push("one CPU: client and server wait for each other".into());
        }
        let stolen = self.processor.and_then(|before| before.stolen());
        if let Some(stolen) = stolen.filter(|stolen| *stolen > 0.01) {
            self.warnings.push(format!(
                "other machines on this host took {:.0} % of the processors' time",
                stolen * 100.0
            ));
        }
        let wide: Vec<String> = self
            .scenarios
            .iter()
            .flat_map(|(scenario, figures)| {
                figures
                    .transports
                    .iter()
                    .filter_map(move |(transport, cell)| {
                        let spread = cell.spread.filter(|spread| *spread > WIDE)?;
                        let percent = spread * 100.0;
                        Some(format!(
                            "{} {} {percent:.0} %",
                            scenario.name(),
                            transport.name()
                        ))
                    })
            })
            .collect();
        if !wide.is_empty() {
            self.warnings.push(format!(
                "runs that differ much, largest less smallest over median: {}",
                wide.join(", ")
            ));
        }
    }

    fn of(
        &self,
        scenarios: &[Scenario],
        who: impl Fn(Transport) -> bool,
    ) -> impl Iterator<Item = Sample> {
        let found = scenarios.iter().filter_map(|name| self.scenarios.get(name));
        found
            .flat_map(|figures| &figures.transports)
            .filter(move |(transport, _)| who(**transport))
            .filter_map(|(_, cell)| cell.medians)
    }

    fn best(
        &self,
        scenarios: &[Scenario],
        who: impl Fn(Transport) -> bool,
        figure: Figure,
    ) -> Option<f64> {
        let values = self.of(scenarios, who).filter_map(|s| s.figure(figure));
        values.reduce(if figure.more_is_better() {
            f64::max
        } else {
            f64::min
        })
    }

    /// Whether any RPC failed; the first that did.
    #[must_use]
    pub fn first_error(&self) -> Option<String> {
        let cells = self.scenarios.iter().flat_map(|(scenario, figures)| {
            let cells = figures.transports.iter();
            cells.map(move |(transport, cell)| (scenario, transport, cell))
        });
        let mut failed = cells.filter(|(_, _, cell)| cell.errors > 0);
        failed.next().map(|(scenario, transport, cell)| {
            let what = cell.first_error.as_deref().unwrap_or("unknown");
            format!("{} over {}: {what}", scenario.name(), transport.name())
        })
    }

    /// All of it as text.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        for (scenario, figures) in &self.scenarios {
            out += &scenario_table(*scenario, figures);
        }
        out += &self.goals();
        out += "\nSettings\n";
        let mut told = BTreeMap::new();
        for figures in self.scenarios.values() {
            for (transport, cell) in &figures.transports {
                told.entry(transport).or_insert(&cell.settings);
            }
        }
        for (transport, settings) in told {
            out += &format!("{}: {settings}\n", transport.name());
        }
        for warning in &self.warnings {
            out += &format!("Warning: {warning}\n");
        }
        out
    }

    /// The scenarios' figures as a picture (SVG).
    #[must_use]
    pub fn svg(&self) -> String {
        svg::svg(self)
    }

    fn goals(&self) -> String {
        let show = |value: f64| format!("{value:.2}");
        let rows: Vec<Vec<String>> = GOALS
            .iter()
            .map(|goal| {
                let value = self.ratios.get(goal.name).copied().flatten();
                let reached = |limit: f64, value: f64| {
                    if goal.more_is_better {
                        value >= limit
                    } else {
                        value <= limit
                    }
                };
                let verdict = match value {
                    None => "",
                    Some(value) if reached(goal.aim, value) => "aim",
                    Some(value) if reached(goal.at_least, value) => "enough",
                    Some(_) => "missed",
                };
                vec![
                    goal.what.into(),
                    value.map_or("-".into(), show),
                    show(goal.at_least),
                    show(goal.aim),
                    verdict.into(),
                ]
            })
            .collect();
        table(&["ratio of medians", "here", "enough", "aim", ""], &rows)
    }
}

fn scenario_table(scenario: Scenario, figures: &ScenarioFigures) -> String {
    let figure = scenario.figure();
    let number = |value: Option<f64>| match value {
        None => "-".into(),
        Some(value) if value < 0.1 => format!("{value:.3}"),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.1}"),
    };
    let rows: Vec<Vec<String>> = figures
        .transports
        .iter()
        .map(|(transport, cell)| {
            let Some(medians) = cell.medians else {
                let mut row = vec![String::new(); 10];
                row[0] = transport.name();
                row[1] = "-".into();
                return row;
            };
            let percent = |spread: f64| format!("{:.0} %", spread * 100.0);
            let rate = medians.rpcs_per_second as u64;
            vec![
                transport.name(),
                number(medians.figure(figure)),
                cell.spread.map_or("-".into(), percent),
                micros(medians.p99_us),
                if rate > 0 {
                    thousands(rate)
                } else {
                    "-".into()
                },
                number(Some(medians.cpu_seconds_per_gigabyte)),
                number(medians.cpu_us_per_rpc),
                number(medians.system_calls_per_rpc),
                number(medians.allocations_per_rpc),
                cell.memory_bytes
                    .map_or("-".into(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6)),
            ]
        })
        .collect();
    let header = [
        scenario.name(),
        figure.title().into(),
        "spread".into(),
        "P99".into(),
        "RPCs/s".into(),
        "CPU s/GB".into(),
        "CPU µs/RPC".into(),
        "calls/RPC".into(),
        "allocs/RPC".into(),
        "memory".into(),
    ];
    let header = header.each_ref().map(String::as_str);
    let mut out = table(&header, &rows) + "\n";
    for (transport, cell) in &figures.transports {
        if let Some(why) = &cell.missing {
            out += &format!("{}: {why}\n", transport.name());
        }
        if cell.errors > 0 {
            let what = cell.first_error.as_deref().unwrap_or("unknown");
            out += &format!("{}: {} errors: {what}\n", transport.name(), cell.errors);
        }
    }
    out + &classes(figures)
}

/// P50 and P99 of each transport by message size.
fn classes(figures: &ScenarioFigures) -> String {
    let ran: Vec<_> = figures
        .transports
        .iter()
        .filter(|(_, cell)| !cell.classes.is_empty())
        .collect();
    if ran.is_empty() {
        return String::new();
    }
    let mut header = vec!["P50 / P99 up to".to_owned()];
    header.extend(ran.iter().map(|(transport, _)| transport.name()));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let row = |max_bytes: u32| {
        let mut row = vec![format!("{} B", thousands(max_bytes.into()))];
        row.extend(ran.iter().map(|(_, cell)| {
            let class = cell
                .classes
                .iter()
                .find(|class| class.max_bytes == max_bytes);
            class.map_or("-".into(), |class| {
                format!("{} / {}", micros(class.p50_us), micros(class.p99_us))
            })
        }));
        row
    };
    table(&header, &CLASS_BOUNDS.map(row)) + "\n"
}
