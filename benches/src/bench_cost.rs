//! What an RPC costs: client and server take turns in one thread, whose processor time is all
//! that is spent. Nothing goes into waiting, so that the figures depend little on what else the
//! machine does.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use homa_mio::{Event, RequestOptions, Socket, Wait};
use serde::Serialize;

use crate::raw_udp;
use crate::report::{median, table};
use crate::sys;
use crate::transport::CLIENT_CPU;

/// Bytes of a large message.
const LARGE: usize = 1_000_000;
/// Large messages in flight.
const LARGE_IN_FLIGHT: usize = 4;
/// Bytes of a small message, and of every reply.
const SMALL: usize = 100;
/// Small messages in flight at high rate.
const MANY: usize = 128;
/// After so long without progress something is wrong.
const STALLED: Duration = Duration::from_secs(5);

/// What an RPC with a reply of 100 bytes takes, client and server together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Microseconds of processor time.
    pub cpu_us: f64,
    /// System calls.
    pub calls: f64,
}

/// What `homa bench cost` finds: medians.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// 1 MB over Homa, four in flight.
    pub large: Cost,
    /// The same over raw UDP in batches, one after the other, in memory that stays in the cache.
    pub large_raw_udp: Cost,
    /// The same over TCP, one after the other.
    pub large_tcp: Cost,
    /// 100 bytes over Homa, one after the other.
    pub alone: Cost,
    /// The same over raw UDP between connected sockets.
    pub alone_raw_udp: Cost,
    /// The same over raw UDP between sockets that are not connected.
    pub alone_raw_udp_unconnected: Cost,
    /// The same over TCP.
    pub alone_tcp: Cost,
    /// 100 bytes over Homa, 128 in flight.
    pub many: Cost,
    /// 128 times 100 bytes in one write, and as many back: the kernel's part of TCP alone, with
    /// no message told from the next.
    pub many_tcp_write: Cost,
    /// Payload of the large messages by processor time, in Gb/s for one processor.
    pub gbps_per_core: f64,
    /// Each figure is the median of so many runs.
    pub runs: usize,
}

fn cost(started: Duration, calls: u64, rpcs: usize) -> Cost {
    let rpcs = rpcs as f64;
    Cost {
        cpu_us: (sys::thread_cpu() - started).as_secs_f64() * 1e6 / rpcs,
        calls: calls as f64 / rpcs,
    }
}

fn homa(size: usize, in_flight: usize, count: usize) -> Result<Cost> {
    let bind = || -> io::Result<Socket> {
        let options = Socket::builder().wait(Wait::Spin);
        options.bind((Ipv4Addr::LOCALHOST, 0).into())
    };
    let (mut client, mut server) = (bind()?, bind()?);
    let to = server.local_addr();
    let (mut started, mut ended) = (0, 0);
    let mut spare = Vec::new();
    let calls = |client: &Socket, server: &Socket| {
        let [one, two] = [client, server].map(|socket| socket.stats().io);
        one.system_calls() + two.system_calls()
    };
    // Once caches are warm and the peers know each other.
    let warm = count / 10;
    let mut since = None;
    let mut progress = Instant::now();
    while ended < count {
        if ended >= warm && since.is_none() {
            since = Some((sys::thread_cpu(), calls(&client, &server), ended));
        }
        while started < count && started - ended < in_flight {
            let message = spare.pop().unwrap_or_else(|| client.buffer(size));
            let sent = client.request(to, message, RequestOptions::default());
            sent.map_err(|error| error.kind)?;
            started += 1;
        }
        while let Some(event) = client.poll()? {
            match event {
                Event::Response { request, .. } => spare.push(request),
                other => anyhow::bail!("{other:?}"),
            }
            ended += 1;
            progress = Instant::now();
        }
        while let Some(event) = server.poll()? {
            if let Event::Request {
                rpc, mut message, ..
            } = event
            {
                message.truncate(SMALL);
                server.reply(rpc, message).map_err(|error| error.kind)?;
            }
        }
        ensure!(progress.elapsed() < STALLED, "an RPC was lost");
    }
    let (start, calls_before, ended_before) = since.unwrap_or((sys::thread_cpu(), 0, 0));
    let calls = calls(&client, &server) - calls_before;
    Ok(cost(start, calls, count - ended_before))
}

/// Payload of a datagram in a packet of 1,500 bytes, and how many leave in one batch.
const SEGMENT: usize = 1472;
const SEGMENTS: usize = 44;

fn raw_large(count: usize) -> Result<Cost> {
    let (one, two) = raw_udp::pair()?;
    for socket in [&one, &two] {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(STALLED))?;
    }
    sys::set_udp_segment(&one, SEGMENT as u16)?;
    sys::set_udp_gro(&two)?;
    let batch = vec![1; SEGMENT * SEGMENTS];
    let mut into = vec![0; 1 << 16];
    let mut calls = 0;
    let start = sys::thread_cpu();
    for _ in 0..count {
        let mut left = LARGE;
        while left > 0 {
            let sent = one.send(&batch[..left.min(batch.len())])?;
            calls += 1;
            let mut received = 0;
            while received < sent {
                received += two.recv(&mut into)?;
                calls += 1;
            }
            left -= sent;
        }
        two.send(&batch[..SMALL])?;
        one.recv(&mut into)?;
        calls += 2;
    }
    Ok(cost(start, calls, count))
}

