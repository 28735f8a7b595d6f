//! A socket on a thread of its own, and handles to it for all others.

mod calls;
mod client;
mod server;
mod shards;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task;
use std::thread::{JoinHandle, ThreadId};

use homa_proto::{BufferSource, RpcId};

use crate::message::{Message, Pool};
use crate::socket::{CallError, Event, RequestOptions, Socket};
use crate::stats::Stats;
use crate::sys::Sys;
use crate::wake::Waker;

use calls::{Calls, Command, Outcome, Submission, Wakes};

pub use calls::CallOptions;
pub use client::{Call, Client, TryCallError};
pub use server::{Request, Responder};
pub use shards::{ClientShards, ServerShards, Shard, ShardedClient};

/// How to start a [`Driver`].
///
/// ```
/// use homa_mio::{Driver, Socket};
///
/// let server = Driver::builder().serve(
///     || Socket::bind("127.0.0.1:0".parse().unwrap()),
///     |request| {
///         let _ = request.reply(b"pong");
///     },
/// )?;
/// let client = Driver::builder()
///     .in_flight(16)
///     .spawn(|| Socket::bind("127.0.0.1:0".parse().unwrap()))?;
/// let answer = client.client().call(server.local_addr(), b"ping").wait()?;
/// assert_eq!(*answer, *b"pong");
/// # Ok::<(), homa_mio::CallError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DriverOptions {
    in_flight: u32,
    requests: usize,
    name: String,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            in_flight: 1024,
            requests: 4096,
            name: "homa".into(),
        }
    }
}

impl DriverOptions {
    /// How many calls may be in flight at once, those included that have ended and whose outcome
    /// has not been taken. Default 1024. Calls beyond [`Limits::rpcs`](crate::Limits::rpcs), or
    /// three quarters of it if the socket serves too, fail with
    /// [`RpcsFull`](crate::SendErrorKind::RpcsFull).
    #[must_use]
    pub fn in_flight(mut self, calls: u32) -> Self {
        self.in_flight = calls;
        self
    }

    /// How many requests the handler may keep without an answer: more are refused. Default 4096.
    #[must_use]
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = requests;
        self
    }

    /// The name of the thread. Default "homa".
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Starts a driver for calls. `bind` makes its socket, on its thread. Requests to it are
    /// refused.
    ///
    /// # Errors
    /// What `bind` says; the system has no thread to give; or `in_flight` is 0 (`InvalidInput`).
    pub fn spawn<S: Sys>(
        self,
        bind: impl FnOnce() -> io::Result<Socket<S>> + Send + 'static,
    ) -> io::Result<Driver> {
        self.start(bind, None, Box::new(|| ()))
    }

    /// Starts a driver that hands each request to `handler`, on its thread, and is there for calls
    /// too.
    ///
    /// The handler answers at once, or keeps the request and has it answered later, from any
    /// thread. While it runs nothing is sent or received, so it must not block. A request that it
    /// drops, or that it panics on, is refused, and the driver goes on.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn).
    pub fn serve<S: Sys>(
        self,
        bind: impl FnOnce() -> io::Result<Socket<S>> + Send + 'static,
        handler: impl FnMut(Request) + Send + 'static,
    ) -> io::Result<Driver> {
        self.start(bind, Some(Box::new(handler)), Box::new(|| ()))
    }

    fn start<S: Sys>(
        self,
        bind: impl FnOnce() -> io::Result<Socket<S>> + Send + 'static,
        handler: Option<Handler>,
        at_end: AtEnd,
    ) -> io::Result<Driver> {
        if self.in_flight == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no call may be in flight",
            ));
        }
        let (sender, receiver) = sync_channel(1);
        let thread = std::thread::Builder::new().name(self.name);
        let thread = thread.spawn(move || {
            let mut socket = match bind() {
                Ok(socket) => socket,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return Ok(());
                }
            };
            let shared = Arc::new(Shared::new(&mut socket, self.in_flight));
            let mut turner = Turner {
                socket,
                handler,
                max_requests: self.requests,
                requests: 0,
                rpcs: vec![None; self.in_flight as usize].into(),
                commands: Vec::new(),
                completed: Vec::new(),
                released: Vec::new(),
                wakers: Vec::new(),
                counts: HandleStats::default(),
                shared: Arc::clone(&shared),
                at_end: Some(at_end),
            };
            match sender.send(Ok(shared)) {
                Ok(()) => turner.run(),
                Err(_) => Ok(()),
            }
        })?;
        let shared = match receiver.recv() {
            Ok(shared) => shared?,
            Err(_) => return Err(panicked()),
        };
        Ok(Driver {
            shared,
            thread: Some(thread),
        })
    }
}

