//! How datagrams enter and leave the system, behind a trait: for drivers.
//!
//! All that a Homa driver does with datagrams is written once, over [`Sys`]: turns and timers,
//! joining and splitting, priorities, and what to do when the system will not. [`Os`] is the
//! implementation by system calls; the crate `homa-uring` has one by io_uring. A test puts
//! [`Faulty`] in between, which fails as kernels, network cards and middleboxes do. The type
//! parameter costs nothing in production.

mod faulty;
pub mod layout;
mod options;
mod os;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::stats::{IoStats, Stats};

pub use faulty::{Fate, Faulty, Plan};
pub use os::Os;

/// Bytes that one received datagram, or the datagrams that GRO has joined, can have.
pub const RECEIVE_LEN: usize = 65_536;

/// The most bytes in one [`Outgoing`]: the largest payload of a UDP datagram in IPv4.
pub const SEND_LEN: usize = 65_507;

/// The most [`Outgoing`] or [`Incoming`] that one call takes; more are left for the next.
pub const BATCH: usize = 32;

/// Datagrams to one destination at one priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Where to, in the address family of the socket.
    pub to: SocketAddr,
    /// The local address to send from.
    pub local: Option<IpAddr>,
    /// IPv4 TOS or IPv6 Traffic Class; `None` leaves what the socket has.
    pub tos: Option<u8>,
    /// Where the bytes start in the memory that comes with the call.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
    /// The length of each datagram but the last, which may be shorter; `None` for one datagram.
    pub segment_size: Option<u16>,
}

impl Outgoing {
    /// How many datagrams these are.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        match self.segment_size {
            Some(size) => self.len.div_ceil(usize::from(size).max(1)),
            None => 1,
        }
    }
}

/// The bytes of datagrams that are in several places.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    /// The headers of all datagrams.
    pub headers: &'a [u8],
    /// Bytes of one header.
    pub header_len: usize,
    /// What follows the headers, of all datagrams.
    pub payload: &'a [u8],
}

impl<'a> Lent<'a> {
    /// Header and payload of each datagram of `batch`.
    pub fn datagrams(
        &self,
        batch: &Outgoing,
    ) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let size = batch.segment_size.map_or(batch.len, usize::from);
        let payload = size.saturating_sub(self.header_len).max(1);
        self.headers
            .chunks_exact(self.header_len.max(1))
            .zip(self.payload.chunks(payload))
    }
}

/// A received datagram, or several from one sender that GRO has joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Who sent it; `None` when the kernel told no IP address.
    pub from: Option<SocketAddr>,
    /// The address that it was sent to, if asked for.
    pub local: Option<IpAddr>,
    /// IPv4 TOS or IPv6 Traffic Class.
    pub tos: u8,
    /// Number of bytes.
    pub len: usize,
    /// The length of each datagram but the last; `None` for one datagram.
    pub segment_size: Option<usize>,
    /// The bytes were cut off.
    pub truncated: bool,
    /// Control messages were cut off.
    pub control_truncated: bool,
}

impl Incoming {
    /// Nothing received.
    pub const NONE: Self = Self {
        from: None,
        local: None,
        tos: 0,
        len: 0,
        segment_size: None,
        truncated: false,
        control_truncated: false,
    };

    /// Where this came from, the bytes in `memory` of the datagrams that it is, and the length of
    /// each datagram but the last. `gro`: the system may have
    /// joined several. `None`, and what is dropped of them, is counted.
    pub fn datagrams<'a>(
        &self,
        memory: &'a [u8],
        gro: bool,
        io: &mut IoStats,
    ) -> Option<(SocketAddr, &'a [u8], usize)> {
        let Some(from) = self.from else {
            io.without_address += 1;
            return None;
        };
        // Without the segment size several datagrams would look like one.
        if self.control_truncated && gro {
            io.control_truncated += 1;
            return None;
        }
        let mut bytes = &memory[..self.len.min(memory.len())];
        let size = self.segment_size.unwrap_or(bytes.len()).max(1);
        if self.truncated {
            io.truncated += 1;
            // The last datagram is not whole.
            bytes = &bytes[..(bytes.len().saturating_sub(1)) / size * size];
        }
        io.joined_received += u64::from(bytes.len() > size);
        if self.tos & 0b11 == 0b11 {
            io.congestion_marked += bytes.len().div_ceil(size) as u64;
        }
        Some((from, bytes, size))
    }
}

