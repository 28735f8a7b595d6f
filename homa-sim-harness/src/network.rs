//! The network between the hosts: cards, cables and switches.
//!
//! A packet that a host hands over leaves its card when the packets before it have left, at the link's rate;
//! each switch takes it in whole (store and forward), picks the way out, and queues it there
//! by priority. Bytes count as queued while they wait: not while they are on the cable, and no longer once
//! their transmission has started. Times within ports are kept in picoseconds, so that links are exactly as fast as
//! they say; events happen at the next full nanosecond.

use crate::events::{Event, EventQueue};
use crate::histogram::Histogram;
use crate::packet::{Ecn, HostId, NO_PACKET, Packets, Waited};
use crate::rng::Rng;
use crate::topology::{Buffer, Topology};

/// How a switch chooses among several shortest ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// At random for every packet.
    Spray,
    /// By a hash of the flow: one flow, one way.
    Flow,
}

/// What all switches have in common.
#[derive(Clone, Copy, Debug)]
pub struct SwitchSettings {
    /// Packet memory.
    pub buffer: Buffer,
    /// A packet that may be marked is, when it finds more than this many bytes in its queue.
    pub ecn_bytes: Option<u64>,
    /// Choice of ways.
    pub routing: Routing,
    /// Priority levels that are told apart, 1 to 8; a packet's priority p goes to queue p × levels / 8.
    pub levels: u8,
}

/// Bytes in a queue over time.
#[derive(Clone, Debug, Default)]
pub struct Occupancy {
    bytes: u64,
    since: u64,
    area: f64,
    max: u64,
    time_at: Histogram,
}

impl Occupancy {
    #[inline]
    fn change(&mut self, now: u64, bytes: u64) {
        let elapsed = now - self.since;
        if elapsed > 0 {
            self.time_at.add(self.bytes, elapsed);
            self.area += self.bytes as f64 * elapsed as f64;
            self.since = now;
        }
        self.bytes = bytes;
        self.max = self.max.max(bytes);
    }

    /// Average over time until `now`, in bytes.
    #[must_use]
    pub fn mean(&self, now: u64) -> f64 {
        let area = self.area + self.bytes as f64 * (now - self.since) as f64;
        if now == 0 { 0.0 } else { area / now as f64 }
    }

    /// Bytes not exceeded during 99 % of the time until `now` (to within 6 %).
    #[must_use]
    pub fn p99(&self, now: u64) -> u64 {
        let mut time_at = self.time_at.clone();
        time_at.add(self.bytes, now - self.since);
        time_at.quantile(0.99).min(self.max)
    }

    /// The most bytes there ever were.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Bytes now.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.bytes
    }
}

/// A transmitter: the time in which a byte passes, and when the last one will have.
#[derive(Clone, Copy, Debug)]
struct Line {
    femtos_per_byte: u64,
    busy_until_ps: u64,
    /// From the last bit out to the event at the next node, in nanoseconds.
    delay_ns: u64,
}

impl Line {
    fn new(bps: u64, delay_ns: u64) -> Self {
        Self {
            femtos_per_byte: (8_000_000_000_000_000 + bps / 2) / bps,
            busy_until_ps: 0,
            delay_ns,
        }
    }

    /// Sends `bytes`, at the earliest at `from_ps`; returns when the last bit has left.
    #[inline]
    fn send(&mut self, from_ps: u64, bytes: u32) -> u64 {
        let start = self.busy_until_ps.max(from_ps);
        self.busy_until_ps = start + u64::from(bytes) * self.femtos_per_byte / 1000;
        self.busy_until_ps
    }
}

fn nanos(ps: u64) -> u64 {
    ps.div_ceil(1000)
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    bytes: u64,
}

/// What a switch port has done.
#[derive(Clone, Debug, Default)]
pub struct PortStats {
    /// Bytes waiting, over time.
    pub queued: Occupancy,
    /// Wire bytes sent, by priority.
    pub sent: [u64; 8],
    /// Packets dropped for want of buffer, by priority.
    pub dropped: [u64; 8],
    /// Packets marked.
    pub marked: u64,
}

struct Port {
    line: Line,
    /// Node at the far end: hosts first, then switches.
    to: u32,
    switch: u32,
    wake_pending: bool,
    /// Bit p: queue p holds packets.
    waiting: u8,
    queues: [Queue; 8],
    stats: PortStats,
}

struct SwitchState {
    queued: Occupancy,
}

