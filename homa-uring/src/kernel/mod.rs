//! The calls that a ring is made of, behind a trait.
//!
//! [`Native`] makes them. A test puts [`Faulty`] in between, which refuses and fails as kernels
//! do: too old, forbidden, out of memory, overrun.

mod faulty;
mod native;

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::squeue;
use io_uring::types::BufRingEntry;

pub use crate::buffers::received;
pub use faulty::{Faulty, Plan};
pub use native::Native;

/// How the kernel runs the second half of a request: what is left to do when a datagram has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rung {
    /// When the one thread that uses the ring asks for it (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// When that thread enters the kernel for whatever reason (`COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// At once, by interrupting the thread.
    Plain,
}

/// What a ring is to be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// How the kernel completes requests.
    pub rung: Rung,
    /// Requests that can be handed over at once.
    pub entries: u32,
    /// Completions that there is room for.
    pub completions: u32,
}

/// Something without which the driver cannot do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Completions that there is no room for are kept (`NODROP`, Linux 5.5).
    NoDrop,
    /// Requests that have to wait do so without a thread (`FAST_POLL`, Linux 5.7).
    FastPoll,
    /// Waiting with a timeout (`EXT_ARG`, Linux 5.11).
    ExtArg,
}

/// The end, or with some kinds one of several results, of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the request was tagged with.
    pub tag: u64,
    /// Its result, or the negative of an error code.
    pub result: i32,
    /// `IORING_CQE_F_…`
    pub flags: u32,
}

/// One ring at a time, and the calls to the kernel that serve it. Before [`setup`](Self::setup)
/// and after [`close`](Self::close) there is none: then all calls fail and there is nothing to
/// see.
///
/// # Safety
/// Memory is reused and given back by what these calls say. A completion is one that the kernel has made, of the
/// request with that tag, told once; [`queued`](Self::queued) counts requests that the kernel has not taken.
pub unsafe trait Kernel {
    /// Makes a ring, disabled, in place of the one before, which is closed.
    ///
    /// # Errors
    /// What the system says: `EINVAL` if it does not know the rung.
    fn setup(&mut self, setup: Setup) -> io::Result<()>;

    /// Whether the ring is capable of this.
    fn has(&self, need: Need) -> bool;

    /// Gives the ring these files, by their place in the list.
    ///
    /// # Errors
    /// What the system says.
    fn register_files(&mut self, files: &[RawFd]) -> io::Result<()>;

    /// Takes all files from the ring.
    ///
    /// # Errors
    /// What the system says.
    fn unregister_files(&mut self) -> io::Result<()>;

    /// Gives the ring a list of `entries` buffers as group 0, from which requests choose.
    ///
    /// # Errors
    /// What the system says: `EINVAL` if it knows no such thing.
    ///
    /// # Safety
    /// The list and the buffers in it stay until the kernel has let go of the ring.
    unsafe fn register_buffers(
        &mut self,
        list: *const BufRingEntry,
        entries: u16,
    ) -> io::Result<()>;

    /// Opens the ring for requests, for the thread that calls.
    ///
    /// # Errors
    /// What the system says.
    fn enable(&mut self) -> io::Result<()>;

    /// Queues a request. `false` if there is no room.
    ///
    /// # Safety
    /// What it points to stays, and is written to by nobody, until it is complete.
    unsafe fn push(&mut self, entry: squeue::Entry) -> bool;

    /// Requests that have been queued and that the kernel has not taken.
    fn queued(&mut self) -> usize;

    /// Hands over `submit` of the requests that are queued, then runs what waits to be run, then
    /// waits until there are `want` completions, or for `timeout`.
    ///
    /// # Errors
    /// What the system says: `ETIME` when the time is over, `EAGAIN` or `EBUSY` when it takes no
    /// requests now; which have been taken shows in [`queued`](Self::queued).
    fn enter(&mut self, submit: u32, want: u32, timeout: Option<Duration>) -> io::Result<()>;

    /// The next completion that is at hand.
    fn next(&mut self) -> Option<Completion>;

    /// Whether there is a completion at hand.
    fn has_next(&mut self) -> bool;

    /// Whether the kernel has set the flag that says that completions would be at hand after
    /// [`enter`](Self::enter).
    fn calls(&mut self) -> bool;

    /// Whether completions are kept because there is no room for them.
    fn overflown(&mut self) -> bool;

    /// Gives the ring a bell, an eventfd, that it rings when completions are at hand or would be
    /// after [`enter`](Self::enter), but not before [`listen`](Self::listen).
    ///
    /// # Errors
    /// What the system says.
    fn register_bell(&mut self, bell: BorrowedFd<'_>) -> io::Result<()>;

    /// Lets the bell ring from now on.
    fn listen(&mut self);

    /// Ends the ring. The kernel may still be at work for it afterwards.
    fn close(&mut self);
}
