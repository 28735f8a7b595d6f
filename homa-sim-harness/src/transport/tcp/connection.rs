//! One end of a TCP connection: sender with SACK-based recovery, receiver with delayed acknowledgements.

use std::collections::VecDeque;

use super::congestion::Window;
use super::ranges::Ranges;
use super::{Part, Segment, Settings};
use crate::packet::HostId;
use crate::transport::MessageId;

/// RFC 6675: duplicate acknowledgements that show a loss.
const DUP_THRESH: usize = 3;

/// Fast recovery, or recovery after a timeout.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// Ends when everything below is acknowledged.
    point: u64,
    /// Everything below has been retransmitted or received.
    high_rxt: u64,
    /// The segment that provokes a last acknowledgement has been sent (RFC 6675 §4, rule 4).
    rescued: bool,
    /// After a timeout everything below is taken as lost.
    lost_below: u64,
}

/// Round-trip estimate and retransmission timeout (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
struct RoundTrip {
    smoothed: f64,
    variation: f64,
}

impl RoundTrip {
    fn sample(&mut self, nanos: u64) {
        let sample = nanos as f64;
        if self.smoothed == 0.0 {
            self.smoothed = sample;
            self.variation = sample / 2.0;
        } else {
            self.variation += ((self.smoothed - sample).abs() - self.variation) / 4.0;
            self.smoothed += (sample - self.smoothed) / 8.0;
        }
    }

    fn timeout(&self, settings: &Settings, backoff: u32) -> u64 {
        let base = if self.smoothed == 0.0 {
            // The handshake, which is not simulated, would have given a first sample.
            3 * settings.rto_min_ns
        } else {
            (self.smoothed + 4.0 * self.variation) as u64
        };
        (base.max(settings.rto_min_ns) << backoff.min(16)).min(60_000_000_000)
    }
}

/// What the other end must be told.
#[derive(Clone, Copy, Debug)]
struct Acknowledgement {
    upto: u64,
    marked: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) peer: HostId,
    // Sender. Offsets count bytes of the stream.
    una: u64,
    next: u64,
    end: u64,
    window: Window,
    sacked: Ranges,
    dup_acks: usize,
    recovery: Option<Recovery>,
    round_trip: RoundTrip,
    backoff: u32,
    timeout_at: Option<u64>,
    last_sent: u64,
    // Receiver.
    expected: u64,
    early: Ranges,
    /// Ranges to report first: those that changed last (RFC 2018).
    recent: [(u64, u64); 3],
    marked: bool,
    timestamp: u64,
    unacknowledged: u32,
    ack_now: bool,
    ack_at: Option<u64>,
    /// Acknowledgements that must go out as they are (RFC 8257 §3.2: the mark has changed).
    pending: VecDeque<Acknowledgement>,
    /// Where messages end in the incoming stream.
    pub(super) boundaries: VecDeque<(u64, MessageId, Part)>,
    // Its host's books.
    pub(super) queued: bool,
    pub(super) timer_entry: u64,
}

/// What happened when a timer or packet was handled, for the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) segments: u64,
    pub(super) acks: u64,
    pub(super) retransmitted: u64,
    pub(super) recoveries: u64,
    pub(super) timeouts: u64,
    pub(super) marked_acks: u64,
}

impl Connection {
    pub(super) fn new(peer: HostId, settings: &Settings) -> Self {
        Self {
            peer,
            una: 0,
            next: 0,
            end: 0,
            window: Window::new(settings.algorithm, settings.mss(), settings.initial_window),
            sacked: Ranges::default(),
            dup_acks: 0,
            recovery: None,
            round_trip: RoundTrip::default(),
            backoff: 0,
            timeout_at: None,
            last_sent: 0,
            expected: 0,
            early: Ranges::default(),
            recent: [(0, 0); 3],
            marked: false,
            timestamp: 0,
            unacknowledged: 0,
            ack_now: false,
            ack_at: None,
            pending: VecDeque::new(),
            boundaries: VecDeque::new(),
            queued: false,
            timer_entry: u64::MAX,
        }
    }

    /// The application adds `bytes` to the stream; returns where they end.
    pub(super) fn write(&mut self, now: u64, bytes: u64, settings: &Settings) -> u64 {
        if self.una == self.next
            && self.next == self.end
            && now.saturating_sub(self.last_sent) > self.round_trip.timeout(settings, 0)
        {
            self.window.idle(settings.initial_window);
        }
        self.end += bytes;
        self.end
    }

