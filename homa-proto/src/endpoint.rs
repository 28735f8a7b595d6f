//! The only door: everything that goes into and comes out of the core.

use core::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::acks::Acks;
use crate::addr::{self, PeerAddr};
use crate::buffer::BufferSource;
use crate::config::Config;
use crate::ended::Ended;
use crate::error::{ConfigError, PortError, RpcError, SendError, SendErrorKind};
use crate::grant::Grants;
use crate::hash::{HashKey, SplitMix};
use crate::index::Index;
use crate::list::{List, Stack, Table};
use crate::outgoing::{Kept, SendQueue};
use crate::pacer::Pacer;
use crate::peer::{self, PeerSlot};
use crate::priority::Priorities;
use crate::recovery;
use crate::rpc::{RpcSlot, State, dim};
use crate::stats::{Stats, count};
use crate::storage::{NIL, Storage};
use crate::time::Instant;
use crate::timer::Wheel;
use crate::transmit::Replies;
use crate::tree::Forest;
use crate::wire::DATA_LEN;

/// Homa ports of one endpoint.
const MAX_PORTS: usize = 64;

/// Names an RPC of one endpoint. Stays unique after the RPC has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RpcId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Options of one request. A release may add some: end a literal with
/// `..RequestOptions::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestOptions {
    /// Comes back with the event that ends the RPC.
    pub cookie: u64,
    /// Fail the RPC at this time if it has not ended.
    pub deadline: Option<Instant>,
    /// The local Homa port to send from; 0: the first open port.
    pub local_port: u16,
}

/// What happened. A request of this endpoint ends in exactly one `Response` or `Failed`, unless it
/// is cancelled. A request from elsewhere brings one `Request`, and its response one `Released`;
/// if the client gives up before it is answered, `send_response` says so.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<M, B> {
    /// A request arrived; answer it with `send_response` (or `cancel` it).
    #[non_exhaustive]
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
    #[non_exhaustive]
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
    #[non_exhaustive]
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
    #[non_exhaustive]
    Released {
        /// The RPC.
        rpc: RpcId,
        /// Who had asked.
        peer: PeerAddr,
        /// `Ok` when the client acknowledged the response or no longer knows the RPC;
        /// else why it was given up.
        outcome: Result<(), RpcError>,
        /// The response, handed back for reuse.
        response: M,
    },
}

/// What [`Endpoint::cancel`] has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled<M> {
    /// A request of this endpoint, handed back.
    Request(M),
    /// The response to a request, handed back.
    Response(M),
    /// A request that had no response yet.
    Unanswered,
}

impl<M> Cancelled<M> {
    /// The message that was being sent, if there was one.
    pub fn message(self) -> Option<M> {
        match self {
            Self::Request(message) | Self::Response(message) => Some(message),
            Self::Unanswered => None,
        }
    }
}

/// Packets to send, written to the caller's buffer.
///
/// All go to one destination at one priority. Hand a batch to UDP GSO in one call, or send each
/// segment as a datagram of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
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

impl Transmit {
    /// One packet of `len` bytes, at the lowest priority. For tests of what sends them.
    #[must_use]
    pub const fn new(to: SocketAddr, len: usize) -> Self {
        Self {
            to,
            local: None,
            priority: 0,
            len,
            segment_size: None,
        }
    }
}

/// Packets to send whose payload, if it is long, has not been copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Gather<'m> {
    /// Where to, and how long the packets are: as if they stood one after the other.
    pub transmit: Transmit,
    /// Empty: the caller's buffer holds the packets whole, as
    /// [`poll_transmit`](Endpoint::poll_transmit) writes them. Else it holds their headers, of
    /// [`wire::DATA_LEN`](crate::wire::DATA_LEN) bytes each, one after the other, and this is the
    /// payload of all: each packet is its header and the next bytes of this, up to
    /// [`Transmit::segment_size`] in all.
    pub payload: &'m [u8],
}

impl<'m> Gather<'m> {
    /// These packets with this payload. For tests of what sends them.
    #[must_use]
    pub const fn new(transmit: Transmit, payload: &'m [u8]) -> Self {
        Self { transmit, payload }
    }

    /// The header and the payload of each packet, in order. `headers` is the buffer that they were
    /// written to. Nothing when the packets are there whole.
    pub fn packets<'h>(
        &self,
        headers: &'h [u8],
    ) -> impl Iterator<Item = (&'h [u8], &'m [u8])> + use<'h, 'm> {
        let segment = self.transmit.segment_size.unwrap_or(self.transmit.len);
        let payload = segment.saturating_sub(DATA_LEN).max(1);
        headers
            .chunks_exact(DATA_LEN)
            .zip(self.payload.chunks(payload))
    }
}

/// Why [`Endpoint::poll_timeout`] asks to be called back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeoutReason {
    /// A slice of a backlog is left: call [`Endpoint::handle_timeout`] at once.
    MoreWork,
    /// The link will be ready for more data: call [`Endpoint::poll_transmit`] then.
    Pacer,
    /// Something may have been lost, a deadline passes or an acknowledgement is due: call
    /// [`Endpoint::handle_timeout`] then.
    Timer,
}

