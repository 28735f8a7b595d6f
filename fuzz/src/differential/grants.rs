//! The receiver's side: homa-proto's `grant`.

use homa_proto::wire::{Common, DataHeader, Repr};
use homa_proto::{Config, DropReason, Endpoint, Event, HeapBuffers, Limits, Storage};

use super::{MAX_MESSAGE, MTU, NOW, Node, PEERS, PORT, UNIT, address, check, length};
use crate::input::{Input, message};

const MAX_MESSAGES: usize = 16;
/// Holes that homa-proto keeps for one message; with more the two would differ in what they have.
const MAX_GAPS: usize = 12;

/// A message that comes in, as its sender knows it.
struct Message {
    peer: u8,
    /// What that peer was told of the cutoffs.
    version: u16,
    /// As the sender knows it.
    id: u64,
    len: u32,
    /// Which units have arrived.
    have: Vec<bool>,
    granted: u32,
    /// Order of the first packets.
    birth: usize,
    /// It has begun to need grants.
    listed: bool,
    /// Granted and not received, at the last decision.
    counted: u64,
}

impl Message {
    fn unit(&self, at: usize) -> u32 {
        (self.len - at as u32 * UNIT).min(UNIT)
    }

    fn received(&self) -> u32 {
        let arrived = self.have.iter().enumerate().filter(|&(_, &here)| here);
        arrived.map(|(at, _)| self.unit(at)).sum()
    }

    /// One past the last byte that has arrived.
    fn end(&self) -> u32 {
        let last = self.have.iter().rposition(|&here| here);
        last.map_or(0, |at| at as u32 * UNIT + self.unit(at))
    }

    fn gaps(&self) -> usize {
        self.have
            .windows(2)
            .filter(|pair| !pair[0] && pair[1])
            .count()
    }

    fn outstanding(&self) -> u64 {
        u64::from(self.granted.saturating_sub(self.received()))
    }

    fn needs(&self) -> bool {
        self.granted < self.len
    }

    fn rank(&self) -> (u32, usize) {
        (self.len - self.received(), self.birth)
    }
}

/// The policy, written down as plainly as it can be.
struct Reference {
    config: Config,
    max_incoming: u64,
    hard_limit: u64,
    max_sched: u8,
    messages: Vec<Message>,
    /// Those that have had a packet since the last decision, in that order.
    touched: Vec<u64>,
    /// Those that need grants, longest first.
    oldest: Vec<u64>,
    active: Vec<u64>,
    credit: u64,
    /// A share came free.
    freed: bool,
    /// What this decision has granted: message, offset, priority.
    issued: Vec<(u64, u32, u8)>,
}

impl Reference {
    fn message(&self, id: u64) -> Option<&Message> {
        self.messages.iter().find(|message| message.id == id)
    }

    fn message_mut(&mut self, id: u64) -> Option<&mut Message> {
        self.messages.iter_mut().find(|message| message.id == id)
    }

    fn total(&self) -> u64 {
        self.messages.iter().map(Message::outstanding).sum()
    }

    fn window(&self) -> u64 {
        match self.config.window {
            0 => self.max_incoming / (self.active.len() as u64 + 1),
            fixed => fixed.into(),
        }
    }

    /// Who may be granted: the best message of each peer, and where these are too few the best of
    /// the others. Best first.
    fn choose(&self) -> Vec<u64> {
        let mut all: Vec<&Message> = self.messages.iter().filter(|m| m.needs()).collect();
        all.sort_by_key(|message| message.rank());
        let mut seen = [false; PEERS as usize];
        let is_first =
            |message: &&Message| !std::mem::replace(&mut seen[usize::from(message.peer)], true);
        let (first, others): (Vec<&Message>, Vec<&Message>) = all.into_iter().partition(is_first);
        let most = usize::from(self.config.max_overcommit);
        let mut chosen: Vec<&Message> = first.into_iter().chain(others).take(most).collect();
        chosen.sort_by_key(|message| message.rank());
        chosen.iter().map(|message| message.id).collect()
    }

    fn decide(&mut self) {
        self.issued.clear();
        // Without news nothing is decided.
        if self.touched.is_empty() && !self.freed {
            return;
        }
        self.freed = false;
        for id in std::mem::take(&mut self.touched) {
            if let Some(message) = self.message_mut(id).filter(|m| m.needs() && !m.listed) {
                message.listed = true;
                self.oldest.push(id);
            }
        }
        self.drop_those_without_needs();
        loop {
            let was_due = self.grant_oldest();
            self.grant_active();
            if !was_due {
                break;
            }
        }
        for message in &mut self.messages {
            message.counted = message.outstanding();
        }
    }

