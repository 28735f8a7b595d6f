//! What a seed draws.

use std::collections::HashSet;
use std::fmt::Write;

use homa_proto::{Config, Limits};

use super::wide;
use crate::fault::{BurstLoss, Middlebox, NthPacket, PacketFaults, Step};
use crate::network::{Routing, SwitchSettings};
use crate::packet::HostId;
use crate::rng::Rng;
use crate::sim::Software;
use crate::topology::{Buffer, LeafSpine, Topology};
use crate::transport::homa::{Settings, Variety};

pub(super) const MILLI: u64 = 1_000_000;

/// A request to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) at: u64,
    pub(super) from: HostId,
    pub(super) to: HostId,
    pub(super) bytes: u32,
    pub(super) reply_bytes: u32,
    pub(super) service_ns: u64,
    /// What the handler does then.
    pub(super) then: Then,
    /// How long after it was sent the answer is of no use.
    pub(super) deadline_ns: Option<u64>,
    /// How long after it was sent the client gives it up.
    pub(super) cancel_ns: Option<u64>,
}

/// How a handler ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// It answers.
    Answer,
    /// It gives the request up.
    Cancel,
    /// It answers when the client has long stopped waiting.
    AnswerTooLate,
}

/// How much is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Range {
    /// All that can be.
    #[default]
    Wide,
    /// What seeds meant at first: for those that found something then.
    Narrow,
}

/// All that a seed decides.
pub(super) struct Scenario {
    pub(super) topology: Topology,
    pub(super) switches: SwitchSettings,
    pub(super) software: Software,
    pub(super) homa: Settings,
    pub(super) faults: PacketFaults,
    pub(super) steps: Vec<(u64, Step)>,
    pub(super) traffic: Vec<Planned>,
    /// Random faults end here.
    pub(super) heal_at: u64,
    /// Every RPC has ended here.
    pub(super) ended_by: u64,
    /// And all state has gone.
    pub(super) drained_by: u64,
    /// What the widened range adds to the time in which everything ends.
    pub(super) extra_ns: u64,
    /// Headers are damaged in ways that no checksum shows: then contents and outcomes may be anything.
    pub(super) hostile: bool,
}

pub(super) fn sometimes<T>(
    rng: &mut Rng,
    p: f64,
    value: impl FnOnce(&mut Rng) -> T,
    otherwise: T,
) -> T {
    if rng.chance(p) { value(rng) } else { otherwise }
}

/// A number whose logarithm is evenly distributed.
pub(super) fn log_between(rng: &mut Rng, low: u64, high: u64) -> u64 {
    let ratio = high as f64 / low as f64;
    ((low as f64 * ratio.powf(rng.unit())) as u64).clamp(low, high)
}

