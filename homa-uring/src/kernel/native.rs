//! The calls themselves.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{BufRingEntry, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, squeue};

use super::{Completion, Kernel, Need, Rung, Setup};

/// The operating system's rings.
#[derive(Default)]
pub struct Native(Option<IoUring>);

impl Native {
    fn ring(&mut self) -> io::Result<&mut IoUring> {
        let none = || io::Error::from_raw_os_error(libc::EBADF);
        self.0.as_mut().ok_or_else(none)
    }
}

// SAFETY: these are the kernel's own rings, through the crate `io-uring`.
unsafe impl Kernel for Native {
    fn setup(&mut self, setup: Setup) -> io::Result<()> {
        self.0 = None;
        let mut builder = IoUring::builder();
        builder
            .setup_cqsize(setup.completions)
            .setup_r_disabled()
            .dontfork();
        match setup.rung {
            Rung::Deferred => builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all(),
            Rung::Cooperative => builder
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all(),
            Rung::Plain => &mut builder,
        };
        self.0 = Some(builder.build(setup.entries)?);
        Ok(())
    }

    fn has(&self, need: Need) -> bool {
        let Some(ring) = &self.0 else {
            return false;
        };
        let parameters = ring.params();
        match need {
            Need::NoDrop => parameters.is_feature_nodrop(),
            Need::FastPoll => parameters.is_feature_fast_poll(),
            Need::ExtArg => parameters.is_feature_ext_arg(),
        }
    }

    fn register_files(&mut self, files: &[RawFd]) -> io::Result<()> {
        self.ring()?.submitter().register_files(files)
    }

    fn unregister_files(&mut self) -> io::Result<()> {
        self.ring()?.submitter().unregister_files()
    }

    unsafe fn register_buffers(
        &mut self,
        list: *const BufRingEntry,
        entries: u16,
    ) -> io::Result<()> {
        let submitter = self.ring()?.submitter();
        // SAFETY: list and buffers stay, as the caller promises.
        unsafe { submitter.register_buf_ring_with_flags(list as u64, entries, 0, 0) }
    }

    fn enable(&mut self) -> io::Result<()> {
        self.ring()?.submitter().register_enable_rings()
    }

    unsafe fn push(&mut self, entry: squeue::Entry) -> bool {
        let Some(ring) = &mut self.0 else {
            return false;
        };
        // SAFETY: what it points to stays, as the caller promises.
        unsafe { ring.submission().push(&entry) }.is_ok()
    }

    fn queued(&mut self) -> usize {
        self.0.as_mut().map_or(0, |ring| ring.submission().len())
    }

    fn enter(&mut self, submit: u32, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let ring = self.ring()?;
        let queue = ring.submission();
        let to_run = want > 0 || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        let submitter = ring.submitter();
        let Some(timeout) = timeout else {
            let flags = match to_run {
                true => EnterFlags::GETEVENTS.bits(),
                false => 0,
            };
            // SAFETY: with these flags the argument is a signal mask, and there is none.
            unsafe { submitter.enter::<libc::sigset_t>(submit, want, flags, None) }?;
            return Ok(());
        };
        let timeout = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timeout);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: with these flags the argument is what it is, and it lives through the call.
        unsafe { submitter.enter(submit, want, flags.bits(), Some(&arguments)) }?;
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let entry = self.0.as_mut()?.completion().next()?;
        Some(Completion {
            tag: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        })
    }

    fn has_next(&mut self) -> bool {
        let ring = self.0.as_mut();
        ring.is_some_and(|ring| !ring.completion().is_empty())
    }

    fn calls(&mut self) -> bool {
        let ring = self.0.as_mut();
        ring.is_some_and(|ring| ring.submission().taskrun())
    }

    fn overflown(&mut self) -> bool {
        let ring = self.0.as_mut();
        ring.is_some_and(|ring| ring.submission().cq_overflow())
    }

    fn register_bell(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let ring = self.ring()?;
        ring.completion().disable_eventfd();
        ring.submitter().register_eventfd(bell.as_raw_fd())
    }

    fn listen(&mut self) {
        if let Some(ring) = &mut self.0 {
            ring.completion().enable_eventfd();
        }
    }

    fn close(&mut self) {
        self.0 = None;
    }
}
