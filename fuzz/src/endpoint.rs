//! One endpoint among peers and callers that do anything.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use homa_proto::wire::{AckEntry, Acks, Common, DataHeader, Repr};
use homa_proto::{
    BufferSource, Carrier, Config, Endpoint, Event, FixedBuffer, FixedBuffers, FixedStorage,
    HeapBuffer, HeapBuffers, Instant, PeerAddr, RequestOptions, RpcId, SendErrorKind, Storage,
    TimeoutReason,
};

use crate::input::{BYTES, Input, message, pick};

const PORTS: u16 = 2;
const MAX_MESSAGE: u32 = 6_000;
/// Time goes no further inside.
const LAST: Instant = Instant::from_nanos(u64::MAX - 1);
/// Nothing needs longer to end once all others are silent.
const LONGEST_NS: u64 = 120_000_000_000;

type Tables<B> = FixedStorage<&'static [u8], B, 8, 4, 8>;

/// Tables, and room for what is sent.
type Room = (Box<Tables<HeapBuffer>>, Box<[u8; 65_536]>);

thread_local! {
    // Made once: most of a run's time would go into making them anew.
    static TABLES: RefCell<Room> =
        RefCell::new((Box::new(Tables::new()), Box::new([0; 65_536])));
}

struct World<'a, S: BufferSource> {
    node: Endpoint<'a, &'static [u8], S>,
    packets: &'a mut [u8],
    now: Instant,
    /// The endpoint has been told of no later time.
    latest: Instant,
    /// RPCs that the endpoint has spoken of: with whom, and how the other would speak of them.
    known: Vec<(SocketAddr, Common)>,
    /// In service here.
    asked: Vec<RpcId>,
    /// Answered here.
    answering: Vec<RpcId>,
    /// Requests from here.
    asking: Vec<RpcId>,
    ended: Vec<RpcId>,
    kept: Vec<S::Buffer>,
    more_work: u32,
}

/// Does to an endpoint what the bytes say. Its books must be right after each step, what it sends
/// must be sound, and in the end, when all others have fallen silent, nothing may be left over.
pub fn endpoint(data: &[u8]) {
    TABLES.with_borrow_mut(|(tables, packets)| {
        let mut input = Input::new(data);
        let (config, setup) = config(&mut input);
        match setup.memory {
            // Chunks of two sizes, a few of each.
            memory if memory % 4 == 1 => {
                let (mut small, mut large) = ([0; 4 * 700], [0; 2 * MAX_MESSAGE as usize]);
                let mut slots = [const { None }; 6];
                let (few, one) = (usize::from(memory / 4 % 5), usize::from(memory / 32 % 3));
                let pools = [
                    (&mut small[..few * 700], 700),
                    (
                        &mut large[..one * MAX_MESSAGE as usize],
                        MAX_MESSAGE as usize,
                    ),
                ];
                let source = FixedBuffers::new(pools, &mut slots).expect("room for each");
                let mut tables = Tables::<FixedBuffer<'_>>::new();
                run(config, setup, &mut input, tables.storage(), source, packets);
            }
            // None, or one, or many of the longest messages.
            memory => {
                let source = HeapBuffers::new(usize::from(memory) * 128);
                run(config, setup, &mut input, tables.storage(), source, packets);
            }
        }
    });
}

fn run<'a, S: BufferSource<Buffer: std::fmt::Debug>>(
    config: Config,
    setup: Setup,
    input: &mut Input<'_>,
    tables: Storage<'a, &'static [u8], S::Buffer>,
    source: S,
    packets: &'a mut [u8; 65_536],
) {
    let Some(mut world) = World::new(config, setup, tables, source, packets) else {
        return;
    };
    while !input.is_empty() {
        world.step(input);
        world.check();
    }
    world.wind_up();
}

fn address(which: u8) -> SocketAddr {
    let ip = match which % 8 {
        0..=3 => IpAddr::V4(Ipv4Addr::new(10, 0, 0, which % 8 + 1)),
        4 => IpAddr::V6(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped()),
        5 => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
        6 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::BROADCAST),
    };
    SocketAddr::new(ip, u16::from(which / 64))
}

