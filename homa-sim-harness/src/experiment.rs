//! An experiment: everything that decides what a run does, from flags or a file, and the run itself.

use std::time::Instant;

use homa_proto::{Config, Limits};
use serde::{Deserialize, Serialize};

use crate::capture::Capture;
use crate::fault::{Faults, PacketFaults, Step};
use crate::ideal::{Ideal, message_wire_bytes};
use crate::network::{Network, Routing, SwitchSettings};
use crate::packet::{ETHERNET_OVERHEAD, HostId};
use crate::report::{Report, Speed};
use crate::rng::Rng;
use crate::sim::{Application, Setup, Simulation, Software};
use crate::topology::{Buffer, LeafSpine, Topology, bps};
use crate::traffic;
use crate::traffic::jobs::{self, JobTraffic};
use crate::traffic::mixed::Mixed;
use crate::traffic::poisson::{self, Answer, Destinations, Poisson};
use crate::traffic::workload::Workload;
use crate::transport::Transport;
use crate::transport::homa::{Homa, Settings as HomaSettings, Variety};
use crate::transport::oracle::Oracle;
use crate::transport::tcp::{Algorithm, Settings as TcpSettings, Tcp, TcpOptions};

/// Time between two lookups of a host, in nanoseconds.
const LOOKUP_INTERVAL_NS: f64 = 10_000.0;
/// The largest block.
const MAX_BLOCK_BYTES: u32 = 16 << 20;
/// Bytes of a request for a block or an entry.
const KEY_BYTES: u32 = 64;

/// What the load of a link counts; answers count like requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadCounts {
    /// All bytes on the wire that messages need as Homa packets: data, headers, framing. SIGCOMM '18 counts so.
    Wire,
    /// Message data only.
    Payload,
}

/// Which traffic there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Messages at random times.
    Poisson,
    /// All other hosts answer the first one at once.
    Incast,
    /// All ranks wait for each other every so often.
    Barrier,
    /// Lookups of 100 B to 4 KB beside transfers of 1 to 16 MB.
    KvCache,
    /// Every rank sends to every other in each step.
    AllToAll,
    /// Ring all-reduce.
    AllReduce,
}

/// Choice of ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ways {
    /// As the transport wants it: Homa per packet, TCP per flow.
    Auto,
    /// Per packet.
    Spray,
    /// Per flow.
    Flow,
}

/// Settings of Homa that experiments vary. 0 or absent: as the core derives them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HomaOptions {
    /// Messages granted at once.
    pub overcommit: u8,
    /// Unscheduled bytes of a message.
    pub unscheduled_bytes: u32,
    /// Bytes granted and not received, over all messages of a host.
    pub max_incoming: u64,
    /// Bytes granted ahead per message.
    pub window: u32,
    /// Smallest grant, in bytes.
    pub min_grant: u32,
    /// Share for the oldest message, per mille.
    pub fifo_permille: u16,
    /// How far ahead of the link packets go to the card, in nanoseconds.
    pub nic_backlog_ns: u64,
    /// Silence before a RESEND, in microseconds.
    pub resend_floor_us: u64,
    /// How long a gap may be mere reordering, in nanoseconds.
    pub reorder_ns: u64,
    /// RPC slots of a host.
    pub rpcs: usize,
    /// Where the cutoffs of unscheduled priorities come from.
    pub cutoffs: Cutoffs,
    /// Tell the core a link speed 1 % above the true one: it takes 1 % off to be on the safe side, which a simulated
    /// card does not need.
    pub exact_pacing: bool,
}

/// Where the cutoffs of unscheduled priorities come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cutoffs {
    /// Each receiver finds them from its traffic, as it does in production.
    Learned,
    /// They are computed from the workload beforehand, as in the simulations of SIGCOMM '18.
    FromWorkload,
    /// They are what receivers come to find from this traffic, from the start: after some thousand messages for each host.
    Converged,
}

impl Cutoffs {
    /// The fewest unscheduled levels of `levels`, and the most bytes of a message that count: full packets in the core.
    fn rule(self, levels: usize) -> (usize, f64) {
        match self {
            Self::Converged => ((levels / 2).max(1), 4.0 * 1542.0),
            _ => (1, f64::INFINITY),
        }
    }
}

