//! What a transport under test looks like to the load: a client that asks and a server that
//! answers, each driven by the turns of one thread that never sleeps.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::sys;

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

/// How an RPC ended: the reply, or why there is none.
pub type Outcome<'a> = Result<&'a [u8], String>;

/// The client half.
pub trait Client {
    /// How the transport is set, for reports.
    fn settings(&self) -> String;

    /// Starts an RPC. `false`: there is no room for more now; try again after a turn.
    fn request(&mut self, id: u64, message: &[u8]) -> Result<bool>;

    /// Sends and receives what can be sent and received now; hands each RPC that ended to
    /// `ended`.
    fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()>;
}

/// The server half: answers what has come.
pub trait Server: Send {
    /// Receives, answers and sends what can be received, answered and sent now.
    fn turn(&mut self) -> Result<()>;
}

/// Servers on a pinned thread of their own, one of them spinning at a time: two spinning threads
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
}

/// No server is active.
const NONE: usize = usize::MAX;

impl ServerThread {
    /// Starts the thread, with no server active.
    pub fn spawn(mut servers: Vec<Box<dyn Server>>) -> io::Result<Self> {
        let control = Arc::new(Control {
            stop: AtomicBool::new(false),
            active: AtomicUsize::new(NONE),
        });
        let shared = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("server".into())
            .spawn(move || {
                sys::pin(SERVER_CPU);
                while !shared.stop.load(Ordering::Relaxed) {
                    match servers.get_mut(shared.active.load(Ordering::Relaxed)) {
                        Some(server) => server.turn()?,
                        None => std::thread::sleep(Duration::from_micros(100)),
                    }
                }
                Ok(())
            })?;
        Ok(Self {
            control,
            thread: Some(thread),
        })
    }

    /// Makes the server of this index the one that spins.
    pub fn select(&self, index: usize) {
        self.control.active.store(index, Ordering::Relaxed);
    }

    /// Lets no server spin, after a moment for what is still under way.
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
