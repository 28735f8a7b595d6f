//! Where the bytes of incoming messages go: buffer sources.

use core::fmt;
use core::ops::{Deref, DerefMut};

#[cfg(feature = "alloc")]
pub use heap::{HeapBuffer, HeapBuffers};

/// Gives memory for incoming messages.
///
/// The core asks once per message, when its first packet tells the length, and hands the filled
/// buffer out by value with the event. A buffer whose message fails is given back.
pub trait BufferSource {
    /// Memory for one message.
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// A buffer of exactly `len` bytes (as `as_ref` shows it), or `None` when none is free now:
    /// then the message waits, ungranted, and is served when a buffer comes back.
    fn take(&mut self, len: usize) -> Option<Self::Buffer>;

    /// Takes a buffer back for reuse.
    fn give_back(&mut self, buffer: Self::Buffer);

    /// The longest message that could ever get a buffer, in bytes. Longer ones are refused at
    /// once instead of waiting for ever.
    fn max_len(&self) -> usize;

    /// Bytes of all buffers together, where that is known: budgets that are not set are parts of
    /// it (`Config::max_peer_bytes`, `Config::max_stranger_bytes`). Asked once.
    fn capacity(&self) -> Option<usize> {
        None
    }
}

/// Memory for one message from [`FixedBuffers`]. Dereferences to the message's bytes.
///
/// Give it back for reuse; memory that is dropped is lost to its pool.
#[derive(Default)]
pub struct FixedBuffer<'a> {
    // The message is the first `len` bytes.
    chunk: &'a mut [u8],
    len: usize,
}

impl Deref for FixedBuffer<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.chunk.get(..self.len).unwrap_or(&[])
    }
}

impl DerefMut for FixedBuffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.chunk.get_mut(..self.len).unwrap_or(&mut [])
    }
}

impl AsRef<[u8]> for FixedBuffer<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for FixedBuffer<'_> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for FixedBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FixedBuffer({} of {} bytes)", self.len, self.chunk.len())
    }
}

/// `N` pools of chunks in the caller's memory: no heap.
///
/// A message gets a chunk of the smallest size that fits and is free, so long messages never
/// wait for memory that could not hold them, and short ones may overflow into larger chunks.
///
/// ```
/// use homa_proto::{BufferSource, FixedBuffers};
///
/// let (mut small, mut large) = ([0; 8 * 256], [0; 2 * 4096]);
/// let mut slots = [const { None }; 8 + 2];
/// let pools = [(&mut small[..], 256), (&mut large[..], 4096)];
/// let mut source = FixedBuffers::new(pools, &mut slots).unwrap();
///
/// let buffer = source.take(1000).unwrap();
/// assert_eq!(buffer.len(), 1000);
/// source.give_back(buffer);
/// assert_eq!(source.max_len(), 4096);
/// ```
#[derive(Debug)]
pub struct FixedBuffers<'a, const N: usize> {
    // Smallest chunks first.
    pools: [FixedPool<'a>; N],
}

#[derive(Debug)]
struct FixedPool<'a> {
    chunk_len: usize,
    // A stack, as high as the pool has chunks; the first `free` slots hold one each.
    slots: &'a mut [Option<&'a mut [u8]>],
    free: usize,
}

impl<'a> FixedPool<'a> {
    fn push(&mut self, chunk: &'a mut [u8]) {
        if let Some(slot) = self.slots.get_mut(self.free) {
            *slot = Some(chunk);
            self.free = self.free.saturating_add(1);
        }
    }

    fn pop(&mut self) -> Option<&'a mut [u8]> {
        let top = self.free.checked_sub(1)?;
        let chunk = self.slots.get_mut(top)?.take();
        self.free = top;
        chunk
    }
}

