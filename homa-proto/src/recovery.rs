//! Silence: when it counts, what it is answered with, and when it ends an RPC.
//!
//! Homa draft, "Lost packets", and the kernel module's timer. Silence counts only while the ball
//! is in the other side's court; its limit follows what has been measured of the peer.

use crate::buffer::BufferSource;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::error::RpcError;
use crate::incoming::Range;
use crate::peer::{self, PeerSlot};
use crate::rpc::{GrantState, Pending, RpcSlot, State, dim};
use crate::stats::count;
use crate::time::Instant;

/// Timers that one call of `handle_timeout` works off.
const TIMERS_PER_CALL: usize = 256;
/// Peers whose acknowledgements become due in one call of `handle_timeout`.
const ACKS_PER_CALL: usize = 256;
/// Parked requests that begin in one call of `poll_transmit`.
const UNPARKS_PER_CALL: usize = 64;
/// RESENDs that an RPC makes at least before it is given up.
const MIN_TRIES: u8 = 2;
/// The interval is doubled this many times at most.
const MAX_DOUBLINGS: u32 = 16;
/// How often, within the time-out, a server asks a client that grants it nothing whether it lives.
const PROBES_PER_TIMEOUT: u64 = 4;
/// RESENDs to one peer in each `resend_floor_ns`.
const RESENDS_PER_FLOOR: u64 = 16;
/// Floors for which silence is not held against anybody after a late call, and between two such
/// times.
const GRACE_FLOORS: u64 = 1;
const BETWEEN_GRACES_FLOORS: u64 = 8;

/// Messages up to this length do not wait for the pacer (the kernel's `throttle_min_bytes`). With whole packets
/// a card's queue, first in first out, would grow long where most messages are of one packet.
const SHORT_BYTES: u32 = 200;

