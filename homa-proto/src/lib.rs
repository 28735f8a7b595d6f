//! Homa, sans IO.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(test, feature = "check"))]
extern crate std;

mod acks;
mod addr;
mod buffer;
#[cfg(any(test, feature = "check"))]
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
