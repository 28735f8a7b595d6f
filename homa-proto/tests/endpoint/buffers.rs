//! Memory for incoming messages: what happens when there is none.

use homa_proto::wire::Repr;
use homa_proto::{
    Config, DropReason, Endpoint, Event, FixedBuffer, FixedBuffers, FixedStorage, HeapBuffers,
    Instant, Limits, RequestOptions, RpcError, Storage,
};

use crate::hand::{Hand, MS, Sent, kinds, peer};
use crate::link::{Faults, Net, PORT, Seen, addr, bytes_of, config, limits, node};

const PAYLOAD: u32 = 1416;

fn hand_with(memory: usize) -> Hand {
    let mut hand = Hand::new();
    hand.node = node(config(), limits(), 7, memory);
    hand.acquainted()
}

/// The memory is taken by large messages; small ones wait; one comes free: served in rank order,
/// and newcomers of a lower rank do not get in before those who wait.
#[test]
fn waiters_are_served_in_rank_order() {
    // Room for one large message.
    let mut hand = hand_with(1 << 20);
    hand.data(4, 1_000_000, 10_000, 0..PAYLOAD).unwrap();
    // These wait: 3 packets each or so, of different lengths.
    for (n, len) in [60_000u32, 40_000, 90_000, 50_000].into_iter().enumerate() {
        hand.from = peer(2 + n as u8);
        assert_eq!(
            hand.data(10, len, 10_000, 0..PAYLOAD),
            Err(DropReason::NoBuffer)
        );
    }
    assert_eq!(hand.node.stats().buffer_waits, 4);
    // No grant to them, no RESEND.
    assert!(hand.out().iter().all(|s| s.to == peer(1)));
    // The large one ends.
    hand.from = peer(1);
    hand.unknown(4).unwrap();
    let out = hand.out();
    // All fit now: asked for in the order of their ranks.
    let asked: Vec<_> = out
        .iter()
        .filter(|s| s.resend().is_some())
        .map(|s| s.to)
        .collect();
    assert_eq!(asked, [peer(3), peer(5), peer(2), peer(4)]);
    assert_eq!(hand.node.stats().resends_for_buffer, 4);
}

#[test]
fn newcomers_do_not_starve_waiters() {
    // Room for two buffers of the size class of 40,000 bytes.
    let mut hand = hand_with(2 * 40_960);
    for n in 0..2 {
        hand.from = peer(n);
        hand.data(4, 40_000, 10_000, 0..PAYLOAD).unwrap();
    }
    hand.from = peer(2);
    assert_eq!(
        hand.data(4, 40_500, 10_000, 0..PAYLOAD),
        Err(DropReason::NoBuffer)
    );
    hand.out();
    // One buffer comes free and newcomers of a higher length arrive in the same moment.
    hand.from = peer(0);
    hand.unknown(4).unwrap();
    hand.from = peer(3);
    assert_eq!(
        hand.data(4, 40_600, 10_000, 0..PAYLOAD),
        Err(DropReason::NoBuffer)
    );
    let out = hand.out();
    let asked: Vec<_> = out
        .iter()
        .filter(|s| s.resend().is_some())
        .map(|s| s.to)
        .collect();
    assert_eq!(asked, [peer(2)]);
    // A shorter newcomer, which ranks before all who wait, is next.
    hand.from = peer(4);
    assert_eq!(
        hand.data(4, 40_000, 10_000, 0..PAYLOAD),
        Err(DropReason::NoBuffer)
    );
    hand.from = peer(1);
    hand.unknown(4).unwrap();
    let asked: Vec<_> = hand
        .out()
        .iter()
        .filter(|s| s.resend().is_some())
        .map(|s| s.to)
        .collect();
    assert_eq!(asked, [peer(4)]);
}

