//! The loop: takes the next event, tells the network, the hosts' transport and the application.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::capture::Capture;
use crate::events::{Event, EventQueue, TraceHash};
use crate::fault::{Faults, Step};
use crate::network::{Arrival, Network};
use crate::packet::{HostId, Packet, Waited};
use crate::rng::Rng;
use crate::transport::{Delivery, Message, MessageId, Outcome, Side, Transport};

/// What a host's software costs. The first three are latencies that overlap; the rest keep the
/// host's one core busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Software {
    /// From the transport to the network card, in nanoseconds.
    pub tx_ns: u64,
    /// From the network card to the transport; a message is complete at the end of it.
    pub rx_ns: u64,
    /// From then until what the transport does in answer.
    pub think_ns: u64,
    /// Work per packet, in or out.
    pub per_packet_ns: u64,
    /// Work to wake up for the first packet after a pause.
    pub wakeup_ns: u64,
    /// Mean of an exponentially distributed addition to it.
    pub wakeup_jitter_ns: u64,
    /// Chance that a wake-up takes `stall_ns` longer.
    pub stall_chance: f64,
    /// The length of such a stall.
    pub stall_ns: u64,
}

impl Software {
    /// Whether the core is never busy.
    fn is_free(&self) -> bool {
        self.per_packet_ns == 0
            && self.wakeup_ns == 0
            && self.wakeup_jitter_ns == 0
            && self.stall_chance == 0.0
    }
}

/// What an application can do.
#[derive(Clone, Copy, Debug)]
enum Action {
    Send(Message),
    Reply(MessageId),
    Cancel(MessageId, Side),
    Wake(u64, u32),
}

/// Takes what an application wants done.
#[derive(Default)]
pub struct Outbox {
    actions: VecDeque<Action>,
}

impl Outbox {
    /// Send a message now.
    pub fn send(&mut self, message: Message) {
        self.actions.push_back(Action::Send(message));
    }

    /// Answer a message that was delivered and expects an answer.
    pub fn reply(&mut self, message: MessageId) {
        self.actions.push_back(Action::Reply(message));
    }

    /// Give a message up now.
    pub fn cancel(&mut self, message: MessageId, side: Side) {
        self.actions.push_back(Action::Cancel(message, side));
    }

    /// Moves all to `to`, with `mark` set in tokens and tags.
    pub(crate) fn move_to(&mut self, to: &mut Self, mark: u32) {
        for action in self.actions.drain(..) {
            to.actions.push_back(match action {
                Action::Send(mut message) => {
                    message.tag |= mark;
                    Action::Send(message)
                }
                Action::Reply(_) | Action::Cancel(..) => action,
                Action::Wake(time, token) => Action::Wake(time, token | mark),
            });
        }
    }

    /// Call [`Application::wake`] at `time`.
    pub fn wake(&mut self, time: u64, token: u32) {
        self.actions.push_back(Action::Wake(time, token));
    }
}

/// What runs on the hosts and uses the transport.
pub trait Application {
    /// The run begins.
    fn start(&mut self, out: &mut Outbox);

    /// A time that was asked for has come.
    fn wake(&mut self, now: u64, token: u32, out: &mut Outbox);

    /// A message has got somewhere. It is forgotten afterwards, unless it expects an answer and this was
    /// the request.
    fn delivered(&mut self, now: u64, delivery: Delivery, message: &Message, out: &mut Outbox);

    /// A host has crashed or come back.
    fn fault(&mut self, _now: u64, _step: &Step, _out: &mut Outbox) {}
}

/// A live message and how far it has got.
#[derive(Clone, Copy)]
struct Live {
    message: Message,
    /// The host whose downlink it will come in on next, if any.
    awaited_by: Option<HostId>,
}

/// Live messages by id.
struct Messages {
    slots: Vec<Live>,
    free: Vec<MessageId>,
    reuse: bool,
    live: usize,
}

