//! Datagrams through a ring.
//!
//! One request receives until further notice, into buffers that the kernel chooses from a list.
//! Requests to send are handed over in order, linked, so that none overtakes one that fails, and
//! have ended when [`Ring::send`] returns. Whatever enters the kernel also collects what has been
//! received: under load one call serves both ways.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use homa_mio::sys::{BATCH, Incoming, Outgoing};
use homa_mio::{Feature, IoStats, Reason};
use io_uring::squeue::{self, Flags};
use io_uring::types::{CancelBuilder, Fd, Fixed};
use io_uring::{cqueue, opcode};

use crate::Unavailable;
use crate::buffers::Buffers;
use crate::kernel::{Completion, Kernel, Need, Rung, Setup};
use crate::sends::Sends;
use crate::tether::Tether;
use crate::thread::{self, ThreadId};

/// The place of the socket among the files of the ring.
const SOCKET: Fixed = Fixed(0);
/// The most requests for one reception that are under way at once, where there is no multishot.
const SINGLES: u16 = 16;
/// Room for requests: those to send, those to receive, and a few to wait and to cancel.
const ENTRIES: u32 = (BATCH as u32 + SINGLES as u32 + 8).next_power_of_two();
/// Tries to hand over requests that the kernel does not take now.
const SUBMIT_TRIES: u32 = 4;
/// How long to wait after those: it lacks memory.
const SUBMIT_PAUSE: Duration = Duration::from_micros(100);
/// How long dropping a ring waits for the kernel to let go of it, before memory is leaked.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// What a request is for, in the top byte of its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Send = 1,
    Receive,
    ReceiveOnce,
    Writable,
    Wake,
    Cancel,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Send,
        Self::Receive,
        Self::ReceiveOnce,
        Self::Writable,
        Self::Wake,
        Self::Cancel,
    ];

    fn tag(self, rest: u64) -> u64 {
        debug_assert!(rest >> 56 == 0);
        u64::from(self as u8) << 56 | rest
    }

    fn of(tag: u64) -> (Option<Self>, u64) {
        let kind = Self::ALL
            .into_iter()
            .find(|&kind| kind as u64 == tag >> 56);
        (kind, tag & ((1 << 56) - 1))
    }
}

/// Something that has been received, or why nothing was.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    /// Into this buffer, with this result.
    Datagrams { buffer: u16, result: usize },
    Error(i32),
}

/// A call to send under way.
struct Sending {
    /// Tells its requests from those that an earlier call has left behind.
    generation: u64,
    /// Requests that have not ended.
    left: usize,
    /// How they ended.
    results: [i32; BATCH],
}

/// All that belongs to one ring.
struct Live {
    buffers: Buffers,
    sends: Sends,
    tether: Tether,
    /// Received and not handed out.
    arrived: VecDeque<Arrival>,
    /// Buffers handed out by the last call to receive.
    held: Vec<u16>,
    /// Buffers that wait to be lent for one reception.
    free: Vec<u16>,
    /// The multishot request is under way.
    receiving: bool,
    /// A request that tells when the socket is writable is under way.
    watching: bool,
    /// Requests that the kernel has, or that are queued for it, except those to send.
    under_way: usize,
    /// Requests to send that the kernel did not take lie in the queue, spoilt.
    spoilt: bool,
    sending: Sending,
    /// What the first multishot request said if there is no such thing.
    refused: Option<i32>,
    /// Something has been received.
    proven: bool,
}

/// A ring that has been closed. The kernel may still be at work with its memory.
struct Grave {
    tether: Tether,
    buffers: Buffers,
    sends: Sends,
}

pub(crate) struct Ring<K: Kernel> {
    kernel: K,
    rung: Rung,
    buffer_count: u16,
    pub(crate) deferred: Feature,
    pub(crate) multishot: Feature,
    live: Option<Live>,
    /// The thread that uses the ring, once there is one.
    thread: Option<ThreadId>,
    graves: Vec<Grave>,
    pub(crate) calls: u64,
    pub(crate) rearmed: u64,
    pub(crate) buffers_short: u64,
    pub(crate) overflows: u64,
    pub(crate) submits_again: u64,
    pub(crate) moves: u64,
}

