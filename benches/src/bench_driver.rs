//! The driver on loopback beside what the socket layer itself can do and beside TCP, in turns,
//! so that a noisy moment of the machine does not hit one of them alone.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::load::{ClosedLoop, Run, closed_loop};
use crate::report::{Latencies, median, table};
use crate::sys;
use crate::transport::{CLIENT_CPU, Client, Reply, ServerThread, Setup};
use crate::workload::Pattern;
use crate::{homa, raw_udp, tcp, transport};

/// Bytes of a large message.
const LARGE: u32 = 1_000_000;
/// Large messages in flight.
const LARGE_IN_FLIGHT: usize = 4;
/// Bytes of a small message.
const SMALL: u32 = 100;

/// What `homa bench driver` finds.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// One way, GSO and GRO, 44 segments of 1472 bytes a send.
    pub raw_udp_gbps: f64,
    /// Payload of 1 MB requests with short replies, one client.
    pub homa_gbps: f64,
    /// The same over one TCP connection.
    pub tcp_gbps: f64,
    /// Round trip of 100 bytes, spinning.
    pub raw_udp_p50_us: f64,
    /// RPC of 100 bytes each way over one TCP connection, spinning.
    pub tcp_p50_us: f64,
    /// RPC of 100 bytes each way, spinning.
    pub homa_p50_us: f64,
    /// Its 99th percentile.
    pub homa_p99_us: f64,
    /// `homa_gbps / raw_udp_gbps`; at most 1 is to be expected.
    pub throughput_vs_raw: f64,
    /// `homa_gbps / tcp_gbps`.
    pub throughput_vs_tcp: f64,
    /// `homa_p50_us / raw_udp_p50_us`; at least 1 is to be expected.
    pub latency_vs_raw: f64,
    /// `homa_p50_us / tcp_p50_us`.
    pub latency_vs_tcp: f64,
    /// Each figure is the median of so many runs, ratios within a run.
    pub runs: usize,
    /// Whether raw UDP sent and received in batches.
    pub raw_udp_gso_gro: [bool; 2],
    /// How TCP was set.
    pub tcp_settings: String,
    /// How Homa was set.
    pub homa_settings: String,
}

/// A client and the thread of its server.
struct Link {
    client: Box<dyn Client>,
    thread: ServerThread,
    next_id: u64,
}

impl Link {
    fn new((client, server): transport::Pair) -> Result<Self> {
        let thread = ServerThread::spawn(vec![server])?;
        Ok(Self {
            client,
            thread,
            next_id: 1,
        })
    }

    fn run(
        &mut self,
        pattern: &Pattern,
        size: u32,
        outstanding: usize,
        reply: Reply,
        duration: Duration,
    ) -> Result<Run> {
        let shape = ClosedLoop {
            outstanding,
            reply,
            first_id: self.next_id,
            duration,
            count: usize::MAX,
            patience: Duration::from_secs(5),
        };
        self.thread.select(0);
        let run = closed_loop(self.client.as_mut(), shape, pattern, &mut || size)?;
        self.thread.rest();
        self.next_id += run.latencies.len() as u64;
        if let Some(error) = &run.first_error {
            anyhow::bail!("{error}");
        }
        Ok(run)
    }

    fn bulk(&mut self, pattern: &Pattern, duration: Duration) -> Result<f64> {
        let run = |link: &mut Self, duration| {
            link.run(pattern, LARGE, LARGE_IN_FLIGHT, Reply::FirstByte, duration)
        };
        run(self, duration / 5)?;
        Ok(run(self, duration)?.gbps())
    }

    fn small(&mut self, pattern: &Pattern, duration: Duration) -> Result<Latencies> {
        self.run(pattern, SMALL, 1, Reply::Echo, duration / 5)?;
        Ok(self
            .run(pattern, SMALL, 1, Reply::Echo, duration)?
            .latencies)
    }
}

/// P50 and P99, in microseconds.
fn percentiles(latencies: &Latencies) -> Result<[f64; 2]> {
    let class = latencies.class(0, u32::MAX);
    match (class.p50_us, class.p99_us) {
        (Some(p50), Some(p99)) => Ok([p50, p99]),
        _ => anyhow::bail!("not one round trip ended"),
    }
}

