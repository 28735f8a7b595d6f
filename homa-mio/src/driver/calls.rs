//! The books between the handles and the driver's thread: which calls are under way, which wait
//! for room, and what the thread is to do. All of it lies under one lock, and all of it is bounded.

use std::collections::BTreeMap;
use std::task::{Poll, Waker};
use std::time::Duration;

use homa_proto::{PeerAddr, RpcId};

use crate::message::Message;
use crate::socket::CallError;

/// Options of one call.
///
/// ```
/// # use std::time::Duration;
/// let options = homa_mio::CallOptions::default().timeout(Duration::from_millis(20));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// Fail the call if it has not ended after this time, counted from when it has room among
    /// those in flight. `None`: it fails only when the server is silent.
    pub timeout: Option<Duration>,
    /// The local Homa port to call from; 0: the first.
    pub local_port: u16,
}

impl CallOptions {
    /// Sets [`timeout`](Self::timeout).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets [`local_port`](Self::local_port).
    #[must_use]
    pub fn local_port(mut self, port: u16) -> Self {
        self.local_port = port;
        self
    }
}

/// A request that is to be sent.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) to: PeerAddr,
    pub(crate) message: Message,
    pub(crate) options: CallOptions,
}

impl Submission {
    pub(crate) fn new(
        to: impl Into<PeerAddr>,
        message: impl Into<Message>,
        options: CallOptions,
    ) -> Self {
        Self {
            to: to.into(),
            message: message.into(),
            options,
        }
    }
}

/// What the thread is to do.
#[derive(Debug)]
pub(crate) enum Command {
    Call(u32, Submission),
    /// The call in this slot is not wanted any more. Comes at most once, after its `Call`.
    Cancel(u32),
    Reply(RpcId, Message),
    Refuse(RpcId),
}

/// What has come out of a call.
pub(crate) type Outcome = Result<Message, CallError>;

/// The place of a call that is in flight.
#[derive(Debug)]
enum Slot {
    /// Free, or given to a call that has not been submitted yet.
    Idle,
    /// The thread has it, or a command for it.
    UnderWay(Option<Waker>),
    Done(Outcome),
    /// Its call was dropped; only the thread's `Cancel` frees it.
    Abandoned,
}

/// How far a call has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// There was no room for it when it was made, and it has not been polled since.
    New(Submission),
    /// It waits for room, with this ticket.
    Waits(u64, Submission),
    /// It has this slot.
    InFlight(u32),
    Ended,
}

/// Who is to be woken when the lock is free again.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Wakes {
    pub(crate) driver: bool,
    pub(crate) call: Option<Waker>,
    /// A waker that is not needed any more. With it a task may go, and with that other calls, so
    /// it must not be dropped under the lock.
    pub(crate) unused: Option<Waker>,
}

/// What is under the lock.
#[derive(Debug)]
pub(crate) struct Calls {
    slots: Box<[Slot]>,
    /// If there are any, nobody waits for one.
    free: Vec<u32>,
    /// Calls that wait for a slot, in the order of their tickets. They take memory in here, but
    /// the caller has more of them only by holding them.
    waiting: BTreeMap<u64, Waker>,
    /// Slots handed to calls that have waited.
    granted: BTreeMap<u64, u32>,
    next_ticket: u64,
    /// At most two for each slot, and one for each request that the application has.
    pub(crate) commands: Vec<Command>,
    /// The thread is to end.
    pub(crate) stop: bool,
    /// It has ended.
    pub(crate) closed: bool,
}

impl Calls {
    pub(crate) fn new(in_flight: u32) -> Self {
        Self {
            slots: (0..in_flight).map(|_| Slot::Idle).collect(),
            free: (0..in_flight).rev().collect(),
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
            next_ticket: 0,
            commands: Vec::new(),
            stop: false,
            closed: false,
        }
    }

    /// Calls that have a slot.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    // The callers' side.

    /// Starts a call if there is room for it; else gives it back.
    pub(crate) fn start(&mut self, submission: Submission) -> Result<u32, Submission> {
        if self.closed {
            return Err(submission);
        }
        let Some(slot) = self.free.pop() else {
            return Err(submission);
        };
        self.submit(slot, submission, None);
        Ok(slot)
    }

    fn submit(&mut self, slot: u32, submission: Submission, waker: Option<Waker>) {
        self.slots[slot as usize] = Slot::UnderWay(waker);
        self.commands.push(Command::Call(slot, submission));
    }