/// The downlink of a host, seen by who waits for its messages.
#[derive(Clone, Copy, Debug, Default)]
struct Downlink {
    outstanding: u32,
    since: u64,
    outstanding_ns: u64,
    /// Time spent sending to the host while a message for it was outstanding.
    used_ps: u64,
}

/// What happened to a packet that reached a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It is at its destination.
    Host(HostId),
    /// A switch took it.
    Forwarded,
    /// A switch had no room; the slot is free again.
    Dropped,
}

/// Names a port in reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortName {
    /// Number of the switch.
    pub switch: usize,
    /// Host at the far end, if it is one.
    pub host: Option<HostId>,
    /// Else the switch there.
    pub peer: Option<usize>,
}

/// All of the network between the hosts.
pub struct Network<B> {
    /// Packets under way.
    pub packets: Packets<B>,
    hosts: u32,
    cards: Vec<(Line, u32)>,
    switches: Vec<SwitchState>,
    ports: Vec<Port>,
    /// For (switch, host): where its ports start in `ways`, and how many.
    routes: Vec<(u32, u32)>,
    ways: Vec<u32>,
    settings: SwitchSettings,
    downlinks: Vec<Downlink>,
    rng: Rng,
    hops: u64,
    data_arrived: u64,
}

impl<B: Default> Network<B> {
    /// An idle network. `host_latency_ns` passes between a packet's last bit at a host and its event there.
    #[must_use]
    pub fn new(
        topology: &Topology,
        settings: SwitchSettings,
        host_latency_ns: u64,
        seed: u64,
    ) -> Self {
        let hosts = topology.hosts.len() as u32;
        let mut network = Self {
            packets: Packets::default(),
            hosts,
            cards: Vec::new(),
            switches: topology
                .switches
                .iter()
                .map(|_| SwitchState {
                    queued: Occupancy::default(),
                })
                .collect(),
            ports: Vec::new(),
            routes: Vec::new(),
            ways: Vec::new(),
            settings,
            downlinks: vec![Downlink::default(); hosts as usize],
            rng: Rng::new(seed, 0x006e_6574_776f_726b),
            hops: 0,
            data_arrived: 0,
        };
        let mut host_ports = Vec::new();
        for (host, link) in topology.hosts.iter().enumerate() {
            let latency = topology.switches[link.switch].latency_ns;
            network.cards.push((
                Line::new(link.bps, link.delay_ns + latency),
                hosts + link.switch as u32,
            ));
            host_ports.push(network.add_port(
                link.switch,
                host as u32,
                link.bps,
                link.delay_ns + host_latency_ns,
            ));
        }
        // For every switch its ports to other switches.
        let mut neighbours = vec![Vec::new(); topology.switches.len()];
        for link in &topology.links {
            for (near, far) in [(link.a, link.b), (link.b, link.a)] {
                let delay = link.delay_ns + topology.switches[far].latency_ns;
                let port = network.add_port(near, hosts + far as u32, link.bps, delay);
                neighbours[near].push((far, port));
            }
        }
        network.find_routes(topology, &host_ports, &neighbours);
        network
    }

    fn add_port(&mut self, switch: usize, to: u32, bps: u64, delay_ns: u64) -> u32 {
        let empty = Queue {
            head: NO_PACKET,
            tail: NO_PACKET,
            bytes: 0,
        };
        self.ports.push(Port {
            line: Line::new(bps, delay_ns),
            to,
            switch: switch as u32,
            wake_pending: false,
            waiting: 0,
            queues: [empty; 8],
            stats: PortStats::default(),
        });
        self.ports.len() as u32 - 1
    }

    /// All shortest ways from every switch to every host.
    fn find_routes(
        &mut self,
        topology: &Topology,
        host_ports: &[u32],
        neighbours: &[Vec<(usize, u32)>],
    ) {
        let distances: Vec<_> = (0..topology.switches.len())
            .map(|switch| topology.distances(switch))
            .collect();
        // Hosts of one switch share their ways from every other switch.
        let mut shared = std::collections::HashMap::new();
        for switch in 0..topology.switches.len() {
            for (host, link) in topology.hosts.iter().enumerate() {
                let route = if link.switch == switch {
                    self.ways.push(host_ports[host]);
                    (self.ways.len() as u32 - 1, 1)
                } else {
                    *shared.entry((switch, link.switch)).or_insert_with(|| {
                        let first = self.ways.len() as u32;
                        let distance = &distances[link.switch];
                        self.ways.extend(
                            neighbours[switch]
                                .iter()
                                .filter(|(far, _)| {
                                    distance[*far] != usize::MAX
                                        && distance[*far] < distance[switch]
                                })
                                .map(|(_, port)| *port),
                        );
                        (first, self.ways.len() as u32 - first)
                    })
                };
                self.routes.push(route);
            }
        }
    }