fn panicked() -> io::Error {
    io::Error::other("the driver's thread panicked")
}

/// A socket on a thread of its own.
///
/// [`client`](Self::client) gives out handles for calls; [`DriverOptions::serve`] starts one that
/// answers requests. Dropping it does what [`shutdown`](Self::shutdown) does.
pub struct Driver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Driver {
    /// Options, to [`spawn`](DriverOptions::spawn) or [`serve`](DriverOptions::serve) with them.
    #[must_use]
    pub fn builder() -> DriverOptions {
        DriverOptions::default()
    }

    /// The address of the socket.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local_addr
    }

    /// A handle to call servers with. All handles share the room for calls in flight.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.shared))
    }

    /// Counters as of now, or as they were at the end. Waits for the driver's thread, which is a
    /// matter of microseconds unless its handler blocks; in the handler itself they are those of
    /// the last time.
    #[must_use]
    pub fn stats(&self) -> DriverStats {
        self.shared.stats()
    }

    /// Ends the driver: calls in flight and to come end in [`CallError::Closed`], requests without
    /// an answer are forgotten, and answers that were given before have been sent once. Waits for
    /// the thread, unless it is called on it.
    ///
    /// # Errors
    /// The socket had failed before, or the thread had panicked.
    pub fn shutdown(mut self) -> io::Result<DriverStats> {
        self.shared.stop();
        self.end()
    }

    /// Waits until the driver ends because its socket fails: what a program does that only
    /// serves.
    ///
    /// # Errors
    /// The socket has failed, or the thread has panicked.
    pub fn join(mut self) -> io::Result<DriverStats> {
        self.end()
    }

    fn end(&mut self) -> io::Result<DriverStats> {
        match self.thread.take() {
            Some(_) if self.shared.is_driver_thread() => {}
            Some(thread) => thread.join().unwrap_or_else(|_| Err(panicked()))?,
            None => {}
        }
        Ok(self.stats())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.stop();
        let _ = self.end();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

/// Counters of a [`Driver`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DriverStats {
    /// Those of its socket.
    pub socket: Stats,
    /// Those of its handles.
    pub handles: HandleStats,
}

/// What has gone through the handles of a [`Driver`]. Counters only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HandleStats {
    /// Calls that were sent.
    pub calls: u64,
    /// Calls that could not be sent.
    pub calls_refused: u64,
    /// Calls that were dropped before their end.
    pub calls_cancelled: u64,
    /// Requests that the handler got.
    pub requests: u64,
    /// Requests refused because there is no handler or it keeps too many without an answer.
    pub requests_shed: u64,
    /// Requests refused because their [`Request`] or [`Responder`] was dropped.
    pub requests_dropped: u64,
    /// Replies that were not sent: the client has gone, or too much waits to be sent already.
    pub replies_lost: u64,
    /// Panics of the handler.
    pub handler_panics: u64,
}

/// What handles and thread have in common.
pub(crate) struct Shared {
    calls: Mutex<Calls>,
    waker: Waker,
    /// Memory for messages to send.
    outgoing: Mutex<Pool>,
    local_addr: SocketAddr,
    max_message: usize,
    thread: ThreadId,
    snapshot: Mutex<Snapshot>,
    taken: Condvar,
}

/// The last counters, and how often they were asked for.
struct Snapshot {
    asked: u64,
    answered: u64,
    stats: DriverStats,
}

