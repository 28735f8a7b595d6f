//! The TCP rival: one connection, frames of `length, id, body`, never blocking, never sleeping.
//!
//! Set to be fast: `TCP_NODELAY`; many frames in one write and one read; a large message read
//! straight into its own memory; buffers reused. Socket buffers are left to the kernel, which sizes
//! them by what the connection needs.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::report::Latencies;
use crate::sys;
use crate::transport::{Client, Outcome, Pair, Reply, SERVER_CPU, Server};

const SETTINGS: &str = "one connection, length-prefixed frames, TCP_NODELAY, non-blocking, \
     spinning, kernel-sized buffers, loopback's own segment size";

const HEADER: usize = 12;
/// Bytes asked for in one read.
const READ: usize = 256 * 1024;
/// Reads in one turn.
const READS: usize = 16;
/// Frames in one write.
const FRAMES: usize = 64;
/// Messages longer than this are read straight into memory of their own.
const LONG: usize = READ / 4;
/// Buffers of each kind kept for reuse.
const SPARES: usize = 64;

/// A message in memory that is initialised once, however short the messages that it then holds.
#[derive(Debug, Default)]
pub(crate) struct Body {
    data: Vec<u8>,
    len: usize,
}

impl Body {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[..self.len]
    }

    fn set_len(&mut self, len: usize) {
        self.len = len;
        if self.data.len() < len {
            self.data.resize(len, 0);
        }
    }
}

/// Buffers for reuse, short ones and long ones apart.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    short: Vec<Body>,
    long: Vec<Body>,
}

impl Spares {
    fn take(&mut self, len: usize) -> Body {
        let kind = if len > LONG {
            &mut self.long
        } else {
            &mut self.short
        };
        let mut body = kind.pop().unwrap_or_default();
        body.set_len(len);
        body
    }

    pub(crate) fn copy(&mut self, message: &[u8]) -> Body {
        let mut body = self.take(message.len());
        body.data[..message.len()].copy_from_slice(message);
        body
    }

    pub(crate) fn give_back(&mut self, body: Body) {
        let kind = if body.data.len() > LONG {
            &mut self.long
        } else {
            &mut self.short
        };
        if kind.len() < SPARES {
            kind.push(body);
        }
    }
}