    /// When the card of `host` could start to send a packet that is handed over at `now`, in nanoseconds.
    #[inline]
    pub fn card_free_at(&self, host: HostId) -> u64 {
        nanos(self.cards[usize::from(host)].0.busy_until_ps)
    }

    /// Sends the packet in `slot` from its host's card, at the earliest at `ready`. Returns when it
    /// will have reached the switch and gone through its latency.
    #[inline]
    pub fn send(&mut self, ready: u64, slot: u32) -> u64 {
        let packet = self.packets.get(slot);
        let (line, switch) = &mut self.cards[usize::from(packet.from)];
        packet.at = *switch;
        let wait_ps = line.busy_until_ps.saturating_sub(ready * 1000);
        packet.waited = Waited {
            card_ns: (wait_ps / 1000) as u32,
            ports_ns: 0,
        };
        self.hops += 1;
        nanos(line.send(ready * 1000, packet.wire_bytes)) + line.delay_ns
    }

    /// Takes a packet in at the node it has reached.
    #[inline]
    pub fn arrive(&mut self, slot: u32, events: &mut EventQueue) -> Arrival {
        let now = events.now();
        let packet = self.packets.get(slot);
        if packet.at < self.hosts {
            if packet.kind == 0 {
                self.data_arrived += u64::from(packet.data_bytes);
            }
            return Arrival::Host(packet.at as HostId);
        }
        let switch = (packet.at - self.hosts) as usize;
        let (first, count) = self.routes[switch * self.hosts as usize + usize::from(packet.to)];
        let choice = match (count, self.settings.routing) {
            (1, _) => 0,
            (0, _) => return self.no_way(slot),
            (_, Routing::Spray) => self.rng.below(u64::from(count)) as u32,
            (_, Routing::Flow) => spread(packet.flow, switch as u32) % count,
        };
        let port_index = self.ways[(first + choice) as usize];
        let port = &mut self.ports[port_index as usize];
        if port.waiting == 0 && port.line.busy_until_ps <= now * 1000 {
            self.start(port_index, slot, now * 1000, events);
            return Arrival::Forwarded;
        }
        if !self.enqueue(port_index, slot, now) {
            self.packets.release(slot);
            return Arrival::Dropped;
        }
        let port = &mut self.ports[port_index as usize];
        if !port.wake_pending {
            port.wake_pending = true;
            events.push(
                nanos(port.line.busy_until_ps),
                Event::PortFree { port: port_index },
            );
        }
        Arrival::Forwarded
    }

    #[cold]
    fn no_way(&mut self, slot: u32) -> Arrival {
        self.packets.release(slot);
        Arrival::Dropped
    }

    /// Puts a packet into its queue, if there is room.
    fn enqueue(&mut self, port_index: u32, slot: u32, now: u64) -> bool {
        let packet = self.packets.get(slot);
        let level = usize::from(packet.priority.min(7)) * usize::from(self.settings.levels) / 8;
        let size = u64::from(packet.wire_bytes);
        let port = &mut self.ports[port_index as usize];
        let switch = &mut self.switches[port.switch as usize];
        let queue = &mut port.queues[level];
        let fits = match self.settings.buffer {
            Buffer::Infinite => true,
            Buffer::PerPort { bytes } => port.stats.queued.bytes + size <= bytes,
            Buffer::Shared { bytes, alpha } => {
                let free = bytes.saturating_sub(switch.queued.bytes);
                size <= free && (queue.bytes + size) as f64 <= alpha * free as f64
            }
        };
        if !fits {
            port.stats.dropped[usize::from(packet.priority.min(7))] += 1;
            return false;
        }
        if packet.ecn == Ecn::Capable
            && self
                .settings
                .ecn_bytes
                .is_some_and(|limit| queue.bytes > limit)
        {
            packet.ecn = Ecn::Marked;
            port.stats.marked += 1;
        }
        packet.next = NO_PACKET;
        let waited = &mut packet.waited.ports_ns;
        *waited = waited.wrapping_sub(now as u32);
        if queue.head == NO_PACKET {
            queue.head = slot;
            port.waiting |= 1 << level;
        } else {
            self.packets.get(queue.tail).next = slot;
        }
        queue.tail = slot;
        queue.bytes += size;
        let bytes = port.stats.queued.bytes + size;
        port.stats.queued.change(now, bytes);
        let bytes = switch.queued.bytes + size;
        switch.queued.change(now, bytes);
        true
    }

