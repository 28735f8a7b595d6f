//! What the runs have given, in figures.

use std::fmt::Write as _;

use serde::Serialize;

use super::host::{Measured, Run};
use super::node::Counters;
use super::queues::Queue;
use super::star::Outcome;
use crate::report::{micros, percentile, ratio, table, thousands};

/// Upper bounds of the size classes, in bytes. 1,400 is about one packet; the last class holds
/// the messages that were cut.
pub(super) const CLASS_BOUNDS: [u32; 7] =
    [1_400, 10_000, 50_000, 100_000, 300_000, 999_999, 4_000_000];
/// Messages up to this are short.
pub(super) const SHORT: u32 = CLASS_BOUNDS[0];
/// Messages from this on are long.
const LONG: u32 = 1_000_000;
/// More of the CPUs' time than this, and the machine may be what is measured.
const BUSY: f64 = 0.85;
/// RPCs started later than this: the same.
const LATE_US: f64 = 1_000.0;

/// The time of a round trip on the idle network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct IdleTime {
    pub(super) bytes: u32,
    /// The best median of all transports.
    pub(super) p50_us: f64,
    /// What the links alone take.
    pub(super) links_us: f64,
    /// Median of each transport.
    pub(super) transports: Vec<(&'static str, f64)>,
}

/// Round trips on the idle network by message length.
#[derive(Debug)]
pub(super) struct Idle {
    rate_bps: u64,
    times: Vec<IdleTime>,
}

impl Idle {
    pub(super) fn new(rate_bps: u64) -> Self {
        Self {
            rate_bps,
            times: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, transport: &'static str, outcome: &Outcome) {
        let mut samples: Vec<(u32, u64)> = outcome
            .hosts
            .iter()
            .flat_map(|host| host.samples.iter().copied())
            .collect();
        samples.sort_unstable();
        for group in samples.chunk_by(|a, b| a.0 == b.0) {
            let nanos: Vec<u64> = group.iter().map(|sample| sample.1).collect();
            let Some(p50) = percentile(&nanos, 0.5) else {
                continue;
            };
            let (bytes, p50_us) = (group[0].0, p50 as f64 / 1e3);
            let links_us = self.links_us(bytes);
            match self.times.iter_mut().find(|time| time.bytes == bytes) {
                Some(time) => {
                    time.p50_us = time.p50_us.min(p50_us);
                    time.transports.push((transport, p50_us));
                }
                None => self.times.push(IdleTime {
                    bytes,
                    p50_us,
                    links_us,
                    transports: vec![(transport, p50_us)],
                }),
            }
        }
    }

    /// There and back over two links each time, the second behind the first by a packet.
    fn links_us(&self, bytes: u32) -> f64 {
        const PAYLOAD: f64 = 1_448.0;
        const HEADERS: f64 = 66.0;
        let bytes = f64::from(bytes);
        let all = bytes + (bytes / PAYLOAD).ceil() * HEADERS;
        let first = bytes.min(PAYLOAD) + HEADERS;
        2.0 * (all + first) * 8.0 / self.rate_bps as f64 * 1e6
    }

    /// The round trip of a full packet, in nanoseconds.
    pub(super) fn packet_ns(&self) -> u64 {
        (self.at(SHORT) * 1e3) as u64
    }

    /// The idle time of a message of this length, in microseconds, between what was measured.
    pub(super) fn at(&self, bytes: u32) -> f64 {
        let next = self.times.partition_point(|time| time.bytes < bytes);
        let (low, high) = match (
            next.checked_sub(1).map(|at| &self.times[at]),
            self.times.get(next),
        ) {
            (Some(low), Some(high)) => (low, high),
            (Some(only), None) | (None, Some(only)) => return only.p50_us,
            (None, None) => return f64::NAN,
        };
        let along = f64::from(bytes - low.bytes) / f64::from(high.bytes - low.bytes);
        low.p50_us + along * (high.p50_us - low.p50_us)
    }

    pub(super) fn times(self) -> Vec<IdleTime> {
        self.times
    }
}

/// Latencies of a class of message lengths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Class {
    pub(super) max_bytes: u32,
    pub(super) count: usize,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
    /// Of the quotients of latency and idle latency.
    pub(super) slowdown_p50: Option<f64>,
    pub(super) slowdown_p99: Option<f64>,
}

