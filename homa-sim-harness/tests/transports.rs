//! The transports in small networks where one knows what must come out.

use homa_sim_harness::fault::{Faults, NthPacket, PacketFaults};
use homa_sim_harness::network::{Network, Routing, SwitchSettings};
use homa_sim_harness::packet::{HostId, Waited};
use homa_sim_harness::sim::{Application, Outbox, Setup, Simulation, Software};
use homa_sim_harness::topology::{Buffer, Topology};
use homa_sim_harness::transport::tcp::{Algorithm, Settings, Tcp};
use homa_sim_harness::transport::{Delivery, Message, Outcome, Transport};

const GBPS: u64 = 1_000_000_000;

/// Sends messages at set times and notes when they arrive.
struct Script {
    messages: Vec<Message>,
    arrived: Vec<(u32, u64)>,
}

impl Application for Script {
    fn start(&mut self, out: &mut Outbox) {
        for (token, message) in self.messages.iter().enumerate() {
            out.wake(message.started, token as u32);
        }
    }

    fn wake(&mut self, _now: u64, token: u32, out: &mut Outbox) {
        out.send(self.messages[token as usize]);
    }

    fn delivered(&mut self, now: u64, delivery: Delivery, message: &Message, out: &mut Outbox) {
        match (delivery.outcome, message.reply_bytes) {
            (Outcome::Request, Some(_)) => out.reply(delivery.message),
            (Outcome::Failed(why), _) => panic!("message {} failed: {why}", message.tag),
            _ => self.arrived.push((message.tag, now)),
        }
    }
}

fn message(tag: u32, from: HostId, to: HostId, bytes: u32, started: u64) -> Message {
    Message {
        from,
        to,
        bytes,
        reply_bytes: None,
        started,
        tag,
        deadline: None,
        waited: Waited::default(),
    }
}

struct Case {
    hosts: usize,
    buffer: Buffer,
    ecn_bytes: Option<u64>,
    faults: PacketFaults,
    messages: Vec<Message>,
}

impl Case {
    fn new(hosts: usize, messages: Vec<Message>) -> Self {
        Self {
            hosts,
            buffer: Buffer::Infinite,
            ecn_bytes: None,
            faults: PacketFaults::default(),
            messages,
        }
    }

    fn run<T: Transport>(self, transport: T) -> Simulation<T, Script> {
        let topology = Topology::single_switch(self.hosts, 10 * GBPS, 500, 0);
        let settings = SwitchSettings {
            buffer: self.buffer,
            ecn_bytes: self.ecn_bytes,
            routing: Routing::Flow,
            levels: 8,
        };
        let software = Software {
            tx_ns: 2000,
            rx_ns: 2000,
            ..Software::default()
        };
        let expected = self.messages.len();
        let script = Script {
            messages: self.messages,
            arrived: Vec::new(),
        };
        let network = Network::new(&topology, settings, software.rx_ns, 1);
        let faults = Faults::new(self.faults, Vec::new(), self.hosts, 1);
        let setup = Setup {
            software,
            seed: 1,
            keep_ids: false,
        };
        let mut sim = Simulation::new(network, transport, script, faults, setup);
        while sim.run(20_000_000_000, 1_000_000) {}
        assert_eq!(sim.app.arrived.len(), expected);
        sim
    }
}

fn tcp(algorithm: Algorithm, hosts: usize) -> Tcp {
    connected(algorithm, hosts, 1)
}

fn connected(algorithm: Algorithm, hosts: usize, connections: u16) -> Tcp {
    let settings = Settings {
        algorithm,
        mtu: 1500,
        initial_window: 10,
        rto_min_ns: 1_000_000,
        ack_delay_ns: 500_000,
        connections,
    };
    Tcp::new(settings, hosts)
}

fn counter<T: Transport, A: Application>(sim: &Simulation<T, A>, name: &str) -> u64 {
    let counters = sim.transport.counters();
    counters.iter().find(|c| c.0 == name).expect(name).1
}

const ALGORITHMS: [Algorithm; 3] = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp];

#[test]
fn one_flow_fills_the_link() {
    for algorithm in ALGORITHMS {
        let bytes = 50_000_000;
        let sim = Case::new(2, vec![message(0, 0, 1, bytes, 0)]).run(tcp(algorithm, 2));
        // 1542 bytes on the wire for each 1448.
        let line_ns = f64::from(bytes) * 8.0 / 10.0 * 1542.0 / 1448.0;
        let took = sim.app.arrived[0].1 as f64;
        assert!(took < line_ns * 1.02, "{algorithm:?}: {took} of {line_ns}");
        assert!(took > line_ns);
        assert_eq!(counter(&sim, "retransmitted"), 0);
    }
}

