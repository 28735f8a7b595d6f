//! Endpoints joined in memory, with loss, duplication, reordering, delay and corruption by seed.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use homa_proto::{
    Config, DropReason, Endpoint, Event, HeapBuffers, Instant, Limits, PeerAddr, RequestOptions,
    RpcError, RpcId, SendError, Storage, TimeoutReason, Transmit,
    wire::{MAX_MESSAGE, Repr},
};

pub(crate) type Node = Endpoint<'static, Vec<u8>, HeapBuffers>;

pub(crate) const PORT: u16 = 4000;

/// A small seeded generator: every run is reproducible from one number.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True so many times in a thousand.
    pub(crate) fn permille(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

/// The bytes of a message: any of them out of place shows.
pub(crate) fn bytes_of(tag: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(tag);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What the link does to packets, per mille.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplicate: u64,
    pub(crate) reorder: u64,
    pub(crate) corrupt: u64,
    /// Copies that come as late as this, in nanoseconds.
    pub(crate) late_ns: u64,
}

pub(crate) fn config() -> Config {
    Config {
        link_bps: 10_000_000_000,
        rtt_ns: 20_000,
        max_message: 4_000_000,
        // What a round trip holds, to the byte, and grants as small as they come.
        unscheduled_bytes: 25_000,
        min_grant: 1,
        // Where memory is short one peer may use it all: that is what is tested.
        max_peer_requests: u32::MAX,
        max_peer_bytes: u64::MAX,
        max_stranger_bytes: u64::MAX,
        ..Config::default()
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        rpcs: 64,
        peers: 8,
        ended: 256,
    }
}

pub(crate) fn node(config: Config, limits: Limits, seed: u128, memory: usize) -> Node {
    let mut node = Endpoint::new(
        config,
        seed,
        Storage::boxed(limits),
        HeapBuffers::new(memory),
    )
    .expect("a usable configuration");
    node.open_port(PORT).unwrap();
    node
}

pub(crate) fn addr(at: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + at as u8], PORT))
}

/// What an endpoint's application saw.
#[derive(Debug)]
pub(crate) enum Seen {
    Request {
        rpc: RpcId,
        from: PeerAddr,
        bytes: Vec<u8>,
    },
    Response {
        cookie: u64,
        bytes: Vec<u8>,
    },
    Failed {
        cookie: u64,
        error: RpcError,
    },
    Released {
        outcome: Result<(), RpcError>,
    },
}

/// Packets on their way: by time and order.
type Flight = BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>;

pub(crate) struct Net {
    pub(crate) nodes: Vec<Node>,
    pub(crate) now: Instant,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    /// Nothing passes between these.
    pub(crate) cut: Vec<(usize, usize)>,
    /// Every packet goes by this: `false` drops it.
    #[allow(clippy::type_complexity)]
    pub(crate) filter: Option<Box<dyn FnMut(usize, usize, &[u8]) -> bool>>,
    pub(crate) delay_ns: u64,
    /// Whether the next packets are gathered; `None`: never.
    #[allow(clippy::type_complexity)]
    pub(crate) gathers: Option<Box<dyn FnMut() -> bool>>,
    /// Packets that arrive together are handed in joined, or one by one; `None`: each alone.
    pub(crate) joins: Option<bool>,
    /// Batches whose payload was lent.
    pub(crate) lent: u64,
    flight: Flight,
    sent: u64,
    pub(crate) packets: u64,
    /// Check all books after a step: every one, or at random one in `check_every`.
    pub(crate) checked: bool,
    pub(crate) check_every: u64,
    pub(crate) drops: HashMap<DropReason, u64>,
    idle_polls: u32,
    checks: Random,
}

impl Net {
    pub(crate) fn new(nodes: Vec<Node>, seed: u64) -> Self {
        Self {
            nodes,
            now: Instant::from_nanos(1_000_000),
            random: Random::new(seed),
            faults: Faults::default(),
            cut: Vec::new(),
            filter: None,
            delay_ns: 5_000,
            gathers: None,
            joins: None,
            lent: 0,
            flight: BTreeMap::new(),
            sent: 0,
            packets: 0,
            checked: true,
            check_every: 1,
            drops: HashMap::new(),
            idle_polls: 0,
            checks: Random::new(!seed),
        }
    }

    pub(crate) fn pair(seed: u64) -> Self {
        let nodes = (0..2)
            .map(|i| node(config(), limits(), u128::from(seed) * 16 + i, 64 << 20))
            .collect();
        Self::new(nodes, seed)
    }