/// Measures; `progress` hears which run is next.
pub fn run(quick: bool, progress: &mut dyn FnMut(usize, usize)) -> Result<Figures> {
    sys::pin(CLIENT_CPU);
    let runs = if quick { 3 } else { 7 };
    let duration = Duration::from_millis(if quick { 200 } else { 1000 });
    let pattern = Pattern::new(1, LARGE as usize);
    let mut homa_bulk = Link::new(homa::pair::<homa_mio::sys::Os>(
        "homa-mio",
        Setup::spinning(Reply::FirstByte),
    )?)?;
    let mut homa_small = Link::new(homa::pair::<homa_mio::sys::Os>(
        "homa-mio",
        Setup::spinning(Reply::Echo),
    )?)?;
    let mut tcp_bulk = Link::new(tcp::pair(
        Setup::spinning(Reply::FirstByte),
        tcp::Choice::default(),
    )?)?;

    let mut figures: [Vec<f64>; 11] = Default::default();
    let mut gso_gro = [true; 2];
    for run in 0..runs {
        progress(run, runs);
        let raw = raw_udp::throughput(Setup::spinning(Reply::FirstByte), duration)?;
        let homa_gbps = homa_bulk.bulk(&pattern, duration)?;
        let tcp_gbps = tcp_bulk.bulk(&pattern, duration)?;
        let [raw_p50, _] = percentiles(
            &raw_udp::ping_pong(Setup::spinning(Reply::Echo), SMALL as usize, duration)?.0,
        )?;
        let [homa_p50, homa_p99] = percentiles(&homa_small.small(&pattern, duration)?)?;
        let [tcp_p50, _] = percentiles(&tcp::ping_pong(SMALL as usize, duration)?)?;
        gso_gro = [gso_gro[0] && raw.gso, gso_gro[1] && raw.gro];
        let values = [
            raw.gbps,
            homa_gbps,
            tcp_gbps,
            raw_p50,
            tcp_p50,
            homa_p50,
            homa_p99,
            homa_gbps / raw.gbps,
            homa_gbps / tcp_gbps,
            homa_p50 / raw_p50,
            homa_p50 / tcp_p50,
        ];
        for (figure, value) in figures.iter_mut().zip(values) {
            ensure!(value.is_finite(), "a run without a figure");
            figure.push(value);
        }
    }
    progress(runs, runs);
    // Now, so that features that were given up on the way show.
    let homa_settings = homa_bulk.client.settings();
    let tcp_settings = tcp_bulk.client.settings();
    for mut link in [homa_bulk, homa_small, tcp_bulk] {
        link.thread.stop()?;
    }
    let [
        raw_udp_gbps,
        homa_gbps,
        tcp_gbps,
        raw_udp_p50_us,
        tcp_p50_us,
        homa_p50_us,
        homa_p99_us,
        throughput_vs_raw,
        throughput_vs_tcp,
        latency_vs_raw,
        latency_vs_tcp,
    ] = figures.map(|runs| median(&runs));
    Ok(Figures {
        raw_udp_gbps,
        homa_gbps,
        tcp_gbps,
        raw_udp_p50_us,
        tcp_p50_us,
        homa_p50_us,
        homa_p99_us,
        throughput_vs_raw,
        throughput_vs_tcp,
        latency_vs_raw,
        latency_vs_tcp,
        runs,
        raw_udp_gso_gro: gso_gro,
        tcp_settings,
        homa_settings,
    })
}

impl Figures {
    /// The figures as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let rows = vec![
            vec![
                "1 MB messages, one way".into(),
                format!("{:.1} Gb/s", self.homa_gbps),
                format!("{:.1} Gb/s", self.raw_udp_gbps),
                format!("{:.1} Gb/s", self.tcp_gbps),
                format!("{:.2}", self.throughput_vs_raw),
                format!("{:.2}", self.throughput_vs_tcp),
            ],
            vec![
                "100 B there and back, P50".into(),
                format!("{:.2} µs", self.homa_p50_us),
                format!("{:.2} µs", self.raw_udp_p50_us),
                format!("{:.2} µs", self.tcp_p50_us),
                format!("{:.2}", self.latency_vs_raw),
                format!("{:.2}", self.latency_vs_tcp),
            ],
            vec![
                "100 B there and back, P99".into(),
                format!("{:.2} µs", self.homa_p99_us),
                "".into(),
                "".into(),
                "".into(),
                "".into(),
            ],
        ];
        let header = ["", "Homa", "raw UDP", "TCP", "Homa / raw", "Homa / TCP"];
        format!(
            "{}\nHoma: {}\nTCP: {}\n",
            table(&header, &rows),
            self.homa_settings,
            self.tcp_settings
        )
    }
}
