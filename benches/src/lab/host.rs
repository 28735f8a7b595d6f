//! A host: a process in a namespace of its own, told line by line what to do.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;

use anyhow::{Result, bail};
use homa_mio::sys::Os;
use homa_uring::Uring;
use serde::{Deserialize, Serialize};

use super::net::{self, Port};
use super::node::{Counters, News, Node, Place};
use super::traffic::{Arrival, Steps, Traffic};
use super::{Variant, homa, quic, sys, tcp};
use crate::quic::Identity;
use crate::transport::Outcome;
use crate::workload::Pattern;

/// What the lab tells a host. Each is answered with one [`Answer`], [`Order::Run`] with two.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The host is plugged in: make the link ready.
    SetUp {
        host: usize,
        hosts: usize,
        port: Port,
    },
    /// Make a node and listen.
    Listen(Box<Run>),
    /// Connect to the others.
    Connect,
    /// Start the load at this time and answer when all has ended.
    Start { at_ns: u64 },
    /// Stop serving the others and tell what was measured.
    Finish,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Measured(Box<Measured>),
    Failed(String),
}

/// One run over one transport.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) variant: Variant,
    pub(super) ipv6: bool,
    pub(super) rate_bps: u64,
    /// Of QUIC's servers; all hosts have the same.
    pub(super) identity: Identity,
    /// The idle round trip as measured; 0: not yet.
    pub(super) rtt_ns: u64,
    pub(super) traffic: Traffic,
    pub(super) seed: u64,
    pub(super) window: Window,
}

/// When what is measured, in nanoseconds from the start of the load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Window {
    /// From here on: before, the network warms up.
    pub(super) from_ns: u64,
    /// Up to here.
    pub(super) to_ns: u64,
    /// The load goes on until here, so that what began last meets no emptier network.
    pub(super) end_ns: u64,
}

impl Window {
    fn contains(self, at_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&at_ns)
    }
}

/// What has not ended so long after the load is given up.
const PATIENCE_NS: u64 = 4_000_000_000;
/// How long the network has been idle before a message is sent on it: threads and processors go to
/// sleep meanwhile, as they do between the messages of a load.
const PAUSE_NS: u64 = 2_000_000;
/// How often a host looks whether it is told something.
const LOOK: Duration = Duration::from_millis(5);

/// What a host has seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Bytes, and nanoseconds from the scheduled arrival to the reply, of what arrived within the
    /// window.
    pub(super) samples: Vec<(u32, u64)>,
    /// Nanoseconds of each step that ended within the window, and of those the wait for the
    /// network.
    pub(super) steps: Vec<(u64, u64)>,
    /// Bytes of requests and replies that came back whole within the window.
    pub(super) bytes: u64,
    /// Bytes of requests and replies that arrived within the window.
    pub(super) offered: u64,
    /// RPCs that failed or were answered wrongly.
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    /// RPCs that had not ended in time.
    pub(super) unfinished: u64,
    /// How late RPCs were started, in nanoseconds: the 99th percentile.
    pub(super) late_ns: u64,
    /// CPU time spent within the window.
    pub(super) cpu_ns: u64,
    pub(super) counters: Counters,
    pub(super) settings: String,
}

/// The main function of a host.
pub fn main() -> Result<()> {
    sys::be_a_host()?;
    sys::enter_network()?;
    answer(&Answer::Done)?;
    let (tell, orders) = mpsc::channel();
    // Threads come after the namespace: they share it.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    match serve(&orders) {
        Ok(()) => Ok(()),
        Err(error) => answer(&Answer::Failed(format!("{error:#}"))),
    }
}

fn answer(answer: &Answer) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// The next order; `None` when there will be none.
fn next(orders: &Receiver<String>) -> Result<Option<Order>> {
    match orders.recv() {
        Ok(line) => Ok(Some(serde_json::from_str(&line)?)),
        Err(_) => Ok(None),
    }
}

