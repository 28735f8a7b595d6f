//! Transports on tokio, as turns of a thread: a runtime of one thread that runs while it has its
//! turn, spinning or sleeping as the setup says.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::transport::{NAP, Outcome, Server};

/// How an RPC ended.
type Ended = (u64, Result<Bytes, String>);

/// A runtime, and the RPCs that have ended on it.
#[derive(Debug)]
pub(crate) struct Turns {
    runtime: Runtime,
    sleep: bool,
    ended: UnboundedReceiver<Ended>,
    end: UnboundedSender<Ended>,
}

impl Turns {
    pub(crate) fn new(sleep: bool) -> Result<Self> {
        let (end, ended) = unbounded_channel();
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            sleep,
            ended,
            end,
        })
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts an RPC, which goes on in the turns.
    pub(crate) fn start(
        &self,
        id: u64,
        call: impl Future<Output = Result<Bytes, String>> + Send + 'static,
    ) {
        let end = self.end.clone();
        self.runtime.spawn(async move {
            // The client that would want to know may have gone.
            let _ = end.send((id, call.await));
        });
    }

    /// Lets what is ready run, and tells what has ended.
    pub(crate) fn client(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) {
        let mut tell = |(id, reply): Ended| {
            let outcome = reply.as_ref().map(AsRef::as_ref).map_err(Clone::clone);
            ended(id, outcome);
        };
        let Self { runtime, sleep, .. } = self;
        if *sleep {
            let next = self.ended.recv();
            let next = runtime.block_on(async { tokio::time::timeout(NAP, next).await });
            if let Ok(Some(next)) = next {
                tell(next);
            }
        } else {
            runtime.block_on(tokio::task::yield_now());
        }
        while let Ok(next) = self.ended.try_recv() {
            tell(next);
        }
    }

    /// Lets what is ready run, at a server.
    pub(crate) fn server(&mut self) {
        if self.sleep {
            // A timer is to be made in the runtime, not before it.
            let nap = async { tokio::time::sleep(NAP).await };
            self.runtime.block_on(nap);
        } else {
            self.runtime.block_on(tokio::task::yield_now());
        }
    }
}

/// How long a client tries to connect: a server that fails meanwhile does not answer.
const CONNECT: Duration = Duration::from_secs(5);

/// Connects, or fails in time.
pub(crate) async fn connect<T>(connecting: impl Future<Output = Result<T>>) -> Result<T> {
    let connected = tokio::time::timeout(CONNECT, connecting).await;
    connected.context("no connection in time")?
}

/// Does something that needs the server to answer meanwhile.
pub(crate) fn while_serving<T>(
    server: &mut dyn Server,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                server.turn()?;
            }
            Ok(())
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        match serving.join() {
            Ok(served) => served?,
            Err(_) => anyhow::bail!("the server panicked"),
        }
        worked
    })
}
