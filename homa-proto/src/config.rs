//! What can be set, what is derived when it is not, and what is refused.

use crate::error::ConfigError;
use crate::wire;

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
/// A release may add settings: end a literal with `..Config::default()`.
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
    /// Most bytes granted and not yet received, over all messages. 0: 20 times the unscheduled
    /// bytes, or 400,000 when link speed or round trip is unknown. Never more than
    /// `receive_buffer` is granted, whatever stands here.
    pub max_incoming: u64,
    /// Bytes of packets that the carrier's receive buffer really holds. 0: no limit.
    pub receive_buffer: u64,
    /// Most messages granted at once. Default 8, at most [`Config::MAX_OVERCOMMIT`].
    pub max_overcommit: u8,
    /// Bytes granted ahead to one message. 0: the unscheduled bytes and `min_grant` where
    /// `max_incoming` is derived from link speed and round trip, else `max_incoming / (active + 1)`.
    pub window: u32,
    /// Most unscheduled bytes of requests on their way to one peer of which nothing has been heard
    /// yet; further requests wait. A server that stalls is not buried under what it cannot take
    /// in: what is lost in its full buffer would all have to go again. Never more than half of
    /// the receive buffer that the peer has told of. 0: 2,000,000 or ten times the unscheduled
    /// bytes, whichever is more.
    pub max_unheard: u64,
    /// Most requests of one peer under way here at once: further ones are told BUSY. 0: no limit but
    /// that of the table.
    pub max_peer_requests: u32,
    /// Most bytes of requests of one peer that are arriving at once; a single one may be longer.
    /// Further ones are told BUSY. 0: no limit but that of the buffers.
    pub max_peer_bytes: u64,
    /// The same for all strangers together: peers that have not shown yet that they get what is
    /// sent to their address, as a forger of addresses never can. Requests of a single packet do
    /// not count. 0: no limit but that of the buffers.
    pub max_stranger_bytes: u64,
    /// Smallest grant, in bytes, while a message has at least half of its window on the way; a
    /// grant that reaches the end of the message may be smaller. 0: a quarter of the unscheduled
    /// bytes and at least two packets where the window is derived from them, else every byte is
    /// granted as soon as it may be. A driver that receives many packets at once saves packets with
    /// a batch's worth here, at the price of that much less in flight.
    pub min_grant: u32,
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
    /// 0: half of the measured round trip, and more for peers whose packets turn out to be late
    /// and not lost.
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
    /// had to be forgotten early. A client sends no part of a request again once it has heard
    /// nothing of it for half of this time (or `timeout_ns` where that is longer): the other end
    /// should remember as long.
    pub ended_window_ns: u64,
}

impl Config {
    /// The most that [`Config::max_overcommit`] can be.
    pub const MAX_OVERCOMMIT: u8 = 32;
}

/// What is assumed where link speed or round trip are not known: the kernel module's figures.
const UNKNOWN_UNSCHEDULED: u32 = 40_000;
/// Unscheduled bytes that any peer is trusted to take in unheard.
const UNKNOWN_UNHEARD: u64 = 2_000_000;
/// `max_incoming` in multiples of the unscheduled bytes, as in the kernel module.
const INCOMING_MULTIPLE: u64 = 10;
/// The same where the window is known to be one round trip's worth (SIGCOMM '18): room for the active messages,
/// and more for what was granted to messages since overtaken whose senders are busy elsewhere. Simulated W4
/// at 80 % load on 16 hosts at 25 Gb/s: with 10 and no window the P99 slowdown of 10 to 100 KB is 40, so it is 3.
const KNOWN_INCOMING_MULTIPLE: u64 = 20;

impl Config {
    /// The longest data part of a packet to an IPv4 or IPv6 peer, in bytes.
    #[must_use]
    pub fn max_payload(&self, ipv6: bool) -> usize {
        wire::max_payload(self.mtu, ipv6, self.carrier)
    }

