//! Sets of bytes of a stream, as sorted, disjoint, non-adjacent ranges.

/// A set of stream offsets.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    ranges: Vec<(u64, u64)>,
    bytes: u64,
}

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    pub(super) fn last_end(&self) -> Option<u64> {
        self.ranges.last().map(|range| range.1)
    }

    /// Adds `start..end`; returns the range that now holds it, and how many bytes are new.
    pub(super) fn insert(&mut self, start: u64, end: u64) -> ((u64, u64), u64) {
        if start >= end {
            return ((start, end), 0);
        }
        // Those that touch or overlap: ranges[first..last].
        let first = self.ranges.partition_point(|range| range.1 < start);
        let last = self.ranges.partition_point(|range| range.0 <= end);
        let before: u64 = self.ranges[first..last].iter().map(|r| r.1 - r.0).sum();
        let joined = self.ranges[first..last]
            .iter()
            .fold((start, end), |all, range| {
                (all.0.min(range.0), all.1.max(range.1))
            });
        self.ranges.splice(first..last, [joined]);
        let new = joined.1 - joined.0 - before;
        self.bytes += new;
        (joined, new)
    }

    /// Drops everything below `offset`.
    pub(super) fn remove_below(&mut self, offset: u64) {
        let gone = self.ranges.partition_point(|range| range.1 <= offset);
        for (start, end) in self.ranges.drain(..gone) {
            self.bytes -= end - start;
        }
        if let Some(first) = self.ranges.first_mut()
            && first.0 < offset
        {
            self.bytes -= offset - first.0;
            first.0 = offset;
        }
    }

    /// The first range if it starts at or below `offset`, taken out.
    pub(super) fn take_reached(&mut self, offset: u64) -> Option<(u64, u64)> {
        let first = *self.ranges.first()?;
        if first.0 > offset {
            return None;
        }
        self.ranges.remove(0);
        self.bytes -= first.1 - first.0;
        Some(first)
    }

    /// Bytes of `start..end` that are not in the set.
    pub(super) fn missing(&self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let held: u64 = self
            .ranges
            .iter()
            .map(|range| range.1.min(end).saturating_sub(range.0.max(start)))
            .sum();
        end - start - held
    }

    /// The first run of missing bytes at or after `start` and below `end`.
    pub(super) fn first_missing(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let mut at = start;
        for range in self.ranges.iter().skip_while(|range| range.1 <= start) {
            if range.0 > at {
                return (at < end).then(|| (at, range.0.min(end)));
            }
            at = range.1;
        }
        (at < end).then_some((at, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn agrees_with_a_bitmap() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed, 0);
            let mut ranges = Ranges::default();
            let mut bits = [false; 100];
            for _ in 0..60 {
                let start = rng.below(99);
                let end = start + 1 + rng.below(100 - start);
                let (from, to) = (start as usize, end as usize);
                match rng.below(6) {
                    0..=3 => {
                        let new = bits[from..to].iter().filter(|bit| !**bit).count() as u64;
                        let (joined, added) = ranges.insert(start, end);
                        bits[from..to].fill(true);
                        assert_eq!(added, new);
                        assert!(joined.0 <= start && joined.1 >= end);
                        assert!(
                            bits[joined.0 as usize..joined.1 as usize]
                                .iter()
                                .all(|b| *b)
                        );
                    }
                    4 => {
                        ranges.remove_below(start);
                        bits[..from].fill(false);
                    }
                    _ => {
                        if let Some((a, b)) = ranges.take_reached(start) {
                            assert!(a <= start);
                            bits[a as usize..b as usize].fill(false);
                        }
                    }
                }
                let held = bits.iter().filter(|bit| **bit).count() as u64;
                assert_eq!(ranges.bytes(), held);
                let missing = bits[from..to].iter().filter(|bit| !**bit).count() as u64;
                assert_eq!(ranges.missing(start, end), missing);
                let first = (from..to).find(|&at| !bits[at]).map(|at| at as u64);
                assert_eq!(ranges.first_missing(start, end).map(|run| run.0), first);
                assert!(
                    ranges
                        .iter()
                        .zip(ranges.iter().skip(1))
                        .all(|(a, b)| a.0 < a.1 && a.1 < b.0)
                );
            }
        }
    }
}
