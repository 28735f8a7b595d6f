//! Many at once: neither a storm nor a starved RPC.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use homa_proto::wire::{ALL, Repr};
use homa_proto::{Config, DropReason, Instant, Limits};

use crate::hand::{Hand, MS, kinds, peer};
use crate::link::{Faults, Net, PORT, Seen, bytes_of, config, limits, node};

const SECOND: u64 = 1_000 * MS;

/// RESENDs to one peer are limited in rate, and every RPC has its turn: 500 RPCs whose server
/// hears and answers nothing but BUSY.
#[test]
fn resends_rotate_over_the_rpcs_of_an_overloaded_peer() {
    let limits = Limits {
        rpcs: 512,
        peers: 4,
        ended: 16,
    };
    let mut hand = Hand::with(config(), limits);
    let mut ids = Vec::new();
    for _ in 0..500 {
        hand.now = hand.now.after(1_000);
        ids.push(hand.request(100).1);
    }
    let mut times: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut per_tick: BTreeMap<u64, u32> = BTreeMap::new();
    let start = hand.now;
    while hand.now.nanos_since(start) < 3 * SECOND {
        for (at, sent) in hand.wait(MS) {
            if sent.resend().is_some() {
                let id = sent.repr().common().sender_id ^ 1;
                times.entry(id).or_default().push(at.nanos_since(start));
                *per_tick.entry(at.as_nanos() / MS).or_default() += 1;
                hand.busy(id).unwrap();
            }
        }
        assert!(hand.event().is_none());
    }
    // At most 16 a millisecond in the long run, a burst of as many beside.
    let most = per_tick.values().max().unwrap();
    assert!(*most <= 48, "{most} RESENDs in a millisecond");
    let total: u32 = per_tick.values().sum();
    assert!(total <= 16 * 3_000);
    // Each of them, again and again.
    assert_eq!(times.len(), 500);
    for (id, times) in &times {
        assert!(times.len() >= 20, "{id}: {times:?}");
        assert!(
            times.windows(2).all(|t| t[1] - t[0] < 250 * MS),
            "{id}: {times:?}"
        );
    }
}

/// A host that stalls is not buried under the questions of all RPCs that wait for it, and when it comes back those of
/// which the requests were lost are asked about soon.
#[test]
fn a_stalled_peer_is_asked_one_question_at_a_time() {
    let mut hand = Hand::new();
    let config = config();
    let mut open: Vec<u64> = (0..8).map(|_| hand.request(100).1).collect();
    hand.out();
    let mut asked = Vec::new();
    for _ in 0..200 {
        for (at, sent) in hand.wait(MS) {
            asked.extend(sent.resend().map(|_| at));
        }
    }
    // Each of eight may ask while the first question could still be answered; then a question every 4, 16, 64 … intervals.
    assert!((2..=8 + 6).contains(&asked.len()), "{asked:?}");
    assert!(hand.node.stats().resends_spared >= 8);
    // It lives, and answers one.
    let first = open.remove(0);
    hand.busy(first).unwrap();
    let since = hand.now;
    while !open.is_empty() && hand.now.nanos_since(since) < SECOND {
        for (_, sent) in hand.wait(MS) {
            if sent.resend().is_some() {
                let id = sent.repr().common().sender_id ^ 1;
                open.retain(|other| *other != id);
                hand.busy(id).unwrap();
            }
        }
    }
    assert!(open.is_empty(), "never asked about: {open:?}");
    assert!(hand.event().is_none(), "{:?}", config.timeout_ns);
}

