//! One endpoint among peers and callers that do anything.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use arbitrary::{Arbitrary, Unstructured};
use homa_proto::wire::{AckEntry, Acks, Common, DataHeader, Repr};
use homa_proto::{
    Config, Endpoint, Event, HeapBuffer, HeapBuffers, Instant, Limits, PeerAddr, RequestOptions,
    RpcId, SendErrorKind, Storage, TimeoutReason,
};

const PORTS: u16 = 2;
const MAX_MESSAGE: u32 = 200_000;

/// Something that happens to the endpoint.
#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// Bytes come from somewhere.
    Bytes {
        from: u8,
        bytes: &'a [u8],
    },
    /// A packet comes in which at least the form is right.
    Packet {
        from: u8,
        kind: Kind,
        ports: (u8, u8),
        id: u8,
        a: u32,
        b: u32,
        c: u16,
    },
    /// The packets of a message, a good part of them at least.
    Message {
        from: u8,
        ports: (u8, u8),
        id: u8,
        len: u16,
        lost: u32,
        again: bool,
    },
    Request {
        to: u8,
        len: u32,
        deadline_us: Option<u16>,
        port: u8,
    },
    Respond {
        which: u8,
        len: u32,
    },
    Cancel {
        which: u8,
    },
    /// Time passes and the endpoint is told, or not.
    Wait {
        us: u32,
        told: bool,
    },
    /// The caller comes when it should.
    WaitForTimeout,
    Transmit {
        buffer: u16,
    },
    PollEvents {
        keep: bool,
    },
    Recycle,
    ReceiveBuffer {
        bytes: u32,
    },
    Backlog {
        nanos: u32,
    },
    OpenPort {
        port: u8,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Data,
    Grant,
    Resend,
    RpcUnknown,
    Busy,
    Cutoffs,
    Freeze,
    NeedAck,
    Ack,
}

#[derive(Arbitrary, Debug)]
struct Setting {
    paced: bool,
    receive_buffer: u16,
    max_overcommit: u8,
    fifo_permille: u16,
    levels: u8,
    mtu: u16,
    unscheduled_bytes: u16,
    memory: u32,
    seed: u64,
}

struct World {
    node: Endpoint<'static, Vec<u8>, HeapBuffers>,
    now: Instant,
    /// RPCs that the endpoint has spoken of: with whom, and how the other would speak of them.
    known: Vec<(SocketAddr, Common)>,
    /// In service here.
    asked: Vec<RpcId>,
    /// Answered here.
    answering: Vec<RpcId>,
    /// Requests from here.
    asking: Vec<RpcId>,
    ended: HashSet<RpcId>,
    kept: Vec<HeapBuffer>,
    more_work: u32,
}

