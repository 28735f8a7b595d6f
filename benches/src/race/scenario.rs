//! What is carried, and how.

use clap::ValueEnum;
use serde::Serialize;

use crate::transport::Reply;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Requests of 1 MB with replies of one byte, four at a time, both ends spinning.
    Throughput,
    /// The same, a thread without work sleeping: what it costs.
    ThroughputSleeping,
    /// 100 bytes there and back, one at a time, both ends spinning.
    Latency,
    /// The same, sleeping.
    LatencySleeping,
    /// 100 bytes there and back, many at a time, one server, both ends spinning.
    Rate,
    /// The same, sleeping.
    RateSleeping,
    /// The same over several servers, spinning.
    RatePeers,
    /// W4 up to 1 MB, replies as long as requests, at times that do not wait for replies.
    Mixed,
}

/// The shape of a closed loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of a request.
    pub(super) size: u32,
    /// RPCs in flight.
    pub(super) outstanding: usize,
    pub(super) reply: Reply,
    pub(super) sleep: bool,
    pub(super) peers: usize,
}

impl Scenario {
    /// In the order that they run in.
    pub(super) const ALL: [Self; 8] = [
        Self::Throughput,
        Self::ThroughputSleeping,
        Self::Latency,
        Self::LatencySleeping,
        Self::Rate,
        Self::RateSleeping,
        Self::RatePeers,
        Self::Mixed,
    ];

    /// Its name on the command line and in reports.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Its closed loop; the mixed load's is of a size that varies.
    pub(super) fn shape(self) -> Shape {
        let bulk = Shape {
            size: 1_000_000,
            outstanding: 4,
            reply: Reply::FirstByte,
            sleep: false,
            peers: 1,
        };
        let short = Shape {
            size: 100,
            outstanding: 1,
            reply: Reply::Echo,
            ..bulk
        };
        let many = Shape {
            outstanding: 256,
            ..short
        };
        match self {
            Self::Throughput => bulk,
            Self::ThroughputSleeping => Shape {
                sleep: true,
                ..bulk
            },
            Self::Latency => short,
            Self::LatencySleeping => Shape {
                sleep: true,
                ..short
            },
            Self::Rate => many,
            Self::RateSleeping => Shape {
                sleep: true,
                ..many
            },
            Self::RatePeers => Shape { peers: 8, ..many },
            Self::Mixed => Shape {
                reply: Reply::Echo,
                outstanding: 16,
                ..bulk
            },
        }
    }

    /// The figure that it is about, of those of a run, and what it is called.
    pub(super) fn figure(self) -> Figure {
        match self {
            Self::Throughput | Self::ThroughputSleeping => Figure::Gbps,
            Self::Latency | Self::LatencySleeping => Figure::P50,
            Self::Rate | Self::RateSleeping | Self::RatePeers => Figure::Rate,
            Self::Mixed => Figure::P99,
        }
    }
}

/// What a scenario is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Figure {
    /// Payload, in Gb/s.
    Gbps,
    /// RPCs per second.
    Rate,
    /// Median round trip.
    P50,
    /// 99th percentile of short messages.
    P99,
}

impl Figure {
    /// Its unit, or what a chart calls its axis.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Gbps => "Gb/s",
            Self::Rate => "million RPCs/s",
            Self::P50 => "P50, µs",
            Self::P99 => "P99 of up to 1,400 B, µs",
        }
    }

    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Self::Gbps | Self::Rate)
    }
}
