//! A hierarchical timing wheel over table indices (Varghese and Lauck, SOSP '87).

use crate::storage::{NIL, Slice};

/// A tick is 1024 ns.
const TICK_BITS: u32 = 10;
/// A level has 64 slots, each as long as a whole round of the level below.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const SLOT_MASK: u32 = (1 << LEVEL_BITS) - 1;
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
pub(crate) struct TimerNode {
    at_ns: u64,
    next: u32,
    previous: u32,
    // The list it is in: level × 64 + slot, `DUE` or `IDLE`.
    list: u16,
    // Disarmed, and left where it is: to take it out would touch its neighbours.
    is_stale: bool,
}

impl TimerNode {
    pub(crate) const IDLE: Self = Self {
        at_ns: 0,
        next: NIL,
        previous: NIL,
        list: IDLE,
        is_stale: false,
    };
}

impl Default for TimerNode {
    fn default() -> Self {
        Self::IDLE
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
    /// Bit *s* of level *l*: the earliest timer of the slot has left, `earliest_ns` may be too
    /// early. Put right when somebody asks.
    stale: [u64; LEVELS],
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
            stale: [0; LEVELS],
            len: 0,
        }
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
        node.is_stale = false;
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

    /// Arms the timer of `idx` so that it expires at `at_ns` or before. One that has been disarmed
    /// and would have expired before is taken as it is.
    #[inline]
    pub(crate) fn set_by(&mut self, idx: u32, at_ns: u64) {
        match self.nodes.get_mut(idx as usize) {
            Some(node) if node.list != IDLE && node.at_ns <= at_ns => node.is_stale = false,
            _ => self.set(idx, at_ns),
        }
    }

    /// Disarms the timer of `idx` if it is armed.
    #[inline]
    pub(crate) fn cancel(&mut self, idx: u32) {
        self.update(idx, |node| node.is_stale = true);
    }

    /// When the timer of `idx` is to expire, to the nanosecond; `None` when it is not armed.
    #[inline]
    pub(crate) fn armed(&self, idx: u32) -> Option<u64> {
        let node = self.nodes.get(idx as usize)?;
        (node.list != IDLE && !node.is_stale).then_some(node.at_ns)
    }

