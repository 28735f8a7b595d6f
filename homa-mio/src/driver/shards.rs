//! Several drivers side by side, each on a thread of its own with its part of the link.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, Weak};

use homa_proto::PeerAddr;

use super::{Call, CallOptions, Client, Driver, DriverOptions, DriverStats, Handler, Request};
use super::{Shared, TryCallError, lock};
use crate::message::Message;
use crate::options::{Options, udp_socket};
use crate::socket::Socket;
use crate::sys::Sys;

/// One of several that share a link: what its socket is made of.
#[derive(Debug)]
pub struct Shard {
    index: usize,
    count: usize,
    udp: UdpSocket,
}

impl Shard {
    /// Which it is, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Makes the socket. The options say what all shards have together: see
    /// [`Options::share`](crate::generic::Options::share).
    ///
    /// # Errors
    /// As for [`from_udp`](crate::generic::Options::from_udp).
    pub fn bind<S: Sys>(self, options: Options<S>) -> io::Result<Socket<S>> {
        options.share(self.count).from_udp(self.udp)
    }
}

impl DriverOptions {
    /// Starts a server of `count` shards on one address. `bind` makes the socket of each, on its
    /// thread, and `handler` what answers its requests.
    ///
    /// The kernel gives all packets of one client's socket to one shard, so that a request and all
    /// that belongs to it stay there. (A response to a call of the server's own could come to any
    /// shard: so these have no clients.) If one shard fails all end. What clients send before all
    /// shards are there is dropped, and asked for again. On systems other than Linux one shard may
    /// get everything.
    ///
    /// ```no_run
    /// # use homa_mio::{Driver, Socket};
    /// let address = "0.0.0.0:4000".parse().unwrap();
    /// let server = Driver::builder().serve_shards(
    ///     address,
    ///     4,
    ///     |shard| shard.bind(Socket::builder().link_bps(100_000_000_000)),
    ///     |_index| {
    ///         |request| {
    ///             let _ = request.reply(b"pong");
    ///         }
    ///     },
    /// )?;
    /// server.join()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`serve`](Self::serve), or `count` is 0 (`InvalidInput`).
    pub fn serve_shards<S: Sys, H: FnMut(Request) + Send + 'static>(
        self,
        address: SocketAddr,
        count: usize,
        bind: impl Fn(Shard) -> io::Result<Socket<S>> + Clone + Send + 'static,
        mut handler: impl FnMut(usize) -> H,
    ) -> io::Result<ServerShards> {
        let mut sockets: Vec<UdpSocket> = Vec::with_capacity(count);
        for _ in 0..count {
            let address = match sockets.first() {
                Some(first) => first.local_addr()?,
                None => address,
            };
            sockets.push(udp_socket(address, true)?);
        }
        for socket in &sockets {
            discard(socket)?;
        }
        // While these are open the kernel spreads packets as before, whichever shard ends first.
        let keep = sockets.iter().map(UdpSocket::try_clone);
        let keep = keep.collect::<io::Result<Vec<_>>>()?;
        let handler = |index| Some(Box::new(handler(index)) as Handler);
        Ok(ServerShards {
            shards: Shards::start(self, sockets, bind, handler)?,
            _keep: keep,
        })
    }

    /// Starts `count` drivers for calls, each with a socket on a port of its own. `bind` makes the
    /// socket of each, on its thread.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn), or `count` is 0 (`InvalidInput`).
    pub fn spawn_shards<S: Sys>(
        self,
        address: SocketAddr,
        count: usize,
        bind: impl Fn(Shard) -> io::Result<Socket<S>> + Clone + Send + 'static,
    ) -> io::Result<ClientShards> {
        let sockets = (0..count).map(|_| udp_socket(address, false));
        let sockets = sockets.collect::<io::Result<_>>()?;
        Ok(ClientShards {
            shards: Shards::start(self, sockets, bind, |_| None)?,
        })
    }
}

/// Drops what a socket has received. It is bounded: whoever floods the port cannot hold this up.
fn discard(socket: &UdpSocket) -> io::Result<()> {
    const MOST: usize = 100_000;
    socket.set_nonblocking(true)?;
    for _ in 0..MOST {
        match socket.recv(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            _ => {}
        }
    }
    Ok(())
}

/// Those that end when one of them does.
#[derive(Default)]
struct Group {
    members: Vec<Weak<Shared>>,
    has_ended: bool,
}

impl Group {
    fn end(group: &Mutex<Self>) {
        let mut group = lock(group);
        group.has_ended = true;
        for member in group.members.drain(..) {
            if let Some(member) = member.upgrade() {
                member.stop();
            }
        }
    }
}

struct Shards {
    drivers: Vec<Driver>,
}