/// 500 RPCs to one peer at 1 % loss: all end well, with little that is sent for nothing.
#[test]
fn many_rpcs_with_losses() {
    let limits = Limits {
        rpcs: 512,
        peers: 4,
        ended: 1024,
    };
    let nodes = (0..2)
        .map(|i| node(config(), limits, 40 + i, 64 << 20))
        .collect();
    let mut net = Net::new(nodes, 3);
    net.check_every = 3_000;
    net.faults = Faults {
        loss: 10,
        ..Faults::default()
    };
    for cookie in 0..500 {
        let len = [100, 5_000, 30_000][cookie as usize % 3];
        net.request(0, 1, bytes_of(cookie, len), cookie).unwrap();
    }
    let seen = net.echo_until_quiet(30 * SECOND);
    assert_eq!(seen.len(), 500);
    assert!(
        seen.values()
            .all(|seen| matches!(seen, Seen::Response { .. }))
    );
    net.assert_idle();
    for node in &net.nodes {
        let stats = node.stats();
        assert!(stats.resends_sent <= 1_500, "{stats:?}");
        assert!(stats.retransmits_sent <= stats.data_sent / 5, "{stats:?}");
        assert!(stats.busys_sent <= stats.resends_received + stats.resends_sent + 500);
    }
}

/// Answers to packets of unknown RPCs: limited in rate, as small as the format allows, no state.
#[test]
fn replies_to_unknown_sources() {
    let mut hand = Hand::new();
    let (mut bytes_in, mut bytes_out, mut replies) = (0, 0, 0u64);
    let start = hand.now;
    let packet = |id: u64, hand: &mut Hand| {
        let common = hand.common(id);
        if id & 1 == 1 {
            Repr::NeedAck(common)
        } else {
            Repr::Resend {
                common,
                offset: 0,
                len: ALL,
                priority: 7,
            }
        }
    };
    for n in 0..200_000u64 {
        let id = 1_000 + n;
        let from = SocketAddr::from(([10, 77, (n >> 8) as u8, n as u8], 7_000));
        let repr = packet(id, &mut hand);
        let mut bytes = [0; 40];
        let len = repr.emit(&mut bytes).unwrap();
        bytes_in += len;
        match hand.node.handle_packet(hand.now, from, None, &bytes[..len]) {
            Ok(()) => {}
            Err(why) => assert_eq!(why, DropReason::RateLimited),
        }
        if n % 10 == 0 {
            hand.now = hand.now.after(500);
            let mut buffer = [0; 1500];
            while let Some(sent) = hand.node.poll_transmit(hand.now, &mut buffer) {
                assert!(sent.len <= 80 && sent.segment_size.is_none());
                bytes_out += sent.len;
                replies += 1;
            }
        }
    }
    let last = hand.out();
    replies += last.len() as u64;
    bytes_out += last.iter().map(|s| s.bytes.len()).sum::<usize>();
    let took = hand.now.nanos_since(start);
    // One for each 5 microseconds, and a burst of 64.
    assert!(replies <= took / 5_000 + 2 * 64, "{replies} in {took} ns");
    assert!(replies > took / 5_000 - 64);
    assert!(bytes_out < bytes_in);
    assert_eq!(hand.node.stats().replies_limited, 200_000 - replies);
    assert_eq!((hand.node.known_peers(), hand.node.live_rpcs()), (0, 0));
    // When the flood is over others are answered again.
    hand.now = hand.now.after(MS);
    hand.resend(4, 0, 1, 1).unwrap();
    assert_eq!(kinds(&hand.out()), ["UNKNOWN"]);
}

/// A spoofed RESEND cannot make an endpoint send a message over and over at no cost: what is
/// asked for twice before it went goes once, and BUSY is one for many.
#[test]
fn a_storm_of_resends() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(20_000);
    for _ in 0..1_000 {
        hand.resend(id, 0, ALL, 5).unwrap();
    }
    let out = hand.drain();
    let bytes: u32 = out
        .iter()
        .filter_map(|s| s.data())
        .map(|(_, r)| r.end - r.start)
        .sum();
    assert!(bytes <= 20_000);
    assert!(out.len() < 30);
}

