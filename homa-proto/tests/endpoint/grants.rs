//! Who is granted how much: the receiver's policy, seen from outside.

use std::collections::BTreeMap;

use homa_proto::wire::Repr;
use homa_proto::{Config, DropReason, Event, Limits, RequestOptions};

use crate::hand::{Hand, MS, Sent, kinds, peer};
use crate::link::{Random, bytes_of, config, limits};

const PAYLOAD: u32 = 1416;

/// No share for the oldest: the rank alone decides.
fn by_rank() -> Config {
    Config {
        fifo_permille: 0,
        unscheduled_bytes: 10_000,
        max_incoming: 100_000,
        ..config()
    }
}

fn grants(sent: &[Sent]) -> Vec<(std::net::SocketAddr, u64, u32, u8)> {
    sent.iter()
        .filter_map(|s| match s.repr() {
            Repr::Grant {
                common,
                offset,
                priority,
                resend_all,
            } => {
                assert!(!resend_all);
                assert_eq!(s.priority, 7);
                Some((s.to, common.sender_id ^ 1, offset, priority))
            }
            _ => None,
        })
        .collect()
}

/// A message alone is granted up to received + window, window = max_incoming / 2.
#[test]
fn one_message_gets_its_window() {
    let mut hand = Hand::with(by_rank(), limits()).acquainted();
    hand.data(4, 1_000_000, 10_000, 0..1000).unwrap();
    assert_eq!(grants(&hand.out()), [(peer(1), 4, 51_000, 0)]);
    hand.data(4, 1_000_000, 10_000, 1000..2000).unwrap();
    assert_eq!(grants(&hand.out())[0].2, 52_000);
    // Several packets in one batch: one decision, one GRANT.
    for at in 2..7 {
        hand.data(4, 1_000_000, 10_000, at * 1000..(at + 1) * 1000)
            .unwrap();
    }
    let out = grants(&hand.out());
    assert_eq!((out.len(), out[0].2), (1, 57_000));
    assert!(hand.out().is_empty());
}

/// Grants strictly increase, the last is exactly the length, none comes after it; for lengths
/// around multiples of the packet and of the unscheduled bytes.
#[test]
fn the_last_grant_is_exact() {
    for packets in 1..60u32 {
        for len in [
            packets * PAYLOAD - 1,
            packets * PAYLOAD,
            packets * PAYLOAD + 1,
        ] {
            let mut hand = Hand::with(by_rank(), limits()).acquainted();
            let incoming = 10_000.min(len);
            let (mut at, mut granted) = (0, incoming);
            while at < len {
                let end = len.min(at + PAYLOAD).min(granted);
                assert!(end > at, "{len}: stalled at {at}, granted {granted}");
                hand.data(4, len, granted, at..end).unwrap();
                at = end;
                for (_, _, offset, _) in grants(&hand.out()) {
                    assert!(
                        offset > granted && offset <= len,
                        "{len}: {offset} after {granted}"
                    );
                    granted = offset;
                }
                assert!(hand.node.total_incoming() <= 100_000);
            }
            assert_eq!(granted, len);
            assert!(matches!(hand.event(), Some(Event::Request { .. })));
        }
    }
}

/// Fewest bytes not yet received first; older first on a tie; priorities by rank, the lowest
/// levels in use; one message per peer.
#[test]
fn rank_order_and_priorities() {
    let mut hand = Hand::with(by_rank(), limits()).acquainted();
    // Five peers; nothing but an announcement of each message, so that all wait at once.
    let lens = [500_000u32, 300_000, 500_000, 200_000, 400_000];
    for (n, len) in lens.iter().enumerate() {
        hand.from = peer(n as u8);
        hand.data(4, *len, 0, 0..0).unwrap();
    }
    let got = grants(&hand.out());
    // window = 100,000 / 6 to each, in the order of their priorities.
    let mut by_priority: Vec<_> = got.iter().map(|g| (std::cmp::Reverse(g.3), g.0)).collect();
    by_priority.sort();
    let order: Vec<_> = by_priority.into_iter().map(|(_, to)| to).collect();
    // With 4 scheduled levels and 5 active messages the last two share level 0.
    let mut best: Vec<_> = got.iter().map(|g| (g.3, g.0)).collect();
    best.sort();
    assert_eq!(order[..3], [peer(3), peer(1), peer(4)]);
    let levels: BTreeMap<_, _> = got.iter().map(|g| (g.0, g.3)).collect();
    assert_eq!(levels[&peer(3)], 3);
    assert_eq!(levels[&peer(1)], 2);
    assert_eq!(levels[&peer(4)], 1);
    assert_eq!((levels[&peer(0)], levels[&peer(2)]), (0, 0));
    assert!(got.iter().all(|g| g.2 == 100_000 / 6), "{got:?}");
}

