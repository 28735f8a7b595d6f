//! Keyed hashing for the tables that remote parties fill.

use core::net::SocketAddr;

/// A small generator: keys and the first id from the endpoint's seed.
///
/// Two SplitMix64 sequences with different steps, one from each half of the seed, so that all
/// 128 bits count. Not for secrets that are shown to others.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix {
    a: u64,
    b: u64,
}

impl SplitMix {
    pub(crate) const fn new(seed: u128) -> Self {
        Self {
            a: seed as u64,
            b: (seed >> 64) as u64,
        }
    }

    pub(crate) const fn next_u64(&mut self) -> u64 {
        self.a = self.a.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.b = self.b.wrapping_add(0xd1b5_4a32_d192_ed03);
        mix(self.a) ^ mix(self.b ^ 0xa076_1d64_78bd_642f).rotate_left(32)
    }
}

/// The finalizer of SplitMix64: a bijection in which each bit in changes half the bits out.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The product of two words, its halves folded together.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// The secret keys of the hash functions.
///
/// Each part of a key passes at least two rounds (one leaves visible lines) of a folded 64 × 64 → 128 bit product with secret
/// factors. Without the seed, and as long as hashes are never shown to a remote party, finding
/// keys that collide more often than chance is not known to be cheap. It is *not* a
/// cryptographic function: whoever could see hashes, or time single look-ups to the nanosecond,
/// could work out the keys. What is at stake is speed alone, as every look-up compares full keys.
#[derive(Clone)]
pub(crate) struct HashKey {
    key: [u64; 8],
    /// For what is shown to others.
    shown: [u64; 3],
}

impl core::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HashKey")
    }
}

impl HashKey {
    pub(crate) fn new(seed: u128) -> Self {
        let mut generator = SplitMix::new(seed);
        Self {
            // Odd: as plain factors they are never 0.
            key: core::array::from_fn(|_| generator.next_u64() | 1),
            shown: core::array::from_fn(|_| generator.next_u64() | 1),
        }
    }

    /// Hash of an RPC: the peer's place in the table of peers, and the id.
    #[inline]
    pub(crate) const fn rpc(&self, peer: u32, id: u64) -> u64 {
        let [a, b, c, ..] = self.key;
        // `b` is odd: the factor is never 0.
        let hash = fold(fold(row_of(id) ^ a, b ^ ((peer as u64) << 1)) ^ c, b);
        in_row(hash, id)
    }

    /// Hash of an address in canonical form (IPv4-mapped addresses as IPv4).
    #[inline]
    pub(crate) fn addr(&self, addr: &SocketAddr) -> u64 {
        let [.., d, e, f, g, h] = self.key;
        match addr {
            SocketAddr::V4(v4) => {
                let word = u64::from(v4.ip().to_bits()) | (u64::from(v4.port()) << 32);
                fold(fold(word ^ d, e) ^ f, g)
            }
            SocketAddr::V6(v6) => {
                let ip = v6.ip().to_bits();
                let rest = u64::from(v6.port()) | (u64::from(v6.scope_id()) << 16);
                let low = fold(ip as u64 ^ e, rest ^ f);
                let high = fold((ip >> 64) as u64 ^ low ^ g, d);
                fold(high ^ h, e)
            }
        }
    }

    /// A number that only the owner of an address is told, never 0. It is shown to others, and so has
    /// keys of its own, which say nothing of those of the tables.
    pub(crate) const fn token(&self, addr_hash: u64, version: u16) -> u16 {
        let [a, b, c] = self.shown;
        match fold(fold(addr_hash ^ a, b) ^ (version as u64), c) as u16 {
            0 => 1,
            token => token,
        }
    }

    /// Hash of a client's id, from the hash of its address.
    #[inline]
    pub(crate) const fn client_id(&self, addr_hash: u64, id: u64) -> u64 {
        let [_, b, c, .., g, h] = self.key;
        in_row(fold(fold(row_of(id) ^ h, addr_hash ^ g) ^ c, b), id)
    }
}

/// Ids that follow each other have neighbouring places in a table, so many in a row: they come and
/// go together, and one line of the processor's cache then serves them all. Who chooses ids to do
/// harm gains nothing, as no more than these have places close to each other.
const ROW: u64 = 4;
/// Where the hash says which place of the row: the lowest bits of what the index uses.
const PLACE_SHIFT: u32 = 32;

