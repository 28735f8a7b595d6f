//! Tables of fixed capacity, in the caller's memory or boxed once.

#[cfg(feature = "alloc")]
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// "No index": ends lists and marks empty places. No table is long enough to reach it.
pub(crate) const NIL: u32 = u32::MAX;

/// A table of fixed length: lent by the caller, or boxed once.
#[derive(Debug)]
pub enum Slice<'a, T> {
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
    pub fn boxed(len: usize, element: impl FnMut() -> T) -> Self {
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
