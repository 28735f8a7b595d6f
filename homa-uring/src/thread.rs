//! Which thread this is.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other thread of the process has, or has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadId(u64);

/// Cheaper than [`std::thread::current`], and this is asked for in each call.
pub(crate) fn current() -> ThreadId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    ThreadId(ID.with(|id| *id))
}
