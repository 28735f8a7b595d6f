//! CUBIC's window growth (RFC 9438). Windows are in segments here, as in the RFC.

#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    w_max: f64,
    w_est: f64,
    k_seconds: f64,
    epoch: Option<u64>,
}

impl Cubic {
    /// Multiplicative decrease, §4.6.
    pub(super) const BETA: f64 = 0.7;
    /// Aggressiveness, §5.
    const C: f64 = 0.4;

    /// The window after `acked` segments were acknowledged in congestion avoidance (§4.2 to §4.5).
    pub(super) fn grow(&mut self, now: u64, cwnd: f64, acked: f64, srtt_ns: u64) -> f64 {
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.w_max = self.w_max.max(cwnd);
            self.k_seconds = ((self.w_max - cwnd) / Self::C).cbrt();
            self.w_est = cwnd;
            now
        });
        let t = (now - epoch) as f64 / 1e9;
        let cubic = |t: f64| Self::C * (t - self.k_seconds).powi(3) + self.w_max;
        // §4.3: as fast as a Reno that halves by BETA instead, until it would have reached W_max.
        let alpha = if self.w_est >= self.w_max {
            1.0
        } else {
            3.0 * (1.0 - Self::BETA) / (1.0 + Self::BETA)
        };
        self.w_est += alpha * acked / cwnd;
        if cubic(t) < self.w_est {
            return self.w_est.max(cwnd);
        }
        let target = cubic(t + srtt_ns as f64 / 1e9).clamp(cwnd, 1.5 * cwnd);
        cwnd + (target - cwnd) * acked / cwnd
    }

    /// A loss ends the epoch; a window that stopped short of the last maximum yields (§4.7, fast convergence).
    pub(super) fn lost(&mut self, cwnd: f64) {
        self.w_max = if cwnd < self.w_max {
            cwnd * (1.0 + Self::BETA) / 2.0
        } else {
            cwnd
        };
        self.epoch = None;
    }

    /// After a timeout the next epoch starts from the window that follows (§4.8).
    pub(super) fn restart(&mut self) {
        self.w_max = 0.0;
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_to_the_last_maximum_after_k() {
        // With a round trip of 100 ms the cubic curve rules: K = cbrt(0.3 × 1000 / 0.4) = 9.09 s.
        let mut cubic = Cubic::default();
        cubic.lost(1000.0);
        let (mut cwnd, rtt) = (700.0, 100_000_000);
        let mut now = 0;
        while now < 9_090_000_000 {
            now += rtt;
            cwnd = cubic.grow(now, cwnd, cwnd, rtt);
        }
        assert!((cwnd - 1000.0).abs() < 10.0, "{cwnd}");
    }

    #[test]
    fn is_no_slower_than_reno_at_short_round_trips() {
        let mut cubic = Cubic::default();
        cubic.lost(100.0);
        let mut cwnd = 70.0;
        for round in 1..=200 {
            cwnd = cubic.grow(round * 20_000, cwnd, cwnd, 20_000);
        }
        // 0.53 segments a round up to 100, then one.
        assert!(cwnd > 200.0, "{cwnd}");
    }
}
