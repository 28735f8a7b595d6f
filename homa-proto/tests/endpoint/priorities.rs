//! Which packet goes at which priority, and how the two sides agree on it.

use homa_proto::wire::Repr;
use homa_proto::{Config, Event};

use crate::hand::{Hand, MS, Sent, kinds};
use crate::link::{Net, Random, Seen, addr, bytes_of, config, limits, node};

/// Before a peer's cutoffs are known: the second highest level for all unscheduled data.
#[test]
fn first_packets() {
    for len in [1, 100, 3_000, 25_000, 100_000] {
        let mut hand = Hand::new();
        let (_, _, sent) = hand.request(len);
        assert!(
            sent.iter()
                .all(|s| s.priority == 6 && s.data().unwrap().0.cutoff_version == 0)
        );
    }
}

/// CUTOFFS decide the level of unscheduled data: the largest whose cutoff is not below the length,
/// level 0 for the rest; values need not be in order.
#[test]
fn cutoffs_are_obeyed() {
    let mut random = Random::new(8);
    for version in 1..60u16 {
        let mut hand = Hand::new();
        hand.arrive(4, 10);
        hand.out();
        let mut cutoffs = [0; 8];
        cutoffs.iter_mut().for_each(|c| {
            *c = match random.below(3) {
                0 => 0,
                1 => random.below(2_000) as u32,
                _ => random.below(60_000) as u32,
            }
        });
        let common = hand.common(4);
        hand.put(&Repr::Cutoffs {
            common,
            cutoffs,
            version,
            unscheduled_limit: None,
        })
        .unwrap();
        for _ in 0..5 {
            let len = 1 + random.below(25_000) as usize;
            hand.now = hand.now.after(MS / 4);
            let (rpc, _, sent) = hand.request(len);
            let want = (1..8u8)
                .rev()
                .find(|&l| cutoffs[usize::from(l)] >= len as u32)
                .unwrap_or(0);
            for sent in &sent {
                let Some((header, _)) = sent.data() else {
                    continue;
                };
                assert_eq!(sent.priority, want, "{len} bytes, {cutoffs:?}");
                assert_eq!(header.cutoff_version, version);
            }
            hand.node.cancel(hand.now, rpc);
        }
    }
    // Version 0 does not exist.
    let mut hand = Hand::new();
    hand.arrive(4, 10);
    let common = hand.common(4);
    assert!(
        hand.put(&Repr::Cutoffs {
            common,
            cutoffs: [7; 8],
            version: 0,
            unscheduled_limit: None
        })
        .is_err()
    );
}

/// DATA whose version differs is answered with CUTOFFS, both ways, until it is echoed.
#[test]
fn cutoffs_go_both_ways() {
    let mut net = Net::pair(6);
    let versions = std::rc::Rc::new(std::cell::RefCell::new([[0u16; 2]; 2]));
    let told = std::rc::Rc::clone(&versions);
    net.filter = Some(Box::new(move |from, _, packet| {
        if let Ok(Repr::Data { header, .. }) = Repr::parse(packet, 4_000_000) {
            told.borrow_mut()[from][1] = header.cutoff_version;
        }
        if let Ok(Repr::Cutoffs { version, .. }) = Repr::parse(packet, 4_000_000) {
            told.borrow_mut()[from][0] = version;
        }
        true
    }));
    for cookie in 0..5 {
        net.request(0, 1, bytes_of(cookie, 3_000), cookie).unwrap();
        net.echo_until_quiet(100 * MS);
    }
    let versions = versions.borrow();
    assert!(versions[0][0] != 0 && versions[1][0] != 0);
    // What each side sends last carries what the other has told.
    assert_eq!(
        (versions[0][1], versions[1][1]),
        (versions[1][0], versions[0][0])
    );
    for node in &net.nodes {
        assert_eq!(node.stats().cutoffs_sent, 1);
    }
}

/// Scheduled data at the priority of the last GRANT, retransmissions at that of the RESEND,
/// control packets at the highest.
#[test]
fn scheduled_data_and_retransmissions() {
    let mut hand = Hand::new();
    let (_, id, _) = hand.request(200_000);
    let mut granted = 25_000;
    for priority in [0, 3, 7, 1] {
        granted += 10_000;
        hand.grant(id, granted, priority).unwrap();
        hand.resend(id, 1_000, 500, 7 - priority).unwrap();
        let out = hand.drain();
        for sent in &out {
            match sent.data() {
                Some((header, _)) if header.retransmit => assert_eq!(sent.priority, 7 - priority),
                Some(_) => assert_eq!(sent.priority, priority),
                None => assert_eq!(sent.priority, 7),
            }
        }
        assert!(kinds(&out).contains(&"AGAIN"));
        hand.now = hand.now.after(MS / 4);
    }
    // Above 7: taken as 7, never sent higher.
    hand.grant(id, granted + 1_000, 255).unwrap();
    hand.resend(id, 0, 10, 200).unwrap();
    assert!(hand.drain().iter().all(|s| s.priority == 7));
}

