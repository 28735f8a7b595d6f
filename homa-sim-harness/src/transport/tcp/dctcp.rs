//! DCTCP's estimate of the share of marked bytes, and what it does with it (RFC 8257 §3.3).

#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    alpha: f64,
    acked: u64,
    marked: u64,
    window_end: u64,
    reduced_until: u64,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self {
            // §4.2: a new connection begins cautiously.
            alpha: 1.0,
            acked: 0,
            marked: 0,
            window_end: 0,
            reduced_until: 0,
        }
    }
}

impl Dctcp {
    /// Weight of the newest window, §4.2.
    const GAIN: f64 = 1.0 / 16.0;

    /// Takes in an acknowledgement up to `una` of a sender that has sent up to `next`. Returns the
    /// factor by which to reduce the window, at most once per window.
    pub(super) fn acknowledged(
        &mut self,
        acked: u64,
        marked: bool,
        una: u64,
        next: u64,
    ) -> Option<f64> {
        self.acked += acked;
        if marked {
            self.marked += acked;
        }
        if una > self.window_end {
            if self.acked > 0 {
                let share = self.marked as f64 / self.acked as f64;
                self.alpha += Self::GAIN * (share - self.alpha);
            }
            (self.acked, self.marked) = (0, 0);
            self.window_end = next;
        }
        if marked && una > self.reduced_until {
            self.reduced_until = next;
            return Some(1.0 - self.alpha / 2.0);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_follows_the_share_of_marks() {
        let mut dctcp = Dctcp::default();
        let mut factor = 0.0;
        for round in 1..400u64 {
            // Windows of ten segments; the last of each is marked.
            for segment in 1..=10 {
                let una = (round - 1) * 10 + segment;
                if let Some(f) = dctcp.acknowledged(1, segment == 10, una, una + 10) {
                    factor = f;
                }
            }
        }
        assert!((factor - 0.95).abs() < 0.01, "{factor}");
    }
}
