//! Small models of TCP, for comparison: NewReno, CUBIC and DCTCP, all with SACK-based loss recovery.
//!
//! One or several connections for each pair of hosts, open from the start. A message, or an answer, goes to the one
//! with the fewest bytes not yet acknowledged; there messages follow each other, each behind a prefix with its length
//! and id. What is modelled, and after which RFC:
//!
//! * windows: slow start and congestion avoidance (5681), restart after idle (5681 §4.1), an initial window of 10
//!   (6928), growth only while the window is used (7661 in spirit), CUBIC (9438), DCTCP (8257);
//! * recovery: SACK (2018) with pipe, NextSeg and rescue retransmission (6675), partial acknowledgements (6582);
//! * timers: retransmission timeout with timestamps (6298, 7323), delayed acknowledgements (1122, 5681 §4.2).
//!
//! Not modelled: handshakes, receive windows, Nagle (off), RACK-TLP (8985), pacing, segmentation offload. The sender's
//! queueing discipline is fair: a connection that had nothing to send goes first, then they take turns, packet by
//! packet, and the card never queues. That serves TCP better than one queue for all.

mod congestion;
mod connection;
mod cubic;
mod dctcp;
mod ranges;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

pub use congestion::Algorithm;
use connection::{Connection, Counters};

use super::{Delivery, Message, MessageId, Outcome, Transport};
use crate::packet::{Ecn, HostId, Packet, wire_bytes};
use crate::rng::Rng;

/// Length and id before each message.
const PREFIX_BYTES: u64 = 8;
/// IP, TCP and the timestamp option.
const HEADER_BYTES: u32 = 20 + 20 + 12;

/// What can be set about a TCP.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Largest IP packet.
    pub mtu: u32,
    /// Initial window in segments.
    pub initial_window: u32,
    /// Shortest retransmission timeout, in nanoseconds.
    pub rto_min_ns: u64,
    /// How long a lone segment waits for its acknowledgement, in nanoseconds.
    pub ack_delay_ns: u64,
    /// Connections between two hosts.
    pub connections: u16,
}

impl Settings {
    fn mss(&self) -> u32 {
        self.mtu - HEADER_BYTES
    }
}

/// The settings that a user may change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpOptions {
    /// Initial window in segments.
    pub initial_window: u32,
    /// Shortest retransmission timeout, in microseconds.
    pub rto_min_us: u64,
    /// How long a lone segment waits for its acknowledgement, in microseconds.
    pub ack_delay_us: u64,
    /// Connections between two hosts; a message goes to the one with the least to do.
    pub connections: u16,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            initial_window: 10,
            rto_min_us: 1000,
            ack_delay_us: 500,
            connections: 10,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Request,
    Reply,
}

/// What a TCP packet carries beside its data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    offset: u64,
    bytes: u32,
    again: bool,
    marked: bool,
    ack: u64,
    sack: [(u64, u64); 3],
    sack_count: u8,
    timestamp: u64,
    timestamp_echo: u64,
}

impl Segment {
    fn add_sack(&mut self, range: (u64, u64)) {
        if let Some(slot) = self.sack.get_mut(usize::from(self.sack_count)) {
            *slot = range;
            self.sack_count += 1;
        }
    }

    fn sacks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.sack[..usize::from(self.sack_count)].iter().copied()
    }

    fn header_bytes(&self) -> u32 {
        let sack = match self.sack_count {
            0 => 0,
            n => 4 + 8 * u32::from(n),
        };
        HEADER_BYTES + sack
    }
}

/// The connections of one host that have something to send, and their timers.
#[derive(Default)]
struct HostState {
    /// Had nothing to send until now: go first, once.
    fresh: VecDeque<u32>,
    /// Take turns.
    turns: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
}

/// TCP in every host.
pub struct Tcp {
    settings: Settings,
    hosts: Vec<HostState>,
    /// The end at host `a` of its connection `c` with `b` is number `(a × hosts + b) × connections + c`.
    connections: Vec<Option<Box<Connection>>>,
    deliveries: VecDeque<Delivery>,
    counters: Counters,
}

