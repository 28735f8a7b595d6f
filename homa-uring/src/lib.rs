#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod bell;
mod buffers;
pub mod kernel;
mod live;
mod memory;
mod ring;
mod sends;
mod tether;
mod thread;
mod unavailable;
mod uring;

pub use homa_mio::generic;
pub use homa_mio::{
    BufferSize, Call, CallError, CallOptions, Client, ClientShards, Config, Driver, DriverOptions,
    DriverStats, Event, Feature, HandleStats, IoStats, Limits, Message, PeerAddr, Reason, Request,
    RequestOptions, Responder, RpcError, RpcId, SendError, SendErrorKind, ServerShards, Shard,
    ShardedClient, Stats, TryCallError, Wait,
};
pub use kernel::Rung;
pub use unavailable::Unavailable;
pub use uring::Uring;

use std::io;
use std::net::SocketAddr;

/// A Homa endpoint on a UDP socket served by io_uring: see [`generic::Socket`].
pub type Socket = generic::Socket<Uring>;

/// How to make a [`Socket`]: see [`generic::Options`].
pub type Options = generic::Options<Uring>;

/// A socket over io_uring, or over system calls where that cannot be used.
/// [`Stats::io_uring`] tells which, and why.
///
/// # Errors
/// The address is in use or not of this host.
pub fn bind_or_mio(address: SocketAddr) -> io::Result<Socket> {
    Socket::builder().sys(Uring::or_mio()).bind(address)
}