/// The cutoffs for a workload: unscheduled levels in proportion to unscheduled bytes, at least one of each kind, and the same
/// number of unscheduled bytes in each (SIGCOMM '18, section 3.4), or as the core changes that rule. Bytes on the wire,
/// headers included: they take the time.
fn cutoffs_for(
    cutoffs: Cutoffs,
    workload: &Workload,
    levels: u8,
    unscheduled_bytes: u32,
    mtu: u32,
) -> [u32; 8] {
    let bytes_of = |bytes: u32| message_wire_bytes(bytes.min(unscheduled_bytes), mtu) as f64;
    let share = workload.average(bytes_of)
        / workload.average(|bytes| message_wire_bytes(bytes, mtu) as f64);
    let levels = usize::from(levels);
    let (least, most) = cutoffs.rule(levels);
    let count = (share * levels as f64).round() as usize;
    let count = count.clamp(least, (levels - 1).max(least));
    let unscheduled = |bytes: u32| bytes_of(bytes).min(most);
    let sum = workload.average(unscheduled);
    let lowest = levels - count;
    let mut cutoffs = [0; 8];
    let (mut level, mut upto) = (levels - 1, 0.0);
    for (bytes, part) in workload.shares() {
        upto += part * unscheduled(bytes);
        while level > lowest && upto >= sum / count as f64 * (levels - level) as f64 {
            cutoffs[level] = bytes;
            level -= 1;
        }
    }
    cutoffs[level] = i32::MAX as u32;
    cutoffs
}

impl Default for HomaOptions {
    fn default() -> Self {
        Self {
            overcommit: 8,
            unscheduled_bytes: 0,
            max_incoming: 0,
            window: 0,
            min_grant: 0,
            fifo_permille: 50,
            nic_backlog_ns: 1,
            resend_floor_us: 1000,
            reorder_ns: 0,
            rpcs: 2048,
            cutoffs: Cutoffs::Learned,
            exact_pacing: false,
        }
    }
}

/// Settings of the traffic patterns that are jobs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct JobOptions {
    /// Bytes: of an answer (incast), of one expert's share (all-to-all), of the whole vector (all-reduce).
    pub bytes: u32,
    /// Computation between two steps, in microseconds.
    pub compute_us: u64,
    /// Steps.
    pub steps: u32,
    /// Answers at once (incast); 0: one of each other host.
    pub fan_in: u32,
    /// Beside it goes the traffic of the workload at the given load.
    pub background: bool,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            bytes: 40_000,
            compute_us: 100,
            steps: 20,
            fan_in: 0,
            background: false,
        }
    }
}

/// Everything that decides what a run does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// `single-switch`, `leaf-spine`, or the path of a TOML file.
    pub topology: String,
    /// Hosts of a single switch.
    pub hosts: usize,
    /// Speed of host links, Gb/s.
    pub gbps: f64,
    /// Racks of a leaf–spine network.
    pub racks: usize,
    /// Hosts of a rack.
    pub per_rack: usize,
    /// Spine switches.
    pub spines: usize,
    /// Speed of links between switches, Gb/s.
    pub uplink_gbps: f64,
    /// Latency of a switch, in nanoseconds.
    pub switch_ns: u64,
    /// Propagation delay of a cable, in nanoseconds.
    pub cable_ns: u64,
    /// Packet memory of a switch.
    pub buffer: Buffer,
    /// Bytes in a queue above which packets are marked; absent: derived from the link speed.
    pub ecn_bytes: Option<u64>,
    /// Priority levels of the network.
    pub levels: u8,
    /// Choice among several ways.
    pub ways: Ways,
    /// Largest IP packet.
    pub mtu: u16,
    /// Cost of host software.
    pub software: Software,
    /// Traffic.
    pub pattern: Pattern,
    /// `w1` to `w5`, or a number of bytes.
    pub workload: String,
    /// Messages are cut to this length; 0: not.
    pub cap: u32,
    /// Share of the host links' bandwidth.
    pub load: f64,
    /// What of it counts.
    pub load_counts: LoadCounts,
    /// `none`, `echo`, or a number of bytes.
    pub reply: String,
    /// Share of messages that go to the first tenth of the hosts on top of their own; 0: uniform.
    pub skew: f64,
    /// Simulated time of measurement, in milliseconds.
    pub millis: f64,
    /// Time before it, as a share of it.
    pub warmup: f64,
    /// How long after the last arrival unfinished messages are waited for, in milliseconds.
    pub drain_millis: f64,
    /// Jobs.
    pub job: JobOptions,
    /// Homa.
    pub homa: HomaOptions,
    /// TCP.
    pub tcp: TcpOptions,
    /// Faults that packets suffer.
    pub faults: PacketFaults,
    /// A host does nothing for `pause_ms`, at random times, on average so many milliseconds apart; 0: never.
    pub pause_every_ms: f64,
    /// The length of such a pause, in milliseconds.
    pub pause_ms: f64,
    /// Fixes everything random.
    pub seed: u64,
}