/// One carrier address with its share of a link: one set of peers, grants, pacer and ids, and one
/// or more Homa ports.
///
/// It never reads a clock, draws a random number or touches a socket. After any input:
/// [`poll_transmit`](Self::poll_transmit) until nothing comes, [`poll_event`](Self::poll_event)
/// until nothing comes, then sleep until [`poll_timeout`](Self::poll_timeout) or the next input.
///
/// `M` is an outgoing message: anything that is `AsRef<[u8]>`, kept until it is no longer needed
/// and then handed back in an [`Event`]. `S` gives memory for incoming messages.
///
/// No method panics, whatever the network or the caller does. Each costs O(1) or O(log n) in the
/// number of RPCs and peers, and none allocates.
///
/// ```
/// use homa_proto::{Config, Endpoint, Event, HeapBuffers, Instant, Limits, RequestOptions, Storage};
///
/// let now = Instant::ZERO;
/// let limits = Limits { rpcs: 16, peers: 4, ended: 64 };
/// let mut client = Endpoint::new(
///     Config::default(), 1, Storage::boxed(limits), HeapBuffers::new(1 << 20),
/// )?;
/// let mut server = Endpoint::new(
///     Config::default(), 2, Storage::boxed(limits), HeapBuffers::new(1 << 20),
/// )?;
/// let (at, to) = ("10.0.0.1:4000".parse()?, "10.0.0.2:4000".parse()?);
/// client.open_port(4000)?;
/// server.open_port(4000)?;
///
/// let to: std::net::SocketAddr = to;
/// client.send_request(now, to.into(), b"ping".to_vec(), RequestOptions::default())?;
/// let mut packet = [0; 1500];
/// let sent = client.poll_transmit(now, &mut packet).unwrap();
/// server.handle_packet(now, at, None, &packet[..sent.len])?;
/// let Some(Event::Request { rpc, message, .. }) = server.poll_event() else { panic!() };
/// assert_eq!(&message[..], b"ping");
///
/// server.send_response(now, rpc, b"pong".to_vec())?;
/// let sent = server.poll_transmit(now, &mut packet).unwrap();
/// # let sent = if packet[11] == 0x10 { sent } else { server.poll_transmit(now, &mut packet).unwrap() };
/// client.handle_packet(now, to, None, &packet[..sent.len])?;
/// let Some(Event::Response { message, .. }) = client.poll_event() else { panic!() };
/// assert_eq!(&message[..], b"pong");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Endpoint<'a, M, S: BufferSource> {
    pub(crate) config: Config,
    pub(crate) now: Instant,
    pub(crate) key: HashKey,
    pub(crate) rpcs: Table<'a, RpcSlot<M, S::Buffer>>,
    pub(crate) peers: Table<'a, PeerSlot>,
    pub(crate) rpc_index: Index<'a>,
    pub(crate) peer_index: Index<'a>,
    pub(crate) timers: Wheel<'a>,
    pub(crate) ended: Ended<'a>,
    pub(crate) queue: SendQueue<'a>,
    pub(crate) grants: Grants<'a>,
    pub(crate) pacer: Pacer,
    pub(crate) priorities: Priorities,
    pub(crate) source: S,
    pub(crate) stats: Stats,
    ports: [u16; MAX_PORTS],
    port_count: usize,
    next_id: u64,
    pub(crate) births: u64,
    pub(crate) free_rpcs: Stack,
    /// Slots taken by requests of this endpoint.
    pub(crate) clients: usize,
    /// This endpoint has sent a request.
    pub(crate) has_asked: bool,
    /// A request has come, taken or not.
    pub(crate) was_asked: bool,
    free_peers: List,
    /// Peers without RPCs, least recently used first.
    pub(crate) idle_peers: List,
    pub(crate) acks: Acks<'a>,
    pub(crate) events: List,
    /// RPCs with control packets due.
    pub(crate) control: List,
    /// Peers with control packets due.
    pub(crate) peer_control: List,
    /// Peers with acknowledgements that wait, in the order in which they become due.
    pub(crate) ack_order: List,
    /// Peers some of whose parked requests may begin.
    pub(crate) unparking: List,
    /// Answers to packets of unknown RPCs.
    pub(crate) replies: Replies,
    /// Bytes of strangers' requests that are arriving.
    pub(crate) strangers_arriving: u64,
    /// Slots taken by requests of strangers, and strangers that have requests here.
    pub(crate) stranger_requests: u32,
    pub(crate) stranger_peers: u32,
    /// Bytes of messages of this endpoint's own that are kept.
    pub(crate) queued: Kept,
    /// The peer of the last packet, and the last RPC of whose message more is to come.
    last_peer: u32,
    pub(crate) last_rpc: u32,
    /// The RPC whose message the last packet was a part of, if it is not complete.
    pub(crate) run: u32,
    pub(crate) more_work: bool,
    /// Since when there have always been live RPCs.
    pub(crate) busy_since: Instant,
    /// Nothing about an RPC is due sooner after all of its message has gone.
    pub(crate) soonest_ns: u64,
    /// `handle_timeout` came late: until then silence is not held against anybody.
    pub(crate) grace_until: Instant,
    /// No such leniency again before then.
    pub(crate) next_grace: Instant,
    /// Messages that wait for grants, and since when nothing else could be sent.
    pub(crate) stalled: u32,
    pub(crate) sender_idle_since: Option<Instant>,
}