impl<M: AsRef<[u8]>, S: BufferSource> Endpoint<'_, M, S> {
    /// Does what is due at `now`: call it when [`poll_timeout`](Self::poll_timeout) says so. Then
    /// call `poll_transmit` and `poll_event` until nothing comes. Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.advance(now);
        self.more_work = false;
        self.notice_lateness(now);
        self.unpark(now, true);
        for done in 0.. {
            let Some((idx, is_armed)) = self.timers.expire(now.as_nanos()) else {
                break;
            };
            if is_armed {
                self.on_timer(now, idx);
            }
            if done >= TIMERS_PER_CALL {
                self.more_work = true;
                break;
            }
        }
        for done in 0.. {
            let Some(p) = self.ack_order.first() else {
                break;
            };
            if done >= ACKS_PER_CALL {
                self.more_work = true;
                break;
            }
            let due = self.peers[p].acks_since.after(self.config.ack_delay_ns);
            if due > now {
                break;
            }
            self.peers.unlink(&mut self.ack_order, peer::dim::ACKS, p);
            self.flush_acks(p);
        }
    }

    /// If this call comes late, packets may wait in the carrier that nobody has looked at yet:
    /// for a moment silence is not held against the peers, lest a sleeper wakes with a storm.
    fn notice_lateness(&mut self, now: Instant) {
        let floor = self.config.resend_floor_ns;
        if self.grace_until != Instant::ZERO && now >= self.grace_until {
            // However late this call is: a loop that is always late must get on too.
            self.grace_until = Instant::ZERO;
            return;
        }
        let Some(due) = self.timers.next() else {
            return;
        };
        // What was due before there were RPCs kept nobody waiting.
        let due = Instant::from_nanos(due).max(self.busy_since);
        let late = now.nanos_since(due) > floor;
        if late && now >= self.next_grace && self.grace_until == Instant::ZERO {
            count(&mut self.stats.late_timeouts);
            self.grace_until = now.after(floor.saturating_mul(GRACE_FLOORS));
            let between = floor.saturating_mul(BETWEEN_GRACES_FLOORS);
            self.next_grace = self.grace_until.after(between);
        }
    }

    /// The timer of an RPC is armed for when it is next due, or earlier: it is looked at then.
    pub(crate) fn arm(&mut self, idx: u32) {
        // Who waits for a turn to ask comes when it is, or when the RPC has gone on.
        if self.rpcs[idx].has_turn && self.timers.armed(idx).is_some() {
            return;
        }
        let Some(due) = self.next_due(idx) else {
            return;
        };
        // What is overdue already is looked at next, not now: the time-out after this call is
        // later than `now`, whatever happens.
        let due = due.max(self.now.after(1)).as_nanos();
        self.timers.set_by(idx, due);
    }

    /// Arms the timer of an RPC all of whose message has gone. When it is next due is not worked out if it will
    /// most likely have been answered before anything can be due.
    #[inline(always)]
    fn arm_soon(&mut self, idx: u32) {
        let rpc = &self.rpcs[idx];
        let answers_late = self.peers[rpc.peer].service.mean() > Some(self.soonest_ns);
        let may_be_due = rpc.unanswered >= MIN_TRIES || rpc.deadline != Instant::MAX;
        if answers_late || may_be_due || rpc.has_turn {
            self.arm(idx);
            return;
        }
        let soon = self.now.after(self.soonest_ns);
        self.timers.set_by(idx, soon.as_nanos());
    }

    /// Arms the timer of an RPC for when it is next due, later than `now`.
    fn set_timer(&mut self, now: Instant, idx: u32) {
        if let Some(due) = self.next_due(idx) {
            self.timers.set(idx, due.max(now.after(1)).as_nanos());
        }
    }

    /// When something must be done about an RPC if nothing is heard of it.
    #[inline(always)]
    pub(crate) fn next_due(&self, idx: u32) -> Option<Instant> {
        let rpc = &self.rpcs[idx];
        let peer = &self.peers[rpc.peer];
        let silence = match rpc.state {
            State::ClientOutgoing => self.silence_of_server(rpc, peer),
            State::ClientIncoming | State::ServerIncoming => self.silence_of_sender(rpc, peer),
            State::ServerOutgoing => self.silence_of_client(rpc),
            _ => None,
        };
        let deadline = (rpc.is_client() && rpc.deadline != Instant::MAX).then_some(rpc.deadline);
        sooner(silence, deadline)
    }

    /// All of the request that may go has gone: the response, or a grant, is the server's turn.
    fn silence_of_server(&self, rpc: &RpcSlot<M, S::Buffer>, peer: &PeerSlot) -> Option<Instant> {
        (rpc.out.sent > 0 && rpc.out.all_allowed_sent()).then(|| self.next_ask(rpc, peer))
    }

    /// When to ask again, or to give up: whatever else made the RPC ask, the time-out counts from
    /// the last sign of life.
    #[inline(always)]
    fn next_ask(&self, rpc: &RpcSlot<M, S::Buffer>, peer: &PeerSlot) -> Instant {
        let mut since = rpc.heard.max(rpc.asked);
        if rpc.state == State::ClientOutgoing && rpc.begun_at > peer.answered {
            // Requests are answered more or less in the order in which they were sent. While the answers come, and none yet
            // to a request that began after this one, its turn has not come.
            since = since.max(peer.answered_at);
        }
        let ask = since.after(self.interval(rpc, peer));
        if rpc.unanswered < MIN_TRIES {
            return ask;
        }
        ask.min(rpc.heard.after(self.config.timeout_ns))
    }

    /// Granted bytes are missing.
    fn silence_of_sender(&self, rpc: &RpcSlot<M, S::Buffer>, peer: &PeerSlot) -> Option<Instant> {
        if rpc.grant == GrantState::NoBuffer {
            // Nothing is missing: there is no room for it. But a client that is gone need not wait.
            let is_request = rpc.state == State::ServerIncoming;
            return is_request.then(|| rpc.heard.after(self.config.timeout_ns));
        }
        if rpc.inc.outstanding() == 0 {
            return None;
        }
        let silent = self.next_ask(rpc, peer);
        // A hole that was asked for and is still there, however much else arrives.
        let hole = rpc
            .inc
            .gaps()
            .first()
            .filter(|gap| gap.start < rpc.gaps_asked_below)
            .map(|_| rpc.asked.after(self.interval(rpc, peer)));
        let early = (rpc.gap_due != Instant::MAX).then_some(rpc.gap_due);
        sooner(sooner(Some(silent), hole), early)
    }

    /// All of the response that may go has gone: the client grants more, or acknowledges it.
    fn silence_of_client(&self, rpc: &RpcSlot<M, S::Buffer>) -> Option<Instant> {
        if !rpc.out.all_allowed_sent() {
            return None;
        }
        let give_up = rpc.heard.after(self.config.timeout_ns.saturating_mul(2));
        let wait = if rpc.out.sent < rpc.out.len {
            self.config.timeout_ns / PROBES_PER_TIMEOUT
        } else {
            self.config.need_ack_ns.max(1)
        };
        Some(rpc.asked.after(backed_off(wait, rpc.tries)).min(give_up))
    }

    /// How long silence about an RPC is borne before the next RESEND, in nanoseconds.
    #[inline]
    fn interval(&self, rpc: &RpcSlot<M, S::Buffer>, peer: &PeerSlot) -> u64 {
        let measured = match rpc.state {
            State::ClientOutgoing => peer.service.bound(),
            _ => peer.rtt.bound().or_else(|| peer.service.bound()),
        };
        let floor = self.config.resend_floor_ns;
        let guess = match self.config.rtt_ns {
            0 => floor.saturating_mul(5),
            rtt => rtt.saturating_mul(4),
        };
        // What was asked for without need before is asked for later now.
        let doublings = rpc.tries.saturating_add(peer.patience);
        backed_off(measured.unwrap_or(guess).max(floor), doublings)
            .min(self.config.resend_ceiling_ns)
    }

    /// A peer that has not answered in time, and of which nothing else is heard, is asked one question at a time, whichever
    /// RPC it is about, at growing intervals: a host that stalls is not buried under the questions of all.
    /// `Some`: when the next one may be asked.
    fn next_question(&self, now: Instant, p: u32) -> Option<Instant> {
        let peer = &self.peers[p];
        let wait = self.answer_time(p);
        if !peer.owes_answer() || now < peer.first_asked.after(wait) {
            return None;
        }
        // Four times as long each time: RPCs take turns, and each of them has waited.
        let doublings = peer.questions.saturating_sub(1).saturating_mul(2);
        let wait = backed_off(wait, doublings);
        let next = peer
            .last_asked
            .after(wait.min(self.config.resend_ceiling_ns));
        (next > now).then_some(next)
    }

    /// How long a peer may take to answer a question, in nanoseconds. One of the two is seldom measured.
    fn answer_time(&self, p: u32) -> u64 {
        let peer = &self.peers[p];
        let (network, service) = (peer.rtt.bound(), peer.service.bound());
        let measured = network.into_iter().chain(service).min();
        measured.unwrap_or(0).max(self.config.resend_floor_ns)
    }

    /// A question goes to a peer.
    fn note_question(&mut self, now: Instant, p: u32) {
        let wait = self.answer_time(p);
        let peer = &mut self.peers[p];
        if !peer.owes_answer() {
            peer.first_asked = now;
            peer.questions = 1;
        } else if now >= peer.first_asked.after(wait) {
            peer.questions = peer.questions.saturating_add(1);
        }
        peer.last_asked = now;
    }

    /// How long a hole may be mere reordering, in nanoseconds.
    pub(crate) fn reorder_allowance(&self, idx: u32) -> u64 {
        if self.config.reorder_ns > 0 {
            return self.config.reorder_ns;
        }
        let peer = &self.peers[self.rpcs[idx].peer];
        let round_trip = peer
            .rtt
            .mean()
            .or_else(|| peer.service.mean())
            .unwrap_or(self.config.resend_floor_ns);
        (round_trip / 4).saturating_mul(1 << peer.reorder_doublings.min(8))
    }

    fn on_timer(&mut self, now: Instant, idx: u32) {
        let rpc = &self.rpcs[idx];
        if !rpc.state.is_live() {
            return;
        }
        if rpc.is_client() && rpc.deadline <= now {
            self.fail_request(idx, RpcError::DeadlineExceeded);
            self.serve_waiters(now);
            return;
        }
        let waits = rpc.is_client() || rpc.state == State::ServerIncoming;
        let is_doomed = rpc.birth < self.peers[rpc.peer].failed_before;
        if waits && is_doomed && (rpc.unanswered > 0 || self.peers[rpc.peer].is_mute()) {
            self.fail_with_silence(now, idx);
            return;
        }
        if now < self.grace_until {
            // What is due is looked at again at the end of the grace.
            if let Some(due) = self.next_due(idx) {
                let due = due.max(self.grace_until).min(rpc.deadline.max(now));
                self.timers.set(idx, due.as_nanos());
            }
            return;
        }
        if rpc.gap_due <= now {
            self.ask_for_gaps(now, idx);
        }
        let Some(due) = self.next_due(idx) else {
            return;
        };
        if due > now {
            self.timers.set(idx, due.as_nanos());
            return;
        }
        match self.rpcs[idx].state {
            State::ServerOutgoing => self.ask_for_ack(now, idx),
            _ => self.silence_expired(now, idx),
        }
    }

    /// Holes with later data beyond them have outlived the reordering allowance.
    fn ask_for_gaps(&mut self, now: Instant, idx: u32) {
        let allowance = self.reorder_allowance(idx);
        let rpc = &mut self.rpcs[idx];
        let seen = Range {
            start: rpc.gaps_asked_below,
            end: rpc.gaps_seen_below,
        };
        rpc.gaps_asked_below = seen.end;
        rpc.gap_due = Instant::MAX;
        let is_newer = rpc
            .inc
            .gaps()
            .last()
            .is_some_and(|gap| gap.start >= seen.end);
        if is_newer {
            rpc.gaps_seen_below = rpc.inc.end();
            rpc.gap_due = now.after(allowance);
        }
        let open = rpc
            .inc
            .gaps()
            .iter()
            .any(|gap| gap.end > seen.start && gap.start < seen.end);
        if !open {
            return;
        }
        let p = self.rpcs[idx].peer;
        if let Some((turn, _)) = self.reserve_resend(now, p) {
            // Too many questions to this peer: these holes wait for a turn.
            count(&mut self.stats.resends_deferred);
            let rpc = &mut self.rpcs[idx];
            rpc.gaps_asked_below = seen.start;
            rpc.gaps_seen_below = rpc.inc.end();
            rpc.gap_due = turn;
            return;
        }
        count(&mut self.stats.resends_early);
        self.ask_for(now, idx, seen);
    }

    fn silence_expired(&mut self, now: Instant, idx: u32) {
        let rpc = &self.rpcs[idx];
        if rpc.grant == GrantState::NoBuffer && rpc.state == State::ServerIncoming {
            // A living client would have asked for its response.
            self.abandon_request(now, idx);
            return;
        }
        let silent_ns = now.nanos_since(rpc.heard);
        let is_asked = rpc.unanswered >= MIN_TRIES || self.peers[rpc.peer].is_mute();
        if silent_ns >= self.config.timeout_ns && is_asked {
            self.give_up(now, idx);
            return;
        }
        let p = rpc.peer;
        // Data still comes; only a hole that was asked for is still there.
        let is_silent = now >= rpc.heard.after(self.interval(rpc, &self.peers[p]));
        if is_silent && let Some(next) = self.next_question(now, p) {
            self.spare_question(now, idx, next);
            return;
        }
        if self.wait_for_turn(now, idx) {
            return;
        }
        let rpc = &mut self.rpcs[idx];
        if rpc.state.receives() && !is_silent {
            let asked = Range {
                start: 0,
                end: rpc.gaps_asked_below,
            };
            self.ask_for(now, idx, asked);
            self.set_timer(now, idx);
            return;
        }
        rpc.tries = rpc.tries.saturating_add(1);
        rpc.unanswered = rpc.unanswered.saturating_add(1);
        self.note_question(now, p);
        let rpc = &mut self.rpcs[idx];
        if rpc.state == State::ClientOutgoing {
            rpc.asked = now;
            rpc.was_asked = true;
            self.respond(idx, Pending::RESEND_ALL);
        } else {
            self.note_sitting(idx);
            let all = Range {
                start: 0,
                end: self.rpcs[idx].inc.granted,
            };
            self.ask_for(now, idx, all);
        }
        self.set_timer(now, idx);
    }

    /// The question that the peer owes an answer to stands for this RPC's too.
    fn spare_question(&mut self, now: Instant, idx: u32, next: Instant) {
        count(&mut self.stats.resends_spared);
        let rpc = &mut self.rpcs[idx];
        rpc.has_turn = false;
        let give_up = rpc.heard.after(self.config.timeout_ns);
        let at = match give_up > now {
            true => next.min(give_up),
            false => next,
        };
        let at = at.min(rpc.deadline).max(now.after(1));
        if rpc.state != State::ClientOutgoing {
            self.note_sitting(idx);
        }
        self.timers.set(idx, at.as_nanos());
    }

    /// Two intervals without a byte from the sender of a message, of this one or another: its grants go to others.
    fn note_sitting(&mut self, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        rpc.asks_without_data = rpc.asks_without_data.saturating_add(1);
        let p = rpc.peer;
        let since = rpc.heard.min(rpc.asked);
        let sits = rpc.asks_without_data >= 2;
        if sits && self.peers[p].data_heard <= since && !self.peers[p].is_silent {
            count(&mut self.stats.peers_silenced);
            self.grants.silence(&mut self.rpcs, &mut self.peers, p);
        }
    }

    /// BUSY, and nothing of the message for two intervals, nor of another of that sender: its grants go to others, until it
    /// sends again.
    pub(crate) fn note_busy_sitting(&mut self, now: Instant, idx: u32) {
        let rpc = &self.rpcs[idx];
        let p = rpc.peer;
        let peer = &self.peers[p];
        if !rpc.state.receives() || rpc.inc.outstanding() == 0 || peer.is_silent {
            return;
        }
        let since = rpc.moved.max(peer.data_heard);
        if now.nanos_since(since) > self.interval(rpc, peer).saturating_mul(2) {
            count(&mut self.stats.peers_silenced);
            self.grants.silence(&mut self.rpcs, &mut self.peers, p);
        }
    }

    /// Questions to one peer are limited in rate: whether this RPC must wait for its turn to ask.
    fn wait_for_turn(&mut self, now: Instant, idx: u32) -> bool {
        let rpc = &mut self.rpcs[idx];
        if rpc.has_turn {
            rpc.has_turn = false;
            return false;
        }
        let p = rpc.peer;
        let Some((turn, is_kept)) = self.reserve_resend(now, p) else {
            return false;
        };
        count(&mut self.stats.resends_deferred);
        let rpc = &mut self.rpcs[idx];
        rpc.has_turn = is_kept;
        let at = turn.min(rpc.deadline).max(now.after(1));
        self.timers.set(idx, at.as_nanos());
        true
    }

    /// Takes a place among the RESENDs and NEED_ACKs to a peer. `None`: one may go now. Else when it may go:
    /// the place is kept, so that every RPC has its turn however many there are. Beyond the
    /// longest interval no places are given: whoever comes then comes again.
    fn reserve_resend(&mut self, now: Instant, p: u32) -> Option<(Instant, bool)> {
        let burst = self.config.resend_floor_ns;
        let spacing = (burst / RESENDS_PER_FLOOR).max(1);
        let peer = &mut self.peers[p];
        let place = peer.resend_free.max(now);
        let last = now.after(burst).after(self.config.resend_ceiling_ns);
        if place > last {
            return Some((last, false));
        }
        peer.resend_free = place.after(spacing);
        (place > now.after(burst)).then_some((place, true))
    }

    /// Asks for what is missing of a message within `range`.
    pub(crate) fn ask_for(&mut self, now: Instant, idx: u32, range: Range) {
        let rpc = &mut self.rpcs[idx];
        if rpc.pending.has(Pending::RESEND) {
            rpc.ask_from = rpc.ask_from.min(range.start);
            rpc.ask_below = rpc.ask_below.max(range.end);
        } else {
            rpc.ask_from = range.start;
            rpc.ask_below = range.end;
        }
        rpc.asked = now;
        self.respond(idx, Pending::RESEND);
    }

    /// The other side shows that it waits: what is missing here is asked for, if that has not
    /// been done within the interval. This leaves the time-out alone.
    pub(crate) fn ask_if_overdue(&mut self, now: Instant, idx: u32) {
        let rpc = &self.rpcs[idx];
        let since = rpc.heard.max(rpc.asked);
        let measured = self.peers[rpc.peer].rtt.mean();
        let patience = measured.unwrap_or(self.config.resend_floor_ns);
        let patience = backed_off(patience, rpc.tries).min(self.config.resend_ceiling_ns);
        if now.nanos_since(since) < patience {
            return;
        }
        match rpc.state {
            State::ClientOutgoing if rpc.out.sent > 0 && rpc.out.all_allowed_sent() => {
                let rpc = &mut self.rpcs[idx];
                rpc.asked = now;
                rpc.was_asked = true;
                rpc.tries = rpc.tries.saturating_add(1);
                self.respond(idx, Pending::RESEND_ALL);
            }
            State::ClientIncoming | State::ServerIncoming
                if rpc.grant != GrantState::NoBuffer && rpc.inc.outstanding() > 0 =>
            {
                let all = Range {
                    start: 0,
                    end: rpc.inc.granted,
                };
                let rpc = &mut self.rpcs[idx];
                rpc.tries = rpc.tries.saturating_add(1);
                self.ask_for(now, idx, all);
            }
            _ => return,
        }
        self.arm(idx);
    }

    /// The response has been sent and not acknowledged, or waits for grants: the client is asked,
    /// and given up only when it has been silent for longer than it takes to give up itself.
    fn ask_for_ack(&mut self, now: Instant, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        if now.nanos_since(rpc.heard) >= self.config.timeout_ns.saturating_mul(2) {
            count(&mut self.stats.responses_unacknowledged);
            let error = self.silence_error(idx);
            self.release(now, idx, Some(error));
            return;
        }
        if self.wait_for_turn(now, idx) {
            return;
        }
        let rpc = &mut self.rpcs[idx];
        rpc.asked = now;
        rpc.tries = rpc.tries.saturating_add(1);
        let waits_for_grants = rpc.out.sent < rpc.out.len;
        self.respond(
            idx,
            if waits_for_grants {
                Pending::PROBE
            } else {
                Pending::NEED_ACK
            },
        );
        self.set_timer(now, idx);
    }

    fn silence_error(&self, idx: u32) -> RpcError {
        if self.peers[self.rpcs[idx].peer].was_heard {
            RpcError::WentSilent
        } else {
            RpcError::NeverHeard
        }
    }

    /// An RPC has heard nothing for the time-out. If its peer has not been heard of either, the
    /// peer's other RPCs fail with it: each within an interval, when its timer finds it so.
    fn give_up(&mut self, now: Instant, idx: u32) {
        let peer = &mut self.peers[self.rpcs[idx].peer];
        if !peer.was_heard || now.nanos_since(peer.heard) >= self.config.timeout_ns {
            peer.failed_before = self.births;
        }
        self.fail_with_silence(now, idx);
    }

    fn fail_with_silence(&mut self, now: Instant, idx: u32) {
        if self.rpcs[idx].is_client() {
            let error = self.silence_error(idx);
            self.fail_request(idx, error);
            self.serve_waiters(now);
        } else {
            self.abandon_request(now, idx);
        }
    }

    /// Whether bytes of a message that were sent before may go once more. A request must not when its server may have
    /// forgotten that it ran, as after this host has stood still for long: it would run twice. The other half
    /// of the time is for packets on their way.
    pub(crate) fn may_send_again(&self, now: Instant, idx: u32) -> bool {
        let rpc = &self.rpcs[idx];
        let remembered = (self.config.ended_window_ns / 2).max(self.config.timeout_ns);
        !rpc.is_client() || now.nanos_since(rpc.heard) < remembered
    }

    /// More of a request may go, new bytes or old ones: from here until all of it has gone the
    /// server's silence does not count.
    pub(crate) fn more_to_send(&mut self, now: Instant, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        if rpc.state == State::ClientOutgoing && rpc.out.all_allowed_sent() {
            rpc.asked = now;
        }
    }

    /// All of a message that may go has gone. From here the other side's silence counts.
    #[inline(always)]
    pub(crate) fn all_sent(&mut self, now: Instant, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        match rpc.state {
            // Sending again is no sign of life from the server: only the time that it took is
            // left out.
            State::ClientOutgoing => {
                let ours = now.nanos_since(rpc.asked);
                rpc.heard = rpc.heard.after(ours).min(now);
                rpc.asked = now;
                if rpc.is_awaited {
                    self.tell_news_wanted(idx);
                }
            }
            State::ServerOutgoing => {
                rpc.heard = now;
                rpc.asked = now;
                rpc.tries = 0;
            }
            _ => return,
        }
        self.arm_soon(idx);
    }

    /// Puts an outgoing message where it belongs in the queue after a change, and keeps count of
    /// the messages that wait for grants.
    pub(crate) fn requeue(&mut self, now: Instant, idx: u32) {
        self.queue.update(&mut self.rpcs, idx);
        let rpc = &mut self.rpcs[idx];
        let stalled = rpc.state.sends() && rpc.out.sent == rpc.out.granted && {
            rpc.out.granted < rpc.out.len && rpc.out.all_allowed_sent()
        };
        if stalled != rpc.is_stalled {
            rpc.is_stalled = stalled;
            self.stalled = if stalled {
                self.stalled.saturating_add(1)
            } else {
                self.stalled.saturating_sub(1)
            };
        }
        self.note_sender_busy(now);
        self.arm(idx);
    }

    /// Nothing more of a message is to be sent: the other side has it all.
    pub(crate) fn stop_sending(&mut self, now: Instant, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        if rpc.is_parked {
            rpc.is_parked = false;
            let parked = &mut self.peers[rpc.peer].parked;
            self.rpcs.unlink(parked, dim::QUEUE, idx);
        }
        self.queue.unlist(&mut self.rpcs, idx);
        self.queue.remove(&mut self.rpcs, idx);
        let rpc = &mut self.rpcs[idx];
        rpc.out.stop();
        if rpc.is_stalled {
            rpc.is_stalled = false;
            self.stalled = self.stalled.saturating_sub(1);
            self.note_sender_busy(now);
        }
    }

    /// Ends a time in which there were messages to send and none was granted, if it is over.
    fn note_sender_busy(&mut self, now: Instant) {
        if let Some(since) = self.sender_idle_since
            && (!self.queue.is_empty() || self.stalled == 0)
        {
            self.stats.sender_idle_ns = self
                .stats
                .sender_idle_ns
                .wrapping_add(now.nanos_since(since));
            self.sender_idle_since = None;
        }
    }

    /// A new outgoing message: what may go at once goes. A request waits while too much is on its
    /// way to its server of which nothing has been heard.
    pub(crate) fn start_sending(&mut self, now: Instant, idx: u32) {
        let rpc = &self.rpcs[idx];
        let peer = &self.peers[rpc.peer];
        let (len, unscheduled) = self.lengths(rpc, peer);
        if rpc.is_client() {
            let must_queue = !peer.parked.is_empty()
                && len as usize > self.config.max_payload(peer.addr.is_ipv6());
            if must_queue || !self.may_begin(peer, unscheduled) {
                self.park(idx);
                return;
            }
        }
        self.begin_sending(now, idx, len, unscheduled);
    }

    fn park(&mut self, idx: u32) {
        count(&mut self.stats.requests_parked);
        let p = self.rpcs[idx].peer;
        let is_first = self.peers[p].parked.is_empty();
        self.rpcs[idx].is_parked = true;
        let parked = &mut self.peers[p].parked;
        self.rpcs.push_back(parked, dim::QUEUE, idx);
        if is_first {
            self.ask_for_news(p);
        }
    }

    /// The length of an outgoing message, and how many bytes of it go unasked.
    #[inline(always)]
    fn lengths(&self, rpc: &RpcSlot<M, S::Buffer>, peer: &PeerSlot) -> (u32, u32) {
        let message = rpc.out.message.as_ref();
        let len = message.map_or(0, |message| message.as_ref().len());
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let limit = peer.unscheduled_limit;
        let unscheduled = self.config.unscheduled_bytes.min(limit).max(1).min(len);
        (len, unscheduled)
    }

    /// Whether a request may begin that sends so many bytes unasked: nothing is unheard, or not
    /// too much.
    fn may_begin(&self, peer: &PeerSlot, unscheduled: u32) -> bool {
        // The limit that a peer tells for one message is a quarter of its receive buffer.
        let half = u64::from(peer.unscheduled_limit).saturating_mul(2);
        let limit = self.config.max_unheard.min(half);
        let unheard = peer.unheard();
        unheard == 0 || unheard.saturating_add(u64::from(unscheduled)) <= limit
    }

    #[inline(always)]
    fn begin_sending(&mut self, now: Instant, idx: u32, len: u32, unscheduled: u32) {
        let rpc = &mut self.rpcs[idx];
        let peer = &mut self.peers[rpc.peer];
        if rpc.is_client() {
            peer.begun = peer.begun.saturating_add(u64::from(unscheduled));
            peer.last_begun = idx;
            peer.begun_live = peer.begun_live.saturating_add(1);
            rpc.begun_at = peer.begun;
        }
        rpc.out.start(len, unscheduled);
        let payload = self.config.max_payload(peer.addr.is_ipv6()) as u32;
        // Where nothing is paced there is nothing to wait for.
        let short = match self.config.link_bps {
            0 => payload,
            _ => SHORT_BYTES.min(payload),
        };
        if unscheduled == len && len <= short {
            self.rpcs.push_back(&mut self.queue.short, dim::QUEUE, idx);
            return;
        }
        self.requeue(now, idx);
        // Known before it can go, so that the receiver grants it before the one ahead has left.
        if unscheduled < len && !self.queue.is_first(idx) {
            self.respond(idx, Pending::ANNOUNCE);
        }
    }

    /// Requests are parked: the server is asked about the one that began last, once it has been
    /// sent. A server that is well says BUSY or better within a round trip, and has then looked
    /// at all that was sent before; one that stalls says nothing, and is left alone.
    fn ask_for_news(&mut self, p: u32) {
        let last = self.peers[p].last_begun;
        let rpc = &mut self.rpcs[last];
        let is_it = rpc.peer == p && rpc.begun_at == self.peers[p].begun;
        if is_it && rpc.state == State::ClientOutgoing {
            rpc.is_awaited = true;
            if rpc.out.sent > 0 && rpc.out.all_allowed_sent() {
                self.tell_news_wanted(last);
            }
        }
    }

    /// A RESEND of no bytes is answered with BUSY. (Where it overtakes the request, with
    /// RPC_UNKNOWN, which is news too, and no reason to send the request again.)
    fn tell_news_wanted(&mut self, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        rpc.is_awaited = false;
        rpc.was_probed = true;
        self.respond(idx, Pending::PROBE);
    }

    /// Something was heard of an RPC: its peer has looked at what was sent before.
    #[inline]
    pub(crate) fn heard_of(&mut self, idx: u32) {
        let rpc = &self.rpcs[idx];
        let p = rpc.peer;
        let peer = &mut self.peers[p];
        if rpc.begun_at > peer.begun_heard {
            peer.begun_heard = rpc.begun_at;
            if !peer.parked.is_empty() {
                self.wake_parked(p);
            }
        }
    }

    /// A request has ended. When it was the last one, or none is left of which news could come, what is in doubt can
    /// never be known, and counts no more.
    #[inline]
    pub(crate) fn begun_ended(&mut self, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        if rpc.begun_at == 0 {
            return;
        }
        let begun_at = core::mem::take(&mut rpc.begun_at);
        let p = rpc.peer;
        let peer = &mut self.peers[p];
        peer.begun_live = peer.begun_live.saturating_sub(1);
        // Nor could news of an older one tell what became of the last one's bytes.
        if peer.begun_live == 0 || (peer.last_begun == idx && begun_at == peer.begun) {
            peer.begun_heard = peer.begun;
            if !peer.parked.is_empty() {
                self.wake_parked(p);
            }
        }
    }

    /// Some of the requests that are parked may begin.
    fn wake_parked(&mut self, p: u32) {
        self.peers
            .push_back(&mut self.unparking, peer::dim::UNPARK, p);
    }

    /// Parked requests begin, a slice at a time; those that fail with their peer do so if they
    /// `may_fail` here. Where nobody polls events afterwards they are left for `handle_timeout`.
    pub(crate) fn unpark(&mut self, now: Instant, may_fail: bool) {
        for _ in 0..UNPARKS_PER_CALL {
            let Some(p) = self.unparking.first() else {
                return;
            };
            let next = self.peers[p].parked.first();
            // Those that fail with their peer do not begin first.
            if let Some(idx) = next
                && self.rpcs[idx].birth < self.peers[p].failed_before
            {
                if !may_fail {
                    return;
                }
                self.fail_with_silence(now, idx);
                continue;
            }
            let peer = &self.peers[p];
            let lengths = next.map(|idx| self.lengths(&self.rpcs[idx], peer));
            match next
                .zip(lengths)
                .filter(|&(_, (_, unscheduled))| self.may_begin(peer, unscheduled))
            {
                Some((idx, (len, unscheduled))) => {
                    let parked = &mut self.peers[p].parked;
                    self.rpcs.unlink(parked, dim::QUEUE, idx);
                    self.rpcs[idx].is_parked = false;
                    self.begin_sending(now, idx, len, unscheduled);
                }
                None => {
                    self.peers.unlink(&mut self.unparking, peer::dim::UNPARK, p);
                    if next.is_some() {
                        self.ask_for_news(p);
                    }
                }
            }
        }
    }
}

/// How long after all of a message has gone something is due about it at the soonest, if nothing was asked before.
pub(crate) fn soonest_ns(config: &Config) -> u64 {
    config
        .resend_floor_ns
        .min(config.need_ack_ns.max(1))
        .min(config.timeout_ns / PROBES_PER_TIMEOUT)
}

/// The earlier of two times, where there are any.
fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

fn backed_off(nanos: u64, tries: u8) -> u64 {
    let doublings = u32::from(tries).min(MAX_DOUBLINGS);
    nanos.saturating_mul(1_u64.wrapping_shl(doublings))
}
