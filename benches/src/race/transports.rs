//! Who takes part.

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use super::Scenario;
use crate::homa::Driver;
use crate::tcp::Choice;
use crate::transport::{Pair, Setup};
use crate::{grpc, quic, tcp};

/// A transport, as it is set for the race.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// UDP sockets with GSO and GRO and nothing on top: the bound.
    RawUdp,
    /// Homa over UDP sockets.
    HomaMio,
    /// Homa over io_uring.
    #[cfg(target_os = "linux")]
    HomaUring,
    /// TCP with CUBIC, all messages on one connection to a server.
    TcpCubic,
    /// TCP with CUBIC, a connection for each class of message sizes.
    TcpCubicBySize,
    /// TCP with BBR, all messages on one connection to a server.
    TcpBbr,
    /// TCP with BBR, a connection for each class of message sizes.
    TcpBbrBySize,
    /// QUIC by quinn, a stream for each RPC.
    Quic,
    /// gRPC by tonic.
    Grpc,
}

impl Transport {
    /// In the order that they run in.
    pub(super) const ALL: &[Self] = &[
        Self::RawUdp,
        Self::HomaMio,
        #[cfg(target_os = "linux")]
        Self::HomaUring,
        Self::TcpCubic,
        Self::TcpCubicBySize,
        Self::TcpBbr,
        Self::TcpBbrBySize,
        Self::Quic,
        Self::Grpc,
    ];

    /// Whether it takes part in a scenario.
    pub(super) fn enters(self, scenario: Scenario) -> bool {
        use Scenario::{Latency, LatencySleeping, Mixed, Throughput, ThroughputSleeping};
        match self {
            // Without a protocol there are no RPCs, and so nothing to have many of.
            Self::RawUdp => matches!(
                scenario,
                Throughput | ThroughputSleeping | Latency | LatencySleeping
            ),
            Self::TcpCubicBySize | Self::TcpBbrBySize => scenario == Mixed,
            Self::Grpc => !matches!(scenario, Throughput | ThroughputSleeping | Mixed),
            _ => true,
        }
    }

    /// Its name on the command line and in reports.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) fn is_homa(self) -> bool {
        self.name().starts_with("homa")
    }

    pub(super) fn is_tcp(self) -> bool {
        self.name().starts_with("tcp")
    }

    /// A client and its server; `None` for raw UDP, which has a loop of its own.
    pub(super) fn pair(self, setup: Setup) -> Result<Option<Pair>> {
        let tcp = |congestion, by_size| {
            let choice = Choice {
                congestion: Some(congestion),
                by_size,
            };
            tcp::pair(setup, choice)
        };
        match self {
            Self::RawUdp => return Ok(None),
            Self::HomaMio => Driver::Mio.pair(setup),
            #[cfg(target_os = "linux")]
            Self::HomaUring => Driver::Uring.pair(setup),
            Self::TcpCubic => tcp("cubic", false),
            Self::TcpCubicBySize => tcp("cubic", true),
            Self::TcpBbr => tcp("bbr", false),
            Self::TcpBbrBySize => tcp("bbr", true),
            Self::Quic => quic::pair(setup),
            Self::Grpc => grpc::pair(setup),
        }
        .map(Some)
    }
}