    /// Bytes written and not yet known to have arrived.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.end - self.una
    }

    /// When a timer of this end is due.
    pub(super) fn next_timer(&self) -> Option<u64> {
        self.timeout_at.into_iter().chain(self.ack_at).min()
    }

    /// Handles the timers that are due.
    pub(super) fn timer(&mut self, now: u64, settings: &Settings, counters: &mut Counters) {
        if self.ack_at.is_some_and(|at| at <= now) {
            self.ack_at = None;
            self.ack_now = true;
        }
        if self.timeout_at.is_some_and(|at| at <= now) {
            counters.timeouts += 1;
            self.window
                .timed_out(self.next - self.una, self.backoff == 0);
            self.backoff += 1;
            self.dup_acks = 0;
            // RFC 6675 §5.1: everything outstanding may be sent again, save what was reported received.
            self.recovery = Some(Recovery {
                point: self.next,
                high_rxt: self.una,
                rescued: true,
                lost_below: self.next,
            });
            self.timeout_at = Some(now + self.round_trip.timeout(settings, self.backoff));
        }
    }

    /// Takes a segment in; returns how far the incoming stream is complete.
    pub(super) fn receive(
        &mut self,
        now: u64,
        segment: &Segment,
        marked: bool,
        settings: &Settings,
        counters: &mut Counters,
    ) -> u64 {
        if segment.bytes > 0 {
            self.receive_data(now, segment, marked, settings);
        }
        self.receive_ack(now, segment, settings, counters);
        self.expected
    }

    fn receive_data(&mut self, now: u64, segment: &Segment, marked: bool, settings: &Settings) {
        if self.window.uses_ecn() && marked != self.marked {
            if self.unacknowledged > 0 {
                self.pending.push_back(Acknowledgement {
                    upto: self.expected,
                    marked: self.marked,
                });
                self.acknowledged_all();
            }
            self.marked = marked;
        }
        if self.unacknowledged == 0 || segment.offset <= self.expected {
            self.timestamp = segment.timestamp;
        }
        let end = segment.offset + u64::from(segment.bytes);
        if segment.offset > self.expected {
            let (range, _) = self.early.insert(segment.offset, end);
            self.report_first(range);
            self.ack_now = true;
            return;
        }
        // A duplicate, or one that fills a gap, is acknowledged at once (RFC 5681 §4.2).
        self.ack_now |= end <= self.expected || !self.early.is_empty();
        self.expected = self.expected.max(end);
        while let Some((_, end)) = self.early.take_reached(self.expected) {
            self.expected = self.expected.max(end);
        }
        self.unacknowledged += 1;
        if self.unacknowledged >= 2 {
            self.ack_now = true;
        } else if self.ack_at.is_none() {
            self.ack_at = Some(now + settings.ack_delay_ns);
        }
    }

    fn report_first(&mut self, range: (u64, u64)) {
        let [a, b, _] = self.recent;
        let covered = |old: (u64, u64)| old.0 >= range.0 && old.1 <= range.1;
        self.recent = if covered(a) {
            [range, b, self.recent[2]]
        } else if covered(b) {
            [range, a, self.recent[2]]
        } else {
            [range, a, b]
        };
    }

    fn acknowledged_all(&mut self) {
        self.unacknowledged = 0;
        self.ack_now = false;
        self.ack_at = None;
    }

    fn receive_ack(
        &mut self,
        now: u64,
        segment: &Segment,
        settings: &Settings,
        counters: &mut Counters,
    ) {
        let flight = self.next - self.una;
        let acked = segment.ack.saturating_sub(self.una);
        if segment.ack > self.next {
            return;
        }
        let newly_sacked: u64 = segment
            .sacks()
            .filter(|range| range.1 <= self.next && range.0 >= self.una.max(segment.ack))
            .map(|(start, end)| self.sacked.insert(start, end).1)
            .sum();
        if acked > 0 {
            self.una = segment.ack;
            self.sacked.remove_below(self.una);
            self.dup_acks = 0;
            self.backoff = 0;
            if segment.timestamp_echo > 0 {
                self.round_trip
                    .sample(now.saturating_sub(segment.timestamp_echo));
            }
            self.timeout_at =
                (self.una < self.next).then(|| now + self.round_trip.timeout(settings, 0));
        }
        counters.marked_acks += u64::from(segment.marked);
        self.window
            .marks(acked, segment.marked, self.una, self.next);
        match &mut self.recovery {
            Some(recovery) if self.una >= recovery.point => self.recovery = None,
            Some(recovery) => {
                recovery.high_rxt = recovery.high_rxt.max(self.una);
                if recovery.lost_below > self.una && acked > 0 {
                    // After a timeout the window grows again from one segment (RFC 5681 §3.1).
                    let srtt = self.round_trip.smoothed as u64;
                    self.window.acknowledged(now, acked, flight, srtt);
                }
            }
            None => {
                if newly_sacked > 0 && acked == 0 {
                    self.dup_acks += 1;
                }
                if self.dup_acks >= DUP_THRESH || self.lost_edge(settings) > self.una {
                    counters.recoveries += 1;
                    self.window.lost(flight);
                    self.recovery = Some(Recovery {
                        point: self.next,
                        high_rxt: self.una,
                        rescued: false,
                        lost_below: 0,
                    });
                } else if acked > 0 {
                    let srtt = self.round_trip.smoothed as u64;
                    self.window.acknowledged(now, acked, flight, srtt);
                }
            }
        }
    }

    /// Bytes below this offset that were not reported received are lost (IsLost of RFC 6675).
    fn lost_edge(&self, settings: &Settings) -> u64 {
        let limit = (DUP_THRESH as u64 - 1) * u64::from(settings.mss());
        if self.sacked.bytes() <= limit && self.dup_acks < DUP_THRESH {
            return self.una;
        }
        let mut above = 0;
        for (count, (start, end)) in self.sacked.iter().rev().enumerate() {
            above += end - start;
            if above > limit || count + 1 >= DUP_THRESH {
                return start;
            }
        }
        // Three duplicate acknowledgements show the loss of the first segment at least.
        if self.dup_acks >= DUP_THRESH {
            (self.una + u64::from(settings.mss())).min(self.next)
        } else {
            self.una
        }
    }

    /// Bytes in the network, as far as one knows (SetPipe of RFC 6675).
    fn pipe(&self, lost_edge: u64) -> u64 {
        let Some(recovery) = &self.recovery else {
            return self.next - self.una - self.sacked.bytes();
        };
        let edge = lost_edge.max(recovery.lost_below).max(self.una);
        let retransmitted = recovery.high_rxt.min(edge);
        self.sacked.missing(edge, self.next) + self.sacked.missing(self.una, retransmitted)
    }

    /// The next run of bytes to send, if the window allows one, and whether it was sent before (NextSeg of RFC 6675).
    fn next_run(&self, settings: &Settings) -> Option<(u64, u64, bool)> {
        let mss = u64::from(settings.mss());
        let Some(recovery) = self.recovery else {
            let flight = self.next - self.una - self.sacked.bytes();
            let fits = self.next < self.end && (flight as f64) < self.window.bytes;
            return fits.then(|| (self.next, self.end.min(self.next + mss), false));
        };
        let sacked_edge = self.lost_edge(settings);
        if self.pipe(sacked_edge) as f64 + mss as f64 > self.window.bytes.max(mss as f64) {
            return None;
        }
        let edge = sacked_edge.max(recovery.lost_below);
        let segment = |(start, end): (u64, u64)| (start, end.min(start + mss), true);
        if let Some(run) = self
            .sacked
            .first_missing(recovery.high_rxt.max(self.una), edge)
        {
            return Some(segment(run));
        }
        if self.next < self.end {
            return Some((self.next, self.end.min(self.next + mss), false));
        }
        if let Some(top) = self.sacked.last_end()
            && let Some(run) = self
                .sacked
                .first_missing(recovery.high_rxt.max(self.una), top)
        {
            return Some(segment(run));
        }
        if !recovery.rescued
            && let Some((start, end)) = self.sacked.first_missing(self.una, self.next)
            && recovery.high_rxt >= self.una
        {
            let last = self.next.saturating_sub(mss).max(start);
            let run = self.sacked.first_missing(last, self.next);
            return Some(segment(run.unwrap_or((start, end))));
        }
        None
    }

    /// Whether there is anything to send now.
    pub(super) fn wants_to_send(&self, settings: &Settings) -> bool {
        self.ack_now || !self.pending.is_empty() || self.next_run(settings).is_some()
    }

    /// The next segment to send now.
    pub(super) fn transmit(
        &mut self,
        now: u64,
        settings: &Settings,
        counters: &mut Counters,
        segment: &mut Segment,
    ) -> bool {
        *segment = Segment {
            ack: self.expected,
            marked: self.marked,
            timestamp: now,
            timestamp_echo: self.timestamp,
            ..Segment::default()
        };
        if let Some(pending) = self.pending.pop_front() {
            segment.ack = pending.upto;
            segment.marked = pending.marked;
            counters.acks += 1;
            return true;
        }
        for range in self.recent {
            if range.0 >= self.expected && range.1 > range.0 {
                segment.add_sack(range);
            }
        }
        if let Some((start, end, again)) = self.next_run(settings) {
            segment.offset = start;
            segment.bytes = (end - start) as u32;
            segment.again = again;
            counters.segments += 1;
            if again {
                counters.retransmitted += 1;
                if let Some(recovery) = &mut self.recovery {
                    let beyond = start >= recovery.lost_below
                        && start >= self.sacked.last_end().unwrap_or(0);
                    if beyond {
                        recovery.rescued = true;
                    } else {
                        recovery.high_rxt = end;
                    }
                }
            } else {
                self.next = end;
            }
            self.last_sent = now;
            if self.timeout_at.is_none() {
                self.timeout_at = Some(now + self.round_trip.timeout(settings, self.backoff));
            }
            self.acknowledged_all();
            return true;
        }
        if self.ack_now {
            counters.acks += 1;
            self.acknowledged_all();
            return true;
        }
        false
    }
}