    /// A port has sent its packet: the most urgent waiting one follows.
    #[inline]
    pub fn port_free(&mut self, port_index: u32, events: &mut EventQueue) {
        let now = events.now();
        let port = &mut self.ports[port_index as usize];
        port.wake_pending = false;
        debug_assert!(port.waiting != 0);
        let level = 7 - port.waiting.leading_zeros() as usize;
        let queue = &mut port.queues[level];
        let slot = queue.head;
        let packet = self.packets.get(slot);
        queue.head = packet.next;
        if queue.head == NO_PACKET {
            port.waiting &= !(1 << level);
        }
        let size = u64::from(packet.wire_bytes);
        queue.bytes -= size;
        let bytes = port.stats.queued.bytes - size;
        port.stats.queued.change(now, bytes);
        let switch = &mut self.switches[port.switch as usize];
        let bytes = switch.queued.bytes - size;
        switch.queued.change(now, bytes);
        let from = port.line.busy_until_ps;
        let waited = &mut packet.waited.ports_ns;
        *waited = waited.wrapping_add(nanos(from) as u32);
        self.start(port_index, slot, from, events);
        let port = &mut self.ports[port_index as usize];
        if port.waiting != 0 {
            port.wake_pending = true;
            events.push(
                nanos(port.line.busy_until_ps),
                Event::PortFree { port: port_index },
            );
        }
    }

    /// Starts to send a packet on an idle port.
    #[inline]
    fn start(&mut self, port_index: u32, slot: u32, from_ps: u64, events: &mut EventQueue) {
        let packet = self.packets.get(slot);
        let port = &mut self.ports[port_index as usize];
        debug_assert!(port.line.busy_until_ps <= from_ps);
        let end = port.line.send(from_ps, packet.wire_bytes);
        port.stats.sent[usize::from(packet.priority.min(7))] += u64::from(packet.wire_bytes);
        packet.at = port.to;
        if port.to < self.hosts {
            let downlink = &mut self.downlinks[port.to as usize];
            if downlink.outstanding > 0 {
                downlink.used_ps += end - from_ps;
            }
        }
        self.hops += 1;
        events.push(
            nanos(end) + port.line.delay_ns,
            Event::Arrive { packet: slot },
        );
    }

    /// A message for `host` begins to be outstanding.
    pub fn message_begins(&mut self, host: HostId, now: u64) {
        let downlink = &mut self.downlinks[usize::from(host)];
        if downlink.outstanding == 0 {
            downlink.since = now;
        }
        downlink.outstanding += 1;
    }

    /// A message for `host` is no longer outstanding.
    pub fn message_ends(&mut self, host: HostId, now: u64) {
        let downlink = &mut self.downlinks[usize::from(host)];
        downlink.outstanding -= 1;
        if downlink.outstanding == 0 {
            downlink.outstanding_ns += now.saturating_sub(downlink.since);
        }
    }

    /// Share of the time in which a host's downlink was idle although messages for it were outstanding, averaged over
    /// all hosts.
    #[must_use]
    pub fn wasted_bandwidth(&self, now: u64) -> f64 {
        let wasted: f64 = self
            .downlinks
            .iter()
            .map(|downlink| {
                let open = if downlink.outstanding > 0 {
                    now.saturating_sub(downlink.since)
                } else {
                    0
                };
                ((downlink.outstanding_ns + open) as f64 - downlink.used_ps as f64 / 1000.0)
                    .max(0.0)
            })
            .sum();
        wasted / (now.max(1) as f64 * self.downlinks.len() as f64)
    }

    /// Hosts.
    #[must_use]
    pub fn host_count(&self) -> usize {
        self.hosts as usize
    }

    /// Times that a packet was sent on a cable.
    #[must_use]
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// Bytes of message data that have reached hosts, those sent again not counted.
    #[must_use]
    pub fn data_arrived(&self) -> u64 {
        self.data_arrived
    }

