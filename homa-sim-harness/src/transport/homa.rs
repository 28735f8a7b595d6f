//! Homa itself: one `homa_proto::Endpoint` per host, never a model of it.
//!
//! Packets carry the real header bytes. Message data are all zero and are not carried, unless the run checks contents: then
//! every byte of every message is what its id and offset make it, and is compared at its destination.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use homa_proto::wire::Repr;
use homa_proto::{
    BufferSource, Carrier, Config, Endpoint, Event, Instant, Limits, PeerAddr, RequestOptions,
    RpcError, RpcId, Storage, TimeoutReason,
};

use super::{Delivery, Message, MessageId, Outcome, Side, Transport};
use crate::capture;
use crate::packet::{Ecn, HostId, Packet, wire_bytes};
use crate::rng::Rng;

/// The Homa port of every host.
const PORT: u16 = 100;
/// Longest Homa header.
const MAX_HEADER: usize = 80;
const DATA_HEADER: usize = 56;
const DATA: u8 = 0x10;
/// The UDP port of the first host of an address.
const UDP_PORT: u16 = 4000;
/// Most bytes that the core writes at once.
const BATCH_BYTES: usize = 65_536;

/// How Homa is set up in the hosts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// As for each endpoint; the carrier is native IP.
    pub config: Config,
    /// Sizes of each endpoint's tables.
    pub limits: Limits,
    /// Most bytes of incoming messages that a host has room for.
    pub buffer_bytes: usize,
    /// Carry and check the contents of messages.
    pub contents: bool,
    /// Let an endpoint check all its books after every so many things that happen; 0: never.
    pub check_every: u32,
    /// How hosts and their addresses differ from the plainest.
    pub variety: Variety,
}

/// What most networks do not have, and some do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variety {
    /// Ports that each endpoint opens.
    pub ports: u16,
    /// Ports that are asked; those beyond `ports` are closed.
    pub asked_ports: u16,
    /// Hosts that share an IP address, told apart by their UDP ports. Where more than one does, the carrier is UDP.
    pub per_address: u16,
    /// IPv6.
    pub ipv6: bool,
    /// The largest IP packet of each host, where that is not what the settings say.
    pub mtus: Vec<u16>,
    /// Endpoints do not know how fast their links are.
    pub hide_link_speed: bool,
}

impl Default for Variety {
    fn default() -> Self {
        Self {
            ports: 1,
            asked_ports: 1,
            per_address: 1,
            ipv6: false,
            mtus: Vec::new(),
            hide_link_speed: false,
        }
    }
}

impl Variety {
    /// A host's address.
    fn socket(&self, host: HostId) -> SocketAddr {
        let v4 = capture::address(host / self.per_address);
        let ip = match self.ipv6 {
            true => IpAddr::V6(Ipv6Addr::from_bits(
                0xfd00 << 112 | u128::from(v4.to_bits()),
            )),
            false => IpAddr::V4(v4),
        };
        let port = match self.per_address {
            1 => 0,
            per_address => UDP_PORT + host % per_address,
        };
        SocketAddr::new(ip, port)
    }

    /// The host of an address.
    fn host_of(&self, socket: SocketAddr) -> Option<HostId> {
        let v4 = match socket.ip() {
            IpAddr::V4(v4) => v4,
            IpAddr::V6(v6) => Ipv4Addr::from_bits(v6.to_bits() as u32),
        };
        let first = capture::host_of(v4)? * self.per_address;
        Some(first + socket.port().saturating_sub(UDP_PORT))
    }

    /// Bytes of the headers before Homa's.
    fn header_bytes(&self) -> u32 {
        let ip = if self.ipv6 { 40 } else { 20 };
        let udp = if self.per_address > 1 { 8 } else { 0 };
        ip + udp
    }