impl Scenario {
    pub(super) fn new(seed: u64, range: Range) -> Self {
        let rng = &mut Rng::new(seed, 0x0073_6365_6e65);
        let gbps = *rng.pick(&[1, 10, 25, 100]);
        let bps = gbps * 1_000_000_000;
        let topology = if rng.chance(0.7) {
            let hosts = rng.between(2, 6) as usize;
            Topology::single_switch(hosts, bps, rng.below(2000), rng.below(200))
        } else {
            Topology::leaf_spine(LeafSpine {
                racks: rng.between(2, 3) as usize,
                per_rack: rng.between(1, 2) as usize,
                spines: rng.between(1, 3) as usize,
                host_bps: bps,
                uplink_bps: bps * rng.between(1, 4),
                latency_ns: rng.below(1000),
                delay_ns: rng.below(1000),
            })
        };
        let hosts = topology.hosts.len();
        let mtu = *rng.pick(&[576, 1500, 1500, 1500, 9000]);
        let frame = u64::from(mtu) + 42;
        let buffer = match rng.below(3) {
            0 => Buffer::Infinite,
            1 => Buffer::PerPort {
                bytes: frame * rng.between(3, 60),
            },
            _ => Buffer::Shared {
                bytes: frame * rng.between(6, 200),
                alpha: *rng.pick(&[0.25, 0.5, 1.0, 4.0]),
            },
        };
        let levels = *rng.pick(&[1, 2, 4, 8, 8, 8]);
        let switches = SwitchSettings {
            buffer,
            ecn_bytes: None,
            routing: if rng.chance(0.5) {
                Routing::Spray
            } else {
                Routing::Flow
            },
            levels,
        };
        let software = if rng.chance(0.5) {
            Software::default()
        } else {
            Software {
                tx_ns: rng.below(3000),
                rx_ns: rng.below(3000),
                think_ns: rng.below(1000),
                per_packet_ns: rng.below(600),
                wakeup_ns: rng.below(5000),
                wakeup_jitter_ns: rng.below(5000),
                stall_chance: sometimes(rng, 0.3, |rng| rng.unit() * 0.002, 0.0),
                stall_ns: rng.below(5 * MILLI),
            }
        };
        let chaos = rng.below(60) * MILLI + 2 * MILLI;
        let traffic = Self::traffic(rng, hosts, mtu, chaos);
        let homa = Self::homa(rng, &topology, mtu, levels, bps, traffic.len());
        let (faults, hostile) = Self::packet_faults(rng);
        let steps = Self::steps(rng, &topology, chaos);
        let mut steps = steps;
        steps.push((chaos, Step::Heal));
        let mut scenario = Self {
            topology,
            switches,
            software,
            faults,
            steps,
            traffic,
            heal_at: chaos,
            ended_by: 0,
            drained_by: 0,
            extra_ns: 0,
            homa,
            hostile,
        };
        if range == Range::Wide {
            wide::draw(seed, &mut scenario);
        }
        scenario.set_bounds();
        scenario
    }

    /// When everything has to have ended.
    fn set_bounds(&mut self) {
        let speeds = self.topology.hosts.iter().map(|host| host.bps);
        let bps = speeds.min().unwrap_or(1);
        let config = &self.homa.config;
        let bytes: u64 = self
            .traffic
            .iter()
            .map(|planned| u64::from(planned.bytes) + u64::from(planned.reply_bytes))
            .sum();
        // Where slots are few, requests wait for each other.
        let service: u64 = self.traffic.iter().map(|planned| planned.service_ns).sum();
        let transfer = bytes * 8_000_000_000 / bps * 4;
        let patience = 6 * config.timeout_ns + 100 * MILLI;
        self.ended_by = self.heal_at
            + patience
            + 6 * config.resend_ceiling_ns
            + service
            + transfer
            + self.extra_ns;
        self.drained_by = self.ended_by + patience;
    }

    fn length(rng: &mut Rng, mtu: u16) -> u32 {
        let payload = u64::from(mtu) - 76;
        let bytes = match rng.below(8) {
            0 => rng.between(1, 8),
            1..=3 => rng.between(1, 1000),
            4 => payload * rng.between(1, 3) + rng.below(3) - 1,
            5 => log_between(rng, 1, 20_000),
            6 => log_between(rng, 1000, 40_000),
            _ if rng.chance(0.2) => log_between(rng, 10_000, 400_000),
            _ => log_between(rng, 100, 10_000),
        };
        bytes as u32
    }