    pub(crate) fn request(
        &mut self,
        from: usize,
        to: usize,
        bytes: Vec<u8>,
        cookie: u64,
    ) -> Result<RpcId, SendError<Vec<u8>>> {
        let options = RequestOptions {
            cookie,
            ..RequestOptions::default()
        };
        let result = self.nodes[from].send_request(self.now, addr(to).into(), bytes, options);
        self.flush(from);
        result
    }

    pub(crate) fn respond(&mut self, at: usize, rpc: RpcId, bytes: Vec<u8>) -> bool {
        let ok = self.nodes[at].send_response(self.now, rpc, bytes).is_ok();
        self.flush(at);
        ok
    }

    /// Everything an endpoint has to send goes onto the link.
    pub(crate) fn flush(&mut self, at: usize) {
        let mut buffer = vec![0xaa; 65_536];
        let mut rounds = 0;
        while let Some(sent) = self.transmit(at, &mut buffer) {
            rounds += 1;
            assert!(rounds < 10_000, "endless transmission");
            assert!(sent.len > 0 && sent.len <= 65_507 && sent.priority < 8);
            let segment = sent.segment_size.unwrap_or(sent.len);
            assert!(segment <= 1472 && sent.len > 0);
            assert!(sent.segment_size.is_none_or(|size| size < sent.len));
            assert!(sent.len.div_ceil(segment) <= 64);
            let to = (0..self.nodes.len()).find(|&i| addr(i) == sent.to);
            for packet in buffer[..sent.len].chunks(segment) {
                self.packets += 1;
                assert_well_formed(packet);
                if let Some(to) = to {
                    self.launch(at, to, packet.to_vec());
                }
            }
        }
        self.check(at);
    }

    /// The next packets, by whichever form it is the turn of.
    fn transmit(&mut self, at: usize, buffer: &mut [u8]) -> Option<Transmit> {
        let node = &mut self.nodes[at];
        if !self.gathers.as_mut().is_some_and(|gathers| gathers()) {
            return node.poll_transmit(self.now, buffer);
        }
        let gather = node.poll_transmit_gather(self.now, buffer)?;
        if !gather.payload.is_empty() {
            self.lent += 1;
            let packets = gather.packets(buffer);
            let whole = packets.flat_map(|(header, data)| [header, data].concat());
            let whole: Vec<u8> = whole.collect();
            buffer[..whole.len()].copy_from_slice(&whole);
        }
        Some(gather.transmit)
    }

    fn launch(&mut self, from: usize, to: usize, mut packet: Vec<u8>) {
        if self.cut.contains(&(from, to)) || self.cut.contains(&(to, from)) {
            return;
        }
        if let Some(filter) = &mut self.filter
            && !filter(from, to, &packet)
        {
            return;
        }
        let faults = self.faults;
        if self.random.permille(faults.loss) {
            return;
        }
        if self.random.permille(faults.duplicate) {
            let late = self.random.below(faults.late_ns.max(1));
            self.deliver_at(from, to, packet.clone(), late);
        }
        if self.random.permille(faults.corrupt) {
            let at = self.random.below(packet.len() as u64) as usize;
            // UDP's checksum would catch most of this; what it lets through must do no harm, so
            // only the header is hit, never the payload.
            packet[at.min(55)] ^= 1 << self.random.below(8);
        }
        let extra = if self.random.permille(faults.reorder) {
            self.random.below(100_000)
        } else {
            0
        };
        self.deliver_at(from, to, packet, extra);
    }

    fn deliver_at(&mut self, from: usize, to: usize, packet: Vec<u8>, extra: u64) {
        self.sent += 1;
        let at = self.now.as_nanos() + self.delay_ns + extra;
        self.flight.insert((at, self.sent), (from, to, packet));
    }

    pub(crate) fn check(&mut self, at: usize) {
        if self.checked
            && self.random_check()
            && let Err(what) = self.nodes[at].check_invariants()
        {
            panic!("node {at} at {:?}: {what}", self.now);
        }
    }

    fn random_check(&mut self) -> bool {
        self.check_every <= 1 || self.checks.below(self.check_every) == 0
    }

