//! Waking a thread that sleeps on its socket, from another thread.
//!
//! Nothing is asked of the system while the thread is awake: the news waits in a flag. Only when
//! it sleeps, or is about to, a byte goes through a pipe that it watches beside its socket.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use mio::unix::pipe;

/// The thread is awake and knows all.
const AWAKE: u8 = 0;
/// It sleeps or is about to.
const ASLEEP: u8 = 1;
/// There is news that it has not taken yet.
const NEWS: u8 = 2;

struct Inner {
    state: AtomicU8,
    sender: pipe::Sender,
}

/// Tells the thread that there is news.
#[derive(Clone)]
pub(crate) struct Waker(Arc<Inner>);

impl Waker {
    /// Call it after the news can be found. Costs a system call only if the thread sleeps.
    pub(crate) fn wake(&self) {
        if self.0.state.swap(NEWS, Ordering::AcqRel) == ASLEEP {
            // Interrupted, or full: then it is readable already.
            while let Err(error) = (&self.0.sender).write(&[1]) {
                if error.kind() != ErrorKind::Interrupted {
                    break;
                }
            }
        }
    }
}

/// The side of the thread that is woken.
pub(crate) struct Sleeper {
    waker: Waker,
    receiver: pipe::Receiver,
    /// Since [`prepare`](Self::prepare): who finds the thread so writes a byte.
    asleep: bool,
    /// Bytes that have been written, or will be in a moment, and have not been read.
    owed: usize,
    /// Bytes ever written.
    wakes: u64,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, receiver) = pipe::new()?;
        let state = AtomicU8::new(AWAKE);
        Ok(Self {
            waker: Waker(Arc::new(Inner { state, sender })),
            receiver,
            asleep: false,
            owed: 0,
            wakes: 0,
        })
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// How often a sleeping thread was told of news.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes
    }

    /// Whether the thread may sleep; from now on news makes the pipe readable. `false`: there is
    /// news already, to be [taken](Self::take) first.
    pub(crate) fn prepare(&mut self) -> bool {
        let state = &self.waker.0.state;
        if !self.asleep {
            self.asleep = state
                .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
            return self.asleep;
        }
        state.load(Ordering::Acquire) == ASLEEP
    }

    /// The thread is awake. Tells whether there was news since the last call.
    pub(crate) fn take(&mut self) -> bool {
        let state = &self.waker.0.state;
        let news = match state.load(Ordering::Relaxed) {
            AWAKE => false,
            _ => state.swap(AWAKE, Ordering::AcqRel) == NEWS,
        };
        if news && self.asleep {
            self.owed += 1;
            self.wakes += 1;
        }
        self.asleep = false;
        if self.owed > 0
            && let Ok(read) = (&self.receiver).read(&mut [0; 8])
        {
            self.owed = self.owed.saturating_sub(read);
        }
        news
    }
}

impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps until the pipe is readable; `false` after a time that only a lost wake-up takes.
    fn sleep(sleeper: &Sleeper) -> bool {
        use std::os::fd::AsRawFd;
        let mut poll = libc::pollfd {
            fd: sleeper.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 10_000) == 1 }
    }

    #[test]
    fn no_news_is_lost_and_the_pipe_is_never_left_readable() {
        const ROUNDS: usize = 20_000;
        let mut sleeper = Sleeper::new().unwrap();
        let told = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let tellers: Vec<_> = (0..2)
            .map(|_| {
                let (waker, told) = (sleeper.waker(), Arc::clone(&told));
                std::thread::spawn(move || {
                    for i in 0..ROUNDS {
                        told.fetch_add(1, Ordering::Relaxed);
                        waker.wake();
                        if i % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        while told.load(Ordering::Relaxed) < 2 * ROUNDS {
            if sleeper.prepare() {
                assert!(sleep(&sleeper), "a wake-up was lost");
            }
            sleeper.take();
        }
        for teller in tellers {
            teller.join().unwrap();
        }
        while sleeper.take() || sleeper.owed > 0 {}
        assert!(!sleeper.take() && sleeper.prepare() && sleeper.prepare());
        assert_eq!(
            (&sleeper.receiver).read(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }

    #[test]
    fn news_costs_a_system_call_only_when_the_thread_sleeps() {
        let mut sleeper = Sleeper::new().unwrap();
        let waker = sleeper.waker();
        let written = |sleeper: &Sleeper| (&sleeper.receiver).read(&mut [0; 8]).unwrap_or(0);
        waker.wake();
        waker.wake();
        assert_eq!(written(&sleeper), 0);
        assert!(!sleeper.prepare());
        assert!(sleeper.take() && !sleeper.take());
        assert!(sleeper.prepare());
        waker.wake();
        waker.wake();
        assert!(!sleeper.prepare());
        assert_eq!(written(&sleeper), 1);
    }
}