    /// A message is whole.
    fn remove(&mut self, at: usize) {
        let Message { id, counted, .. } = self.messages.remove(at);
        self.freed |= counted > 0 || self.oldest.contains(&id);
        self.touched.retain(|&other| other != id);
        self.drop_those_without_needs();
    }

    fn drop_those_without_needs(&mut self) {
        let messages = &self.messages;
        let needs = |id: &u64| messages.iter().any(|m| m.id == *id && m.needs());
        self.oldest.retain(needs);
        self.active.retain(needs);
    }

    fn grant_oldest(&mut self) -> bool {
        let increment = u64::from(self.config.fifo_grant_increment);
        if self.credit < increment * 1000 {
            return false;
        }
        let Some(message) = self.oldest.first().and_then(|&id| self.message(id)) else {
            return false;
        };
        let left = u64::from(message.len - message.granted);
        let room = self.hard_limit.saturating_sub(self.total());
        let give = increment.min(left).min(room);
        if give == 0 || message.outstanding() >= self.window() + 2 * increment {
            return false;
        }
        let id = message.id;
        self.credit -= give * 1000;
        self.issue(id, give, self.config.levels - 2);
        true
    }

    fn grant_active(&mut self) {
        'afresh: loop {
            self.active = self.choose();
            for (rank, id) in self.active.clone().into_iter().enumerate() {
                let window = self.window();
                let message = self.message(id).expect("it is active");
                let target = (u64::from(message.received()) + window).min(message.len.into());
                let room = self.max_incoming.saturating_sub(self.total());
                let give = target.saturating_sub(message.granted.into()).min(room);
                let ends = u64::from(message.granted) + give == u64::from(message.len);
                let has_enough = message.outstanding() * 2 >= window;
                let may_wait = give < u64::from(self.config.min_grant) && !ends && has_enough;
                if give == 0 || may_wait {
                    continue;
                }
                // The lowest levels, so that a newcomer can go above them at once.
                let top = usize::from(self.max_sched).min(self.active.len() - 1);
                self.issue(id, give, top.saturating_sub(rank) as u8);
                if ends {
                    continue 'afresh;
                }
            }
            return;
        }
    }

    fn issue(&mut self, id: u64, give: u64, priority: u8) {
        let message = self.message_mut(id).expect("it is granted");
        message.granted += give as u32;
        let granted = message.granted;
        self.issued.retain(|&(other, ..)| other != id);
        self.issued.push((id, granted, priority));
        let (earned, increment) = (
            give * u64::from(self.config.fifo_permille),
            self.config.fifo_grant_increment,
        );
        self.credit = (self.credit + earned).min(u64::from(increment) * 4000);
        self.drop_those_without_needs();
    }
}

pub(super) fn run(input: &mut Input<'_>) {
    let config = Config {
        mtu: MTU,
        max_message: MAX_MESSAGE,
        max_overcommit: 1 + input.u8() % 6,
        fifo_permille: u16::from(input.u8()) * 3,
        fifo_grant_increment: 1 + u32::from(input.u8()) * 8,
        max_incoming: 400 + u64::from(input.u8()) * 64,
        window: u32::from(input.u8()) * 16,
        min_grant: u32::from(input.u8()) * 8,
        levels: 2 + input.u8() % 7,
        // A message that is refused is none to be granted.
        max_peer_requests: u32::MAX,
        max_peer_bytes: u64::MAX,
        ..Config::default()
    };
    let limits = Limits {
        rpcs: MAX_MESSAGES,
        peers: PEERS.into(),
        ended: 8,
    };
    let tables = Storage::boxed(limits);
    let Ok(mut node) = Endpoint::new(config, 1, tables, HeapBuffers::new(1 << 20)) else {
        return;
    };
    node.open_port(PORT).expect("the first port");
    let versions = introduce(&mut node);
    let config = node.config().clone();
    let max_incoming = config.incoming_limit();
    let mut reference = Reference {
        hard_limit: max_incoming + u64::from(config.fifo_grant_increment),
        max_incoming,
        max_sched: node.cutoffs().1,
        config,
        messages: Vec::new(),
        touched: Vec::new(),
        oldest: Vec::new(),
        active: Vec::new(),
        credit: 0,
        // At the start, the limits are new.
        freed: true,
        issued: Vec::new(),
    };
    // Those of the introduction came first.
    let mut births = usize::from(PEERS);
    while !input.is_empty() {
        match input.u8() % 8 {
            0 | 1 if reference.messages.len() < MAX_MESSAGES => {
                let (peer, len) = (input.u8() % PEERS, length(input));
                let units = len.div_ceil(UNIT) as usize;
                births += 1;
                reference.messages.push(Message {
                    peer,
                    version: versions[usize::from(peer)],
                    id: births as u64 * 2,
                    len,
                    have: vec![false; units],
                    granted: 0,
                    birth: births,
                    listed: false,
                    counted: 0,
                });
                let last = reference.messages.len() - 1;
                arrive(&mut node, &mut reference, last, input);
            }
            2..=5 => {
                let which = usize::from(input.u8());
                if let Some(at) = which.checked_rem(reference.messages.len()) {
                    arrive(&mut node, &mut reference, at, input);
                }
            }
            _ => compare(&mut node, &mut reference),
        }
        check(&node);
    }
    compare(&mut node, &mut reference);
}

