//! One ring's requests: what is under way, what has come of it, and the memory for it.

use std::collections::VecDeque;
use std::io;

use homa_mio::sys::BATCH;
use io_uring::cqueue;

use crate::buffers::{Buffers, PAYLOAD};
use crate::kernel::Completion;
use crate::sends::Sends;
use crate::tether::Tether;

/// The most requests for one reception that are under way at once, where there is no multishot.
pub(crate) const SINGLES: u16 = 16;

/// What a request is for, in the top byte of its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Send = 1,
    Receive,
    ReceiveOnce,
    Writable,
    Wake,
    Cancel,
    Hush,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Send,
        Self::Receive,
        Self::ReceiveOnce,
        Self::Writable,
        Self::Wake,
        Self::Cancel,
        Self::Hush,
    ];
    const SHIFT: u32 = 56;

    pub(crate) fn tag(self, rest: u64) -> u64 {
        debug_assert_eq!(rest >> Self::SHIFT, 0);
        (self as u64) << Self::SHIFT | rest
    }

    fn of(tag: u64) -> Option<(Self, u64)> {
        let kind = (tag >> Self::SHIFT) as usize;
        let kind = Self::ALL.get(kind.checked_sub(1)?)?;
        Some((*kind, tag & ((1 << Self::SHIFT) - 1)))
    }
}

/// Something that has been received, or why nothing was.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// In this buffer, with this result.
    Datagrams {
        buffer: u16,
        result: usize,
    },
    Error(i32),
}

/// A call to send under way.
pub(crate) struct Sending {
    /// Tells its requests from those that an earlier call has left behind.
    generation: u64,
    /// Requests of this call, from the first, that end with a result.
    pub(crate) count: usize,
    /// Those among them that have not ended.
    pub(crate) left: usize,
    /// How they ended: a length, or the negative of an error code.
    pub(crate) results: [i32; BATCH],
    /// Requests that the kernel did not take lie in the queue, spoilt.
    pub(crate) spoilt: bool,
}

impl Sending {
    const fn new() -> Self {
        Self {
            generation: 0,
            count: 0,
            left: 0,
            results: [0; BATCH],
            spoilt: false,
        }
    }

    /// Begins a call.
    pub(crate) fn start(&mut self) {
        self.generation = (self.generation + 1) & 0xffff_ffff;
        self.count = 0;
        self.left = 0;
    }

    /// The tag of the next request.
    pub(crate) fn next_tag(&self) -> u64 {
        Kind::Send.tag(self.generation << 16 | self.count as u64)
    }

    /// That request is queued.
    pub(crate) fn queued(&mut self) {
        // In case it is not taken.
        self.results[self.count] = -libc::ENOBUFS;
        self.count += 1;
        self.left += 1;
    }

    /// The last `count` requests will not be taken.
    pub(crate) fn give_up(&mut self, count: usize) {
        self.count -= count;
        self.left -= count;
        self.spoilt |= count > 0;
    }

    fn ended(&mut self, tag: u64, result: i32) {
        let at = (tag & 0xffff) as usize;
        if tag >> 16 == self.generation && at < self.count {
            self.results[at] = result;
            self.left -= 1;
        }
    }
}

/// What a completion brought beside what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    None,
    /// There was no buffer to receive into.
    NoBuffers,
    /// The kernel has no multishot, and says so by this code.
    NoMultishot(i32),
}

/// All that belongs to one ring. Its memory is given back by [`free`](Self::free) alone.
pub(crate) struct Live {
    pub(crate) buffers: Buffers,
    pub(crate) sends: Sends,
    pub(crate) tether: Tether,
    /// Whether buffers are in the kernel's list, for multishot, or lent one by one.
    pub(crate) multishot: bool,
    /// Received and not handed out.
    pub(crate) arrived: VecDeque<Arrival>,
    /// Buffers handed out by the last call to receive.
    pub(crate) held: Vec<u16>,
    /// Buffers that wait to be lent.
    pub(crate) free: Vec<u16>,
    /// Buffers that are lent.
    pub(crate) lent: usize,
    /// The multishot request is under way.
    pub(crate) receiving: bool,
    /// Something has been received.
    pub(crate) proven: bool,
    /// A request that tells when the socket is writable is under way.
    pub(crate) watching: bool,
    /// A request that tells of the waker is under way.
    pub(crate) wakeable: bool,
    /// The kernel cannot cancel.
    pub(crate) cancel_failed: bool,
    pub(crate) sending: Sending,
}

