//! Noticing that bursts do not arrive.
//!
//! Some network cards and middleboxes drop whatever is sent with GSO, and tell nobody: short
//! messages work, longer ones crawl from one retransmission to the next. So when most of what is
//! sent has been sent before, GSO is left off for a trial. If that helps it stays off; if not, the
//! loss has another cause.

/// Packets of data by which the share of retransmissions is judged.
const WINDOW: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// GSO is on. No trial for so many windows.
    On { rest: u32 },
    /// GSO is off for a trial; what was lost before is being sent again.
    Settling,
    /// GSO is off for a trial, and this window decides.
    Judging,
    /// GSO is off for good.
    Off,
}

/// What to do about GSO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    TurnOff,
    TurnOn,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bursts {
    state: State,
    /// Packets of data, and retransmissions among them, when the window began.
    data: u64,
    again: u64,
    /// Windows to rest after a trial that did not help: twice as many each time.
    rest: u32,
}

impl Bursts {
    pub(crate) fn new() -> Self {
        Self {
            state: State::On { rest: 0 },
            data: 0,
            again: 0,
            rest: 16,
        }
    }

    /// Takes in how many packets of data have been sent in all, and how many of these again.
    pub(crate) fn observe(&mut self, data: u64, again: u64) -> Option<Verdict> {
        let sent = data.wrapping_sub(self.data);
        if sent < WINDOW {
            return None;
        }
        let mostly_again = again.wrapping_sub(self.again) >= sent / 2;
        (self.data, self.again) = (data, again);
        let (state, verdict) = match self.state {
            State::On { rest: 0 } if mostly_again => (State::Settling, Some(Verdict::TurnOff)),
            State::On { rest } => (
                State::On {
                    rest: rest.saturating_sub(1),
                },
                None,
            ),
            State::Settling => (State::Judging, None),
            State::Judging if mostly_again => {
                let rest = self.rest;
                self.rest = rest.saturating_mul(2);
                (State::On { rest }, Some(Verdict::TurnOn))
            }
            State::Judging | State::Off => (State::Off, None),
        };
        self.state = state;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends windows of data, of which GSO and the path lose some, and counts those sent without
    /// GSO.
    fn windows_off(windows: u32, lost_with_gso: u64, lost_without: u64) -> (u32, bool) {
        let mut bursts = Bursts::new();
        let (mut data, mut again, mut gso, mut off) = (0, 0, true, 0);
        for _ in 0..windows {
            data += WINDOW;
            again += if gso { lost_with_gso } else { lost_without };
            off += u32::from(!gso);
            match bursts.observe(data, again) {
                Some(Verdict::TurnOff) => gso = false,
                Some(Verdict::TurnOn) => gso = true,
                None => {}
            }
        }
        (off, gso)
    }

    #[test]
    fn gso_stays_off_where_it_loses_everything() {
        assert_eq!(windows_off(1000, WINDOW, 0), (999, false));
        assert_eq!(windows_off(1000, WINDOW / 2, WINDOW / 4), (999, false));
    }

    #[test]
    fn gso_stays_on_where_little_is_lost() {
        assert_eq!(windows_off(1000, WINDOW / 2 - 1, 0), (0, true));
    }

    #[test]
    fn where_everything_is_lost_anyway_trials_become_rare() {
        let (off, _) = windows_off(10_000, WINDOW, WINDOW);
        assert!((4..40).contains(&off), "{off} windows without GSO");
    }
}
