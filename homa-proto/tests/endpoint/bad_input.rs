//! Packets and calls that make no sense: dropped and counted, nothing allocated, nothing answered.

use std::net::SocketAddr;

use homa_proto::wire::{AckEntry, Acks, Common, DataHeader, MAX_MESSAGE, Malformed, Repr};
use homa_proto::{
    DropReason, Event, Instant, Limits, PeerAddr, PortError, RequestOptions, SendErrorKind,
};

use crate::hand::{Hand, MS, PEER_PORT, peer};
use crate::link::{PORT, Random, addr, bytes_of, config, node};

fn header(id: u64) -> DataHeader {
    DataHeader {
        common: Common {
            source_port: PEER_PORT,
            dest_port: PORT,
            sender_id: id,
        },
        message_len: 1000,
        incoming: 1000,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: 0,
        offset: 0,
    }
}

fn bytes(repr: &Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0; repr.len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

/// One good packet of every type from a client (`id` even) or a server.
fn good(id: u64) -> Vec<Vec<u8>> {
    let common = header(id).common;
    let mut acks = Acks::new();
    assert!(acks.push(AckEntry {
        client_id: 40,
        server_port: PORT
    }));
    let mut all = vec![
        bytes(&Repr::Data {
            header: header(id),
            data: &[5; 100],
        }),
        bytes(&Repr::Grant {
            common,
            offset: 500,
            priority: 3,
            resend_all: false,
        }),
        bytes(&Repr::Resend {
            common,
            offset: 0,
            len: 100,
            priority: 3,
        }),
        bytes(&Repr::RpcUnknown(common)),
        bytes(&Repr::Busy(common)),
        bytes(&Repr::Cutoffs {
            common,
            cutoffs: [1; 8],
            version: 3,
            unscheduled_limit: None,
        }),
        bytes(&Repr::Freeze(common)),
    ];
    if id & 1 == 1 {
        all.push(bytes(&Repr::NeedAck(common)));
    } else {
        all.push(bytes(&Repr::Ack { common, acks }));
    }
    all
}

struct Frozen {
    hand: Hand,
    peers: usize,
    live: usize,
    timeout: Option<(Instant, homa_proto::TimeoutReason)>,
}

impl Frozen {
    /// An endpoint in the middle of things.
    fn new(busy: bool) -> Self {
        let mut hand = Hand::new();
        if busy {
            hand.request(100_000);
            hand.data(4, 5_000, 5_000, 0..1000).unwrap();
            hand.arrive(6, 10);
            hand.drain();
        }
        let (peers, live) = (hand.node.known_peers(), hand.node.live_rpcs());
        let timeout = hand.node.poll_timeout();
        Self {
            hand,
            peers,
            live,
            timeout,
        }
    }

    /// The packet is dropped for `why`, and that is all.
    fn drops(&mut self, from: SocketAddr, packet: &[u8], why: DropReason) {
        let before = *self.hand.node.stats();
        let result = self
            .hand
            .node
            .handle_packet(self.hand.now, from, None, packet);
        assert_eq!(result, Err(why), "{packet:?}");
        let after = *self.hand.node.stats();
        let changed: Vec<_> = before
            .iter()
            .zip(after.iter())
            .filter(|(a, b)| a != b)
            .map(|(a, _)| a.0)
            .collect();
        assert_eq!(
            changed.len(),
            2 + usize::from(!packet.is_empty()),
            "{changed:?}"
        );
        assert_eq!(after.dropped(), before.dropped() + 1);
        assert!(self.hand.out().is_empty());
        assert!(self.hand.event().is_none());
        assert_eq!(self.hand.node.known_peers(), self.peers);
        assert_eq!(self.hand.node.live_rpcs(), self.live);
        assert_eq!(self.hand.node.poll_timeout(), self.timeout);
    }
}

#[test]
fn malformed_packets() {
    for busy in [false, true] {
        let mut frozen = Frozen::new(busy);
        let from = peer(1);
        let mut drops = |packet: &[u8], why| frozen.drops(from, packet, DropReason::Malformed(why));
        for id in [1000, 1001] {
            for packet in good(id) {
                // Truncated by every number of bytes of what must be there.
                let min = match packet[11] {
                    0x10 => 56,
                    0x11 => 33,
                    0x18 => 30,
                    _ => packet.len(),
                };
                for len in 0..min {
                    drops(&packet[..len], Malformed::Truncated);
                }
                let with = |at: usize, value: &[u8]| {
                    let mut packet = packet.clone();
                    packet[at..at + value.len()].copy_from_slice(value);
                    packet
                };
                for kind in [0, 1, 0x0f, 0x19, 0x20, 0x80, 0xff] {
                    drops(&with(11, &[kind]), Malformed::UnknownType);
                }
                drops(&with(0, &[0, 0]), Malformed::BadPort);
                drops(&with(2, &[0, 0]), Malformed::BadPort);
                for id in [0u64, 1] {
                    drops(&with(20, &id.to_be_bytes()), Malformed::BadId);
                }
            }
        }
        // Of the wrong half.
        for (id, index) in [(1000u64, 7), (1001, 7)] {
            let mut packet = good(id)[index].clone();
            packet[20..28].copy_from_slice(&(id ^ 1).to_be_bytes());
            drops(&packet, Malformed::BadId);
        }
        // DATA: lengths and offsets.
        let data = |change: &dyn Fn(&mut DataHeader), len: usize| {
            let mut header = header(1000);
            change(&mut header);
            bytes(&Repr::Data {
                header,
                data: &vec![1; len],
            })
        };
        let max = config().max_message;
        for len in [0, max + 1, MAX_MESSAGE, MAX_MESSAGE + 1, u32::MAX] {
            drops(&data(&|h| h.message_len = len, 10), Malformed::BadLength);
        }
        for offset in [1000, 1001, 1 << 31, u32::MAX - 1] {
            drops(&data(&|h| h.offset = offset, 10), Malformed::BadOffset);
        }
        drops(&data(&|h| h.offset = 991, 10), Malformed::Overrun);
        drops(&data(&|h| h.offset = 0, 1001), Malformed::Overrun);
        drops(
            &data(
                &|h| {
                    h.message_len = max;
                    h.offset = max - 1;
                },
                2,
            ),
            Malformed::Overrun,
        );
    }
}

/// Sources that cannot be answered, ports that are not open, FREEZE.
#[test]
fn unusable_sources_and_ports() {
    for busy in [false, true] {
        let mut frozen = Frozen::new(busy);
        for packet in good(1000).into_iter().chain(good(1001)) {
            for from in [
                "0.0.0.0:7000",
                "224.0.0.1:7000",
                "255.255.255.255:7000",
                "10.0.0.9:0",
                "[::]:7000",
                "[ff02::1]:7000",
                "[::ffff:0.0.0.0]:7000",
                "[::ffff:224.0.0.1]:7000",
            ] {
                frozen.drops(from.parse().unwrap(), &packet, DropReason::BadSource);
            }
            let mut elsewhere = packet.clone();
            elsewhere[2..4].copy_from_slice(&(PORT + 9).to_be_bytes());
            frozen.drops(peer(1), &elsewhere, DropReason::PortNotOpen);
        }
        frozen.drops(peer(1), &good(1000)[6], DropReason::Ignored);
    }
}

/// ACKs whose count lies: no more than five, no more than the packet holds.
#[test]
fn acks_that_lie() {
    for count in [0u16, 1, 5, 6, 65_535] {
        for len in 30..90 {
            let mut hand = Hand::new();
            let rpc = hand.arrive(40, 10);
            hand.respond(rpc, 10);
            let mut packet = [0; 100];
            let template = &good(1000)[7];
            packet[..template.len()].copy_from_slice(template);
            packet[28..30].copy_from_slice(&count.to_be_bytes());
            let _ = hand
                .node
                .handle_packet(hand.now, peer(1), None, &packet[..len]);
            hand.node.check_invariants().unwrap();
            let holds = count >= 1 && len >= 40;
            assert_eq!(
                hand.node.stats().acknowledged,
                u64::from(holds),
                "count {count}, {len} bytes"
            );
        }
    }
}

/// Another length than the first packet told: ignored, whatever else it says.
#[test]
fn the_length_does_not_change() {
    let mut hand = Hand::new();
    hand.data(4, 5_000, 5_000, 0..1_000).unwrap();
    hand.out();
    for len in [1_000, 4_999, 5_001, 100_000] {
        let range = 0..1_000;
        assert_eq!(
            hand.data(4, len, len, range),
            Err(DropReason::LengthChanged)
        );
    }
    assert!(hand.out().is_empty());
    // Delivered bytes never change: a different copy of what is here is not written.
    let header = DataHeader {
        message_len: 5_000,
        incoming: 5_000,
        ..header(4)
    };
    assert_eq!(
        hand.put(&Repr::Data {
            header,
            data: &[0xee; 1_000]
        }),
        Err(DropReason::Duplicate)
    );
    for at in 1..5u32 {
        hand.data(4, 5_000, 5_000, at * 1_000..(at + 1) * 1_000)
            .unwrap();
    }
    let Some(Event::Request { message, .. }) = hand.event() else {
        panic!()
    };
    assert!(message[..] == bytes_of(4, 5_000)[..]);
}

/// Every other byte of a large message: the state stays bounded, and what was dropped can come
/// again.
#[test]
fn every_other_byte() {
    let mut hand = Hand::new();
    let len = 4_000u32;
    let mut dropped = 0;
    for at in (1..len).step_by(2) {
        match hand.data(4, len, len, at..at + 1) {
            Ok(()) => {}
            Err(DropReason::TooManyGaps) => dropped += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(dropped > 1_900);
    assert_eq!(hand.node.stats().dropped_too_many_gaps, dropped);
    for start in (0..len).step_by(1_000) {
        let _ = hand.data(4, len, len, start..start + 1_000);
    }
    let Some(Event::Request { message, .. }) = hand.event() else {
        panic!()
    };
    assert!(message[..] == bytes_of(4, len as usize)[..]);
}

/// Requests that cannot be: a typed error, the message back, nothing kept.
#[test]
fn requests_that_are_refused() {
    let mut hand = Hand::with(
        config(),
        Limits {
            rpcs: 4,
            peers: 2,
            ended: 8,
        },
    );
    let ok = peer(1);
    let send = |hand: &mut Hand, to: PeerAddr, len: usize, local_port: u16| {
        let options = RequestOptions {
            local_port,
            ..RequestOptions::default()
        };
        let (live, peers) = (hand.node.live_rpcs(), hand.node.known_peers());
        let result = hand
            .node
            .send_request(hand.now, to, bytes_of(9, len), options);
        hand.node.check_invariants().unwrap();
        result.map_err(|error| {
            assert!(error.message == bytes_of(9, len));
            assert_eq!(
                (live, peers),
                (hand.node.live_rpcs(), hand.node.known_peers())
            );
            error.kind
        })
    };
    assert_eq!(send(&mut hand, ok.into(), 0, 0), Err(SendErrorKind::Empty));
    assert_eq!(
        send(&mut hand, ok.into(), 4_000_001, 0),
        Err(SendErrorKind::TooLong)
    );
    for to in [
        "0.0.0.0:1",
        "10.0.0.1:0",
        "224.1.1.1:1",
        "255.255.255.255:9",
        "[::]:1",
        "[ff02::1]:1",
        "[::ffff:0.0.0.0]:1",
    ] {
        let to: SocketAddr = to.parse().unwrap();
        assert_eq!(
            send(&mut hand, PeerAddr::new(to, 5), 10, 0),
            Err(SendErrorKind::BadAddress),
            "{to}"
        );
    }
    assert_eq!(
        send(&mut hand, PeerAddr::new(ok, 0), 10, 0),
        Err(SendErrorKind::BadAddress)
    );
    assert_eq!(
        send(&mut hand, ok.into(), 10, PORT + 1),
        Err(SendErrorKind::PortNotOpen)
    );
    // Full tables.
    send(&mut hand, ok.into(), 10, 0).unwrap();
    send(&mut hand, peer(2).into(), 10, PORT).unwrap();
    assert_eq!(
        send(&mut hand, peer(3).into(), 10, 0),
        Err(SendErrorKind::PeersFull)
    );
    send(&mut hand, ok.into(), 10, 0).unwrap();
    send(&mut hand, ok.into(), 10, 0).unwrap();
    assert_eq!(
        send(&mut hand, ok.into(), 10, 0),
        Err(SendErrorKind::RpcsFull)
    );
    assert_eq!(
        send(&mut hand, peer(3).into(), 10, 0),
        Err(SendErrorKind::RpcsFull)
    );
    // Incoming ones are dropped and counted; nothing live is evicted.
    hand.drain();
    assert_eq!(hand.data(4, 10, 10, 0..10), Err(DropReason::RpcsFull));
    hand.from = peer(3);
    assert_eq!(hand.data(4, 10, 10, 0..10), Err(DropReason::RpcsFull));
    assert_eq!(hand.node.live_rpcs(), 4);
    let stats = *hand.node.stats();
    assert_eq!(stats.dropped_rpcs_full, 2);
    // When they have ended there is room again.
    hand.wait(1_200 * MS);
    while hand.event().is_some() {}
    hand.data(6, 10, 10, 0..10).unwrap();
    // Ports.
    assert_eq!(hand.node.open_port(0), Err(PortError::Zero));
    assert_eq!(hand.node.open_port(PORT), Err(PortError::InUse));
    for port in 1..64 {
        hand.node.open_port(port).unwrap();
    }
    assert_eq!(hand.node.open_port(9_000), Err(PortError::TooMany));
}

/// IPv4-mapped addresses are the same peer as their IPv4 form.
#[test]
fn mapped_addresses() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(10);
    hand.from = "[::ffff:10.0.1.1]:7000".parse().unwrap();
    hand.data(id, 10, 10, 0..10).unwrap();
    match hand.event() {
        Some(Event::Response { from, .. }) => assert_eq!(from, peer(1).into()),
        other => panic!("{other:?}"),
    }
    assert_eq!(hand.node.known_peers(), 1);
}

/// Junk, and good packets with bytes changed, into live endpoints: no panic, the books right
/// after each, nothing that grows; and all ends when it stops.
#[test]
fn junk() {
    for seed in 0..40u64 {
        let mut random = Random::new(seed);
        let limits = Limits {
            rpcs: 16,
            peers: 4,
            ended: 16,
        };
        let mut nodes = [
            node(config(), limits, 1, 1 << 20),
            node(config(), limits, 2, 1 << 20),
        ];
        let mut now = Instant::from_nanos(MS);
        let mut seen: Vec<Vec<u8>> = good(1000).into_iter().chain(good(1001)).collect();
        let mut buffer = vec![0; 65_536];
        let mut open = Vec::new();
        for _ in 0..1500 {
            now = now.after(random.below(200_000));
            let at = random.below(2) as usize;
            let to = addr(1 - at);
            match random.below(10) {
                0 => {
                    let len = 1 + random.below(60_000) as usize;
                    if let Ok(rpc) = nodes[at].send_request(
                        now,
                        to.into(),
                        vec![3; len],
                        RequestOptions::default(),
                    ) {
                        open.push((at, rpc));
                    }
                }
                1 => nodes[at].handle_timeout(now),
                2 => {
                    while let Some(event) = nodes[at].poll_event() {
                        if let Event::Request { rpc, message, .. } = event {
                            nodes[at].recycle(now, message);
                            let len = 1 + random.below(60_000) as usize;
                            let _ = nodes[at].send_response(now, rpc, vec![4; len]);
                        }
                    }
                }
                3 if !open.is_empty() && random.permille(300) => {
                    let index = random.below(open.len() as u64) as usize;
                    let (at, rpc) = open.swap_remove(index);
                    nodes[at].cancel(now, rpc);
                }
                _ => {
                    // One of the last packets, often changed; sometimes from elsewhere.
                    let index = random.below(seen.len() as u64) as usize;
                    let mut packet = seen[index].clone();
                    for _ in 0..random.below(4) {
                        let at = random.below(packet.len() as u64).min(random.below(90)) as usize;
                        packet[at.min(random.below(64) as usize)] = match random.below(4) {
                            0 => 0,
                            1 => 0xff,
                            _ => random.next() as u8,
                        };
                    }
                    if random.permille(50) {
                        packet.truncate(random.below(packet.len() as u64) as usize + 1);
                    }
                    let from = if random.permille(100) {
                        SocketAddr::from(([10, 9, random.below(256) as u8, 1], PORT))
                    } else {
                        to
                    };
                    let _ = nodes[at].handle_packet(now, from, None, &packet);
                }
            }
            nodes[at]
                .check_invariants()
                .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            let mut rounds = 0;
            while let Some(sent) = nodes[at].poll_transmit(now, &mut buffer) {
                rounds += 1;
                assert!(rounds < 2_000, "seed {seed}: endless");
                let segment = sent.segment_size.unwrap_or(sent.len);
                for packet in buffer[..sent.len].chunks(segment) {
                    if seen.len() < 60 {
                        seen.push(packet.to_vec());
                    } else {
                        let index = random.below(60) as usize;
                        seen[index] = packet.to_vec();
                    }
                }
            }
            nodes[at]
                .check_invariants()
                .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        }
        // Silence: within a few time-outs everything has an end, and all events come.
        for node in &mut nodes {
            let end = now.after(20_000 * MS);
            let mut at = now;
            let mut rounds = 0;
            while let Some((next, _)) = node.poll_timeout().filter(|&(next, _)| next <= end) {
                at = at.max(next);
                node.handle_timeout(at);
                while node.poll_transmit(at, &mut buffer).is_some() {}
                while let Some(event) = node.poll_event() {
                    if let Event::Request { rpc, message, .. } = event {
                        node.recycle(at, message);
                        node.cancel(at, rpc);
                    }
                }
                rounds += 1;
                assert!(rounds < 200_000, "seed {seed}: spinning");
            }
            while let Some(event) = node.poll_event() {
                if let Event::Request { rpc, .. } = event {
                    node.cancel(at, rpc);
                }
            }
            node.check_invariants().unwrap();
            assert_eq!(
                node.buffers().bytes_out(),
                0,
                "seed {seed}: a buffer is lost"
            );
        }
    }
}
