//! What a run has shown: as a table, as JSON and as CSV.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::network::PortStats;
use crate::recorder::{Class, count_weighted_p99};
use crate::sim::{Application, Simulation};
use crate::topology::Topology;
use crate::traffic::{self, Totals};
use crate::transport::Transport;

/// How fast the simulator was. Nothing else in a report depends on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Seconds that the run took.
    pub wall_seconds: f64,
    /// Events per second.
    pub events_per_second: f64,
    /// Packets sent on a cable, per second.
    pub packet_hops_per_second: f64,
}

impl Speed {
    /// From the time it took, the events, and the times that a packet was sent on a cable.
    #[must_use]
    pub fn new(wall: Duration, events: u64, hops: u64) -> Self {
        let seconds = wall.as_secs_f64().max(1e-9);
        Self {
            wall_seconds: seconds,
            events_per_second: events as f64 / seconds,
            packet_hops_per_second: hops as f64 / seconds,
        }
    }
}

/// Bytes that waited at a group of ports, each for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queues {
    /// Which ports.
    pub at: String,
    /// How many.
    pub ports: usize,
    /// Mean over time and ports.
    pub mean_bytes: f64,
    /// The highest 99th percentile of a port.
    pub p99_bytes: u64,
    /// The most at any port.
    pub max_bytes: u64,
    /// Packets dropped there.
    pub dropped: u64,
    /// Packets marked there.
    pub marked: u64,
}

/// Steps of a job, as the job sees them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What a step is.
    pub step: String,
    /// Steps done.
    pub steps: u64,
    /// Mean time of a step, computation included, in microseconds.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Share of its time that a rank waits for the network.
    pub idle_share: f64,
}

/// What a run has shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Transport.
    pub transport: String,
    /// Its settings that matter most.
    pub settings: String,
    /// Topology.
    pub topology: String,
    /// Workload.
    pub workload: String,
    /// Load asked for.
    pub load: f64,
    /// Seed.
    pub seed: u64,
    /// Hash of all events, in hexadecimal.
    pub trace_hash: String,
    /// Events.
    pub events: u64,
    /// Times that a packet was sent on a cable.
    pub packet_hops: u64,
    /// How fast the simulator was.
    #[serde(flatten)]
    pub speed: Speed,
    /// Simulated milliseconds.
    pub simulated_ms: f64,
    /// Messages begun, completed and failed, those that are not measured included.
    pub messages: Totals,
    /// Messages that were measured.
    pub measured: u64,
    /// Messages still under way at the end.
    pub unfinished: u64,
    /// Bytes of data that arrived while messages were begun, over the bytes begun; the first half, in which queues fill,
    /// does not count. 0 for jobs, which begin nothing at random.
    pub arrived_share: f64,
    /// The same for links that carry without a pause what there is to carry: no transport can do better.
    pub possible_share: f64,
    /// Message data delivered, per host, in Gb/s.
    pub goodput_gbps: f64,
    /// Share of time that downlinks were idle while messages for their host were outstanding.
    pub wasted_bandwidth: f64,
    /// By class of length.
    pub classes: Vec<Class>,
    /// By length.
    pub by_length: Vec<Class>,
    /// By length, neighbouring lengths taken together where there are few messages: what plots show.
    pub bands: Vec<Class>,
    /// All messages.
    pub all: Class,
    /// Messages of one packet: up to 1,400 bytes.
    pub one_packet: Class,
    /// The shortest tenth.
    pub smallest_tenth: Class,
    /// P99 slowdown of each length, weighted by the number of messages.
    pub count_weighted_p99_slowdown: f64,
    /// Steps of the job, where the traffic is one.
    pub job: Option<Job>,
    /// Queues by group of ports.
    pub queues: Vec<Queues>,
    /// Most bytes waiting in any one switch.
    pub switch_max_bytes: u64,
    /// Share of the bytes sent by switches, by priority.
    pub priorities: [f64; 8],
    /// Packets dropped by switches.
    pub drops: u64,
    /// Packets lost by injected faults.
    pub lost: u64,
    /// Counters of the transport, summed over hosts.
    pub counters: Vec<(String, u64)>,
}

