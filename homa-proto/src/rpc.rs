//! One RPC, seen from one of its ends.

use crate::error::RpcError;
use crate::incoming::Incoming;
use crate::list::{Link, Linked};
use crate::outgoing::Outgoing;
use crate::time::Instant;

/// Where an RPC stands. The names in capitals are those of the Homa papers and draft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The slot is free.
    Free,
    /// Client, OUTGOING: nothing of the response has been seen.
    ClientOutgoing,
    /// Client, INCOMING: part of the response is here, and so the server has the whole request.
    ClientIncoming,
    /// Client: a Response event waits to be polled.
    ClientAnswered,
    /// Client: a Failed event waits to be polled.
    ClientFailed,
    /// Server, INCOMING: part of the request is here.
    ServerIncoming,
    /// Server, IN_SERVICE: a Request event waits to be polled.
    ServerArrived,
    /// Server, IN_SERVICE: the application has the request.
    ServerInService,
    /// Server, OUTGOING: the response is being sent, or sent and not acknowledged.
    ServerOutgoing,
    /// Server: a Released event waits to be polled.
    ServerReleased,
}

impl State {
    /// Whether packets can still reach the RPC.
    pub(crate) fn is_live(self) -> bool {
        matches!(
            self,
            Self::ClientOutgoing
                | Self::ClientIncoming
                | Self::ServerIncoming
                | Self::ServerArrived
                | Self::ServerInService
                | Self::ServerOutgoing
        )
    }

    /// Whether a message is coming in.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::ClientIncoming | Self::ServerIncoming)
    }

    /// Whether a message is going out.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::ClientOutgoing | Self::ServerOutgoing)
    }
}

/// Control packets that are due for an RPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pending(u8);

impl Pending {
    pub(crate) const GRANT: u8 = 1;
    /// Ask for the missing ranges of the incoming message, from `Rpc::ask_from` up to `ask_below`.
    pub(crate) const RESEND: u8 = 2;
    /// Ask for all of a message of which nothing has arrived.
    pub(crate) const RESEND_ALL: u8 = 4;
    pub(crate) const BUSY: u8 = 8;
    pub(crate) const NEED_ACK: u8 = 16;
    /// A DATA packet without data that announces the message.
    pub(crate) const ANNOUNCE: u8 = 32;
    /// A RESEND of no bytes: BUSY says that the other side still waits, RPC_UNKNOWN that it does
    /// not.
    pub(crate) const PROBE: u8 = 64;

    pub(crate) fn set(&mut self, what: u8) {
        self.0 |= what;
    }
    pub(crate) fn clear(&mut self, what: u8) {
        self.0 &= !what;
    }
    pub(crate) fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }
    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }
}

/// How an incoming message stands with the grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GrantState {
    /// Needs no grants, or may not have any.
    None,
    /// Waits in its peer's tree.
    Waiting,
    /// One of the active messages.
    Active,
    /// Waits for a buffer.
    NoBuffer,
}

/// Lists that an RPC can be in.
pub(crate) mod dim {
    /// Control packets are due.
    pub(crate) const CONTROL: usize = 0;
    /// Events to be polled, short messages to be sent, requests that are parked, or free slots:
    /// never two at once.
    pub(crate) const QUEUE: usize = 1;
    /// Incoming messages that need grants, or outgoing ones that are not wholly sent: oldest
    /// first. An RPC receives or sends, never both at once.
    pub(crate) const OLDEST: usize = 2;
    /// Messages whose grants must be looked at again.
    pub(crate) const TOUCHED: usize = 3;
    pub(crate) const COUNT: usize = 4;
}