/// What is done under these locks does not stop half-way, so a poisoned one is as good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new<S: Sys>(socket: &mut Socket<S>, in_flight: u32) -> Self {
        let stats = DriverStats {
            socket: socket.stats(),
            handles: HandleStats::default(),
        };
        Self {
            calls: Mutex::new(Calls::new(in_flight)),
            waker: socket.waker(),
            outgoing: Mutex::new(socket.take_outgoing()),
            local_addr: socket.local_addr(),
            max_message: socket.config().max_message as usize,
            thread: std::thread::current().id(),
            snapshot: Mutex::new(Snapshot {
                asked: 0,
                answered: 0,
                stats,
            }),
            taken: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }

    fn wake(&self, wakes: Wakes) {
        if wakes.driver {
            self.waker.wake();
        }
        if let Some(call) = wakes.call {
            call.wake();
        }
    }

    /// Has the thread do something; gives it back if the thread has ended.
    fn command(&self, command: Command) -> Result<(), Command> {
        let mut calls = self.lock();
        if calls.closed {
            return Err(command);
        }
        calls.commands.push(command);
        drop(calls);
        self.waker.wake();
        Ok(())
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.waker.wake();
    }

    fn is_driver_thread(&self) -> bool {
        std::thread::current().id() == self.thread
    }

    fn buffer(&self, len: usize) -> Message {
        let memory = lock(&self.outgoing).take(len);
        memory.unwrap_or_else(|| vec![0; len].into())
    }

    fn message(&self, bytes: &[u8]) -> Message {
        let mut message = self.buffer(bytes.len());
        message.copy_from_slice(bytes);
        message
    }

    fn stats(&self) -> DriverStats {
        let mut snapshot = lock(&self.snapshot);
        if self.is_driver_thread() {
            return snapshot.stats;
        }
        snapshot.asked = snapshot.asked.saturating_add(1);
        let mine = snapshot.asked;
        self.waker.wake();
        while snapshot.answered < mine {
            snapshot = self
                .taken
                .wait(snapshot)
                .unwrap_or_else(PoisonError::into_inner);
        }
        snapshot.stats
    }

    fn answer(&self, stats: impl FnOnce() -> DriverStats, is_end: bool) {
        let mut snapshot = lock(&self.snapshot);
        if is_end || snapshot.asked > snapshot.answered {
            snapshot.stats = stats();
            snapshot.answered = if is_end { u64::MAX } else { snapshot.asked };
            self.taken.notify_all();
        }
    }
}

type Handler = Box<dyn FnMut(Request) + Send>;
type AtEnd = Box<dyn FnOnce() + Send>;

/// Events that are taken up between two turns of the socket.
const EVENTS_PER_TURN: usize = 64;

/// The thread's side.
struct Turner<S: Sys> {
    socket: Socket<S>,
    handler: Option<Handler>,
    max_requests: usize,
    /// Requests that the application has.
    requests: usize,
    /// The RPC of the call in each slot, while it is under way.
    rpcs: Box<[Option<RpcId>]>,
    /// Changes places with the list under the lock.
    commands: Vec<Command>,
    /// What there is to tell, until the lock is taken.
    completed: Vec<(u32, Outcome)>,
    released: Vec<u32>,
    wakers: Vec<task::Waker>,
    counts: HandleStats,
    shared: Arc<Shared>,
    at_end: Option<AtEnd>,
}

impl<S: Sys> Turner<S> {
    fn run(&mut self) -> io::Result<()> {
        let mut is_news = true;
        loop {
            is_news |= self.socket.take_news();
            if is_news && self.obey() {
                return self.socket.flush();
            }
            is_news = self.socket.turn()?;
            let is_busy = self.handle_events();
            self.deliver();
            if !is_news && !is_busy {
                self.socket.block(None)?;
            }
        }
    }

