//! What to send next: the fewest bytes left first, and a share for the oldest.
//!
//! Homa draft, "Sender: SRPT"; USENIX ATC '21, section 3 (FIFO share).

use crate::incoming::Range;
use crate::list::{List, Table};
use crate::rpc::{RpcSlot, State, dim};
use crate::tree::{Forest, Tree};

/// Ranges that one message keeps for retransmission. What does not fit is asked for again.
pub(crate) const MAX_RETRANSMITS: usize = 4;
/// Messages looked at for one that may send as the oldest.
const MAX_FIFO_WALK: usize = 16;

/// A message on its way out.
#[repr(C)]
pub(crate) struct Outgoing<M> {
    pub(crate) message: Option<M>,
    pub(crate) len: u32,
    /// Everything below has been sent once.
    pub(crate) sent: u32,
    /// Everything below may be sent.
    pub(crate) granted: u32,
    /// Everything below goes unasked, at the unscheduled priority.
    pub(crate) unscheduled: u32,
    /// Priority of granted data, from the last GRANT.
    pub(crate) sched_priority: u8,
    /// Priority of data sent again, from the last RESEND.
    pub(crate) retransmit_priority: u8,
    /// Times that bytes were asked for again after all that had been asked for before was sent.
    pub(crate) rounds: u8,
    retransmit_count: u8,
    retransmits: [Range; MAX_RETRANSMITS],
}

/// The next bytes of a message to put into packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) range: Range,
    pub(crate) retransmit: bool,
}

impl<M> Outgoing<M> {
    pub(crate) const fn new() -> Self {
        Self {
            message: None,
            len: 0,
            sent: 0,
            granted: 0,
            unscheduled: 0,
            sched_priority: 0,
            retransmit_priority: 0,
            rounds: 0,
            retransmit_count: 0,
            retransmits: [Range { start: 0, end: 0 }; MAX_RETRANSMITS],
        }
    }

    pub(crate) fn reset(&mut self) {
        self.len = 0;
        self.sent = 0;
        self.granted = 0;
        self.unscheduled = 0;
        self.sched_priority = 0;
        self.rounds = 0;
        self.retransmit_count = 0;
    }

    /// Begins a message of `len` bytes, `unscheduled` of which go unasked.
    pub(crate) fn start(&mut self, len: u32, unscheduled: u32) {
        self.reset();
        self.len = len;
        self.unscheduled = unscheduled;
        self.granted = unscheduled;
    }

    pub(crate) fn retransmits(&self) -> &[Range] {
        self.retransmits
            .get(..usize::from(self.retransmit_count))
            .unwrap_or(&[])
    }

    /// Whether there are bytes that may go now.
    pub(crate) fn is_sendable(&self) -> bool {
        self.retransmit_count > 0 || self.sent < self.granted
    }

    /// Whether everything has been sent that may be.
    pub(crate) fn all_allowed_sent(&self) -> bool {
        !self.is_sendable()
    }

    /// Bytes still to be sent, granted or not, those to be sent again included.
    pub(crate) fn left(&self) -> u64 {
        let again: u64 = self
            .retransmits()
            .iter()
            .map(|range| u64::from(range.len()))
            .sum();
        again.saturating_add(u64::from(self.len.saturating_sub(self.sent)))
    }

    /// The next bytes to go: first those asked for again, then new ones. A piece lies wholly
    /// below or above the unscheduled length, so that a packet boundary falls exactly there.
    pub(crate) fn next_piece(&self) -> Option<Piece> {
        if let Some(&range) = self.retransmits().first() {
            return Some(Piece {
                range,
                retransmit: true,
            });
        }
        let end = if self.sent < self.unscheduled {
            self.granted.min(self.unscheduled)
        } else {
            self.granted
        };
        (self.sent < end).then_some(Piece {
            range: Range {
                start: self.sent,
                end,
            },
            retransmit: false,
        })
    }

    /// Notes that the first bytes of the next piece, up to `end`, have been put into a packet.
    pub(crate) fn advance(&mut self, piece: Piece, end: u32) {
        if !piece.retransmit {
            self.sent = end;
            return;
        }
        let count = usize::from(self.retransmit_count);
        if let Some(first) = self.retransmits.first_mut() {
            first.start = end;
            if first.start >= first.end && count > 0 {
                self.retransmits.copy_within(1..count, 0);
                self.retransmit_count = self.retransmit_count.saturating_sub(1);
            }
        }
    }

    /// Asks for `range` (below `sent`) to be sent again. What is waiting to be sent again already
    /// is not noted twice. `false`: no room, ask again.
    pub(crate) fn retransmit(&mut self, mut range: Range) -> bool {
        range.end = range.end.min(self.sent);
        for waiting in self.retransmits() {
            if range.start >= waiting.start && range.end <= waiting.end {
                return true;
            }
            // Clip against a neighbour rather than send bytes twice.
            if waiting.start <= range.start && range.start < waiting.end {
                range.start = waiting.end;
            }
            if waiting.start < range.end && range.end <= waiting.end {
                range.end = waiting.start;
            }
        }
        if range.start >= range.end {
            return true;
        }
        let count = usize::from(self.retransmit_count);
        match self.retransmits.get_mut(count) {
            Some(slot) => {
                if count == 0 {
                    self.rounds = self.rounds.saturating_add(1);
                }
                *slot = range;
                self.retransmit_count = self.retransmit_count.saturating_add(1);
                true
            }
            None => false,
        }
    }

