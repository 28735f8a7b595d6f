//! Who is granted how much, and at which priority: the receiver's whole policy.
//!
//! SIGCOMM '18, sections 3.3 to 3.5; Homa draft, "Granting". Fewest bytes not yet received first,
//! at most so many messages at once, one from each peer while others wait, and a share for the
//! oldest.

use crate::config::Config;
use crate::incoming::Incoming;
use crate::list::{Linked, List, Table};
use crate::peer::{Candidate, PeerSlot};
use crate::priority::Priorities;
use crate::rpc::{GrantState, Pending, RpcSlot, dim};
use crate::stats::{Stats, count};
use crate::storage::NIL;
use crate::tree::{Forest, Tree};

const MAX_ACTIVE: usize = Config::MAX_OVERCOMMIT as usize;

/// Oldest messages looked at for one grant of the FIFO share (those of silent peers and of strangers are passed).
const MAX_FIFO_WALK: usize = 8;

/// The books of all incoming messages.
///
/// Every incoming message with a buffer counts `granted − received` bytes in `total` until it is
/// complete or ends, those of silent peers excepted. A message with `granted < length` is active,
/// or waits in its peer's tree; each peer that has waiting messages and is not silent stands in
/// one of two trees of candidates under its best message.
///
/// Strangers, whose addresses may be forged, come after all others, and what they announce and are
/// granted takes away no more than half of what may be granted to these.
pub(crate) struct Grants<'a> {
    waiting: Forest<'a>,
    candidates: Forest<'a>,
    /// Peers without an active message.
    fresh: Tree,
    /// Peers with one: these come only when a place would stay empty.
    second: Tree,
    /// Messages that wait for a buffer, in rank order. They share the forest of the waiting.
    no_buffer: Tree,
    /// In rank order; the first `active_count` are in use.
    active: [u32; MAX_ACTIVE],
    active_count: usize,
    /// Bytes of strangers, and of all others.
    strangers: u64,
    total: u64,
    /// Messages whose standing may have changed since the last decision.
    touched: List,
    /// Messages that need grants, in the order in which they began to.
    oldest: List,
    fifo_credit: u64,
    /// A share came free, or a limit changed.
    dirty: bool,
    max_active: usize,
    max_incoming: u64,
    /// Grants of the FIFO share may go this far beyond `max_incoming`, never beyond what the
    /// carrier's buffer holds.
    hard_limit: u64,
    fixed_window: u64,
    min_grant: u64,
    fifo_permille: u64,
    fifo_increment: u64,
    fifo_priority: u8,
}

fn rank<M, B>(rpc: &RpcSlot<M, B>) -> u128 {
    (u128::from(rpc.inc.remaining()) << 64) | u128::from(rpc.birth)
}

/// Set in what a stranger's messages compare by with those of other peers.
fn last_if_stranger(peer: &PeerSlot) -> u128 {
    u128::from(!peer.is_proved) << 127
}

impl<'a> Grants<'a> {
    pub(crate) fn new(waiting: Forest<'a>, candidates: Forest<'a>, config: &Config) -> Self {
        let mut this = Self {
            waiting,
            candidates,
            fresh: Tree::EMPTY,
            second: Tree::EMPTY,
            no_buffer: Tree::EMPTY,
            active: [NIL; MAX_ACTIVE],
            active_count: 0,
            strangers: 0,
            total: 0,
            touched: List::EMPTY,
            oldest: List::EMPTY,
            fifo_credit: 0,
            dirty: false,
            max_active: usize::from(config.max_overcommit).clamp(1, MAX_ACTIVE),
            max_incoming: 0,
            hard_limit: 0,
            fixed_window: u64::from(config.window),
            min_grant: u64::from(config.min_grant),
            fifo_permille: u64::from(config.fifo_permille),
            fifo_increment: u64::from(config.fifo_grant_increment).max(1),
            fifo_priority: config.levels.saturating_sub(2),
        };
        this.set_limits(config);
        this
    }

