//! Packets, byte for byte.
//!
//! The format is that of the Linux kernel Homa (July 2026) and of draft-ousterhout-tsvwg-homa-00;
//! where the two differ the kernel's is sent and both are accepted. It is the same in a UDP
//! datagram and in an IP packet of protocol 146. All integers are big-endian.
//!
//! | type | value | length | sent by | draft |
//! |---|---|---|---|---|
//! | DATA | 0x10 | 56 + data | sender of a message | §3.1 |
//! | GRANT | 0x11 | 34, accepted from 33 | receiver of a message | §3.2 |
//! | RESEND | 0x12 | 37 | receiver of a message | §3.3 |
//! | RPC_UNKNOWN | 0x13 | 28 | either | §3.4, UNKNOWN |
//! | BUSY | 0x14 | 28 | sender of a message | §3.5 |
//! | CUTOFFS | 0x15 | 62, or 66 with a limit on unscheduled bytes | receiver | §3.6 |
//! | FREEZE | 0x16 | 28 | debugging aid of the kernel, never sent here | |
//! | NEED_ACK | 0x17 | 28 | server | §3.7 |
//! | ACK | 0x18 | 80, accepted from 30 | client | §3.8 |
//!
//! There are two ways to look at a packet. [`View`] borrows its bytes, checks them once and reads
//! a field when it is asked for. [`Repr`] is a plain value, to build packets, compare and print
//! them. Received bytes go `View::parse` → [`View`] (→ [`Repr`]); a [`Repr`] (or, where it must be
//! quick, a [`DataHeader`]) goes to bytes by `emit`.
//!
//! ```
//! use homa_proto::wire::{Common, Malformed, Repr, View};
//!
//! let common = Common { source_port: 4000, dest_port: 32768, sender_id: 3 };
//! let grant = Repr::Grant { common, offset: 60_000, priority: 2, resend_all: false };
//! let mut buffer = [0xff; 64];
//! let len = grant.emit(&mut buffer).expect("64 bytes hold a GRANT");
//!
//! let packet = &buffer[..len];
//! let Ok(View::Grant(view)) = View::parse(packet, 1_000_000) else { panic!("not a GRANT") };
//! assert_eq!((view.offset(), view.priority()), (60_000, 2));
//! assert_eq!(view.common().local_id(), 2);
//! assert_eq!(Repr::parse(packet, 1_000_000), Ok(grant));
//! assert_eq!(View::parse(&packet[..32], 1_000_000).unwrap_err(), Malformed::Truncated);
//! ```

mod repr;
mod view;

use core::fmt;

use crate::config::Carrier;

pub use repr::{Acks, DataHeader, Repr};
pub use view::{
    AckEntries, AckView, CommonView, CutoffsView, DataView, GrantView, ResendView, View,
};

/// Bytes of the header that every packet starts with; the whole of RPC_UNKNOWN, BUSY, FREEZE and
/// NEED_ACK.
pub const COMMON_LEN: usize = 28;
/// Bytes of a DATA packet before its data.
pub const DATA_LEN: usize = 56;
/// Bytes of a GRANT as the draft has it, and as it is sent here: the kernel ignores the last one.
pub const GRANT_LEN: usize = 34;
/// Bytes of a GRANT from the kernel: the fewest that are accepted.
pub const GRANT_MIN_LEN: usize = 33;
/// Bytes of a RESEND.
pub const RESEND_LEN: usize = 37;
/// Bytes of a CUTOFFS, without the limit on unscheduled bytes that may follow.
pub const CUTOFFS_LEN: usize = 62;
/// Bytes of a CUTOFFS with the limit on unscheduled bytes. The kernel ignores the last four.
pub const CUTOFFS_LIMIT_LEN: usize = 66;
/// Bytes of an ACK: always with all its entries, because the kernel drops shorter ones.
pub const ACK_LEN: usize = 80;
/// The fewest bytes of an ACK that are accepted: a count and no entry.
pub const ACK_MIN_LEN: usize = 30;
/// Most entries in an ACK.
pub const MAX_ACKS: usize = 5;
/// The length in a RESEND that asks for everything sent so far, whatever that is: the requester
/// has seen nothing of the message.
pub const ALL: u32 = u32::MAX;
/// The most bytes that a message can ever have, 2^31 − 1: the kernel's offsets are signed.
pub const MAX_MESSAGE: u32 = (1 << 31) - 1;
/// The most urgent of the eight priorities, that of control packets.
pub const MAX_PRIORITY: u8 = 7;

/// Where each field starts, in bytes from the start of the packet.
mod at {
    pub(super) const SOURCE_PORT: usize = 0;
    pub(super) const DEST_PORT: usize = 2;
    pub(super) const SEQUENCE: usize = 4;
    pub(super) const TYPE: usize = 11;
    pub(super) const DATA_OFFSET: usize = 12;
    pub(super) const SENDER_ID: usize = 20;

