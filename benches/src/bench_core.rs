//! The core alone: two endpoints joined in memory in one thread. Every packet is really encoded
//! by one and parsed by the other; no socket and no clock is touched.

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
type Message = FixedBuffer<'static>;
type Core = Endpoint<'static, Message, Source>;

/// Time that passes between the endpoints for each packet: their clock is made up, so that what
/// is measured does not depend on when the machine stalls.
const NANOS_PER_PACKET: u64 = 100;
/// RPCs started and answered together: what a driver receives in one batch.
const BATCH: usize = 32;

/// What is exchanged.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// RPCs live at any time, at least [`BATCH`].
    pub live: usize,
    /// Room in the tables; `live` or more.
    pub capacity: usize,
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of a reply.
    pub reply: usize,
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
/// The server answers in random order whenever it holds more than `live` − [`BATCH`] requests, and each
/// answer starts a new request: so the state touched by a packet is anywhere among all that
/// is live.
pub struct Pair {
    client: Side,
    server: Side,
    shape: Shape,
    held: Vec<(RpcId, Message)>,
    /// Requests that have come back, to be sent again.
    idle: Vec<Message>,
    packets_buffer: Vec<u8>,
    rng: Rng,
    now: u64,
    work: Work,
}

impl Pair {
    /// Two endpoints; the first RPCs are started by [`Pair::run`].
    pub fn new(shape: Shape) -> Result<Self> {
        ensure!(shape.live >= BATCH && shape.capacity >= shape.live, "{shape:?}");
        let side = |port: u16| -> Result<Side> {
            let config = Config {
                max_message: shape.request.max(shape.reply) as u32,
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
        let idle = (0..shape.live).map(|_| requests.take(shape.request));
        let idle: Option<Vec<Message>> = idle.collect();
        Ok(Self {
            client: side(1)?,
            server: side(2)?,
            shape,
            held: Vec::with_capacity(shape.live),
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
        let to = PeerAddr::from(self.server.address);
        while let Some(message) = self.idle.pop() {
            let options = RequestOptions::default();
            self.client.core.send_request(now, to, message, options)?;
        }
        carry(&mut self.client, &mut self.server, &mut self.packets_buffer, now, &mut self.work);
        self.serve(now)?;
        carry(&mut self.server, &mut self.client, &mut self.packets_buffer, now, &mut self.work);
        while let Some(event) = self.client.core.poll_event() {
            match event {
                Event::Response { message, request, .. } => {
                    ensure!(message.as_ref().len() == self.shape.reply, "a short reply");
                    self.client.core.recycle(now, message);
                    self.idle.push(request);
                    self.work.rpcs += 1;
                }
                other => return Err(anyhow!("unexpected at the client: {other:?}")),
            }
        }
        self.now += 1;
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
                    ensure!(message.as_ref().len() == self.shape.request, "a short request");
                    self.held.push((rpc, message));
                }
                Event::Released { response, outcome, .. } => {
                    outcome?;
                    core.recycle(now, response);
                }
                other => return Err(anyhow!("unexpected at the server: {other:?}")),
            }
        }
        while self.held.len() > self.shape.live - BATCH {
            let pick = self.rng.below(self.held.len() as u64) as usize;
            let (rpc, mut message) = self.held.swap_remove(pick);
            message.truncate(self.shape.reply);
            core.send_response(now, rpc, message)?;
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