impl Report {
    /// The report of a run that is over.
    #[must_use]
    pub fn new<T: Transport, A: Application + traffic::Report>(
        experiment: &Experiment,
        topology: &Topology,
        sim: &Simulation<T, A>,
        speed: Speed,
        (arrived_share, possible_share): (f64, f64),
    ) -> Self {
        let now = sim.now();
        let recorder = sim.app.recorder();
        let totals = sim.app.totals();
        let by_length = recorder.by_length();
        let mut priorities = [0.0; 8];
        let mut sent = 0.0;
        for (_, stats) in sim.network.ports() {
            for (share, bytes) in priorities.iter_mut().zip(stats.sent) {
                *share += bytes as f64;
                sent += bytes as f64;
            }
        }
        priorities
            .iter_mut()
            .for_each(|share| *share /= f64::max(sent, 1.0));
        Self {
            transport: sim.transport.name().into(),
            settings: experiment.describe_settings(sim.transport.name()),
            topology: topology.name.clone(),
            workload: experiment.describe_traffic(),
            load: experiment.load,
            seed: experiment.seed,
            trace_hash: format!("{:016x}", sim.trace_hash()),
            events: sim.processed(),
            packet_hops: sim.network.hops(),
            speed,
            simulated_ms: now as f64 / 1e6,
            messages: totals,
            measured: recorder.count(),
            unfinished: totals.started - totals.completed - totals.failed,
            arrived_share,
            possible_share,
            goodput_gbps: totals.bytes as f64 * 8.0
                / now.max(1) as f64
                / topology.hosts.len() as f64,
            wasted_bandwidth: sim.network.wasted_bandwidth(now),
            classes: recorder.classes(),
            bands: recorder.bands(),
            all: recorder.all(),
            one_packet: recorder.one_packet(),
            smallest_tenth: recorder.smallest_tenth(),
            count_weighted_p99_slowdown: count_weighted_p99(&by_length),
            by_length,
            job: sim.app.job(),
            queues: queues(topology, sim.network.ports(), now),
            switch_max_bytes: sim.network.switches().map(|s| s.max()).max().unwrap_or(0),
            priorities,
            drops: sim
                .network
                .ports()
                .map(|(_, stats)| stats.dropped.iter().sum::<u64>())
                .sum(),
            lost: sim.faults.lost(),
            counters: sim
                .transport
                .counters()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }

    /// A table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{} ({}): {} at load {}, {}, seed {}",
            self.transport, self.settings, self.workload, self.load, self.topology, self.seed
        )?;
        writeln!(
            out,
            "  {:.1} ms simulated in {:.1} s: {} events, {:.2} M events/s, {:.2} M packet-hops/s, trace {}",
            self.simulated_ms,
            self.speed.wall_seconds,
            self.events,
            self.speed.events_per_second / 1e6,
            self.speed.packet_hops_per_second / 1e6,
            self.trace_hash
        )?;
        writeln!(
            out,
            "  messages: {} begun, {} completed, {} failed, {} unfinished; {} measured",
            self.messages.started,
            self.messages.completed,
            self.messages.failed,
            self.unfinished,
            self.measured
        )?;
        if !self.classes.is_empty() {
            writeln!(
                out,
                "  {:>12} {:>9} {:>8} {:>8} {:>8} {:>11} {:>11} {:>11}",
                "up to bytes",
                "messages",
                "P50 ×",
                "P99 ×",
                "P99.9 ×",
                "P50 µs",
                "P99 µs",
                "P99.9 µs"
            )?;
        }
        for class in &self.classes {
            write_class(out, &class.max_bytes.to_string(), class)?;
        }
        if self.classes.len() > 1 {
            write_class(out, "all", &self.all)?;
            writeln!(
                out,
                "  P99 slowdown: smallest tenth {:.2}, by length weighted by count {:.2}",
                self.smallest_tenth.p99_slowdown, self.count_weighted_p99_slowdown
            )?;
        }
        if self.one_packet.count > 0 {
            let parts = self.one_packet.p99_parts;
            writeln!(
                out,
                "  up to 1400 B around P99: {:.2} µs idle network + {:.2} held back by senders + {:.2} for cards + {:.2} in switches",
                parts.ideal_us, parts.sender_us, parts.card_us, parts.ports_us
            )?;
        }
        if let Some(job) = &self.job {
            writeln!(
                out,
                "  {} × {}: mean {:.1} µs, P50 {:.1}, P99 {:.1}, max {:.1}; idle {:.1} %",
                job.steps,
                job.step,
                job.mean_us,
                job.p50_us,
                job.p99_us,
                job.max_us,
                job.idle_share * 100.0
            )?;
        }
        writeln!(
            out,
            "  goodput {:.2} Gb/s per host, wasted bandwidth {:.1} %, drops {}, lost by faults {}",
            self.goodput_gbps,
            self.wasted_bandwidth * 100.0,
            self.drops,
            self.lost
        )?;
        for queues in &self.queues {
            writeln!(
                out,
                "  queue {:<14} mean {:>9.0} B, P99 {:>9} B, max {:>9} B, dropped {}, marked {}",
                queues.at,
                queues.mean_bytes,
                queues.p99_bytes,
                queues.max_bytes,
                queues.dropped,
                queues.marked
            )?;
        }
        write!(out, "  bytes by priority 0..7:")?;
        for share in self.priorities {
            write!(out, " {:.1}", share * 100.0)?;
        }
        writeln!(out, " %")?;
        write!(out, "  counters:")?;
        for (name, value) in &self.counters {
            write!(out, " {name} {value},")?;
        }
        if out.ends_with(',') {
            out.pop();
        }
        writeln!(out)
    }
}

