//! The emulated network: a switch, hosts around it, and links that queue by priority.
//!
//! The switch is a bridge in the lab's own namespace, each host a process with a namespace of its
//! own. On both ends of every link a tbf stands for the port and sends at the rate of the link, out
//! of an htb with eight queues in strict priority that the DSCP class selector chooses.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::sys;

/// What every port is like.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Port {
    /// Bits per second, of Ethernet frames without preamble, checksum and gap.
    pub rate_bps: u64,
    /// Packets that each of the eight queues holds.
    pub queue_packets: u32,
}

/// A host's address.
pub(super) fn address(host: usize, ipv6: bool) -> IpAddr {
    let last = host as u16 + 1;
    if ipv6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into()
    } else {
        Ipv4Addr::new(10, 0, (last >> 8) as u8, last as u8).into()
    }
}

fn mac(host: usize) -> String {
    let last = host + 1;
    format!("02:00:00:00:{:02x}:{:02x}", last >> 8, last & 0xff)
}

/// The switch's end of a host's link.
pub(super) fn port_name(host: usize) -> String {
    format!("p{host}")
}

/// A host's end of its link.
pub(super) const HOST_LINK: &str = "eth0";

/// Bytes that a port may send at once after it was woken late, or was idle.
const BURST: u32 = 4 * 1514;

/// Makes the bridge.
pub(super) fn make_switch() -> Result<()> {
    for filter in ["iptables", "ip6tables", "arptables"] {
        // A switch has no firewall. Where there is no such file, nor has this one.
        let _ = std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{filter}"), "0");
    }
    batch(
        "ip",
        "link add name br type bridge stp_state 0 mcast_snooping 0\nlink set dev br up\n",
    )
}

/// Plugs a host, which lives in process `pid`, into the switch.
pub(super) fn plug(host: usize, pid: u32, port: Port) -> Result<()> {
    let name = port_name(host);
    let mac = mac(host);
    batch(
        "ip",
        &format!(
            "link add name {name} mtu 1500 type veth peer name {HOST_LINK} mtu 1500 address {mac} netns {pid}\n\
             link set dev {name} master br up\n"
        ),
    )?;
    sys::turn_offloads_off(&name)?;
    batch("tc", &queues(&name, port))
}

/// Makes the calling host's end of the link ready, once the host is plugged in.
pub(super) fn set_up_host(host: usize, hosts: usize, port: Port) -> Result<()> {
    sys::turn_offloads_off(HOST_LINK)?;
    // TCP would hand over long frames otherwise, whatever the device says.
    let mut ip = format!("link set dev lo up\nlink set dev {HOST_LINK} up\n");
    for ipv6 in [false, true] {
        let (bits, nodad) = if ipv6 { (64, " nodad") } else { (16, "") };
        let own = address(host, ipv6);
        let _ = writeln!(ip, "addr add {own}/{bits} dev {HOST_LINK}{nodad}");
        for other in (0..hosts).filter(|&other| other != host) {
            // Nobody has to be asked who is where in the middle of a measurement.
            let (to, mac) = (address(other, ipv6), mac(other));
            let _ = writeln!(ip, "neigh add {to} lladdr {mac} dev {HOST_LINK}");
        }
    }
    batch("ip", &ip)?;
    batch("tc", &queues(HOST_LINK, port))
}

/// `tc` commands for eight queues in strict priority. The queue of priority p has the handle 1p.
fn queues(link: &str, port: Port) -> String {
    let Port {
        rate_bps,
        queue_packets,
    } = port;
    // tbf keeps to the rate, and cuts what a host sends in pieces longer than `mtu` into frames
    // before they queue; that is only set along with a peak rate, here one that never counts. What
    // waits is taken from the htb, whose own rate never holds anything up.
    let mut tc = format!(
        "qdisc add dev {link} root handle 1: tbf rate {rate_bps} burst {BURST} limit 1514 peakrate 40gbit mtu 1514\n\
         qdisc add dev {link} parent 1:1 handle 2: htb default 10\n"
    );
    for priority in 0..8 {
        // To htb 0 is first.
        let first = 7 - priority;
        let _ = write!(
            tc,
            "class add dev {link} parent 2: classid 2:1{priority} htb rate 32gbit burst 1mb quantum 1514 prio {first}\n\
             qdisc add dev {link} parent 2:1{priority} handle 1{priority}: pfifo limit {queue_packets}\n"
        );
        if priority > 0 {
            let selector = priority << 5;
            let _ = write!(
                tc,
                "filter add dev {link} parent 2: protocol ip prio 1 u32 match ip dsfield {selector} 0xe0 flowid 2:1{priority}\n\
                 filter add dev {link} parent 2: protocol ipv6 prio 2 u32 match ip6 priority {selector} 0xe0 flowid 2:1{priority}\n"
            );
        }
    }
    tc
}

/// Runs `ip` or `tc` over many commands at once.
fn batch(tool: &str, commands: &str) -> Result<()> {
    let mut child = Command::new(tool)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {tool} (package iproute2)"))?;
    let mut stdin = child.stdin.take().context("no pipe")?;
    // If it ends early it says why below.
    let _ = stdin.write_all(commands.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{tool} failed: {}",
        said.lines().next().unwrap_or("without a word")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_selector_has_its_queue_and_the_highest_goes_first() {
        let port = Port {
            rate_bps: 200_000_000,
            queue_packets: 77,
        };
        let tc = queues("p3", port);
        assert!(tc.lines().all(|line| line.contains("add dev p3 ")));
        for priority in 0..8u8 {
            let first = 7 - priority;
            assert!(tc.contains(&format!("classid 2:1{priority} htb")));
            assert!(tc.contains(&format!("quantum 1514 prio {first}\n")));
            assert!(tc.contains(&format!("handle 1{priority}: pfifo limit 77\n")));
            // The lowest is the default.
            let selector = tos(priority);
            for field in ["ip dsfield", "ip6 priority"] {
                let filter = format!("match {field} {selector} 0xe0 flowid 2:1{priority}\n");
                assert_eq!(tc.contains(&filter), priority > 0, "{filter}");
            }
        }
        assert!(tc.contains("htb default 10\n"));
    }

    /// As the README has it: the priority in the top three bits.
    fn tos(priority: u8) -> u8 {
        priority << 5
    }

    #[test]
    fn addresses_and_names_differ() {
        let mut seen = std::collections::HashSet::new();
        for host in 0..64 {
            assert!(seen.insert(address(host, false).to_string()));
            assert!(seen.insert(address(host, true).to_string()));
            assert!(seen.insert(mac(host)));
            assert!(seen.insert(port_name(host)));
        }
    }
}
