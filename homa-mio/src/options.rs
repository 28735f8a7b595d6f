//! How a socket is made.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use homa_proto::{Config, Endpoint, Limits, Storage};

use crate::message::Pool;
use crate::socket::{Parts, Socket};
use crate::sys::Sys;
use crate::udp::{Udp, Wanted};
use crate::wake::Sleeper;

/// What a thread does while there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wait {
    /// Sleeps until the socket is readable or a timer is due. The cheapest, and tens of
    /// microseconds slower.
    #[default]
    Sleep,
    /// Asks the socket again and again: lowest latency for a whole core.
    Spin,
    /// Spins for this long after something has happened, then sleeps.
    Adaptive(Duration),
}

/// How to make a [`Socket`].
///
/// ```
/// use homa_mio::{Socket, Wait};
/// let socket = Socket::builder()
///     .wait(Wait::Spin)
///     .link_bps(25_000_000_000)
///     .bind("127.0.0.1:0".parse().unwrap())?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options<S> {
    sys: S,
    config: Config,
    limits: Limits,
    wait: Wait,
    wanted: Wanted,
    buffer_bytes: usize,
    kept_bytes: usize,
    ports: Vec<u16>,
    reuse_port: bool,
}

impl<S: Default> Default for Options<S> {
    fn default() -> Self {
        Self {
            sys: S::default(),
            config: Config {
                max_message: 16 << 20,
                // A thread may lose its processor for some milliseconds: no reason to send again.
                resend_floor_ns: 5_000_000,
                // What passes at 40 Gb/s while a thread wakes up. It is what a short message waits for where
                // nothing but this socket queues: four times as much made its P99 beside long ones three times
                // as long, and long ones no faster. One grant for each batch.
                max_incoming: 500_000,
                min_grant: 32_768,
                max_queued: 512 << 20,
                ..Config::default()
            },
            limits: Limits::default(),
            wait: Wait::default(),
            wanted: Wanted {
                gso: true,
                gro: true,
                priorities: true,
                count_congestion: false,
                receive_buffer: 8 << 20,
                send_buffer: 2 << 20,
            },
            buffer_bytes: 256 << 20,
            kept_bytes: 64 << 20,
            ports: Vec::new(),
            reuse_port: false,
        }
    }
}