impl<'a, const N: usize> FixedBuffers<'a, N> {
    /// Pools from pairs of memory and chunk length in bytes, in any order. A remainder of memory
    /// shorter than a chunk stays unused. `slots` has at least one place for each chunk.
    ///
    /// `None`: a chunk length of 0, or too few slots.
    #[must_use]
    pub fn new(
        pools: [(&'a mut [u8], usize); N],
        mut slots: &'a mut [Option<&'a mut [u8]>],
    ) -> Option<Self> {
        let mut is_sound = true;
        let mut pools = pools.map(|(memory, chunk_len)| {
            let count = memory.len().checked_div(chunk_len);
            let (mine, rest) = core::mem::take(&mut slots)
                .split_at_mut_checked(count.unwrap_or(0))
                .unwrap_or_default();
            slots = rest;
            is_sound &= count == Some(mine.len());
            let mut pool = FixedPool {
                chunk_len,
                slots: mine,
                free: 0,
            };
            if is_sound {
                memory
                    .chunks_exact_mut(chunk_len)
                    .for_each(|chunk| pool.push(chunk));
            }
            pool
        });
        pools.sort_unstable_by_key(|pool| pool.chunk_len);
        is_sound.then_some(Self { pools })
    }
}

impl<'a, const N: usize> BufferSource for FixedBuffers<'a, N> {
    type Buffer = FixedBuffer<'a>;

    fn take(&mut self, len: usize) -> Option<FixedBuffer<'a>> {
        let fitting = self.pools.iter_mut().filter(|pool| pool.chunk_len >= len);
        let chunk = fitting.filter_map(FixedPool::pop).next()?;
        Some(FixedBuffer { chunk, len })
    }

    /// Memory of another source is taken in if it replaces a lost chunk of its length.
    fn give_back(&mut self, buffer: FixedBuffer<'a>) {
        let has_room = |pool: &&mut FixedPool<'a>| {
            pool.chunk_len == buffer.chunk.len() && pool.free < pool.slots.len()
        };
        if let Some(pool) = self.pools.iter_mut().find(has_room) {
            pool.push(buffer.chunk);
        }
    }

    fn max_len(&self) -> usize {
        let mut with_chunks = self.pools.iter().filter(|pool| !pool.slots.is_empty());
        with_chunks.next_back().map_or(0, |pool| pool.chunk_len)
    }

    fn capacity(&self) -> Option<usize> {
        let bytes = |pool: &FixedPool<'_>| pool.chunk_len.saturating_mul(pool.slots.len());
        let sum = |all: usize, pool| all.saturating_add(bytes(pool));
        Some(self.pools.iter().fold(0, sum))
    }
}

#[cfg(feature = "alloc")]
mod heap {
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::{BufferSource, Deref, DerefMut, fmt};

    /// Memory for one message from [`HeapBuffers`]. Dereferences to the message's bytes.
    ///
    /// Give it back for reuse. Dropping it or taking its vector is also fine: its bytes then no
    /// longer count as out.
    #[derive(Default)]
    pub struct HeapBuffer {
        // All of `data` is initialised once and stays so; the message is its first `len` bytes.
        data: Vec<u8>,
        len: usize,
        // `None`: not counted by any source.
        charge: Option<Charge>,
    }

    /// Bytes that are out, until this is dropped.
    struct Charge {
        out: Arc<AtomicUsize>,
        bytes: usize,
    }

    // The counter guards no other memory, so no ordering is needed.
    impl Charge {
        fn new(out: &Arc<AtomicUsize>, bytes: usize) -> Self {
            out.fetch_add(bytes, Ordering::Relaxed);
            Self {
                out: Arc::clone(out),
                bytes,
            }
        }
    }

    impl Drop for Charge {
        fn drop(&mut self) {
            self.out.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }

    impl HeapBuffer {
        /// The bytes as a vector, without copying.
        #[must_use]
        pub fn into_vec(mut self) -> Vec<u8> {
            self.data.truncate(self.len);
            self.data
        }
    }

    /// Copies the message. No source counts the copy.
    impl Clone for HeapBuffer {
        fn clone(&self) -> Self {
            Self::from(Vec::from(&**self))
        }
    }

