//! Fault simulation: each seed draws a network, a configuration, traffic and a schedule of faults, and the real core has to
//! come through.
//!
//! Phase one injects faults and checks safety after everything that happens: the handler runs at most once per request
//! (unless the server has restarted in between), no byte is wrong, every RPC has exactly one outcome, all books of the core
//! agree with their recomputation, tables stay within their limits, and time-outs lie in the future. Phase two heals the
//! network and demands that every live RPC ends within a bound, and that all state then drains to nothing. The manner is that of
//! TigerBeetle's VOPR.

use std::collections::HashSet;
use std::fmt::Write;

use homa_proto::{Config, Limits};

use crate::fault::{BurstLoss, Faults, Middlebox, NthPacket, PacketFaults, Step};
use crate::network::{Network, Routing, SwitchSettings};
use crate::packet::HostId;
use crate::rng::Rng;
use crate::sim::{Application, Outbox, Setup, Simulation, Software};
use crate::topology::{Buffer, LeafSpine, Topology};
use crate::transport::homa::{Homa, Settings};
use crate::transport::{Delivery, Message, MessageId, Outcome};

const MILLI: u64 = 1_000_000;

/// A request to come.
#[derive(Clone, Copy, Debug)]
struct Planned {
    at: u64,
    from: HostId,
    to: HostId,
    bytes: u32,
    reply_bytes: u32,
    service_ns: u64,
}

/// All that a seed decides.
struct Scenario {
    topology: Topology,
    switches: SwitchSettings,
    software: Software,
    homa: Settings,
    faults: PacketFaults,
    steps: Vec<(u64, Step)>,
    traffic: Vec<Planned>,
    /// Random faults end here.
    heal_at: u64,
    /// Every RPC has ended here.
    ended_by: u64,
    /// And all state has gone.
    drained_by: u64,
    /// Headers are damaged in ways that no checksum shows: then contents and outcomes may be anything.
    hostile: bool,
}

fn sometimes<T>(rng: &mut Rng, p: f64, value: impl FnOnce(&mut Rng) -> T, otherwise: T) -> T {
    if rng.chance(p) { value(rng) } else { otherwise }
}

/// A number whose logarithm is evenly distributed.
fn log_between(rng: &mut Rng, low: u64, high: u64) -> u64 {
    let ratio = high as f64 / low as f64;
    ((low as f64 * ratio.powf(rng.unit())) as u64).clamp(low, high)
}

impl Scenario {
    fn new(seed: u64) -> Self {
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
        let config = &homa.config;
        let bytes: u64 = traffic
            .iter()
            .map(|planned| u64::from(planned.bytes) + u64::from(planned.reply_bytes))
            .sum();
        // Where slots are few, requests wait for each other.
        let service: u64 = traffic.iter().map(|planned| planned.service_ns).sum();
        let transfer = bytes * 8_000_000_000 / bps * 4;
        let ended_by = chaos
            + 6 * config.timeout_ns
            + 6 * config.resend_ceiling_ns
            + service
            + transfer
            + 100 * MILLI;
        let mut steps = steps;
        steps.push((chaos, Step::Heal));
        Self {
            topology,
            switches,
            software,
            faults,
            steps,
            traffic,
            heal_at: chaos,
            drained_by: ended_by + 6 * config.timeout_ns + 100 * MILLI,
            ended_by,
            homa,
            hostile,
        }
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

    fn describe(&self) -> String {
        let mut text = String::new();
        let _ = write!(
            text,
            "{}; {} requests until {:.1} ms; {:?}; {:?}; {:?}; rpcs {}, buffers {}; {} steps{}",
            self.topology.name,
            self.traffic.len(),
            self.heal_at as f64 / 1e6,
            self.switches.buffer,
            self.faults,
            self.homa.config,
            self.homa.limits.rpcs,
            self.homa.buffer_bytes,
            self.steps.len(),
            if self.hostile { "; hostile" } else { "" }
        );
        for (at, step) in self.steps.iter().take(20) {
            let _ = write!(text, "\n  {:.3} ms: {step:?}", *at as f64 / 1e6);
        }
        text
    }
}

#[derive(Clone, Copy, Default)]
struct Rpc {
    sent: bool,
    /// Life of the server in which the handler ran.
    handled_in: Option<u32>,
    ended: bool,
    /// Its client has crashed: nobody waits.
    orphaned: bool,
}

/// Sends what is planned, answers, and watches.
struct Watcher {
    traffic: Vec<Planned>,
    rpcs: Vec<Rpc>,
    /// Indices of what was sent: the n-th message is number n.
    sent_order: Vec<u32>,
    lives: Vec<u32>,
    up: Vec<bool>,
    hostile: bool,
    violation: Option<String>,
    replied: u64,
    failed: u64,
}

/// Tokens from here on are answers that are due.
const ANSWERS: u32 = 1 << 24;

impl Watcher {
    fn violated(&mut self, what: String) {
        if !self.hostile {
            self.violation.get_or_insert(what);
        }
    }

