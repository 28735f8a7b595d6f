//! Hostile peers: each case with the bound that docs/security.md states.

#![allow(missing_docs)]

mod flood;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use homa_proto::wire::{ALL, AckEntry, Acks, Common, DATA_LEN, DataHeader, Repr};
use homa_proto::{
    Config, Endpoint, Event, HeapBuffer, HeapBuffers, Instant, Limits, RequestOptions, RpcId,
    Storage,
};

const PORT: u16 = 4000;
const POOL: usize = 64 << 20;
const MILLI: u64 = 1_000_000;

/// Control bytes to a stranger for each byte from it.
const FACTOR: u64 = 3;

struct Host {
    endpoint: Endpoint<'static, HeapBuffer, HeapBuffers>,
    now: u64,
    packet: Vec<u8>,
    address: SocketAddr,
}

fn config() -> Config {
    Config {
        max_message: 16 << 20,
        max_peer_requests: 128,
        max_peer_bytes: 32 << 20,
        max_stranger_bytes: 32 << 20,
        max_batch: 1,
        ..Config::default()
    }
}

fn address(number: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + number)), PORT)
}

impl Host {
    fn new(number: u32) -> Self {
        Self::with(number, config())
    }

    fn with(number: u32, config: Config) -> Self {
        let limits = Limits {
            rpcs: 256,
            peers: 64,
            ended: 4096,
        };
        Self::sized(number, config, limits)
    }

    fn sized(number: u32, config: Config, limits: Limits) -> Self {
        let tables = Storage::boxed(limits);
        let seed = u128::from(number) << 64 | 0x5eed;
        let mut endpoint = Endpoint::new(config, seed, tables, HeapBuffers::new(POOL)).unwrap();
        endpoint.open_port(PORT).unwrap();
        Self {
            endpoint,
            now: 1,
            packet: vec![0; 2048],
            address: address(number),
        }
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn take(&mut self, from: SocketAddr, bytes: &[u8]) {
        let now = self.at();
        let _ = self.endpoint.handle_packet(now, from, None, bytes);
    }

    /// All that is to be sent now.
    fn sends(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let now = self.at();
        let mut packets = Vec::new();
        while let Some(sent) = self.endpoint.poll_transmit(now, &mut self.packet) {
            packets.push((sent.to, self.packet[..sent.len].to_vec()));
        }
        packets
    }

    /// Goes on for a time; what is sent meanwhile, in bytes.
    fn idle(&mut self, nanos: u64) -> u64 {
        let end = self.now + nanos;
        let mut bytes = 0;
        loop {
            bytes += bytes_of(&self.sends());
            match self.endpoint.poll_timeout() {
                Some((at, _)) if at.as_nanos() <= end => {
                    self.now = self.now.max(at.as_nanos());
                    let now = self.at();
                    self.endpoint.handle_timeout(now);
                }
                _ => break,
            }
        }
        self.now = end;
        bytes
    }

    /// Answers all requests with one byte. How many there were.
    fn serve(&mut self) -> usize {
        let now = self.at();
        let mut count = 0;
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Request { rpc, message, .. } => {
                    self.endpoint.recycle(now, message);
                    let message = vec![7].into();
                    let _ = self.endpoint.send_response(now, rpc, message);
                    count += 1;
                }
                Event::Released { response, .. } => self.endpoint.recycle(now, response),
                _ => {}
            }
        }
        count
    }

    fn check(&self) {
        self.endpoint.check_invariants().unwrap();
    }
}

fn bytes_of(packets: &[(SocketAddr, Vec<u8>)]) -> u64 {
    packets.iter().map(|sent| sent.1.len() as u64).sum()
}

/// Passes packets between two hosts until nothing more comes. Requests that the server took.
fn exchange(client: &mut Host, server: &mut Host) -> usize {
    let mut served = 0;
    for _ in 0..10_000 {
        let (out, back) = (client.sends(), server.sends());
        let is_quiet = out.is_empty() && back.is_empty();
        for (to, bytes) in out {
            if to == server.address {
                server.take(client.address, &bytes);
            }
        }
        for (to, bytes) in back {
            if to == client.address {
                client.take(server.address, &bytes);
            }
        }
        served += server.serve();
        if is_quiet {
            break;
        }
    }
    served
}

