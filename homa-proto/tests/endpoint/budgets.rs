//! What one peer, and all together, may take up: refused in the open beyond it.

use homa_proto::{
    BufferSource, Config, Event, FixedBuffers, HeapBuffers, Limits, RequestOptions, SendErrorKind,
};

use crate::hand::{Hand, MS, peer};
use crate::link::{bytes_of, config, limits, node};

const LEN: usize = 10_000;

fn small_queue() -> Config {
    Config {
        max_queued: 100_000,
        max_peer_queued: 30_000,
        ..config()
    }
}

fn ask(hand: &mut Hand, n: u8, len: usize) -> Result<homa_proto::RpcId, SendErrorKind> {
    let options = RequestOptions::default();
    let sent = hand
        .node
        .send_request(hand.now, peer(n).into(), bytes_of(0, len), options);
    hand.node.check_invariants().unwrap();
    sent.map_err(|error| {
        assert_eq!(error.message.len(), len, "the message comes back");
        error.kind
    })
}

/// Requests are kept until their event has been polled, and count until then: to one peer, and in all.
#[test]
fn requests_beyond_the_queue_are_refused() {
    let mut hand = Hand::with(small_queue(), limits());
    for _ in 0..3 {
        ask(&mut hand, 1, LEN).unwrap();
    }
    assert_eq!(ask(&mut hand, 1, 1), Err(SendErrorKind::PeerQueueFull));
    // The others are not affected until the whole queue is full.
    for n in 2..5 {
        for _ in 0..2 {
            ask(&mut hand, n, LEN).unwrap();
        }
    }
    let last = ask(&mut hand, 5, LEN).unwrap();
    assert_eq!(hand.node.queued_bytes(), 100_000);
    assert_eq!(ask(&mut hand, 6, 1), Err(SendErrorKind::QueueFull));
    assert!(SendErrorKind::QueueFull.is_full() && SendErrorKind::PeerQueueFull.is_full());
    // One goes: as much fits again, and no more.
    assert!(hand.node.cancel(hand.now, last).is_some());
    ask(&mut hand, 6, LEN).unwrap();
    assert_eq!(ask(&mut hand, 6, 1), Err(SendErrorKind::QueueFull));
    // Nobody answers. What has failed is kept until that is known.
    hand.wait(3_000 * MS);
    assert_eq!(hand.node.queued_bytes(), 100_000);
    while let Some(event) = hand.event() {
        assert!(matches!(event, Event::Failed { .. }));
    }
    assert_eq!(hand.node.queued_bytes(), 0);
    ask(&mut hand, 1, LEN).unwrap();
}

/// A single message may be longer than all that may be kept: else it could never go.
#[test]
fn a_single_message_may_be_longer_than_the_queue() {
    let mut hand = Hand::with(small_queue(), limits());
    let first = ask(&mut hand, 1, 500_000).unwrap();
    assert_eq!(ask(&mut hand, 1, 1), Err(SendErrorKind::PeerQueueFull));
    assert_eq!(ask(&mut hand, 2, 1), Err(SendErrorKind::QueueFull));
    hand.node.cancel(hand.now, first);
    ask(&mut hand, 2, 500_000).unwrap();
}

/// A response that finds no room comes back and can be given later; a client that takes none of
/// its responses uses up its own share only.
#[test]
fn responses_beyond_the_queue_are_refused_and_can_be_tried_again() {
    let mut hand = Hand::with(small_queue(), limits());
    let rpcs: Vec<_> = (0..4).map(|i| hand.arrive(4 + 2 * i, 10)).collect();
    for &rpc in &rpcs[..3] {
        hand.respond(rpc, LEN);
    }
    let refused = hand
        .node
        .send_response(hand.now, rpcs[3], bytes_of(1, LEN))
        .unwrap_err();
    assert_eq!(
        (refused.kind, refused.message.len()),
        (SendErrorKind::PeerQueueFull, LEN)
    );
    hand.node.check_invariants().unwrap();
    hand.from = peer(2);
    let other = hand.arrive(4, 10);
    hand.respond(other, LEN);
    // The client has one of them: the next may go.
    hand.from = peer(1);
    hand.ack(4).unwrap();
    assert!(matches!(hand.event(), Some(Event::Released { .. })));
    hand.respond(rpcs[3], LEN);
    assert_eq!(hand.node.queued_bytes(), 40_000);
}

/// Two endpoints whose queues are full of requests to each other can still answer. (Found by fuzzing.)
#[test]
fn a_queue_full_of_requests_does_not_keep_responses_back() {
    let mut hand = Hand::with(small_queue(), limits());
    ask(&mut hand, 1, 30_000).unwrap();
    let rpc = hand.arrive(4, 10);
    hand.respond(rpc, 30_000);
    let other = hand.arrive(6, 10);
    let refused = hand
        .node
        .send_response(hand.now, other, bytes_of(1, 1))
        .unwrap_err();
    assert_eq!(refused.kind, SendErrorKind::PeerQueueFull);
    assert_eq!(hand.node.queued_bytes(), 60_000);
}

/// What is not set is derived, so that no peer gets everything.
#[test]
fn budgets_are_on_unless_they_are_turned_off() {
    let limits = Limits {
        rpcs: 64,
        ..limits()
    };
    let node = node(Config::default(), limits, 7, 64 << 20);
    let set = node.config();
    assert_eq!(set.max_queued, 256 << 20);
    assert_eq!(set.max_peer_queued, 128 << 20);
    assert_eq!(set.max_peer_requests, 48);
    assert_eq!(set.max_peer_bytes, 32 << 20);
    assert_eq!(set.max_stranger_bytes, 16 << 20);

    let (mut small, mut large) = ([0; 8 * 256], [0; 2 * 4096]);
    let mut slots = [const { None }; 10];
    let pools = [(&mut small[..], 256), (&mut large[..], 4096)];
    let fixed = FixedBuffers::new(pools, &mut slots).unwrap();
    assert_eq!(fixed.capacity(), Some(8 * 256 + 2 * 4096));
    assert_eq!(HeapBuffers::new(1000).capacity(), Some(1000));
}