impl Default for Experiment {
    fn default() -> Self {
        Self {
            topology: "single-switch".into(),
            hosts: 16,
            gbps: 25.0,
            racks: 9,
            per_rack: 16,
            spines: 4,
            uplink_gbps: 40.0,
            switch_ns: 400,
            cable_ns: 20,
            buffer: Buffer::Shared {
                bytes: 16 << 20,
                alpha: 1.0,
            },
            ecn_bytes: None,
            levels: 8,
            ways: Ways::Auto,
            mtu: 1500,
            software: Software {
                tx_ns: 1000,
                rx_ns: 1000,
                ..Software::default()
            },
            pattern: Pattern::Poisson,
            workload: "w4".into(),
            cap: 0,
            load: 0.8,
            load_counts: LoadCounts::Wire,
            reply: "none".into(),
            skew: 0.0,
            millis: 20.0,
            warmup: 0.1,
            drain_millis: 1000.0,
            job: JobOptions::default(),
            homa: HomaOptions::default(),
            tcp: TcpOptions::default(),
            faults: PacketFaults::default(),
            pause_every_ms: 0.0,
            pause_ms: 0.0,
            seed: 1,
        }
    }
}

/// The names that [`Experiment::preset`] knows.
pub const PRESETS: [&str; 2] = ["sigcomm18", "atc21"];

/// The names of transports.
pub const TRANSPORTS: [&str; 5] = ["homa", "newreno", "cubic", "dctcp", "oracle"];

impl Experiment {
    /// A published set-up.
    ///
    /// `sigcomm18`: the simulations of the SIGCOMM '18 paper (144 hosts in 9 racks, 10 and 40 Gb/s, 250 ns a
    /// switch, spraying, no drops, one-way messages, load counted on the wire). Of the 1.5 µs that a host takes, 0.5 µs
    /// are software at each end of a message and 0.5 µs the sending card; the simulator of the paper counts all three
    /// into a message's time and into its best possible time.
    /// `atc21`: the cluster of the ATC '21 paper (40 hosts, 25 Gb/s, one switch; messages capped at 1 MB and echoed, load
    /// counted in message data each way, software such that a 100-byte RPC takes 15.1 µs).
    ///
    /// # Errors
    /// One line that lists what there is.
    pub fn preset(name: &str) -> Result<Self, String> {
        match name {
            "sigcomm18" => Ok(Self {
                topology: "leaf-spine".into(),
                gbps: 10.0,
                switch_ns: 250,
                cable_ns: 0,
                buffer: Buffer::Infinite,
                software: Software {
                    tx_ns: 1000,
                    rx_ns: 500,
                    ..Software::default()
                },
                homa: HomaOptions {
                    // One round trip's bytes for each of the active messages and no limit beside it; no share for
                    // the oldest; priorities from the known workload.
                    window: 9_700,
                    max_incoming: 1 << 30,
                    fifo_permille: 0,
                    cutoffs: Cutoffs::FromWorkload,
                    exact_pacing: true,
                    ..HomaOptions::default()
                },
                ..Self::default()
            }),
            "atc21" => Ok(Self {
                hosts: 40,
                software: Software {
                    tx_ns: 3200,
                    rx_ns: 3500,
                    think_ns: 540,
                    ..Software::default()
                },
                homa: HomaOptions {
                    // The cluster had run for long.
                    cutoffs: Cutoffs::Converged,
                    // Each grant takes 84 bytes on the wire.
                    min_grant: 10_000,
                    ..HomaOptions::default()
                },
                cap: 1_000_000,
                reply: "echo".into(),
                load_counts: LoadCounts::Payload,
                ..Self::default()
            }),
            _ => Err(format!(
                "no preset is called '{name}' (there are {})",
                PRESETS.join(", ")
            )),
        }
    }

