//! The core alone: two endpoints joined in memory in one thread. Every packet is really encoded
//! by one and parsed by the other; no socket and no clock is touched.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant as Clock};

use anyhow::{Result, anyhow, ensure};
use homa_proto::{
    BufferSource, Config, Endpoint, Event, FixedBuffer, FixedBuffers, Instant, Limits, PeerAddr,
    RequestOptions, RpcId, Storage,
};
use serde::Serialize;

use crate::alloc;
use crate::report::{median, table, thousands};
use crate::workload::Rng;

type Source = FixedBuffers<'static, 1>;
type Incoming = FixedBuffer<'static>;
type Core = Endpoint<'static, Outgoing, Source>;

/// The first `len` bytes of a buffer: a request is sent back as a shorter reply.
#[derive(Debug)]
struct Outgoing {
    memory: Incoming,
    len: usize,
}

impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// Time that passes between the endpoints for each packet: their clock is made up, so that what
/// is measured does not depend on when the machine stalls.
const NANOS_PER_PACKET: u64 = 100;
/// RPCs started and answered together: what a driver receives in one batch.
const BATCH: usize = 32;

/// What is exchanged.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// RPCs live at any time, at least 1.
    pub live: usize,
    /// Room in the tables; `live` or more.
    pub capacity: usize,
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of a reply.
    pub reply: usize,
    /// Which of the requests that it holds the server answers next.
    pub order: Order,
}

/// The order in which a server answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As they came: each takes the same time.
    Oldest,
    /// Any: the state of an RPC is nowhere near that of the one before, and in no cache.
    Random,
}

/// What a stretch of exchange took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// RPCs completed.
    pub rpcs: u64,
    /// Packets carried, both ways.
    pub packets: u64,
    /// Time taken.
    pub elapsed: Duration,
}

struct Side {
    core: Core,
    address: SocketAddr,
}

/// A client and a server with a number of RPCs always live.
///
/// The server holds all but a batch of the requests and answers one when one more comes; each
/// reply starts a new request.
pub struct Pair {
    client: Side,
    server: Side,
    shape: Shape,
    /// Requests that wait for an answer at the server, and how many may.
    held: VecDeque<(RpcId, Incoming)>,
    hold: usize,
    /// Requests that have come back, to be sent again.
    idle: Vec<Outgoing>,
    packets_buffer: Vec<u8>,
    rng: Rng,
    now: u64,
    work: Work,
}

impl Pair {
    /// Two endpoints; the first RPCs are started by [`Pair::run`].
    pub fn new(shape: Shape) -> Result<Self> {
        ensure!(shape.live > 0 && shape.capacity >= shape.live, "{shape:?}");
        let side = |port: u16| -> Result<Side> {
            let config = Config {
                max_message: shape.request.max(shape.reply) as u32,
                // All of the load comes from one peer.
                max_peer_requests: u32::MAX,
                max_peer_bytes: u64::MAX,
                ..Config::default()
            };
            let limits = Limits {
                rpcs: shape.capacity,
                ..Limits::default()
            };
            let source = fixed_buffers(shape)?;
            let seed = u128::from(port);
            let mut core = Core::new(config, seed, Storage::boxed(limits), source)?;
            core.open_port(port)?;
            let address = (Ipv4Addr::LOCALHOST, port).into();
            Ok(Side { core, address })
        };
        // Requests come from a source of their own: what is handed out there comes back as the
        // request of a response.
        let mut requests = fixed_buffers(shape)?;
        let idle = (0..shape.live).map(|_| {
            let memory = requests.take(shape.request)?;
            let len = shape.request;
            Some(Outgoing { memory, len })
        });
        let idle: Option<Vec<Outgoing>> = idle.collect();
        Ok(Self {
            client: side(1)?,
            server: side(2)?,
            shape,
            held: VecDeque::with_capacity(2 * shape.live),
            hold: shape.live.saturating_sub(BATCH),
            idle: idle.ok_or_else(|| anyhow!("too few buffers"))?,
            packets_buffer: vec![0; 1 << 16],
            rng: Rng::new(1),
            now: 1,
            work: Work::default(),
        })
    }

    /// Runs until `done` RPCs more have completed.
    pub fn run(&mut self, done: u64) -> Result<Work> {
        self.work = Work::default();
        let start = Clock::now();
        let mut idle_rounds = 0;
        while self.work.rpcs < done {
            let before = self.work;
            self.round()?;
            // Only time can help when a round moves nothing.
            if (before.packets, before.rpcs) == (self.work.packets, self.work.rpcs) {
                self.now += 10_000;
                idle_rounds += 1;
                ensure!(idle_rounds < 1_000_000, "the exchange stands still");
            } else {
                idle_rounds = 0;
            }
        }
        self.work.elapsed = start.elapsed();
        Ok(self.work)
    }

