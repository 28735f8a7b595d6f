//! Floods of forged first packets, on links with a speed: what they cost those who behave.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use homa_proto::{Config, Event, HeapBuffer, Limits, RequestOptions};

use super::{Host, MILLI, address, config, data};

/// Picoseconds for each byte: 10 Gb/s.
const BYTE_PS: u64 = 800;
const LINK_BPS: u64 = 10_000_000_000;
/// From a host to the switch, and from there to another.
const HOP_NS: u64 = 1_000;
/// Headers below Homa's.
const BELOW: u64 = 66;

/// Where a packet is: at the switch, or at its host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Switch,
    Host,
}

type Arrival = (u64, u64, Place, usize, SocketAddr, Vec<u8>);

/// Hosts around a switch with first-in-first-out queues, the first of them the server, and somebody
/// who sends it forged first packets at a steady rate.
struct Star {
    hosts: Vec<Host>,
    now: u64,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    count: u64,
    /// When the links from and to each host will have done what they have to do.
    up: Vec<u64>,
    down: Vec<u64>,
    flood: Option<Flood>,
    next_forged: u64,
    forged: u32,
}

/// Forged first packets, each from an address of its own.
#[derive(Clone, Copy, Debug)]
struct Flood {
    every_ns: u64,
    len: u32,
    incoming: u32,
}

fn linked() -> Config {
    Config {
        link_bps: LINK_BPS,
        rtt_ns: 10_000,
        ..config()
    }
}

impl Star {
    fn new(flood: Option<Flood>) -> Self {
        let server = Host::sized(0, linked(), Limits::default());
        Self {
            hosts: vec![server],
            now: 1,
            arrivals: BinaryHeap::new(),
            count: 0,
            up: vec![0],
            down: vec![0],
            flood,
            next_forged: 1,
            forged: 0,
        }
    }

    /// One more host: its number.
    fn join(&mut self) -> usize {
        let number = self.hosts.len();
        self.hosts.push(Host::with(number as u32, linked()));
        self.up.push(0);
        self.down.push(0);
        number
    }

    fn arrive(&mut self, at: u64, place: Place, to: usize, from: SocketAddr, bytes: Vec<u8>) {
        self.count += 1;
        self.arrivals
            .push(Reverse((at, self.count, place, to, from, bytes)));
    }

    /// What a host has to send goes onto its link; to addresses that nobody has, nowhere.
    fn send(&mut self, host: usize) {
        self.hosts[host].now = self.now;
        for (to, bytes) in self.hosts[host].sends() {
            let start = self.now.max(self.up[host]);
            let end = start + (bytes.len() as u64 + BELOW) * BYTE_PS / 1000;
            self.up[host] = end;
            let from = self.hosts[host].address;
            if let Some(to) = self.hosts.iter().position(|host| host.address == to) {
                self.arrive(end + HOP_NS, Place::Switch, to, from, bytes);
            }
        }
    }

    fn hand_over(&mut self, place: Place, to: usize, from: SocketAddr, bytes: Vec<u8>) {
        match place {
            Place::Switch => {
                let start = self.now.max(self.down[to]);
                let end = start + (bytes.len() as u64 + BELOW) * BYTE_PS / 1000;
                self.down[to] = end;
                self.arrive(end + HOP_NS, Place::Host, to, from, bytes);
            }
            Place::Host => {
                self.hosts[to].now = self.now;
                self.hosts[to].take(from, &bytes);
                if to == 0 {
                    self.hosts[0].serve();
                }
                self.send(to);
            }
        }
    }

    /// The next thing that happens, up to a time.
    fn step(&mut self, until: u64) {
        let timer = |host: &mut Host| host.endpoint.poll_timeout().map(|(at, _)| at.as_nanos());
        let due: Vec<_> = self.hosts.iter_mut().map(timer).collect();
        let timer = due.iter().flatten().min().copied().unwrap_or(u64::MAX);
        let arrival = self.arrivals.peek().map_or(u64::MAX, |next| next.0.0);
        let forged = self.flood.map_or(u64::MAX, |_| self.next_forged);
        let next = timer.min(arrival).min(forged).min(until).max(self.now);
        self.now = next;
        if arrival <= next {
            let Reverse((_, _, place, to, from, bytes)) = self.arrivals.pop().unwrap();
            self.hand_over(place, to, from, bytes);
        } else if forged <= next {
            let flood = self.flood.unwrap();
            self.next_forged += flood.every_ns;
            self.forged += 1;
            let id = 2 + 2 * u64::from(self.forged);
            let packet = data(
                id,
                flood.len,
                flood.incoming,
                0,
                1000.min(flood.len as usize),
            );
            let from = address(1000 + self.forged);
            self.hand_over(Place::Switch, 0, from, packet);
        } else if timer <= next {
            let host = due.iter().position(|&at| at == Some(timer)).unwrap();
            self.hosts[host].now = self.now;
            let now = self.hosts[host].at();
            self.hosts[host].endpoint.handle_timeout(now);
            self.send(host);
        }
    }