    /// Moves a call on as far as it goes.
    pub(crate) fn poll(&mut self, stage: &mut Stage, waker: &Waker) -> (Poll<Outcome>, Wakes) {
        let mut wakes = Wakes::default();
        let (ticket, submission) = match std::mem::replace(stage, Stage::Ended) {
            Stage::InFlight(slot) => {
                let (outcome, unused) = self.outcome(slot, waker);
                wakes.unused = unused;
                if outcome.is_ready() {
                    wakes.call = self.release(slot);
                } else {
                    *stage = Stage::InFlight(slot);
                }
                return (outcome, wakes);
            }
            Stage::New(submission) => (None, submission),
            Stage::Waits(ticket, submission) => (Some(ticket), submission),
            Stage::Ended => panic!("a call was polled after it had ended"),
        };
        if self.closed {
            if let Some(ticket) = ticket {
                wakes = self.leave(ticket);
            }
            return (Poll::Ready(Err(CallError::Closed)), wakes);
        }
        let slot = match ticket {
            Some(ticket) => self.granted.remove(&ticket),
            None => self.free.pop(),
        };
        if let Some(slot) = slot {
            self.submit(slot, submission, Some(waker.clone()));
            *stage = Stage::InFlight(slot);
            wakes.driver = true;
        } else {
            let ticket = ticket.unwrap_or_else(|| {
                self.next_ticket += 1;
                self.next_ticket
            });
            wakes.unused = self.waiting.insert(ticket, waker.clone());
            *stage = Stage::Waits(ticket, submission);
        }
        (Poll::Pending, wakes)
    }

    /// What has come out of a call, and the waker that had waited for it until now.
    fn outcome(&mut self, slot: u32, waker: &Waker) -> (Poll<Outcome>, Option<Waker>) {
        let slot = &mut self.slots[slot as usize];
        match std::mem::replace(slot, Slot::Idle) {
            Slot::Done(outcome) => (Poll::Ready(outcome), None),
            Slot::UnderWay(old) => {
                *slot = Slot::UnderWay(Some(waker.clone()));
                (Poll::Pending, old)
            }
            other => {
                debug_assert!(false, "not in flight");
                *slot = other;
                (Poll::Pending, None)
            }
        }
    }

    /// A call is dropped.
    pub(crate) fn abandon(&mut self, stage: &Stage) -> Wakes {
        match *stage {
            Stage::InFlight(slot) => {
                let state = &mut self.slots[slot as usize];
                if let Slot::UnderWay(waker) = state {
                    let unused = waker.take();
                    *state = Slot::Abandoned;
                    self.commands.push(Command::Cancel(slot));
                    return Wakes {
                        driver: true,
                        call: None,
                        unused,
                    };
                }
                Wakes {
                    call: self.release(slot),
                    ..Wakes::default()
                }
            }
            Stage::Waits(ticket, _) => self.leave(ticket),
            Stage::New(_) | Stage::Ended => Wakes::default(),
        }
    }

    /// The call with this ticket waits no more. If it had a slot, another gets it.
    fn leave(&mut self, ticket: u64) -> Wakes {
        let slot = self.granted.remove(&ticket);
        Wakes {
            driver: false,
            call: slot.and_then(|slot| self.release(slot)),
            unused: self.waiting.remove(&ticket),
        }
    }

    // The thread's side.

    /// The call in this slot has ended. Tells who waits for that.
    pub(crate) fn complete(&mut self, slot: u32, outcome: Outcome) -> Option<Waker> {
        let state = &mut self.slots[slot as usize];
        match std::mem::replace(state, Slot::Abandoned) {
            Slot::UnderWay(waker) => {
                *state = Slot::Done(outcome);
                waker
            }
            // Nobody wants it any more; the `Cancel` to come frees the slot.
            was => {
                debug_assert!(matches!(was, Slot::Abandoned));
                None
            }
        }
    }

    /// The slot serves another call. Tells who has got it.
    pub(crate) fn release(&mut self, slot: u32) -> Option<Waker> {
        self.slots[slot as usize] = Slot::Idle;
        if let Some((ticket, waker)) = self.waiting.pop_first() {
            self.granted.insert(ticket, slot);
            return Some(waker);
        }
        self.free.push(slot);
        None
    }

    /// The thread has ended, and with it all calls. Tells who waits for them.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        self.commands.clear();
        let mut wakers: Vec<_> = std::mem::take(&mut self.waiting).into_values().collect();
        for slot in 0..self.slots.len() as u32 {
            match self.slots[slot as usize] {
                Slot::UnderWay(_) => wakers.extend(self.complete(slot, Err(CallError::Closed))),
                Slot::Abandoned => wakers.extend(self.release(slot)),
                Slot::Idle | Slot::Done(_) => {}
            }
        }
        wakers
    }
}
