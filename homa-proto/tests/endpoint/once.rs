//! At most once, and exactly one event.

use homa_proto::wire::{AckEntry, Repr};
use homa_proto::{
    Cancelled, Config, DropReason, Event, Instant, Limits, RequestOptions, RpcError, RpcId,
    SendErrorKind,
};

use crate::hand::{Hand, MS, Sent, kinds, peer};
use crate::link::{Random, bytes_of, config, limits};

const PAYLOAD: u32 = 1416;

/// A copy of a request that comes in any state of its RPC, or long after its end, never runs.
#[test]
fn copies_of_a_request() {
    for packets in [1u32, 3] {
        let len = packets * PAYLOAD - 10;
        let mut hand = Hand::new();
        let copy = |hand: &mut Hand| -> Vec<DropReason> {
            (0..packets)
                .filter_map(|at| {
                    let range = at * PAYLOAD..len.min((at + 1) * PAYLOAD);
                    hand.data(4, len, len, range).err()
                })
                .collect()
        };
        assert!(copy(&mut hand).is_empty());
        let Some(Event::Request { rpc, .. }) = hand.event() else {
            panic!()
        };
        let every = |hand: &mut Hand, why: DropReason| {
            let drops = copy(hand);
            assert_eq!(drops, vec![why; packets as usize]);
            assert!(hand.event().is_none());
        };
        every(&mut hand, DropReason::Duplicate);
        hand.respond(rpc, 100);
        every(&mut hand, DropReason::Duplicate);
        hand.ack(4).unwrap();
        let Some(Event::Released { .. }) = hand.event() else {
            panic!()
        };
        // Acknowledged and forgotten, and remembered as ended for the window.
        for _ in 0..20 {
            every(&mut hand, DropReason::EndedRpc);
            hand.wait(100 * MS);
        }
        assert_eq!(hand.node.stats().requests_received, 1);
        assert_eq!(hand.node.stats().ended_window_shrunk, 0);
        assert_eq!(hand.node.live_rpcs(), 0);
    }
}

/// However a request ended at the server, a later copy does not run.
#[test]
fn copies_after_every_end() {
    type End = fn(&mut Hand, RpcId);
    let ends: [(&str, End); 6] = [
        ("acknowledged", |hand, rpc| {
            hand.respond(rpc, 10);
            hand.ack(4).unwrap();
        }),
        ("acknowledged by data", |hand, rpc| {
            hand.respond(rpc, 10);
            let ack = AckEntry {
                client_id: 4,
                server_port: crate::link::PORT,
            };
            hand.data_with(6, 10, 10, 0..10, |header| header.ack = Some(ack))
                .unwrap();
            while hand.event().is_some() {}
        }),
        ("given up", |hand, rpc| {
            hand.respond(rpc, 10);
            hand.wait(2_100 * MS);
        }),
        ("gone", |hand, rpc| {
            hand.respond(rpc, 100_000);
            hand.unknown(4).unwrap();
        }),
        ("cancelled in service", |hand, rpc| {
            assert_eq!(hand.node.cancel(hand.now, rpc), Some(Cancelled::Unanswered));
        }),
        ("cancelled while answered", |hand, rpc| {
            hand.respond(rpc, 10);
            let cancelled = hand.node.cancel(hand.now, rpc);
            assert!(matches!(cancelled, Some(Cancelled::Response(_))));
        }),
    ];
    for (name, end) in ends {
        let mut hand = Hand::new();
        let rpc = hand.arrive(4, 100);
        end(&mut hand, rpc);
        while hand.event().is_some() {}
        assert_eq!(
            hand.data(4, 100, 100, 0..100),
            Err(DropReason::EndedRpc),
            "{name}"
        );
        assert!(hand.event().is_none(), "{name}");
        // The same id of another client is another RPC.
        hand.from = peer(2);
        hand.data(4, 100, 100, 0..100).unwrap();
        assert!(matches!(hand.event(), Some(Event::Request { .. })));
    }
}

/// A request of which a part came, and that was then given up, has not run: it may come again.
#[test]
fn an_abandoned_request_may_come_again() {
    let mut hand = Hand::new();
    hand.data(4, 5000, 5000, 0..PAYLOAD).unwrap();
    hand.wait(1_200 * MS);
    assert_eq!(hand.node.stats().requests_abandoned, 1);
    for at in [0, PAYLOAD, 2 * PAYLOAD, 3 * PAYLOAD] {
        hand.data(4, 5000, 5000, at..5000.min(at + PAYLOAD))
            .unwrap();
    }
    assert!(matches!(hand.event(), Some(Event::Request { .. })));
}

