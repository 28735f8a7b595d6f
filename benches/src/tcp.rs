//! The TCP rival: connections that carry frames of `length, id, body`.
//!
//! Set to be fast: `TCP_NODELAY`; short frames gathered in one piece of memory, and many pieces in
//! one write; one read for many frames; a large message read straight into its own memory; buffers
//! reused. Socket buffers are left to the kernel, which sizes them by what the connection needs.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};

use crate::sys;
use crate::transport::{Client, FRESH, Outcome, Pair, Reply, Server, Setup};

const HEADER: usize = 12;
/// Bytes asked for in one read.
const READ: usize = 256 * 1024;
/// Reads in one turn.
const READS: usize = 16;
/// Pieces of memory in one write.
const PIECES: usize = 128;
/// Messages up to this long are gathered, with their headers, in pieces of memory…
const GATHERED: usize = 4096;
/// … of so many bytes.
const PIECE: usize = LONG;
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
    /// What is to be sent, end to end; `sent` bytes of the first piece are gone.
    queue: VecDeque<Body>,
    sent: usize,
    /// The last piece takes more short frames.
    gathering: bool,
    /// Whether a turn reads and writes no more than [`READ`] bytes, for others have their turns too.
    modest: bool,
    /// System calls so far.
    calls: u64,
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
            gathering: false,
            modest: false,
            calls: 0,
            more: true,
            spares: Spares::default(),
        })
    }

    pub(crate) fn push(&mut self, id: u64, body: Body) {
        let header = header(id, body.len);
        if body.len <= GATHERED {
            self.gather(&header, body.bytes());
            self.spares.give_back(body);
        } else {
            self.gather(&header, &[]);
            self.queue.push_back(body);
            self.gathering = false;
        }
    }

    fn push_copy(&mut self, id: u64, message: &[u8]) {
        if message.len() <= GATHERED {
            self.gather(&header(id, message.len()), message);
        } else {
            let body = self.spares.copy(message);
            self.push(id, body);
        }
    }

    fn gather(&mut self, header: &[u8; HEADER], message: &[u8]) {
        let len = HEADER + message.len();
        let room = |piece: &Body| piece.len + len <= PIECE;
        if !self.gathering || !self.queue.back().is_some_and(room) {
            let mut piece = self.spares.take(PIECE);
            piece.set_len(0);
            self.queue.push_back(piece);
            self.gathering = true;
        }
        if let Some(piece) = self.queue.back_mut() {
            let (start, middle) = (piece.len, piece.len + HEADER);
            piece.set_len(start + len);
            piece.data[start..middle].copy_from_slice(header);
            piece.data[middle..start + len].copy_from_slice(message);
        }
    }

    /// Writes until the queue is empty or the kernel takes no more.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let (mut count, mut left) = (0, if self.modest { READ } else { usize::MAX });
            let mut skip = self.sent;
            for piece in self.queue.iter().take(PIECES) {
                let bytes = &piece.bytes()[skip..];
                let bytes = &bytes[..bytes.len().min(left)];
                slices[count] = IoSlice::new(bytes);
                (count, left, skip) = (count + 1, left - bytes.len(), 0);
                if left == 0 {
                    break;
                }
            }
            self.calls += 1;
            match self.stream.write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            while let Some(piece) = self.queue.front()
                && self.sent >= piece.len
            {
                self.sent -= piece.len;
                if let Some(piece) = self.queue.pop_front() {
                    self.spares.give_back(piece);
                }
            }
            if self.modest {
                return Ok(());
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
        for _ in 0..if self.modest { 1 } else { READS } {
            let space = match &mut self.partial {
                Some((_, body, filled)) => &mut body.data[*filled..body.len],
                None => &mut self.received[self.end..],
            };
            let asked = space.len();
            self.calls += 1;
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

fn header(id: u64, len: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(len as u32).to_le_bytes());
    header[4..].copy_from_slice(&id.to_le_bytes());
    header
}

/// What is chosen about connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice {
    /// The congestion control; `None`: what the system has set.
    pub congestion: Option<&'static str>,
    /// A connection for each class of message sizes ([`SIZES`]) instead of one for all.
    pub by_size: bool,
}