/// Steps of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StepTimes {
    pub(super) count: usize,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Share of the time that hosts wait for the network.
    pub(super) idle_share: f64,
}

/// A transport in one of its settings.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VariantReport {
    pub(super) name: String,
    pub(super) settings: String,
    pub(super) classes: Vec<Class>,
    /// All messages up to one packet.
    pub(super) short_p99_us: Option<f64>,
    pub(super) short_slowdown_p99: Option<f64>,
    /// All messages of 1 MB and more.
    pub(super) long_p99_us: Option<f64>,
    pub(super) steps: Option<StepTimes>,
    /// Of all hosts together.
    pub(super) goodput_mbps: f64,
    /// Goodput over what was offered.
    pub(super) goodput_share: f64,
    pub(super) counters: Counters,
    /// At the switch's ports, by priority.
    pub(super) queues: Vec<Queue>,
    pub(super) drops: u64,
    /// Share of a CPU that each host took.
    pub(super) cpu_share: Vec<f64>,
    /// Share of the machine's CPUs that was in use.
    pub(super) machine_busy: f64,
    /// How late RPCs were started: the 99th percentile of the worst host.
    pub(super) late_us: f64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) unfinished: u64,
    /// Points of the slide: about equally many messages each.
    pub(super) curve: Vec<Class>,
}

impl VariantReport {
    pub(super) fn new(name: String, run: &Run, outcome: Outcome, idle: &Idle) -> Self {
        let Outcome {
            hosts,
            queues,
            busy,
        } = outcome;
        let mut samples: Vec<(u32, u64)> = hosts
            .iter()
            .flat_map(|host| host.samples.iter().copied())
            .collect();
        samples.sort_unstable();
        let within = |over: u32, up_to: u32| {
            let from = samples.partition_point(|sample| sample.0 <= over);
            let to = samples.partition_point(|sample| sample.0 <= up_to);
            class(&samples[from..to.max(from)], up_to, idle)
        };
        let mut over = 0;
        let classes: Vec<Class> = CLASS_BOUNDS
            .into_iter()
            .map(|up_to| {
                let class = within(over, up_to);
                over = up_to;
                class
            })
            .filter(|class| class.count > 0)
            .collect();
        let (short, long) = (within(0, SHORT), within(LONG - 1, u32::MAX));
        let seconds = (run.window.to_ns - run.window.from_ns) as f64 / 1e9;
        let sum = |f: fn(&Measured) -> u64| hosts.iter().map(f).sum::<u64>();
        let bytes = sum(|host| host.bytes) as f64;
        Self {
            name,
            settings: hosts
                .first()
                .map_or_else(String::new, |host| host.settings.clone()),
            classes,
            short_p99_us: short.p99_us,
            short_slowdown_p99: short.slowdown_p99,
            long_p99_us: long.p99_us,
            steps: step_times(&hosts),
            goodput_mbps: bytes * 8.0 / seconds / 1e6,
            goodput_share: bytes / (sum(|host| host.offered) as f64).max(1.0),
            counters: hosts.iter().fold(Counters::default(), |all, host| {
                all.zip(host.counters, |a, b| a + b)
            }),
            drops: queues.iter().map(|queue| queue.drops).sum(),
            queues,
            cpu_share: hosts
                .iter()
                .map(|host| host.cpu_ns as f64 / 1e9 / seconds)
                .collect(),
            machine_busy: busy,
            late_us: hosts.iter().map(|host| host.late_ns).max().unwrap_or(0) as f64 / 1e3,
            errors: sum(|host| host.errors),
            first_error: hosts.iter().find_map(|host| host.first_error.clone()),
            unfinished: sum(|host| host.unfinished),
            curve: curve(&samples, idle),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.machine_busy > BUSY {
            warnings.push(format!(
                "the machine's CPUs were {:.0} % busy",
                self.machine_busy * 100.0
            ));
        }
        if self.late_us > LATE_US {
            warnings.push(format!(
                "RPCs were started up to {} late (P99)",
                micros(Some(self.late_us))
            ));
        }
        if self.unfinished > 0 {
            warnings.push(format!(
                "{} RPCs had not ended 4 s after the load, and are in no percentile",
                self.unfinished
            ));
        }
        warnings
    }
}

fn class(samples: &[(u32, u64)], max_bytes: u32, idle: &Idle) -> Class {
    let mut us: Vec<f64> = samples.iter().map(|sample| sample.1 as f64 / 1e3).collect();
    let mut slowdowns: Vec<f64> = samples
        .iter()
        .zip(&us)
        .map(|(sample, us)| us / idle.at(sample.0))
        .collect();
    us.sort_unstable_by(f64::total_cmp);
    slowdowns.sort_unstable_by(f64::total_cmp);
    Class {
        max_bytes,
        count: us.len(),
        p50_us: percentile(&us, 0.5),
        p99_us: percentile(&us, 0.99),
        p999_us: percentile(&us, 0.999),
        slowdown_p50: percentile(&slowdowns, 0.5),
        slowdown_p99: percentile(&slowdowns, 0.99),
    }
}

/// Parts of the sorted samples for the slide, none with so few that its P99 means nothing.
fn curve(samples: &[(u32, u64)], idle: &Idle) -> Vec<Class> {
    const PARTS: usize = 24;
    let least = (samples.len() / PARTS).max(100);
    let mut parts = Vec::new();
    let mut from = 0;
    while from < samples.len() {
        let mut to = (from + least).min(samples.len());
        // All messages of one length are in one part.
        while to < samples.len() && samples[to].0 == samples[to - 1].0 {
            to += 1;
        }
        if samples.len() - to < least / 2 {
            to = samples.len();
        }
        let part = &samples[from..to];
        // A part is placed at its middle.
        parts.push(class(part, part[part.len() / 2].0, idle));
        from = to;
    }
    parts
}

fn step_times(hosts: &[Measured]) -> Option<StepTimes> {
    let steps = || hosts.iter().flat_map(|host| host.steps.iter());
    let mut us: Vec<f64> = steps().map(|step| step.0 as f64 / 1e3).collect();
    us.sort_unstable_by(f64::total_cmp);
    let all: f64 = us.iter().sum();
    let waited: f64 = steps().map(|step| step.1 as f64 / 1e3).sum();
    Some(StepTimes {
        count: us.len(),
        mean_us: all / us.len() as f64,
        p50_us: percentile(&us, 0.5)?,
        p99_us: percentile(&us, 0.99)?,
        idle_share: waited / all,
    })
}

/// A transport: its best setting, and all of them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TransportReport {
    pub(super) name: &'static str,
    #[serde(skip)]
    pub(super) homa: bool,
    /// The setting with the lowest P99 of short messages, or the shortest steps; of Homa the one
    /// with priorities.
    pub(super) best: String,
    /// Of the best setting.
    pub(super) classes: Vec<Class>,
    pub(super) variants: Vec<VariantReport>,
}