    /// Reads an experiment from TOML; what is absent is as in the preset or default.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text)
            .map_err(|error| format!("experiment file: {}", one_line(error.message())))
    }

    /// Whether every value is possible.
    ///
    /// # Errors
    /// One line that names the first that is not.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("{name} is {value}, but must be {low} to {high}"))
            }
        };
        within("load", self.load, 0.001, 2.0)?;
        within("skew", self.skew, 0.0, 1.0)?;
        within("millis", self.millis, 0.001, 1e6)?;
        within("warmup", self.warmup, 0.0, 100.0)?;
        within("pause-every-ms", self.pause_every_ms, 0.0, 1e6)?;
        within("pause-ms", self.pause_ms, 0.0, 1e6)?;
        within("drain-millis", self.drain_millis, 0.0, 1e7)?;
        within("levels", f64::from(self.levels), 1.0, 8.0)?;
        within("mtu", f64::from(self.mtu), 256.0, 9000.0)?;
        within("stall-chance", self.software.stall_chance, 0.0, 1.0)?;
        within("steps", f64::from(self.job.steps), 1.0, 60_000.0)?;
        within("fan-in", f64::from(self.job.fan_in), 0.0, 1e6)?;
        within("bytes", f64::from(self.job.bytes), 1.0, 2e9)?;
        within("overcommit", f64::from(self.homa.overcommit), 1.0, 32.0)?;
        within(
            "fifo-permille",
            f64::from(self.homa.fifo_permille),
            0.0,
            1000.0,
        )?;
        within(
            "initial-window",
            f64::from(self.tcp.initial_window),
            1.0,
            10_000.0,
        )?;
        within("connections", f64::from(self.tcp.connections), 1.0, 64.0)?;
        within("rto-min-us", self.tcp.rto_min_us as f64, 1.0, 1e7)?;
        match self.buffer {
            Buffer::Infinite => {}
            Buffer::PerPort { bytes } => within("buffer", bytes as f64, 2000.0, 1e12)?,
            Buffer::Shared { bytes, alpha } => {
                within("buffer", bytes as f64, 2000.0, 1e12)?;
                within("alpha", alpha, 0.001, 1e6)?;
            }
        }
        self.faults.check()?;
        self.workload()?;
        self.answer()?;
        self.build_topology()?;
        Ok(())
    }

    fn workload(&self) -> Result<Workload, String> {
        let workload = match self.workload.parse::<u32>() {
            Ok(bytes) => Workload::fixed(bytes)?,
            Err(_) => Workload::named(&self.workload)?,
        };
        Ok(match self.cap {
            0 => workload,
            cap => workload.capped(cap),
        })
    }

    fn answer(&self) -> Result<Answer, String> {
        match self.reply.as_str() {
            "none" => Ok(Answer::None),
            "echo" => Ok(Answer::Echo),
            number => match number.parse() {
                Ok(bytes) if bytes > 0 => Ok(Answer::Bytes(bytes)),
                _ => Err(format!(
                    "reply is '{number}', but must be none, echo or a number of bytes"
                )),
            },
        }
    }

    /// The topology.
    ///
    /// # Errors
    /// One line when it is unknown, unreadable or impossible.
    pub fn build_topology(&self) -> Result<Topology, String> {
        let topology = match self.topology.as_str() {
            "single-switch" => {
                if self.hosts > crate::topology::MAX_NODES {
                    return Err(format!("{} hosts are too many", self.hosts));
                }
                Topology::single_switch(self.hosts, bps(self.gbps)?, self.switch_ns, self.cable_ns)
            }
            "leaf-spine" => {
                let most = crate::topology::MAX_NODES;
                if self.racks.saturating_mul(self.per_rack) > most
                    || self.racks.saturating_add(self.spines) > most
                {
                    return Err("too many hosts or switches".into());
                }
                Topology::leaf_spine(LeafSpine {
                    racks: self.racks,
                    per_rack: self.per_rack,
                    spines: self.spines,
                    host_bps: bps(self.gbps)?,
                    uplink_bps: bps(self.uplink_gbps)?,
                    latency_ns: self.switch_ns,
                    delay_ns: self.cable_ns,
                })
            }
            path if path.ends_with(".toml") => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("topology file {path}: {error}"))?;
                Topology::from_toml(&text)?
            }
            name => {
                return Err(format!(
                    "no topology is called '{name}' (there are single-switch, leaf-spine, and TOML files)"
                ));
            }
        };
        topology.check()?;
        Ok(topology)
    }

    /// The traffic in a few words.
    #[must_use]
    pub fn describe_traffic(&self) -> String {
        let cap = match self.cap {
            0 => String::new(),
            cap => format!(" up to {cap} B"),
        };
        match self.pattern {
            Pattern::Poisson => match self.reply.as_str() {
                "none" => format!("{}{cap}, one-way", self.workload),
                reply => format!("{}{cap}, reply {reply}", self.workload),
            },
            pattern => format!("{pattern:?}"),
        }
    }

    /// The threshold of marking: what is set, or 20 full packets at 10 Gb/s and in proportion at other speeds, but no fewer
    /// than 10.
    pub(crate) fn ecn_threshold(&self) -> u64 {
        let packet = u64::from(self.mtu) + u64::from(ETHERNET_OVERHEAD);
        self.ecn_bytes
            .unwrap_or_else(|| packet * ((self.gbps * 2.0) as u64).max(10))
    }

    /// The round trip of a full data packet and the grant for the next one, in nanoseconds: the time after which granted data can follow
    /// unscheduled data.
    #[must_use]
    pub fn round_trip_ns(&self, topology: &Topology) -> u64 {
        let mut ideal = Ideal::new(topology.clone(), self.software, u32::from(self.mtu));
        let far = topology.hosts.len() as HostId - 1;
        let payload = u32::from(self.mtu) - crate::ideal::HEADER_BYTES;
        let both = ideal.one_way_ns(0, far, payload) + ideal.one_way_ns(far, 0, 1);
        both as u64 + 2 * self.software.think_ns
    }

    /// The settings of a transport that matter most, in a few words.
    #[must_use]
    pub fn describe_settings(&self, transport: &str) -> String {
        let tcp = &self.tcp;
        let shared = format!(
            "{} connections a pair, timeout at least {} µs",
            tcp.connections, tcp.rto_min_us
        );
        match transport {
            "homa" => format!("overcommitment {}", self.homa.overcommit),
            "dctcp" => format!("{shared}, marks above {} B", self.ecn_threshold()),
            "cubic" | "newreno" => shared,
            _ => String::new(),
        }
    }

    /// Runs it with one transport. `progress` is called now and then with simulated nanoseconds, and events so far.
    ///
    /// # Errors
    /// One line when a value is impossible, or the capture cannot be written.
    pub fn run(&self, transport: &str, watch: &mut Watch<'_>) -> Result<Report, String> {
        self.check()?;
        let topology = self.build_topology()?;
        let hosts = topology.hosts.len();
        let tcp = |algorithm| {
            let settings = TcpSettings {
                algorithm,
                mtu: u32::from(self.mtu),
                initial_window: self.tcp.initial_window,
                rto_min_ns: self.tcp.rto_min_us * 1000,
                ack_delay_ns: self.tcp.ack_delay_us * 1000,
                connections: self.tcp.connections,
            };
            Tcp::new(settings, hosts)
        };
        match transport {
            "homa" => self.run_with(&topology, self.homa(&topology)?, watch),
            "oracle" => {
                let ideal = Ideal::new(topology.clone(), self.software, u32::from(self.mtu));
                let oracle = Oracle::new(&topology, ideal, u32::from(self.mtu));
                self.run_with(&topology, oracle, watch)
            }
            "newreno" => self.run_with(&topology, tcp(Algorithm::NewReno), watch),
            "cubic" => self.run_with(&topology, tcp(Algorithm::Cubic), watch),
            "dctcp" => self.run_with(&topology, tcp(Algorithm::Dctcp), watch),
            _ => Err(format!(
                "no transport is called '{transport}' (there are {})",
                TRANSPORTS.join(", ")
            )),
        }
    }

    fn homa(&self, topology: &Topology) -> Result<Homa, String> {
        let options = &self.homa;
        let longest = match self.pattern {
            Pattern::KvCache => MAX_BLOCK_BYTES,
            Pattern::Poisson => self.workload()?.max().max(self.reply.parse().unwrap_or(0)),
            _ => self.workload()?.max().max(self.job.bytes),
        };
        let longest = longest.max(1 << 20);
        let rtt_ns = self.round_trip_ns(topology);
        let slowest = topology
            .hosts
            .iter()
            .map(|host| host.bps)
            .min()
            .unwrap_or(1);
        let unscheduled_bytes = match options.unscheduled_bytes {
            0 => (slowest as f64 * rtt_ns as f64 / 8e9) as u32,
            set => set,
        };
        let fixed_cutoffs = match options.cutoffs {
            Cutoffs::Learned => None,
            known => Some(cutoffs_for(
                known,
                &self.workload()?,
                self.levels,
                unscheduled_bytes,
                u32::from(self.mtu),
            )),
        };
        let config = Config {
            mtu: self.mtu,
            rtt_ns,
            fixed_cutoffs,
            max_message: longest,
            unscheduled_bytes: options.unscheduled_bytes,
            max_incoming: options.max_incoming,
            max_overcommit: options.overcommit,
            window: options.window,
            // One-way messages are not answered: nothing is ever heard of them.
            max_unheard: if self.reply == "none" { u64::MAX } else { 0 },
            min_grant: options.min_grant,
            fifo_permille: options.fifo_permille,
            levels: self.levels,
            nic_backlog_ns: options.nic_backlog_ns,
            max_batch: 1,
            resend_floor_ns: options.resend_floor_us * 1000,
            reorder_ns: options.reorder_ns,
            ..Config::default()
        };
        let settings = HomaSettings {
            config,
            limits: Limits {
                rpcs: options.rpcs,
                // Half of it is for strangers, which all hosts are at first.
                peers: 2 * topology.hosts.len(),
                ended: 4096,
            },
            buffer_bytes: 1 << 40,
            contents: false,
            check_every: 0,
            variety: Variety::default(),
        };
        let told = |bps: u64| {
            if options.exact_pacing {
                bps / 100 * 101
            } else {
                bps
            }
        };
        let bps = topology.hosts.iter().map(|host| told(host.bps)).collect();
        Homa::new(settings, bps, self.seed)
    }

    fn run_with<T: Transport>(
        &self,
        topology: &Topology,
        transport: T,
        watch: &mut Watch<'_>,
    ) -> Result<Report, String> {
        let ideal = Ideal::new(topology.clone(), self.software, u32::from(self.mtu));
        let hosts = topology.hosts.len();
        let new_ideal = || Ideal::new(topology.clone(), self.software, u32::from(self.mtu));
        let poisson = |settings, seed| Poisson::new(settings, hosts, new_ideal(), seed);
        let kind = match self.pattern {
            Pattern::Poisson => {
                let app = poisson(self.poisson(topology)?, self.seed);
                return self.simulate(topology, transport, app, watch);
            }
            Pattern::KvCache => {
                let blocks = poisson::Settings {
                    workload: Workload::log_uniform("blocks", 1 << 20, MAX_BLOCK_BYTES),
                    ..self.poisson(topology)?
                };
                let blocks = self.at_load(topology, blocks);
                let lookups = poisson::Settings {
                    workload: Workload::log_uniform("lookups", 100, 4096),
                    interval_ns: LOOKUP_INTERVAL_NS,
                    ..blocks.clone()
                };
                let app = Mixed::new(
                    poisson(lookups, self.seed),
                    poisson(blocks, self.seed.wrapping_add(1 << 32)),
                );
                return self.simulate(topology, transport, app, watch);
            }
            Pattern::Incast => jobs::Kind::Incast,
            Pattern::Barrier => jobs::Kind::Barrier,
            Pattern::AllToAll => jobs::Kind::AllToAll,
            Pattern::AllReduce => jobs::Kind::AllReduce,
        };
        let job = jobs::Settings {
            kind,
            bytes: self.job.bytes,
            compute_ns: self.job.compute_us * 1000,
            steps: self.job.steps,
            fan_in: match self.job.fan_in {
                0 => hosts as u32 - 1,
                fan_in => fan_in,
            },
        };
        let job = JobTraffic::new(job, hosts, ideal);
        if self.job.background {
            let background = poisson(
                poisson::Settings {
                    measure_until: 0,
                    stop: u64::MAX,
                    ..self.poisson(topology)?
                },
                self.seed,
            );
            return self.simulate(topology, transport, Mixed::new(job, background), watch);
        }
        self.simulate(topology, transport, job, watch)
    }

    /// The same traffic at the load that is asked for, answers only.
    fn at_load(&self, topology: &Topology, settings: poisson::Settings) -> poisson::Settings {
        let slowest = topology
            .hosts
            .iter()
            .map(|host| host.bps)
            .min()
            .unwrap_or(1);
        let mtu = u32::from(self.mtu);
        let bytes = settings
            .workload
            .average(|bytes| message_wire_bytes(bytes, mtu) as f64);
        poisson::Settings {
            interval_ns: bytes * 8e9 / (slowest as f64 * self.load),
            answer: Answer::Drawn(KEY_BYTES),
            ..settings
        }
    }

    fn poisson(&self, topology: &Topology) -> Result<poisson::Settings, String> {
        let workload = self.workload()?;
        let mtu = u32::from(self.mtu);
        let answer = self.answer()?;
        let counted = |bytes: u32| match self.load_counts {
            LoadCounts::Wire => message_wire_bytes(bytes, mtu) as f64,
            LoadCounts::Payload => f64::from(bytes),
        };
        // Requests and answers take the same links.
        let bytes = workload.average(|bytes| {
            counted(bytes)
                + match answer {
                    Answer::None => 0.0,
                    Answer::Echo => counted(bytes),
                    Answer::Bytes(reply) => counted(reply),
                    Answer::Drawn(request) => counted(request),
                }
        });
        let slowest = topology
            .hosts
            .iter()
            .map(|host| host.bps)
            .min()
            .unwrap_or(1);
        let measured = self.millis * 1e6;
        let from = measured * self.warmup;
        Ok(poisson::Settings {
            interval_ns: bytes * 8e9 / (slowest as f64 * self.load),
            workload,
            answer,
            destinations: if self.skew > 0.0 {
                Destinations::Skewed(self.skew)
            } else {
                Destinations::Uniform
            },
            measure_from: from as u64,
            measure_until: (from + measured) as u64,
            // The last messages that count meet the same load as the others.
            stop: (from + measured * 1.1) as u64,
            link_bps: slowest,
            mtu,
        })
    }

    /// When hosts pause.
    fn pauses(&self, hosts: usize, until: u64) -> Vec<(u64, Step)> {
        let mut steps = Vec::new();
        if self.pause_every_ms <= 0.0 {
            return steps;
        }
        let mut rng = Rng::new(self.seed, 0x0070_6175_7365);
        for host in 0..hosts as HostId {
            let mut at = 0;
            loop {
                at += rng.exponential(self.pause_every_ms * 1e6) as u64;
                if at >= until {
                    break;
                }
                let end = at + (self.pause_ms * 1e6) as u64;
                steps.push((at, Step::Pause(host, end)));
                at = end;
            }
        }
        steps
    }

    fn simulate<T: Transport, A: Application + traffic::Report>(
        &self,
        topology: &Topology,
        transport: T,
        app: A,
        watch: &mut Watch<'_>,
    ) -> Result<Report, String> {
        let hosts = topology.hosts.len();
        let sprays = match self.ways {
            Ways::Auto => transport.sprays(),
            Ways::Spray => true,
            Ways::Flow => false,
        };
        let settings = SwitchSettings {
            buffer: self.buffer,
            ecn_bytes: Some(self.ecn_threshold()),
            routing: if sprays {
                Routing::Spray
            } else {
                Routing::Flow
            },
            levels: self.levels,
        };
        let latency = self.software.rx_ns + self.software.think_ns;
        let network = Network::new(topology, settings, latency, self.seed);
        let ends_at = app.ends_at();
        let steps = self.pauses(hosts, ends_at.unwrap_or(0));
        let faults = Faults::new(self.faults.clone(), steps, hosts, self.seed);
        let setup = Setup {
            software: self.software,
            seed: self.seed,
            keep_ids: false,
        };
        let mut sim = Simulation::new(network, transport, app, faults, setup);
        if let Some((host, path)) = &watch.capture {
            if usize::from(*host) >= hosts {
                return Err(format!("there is no host {host} to capture"));
            }
            let told = |error: std::io::Error| format!("capture file {}: {error}", path.display());
            let file = std::fs::File::create(path).map_err(told)?;
            let out = Box::new(std::io::BufWriter::new(file));
            sim.capture = Some(Capture::new(*host, out).map_err(told)?);
        }
        let drain = (self.drain_millis * 1e6) as u64;
        let end = ends_at.map_or(drain, |at| at.saturating_add(drain));
        let begun = Instant::now();
        // Bytes begun and arrived, at the middle and at the end of the time in which messages begin.
        let mut books = Vec::new();
        let mut marks = ends_at.map_or(vec![], |at| vec![at, at / 2]);
        let (mut more, mut shown) = (true, 0);
        while more && !(marks.is_empty() && sim.app.finished()) {
            // Little by little: what follows the end of interest would count as idle time.
            more = sim.run(marks.last().copied().unwrap_or(end), 100);
            if !more && marks.pop().is_some() {
                let at = ends_at.map_or(0, |at| if marks.is_empty() { at } else { at / 2 });
                books.push(Book {
                    begun: sim.app.totals().begun_bytes,
                    arrived: sim.network.data_arrived(),
                    unavoidable: sim.app.unavoidable(at),
                });
                more = true;
            }
            if sim.processed() >= shown + 100_000 {
                shown = sim.processed();
                (watch.progress)(sim.now(), shown);
            }
        }
        let shares = match &books[..] {
            [middle, end] if end.begun > middle.begun => middle.shares_until(end),
            _ => (0.0, 0.0),
        };
        let speed = Speed::new(begun.elapsed(), sim.processed(), sim.network.hops());
        if let Some(capture) = sim.capture.take() {
            capture
                .finish()
                .map_err(|error| format!("capture file: {error}"))?;
        }
        sim.app.finish();
        Ok(Report::new(self, topology, &sim, speed, shares))
    }
}

