//! What hosts ask of each other and when: the same for all transports.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use homa_sim_harness::rng::Rng;
use homa_sim_harness::traffic::workload::Workload;
use serde::{Deserialize, Serialize};

/// The longest message, as in the published measurements.
pub(super) const MAX_BYTES: u32 = 1_000_000;

/// What a run consists of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Traffic {
    /// Host 0 asks host 1, one message at a time: of each size so many.
    Idle(Vec<(u32, usize)>),
    /// Every host asks every other, and maybe goes through steps.
    Load {
        /// Open-loop arrivals.
        open: Option<Open>,
        /// A job.
        steps: Option<Steps>,
    },
}

/// Poisson arrivals at each host, to hosts chosen evenly.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    /// `w1` to `w5` or `fixed:N`.
    pub workload: String,
    /// Longer messages are cut to this.
    pub max_bytes: u32,
    /// Share of each link that requests and replies take, counted in their own bytes.
    pub load: f64,
}

/// Steps of a job: compute, then exchange messages with all others, and again.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Steps {
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages to each other host.
    pub per_host: usize,
    /// A step ends when the messages of all others have come too.
    pub barrier: bool,
    /// Only host 0 takes steps; the others answer.
    pub root_only: bool,
    /// Time that is spent without the network.
    pub compute: Duration,
}

/// One RPC to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    /// Nanoseconds from the start.
    pub(super) at_ns: u64,
    pub(super) bytes: u32,
    pub(super) to: usize,
}

/// The distribution of that name, cut to `max_bytes`.
pub(super) fn workload(name: &str, max_bytes: u32) -> Result<Workload> {
    let workload = match name.strip_prefix("fixed:") {
        Some(bytes) => {
            let bytes = bytes.parse().context("the length is not a number")?;
            Workload::fixed(bytes)
        }
        None => Workload::named(name),
    };
    Ok(workload.map_err(|error| anyhow!(error))?.capped(max_bytes))
}

impl Open {
    pub(super) fn sizes(&self) -> Result<Workload> {
        workload(&self.workload, self.max_bytes)
    }

    /// RPCs a second that each host starts. Its link carries its own requests and its replies to
    /// others, which are as many and as long.
    pub(super) fn rate(&self, rate_bps: u64) -> Result<f64> {
        let bytes = rate_bps as f64 / 8.0 * self.load;
        Ok(bytes / (2.0 * self.sizes()?.mean()))
    }

    /// What `host` starts within `end_ns`. The same seed gives the same.
    pub(super) fn arrivals(
        &self,
        rate_bps: u64,
        host: usize,
        hosts: usize,
        end_ns: u64,
        seed: u64,
    ) -> Result<Vec<Arrival>> {
        let (sizes, rate) = (self.sizes()?, self.rate(rate_bps)?);
        let mut rng = Rng::new(seed, host as u64);
        let mut list = Vec::new();
        let mut at = 0.0;
        loop {
            // 1 − unit() is in (0, 1], so that the logarithm is finite.
            at -= (1.0 - rng.unit()).ln() / rate * 1e9;
            if at >= end_ns as f64 {
                return Ok(list);
            }
            let other = rng.below(hosts as u64 - 1) as usize;
            list.push(Arrival {
                at_ns: at as u64,
                bytes: sizes.draw(&mut rng),
                to: if other < host { other } else { other + 1 },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn open(workload: &str, load: f64) -> Open {
        Open {
            workload: workload.into(),
            max_bytes: MAX_BYTES,
            load,
        }
    }

    #[test]
    fn each_link_carries_the_load_in_both_directions() {
        let (rate, hosts, seconds) = (100_000_000, 5, 20);
        for workload in ["w1", "w3", "fixed:5000"] {
            let mut sent = vec![0.0; hosts];
            for host in 0..hosts {
                let open = open(workload, 0.4);
                let arrivals = open
                    .arrivals(rate, host, hosts, seconds * SECOND, 7)
                    .unwrap();
                assert!(arrivals.is_sorted_by_key(|arrival| arrival.at_ns));
                for Arrival { bytes, to, at_ns } in arrivals {
                    assert!(to != host && to < hosts && bytes > 0 && bytes <= MAX_BYTES);
                    assert!(at_ns < seconds * SECOND);
                    // The request goes up this link, the reply up that of the other.
                    sent[host] += f64::from(bytes);
                    sent[to] += f64::from(bytes);
                }
            }
            for bytes in sent {
                let load = bytes * 8.0 / (rate as f64 * seconds as f64);
                assert!((load / 0.4 - 1.0).abs() < 0.15, "{workload}: {load}");
            }
        }
    }

    #[test]
    fn the_schedule_is_the_seed_s_and_the_host_s() {
        let arrivals = |host, seed| {
            let open = open("w2", 0.1);
            open.arrivals(100_000_000, host, 3, SECOND, seed).unwrap()
        };
        assert_eq!(arrivals(0, 1), arrivals(0, 1));
        assert_ne!(arrivals(0, 1), arrivals(0, 2));
        assert_ne!(arrivals(0, 1), arrivals(1, 1));
    }

    #[test]
    fn workloads_are_cut_and_wrong_names_told() {
        assert_eq!(workload("w5", MAX_BYTES).unwrap().max(), MAX_BYTES);
        assert_eq!(workload("fixed:9000000", 4_000).unwrap().max(), 4_000);
        for wrong in [
            "", "w6", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:x",
        ] {
            assert!(workload(wrong, MAX_BYTES).is_err(), "{wrong}");
        }
    }
}
