//! When the endpoint wants to be called, and how much it does then.

use homa_proto::wire::ALL;
use homa_proto::{Config, Event, Instant, Limits, RequestOptions, RpcError, TimeoutReason};

use crate::hand::{Hand, MS, Sent, kinds, peer};
use crate::link::{Faults, Net, Seen, bytes_of, config, limits, node};

const PAYLOAD: u32 = 1416;
const SECOND: u64 = 1_000 * MS;

/// Nothing to do: no timeout.
#[test]
fn idle() {
    let mut hand = Hand::new();
    assert_eq!(hand.node.poll_timeout(), None);
    hand.node.handle_timeout(hand.now);
    assert_eq!(hand.node.poll_timeout(), None);
    // Packets that change nothing do not wake it later.
    hand.resend(4, 0, ALL, 1).unwrap();
    hand.out();
    assert!(hand.busy(4).is_err());
    assert_eq!(hand.node.poll_timeout(), None);
}

/// Calling early, late or twice does no harm; each RPC ends at its time all the same.
#[test]
fn calls_at_any_time() {
    for step in [77_777, MS / 2, 3 * MS, 400 * MS] {
        let mut hand = Hand::new();
        let (_, _, sent) = hand.request(10);
        assert_eq!(sent.len(), 1);
        let start = hand.now;
        let mut rounds = 0;
        while hand.node.live_rpcs() > 0 {
            hand.now = hand.now.after(step);
            hand.node.handle_timeout(hand.now);
            hand.node.handle_timeout(hand.now);
            hand.out();
            if hand.event().is_some() {
                break;
            }
            rounds += 1;
            assert!(
                rounds < 20_000,
                "step {step}: {:?}",
                hand.node.poll_timeout()
            );
        }
        let took = hand.now.nanos_since(start);
        assert!(took >= SECOND, "too early: {took} ns with steps of {step}");
        assert!(
            took <= SECOND + 5 * MS + 6 * step,
            "{took} ns with steps of {step}"
        );
    }
}

/// A duplicate after the end leaves the timers alone.
#[test]
fn duplicates_after_the_end() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(10);
    hand.data(id, 10, 10, 0..10).unwrap();
    assert!(hand.event().is_some());
    hand.wait(10 * MS);
    assert_eq!(hand.node.poll_timeout(), None);
    for _ in 0..10 {
        assert!(hand.data(id, 10, 10, 0..10).is_err());
        assert!(hand.grant(id, 10, 1).is_err());
    }
    assert_eq!(hand.node.poll_timeout(), None);
}

/// What ended RPCs leave behind in the timers wakes nobody who is idle, is no lateness of the next call,
/// and does not change when the next RPC asks.
#[test]
fn timers_of_ended_rpcs() {
    let asks_after = |hand: &mut Hand| {
        let start = hand.now;
        hand.request(10);
        let sent = hand.wait(SECOND / 2);
        let asked = sent.iter().find(|(_, sent)| sent.resend().is_some());
        asked.expect("it asks").0.nanos_since(start)
    };
    for nap in [MS / 10, MS / 2, 3 * MS, 20 * MS, SECOND] {
        let mut hand = Hand::new();
        for _ in 0..20 {
            let (_, id, _) = hand.request(10);
            hand.data(id, 10, 10, 0..10).unwrap();
            assert!(hand.event().is_some());
            // Nobody calls meanwhile, but for what must be sent.
            let until = hand.now.after(nap);
            if hand.node.poll_timeout().is_some_and(|(at, _)| at <= until) {
                hand.wait(nap);
            }
            hand.now = until;
            assert!(nap < 3 * MS || hand.node.poll_timeout().is_none());
        }
        // All were answered at once: it asks after the shortest time, and not before.
        let after = asks_after(&mut hand);
        assert!((MS..MS + MS / 100).contains(&after), "{after} ns");
        assert_eq!(hand.node.stats().late_timeouts, 0);
        assert_eq!(hand.node.stats().resends_deferred, 0);
    }
    // A response that was acknowledged at once: nothing is left to wait for.
    let mut server = Hand::new();
    let rpc = server.arrive(4, 10);
    server.respond(rpc, 10);
    assert!(server.node.poll_timeout().is_some());
    server.ack(4).unwrap();
    assert!(server.event().is_some());
    assert_eq!(server.node.poll_timeout(), None);
}

