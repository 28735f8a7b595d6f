//! Writes first inputs for each target: `cargo run --no-default-features --example seeds -- DIR`.
//!
//! Packets are those that the Linux kernel module sent, one of each kind from the project's own
//! encoder, and what two endpoints say to each other when some of it is lost.

use std::collections::HashSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use homa_mio::sys::Outgoing;
use homa_mio::sys::layout::{Control, Name};
use homa_proto::wire::{ALL, AckEntry, Acks, Common, DataHeader, Repr};
use homa_proto::{Config, Endpoint, Event, HeapBuffers, Instant, Limits, RequestOptions, Storage};

struct Seeds {
    directory: PathBuf,
    count: usize,
}

impl Seeds {
    fn write(&mut self, target: &str, bytes: &[u8]) -> std::io::Result<()> {
        let directory = self.directory.join(target);
        fs::create_dir_all(&directory)?;
        self.count += 1;
        fs::write(directory.join(format!("first-{:03}", self.count)), bytes)
    }
}

fn main() -> std::io::Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "corpus".into());
    let mut seeds = Seeds {
        directory: PathBuf::from(directory),
        count: 0,
    };
    let mut packets = kernel_packets();
    packets.extend(every_kind());
    let said = conversation();
    for packet in packets.iter().chain(&said) {
        seeds.write("parse", &packet[..packet.len().min(256)])?;
    }
    for packet in &said {
        // A setting of 13 bytes, a step that hands in the packet, and one that polls.
        let mut bytes = vec![0, 1, 20, 8, 12, 2, 8, 44, 40, 0, 8, 60, 28, 0, 0];
        bytes.push(packet.len().min(255) as u8);
        bytes.extend(&packet[..packet.len().min(255)]);
        bytes.extend([27, 60, 29]);
        seeds.write("endpoint", &bytes)?;
    }
    for bytes in steps() {
        seeds.write("pair", &bytes)?;
    }
    for side in [0, 1] {
        // Many messages in a few packets each, compared or sent now and then.
        let bytes: Vec<u8> = [side, 3, 20, 9, 0, 30, 4, 6]
            .into_iter()
            .chain((0..240).map(|i: u8| i.wrapping_mul(side * 2 + 11)))
            .collect();
        for len in [30, 60, 120, 240] {
            seeds.write("differential", &bytes[..len])?;
        }
    }
    for bytes in from_the_kernel() {
        seeds.write("driver", &bytes)?;
    }
    println!("{} seeds", seeds.count);
    Ok(())
}

fn kernel_packets() -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../homa-proto/tests/vectors/kernel-packets.txt");
    let text = fs::read_to_string(file).expect("the captured packets");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let hex = lines.filter_map(|line| line.split_whitespace().nth(3));
    let byte = |two: &[u8]| {
        std::str::from_utf8(two)
            .ok()
            .and_then(|two| u8::from_str_radix(two, 16).ok())
    };
    hex.map(|hex| hex.as_bytes().chunks(2).filter_map(byte).collect())
        .collect()
}

fn every_kind() -> Vec<Vec<u8>> {
    let client = Common {
        source_port: 9,
        dest_port: 7,
        sender_id: 1234,
    };
    let server = Common {
        source_port: 7,
        dest_port: 9,
        sender_id: 1235,
    };
    let ack = AckEntry {
        client_id: 1230,
        server_port: 7,
    };
    let mut acks = Acks::new();
    while acks.push(ack) {}
    let header = DataHeader {
        common: client,
        message_len: 50_000,
        incoming: 10_000,
        ack: Some(ack),
        cutoff_version: 3,
        retransmit: true,
        flags: 1,
        offset: 1400,
    };
    let all = [
        Repr::Data {
            header,
            data: b"some bytes",
        },
        Repr::Data {
            header: DataHeader {
                offset: 0,
                ..header
            },
            data: b"",
        },
        Repr::Grant {
            common: server,
            offset: 20_000,
            priority: 2,
            resend_all: true,
        },
        Repr::Resend {
            common: server,
            offset: 1400,
            len: 2800,
            priority: 7,
        },
        Repr::Resend {
            common: client,
            offset: 0,
            len: ALL,
            priority: 7,
        },
        Repr::RpcUnknown(server),
        Repr::Busy(server),
        Repr::Cutoffs {
            common: server,
            cutoffs: [0, 0, 0, 0, 1_000_000, 15_000, 2_800, 200],
            version: 3,
            unscheduled_limit: Some(16_000),
        },
        Repr::Freeze(client),
        Repr::NeedAck(server),
        Repr::Ack {
            common: client,
            acks,
        },
    ];
    let mut bytes = [0; 200];
    all.iter()
        .map(|repr| {
            let len = repr.emit(&mut bytes).expect("room");
            bytes[..len].to_vec()
        })
        .collect()
}

