//! Exact memory of ended requests, so that a late copy of one does not run again.

use core::net::SocketAddr;

use crate::storage::Slice;

/// One ended request: 48 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndedEntry {
    // IPv4 in its IPv4-mapped form.
    ip: u128,
    id: u64,
    at_ns: u64,
    // The part of the hash that says, among others, in which chain it is.
    tag: u32,
    // The entry before it in its chain, by number.
    older: u32,
    scope: u32,
    port: u16,
}

impl EndedEntry {
    pub(crate) const NONE: Self = Self {
        ip: 0,
        id: 0,
        at_ns: 0,
        tag: 0,
        older: 0,
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

/// The entries with one hash, the newest first: 16 bytes. It tells the tags of the first two, so that
/// most look-ups touch no entry, which is in no cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    newest: u32,
    newest_tag: u32,
    second: u32,
    second_tag: u32,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self {
        newest: 0,
        newest_tag: 0,
        second: 0,
        second_tag: 0,
    };
}

/// Chains for so many entries: no more than one entry in each, on average.
#[cfg(any(test, feature = "alloc"))]
pub(crate) const fn chains_for(entries: usize) -> usize {
    match entries.checked_next_power_of_two() {
        Some(chains) => chains,
        None => usize::MAX,
    }
}

/// The part of a hash that is used here.
#[inline]
const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The ended requests: a ring in the order of their ends, and chains for look-ups.
///
/// An entry goes only when the ring is full and a newer one takes its place, so ids are
/// remembered for longer than the window while there is room.
///
/// Entries are numbered. A chain links those with one hash, the newest first, by their numbers: it ends
/// at the first number that is not of one of the last entries of the ring. So nothing needs to be taken
/// out of a chain when an entry goes (as in the window of an LZ77 compressor).
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    entries: Slice<'a, EndedEntry>,
    chains: Slice<'a, Chain>,
    mask: usize,
    /// The number of the next entry. Numbers go up to `numbers`, a multiple of the places, and begin again:
    /// one that is so old leads into a foreign chain, where nothing is found.
    next: u32,
    numbers: u32,
    len: usize,
    window_ns: u64,
    now_ns: u64,
}

impl<'a> Ended<'a> {
    /// An empty memory that should hold ids for `window_ns`. `None`: no entries, too many, or not a
    /// power of two of chains.
    pub(crate) fn new(
        entries: Slice<'a, EndedEntry>,
        mut chains: Slice<'a, Chain>,
        window_ns: u64,
    ) -> Option<Self> {
        const MOST: u32 = 1 << 31;
        let places = u32::try_from(entries.len()).ok()?;
        let rounds = MOST.checked_div(places).filter(|&rounds| rounds > 1)?;
        if !chains.len().is_power_of_two() {
            return None;
        }
        chains.fill(Chain::EMPTY);
        Some(Self {
            mask: chains.len().wrapping_sub(1),
            entries,
            chains,
            // Number 0, which an empty chain begins with, is long gone.
            next: places,
            numbers: rounds.saturating_mul(places),
            len: 0,
            window_ns,
            now_ns: 0,
        })
    }

    /// Ids remembered.
    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Where the entry with this number is.
    #[inline]
    fn place(&self, number: u32) -> usize {
        (number as usize)
            .checked_rem(self.entries.len())
            .unwrap_or(0)
    }

    #[inline]
    fn chain(&self, tag: u32) -> usize {
        tag as usize & self.mask
    }

    /// How many entries ago a number was given: 1 for the newest. `None`: its entry is gone.
    #[inline]
    fn age(&self, number: u32) -> Option<usize> {
        let round = match number < self.next {
            true => 0,
            false => self.numbers,
        };
        let age = self.next.wrapping_add(round).wrapping_sub(number) as usize;
        (age <= self.len).then_some(age)
    }

