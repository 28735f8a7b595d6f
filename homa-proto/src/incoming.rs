//! Reassembly: packets in any order, duplicated, overlapping, with bounded state.

use crate::error::DropReason;

/// Holes that one message keeps. Data that would make one more is dropped and asked for again.
pub(crate) const MAX_GAPS: usize = 12;

/// A range of bytes, `start < end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Range {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Range {
    pub(crate) fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

/// A message on its way in.
///
/// Books: the union of all accepted ranges = `[0, end)` without the gaps;
/// `missing` = the sum of the gaps.
#[repr(C)]
pub(crate) struct Incoming<B> {
    /// Holes below `end`. First, as messages that come in order have none.
    holes: Gaps,
    pub(crate) buffer: Option<B>,
    /// Length of the message; 0 until its first packet.
    pub(crate) len: u32,
    /// One past the highest byte that has arrived.
    end: u32,
    /// Bytes below `end` that have not arrived.
    missing: u32,
    /// The sender may send, or has said that it will send, everything below.
    pub(crate) granted: u32,
    /// `granted` as the sender has been told it.
    pub(crate) told: u32,
    /// granted − received as it stands in the books of the grants.
    pub(crate) counted: u32,
}

/// Holes in ascending order, disjoint, not touching.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Gaps {
    ranges: [Range; MAX_GAPS],
    count: u8,
}

impl Gaps {
    fn as_slice(&self) -> &[Range] {
        self.ranges.get(..usize::from(self.count)).unwrap_or(&[])
    }

    fn is_full(&self) -> bool {
        usize::from(self.count) >= MAX_GAPS
    }

    fn set(&mut self, at: usize, gap: Range) {
        if let Some(slot) = self.ranges.get_mut(at) {
            *slot = gap;
        }
    }

    fn insert(&mut self, at: usize, gap: Range) {
        let count = usize::from(self.count);
        if count < MAX_GAPS && at <= count {
            self.ranges.copy_within(at..count, at.saturating_add(1));
            self.set(at, gap);
            self.count = self.count.saturating_add(1);
        }
    }

    fn remove(&mut self, at: usize) {
        let count = usize::from(self.count);
        if at < count {
            self.ranges.copy_within(at.saturating_add(1)..count, at);
            self.count = self.count.saturating_sub(1);
        }
    }
}

impl<B> Incoming<B> {
    pub(crate) const fn new() -> Self {
        Self {
            buffer: None,
            len: 0,
            end: 0,
            missing: 0,
            granted: 0,
            told: 0,
            counted: 0,
            holes: Gaps {
                count: 0,
                ranges: [Range { start: 0, end: 0 }; MAX_GAPS],
            },
        }
    }

    /// Ready for another message. The holes need no clearing: their count says which are live.
    pub(crate) fn reset(&mut self) {
        self.len = 0;
        self.end = 0;
        self.missing = 0;
        self.granted = 0;
        self.told = 0;
        self.counted = 0;
        self.holes.count = 0;
    }

    /// Bytes that have arrived.
    pub(crate) fn received(&self) -> u32 {
        self.end.saturating_sub(self.missing)
    }

    /// Bytes that have not arrived.
    pub(crate) fn remaining(&self) -> u32 {
        self.len.saturating_sub(self.received())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.len != 0 && self.received() == self.len
    }

    /// One past the highest byte that has arrived.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Granted bytes on their way.
    pub(crate) fn outstanding(&self) -> u32 {
        self.granted.saturating_sub(self.received())
    }

    pub(crate) fn gaps(&self) -> &[Range] {
        self.holes.as_slice()
    }

    /// The first hole that has bytes at or above `from` and below `below`, clipped to these; the
    /// granted bytes beyond the highest one that arrived are a hole too.
    pub(crate) fn next_missing(&self, from: u32, below: u32) -> Option<Range> {
        let tail = Range {
            start: self.end,
            end: self.granted.min(self.len).max(self.end),
        };
        self.gaps()
            .iter()
            .chain(core::iter::once(&tail))
            .map(|gap| Range {
                start: gap.start.max(from),
                end: gap.end.min(below),
            })
            .find(|gap| gap.start < gap.end)
    }
}

