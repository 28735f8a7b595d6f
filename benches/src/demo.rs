//! `homa demo`: a mixed load over Homa and over TCP under the same arrivals.

use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::homa::Driver;
use crate::load::{ClosedLoop, Run, closed_loop, open_loop};
use crate::report::{CLASS_BOUNDS, Latencies, micros, ratio, table, thousands};
use crate::sys;
use crate::tcp;
use crate::transport::{CLIENT_CPU, Client, Reply, ServerThread, Setup};
use crate::workload::{Arrival, MAX_BYTES, Pattern, Rng, Sizes, arrivals};

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Of load, both transports together; above 0.
    pub seconds: f64,
    /// Share of the load that the slower transport carries at most.
    pub load: f64,
    /// Fixes sizes, arrival times and contents.
    pub seed: u64,
    /// What Homa runs on.
    pub driver: Driver,
}

/// What the run gave.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// RPCs that Homa completed.
    pub rpcs: u64,
    /// RPCs of either transport that failed or came back wrong.
    pub errors: u64,
    /// Those of Homa.
    pub homa_errors: u64,
    /// Those of TCP.
    pub tcp_errors: u64,
    /// What the first of them was.
    pub first_error: Option<String>,
    /// By message size.
    pub classes: Vec<Class>,
    /// What was run.
    pub settings: Settings,
}

/// A class of message sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// Its largest size; the class below ends where this one begins.
    pub max_bytes: u32,
    /// RPCs that Homa completed.
    pub count: usize,
    /// Homa's median latency.
    pub homa_p50_us: Option<f64>,
    /// Homa's 99th percentile.
    pub homa_p99_us: Option<f64>,
    /// TCP's median latency.
    pub tcp_p50_us: Option<f64>,
    /// TCP's 99th percentile.
    pub tcp_p99_us: Option<f64>,
}

/// What was run, for whoever reads the figures later.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The distribution of message sizes.
    pub workload: &'static str,
    /// Of load, both transports together. More than asked for where the machine was so busy
    /// that this would have been too few RPCs.
    pub seconds: f64,
    /// The seed.
    pub seed: u64,
    /// RPCs per second offered.
    pub rate: f64,
    /// Payload offered each way.
    pub offered_gbps: f64,
    /// The share of what the slower transport carried at calibration.
    pub load: f64,
    /// What Homa carried at calibration, each way.
    pub homa_capacity_gbps: f64,
    /// What TCP carried at calibration, each way.
    pub tcp_capacity_gbps: f64,
    /// How Homa was set.
    pub homa: String,
    /// How TCP was set.
    pub tcp: String,
}

const HOMA: usize = 0;
const TCP: usize = 1;
/// RPCs in flight at calibration.
const CALIBRATION_IN_FLIGHT: usize = 16;
/// What has not ended this long after the last arrival has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// RPCs over each transport below which percentiles say little: a machine so busy that it carries
/// fewer in the time asked for goes on, up to so many times as long.
const ENOUGH: u64 = 1_100;
const MOST_STRETCH: usize = 4;

/// Both transports, their results so far, and what they share.
struct Bench {
    clients: [Box<dyn Client>; 2],
    thread: ServerThread,
    pattern: Pattern,
    next_id: u64,
    latencies: [Latencies; 2],
    errors: [u64; 2],
    first_error: Option<String>,
}

impl Bench {
    fn new(driver: Driver, seed: u64) -> Result<Self> {
        let (homa_client, homa_server) = driver.pair(Setup::spinning(Reply::Echo))?;
        let (tcp_client, tcp_server) =
            tcp::pair(Setup::spinning(Reply::Echo), tcp::Choice::default())?;
        Ok(Self {
            clients: [homa_client, tcp_client],
            thread: ServerThread::spawn(vec![homa_server, tcp_server])?,
            pattern: Pattern::new(seed, MAX_BYTES as usize),
            next_id: 1,
            latencies: Default::default(),
            errors: [0; 2],
            first_error: None,
        })
    }

    fn book(&mut self, transport: usize, run: &Run) {
        self.errors[transport] += run.errors;
        if self.first_error.is_none()
            && let Some(error) = &run.first_error
        {
            self.first_error = Some(format!("{}: {error}", ["Homa", "TCP"][transport]));
        }
    }

    /// The request payload that a transport carries in a closed loop, in Gb/s.
    fn capacity(&mut self, transport: usize, sizes: &Sizes, seed: u64) -> Result<f64> {
        let mut rng = Rng::new(seed);
        let shape = ClosedLoop {
            outstanding: CALIBRATION_IN_FLIGHT,
            reply: Reply::Echo,
            first_id: self.next_id,
            duration: Duration::from_millis(250),
            count: usize::MAX,
            patience: PATIENCE,
        };
        self.thread.select(transport);
        let client = self.clients[transport].as_mut();
        let run = closed_loop(client, shape, &self.pattern, &mut || sizes.draw(&mut rng));
        let run = self.or_server_error(run)?;
        self.thread.rest();
        self.next_id += run.latencies.len() as u64 + run.errors;
        self.book(transport, &run);
        Ok(run.gbps())
    }

    /// A slice of the load over one transport.
    fn slice(
        &mut self,
        transport: usize,
        slice: &[Arrival],
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.thread.select(transport);
        let client = self.clients[transport].as_mut();
        let (first_id, pattern) = (self.next_id, &self.pattern);
        let run = open_loop(
            client,
            slice,
            Reply::Echo,
            first_id,
            pattern,
            PATIENCE,
            progress,
        );
        let run = self.or_server_error(run)?;
        self.thread.rest();
        self.next_id += slice.len() as u64;
        self.book(transport, &run);
        self.latencies[transport].extend(&run.latencies);
        Ok(())
    }

