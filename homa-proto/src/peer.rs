//! What is known of a peer.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::acks::Held;
use crate::list::{Link, Linked, List};
use crate::outgoing::Kept;
use crate::time::Instant;
use crate::tree::Tree;
use crate::wire::Common;

/// Control bytes to a stranger for each byte from it.
pub(crate) const STRANGER_FACTOR: u64 = 3;

/// Smoothed time and its variation, after RFC 6298, in nanoseconds (up to 4 s).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Smoothed {
    mean: u32,
    variation: u32,
    known: bool,
}

impl Smoothed {
    pub(crate) fn sample(&mut self, nanos: u64) {
        let sample = u32::try_from(nanos).unwrap_or(u32::MAX);
        if !self.known {
            *self = Self {
                mean: sample,
                variation: sample / 2,
                known: true,
            };
            return;
        }
        let blend = |old: u32, new: u32, shift: u32| {
            let weight = (1u64 << shift).saturating_sub(1);
            let sum = u64::from(old)
                .saturating_mul(weight)
                .saturating_add(u64::from(new));
            u32::try_from(sum >> shift).unwrap_or(u32::MAX)
        };
        self.variation = blend(self.variation, self.mean.abs_diff(sample), 2);
        self.mean = blend(self.mean, sample, 3);
    }

    pub(crate) fn mean(&self) -> Option<u64> {
        self.known.then_some(u64::from(self.mean))
    }

    /// Smoothed + 4 × variation.
    pub(crate) fn bound(&self) -> Option<u64> {
        self.known.then(|| {
            u64::from(self.mean).saturating_add(u64::from(self.variation).saturating_mul(4))
        })
    }
}

/// A grant whose data will tell the round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) rpc: u32,
    pub(crate) birth: u64,
    /// Data at or above this offset could not have been sent before the grant.
    pub(crate) offset: u32,
    pub(crate) sent: Instant,
}

/// Where a peer stands among those that may be granted more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Candidate {
    /// None of its messages waits, or it is silent.
    No,
    /// It has a waiting message and no active one.
    Fresh,
    /// It has a waiting message besides an active one.
    Second,
}

/// Lists that a peer can be in.
pub(crate) mod dim {
    /// Control packets are due.
    pub(crate) const CONTROL: usize = 0;
    /// No live RPC: least recently used first. Or free.
    pub(crate) const IDLE: usize = 1;
    /// Acknowledgements wait, oldest first.
    pub(crate) const ACKS: usize = 2;
    /// Parked requests may begin.
    pub(crate) const UNPARK: usize = 3;
    pub(crate) const COUNT: usize = 4;
}