impl<B: AsMut<[u8]>> Incoming<B> {
    /// Takes in `data` at `offset`. The wire has checked that it lies within the message.
    ///
    /// Bytes that had arrived before are never written again.
    #[inline(always)]
    pub(crate) fn accept(&mut self, offset: u32, data: &[u8]) -> Result<(), DropReason> {
        // Bounded by the message length (below 2^31), checked by the wire.
        let stop = offset.saturating_add(data.len() as u32);
        if stop > self.len {
            return Err(DropReason::Mismatch);
        }
        let Some(buffer) = self.buffer.as_mut().map(AsMut::as_mut) else {
            return Err(DropReason::NoBuffer);
        };
        if offset >= self.end {
            if offset == stop {
                return Ok(());
            }
            // The path of everything that comes in order.
            if offset > self.end {
                if self.holes.is_full() {
                    return Err(DropReason::TooManyGaps);
                }
                let gap = Range {
                    start: self.end,
                    end: offset,
                };
                self.holes.insert(usize::from(self.holes.count), gap);
                self.missing = self.missing.saturating_add(offset.saturating_sub(self.end));
            }
            copy(buffer, offset, data);
            self.end = stop;
            return Ok(());
        }
        self.fill(offset, stop, data)
    }

    /// Fills holes below `end`, and what lies beyond it.
    fn fill(&mut self, offset: u32, stop: u32, data: &[u8]) -> Result<(), DropReason> {
        let Some(buffer) = self.buffer.as_mut().map(AsMut::as_mut) else {
            return Err(DropReason::NoBuffer);
        };
        let part = |range: Range| {
            data.get(
                range.start.saturating_sub(offset) as usize
                    ..range.end.saturating_sub(offset) as usize,
            )
            .unwrap_or(&[])
        };
        let mut fresh = false;
        let mut refused = false;
        let mut at = 0;
        while let Some(&gap) = self.holes.as_slice().get(at) {
            if gap.start >= stop {
                break;
            }
            let hit = Range {
                start: gap.start.max(offset),
                end: gap.end.min(stop),
            };
            if hit.start >= hit.end {
                at = at.saturating_add(1);
                continue;
            }
            let left = Range {
                start: gap.start,
                end: hit.start,
            };
            let right = Range {
                start: hit.end,
                end: gap.end,
            };
            match (left.len() > 0, right.len() > 0) {
                (true, true) => {
                    if self.holes.is_full() {
                        // Splitting would need one more: leave the hole whole.
                        refused = true;
                        break;
                    }
                    self.holes.insert(at.saturating_add(1), right);
                    self.holes.set(at, left);
                    at = at.saturating_add(2);
                }
                (true, false) => {
                    self.holes.set(at, left);
                    at = at.saturating_add(1);
                }
                (false, true) => {
                    self.holes.set(at, right);
                    at = at.saturating_add(1);
                }
                (false, false) => self.holes.remove(at),
            }
            self.missing = self.missing.saturating_sub(hit.len());
            copy(buffer, hit.start, part(hit));
            fresh = true;
        }
        if stop > self.end {
            let beyond = Range {
                start: self.end,
                end: stop,
            };
            copy(buffer, beyond.start, part(beyond));
            self.end = stop;
            fresh = true;
        }
        match (fresh, refused) {
            (true, _) => Ok(()),
            (false, true) => Err(DropReason::TooManyGaps),
            (false, false) => Err(DropReason::Duplicate),
        }
    }
}

#[cfg(any(test, feature = "check"))]
#[allow(
    clippy::arithmetic_side_effects,
    reason = "checks never run in production"
)]
impl<B> Incoming<B> {
    /// Recomputes the books.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let mut last = None;
        let mut missing = 0u32;
        for gap in self.gaps() {
            if gap.start >= gap.end || gap.end >= self.end {
                return Err("a gap is empty or not below the end");
            }
            if last.is_some_and(|last| gap.start <= last) {
                return Err("gaps are out of order or touch");
            }
            last = Some(gap.end);
            missing += gap.len();
        }
        if missing != self.missing {
            return Err("missing bytes drifted from the gaps");
        }
        if self.end > self.len || self.granted > self.len {
            return Err("more arrived or granted than the message has");
        }
        Ok(())
    }
}