impl Shards {
    fn start<S: Sys>(
        options: DriverOptions,
        sockets: Vec<UdpSocket>,
        bind: impl Fn(Shard) -> io::Result<Socket<S>> + Clone + Send + 'static,
        mut handler: impl FnMut(usize) -> Option<Handler>,
    ) -> io::Result<Self> {
        let count = sockets.len();
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no shards"));
        }
        let group = Arc::new(Mutex::new(Group::default()));
        let mut drivers = Vec::with_capacity(count);
        for (index, udp) in sockets.into_iter().enumerate() {
            let shard = Shard { index, count, udp };
            let (bind, at_end) = (bind.clone(), Arc::clone(&group));
            let options = options.clone();
            let name = format!("{}-{index}", options.name);
            let driver = options.name(name).start(
                move || bind(shard),
                handler(index),
                Box::new(move || Group::end(&at_end)),
            )?;
            let mut group = lock(&group);
            if group.has_ended {
                driver.shared.stop();
            } else {
                group.members.push(Arc::downgrade(&driver.shared));
            }
            drop(group);
            drivers.push(driver);
        }
        Ok(Self { drivers })
    }

    fn stats(&self) -> Vec<DriverStats> {
        self.drivers.iter().map(Driver::stats).collect()
    }

    fn stop(&self) {
        for driver in &self.drivers {
            driver.shared.stop();
        }
    }

    /// Waits for all of them.
    fn end(&mut self) -> io::Result<Vec<DriverStats>> {
        let ends: Vec<_> = self.drivers.iter_mut().map(Driver::end).collect();
        ends.into_iter().collect()
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        // All of them first, and then wait.
        self.stop();
    }
}

/// A server on one port, spread over several threads. Dropping it does what
/// [`shutdown`](Self::shutdown) does.
pub struct ServerShards {
    shards: Shards,
    // Goes last.
    _keep: Vec<UdpSocket>,
}

impl ServerShards {
    /// The address that all shards have.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shards.drivers[0].local_addr()
    }

    /// Counters of each shard; see [`Driver::stats`].
    #[must_use]
    pub fn stats(&self) -> Vec<DriverStats> {
        self.shards.stats()
    }

    /// Ends all shards and waits for their threads; see [`Driver::shutdown`].
    ///
    /// # Errors
    /// A socket had failed before, or a thread had panicked.
    pub fn shutdown(mut self) -> io::Result<Vec<DriverStats>> {
        self.shards.stop();
        self.shards.end()
    }

    /// Waits until all end because the socket of one fails.
    ///
    /// # Errors
    /// A socket has failed, or a thread has panicked.
    pub fn join(mut self) -> io::Result<Vec<DriverStats>> {
        self.shards.end()
    }
}

impl fmt::Debug for ServerShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerShards")
            .field("local_addr", &self.local_addr())
            .field("shards", &self.shards.drivers.len())
            .finish()
    }
}

/// Drivers for calls on several threads. Dropping it does what [`shutdown`](Self::shutdown) does.
pub struct ClientShards {
    shards: Shards,
}

impl ClientShards {
    /// A handle to call servers with.
    #[must_use]
    pub fn client(&self) -> ShardedClient {
        ShardedClient {
            clients: self.shards.drivers.iter().map(Driver::client).collect(),
        }
    }

    /// Counters of each shard; see [`Driver::stats`].
    #[must_use]
    pub fn stats(&self) -> Vec<DriverStats> {
        self.shards.stats()
    }

    /// Ends all shards and waits for their threads; see [`Driver::shutdown`].
    ///
    /// # Errors
    /// A socket had failed before, or a thread had panicked.
    pub fn shutdown(mut self) -> io::Result<Vec<DriverStats>> {
        self.shards.stop();
        self.shards.end()
    }
}

impl fmt::Debug for ClientShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientShards")
            .field("shards", &self.shards.drivers.len())
            .finish()
    }
}

/// Calls servers by way of several drivers: each server always by the same one, which keeps the
/// books about it.
///
/// The bound on calls in flight is one for each shard.
#[derive(Clone, Debug)]
pub struct ShardedClient {
    clients: Arc<[Client]>,
}

impl ShardedClient {
    /// The handle to the shard that calls this server.
    #[must_use]
    pub fn shard_for(&self, to: impl Into<PeerAddr>) -> &Client {
        let to = to.into().socket;
        // An address and its IPv4-mapped form are one peer.
        let mut hasher = DefaultHasher::new();
        (to.ip().to_canonical(), to.port()).hash(&mut hasher);
        &self.clients[(hasher.finish() % self.clients.len() as u64) as usize]
    }

    /// See [`Client::call`].
    pub fn call(&self, to: impl Into<PeerAddr>, bytes: &[u8]) -> Call {
        let to = to.into();
        self.shard_for(to).call(to, bytes)
    }

    /// See [`Client::call_with`].
    pub fn call_with(
        &self,
        to: impl Into<PeerAddr>,
        message: impl Into<Message>,
        options: CallOptions,
    ) -> Call {
        let to = to.into();
        self.shard_for(to).call_with(to, message, options)
    }

    /// See [`Client::try_call`].
    ///
    /// # Errors
    /// As many calls are in flight on the shard as are allowed, or it has ended.
    pub fn try_call(
        &self,
        to: impl Into<PeerAddr>,
        message: impl Into<Message>,
        options: CallOptions,
    ) -> Result<Call, TryCallError> {
        let to = to.into();
        self.shard_for(to).try_call(to, message, options)
    }
}
