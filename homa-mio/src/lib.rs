#![doc = include_str!("../README.md")]
#![cfg(unix)]

mod bursts;
mod clock;
mod message;
mod options;
mod socket;
mod stats;
pub mod sys;
mod udp;
mod wake;

pub use homa_proto::{Config, Limits, PeerAddr, RpcError, RpcId, SendError, SendErrorKind};
pub use message::Message;
pub use options::{Options, Wait};
pub use socket::{CallError, Event, RequestOptions, Socket};
pub use stats::{BufferSize, Feature, IoStats, Reason, Stats};
