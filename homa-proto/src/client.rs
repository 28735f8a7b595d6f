//! The client's half of an RPC: OUTGOING, then INCOMING, then done.

use crate::acks;
use crate::buffer::BufferSource;
use crate::endpoint::Endpoint;
use crate::error::{DropReason, RpcError};
use crate::incoming::Range;
use crate::peer;
use crate::rpc::{Pending, State, dim};
use crate::stats::count;
use crate::time::Instant;
use crate::wire::AckEntry;

impl<M: AsRef<[u8]>, S: BufferSource> Endpoint<'_, M, S> {
    /// The first packet of the response: the server has the whole request, sending it stops. `is_new`: it was not sent
    /// before.
    #[inline]
    pub(crate) fn begin_response(&mut self, now: Instant, idx: u32, is_new: bool) {
        let rpc = &mut self.rpcs[idx];
        let peer = &mut self.peers[rpc.peer];
        if rpc.tries > 0 {
            // Unless the server said that it knew of no request, it would have answered anyway.
            peer.learn_patience(is_new && rpc.was_asked);
        }
        if rpc.begun_at > peer.answered {
            (peer.answered, peer.answered_at) = (rpc.begun_at, now);
        }
        // The time of a response counts only if nobody had to ask.
        if rpc.tries == 0 && !rpc.was_probed && rpc.out.sent == rpc.out.len && rpc.heard <= now {
            peer.service.sample(now.nanos_since(rpc.heard));
            peer.note_calm();
        }
        if rpc.is_alone() {
            rpc.out.stop();
        } else {
            self.stop_sending(now, idx);
            self.retract(
                idx,
                Pending::RESEND_ALL | Pending::PROBE | Pending::ANNOUNCE,
            );
        }
        let rpc = &mut self.rpcs[idx];
        rpc.state = State::ClientIncoming;
        rpc.moved = now;
        rpc.heard = now;
        rpc.tries = 0;
        rpc.unanswered = 0;
        rpc.has_turn = false;
    }

    /// The response is whole: the RPC ends, and the server is told with a later packet.
    pub(crate) fn finish_response(&mut self, now: Instant, idx: u32) {
        count(&mut self.stats.responses_received);
        self.detach(idx);
        let rpc = &mut self.rpcs[idx];
        rpc.state = State::ClientAnswered;
        let entry = AckEntry {
            client_id: rpc.id,
            server_port: rpc.peer_port,
        };
        let (p, local_port) = (rpc.peer, rpc.local_port);
        self.rpcs.push_back(&mut self.events, dim::QUEUE, idx);
        self.hold_ack(now, p, entry, local_port);
    }

    /// Keeps an acknowledgement until data to the same peer can carry it, or until it is due.
    fn hold_ack(&mut self, now: Instant, p: u32, entry: AckEntry, local_port: u16) {
        let peer = &mut self.peers[p];
        let is_first = peer.acks.count() == 0;
        if is_first {
            peer.acks_since = now;
        }
        peer.ack_local_port = local_port;
        // When there is no room, the server asks for this one.
        let kept = self.acks.push(&mut peer.acks, entry);
        let is_full = !kept || peer.acks.count() >= acks::MAX_HELD;
        if is_first {
            self.peers
                .push_back(&mut self.ack_order, peer::dim::ACKS, p);
        }
        if is_full {
            self.flush_acks(p);
        }
    }

    /// The acknowledgements for `p` go in packets of their own.
    pub(crate) fn flush_acks(&mut self, p: u32) {
        self.peers[p].acks_due = true;
        self.peers
            .push_back(&mut self.peer_control, peer::dim::CONTROL, p);
    }

    /// The server knows nothing of this request: all that was sent of it goes again.
    ///
    /// Only in answer to a RESEND of this endpoint, so that nobody can have it send for nothing.
    pub(crate) fn restart_request(&mut self, now: Instant, idx: u32) -> Result<(), DropReason> {
        let rpc = &mut self.rpcs[idx];
        if !rpc.was_asked || rpc.out.sent == 0 {
            return Err(DropReason::Stale);
        }
        if !self.may_send_again(now, idx) {
            self.fail_as_too_late(now, idx);
            return Ok(());
        }
        let rpc = &mut self.rpcs[idx];
        rpc.was_asked = false;
        self.more_to_send(now, idx);
        let rpc = &mut self.rpcs[idx];
        let peer = &self.peers[rpc.peer];
        rpc.out.retransmit_priority = peer.unscheduled_priority(rpc.out.len);
        let all = Range {
            start: 0,
            end: rpc.out.sent,
        };
        if !rpc.out.retransmit(all) {
            count(&mut self.stats.retransmits_refused);
        }
        self.requeue(now, idx);
        Ok(())
    }

    /// The server has sent its whole response and waits for the acknowledgement, but some of the
    /// response is missing here: it is asked for, which is answer enough.
    pub(crate) fn on_need_ack(&mut self, now: Instant, idx: u32) -> Result<(), DropReason> {
        match self.rpcs[idx].state {
            State::ClientOutgoing | State::ClientIncoming => {
                self.ask_if_overdue(now, idx);
                Ok(())
            }
            _ => Err(DropReason::Mismatch),
        }
    }

    /// The server may have run the request and forgotten it: nothing of it may go again, and so it
    /// has failed.
    pub(crate) fn fail_as_too_late(&mut self, now: Instant, idx: u32) {
        self.fail_request(idx, RpcError::WentSilent);
        self.serve_waiters(now);
    }

    /// A request ends without a response.
    pub(crate) fn fail_request(&mut self, idx: u32, error: RpcError) {
        count(&mut self.stats.requests_failed);
        self.detach(idx);
        let rpc = &mut self.rpcs[idx];
        rpc.state = State::ClientFailed;
        rpc.error = Some(error);
        self.rpcs.push_back(&mut self.events, dim::QUEUE, idx);
    }
}
