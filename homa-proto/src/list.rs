//! Doubly linked lists threaded through the entries of a table: O(1), no memory of their own.

use core::ops::{Index, IndexMut};

use crate::storage::{NIL, Slice};

/// `prev` of an entry that is in no list.
const OUT: u32 = NIL - 1;

/// Neighbours of an entry in one of its lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    pub(crate) const OUT: Self = Self {
        prev: OUT,
        next: NIL,
    };

    /// Whether the entry is in a list.
    #[inline]
    pub(crate) const fn is_listed(&self) -> bool {
        self.prev != OUT
    }
}

/// Both ends of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
        len: 0,
    };

    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }
}

/// Entries in the reverse order of their coming. To push or pop one touches no other entry, which is in no
/// cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    top: u32,
    len: u32,
}

impl Stack {
    pub(crate) const EMPTY: Self = Self { top: NIL, len: 0 };

    pub(crate) fn is_empty(&self) -> bool {
        self.top == NIL
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }
}

/// An entry with links for several lists; in each dimension `D` it is in at most one list.
pub(crate) trait Linked {
    fn link(&self, dim: usize) -> &Link;
    fn link_mut(&mut self, dim: usize) -> &mut Link;
}

/// A table of fixed capacity, addressed by `u32`.
pub(crate) struct Table<'a, T> {
    entries: Slice<'a, T>,
}

impl<'a, T> Table<'a, T> {
    pub(crate) fn new(entries: Slice<'a, T>) -> Self {
        Self { entries }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter_mut(&mut self) -> core::slice::IterMut<'_, T> {
        self.entries.iter_mut()
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn iter(&self) -> core::slice::Iter<'_, T> {
        self.entries.iter()
    }

    /// Not `get`: the lint against indexing would then forbid the functions below.
    pub(crate) fn lookup(&self, idx: u32) -> Option<&T> {
        self.entries.get(idx as usize)
    }

    pub(crate) fn lookup_mut(&mut self, idx: u32) -> Option<&mut T> {
        self.entries.get_mut(idx as usize)
    }
}

// The one place where a table is indexed. Every index in the core comes from the table itself
// (free list, hash index, lists, trees), never from the network or the caller.
#[allow(clippy::indexing_slicing, reason = "see above")]
impl<T> Index<u32> for Table<'_, T> {
    type Output = T;
    #[inline]
    fn index(&self, idx: u32) -> &T {
        &self.entries[idx as usize]
    }
}

#[allow(clippy::indexing_slicing, reason = "see above")]
impl<T> IndexMut<u32> for Table<'_, T> {
    #[inline]
    fn index_mut(&mut self, idx: u32) -> &mut T {
        &mut self.entries[idx as usize]
    }
}

impl<T: Linked> Table<'_, T> {
    /// Whether `idx` is in a list of dimension `dim`.
    pub(crate) fn is_listed(&self, dim: usize, idx: u32) -> bool {
        self[idx].link(dim).is_listed()
    }

    /// Appends `idx` unless it is in a list of this dimension already.
    pub(crate) fn push_back(&mut self, list: &mut List, dim: usize, idx: u32) {
        let link = self[idx].link_mut(dim);
        if link.is_listed() {
            return;
        }
        *link = Link {
            prev: list.tail,
            next: NIL,
        };
        if list.tail == NIL {
            list.head = idx;
        } else {
            self[list.tail].link_mut(dim).next = idx;
        }
        list.tail = idx;
        list.len = list.len.wrapping_add(1);
    }

    /// Prepends `idx` unless it is in a list of this dimension already.
    pub(crate) fn push_front(&mut self, list: &mut List, dim: usize, idx: u32) {
        let link = self[idx].link_mut(dim);
        if link.is_listed() {
            return;
        }
        *link = Link {
            prev: NIL,
            next: list.head,
        };
        if list.head == NIL {
            list.tail = idx;
        } else {
            self[list.head].link_mut(dim).prev = idx;
        }
        list.head = idx;
        list.len = list.len.wrapping_add(1);
    }

    /// Puts `idx` on a stack unless it is in a list of this dimension, or on a stack, already.
    pub(crate) fn push(&mut self, stack: &mut Stack, dim: usize, idx: u32) {
        let link = self[idx].link_mut(dim);
        if link.is_listed() {
            return;
        }
        *link = Link {
            prev: NIL,
            next: stack.top,
        };
        stack.top = idx;
        stack.len = stack.len.wrapping_add(1);
    }

    pub(crate) fn pop(&mut self, stack: &mut Stack, dim: usize) -> Option<u32> {
        let idx = stack.top;
        if idx == NIL {
            return None;
        }
        let link = self[idx].link_mut(dim);
        stack.top = core::mem::replace(link, Link::OUT).next;
        stack.len = stack.len.wrapping_sub(1);
        Some(idx)
    }

    /// Takes `idx` out of `list`, if it is in it.
    pub(crate) fn unlink(&mut self, list: &mut List, dim: usize, idx: u32) {
        let link = self[idx].link_mut(dim);
        let Link { prev, next } = *link;
        if prev == OUT {
            return;
        }
        *link = Link::OUT;
        if prev == NIL {
            list.head = next;
        } else {
            self[prev].link_mut(dim).next = next;
        }
        if next == NIL {
            list.tail = prev;
        } else {
            self[next].link_mut(dim).prev = prev;
        }
        list.len = list.len.wrapping_sub(1);
    }

    pub(crate) fn pop_front(&mut self, list: &mut List, dim: usize) -> Option<u32> {
        let idx = list.first()?;
        let link = self[idx].link_mut(dim);
        list.head = core::mem::replace(link, Link::OUT).next;
        if list.head == NIL {
            list.tail = NIL;
        } else {
            self[list.head].link_mut(dim).prev = NIL;
        }
        list.len = list.len.wrapping_sub(1);
        Some(idx)
    }

    /// The entry after `idx`.
    pub(crate) fn next(&self, dim: usize, idx: u32) -> Option<u32> {
        let next = self[idx].link(dim).next;
        (next != NIL).then_some(next)
    }

    /// Walks a stack; its length.
    #[cfg(any(test, feature = "check"))]
    #[allow(
        clippy::arithmetic_side_effects,
        reason = "checks never run in production"
    )]
    pub(crate) fn check_stack(&self, stack: &Stack, dim: usize) -> Result<usize, &'static str> {
        let (mut at, mut n) = (stack.top, 0usize);
        while at != NIL {
            n += 1;
            if n > self.len() {
                return Err("a stack runs in a circle");
            }
            at = self[at].link(dim).next;
        }
        if n != stack.len() {
            return Err("a stack's length is wrong");
        }
        Ok(n)
    }

    /// Walks `list` and verifies its links; its length.
    #[cfg(any(test, feature = "check"))]
    #[allow(
        clippy::arithmetic_side_effects,
        reason = "checks never run in production"
    )]
    pub(crate) fn check_list(&self, list: &List, dim: usize) -> Result<usize, &'static str> {
        let (mut prev, mut at, mut n) = (NIL, list.head, 0usize);
        while at != NIL {
            if self[at].link(dim).prev != prev {
                return Err("a list's links disagree");
            }
            n += 1;
            if n > self.len() {
                return Err("a list runs in a circle");
            }
            prev = at;
            at = self[at].link(dim).next;
        }
        if prev != list.tail || n != list.len as usize {
            return Err("a list's end or length is wrong");
        }
        Ok(n)
    }
}
