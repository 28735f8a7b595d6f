//! What an event loop watches to see whether a ring has something to tell.
//!
//! The ring itself will not do: a ring whose completions are deferred is not readable before
//! somebody asks for them. It does ring a bell, though, and the bell stays the same when the ring
//! is made anew.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd.
pub(crate) struct Bell {
    event: OwnedFd,
    /// Somebody may be watching.
    watched: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it has just been opened, and nobody else knows it.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        Ok(Self {
            event,
            watched: AtomicBool::new(false),
        })
    }

    /// Whether somebody watches, so that the kernel is to ring it.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// From now on somebody watches. The kernel does not know yet: so it rings once, and whoever
    /// comes to look tells the kernel.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        if !self.watched.swap(true, Ordering::Relaxed) {
            let one = 1_u64;
            // SAFETY: eight bytes of a live integer.
            unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
        self.event.as_fd()
    }

    /// For the kernel.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Silences it, before it is looked what there is.
    pub(crate) fn silence(&self) {
        let mut count = 0_u64;
        // SAFETY: room for the eight bytes that are read; if it is silent there are none.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}
