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
        let shown: HashMap<_, _> = show()?.into_iter().collect();
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
        Ok(())
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
