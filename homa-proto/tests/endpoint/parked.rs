//! Requests wait while too much is on its way to a server that has not been heard of.

use homa_proto::{Cancelled, Config, Limits};

use crate::link::{Net, Seen, bytes_of, config, node};

fn net(max_unheard: u64) -> Net {
    let config = Config {
        max_unheard,
        unscheduled_bytes: 10_000,
        ..config()
    };
    let limits = Limits {
        rpcs: 512,
        peers: 8,
        ended: 2048,
    };
    let nodes = (0..2)
        .map(|i| node(config.clone(), limits, i, 64 << 20))
        .collect();
    Net::new(nodes, 1)
}

/// A server that stalls gets no more than the limit, however many requests there are; when it
/// comes back, all of them go and end, and nothing is lost on the way.
#[test]
fn a_stalled_server_is_not_buried() {
    for limit in [10_000, 100_000, 1_000_000] {
        let mut net = net(limit);
        net.cut.push((0, 1));
        for cookie in 0..300u64 {
            let len = 1 + (cookie * 137) as usize % 30_000;
            net.request(0, 1, bytes_of(cookie, len), cookie).unwrap();
        }
        let until = net.now.after(500_000);
        while net.step(until) {}
        let stats = *net.nodes[0].stats();
        // At most one request goes when the limit is less than what it sends unasked.
        assert!(stats.message_bytes_sent <= limit.max(10_000), "{stats:?}");
        assert!(stats.requests_parked > 0);
        net.cut.clear();
        let seen = net.echo_until_quiet(5_000_000_000);
        assert_eq!(seen.len(), 300);
        for ((_, cookie), seen) in &seen {
            match seen {
                Seen::Response { bytes, .. } => assert!(*bytes == bytes_of(*cookie, bytes.len())),
                other => panic!("{other:?}"),
            }
        }
        net.assert_idle();
    }
}

/// Parked requests can be cancelled, and fail with a server that never answers.
#[test]
fn parked_requests_end_like_others() {
    let mut net = net(10_000);
    net.cut.push((0, 1));
    let mut ids = Vec::new();
    for cookie in 0..50u64 {
        ids.push(net.request(0, 1, vec![1; 9_000], cookie).unwrap());
    }
    let now = net.now;
    for id in ids.iter().skip(1).step_by(2) {
        let cancelled = net.nodes[0].cancel(now, *id);
        assert!(matches!(cancelled, Some(Cancelled::Request(_))));
        net.check(0);
    }
    let seen = net.echo_until_quiet(60_000_000_000);
    assert_eq!(seen.len(), 25);
    assert!(
        seen.values()
            .all(|seen| matches!(seen, Seen::Failed { .. }))
    );
    net.assert_idle();
}

/// A server that is at work on many requests, and so has nothing to say of its own accord, is no
/// reason to wait: it is asked, and all requests are with it after as many round trips as there
/// are limits to fill. None of them is given up, however long the work takes.
#[test]
fn a_busy_server_is_asked_and_gets_everything() {
    let mut net = net(10_000);
    net.checked = false;
    for cookie in 0..500u64 {
        net.request(0, 1, vec![7; 100], cookie).unwrap();
    }
    let start = net.now;
    let until = start.after(2_000_000);
    while net.step(until) {}
    let stats = *net.nodes[0].stats();
    assert_eq!(stats.message_bytes_sent, 50_000, "{stats:?}");
    let mut requests = Vec::new();
    let until = start.after(4_000_000_000);
    loop {
        for seen in net.events(1) {
            if let Seen::Request { rpc, .. } = seen {
                requests.push(rpc);
            }
        }
        if !net.step(until) {
            break;
        }
    }
    assert_eq!(requests.len(), 500);
    for rpc in requests {
        assert!(net.respond(1, rpc, vec![1]));
    }
    let seen = net.echo_until_quiet(1_000_000_000);
    let answered = seen
        .values()
        .filter(|seen| matches!(seen, Seen::Response { .. }));
    assert_eq!(answered.count(), 500);
}

/// Transmitting ends no RPC: whoever polls events, then transmits, and then sleeps misses none.
#[test]
fn no_event_comes_from_transmitting() {
    let mut net = net(10_000);
    net.cut.push((0, 1));
    for cookie in 0..50u64 {
        net.request(0, 1, vec![1; 9_000], cookie).unwrap();
    }
    let (node, mut now) = (&mut net.nodes[0], net.now);
    let (mut buffer, mut failed) = (vec![0; 65_536], 0);
    while failed < 50 {
        let (at, _) = node.poll_timeout().expect("some have not failed yet");
        now = now.max(at);
        node.handle_timeout(now);
        while node.poll_event().is_some() {
            failed += 1;
        }
        while node.poll_transmit(now, &mut buffer).is_some() {}
        assert!(node.poll_event().is_none(), "after {failed} of 50");
    }
}

/// The request that news was to come of is cancelled unheard, while an older one is at work for long: those that are
/// parked do not wait for that one to end.
#[test]
fn parked_requests_outlive_the_one_they_wait_for() {
    let mut net = net(10_000);
    net.checked = false;
    let long = net.request(0, 1, vec![1; 100], 0).unwrap();
    let until = net.now.after(2_000_000);
    while net.step(until) {}
    assert_eq!(net.events(1).len(), 1);
    net.cut.push((0, 1));
    let unheard = net.request(0, 1, vec![2; 9_000], 1).unwrap();
    let parked = net.request(0, 1, vec![3; 9_000], 2).unwrap();
    let until = net.now.after(100_000);
    while net.step(until) {}
    let now = net.now;
    assert!(net.nodes[0].cancel(now, unheard).is_some());
    net.check(0);
    net.cut.clear();
    let until = net.now.after(2_000_000_000);
    let mut came = false;
    while net.step(until) {
        for seen in net.events(1) {
            came |= matches!(seen, Seen::Request { .. });
        }
    }
    assert!(came, "it is parked still");
    for rpc in [long, parked] {
        let now = net.now;
        assert!(net.nodes[0].cancel(now, rpc).is_some());
    }
}