    /// The port that a message goes from, and the one that it goes to.
    fn ports(&self, id: MessageId) -> (u16, u16) {
        let id = id as u16;
        let from = id % self.ports;
        (PORT + from, PORT + (id / self.ports) % self.asked_ports)
    }
}

/// What is left in the scratch memory of a batch of packets.
#[derive(Clone, Copy)]
struct Rest {
    transmit: homa_proto::Transmit,
    at: usize,
}

/// An outgoing message.
struct Outgoing {
    data: Rc<Vec<u8>>,
    len: usize,
}

impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

/// A client's host, and the id of one of its RPCs in the packets that it sends.
type WireId = (HostId, u64);

/// Memory for an incoming message; none where contents are not carried, as the core writes nothing beyond its end.
struct Incoming {
    data: Vec<u8>,
    len: usize,
}

impl AsRef<[u8]> for Incoming {
    fn as_ref(&self) -> &[u8] {
        self.data.get(..self.len).unwrap_or(&[])
    }
}

impl AsMut<[u8]> for Incoming {
    fn as_mut(&mut self) -> &mut [u8] {
        self.data.get_mut(..self.len).unwrap_or(&mut [])
    }
}

/// Buffers by power of two, reused. The last one given back is the first taken, so that little memory is ever touched.
struct Pool {
    /// Shared by all hosts.
    free: Rc<RefCell<Vec<Vec<Vec<u8>>>>>,
    contents: bool,
    out: usize,
    limit: usize,
}

impl Pool {
    fn size(len: usize) -> usize {
        len.next_power_of_two().max(64)
    }
}

impl BufferSource for Pool {
    type Buffer = Incoming;

    fn take(&mut self, len: usize) -> Option<Incoming> {
        let size = Self::size(len);
        if self.out + size > self.limit {
            return None;
        }
        self.out += size;
        if !self.contents {
            let data = Vec::new();
            return Some(Incoming { data, len });
        }
        let class = size.trailing_zeros() as usize;
        let free = self.free.borrow_mut()[class].pop();
        let data = free.unwrap_or_else(|| vec![0; size]);
        Some(Incoming { data, len })
    }

    fn give_back(&mut self, buffer: Incoming) {
        let size = Self::size(buffer.len);
        self.out -= size;
        if self.contents {
            self.free.borrow_mut()[size.trailing_zeros() as usize].push(buffer.data);
        }
    }

    fn max_len(&self) -> usize {
        // The power of two above it has to fit as well.
        1 << (self.limit.max(2).ilog2())
    }
}

/// What a Homa packet carries.
#[derive(Clone, Debug)]
pub struct Body {
    header: [u8; MAX_HEADER],
    header_len: u8,
    payload_len: u16,
    /// Empty where contents are not carried.
    payload: Vec<u8>,
}

impl Default for Body {
    fn default() -> Self {
        Self {
            header: [0; MAX_HEADER],
            header_len: 0,
            payload_len: 0,
            payload: Vec::new(),
        }
    }
}

struct Host {
    endpoint: Endpoint<'static, Outgoing, Pool>,
    /// Counts restarts.
    life: u64,
    /// Requests that found every slot taken.
    waiting: VecDeque<MessageId>,
}

/// Where a message is known.
#[derive(Clone, Copy, Default)]
struct Known {
    client: Option<RpcId>,
    server: Option<RpcId>,
    wire_id: u64,
    to: HostId,
    from: HostId,
    bytes: u32,
    reply_bytes: Option<u32>,
    deadline: Option<u64>,
}