/// Levels follow the traffic: with mostly short messages most levels are unscheduled, with long
/// ones half of them; each unscheduled level weighs about as much as the next.
#[test]
fn levels_follow_the_traffic() {
    let run = |lengths: &dyn Fn(&mut Random) -> u32| {
        let mut hand = Hand::with(
            Config {
                unscheduled_bytes: 10_000,
                ..config()
            },
            limits(),
        );
        let mut random = Random::new(4);
        let before = hand.node.cutoffs();
        let mut seen = Vec::new();
        for n in 0..9_000u64 {
            let len = lengths(&mut random);
            hand.now = hand.now.after(10_000);
            let id = 4 + 2 * n;
            // The first packet is enough to observe it.
            let header = homa_proto::wire::DataHeader {
                common: hand.common(id),
                message_len: len,
                incoming: len.min(10_000),
                ack: None,
                cutoff_version: 0,
                retransmit: false,
                flags: 0,
                offset: 0,
            };
            let mut bytes = [1; 57];
            header.emit(&mut bytes).unwrap();
            let _ = hand.node.handle_packet(hand.now, hand.from, None, &bytes);
            seen.push(len);
            while let Some(event) = hand.node.poll_event() {
                if let Event::Request { rpc, .. } = event {
                    hand.node.cancel(hand.now, rpc);
                }
            }
            if len > 1 {
                let common = hand.common(id);
                let mut bytes = [0; 28];
                Repr::RpcUnknown(common).emit(&mut bytes).unwrap();
                hand.node
                    .handle_packet(hand.now, hand.from, None, &bytes)
                    .unwrap();
            }
            let mut buffer = [0; 1500];
            while hand.node.poll_transmit(hand.now, &mut buffer).is_some() {}
        }
        assert_ne!(before, hand.node.cutoffs());
        assert!(
            hand.node.stats().cutoff_changes <= 2,
            "a steady load, {} changes",
            hand.node.stats().cutoff_changes
        );
        let (cutoffs, top_scheduled) = hand.node.cutoffs();
        let mut share = [0u64; 8];
        for len in seen {
            let level = (1..8).rev().find(|&l| cutoffs[l] >= len).unwrap_or(0);
            // What counts of it: up to four packets, headers included.
            let bytes = len.min(10_000);
            share[level] += u64::from((bytes + bytes.div_ceil(1_424) * 118).min(4 * 1_542));
        }
        assert!(
            share[..=usize::from(top_scheduled)]
                .iter()
                .all(|&bytes| bytes == 0)
        );
        let used: Vec<u64> = share[usize::from(top_scheduled) + 1..].to_vec();
        // As even as bins of a quarter of a doubling let it be.
        let mean = used.iter().sum::<u64>() / used.len() as u64;
        assert!(
            used.iter().all(|&bytes| bytes <= 2 * mean),
            "{used:?} {cutoffs:?}"
        );
        (top_scheduled, used.len())
    };
    let (top, unscheduled) = run(&|random| 1 + random.below(9_000) as u32);
    assert_eq!((top, unscheduled), (0, 7));
    let (top, unscheduled) = run(&|random| 20_000 + random.below(3_900_000) as u32);
    // Half of the levels at the least.
    assert_eq!((top, unscheduled), (3, 4));
    // Half of the bytes: half of the levels.
    let (_, unscheduled) = run(&|random| 1_000 + random.below(38_000) as u32);
    assert!((3..=5).contains(&unscheduled), "{unscheduled}");
}

/// Fixed cutoffs are told as they are and never change.
#[test]
fn fixed_cutoffs() {
    let fixed = [0, 0, 0, 1 << 30, 9_000, 900, 90, 9];
    let config = Config {
        fixed_cutoffs: Some(fixed),
        ..config()
    };
    let mut hand = Hand::with(config, limits());
    hand.show_cutoffs = true;
    hand.data(4, 100, 100, 0..100).unwrap();
    let out = hand.out();
    let Repr::Cutoffs {
        cutoffs, version, ..
    } = out[0].repr()
    else {
        panic!()
    };
    assert_eq!(cutoffs, fixed);
    assert!(version != 0);
    assert_eq!(hand.node.cutoffs(), (fixed, 2));
}