/// The window: at least so many ended requests for so long; a counter says when it shrank.
#[test]
fn the_window_of_ended_requests() {
    let limits = Limits {
        ended: 64,
        ..limits()
    };
    for (spacing_ns, shrinks) in [(40 * MS, false), (MS, true)] {
        let mut hand = Hand::with(config(), limits);
        for n in 0..200u64 {
            let rpc = hand.arrive(2 + 2 * n, 10);
            hand.respond(rpc, 10);
            hand.ack(2 + 2 * n).unwrap();
            while hand.event().is_some() {}
            hand.now = hand.now.after(spacing_ns);
            // The last 64 are remembered exactly, whatever the time.
            for back in 0..64.min(n) {
                let id = 2 + 2 * (n - back);
                assert_eq!(hand.data(id, 10, 10, 0..10), Err(DropReason::EndedRpc));
            }
        }
        let shrunk = hand.node.stats().ended_window_shrunk;
        assert_eq!(shrunk, if shrinks { 200 - 64 } else { 0 });
    }
}

/// A client that starts anew at the same address with another seed begins elsewhere: none of its
/// requests is taken for one of its former self.
#[test]
fn ids_start_at_random() {
    let mut ids = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let mut node = crate::link::node(config(), limits(), seed, 1 << 20);
        let mut packet = [0; 1500];
        for _ in 0..50 {
            let now = Instant::from_nanos(1);
            node.send_request(now, peer(1).into(), vec![1; 10], RequestOptions::default())
                .unwrap();
            let sent = node.poll_transmit(now, &mut packet).unwrap();
            let Ok(Repr::Data { header, .. }) = Repr::parse(
                &packet[..sent.len.min(sent.segment_size.unwrap_or(1500))],
                1000,
            ) else {
                panic!()
            };
            let id = header.common.sender_id;
            assert!(id & 1 == 0 && id > 1);
            assert!(ids.insert(id), "an id came twice");
        }
    }
    // Spread over the whole range, not only different.
    let quarter = 1u64 << 60;
    assert!(ids.iter().any(|&id| id < quarter) && ids.iter().any(|&id| id > 3 * quarter));
}

/// A server that starts with an empty memory may run a request again: the one documented window.
/// Within one life it never does, whatever the client's fate.
#[test]
fn a_server_that_restarts() {
    let mut hand = Hand::new();
    let rpc = hand.arrive(4, 100);
    hand.respond(rpc, 100);
    let mut again = Hand::new();
    // The new one knows nothing, says so when asked, and runs the copy.
    again.resend(4, 0, u32::MAX, 7).unwrap();
    assert_eq!(kinds(&again.out()), ["UNKNOWN"]);
    again.arrive(4, 100);
}