    /// Does what the handles want. Tells whether that is to end.
    fn obey(&mut self) -> bool {
        let mut commands = std::mem::take(&mut self.commands);
        let mut calls = self.shared.lock();
        std::mem::swap(&mut calls.commands, &mut commands);
        let stop = calls.stop;
        drop(calls);
        for command in commands.drain(..) {
            match command {
                Command::Call(slot, submission) => self.call(slot, submission),
                Command::Cancel(slot) => {
                    self.counts.calls_cancelled += 1;
                    if let Some(rpc) = self.rpcs[slot as usize].take() {
                        self.socket.cancel(rpc);
                    }
                    self.released.push(slot);
                }
                Command::Reply(rpc, message) => {
                    self.requests -= 1;
                    if self.socket.reply(rpc, message).is_err() {
                        self.counts.replies_lost += 1;
                        // Where only the queue is full it would wait for a reply for ever.
                        self.socket.cancel(rpc);
                    }
                }
                Command::Refuse(rpc) => {
                    self.requests -= 1;
                    self.counts.requests_dropped += 1;
                    self.socket.cancel(rpc);
                }
            }
        }
        self.commands = commands;
        let (socket, handles) = (&self.socket, self.counts);
        let stats = || DriverStats {
            socket: socket.stats(),
            handles,
        };
        self.shared.answer(stats, false);
        stop
    }

    fn call(&mut self, slot: u32, submission: Submission) {
        let options = RequestOptions {
            cookie: slot.into(),
            timeout: submission.options.timeout,
            local_port: submission.options.local_port,
        };
        match self
            .socket
            .request(submission.to, submission.message, options)
        {
            Ok(rpc) => {
                self.counts.calls += 1;
                self.rpcs[slot as usize] = Some(rpc);
            }
            Err(error) => {
                self.counts.calls_refused += 1;
                let error = CallError::Send(error.kind);
                self.completed.push((slot, Err(error)));
            }
        }
    }

    /// Takes up what has happened. Tells whether there may be more.
    fn handle_events(&mut self) -> bool {
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = self.socket.next_event() else {
                return false;
            };
            match event {
                Event::Response {
                    cookie, message, ..
                } => self.complete(cookie, Ok(message)),
                Event::Failed { cookie, error, .. } => {
                    self.complete(cookie, Err(CallError::Rpc(error)));
                }
                Event::Request {
                    rpc,
                    from,
                    port,
                    message,
                    ..
                } => {
                    let request = || Request::new(&self.shared, rpc, from, port, message);
                    match &mut self.handler {
                        Some(handler) if self.requests < self.max_requests => {
                            self.requests += 1;
                            self.counts.requests += 1;
                            let request = request();
                            let run = AssertUnwindSafe(|| handler(request));
                            if catch_unwind(run).is_err() {
                                self.counts.handler_panics += 1;
                            }
                        }
                        _ => {
                            self.counts.requests_shed += 1;
                            self.socket.cancel(rpc);
                        }
                    }
                }
                // Its message goes back to where it came from.
                _ => {}
            }
        }
        true
    }

    fn complete(&mut self, cookie: u64, outcome: Outcome) {
        let slot = cookie as u32;
        self.rpcs[slot as usize] = None;
        self.completed.push((slot, outcome));
    }

    /// Tells the handles what has come out.
    fn deliver(&mut self) {
        if self.completed.is_empty() && self.released.is_empty() {
            return;
        }
        let mut calls = self.shared.lock();
        for (slot, outcome) in self.completed.drain(..) {
            self.wakers.extend(calls.complete(slot, outcome));
        }
        for slot in self.released.drain(..) {
            self.wakers.extend(calls.release(slot));
        }
        drop(calls);
        // One that panics leaves the others to be woken in the end.
        while let Some(waker) = self.wakers.pop() {
            waker.wake();
        }
    }
}

/// Ends what is under way, also if something has panicked.
impl<S: Sys> Drop for Turner<S> {
    fn drop(&mut self) {
        let stats = || DriverStats {
            socket: self.socket.stats(),
            handles: self.counts,
        };
        self.shared.answer(stats, true);
        let wakers = self.shared.lock().close();
        for waker in wakers.into_iter().chain(self.wakers.drain(..)) {
            waker.wake();
        }
        if let Some(at_end) = self.at_end.take() {
            at_end();
        }
    }
}