fn request(client: &mut Host, server: &Host, len: usize) -> RpcId {
    let mut pool = HeapBuffers::new(len.next_power_of_two().max(64));
    let message = homa_proto::BufferSource::take(&mut pool, len).unwrap();
    let (now, to) = (client.at(), server.address.into());
    let options = RequestOptions::default();
    client
        .endpoint
        .send_request(now, to, message, options)
        .unwrap()
}

fn emit(repr: &Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    let len = repr.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

fn common(id: u64) -> Common {
    Common {
        source_port: PORT,
        dest_port: PORT,
        sender_id: id,
    }
}

fn data(id: u64, len: u32, incoming: u32, offset: u32, bytes: usize) -> Vec<u8> {
    let header = DataHeader {
        common: common(id),
        message_len: len,
        incoming,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: 0,
        offset,
    };
    let mut packet = vec![0; DATA_LEN + bytes];
    header.emit(&mut packet).unwrap();
    packet
}

/// First packets from `count` distinct forged addresses, each announcing a long message, among which a client with a
/// call under way keeps calling.
fn forged_sources(count: u32) {
    let (mut server, mut client) = (Host::new(0), Host::new(1));
    request(&mut client, &server, 100);
    for (_, bytes) in client.sends() {
        server.take(client.address, &bytes);
    }
    // It is being served all the time, so that the client's place is kept.
    let Some(Event::Request { rpc, .. }) = server.endpoint.poll_event() else {
        panic!("no request has come");
    };
    let (mut called, mut served) = (0, 0);
    let (mut heard, mut told) = (0, 0);
    for number in 0..count {
        let packet = data(u64::from(number) * 2 + 2, 100_000, 40_000, 0, 1000);
        heard += packet.len() as u64;
        server.take(address(1000 + number), &packet);
        assert!(server.endpoint.known_peers() <= 64 && server.endpoint.live_rpcs() <= 256);
        if number % 16 == 0 {
            told += bytes_of(&server.sends());
            server.now += 1000;
        }
        if number % (count / 50) == count / 100 {
            request(&mut client, &server, 100);
            called += 1;
            client.now = server.now;
            served += exchange(&mut client, &mut server);
        }
    }
    server.check();
    assert_eq!(served, called);
    let now = server.at();
    let answer = vec![7].into();
    server.endpoint.send_response(now, rpc, answer).unwrap();
    told += server.idle(20_000 * MILLI);
    // Of those that were refused each gets one short answer at most, and few of them.
    assert!(told < heard / 10, "{told} bytes for {heard}");
    server.serve();
    assert_eq!(server.endpoint.live_rpcs(), 0);
}

#[test]
fn hostile_forged_sources() {
    forged_sources(1_000_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes a while without optimisation")]
fn hostile_ten_million_forged_sources() {
    forged_sources(10_000_000);
}

#[test]
fn hostile_a_forged_first_packet_draws_less_than_three_times_its_bytes() {
    for (len, incoming, bytes) in [(16 << 20, 5, 5), (16 << 20, 0, 0), (1 << 20, 1 << 20, 1400)] {
        let mut server = Host::new(0);
        let packet = data(2, len, incoming, 0, bytes);
        server.take(address(9), &packet);
        let told = server.idle(30_000 * MILLI);
        assert!(told <= FACTOR * packet.len() as u64, "{told} bytes");
        assert!(told > 0);
        assert_eq!(server.endpoint.live_rpcs(), 0, "it is held for good");
        server.check();
    }
}

#[test]
fn hostile_announcements_of_the_longest_message_leave_room_for_honest_ones() {
    let (mut server, mut client) = (Host::new(0), Host::new(1));
    for number in 0..10_000 {
        let packet = data(2 + 2 * u64::from(number), 16 << 20, 40_000, 0, 1000);
        server.take(address(100 + number % 50), &packet);
    }
    // The budget of strangers is full: two messages of 16 MiB.
    assert!(server.endpoint.stats().dropped_over_budget > 9000);
    assert!(server.endpoint.live_rpcs() <= 2);
    for len in [1, 100, 1000] {
        request(&mut client, &server, len);
        assert_eq!(exchange(&mut client, &mut server), 1, "{len} bytes");
    }
    // By now the client has shown that it is there, so that longer messages pass too.
    request(&mut client, &server, 1_000_000);
    assert_eq!(exchange(&mut client, &mut server), 1);
    server.check();
}

#[test]
fn hostile_one_peer_gets_no_more_than_its_budget() {
    let mut server = Host::new(0);
    for number in 0..1000 {
        server.take(
            address(9),
            &data(2 + 2 * number, 1_000_000, 40_000, 0, 1000),
        );
        let _ = server.sends();
    }
    assert!(server.endpoint.live_rpcs() <= 33);
    for number in 0..1000 {
        // Whole requests: no bytes are arriving, but they take places.
        server.take(address(8), &data(2 + 2 * number, 10, 10, 0, 10));
    }
    assert!(server.endpoint.live_rpcs() <= 33 + 128);
    server.check();
}

#[test]
fn hostile_floods_of_questions_draw_no_more_than_they_bring() {
    for kind in 0..3 {
        let mut server = Host::new(0);
        let (mut heard, mut told, mut answers) = (0, 0, 0);
        for number in 0..100_000u64 {
            // As the other half of such an RPC would number it.
            let common = common(2 + 2 * number + u64::from(kind == 1));
            let packet = emit(&match kind {
                0 => Repr::Resend {
                    common,
                    offset: 0,
                    len: ALL,
                    priority: 7,
                },
                1 => Repr::NeedAck(common),
                _ => Repr::RpcUnknown(common),
            });
            heard += packet.len() as u64;
            server.take(address(9), &packet);
            if number % 64 == 0 {
                let packets = server.sends();
                answers += packets.len() as u64;
                told += bytes_of(&packets);
                server.now += 1000;
            }
        }
        assert!(told <= heard, "{told} bytes for {heard}");
        // A burst of eight, then one in 80 microseconds.
        assert!(answers <= 9 + server.now / 80_000, "{answers} answers");
        assert_eq!(kind < 2, server.endpoint.stats().replies_limited > 0);
        // The flood has used up the share of its own source: others are answered at once.
        let others = 1000..1032;
        for number in others.clone() {
            server.take(address(number), &emit(&Repr::NeedAck(common(3))));
        }
        let answered = server.sends().len();
        assert!(answered >= others.len() / 2, "{answered} answers");
        server.check();
    }
}

#[test]
fn hostile_grants_release_nothing_that_is_not_there() {
    let (server, mut client) = (Host::new(0), Host::new(1));
    request(&mut client, &server, 100_000);
    let unscheduled = client.sends();
    let mut sent = 0;
    let id = u64::from_be_bytes(unscheduled[0].1[20..28].try_into().unwrap());
    for offset in [0, 1, 50_000, u32::MAX, 1 << 31, 100_001] {
        let grant = Repr::Grant {
            common: common(id ^ 1),
            offset,
            priority: 9,
            resend_all: offset == 1,
        };
        let bytes = emit(&grant);
        client.take(address(77), &bytes);
        assert!(client.sends().is_empty(), "a stranger released something");
        client.take(server.address, &bytes);
        sent += bytes_of(&client.sends());
        client.check();
    }
    // The message is sent once, and what the grant asked to repeat.
    assert!(sent > 0 && sent < 2 * 120_000, "{sent}");
}

#[test]
fn hostile_busy_for_ever_is_silence_in_the_end() {
    let mut server = Host::new(0);
    // A stranger that sends one packet, and then BUSY for ever.
    server.take(address(5), &data(2, 100_000, 40_000, 0, 1400));
    let mut rounds = 0;
    while server.endpoint.live_rpcs() > 0 {
        server.idle(20 * MILLI);
        server.take(address(5), &emit(&Repr::Busy(common(2))));
        rounds += 1;
        // Sixteen time-outs of a second, and the last one without an answer.
        assert!(rounds < 20 * 50, "held for more than 20 s");
    }
    assert!(server.endpoint.stats().busy_too_long > 0);
    server.check();
}

#[test]
fn hostile_data_beyond_grants_and_lies_about_lengths_are_bounded() {
    let mut server = Host::new(0);
    server.take(address(5), &data(2, 200_000, 1000, 0, 1000));
    for offset in (0..200_000u32).step_by(1000).rev() {
        server.take(address(5), &data(2, 200_000, u32::MAX, offset, 1000));
        server.take(address(5), &data(2, 200_001, 1000, offset, 1000));
        server.take(
            address(5),
            &data(2, 100_000, 1000, offset.min(99_000), 1000),
        );
        server.check();
    }
    assert!(server.endpoint.total_incoming() <= 200_000);
    assert!(server.endpoint.stats().dropped_length_changed > 0);
}

#[test]
fn hostile_acks_and_guesses_of_a_third_party_reach_nothing() {
    let (mut server, mut client) = (Host::new(0), Host::new(1));
    request(&mut client, &server, 100);
    let sent = client.sends();
    server.take(client.address, &sent[0].1);
    assert_eq!(server.serve(), 1);
    let id = u64::from_be_bytes(sent[0].1[20..28].try_into().unwrap());
    let live = (server.endpoint.live_rpcs(), client.endpoint.live_rpcs());
    // It knows even the id; but it is not at the client's address.
    let mut acks = Acks::new();
    let _ = acks.push(AckEntry {
        client_id: id,
        server_port: PORT,
    });
    for repr in [
        Repr::Ack {
            common: common(id),
            acks,
        },
        Repr::RpcUnknown(common(id)),
        Repr::RpcUnknown(common(id ^ 1)),
        Repr::Busy(common(id ^ 1)),
    ] {
        server.take(address(66), &emit(&repr));
        client.take(address(66), &emit(&repr));
    }
    assert_eq!(
        live,
        (server.endpoint.live_rpcs(), client.endpoint.live_rpcs())
    );
    // At the server's own address it would have to guess the id: random, and another in each endpoint.
    for guess in (0..100_000u64).map(|guess| guess * 2) {
        client.take(server.address, &data(guess | 1, 10, 10, 0, 10));
    }
    assert_eq!(client.endpoint.live_rpcs(), 1);
    client.now = server.now;
    exchange(&mut client, &mut server);
    assert_eq!(client.endpoint.stats().responses_received, 1);
}

#[test]
fn hostile_ids_begin_at_random() {
    let first = |number| {
        let (mut client, server) = (Host::new(number), Host::new(9));
        let rpc = request(&mut client, &server, 1);
        client.endpoint.wire_id(rpc).unwrap()
    };
    let ids: Vec<u64> = (10..30).map(first).collect();
    for (at, id) in ids.iter().enumerate() {
        for other in &ids[at + 1..] {
            assert!(id.abs_diff(*other) > 1 << 32);
        }
    }
}

#[test]
fn hostile_every_other_byte_of_many_messages() {
    let mut server = Host::new(0);
    for id in 0..30u64 {
        for offset in (0..4000u32).step_by(2) {
            server.take(address(5), &data(2 + 2 * id, 100_000, 40_000, offset, 1));
        }
    }
    assert!(server.endpoint.stats().dropped_too_many_gaps > 30 * 1500);
    // Each holds 12 holes in its slot, and what can be asked for at once is as much.
    let packets = server.sends();
    assert!(packets.len() < 30 * 16);
    server.check();
}

#[test]
fn hostile_a_replay_runs_nothing_again() {
    let (mut server, mut client) = (Host::new(0), Host::new(1));
    let mut recorded = Vec::new();
    for len in [1, 100, 1400, 60_000] {
        request(&mut client, &server, len);
        for _ in 0..200 {
            for (_, bytes) in client.sends() {
                recorded.push(bytes.clone());
                server.take(client.address, &bytes);
            }
            server.serve();
            for (_, bytes) in server.sends() {
                client.take(server.address, &bytes);
            }
        }
        client.idle(10 * MILLI);
        for (_, bytes) in client.sends() {
            server.take(client.address, &bytes);
        }
    }
    let ran = server.endpoint.stats().requests_received;
    assert_eq!(ran, 4);
    server.idle(5_000 * MILLI);
    for bytes in recorded.iter().chain(&recorded) {
        server.take(client.address, bytes);
        server.idle(MILLI);
    }
    assert_eq!(server.endpoint.stats().requests_received, ran);
    assert!(server.endpoint.stats().dropped_ended_rpc > 0);
}