/// Cancelling, in every state: no event, the message back if there is one, nothing left.
#[test]
fn cancel_in_every_state() {
    // Client: nothing sent, partly sent, sent, answered in part.
    for state in 0..5 {
        let mut hand = Hand::new();
        let to = hand.from.into();
        let rpc = hand
            .node
            .send_request(
                hand.now,
                to,
                bytes_of(0, 100_000),
                RequestOptions::default(),
            )
            .unwrap();
        let mut id = 0;
        if state > 0 {
            let sent = hand.out();
            id = sent[0].repr().common().sender_id ^ 1;
        }
        if state > 1 {
            hand.drain();
        }
        if state > 2 {
            hand.data(id, 100_000, 20_000, 0..PAYLOAD).unwrap();
        }
        if state > 3 {
            assert!(kinds(&hand.out()).contains(&"GRANT"));
        }
        match hand.node.cancel(hand.now, rpc).expect("it lives") {
            Cancelled::Request(message) => assert!(message == bytes_of(0, 100_000)),
            other => panic!("{other:?}"),
        }
        hand.node.check_invariants().unwrap();
        assert!(hand.node.cancel(hand.now, rpc).is_none());
        assert_eq!((hand.node.live_rpcs(), hand.node.total_incoming()), (0, 0));
        assert!(hand.event().is_none());
        assert!(kinds(&hand.drain()).is_empty(), "state {state}");
        assert_eq!(hand.node.poll_timeout(), None);
        // What comes late finds nothing.
        if id != 0 {
            assert_eq!(
                hand.data(id, 100_000, 20_000, 0..PAYLOAD),
                Err(DropReason::UnknownRpc)
            );
            hand.need_ack(id).unwrap();
            assert_eq!(kinds(&hand.out()), ["ACK"]);
        }
        assert_eq!(hand.node.buffers().bytes_out(), 0);
    }
    // Client: the event waits. The event goes too.
    for failed in [false, true] {
        let mut hand = Hand::new();
        let (rpc, id, _) = hand.request(10);
        if failed {
            hand.wait(1_200 * MS);
        } else {
            hand.data(id, 10, 10, 0..10).unwrap();
        }
        match hand.node.cancel(hand.now, rpc) {
            Some(Cancelled::Request(message)) => assert_eq!(message.len(), 10),
            other => panic!("{other:?}"),
        }
        assert!(hand.event().is_none());
        assert_eq!(
            (hand.node.live_rpcs(), hand.node.buffers().bytes_out()),
            (0, 0)
        );
    }
    // Server: released, and not polled.
    let mut hand = Hand::new();
    let rpc = hand.arrive(4, 10);
    hand.respond(rpc, 10);
    hand.ack(4).unwrap();
    match hand.node.cancel(hand.now, rpc) {
        Some(Cancelled::Response(message)) => assert_eq!(message.len(), 10),
        other => panic!("{other:?}"),
    }
    assert!(hand.event().is_none());
    assert_eq!(hand.node.live_rpcs(), 0);
    // A handle of an ended RPC never names the next in its slot.
    let next = hand.arrive(6, 10);
    assert_ne!(next, rpc);
    assert!(hand.node.cancel(hand.now, rpc).is_none());
    let refused = hand.node.send_response(hand.now, rpc, vec![1]).unwrap_err();
    assert_eq!(refused.kind, SendErrorKind::NoSuchRpc);
}

/// A response is taken once, only from the one who has the request.
#[test]
fn responses_that_are_refused() {
    let mut hand = Hand::new();
    let rpc = hand.arrive(4, 10);
    let refused = |hand: &mut Hand, rpc, len: usize| {
        let error = hand
            .node
            .send_response(hand.now, rpc, vec![9; len])
            .unwrap_err();
        assert_eq!(error.message, vec![9; len]);
        error.kind
    };
    assert_eq!(refused(&mut hand, rpc, 0), SendErrorKind::Empty);
    assert_eq!(refused(&mut hand, rpc, 4_000_001), SendErrorKind::TooLong);
    hand.respond(rpc, 10);
    assert_eq!(refused(&mut hand, rpc, 10), SendErrorKind::NoSuchRpc);
    hand.ack(4).unwrap();
    assert_eq!(refused(&mut hand, rpc, 10), SendErrorKind::NoSuchRpc);
    hand.event();
    assert_eq!(refused(&mut hand, rpc, 10), SendErrorKind::NoSuchRpc);
    // One's own request is not to be answered.
    let (own, ..) = hand.request(10);
    assert_eq!(refused(&mut hand, own, 10), SendErrorKind::NoSuchRpc);
}