impl TransportReport {
    pub(super) fn new(name: &'static str, homa: bool, variants: Vec<VariantReport>) -> Self {
        let rank = |variant: &VariantReport| {
            let steps = variant.steps.as_ref().map(|steps| steps.mean_us);
            let first = || variant.classes.first()?.p99_us;
            steps.or(variant.short_p99_us).or_else(first)
        };
        let best = if homa {
            variants.first()
        } else {
            variants.iter().min_by(|a, b| {
                let rank = |variant| rank(variant).unwrap_or(f64::INFINITY);
                rank(a).total_cmp(&rank(b))
            })
        };
        Self {
            name,
            homa,
            best: best.map_or_else(String::new, |best| best.name.clone()),
            classes: best.map_or_else(Vec::new, |best| best.classes.clone()),
            variants,
        }
    }

    pub(super) fn best(&self) -> Option<&VariantReport> {
        self.variants
            .iter()
            .find(|variant| variant.name == self.best)
    }
}

/// What the network was.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Settings {
    pub(super) hosts: usize,
    pub(super) rate_bps: u64,
    pub(super) queue_packets: u32,
    pub(super) workload: String,
    pub(super) load: f64,
    /// Measured.
    pub(super) seconds: f64,
    pub(super) seed: u64,
    pub(super) ipv6: bool,
    /// Of a full packet, as Homa was told.
    pub(super) rtt_us: f64,
}

