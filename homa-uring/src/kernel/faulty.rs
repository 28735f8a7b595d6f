//! Calls that fail as they do in the field, for tests.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fixed};
use io_uring::{opcode, squeue};

use super::{Completion, Kernel, Native, Need, Setup};

/// Decides what fails, each time with this error code.
///
/// # Safety
/// [`completion`](Self::completion) neither changes a tag, nor tells of an end that has not come or of a buffer that
/// the kernel has not filled.
pub unsafe trait Plan {
    /// Before a ring is made; what is asked for can be changed.
    fn setup(&mut self, setup: &mut Setup) -> Option<i32> {
        let _ = setup;
        None
    }

    /// Whether the ring is not capable of this.
    fn lacks(&self, need: Need) -> bool {
        let _ = need;
        false
    }

    /// Before the ring is given files.
    fn register_files(&mut self) -> Option<i32> {
        None
    }

    /// Before the ring is given buffers.
    fn register_buffers(&mut self) -> Option<i32> {
        None
    }

    /// Before the ring is opened.
    fn enable(&mut self) -> Option<i32> {
        None
    }

    /// Before the request with this tag is queued: the flags of a request that is queued in its
    /// place and is sure to fail with `EBADF`.
    fn spoil(&mut self, tag: u64) -> Option<squeue::Flags> {
        let _ = tag;
        None
    }

    /// Before the kernel is entered with so many requests, which can be made fewer.
    fn enter(&mut self, submit: &mut u32) -> Option<i32> {
        let _ = submit;
        None
    }

    /// Whether a ring that is closed goes away; else it stays, at work, to the end of the process.
    fn closes(&mut self) -> bool {
        true
    }

    /// After a completion has been taken.
    fn completion(&mut self, completion: &mut Completion) {
        let _ = completion;
    }
}

/// Calls of `K` that go wrong as `P` has it.
#[derive(Default)]
pub struct Faulty<P, K = Native> {
    plan: P,
    kernel: K,
}

impl<P: Plan> Faulty<P> {
    /// The operating system's rings, with faults.
    pub fn new(plan: P) -> Self {
        Self {
            plan,
            kernel: Native::default(),
        }
    }
}

/// A place where no ring has a file.
const NO_FILE: Fixed = Fixed(1 << 20);

fn fail(code: Option<i32>) -> io::Result<()> {
    code.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
}

// SAFETY: `K` keeps to it, and `P` does not change what counts.
unsafe impl<P: Plan, K: Kernel + Default> Kernel for Faulty<P, K> {
    fn setup(&mut self, mut setup: Setup) -> io::Result<()> {
        fail(self.plan.setup(&mut setup))?;
        self.kernel.setup(setup)
    }

    fn has(&self, need: Need) -> bool {
        !self.plan.lacks(need) && self.kernel.has(need)
    }

    fn register_files(&mut self, files: &[RawFd]) -> io::Result<()> {
        fail(self.plan.register_files())?;
        self.kernel.register_files(files)
    }

    fn unregister_files(&mut self) -> io::Result<()> {
        self.kernel.unregister_files()
    }

    unsafe fn register_buffers(
        &mut self,
        list: *const BufRingEntry,
        entries: u16,
    ) -> io::Result<()> {
        fail(self.plan.register_buffers())?;
        // SAFETY: as the caller promises.
        unsafe { self.kernel.register_buffers(list, entries) }
    }

    fn enable(&mut self) -> io::Result<()> {
        fail(self.plan.enable())?;
        self.kernel.enable()
    }

    unsafe fn push(&mut self, entry: squeue::Entry) -> bool {
        let tag = entry.get_user_data();
        let entry = match self.plan.spoil(tag) {
            Some(flags) => opcode::PollAdd::new(NO_FILE, 0)
                .build()
                .user_data(tag)
                .flags(flags),
            None => entry,
        };
        // SAFETY: as the caller promises; the other request points to nothing.
        unsafe { self.kernel.push(entry) }
    }

    fn queued(&mut self) -> usize {
        self.kernel.queued()
    }

    fn enter(&mut self, submit: u32, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let mut fewer = submit;
        fail(self.plan.enter(&mut fewer))?;
        // Who hands over less than asked does not wait.
        let want = if fewer < submit { 0 } else { want };
        self.kernel.enter(fewer, want, timeout)
    }

    fn next(&mut self) -> Option<Completion> {
        let mut completion = self.kernel.next()?;
        self.plan.completion(&mut completion);
        Some(completion)
    }

    fn has_next(&mut self) -> bool {
        self.kernel.has_next()
    }

    fn calls(&mut self) -> bool {
        self.kernel.calls()
    }

    fn overflown(&mut self) -> bool {
        self.kernel.overflown()
    }

    fn register_bell(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.kernel.register_bell(bell)
    }

    fn listen(&mut self) {
        self.kernel.listen();
    }

    fn close(&mut self) {
        if self.plan.closes() {
            self.kernel.close();
        } else {
            std::mem::forget(std::mem::take(&mut self.kernel));
        }
    }
}
