//! What happens next: the queue of events, in order of time and then of scheduling.
//!
//! A bucketed wheel: events of the near future lie in one list per 16 ns, events beyond the wheel in a
//! heap. Only the bucket that is being drained is sorted, so that scheduling costs O(1).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at a point in time. Kept to 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// A packet has reached the next node and gone through its fixed latency.
    Arrive {
        /// Which.
        packet: u32,
    },
    /// A switch port has sent its packet.
    PortFree {
        /// Which.
        port: u32,
    },
    /// A host's network card has room for another packet.
    NicFree {
        /// Whose.
        host: u16,
    },
    /// A host's software starts to work through what has arrived.
    Run {
        /// Which.
        host: u16,
    },
    /// The transport of a host asked to be called.
    Timer {
        /// Whose.
        host: u16,
    },
    /// The application asked to be called.
    Wake {
        /// Whatever it wants to be told.
        token: u32,
    },
    /// A step of the fault schedule.
    Fault {
        /// Which.
        step: u32,
    },
}

impl Event {
    /// A number that tells this event from every other, for the trace hash.
    #[must_use]
    pub fn code(self) -> u64 {
        let (kind, value) = match self {
            Self::Arrive { packet } => (1, packet),
            Self::PortFree { port } => (2, port),
            Self::NicFree { host } => (3, u32::from(host)),
            Self::Run { host } => (4, u32::from(host)),
            Self::Timer { host } => (5, u32::from(host)),
            Self::Wake { token } => (6, token),
            Self::Fault { step } => (7, step),
        };
        kind << 32 | u64::from(value)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    time: u64,
    sequence: u64,
    event: Event,
}

#[derive(Clone, Copy)]
struct Node {
    entry: Entry,
    next: u32,
}

const BUCKET_SHIFT: u32 = 4;
const BUCKETS: u64 = 8192;
const NONE: u32 = u32::MAX;

/// The events to come.
pub struct EventQueue {
    now: u64,
    scheduled: u64,
    /// Number of the bucket being drained.
    cursor: u64,
    /// Its events, the next one last.
    current: Vec<Entry>,
    /// First node of each bucket's list. Holds events of buckets `cursor + 1 .. cursor + BUCKETS`.
    heads: Vec<u32>,
    /// One bit per bucket: has events.
    occupied: Vec<u64>,
    nodes: Vec<Node>,
    free: u32,
    /// Events that were beyond the wheel when scheduled.
    far: BinaryHeap<Reverse<Entry>>,
    len: usize,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl EventQueue {
    /// An empty queue at time 0.
    #[must_use]
    pub fn new() -> Self {
        Self {
            now: 0,
            scheduled: 0,
            cursor: 0,
            current: Vec::new(),
            heads: vec![NONE; BUCKETS as usize],
            occupied: vec![0; BUCKETS as usize / 64],
            nodes: Vec::new(),
            free: NONE,
            far: BinaryHeap::new(),
            len: 0,
        }
    }

    /// The time of the last event taken, in nanoseconds.
    #[must_use]
    #[inline]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Events to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules `event` at `time`, which must not lie in the past.
    #[inline]
    pub fn push(&mut self, time: u64, event: Event) {
        debug_assert!(time >= self.now, "{event:?} at {time}, now {}", self.now);
        let time = time.max(self.now);
        let entry = Entry {
            time,
            sequence: self.scheduled,
            event,
        };
        self.scheduled += 1;
        self.len += 1;
        let bucket = time >> BUCKET_SHIFT;
        if bucket <= self.cursor {
            let at = self.current.partition_point(|other| *other > entry);
            self.current.insert(at, entry);
        } else if bucket < self.cursor + BUCKETS {
            let slot = (bucket % BUCKETS) as usize;
            let node = Node {
                entry,
                next: self.heads[slot],
            };
            self.heads[slot] = if self.free == NONE {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            } else {
                let index = self.free;
                self.free = self.nodes[index as usize].next;
                self.nodes[index as usize] = node;
                index
            };
            self.occupied[slot / 64] |= 1 << (slot % 64);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// The time of the next event.
    pub fn peek_time(&mut self) -> Option<u64> {
        if self.current.is_empty() {
            self.advance();
        }
        self.current.last().map(|entry| entry.time)
    }

    /// Takes the next event if it comes no later than `end`.
    #[inline]
    pub fn pop_until(&mut self, end: u64) -> Option<(u64, Event)> {
        if self.current.is_empty() {
            self.advance();
        }
        let entry = *self.current.last()?;
        if entry.time > end {
            return None;
        }
        self.current.pop();
        self.len -= 1;
        self.now = entry.time;
        Some((entry.time, entry.event))
    }

    /// Moves on to the next bucket that has events.
    fn advance(&mut self) {
        let near = self.next_occupied();
        let far = self.far.peek().map(|entry| entry.0.time >> BUCKET_SHIFT);
        let Some(bucket) = near.into_iter().chain(far).min() else {
            return;
        };
        self.cursor = bucket;
        if near == Some(bucket) {
            let slot = (bucket % BUCKETS) as usize;
            let mut index = std::mem::replace(&mut self.heads[slot], NONE);
            self.occupied[slot / 64] &= !(1 << (slot % 64));
            while index != NONE {
                let node = &mut self.nodes[index as usize];
                self.current.push(node.entry);
                let next = std::mem::replace(&mut node.next, self.free);
                self.free = index;
                index = next;
            }
        }
        while let Some(Reverse(entry)) = self.far.peek()
            && entry.time >> BUCKET_SHIFT == bucket
        {
            self.current.push(*entry);
            self.far.pop();
        }
        self.current
            .sort_unstable_by_key(|entry| Reverse((entry.time, entry.sequence)));
    }

    /// Number of the first bucket after the cursor that has events in the wheel.
    fn next_occupied(&self) -> Option<u64> {
        let start = ((self.cursor + 1) % BUCKETS) as usize;
        let words = self.occupied.len();
        let (first, bit) = (start / 64, start % 64);
        for step in 0..=words {
            let word = (first + step) % words;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << bit;
            } else if step == words {
                bits &= !(u64::MAX << bit);
            }
            if bits != 0 {
                let slot = word as u64 * 64 + u64::from(bits.trailing_zeros());
                let ahead = (slot + BUCKETS - start as u64) % BUCKETS;
                return Some(self.cursor + 1 + ahead);
            }
        }
        None
    }
}

/// A hash of everything that happened, in order: equal traces, equal hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceHash(u64);

impl Default for TraceHash {
    fn default() -> Self {
        Self(0x243f_6a88_85a3_08d3)
    }
}

impl TraceHash {
    /// Takes in one number.
    #[inline]
    pub fn add(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0xf39c_c060_5ced_c835;
        self.0 = (product as u64) ^ (product >> 64) as u64 ^ value.rotate_left(32);
    }

    /// The hash so far.
    #[must_use]
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn order_is_that_of_a_sorted_list() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed, 0);
            let mut queue = EventQueue::new();
            let mut model: Vec<(u64, u32)> = Vec::new();
            let mut token = 0;
            for _ in 0..4000 {
                if rng.chance(0.55) {
                    let ahead = match rng.below(4) {
                        0 => rng.below(4),
                        1 => rng.below(3000),
                        2 => rng.below(300_000),
                        _ => rng.below(100_000_000),
                    };
                    let time = queue.now() + ahead;
                    queue.push(time, Event::Wake { token });
                    model.push((time, token));
                    token += 1;
                } else {
                    // Tokens count up, so (time, token) is (time, order of scheduling).
                    let first = model.iter().copied().min();
                    let end = queue.now() + rng.below(1_000_000);
                    let got = queue.pop_until(end);
                    match first {
                        Some((time, token)) if time <= end => {
                            assert_eq!(got, Some((time, Event::Wake { token })));
                            model.retain(|entry| entry.1 != token);
                        }
                        _ => assert_eq!(got, None),
                    }
                }
                assert_eq!(queue.len(), model.len());
            }
        }
    }

    #[test]
    fn event_is_small() {
        assert!(size_of::<Event>() <= 8);
    }

    #[test]
    fn hash_depends_on_order() {
        let of = |values: &[u64]| {
            let mut hash = TraceHash::default();
            values.iter().for_each(|&value| hash.add(value));
            hash.value()
        };
        assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3]));
        assert_ne!(of(&[1, 2, 3]), of(&[2, 1, 3]));
        assert_ne!(of(&[0]), of(&[0, 0]));
    }
}