    fn run(&mut self, nanos: u64) {
        let until = self.now + nanos;
        while self.now < until {
            self.step(until);
        }
    }

    /// A call of `len` bytes: how long it takes, in nanoseconds.
    fn call(&mut self, host: usize, len: usize) -> u64 {
        let start = self.now;
        let to = self.hosts[0].address.into();
        let client = &mut self.hosts[host];
        client.now = start;
        let (now, message) = (client.at(), HeapBuffer::from(vec![7; len]));
        client
            .endpoint
            .send_request(now, to, message, RequestOptions::default())
            .unwrap();
        self.send(host);
        loop {
            match self.hosts[host].endpoint.poll_event() {
                Some(Event::Response { message, .. }) => {
                    let now = self.hosts[host].at();
                    self.hosts[host].endpoint.recycle(now, message);
                    return self.now - start;
                }
                Some(other) => panic!("{other:?} after {} ns", self.now - start),
                None => self.step(u64::MAX),
            }
        }
    }
}

/// What a forger may announce.
const FLOODS: [Flood; 4] = [
    // Few, but what they say is on its way would fill the link for long.
    Flood {
        every_ns: 1_000_000,
        len: 1 << 20,
        incoming: 1 << 20,
    },
    // As an honest client would.
    Flood {
        every_ns: 10_000,
        len: 100_000,
        incoming: 40_000,
    },
    // Messages that rank before most others, and need grants.
    Flood {
        every_ns: 10_000,
        len: 10_000,
        incoming: 1_000,
    },
    // Whole requests, which reach the application.
    Flood {
        every_ns: 10_000,
        len: 1_000,
        incoming: 1_000,
    },
];

/// The time of calls of each length, from a client that is known, when the flood has lasted for so long.
fn live_calls(flood: Option<Flood>, lasted: u64) -> Vec<(usize, u64)> {
    let mut star = Star::new(None);
    let client = star.join();
    for _ in 0..10 {
        star.call(client, 20_000);
    }
    star.flood = flood;
    star.next_forged = star.now;
    star.run(lasted);
    let time = |len| {
        (
            len,
            (0..20).map(|_| star.call(client, len)).sum::<u64>() / 20,
        )
    };
    let times = [1_000_000, 100_000, 10_000, 100].map(time);
    star.hosts[0].check();
    times.into()
}

#[test]
fn hostile_a_flood_leaves_the_latency_of_live_calls_within_twice() {
    let quiet = live_calls(None, 0);
    for flood in FLOODS {
        for lasted in [1, 30 * MILLI, 1000 * MILLI] {
            let flooded = live_calls(Some(flood), lasted);
            for (&(len, before), &(_, now)) in quiet.iter().zip(&flooded) {
                assert!(
                    now <= 2 * before,
                    "{len} bytes: {before} ns, and {now} ns under {flood:?} after {lasted} ns"
                );
            }
        }
    }
}

/// The first call of new clients, of three lengths in turn, and how long it takes.
fn first_calls(flood: Flood) -> Vec<u64> {
    let mut star = Star::new(Some(flood));
    star.run(30 * MILLI);
    let mut times = Vec::new();
    for len in [100, 10_000, 100_000].repeat(10) {
        let client = star.join();
        times.push(star.call(client, len));
    }
    star.hosts[0].check();
    times.sort_unstable();
    times
}

/// A newcomer is told its version and comes again, after one interval (a millisecond here) if the answers to it are not
/// among those that the limit on answers holds back, and after the intervals have doubled a few times if they are.
#[test]
fn hostile_new_clients_are_served_during_a_flood() {
    for flood in FLOODS {
        let times = first_calls(flood);
        assert!(
            times[times.len() / 2] <= 5 * MILLI,
            "{times:?} under {flood:?}"
        );
        assert!(
            times[times.len() - 1] <= 100 * MILLI,
            "{times:?} under {flood:?}"
        );
    }
}