fn raw_alone(count: usize, connected: bool) -> Result<Cost> {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (one, two) = (bind()?, bind()?);
    let (from, to) = (one.local_addr()?, two.local_addr()?);
    if connected {
        one.connect(to)?;
        two.connect(from)?;
    }
    for socket in [&one, &two] {
        socket.set_read_timeout(Some(STALLED))?;
    }
    let (bytes, mut into) = ([1; SMALL], [0; 2048]);
    let start = sys::thread_cpu();
    for _ in 0..count {
        if connected {
            one.send(&bytes)?;
            two.recv(&mut into)?;
            two.send(&bytes)?;
            one.recv(&mut into)?;
        } else {
            one.send_to(&bytes, to)?;
            let (_, asker) = two.recv_from(&mut into)?;
            two.send_to(&bytes, asker)?;
            one.recv_from(&mut into)?;
        }
    }
    Ok(cost(start, 4 * count as u64, count))
}

/// How much went; nothing when it would have blocked.
fn some(result: io::Result<usize>) -> Result<usize> {
    match result {
        Ok(0) => anyhow::bail!("closed"),
        Ok(len) => Ok(len),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// `bytes` from one end of a connection to the other; how many calls that took.
fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8], into: &mut [u8]) -> Result<u64> {
    let (mut sent, mut received, mut calls) = (0, 0, 0);
    while received < bytes.len() {
        if let Some(left @ [_, ..]) = bytes.get(sent..) {
            sent += some(from.write(left))?;
            calls += 1;
        }
        received += some(to.read(into))?;
        calls += 1;
    }
    Ok(calls)
}

fn tcp(size: usize, in_flight: usize, count: usize) -> Result<Cost> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut one = TcpStream::connect(listener.local_addr()?)?;
    let (mut two, _) = listener.accept()?;
    for socket in [&one, &two] {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
    }
    let message = vec![1; size * in_flight];
    let reply = &message[..SMALL * in_flight];
    let mut into = vec![0; 1 << 18];
    let rounds = count / in_flight;
    let mut calls = 0;
    let start = sys::thread_cpu();
    for _ in 0..rounds {
        calls += pass(&mut one, &mut two, &message, &mut into)?;
        calls += pass(&mut two, &mut one, reply, &mut into)?;
    }
    Ok(cost(start, calls, rounds * in_flight))
}

/// Measures; `progress` hears which run is next.
pub fn run(quick: bool, progress: &mut dyn FnMut(usize, usize)) -> Result<Figures> {
    sys::pin(CLIENT_CPU);
    let (runs, share) = if quick { (3, 10) } else { (7, 1) };
    let (large, alone, many) = (400 / share, 20_000 / share, 100_000 / share);
    let mut figures: [Vec<Cost>; 9] = Default::default();
    for run in 0..runs {
        progress(run, runs);
        let costs = [
            homa(LARGE, LARGE_IN_FLIGHT, large)?,
            raw_large(large)?,
            tcp(LARGE, 1, large)?,
            homa(SMALL, 1, alone)?,
            raw_alone(alone, true)?,
            raw_alone(alone, false)?,
            tcp(SMALL, 1, alone)?,
            homa(SMALL, MANY, many)?,
            tcp(SMALL, MANY, many)?,
        ];
        for (figure, cost) in figures.iter_mut().zip(costs) {
            figure.push(cost);
        }
    }
    progress(runs, runs);
    let [
        large,
        large_raw_udp,
        large_tcp,
        alone,
        alone_raw_udp,
        alone_raw_udp_unconnected,
        alone_tcp,
        many,
        many_tcp_write,
    ] = figures.map(|runs| {
        let of = |part: fn(&Cost) -> f64| median(&runs.iter().map(part).collect::<Vec<_>>());
        Cost {
            cpu_us: of(|cost| cost.cpu_us),
            calls: of(|cost| cost.calls),
        }
    });
    Ok(Figures {
        large,
        large_raw_udp,
        large_tcp,
        alone,
        alone_raw_udp,
        alone_raw_udp_unconnected,
        alone_tcp,
        many,
        many_tcp_write,
        gbps_per_core: LARGE as f64 * 8.0 / large.cpu_us / 1000.0,
        runs,
    })
}

impl Figures {
    /// The figures as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let row = |name: &str, cost: Cost| {
            vec![
                name.into(),
                format!("{:.2} µs", cost.cpu_us),
                format!("{:.2}", cost.calls),
            ]
        };
        let rows = [
            ("1 MB, Homa", self.large),
            ("1 MB, raw UDP", self.large_raw_udp),
            ("1 MB, TCP", self.large_tcp),
            ("100 B, Homa", self.alone),
            ("100 B, raw UDP, connected", self.alone_raw_udp),
            ("100 B, raw UDP", self.alone_raw_udp_unconnected),
            ("100 B, TCP", self.alone_tcp),
            ("100 B, 128 in flight, Homa", self.many),
            ("100 B, 128 in one write, TCP", self.many_tcp_write),
        ]
        .map(|(name, cost)| row(name, cost));
        let header = ["both ends in one thread", "processor time", "system calls"];
        let table = table(&header, &rows);
        format!(
            "{table}\n1 MB over Homa: {:.1} Gb/s per core\n",
            self.gbps_per_core
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_give_figures() {
        let figures = run(true, &mut |_, _| {}).unwrap();
        assert!(figures.large.cpu_us > figures.large_raw_udp.cpu_us / 10.0);
        // Two to send and two to receive, at least.
        assert!(figures.alone.calls >= 4.0, "{figures:?}");
        assert!(figures.many.calls < figures.alone.calls, "{figures:?}");
    }
}
