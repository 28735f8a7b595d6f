//! A hash index: from a hash to places in a table.

use crate::storage::{NIL, Slice};

/// One place of a hash index: 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    tag: u32,
    // `NIL`: empty.
    idx: u32,
}

impl Bucket {
    pub(crate) const EMPTY: Self = Self { tag: 0, idx: NIL };
}

impl Default for Bucket {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The part of a hash that the index uses.
#[inline]
const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Buckets that let `entries` be found fast: at most two thirds full.
#[cfg(any(test, feature = "alloc"))]
pub(crate) const fn buckets_for(entries: usize) -> usize {
    let wanted = entries.saturating_add(entries / 2).saturating_add(1);
    match wanted.checked_next_power_of_two() {
        Some(buckets) => buckets,
        None => usize::MAX,
    }
}

/// Open addressing with linear probing. Deletion shifts the followers back instead of leaving
/// tombstones, so that the cost depends on the entries present and not on those of the past.
#[derive(Debug)]
pub(crate) struct Index<'a> {
    buckets: Slice<'a, Bucket>,
    mask: usize,
    len: usize,
}

impl<'a> Index<'a> {
    /// An empty index over a power of two (2 to 2^31) of buckets; `None` for other numbers.
    pub(crate) fn new(mut buckets: Slice<'a, Bucket>) -> Option<Self> {
        let count = buckets.len();
        if !count.is_power_of_two() || !(2..=1 << 31).contains(&count) {
            return None;
        }
        buckets.fill(Bucket::default());
        Some(Self {
            mask: count.wrapping_sub(1),
            buckets,
            len: 0,
        })
    }

    /// Entries present.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The most entries that fit: seven eighths of the buckets, and never all.
    pub(crate) const fn limit(&self) -> usize {
        // For 2 and 4 buckets an eighth rounds to 0.
        let spare = self.mask.wrapping_add(1) / 8;
        self.mask
            .wrapping_add(1)
            .wrapping_sub(if spare == 0 { 1 } else { spare })
    }

    #[inline]
    const fn home(&self, tag: u32) -> usize {
        tag as usize & self.mask
    }

    #[inline]
    const fn after(&self, at: usize) -> usize {
        at.wrapping_add(1) & self.mask
    }