/// Rank is by bytes not yet *received*: a message granted far ahead does not lose its place.
#[test]
fn rank_is_by_bytes_received() {
    let config = Config {
        max_overcommit: 1,
        ..by_rank()
    };
    let mut hand = Hand::with(config, limits()).acquainted();
    hand.data(4, 100_000, 0, 0..0).unwrap();
    let first = grants(&hand.out());
    assert_eq!(first[0].2, 50_000);
    // 90,000 left of another: fewer than the 100,000 not received, more than the 50,000 not
    // granted.
    hand.from = peer(2);
    hand.data(4, 90_000, 0, 0..0).unwrap();
    let second = grants(&hand.out());
    assert_eq!((second.len(), second[0].0), (1, peer(2)));
}

/// A newcomer takes an empty place at once; when none is empty, only a better one gets in.
#[test]
fn overcommitment() {
    let config = Config {
        max_overcommit: 3,
        window: 1000,
        ..by_rank()
    };
    let mut hand = Hand::with(config, limits()).acquainted();
    let tell = |hand: &mut Hand, n: u8, len: u32| {
        hand.from = peer(n);
        hand.data(4, len, 0, 0..0).unwrap();
        grants(&hand.out()).iter().map(|g| g.0).collect::<Vec<_>>()
    };
    assert_eq!(tell(&mut hand, 1, 500_000), [peer(1)]);
    assert_eq!(tell(&mut hand, 2, 600_000), [peer(2)]);
    assert_eq!(tell(&mut hand, 3, 700_000), [peer(3)]);
    assert!(tell(&mut hand, 4, 800_000).is_empty());
    assert_eq!(tell(&mut hand, 5, 100_000), [peer(5)]);
    // Now 1, 2 and 5 are active: what 3 sends brings it no further grant.
    hand.from = peer(3);
    hand.data(4, 700_000, 0, 0..1000).unwrap();
    assert!(grants(&hand.out()).is_empty());
    hand.from = peer(2);
    hand.data(4, 600_000, 0, 0..1000).unwrap();
    assert_eq!(grants(&hand.out())[0].2, 2000);
    // One ends: the best of those that wait has its place in the same event.
    hand.from = peer(1);
    hand.unknown(4).unwrap();
    let out = grants(&hand.out());
    assert_eq!((out.len(), out[0].0, out[0].2), (1, peer(3), 2000));
}

/// One message per peer while other peers wait; a second only in a place that would stay empty.
#[test]
fn one_message_per_peer() {
    let config = Config {
        max_overcommit: 3,
        window: 1000,
        ..by_rank()
    };
    let mut hand = Hand::with(config, limits()).acquainted();
    let tell = |hand: &mut Hand, n: u8, id: u64, len: u32| {
        hand.from = peer(n);
        hand.data(id, len, 0, 0..0).unwrap();
        grants(&hand.out())
            .iter()
            .map(|g| (g.0, g.1))
            .collect::<Vec<_>>()
    };
    // Alone, one peer fills all places.
    for id in [4, 6, 8] {
        assert_eq!(tell(&mut hand, 1, id, 100_000 * id as u32), [(peer(1), id)]);
    }
    assert!(tell(&mut hand, 1, 10, 2_000_000).is_empty());
    // Another peer takes a second message's place, however long its own is.
    assert_eq!(tell(&mut hand, 2, 4, 3_000_000), [(peer(2), 4)]);
    assert_eq!(tell(&mut hand, 3, 4, 3_000_000), [(peer(3), 4)]);
    // A fourth peer with a long message has to wait: nobody has two.
    assert!(tell(&mut hand, 4, 4, 3_500_000).is_empty());
    // A shorter one from the same peer takes its own peer's place.
    assert_eq!(tell(&mut hand, 1, 12, 50_000), [(peer(1), 12)]);
    hand.from = peer(1);
    hand.data(4, 400_000, 0, 0..1000).unwrap();
    assert!(grants(&hand.out()).is_empty());
}