/// An event loop that slept for a second: no storm when it wakes, and nobody fails whose packets
/// waited unread.
#[test]
fn a_loop_that_slept() {
    for nap in [20 * MS, 300 * MS, SECOND, 10 * SECOND] {
        let limits = Limits {
            rpcs: 512,
            ..limits()
        };
        let mut hand = Hand::with(config(), limits);
        let mut ids = Vec::new();
        for _ in 0..400 {
            hand.now = hand.now.after(2_000);
            ids.push(hand.request(100).1);
        }
        hand.now = hand.now.after(nap);
        // It wakes: timers first, then what the carrier held.
        hand.node.handle_timeout(hand.now);
        let at_once = hand.out().len();
        assert!(at_once == 0, "{at_once} packets at once after {nap} ns");
        for id in ids {
            hand.data(id, 10, 10, 0..10).unwrap();
        }
        let mut answered = 0;
        while let Some(event) = hand.event() {
            assert!(matches!(event, Event::Response { .. }), "{event:?}");
            answered += 1;
        }
        assert_eq!(answered, 400);
        assert_eq!(hand.node.stats().late_timeouts, 1);
    }
}

/// It slept in the middle of a transfer: what was asked for meanwhile goes on.
#[test]
fn a_server_that_slept() {
    let mut net = Net::pair(4);
    net.check_every = 16;
    for cookie in 0..10 {
        net.request(0, 1, bytes_of(cookie, 100_000), cookie)
            .unwrap();
    }
    for _ in 0..200 {
        let until = net.now.after(1_000);
        net.step(until);
    }
    // Nobody moves for a second; then all packets are still there.
    net.now = net.now.after(SECOND);
    let before = net.packets;
    let seen = net.echo_until_quiet(20 * SECOND);
    assert_eq!(seen.len(), 10);
    assert!(
        seen.values()
            .all(|seen| matches!(seen, Seen::Response { .. })),
        "{seen:?}"
    );
    let data = 2 * 10 * 100_000 / u64::from(PAYLOAD);
    assert!(
        net.packets - before < 3 * data,
        "{} packets for {data} of data",
        net.packets - before
    );
}

/// One call does a bounded amount of work, however many RPCs are due, and says so: *more work*
/// until the backlog, which strictly shrinks, is gone.
#[test]
fn bounded_work_with_many_rpcs() {
    const COUNT: usize = 100_000;
    let config = Config {
        max_message: 1_000,
        ..config()
    };
    let limits = Limits {
        rpcs: COUNT,
        peers: 64,
        ended: 16,
    };
    let mut node = node(config, limits, 3, 1 << 20);
    let mut now = Instant::from_nanos(MS);
    let mut buffer = vec![0; 65_536];
    for n in 0..COUNT {
        let to = peer((n % 50) as u8);
        node.send_request(now, to.into(), vec![1; 10], RequestOptions::default())
            .unwrap();
        if n % 100 == 0 {
            while node.poll_transmit(now, &mut buffer).is_some() {}
        }
    }
    while node.poll_transmit(now, &mut buffer).is_some() {}
    node.check_invariants().unwrap();
    let (mut failed, mut calls, mut slices) = (0, 0u64, 0u64);
    let start = now;
    while let Some((at, reason)) = node.poll_timeout() {
        now = now.max(at);
        let resends = node.stats().resends_sent;
        node.handle_timeout(now);
        calls += 1;
        slices += u64::from(reason == TimeoutReason::MoreWork);
        let mut sent = 0;
        while node.poll_transmit(now, &mut buffer).is_some() {
            sent += 1;
        }
        assert!(sent <= 400, "{sent} transmissions after one call");
        assert!(node.stats().resends_sent - resends <= 400);
        let mut here = 0;
        while let Some(event) = node.poll_event() {
            assert!(matches!(
                event,
                Event::Failed {
                    error: RpcError::NeverHeard,
                    ..
                }
            ));
            here += 1;
        }
        assert!(here <= 400, "{here} RPCs failed in one call");
        failed += here;
        if let Some((next, reason)) = node.poll_timeout() {
            assert!(
                next > now || reason == TimeoutReason::MoreWork || reason == TimeoutReason::Pacer
            );
        }
        assert!(calls < 3_000_000);
    }
    assert_eq!(failed, COUNT);
    assert!(slices > 0);
    assert!(now.nanos_since(start) <= 2 * SECOND, "{now:?}");
    node.check_invariants().unwrap();
}