impl<'a, M: AsRef<[u8]>, S: BufferSource> Endpoint<'a, M, S> {
    /// An endpoint without ports.
    ///
    /// `seed` must be different for each endpoint and not guessable by peers: it places the first
    /// id and keys the hash tables.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when the settings cannot work together or a table is unusable.
    pub fn new(
        config: Config,
        seed: u128,
        storage: Storage<'a, M, S::Buffer>,
        source: S,
    ) -> Result<Self, ConfigError> {
        let mut config = config.resolve()?;
        let mut random = SplitMix::new(seed);
        let key = HashKey::new(seed);
        let mut rpcs = Table::new(storage.rpcs);
        let mut peers = Table::new(storage.peers);
        let fits = |name, ok: bool| {
            if ok {
                Ok(())
            } else {
                Err(ConfigError::Storage(name))
            }
        };
        let usable = |len: usize| (1..=1 << 30).contains(&len);
        fits("rpcs", usable(rpcs.len()))?;
        fits("peers", usable(peers.len()))?;
        let enough = rpcs.len();
        config.fit(enough, source.capacity());
        fits("timers", storage.timers.len() >= enough)?;
        fits("send_order", storage.send_order.len() >= enough)?;
        fits("grant_order", storage.grant_order.len() >= enough)?;
        fits("peer_order", storage.peer_order.len() >= peers.len())?;
        let rpc_index = Index::new(storage.rpc_index).ok_or(ConfigError::Storage("rpc_index"))?;
        let peer_index =
            Index::new(storage.peer_index).ok_or(ConfigError::Storage("peer_index"))?;
        fits("rpc_index", rpc_index.limit() >= rpcs.len())?;
        fits("peer_index", peer_index.limit() >= peers.len())?;
        let ended = Ended::new(storage.ended, storage.ended_chains, config.ended_window_ns)
            .ok_or(ConfigError::Storage("ended"))?;

        let (mut free_rpcs, mut free_peers) = (Stack::EMPTY, List::EMPTY);
        for slot in rpcs.iter_mut() {
            *slot = RpcSlot::new();
        }
        for slot in peers.iter_mut() {
            *slot = PeerSlot::new();
        }
        for idx in (0..u32::try_from(rpcs.len()).unwrap_or(NIL)).rev() {
            rpcs.push(&mut free_rpcs, dim::QUEUE, idx);
        }
        for idx in 0..u32::try_from(peers.len()).unwrap_or(NIL) {
            peers.push_back(&mut free_peers, peer::dim::IDLE, idx);
        }
        // Where the pacer rules, the turn of the oldest message is one packet; where batches go
        // out as they come, it is one batch.
        let turn_bytes = match config.link_bps {
            0 => u64::from(config.max_batch)
                .saturating_mul(u64::from(config.mtu))
                .min(MAX_DATAGRAM as u64),
            _ => u64::from(config.mtu),
        };
        Ok(Self {
            now: Instant::ZERO,
            key,
            rpcs,
            peers,
            rpc_index,
            peer_index,
            timers: Wheel::new(storage.timers),
            ended,
            queue: SendQueue::new(
                Forest::new(storage.send_order),
                config.fifo_permille,
                turn_bytes,
            ),
            grants: Grants::new(
                Forest::new(storage.grant_order),
                Forest::new(storage.peer_order),
                &config,
            ),
            pacer: Pacer::new(config.link_bps, config.nic_backlog_ns),
            priorities: Priorities::new(
                config.levels,
                config.fixed_cutoffs,
                random.next_u64() as u16,
            ),
            source,
            stats: Stats::default(),
            ports: [0; MAX_PORTS],
            port_count: 0,
            // Even; far from the end of the numbers, so that it grows for ever.
            next_id: ((random.next_u64() >> 2) | 2) & !1,
            births: 0,
            free_rpcs,
            clients: 0,
            has_asked: false,
            was_asked: false,
            free_peers,
            idle_peers: List::EMPTY,
            acks: Acks::new(storage.acks),
            events: List::EMPTY,
            control: List::EMPTY,
            peer_control: List::EMPTY,
            ack_order: List::EMPTY,
            unparking: List::EMPTY,
            replies: Replies::new(),
            strangers_arriving: 0,
            stranger_requests: 0,
            stranger_peers: 0,
            queued: Kept::NONE,
            last_peer: 0,
            last_rpc: 0,
            run: NIL,
            more_work: false,
            busy_since: Instant::ZERO,
            soonest_ns: recovery::soonest_ns(&config),
            grace_until: Instant::ZERO,
            next_grace: Instant::ZERO,
            stalled: 0,
            sender_idle_since: None,
            config,
        })
    }

