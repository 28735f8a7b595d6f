//! The socket: the core, its datagrams and its clock, turn by turn.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use homa_proto::{
    BufferSource, Endpoint, Instant, PeerAddr, RpcError, RpcId, SendError, SendErrorKind,
};
use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::bursts::{Bursts, Sent, Verdict};
use crate::clock::{Clock, WakeLatency};
use crate::message::{Message, Pool, Returns};
use crate::options::{Options, Wait};
use crate::stats::{Feature, Reason, Stats};
use crate::sys::Sys;
use crate::udp::Udp;
use crate::wake::{Sleeper, Waker};

/// What happened to an RPC: [`homa_proto::Event`] with messages of this driver.
pub type Event = homa_proto::Event<Message, Message>;

/// Options of one request. A release may add some: end a literal with
/// `..RequestOptions::default()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestOptions {
    /// Comes back with the event that ends the RPC.
    pub cookie: u64,
    /// Fail the RPC if it has not ended after this time. `None`: it fails only when the server
    /// is silent; a server that is at work may take as long as it likes.
    pub timeout: Option<Duration>,
    /// The local Homa port to send from; 0: the first.
    pub local_port: u16,
}

/// Why a [`call`](Socket::call) has no reply.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The request was not taken.
    Send(SendErrorKind),
    /// The RPC failed.
    Rpc(RpcError),
    /// The socket failed.
    Io(io::Error),
    /// The [`Driver`](crate::Driver) has been shut down, or its socket has failed.
    Closed,
    /// The reply would be waited for on the thread that has to bring it.
    OnDriverThread,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(error) => error.fmt(f),
            Self::Rpc(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Closed => f.write_str("the driver has ended"),
            Self::OnDriverThread => f.write_str("a driver's thread cannot wait for a reply"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Batches of the send queue handed over before the socket is read again.
const FLUSHES_PER_TURN: usize = 4;
/// Batches lent by the core before the queue is looked at again: as many as the queue holds.
const LENT_PER_FLUSH: usize = 2;
/// Events handed out before the socket is served again.
const EVENTS_PER_TURN: usize = 64;
/// How late a thread is that sleeps, or spins, until it has been measured.
const SLEEP_LATENCY_NS: u64 = 100_000;
const SPIN_LATENCY_NS: u64 = 5_000;

/// A Homa endpoint on a UDP socket: client and server at once.
///
/// Nothing runs in the background: packets move inside [`wait`](Self::wait),
/// [`poll`](Self::poll), [`call`](Self::call) and [`flush`](Self::flush). Keep calling one of
/// them while RPCs are under way.
///
/// In an event loop of your own, register the socket as an mio [`Source`] (elsewhere its file
/// descriptor and [`wake_fd`](Self::wake_fd)) for *readable*. Whenever it is ready or [`timeout`](Self::timeout) has
/// passed, call [`poll`](Self::poll) until it returns `None`. Edge-triggered notification is
/// enough.
pub struct Socket<S: Sys> {
    udp: Udp<S>,
    endpoint: Endpoint<'static, Message, Pool>,
    /// Messages that the application has dropped.
    returns: Returns,
    sleeper: Sleeper,
    /// Memory for requests.
    outgoing: Pool,
    clock: Clock,
    /// When the last turn was.
    now: Instant,
    wait: Wait,
    wake_latency: WakeLatency,
    /// Never hand over less than this ahead.
    backlog_ns: u64,
    /// When something last happened.
    active: Instant,
    /// The clock has been read for what the application does before the next turn.
    is_stirred: bool,
    /// The core may have something to send.
    unsent: bool,
    /// The socket may have something to read.
    unread: bool,
    /// Events that came up while a call waited for its own.
    pending: VecDeque<Event>,
    max_pending: usize,
    /// Events handed out since the last turn.
    handed_out: usize,
    bursts: Bursts,
}

/// What a socket is made of.
pub(crate) struct Parts<S> {
    pub(crate) udp: Udp<S>,
    pub(crate) endpoint: Endpoint<'static, Message, Pool>,
    pub(crate) returns: Returns,
    pub(crate) sleeper: Sleeper,
    pub(crate) outgoing: Pool,
    pub(crate) wait: Wait,
    pub(crate) backlog_ns: u64,
    pub(crate) max_pending: usize,
}

impl<S: Sys + Default> Socket<S> {
    /// A socket with default [`Options`] on this address; port 0 lets the system choose one.
    ///
    /// # Errors
    /// The address is in use or not of this host, or the system lacks what the driver needs.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Options::default().bind(address)
    }

    /// Options, to [`bind`](Options::bind) a socket with them.
    #[must_use]
    pub fn builder() -> Options<S> {
        Options::default()
    }
}

impl<S: Sys> Socket<S> {
    pub(crate) fn from_parts(parts: Parts<S>) -> Self {
        let clock = Clock::new();
        let wake_latency = WakeLatency::new(match parts.wait {
            Wait::Sleep => SLEEP_LATENCY_NS,
            Wait::Spin | Wait::Adaptive(_) => SPIN_LATENCY_NS,
        });
        let mut socket = Self {
            udp: parts.udp,
            endpoint: parts.endpoint,
            returns: parts.returns,
            sleeper: parts.sleeper,
            outgoing: parts.outgoing,
            clock,
            now: clock.now(),
            wait: parts.wait,
            wake_latency,
            backlog_ns: parts.backlog_ns,
            active: Instant::ZERO,
            is_stirred: false,
            unsent: false,
            unread: true,
            pending: VecDeque::new(),
            max_pending: parts.max_pending,
            handed_out: 0,
            bursts: Bursts::new(),
        };
        socket.tell_backlog(wake_latency.nanos());
        socket
    }

    /// The address of the socket.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.udp.local_addr()
    }

    /// Counters, and which features are in use.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            core: *self.endpoint.stats(),
            io: self.udp.io,
            gso: self.udp.gso,
            gro: self.udp.gro,
            priorities: self.udp.priorities,
            source_address: self.udp.source_address,
            dont_fragment: self.udp.dont_fragment,
            receive_buffer: self.udp.receive_buffer,
            send_buffer: self.udp.send_buffer,
            wake_latency: Duration::from_nanos(self.wake_latency.nanos()),
            io_uring: Feature::Off(Reason::OtherDriver),
            ring_deferred: Feature::Off(Reason::OtherDriver),
            ring_multishot: Feature::Off(Reason::OtherDriver),
        };
        stats.io.wakes = self.sleeper.wakes();
        self.udp.sys.report(&mut stats);
        stats
    }

    /// The settings of the protocol in force, derived values filled in.
    #[must_use]
    pub fn config(&self) -> &homa_proto::Config {
        self.endpoint.config()
    }

    /// Calls of both halves under way.
    #[must_use]
    pub fn live_rpcs(&self) -> usize {
        self.endpoint.live_rpcs()
    }

    // RPCs.

    /// Sends a request and waits for the reply. What else happens meanwhile is kept for
    /// [`wait`](Self::wait).
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&mut self, to: impl Into<PeerAddr>, bytes: &[u8]) -> Result<Message, CallError> {
        let message = self.message(bytes);
        self.call_with(to, message, RequestOptions::default())
    }

    /// Like [`call`](Self::call), without copying the message, and with options.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_with(
        &mut self,
        to: impl Into<PeerAddr>,
        message: impl Into<Message>,
        options: RequestOptions,
    ) -> Result<Message, CallError> {
        let call = self
            .request(to, message, options)
            .map_err(|error| CallError::Send(error.kind))?;
        loop {
            self.turn()?;
            while let Some(event) = self.endpoint.poll_event() {
                match event {
                    Event::Response {
                        rpc,
                        message,
                        request,
                        ..
                    } if rpc == call => {
                        self.outgoing.give_back(request);
                        return Ok(message);
                    }
                    Event::Failed { rpc, error, .. } if rpc == call => {
                        return Err(CallError::Rpc(error));
                    }
                    // Others end by themselves, but requests come as long as there are clients.
                    Event::Request { rpc, .. } if self.pending.len() >= self.max_pending => {
                        self.udp.io.requests_shed += 1;
                        self.cancel(rpc);
                    }
                    other => self.pending.push_back(other),
                }
            }
            self.block(None)?;
        }
    }

    /// Sends a request. Its end comes as an event: [`Event::Response`] or [`Event::Failed`].
    /// It goes out with the next [`wait`](Self::wait), [`poll`](Self::poll) or
    /// [`flush`](Self::flush), in one batch with others.
    ///
    /// # Errors
    /// Gives the message back and says why it was not taken.
    pub fn request(
        &mut self,
        to: impl Into<PeerAddr>,
        message: impl Into<Message>,
        options: RequestOptions,
    ) -> Result<RpcId, SendError<Message>> {
        let (to, message) = (to.into(), message.into());
        if self.udp.reachable(to.socket).is_none() {
            let kind = SendErrorKind::BadAddress;
            return Err(SendError { kind, message });
        }
        // A time-out counts from now, not from the first request since the last turn.
        self.is_stirred &= options.timeout.is_none();
        let now = self.stir();
        let deadline = options
            .timeout
            .map(|timeout| now.after(saturating_nanos(timeout)));
        let options = homa_proto::RequestOptions {
            cookie: options.cookie,
            deadline,
            local_port: options.local_port,
        };
        self.endpoint.send_request(now, to, message, options)
    }

    /// Answers a request. Goes out like a [`request`](Self::request); [`Event::Released`] tells
    /// when the client has it.
    ///
    /// # Errors
    /// Gives the message back and says why it was not taken.
    pub fn reply(
        &mut self,
        rpc: RpcId,
        message: impl Into<Message>,
    ) -> Result<(), SendError<Message>> {
        let now = self.stir();
        self.endpoint.send_response(now, rpc, message.into())
    }

    /// Ends an RPC of either half without a further event. Returns whether there was one.
    pub fn cancel(&mut self, rpc: RpcId) -> bool {
        let now = self.stir();
        self.endpoint.cancel(now, rpc).is_some()
    }

    /// Something is about to change in the core; the time of the first such thing since the last turn, and not of
    /// each: to read the clock costs a good part of a short RPC, and nothing goes out before the next turn.
    fn stir(&mut self) -> Instant {
        self.unsent = true;
        if !self.is_stirred {
            self.is_stirred = true;
            self.now = self.clock.now();
            self.active = self.now;
        }
        self.now
    }

    /// Memory for a message of `len` bytes to send. The contents are left over from others.
    #[must_use]
    pub fn buffer(&mut self, len: usize) -> Message {
        self.outgoing
            .take(len)
            .unwrap_or_else(|| vec![0; len].into())
    }

    /// A message with these bytes, in memory that is used again and again.
    #[must_use]
    pub fn message(&mut self, bytes: &[u8]) -> Message {
        let mut message = self.buffer(bytes.len());
        message.copy_from_slice(bytes);
        message
    }

    // Waiting.

    /// The next event; `None` when there was none for `timeout`. `None` as timeout waits for
    /// ever.
    ///
    /// # Errors
    /// The socket is of no use any more.
    #[inline]
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<Event>> {
        // Apart from the rest, and inlined: an event is large, and each move of it a copy.
        match Ok(self.event_at_hand()) {
            Ok(None) => self.wait_for_event(timeout),
            event => event,
        }
    }

    fn wait_for_event(&mut self, timeout: Option<Duration>) -> io::Result<Option<Event>> {
        let deadline = match timeout {
            None => None,
            Some(Duration::ZERO) => Some(Instant::ZERO),
            Some(timeout) => Some(self.clock.now().after(saturating_nanos(timeout))),
        };
        loop {
            self.turn()?;
            if let Some(event) = self.event_at_hand() {
                return Ok(Some(event));
            }
            if deadline.is_some_and(|deadline| deadline <= self.now) {
                return Ok(None);
            }
            self.block(deadline)?;
        }
    }

    /// The next event, without waiting.
    ///
    /// When it returns `None`, wait until the socket is readable or [`timeout`](Self::timeout)
    /// has passed before calling again.
    ///
    /// # Errors
    /// The socket is of no use any more.
    #[inline]
    pub fn poll(&mut self) -> io::Result<Option<Event>> {
        self.wait(Some(Duration::ZERO))
    }

    /// How long to wait at most before [`poll`](Self::poll) is called again, even if the socket
    /// is not readable; zero when there is more to do at once, `None` when there is no need.
    /// Ask after [`poll`](Self::poll) has returned `None`.
    pub fn timeout(&mut self) -> Option<Duration> {
        if !self.sleeper.prepare() {
            return Some(Duration::ZERO);
        }
        let at = self.next_turn()?;
        Some(at.duration_since(self.clock.now()))
    }

    /// Whether something waits for the socket to become *writable*. It is tried again within a
    /// millisecond in any case; an event loop that watches for this is a little faster when the
    /// host is short of send buffer.
    #[must_use]
    pub fn wants_writable(&self) -> bool {
        self.udp.wants_writable()
    }

    /// Becomes readable, after [`timeout`](Self::timeout) has been asked, when another thread
    /// drops a message whose memory the socket waits for. An event loop that watches the socket by
    /// its file descriptor watches this one in the same way; as an mio [`Source`] the socket does
    /// so itself.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.sleeper.as_fd()
    }

    /// Hands over what can be sent now.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub fn flush(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        self.transmit(now)
    }

    #[inline(always)]
    fn event_at_hand(&mut self) -> Option<Event> {
        // An application that answers each event with a request must not starve the socket.
        if self.handed_out == EVENTS_PER_TURN {
            return None;
        }
        self.handed_out += 1;
        if self.pending.is_empty() {
            self.endpoint.poll_event()
        } else {
            self.pending.pop_front()
        }
    }

    /// When the next turn is due if nothing is received; a time in the past means now.
    fn next_turn(&mut self) -> Option<Instant> {
        let waits = self.udp.retry_at();
        let unread = self.unread || self.udp.sys.has_received();
        if unread || (self.unsent && waits.is_none()) || self.returns.any() {
            return Some(Instant::ZERO);
        }
        let timer = self.endpoint.poll_timeout().map(|(at, _)| at);
        [timer, waits].into_iter().flatten().min()
    }

    /// Waits, in the way that was asked for, until a turn may be worth while.
    pub(crate) fn block(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let sleep = match self.wait {
            Wait::Sleep => true,
            Wait::Spin => false,
            Wait::Adaptive(spin) => self.now.nanos_since(self.active) >= saturating_nanos(spin),
        };
        if !sleep {
            std::hint::spin_loop();
            return Ok(());
        }
        let until = [self.next_turn(), deadline].into_iter().flatten().min();
        let timeout = until.map(|until| until.duration_since(self.clock.now()));
        if timeout == Some(Duration::ZERO) || !self.sleeper.prepare() {
            return Ok(());
        }
        self.udp.sleep(self.sleeper.as_fd(), timeout)
    }

    // For a driver's thread.

    /// Wakes the thread that waits on this socket.
    pub(crate) fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// Whether another thread has told of news since the last call, and the last turn.
    pub(crate) fn take_news(&mut self) -> bool {
        self.sleeper.take()
    }

    /// The next event of the core. Take turns in between.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.endpoint.poll_event()
    }

    /// The memory for requests, for somebody else to hand out.
    pub(crate) fn take_outgoing(&mut self) -> Pool {
        std::mem::replace(&mut self.outgoing, Pool::new(0, 0, None))
    }

    // The turn.

    /// Sends what waits, receives once, serves the timer, sends again. Each step is bounded. Tells
    /// whether another thread has told of news.
    pub(crate) fn turn(&mut self) -> io::Result<bool> {
        self.handed_out = 0;
        self.is_stirred = false;
        let is_news = self.sleeper.take();
        if self.unsent || !self.udp.is_idle() {
            let now = self.clock.now();
            self.transmit(now)?;
        }
        let (clock, endpoint) = (self.clock, &mut self.endpoint);
        let mut now = None;
        let received = self.udp.receive(|from, local, bytes, size| {
            let now = *now.get_or_insert_with(|| clock.now());
            // The core counts what it drops.
            endpoint.handle_packets(now, from, local, bytes, size);
        })?;
        let now = now.unwrap_or_else(|| clock.now());
        self.now = now;
        self.unread = received.more;
        if received.datagrams > 0 {
            self.active = now;
            self.unsent = true;
        }
        if self.returns.take() {
            // Messages that wait for memory are served before the next packets are written.
            self.unsent = true;
        }
        if let Some((due, _)) = self.endpoint.poll_timeout()
            && due <= now
        {
            if let Some(latency_ns) = self.wake_latency.observe(now.nanos_since(due)) {
                self.tell_backlog(latency_ns);
            }
            self.endpoint.handle_timeout(now);
            self.unsent = true;
        }
        if self.unsent {
            self.transmit(now)?;
        }
        self.watch_bursts();
        Ok(is_news)
    }

    fn watch_bursts(&mut self) {
        let (lost, stats) = (Feature::Off(Reason::BurstsLost), self.endpoint.stats());
        if !self.udp.gso.is_on() && self.udp.gso != lost {
            return;
        }
        let sent = Sent {
            data: stats.data_sent,
            again: stats.retransmits_repeated,
            joined: self.udp.io.joined_sent,
            resends: stats.resends_received.wrapping_add(stats.unknowns_received),
            grants: stats.grants_received,
        };
        match self.bursts.observe(sent) {
            Some(Verdict::TurnOff) => self.udp.gso = lost,
            Some(Verdict::TurnOn) => self.udp.gso = Feature::On,
            None => {}
        }
    }

    fn transmit(&mut self, now: Instant) -> io::Result<()> {
        for _ in 0..FLUSHES_PER_TURN {
            // What was kept goes first: while it waits nothing else is taken from the core.
            if !self.udp.is_idle() {
                self.udp.flush(now)?;
                if !self.udp.is_idle() {
                    return Ok(());
                }
            }
            self.unsent = self.gather(now)?;
            if !self.udp.is_idle() {
                self.udp.flush(now)?;
            }
            if !self.unsent {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Fills the send queue, or sends what is lent. Returns whether the core may have more.
    fn gather(&mut self, now: Instant) -> io::Result<bool> {
        let (lends, mut lent) = (self.udp.lends(), 0);
        while lent < LENT_PER_FLUSH
            && let Some(room) = self.udp.room()
        {
            if !lends {
                match self.endpoint.poll_transmit(now, room) {
                    Some(transmit) => self.udp.push(&transmit),
                    None => return Ok(false),
                }
                continue;
            }
            match self.endpoint.poll_transmit_gather(now, room) {
                Some(gather) if gather.payload.is_empty() => self.udp.push(&gather.transmit),
                Some(gather) => {
                    lent += 1;
                    self.udp.send_lent(now, &gather)?;
                }
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn tell_backlog(&mut self, latency_ns: u64) {
        self.endpoint
            .set_nic_backlog_ns(latency_ns.max(self.backlog_ns));
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<S: Sys> fmt::Debug for Socket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

impl<S: Sys> Source for Socket<S> {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).register(registry, token, interests)?;
        SourceFd(&self.wake_fd().as_raw_fd()).register(registry, token, Interest::READABLE)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).reregister(registry, token, interests)?;
        SourceFd(&self.wake_fd().as_raw_fd()).reregister(registry, token, Interest::READABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).deregister(registry)?;
        SourceFd(&self.wake_fd().as_raw_fd()).deregister(registry)
    }
}

impl<S: Sys> AsFd for Socket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.udp.readiness()
    }
}

impl<S: Sys> AsRawFd for Socket<S> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