/// What a socket can be asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ask {
    /// Never fragment what is sent, and do not believe ICMP about the path's MTU.
    DontFragment,
    /// Join received datagrams (UDP GRO).
    Gro,
    /// Tell whether datagrams can be sent joined (UDP GSO).
    Gso,
    /// Tell the TOS or Traffic Class of received datagrams.
    ReceiveTos,
    /// Tell the address that received datagrams were sent to.
    ReceiveLocal,
}

/// Datagrams in and out of one UDP socket, which is the same in every call. None of the calls
/// blocks, except [`wait`](Self::wait).
pub trait Sys {
    /// Comes once, after the options have been set and before the first datagram.
    ///
    /// # Errors
    /// The socket cannot be used in this way, and why.
    fn start(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let _ = socket;
        Ok(())
    }

    /// Bytes of memory that [`receive`](Self::receive) is to be given; none where the
    /// implementation has memory of its own.
    fn receive_memory(&self) -> usize {
        BATCH * RECEIVE_LEN
    }

    /// Receives up to [`BATCH`] times: the bytes of the `i`-th go to the `i`-th
    /// [`RECEIVE_LEN`] bytes of `memory`, or to where [`bytes`](Self::bytes) finds them. Tells
    /// how many there were.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there, or what the system says.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &mut [u8],
        into: &mut [Incoming],
    ) -> io::Result<usize>;

    /// The bytes of the `at`-th reception of the last call, which gave `memory` to be filled.
    /// More may be there than the reception has.
    fn bytes<'a>(&'a self, memory: &'a [u8], at: usize) -> &'a [u8] {
        memory.chunks_exact(RECEIVE_LEN).nth(at).unwrap_or_default()
    }

    /// Whether something that has arrived waits here for the next call to
    /// [`receive`](Self::receive), so that nothing else will tell of it.
    fn has_received(&mut self) -> bool {
        false
    }

    /// Sends; tells how many of `batches` the system has taken, the first of them in order. When
    /// it returns the system has no more need of `memory`.
    ///
    /// # Errors
    /// About the first of `batches`, when none was taken.
    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &[u8],
        batches: &[Outgoing],
    ) -> io::Result<usize>;

    /// Whether [`send_lent`](Self::send_lent) works.
    fn lends(&self) -> bool {
        false
    }

    /// Sends datagrams that do not stand in memory in one piece, all or none: each is the next
    /// `header_len` bytes of `headers` and the next bytes of `payload`. Where and how is as
    /// `batch` has it, but for its `start`. When it returns the system has no more need of either.
    ///
    /// # Errors
    /// What the system says.
    fn send_lent(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &Outgoing,
        lent: Lent<'_>,
    ) -> io::Result<()> {
        let _ = (socket, batch, lent);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sleeps until the socket is readable (or writable, if asked), `wake` is readable, or for
    /// `timeout`. `wake` is the same in every call, and is read by the caller.
    ///
    /// # Errors
    /// What the system says; `Interrupted` by a signal.
    fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        wake: BorrowedFd<'_>,
        writable: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()>;

    /// Sets an option.
    ///
    /// # Errors
    /// `Unsupported` where the platform has no such thing, or what the system says.
    fn ask(&mut self, socket: BorrowedFd<'_>, ask: Ask) -> io::Result<()>;

    /// Asks for a receive buffer of `bytes` and tells what there is: bytes of memory, counted
    /// as the system counts them.
    ///
    /// # Errors
    /// What the system says.
    fn set_receive_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize>;

    /// Asks for a send buffer of `bytes` and tells what there is.
    ///
    /// # Errors
    /// What the system says.
    fn set_send_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize>;

    /// The TOS or Traffic Class that the socket sends with unless told otherwise.
    ///
    /// # Errors
    /// What the system says.
    fn tos(&mut self, socket: BorrowedFd<'_>) -> io::Result<u8>;

    /// Changes that.
    ///
    /// # Errors
    /// What the system says.
    fn set_tos(&mut self, socket: BorrowedFd<'_>, tos: u8) -> io::Result<()>;

    /// What becomes readable when there is something to receive.
    fn readiness<'a>(&'a self, socket: BorrowedFd<'a>) -> BorrowedFd<'a> {
        socket
    }

    /// Whether that becomes readable too when a socket that was full can be written to again.
    fn tells_writable(&self) -> bool {
        false
    }

    /// Adds what only the implementation knows. What comes in has each call of this trait counted
    /// as a system call.
    fn report(&self, stats: &mut Stats) {
        let _ = stats;
    }
}
