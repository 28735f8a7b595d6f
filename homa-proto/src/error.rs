//! Everything that can go wrong, typed.

use core::fmt;

/// Why an endpoint cannot be made from a [`Config`](crate::Config).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The named setting has an impossible value.
    Invalid(&'static str),
    /// The named table has no room, or a size that its kind cannot have.
    Storage(&'static str),
}

/// Why a port cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PortError {
    /// Port 0 cannot be addressed.
    Zero,
    /// The port is open already.
    InUse,
    /// The endpoint has as many ports as it can.
    TooMany,
}

/// Why a message was not taken. The message comes back in [`SendError::message`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// Homa messages have at least one byte.
    Empty,
    /// Longer than `Config::max_message`.
    TooLong,
    /// The destination is unspecified, multicast, or has a port of 0.
    BadAddress,
    /// The local port is not open.
    PortNotOpen,
    /// Every RPC slot is taken: try again after the next event.
    RpcsFull,
    /// Every peer slot is taken by a peer with live RPCs: try again after the next event.
    PeersFull,
    /// So much of this endpoint's own waits for this peer that the message would exceed
    /// `Config::max_peer_queued`: try again after the next event.
    PeerQueueFull,
    /// So much of this endpoint's own waits for all peers that the message would exceed
    /// `Config::max_queued`: try again after the next event.
    QueueFull,
    /// The RPC has ended, or is not waiting for a response.
    NoSuchRpc,
    /// The deadline has passed already.
    DeadlineExceeded,
}

impl SendErrorKind {
    /// There is no room now: the same call may succeed after the next event.
    #[must_use]
    pub fn is_full(self) -> bool {
        matches!(
            self,
            Self::RpcsFull | Self::PeersFull | Self::PeerQueueFull | Self::QueueFull
        )
    }
}

/// A message that was not taken, handed back.
#[derive(Clone, PartialEq, Eq)]
pub struct SendError<M> {
    /// Why.
    pub kind: SendErrorKind,
    /// The message, untouched.
    pub message: M,
}

/// How an RPC failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RpcError {
    /// Nothing ever came from this peer: a firewall, a wrong address, nobody there.
    NeverHeard,
    /// The peer had been heard and then fell silent.
    WentSilent,
    /// The caller's deadline passed.
    DeadlineExceeded,
    /// The incoming message can never fit the buffer source.
    TooLongForBuffers,
}

/// Why a packet was dropped. Each has a counter of its own in [`Stats`](crate::Stats).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// Malformed: see [`wire::Malformed`](crate::wire::Malformed).
    Malformed(crate::wire::Malformed),
    /// Source address or port cannot be answered.
    BadSource,
    /// No open port of that number here.
    PortNotOpen,
    /// A packet type that is for debugging only (FREEZE).
    Ignored,
    /// For an RPC that is not known here, of a type that needs no answer.
    UnknownRpc,
    /// A request that has run and ended: at most once.
    EndedRpc,
    /// For a live RPC but from other ports than it has, or of a kind that cannot be for its state.
    Mismatch,
    /// Data that had arrived before.
    Duplicate,
    /// Announces another length than the message's first packet.
    LengthChanged,
    /// Data for a message that waits for a buffer.
    NoBuffer,
    /// More holes in one message than are kept.
    TooManyGaps,
    /// A new request, but every RPC slot is taken.
    RpcsFull,
    /// A new request beyond what its peer, or all strangers together, may have under way.
    OverBudget,
    /// A new peer, but every peer slot is taken by a peer with live RPCs.
    PeersFull,
    /// Repeats what is known (a grant that raises nothing, for example).
    Stale,
    /// Answering would exceed a rate limit.
    RateLimited,
    /// A message that can never fit the buffer source.
    TooLongForBuffers,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => write!(f, "impossible setting: {what}"),
            Self::Storage(what) => write!(f, "unusable table: {what}"),
        }
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "port 0 cannot be opened",
            Self::InUse => "the port is open already",
            Self::TooMany => "too many open ports",
        })
    }
}

impl fmt::Display for SendErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a message has at least one byte",
            Self::TooLong => "the message is longer than the limit",
            Self::BadAddress => "no message can be sent to this address",
            Self::PortNotOpen => "the local port is not open",
            Self::RpcsFull => "every RPC slot is taken",
            Self::PeersFull => "every peer slot is taken",
            Self::PeerQueueFull => "too many bytes wait for this peer",
            Self::QueueFull => "too many bytes wait to be sent",
            Self::NoSuchRpc => "the RPC has ended or is not waiting for a response",
            Self::DeadlineExceeded => "the deadline has passed already",
        })
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverHeard => "no answer: nothing was ever heard from this peer",
            Self::WentSilent => "the peer went silent",
            Self::DeadlineExceeded => "the deadline passed",
            Self::TooLongForBuffers => "the incoming message can never fit a receive buffer",
        })
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl core::error::Error for ConfigError {}
impl core::error::Error for PortError {}
impl core::error::Error for SendErrorKind {}
impl<M> core::error::Error for SendError<M> {}
impl core::error::Error for RpcError {}
impl core::error::Error for DropReason {}