/// Headroom used up: nobody is granted more. Bytes arrive: the best that waits is granted in the
/// same event, even if they were another's bytes.
#[test]
fn needy_messages_are_served_in_rank_order() {
    let config = Config {
        window: 60_000,
        ..by_rank()
    };
    let mut hand = Hand::with(config, limits()).acquainted();
    hand.from = peer(1);
    hand.data(4, 900_000, 0, 0..0).unwrap();
    assert_eq!(grants(&hand.out())[0].2, 60_000);
    hand.from = peer(2);
    hand.data(4, 800_000, 0, 0..0).unwrap();
    assert_eq!(grants(&hand.out())[0].2, 40_000);
    hand.from = peer(3);
    hand.data(4, 700_000, 0, 0..0).unwrap();
    assert!(grants(&hand.out()).is_empty());
    assert_eq!(hand.node.total_incoming(), 100_000);
    // 1,000 bytes of the worst arrive: the best gets exactly these.
    hand.from = peer(1);
    hand.data(4, 900_000, 60_000, 0..1000).unwrap();
    assert_eq!(grants(&hand.out()), [(peer(3), 4, 1000, 2)]);
    // The first one ends, with 59,000 bytes outstanding: the rest goes by rank.
    hand.unknown(4).unwrap();
    let out: BTreeMap<_, _> = grants(&hand.out()).iter().map(|g| (g.0, g.2)).collect();
    assert_eq!(out, BTreeMap::from([(peer(3), 60_000)]));
    assert_eq!(hand.node.total_incoming(), 100_000);
}

/// A message granted to its end whose sender stalls still counts, until it is here or ends. One
/// that is unscheduled as a whole counts too.
#[test]
fn granted_bytes_on_their_way_count() {
    let mut hand = Hand::with(
        Config {
            max_overcommit: 1,
            ..by_rank()
        },
        limits(),
    )
    .acquainted();
    hand.data(4, 30_000, 30_000, 0..1000).unwrap();
    hand.out();
    assert_eq!(hand.node.total_incoming(), 29_000);
    hand.from = peer(2);
    hand.data(4, 45_000, 0, 0..0).unwrap();
    assert_eq!(grants(&hand.out())[0].2, 45_000);
    assert_eq!(hand.node.total_incoming(), 74_000);
    // Fully granted: its place is free, what is left of the headroom is not its.
    hand.from = peer(3);
    hand.data(4, 900_000, 0, 0..0).unwrap();
    assert_eq!(grants(&hand.out())[0].2, 26_000);
    hand.from = peer(2);
    hand.unknown(4).unwrap();
    hand.out();
    assert_eq!(hand.node.total_incoming(), 29_000 + 50_000);
}

