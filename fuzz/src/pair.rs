//! Two or three endpoints, and a network between them that does what the input says.

use std::net::{Ipv4Addr, SocketAddr};

use homa_proto::{
    Config, Endpoint, Event, HeapBuffer, HeapBuffers, Instant, Limits, RequestOptions, RpcError,
    RpcId, SendErrorKind, Storage, TimeoutReason,
};

use crate::input::{Input, message, pick};

const PORT: u16 = 7;
const MAX_MESSAGE: u32 = 20_000;
/// Requests in one run.
const MAX_CALLS: usize = 24;
/// Packets on their way; the network loses what is more.
const MAX_FLIGHTS: usize = 256;
const TIMEOUT_NS: u64 = 20_000_000;
const ENDED_WINDOW_NS: u64 = 2_000_000_000;
/// The network keeps no packet for so long that servers may have forgotten: an answer may be late,
/// and what is sent after it.
const LONGEST_FLIGHT_NS: u64 = ENDED_WINDOW_NS / 4;
/// Once nothing is lost any more all ends within this time: servers give a silent client up after
/// two time-outs, and what was parked or queued takes its turn.
const ENDS_WITHIN_NS: u64 = 20 * TIMEOUT_NS;

struct Host {
    node: Endpoint<'static, &'static [u8], HeapBuffers>,
    /// How often it has been started.
    starts: u32,
    /// It neither receives nor sends, and its clock stands.
    stalled: bool,
    /// Messages that the application has not given back.
    kept: Vec<HeapBuffer>,
    /// When the last packet of each host came.
    heard: [Option<Instant>; 3],
    /// Who has answered a call.
    answered: [bool; 3],
}

/// A packet on its way.
struct Flight {
    from: usize,
    to: usize,
    sent: Instant,
    bytes: Vec<u8>,
}

/// What an application has asked, and what has come of it: the reference.
struct Call {
    client: usize,
    server: usize,
    /// The id in the client's packets.
    id: u64,
    request: &'static [u8],
    response: &'static [u8],
    begun: Instant,
    deadline: Option<Instant>,
    /// At the client: not ended yet.
    live: Option<RpcId>,
    /// Its server fell silent for long enough to be given up.
    forsaken: bool,
    /// At the server: has run, and which start of the server that was.
    ran: Option<u32>,
    /// At the server: the application has it.
    in_service: Option<RpcId>,
    /// At the server: the response is being sent.
    answering: Option<RpcId>,
}

struct World {
    modes: u8,
    hosts: Vec<Host>,
    flights: Vec<Flight>,
    calls: Vec<Call>,
    now: Instant,
    packets: Vec<u8>,
}

/// Has endpoints call each other over a network that loses, repeats, delays and reorders as the
/// bytes say, while hosts stall and restart. No handler may run twice, no byte may be wrong, each
/// RPC has one outcome with a reason, and all books are right after each step. Then the network
/// heals: everything must end, all state go, and new calls succeed.
pub fn pair(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.heal();
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, host as u8 + 1).into(), 4000)
}

fn host_at(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(v4) => usize::from(v4.ip().octets()[3] - 1),
        SocketAddr::V6(_) => panic!("nobody is at {address}"),
    }
}

/// A length, short or long; never 0.
fn length(byte: u8) -> usize {
    match byte {
        0..64 => 1 + usize::from(byte) * 16,
        _ => 1000 + usize::from(byte - 64) * 99,
    }
}