    /// Nothing is to be sent again any more.
    pub(crate) fn forget_retransmits(&mut self) {
        self.retransmit_count = 0;
    }

    /// Nothing more is to be sent: the other side has it all, or the RPC has ended.
    pub(crate) fn stop(&mut self) {
        self.retransmit_count = 0;
        self.sent = self.len;
        self.granted = self.len;
    }
}

/// What goes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) idx: u32,
    /// It is the oldest message that may send.
    is_oldest: bool,
    /// The bytes that it may send before it is another's turn.
    pub(crate) turn_bytes: u64,
}

/// Messages with bytes that may go now.
pub(crate) struct SendQueue<'a> {
    by_left: Forest<'a>,
    srpt: Tree,
    /// All messages that are not wholly sent, oldest first, but for the short ones.
    oldest: List,
    /// Messages of one short packet: they do not wait for the pacer.
    pub(crate) short: List,
    fifo_permille: u64,
    /// Credit, in bytes times 1000, at which the oldest message has its turn.
    turn: u64,
    /// What the oldest message has been left owing, in bytes times 1000.
    fifo_credit: u64,
}

impl<'a> SendQueue<'a> {
    pub(crate) fn new(by_left: Forest<'a>, fifo_permille: u16, turn_bytes: u64) -> Self {
        Self {
            by_left,
            srpt: Tree::default(),
            oldest: List::EMPTY,
            short: List::EMPTY,
            fifo_permille: u64::from(fifo_permille),
            turn: turn_bytes.saturating_mul(1000),
            fifo_credit: 0,
        }
    }

    /// Puts the message of `idx` where it belongs now. Call it whenever what it may send, or how
    /// much it has left, has changed.
    pub(crate) fn update<M, B>(&mut self, rpcs: &mut Table<'_, RpcSlot<M, B>>, idx: u32) {
        let rpc = &rpcs[idx];
        // Short messages and parked ones wait in lists of their own.
        let waits_elsewhere = rpcs.is_listed(dim::QUEUE, idx);
        if !rpc.state.sends() || rpc.out.left() == 0 || waits_elsewhere {
            self.remove(rpcs, idx);
            return;
        }
        let key = (u128::from(rpc.out.left()) << 64) | u128::from(rpc.birth);
        match (rpc.out.is_sendable(), self.by_left.contains(idx)) {
            (true, true) => self.by_left.rekey(&mut self.srpt, idx, key),
            (true, false) => self.by_left.insert(&mut self.srpt, idx, key),
            (false, true) => {
                self.by_left.remove(&mut self.srpt, idx);
            }
            (false, false) => {}
        }
        rpcs.push_back(&mut self.oldest, dim::OLDEST, idx);
    }

    pub(crate) fn remove<M, B>(&mut self, rpcs: &mut Table<'_, RpcSlot<M, B>>, idx: u32) {
        // Short messages never are in the queue.
        if !rpcs[idx].state.sends() || !rpcs.is_listed(dim::OLDEST, idx) {
            return;
        }
        rpcs.unlink(&mut self.oldest, dim::OLDEST, idx);
        if self.by_left.contains(idx) {
            self.by_left.remove(&mut self.srpt, idx);
        }
    }

    /// The message with the fewest bytes left; or the oldest, when its share is due.
    pub(crate) fn pick<M, B>(&self, rpcs: &Table<'_, RpcSlot<M, B>>) -> Option<Pick> {
        let first = self.by_left.first(&self.srpt)?;
        let oldest = self.oldest(rpcs);
        let idx = match oldest {
            Some(oldest) if self.fifo_credit >= self.turn => oldest,
            _ => first,
        };
        Some(Pick {
            idx,
            is_oldest: oldest == Some(idx),
            turn_bytes: if idx == first {
                u64::MAX
            } else {
                self.fifo_credit / 1000
            },
        })
    }

    /// The oldest message that may send, looked for among the oldest few: what its receiver's
    /// share for the oldest has granted.
    fn oldest<M, B>(&self, rpcs: &Table<'_, RpcSlot<M, B>>) -> Option<u32> {
        let mut next = self.oldest.first();
        for _ in 0..MAX_FIFO_WALK {
            let idx = next?;
            if rpcs[idx].out.is_sendable() {
                return Some(idx);
            }
            next = rpcs.next(dim::OLDEST, idx);
        }
        None
    }

    /// Whether `idx` has the fewest bytes left.
    pub(crate) fn is_first(&self, idx: u32) -> bool {
        self.by_left.first(&self.srpt) == Some(idx)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_left.first(&self.srpt).is_none()
    }

