//! The sender's side: homa-proto's `outgoing`.

use std::collections::VecDeque;
use std::ops::Range;

use homa_proto::wire::{Common, DATA_LEN, Repr};
use homa_proto::{Config, Endpoint, HeapBuffers, Limits, PeerAddr, RequestOptions, RpcId, Storage};

use super::{MAX_MESSAGE, MTU, NOW, Node, PEERS, PORT, UNIT, address, check, length};
use crate::input::{Input, message};

const MAX_MESSAGES: usize = 16;
/// Among so many of the oldest messages homa-proto looks for one that may send.
const OLDEST: usize = 16;

/// A message that goes out.
struct Message {
    peer: u8,
    rpc: RpcId,
    id: u64,
    birth: usize,
    len: u32,
    sent: u32,
    granted: u32,
    unscheduled: u32,
    priority: u8,
    /// Asked for again.
    again: Range<u32>,
    again_priority: u8,
}

impl Message {
    fn left(&self) -> u32 {
        self.len - self.sent + self.again.len() as u32
    }

    fn may_send(&self) -> bool {
        !self.again.is_empty() || self.sent < self.granted
    }

    /// The bytes to go next, and at which priority if a peer has said.
    fn next(&self) -> (Range<u32>, Option<u8>) {
        if !self.again.is_empty() {
            return (self.again.clone(), Some(self.again_priority));
        }
        if self.sent < self.unscheduled {
            return (self.sent..self.unscheduled.min(self.granted), None);
        }
        (self.sent..self.granted, Some(self.priority))
    }
}

/// The policy, written down as plainly as it can be.
struct Reference {
    config: Config,
    payload: u32,
    messages: Vec<Message>,
    /// Those of one packet, which go first, in order.
    short: VecDeque<u64>,
    /// All others that are not wholly sent, oldest first.
    oldest: Vec<u64>,
    /// What the oldest has been left owing, in bytes times 1000.
    credit: u64,
    turn: u64,
}

impl Reference {
    fn message_mut(&mut self, id: u64) -> &mut Message {
        let mut all = self.messages.iter_mut();
        all.find(|message| message.id == id)
            .expect("a message that was sent")
    }

    /// After a change.
    fn list(&mut self, id: u64) {
        let is_short = self.short.contains(&id);
        let left = self.message_mut(id).left();
        if left == 0 || is_short {
            self.oldest.retain(|&other| other != id);
        } else if !self.oldest.contains(&id) {
            self.oldest.push(id);
        }
    }

    fn oldest(&self) -> Option<&Message> {
        let find = |&id: &u64| self.messages.iter().find(|message| message.id == id);
        let few = self.oldest.iter().take(OLDEST).filter_map(find);
        few.into_iter().find(|message| message.may_send())
    }

    /// The fewest bytes left first.
    fn first(&self) -> Option<&Message> {
        let ready = self.messages.iter().filter(|message| message.may_send());
        let ready = ready.filter(|message| !self.short.contains(&message.id));
        ready.min_by_key(|message| (message.left(), message.birth))
    }

    /// One batch of DATA has gone: it must have been the right one.
    fn sent(&mut self, packets: &[(u64, Range<u32>)], priority: u8, bytes: u64) {
        assert!(packets.len() <= usize::from(self.config.max_batch));
        let is_short = self.short.front() == Some(&packets[0].0);
        assert!(is_short || self.short.is_empty(), "a short message waits");
        if is_short {
            for (id, range) in packets {
                assert_eq!(
                    self.short.pop_front(),
                    Some(*id),
                    "short messages out of order"
                );
                let message = self.message_mut(*id);
                assert_eq!(*range, 0..message.len);
                message.sent = message.len;
            }
            return;
        }
        let first = self.first().expect("nothing may go").id;
        let oldest = self.oldest().map(|message| message.id);
        let is_due = self.credit >= self.turn;
        let expected = oldest.filter(|_| is_due).unwrap_or(first);
        for (id, range) in packets {
            assert_eq!(*id, expected, "another message goes first");
            let payload = self.payload;
            let message = self.message_mut(*id);
            let (next, at) = message.next();
            assert_eq!(*range, next.start..next.end.min(next.start + payload));
            assert!(at.is_none_or(|at| at == priority));
            match message.again.is_empty() {
                true => message.sent = range.end,
                false => message.again.start = range.end,
            }
        }
        if expected != first && packets.len() > 1 {
            assert!(
                bytes <= self.credit / 1000,
                "the oldest takes more than its share"
            );
        }
        self.credit = if oldest == Some(expected) {
            self.credit.saturating_sub(bytes * 1000)
        } else {
            let share = bytes * u64::from(self.config.fifo_permille);
            (self.credit + share).min(self.turn * 2)
        };
        self.list(expected);
    }
}