/// Numbers near the edges are more likely to matter than others.
fn edge(number: u16) -> u32 {
    let rest = u32::from(number / 8);
    match number % 8 {
        0 => rest % 4,
        1 => MAX_MESSAGE - 2 + rest % 4,
        2 => u32::MAX - rest % 2,
        3 => (1 << 31) - 1 + rest % 3,
        _ => rest * 3 % (MAX_MESSAGE + 1000),
    }
}

/// The length of a message that the caller wants to send: at most one byte too long.
fn length(number: u16) -> usize {
    edge(number).min(MAX_MESSAGE + 1) as usize
}

/// What an input says at its beginning, besides the settings.
struct Setup {
    seed: u8,
    start: u64,
    memory: u8,
}

fn config(input: &mut Input<'_>) -> (Config, Setup) {
    let (modes, seed) = (input.u8(), input.u8());
    let config = Config {
        carrier: if modes & 1 == 0 {
            Carrier::Udp
        } else {
            Carrier::NativeIp
        },
        link_bps: if modes & 2 == 0 { 0 } else { 10_000_000_000 },
        rtt_ns: if modes & 4 == 0 { 0 } else { 50_000 },
        receive_buffer: u64::from(input.u8()) * 512,
        max_overcommit: input.u8() % 34,
        fifo_permille: u16::from(input.u8()) * 4,
        fifo_grant_increment: u32::from(input.u8()) * 32,
        levels: input.u8() % 10,
        mtu: 100 + u16::from(input.u8()) * 32,
        unscheduled_bytes: u32::from(input.u8()) * 32,
        min_grant: u32::from(input.u8()) * 32,
        max_incoming: if modes & 8 == 0 {
            0
        } else {
            u64::from(input.u16())
        },
        fixed_cutoffs: (modes & 16 != 0)
            .then(|| std::array::from_fn(|level| edge(u16::from(seed).rotate_left(level as u32)))),
        max_batch: u16::from(input.u8()),
        max_message: MAX_MESSAGE,
        // Off, derived, or less than some inputs come to.
        max_peer_requests: [u32::MAX, 0, 2, 0][usize::from(seed % 4)],
        max_peer_bytes: [u64::MAX, 0, 8_000, 0][usize::from(seed % 4)],
        max_stranger_bytes: [u64::MAX, 0, 3_000, 0][usize::from(seed % 4)],
        max_queued: if seed % 8 == 6 { 15_000 } else { 0 },
        resend_ceiling_ns: 20_000_000,
        timeout_ns: if modes & 32 == 0 {
            50_000_000
        } else {
            200_000_000
        },
        ..Config::default()
    };
    let memory = input.u8();
    let start = match modes >> 5 {
        0 => 0,
        1 => u64::MAX - LONGEST_NS * 2,
        2 => u64::MAX - 1_000_000_000,
        3 => u64::MAX,
        _ => u64::from(seed) << 55 | 1,
    };
    let setup = Setup {
        seed,
        start,
        memory,
    };
    (config, setup)
}

impl<'a, S: BufferSource<Buffer: std::fmt::Debug>> World<'a, S> {
    fn new(
        config: Config,
        setup: Setup,
        tables: Storage<'a, &'static [u8], S::Buffer>,
        source: S,
        packets: &'a mut [u8],
    ) -> Option<Self> {
        let mut node = Endpoint::new(config, setup.seed.into(), tables, source).ok()?;
        for port in 1..=PORTS {
            node.open_port(port).expect("a new port");
        }
        Some(Self {
            node,
            packets,
            now: Instant::from_nanos(setup.start),
            latest: Instant::ZERO,
            known: Vec::with_capacity(16),
            asked: Vec::with_capacity(16),
            answering: Vec::with_capacity(16),
            asking: Vec::with_capacity(16),
            ended: Vec::with_capacity(64),
            kept: Vec::new(),
            more_work: 0,
        })
    }