    impl From<Vec<u8>> for HeapBuffer {
        fn from(data: Vec<u8>) -> Self {
            let len = data.len();
            Self {
                data,
                len,
                charge: None,
            }
        }
    }

    impl Deref for HeapBuffer {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            self.data.get(..self.len).unwrap_or(&[])
        }
    }

    impl DerefMut for HeapBuffer {
        fn deref_mut(&mut self) -> &mut [u8] {
            self.data.get_mut(..self.len).unwrap_or(&mut [])
        }
    }

    impl AsRef<[u8]> for HeapBuffer {
        fn as_ref(&self) -> &[u8] {
            self
        }
    }

    impl AsMut<[u8]> for HeapBuffer {
        fn as_mut(&mut self) -> &mut [u8] {
            self
        }
    }

    impl fmt::Debug for HeapBuffer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "HeapBuffer({} bytes)", self.len)
        }
    }

    /// Memory from the heap, kept for reuse.
    ///
    /// Buffers come in size classes, four to each doubling. What is out and what is kept is at
    /// most `max_total` bytes together, so a load whose buffers fit allocates nothing once it is
    /// steady. When a new buffer would exceed that, kept ones are freed, largest first.
    ///
    /// ```
    /// use homa_proto::{BufferSource, HeapBuffers};
    ///
    /// let mut source = HeapBuffers::new(1 << 20);
    /// let buffer = source.take(1000).unwrap();
    /// assert_eq!(buffer.len(), 1000);
    /// source.give_back(buffer);
    /// assert!(source.take(1 << 21).is_none());
    /// ```
    #[derive(Debug)]
    pub struct HeapBuffers {
        max_total: usize,
        // By class.
        kept: Vec<Vec<Vec<u8>>>,
        kept_bytes: usize,
        out: Arc<AtomicUsize>,
    }

    const MIN_BITS: u32 = 6;

    /// The smallest class whose buffers hold `len` bytes.
    const fn class_for(len: usize) -> usize {
        let Some(last) = len.checked_sub(1) else {
            return 0;
        };
        match last.checked_ilog2() {
            // From 2^bits on, the two bits after the first choose a quarter.
            Some(bits) if bits >= MIN_BITS => {
                let quarter = (last >> bits.wrapping_sub(2)) & 3;
                let doublings = bits.wrapping_sub(MIN_BITS) as usize;
                doublings
                    .wrapping_mul(4)
                    .wrapping_add(quarter)
                    .wrapping_add(1)
            }
            _ => 0,
        }
    }

    /// Bytes of a class's buffers: 64, 80, 96, 112, 128, 160, ...
    const fn size_of_class(class: usize) -> usize {
        let Some(above) = class.checked_sub(1) else {
            return 1 << MIN_BITS;
        };
        let quarters = (above & 3).wrapping_add(5);
        let shift = (above / 4).wrapping_add(MIN_BITS as usize).wrapping_sub(2);
        // Beyond the address space only for lengths that no vector can have.
        if shift >= usize::BITS as usize || quarters > usize::MAX >> shift {
            usize::MAX
        } else {
            quarters << shift
        }
    }

    impl HeapBuffers {
        /// A source that has at most `max_total` bytes out at once, rounding included.
        #[must_use]
        pub fn new(max_total: usize) -> Self {
            let classes = class_for(max_total).saturating_add(1);
            Self {
                max_total,
                kept: (0..classes).map(|_| Vec::new()).collect(),
                kept_bytes: 0,
                out: Arc::new(AtomicUsize::new(0)),
            }
        }

        /// Bytes in buffers that have been taken and neither given back nor dropped.
        #[must_use]
        pub fn bytes_out(&self) -> usize {
            self.out.load(Ordering::Relaxed)
        }

        /// Bytes kept for reuse.
        #[must_use]
        pub const fn bytes_kept(&self) -> usize {
            self.kept_bytes
        }

        /// Frees the bytes kept for reuse.
        pub fn shrink(&mut self) {
            self.free_kept(usize::MAX);
        }

        /// Bytes of a class's buffers here: none is larger than the total.
        fn size(&self, class: usize) -> usize {
            size_of_class(class).min(self.max_total)
        }

        /// Frees kept buffers until `bytes` are freed.
        fn free_kept(&mut self, bytes: usize) {
            let mut freed = 0usize;
            for class in self.kept.iter_mut().rev() {
                while freed < bytes {
                    let Some(data) = class.pop() else { break };
                    freed = freed.saturating_add(data.capacity());
                }
            }
            self.kept_bytes = self.kept_bytes.saturating_sub(freed);
        }

        /// The count of kept bytes is right, and each buffer fits its class.
        #[cfg(any(test, feature = "check"))]
        pub fn check(&self) -> Result<(), &'static str> {
            let mut bytes = 0usize;
            for (class, kept) in self.kept.iter().enumerate() {
                if kept.iter().any(|data| data.len() != self.size(class)) {
                    return Err("buffers: a buffer in the wrong class");
                }
                bytes = kept
                    .iter()
                    .fold(bytes, |sum, data| sum.saturating_add(data.capacity()));
            }
            if bytes != self.kept_bytes {
                return Err("buffers: wrong count of kept bytes");
            }
            Ok(())
        }

        /// A new buffer, if there is room for it.
        fn allocate(&mut self, size: usize) -> Option<Vec<u8>> {
            let room = self.max_total.checked_sub(self.bytes_out())?;
            let kept_room = room.checked_sub(size)?;
            self.free_kept(self.kept_bytes.saturating_sub(kept_room));
            let mut data = Vec::new();
            data.try_reserve_exact(size).ok()?;
            data.resize(size, 0);
            Some(data)
        }
    }

    impl BufferSource for HeapBuffers {
        type Buffer = HeapBuffer;

        fn take(&mut self, len: usize) -> Option<HeapBuffer> {
            if len == 0 {
                return Some(HeapBuffer::default());
            }
            if len > self.max_total {
                return None;
            }
            let class = class_for(len);
            let data = if let Some(data) = self.kept.get_mut(class)?.pop() {
                self.kept_bytes = self.kept_bytes.saturating_sub(data.capacity());
                data
            } else {
                self.allocate(self.size(class))?
            };
            let charge = Charge::new(&self.out, data.capacity());
            Some(HeapBuffer {
                data,
                len,
                charge: Some(charge),
            })
        }

        /// Also takes in buffers made from vectors, or by another source: as many bytes as they
        /// have had initialised, if there is room.
        fn give_back(&mut self, buffer: HeapBuffer) {
            let HeapBuffer {
                mut data, charge, ..
            } = buffer;
            // The bytes are no longer out, wherever they came from.
            drop(charge);
            let last = self.kept.len().saturating_sub(1);
            let class = if data.len() >= self.size(last) {
                last
            } else {
                // The largest class that is not larger than the data.
                match class_for(data.len().saturating_add(1)).checked_sub(1) {
                    Some(class) => class,
                    None => return,
                }
            };
            data.truncate(self.size(class));
            let bytes = data.capacity();
            let total = self
                .bytes_out()
                .saturating_add(self.kept_bytes)
                .saturating_add(bytes);
            // Most of a vector that is nearly empty would lie idle.
            if bytes == 0 || bytes / 2 > data.len() || total > self.max_total {
                return;
            }
            if let Some(kept) = self.kept.get_mut(class) {
                kept.push(data);
                self.kept_bytes = self.kept_bytes.saturating_add(bytes);
            }
        }

        fn max_len(&self) -> usize {
            self.max_total
        }

        fn capacity(&self) -> Option<usize> {
            Some(self.max_total)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::SplitMix;
    use std::vec::Vec;

    #[cfg(feature = "alloc")]
    mod heap {
        use super::*;

        /// Random takes, returns, drops and foreign buffers: the books match a model that knows
        /// only what is out, and no two messages share bytes.
        #[test]
        fn books_match_model() {
            for (seed, max_total) in [0, 1, 63, 64, 100, 5000, 100_000, 1 << 20]
                .into_iter()
                .enumerate()
            {
                let mut random = SplitMix::new(seed as u128);
                let mut source = HeapBuffers::new(max_total);
                let mut out: Vec<(HeapBuffer, usize, u8)> = Vec::new();
                let mut served = 0;
                for step in 0..4000u32 {
                    let len =
                        (random.next_u64() as usize % (max_total + 2)) >> (random.next_u64() % 16);
                    match random.next_u64() % 8 {
                        0..=3 => match source.take(len) {
                            Some(mut buffer) => {
                                assert_eq!(buffer.len(), len);
                                buffer.fill(step as u8);
                                out.push((buffer, len, step as u8));
                                served += 1;
                            }
                            // Refused only when it could not fit even before rounding up.
                            None => assert!(
                                len > max_total
                                    || source.bytes_out() + len + len / 4 + 64 > max_total
                            ),
                        },
                        4 => source.give_back(HeapBuffer::from(std::vec![7; len])),
                        5 => {
                            let mut vec = Vec::with_capacity(len);
                            vec.resize(len / 3, 1);
                            source.give_back(HeapBuffer::from(vec));
                        }
                        kind => {
                            if out.is_empty() {
                                continue;
                            }
                            let (buffer, len, fill) =
                                out.swap_remove(random.next_u64() as usize % out.len());
                            assert_eq!(buffer.len(), len);
                            assert!(buffer.iter().all(|&b| b == fill));
                            match kind {
                                6 => source.give_back(buffer),
                                _ if len % 2 == 0 => assert_eq!(buffer.into_vec().len(), len),
                                _ => drop(buffer),
                            }
                        }
                    }
                    source.check().unwrap();
                    let least: usize = out.iter().map(|(_, len, _)| len).sum();
                    assert!(source.bytes_out() >= least);
                    assert!(source.bytes_out() + source.bytes_kept() <= max_total);
                }
                assert!(served > 0);
                for (buffer, _, _) in out {
                    source.give_back(buffer);
                }
                assert_eq!(source.bytes_out(), 0);
                // All memory can be had again as one message.
                let all = source.take(source.max_len()).expect("nothing is out");
                assert_eq!(all.len(), max_total);
                source.shrink();
                assert_eq!(source.bytes_kept(), 0);
            }
        }

        /// Each length gets at least what it asked for and at most a quarter more (or 64).
        #[test]
        fn classes_are_tight() {
            let mut source = HeapBuffers::new(usize::MAX >> 1);
            let mut len = 1;
            while len < 1 << 20 {
                let buffer = source.take(len).expect("there is room");
                let held = source.bytes_out();
                assert!(
                    held >= len && held <= (len + len / 4).max(64),
                    "{len}: {held}"
                );
                drop(buffer);
                assert_eq!(source.bytes_out(), 0);
                len += 1 + len / 100;
            }
        }

        /// A buffer that comes back is reused as it is for any length of its class.
        #[test]
        fn steady_state_reuses() {
            let mut source = HeapBuffers::new(10_000);
            let mut buffer = source.take(1100).expect("there is room");
            buffer.fill(9);
            let place = buffer.as_ptr();
            source.give_back(buffer);
            let buffer = source.take(1270).expect("there is room");
            assert_eq!(buffer.as_ptr(), place);
            assert!(
                buffer.iter().take(1100).all(|&b| b == 9),
                "not cleared again"
            );
            source.give_back(buffer);
            // A load of another size gets the room.
            assert!(source.take(9999).is_some());
            assert_eq!(source.bytes_kept(), 0);
        }

        /// A buffer given to the wrong source leaves both books right.
        #[test]
        fn wrong_source() {
            let (mut one, mut other) = (HeapBuffers::new(1000), HeapBuffers::new(2000));
            let buffer = one.take(500).expect("there is room");
            other.give_back(buffer);
            assert_eq!((one.bytes_out(), one.bytes_kept()), (0, 0));
            assert_eq!((other.bytes_out(), other.bytes_kept()), (0, 512));
        }

        #[test]
        fn impossible_lengths_are_refused() {
            let mut source = HeapBuffers::new(usize::MAX);
            assert!(source.take(usize::MAX).is_none());
            assert!(source.take(usize::MAX / 2 + 2).is_none());
            assert_eq!(source.bytes_out(), 0);
            assert_eq!(HeapBuffers::new(0).take(0).map(|b| b.len()), Some(0));
            assert!(HeapBuffers::new(0).take(1).is_none());
        }
    }

    /// Random takes and returns against counts of free chunks.
    #[test]
    fn fixed_matches_model() {
        const SIZES: [(usize, usize); 4] = [(1024, 3), (64, 5), (256, 4), (4096, 0)];
        let (mut a, mut b, mut c, mut d) = ([0; 3 * 1024 + 5], [0; 5 * 64], [0; 4 * 256], [0; 100]);
        let mut slots = [const { None }; 13];
        let pools = [
            (&mut a[..], 1024),
            (&mut b[..], 64),
            (&mut c[..], 256),
            (&mut d[..], 4096),
        ];
        let mut source = FixedBuffers::new(pools, &mut slots).expect("enough slots");
        assert_eq!(source.max_len(), 1024);
        let mut free: std::collections::BTreeMap<usize, usize> = SIZES.into();
        let mut out = Vec::new();
        let mut random = SplitMix::new(5);
        let mut refused = 0;
        for step in 0..20_000u32 {
            if random.next_u64() % 9 < 5 {
                let len = (random.next_u64() % 1100) as usize >> (random.next_u64() % 8);
                let expected = free.iter_mut().find(|(size, n)| **size >= len && **n > 0);
                let got = source.take(len);
                assert_eq!(got.is_some(), expected.is_some());
                if let (Some(mut buffer), Some((&size, n))) = (got, expected) {
                    *n -= 1;
                    assert_eq!(buffer.len(), len);
                    buffer.fill(step as u8);
                    out.push((buffer, size, step as u8));
                } else {
                    refused += 1;
                }
            } else if !out.is_empty() {
                let (buffer, size, fill) = out.swap_remove(random.next_u64() as usize % out.len());
                assert!(buffer.iter().all(|&b| b == fill));
                source.give_back(buffer);
                *free.get_mut(&size).expect("a size of the pools") += 1;
            }
        }
        assert!(refused > 0);
    }

    #[test]
    fn fixed_refuses_what_cannot_be() {
        let (mut memory, mut slots) = ([0; 128], [const { None }; 1]);
        assert!(FixedBuffers::new([(&mut memory[..], 64)], &mut slots).is_none());
        let (mut memory, mut slots) = ([0; 128], [const { None }; 1]);
        assert!(FixedBuffers::new([(&mut memory[..], 0)], &mut slots).is_none());
        let (mut memory, mut slots) = ([0; 128], [const { None }; 2]);
        let mut source = FixedBuffers::new([(&mut memory[..], 64)], &mut slots).expect("sound");
        source.give_back(FixedBuffer::default());
        let (mut other, mut slots) = ([0; 64], [const { None }; 1]);
        let mut stranger = FixedBuffers::new([(&mut other[..], 64)], &mut slots).expect("sound");
        // No place for a chunk more than the pool has.
        source.give_back(stranger.take(1).expect("one is free"));
        assert!(source.take(64).is_some() && source.take(64).is_some() && source.take(0).is_none());
    }

    #[test]
    fn fixed_pools_of_one_length() {
        let (mut one, mut other, mut slots) = ([0; 64], [0; 64], [const { None }; 2]);
        let pools = [(&mut one[..], 64), (&mut other[..], 64)];
        let mut source = FixedBuffers::new(pools, &mut slots).expect("sound");
        for _ in 0..3 {
            let both = [source.take(1), source.take(64)].map(|buffer| buffer.expect("free"));
            assert!(source.take(1).is_none());
            both.into_iter()
                .rev()
                .for_each(|buffer| source.give_back(buffer));
        }
    }
}