impl<S: Sys> Options<S> {
    /// What the thread does while it waits. Default: sleep.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// The longest message sent or accepted, in bytes. Default 16 MiB.
    #[must_use]
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.config.max_message = bytes;
        self
    }

    /// The largest IP packet, in bytes. Default 1500. Packets are never fragmented: one that is
    /// too long for its path is lost.
    #[must_use]
    pub fn mtu(mut self, bytes: u16) -> Self {
        self.config.mtu = bytes;
        self
    }

    /// This socket's share of the link, in bits per second, or 0 if unknown: then data is not
    /// paced, and urgent packets can wait behind others in the host. Default 0.
    #[must_use]
    pub fn link_bps(mut self, bps: u64) -> Self {
        self.config.link_bps = bps;
        self
    }

    /// All settings of the protocol. The driver lowers `receive_buffer` to what the socket
    /// really has, and raises `nic_backlog_ns` to the wake-up latency that it measures.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Most bytes of requests that are kept until they are no longer needed, and as many of replies,
    /// for all peers and for one: what would exceed it is refused. Default 512 MiB, and half of it.
    #[must_use]
    pub fn queue(mut self, all: u64, peer: u64) -> Self {
        self.config.max_queued = all;
        self.config.max_peer_queued = peer;
        self
    }

    /// How many RPCs, peers and ended requests there is room for.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Memory for messages: at most `in_use` bytes for those that are arriving or have arrived
    /// and are not dropped yet; what is free is kept up to `kept` bytes. Default 256 MiB and
    /// 64 MiB. Nothing is allocated before it is needed. Half of it is for one client's requests that
    /// are arriving, a quarter for those of strangers, unless [`config`](Self::config) says otherwise.
    #[must_use]
    pub fn memory(mut self, in_use: usize, kept: usize) -> Self {
        self.buffer_bytes = in_use;
        self.kept_bytes = kept;
        self
    }

    /// Receive and send buffer to ask for, in bytes. Default 8 MiB and 2 MiB. What the system
    /// gives is in [`Socket::stats`].
    #[must_use]
    pub fn socket_buffers(mut self, receive: usize, send: usize) -> Self {
        self.wanted.receive_buffer = receive;
        self.wanted.send_buffer = send;
        self
    }

    /// Whether to send several datagrams by one call with GSO. Default true.
    #[must_use]
    pub fn gso(mut self, on: bool) -> Self {
        self.wanted.gso = on;
        self
    }

    /// Whether to receive several datagrams as one with GRO. Default true.
    #[must_use]
    pub fn gro(mut self, on: bool) -> Self {
        self.wanted.gro = on;
        self
    }

    /// Whether to mark priorities in the packets (DSCP CS0 to CS7). Default true.
    #[must_use]
    pub fn priorities(mut self, on: bool) -> Self {
        self.wanted.priorities = on;
        self
    }

    /// Whether to count datagrams with a congestion mark (ECN) in
    /// [`IoStats::congestion_marked`](crate::IoStats::congestion_marked). Costs a little on each
    /// reception. Default false.
    #[must_use]
    pub fn count_congestion(mut self, on: bool) -> Self {
        self.wanted.count_congestion = on;
        self
    }

    /// Another Homa port to serve, beside the one that equals the UDP port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.ports.push(port);
        self
    }

    /// Whether several sockets share the UDP port, each with its part of the peers
    /// (`SO_REUSEPORT`). Default false.
    #[must_use]
    pub fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// What one of `count` sockets gets that share a link and the memory of a process: its part
    /// of the link's speed, of the bytes that may be granted, and of the memory for messages.
    /// Tables and the socket's own buffers are as large for each.
    #[must_use]
    pub fn share(mut self, count: usize) -> Self {
        let count = count.max(1);
        // 0 would mean something else.
        let part = |all: u64| all.div_ceil(count as u64);
        self.config.link_bps = part(self.config.link_bps);
        self.config.max_incoming = part(self.config.max_incoming);
        self.config.max_queued = part(self.config.max_queued);
        self.config.max_peer_queued = part(self.config.max_peer_queued);
        self.buffer_bytes /= count;
        self.kept_bytes /= count;
        self
    }

    /// The same options for datagrams of another kind.
    #[must_use]
    pub fn sys<T: Sys>(self, sys: T) -> Options<T> {
        Options {
            sys,
            config: self.config,
            limits: self.limits,
            wait: self.wait,
            wanted: self.wanted,
            buffer_bytes: self.buffer_bytes,
            kept_bytes: self.kept_bytes,
            ports: self.ports,
            reuse_port: self.reuse_port,
        }
    }

    /// Like [`bind`](Self::bind), for datagrams of another kind.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn bind_with<T: Sys>(self, address: SocketAddr, sys: T) -> io::Result<Socket<T>> {
        self.sys(sys).bind(address)
    }

    /// Makes a socket with this address; port 0 lets the system choose one. An unspecified
    /// address takes packets for every address of the host, and an IPv6 one (`[::]`) those of
    /// IPv4 too.
    ///
    /// # Errors
    /// The address is in use or not of this host, an option has an impossible value
    /// (`InvalidInput`), or the system lacks what the driver needs.
    pub fn bind(self, address: SocketAddr) -> io::Result<Socket<S>> {
        let socket = udp_socket(address, self.reuse_port)?;
        self.from_udp(socket)
    }

    /// Makes a socket from a UDP socket that is bound already. Its ECN bits are kept in what is
    /// sent.
    ///
    /// # Errors
    /// An option has an impossible value (`InvalidInput`), or the system refuses.
    pub fn from_udp(mut self, socket: UdpSocket) -> io::Result<Socket<S>> {
        socket.set_nonblocking(true)?;
        let udp = Udp::new(mio::net::UdpSocket::from_std(socket), self.sys, self.wanted)?;
        let usable = udp.usable_receive_buffer();
        self.config.receive_buffer = match self.config.receive_buffer {
            0 => usable,
            asked => asked.min(usable),
        };
        let sleeper = Sleeper::new()?;
        let pool = Pool::new(self.buffer_bytes, self.kept_bytes, Some(sleeper.waker()));
        let returns = pool.returns();
        let storage = Storage::boxed(self.limits);
        let backlog_ns = self.config.nic_backlog_ns;
        let mut endpoint =
            Endpoint::new(self.config, seed(), storage, pool).map_err(invalid_input)?;
        for port in std::iter::once(udp.local_addr().port()).chain(self.ports) {
            endpoint.open_port(port).map_err(invalid_input)?;
        }
        Ok(Socket::from_parts(Parts {
            udp,
            endpoint,
            returns,
            sleeper,
            outgoing: Pool::new(usize::MAX, self.kept_bytes, None),
            wait: self.wait,
            backlog_ns,
            max_pending: self.limits.rpcs.saturating_mul(2),
        }))
    }
}

/// A UDP socket on an address, alone on its port or beside others.
pub(crate) fn udp_socket(address: SocketAddr, reuse_port: bool) -> io::Result<UdpSocket> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
    if address.is_ipv6() {
        // Where it is refused the socket carries IPv6 alone.
        let _ = socket.set_only_v6(false);
    }
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn invalid_input(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// A number that nobody can guess: hash maps get their keys from the system's generator.
fn seed() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0));
    half() << 64 | half()
}
