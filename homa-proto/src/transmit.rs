//! Packets out: control packets first, then short messages, then what the pacer lets go.

use core::net::{IpAddr, SocketAddr};

use crate::buffer::BufferSource;
use crate::endpoint::{Endpoint, Gather, MAX_DATAGRAM, Transmit};
use crate::incoming::Range;
use crate::outgoing::Piece;
use crate::peer::{self, Probe};
use crate::rpc::{Pending, dim};
use crate::stats::count;
use crate::time::Instant;
use crate::wire::{self, Acks, Common, DATA_LEN, DataHeader, Repr};

/// Priority of all control packets.
const CONTROL_PRIORITY: u8 = 7;
/// Answers to unknown RPCs that wait to be sent.
const MAX_REPLIES: usize = 64;
/// Shares of these answers, by source.
const SHARES: usize = 16;
/// Time between two such answers of one share once so many have gone in a burst, in nanoseconds.
const REPLY_SPACING_NS: u64 = 80_000;
const BURST: u64 = 7;
/// A probe of the round trip that has found no answer for so long is given up.
const PROBE_LIFE_NS: u64 = 1_000_000_000;
/// Fewer bytes are copied rather than lent: a copy costs less than a list of pieces.
const MIN_LENT: u32 = 4096;

/// What a packet of an unknown RPC is answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Unknown,
    Ack,
    Busy,
    Cutoffs,
}

#[derive(Clone, Copy, Debug)]
struct WaitingReply {
    to: SocketAddr,
    local: Option<IpAddr>,
    common: Common,
    kind: Reply,
}

/// Answers to packets of unknown RPCs: no state is kept for these, so the answers wait here,
/// limited in number and rate.
#[derive(Debug)]
pub(crate) struct Replies {
    ring: [Option<WaitingReply>; MAX_REPLIES],
    first: usize,
    count: usize,
    /// When the answers so far will have been paid for, by the hash of where they go: one source that
    /// floods uses up its own share.
    paid: [Instant; SHARES],
}

impl Replies {
    pub(crate) const fn new() -> Self {
        Self {
            ring: [None; MAX_REPLIES],
            first: 0,
            count: 0,
            paid: [Instant::ZERO; SHARES],
        }
    }

    /// `false`: no room, or too many lately.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        to: SocketAddr,
        source: u64,
        local: Option<IpAddr>,
        packet: Common,
        kind: Reply,
    ) -> bool {
        let share = source as usize % SHARES;
        let Some(paid) = self.paid.get_mut(share) else {
            return false;
        };
        let burst = REPLY_SPACING_NS.saturating_mul(BURST);
        if self.count >= MAX_REPLIES || *paid > now.after(burst) {
            return false;
        }
        *paid = (*paid).max(now).after(REPLY_SPACING_NS);
        let at = self.first.saturating_add(self.count) % MAX_REPLIES;
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = Some(WaitingReply {
                to,
                local,
                common: Common {
                    source_port: packet.dest_port,
                    dest_port: packet.source_port,
                    sender_id: packet.local_id(),
                },
                kind,
            });
        }
        self.count = self.count.saturating_add(1);
        true
    }

    fn pop(&mut self) -> Option<WaitingReply> {
        if self.count == 0 {
            return None;
        }
        let reply = self.ring.get_mut(self.first)?.take();
        self.first = self.first.saturating_add(1) % MAX_REPLIES;
        self.count = self.count.saturating_sub(1);
        reply
    }
}

/// How packets are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Header and payload.
    Whole,
    /// The headers only, where the payload is long enough to be lent.
    Lent,
}

/// What has been written.
struct Written {
    transmit: Transmit,
    /// The part of the message whose headers only have been written.
    lent: Option<(u32, Range)>,
}

impl From<Transmit> for Written {
    fn from(transmit: Transmit) -> Self {
        Self {
            transmit,
            lent: None,
        }
    }
}