/// The best TCP over Homa, each figure with that TCP which does best at it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ratios {
    pub(super) short_p99_tcp_vs_homa: Option<f64>,
    pub(super) long_p99_tcp_vs_homa: Option<f64>,
    /// Long messages, against the TCP that does best at short ones.
    pub(super) long_p99_same_tcp_vs_homa: Option<f64>,
    pub(super) short_p99_tcp_vs_homa_one_priority: Option<f64>,
    pub(super) step_mean_tcp_vs_homa: Option<f64>,
    pub(super) step_p99_tcp_vs_homa: Option<f64>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: String,
    pub(super) settings: Settings,
    pub(super) idle: Vec<IdleTime>,
    pub(super) transports: Vec<TransportReport>,
    pub(super) ratios: Ratios,
    pub(super) warnings: Vec<String>,
}

impl Report {
    pub(super) fn new(
        settings: Settings,
        idle: Vec<IdleTime>,
        transports: Vec<TransportReport>,
    ) -> Self {
        let mut warnings = Vec::new();
        for time in &idle {
            // Thread wake-ups and the like are allowed for.
            if time.p50_us > 1.2 * time.links_us + 1_000.0 {
                warnings.push(format!(
                    "{} B on the idle network take {}, the links alone {}",
                    thousands(time.bytes.into()),
                    micros(Some(time.p50_us)),
                    micros(Some(time.links_us))
                ));
            }
        }
        for transport in &transports {
            for variant in &transport.variants {
                let what = variant.warnings().into_iter();
                warnings.extend(
                    what.map(|what| format!("{}, {}: {what}", transport.name, variant.name)),
                );
            }
        }
        Self {
            machine: machine(),
            ratios: ratios(&transports),
            settings,
            idle,
            transports,
            warnings,
        }
    }

    pub(super) fn variants(&self) -> impl Iterator<Item = &VariantReport> {
        self.transports
            .iter()
            .flat_map(|transport| &transport.variants)
    }

    /// A line that says what was measured.
    pub(super) fn setting(&self) -> String {
        let Settings {
            hosts,
            rate_bps,
            queue_packets,
            ref workload,
            load,
            seconds,
            seed,
            ipv6,
            rtt_us,
        } = self.settings;
        format!(
            "{hosts} hosts, {} Mb/s, {queue_packets} packets a queue, {workload}, load {load}, {seconds:.1} s, seed {seed}, IPv{}, round trip of a packet {}",
            rate_bps / 1_000_000,
            if ipv6 { 6 } else { 4 },
            micros(Some(rtt_us)),
        )
    }

