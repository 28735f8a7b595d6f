//! What can be set, what is derived when it is not, and what is refused.

use crate::error::ConfigError;

/// How Homa packets travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Carrier {
    /// The payload of a UDP datagram.
    #[default]
    Udp,
    /// The payload of an IP packet, protocol 146.
    NativeIp,
}

/// Settings of an endpoint. A value of 0 means "derive" where the field says so.
///
/// ```
/// use homa_proto::Config;
/// let config = Config { link_bps: 25_000_000_000, ..Config::default() };
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// How packets travel.
    pub carrier: Carrier,
    /// Largest IP packet, in bytes. Default 1500.
    pub mtu: u16,
    /// This endpoint's share of its link, in bits per second. 0: unknown; then data is not paced
    /// and byte limits take fixed defaults.
    pub link_bps: u64,
    /// The round trip of a small message on the idle network, in nanoseconds, software included.
    /// 0: unknown.
    pub rtt_ns: u64,
    /// Longest message sent or accepted, in bytes. Default 1,000,000; at most 2^31 − 1.
    pub max_message: u32,
    /// Bytes of a message that go without a grant. 0: link speed × round trip, or 40,000 when
    /// either is unknown.
    pub unscheduled_bytes: u32,
    /// Most bytes granted and not yet received, over all messages. 0: ten times the unscheduled
    /// bytes, or 400,000 when link speed or round trip is unknown; never above
    /// `receive_buffer`.
    pub max_incoming: u64,
    /// Bytes of packets that the carrier's receive buffer really holds. 0: no limit.
    pub receive_buffer: u64,
    /// Most messages granted at once. Default 8, at most [`Config::MAX_OVERCOMMIT`].
    pub max_overcommit: u8,
    /// Bytes granted ahead to one message. 0: `max_incoming / (active + 1)`.
    pub window: u32,
    /// Per mille of grants and of transmissions that go to the oldest message. Default 50.
    pub fifo_permille: u16,
    /// Bytes of one grant to the oldest message. Default 50,000.
    pub fifo_grant_increment: u32,
    /// Priority levels that the network tells apart, 1 to 8. Default 8.
    pub levels: u8,
    /// Cutoffs to announce for unscheduled data instead of those found from traffic, and with
    /// them the top scheduled level: one below the lowest level in use. Index = priority.
    pub fixed_cutoffs: Option<[u32; 8]>,
    /// How far ahead of the link data is handed to it, in nanoseconds. 0: 5,000.
    pub nic_backlog_ns: u64,
    /// Most packets in one [`Transmit`](crate::Transmit). Default 64; 1 turns batches off.
    pub max_batch: u16,
    /// Shortest time of silence before a RESEND, in nanoseconds: covers scheduling noise.
    /// Default 1 ms.
    pub resend_floor_ns: u64,
    /// Longest time between two RESENDs for a message, in nanoseconds. Default 100 ms.
    pub resend_ceiling_ns: u64,
    /// How long a gap with later data beyond it may be mere reordering, in nanoseconds.
    /// 0: a quarter of the measured round trip.
    pub reorder_ns: u64,
    /// Silence after which an RPC fails, in nanoseconds. Default 1 s.
    pub timeout_ns: u64,
    /// How long an acknowledgement waits for data to ride on, in nanoseconds. Default 1 ms.
    pub ack_delay_ns: u64,
    /// How long after its last response byte a server first asks for an acknowledgement, in
    /// nanoseconds. Default 2 ms.
    pub need_ack_ns: u64,
    /// How long ended request ids are remembered at least, in nanoseconds. Default 2 s. The
    /// table of ended ids bounds their number; `Stats::ended_window_shrunk` counts ids that
    /// had to be forgotten early.
    pub ended_window_ns: u64,
}

impl Config {
    /// The most that [`Config::max_overcommit`] can be.
    pub const MAX_OVERCOMMIT: u8 = 32;
}

impl Default for Config {
    fn default() -> Self {
        Self {
            carrier: Carrier::Udp,
            mtu: 1500,
            link_bps: 0,
            rtt_ns: 0,
            max_message: 1_000_000,
            unscheduled_bytes: 0,
            max_incoming: 0,
            receive_buffer: 0,
            max_overcommit: 8,
            window: 0,
            fifo_permille: 50,
            fifo_grant_increment: 50_000,
            levels: 8,
            fixed_cutoffs: None,
            nic_backlog_ns: 0,
            max_batch: 64,
            resend_floor_ns: 1_000_000,
            resend_ceiling_ns: 100_000_000,
            reorder_ns: 0,
            timeout_ns: 1_000_000_000,
            ack_delay_ns: 1_000_000,
            need_ack_ns: 2_000_000,
            ended_window_ns: 2_000_000_000,
        }
    }
}
