//! Checked views over received bytes.

use core::fmt;

use super::{
    ACK_ENTRY_LEN, ACK_MIN_LEN, AckEntry, COMMON_LEN, CUTOFFS_LEN, Common, DATA_LEN, Field,
    GRANT_MIN_LEN, MAX_ACKS, MAX_MESSAGE, Malformed, PacketType, RESEND_LEN, SEE_SEQUENCE, at,
    clamp_priority,
};

/// A received packet that has passed every check of its bytes.
///
/// What was checked is said at [`Malformed`]. Nothing about the sender's address has been.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// Part of a message.
    Data(DataView<'a>),
    /// Leave to send more.
    Grant(GrantView<'a>),
    /// A request for lost data.
    Resend(ResendView<'a>),
    /// The RPC is not known to the packet's sender.
    RpcUnknown(CommonView),
    /// A sign of life.
    Busy(CommonView),
    /// Priorities for unscheduled data.
    Cutoffs(CutoffsView<'a>),
    /// To be ignored.
    Freeze(CommonView),
    /// A request for an acknowledgement.
    NeedAck(CommonView),
    /// Acknowledgements.
    Ack(AckView<'a>),
}

impl<'a> View<'a> {
    /// Checks a received packet: the payload of one UDP datagram, or of one IP packet of protocol
    /// 146. `max_message` is the longest message accepted, in bytes; above [`MAX_MESSAGE`] it
    /// counts as that. Bytes beyond the type's length are ignored, except in DATA, which ends
    /// with its data.
    ///
    /// # Errors
    /// The first check that failed. Such a packet is dropped, counted and never answered.
    #[inline]
    pub fn parse(bytes: &'a [u8], max_message: u32) -> Result<Self, Malformed> {
        const DATA: u8 = PacketType::Data as u8;
        // Most packets are DATA: a path of its own, short enough to be inlined.
        match bytes.get(at::TYPE) {
            Some(&DATA) => DataView::parse(bytes, max_message).map(Self::Data),
            _ => Self::parse_any(bytes, max_message),
        }
    }

    fn parse_any(bytes: &'a [u8], max_message: u32) -> Result<Self, Malformed> {
        let header: &[u8; COMMON_LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
        let kind = PacketType::from_u8(header[at::TYPE]).ok_or(Malformed::UnknownType)?;
        let common = Common::read(header);
        Ok(match kind {
            PacketType::Data => Self::Data(DataView::parse(bytes, max_message)?),
            PacketType::Grant => {
                let (header, rest) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
                Self::Grant(GrantView {
                    common: common.checked()?,
                    header,
                    resend_all: rest.first().is_some_and(|&byte| byte != 0),
                })
            }
            PacketType::Resend => Self::Resend(ResendView {
                header: bytes.first_chunk().ok_or(Malformed::Truncated)?,
                common: common.checked()?,
            }),
            PacketType::Cutoffs => {
                let (header, rest) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
                Self::Cutoffs(CutoffsView {
                    common: common.checked()?,
                    header,
                    rest,
                })
            }
            PacketType::Ack => {
                let (header, rest) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
                let common = common.checked()?;
                if !common.sent_by_client() {
                    return Err(Malformed::BadId);
                }
                Self::Ack(AckView {
                    common,
                    header,
                    rest,
                })
            }
            PacketType::NeedAck => {
                let common = common.checked()?;
                if common.sent_by_client() {
                    return Err(Malformed::BadId);
                }
                Self::NeedAck(CommonView { common })
            }
            PacketType::RpcUnknown => Self::RpcUnknown(common.checked()?.into()),
            PacketType::Busy => Self::Busy(common.checked()?.into()),
            PacketType::Freeze => Self::Freeze(common.checked()?.into()),
        })
    }

    /// Ports and RPC.
    #[must_use]
    #[inline]
    pub fn common(&self) -> Common {
        match self {
            Self::Data(view) => view.common,
            Self::Grant(view) => view.common,
            Self::Resend(view) => view.common,
            Self::Cutoffs(view) => view.common,
            Self::Ack(view) => view.common,
            Self::RpcUnknown(view)
            | Self::Busy(view)
            | Self::Freeze(view)
            | Self::NeedAck(view) => view.common,
        }
    }

    /// The packet's type.
    #[must_use]
    #[inline]
    pub fn packet_type(&self) -> PacketType {
        match self {
            Self::Data(_) => PacketType::Data,
            Self::Grant(_) => PacketType::Grant,
            Self::Resend(_) => PacketType::Resend,
            Self::RpcUnknown(_) => PacketType::RpcUnknown,
            Self::Busy(_) => PacketType::Busy,
            Self::Cutoffs(_) => PacketType::Cutoffs,
            Self::Freeze(_) => PacketType::Freeze,
            Self::NeedAck(_) => PacketType::NeedAck,
            Self::Ack(_) => PacketType::Ack,
        }
    }
}

impl Common {
    #[inline]
    fn read<const N: usize>(header: &[u8; N]) -> Self {
        Self {
            source_port: u16::from_be_bytes(Field::<{ at::SOURCE_PORT }>::get(header)),
            dest_port: u16::from_be_bytes(Field::<{ at::DEST_PORT }>::get(header)),
            sender_id: u64::from_be_bytes(Field::<{ at::SENDER_ID }>::get(header)),
        }
    }

    #[inline]
    fn checked(self) -> Result<Self, Malformed> {
        if self.source_port == 0 || self.dest_port == 0 {
            return Err(Malformed::BadPort);
        }
        // 0 and 1 are the two sides of an RPC that cannot be.
        if self.sender_id <= 1 {
            return Err(Malformed::BadId);
        }
        Ok(self)
    }
}

macro_rules! common {
    ($($view:ident $(<$a:lifetime>)?),*) => {$(
        impl $view $(<$a>)? {
            /// Ports and RPC.
            #[must_use]
            #[inline]
            pub fn common(&self) -> Common {
                self.common
            }
        }
    )*};
}
common!(
    CommonView,
    DataView<'_>,
    GrantView<'_>,
    ResendView<'_>,
    CutoffsView<'_>,
    AckView<'_>
);

/// RPC_UNKNOWN, BUSY, FREEZE or NEED_ACK: the common header and no more. Source: the draft's §3.4,
/// §3.5 and §3.7.
#[derive(Clone, Copy, Debug)]
pub struct CommonView {
    common: Common,
}

impl From<Common> for CommonView {
    #[inline]
    fn from(common: Common) -> Self {
        Self { common }
    }
}

/// DATA. Source: the draft's §3.1.
///
/// `offset() + data().len() <= message_len()` always holds.
#[derive(Clone, Copy)]
pub struct DataView<'a> {
    common: Common,
    header: &'a [u8; DATA_LEN],
    data: &'a [u8],
}

impl<'a> DataView<'a> {
    #[inline]
    fn parse(bytes: &'a [u8], max_message: u32) -> Result<Self, Malformed> {
        let (header, data) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        let view = Self {
            common: Common::read(header).checked()?,
            header,
            data,
        };
        let message_len = view.message_len();
        if message_len == 0 || message_len > max_message.min(MAX_MESSAGE) {
            return Err(Malformed::BadLength);
        }
        if data.is_empty() {
            return Ok(view);
        }
        // What is left of the message is computed, never where the data would end.
        match message_len.checked_sub(view.raw_offset()) {
            None | Some(0) => Err(Malformed::BadOffset),
            Some(left) if data.len() > left as usize => Err(Malformed::Overrun),
            Some(_) => Ok(view),
        }
    }

    #[inline]
    fn raw_offset(&self) -> u32 {
        let segment = u32::from_be_bytes(Field::<{ at::DATA_SEGMENT_OFFSET }>::get(self.header));
        if segment == SEE_SEQUENCE {
            u32::from_be_bytes(Field::<{ at::SEQUENCE }>::get(self.header))
        } else {
            segment
        }
    }

    /// Bytes of the whole message: 1 to the limit.
    #[must_use]
    #[inline]
    pub fn message_len(&self) -> u32 {
        u32::from_be_bytes(Field::<{ at::DATA_MESSAGE_LEN }>::get(self.header))
    }

    /// The sender will send everything below this offset without a further grant. At most the
    /// message's length, whatever the packet says.
    #[must_use]
    #[inline]
    pub fn incoming(&self) -> u32 {
        u32::from_be_bytes(Field::<{ at::DATA_INCOMING }>::get(self.header)).min(self.message_len())
    }

    /// An RPC (another than the packet's own) that the server may forget.
    #[must_use]
    #[inline]
    pub fn ack(&self) -> Option<AckEntry> {
        AckEntry::read(&Field::<{ at::DATA_ACK }>::get(self.header))
    }

    /// Version of the last CUTOFFS that the sender has from this receiver; 0: none yet.
    #[must_use]
    #[inline]
    pub fn cutoff_version(&self) -> u16 {
        u16::from_be_bytes(Field::<{ at::DATA_CUTOFF_VERSION }>::get(self.header))
    }

    /// Whether the data is sent in answer to a RESEND.
    #[must_use]
    #[inline]
    pub fn retransmit(&self) -> bool {
        self.header[at::DATA_RETRANSMIT] != 0
    }

    /// Flag bits between endpoints of this project, in a byte that is padding (0) to the kernel.
    /// Unknown bits are to be ignored.
    #[must_use]
    #[inline]
    pub fn flags(&self) -> u8 {
        self.header[at::DATA_FLAGS]
    }

    /// Where in the message the data starts. Both of the kernel's ways to say so are understood.
    /// Without data it means nothing and is at most the message's length.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u32 {
        self.raw_offset().min(self.message_len())
    }

    /// The data; may be empty, then the packet only announces its message.
    #[must_use]
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        self.data
    }
}

impl fmt::Debug for DataView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataView")
            .field("common", &self.common)
            .field("message_len", &self.message_len())
            .field("incoming", &self.incoming())
            .field("ack", &self.ack())
            .field("cutoff_version", &self.cutoff_version())
            .field("retransmit", &self.retransmit())
            .field("flags", &self.flags())
            .field("offset", &self.offset())
            .field("data_len", &self.data.len())
            .finish()
    }
}