impl Tcp {
    /// TCP in `hosts` hosts.
    #[must_use]
    pub fn new(settings: Settings, hosts: usize) -> Self {
        Self {
            settings,
            hosts: (0..hosts).map(|_| HostState::default()).collect(),
            connections: (0..hosts * hosts * usize::from(settings.connections))
                .map(|_| None)
                .collect(),
            deliveries: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    fn index(&self, host: HostId, peer: HostId, lane: usize) -> usize {
        let pair = usize::from(host) * self.hosts.len() + usize::from(peer);
        pair * self.lanes() + lane
    }

    fn lanes(&self) -> usize {
        usize::from(self.settings.connections)
    }

    fn connection(&mut self, host: HostId, peer: HostId, lane: usize) -> &mut Connection {
        let index = self.index(host, peer, lane);
        self.connections[index]
            .get_or_insert_with(|| Box::new(Connection::new(peer, &self.settings)))
    }

    /// The connection with the fewest bytes to get across.
    fn least_loaded(&self, from: HostId, to: HostId) -> usize {
        let first = self.index(from, to, 0);
        let load = |lane: &usize| {
            let connection = self.connections[first + lane].as_ref();
            connection.map_or(0, |connection| connection.unacknowledged())
        };
        (0..self.lanes()).min_by_key(load).unwrap_or(0)
    }

    fn write(&mut self, now: u64, from: HostId, to: HostId, bytes: u32, id: MessageId, part: Part) {
        let settings = self.settings;
        let lane = self.least_loaded(from, to);
        let end =
            self.connection(from, to, lane)
                .write(now, PREFIX_BYTES + u64::from(bytes), &settings);
        // What the receiver would read from the prefix.
        self.connection(to, from, lane)
            .boundaries
            .push_back((end, id, part));
        self.update(from, self.index(from, to, lane));
    }

    /// Queues a connection that wants to send and sets its timer, after anything that may have changed either.
    fn update(&mut self, host: HostId, index: usize) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        let state = &mut self.hosts[usize::from(host)];
        if !connection.queued && connection.wants_to_send(&self.settings) {
            connection.queued = true;
            state.fresh.push_back(index as u32);
        }
        if let Some(at) = connection.next_timer()
            && at < connection.timer_entry
        {
            connection.timer_entry = at;
            state.timers.push(Reverse((at, index as u32)));
        }
    }
}

impl Transport for Tcp {
    type Body = Segment;

    fn name(&self) -> &'static str {
        match self.settings.algorithm {
            Algorithm::NewReno => "newreno",
            Algorithm::Cubic => "cubic",
            Algorithm::Dctcp => "dctcp",
        }
    }

    fn send(&mut self, now: u64, id: MessageId, message: &Message) {
        self.write(
            now,
            message.from,
            message.to,
            message.bytes,
            id,
            Part::Request,
        );
    }

    fn reply(&mut self, now: u64, id: MessageId, message: &Message) {
        let bytes = message.reply_bytes.unwrap_or(1);
        self.write(now, message.to, message.from, bytes, id, Part::Reply);
    }

    fn receive(&mut self, now: u64, host: HostId, packet: &Packet, body: &mut Segment) {
        let (settings, mut counters) = (self.settings, self.counters);
        let lane = packet.flow as usize % self.lanes();
        let connection = self.connection(host, packet.from, lane);
        let marked = packet.ecn == Ecn::Marked;
        let complete = connection.receive(now, body, marked, &settings, &mut counters);
        let mut done = Vec::new();
        while let Some(&(end, id, part)) = connection.boundaries.front()
            && end <= complete
        {
            connection.boundaries.pop_front();
            done.push((id, part));
        }
        self.counters = counters;
        for (message, part) in done {
            self.deliveries.push_back(Delivery {
                message,
                outcome: match part {
                    Part::Request => Outcome::Request,
                    Part::Reply => Outcome::Reply,
                },
            });
        }
        self.update(host, self.index(host, packet.from, lane));
    }