/// Whatever way an RPC ends, what it held is granted to others in the same event.
#[test]
fn every_end_hands_the_share_on() {
    let config = Config {
        max_overcommit: 1,
        max_incoming: 100_000,
        window: 100_000,
        ..by_rank()
    };
    for way in 0..5 {
        let mut hand = Hand::with(config.clone(), limits()).acquainted();
        // A request of our own, whose response holds all headroom.
        let options = RequestOptions {
            deadline: Some(hand.now.after(20 * MS)),
            ..RequestOptions::default()
        };
        hand.from = peer(1);
        let rpc = hand
            .node
            .send_request(hand.now, peer(1).into(), vec![1; 10], options)
            .unwrap();
        let id = hand.out()[0].repr().common().sender_id ^ 1;
        let len = 100_000;
        hand.data(id, len, 10_000, 0..PAYLOAD).unwrap();
        assert_eq!(grants(&hand.out())[0].2, len);
        hand.from = peer(2);
        hand.data(4, 500_000, 0, 0..0).unwrap();
        let first = grants(&hand.out());
        assert_eq!(first.len(), 1, "the rest of the headroom");
        assert_eq!(first[0].2, PAYLOAD);
        // Peer 2 goes on all the time, byte by byte, so that it is not silent.
        let mut byte = 0;
        let mut live_for = |hand: &mut Hand, ms: u64| {
            let mut all = Vec::new();
            for _ in 0..ms {
                all.extend(hand.wait(MS).into_iter().map(|(_, s)| s));
                hand.from = peer(2);
                hand.data(4, 500_000, PAYLOAD, byte..byte + 1).unwrap();
                byte += 1;
                all.append(&mut hand.out());
            }
            all
        };
        let next = match way {
            0 => {
                hand.node.cancel(hand.now, rpc).unwrap();
                hand.out()
            }
            // The deadline.
            1 => live_for(&mut hand, 21),
            // It is complete.
            2 => {
                hand.from = peer(1);
                for at in 1..71 {
                    let range = at * PAYLOAD..len.min((at + 1) * PAYLOAD);
                    hand.data(id, len, len, range).unwrap();
                }
                hand.out()
            }
            // It sits on its grants: silenced after two intervals.
            3 => live_for(&mut hand, 15),
            // The server knows nothing of it any more, whatever it is asked: the time-out.
            _ => live_for(&mut hand, 1_200),
        };
        let got = grants(&next);
        assert!(
            !got.is_empty() && got.iter().all(|g| g.0 == peer(2)),
            "way {way}: {got:?}"
        );
        let most = got.iter().map(|g| g.2).max().unwrap();
        assert!(most >= 90_000, "way {way}: {got:?}");
    }
}

/// A peer that sits on its grants gets no more until it sends; then it is granted at once.
#[test]
fn silent_peers() {
    let mut hand = Hand::with(by_rank(), limits()).acquainted();
    hand.data(4, 900_000, 0, 0..0).unwrap();
    assert_eq!(grants(&hand.out())[0].2, 50_000);
    let sent: Vec<_> = hand.wait(10 * MS).into_iter().map(|(_, s)| s).collect();
    assert!(sent.iter().any(|s| s.resend().is_some()));
    assert!(grants(&sent).is_empty());
    assert_eq!(hand.node.stats().peers_silenced, 1);
    assert_eq!(hand.node.total_incoming(), 0);
    // A new message of the silent peer shows that it lives.
    hand.data(6, 500_000, 0, 0..0).unwrap();
    let out = grants(&hand.out());
    assert!(out.iter().any(|g| g.1 == 6));
    assert!(hand.node.total_incoming() <= 100_000);
}

/// BUSY is no data: a peer that says BUSY and sends nothing is silent all the same, but its RPC
/// lives.
#[test]
fn busy_peers_do_not_hold_headroom() {
    let mut hand = Hand::with(by_rank(), limits()).acquainted();
    hand.data(4, 900_000, 0, 0..0).unwrap();
    hand.out();
    for _ in 0..400 {
        let sent = hand.wait(5 * MS);
        if sent.iter().any(|(_, s)| s.resend().is_some()) {
            hand.busy(4).unwrap();
        }
    }
    assert_eq!(hand.node.stats().peers_silenced, 1);
    assert_eq!(hand.node.live_rpcs(), 1);
    hand.data(4, 900_000, 50_000, 0..PAYLOAD).unwrap();
    assert!(!grants(&hand.out()).is_empty());
}