impl Messages {
    fn add(&mut self, message: Message) -> MessageId {
        self.live += 1;
        let live = Live {
            message,
            awaited_by: Some(message.to),
        };
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = live;
            return id;
        }
        self.slots.push(live);
        self.slots.len() as MessageId - 1
    }

    fn remove(&mut self, id: MessageId) {
        // A violation that is about to be reported may end a message twice.
        self.live = self.live.saturating_sub(1);
        if self.reuse {
            self.free.push(id);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Packet(u32),
    Send(MessageId),
    Reply(MessageId),
    Cancel(MessageId, Side),
    Timer,
    Poll,
}

struct Host {
    up: bool,
    inbox: VecDeque<Input>,
    run_scheduled: bool,
    /// The core is busy until then.
    busy_until: u64,
    paused_until: u64,
    /// Time of the timer event that counts; others are stale.
    timer_at: u64,
    nic_event: bool,
}

/// What else decides a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// Cost of the hosts' software.
    pub software: Software,
    /// Fixes everything random about it.
    pub seed: u64,
    /// Use no message id twice.
    pub keep_ids: bool,
}

/// Most inputs that a host works through before it sends.
const BATCH: usize = 16;

/// One run.
pub struct Simulation<T: Transport, A> {
    /// The network.
    pub network: Network<T::Body>,
    /// The transport in all hosts.
    pub transport: T,
    /// What uses it.
    pub app: A,
    /// Faults.
    pub faults: Faults,
    /// Writes packets of some hosts to a file.
    pub capture: Option<Capture>,
    events: EventQueue,
    hosts: Vec<Host>,
    software: Software,
    software_is_free: bool,
    messages: Messages,
    outbox: Outbox,
    /// What the inputs of a host have brought about, with what the packets had waited for.
    delivered: VecDeque<(Delivery, Waited)>,
    rng: Rng,
    hash: TraceHash,
    processed: u64,
    started: bool,
    /// The last events as text, at most so many.
    log: VecDeque<String>,
    log_limit: usize,
}

impl<T: Transport, A: Application> Simulation<T, A> {
    /// A run that has not begun.
    #[must_use]
    pub fn new(
        network: Network<T::Body>,
        transport: T,
        app: A,
        faults: Faults,
        setup: Setup,
    ) -> Self {
        let Setup {
            software,
            seed,
            keep_ids,
        } = setup;
        let hosts = network.host_count();
        Self {
            network,
            transport,
            app,
            faults,
            capture: None,
            events: EventQueue::new(),
            hosts: (0..hosts)
                .map(|_| Host {
                    up: true,
                    inbox: VecDeque::new(),
                    run_scheduled: false,
                    busy_until: 0,
                    paused_until: 0,
                    timer_at: u64::MAX,
                    nic_event: false,
                })
                .collect(),
            software,
            software_is_free: software.is_free(),
            messages: Messages {
                slots: Vec::new(),
                free: Vec::new(),
                reuse: !keep_ids,
                live: 0,
            },
            outbox: Outbox::default(),
            delivered: VecDeque::new(),
            rng: Rng::new(seed, 0x0068_6f73_7473),
            hash: TraceHash::default(),
            processed: 0,
            started: false,
            log: VecDeque::new(),
            log_limit: 0,
        }
    }

