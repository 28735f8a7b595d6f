//! TCP at a host: connections to every other host, each message on the one that has the least to
//! carry.

use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, SockRef, Socket, Type};

use super::node::{Counters, News, Node, Place};
use super::sys;
use crate::tcp::{Framed, Received};

/// Bytes that a connection takes ahead of what it can send (TCP_NOTSENT_LOWAT): a write of a long
/// message then does not hold up the thread for as long as it takes to copy all of it.
const UNSENT: u32 = 128 * 1024;
const LISTENER: Token = Token(usize::MAX);

#[derive(Debug)]
struct Connection {
    framed: Framed,
    /// Of our own requests on it, the bytes that have not come back.
    waiting: u64,
    /// The socket may have something to read, or room to write again.
    ready: bool,
}

#[derive(Debug)]
pub(super) struct TcpNode {
    place: Place,
    congestion: &'static str,
    per_pair: usize,
    listener: TcpListener,
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    /// By host: which connections are ours to ask on.
    to: Vec<Vec<usize>>,
    replies: Vec<(u64, crate::tcp::Body)>,
}

impl TcpNode {
    /// Listens. `congestion` is the algorithm's name to the kernel.
    pub(super) fn bind(place: Place, congestion: &'static str, per_pair: usize) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(place.own()), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        set_congestion(&socket, congestion)?;
        socket.bind(&place.own().into())?;
        socket.listen(1024)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let poll = Poll::new()?;
        poll.registry().register(
            &mut SourceFd(&listener.as_raw_fd()),
            LISTENER,
            Interest::READABLE,
        )?;
        Ok(Self {
            place,
            congestion,
            per_pair,
            listener,
            poll,
            events: Events::with_capacity(1024),
            connections: Vec::new(),
            to: vec![Vec::new(); place.hosts],
            replies: Vec::new(),
        })
    }

    fn add(&mut self, stream: TcpStream) -> Result<usize> {
        let index = self.connections.len();
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT)?;
        let framed = Framed::new(stream)?;
        self.poll.registry().register(
            &mut SourceFd(&framed.stream().as_raw_fd()),
            Token(index),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        self.connections.push(Connection {
            framed,
            waiting: 0,
            ready: true,
        });
        Ok(index)
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.add(stream)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
        }
    }

    /// Writes and reads what can be written and read now.
    fn serve(&mut self, index: usize, news: &mut dyn FnMut(News<'_>)) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.ready = false;
        let (framed, waiting, replies) = (
            &mut connection.framed,
            &mut connection.waiting,
            &mut self.replies,
        );
        let read = framed.read(|id, message, spares| {
            let bytes = match &message {
                Received::Borrowed(bytes) => bytes,
                Received::Owned(body) => body.bytes(),
            };
            let ours = id & ASKED == 0;
            let id = id & !ASKED;
            if ours {
                *waiting = waiting.saturating_sub(bytes.len() as u64);
                news(News::Ended(id, Ok(bytes)));
                if let Received::Owned(body) = message {
                    spares.give_back(body);
                }
            } else {
                news(News::Asked(bytes));
                let body = match message {
                    Received::Owned(body) => body,
                    Received::Borrowed(bytes) => spares.copy(bytes),
                };
                replies.push((id, body));
            }
        });
        connection.ready = framed.more();
        for (id, body) in self.replies.drain(..) {
            framed.push(id, body);
        }
        match read.and_then(|open| if open { framed.flush() } else { Ok(()) }) {
            // The other host has finished; what we still ask of it counts as unfinished.
            Err(error) if matches!(error.kind(), ConnectionReset | BrokenPipe) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Marks the id of a request, so that its answer is told from it.
const ASKED: u64 = 1 << 63;

fn set_congestion(socket: &Socket, name: &str) -> Result<()> {
    SockRef::from(socket)
        .set_tcp_congestion(name.as_bytes())
        .with_context(|| format!("this kernel has no TCP {name}"))
}

impl Node for TcpNode {
    fn connect(&mut self) -> Result<()> {
        for host in self.place.others() {
            for _ in 0..self.per_pair {
                let to = self.place.of(host);
                let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
                set_congestion(&socket, self.congestion)?;
                socket.connect_timeout(&to.into(), Duration::from_secs(5))?;
                let index = self.add(socket.into())?;
                self.to[host].push(index);
            }
        }
        Ok(())
    }

    fn request(&mut self, to: usize, id: u64, message: &[u8]) -> Result<bool> {
        let waiting = |index: &usize| self.connections[*index].waiting;
        let least = self.to[to].iter().copied().min_by_key(waiting);
        let index = least.context("not connected")?;
        let connection = &mut self.connections[index];
        connection.waiting += message.len() as u64;
        let body = connection.framed.spares().copy(message);
        connection.framed.push(id | ASKED, body);
        connection.framed.flush()?;
        Ok(true)
    }

    fn turn(&mut self, timeout: Duration, news: &mut dyn FnMut(News<'_>)) -> Result<()> {
        if !self.connections.iter().any(|connection| connection.ready) {
            // SAFETY: the poll lives as long as this borrow.
            let poll = unsafe { BorrowedFd::borrow_raw(self.poll.as_raw_fd()) };
            sys::wait(poll.as_fd(), timeout)?;
        }
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        let mut accept = false;
        for event in &self.events {
            match event.token() {
                LISTENER => accept = true,
                Token(index) => self.connections[index].ready = true,
            }
        }
        if accept {
            self.accept()?;
        }
        for index in 0..self.connections.len() {
            if self.connections[index].ready {
                self.serve(index, news)?;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Result<Counters> {
        let mut counters = Counters::default();
        for connection in &self.connections {
            counters.retransmits += sys::retransmits(connection.framed.stream())?;
        }
        Ok(counters)
    }

    fn settings(&self) -> String {
        format!(
            "{}, {} connections a pair, TCP_NODELAY, 128 KB unsent, the connection with the fewest bytes waiting",
            self.congestion, self.per_pair
        )
    }
}