/// Where a size class ends that has a connection of its own. Few, for each connection costs a
/// system call a turn.
pub const SIZES: [usize; 3] = [1_400, 10_000, 100_000];

impl Choice {
    /// A socket before it listens or connects.
    fn socket(self, setup: Setup) -> Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // The headers of IPv4 and TCP have 40 bytes together.
        socket.set_tcp_mss(u32::from(setup.mtu) - 40)?;
        if let Some(name) = self.congestion {
            let set = socket.set_tcp_congestion(name.as_bytes());
            set.with_context(|| format!("this kernel has no TCP {name}"))?;
        }
        Ok(socket)
    }

    fn connections(self, setup: Setup) -> usize {
        if self.by_size {
            SIZES.len() + 1
        } else {
            setup.peers
        }
    }
}

/// Sleeps until one of the connections has something to read, or room for what is to be written.
fn sleep(connections: &[Framed]) -> Result<()> {
    if connections.iter().any(Framed::more) {
        return Ok(());
    }
    let mut fds: Vec<_> = connections
        .iter()
        .map(|framed| {
            let blocked = !framed.queue.is_empty();
            let flags = if blocked {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            PollFd::from_borrowed_fd(framed.stream().as_fd(), flags)
        })
        .collect();
    sys::poll(&mut fds)?;
    Ok(())
}

/// The client half.
#[derive(Debug)]
pub struct TcpClient {
    connections: Vec<Framed>,
    choice: Choice,
    setup: Setup,
    sleeps: u64,
}

impl TcpClient {
    fn connect(to: SocketAddr, choice: Choice, setup: Setup) -> Result<Self> {
        let connect = |_| -> Result<Framed> {
            let socket = choice.socket(setup)?;
            let connected = socket.connect(&to.into());
            connected.with_context(|| format!("cannot connect to {to}"))?;
            Ok(Framed::new(socket.into())?)
        };
        let count = choice.connections(setup);
        let mut connections = (0..count).map(connect).collect::<Result<Vec<_>>>()?;
        for framed in &mut connections {
            framed.modest = choice.by_size;
        }
        Ok(Self {
            connections,
            choice,
            setup,
            sleeps: 0,
        })
    }
}

impl Client for TcpClient {
    fn settings(&self) -> String {
        let Choice {
            congestion,
            by_size,
        } = self.choice;
        [
            match self.connections.len() {
                1 => "one connection".into(),
                many if by_size => format!(
                    "{many} connections, by message size (up to {SIZES:?} bytes and above), the \
                     shortest first, at most {READ} bytes of each a turn"
                ),
                many => format!("{many} connections"),
            },
            format!(
                "congestion control {}",
                congestion.unwrap_or("as the system has it")
            ),
            "TCP_NODELAY".into(),
            format!(
                "segments for MTU {}, joined by the kernel (GSO)",
                self.setup.mtu
            ),
            "length-prefixed frames, as many in a write as there are, non-blocking".into(),
            "socket buffers sized by the kernel".into(),
        ]
        .join(", ")
    }

    fn request(&mut self, id: u64, message: &[u8]) -> Result<bool> {
        let index = if self.choice.by_size {
            SIZES.partition_point(|&size| size < message.len())
        } else {
            id as usize % self.connections.len()
        };
        let framed = &mut self.connections[index];
        if self.setup.reply == Reply::FirstByte && message.len() > LONG {
            let mut body = framed.spares.take(message.len());
            body.data[..FRESH].copy_from_slice(&message[..FRESH]);
            framed.push(id, body);
        } else {
            framed.push_copy(id, message);
        }
        Ok(true)
    }

    fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()> {
        for framed in &mut self.connections {
            framed.flush()?;
        }
        if self.setup.sleep {
            self.sleeps += 1;
            sleep(&self.connections)?;
        }
        for framed in &mut self.connections {
            let open = framed.read(|id, message, spares| match message {
                Received::Borrowed(bytes) => ended(id, Ok(bytes)),
                Received::Owned(body) => {
                    ended(id, Ok(body.bytes()));
                    spares.give_back(body);
                }
            })?;
            anyhow::ensure!(open, "the TCP server closed the connection");
        }
        Ok(())
    }

    fn system_calls(&self) -> Option<u64> {
        Some(self.sleeps + calls(&self.connections))
    }
}

fn calls(connections: &[Framed]) -> u64 {
    connections.iter().map(|framed| framed.calls).sum()
}

/// The server half: answers on every connection.
#[derive(Debug)]
pub struct TcpServer {
    listener: TcpListener,
    setup: Setup,
    choice: Choice,
    connections: Vec<Framed>,
    sleeps: u64,
    /// Answers of the turn that are in memory of their own, on their way to the queue.
    replies: Vec<(u64, Body)>,
}

impl TcpServer {
    /// Listens on loopback, on a free port.
    fn bind(choice: Choice, setup: Setup) -> Result<Self> {
        let socket = choice.socket(setup)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        socket.listen(128)?;
        Ok(Self {
            listener: socket.into(),
            setup,
            choice,
            connections: Vec::new(),
            sleeps: 0,
            replies: Vec::new(),
        })
    }

    /// Waits for the client's connections: turns never do, since they would pay for asking.
    fn accept(&mut self) -> Result<()> {
        for _ in 0..self.choice.connections(self.setup) {
            let mut framed = Framed::new(self.listener.accept()?.0)?;
            framed.modest = self.choice.by_size;
            self.connections.push(framed);
        }
        Ok(())
    }
}

impl Server for TcpServer {
    fn turn(&mut self) -> Result<()> {
        if self.setup.sleep {
            self.sleeps += 1;
            sleep(&self.connections)?;
        }
        let reply = self.setup.reply;
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

    fn system_calls(&self) -> Option<u64> {
        Some(self.sleeps + calls(&self.connections))
    }
}

/// A client and a server, connected.
pub fn pair(setup: Setup, choice: Choice) -> Result<Pair> {
    let mut server = TcpServer::bind(choice, setup)?;
    let client = TcpClient::connect(server.listener.local_addr()?, choice, setup)?;
    server.accept()?;
    Ok((Box::new(client), Box::new(server)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::{ClosedLoop, closed_loop};
    use crate::transport::ServerThread;
    use crate::workload::{Pattern, Rng};

    #[test]
    fn frames_of_all_sizes_come_back_whole() {
        let many = Setup {
            peers: 3,
            ..Setup::spinning(Reply::Echo)
        };
        let sleeping = Setup {
            sleep: true,
            ..Setup::spinning(Reply::Echo)
        };
        let by_size = Choice {
            congestion: Some("reno"),
            by_size: true,
        };
        for (setup, choice) in [
            (Setup::spinning(Reply::Echo), Choice::default()),
            (Setup::spinning(Reply::Echo), by_size),
            (many, Choice::default()),
            (sleeping, Choice::default()),
            (sleeping, by_size),
        ] {
            let (mut client, server) = pair(setup, choice).unwrap();
            let mut thread = ServerThread::spawn(vec![server]).unwrap();
            thread.select(0);
            let pattern = Pattern::new(1, 1_000_000);
            let shape = ClosedLoop {
                outstanding: 50,
                reply: Reply::Echo,
                first_id: 1,
                duration: Duration::from_millis(100),
                count: usize::MAX,
                patience: Duration::from_secs(20),
            };
            let mut rng = Rng::new(1);
            let mut size = || 1 << rng.below(20);
            let run = closed_loop(client.as_mut(), shape, &pattern, &mut size).unwrap();
            assert_eq!(run.errors, 0, "{run:?}");
            assert!(run.latencies.len() > 50);
            assert!(client.system_calls() > Some(2));
            assert!(thread.counters().system_calls > Some(2));
            thread.stop().unwrap();
        }
    }
}