/// A buffer that the application gives back serves who waits, at once.
#[test]
fn recycling_serves_waiters() {
    let mut hand = hand_with(16_384);
    hand.data(4, 16_000, 16_000, 0..PAYLOAD).unwrap();
    for at in 1..12 {
        let _ = hand.data(
            4,
            16_000,
            16_000,
            at * PAYLOAD..16_000.min((at + 1) * PAYLOAD),
        );
    }
    let Some(Event::Request { message, .. }) = hand.event() else {
        panic!()
    };
    assert!(message[..] == bytes_of(4, 16_000)[..]);
    hand.from = peer(2);
    // Two packets, none of which can be kept.
    assert_eq!(
        hand.data(4, 2_000, 2_000, 0..PAYLOAD),
        Err(DropReason::NoBuffer)
    );
    assert_eq!(
        hand.data(4, 2_000, 2_000, PAYLOAD..2_000),
        Err(DropReason::NoBuffer)
    );
    hand.out();
    hand.node.recycle(hand.now, message);
    let out = hand.out();
    assert_eq!(
        out.iter().filter_map(Sent::resend).collect::<Vec<_>>(),
        [(0, 2_000)]
    );
    hand.data(4, 2_000, 2_000, 0..PAYLOAD).unwrap();
    hand.data(4, 2_000, 2_000, PAYLOAD..2_000).unwrap();
    assert!(matches!(hand.event(), Some(Event::Request { .. })));
}

/// One that is dropped instead of given back serves them too, when output is next polled.
#[test]
fn a_dropped_buffer_serves_waiters() {
    let mut hand = hand_with(4_096);
    hand.data(4, 1_400, 1_400, 0..1_400).unwrap();
    hand.data(6, 1_400, 1_400, 0..1_400).unwrap();
    let Some(Event::Request { message: first, .. }) = hand.event() else {
        panic!()
    };
    let Some(Event::Request {
        message: second, ..
    }) = hand.event()
    else {
        panic!()
    };
    assert_eq!(
        hand.data(8, 2_000, 2_000, 0..PAYLOAD),
        Err(DropReason::NoBuffer)
    );
    hand.out();
    drop((first, second));
    assert_eq!(
        hand.out()
            .iter()
            .filter_map(Sent::resend)
            .collect::<Vec<_>>(),
        [(0, 2_000)]
    );
}

/// A message that no buffer can ever hold is refused at once, with a reason.
#[test]
fn larger_than_the_whole_pool() {
    let mut hand = hand_with(100_000);
    assert_eq!(
        hand.data(4, 100_001, 10_000, 0..PAYLOAD),
        Err(DropReason::TooLongForBuffers)
    );
    assert_eq!((hand.node.live_rpcs(), hand.node.total_incoming()), (0, 0));
    assert_eq!(hand.node.stats().dropped_too_long_for_buffers, 1);
    // A response: the request fails, and says why.
    let (rpc, id, _) = hand.request(10);
    assert_eq!(
        hand.data(id, 100_001, 10_000, 0..PAYLOAD),
        Err(DropReason::TooLongForBuffers)
    );
    match hand.event() {
        Some(Event::Failed {
            rpc: failed,
            error: RpcError::TooLongForBuffers,
            ..
        }) => assert_eq!(failed, rpc),
        other => panic!("{other:?}"),
    }
    assert_eq!(hand.node.live_rpcs(), 0);
    hand.data(6, 100_000, 10_000, 0..PAYLOAD).unwrap();
}

/// While one message waits for a buffer and its sender has gone, nothing is lost for others, and
/// when it gets one its sender's silence counts again.
#[test]
fn a_waiter_whose_sender_vanished() {
    let mut hand = hand_with(50_000);
    hand.data(4, 45_000, 10_000, 0..PAYLOAD).unwrap();
    hand.from = peer(2);
    let _ = hand.data(4, 45_000, 10_000, 0..PAYLOAD);
    hand.from = peer(1);
    hand.wait(5_000 * MS);
    assert!(hand.event().is_none());
    assert_eq!(hand.node.live_rpcs(), 0, "both senders vanished");
    assert_eq!(hand.node.buffers().bytes_out(), 0);
    assert_eq!(hand.node.poll_timeout(), None);
}