    /// Remembers a request that has ended. `hash` depends on `addr` and `id` alone.
    ///
    /// `true`: an entry younger than the window had to go.
    pub(crate) fn insert(&mut self, now_ns: u64, addr: SocketAddr, id: u64, hash: u64) -> bool {
        self.now_ns = self.now_ns.max(now_ns);
        let (place, tag, capacity) = (self.place(self.next), tag(hash), self.entries.len());
        let chain = self.chain(tag);
        let (Some(entry), Some(chain)) = (self.entries.get_mut(place), self.chains.get_mut(chain))
        else {
            return false;
        };
        let shrunk =
            self.len == capacity && self.now_ns.saturating_sub(entry.at_ns) < self.window_ns;
        *entry = EndedEntry {
            at_ns: self.now_ns,
            tag,
            older: chain.newest,
            ..EndedEntry::new(addr, id)
        };
        *chain = Chain {
            newest: self.next,
            newest_tag: tag,
            second: chain.newest,
            second_tag: chain.newest_tag,
        };
        self.len = self.len.saturating_add(1).min(capacity);
        self.next = self.next.wrapping_add(1);
        if self.next == self.numbers {
            self.next = 0;
        }
        shrunk
    }

    /// Whether this request is remembered.
    #[inline]
    pub(crate) fn contains(&self, addr: SocketAddr, id: u64, hash: u64) -> bool {
        let tag = tag(hash);
        let Some(chain) = self.chains.get(self.chain(tag)) else {
            return false;
        };
        let is_it = |number, its_tag| {
            let entry = self.entries.get(self.place(number));
            its_tag == tag && entry.is_some_and(|entry| entry.is_same(&EndedEntry::new(addr, id)))
        };
        let Some(newest_age) = self.age(chain.newest) else {
            return false;
        };
        if is_it(chain.newest, chain.newest_tag) {
            return true;
        }
        let (mut number, mut its_tag, mut last_age) = (chain.second, chain.second_tag, newest_age);
        // Ends: the age grows, and is limited. Where it does not grow the number is of an entry long gone, and the
        // place another's.
        while let Some(age) = self.age(number).filter(|&age| age > last_age) {
            if is_it(number, its_tag) {
                return true;
            }
            let older = self.entries.get(self.place(number)).map_or(0, |e| e.older);
            if self.age(older).is_none() {
                return false;
            }
            let older_tag = self.entries.get(self.place(older)).map_or(0, |e| e.tag);
            (number, its_tag, last_age) = (older, older_tag, age);
        }
        false
    }

    /// Each entry of the ring is found, and they are in the order of their times.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let next = self.place(self.next);
        let oldest = if self.len == self.entries.len() {
            next
        } else {
            0
        };
        if self.len < self.entries.len() && self.len != next {
            return Err("ended: wrong place for the next entry");
        }
        let (newer, older) = (
            self.entries.get(oldest..self.len),
            self.entries.get(..oldest),
        );
        let (Some(newer), Some(older)) = (newer, older) else {
            return Err("ended: out of range");
        };
        if !newer.iter().chain(older).is_sorted_by_key(|e| e.at_ns) {
            return Err("ended: not in the order of time");
        }
        for entry in self.entries.iter().take(self.len) {
            let chain = self.chains.get(self.chain(entry.tag));
            let mut number = chain.map(|chain| chain.newest);
            let mut steps = 0usize;
            loop {
                let at = number.filter(|&at| self.age(at).is_some());
                let Some(found) = at.and_then(|at| self.entries.get(self.place(at))) else {
                    return Err("ended: an entry is in no chain");
                };
                if core::ptr::eq(found, entry) {
                    break;
                }
                steps = steps.wrapping_add(1);
                if steps > self.len {
                    return Err("ended: a chain runs in a circle");
                }
                number = Some(found.older);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{HashKey, SplitMix};
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
        let chains = test_table(chains_for(capacity));
        let entries = test_table(capacity);
        let mut ended = Ended::new(entries, chains, 1000).expect("sizes that fit");
        if seed % 2 == 1 {
            // The numbers begin again soon.
            ended.next = ended.numbers - capacity as u32 * 2;
        }
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
        for seed in 0..4 {
            for capacity in [1, 2, 5, 64, 100] {
                run(capacity, seed, false);
                run(capacity, seed, true);
            }
        }
    }

    #[test]
    fn sizes() {
        assert_eq!((size_of::<EndedEntry>(), size_of::<Chain>()), (48, 16));
        let make = |entries, buckets| {
            let entries = test_table(entries);
            Ended::new(entries, test_table(buckets), 1)
        };
        assert!(make(0, 8).is_none() && make(4, 6).is_none() && make(4, 0).is_none());
        assert!(make(9, 8).is_some());
    }
}
