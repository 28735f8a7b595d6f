//! Open-loop traffic: every host sends messages at random times that do not depend on how the network fares.

use super::fluid::Fluid;
use super::workload::Workload;
use super::{Report, Totals};
use crate::ideal::{Ideal, message_wire_bytes};
use crate::packet::{HostId, Waited};
use crate::recorder::Recorder;
use crate::rng::Rng;
use crate::sim::{Application, Outbox};
use crate::transport::{Delivery, Message, Outcome};

/// What comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing: one-way messages.
    None,
    /// As much as was sent.
    Echo,
    /// So many bytes.
    Bytes(u32),
    /// The length drawn is that of the answer, to a request of so many bytes.
    Drawn(u32),
}

/// Where messages go.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Destinations {
    /// To any other host.
    Uniform,
    /// This share to the first tenth of the hosts, the rest to any.
    Skewed(f64),
}

/// Settings of open-loop traffic.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Lengths.
    pub workload: Workload,
    /// Mean time between two messages of a host, in nanoseconds.
    pub interval_ns: f64,
    /// What comes back.
    pub answer: Answer,
    /// Where to.
    pub destinations: Destinations,
    /// Messages begun from here …
    pub measure_from: u64,
    /// … until here count.
    pub measure_until: u64,
    /// Messages begin until here.
    pub stop: u64,
    /// Speed of the slowest host's link, in bits per second.
    pub link_bps: u64,
    /// Largest IP packet.
    pub mtu: u32,
}

/// Open-loop traffic.
pub struct Poisson {
    settings: Settings,
    hosts: u64,
    senders: Vec<Rng>,
    ideal: Ideal,
    recorder: Recorder,
    totals: Totals,
    measured_open: u64,
    uplinks: Fluid,
    downlinks: Fluid,
    begun_wire_bytes: f64,
}

impl Poisson {
    /// Traffic among `hosts` hosts.
    #[must_use]
    pub fn new(settings: Settings, hosts: usize, ideal: Ideal, seed: u64) -> Self {
        Self {
            uplinks: Fluid::new(hosts, settings.link_bps),
            downlinks: Fluid::new(hosts, settings.link_bps),
            begun_wire_bytes: 0.0,
            settings,
            hosts: hosts as u64,
            senders: (0..hosts)
                .map(|host| Rng::new(seed, 0x0070_6f69_7373_0000 + host as u64))
                .collect(),
            ideal,
            recorder: Recorder::default(),
            totals: Totals::default(),
            measured_open: 0,
        }
    }

    fn schedule(&mut self, now: u64, host: u32, out: &mut Outbox) {
        let gap = self.senders[host as usize].exponential(self.settings.interval_ns);
        let at = now + gap as u64;
        if at < self.settings.stop {
            out.wake(at, host);
        }
    }

    fn load_links(&mut self, now: u64, from: HostId, to: HostId, bytes: u32) {
        let bytes = message_wire_bytes(bytes, self.settings.mtu) as f64;
        self.begun_wire_bytes += bytes;
        self.uplinks.add(now, usize::from(from), bytes);
        self.downlinks.add(now, usize::from(to), bytes);
    }

    fn measured(&self, message: &Message) -> bool {
        (self.settings.measure_from..self.settings.measure_until).contains(&message.started)
    }
}

impl Application for Poisson {
    fn start(&mut self, out: &mut Outbox) {
        for host in 0..self.hosts as u32 {
            self.schedule(0, host, out);
        }
    }

    fn wake(&mut self, now: u64, host: u32, out: &mut Outbox) {
        let rng = &mut self.senders[host as usize];
        let from = host as HostId;
        let hot = (self.hosts / 10).max(1);
        let to = loop {
            let to = match self.settings.destinations {
                Destinations::Skewed(share) if rng.chance(share) => rng.below(hot),
                _ => rng.below(self.hosts),
            } as HostId;
            // The only hot host has to send to others.
            if to != from {
                break to;
            }
            if hot == 1 && from == 0 {
                break 1 + rng.below(self.hosts - 1) as HostId;
            }
        };
        let drawn = self.settings.workload.draw(rng);
        let (bytes, reply_bytes) = match self.settings.answer {
            Answer::None => (drawn, None),
            Answer::Echo => (drawn, Some(drawn)),
            Answer::Bytes(bytes) => (drawn, Some(bytes)),
            Answer::Drawn(bytes) => (bytes, Some(drawn)),
        };
        let message = Message {
            from,
            to,
            bytes,
            reply_bytes,
            started: now,
            tag: 0,
            deadline: None,
            waited: Waited::default(),
        };
        self.totals.started += 1;
        self.totals.begun_bytes += u64::from(bytes) + u64::from(reply_bytes.unwrap_or(0));
        self.load_links(now, from, to, bytes);
        if let Some(bytes) = reply_bytes {
            self.load_links(now, to, from, bytes);
        }
        self.measured_open += u64::from(self.measured(&message));
        out.send(message);
        self.schedule(now, host, out);
    }

    fn delivered(&mut self, now: u64, delivery: Delivery, message: &Message, out: &mut Outbox) {
        let Message {
            from, to, bytes, ..
        } = *message;
        let ideal_ns = match (delivery.outcome, message.reply_bytes) {
            (Outcome::Request, Some(_)) => return out.reply(delivery.message),
            (Outcome::Request, None) => self.ideal.one_way_ns(from, to, bytes),
            (Outcome::Reply, reply) => {
                self.ideal
                    .round_trip_ns(from, to, bytes, reply.unwrap_or(1))
            }
            (Outcome::Failed(_) | Outcome::Cancelled, _) => {
                self.totals.failed += 1;
                self.measured_open -= u64::from(self.measured(message));
                return;
            }
        };
        self.totals.completed += 1;
        self.totals.bytes += u64::from(bytes) + u64::from(message.reply_bytes.unwrap_or(0));
        if self.measured(message) {
            self.measured_open -= 1;
            let length = match self.settings.answer {
                Answer::Drawn(_) => message.reply_bytes.unwrap_or(bytes),
                _ => bytes,
            };
            let time = now - message.started;
            self.recorder.add(length, time, ideal_ns, message.waited);
        }
    }
}

impl Report for Poisson {
    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn totals(&self) -> Totals {
        self.totals
    }

    fn ends_at(&self) -> Option<u64> {
        Some(self.settings.stop)
    }

    fn unavoidable(&self, now: u64) -> (f64, f64) {
        let waiting = self.uplinks.backlog(now).max(self.downlinks.backlog(now));
        (self.begun_wire_bytes, waiting)
    }

    fn finished(&self) -> bool {
        let ended = self.totals.completed + self.totals.failed;
        self.measured_open == 0 && self.totals.started == ended
    }
}
