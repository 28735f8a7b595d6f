//! One endpoint, and packets made by hand: the test is the peer.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use homa_proto::wire::{Acks, Common, DataHeader, Repr};
use homa_proto::{
    Config, DropReason, Event, HeapBuffer, Instant, Limits, RequestOptions, RpcId, TimeoutReason,
};

use crate::link::{Node, PORT, assert_well_formed, bytes_of, config, limits, node};

/// The Homa port of the peer that the test plays.
pub(crate) const PEER_PORT: u16 = 7000;

pub(crate) fn peer(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, n], PEER_PORT))
}

/// What the endpoint sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) to: SocketAddr,
    pub(crate) priority: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn repr(&self) -> Repr<'_> {
        Repr::parse(&self.bytes, u32::MAX >> 1).unwrap()
    }

    /// Header and range of a DATA packet.
    pub(crate) fn data(&self) -> Option<(DataHeader, std::ops::Range<u32>)> {
        match self.repr() {
            Repr::Data { header, data } => {
                let end = header.offset + data.len() as u32;
                Some((header, header.offset..end))
            }
            _ => None,
        }
    }

    pub(crate) fn resend(&self) -> Option<(u32, u32)> {
        match self.repr() {
            Repr::Resend { offset, len, .. } => Some((offset, len)),
            _ => None,
        }
    }

    pub(crate) fn grant(&self) -> Option<u32> {
        match self.repr() {
            Repr::Grant { offset, .. } => Some(offset),
            _ => None,
        }
    }
}

/// The types of what was sent, for short comparisons.
pub(crate) fn kinds(sent: &[Sent]) -> Vec<&'static str> {
    sent.iter()
        .map(|sent| match sent.repr() {
            Repr::Data { header, .. } if header.retransmit => "AGAIN",
            Repr::Data { .. } => "DATA",
            Repr::Grant { .. } => "GRANT",
            Repr::Resend { .. } => "RESEND",
            Repr::RpcUnknown(_) => "UNKNOWN",
            Repr::Busy(_) => "BUSY",
            Repr::Cutoffs { .. } => "CUTOFFS",
            Repr::Freeze(_) => "FREEZE",
            Repr::NeedAck(_) => "NEED_ACK",
            Repr::Ack { .. } => "ACK",
        })
        .collect()
}

pub(crate) struct Hand {
    pub(crate) node: Node,
    pub(crate) now: Instant,
    /// The peer that the next packets come from.
    pub(crate) from: SocketAddr,
    /// The endpoint's version of its cutoffs, as each peer was told it.
    pub(crate) versions: BTreeMap<SocketAddr, u16>,
    /// CUTOFFS are taken note of, and shown only on demand.
    pub(crate) show_cutoffs: bool,
    /// The last message that data was sent of.
    message: (u64, Vec<u8>),
}

pub(crate) const MS: u64 = 1_000_000;

impl Hand {
    pub(crate) fn new() -> Self {
        Self::with(config(), limits())
    }

    pub(crate) fn with(config: Config, limits: Limits) -> Self {
        Self {
            node: node(config, limits, 77, 64 << 20),
            now: Instant::from_nanos(5 * MS),
            from: peer(1),
            versions: BTreeMap::new(),
            show_cutoffs: false,
            message: (0, Vec::new()),
        }
    }

    /// Peers 0 to 7 show that they get what is sent to them: they are no strangers.
    pub(crate) fn acquainted(mut self) -> Self {
        let from = self.from;
        for n in 0..8 {
            self.from = peer(n);
            for id in [1 << 40, 1 << 41] {
                let rpc = self.arrive(id, 1);
                self.out();
                self.node.cancel(self.now, rpc);
            }
        }
        self.from = from;
        self
    }

    pub(crate) fn common(&self, id: u64) -> Common {
        Common {
            source_port: PEER_PORT,
            dest_port: PORT,
            sender_id: id,
        }
    }

    /// What the peer that the next packets come from was told; 0: nothing yet.
    pub(crate) fn version(&self) -> u16 {
        self.versions.get(&self.from).copied().unwrap_or(0)
    }

    /// Hands a packet in.
    pub(crate) fn put(&mut self, repr: &Repr<'_>) -> Result<(), DropReason> {
        let mut bytes = [0; 1500];
        let len = repr.emit(&mut bytes).unwrap();
        let result = self
            .node
            .handle_packet(self.now, self.from, None, &bytes[..len]);
        self.node.check_invariants().unwrap();
        result
    }

    /// Bytes `range` of a message of `len`, as its sender would first send them.
    pub(crate) fn data(
        &mut self,
        id: u64,
        len: u32,
        incoming: u32,
        range: std::ops::Range<u32>,
    ) -> Result<(), DropReason> {
        self.data_with(id, len, incoming, range, |_| {})
    }

