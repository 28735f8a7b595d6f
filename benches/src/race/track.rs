//! The runs of one scenario.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::figures::{Cell, Sample};
use super::scenario::Shape;
use super::{Scenario, Transport};
use crate::load::{ClosedLoop, Run, closed_loop, open_loop};
use crate::report::Latencies;
use crate::transport::{Client, ServerThread, Setup};
use crate::workload::{MAX_BYTES, Pattern, Rng, Sizes, arrivals};
use crate::{raw_udp, sys};

/// What holds for all scenarios.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) mtu: u16,
    pub(super) runs: usize,
    pub(super) duration: Duration,
    /// That the process may use.
    pub(super) cpus: usize,
}

/// What has not ended this long after it should have has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of what the slowest of Homa and TCP carries, the share that an open load offers.
const LOAD: f64 = 0.5;
/// A transport that carries less than this many times the offered load takes no part: its queues
/// would grow for as long as the run lasts.
const HEADROOM: f64 = 1.1;

/// Runs a scenario; `ran` hears of each run that is done.
pub(super) fn race(
    scenario: Scenario,
    transports: &[Transport],
    plan: &Plan,
    ran: &mut dyn FnMut(),
) -> Result<Vec<(Transport, Cell)>> {
    let mut track = Track::new(scenario, transports, plan)?;
    if scenario == Scenario::Mixed {
        track.calibrate()?;
    }
    for run in 0..plan.runs {
        for lane in 0..track.lanes.len() {
            track.run(lane, run)?;
            ran();
        }
    }
    track.finish()
}

/// A transport that runs.
struct Lane {
    transport: Transport,
    /// `None` for raw UDP, which makes its sockets anew.
    client: Option<Box<dyn Client>>,
    /// Which server is its own.
    server: usize,
    cell: Cell,
    out: bool,
}

struct Track<'a> {
    scenario: Scenario,
    shape: Shape,
    setup: Setup,
    plan: &'a Plan,
    lanes: Vec<Lane>,
    thread: ServerThread,
    pattern: Pattern,
    sizes: Sizes,
    next_id: u64,
    /// RPCs per second of an open load.
    offered: f64,
}

/// What both ends have used so far.
struct Usage {
    cpu: Duration,
    client_cpu: Duration,
    system_calls: Option<u64>,
    server_allocations: u64,
}

impl<'a> Track<'a> {
    fn new(scenario: Scenario, transports: &[Transport], plan: &'a Plan) -> Result<Self> {
        let shape = scenario.shape();
        let setup = Setup {
            reply: shape.reply,
            sleep: shape.sleep,
            mtu: plan.mtu,
            peers: shape.peers,
        };
        let mut servers = Vec::new();
        let mut lanes = Vec::new();
        for &transport in transports {
            let mut lane = Lane {
                transport,
                client: None,
                server: servers.len(),
                cell: Cell::default(),
                out: false,
            };
            match transport.pair(setup) {
                Ok(Some((client, server))) => {
                    lane.client = Some(client);
                    servers.push(server);
                }
                Ok(None) => {}
                // Not every kernel has everything.
                Err(error) => {
                    lane.cell.missing = Some(format!("{error:#}"));
                    lane.out = true;
                }
            }
            lanes.push(lane);
        }
        let mut track = Self {
            scenario,
            shape,
            setup,
            plan,
            lanes,
            thread: ServerThread::spawn(servers)?,
            pattern: Pattern::new(1, MAX_BYTES as usize),
            sizes: Sizes::w4(),
            next_id: 1,
            offered: 0.0,
        };
        for lane in 0..track.lanes.len() {
            track.warm_up(lane)?;
        }
        Ok(track)
    }

    /// The first run of a transport, which also shows how much memory it takes.
    fn warm_up(&mut self, lane: usize) -> Result<()> {
        let Some(server) = self.enter(lane) else {
            return Ok(());
        };
        let before = sys::resident_bytes();
        self.thread.select(server);
        self.closed(lane, self.plan.duration / 5)?;
        self.thread.rest();
        if let (Some(before), Some(after)) = (before, sys::resident_bytes()) {
            self.lanes[lane].cell.memory_bytes = Some(after.saturating_sub(before));
        }
        Ok(())
    }

    /// The server of a lane that runs through the seam.
    fn enter(&self, lane: usize) -> Option<usize> {
        let lane = &self.lanes[lane];
        (!lane.out && lane.client.is_some()).then_some(lane.server)
    }

    /// What each transport carries of the mixed load in a closed loop decides how much is offered.
    fn calibrate(&mut self) -> Result<()> {
        let mut slowest = f64::INFINITY;
        let mut capacities = Vec::new();
        for lane in 0..self.lanes.len() {
            let Some(server) = self.enter(lane) else {
                continue;
            };
            self.thread.select(server);
            let capacity = self.closed(lane, self.plan.duration)?.rate();
            self.thread.rest();
            capacities.push((lane, capacity));
            let transport = self.lanes[lane].transport;
            if transport.is_homa() || transport.is_tcp() {
                slowest = slowest.min(capacity);
            }
        }
        // Without Homa and TCP, whoever is there.
        let slowest = capacities
            .iter()
            .map(|(_, capacity)| *capacity)
            .filter(|_| !slowest.is_finite())
            .fold(slowest, f64::min);
        self.offered = LOAD * slowest;
        let gbps = |rate: f64| rate * self.sizes.mean() * 8.0 / 1e9;
        for (lane, capacity) in capacities {
            self.lanes[lane].cell.offered_gbps = Some(gbps(self.offered));
            if capacity < HEADROOM * self.offered {
                self.lanes[lane].out = true;
                self.lanes[lane].cell.missing = Some(format!(
                    "carries {:.2} Gb/s each way, {:.2} Gb/s are offered",
                    gbps(capacity),
                    gbps(self.offered)
                ));
            }
        }
        Ok(())
    }

