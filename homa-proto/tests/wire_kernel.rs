//! Packets that the Linux kernel Homa sent, read and written again.
//!
//! What each packet says was written down here by hand from its bytes.

use homa_proto::wire::{
    ALL, AckEntry, Acks, Common, DATA_LEN, DataHeader, GRANT_LEN, GRANT_MIN_LEN, Repr, View,
    priority_of_tos, tos,
};

const MAX_MESSAGE: u32 = 1_000_000;

struct Packet {
    kind: &'static str,
    ip_version: u8,
    tos: u8,
    bytes: Vec<u8>,
}

fn packets() -> Vec<Packet> {
    include_str!("vectors/kernel-packets.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut bytes: Vec<u8> = words[3]
                .as_bytes()
                .chunks(2)
                .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
                .collect();
            if let Some(more) = words.get(4) {
                let more: usize = more.strip_prefix('+').unwrap().parse().unwrap();
                // Which bytes followed is not recorded; any will do, as long as they differ.
                bytes.extend((0..more).map(|i| i as u8));
            }
            Packet {
                kind: words[0],
                ip_version: words[1].parse().unwrap(),
                tos: u8::from_str_radix(words[2].strip_prefix("0x").unwrap(), 16).unwrap(),
                bytes,
            }
        })
        .collect()
}

const fn common(source_port: u16, dest_port: u16, sender_id: u64) -> Common {
    Common {
        source_port,
        dest_port,
        sender_id,
    }
}

/// A DATA header as the kernel fills it in for the first transmission of a short message.
const fn short(common: Common, len: u32, cutoff_version: u16) -> DataHeader {
    DataHeader {
        common,
        message_len: len,
        incoming: len,
        ack: None,
        cutoff_version,
        retransmit: false,
        flags: 0,
        offset: 0,
    }
}

/// Priority in the IP header, length of the data (of DATA), and what the packet says.
fn expected() -> Vec<(u8, usize, Repr<'static>)> {
    fn data(header: DataHeader) -> Repr<'static> {
        Repr::Data { header, data: &[] }
    }
    let grant = |common| Repr::Grant {
        common,
        offset: 60_000,
        priority: 0,
        resend_all: false,
    };
    let resend = |common| Repr::Resend {
        common,
        offset: 40_000,
        len: 211_424,
        priority: 7,
    };
    let cutoffs = |common| Repr::Cutoffs {
        common,
        cutoffs: [0, 0, 0, 0, 1_000_000, 15_000, 2_800, 200],
        version: 1,
        unscheduled_limit: None,
    };
    let mut one_ack = Acks::new();
    assert!(one_ack.push(AckEntry {
        client_id: 28,
        server_port: 4000
    }));
    vec![
        (6, 100, data(short(common(32768, 4000, 2), 100, 0))),
        (7, 0, cutoffs(common(4000, 32768, 3))),
        (6, 100, data(short(common(4000, 32768, 3), 100, 0))),
        (7, 0, cutoffs(common(32768, 4000, 2))),
        (7, 0, Repr::NeedAck(common(4000, 32768, 3))),
        (
            7,
            0,
            Repr::Ack {
                common: common(32768, 4000, 2),
                acks: Acks::new(),
            },
        ),
        (
            6,
            1424,
            data(DataHeader {
                ack: Some(AckEntry {
                    client_id: 2,
                    server_port: 4000,
                }),
                ..short(common(32769, 4000, 4), 1424, 1)
            }),
        ),
        (6, 1424, data(short(common(4000, 32769, 5), 1424, 1))),
        (
            6,
            4,
            data(DataHeader {
                offset: 1424,
                ..short(common(32770, 4000, 6), 1428, 1)
            }),
        ),
        (7, 0, grant(common(4000, 32773, 13))),
        (7, 0, grant(common(32773, 4000, 12))),
        (7, 0, resend(common(4000, 32775, 17))),
        (
            7,
            1424,
            data(DataHeader {
                incoming: 41_424,
                retransmit: true,
                offset: 40_000,
                ..short(common(32775, 4000, 16), 500_000, 1)
            }),
        ),
        (7, 0, resend(common(32775, 4000, 16))),
        (7, 0, Repr::Busy(common(4000, 32775, 17))),
        (
            7,
            1424,
            data(DataHeader {
                incoming: 15_664,
                retransmit: true,
                offset: 14_240,
                ..short(common(4000, 32780, 27), 20_000, 1)
            }),
        ),
        (
            7,
            0,
            Repr::Ack {
                common: common(32781, 4000, 28),
                acks: one_ack,
            },
        ),
        (6, 100, data(short(common(32773, 4001, 10), 100, 0))),
        (
            7,
            0,
            Repr::Resend {
                common: common(32773, 4001, 10),
                offset: 0,
                len: ALL,
                priority: 7,
            },
        ),
        (7, 0, Repr::Busy(common(4001, 32773, 11))),
        (6, 100, data(short(common(4001, 32773, 11), 100, 0))),
        (7, 0, Repr::NeedAck(common(4001, 32773, 11))),
        (7, 0, grant(common(4001, 32775, 15))),
        (7, 0, Repr::RpcUnknown(common(4000, 40_000, 7001))),
        (7, 0, Repr::RpcUnknown(common(4000, 40_000, 7008))),
    ]
}