    /// What the applications see now.
    pub(crate) fn events(&mut self, at: usize) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(event) = self.nodes[at].poll_event() {
            self.check(at);
            seen.push(match event {
                Event::Request {
                    rpc,
                    from,
                    message,
                    port,
                    ..
                } => {
                    assert_eq!(port, PORT);
                    let bytes = message.to_vec();
                    self.nodes[at].recycle(self.now, message);
                    Seen::Request { rpc, from, bytes }
                }
                Event::Response {
                    cookie, message, ..
                } => {
                    let bytes = message.to_vec();
                    self.nodes[at].recycle(self.now, message);
                    Seen::Response { cookie, bytes }
                }
                Event::Failed { cookie, error, .. } => Seen::Failed { cookie, error },
                Event::Released { outcome, .. } => Seen::Released { outcome },
                other => panic!("{other:?}"),
            });
        }
        self.flush(at);
        seen
    }

    /// Moves to the next thing that happens. `false`: nothing will, or not before `until`.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        let packet = self
            .flight
            .keys()
            .next()
            .map(|&(at, _)| Instant::from_nanos(at));
        let mut next: Option<(Instant, Option<usize>)> = packet.map(|at| (at, None));
        for (i, node) in self.nodes.iter_mut().enumerate() {
            if let Some((at, _)) = node.poll_timeout()
                && next.is_none_or(|(soonest, _)| at < soonest)
            {
                next = Some((at, Some(i)));
            }
        }
        let Some((at, what)) = next.filter(|&(at, _)| at <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        if at > self.now {
            self.now = at;
            self.idle_polls = 0;
        } else {
            self.idle_polls += 1;
            assert!(self.idle_polls < 200_000, "time stands still");
        }
        match what {
            None => {
                let key = *self.flight.keys().next().unwrap();
                let (from, to, packet) = self.flight.remove(&key).unwrap();
                let batch = self.batch(from, to, packet.clone());
                let node = &mut self.nodes[to];
                if self.joins == Some(true) {
                    node.handle_packets(self.now, addr(from), None, &batch, packet.len());
                } else {
                    for packet in batch.chunks(packet.len()) {
                        if let Err(why) = node.handle_packet(self.now, addr(from), None, packet) {
                            *self.drops.entry(why).or_default() += 1;
                        }
                    }
                }
                self.check(to);
                self.flush(to);
            }
            Some(i) => {
                self.nodes[i].handle_timeout(self.now);
                self.flush(i);
                if let Some((at, reason)) = self.nodes[i].poll_timeout() {
                    assert!(
                        at > self.now || reason == TimeoutReason::MoreWork,
                        "node {i}: {reason:?} at {at:?} after handle_timeout({:?})",
                        self.now
                    );
                }
            }
        }
        true
    }

    /// The packet and, if packets are joined, those that came with it.
    fn batch(&mut self, from: usize, to: usize, first: Vec<u8>) -> Vec<u8> {
        let (size, mut batch) = (first.len(), first);
        while self.joins.is_some()
            && batch.len() % size == 0
            && let Some((&key, next)) = self.flight.first_key_value()
            && key.0 == self.now.as_nanos()
            && (next.0, next.1) == (from, to)
            && next.2.len() <= size
        {
            batch.extend(self.flight.remove(&key).unwrap().2);
        }
        batch
    }

    /// Runs echo servers everywhere until nothing is left to do; what clients saw, by cookie.
    pub(crate) fn echo_until_quiet(&mut self, limit_ns: u64) -> HashMap<(usize, u64), Seen> {
        let until = self.now.after(limit_ns);
        let mut outcomes = HashMap::new();
        loop {
            for at in 0..self.nodes.len() {
                for seen in self.events(at) {
                    match seen {
                        Seen::Request { rpc, bytes, .. } => {
                            self.respond(at, rpc, bytes);
                        }
                        Seen::Response { cookie, .. } | Seen::Failed { cookie, .. } => {
                            let old = outcomes.insert((at, cookie), seen);
                            assert!(old.is_none(), "two outcomes of {cookie}");
                        }
                        Seen::Released { .. } => {}
                    }
                }
            }
            if !self.step(until) {
                return outcomes;
            }
        }
    }

    /// All state has drained.
    pub(crate) fn assert_idle(&mut self) {
        for (i, node) in self.nodes.iter_mut().enumerate() {
            assert_eq!(
                node.live_rpcs(),
                0,
                "node {i} has RPCs left: {:?}",
                node.stats()
            );
            assert_eq!(node.total_incoming(), 0);
            assert_eq!(node.poll_timeout(), None, "node {i} is not idle");
            node.check_invariants().unwrap();
        }
    }
}

/// Every byte is what the packet's fields say: reserved ones are 0, none is left unwritten.
pub(crate) fn assert_well_formed(packet: &[u8]) {
    let repr = Repr::parse(packet, MAX_MESSAGE).expect("what is sent can be parsed");
    let mut again = [0x55; 1500];
    let len = repr.emit(&mut again).expect("it fits");
    assert_eq!(packet, &again[..len], "{repr:?}");
}