/// Each peer sends a message of one byte and is told the cutoffs. Who names their version from now on is
/// no stranger, to whom a node may hold grants back.
fn introduce(node: &mut Node) -> [u16; PEERS as usize] {
    let mut versions = [0; PEERS as usize];
    for peer in 0..PEERS {
        let header = DataHeader {
            common: Common {
                source_port: PORT,
                dest_port: PORT,
                sender_id: u64::from(peer + 1) * 2,
            },
            message_len: 1,
            incoming: 1,
            ack: None,
            cutoff_version: 0,
            retransmit: false,
            flags: 0,
            offset: 0,
        };
        let mut packet = [0; MTU as usize];
        let data = &[0];
        let len = Repr::Data { header, data }.emit(&mut packet).expect("room");
        node.handle_packet(NOW, address(peer), None, &packet[..len])
            .expect("a first message");
        let Some(Event::Request { rpc, message, .. }) = node.poll_event() else {
            panic!("a whole request is not handed out");
        };
        node.recycle(NOW, message);
        let _ = node.cancel(NOW, rpc);
        while let Some(sent) = node.poll_transmit(NOW, &mut packet) {
            if let Ok(Repr::Cutoffs { version, .. }) = Repr::parse(&packet[..sent.len], MAX_MESSAGE)
            {
                versions[usize::from(peer)] = version;
            }
        }
        assert_ne!(
            versions[usize::from(peer)],
            0,
            "a newcomer is told no cutoffs"
        );
    }
    versions
}

/// A packet comes with some units of a message, or none.
fn arrive(node: &mut Node, reference: &mut Reference, at: usize, input: &mut Input<'_>) {
    let (start, count, incoming) = (input.u8(), input.u8(), input.u8());
    let message = &mut reference.messages[at];
    let start = usize::from(start) % message.have.len();
    let stop = (start + usize::from(count % 8)).min(message.have.len());
    let before = message.have.clone();
    message.have[start..stop].fill(true);
    if message.gaps() > MAX_GAPS {
        message.have = before;
        return;
    }
    let bytes: u32 = (start..stop).map(|unit| message.unit(unit)).sum();
    let header = DataHeader {
        common: Common {
            source_port: PORT,
            dest_port: PORT,
            sender_id: message.id,
        },
        message_len: message.len,
        incoming: u32::from(incoming) * UNIT / 2,
        ack: None,
        cutoff_version: message.version,
        retransmit: false,
        flags: 0,
        offset: start as u32 * UNIT,
    };
    let data = self::message(0, bytes as usize);
    let mut packet = [0; 1000];
    let len = Repr::Data { header, data }.emit(&mut packet).expect("room");
    match node.handle_packet(NOW, address(message.peer), None, &packet[..len]) {
        Ok(()) => {}
        Err(DropReason::Duplicate) => assert_eq!(before, message.have),
        Err(why) => panic!("{why:?}"),
    }
    if message.received() == message.len {
        reference.remove(at);
        let Some(Event::Request { rpc, message, .. }) = node.poll_event() else {
            panic!("a whole request is not handed out");
        };
        node.recycle(NOW, message);
        let _ = node.cancel(NOW, rpc);
        return;
    }
    let reach = header.incoming.max(message.end());
    message.granted = message.granted.max(reach).min(message.len);
    let id = message.id;
    if !reference.touched.contains(&id) {
        reference.touched.push(id);
    }
}

/// Both decide.
fn compare(node: &mut Node, reference: &mut Reference) {
    reference.decide();
    let mut granted = Vec::new();
    let mut buffer = [0; MTU as usize];
    while let Some(sent) = node.poll_transmit(NOW, &mut buffer) {
        match Repr::parse(&buffer[..sent.len], MAX_MESSAGE).expect("what is sent can be read") {
            Repr::Grant {
                common,
                offset,
                priority,
                ..
            } => {
                granted.push((common.local_id(), offset, priority));
            }
            Repr::Cutoffs { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    granted.sort_unstable();
    reference.issued.sort_unstable();
    assert_eq!(granted, reference.issued, "(message, granted, priority)");
    assert_eq!(node.total_incoming(), reference.total());
}