    /// Time of the last event, in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.events.now()
    }

    /// Events so far.
    #[must_use]
    pub fn processed(&self) -> u64 {
        self.processed
    }

    /// Hash of all events so far.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.hash.value()
    }

    /// Messages that are under way.
    #[must_use]
    pub fn live_messages(&self) -> usize {
        self.messages.live
    }

    /// Keeps the last `limit` events as text.
    pub fn keep_log(&mut self, limit: usize) {
        self.log_limit = limit;
    }

    /// The events kept as text.
    pub fn take_log(&mut self) -> Vec<String> {
        self.log.drain(..).collect()
    }

    #[cold]
    fn note(&mut self, clock: u64, what: &str, host: HostId, slot: Option<u32>) {
        let mut line = format!("{:>14.3} µs  host {host:<3} {what}", clock as f64 / 1000.0);
        if let Some(slot) = slot {
            let packet = *self.network.packets.get(slot);
            let body = self.network.packets.body(slot);
            line += &format!(
                " {} → {} at priority {}: {}",
                packet.from,
                packet.to,
                packet.priority,
                self.transport.describe(&packet, body)
            );
        }
        if self.log.len() >= self.log_limit {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    /// Works through up to `count` events that come no later than `end`. Returns false when there are no more.
    pub fn run(&mut self, end: u64, count: u64) -> bool {
        for _ in 0..count {
            if self.step(end).is_none() {
                return false;
            }
        }
        true
    }

    #[cold]
    fn start(&mut self) {
        self.started = true;
        for (step, time) in self.faults.times().enumerate() {
            self.events.push(time, Event::Fault { step: step as u32 });
        }
        self.app.start(&mut self.outbox);
        self.dispatch(0);
    }

    /// Works through one event if it comes no later than `end`.
    #[inline]
    pub fn step(&mut self, end: u64) -> Option<Event> {
        if !self.started {
            self.start();
        }
        let (now, event) = self.events.pop_until(end)?;
        self.processed += 1;
        self.hash.add(now);
        self.hash.add(event.code());
        match event {
            Event::Arrive { packet } => self.arrive(packet),
            Event::PortFree { port } => {
                self.network.port_free(port, &mut self.events);
                return Some(event);
            }
            Event::NicFree { host } => {
                self.hosts[usize::from(host)].nic_event = false;
                self.input(host, Input::Poll);
            }
            Event::Run { host } => self.run_host(host),
            Event::Timer { host } => self.timer(host),
            Event::Wake { token } => self.app.wake(now, token, &mut self.outbox),
            Event::Fault { step } => self.fault(step),
        }
        self.dispatch(now);
        Some(event)
    }

    #[inline]
    fn arrive(&mut self, slot: u32) {
        let packet = *self.network.packets.get(slot);
        self.hash.add(
            u64::from(packet.wire_bytes) << 40
                | u64::from(packet.priority) << 32
                | u64::from(packet.from) << 16
                | u64::from(packet.to),
        );
        if let Arrival::Host(host) = self.network.arrive(slot, &mut self.events) {
            self.input(host, Input::Packet(slot));
        }
    }

    fn timer(&mut self, host: HostId) {
        let now = self.events.now();
        let state = &mut self.hosts[usize::from(host)];
        if state.timer_at != now {
            return;
        }
        state.timer_at = u64::MAX;
        match self.transport.next_timer(host) {
            Some(at) if at <= now => self.input(host, Input::Timer),
            _ => self.set_timer(host),
        }
    }

    fn set_timer(&mut self, host: HostId) {
        if let Some(at) = self.transport.next_timer(host) {
            let state = &mut self.hosts[usize::from(host)];
            if at < state.timer_at {
                state.timer_at = at.max(self.events.now());
                self.events.push(state.timer_at, Event::Timer { host });
            }
        }
    }

    /// Something for a host to do: at once if its core is idle and costs nothing.
    fn input(&mut self, host: HostId, input: Input) {
        let now = self.events.now();
        let state = &mut self.hosts[usize::from(host)];
        if !state.up {
            self.discard(input);
            return;
        }
        if self.software_is_free && state.paused_until <= now && state.inbox.is_empty() {
            self.handle(host, now, input);
            self.flush(host, now);
            return;
        }
        state.inbox.push_back(input);
        if !state.run_scheduled {
            state.run_scheduled = true;
            let wakeup = if state.busy_until < now {
                self.wakeup_cost()
            } else {
                0
            };
            let state = &self.hosts[usize::from(host)];
            let at = now.max(state.busy_until).max(state.paused_until) + wakeup;
            self.events.push(at, Event::Run { host });
        }
    }

    fn wakeup_cost(&mut self) -> u64 {
        let software = &self.software;
        let mut cost = software.wakeup_ns;
        if software.wakeup_jitter_ns > 0 {
            cost += self.rng.exponential(software.wakeup_jitter_ns as f64) as u64;
        }
        if self.rng.chance(software.stall_chance) {
            cost += software.stall_ns;
        }
        cost
    }

    fn run_host(&mut self, host: HostId) {
        let mut clock = self.events.now();
        let index = usize::from(host);
        self.hosts[index].run_scheduled = false;
        if !self.hosts[index].up {
            return;
        }
        if self.hosts[index].paused_until > clock {
            self.hosts[index].run_scheduled = true;
            let at = self.hosts[index].paused_until;
            self.events.push(at, Event::Run { host });
            return;
        }
        for _ in 0..BATCH {
            let Some(input) = self.hosts[index].inbox.pop_front() else {
                break;
            };
            if !matches!(input, Input::Poll) {
                clock += self.software.per_packet_ns;
            }
            self.handle(host, clock, input);
        }
        let clock = self.flush(host, clock);
        let state = &mut self.hosts[index];
        state.busy_until = clock;
        if !state.inbox.is_empty() && !state.run_scheduled {
            state.run_scheduled = true;
            self.events.push(clock, Event::Run { host });
        }
    }

    /// Gives one input to the transport at the host's own time `clock`.
    #[inline]
    fn handle(&mut self, host: HostId, clock: u64, input: Input) {
        if self.log_limit > 0 {
            let (what, slot) = match input {
                Input::Packet(slot) => ("received".into(), Some(slot)),
                other => (format!("{other:?}"), None),
            };
            self.note(clock, &what, host, slot);
        }
        match input {
            Input::Packet(slot) => {
                let packet = *self.network.packets.get(slot);
                if let Some(capture) = &mut self.capture {
                    let body = self.network.packets.body(slot);
                    capture.packet(host, clock, &packet, body, &self.transport);
                }
                let body = self.network.packets.body(slot);
                self.transport.receive(clock, host, &packet, body);
                self.network.packets.release(slot);
                while let Some(delivery) = self.transport.delivery() {
                    self.delivered.push_back((delivery, packet.waited));
                }
            }
            Input::Send(id) => {
                let message = self.messages.slots[id as usize].message;
                self.transport.send(clock, id, &message);
            }
            Input::Reply(id) => {
                let message = self.messages.slots[id as usize].message;
                self.transport.reply(clock, id, &message);
            }
            Input::Cancel(id, side) => {
                let message = self.messages.slots[id as usize].message;
                self.transport.cancel(clock, id, &message, side);
            }
            Input::Timer => self.transport.timer(clock, host),
            Input::Poll => {}
        }
    }

    /// Takes all that the transport of a host has to give; returns when its core is done.
    #[inline]
    fn flush(&mut self, host: HostId, mut clock: u64) -> u64 {
        let ahead = self.transport.nic_ahead_ns();
        loop {
            if ahead != u64::MAX {
                let free_at = self.network.card_free_at(host);
                let state = &mut self.hosts[usize::from(host)];
                let reach = self.software.tx_ns + ahead;
                if free_at > clock + reach {
                    if !state.nic_event {
                        state.nic_event = true;
                        self.events.push(free_at - reach, Event::NicFree { host });
                    }
                    break;
                }
            }
            let slot = self.network.packets.reserve();
            let body = self.network.packets.body(slot);
            let Some(packet) = self.transport.transmit(clock, host, body) else {
                self.network.packets.release(slot);
                break;
            };
            clock += self.software.per_packet_ns;
            *self.network.packets.get(slot) = packet;
            self.launch(host, clock, slot, packet);
        }
        while let Some((delivery, waited)) = self.delivered.pop_front() {
            self.deliver(clock, delivery, waited);
        }
        while let Some(delivery) = self.transport.delivery() {
            self.deliver(clock, delivery, Waited::default());
        }
        self.set_timer(host);
        clock
    }

    /// Sends a packet, with whatever goes wrong on its way.
    #[inline]
    fn launch(&mut self, host: HostId, clock: u64, slot: u32, packet: Packet) {
        let arrives = self.network.send(clock + self.software.tx_ns, slot);
        if let Some(capture) = &mut self.capture {
            let body = self.network.packets.body(slot);
            capture.packet(host, clock, &packet, body, &self.transport);
        }
        if !self.faults.active() {
            self.events.push(arrives, Event::Arrive { packet: slot });
            return;
        }
        let fate = self.faults.fate(arrives, &packet);
        if self.log_limit > 0 {
            self.note(clock, &format!("sent ({fate:?})"), host, Some(slot));
        }
        if let Some(late) = fate.copy_late_ns {
            let copy = self.network.packets.reserve();
            *self.network.packets.get(copy) = *self.network.packets.get(slot);
            *self.network.packets.body(copy) = self.network.packets.body(slot).clone();
            self.events
                .push(arrives + late, Event::Arrive { packet: copy });
        }
        if fate.garbled {
            let body = self.network.packets.body(slot);
            self.transport.corrupt(body, &mut self.rng);
        }
        match fate.late_ns {
            Some(late) => self
                .events
                .push(arrives + late, Event::Arrive { packet: slot }),
            None => self.network.packets.release(slot),
        }
    }

    fn deliver(&mut self, clock: u64, delivery: Delivery, waited: Waited) {
        let now = clock - self.software.think_ns.min(clock);
        if self.log_limit > 0 {
            self.note(clock, &format!("{delivery:?}"), 0, None);
        }
        let live = &mut self.messages.slots[delivery.message as usize];
        live.message.waited += waited;
        let message = live.message;
        if let Some(host) = live.awaited_by.take() {
            self.network.message_ends(host, now);
        }
        self.app
            .delivered(now, delivery, &message, &mut self.outbox);
        if delivery.outcome != Outcome::Request || message.reply_bytes.is_none() {
            self.messages.remove(delivery.message);
        }
    }

    /// Does what the application has asked for, until it asks for no more.
    #[inline]
    fn dispatch(&mut self, now: u64) {
        while let Some(action) = self.outbox.actions.pop_front() {
            match action {
                Action::Send(message) => {
                    let id = self.messages.add(message);
                    self.network.message_begins(message.to, now);
                    self.input(message.from, Input::Send(id));
                }
                Action::Reply(id) => {
                    let live = &mut self.messages.slots[id as usize];
                    let Message { from, to, .. } = live.message;
                    if live.awaited_by.replace(from).is_none() {
                        self.network.message_begins(from, now);
                    }
                    self.input(to, Input::Reply(id));
                }
                Action::Cancel(id, side) => {
                    let Message { from, to, .. } = self.messages.slots[id as usize].message;
                    let host = match side {
                        Side::Client => from,
                        Side::Server => to,
                    };
                    self.input(host, Input::Cancel(id, side));
                }
                Action::Wake(time, token) => {
                    self.events.push(time.max(now), Event::Wake { token });
                }
            }
        }
    }

    fn discard(&mut self, input: Input) {
        if let Input::Packet(slot) = input {
            self.network.packets.release(slot);
        }
    }

    fn fault(&mut self, number: u32) {
        let now = self.events.now();
        let step = self.faults.step(number);
        match step {
            Step::Pause(host, until) => {
                let state = &mut self.hosts[usize::from(host)];
                state.paused_until = state.paused_until.max(until);
                // Whatever the pause interrupts goes on after it.
                self.input(host, Input::Poll);
            }
            Step::Crash(host) => {
                let state = &mut self.hosts[usize::from(host)];
                state.up = false;
                for input in std::mem::take(&mut state.inbox) {
                    self.discard(input);
                }
                self.transport.crash(now, host);
            }
            Step::Restart(host) => {
                let state = &mut self.hosts[usize::from(host)];
                state.up = true;
                state.paused_until = 0;
                state.timer_at = u64::MAX;
            }
            Step::Cut(..) | Step::Mend | Step::Heal => {}
        }
        self.app.fault(now, &step, &mut self.outbox);
    }
}
