//! RPCs end to end over the in-memory link.
#![cfg(feature = "alloc")]

use std::collections::HashMap;

use homa_proto::Instant;

use crate::link::{Faults, Net, Random, Seen, bytes_of, config, limits, node};

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
    let mut outcomes = HashMap::new();
    let mut ran = HashMap::new();
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

/// Links are cut and heal, packets are lost and come twice: at most once all the time, every RPC
/// ends in one event, and once all is well again those that begin end well, soon.
#[test]
fn cuts_that_heal() {
    for seed in 0..12 {
        let mut net = Net::new(
            (0..3)
                .map(|i| node(config(), limits(), u128::from(seed) * 16 + i, 64 << 20))
                .collect(),
            seed,
        );
        net.check_every = 64;
        net.faults = Faults {
            loss: 20,
            duplicate: 50,
            reorder: 50,
            corrupt: 0,
            late_ns: 300_000_000,
        };
        let mut ran = HashMap::new();
        let mut outcomes = HashMap::new();
        let mut started = 0;
        let mut healed: Option<Instant> = None;
        let begin = net.now;
        loop {
            let age = net.now.nanos_since(begin);
            if age < 4_000_000_000 {
                // Every 200 ms the network is cut elsewhere, now and then nowhere.
                let turn = Random::new(seed * 1_000 + age / 200_000_000).next();
                let (a, b) = ((turn % 3) as usize, (turn / 3 % 3) as usize);
                net.cut = if a == b { vec![] } else { vec![(a, b)] };
            } else if healed.is_none() {
                net.cut = vec![];
                net.faults = Faults::default();
                healed = Some(net.now);
            }
            let is_healed = healed.is_some();
            if started < 60 || is_healed && started < 90 {
                let from = net.random.below(3) as usize;
                let to = (from + 1 + net.random.below(2) as usize) % 3;
                let len = 8 + net.random.below(60_000) as usize;
                let mut bytes = bytes_of(started, len);
                bytes[..8].copy_from_slice(&started.to_le_bytes());
                if net.request(from, to, bytes, started).is_ok() {
                    if is_healed {
                        outcomes.insert(started, None);
                    }
                    started += 1;
                }
            }
            for at in 0..3 {
                for seen in net.events(at) {
                    match seen {
                        Seen::Request { rpc, bytes, .. } => {
                            let mut tag = [0; 8];
                            tag.copy_from_slice(&bytes[..8]);
                            let cookie = u64::from_le_bytes(tag);
                            assert!(bytes[8..] == bytes_of(cookie, bytes.len())[8..]);
                            assert!(
                                ran.insert(cookie, ()).is_none(),
                                "seed {seed}: {cookie} ran twice"
                            );
                            // The client may be gone by now.
                            net.respond(
                                at,
                                rpc,
                                bytes_of(!cookie, 1 + (cookie * 977 % 50_000) as usize),
                            );
                        }
                        Seen::Response { cookie, bytes, .. } => {
                            assert!(bytes == bytes_of(!cookie, bytes.len()));
                            let old = outcomes.insert(cookie, Some(true));
                            assert!(old.flatten().is_none(), "seed {seed}: two outcomes");
                        }
                        Seen::Failed { cookie, .. } => {
                            let old = outcomes.insert(cookie, Some(false));
                            assert!(
                                old.is_none(),
                                "seed {seed}: {cookie} fails in a sound network, or twice"
                            );
                        }
                        Seen::Released { .. } => {}
                    }
                }
            }
            let next = match healed {
                Some(at) if started == 90 => at.after(6_000_000_000),
                _ => net.now.after(10_000_000),
            };
            if !net.step(next) && started == 90 {
                break;
            }
        }
        assert_eq!(outcomes.len(), 90, "seed {seed}");
        assert!(outcomes.values().all(Option::is_some), "seed {seed}");
        net.assert_idle();
    }
}

/// Headers with bits flipped that a checksum missed: no panic, the books right, one outcome for
/// each RPC, and nothing left at the end.
#[test]
fn corruption() {
    for seed in 0..25 {
        let mut net = Net::pair(seed);
        net.check_every = 16;
        net.faults = Faults {
            loss: 10,
            duplicate: 20,
            corrupt: 60,
            late_ns: 1_000_000,
            ..Faults::default()
        };
        let mut outcomes = HashMap::new();
        for cookie in 0..30u64 {
            let len = 1 + net.random.below(60_000) as usize;
            net.request(
                cookie as usize % 2,
                1 - cookie as usize % 2,
                bytes_of(cookie, len),
                cookie,
            )
            .unwrap();
        }
        let mut begun = net.now;
        loop {
            for at in 0..2 {
                for seen in net.events(at) {
                    match seen {
                        Seen::Request { rpc, bytes, .. } => {
                            net.respond(at, rpc, bytes);
                        }
                        Seen::Response { cookie, .. } | Seen::Failed { cookie, .. } => {
                            assert!(outcomes.insert(cookie, ()).is_none(), "seed {seed}");
                            begun = net.now;
                        }
                        Seen::Released { .. } => {}
                    }
                }
            }
            if outcomes.len() == 30 {
                net.faults = Faults::default();
            }
            if !net.step(begun.after(30_000_000_000)) {
                break;
            }
        }
        assert_eq!(outcomes.len(), 30, "seed {seed}");
        net.assert_idle();
    }
}
