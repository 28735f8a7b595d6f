//! Datagrams to and from a UDP socket: batches, and what to do when the system will not.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use homa_proto::wire::DATA_LEN;
use homa_proto::{Gather, Instant, Transmit};
use mio::net::UdpSocket;

use crate::stats::{BufferSize, Feature, IoStats, Reason};
use crate::sys::{Ask, BATCH, Incoming, Lent, Outgoing, SEND_LEN, Sys};

/// Bytes to gather before they are handed over. Memory that fits the processor's cache is read
/// by the kernel while it is still warm.
const SEND_MEMORY: usize = 2 * SEND_LEN.next_multiple_of(64);
/// The most datagrams in one message that every Linux with GSO takes.
const MAX_SEGMENTS: usize = 64;
/// A batch of so many bytes is long.
const LONG: usize = 16 * 1024;
/// About how many bytes to receive in one call, for the same reason.
const RECEIVE_BYTES: usize = 128 * 1024;
/// How long to wait when the system has no memory for a datagram: nothing tells when it has.
const NO_BUFFERS_PAUSE_NS: u64 = 100_000;
/// A socket that says "later" is tried again after this time, even if nobody watches when it
/// becomes writable.
const BLOCKED_PAUSE_NS: u64 = 1_000_000;
/// Tries of a call that signals interrupt each time.
const INTERRUPTIONS: usize = 16;

/// Which of the optional parts to use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) gso: bool,
    pub(crate) gro: bool,
    pub(crate) priorities: bool,
    pub(crate) count_congestion: bool,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
}

/// Bytes that start on a cache line. Copying from the kernel to an address that is not a multiple
/// of 32 takes three times as long on some processors.
struct Lines {
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl Lines {
    const SIZE: usize = 64;

    fn new(len: usize) -> Self {
        let memory = vec![0; len + Self::SIZE].into_boxed_slice();
        // "Impossible", which the documentation allows it to say, would only be slow.
        let start = memory.as_ptr().align_offset(Self::SIZE).min(Self::SIZE);
        Self { memory, start, len }
    }
}

impl Deref for Lines {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// What an error of the system is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// Try again when the socket is ready.
    Blocked,
    Interrupted,
    /// Try again a little later.
    NoBuffers,
    /// Somebody cannot be reached, perhaps somebody else: such errors come late.
    Unreachable,
    TooLong,
    /// The message or a part of it.
    Refused,
    /// The socket itself.
    Fatal,
}

impl Trouble {
    fn of(error: &io::Error) -> Self {
        let Some(code) = error.raw_os_error() else {
            return match error.kind() {
                io::ErrorKind::WouldBlock => Self::Blocked,
                io::ErrorKind::Interrupted => Self::Interrupted,
                _ => Self::Fatal,
            };
        };
        match code {
            // The same code on most systems, but not on all.
            code if code == libc::EAGAIN || code == libc::EWOULDBLOCK => Self::Blocked,
            libc::EINTR => Self::Interrupted,
            libc::ENOBUFS | libc::ENOMEM => Self::NoBuffers,
            libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENETRESET
            | libc::ETIMEDOUT => Self::Unreachable,
            libc::EMSGSIZE => Self::TooLong,
            libc::EINVAL
            | libc::EIO
            | libc::EPERM
            | libc::EACCES
            | libc::EOPNOTSUPP
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EADDRNOTAVAIL
            | libc::EAFNOSUPPORT => Self::Refused,
            _ => Self::Fatal,
        }
    }
}

/// Whether a refusal with this code says that the system lacks what was asked for. Others, like
/// EPERM, can come from a filter's limit or a route, and may have passed by the next try.
fn is_about_features(code: i32) -> bool {
    matches!(
        code,
        libc::EINVAL
            | libc::EIO
            | libc::EOPNOTSUPP
            | libc::ENOPROTOOPT
            | libc::EMSGSIZE
            | libc::EADDRNOTAVAIL
    )
}

/// What one call to receive has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    pub(crate) datagrams: usize,
    /// There may be more.
    pub(crate) more: bool,
}

