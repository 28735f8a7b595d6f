//! What a transport under test looks like to the load: a client that asks and a server that
//! answers, each driven by the turns of one thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::{alloc, sys};

/// The CPU that clients run on.
pub const CLIENT_CPU: usize = 0;
/// The CPU that servers run on.
pub const SERVER_CPU: usize = 1;

/// A client and the server that it is connected to, on loopback.
pub type Pair = (Box<dyn Client>, Box<dyn Server>);

/// What a server replies with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The request itself.
    Echo,
    /// The first byte of the request: one-way bulk transfer.
    FirstByte,
}

/// How both ends are set, whatever the transport.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What the server replies with.
    pub reply: Reply,
    /// Whether a thread without anything to do sleeps. Otherwise it spins.
    pub sleep: bool,
    /// The largest IP packet, in bytes.
    pub mtu: u16,
    /// Servers that the client asks in turn, by the id of the request. They share a thread.
    pub peers: usize,
}

impl Setup {
    /// One server, both ends spinning, MTU 1500.
    #[must_use]
    pub fn spinning(reply: Reply) -> Self {
        Self {
            reply,
            sleep: false,
            mtu: 1500,
            peers: 1,
        }
    }
}

/// Bytes of a request that are made anew where only the first byte is answered: bulk is sent again
/// and again from the same memory.
pub const FRESH: usize = 64;

/// The longest that a turn sleeps: so long does a server take to hear that its run is over.
pub const NAP: Duration = Duration::from_millis(5);

/// How an RPC ended: the reply, or why there is none.
pub type Outcome<'a> = Result<&'a [u8], String>;

/// The client half.
pub trait Client {
    /// How the transport is set, for reports.
    fn settings(&self) -> String;

    /// Starts an RPC. `false`: there is no room for more now; try again after a turn.
    fn request(&mut self, id: u64, message: &[u8]) -> Result<bool>;

    /// Sends and receives what can be sent and received now; hands each RPC that ended to
    /// `ended`. Where there is nothing, sleeps up to [`NAP`] for it if the setup says so.
    fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()>;

    /// System calls made so far, if they are counted.
    fn system_calls(&self) -> Option<u64>;
}

/// The server half: answers what has come.
pub trait Server: Send {
    /// Receives, answers and sends what can be received, answered and sent now; sleeps as a
    /// client does.
    fn turn(&mut self) -> Result<()>;

    /// System calls made so far, if they are counted.
    fn system_calls(&self) -> Option<u64>;
}

/// What a server has cost so far.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Its system calls, if they are counted.
    pub system_calls: Option<u64>,
    /// Allocations of its thread.
    pub allocations: u64,
}

/// Servers on a pinned thread of their own, one of them at work at a time: two spinning threads
/// on one CPU would each halve the other's figures.
#[derive(Debug)]
pub struct ServerThread {
    control: Arc<Control>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Control {
    stop: AtomicBool,
    active: AtomicUsize,
    /// How often counters have been asked for, and told.
    asked: AtomicU64,
    told: AtomicU64,
    /// [`NOT_COUNTED`] if so.
    system_calls: AtomicU64,
    allocations: AtomicU64,
}

impl Control {
    /// Tells the counters if they have been asked for.
    fn tell(&self, server: Option<&dyn Server>) {
        let asked = self.asked.load(Ordering::Acquire);
        if asked == self.told.load(Ordering::Relaxed) {
            return;
        }
        let system_calls = server.and_then(Server::system_calls);
        let system_calls = system_calls.unwrap_or(NOT_COUNTED);
        self.system_calls.store(system_calls, Ordering::Relaxed);
        self.allocations
            .store(alloc::allocations(), Ordering::Relaxed);
        self.told.store(asked, Ordering::Release);
    }
}

/// No server is active.
const NONE: usize = usize::MAX;
/// Nobody counts system calls.
const NOT_COUNTED: u64 = u64::MAX;

impl ServerThread {
    /// Starts the thread, with no server active.
    pub fn spawn(mut servers: Vec<Box<dyn Server>>) -> io::Result<Self> {
        let control = Arc::new(Control {
            stop: AtomicBool::new(false),
            active: AtomicUsize::new(NONE),
            asked: AtomicU64::new(0),
            told: AtomicU64::new(0),
            system_calls: AtomicU64::new(NOT_COUNTED),
            allocations: AtomicU64::new(0),
        });
        let shared = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("server".into())
            .spawn(move || {
                sys::pin(SERVER_CPU);
                while !shared.stop.load(Ordering::Relaxed) {
                    let active = shared.active.load(Ordering::Relaxed);
                    match servers.get_mut(active) {
                        Some(server) => server.turn()?,
                        None => std::thread::sleep(Duration::from_micros(100)),
                    }
                    shared.tell(servers.get(active).map(Box::as_ref));
                }
                Ok(())
            })?;
        Ok(Self {
            control,
            thread: Some(thread),
        })
    }

    /// What the active server has cost so far. Waits for the end of its turn.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let control = &self.control;
        let asked = control.asked.fetch_add(1, Ordering::Release) + 1;
        while control.told.load(Ordering::Acquire) != asked && !self.failed() {
            std::hint::spin_loop();
        }
        let system_calls = control.system_calls.load(Ordering::Relaxed);
        Counters {
            system_calls: (system_calls != NOT_COUNTED).then_some(system_calls),
            allocations: control.allocations.load(Ordering::Relaxed),
        }
    }

    /// Makes the server of this index the one that works.
    pub fn select(&self, index: usize) {
        self.control.active.store(index, Ordering::Relaxed);
    }

    /// Lets no server work, after a moment for what is still under way.
    pub fn rest(&self) {
        std::thread::sleep(Duration::from_millis(5));
        self.select(NONE);
    }

    /// Whether the thread has ended by itself: then [`ServerThread::stop`] says why.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread and says how it fared.
    pub fn stop(&mut self) -> Result<()> {
        self.control.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(anyhow!("the server thread panicked")),
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        // An error has been told by `stop`, or the run has failed for a reason of its own.
        let _ = self.stop();
    }
}
