//! What the driver has done, and what it does without.

use std::fmt;
use std::time::Duration;

/// Whether something that makes the driver faster or fairer is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Feature {
    /// In use.
    On,
    /// Not in use: the driver does without, and this is why.
    Off(Reason),
}

impl Feature {
    /// Whether it is in use.
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Why a [`Feature`] is off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// By the options.
    Disabled,
    /// Not with these options: a socket bound to one address need not be told which.
    NotNeeded,
    /// The system has no such thing.
    Unsupported,
    /// The system refused it, with this error code.
    Refused(i32),
    /// What was sent in bursts did not arrive.
    BurstsLost,
    /// This driver does not use it.
    OtherDriver,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off(reason) => write!(f, "off: {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("by the options"),
            Self::NotNeeded => f.write_str("not needed"),
            Self::Unsupported => f.write_str("not supported by this system"),
            Self::Refused(code) => {
                write!(f, "refused ({})", std::io::Error::from_raw_os_error(*code))
            }
            Self::BurstsLost => f.write_str("bursts did not arrive"),
            Self::OtherDriver => f.write_str("not used by this driver"),
        }
    }
}

/// A buffer of the socket, in bytes as the system counts them (Linux counts its own overhead
/// too, and doubles what is asked for to make up for it).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BufferSize {
    /// Asked for.
    pub asked: usize,
    /// What there is.
    pub got: usize,
}

/// Counters and state of a [`Socket`](crate::Socket).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The protocol's own counters.
    pub core: homa_proto::Stats,
    /// Counters of the driver.
    pub io: IoStats,
    /// Several equal datagrams sent by one call (GSO).
    pub gso: Feature,
    /// Several datagrams received as one (GRO).
    pub gro: Feature,
    /// Priorities marked in the packets (DSCP).
    pub priorities: Feature,
    /// Answers go out from the address that was asked.
    pub source_address: Feature,
    /// "Do not fragment" set on the packets.
    pub dont_fragment: Feature,
    /// The socket's receive buffer. Grants never exceed what it holds: if there is less than was
    /// asked for, raise the system's limit (`net.core.rmem_max` on Linux).
    pub receive_buffer: BufferSize,
    /// The socket's send buffer.
    pub send_buffer: BufferSize,
    /// How late the driver is when it is to send or look at a certain time, as measured. The
    /// pacer hands over that much ahead.
    pub wake_latency: Duration,
    /// Datagrams pass through io_uring (`homa-uring` only, as all that follows).
    pub io_uring: Feature,
    /// The kernel completes what was asked of the ring when the driver has time for it
    /// (`IORING_SETUP_DEFER_TASKRUN`), and interrupts nobody.
    pub ring_deferred: Feature,
    /// One request to the ring receives until further notice (multishot).
    pub ring_multishot: Feature,
}

impl Stats {
    /// Whether the receive buffer is smaller than asked for.
    #[must_use]
    pub fn receive_buffer_short(&self) -> bool {
        self.receive_buffer.got < self.receive_buffer.asked
    }
}

macro_rules! io_stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What the driver has done since the socket was made. Counters only grow.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct IoStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl IoStats {
            /// System calls for datagrams, all together.
            #[must_use]
            pub fn system_calls(&self) -> u64 {
                self.receive_calls + self.send_calls + self.wait_calls + self.ring_calls
            }

            /// Every counter with its name, in the order of their definition.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

io_stats! {
    /// System calls to receive, those that found nothing included.
    receive_calls,
    /// System calls to send.
    send_calls,
    /// System calls to sleep.
    wait_calls,
    /// System calls to serve the ring: to send, to receive, to sleep, or for all of it together
    /// (`homa-uring` only).
    ring_calls,
    /// Times that another thread had to wake this one, by a system call of its own.
    wakes,
    /// Datagrams received.
    datagrams_received,
    /// Bytes of datagrams received.
    bytes_received,
    /// Receptions that held several datagrams (GRO).
    joined_received,
    /// Datagrams sent.
    datagrams_sent,
    /// Bytes of datagrams sent.
    bytes_sent,
    /// Transmissions of several datagrams at once (GSO).
    joined_sent,
    /// Datagrams received that met congestion (ECN), if
    /// [`Options::count_congestion`](crate::Options::count_congestion) is on.
    congestion_marked,
    /// Receptions cut off because the buffer was too short: what was whole was used.
    truncated,
    /// Receptions dropped because control messages were cut off.
    control_truncated,
    /// Receptions dropped because the system told no address.
    without_address,
    /// Calls interrupted by a signal, and made again.
    interrupted,
    /// Times that the socket took no more: what was to be sent was kept, and went first later.
    would_block,
    /// Times that the system had no memory to send or receive (ENOBUFS, ENOMEM): as above.
    no_buffers,
    /// Errors that tell of some destination: ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, …
    unreachable,
    /// A datagram was longer than the path takes: the MTU that the socket was made with is too
    /// large.
    too_long,
    /// The system refused a message: EINVAL, EIO, EPERM, …
    refused,
    /// Any other error.
    other_errors,
    /// Datagrams that could not be sent, even a second time and without GSO, priority and source
    /// address. As if lost by the network.
    not_sent,
    /// Requests cancelled because more came during a blocking call than are kept.
    requests_shed,
    /// Times that the ring had no free buffer to receive into; what came waited in the socket.
    ring_buffers_short,
    /// Requests to receive that had to be made again, whatever ended the last.
    ring_rearmed,
    /// Times that the ring had more to tell than there was room for; the kernel kept it.
    ring_overflows,
    /// Times that the kernel took no more requests at once (EAGAIN, EBUSY); they went in again.
    ring_submits_again,
    /// Times that a ring was made anew because the socket had gone to another thread.
    ring_moves,
}
