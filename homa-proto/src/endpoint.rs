//! The only door: everything that goes into and comes out of the core.

use core::net::{IpAddr, SocketAddr};

use crate::addr::PeerAddr;
use crate::buffer::BufferSource;
use crate::config::Config;
use crate::error::{ConfigError, Drop, PortError, RpcError, SendError, SendErrorKind};
use crate::stats::Stats;
use crate::storage::Storage;
use crate::time::Instant;

/// Names an RPC of one endpoint. Stays unique after the RPC has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RpcId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Options of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestOptions {
    /// Comes back with the event that ends the RPC.
    pub cookie: u64,
    /// Fail the RPC at this time if it has not ended.
    pub deadline: Option<Instant>,
    /// The local Homa port to send from; 0: the first open port.
    pub local_port: u16,
}

/// What happened. Every RPC ends in exactly one event on each side.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<M, B> {
    /// A request arrived; answer it with `send_response` (or `cancel` it).
    Request {
        /// The RPC to answer.
        rpc: RpcId,
        /// Who asks.
        from: PeerAddr,
        /// The local Homa port that was asked.
        port: u16,
        /// The request.
        message: B,
    },
    /// The response to a request arrived: the RPC has ended.
    Response {
        /// The RPC.
        rpc: RpcId,
        /// From [`RequestOptions::cookie`].
        cookie: u64,
        /// Who answered.
        from: PeerAddr,
        /// The response.
        message: B,
        /// The request, handed back for reuse.
        request: M,
    },
    /// A request failed: the RPC has ended.
    Failed {
        /// The RPC.
        rpc: RpcId,
        /// From [`RequestOptions::cookie`].
        cookie: u64,
        /// Who was asked.
        peer: PeerAddr,
        /// Why.
        error: RpcError,
        /// The request, handed back for reuse.
        request: M,
    },
    /// A response is no longer needed: the RPC has ended at this server.
    Released {
        /// The RPC.
        rpc: RpcId,
        /// Who had asked.
        peer: PeerAddr,
        /// `Ok` when the client acknowledged the response or has let go of the RPC;
        /// else why it was given up.
        outcome: Result<(), RpcError>,
        /// The response, handed back for reuse.
        response: M,
    },
}

/// Packets to send, written to the caller's buffer.
///
/// All go to one destination at one priority. Hand a batch to UDP GSO in one call, or send each
/// segment as a datagram of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub to: SocketAddr,
    /// The local address to send from, when the peer has been heard on it.
    pub local: Option<IpAddr>,
    /// 0 to 7, 7 the most urgent.
    pub priority: u8,
    /// Bytes written.
    pub len: usize,
    /// When the buffer holds several packets: the length of each but the last, which may be
    /// shorter.
    pub segment_size: Option<usize>,
}

/// Why [`Endpoint::poll_timeout`] asks to be called back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeoutReason {
    /// A slice of a backlog is left: call `handle_timeout` at once.
    MoreWork,
    /// The link will be ready for more data: call `handle_timeout`, then `poll_transmit`.
    Pacer,
    /// Something may have been lost, a deadline passes or an acknowledgement is due.
    Timer,
}

/// One carrier address with its share of a link.
///
/// After any input: [`poll_transmit`](Self::poll_transmit) until nothing comes,
/// [`poll_event`](Self::poll_event) until nothing comes, then sleep until
/// [`poll_timeout`](Self::poll_timeout) or the next input.
pub struct Endpoint<'a, M, S: BufferSource> {
    _p: core::marker::PhantomData<(&'a M, S)>,
}

#[allow(unused_variables, clippy::todo, missing_docs)]
impl<'a, M: AsRef<[u8]>, S: BufferSource> Endpoint<'a, M, S> {
    /// `seed` must be different for each endpoint and not guessable: it places the first id and
    /// keys the hash tables.
    pub fn new(
        config: Config,
        seed: u128,
        storage: Storage<'a, M, S::Buffer>,
        source: S,
    ) -> Result<Self, ConfigError> {
        todo!()
    }
    pub fn open_port(&mut self, port: u16) -> Result<(), PortError> {
        todo!()
    }
    pub fn send_request(
        &mut self,
        now: Instant,
        to: PeerAddr,
        message: M,
        options: RequestOptions,
    ) -> Result<RpcId, SendError<M>> {
        todo!()
    }
    pub fn send_response(
        &mut self,
        now: Instant,
        rpc: RpcId,
        message: M,
    ) -> Result<(), SendError<M>> {
        todo!()
    }
    /// Ends an RPC without an event; the outgoing message comes back if there was one.
    /// `None`: no such RPC (it has ended).
    pub fn cancel(&mut self, now: Instant, rpc: RpcId) -> Option<Option<M>> {
        todo!()
    }
    pub fn handle_packet(
        &mut self,
        now: Instant,
        from: SocketAddr,
        local: Option<IpAddr>,
        bytes: &[u8],
    ) -> Result<(), Drop> {
        todo!()
    }
    pub fn handle_timeout(&mut self, now: Instant) {
        todo!()
    }
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        todo!()
    }
    pub fn poll_event(&mut self) -> Option<Event<M, S::Buffer>> {
        todo!()
    }
    pub fn poll_timeout(&mut self) -> Option<(Instant, TimeoutReason)> {
        todo!()
    }
    pub fn stats(&self) -> &Stats {
        todo!()
    }
    /// Gives a message's buffer back for reuse; messages that wait for one are served.
    pub fn recycle(&mut self, now: Instant, buffer: S::Buffer) {
        todo!()
    }
    /// What the carrier's receive buffer really holds: never more is granted.
    pub fn set_receive_buffer(&mut self, bytes: u64) {
        todo!()
    }
    /// How far ahead of the link data is handed over (the driver's measured wake-up latency).
    pub fn set_nic_backlog_ns(&mut self, nanos: u64) {
        todo!()
    }
    /// The settings in force, derived values filled in.
    pub fn config(&self) -> &Config {
        todo!()
    }
    /// Live RPCs of both halves.
    pub fn live_rpcs(&self) -> usize {
        todo!()
    }
    /// Recomputes every book from scratch and compares.
    #[cfg(any(test, feature = "check"))]
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        todo!()
    }
}
