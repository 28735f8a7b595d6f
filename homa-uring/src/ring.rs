//! Datagrams through a ring.
//!
//! One request receives until further notice, into buffers that the kernel chooses from a list.
//! Requests to send are handed over in order, linked, so that none overtakes one that fails, and
//! have ended when [`Ring::send`] returns. Whatever enters the kernel also collects what has been
//! received: under load one call serves both ways.

use std::io::{self, ErrorKind};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use homa_mio::sys::{BATCH, Incoming, Os, Outgoing, Sys};
use homa_mio::{Feature, IoStats, Reason};
use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::{CancelBuilder, Fd, Fixed};

use crate::bell::Bell;
use crate::buffers::Buffers;
use crate::kernel::{Kernel, Need, Rung, Setup};
use crate::live::{Arrival, Kind, Live, News, SINGLES, error};
use crate::sends::Sends;
use crate::tether::Tether;
use crate::thread::{self, ThreadId};
use crate::unavailable::Unavailable;

/// The place of the socket among the files of the ring.
const SOCKET: Fixed = Fixed(0);
/// Room for requests: those to send, those to receive, and a few to watch and to cancel.
const ENTRIES: u32 = (BATCH as u32 + SINGLES as u32 + 8).next_power_of_two();
/// Tries to hand over requests that the kernel does not take now.
const SUBMIT_TRIES: u32 = 4;
/// How long to wait after those: it lacks memory.
const SUBMIT_PAUSE: Duration = Duration::from_micros(100);
/// How long dropping a ring waits for the kernel to let go of it, before memory is leaked.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// How a ring is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) buffers: u16,
    pub(crate) rung: Rung,
    pub(crate) multishot: bool,
}

/// What has happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counters {
    /// Calls to the ring.
    calls: u64,
    /// Calls to send, past the ring.
    sends: u64,
    rearmed: u64,
    buffers_short: u64,
    overflows: u64,
    submits_again: u64,
    moves: u64,
}

pub(crate) struct Ring<K: Kernel> {
    kernel: K,
    rung: Rung,
    buffers: u16,
    deferred: Feature,
    multishot: Feature,
    /// `None`: the ring has failed.
    live: Option<Live>,
    /// The thread that uses the ring, once there is one.
    thread: Option<ThreadId>,
    /// The ring is to be made anew.
    stale: bool,
    /// The kernel still calls, and has been entered for nothing.
    false_call: bool,
    /// Rings that have been closed. The kernel may still be at work with their memory.
    graves: Vec<Live>,
    bell: Bell,
    /// The kernel rings it.
    listening: bool,
    counters: Counters,
}

impl<K: Kernel> Ring<K> {
    pub(crate) fn new(
        kernel: K,
        settings: Settings,
        socket: BorrowedFd<'_>,
    ) -> Result<Self, Unavailable> {
        let wanted = |on| match on {
            true => Feature::On,
            false => Feature::Off(Reason::Disabled),
        };
        let mut ring = Self {
            kernel,
            rung: settings.rung,
            buffers: settings.buffers,
            deferred: wanted(settings.rung == Rung::Deferred),
            multishot: wanted(settings.multishot),
            live: None,
            thread: None,
            stale: false,
            false_call: false,
            graves: Vec::new(),
            bell: Bell::new().map_err(|e| Unavailable::refused("eventfd", &e))?,
            listening: false,
            counters: Counters::default(),
        };
        ring.set_up(socket)?;
        Ok(ring)
    }

    // Making a ring.