    pub(super) fn table(&self) -> String {
        let mut out = format!("{}\n{}\n\n", self.machine, self.setting());
        let number =
            |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.1}"));
        let mut rows = Vec::new();
        for transport in &self.transports {
            let Some(best) = transport.best() else {
                continue;
            };
            for class in &best.classes {
                rows.push(vec![
                    transport.name.into(),
                    thousands(class.max_bytes.into()),
                    thousands(class.count as u64),
                    micros(class.p50_us),
                    micros(class.p99_us),
                    micros(class.p999_us),
                    number(class.slowdown_p50),
                    number(class.slowdown_p99),
                ]);
            }
        }
        let header = [
            "transport",
            "bytes up to",
            "count",
            "P50",
            "P99",
            "P99.9",
            "slowdown P50",
            "P99",
        ];
        out += &table(&header, &rows);
        out.push('\n');
        let mut rows = Vec::new();
        for transport in &self.transports {
            for variant in &transport.variants {
                let best = if variant.name == transport.best {
                    "*"
                } else {
                    ""
                };
                let deepest = variant.queues.iter().map(|queue| queue.max_packets).max();
                let cpu: f64 = variant.cpu_share.iter().sum();
                let mut row = vec![
                    format!("{}, {}{best}", transport.name, variant.name),
                    micros(variant.short_p99_us),
                    number(variant.short_slowdown_p99),
                    micros(variant.long_p99_us),
                    format!("{:.0}", variant.goodput_mbps),
                    format!("{:.3}", variant.goodput_share),
                    thousands(variant.drops),
                    thousands(variant.counters.retransmits),
                    thousands(variant.counters.resends),
                    deepest.map_or_else(|| "-".into(), thousands),
                    format!("{:.0} %", cpu / variant.cpu_share.len() as f64 * 100.0),
                    format!("{:.0} %", variant.machine_busy * 100.0),
                    variant.unfinished.to_string(),
                ];
                if let Some(steps) = &variant.steps {
                    row.extend([
                        thousands(steps.count as u64),
                        micros(Some(steps.mean_us)),
                        micros(Some(steps.p99_us)),
                        format!("{:.0} %", steps.idle_share * 100.0),
                    ]);
                }
                rows.push(row);
            }
        }
        let mut header = vec![
            "setting",
            "short P99",
            "slowdown",
            "1 MB P99",
            "Mb/s",
            "of offered",
            "drops",
            "sent again",
            "RESENDs",
            "deepest",
            "CPU a host",
            "machine",
            "unfinished",
        ];
        if self.variants().any(|variant| variant.steps.is_some()) {
            header.extend(["steps", "mean", "P99", "idle"]);
        }
        out += &table(&header, &rows);
        out.push('\n');
        let one = |value: Option<f64>| ratio(value, Some(1.0));
        let ratios = &self.ratios;
        for (what, value) in [
            ("P99 up to 1,400 B", ratios.short_p99_tcp_vs_homa),
            (
                "the same, Homa in one priority",
                ratios.short_p99_tcp_vs_homa_one_priority,
            ),
            ("P99 of 1 MB and more", ratios.long_p99_tcp_vs_homa),
            (
                "the same, with the TCP that is best up to 1,400 B",
                ratios.long_p99_same_tcp_vs_homa,
            ),
            ("mean step", ratios.step_mean_tcp_vs_homa),
            ("P99 of steps", ratios.step_p99_tcp_vs_homa),
        ] {
            if value.is_some() {
                let _ = writeln!(out, "best TCP / Homa, {what}: {}", one(value));
            }
        }
        for warning in &self.warnings {
            let _ = writeln!(out, "warning: {warning}");
        }
        out
    }

    pub(super) fn csv(&self) -> String {
        let mut out = String::from(
            "transport,setting,max_bytes,count,p50_us,p99_us,p999_us,slowdown_p50,slowdown_p99\n",
        );
        for transport in &self.transports {
            for variant in &transport.variants {
                for class in &variant.classes {
                    let _ = write!(
                        out,
                        "{},{},{},{}",
                        transport.name, variant.name, class.max_bytes, class.count
                    );
                    for value in [
                        class.p50_us,
                        class.p99_us,
                        class.p999_us,
                        class.slowdown_p50,
                        class.slowdown_p99,
                    ] {
                        let _ = write!(out, ",{:.3}", value.unwrap_or(f64::NAN));
                    }
                    out.push('\n');
                }
            }
        }
        out
    }
}

fn ratios(transports: &[TransportReport]) -> Ratios {
    let tcp = |transport: &&TransportReport| transport.name.starts_with("tcp-");
    let least = |f: &dyn Fn(&VariantReport) -> Option<f64>| {
        transports
            .iter()
            .filter(tcp)
            .flat_map(|transport| &transport.variants)
            .filter_map(f)
            .min_by(f64::total_cmp)
    };
    let homa = transports.iter().find(|transport| transport.homa);
    let eight = homa.and_then(|homa| homa.variants.first());
    let one = homa.and_then(|homa| homa.variants.get(1));
    let over = |f: &dyn Fn(&VariantReport) -> Option<f64>, homa: Option<&VariantReport>| {
        Some(least(f)? / homa.and_then(f)?)
    };
    let short = |variant: &VariantReport| variant.short_p99_us;
    let long = |variant: &VariantReport| variant.long_p99_us;
    let best_at_short = transports
        .iter()
        .filter(tcp)
        .filter_map(|transport| transport.best())
        .min_by(|a, b| {
            let p99 = |variant| short(variant).unwrap_or(f64::INFINITY);
            p99(a).total_cmp(&p99(b))
        });
    let same = || Some(long(best_at_short?)? / long(eight?)?);
    Ratios {
        short_p99_tcp_vs_homa: over(&short, eight),
        short_p99_tcp_vs_homa_one_priority: over(&short, one),
        long_p99_tcp_vs_homa: over(&long, eight),
        long_p99_same_tcp_vs_homa: same(),
        step_mean_tcp_vs_homa: over(&|variant| Some(variant.steps.as_ref()?.mean_us), eight),
        step_p99_tcp_vs_homa: over(&|variant| Some(variant.steps.as_ref()?.p99_us), eight),
    }
}