/// Bytes so far.
struct Book {
    begun: u64,
    arrived: u64,
    /// On the wire: begun, and what no transport could have carried yet.
    unavoidable: (f64, f64),
}

impl Book {
    /// Of the bytes begun between the two, the shares that arrived and that could have arrived.
    fn shares_until(&self, end: &Self) -> (f64, f64) {
        let arrived = (end.arrived - self.arrived) as f64 / (end.begun - self.begun) as f64;
        let begun = end.unavoidable.0 - self.unavoidable.0;
        let waiting = end.unavoidable.1 - self.unavoidable.1;
        let possible = if begun > 0.0 {
            1.0 - waiting / begun
        } else {
            1.0
        };
        (arrived, possible)
    }
}

/// What a run tells while it goes on, and writes beside its report.
pub struct Watch<'a> {
    /// Called now and then with simulated nanoseconds, and events so far.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Whose packets to capture, and the file to write them to.
    pub capture: Option<(HostId, std::path::PathBuf)>,
}

/// Only the first line of a message.
pub(crate) fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutoffs_share_the_unscheduled_bytes_out_evenly() {
        for name in ["w1", "w2", "w3", "w4", "w5"] {
            let workload = Workload::named(name).unwrap();
            let cutoffs = cutoffs_for(Cutoffs::FromWorkload, &workload, 8, 10_000, 1500);
            let level = |bytes| (0..8).rev().find(|&level| cutoffs[level] >= bytes).unwrap();
            let mut bytes = [0.0; 8];
            for (length, share) in workload.shares() {
                bytes[level(length)] += share * message_wire_bytes(length.min(10_000), 1500) as f64;
            }
            let used: Vec<f64> = bytes.into_iter().filter(|b| *b > 0.0).collect();
            let mean = used.iter().sum::<f64>() / used.len() as f64;
            // One length can hold much of a level.
            assert!(
                used.iter().all(|b| *b < mean * 1.6 && *b > mean * 0.4),
                "{name}: {used:?}"
            );
            assert_eq!(bytes[0], 0.0, "{name}: level 0 is for scheduled data");
        }
    }

    #[test]
    fn the_round_trip_of_sigcomm18_is_the_published_one() {
        let experiment = Experiment::preset("sigcomm18").unwrap();
        let topology = experiment.build_topology().unwrap();
        let rtt = experiment.round_trip_ns(&topology);
        // 7.75 µs there, with slightly smaller headers.
        assert!((7_700..7_900).contains(&rtt), "{rtt}");
    }

    #[test]
    fn an_rpc_of_atc21_takes_the_published_time() {
        let experiment = Experiment::preset("atc21").unwrap();
        let topology = experiment.build_topology().unwrap();
        let mut ideal = Ideal::new(topology, experiment.software, 1500);
        let time = ideal.round_trip_ns(0, 1, 100, 100);
        assert!((15_000.0..15_200.0).contains(&time), "{time}");
    }
}
