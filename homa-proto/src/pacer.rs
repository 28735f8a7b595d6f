//! When the link takes more data.
//!
//! The endpoint keeps its own estimate of when the link will be idle and hands it data at most a
//! set time ahead, so that the queue that can be reordered is the endpoint's own, not the card's.
//! USENIX ATC '21, section 3.4; Homa draft, "Pacer".

use crate::time::Instant;

/// Preamble, Ethernet header, checksum and gap between frames.
const FRAME_OVERHEAD: u64 = 42;
/// The link is taken as 1 % slower than it is, so that the estimate errs on the safe side.
const SLOWER_PERMILLE: u64 = 1010;
/// Fixed point of the time per byte.
const SHIFT: u32 = 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    /// Nanoseconds per byte, in 2^-20; 0: the link's speed is unknown and nothing is held.
    per_byte: u64,
    /// When the link will have sent everything that was handed to it.
    idle: Instant,
    /// The part of `idle` below a nanosecond, in 2^-20.
    fraction: u64,
    backlog_ns: u64,
    overhead: u64,
}

impl Pacer {
    pub(crate) fn new(link_bps: u64, backlog_ns: u64) -> Self {
        // 8,000,000 = bits in a byte × nanoseconds in a second / 1000 of the per mille.
        const SCALED: u128 = (8_000_000 * SLOWER_PERMILLE as u128) << SHIFT;
        let per_byte = SCALED.checked_div(link_bps.into()).map_or(0, |per_byte| {
            u64::try_from(per_byte).unwrap_or(u64::MAX).max(1)
        });
        Self {
            per_byte,
            idle: Instant::ZERO,
            fraction: 0,
            backlog_ns,
            overhead: FRAME_OVERHEAD,
        }
    }

    pub(crate) fn set_backlog_ns(&mut self, nanos: u64) {
        self.backlog_ns = nanos;
    }

    /// `packets` IP packets of `bytes` in all have been handed to the link.
    pub(crate) fn charge(&mut self, now: Instant, bytes: u64, packets: u64) {
        if self.per_byte == 0 {
            return;
        }
        if self.idle < now {
            self.idle = now;
            self.fraction = 0;
        }
        let wire = bytes.saturating_add(packets.saturating_mul(self.overhead));
        // Three numbers of 64 bits: it fits into 128.
        let time = u128::from(wire)
            .wrapping_mul(self.per_byte.into())
            .wrapping_add(self.fraction.into());
        self.fraction = (time & ((1 << SHIFT) - 1)) as u64;
        self.idle = self
            .idle
            .after(u64::try_from(time >> SHIFT).unwrap_or(u64::MAX));
    }

    /// Whether data may be handed to the link now.
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        self.per_byte == 0 || self.idle.nanos_since(now) < self.backlog_ns
    }

    /// When data may be handed to the link, if that is not now.
    pub(crate) fn ready_at(&self, now: Instant) -> Option<Instant> {
        if self.is_ready(now) {
            return None;
        }
        let lead = self.backlog_ns.saturating_sub(1);
        Some(Instant::from_nanos(
            self.idle.as_nanos().saturating_sub(lead),
        ))
    }

    /// Bytes of packets that fit into what is left of the backlog; at least one packet always
    /// goes when the pacer is ready.
    pub(crate) fn allowance(&self, now: Instant) -> u64 {
        let room = self.backlog_ns.saturating_sub(self.idle.nanos_since(now));
        let bytes = (u128::from(room) << SHIFT).checked_div(self.per_byte.into());
        bytes.map_or(u64::MAX, |bytes| u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// How long the link has been idle at `now`, in nanoseconds.
    pub(crate) fn idle_since(&self) -> Instant {
        self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over any mix of packets the link is never promised more than it can carry, nor less than
    /// 98 % of it.
    #[test]
    fn keeps_to_the_rate() {
        for bps in [10_000_000, 1_000_000_000, 25_000_000_000, 400_000_000_000] {
            let mut pacer = Pacer::new(bps, 5_000);
            let mut now = Instant::ZERO;
            let (mut bytes, mut rng) = (0u64, 1u64);
            while bytes < 50_000_000 {
                if let Some(at) = pacer.ready_at(now) {
                    assert!(at > now);
                    now = at;
                    assert!(pacer.is_ready(now));
                }
                rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let len = 64 + (rng >> 33) % 1437;
                pacer.charge(now, len, 1);
                bytes += len + FRAME_OVERHEAD;
            }
            let exact = u128::from(bytes) * 8_000_000_000 / u128::from(bps);
            let told = u128::from(pacer.idle_since().as_nanos());
            assert!(told >= exact, "{bps}: the link is slower than told");
            assert!(told <= exact * 102 / 100, "{bps}: {told} against {exact}");
        }
    }

    #[test]
    fn unknown_speed_never_holds() {
        let mut pacer = Pacer::new(0, 5_000);
        pacer.charge(Instant::ZERO, u64::MAX, u64::MAX);
        assert!(pacer.is_ready(Instant::ZERO));
        assert_eq!(pacer.ready_at(Instant::ZERO), None);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut pacer = Pacer::new(1, u64::MAX);
        pacer.charge(Instant::MAX, u64::MAX, u64::MAX);
        assert!(pacer.is_ready(Instant::MAX));
        assert!(pacer.allowance(Instant::ZERO) < u64::MAX);
    }
}
