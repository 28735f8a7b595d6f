//! How large the congestion window is: the rules that the three TCPs share, and NewReno's own.

use super::cubic::Cubic;
use super::dctcp::Dctcp;

/// Which rules a TCP follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// RFC 5681 and 6582.
    NewReno,
    /// RFC 9438.
    Cubic,
    /// RFC 8257.
    Dctcp,
}

#[derive(Clone, Debug)]
enum Rules {
    NewReno,
    Cubic(Cubic),
    Dctcp(Dctcp),
}

/// A congestion window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) bytes: f64,
    pub(super) threshold: f64,
    mss: f64,
    rules: Rules,
}

impl Window {
    pub(super) fn new(algorithm: Algorithm, mss: u32, initial: u32) -> Self {
        Self {
            bytes: f64::from(mss) * f64::from(initial),
            threshold: f64::INFINITY,
            mss: f64::from(mss),
            rules: match algorithm {
                Algorithm::NewReno => Rules::NewReno,
                Algorithm::Cubic => Rules::Cubic(Cubic::default()),
                Algorithm::Dctcp => Rules::Dctcp(Dctcp::default()),
            },
        }
    }

    /// Whether its packets may be marked.
    pub(super) fn uses_ecn(&self) -> bool {
        matches!(self.rules, Rules::Dctcp(_))
    }

    /// New data was acknowledged, while `flight` bytes had been out, outside of fast recovery.
    pub(super) fn acknowledged(&mut self, now: u64, acked: u64, flight: u64, srtt_ns: u64) {
        let acked = acked as f64;
        // A window that is not used up says nothing about the network (RFC 7661, and what Linux does).
        let flight = flight as f64;
        if self.bytes < self.threshold {
            if self.bytes < 2.0 * flight {
                // RFC 3465: at most two segments for one acknowledgement would throttle an ACK that covers
                // many; the segments of one ACK are counted in full, as Linux does.
                self.bytes = (self.bytes + acked).min(self.threshold.max(self.bytes));
            }
            return;
        }
        if flight + self.mss < self.bytes {
            return;
        }
        match &mut self.rules {
            Rules::NewReno | Rules::Dctcp(_) => self.bytes += self.mss * acked / self.bytes,
            Rules::Cubic(cubic) => {
                self.bytes =
                    cubic.grow(now, self.bytes / self.mss, acked / self.mss, srtt_ns) * self.mss;
            }
        }
    }

    /// Marks seen with an acknowledgement (DCTCP only).
    pub(super) fn marks(&mut self, acked: u64, marked: bool, una: u64, next: u64) {
        if let Rules::Dctcp(dctcp) = &mut self.rules
            && let Some(factor) = dctcp.acknowledged(acked, marked, una, next)
        {
            self.bytes = (self.bytes * factor).max(2.0 * self.mss);
            self.threshold = self.bytes;
        }
    }

    /// Fast retransmit: packets were lost (RFC 5681 §3.2, RFC 9438 §4.6).
    pub(super) fn lost(&mut self, flight: u64) {
        let base = match &mut self.rules {
            Rules::NewReno | Rules::Dctcp(_) => flight as f64 / 2.0,
            Rules::Cubic(cubic) => {
                cubic.lost(self.bytes / self.mss);
                (flight as f64).min(self.bytes) * Cubic::BETA
            }
        };
        self.threshold = base.max(2.0 * self.mss);
        self.bytes = self.threshold;
    }

    /// Retransmission timeout (RFC 5681 §3.1, RFC 9438 §4.8).
    pub(super) fn timed_out(&mut self, flight: u64, first: bool) {
        if first {
            self.lost(flight);
            if let Rules::Cubic(cubic) = &mut self.rules {
                cubic.restart();
            }
        }
        self.bytes = self.mss;
    }

    /// The connection was idle for more than a retransmission timeout (RFC 5681 §4.1).
    pub(super) fn idle(&mut self, initial: u32) {
        self.bytes = self.bytes.min(self.mss * f64::from(initial));
    }
}
