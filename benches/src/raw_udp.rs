//! The raw UDP bound: what the socket layer itself can do, with nothing on top of it.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags};
use socket2::SockRef;

use crate::report::Latencies;
use crate::sys;
use crate::transport::{NAP, SERVER_CPU, Setup};

/// Bytes of the headers of IPv4 and UDP.
const HEADERS: u16 = 28;
/// The largest payload of a send, which GSO cuts into datagrams.
const LARGEST: u16 = u16::MAX - HEADERS;
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
    /// Payload received, in Gb/s, once buffers and caches are warm.
    pub gbps: f64,
    /// Payload received in all.
    pub bytes: u64,
    /// System calls of both ends in all.
    pub calls: u64,
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

/// An end that counts its system calls.
struct End<'a> {
    socket: &'a UdpSocket,
    sleep: bool,
    calls: u64,
}

impl<'a> End<'a> {
    fn new(socket: &'a UdpSocket, setup: Setup) -> Self {
        Self {
            socket,
            sleep: setup.sleep,
            calls: 0,
        }
    }

    /// How many bytes were received, if any; nothing at once if there is nothing.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.calls += 1;
        or_nothing(self.socket.recv(buffer))
    }

    /// How many bytes were sent, if there was room.
    fn send(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.calls += 1;
        or_nothing(self.socket.send(bytes))
    }

    /// Nothing to do: sleeps until there is something to receive, if it is to sleep.
    fn idle(&mut self) -> io::Result<()> {
        if self.sleep {
            self.calls += 1;
            let readable = PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN);
            sys::poll(&mut [readable])?;
        }
        Ok(())
    }
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
pub fn throughput(setup: Setup, duration: Duration) -> Result<Bulk> {
    let (sender, receiver) = pair()?;
    let segment = setup.mtu - HEADERS;
    let gso = sys::set_udp_segment(&sender, segment).is_ok();
    let gro = sys::set_udp_gro(&receiver).is_ok();
    let segments = if gso { LARGEST / segment } else { 1 };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            sys::pin(SERVER_CPU);
            receive(End::new(&receiver, setup), &stop)
        });
        let batch = vec![0x5a; usize::from(segment * segments)];
        let mut end = End::new(&sender, setup);
        let sent = send(&mut end, &batch, duration);
        stop.store(true, Ordering::Relaxed);
        let calls = match receiving.join() {
            Ok(result) => result?,
            Err(_) => anyhow::bail!("the receiving thread panicked"),
        };
        let (bytes, gbps) = sent?;
        Ok(Bulk {
            gbps,
            bytes,
            calls: calls + end.calls,
            gso,
            gro,
        })
    })
}

/// Acknowledges what comes; how many system calls that took.
fn receive(mut end: End<'_>, stop: &AtomicBool) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let (mut received, mut acked) = (0u64, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let idle = match end.receive(&mut buffer)? {
            Some(len) => {
                received += len as u64;
                false
            }
            None => true,
        };
        if received - acked >= if idle { 1 } else { ACK_EVERY } {
            end.send(&received.to_le_bytes())?;
            acked = received;
        } else if idle {
            end.idle()?;
        }
    }
    Ok(end.calls)
}

/// Sends for `duration`: bytes, and Gb/s from a fifth of that on, once buffers and caches are warm.
fn send(end: &mut End<'_>, batch: &[u8], duration: Duration) -> Result<(u64, f64)> {
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
        let room = sending && sent - acked + batch.len() as u64 <= WINDOW;
        if room {
            sent += end.send(batch)?.unwrap_or(0) as u64;
        } else if acked < sent {
            end.idle()?;
        }
        while end.receive(&mut ack)? == Some(ack.len()) {
            acked = acked.max(u64::from_le_bytes(ack));
            progress = now;
        }
        if !sending && acked == sent {
            let (before, since) = warm.unwrap_or((0, start));
            let bits = (acked - before) as f64 * 8.0;
            return Ok((acked, bits / since.elapsed().as_secs_f64() / 1e9));
        }
        ensure!(
            now - progress < STALLED,
            "raw UDP lost data in spite of its window"
        );
    }
}

/// Round trips of `size` bytes, one at a time, and how many system calls both ends made.
pub fn ping_pong(setup: Setup, size: usize, duration: Duration) -> Result<(Latencies, u64)> {
    let (client, server) = pair()?;
    if setup.sleep {
        // Sleeping in the reception itself is the least that it can cost.
        for socket in [&client, &server] {
            socket.set_nonblocking(false)?;
            socket.set_read_timeout(Some(NAP))?;
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> io::Result<u64> {
            sys::pin(SERVER_CPU);
            let mut end = End::new(&server, setup);
            let mut buffer = vec![0; 1 << 16];
            while !stop.load(Ordering::Relaxed) {
                if let Some(len) = end.receive(&mut buffer)? {
                    end.send(&buffer[..len])?;
                }
            }
            Ok(end.calls)
        });
        let mut end = End::new(&client, setup);
        let latencies = ask(&mut end, size, duration);
        stop.store(true, Ordering::Relaxed);
        match echo.join() {
            Ok(calls) => Ok((latencies?, calls? + end.calls)),
            Err(_) => anyhow::bail!("the echoing thread panicked"),
        }
    })
}

fn ask(end: &mut End<'_>, size: usize, duration: Duration) -> Result<Latencies> {
    let mut buffer = vec![0x5a; 1 << 16];
    let mut latencies = Latencies::default();
    let start = Instant::now();
    while start.elapsed() < duration {
        let asked = Instant::now();
        end.send(&buffer[..size])?;
        while end.receive(&mut buffer)?.is_none() {
            ensure!(asked.elapsed() < STALLED, "a raw UDP round trip was lost");
        }
        latencies.record(size as u32, asked.elapsed().as_nanos() as u64);
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Reply;

    #[test]
    fn both_baselines_give_figures() {
        for (mtu, sleep) in [(1500, false), (1500, true), (9000, false)] {
            let setup = Setup {
                mtu,
                sleep,
                ..Setup::spinning(Reply::Echo)
            };
            let bulk = throughput(setup, Duration::from_millis(50)).unwrap();
            assert!(bulk.gbps > 0.01 && bulk.calls > 1, "{bulk:?}");
            let (latencies, calls) = ping_pong(setup, 100, Duration::from_millis(20)).unwrap();
            assert!(latencies.class(99, 100).p50_us.unwrap() > 0.1);
            assert!(calls >= 4 * latencies.len() as u64);
        }
    }
}