pub(super) fn run(input: &mut Input<'_>) {
    let config = Config {
        mtu: MTU,
        max_message: MAX_MESSAGE,
        fifo_permille: u16::from(input.u8()) * 3,
        unscheduled_bytes: 1 + u32::from(input.u8()) * 16,
        max_batch: 1 + u16::from(input.u8() % 8),
        max_unheard: u64::MAX,
        ..Config::default()
    };
    let limits = Limits {
        rpcs: MAX_MESSAGES,
        peers: PEERS.into(),
        ended: 8,
    };
    let tables = Storage::boxed(limits);
    let mut node = Endpoint::new(config, 1, tables, HeapBuffers::new(1 << 16))
        .expect("settings that work together");
    node.open_port(PORT).expect("the first port");
    let config = node.config().clone();
    let mut reference = Reference {
        payload: config.max_payload(false) as u32,
        turn: u64::from(config.max_batch) * u64::from(MTU) * 1000,
        config,
        messages: Vec::new(),
        short: VecDeque::new(),
        oldest: Vec::new(),
        credit: 0,
    };
    let mut births = 0;
    while !input.is_empty() {
        let kind = input.u8() % 12;
        let which = usize::from(input.u8());
        let at = which.checked_rem(reference.messages.len());
        match (kind, at) {
            (0..=3, _) if reference.messages.len() < MAX_MESSAGES => {
                births += 1;
                let (peer, len) = (which as u8 % PEERS, length(input));
                begin(&mut node, &mut reference, peer, len, births);
            }
            (4 | 5, Some(at)) => grant(&mut node, &mut reference, at, input),
            (6 | 7, Some(at)) => resend(&mut node, &mut reference, at, input),
            (8, Some(at)) => {
                let Message { rpc, id, .. } = reference.messages.remove(at);
                assert!(node.cancel(NOW, rpc).is_some());
                reference.short.retain(|&other| other != id);
                reference.oldest.retain(|&other| other != id);
            }
            // Some batches go, or all that may.
            (9, _) => drop(transmit(&mut node, &mut reference)),
            _ => while transmit(&mut node, &mut reference) {},
        }
        check(&node);
    }
    while transmit(&mut node, &mut reference) {}
    assert!(reference.messages.iter().all(|message| !message.may_send()));
}

fn begin(node: &mut Node, reference: &mut Reference, peer: u8, len: u32, birth: usize) {
    let to = PeerAddr::new(address(peer), PORT);
    let bytes = message(0, len as usize);
    let rpc = node.send_request(NOW, to, bytes, RequestOptions::default());
    let rpc = rpc.expect("there is room");
    let id = node.wire_id(rpc).expect("it has begun");
    let unscheduled = reference.config.unscheduled_bytes.min(len);
    reference.messages.push(Message {
        peer,
        rpc,
        id,
        birth,
        len,
        sent: 0,
        granted: unscheduled,
        unscheduled,
        priority: 0,
        again: 0..0,
        again_priority: 0,
    });
    if unscheduled == len && len <= reference.payload {
        reference.short.push_back(id);
    }
    reference.list(id);
}

fn common(message: &Message) -> Common {
    Common {
        source_port: PORT,
        dest_port: PORT,
        sender_id: message.id | 1,
    }
}

fn hand_in(node: &mut Node, message: &Message, packet: &Repr<'_>) {
    let mut bytes = [0; 100];
    let len = packet.emit(&mut bytes).expect("room");
    let _ = node.handle_packet(NOW, address(message.peer), None, &bytes[..len]);
}

fn grant(node: &mut Node, reference: &mut Reference, at: usize, input: &mut Input<'_>) {
    let message = &mut reference.messages[at];
    let offset = u32::from(input.u8()) * UNIT / 2;
    let priority = input.u8() % 8;
    let packet = Repr::Grant {
        common: common(message),
        offset,
        priority,
        resend_all: false,
    };
    hand_in(node, message, &packet);
    let offset = offset.min(message.len);
    if offset >= message.granted && offset > message.unscheduled {
        message.granted = offset;
        message.priority = priority;
    }
}

fn resend(node: &mut Node, reference: &mut Reference, at: usize, input: &mut Input<'_>) {
    let (start, count, priority) = (input.u8(), input.u8(), input.u8() % 8);
    let message = &mut reference.messages[at];
    // What becomes of ranges that overlap is for unit tests.
    if !message.again.is_empty() || reference.short.contains(&message.id) {
        return;
    }
    let offset = u32::from(start) * UNIT / 2 % message.len;
    let len = u32::from(count) * UNIT / 4;
    let packet = Repr::Resend {
        common: common(message),
        offset,
        len,
        priority,
    };
    hand_in(node, message, &packet);
    if len == 0 {
        return;
    }
    let end = (offset + len).min(message.len);
    message.granted = message.granted.max(end);
    message.again = offset..end.min(message.sent).max(offset);
    message.again_priority = priority;
    let id = message.id;
    reference.list(id);
}

/// The next batch. `false`: nothing may go.
fn transmit(node: &mut Node, reference: &mut Reference) -> bool {
    let mut buffer = [0; 4000];
    let Some(batch) = node.poll_transmit(NOW, &mut buffer) else {
        assert!(
            reference.short.is_empty() && reference.first().is_none(),
            "something may go"
        );
        return false;
    };
    let mut packets = Vec::new();
    for packet in buffer[..batch.len].chunks(batch.segment_size.unwrap_or(batch.len)) {
        match Repr::parse(packet, MAX_MESSAGE).expect("what is sent can be read") {
            Repr::Data { header, data } if !data.is_empty() => {
                let end = header.offset + (packet.len() - DATA_LEN) as u32;
                packets.push((header.common.sender_id, header.offset..end));
            }
            // An announcement, or a sign of life.
            _ => {}
        }
    }
    if !packets.is_empty() {
        reference.sent(&packets, batch.priority, batch.len as u64);
    }
    true
}