    /// The entry with this hash for which `eq` is true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut eq: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let mut at = self.home(tag);
        // Ends: at least one bucket is empty.
        loop {
            let bucket = self.buckets.get(at)?;
            if bucket.idx == NIL {
                return None;
            }
            if bucket.tag == tag && eq(bucket.idx) {
                return Some(bucket.idx);
            }
            at = self.after(at);
        }
    }

    /// Adds an entry, which must not be present. `false`: full, nothing was added.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u64, idx: u32) -> bool {
        if self.len >= self.limit() || idx == NIL {
            return false;
        }
        let tag = tag(hash);
        let mut at = self.home(tag);
        while let Some(bucket) = self.buckets.get_mut(at) {
            if bucket.idx == NIL {
                *bucket = Bucket { tag, idx };
                self.len = self.len.wrapping_add(1);
                return true;
            }
            at = self.after(at);
        }
        false
    }

    /// Removes an entry. `false`: it was not present.
    #[inline]
    pub(crate) fn remove(&mut self, hash: u64, idx: u32) -> bool {
        let tag = tag(hash);
        let mut hole = self.home(tag);
        loop {
            match self.buckets.get(hole) {
                Some(bucket) if bucket.idx == NIL => return false,
                Some(bucket) if bucket.idx == idx && bucket.tag == tag => break,
                Some(_) => hole = self.after(hole),
                None => return false,
            }
        }
        let mut at = self.after(hole);
        while let Some(&bucket) = self.buckets.get(at) {
            if bucket.idx == NIL {
                break;
            }
            // An entry may move back to the hole unless that is before its home.
            let from_home = at.wrapping_sub(self.home(bucket.tag)) & self.mask;
            let from_hole = at.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                if let Some(free) = self.buckets.get_mut(hole) {
                    *free = bucket;
                }
                hole = at;
            }
            at = self.after(at);
        }
        if let Some(free) = self.buckets.get_mut(hole) {
            *free = Bucket::default();
        }
        self.len = self.len.wrapping_sub(1);
        true
    }

    /// Every entry can be reached from its home, and the count is right.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let mut count = 0usize;
        for (place, bucket) in self.buckets.iter().enumerate() {
            if bucket.idx == NIL {
                continue;
            }
            count = count.wrapping_add(1);
            let mut at = self.home(bucket.tag);
            while at != place {
                if self.buckets.get(at).is_none_or(|b| b.idx == NIL) {
                    return Err("index: an entry is cut off from its home");
                }
                at = self.after(at);
            }
        }
        if count != self.len || count > self.limit() {
            return Err("index: wrong count");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{HashKey, SplitMix};
    use crate::storage::test_table;
    use core::net::{Ipv4Addr, SocketAddr};
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    /// Random insertions, removals and look-ups against a map. `spread` bits of the tag vary, so
    /// that few bits give long runs of collisions, also over the end of the table.
    fn run(buckets: usize, spread: u32, seed: u128) {
        let mut memory = vec![Bucket { tag: 9, idx: 9 }; buckets];
        let mut index = Index::new(Slice::from(&mut memory[..])).expect("a power of two");
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut random = SplitMix::new(seed);
        let mut was_full = false;
        let phase = 10 * buckets as u32;
        for step in 0..(4 * phase).max(1000) {
            // Phases of growth and of shrinking.
            let grows = (step / phase).is_multiple_of(2);
            let kind = random.next_u64() % 8;
            let idx = (random.next_u64() % (2 * buckets as u64)) as u32;
            let raw = random.next_u64();
            let hash = (u64::MAX << 40 >> (spread / 2)) ^ (raw & (((1 << spread) - 1) << 32));
            if (kind < 5) == grows {
                if let std::collections::btree_map::Entry::Vacant(place) = model.entry(idx) {
                    let fits = index.len() < index.limit();
                    was_full |= !fits;
                    assert_eq!(index.insert(hash, idx), fits);
                    if fits {
                        place.insert(hash);
                    }
                }
            } else if kind == 7 {
                let present = model.get(&idx) == Some(&hash);
                assert_eq!(index.remove(hash, idx), present);
                if present {
                    model.remove(&idx);
                }
            } else if let Some((&idx, &hash)) = model.range(idx..).next() {
                assert!(index.remove(hash, idx));
                model.remove(&idx);
            }
            assert_eq!(index.len(), model.len());
            assert_eq!(index.find(raw, |_| false), None);
            if step % 50 == 0 {
                index.check().unwrap();
                for idx in 0..2 * buckets as u32 {
                    let found = model.get(&idx).map(|&hash| index.find(hash, |i| i == idx));
                    assert!(found.is_none_or(|found| found == Some(idx)));
                    let elsewhere = index.find(raw, |i| i == idx);
                    let expected = model.get(&idx).filter(|&&hash| tag(hash) == tag(raw));
                    assert_eq!(elsewhere, expected.map(|_| idx));
                }
            }
        }
        assert!(was_full);
    }

    #[test]
    fn matches_map() {
        for seed in 0..4 {
            for buckets in [2, 4, 8, 64, 256] {
                for spread in [0, 2, 8, 31] {
                    run(buckets, spread, seed);
                }
            }
        }
    }

    /// Of a table as full as they get: steps to the entry that is furthest from its home.
    fn longest_probe(hashes: impl Iterator<Item = u64>) -> usize {
        let mut index = Index::new(test_table(BUCKETS)).expect("a power of two");
        for (idx, hash) in hashes.take(ENTRIES).enumerate() {
            assert!(index.insert(hash, idx as u32));
        }
        assert_eq!(index.len(), ENTRIES);
        let taken = index.buckets.iter().enumerate();
        taken
            .filter(|(_, bucket)| bucket.idx != NIL)
            .map(|(place, bucket)| place.wrapping_sub(index.home(bucket.tag)) & index.mask)
            .max()
            .unwrap_or(0)
    }

    const ENTRIES: usize = 5_400;
    const BUCKETS: usize = buckets_for(ENTRIES);
    /// Random hashes need 71 in the worst of a hundred tables; that whole rows of four come
    /// together makes it up to four times as many.
    const LONGEST: usize = 4 * 80;

    /// Whoever chooses ids or addresses, but does not know the seed, cannot make look-ups long.
    #[test]
    fn chosen_keys_do_not_cluster() {
        let addr = |n: u32| (Ipv4Addr::from_bits(n), 4000).into();
        let mut worst = 0;
        for seed in 0..8u128 {
            let key = HashKey::new(seed << 64 | 77);
            let ids: [&dyn Fn(u64) -> u64; 7] = [
                &|i| 2 * i,
                // One of each row, and each on its own.
                &|i| 8 * i,
                &|i| (i << 32) | 6,
                &|i| i << 50,
                &|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !1,
                &|i| i.reverse_bits() & !1,
                &|i| u64::MAX - 1 - 2 * i,
            ];
            let steps = (1..52).map(|shift| move |i: u64| i << shift);
            let mut check = |id: &dyn Fn(u64) -> u64| {
                worst = worst.max(longest_probe((0..).map(|i| key.rpc(3, id(i)))));
                worst = worst.max(longest_probe((0..).map(|i| key.client_id(99, id(i)))));
                // The same few ids of many peers.
                let many = |i: u64| key.rpc(i as u32 / 4, id(i % 4));
                worst = worst.max(longest_probe((0..).map(many)));
            };
            ids.iter().for_each(|id| check(id));
            steps.for_each(|id| check(&id));
            for shift in 0..16 {
                let by_address = (0..).map(|i: u32| key.addr(&addr(i << shift)));
                worst = worst.max(longest_probe(by_address));
            }
        }
        assert!(worst <= LONGEST, "{worst}");
    }

    /// Keys that all collide under one seed are like any others under another.
    #[test]
    fn what_collides_under_one_seed_does_not_under_another() {
        let (known, other) = (HashKey::new(1), HashKey::new(2));
        let collides = |hash: u64| tag(hash) as usize % BUCKETS < BUCKETS / 64;
        let ids = (0u64..).map(|i| 2 * i);
        let ids = ids.filter(|&id| collides(known.rpc(3, id)));
        let ids: Vec<u64> = ids.take(ENTRIES).collect();
        assert!(longest_probe(ids.iter().map(|&id| known.rpc(3, id))) > ENTRIES / 2);
        assert!(longest_probe(ids.iter().map(|&id| other.rpc(3, id))) <= LONGEST);
        let addr = |n: u32| SocketAddr::from((Ipv4Addr::from_bits(n), 4000));
        let addrs = (0u32..).map(addr).filter(|addr| collides(known.addr(addr)));
        let addrs: Vec<_> = addrs.take(ENTRIES).collect();
        assert!(longest_probe(addrs.iter().map(|addr| known.addr(addr))) > ENTRIES / 2);
        assert!(longest_probe(addrs.iter().map(|addr| other.addr(addr))) <= LONGEST);
        // Nor do ids that collide for one client's address for another's.
        let (one, two) = (known.addr(&addrs[0]), known.addr(&addrs[1]));
        let ids = (0u64..).map(|i| 2 * i);
        let ids = ids.filter(|&id| collides(known.client_id(one, id)));
        let ids: Vec<u64> = ids.take(ENTRIES).collect();
        assert!(longest_probe(ids.iter().map(|&id| known.client_id(one, id))) > ENTRIES / 2);
        assert!(longest_probe(ids.iter().map(|&id| known.client_id(two, id))) <= LONGEST);
    }

    #[test]
    fn sizes() {
        for len in [0, 1, 3, 6, 7, 12] {
            assert!(Index::new(test_table(len)).is_none());
        }
        for entries in (0..2000).chain([65_536, 1_000_000]) {
            let buckets = buckets_for(entries);
            assert!(buckets.is_power_of_two());
            assert!(2 * buckets >= 3 * entries && buckets <= 2 * (entries + entries / 2 + 1));
        }
        let mut full = Index::new(test_table(8)).expect("a power of two");
        let added: Vec<bool> = (0..9).map(|idx| full.insert(0, idx)).collect();
        assert_eq!(added.iter().filter(|&&a| a).count(), 7);
        assert!(!full.insert(0, NIL));
        assert_eq!(size_of::<Bucket>(), 8);
    }
}
