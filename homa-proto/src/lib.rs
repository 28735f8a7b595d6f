//! Homa, sans IO.
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
pub use endpoint::{Endpoint, Event, RequestOptions, RpcId, TimeoutReason, Transmit};
pub use error::{ConfigError, Drop, PortError, RpcError, SendError, SendErrorKind};
pub use stats::Stats;
pub use storage::{FixedStorage, Limits, Storage};
pub use time::Instant;