    fn check(&self) {
        if let Err(what) = self.node.check_invariants() {
            panic!("{what}");
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        self.latest = self.latest.max(self.now);
        let now = self.now;
        match input.u8() % 32 {
            // Bytes come from somewhere.
            0 => {
                let (from, count) = (input.u8(), input.u8());
                let bytes = input.bytes(count.into());
                let _ = self.node.handle_packet(now, address(from), None, bytes);
            }
            // A packet comes in which at least the form is right.
            kind @ 1..=12 => {
                let mut packet = [0; 2200];
                let (from, common) = self.common(input);
                let (a, b, c) = (input.u16(), input.u16(), input.u16());
                let repr = self.packet(common, kind, a, b, c);
                let len = repr.emit(&mut packet).expect("room");
                let local = (c % 2 == 0).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
                let _ = self.node.handle_packet(now, from, local, &packet[..len]);
            }
            // The packets of a message, a good part of them at least.
            13..=16 => {
                let (from, common) = self.common(input);
                let len = 1 + u32::from(input.u16()) % MAX_MESSAGE;
                let (incoming, lost) = (input.u8(), input.u8());
                self.message(from, common, len, incoming, lost);
            }
            17..=19 => {
                let (to, len, port, deadline) = (input.u8(), input.u16(), input.u8(), input.u8());
                let options = RequestOptions {
                    cookie: length(len) as u64,
                    deadline: (deadline > 127).then(|| now.after(u64::from(deadline % 64) << 20)),
                    local_port: u16::from(port) % (PORTS + 2),
                };
                let to = PeerAddr::new(address(to), u16::from(to) % 4);
                let request = message(0, length(len));
                if let Ok(rpc) = self.node.send_request(now, to, request, options) {
                    assert!(!self.asking.contains(&rpc) && !self.ended.contains(&rpc));
                    self.asking.push(rpc);
                }
            }
            20 | 21 => {
                let (which, len) = (input.u8(), input.u16());
                if let Some(&rpc) = pick(&self.asked, which) {
                    self.respond(rpc, length(len));
                }
            }
            22 => {
                let which = input.u8();
                let all = self.asking.iter().chain(&self.asked).chain(&self.answering);
                let all: Vec<_> = all.copied().collect();
                if let Some(&rpc) = pick(&all, which)
                    && self.node.cancel(now, rpc).is_some()
                {
                    self.end(rpc);
                }
            }
            // Time passes and the endpoint is told, or not.
            kind @ (23 | 24) => {
                self.now = now.after(input.nanos());
                if kind == 23 {
                    self.timeout();
                }
            }
            // The clock is set back, or far ahead.
            25 => match input.u8() {
                0 => self.now = Instant::MAX,
                back => {
                    let back = u64::from(back) << 20;
                    self.now = Instant::from_nanos(now.as_nanos().saturating_sub(back));
                    self.timeout();
                }
            },
            // The caller comes when it should.
            26 => {
                if let Some((at, _)) = self.node.poll_timeout() {
                    self.now = now.max(at);
                    self.timeout();
                }
            }
            27 => {
                let len = usize::from(input.u8()) * 256 + 255;
                self.transmit(len);
            }
            kind @ (28 | 29) => self.poll_events(kind == 28),
            30 => self.recycle(),
            _ => match input.u8() {
                port @ 0..70 => drop(self.node.open_port(port.into())),
                bytes @ 70..160 => {
                    let bytes = u64::from(bytes - 70);
                    self.node.set_receive_buffer(bytes * bytes * 16);
                }
                nanos => self.node.set_nic_backlog_ns(u64::from(nanos - 160) * 1000),
            },
        }
    }

    /// From whom about what: something that the endpoint knows, at every other time.
    fn common(&self, input: &mut Input<'_>) -> (SocketAddr, Common) {
        let which = input.u8();
        match pick(&self.known, which / 2) {
            Some(&known) if which.is_multiple_of(2) => known,
            _ => self.stranger(which, input.u8()),
        }
    }

    fn stranger(&self, which: u8, from: u8) -> (SocketAddr, Common) {
        let common = Common {
            source_port: u16::from(from / 8 % 2) * 2 + 1,
            dest_port: u16::from(from / 16) % (PORTS + 2),
            sender_id: u64::from(which / 2 % 32),
        };
        (address(from), common)
    }

    /// A message in up to eight packets, those with a bit in `lost` excepted.
    fn message(&mut self, from: SocketAddr, common: Common, len: u32, incoming: u8, lost: u8) {
        let mut packet = [0; 4096];
        let most = len.div_ceil(8);
        let offsets = (0..len).step_by(most as usize).enumerate();
        for (_, offset) in offsets.filter(|&(i, _)| lost >> i & 1 == 0) {
            let header = DataHeader {
                common,
                message_len: len,
                incoming: len / 255 * u32::from(incoming),
                ack: None,
                cutoff_version: 0,
                retransmit: incoming % 2 == 1,
                flags: 0,
                offset,
            };
            let data = &BYTES[..(len - offset).min(most) as usize];
            let written = Repr::Data { header, data }.emit(&mut packet).expect("room");
            let packet = &packet[..written];
            let _ = self.node.handle_packet(self.now, from, None, packet);
            self.check();
        }
    }

    fn packet(&self, common: Common, kind: u8, a: u16, b: u16, c: u16) -> Repr<'static> {
        let (bytes, flags) = (c.to_be_bytes(), c.to_le_bytes());
        match kind {
            1..=3 => {
                let (message_len, offset) = (edge(a), edge(b));
                let most = message_len.saturating_sub(offset).min(2048) as usize;
                let data = &BYTES[..most.min(1 + usize::from(c))];
                let header = DataHeader {
                    common,
                    message_len,
                    incoming: edge(a ^ b),
                    ack: (flags[0] % 4 == 0).then(|| self.ack(bytes[0])),
                    cutoff_version: c % 4,
                    retransmit: flags[0] % 8 == 1,
                    flags: flags[1],
                    offset,
                };
                Repr::Data { header, data }
            }
            4 => Repr::Grant {
                common,
                offset: edge(a),
                priority: bytes[0],
                resend_all: bytes[1] % 4 == 0,
            },
            5 | 6 => Repr::Resend {
                common,
                offset: edge(a),
                len: edge(b),
                priority: bytes[0],
            },
            7 => Repr::RpcUnknown(common),
            8 => Repr::Busy(common),
            9 => Repr::Cutoffs {
                common,
                cutoffs: std::array::from_fn(|i| edge(a.rotate_left(i as u32 * 2) ^ b)),
                version: c % 4,
                unscheduled_limit: (bytes[0] % 2 == 0).then(|| edge(b)),
            },
            10 => Repr::Freeze(common),
            11 => Repr::NeedAck(common),
            _ => {
                let mut acks = Acks::new();
                for which in [a.to_be_bytes(), b.to_be_bytes()].concat() {
                    let _ = acks.push(self.ack(which));
                }
                Repr::Ack { common, acks }
            }
        }
    }

