//! What links could have carried at best, if messages flowed through them like water.

/// Links that each carry what comes for them without a pause, at the same speed.
pub(super) struct Fluid {
    bytes_per_ns: f64,
    /// For each link the bytes that wait, and when that was so.
    links: Vec<(f64, u64)>,
}

impl Fluid {
    pub(super) fn new(links: usize, bps: u64) -> Self {
        Self {
            bytes_per_ns: bps as f64 / 8e9,
            links: vec![(0.0, 0); links],
        }
    }

    fn left(&self, link: usize, now: u64) -> f64 {
        let (bytes, at) = self.links[link];
        (bytes - (now - at) as f64 * self.bytes_per_ns).max(0.0)
    }

    pub(super) fn add(&mut self, now: u64, link: usize, bytes: f64) {
        self.links[link] = (self.left(link, now) + bytes, now);
    }

    /// Bytes that wait at all links.
    pub(super) fn backlog(&self, now: u64) -> f64 {
        (0..self.links.len()).map(|link| self.left(link, now)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_no_more_than_it_can_and_nothing_ahead() {
        let mut fluid = Fluid::new(2, 8_000_000_000);
        fluid.add(100, 0, 50.0);
        assert_eq!(fluid.backlog(100), 50.0);
        assert_eq!(fluid.backlog(120), 30.0);
        // Idle time is lost.
        fluid.add(1000, 0, 10.0);
        fluid.add(1000, 1, 5.0);
        assert_eq!(fluid.backlog(1000), 15.0);
        assert_eq!(fluid.backlog(1007), 3.0);
    }
}
