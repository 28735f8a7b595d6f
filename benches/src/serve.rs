//! `homa serve` and `homa call`: an echo server, and a client that checks every reply.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use homa_mio::{Event, Socket, Wait};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::homa::answer;
use crate::report::{Latencies, micros};
use crate::transport::Reply;
use crate::workload::Pattern;

/// The longest message, in bytes.
pub const MAX_MESSAGE: u32 = 16 << 20;

/// Replies to each request with itself, for ever.
pub fn serve(listen: SocketAddr, wait: Wait) -> Result<()> {
    let bound = Socket::builder().max_message(MAX_MESSAGE).wait(wait);
    let mut socket = bound
        .bind(listen)
        .with_context(|| format!("cannot listen on {listen}"))?;
    // Whoever started this may read the address from a pipe, or may have stopped reading.
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "listening on {}", socket.local_addr());
    let _ = stdout.flush();
    loop {
        if let Some(Event::Request { rpc, message, .. }) = socket.wait(None)? {
            answer(&mut socket, rpc, message, Reply::Echo);
        }
    }
}

/// What to ask.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Whom.
    pub to: SocketAddr,
    /// Bytes of a request, and of its reply.
    pub size: u32,
    /// How many, one after another.
    pub count: u64,
    /// What the thread does while it waits.
    pub wait: Wait,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// RPCs whose right reply came.
    pub rpcs: u64,
    /// Bytes of a request, and of its reply.
    pub size: u32,
    /// Why not all of them succeeded.
    pub error: Option<String>,
    /// Median of the round trips.
    pub p50_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// RPCs per second.
    pub rpcs_per_second: f64,
    /// Payload, each way.
    pub gbps: f64,
}

/// Asks until all have been answered or one fails.
pub fn call(call: Call) -> Result<Outcome> {
    let any: IpAddr = match call.to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let unbound = Socket::builder().max_message(MAX_MESSAGE).wait(call.wait);
    let mut socket = unbound
        .bind((any, 0).into())
        .context("cannot make a socket")?;
    let pattern = Pattern::new(call.size.into(), call.size as usize);
    let bar = ProgressBar::new(call.count).with_style(ProgressStyle::with_template(
        "[{bar:40}] {human_pos}/{human_len} RPCs, {eta} left",
    )?);
    let mut latencies = Latencies::default();
    let mut failure = None;
    let mut drawn = Duration::ZERO;
    let start = Instant::now();
    for id in 0..call.count {
        let started = start.elapsed();
        let request = pattern.message(id, call.size as usize);
        match socket.call(call.to, request) {
            Ok(reply) if *reply == *request => {}
            Ok(reply) => {
                let len = reply.len();
                failure = Some(format!("RPC {}: a wrong reply of {len} bytes", id + 1));
                break;
            }
            Err(error) => {
                failure = Some(format!("RPC {} to {}: {error}", id + 1, call.to));
                break;
            }
        }
        let ended = start.elapsed();
        latencies.record(call.size, (ended - started).as_nanos() as u64);
        if ended - drawn > Duration::from_millis(50) {
            drawn = ended;
            bar.set_position(id + 1);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let rpcs = latencies.len() as u64;
    let all = latencies.class(0, u32::MAX);
    Ok(Outcome {
        rpcs,
        size: call.size,
        error: failure,
        p50_us: all.p50_us,
        p99_us: all.p99_us,
        rpcs_per_second: rpcs as f64 / seconds,
        gbps: rpcs as f64 * f64::from(call.size) * 8.0 / seconds / 1e9,
    })
}

impl Outcome {
    /// The outcome in a line or two.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "{} RPCs of {} B each way: P50 {}, P99 {}, {:.0} RPCs/s, {:.2} Gb/s each way\n",
            self.rpcs,
            self.size,
            micros(self.p50_us),
            micros(self.p99_us),
            self.rpcs_per_second,
            self.gbps
        )
    }
}