    fn run(&mut self, lane: usize, run: usize) -> Result<()> {
        if self.lanes[lane].out {
            return Ok(());
        }
        let Some(server) = self.enter(lane) else {
            let sample = self.raw()?;
            self.lanes[lane].cell.samples.push(sample);
            self.lanes[lane].cell.settings = "connected sockets, GSO and GRO".into();
            return Ok(());
        };
        self.thread.select(server);
        self.closed(lane, self.plan.duration / 5)?;
        let before = self.usage(lane);
        let ended = if self.scenario == Scenario::Mixed {
            self.open(lane, run)?
        } else {
            self.closed(lane, self.plan.duration)?
        };
        let cpu = (sys::process_cpu(), sys::thread_cpu());
        let after = self.usage(lane);
        self.thread.rest();
        ensure!(!ended.latencies.is_empty(), "not one RPC ended");
        let rpcs = ended.latencies.len() as u64;
        let calls = after.system_calls.zip(before.system_calls);
        let server_allocations = after.server_allocations - before.server_allocations;
        let sample = Sample::new(
            self.scenario,
            &ended.latencies,
            ended.request_bytes,
            ended.elapsed,
            cpu.0 - before.cpu,
            calls.map(|(after, before)| after - before),
        );
        let sample = Sample {
            client_cpu_us_per_rpc: Some(
                (cpu.1 - before.client_cpu).as_secs_f64() * 1e6 / rpcs as f64,
            ),
            allocations_per_rpc: Some(
                (ended.allocations + server_allocations) as f64 / rpcs as f64,
            ),
            ..sample
        };
        let lane = &mut self.lanes[lane];
        lane.cell.samples.push(sample);
        if self.scenario == Scenario::Mixed {
            lane.cell.latencies.push(ended.latencies);
        }
        Ok(())
    }

    /// Asks the server's thread first, for it may take until it has slept.
    fn usage(&self, lane: usize) -> Usage {
        let server = self.thread.counters();
        let client = self.lanes[lane].client.as_ref();
        let client = client.and_then(|client| client.system_calls());
        Usage {
            cpu: sys::process_cpu(),
            client_cpu: sys::thread_cpu(),
            system_calls: client
                .zip(server.system_calls)
                .map(|(client, server)| client + server),
            server_allocations: server.allocations,
        }
    }

    fn closed(&mut self, lane: usize, duration: Duration) -> Result<Run> {
        let shape = ClosedLoop {
            outstanding: self.shape.outstanding,
            reply: self.shape.reply,
            first_id: self.next_id,
            duration,
            count: usize::MAX,
            patience: PATIENCE,
        };
        let mut rng = Rng::new(self.next_id);
        let (size, sizes, mixed) = (
            self.shape.size,
            &self.sizes,
            self.scenario == Scenario::Mixed,
        );
        let mut size = || if mixed { sizes.draw(&mut rng) } else { size };
        let Some(client) = &mut self.lanes[lane].client else {
            bail!("raw UDP carries no RPCs");
        };
        let run = closed_loop(client.as_mut(), shape, &self.pattern, &mut size);
        self.book(lane, run)
    }

    fn open(&mut self, lane: usize, run: usize) -> Result<Run> {
        let seconds = 2.0 * self.plan.duration.as_secs_f64();
        // The same for every transport.
        let arrivals = arrivals(&self.sizes, self.offered, seconds, run as u64 + 1);
        let Some(client) = &mut self.lanes[lane].client else {
            bail!("raw UDP carries no RPCs");
        };
        let (reply, first_id) = (self.shape.reply, self.next_id);
        let run = open_loop(
            client.as_mut(),
            &arrivals,
            reply,
            first_id,
            &self.pattern,
            PATIENCE,
            &mut |_| (),
        );
        self.book(lane, run)
    }

    /// Goes on with fresh ids, and keeps the errors, of warm-ups too. When the server's thread has
    /// failed, its error is the cause and the client's the effect.
    fn book(&mut self, lane: usize, run: Result<Run>) -> Result<Run> {
        if self.thread.failed() {
            self.thread.stop()?;
        }
        let run = run?;
        self.next_id += run.latencies.len() as u64 + run.errors;
        let cell = &mut self.lanes[lane].cell;
        cell.errors += run.errors;
        if cell.first_error.is_none() {
            cell.first_error.clone_from(&run.first_error);
        }
        Ok(run)
    }

    fn raw(&self) -> Result<Sample> {
        let (cpu, start) = (sys::process_cpu(), Instant::now());
        if self.scenario.shape().size > 100 {
            let bulk = raw_udp::throughput(self.setup, self.plan.duration)?;
            let sample = Sample::new(
                self.scenario,
                &Latencies::default(),
                bulk.bytes,
                start.elapsed(),
                sys::process_cpu() - cpu,
                None,
            );
            Ok(Sample {
                gbps: bulk.gbps,
                ..sample
            })
        } else {
            let size = self.shape.size as usize;
            let (latencies, calls) = raw_udp::ping_pong(self.setup, size, self.plan.duration)?;
            Ok(Sample::new(
                self.scenario,
                &latencies,
                (latencies.len() * size) as u64,
                start.elapsed(),
                sys::process_cpu() - cpu,
                Some(calls),
            ))
        }
    }

    fn finish(mut self) -> Result<Vec<(Transport, Cell)>> {
        self.thread.stop()?;
        let finished = self.lanes.into_iter().map(|mut lane| {
            // Now, so that features that were given up on the way show.
            if let Some(client) = &lane.client {
                lane.cell.settings = client.settings();
            }
            (lane.transport, lane.cell)
        });
        Ok(finished.collect())
    }
}