fn serve(orders: &Receiver<String>) -> Result<()> {
    let Some(Order::SetUp { host, hosts, port }) = next(orders)? else {
        bail!("a host is told of its link first");
    };
    net::set_up_host(host, hosts, port)?;
    answer(&Answer::Done)?;
    while let Some(order) = next(orders)? {
        let Order::Listen(run) = order else {
            bail!("{order:?} makes no sense here");
        };
        let place = Place {
            host,
            hosts,
            ipv6: run.ipv6,
        };
        let mut node = make(&run, place)?;
        answer(&Answer::Done)?;
        let Some(Order::Connect) = next(orders)? else {
            bail!("told to listen and then not to connect");
        };
        node.connect()?;
        answer(&Answer::Done)?;
        let Some(Order::Start { at_ns }) = next(orders)? else {
            bail!("connected and not told to start");
        };
        let mut load = Load::new(&run, place, at_ns)?;
        load.run(node.as_mut(), orders)?;
        answer(&Answer::Measured(Box::new(load.measured)))?;
    }
    Ok(())
}

fn make(run: &Run, place: Place) -> Result<Box<dyn Node>> {
    let homa = |priorities| homa::Settings {
        link_bps: run.rate_bps,
        rtt_ns: run.rtt_ns,
        priorities,
    };
    Ok(match run.variant {
        Variant::HomaMio { priorities } => {
            Box::new(homa::HomaNode::bind(place, homa(priorities), Os)?)
        }
        // Its settings say so where it falls back on system calls.
        Variant::HomaUring { priorities } => Box::new(homa::HomaNode::bind(
            place,
            homa(priorities),
            Uring::or_mio(),
        )?),
        Variant::Tcp {
            congestion,
            connections,
        } => Box::new(tcp::TcpNode::bind(place, congestion.name(), connections)?),
        Variant::Quic => Box::new(quic::QuicNode::bind(place, &run.identity)?),
    })
}

/// An RPC under way.
#[derive(Clone, Copy)]
struct Started {
    at_ns: u64,
    bytes: u32,
}

/// Marks the ids of steps' messages: the host that asks, the one that is asked, the step, and the
/// number of the message.
const STEP: u64 = 1 << 62;
const HOST_SHIFT: u32 = 52;
const TO_SHIFT: u32 = 42;
const STEP_SHIFT: u32 = 12;

struct Load<'a> {
    run: &'a Run,
    place: Place,
    start_ns: u64,
    pattern: Pattern,
    arrivals: Vec<Arrival>,
    /// The first arrivals have been started.
    started: usize,
    next_id: u64,
    live: HashMap<u64, Started>,
    /// What is left of an idle run, and when its next message may go.
    idle: Vec<u32>,
    idle_from_ns: u64,
    job: Option<Job>,
    measured: Measured,
    late: Vec<u64>,
}

/// The state of a host that takes steps.
struct Job {
    steps: Steps,
    /// The number of the step.
    step: u64,
    /// When it began.
    began_ns: u64,
    /// When the messages were to go out, once that time has come.
    asked_ns: Option<u64>,
    /// Messages that are still to go out: to whom, and their ids.
    unsent: Vec<(usize, u64)>,
    /// Own messages that have not come back.
    waiting: usize,
    /// By host: the last step of which it has told.
    heard: Vec<u64>,
}

impl Job {
    fn new(steps: Steps, hosts: usize) -> Self {
        Self {
            steps,
            step: 1,
            began_ns: 0,
            asked_ns: None,
            unsent: Vec::new(),
            waiting: 0,
            heard: vec![0; hosts],
        }
    }

    /// When the computation of this step ends.
    fn computed_ns(&self) -> u64 {
        self.began_ns + self.steps.compute.as_nanos() as u64
    }

    fn step_has_ended(&self, place: Place) -> bool {
        let heard = |host: usize| !self.steps.barrier || self.heard[host] >= self.step;
        self.waiting == 0 && place.others().all(heard)
    }
}

impl<'a> Load<'a> {
    fn new(run: &'a Run, place: Place, start_ns: u64) -> Result<Self> {
        let mut load = Self {
            run,
            place,
            start_ns,
            // The seed is the same everywhere, so that hosts know each other's messages.
            pattern: Pattern::new(run.seed, super::LONGEST as usize),
            arrivals: Vec::new(),
            started: 0,
            next_id: (place.host as u64) << HOST_SHIFT,
            live: HashMap::new(),
            idle: Vec::new(),
            idle_from_ns: 0,
            job: None,
            measured: Measured::default(),
            late: Vec::new(),
        };
        match &run.traffic {
            Traffic::Idle(sizes) if place.host == 0 => {
                for &(bytes, count) in sizes.iter().rev() {
                    load.idle.extend(std::iter::repeat_n(bytes, count));
                }
            }
            Traffic::Idle(_) => {}
            Traffic::Load { open, steps } => {
                if let Some(open) = open {
                    let (host, hosts, end) = (place.host, place.hosts, run.window.end_ns);
                    load.arrivals = open.arrivals(run.rate_bps, host, hosts, end, run.seed)?;
                    for arrival in &load.arrivals {
                        if run.window.contains(arrival.at_ns) {
                            load.measured.offered += 2 * u64::from(arrival.bytes);
                        }
                    }
                }
                load.job = steps
                    .filter(|steps| !steps.root_only || place.host == 0)
                    .map(|steps| Job::new(steps, place.hosts));
            }
        }
        Ok(load)
    }

