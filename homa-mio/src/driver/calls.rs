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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A call as its owner has it.
    struct Call {
        number: u64,
        stage: Stage,
        woken: Arc<Count>,
        /// It was pending, and has not been woken since.
        sleeps: bool,
    }

    fn submission(number: u64) -> Submission {
        let to: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
        Submission::new(to, number.to_le_bytes().as_slice(), CallOptions::default())
    }

    fn number_of(message: &Message) -> u64 {
        u64::from_le_bytes((&**message).try_into().unwrap())
    }

    /// Random steps of callers and thread, against what each call must see.
    struct Model {
        calls: Calls,
        in_flight: usize,
        owners: Vec<Call>,
        /// What the thread is at work on, by slot.
        at_work: HashMap<u32, u64>,
        numbers: u64,
        ended: usize,
        seed: u64,
    }

    impl Model {
        fn roll(&mut self, sides: usize) -> usize {
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            (self.seed % sides as u64) as usize
        }

        fn pick(&mut self) -> Option<usize> {
            (!self.owners.is_empty()).then(|| self.roll(self.owners.len()))
        }

        fn new_call(&mut self) {
            self.numbers += 1;
            let started = self.calls.start(submission(self.numbers));
            let stage = started.map_or_else(Stage::New, Stage::InFlight);
            self.owners.push(Call {
                number: self.numbers,
                stage,
                woken: Arc::default(),
                sleeps: false,
            });
        }

        fn poll(&mut self, at: usize) {
            let call = &mut self.owners[at];
            call.woken = Arc::default();
            let waker = Waker::from(Arc::clone(&call.woken));
            let (outcome, wakes) = self.calls.poll(&mut call.stage, &waker);
            call.sleeps = outcome.is_pending();
            let number = call.number;
            if let Poll::Ready(outcome) = outcome {
                match outcome {
                    Ok(message) => assert_eq!(number_of(&message), number),
                    Err(error) => assert!(self.calls.closed, "{error}"),
                }
                self.ended += 1;
                self.owners.swap_remove(at);
            }
            wake(wakes);
        }

        fn drop_call(&mut self, at: usize) {
            let call = self.owners.swap_remove(at);
            wake(self.calls.abandon(&call.stage));
        }

        /// The thread takes its commands, and some calls end.
        fn work(&mut self, all: bool) {
            assert!(self.calls.commands.len() <= 2 * self.in_flight);
            for command in std::mem::take(&mut self.calls.commands) {
                match command {
                    Command::Call(slot, submission) => {
                        let number = number_of(&submission.message);
                        assert!(self.at_work.insert(slot, number).is_none());
                    }
                    Command::Cancel(slot) => {
                        self.at_work.remove(&slot);
                        self.calls.release(slot).into_iter().for_each(Waker::wake);
                    }
                    other => panic!("{other:?}"),
                }
            }
            let slots: Vec<_> = self.at_work.keys().copied().collect();
            for slot in slots {
                if all || self.roll(3) == 0 {
                    let number = self.at_work.remove(&slot).unwrap();
                    let answer = Ok(number.to_le_bytes().as_slice().into());
                    let waker = self.calls.complete(slot, answer);
                    waker.into_iter().for_each(Waker::wake);
                }
            }
        }

        /// Polls whoever has been woken; nobody else has anything to find.
        fn poll_woken(&mut self) {
            while let Some(at) = self
                .owners
                .iter()
                .position(|call| call.woken.0.load(Ordering::Relaxed) > 0)
            {
                self.poll(at);
            }
        }

        fn check(&self) {
            let calls = &self.calls;
            assert!(calls.in_flight() <= self.in_flight);
            assert!(calls.free.is_empty() || calls.waiting.is_empty() || calls.closed);
            let given = calls.granted.len();
            let used = |slot: &&Slot| !matches!(slot, Slot::Idle);
            let used = calls.slots.iter().filter(used).count();
            assert_eq!(used + given + calls.free.len(), self.in_flight);
            let waits = |call: &&Call| matches!(call.stage, Stage::Waits(..));
            let waits = self.owners.iter().filter(waits).count();
            assert!(calls.waiting.len() + given <= waits, "a waiter left behind");
            for call in &self.owners {
                // Whoever can go on and sleeps has been woken.
                let can_go_on = match call.stage {
                    Stage::InFlight(slot) => matches!(calls.slots[slot as usize], Slot::Done(_)),
                    Stage::Waits(ticket, _) => !calls.waiting.contains_key(&ticket),
                    _ => false,
                };
                let woken = call.woken.0.load(Ordering::Relaxed);
                assert!(!(can_go_on && call.sleeps && woken == 0));
                assert!(woken <= 1, "woken twice");
            }
        }
    }

    fn wake(wakes: Wakes) {
        wakes.call.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn every_call_ends_once_and_nobody_waits_for_what_is_there() {
        for seed in 1..200 {
            let in_flight = 1 + seed as usize % 5;
            let mut model = Model {
                calls: Calls::new(in_flight as u32),
                in_flight,
                owners: Vec::new(),
                at_work: HashMap::new(),
                numbers: 0,
                ended: 0,
                seed: 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed),
            };
            let mut dropped = 0;
            for _ in 0..300 {
                match model.roll(8) {
                    0..=2 => model.new_call(),
                    3 => model.pick().into_iter().for_each(|at| model.poll(at)),
                    4 => {
                        if let Some(at) = model.pick() {
                            model.drop_call(at);
                            dropped += 1;
                        }
                    }
                    5 => model.poll_woken(),
                    _ => model.work(false),
                }
                model.check();
            }
            // Whoever is left ends, by answers or by the end of the thread.
            if seed % 2 == 0 {
                model.calls.close().into_iter().for_each(Waker::wake);
                model.check();
                while !model.owners.is_empty() {
                    model.poll(0);
                }
            } else {
                for at in 0..model.owners.len() {
                    if matches!(model.owners[at].stage, Stage::New(_)) {
                        model.poll(at);
                    }
                }
                while !model.owners.is_empty() {
                    model.work(true);
                    model.poll_woken();
                    for at in (0..model.owners.len()).rev() {
                        if !model.owners[at].sleeps {
                            model.poll(at);
                        }
                    }
                    model.check();
                }
                model.work(true);
            }
            assert_eq!(model.ended + dropped, model.numbers as usize, "seed {seed}");
            assert_eq!(model.calls.in_flight(), 0, "seed {seed}");
        }
    }
}
