//! What happens next: the queue of events, in order of time and then of scheduling.
//!
//! A wheel with one list per nanosecond of the near future, and a heap for what lies beyond it. Nothing is sorted:
//! scheduling and taking an event of the near future costs O(1).

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

/// An event of the far future.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Far {
    time: u64,
    sequence: u64,
    event: Event,
}

/// An event of the near future, in the list of its nanosecond.
#[derive(Clone, Copy)]
struct Near {
    event: Event,
    next: u32,
}

/// Nanoseconds that the wheel covers: more than a full packet takes on a slow link.
const SLOTS: u64 = 16_384;
const NONE: u32 = u32::MAX;

/// The events to come.
pub struct EventQueue {
    now: u64,
    scheduled: u64,
    /// First and last event of each nanosecond from `now` to `now + SLOTS - 1`.
    lists: Vec<(u32, u32)>,
    /// One bit per list: has events.
    occupied: [u64; SLOTS as usize / 64],
    /// One bit per word of `occupied`: is not 0.
    words: [u64; SLOTS as usize / 4096],
    nodes: Vec<Near>,
    free: u32,
    /// Events that were beyond the wheel when scheduled.
    far: BinaryHeap<Reverse<Far>>,
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
            lists: vec![(NONE, NONE); SLOTS as usize],
            occupied: [0; SLOTS as usize / 64],
            words: [0; SLOTS as usize / 4096],
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
        self.len += 1;
        if time - self.now >= SLOTS {
            self.far.push(Reverse(Far {
                time,
                sequence: self.scheduled,
                event,
            }));
            self.scheduled += 1;
            return;
        }
        let node = Near { event, next: NONE };
        let index = if self.free == NONE {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        let slot = (time % SLOTS) as usize;
        let (head, tail) = &mut self.lists[slot];
        if *head == NONE {
            *head = index;
            self.occupied[slot / 64] |= 1 << (slot % 64);
            self.words[slot / 4096] |= 1 << (slot / 64 % 64);
        } else {
            self.nodes[*tail as usize].next = index;
        }
        *tail = index;
    }

    /// The time of the next event.
    #[must_use]
    pub fn peek_time(&self) -> Option<u64> {
        let far = self.far.peek().map(|entry| entry.0.time);
        far.into_iter().chain(self.next_near()).min()
    }

    /// Takes the next event if it comes no later than `end`.
    #[inline]
    pub fn pop_until(&mut self, end: u64) -> Option<(u64, Event)> {
        let near = self.next_near().unwrap_or(u64::MAX);
        let far = self.far.peek().map_or(u64::MAX, |entry| entry.0.time);
        if near.min(far) > end || self.len == 0 {
            return None;
        }
        self.len -= 1;
        // Of the same nanosecond those from beyond the wheel were scheduled first: the wheel only moves on.
        if far <= near {
            self.now = far;
            return self.far.pop().map(|entry| (far, entry.0.event));
        }
        self.now = near;
        let slot = (near % SLOTS) as usize;
        let head = &mut self.lists[slot].0;
        let index = *head;
        let node = &mut self.nodes[index as usize];
        *head = node.next;
        node.next = self.free;
        self.free = index;
        if *head == NONE {
            let word = &mut self.occupied[slot / 64];
            *word &= !(1 << (slot % 64));
            if *word == 0 {
                self.words[slot / 4096] &= !(1 << (slot / 64 % 64));
            }
        }
        Some((near, self.nodes[index as usize].event))
    }

    /// The time of the next event in the wheel.
    #[inline]
    fn next_near(&self) -> Option<u64> {
        let start = (self.now % SLOTS) as usize;
        let ahead = |slot: usize| {
            let slots = (slot as u64).wrapping_sub(start as u64) % SLOTS;
            Some(self.now + slots)
        };
        let first = start / 64;
        let bits = self.occupied[first] & (u64::MAX << (start % 64));
        if bits != 0 {
            return ahead(first * 64 + bits.trailing_zeros() as usize);
        }
        // The first word with events after it, round the wheel; at last the part of its own that lies before.
        let count = self.words.len();
        for step in 0..=count {
            let at = (first / 64 + step) % count;
            let after = (u64::MAX << (first % 64)) << 1;
            let bits = match step {
                0 => self.words[at] & after,
                _ if step == count => self.words[at] & !after,
                _ => self.words[at],
            };
            if bits != 0 {
                let word = at * 64 + bits.trailing_zeros() as usize;
                return ahead(word * 64 + self.occupied[word].trailing_zeros() as usize);
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
