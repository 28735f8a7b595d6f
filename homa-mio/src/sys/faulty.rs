//! System calls that fail as they do in the field, for tests.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{Ask, Incoming, Lent, Os, Outgoing, Sys};
use crate::stats::Stats;

/// What becomes of a call to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The system gets it.
    Pass,
    /// It fails with this error code.
    Fail(i32),
    /// The system gets the first so many messages only.
    Partly(usize),
    /// The first message is taken, and lost on its way.
    Lose,
    /// The first message is taken, and sent twice.
    Twice,
}

/// Decides what fails.
pub trait Plan {
    /// Before a call to send.
    fn send(&mut self, batches: &[Outgoing]) -> Fate {
        let _ = batches;
        Fate::Pass
    }

    /// Before a call to receive: an error code to fail with.
    fn receive(&mut self) -> Option<i32> {
        None
    }

    /// After something has been received.
    fn received(&mut self, incoming: &mut Incoming) {
        let _ = incoming;
    }

    /// Before a call to sleep: an error code to fail with.
    fn wait(&mut self) -> Option<i32> {
        None
    }

    /// Before an option is set: an error code to fail with.
    fn ask(&mut self, ask: Ask) -> Option<i32> {
        let _ = ask;
        None
    }

    /// Before the socket's TOS is changed: an error code to fail with.
    fn set_tos(&mut self, tos: u8) -> Option<i32> {
        let _ = tos;
        None
    }

    /// The receive buffer that there is when this much is asked for; `None`: as the system says.
    fn receive_buffer(&mut self, bytes: usize) -> Option<usize> {
        let _ = bytes;
        None
    }
}

/// System calls of `S` that go wrong as `P` has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faulty<P, S = Os> {
    /// What fails.
    pub plan: P,
    sys: S,
}

impl<P: Plan> Faulty<P> {
    /// The operating system's calls, with faults.
    pub fn new(plan: P) -> Self {
        Self::over(plan, Os)
    }
}

impl<P: Plan, S: Sys> Faulty<P, S> {
    /// The calls of `sys`, with faults.
    pub fn over(plan: P, sys: S) -> Self {
        Self { plan, sys }
    }
}

fn fail(code: Option<i32>) -> io::Result<()> {
    code.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
}

impl<P: Plan, S: Sys> Sys for Faulty<P, S> {
    fn start(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sys.start(socket)
    }

    fn receive_memory(&self) -> usize {
        self.sys.receive_memory()
    }

    fn bytes<'a>(&'a self, memory: &'a [u8], at: usize) -> &'a [u8] {
        self.sys.bytes(memory, at)
    }

    fn has_received(&mut self) -> bool {
        self.sys.has_received()
    }

    fn tells_writable(&self) -> bool {
        self.sys.tells_writable()
    }

    fn readiness<'a>(&'a self, socket: BorrowedFd<'a>) -> BorrowedFd<'a> {
        self.sys.readiness(socket)
    }

    fn report(&self, stats: &mut Stats) {
        self.sys.report(stats);
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &mut [u8],
        into: &mut [Incoming],
    ) -> io::Result<usize> {
        fail(self.plan.receive())?;
        let count = self.sys.receive(socket, memory, into)?;
        for incoming in into.iter_mut().take(count) {
            self.plan.received(incoming);
        }
        Ok(count)
    }

    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &[u8],
        batches: &[Outgoing],
    ) -> io::Result<usize> {
        let first = batches.get(..1).unwrap_or(&[]);
        match self.plan.send(batches) {
            Fate::Pass => self.sys.send(socket, memory, batches),
            Fate::Fail(code) => Err(io::Error::from_raw_os_error(code)),
            Fate::Partly(count) => {
                let part = batches.get(..count.max(1)).unwrap_or(batches);
                self.sys.send(socket, memory, part)
            }
            Fate::Lose => Ok(first.len()),
            Fate::Twice => {
                self.sys.send(socket, memory, first)?;
                self.sys.send(socket, memory, first)
            }
        }
    }

    fn lends(&self) -> bool {
        self.sys.lends()
    }

    fn send_lent(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &Outgoing,
        lent: Lent<'_>,
    ) -> io::Result<()> {
        match self.plan.send(std::slice::from_ref(batch)) {
            Fate::Pass | Fate::Partly(_) => self.sys.send_lent(socket, batch, lent),
            Fate::Fail(code) => Err(io::Error::from_raw_os_error(code)),
            Fate::Lose => Ok(()),
            Fate::Twice => {
                self.sys.send_lent(socket, batch, lent)?;
                self.sys.send_lent(socket, batch, lent)
            }
        }
    }

    fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        wake: BorrowedFd<'_>,
        writable: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        fail(self.plan.wait())?;
        self.sys.wait(socket, wake, writable, timeout)
    }

    fn ask(&mut self, socket: BorrowedFd<'_>, ask: Ask) -> io::Result<()> {
        fail(self.plan.ask(ask))?;
        self.sys.ask(socket, ask)
    }

    fn set_receive_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        let got = self.sys.set_receive_buffer(socket, bytes)?;
        Ok(self.plan.receive_buffer(bytes).unwrap_or(got))
    }

    fn set_send_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        self.sys.set_send_buffer(socket, bytes)
    }

    fn tos(&mut self, socket: BorrowedFd<'_>) -> io::Result<u8> {
        self.sys.tos(socket)
    }

    fn set_tos(&mut self, socket: BorrowedFd<'_>, tos: u8) -> io::Result<()> {
        fail(self.plan.set_tos(tos))?;
        self.sys.set_tos(socket, tos)
    }
}
