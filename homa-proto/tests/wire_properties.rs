//! Every packet that may be sent reads back as it was, and every other run of bytes is refused
//! for the reason that the format gives.

use std::ops::Range;

use homa_proto::Carrier;
use homa_proto::wire::{
    ACK_LEN, ACK_MIN_LEN, ALL, AckEntry, Acks, COMMON_LEN, CUTOFFS_LEN, CUTOFFS_LIMIT_LEN, Common,
    DATA_LEN, DataHeader, GRANT_LEN, GRANT_MIN_LEN, MAX_ACKS, MAX_MESSAGE, Malformed, PacketType,
    RESEND_LEN, Repr, View, max_payload, priority_of_tos, tos,
};

/// The kernel's limit.
const LIMIT: u32 = 1_000_000;

/// Marsaglia's xorshift: enough to visit many cases, the same ones each time.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A value below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 32) % bound
    }

    fn flip(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// Any `u32`, often one at an edge.
    fn u32(&mut self) -> u32 {
        const EDGES: [u32; 12] = [
            0,
            1,
            2,
            LIMIT - 1,
            LIMIT,
            LIMIT + 1,
            MAX_MESSAGE - 1,
            MAX_MESSAGE,
            MAX_MESSAGE + 1,
            u32::MAX - 1,
            u32::MAX,
            1500,
        ];
        match self.below(3) {
            0 => EDGES[self.below(EDGES.len() as u64) as usize],
            1 => self.below(u64::from(LIMIT)) as u32,
            _ => self.next() as u32,
        }
    }

    fn u16_not_0(&mut self) -> u16 {
        1 + self.below(65_535) as u16
    }

    fn id(&mut self) -> u64 {
        match self.below(8) {
            0 => 2,
            1 => 3,
            2 => u64::MAX,
            3 => u64::MAX - 1,
            _ => self.next().max(2),
        }
    }

    fn common(&mut self) -> Common {
        Common {
            source_port: self.u16_not_0(),
            dest_port: self.u16_not_0(),
            sender_id: self.id(),
        }
    }

    fn ack(&mut self) -> AckEntry {
        AckEntry {
            client_id: self.id(),
            server_port: self.next() as u16,
        }
    }

    /// A packet that may be sent, of the type of that number, with data from `pool`.
    fn repr<'a>(&mut self, kind: u8, pool: &'a [u8]) -> Repr<'a> {
        let common = self.common();
        let priority = self.below(8) as u8;
        match PacketType::from_u8(kind).unwrap() {
            PacketType::Data => {
                let message_len = self.u32().clamp(1, LIMIT);
                let offset = self.u32() % message_len;
                let most = pool.len().min((message_len - offset) as usize);
                let len = match self.below(4) {
                    0 => 0,
                    1 => most,
                    _ => self.below(most as u64 + 1) as usize,
                };
                Repr::Data {
                    header: DataHeader {
                        common,
                        message_len,
                        incoming: self.u32().min(message_len),
                        ack: self.flip().then(|| self.ack()),
                        cutoff_version: self.next() as u16,
                        retransmit: self.flip(),
                        flags: self.next() as u8,
                        offset,
                    },
                    data: &pool[..len],
                }
            }
            PacketType::Grant => Repr::Grant {
                common,
                offset: self.u32(),
                priority,
                resend_all: self.flip(),
            },
            PacketType::Resend => Repr::Resend {
                common,
                offset: self.u32(),
                len: self.u32(),
                priority,
            },
            PacketType::RpcUnknown => Repr::RpcUnknown(common),
            PacketType::Busy => Repr::Busy(common),
            PacketType::Cutoffs => Repr::Cutoffs {
                common,
                cutoffs: std::array::from_fn(|_| self.u32().min(MAX_MESSAGE)),
                version: self.next() as u16,
                unscheduled_limit: self.flip().then(|| self.u32()),
            },
            PacketType::Freeze => Repr::Freeze(common),
            PacketType::NeedAck => Repr::NeedAck(Common {
                sender_id: common.sender_id | 1,
                ..common
            }),
            PacketType::Ack => {
                let mut acks = Acks::new();
                for _ in 0..self.below(MAX_ACKS as u64 + 1) {
                    assert!(acks.push(self.ack()));
                }
                Repr::Ack {
                    common: Common {
                        sender_id: common.sender_id & !1,
                        ..common
                    },
                    acks,
                }
            }
        }
    }
}