    fn timer(&mut self, now: u64, host: HostId) {
        while let Some(&Reverse((at, index))) = self.hosts[usize::from(host)].timers.peek()
            && at <= now
        {
            self.hosts[usize::from(host)].timers.pop();
            let Some(connection) = &mut self.connections[index as usize] else {
                continue;
            };
            if connection.timer_entry != at {
                continue;
            }
            connection.timer_entry = u64::MAX;
            connection.timer(now, &self.settings, &mut self.counters);
            self.update(host, index as usize);
        }
    }

    fn next_timer(&mut self, host: HostId) -> Option<u64> {
        self.hosts[usize::from(host)]
            .timers
            .peek()
            .map(|entry| entry.0.0)
    }

    fn transmit(&mut self, now: u64, host: HostId, body: &mut Segment) -> Option<Packet> {
        loop {
            let state = &mut self.hosts[usize::from(host)];
            let index = state
                .fresh
                .pop_front()
                .or_else(|| state.turns.pop_front())?;
            let Some(connection) = &mut self.connections[index as usize] else {
                continue;
            };
            connection.queued = false;
            if !connection.transmit(now, &self.settings, &mut self.counters, body) {
                continue;
            }
            let peer = connection.peer;
            if connection.wants_to_send(&self.settings) {
                connection.queued = true;
                state.turns.push_back(index);
            }
            self.update(host, index as usize);
            let capable = self.settings.algorithm == Algorithm::Dctcp;
            return Some(Packet {
                from: host,
                to: peer,
                wire_bytes: wire_bytes(body.header_bytes() + body.bytes),
                data_bytes: body.bytes,
                priority: 0,
                // RFC 8257 §3.1: all packets, acknowledgements too.
                ecn: if capable {
                    Ecn::Capable
                } else {
                    Ecn::NotCapable
                },
                kind: if body.bytes == 0 {
                    1
                } else {
                    u8::from(body.again) * 2
                },
                flow: index,
                ..Packet::default()
            });
        }
    }

    fn delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    fn crash(&mut self, _now: u64, host: HostId) {
        for peer in 0..self.hosts.len() as HostId {
            for (a, b, lane) in
                (0..self.lanes()).flat_map(|lane| [(host, peer, lane), (peer, host, lane)])
            {
                let index = self.index(a, b, lane);
                if let Some(connection) = self.connections[index].take() {
                    self.deliveries
                        .extend(
                            connection
                                .boundaries
                                .iter()
                                .map(|&(_, message, _)| Delivery {
                                    message,
                                    outcome: Outcome::Failed("connection reset"),
                                }),
                        );
                }
            }
        }
        self.hosts[usize::from(host)] = HostState::default();
    }

    fn corrupt(&mut self, _body: &mut Segment, _rng: &mut Rng) {}

    fn encode(&self, packet: &Packet, body: &Segment, out: &mut Vec<u8>) -> u8 {
        let header = body.header_bytes() - 20;
        // The same port at both ends of a connection.
        let port = 5000 + packet.flow % u32::from(self.settings.connections);
        out.extend((port as u16).to_be_bytes());
        out.extend((port as u16).to_be_bytes());
        out.extend((body.offset as u32).to_be_bytes());
        out.extend((body.ack as u32).to_be_bytes());
        let ece = if body.marked { 0x40 } else { 0 };
        out.extend([
            ((header / 4) << 4) as u8,
            0x10 | ece,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ]);
        out.extend([1, 1, 8, 10]);
        out.extend(((body.timestamp / 1000) as u32).to_be_bytes());
        out.extend(((body.timestamp_echo / 1000) as u32).to_be_bytes());
        if body.sack_count > 0 {
            out.extend([1, 1, 5, 2 + 8 * body.sack_count]);
            for (start, end) in body.sacks() {
                out.extend((start as u32).to_be_bytes());
                out.extend((end as u32).to_be_bytes());
            }
        }
        out.resize(out.len() + body.bytes as usize, 0);
        6
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        vec![
            ("segments", counters.segments),
            ("acks", counters.acks),
            ("retransmitted", counters.retransmitted),
            ("recoveries", counters.recoveries),
            ("timeouts", counters.timeouts),
            ("marked_acks", counters.marked_acks),
        ]
    }
}
