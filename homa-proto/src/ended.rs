//! Exact memory of ended requests, so that a late copy of one does not run again.

use core::net::SocketAddr;

use crate::index::{Bucket, Index, from_tag, tag};
use crate::storage::Slice;

/// One ended request: 48 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndedEntry {
    // IPv4 in its IPv4-mapped form.
    ip: u128,
    id: u64,
    at_ns: u64,
    tag: u32,
    scope: u32,
    port: u16,
}

impl EndedEntry {
    pub(crate) const NONE: Self = Self {
        ip: 0,
        id: 0,
        at_ns: 0,
        tag: 0,
        scope: 0,
        port: 0,
    };

    /// An entry's key: the client's address (flow labels are no part of it) and id.
    fn new(addr: SocketAddr, id: u64) -> Self {
        let (ip, scope) = match addr {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Self {
            ip: ip.to_bits(),
            id,
            scope,
            port: addr.port(),
            ..Self::default()
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
            && self.ip == other.ip
            && self.port == other.port
            && self.scope == other.scope
    }
}

/// The ended requests: a ring in the order of their ends, and an index for look-ups.
///
/// An entry goes only when the ring is full and a newer one takes its place, so ids are
/// remembered for longer than the window while there is room.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    entries: Slice<'a, EndedEntry>,
    index: Index<'a>,
    /// Where the next entry goes; once the ring is full, the oldest entry.
    next: usize,
    window_ns: u64,
    now_ns: u64,
}

impl<'a> Ended<'a> {
    /// An empty memory that should hold ids for `window_ns`. `None`: no entries, or not a power
    /// of two of buckets, or too few for the entries.
    pub(crate) fn new(
        entries: Slice<'a, EndedEntry>,
        buckets: Slice<'a, Bucket>,
        window_ns: u64,
    ) -> Option<Self> {
        let index = Index::new(buckets)?;
        if entries.is_empty() || entries.len() > index.limit() {
            return None;
        }
        Some(Self {
            entries,
            index,
            next: 0,
            window_ns,
            now_ns: 0,
        })
    }

    /// Ids remembered.
    #[cfg(any(test, feature = "check"))]
    pub(crate) const fn len(&self) -> usize {
        self.index.len()
    }

    /// Remembers a request that has ended. `hash` depends on `addr` and `id` alone.
    ///
    /// `true`: an entry younger than the window had to go.
    pub(crate) fn insert(&mut self, now_ns: u64, addr: SocketAddr, id: u64, hash: u64) -> bool {
        self.now_ns = self.now_ns.max(now_ns);
        let capacity = self.entries.len();
        let is_full = self.index.len() == capacity;
        let Some(entry) = self.entries.get_mut(self.next) else {
            return false;
        };
        let mut shrunk = false;
        if is_full {
            shrunk = self.now_ns.saturating_sub(entry.at_ns) < self.window_ns;
            self.index.remove(from_tag(entry.tag), self.next as u32);
        }
        *entry = EndedEntry {
            at_ns: self.now_ns,
            tag: tag(hash),
            ..EndedEntry::new(addr, id)
        };
        self.index.insert(hash, self.next as u32);
        self.next = self.next.wrapping_add(1);
        if self.next == capacity {
            self.next = 0;
        }
        shrunk
    }

    /// Whether this request is remembered.
    #[inline]
    pub(crate) fn contains(&self, addr: SocketAddr, id: u64, hash: u64) -> bool {
        let wanted = EndedEntry::new(addr, id);
        let is_wanted = |idx: u32| {
            self.entries
                .get(idx as usize)
                .is_some_and(|e| e.is_same(&wanted))
        };
        self.index.find(hash, is_wanted).is_some()
    }

    /// The index finds each entry of the ring, and they are in the order of their times.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        self.index.check()?;
        let len = self.len();
        let oldest = if len == self.entries.len() {
            self.next
        } else {
            0
        };
        if len < self.entries.len() && len != self.next {
            return Err("ended: wrong place for the next entry");
        }
        let (newer, older) = (self.entries.get(oldest..len), self.entries.get(..oldest));
        let (Some(newer), Some(older)) = (newer, older) else {
            return Err("ended: out of range");
        };
        if !newer.iter().chain(older).is_sorted_by_key(|e| e.at_ns) {
            return Err("ended: not in the order of time");
        }
        for (idx, entry) in self.entries.iter().take(len).enumerate() {
            let is_it = |found: u32| found as usize == idx;
            if self.index.find(from_tag(entry.tag), is_it).is_none() {
                return Err("ended: an entry is not in the index");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{HashKey, SplitMix};
    use crate::index::buckets_for;
    use crate::storage::test_table;
    use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
    use std::collections::VecDeque;

    fn any_addr(random: &mut SplitMix) -> SocketAddr {
        let word = random.next_u64();
        let port = 1 + (word >> 8 & 1) as u16;
        match word % 3 {
            0 => (Ipv4Addr::from_bits((word >> 16 & 1) as u32), port).into(),
            1 => (Ipv6Addr::from_bits(u128::from(word >> 16 & 1) << 90), port).into(),
            // The same address on two links.
            _ => SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, (word >> 16 & 1) as u32).into(),
        }
    }

    /// Against a queue of the last `capacity` ends: exact, whatever collides.
    fn run(capacity: usize, seed: u128, weak_hash: bool) {
        let buckets = test_table(buckets_for(capacity));
        let entries = test_table(capacity);
        let mut ended = Ended::new(entries, buckets, 1000).expect("sizes that fit");
        let mut model: VecDeque<(SocketAddr, u64, u64)> = VecDeque::new();
        let (mut random, key) = (SplitMix::new(seed), HashKey::new(seed));
        let hash = |addr: &SocketAddr, id| match weak_hash {
            true => u64::MAX << 33 | id << 32,
            false => key.client_id(key.addr(addr), id),
        };
        let (mut now, mut told) = (0u64, 0u64);
        let mut hits = 0;
        for _ in 0..3000 {
            let addr = any_addr(&mut random);
            let id = random.next_u64() % (1 + capacity as u64 / 8);
            let known = model.iter().any(|&(a, i, _)| (a, i) == (addr, id));
            assert_eq!(ended.contains(addr, id, hash(&addr, id)), known);
            hits += u32::from(known);
            if random.next_u64().is_multiple_of(2) {
                // Forwards, and sometimes back.
                told = (told + random.next_u64() % (4000 / capacity as u64 + 2))
                    .saturating_sub(random.next_u64() % 2);
                now = now.max(told);
                let gone = (model.len() == capacity).then(|| model.pop_front().unwrap());
                let early = gone.is_some_and(|(_, _, at)| now - at < 1000);
                assert_eq!(ended.insert(told, addr, id, hash(&addr, id)), early);
                model.push_back((addr, id, now));
            }
            assert_eq!(ended.len(), model.len());
            ended.check().unwrap();
        }
        assert!(hits > 0);
    }

    #[test]
    fn matches_queue() {
        for seed in 0..3 {
            for capacity in [1, 2, 5, 64, 100] {
                run(capacity, seed, false);
                run(capacity, seed, true);
            }
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size_of::<EndedEntry>(), 48);
        let make = |entries, buckets| {
            let entries = test_table(entries);
            Ended::new(entries, test_table(buckets), 1)
        };
        assert!(make(0, 8).is_none() && make(8, 8).is_none() && make(4, 6).is_none());
        assert!(make(7, 8).is_some());
    }
}