    fn ack(&self, which: u8) -> AckEntry {
        let known = pick(&self.known, which / 2).filter(|_| which.is_multiple_of(2));
        let (_, common) = known
            .copied()
            .unwrap_or_else(|| self.stranger(which, which));
        AckEntry {
            client_id: common.sender_id & !1,
            server_port: common.dest_port,
        }
    }

    fn timeout(&mut self) {
        self.latest = self.latest.max(self.now);
        self.node.handle_timeout(self.now);
        match self.node.poll_timeout() {
            Some((at, TimeoutReason::MoreWork)) => {
                assert!(at <= self.latest);
                self.more_work += 1;
                assert!(self.more_work < 100, "a backlog does not shrink");
            }
            Some((at, reason)) => {
                self.more_work = 0;
                assert!(
                    at > self.now.min(LAST) || reason == TimeoutReason::Pacer,
                    "{reason:?} is still due"
                );
            }
            None => self.more_work = 0,
        }
    }

    fn transmit(&mut self, len: usize) {
        let mtu = usize::from(self.node.config().mtu);
        // Eight messages of 6,000 bytes in packets with 64 bytes of data, several times.
        for _ in 0..20_000 {
            let buffer = &mut self.packets[..len];
            let Some(batch) = self.node.poll_transmit(self.now, buffer) else {
                return;
            };
            assert!(batch.len > 0 && batch.len <= len && batch.priority <= 7);
            assert!(batch.segment_size.is_none_or(|size| size < batch.len));
            assert!(!batch.to.ip().is_unspecified());
            assert!(batch.to.port() != 0 || self.node.config().carrier == Carrier::NativeIp);
            for packet in buffer[..batch.len].chunks(batch.segment_size.unwrap_or(batch.len)) {
                assert!(packet.len() <= mtu);
                let repr = Repr::parse(packet, MAX_MESSAGE).expect("what is sent can be read");
                let sent = repr.common();
                let answer = Common {
                    source_port: sent.dest_port,
                    dest_port: sent.source_port,
                    sender_id: sent.local_id(),
                };
                let known = (batch.to, answer);
                if !self.known.contains(&known) && self.known.len() < 16 {
                    self.known.push(known);
                }
            }
        }
        panic!("endless transmission");
    }

