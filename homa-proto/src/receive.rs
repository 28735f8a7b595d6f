//! Packets in: what each type does to an RPC in each state.
//!
//! The table of answers is that of the Homa draft, with what the kernel module does in practice.

use core::net::{IpAddr, SocketAddr};

use crate::buffer::BufferSource;
use crate::endpoint::{Endpoint, canonical};
use crate::error::DropReason;
use crate::incoming::Range;
use crate::list::Table;
use crate::peer;
use crate::rpc::{GrantState, Pending, RpcSlot, State, dim};
use crate::stats::count;
use crate::storage::NIL;
use crate::time::Instant;
use crate::transmit::Reply;
use crate::wire::{self, AckEntry, Common, DataView, View};

/// Messages that get their buffer in one call.
const WAITERS_PER_CALL: usize = 64;
/// Shortest time between two CUTOFFS to one peer, in nanoseconds.
const CUTOFFS_INTERVAL_NS: u64 = 1_000_000;
/// Times the time-out for which a message gets nowhere, after which its other side is no longer believed to be busy.
const BUSY_TIMEOUTS: u64 = 16;
/// RESENDs for a response that brought none of it, after which the server is no longer told to be patient.
const MAX_ASKS_WHILE_BUSY: u8 = 4;

impl<M: AsRef<[u8]>, S: BufferSource> Endpoint<'_, M, S> {
    /// Takes in one packet (the payload of one datagram): `from` is its source address, `local`
    /// the local address that it was sent to, when known.
    ///
    /// Then call [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event)
    /// until nothing comes; several packets may be handed in first.
    ///
    /// # Errors
    ///
    /// [`DropReason`] says why a packet was dropped. It has been counted; nothing is to be done.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        from: SocketAddr,
        local: Option<IpAddr>,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let now = self.advance(now);
        count(&mut self.stats.packets_received);
        self.stats.bytes_received = self.stats.bytes_received.wrapping_add(bytes.len() as u64);
        match self.take_packet(now, canonical(from), local, bytes) {
            Ok(()) => Ok(()),
            Err(why) => self.drop_packet(why),
        }
    }

    /// Takes in several packets that came together from one sender, as UDP GRO joins them: each
    /// has `segment_size` bytes, the last may have fewer. Tells how many were not dropped.
    ///
    /// The same as [`handle_packet`](Self::handle_packet) for one after the other, but what goes
    /// on where the packet before ended costs little more than the copy of its data.
    pub fn handle_packets(
        &mut self,
        now: Instant,
        from: SocketAddr,
        local: Option<IpAddr>,
        bytes: &[u8],
        segment_size: usize,
    ) -> usize {
        let sender = canonical(from);
        let mut taken = 0usize;
        self.run = NIL;
        for packet in bytes.chunks(segment_size.max(1)) {
            let is_taken = self.take_next(sender, packet)
                || self.handle_packet(now, from, local, packet).is_ok();
            taken = taken.saturating_add(usize::from(is_taken));
        }
        taken
    }

    /// Takes in a packet that goes on where the one before it, of the same batch, ended: all else
    /// that a packet brings about has been brought about by that one. `false`: it is no such
    /// packet, and nothing has been done.
    fn take_next(&mut self, from: SocketAddr, bytes: &[u8]) -> bool {
        let idx = self.run;
        let Some(rpc) = self.rpcs.lookup_mut(idx) else {
            return false;
        };
        let Ok(View::Data(data)) = View::parse(bytes, self.config.max_message) else {
            return false;
        };
        let (common, peer) = (data.common(), &self.peers[rpc.peer]);
        let version = self.key.token(peer.addr_hash, self.priorities.version);
        // Bounded by the message length (below 2^31), checked by the wire.
        let end = data.offset().saturating_add(data.data().len() as u32);
        let is_next = rpc.id == common.local_id()
            && rpc.local_port == common.dest_port
            && rpc.peer_port == common.source_port
            && peer.addr == from
            && rpc.inc.len == data.message_len()
            && rpc.inc.end() == data.offset()
            && rpc.inc.gaps().is_empty()
            && data.offset() >= rpc.gaps_asked_below
            && end < rpc.inc.len
            && data.incoming().max(end) <= rpc.inc.granted;
        let says_nothing_else = !data.retransmit()
            && data.ack().is_none()
            && data.cutoff_version() == version
            && peer.probe.is_none_or(|probe| probe.rpc != idx);
        if !is_next || !says_nothing_else || rpc.inc.accept(data.offset(), data.data()).is_err() {
            return false;
        }
        let stats = &mut self.stats;
        count(&mut stats.packets_received);
        stats.bytes_received = stats.bytes_received.wrapping_add(bytes.len() as u64);
        let fresh = data.data().len() as u64;
        stats.message_bytes_received = stats.message_bytes_received.wrapping_add(fresh);
        true
    }

    fn take_packet(
        &mut self,
        now: Instant,
        from: SocketAddr,
        local: Option<IpAddr>,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        self.run = NIL;
        let view = View::parse(bytes, self.config.max_message).map_err(DropReason::Malformed)?;
        if !self.is_address(from) {
            return Err(DropReason::BadSource);
        }
        let common = view.common();
        if !self.is_open(common.dest_port) {
            return Err(DropReason::PortNotOpen);
        }
        let p = self.peer_of(from);
        if let Some(p) = p {
            let peer = &mut self.peers[p];
            peer.heard = now;
            peer.was_heard = true;
            peer.failed_before = 0;
            peer.local = local.or(peer.local);
            if !peer.is_proved {
                peer.bytes_heard = peer.bytes_heard.saturating_add(bytes.len() as u64);
            }
        }
        let idx = p.and_then(|p| self.rpc_of(p, common.local_id()));
        // An ACK may name RPCs of any port of its sender.
        if let Some(idx) = idx
            && !matches!(view, View::Ack(_))
        {
            let rpc = &self.rpcs[idx];
            if rpc.local_port != common.dest_port || rpc.peer_port != common.source_port {
                return Err(DropReason::Mismatch);
            }
            self.heard_of(idx);
            let rpc = &self.rpcs[idx];
            if rpc.is_client() {
                // The id of a request was told to nobody else.
                self.prove(rpc.peer);
            }
        }
        match (view, p, idx) {
            (View::Data(data), _, _) => self.on_data(now, from, local, p, idx, &data),
            (View::Grant(grant), Some(_), Some(idx)) => {
                count(&mut self.stats.grants_received);
                self.on_grant(
                    now,
                    idx,
                    grant.offset(),
                    grant.priority(),
                    grant.resend_all(),
                )
            }
            (View::Resend(resend), _, Some(idx)) => {
                count(&mut self.stats.resends_received);
                let (offset, len) = (resend.offset(), resend.len());
                self.on_resend(now, idx, offset, len, resend.priority())
            }
            (View::Resend(_), _, None) => {
                count(&mut self.stats.resends_received);
                self.reply(now, from, local, common, Reply::Unknown)
            }
            (View::RpcUnknown(_), _, Some(idx)) => {
                count(&mut self.stats.unknowns_received);
                self.on_unknown(now, idx)
            }
            (View::Busy(_), _, Some(idx)) => {
                count(&mut self.stats.busys_received);
                self.on_busy(now, idx)
            }
            (View::Cutoffs(cutoffs), Some(p), _) => {
                count(&mut self.stats.cutoffs_received);
                let peer = &mut self.peers[p];
                if cutoffs.version() == 0 {
                    return Err(DropReason::Stale);
                }
                peer.cutoffs = cutoffs.cutoffs();
                peer.cutoff_version = cutoffs.version();
                if let Some(limit) = cutoffs.unscheduled_limit() {
                    peer.unscheduled_limit = limit.max(1);
                }
                Ok(())
            }
            (View::NeedAck(_), _, Some(idx)) => {
                count(&mut self.stats.need_acks_received);
                self.on_need_ack(now, idx)
            }
            (View::NeedAck(_), _, None) => {
                count(&mut self.stats.need_acks_received);
                self.reply(now, from, local, common, Reply::Ack)
            }
            (View::Ack(acks), Some(p), _) => {
                count(&mut self.stats.acks_received);
                let own = AckEntry {
                    client_id: common.sender_id,
                    server_port: common.dest_port,
                };
                self.take_ack(now, p, own);
                for ack in acks.entries() {
                    self.take_ack(now, p, ack);
                }
                Ok(())
            }
            (View::Freeze(_), _, _) => Err(DropReason::Ignored),
            (
                View::Grant(_)
                | View::RpcUnknown(_)
                | View::Busy(_)
                | View::Cutoffs(_)
                | View::Ack(_),
                _,
                _,
            ) => Err(DropReason::UnknownRpc),
        }
    }

    pub(crate) fn reply(
        &mut self,
        now: Instant,
        to: SocketAddr,
        local: Option<IpAddr>,
        common: Common,
        kind: Reply,
    ) -> Result<(), DropReason> {
        let source = self.key.addr(&to);
        if self.replies.push(now, to, source, local, common, kind) {
            Ok(())
        } else {
            count(&mut self.stats.replies_limited);
            Err(DropReason::RateLimited)
        }
    }

    fn on_data(
        &mut self,
        now: Instant,
        from: SocketAddr,
        local: Option<IpAddr>,
        p: Option<u32>,
        idx: Option<u32>,
        data: &DataView<'_>,
    ) -> Result<(), DropReason> {
        if let (Some(p), Some(ack)) = (p, data.ack()) {
            self.take_ack(now, p, ack);
        }
        let idx = match idx {
            Some(idx) => idx,
            None => match self.new_incoming_request(now, from, local, p, data) {
                Ok(idx) => idx,
                Err(why) => {
                    if why == DropReason::OverBudget && data.offset() == 0 {
                        // It is to come again later: what a stranger needs to be none, and a sign of life, lest it
                        // fails meanwhile.
                        let common = data.common();
                        if p.is_none_or(|p| !self.peers[p].is_proved) {
                            let _ = self.reply(now, from, local, common, Reply::Cutoffs);
                        }
                        let _ = self.reply(now, from, local, common, Reply::Busy);
                    }
                    return Err(why);
                }
            },
        };
        let p = self.rpcs[idx].peer;
        match data.cutoff_version() {
            0 => {}
            version if version == self.version_for(p) => self.prove(p),
            _ => self.peers[p].note_wrong_guess(),
        }
        self.check_cutoffs(now, p, &data.common(), data.cutoff_version());
        match self.rpcs[idx].state {
            State::ClientOutgoing => self.begin_response(now, idx, !data.retransmit()),
            State::ClientIncoming | State::ServerIncoming => {}
            _ => return Err(DropReason::Duplicate),
        }
        self.take_data(now, idx, data)
    }

    /// The version of the cutoffs as a peer is told it: each another, so that who knows it has been told at
    /// its own address.
    pub(crate) fn version_for(&self, p: u32) -> u16 {
        self.key
            .token(self.peers[p].addr_hash, self.priorities.version)
    }

    /// The sender does not know this endpoint's cutoffs: they are told, but not all the time.
    fn check_cutoffs(&mut self, now: Instant, p: u32, common: &Common, version: u16) {
        if version == self.version_for(p) {
            return;
        }
        let peer = &mut self.peers[p];
        let due = peer
            .cutoffs_sent
            .is_none_or(|sent| now.nanos_since(sent) >= CUTOFFS_INTERVAL_NS);
        if due && !peer.cutoffs_due {
            peer.cutoffs_due = true;
            peer.cutoffs_common = Common {
                source_port: common.dest_port,
                dest_port: common.source_port,
                sender_id: common.local_id(),
            };
            self.peers
                .push_back(&mut self.peer_control, peer::dim::CONTROL, p);
        }
    }

    /// A packet of a message that is not complete yet.
    fn take_data(&mut self, now: Instant, idx: u32, data: &DataView<'_>) -> Result<(), DropReason> {
        let p = self.rpcs[idx].peer;
        let len = data.message_len();
        if self.rpcs[idx].inc.len == 0 {
            self.begin_incoming(now, idx, data)?;
        }
        let rpc = &mut self.rpcs[idx];
        if rpc.inc.len != len {
            return Err(DropReason::LengthChanged);
        }
        if rpc.grant == GrantState::NoBuffer {
            rpc.heard = now;
            self.arm(idx);
            // What the sender will send unasked is known all the same.
            return Err(DropReason::NoBuffer);
        }
        let before = rpc.inc.received();
        let fills_asked = data.offset() < rpc.gaps_asked_below;
        let result = rpc.inc.accept(data.offset(), data.data());
        let fresh = rpc.inc.received().wrapping_sub(before);
        if fills_asked && fresh > 0 {
            let was_late = !data.retransmit();
            self.peers[p].learn_reordering(now, was_late);
            if was_late {
                count(&mut self.stats.resends_spurious);
            }
        }
        self.stats.message_bytes_received = self
            .stats
            .message_bytes_received
            .wrapping_add(u64::from(fresh));
        let is_new = !data.retransmit();
        if is_new && result == Err(DropReason::Duplicate) || fresh > 0 && rpc.tries > 0 {
            self.peers[p].learn_patience(is_new);
        }
        if rpc.inc.is_complete() {
            self.peers[p].data_heard = now;
            self.complete(now, idx);
            return result;
        }
        self.sample_round_trip(now, idx, data);
        let rpc = &mut self.rpcs[idx];
        rpc.heard = now;
        rpc.tries = 0;
        rpc.unanswered = 0;
        rpc.asks_without_data = 0;
        if fresh > 0 {
            rpc.moved = now;
        }
        rpc.has_turn = false;
        // A sender goes on to the end of its batch where a grant ends within it, and knows of
        // grants whose GRANT came to it out of order.
        let reach = data.incoming().max(rpc.inc.end());
        rpc.inc.granted = rpc.inc.granted.max(reach).min(len);
        self.note_gap(now, idx);
        let peer = &mut self.peers[p];
        peer.data_heard = now;
        if peer.is_silent {
            self.grants.unsilence(&mut self.peers, p);
        }
        self.grants.touch(&mut self.rpcs, idx);
        self.arm(idx);
        self.run = idx;
        result
    }

    /// The first packet of a message tells its length: the books open, a buffer is asked for.
    fn begin_incoming(
        &mut self,
        now: Instant,
        idx: u32,
        data: &DataView<'_>,
    ) -> Result<(), DropReason> {
        let len = data.message_len();
        if len as usize > self.source.max_len() {
            self.refuse_incoming(idx);
            return Err(DropReason::TooLongForBuffers);
        }
        let rpc = &mut self.rpcs[idx];
        rpc.inc.len = len;
        rpc.inc.granted = data.incoming().min(len);
        rpc.inc.told = rpc.inc.granted;
        let unscheduled = rpc.inc.granted;
        let changes = self.priorities.changes;
        self.priorities.observe(now, len, unscheduled);
        if self.priorities.changes != changes {
            count(&mut self.stats.cutoff_changes);
        }
        let buffer = if self.grants.is_buffer_promised(len) {
            None
        } else {
            self.source.take(len as usize)
        };
        if buffer.is_none() {
            count(&mut self.stats.buffer_waits);
            self.grants.await_buffer(&mut self.rpcs, idx);
        }
        self.rpcs[idx].inc.buffer = buffer;
        Ok(())
    }

    /// Messages that wait for a buffer get one, the best first.
    pub(crate) fn serve_waiters(&mut self, now: Instant) {
        for done in 0.. {
            let Some(idx) = self.grants.first_awaiting_buffer() else {
                return;
            };
            if done >= WAITERS_PER_CALL {
                // The next `poll_transmit` goes on, even if nothing else happens before.
                self.more_work = true;
                return;
            }
            let len = self.rpcs[idx].inc.len as usize;
            let Some(buffer) = self.source.take(len) else {
                return;
            };
            let rpc = &mut self.rpcs[idx];
            rpc.inc.buffer = Some(buffer);
            rpc.moved = now;
            rpc.heard = now;
            rpc.tries = 0;
            rpc.unanswered = 0;
            rpc.has_turn = false;
            self.grants.has_buffer(&mut self.rpcs, idx);
            // What came while there was no buffer has been dropped.
            let granted = self.rpcs[idx].inc.granted;
            if granted > 0 {
                count(&mut self.stats.resends_for_buffer);
                self.ask_for(
                    now,
                    idx,
                    Range {
                        start: 0,
                        end: granted,
                    },
                );
            }
            self.arm(idx);
        }
    }

    /// Round trips: from a grant to data that could not have come without it, from a RESEND to
    /// what it asked for.
    fn sample_round_trip(&mut self, now: Instant, idx: u32, data: &DataView<'_>) {
        let rpc = &self.rpcs[idx];
        let peer = &mut self.peers[rpc.peer];
        if data.retransmit() {
            // After several RESENDs nobody knows which was answered (Karn).
            if rpc.tries == 1 && rpc.asked > rpc.heard {
                peer.rtt.sample(now.nanos_since(rpc.asked));
            }
            return;
        }
        if let Some(probe) = peer.probe
            && probe.rpc == idx
            && probe.birth == rpc.birth
            && data.offset() >= probe.offset
        {
            peer.rtt.sample(now.nanos_since(probe.sent));
            peer.note_calm();
            peer.probe = None;
        }
    }

    /// Data that leaves a hole behind starts the clock of the reordering allowance.
    fn note_gap(&mut self, now: Instant, idx: u32) {
        let allowance = self.reorder_allowance(idx);
        let rpc = &mut self.rpcs[idx];
        if rpc.gap_due != Instant::MAX {
            return;
        }
        let Some(last) = rpc.inc.gaps().last() else {
            return;
        };
        if last.end > rpc.gaps_asked_below {
            rpc.gaps_seen_below = rpc.inc.end();
            rpc.gap_due = now.after(allowance);
        }
    }

    fn on_grant(
        &mut self,
        now: Instant,
        idx: u32,
        offset: u32,
        priority: u8,
        resend_all: bool,
    ) -> Result<(), DropReason> {
        let rpc = &mut self.rpcs[idx];
        if !rpc.state.sends() {
            return Err(DropReason::Mismatch);
        }
        rpc.heard = now;
        rpc.tries = 0;
        rpc.unanswered = 0;
        if offset > rpc.out.granted {
            rpc.moved = now;
        }
        rpc.has_turn = false;
        self.more_to_send(now, idx);
        let rpc = &mut self.rpcs[idx];
        let offset = offset.min(rpc.out.len);
        let mut news = false;
        if resend_all {
            let range = Range {
                start: 0,
                end: offset.min(rpc.out.sent),
            };
            rpc.out.retransmit_priority = priority;
            if !rpc.out.retransmit(range) {
                count(&mut self.stats.retransmits_refused);
            }
            news = true;
        }
        // The kernel repeats grants with the priority of the moment.
        if offset >= rpc.out.granted && offset > rpc.out.unscheduled {
            news |= offset > rpc.out.granted || priority != rpc.out.sched_priority;
            rpc.out.granted = offset;
            rpc.out.sched_priority = priority;
        }
        if !news {
            self.arm(idx);
            return Err(DropReason::Stale);
        }
        self.requeue(now, idx);
        Ok(())
    }

    /// The other side asks for bytes again.
    fn on_resend(
        &mut self,
        now: Instant,
        idx: u32,
        offset: u32,
        len: u32,
        priority: u8,
    ) -> Result<(), DropReason> {
        match self.rpcs[idx].state {
            State::ServerIncoming if self.waits_as_stranger(idx) => self.start_over(now, idx),
            // Here the other side is the client, which waits for a response.
            State::ServerIncoming => {
                if self.rpcs[idx].grant == GrantState::NoBuffer {
                    self.rpcs[idx].heard = now;
                    self.arm(idx);
                }
                self.respond(idx, Pending::BUSY);
                self.ask_if_overdue(now, idx);
                Ok(())
            }
            State::ServerArrived | State::ServerInService => {
                self.respond(idx, Pending::BUSY);
                Ok(())
            }
            // A server that asks for a request which it has begun to answer has restarted. If no more of
            // the response comes either, both sides would keep each other alive by being busy.
            State::ClientIncoming => {
                if self.rpcs[idx].asks_without_data >= MAX_ASKS_WHILE_BUSY {
                    return Err(DropReason::Stale);
                }
                self.respond(idx, Pending::BUSY);
                Ok(())
            }
            State::ClientOutgoing if !self.may_send_again(now, idx) => {
                self.fail_as_too_late(now, idx);
                Ok(())
            }
            State::ClientOutgoing | State::ServerOutgoing => {
                self.resend_range(now, idx, offset, len, priority);
                Ok(())
            }
            _ => Err(DropReason::Mismatch),
        }
    }

    fn resend_range(&mut self, now: Instant, idx: u32, offset: u32, len: u32, priority: u8) {
        let rpc = &mut self.rpcs[idx];
        if rpc.state == State::ServerOutgoing {
            // The client lives: its response is not given up.
            rpc.heard = now;
        }
        if len == 0 {
            // A probe: it asks for a sign of life, not for bytes.
            self.respond(idx, Pending::BUSY);
            return;
        }
        if rpcs_is_short_queued(&self.rpcs, idx) {
            // None of it has gone yet, and it goes with the next packets.
            return;
        }
        self.more_to_send(now, idx);
        let rpc = &mut self.rpcs[idx];
        let end = match len {
            wire::ALL => rpc.out.sent,
            len => offset.saturating_add(len).min(rpc.out.len),
        };
        // Beyond what was granted: the GRANT was lost.
        rpc.out.granted = rpc.out.granted.max(end);
        rpc.out.retransmit_priority = priority;
        let again = Range {
            start: offset.min(end),
            end: end.min(rpc.out.sent),
        };
        if again.start < again.end && !rpc.out.retransmit(again) {
            count(&mut self.stats.retransmits_refused);
        }
        self.requeue(now, idx);
        let goes_now = self.rpcs[idx].out.is_sendable()
            && self.queue.is_first(idx)
            && self.pacer.is_ready(now);
        if !goes_now {
            self.respond(idx, Pending::BUSY);
        }
    }

    fn on_busy(&mut self, now: Instant, idx: u32) -> Result<(), DropReason> {
        let rpc = &mut self.rpcs[idx];
        if !rpc.state.is_live() {
            return Err(DropReason::Mismatch);
        }
        if rpc.state.receives() && rpc.tries == 1 && rpc.asked > rpc.heard {
            self.peers[rpc.peer].rtt.sample(now.nanos_since(rpc.asked));
        }
        let rpc = &mut self.rpcs[idx];
        let most = self.config.timeout_ns.saturating_mul(BUSY_TIMEOUTS);
        if rpc.state != State::ClientOutgoing && now.nanos_since(rpc.moved) > most {
            // Whatever keeps it busy, it does not get on: from here on that is silence.
            count(&mut self.stats.busy_too_long);
            return Err(DropReason::Stale);
        }
        // The clock of the time-out starts again, but not the back-off: a busy peer is not asked
        // at the pace of a lossy one. A client that has no grant to give is asked in good time.
        rpc.heard = now;
        rpc.unanswered = 0;
        rpc.has_turn = false;
        self.note_busy_sitting(now, idx);
        let rpc = &mut self.rpcs[idx];
        if rpc.state == State::ServerOutgoing {
            rpc.tries = 0;
            rpc.unanswered = 0;
            rpc.has_turn = false;
        }
        self.arm(idx);
        Ok(())
    }

    fn on_unknown(&mut self, now: Instant, idx: u32) -> Result<(), DropReason> {
        match self.rpcs[idx].state {
            State::ClientOutgoing => self.restart_request(now, idx),
            // A late answer to an earlier RESEND; if the server really forgot, silence tells.
            State::ClientIncoming => Err(DropReason::Stale),
            State::ServerIncoming
            | State::ServerArrived
            | State::ServerInService
            | State::ServerOutgoing => {
                self.client_gone(now, idx);
                Ok(())
            }
            _ => Err(DropReason::Mismatch),
        }
    }

    /// An acknowledgement of one of `p`'s RPCs.
    fn take_ack(&mut self, now: Instant, p: u32, ack: AckEntry) {
        let acknowledged = (ack.client_id & 1 == 0)
            .then(|| self.rpc_of(p, ack.client_id ^ 1))
            .flatten()
            .filter(|&idx| self.rpcs[idx].local_port == ack.server_port);
        match acknowledged {
            Some(idx) => self.on_ack(now, idx),
            None => count(&mut self.stats.acks_stale),
        }
    }

    fn on_ack(&mut self, now: Instant, idx: u32) {
        if self.rpcs[idx].state == State::ServerOutgoing {
            count(&mut self.stats.acknowledged);
            self.release(now, idx, None);
        } else {
            count(&mut self.stats.acks_stale);
        }
    }

    /// A control packet for an RPC is due.
    pub(crate) fn respond(&mut self, idx: u32, what: u8) {
        self.rpcs[idx].pending.set(what);
        self.rpcs.push_back(&mut self.control, dim::CONTROL, idx);
    }

    /// Control packets for an RPC are no longer wanted.
    pub(crate) fn retract(&mut self, idx: u32, what: u8) {
        self.rpcs[idx].pending.clear(what);
        if !self.rpcs[idx].pending.any() {
            self.rpcs.unlink(&mut self.control, dim::CONTROL, idx);
        }
    }

    /// The incoming message is whole.
    fn complete(&mut self, now: Instant, idx: u32) {
        self.grants.forget(&mut self.rpcs, &mut self.peers, idx);
        let p = self.rpcs[idx].peer;
        if self.peers[p].is_silent {
            self.grants.unsilence(&mut self.peers, p);
        }
        if self.rpcs[idx].is_client() {
            self.finish_response(now, idx);
        } else {
            self.finish_request(idx);
        }
    }
}

/// Whether a message of one short packet waits to be sent for the first time.
fn rpcs_is_short_queued<M, B>(rpcs: &Table<'_, RpcSlot<M, B>>, idx: u32) -> bool {
    rpcs[idx].state.sends() && rpcs.is_listed(dim::QUEUE, idx) && !rpcs[idx].is_parked
}