    pub(super) const DATA_MESSAGE_LEN: usize = 28;
    pub(super) const DATA_INCOMING: usize = 32;
    pub(super) const DATA_ACK: usize = 36;
    pub(super) const DATA_CUTOFF_VERSION: usize = 46;
    pub(super) const DATA_RETRANSMIT: usize = 48;
    pub(super) const DATA_FLAGS: usize = 49;
    pub(super) const DATA_SEGMENT_OFFSET: usize = 52;

    pub(super) const GRANT_OFFSET: usize = 28;
    pub(super) const GRANT_PRIORITY: usize = 32;
    pub(super) const GRANT_RESEND_ALL: usize = 33;

    pub(super) const RESEND_OFFSET: usize = 28;
    pub(super) const RESEND_LENGTH: usize = 32;
    pub(super) const RESEND_PRIORITY: usize = 36;

    pub(super) const CUTOFFS_VALUES: usize = 28;
    pub(super) const CUTOFFS_VERSION: usize = 60;
    pub(super) const CUTOFFS_LIMIT: usize = 62;

    pub(super) const ACK_COUNT: usize = 28;
    pub(super) const ACK_ENTRIES: usize = 30;
}

/// Bytes of one entry of an ACK, and of the acknowledgement in a DATA header.
const ACK_ENTRY_LEN: usize = 10;
/// A DATA packet whose segment offset is this means its sequence number instead: the kernel's
/// single packets.
const SEE_SEQUENCE: u32 = u32::MAX;

/// What starts at `AT`. A field that lies outside its packet does not compile.
struct Field<const AT: usize>;

impl<const AT: usize> Field<AT> {
    #[inline(always)]
    fn get<const W: usize, const N: usize>(bytes: &[u8; N]) -> [u8; W] {
        const { assert!(W <= N && AT <= N - W) };
        // The check above is for the reader and the compiler: the fallback is never taken.
        match bytes.split_at(AT).1.first_chunk() {
            Some(field) => *field,
            None => [0; W],
        }
    }

    #[inline(always)]
    fn put<const W: usize, const N: usize>(bytes: &mut [u8; N], value: [u8; W]) {
        const { assert!(W <= N && AT <= N - W) };
        if let Some(field) = bytes.split_at_mut(AT).1.first_chunk_mut() {
            *field = value;
        }
    }
}

/// The kinds of packets. Source: the draft's §3; `enum homa_packet_type` of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PacketType {
    /// Part of a message, or its announcement when it carries no bytes.
    Data = 0x10,
    /// The sender may send everything below an offset.
    Grant = 0x11,
    /// A range of the message is missing at its receiver.
    Resend = 0x12,
    /// The RPC named is not known here.
    RpcUnknown = 0x13,
    /// Alive, but nothing will be sent for the RPC just now.
    Busy = 0x14,
    /// The priorities that unscheduled data shall travel at.
    Cutoffs = 0x15,
    /// Debugging aid of the kernel: to be ignored.
    Freeze = 0x16,
    /// The server asks whether it may forget the RPC.
    NeedAck = 0x17,
    /// The server may forget the RPCs named.
    Ack = 0x18,
}

impl PacketType {
    /// The type of that value, if there is one.
    #[must_use]
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x10 => Self::Data,
            0x11 => Self::Grant,
            0x12 => Self::Resend,
            0x13 => Self::RpcUnknown,
            0x14 => Self::Busy,
            0x15 => Self::Cutoffs,
            0x16 => Self::Freeze,
            0x17 => Self::NeedAck,
            0x18 => Self::Ack,
            _ => return None,
        })
    }

    /// The fewest bytes that a packet of this type has.
    #[must_use]
    #[inline]
    pub const fn min_len(self) -> usize {
        match self {
            Self::Data => DATA_LEN,
            Self::Grant => GRANT_MIN_LEN,
            Self::Resend => RESEND_LEN,
            Self::Cutoffs => CUTOFFS_LEN,
            Self::Ack => ACK_MIN_LEN,
            Self::RpcUnknown | Self::Busy | Self::Freeze | Self::NeedAck => COMMON_LEN,
        }
    }

    /// What stands in the upper four bits of byte 12, a TCP header's length in words: network
    /// cards that segment Homa packets as TCP read it, Homa does not.
    const fn data_offset(self) -> u8 {
        match self {
            Self::Data => 14 << 4,
            _ => 5 << 4,
        }
    }
}

