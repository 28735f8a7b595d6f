//! Tables of fixed capacity, in the caller's memory or boxed once.

#[cfg(feature = "alloc")]
use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};

use crate::acks::AckNode;
#[cfg(feature = "alloc")]
use crate::ended::chains_for;
use crate::ended::{Chain, EndedEntry};
use crate::index::Bucket;
#[cfg(feature = "alloc")]
use crate::index::buckets_for;
use crate::peer::PeerSlot;
use crate::rpc::RpcSlot;
use crate::timer::TimerNode;
use crate::tree::Node;

/// "No index": ends lists and marks empty places. No table is long enough to reach it.
pub(crate) const NIL: u32 = u32::MAX;

/// A table of fixed length: lent by the caller, or boxed once.
#[derive(Debug)]
pub(crate) enum Slice<'a, T> {
    /// The caller's memory.
    Borrowed(&'a mut [T]),
    /// Memory from the heap, allocated once.
    #[cfg(feature = "alloc")]
    Boxed(Box<[T]>),
}

#[cfg(feature = "alloc")]
impl<T> Slice<'_, T> {
    /// A table of `len` elements on the heap, each made by `element`.
    #[must_use]
    pub(crate) fn boxed(len: usize, element: impl FnMut() -> T) -> Self {
        Self::Boxed(core::iter::repeat_with(element).take(len).collect())
    }
}

impl<'a, T> From<&'a mut [T]> for Slice<'a, T> {
    fn from(memory: &'a mut [T]) -> Self {
        Self::Borrowed(memory)
    }
}

// Both arms hold an address and a length in the same place, so that the match costs nothing.
impl<T> Deref for Slice<'_, T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        match self {
            Self::Borrowed(slice) => slice,
            #[cfg(feature = "alloc")]
            Self::Boxed(slice) => slice,
        }
    }
}

impl<T> DerefMut for Slice<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Borrowed(slice) => slice,
            #[cfg(feature = "alloc")]
            Self::Boxed(slice) => slice,
        }
    }
}

/// Sizes of an endpoint's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// RPCs live at once, both halves together. Where an endpoint both asks and answers, neither half
    /// takes more than three quarters, so that endpoints full of requests to each other can answer:
    /// with two slots one each; with a single one such endpoints wait for each other until they time out.
    pub rpcs: usize,
    /// Peers known at once. Strangers that ask take no more than half of it, so twice as many as there
    /// are hosts lets all of them come at once.
    pub peers: usize,
    /// Ended requests remembered.
    pub ended: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rpcs: 4096,
            peers: 1024,
            ended: 65_536,
        }
    }
}

/// The memory of an endpoint's tables.
///
/// Made by [`Storage::boxed`] on the heap, or by [`FixedStorage::storage`] in memory of the
/// caller's.
pub struct Storage<'a, M, B> {
    pub(crate) rpcs: Slice<'a, RpcSlot<M, B>>,
    pub(crate) rpc_index: Slice<'a, Bucket>,
    pub(crate) timers: Slice<'a, TimerNode>,
    pub(crate) send_order: Slice<'a, Node>,
    pub(crate) grant_order: Slice<'a, Node>,
    pub(crate) acks: Slice<'a, AckNode>,
    pub(crate) peers: Slice<'a, PeerSlot>,
    pub(crate) peer_index: Slice<'a, Bucket>,
    pub(crate) peer_order: Slice<'a, Node>,
    pub(crate) ended: Slice<'a, EndedEntry>,
    pub(crate) ended_chains: Slice<'a, Chain>,
}

#[allow(
    clippy::arithmetic_side_effects,
    reason = "a few sizes of types; an overflow would not compile"
)]
impl<M, B> Storage<'_, M, B> {
    /// Bytes of all tables for one RPC, message data excepted.
    #[must_use]
    pub const fn bytes_per_rpc() -> usize {
        size_of::<RpcSlot<M, B>>()
            + size_of::<TimerNode>()
            + 2 * size_of::<Node>()
            + 2 * size_of::<Bucket>()
            + size_of::<AckNode>()
    }

    /// Bytes of all tables for one peer.
    #[must_use]
    pub const fn bytes_per_peer() -> usize {
        size_of::<PeerSlot>() + size_of::<Node>() + 2 * size_of::<Bucket>()
    }
}

#[cfg(feature = "alloc")]
impl<M, B> Storage<'static, M, B> {
    /// Tables of the given sizes on the heap, allocated here and never again.
    #[must_use]
    pub fn boxed(limits: Limits) -> Self {
        let Limits { rpcs, peers, ended } = limits;
        let nodes = |len| Slice::boxed(len, Node::default);
        let buckets = |len| Slice::boxed(buckets_for(len), Bucket::default);
        Self {
            rpcs: Slice::boxed(rpcs, RpcSlot::new),
            rpc_index: buckets(rpcs),
            timers: Slice::boxed(rpcs, TimerNode::default),
            send_order: nodes(rpcs),
            grant_order: nodes(rpcs),
            acks: Slice::boxed(rpcs, || AckNode::FREE),
            peers: Slice::boxed(peers, PeerSlot::new),
            peer_index: buckets(peers),
            peer_order: nodes(peers),
            ended: Slice::boxed(ended, EndedEntry::default),
            ended_chains: Slice::boxed(chains_for(ended), Chain::default),
        }
    }
}