    fn message_id(&self, index: usize) -> MessageId {
        let at = self
            .sent_order
            .iter()
            .position(|&token| token as usize == index);
        at.unwrap_or(0) as MessageId
    }

    fn open(&self) -> usize {
        self.rpcs
            .iter()
            .filter(|rpc| rpc.sent && !rpc.ended && !rpc.orphaned)
            .count()
    }
}

impl Application for Watcher {
    fn start(&mut self, out: &mut Outbox) {
        for (token, planned) in self.traffic.iter().enumerate() {
            out.wake(planned.at, token as u32);
        }
    }

    fn wake(&mut self, now: u64, token: u32, out: &mut Outbox) {
        if token >= ANSWERS {
            let index = (token - ANSWERS) as usize;
            let server = usize::from(self.traffic[index].to);
            if self.rpcs[index].handled_in == Some(self.lives[server]) && self.up[server] {
                out.reply(self.message_id(index));
            }
            return;
        }
        let index = token as usize;
        let planned = self.traffic[index];
        if !self.up[usize::from(planned.from)] {
            return;
        }
        self.rpcs[index].sent = true;
        self.sent_order.push(token);
        out.send(Message {
            from: planned.from,
            to: planned.to,
            bytes: planned.bytes,
            reply_bytes: Some(planned.reply_bytes),
            started: now,
            tag: token,
        });
    }

    fn delivered(&mut self, now: u64, delivery: Delivery, message: &Message, out: &mut Outbox) {
        let index = message.tag as usize;
        let server = usize::from(message.to);
        let rpc = self.rpcs[index];
        match delivery.outcome {
            Outcome::Request => {
                let life = self.lives[server];
                if rpc.handled_in == Some(life) {
                    self.violated(format!("the handler ran twice for request {index}"));
                }
                self.rpcs[index].handled_in = Some(life);
                let at = now + self.traffic[index].service_ns;
                out.wake(at, ANSWERS + index as u32);
            }
            Outcome::Reply | Outcome::Failed(_) => {
                if rpc.ended {
                    self.violated(format!("request {index} has two outcomes"));
                }
                if rpc.orphaned {
                    self.violated(format!(
                        "request {index} of a crashed client has an outcome"
                    ));
                }
                self.rpcs[index].ended = true;
                if delivery.outcome == Outcome::Reply {
                    self.replied += 1;
                    if rpc.handled_in.is_none() {
                        self.violated(format!("request {index} was answered but never handled"));
                    }
                } else {
                    self.failed += 1;
                }
            }
        }
    }

    fn fault(&mut self, _now: u64, step: &Step, _out: &mut Outbox) {
        match *step {
            Step::Crash(host) => {
                self.lives[usize::from(host)] += 1;
                self.up[usize::from(host)] = false;
                for (rpc, planned) in self.rpcs.iter_mut().zip(&self.traffic) {
                    rpc.orphaned |= rpc.sent && !rpc.ended && planned.from == host;
                }
            }
            Step::Restart(host) => self.up[usize::from(host)] = true,
            _ => {}
        }
    }
}

/// How a seed went.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// Events.
    pub events: u64,
    /// Hash of all of them.
    pub trace_hash: u64,
    /// RPCs answered, and failed with an error.
    pub outcomes: (u64, u64),
    /// What was violated, if anything.
    pub violation: Option<String>,
    /// What the seed drew.
    pub scenario: String,
    /// The last events, if they were asked for.
    pub log: Vec<String>,
}