/// Homa in every host.
pub struct Homa {
    settings: Settings,
    /// Link speed of each host.
    bps: Vec<u64>,
    seed: u64,
    hosts: Vec<Host>,
    known: Vec<Known>,
    /// From the client's host and the id on the wire to the message.
    by_wire_id: HashMap<WireId, MessageId, Mixer>,
    zeros: Rc<Vec<u8>>,
    free: Rc<RefCell<Vec<Vec<Vec<u8>>>>>,
    deliveries: VecDeque<Delivery>,
    scratch: Vec<u8>,
    /// Of the host that is asked just now.
    rest: Option<Rest>,
    inward: Vec<u8>,
    /// What was found wrong, and whether damaged packets excuse it.
    violation: Option<(bool, String)>,
    retired: Vec<(&'static str, u64)>,
    since_check: u32,
}

#[derive(Clone, Default)]
struct Mixer(u64);

impl std::hash::BuildHasher for Mixer {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl std::hash::Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

/// The byte at `offset` of a message's contents.
fn content(id: MessageId, reply: bool, offset: usize) -> u8 {
    let word = (u64::from(id) << 33 | u64::from(reply) << 32 | (offset as u64 / 8))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (8 * (offset % 8))) as u8 ^ (word >> 56) as u8
}

impl Homa {
    /// Homa in one host for each link speed in `bps`.
    ///
    /// # Errors
    /// When the core refuses the settings.
    pub fn new(settings: Settings, bps: Vec<u64>, seed: u64) -> Result<Self, String> {
        let longest = if settings.contents {
            0
        } else {
            settings.config.max_message as usize
        };
        let mut homa = Self {
            seed,
            hosts: Vec::new(),
            known: Vec::new(),
            by_wire_id: HashMap::default(),
            zeros: Rc::new(vec![0; longest]),
            free: Rc::new(RefCell::new(vec![Vec::new(); 64])),
            deliveries: VecDeque::new(),
            scratch: vec![0; BATCH_BYTES],
            rest: None,
            inward: vec![0; BATCH_BYTES],
            violation: None,
            retired: Vec::new(),
            since_check: 0,
            settings,
            bps,
        };
        for host in 0..homa.bps.len() {
            let new = homa.new_host(host, 0)?;
            homa.hosts.push(new);
        }
        Ok(homa)
    }

    fn new_host(&self, host: usize, life: u64) -> Result<Host, String> {
        let source = Pool {
            free: Rc::clone(&self.free),
            contents: self.settings.contents,
            out: 0,
            limit: self.settings.buffer_bytes,
        };
        let mut rng = Rng::new(
            self.seed,
            0x686f_6d61_0000_0000 + (life << 16) + host as u64,
        );
        let seed = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        let variety = &self.settings.variety;
        let mut config = self.settings.config.clone();
        // Hosts of a simulation have memory for all that waits.
        (config.max_queued, config.max_peer_queued) = (u64::MAX, u64::MAX);
        config.carrier = match variety.per_address {
            1 => Carrier::NativeIp,
            _ => Carrier::Udp,
        };
        config.link_bps = match variety.hide_link_speed {
            true => 0,
            false => self.bps[host],
        };
        if let Some(&mtu) = variety.mtus.get(host) {
            config.mtu = mtu;
        }
        let mut endpoint =
            Endpoint::new(config, seed, Storage::boxed(self.settings.limits), source)
                .map_err(|error| format!("homa: {error}"))?;
        for port in 0..variety.ports {
            endpoint
                .open_port(PORT + port)
                .map_err(|error| format!("homa: {error}"))?;
        }
        Ok(Host {
            endpoint,
            life,
            waiting: VecDeque::new(),
        })
    }

    /// The endpoint of a host.
    #[must_use]
    pub fn live_rpcs(&self, host: HostId) -> usize {
        self.hosts[usize::from(host)].endpoint.live_rpcs()
    }

    /// What a check has found wrong, if anything. Where packets are `damaged` unseen, contents do not count.
    pub fn take_violation(&mut self, damaged: bool) -> Option<String> {
        let (excusable, what) = self.violation.take()?;
        (!(excusable && damaged)).then_some(what)
    }

    fn outgoing(&self, id: MessageId, reply: bool, bytes: u32) -> Outgoing {
        let len = bytes as usize;
        let data = if self.settings.contents {
            Rc::new((0..len).map(|offset| content(id, reply, offset)).collect())
        } else {
            Rc::clone(&self.zeros)
        };
        Outgoing { data, len }
    }

