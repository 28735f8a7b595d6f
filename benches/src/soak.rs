//! `homa soak`: proof that drivers stay up. A mixed load over loopback, with loss and repetition
//! injected below the drivers and clients that vanish and come back; a dead peer among healthy
//! ones; and a partition that never ends.

mod faults;
mod process;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use homa_mio::{Event, RequestOptions, RpcError, Wait};
use serde::Serialize;

use crate::report::{self, median, percentile};
use crate::sys;
use crate::workload::{Pattern, Rng, Sizes};
use faults::{Network, Shared, Socket};

/// Share of what is sent that is lost, and that goes twice.
const FAULTS: f64 = 0.01;
/// Longer messages of the workload are cut to this, in bytes: more of them end in a run.
const LONGEST: u32 = 300_000;
/// A message begins with its number.
const SHORTEST: u32 = 8;
/// RPCs that a client has under way.
const OUTSTANDING: usize = 8;
const CLIENTS: u64 = 2;
/// A server that was kept from running for so long, out of the time below, may be given up.
const STARVED: Duration = Duration::from_millis(400);
const STARVED_NEEDS: Duration = Duration::from_millis(500);
/// For so long after that clients may still notice: until their time-out, and some more.
const STARVED_FOR: Duration = Duration::from_secs(3);
/// No more than one RPC of so many may be given up for that reason.
const MOST_STARVED_OF: u64 = 1000;
/// Numbers of RPCs whose executions are remembered; older ones make room.
const REMEMBERED: u64 = 1 << 26;
/// When nothing answers any more everything must have been freed by then: a second until
/// clients give up, two for servers, and time for a machine that is busy with other things.
const FREED_WITHIN: Duration = Duration::from_secs(20);
/// Memory may grow by this much in a minute before it counts as a leak, in KiB.
const MAX_SLOPE: f64 = 1024.0;
/// A slope is told from noise only over so long a time.
const SLOPE_NEEDS: Duration = Duration::from_secs(60);
/// How long a socket goes on asking a dead peer.
const LIFE_OF_DEAD: Duration = Duration::from_millis(1_100);
/// What a dead peer may cost the healthy ones, in per cent of their throughput.
const MAX_DEAD_PEER_COST: f64 = 5.0;

/// What a soak found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Minutes of mixed load.
    pub minutes: f64,
    /// RPCs whose right reply came, under mixed load.
    pub rpcs: u64,
    /// Their bytes, both ways.
    pub bytes: u64,
    /// RPCs that failed or were answered wrongly for no reason that the faults give.
    pub unexplained_errors: u64,
    /// RPCs that failed because the machine did not let the server run for so long that clients gave
    /// it up.
    pub errors_by_starvation: u64,
    /// What the first unexplained error was.
    pub first_error: Option<String>,
    /// Requests that a server ran more than once.
    pub duplicate_executions: u64,
    /// Clients that vanished with RPCs under way, and came back.
    pub clients_killed: u64,
    /// RPCs that vanished with them.
    pub rpcs_killed: u64,
    /// Per cent of batches that were lost.
    pub lost_percent: f64,
    /// Per cent that went twice.
    pub repeated_percent: f64,
    /// Slope of the resident memory after warming up.
    pub rss_slope_kib_per_minute: f64,
    /// Its standard error: clients that come and go make memory go up and down.
    pub rss_slope_error: f64,
    /// Resident memory at the end of the mixed load.
    pub rss_kib: f64,
    /// The most file descriptors in the second half of the mixed load, less those in the first.
    pub descriptors_grown: i64,
    /// What a dead peer costs healthy ones, in per cent of their throughput.
    pub dead_peer_cost_percent: f64,
    /// After a partition that does not end, until everything was freed, in seconds.
    pub partition_freed_after_s: Option<f64>,
    /// Latency of RPCs of 100 B each way under loss.
    pub loss: Vec<LossRow>,
    /// What is not as it should be.
    pub failures: Vec<String>,
}