/// A deadline ends an RPC at its time in every state, with one event, and nothing else comes.
#[test]
fn deadline_in_every_state() {
    for state in 0..6 {
        let mut hand = Hand::new();
        let start = hand.now;
        let deadline = start.after(50 * MS + 123);
        let options = RequestOptions {
            cookie: 42,
            deadline: Some(deadline),
            local_port: 0,
        };
        let to = hand.from.into();
        let rpc = hand
            .node
            .send_request(hand.now, to, bytes_of(0, 100_000), options)
            .unwrap();
        let mut id = 0;
        if state > 0 {
            let sent = hand.drain();
            id = sent.iter().find_map(Sent::data).unwrap().0.common.sender_id ^ 1;
        }
        match state {
            2 => hand.grant(id, 50_000, 1).unwrap(),
            3 => hand.data(id, 100_000, 20_000, 0..PAYLOAD).unwrap(),
            4 => {
                // Everything granted here, the rest never granted to the sender's knowledge.
                hand.data(id, 100_000, PAYLOAD, 0..PAYLOAD).unwrap();
                hand.out();
            }
            5 => hand.busy(id).unwrap(),
            _ => {}
        }
        hand.wait(50 * MS - (hand.now.nanos_since(start)));
        assert!(hand.event().is_none(), "state {state}: too early");
        // In state 0 nothing was ever sent: only the deadline.
        hand.wait(2 * MS);
        match hand.event() {
            Some(Event::Failed {
                rpc: failed,
                cookie,
                error,
                request,
                ..
            }) => {
                assert_eq!(
                    (failed, cookie, error),
                    (rpc, 42, RpcError::DeadlineExceeded)
                );
                assert!(request == bytes_of(0, 100_000));
            }
            other => panic!("state {state}: {other:?}"),
        }
        assert_eq!(hand.node.live_rpcs(), 0);
        assert!(hand.wait(2_000 * MS).is_empty());
        assert!(hand.event().is_none());
        assert_eq!(hand.node.buffers().bytes_out(), 0);
    }
    // Passed already: refused, and the message comes back.
    let mut hand = Hand::new();
    for deadline in [Instant::ZERO, hand.now] {
        let options = RequestOptions {
            deadline: Some(deadline),
            ..RequestOptions::default()
        };
        let error = hand
            .node
            .send_request(hand.now, peer(1).into(), vec![5; 5], options)
            .unwrap_err();
        assert_eq!(
            (error.kind, error.message),
            (SendErrorKind::DeadlineExceeded, vec![5; 5])
        );
    }
    // Met: no second event.
    let options = RequestOptions {
        deadline: Some(hand.now.after(50 * MS)),
        ..RequestOptions::default()
    };
    hand.node
        .send_request(hand.now, peer(1).into(), vec![5; 5], options)
        .unwrap();
    let id = hand.out()[0].repr().common().sender_id ^ 1;
    hand.data(id, 5, 5, 0..5).unwrap();
    hand.wait(100 * MS);
    assert!(matches!(hand.event(), Some(Event::Response { .. })));
    assert!(hand.event().is_none());
}

/// Exactly one event for every RPC on each side, however seldom and in whatever order the
/// endpoint is polled, with packets repeated and mixed up.
#[test]
fn one_event_in_any_order() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let config = Config {
            need_ack_ns: 500_000,
            ..config()
        };
        let mut hands = [
            Hand::with(config.clone(), limits()),
            Hand::with(config, limits()),
        ];
        // The two are joined directly: each is the other's peer(1) and has its port.
        let addr = [crate::link::addr(0), crate::link::addr(1)];
        let mut wire: [Vec<Vec<u8>>; 2] = [Vec::new(), Vec::new()];
        let total = 60;
        let (mut started, mut answered, mut ended) = (
            0,
            std::collections::BTreeMap::new(),
            std::collections::BTreeMap::new(),
        );
        let mut to_answer = Vec::new();
        let mut released = 0;
        let mut now = Instant::from_nanos(MS);
        let mut idle = 0;
        while idle < 400 {
            idle += 1;
            now = now.after(random.below(100_000));
            match random.below(7) {
                0 if started < total => {
                    idle = 0;
                    let options = RequestOptions {
                        cookie: started,
                        ..RequestOptions::default()
                    };
                    let mut bytes = bytes_of(started, 8 + random.below(4000) as usize);
                    bytes[..8].copy_from_slice(&started.to_le_bytes());
                    hands[0]
                        .node
                        .send_request(now, addr[1].into(), bytes, options)
                        .unwrap();
                    started += 1;
                }
                1 | 2 => {
                    let to = random.below(2) as usize;
                    if !wire[to].is_empty() {
                        idle = 0;
                        let at = random.below(wire[to].len() as u64) as usize;
                        // Some come again later.
                        let packet = if random.permille(150) {
                            wire[to][at].clone()
                        } else {
                            wire[to].swap_remove(at)
                        };
                        let _ = hands[to]
                            .node
                            .handle_packet(now, addr[1 - to], None, &packet);
                    }
                }
                3 => {
                    let at = random.below(2) as usize;
                    let mut buffer = vec![0; 1500];
                    if let Some(sent) = hands[at].node.poll_transmit(now, &mut buffer) {
                        let segment = sent.segment_size.unwrap_or(sent.len);
                        wire[1 - at].extend(buffer[..sent.len].chunks(segment).map(<[u8]>::to_vec));
                        idle = 0;
                    }
                }
                4 => hands[random.below(2) as usize].node.handle_timeout(now),
                5 if !to_answer.is_empty() => {
                    let at = random.below(to_answer.len() as u64) as usize;
                    let rpc = to_answer.swap_remove(at);
                    hands[1]
                        .node
                        .send_response(now, rpc, bytes_of(7, 1 + random.below(4000) as usize))
                        .unwrap();
                }
                6 => {
                    let at = random.below(2) as usize;
                    match hands[at].node.poll_event() {
                        None => {}
                        Some(Event::Request { rpc, message, .. }) => {
                            let mut tag = [0; 8];
                            tag.copy_from_slice(&message[..8]);
                            *answered.entry(u64::from_le_bytes(tag)).or_insert(0) += 1;
                            to_answer.push(rpc);
                        }
                        Some(Event::Response { cookie, .. }) => {
                            *ended.entry(cookie).or_insert(0) += 1;
                        }
                        Some(Event::Released { outcome, .. }) => {
                            assert_eq!(outcome, Ok(()));
                            released += 1;
                        }
                        other => panic!("seed {seed}: {other:?}"),
                    }
                }
                _ => {}
            }
            if random.permille(100) {
                hands[0].node.check_invariants().unwrap();
                hands[1].node.check_invariants().unwrap();
            }
            if released == total && ended.len() as u64 == total {
                break;
            }
        }
        assert!(
            answered.len() as u64 == total && answered.values().all(|&n| n == 1),
            "seed {seed}"
        );
        assert!(
            ended.len() as u64 == total && ended.values().all(|&n| n == 1),
            "seed {seed}"
        );
        assert_eq!(released, total, "seed {seed}");
        assert_eq!(hands[0].node.live_rpcs() + hands[1].node.live_rpcs(), 0);
    }
}