/// Calls `check` with many packets of every type, and bytes to draw from.
fn for_each_packet(seed: u64, per_type: usize, mut check: impl FnMut(&mut Rng, Repr<'_>)) {
    let pool: Vec<u8> = (0..1500u32).map(|i| (i * 31 % 251) as u8).collect();
    let mut rng = Rng(seed);
    for kind in 0x10..=0x18 {
        for _ in 0..per_type {
            let repr = rng.repr(kind, &pool);
            check(&mut rng, repr);
        }
    }
}

fn bytes_of(repr: &Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0xaa; repr.len()];
    assert_eq!(repr.emit(&mut bytes), Some(bytes.len()));
    bytes
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// What the format says of a packet, check by check, in wide arithmetic.
fn verdict(bytes: &[u8], max_message: u32) -> Result<(), Malformed> {
    if bytes.len() < 28 {
        return Err(Malformed::Truncated);
    }
    let kind = bytes[11];
    let min_len = match kind {
        0x10 => 56,
        0x11 => 33,
        0x12 => 37,
        0x13 | 0x14 | 0x16 | 0x17 => 28,
        0x15 => 62,
        0x18 => 30,
        _ => return Err(Malformed::UnknownType),
    };
    if bytes.len() < min_len {
        return Err(Malformed::Truncated);
    }
    if be16(bytes, 0) == 0 || be16(bytes, 2) == 0 {
        return Err(Malformed::BadPort);
    }
    let id = be64(bytes, 20);
    if id < 2 || (kind == 0x18 && id % 2 == 1) || (kind == 0x17 && id.is_multiple_of(2)) {
        return Err(Malformed::BadId);
    }
    if kind == 0x10 {
        let message_len = i128::from(be32(bytes, 28));
        if message_len < 1 || message_len > i128::from(max_message).min((1 << 31) - 1) {
            return Err(Malformed::BadLength);
        }
        let segment = be32(bytes, 52);
        let offset = i128::from(if segment == 0xffff_ffff {
            be32(bytes, 4)
        } else {
            segment
        });
        let data_len = bytes.len() as i128 - 56;
        if data_len > 0 && offset >= message_len {
            return Err(Malformed::BadOffset);
        }
        if data_len > 0 && offset + data_len > message_len {
            return Err(Malformed::Overrun);
        }
    }
    Ok(())
}

/// Parses, compares with the verdict and reads every field of what was accepted.
fn check_against_verdict(bytes: &[u8], max_message: u32) -> Result<(), Malformed> {
    let result = View::parse(bytes, max_message);
    let expected = verdict(bytes, max_message);
    assert_eq!(
        result.as_ref().map(|_| ()),
        expected.as_ref().copied(),
        "{bytes:02x?}"
    );
    if let Ok(view) = result {
        let common = view.common();
        assert_eq!(view.packet_type() as u8, bytes[11]);
        assert_eq!(common.source_port, be16(bytes, 0));
        assert_eq!(common.dest_port, be16(bytes, 2));
        assert_eq!(common.sender_id, be64(bytes, 20));
        assert!(!format!("{view:?} {:?}", Repr::from(&view)).is_empty());
        match view {
            View::Data(data) => {
                let len = data.message_len();
                assert!(len >= 1 && len <= max_message && len <= MAX_MESSAGE);
                assert!(data.incoming() <= len);
                assert_eq!(data.incoming(), be32(bytes, 32).min(len));
                assert!(u64::from(data.offset()) + data.data().len() as u64 <= u64::from(len));
                assert_eq!(data.retransmit(), bytes[48] != 0);
                assert_eq!(data.data(), &bytes[56..]);
            }
            View::Grant(grant) => {
                assert_eq!(grant.priority(), bytes[32].min(7));
                assert_eq!(grant.resend_all(), bytes.len() > 33 && bytes[33] != 0);
            }
            View::Resend(resend) => assert_eq!(resend.priority(), bytes[36].min(7)),
            View::Cutoffs(cutoffs) => {
                let limit = (bytes.len() >= 66).then(|| be32(bytes, 62));
                assert_eq!(cutoffs.unscheduled_limit(), limit);
            }
            View::Ack(ack) => {
                let holds = ((bytes.len() - 30) / 10).min(5).min(be16(bytes, 28).into());
                let entries: Vec<AckEntry> = (0..holds)
                    .map(|i| AckEntry {
                        client_id: be64(bytes, 30 + 10 * i),
                        server_port: be16(bytes, 38 + 10 * i),
                    })
                    .filter(|entry| entry.client_id != 0)
                    .collect();
                assert_eq!(ack.entries().collect::<Vec<_>>(), entries);
            }
            _ => {}
        }
    }
    expected
}

#[test]
fn what_is_sent_reads_back() {
    for_each_packet(1, 4000, |_, repr| {
        let bytes = bytes_of(&repr);
        assert_eq!(Repr::parse(&bytes, LIMIT), Ok(repr));
        let view = View::parse(&bytes, LIMIT).unwrap();
        assert_eq!(view.common(), repr.common());
        assert_eq!(view.packet_type(), repr.packet_type());
        assert_eq!(view.common().local_id() ^ 1, repr.common().sender_id);
        assert_eq!(
            view.common().local_id() % 2 == 1,
            view.common().sent_by_client()
        );
    });
}

#[test]
fn every_byte_sent_is_written_and_no_other() {
    for_each_packet(2, 200, |_, repr| {
        let len = repr.len();
        let mut one = vec![0x55; len + 7];
        let mut other = vec![0xaa; len + 7];
        assert_eq!(repr.emit(&mut one), Some(len));
        assert_eq!(repr.emit(&mut other), Some(len));
        assert_eq!(one[..len], other[..len], "a byte was left as it was");
        assert_eq!(one[len..], [0x55; 7]);
        assert_eq!(other[len..], [0xaa; 7]);
        for short in 0..len {
            let mut out = vec![0x55; short];
            assert_eq!(repr.emit(&mut out), None);
            assert!(out.iter().all(|&byte| byte == 0x55));
        }
    });
}

#[test]
fn reserved_bytes_are_0_and_lengths_fixed() {
    for_each_packet(3, 500, |_, repr| {
        let bytes = bytes_of(&repr);
        let mut reserved: Vec<Range<usize>> = vec![8..11, 13..20];
        let (data_offset, len) = match repr {
            Repr::Data { header, data } => {
                reserved.push(50..52);
                if header.ack.is_none() {
                    reserved.push(36..46);
                }
                assert_eq!(bytes[4..8], header.offset.to_be_bytes());
                assert_eq!(bytes[52..56], header.offset.to_be_bytes());
                (0xe0, DATA_LEN + data.len())
            }
            Repr::Grant { .. } => (0x50, GRANT_LEN),
            Repr::Resend { .. } => (0x50, RESEND_LEN),
            Repr::Cutoffs {
                unscheduled_limit, ..
            } => match unscheduled_limit {
                None => (0x50, CUTOFFS_LEN),
                Some(_) => (0x50, CUTOFFS_LIMIT_LEN),
            },
            Repr::Ack { acks, .. } => {
                assert_eq!(usize::from(be16(&bytes, 28)), acks.len());
                reserved.push(30 + 10 * acks.len()..80);
                (0x50, ACK_LEN)
            }
            Repr::RpcUnknown(_) | Repr::Busy(_) | Repr::Freeze(_) | Repr::NeedAck(_) => {
                (0x50, COMMON_LEN)
            }
        };
        if repr.packet_type() != PacketType::Data {
            reserved.push(4..8);
        }
        assert_eq!((bytes[12], bytes.len()), (data_offset, len));
        for range in reserved {
            assert!(
                bytes[range.clone()].iter().all(|&byte| byte == 0),
                "{range:?}"
            );
        }
    });
}

#[test]
fn header_alone_equals_packet_without_data() {
    for_each_packet(4, 500, |_, repr| {
        if let Repr::Data { header, .. } = repr {
            let mut out = [0xaa; DATA_LEN];
            assert_eq!(header.emit(&mut out), Some(DATA_LEN));
            assert_eq!(out[..], bytes_of(&Repr::Data { header, data: &[] }));
            assert_eq!(header.emit(&mut out[1..]), None);
        }
    });
}

#[test]
fn cut_short_by_any_number_of_bytes() {
    for_each_packet(5, 30, |_, repr| {
        let bytes = bytes_of(&repr);
        let min_len = repr.packet_type().min_len();
        for len in 0..bytes.len() {
            let cut = check_against_verdict(&bytes[..len], LIMIT);
            if len < min_len {
                assert_eq!(cut, Err(Malformed::Truncated), "{repr:?} cut to {len}");
            } else {
                assert_eq!(cut, Ok(()), "{repr:?} cut to {len}");
            }
        }
    });
}

#[test]
fn excess_is_ignored() {
    for_each_packet(6, 200, |rng, repr| {
        let mut bytes = bytes_of(&repr);
        match repr {
            // DATA goes on to its end, and four bytes more are a limit.
            Repr::Data { .. }
            | Repr::Cutoffs {
                unscheduled_limit: None,
                ..
            } => return,
            _ => {}
        }
        for _ in 0..rng.below(100) {
            bytes.push(rng.next() as u8);
        }
        assert_eq!(Repr::parse(&bytes, LIMIT), Ok(repr));
    });
}

#[test]
fn bytes_that_mean_nothing_are_ignored() {
    for_each_packet(7, 500, |rng, repr| {
        let mut bytes = bytes_of(&repr);
        let mut ignored: Vec<usize> = (8..11).chain(12..20).collect();
        match repr {
            Repr::Data { header, .. } => {
                ignored.extend(50..52);
                // The kernel's single packets, or the start of its batches.
                if rng.flip() {
                    bytes[52..56].fill(0xff);
                    assert_eq!(bytes[4..8], header.offset.to_be_bytes());
                } else {
                    ignored.extend(4..8);
                }
            }
            _ => ignored.extend(4..8),
        }
        for at in ignored {
            bytes[at] = rng.next() as u8;
        }
        assert_eq!(Repr::parse(&bytes, LIMIT), Ok(repr));
    });
}

#[test]
fn damaged_packets_meet_their_verdict() {
    let mut seen = Vec::new();
    for_each_packet(8, 20_000, |rng, repr| {
        let mut bytes = bytes_of(&repr);
        for _ in 0..=rng.below(3) {
            match rng.below(4) {
                0 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
                1 => {
                    // An edge value where a 32-bit field may be, the header first of all.
                    let at = 4 * rng.below((bytes.len() as u64 / 4).clamp(1, 15)) as usize;
                    if let Some(field) = bytes.get_mut(at..at + 4) {
                        field.copy_from_slice(&rng.u32().to_be_bytes());
                    }
                }
                2 => {
                    let at = rng.below(bytes.len() as u64 + 1) as usize;
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = rng.next() as u8;
                    }
                }
                _ if bytes.len() >= 28 => {
                    let id = [0, 1, 2, 3][rng.below(4) as usize];
                    bytes[20..28].copy_from_slice(&u64::to_be_bytes(id));
                }
                _ => {}
            }
        }
        let limit = rng.u32();
        for limit in [LIMIT, limit] {
            let outcome = check_against_verdict(&bytes, limit);
            if !seen.contains(&outcome) {
                seen.push(outcome);
            }
        }
    });
    // The damage was of every kind that there is, and sometimes none.
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn noise_meets_its_verdict() {
    let mut rng = Rng(9);
    for _ in 0..100_000 {
        let mut bytes: Vec<u8> = (0..rng.below(100)).map(|_| rng.next() as u8).collect();
        if rng.flip() && bytes.len() > 11 {
            bytes[11] = 0x10 + rng.below(9) as u8;
        }
        let limit = rng.u32();
        let _ = check_against_verdict(&bytes, limit);
    }
}

#[test]
fn every_type_byte() {
    for value in 0..=u8::MAX {
        let mut bytes = [0x42; 80];
        bytes[11] = value;
        bytes[28..32].copy_from_slice(&100u32.to_be_bytes());
        bytes[52..56].fill(0);
        let known = (0x10..=0x18).contains(&value);
        assert_eq!(
            PacketType::from_u8(value).map(|kind| kind as u8),
            known.then_some(value)
        );
        // 0x42…42 is even, which a NEED_ACK's id never is.
        let expected = match value {
            0x17 => Err(Malformed::BadId),
            _ if known => Ok(()),
            _ => Err(Malformed::UnknownType),
        };
        assert_eq!(check_against_verdict(&bytes, LIMIT), expected);
    }
}

fn data(message_len: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    bytes_of(&Repr::Data {
        header: DataHeader {
            common: Common {
                source_port: 1,
                dest_port: 2,
                sender_id: 4,
            },
            message_len,
            incoming: message_len,
            ack: None,
            cutoff_version: 0,
            retransmit: false,
            flags: 0,
            offset,
        },
        data,
    })
}

#[test]
fn message_lengths_at_the_edges() {
    let parse = |len, max| check_against_verdict(&data(len, 0, &[7]), max);
    assert_eq!(parse(0, LIMIT), Err(Malformed::BadLength));
    assert_eq!(parse(1, LIMIT), Ok(()));
    assert_eq!(parse(LIMIT, LIMIT), Ok(()));
    assert_eq!(parse(LIMIT + 1, LIMIT), Err(Malformed::BadLength));
    assert_eq!(parse(MAX_MESSAGE, MAX_MESSAGE), Ok(()));
    for max in [LIMIT, MAX_MESSAGE, 1 << 31, u32::MAX] {
        assert_eq!(parse(1 << 31, max), Err(Malformed::BadLength));
        assert_eq!(parse(u32::MAX, max), Err(Malformed::BadLength));
    }
    assert_eq!(parse(1, 0), Err(Malformed::BadLength));
}

#[test]
fn offsets_at_the_edges() {
    let parse =
        |len, offset, bytes: &[u8]| check_against_verdict(&data(len, offset, bytes), u32::MAX);
    assert_eq!(parse(10, 9, &[7]), Ok(()));
    assert_eq!(parse(10, 10, &[7]), Err(Malformed::BadOffset));
    assert_eq!(parse(10, u32::MAX - 1, &[7]), Err(Malformed::BadOffset));
    assert_eq!(parse(10, u32::MAX, &[7]), Err(Malformed::BadOffset));
    assert_eq!(parse(10, 9, &[7; 2]), Err(Malformed::Overrun));
    assert_eq!(parse(10, 0, &[7; 11]), Err(Malformed::Overrun));
    assert_eq!(parse(10, 0, &[7; 10]), Ok(()));
    assert_eq!(
        parse(MAX_MESSAGE, MAX_MESSAGE - 1, &[7; 2]),
        Err(Malformed::Overrun)
    );
    assert_eq!(
        parse(MAX_MESSAGE, u32::MAX - 5, &[7; 100]),
        Err(Malformed::BadOffset)
    );
    // Without data the offset has nothing to point at, and never points beyond the end.
    for offset in [0, 10, 11, u32::MAX - 1, u32::MAX] {
        let bytes = data(10, offset, &[]);
        let Ok(View::Data(view)) = View::parse(&bytes, LIMIT) else {
            panic!("an announcement was refused");
        };
        assert_eq!(view.offset(), offset.min(10));
    }
}

#[test]
fn counts_of_acks_at_the_edges() {
    let entry = |i| AckEntry {
        client_id: 100 + 2 * i,
        server_port: 9,
    };
    let mut acks = Acks::new();
    assert!(acks.is_empty());
    for i in 0..5u64 {
        assert!(!acks.is_full());
        assert!(acks.push(entry(i)));
        assert_eq!(acks.len(), i as usize + 1);
    }
    assert!(acks.is_full() && !acks.is_empty());
    assert!(!acks.push(entry(5)));
    assert!(!Acks::new().push(AckEntry {
        client_id: 0,
        server_port: 9
    }));

    let common = Common {
        source_port: 1,
        dest_port: 2,
        sender_id: 4,
    };
    let mut bytes = bytes_of(&Repr::Ack { common, acks });
    bytes.extend([1; 40]);
    for count in [0u16, 1, 4, 5, 6, 65_535] {
        bytes[28..30].copy_from_slice(&count.to_be_bytes());
        for len in ACK_MIN_LEN..bytes.len() {
            let Ok(View::Ack(view)) = View::parse(&bytes[..len], LIMIT) else {
                panic!("an ACK was refused");
            };
            let expected = usize::from(count).min(MAX_ACKS).min((len - 30) / 10);
            let entries: Vec<AckEntry> = view.entries().collect();
            assert_eq!(entries, acks.iter().take(expected).collect::<Vec<_>>());
        }
    }
}

#[test]
fn ids_by_type() {
    for kind in 0x10..=0x18 {
        for id in [0u64, 1, 2, 3, u64::MAX - 1, u64::MAX] {
            let mut bytes = data(10, 0, &[7; 10]);
            bytes[11] = kind;
            bytes[20..28].copy_from_slice(&id.to_be_bytes());
            let bad =
                id < 2 || (kind == 0x17 && id.is_multiple_of(2)) || (kind == 0x18 && id % 2 == 1);
            let expected = if bad { Err(Malformed::BadId) } else { Ok(()) };
            assert_eq!(
                check_against_verdict(&bytes, LIMIT),
                expected,
                "{kind:#x} {id}"
            );
        }
    }
}

#[test]
fn ports_of_0() {
    for_each_packet(10, 50, |_, repr| {
        for at in [0, 2] {
            let mut bytes = bytes_of(&repr);
            bytes[at..at + 2].fill(0);
            assert_eq!(
                check_against_verdict(&bytes, LIMIT),
                Err(Malformed::BadPort)
            );
        }
    });
}

#[test]
fn priorities_and_cutoffs_are_never_sent_above_their_limits() {
    let common = Common {
        source_port: 1,
        dest_port: 2,
        sender_id: 4,
    };
    for priority in 0..=u8::MAX {
        let grant = bytes_of(&Repr::Grant {
            common,
            offset: 1,
            priority,
            resend_all: false,
        });
        assert_eq!(grant[32], priority.min(7));
        let resend = bytes_of(&Repr::Resend {
            common,
            offset: 1,
            len: ALL,
            priority,
        });
        assert_eq!(resend[36], priority.min(7));

        // What a peer in error may send is read as 7.
        let (mut grant, mut resend) = (grant, resend);
        grant.truncate(GRANT_MIN_LEN);
        (grant[32], resend[36]) = (priority, priority);
        let Ok(View::Grant(view)) = View::parse(&grant, LIMIT) else {
            panic!("a GRANT was refused");
        };
        assert_eq!(view.priority(), priority.min(7));
        let Ok(View::Resend(view)) = View::parse(&resend, LIMIT) else {
            panic!("a RESEND was refused");
        };
        assert_eq!((view.priority(), view.len()), (priority.min(7), ALL));
    }
    let cutoffs = bytes_of(&Repr::Cutoffs {
        common,
        cutoffs: [u32::MAX, 1 << 31, MAX_MESSAGE, 3, 2, 1, 0, 0],
        version: 1,
        unscheduled_limit: None,
    });
    let Ok(View::Cutoffs(view)) = View::parse(&cutoffs, LIMIT) else {
        panic!("a CUTOFFS was refused");
    };
    assert_eq!(
        view.cutoffs(),
        [MAX_MESSAGE, MAX_MESSAGE, MAX_MESSAGE, 3, 2, 1, 0, 0]
    );
}

#[test]
fn eight_priorities_have_eight_tos_values() {
    for priority in 0..=u8::MAX {
        assert_eq!(tos(priority), priority.min(7) * 32);
        for ecn in 0..4 {
            assert_eq!(priority_of_tos(tos(priority) | ecn), priority.min(7));
        }
    }
}

#[test]
fn payload_fills_the_mtu_or_is_0() {
    for mtu in 0..=u16::MAX {
        for (ipv6, ip) in [(false, 20), (true, 40)] {
            for (carrier, udp) in [(Carrier::Udp, 8), (Carrier::NativeIp, 0)] {
                let payload = max_payload(mtu, ipv6, carrier);
                let headers = ip + udp + DATA_LEN;
                assert_eq!(payload.max(1) == payload, usize::from(mtu) > headers);
                assert!(payload == 0 || payload + headers == usize::from(mtu));
            }
        }
    }
}

#[test]
fn each_fault_has_its_own_words() {
    let all = [
        Malformed::Truncated,
        Malformed::UnknownType,
        Malformed::BadPort,
        Malformed::BadId,
        Malformed::BadLength,
        Malformed::BadOffset,
        Malformed::Overrun,
    ];
    let mut words: Vec<String> = all.iter().map(ToString::to_string).collect();
    words.sort();
    words.dedup();
    assert_eq!(words.len(), all.len());
}
