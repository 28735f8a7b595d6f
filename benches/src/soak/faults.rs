//! What goes wrong between the drivers of a soak and the kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use homa_mio::sys::{Fate, Faulty, Outgoing, Plan};

use crate::workload::Rng;

/// A socket whose datagrams meet with faults.
pub(super) type Socket = homa_mio::generic::Socket<Faulty<Network>>;

/// Counters and switches that all sockets of a run share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// While it is set nothing arrives.
    pub(super) cut: AtomicBool,
    /// Batches that were to be sent; most hold one datagram.
    pub(super) sent: AtomicU64,
    /// Batches that were lost.
    pub(super) lost: AtomicU64,
    /// Batches that went twice.
    pub(super) repeated: AtomicU64,
}

/// Loses and repeats at random.
#[derive(Clone, Debug)]
pub(super) struct Network {
    shared: Arc<Shared>,
    rng: Rng,
    loss: f64,
    repetition: f64,
    /// Batches until the next fault, and what it is.
    next: (usize, Fate),
}

impl Network {
    /// Of all batches a share of `loss` is lost, and one of `repetition` goes twice.
    #[must_use]
    pub(super) fn new(shared: &Arc<Shared>, seed: u64, loss: f64, repetition: f64) -> Self {
        let mut this = Self {
            shared: Arc::clone(shared),
            rng: Rng::new(seed),
            loss,
            repetition,
            next: (usize::MAX, Fate::Pass),
        };
        this.draw();
        this
    }

    /// Draws the next fault. Distances are distributed as if each batch were drawn for.
    fn draw(&mut self) {
        let any = self.loss + self.repetition;
        if any <= 0.0 {
            return;
        }
        let distance = (1.0 - self.rng.unit()).ln() / (1.0 - any).ln();
        let is_loss = self.rng.unit() * any < self.loss;
        let fate = if is_loss { Fate::Lose } else { Fate::Twice };
        self.next = (distance as usize, fate);
    }
}

impl Plan for Network {
    fn send(&mut self, batches: &[Outgoing]) -> Fate {
        let shared = &self.shared;
        if shared.cut.load(Relaxed) {
            return Fate::Lose;
        }
        let (distance, fate) = self.next;
        if distance == 0 {
            shared.sent.fetch_add(1, Relaxed);
            let count = if fate == Fate::Lose {
                &shared.lost
            } else {
                &shared.repeated
            };
            count.fetch_add(1, Relaxed);
            self.draw();
            return fate;
        }
        let before = batches.len().min(distance);
        shared.sent.fetch_add(before as u64, Relaxed);
        if self.next.1 != Fate::Pass {
            self.next.0 -= before;
        }
        if before < batches.len() {
            Fate::Partly(before)
        } else {
            Fate::Pass
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_asked_for() {
        let shared = Arc::new(Shared::default());
        let mut network = Network::new(&shared, 1, 0.01, 0.02);
        let batch = Outgoing {
            to: "127.0.0.1:9".parse().unwrap(),
            local: None,
            tos: None,
            start: 0,
            len: 100,
            segment_size: None,
        };
        let mut left = 0;
        while shared.sent.load(Relaxed) < 1_000_000 {
            let batches = [batch; 7];
            left = match network.send(&batches[left % 7..]) {
                Fate::Pass => 0,
                Fate::Partly(count) => left + count,
                _ => left + 1,
            };
        }
        let (lost, repeated) = (shared.lost.load(Relaxed), shared.repeated.load(Relaxed));
        assert!((9_000..11_000).contains(&lost), "{lost}");
        assert!((19_000..21_000).contains(&repeated), "{repeated}");
    }
}