    fn round(&mut self) -> Result<()> {
        let now = Instant::from_nanos(self.now);
        let packets = self.work.packets;
        let to = PeerAddr::from(self.server.address);
        while let Some(message) = self.idle.pop() {
            let options = RequestOptions::default();
            self.client.core.send_request(now, to, message, options)?;
        }
        carry(
            &mut self.client,
            &mut self.server,
            &mut self.packets_buffer,
            now,
            &mut self.work,
        );
        self.serve(now)?;
        carry(
            &mut self.server,
            &mut self.client,
            &mut self.packets_buffer,
            now,
            &mut self.work,
        );
        while let Some(event) = self.client.core.poll_event() {
            match event {
                Event::Response {
                    message, request, ..
                } => {
                    ensure!(message.as_ref().len() == self.shape.reply, "a short reply");
                    self.client.core.recycle(now, message);
                    self.idle.push(request);
                    self.work.rpcs += 1;
                }
                other => return Err(anyhow!("unexpected at the client: {other:?}")),
            }
        }
        self.now += NANOS_PER_PACKET * (self.work.packets - packets);
        for side in [&mut self.client, &mut self.server] {
            while side.core.poll_timeout().is_some_and(|(at, _)| at <= now) {
                side.core.handle_timeout(now);
            }
        }
        Ok(())
    }

    fn serve(&mut self, now: Instant) -> Result<()> {
        let core = &mut self.server.core;
        while let Some(event) = core.poll_event() {
            match event {
                Event::Request { rpc, message, .. } => {
                    ensure!(
                        message.as_ref().len() == self.shape.request,
                        "a short request"
                    );
                    self.held.push_back((rpc, message));
                }
                Event::Released {
                    response, outcome, ..
                } => {
                    outcome?;
                    core.recycle(now, response.memory);
                }
                other => return Err(anyhow!("unexpected at the server: {other:?}")),
            }
        }
        while self.held.len() > self.hold {
            let pick = match self.shape.order {
                Order::Oldest => 0,
                Order::Random => self.rng.below(self.held.len() as u64) as usize,
            };
            let Some((rpc, memory)) = self.held.swap_remove_front(pick) else {
                break;
            };
            let len = self.shape.reply;
            core.send_response(now, rpc, Outgoing { memory, len })?;
        }
        Ok(())
    }
}

/// Buffers for every RPC that can be live and for the replies that wait to be acknowledged.
fn fixed_buffers(shape: Shape) -> Result<Source> {
    let len = shape.request.max(shape.reply);
    let count = shape.capacity;
    let memory = Box::leak(vec![0u8; count * len].into_boxed_slice());
    let slots = Box::leak((0..count).map(|_| None).collect());
    FixedBuffers::new([(memory, len)], slots).ok_or_else(|| anyhow!("too few slots"))
}

/// Carries all that `from` has to send to `to`.
fn carry(from: &mut Side, to: &mut Side, buffer: &mut [u8], now: Instant, work: &mut Work) {
    while let Some(transmit) = from.core.poll_transmit(now, buffer) {
        let sent = &buffer[..transmit.len];
        for packet in sent.chunks(transmit.segment_size.unwrap_or(sent.len())) {
            work.packets += 1;
            // A refusal is the receiver's to count; what matters completes all the same.
            let _ = to.core.handle_packet(now, from.address, None, packet);
        }
    }
}

/// What `homa bench core` finds.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Complete RPCs of 100 bytes each way per second.
    pub rpcs_per_second_100b: f64,
    /// Payload of 1 MB requests at MTU 1500, in Gb/s.
    pub gbps_1mb: f64,
    /// Cost of a packet, sent and received, with 100 live RPCs.
    pub ns_per_packet_100: f64,
    /// The same with 100,000, answered as they came.
    pub ns_per_packet_100k: f64,
    /// The same with 100,000, answered in random order: little of what a packet touches is in
    /// a cache.
    pub ns_per_packet_100k_random: f64,
    /// `ns_per_packet_100k` over `ns_per_packet_100`.
    pub packet_cost_ratio: f64,
    /// All table memory for each RPC that an endpoint has room for.
    pub bytes_per_rpc: usize,
    /// All table memory for each peer that an endpoint has room for.
    pub bytes_per_peer: usize,
    /// Allocations during all measured stretches together.
    pub steady_state_allocations: u64,
    /// Each figure above is the median of so many runs.
    pub runs: usize,
}

