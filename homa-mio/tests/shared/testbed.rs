//! Sockets on loopback as a testbed of the conformance suite. All share one thread, so that a machine which stops
//! it stops them all.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use homa_sim_harness::conformance::{Relay, SendErrorKind, Settings, TestEvent, Testbed};
use homa_sim_harness::fault::PacketFaults;

use crate::driver::{Message, Options, PeerAddr, RequestOptions, RpcId, Socket};

/// Sockets that reach each other, where anything is to go wrong through a relay.
pub struct Sockets {
    sockets: Vec<(SocketAddr, Option<Socket>)>,
    relay: Relay,
    /// Packets go through the relay.
    is_relayed: bool,
    nobody: UdpSocket,
    start: Instant,
    happened: VecDeque<(usize, TestEvent<Self>)>,
}

impl Sockets {
    /// None yet.
    pub fn new() -> Self {
        Self {
            sockets: Vec::new(),
            relay: Relay::default(),
            is_relayed: false,
            nobody: UdpSocket::bind("127.0.0.1:0").unwrap(),
            start: Instant::now(),
            happened: VecDeque::new(),
        }
    }

    fn bind(&self, address: SocketAddr, settings: &Settings) -> Socket {
        let mut options = Options::default()
            .max_message(settings.max_message)
            .limits(settings.limits)
            .memory(settings.buffer_bytes, settings.buffer_bytes);
        options.config().timeout_ns = settings.timeout.as_nanos() as u64;
        options.bind(address).unwrap()
    }

    fn socket(&mut self, node: usize) -> &mut Socket {
        self.sockets[node].1.as_mut().expect("a node that lives")
    }
}

impl Testbed for Sockets {
    type Message = Message;

    fn open(&mut self, settings: &Settings) -> usize {
        let socket = self.bind("127.0.0.1:0".parse().unwrap(), settings);
        let address = socket.local_addr();
        self.relay.add(address).unwrap();
        self.sockets.push((address, Some(socket)));
        self.sockets.len() - 1
    }

    fn kill(&mut self, node: usize) {
        self.sockets[node].1 = None;
        self.happened.retain(|(host, _)| *host != node);
    }

    fn restart(&mut self, node: usize, settings: &Settings) {
        let socket = self.bind(self.sockets[node].0, settings);
        self.sockets[node].1 = Some(socket);
    }

    fn address(&mut self, node: usize, from: usize) -> PeerAddr {
        let own = self.sockets[node].0;
        if !self.is_relayed {
            return own.into();
        }
        PeerAddr::new(self.relay.address(node, from).unwrap(), own.port())
    }

    fn nobody(&mut self) -> PeerAddr {
        self.nobody.local_addr().unwrap().into()
    }

    fn request(
        &mut self,
        node: usize,
        to: PeerAddr,
        message: Vec<u8>,
        cookie: u64,
        timeout: Option<Duration>,
    ) -> Result<RpcId, SendErrorKind> {
        let options = RequestOptions {
            cookie,
            timeout,
            ..RequestOptions::default()
        };
        let result = self.socket(node).request(to, message, options);
        result.map_err(|error| error.kind)
    }

    fn reply(&mut self, node: usize, rpc: RpcId, message: Vec<u8>) -> Result<(), SendErrorKind> {
        let result = self.socket(node).reply(rpc, message);
        result.map_err(|error| error.kind)
    }

    fn cancel(&mut self, node: usize, rpc: RpcId) -> bool {
        self.socket(node).cancel(rpc)
    }

    fn live_rpcs(&self, node: usize) -> usize {
        self.sockets[node].1.as_ref().map_or(0, Socket::live_rpcs)
    }

    fn next(&mut self, end: Duration) -> Option<(usize, TestEvent<Self>)> {
        loop {
            if let Some(event) = self.happened.pop_front() {
                return Some(event);
            }
            for (node, (_, socket)) in self.sockets.iter_mut().enumerate() {
                let Some(socket) = socket else { continue };
                while let Some(event) = socket.poll().unwrap() {
                    self.happened.push_back((node, event));
                }
            }
            let is_busy = self.relay.turn().unwrap() || !self.happened.is_empty();
            if self.now() >= end && self.happened.is_empty() {
                return None;
            }
            if !is_busy {
                std::thread::sleep(self.relay.idle_time().min(end.saturating_sub(self.now())));
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn impair(&mut self, faults: PacketFaults) {
        self.is_relayed = true;
        self.relay.impair(faults);
    }
}
