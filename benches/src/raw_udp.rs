//! The raw UDP bound: what the socket layer itself can do, with nothing on top of it.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use socket2::SockRef;

use crate::report::Latencies;
use crate::sys;
use crate::transport::SERVER_CPU;

/// Payload of one datagram at MTU 1500 on IPv4.
pub const SEGMENT: usize = 1472;
/// Datagrams in one send: as many as fit the largest UDP payload.
pub const SEGMENTS: usize = 44;
/// Most bytes sent and not yet received: far below what the receive buffer holds, so that
/// nothing is lost, and enough to keep both ends busy.
const WINDOW: u64 = 1 << 20;
/// Bytes received between two acknowledgements.
const ACK_EVERY: u64 = WINDOW / 8;
/// Asked for each socket buffer; the kernel may give less.
const BUFFER: usize = 4 << 20;
/// After this long without progress something is wrong.
const STALLED: Duration = Duration::from_secs(2);

/// A throughput run.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Payload received, in Gb/s.
    pub gbps: f64,
    /// Whether sends left in batches.
    pub gso: bool,
    /// Whether receives came in batches.
    pub gro: bool,
}

/// Two sockets on loopback, connected to each other, which spares a route lookup per send.
pub(crate) fn pair() -> Result<(UdpSocket, UdpSocket)> {
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let two = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    one.connect(two.local_addr()?)?;
    two.connect(one.local_addr()?)?;
    for socket in [&one, &two] {
        socket.set_nonblocking(true)?;
        SockRef::from(socket).set_send_buffer_size(BUFFER)?;
        SockRef::from(socket).set_recv_buffer_size(BUFFER)?;
    }
    Ok((one, two))
}

fn or_nothing(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// One way, as fast as it goes without loss: a window of bytes that the receiver acknowledges.
pub fn throughput(duration: Duration) -> Result<Bulk> {
    let (sender, receiver) = pair()?;
    let gso = sys::set_udp_segment(&sender, SEGMENT as u16).is_ok();
    let gro = sys::set_udp_gro(&receiver).is_ok();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            sys::pin(SERVER_CPU);
            receive(&receiver, &stop)
        });
        let batch = vec![0x5a; if gso { SEGMENT * SEGMENTS } else { SEGMENT }];
        let sent = send(&sender, &batch, duration);
        stop.store(true, Ordering::Relaxed);
        match receiving.join() {
            Ok(result) => result?,
            Err(_) => anyhow::bail!("the receiving thread panicked"),
        }
        Ok(Bulk {
            gbps: sent?,
            gso,
            gro,
        })
    })
}

fn receive(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let (mut received, mut acked) = (0u64, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let idle = match or_nothing(socket.recv(&mut buffer))? {
            Some(len) => {
                received += len as u64;
                false
            }
            None => true,
        };
        if received - acked >= if idle { 1 } else { ACK_EVERY } {
            socket.send(&received.to_le_bytes())?;
            acked = received;
        }
    }
    Ok(())
}

/// Sends for `duration`; Gb/s from a fifth of that on, once buffers and caches are warm.
fn send(socket: &UdpSocket, batch: &[u8], duration: Duration) -> Result<f64> {
    let mut ack = [0; 8];
    let (mut sent, mut acked) = (0u64, 0u64);
    let mut warm: Option<(u64, Instant)> = None;
    let start = Instant::now();
    let mut progress = start;
    loop {
        let now = Instant::now();
        let sending = now - start < duration;
        if warm.is_none() && now - start > duration / 5 {
            warm = Some((acked, now));
        }
        if sending && sent - acked + batch.len() as u64 <= WINDOW {
            sent += or_nothing(socket.send(batch))?.unwrap_or(0) as u64;
        }
        while or_nothing(socket.recv(&mut ack))? == Some(ack.len()) {
            acked = acked.max(u64::from_le_bytes(ack));
            progress = now;
        }
        if !sending && acked == sent {
            let (before, since) = warm.unwrap_or((0, start));
            return Ok((acked - before) as f64 * 8.0 / since.elapsed().as_secs_f64() / 1e9);
        }
        ensure!(
            now - progress < STALLED,
            "raw UDP lost data in spite of its window"
        );
    }
}

/// Round trips of `size` bytes, one at a time, both ends spinning.
pub fn ping_pong(size: usize, duration: Duration) -> Result<Latencies> {
    let (client, server) = pair()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> io::Result<()> {
            sys::pin(SERVER_CPU);
            let mut buffer = vec![0; 1 << 16];
            while !stop.load(Ordering::Relaxed) {
                if let Some(len) = or_nothing(server.recv(&mut buffer))? {
                    server.send(&buffer[..len])?;
                }
            }
            Ok(())
        });
        let result = ask(&client, size, duration);
        stop.store(true, Ordering::Relaxed);
        drop(echo.join());
        result
    })
}

fn ask(socket: &UdpSocket, size: usize, duration: Duration) -> Result<Latencies> {
    let mut buffer = vec![0x5a; 1 << 16];
    let mut latencies = Latencies::default();
    let start = Instant::now();
    while start.elapsed() < duration {
        let asked = Instant::now();
        socket.send(&buffer[..size])?;
        while or_nothing(socket.recv(&mut buffer))?.is_none() {
            ensure!(asked.elapsed() < STALLED, "a raw UDP round trip was lost");
        }
        latencies.record(size as u32, asked.elapsed().as_nanos() as u64);
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_baselines_give_figures() {
        let bulk = throughput(Duration::from_millis(50)).unwrap();
        assert!(bulk.gbps > 0.01, "{bulk:?}");
        let latencies = ping_pong(100, Duration::from_millis(20)).unwrap();
        assert!(latencies.class(99, 100).p50_us.unwrap() > 0.1);
    }
}
