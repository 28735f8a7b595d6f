//! A hierarchical timing wheel over table indices (Varghese and Lauck, SOSP '87).

use crate::storage::{NIL, Slice};

/// A tick is 1024 ns.
const TICK_BITS: u32 = 10;
/// A level has 64 slots, each as long as a whole round of the level below.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Nine levels of 6 bits and a tick of 10 bits: every time that a `u64` can tell.
const LEVELS: usize = 9;
const TICKS: u64 = 1 << (64 - TICK_BITS);
/// The list of timers whose time had passed when they were set.
const DUE: u16 = (LEVELS * SLOTS) as u16;
/// Not armed.
const IDLE: u16 = u16::MAX;
/// How far a list is searched for a new earliest timer when the old one leaves.
const MAX_SEARCH: usize = 8;

/// The timer of one table index.
#[derive(Clone, Copy, Debug)]
pub struct TimerNode {
    at_ns: u64,
    next: u32,
    previous: u32,
    // The list it is in: level × 64 + slot, `DUE` or `IDLE`.
    list: u16,
}

impl Default for TimerNode {
    fn default() -> Self {
        Self {
            at_ns: 0,
            next: NIL,
            previous: NIL,
            list: IDLE,
        }
    }
}

/// One timer for each table index.
///
/// Tick *t* is the time from just after *t* × 1024 ns up to and including (*t* + 1) × 1024 ns
/// (for the last tick: `u64::MAX`). A timer fires at the end of its tick: never early and less
/// than 1024 ns late. `set`, `cancel` and `next` are O(1); `expire` is amortised O(1), as a
/// timer moves to a lower level at most eight times.
///
/// All timers of a level share the digits of the tick number above that level with the cursor,
/// and the slot of each is beyond (at level 0: or at) the cursor's own. So a timer at a lower
/// level is always earlier than one at a higher level.
#[derive(Debug)]
pub(crate) struct Wheel<'a> {
    nodes: Slice<'a, TimerNode>,
    now_ns: u64,
    /// No timer in a slot is of an earlier tick. Not beyond the ticks that `now_ns` has ended.
    cursor: u64,
    /// Bit *l*: level *l* has timers.
    levels: u16,
    /// Bit *s*: slot *s* of the level has timers.
    slots: [u64; LEVELS],
    /// The last of each list; its `next` is the first.
    tails: [u32; LEVELS * SLOTS + 1],
    /// No timer of the list is earlier. Exact, unless the earliest left a list of more than
    /// `MAX_SEARCH` others.
    earliest_ns: [u64; LEVELS * SLOTS],
    len: usize,
}

/// Ticks that have ended at `now_ns`.
const fn ended_ticks(now_ns: u64) -> u64 {
    if now_ns == u64::MAX {
        TICKS
    } else {
        now_ns >> TICK_BITS
    }
}

/// The tick of a time after 0.
const fn tick_of(at_ns: u64) -> u64 {
    at_ns.saturating_sub(1) >> TICK_BITS
}

/// When a tick ends.
const fn end_of(tick: u64) -> u64 {
    match tick.saturating_add(1).checked_mul(1 << TICK_BITS) {
        Some(end) => end,
        None => u64::MAX,
    }
}

impl<'a> Wheel<'a> {
    /// A wheel at time 0 for indices below the length of `nodes`.
    pub(crate) fn new(mut nodes: Slice<'a, TimerNode>) -> Self {
        nodes.fill(TimerNode::default());
        Self {
            nodes,
            now_ns: 0,
            cursor: 0,
            levels: 0,
            slots: [0; LEVELS],
            tails: [NIL; LEVELS * SLOTS + 1],
            earliest_ns: [u64::MAX; LEVELS * SLOTS],
            len: 0,
        }
    }

    /// Armed timers.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Arms the timer of `idx`, or moves it if it is armed. A time that has passed expires at
    /// the next call of `expire`, whatever its `now_ns`.
    #[inline]
    pub(crate) fn set(&mut self, idx: u32, at_ns: u64) {
        let list = self.list_of(at_ns);
        let Some(node) = self.nodes.get_mut(idx as usize) else {
            debug_assert!(false, "timer beyond the table");
            return;
        };
        if node.list == list {
            // Most timers are put off again and again by far less than their slot is long.
            let old_ns = node.at_ns;
            node.at_ns = at_ns;
            self.moved_within(list, old_ns, at_ns);
            return;
        }
        if node.list != IDLE {
            self.unlink(idx);
        }
        if let Some(node) = self.nodes.get_mut(idx as usize) {
            node.at_ns = at_ns;
        }
        self.append(list, idx);
    }

