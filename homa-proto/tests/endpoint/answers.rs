//! What each packet is answered with, in every state: the table of the draft's "Lost packets",
//! and packets for RPCs that are not known.

use homa_proto::wire::{ACK_LEN, ALL, Acks, Common, Repr};
use homa_proto::{DropReason, Event, RequestOptions, SendErrorKind};

use crate::hand::{Hand, MS, PEER_PORT, Sent, kinds, peer};
use crate::link::{PORT, Random, bytes_of};

const PAYLOAD: u32 = 1416;

/// Every packet type for an RPC that is not known, from a peer known or not, in both directions.
#[test]
fn unknown_rpc() {
    for known in [false, true] {
        for id in [1002, 1003] {
            let mut hand = Hand::new();
            if known {
                let rpc = hand.arrive(4, 100);
                assert_eq!(kinds(&hand.respond(rpc, 100)), ["DATA"]);
                hand.ack(4).unwrap();
                assert!(matches!(hand.event(), Some(Event::Released { .. })));
            }
            let (peers, live) = (hand.node.known_peers(), hand.node.live_rpcs());
            let common = hand.common(id);
            let to_client = id & 1 == 1;

            // Answered.
            for (offset, len) in [
                (0, ALL),
                (0, 1),
                (5_000, 100),
                (u32::MAX, u32::MAX - 1),
                (0, 0),
            ] {
                hand.resend(id, offset, len, 3).unwrap();
                let out = hand.out();
                assert_eq!(kinds(&out), ["UNKNOWN"]);
                let want = Common {
                    source_port: PORT,
                    dest_port: PEER_PORT,
                    sender_id: id ^ 1,
                };
                assert_eq!(out[0].repr(), Repr::RpcUnknown(want));
                assert_eq!((out[0].to, out[0].priority), (peer(1), 7));
            }
            if to_client {
                hand.need_ack(id).unwrap();
                let out = hand.out();
                assert_eq!(kinds(&out), ["ACK"]);
                assert_eq!(out[0].bytes.len(), ACK_LEN);
                assert_eq!(out[0].repr().common().sender_id, id ^ 1);
            }

            // Dropped, counted, unanswered.
            assert_eq!(hand.grant(id, 100, 1), Err(DropReason::UnknownRpc));
            assert_eq!(hand.busy(id), Err(DropReason::UnknownRpc));
            assert_eq!(hand.unknown(id), Err(DropReason::UnknownRpc));
            if to_client {
                assert_eq!(hand.data(id, 100, 100, 0..100), Err(DropReason::UnknownRpc));
            }
            assert_eq!(hand.put(&Repr::Freeze(common)), Err(DropReason::Ignored));
            let dropped = hand.node.stats().dropped_unknown_rpc;
            assert_eq!(dropped, if to_client { 4 } else { 3 });

            // Of the peer's concern, whatever the RPC.
            let cutoffs = Repr::Cutoffs {
                common,
                cutoffs: [0, 0, 0, 0, 0, 0, 0, 100_000],
                version: 9,
                unscheduled_limit: None,
            };
            assert_eq!(hand.put(&cutoffs).is_ok(), known);
            if !to_client {
                assert_eq!(hand.ack(id).is_ok(), known);
            }
            assert_eq!(kinds(&hand.out()), Vec::<&str>::new());
            assert_eq!(
                (hand.node.known_peers(), hand.node.live_rpcs()),
                (peers, live)
            );
            assert!(hand.event().is_none());

            // DATA for a server is a new RPC.
            if !to_client {
                hand.data(id, 100, 100, 0..100).unwrap();
                assert!(matches!(hand.event(), Some(Event::Request { .. })));
            }
        }
    }
}

/// CUTOFFS count even when the RPC that they came with is gone.
#[test]
fn cutoffs_of_a_known_peer_take_effect() {
    let mut hand = Hand::new();
    let rpc = hand.arrive(4, 100);
    let common = hand.common(777);
    hand.put(&Repr::Cutoffs {
        common,
        cutoffs: [0, 0, 0, u32::MAX >> 1, 0, 50, 0, 20],
        version: 9,
        unscheduled_limit: None,
    })
    .unwrap();
    let out = hand.respond(rpc, 40);
    assert_eq!((kinds(&out), out[0].priority), (vec!["DATA"], 5));
    assert_eq!(out[0].data().unwrap().0.cutoff_version, 9);
}