impl Host {
    fn new(modes: u8, sizes: [u8; 4], host: usize, starts: u32) -> Self {
        let [mtu, unscheduled, receive_buffer, memory] = sizes;
        let config = Config {
            link_bps: if modes & 2 == 0 { 0 } else { 1_000_000_000 },
            rtt_ns: if modes & 4 == 0 { 0 } else { 50_000 },
            mtu: 400 + u16::from(mtu) * 16,
            unscheduled_bytes: u32::from(unscheduled) * 32,
            receive_buffer: match receive_buffer {
                0 => 0,
                some => 5_000 + u64::from(some) * 128,
            },
            max_overcommit: 1 + memory % 4,
            fifo_grant_increment: 2_000,
            max_unheard: if modes & 8 == 0 { 0 } else { 4_000 },
            min_grant: if modes & 16 == 0 { 0 } else { 3_000 },
            max_message: MAX_MESSAGE,
            resend_ceiling_ns: 5_000_000,
            timeout_ns: TIMEOUT_NS,
            max_queued: if modes & 64 == 0 { 0 } else { 30_000 },
            max_peer_bytes: if modes & 64 == 0 { 0 } else { 10_000 },
            max_stranger_bytes: if modes & 128 == 0 { 0 } else { 3_000 },
            max_peer_requests: if modes & 128 == 0 { 0 } else { 3 },
            ended_window_ns: ENDED_WINDOW_NS,
            ..Config::default()
        };
        let limits = Limits {
            rpcs: 8,
            peers: 3,
            ended: if modes & 32 == 0 { 64 } else { 2 },
        };
        // At least one of the short messages, at most several of the longest.
        let memory = HeapBuffers::new(1_000 + usize::from(memory) * 300);
        let seed = u128::from(starts) << 8 | host as u128;
        let mut node = Endpoint::new(config, seed, Storage::boxed(limits), memory)
            .expect("settings that work together");
        node.open_port(PORT).expect("the first port");
        Self {
            node,
            starts,
            stalled: false,
            kept: Vec::new(),
            heard: [None; 3],
            answered: [false; 3],
        }
    }

    fn check(&self) {
        if let Err(what) = self.node.check_invariants() {
            panic!("{what}");
        }
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let modes = input.u8();
        let hosts = 2 + usize::from(modes & 1);
        let mut host = |host| {
            let sizes = std::array::from_fn(|_| input.u8());
            Host::new(modes, sizes, host, 0)
        };
        Self {
            modes,
            hosts: (0..hosts).map(&mut host).collect(),
            flights: Vec::new(),
            calls: Vec::new(),
            now: Instant::ZERO,
            packets: vec![0; 65_536],
        }
    }

    fn host(&mut self, which: u8) -> usize {
        usize::from(which) % self.hosts.len()
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        match kind % 32 {
            0..=5 => {
                let (who, request) = (input.u8(), input.u8());
                let (response, deadline) = (input.u8(), input.u8());
                self.call(who, length(request), length(response), deadline);
            }
            6..=8 => self.answer(input.u8()),
            9 => self.cancel(input.u8()),
            // The network: the oldest arrives, any arrives, or some or all are lost or repeated.
            10..=12 => {
                for _ in 0..input.u8() % 16 {
                    self.deliver(0);
                }
            }
            13 => self.deliver(input.u8()),
            14 => {
                let at = input.u8();
                if let Some(at) = self.flight(at) {
                    self.flights.remove(at);
                }
            }
            15 => {
                let at = input.u8();
                if let Some(at) = self.flight(at) {
                    let Flight { from, to, sent, .. } = self.flights[at];
                    let bytes = self.flights[at].bytes.clone();
                    self.flights.push(Flight {
                        from,
                        to,
                        sent,
                        bytes,
                    });
                    self.deliver(at as u8);
                }
            }
            16 => self.flights.clear(),
            17 => self.deliver_all(),
            18 => {
                let to = input.u8();
                let to = self.host(to);
                self.flights.retain(|flight| flight.to != to);
            }
            19..=21 => {
                self.now = self.now.after(input.nanos());
                self.timeouts();
            }
            22 => self.now = self.now.after(input.nanos()),
            23..=25 => drop(self.wait_for_timeout()),
            26 | 27 => self.poll_events(true),
            28 => self.poll_events(false),
            29 => {
                let host = input.u8();
                let host = self.host(host);
                self.hosts[host].stalled ^= true;
            }
            30 => {
                let host = input.u8();
                let sizes = [input.u8(), input.u8(), input.u8(), input.u8()];
                let host = self.host(host);
                self.restart(host, sizes);
            }
            _ => self.recycle(),
        }
        // Several inputs may come before outputs are asked for.
        if kind < 192 {
            self.transmit();
        }
        self.hosts.iter().for_each(Host::check);
    }