/// A receiver with a small buffer limits what comes unasked; the sender keeps to it.
#[test]
fn the_limit_on_unscheduled_bytes() {
    let small = Config {
        receive_buffer: 20_000,
        ..config()
    };
    let nodes = vec![
        node(config(), limits(), 1, 64 << 20),
        node(small, limits(), 2, 64 << 20),
    ];
    let mut net = Net::new(nodes, 1);
    net.request(0, 1, bytes_of(1, 100), 1).unwrap();
    net.echo_until_quiet(20 * MS);
    let unasked = std::rc::Rc::new(std::cell::Cell::new(0));
    let most = std::rc::Rc::clone(&unasked);
    net.filter = Some(Box::new(move |from, _, packet| {
        if let Ok(Repr::Data { header, .. }) = Repr::parse(packet, 4_000_000)
            && from == 0
            && header.offset == 0
        {
            most.set(most.get().max(header.incoming));
        }
        true
    }));
    net.request(0, 1, bytes_of(2, 100_000), 2).unwrap();
    let seen = net.echo_until_quiet(100 * MS);
    assert!(matches!(seen[&(0, 2)], Seen::Response { .. }));
    assert_eq!(unasked.get(), 5_000);
}

/// Fewest bytes left first at the sender; 5 % to the oldest.
#[test]
fn srpt_at_the_sender() {
    let slow = Config {
        link_bps: 1_000_000_000,
        rtt_ns: 20_000,
        unscheduled_bytes: 4_000_000,
        ..config()
    };
    let mut hand = Hand::with(slow, limits());
    let to = hand.from.into();
    let options = homa_proto::RequestOptions::default();
    hand.node
        .send_request(hand.now, to, bytes_of(0, 3_000_000), options)
        .unwrap();
    let first = hand.out();
    let old = first[0].repr().common().sender_id;
    for _ in 0..30 {
        hand.node
            .send_request(hand.now, to, bytes_of(0, 300_000), options)
            .unwrap();
    }
    let mut order: Vec<u64> = Vec::new();
    let (mut bytes, mut of_old) = (0u64, 0u64);
    // 12 MB take 98 ms.
    let sent: Vec<Sent> = hand.wait(120 * MS).into_iter().map(|(_, s)| s).collect();
    for sent in &sent {
        let Some((header, range)) = sent.data() else {
            continue;
        };
        let id = header.common.sender_id;
        let len = u64::from(range.end - range.start);
        if order.len() < 30 || *order.last().unwrap() == id {
            bytes += len;
            of_old += if id == old { len } else { 0 };
        }
        if id != old && order.last() != Some(&id) {
            assert!(
                !order.contains(&id),
                "a message was interrupted by an equal one"
            );
            order.push(id);
        }
    }
    assert_eq!(order.len(), 30);
    assert!(order.is_sorted(), "the older first among equals");
    let share = of_old * 1000 / bytes;
    assert!((35..=60).contains(&share), "{share} per mille");
}

/// While an older message waits for grants, the share of the oldest that may send is still a
/// share: the message with the fewest bytes left has the rest.
#[test]
fn a_stalled_oldest_message_does_not_turn_srpt_off() {
    use homa_proto::{Instant, RequestOptions};
    let config = Config {
        link_bps: 1_000_000_000,
        rtt_ns: 10_000,
        unscheduled_bytes: 100_000,
        max_message: 4_000_000,
        ..Default::default()
    };
    let limits = limits();
    let mut node = node(config, limits, 1, 1 << 20);
    let to = addr(1).into();
    let mut now = Instant::from_nanos(1_000_000);
    let mut buffer = vec![0; 65_536];
    // The first sends all that it may and then waits for a grant that never comes.
    node.send_request(now, to, vec![1; 1_000_000], RequestOptions::default())
        .unwrap();
    for _ in 0..10_000 {
        while node.poll_transmit(now, &mut buffer).is_some() {}
        now = now.after(1_000);
    }
    // The second is long, and may send much; beside it there are always short ones.
    node.send_request(now, to, vec![2; 100_000], RequestOptions::default())
        .unwrap();
    let (mut long, mut short) = (0u64, 0u64);
    for _ in 0..400 {
        node.send_request(now, to, vec![3; 10_000], RequestOptions::default())
            .map_err(|error| error.kind)
            .ok();
        let until = now.after(70_000);
        while now < until {
            while let Some(sent) = node.poll_transmit(now, &mut buffer) {
                let segment = sent.segment_size.unwrap_or(sent.len);
                for packet in buffer[..sent.len].chunks(segment) {
                    let len = u32::from_be_bytes(packet[28..32].try_into().unwrap());
                    let data = packet.len().saturating_sub(56) as u64;
                    match len {
                        100_000 => long += data,
                        10_000 => short += data,
                        _ => {}
                    }
                }
            }
            now = now.after(1_000);
        }
        if short >= 500_000 {
            break;
        }
    }
    let permille = long * 1000 / (long + short);
    assert!(
        (40..=60).contains(&permille),
        "{permille} per mille went to the oldest"
    );
}