/// The clock near its end: nothing comes early, late or never.
#[test]
fn clock_near_its_maximum() {
    for before_end in [3 * SECOND, SECOND + 500 * MS] {
        let mut hand = Hand::new();
        hand.now = Instant::from_nanos(u64::MAX - before_end);
        let start = hand.now;
        let (_, id, _) = hand.request(100_000);
        hand.grant(id, 60_000, 1).unwrap();
        hand.drain();
        let sent = hand.wait(1_200 * MS);
        assert!(
            sent.iter()
                .any(|(at, s)| s.resend().is_some() && at.nanos_since(start) >= MS - 100_000)
        );
        assert!(matches!(
            hand.event(),
            Some(Event::Failed {
                error: RpcError::WentSilent,
                ..
            })
        ));
        // A server's state too, where there is time left for it.
        let rpc = hand.arrive(4, 10);
        hand.respond(rpc, 10);
        hand.data(6, 5_000, 5_000, 0..PAYLOAD).unwrap();
        hand.wait(200 * MS);
        assert_eq!(hand.node.live_rpcs(), 2);
    }
    // At the very last nanosecond: no panic, and no work without end.
    let mut hand = Hand::new();
    hand.now = Instant::MAX;
    let (_, id, _) = hand.request(100_000);
    hand.grant(id, 60_000, 1).unwrap();
    let rpc = hand.arrive(4, 10);
    hand.respond(rpc, 10);
    hand.data(6, 5_000, 5_000, 0..PAYLOAD).unwrap();
    hand.out();
    let mut rounds = 0;
    while hand.node.poll_timeout().is_some() {
        hand.node.handle_timeout(Instant::MAX);
        hand.out();
        rounds += 1;
        assert!(rounds < 10, "work without end at the end of time");
    }
}

/// A clock that steps back stands still: no panic, nothing twice, and all ends well once it goes
/// on.
#[test]
fn clock_going_backwards() {
    let mut net = Net::pair(8);
    net.check_every = 8;
    net.faults = Faults {
        loss: 20,
        ..Faults::default()
    };
    for cookie in 0..5 {
        net.request(0, 1, bytes_of(cookie, 50_000), cookie).unwrap();
    }
    // The endpoints are told the past now and then.
    for round in 0..200 {
        let until = net.now.after(5_000);
        net.step(until);
        let past = Instant::from_nanos(net.now.as_nanos().saturating_sub(round * 1_000_000));
        net.nodes[0].handle_timeout(past);
        let mut buffer = vec![0; 65_536];
        // What comes of that is lost, like much else.
        let _ = net.nodes[0].poll_transmit(past, &mut buffer);
        net.check(0);
    }
    let seen = net.echo_until_quiet(20 * SECOND);
    assert_eq!(seen.len(), 5);
    assert!(
        seen.values()
            .all(|seen| matches!(seen, Seen::Response { .. })),
        "{seen:?}"
    );
    net.assert_idle();
}

/// An RPC of which nothing ever arrives ends, at the time stated, whatever its size.
#[test]
fn nothing_ever_arrives() {
    for len in [1, 1_416, 1_417, 25_000, 25_001, 1_000_000] {
        let mut hand = Hand::new();
        hand.request(len);
        let start = hand.now;
        hand.wait(SECOND - 10 * MS);
        assert!(hand.event().is_none());
        hand.wait(60 * MS);
        assert!(
            matches!(hand.event(), Some(Event::Failed { .. })),
            "{len} bytes"
        );
        assert!(hand.now.nanos_since(start) < 1_100 * MS);
    }
}

/// No spinning: a bounded number of rounds for each packet, over a long lossy run.
#[test]
fn rounds_are_bounded() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(500_000);
    let (mut rounds, mut packets) = (0u32, 0u32);
    let mut granted = 25_000;
    for _ in 0..300 {
        let until = hand.now.after(700_000);
        while let Some((at, _)) = hand.node.poll_timeout().filter(|&(at, _)| at <= until) {
            hand.now = hand.now.max(at);
            hand.node.handle_timeout(hand.now);
            packets += hand.out().len() as u32;
            rounds += 1;
        }
        hand.now = until;
        granted = (granted + 3_000).min(500_000);
        let _ = hand.grant(id, granted, 2);
        packets += hand.out().len() as u32 + 1;
    }
    assert!(
        rounds <= 3 * packets,
        "{rounds} rounds for {packets} packets"
    );
}

/// A held acknowledgement goes by itself after its delay, not before, and once.
#[test]
fn acknowledgements_are_delayed_and_batched() {
    let mut hand = Hand::new();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(hand.request(10).1);
    }
    for id in &ids {
        hand.data(*id, 10, 10, 0..10).unwrap();
    }
    let sent = hand.wait(MS - 1);
    assert!(
        sent.is_empty(),
        "{:?}",
        kinds(&sent.into_iter().map(|(_, s)| s).collect::<Vec<_>>())
    );
    let sent: Vec<Sent> = hand.wait(100 * MS).into_iter().map(|(_, s)| s).collect();
    assert_eq!(kinds(&sent), ["ACK"]);
    while hand.event().is_some() {}
    // Data to ride on takes them along.
    let (_, id, _) = hand.request(10);
    hand.data(id, 10, 10, 0..10).unwrap();
    let (_, _, sent) = hand.request(10);
    assert_eq!(sent[0].data().unwrap().0.ack.unwrap().client_id, id ^ 1);
}
