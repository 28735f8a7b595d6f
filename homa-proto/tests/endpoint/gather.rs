//! The two forms of `poll_transmit` say the same, and those of `handle_packet` do the same.

use crate::link::{Net, Random, Seen, bytes_of};

/// Runs an exchange by seed, over a link with faults; `gathers` says which form takes the next
/// packets. Returns every packet that was sent, with its sender.
fn run(
    seed: u64,
    joins: Option<bool>,
    gathers: impl FnMut() -> bool + 'static,
) -> (Vec<(usize, Vec<u8>)>, Net) {
    let mut net = Net::pair(seed);
    net.joins = joins;
    let mut random = Random::new(seed);
    net.check_every = 16;
    net.faults.loss = random.below(30);
    net.faults.reorder = random.below(100);
    let log = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let kept = std::rc::Rc::clone(&log);
    net.filter = Some(Box::new(move |from, _, packet| {
        kept.borrow_mut().push((from, packet.to_vec()));
        true
    }));
    net.gathers = Some(Box::new(gathers));
    let until = net.now.after(20_000_000_000);
    let (mut sent, mut ended) = (0, 0);
    loop {
        while sent < 12 && sent < ended + 4 {
            let most = [100, 3_000, 60_000, 300_000][random.below(4) as usize];
            let len = 1 + random.below(most);
            net.request(0, 1, bytes_of(sent, len as usize), sent)
                .unwrap();
            sent += 1;
        }
        for seen in net.events(1) {
            if let Seen::Request { rpc, bytes, .. } = seen {
                net.respond(1, rpc, bytes);
            }
        }
        for seen in net.events(0) {
            match seen {
                Seen::Response { cookie, bytes } => {
                    assert!(bytes == bytes_of(cookie, bytes.len()), "seed {seed}");
                    ended += 1;
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        if !net.step(until) {
            break;
        }
    }
    assert_eq!(ended, 12, "seed {seed}");
    drop(net.filter.take());
    (log.take(), net)
}

#[test]
fn both_forms_put_the_same_bytes_on_the_wire() {
    let mut lent = 0;
    for seed in 0..40 {
        let (whole, none) = run(seed, None, || false);
        assert_eq!(none.lent, 0);
        let (gathered, all) = run(seed, None, || true);
        assert!(whole == gathered, "seed {seed}: packets differ");
        let mut coin = Random::new(!seed);
        let (mixed, some) = run(seed, None, move || coin.below(2) == 0);
        assert!(
            whole == mixed,
            "seed {seed}: packets differ when both forms take turns"
        );
        lent += all.lent;
        assert!(some.lent <= all.lent);
    }
    assert!(lent > 1_000, "only {lent} batches were lent");
}

#[test]
fn joined_packets_do_what_they_do_one_by_one() {
    for seed in 0..60 {
        let (joined, mut one) = run(seed, Some(true), || false);
        let (single, mut other) = run(seed, Some(false), || false);
        assert!(joined == single, "seed {seed}: packets differ");
        for (one, other) in one.nodes.iter_mut().zip(&mut other.nodes) {
            assert_eq!(one.stats(), other.stats(), "seed {seed}");
            assert_eq!(one.poll_timeout(), other.poll_timeout(), "seed {seed}");
        }
    }
}

#[test]
fn in_a_buffer_of_one_packet_the_headers_of_many_fit() {
    let mut net = Net::pair(1);
    net.checked = true;
    let (len, mut buffer) = (40_000, [0; 1500]);
    let to = crate::link::addr(1).into();
    let bytes = bytes_of(7, len);
    net.nodes[0]
        .send_request(
            net.now,
            to,
            bytes.clone(),
            homa_proto::RequestOptions::default(),
        )
        .unwrap();
    let gather = net.nodes[0]
        .poll_transmit_gather(net.now, &mut buffer)
        .unwrap();
    let packets = gather.packets(&buffer).count();
    assert!(packets > 1, "{packets}");
    assert_eq!(gather.transmit.len, packets * 56 + gather.payload.len());
    assert!(bytes.starts_with(gather.payload));
    assert_eq!(
        gather
            .packets(&buffer)
            .map(|(_, body)| body.len())
            .sum::<usize>(),
        gather.payload.len()
    );
}

/// Whose length is another than it says at first.
struct Shrinks(std::cell::Cell<usize>);

impl AsRef<[u8]> for Shrinks {
    fn as_ref(&self) -> &[u8] {
        let len = self.0.get();
        self.0.set(len / 2);
        &[7; 100_000][..len]
    }
}

#[test]
fn a_message_that_shrinks_does_no_harm() {
    use homa_proto::{Endpoint, HeapBuffers, RequestOptions, Storage};
    let mut node: Endpoint<'_, Shrinks, HeapBuffers> = Endpoint::new(
        crate::link::config(),
        1,
        Storage::boxed(crate::link::limits()),
        HeapBuffers::new(1 << 20),
    )
    .unwrap();
    node.open_port(crate::link::PORT).unwrap();
    let mut now = homa_proto::Instant::from_nanos(1);
    let to = crate::link::addr(1).into();
    let message = Shrinks(std::cell::Cell::new(100_000));
    node.send_request(now, to, message, RequestOptions::default())
        .unwrap();
    let mut buffer = vec![0; 65_536];
    let mut failed = false;
    for _ in 0..10_000 {
        while let Some(gather) = node.poll_transmit_gather(now, &mut buffer) {
            let headers = gather.packets(&buffer).count();
            let whole = if gather.payload.is_empty() {
                0
            } else {
                headers * 56
            };
            assert!(
                gather.payload.is_empty() || gather.transmit.len == whole + gather.payload.len()
            );
        }
        node.check_invariants().unwrap();
        failed |= node.poll_event().is_some();
        let Some((at, _)) = node.poll_timeout() else {
            break;
        };
        now = now.max(at);
        node.handle_timeout(now);
    }
    assert!(failed, "the request neither arrives nor ends");
}