/// A message as it arrives: still among others, or in memory of its own.
pub(crate) enum Received<'a> {
    Borrowed(&'a [u8]),
    Owned(Body),
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Framed {
    stream: TcpStream,
    /// Received, not yet parsed: `received[start..end]`.
    received: Vec<u8>,
    start: usize,
    end: usize,
    /// A message longer than what one read brought, and how much of it is there.
    partial: Option<(u64, Body, usize)>,
    /// Frames to send; `sent` bytes of the first are gone.
    queue: VecDeque<([u8; HEADER], Body)>,
    sent: usize,
    /// There may be more to read.
    more: bool,
    spares: Spares,
}

impl Framed {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            received: vec![0; READ],
            start: 0,
            end: 0,
            partial: None,
            queue: VecDeque::new(),
            sent: 0,
            more: true,
            spares: Spares::default(),
        })
    }

    pub(crate) fn push(&mut self, id: u64, body: Body) {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(body.len as u32).to_le_bytes());
        header[4..].copy_from_slice(&id.to_le_bytes());
        self.queue.push_back((header, body));
    }

    /// Writes until the queue is empty or the kernel takes no more.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); 2 * FRAMES];
            let mut count = 0;
            for (header, body) in self.queue.iter().take(FRAMES) {
                slices[count] = IoSlice::new(header);
                slices[count + 1] = IoSlice::new(body.bytes());
                count += 2;
            }
            let mut left = &mut slices[..count];
            IoSlice::advance_slices(&mut left, self.sent);
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            while let Some((_, body)) = self.queue.front()
                && self.sent >= HEADER + body.len
            {
                self.sent -= HEADER + body.len;
                if let Some((_, body)) = self.queue.pop_front() {
                    self.spares.give_back(body);
                }
            }
        }
        Ok(())
    }

    /// Reads what there is and hands over each whole message. `false`: the peer has closed.
    pub(crate) fn read(
        &mut self,
        mut deliver: impl FnMut(u64, Received<'_>, &mut Spares),
    ) -> io::Result<bool> {
        self.more = false;
        for _ in 0..READS {
            let space = match &mut self.partial {
                Some((_, body, filled)) => &mut body.data[*filled..body.len],
                None => &mut self.received[self.end..],
            };
            let asked = space.len();
            let read = match self.stream.read(space) {
                Ok(0) => return Ok(false),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if let Some((_, body, filled)) = &mut self.partial {
                *filled += read;
                if *filled == body.len
                    && let Some((id, body, _)) = self.partial.take()
                {
                    deliver(id, Received::Owned(body), &mut self.spares);
                }
            } else {
                self.end += read;
                self.parse(&mut deliver);
            }
            if read < asked {
                return Ok(true);
            }
        }
        self.more = true;
        Ok(true)
    }

    /// Whether the last [`Framed::read`] left off before everything was read.
    pub(crate) fn more(&self) -> bool {
        self.more
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn spares(&mut self) -> &mut Spares {
        &mut self.spares
    }

    fn parse(&mut self, deliver: &mut impl FnMut(u64, Received<'_>, &mut Spares)) {
        loop {
            let waiting = &self.received[self.start..self.end];
            let Some((header, rest)) = waiting.split_first_chunk::<HEADER>() else {
                break;
            };
            let [l0, l1, l2, l3, id @ ..] = *header;
            let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            let id = u64::from_le_bytes(id);
            if let Some(body) = rest.get(..len) {
                deliver(id, Received::Borrowed(body), &mut self.spares);
                self.start += HEADER + len;
            } else if len > LONG {
                // The rest goes straight to where it belongs.
                let mut body = self.spares.take(len);
                body.data[..rest.len()].copy_from_slice(rest);
                self.partial = Some((id, body, rest.len()));
                self.start = self.end;
            } else {
                break;
            }
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// The client half.
#[derive(Debug)]
pub struct TcpClient {
    framed: Framed,
}

impl TcpClient {
    /// Connects.
    pub fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
        Ok(Self {
            framed: Framed::new(stream)?,
        })
    }
}

impl Client for TcpClient {
    fn settings(&self) -> String {
        SETTINGS.into()
    }

    fn request(&mut self, id: u64, message: &[u8]) -> Result<bool> {
        let body = self.framed.spares.copy(message);
        self.framed.push(id, body);
        Ok(true)
    }

    fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()> {
        self.framed.flush()?;
        let open = self.framed.read(|id, message, spares| match message {
            Received::Borrowed(bytes) => ended(id, Ok(bytes)),
            Received::Owned(body) => {
                ended(id, Ok(body.bytes()));
                spares.give_back(body);
            }
        })?;
        anyhow::ensure!(open, "the TCP server closed the connection");
        Ok(())
    }
}

/// The server half: answers on every connection.
#[derive(Debug)]
pub struct TcpServer {
    listener: TcpListener,
    reply: Reply,
    connections: Vec<Framed>,
    /// Answers of the turn, on their way to the queue.
    replies: Vec<(u64, Body)>,
}

impl TcpServer {
    /// Listens on loopback, on a free port.
    pub fn bind(reply: Reply) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            reply,
            connections: Vec::new(),
            replies: Vec::new(),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for a client to connect: turns never do, since they would pay for asking.
    pub fn accept(&mut self) -> Result<()> {
        self.listener.set_nonblocking(false)?;
        let (stream, _) = self.listener.accept()?;
        self.connections.push(Framed::new(stream)?);
        Ok(())
    }
}

impl Server for TcpServer {
    fn turn(&mut self) -> Result<()> {
        let reply = self.reply;
        for framed in &mut self.connections {
            let replies = &mut self.replies;
            let open = framed.read(|id, message, spares| {
                let mut body = match message {
                    Received::Owned(body) => body,
                    Received::Borrowed(bytes) => spares.copy(bytes),
                };
                if reply == Reply::FirstByte {
                    body.set_len(1);
                }
                replies.push((id, body));
            })?;
            for (id, body) in self.replies.drain(..) {
                framed.push(id, body);
            }
            // A client that has gone wants no more answers.
            if open {
                framed.flush()?;
            } else {
                framed.queue.clear();
            }
        }
        Ok(())
    }
}

/// A client and a server, connected.
pub fn pair(reply: Reply) -> Result<Pair> {
    let mut server = TcpServer::bind(reply)?;
    let client = TcpClient::connect(server.local_addr()?)?;
    server.accept()?;
    Ok((Box::new(client), Box::new(server)))
}

/// Round trips of `size` bytes, one at a time, both ends spinning on one connection.
pub fn ping_pong(size: usize, duration: Duration) -> Result<Latencies> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> io::Result<()> {
            sys::pin(SERVER_CPU);
            let mut buffer = vec![0; size];
            loop {
                if !spin_read(&server, &mut buffer, &stop)? {
                    return Ok(());
                }
                (&server).write_all(&buffer)?;
            }
        });
        let result = (|| {
            let mut latencies = Latencies::default();
            let mut buffer = vec![0; size];
            let start = Instant::now();
            while start.elapsed() < duration {
                let asked = Instant::now();
                (&client).write_all(&buffer)?;
                spin_read(&client, &mut buffer, &stop)?;
                latencies.record(size as u32, asked.elapsed().as_nanos() as u64);
            }
            Ok(latencies)
        })();
        stop.store(true, Ordering::Relaxed);
        drop(echo.join());
        result
    })
}

/// Fills the buffer without sleeping. `false`: told to stop.
fn spin_read(mut stream: &TcpStream, buffer: &mut [u8], stop: &AtomicBool) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{ClosedLoop, closed_loop};
    use crate::transport::ServerThread;
    use crate::workload::{Pattern, Rng};

    #[test]
    fn frames_of_all_sizes_come_back_whole() {
        let mut server = TcpServer::bind(Reply::Echo).unwrap();
        let mut client = TcpClient::connect(server.local_addr().unwrap()).unwrap();
        server.accept().unwrap();
        let mut thread = ServerThread::spawn(vec![Box::new(server)]).unwrap();
        thread.select(0);
        let pattern = Pattern::new(1, 1_000_000);
        let shape = ClosedLoop {
            outstanding: 50,
            reply: Reply::Echo,
            first_id: 1,
            duration: Duration::from_millis(200),
            count: usize::MAX,
            patience: Duration::from_secs(20),
        };
        let mut rng = Rng::new(1);
        let mut size = || 1 << rng.below(20);
        let run = closed_loop(&mut client, shape, &pattern, &mut size).unwrap();
        assert_eq!(run.errors, 0, "{run:?}");
        assert!(run.latencies.len() > 50);
        thread.stop().unwrap();
    }

    #[test]
    fn round_trips_take_time() {
        let latencies = ping_pong(100, Duration::from_millis(20)).unwrap();
        assert!(latencies.class(99, 100).p50_us.unwrap() > 0.1);
    }
}
