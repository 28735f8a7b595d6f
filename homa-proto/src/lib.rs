//! Homa, sans IO.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(test, feature = "check"))]
extern crate std;

mod addr;
mod buffer;
mod config;
#[allow(dead_code, unreachable_pub)]
mod ended;
mod endpoint;
mod error;
#[allow(dead_code)]
mod hash;
#[allow(dead_code, unreachable_pub)]
mod index;
mod stats;
#[allow(dead_code, unreachable_pub)]
mod storage;
mod time;
#[allow(dead_code, unreachable_pub)]
mod timer;
#[allow(dead_code, unreachable_pub)]
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
pub use storage::{Limits, Storage};
pub use time::Instant;
