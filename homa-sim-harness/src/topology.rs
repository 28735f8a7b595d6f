//! Which hosts and switches there are, and how they are joined.

use serde::{Deserialize, Serialize};

/// How a switch shares out its packet memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Buffer {
    /// No limit: nothing is ever dropped.
    Infinite,
    /// Each egress port holds at most this many bytes.
    PerPort {
        /// Limit.
        bytes: u64,
    },
    /// One pool. A queue (port and priority) may hold up to `alpha` times what is free of it
    /// (Choudhury and Hahne's dynamic thresholds).
    Shared {
        /// Size of the pool.
        bytes: u64,
        /// Share of the free memory that one queue may take.
        alpha: f64,
    },
}

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// For reports.
    pub name: String,
    /// From the last bit in to the start of queueing for the way out, in nanoseconds.
    pub latency_ns: u64,
}

/// The cable between a host and its switch.
#[derive(Clone, Copy, Debug)]
pub struct HostLink {
    /// The switch's number.
    pub switch: usize,
    /// Speed, bits per second, both ways.
    pub bps: u64,
    /// Propagation delay in nanoseconds.
    pub delay_ns: u64,
}

/// A cable between two switches.
#[derive(Clone, Copy, Debug)]
pub struct SwitchLink {
    /// One end.
    pub a: usize,
    /// The other.
    pub b: usize,
    /// Speed, bits per second, both ways.
    pub bps: u64,
    /// Propagation delay in nanoseconds.
    pub delay_ns: u64,
}

/// Hosts, switches and cables.
#[derive(Clone, Debug)]
pub struct Topology {
    /// For reports.
    pub name: String,
    /// Switches.
    pub switches: Vec<Switch>,
    /// One entry a host.
    pub hosts: Vec<HostLink>,
    /// Cables between switches.
    pub links: Vec<SwitchLink>,
}

/// Most hosts and most switches of a topology.
pub const MAX_NODES: usize = 16_384;

impl Topology {
    /// `hosts` hosts on one switch.
    #[must_use]
    pub fn single_switch(hosts: usize, bps: u64, latency_ns: u64, delay_ns: u64) -> Self {
        Self {
            name: format!("single switch, {hosts} hosts × {} Gb/s", bps as f64 / 1e9),
            switches: vec![Switch {
                name: "switch".into(),
                latency_ns,
            }],
            hosts: vec![
                HostLink {
                    switch: 0,
                    bps,
                    delay_ns
                };
                hosts
            ],
            links: Vec::new(),
        }
    }

    /// `racks` leaf switches with `per_rack` hosts each, every leaf joined to each of `spines` spine switches.
    #[must_use]
    pub fn leaf_spine(shape: LeafSpine) -> Self {
        let LeafSpine {
            racks,
            per_rack,
            spines,
            host_bps,
            uplink_bps,
            latency_ns,
            delay_ns,
        } = shape;
        let switch = |name: String| Switch { name, latency_ns };
        Self {
            name: format!(
                "leaf–spine, {racks} racks × {per_rack} hosts × {} Gb/s, {spines} spines × {} Gb/s",
                host_bps as f64 / 1e9,
                uplink_bps as f64 / 1e9
            ),
            switches: (0..racks)
                .map(|n| switch(format!("leaf{n}")))
                .chain((0..spines).map(|n| switch(format!("spine{n}"))))
                .collect(),
            hosts: (0..racks * per_rack)
                .map(|host| HostLink {
                    switch: host / per_rack,
                    bps: host_bps,
                    delay_ns,
                })
                .collect(),
            links: (0..racks)
                .flat_map(|a| {
                    (0..spines).map(move |spine| SwitchLink {
                        a,
                        b: racks + spine,
                        bps: uplink_bps,
                        delay_ns,
                    })
                })
                .collect(),
        }
    }