fn write_class(out: &mut String, name: &str, class: &Class) -> std::fmt::Result {
    writeln!(
        out,
        "  {name:>12} {:>9} {:>8.2} {:>8.2} {:>8.2} {:>11.1} {:>11.1} {:>11.1}",
        class.count,
        class.p50_slowdown,
        class.p99_slowdown,
        class.p999_slowdown,
        class.p50_us,
        class.p99_us,
        class.p999_us
    )
}

fn queues<'a>(
    topology: &Topology,
    ports: impl Iterator<Item = (crate::network::PortName, &'a PortStats)>,
    now: u64,
) -> Vec<Queues> {
    // Switch names without their number: leaf, spine.
    let kind = |switch: usize| {
        topology.switches[switch]
            .name
            .trim_end_matches(|c: char| c.is_ascii_digit())
    };
    let mut groups: Vec<Queues> = Vec::new();
    for (name, stats) in ports {
        let to = name.peer.map_or("host", kind);
        let at = format!("{} → {to}", kind(name.switch));
        let group = match groups.iter_mut().find(|group| group.at == at) {
            Some(group) => group,
            None => {
                groups.push(Queues {
                    at,
                    ports: 0,
                    mean_bytes: 0.0,
                    p99_bytes: 0,
                    max_bytes: 0,
                    dropped: 0,
                    marked: 0,
                });
                let last = groups.len() - 1;
                &mut groups[last]
            }
        };
        group.ports += 1;
        group.mean_bytes += stats.queued.mean(now);
        group.p99_bytes = group.p99_bytes.max(stats.queued.p99(now));
        group.max_bytes = group.max_bytes.max(stats.queued.max());
        group.dropped += stats.dropped.iter().sum::<u64>();
        group.marked += stats.marked;
    }
    for group in &mut groups {
        group.mean_bytes /= group.ports as f64;
    }
    groups
}

/// All reports as CSV: one line per transport and length.
#[must_use]
pub fn csv(reports: &[Report]) -> String {
    let mut out = String::from(
        "workload,load,transport,seed,message_bytes,messages,slowdown_mean,slowdown_p50,slowdown_p99,slowdown_p999,p50_us,p99_us,p999_us\n",
    );
    for report in reports {
        for class in &report.by_length {
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{:.4},{:.4},{:.4},{:.4},{:.3},{:.3},{:.3}",
                report.workload.replace(',', ";"),
                report.load,
                report.transport,
                report.seed,
                class.max_bytes,
                class.count,
                class.mean_slowdown,
                class.p50_slowdown,
                class.p99_slowdown,
                class.p999_slowdown,
                class.p50_us,
                class.p99_us,
                class.p999_us
            );
        }
    }
    out
}

/// Several transports side by side: P99 slowdown and time by class of length.
#[must_use]
pub fn comparison(reports: &[Report]) -> String {
    let mut out = String::new();
    let _ = write!(out, "{:>12} {:>9}", "up to bytes", "messages");
    for report in reports {
        let _ = write!(out, " | {:^27}", report.transport);
    }
    out.push('\n');
    let _ = write!(out, "{:>12} {:>9}", "", "");
    for _ in reports {
        let _ = write!(out, " | {:>7} {:>7} {:>11}", "P50 ×", "P99 ×", "P99 µs");
    }
    out.push('\n');
    let mut ends: Vec<u32> = reports
        .iter()
        .flat_map(|report| report.classes.iter().map(|class| class.max_bytes))
        .collect();
    ends.sort_unstable();
    ends.dedup();
    for end in ends {
        let of = |report: &Report| {
            report
                .classes
                .iter()
                .find(|class| class.max_bytes == end)
                .cloned()
        };
        let count = reports.iter().find_map(of).map_or(0, |class| class.count);
        let _ = write!(out, "{end:>12} {count:>9}");
        for report in reports {
            let _ = match of(report) {
                Some(class) => write!(
                    out,
                    " | {:>7.2} {:>7.2} {:>11.1}",
                    class.p50_slowdown, class.p99_slowdown, class.p99_us
                ),
                None => write!(out, " | {:>27}", "–"),
            };
        }
        out.push('\n');
    }
    let _ = write!(out, "{:>22}", "one packet P99 µs");
    for report in reports {
        let _ = write!(out, " | {:>27.1}", report.one_packet.p99_us);
    }
    out.push('\n');
    let _ = write!(out, "{:>22}", "count-weighted P99 ×");
    for report in reports {
        let _ = write!(
            out,
            " | {:>15.2} {:>11}",
            report.count_weighted_p99_slowdown, ""
        );
    }
    out.push('\n');
    out
}
