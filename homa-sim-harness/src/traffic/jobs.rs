//! Jobs of AI clusters and storage: rounds of messages that everybody waits for.
//!
//! What a job sees of the network is how long a step takes, and how much of that its processors wait.

use super::{Report, Totals};
use crate::ideal::Ideal;
use crate::packet::{HostId, Waited};
use crate::recorder::Recorder;
use crate::report::Job;
use crate::sim::{Application, Outbox};
use crate::transport::{Delivery, Message, MessageId, Outcome};

/// Which job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One host asks others, which all answer at once.
    Incast,
    /// All ranks report to the first, which answers when the last has.
    Barrier,
    /// Each rank sends to each other one, and waits for all of theirs (expert dispatch).
    AllToAll,
    /// Ring all-reduce: 2 (n − 1) rounds, in each of which a rank sends one n-th of the vector to the next.
    AllReduce,
}

/// Settings of a job.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which.
    pub kind: Kind,
    /// Bytes of an answer, of a barrier's message, for one expert, or of the vector.
    pub bytes: u32,
    /// Computation before each step, in nanoseconds.
    pub compute_ns: u64,
    /// Steps.
    pub steps: u32,
    /// Answers at once (incast).
    pub fan_in: u32,
}

/// Bytes of a request for data.
const REQUEST_BYTES: u32 = 100;
/// Rounds of a step; tags are step × this + round.
const ROUNDS: u32 = 1 << 15;
/// Ranks are never further apart than this many steps.
const APART: usize = 4;

#[derive(Clone, Copy, Default)]
struct Rank {
    /// Step that it is in.
    step: u32,
    /// When its computation ended and it began to wait.
    began: u64,
    waits: bool,
    /// Messages received, by step modulo `APART`.
    received: [u32; APART],
}

/// A job and its times.
pub struct JobTraffic {
    settings: Settings,
    ranks: Vec<Rank>,
    ideal: Ideal,
    recorder: Recorder,
    totals: Totals,
    step_ns: Vec<u64>,
    waited_ns: u64,
    computed_ns: u64,
    /// Messages that wait at the barrier.
    at_barrier: Vec<MessageId>,
}

impl JobTraffic {
    /// A job among `hosts` hosts.
    #[must_use]
    pub fn new(settings: Settings, hosts: usize, ideal: Ideal) -> Self {
        Self {
            settings,
            ranks: vec![Rank::default(); hosts],
            ideal,
            recorder: Recorder::default(),
            totals: Totals::default(),
            step_ns: Vec::new(),
            waited_ns: 0,
            computed_ns: 0,
            at_barrier: Vec::new(),
        }
    }

    /// Those who compute and wait.
    fn workers(&self) -> usize {
        match self.settings.kind {
            Kind::Incast => 1,
            _ => self.ranks.len(),
        }
    }

    /// Messages or answers that end a rank's step.
    fn expected(&self) -> u32 {
        let others = self.ranks.len() as u32 - 1;
        match self.settings.kind {
            Kind::Incast => self.settings.fan_in,
            Kind::Barrier => 1,
            Kind::AllToAll => others,
            Kind::AllReduce => 2 * others,
        }
    }

    fn message(&self, from: usize, to: usize, now: u64, step: u32, round: u32) -> Message {
        let (bytes, reply_bytes) = match self.settings.kind {
            Kind::Incast => (REQUEST_BYTES, Some(self.settings.bytes)),
            Kind::Barrier => (self.settings.bytes, Some(self.settings.bytes)),
            Kind::AllToAll => (self.settings.bytes, None),
            Kind::AllReduce => {
                let part = self.settings.bytes.div_ceil(self.ranks.len() as u32);
                (part.max(1), None)
            }
        };
        Message {
            from: from as HostId,
            to: to as HostId,
            bytes,
            reply_bytes,
            started: now,
            tag: step * ROUNDS + round,
            deadline: None,
            waited: Waited::default(),
        }
    }

    fn send(&mut self, message: Message, out: &mut Outbox) {
        self.totals.started += 1;
        self.totals.begun_bytes +=
            u64::from(message.bytes) + u64::from(message.reply_bytes.unwrap_or(0));
        out.send(message);
    }

    /// A rank has computed and begins to communicate.
    fn begin(&mut self, now: u64, rank: usize, out: &mut Outbox) {
        let count = self.ranks.len();
        let state = &mut self.ranks[rank];
        state.began = now;
        state.waits = true;
        let step = state.step;
        match self.settings.kind {
            Kind::Incast => {
                for n in 0..self.settings.fan_in as usize {
                    let to = 1 + n % (count - 1);
                    self.send(self.message(0, to, now, step, 0), out);
                }
            }
            Kind::Barrier if rank == 0 => self.barrier(now, out),
            Kind::Barrier => self.send(self.message(rank, 0, now, step, 0), out),
            Kind::AllToAll => {
                // Each begins with its neighbour, so that not all begin with the same one.
                for n in 1..count {
                    let to = (rank + n) % count;
                    self.send(self.message(rank, to, now, step, 0), out);
                }
            }
            Kind::AllReduce => {
                let to = (rank + 1) % count;
                self.send(self.message(rank, to, now, step, 0), out);
            }
        }
        self.check(now, rank, out);
    }

