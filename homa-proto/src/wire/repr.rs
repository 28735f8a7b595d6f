//! Packets as plain values, and their bytes.

use core::fmt;

use super::{
    ACK_ENTRY_LEN, ACK_LEN, AckEntry, COMMON_LEN, CUTOFFS_LEN, CUTOFFS_LIMIT_LEN, Common, DATA_LEN,
    Field, GRANT_LEN, MAX_ACKS, MAX_MESSAGE, Malformed, PacketType, RESEND_LEN, View, at,
    clamp_priority,
};

/// The start of every packet that is ever sent: the common header, and 0 in all other bytes, so
/// that reserved ones are 0 without anybody thinking of them. `sequence` is 0 except in DATA.
#[inline(always)]
fn packet<const N: usize>(common: Common, kind: PacketType, sequence: u32) -> [u8; N] {
    let mut bytes = [0; N];
    Field::<{ at::SOURCE_PORT }>::put(&mut bytes, common.source_port.to_be_bytes());
    Field::<{ at::DEST_PORT }>::put(&mut bytes, common.dest_port.to_be_bytes());
    Field::<{ at::SEQUENCE }>::put(&mut bytes, sequence.to_be_bytes());
    Field::<{ at::TYPE }>::put(&mut bytes, [kind as u8]);
    Field::<{ at::DATA_OFFSET }>::put(&mut bytes, [kind.data_offset()]);
    Field::<{ at::SENDER_ID }>::put(&mut bytes, common.sender_id.to_be_bytes());
    bytes
}

#[inline(always)]
fn write<const N: usize>(out: &mut [u8], bytes: &[u8; N]) -> Option<usize> {
    *out.first_chunk_mut()? = *bytes;
    Some(N)
}

/// A DATA packet without its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DataHeader {
    /// Ports and RPC.
    pub common: Common,
    /// Bytes of the whole message.
    pub message_len: u32,
    /// All bytes below this offset will be sent without a further grant.
    pub incoming: u32,
    /// An RPC that the server may forget.
    pub ack: Option<AckEntry>,
    /// Version of the last CUTOFFS from the receiver; 0: none yet.
    pub cutoff_version: u16,
    /// Sent in answer to a RESEND.
    pub retransmit: bool,
    /// Flag bits between endpoints of this project; ignored by the kernel.
    pub flags: u8,
    /// Where in the message the data starts.
    pub offset: u32,
}

impl DataHeader {
    /// Writes the header to the start of `out`; the data belongs right behind it. Returns its
    /// length, [`DATA_LEN`], or `None` when `out` is shorter: then nothing is written.
    ///
    /// The offset goes to both of its fields: the kernel repairs a missing one only in its
    /// receive offload.
    #[inline]
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let mut bytes = packet::<DATA_LEN>(self.common, PacketType::Data, self.offset);
        Field::<{ at::DATA_MESSAGE_LEN }>::put(&mut bytes, self.message_len.to_be_bytes());
        Field::<{ at::DATA_INCOMING }>::put(&mut bytes, self.incoming.to_be_bytes());
        if let Some(ack) = self.ack {
            Field::<{ at::DATA_ACK }>::put(&mut bytes, ack.bytes());
        }
        Field::<{ at::DATA_CUTOFF_VERSION }>::put(&mut bytes, self.cutoff_version.to_be_bytes());
        Field::<{ at::DATA_RETRANSMIT }>::put(&mut bytes, [self.retransmit.into()]);
        Field::<{ at::DATA_FLAGS }>::put(&mut bytes, [self.flags]);
        Field::<{ at::DATA_SEGMENT_OFFSET }>::put(&mut bytes, self.offset.to_be_bytes());
        write(out, &bytes)
    }
}

/// A few acknowledgements: what one ACK packet holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Acks {
    // Entries are `Some` from the front, then `None`.
    entries: [Option<AckEntry>; MAX_ACKS],
}

impl Acks {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: [None; MAX_ACKS],
        }
    }

    /// Adds an entry. `false`: it was not taken, because there are [`MAX_ACKS`] already or
    /// because its id is 0, which marks an unused entry on the wire.
    #[must_use]
    pub fn push(&mut self, entry: AckEntry) -> bool {
        match self.entries.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) if entry.client_id != 0 => {
                *slot = Some(entry);
                true
            }
            _ => false,
        }
    }

    /// The entries, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = AckEntry> + '_ {
        self.entries.iter().copied().flatten()
    }

    /// How many entries there are, 0 to [`MAX_ACKS`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.first().is_none_or(Option::is_none)
    }

    /// Whether no entry can be added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.entries.last().is_some_and(Option::is_some)
    }
}

