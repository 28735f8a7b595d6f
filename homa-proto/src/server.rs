//! The server's half of an RPC: INCOMING, IN_SERVICE, OUTGOING, then done.

use core::net::{IpAddr, SocketAddr};

use crate::buffer::BufferSource;
use crate::endpoint::Endpoint;
use crate::error::{DropReason, RpcError};
use crate::peer::PeerSlot;
use crate::rpc::{GrantState, Pending, State, dim};
use crate::stats::count;
use crate::time::Instant;
use crate::transmit::Reply;
use crate::wire::{Common, DATA_LEN, DataView};

impl<M: AsRef<[u8]>, S: BufferSource> Endpoint<'_, M, S> {
    /// DATA for an RPC that is not known: a new request, unless it has run here before.
    pub(crate) fn new_incoming_request(
        &mut self,
        now: Instant,
        from: SocketAddr,
        local: Option<IpAddr>,
        p: Option<u32>,
        data: &DataView<'_>,
    ) -> Result<u32, DropReason> {
        let common = data.common();
        if !common.sent_by_client() {
            return Err(DropReason::UnknownRpc);
        }
        let id = common.local_id();
        let addr_hash = match p {
            Some(p) => self.peers[p].addr_hash,
            None => self.key.addr(&from),
        };
        let hash = self.key.client_id(addr_hash, id);
        if self.ended.contains(from, id, hash) {
            return Err(DropReason::EndedRpc);
        }
        self.was_asked = true;
        if !self.is_within_budget(p, addr_hash, data) {
            return Err(DropReason::OverBudget);
        }
        let servers = self.live_rpcs().saturating_sub(self.clients);
        if self.live_rpcs() == self.rpcs.len() || servers >= self.most_of_a_half() {
            return Err(DropReason::RpcsFull);
        }
        let p = match p {
            Some(p) => p,
            None => {
                let p = self
                    .peer_or_new(now, from, local)
                    .ok_or(DropReason::PeersFull)?;
                let peer = &mut self.peers[p];
                peer.heard = now;
                peer.was_heard = true;
                let bytes = DATA_LEN.saturating_add(data.data().len());
                peer.bytes_heard = bytes as u64;
                p
            }
        };
        let idx = self
            .allocate(p, id, common.dest_port, common.source_port)
            .ok_or(DropReason::RpcsFull)?;
        let rpc = &mut self.rpcs[idx];
        rpc.state = State::ServerIncoming;
        rpc.heard = now;
        if data.data().len() as u64 != u64::from(data.message_len()) {
            self.charge(idx, data.message_len());
        }
        Ok(idx)
    }

    /// Whether one more request of a peer, new where there is none, keeps to what it and all strangers
    /// may have under way.
    fn is_within_budget(&self, p: Option<u32>, addr_hash: u64, data: &DataView<'_>) -> bool {
        let peer = p.map(|p| &self.peers[p]);
        let (requests, arriving) = peer.map_or((0, 0), |peer| (peer.requests, peer.arriving));
        let len = u64::from(data.message_len());
        let fits = |held: u64, limit| held == 0 || held.saturating_add(len) <= limit;
        let is_whole = data.data().len() as u64 == len;
        let token = self.key.token(addr_hash, self.priorities.version);
        // Who names its token in this very packet is none.
        let is_stranger =
            data.cutoff_version() != token || peer.is_some_and(PeerSlot::is_never_believed);
        let is_stranger = is_stranger && peer.is_none_or(|peer| !peer.is_proved);
        let config = &self.config;
        requests < config.max_peer_requests
            && (is_whole || fits(arriving, config.max_peer_bytes))
            && (is_whole
                || !is_stranger
                || fits(self.strangers_arriving, config.max_stranger_bytes))
            && (!is_stranger || self.has_place_for_stranger(requests == 0))
    }

    /// Strangers take no more than half of the slots, and of the table of peers: the rest is for those who are known, and
    /// for newcomers once they have shown that they get what is sent to them.
    fn has_place_for_stranger(&self, is_new: bool) -> bool {
        let is_below_half = |taken: u32, all: usize| (taken as usize) < all.div_ceil(2);
        is_below_half(self.stranger_requests, self.rpcs.len())
            && (!is_new || is_below_half(self.stranger_peers, self.peers.len()))
    }

    /// Whether a stranger waits for grants that others have used up. It has nothing to send, and so cannot show that it is none.
    pub(crate) fn waits_as_stranger(&self, idx: u32) -> bool {
        let rpc = &self.rpcs[idx];
        let peer = &self.peers[rpc.peer];
        let needs_grant = matches!(rpc.grant, GrantState::Waiting | GrantState::Active);
        let has_room = self.grants.room(peer) > 0;
        !peer.is_proved && needs_grant && rpc.inc.outstanding() == 0 && !has_room
    }

    /// It begins again, and will not come as a stranger then.
    pub(crate) fn start_over(&mut self, now: Instant, idx: u32) -> Result<(), DropReason> {
        let rpc = &self.rpcs[idx];
        let peer = &self.peers[rpc.peer];
        let packet = Common {
            source_port: rpc.peer_port,
            dest_port: rpc.local_port,
            sender_id: rpc.id ^ 1,
        };
        let (to, local) = (peer.addr, peer.local);
        self.abandon_request(now, idx);
        self.reply(now, to, local, packet, Reply::Unknown)
    }

    /// The request is whole: it goes to the application.
    pub(crate) fn finish_request(&mut self, idx: u32) {
        count(&mut self.stats.requests_received);
        self.timers.cancel(idx);
        let rpc = &mut self.rpcs[idx];
        rpc.state = State::ServerArrived;
        rpc.gap_due = Instant::MAX;
        self.retract(idx, Pending::RESEND | Pending::GRANT);
        self.rpcs.push_back(&mut self.events, dim::QUEUE, idx);
    }

    /// The response is no longer needed: acknowledged, or given up (`error`).
    pub(crate) fn release(&mut self, now: Instant, idx: u32, error: Option<RpcError>) {
        self.remember_ended(now, idx);
        self.detach(idx);
        let rpc = &mut self.rpcs[idx];
        rpc.state = State::ServerReleased;
        rpc.error = error;
        self.rpcs.push_back(&mut self.events, dim::QUEUE, idx);
    }

    /// The client no longer knows the RPC.
    pub(crate) fn client_gone(&mut self, now: Instant, idx: u32) {
        count(&mut self.stats.clients_gone);
        match self.rpcs[idx].state {
            State::ServerOutgoing => self.release(now, idx, None),
            State::ServerIncoming => self.abandon_request(now, idx),
            _ => {
                // The application has the request or is about to; its answer will be refused.
                self.remember_ended(now, idx);
                self.detach(idx);
                self.rpcs.unlink(&mut self.events, dim::QUEUE, idx);
                self.free(idx);
                self.serve_waiters(now);
            }
        }
    }

    /// A request that never became whole: nobody has seen it, nobody is told.
    pub(crate) fn abandon_request(&mut self, now: Instant, idx: u32) {
        count(&mut self.stats.requests_abandoned);
        self.detach(idx);
        self.free(idx);
        self.serve_waiters(now);
    }

    /// An incoming message that no buffer can ever hold.
    pub(crate) fn refuse_incoming(&mut self, idx: u32) {
        if self.rpcs[idx].is_client() {
            self.fail_request(idx, RpcError::TooLongForBuffers);
        } else {
            self.detach(idx);
            self.free(idx);
        }
    }
}