    /// Nanoseconds since the start; 0 before.
    fn now(&self) -> u64 {
        sys::now_ns().saturating_sub(self.start_ns)
    }

    fn run(&mut self, node: &mut dyn Node, orders: &Receiver<String>) -> Result<()> {
        let window = self.run.window;
        let (mut before, mut after) = (None, None);
        let mut told = false;
        loop {
            let now = self.now();
            if sys::now_ns() >= self.start_ns {
                if now >= window.from_ns && before.is_none() {
                    before = Some((node.counters()?, sys::cpu_ns()));
                }
                if now >= window.to_ns && after.is_none() {
                    after = Some((node.counters()?, sys::cpu_ns()));
                }
                self.start_due(node, now)?;
                if !told && self.all_done(now) {
                    told = true;
                    self.measured.unfinished = self.live.len() as u64;
                    answer(&Answer::Done)?;
                }
            }
            let wait = self.until_next(told).min(LOOK);
            node.turn(wait, &mut |news| self.take_in(news))?;
            if told || sys::now_ns() < self.start_ns {
                match orders.try_recv() {
                    Ok(line) => match serde_json::from_str(&line)? {
                        Order::Finish => break,
                        order => bail!("{order:?} makes no sense here"),
                    },
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => bail!("the lab has gone"),
                }
            }
        }
        if let (Some((from, cpu_from)), Some((to, cpu_to))) = (before, after) {
            self.measured.counters = to.zip(from, u64::saturating_sub);
            self.measured.cpu_ns = cpu_to - cpu_from;
        }
        self.late.sort_unstable();
        self.measured.late_ns = crate::report::percentile(&self.late, 0.99).unwrap_or(0);
        self.measured.settings = node.settings();
        Ok(())
    }

    /// Starts what is due.
    fn start_due(&mut self, node: &mut dyn Node, now: u64) -> Result<()> {
        if self.live.is_empty()
            && now >= self.idle_from_ns
            && let Some(bytes) = self.idle.pop()
        {
            let id = self.new_id();
            let started = Started { at_ns: now, bytes };
            // An idle node takes one message.
            self.request(node, 1, id, started)?;
        }
        while let Some(&Arrival { at_ns, bytes, to }) = self.arrivals.get(self.started)
            && at_ns <= now
        {
            let late = self.now() - at_ns;
            let id = self.new_id();
            if !self.request(node, to, id, Started { at_ns, bytes })? {
                break;
            }
            self.started += 1;
            if self.run.window.contains(at_ns) {
                self.late.push(late);
            }
        }
        self.take_step(node, now)
    }