/// Server, request incomplete: BUSY, and a RESEND for the missing bytes once they are overdue.
#[test]
fn resend_to_an_incoming_request() {
    let mut hand = Hand::new();
    hand.data(4, 4000, 4000, 0..PAYLOAD).unwrap();
    hand.out();
    hand.resend(4, 0, ALL, 7).unwrap();
    assert_eq!(kinds(&hand.out()), ["BUSY"]);
    // Overdue, the server's own timer not yet run.
    hand.now = hand.now.after(3 * MS);
    hand.resend(4, 0, ALL, 7).unwrap();
    let out = hand.out();
    let mut got = kinds(&out);
    got.sort_unstable();
    assert_eq!(got, ["BUSY", "RESEND"]);
    let asked: Vec<_> = out.iter().filter_map(Sent::resend).collect();
    assert_eq!(asked, [(PAYLOAD, 4000 - PAYLOAD)]);
    // Asked at once again: no second RESEND.
    hand.resend(4, 0, ALL, 7).unwrap();
    assert_eq!(kinds(&hand.out()), ["BUSY"]);
}

/// Everything granted is here: BUSY alone, however late.
#[test]
fn resend_to_a_request_that_waits_for_grants() {
    let mut hand = Hand::new();
    // Another message has all the headroom.
    hand.data(4, 4_000_000, 4_000_000, 0..PAYLOAD).unwrap();
    hand.data(6, 2_000_000, PAYLOAD, 0..PAYLOAD).unwrap();
    assert!(!kinds(&hand.out()).contains(&"GRANT"));
    hand.now = hand.now.after(3 * MS);
    hand.resend(6, 0, ALL, 7).unwrap();
    assert_eq!(kinds(&hand.out()), ["BUSY"]);
}

/// Client, the response arriving: BUSY.
#[test]
fn resend_of_a_request_that_was_let_go() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(5000);
    hand.data(id, 5000, 5000, 0..PAYLOAD).unwrap();
    hand.out();
    for (offset, len) in [(0, ALL), (0, 100), (4000, 1000)] {
        hand.resend(id, offset, len, 2).unwrap();
        assert_eq!(kinds(&hand.out()), ["BUSY"]);
    }
}

/// Server, IN_SERVICE: BUSY, before and after the application took the request.
#[test]
fn resend_in_service() {
    let mut hand = Hand::new();
    hand.data(4, 10, 10, 0..10).unwrap();
    hand.out();
    for polled in [false, true] {
        if polled {
            assert!(hand.event().is_some());
        }
        hand.resend(4, 0, ALL, 2).unwrap();
        assert_eq!(kinds(&hand.out()), ["BUSY"]);
    }
}

/// Either, sending: exactly the range, marked, at the priority named.
#[test]
fn resend_of_what_was_sent() {
    let mut hand = Hand::new();
    let mut random = Random::new(5);
    let (_, id, sent) = hand.request(20_000);
    assert!(sent.iter().all(|s| !s.data().unwrap().0.retransmit));
    for _ in 0..300 {
        let offset = random.below(20_000) as u32;
        let len = 1 + random.below(u64::from(20_000 - offset)) as u32;
        let priority = random.below(8) as u8;
        hand.resend(id, offset, len, priority).unwrap();
        // The pacer takes 16 microseconds for the longest range.
        let out: Vec<_> = hand.wait(MS / 5).into_iter().map(|(_, s)| s).collect();
        let mut at = offset;
        for sent in out.iter().filter(|s| s.data().is_some()) {
            let (header, range) = sent.data().unwrap();
            assert!(header.retransmit);
            assert_eq!(sent.priority, priority);
            assert_eq!(range.start, at);
            assert!(!range.is_empty());
            let Repr::Data { data, .. } = sent.repr() else {
                unreachable!()
            };
            let whole = bytes_of(0, 20_000);
            assert_eq!(data, &whole[range.start as usize..range.end as usize]);
            at = range.end;
        }
        assert_eq!(at, offset + len);
        // The server is not silent.
        hand.busy(id).unwrap();
    }
    // Length -1: everything sent so far.
    hand.resend(id, 0, ALL, 1).unwrap();
    let out: Vec<_> = hand.wait(MS / 5).into_iter().map(|(_, s)| s).collect();
    let total: u32 = out
        .iter()
        .filter_map(Sent::data)
        .map(|(_, r)| r.end - r.start)
        .sum();
    assert_eq!(total, 20_000);
}

