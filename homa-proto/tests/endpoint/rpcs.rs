//! RPCs end to end over the in-memory link.
#![cfg(feature = "alloc")]

use crate::link::{Faults, Net, Seen, bytes_of};

/// Each size from 1 byte to 3 packets and more, byte by byte.
#[test]
fn every_size_around_packet_boundaries() {
    let mut net = Net::pair(1);
    net.check_every = 16;
    for len in 1..=3 * 1416 + 2 {
        let bytes = bytes_of(len as u64, len);
        net.request(0, 1, bytes.clone(), len as u64).unwrap();
        let seen = net.echo_until_quiet(1_000_000_000);
        match &seen[&(0, len as u64)] {
            Seen::Response { bytes: got, .. } => assert_eq!(*got, bytes, "{len} bytes"),
            other => panic!("{len} bytes: {other:?}"),
        }
    }
    net.assert_idle();
    assert_eq!(net.nodes[0].stats().resends_sent, 0);
    assert_eq!(net.nodes[1].stats().resends_sent, 0);
}

#[test]
fn large_messages_both_ways() {
    let mut net = Net::pair(2);
    net.check_every = 64;
    for (i, len) in [50_000, 1_000_000, 4_000_000, 250_001]
        .into_iter()
        .enumerate()
    {
        for from in 0..2 {
            let bytes = bytes_of(i as u64, len);
            net.request(from, 1 - from, bytes, i as u64).unwrap();
        }
    }
    let seen = net.echo_until_quiet(10_000_000_000);
    assert_eq!(seen.len(), 8);
    for ((_, cookie), seen) in &seen {
        match seen {
            Seen::Response { bytes, .. } => assert_eq!(*bytes, bytes_of(*cookie, bytes.len())),
            other => panic!("{other:?}"),
        }
    }
    net.assert_idle();
    for node in &net.nodes {
        // A sender that is busy with shorter messages may be asked; nothing is sent twice.
        let stats = node.stats();
        assert!(stats.resends_sent * 1000 <= net.packets, "{stats:?}");
        assert_eq!(stats.retransmits_sent, 0, "{stats:?}");
    }
}

fn faulty_run(seed: u64, faults: Faults) {
    let mut net = Net::pair(seed);
    net.faults = faults;
    net.check_every = 64;
    let count = 40;
    let mut started = 0;
    let mut outcomes = std::collections::HashMap::new();
    let mut ran = std::collections::HashMap::new();
    let end = net.now.after(20_000_000_000);
    loop {
        if started < count && net.random.permille(100) {
            let from = net.random.below(2) as usize;
            let len = match net.random.below(4) {
                0 => 1 + net.random.below(100),
                1 => 1 + net.random.below(1500),
                2 => 1 + net.random.below(60_000),
                _ => 1 + net.random.below(500_000),
            } as usize;
            let cookie = started;
            let mut bytes = bytes_of(cookie, len.max(8));
            bytes[..8].copy_from_slice(&cookie.to_le_bytes());
            net.request(from, 1 - from, bytes, cookie).unwrap();
            started += 1;
        }
        for at in 0..2 {
            for seen in net.events(at) {
                match seen {
                    Seen::Request { rpc, bytes, .. } => {
                        let mut tag = [0; 8];
                        tag.copy_from_slice(&bytes[..8]);
                        let cookie = u64::from_le_bytes(tag);
                        let mut want = bytes_of(cookie, bytes.len());
                        want[..8].copy_from_slice(&tag);
                        assert!(bytes == want, "seed {seed}: request {cookie} changed");
                        *ran.entry(cookie).or_insert(0) += 1;
                        let len = 1 + net.random.below(100_000) as usize;
                        net.respond(at, rpc, bytes_of(!cookie, len));
                    }
                    Seen::Response { cookie, bytes, .. } => {
                        assert!(
                            bytes == bytes_of(!cookie, bytes.len()),
                            "seed {seed}: response {cookie} changed"
                        );
                        assert_eq!(ran.get(&cookie), Some(&1));
                        assert!(outcomes.insert(cookie, true).is_none());
                    }
                    Seen::Failed { cookie, .. } => {
                        assert!(outcomes.insert(cookie, false).is_none());
                    }
                    Seen::Released { .. } => {}
                }
            }
        }
        let all = started == count;
        let horizon = if all { end } else { net.now.after(20_000) };
        if !net.step(horizon) && all {
            break;
        }
    }
    assert!(
        ran.values().all(|&times| times == 1),
        "seed {seed}: a request ran twice"
    );
    assert_eq!(
        outcomes.len() as u64,
        count,
        "seed {seed}: an RPC has no outcome"
    );
    assert!(
        outcomes.values().all(|&ok| ok),
        "seed {seed}: an RPC failed"
    );
    net.assert_idle();
}

#[test]
fn loss() {
    for seed in 0..15 {
        faulty_run(
            seed,
            Faults {
                loss: 50,
                ..Faults::default()
            },
        );
    }
}

#[test]
fn heavy_loss() {
    for seed in 0..10 {
        faulty_run(
            seed,
            Faults {
                loss: 250,
                ..Faults::default()
            },
        );
    }
}

#[test]
fn duplication_and_reordering() {
    for seed in 0..15 {
        faulty_run(
            seed,
            Faults {
                duplicate: 200,
                reorder: 200,
                late_ns: 5_000_000,
                ..Faults::default()
            },
        );
    }
}

#[test]
fn everything_at_once() {
    for seed in 0..30 {
        faulty_run(
            seed,
            Faults {
                loss: 30,
                duplicate: 100,
                reorder: 100,
                corrupt: 0,
                late_ns: 500_000_000,
            },
        );
    }
}