/// Plays a seed. With `log` the last so many events are kept as text.
#[must_use]
pub fn play(seed: u64, log: usize) -> Verdict {
    let scenario = Scenario::new(seed);
    let description = scenario.describe();
    let hosts = scenario.topology.hosts.len();
    let bps = scenario
        .topology
        .hosts
        .iter()
        .map(|host| host.bps)
        .collect();
    let mut verdict = Verdict {
        seed,
        scenario: description,
        ..Verdict::default()
    };
    let homa = match Homa::new(scenario.homa.clone(), bps, seed) {
        Ok(homa) => homa,
        Err(error) => {
            verdict.violation = Some(format!("possible settings were refused: {error}"));
            return verdict;
        }
    };
    let latency = scenario.software.rx_ns + scenario.software.think_ns;
    let network = Network::new(&scenario.topology, scenario.switches, latency, seed);
    let count = scenario.traffic.len();
    let watcher = Watcher {
        traffic: scenario.traffic,
        rpcs: vec![Rpc::default(); count],
        sent_order: Vec::new(),
        lives: vec![0; hosts],
        up: vec![true; hosts],
        hostile: scenario.hostile,
        violation: None,
        replied: 0,
        failed: 0,
    };
    let faults = Faults::new(scenario.faults, scenario.steps, hosts, seed);
    let setup = Setup {
        software: scenario.software,
        seed,
        keep_ids: true,
    };
    let mut sim = Simulation::new(network, homa, watcher, faults, setup);
    sim.keep_log(log);
    verdict.violation = watch(
        &mut sim,
        scenario.ended_by,
        scenario.drained_by,
        scenario.hostile,
    );
    verdict.events = sim.processed();
    verdict.trace_hash = sim.trace_hash();
    verdict.outcomes = (sim.app.replied, sim.app.failed);
    verdict.log = sim.take_log();
    verdict
}

/// Most events without time going on.
const MAX_EVENTS_AT_ONCE: u32 = 200_000;

fn watch(
    sim: &mut Simulation<Homa, Watcher>,
    ended_by: u64,
    drained_by: u64,
    hostile: bool,
) -> Option<String> {
    let (mut last, mut at_once) = (0, 0);
    let mut deadline = ended_by;
    loop {
        let more = sim.step(deadline).is_some();
        if let Some(violation) = sim.app.violation.take() {
            return Some(violation);
        }
        if let Some(violation) = sim.transport.take_violation(hostile) {
            return Some(violation);
        }
        let now = sim.now();
        (last, at_once) = if now == last {
            (now, at_once + 1)
        } else {
            (now, 0)
        };
        if at_once > MAX_EVENTS_AT_ONCE {
            return Some("time stands still: somebody spins".into());
        }
        if more {
            continue;
        }
        // Whoever is told lies by damaged headers may wait for ever (for a busy peer, say); it must only stay sound.
        if hostile {
            return None;
        }
        if deadline == drained_by {
            return sim.transport.undrained();
        }
        let open = sim.app.open();
        if open > 0 {
            let index = sim
                .app
                .rpcs
                .iter()
                .position(|rpc| rpc.sent && !rpc.ended && !rpc.orphaned);
            return Some(format!(
                "{open} requests have no outcome {:.1} ms after the network healed (first: {:?})",
                (ended_by as f64) / 1e6,
                index
            ));
        }
        deadline = drained_by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that have found something in the core, and what.
    const FOUND: [u64; 4] = [
        // Endpoints full of requests to each other could not answer any.
        6262,
        // A client with half a response and the restarted server, which wanted the request again, told each
        // other for ever that they were busy.
        14_538,
        // Once a silent peer's message with grants had ended, its others waited for ever: a client's response,
        22_551, // and a crashed client's request.
        61_781,
    ];

    #[test]
    fn a_few_hundred_seeds() {
        for seed in (0..300).chain(FOUND) {
            let verdict = play(seed, 0);
            assert_eq!(
                verdict.violation, None,
                "seed {seed}: run `homa-sim replay --seed {seed}`\n{}",
                verdict.scenario
            );
        }
    }

    #[test]
    fn a_seed_is_played_the_same_twice() {
        for seed in 0..20 {
            assert_eq!(play(seed, 0).trace_hash, play(seed, 50).trace_hash);
        }
    }

    #[test]
    fn seeds_differ_and_do_something() {
        let verdicts: Vec<Verdict> = (0..50).map(|seed| play(seed, 0)).collect();
        let hashes: HashSet<u64> = verdicts.iter().map(|v| v.trace_hash).collect();
        assert_eq!(hashes.len(), verdicts.len());
        assert!(verdicts.iter().map(|v| v.outcomes.0).sum::<u64>() > 500);
        assert!(verdicts.iter().any(|v| v.outcomes.1 > 0));
    }
}
