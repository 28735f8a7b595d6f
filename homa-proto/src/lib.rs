//! The Homa transport protocol, sans IO.
//!
//! [Homa] carries remote procedure calls in a data centre: a client sends a *request* message to a
//! server, the server answers with a *response*. There are no connections and no order between
//! RPCs. The receiver decides who may send what ([`Config::max_incoming`] and the settings beside
//! it) and at which of eight network priorities, so that short messages overtake long ones
//! everywhere on their way.
//!
//! This crate holds all of the protocol and nothing else: no socket, no clock, no thread, no
//! random number. Packets and time come in by calls to an [`Endpoint`], packets, events and the
//! time of the next call come out. Whoever wants sockets takes a driver such as `homa-mio`.
//!
//! # The loop
//!
//! 1. Give the endpoint what has come: packets to [`Endpoint::handle_packet`]; when the time from
//!    the last [`poll_timeout`](Endpoint::poll_timeout) has come,
//!    [`handle_timeout`](Endpoint::handle_timeout); what the application wants to
//!    [`send_request`](Endpoint::send_request), [`send_response`](Endpoint::send_response),
//!    [`cancel`](Endpoint::cancel). Several inputs may be given at once.
//! 2. Call [`poll_event`](Endpoint::poll_event) until it returns `None`, and react, which may be
//!    further input.
//! 3. Call [`poll_transmit`](Endpoint::poll_transmit) until it returns `None`, and send.
//! 4. Sleep until a packet comes or the time of [`poll_timeout`](Endpoint::poll_timeout). If it
//!    is `None` there is nothing to wait for but packets.
//!
//! `examples/udp_loop.rs` has a client and a server on sockets of the standard library,
//! `examples/epoll_loop.rs` both in one thread of epoll.
//!
//! # Memory
//!
//! What is kept is bounded, and nothing is allocated once an endpoint is made:
//!
//! - *Tables* of RPCs, peers and ended requests ([`Limits`]) have a fixed size. They are boxed
//!   once ([`Storage::boxed`]) or lie in memory of the caller's ([`FixedStorage`]). When a table
//!   is full new work is refused with a reason; nothing live is evicted.
//!   [`Storage::bytes_per_rpc`] and [`Storage::bytes_per_peer`] tell their size.
//! - *Outgoing messages* are anything that is `AsRef<[u8]>`. The endpoint keeps each until it is
//!   no longer needed and hands it back with the [`Event`] that ends its RPC.
//! - *Incoming messages* go to buffers from a [`BufferSource`], which is asked once per message
//!   for exactly its length. [`HeapBuffers`] and [`FixedBuffers`] come with the crate. If no
//!   buffer is free the message waits, the short ones first; [`Endpoint::recycle`] gives a buffer
//!   back.
//!
//! # Time
//!
//! An [`Instant`] counts nanoseconds from any epoch. Time never goes backwards: a step back is
//! taken as standing still. A loop that has slept too long does no harm: silence that it could
//! not hear is not held against anybody.
//!
//! # Panics
//!
//! No function panics, whatever comes from the network or from the caller. `unsafe` is forbidden.
//! Unchecked arithmetic, indexing, `unwrap` and the like are denied by lints; the few exceptions
//! each say why. A buffer source or message type of the caller's must not panic either. With the
//! feature `check`, `Endpoint::check_invariants` recomputes every book from scratch: tests and
//! fuzzing call it after each step.
//!
//! # Features
//!
//! - `alloc` (default): [`Storage::boxed`], [`HeapBuffers`]. Without it the crate needs no heap.
//! - `check`: `Endpoint::check_invariants`; needs `std`.
//!
//! # Limits
//!
//! - A request runs at most once, also if the network keeps a copy of it for long: ids of ended
//!   requests are remembered for [`Config::ended_window_ns`] and in the number of
//!   [`Limits::ended`] ([`Stats::ended_window_shrunk`] counts those forgotten early). But a server
//!   that has just started with an empty memory of ended ids cannot know whether it ran a request
//!   before: around a restart of the server a request can run twice.
//! - Nothing is encrypted or authenticated. Forged packets make an endpoint neither panic nor
//!   grow, and get small answers at a limited rate; but whoever forges a peer's address and
//!   guesses an id interferes with that RPC.
//! - Messages have 1 to 2^31 − 1 bytes ([`Config::max_message`]).
//! - Priorities work where switches honour them; see the repository's README.
//!
//! # Sources
//!
//! - Montazeri, Li, Alizadeh, Ousterhout: [*Homa: A Receiver-Driven Low-Latency Transport Protocol
//!   Using Network Priorities*][sigcomm], SIGCOMM 2018.
//! - Ousterhout: [*A Linux Kernel Implementation of the Homa Transport Protocol*][atc], USENIX ATC
//!   2021.
//! - Ousterhout: [draft-ousterhout-tsvwg-homa][draft], IETF, 2025.
//! - The [Linux kernel module][kernel]: packets are the same on the wire.
//!
//! [Homa]: https://homa-transport.atlassian.net/wiki/spaces/HOMA/overview
//! [sigcomm]: https://doi.org/10.1145/3230543.3230564
//! [atc]: https://www.usenix.org/conference/atc21/presentation/ousterhout
//! [draft]: https://datatracker.ietf.org/doc/draft-ousterhout-tsvwg-homa/
//! [kernel]: https://github.com/PlatformLab/HomaModule
#![cfg_attr(
    not(feature = "alloc"),
    allow(rustdoc::broken_intra_doc_links, reason = "some items need `alloc`")
)]
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// No input makes the core panic. What these lints see is denied; the exceptions say why.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(test, feature = "check"))]
extern crate std;

mod acks;
mod addr;
mod buffer;
#[cfg(any(test, feature = "check"))]
#[allow(
    clippy::arithmetic_side_effects,
    reason = "checks never run in production"
)]
mod check;
mod client;
mod config;
mod ended;
mod endpoint;
mod error;
mod grant;
mod hash;
mod incoming;
mod index;
mod list;
mod outgoing;
mod pacer;
mod peer;
mod priority;
mod receive;
mod recovery;
mod rpc;
mod server;
mod stats;
mod storage;
mod time;
mod timer;
mod transmit;
mod tree;
pub mod wire;

pub use addr::PeerAddr;
pub use buffer::{BufferSource, FixedBuffer, FixedBuffers};
#[cfg(feature = "alloc")]
pub use buffer::{HeapBuffer, HeapBuffers};
pub use config::{Carrier, Config};
pub use endpoint::{
    Cancelled, Endpoint, Event, Gather, RequestOptions, RpcId, TimeoutReason, Transmit,
};
pub use error::{ConfigError, DropReason, PortError, RpcError, SendError, SendErrorKind};
pub use stats::Stats;
pub use storage::{FixedStorage, Limits, Storage};
pub use time::Instant;