    fn flight(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.flights.len())
    }

    // The applications.

    fn call(&mut self, who: u8, request: usize, response: usize, deadline: u8) {
        if self.calls.len() >= MAX_CALLS {
            return;
        }
        let client = self.host(who);
        let server =
            (client + 1 + usize::from(who / 16) % (self.hosts.len() - 1)) % self.hosts.len();
        let which = self.calls.len();
        let request = message(which * 2, request);
        let response = message(which * 2 + 1, response);
        let now = self.now;
        let deadline = (deadline > 191).then(|| now.after(u64::from(deadline - 191) << 20));
        let options = RequestOptions {
            cookie: which as u64,
            deadline,
            local_port: PORT,
        };
        let mut to: homa_proto::PeerAddr = address(server).into();
        to.port = PORT;
        let node = &mut self.hosts[client].node;
        match node.send_request(now, to, request, options) {
            Ok(rpc) => {
                let id = node.wire_id(rpc).expect("it has begun");
                assert!(
                    !self
                        .calls
                        .iter()
                        .any(|call| call.client == client && call.id == id),
                    "an id is used twice"
                );
                self.calls.push(Call {
                    client,
                    server,
                    id,
                    request,
                    response,
                    begun: now,
                    deadline,
                    live: Some(rpc),
                    forsaken: false,
                    ran: None,
                    in_service: None,
                    answering: None,
                });
            }
            Err(error) => {
                assert!(error.kind.is_full());
                assert_eq!(error.message, request);
            }
        }
    }

    fn answer(&mut self, which: u8) {
        let waiting: Vec<usize> = (0..self.calls.len())
            .filter(|&call| self.calls[call].in_service.is_some())
            .collect();
        if let Some(&call) = pick(&waiting, which) {
            self.answer_call(call);
        }
    }

    fn answer_call(&mut self, which: usize) {
        let call = &mut self.calls[which];
        let Some(rpc) = call.in_service.take() else {
            return;
        };
        let node = &mut self.hosts[call.server].node;
        match node.send_response(self.now, rpc, call.response) {
            Ok(()) => call.answering = Some(rpc),
            // The application tries again, as with a request that it has not got to yet.
            Err(error) if error.kind.is_full() => call.in_service = Some(rpc),
            Err(error) => {
                assert_eq!(error.kind, SendErrorKind::NoSuchRpc);
                assert!(
                    call.live.is_none(),
                    "a server gave a request up that its client waits for"
                );
            }
        }
    }

    fn cancel(&mut self, which: u8) {
        let Some(at) = usize::from(which / 2).checked_rem(self.calls.len()) else {
            return;
        };
        let call = &mut self.calls[at];
        if which.is_multiple_of(2) {
            if let Some(rpc) = call.live.take() {
                let cancelled = self.hosts[call.client].node.cancel(self.now, rpc);
                let message = cancelled.expect("it is live").message();
                assert_eq!(message, Some(call.request));
            }
        } else if let Some(rpc) = call.in_service.take() {
            let _ = self.hosts[call.server].node.cancel(self.now, rpc);
        } else if let Some(rpc) = call.answering.take() {
            let cancelled = self.hosts[call.server].node.cancel(self.now, rpc);
            let message = cancelled.expect("it has not been released").message();
            assert_eq!(message, Some(call.response));
        }
    }

    fn poll_events(&mut self, keep: bool) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].stalled {
                continue;
            }
            while let Some(event) = self.hosts[host].node.poll_event() {
                if let Some(buffer) = self.event(host, event) {
                    if keep {
                        self.hosts[host].kept.push(buffer);
                    } else {
                        self.hosts[host].node.recycle(self.now, buffer);
                    }
                }
            }
        }
    }

    /// Whether the applications may see this, now.
    fn event(
        &mut self,
        host: usize,
        event: Event<&'static [u8], HeapBuffer>,
    ) -> Option<HeapBuffer> {
        let Host {
            node,
            starts,
            heard,
            answered,
            ..
        } = &mut self.hosts[host];
        let now = self.now;
        match event {
            Event::Request {
                rpc,
                from,
                port,
                message,
                ..
            } => {
                let id = node.wire_id(rpc).expect("it waits for its response") ^ 1;
                let client = host_at(from.socket);
                let call = self
                    .calls
                    .iter_mut()
                    .find(|call| call.client == client && call.id == id)
                    .expect("nobody has sent this request");
                assert_eq!((call.server, from.port, port), (host, PORT, PORT));
                assert_eq!(&message[..], call.request);
                let again = call.ran == Some(*starts);
                assert!(
                    !again || node.stats().ended_window_shrunk > 0,
                    "a request ran twice"
                );
                call.ran = Some(*starts);
                call.in_service = Some(rpc);
                call.answering = None;
                Some(message)
            }
            Event::Response {
                rpc,
                cookie,
                from,
                message,
                request,
                ..
            } => {
                let call = &mut self.calls[cookie as usize];
                assert_eq!(call.live.take(), Some(rpc), "an RPC ended twice");
                assert_eq!((call.client, call.server), (host, host_at(from.socket)));
                assert!(call.ran.is_some(), "nobody has answered");
                answered[call.server] = true;
                assert_eq!(&message[..], call.response);
                assert_eq!(request, call.request);
                Some(message)
            }
            Event::Failed {
                rpc,
                cookie,
                peer,
                error,
                request,
                ..
            } => {
                let call = &mut self.calls[cookie as usize];
                assert_eq!(call.live.take(), Some(rpc), "an RPC ended twice");
                assert_eq!((call.client, call.server), (host, host_at(peer.socket)));
                assert_eq!(request, call.request);
                let long_ago = |at: Instant| now.nanos_since(at) >= TIMEOUT_NS;
                let heard = heard[call.server];
                let explained = match error {
                    RpcError::DeadlineExceeded => call.deadline.is_some_and(|at| at <= now),
                    RpcError::TooLongForBuffers => {
                        call.ran.is_some()
                            && call.response.len()
                                > homa_proto::BufferSource::max_len(node.buffers())
                    }
                    // Its own silence, or that of its peer.
                    RpcError::WentSilent => heard
                        .is_some_and(|at| call.forsaken || long_ago(call.begun) || long_ago(at)),
                    RpcError::NeverHeard => !answered[call.server],
                    _ => false,
                };
                assert!(
                    explained,
                    "{error:?} for no reason at {now:?}: begun {:?}, heard {heard:?}",
                    call.begun
                );
                None
            }
            Event::Released {
                rpc,
                peer,
                response,
                ..
            } => {
                let call = self
                    .calls
                    .iter_mut()
                    .find(|call| call.server == host && call.answering == Some(rpc))
                    .expect("this was not being answered");
                call.answering = None;
                assert_eq!(call.client, host_at(peer.socket));
                assert_eq!(response, call.response);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    fn recycle(&mut self) {
        for host in &mut self.hosts {
            for buffer in host.kept.drain(..) {
                host.node.recycle(self.now, buffer);
            }
        }
    }

    /// A host loses all that it knew, and the applications with it.
    fn restart(&mut self, host: usize, sizes: [u8; 4]) {
        let starts = self.hosts[host].starts + 1;
        self.hosts[host] = Host::new(self.modes, sizes, host, starts);
        for call in &mut self.calls {
            if call.client == host {
                call.live = None;
            }
            if call.server == host {
                call.in_service = None;
                call.answering = None;
            }
        }
    }

    // The network.

    fn transmit(&mut self) {
        for from in 0..self.hosts.len() {
            if !self.hosts[from].stalled {
                self.transmit_of(from);
            }
        }
        let lost = self.flights.len().saturating_sub(MAX_FLIGHTS);
        self.flights.drain(..lost);
    }

    fn transmit_of(&mut self, from: usize) {
        let node = &mut self.hosts[from].node;
        for _ in 0..20_000 {
            let Some(batch) = node.poll_transmit(self.now, &mut self.packets) else {
                return;
            };
            let bytes = &self.packets[..batch.len];
            for packet in bytes.chunks(batch.segment_size.unwrap_or(batch.len)) {
                self.flights.push(Flight {
                    from,
                    to: host_at(batch.to),
                    sent: self.now,
                    bytes: packet.to_vec(),
                });
            }
        }
        panic!("endless transmission");
    }

    fn deliver(&mut self, which: u8) {
        let Some(at) = self.flight(which) else {
            return;
        };
        let Flight {
            from,
            to,
            sent,
            bytes,
        } = self.flights.remove(at);
        let host = &mut self.hosts[to];
        if host.stalled || self.now.nanos_since(sent) > LONGEST_FLIGHT_NS {
            return;
        }
        let heard = host.heard[from].replace(self.now);
        if heard.is_some_and(|at| self.now.nanos_since(at) >= TIMEOUT_NS) {
            for call in &mut self.calls {
                call.forsaken |= (call.client, call.server) == (to, from);
            }
        }
        let _ = host
            .node
            .handle_packet(self.now, address(from), None, &bytes);
    }

    fn deliver_all(&mut self) {
        for _ in 0..self.flights.len() {
            self.deliver(0);
        }
    }

    // Time.

    fn timeouts(&mut self) {
        for host in self.hosts.iter_mut().filter(|host| !host.stalled) {
            for round in 0.. {
                assert!(round < 100, "a backlog does not shrink");
                host.node.handle_timeout(self.now);
                match host.node.poll_timeout() {
                    Some((_, TimeoutReason::MoreWork)) => {}
                    Some((_, TimeoutReason::Pacer)) | None => break,
                    Some((at, _)) => {
                        assert!(at > self.now, "what was done is still due");
                        break;
                    }
                }
            }
        }
    }

    /// Goes on to when somebody must be called. `false`: nobody need be.
    fn wait_for_timeout(&mut self) -> bool {
        let awake = self.hosts.iter_mut().filter(|host| !host.stalled);
        let next = awake
            .filter_map(|host| host.node.poll_timeout())
            .map(|(at, _)| at)
            .min();
        let Some(next) = next else {
            return false;
        };
        self.now = self.now.max(next);
        self.timeouts();
        true
    }

    // The end.

    fn heal(&mut self) {
        for host in &mut self.hosts {
            host.stalled = false;
        }
        self.timeouts();
        self.run_to_the_end();
        // Who has come through all this is as good as new.
        self.calls.clear();
        let before: Vec<u64> = self.answered().collect();
        let last = self.hosts.len() as u8;
        for who in 0..last {
            self.call(who, 900, 500, 0);
            self.call(who, 300, 900, 0);
        }
        assert_eq!(
            self.calls.len(),
            2 * self.hosts.len(),
            "there is room for a request"
        );
        self.run_to_the_end();
        for (after, before) in self.answered().zip(before) {
            assert_eq!(
                after,
                before + 2,
                "a call failed that nothing stood in the way of"
            );
        }
    }

    fn answered(&self) -> impl Iterator<Item = u64> {
        self.hosts
            .iter()
            .map(|host| host.node.stats().responses_received)
    }

    /// Nothing is lost any more and every request is answered: all must end, and soon.
    fn run_to_the_end(&mut self) {
        let end = self.now.after(ENDS_WITHIN_NS);
        for _ in 0..20_000 {
            self.poll_events(false);
            self.recycle();
            for call in 0..self.calls.len() {
                self.answer_call(call);
            }
            self.transmit();
            self.hosts.iter().for_each(Host::check);
            if !self.flights.is_empty() {
                self.now = self.now.after(5_000);
                self.deliver_all();
            } else if !self.wait_for_timeout() {
                return self.check_ended();
            }
            assert!(self.now < end, "an RPC takes for ever");
        }
        panic!("packets and timeouts without end");
    }

    fn check_ended(&self) {
        for call in &self.calls {
            assert!(call.live.is_none(), "an RPC never ended");
            assert!(call.in_service.is_none(), "a request was left unanswered");
            assert!(call.answering.is_none(), "a response was never released");
        }
        for Host { node, .. } in &self.hosts {
            assert_eq!(node.live_rpcs(), 0, "{:?}", node.stats());
            assert_eq!(node.total_incoming(), 0);
            assert_eq!(node.buffers().bytes_out(), 0);
        }
    }
}
