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
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// The secret keys of the hash functions.
///
/// Each hash is two rounds (three for IPv6) of a folded 64 × 64 → 128 bit product with secret
/// factors. Without the seed, and as long as hashes are never shown to a remote party, finding
/// keys that collide more often than chance is not known to be cheap. It is *not* a
/// cryptographic function: whoever could see hashes, or time single look-ups to the nanosecond,
/// could work out the keys. What is at stake is speed alone, as every look-up compares full keys.
#[derive(Clone)]
pub(crate) struct HashKey {
    key: [u64; 8],
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
            // Odd, so that no factor is 0.
            key: core::array::from_fn(|_| generator.next_u64() | 1),
        }
    }

    /// Hash of an RPC: the peer's place in the table of peers, and the id.
    #[inline]
    pub(crate) const fn rpc(&self, peer: u32, id: u64) -> u64 {
        let [a, b, c, ..] = self.key;
        // `peer` is the caller's own number: it cannot make the factor 0 but by bad luck.
        fold(fold(id ^ a, b ^ ((peer as u64) << 1)) ^ c, b)
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
                let low = fold(ip as u64 ^ e, f);
                let high = fold((ip >> 64) as u64 ^ low ^ g, d);
                fold(rest ^ high ^ h, f)
            }
        }
    }

    /// Hash of a client's id, from the hash of its address.
    #[inline]
    pub(crate) const fn client_id(&self, addr_hash: u64, id: u64) -> u64 {
        let [_, b, .., g, h] = self.key;
        fold(fold(id ^ h, g) ^ addr_hash, b)
    }
}