/// Nor does BUSY that nobody asked for, however often it comes; but who sends something now and then keeps its grants.
#[test]
fn busy_unasked_does_not_hold_headroom() {
    for sends in [false, true] {
        let mut hand = Hand::with(by_rank(), limits()).acquainted();
        hand.data(4, 900_000, 0, 0..0).unwrap();
        hand.out();
        let held = hand.node.total_incoming();
        assert!(held > 0);
        for i in 0..100 {
            hand.wait(MS / 4);
            hand.busy(4).unwrap();
            if sends && i % 4 == 0 {
                let at = i / 4 * 10;
                hand.data(4, 900_000, 0, at..at + 10).unwrap();
            }
        }
        assert_eq!(hand.node.stats().peers_silenced, u64::from(!sends));
        assert_eq!(hand.node.total_incoming() > 0, sends);
        assert_eq!(hand.node.live_rpcs(), 1);
        // It sends, and goes on.
        hand.data(4, 900_000, 0, 5_000..6_000).unwrap();
        assert!(hand.node.total_incoming() >= held / 2);
    }
}

/// Senders that answer each grant at once, for the runs below.
struct Senders {
    /// By peer and id: length, bytes sent, granted.
    messages: BTreeMap<(u8, u64), (u32, u32, u32)>,
}

impl Senders {
    fn take(&mut self, sent: &[Sent]) {
        for (to, id, offset, _) in grants(sent) {
            let std::net::IpAddr::V4(ip) = to.ip() else {
                panic!()
            };
            let message = self.messages.get_mut(&(ip.octets()[3], id)).unwrap();
            assert!(offset > message.2 && offset <= message.0);
            message.2 = offset;
        }
    }
}

/// The share of the oldest: about 5 % of what is granted goes to a long old message that would
/// else starve behind shorter ones.
#[test]
fn fifo_share() {
    for permille in [0, 50, 200] {
        let config = Config {
            fifo_permille: permille,
            fifo_grant_increment: 10_000,
            max_overcommit: 1,
            ..by_rank()
        };
        let mut hand = Hand::with(config, limits()).acquainted();
        let mut senders = Senders {
            messages: BTreeMap::new(),
        };
        let old = (1, 4);
        // Shorter ones of three peers all the time, so that one of them always waits.
        for n in 2..5 {
            senders.messages.insert((n, 4), (300_000, 0, 0));
            hand.from = peer(n);
            hand.data(4, 300_000, 0, 0..0).unwrap();
        }
        senders.take(&hand.out());
        senders.messages.insert(old, (4_000_000, 0, 0));
        hand.from = peer(1);
        hand.data(4, 4_000_000, 0, 0..0).unwrap();
        senders.take(&hand.out());
        let mut random = Random::new(u64::from(permille));
        let (mut next_id, mut total) = (6, 0u64);
        // Until the first ones are done it is not the oldest.
        let mut start = None;
        while total < 5_000_000 {
            if total > 1_500_000 && start.is_none() {
                start = Some((senders.messages[&old].2, hand.node.stats().bytes_granted));
            }
            // The shorter ones never end: one begins when one ends.
            // Whoever may send does, in any order.
            let ready: Vec<_> = senders
                .messages
                .iter()
                .filter(|(_, (_, sent, granted))| sent < granted)
                .map(|(key, _)| *key)
                .collect();
            let key = ready[random.below(ready.len() as u64) as usize];
            let (len, at, granted) = senders.messages[&key];
            let end = granted.min(at + PAYLOAD);
            hand.from = peer(key.0);
            hand.data(key.1, len, granted, at..end).unwrap();
            total += u64::from(end - at);
            hand.now = hand.now.after(1_000);
            senders.messages.get_mut(&key).unwrap().1 = end;
            if end == len {
                assert_ne!(key, old);
                senders.messages.remove(&key);
                let Some(Event::Request { rpc, .. }) = hand.event() else {
                    panic!()
                };
                hand.node.cancel(hand.now, rpc);
                let new = (key.0, next_id);
                next_id += 2;
                senders.messages.insert(new, (300_000, 0, 0));
                hand.from = peer(new.0);
                hand.data(new.1, 300_000, 0, 0..0).unwrap();
            }
            senders.take(&hand.out());
        }
        let (old_before, all_before) = start.unwrap();
        let of_old = u64::from(senders.messages[&old].2 - old_before);
        let share = of_old * 1000 / (hand.node.stats().bytes_granted - all_before);
        let want = u64::from(permille);
        assert!(
            (want * 9 / 10..=want * 11 / 10).contains(&share),
            "{share} per mille, not {want}"
        );
        assert_eq!(hand.node.stats().fifo_grants > 0, permille > 0);
    }
}