/// The row of an id. The ids of one half of RPCs are all even or all odd.
#[inline]
const fn row_of(id: u64) -> u64 {
    (id >> 1) / ROW
}

/// The hash of an id from that of its row.
#[inline]
const fn in_row(hash: u64, id: u64) -> u64 {
    let places = (ROW - 1) << PLACE_SHIFT;
    let place = ((id >> 1) % ROW) << PLACE_SHIFT;
    (hash & !places) | place
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
    use std::vec::Vec;

    /// Structured keys, as in real life, spread like random ones: over the low and the high bits.
    fn assert_spread(hashes: impl Iterator<Item = u64>) {
        let hashes: Vec<u64> = hashes.collect();
        for shift in [0, 20, PLACE_SHIFT + ROW.ilog2(), 52] {
            let mut counts = [0u32; 4096];
            for hash in &hashes {
                counts[(hash >> shift) as usize & 4095] += 1;
            }
            let mean = hashes.len() as f64 / 4096.0;
            let chi: f64 = counts
                .iter()
                .map(|&c| (f64::from(c) - mean).powi(2) / mean)
                .sum();
            // Random keys: mean 4095, standard deviation 90. More even than that is welcome.
            assert!(chi < 4640.0, "bits from {shift}: {chi}");
        }
    }

    #[test]
    fn structured_keys_spread() {
        for seed in (0..40).map(|i: u128| i << 50 | i) {
            let key = HashKey::new(seed);
            assert_spread((0..65_536).map(|i| key.rpc(3, 2 * ROW * i)));
            assert_spread((0..65_536).map(|i| key.rpc(i as u32, 1000)));
            assert_spread((0..65_536).map(|i| key.rpc(3, i << 48)));
            assert_spread((0..65_536).map(|i| key.client_id(77, 2 * ROW * i)));
            assert_spread((0..65_536).map(|i| key.client_id(i, 4)));
            assert_spread((0..65_536).map(|i| key.client_id(i << 48, 4)));
            let v4 = |i: u32| key.addr(&(Ipv4Addr::from_bits(0x0a00_0000 + i), 4000).into());
            assert_spread((0..65_536).map(v4));
            assert_spread(
                (0..65_536).map(|port| key.addr(&(Ipv4Addr::LOCALHOST, port as u16).into())),
            );
            for shift in [0, 48, 64, 112] {
                let v6 = |i: u128| key.addr(&(Ipv6Addr::from_bits(i << shift), 4000).into());
                assert_spread((0..65_536).map(v6));
            }
            let scoped = |i| SocketAddrV6::new(Ipv6Addr::LOCALHOST, 4000, 0, i).into();
            assert_spread((0..65_536).map(|i| key.addr(&scoped(i))));
        }
    }

    /// Ids that follow each other, of either half, have the places of a row one after the other.
    #[test]
    fn neighbours_share_a_row() {
        let key = HashKey::new(7);
        for first in [0, 1, 8 * 1_000_003, u64::MAX - 7] {
            let ids = (0..ROW).map(|i| first + 2 * i);
            for hashes in [
                ids.clone().map(|id| key.rpc(3, id)).collect::<Vec<_>>(),
                ids.map(|id| key.client_id(77, id)).collect(),
            ] {
                for (place, hash) in hashes.iter().enumerate() {
                    assert_eq!(hash - hashes[0], (place as u64) << PLACE_SHIFT);
                }
            }
        }
        assert_ne!(
            key.rpc(3, 0) >> PLACE_SHIFT,
            key.rpc(3, 2 * ROW) >> PLACE_SHIFT
        );
    }

    /// Each bit of the seed changes the keys.
    #[test]
    fn whole_seed_counts() {
        let hashes: std::collections::HashSet<u64> = (0..128)
            .map(|bit| HashKey::new(1 << bit).rpc(1, 1))
            .collect();
        assert_eq!(hashes.len(), 128);
        let first: std::collections::HashSet<u64> = (0..128)
            .map(|bit| SplitMix::new(1 << bit).next_u64())
            .collect();
        assert_eq!(first.len(), 128);
    }
}