/// The CUTOFFS answer: at most one per peer per millisecond, whatever comes.
#[test]
fn cutoffs_are_limited() {
    let mut hand = Hand::new();
    hand.show_cutoffs = true;
    let mut told = 0;
    for n in 0..1_000u64 {
        hand.now = hand.now.after(10_000);
        // Never echoes the version.
        hand.versions.clear();
        let _ = hand.data(4 + 2 * n, 10, 10, 0..10);
        told += kinds(&hand.out())
            .iter()
            .filter(|&&kind| kind == "CUTOFFS")
            .count();
        while let Some(event) = hand.event() {
            if let homa_proto::Event::Request { rpc, .. } = event {
                hand.node.cancel(hand.now, rpc);
            }
        }
    }
    assert!((9..=11).contains(&told), "{told} in 10 ms");
}

/// One peer that is dead does not slow the others: the healthy ones finish as fast as without it.
#[test]
fn a_dead_peer_among_healthy_ones() {
    let run = |dead: bool| {
        let config = Config { ..config() };
        let nodes = (0..4)
            .map(|i| node(config.clone(), limits(), 70 + i, 64 << 20))
            .collect();
        let mut net = Net::new(nodes, 5);
        net.check_every = 64;
        if dead {
            net.cut = vec![(0, 3)];
            for cookie in 100..120 {
                net.request(0, 3, bytes_of(cookie, 50_000), cookie).unwrap();
            }
        }
        for cookie in 0..20 {
            net.request(0, 1 + cookie as usize % 2, bytes_of(cookie, 50_000), cookie)
                .unwrap();
        }
        let start = net.now;
        let mut finished = Instant::ZERO;
        let mut ended = BTreeMap::new();
        let end = start.after(5 * SECOND);
        loop {
            for at in 0..4 {
                for seen in net.events(at) {
                    match seen {
                        Seen::Request { rpc, bytes, from } => {
                            assert_eq!(from.port, PORT);
                            net.respond(at, rpc, bytes);
                        }
                        Seen::Response { cookie, .. } => {
                            assert!(cookie < 100);
                            finished = net.now;
                            assert!(ended.insert(cookie, true).is_none());
                        }
                        Seen::Failed { cookie, error, .. } => {
                            assert!(cookie >= 100);
                            assert_eq!(error, homa_proto::RpcError::NeverHeard);
                            let took = net.now.nanos_since(start);
                            assert!(took < 1_200 * MS, "{took}");
                            assert!(ended.insert(cookie, false).is_none());
                        }
                        Seen::Released { .. } => {}
                    }
                }
            }
            if !net.step(end) {
                break;
            }
        }
        assert_eq!(ended.len(), if dead { 40 } else { 20 });
        net.assert_idle();
        finished.nanos_since(start)
    };
    let (healthy, mixed) = (run(false), run(true));
    // The unscheduled bytes to the dead one take their time on the link, once and again.
    assert!(mixed < healthy + 4 * MS, "{mixed} against {healthy}");
}

/// A peer that falls silent takes all its RPCs with it, in one go; those with others go on.
#[test]
fn all_rpcs_of_a_dead_peer_fail_together() {
    let limits = Limits {
        rpcs: 256,
        ..limits()
    };
    let mut hand = Hand::with(config(), limits);
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(hand.request(10).1);
    }
    // It had been heard.
    hand.busy(ids[99]).unwrap();
    // One that began later, while the peer was silent already.
    hand.wait(800 * MS);
    hand.request(10);
    hand.from = peer(2);
    let (_, other, _) = hand.request(10);
    hand.busy(other).unwrap();
    let mut failed = Vec::new();
    let start = hand.now;
    while failed.len() < 101 {
        hand.wait(MS);
        if let Some(homa_proto::Event::Failed {
            error, peer: at, ..
        }) = hand.event()
        {
            assert_eq!(
                (error, at),
                (homa_proto::RpcError::WentSilent, peer(1).into())
            );
            failed.push(hand.now.nanos_since(start));
        }
        assert!(
            hand.now.nanos_since(start) < 600 * MS,
            "{} failed",
            failed.len()
        );
    }
    assert_eq!(hand.node.live_rpcs(), 1);
    // Its cutoffs are kept, and it is asked again.
    hand.from = peer(1);
    hand.request(10);
}