    /// Takes over the limits of a resolved configuration.
    pub(crate) fn set_limits(&mut self, config: &Config) {
        self.max_incoming = config.incoming_limit();
        let beyond = self.max_incoming.saturating_add(self.fifo_increment);
        self.hard_limit = match config.receive_buffer {
            0 => beyond,
            held => beyond.min(held.max(self.max_incoming)),
        };
        self.dirty = true;
    }

    /// Bytes granted and not yet received.
    pub(crate) fn total_incoming(&self) -> u64 {
        self.total.saturating_add(self.strangers)
    }

    /// Bytes that may be granted to a peer.
    pub(crate) fn room(&self, peer: &PeerSlot) -> u64 {
        let half = self.max_incoming / 2;
        let left = self.max_incoming.saturating_sub(self.total);
        let of_others = left.saturating_sub(self.strangers.min(half));
        match peer.is_proved {
            true => of_others,
            false => left.min(half).saturating_sub(self.strangers),
        }
    }

    pub(crate) fn needs_decision(&self) -> bool {
        self.dirty || self.touched.first().is_some()
    }

    /// Something about an incoming message changed: look at it at the next decision.
    pub(crate) fn touch<M, B>(&mut self, rpcs: &mut Table<'_, RpcSlot<M, B>>, idx: u32) {
        rpcs.push_back(&mut self.touched, dim::TOUCHED, idx);
    }