/// Room for the tables of an endpoint without a heap. Each of the three numbers must be a power
/// of two from 2 up.
///
/// It must outlive the endpoint. On the stack of the function that runs the loop, it does:
///
/// ```
/// use homa_proto::{Config, Endpoint, FixedBuffer, FixedBuffers, FixedStorage};
///
/// let (mut memory, mut slots) = ([0; 4 * 1500], [const { None }; 4]);
/// let source = FixedBuffers::new([(&mut memory[..], 1500)], &mut slots).unwrap();
/// let mut tables = FixedStorage::<&[u8], FixedBuffer<'_>, 8, 2, 64>::new();
/// let mut endpoint = Endpoint::new(Config::default(), 1, tables.storage(), source)?;
/// endpoint.open_port(4000)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Large tables belong in a `static`: `new` is `const`, so they are never on the stack. Cells that
/// lend a `static` out once (such as `ConstStaticCell` of the crate `static_cell`, or variables
/// of an embedded runtime's entry function) need no `unsafe` in the caller's code.
pub struct FixedStorage<M, B, const RPCS: usize, const PEERS: usize, const ENDED: usize> {
    rpcs: [RpcSlot<M, B>; RPCS],
    rpc_index: [[Bucket; 2]; RPCS],
    timers: [TimerNode; RPCS],
    order: [[Node; RPCS]; 2],
    acks: [AckNode; RPCS],
    peers: [PeerSlot; PEERS],
    peer_index: [[Bucket; 2]; PEERS],
    peer_order: [Node; PEERS],
    ended: [EndedEntry; ENDED],
    ended_chains: [Chain; ENDED],
}

impl<M, B, const RPCS: usize, const PEERS: usize, const ENDED: usize>
    FixedStorage<M, B, RPCS, PEERS, ENDED>
{
    /// Empty tables.
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(
                RPCS.is_power_of_two() && PEERS.is_power_of_two() && ENDED.is_power_of_two(),
                "the sizes of the tables must be powers of two"
            );
            assert!(RPCS >= 2 && PEERS >= 2 && ENDED >= 2);
        }
        Self {
            rpcs: [const { RpcSlot::new() }; RPCS],
            rpc_index: [[Bucket::EMPTY; 2]; RPCS],
            timers: [TimerNode::IDLE; RPCS],
            order: [[Node::OUT; RPCS]; 2],
            acks: [AckNode::FREE; RPCS],
            peers: [const { PeerSlot::new() }; PEERS],
            peer_index: [[Bucket::EMPTY; 2]; PEERS],
            peer_order: [Node::OUT; PEERS],
            ended: [const { EndedEntry::NONE }; ENDED],
            ended_chains: [Chain::EMPTY; ENDED],
        }
    }

    /// The tables, for [`Endpoint::new`](crate::Endpoint::new).
    pub fn storage(&mut self) -> Storage<'_, M, B> {
        let [send_order, grant_order] = &mut self.order;
        Storage {
            rpcs: Slice::Borrowed(&mut self.rpcs),
            rpc_index: Slice::Borrowed(self.rpc_index.as_flattened_mut()),
            timers: Slice::Borrowed(&mut self.timers),
            send_order: Slice::Borrowed(send_order),
            grant_order: Slice::Borrowed(grant_order),
            acks: Slice::Borrowed(&mut self.acks),
            peers: Slice::Borrowed(&mut self.peers),
            peer_index: Slice::Borrowed(self.peer_index.as_flattened_mut()),
            peer_order: Slice::Borrowed(&mut self.peer_order),
            ended: Slice::Borrowed(&mut self.ended),
            ended_chains: Slice::Borrowed(&mut self.ended_chains),
        }
    }
}

impl<M, B, const RPCS: usize, const PEERS: usize, const ENDED: usize> Default
    for FixedStorage<M, B, RPCS, PEERS, ENDED>
{
    fn default() -> Self {
        Self::new()
    }
}

/// A table for a test, with or without `alloc`.
#[cfg(test)]
pub(crate) fn test_table<T: Default>(len: usize) -> Slice<'static, T> {
    let elements: std::vec::Vec<T> = std::iter::repeat_with(T::default).take(len).collect();
    Slice::Borrowed(elements.leak())
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use super::*;

    #[test]
    fn borrowed_and_boxed_are_alike() {
        let mut memory = [1, 2, 3];
        let mut next = 0;
        let mut count = || {
            next += 1;
            next
        };
        let (mut lent, mut boxed) = (Slice::from(&mut memory[..]), Slice::boxed(3, &mut count));
        for slice in [&mut lent, &mut boxed] {
            assert_eq!(**slice, [1, 2, 3]);
            slice.reverse();
            assert_eq!(**slice, [3, 2, 1]);
        }
        assert_eq!(memory, [3, 2, 1]);
    }
}