impl Live {
    pub(crate) fn new(buffers: Buffers, sends: Sends, tether: Tether, multishot: bool) -> Self {
        let count = buffers.count();
        Self {
            buffers,
            sends,
            tether,
            multishot,
            // One for each buffer, and the error that each request may end with.
            arrived: VecDeque::with_capacity(usize::from(count) + usize::from(SINGLES)),
            held: Vec::with_capacity(BATCH),
            free: if multishot {
                Vec::new()
            } else {
                (0..count).collect()
            },
            lent: 0,
            receiving: false,
            proven: false,
            watching: false,
            wakeable: false,
            cancel_failed: false,
            sending: Sending::new(),
        }
    }

    /// Requests that the kernel has, or that are queued for it.
    pub(crate) fn under_way(&self) -> usize {
        let others = [self.receiving, self.watching, self.wakeable];
        let others = others.into_iter().filter(|&is| is).count();
        self.lent + self.sending.left + others
    }

    /// Takes in a completion.
    pub(crate) fn complete(&mut self, completion: Completion) -> News {
        let Completion { tag, result, .. } = completion;
        match Kind::of(tag) {
            Some((Kind::Send, rest)) => self.sending.ended(rest, result),
            Some((Kind::Receive, _)) => return self.received(completion),
            Some((Kind::ReceiveOnce, buffer)) => self.received_once(buffer as u16, result),
            Some((Kind::Writable, _)) => self.watching = false,
            Some((Kind::Wake, _)) => self.wakeable = false,
            Some((Kind::Cancel, _)) => self.cancel_failed |= result == -libc::EINVAL,
            Some((Kind::Hush, _)) => {}
            None => debug_assert!(false, "a completion of no request: {completion:?}"),
        }
        News::None
    }

    fn received(&mut self, completion: Completion) -> News {
        let Completion { result, flags, .. } = completion;
        if !cqueue::more(flags) {
            self.receiving = false;
        }
        let buffer = cqueue::buffer_select(flags).filter(|&id| self.buffers.take(id));
        match (buffer, usize::try_from(result)) {
            (Some(buffer), Ok(result)) if result >= PAYLOAD => {
                self.proven = true;
                let arrival = Arrival::Datagrams { buffer, result };
                self.arrived.push_back(arrival);
            }
            (Some(buffer), _) => self.buffers.give(buffer),
            _ => {}
        }
        match -result {
            libc::ENOBUFS => return News::NoBuffers,
            code @ (libc::EINVAL | libc::EOPNOTSUPP) if !self.proven => {
                return News::NoMultishot(code);
            }
            // The end of what was cancelled, or taken back, is no news of the socket's.
            libc::ECANCELED => {}
            code if code > 0 => self.arrived.push_back(Arrival::Error(code)),
            _ => {}
        }
        News::None
    }

    fn received_once(&mut self, buffer: u16, result: i32) {
        if !self.buffers.take(buffer) {
            debug_assert!(false, "a reception into buffer {buffer}, which is not lent");
            return;
        }
        self.lent -= 1;
        match usize::try_from(result) {
            Ok(result) => {
                let arrival = Arrival::Datagrams { buffer, result };
                self.arrived.push_back(arrival);
            }
            Err(_) => {
                self.free.push(buffer);
                if result != -libc::ECANCELED {
                    self.arrived.push_back(Arrival::Error(-result));
                }
            }
        }
    }

    /// Lets the kernel have the buffers that were handed out.
    pub(crate) fn release(&mut self) {
        for buffer in self.held.drain(..) {
            if self.multishot {
                self.buffers.give(buffer);
            } else {
                self.free.push(buffer);
            }
        }
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// The kernel has let go of the ring, or has no request and is closed.
    pub(crate) unsafe fn free(self) {
        // SAFETY: as the caller promises.
        unsafe { self.buffers.free() };
        // SAFETY: as the caller promises.
        unsafe { self.sends.free() };
    }
}

/// The error that a request ended with, or that a call returned.
pub(crate) fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}
