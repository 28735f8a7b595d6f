//! A bound: each receiver's link serves the message with the least left to come, and nothing else is in the way (SRPT).
//!
//! Senders' links, switches and losses do not exist here, and every receiver knows at once of every message. No transport
//! can have a lower mean time, as long as messages are received one after another over one link; a message takes
//! at least its best possible time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Delivery, Message, MessageId, Outcome, Transport};
use crate::ideal::{Ideal, message_wire_bytes};
use crate::packet::{HostId, Packet};
use crate::rng::Rng;
use crate::topology::Topology;

struct Flow {
    id: MessageId,
    outcome: Outcome,
    /// Time on the receiver's link.
    left_ns: f64,
    /// The rest of its best possible time.
    latency_ns: f64,
}

/// What one receiver waits for; the last one, which has the least left, is coming in.
#[derive(Default)]
struct Receiver {
    flows: Vec<Flow>,
    updated: u64,
    /// When the last one will have come in.
    next: u64,
}

/// The receivers of all hosts.
pub struct Oracle {
    ideal: Ideal,
    mtu: u32,
    bps: Vec<u64>,
    receivers: Vec<Receiver>,
    /// When a receiver's message has come in. Entries that do not agree with the receiver's `next` are stale.
    ends: BinaryHeap<Reverse<(u64, HostId)>>,
    arriving: BinaryHeap<Reverse<(u64, MessageId, bool)>>,
    deliveries: VecDeque<Delivery>,
    /// The host whose timer serves them all: the last one heard of.
    owner: HostId,
}

impl Oracle {
    /// For the hosts of a topology.
    #[must_use]
    pub fn new(topology: &Topology, ideal: Ideal, mtu: u32) -> Self {
        Self {
            ideal,
            mtu,
            bps: topology.hosts.iter().map(|host| host.bps).collect(),
            receivers: topology.hosts.iter().map(|_| Receiver::default()).collect(),
            ends: BinaryHeap::new(),
            arriving: BinaryHeap::new(),
            deliveries: VecDeque::new(),
            owner: 0,
        }
    }

    fn begin(
        &mut self,
        now: u64,
        id: MessageId,
        (from, to): (HostId, HostId),
        bytes: u32,
        outcome: Outcome,
    ) {
        self.owner = from;
        self.advance(now);
        let bps = self.bps[usize::from(to)] as f64;
        let left_ns = message_wire_bytes(bytes, self.mtu) as f64 * 8e9 / bps;
        let latency_ns = self.ideal.one_way_ns(from, to, bytes) - left_ns;
        let receiver = &mut self.receivers[usize::from(to)];
        receiver.pass(now);
        let at = receiver
            .flows
            .partition_point(|other| other.left_ns > left_ns);
        receiver.flows.insert(
            at,
            Flow {
                id,
                outcome,
                left_ns,
                latency_ns,
            },
        );
        self.plan(to);
    }

    fn plan(&mut self, host: HostId) {
        let receiver = &mut self.receivers[usize::from(host)];
        if let Some(flow) = receiver.flows.last() {
            receiver.next = receiver.updated + flow.left_ns.max(0.0).ceil() as u64;
            self.ends.push(Reverse((receiver.next, host)));
        }
    }

    /// Lets time pass until `now`.
    fn advance(&mut self, now: u64) {
        while let Some(&Reverse((at, host))) = self.ends.peek()
            && at <= now
        {
            self.ends.pop();
            let receiver = &mut self.receivers[usize::from(host)];
            if receiver.next != at {
                continue;
            }
            receiver.pass(at);
            if let Some(flow) = receiver.flows.pop() {
                let arrives = at as f64 + flow.latency_ns.max(0.0);
                let is_reply = flow.outcome == Outcome::Reply;
                self.arriving
                    .push(Reverse((arrives.round() as u64, flow.id, is_reply)));
            }
            self.receivers[usize::from(host)].next = 0;
            self.plan(host);
        }
        while let Some(&Reverse((at, message, is_reply))) = self.arriving.peek()
            && at <= now
        {
            self.arriving.pop();
            let outcome = if is_reply {
                Outcome::Reply
            } else {
                Outcome::Request
            };
            self.deliveries.push_back(Delivery { message, outcome });
        }
    }
}

impl Receiver {
    fn pass(&mut self, now: u64) {
        if let Some(flow) = self.flows.last_mut() {
            flow.left_ns -= (now - self.updated) as f64;
        }
        self.updated = now;
    }
}

impl Transport for Oracle {
    type Body = ();

    fn name(&self) -> &'static str {
        "oracle"
    }

    fn send(&mut self, now: u64, id: MessageId, message: &Message) {
        let way = (message.from, message.to);
        self.begin(now, id, way, message.bytes, Outcome::Request);
    }

    fn reply(&mut self, now: u64, id: MessageId, message: &Message) {
        let way = (message.to, message.from);
        let bytes = message.reply_bytes.unwrap_or(1);
        self.begin(now, id, way, bytes, Outcome::Reply);
    }

    fn receive(&mut self, _now: u64, _host: HostId, _packet: &Packet, _body: &mut ()) {}

    fn timer(&mut self, now: u64, host: HostId) {
        self.owner = host;
        self.advance(now);
    }

    fn next_timer(&mut self, host: HostId) -> Option<u64> {
        if host != self.owner {
            return None;
        }
        let end = self.ends.peek().map(|entry| entry.0.0);
        let arrival = self.arriving.peek().map(|entry| entry.0.0);
        end.into_iter().chain(arrival).min()
    }

    fn transmit(&mut self, _now: u64, _host: HostId, _body: &mut ()) -> Option<Packet> {
        None
    }

    fn delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    fn crash(&mut self, _now: u64, _host: HostId) {}

    fn corrupt(&mut self, _body: &mut (), _rng: &mut Rng) {}

    fn encode(&self, _packet: &Packet, _body: &(), _out: &mut Vec<u8>) -> u8 {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
