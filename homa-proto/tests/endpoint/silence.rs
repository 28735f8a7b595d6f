//! Whose silence counts, what it is answered with, and how it ends.

use homa_proto::wire::ALL;
use homa_proto::{Config, Event, Instant, Limits, RequestOptions, RpcError};

use crate::hand::{Hand, MS, Sent, kinds, peer};
use crate::link::{Net, Seen, bytes_of, config, limits, node};

const PAYLOAD: u32 = 1416;
const SECOND: u64 = 1_000 * MS;

fn resends(sent: &[(Instant, Sent)]) -> Vec<(u32, u32)> {
    sent.iter().filter_map(|(_, s)| s.resend()).collect()
}

/// Client, OUTGOING, request bytes unsent here: the server's silence does not count, for as long
/// as it takes to send them.
#[test]
fn client_with_bytes_to_send() {
    let slow = Config {
        link_bps: 1_000_000,
        rtt_ns: 1_000_000,
        unscheduled_bytes: 1_000_000,
        ..config()
    };
    let mut hand = Hand::with(slow, limits());
    let to = hand.from.into();
    hand.node
        .send_request(
            hand.now,
            to,
            bytes_of(0, 500_000),
            RequestOptions::default(),
        )
        .unwrap();
    // The link takes 4 seconds, four times the time-out.
    let sent = hand.wait(4 * SECOND);
    assert!(resends(&sent).is_empty());
    assert!(hand.event().is_none());
    // Then it counts, and ends within the time-out.
    let after = hand.wait(2 * SECOND);
    assert!(resends(&after).len() > 3);
    assert!(matches!(
        hand.event(),
        Some(Event::Failed {
            error: RpcError::NeverHeard,
            ..
        })
    ));
}