/// GRANT. Source: the draft's §3.2.
#[derive(Clone, Copy)]
pub struct GrantView<'a> {
    common: Common,
    header: &'a [u8; GRANT_MIN_LEN],
    resend_all: bool,
}

impl GrantView<'_> {
    /// Everything below this offset may be sent now. May be beyond the message's end.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u32 {
        u32::from_be_bytes(Field::<{ at::GRANT_OFFSET }>::get(self.header))
    }

    /// The priority of this message's data from now on, 0 to 7 (above is taken as 7).
    #[must_use]
    #[inline]
    pub fn priority(&self) -> u8 {
        clamp_priority(self.header[at::GRANT_PRIORITY])
    }

    /// Whether everything from 0 to the offset is to be sent again. In the draft only: never set
    /// by the kernel, whose GRANT ends before it.
    #[must_use]
    #[inline]
    pub fn resend_all(&self) -> bool {
        self.resend_all
    }
}

impl fmt::Debug for GrantView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantView")
            .field("common", &self.common)
            .field("offset", &self.offset())
            .field("priority", &self.priority())
            .field("resend_all", &self.resend_all)
            .finish()
    }
}

/// RESEND. Source: the draft's §3.3; its [`ALL`](super::ALL) is the kernel's.
#[derive(Clone, Copy)]
pub struct ResendView<'a> {
    common: Common,
    header: &'a [u8; RESEND_LEN],
}