/// RESENDs of impossible ranges do no harm: never a byte outside of the message, none twice.
#[test]
fn resend_of_absurd_ranges() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(3000);
    for (offset, len) in [
        (3000, 1),
        (3001, 1000),
        (u32::MAX, 1),
        (u32::MAX - 1, u32::MAX - 1),
        (2999, u32::MAX - 1),
        (0, u32::MAX - 1),
        (u32::MAX, ALL),
        (3000, ALL),
    ] {
        hand.resend(id, offset, len, 255).unwrap();
        for sent in hand.drain() {
            if let Some((header, range)) = sent.data() {
                assert!(header.retransmit && range.end <= 3000 && range.start >= offset.min(3000));
                assert!(sent.priority <= 7);
            }
        }
    }
}

/// A RESEND beyond what was granted says that a GRANT was lost.
#[test]
fn resend_grants() {
    let mut hand = Hand::new();
    let (_, id, sent) = hand.request(100_000);
    let unscheduled = sent
        .iter()
        .filter_map(Sent::data)
        .map(|(_, r)| r.end)
        .max()
        .unwrap();
    assert_eq!(unscheduled, 25_000);
    hand.resend(id, 24_000, 6_000, 3).unwrap();
    let out = hand.drain();
    let again: Vec<_> = out
        .iter()
        .filter_map(Sent::data)
        .filter(|(h, _)| h.retransmit)
        .collect();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].1, 24_000..25_000);
    let fresh: Vec<_> = out
        .iter()
        .filter_map(Sent::data)
        .filter(|(h, _)| !h.retransmit)
        .collect();
    assert_eq!(fresh.first().unwrap().1.start, 25_000);
    assert_eq!(fresh.last().unwrap().1.end, 30_000);
    // The receiver learns how far the sender will go.
    assert!(fresh.iter().all(|(h, _)| h.incoming == 30_000));
}

/// A RESEND of length 0 is a probe: BUSY, and it grants nothing.
#[test]
fn resend_of_nothing() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(100_000);
    for offset in [0, 10, 25_000, 60_000, u32::MAX] {
        hand.resend(id, offset, 0, 3).unwrap();
        assert_eq!(kinds(&hand.drain()), ["BUSY"], "offset {offset}");
    }
}

/// Nothing of it will go now, because a shorter message goes first: BUSY, later the range.
#[test]
fn resend_behind_others() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(200_000);
    // A shorter message to another peer keeps the link busy.
    hand.node
        .send_request(
            hand.now,
            peer(2).into(),
            bytes_of(3, 20_000),
            RequestOptions::default(),
        )
        .unwrap();
    hand.resend(id, 0, 2_000, 3).unwrap();
    let out = hand.drain();
    assert_eq!(kinds(&out)[0], "BUSY");
    let again: Vec<_> = out
        .iter()
        .filter_map(Sent::data)
        .filter(|(h, _)| h.retransmit)
        .map(|(_, r)| r)
        .collect();
    assert_eq!(again, [0..PAYLOAD, PAYLOAD..2_000]);
}

/// The same range asked for many times over before any of it can go goes once.
#[test]
fn repeated_resends_do_not_multiply() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(20_000);
    for _ in 0..50 {
        hand.resend(id, 3_000, 5_000, 3).unwrap();
        hand.resend(id, 4_000, 1_000, 3).unwrap();
    }
    let out = hand.drain();
    let total: u32 = out
        .iter()
        .filter_map(Sent::data)
        .map(|(_, r)| r.end - r.start)
        .sum();
    assert_eq!(total, 5_000);
}