impl fmt::Debug for Acks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A packet as a plain value.
///
/// [`emit`](Self::emit) followed by [`parse`](Self::parse) gives the same value back when it is one that
/// may be sent: ports not 0, ids of the kind that the type demands, priorities of at most 7,
/// cutoffs of at most [`MAX_MESSAGE`], data within its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Repr<'a> {
    /// Part of a message.
    Data {
        /// All but the data.
        header: DataHeader,
        /// The bytes at the header's offset.
        data: &'a [u8],
    },
    /// Leave to send more.
    Grant {
        /// Ports and RPC.
        common: Common,
        /// Everything below may be sent.
        offset: u32,
        /// The priority of the message's data from now on; never sent above 7.
        priority: u8,
        /// Everything from 0 to the offset is to be sent again. Only the draft knows this: the kernel
        /// ignores it.
        resend_all: bool,
    },
    /// A request for lost data.
    Resend {
        /// Ports and RPC.
        common: Common,
        /// Where the missing range starts.
        offset: u32,
        /// Its bytes; [`ALL`](super::ALL): everything sent so far.
        len: u32,
        /// The priority of the data asked for; never sent above 7.
        priority: u8,
    },
    /// The RPC is not known here.
    RpcUnknown(Common),
    /// A sign of life.
    Busy(Common),
    /// Priorities for unscheduled data.
    Cutoffs {
        /// Ports, and the RPC whose DATA showed an old version.
        common: Common,
        /// Per priority, the longest message that may use it; 0: not in use. Never sent above
        /// [`MAX_MESSAGE`].
        cutoffs: [u32; 8],
        /// Never 0.
        version: u16,
        /// Most unscheduled bytes of one message; the kernel ignores it.
        unscheduled_limit: Option<u32>,
    },
    /// The kernel's debugging aid. Never sent by an endpoint.
    Freeze(Common),
    /// A request for an acknowledgement.
    NeedAck(Common),
    /// Acknowledgements.
    Ack {
        /// Ports, and an RPC that is acknowledged.
        common: Common,
        /// Further RPCs.
        acks: Acks,
    },
}

impl<'a> Repr<'a> {
    /// Checks and reads a received packet: see [`View::parse`].
    ///
    /// # Errors
    /// As [`View::parse`].
    pub fn parse(bytes: &'a [u8], max_message: u32) -> Result<Self, Malformed> {
        View::parse(bytes, max_message).map(|view| Self::from(&view))
    }

    /// Ports and RPC.
    #[must_use]
    pub fn common(&self) -> Common {
        match *self {
            Self::Data { header, .. } => header.common,
            Self::Grant { common, .. }
            | Self::Resend { common, .. }
            | Self::RpcUnknown(common)
            | Self::Busy(common)
            | Self::Cutoffs { common, .. }
            | Self::Freeze(common)
            | Self::NeedAck(common)
            | Self::Ack { common, .. } => common,
        }
    }

    /// The packet's type.
    #[must_use]
    pub fn packet_type(&self) -> PacketType {
        match self {
            Self::Data { .. } => PacketType::Data,
            Self::Grant { .. } => PacketType::Grant,
            Self::Resend { .. } => PacketType::Resend,
            Self::RpcUnknown(_) => PacketType::RpcUnknown,
            Self::Busy(_) => PacketType::Busy,
            Self::Cutoffs { .. } => PacketType::Cutoffs,
            Self::Freeze(_) => PacketType::Freeze,
            Self::NeedAck(_) => PacketType::NeedAck,
            Self::Ack { .. } => PacketType::Ack,
        }
    }