    /// Every switch port with what it has done.
    pub fn ports(&self) -> impl Iterator<Item = (PortName, &PortStats)> {
        self.ports.iter().map(|port| {
            let host = (port.to < self.hosts).then_some(port.to as HostId);
            let name = PortName {
                switch: port.switch as usize,
                host,
                peer: host.is_none().then(|| (port.to - self.hosts) as usize),
            };
            (name, &port.stats)
        })
    }

    /// Bytes waiting in each switch, over time.
    pub fn switches(&self) -> impl Iterator<Item = &Occupancy> {
        self.switches.iter().map(|switch| &switch.queued)
    }
}

/// Mixes a flow and a switch into a choice.
fn spread(flow: u32, switch: u32) -> u32 {
    let mixed = (u64::from(flow) << 32 | u64::from(switch)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 33) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;

    const GBPS: u64 = 1_000_000_000;

    fn settings(buffer: Buffer) -> SwitchSettings {
        SwitchSettings {
            buffer,
            ecn_bytes: None,
            routing: Routing::Spray,
            levels: 8,
        }
    }

    struct Bench {
        network: Network<u32>,
        events: EventQueue,
    }

    impl Bench {
        fn new(topology: &Topology, settings: SwitchSettings) -> Self {
            Self {
                network: Network::new(topology, settings, 0, 1),
                events: EventQueue::new(),
            }
        }

        fn send(&mut self, ready: u64, mark: u32, packet: Packet) {
            let slot = self.network.packets.reserve();
            *self.network.packets.get(slot) = packet;
            *self.network.packets.body(slot) = mark;
            let at = self.network.send(ready, slot);
            self.events.push(at, Event::Arrive { packet: slot });
        }

        /// Runs dry; returns (time, mark) of every packet that reached a host.
        fn run(&mut self) -> Vec<(u64, u32)> {
            let mut arrived = Vec::new();
            while let Some((time, event)) = self.events.pop_until(u64::MAX) {
                match event {
                    Event::Arrive { packet } => {
                        if let Arrival::Host(_) = self.network.arrive(packet, &mut self.events) {
                            arrived.push((time, *self.network.packets.body(packet)));
                            self.network.packets.release(packet);
                        }
                    }
                    Event::PortFree { port } => self.network.port_free(port, &mut self.events),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(self.network.packets.in_use(), 0);
            arrived
        }
    }

    fn packet(from: HostId, to: HostId, bytes: u32, priority: u8) -> Packet {
        Packet {
            from,
            to,
            wire_bytes: bytes,
            priority,
            ..Packet::default()
        }
    }

    #[test]
    fn times_are_exact() {
        // 1538 bytes: 1230.4 ns at 10 Gb/s, 307.6 at 40; 250 ns in each of three switches.
        let topology = Topology::leaf_spine(crate::topology::LeafSpine {
            racks: 2,
            per_rack: 1,
            spines: 4,
            host_bps: 10 * GBPS,
            uplink_bps: 40 * GBPS,
            latency_ns: 250,
            delay_ns: 10,
        });
        let mut bench = Bench::new(&topology, settings(Buffer::Infinite));
        bench.send(100, 1, packet(0, 1, 1538, 0));
        // Each of the four transmissions ends at the next full nanosecond.
        let expected = 100 + (1231 + 10 + 250) + 2 * (308 + 10 + 250) + (1231 + 10);
        assert_eq!(bench.run(), [(expected, 1)]);
    }

    #[test]
    fn a_busy_link_loses_no_time() {
        // 1001 bytes at 25 Gb/s are 320.32 ns: back to back they must not be rounded up each time.
        let topology = Topology::single_switch(2, 25 * GBPS, 0, 0);
        let mut bench = Bench::new(&topology, settings(Buffer::Infinite));
        for n in 0..1000 {
            bench.send(0, n, packet(0, 1, 1001, 0));
        }
        let arrived = bench.run();
        assert!(arrived.iter().map(|a| a.1).eq(0..1000));
        // 320.32 × 1001, and at most one nanosecond for each of the two rounded arrivals.
        let last = arrived.last().unwrap().0;
        assert!((320_641..=320_642).contains(&last), "{last}");
    }

    #[test]
    fn urgent_first_and_in_order_within_a_level() {
        let topology = Topology::single_switch(4, 10 * GBPS, 0, 0);
        for seed in 0..50 {
            let mut rng = Rng::new(seed, 0);
            let mut bench = Bench::new(&topology, settings(Buffer::Infinite));
            let mut sent: Vec<(u32, u8)> = Vec::new();
            // One large packet holds the port while the others gather.
            bench.send(0, 0, packet(0, 3, 60_000, 0));
            for mark in 1..40 {
                let priority = rng.below(8) as u8;
                let from = 1 + rng.below(2) as HostId;
                sent.push((mark, priority));
                bench.send(
                    48_000 + u64::from(mark) * 1000,
                    mark,
                    packet(from, 3, 100, priority),
                );
            }
            let arrived: Vec<u32> = bench.run().iter().map(|a| a.1).collect();
            sent.sort_by_key(|&(mark, priority)| (std::cmp::Reverse(priority), mark));
            assert_eq!(arrived[0], 0);
            assert!(
                arrived[1..].iter().eq(sent.iter().map(|(mark, _)| mark)),
                "{seed}"
            );
        }
    }

    #[test]
    fn per_port_limit_is_exact() {
        let topology = Topology::single_switch(12, 10 * GBPS, 0, 0);
        let mut bench = Bench::new(&topology, settings(Buffer::PerPort { bytes: 5000 }));
        // Eleven at once: one goes out, five wait, five are dropped.
        for from in 0..11 {
            bench.send(0, u32::from(from), packet(from, 11, 1000, 0));
        }
        assert_eq!(bench.run().len(), 6);
        let (_, stats) = bench.network.ports().nth(11).unwrap();
        assert_eq!(stats.dropped[0], 5);
        assert_eq!(stats.queued.max(), 5000);
    }

    #[test]
    fn dynamic_threshold_leaves_room_for_others() {
        let topology = Topology::single_switch(40, 10 * GBPS, 0, 0);
        let buffer = Buffer::Shared {
            bytes: 20_000,
            alpha: 1.0,
        };
        let mut bench = Bench::new(&topology, settings(buffer));
        for from in 0..30 {
            bench.send(0, u32::from(from), packet(from, 39, 1000, 0));
        }
        // With alpha 1 a lone queue may take half of the pool.
        assert_eq!(bench.run().len(), 11);
        assert_eq!(bench.network.switches().next().unwrap().max(), 10_000);
    }

    #[test]
    fn marks_above_the_threshold() {
        let topology = Topology::single_switch(12, 10 * GBPS, 0, 0);
        let mut bench = Bench::new(
            &topology,
            SwitchSettings {
                ecn_bytes: Some(3000),
                ..settings(Buffer::Infinite)
            },
        );
        for from in 0..11 {
            let mut packet = packet(from, 11, 1000, 0);
            packet.ecn = if from == 10 {
                Ecn::NotCapable
            } else {
                Ecn::Capable
            };
            bench.send(0, u32::from(from), packet);
        }
        assert_eq!(bench.run().len(), 11);
        let (_, stats) = bench.network.ports().nth(11).unwrap();
        // The first goes out; four find at most 3000 bytes; five are marked; the last cannot be.
        assert_eq!(stats.marked, 5);
    }

    #[test]
    fn spraying_uses_all_ways_and_flows_keep_one() {
        let topology = Topology::leaf_spine(crate::topology::LeafSpine {
            racks: 2,
            per_rack: 2,
            spines: 4,
            host_bps: 10 * GBPS,
            uplink_bps: 40 * GBPS,
            latency_ns: 250,
            delay_ns: 0,
        });
        for (routing, ways) in [(Routing::Spray, 4), (Routing::Flow, 1)] {
            let mut bench = Bench::new(
                &topology,
                SwitchSettings {
                    routing,
                    ..settings(Buffer::Infinite)
                },
            );
            for n in 0..400 {
                bench.send(0, n, packet(0, 2, 1000, 0));
            }
            assert_eq!(bench.run().len(), 400);
            let used = bench
                .network
                .ports()
                .filter(|(name, stats)| {
                    name.switch == 0 && name.peer.is_some() && stats.sent[0] > 0
                })
                .count();
            assert_eq!(used, ways);
        }
    }

    #[test]
    fn occupancy_is_weighted_by_time() {
        let mut occupancy = Occupancy::default();
        occupancy.change(10, 100);
        occupancy.change(30, 400);
        occupancy.change(31, 0);
        assert!((occupancy.mean(100) - (20.0 * 100.0 + 400.0) / 100.0).abs() < 1e-9);
        assert_eq!(occupancy.max(), 400);
        assert!((100..=106).contains(&occupancy.p99(100)));
    }
}
