//! The best possible time of a message: what it takes on the idle network.
//!
//! Measured from the application's call at the sender to the last byte at the application of the receiver: software latency,
//! the message cut into packets of the Homa format (native IP, full packets first) sent back to back, each stored and
//! forwarded by every switch on a shortest way. Slowdown is the time a message really took, divided by
//! this. It is the same for every transport, so that ratios of slowdowns are ratios of times.

use std::collections::HashMap;

use crate::packet::{HostId, wire_bytes};
use crate::sim::Software;
use crate::topology::Topology;

/// IP and Homa headers of a data packet.
pub const HEADER_BYTES: u32 = 20 + 56;

/// Wire bytes that a message takes in packets of at most `mtu`.
#[must_use]
pub fn message_wire_bytes(bytes: u32, mtu: u32) -> u64 {
    let payload = mtu - HEADER_BYTES;
    let full = u64::from(bytes / payload) * u64::from(wire_bytes(mtu));
    match bytes % payload {
        0 => full,
        rest => full + u64::from(wire_bytes(rest + HEADER_BYTES)),
    }
}

/// A way through the network: for each cable its time per byte and the latency behind it.
#[derive(Clone, Debug)]
struct Way {
    hops: Vec<(f64, u64)>,
}

impl Way {
    /// From the start of transmission to the last bit of the last packet at the far end.
    fn time(&self, bytes: u32, mtu: u32) -> f64 {
        let payload = mtu - HEADER_BYTES;
        let rest = bytes % payload;
        let last = if rest == 0 { mtu } else { rest + HEADER_BYTES };
        let before = f64::from(bytes.div_ceil(payload)) - 1.0;
        let (full, last) = (f64::from(wire_bytes(mtu)), f64::from(wire_bytes(last)));
        // Packet n of equal ones has passed a row of hops after one time through all, and then n − 1 times the slowest.
        let (mut sum, mut slowest, mut arrived) = (0.0, 0.0f64, 0.0f64);
        for &(per_byte, latency) in &self.hops {
            sum += full * per_byte;
            slowest = slowest.max(full * per_byte);
            let previous = if before > 0.0 {
                sum + (before - 1.0) * slowest
            } else {
                0.0
            };
            arrived = arrived.max(previous) + last * per_byte + latency as f64;
            sum += latency as f64;
        }
        arrived
    }
}

/// Best possible times in one network.
pub struct Ideal {
    topology: Topology,
    software: Software,
    mtu: u32,
    ways: HashMap<(HostId, HostId), Way>,
}

impl Ideal {
    /// For a topology and the software of its hosts.
    #[must_use]
    pub fn new(topology: Topology, software: Software, mtu: u32) -> Self {
        Self {
            topology,
            software,
            mtu,
            ways: HashMap::new(),
        }
    }

    /// Best possible time in nanoseconds from `from` to `to`.
    pub fn one_way_ns(&mut self, from: HostId, to: HostId, bytes: u32) -> f64 {
        let (topology, software) = (&self.topology, &self.software);
        // All pairs behind the same two switches have the same ways; hosts of one switch may differ in speed.
        let way = self
            .ways
            .entry((from, to))
            .or_insert_with(|| find_way(topology, from, to));
        let fixed = software.tx_ns + software.rx_ns + 2 * software.per_packet_ns;
        let wakeup = software.wakeup_ns;
        fixed as f64 + 2.0 * wakeup as f64 + way.time(bytes, self.mtu)
    }

    /// Best possible time in nanoseconds of a request and its answer.
    pub fn round_trip_ns(&mut self, from: HostId, to: HostId, request: u32, reply: u32) -> f64 {
        let think = self.software.think_ns as f64;
        self.one_way_ns(from, to, request) + think + self.one_way_ns(to, from, reply)
    }
}

fn find_way(topology: &Topology, from: HostId, to: HostId) -> Way {
    let per_byte = |bps: u64| 8e9 / bps as f64;
    let (first, last) = (
        topology.hosts[usize::from(from)],
        topology.hosts[usize::from(to)],
    );
    let latency = |switch: usize| topology.switches[switch].latency_ns;
    let mut hops = vec![(per_byte(first.bps), first.delay_ns + latency(first.switch))];
    let distance = topology.distances(last.switch);
    let mut at = first.switch;
    while at != last.switch {
        // Of several shortest ways the fastest cable.
        let next = topology
            .links
            .iter()
            .flat_map(|link| [(link.a, link.b, link), (link.b, link.a, link)])
            .filter(|(near, far, _)| {
                *near == at && distance[*far] != usize::MAX && distance[*far] < distance[at]
            })
            .max_by_key(|(_, _, link)| link.bps);
        let Some((_, far, link)) = next else { break };
        hops.push((per_byte(link.bps), link.delay_ns + latency(far)));
        at = far;
    }
    hops.push((per_byte(last.bps), last.delay_ns));
    Way { hops }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::LeafSpine;

    fn sigcomm18() -> Ideal {
        let topology = Topology::leaf_spine(LeafSpine {
            racks: 9,
            per_rack: 16,
            spines: 4,
            host_bps: 10_000_000_000,
            uplink_bps: 40_000_000_000,
            latency_ns: 250,
            delay_ns: 0,
        });
        let software = Software {
            tx_ns: 500,
            rx_ns: 500,
            think_ns: 500,
            ..Software::default()
        };
        Ideal::new(topology, software, 1500)
    }

    #[test]
    fn one_packet() {
        // 100 bytes: 218 on the wire, 174.4 ns at 10 Gb/s and 43.6 at 40.
        let mut ideal = sigcomm18();
        let far = ideal.one_way_ns(0, 143, 100);
        assert!(
            (far - (1000.0 + 2.0 * 174.4 + 2.0 * 43.6 + 750.0)).abs() < 0.01,
            "{far}"
        );
        let near = ideal.one_way_ns(0, 1, 100);
        assert!(
            (near - (1000.0 + 2.0 * 174.4 + 250.0)).abs() < 0.01,
            "{near}"
        );
    }

    #[test]
    fn a_pipeline_of_packets() {
        // The recurrence in full, packet by packet and hop by hop.
        let ways = [
            Way {
                hops: vec![(0.8, 250), (0.2, 250), (0.2, 250), (0.8, 0)],
            },
            Way {
                hops: vec![(0.32, 400), (0.8, 0)],
            },
            Way {
                hops: vec![(0.8, 400), (0.32, 7), (0.5, 0)],
            },
        ];
        for way in &ways {
            for bytes in [1, 1424, 1425, 2848, 2849, 14_240, 100_000] {
                let mut sizes = vec![1542.0; bytes / 1424];
                if bytes % 1424 > 0 {
                    sizes.push(f64::from(wire_bytes(bytes as u32 % 1424 + 76)));
                }
                let mut free = vec![0.0f64; way.hops.len()];
                let mut at = 0.0;
                for size in sizes {
                    at = 0.0;
                    for (hop, &(per_byte, latency)) in way.hops.iter().enumerate() {
                        free[hop] = free[hop].max(at) + size * per_byte;
                        at = free[hop] + latency as f64;
                    }
                }
                let got = way.time(bytes as u32, 1500);
                assert!((got - at).abs() < 1e-6, "{bytes}: {got} {at}");
            }
        }
    }
}