    /// When the server's thread has failed, its error is the cause and the client's the effect.
    fn or_server_error(&mut self, run: Result<Run>) -> Result<Run> {
        if self.thread.failed() {
            self.thread.stop()?;
        }
        run
    }
}

/// Runs the load and compares.
pub fn run(options: Options) -> Result<Outcome> {
    sys::pin(CLIENT_CPU);
    let sizes = Sizes::w4();
    let mut bench = Bench::new(options.driver, options.seed)?;
    let homa_capacity_gbps = bench.capacity(HOMA, &sizes, options.seed)?;
    let tcp_capacity_gbps = bench.capacity(TCP, &sizes, options.seed)?;
    let offered_gbps = options.load * homa_capacity_gbps.min(tcp_capacity_gbps);
    let rate = offered_gbps * 1e9 / 8.0 / sizes.mean();
    if rate.is_nan() || rate < 1.0 {
        bail!(
            "no load can be carried ({})",
            bench
                .first_error
                .as_deref()
                .unwrap_or("the machine is too busy")
        );
    }

    // In slices of about a second, turn by turn.
    let planned = (options.seconds / 2.0).ceil().max(1.0) as usize;
    let slice_seconds = options.seconds / 2.0 / planned as f64;
    let expected = 2.0 * rate * slice_seconds * planned as f64;
    let bar = ProgressBar::new(expected as u64).with_style(ProgressStyle::with_template(
        "{msg:4} [{bar:40}] {human_pos}/{human_len} RPCs, {eta} left",
    )?);
    let (mut ended, mut slices) = (0, 0);
    while slices < planned || (ended < 2 * ENOUGH && slices < MOST_STRETCH * planned) {
        let seed = options.seed ^ ((slices as u64) << 32);
        let slice = arrivals(&sizes, rate, slice_seconds, seed);
        // Neither always goes first.
        let order = if slices % 2 == 0 {
            [HOMA, TCP]
        } else {
            [TCP, HOMA]
        };
        for transport in order {
            bar.set_message(["Homa", "TCP"][transport]);
            bench.slice(transport, &slice, &mut |done| {
                bar.set_position(ended + done);
            })?;
            ended += slice.len() as u64;
        }
        slices += 1;
    }
    bar.finish_and_clear();
    bench.thread.stop()?;
    // Now, so that features that were given up on the way show.
    let [homa_settings, tcp_settings] = [HOMA, TCP].map(|t| bench.clients[t].settings());

    let mut over = 0;
    let mut classes = Vec::new();
    for max_bytes in CLASS_BOUNDS {
        let [homa, tcp] = [HOMA, TCP].map(|t| bench.latencies[t].class(over, max_bytes));
        classes.push(Class {
            max_bytes,
            count: homa.count,
            homa_p50_us: homa.p50_us,
            homa_p99_us: homa.p99_us,
            tcp_p50_us: tcp.p50_us,
            tcp_p99_us: tcp.p99_us,
        });
        over = max_bytes;
    }
    Ok(Outcome {
        rpcs: bench.latencies[HOMA].len() as u64,
        errors: bench.errors.iter().sum(),
        homa_errors: bench.errors[HOMA],
        tcp_errors: bench.errors[TCP],
        first_error: bench.first_error,
        classes,
        settings: Settings {
            workload: "W4 (a Hadoop cluster at Facebook, SIGCOMM '18), 50 B to 1 MB, \
                       replies as long as requests",
            seconds: 2.0 * slice_seconds * slices as f64,
            seed: options.seed,
            rate,
            offered_gbps,
            load: options.load,
            homa_capacity_gbps,
            tcp_capacity_gbps,
            homa: homa_settings,
            tcp: tcp_settings,
        },
    })
}

impl Outcome {
    /// The comparison as text.
    #[must_use]
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .classes
            .iter()
            .map(|class| {
                vec![
                    format!("{} B", thousands(class.max_bytes.into())),
                    thousands(class.count as u64),
                    micros(class.homa_p50_us),
                    micros(class.homa_p99_us),
                    micros(class.tcp_p50_us),
                    micros(class.tcp_p99_us),
                    ratio(class.tcp_p50_us, class.homa_p50_us),
                    ratio(class.tcp_p99_us, class.homa_p99_us),
                ]
            })
            .collect();
        let header = [
            "up to",
            "RPCs",
            "Homa P50",
            "Homa P99",
            "TCP P50",
            "TCP P99",
            "P50 TCP/Homa",
            "P99 TCP/Homa",
        ];
        let settings = &self.settings;
        format!(
            "{}\n{} RPCs over each transport in {:.1} s, {} errors; every reply checked byte for byte.\n\
             Load: {}; {:.0} RPCs/s, {:.2} Gb/s each way, {:.0} % of what the slower transport \
             carries.\nLatency counts from each RPC's scheduled start.\nHoma: {}\nTCP: {}\n",
            table(&header, &rows),
            thousands(self.rpcs),
            settings.seconds / 2.0,
            self.errors,
            settings.workload,
            settings.rate,
            settings.offered_gbps,
            settings.load * 100.0,
            settings.homa,
            settings.tcp,
        )
    }
}