    fn request(&mut self, now: u64, id: MessageId) {
        let known = self.known[id as usize];
        let longest = self.settings.config.max_message;
        if known.bytes.max(known.reply_bytes.unwrap_or(1)) > longest {
            self.deliveries.push_back(Delivery {
                message: id,
                outcome: Outcome::Failed("too long"),
            });
            return;
        }
        let message = self.outgoing(id, false, known.bytes);
        let host = &mut self.hosts[usize::from(known.from)];
        let variety = &self.settings.variety;
        let (local_port, port) = variety.ports(id);
        let to = PeerAddr::new(variety.socket(known.to), port);
        let options = RequestOptions {
            cookie: u64::from(id),
            deadline: known.deadline.map(Instant::from_nanos),
            local_port,
        };
        match host
            .endpoint
            .send_request(Instant::from_nanos(now), to, message, options)
        {
            Ok(rpc) => {
                let wire_id = host.endpoint.wire_id(rpc).unwrap_or(0);
                let known = &mut self.known[id as usize];
                known.client = Some(rpc);
                known.wire_id = wire_id;
                self.by_wire_id.insert((known.from, wire_id), id);
            }
            Err(error) if error.kind.is_full() => host.waiting.push_back(id),
            Err(_) => self.deliveries.push_back(Delivery {
                message: id,
                outcome: Outcome::Failed("refused"),
            }),
        }
    }

    fn forget(&mut self, id: MessageId) {
        let known = &mut self.known[id as usize];
        known.client = None;
        // Where contents are checked ids are not used again, and late copies of requests have to be recognized.
        if !self.settings.contents {
            self.by_wire_id.remove(&(known.from, known.wire_id));
            known.server = None;
        }
    }

    /// Checks all that can be checked of an endpoint after something has happened to it.
    fn inspect(&mut self, host: HostId) {
        if self.settings.check_every == 0 || self.violation.is_some() {
            return;
        }
        self.since_check += 1;
        if self.since_check < self.settings.check_every {
            return;
        }
        self.since_check = 0;
        let endpoint = &self.hosts[usize::from(host)].endpoint;
        let limits = &self.settings.limits;
        let wrong = match endpoint.check_invariants() {
            Err(drifted) => Some(drifted),
            Ok(()) if endpoint.live_rpcs() > limits.rpcs => Some("more RPCs than slots"),
            Ok(()) if endpoint.known_peers() > limits.peers => Some("more peers than slots"),
            Ok(()) => None,
        };
        if let Some(wrong) = wrong {
            self.violation = Some((false, format!("host {host}: {wrong}")));
        }
    }

    /// Whether a server has had to forget a request that had ended sooner than it should.
    #[must_use]
    pub fn has_forgotten_early(&self) -> bool {
        self.counters()
            .iter()
            .any(|&(name, value)| name == "ended_window_shrunk" && value > 0)
    }

    /// What is left in the endpoints, if anything is.
    #[must_use]
    pub fn undrained(&mut self) -> Option<String> {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let live = host.endpoint.live_rpcs();
            if live > 0 {
                return Some(format!(
                    "host {number} still has {live} RPCs after the drain"
                ));
            }
            if host.endpoint.total_incoming() > 0 {
                return Some(format!(
                    "host {number} still has bytes granted after the drain"
                ));
            }
            let out = host.endpoint.buffers().out;
            if out > 0 {
                return Some(format!(
                    "host {number} still has {out} bytes of buffers out"
                ));
            }
            if let Some((at, reason)) = host.endpoint.poll_timeout() {
                return Some(format!(
                    "host {number} is idle, yet wants to be called at {} for {reason:?}",
                    at.as_nanos()
                ));
            }
        }
        None
    }