// The length is that of a range of a message: there is nothing for `is_empty` to say.
#[allow(clippy::len_without_is_empty)]
impl ResendView<'_> {
    /// Where the missing range starts. Any value; to be compared with the message's length.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u32 {
        u32::from_be_bytes(Field::<{ at::RESEND_OFFSET }>::get(self.header))
    }

    /// Bytes of the missing range: any value, `offset + len` may not fit 32 bits. 0 is a probe,
    /// [`ALL`](super::ALL) means everything sent so far.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        u32::from_be_bytes(Field::<{ at::RESEND_LENGTH }>::get(self.header))
    }

    /// The priority that the data asked for shall have, 0 to 7 (above is taken as 7).
    #[must_use]
    #[inline]
    pub fn priority(&self) -> u8 {
        clamp_priority(self.header[at::RESEND_PRIORITY])
    }
}

impl fmt::Debug for ResendView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResendView")
            .field("common", &self.common)
            .field("offset", &self.offset())
            .field("len", &self.len())
            .field("priority", &self.priority())
            .finish()
    }
}

/// CUTOFFS. Source: the draft's §3.6.
#[derive(Clone, Copy)]
pub struct CutoffsView<'a> {
    common: Common,
    header: &'a [u8; CUTOFFS_LEN],
    rest: &'a [u8],
}