#[test]
fn two_flows_share() {
    for algorithm in ALGORITHMS {
        let messages = vec![
            message(0, 0, 2, 40_000_000, 0),
            message(1, 1, 2, 40_000_000, 0),
        ];
        let mut case = Case::new(3, messages);
        case.buffer = Buffer::PerPort { bytes: 400_000 };
        case.ecn_bytes = Some(60_000);
        let sim = case.run(tcp(algorithm, 3));
        let both = 80_000_000.0 * 0.8 * 1542.0 / 1448.0;
        let first = sim.app.arrived[0].1 as f64;
        let last = sim.app.arrived[1].1 as f64;
        // Nobody is starved, and the link stays busy.
        assert!(first > both * 0.6, "{algorithm:?}: {first} of {both}");
        assert!(last < both * 1.15, "{algorithm:?}: {last} of {both}");
    }
}

#[test]
fn a_lost_segment_is_repaired_without_a_timeout() {
    for algorithm in ALGORITHMS {
        for nth in [50, 333, 2000] {
            let mut case = Case::new(2, vec![message(0, 0, 1, 5_000_000, 0)]);
            case.faults.drop_nth = vec![NthPacket { kind: 0, nth }];
            let sim = case.run(tcp(algorithm, 2));
            assert_eq!(counter(&sim, "timeouts"), 0, "{algorithm:?} {nth}");
            assert_eq!(counter(&sim, "recoveries"), 1, "{algorithm:?} {nth}");
            assert_eq!(counter(&sim, "retransmitted"), 1, "{algorithm:?} {nth}");
        }
    }
}

#[test]
fn a_burst_of_losses_is_repaired_in_one_recovery() {
    for algorithm in ALGORITHMS {
        let mut case = Case::new(2, vec![message(0, 0, 1, 5_000_000, 0)]);
        let lost = [1000, 1001, 1002, 1004, 1006];
        case.faults.drop_nth = lost.map(|nth| NthPacket { kind: 0, nth }).to_vec();
        let sim = case.run(tcp(algorithm, 2));
        assert_eq!(counter(&sim, "timeouts"), 0, "{algorithm:?}");
        assert_eq!(counter(&sim, "recoveries"), 1, "{algorithm:?}");
        assert_eq!(counter(&sim, "retransmitted"), 5, "{algorithm:?}");
    }
}

#[test]
fn a_lost_tail_waits_for_the_timeout() {
    // A message of one segment has no later data to show the loss.
    let mut case = Case::new(2, vec![message(0, 0, 1, 1000, 0)]);
    case.faults.drop_nth = vec![NthPacket { kind: 0, nth: 0 }];
    let sim = case.run(tcp(Algorithm::NewReno, 2));
    assert_eq!(counter(&sim, "timeouts"), 1);
    assert!(sim.app.arrived[0].1 > 1_000_000);
}

#[test]
fn tcp_survives_heavy_loss() {
    for algorithm in ALGORITHMS {
        let messages = (0..50)
            .map(|n| message(n, (n % 3) as HostId, 3, 1 + n * 3000, u64::from(n) * 10_000))
            .collect();
        let mut case = Case::new(4, messages);
        case.faults = PacketFaults {
            loss: 0.1,
            duplicate: 0.05,
            delay: 0.1,
            late_ns: 50_000,
            ..PacketFaults::default()
        };
        // That all arrive is what `run` asserts.
        let sim = case.run(tcp(algorithm, 4));
        assert!(counter(&sim, "retransmitted") > 0);
    }
}

#[test]
fn dctcp_keeps_the_queue_short_and_cubic_fills_the_buffer() {
    let run = |algorithm| {
        let messages = (0..4)
            .map(|n| message(u32::from(n), n, 4, 20_000_000, 0))
            .collect();
        let mut case = Case::new(5, messages);
        case.buffer = Buffer::PerPort { bytes: 1_000_000 };
        case.ecn_bytes = Some(40_000);
        let sim = case.run(tcp(algorithm, 5));
        let (_, stats) = sim.network.ports().nth(4).unwrap();
        let last = sim.app.arrived[3].1 as f64;
        assert!(
            last < 80_000_000.0 * 0.8 * 1542.0 / 1448.0 * 1.1,
            "{algorithm:?}"
        );
        (stats.queued.mean(sim.now()), stats.dropped[0])
    };
    let (dctcp, dropped) = run(Algorithm::Dctcp);
    assert!((5_000.0..90_000.0).contains(&dctcp), "{dctcp}");
    assert_eq!(dropped, 0);
    let (cubic, dropped) = run(Algorithm::Cubic);
    assert!(cubic > 300_000.0, "{cubic}");
    assert!(dropped > 0);
}

/// A short message behind a long one waits for it on one connection, and takes an idle one where there are several.
#[test]
fn messages_take_the_connection_with_the_least_to_do() {
    let time = |connections| {
        let messages = vec![
            message(0, 0, 1, 10_000_000, 0),
            message(1, 0, 1, 100, 1_000_000),
        ];
        let sim = Case::new(2, messages).run(connected(Algorithm::Cubic, 2, connections));
        let short = sim.app.arrived.iter().find(|arrived| arrived.0 == 1);
        short.unwrap().1 - 1_000_000
    };
    assert!(time(1) > 6_000_000);
    assert!(time(3) < 200_000, "{}", time(3));
}