/// Small RPCs under loss, one after another.
#[derive(Clone, Debug, Serialize)]
pub struct LossRow {
    /// Per cent of packets lost.
    pub loss_percent: f64,
    /// RPCs measured.
    pub rpcs: usize,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// Runs all of it. `progress` hears what is done now, and how many RPCs have ended.
pub fn run(minutes: f64, progress: &mut dyn FnMut(&str, u64)) -> Result<Outcome> {
    let mut outcome = Outcome {
        minutes,
        ..Outcome::default()
    };
    mixed_load(
        Duration::from_secs_f64(minutes * 60.0),
        &mut outcome,
        progress,
    )?;
    let is_long = minutes >= 1.0;
    progress("a dead peer", outcome.rpcs);
    outcome.dead_peer_cost_percent = dead_peer(if is_long { 12 } else { 4 })?;
    progress("a partition", outcome.rpcs);
    outcome.partition_freed_after_s = partition()?.map(|time| time.as_secs_f64());
    progress("latency under loss", outcome.rpcs);
    let time = Duration::from_secs(if is_long { 10 } else { 1 });
    for loss in [0.0, 0.001, 0.01, 0.05] {
        outcome.loss.push(latency_under_loss(loss, time)?);
    }
    outcome.judge();
    Ok(outcome)
}

impl Outcome {
    fn judge(&mut self) {
        let mut fail = |is_wrong: bool, what: String| {
            if is_wrong {
                self.failures.push(what);
            }
        };
        fail(self.rpcs == 0, "no RPC has ended".into());
        fail(
            self.unexplained_errors > 0,
            format!("{} unexplained errors", self.unexplained_errors),
        );
        let starved = self.errors_by_starvation;
        fail(
            starved * MOST_STARVED_OF > self.rpcs,
            format!("{starved} RPCs given up: the machine is too busy to tell"),
        );
        fail(
            self.duplicate_executions > 0,
            format!("{} requests ran twice", self.duplicate_executions),
        );
        let is_long = self.minutes * 60.0 * 0.75 >= SLOPE_NEEDS.as_secs_f64();
        fail(
            is_long && self.rss_slope_kib_per_minute - 3.0 * self.rss_slope_error > MAX_SLOPE,
            format!(
                "memory grows by {:.0} KiB a minute",
                self.rss_slope_kib_per_minute
            ),
        );
        fail(
            self.descriptors_grown > 0,
            format!("{} file descriptors too many", self.descriptors_grown),
        );
        fail(
            self.dead_peer_cost_percent > MAX_DEAD_PEER_COST,
            format!("a dead peer costs {:.1} %", self.dead_peer_cost_percent),
        );
        fail(
            self.partition_freed_after_s.is_none(),
            "something is left after a partition".into(),
        );
    }

