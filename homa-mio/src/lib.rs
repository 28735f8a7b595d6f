#![doc = include_str!("../README.md")]
#![cfg(unix)]

mod bursts;
mod clock;
mod driver;
pub mod generic;
mod message;
mod options;
mod socket;
mod stats;
pub mod sys;
mod udp;
mod wake;

pub use driver::{
    Call, CallOptions, Client, ClientShards, Driver, DriverOptions, DriverStats, HandleStats,
    Request, Responder, ServerShards, Shard, ShardedClient, TryCallError,
};
/// The protocol, for its [statistics](homa_proto::Stats) and what else is not named here.
pub use homa_proto as proto;
pub use homa_proto::{Config, Limits, PeerAddr, RpcError, RpcId, SendError, SendErrorKind};
pub use message::Message;
pub use options::Wait;
pub use socket::{CallError, Event, RequestOptions};
pub use stats::{BufferSize, Feature, IoStats, Reason, Stats};

/// A Homa endpoint on a UDP socket: see [`generic::Socket`].
pub type Socket = generic::Socket<sys::Os>;

/// How to make a [`Socket`]: see [`generic::Options`].
pub type Options = generic::Options<sys::Os>;