impl CutoffsView<'_> {
    /// Per priority, the longest message whose unscheduled data may use it; 0: the level is not
    /// in use. The priority of a message of length `L` is the largest `i` with
    /// `cutoffs()[i] >= L`, where `cutoffs()[0]` counts as infinite whatever it says.
    #[must_use]
    #[inline]
    pub fn cutoffs(&self) -> [u32; 8] {
        let values: [u8; 32] = Field::<{ at::CUTOFFS_VALUES }>::get(self.header);
        let mut cutoffs = [0; 8];
        for (cutoff, value) in cutoffs.iter_mut().zip(values.as_chunks().0) {
            *cutoff = u32::from_be_bytes(*value);
        }
        cutoffs
    }

    /// To be repeated in DATA packets to this peer. 0 is never issued by a correct receiver.
    #[must_use]
    #[inline]
    pub fn version(&self) -> u16 {
        u16::from_be_bytes(Field::<{ at::CUTOFFS_VERSION }>::get(self.header))
    }

    /// The most unscheduled bytes of one message that the receiver wants, when it says so: an
    /// addition of this project, which the kernel neither sends nor reads.
    #[must_use]
    #[inline]
    pub fn unscheduled_limit(&self) -> Option<u32> {
        self.rest
            .first_chunk()
            .map(|limit| u32::from_be_bytes(*limit))
    }
}

impl fmt::Debug for CutoffsView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CutoffsView")
            .field("common", &self.common)
            .field("cutoffs", &self.cutoffs())
            .field("version", &self.version())
            .field("unscheduled_limit", &self.unscheduled_limit())
            .finish()
    }
}

/// ACK. The RPC in its common header is acknowledged too. Source: the draft's §3.8.
#[derive(Clone, Copy)]
pub struct AckView<'a> {
    common: Common,
    header: &'a [u8; ACK_MIN_LEN],
    rest: &'a [u8],
}

impl<'a> AckView<'a> {
    /// The further RPCs acknowledged: at most [`MAX_ACKS`], and no more than the packet really
    /// holds, whatever its count says. Unused entries (id 0) are left out.
    #[must_use]
    #[inline]
    pub fn entries(&self) -> AckEntries<'a> {
        let count = u16::from_be_bytes(Field::<{ at::ACK_COUNT }>::get(self.header));
        let (entries, _) = self.rest.as_chunks();
        AckEntries(entries.iter().take(MAX_ACKS.min(count.into())))
    }
}

impl fmt::Debug for AckView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AckView")
            .field("common", &self.common)
            .field("entries", &self.entries())
            .finish()
    }
}

/// The entries of an [`AckView`].
#[derive(Clone)]
pub struct AckEntries<'a>(core::iter::Take<core::slice::Iter<'a, [u8; ACK_ENTRY_LEN]>>);

impl Iterator for AckEntries<'_> {
    type Item = AckEntry;

    #[inline]
    fn next(&mut self) -> Option<AckEntry> {
        self.0.find_map(AckEntry::read)
    }
}

impl fmt::Debug for AckEntries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}