/// RPC_UNKNOWN to a client that asked: everything that it had sent goes again, not more.
#[test]
fn unknown_to_a_client() {
    for len in [100usize, 3_000, 100_000] {
        let mut hand = Hand::new();
        let (_, id, sent) = hand.request(len);
        let before: Vec<_> = sent.iter().filter_map(Sent::data).map(|(_, r)| r).collect();
        // Not asked: somebody makes trouble.
        assert_eq!(hand.unknown(id), Err(DropReason::Stale));
        assert!(kinds(&hand.drain()).is_empty());
        let asked = hand.wait(30 * MS);
        assert!(asked.iter().any(|(_, s)| s.resend() == Some((0, ALL))));
        hand.unknown(id).unwrap();
        let again: Vec<_> = hand.drain().iter().filter_map(Sent::data).collect();
        assert!(again.iter().all(|(h, _)| h.retransmit));
        assert_eq!(again.first().unwrap().1.start, 0);
        assert_eq!(again.last().unwrap().1.end, before.last().unwrap().end);
    }
}

/// RPC_UNKNOWN to a client whose response is coming in: a late packet, ignored.
#[test]
fn unknown_to_an_answered_client() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(100);
    hand.wait(30 * MS);
    hand.data(id, 5000, 5000, 0..PAYLOAD).unwrap();
    assert_eq!(hand.unknown(id), Err(DropReason::Stale));
    assert!(kinds(&hand.drain()).is_empty());
    hand.data(id, 5000, 5000, PAYLOAD..2 * PAYLOAD).unwrap();
    hand.data(id, 5000, 5000, 2 * PAYLOAD..3 * PAYLOAD).unwrap();
    hand.data(id, 5000, 5000, 3 * PAYLOAD..5000).unwrap();
    assert!(matches!(hand.event(), Some(Event::Response { .. })));
}