/// GRANTs of the oldest go at the second highest priority.
#[test]
fn fifo_priority() {
    let config = Config {
        fifo_permille: 1000,
        fifo_grant_increment: 5_000,
        max_overcommit: 1,
        ..by_rank()
    };
    let mut hand = Hand::with(config, limits()).acquainted();
    hand.data(4, 900_000, 0, 0..0).unwrap();
    hand.out();
    hand.from = peer(2);
    hand.data(4, 800_000, 0, 0..0).unwrap();
    hand.out();
    hand.from = peer(1);
    for at in 0..20 {
        hand.data(4, 900_000, 0, at * 1000..(at + 1) * 1000)
            .unwrap();
    }
    let out = grants(&hand.out());
    let to_oldest: Vec<_> = out.iter().filter(|g| g.0 == peer(1)).collect();
    assert_eq!(to_oldest.len(), 1);
    assert_eq!(to_oldest[0].3, 6);
}

/// Against a model that is slow and obvious, over random loads: who is granted, never more than
/// allowed in all, never nothing while headroom is left.
#[test]
fn grants_match_a_model() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let max_overcommit = 1 + random.below(6) as u8;
        let max_incoming = 20_000 + random.below(200_000);
        let config = Config {
            max_overcommit,
            max_incoming,
            unscheduled_bytes: 5_000,
            fifo_permille: 0,
            ..config()
        };
        let limits = Limits {
            rpcs: 64,
            peers: 8,
            ended: 64,
        };
        let mut hand = Hand::with(config, limits).acquainted();
        let mut senders = Senders {
            messages: BTreeMap::new(),
        };
        let mut born: BTreeMap<(u8, u64), u64> = BTreeMap::new();
        let mut next_id = 4;
        for step in 0..400u64 {
            hand.now = hand.now.after(random.below(2_000));
            let running: Vec<_> = senders
                .messages
                .iter()
                .filter(|(_, m)| m.1 < m.2)
                .map(|(k, _)| *k)
                .collect();
            if senders.messages.len() < 30 && (running.is_empty() || random.permille(200)) {
                let n = random.below(6) as u8;
                let len = 1 + random.below(150_000) as u32;
                let incoming = len.min(5_000);
                let key = (n, next_id);
                next_id += 2;
                hand.from = peer(n);
                hand.data(key.1, len, incoming, 0..0).unwrap();
                senders.messages.insert(key, (len, 0, incoming));
                born.insert(key, step);
            } else if !running.is_empty() {
                let key = running[random.below(running.len() as u64) as usize];
                let (len, at, granted) = senders.messages[&key];
                hand.from = peer(key.0);
                if random.permille(30) {
                    hand.unknown(key.1).unwrap();
                    senders.messages.remove(&key);
                } else {
                    let end = granted.min(at + 1 + random.below(u64::from(PAYLOAD)) as u32);
                    hand.data(key.1, len, granted, at..end).unwrap();
                    senders.messages.get_mut(&key).unwrap().1 = end;
                    if end == len {
                        senders.messages.remove(&key);
                        let Some(Event::Request { rpc, .. }) = hand.event() else {
                            panic!()
                        };
                        hand.node.cancel(hand.now, rpc);
                    }
                }
            }
            let before: u64 = senders
                .messages
                .values()
                .map(|m| u64::from(m.2 - m.1))
                .sum();
            let out = hand.out();
            let granted = grants(&out);
            senders.take(&out);
            let total: u64 = senders
                .messages
                .values()
                .map(|m| u64::from(m.2 - m.1))
                .sum();
            assert_eq!(total, hand.node.total_incoming(), "seed {seed} step {step}");
            // Unscheduled bytes come unasked; grants never take it beyond the limit.
            assert!(total <= max_incoming.max(before), "seed {seed} step {step}");
            // The model: peers by their best message, one each, then second ones.
            let mut needing: Vec<_> = senders
                .messages
                .iter()
                .filter(|(_, m)| m.2 < m.0)
                .map(|(k, m)| ((m.0 - m.1, born[k]), *k))
                .collect();
            needing.sort();
            let mut active: Vec<(u8, u64)> = Vec::new();
            for &(_, key) in &needing {
                if active.len() < usize::from(max_overcommit) && active.iter().all(|k| k.0 != key.0)
                {
                    active.push(key);
                }
            }
            // Whoever is best of all and one of the first messages of its peer has its window, or
            // there is no headroom.
            if let Some(&best) = active.first() {
                let count = needing.len().min(usize::from(max_overcommit)) as u64;
                let window = max_incoming / (count + 1);
                let (len, received, up_to) = senders.messages[&best];
                let target = (u64::from(received) + window).min(u64::from(len));
                assert!(
                    u64::from(up_to) >= target || total >= max_incoming,
                    "seed {seed} step {step}: {best:?} has {up_to} of {target}, {total} of {max_incoming} in use"
                );
            }
            // No grant to a message outside of the active ones, while places are taken by peers
            // with one each. (Those that this very decision granted to the end are gone.)
            if granted.len() == 1 && needing.len() >= usize::from(max_overcommit) {
                let std::net::IpAddr::V4(ip) = granted[0].0.ip() else {
                    panic!()
                };
                let key = (ip.octets()[3], granted[0].1);
                let ended = senders.messages.get(&key).is_none_or(|m| m.2 == m.0);
                let peers: std::collections::BTreeSet<_> =
                    needing.iter().map(|(_, k)| k.0).collect();
                if peers.len() >= usize::from(max_overcommit) && !ended {
                    assert!(
                        active.contains(&key),
                        "seed {seed} step {step}: {key:?} not in {active:?}"
                    );
                }
            }
        }
    }
}