    fn check(&mut self, id: MessageId, reply: bool, bytes: u32, message: &Incoming) {
        let data = message.as_ref();
        if message.len != bytes as usize {
            self.violation = Some((
                true,
                format!("message {id}: {} bytes arrived of {bytes}", message.len),
            ));
        } else if self.settings.contents
            && let Some(offset) =
                (0..data.len()).find(|&offset| data[offset] != content(id, reply, offset))
        {
            self.violation = Some((
                true,
                format!("message {id}: wrong byte at offset {offset} of {bytes}"),
            ));
        }
    }

    /// Takes the events of a host's endpoint after a packet with the given id, or something else, has come in. A request
    /// becomes whole with the packet that is being handled.
    fn events(&mut self, now: u64, host: HostId, packet: Option<WireId>) {
        let at = Instant::from_nanos(now);
        while let Some(event) = self.hosts[usize::from(host)].endpoint.poll_event() {
            match event {
                Event::Request {
                    rpc, message, port, ..
                } => {
                    let found = packet.and_then(|id| self.by_wire_id.get(&id).copied());
                    if let Some(id) = found {
                        let known = self.known[id as usize];
                        self.check(id, false, known.bytes, &message);
                        if port != self.settings.variety.ports(id).1 {
                            let what = format!("message {id} arrived at port {port}");
                            self.violation = Some((true, what));
                        }
                        self.deliveries.push_back(Delivery {
                            message: id,
                            outcome: Outcome::Request,
                        });
                        if known.reply_bytes.is_some() {
                            self.known[id as usize].server = Some(rpc);
                        } else {
                            // One-way: both ends forget the RPC, and nothing more goes over the network.
                            self.hosts[usize::from(host)].endpoint.cancel(at, rpc);
                            if let Some(client) = known.client {
                                let sender = &mut self.hosts[usize::from(known.from)];
                                sender.endpoint.cancel(at, client);
                            }
                            self.forget(id);
                        }
                    } else {
                        // Its client has failed or restarted since.
                        self.hosts[usize::from(host)].endpoint.cancel(at, rpc);
                    }
                    self.hosts[usize::from(host)].endpoint.recycle(at, message);
                }
                Event::Response {
                    cookie, message, ..
                } => {
                    let id = cookie as MessageId;
                    let bytes = self.known[id as usize].reply_bytes.unwrap_or(0);
                    self.check(id, true, bytes, &message);
                    self.hosts[usize::from(host)].endpoint.recycle(at, message);
                    self.forget(id);
                    self.deliveries.push_back(Delivery {
                        message: id,
                        outcome: Outcome::Reply,
                    });
                }
                Event::Failed { cookie, error, .. } => {
                    let id = cookie as MessageId;
                    self.forget(id);
                    self.deliveries.push_back(Delivery {
                        message: id,
                        outcome: Outcome::Failed(reason(error)),
                    });
                }
                _ => {}
            }
        }
        while let Some(id) = self.hosts[usize::from(host)].waiting.pop_front() {
            let before = self.hosts[usize::from(host)].waiting.len();
            self.request(now, id);
            if self.hosts[usize::from(host)].waiting.len() > before {
                // Still full; it went to the back, but belongs to the front.
                let waiting = &mut self.hosts[usize::from(host)].waiting;
                waiting.rotate_right(1);
                break;
            }
        }
    }
}

fn reason(error: RpcError) -> &'static str {
    match error {
        RpcError::NeverHeard => "never heard from the peer",
        RpcError::WentSilent => "the peer went silent",
        RpcError::DeadlineExceeded => "deadline exceeded",
        RpcError::TooLongForBuffers => "too long for the buffers",
        _ => "failed",
    }
}

impl Transport for Homa {
    type Body = Body;