    /// Bytes of the packet: what [`emit`](Self::emit) writes.
    // A packet is never empty.
    #[allow(clippy::len_without_is_empty)]
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Data { data, .. } => DATA_LEN.saturating_add(data.len()),
            Self::Grant { .. } => GRANT_LEN,
            Self::Resend { .. } => RESEND_LEN,
            Self::Cutoffs {
                unscheduled_limit: None,
                ..
            } => CUTOFFS_LEN,
            Self::Cutoffs { .. } => CUTOFFS_LIMIT_LEN,
            Self::Ack { .. } => ACK_LEN,
            Self::RpcUnknown(_) | Self::Busy(_) | Self::Freeze(_) | Self::NeedAck(_) => COMMON_LEN,
        }
    }

    /// Writes the packet to the start of `out`, every byte of it, and returns its length; `None`
    /// when `out` is shorter than that.
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        match *self {
            Self::Data { header, data } => {
                let out = out.get_mut(..self.len())?;
                let (start, rest) = out.split_at_mut_checked(DATA_LEN)?;
                header.emit(start)?;
                rest.copy_from_slice(data);
                Some(self.len())
            }
            Self::Grant {
                common,
                offset,
                priority,
                resend_all,
            } => {
                let mut bytes = packet::<GRANT_LEN>(common, PacketType::Grant, 0);
                Field::<{ at::GRANT_OFFSET }>::put(&mut bytes, offset.to_be_bytes());
                Field::<{ at::GRANT_PRIORITY }>::put(&mut bytes, [clamp_priority(priority)]);
                Field::<{ at::GRANT_RESEND_ALL }>::put(&mut bytes, [resend_all.into()]);
                write(out, &bytes)
            }
            Self::Resend {
                common,
                offset,
                len,
                priority,
            } => {
                let mut bytes = packet::<RESEND_LEN>(common, PacketType::Resend, 0);
                Field::<{ at::RESEND_OFFSET }>::put(&mut bytes, offset.to_be_bytes());
                Field::<{ at::RESEND_LENGTH }>::put(&mut bytes, len.to_be_bytes());
                Field::<{ at::RESEND_PRIORITY }>::put(&mut bytes, [clamp_priority(priority)]);
                write(out, &bytes)
            }
            Self::Cutoffs {
                common,
                cutoffs,
                version,
                unscheduled_limit,
            } => {
                let mut bytes = packet::<CUTOFFS_LIMIT_LEN>(common, PacketType::Cutoffs, 0);
                let mut values = [0; 32];
                for (value, cutoff) in values.as_chunks_mut().0.iter_mut().zip(cutoffs) {
                    *value = cutoff.min(MAX_MESSAGE).to_be_bytes();
                }
                Field::<{ at::CUTOFFS_VALUES }>::put(&mut bytes, values);
                Field::<{ at::CUTOFFS_VERSION }>::put(&mut bytes, version.to_be_bytes());
                match unscheduled_limit {
                    None => write(out, bytes.first_chunk::<CUTOFFS_LEN>()?),
                    Some(limit) => {
                        Field::<{ at::CUTOFFS_LIMIT }>::put(&mut bytes, limit.to_be_bytes());
                        write(out, &bytes)
                    }
                }
            }
            Self::Ack { common, acks } => {
                let mut bytes = packet::<ACK_LEN>(common, PacketType::Ack, 0);
                let mut count = 0u16;
                let mut entries = [0; MAX_ACKS * ACK_ENTRY_LEN];
                for (bytes, ack) in entries.as_chunks_mut().0.iter_mut().zip(acks.iter()) {
                    *bytes = ack.bytes();
                    count = count.saturating_add(1);
                }
                Field::<{ at::ACK_COUNT }>::put(&mut bytes, count.to_be_bytes());
                Field::<{ at::ACK_ENTRIES }>::put(&mut bytes, entries);
                write(out, &bytes)
            }
            Self::RpcUnknown(common)
            | Self::Busy(common)
            | Self::Freeze(common)
            | Self::NeedAck(common) => {
                write(out, &packet::<COMMON_LEN>(common, self.packet_type(), 0))
            }
        }
    }
}

impl<'a> From<&View<'a>> for Repr<'a> {
    fn from(view: &View<'a>) -> Self {
        match view {
            View::Data(view) => Self::Data {
                header: DataHeader {
                    common: view.common(),
                    message_len: view.message_len(),
                    incoming: view.incoming(),
                    ack: view.ack(),
                    cutoff_version: view.cutoff_version(),
                    retransmit: view.retransmit(),
                    flags: view.flags(),
                    offset: view.offset(),
                },
                data: view.data(),
            },
            View::Grant(view) => Self::Grant {
                common: view.common(),
                offset: view.offset(),
                priority: view.priority(),
                resend_all: view.resend_all(),
            },
            View::Resend(view) => Self::Resend {
                common: view.common(),
                offset: view.offset(),
                len: view.len(),
                priority: view.priority(),
            },
            View::RpcUnknown(view) => Self::RpcUnknown(view.common()),
            View::Busy(view) => Self::Busy(view.common()),
            View::Cutoffs(view) => Self::Cutoffs {
                common: view.common(),
                cutoffs: view.cutoffs(),
                version: view.version(),
                unscheduled_limit: view.unscheduled_limit(),
            },
            View::Freeze(view) => Self::Freeze(view.common()),
            View::NeedAck(view) => Self::NeedAck(view.common()),
            View::Ack(view) => {
                let mut acks = Acks::new();
                for entry in view.entries() {
                    // A view never has more entries than fit, nor one of id 0.
                    let taken = acks.push(entry);
                    debug_assert!(taken);
                }
                Self::Ack {
                    common: view.common(),
                    acks,
                }
            }
        }
    }
}