    /// Accounts for `bytes` that went: each one earns the oldest message that may send its share,
    /// and what that message sends uses it up.
    pub(crate) fn charge(&mut self, pick: Pick, bytes: u64) {
        self.fifo_credit = if pick.is_oldest {
            self.fifo_credit.saturating_sub(bytes.saturating_mul(1000))
        } else {
            let share = bytes.saturating_mul(self.fifo_permille);
            self.fifo_credit
                .saturating_add(share)
                .min(self.turn.saturating_mul(2))
        };
    }

    /// Takes a short message out of the list of those, if it waits there.
    pub(crate) fn unlist<M, B>(&mut self, rpcs: &mut Table<'_, RpcSlot<M, B>>, idx: u32) {
        if matches!(
            rpcs[idx].state,
            State::ClientOutgoing | State::ServerOutgoing
        ) {
            rpcs.unlink(&mut self.short, dim::QUEUE, idx);
        }
    }

    /// Recomputes membership and order.
    #[cfg(any(test, feature = "check"))]
    #[allow(
        clippy::arithmetic_side_effects,
        reason = "checks never run in production"
    )]
    pub(crate) fn check<M, B>(&self, rpcs: &Table<'_, RpcSlot<M, B>>) -> Result<(), &'static str> {
        let mut best: Option<(u64, u64)> = None;
        let mut count = 0;
        for (idx, rpc) in rpcs.iter().enumerate() {
            let idx = idx as u32;
            let short = rpc.state.sends() && rpcs.is_listed(dim::QUEUE, idx) && !rpc.is_parked;
            let queued = rpc.state.sends() && rpc.out.is_sendable() && !short;
            if queued != self.by_left.contains(idx) {
                return Err("send queue: a message is queued that must not be, or not that must");
            }
            let unfinished = rpc.state.sends() && rpc.out.left() > 0 && !short;
            if rpc.state.sends() && unfinished != rpcs.is_listed(dim::OLDEST, idx) {
                return Err("send queue: the order of age lacks a message or has one too many");
            }
            if queued {
                count += 1;
                let key = (rpc.out.left(), rpc.birth);
                let want = (u128::from(key.0) << 64) | u128::from(key.1);
                if self.by_left.key(idx) != Some(want) {
                    return Err("send queue: bytes left drifted");
                }
                best = Some(best.map_or(key, |best| best.min(key)));
            }
        }
        let first = self
            .by_left
            .first(&self.srpt)
            .map(|idx| (rpcs[idx].out.left(), rpcs[idx].birth));
        if first != best || count != self.srpt.len() {
            return Err("send queue: the first is not the one with the fewest bytes left");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sending(len: u32, unscheduled: u32, granted: u32) -> Outgoing<()> {
        let mut out = Outgoing::new();
        out.len = len;
        out.unscheduled = unscheduled;
        out.granted = granted;
        out
    }

    #[test]
    fn a_boundary_falls_at_the_unscheduled_length() {
        let mut out = sending(5000, 2000, 3000);
        let piece = out.next_piece().unwrap();
        assert_eq!(
            piece.range,
            Range {
                start: 0,
                end: 2000
            }
        );
        out.advance(piece, 2000);
        let piece = out.next_piece().unwrap();
        assert_eq!(
            piece.range,
            Range {
                start: 2000,
                end: 3000
            }
        );
        out.advance(piece, 3000);
        assert_eq!(out.next_piece(), None);
        assert_eq!(out.left(), 2000);
    }

    /// Whatever is asked for again, exactly the union of it goes out, once each, as long as the
    /// ranges fit; and never a byte that was not asked for.
    #[test]
    fn retransmits_are_what_was_asked_for() {
        let mut rng = 7u64;
        let mut next = move |bound: u32| {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((rng >> 33) % u64::from(bound)) as u32
        };
        for _ in 0..2000 {
            let mut out = sending(1000, 1000, 1000);
            out.sent = 800;
            let mut asked = [false; 1000];
            let mut taken = [false; 1000];
            for _ in 0..4 {
                let start = next(1000);
                let end = (start + next(300)).min(1000);
                let range = Range { start, end };
                let kept = out.retransmit(range);
                for i in start..end.min(800).max(start) {
                    asked[i as usize] = true;
                    taken[i as usize] |= kept;
                }
            }
            let mut sent = [0; 1000];
            while let Some(piece) = out.next_piece().filter(|piece| piece.retransmit) {
                let end = piece.range.end.min(piece.range.start + 1 + next(100));
                for i in piece.range.start..end {
                    sent[i as usize] += 1;
                }
                out.advance(piece, end);
            }
            for i in 0..1000 {
                assert!(sent[i] <= 1 || asked[i], "byte {i}");
                assert!(sent[i] == 0 || asked[i], "byte {i} was not asked for");
                assert!(sent[i] > 0 || !taken[i], "byte {i} was promised");
            }
        }
    }
}