/// One entry of the table of peers. Its contents are the endpoint's own.
pub(crate) struct PeerSlot {
    /// Canonical: never IPv4-mapped.
    pub(crate) addr: SocketAddr,
    pub(crate) addr_hash: u64,
    pub(crate) local: Option<IpAddr>,
    pub(crate) in_use: bool,
    /// Anything at all has been heard.
    pub(crate) was_heard: bool,
    /// It gets what is sent to its address: it has named a number that it could know from that alone.
    pub(crate) is_proved: bool,
    /// While it is a stranger: versions it named that it was not told.
    pub(crate) wrong_guesses: u8,
    /// And bytes heard from it.
    pub(crate) bytes_heard: u64,
    /// And bytes of control packets that it was sent.
    pub(crate) bytes_told: u64,
    /// Slots taken by its requests.
    pub(crate) requests: u32,
    /// Bytes of its requests that are arriving.
    pub(crate) arriving: u64,
    /// Bytes of messages to it that are kept.
    pub(crate) queued: Kept,
    /// It sits on its grants: gets no more, and what it has been granted does not count.
    pub(crate) is_silent: bool,
    pub(crate) cutoffs_due: bool,
    pub(crate) acks_due: bool,
    pub(crate) candidate: Candidate,
    /// Active messages from this peer.
    pub(crate) active: u8,
    pub(crate) cutoff_version: u16,
    /// Priority of unscheduled data to this peer, by message length.
    pub(crate) cutoffs: [u32; 8],
    /// The most unscheduled bytes of a message that it takes.
    pub(crate) unscheduled_limit: u32,
    /// Round trip of the network: from grant to granted data, from RESEND to its answer.
    pub(crate) rtt: Smoothed,
    /// From a whole request to the first byte of its response.
    pub(crate) service: Smoothed,
    /// The reordering allowance is a quarter of the round trip, doubled so many times.
    pub(crate) reorder_doublings: u8,
    /// Holes that were really losses since the allowance last changed.
    pub(crate) losses: u8,
    /// When the allowance was last changed: once in a round trip is enough.
    pub(crate) learnt: Instant,
    pub(crate) probe: Option<Probe>,
    pub(crate) heard: Instant,
    pub(crate) data_heard: Instant,
    pub(crate) cutoffs_sent: Option<Instant>,
    /// Of the RPC whose packet showed that the peer lacks the cutoffs.
    pub(crate) cutoffs_common: Common,
    /// When the next RESEND may go to this peer.
    pub(crate) resend_free: Instant,
    /// When the peer was first and last asked after a silence since anything was heard of it, and how often, those
    /// questions not counted that the first answer could still have forestalled.
    pub(crate) first_asked: Instant,
    pub(crate) last_asked: Instant,
    pub(crate) questions: u8,
    /// Silence is borne for the measured time, doubled so many times.
    pub(crate) patience: u8,
    /// Times measured since that was last lowered.
    calm: u8,
    pub(crate) acks_since: Instant,
    /// Client port of the RPCs in `acks`.
    pub(crate) ack_local_port: u16,
    pub(crate) acks: Held,
    /// Unscheduled bytes of all requests that have begun.
    pub(crate) begun: u64,
    /// The peer has looked at what was sent up to here of `begun`: it has been heard of a request
    /// that began later.
    pub(crate) begun_heard: u64,
    /// A request that began up to here of `begun` has been answered, and when that last grew.
    pub(crate) answered: u64,
    pub(crate) answered_at: Instant,
    /// The request that began last; live while `begun_heard` is less than `begun`.
    pub(crate) last_begun: u32,
    /// Requests that have begun and not ended.
    pub(crate) begun_live: u32,
    /// Requests that wait until there is less between the two.
    pub(crate) parked: List,
    /// Slots taken by RPCs with this peer.
    pub(crate) live: u32,
    /// The peer has timed out: RPCs born before this fail when their timers find it.
    pub(crate) failed_before: u64,
    /// Its messages that wait for grants, in rank order.
    pub(crate) waiting: Tree,
    /// Bytes granted to it and not yet received.
    pub(crate) incoming: u64,
    links: [Link; dim::COUNT],
}