    /// Takes the job as far as it can go now.
    fn take_step(&mut self, node: &mut dyn Node, now: u64) -> Result<()> {
        let Some(mut job) = self.job.take() else {
            return Ok(());
        };
        if let Some(asked_ns) = job.asked_ns
            && job.step_has_ended(self.place)
        {
            if self.run.window.contains(now) {
                self.measured
                    .steps
                    .push((now - job.began_ns, now - asked_ns));
            }
            job.step += 1;
            (job.began_ns, job.asked_ns) = (now, None);
        }
        if job.asked_ns.is_none() && job.computed_ns() <= now && now < self.run.window.end_ns {
            job.asked_ns = Some(job.computed_ns());
            for n in 0..job.steps.per_host as u64 {
                let id = STEP | (self.place.host as u64) << HOST_SHIFT | job.step << STEP_SHIFT | n;
                let place = self.place;
                // Each host begins with another, or all would crowd one after the other.
                let others = (1..place.hosts).map(|turn| (place.host + turn) % place.hosts);
                job.unsent
                    .extend(others.map(|to| (to, id | (to as u64) << TO_SHIFT)));
            }
            job.waiting = job.unsent.len();
        }
        let bytes = job.steps.bytes;
        let at_ns = job.asked_ns.unwrap_or(now);
        while let Some(&(to, id)) = job.unsent.last() {
            if !self.request(node, to, id, Started { at_ns, bytes })? {
                break;
            }
            job.unsent.pop();
        }
        self.job = Some(job);
        Ok(())
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn request(&mut self, node: &mut dyn Node, to: usize, id: u64, rpc: Started) -> Result<bool> {
        let message = message(&self.pattern, id, rpc.bytes);
        let taken = node.request(to, id, &message)?;
        if taken {
            self.live.insert(id, rpc);
        }
        Ok(taken)
    }

    fn take_in(&mut self, news: News<'_>) {
        match news {
            News::Ended(id, outcome) => self.end(id, outcome),
            News::Asked(bytes) => self.hear(bytes),
        }
    }

    fn end(&mut self, id: u64, outcome: Outcome<'_>) {
        let now = self.now();
        let Some(Started { at_ns, bytes }) = self.live.remove(&id) else {
            return self.error(format!("RPC {id:#x} ended twice or was never started"));
        };
        match outcome {
            Err(why) => return self.error(why),
            Ok(reply) if *reply != *message(&self.pattern, id, bytes) => {
                return self.error(format!("the reply to RPC {id:#x} ({bytes} bytes) is wrong"));
            }
            Ok(_) => {}
        }
        self.idle_from_ns = now + PAUSE_NS;
        let window = self.run.window;
        if window.contains(at_ns) {
            self.measured
                .samples
                .push((bytes, now.saturating_sub(at_ns)));
        }
        if window.contains(now) && id & STEP == 0 {
            self.measured.bytes += 2 * u64::from(bytes);
        }
        if let Some(job) = &mut self.job
            && id & STEP != 0
        {
            job.waiting -= 1;
        }
    }

    /// Takes in what another host has asked: a message of a step says how far that host is.
    fn hear(&mut self, bytes: &[u8]) {
        let Some(job) = &mut self.job else { return };
        let Some(id) = bytes.first_chunk().map(|id| u64::from_le_bytes(*id)) else {
            return;
        };
        let host = (id & !STEP) >> HOST_SHIFT;
        if id & STEP != 0
            && bytes.len() == job.steps.bytes as usize
            && *bytes == *message(&self.pattern, id, job.steps.bytes)
            && let Some(heard) = job.heard.get_mut(host as usize)
        {
            let step = (id >> STEP_SHIFT) & ((1 << (TO_SHIFT - STEP_SHIFT)) - 1);
            *heard = step.max(*heard);
        }
    }

    fn error(&mut self, what: String) {
        self.measured.errors += 1;
        self.measured.first_error.get_or_insert(what);
    }

    fn all_done(&self, now: u64) -> bool {
        if matches!(self.run.traffic, Traffic::Idle(_)) {
            return self.idle.is_empty() && self.live.is_empty();
        }
        let end = self.run.window.end_ns;
        let arrived = self.started == self.arrivals.len();
        now >= end && ((arrived && self.live.is_empty()) || now >= end + PATIENCE_NS)
    }

    /// How long until something is to be started.
    fn until_next(&self, told: bool) -> Duration {
        let now = sys::now_ns();
        if now < self.start_ns {
            return Duration::from_nanos(self.start_ns - now);
        }
        if told {
            return LOOK;
        }
        let arrival = self.arrivals.get(self.started).map(|arrival| arrival.at_ns);
        let step = self
            .job
            .as_ref()
            .filter(|job| job.asked_ns.is_none() || job.step_has_ended(self.place))
            .map(Job::computed_ns);
        let idle = !self.idle.is_empty() && self.live.is_empty();
        let idle = idle.then_some(self.idle_from_ns);
        let next = [arrival, step, idle].into_iter().flatten().min();
        next.map_or(LOOK, |at| {
            Duration::from_nanos(at.saturating_sub(self.now()))
        })
    }
}

/// What an RPC carries: its own stretch of the pattern, and in a step's message the id in front.
fn message(pattern: &Pattern, id: u64, bytes: u32) -> Cow<'_, [u8]> {
    let contents = pattern.message(id, bytes as usize);
    if id & STEP == 0 {
        return Cow::Borrowed(contents);
    }
    let mut contents = contents.to_vec();
    for (to, from) in contents.iter_mut().zip(id.to_le_bytes()) {
        *to = from;
    }
    Cow::Owned(contents)
}
