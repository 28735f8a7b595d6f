//! Liveness: whatever packet is lost, everything ends well within a stated time.

use std::cell::Cell;
use std::rc::Rc;

use crate::link::{Net, Seen, bytes_of};

/// A request and its response, with some of the packets lost.
struct Scenario {
    request: usize,
    response: usize,
    /// RPCs like this one at the same time.
    count: u64,
}

/// Runs it with the packets whose numbers are in `lost` dropped. Returns the packets sent until
/// the end, and how long it took in nanoseconds.
fn run(scenario: &Scenario, lost: &[u64]) -> (u64, u64) {
    let mut net = Net::pair(9);
    net.check_every = 8;
    let seen = Rc::new(Cell::new(0));
    let (counter, dropped) = (Rc::clone(&seen), lost.to_vec());
    net.filter = Some(Box::new(move |_, _, _| {
        let number = counter.get();
        counter.set(number + 1);
        !dropped.contains(&number)
    }));
    let start = net.now;
    for cookie in 0..scenario.count {
        net.request(0, 1, bytes_of(cookie, scenario.request), cookie)
            .unwrap();
    }
    let (mut ran, mut done) = (0, 0);
    let mut took = 0;
    let until = start.after(10_000_000_000);
    loop {
        for seen in net.events(1) {
            match seen {
                Seen::Request { rpc, bytes, .. } => {
                    ran += 1;
                    assert_eq!(bytes.len(), scenario.request, "lost {lost:?}");
                    assert!(net.respond(1, rpc, bytes_of(99, scenario.response)));
                }
                Seen::Released { outcome, .. } => assert_eq!(outcome, Ok(()), "lost {lost:?}"),
                other => panic!("{other:?}"),
            }
        }
        for seen in net.events(0) {
            match seen {
                Seen::Response { bytes, .. } => {
                    assert!(bytes == bytes_of(99, scenario.response));
                    done += 1;
                    took = net.now.nanos_since(start);
                }
                other => panic!("lost {lost:?}: {other:?}"),
            }
        }
        if !net.step(until) {
            break;
        }
    }
    assert_eq!(
        (ran, done),
        (scenario.count, scenario.count),
        "lost {lost:?}"
    );
    net.assert_idle();
    (seen.get(), took)
}

/// The loss of any one packet costs at most this, in nanoseconds: the interval of 1 ms before
/// anything is measured, with its back-off once, and round trips.
const ONE_LOSS_NS: u64 = 5_000_000;
/// The loss of any two.
const TWO_LOSSES_NS: u64 = 12_000_000;

fn every_single_loss(scenario: &Scenario) {
    let (packets, clean) = run(scenario, &[]);
    let mut worst = (0, 0);
    for lost in 0..packets {
        let (_, took) = run(scenario, &[lost]);
        worst = worst.max((took, lost));
    }
    let (took, lost) = worst;
    assert!(
        took <= clean + ONE_LOSS_NS,
        "packet {lost} of {packets} lost: {took} ns, without loss {clean}"
    );
}

fn every_pair_of_losses(scenario: &Scenario) {
    let (_, clean) = run(scenario, &[]);
    let mut first = 0;
    let mut worst = (0, 0, 0);
    loop {
        let (packets, _) = run(scenario, &[first]);
        for second in first + 1..packets {
            let (_, took) = run(scenario, &[first, second]);
            worst = worst.max((took, first, second));
        }
        first += 1;
        if first >= packets {
            break;
        }
    }
    let (took, first, second) = worst;
    assert!(
        took <= clean + TWO_LOSSES_NS,
        "packets {first} and {second} lost: {took} ns, without loss {clean}"
    );
}

const fn of(request: usize, response: usize) -> Scenario {
    Scenario {
        request,
        response,
        count: 1,
    }
}

#[test]
fn one_packet_each_way() {
    every_single_loss(&of(100, 100));
    every_pair_of_losses(&of(100, 100));
}

#[test]
fn three_packets_each_way() {
    every_single_loss(&of(4_000, 4_000));
    every_pair_of_losses(&of(4_000, 4_000));
}

#[test]
fn scheduled_request() {
    every_single_loss(&of(60_000, 100));
}

#[test]
fn scheduled_response() {
    every_single_loss(&of(100, 60_000));
}

#[test]
fn grants_and_data_lost_in_pairs() {
    // Just beyond the unscheduled bytes, so that there are few packets and a grant each way.
    every_pair_of_losses(&of(26_500, 100));
    every_pair_of_losses(&of(100, 26_500));
}

#[test]
fn several_at_once() {
    every_single_loss(&Scenario {
        request: 5_000,
        response: 30_000,
        count: 4,
    });
}

/// Many packets in a row are lost: when losses stop, everything ends.
#[test]
fn bursts_of_loss() {
    for from in [0, 1, 2, 5, 10, 20, 30] {
        for len in [3, 6, 10] {
            let lost: Vec<u64> = (from..from + len).collect();
            run(&of(30_000, 30_000), &lost);
            run(&of(100, 30_000), &lost);
        }
    }
}