    /// Opens a Homa port: requests to it are taken, and requests can be sent from it.
    ///
    /// # Errors
    ///
    /// [`PortError`] for port 0, a port that is open, or too many.
    pub fn open_port(&mut self, port: u16) -> Result<(), PortError> {
        if port == 0 {
            return Err(PortError::Zero);
        }
        if self.is_open(port) {
            return Err(PortError::InUse);
        }
        let slot = self
            .ports
            .get_mut(self.port_count)
            .ok_or(PortError::TooMany)?;
        *slot = port;
        self.port_count = self.port_count.saturating_add(1);
        Ok(())
    }

    /// Starts an RPC. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    ///
    /// # Errors
    ///
    /// [`SendError`] gives the message back and says why.
    pub fn send_request(
        &mut self,
        now: Instant,
        to: PeerAddr,
        message: M,
        options: RequestOptions,
    ) -> Result<RpcId, SendError<M>> {
        let now = self.advance(now);
        match self.start_request(now, to, message.as_ref().len(), options) {
            Ok(idx) => {
                self.keep(idx, message);
                count(&mut self.stats.requests_sent);
                self.start_sending(now, idx);
                Ok(self.id_of(idx))
            }
            Err(kind) => Err(SendError { kind, message }),
        }
    }

    fn start_request(
        &mut self,
        now: Instant,
        to: PeerAddr,
        len: usize,
        options: RequestOptions,
    ) -> Result<u32, SendErrorKind> {
        self.check_len(len)?;
        let socket = canonical(to.socket);
        if !self.is_address(socket) || to.port == 0 {
            return Err(SendErrorKind::BadAddress);
        }
        let local_port = match options.local_port {
            0 => self.ports.first().copied().unwrap_or(0),
            port => port,
        };
        if !self.is_open(local_port) {
            return Err(SendErrorKind::PortNotOpen);
        }
        if options.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(SendErrorKind::DeadlineExceeded);
        }
        if self.free_rpcs.is_empty() || self.clients >= self.most_of_a_half() {
            return Err(SendErrorKind::RpcsFull);
        }
        let known = self.peer_of(&socket);
        self.check_queue(known, true, len)?;
        let p = self
            .peer_or_new(now, socket, None)
            .ok_or(SendErrorKind::PeersFull)?;
        let id = self.next_id;
        self.next_id = match self.next_id.wrapping_add(2) {
            0 => 2,
            next => next,
        };
        let idx = self
            .allocate(p, id, local_port, to.port)
            .ok_or(SendErrorKind::RpcsFull)?;
        self.has_asked = true;
        let rpc = &mut self.rpcs[idx];
        rpc.state = State::ClientOutgoing;
        rpc.cookie = options.cookie;
        rpc.deadline = options.deadline.unwrap_or(Instant::MAX);
        rpc.heard = now;
        rpc.asked = now;
        if options.deadline.is_some() {
            self.arm(idx);
        }
        Ok(idx)
    }

    /// Answers a request. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    ///
    /// # Errors
    ///
    /// [`SendError`] gives the message back and says why: among the reasons, that the RPC has
    /// ended because its client no longer knows it. With a full queue the RPC goes on waiting for
    /// its response.
    pub fn send_response(
        &mut self,
        now: Instant,
        rpc: RpcId,
        message: M,
    ) -> Result<(), SendError<M>> {
        let now = self.advance(now);
        let len = message.as_ref().len();
        let checked = self.check_len(len).and_then(|()| {
            let idx = self
                .find(rpc)
                .filter(|&idx| self.rpcs[idx].state == State::ServerInService)
                .ok_or(SendErrorKind::NoSuchRpc)?;
            self.check_queue(Some(self.rpcs[idx].peer), false, len)?;
            Ok(idx)
        });
        match checked {
            Ok(idx) => {
                let rpc = &mut self.rpcs[idx];
                rpc.state = State::ServerOutgoing;
                rpc.moved = now;
                rpc.heard = now;
                rpc.asked = now;
                rpc.has_turn = false;
                rpc.tries = 0;
                self.keep(idx, message);
                count(&mut self.stats.responses_sent);
                self.start_sending(now, idx);
                Ok(())
            }
            Err(kind) => Err(SendError { kind, message }),
        }
    }

    /// Ends an RPC without an event: a request of this endpoint, or one that it has been asked.
    /// Gives the outgoing message back.
    ///
    /// `None`: no such RPC; the event that ended it has been polled.
    pub fn cancel(&mut self, now: Instant, rpc: RpcId) -> Option<Cancelled<M>> {
        let now = self.advance(now);
        let idx = self.find(rpc)?;
        count(&mut self.stats.cancelled);
        let state = self.rpcs[idx].state;
        if matches!(state, State::ServerInService | State::ServerOutgoing) {
            self.remember_ended(now, idx);
        }
        self.detach(idx);
        self.rpcs.unlink(&mut self.events, dim::QUEUE, idx);
        let slot = &mut self.rpcs[idx];
        let cancelled = match slot.out.message.take() {
            Some(request) if slot.is_client() => Cancelled::Request(request),
            Some(response) => Cancelled::Response(response),
            None => Cancelled::Unanswered,
        };
        self.free(idx);
        self.serve_waiters(now);
        Some(cancelled)
    }

    /// The next thing that happened. Call after each input until `None` comes; what is not
    /// polled keeps its slot, and when all are taken new work is refused.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event<M, S::Buffer>> {
        let idx = self.rpcs.pop_front(&mut self.events, dim::QUEUE)?;
        // Each has a function of its own that puts it together where it goes: of one function for all the compiler
        // makes code that takes events to pieces.
        match self.rpcs[idx].state {
            State::ServerArrived => self.requested(idx),
            State::ClientAnswered => self.answered(idx),
            State::ClientFailed => self.failed(idx),
            State::ServerReleased => self.released(idx),
            _ => None,
        }
    }

    #[inline(never)]
    fn requested(&mut self, idx: u32) -> Option<Event<M, S::Buffer>> {
        self.uncharge(idx);
        let rpc = self.id_of(idx);
        let slot = &mut self.rpcs[idx];
        slot.state = State::ServerInService;
        Some(Event::Request {
            message: slot.inc.buffer.take()?,
            rpc,
            from: PeerAddr::new(self.peers[slot.peer].addr, slot.peer_port),
            port: slot.local_port,
        })
    }

    #[inline(never)]
    fn answered(&mut self, idx: u32) -> Option<Event<M, S::Buffer>> {
        let rpc = self.vacate(idx);
        let slot = &mut self.rpcs[idx];
        Some(Event::Response {
            message: slot.inc.buffer.take()?,
            request: slot.out.message.take()?,
            rpc,
            cookie: slot.cookie,
            from: PeerAddr::new(self.peers[slot.peer].addr, slot.peer_port),
        })
    }

    #[inline(never)]
    fn failed(&mut self, idx: u32) -> Option<Event<M, S::Buffer>> {
        let rpc = self.vacate(idx);
        let slot = &mut self.rpcs[idx];
        Some(Event::Failed {
            request: slot.out.message.take()?,
            rpc,
            cookie: slot.cookie,
            peer: PeerAddr::new(self.peers[slot.peer].addr, slot.peer_port),
            error: slot.error.unwrap_or(RpcError::WentSilent),
        })
    }

    #[inline(never)]
    fn released(&mut self, idx: u32) -> Option<Event<M, S::Buffer>> {
        let rpc = self.vacate(idx);
        let slot = &mut self.rpcs[idx];
        Some(Event::Released {
            response: slot.out.message.take()?,
            rpc,
            peer: PeerAddr::new(self.peers[slot.peer].addr, slot.peer_port),
            outcome: slot.error.map_or(Ok(()), Err),
        })
    }

    /// When to come back, and why; `None`: nothing to wait for but input. Ask again after every
    /// other call. A timer may come early and find nothing to do, about once in the shortest time after
    /// which an RPC asks ([`Config::resend_floor_ns`](crate::Config::resend_floor_ns)).
    ///
    /// After [`handle_timeout`](Self::handle_timeout)`(now)` the answer is later than `now`, or
    /// it is `now` with [`TimeoutReason::MoreWork`]. That can repeat, but not for ever: each call
    /// does a bounded slice of a backlog that shrinks.
    pub fn poll_timeout(&mut self) -> Option<(Instant, TimeoutReason)> {
        if self.more_work || self.unparking.first().is_some() {
            return Some((self.now, TimeoutReason::MoreWork));
        }
        let mut next: Option<(Instant, TimeoutReason)> = None;
        let mut sooner = |at: Instant, reason| {
            if next.is_none_or(|(soonest, _)| at < soonest) {
                next = Some((at, reason));
            }
        };
        // Without RPCs all timers in the wheel are disarmed ones.
        if self.rpc_index.len() > 0
            && let Some(at) = self.timers.next()
        {
            sooner(Instant::from_nanos(at), TimeoutReason::Timer);
        }
        if let Some(p) = self.ack_order.first() {
            let due = self.peers[p].acks_since.after(self.config.ack_delay_ns);
            sooner(due, TimeoutReason::Timer);
        }
        if !self.queue.is_empty()
            && let Some(at) = self.pacer.ready_at(self.now)
        {
            sooner(at, TimeoutReason::Pacer);
        }
        next.filter(|&(at, _)| at != Instant::MAX)
    }

    /// Counters since the endpoint was made.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The settings in force, derived values filled in.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The source of buffers.
    #[must_use]
    pub fn buffers(&self) -> &S {
        &self.source
    }

    /// Gives a message's buffer back for reuse; messages that wait for one are served.
    /// Call [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn recycle(&mut self, now: Instant, buffer: S::Buffer) {
        let now = self.advance(now);
        self.source.give_back(buffer);
        self.serve_waiters(now);
    }

    /// Tells how many bytes the carrier's receive buffer really holds: no more is granted.
    /// 0: no limit.
    pub fn set_receive_buffer(&mut self, bytes: u64) {
        self.config.receive_buffer = bytes;
        // Peers must learn how much of a message may come unasked.
        self.priorities.renew();
        self.grants.set_limits(&self.config);
    }

    /// Sets how far ahead of the link data is handed over, in nanoseconds: at least the wake-up
    /// latency that the driver has measured.
    pub fn set_nic_backlog_ns(&mut self, nanos: u64) {
        self.config.nic_backlog_ns = nanos.max(1);
        self.pacer.set_backlog_ns(self.config.nic_backlog_ns);
    }

    /// RPCs of both halves that take a slot, those whose event waits to be polled included.
    #[must_use]
    pub fn live_rpcs(&self) -> usize {
        self.rpcs.len().saturating_sub(self.free_rpcs.len())
    }

    /// The id of a live RPC in the packets that this endpoint sends: for logs, and to find it in a
    /// packet capture.
    #[must_use]
    pub fn wire_id(&self, rpc: RpcId) -> Option<u64> {
        self.find(rpc).map(|idx| self.rpcs[idx].id)
    }

    /// Bytes of this endpoint's own messages that are kept: waiting to be sent, on their way, or
    /// waiting for the event that hands them back to be polled.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queued.requests.saturating_add(self.queued.responses)
    }

    /// Peers known.
    #[must_use]
    pub fn known_peers(&self) -> usize {
        self.peers.len().saturating_sub(self.free_peers.len())
    }

    /// Bytes granted and not yet received, over all messages.
    #[must_use]
    pub fn total_incoming(&self) -> u64 {
        self.grants.total_incoming()
    }

    /// The cutoffs of unscheduled priorities in force here, by level, and the top scheduled level.
    #[must_use]
    pub fn cutoffs(&self) -> ([u32; 8], u8) {
        (self.priorities.cutoffs, self.priorities.max_sched)
    }
}

