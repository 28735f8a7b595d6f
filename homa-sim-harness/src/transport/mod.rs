//! Transports: what runs in the hosts.
//!
//! One value holds the transport of *all* hosts, so that an oracle that knows everything fits behind the same trait.
//! Every call names the host it is about, and a transport that is honest looks at that host's state alone.

pub mod homa;
pub mod oracle;
pub mod tcp;

use crate::packet::{HostId, Packet, Waited};
use crate::rng::Rng;

/// Names a message while it is live. Reused afterwards, except where faults are injected.
pub type MessageId = u32;

/// A message that an application wants carried, and the answer it expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Who sends it.
    pub from: HostId,
    /// Who gets it.
    pub to: HostId,
    /// Its length.
    pub bytes: u32,
    /// Length of the answer; `None`: one-way.
    pub reply_bytes: Option<u32>,
    /// When the application handed it over, in nanoseconds.
    pub started: u64,
    /// Whatever the application wants to find in it.
    pub tag: u32,
    /// When it is of no use any more, in nanoseconds: then it may fail.
    pub deadline: Option<u64>,
    /// What the last packet of it, and of its answer, have waited for: noted as they arrive.
    pub waited: Waited,
}

/// What has become of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it is at its receiver.
    Request,
    /// All of the answer is at the sender.
    Reply,
    /// The sender was told that it failed, and why.
    Failed(&'static str),
    /// The sender has given it up before it was answered.
    Cancelled,
}

/// Who gives a message up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Its sender, who wants no answer any more.
    Client,
    /// Its receiver, who will not answer.
    Server,
}

/// A message that has got somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Which.
    pub message: MessageId,
    /// Where to.
    pub outcome: Outcome,
}

/// A transport in every host.
pub trait Transport {
    /// What its packets carry.
    type Body: Default + Clone;

    /// For reports.
    fn name(&self) -> &str;

    /// How far ahead of the link its packets are taken, in nanoseconds. A transport that paces itself answers
    /// `u64::MAX`.
    fn nic_ahead_ns(&self) -> u64 {
        0
    }

    /// Whether its packets may take different ways.
    fn sprays(&self) -> bool {
        false
    }

    /// An application sends a message.
    fn send(&mut self, now: u64, id: MessageId, message: &Message);

    /// The receiver of a message answers it.
    fn reply(&mut self, now: u64, id: MessageId, message: &Message);

    /// One side gives a message up; nothing happens where it has ended already. Transports for which nobody asks that need
    /// not know how.
    fn cancel(&mut self, _now: u64, _id: MessageId, _message: &Message, _side: Side) {}

    /// A packet has reached `host`.
    fn receive(&mut self, now: u64, host: HostId, packet: &Packet, body: &mut Self::Body);

    /// The time of [`next_timer`](Self::next_timer) has come.
    fn timer(&mut self, now: u64, host: HostId);

    /// When `host` wants to be called, if nothing happens before.
    fn next_timer(&mut self, host: HostId) -> Option<u64>;

    /// The next packet that `host` wants to send now. Asked until there is none, or until the card has enough.
    fn transmit(&mut self, now: u64, host: HostId, body: &mut Self::Body) -> Option<Packet>;

    /// The next message that has got somewhere since the last call.
    fn delivery(&mut self) -> Option<Delivery>;

    /// `host` loses all state and starts anew.
    fn crash(&mut self, now: u64, host: HostId);

    /// Damages a packet in a way that its checksums do not show.
    fn corrupt(&mut self, body: &mut Self::Body, rng: &mut Rng);

    /// Writes the packet as it would follow an IP header; returns the IP protocol number.
    fn encode(&self, packet: &Packet, body: &Self::Body, out: &mut Vec<u8>) -> u8;

    /// The packet as text, for logs.
    fn describe(&self, _packet: &Packet, _body: &Self::Body) -> String {
        String::new()
    }

    /// What is worth reporting, summed over all hosts.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}