// The sender's side.

/// A GRANT that comes between two calls of `poll_transmit`, or after one returned nothing,
/// releases bytes: exactly up to the grant, not to the packet.
#[test]
fn grants_release_bytes_to_the_byte() {
    let mut random = Random::new(3);
    let mut hand = Hand::new();
    let (_, id, sent) = hand.request(1_000_000);
    let mut at = sent
        .iter()
        .filter_map(Sent::data)
        .map(|(_, r)| r.end)
        .max()
        .unwrap();
    assert_eq!(at, 25_000);
    let mut granted = at;
    while granted < 1_000_000 {
        for _ in 0..1 + random.below(3) {
            let step = 1 + random.below(6_000) as u32;
            granted = (granted + step).min(1_000_000);
            let priority = random.below(8) as u8;
            hand.grant(id, granted, priority).unwrap();
            // One call only, the rest after the next grant.
            let mut buffer = vec![0; 65_536];
            if let Some(sent) = hand.node.poll_transmit(hand.now, &mut buffer) {
                assert_eq!(sent.priority, priority);
                let segment = sent.segment_size.unwrap_or(sent.len);
                for packet in buffer[..sent.len].chunks(segment) {
                    let Ok(Repr::Data { header, data }) = Repr::parse(packet, 1 << 30) else {
                        panic!()
                    };
                    assert_eq!(header.offset, at);
                    at += data.len() as u32;
                }
            }
            hand.now = hand.now.after(random.below(3_000));
        }
        for sent in hand.drain() {
            let (header, range) = sent.data().unwrap();
            assert_eq!(range.start, at);
            assert!(!header.retransmit && header.incoming == granted);
            at = range.end;
        }
        assert_eq!(at, granted, "granted bytes are held back");
        assert!(hand.out().is_empty());
    }
}