impl<M: AsRef<[u8]>, S: BufferSource> Endpoint<'_, M, S> {
    /// Writes the next packets to send to `buffer`: one, or several of equal length to one
    /// destination at one priority, as many as fit (see [`Config::max_batch`]).
    ///
    /// Call after each input and at each timeout until `None` comes. `None`: nothing may go now;
    /// if only the pacer holds data back, [`poll_timeout`](Self::poll_timeout) says until when.
    /// `buffer` must hold the largest IP packet at least; in a smaller one packets that do not
    /// fit stay where they are.
    ///
    /// [`Config::max_batch`]: crate::Config::max_batch
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        self.next_packets(now, buffer, Form::Whole)
            .map(|written| written.transmit)
    }

    /// Like [`poll_transmit`](Self::poll_transmit), for carriers that collect a datagram from
    /// several places: of long messages only the headers are written to `buffer`, and the payload
    /// is lent from the message itself, which saves a copy.
    ///
    /// The same packets go in the same order whichever of the two is called, and both may be
    /// called in turns. The loan ends with the next call of this endpoint. `None` for a batch too
    /// when a message got shorter while it was sent, which is its owner's mistake.
    pub fn poll_transmit_gather(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Gather<'_>> {
        let Written { transmit, lent } = self.next_packets(now, buffer, Form::Lent)?;
        let payload = match lent {
            None => &[],
            Some((idx, range)) => self.bytes_of(idx, range)?,
        };
        Some(Gather { transmit, payload })
    }

    /// Bytes of an outgoing message.
    fn bytes_of(&self, idx: u32, range: Range) -> Option<&[u8]> {
        let message = self.rpcs[idx].out.message.as_ref()?;
        message
            .as_ref()
            .get(range.start as usize..range.end as usize)
    }

    fn next_packets(&mut self, now: Instant, buffer: &mut [u8], form: Form) -> Option<Written> {
        let now = self.advance(now);
        if buffer.len() < usize::from(self.config.mtu) {
            return None;
        }
        self.unpark(now, false);
        // Buffers may have come free without this endpoint being told.
        if self.grants.first_awaiting_buffer().is_some() {
            self.serve_waiters(now);
        }
        if self.grants.needs_decision() {
            self.grants.decide(
                &mut self.rpcs,
                &mut self.peers,
                &self.priorities,
                &mut self.control,
                &mut self.stats,
            );
        }
        let sent = self
            .write_control(now, buffer)
            .or_else(|| self.write_short(now, buffer))
            .map(Written::from)
            .or_else(|| self.write_data(now, buffer, form));
        match &sent {
            Some(Written { transmit, .. }) => {
                let packets = match transmit.segment_size {
                    Some(size) => transmit.len.div_ceil(size.max(1)),
                    None => 1,
                } as u64;
                let headers = self.header_bytes(transmit.to).saturating_mul(packets);
                let bytes = (transmit.len as u64).saturating_add(headers);
                self.pacer.charge(now, bytes, packets);
                self.stats.packets_sent = self.stats.packets_sent.wrapping_add(packets);
                self.stats.bytes_sent = self.stats.bytes_sent.wrapping_add(transmit.len as u64);
            }
            None => {
                if self.sender_idle_since.is_none() && self.stalled > 0 && self.queue.is_empty() {
                    self.sender_idle_since = Some(now.max(self.pacer.idle_since()));
                }
            }
        }
        sent
    }

    /// Bytes of the headers below Homa's, for one packet.
    fn header_bytes(&self, to: SocketAddr) -> u64 {
        let ip: u64 = if to.is_ipv6() { 40 } else { 20 };
        match self.config.carrier {
            crate::Carrier::Udp => ip.saturating_add(8),
            crate::Carrier::NativeIp => ip,
        }
    }

    fn write_control(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        if let Some(reply) = self.replies.pop() {
            let repr = match reply.kind {
                Reply::Unknown => {
                    count(&mut self.stats.unknowns_sent);
                    Repr::RpcUnknown(reply.common)
                }
                Reply::Busy => {
                    count(&mut self.stats.busys_sent);
                    Repr::Busy(reply.common)
                }
                Reply::Cutoffs => {
                    count(&mut self.stats.cutoffs_sent);
                    let hash = self.key.addr(&reply.to);
                    self.cutoffs_for(reply.common, hash)
                }
                Reply::Ack => {
                    count(&mut self.stats.acks_sent);
                    Repr::Ack {
                        common: reply.common,
                        acks: Acks::new(),
                    }
                }
            };
            return Some(Transmit {
                to: reply.to,
                local: reply.local,
                priority: CONTROL_PRIORITY,
                len: repr.emit(buffer)?,
                segment_size: None,
            });
        }
        while let Some(idx) = self.control.first() {
            if !self.may_be_told(idx) {
                self.rpcs[idx].pending = Pending::default();
                self.rpcs.unlink(&mut self.control, dim::CONTROL, idx);
                count(&mut self.stats.withheld_from_strangers);
                self.arm(idx);
                continue;
            }
            let written = self.write_rpc_control(now, idx, buffer);
            if !self.rpcs[idx].pending.any() {
                self.rpcs.unlink(&mut self.control, dim::CONTROL, idx);
            }
            if let Some(len) = written {
                let p = self.rpcs[idx].peer;
                if !self.rpcs[idx].is_client() {
                    self.note_told(p, len);
                }
                return Some(self.single(p, CONTROL_PRIORITY, len));
            }
        }
        while let Some(p) = self.peer_control.first() {
            match self.write_peer_control(now, p, buffer) {
                Some(len) => return Some(self.single(p, CONTROL_PRIORITY, len)),
                None => self
                    .peers
                    .unlink(&mut self.peer_control, peer::dim::CONTROL, p),
            }
        }
        None
    }

    /// Whether a control packet for an RPC may go: to a stranger not more than its packets allow. What this
    /// endpoint has begun itself is its own affair.
    fn may_be_told(&self, idx: u32) -> bool {
        let rpc = &self.rpcs[idx];
        rpc.is_client() || self.peers[rpc.peer].may_be_told(DATA_LEN)
    }

    fn note_told(&mut self, p: u32, len: usize) {
        let peer = &mut self.peers[p];
        if !peer.is_proved {
            peer.bytes_told = peer.bytes_told.saturating_add(len as u64);
        }
    }

    fn single(&self, p: u32, priority: u8, len: usize) -> Transmit {
        let peer = &self.peers[p];
        Transmit {
            to: peer.addr,
            local: peer.local,
            priority,
            len,
            segment_size: None,
        }
    }

    fn common(&self, idx: u32) -> Common {
        let rpc = &self.rpcs[idx];
        Common {
            source_port: rpc.local_port,
            dest_port: rpc.peer_port,
            sender_id: rpc.id,
        }
    }

    /// One of the control packets that are due for an RPC.
    fn write_rpc_control(&mut self, now: Instant, idx: u32, buffer: &mut [u8]) -> Option<usize> {
        let common = self.common(idx);
        let rpc = &mut self.rpcs[idx];
        if rpc.pending.has(Pending::GRANT) {
            rpc.pending.clear(Pending::GRANT);
            let grant = Repr::Grant {
                common,
                offset: rpc.inc.granted,
                priority: rpc.grant_priority,
                resend_all: false,
            };
            let first_new = rpc.inc.told;
            rpc.inc.told = rpc.inc.granted;
            // The sender's turn begins now.
            rpc.heard = now;
            rpc.moved = now;
            rpc.tries = 0;
            let birth = rpc.birth;
            let peer = &mut self.peers[rpc.peer];
            let is_free = peer.probe.is_none_or(|probe| {
                self.rpcs[probe.rpc].birth != probe.birth
                    || !self.rpcs[probe.rpc].state.receives()
                    || now.nanos_since(probe.sent) > PROBE_LIFE_NS
            });
            if is_free {
                peer.probe = Some(Probe {
                    rpc: idx,
                    birth,
                    offset: first_new,
                    sent: now,
                });
            }
            count(&mut self.stats.grants_sent);
            self.arm(idx);
            return grant.emit(buffer);
        }
        if rpc.pending.has(Pending::RESEND) {
            if let Some(missing) = rpc.inc.next_missing(rpc.ask_from, rpc.ask_below) {
                rpc.ask_from = missing.end;
                let resend = Repr::Resend {
                    common,
                    offset: missing.start,
                    len: missing.len(),
                    priority: CONTROL_PRIORITY,
                };
                count(&mut self.stats.resends_sent);
                return resend.emit(buffer);
            }
            rpc.pending.clear(Pending::RESEND);
        }
        let rpc = &mut self.rpcs[idx];
        if rpc.pending.has(Pending::RESEND_ALL) {
            rpc.pending.clear(Pending::RESEND_ALL);
            count(&mut self.stats.resends_sent);
            let resend = Repr::Resend {
                common,
                offset: 0,
                len: wire::ALL,
                priority: CONTROL_PRIORITY,
            };
            return resend.emit(buffer);
        }
        if rpc.pending.has(Pending::PROBE) {
            rpc.pending.clear(Pending::PROBE);
            count(&mut self.stats.probes_sent);
            let probe = Repr::Resend {
                common,
                offset: 0,
                len: 0,
                priority: CONTROL_PRIORITY,
            };
            return probe.emit(buffer);
        }
        if rpc.pending.has(Pending::BUSY) {
            rpc.pending.clear(Pending::BUSY);
            count(&mut self.stats.busys_sent);
            return Repr::Busy(common).emit(buffer);
        }
        if rpc.pending.has(Pending::NEED_ACK) {
            rpc.pending.clear(Pending::NEED_ACK);
            count(&mut self.stats.need_acks_sent);
            return Repr::NeedAck(common).emit(buffer);
        }
        if rpc.pending.has(Pending::ANNOUNCE) {
            rpc.pending.clear(Pending::ANNOUNCE);
            if rpc.out.sent > 0 {
                return None;
            }
            count(&mut self.stats.announces_sent);
            return self.data_header(idx, 0, false).emit(buffer);
        }
        None
    }

    /// This endpoint's cutoffs, for the peer whose address has this hash.
    fn cutoffs_for(&self, common: Common, addr_hash: u64) -> Repr<'static> {
        Repr::Cutoffs {
            common,
            cutoffs: self.priorities.cutoffs,
            version: self.key.token(addr_hash, self.priorities.version),
            unscheduled_limit: Some(self.config.unscheduled_limit()),
        }
    }

    /// One of the control packets that are due for a peer.
    fn write_peer_control(&mut self, now: Instant, p: u32, buffer: &mut [u8]) -> Option<usize> {
        let peer = &mut self.peers[p];
        if peer.cutoffs_due && !peer.may_be_told(wire::CUTOFFS_LIMIT_LEN) {
            peer.cutoffs_due = false;
            count(&mut self.stats.withheld_from_strangers);
        }
        let peer = &mut self.peers[p];
        if peer.cutoffs_due {
            peer.cutoffs_due = false;
            peer.cutoffs_sent = Some(now);
            count(&mut self.stats.cutoffs_sent);
            let (common, hash) = (peer.cutoffs_common, peer.addr_hash);
            let len = self.cutoffs_for(common, hash).emit(buffer)?;
            self.note_told(p, len);
            return Some(len);
        }
        if !peer.acks_due {
            return None;
        }
        // The header acknowledges one RPC, the list up to five more.
        let Some(first) = self.acks.pop(&mut peer.acks) else {
            peer.acks_due = false;
            self.peers.unlink(&mut self.ack_order, peer::dim::ACKS, p);
            return None;
        };
        let mut acks = Acks::new();
        while !acks.is_full()
            && let Some(entry) = self.acks.pop(&mut peer.acks)
            && acks.push(entry)
        {}
        let common = Common {
            source_port: peer.ack_local_port,
            dest_port: first.server_port,
            sender_id: first.client_id,
        };
        if peer.acks.count() == 0 {
            peer.acks_due = false;
            self.peers.unlink(&mut self.ack_order, peer::dim::ACKS, p);
        }
        count(&mut self.stats.acks_sent);
        Repr::Ack { common, acks }.emit(buffer)
    }

    /// The header of a DATA packet. An acknowledgement that waits for the peer rides along.
    #[inline(always)]
    fn data_header(&mut self, idx: u32, offset: u32, retransmit: bool) -> DataHeader {
        let common = self.common(idx);
        let rpc = &self.rpcs[idx];
        let p = rpc.peer;
        let (message_len, incoming) = (rpc.out.len, rpc.out.granted);
        let peer = &mut self.peers[p];
        let cutoff_version = peer.cutoff_version;
        let ack = self.acks.pop(&mut peer.acks);
        if ack.is_some() {
            count(&mut self.stats.acks_piggybacked);
            if peer.acks.count() == 0 {
                peer.acks_due = false;
                self.peers.unlink(&mut self.ack_order, peer::dim::ACKS, p);
            }
        }
        DataHeader {
            common,
            message_len,
            incoming,
            ack,
            cutoff_version,
            retransmit,
            flags: 0,
            offset,
        }
    }

    /// Writes one DATA packet with the bytes of `range`, or its header, to the front of `buffer`;
    /// tells how much that was.
    #[inline(always)]
    fn write_packet(
        &mut self,
        idx: u32,
        range: Range,
        retransmit: bool,
        form: Form,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let len = match form {
            Form::Whole => DATA_LEN.saturating_add(range.len() as usize),
            Form::Lent => DATA_LEN,
        };
        let place = buffer.get_mut(..len)?;
        let header = self.data_header(idx, range.start, retransmit);
        header.emit(place)?;
        // A message that gets shorter while it is sent is the caller's mistake: zeros go out.
        if form == Form::Whole
            && let Some(body) = place.get_mut(DATA_LEN..)
        {
            match self.bytes_of(idx, range) {
                Some(data) => body.copy_from_slice(data),
                None => body.fill(0),
            }
        }
        count(&mut self.stats.data_sent);
        if retransmit {
            count(&mut self.stats.retransmits_sent);
            if self.rpcs[idx].out.rounds > 1 {
                count(&mut self.stats.retransmits_repeated);
            }
        } else {
            let bytes = u64::from(range.len());
            self.stats.message_bytes_sent = self.stats.message_bytes_sent.wrapping_add(bytes);
        }
        Some(len)
    }

    /// Messages of one short packet, which do not wait for the pacer: as many as go to one peer
    /// at one priority in packets of one length.
    fn write_short(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        let first = &self.rpcs[self.queue.short.first()?];
        let (p, first_len) = (first.peer, first.out.len);
        let priority = self.peers[p].unscheduled_priority(first_len);
        let segment = DATA_LEN.saturating_add(first_len as usize);
        let room = MAX_DATAGRAM.min(buffer.len());
        let most = usize::from(self.config.max_batch);
        let (mut len, mut packets) = (0usize, 0usize);
        while let Some(idx) = self.queue.short.first() {
            let rpc = &self.rpcs[idx];
            let message_len = rpc.out.len;
            let this = DATA_LEN.saturating_add(message_len as usize);
            let fits = rpc.peer == p
                && this <= segment
                && packets < most
                && len.saturating_add(this) <= room
                && (message_len == first_len
                    || self.peers[p].unscheduled_priority(message_len) == priority);
            if packets > 0 && !fits {
                break;
            }
            let range = Range {
                start: 0,
                end: message_len,
            };
            let place = buffer.get_mut(len..)?;
            self.write_packet(idx, range, false, Form::Whole, place)?;
            self.rpcs.pop_front(&mut self.queue.short, dim::QUEUE);
            self.rpcs[idx].out.sent = message_len;
            self.all_sent(now, idx);
            len = len.saturating_add(this);
            packets = packets.saturating_add(1);
            if this < segment {
                break;
            }
        }
        Some(self.batch(p, priority, len, segment))
    }

    fn batch(&self, p: u32, priority: u8, len: usize, segment: usize) -> Transmit {
        Transmit {
            segment_size: (len > segment).then_some(segment),
            ..self.single(p, priority, len)
        }
    }

    fn piece_priority(&self, idx: u32, piece: Piece) -> u8 {
        let rpc = &self.rpcs[idx];
        if piece.retransmit {
            rpc.out.retransmit_priority
        } else if piece.range.start < rpc.out.unscheduled {
            self.peers[rpc.peer].unscheduled_priority(rpc.out.len)
        } else {
            rpc.out.sched_priority
        }
    }

    /// The message that goes next sends as much as the pacer allows in one batch.
    fn write_data(&mut self, now: Instant, buffer: &mut [u8], form: Form) -> Option<Written> {
        if self.queue.is_empty() || !self.pacer.is_ready(now) {
            return None;
        }
        let (pick, first) = loop {
            let pick = self.queue.pick(&self.rpcs)?;
            let first = self.rpcs[pick.idx].out.next_piece()?;
            if !first.retransmit || self.may_send_again(now, pick.idx) {
                break (pick, first);
            }
            // Asked for before this host stood still. If the server still wants it, it asks again.
            self.rpcs[pick.idx].out.forget_retransmits();
            self.requeue(now, pick.idx);
        };
        let idx = pick.idx;
        let p = self.rpcs[idx].peer;
        let priority = self.piece_priority(idx, first);
        let form = if first.retransmit || first.range.len() < MIN_LENT {
            Form::Whole
        } else {
            form
        };
        let payload = self.config.max_payload(self.peers[p].addr.is_ipv6());
        let allowance = self.pacer.allowance(now);
        let overhead = self.header_bytes(self.peers[p].addr);
        let (mut len, mut segment, mut packets, mut wire) = (0usize, 0usize, 0usize, 0u64);
        // Of `buffer`, how much is in use; of the message, up to where it goes in this batch.
        let (mut used, mut end) = (0usize, first.range.start);
        while let Some(piece) = self.rpcs[idx].out.next_piece() {
            let start = piece.range.start;
            let take = u32::try_from(payload)
                .unwrap_or(u32::MAX)
                .min(piece.range.len());
            let this = DATA_LEN.saturating_add(take as usize);
            let fits = this <= segment
                && piece.retransmit == first.retransmit
                && packets < usize::from(self.config.max_batch)
                && len.saturating_add(this) <= MAX_DATAGRAM
                && used.saturating_add(if form == Form::Lent { DATA_LEN } else { this })
                    <= buffer.len()
                && wire < allowance
                && (len.saturating_add(this) as u64) <= pick.turn_bytes
                && self.piece_priority(idx, piece) == priority;
            if packets > 0 && !fits {
                break;
            }
            let range = Range {
                start,
                end: start.saturating_add(take),
            };
            let place = buffer.get_mut(used..)?;
            let written = self.write_packet(idx, range, piece.retransmit, form, place)?;
            used = used.saturating_add(written);
            end = range.end;
            self.rpcs[idx].out.advance(piece, range.end);
            if packets == 0 {
                segment = this;
            }
            len = len.saturating_add(this);
            wire = wire.saturating_add(this as u64).saturating_add(overhead);
            packets = packets.saturating_add(1);
            if this < segment {
                break;
            }
        }
        self.queue.charge(pick, len as u64);
        if self.rpcs[idx].out.all_allowed_sent() {
            self.all_sent(now, idx);
        }
        self.requeue(now, idx);
        let lent = (form == Form::Lent).then_some((
            idx,
            Range {
                start: first.range.start,
                end,
            },
        ));
        Some(Written {
            transmit: self.batch(p, priority, len, segment),
            lent,
        })
    }
}
