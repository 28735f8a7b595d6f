//! The slow, obviously right shadow of all books, for tests and fuzzing.

use crate::buffer::BufferSource;
use crate::endpoint::Endpoint;
use crate::outgoing::Kept;
use crate::peer;
use crate::rpc::{Pending, State, dim};
use crate::time::Instant;

impl<M: AsRef<[u8]>, S: BufferSource> Endpoint<'_, M, S> {
    /// Recomputes every incremental book from scratch and compares. Slow; for tests and fuzzing.
    ///
    /// # Errors
    ///
    /// What drifted.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        self.check_rpcs()?;
        self.check_peers()?;
        self.grants.check(&self.rpcs, &self.peers)?;
        self.queue.check(&self.rpcs)?;
        self.rpc_index.check()?;
        self.peer_index.check()?;
        self.timers.check()?;
        self.ended.check()?;
        self.check_timeout()
    }

    fn check_rpcs(&self) -> Result<(), &'static str> {
        let ensure = |ok: bool, what| if ok { Ok(()) } else { Err(what) };
        let (mut free, mut live, mut events, mut stalled, mut short) = (0, 0, 0, 0u32, 0);
        for (idx, rpc) in self.rpcs.iter().enumerate() {
            let idx = idx as u32;
            let queued = self.rpcs.is_listed(dim::QUEUE, idx);
            let indexed = self.indexed_rpc(rpc.peer, rpc.id) == Some(idx);
            stalled += u32::from(rpc.is_stalled);
            if rpc.state == State::Free {
                free += 1;
                ensure(queued, "a free slot is in no list")?;
            }
            if !rpc.state.is_live() {
                let has_timer = self.timers.armed(idx).is_some();
                ensure(!has_timer, "a dead RPC has a timer")?;
                ensure(!rpc.pending.any(), "a dead RPC has control packets due")?;
                ensure(!rpc.is_stalled, "a dead RPC counts as stalled")?;
                ensure(
                    rpc.state != State::Free || rpc.inc.buffer.is_none(),
                    "a free slot holds a buffer",
                )?;
                ensure(
                    rpc.state != State::Free || rpc.out.message.is_none(),
                    "a free slot holds a message",
                )?;
                events += usize::from(rpc.state != State::Free);
                ensure(queued, "an event is in no list")?;
                continue;
            }
            live += 1;
            ensure(indexed, "a live RPC cannot be found")?;
            ensure(
                rpc.is_client()
                    == matches!(rpc.state, State::ClientOutgoing | State::ClientIncoming),
                "an id does not fit its half",
            )?;
            // One whose packets are no longer due leaves the list when its turn comes.
            ensure(
                !rpc.pending.any() || self.rpcs.is_listed(dim::CONTROL, idx),
                "control packets are due and not listed",
            )?;
            if rpc.state == State::ServerArrived {
                events += 1;
                ensure(queued, "an event is in no list")?;
            }
            if rpc.state.sends() {
                short += usize::from(queued && !rpc.is_parked);
                let out = &rpc.out;
                ensure(out.message.is_some(), "a message to send is gone")?;
                ensure(
                    out.sent <= out.granted && out.granted <= out.len,
                    "more sent than granted, or than there is",
                )?;
                let waits = out.sent == out.granted
                    && out.granted < out.len
                    && out.retransmits().is_empty();
                ensure(
                    waits == rpc.is_stalled,
                    "a message waits for grants uncounted",
                )?;
            }
            if rpc.state.receives() {
                rpc.inc.check()?;
                ensure(!rpc.inc.is_complete(), "a whole message counts as incoming")?;
            }
            // Whatever must happen, a timer is armed for it; when exactly depends on estimates
            // that may have changed since. A short message goes with the next poll, and the clock
            // of a grant starts when it goes out: only a deadline can pass before.
            let goes_next = rpc.state.sends() && queued || rpc.pending.has(Pending::GRANT);
            let has_deadline = rpc.is_client() && rpc.deadline != Instant::MAX;
            if has_deadline || (!goes_next && self.next_due(idx).is_some()) {
                let armed = self.timers.armed(idx).is_some();
                ensure(armed, "something is due and no timer is armed for it")?;
            }
        }
        let mut books = std::vec![(0u32, 0u64); self.peers.len()];
        let mut queued = std::vec![Kept::NONE; self.peers.len()];
        let mut all_queued = Kept::NONE;
        for rpc in self.rpcs.iter() {
            if let Some(queued) = queued.get_mut(rpc.peer as usize) {
                *queued.of_half_mut(rpc.is_client()) += u64::from(rpc.queued);
            }
            *all_queued.of_half_mut(rpc.is_client()) += u64::from(rpc.queued);
            ensure(
                (rpc.queued > 0) == rpc.out.message.is_some(),
                "a message that is kept does not count, or the reverse",
            )?;
            if rpc.state != State::Free
                && !rpc.is_client()
                && let Some((requests, arriving)) = books.get_mut(rpc.peer as usize)
            {
                *requests += 1;
                *arriving += u64::from(rpc.charged);
            }
        }
        ensure(
            self.peers.iter().map(|peer| peer.queued).eq(queued),
            "bytes queued for a peer miscounted",
        )?;
        ensure(all_queued == self.queued, "bytes queued miscounted")?;
        let (mut strangers, mut stranger_requests, mut stranger_peers) = (0, 0, 0);
        for (peer, book) in self.peers.iter().zip(books) {
            ensure(
                book == (peer.requests, peer.arriving),
                "requests of a peer or their bytes miscounted",
            )?;
            if !peer.is_proved {
                strangers += book.1;
                stranger_requests += book.0;
                stranger_peers += u32::from(book.0 > 0);
            }
        }
        ensure(
            (stranger_requests, stranger_peers) == (self.stranger_requests, self.stranger_peers),
            "requests of strangers miscounted",
        )?;
        ensure(
            strangers == self.strangers_arriving,
            "arriving bytes of strangers miscounted",
        )?;
        ensure(
            free == self.rpcs.check_stack(&self.free_rpcs, dim::QUEUE)?,
            "free slots miscounted",
        )?;
        let clients = self
            .rpcs
            .iter()
            .filter(|rpc| rpc.state != State::Free && rpc.id & 1 == 0)
            .count();
        ensure(
            clients == self.clients,
            "requests of this endpoint miscounted",
        )?;
        ensure(
            events == self.rpcs.check_list(&self.events, dim::QUEUE)?,
            "events miscounted",
        )?;
        ensure(
            short == self.rpcs.check_list(&self.queue.short, dim::QUEUE)?,
            "short messages miscounted",
        )?;
        ensure(
            live == self.rpc_index.len(),
            "the index has other RPCs than the table",
        )?;
        ensure(stalled == self.stalled, "stalled messages miscounted")?;
        self.rpcs.check_list(&self.control, dim::CONTROL)?;
        Ok(())
    }

    fn check_peers(&self) -> Result<(), &'static str> {
        let ensure = |ok: bool, what| if ok { Ok(()) } else { Err(what) };
        ensure(
            self.rpcs
                .iter()
                .all(|rpc| !rpc.is_parked || rpc.state == State::ClientOutgoing),
            "something other than a new request is parked",
        )?;
        let (mut in_use, mut idle, mut acks, mut held) = (0, 0, 0, 0);
        for (p, peer) in self.peers.iter().enumerate() {
            let p = p as u32;
            let own = self
                .rpcs
                .iter()
                .filter(|rpc| rpc.peer == p && rpc.state != State::Free);
            ensure(
                own.count() == peer.live as usize,
                "a peer's RPCs are miscounted",
            )?;
            let sum: u64 = self
                .rpcs
                .iter()
                .filter(|rpc| rpc.peer == p)
                .map(|rpc| u64::from(rpc.inc.counted))
                .sum();
            ensure(sum == peer.incoming, "a peer's incoming bytes drifted")?;
            let own = || self.rpcs.iter().filter(|rpc| rpc.peer == p);
            let begun = own().filter(|rpc| rpc.begun_at > 0).count();
            ensure(
                begun == peer.begun_live as usize && (begun > 0 || peer.unheard() == 0),
                "requests that have begun are miscounted",
            )?;
            let parked = own().filter(|rpc| rpc.is_parked).count();
            ensure(
                parked == self.rpcs.check_list(&peer.parked, dim::QUEUE)?,
                "parked requests miscounted",
            )?;
            ensure(
                parked == 0 || peer.unheard() > 0 || self.peers.is_listed(peer::dim::UNPARK, p),
                "parked requests wait for nothing",
            )?;
            if !peer.in_use {
                ensure(peer.live == 0, "a free peer has RPCs")?;
                continue;
            }
            in_use += 1;
            held += peer.acks.count() as usize;
            idle += usize::from(peer.live == 0);
            acks += usize::from(self.peers.is_listed(peer::dim::ACKS, p));
            ensure(
                peer.acks.count() == 0 || peer.acks_due || self.peers.is_listed(peer::dim::ACKS, p),
                "acknowledgements wait and nobody sends them",
            )?;
            ensure(
                !(peer.acks_due || peer.cutoffs_due) || self.peers.is_listed(peer::dim::CONTROL, p),
                "a peer's control packets are due and not listed",
            )?;
        }
        ensure(
            idle == self.peers.check_list(&self.idle_peers, peer::dim::IDLE)?,
            "idle peers miscounted",
        )?;
        ensure(in_use == self.known_peers(), "peers in use miscounted")?;
        ensure(
            in_use == self.peer_index.len(),
            "the index has other peers than the table",
        )?;
        ensure(
            acks == self.peers.check_list(&self.ack_order, peer::dim::ACKS)?,
            "waiting acknowledgements miscounted",
        )?;
        self.peers
            .check_list(&self.peer_control, peer::dim::CONTROL)?;
        ensure(
            held + self.acks.free_count()? == self.acks.capacity(),
            "places for acknowledgements leaked",
        )?;
        Ok(())
    }

    /// Nothing to wait for when idle.
    fn check_timeout(&self) -> Result<(), &'static str> {
        let idle = self.live_rpcs() == 0 && self.ack_order.first().is_none();
        if idle && self.grants.total_incoming() != 0 {
            return Err("an idle endpoint has bytes granted");
        }
        if self.stalled == 0 && self.sender_idle_since.is_some() {
            return Err("nothing waits for grants, and the sender counts as waiting");
        }
        Ok(())
    }
}