/// Processor, number of CPUs and kernel.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, model)| model.trim());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{model}, {cpus} CPUs, Linux {}",
        read("/proc/sys/kernel/osrelease").trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> Idle {
        let time = |bytes, p50_us| IdleTime {
            bytes,
            p50_us,
            links_us: 1.0,
            transports: Vec::new(),
        };
        Idle {
            rate_bps: 200_000_000,
            times: vec![time(100, 50.0), time(1_000, 140.0), time(2_000, 340.0)],
        }
    }

    #[test]
    fn idle_times_are_interpolated() {
        let idle = idle();
        for (bytes, us) in [
            (1, 50.0),
            (100, 50.0),
            (500, 90.0),
            (1_000, 140.0),
            (1_500, 240.0),
            (9_000, 340.0),
        ] {
            assert_eq!(idle.at(bytes), us, "{bytes}");
        }
        // Two links there, two back, at 40 ns a byte.
        assert_eq!(idle.links_us(1_448), 4.0 * 1_514.0 * 0.04);
    }

    #[test]
    fn a_class_has_the_percentiles_of_its_samples() {
        let samples: Vec<(u32, u64)> = (1..=1_000).map(|n| (1_000, n * 1_000)).collect();
        let class = class(&samples, 1_400, &idle());
        assert_eq!(
            (class.count, class.p50_us, class.p99_us),
            (1_000, Some(500.0), Some(990.0))
        );
        assert_eq!(class.p999_us, Some(999.0));
        assert_eq!(class.slowdown_p99, Some(990.0 / 140.0));
    }

    #[test]
    fn the_curve_splits_all_samples_and_no_length() {
        let mut samples: Vec<(u32, u64)> = (0..5_000u32).map(|n| (n / 700 * 100 + 50, 1)).collect();
        samples.extend((0..5_000u32).map(|n| (10_000 + n, 1)));
        let parts = curve(&samples, &idle());
        let count: usize = parts.iter().map(|part| part.count).sum();
        assert_eq!(count, samples.len());
        assert!(parts.is_sorted_by(|a, b| a.max_bytes < b.max_bytes));
        assert!(parts.iter().all(|part| part.count >= 100), "{parts:?}");
        assert!(curve(&[], &idle()).is_empty());
    }

    fn variant(name: &str, short: f64, long: f64) -> VariantReport {
        VariantReport {
            name: name.into(),
            settings: String::new(),
            classes: Vec::new(),
            short_p99_us: Some(short),
            short_slowdown_p99: None,
            long_p99_us: Some(long),
            steps: None,
            goodput_mbps: 0.0,
            goodput_share: 0.0,
            counters: Counters::default(),
            queues: Vec::new(),
            drops: 0,
            cpu_share: Vec::new(),
            machine_busy: 0.0,
            late_us: 0.0,
            errors: 0,
            first_error: None,
            unfinished: 0,
            curve: Vec::new(),
        }
    }

    #[test]
    fn ratios_take_the_tcp_that_is_best_at_each_figure() {
        let homa = vec![variant("8", 10.0, 100.0), variant("1", 20.0, 100.0)];
        let cubic = vec![variant("1", 900.0, 50.0), variant("3", 300.0, 200.0)];
        let bbr = vec![variant("1", 400.0, 80.0)];
        let quic = vec![variant("1", 1.0, 1.0)];
        let transports = [
            TransportReport::new("homa-mio", true, homa),
            TransportReport::new("tcp-cubic", false, cubic),
            TransportReport::new("tcp-bbr", false, bbr),
            TransportReport::new("quic", false, quic),
        ];
        assert_eq!(transports[1].best, "3");
        let ratios = ratios(&transports);
        assert_eq!(ratios.short_p99_tcp_vs_homa, Some(30.0));
        assert_eq!(ratios.short_p99_tcp_vs_homa_one_priority, Some(15.0));
        assert_eq!(ratios.long_p99_tcp_vs_homa, Some(0.5));
        assert_eq!(ratios.long_p99_same_tcp_vs_homa, Some(2.0));
        assert_eq!(ratios.step_mean_tcp_vs_homa, None);
    }
}