/// How a ring is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) buffers: u16,
    pub(crate) first_rung: Rung,
    pub(crate) multishot: bool,
}

impl<K: Kernel> Ring<K> {
    pub(crate) fn new(
        kernel: K,
        settings: Settings,
        socket: BorrowedFd<'_>,
    ) -> Result<Self, Unavailable> {
        let mut ring = Self {
            kernel,
            rung: settings.first_rung,
            buffer_count: settings.buffers,
            deferred: Feature::Off(Reason::Disabled),
            multishot: if settings.multishot {
                Feature::On
            } else {
                Feature::Off(Reason::Disabled)
            },
            live: None,
            thread: None,
            graves: Vec::new(),
            calls: 0,
            rearmed: 0,
            buffers_short: 0,
            overflows: 0,
            submits_again: 0,
            moves: 0,
        };
        if settings.first_rung == Rung::Deferred {
            ring.deferred = Feature::On;
        }
        ring.set_up(socket)?;
        Ok(ring)
    }

    // Making a ring.

    fn set_up(&mut self, socket: BorrowedFd<'_>) -> Result<(), Unavailable> {
        self.climb_down()?;
        for (need, what) in [
            (Need::NoDrop, "IORING_FEAT_NODROP (Linux 5.5)"),
            (Need::FastPoll, "IORING_FEAT_FAST_POLL (Linux 5.7)"),
            (Need::ExtArg, "IORING_FEAT_EXT_ARG (Linux 5.11)"),
        ] {
            if !self.kernel.has(need) {
                return Err(Unavailable::lacks(what));
            }
        }
        let mut buffers = Buffers::new(self.buffer_count).map_err(Unavailable::memory)?;
        let sends = Sends::new().map_err(Unavailable::memory)?;
        if self.multishot.is_on() {
            let (list, count) = (buffers.list().as_ptr(), buffers.count());
            // SAFETY: `Buffers` is freed only when the kernel has let go of the ring.
            match unsafe { self.kernel.register_buffers(list, count) } {
                Ok(()) => (0..count).for_each(|id| buffers.give(id)),
                Err(error) => {
                    self.multishot = Feature::Off(Reason::Refused(code_of(&error)));
                }
            }
        }
        let (tether, file) = Tether::new().map_err(Unavailable::memory)?;
        self.kernel
            .register_files(&[socket.as_raw_fd(), file.as_raw_fd()])
            .map_err(|error| Unavailable::refused("io_uring_register of files", &error))?;
        let multishot = self.multishot.is_on();
        let count = buffers.count();
        self.live = Some(Live {
            tether,
            arrived: VecDeque::with_capacity(usize::from(count) + usize::from(SINGLES)),
            held: Vec::with_capacity(BATCH),
            free: if multishot {
                Vec::new()
            } else {
                (0..count).collect()
            },
            receiving: false,
            watching: false,
            under_way: 0,
            spoilt: false,
            sending: Sending {
                generation: 0,
                left: 0,
                results: [0; BATCH],
            },
            refused: None,
            proven: false,
            buffers,
            sends,
        });
        Ok(())
    }

    /// Makes a ring of the best rung that the kernel knows.
    fn climb_down(&mut self) -> Result<(), Unavailable> {
        loop {
            let setup = Setup {
                rung: self.rung,
                entries: ENTRIES,
                // One for each buffer, and for each request that can be under way.
                completions: (u32::from(self.buffer_count) + ENTRIES).next_power_of_two(),
            };
            let Err(error) = self.kernel.setup(setup) else {
                return Ok(());
            };
            let lower = match self.rung {
                Rung::Deferred => Rung::Cooperative,
                Rung::Cooperative => Rung::Plain,
                Rung::Plain => return Err(Unavailable::refused("io_uring_setup", &error)),
            };
            if error.raw_os_error() != Some(libc::EINVAL) {
                return Err(Unavailable::refused("io_uring_setup", &error));
            }
            if self.rung == Rung::Deferred {
                self.deferred = Feature::Off(Reason::Refused(libc::EINVAL));
            }
            self.rung = lower;
        }
    }