    fn set_up(&mut self, socket: BorrowedFd<'_>) -> Result<(), Unavailable> {
        self.climb_down()?;
        for (need, what) in [
            (Need::NoDrop, "IORING_FEAT_NODROP, of Linux 5.5"),
            (Need::FastPoll, "IORING_FEAT_FAST_POLL, of Linux 5.7"),
            (Need::ExtArg, "IORING_FEAT_EXT_ARG, of Linux 5.11"),
        ] {
            if !self.kernel.has(need) {
                return Err(Unavailable::lacks(what));
            }
        }
        let refused = Unavailable::refused;
        let (tether, file) = Tether::new().map_err(|e| refused("pipe", &e))?;
        let mut buffers = Buffers::new(self.buffers).map_err(|e| refused("mmap", &e))?;
        let sends = match Sends::new() {
            Ok(sends) => sends,
            Err(e) => {
                // SAFETY: the kernel has not been told of them.
                unsafe { buffers.free() };
                return Err(refused("mmap", &e));
            }
        };
        if self.multishot.is_on() {
            let (list, count) = (buffers.list().as_ptr(), buffers.count());
            // SAFETY: `Buffers` is freed only when the kernel has let go of the ring.
            match unsafe { self.kernel.register_buffers(list, count) } {
                Ok(()) => (0..count).for_each(|id| buffers.give(id)),
                Err(e) => self.multishot = off(&e),
            }
        }
        let multishot = self.multishot.is_on();
        let live = Live::new(buffers, sends, tether, multishot);
        if let Err(unavailable) = self.register(socket, file.as_fd()) {
            self.kernel.close();
            // SAFETY: the ring is closed and never had a request.
            unsafe { live.free() };
            return Err(unavailable);
        }
        self.listening = false;
        self.live = Some(live);
        Ok(())
    }

    /// Gives the ring its files and its bell.
    fn register(
        &mut self,
        socket: BorrowedFd<'_>,
        tether: BorrowedFd<'_>,
    ) -> Result<(), Unavailable> {
        let refused = Unavailable::refused;
        self.kernel
            .register_files(&[socket.as_raw_fd(), tether.as_raw_fd()])
            .map_err(|e| refused("io_uring_register (IORING_REGISTER_FILES)", &e))?;
        self.kernel
            .register_bell(self.bell.event())
            .map_err(|e| refused("io_uring_register (IORING_REGISTER_EVENTFD)", &e))
    }

    /// Makes a ring of the best rung that the kernel knows.
    fn climb_down(&mut self) -> Result<(), Unavailable> {
        loop {
            let setup = Setup {
                rung: self.rung,
                entries: ENTRIES,
                // One for each buffer, and for each request that can be under way.
                completions: (u32::from(self.buffers) + ENTRIES).next_power_of_two(),
            };
            let Err(e) = self.kernel.setup(setup) else {
                return Ok(());
            };
            self.rung = match self.rung {
                Rung::Deferred if e.raw_os_error() == Some(libc::EINVAL) => {
                    self.deferred = off(&e);
                    Rung::Cooperative
                }
                Rung::Cooperative if e.raw_os_error() == Some(libc::EINVAL) => Rung::Plain,
                _ => return Err(Unavailable::refused("io_uring_setup", &e)),
            };
        }
    }

    /// Sees to it that there is a ring that this thread may use.
    fn serve(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let here = Some(thread::current());
        if self.thread == here && !self.stale {
            return Ok(());
        }
        if self.thread.is_some() {
            self.counters.moves += u64::from(self.thread != here);
            self.bury();
            self.set_up(socket)?;
        }
        self.kernel
            .enable()
            .map_err(|e| Unavailable::refused("io_uring_register (IORING_REGISTER_ENABLE)", &e))?;
        self.thread = here;
        self.stale = false;
        Ok(())
    }

    /// Closes the ring. Its memory lies in a grave until the kernel has let go. What it has
    /// received and not handed out is lost, as if by the network.
    fn bury(&mut self) {
        self.kernel.close();
        self.graves.extend(self.live.take());
        self.open_graves(Duration::ZERO);
    }

    /// Gives back the memory of closed rings, as far as the kernel lets go within this time.
    fn open_graves(&mut self, patience: Duration) {
        for grave in mem::take(&mut self.graves) {
            if grave.tether.released(Some(patience)) {
                // SAFETY: the kernel has let go.
                unsafe { grave.free() };
            } else {
                self.graves.push(grave);
            }
        }
    }