    /// Answers all when the last has come.
    fn barrier(&mut self, now: u64, out: &mut Outbox) {
        if self.ranks[0].waits && self.at_barrier.len() + 1 == self.ranks.len() {
            for id in self.at_barrier.drain(..) {
                out.reply(id);
            }
            let slot = self.ranks[0].step as usize % APART;
            self.ranks[0].received[slot] += 1;
            self.check(now, 0, out);
        }
    }

    /// Whether a rank's step is over.
    fn check(&mut self, now: u64, rank: usize, out: &mut Outbox) {
        let expected = self.expected();
        let state = &mut self.ranks[rank];
        let slot = state.step as usize % APART;
        if !state.waits || state.received[slot] < expected {
            return;
        }
        state.received[slot] = 0;
        state.waits = false;
        state.step += 1;
        let waited = now - state.began;
        let compute = self.settings.compute_ns;
        self.step_ns.push(compute + waited);
        self.waited_ns += waited;
        self.computed_ns += compute;
        if state.step < self.settings.steps {
            out.wake(now + compute, rank as u32);
        }
    }
}

impl Application for JobTraffic {
    fn start(&mut self, out: &mut Outbox) {
        for rank in 0..self.workers() as u32 {
            out.wake(self.settings.compute_ns, rank);
        }
    }

    fn wake(&mut self, now: u64, rank: u32, out: &mut Outbox) {
        self.begin(now, rank as usize, out);
    }

    fn delivered(&mut self, now: u64, delivery: Delivery, message: &Message, out: &mut Outbox) {
        let Message {
            from, to, bytes, ..
        } = *message;
        let (step, round) = (message.tag / ROUNDS, message.tag % ROUNDS);
        match (delivery.outcome, message.reply_bytes) {
            (Outcome::Request, Some(_)) => {
                if self.settings.kind == Kind::Barrier {
                    self.at_barrier.push(delivery.message);
                    self.barrier(now, out);
                } else {
                    out.reply(delivery.message);
                }
                return;
            }
            (Outcome::Failed(_) | Outcome::Cancelled, _) => {
                // The job hangs, as a real one would; the run ends at its time limit.
                self.totals.failed += 1;
                return;
            }
            (Outcome::Request, None) => {
                let ideal = self.ideal.one_way_ns(from, to, bytes);
                self.recorder
                    .add(bytes, now - message.started, ideal, message.waited);
            }
            (Outcome::Reply, reply) => {
                let reply = reply.unwrap_or(1);
                let ideal = self.ideal.round_trip_ns(from, to, bytes, reply);
                self.recorder
                    .add(reply, now - message.started, ideal, message.waited);
            }
        }
        self.totals.completed += 1;
        self.totals.bytes += u64::from(bytes) + u64::from(message.reply_bytes.unwrap_or(0));
        let rank = match delivery.outcome {
            Outcome::Request => usize::from(to),
            _ => usize::from(from),
        };
        self.ranks[rank].received[step as usize % APART] += 1;
        if self.settings.kind == Kind::AllReduce && round + 1 < 2 * (self.ranks.len() as u32 - 1) {
            let next = (rank + 1) % self.ranks.len();
            self.send(self.message(rank, next, now, step, round + 1), out);
        }
        self.check(now, rank, out);
    }
}

impl Report for JobTraffic {
    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn totals(&self) -> Totals {
        self.totals
    }

    fn ends_at(&self) -> Option<u64> {
        None
    }

    fn finished(&self) -> bool {
        self.ranks[..self.workers()]
            .iter()
            .all(|rank| rank.step >= self.settings.steps)
    }

    fn job(&self) -> Option<Job> {
        let mut times = self.step_ns.clone();
        times.sort_unstable();
        let micros = |fraction: f64| {
            let rank = (times.len() as f64 * fraction).ceil() as usize;
            times
                .get(rank.max(1) - 1)
                .map_or(0.0, |&nanos| nanos as f64 / 1000.0)
        };
        let all = self.waited_ns + self.computed_ns;
        Some(Job {
            step: format!("{:?} step of a rank", self.settings.kind),
            steps: times.len() as u64,
            mean_us: times.iter().sum::<u64>() as f64 / times.len().max(1) as f64 / 1000.0,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            max_us: micros(1.0),
            idle_share: self.waited_ns as f64 / all.max(1) as f64,
        })
    }
}