    fn traffic(rng: &mut Rng, hosts: usize, mtu: u16, chaos: u64) -> Vec<Planned> {
        let count = log_between(rng, 1, 120);
        // Sometimes all at once, sometimes all to one.
        let burst = rng.below(100_000) + 1;
        let spread = sometimes(rng, 0.7, |_| chaos, burst);
        let victim = rng.below(hosts as u64) as HostId;
        let incast = rng.chance(0.2);
        let longest_service = *rng.pick(&[0, 0, 50_000, 5 * MILLI, 40 * MILLI]);
        let mut traffic: Vec<Planned> = (0..count)
            .map(|_| {
                let from = rng.below(hosts as u64) as HostId;
                let other = (from as usize + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
                let (from, to) = match incast {
                    true if from != victim => (victim, from),
                    _ => (from, other as HostId),
                };
                Planned {
                    at: rng.below(spread),
                    from,
                    to,
                    bytes: Self::length(rng, mtu),
                    reply_bytes: Self::length(rng, mtu),
                    service_ns: rng.below(longest_service + 1),
                    then: Then::Answer,
                    deadline_ns: None,
                    cancel_ns: None,
                }
            })
            .collect();
        traffic.sort_by_key(|planned| planned.at);
        traffic
    }

    fn homa(
        rng: &mut Rng,
        topology: &Topology,
        mtu: u16,
        levels: u8,
        bps: u64,
        requests: usize,
    ) -> Settings {
        let timeout_ns = log_between(rng, 5 * MILLI, 80 * MILLI);
        let resend_floor_ns = log_between(rng, 20_000, 2 * MILLI);
        let payload = u64::from(mtu);
        // What is derived from tiny unscheduled bytes is tiny, and takes for ever.
        let max_incoming = sometimes(rng, 0.5, |rng| log_between(rng, payload, 1_000_000), 0);
        let least = if max_incoming > 0 { 1 } else { payload };
        let unscheduled_bytes =
            sometimes(rng, 0.5, |rng| log_between(rng, least, 60_000), 0) as u32;
        let config = Config {
            mtu,
            link_bps: sometimes(rng, 0.8, |_| bps, 0),
            rtt_ns: sometimes(rng, 0.7, |rng| log_between(rng, 2000, 200_000), 0),
            max_message: 1 << 20,
            unscheduled_bytes,
            max_incoming,
            max_overcommit: rng.between(1, 8) as u8,
            window: sometimes(rng, 0.3, |rng| log_between(rng, payload, 100_000) as u32, 0),
            fifo_permille: *rng.pick(&[0, 50, 50, 500, 1000]),
            fifo_grant_increment: log_between(rng, 100, 100_000) as u32,
            levels,
            nic_backlog_ns: sometimes(rng, 0.5, |rng| log_between(rng, 1, 50_000), 0),
            max_batch: 1,
            resend_floor_ns,
            resend_ceiling_ns: resend_floor_ns * rng.between(1, 20),
            reorder_ns: sometimes(rng, 0.5, |rng| log_between(rng, 100, 500_000), 0),
            timeout_ns,
            ack_delay_ns: log_between(rng, 1000, 2 * MILLI),
            need_ack_ns: log_between(rng, 10_000, 5 * MILLI),
            ..Config::default()
        };
        let hosts = topology.hosts.len();
        // Checking is what takes the time: most seeds make up for seldom checks by number.
        let check_every = *rng.pick(&[1, 10, 10, 50, 50, 50]);
        Settings {
            config,
            limits: Limits {
                rpcs: log_between(rng, 4, 256) as usize,
                peers: hosts.max(2),
                // Room for all: with less the window of at-most-once may shrink.
                ended: requests.max(2),
            },
            buffer_bytes: sometimes(rng, 0.4, |rng| log_between(rng, 1 << 20, 4 << 20), 1 << 30)
                as usize,
            contents: true,
            check_every,
            variety: Variety::default(),
        }
    }

    fn packet_faults(rng: &mut Rng) -> (PacketFaults, bool) {
        let p = |rng: &mut Rng| {
            if rng.chance(0.4) {
                log_between(rng, 1, 300) as f64 / 1000.0
            } else {
                0.0
            }
        };
        let hostile = rng.chance(0.1);
        let faults = PacketFaults {
            loss: p(rng),
            spare_below: 0,
            bursts: sometimes(
                rng,
                0.2,
                |rng| {
                    Some(BurstLoss {
                        begin: rng.unit() * 0.02,
                        end: rng.unit() * 0.3 + 0.01,
                        loss: 0.5 + rng.unit() * 0.5,
                    })
                },
                None,
            ),
            duplicate: p(rng),
            delay: p(rng),
            late_ns: log_between(rng, 1000, 10 * MILLI),
            corrupt: p(rng) / 4.0,
            garble: if hostile {
                log_between(rng, 1, 100) as f64 / 1000.0
            } else {
                0.0
            },
            drop_nth: (0..rng.below(6))
                .map(|_| NthPacket {
                    kind: rng.below(10) as u8,
                    nth: log_between(rng, 1, 200) - 1,
                })
                .collect(),
            middlebox: sometimes(
                rng,
                0.1,
                |rng| {
                    Some(Middlebox {
                        packets: rng.between(1, 40) as u32,
                        gap_ns: log_between(rng, 100, 20_000),
                    })
                },
                None,
            ),
        };
        (faults, hostile)
    }

    fn steps(rng: &mut Rng, topology: &Topology, chaos: u64) -> Vec<(u64, Step)> {
        let hosts = topology.hosts.len() as HostId;
        let mut steps = Vec::new();
        if rng.chance(0.3) {
            for _ in 0..rng.between(1, 4) {
                let at = rng.below(chaos);
                if rng.chance(0.5) {
                    // Two hosts, in one direction or both.
                    let a = rng.below(u64::from(hosts)) as HostId;
                    let b = rng.below(u64::from(hosts)) as HostId;
                    steps.push((at, Step::Cut(a, b)));
                    if rng.chance(0.6) {
                        steps.push((at, Step::Cut(b, a)));
                    }
                } else {
                    // One rack, or the first half of the hosts, from all others.
                    let rack = rng.below(topology.switches.len() as u64) as usize;
                    let inside = |host: HostId| {
                        if topology.links.is_empty() {
                            host < hosts / 2
                        } else {
                            topology.hosts[usize::from(host)].switch == rack
                        }
                    };
                    for a in 0..hosts {
                        for b in 0..hosts {
                            if inside(a) != inside(b) {
                                steps.push((at, Step::Cut(a, b)));
                            }
                        }
                    }
                }
                if rng.chance(0.7) {
                    steps.push((at + rng.below(chaos), Step::Mend));
                }
            }
        }
        if rng.chance(0.3) {
            for _ in 0..rng.between(1, 3) {
                let host = rng.below(u64::from(hosts)) as HostId;
                let at = rng.below(chaos);
                let length = log_between(rng, 1000, 100 * MILLI);
                steps.push((at, Step::Pause(host, (at + length).min(chaos))));
            }
        }
        if rng.chance(0.3) {
            let mut crashed = HashSet::new();
            for _ in 0..rng.between(1, 2) {
                let host = rng.below(u64::from(hosts)) as HostId;
                if crashed.insert(host) {
                    let at = rng.below(chaos);
                    let down = log_between(rng, 1000, 50 * MILLI);
                    steps.push((at, Step::Crash(host)));
                    steps.push(((at + down).min(chaos), Step::Restart(host)));
                }
            }
        }
        steps
    }

    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        let _ = write!(
            text,
            "{}; {} requests until {:.1} ms; {:?}; {:?}; {:?}; {:?}, buffers {}; {:?}; {} steps{}",
            self.topology.name,
            self.traffic.len(),
            self.heal_at as f64 / 1e6,
            self.switches.buffer,
            self.faults,
            self.homa.config,
            self.homa.limits,
            self.homa.buffer_bytes,
            self.homa.variety,
            self.steps.len(),
            if self.hostile { "; hostile" } else { "" }
        );
        for (at, step) in self.steps.iter().take(20) {
            let _ = write!(text, "\n  {:.3} ms: {step:?}", *at as f64 / 1e6);
        }
        text
    }
}