    /// What there is of the ring.
    ///
    /// # Errors
    /// It has failed.
    fn live(&mut self) -> io::Result<&mut Live> {
        self.live.as_mut().ok_or_else(failed)
    }

    // Entering the kernel.

    /// Enters the kernel once, and takes in what there is then.
    fn enter_once(
        &mut self,
        submit: usize,
        want: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.counters.calls += 1;
        self.counters.overflows += u64::from(self.kernel.overflown());
        let result = self.kernel.enter(submit as u32, want as u32, timeout);
        self.reap();
        match result {
            Err(e) if is_busy(&e) => {
                self.counters.submits_again += 1;
                Err(e)
            }
            Err(e) if !is_passing(&e) => Err(Unavailable::refused("io_uring_enter", &e).into()),
            other => other,
        }
    }

    /// Hands over all that is queued, and waits if `want` is not 0.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        for _ in 0..SUBMIT_TRIES {
            let queued = self.kernel.queued();
            match self.enter_once(queued, want, timeout) {
                // What it waits for may be room for completions, and that there is now.
                Err(e) if is_busy(&e) => {}
                other => return other,
            }
        }
        std::thread::sleep(SUBMIT_PAUSE);
        Err(error(libc::ENOBUFS))
    }

    /// Takes in all completions that are at hand.
    fn reap(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        while let Some(completion) = self.kernel.next() {
            match live.complete(completion) {
                News::None => {}
                News::NoBuffers => self.counters.buffers_short += 1,
                News::NoMultishot(code) => {
                    self.multishot = Feature::Off(Reason::Refused(code));
                    self.stale = true;
                }
            }
        }
    }

    // Receiving.

    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut [Incoming],
    ) -> io::Result<usize> {
        self.serve(socket)?;
        let watched = self.bell.is_watched();
        if watched {
            self.hear();
        }
        self.live()?.release();
        self.reap();
        self.arm()?;
        // A bell that has been silenced does not ring again for what it has rung for.
        let called = match watched {
            true => self.kernel.calls(),
            false => self.live()?.arrived.is_empty() && self.kernel.calls(),
        };
        if called || (self.live()?.arrived.is_empty() && self.has_work()) {
            if self.false_call {
                self.hush();
            }
            match self.enter(0, None) {
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            self.false_call = self.live()?.arrived.is_empty() && self.kernel.calls();
        }
        self.hand_out(into)
    }

    /// Describes what has arrived, up to the first error, which the next call tells.
    fn hand_out(&mut self, into: &mut [Incoming]) -> io::Result<usize> {
        let live = self.live()?;
        for place in into.iter_mut().take(BATCH) {
            match live.arrived.front() {
                Some(&Arrival::Datagrams { buffer, result }) => {
                    *place = if live.multishot {
                        live.buffers.received(buffer, result)
                    } else {
                        live.buffers.received_once(buffer, result)
                    };
                    live.held.push(buffer);
                }
                Some(&Arrival::Error(code)) if live.held.is_empty() => {
                    live.arrived.pop_front();
                    return Err(error(code));
                }
                _ => break,
            }
            live.arrived.pop_front();
        }
        match live.held.len() {
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    /// The bytes of the `at`-th reception of the last call.
    pub(crate) fn bytes(&self, at: usize) -> &[u8] {
        let live = self.live.as_ref();
        live.and_then(|live| Some(live.buffers.payload(*live.held.get(at)?)))
            .unwrap_or_default()
    }

    pub(crate) fn has_received(&mut self) -> bool {
        let arrived = self.live.as_ref().is_some_and(|l| !l.arrived.is_empty());
        arrived || self.is_deaf() || self.kernel.has_next() || self.has_work()
    }

    /// Whether nothing is under way that would receive, as in a ring that was made anew in order to send.
    fn is_deaf(&self) -> bool {
        self.live.as_ref().is_some_and(|live| match live.multishot {
            true => !live.receiving,
            false => live.lent == 0,
        })
    }

    /// Whether the kernel is to be entered for something that nothing else will tell of.
    fn has_work(&mut self) -> bool {
        self.kernel.queued() > 0 || self.kernel.overflown()
    }

    /// Has the kernel run something, and so clear the flag by which it calls: linked requests
    /// leave it set although there is nothing more to do.
    fn hush(&mut self) {
        let nothing = opcode::Nop::new().build().user_data(Kind::Hush.tag(0));
        // The second is run when the first has ended, in the same way as what it calls for.
        for entry in [nothing.clone().flags(Flags::IO_LINK), nothing] {
            // SAFETY: it points to nothing.
            unsafe { self.kernel.push(entry) };
        }
    }

    /// Queues requests to receive as far as there are none.
    fn arm(&mut self) -> io::Result<()> {
        let live = self.live.as_mut().ok_or_else(failed)?;
        if live.multishot {
            // Without a buffer it would end at once.
            let has_buffers = live.arrived.len() < usize::from(live.buffers.count());
            if !live.receiving && has_buffers && !self.stale {
                let header = live.buffers.multishot_header().as_ptr();
                let entry = opcode::RecvMsgMulti::new(SOCKET, header, 0)
                    .build()
                    .user_data(Kind::Receive.tag(0));
                // SAFETY: the header is in `Buffers`, and never changes.
                live.receiving = unsafe { self.kernel.push(entry) };
                self.counters.rearmed += u64::from(live.proven);
            }
            return Ok(());
        }
        while live.lent < usize::from(SINGLES)
            && let Some(buffer) = live.free.pop()
        {
            let header = live.buffers.lend(buffer).as_ptr();
            let entry = opcode::RecvMsg::new(SOCKET, header)
                .build()
                .user_data(Kind::ReceiveOnce.tag(u64::from(buffer)));
            // SAFETY: header and buffer are in `Buffers`, and left alone until it is complete.
            if !unsafe { self.kernel.push(entry) } {
                live.buffers.take(buffer);
                live.free.push(buffer);
                break;
            }
            live.lent += 1;
        }
        Ok(())
    }

    // Sending.

    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &[u8],
        batches: &[Outgoing],
    ) -> io::Result<usize> {
        self.serve(socket)?;
        if batches.len() == 1 && !self.kernel.calls() && !self.has_work() {
            return self.send_directly(socket, |os| os.send(socket, memory, batches));
        }
        self.drop_spoilt()?;
        let queued = self.queue_sends(memory, batches)?;
        if queued == 0 {
            // No room, because the kernel has not taken what is there.
            self.enter(0, None)?;
            return Err(error(libc::ENOBUFS));
        }
        if let Err(e) = self.finish_sends() {
            self.let_go();
            return Err(e);
        }
        let sending = &self.live()?.sending;
        let results = &sending.results[..queued];
        let sent = results.iter().take_while(|&&result| result >= 0).count();
        if sent > 0 {
            return Ok(sent);
        }
        let e = error(-results[0]);
        if e.kind() == ErrorKind::WouldBlock {
            self.watch_writable();
        }
        Err(e)
    }

    /// Sends one batch by a system call: with nothing else to do in the kernel that is cheaper.
    pub(crate) fn send_directly<T>(
        &mut self,
        socket: BorrowedFd<'_>,
        send: impl FnOnce(&mut Os) -> io::Result<T>,
    ) -> io::Result<T> {
        self.serve(socket)?;
        self.live()?;
        self.counters.sends += 1;
        let result = send(&mut Os);
        if let Err(e) = &result
            && e.kind() == ErrorKind::WouldBlock
        {
            self.watch_writable();
        }
        result
    }

    /// Queues requests to send, each linked to the next. Returns how many.
    fn queue_sends(&mut self, memory: &[u8], batches: &[Outgoing]) -> io::Result<usize> {
        let live = self.live.as_mut().ok_or_else(failed)?;
        let room = (ENTRIES as usize).saturating_sub(self.kernel.queued());
        let count = batches.len().min(BATCH).min(room);
        live.sending.start();
        for (at, batch) in batches[..count].iter().enumerate() {
            let header = live.sends.write(at, memory, batch);
            let link = match at + 1 < count {
                true => Flags::IO_LINK,
                false => Flags::empty(),
            };
            let entry = opcode::SendMsg::new(SOCKET, header.as_ptr())
                // Fails rather than wait for room in the socket.
                .flags(libc::MSG_DONTWAIT as u32)
                .build()
                .flags(link)
                .user_data(live.sending.next_tag());
            // SAFETY: the header is in `Sends` and stays as it is, and the bytes are borrowed,
            // until `send` returns. By then the request has ended, or is spoilt, or the kernel
            // has let go of the ring.
            let pushed = unsafe { self.kernel.push(entry) };
            assert!(pushed, "there was room");
            live.sending.queued();
        }
        Ok(count)
    }

    /// Enters the kernel until all requests to send have ended or are given up. They do not wait
    /// for the socket, so nothing holds them up.
    ///
    /// # Errors
    /// The kernel is of no use. It may still have requests.
    fn finish_sends(&mut self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            let queued = self.kernel.queued();
            let sending = &mut self.live.as_mut().ok_or_else(failed)?.sending;
            // They are the last in the queue.
            let waiting = queued.min(sending.left);
            let taken = sending.left - waiting;
            let (submit, want) = if taken > 0 {
                // Nothing else goes before it is known that these went well.
                (0, taken)
            } else if waiting == 0 {
                return Ok(());
            } else {
                let last = sending.count - waiting;
                let broken = last > 0 && sending.results[last - 1] < 0;
                if broken || tries == SUBMIT_TRIES {
                    self.spoil(waiting)?;
                    return Ok(());
                }
                tries += 1;
                // A single one ends while it is handed over.
                (queued, if waiting > 1 { waiting } else { 0 })
            };
            match self.enter_once(submit, want, None) {
                Err(e) if !is_busy(&e) && e.kind() != ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
        }
    }

    /// Gives up the last `count` requests to send, which the kernel has not taken: when it does
    /// it will refuse them, without a look at the bytes.
    fn spoil(&mut self, count: usize) -> io::Result<()> {
        let live = self.live()?;
        for at in live.sending.count - count..live.sending.count {
            live.sends.spoil(at);
        }
        live.sending.give_up(count);
        Ok(())
    }

    /// Makes sure that nothing is left in the queue of what an earlier call gave up: the headers
    /// are to be used again.
    fn drop_spoilt(&mut self) -> io::Result<()> {
        if self.live()?.sending.spoilt {
            self.enter(0, None)?;
            if self.kernel.queued() > 0 {
                return Err(error(libc::ENOBUFS));
            }
            self.live()?.sending.spoilt = false;
        }
        Ok(())
    }

    /// Ends the ring and waits until the kernel has let go of it. The bytes to send are borrowed,
    /// so there is no other way back. It comes as surely as a system call returns.
    fn let_go(&mut self) {
        self.bury();
        for grave in self.graves.drain(..) {
            if grave.tether.released(None) {
                // SAFETY: the kernel has let go.
                unsafe { grave.free() };
            }
        }
    }

    // Waiting.

    /// What is readable when the ring has something to tell.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.bell.watch()
    }

    /// Silences the bell, which may have rung.
    fn hear(&mut self) {
        self.counters.calls += 1;
        self.bell.silence();
        if !self.listening {
            self.kernel.listen();
            self.listening = true;
        }
    }

    pub(crate) fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        wake: BorrowedFd<'_>,
        writable: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.serve(socket)?;
        self.live()?.release();
        self.reap();
        if !self.live()?.arrived.is_empty() {
            return Ok(());
        }
        self.arm()?;
        if writable {
            self.watch_writable();
        }
        self.watch_wake(wake);
        match self.enter(1, timeout) {
            Err(e) if e.raw_os_error() == Some(libc::ETIME) => Ok(()),
            // That was a pause, too.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            other => other,
        }
    }

    /// Has the ring tell when the socket can be written to.
    fn watch_writable(&mut self) {
        if let Some(live) = &mut self.live
            && !live.watching
        {
            let entry = opcode::PollAdd::new(SOCKET, libc::POLLOUT as u32)
                .build()
                .user_data(Kind::Writable.tag(0));
            // SAFETY: it points to nothing.
            live.watching = unsafe { self.kernel.push(entry) };
        }
    }

    /// Has the ring tell when another thread has news.
    fn watch_wake(&mut self, wake: BorrowedFd<'_>) {
        if let Some(live) = &mut self.live
            && !live.wakeable
        {
            let entry = opcode::PollAdd::new(Fd(wake.as_raw_fd()), libc::POLLIN as u32)
                .build()
                .user_data(Kind::Wake.tag(0));
            // SAFETY: it points to nothing.
            live.wakeable = unsafe { self.kernel.push(entry) };
        }
    }

    /// Fills in what is known here.
    pub(crate) fn report(&self, io: &mut IoStats) {
        // Most of what was counted as system calls went through the ring.
        (io.receive_calls, io.wait_calls) = (0, 0);
        io.send_calls = self.counters.sends;
        io.ring_calls = self.counters.calls;
        io.ring_rearmed = self.counters.rearmed;
        io.ring_buffers_short = self.counters.buffers_short;
        io.ring_overflows = self.counters.overflows;
        io.ring_submits_again = self.counters.submits_again;
        io.ring_moves = self.counters.moves;
    }

    pub(crate) fn deferred(&self) -> Feature {
        self.deferred
    }

    pub(crate) fn multishot(&self) -> Feature {
        self.multishot
    }

    // The end.

    /// Cancels all that is under way and waits a while for it to end. Returns whether it has.
    fn cancel_all(&mut self) -> bool {
        let under_way = |ring: &Self| ring.live.as_ref().map_or(0, Live::under_way);
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
        if !unsafe { self.kernel.push(entry) } {
            return false;
        }
        for _ in 0..20 {
            match self.enter(1, Some(DROP_PATIENCE / 20)) {
                Err(e) if !is_passing(&e) => return false,
                _ => {}
            }
            if under_way(self) == 0 {
                return true;
            }
            if self.live.as_ref().is_some_and(|live| live.cancel_failed) {
                return false;
            }
        }
        false
    }
}

impl<K: Kernel> Drop for Ring<K> {
    fn drop(&mut self) {
        if self.cancel_all() {
            // So that the socket is closed when it is dropped, and not with the last of the ring.
            let _ = self.kernel.unregister_files();
            self.kernel.close();
            if let Some(live) = self.live.take() {
                // SAFETY: there is no request left in the ring, and there will be none.
                unsafe { live.free() };
            }
        }
        self.bury();
        // Those that are left are leaked.
        self.open_graves(DROP_PATIENCE);
    }
}

fn off(e: &io::Error) -> Feature {
    Feature::Off(match e.raw_os_error() {
        Some(code) => Reason::Refused(code),
        None => Reason::Unsupported,
    })
}

/// The kernel takes no requests now.
fn is_busy(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
}

/// Nothing is wrong with the ring.
fn is_passing(e: &io::Error) -> bool {
    let code = e.raw_os_error();
    is_busy(e) || matches!(code, Some(libc::EINTR | libc::ETIME | libc::ENOBUFS))
}

fn failed() -> io::Error {
    io::Error::other("the ring has failed")
}
