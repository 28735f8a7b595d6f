//! Lending the data of long messages puts the same packets on the wire as copying it.

use std::net::SocketAddr;

use homa_proto::{
    Config, Endpoint, Event, HeapBuffer, HeapBuffers, Instant, Lent, Limits, RequestOptions,
    Storage, Transmit,
};

type Node = Endpoint<'static, HeapBuffer, HeapBuffers>;

const PORT: u16 = 4000;

fn addr(at: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + at as u8], PORT))
}

fn node(config: &Config, at: usize) -> Node {
    let tables = Storage::boxed(Limits::default());
    let memory = HeapBuffers::new(64 << 20);
    let mut node = Endpoint::new(config.clone(), 7 + at as u128, tables, memory).unwrap();
    node.open_port(PORT).unwrap();
    node
}

/// xorshift64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn copied(node: &mut Node, now: Instant, buffer: &mut [u8]) -> Option<(Transmit, Vec<Vec<u8>>)> {
    let sent = node.poll_transmit(now, buffer)?;
    let size = sent.segment_size.unwrap_or(sent.len);
    let packets = buffer[..sent.len].chunks(size).map(<[u8]>::to_vec);
    Some((sent, packets.collect()))
}

/// Also tells how many bytes were lent.
fn lent(
    node: &mut Node,
    now: Instant,
    buffer: &mut [u8],
    least: usize,
) -> Option<(Transmit, Vec<Vec<u8>>, usize)> {
    let sent = node.poll_transmit_lent(now, buffer, least)?;
    let size = sent.transmit.segment_size.unwrap_or(sent.transmit.len);
    let packets = if sent.payload.is_empty() {
        buffer[..sent.transmit.len]
            .chunks(size)
            .map(<[u8]>::to_vec)
            .collect()
    } else {
        let packets: Vec<_> = sent
            .packets(buffer)
            .map(|parts| [parts.0, parts.1].concat())
            .collect();
        let headers = packets.len() * Lent::HEADER_LEN;
        assert_eq!(headers + sent.payload.len(), sent.transmit.len);
        packets
    };
    Some((sent.transmit, packets, sent.payload.len()))
}

#[test]
fn lending_and_copying_send_the_same() {
    let mut total = 0;
    for seed in 1..=25 {
        let mut rng = Rng(seed * 0x9e37_79b9);
        let config = Config {
            link_bps: [0, 4_000_000_000][rng.below(2) as usize],
            rtt_ns: [0, 20_000][rng.below(2) as usize],
            resend_floor_ns: 100_000,
            max_batch: 1 + rng.below(64) as u16,
            ..Config::default()
        };
        // Twice the same two endpoints: the first two copy, the others lend.
        let mut nodes = [0, 1, 0, 1].map(|at| node(&config, at));
        let least = rng.below(4_000) as usize;
        let mut now = Instant::from_nanos(1_000);
        let mut buffer = vec![0; 65_536];
        let mut other = vec![0; 65_536];
        let (mut started, mut ended) = (0, 0);
        let mut steps = 0;
        while ended < 30 {
            steps += 1;
            assert!(steps < 200_000, "seed {seed}: no end");
            if started < 30 && rng.below(3) == 0 {
                let most = [100, 3_000, 300_000][rng.below(3) as usize];
                let len = 1 + rng.below(most) as usize;
                let from = rng.below(2) as usize;
                let message: Vec<u8> = (0..len).map(|i| (i * 31 + started) as u8).collect();
                for twin in [0, 2] {
                    let options = RequestOptions::default();
                    let to = addr(1 - from).into();
                    let sent =
                        nodes[twin + from].send_request(now, to, message.clone().into(), options);
                    sent.map_err(|error| error.kind).unwrap();
                }
                started += 1;
            }
            for at in 0..2 {
                loop {
                    let first = copied(&mut nodes[at], now, &mut buffer);
                    let second = lent(&mut nodes[2 + at], now, &mut other, least);
                    let Some((transmit, packets)) = first else {
                        assert!(second.is_none(), "seed {seed}: lending sends more");
                        break;
                    };
                    let (twin, twins, bytes) = second.expect("lending sends less");
                    assert_eq!(transmit, twin, "seed {seed}");
                    assert!(packets == twins, "seed {seed}: other bytes");
                    total += bytes;
                    for packet in packets {
                        if rng.below(30) > 0 {
                            for twin in [0, 2] {
                                let to = &mut nodes[twin + 1 - at];
                                let _ = to.handle_packet(now, addr(at), None, &packet);
                            }
                        }
                    }
                }
                for twin in [0, 2] {
                    let node = &mut nodes[twin + at];
                    node.check_invariants().unwrap();
                    while let Some(event) = node.poll_event() {
                        match event {
                            Event::Request { rpc, message, .. } => {
                                let sent = node.send_response(now, rpc, message);
                                sent.map_err(|error| error.kind).unwrap();
                            }
                            Event::Response { message, .. } => {
                                node.recycle(now, message);
                                ended += u64::from(twin == 0);
                            }
                            Event::Released { response, .. } => node.recycle(now, response),
                            Event::Failed { error, .. } => panic!("seed {seed}: {error}"),
                            _ => {}
                        }
                    }
                }
            }
            now = now.after(1 + rng.below(20_000));
            for node in &mut nodes {
                node.handle_timeout(now);
            }
        }
    }
    assert!(total > 4_000_000, "only {total} bytes were lent");
}
