//! What users of Homa rely on, written once and run over everything that carries it: the simulated network, and each
//! driver.
//!
//! A carrier implements [`Testbed`] and calls [`conformance!`](macro@crate::conformance), which makes a test of each
//! behaviour in [`BEHAVIOURS`]. Nothing in here knows of a simulation: time is whatever [`Testbed::now`] says, and the
//! only times demanded are lower bounds, and an upper one that nothing but a hang exceeds.

mod behaviours;
mod relay;
mod stage;

use std::time::Duration;

use homa_proto::{Event, Limits, PeerAddr, RpcId};

use crate::fault::PacketFaults;

pub use behaviours::BEHAVIOURS;
pub use homa_proto::SendErrorKind;
pub use relay::Relay;

/// What an endpoint is made with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest message sent or accepted, in bytes.
    pub max_message: u32,
    /// Room for RPCs, peers and ended requests.
    pub limits: Limits,
    /// Memory for messages that arrive or have arrived and are not dropped yet, in bytes.
    pub buffer_bytes: usize,
    /// Silence after which an RPC fails.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_message: 4 << 20,
            limits: Limits {
                rpcs: 1024,
                peers: 32,
                ended: 8192,
            },
            buffer_bytes: 64 << 20,
            // So long that it passes only where something hangs.
            timeout: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// Short of patience, where silence is to be told.
    #[must_use]
    pub(crate) fn impatient() -> Self {
        Self {
            timeout: Duration::from_millis(500),
            ..Self::default()
        }
    }
}

/// Endpoints that reach each other, and time that passes.
///
/// Endpoints are numbered from 0 in the order in which they are opened.
pub trait Testbed {
    /// A message. Memory of a received one is free again when it is dropped.
    type Message: AsRef<[u8]>;

    /// Makes an endpoint.
    fn open(&mut self, settings: &Settings) -> usize;

    /// Ends an endpoint without a word to anybody. Nothing else is asked of it, except [`restart`](Self::restart).
    fn kill(&mut self, node: usize);

    /// A new endpoint, with no memory of the one before, at the address of one that was killed.
    fn restart(&mut self, node: usize, settings: &Settings);

    /// Where `node` is for `from`.
    fn address(&mut self, node: usize, from: usize) -> PeerAddr;

    /// Where nobody is who could answer.
    fn nobody(&mut self) -> PeerAddr;

    /// Starts an RPC. It fails with the deadline when `timeout` has passed.
    ///
    /// # Errors
    /// Why it was not taken.
    fn request(
        &mut self,
        node: usize,
        to: PeerAddr,
        message: Vec<u8>,
        cookie: u64,
        timeout: Option<Duration>,
    ) -> Result<RpcId, SendErrorKind>;

    /// Answers one.
    ///
    /// # Errors
    /// Why it was not taken.
    fn reply(&mut self, node: usize, rpc: RpcId, message: Vec<u8>) -> Result<(), SendErrorKind>;

    /// Ends one without an event; whether there was one.
    fn cancel(&mut self, node: usize, rpc: RpcId) -> bool;

    /// RPCs of both halves that `node` has room taken for.
    fn live_rpcs(&self, node: usize) -> usize;

    /// Lets packets move at all endpoints until one of them has an event, or until `end`.
    fn next(&mut self, end: Duration) -> Option<(usize, TestEvent<Self>)>;

    /// Time since the testbed was made.
    fn now(&self) -> Duration;

    /// What goes wrong with packets from now on. Where anything is to go wrong it comes first before the first
    /// [`address`](Self::address).
    fn impair(&mut self, faults: PacketFaults);
}

/// What happened to an RPC.
pub type TestEvent<T> = Event<<T as Testbed>::Message, <T as Testbed>::Message>;

/// Runs one behaviour, which panics where the testbed does not show it.
///
/// # Panics
/// Also when there is none of this name.
pub fn run<T: Testbed>(name: &str, bed: &mut T) {
    let behaviour =
        behaviours::find(name).unwrap_or_else(|| panic!("no behaviour is named {name}"));
    behaviour(bed);
}
