//! Who is granted what, and who sends next, against references that sort everything afresh.

mod grants;
mod sends;

use std::net::{Ipv4Addr, SocketAddr};

use homa_proto::{Endpoint, HeapBuffers, Instant};

use crate::input::Input;

const PORT: u16 = 7;
const PEERS: u8 = 4;
const MTU: u16 = 400;
/// Messages are made of units of so many bytes, and a rest.
const UNIT: u32 = 100;
const MAX_MESSAGE: u32 = 120 * UNIT;
/// Silence and time are of no concern here.
const NOW: Instant = Instant::from_nanos(1_000_000);

type Node = Endpoint<'static, &'static [u8], HeapBuffers>;

/// Has an endpoint receive, or send, many messages at once, and compares each of its decisions
/// with those of a reference which knows only what came in and what goes out.
pub fn differential(data: &[u8]) {
    let mut input = Input::new(data);
    if input.bool() {
        grants::run(&mut input);
    } else {
        sends::run(&mut input);
    }
}

fn address(peer: u8) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, peer + 1).into(), 4000)
}

fn length(input: &mut Input<'_>) -> u32 {
    let (units, rest) = (u32::from(input.u8() % 120), u32::from(input.u8()));
    (units * UNIT + rest % UNIT).max(1)
}

fn check(node: &Node) {
    if let Err(what) = node.check_invariants() {
        panic!("{what}");
    }
}