/// The longest payload of a UDP datagram.
pub(crate) const MAX_DATAGRAM: usize = 65_507;

/// An address as peers are known by: IPv4-mapped as IPv4, without flow label.
pub(crate) fn canonical(socket: SocketAddr) -> SocketAddr {
    match socket {
        SocketAddr::V4(_) => socket,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, v6.port())),
            None => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id())),
        },
    }
}

// Tables: who is where.
impl<M: AsRef<[u8]>, S: BufferSource> Endpoint<'_, M, S> {
    /// Time never goes backwards inside. It never reaches `Instant::MAX`, which is "never": nothing
    /// could be put off any more.
    pub(crate) fn advance(&mut self, now: Instant) -> Instant {
        const LAST: Instant = Instant::from_nanos(u64::MAX.wrapping_sub(1));
        self.now = self.now.max(now).min(LAST);
        self.now
    }

    pub(crate) fn is_open(&self, port: u16) -> bool {
        // Most endpoints have one. Places without a port are 0, which is none.
        port != 0 && (self.ports.first() == Some(&port) || self.ports.contains(&port))
    }

    pub(crate) fn is_address(&self, socket: SocketAddr) -> bool {
        let has_port = socket.port() != 0 || self.config.carrier == crate::Carrier::NativeIp;
        has_port && addr::is_unicast(socket.ip())
    }

    fn check_len(&self, len: usize) -> Result<(), SendErrorKind> {
        if len == 0 {
            Err(SendErrorKind::Empty)
        } else if len > self.config.max_message as usize {
            Err(SendErrorKind::TooLong)
        } else {
            Ok(())
        }
    }

    /// Whether one more message of `len` bytes of one half keeps to what may be kept, for a peer, if it
    /// is known, and for all.
    fn check_queue(
        &self,
        p: Option<u32>,
        is_client: bool,
        len: usize,
    ) -> Result<(), SendErrorKind> {
        let fits = |kept: u64, most| kept == 0 || kept.saturating_add(len as u64) <= most;
        let to_peer = p.map_or(0, |p| self.peers[p].queued.of_half(is_client));
        if !fits(to_peer, self.config.max_peer_queued) {
            Err(SendErrorKind::PeerQueueFull)
        } else if !fits(self.queued.of_half(is_client), self.config.max_queued) {
            Err(SendErrorKind::QueueFull)
        } else {
            Ok(())
        }
    }

    /// A message goes out in an RPC, and is kept until that is freed.
    fn keep(&mut self, idx: u32, message: M) {
        let rpc = &mut self.rpcs[idx];
        // Its length has been checked.
        let len = message.as_ref().len();
        rpc.queued = u32::try_from(len).unwrap_or(u32::MAX);
        rpc.out.message = Some(message);
        let (len, is_client) = (u64::from(rpc.queued), rpc.is_client());
        for queued in [&mut self.peers[rpc.peer].queued, &mut self.queued] {
            let queued = queued.of_half_mut(is_client);
            *queued = queued.saturating_add(len);
        }
    }

    pub(crate) fn id_of(&self, idx: u32) -> RpcId {
        RpcId {
            slot: idx,
            generation: self.rpcs[idx].generation,
        }
    }

    fn find(&self, rpc: RpcId) -> Option<u32> {
        self.rpcs
            .lookup(rpc.slot)
            .filter(|slot| slot.generation == rpc.generation && slot.state != State::Free)
            .map(|_| rpc.slot)
    }

    /// The peer with a canonical address.
    #[inline]
    pub(crate) fn peer_of(&mut self, addr: &SocketAddr) -> Option<u32> {
        let last = &self.peers[self.last_peer];
        if last.in_use && last.addr == *addr {
            return Some(self.last_peer);
        }
        let peers = &self.peers;
        let found = self
            .peer_index
            .find(self.key.addr(addr), |p| peers[p].addr == *addr)?;
        self.last_peer = found;
        Some(found)
    }

    /// The peer with a canonical address, made if it is new. `None`: the table is full of peers
    /// with live RPCs.
    pub(crate) fn peer_or_new(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        local: Option<IpAddr>,
    ) -> Option<u32> {
        if let Some(p) = self.peer_of(&addr) {
            return Some(p);
        }
        let p = match self.peers.pop_front(&mut self.free_peers, peer::dim::IDLE) {
            Some(p) => p,
            None => {
                let p = self
                    .peers
                    .pop_front(&mut self.idle_peers, peer::dim::IDLE)?;
                self.forget_peer(p);
                p
            }
        };
        let hash = self.key.addr(&addr);
        self.peers[p].occupy(addr, hash, local);
        self.peers[p].resend_free = now;
        self.peer_index.insert(hash, p);
        // Idle until it has an RPC.
        self.peers
            .push_back(&mut self.idle_peers, peer::dim::IDLE, p);
        self.last_peer = p;
        Some(p)
    }

    /// An idle peer leaves the table.
    fn forget_peer(&mut self, p: u32) {
        count(&mut self.stats.peers_evicted);
        self.peer_index.remove(self.peers[p].addr_hash, p);
        self.peers
            .unlink(&mut self.peer_control, peer::dim::CONTROL, p);
        self.peers.unlink(&mut self.ack_order, peer::dim::ACKS, p);
        self.peers.unlink(&mut self.unparking, peer::dim::UNPARK, p);
        // What it should still be told it asks for.
        while self.acks.pop(&mut self.peers[p].acks).is_some() {}
        self.peers[p].in_use = false;
    }

    /// The live RPC with a local id.
    #[inline]
    pub(crate) fn rpc_of(&self, p: u32, id: u64) -> Option<u32> {
        // Packets of one message come one after the other.
        let last = &self.rpcs[self.last_rpc];
        if last.id == id && last.peer == p && last.state.is_live() {
            return Some(self.last_rpc);
        }
        self.indexed_rpc(p, id)
    }

    #[inline]
    pub(crate) fn indexed_rpc(&self, p: u32, id: u64) -> Option<u32> {
        let rpcs = &self.rpcs;
        self.rpc_index.find(self.key.rpc(p, id), |idx| {
            let rpc = &rpcs[idx];
            rpc.id == id && rpc.peer == p
        })
    }

    /// Slots that one half may take: all, unless the other half is in use too. Endpoints whose slots
    /// are all taken by requests to each other would wait for each other until they time out.
    pub(crate) fn most_of_a_half(&self) -> usize {
        let slots = self.rpcs.len();
        let is_both = self.has_asked && self.was_asked;
        let kept = if is_both { (slots / 4).max(1) } else { 0 };
        slots.saturating_sub(kept).max(1)
    }

    /// A slot for a new RPC.
    pub(crate) fn allocate(
        &mut self,
        p: u32,
        id: u64,
        local_port: u16,
        peer_port: u16,
    ) -> Option<u32> {
        let idx = self.rpcs.pop(&mut self.free_rpcs, dim::QUEUE)?;
        let peer = &mut self.peers[p];
        if id & 1 == 0 {
            self.clients = self.clients.saturating_add(1);
        } else {
            if !peer.is_proved {
                let is_first = u32::from(peer.requests == 0);
                self.stranger_requests = self.stranger_requests.saturating_add(1);
                self.stranger_peers = self.stranger_peers.saturating_add(is_first);
            }
            peer.requests = peer.requests.saturating_add(1);
        }
        let was_idle = peer.live == 0;
        peer.live = peer.live.saturating_add(1);
        let hash = self.key.rpc(p, id);
        let rpc = &mut self.rpcs[idx];
        rpc.reset();
        rpc.id = id;
        rpc.hash = hash;
        rpc.moved = self.now;
        rpc.peer = p;
        rpc.local_port = local_port;
        rpc.peer_port = peer_port;
        rpc.birth = self.births;
        self.births = self.births.wrapping_add(1);
        if self.rpc_index.len() == 0 {
            self.busy_since = self.now;
        }
        self.rpc_index.insert(hash, idx);
        if was_idle {
            self.peers.unlink(&mut self.idle_peers, peer::dim::IDLE, p);
        }
        Some(idx)
    }

    /// Takes an RPC out of everything that works on live ones. Its slot and its outgoing message
    /// stay for the event, an incomplete incoming message goes.
    pub(crate) fn detach(&mut self, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        if !rpc.state.is_live() {
            return;
        }
        rpc.pending = crate::rpc::Pending::default();
        let (hash, is_complete) = (rpc.hash, rpc.inc.is_complete());
        if !rpc.is_alone() {
            self.stop_sending(self.now, idx);
            self.rpcs.unlink(&mut self.control, dim::CONTROL, idx);
            self.grants.forget(&mut self.rpcs, &mut self.peers, idx);
        }
        self.begun_ended(idx);
        self.timers.cancel(idx);
        self.rpc_index.remove(hash, idx);
        if !is_complete {
            self.uncharge(idx);
            if let Some(buffer) = self.rpcs[idx].inc.buffer.take() {
                self.source.give_back(buffer);
            }
        }
    }

    /// Frees the slot of a detached RPC.
    pub(crate) fn free(&mut self, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        rpc.out.message = None;
        if let Some(buffer) = rpc.inc.buffer.take() {
            self.source.give_back(buffer);
        }
        self.vacate(idx);
    }

    /// Frees the slot of a detached RPC, but for its messages, which the caller takes. Returns the id that it had.
    fn vacate(&mut self, idx: u32) -> RpcId {
        self.uncharge(idx);
        let id = self.id_of(idx);
        let rpc = &mut self.rpcs[idx];
        let p = rpc.peer;
        let peer = &mut self.peers[p];
        rpc.state = State::Free;
        rpc.generation = rpc.generation.wrapping_add(1);
        if rpc.is_client() {
            self.clients = self.clients.saturating_sub(1);
        } else {
            peer.requests = peer.requests.saturating_sub(1);
            if !peer.is_proved {
                let is_last = u32::from(peer.requests == 0);
                self.stranger_requests = self.stranger_requests.saturating_sub(1);
                self.stranger_peers = self.stranger_peers.saturating_sub(is_last);
            }
        }
        let queued = u64::from(core::mem::take(&mut rpc.queued));
        let is_client = rpc.is_client();
        for half in [&mut peer.queued, &mut self.queued] {
            let half = half.of_half_mut(is_client);
            *half = half.saturating_sub(queued);
        }
        peer.live = peer.live.saturating_sub(1);
        let (is_idle, is_proved) = (peer.live == 0, peer.is_proved);
        self.rpcs.push(&mut self.free_rpcs, dim::QUEUE, idx);
        if is_idle {
            // Nothing is lost with a stranger: it goes before those that are known.
            let idle = &mut self.idle_peers;
            match is_proved {
                true => self.peers.push_back(idle, peer::dim::IDLE, p),
                false => self.peers.push_front(idle, peer::dim::IDLE, p),
            }
        }
        id
    }

    /// An incoming request of `len` bytes begins to count against its peer's budget.
    pub(crate) fn charge(&mut self, idx: u32, len: u32) {
        let rpc = &mut self.rpcs[idx];
        rpc.charged = len;
        let peer = &mut self.peers[rpc.peer];
        peer.arriving = peer.arriving.saturating_add(u64::from(len));
        if !peer.is_proved {
            self.strangers_arriving = self.strangers_arriving.saturating_add(u64::from(len));
        }
    }

    /// It has arrived and been handed over, or ended.
    pub(crate) fn uncharge(&mut self, idx: u32) {
        let rpc = &mut self.rpcs[idx];
        let len = u64::from(core::mem::take(&mut rpc.charged));
        if len == 0 {
            return;
        }
        let peer = &mut self.peers[rpc.peer];
        peer.arriving = peer.arriving.saturating_sub(len);
        if !peer.is_proved {
            self.strangers_arriving = self.strangers_arriving.saturating_sub(len);
        }
    }

    /// The peer knows what it could only know from packets to its address: that is not forged, unless it
    /// was guessed.
    pub(crate) fn prove(&mut self, p: u32) {
        let peer = &mut self.peers[p];
        if !peer.is_proved && !peer.is_never_believed() {
            peer.is_proved = true;
            self.strangers_arriving = self.strangers_arriving.saturating_sub(peer.arriving);
            let has_requests = u32::from(peer.requests > 0);
            self.stranger_requests = self.stranger_requests.saturating_sub(peer.requests);
            self.stranger_peers = self.stranger_peers.saturating_sub(has_requests);
            self.grants.prove(&mut self.peers, p);
        }
    }

    /// The RPC has run here and ended: it never runs again.
    pub(crate) fn remember_ended(&mut self, now: Instant, idx: u32) {
        let rpc = &self.rpcs[idx];
        let peer = &self.peers[rpc.peer];
        let hash = self.key.client_id(peer.addr_hash, rpc.id);
        if self.ended.insert(now.as_nanos(), peer.addr, rpc.id, hash) {
            count(&mut self.stats.ended_window_shrunk);
        }
    }
}