/// Does to an endpoint what the bytes say. Its books must be right after each step, what it sends
/// must be sound, and in the end, when all others have fallen silent, nothing may be left over.
pub fn endpoint(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(setting) = Setting::arbitrary(&mut input) else {
        return;
    };
    let Some(mut world) = World::new(&setting) else {
        return;
    };
    while !input.is_empty() {
        let Ok(step) = Step::arbitrary(&mut input) else {
            break;
        };
        world.step(step);
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
fn edge(number: u32) -> u32 {
    match number % 8 {
        0 => number / 8 % 4,
        1 => MAX_MESSAGE - 2 + number / 8 % 4,
        2 => u32::MAX - number / 8 % 2,
        3 => (1 << 31) - 1 + number / 8 % 3,
        _ => number / 8 % (MAX_MESSAGE + 1000),
    }
}

impl World {
    fn new(setting: &Setting) -> Option<Self> {
        let config = Config {
            link_bps: if setting.paced { 1_000_000_000 } else { 0 },
            rtt_ns: 50_000,
            receive_buffer: u64::from(setting.receive_buffer) * 4,
            max_overcommit: setting.max_overcommit % 33,
            fifo_permille: setting.fifo_permille % 1001,
            levels: setting.levels % 8 + 1,
            mtu: setting.mtu,
            unscheduled_bytes: setting.unscheduled_bytes.into(),
            max_message: MAX_MESSAGE,
            ..Config::default()
        };
        let limits = Limits {
            rpcs: 12,
            peers: 3,
            ended: 8,
        };
        // None, or one, or many of the longest messages.
        let memory = HeapBuffers::new(setting.memory as usize % (1 << 20));
        let seed = setting.seed.into();
        let mut node = Endpoint::new(config, seed, Storage::boxed(limits), memory).ok()?;
        for port in 1..=PORTS {
            node.open_port(port).expect("a new port");
        }
        Some(Self {
            node,
            now: Instant::from_nanos(setting.seed >> 1),
            known: Vec::new(),
            asked: Vec::new(),
            answering: Vec::new(),
            asking: Vec::new(),
            ended: HashSet::new(),
            kept: Vec::new(),
            more_work: 0,
        })
    }

    fn check(&self) {
        if let Err(what) = self.node.check_invariants() {
            panic!("{what}");
        }
    }

    fn step(&mut self, step: Step<'_>) {
        let now = self.now;
        match step {
            Step::Bytes { from, bytes } => {
                let _ = self.node.handle_packet(now, address(from), None, bytes);
            }
            Step::Packet {
                from,
                kind,
                ports,
                id,
                a,
                b,
                c,
            } => {
                let mut packet = [0; 4096];
                let (from, common) = self.common(from, ports, id);
                let len = self
                    .packet(common, kind, a, b, c)
                    .emit(&mut packet)
                    .expect("room");
                let local = (c % 2 == 0).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
                let _ = self.node.handle_packet(now, from, local, &packet[..len]);
            }
            Step::Message {
                from,
                ports,
                id,
                len,
                lost,
                again,
            } => {
                let (from, common) = self.common(from, ports, id);
                self.message(from, common, len.max(1).into(), lost, again);
            }
            Step::Request {
                to,
                len,
                deadline_us,
                port,
            } => {
                let options = RequestOptions {
                    cookie: len.into(),
                    deadline: deadline_us.map(|us| now.after(u64::from(us) * 1000)),
                    local_port: u16::from(port) % (PORTS + 2),
                };
                let to = PeerAddr::new(address(to), u16::from(to) % 4);
                let message = vec![1; edge(len).min(MAX_MESSAGE + 1) as usize];
                if let Ok(rpc) = self.node.send_request(now, to, message, options) {
                    assert!(!self.asking.contains(&rpc) && !self.ended.contains(&rpc));
                    self.asking.push(rpc);
                }
            }
            Step::Respond { which, len } => {
                if let Some(&rpc) = pick(&self.asked, which) {
                    self.respond(rpc, edge(len).min(MAX_MESSAGE + 1) as usize);
                }
            }
            Step::Cancel { which } => {
                let all = [&self.asking[..], &self.asked, &self.answering].concat();
                if let Some(&rpc) = pick(&all, which)
                    && self.node.cancel(now, rpc).is_some()
                {
                    self.end(rpc);
                }
            }
            Step::Wait { us, told } => {
                self.now = now.after(u64::from(us % 4_000_000) * 1000);
                if told {
                    self.timeout();
                }
            }
            Step::WaitForTimeout => {
                if let Some((at, _)) = self.node.poll_timeout() {
                    self.now = self.now.max(at);
                    self.timeout();
                }
            }
            Step::Transmit { buffer } => self.transmit(buffer.into()),
            Step::PollEvents { keep } => self.poll_events(keep),
            Step::Recycle => self.recycle(),
            Step::ReceiveBuffer { bytes } => self.node.set_receive_buffer(bytes.into()),
            Step::Backlog { nanos } => self.node.set_nic_backlog_ns(nanos.into()),
            Step::OpenPort { port } => drop(self.node.open_port(u16::from(port % 70))),
        }
    }

    /// From whom about what: something that the endpoint knows, at every other time.
    fn common(&self, from: u8, ports: (u8, u8), which: u8) -> (SocketAddr, Common) {
        match pick(&self.known, which / 2) {
            Some(&known) if which.is_multiple_of(2) => known,
            _ => {
                let common = Common {
                    source_port: u16::from(ports.0 % 4),
                    dest_port: u16::from(ports.1) % (PORTS + 2),
                    sender_id: u64::from(which / 2 % 32),
                };
                (address(from), common)
            }
        }
    }

    fn message(&mut self, from: SocketAddr, common: Common, len: u32, lost: u32, again: bool) {
        let mut packet = [0; 4096];
        let offsets = (0..len).step_by(3000).enumerate();
        for (_, offset) in offsets.filter(|&(i, _)| lost >> i & 1 == 0) {
            let header = DataHeader {
                common,
                message_len: len,
                incoming: len,
                ack: None,
                cutoff_version: 0,
                retransmit: again,
                flags: 0,
                offset,
            };
            let data = &[5; 3000][..(len - offset).min(3000) as usize];
            let written = Repr::Data { header, data }.emit(&mut packet).expect("room");
            let packet = &packet[..written];
            let _ = self.node.handle_packet(self.now, from, None, packet);
            self.check();
        }
    }

    fn packet(&self, common: Common, kind: Kind, a: u32, b: u32, c: u16) -> Repr<'static> {
        static BYTES: [u8; 2048] = [3; 2048];
        let (bytes, flags) = (c.to_be_bytes(), c.to_le_bytes());
        match kind {
            Kind::Data => {
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
            Kind::Grant => Repr::Grant {
                common,
                offset: edge(a),
                priority: bytes[0],
                resend_all: bytes[1] % 4 == 0,
            },
            Kind::Resend => Repr::Resend {
                common,
                offset: edge(a),
                len: edge(b),
                priority: bytes[0],
            },
            Kind::RpcUnknown => Repr::RpcUnknown(common),
            Kind::Busy => Repr::Busy(common),
            Kind::Cutoffs => Repr::Cutoffs {
                common,
                cutoffs: std::array::from_fn(|i| edge(a.rotate_left(i as u32 * 4) ^ b)),
                version: c % 4,
                unscheduled_limit: (bytes[0] % 2 == 0).then(|| edge(b)),
            },
            Kind::Freeze => Repr::Freeze(common),
            Kind::NeedAck => Repr::NeedAck(common),
            Kind::Ack => {
                let mut acks = Acks::new();
                for which in a.to_be_bytes() {
                    let _ = acks.push(self.ack(which));
                }
                Repr::Ack { common, acks }
            }
        }
    }

    fn ack(&self, which: u8) -> AckEntry {
        AckEntry {
            client_id: self.common(which, (which, which), which).1.sender_id & !1,
            server_port: u16::from(which) % (PORTS + 2),
        }
    }

    fn timeout(&mut self) {
        self.node.handle_timeout(self.now);
        match self.node.poll_timeout() {
            Some((at, TimeoutReason::MoreWork)) => {
                assert!(at <= self.now);
                self.more_work += 1;
                assert!(self.more_work < 100, "a backlog does not shrink");
            }
            Some((at, reason)) => {
                self.more_work = 0;
                assert!(
                    at > self.now || reason == TimeoutReason::Pacer,
                    "{reason:?} is still due"
                );
            }
            None => self.more_work = 0,
        }
    }

    fn transmit(&mut self, len: usize) {
        let mtu = usize::from(self.node.config().mtu);
        let mut buffer = vec![0; len];
        // Twelve messages of 200,000 bytes in packets of 64 bytes.
        for _ in 0..50_000 {
            let Some(batch) = self.node.poll_transmit(self.now, &mut buffer) else {
                return;
            };
            assert!(batch.len > 0 && batch.len <= len && batch.priority <= 7);
            assert!(batch.segment_size.is_none_or(|size| size < batch.len));
            assert!(!batch.to.ip().is_unspecified() && batch.to.port() != 0);
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
                if !self.known.contains(&known) && self.known.len() < 64 {
                    self.known.push(known);
                }
            }
        }
        panic!("endless transmission");
    }

    fn respond(&mut self, rpc: RpcId, len: usize) {
        match self.node.send_response(self.now, rpc, vec![2; len]) {
            Ok(()) => {
                self.asked.retain(|&other| other != rpc);
                self.answering.push(rpc);
            }
            // The client no longer knows the RPC.
            Err(error) if error.kind == SendErrorKind::NoSuchRpc => self.end(rpc),
            Err(error) => {
                assert!(matches!(
                    error.kind,
                    SendErrorKind::Empty | SendErrorKind::TooLong
                ));
                assert_eq!(error.message.len(), len);
            }
        }
    }

    fn end(&mut self, rpc: RpcId) {
        self.asking.retain(|&other| other != rpc);
        self.asked.retain(|&other| other != rpc);
        self.answering.retain(|&other| other != rpc);
        assert!(self.ended.insert(rpc), "an RPC ended twice");
    }

    fn poll_events(&mut self, keep: bool) {
        while let Some(event) = self.node.poll_event() {
            self.check();
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
                    assert_eq!(request.len(), edge(cookie as u32) as usize);
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
                    assert_eq!(request.len(), edge(cookie as u32) as usize);
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
        let end = self.now.after(120_000_000_000);
        self.more_work = 0;
        for _ in 0..200_000 {
            self.recycle();
            self.poll_events(false);
            for rpc in self.asked.clone() {
                self.respond(rpc, 1);
            }
            self.transmit(65_536);
            self.check();
            self.poll_events(false);
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

fn pick<T>(from: &[T], which: u8) -> Option<&T> {
    from.get(usize::from(which).checked_rem(from.len())?)
}