    /// Decides, once per batch of input: every message in its place, the active ones granted.
    pub(crate) fn decide<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        priorities: &Priorities,
        control: &mut List,
        stats: &mut Stats,
    ) {
        while let Some(idx) = rpcs.pop_front(&mut self.touched, dim::TOUCHED) {
            self.settle(rpcs, peers, idx);
        }
        if let Some(active) = self.active.get_mut(..self.active_count) {
            active.sort_unstable_by_key(|&idx| rank(&rpcs[idx]));
        }
        self.dirty = false;
        loop {
            // The oldest first: where headroom is short the active ones would leave it none.
            let was_due = self.grant_oldest(rpcs, peers, control, stats);
            self.grant_active(rpcs, peers, priorities, control, stats);
            // Each turn uses up credit that only grants bring: this ends.
            if !was_due {
                return;
            }
        }
    }

    /// Grants every active message its window, the best first, as long as there is headroom.
    fn grant_active<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        priorities: &Priorities,
        control: &mut List,
        stats: &mut Stats,
    ) {
        self.fill(rpcs, peers);
        let mut at = 0;
        while let Some(&idx) = self.active().get(at) {
            let window = self.window();
            let rpc = &rpcs[idx];
            let target = u64::from(rpc.inc.received())
                .saturating_add(window)
                .min(u64::from(rpc.inc.len));
            let want = target.saturating_sub(u64::from(rpc.inc.granted));
            let give = want.min(self.room(&peers[rpc.peer]));
            if give < want {
                count(&mut stats.grants_short_of_headroom);
            }
            if give == 0 || self.may_wait(&rpc.inc, give) {
                at = at.saturating_add(1);
                continue;
            }
            let priority = priorities.scheduled(at, self.active_count);
            self.issue(rpcs, peers, idx, give, priority, control, stats);
            if rpcs[idx].grant == GrantState::Active {
                at = at.saturating_add(1);
            } else {
                // Fully granted: its place goes to the next, who may rank anywhere.
                self.fill(rpcs, peers);
                at = 0;
            }
        }
    }

    /// Whether a grant of `give` bytes is too small to be worth a packet now: the sender has
    /// enough to go on with.
    fn may_wait<B>(&self, inc: &Incoming<B>, give: u64) -> bool {
        let reaches_end = u64::from(inc.granted).saturating_add(give) >= u64::from(inc.len);
        give < self.min_grant
            && !reaches_end
            && u64::from(inc.outstanding()).saturating_mul(2) >= self.window()
    }

    /// Bytes granted ahead to each active message: dynamic thresholds with alpha = 1.
    fn window(&self) -> u64 {
        if self.fixed_window > 0 {
            return self.fixed_window;
        }
        let parts = (self.active_count as u64).saturating_add(1);
        self.max_incoming.checked_div(parts).unwrap_or(0).max(1)
    }

    /// A share of all grants goes to the message that has needed them longest. `true`: it got one.
    fn grant_oldest<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        control: &mut List,
        stats: &mut Stats,
    ) -> bool {
        let price = self.fifo_increment.saturating_mul(1000);
        if self.fifo_credit < price {
            return false;
        }
        let mut next = self.oldest.first();
        let is_passed = |idx: u32| {
            let peer = &peers[rpcs[idx].peer];
            peer.is_silent || !peer.is_proved
        };
        for _ in 0..MAX_FIFO_WALK {
            match next {
                Some(idx) if is_passed(idx) => next = rpcs.next(dim::OLDEST, idx),
                _ => break,
            }
        }
        let Some(idx) = next.filter(|&idx| !is_passed(idx)) else {
            return false;
        };
        let limit = self
            .window()
            .saturating_add(self.fifo_increment.saturating_mul(2));
        let rpc = &rpcs[idx];
        let left = u64::from(rpc.inc.len.saturating_sub(rpc.inc.granted));
        let give = self
            .fifo_increment
            .min(left)
            .min(self.hard_limit.saturating_sub(self.total_incoming()));
        if u64::from(rpc.inc.outstanding()) >= limit || give == 0 {
            return false;
        }
        self.fifo_credit = self.fifo_credit.saturating_sub(give.saturating_mul(1000));
        count(&mut stats.fifo_grants);
        let priority = self.fifo_priority;
        self.issue(rpcs, peers, idx, give, priority, control, stats);
        true
    }

    /// Grants `give` more bytes: into the books at once, onto the wire when control packets are
    /// next polled.
    #[allow(clippy::too_many_arguments)]
    fn issue<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
        give: u64,
        priority: u8,
        control: &mut List,
        stats: &mut Stats,
    ) {
        let rpc = &mut rpcs[idx];
        let give32 = u32::try_from(give).unwrap_or(u32::MAX);
        rpc.inc.granted = rpc.inc.granted.saturating_add(give32).min(rpc.inc.len);
        rpc.grant_priority = priority;
        rpc.pending.set(Pending::GRANT);
        rpcs.push_back(control, dim::CONTROL, idx);
        stats.bytes_granted = stats.bytes_granted.wrapping_add(give);
        // Kept within a few increments: credit that nobody can use does not pile up.
        self.fifo_credit = self
            .fifo_credit
            .saturating_add(give.saturating_mul(self.fifo_permille))
            .min(self.fifo_increment.saturating_mul(4000));
        self.settle(rpcs, peers, idx);
    }

    /// Fills the places of active messages, and lets a better one pre-empt the worst.
    fn fill<M, B>(&mut self, rpcs: &mut Table<'_, RpcSlot<M, B>>, peers: &mut Table<'_, PeerSlot>) {
        loop {
            let best = |tree: &Tree| {
                let peer = self.candidates.first(tree)?;
                self.waiting.first(&peers[peer].waiting)
            };
            let fresh = best(&self.fresh);
            if self.active_count < self.max_active {
                match fresh.or_else(|| best(&self.second)) {
                    Some(idx) => self.activate(rpcs, peers, idx),
                    None => return,
                }
                continue;
            }
            // A second message of some peer yields to any other peer, and to a better second one;
            // else the worst one yields to a better one.
            let doubled = self
                .active()
                .iter()
                .rev()
                .copied()
                .find(|&idx| peers[rpcs[idx].peer].active > 1);
            let standing = |idx: u32| {
                let rpc = &rpcs[idx];
                rank(rpc) | last_if_stranger(&peers[rpc.peer])
            };
            let is_proved = |idx: u32| peers[rpcs[idx].peer].is_proved;
            let worst = self.active().iter().copied();
            let worst = worst.max_by_key(|&idx| standing(idx));
            let (next, victim, must_be_better) = match (fresh, doubled) {
                (Some(fresh), Some(doubled)) => {
                    let may_yield = is_proved(fresh) || !is_proved(doubled);
                    (Some(fresh), Some(doubled), !may_yield)
                }
                (Some(fresh), None) => (Some(fresh), worst, true),
                (None, _) => (best(&self.second), doubled, true),
            };
            let (Some(idx), Some(victim)) = (next, victim) else {
                return;
            };
            if must_be_better && standing(idx) > standing(victim) {
                return;
            }
            self.deactivate(rpcs, peers, victim);
            self.wait(rpcs, peers, victim);
            self.activate(rpcs, peers, idx);
        }
    }

    fn active(&self) -> &[u32] {
        self.active.get(..self.active_count).unwrap_or(&[])
    }

    /// Brings the books and the place of one message up to what is true now.
    fn settle<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        let rpc = &mut rpcs[idx];
        let takes = rpc.state.receives() && rpc.inc.buffer.is_some();
        let counted = if takes { rpc.inc.outstanding() } else { 0 };
        let needs = takes && rpc.inc.granted < rpc.inc.len;
        let (state, p) = (rpc.grant, rpc.peer);
        self.count(&mut rpc.inc.counted, counted, &mut peers[p]);
        match (state, needs) {
            (GrantState::NoBuffer, _) | (GrantState::None, false) => {}
            (GrantState::None, true) => {
                rpcs.push_back(&mut self.oldest, dim::OLDEST, idx);
                self.wait(rpcs, peers, idx);
                self.prefer_within_peer(rpcs, peers, idx);
            }
            (GrantState::Waiting, true) => {
                let key = rank(&rpcs[idx]);
                self.waiting.rekey(&mut peers[p].waiting, idx, key);
                self.refresh(peers, p);
                self.prefer_within_peer(rpcs, peers, idx);
            }
            // Its rank may be better now: `decide` sorts once all are settled.
            (GrantState::Active, true) => {}
            (GrantState::Waiting | GrantState::Active, false) => self.detach(rpcs, peers, idx),
        }
    }

    fn count(&mut self, counted: &mut u32, now: u32, peer: &mut PeerSlot) {
        let (old, new) = (u64::from(*counted), u64::from(now));
        *counted = now;
        peer.incoming = peer.incoming.saturating_add(new).saturating_sub(old);
        if !peer.is_silent {
            let sum = self.sum_of(peer);
            *sum = sum.saturating_add(new).saturating_sub(old);
        }
    }

    /// Where the bytes of a peer count.
    fn sum_of(&mut self, peer: &PeerSlot) -> &mut u64 {
        match peer.is_proved {
            true => &mut self.total,
            false => &mut self.strangers,
        }
    }

    /// The peer is no stranger any more: `is_proved` has just been set.
    pub(crate) fn prove(&mut self, peers: &mut Table<'_, PeerSlot>, p: u32) {
        let peer = &peers[p];
        if !peer.is_silent {
            self.strangers = self.strangers.saturating_sub(peer.incoming);
            self.total = self.total.saturating_add(peer.incoming);
        }
        // Most have no message that is granted or waits.
        if peer.incoming > 0 || peer.active > 0 || peer.candidate != Candidate::No {
            self.refresh(peers, p);
            self.dirty = true;
        }
    }

    /// A waiting message takes the place of a worse active one of its own peer.
    fn prefer_within_peer<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        let p = rpcs[idx].peer;
        if peers[p].active == 0 || peers[p].is_silent {
            return;
        }
        let worst = self
            .active()
            .iter()
            .copied()
            .filter(|&other| rpcs[other].peer == p)
            .max_by_key(|&other| rank(&rpcs[other]));
        if let Some(worst) = worst.filter(|&worst| rank(&rpcs[idx]) < rank(&rpcs[worst])) {
            self.deactivate(rpcs, peers, worst);
            self.wait(rpcs, peers, worst);
            self.activate(rpcs, peers, idx);
        }
    }

    fn wait<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        let key = rank(&rpcs[idx]);
        let p = rpcs[idx].peer;
        rpcs[idx].grant = GrantState::Waiting;
        self.waiting.insert(&mut peers[p].waiting, idx, key);
        self.refresh(peers, p);
    }

    fn activate<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        let p = rpcs[idx].peer;
        self.waiting.remove(&mut peers[p].waiting, idx);
        rpcs[idx].grant = GrantState::Active;
        self.put_into_active(rpcs, idx);
        peers[p].active = peers[p].active.saturating_add(1);
        self.refresh(peers, p);
    }

    fn deactivate<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        let p = rpcs[idx].peer;
        self.take_from_active(idx);
        rpcs[idx].grant = GrantState::None;
        peers[p].active = peers[p].active.saturating_sub(1);
        self.refresh(peers, p);
    }

    fn take_from_active(&mut self, idx: u32) {
        if let Some(at) = self.active().iter().position(|&other| other == idx) {
            self.active
                .copy_within(at.saturating_add(1)..self.active_count, at);
            self.active_count = self.active_count.saturating_sub(1);
        }
    }

    fn put_into_active<M, B>(&mut self, rpcs: &Table<'_, RpcSlot<M, B>>, idx: u32) {
        let key = rank(&rpcs[idx]);
        let at = self
            .active()
            .partition_point(|&other| rank(&rpcs[other]) < key);
        if self.active_count < MAX_ACTIVE {
            self.active
                .copy_within(at..self.active_count, at.saturating_add(1));
            if let Some(slot) = self.active.get_mut(at) {
                *slot = idx;
            }
            self.active_count = self.active_count.saturating_add(1);
        }
    }

    /// A message that needs no more grants leaves the order of those that do.
    fn detach<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        let p = rpcs[idx].peer;
        match rpcs[idx].grant {
            GrantState::Active => {
                self.deactivate(rpcs, peers, idx);
                rpcs.unlink(&mut self.oldest, dim::OLDEST, idx);
            }
            GrantState::Waiting => {
                self.waiting.remove(&mut peers[p].waiting, idx);
                rpcs[idx].grant = GrantState::None;
                self.refresh(peers, p);
                rpcs.unlink(&mut self.oldest, dim::OLDEST, idx);
            }
            GrantState::NoBuffer => {
                self.waiting.remove(&mut self.no_buffer, idx);
                rpcs[idx].grant = GrantState::None;
            }
            GrantState::None => {}
        }
    }

    /// Puts a peer among the candidates under its best waiting message, or takes it out.
    fn refresh(&mut self, peers: &mut Table<'_, PeerSlot>, p: u32) {
        let peer = &mut peers[p];
        let best = self
            .waiting
            .first(&peer.waiting)
            .and_then(|idx| self.waiting.key(idx))
            .filter(|_| !peer.is_silent)
            .map(|key| key | last_if_stranger(peer));
        let place = match best {
            None => Candidate::No,
            Some(_) if peer.active == 0 => Candidate::Fresh,
            Some(_) => Candidate::Second,
        };
        if place != peer.candidate {
            match peer.candidate {
                Candidate::No => {}
                Candidate::Fresh => {
                    self.candidates.remove(&mut self.fresh, p);
                }
                Candidate::Second => {
                    self.candidates.remove(&mut self.second, p);
                }
            }
        }
        let Some(key) = best else {
            peer.candidate = Candidate::No;
            return;
        };
        let tree = match place {
            Candidate::Second => &mut self.second,
            _ => &mut self.fresh,
        };
        if place == peer.candidate {
            if self.candidates.key(p) != Some(key) {
                self.candidates.rekey(tree, p, key);
            }
        } else {
            self.candidates.insert(tree, p, key);
            peer.candidate = place;
        }
    }

    /// The message is complete, or its RPC has ended: out of all books, its share handed on at
    /// the next decision.
    #[inline(always)]
    pub(crate) fn forget<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        // Most messages come in one packet and never are in any book.
        let rpc = &rpcs[idx];
        let is_listed = rpc.link(dim::TOUCHED).is_listed();
        if rpc.grant != GrantState::None || rpc.inc.counted > 0 || is_listed {
            self.strike_out(rpcs, peers, idx);
        }
    }

    fn strike_out<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        idx: u32,
    ) {
        rpcs.unlink(&mut self.touched, dim::TOUCHED, idx);
        let had_share = rpcs[idx].inc.counted > 0 || rpcs[idx].grant != GrantState::None;
        self.detach(rpcs, peers, idx);
        let rpc = &mut rpcs[idx];
        let p = rpc.peer;
        self.count(&mut rpc.inc.counted, 0, &mut peers[p]);
        self.dirty |= had_share;
        // It may have been the one whose grants a silent peer sat on. The peer's other messages wait without a
        // timer: if nothing were granted them now, nothing would ever be heard of them.
        self.unsilence(peers, p);
    }

    /// The peer sits on its grants: what it holds goes to others.
    pub(crate) fn silence<M, B>(
        &mut self,
        rpcs: &mut Table<'_, RpcSlot<M, B>>,
        peers: &mut Table<'_, PeerSlot>,
        p: u32,
    ) {
        if peers[p].is_silent {
            return;
        }
        let mut at = 0;
        while let Some(&idx) = self.active().get(at) {
            if rpcs[idx].peer == p {
                self.deactivate(rpcs, peers, idx);
                self.wait(rpcs, peers, idx);
            } else {
                at = at.saturating_add(1);
            }
        }
        peers[p].is_silent = true;
        let sum = self.sum_of(&peers[p]);
        *sum = sum.saturating_sub(peers[p].incoming);
        self.refresh(peers, p);
        self.dirty = true;
    }

    /// The peer sends again.
    pub(crate) fn unsilence(&mut self, peers: &mut Table<'_, PeerSlot>, p: u32) {
        if !peers[p].is_silent {
            return;
        }
        peers[p].is_silent = false;
        let sum = self.sum_of(&peers[p]);
        *sum = sum.saturating_add(peers[p].incoming);
        self.refresh(peers, p);
        self.dirty = true;
    }

    /// The message must wait for a buffer.
    pub(crate) fn await_buffer<M, B>(&mut self, rpcs: &mut Table<'_, RpcSlot<M, B>>, idx: u32) {
        let key = rank(&rpcs[idx]);
        rpcs[idx].grant = GrantState::NoBuffer;
        self.waiting.insert(&mut self.no_buffer, idx, key);
    }

    /// The best message that waits for a buffer.
    pub(crate) fn first_awaiting_buffer(&self) -> Option<u32> {
        self.waiting.first(&self.no_buffer)
    }

    /// Whether a message that waits for a buffer ranks before a new one of `len` bytes.
    pub(crate) fn is_buffer_promised(&self, len: u32) -> bool {
        self.first_awaiting_buffer()
            .and_then(|idx| self.waiting.key(idx))
            .is_some_and(|key| key >> 64 <= u128::from(len))
    }

    /// The message has its buffer now.
    pub(crate) fn has_buffer<M, B>(&mut self, rpcs: &mut Table<'_, RpcSlot<M, B>>, idx: u32) {
        if rpcs[idx].grant == GrantState::NoBuffer {
            self.waiting.remove(&mut self.no_buffer, idx);
            rpcs[idx].grant = GrantState::None;
        }
        self.touch(rpcs, idx);
    }

    /// Recomputes all books from scratch.
    #[cfg(any(test, feature = "check"))]
    #[allow(
        clippy::arithmetic_side_effects,
        reason = "checks never run in production"
    )]
    pub(crate) fn check<M, B>(
        &self,
        rpcs: &Table<'_, RpcSlot<M, B>>,
        peers: &Table<'_, PeerSlot>,
    ) -> Result<(), &'static str> {
        let (mut total, mut strangers) = (0u64, 0u64);
        let mut active = 0usize;
        let mut needing = 0usize;
        let mut no_buffer = 0usize;
        for (idx, rpc) in rpcs.iter().enumerate() {
            let idx = idx as u32;
            let takes = rpc.state.receives() && rpc.inc.buffer.is_some();
            if !peers[rpc.peer].is_silent || rpc.inc.counted == 0 {
                let sum = match peers[rpc.peer].is_proved {
                    true => &mut total,
                    false => &mut strangers,
                };
                *sum += u64::from(rpc.inc.counted);
            }
            let touched = rpcs.is_listed(dim::TOUCHED, idx);
            match rpc.grant {
                GrantState::Active => {
                    active += 1;
                    if !self.active().contains(&idx) {
                        return Err("grants: an active message is not in its place");
                    }
                }
                GrantState::Waiting => {
                    if !touched && self.waiting.key(idx) != Some(rank(rpc)) {
                        return Err("grants: a waiting message stands under an old rank");
                    }
                }
                GrantState::NoBuffer => no_buffer += 1,
                GrantState::None => {}
            }
            let in_order = matches!(rpc.grant, GrantState::Active | GrantState::Waiting);
            needing += usize::from(in_order);
            if !rpc.state.sends() && in_order != rpcs.is_listed(dim::OLDEST, idx) {
                return Err("grants: the order of age lacks a message or has one too many");
            }
            if touched {
                continue;
            }
            if rpc.inc.counted != if takes { rpc.inc.outstanding() } else { 0 } {
                return Err("grants: the bytes counted for a message drifted");
            }
            if in_order != (takes && rpc.inc.granted < rpc.inc.len) {
                return Err("grants: a message needs grants and is not in order, or the reverse");
            }
            if rpc.state == crate::rpc::State::Free && rpc.grant != GrantState::None {
                return Err("grants: a dead message is still in the books");
            }
        }
        if (total, strangers) != (self.total, self.strangers) {
            return Err("grants: total_incoming drifted");
        }
        if active != self.active_count || active > self.max_active {
            return Err("grants: wrong number of active messages");
        }
        if needing != self.oldest.len() || no_buffer != self.no_buffer.len() {
            return Err("grants: a message is missing from a list");
        }
        let by_rank = |a: &u32, b: &u32| rank(&rpcs[*a]) < rank(&rpcs[*b]);
        if !self.touched_any() && !self.active().is_sorted_by(by_rank) {
            return Err("grants: active messages are out of order");
        }
        for (p, peer) in peers.iter().enumerate() {
            let own = |idx: &&u32| rpcs[**idx].peer == p as u32;
            if self.active().iter().filter(own).count() != usize::from(peer.active) {
                return Err("grants: active messages of a peer miscounted");
            }
            let best = self
                .waiting
                .first(&peer.waiting)
                .and_then(|idx| self.waiting.key(idx))
                .filter(|_| !peer.is_silent)
                .map(|key| key | last_if_stranger(peer));
            if self.candidates.key(p as u32) != best {
                return Err("grants: a peer stands under an old rank among the candidates");
            }
            self.waiting.check(&peer.waiting)?;
        }
        self.candidates.check(&self.fresh)?;
        self.candidates.check(&self.second)?;
        self.waiting.check(&self.no_buffer)?;
        if !self.needs_decision() {
            self.check_decided(rpcs, peers)?;
        }
        Ok(())
    }

    #[cfg(any(test, feature = "check"))]
    fn touched_any(&self) -> bool {
        self.touched.first().is_some()
    }

    /// After a decision: no place is empty while somebody may fill it, and while headroom is
    /// left every active message is granted its window.
    #[cfg(any(test, feature = "check"))]
    #[allow(
        clippy::arithmetic_side_effects,
        reason = "checks never run in production"
    )]
    fn check_decided<M, B>(
        &self,
        rpcs: &Table<'_, RpcSlot<M, B>>,
        peers: &Table<'_, PeerSlot>,
    ) -> Result<(), &'static str> {
        if self.active_count < self.max_active && !(self.fresh.is_empty() && self.second.is_empty())
        {
            return Err("grants: a place is empty while a message waits");
        }
        for &idx in self.active() {
            let inc = &rpcs[idx].inc;
            let target = u64::from(inc.received()) + self.window();
            let target = target.min(u64::from(inc.len));
            let room = self.room(&peers[rpcs[idx].peer]);
            let give = target.saturating_sub(u64::from(inc.granted)).min(room);
            if give > 0 && !self.may_wait(inc, give) {
                return Err("grants: headroom is left and an active message lacks a grant");
            }
        }
        Ok(())
    }
}
