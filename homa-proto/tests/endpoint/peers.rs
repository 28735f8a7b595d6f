//! The table of peers: bounded, least recently used idle ones leave, live ones never.

use std::net::SocketAddr;

use homa_proto::wire::Repr;
use homa_proto::{DropReason, Event, Limits, RequestOptions, SendErrorKind};

use crate::hand::{Hand, MS, Sent, peer};
use crate::link::{config, limits};

const HEARD: [u32; 8] = [0, 0, 0, 0, 0, 0, u32::MAX >> 1, 50];

fn tell_cutoffs(hand: &mut Hand, version: u16, cutoffs: [u32; 8]) -> Result<(), DropReason> {
    let common = hand.common(2);
    hand.put(&Repr::Cutoffs {
        common,
        cutoffs,
        version,
        unscheduled_limit: None,
    })
}

/// Whether the endpoint still knows a peer: CUTOFFS of strangers are dropped.
fn knows(hand: &mut Hand, n: u8) -> bool {
    hand.from = peer(n);
    tell_cutoffs(hand, 3, HEARD).is_ok()
}

/// Two RPCs with a peer, from begin to end: with the second it is no stranger.
fn touch(hand: &mut Hand, n: u8, id: u64) {
    hand.from = peer(n);
    for id in [id, id + 100] {
        let rpc = hand.arrive(id, 10);
        hand.respond(rpc, 10);
        hand.ack(id).unwrap();
        assert!(matches!(hand.event(), Some(Event::Released { .. })));
    }
}

/// A stranger without RPCs goes before those that are known, however lately it was heard of.
#[test]
fn strangers_leave_first() {
    let mut hand = Hand::with(
        config(),
        Limits {
            peers: 4,
            ..limits()
        },
    );
    for n in 0..3 {
        touch(&mut hand, n, 4);
    }
    for n in 10..50 {
        hand.from = peer(n);
        let rpc = hand.arrive(4, 10);
        hand.node.cancel(hand.now, rpc);
    }
    assert!((0..3).all(|n| knows(&mut hand, n)));
}

/// Strangers take half of the table at most, and half of the slots; who has been told its version is let in.
#[test]
fn strangers_take_a_part_of_the_tables() {
    for whole in [true, false] {
        let mut hand = Hand::with(
            config(),
            Limits {
                rpcs: 16,
                peers: 64,
                ended: 64,
            },
        );
        let len = if whole { 10 } else { 5_000 };
        let mut taken = 0;
        for n in 0..60 {
            hand.from = peer(n);
            taken += u32::from(hand.data(4, len, len, 0..10).is_ok());
        }
        assert_eq!(taken, 8);
        // Those that were refused were told what they must know.
        let told = hand
            .drain()
            .iter()
            .filter(|sent| sent.to == peer(20))
            .count();
        assert_eq!(told, 1, "BUSY");
        hand.from = peer(20);
        assert_ne!(hand.version(), 0);
        hand.data(4, len, len, 0..10).unwrap();
        assert_eq!(hand.node.live_rpcs(), 9);
        // A wrong version is no better than none.
        hand.from = peer(21);
        let wrong = hand.data_with(4, len, len, 0..10, |header| header.cutoff_version ^= 1);
        assert_eq!(wrong, Err(DropReason::OverBudget));
    }
    // The same for the table of peers.
    let mut hand = Hand::with(
        config(),
        Limits {
            peers: 8,
            ..limits()
        },
    );
    for n in 0..20 {
        hand.from = peer(n);
        assert_eq!(hand.data(4, 10, 10, 0..10).is_ok(), n < 4);
    }
    hand.drain();
    for n in 4..8 {
        hand.from = peer(n);
        hand.data(4, 10, 10, 0..10).unwrap();
    }
    hand.from = peer(8);
    assert_eq!(hand.data(4, 10, 10, 0..10), Err(DropReason::PeersFull));
}

#[test]
fn the_least_recently_used_leaves() {
    let mut hand = Hand::with(
        config(),
        Limits {
            peers: 4,
            ..limits()
        },
    );
    for n in 0..4 {
        touch(&mut hand, n, 4);
    }
    // Used again: 0 is the latest now.
    touch(&mut hand, 0, 6);
    assert_eq!(hand.node.known_peers(), 4);
    touch(&mut hand, 5, 4);
    assert_eq!(hand.node.known_peers(), 4);
    assert_eq!(hand.node.stats().peers_evicted, 1);
    let known: Vec<bool> = [0, 1, 2, 3, 5]
        .iter()
        .map(|&n| knows(&mut hand, n))
        .collect();
    assert_eq!(known, [true, false, true, true, true]);
}

/// A peer with a live RPC never leaves, not even for an unpolled event; the newest work is refused.
#[test]
fn live_peers_stay() {
    let mut hand = Hand::with(
        config(),
        Limits {
            peers: 4,
            ..limits()
        },
    )
    .acquainted();
    let before = hand.node.stats().peers_evicted;
    hand.from = peer(0);
    hand.request(10);
    hand.from = peer(1);
    let served = hand.arrive(4, 10);
    hand.from = peer(2);
    hand.data(4, 10, 10, 0..10).unwrap();
    hand.from = peer(3);
    hand.data(4, 5_000, 5_000, 0..100).unwrap();
    for n in 10..200 {
        hand.from = peer(n);
        assert_eq!(hand.data(4, 10, 10, 0..10), Err(DropReason::PeersFull));
        let error = hand
            .node
            .send_request(hand.now, peer(n).into(), vec![1], RequestOptions::default())
            .unwrap_err();
        assert_eq!(
            (error.kind, error.message),
            (SendErrorKind::PeersFull, vec![1])
        );
    }
    assert!((0..4).all(|n| knows(&mut hand, n)));
    let live = before + 4;
    assert_eq!(hand.node.stats().peers_evicted, live);
    // One ends: there is room for one.
    hand.node.cancel(hand.now, served);
    hand.from = peer(10);
    hand.data(4, 10, 10, 0..10).unwrap();
    assert_eq!(hand.node.stats().peers_evicted, live + 1);
}