pub(crate) struct Udp<S> {
    socket: UdpSocket,
    pub(crate) sys: S,
    pub(crate) io: IoStats,
    pub(crate) gso: Feature,
    pub(crate) gro: Feature,
    pub(crate) priorities: Feature,
    pub(crate) source_address: Feature,
    pub(crate) dont_fragment: Feature,
    pub(crate) receive_buffer: BufferSize,
    pub(crate) send_buffer: BufferSize,
    local: SocketAddr,
    marks: Marks,
    receive_memory: Lines,
    incoming: [Incoming; BATCH],
    /// How many receptions to ask for in the next call.
    ask: usize,
    queue: Queue,
    /// The front of the queue may not be tried before this time.
    blocked_until: Option<Instant>,
    /// The socket said "later" and will say when.
    want_writable: bool,
}

impl<S: Sys> Udp<S> {
    pub(crate) fn new(socket: UdpSocket, mut sys: S, wanted: Wanted) -> io::Result<Self> {
        let local = socket.local_addr()?;
        let fd = socket.as_fd();
        let mut feature = |wanted: bool, why_not: Reason, ask: Ask| {
            if !wanted {
                return Feature::Off(why_not);
            }
            match sys.ask(fd, ask) {
                Ok(()) => Feature::On,
                Err(error) => Feature::Off(match error.raw_os_error() {
                    None | Some(libc::ENOPROTOOPT) => Reason::Unsupported,
                    Some(code) => Reason::Refused(code),
                }),
            }
        };
        let dont_fragment = feature(true, Reason::Disabled, Ask::DontFragment);
        let gso = feature(wanted.gso, Reason::Disabled, Ask::Gso);
        let gro = feature(wanted.gro, Reason::Disabled, Ask::Gro);
        let source_address = feature(
            local.ip().to_canonical().is_unspecified(),
            Reason::NotNeeded,
            Ask::ReceiveLocal,
        );
        let _ = feature(wanted.count_congestion, Reason::Disabled, Ask::ReceiveTos);
        let priorities = if wanted.priorities {
            Feature::On
        } else {
            Feature::Off(Reason::Disabled)
        };
        let receive_buffer = BufferSize {
            asked: wanted.receive_buffer,
            got: sys.set_receive_buffer(fd, wanted.receive_buffer)?,
        };
        let send_buffer = BufferSize {
            asked: wanted.send_buffer,
            got: sys.set_send_buffer(fd, wanted.send_buffer)?,
        };
        let marks = Marks::new(sys.tos(fd).unwrap_or(0));
        sys.start(fd)?;
        let receive_memory = Lines::new(sys.receive_memory());
        Ok(Self {
            socket,
            sys,
            io: IoStats::default(),
            gso,
            gro,
            priorities,
            source_address,
            dont_fragment,
            receive_buffer,
            send_buffer,
            local,
            marks,
            receive_memory,
            incoming: [Incoming::NONE; BATCH],
            ask: 1,
            queue: Queue::new(),
            blocked_until: None,
            want_writable: false,
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What becomes readable when there is something to receive.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.sys.readiness(self.socket.as_fd())
    }

    /// Bytes of packets that the receive buffer holds for sure.
    pub(crate) fn usable_receive_buffer(&self) -> u64 {
        usable(self.receive_buffer.got) as u64
    }

    /// `to` in the address family of the socket, if it can be had.
    pub(crate) fn reachable(&self, to: SocketAddr) -> Option<SocketAddr> {
        match (self.local, to) {
            (SocketAddr::V4(_), _) => {
                let ip = to.ip().to_canonical();
                ip.is_ipv4().then(|| SocketAddr::new(ip, to.port()))
            }
            (SocketAddr::V6(_), SocketAddr::V4(to)) => {
                let ip = to.ip().to_ipv6_mapped();
                Some(SocketAddrV6::new(ip, to.port(), 0, 0).into())
            }
            (SocketAddr::V6(_), SocketAddr::V6(_)) => Some(to),
        }
    }

    // Receiving.

    /// Makes one call to receive and hands out what comes: the bytes of one datagram, or of
    /// several of the given length, of which the last may be shorter.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub(crate) fn receive(
        &mut self,
        mut each: impl FnMut(SocketAddr, Option<IpAddr>, &[u8], usize),
    ) -> io::Result<Received> {
        let count = self.receive_call()?;
        let mut found = Received {
            datagrams: 0,
            more: count == self.ask,
        };
        let mut bytes = 0;
        for (at, incoming) in self.incoming[..count].iter().enumerate() {
            let memory = self.sys.bytes(&self.receive_memory, at);
            let datagrams = incoming.datagrams(memory, self.gro.is_on(), &mut self.io);
            let Some((from, datagrams, size)) = datagrams else {
                continue;
            };
            bytes += datagrams.len();
            found.datagrams += datagrams.len().div_ceil(size);
            each(from, incoming.local, datagrams, size);
        }
        self.io.datagrams_received += found.datagrams as u64;
        self.io.bytes_received += bytes as u64;
        // Ask for one when packets come one at a time: that is the cheapest call. Ask for more
        // while they come faster, up to what the cache holds.
        let next = if found.more { self.ask * 2 } else { count };
        let fit = (RECEIVE_BYTES * count).checked_div(bytes).unwrap_or(BATCH);
        self.ask = next.min(fit).clamp(1, BATCH);
        Ok(found)
    }

    fn receive_call(&mut self) -> io::Result<usize> {
        let mut retried = false;
        for _ in 0..INTERRUPTIONS {
            self.io.receive_calls += 1;
            let into = &mut self.incoming[..self.ask];
            let result = self
                .sys
                .receive(self.socket.as_fd(), &mut self.receive_memory, into);
            let error = match result {
                Ok(count) => return Ok(count.min(self.ask)),
                Err(error) => error,
            };
            match Trouble::of(&error) {
                Trouble::Blocked => break,
                Trouble::Interrupted => self.io.interrupted += 1,
                Trouble::Fatal => {
                    self.io.other_errors += 1;
                    return Err(error);
                }
                trouble => {
                    // Late news of something that was sent; with it told, the call works.
                    self.count(trouble);
                    if std::mem::replace(&mut retried, true) {
                        break;
                    }
                }
            }
        }
        Ok(0)
    }

    /// Sleeps until there is something to read, what was kept can be sent, `wake` is readable, or
    /// for `timeout`.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub(crate) fn sleep(
        &mut self,
        wake: BorrowedFd<'_>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.io.wait_calls += 1;
        let fd = self.socket.as_fd();
        match self.sys.wait(fd, wake, self.want_writable, timeout) {
            Err(error) if Trouble::of(&error) == Trouble::Interrupted => {
                self.io.interrupted += 1;
                Ok(())
            }
            other => other,
        }
    }