/// 100-byte requests and replies, a batch at a time.
pub const SMALL: Shape = Shape {
    live: BATCH,
    capacity: 4096,
    request: 100,
    reply: 100,
    order: Order::Oldest,
};

/// 1 MB requests with short replies, a few at a time.
pub const LARGE: Shape = Shape {
    live: 4,
    capacity: 64,
    request: 1_000_000,
    reply: 1,
    order: Order::Oldest,
};

/// 100-byte RPCs with so many live. The tables have the same size whatever the number.
#[must_use]
pub const fn crowd(live: usize, order: Order) -> Shape {
    Shape {
        live,
        capacity: 1 << 17,
        request: 100,
        reply: 100,
        order,
    }
}

/// Measures; `progress` hears which run is next.
pub fn run(quick: bool, progress: &mut dyn FnMut(usize, usize)) -> Result<Figures> {
    ensure!(
        alloc::is_installed(),
        "this program does not count its allocations"
    );
    let runs = if quick { 3 } else { 7 };
    let scale = if quick { 1 } else { 4 };
    let mut small = Pair::new(SMALL)?;
    let mut large = Pair::new(LARGE)?;
    let mut few = Pair::new(crowd(100, Order::Oldest))?;
    let mut many = Pair::new(crowd(100_000, Order::Oldest))?;
    let mut random = Pair::new(crowd(100_000, Order::Random))?;
    small.run(100_000)?;
    large.run(200)?;
    few.run(100_000)?;
    many.run(300_000)?;
    random.run(300_000)?;

    let mut figures: [Vec<f64>; 5] = Default::default();
    let mut allocations = 0;
    for run in 0..runs {
        progress(run, runs);
        let before = alloc::allocations();
        let small = small.run(100_000 * scale)?;
        let large = large.run(200 * scale)?;
        let few = few.run(50_000 * scale)?;
        let many = many.run(50_000 * scale)?;
        let random = random.run(50_000 * scale)?;
        allocations += alloc::allocations() - before;
        let seconds = small.elapsed.as_secs_f64();
        figures[0].push(small.rpcs as f64 / seconds);
        let bits = large.rpcs as f64 * LARGE.request as f64 * 8.0;
        figures[1].push(bits / large.elapsed.as_nanos() as f64);
        for (work, figures) in [few, many, random].iter().zip(&mut figures[2..]) {
            figures.push(work.elapsed.as_nanos() as f64 / work.packets as f64);
        }
    }
    progress(runs, runs);
    let [
        rpcs_per_second_100b,
        gbps_1mb,
        ns_per_packet_100,
        ns_per_packet_100k,
        ns_per_packet_100k_random,
    ] = figures.map(|runs| median(&runs));
    Ok(Figures {
        rpcs_per_second_100b,
        gbps_1mb,
        ns_per_packet_100,
        ns_per_packet_100k,
        ns_per_packet_100k_random,
        packet_cost_ratio: ns_per_packet_100k / ns_per_packet_100,
        bytes_per_rpc: Storage::<Outgoing, Incoming>::bytes_per_rpc(),
        bytes_per_peer: Storage::<Outgoing, Incoming>::bytes_per_peer(),
        steady_state_allocations: allocations,
        runs,
    })
}

impl Figures {
    /// The figures as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let rows = [
            (
                "RPCs of 100 B per second",
                thousands(self.rpcs_per_second_100b as u64),
            ),
            (
                "payload of 1 MB messages",
                format!("{:.1} Gb/s", self.gbps_1mb),
            ),
            (
                "packet, 100 live RPCs",
                format!("{:.0} ns", self.ns_per_packet_100),
            ),
            (
                "packet, 100,000 live RPCs",
                format!("{:.0} ns", self.ns_per_packet_100k),
            ),
            (
                "the same, answered in random order",
                format!("{:.0} ns", self.ns_per_packet_100k_random),
            ),
            (
                "100,000 over 100 live RPCs",
                format!("{:.2}×", self.packet_cost_ratio),
            ),
            ("table memory per RPC", format!("{} B", self.bytes_per_rpc)),
            (
                "table memory per peer",
                format!("{} B", self.bytes_per_peer),
            ),
            (
                "allocations in steady state",
                thousands(self.steady_state_allocations),
            ),
        ];
        let rows: Vec<Vec<String>> = rows.map(|(name, value)| vec![name.into(), value]).into();
        table(&["core", "median"], &rows)
    }
}