    pub(crate) fn data_with(
        &mut self,
        id: u64,
        len: u32,
        incoming: u32,
        range: std::ops::Range<u32>,
        change: impl FnOnce(&mut DataHeader),
    ) -> Result<(), DropReason> {
        if (self.message.0, self.message.1.len()) != (id & !1, len as usize) {
            self.message = (id & !1, bytes_of(id & !1, len as usize));
        }
        let message = std::mem::take(&mut self.message.1);
        let mut header = DataHeader {
            common: self.common(id),
            message_len: len,
            incoming,
            ack: None,
            cutoff_version: self.version(),
            retransmit: false,
            flags: 0,
            offset: range.start,
        };
        change(&mut header);
        let result = self.put(&Repr::Data {
            header,
            data: &message[range.start as usize..range.end as usize],
        });
        self.message.1 = message;
        result
    }

    pub(crate) fn grant(&mut self, id: u64, offset: u32, priority: u8) -> Result<(), DropReason> {
        let common = self.common(id);
        self.put(&Repr::Grant {
            common,
            offset,
            priority,
            resend_all: false,
        })
    }

    pub(crate) fn resend(
        &mut self,
        id: u64,
        offset: u32,
        len: u32,
        priority: u8,
    ) -> Result<(), DropReason> {
        let common = self.common(id);
        self.put(&Repr::Resend {
            common,
            offset,
            len,
            priority,
        })
    }

    pub(crate) fn busy(&mut self, id: u64) -> Result<(), DropReason> {
        let common = self.common(id);
        self.put(&Repr::Busy(common))
    }

    pub(crate) fn unknown(&mut self, id: u64) -> Result<(), DropReason> {
        let common = self.common(id);
        self.put(&Repr::RpcUnknown(common))
    }

    pub(crate) fn need_ack(&mut self, id: u64) -> Result<(), DropReason> {
        let common = self.common(id);
        self.put(&Repr::NeedAck(common))
    }

    pub(crate) fn ack(&mut self, id: u64) -> Result<(), DropReason> {
        let common = self.common(id);
        self.put(&Repr::Ack {
            common,
            acks: Acks::new(),
        })
    }

    /// Everything that the endpoint has to send now.
    pub(crate) fn out(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        let mut buffer = vec![0xaa; 65_536];
        while let Some(sent) = self.node.poll_transmit(self.now, &mut buffer) {
            let segment = sent.segment_size.unwrap_or(sent.len);
            for packet in buffer[..sent.len].chunks(segment) {
                assert_well_formed(packet);
                let packet = Sent {
                    to: sent.to,
                    priority: sent.priority,
                    bytes: packet.to_vec(),
                };
                if let Repr::Cutoffs { version, .. } = packet.repr() {
                    self.versions.insert(sent.to, version);
                    if !self.show_cutoffs {
                        continue;
                    }
                }
                all.push(packet);
            }
            assert!(all.len() < 100_000, "endless transmission");
        }
        self.node.check_invariants().unwrap();
        all
    }

    /// Lets the pacer send everything that it holds back.
    pub(crate) fn drain(&mut self) -> Vec<Sent> {
        let mut all = self.out();
        while let Some((at, TimeoutReason::Pacer)) = self.node.poll_timeout() {
            self.now = self.now.max(at);
            all.append(&mut self.out());
        }
        all
    }

    /// Time passes, with the timers of the endpoint at work: what it sends meanwhile, and when.
    pub(crate) fn wait(&mut self, nanos: u64) -> Vec<(Instant, Sent)> {
        let until = self.now.after(nanos);
        let mut all: Vec<_> = self.out().into_iter().map(|s| (self.now, s)).collect();
        let mut rounds = 0;
        while let Some((at, _)) = self.node.poll_timeout().filter(|&(at, _)| at <= until) {
            rounds += 1;
            assert!(rounds < 1_000_000, "spinning");
            self.now = self.now.max(at);
            self.node.handle_timeout(self.now);
            if let Some((at, reason)) = self.node.poll_timeout() {
                assert!(
                    at > self.now
                        || reason == TimeoutReason::MoreWork
                        || reason == TimeoutReason::Pacer,
                    "{reason:?}"
                );
            }
            let out = self.out();
            all.extend(out.into_iter().map(|s| (self.now, s)));
        }
        self.now = until;
        all
    }

    /// A new request to the peer: its handle, and the id that the server answers with.
    pub(crate) fn request(&mut self, len: usize) -> (RpcId, u64, Vec<Sent>) {
        let to = self.from.into();
        let rpc = self
            .node
            .send_request(self.now, to, bytes_of(0, len), RequestOptions::default())
            .unwrap();
        let sent = self.drain();
        let id = sent
            .iter()
            .rev()
            .find_map(Sent::data)
            .expect("data")
            .0
            .common
            .sender_id;
        (rpc, id ^ 1, sent)
    }

    pub(crate) fn event(&mut self) -> Option<Event<Vec<u8>, HeapBuffer>> {
        let event = self.node.poll_event();
        self.node.check_invariants().unwrap();
        event
    }

    /// The peer's request `id` of `len` bytes (one packet) arrives and goes to the application.
    pub(crate) fn arrive(&mut self, id: u64, len: u32) -> RpcId {
        self.data(id, len, len, 0..len).unwrap();
        match self.event() {
            Some(Event::Request { rpc, .. }) => rpc,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn respond(&mut self, rpc: RpcId, len: usize) -> Vec<Sent> {
        self.node
            .send_response(self.now, rpc, bytes_of(1, len))
            .unwrap();
        self.drain()
    }
}