/// A host that stands still for long must not send a request again which its server may have run and
/// forgotten: not when it is told that the RPC is unknown, nor when it is asked for bytes, nor what it
/// had been asked for before it stood still.
#[test]
fn a_request_is_not_sent_again_too_late() {
    type Ask = fn(&mut Hand, u64);
    let asks: [Ask; 2] = [
        |hand, id| hand.unknown(id).unwrap(),
        |hand, id| hand.resend(id, 0, 100, 7).unwrap(),
    ];
    for (asked_before, ask) in asks.into_iter().flat_map(|ask| [(false, ask), (true, ask)]) {
        for still in [500 * MS, 1_500 * MS, 10_000 * MS] {
            let mut hand = Hand::new();
            let (_, id, sent) = hand.request(5000);
            let id = id | 1;
            assert!(kinds(&sent).contains(&"DATA"));
            // It asks for news, so that it may be told that there are none.
            let asked = hand.wait(10 * MS);
            assert!(asked.iter().any(|(_, sent)| sent.resend().is_some()));
            if asked_before {
                ask(&mut hand, id);
            }
            hand.now = hand.now.after(still);
            if !asked_before {
                ask(&mut hand, id);
            }
            let again = kinds(&hand.out()).contains(&"AGAIN");
            assert_eq!(
                again,
                still < 1_000 * MS,
                "{still} ns, asked before: {asked_before}"
            );
            let failed = matches!(
                hand.event(),
                Some(Event::Failed {
                    error: RpcError::WentSilent,
                    ..
                })
            );
            assert_eq!(failed, !again && !asked_before);
        }
    }
}

/// An acknowledgement ends an answer and nothing else: one that comes before is stale, and the request goes on.
#[test]
fn an_acknowledgement_before_the_answer_ends_nothing() {
    let len = 2 * PAYLOAD;
    let mut hand = Hand::new();
    let early = |hand: &mut Hand, so_far: u64| {
        hand.ack(4).unwrap();
        assert_eq!(hand.node.stats().acks_stale, so_far);
        assert_eq!(hand.node.stats().acknowledged, 0);
        assert_eq!(hand.node.live_rpcs(), 1);
    };
    hand.data(4, len, len, 0..PAYLOAD).unwrap();
    early(&mut hand, 1);
    hand.data(4, len, len, PAYLOAD..len).unwrap();
    early(&mut hand, 2);
    let Some(Event::Request { rpc, .. }) = hand.event() else {
        panic!()
    };
    early(&mut hand, 3);
    assert!(hand.event().is_none());
    assert_eq!(kinds(&hand.respond(rpc, 10)), ["DATA"]);
    hand.ack(4).unwrap();
    assert!(matches!(hand.event(), Some(Event::Released { .. })));
    assert_eq!(hand.node.stats().acknowledged, 1);
    assert_eq!(hand.node.live_rpcs(), 0);
}
