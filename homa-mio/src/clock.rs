//! The clock of the core: nanoseconds since the socket was made.

use std::time;

use homa_proto::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(time::Instant);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(time::Instant::now())
    }

    pub(crate) fn now(self) -> Instant {
        // 584 years fit.
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// How late the driver acts when it is to act at a certain time.
///
/// The pacer hands data over that far ahead, else the link idles while a thread wakes up. The
/// estimate rises faster than it falls, and so covers four delays of five: too much costs a little
/// queueing, too little costs throughput.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeLatency {
    nanos: u64,
    told: u64,
}

impl WakeLatency {
    /// Longer delays are stalls, which nobody can cover.
    const MAX_NS: u64 = 1_000_000;

    pub(crate) fn new(nanos: u64) -> Self {
        Self { nanos, told: nanos }
    }

    pub(crate) fn nanos(self) -> u64 {
        self.nanos
    }

    /// Takes in how late it was this time. Returns the estimate when it has changed by a
    /// quarter since it was last returned.
    pub(crate) fn observe(&mut self, late_ns: u64) -> Option<u64> {
        let late = late_ns.min(Self::MAX_NS);
        if late > self.nanos {
            self.nanos += (late - self.nanos).div_ceil(16);
        } else {
            self.nanos -= (self.nanos - late) / 64;
        }
        if self.nanos.abs_diff(self.told) <= self.told / 4 {
            return None;
        }
        self.told = self.nanos;
        Some(self.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_rises_fast_falls_slowly_and_is_bounded() {
        let mut latency = WakeLatency::new(5_000);
        let mut rounds = 0;
        while latency.nanos() < 90_000 {
            latency.observe(100_000);
            rounds += 1;
        }
        assert!(rounds <= 50, "{rounds}");
        let mut rounds = 0;
        while latency.nanos() > 10_000 {
            latency.observe(1_000);
            rounds += 1;
        }
        assert!(rounds > 100, "{rounds}");
        for _ in 0..1000 {
            latency.observe(u64::MAX);
        }
        assert_eq!(latency.nanos(), WakeLatency::MAX_NS);
        // One delay in fifty is not what is to be covered.
        for i in 0..5000 {
            latency.observe(if i % 50 == 0 { 900_000 } else { 10_000 });
        }
        assert!(latency.nanos() < 100_000, "{latency:?}");
    }

    #[test]
    fn a_change_is_told_once() {
        let mut latency = WakeLatency::new(1_000);
        assert_eq!(latency.observe(1_100), None);
        assert!(latency.observe(100_000).is_some());
        let told = latency.nanos();
        assert_eq!(latency.observe(told), None);
    }
}