    fn count(&mut self, trouble: Trouble) {
        let counter = match trouble {
            Trouble::Blocked => &mut self.io.would_block,
            Trouble::Interrupted => &mut self.io.interrupted,
            Trouble::NoBuffers => &mut self.io.no_buffers,
            Trouble::Unreachable => &mut self.io.unreachable,
            Trouble::TooLong => &mut self.io.too_long,
            Trouble::Refused => &mut self.io.refused,
            Trouble::Fatal => &mut self.io.other_errors,
        };
        *counter += 1;
    }

    // Sending.

    /// Memory for the next packets, or `None` when what there is must be flushed first.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        self.queue.room()
    }

    /// Queues what has been written to [`room`](Self::room).
    pub(crate) fn push(&mut self, transmit: &Transmit) {
        if let Some(message) = self.message(transmit) {
            self.queue.push(message);
        }
    }

    /// What goes to the end of the queue.
    fn message(&mut self, transmit: &Transmit) -> Option<Outgoing> {
        let Some(to) = self.reachable(transmit.to) else {
            debug_assert!(false, "the address was checked when the request was made");
            return None;
        };
        let message = Outgoing {
            to,
            local: transmit.local,
            tos: self.marks.of(transmit.priority),
            start: self.queue.end,
            len: transmit.len,
            segment_size: transmit
                .segment_size
                .filter(|&size| size < transmit.len)
                .and_then(|size| u16::try_from(size).ok()),
        };
        Some(self.without_what_is_off(message))
    }

    /// Whether [`send_lent`](Self::send_lent) is worth while: what is not joined is sent from the
    /// queue.
    pub(crate) fn lends(&self) -> bool {
        self.gso.is_on() && self.sys.lends()
    }

    /// Sends packets whose headers have been written to [`room`](Self::room), and their payload
    /// from where it is, after all that is queued. If that cannot be done now they are queued.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub(crate) fn send_lent(&mut self, now: Instant, gather: &Gather<'_>) -> io::Result<()> {
        let at = self.queue.end;
        if !self.is_idle() {
            self.flush(now)?;
        }
        self.settle_marks();
        let Some(message) = self.message(&gather.transmit) else {
            return Ok(());
        };
        let headers = at..at + message.datagrams() * DATA_LEN;
        if self.is_idle() && self.lends() {
            self.io.send_calls += 1;
            let lent = Lent {
                headers: &self.queue.memory[headers.clone()],
                header_len: DATA_LEN,
                payload: gather.payload,
            };
            match self.sys.send_lent(self.socket.as_fd(), &message, lent) {
                Ok(()) => {
                    self.count_sent(&message);
                    return Ok(());
                }
                // Whatever it was, the next try to send the queue deals with it.
                Err(error) => self.count(Trouble::of(&error)),
            }
        }
        let start = self.queue.put_together(headers, &message, gather.payload);
        self.queue.push(Outgoing { start, ..message });
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// When to flush again, if something has been kept.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.blocked_until
    }

    /// Whether somebody has to watch when the socket becomes writable.
    pub(crate) fn wants_writable(&self) -> bool {
        self.want_writable && !self.sys.tells_writable()
    }

    /// Hands the queue over. What the socket does not take now is kept and goes first.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub(crate) fn flush(&mut self, now: Instant) -> io::Result<()> {
        if !self.want_writable && self.blocked_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        self.blocked_until = None;
        self.want_writable = false;
        self.settle_marks();
        let mut retried = false;
        let mut interruptions = 0;
        while !self.queue.is_empty() {
            let result = if self.gso.is_on() {
                self.send_joined()
            } else {
                self.send_singly()
            };
            let error = match result {
                // A system that takes nothing and says nothing is as good as busy.
                Ok(0) => io::ErrorKind::WouldBlock.into(),
                Ok(_) => {
                    retried = false;
                    continue;
                }
                Err(error) => error,
            };
            let trouble = Trouble::of(&error);
            self.count(trouble);
            match trouble {
                Trouble::Interrupted if interruptions < INTERRUPTIONS => interruptions += 1,
                Trouble::Blocked | Trouble::Interrupted => {
                    self.blocked_until = Some(now.after(BLOCKED_PAUSE_NS));
                    self.want_writable = true;
                    return Ok(());
                }
                Trouble::NoBuffers => {
                    self.blocked_until = Some(now.after(NO_BUFFERS_PAUSE_NS));
                    return Ok(());
                }
                Trouble::Fatal => return Err(error),
                // The error may be late news of another datagram.
                _ if !retried => retried = true,
                _ => {
                    retried = false;
                    if !self.send_plainer(error.raw_os_error().unwrap_or(0)) {
                        self.blocked_until = Some(now.after(NO_BUFFERS_PAUSE_NS));
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Lets the socket mark packets by itself as most have been marked lately.
    fn settle_marks(&mut self) {
        // What is queued relies on the mark that the socket has now.
        if !self.marks.are_unusual() || !self.priorities.is_on() {
            return;
        }
        let fd = self.socket.as_fd();
        let (old, new) = self.marks.settle();
        if self.sys.set_tos(fd, new).is_err() {
            self.marks.socket = old;
            return;
        }
        for at in self.queue.gone..self.queue.items.len() {
            let tos = &mut self.queue.items[at].tos;
            *tos = Some(tos.unwrap_or(old)).filter(|&tos| tos != new);
        }
    }

    /// Hands the queue over as it is. Tells how many messages have gone.
    fn send_joined(&mut self) -> io::Result<usize> {
        self.io.send_calls += 1;
        let (fd, messages) = (self.socket.as_fd(), self.queue.messages());
        let count = self.sys.send(fd, &self.queue.memory, messages)?;
        for _ in 0..count.min(messages.len()) {
            self.sent(self.queue.messages()[0]);
        }
        Ok(count)
    }

    /// Hands the front of the queue over datagram by datagram. Tells how many have gone.
    fn send_singly(&mut self) -> io::Result<usize> {
        let mut datagrams = self.queue.messages().iter().flat_map(|message| {
            let size = message.segment_size.map_or(message.len, usize::from).max(1);
            (0..message.len)
                .step_by(size)
                .map(move |at| part(message, at, size))
        });
        let mut window = [NOTHING; BATCH];
        let mut count = 0;
        for (slot, datagram) in window.iter_mut().zip(&mut datagrams) {
            *slot = datagram;
            count += 1;
        }
        self.io.send_calls += 1;
        let (fd, window) = (self.socket.as_fd(), &window[..count]);
        let count = self.sys.send(fd, &self.queue.memory, window)?;
        for &datagram in window.iter().take(count) {
            self.sent(datagram);
        }
        Ok(count)
    }

    fn without_what_is_off(&self, mut message: Outgoing) -> Outgoing {
        if !self.priorities.is_on() {
            message.tos = None;
        }
        if !self.source_address.is_on() {
            message.local = None;
        }
        message
    }

    /// The front of the queue, as far as it is this message, has gone.
    fn sent(&mut self, message: Outgoing) {
        self.count_sent(&message);
        self.queue.consume(message.len);
    }

    fn count_sent(&mut self, message: &Outgoing) {
        self.io.datagrams_sent += message.datagrams() as u64;
        self.io.bytes_sent += message.len as u64;
        self.io.joined_sent += u64::from(message.segment_size.is_some());
    }

    /// The system refuses the front of the queue and does not say which part of it. Leaves parts
    /// away until it is taken; what was left away is off from then on. If it is refused however
    /// plain, it is given up. Returns `false` if the system is busy, so that nothing was learnt.
    fn send_plainer(&mut self, code: i32) -> bool {
        let front = self.queue.messages()[0];
        let single = match front.segment_size {
            Some(size) => part(&front, 0, usize::from(size)),
            None => front,
        };
        let tos = |message| Outgoing {
            tos: None,
            ..message
        };
        let source = |message| Outgoing {
            local: None,
            ..message
        };
        let refused = if self.gso.is_on() { front } else { single };
        let trials = [
            single,
            tos(refused),
            source(refused),
            tos(single),
            tos(source(single)),
        ];
        for trial in trials.into_iter().filter(|&trial| trial != refused) {
            self.io.send_calls += 1;
            let fd = self.socket.as_fd();
            match self.sys.send(fd, &self.queue.memory, &[trial]) {
                Ok(1..) => {
                    self.turn_off(&refused, &trial, code);
                    self.sent(trial);
                    return true;
                }
                Ok(_) => return false,
                Err(error) => match Trouble::of(&error) {
                    Trouble::Blocked | Trouble::Interrupted | Trouble::NoBuffers => return false,
                    _ => {}
                },
            }
        }
        self.io.not_sent += refused.datagrams() as u64;
        self.queue.consume(refused.len);
        true
    }

    /// What `refused` has and `taken` has not is off from now on.
    fn turn_off(&mut self, refused: &Outgoing, taken: &Outgoing, code: i32) {
        let off = Feature::Off(Reason::Refused(code));
        let is_conclusive = is_about_features(code);
        if is_conclusive && refused.segment_size != taken.segment_size {
            self.gso = off;
        }
        if is_conclusive && refused.tos != taken.tos {
            self.priorities = off;
            // Nor are packets to bear the mark of others.
            let _ = self.sys.set_tos(self.socket.as_fd(), self.marks.ecn);
        }
        if refused.local != taken.local {
            self.source_address = off;
        }
        for at in self.queue.gone..self.queue.items.len() {
            self.queue.items[at] = self.without_what_is_off(self.queue.items[at]);
        }
    }
}

/// How packets are marked with their priority: by the socket if it is the usual one, else by a
/// control message, which costs a small packet some per cent of its time.
#[derive(Clone, Copy, Debug)]
struct Marks {
    /// The ECN bits of everything sent.
    ecn: u8,
    /// What the socket marks packets with that say nothing.
    socket: u8,
    /// What the last packets had that the socket would have marked otherwise, and how many there
    /// were in a row.
    unusual: u8,
    row: u32,
}

impl Marks {
    /// So many in a row are the usual thing.
    const ROW: u32 = 32;

    fn new(socket: u8) -> Self {
        Self {
            ecn: socket & 0b11,
            socket,
            unusual: socket,
            row: 0,
        }
    }

    /// What to say about a message; `None` if the socket marks it rightly by itself.
    fn of(&mut self, priority: u8) -> Option<u8> {
        let tos = (priority << 5) | self.ecn;
        if tos == self.socket {
            self.row = 0;
            return None;
        }
        if tos != self.unusual {
            (self.unusual, self.row) = (tos, 0);
        }
        self.row = self.row.saturating_add(1);
        Some(tos)
    }

    fn are_unusual(&self) -> bool {
        self.row >= Self::ROW
    }

    /// Makes the unusual the usual. Returns what was and what is the mark of the socket.
    fn settle(&mut self) -> (u8, u8) {
        self.row = 0;
        let old = std::mem::replace(&mut self.socket, self.unusual);
        (old, self.socket)
    }
}

/// `size` bytes of `message` from `at`, or what there is, as one datagram.
fn part(message: &Outgoing, at: usize, size: usize) -> Outgoing {
    Outgoing {
        start: message.start + at,
        len: size.min(message.len - at),
        segment_size: None,
        ..*message
    }
}

/// `first` and, right behind it in memory, `second` as one message, if datagrams of the same
/// length go to the same place: one call, and one way through the kernel, for both.
fn join(first: &Outgoing, second: &Outgoing) -> Option<Outgoing> {
    let size = first.segment_size.map_or(first.len, usize::from);
    let step = second.segment_size.map_or(second.len, usize::from);
    let len = first.len + second.len;
    // Only the last datagram may be shorter.
    let equal = first.len.is_multiple_of(size)
        && (step == size || (step < size && second.segment_size.is_none()));
    let alike = (first.to, first.local, first.tos) == (second.to, second.local, second.tos);
    let fits = len <= SEND_LEN && len.div_ceil(size) <= MAX_SEGMENTS;
    (equal && alike && fits && first.start + first.len == second.start).then_some(Outgoing {
        len,
        segment_size: u16::try_from(size).ok(),
        ..*first
    })
}

/// Bytes of packets that `got` bytes of receive buffer hold for sure. Linux counts the memory
/// that packets lie in: up to a page and some for each packet of 1500 bytes, depending on the
/// network card.
fn usable(got: usize) -> usize {
    if cfg!(any(target_os = "linux", target_os = "android")) {
        got / 3
    } else {
        got / 2
    }
}

/// Fills places of a window that are not in use.
const NOTHING: Outgoing = Outgoing {
    to: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0),
    local: None,
    tos: None,
    start: 0,
    len: 0,
    segment_size: None,
};

/// What is to be sent, in order, with its bytes.
struct Queue {
    memory: Lines,
    /// Bytes in use.
    end: usize,
    items: Vec<Outgoing>,
    /// Items that have gone.
    gone: usize,
}

impl Queue {
    fn new() -> Self {
        Self {
            memory: Lines::new(SEND_MEMORY),
            end: 0,
            items: Vec::with_capacity(BATCH),
            gone: 0,
        }
    }

    fn messages(&self) -> &[Outgoing] {
        &self.items[self.gone..]
    }

    fn is_empty(&self) -> bool {
        self.gone == self.items.len()
    }

    fn room(&mut self) -> Option<&mut [u8]> {
        if self.items.len() == BATCH {
            return None;
        }
        let end = self.end.checked_add(SEND_LEN)?;
        self.memory.get_mut(self.end..end)
    }

    /// Writes the datagrams of `message` whose headers are at `headers` to the end of the queue.
    /// Returns where they start.
    fn put_together(&mut self, headers: Range<usize>, message: &Outgoing, payload: &[u8]) -> usize {
        let (start, size) = (
            self.end,
            message.segment_size.map_or(message.len, usize::from),
        );
        self.memory.copy_within(headers, start);
        let room = &mut self.memory[start..][..message.len];
        let pieces = payload.chunks(size.saturating_sub(DATA_LEN).max(1));
        // The last first: its place is beyond the headers of all others.
        for (i, piece) in pieces.enumerate().rev() {
            let (from, to) = (i * DATA_LEN, i * size);
            room.copy_within(from..from + DATA_LEN, to);
            room[to + DATA_LEN..][..piece.len()].copy_from_slice(piece);
        }
        start
    }

    fn push(&mut self, item: Outgoing) {
        if item.len == 0 {
            return;
        }
        self.end = item.start + item.len;
        // A long batch is joined to nothing; the next one starts on a cache line, which the
        // kernel copies from faster.
        if item.len >= LONG {
            self.end = self.end.next_multiple_of(Lines::SIZE);
        }
        if let Some(last) = self.items[self.gone..].last_mut()
            && let Some(joined) = join(last, &item)
        {
            *last = joined;
        } else {
            self.items.push(item);
        }
    }

    /// The first `len` bytes, of the front item, have gone.
    fn consume(&mut self, len: usize) {
        let front = &mut self.items[self.gone];
        front.start += len;
        front.len -= len;
        if front.len == 0 {
            self.gone += 1;
        } else if front
            .segment_size
            .is_some_and(|size| front.len <= usize::from(size))
        {
            front.segment_size = None;
        }
        if self.is_empty() {
            self.items.clear();
            self.gone = 0;
            self.end = 0;
        }
    }
}

#[cfg(test)]
mod tests;
