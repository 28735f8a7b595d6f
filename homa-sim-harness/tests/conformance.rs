//! What users rely on, over the simulated network.

#![allow(missing_docs)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use homa_proto::{
    BufferSource, Config, Endpoint, Instant, PeerAddr, RequestOptions, RpcId, SendErrorKind,
    Storage,
};
use homa_sim_harness::conformance::{Settings, TestEvent, Testbed};
use homa_sim_harness::events::{Event as NetworkEvent, EventQueue};
use homa_sim_harness::fault::{Faults, PacketFaults};
use homa_sim_harness::network::{Arrival, Network, Routing, SwitchSettings};
use homa_sim_harness::packet::{Packet, wire_bytes};
use homa_sim_harness::topology::{Buffer, Topology};

const HOSTS: usize = 10;
const BPS: u64 = 10_000_000_000;
const PORT: u16 = 4000;
const CHECK_EVERY: u64 = 256;

/// Memory of a message, counted while it is out.
struct Memory {
    bytes: Vec<u8>,
    out: Option<Rc<Cell<usize>>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(out) = &self.out {
            out.set(out.get() - self.bytes.len());
        }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

struct Source {
    out: Rc<Cell<usize>>,
    limit: usize,
}

impl BufferSource for Source {
    type Buffer = Memory;

    fn take(&mut self, len: usize) -> Option<Memory> {
        let out = self.out.get() + len;
        (out <= self.limit).then(|| {
            self.out.set(out);
            Memory {
                bytes: vec![0; len],
                out: Some(Rc::clone(&self.out)),
            }
        })
    }

    fn give_back(&mut self, _: Memory) {}

    fn max_len(&self) -> usize {
        self.limit
    }
}

type Node = Endpoint<'static, Memory, Source>;

/// Hosts at one switch, with the core in each.
struct Simulated {
    nodes: Vec<Option<Node>>,
    network: Network<Vec<u8>>,
    queue: EventQueue,
    faults: Faults,
    seeds: u64,
    drains: u64,
    packet: Vec<u8>,
    happened: VecDeque<(usize, TestEvent<Self>)>,
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], PORT))
}

impl Simulated {
    fn new() -> Self {
        let settings = SwitchSettings {
            buffer: Buffer::PerPort { bytes: 200_000 },
            ecn_bytes: None,
            routing: Routing::Spray,
            levels: 8,
        };
        let topology = Topology::single_switch(HOSTS, BPS, 500, 100);
        Self {
            nodes: Vec::new(),
            network: Network::new(&topology, settings, 1000, 1),
            queue: EventQueue::new(),
            faults: Faults::new(PacketFaults::default(), Vec::new(), HOSTS, 0),
            seeds: 0,
            drains: 0,
            packet: vec![0; 2048],
            happened: VecDeque::new(),
        }
    }

    fn endpoint(&mut self, settings: &Settings) -> Node {
        self.seeds += 1;
        let config = Config {
            link_bps: BPS,
            max_message: settings.max_message,
            max_batch: 1,
            timeout_ns: settings.timeout.as_nanos() as u64,
            ..Config::default()
        };
        let source = Source {
            out: Rc::default(),
            limit: settings.buffer_bytes,
        };
        let tables = Storage::boxed(settings.limits);
        let seed = u128::from(self.seeds) << 70;
        let mut endpoint = Endpoint::new(config, seed, tables, source).unwrap();
        endpoint.open_port(PORT).unwrap();
        endpoint
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.queue.now())
    }

    fn node(&mut self, node: usize) -> &mut Node {
        self.nodes[node].as_mut().expect("a node that lives")
    }

    /// All that a node has to send and to tell.
    #[allow(
        clippy::field_reassign_with_default,
        reason = "some fields are the network's own"
    )]
    fn drain(&mut self, host: usize) {
        let now = self.at();
        while let Some(node) = &mut self.nodes[host] {
            let Some(transmit) = node.poll_transmit(now, &mut self.packet) else {
                break;
            };
            let bytes = self.packet[..transmit.len].to_vec();
            let SocketAddr::V4(to) = transmit.to else {
                panic!("no such address");
            };
            let to = u16::from(to.ip().octets()[3]) - 1;
            if usize::from(to) >= self.nodes.len() {
                continue;
            }
            let mut packet = Packet::default();
            packet.from = host as u16;
            packet.to = to;
            packet.wire_bytes = wire_bytes(transmit.len as u32 + 28);
            packet.priority = transmit.priority;
            self.launch(packet, bytes);
        }
        while let Some(node) = &mut self.nodes[host] {
            let Some(event) = node.poll_event() else {
                break;
            };
            self.happened.push_back((host, event));
        }
        // It takes as long as the tables are large.
        self.drains += 1;
        if self.drains.is_multiple_of(CHECK_EVERY)
            && let Some(node) = &self.nodes[host]
        {
            node.check_invariants().unwrap();
        }
    }

    fn launch(&mut self, packet: Packet, bytes: Vec<u8>) {
        let slot = self.network.packets.reserve();
        *self.network.packets.get(slot) = packet;
        *self.network.packets.body(slot) = bytes;
        let arrives = self.network.send(self.queue.now(), slot);
        let fate = self.faults.fate(arrives, &packet);
        if let Some(late) = fate.copy_late_ns {
            let copy = self.network.packets.reserve();
            *self.network.packets.get(copy) = *self.network.packets.get(slot);
            *self.network.packets.body(copy) = self.network.packets.body(slot).clone();
            let event = NetworkEvent::Arrive { packet: copy };
            self.queue.push(arrives + late, event);
        }
        match fate.late_ns {
            Some(late) => {
                let event = NetworkEvent::Arrive { packet: slot };
                self.queue.push(arrives + late, event);
            }
            None => self.network.packets.release(slot),
        }
    }

    /// When the next node wants to be called, and which it is.
    fn next_timer(&mut self) -> Option<(u64, usize)> {
        let nodes = self.nodes.iter_mut().enumerate();
        nodes
            .filter_map(|(host, node)| Some((node.as_mut()?.poll_timeout()?.0.as_nanos(), host)))
            .min()
    }
}