/// Grants that go back, repeat, or pass the end change nothing or end at the length.
#[test]
fn absurd_grants() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(100_000);
    assert_eq!(hand.grant(id, 0, 1), Err(DropReason::Stale));
    assert_eq!(hand.grant(id, 25_000, 1), Err(DropReason::Stale));
    assert!(hand.out().is_empty());
    hand.grant(id, u32::MAX, 1).unwrap();
    let out = hand.drain();
    assert_eq!(
        out.iter().filter_map(Sent::data).map(|(_, r)| r.end).max(),
        Some(100_000)
    );
    assert_eq!(hand.grant(id, u32::MAX, 1), Err(DropReason::Stale));
    assert!(hand.out().is_empty());
}

/// A GRANT of what is granted already that names another priority: what is still to go obeys.
#[test]
fn a_grant_changes_the_priority() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(200_000);
    hand.now = hand.now.after(MS / 2);
    hand.grant(id, 100_000, 1).unwrap();
    let first = hand.out();
    assert!(first.iter().all(|s| s.priority == 1) && !first.is_empty());
    let _ = hand.grant(id, 100_000, 3);
    let rest = hand.drain();
    assert!(rest.iter().all(|s| s.priority == 3) && !rest.is_empty());
}

/// A packet boundary falls exactly at the end of the unscheduled bytes.
#[test]
fn the_unscheduled_boundary() {
    let mut hand = Hand::new();
    let (_, id, sent) = hand.request(100_000);
    assert_eq!(
        sent.iter().filter_map(Sent::data).map(|(_, r)| r.end).max(),
        Some(25_000)
    );
    hand.grant(id, 60_000, 2).unwrap();
    let out = hand.drain();
    assert_eq!(out[0].data().unwrap().1.start, 25_000);
    assert!(sent.iter().all(|s| s.priority == 6) && out.iter().all(|s| s.priority == 2));
}

/// A message that cannot go at once is announced, so that it is granted while others are sent.
#[test]
fn the_next_message_is_announced() {
    let mut hand = Hand::new();
    let to = hand.from.into();
    for len in [200_000, 300_000] {
        hand.node
            .send_request(hand.now, to, bytes_of(0, len), RequestOptions::default())
            .unwrap();
    }
    let out = hand.out();
    let announced: Vec<_> = out
        .iter()
        .filter_map(Sent::data)
        .filter(|(_, r)| r.is_empty())
        .collect();
    assert_eq!(announced.len(), 1);
    assert_eq!(announced[0].0.message_len, 300_000);
    assert_eq!(kinds(&out)[0], "DATA");
    assert_eq!(out[0].priority, 7);
}

/// Where places are left for second messages of peers the best of these have them, in whatever
/// order they came.
#[test]
fn second_messages_go_by_rank_too() {
    let lengths = [
        (1, 200_000),
        (2, 300_000),
        (1, 900_000),
        (2, 800_000),
        (1, 700_000),
    ];
    let orders = [
        [0, 1, 2, 3, 4],
        [4, 3, 2, 1, 0],
        [2, 0, 1, 4, 3],
        [3, 1, 2, 0, 4],
    ];
    for order in orders {
        let mut hand = Hand::with(
            Config {
                max_overcommit: 3,
                max_incoming: 10_000_000,
                window: 20_000,
                ..by_rank()
            },
            limits(),
        )
        .acquainted();
        for at in order {
            let (from, len) = lengths[at];
            hand.from = peer(from);
            hand.data(4 + 2 * at as u64, len, 1000, 0..1000).unwrap();
            hand.out();
        }
        // More of each comes: those whose turn it is are granted more.
        for (at, (from, len)) in lengths.into_iter().enumerate() {
            hand.from = peer(from);
            hand.data(4 + 2 * at as u64, len, 1000, 1000..2000).unwrap();
        }
        let mut granted: Vec<u64> = grants(&hand.out()).iter().map(|grant| grant.1).collect();
        granted.sort_unstable();
        // The best of each peer, and the best of the others.
        assert_eq!(granted, [4, 6, 12], "{order:?}");
    }
}
