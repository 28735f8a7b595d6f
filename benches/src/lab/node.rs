//! What a transport under test looks like to a host: client and server in one, on one thread that
//! sleeps when there is nothing to do.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::net;
use crate::transport::Outcome;

/// Something that a turn has brought.
pub(super) enum News<'a> {
    /// One of our own requests has ended.
    Ended(u64, Outcome<'a>),
    /// A request has come, and has been answered with itself.
    Asked(&'a [u8]),
}

/// A transport at a host.
pub(super) trait Node {
    /// Makes what connections there are to be; all hosts listen by now.
    fn connect(&mut self) -> Result<()> {
        Ok(())
    }

    /// Sends a request. `false`: there is no room for more now; try again after a turn.
    fn request(&mut self, to: usize, id: u64, message: &[u8]) -> Result<bool>;

    /// Does what there is to do, or waits for it at most `timeout` and does it then.
    fn turn(&mut self, timeout: Duration, news: &mut dyn FnMut(News<'_>)) -> Result<()>;

    /// What it has counted since it was made.
    fn counters(&self) -> Result<Counters>;

    /// How it is set, for reports.
    fn settings(&self) -> String;
}

/// Counters of a transport.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counters {
    /// Packets sent again.
    pub retransmits: u64,
    /// Homa: times that data was asked for again.
    pub resends: u64,
    /// Homa: times that data was asked for again which had only been late.
    pub resends_spurious: u64,
    /// Homa: grants sent.
    pub grants: u64,
    /// Homa: packets dropped by the transport itself, for any reason.
    pub dropped: u64,
    /// Homa: packets sent.
    pub packets_sent: u64,
    /// Homa: packets received.
    pub packets_received: u64,
    /// Homa: system calls to send, to receive and to sleep.
    pub calls: [u64; 3],
}

impl Counters {
    /// Applies `f` to each counter of both.
    pub(super) fn zip(self, other: Self, f: fn(u64, u64) -> u64) -> Self {
        Self {
            retransmits: f(self.retransmits, other.retransmits),
            resends: f(self.resends, other.resends),
            resends_spurious: f(self.resends_spurious, other.resends_spurious),
            grants: f(self.grants, other.grants),
            dropped: f(self.dropped, other.dropped),
            packets_sent: f(self.packets_sent, other.packets_sent),
            packets_received: f(self.packets_received, other.packets_received),
            calls: std::array::from_fn(|i| f(self.calls[i], other.calls[i])),
        }
    }
}

/// Where hosts are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) host: usize,
    pub(super) hosts: usize,
    pub(super) ipv6: bool,
}

/// The port of every host's server.
const PORT: u16 = 4000;

impl Place {
    pub(super) fn own(self) -> SocketAddr {
        self.of(self.host)
    }

    pub(super) fn of(self, host: usize) -> SocketAddr {
        SocketAddr::new(net::address(host, self.ipv6), PORT)
    }

    pub(super) fn others(self) -> impl Iterator<Item = usize> {
        (0..self.hosts).filter(move |&host| host != self.host)
    }
}