/// All different packets that two endpoints exchange over calls of several sizes when every
/// seventh packet is lost.
fn conversation() -> Vec<Vec<u8>> {
    let limits = Limits {
        rpcs: 8,
        peers: 2,
        ended: 8,
    };
    let config = Config {
        mtu: 256,
        unscheduled_bytes: 1000,
        ..Config::default()
    };
    let address = |host: usize| SocketAddr::new(Ipv4Addr::new(10, 0, 0, host as u8 + 1).into(), 7);
    let mut hosts: Vec<Endpoint<'_, Vec<u8>, HeapBuffers>> = (0..2)
        .map(|seed| {
            let tables = Storage::boxed(limits);
            let memory = HeapBuffers::new(1 << 16);
            let mut host =
                Endpoint::new(config.clone(), seed, tables, memory).expect("sound settings");
            host.open_port(7).expect("the first port");
            host
        })
        .collect();
    let (mut now, mut said, mut kinds, mut count) = (Instant::ZERO, Vec::new(), HashSet::new(), 0);
    for len in [1, 150, 900, 3000, 9000] {
        let message = vec![len as u8; len];
        let sent =
            hosts[0].send_request(now, address(1).into(), message, RequestOptions::default());
        sent.expect("there is room");
        let mut quiet = 0;
        while quiet < 3 {
            quiet += 1;
            for from in 0..2 {
                let mut buffer = [0; 256];
                while let Some(batch) = hosts[from].poll_transmit(now, &mut buffer) {
                    quiet = 0;
                    count += 1;
                    let packet = &buffer[..batch.len];
                    if kinds.insert((from, packet[11], packet.len() / 32, len)) {
                        said.push(packet.to_vec());
                    }
                    if count % 7 != 0 {
                        let _ = hosts[1 - from].handle_packet(now, address(from), None, packet);
                    }
                }
                while let Some(event) = hosts[from].poll_event() {
                    if let Event::Request { rpc, message, .. } = event {
                        let answer = message.iter().rev().copied().collect();
                        let _ = hosts[from].send_response(now, rpc, answer);
                    }
                }
            }
            let next = hosts
                .iter_mut()
                .filter_map(|host| host.poll_timeout())
                .map(|(at, _)| at)
                .min();
            if let Some(at) = next.filter(|_| quiet > 0) {
                now = now.max(at);
                hosts.iter_mut().for_each(|host| host.handle_timeout(now));
            }
        }
    }
    said
}

/// Calls over a network that loses, repeats, delays and restarts.
fn steps() -> Vec<Vec<u8>> {
    let setting = [0, 70, 20, 0, 80, 70, 20, 40, 80];
    let call: &[u8] = &[0, 0, 200, 100, 0];
    let (deliver, events, answer): (&[u8], &[u8], &[u8]) = (&[17], &[28], &[6, 0]);
    let (lose, timeout, time): (&[u8], &[u8], &[u8]) = (&[16], &[23], &[19, 0x6f]);
    let (repeat, restart, stall): (&[u8], &[u8], &[u8]) =
        (&[15, 0], &[30, 1, 9, 9, 9, 9], &[29, 1]);
    let all: [&[&[u8]]; 7] = [
        &[call, deliver, events, answer, deliver, events, deliver],
        &[
            call, lose, timeout, timeout, deliver, deliver, events, answer, lose, timeout, deliver,
            deliver,
        ],
        &[
            call, call, call, repeat, deliver, events, answer, answer, repeat, deliver, events,
            time, deliver,
        ],
        &[
            call, deliver, events, restart, timeout, timeout, deliver, deliver, events, answer,
            deliver, events,
        ],
        &[
            call, deliver, stall, time, time, stall, timeout, deliver, events, answer, deliver,
            events,
        ],
        &[
            call,
            call,
            deliver,
            events,
            &[9, 0],
            answer,
            &[9, 3],
            deliver,
            events,
        ],
        &[
            call,
            &[13, 2],
            &[14, 0],
            deliver,
            timeout,
            deliver,
            deliver,
            events,
            answer,
            &[10, 9],
            lose,
            timeout,
        ],
    ];
    let with =
        |modes: u8| move |steps: &&[&[u8]]| [&[modes][..], &setting[1..], &steps.concat()].concat();
    let two_hosts = all.iter().map(with(0));
    let paced = all.iter().map(with(6));
    two_hosts.chain(paced).collect()
}

/// Addresses and control messages in the kernel's form, as the drivers write them.
fn from_the_kernel() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for to in [
        "192.0.2.7:9000",
        "[2001:db8::1]:65535",
        "[::ffff:192.0.2.7]:1",
    ] {
        let to: SocketAddr = to.parse().expect("an address");
        let name = Name::encode(to);
        all.push([&[0, name.len as u8][..], &name.bytes].concat());
        let mut control = Control::EMPTY;
        control.write(&Outgoing {
            to,
            local: Some(to.ip()),
            tos: Some(0xe2),
            start: 0,
            len: 3000,
            segment_size: Some(1472),
        });
        all.push([&[1, control.len as u8][..], &control.bytes[..control.len]].concat());
        all.push(
            [
                &[2, 7, 7][..],
                &name.bytes[4..20],
                &[7, 1, 2, 3, 4, 5, 6, 7],
            ]
            .concat(),
        );
    }
    all.push(vec![
        3, 2, 0, 64, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 32, 0, 4,
    ]);
    all
}