    /// Disarms the timer of `idx` if it is armed.
    #[inline]
    pub(crate) fn cancel(&mut self, idx: u32) {
        if self.armed(idx).is_some() {
            self.unlink(idx);
        }
    }

    /// When the timer of `idx` is to expire, to the nanosecond; `None` when it is not armed.
    #[inline]
    pub(crate) fn armed(&self, idx: u32) -> Option<u64> {
        let node = self.nodes.get(idx as usize)?;
        (node.list != IDLE).then_some(node.at_ns)
    }

    /// When to call `expire` next; `None` when no timer is armed.
    ///
    /// This is when the earliest timer fires. It may be too early, never too late, when that
    /// timer has been moved or cancelled and shared a slot above the lowest level with many
    /// others; calling `expire` then spreads the slot, and the next answer is later.
    /// After `expire(now)` returned `None` it is later than `now`.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        if self.tail(DUE) != NIL {
            return Some(self.now_ns);
        }
        let (_, list, _) = self.lowest()?;
        self.earliest_ns
            .get(usize::from(list))
            .map(|&at_ns| end_of(tick_of(at_ns)))
    }

    /// Takes out one timer that has expired at `now_ns`; call until `None` comes.
    ///
    /// Timers come out in the order of their ticks, those of one tick in no promised order.
    /// A time earlier than one told before counts as that one.
    #[inline]
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<u32> {
        self.now_ns = self.now_ns.max(now_ns);
        let ended = ended_ticks(self.now_ns);
        // Each round returns or moves the timers of one slot to lower levels.
        loop {
            if self.tail(DUE) != NIL {
                return self.take_first(DUE);
            }
            let Some((level, list, start)) = self.lowest() else {
                self.cursor = ended;
                return None;
            };
            if level == 0 {
                if start >= ended {
                    self.cursor = ended;
                    return None;
                }
                self.cursor = start;
                return self.take_first(list);
            }
            if start > ended {
                self.cursor = ended;
                return None;
            }
            self.cursor = start;
            self.spread(list);
        }
    }

    /// The lowest level with timers, its first list with timers, and the list's first tick.
    #[inline]
    fn lowest(&self) -> Option<(u32, u16, u64)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros();
        let slot = self.slots.get(level as usize)?.trailing_zeros();
        let shift = level.wrapping_mul(LEVEL_BITS);
        let above = self.cursor >> shift >> LEVEL_BITS << LEVEL_BITS;
        let start = (above | u64::from(slot)) << shift;
        Some((level, (level << LEVEL_BITS | slot) as u16, start))
    }

    /// The list for a time.
    #[inline]
    fn list_of(&self, at_ns: u64) -> u16 {
        if at_ns <= self.now_ns {
            return DUE;
        }
        // Not before the cursor, as `at_ns` is after `now_ns`.
        self.slot_list_of(tick_of(at_ns))
    }

    /// The list for a tick that is not before the cursor. Its level is that of the highest digit
    /// in which the two differ.
    #[inline]
    fn slot_list_of(&self, tick: u64) -> u16 {
        let level = (tick ^ self.cursor).checked_ilog2().unwrap_or(0) / LEVEL_BITS;
        let slot = (tick >> level.wrapping_mul(LEVEL_BITS)) as u32 & (SLOTS as u32 - 1);
        (level << LEVEL_BITS | slot) as u16
    }

    #[inline]
    fn tail(&self, list: u16) -> u32 {
        self.tails.get(usize::from(list)).copied().unwrap_or(NIL)
    }

    #[inline]
    fn set_tail(&mut self, list: u16, idx: u32) {
        if let Some(tail) = self.tails.get_mut(usize::from(list)) {
            *tail = idx;
        }
    }

    #[inline]
    fn next_of(&self, idx: u32) -> u32 {
        self.nodes.get(idx as usize).map_or(NIL, |n| n.next)
    }

    #[inline]
    fn update(&mut self, idx: u32, change: impl FnOnce(&mut TimerNode)) {
        if let Some(node) = self.nodes.get_mut(idx as usize) {
            change(node);
        }
    }

    #[inline]
    fn take_first(&mut self, list: u16) -> Option<u32> {
        let first = self.next_of(self.tail(list));
        if first == NIL {
            return None;
        }
        self.unlink(first);
        Some(first)
    }

    /// Appends a timer that is in no list.
    #[inline]
    fn append(&mut self, list: u16, idx: u32) {
        let Some(&TimerNode { at_ns, .. }) = self.nodes.get(idx as usize) else {
            return;
        };
        let tail = self.tail(list);
        let (previous, next) = if tail == NIL {
            self.mark(list, true);
            (idx, idx)
        } else {
            let first = self.next_of(tail);
            self.update(tail, |n| n.next = idx);
            self.update(first, |n| n.previous = idx);
            (tail, first)
        };
        self.update(idx, |n| {
            n.next = next;
            n.previous = previous;
            n.list = list;
        });
        self.set_tail(list, idx);
        if let Some(earliest_ns) = self.earliest_ns.get_mut(usize::from(list)) {
            *earliest_ns = (*earliest_ns).min(at_ns);
        }
        self.len = self.len.wrapping_add(1);
    }

    /// Takes an armed timer out of its list.
    #[inline]
    fn unlink(&mut self, idx: u32) {
        let Some(node) = self.nodes.get_mut(idx as usize) else {
            return;
        };
        let TimerNode {
            at_ns,
            next,
            previous,
            list,
        } = *node;
        node.list = IDLE;
        self.len = self.len.wrapping_sub(1);
        if next == idx {
            self.set_tail(list, NIL);
            self.mark(list, false);
            return;
        }
        self.update(previous, |n| n.next = next);
        self.update(next, |n| n.previous = previous);
        if self.tail(list) == idx {
            self.set_tail(list, previous);
        }
        self.moved_within(list, at_ns, u64::MAX);
    }

    /// Marks a list as occupied or empty.
    #[inline]
    fn mark(&mut self, list: u16, occupied: bool) {
        let level = usize::from(list) >> LEVEL_BITS;
        // `DUE` has no level.
        let Some(slots) = self.slots.get_mut(level) else {
            return;
        };
        let bit = 1u64 << (usize::from(list) % SLOTS);
        if occupied {
            *slots |= bit;
            self.levels |= 1 << level;
        } else {
            *slots &= !bit;
            if *slots == 0 {
                self.levels &= !(1 << level);
            }
            if let Some(earliest_ns) = self.earliest_ns.get_mut(usize::from(list)) {
                *earliest_ns = u64::MAX;
            }
        }
    }

    /// Corrects the earliest time of a list of which one timer was at `old_ns` and is now at
    /// `new_ns`.
    #[inline]
    fn moved_within(&mut self, list: u16, old_ns: u64, new_ns: u64) {
        let Some(earliest_ns) = self.earliest_ns.get_mut(usize::from(list)) else {
            return;
        };
        if new_ns <= *earliest_ns {
            *earliest_ns = new_ns;
        } else if old_ns == *earliest_ns && usize::from(list) >= SLOTS {
            // At level 0 any time of the slot will do: they are all of one tick.
            self.search(list);
        }
    }

    fn search(&mut self, list: u16) {
        let tail = self.tail(list);
        let (mut idx, mut found) = (tail, u64::MAX);
        for _ in 0..MAX_SEARCH {
            let Some(node) = self.nodes.get(idx as usize) else {
                return;
            };
            found = found.min(node.at_ns);
            idx = node.next;
            if idx == tail {
                if let Some(earliest_ns) = self.earliest_ns.get_mut(usize::from(list)) {
                    *earliest_ns = found;
                }
                return;
            }
        }
    }

    /// Moves all timers of a list whose first tick is the cursor to lower levels.
    fn spread(&mut self, list: u16) {
        let tail = self.tail(list);
        let mut idx = self.next_of(tail);
        self.set_tail(list, NIL);
        self.mark(list, false);
        while let Some(&TimerNode { at_ns, next, .. }) = self.nodes.get(idx as usize) {
            self.len = self.len.wrapping_sub(1);
            // `at_ns` may have passed: the slot decides all the same, so that order is kept.
            self.append(self.slot_list_of(tick_of(at_ns)), idx);
            if idx == tail {
                break;
            }
            idx = next;
        }
    }
}