    /// Sees to it that there is a ring that this thread may use.
    fn serve(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let here = thread::current();
        if self.thread == Some(here) && self.live.as_ref().is_some_and(|l| l.refused.is_none()) {
            return Ok(());
        }
        let live = self.live.as_ref().ok_or_else(broken)?;
        if let Some(code) = live.refused {
            self.multishot = Feature::Off(Reason::Refused(code));
            self.renew(socket)?;
        } else if self.thread.is_some() {
            self.moves += 1;
            self.renew(socket)?;
        }
        self.kernel.enable()?;
        self.thread = Some(here);
        Ok(())
    }

    /// Makes a ring in place of the present one. What that has received and not handed out is
    /// lost, as if by the network.
    fn renew(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.bury();
        self.graves.retain_mut(|_| true);
        let graves = mem::take(&mut self.graves);
        for grave in graves {
            if grave.tether.released(Some(Duration::ZERO)) {
                grave.open();
            } else {
                self.graves.push(grave);
            }
        }
        self.set_up(socket)?;
        Ok(())
    }

    /// Closes the ring. Its memory lies in a grave until the kernel has let go.
    fn bury(&mut self) {
        self.kernel.close();
        if let Some(live) = self.live.take() {
            self.graves.push(Grave {
                tether: live.tether,
                buffers: live.buffers,
                sends: live.sends,
            });
        }
    }

    // Entering the kernel.