fn kind(repr: &Repr<'_>) -> &'static str {
    match repr {
        Repr::Data { .. } => "DATA",
        Repr::Grant { .. } => "GRANT",
        Repr::Resend { .. } => "RESEND",
        Repr::RpcUnknown(_) => "RPC_UNKNOWN",
        Repr::Busy(_) => "BUSY",
        Repr::Cutoffs { .. } => "CUTOFFS",
        Repr::Freeze(_) => "FREEZE",
        Repr::NeedAck(_) => "NEED_ACK",
        Repr::Ack { .. } => "ACK",
    }
}

#[test]
fn packets_say_what_their_bytes_say() {
    let (packets, expected) = (packets(), expected());
    assert_eq!(packets.len(), expected.len());
    for (number, (packet, (priority, data_len, mut repr))) in
        packets.iter().zip(expected).enumerate()
    {
        assert_eq!(packet.kind, kind(&repr), "packet {number}");
        assert_eq!(priority_of_tos(packet.tos), priority, "packet {number}");
        assert_eq!(tos(priority), packet.tos, "packet {number}");
        assert!(matches!(packet.ip_version, 4 | 6));
        if let Repr::Data { data, .. } = &mut repr {
            *data = &packet.bytes[56..];
            assert_eq!(data.len(), data_len, "packet {number}");
        }
        assert_eq!(
            Repr::parse(&packet.bytes, MAX_MESSAGE),
            Ok(repr),
            "packet {number}"
        );
    }
}

#[test]
fn packets_written_again_carry_the_same_fields() {
    for (number, packet) in packets().iter().enumerate() {
        let theirs = packet.bytes.as_slice();
        let view = View::parse(theirs, MAX_MESSAGE).unwrap();
        let mut buffer = [0xaa; 2000];
        let len = Repr::from(&view).emit(&mut buffer).unwrap();
        let ours = &buffer[..len];

        // Ports, reserved, type and id; not the sequence of DATA nor what mimics TCP.
        let mut same = vec![0..4, 8..12, 20..28];
        match view {
            View::Data(data) => {
                same.extend([28..52, DATA_LEN..theirs.len()]);
                assert_eq!(len, theirs.len());
                assert_eq!(ours[4..8], data.offset().to_be_bytes(), "packet {number}");
                assert_eq!(ours[52..56], data.offset().to_be_bytes(), "packet {number}");
                assert!(theirs[52..56] == ours[52..56] || theirs[52..56] == [0xff; 4]);
            }
            View::Grant(_) => {
                same.extend([4..8, 12..13, 28..33]);
                assert_eq!((theirs.len(), len), (GRANT_MIN_LEN, GRANT_LEN));
                assert_eq!(ours[33], 0, "the kernel's grants ask for nothing again");
            }
            _ => {
                same.extend([4..8, 12..13, 28..theirs.len()]);
                assert_eq!(len, theirs.len());
            }
        }
        for range in same {
            assert_eq!(
                ours[range.clone()],
                theirs[range.clone()],
                "{number} {range:?}"
            );
        }
        assert_eq!(ours[13..20], [0; 7], "flags, window, checksum, urgent");
        assert_eq!(Repr::parse(ours, MAX_MESSAGE), Ok(Repr::from(&view)));
    }
}