    /// Fills in what is to be derived, and refuses what cannot work.
    pub(crate) fn resolve(mut self) -> Result<Self, ConfigError> {
        use ConfigError::Invalid;
        let ensure = |ok: bool, what| if ok { Ok(()) } else { Err(Invalid(what)) };
        ensure(
            self.max_payload(true) >= 64,
            "mtu is too small for a packet",
        )?;
        ensure(
            (1..=wire::MAX_MESSAGE).contains(&self.max_message),
            "max_message must be 1 to 2^31 - 1",
        )?;
        ensure((1..=8).contains(&self.levels), "levels must be 1 to 8")?;
        ensure(
            self.max_overcommit <= Self::MAX_OVERCOMMIT,
            "max_overcommit is above Config::MAX_OVERCOMMIT",
        )?;
        ensure(self.fifo_permille <= 1000, "fifo_permille is above 1000")?;
        ensure(self.timeout_ns >= 1_000_000, "timeout_ns is below 1 ms")?;
        ensure(
            (1_000..=self.timeout_ns).contains(&self.resend_floor_ns),
            "resend_floor_ns must be 1 microsecond to timeout_ns",
        )?;
        if let Some(cutoffs) = self.fixed_cutoffs {
            ensure(
                cutoffs.iter().any(|&cutoff| cutoff > 0),
                "fixed_cutoffs leave no level for unscheduled data",
            )?;
            let unused = cutoffs.get(usize::from(self.levels)..).unwrap_or(&[]);
            ensure(
                unused.iter().all(|&cutoff| cutoff == 0),
                "fixed_cutoffs use a level beyond levels",
            )?;
        }
        let packet = self.max_payload(false) as u64;
        // Grants, and so packets, stay whole ones if all that is derived is.
        let whole = |bytes: u64| {
            let bytes = bytes.div_ceil(packet).saturating_mul(packet);
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        ensure(
            self.receive_buffer == 0 || self.receive_buffer >= packet,
            "receive_buffer holds no packet",
        )?;
        ensure(
            self.max_incoming == 0 || self.max_incoming >= packet,
            "max_incoming holds no packet",
        )?;
        self.max_overcommit = match self.max_overcommit {
            0 => 8,
            set => set,
        };
        self.max_batch = self.max_batch.clamp(1, 64);
        self.fifo_grant_increment = self.fifo_grant_increment.max(1);
        self.resend_ceiling_ns = self
            .resend_ceiling_ns
            .clamp(self.resend_floor_ns, self.timeout_ns);
        if self.nic_backlog_ns == 0 {
            self.nic_backlog_ns = 5_000;
        }
        let in_flight =
            u128::from(self.link_bps).saturating_mul(u128::from(self.rtt_ns)) / 8_000_000_000;
        let known = self.link_bps > 0 && self.rtt_ns > 0;
        if self.unscheduled_bytes == 0 {
            self.unscheduled_bytes = if known {
                whole(u64::try_from(in_flight).unwrap_or(u64::MAX).max(1))
            } else {
                UNKNOWN_UNSCHEDULED
            };
        }
        if self.max_unheard == 0 {
            self.max_unheard = u64::from(self.unscheduled_bytes)
                .saturating_mul(INCOMING_MULTIPLE)
                .max(UNKNOWN_UNHEARD);
        }
        if self.max_incoming == 0 {
            let multiple = if known {
                KNOWN_INCOMING_MULTIPLE
            } else {
                INCOMING_MULTIPLE
            };
            self.max_incoming = u64::from(self.unscheduled_bytes).saturating_mul(multiple);
            if known && self.window == 0 {
                // A grant for each packet takes a twentieth of the other direction. Fewer ones leave less in
                // flight when they go, and so the window is longer by one.
                let unscheduled = self.unscheduled_bytes;
                if self.min_grant == 0 {
                    self.min_grant =
                        whole((u64::from(unscheduled) / 4).max(packet.saturating_mul(2)));
                }
                self.window = unscheduled.saturating_add(self.min_grant.min(unscheduled));
            }
        }
        Ok(self)
    }

    /// The most that is granted: never more than the carrier's buffer holds.
    #[must_use]
    pub fn incoming_limit(&self) -> u64 {
        let held = match self.receive_buffer {
            0 => u64::MAX,
            held => held,
        };
        self.max_incoming.min(held).max(1)
    }

    /// The most unscheduled bytes of one message that peers are asked to keep to: a quarter of
    /// the receive buffer, where that is known.
    pub(crate) fn unscheduled_limit(&self) -> u32 {
        let quarter = match self.receive_buffer {
            0 => u64::MAX,
            held => (held / 4).max(self.max_payload(true) as u64),
        };
        u32::try_from(quarter)
            .unwrap_or(u32::MAX)
            .min(wire::MAX_MESSAGE)
    }
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
            max_unheard: 0,
            max_peer_requests: 0,
            max_peer_bytes: 0,
            max_stranger_bytes: 0,
            min_grant: 0,
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