/// RPC_UNKNOWN to a server in every state: the client has gone, the state goes too.
#[test]
fn unknown_to_a_server() {
    // The request incomplete.
    let mut hand = Hand::new();
    hand.data(4, 5000, 5000, 0..PAYLOAD).unwrap();
    hand.unknown(4).unwrap();
    assert_eq!(hand.node.live_rpcs(), 0);
    assert!(hand.event().is_none());

    // Arrived, and not yet polled: nobody needs to run it.
    hand.data(6, 10, 10, 0..10).unwrap();
    hand.unknown(6).unwrap();
    assert_eq!(hand.node.live_rpcs(), 0);
    assert!(hand.event().is_none());

    // In service: the response is refused, and comes back.
    let rpc = hand.arrive(8, 10);
    hand.unknown(8).unwrap();
    assert_eq!(hand.node.live_rpcs(), 0);
    let refused = hand
        .node
        .send_response(hand.now, rpc, vec![7; 33])
        .unwrap_err();
    assert_eq!(
        (refused.kind, refused.message),
        (SendErrorKind::NoSuchRpc, vec![7; 33])
    );
    // A late copy of it does not run again.
    assert_eq!(hand.data(8, 10, 10, 0..10), Err(DropReason::EndedRpc));

    // Being answered.
    let rpc = hand.arrive(10, 10);
    hand.respond(rpc, 100_000);
    hand.unknown(10).unwrap();
    match hand.event() {
        Some(Event::Released {
            rpc: released,
            outcome: Ok(()),
            response,
            ..
        }) => {
            assert_eq!((released, response.len()), (rpc, 100_000));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(hand.node.live_rpcs(), 0);
    assert_eq!(hand.node.stats().clients_gone, 4);
}

/// NEED_ACK in every state of a client.
#[test]
fn need_ack_to_a_client() {
    // Nothing of the response here: it is asked for, not acknowledged.
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(100);
    hand.now = hand.now.after(3 * MS);
    hand.need_ack(id).unwrap();
    let out = hand.out();
    assert_eq!(
        out.iter().filter_map(Sent::resend).collect::<Vec<_>>(),
        [(0, ALL)]
    );
    assert_eq!(out.len(), 1);
    // Part of it here.
    hand.data(id, 5000, 5000, 0..PAYLOAD).unwrap();
    hand.now = hand.now.after(3 * MS);
    hand.need_ack(id).unwrap();
    let out = hand.out();
    assert_eq!(
        out.iter().filter_map(Sent::resend).collect::<Vec<_>>(),
        [(PAYLOAD, 5000 - PAYLOAD)]
    );
    assert_eq!(out.len(), 1);
    // All of it here, whether the application has seen it or not.
    for start in [PAYLOAD, 2 * PAYLOAD, 3 * PAYLOAD] {
        hand.data(id, 5000, 5000, start..5000.min(start + PAYLOAD))
            .unwrap();
    }
    for _ in 0..2 {
        hand.need_ack(id).unwrap();
        let out = hand.out();
        assert_eq!(kinds(&out), ["ACK"]);
        assert_eq!(out[0].repr().common().sender_id, id ^ 1);
        hand.event();
    }
}

/// Packets from other ports than the RPC's change nothing, whatever their type.
#[test]
fn other_ports() {
    let mut hand = Hand::new();
    hand.node.open_port(PORT + 1).unwrap();
    let (_, id, _) = hand.request(100_000);
    let rpc = hand.arrive(4, 10);
    hand.respond(rpc, 10);
    let stats = hand.node.stats().packets_sent;
    for id in [id, 4] {
        for (source_port, dest_port) in [(PEER_PORT + 1, PORT), (PEER_PORT, PORT + 1)] {
            let common = Common {
                source_port,
                dest_port,
                sender_id: id,
            };
            for repr in [
                Repr::Grant {
                    common,
                    offset: 50_000,
                    priority: 1,
                    resend_all: false,
                },
                Repr::Resend {
                    common,
                    offset: 0,
                    len: ALL,
                    priority: 1,
                },
                Repr::RpcUnknown(common),
                Repr::Busy(common),
            ] {
                assert_eq!(hand.put(&repr), Err(DropReason::Mismatch));
            }
        }
    }
    assert!(kinds(&hand.drain()).is_empty());
    assert_eq!(hand.node.stats().packets_sent, stats);
}

/// A client's acknowledgement names RPCs of any of its ports: all end.
#[test]
fn acknowledgements_of_several_ports() {
    let mut hand = Hand::new();
    let first = hand.arrive(4, 10);
    hand.respond(first, 10);
    // A second RPC, asked from another Homa port behind the same address.
    let common = Common {
        source_port: PEER_PORT + 1,
        dest_port: PORT,
        sender_id: 6,
    };
    let message = [1; 10];
    let mut header = homa_proto::wire::DataHeader {
        common,
        message_len: 10,
        incoming: 10,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: 0,
        offset: 0,
    };
    header.cutoff_version = hand.version();
    hand.put(&Repr::Data {
        header,
        data: &message,
    })
    .unwrap();
    let Some(Event::Request { rpc: second, .. }) = hand.event() else {
        panic!()
    };
    hand.respond(second, 10);
    // The header names an RPC of the other port than the packet came from.
    let mut acks = Acks::new();
    assert!(acks.push(homa_proto::wire::AckEntry {
        client_id: 6,
        server_port: PORT
    }));
    let common = Common {
        source_port: PEER_PORT + 1,
        dest_port: PORT,
        sender_id: 4,
    };
    hand.put(&Repr::Ack { common, acks }).unwrap();
    assert_eq!(hand.node.stats().acknowledged, 2);
}

/// Whatever is said of a response of one short packet before it has left: it goes once, as it was to
/// go, and does not stand in the way of others.
#[test]
fn a_short_response_that_has_not_left() {
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let mut hand = Hand::new();
        let first = hand.arrive(4, 100);
        let second = hand.arrive(6, 100);
        hand.out();
        for (rpc, len) in [(first, 50), (second, 3_000)] {
            hand.node
                .send_response(hand.now, rpc, bytes_of(1, len))
                .unwrap();
        }
        for _ in 0..1 + random.below(3) {
            let common = hand.common(4);
            let (offset, priority) = (random.below(200) as u32, random.below(8) as u8);
            let _ = match random.below(4) {
                0 | 1 => hand.put(&Repr::Grant {
                    common,
                    offset,
                    priority,
                    resend_all: random.below(2) == 0,
                }),
                2 => hand.resend(4, offset, ALL, priority),
                _ => hand.busy(4),
            };
        }
        let out = hand.drain();
        let data: Vec<_> = out.iter().filter_map(Sent::data).collect();
        let of = |id| {
            data.iter()
                .filter(move |(header, _)| header.common.sender_id == id)
        };
        let short: Vec<_> = of(5).collect();
        assert_eq!(short.len(), 1, "seed {seed}: {:?}", kinds(&out));
        assert!(!short[0].0.retransmit);
        let bytes: u32 = of(7).map(|(_, range)| range.end - range.start).sum();
        assert_eq!(bytes, 3_000, "seed {seed}");
    }
}