/// End to end with far too little memory, and losses: everything ends well.
#[test]
fn short_of_memory() {
    for seed in 0..6 {
        let nodes = (0..3)
            .map(|i| node(config(), limits(), seed * 8 + i, 300_000))
            .collect();
        let mut net = Net::new(nodes, seed as u64);
        net.check_every = 32;
        net.faults = Faults {
            loss: 10,
            ..Faults::default()
        };
        for cookie in 0..24u64 {
            let len = [200_000, 3_000, 120_000, 50, 60_000, 1_400][cookie as usize % 6];
            let from = 1 + cookie as usize % 2;
            net.request(from, 0, bytes_of(cookie, len), cookie).unwrap();
        }
        let seen = net.echo_until_quiet(30_000_000_000);
        assert_eq!(seen.len(), 24);
        for ((_, cookie), seen) in seen {
            match seen {
                Seen::Response { bytes, .. } => assert!(bytes == bytes_of(cookie, bytes.len())),
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!(net.nodes[0].stats().buffer_waits > 0);
        net.assert_idle();
        assert_eq!(net.nodes[0].buffers().bytes_out(), 0);
    }
}

/// An application that answers and never looks at its Released events, or one that never polls at
/// all, costs slots and nothing more; what it does not poll is there when it does.
#[test]
fn an_application_that_does_not_poll() {
    let limits = Limits {
        rpcs: 16,
        ..limits()
    };
    let mut hand = Hand::with(config(), limits);
    for n in 0..1000u64 {
        let result = hand.data(4 + 2 * n, 10, 10, 0..10);
        assert_eq!(
            result,
            if n < 16 {
                Ok(())
            } else {
                Err(DropReason::RpcsFull)
            }
        );
        hand.out();
    }
    assert_eq!(hand.node.live_rpcs(), 16);
    let mut count = 0;
    while hand.event().is_some() {
        count += 1;
    }
    assert_eq!(count, 16);
}

/// A million RPCs leave the memory level: nothing grows with the number that ever were.
#[test]
fn memory_stays_level() {
    let mut hand = Hand::with(
        config(),
        Limits {
            rpcs: 8,
            peers: 2,
            ended: 16,
        },
    );
    let mut buffer = vec![0; 65_536];
    let mut most = 0;
    for n in 0..30_000u64 {
        let id = 4 + 2 * n;
        let header = homa_proto::wire::DataHeader {
            common: hand.common(id),
            message_len: 10,
            incoming: 10,
            ack: (n > 0).then_some(homa_proto::wire::AckEntry {
                client_id: id - 2,
                server_port: PORT,
            }),
            cutoff_version: 0,
            retransmit: false,
            flags: 0,
            offset: 0,
        };
        let mut bytes = [0; 66];
        Repr::Data {
            header,
            data: &[1; 10],
        }
        .emit(&mut bytes)
        .unwrap();
        hand.node
            .handle_packet(hand.now, peer(1), None, &bytes)
            .unwrap();
        while let Some(event) = hand.node.poll_event() {
            if let Event::Request { rpc, message, .. } = event {
                hand.node
                    .send_response(hand.now, rpc, message.into_vec())
                    .unwrap();
            }
        }
        while hand.node.poll_transmit(hand.now, &mut buffer).is_some() {}
        hand.now = hand.now.after(1_000);
        most = most.max(hand.node.buffers().bytes_out() + hand.node.buffers().bytes_kept());
        assert!(hand.node.live_rpcs() <= 2);
    }
    assert!(most <= 4_096, "{most}");
    assert_eq!(hand.node.stats().acknowledged, 29_999);
}

type Fixed<'a> = Endpoint<'a, &'a [u8], FixedBuffers<'a, 2>>;

fn pump<'a>(
    now: &mut Instant,
    nodes: &mut [Fixed<'a>; 2],
    wait: &mut impl FnMut(&mut Fixed<'a>, usize, Instant),
) {
    let mut buffer = [0; 1500];
    loop {
        let mut quiet = true;
        for at in 0..2 {
            while let Some(sent) = nodes[at].poll_transmit(*now, &mut buffer) {
                quiet = false;
                let segment = sent.segment_size.unwrap_or(sent.len);
                for packet in buffer[..sent.len].chunks(segment) {
                    let _ = nodes[1 - at].handle_packet(*now, addr(at), None, packet);
                }
            }
        }
        for (at, node) in nodes.iter_mut().enumerate() {
            wait(node, at, *now);
            node.check_invariants().unwrap();
        }
        if quiet {
            let Some(next) = nodes
                .iter_mut()
                .filter_map(Endpoint::poll_timeout)
                .map(|(at, _)| at)
                .min()
            else {
                return;
            };
            *now = (*now).max(next);
            nodes[0].handle_timeout(*now);
            nodes[1].handle_timeout(*now);
        }
    }
}

/// Everything in the caller's memory: tables and buffers of fixed size, no heap in the core.
#[test]
fn fixed_storage_end_to_end() {
    let mut tables = [
        FixedStorage::<&[u8], FixedBuffer<'_>, 8, 2, 16>::new(),
        FixedStorage::new(),
    ];
    let (mut small, mut large) = (
        [[0; 4 * 512], [0; 4 * 512]],
        [vec![0; 100_000], vec![0; 100_000]],
    );
    let mut slots = [[const { None }; 5], [const { None }; 5]];
    let messages: Vec<Vec<u8>> = [100, 90_000, 500, 1, 100_000, 40_000]
        .map(|len| bytes_of(len, len as usize))
        .into();
    {
        let [t0, t1] = &mut tables;
        let [s0, s1] = &mut small;
        let [l0, l1] = &mut large;
        let [f0, f1] = &mut slots;
        let source0 = FixedBuffers::new([(&mut s0[..], 512), (&mut l0[..], 100_000)], f0).unwrap();
        let source1 = FixedBuffers::new([(&mut s1[..], 512), (&mut l1[..], 100_000)], f1).unwrap();
        let mut nodes: [Fixed<'_>; 2] = [
            Endpoint::new(config(), 1, t0.storage(), source0).unwrap(),
            Endpoint::new(config(), 2, t1.storage(), source1).unwrap(),
        ];
        nodes
            .iter_mut()
            .for_each(|node| node.open_port(PORT).unwrap());
        let mut now = Instant::from_nanos(MS);
        for (cookie, message) in messages.iter().enumerate() {
            let options = RequestOptions {
                cookie: cookie as u64,
                ..RequestOptions::default()
            };
            nodes[0]
                .send_request(now, addr(1).into(), message, options)
                .unwrap();
        }
        let mut answered = 0;
        pump(&mut now, &mut nodes, &mut |node, _, now| {
            while let Some(event) = node.poll_event() {
                match event {
                    Event::Request { rpc, message, .. } => {
                        let same = messages
                            .iter()
                            .find(|m| m[..] == message[..])
                            .expect("intact");
                        node.recycle(now, message);
                        node.send_response(now, rpc, same).unwrap();
                    }
                    Event::Response {
                        cookie,
                        message,
                        request,
                        ..
                    } => {
                        assert!(
                            message[..] == messages[cookie as usize][..]
                                && request == messages[cookie as usize]
                        );
                        node.recycle(now, message);
                        answered += 1;
                    }
                    Event::Released {
                        outcome: Ok(()), ..
                    } => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        assert_eq!(answered, messages.len());
        assert!(
            nodes[1].stats().buffer_waits > 0,
            "one large chunk for three large messages"
        );
        assert_eq!(nodes[0].live_rpcs() + nodes[1].live_rpcs(), 0);
    }
}

/// The receive buffer of the carrier can change: grants follow it down and up.
#[test]
fn the_receive_buffer_limits_grants() {
    let config = Config {
        unscheduled_bytes: 10_000,
        max_incoming: 100_000,
        fifo_permille: 0,
        ..config()
    };
    let mut hand = Hand::with(config, limits());
    hand.node.set_receive_buffer(20_000);
    hand.data(4, 1_000_000, 1_000, 0..1_000).unwrap();
    assert_eq!(
        hand.out()
            .iter()
            .filter_map(Sent::grant)
            .collect::<Vec<_>>(),
        [11_000]
    );
    hand.node.set_receive_buffer(60_000);
    assert_eq!(
        hand.out()
            .iter()
            .filter_map(Sent::grant)
            .collect::<Vec<_>>(),
        [31_000]
    );
    hand.node.set_receive_buffer(0);
    assert_eq!(
        hand.out()
            .iter()
            .filter_map(Sent::grant)
            .collect::<Vec<_>>(),
        [51_000]
    );
    hand.node.set_receive_buffer(1_000);
    assert!(hand.out().is_empty());
    assert!(kinds(&hand.out()).is_empty());
}

/// Settings under which nothing could ever be granted in useful pieces are refused.
#[test]
fn impossible_settings_are_refused() {
    let make = |config: Config| {
        Endpoint::<Vec<u8>, _>::new(
            config,
            1,
            Storage::boxed(limits()),
            HeapBuffers::new(1 << 20),
        )
        .map(|_| ())
    };
    type Change = fn(&mut Config);
    let bad: [(&str, Change); 13] = [
        ("mtu", |c| c.mtu = 0),
        ("mtu", |c| c.mtu = 100),
        ("max_message", |c| c.max_message = 0),
        ("max_message", |c| c.max_message = u32::MAX),
        ("levels", |c| c.levels = 0),
        ("levels", |c| c.levels = 9),
        ("overcommit", |c| c.max_overcommit = 33),
        ("fifo", |c| c.fifo_permille = 1001),
        ("timeout", |c| c.timeout_ns = 0),
        ("floor", |c| c.resend_floor_ns = 0),
        ("cutoffs", |c| c.fixed_cutoffs = Some([0; 8])),
        ("receive_buffer", |c| c.receive_buffer = 100),
        ("max_incoming", |c| c.max_incoming = 1),
    ];
    for (name, change) in bad {
        let mut config = Config::default();
        change(&mut config);
        assert!(make(config).is_err(), "{name}");
    }
    // Zeros that mean "derive", and extremes that are merely odd: it works.
    let odd: [Change; 8] = [
        |c| c.max_overcommit = 0,
        |c| c.max_batch = 0,
        |c| c.fifo_grant_increment = 0,
        |c| c.resend_ceiling_ns = 0,
        |c| c.need_ack_ns = 0,
        |c| c.ack_delay_ns = 0,
        |c| c.max_incoming = u64::MAX,
        |c| {
            c.link_bps = u64::MAX;
            c.rtt_ns = u64::MAX;
            c.window = u32::MAX;
            c.unscheduled_bytes = u32::MAX;
            c.timeout_ns = u64::MAX;
            c.nic_backlog_ns = u64::MAX;
        },
    ];
    for (n, change) in odd.into_iter().enumerate() {
        let mut config = Config {
            max_message: 4_000_000,
            ..Config::default()
        };
        change(&mut config);
        let nodes = (0..2)
            .map(|i| node(config.clone(), limits(), i, 16 << 20))
            .collect();
        let mut net = Net::new(nodes, 1);
        net.check_every = 16;
        for cookie in 0..3 {
            net.request(0, 1, bytes_of(cookie, 150_000), cookie)
                .unwrap();
        }
        let seen = net.echo_until_quiet(5_000_000_000);
        let good = seen
            .values()
            .filter(|seen| matches!(seen, Seen::Response { .. }))
            .count();
        assert_eq!(good, 3, "setting {n}");
    }
}