impl PeerSlot {
    /// A free slot.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self {
            addr: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            addr_hash: 0,
            local: None,
            in_use: false,
            was_heard: false,
            is_proved: false,
            wrong_guesses: 0,
            bytes_heard: 0,
            bytes_told: 0,
            requests: 0,
            arriving: 0,
            queued: Kept::NONE,
            is_silent: false,
            cutoffs_due: false,
            acks_due: false,
            candidate: Candidate::No,
            active: 0,
            cutoff_version: 0,
            cutoffs: [0; 8],
            unscheduled_limit: u32::MAX,
            rtt: Smoothed {
                mean: 0,
                variation: 0,
                known: false,
            },
            service: Smoothed {
                mean: 0,
                variation: 0,
                known: false,
            },
            reorder_doublings: 1,
            losses: 0,
            learnt: Instant::ZERO,
            probe: None,
            heard: Instant::ZERO,
            data_heard: Instant::ZERO,
            cutoffs_sent: None,
            cutoffs_common: Common {
                source_port: 0,
                dest_port: 0,
                sender_id: 0,
            },
            resend_free: Instant::ZERO,
            first_asked: Instant::ZERO,
            last_asked: Instant::ZERO,
            questions: 0,
            patience: 0,
            calm: 0,
            acks_since: Instant::ZERO,
            ack_local_port: 0,
            acks: Held::NONE,
            begun: 0,
            begun_heard: 0,
            answered: 0,
            answered_at: Instant::ZERO,
            last_begun: 0,
            begun_live: 0,
            parked: List::EMPTY,
            live: 0,
            failed_before: 0,
            waiting: Tree::EMPTY,
            incoming: 0,
            links: [Link::OUT; dim::COUNT],
        }
    }

    /// Makes the slot that of a new peer. It must be in no list but the one of free slots.
    pub(crate) fn occupy(&mut self, addr: SocketAddr, addr_hash: u64, local: Option<IpAddr>) {
        let links = self.links;
        *self = Self {
            addr,
            addr_hash,
            local,
            in_use: true,
            links,
            ..Self::new()
        };
    }

    /// A hole that had been asked for was filled: by what was sent again, or by the packet that had
    /// only been late. The allowance follows (as RACK's does, RFC 8985, section 6.2).
    pub(crate) fn learn_reordering(&mut self, now: Instant, was_late: bool) {
        const MOST_DOUBLINGS: u8 = 5;
        const LOSSES_PER_HALVING: u8 = 16;
        let round_trip = self.rtt.mean().unwrap_or(0);
        if now.nanos_since(self.learnt) < round_trip {
            return;
        }
        self.learnt = now;
        if was_late {
            self.reorder_doublings = self.reorder_doublings.saturating_add(1).min(MOST_DOUBLINGS);
            self.losses = 0;
        } else {
            self.losses = self.losses.saturating_add(1);
            if self.losses >= LOSSES_PER_HALVING {
                self.losses = 0;
                self.reorder_doublings = self.reorder_doublings.saturating_sub(1);
            }
        }
    }

    /// A silent message that was asked about goes on. `was_late`: with what would have come anyway, so that the question
    /// was needless: its sender is busy with others or has stalled, or the network has more urgent data. Else with what is sent again,
    /// which may yet turn out to have been needless too: one late packet outweighs a few losses.
    pub(crate) fn learn_patience(&mut self, was_late: bool) {
        const MOST_PATIENCE: u8 = 6;
        self.patience = if was_late {
            self.patience.saturating_add(3).min(MOST_PATIENCE)
        } else {
            self.patience.saturating_sub(1)
        };
    }

    /// A time was measured that nobody had to ask for.
    pub(crate) fn note_calm(&mut self) {
        const SAMPLES: u8 = 128;
        self.calm = self.calm.saturating_add(1);
        if self.calm >= SAMPLES {
            self.calm = 0;
            self.patience = self.patience.saturating_sub(1);
        }
    }

    /// It was asked something, and nothing at all has been heard of it since.
    pub(crate) fn owes_answer(&self) -> bool {
        self.questions > 0 && self.heard < self.first_asked
    }

    /// It owes answers to more than one question, the later ones asked after the first should have been answered.
    pub(crate) fn is_mute(&self) -> bool {
        self.owes_answer() && self.questions > 1
    }

    /// A stranger has named another version than it was told. Old ones are, for a while, in packets of
    /// honest peers too; who guesses for long is not believed any more.
    pub(crate) fn note_wrong_guess(&mut self) {
        self.wrong_guesses = self.wrong_guesses.saturating_add(1);
    }

    /// It has guessed so often that a right guess proves nothing.
    pub(crate) fn is_never_believed(&self) -> bool {
        self.wrong_guesses == u8::MAX
    }

    /// Whether a control packet of `len` bytes may go to it unasked for by this endpoint: to a stranger no
    /// more than [`STRANGER_FACTOR`] times the bytes that came from its address, which may be forged.
    pub(crate) fn may_be_told(&self, len: usize) -> bool {
        let most = self.bytes_heard.saturating_mul(STRANGER_FACTOR);
        self.is_proved || self.bytes_told.saturating_add(len as u64) <= most
    }

    /// Unscheduled bytes of requests that the peer may not have looked at yet.
    pub(crate) fn unheard(&self) -> u64 {
        self.begun.saturating_sub(self.begun_heard)
    }

    /// The unscheduled priority of a message of `len` bytes to this peer.
    ///
    /// The largest level whose cutoff is not below the length; level 0 takes everything. Before
    /// the peer's cutoffs are known: the second highest (ATC '21).
    pub(crate) fn unscheduled_priority(&self, len: u32) -> u8 {
        if self.cutoff_version == 0 {
            return 6;
        }
        (1..8u8)
            .rev()
            .find(|&level| {
                self.cutoffs
                    .get(usize::from(level))
                    .is_some_and(|&cutoff| cutoff >= len)
            })
            .unwrap_or(0)
    }
}