    fn respond(&mut self, rpc: RpcId, len: usize) {
        match self.node.send_response(self.now, rpc, message(1, len)) {
            Ok(()) => {
                self.asked.retain(|&other| other != rpc);
                self.answering.push(rpc);
            }
            // The client no longer knows the RPC.
            Err(error) if error.kind == SendErrorKind::NoSuchRpc => self.end(rpc),
            Err(error) => {
                use SendErrorKind::{Empty, PeerQueueFull, QueueFull, TooLong};
                assert!(matches!(
                    error.kind,
                    Empty | TooLong | PeerQueueFull | QueueFull
                ));
                assert_eq!(error.message.len(), len);
            }
        }
    }

    fn end(&mut self, rpc: RpcId) {
        self.asking.retain(|&other| other != rpc);
        self.asked.retain(|&other| other != rpc);
        self.answering.retain(|&other| other != rpc);
        assert!(!self.ended.contains(&rpc), "an RPC ended twice");
        self.ended.push(rpc);
    }

    fn poll_events(&mut self, keep: bool) {
        while let Some(event) = self.node.poll_event() {
            let buffer = match event {
                Event::Request { rpc, message, .. } => {
                    assert!(!self.asked.contains(&rpc) && !self.answering.contains(&rpc));
                    assert!(!self.ended.contains(&rpc));
                    self.asked.push(rpc);
                    message
                }
                Event::Response {
                    rpc,
                    message,
                    cookie,
                    request,
                    ..
                } => {
                    assert!(self.asking.contains(&rpc));
                    assert_eq!(request.len() as u64, cookie);
                    self.end(rpc);
                    message
                }
                Event::Failed {
                    rpc,
                    cookie,
                    request,
                    ..
                } => {
                    assert!(self.asking.contains(&rpc));
                    assert_eq!(request.len() as u64, cookie);
                    self.end(rpc);
                    continue;
                }
                Event::Released { rpc, .. } => {
                    assert!(self.answering.contains(&rpc));
                    self.end(rpc);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            if keep {
                self.kept.push(buffer);
            } else {
                self.node.recycle(self.now, buffer);
            }
        }
    }

    fn recycle(&mut self) {
        for buffer in self.kept.drain(..) {
            self.node.recycle(self.now, buffer);
        }
    }

    /// Nobody answers any more, and the caller does what it should.
    fn wind_up(&mut self) {
        if self.latest.after(LONGEST_NS) == Instant::MAX {
            // There is no time left to end anything in.
            return;
        }
        self.now = self.latest;
        let end = self.now.after(LONGEST_NS);
        self.more_work = 0;
        for round in 0..200_000 {
            self.recycle();
            self.poll_events(false);
            for rpc in self.asked.clone() {
                self.respond(rpc, 1);
            }
            self.transmit(65_536);
            self.poll_events(false);
            // Little is new in most rounds, and time goes into what is.
            if round % 8 == 0 {
                self.check();
            }
            let Some((at, _)) = self.node.poll_timeout() else {
                assert_eq!(
                    self.node.live_rpcs(),
                    0,
                    "an RPC never ends: {:?}",
                    self.node.stats()
                );
                assert!(self.asking.is_empty(), "an RPC ended without an event");
                assert!(self.asked.is_empty() && self.answering.is_empty());
                assert_eq!(self.node.total_incoming(), 0);
                return;
            };
            self.now = self.now.max(at);
            assert!(
                self.now < end,
                "an RPC takes for ever: {:?}",
                self.node.stats()
            );
            self.timeout();
        }
        panic!("timeouts without end");
    }
}