    fn name(&self) -> &'static str {
        "homa"
    }

    fn nic_ahead_ns(&self) -> u64 {
        u64::MAX
    }

    fn sprays(&self) -> bool {
        true
    }

    fn send(&mut self, now: u64, id: MessageId, message: &Message) {
        if self.known.len() <= id as usize {
            self.known.resize(id as usize + 1, Known::default());
        }
        self.known[id as usize] = Known {
            from: message.from,
            to: message.to,
            bytes: message.bytes,
            reply_bytes: message.reply_bytes,
            deadline: message.deadline,
            ..Known::default()
        };
        let host = &mut self.hosts[usize::from(message.from)];
        if host.waiting.is_empty() {
            self.request(now, id);
        } else {
            host.waiting.push_back(id);
        }
        self.inspect(message.from);
    }

    fn reply(&mut self, now: u64, id: MessageId, message: &Message) {
        let bytes = message.reply_bytes.unwrap_or(1);
        let Some(rpc) = self.known[id as usize].server else {
            return;
        };
        let data = self.outgoing(id, true, bytes);
        // It fails where the client has gone; then nobody waits for it.
        let _ = self.hosts[usize::from(message.to)].endpoint.send_response(
            Instant::from_nanos(now),
            rpc,
            data,
        );
        self.inspect(message.to);
    }

    fn cancel(&mut self, now: u64, id: MessageId, message: &Message, side: Side) {
        let at = Instant::from_nanos(now);
        let known = self.known[id as usize];
        let (host, rpc) = match side {
            Side::Client => (message.from, known.client),
            Side::Server => (message.to, known.server),
        };
        let state = &mut self.hosts[usize::from(host)];
        let place = state.waiting.iter().position(|&waiting| waiting == id);
        let had_ended = match (side, place) {
            (Side::Client, Some(place)) => state.waiting.remove(place).is_none(),
            _ => rpc.is_none_or(|rpc| state.endpoint.cancel(at, rpc).is_none()),
        };
        if side == Side::Client && !had_ended {
            self.forget(id);
            self.deliveries.push_back(Delivery {
                message: id,
                outcome: Outcome::Cancelled,
            });
        }
        self.inspect(host);
        self.events(now, host, None);
    }

    fn receive(&mut self, now: u64, host: HostId, packet: &Packet, body: &mut Body) {
        let header = usize::from(body.header_len);
        let len = header + usize::from(body.payload_len);
        self.inward[..header].copy_from_slice(&body.header[..header]);
        if self.settings.contents {
            self.inward[header..len].copy_from_slice(&body.payload);
        }
        let state = &mut self.hosts[usize::from(host)];
        let id = u64::from_be_bytes(std::array::from_fn(|byte| body.header[20 + byte]));
        // A packet that is not taken is counted by the core.
        let _ = state.endpoint.handle_packet(
            Instant::from_nanos(now),
            self.settings.variety.socket(packet.from),
            None,
            &self.inward[..len],
        );
        self.inspect(host);
        self.events(now, host, Some((packet.from, id)));
        self.inspect(host);
    }

    fn timer(&mut self, now: u64, host: HostId) {
        let endpoint = &mut self.hosts[usize::from(host)].endpoint;
        if let Some((at, reason)) = endpoint.poll_timeout()
            && at.as_nanos() <= now
            && reason != TimeoutReason::Pacer
        {
            endpoint.handle_timeout(Instant::from_nanos(now));
            if let Some((at, reason)) = endpoint.poll_timeout()
                && at.as_nanos() <= now
                && reason != TimeoutReason::MoreWork
                && self.settings.check_every > 0
            {
                self.violation = Some((
                    false,
                    format!(
                        "host {host}: {reason:?} is due at {} after the time-out at {now}",
                        at.as_nanos()
                    ),
                ));
            }
            self.inspect(host);
            self.events(now, host, None);
            self.inspect(host);
        }
    }

    fn next_timer(&mut self, host: HostId) -> Option<u64> {
        let endpoint = &mut self.hosts[usize::from(host)].endpoint;
        endpoint.poll_timeout().map(|(at, _)| at.as_nanos())
    }

    fn transmit(&mut self, now: u64, host: HostId, body: &mut Body) -> Option<Packet> {
        let Rest { transmit, at } = match self.rest.take() {
            Some(rest) => rest,
            None => {
                let endpoint = &mut self.hosts[usize::from(host)].endpoint;
                let transmit = endpoint.poll_transmit(Instant::from_nanos(now), &mut self.scratch);
                self.inspect(host);
                let transmit = transmit?;
                Rest { transmit, at: 0 }
            }
        };
        // The host is asked until nothing is left, before any other is.
        let longest = transmit.segment_size.unwrap_or(transmit.len);
        let end = (at + longest).min(transmit.len);
        if end < transmit.len {
            self.rest = Some(Rest { transmit, at: end });
        }
        let bytes = &self.scratch[at..end];
        let len = bytes.len();
        let is_data = bytes[11] == DATA;
        let header = if is_data { DATA_HEADER } else { len };
        body.header[..header].copy_from_slice(&bytes[..header]);
        body.header_len = header as u8;
        body.payload_len = (len - header) as u16;
        body.payload.clear();
        if self.settings.contents {
            body.payload.extend_from_slice(&bytes[header..]);
        }
        let variety = &self.settings.variety;
        let to = variety.host_of(transmit.to)?;
        Some(Packet {
            from: host,
            to,
            wire_bytes: wire_bytes(variety.header_bytes() + len as u32),
            data_bytes: (len - header) as u32,
            priority: transmit.priority,
            ecn: Ecn::NotCapable,
            kind: if is_data && bytes[48] != 0 {
                RETRANSMIT
            } else {
                bytes[11] - DATA
            },
            flow: u32::from(host) << 16 | u32::from(to),
            ..Packet::default()
        })
    }

    fn delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    fn crash(&mut self, _now: u64, host: HostId) {
        let state = &self.hosts[usize::from(host)];
        for (at, (name, value)) in state.endpoint.stats().iter().enumerate() {
            match self.retired.get_mut(at) {
                Some(total) => total.1 += value,
                None => self.retired.push((name, value)),
            }
        }
        self.by_wire_id.retain(|id, _| id.0 != host);
        // The settings were accepted when the first endpoint was made of them.
        if let Ok(new) = self.new_host(usize::from(host), state.life + 1) {
            self.hosts[usize::from(host)] = new;
        }
    }

    fn corrupt(&mut self, body: &mut Body, rng: &mut Rng) {
        let bit = rng.below(u64::from(body.header_len) * 8) as usize;
        body.header[bit / 8] ^= 1 << (bit % 8);
    }

    fn encode(&self, _packet: &Packet, body: &Body, out: &mut Vec<u8>) -> u8 {
        out.extend_from_slice(&body.header[..usize::from(body.header_len)]);
        if self.settings.contents {
            out.extend_from_slice(&body.payload);
        } else {
            out.resize(out.len() + usize::from(body.payload_len), 0);
        }
        146
    }

    fn describe(&self, _packet: &Packet, body: &Body) -> String {
        let header = &body.header[..usize::from(body.header_len)];
        match Repr::parse(header, self.settings.config.max_message) {
            Ok(repr) => format!("{repr:?} + {} bytes", body.payload_len),
            Err(error) => format!("malformed: {error:?}"),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = self.retired.clone();
        for host in &self.hosts {
            for (at, (name, value)) in host.endpoint.stats().iter().enumerate() {
                match sums.get_mut(at) {
                    Some(total) => total.1 += value,
                    None => sums.push((name, value)),
                }
            }
        }
        sums.retain(|counter| counter.1 > 0);
        sums
    }
}

/// Kind of a DATA packet that is sent again; the others are numbered by their type, DATA as 0.
pub const RETRANSMIT: u8 = 9;