/// Packets from any number of forged sources: peers bounded, the live ones kept, and their RPCs
/// go on.
#[test]
fn forged_sources() {
    let mut hand = Hand::with(
        config(),
        Limits {
            rpcs: 64,
            peers: 16,
            ended: 64,
        },
    );
    let (_, id, _) = hand.request(10);
    let mut bytes = [0; 100];
    for n in 0..100_000u32 {
        let from = SocketAddr::from((
            [11, (n >> 16) as u8, (n >> 8) as u8, n as u8],
            1 + (n % 60_000) as u16,
        ));
        let common = hand.common(4 + 2 * u64::from(n));
        let repr = match n % 5 {
            0 => Repr::Data {
                header: homa_proto::wire::DataHeader {
                    common,
                    message_len: 5_000,
                    incoming: 5_000,
                    ack: None,
                    cutoff_version: 0,
                    retransmit: false,
                    flags: 0,
                    offset: 0,
                },
                data: &[1; 10],
            },
            1 => Repr::Busy(common),
            2 => Repr::RpcUnknown(common),
            3 => Repr::Grant {
                common,
                offset: 1,
                priority: 1,
                resend_all: false,
            },
            _ => Repr::Cutoffs {
                common,
                cutoffs: HEARD,
                version: 1,
                unscheduled_limit: None,
            },
        };
        let len = repr.emit(&mut bytes).unwrap();
        let _ = hand.node.handle_packet(hand.now, from, None, &bytes[..len]);
        hand.now = hand.now.after(100);
        if n % 1_000 == 0 {
            hand.out();
            hand.busy(id).unwrap();
        }
        assert!(hand.node.known_peers() <= 16 && hand.node.live_rpcs() <= 64);
    }
    // The one that is alive is served all the same.
    hand.from = peer(1);
    hand.data(id, 10, 10, 0..10).unwrap();
    assert!(matches!(hand.event(), Some(Event::Response { .. })));
    // And all that the forged ones left goes within the time-out.
    hand.wait(3_000 * MS);
    assert_eq!(hand.node.live_rpcs(), 0);
    assert_eq!(hand.node.buffers().bytes_out(), 0);
}

/// What is known of a peer stays while the table has room: its cutoffs outlive its RPCs, and a
/// time-out.
#[test]
fn cutoffs_are_kept() {
    let mut hand = Hand::new();
    touch(&mut hand, 1, 4);
    tell_cutoffs(&mut hand, 9, HEARD).unwrap();
    for _ in 0..2 {
        let (_, _, sent) = hand.request(40);
        assert_eq!(sent[0].priority, 7);
        assert_eq!(sent[0].data().unwrap().0.cutoff_version, 9);
        // Fails, and begins anew.
        hand.wait(1_200 * MS);
        assert!(matches!(hand.event(), Some(Event::Failed { .. })));
    }
    let (_, _, sent) = hand.request(60);
    assert_eq!(
        sent.iter().map(|s: &Sent| s.priority).collect::<Vec<_>>(),
        [6]
    );
}

/// Answers go from the local address that the peer's packets came to.
#[test]
fn the_local_address_is_kept() {
    let mut hand = Hand::new();
    let local = "10.9.9.9".parse().unwrap();
    let header = homa_proto::wire::DataHeader {
        common: hand.common(4),
        message_len: 3,
        incoming: 3,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: 0,
        offset: 0,
    };
    let mut bytes = [0; 59];
    Repr::Data {
        header,
        data: b"abc",
    }
    .emit(&mut bytes)
    .unwrap();
    hand.node
        .handle_packet(hand.now, peer(1), Some(local), &bytes)
        .unwrap();
    let Some(Event::Request { rpc, .. }) = hand.event() else {
        panic!()
    };
    hand.node.send_response(hand.now, rpc, vec![1]).unwrap();
    let mut buffer = [0; 1500];
    let mut sent = 0;
    while let Some(transmit) = hand.node.poll_transmit(hand.now, &mut buffer) {
        assert_eq!((transmit.to, transmit.local), (peer(1), Some(local)));
        sent += 1;
    }
    assert_eq!(sent, 2);
}

/// Each peer is told another version of the cutoffs, so that one who has been told cannot lend it to forged addresses.
#[test]
fn each_peer_is_told_a_version_of_its_own() {
    let mut hand = Hand::new();
    let mut versions = std::collections::BTreeSet::new();
    for n in 1..=4 {
        hand.from = peer(n);
        hand.data(4, 10, 10, 0..10).unwrap();
        hand.out();
        versions.insert(hand.version());
    }
    assert!(versions.len() > 1 && !versions.contains(&0), "{versions:?}");
}