    /// When to call `expire` next; `None` when no timer is armed.
    ///
    /// This is when the earliest timer fires, one that has been disarmed included. It may be too
    /// early, never too late, when that timer has been moved and shared a slot above the lowest level with many
    /// others; calling `expire` then spreads the slot, and the next answer is later.
    /// After `expire(now)` returned `None` it is later than `now`.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.tail(DUE) != NIL {
            return Some(self.now_ns);
        }
        let (level, list, _) = self.lowest()?;
        let bit = 1u64 << (usize::from(list) % SLOTS);
        let is_stale =
            |stale: &[u64; LEVELS]| stale.get(level as usize).is_some_and(|s| s & bit != 0);
        if is_stale(&self.stale) {
            self.search(list);
            if let Some(stale) = self.stale.get_mut(level as usize) {
                *stale &= !bit;
            }
        }
        self.earliest_ns
            .get(usize::from(list))
            .map(|&at_ns| end_of(tick_of(at_ns)))
    }

    /// Takes out one timer that has expired at `now_ns`; call until `None` comes. `false` comes with
    /// one that has been disarmed.
    ///
    /// Those that were set too late come first, in the order of setting; then the others in the
    /// order of their ticks, within a tick in no promised order.
    /// A time earlier than one told before counts as that one.
    #[inline]
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<(u32, bool)> {
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
        self.list_of_tick(tick_of(at_ns))
    }

    /// The list for a tick that is not before the cursor. Its level is that of the highest digit
    /// in which the two differ.
    #[inline]
    fn list_of_tick(&self, tick: u64) -> u16 {
        let level = (tick ^ self.cursor).checked_ilog2().unwrap_or(0) / LEVEL_BITS;
        let slot = (tick >> level.wrapping_mul(LEVEL_BITS)) as u32 & SLOT_MASK;
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
    fn take_first(&mut self, list: u16) -> Option<(u32, bool)> {
        let first = self.next_of(self.tail(list));
        let is_armed = !self.nodes.get(first as usize)?.is_stale;
        self.unlink(first);
        Some((first, is_armed))
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
            ..
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
            if let Some(stale) = self.stale.get_mut(level) {
                *stale &= !bit;
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
            let level = usize::from(list) >> LEVEL_BITS;
            if let Some(stale) = self.stale.get_mut(level) {
                *stale |= 1u64 << (usize::from(list) % SLOTS);
            }
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
            self.append(self.list_of_tick(tick_of(at_ns)), idx);
            if idx == tail {
                break;
            }
            idx = next;
        }
    }

    /// Lists with timers.
    #[cfg(any(test, feature = "check"))]
    fn occupied(&self) -> impl Iterator<Item = u16> {
        let levels = self.slots.iter().zip(0u16..);
        let slots = levels.flat_map(|(&slots, level)| {
            let mut left = slots;
            core::iter::from_fn(move || {
                let slot = left.checked_ilog2()?;
                left &= !(1 << slot);
                Some(level << LEVEL_BITS | slot as u16)
            })
        });
        slots.chain((self.tail(DUE) != NIL).then_some(DUE))
    }

    /// Links, slots, occupancy, earliest times and the count.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let tails = self.tails.as_chunks::<SLOTS>().0;
        let earliest = self.earliest_ns.as_chunks::<SLOTS>().0;
        for (level, (tails, earliest)) in tails.iter().zip(earliest).enumerate() {
            let slots = self.slots.get(level).copied().unwrap_or(0);
            if (slots != 0) != (self.levels & 1 << level != 0) {
                return Err("timer: wrong occupancy of a level");
            }
            // Most levels are empty: to compare them as a whole makes fuzzing several times faster.
            if slots == 0 && *tails == [NIL; SLOTS] && *earliest == [u64::MAX; SLOTS] {
                continue;
            }
            for (slot, (&tail, &at_ns)) in tails.iter().zip(earliest).enumerate() {
                let is_occupied = slots & 1 << slot != 0;
                if is_occupied != (tail != NIL) || (!is_occupied && at_ns != u64::MAX) {
                    return Err("timer: wrong occupancy of a slot");
                }
            }
        }
        let mut count = 0usize;
        for list in self.occupied() {
            let tail = self.tail(list);
            let (mut at, mut earliest_ns) = (tail, u64::MAX);
            while let Some(node) = self.nodes.get(at as usize) {
                count = count.wrapping_add(1);
                let next = self.nodes.get(node.next as usize);
                if node.list != list || next.is_none_or(|n| n.previous != at) || count > self.len {
                    return Err("timer: broken links");
                }
                let tick = tick_of(node.at_ns);
                if list != DUE && (tick < self.cursor || self.list_of_tick(tick) != list) {
                    return Err("timer: in the wrong slot");
                }
                earliest_ns = earliest_ns.min(node.at_ns);
                at = node.next;
                if at == tail {
                    break;
                }
            }
            let cached = self.earliest_ns.get(usize::from(list));
            if cached.is_some_and(|&cached| cached > earliest_ns) {
                return Err("timer: wrong earliest time");
            }
        }
        if count != self.len || self.cursor > ended_ticks(self.now_ns) {
            return Err("timer: wrong count or cursor");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::SplitMix;
    use crate::storage::test_table;
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    const TIMERS: u32 = 40;

    /// Random times of every magnitude, near 0, near the clock, and near the end of time.
    fn any_time(random: &mut SplitMix, now: u64) -> u64 {
        let size = random.next_u64() >> (random.next_u64() % 64);
        match random.next_u64() % 8 {
            0 => now.saturating_sub(size),
            1 => now,
            2 => u64::MAX - size,
            3 => {
                (now.saturating_add(size) >> TICK_BITS << TICK_BITS).saturating_add(size % 3)
                    - u64::from(size % 3 > 1)
            }
            4 => size,
            _ => now.saturating_add(size),
        }
    }

    /// The next armed timer that has expired.
    fn expire(wheel: &mut Wheel<'_>, now: u64) -> Option<u32> {
        loop {
            let (idx, is_armed) = wheel.expire(now)?;
            if is_armed {
                return Some(idx);
            }
        }
    }

    /// Random arming, cancelling and steps of the clock against a map of the armed timers.
    fn run(seed: u128, start: u64, max_step_bits: u64) {
        let mut wheel = Wheel::new(test_table(TIMERS as usize));
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut random = SplitMix::new(seed);
        let mut now = start;
        assert_eq!(expire(&mut wheel, now), None);
        let mut late = [false; TIMERS as usize];
        let mut fired = 0u32;
        for _ in 0..3000 {
            let idx = (random.next_u64() % u64::from(TIMERS)) as u32;
            match random.next_u64() % 8 {
                0..=2 => {
                    let at = any_time(&mut random, now);
                    wheel.set(idx, at);
                    late[idx as usize] = at <= now;
                    model.insert(idx, at);
                }
                3 => {
                    let at = any_time(&mut random, now);
                    let node = wheel.nodes[idx as usize];
                    let is_kept = node.list != IDLE && node.at_ns <= at;
                    wheel.set_by(idx, at);
                    if is_kept {
                        model.insert(idx, node.at_ns);
                    } else {
                        late[idx as usize] = at <= now;
                        model.insert(idx, at);
                    }
                }
                4 => {
                    wheel.cancel(idx);
                    model.remove(&idx);
                }
                5 => {
                    // A step back, or none.
                    let told = now - random.next_u64() % (now / 2 + 1);
                    if let Some(idx) = expire(&mut wheel, told) {
                        assert!(model.remove(&idx).unwrap() <= now);
                        fired += 1;
                    }
                }
                kind => {
                    now = match (kind, wheel.next()) {
                        (6, Some(next)) => now.max(next),
                        _ => now.saturating_add(
                            random.next_u64() % (1 << (random.next_u64() % max_step_bits)),
                        ),
                    };
                    let mut last_tick = 0;
                    while let Some(idx) = expire(&mut wheel, now) {
                        wheel.check().unwrap();
                        let at = model.remove(&idx).expect("it was armed");
                        assert!(at <= now, "early");
                        // In the order of ticks, after those that were set too late.
                        let tick = if late[idx as usize] { 0 } else { tick_of(at) };
                        assert!(tick >= last_tick, "out of order");
                        last_tick = tick;
                        fired += 1;
                        // Setting again in the loop is allowed.
                        if random.next_u64().is_multiple_of(4) && now < u64::MAX {
                            let at = now.saturating_add(1 + random.next_u64() % 5000);
                            wheel.set(idx, at);
                            late[idx as usize] = false;
                            model.insert(idx, at);
                        }
                    }
                    for (&idx, &at) in &model {
                        assert!(
                            at > now || end_of(tick_of(at)) > now || now == u64::MAX,
                            "missed {idx}"
                        );
                    }
                    // Fewer timers than a search looks at would be exact; never too late. Disarmed
                    // ones may come first.
                    if now < u64::MAX {
                        let earliest = model.values().min().map(|&at| end_of(tick_of(at)));
                        match (wheel.next(), earliest) {
                            (Some(next), Some(earliest)) => assert!(next > now && next <= earliest),
                            (next, earliest) => assert!(next > Some(now) || next == earliest),
                        }
                    }
                }
            }
            wheel.check().unwrap();
            for idx in 0..TIMERS {
                assert_eq!(wheel.armed(idx), model.get(&idx).copied());
            }
        }
        assert!(fired > 50, "{fired}");
        // At the end of time all fire, in one call each.
        let left = model.len();
        for _ in 0..left {
            assert!(
                model
                    .remove(&expire(&mut wheel, u64::MAX).unwrap())
                    .is_some()
            );
        }
        assert!(model.is_empty());
        assert_eq!((expire(&mut wheel, u64::MAX), wheel.next()), (None, None));
        wheel.set(3, u64::MAX);
        assert_eq!(wheel.next(), Some(u64::MAX));
        assert_eq!(expire(&mut wheel, 0), Some(3));
    }

    #[test]
    fn matches_map() {
        for seed in 0..20 {
            run(seed, 0, 12);
            run(seed, 0, 30);
            run(seed, 5_000_000_000, 45);
            run(seed, u64::MAX / 3, 58);
            run(seed, u64::MAX - (1 << 20), 10);
        }
    }

    /// With few timers, `next` is exact: each wake-up fires something, within the tick.
    #[test]
    fn never_wakes_early() {
        for seed in 0..200 {
            let mut random = SplitMix::new(seed);
            let count = 1 + (random.next_u64() % MAX_SEARCH as u64) as u32;
            let mut wheel = Wheel::new(test_table(count as usize));
            let mut model = BTreeMap::new();
            let mut now = 0;
            for _ in 0..200 {
                let idx = (random.next_u64() % u64::from(count)) as u32;
                let at = now + (random.next_u64() >> (20 + random.next_u64() % 40));
                wheel.set(idx, at);
                model.insert(idx, at);
                if random.next_u64().is_multiple_of(3) {
                    let next = wheel.next().unwrap();
                    assert!(next >= *model.values().min().unwrap().min(&now));
                    assert!(
                        next < *model.values().min().unwrap() + (1 << TICK_BITS) || next <= now
                    );
                    now = now.max(next);
                    let mut fired = 0;
                    while let Some(idx) = expire(&mut wheel, now) {
                        assert!(model.remove(&idx).unwrap() <= now);
                        fired += 1;
                    }
                    assert!(fired > 0);
                    if model.is_empty() {
                        wheel.set(idx, at);
                        model.insert(idx, at);
                    }
                }
            }
        }
    }

    /// Waking at `next` alone fires every timer within its tick, with a bounded number of idle
    /// wake-ups, however many share a slot and are put off.
    #[test]
    fn following_next_is_enough() {
        let mut random = SplitMix::new(1);
        let count = 2000u32;
        let mut wheel = Wheel::new(test_table(count as usize));
        let mut at: Vec<u64> = vec![0; count as usize];
        for round in 0..3 {
            for idx in 0..count {
                at[idx as usize] = (1 + random.next_u64() % 10_000_000_000) << round;
                wheel.set(idx, at[idx as usize]);
                if idx % 2 == 1 {
                    at[idx as usize] += 3_000_000;
                    wheel.set(idx, at[idx as usize]);
                }
            }
        }
        let (mut fired, mut idle) = (0, 0);
        let mut now = 0;
        while let Some(next) = wheel.next() {
            assert!(next > now);
            now = next;
            let before = fired;
            while let Some(idx) = expire(&mut wheel, now) {
                assert_eq!(end_of(tick_of(at[idx as usize])), now);
                fired += 1;
            }
            idle += u32::from(fired == before);
        }
        assert_eq!(fired, count);
        assert!(idle < count / 10, "{idle} idle wake-ups");
    }

    #[test]
    fn end_of_time() {
        let mut wheel = Wheel::new(test_table(3));
        wheel.set(0, u64::MAX);
        wheel.set(1, u64::MAX - 1023);
        wheel.set(2, u64::MAX - 1024);
        assert_eq!(expire(&mut wheel, u64::MAX - 1025), None);
        let last_whole_tick = u64::MAX - 1023;
        assert_eq!(wheel.next(), Some(last_whole_tick));
        assert_eq!(expire(&mut wheel, u64::MAX - 1024), None);
        let both: std::collections::BTreeSet<_> =
            std::iter::from_fn(|| expire(&mut wheel, u64::MAX - 1)).collect();
        assert_eq!(both, [1, 2].into());
        assert_eq!(wheel.next(), Some(u64::MAX));
        assert_eq!(expire(&mut wheel, u64::MAX), Some(0));
    }
}