    /// A topology described in a TOML file:
    ///
    /// ```toml
    /// name = "two racks"
    /// [[switch]]
    /// name = "left"
    /// latency_ns = 250
    /// [[switch]]
    /// name = "right"
    /// [[hosts]]
    /// switch = "left"
    /// count = 8
    /// gbps = 25
    /// [[hosts]]
    /// switch = "right"
    /// count = 8
    /// gbps = 25
    /// delay_ns = 100
    /// [[link]]
    /// a = "left"
    /// b = "right"
    /// gbps = 100
    /// ```
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let message = error.message().to_owned();
            format!("topology file: {message}")
        })?;
        let find = |name: &str| {
            file.switch
                .iter()
                .position(|switch| switch.name == name)
                .ok_or_else(|| format!("topology file: no switch is called '{name}'"))
        };
        let mut topology = Self {
            name: file.name.clone(),
            switches: file
                .switch
                .iter()
                .map(|switch| Switch {
                    name: switch.name.clone(),
                    latency_ns: switch.latency_ns,
                })
                .collect(),
            hosts: Vec::new(),
            links: Vec::new(),
        };
        for group in &file.hosts {
            let link = HostLink {
                switch: find(&group.switch)?,
                bps: bps(group.gbps)?,
                delay_ns: group.delay_ns,
            };
            if group.count > MAX_NODES {
                return Err(format!("topology file: more than {MAX_NODES} hosts"));
            }
            topology
                .hosts
                .extend(std::iter::repeat_n(link, group.count));
        }
        for link in &file.link {
            topology.links.push(SwitchLink {
                a: find(&link.a)?,
                b: find(&link.b)?,
                bps: bps(link.gbps)?,
                delay_ns: link.delay_ns,
            });
        }
        topology.check()?;
        Ok(topology)
    }

    /// Whether every host can reach every other.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.hosts.len() < 2 {
            return Err("a topology needs at least two hosts".into());
        }
        if self.hosts.len() > MAX_NODES || self.switches.len() > MAX_NODES {
            return Err(format!("more than {MAX_NODES} hosts or switches"));
        }
        let first = self.distances(self.hosts[0].switch);
        match self
            .hosts
            .iter()
            .find(|host| first[host.switch] == usize::MAX)
        {
            Some(host) => Err(format!(
                "switch '{}' cannot be reached from switch '{}'",
                self.switches[host.switch].name, self.switches[self.hosts[0].switch].name
            )),
            None => Ok(()),
        }
    }

    /// Hops from each switch to `to`; `usize::MAX` where there is no way.
    #[must_use]
    pub fn distances(&self, to: usize) -> Vec<usize> {
        let mut distance = vec![usize::MAX; self.switches.len()];
        let mut frontier = std::collections::VecDeque::from([to]);
        distance[to] = 0;
        while let Some(switch) = frontier.pop_front() {
            for link in &self.links {
                for (near, far) in [(link.a, link.b), (link.b, link.a)] {
                    if near == switch && distance[far] == usize::MAX {
                        distance[far] = distance[switch] + 1;
                        frontier.push_back(far);
                    }
                }
            }
        }
        distance
    }
}

/// The numbers of a leaf–spine network.
#[derive(Clone, Copy, Debug)]
pub struct LeafSpine {
    /// Racks, each with a leaf switch.
    pub racks: usize,
    /// Hosts per rack.
    pub per_rack: usize,
    /// Spine switches.
    pub spines: usize,
    /// Speed of host links, bits per second.
    pub host_bps: u64,
    /// Speed of links between switches, bits per second.
    pub uplink_bps: u64,
    /// Latency of a switch in nanoseconds.
    pub latency_ns: u64,
    /// Propagation delay of a cable in nanoseconds.
    pub delay_ns: u64,
}

/// A speed in Gb/s as bits per second.
///
/// # Errors
/// When it is not between 0.001 and 10,000.
pub fn bps(gbps: f64) -> Result<u64, String> {
    if (0.001..=10_000.0).contains(&gbps) {
        Ok((gbps * 1e9).round() as u64)
    } else {
        Err(format!(
            "a link speed of {gbps} Gb/s is not between 0.001 and 10000"
        ))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "unnamed")]
    name: String,
    switch: Vec<FileSwitch>,
    hosts: Vec<FileHosts>,
    #[serde(default)]
    link: Vec<FileLink>,
}

fn unnamed() -> String {
    "from a file".into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSwitch {
    name: String,
    #[serde(default = "switch_latency")]
    latency_ns: u64,
}

fn switch_latency() -> u64 {
    250
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileHosts {
    switch: String,
    count: usize,
    gbps: f64,
    #[serde(default)]
    delay_ns: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLink {
    a: String,
    b: String,
    gbps: f64,
    #[serde(default)]
    delay_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read() {
        let text = r#"
            name = "two racks"
            [[switch]]
            name = "left"
            [[switch]]
            name = "right"
            latency_ns = 400
            [[hosts]]
            switch = "left"
            count = 3
            gbps = 25
            [[hosts]]
            switch = "right"
            count = 2
            gbps = 10
            delay_ns = 7
            [[link]]
            a = "left"
            b = "right"
            gbps = 100
        "#;
        let topology = Topology::from_toml(text).unwrap();
        assert_eq!(topology.hosts.len(), 5);
        assert_eq!(topology.hosts[4].switch, 1);
        assert_eq!(topology.hosts[4].bps, 10_000_000_000);
        assert_eq!(topology.hosts[4].delay_ns, 7);
        assert_eq!(topology.links[0].bps, 100_000_000_000);
        assert_eq!(topology.switches[1].latency_ns, 400);
        assert_eq!(topology.distances(0), [0, 1]);
    }

    #[test]
    fn mistakes_are_told() {
        let broken = |text: &str| Topology::from_toml(text).unwrap_err();
        let no_link = "[[switch]]\nname='a'\n[[switch]]\nname='b'\n[[hosts]]\nswitch='a'\ncount=1\ngbps=1\n[[hosts]]\nswitch='b'\ncount=1\ngbps=1";
        assert!(broken(no_link).contains("cannot be reached"));
        assert!(
            broken("[[switch]]\nname='a'\n[[hosts]]\nswitch='x'\ncount=2\ngbps=1").contains("'x'")
        );
        assert!(
            broken("[[switch]]\nname='a'\n[[hosts]]\nswitch='a'\ncount=2\ngbps=0")
                .contains("link speed")
        );
        assert!(
            broken("[[switch]]\nname='a'\ncolour=1\n[[hosts]]\nswitch='a'\ncount=2\ngbps=1")
                .contains("colour")
        );
    }
}