/// One entry of the table of RPCs.
///
/// In the order of use: what an RPC of two short messages touches is in the middle, in few cache lines. `inc` begins
/// and `out` ends with what it does not need.
#[repr(C)]
pub(crate) struct RpcSlot<M, B> {
    pub(crate) inc: Incoming<B>,
    /// The id as this end knows it: even at the client, odd at the server.
    pub(crate) id: u64,
    /// Of `peer` and `id`: where the index has it.
    pub(crate) hash: u64,
    pub(crate) peer: u32,
    pub(crate) generation: u32,
    pub(crate) state: State,
    pub(crate) pending: Pending,
    pub(crate) grant: GrantState,
    /// RESENDs since the RPC went on: BUSY does not clear it, so that a busy peer is asked ever less.
    pub(crate) tries: u8,
    /// RESENDs since anything was heard of the RPC: BUSY clears it too.
    pub(crate) unanswered: u8,
    /// RESENDs since the last DATA packet of the RPC: BUSY does not clear it.
    pub(crate) asks_without_data: u8,
    /// It holds a place among the RESENDs to its peer, which are spread out in time.
    pub(crate) has_turn: bool,
    /// The server has been asked for the response, and may say that it knows of no request.
    pub(crate) was_asked: bool,
    /// Its outgoing message waits for grants.
    pub(crate) is_stalled: bool,
    /// The server has been asked for news of it: how long its answer takes says nothing.
    pub(crate) was_probed: bool,
    /// It waits for the server to be heard of before it begins.
    pub(crate) is_parked: bool,
    /// Others wait for news of this request: the server is asked as soon as it has been sent.
    pub(crate) is_awaited: bool,
    pub(crate) error: Option<RpcError>,
    pub(crate) grant_priority: u8,
    pub(crate) local_port: u16,
    pub(crate) peer_port: u16,
    /// Bytes of an incoming request that count against its peer's budget.
    pub(crate) charged: u32,
    /// Bytes of its outgoing message, as long as that is kept.
    pub(crate) queued: u32,
    links: [Link; dim::COUNT],
    /// When the message that is under way last got anywhere.
    pub(crate) moved: Instant,
    /// When the RPC was last heard of; or when the ball last went to the other side.
    pub(crate) heard: Instant,
    /// When the last RESEND (or NEED_ACK) went out; or when the ball last came to this side.
    pub(crate) asked: Instant,
    pub(crate) deadline: Instant,
    pub(crate) cookie: u64,
    /// Order of birth in this endpoint.
    pub(crate) birth: u64,
    /// `PeerSlot::begun` when this request began; 0 for others.
    pub(crate) begun_at: u64,
    /// When a hole with later data beyond it stops being taken for reordering.
    pub(crate) gap_due: Instant,
    /// Holes below this offset have been asked for already.
    pub(crate) gaps_asked_below: u32,
    /// Holes below this offset are asked for at `gap_due`.
    pub(crate) gaps_seen_below: u32,
    pub(crate) out: Outgoing<M>,
    /// The missing ranges that are being asked for now lie in `ask_from..ask_below`.
    pub(crate) ask_from: u32,
    pub(crate) ask_below: u32,
}

impl<M, B> RpcSlot<M, B> {
    /// A free slot.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self {
            id: 0,
            hash: 0,
            peer: 0,
            generation: 0,
            state: State::Free,
            pending: Pending(0),
            grant: GrantState::None,
            tries: 0,
            unanswered: 0,
            asks_without_data: 0,
            has_turn: false,
            was_asked: false,
            is_stalled: false,
            was_probed: false,
            is_parked: false,
            is_awaited: false,
            error: None,
            grant_priority: 0,
            local_port: 0,
            peer_port: 0,
            charged: 0,
            queued: 0,
            links: [Link::OUT; dim::COUNT],
            birth: 0,
            moved: Instant::ZERO,
            heard: Instant::ZERO,
            asked: Instant::ZERO,
            gap_due: Instant::MAX,
            deadline: Instant::MAX,
            gaps_asked_below: 0,
            gaps_seen_below: 0,
            ask_from: 0,
            ask_below: 0,
            begun_at: 0,
            cookie: 0,
            out: Outgoing::new(),
            inc: Incoming::new(),
        }
    }

    pub(crate) fn is_client(&self) -> bool {
        self.id & 1 == 0
    }

    /// Whether there is nothing to take it out of: no list, no tree, no book of the grants. So it is with most
    /// messages of one packet.
    pub(crate) fn is_alone(&self) -> bool {
        // Who is in a tree is in a list too, or has a grant state.
        self.grant == GrantState::None
            && self.inc.counted == 0
            && !self.is_stalled
            && !self.links.iter().any(Link::is_listed)
    }

    /// Clears what an earlier RPC in this slot left. The links are those of live lists.
    pub(crate) fn reset(&mut self) {
        self.pending = Pending::default();
        self.grant = GrantState::None;
        self.tries = 0;
        self.unanswered = 0;
        self.asks_without_data = 0;
        self.has_turn = false;
        self.was_asked = false;
        self.is_awaited = false;
        self.was_probed = false;
        self.begun_at = 0;
        self.error = None;
        self.asked = Instant::ZERO;
        self.gap_due = Instant::MAX;
        self.deadline = Instant::MAX;
        self.gaps_asked_below = 0;
        self.gaps_seen_below = 0;
        self.cookie = 0;
        self.charged = 0;
        self.out.reset();
        self.inc.reset();
    }
}

impl<M, B> Default for RpcSlot<M, B> {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(
    clippy::indexing_slicing,
    reason = "`dim` is one of the constants above"
)]
impl<M, B> Linked for RpcSlot<M, B> {
    #[inline]
    fn link(&self, dim: usize) -> &Link {
        &self.links[dim]
    }
    #[inline]
    fn link_mut(&mut self, dim: usize) -> &mut Link {
        &mut self.links[dim]
    }
}