impl Default for PeerSlot {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(
    clippy::indexing_slicing,
    reason = "`dim` is one of the constants above"
)]
impl Linked for PeerSlot {
    #[inline]
    fn link(&self, dim: usize) -> &Link {
        &self.links[dim]
    }
    #[inline]
    fn link_mut(&mut self, dim: usize) -> &mut Link {
        &mut self.links[dim]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothed_settles() {
        let mut smoothed = Smoothed::default();
        assert_eq!(smoothed.bound(), None);
        for _ in 0..100 {
            smoothed.sample(10_000);
        }
        assert_eq!(smoothed.mean(), Some(10_000));
        assert!(smoothed.bound().unwrap() < 11_000);
        smoothed.sample(u64::MAX);
        assert!(smoothed.bound().unwrap() > 1_000_000_000);
    }

    #[test]
    fn the_reordering_allowance_grows_with_lateness_and_shrinks_with_loss() {
        let mut peer = PeerSlot::new();
        let start = peer.reorder_doublings;
        for _ in 0..100 {
            peer.learn_reordering(Instant::ZERO, true);
        }
        assert!(peer.reorder_doublings > start && peer.reorder_doublings < 8);
        for _ in 0..1000 {
            peer.learn_reordering(Instant::ZERO, false);
        }
        assert_eq!(peer.reorder_doublings, 0);
    }

    #[test]
    fn patience_grows_with_needless_questions_and_shrinks_with_losses() {
        let mut peer = PeerSlot::new();
        for _ in 0..100 {
            // Sent again, and then the packet itself, which had only been late.
            peer.learn_patience(false);
            peer.learn_patience(true);
        }
        let most = peer.patience;
        assert!((4..=8).contains(&most), "{most}");
        for _ in 0..most {
            peer.learn_patience(false);
        }
        assert_eq!(peer.patience, 0);
    }

    #[test]
    fn a_peer_owes_an_answer_until_it_is_heard_of() {
        let mut peer = PeerSlot::new();
        peer.heard = Instant::from_nanos(5);
        assert!(!peer.owes_answer());
        (peer.first_asked, peer.questions) = (Instant::from_nanos(9), 1);
        assert!(peer.owes_answer() && !peer.is_mute());
        peer.questions = 2;
        assert!(peer.is_mute());
        peer.heard = Instant::from_nanos(9);
        assert!(!peer.owes_answer() && !peer.is_mute());
    }

    #[test]
    fn unscheduled_priority_follows_the_cutoffs() {
        let mut peer = PeerSlot::new();
        assert_eq!(peer.unscheduled_priority(1), 6);
        peer.cutoff_version = 1;
        // As the kernel sends them: levels 0 to 3 unused for unscheduled data.
        peer.cutoffs = [0, 0, 0, 0, 1_000_000, 15_000, 2_800, 200];
        for (len, level) in [
            (1, 7),
            (200, 7),
            (201, 6),
            (2_800, 6),
            (15_000, 5),
            (15_001, 4),
            (1_000_000, 4),
            (1_000_001, 0),
        ] {
            assert_eq!(peer.unscheduled_priority(len), level, "{len} bytes");
        }
    }
}
