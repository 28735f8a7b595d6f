//! What `tc` has counted at the ports.

use std::collections::HashMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// One queue as `tc -s -j qdisc show` has it.
#[derive(Clone, Debug, Deserialize)]
struct Shown {
    kind: String,
    handle: String,
    dev: String,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    packets: u64,
    #[serde(default)]
    drops: u64,
    #[serde(default)]
    backlog: u64,
    #[serde(default)]
    qlen: u64,
}

/// The queues of one priority at all ports together.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Queue {
    /// 0 to 7.
    pub priority: u8,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets dropped because the queue was full.
    pub drops: u64,
    /// Bytes that waited at a port: the mean over samples and ports.
    pub mean_depth: f64,
    /// The most bytes seen to wait at a port.
    pub max_depth: u64,
    /// The most packets seen to wait at a port.
    pub max_packets: u64,
}

/// Looks at the queues of this namespace again and again.
#[derive(Debug, Default)]
pub(super) struct Watch {
    first: HashMap<(String, usize), Shown>,
    last: HashMap<(String, usize), Shown>,
    looks: u64,
    sum: [u64; 8],
    max: [u64; 8],
    max_packets: [u64; 8],
}

impl Watch {
    /// Looks once.
    pub(super) fn look(&mut self) -> Result<()> {
        self.take(show()?.into_iter().collect());
        Ok(())
    }

    fn take(&mut self, shown: HashMap<(String, usize), Shown>) {
        for (&(_, priority), queue) in &shown {
            self.sum[priority] += queue.backlog;
            self.max[priority] = self.max[priority].max(queue.backlog);
            self.max_packets[priority] = self.max_packets[priority].max(queue.qlen);
        }
        self.looks += 1;
        if self.looks == 1 {
            self.first.clone_from(&shown);
        }
        self.last = shown;
    }

    /// What came between the first look and the last.
    pub(super) fn queues(&self) -> Vec<Queue> {
        let ports = (self.last.len() / 8).max(1) as u64;
        let mut queues: Vec<Queue> = (0..8)
            .map(|priority| Queue {
                priority: priority as u8,
                mean_depth: self.sum[priority] as f64 / (self.looks.max(1) * ports) as f64,
                max_depth: self.max[priority],
                max_packets: self.max_packets[priority],
                ..Queue::default()
            })
            .collect();
        for (key, last) in &self.last {
            let queue = &mut queues[key.1];
            let before = |f: fn(&Shown) -> u64| self.first.get(key).map_or(0, f);
            queue.packets += last.packets - before(|shown| shown.packets);
            queue.bytes += last.bytes - before(|shown| shown.bytes);
            queue.drops += last.drops - before(|shown| shown.drops);
        }
        queues
    }
}

/// Each queue by its port and priority.
fn show() -> Result<Vec<((String, usize), Shown)>> {
    let output = Command::new("tc")
        .args(["-s", "-j", "qdisc", "show"])
        .output()
        .context("cannot run tc (package iproute2)")?;
    ensure!(output.status.success(), "tc tells nothing of its queues");
    parse(&output.stdout)
}

fn parse(json: &[u8]) -> Result<Vec<((String, usize), Shown)>> {
    let shown: Vec<Shown> =
        serde_json::from_slice(json).context("tc tells nothing that is JSON")?;
    let leaf = |shown: &Shown| {
        // The handle of the queue of priority p is 1p: (net::queues).
        let priority = shown.handle.strip_prefix('1')?.strip_suffix(':')?;
        let priority = priority.parse().ok().filter(|priority| *priority < 8)?;
        (shown.kind == "pfifo").then_some(priority)
    };
    Ok(shown
        .into_iter()
        .filter_map(|shown| Some(((shown.dev.clone(), leaf(&shown)?), shown)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(packets: u64, backlog: u64) -> Shown {
        let json = format!(
            r#"[{{"kind":"tbf","handle":"1:","dev":"p0","root":true,"bytes":9,"packets":9}},
                {{"kind":"htb","handle":"2:","dev":"p0","parent":"1:1","drops":9}},
                {{"kind":"noqueue","handle":"0:","dev":"lo"}},
                {{"kind":"pfifo","handle":"18:","dev":"p0"}},
                {{"kind":"pfifo","handle":"17:","dev":"p0","parent":"2:17","options":{{"limit":5}},
                  "bytes":{bytes},"packets":{packets},"drops":{packets},"backlog":{backlog},"qlen":3}}]"#,
            bytes = packets * 100
        );
        let mut found = parse(json.as_bytes()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, ("p0".into(), 7));
        found.remove(0).1
    }

    #[test]
    fn only_the_queues_of_priorities_are_read() {
        shown(1, 1);
        assert!(parse(b"").is_err());
        assert!(parse(b"[]").unwrap().is_empty());
    }

    #[test]
    fn depth_is_the_mean_and_the_most_and_counts_are_what_came_meanwhile() {
        let mut watch = Watch::default();
        for (packets, backlog) in [(10, 0), (15, 600), (30, 300)] {
            watch.take(std::iter::once((("p0".into(), 7), shown(packets, backlog))).collect());
        }
        let queue = watch.queues()[7];
        assert_eq!((queue.packets, queue.bytes, queue.drops), (20, 2_000, 20));
        assert_eq!((queue.mean_depth, queue.max_depth), (300.0, 600));
        assert_eq!(watch.queues()[0], Queue::default());
    }
}