    /// Enters the kernel once, or more often if it does not take what is queued.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        for _ in 0..SUBMIT_TRIES {
            self.calls += 1;
            self.overflows += u64::from(self.kernel.overflown());
            let result = self.kernel.enter(want as u32, timeout);
            // What it waits for may be that there is room for completions.
            self.reap();
            match result {
                Err(error) if is_busy(&error) => self.submits_again += 1,
                other => return other,
            }
        }
        std::thread::sleep(SUBMIT_PAUSE);
        Err(io::Error::from_raw_os_error(libc::ENOBUFS))
    }

    /// Takes in all completions that are at hand.
    fn reap(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        while let Some(completion) = self.kernel.next() {
            match live.complete(completion) {
                Ended::Well => {}
                Ended::NoBuffers => self.buffers_short += 1,
            }
        }
    }

    /// Queues a request. `false` if there is no room, or no ring.
    ///
    /// # Safety
    /// What it points to stays, and is written to by nobody, until it is complete.
    unsafe fn push(&mut self, entry: squeue::Entry) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.kernel.push(entry) }
    }

    // Receiving.

    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut [Incoming],
    ) -> io::Result<usize> {
        self.serve(socket)?;
        self.release();
        self.reap();
        self.arm();
        let idle = self.live.as_ref().is_some_and(|l| l.arrived.is_empty());
        if idle && self.kernel.attention() {
            match self.enter(0, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        let multishot = self.multishot.is_on();
        let live = self.live.as_mut().ok_or_else(broken)?;
        for place in into.iter_mut().take(BATCH) {
            let (buffer, result) = match live.arrived.front() {
                Some(&Arrival::Datagrams { buffer, result }) => (buffer, result),
                Some(&Arrival::Error(code)) if live.held.is_empty() => {
                    live.arrived.pop_front();
                    return Err(io::Error::from_raw_os_error(code));
                }
                // Told by the next call.
                _ => break,
            };
            live.arrived.pop_front();
            live.held.push(buffer);
            *place = if multishot {
                live.buffers.described(buffer, result)
            } else {
                live.buffers.described_single(buffer, result)
            };
        }
        if live.held.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(live.held.len())
    }

    /// The bytes of the `at`-th reception of the last call.
    pub(crate) fn bytes(&self, at: usize) -> &[u8] {
        let held = |live: &Live| live.held.get(at).copied();
        match self.live.as_ref().and_then(|live| Some((live, held(live)?))) {
            Some((live, buffer)) => live.buffers.payload(buffer),
            None => &[],
        }
    }

    pub(crate) fn has_received(&mut self) -> bool {
        let arrived = self.live.as_ref().is_some_and(|l| !l.arrived.is_empty());
        arrived || self.kernel.attention()
    }

    /// Lets the kernel have the buffers that were handed out.
    fn release(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        for buffer in live.held.drain(..) {
            if self.multishot.is_on() {
                live.buffers.give(buffer);
            } else {
                live.free.push(buffer);
            }
        }
    }

    /// Queues requests to receive as far as there are none.
    fn arm(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        if self.multishot.is_on() {
            let buffers_left = live.buffers.count() as usize > live.arrived.len();
            if live.receiving || !buffers_left || live.refused.is_some() {
                return;
            }
            let header = live.buffers.multishot_header().as_ptr();
            let entry = opcode::RecvMsgMulti::new(SOCKET, header, 0)
                .build()
                .user_data(Kind::Receive.tag(0));
            // SAFETY: the header is in `Buffers`, and never changes.
            if unsafe { self.kernel.push(entry) } {
                self.rearmed += u64::from(live.proven);
                live.receiving = true;
                live.under_way += 1;
            }
            return;
        }
        let limit = usize::from(SINGLES.min(live.buffers.count()));
        let mut lent = live.buffers.lent();
        while lent < limit
            && let Some(buffer) = live.free.pop()
        {
            let header = live.buffers.lend(buffer).as_ptr();
            let entry = opcode::RecvMsg::new(SOCKET, header)
                .build()
                .user_data(Kind::ReceiveOnce.tag(u64::from(buffer)));
            // SAFETY: header and buffer are in `Buffers`, and are left alone until it is complete.
            if !unsafe { self.kernel.push(entry) } {
                let taken = live.buffers.take(buffer);
                debug_assert!(taken);
                live.free.push(buffer);
                return;
            }
            lent += 1;
            live.under_way += 1;
        }
    }

    // Sending.

    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &[u8],
        batches: &[Outgoing],
    ) -> io::Result<usize> {
        self.serve(socket)?;
        self.drop_spoilt()?;
        let count = self.queue_sends(memory, batches);
        if count == 0 {
            // There is no room: nothing of the queue is taken.
            self.enter(0, None)?;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        let result = self.finish_sends(count);
        if let Err(error) = result {
            self.abandon_sends(count, &error)?;
        }
        let live = self.live.as_mut().ok_or_else(broken)?;
        let results = &live.sending.results[..count];
        let sent = results.iter().take_while(|&&result| result >= 0).count();
        match results.get(sent) {
            Some(&failed) if sent == 0 => {
                let error = io::Error::from_raw_os_error(-failed);
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.watch_writable();
                }
                Err(error)
            }
            _ => Ok(sent),
        }
    }

    /// Queues requests to send, each linked to the next. Returns how many.
    fn queue_sends(&mut self, memory: &[u8], batches: &[Outgoing]) -> usize {
        let Some(live) = &mut self.live else {
            return 0;
        };
        let room = ENTRIES as usize - self.kernel.queued().min(ENTRIES as usize);
        let count = batches.len().min(BATCH).min(room);
        let sending = &mut live.sending;
        sending.generation = (sending.generation + 1) & 0xffff_ffff;
        sending.results = [-libc::ECANCELED; BATCH];
        sending.left = 0;
        for (at, batch) in batches[..count].iter().enumerate() {
            let header = live.sends.write(at, memory, batch);
            let link = if at + 1 < count {
                Flags::IO_LINK
            } else {
                Flags::empty()
            };
            let entry = opcode::SendMsg::new(SOCKET, header.as_ptr())
                .flags(libc::MSG_DONTWAIT as u32)
                .build()
                .flags(link)
                .user_data(Kind::Send.tag(sending.generation << 16 | at as u64));
            // SAFETY: the header is in `Sends` and stays as it is, and the bytes are borrowed,
            // until `send` returns; by then it is complete, or spoilt.
            if !unsafe { self.kernel.push(entry) } {
                debug_assert!(false, "there was room");
                break;
            }
            sending.left += 1;
        }
        sending.left
    }

    /// Enters the kernel until all requests to send have ended. They do not wait for the socket,
    /// so nothing holds them up.
    fn finish_sends(&mut self, count: usize) -> io::Result<()> {
        // A single request ends while it is handed over.
        let mut want = if count > 1 { count } else { 0 };
        loop {
            match self.enter(want, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            want = self.live.as_ref().map_or(0, |live| live.sending.left);
            if want == 0 {
                return Ok(());
            }
        }
    }

    /// The kernel takes no more requests, or is of no use. Sees to it that it looks at none of
    /// the bytes any more.
    fn abandon_sends(&mut self, count: usize, error: &io::Error) -> io::Result<()> {
        let queued = self.kernel.queued().min(count);
        if let Some(live) = &mut self.live
            && error.raw_os_error() == Some(libc::ENOBUFS)
        {
            // The last that were queued are the last to be taken.
            for at in count - queued..count {
                live.sends.spoil(at);
            }
            live.spoilt = queued > 0;
            live.sending.left -= queued;
            if live.sending.left == 0 {
                return Ok(());
            }
            // What has been taken ends. Nothing more is handed over: the kernel may take it, and
            // refuse it.
            let finished = self.finish_sends(count);
            if finished.is_ok() || self.live.as_ref().is_some_and(|l| l.sending.left == 0) {
                return Ok(());
            }
        }
        // The bytes are borrowed: there is no way back before the kernel has let go of the ring,
        // which is certain to come, as with a system call.
        self.bury();
        while let Some(grave) = self.graves.pop() {
            grave.tether.released(None);
            grave.open();
        }
        Err(broken())
    }

    /// Makes sure that nothing is left in the queue of what an earlier call gave up.
    fn drop_spoilt(&mut self) -> io::Result<()> {
        if self.live.as_ref().is_some_and(|live| live.spoilt) {
            self.enter(0, None)?;
            if self.kernel.queued() > 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
            }
            if let Some(live) = &mut self.live {
                live.spoilt = false;
            }
        }
        Ok(())
    }

    // Waiting.

    /// The descriptor of the ring, or the socket's when there is no ring any more.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.file()
    }

    pub(crate) fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        writable: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.serve(socket)?;
        self.release();
        self.reap();
        if self.live.as_ref().is_some_and(|l| !l.arrived.is_empty()) {
            return Ok(());
        }
        self.arm();
        if writable {
            self.watch_writable();
        }
        match self.enter(1, timeout) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            // Told, and waited for, already.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            other => other,
        }
    }

    /// Has the ring tell when the socket can be written to.
    fn watch_writable(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        if live.watching {
            return;
        }
        let entry = opcode::PollAdd::new(SOCKET, libc::POLLOUT as u32)
            .build()
            .user_data(Kind::Writable.tag(0));
        // SAFETY: it points to nothing.
        if unsafe { self.kernel.push(entry) } {
            live.watching = true;
            live.under_way += 1;
        }
    }

    // The end.

    /// Cancels all that is under way and waits a while for it to end. Returns whether it has.
    fn cancel_all(&mut self) -> bool {
        let under_way = |ring: &Self| ring.live.as_ref().map_or(0, |live| live.under_way);
        if under_way(self) == 0 {
            return true;
        }
        if self.thread != Some(thread::current()) {
            return false;
        }
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any())
            .build()
            .user_data(Kind::Cancel.tag(0));
        // SAFETY: it points to nothing.
        if !unsafe { self.push(entry) } {
            return false;
        }
        for _ in 0..20 {
            let result = self.enter(1, Some(DROP_PATIENCE / 20));
            if under_way(self) == 0 {
                return true;
            }
            match result {
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
                Ok(()) => {}
            }
        }
        false
    }

    pub(crate) fn report(&self, io: &mut IoStats) {
        // What was counted as calls went through the ring.
        (io.receive_calls, io.send_calls, io.wait_calls) = (0, 0, 0);
        io.ring_calls = self.calls;
        io.ring_rearmed = self.rearmed;
        io.ring_buffers_short = self.buffers_short;
        io.ring_overflows = self.overflows;
        io.ring_submits_again = self.submits_again;
        io.ring_moves = self.moves;
    }
}

impl<K: Kernel> Drop for Ring<K> {
    fn drop(&mut self) {
        if self.cancel_all() {
            // So that the socket is closed when it is dropped, and not with the last of the ring.
            let _ = self.kernel.unregister_files();
            self.kernel.close();
            if let Some(live) = self.live.take() {
                live.free();
            }
        } else {
            self.bury();
        }
        for grave in self.graves.drain(..) {
            // Else its memory is leaked.
            if grave.tether.released(Some(DROP_PATIENCE)) {
                grave.open();
            }
        }
    }
}