fn copy(buffer: &mut [u8], offset: u32, data: &[u8]) {
    let start = offset as usize;
    if let Some(place) = buffer.get_mut(start..start.saturating_add(data.len())) {
        place.copy_from_slice(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn message(len: u32) -> Incoming<Vec<u8>> {
        let mut incoming = Incoming::new();
        incoming.len = len;
        incoming.granted = len;
        incoming.buffer = Some(vec![0; len as usize]);
        incoming
    }

    fn next(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *state >> 33
    }

    /// Against a map of bits: whatever comes, the books equal the union, bytes never change once
    /// they are there, and only what the bound on gaps refuses is missing from it.
    #[test]
    fn any_order_any_overlap() {
        for seed in 0..2000u64 {
            let mut rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let len = 1 + (next(&mut rng) % 600) as u32;
            let mut incoming = message(len);
            let mut have = vec![false; len as usize];
            let mut bytes = vec![0u8; len as usize];
            for round in 0..400u32 {
                let start = (next(&mut rng) % u64::from(len)) as u32;
                let most = if next(&mut rng).is_multiple_of(4) {
                    len
                } else {
                    40
                };
                let stop = (start + (next(&mut rng) % u64::from(most + 1)) as u32).min(len);
                let data: Vec<u8> = (start..stop).map(|i| (i ^ round) as u8).collect();
                let before = incoming.received();
                let result = incoming.accept(start, &data);
                let shown = incoming.buffer.as_ref().unwrap();
                for i in start..stop {
                    let i = i as usize;
                    let arrived = incoming.end > i as u32
                        && !incoming
                            .gaps()
                            .iter()
                            .any(|gap| (gap.start..gap.end).contains(&(i as u32)));
                    if arrived && !have[i] {
                        have[i] = true;
                        bytes[i] = data[i - start as usize];
                    }
                    assert_eq!(arrived, have[i]);
                }
                for (i, &here) in have.iter().enumerate() {
                    assert!(!here || shown[i] == bytes[i], "byte {i} changed");
                }
                let union = have.iter().filter(|&&here| here).count() as u32;
                assert_eq!(incoming.received(), union);
                match result {
                    Err(DropReason::Duplicate) => {
                        assert_eq!(before, union);
                        assert!((start..stop).all(|i| have[i as usize]));
                    }
                    Err(DropReason::TooManyGaps) => assert_eq!(before, union),
                    Ok(()) => {}
                    Err(other) => panic!("{other:?}"),
                }
                incoming.check().unwrap();
            }
        }
    }

    #[test]
    fn every_other_byte_is_bounded() {
        let mut incoming = message(1_000_000);
        for offset in (0..1_000_000).step_by(2) {
            let _ = incoming.accept(offset, &[1]);
        }
        assert_eq!(incoming.gaps().len(), MAX_GAPS);
        incoming.check().unwrap();
        // In order, everything is still taken.
        let data = vec![1; 1000];
        for offset in (0..1_000_000).step_by(1000) {
            let _ = incoming.accept(offset, &data);
        }
        assert!(incoming.is_complete());
    }

    #[test]
    fn missing_ranges_are_clipped() {
        let mut incoming = message(100);
        incoming.accept(10, &[0; 10]).unwrap();
        incoming.accept(30, &[0; 10]).unwrap();
        incoming.granted = 60;
        let range = |start, end| Some(Range { start, end });
        assert_eq!(incoming.next_missing(0, 100), range(0, 10));
        assert_eq!(incoming.next_missing(10, 100), range(20, 30));
        assert_eq!(incoming.next_missing(22, 100), range(22, 30));
        assert_eq!(incoming.next_missing(30, 100), range(40, 60));
        assert_eq!(incoming.next_missing(30, 40), None);
        assert_eq!(incoming.next_missing(60, 100), None);
    }
}