    /// The figures, to print.
    #[must_use]
    pub fn table(&self) -> String {
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        let freed = self
            .partition_freed_after_s
            .map_or("never".into(), |s| format!("{s:.1} s"));
        let rows = [
            row("RPCs", report::thousands(self.rpcs)),
            row("unexplained errors", self.unexplained_errors.to_string()),
            row(
                "given up as the server was starved",
                self.errors_by_starvation.to_string(),
            ),
            row(
                "duplicate executions",
                self.duplicate_executions.to_string(),
            ),
            row("clients killed", self.clients_killed.to_string()),
            row("RPCs killed with them", self.rpcs_killed.to_string()),
            row(
                "lost, repeated",
                format!("{:.2} %, {:.2} %", self.lost_percent, self.repeated_percent),
            ),
            row(
                "memory grows by",
                format!("{:.0} KiB/min", self.rss_slope_kib_per_minute),
            ),
            row("descriptors grown", self.descriptors_grown.to_string()),
            row(
                "a dead peer costs",
                format!("{:.1} %", self.dead_peer_cost_percent),
            ),
            row("freed after a partition", freed),
        ];
        let loss = self.loss.iter().map(|row| {
            let micros = |us| report::micros(Some(us));
            vec![
                format!("{} %", row.loss_percent),
                report::thousands(row.rpcs as u64),
                micros(row.p50_us),
                micros(row.p99_us),
                micros(row.p999_us),
            ]
        });
        let loss: Vec<_> = loss.collect();
        report::table(&["soak", ""], &rows)
            + "\n"
            + &report::table(&["100 B, loss", "RPCs", "P50", "P99", "P99.9"], &loss)
    }
}

fn bind(network: Network, wait: Wait) -> Result<Socket> {
    let options = homa_mio::Socket::builder().wait(wait);
    Ok(options.bind_with((Ipv4Addr::LOCALHOST, 0).into(), faulty(network))?)
}

fn faulty(network: Network) -> homa_mio::sys::Faulty<Network> {
    homa_mio::sys::Faulty::new(network)
}

// Mixed load.

/// What the threads of a run share.
struct Load {
    network: Arc<Shared>,
    /// Clients begin nothing more.
    stop: AtomicBool,
    /// And all of them have gone.
    done: AtomicBool,
    /// The number of the next RPC.
    next: AtomicU64,
    rpcs: AtomicU64,
    bytes: AtomicU64,
    killed: AtomicU64,
    rpcs_killed: AtomicU64,
    /// When the server last was starved, in nanoseconds after the start.
    starved_at: AtomicU64,
    errors_by_starvation: AtomicU64,
    start: Instant,
    sizes: Sizes,
    pattern: Pattern,
}

impl Load {
    fn is_server_starved(&self) -> bool {
        // It may be only about to find out.
        std::thread::sleep(STARVED_NEEDS);
        let at = Duration::from_nanos(self.starved_at.load(Relaxed));
        at > Duration::ZERO && self.start.elapsed() < at + STARVED_FOR
    }
}

/// Errors that nothing explains.
#[derive(Default)]
struct Errors {
    count: u64,
    first: Option<String>,
}

impl Errors {
    fn add(&mut self, what: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(what);
    }
}

fn mixed_load(
    time: Duration,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<()> {
    let load = Load {
        network: Arc::default(),
        stop: AtomicBool::new(false),
        done: AtomicBool::new(false),
        next: AtomicU64::new(0),
        rpcs: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        killed: AtomicU64::new(0),
        rpcs_killed: AtomicU64::new(0),
        starved_at: AtomicU64::new(0),
        errors_by_starvation: AtomicU64::new(0),
        start: Instant::now(),
        sizes: Sizes::w4(),
        pattern: Pattern::new(7, LONGEST as usize),
    };
    // Bound here, so that the clients know where it is.
    let network = Network::new(&load.network, 1, FAULTS, FAULTS);
    let server = bind(network, Wait::Sleep)?;
    let to = server.local_addr();
    let mut samples = Vec::new();
    let mut descriptors = Vec::new();
    let (duplicates, errors) = std::thread::scope(|scope| -> Result<_> {
        let server = scope.spawn(|| serve(server, &load));
        let clients = (0..CLIENTS).map(|client| {
            let load = &load;
            scope.spawn(move || ask(client, to, load))
        });
        let clients: Vec<_> = clients.collect();
        let start = Instant::now();
        while start.elapsed() < time {
            let rest = time.saturating_sub(start.elapsed());
            std::thread::sleep(rest.min(Duration::from_millis(500)));
            progress("mixed load", load.rpcs.load(Relaxed));
            // Pools and tables fill at first.
            if start.elapsed() > time / 4 {
                samples.push((start.elapsed().as_secs_f64() / 60.0, rss_kib()?));
                descriptors.push(process::descriptors()?);
            }
            if clients.iter().any(|client| client.is_finished()) || server.is_finished() {
                break;
            }
        }
        load.stop.store(true, Relaxed);
        let joined: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        load.done.store(true, Relaxed);
        let mut all = Errors::default();
        for client in joined {
            let errors = client.map_err(|_| anyhow::anyhow!("a client panicked"))??;
            all.count += errors.count;
            all.first = all.first.or(errors.first);
        }
        let duplicates = server
            .join()
            .map_err(|_| anyhow::anyhow!("the server panicked"))??;
        Ok((duplicates, all))
    })?;
    let network = &load.network;
    let percent = |count: &AtomicU64| {
        100.0 * count.load(Relaxed) as f64 / network.sent.load(Relaxed).max(1) as f64
    };
    outcome.rpcs = load.rpcs.load(Relaxed);
    outcome.bytes = load.bytes.load(Relaxed);
    outcome.unexplained_errors = errors.count;
    outcome.first_error = errors.first;
    outcome.errors_by_starvation = load.errors_by_starvation.load(Relaxed);
    outcome.duplicate_executions = duplicates;
    outcome.clients_killed = load.killed.load(Relaxed);
    outcome.rpcs_killed = load.rpcs_killed.load(Relaxed);
    outcome.lost_percent = percent(&network.lost);
    outcome.repeated_percent = percent(&network.repeated);
    (outcome.rss_slope_kib_per_minute, outcome.rss_slope_error) =
        process::slope(&process::lows(&samples, 12));
    outcome.rss_kib = samples.last().map_or(0.0, |sample| sample.1);
    // While a client comes back it has none: the most of the first half, and of the second.
    let (first, second) = descriptors.split_at(descriptors.len() / 2);
    let most = |counts: &[usize]| counts.iter().max().map_or(0, |&most| most as i64);
    outcome.descriptors_grown = (most(second) - most(first)).max(0);
    if first.is_empty() {
        outcome.descriptors_grown = 0;
    }
    Ok(())
}

fn rss_kib() -> Result<f64> {
    let bytes = sys::resident_bytes().context("the system does not tell the resident memory")?;
    Ok(bytes as f64 / 1024.0)
}

/// Answers each request with its bytes, and counts those that come twice.
fn serve(mut socket: Socket, load: &Load) -> Result<u64> {
    // All of it is touched now, so that memory is level later.
    let mut ran = vec![0_u64; (REMEMBERED / 64) as usize];
    ran.fill(1);
    ran.fill(0);
    let (mut cleared, mut duplicates) = (0, 0);
    let mut looked = (Instant::now(), process::thread_delay()?);
    while !load.done.load(Relaxed) {
        // A server that does not come round because it hangs is not excused: only the time counts
        // in which it was ready to run and the system ran others.
        if looked.0.elapsed() >= STARVED_NEEDS {
            let now = (Instant::now(), process::thread_delay()?);
            if now.1.saturating_sub(looked.1) >= STARVED {
                load.starved_at
                    .store(load.start.elapsed().as_nanos() as u64, Relaxed);
            }
            looked = now;
        }
        let Some(event) = socket.wait(Some(Duration::from_millis(20)))? else {
            continue;
        };
        let Event::Request { rpc, message, .. } = event else {
            continue;
        };
        let id = number(&message).context("a request without a number")?;
        // Places far ahead are made ready for when numbers come around.
        let ahead = (id + REMEMBERED / 2) / 64;
        while cleared < ahead {
            cleared += 1;
            ran[(cleared % (REMEMBERED / 64)) as usize] = 0;
        }
        let word = &mut ran[(id / 64 % (REMEMBERED / 64)) as usize];
        let bit = 1 << (id % 64);
        duplicates += u64::from(*word & bit != 0);
        *word |= bit;
        // Its client may be gone: that is what clients do here.
        let _ = socket.reply(rpc, message);
    }
    Ok(duplicates)
}

fn number(message: &[u8]) -> Option<u64> {
    message
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

/// One client after another, each of which vanishes after a while with RPCs under way.
fn ask(client: u64, to: SocketAddr, load: &Load) -> Result<Errors> {
    let mut rng = Rng::new(client + 100);
    let mut errors = Errors::default();
    for life in 0.. {
        let network = Network::new(&load.network, rng.next_u64(), FAULTS, FAULTS);
        let mut socket = bind(network, Wait::Sleep)?;
        let mut until = Instant::now() + Duration::from_millis(200 + rng.below(2_000));
        let mut is_last = false;
        let mut under_way = HashMap::new();
        while Instant::now() < until {
            if load.stop.load(Relaxed) && !is_last {
                // What is under way in the end has its time to end.
                is_last = true;
                until = Instant::now() + FREED_WITHIN;
            }
            if is_last && under_way.is_empty() {
                return Ok(errors);
            }
            while under_way.len() < OUTSTANDING && !is_last {
                let len = load.sizes.draw(&mut rng).clamp(SHORTEST, LONGEST) as usize;
                let id = load.next.fetch_add(1, Relaxed);
                let mut message = socket.message(load.pattern.message(id, len));
                message[..8].copy_from_slice(&id.to_le_bytes());
                let options = RequestOptions {
                    cookie: id,
                    ..RequestOptions::default()
                };
                match socket.request(to, message, options) {
                    Ok(_) => drop(under_way.insert(id, len)),
                    Err(error) => bail!("a request was refused: {}", error.kind),
                }
            }
            match socket.wait(Some(Duration::from_millis(20)))? {
                Some(Event::Response {
                    cookie, message, ..
                }) => {
                    let len = under_way.remove(&cookie);
                    if is_answer(&load.pattern, cookie, len, &message) {
                        load.rpcs.fetch_add(1, Relaxed);
                        load.bytes.fetch_add(2 * message.len() as u64, Relaxed);
                    } else {
                        errors.add(|| format!("RPC {cookie} was answered wrongly or twice"));
                    }
                }
                Some(Event::Failed { cookie, error, .. }) => {
                    let len = under_way.remove(&cookie);
                    let is_silence = matches!(error, RpcError::NeverHeard | RpcError::WentSilent);
                    if is_silence && load.is_server_starved() {
                        load.errors_by_starvation.fetch_add(1, Relaxed);
                    } else {
                        errors
                            .add(|| format!("RPC {cookie} of {len:?} bytes, life {life}: {error}"));
                    }
                }
                _ => {}
            }
        }
        if is_last {
            errors.add(|| format!("{} RPCs never ended", under_way.len()));
            return Ok(errors);
        }
        load.killed.fetch_add(1, Relaxed);
        load.rpcs_killed.fetch_add(under_way.len() as u64, Relaxed);
    }
    Ok(errors)
}

fn is_answer(pattern: &Pattern, id: u64, len: Option<usize>, message: &[u8]) -> bool {
    let wanted = len.map(|len| pattern.message(id, len));
    number(message) == Some(id) && wanted.is_some_and(|wanted| wanted[8..] == message[8..])
}

// Client and server in one thread: what is measured is the work, not the scheduler.

struct Pair {
    client: Socket,
    server: Socket,
    to: SocketAddr,
}

impl Pair {
    fn new(shared: &Arc<Shared>, loss: f64) -> Result<Self> {
        let network = |seed| Network::new(shared, seed, loss, 0.0);
        let (client, server) = (bind(network(1), Wait::Spin)?, bind(network(2), Wait::Spin)?);
        let to = server.local_addr();
        Ok(Self { client, server, to })
    }

    /// `false`: as many RPCs as there can be are under way.
    fn request(&mut self, to: SocketAddr, len: usize) -> Result<bool> {
        let message = self.client.buffer(len);
        match self.client.request(to, message, RequestOptions::default()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind.is_full() => Ok(false),
            Err(error) => bail!("a request was refused: {}", error.kind),
        }
    }

    /// Both do what there is to do. Tells how many RPCs were answered, and how many failed.
    fn turn(&mut self) -> Result<(usize, usize)> {
        while let Some(event) = self.server.poll()? {
            if let Event::Request { rpc, message, .. } = event {
                let _ = self.server.reply(rpc, message);
            }
        }
        let (mut answered, mut failed) = (0, 0);
        while let Some(event) = self.client.poll()? {
            match event {
                Event::Response { .. } => answered += 1,
                Event::Failed { .. } => failed += 1,
                _ => {}
            }
        }
        Ok((answered, failed))
    }
}

/// What RPCs to a dead peer, sixteen at a time, take from those to a healthy one, in per cent: turn by turn
/// with and without them, from their start until they are given up. The middle of the ratios.
fn dead_peer(rounds: u32) -> Result<f64> {
    let shared = Arc::default();
    let mut pair = Pair::new(&shared, 0.0)?;
    // It exists, so that no ICMP tells of its death, and never reads.
    let grave = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let dead = grave.local_addr()?;
    healthy_rate(&mut pair, None)?;
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let without = healthy_rate(&mut pair, None)?;
        ratios.push(healthy_rate(&mut pair, Some(dead))? / without);
    }
    Ok(100.0 * (1.0 - median(&ratios)))
}

/// RPCs to the healthy peer per second of processor time, beside sixteen to a dead one.
fn healthy_rate(pair: &mut Pair, dead: Option<SocketAddr>) -> Result<f64> {
    let (start, before) = (Instant::now(), sys::thread_cpu());
    let (mut under_way, mut ended) = (0, 0);
    for dead in dead
        .iter()
        .cycle()
        .take(if dead.is_some() { 16 } else { 0 })
    {
        pair.request(*dead, 10_000)?;
    }
    while ended == 0 || start.elapsed() < LIFE_OF_DEAD {
        while under_way < OUTSTANDING && pair.request(pair.to, 10_000)? {
            under_way += 1;
        }
        let (answered, _) = pair.turn()?;
        under_way -= answered;
        ended += answered;
    }
    let time = sys::thread_cpu() - before;
    // All end before it begins anew, those to the dead peer too.
    let patience = Instant::now();
    while pair.client.live_rpcs() > 0 {
        pair.turn()?;
        ensure!(
            patience.elapsed() < FREED_WITHIN,
            "an RPC to a dead peer never ends"
        );
    }
    Ok(ended as f64 / time.as_secs_f64())
}

/// After a cut that does not end: how long until both ends have freed everything, if they do.
fn partition() -> Result<Option<Duration>> {
    let shared = Arc::<Shared>::default();
    let mut pair = Pair::new(&shared, 0.0)?;
    // Some are whole, some half way, some not begun when the cut comes.
    let mut answered = 0;
    for len in (0..64).map(|i| [100, 5_000, 200_000, 2_000_000][i % 4]) {
        pair.request(pair.to, len)?;
        answered += pair.turn()?.0;
    }
    shared.cut.store(true, Relaxed);
    let cut = Instant::now();
    while cut.elapsed() < FREED_WITHIN {
        answered += pair.turn()?.0;
        if pair.client.live_rpcs() + pair.server.live_rpcs() == 0 {
            return Ok(Some(cut.elapsed()).filter(|_| answered <= 64));
        }
    }
    Ok(None)
}

fn latency_under_loss(loss: f64, time: Duration) -> Result<LossRow> {
    let shared = Arc::default();
    let mut pair = Pair::new(&shared, loss)?;
    let start = Instant::now();
    let mut nanos = Vec::new();
    while start.elapsed() < time {
        let begun = Instant::now();
        pair.request(pair.to, 100)?;
        loop {
            match pair.turn()? {
                (0, 0) => {}
                (_, 0) => break,
                _ => bail!("an RPC failed at {loss} loss"),
            }
        }
        nanos.push(begun.elapsed().as_nanos() as u64);
    }
    nanos.sort_unstable();
    let us = |fraction| percentile(&nanos, fraction).unwrap_or(0) as f64 / 1e3;
    Ok(LossRow {
        loss_percent: loss * 100.0,
        rpcs: nanos.len(),
        p50_us: us(0.5),
        p99_us: us(0.99),
        p999_us: us(0.999),
    })
}