/// Client, OUTGOING, everything allowed sent: a RESEND of the response, offset 0, length −1, the
/// intervals doubling, until the RPC fails.
#[test]
fn client_that_waits() {
    for (len, granted) in [(100, 0), (100_000, 0), (100_000, 60_000)] {
        let mut hand = Hand::new();
        let (rpc, id, _) = hand.request(len);
        if granted > 0 {
            hand.grant(id, granted, 2).unwrap();
            hand.drain();
        }
        let start = hand.now;
        let sent = hand.wait(3 * SECOND);
        assert!(
            sent.iter().all(|(_, s)| s.resend() == Some((0, ALL))),
            "{:?}",
            kinds(&sent.iter().map(|(_, s)| s.clone()).collect::<Vec<_>>())
        );
        let times: Vec<u64> = sent.iter().map(|(at, _)| at.nanos_since(start)).collect();
        assert!((MS - 100_000..=6 * MS).contains(&times[0]), "{times:?}");
        for pair in times.windows(3) {
            assert!(pair[2] - pair[1] >= pair[1] - pair[0]);
            assert!(pair[2] - pair[1] <= 101 * MS);
        }
        assert!(*times.last().unwrap() < 1001 * MS);
        match hand.event() {
            Some(Event::Failed {
                rpc: failed,
                error,
                peer: at,
                request,
                ..
            }) => {
                let want = if granted > 0 {
                    RpcError::WentSilent
                } else {
                    RpcError::NeverHeard
                };
                assert_eq!((failed, error), (rpc, want));
                assert_eq!((at, request.len()), (peer(1).into(), len));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(hand.node.live_rpcs(), 0);
        assert_eq!(hand.node.poll_timeout(), None);
    }
}

/// Any, INCOMING, everything granted here: no silence.
#[test]
fn everything_granted_has_arrived() {
    // No headroom for the small one, so it waits for its grant.
    let mut hand = Hand::new();
    hand.data(4, 4_000_000, 4_000_000, 0..PAYLOAD).unwrap();
    hand.from = peer(2);
    hand.data(6, 2_000_000, PAYLOAD, 0..PAYLOAD).unwrap();
    hand.out();
    for _ in 0..4000 {
        // The first one goes on, so that its peer is not silent.
        let sent = hand.wait(MS);
        assert!(sent.iter().all(|(_, s)| s.to != peer(2)));
        hand.from = peer(1);
        hand.data(4, 4_000_000, 4_000_000, 0..PAYLOAD).unwrap_err();
    }
    // 4 s later it is still there, and goes on.
    hand.unknown(4).unwrap();
    let out = hand.out();
    assert_eq!(kinds(&out), ["GRANT"]);
    assert_eq!(out[0].to, peer(2));
}

/// Any, INCOMING, no buffer: no RESEND, and no abort while the client is alive; when memory comes, all is asked for.
#[test]
fn no_buffer() {
    let mut hand = Hand::new();
    // All the memory there is.
    let mut held = Vec::new();
    for id in 0..16 {
        hand.data(4 + 2 * id, 4_000_000, 100, 0..100).unwrap();
        held.push(4 + 2 * id);
    }
    hand.from = peer(2);
    hand.data(100, 3_900_000, PAYLOAD, 0..PAYLOAD).unwrap_err();
    assert_eq!(hand.node.stats().buffer_waits, 1);
    let sent = hand.wait(900 * MS);
    assert!(
        sent.iter().all(|(_, s)| s.to != peer(2)),
        "{:?}",
        resends(&sent)
    );
    // The client waits for its response, and asks for it.
    hand.resend(100, 0, u32::MAX, 7).unwrap();
    assert_eq!(kinds(&hand.out()), ["BUSY"]);
    // The others time out meanwhile: their memory comes free, and goes to the one that waits.
    let sent = hand.wait(600 * MS);
    let to_it: Vec<_> = sent
        .iter()
        .filter(|(_, s)| s.to == peer(2))
        .map(|(_, s)| s.clone())
        .collect();
    assert_eq!(hand.node.stats().resends_for_buffer, 1);
    assert_eq!(to_it.iter().find_map(Sent::resend), Some((0, PAYLOAD)));
    hand.data(100, 3_900_000, PAYLOAD, 0..PAYLOAD).unwrap();
    assert!(kinds(&hand.out()).contains(&"GRANT"));
}

/// A request that waits for a buffer keeps its place no longer than its client gives a sign of life.
#[test]
fn no_buffer_and_no_client() {
    let mut hand = Hand::new();
    hand.node = node(config(), limits(), 77, 4096);
    // The application holds all the memory there is.
    let mut held = Vec::new();
    for id in 0..4 {
        hand.data(4 + 2 * id, 1_000, 1_000, 0..1_000).unwrap();
        held.push(hand.event());
    }
    hand.from = peer(2);
    hand.data(100, 3_000, PAYLOAD, 0..PAYLOAD).unwrap_err();
    assert_eq!(hand.node.stats().buffer_waits, 1);
    hand.wait(900 * MS);
    assert_eq!(hand.node.live_rpcs(), 5);
    hand.wait(200 * MS);
    assert_eq!(hand.node.live_rpcs(), 4);
}

/// Any, INCOMING, granted bytes missing: one RESEND for each missing range, plus the tail.
#[test]
fn granted_bytes_are_missing() {
    for client in [false, true] {
        let mut hand = Hand::new();
        let id = if client { hand.request(100).1 } else { 4 };
        let len = 20 * PAYLOAD;
        for at in [0, 2, 3, 7] {
            hand.data(id, len, 10 * PAYLOAD, at * PAYLOAD..(at + 1) * PAYLOAD)
                .unwrap();
        }
        // The RPC is granted the rest in time; that counts as missing too.
        let grants: Vec<_> = hand.out().iter().filter_map(Sent::grant).collect();
        let granted = grants.last().copied().unwrap();
        let start = hand.now;
        let sent = hand.wait(1_500_000);
        // The holes first, at once, for they have later data beyond them.
        let want = [(PAYLOAD, PAYLOAD), (4 * PAYLOAD, 3 * PAYLOAD)];
        assert_eq!(resends(&sent)[..2], want);
        assert!(sent[0].0.nanos_since(start) <= MS);
        // Then everything, by silence.
        let tail = (8 * PAYLOAD, granted - 8 * PAYLOAD);
        let sent = hand.wait(20 * MS);
        let all = resends(&sent);
        let at = all
            .iter()
            .position(|&range| range == tail)
            .expect("the tail is asked for");
        assert!(at >= 2);
        assert_eq!(all[at - 2..at], want);
        assert!(sent.iter().all(|(_, s)| s.priority == 7));
        // All of that within the time-out, then the end.
        hand.wait(2 * SECOND);
        match hand.event() {
            Some(Event::Failed { error, .. }) => assert!(client && error == RpcError::WentSilent),
            None => assert!(!client && hand.node.stats().requests_abandoned == 1),
            other => panic!("{other:?}"),
        }
        assert_eq!(hand.node.live_rpcs(), 0);
        assert_eq!(hand.node.total_incoming(), 0);
    }
}

/// Server, IN_SERVICE: never silence, for any time.
#[test]
fn in_service() {
    let mut hand = Hand::new();
    let rpc = hand.arrive(4, 10);
    hand.out();
    assert!(hand.wait(10 * SECOND).is_empty());
    assert_eq!(hand.node.poll_timeout(), None);
    assert_eq!(kinds(&hand.respond(rpc, 10)), ["DATA"]);
}

/// DATA, GRANT and BUSY reset the silence of a client: it lives as long as they come.
#[test]
fn signs_of_life() {
    for kind in 0..3 {
        let mut hand = Hand::new();
        let (_, id, _) = hand.request(1_000_000);
        for round in 0..30u32 {
            hand.wait(300 * MS);
            match kind {
                0 => hand.busy(id).unwrap(),
                1 => hand.grant(id, 26_000 + round * 1_000, 2).unwrap(),
                _ => {
                    // The response, a byte at a time.
                    hand.data(id, 100_000, 100_000, round..round + 1).unwrap();
                }
            }
            hand.drain();
            assert!(hand.event().is_none(), "kind {kind} round {round}");
        }
        hand.wait(1_100 * MS);
        assert!(
            matches!(
                hand.event(),
                Some(Event::Failed {
                    error: RpcError::WentSilent,
                    ..
                })
            ),
            "kind {kind}"
        );
    }
}

/// NEED_ACK is no sign of life of the response: the client asks for it, and gives up in time.
#[test]
fn need_ack_is_no_sign_of_life() {
    for (started, period) in [(false, 2), (false, 30), (true, 2), (true, 30)] {
        let mut hand = Hand::new();
        let (_, id, _) = hand.request(100);
        if started {
            hand.data(id, 5000, 5000, 0..PAYLOAD).unwrap();
        }
        let (start, mut asked, mut end) = (hand.now, 0, None);
        while end.is_none() && hand.now.nanos_since(start) < 1_200 * MS {
            asked += resends(&hand.wait(period * MS)).len();
            end = hand.event();
            if end.is_none() {
                hand.need_ack(id).unwrap();
                asked += hand.out().iter().filter_map(Sent::resend).count();
            }
        }
        assert!(asked > 5, "{asked}");
        match end {
            Some(Event::Failed {
                error: RpcError::WentSilent,
                ..
            }) => {}
            other => panic!("started {started}, every {period} ms: {other:?}"),
        }
    }
}

/// A server that answers "unknown" for ever (it cancelled the RPC, or its table stays full) does
/// not keep a client for ever.
#[test]
fn rpc_unknown_is_no_sign_of_life() {
    for len in [100, 20_000] {
        let mut hand = Hand::new();
        let (_, id, _) = hand.request(len);
        let start = hand.now;
        while hand.now.nanos_since(start) < 1_200 * MS && hand.node.live_rpcs() > 0 {
            let out = hand.wait(MS);
            if out.iter().any(|(_, s)| s.resend().is_some()) && hand.node.live_rpcs() > 0 {
                let _ = hand.unknown(id);
            }
            if let Some(event) = hand.event() {
                assert!(matches!(
                    event,
                    Event::Failed {
                        error: RpcError::WentSilent,
                        ..
                    }
                ));
            }
        }
        assert_eq!(hand.node.live_rpcs(), 0, "{len} bytes: never fails");
    }
}

/// A server that asks for the request again and again and never gets further is not alive for
/// ever either.
#[test]
fn resends_are_no_sign_of_life() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(20_000);
    let (start, mut end) = (hand.now, None);
    while end.is_none() && hand.now.nanos_since(start) < 1_200 * MS {
        hand.wait(5 * MS);
        end = hand.event();
        if end.is_none() {
            hand.resend(id, 1000, 2000, 3).unwrap();
            hand.drain();
        }
    }
    assert!(matches!(
        end,
        Some(Event::Failed {
            error: RpcError::WentSilent,
            ..
        })
    ));
}

/// Server, OUTGOING with bytes unsent here: the client's silence does not count.
#[test]
fn server_with_bytes_to_send() {
    let slow = Config {
        link_bps: 1_000_000,
        rtt_ns: 1_000_000,
        unscheduled_bytes: 1_000_000,
        ..config()
    };
    let mut hand = Hand::with(slow, limits());
    let rpc = hand.arrive(4, 10);
    hand.node
        .send_response(hand.now, rpc, bytes_of(1, 500_000))
        .unwrap();
    // The link takes 4.3 s.
    let sent = hand.wait(5 * SECOND);
    let bytes: u32 = sent
        .iter()
        .filter_map(|(_, s)| s.data())
        .map(|(_, r)| r.end - r.start)
        .sum();
    assert_eq!(bytes, 500_000);
    // The client has been silent all the while, as it should.
    hand.ack(4).unwrap();
    assert!(matches!(
        hand.event(),
        Some(Event::Released {
            outcome: Ok(()),
            ..
        })
    ));
}

/// Server, OUTGOING, everything sent: NEED_ACK, backing off, and the end after twice the time-out.
#[test]
fn need_ack_to_a_vanished_client() {
    for len in [10, 20_000] {
        let mut hand = Hand::new();
        let rpc = hand.arrive(4, 10);
        hand.respond(rpc, len);
        let start = hand.now;
        let sent = hand.wait(5 * SECOND);
        let all: Vec<_> = sent.iter().map(|(_, s)| s.clone()).collect();
        assert!(kinds(&all).iter().all(|&kind| kind == "NEED_ACK"));
        let times: Vec<u64> = sent.iter().map(|(at, _)| at.nanos_since(start)).collect();
        assert!((3..=12).contains(&times.len()), "{times:?}");
        assert!(times[0] >= 2 * MS - 100_000 && times[0] <= 3 * MS);
        assert!(times.windows(3).all(|t| t[2] - t[1] >= t[1] - t[0]));
        // Longer than a client takes to give up, but not for ever.
        assert!(*times.last().unwrap() <= 2 * SECOND + MS);
        match hand.event() {
            Some(Event::Released {
                outcome: Err(RpcError::WentSilent),
                response,
                ..
            }) => {
                assert_eq!(response.len(), len);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(hand.node.stats().responses_unacknowledged, 1);
        assert_eq!(hand.node.poll_timeout(), None);
    }
}

/// Server, OUTGOING, waiting for grants: the client is asked whether it still waits (a RESEND of
/// no bytes). While it says so (BUSY) the response is kept, for as long as the client has better
/// things to grant; else it goes, in bounded time.
#[test]
fn response_not_granted() {
    let probes = |sent: &[(Instant, Sent)]| {
        assert!(sent.iter().all(|(_, s)| s.resend() == Some((0, 0))));
        sent.len()
    };
    let mut hand = Hand::new();
    let rpc = hand.arrive(4, 10);
    hand.respond(rpc, 100_000);
    for _ in 0..40 {
        if probes(&hand.wait(250 * MS)) > 0 {
            hand.busy(4).unwrap();
        }
        assert!(hand.event().is_none());
    }
    // Granted after 10 s, it goes on.
    hand.grant(4, 30_000, 1).unwrap();
    assert!(kinds(&hand.drain()).iter().all(|&kind| kind == "DATA"));
    let sent = hand.wait(1_990 * MS);
    assert!((2..=10).contains(&probes(&sent)));
    assert!(hand.event().is_none());
    hand.wait(20 * MS);
    assert!(matches!(
        hand.event(),
        Some(Event::Released {
            outcome: Err(RpcError::WentSilent),
            ..
        })
    ));
    assert_eq!(hand.node.poll_timeout(), None);
    // A client that knows nothing of it any more says so, and the state goes at once.
    let rpc = hand.arrive(6, 10);
    hand.respond(rpc, 100_000);
    while probes(&hand.wait(10 * MS)) == 0 {}
    hand.unknown(6).unwrap();
    assert_eq!(hand.node.stats().clients_gone, 1);
}

/// Long responses from many servers to one client: the last is granted nothing for longer than all time-outs,
/// and arrives all the same.
#[test]
fn a_response_that_waits_long_for_its_turn() {
    let slow = Config {
        link_bps: 100_000_000,
        rtt_ns: 100_000,
        max_overcommit: 1,
        fifo_permille: 0,
        ..config()
    };
    let limits = Limits {
        peers: 16,
        ..limits()
    };
    let nodes = (0..13)
        .map(|i| node(slow.clone(), limits, i, 128 << 20))
        .collect();
    let mut net = Net::new(nodes, 1);
    net.check_every = 500;
    for cookie in 0..12 {
        net.request(0, 1 + cookie as usize, vec![1; 10], cookie)
            .unwrap();
    }
    let start = net.now;
    let mut done = 0;
    loop {
        for at in 1..13 {
            for seen in net.events(at) {
                if let Seen::Request { rpc, .. } = seen {
                    net.respond(at, rpc, bytes_of(1, 4_000_000));
                }
            }
        }
        for seen in net.events(0) {
            match seen {
                Seen::Response { bytes, .. } => {
                    assert_eq!(bytes.len(), 4_000_000);
                    done += 1;
                }
                other => panic!("after {done}: {other:?}"),
            }
        }
        if !net.step(start.after(20 * SECOND)) {
            break;
        }
    }
    assert_eq!(done, 12);
    net.assert_idle();
}

/// A grant is a new turn of the sender: its silence counts from there.
#[test]
fn silence_starts_again_with_a_grant() {
    let mut hand = Hand::new();
    hand.data(4, 1_000_000, PAYLOAD, 0..PAYLOAD).unwrap();
    hand.now = hand.now.after(40 * MS);
    // Not polled for 40 ms: only now the grant goes out.
    assert_eq!(kinds(&hand.out()), ["GRANT"]);
    let start = hand.now;
    let sent = hand.wait(20 * MS);
    let first = sent.iter().find(|(_, s)| s.resend().is_some()).unwrap();
    assert!(first.0.nanos_since(start) >= MS - 100_000);
}