/// What is wrong with a packet's bytes.
///
/// [`View::parse`] checks in the order of the variants here and reports the first that fails,
/// with one exception: the length of a packet is compared with its type's after the type is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter than the common header, or than its type's fixed length.
    Truncated,
    /// A type that is not known.
    UnknownType,
    /// A source or destination port of 0.
    BadPort,
    /// An id of 0 or 1, an odd one in an ACK (only clients send those) or an even one in a
    /// NEED_ACK (only servers do).
    BadId,
    /// DATA of a message whose length is 0 or above the limit.
    BadLength,
    /// DATA that starts at or beyond the end of its message.
    BadOffset,
    /// DATA that starts within its message and ends beyond it.
    Overrun,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "shorter than its type's header",
            Self::UnknownType => "unknown packet type",
            Self::BadPort => "port 0",
            Self::BadId => "impossible RPC id",
            Self::BadLength => "message length 0 or above the limit",
            Self::BadOffset => "data starts beyond the end of its message",
            Self::Overrun => "data ends beyond the end of its message",
        })
    }
}

impl core::error::Error for Malformed {}

/// What every packet says: between which ports, and about which RPC. Source: the draft's §3, common
/// header; `struct homa_common_hdr` of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Common {
    /// Homa port of the sender.
    pub source_port: u16,
    /// Homa port of the receiver.
    pub dest_port: u16,
    /// The RPC's id as the packet's sender knows it: even at the RPC's client, odd at its server.
    pub sender_id: u64,
}

impl Common {
    /// The RPC's id as the packet's receiver knows it.
    #[must_use]
    #[inline]
    pub const fn local_id(&self) -> u64 {
        self.sender_id ^ 1
    }

    /// Whether the RPC's client sent the packet (its receiver is then the server).
    #[must_use]
    #[inline]
    pub const fn sent_by_client(&self) -> bool {
        self.sender_id & 1 == 0
    }
}

/// An RPC that its server may forget. Source: the draft's §3.8; `struct homa_ack` of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AckEntry {
    /// The RPC's id as its client knows it. Never 0; a sender in error may say an odd one, which
    /// names no RPC.
    pub client_id: u64,
    /// The server's Homa port for that RPC.
    pub server_port: u16,
}

impl AckEntry {
    /// `None` when the entry is unused.
    #[inline]
    fn read(bytes: &[u8; ACK_ENTRY_LEN]) -> Option<Self> {
        let client_id = u64::from_be_bytes(Field::<0>::get(bytes));
        (client_id != 0).then(|| Self {
            client_id,
            server_port: u16::from_be_bytes(Field::<8>::get(bytes)),
        })
    }

    #[inline]
    fn bytes(self) -> [u8; ACK_ENTRY_LEN] {
        let mut bytes = [0; ACK_ENTRY_LEN];
        Field::<0>::put(&mut bytes, self.client_id.to_be_bytes());
        Field::<8>::put(&mut bytes, self.server_port.to_be_bytes());
        bytes
    }
}

/// The IPv4 TOS or IPv6 traffic class byte that carries `priority` (above 7 taken as 7): the
/// class selectors CS0 to CS7, with the two ECN bits 0.
///
/// ```
/// # use homa_proto::wire::{priority_of_tos, tos};
/// assert_eq!(tos(6), 0xc0);
/// assert_eq!(priority_of_tos(0xc0 | 0b11), 6);
/// ```
#[must_use]
#[inline]
pub const fn tos(priority: u8) -> u8 {
    clamp_priority(priority) << 5
}

/// The priority that an IPv4 TOS or IPv6 traffic class byte carries; other bits are ignored.
#[must_use]
#[inline]
pub const fn priority_of_tos(tos: u8) -> u8 {
    tos >> 5
}

/// Above 7 is taken as 7: the kernel uses priorities as an index without a check.
const fn clamp_priority(priority: u8) -> u8 {
    if priority > MAX_PRIORITY {
        MAX_PRIORITY
    } else {
        priority
    }
}

/// The most bytes of data that a DATA packet carries in one IP packet of `mtu` bytes (without
/// options or extension headers); 0 when the headers alone do not fit.
///
/// ```
/// # use homa_proto::{Carrier, wire::max_payload};
/// assert_eq!(max_payload(1500, false, Carrier::NativeIp), 1424); // as the kernel does
/// assert_eq!(max_payload(1500, true, Carrier::NativeIp), 1404);
/// assert_eq!(max_payload(1500, false, Carrier::Udp), 1416);
/// ```
#[must_use]
pub const fn max_payload(mtu: u16, ipv6: bool, carrier: Carrier) -> usize {
    let ip = if ipv6 { 40 } else { 20 };
    let udp = match carrier {
        Carrier::Udp => 8,
        Carrier::NativeIp => 0,
    };
    (mtu as usize)
        .saturating_sub(ip)
        .saturating_sub(udp)
        .saturating_sub(DATA_LEN)
}