impl Testbed for Simulated {
    type Message = Memory;

    fn open(&mut self, settings: &Settings) -> usize {
        assert!(self.nodes.len() < HOSTS - 1, "one address stays free");
        let endpoint = self.endpoint(settings);
        self.nodes.push(Some(endpoint));
        self.nodes.len() - 1
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
        self.happened.retain(|(host, _)| *host != node);
    }

    fn restart(&mut self, node: usize, settings: &Settings) {
        let endpoint = self.endpoint(settings);
        self.nodes[node] = Some(endpoint);
    }

    fn address(&mut self, node: usize, _from: usize) -> PeerAddr {
        address(node).into()
    }

    fn nobody(&mut self) -> PeerAddr {
        address(HOSTS - 1).into()
    }

    fn request(
        &mut self,
        node: usize,
        to: PeerAddr,
        bytes: Vec<u8>,
        cookie: u64,
        timeout: Option<Duration>,
    ) -> Result<RpcId, SendErrorKind> {
        let now = self.at();
        let options = RequestOptions {
            cookie,
            deadline: timeout.map(|timeout| now.after(timeout.as_nanos() as u64)),
            ..RequestOptions::default()
        };
        let message = Memory { bytes, out: None };
        let result = self.node(node).send_request(now, to, message, options);
        self.drain(node);
        result.map_err(|error| error.kind)
    }

    fn reply(&mut self, node: usize, rpc: RpcId, bytes: Vec<u8>) -> Result<(), SendErrorKind> {
        let now = self.at();
        let message = Memory { bytes, out: None };
        let result = self.node(node).send_response(now, rpc, message);
        self.drain(node);
        result.map_err(|error| error.kind)
    }

    fn cancel(&mut self, node: usize, rpc: RpcId) -> bool {
        let now = self.at();
        let was = self.node(node).cancel(now, rpc).is_some();
        self.drain(node);
        was
    }

    fn live_rpcs(&self, node: usize) -> usize {
        self.nodes[node].as_ref().map_or(0, Node::live_rpcs)
    }

    fn next(&mut self, end: Duration) -> Option<(usize, TestEvent<Self>)> {
        let end = end.as_nanos() as u64;
        loop {
            if let Some(event) = self.happened.pop_front() {
                return Some(event);
            }
            let timer = self.next_timer();
            let due = timer.map_or(u64::MAX, |(at, _)| at.max(self.queue.now()));
            if let Some((_, event)) = self.queue.pop_until(end.min(due)) {
                match event {
                    NetworkEvent::Arrive { packet } => {
                        let Arrival::Host(host) = self.network.arrive(packet, &mut self.queue)
                        else {
                            continue;
                        };
                        let (host, now) = (usize::from(host), self.at());
                        let from = usize::from(self.network.packets.get(packet).from);
                        let bytes = std::mem::take(self.network.packets.body(packet));
                        self.network.packets.release(packet);
                        if let Some(node) = &mut self.nodes[host] {
                            // What is dropped is counted.
                            let _ = node.handle_packet(now, address(from), None, &bytes);
                            self.drain(host);
                        }
                    }
                    NetworkEvent::PortFree { port } => {
                        self.network.port_free(port, &mut self.queue);
                    }
                    // Only there to have time go on.
                    _ => {}
                }
                continue;
            }
            // Time goes on to what is due, by an event of no other meaning.
            let until = end.min(due).max(self.queue.now());
            self.queue.push(until, NetworkEvent::Wake { token: 0 });
            let _ = self.queue.pop_until(until);
            match timer {
                Some((_, host)) if due <= end => {
                    let now = self.at();
                    self.node(host).handle_timeout(now);
                    self.drain(host);
                }
                _ => return None,
            }
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.queue.now())
    }

    fn impair(&mut self, faults: PacketFaults) {
        self.seeds += 1;
        self.faults = Faults::new(faults, Vec::new(), HOSTS, self.seeds);
    }
}

homa_sim_harness::conformance!(Simulated::new());
