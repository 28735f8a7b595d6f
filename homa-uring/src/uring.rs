//! The driver: a ring, or system calls where there is none and the user is content with them.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use homa_mio::sys::{Ask, Incoming, Lent, Os, Outgoing, Sys};
use homa_mio::{Feature, Reason, Stats};

use crate::kernel::{Kernel, Native, Rung};
use crate::ring::{Ring, Settings};

/// Datagrams through io_uring.
///
/// ```
/// use homa_uring::{Socket, Uring};
/// let socket = Socket::builder()
///     .sys(Uring::or_mio().buffers(256))
///     .bind("127.0.0.1:0".parse().unwrap())?;
/// println!("io_uring is {}", socket.stats().io_uring);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Uring<K: Kernel = Native> {
    settings: Settings,
    or_mio: bool,
    way: Way<K>,
}

enum Way<K: Kernel> {
    /// Until there is a socket. Gone while a ring is made.
    Kernel(Option<K>),
    Ring(Box<Ring<K>>),
    /// System calls, because of this.
    Calls(Reason),
}

impl Default for Uring {
    fn default() -> Self {
        Self::over(Native::default())
    }
}

impl Uring {
    /// Where io_uring cannot be used, system calls are, as by `homa-mio`.
    /// [`Stats::io_uring`] tells why.
    #[must_use]
    pub fn or_mio() -> Self {
        Self {
            or_mio: true,
            ..Self::default()
        }
    }
}

impl<K: Kernel> Uring<K> {
    /// A ring by other calls than the operating system's.
    pub fn over(kernel: K) -> Self {
        Self {
            settings: Settings {
                buffers: 64,
                rung: Rung::Deferred,
                multishot: true,
            },
            or_mio: false,
            way: Way::Kernel(Some(kernel)),
        }
    }

    /// How many buffers of 64 KiB the kernel may fill before it has to wait for the driver; the
    /// next power of two, up to 32,768. Default 64.
    #[must_use]
    pub fn buffers(mut self, count: u16) -> Self {
        self.settings.buffers = count.clamp(1, 1 << 15).next_power_of_two();
        self
    }

    /// The best way for the kernel to complete requests that is tried; a kernel that does not
    /// know it uses the next. Default [`Rung::Deferred`].
    #[must_use]
    pub fn rung(mut self, rung: Rung) -> Self {
        self.settings.rung = rung;
        self
    }

    /// Whether one request may receive more than once, if the kernel can. Default true.
    #[must_use]
    pub fn multishot(mut self, on: bool) -> Self {
        self.settings.multishot = on;
        self
    }
}

impl<K: Kernel> Sys for Uring<K> {
    fn start(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Way::Kernel(kernel) = &mut self.way else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let kernel = kernel.take().ok_or(io::ErrorKind::InvalidInput)?;
        self.way = match Ring::new(kernel, self.settings, socket) {
            Ok(ring) => Way::Ring(Box::new(ring)),
            Err(unavailable) if self.or_mio => Way::Calls(unavailable.reason()),
            Err(unavailable) => return Err(unavailable.into()),
        };
        Ok(())
    }

    fn receive_memory(&self) -> usize {
        match &self.way {
            Way::Calls(_) => Os.receive_memory(),
            _ => 0,
        }
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &mut [u8],
        into: &mut [Incoming],
    ) -> io::Result<usize> {
        match &mut self.way {
            Way::Ring(ring) => ring.receive(socket, into),
            _ => Os.receive(socket, memory, into),
        }
    }

    fn bytes<'a>(&'a self, memory: &'a [u8], at: usize) -> &'a [u8] {
        match &self.way {
            Way::Ring(ring) => ring.bytes(at),
            _ => Os.bytes(memory, at),
        }
    }

    fn has_received(&mut self) -> bool {
        match &mut self.way {
            Way::Ring(ring) => ring.has_received(),
            _ => false,
        }
    }

    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &[u8],
        batches: &[Outgoing],
    ) -> io::Result<usize> {
        match &mut self.way {
            Way::Ring(ring) => ring.send(socket, memory, batches),
            _ => Os.send(socket, memory, batches),
        }
    }

    fn lends(&self) -> bool {
        Os.lends()
    }

    fn send_lent(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &Outgoing,
        lent: Lent<'_>,
    ) -> io::Result<()> {
        match &mut self.way {
            Way::Ring(ring) => ring.send_directly(socket, |os| os.send_lent(socket, batch, lent)),
            _ => Os.send_lent(socket, batch, lent),
        }
    }

    fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        wake: BorrowedFd<'_>,
        writable: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        match &mut self.way {
            Way::Ring(ring) => ring.wait(socket, wake, writable, timeout),
            _ => Os.wait(socket, wake, writable, timeout),
        }
    }

    fn ask(&mut self, socket: BorrowedFd<'_>, ask: Ask) -> io::Result<()> {
        Os.ask(socket, ask)
    }

    fn set_receive_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        Os.set_receive_buffer(socket, bytes)
    }

    fn set_send_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        Os.set_send_buffer(socket, bytes)
    }

    fn tos(&mut self, socket: BorrowedFd<'_>) -> io::Result<u8> {
        Os.tos(socket)
    }

    fn set_tos(&mut self, socket: BorrowedFd<'_>, tos: u8) -> io::Result<()> {
        Os.set_tos(socket, tos)
    }

    fn readiness<'a>(&'a self, socket: BorrowedFd<'a>) -> BorrowedFd<'a> {
        match &self.way {
            Way::Ring(ring) => ring.watch(),
            _ => socket,
        }
    }

    fn tells_writable(&self) -> bool {
        matches!(self.way, Way::Ring(_))
    }

    fn report(&self, stats: &mut Stats) {
        let (io_uring, deferred, multishot) = match &self.way {
            Way::Ring(ring) => {
                ring.report(&mut stats.io);
                (Feature::On, ring.deferred(), ring.multishot())
            }
            Way::Kernel(_) => return,
            Way::Calls(reason) => {
                let off = Feature::Off(*reason);
                (off, off, off)
            }
        };
        stats.io_uring = io_uring;
        stats.ring_deferred = deferred;
        stats.ring_multishot = multishot;
    }
}
