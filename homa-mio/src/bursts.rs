//! Noticing that bursts do not arrive.
//!
//! Some network cards and middleboxes drop whatever is sent with GSO, and tell nobody: short
//! messages work, longer ones crawl from one RESEND to the next. So when much of what is sent has
//! been sent twice before, and no GRANT shows that any burst arrived, GSO is left off for a trial.
//! If that helps several times in a row it stays off for a long while; if not, the loss has
//! another cause.

/// A window ends with so many RESENDs. A few packets lost, or a peer that stalls and then asks
/// for everything once, do not make a window in which most is sent again: much else is sent
/// before the next RESEND comes.
const RESENDS: u64 = 6;
/// Without RESENDs it ends after so many packets of data.
const PACKETS: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// GSO is on. No trial for so many windows.
    On { rest: u32 },
    /// GSO is off for a trial; what was lost before is being sent again.
    Settling,
    /// GSO is off for a trial, and this window decides.
    Judging,
    /// GSO is off for so many windows.
    Off { rest: u32 },
}

/// What the core has sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sent {
    /// Packets of data.
    pub(crate) data: u64,
    /// Those among them that were sent for a third time or more: a peer that was slow to look at
    /// what it had received asks once too often, not twice.
    pub(crate) again: u64,
    /// Bursts.
    pub(crate) joined: u64,
    /// RESENDs that have come, and RPC_UNKNOWNs: to those the answer is the whole message again.
    pub(crate) resends: u64,
    /// GRANTs that have come. A receiver grants as data arrives: where GRANTs come, bursts do.
    pub(crate) grants: u64,
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
    /// When the window began.
    start: Sent,
    /// Windows to rest after a trial, with GSO on or off: twice as many each time.
    rest: u32,
    /// Trials in a row that helped, with GSO failing again between them. One alone may be a
    /// coincidence: the host had been busy.
    helped: u8,
}

/// Trials that must have helped in a row before GSO is left off.
const TRIALS: u8 = 3;

impl Bursts {
    pub(crate) fn new() -> Self {
        Self {
            state: State::On { rest: 0 },
            start: Sent::default(),
            rest: 256,
            helped: 0,
        }
    }

    pub(crate) fn observe(&mut self, sent: Sent) -> Option<Verdict> {
        let data = sent.data.wrapping_sub(self.start.data);
        let again = sent.again.wrapping_sub(self.start.again);
        let resends = sent.resends.wrapping_sub(self.start.resends);
        let joined = sent.joined.wrapping_sub(self.start.joined);
        if resends < RESENDS && data < PACKETS {
            return None;
        }
        let mostly_again =
            resends >= RESENDS && again > data / 3 && sent.grants == self.start.grants;
        self.start = sent;
        let (state, verdict) = match self.state {
            // Where single packets are lost no burst is to blame.
            State::On { rest: 0 } if mostly_again && joined >= RESENDS / 2 => {
                (State::Settling, Some(Verdict::TurnOff))
            }
            State::On { rest } => {
                self.helped = 0;
                let rest = rest.saturating_sub(1);
                (State::On { rest }, None)
            }
            State::Settling => (State::Judging, None),
            State::Judging if mostly_again => {
                self.helped = 0;
                let rest = self.lengthen_rest();
                (State::On { rest }, Some(Verdict::TurnOn))
            }
            State::Judging if self.helped + 1 < TRIALS => {
                self.helped += 1;
                (State::On { rest: 0 }, Some(Verdict::TurnOn))
            }
            State::Judging => {
                self.helped = 0;
                let rest = self.lengthen_rest();
                (State::Off { rest }, None)
            }
            State::Off { rest: 0 } => (State::On { rest: 0 }, Some(Verdict::TurnOn)),
            State::Off { rest } => (State::Off { rest: rest - 1 }, None),
        };
        self.state = state;
        verdict
    }

    fn lengthen_rest(&mut self) -> u32 {
        let rest = self.rest;
        self.rest = rest.saturating_mul(2);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages of 40 packets over a path that loses each with so many per cent, and asks
    /// for them again up to ten times. Returns how many went without GSO, and whether the last.
    fn messages_off(messages: u32, lost_with_gso: u32, lost_without: u32) -> (u32, bool) {
        let mut bursts = Bursts::new();
        let mut sent = Sent::default();
        let (mut gso, mut off) = (true, 0);
        let mut dice = 1_u32;
        for _ in 0..messages {
            off += u32::from(!gso);
            for tries in 0..10 {
                sent.data += 40;
                sent.joined += u64::from(gso);
                sent.again += if tries > 1 { 40 } else { 0 };
                match bursts.observe(sent) {
                    Some(Verdict::TurnOff) => gso = false,
                    Some(Verdict::TurnOn) => gso = true,
                    None => {}
                }
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if (dice >> 8) % 100 >= if gso { lost_with_gso } else { lost_without } {
                    break;
                }
                sent.resends += 1;
            }
        }
        (off, gso)
    }

    #[test]
    fn gso_stays_off_where_it_loses_everything() {
        let (off, gso) = messages_off(10_000, 100, 0);
        assert!(off > 9_900 && !gso, "{off}");
        let (off, gso) = messages_off(10_000, 80, 20);
        assert!(off > 9_500 && !gso, "{off}");
    }

    #[test]
    fn gso_stays_on_where_little_is_lost() {
        assert_eq!(messages_off(10_000, 10, 10), (0, true));
    }

    #[test]
    fn where_everything_is_lost_anyway_trials_become_rare() {
        let (off, _) = messages_off(100_000, 90, 90);
        assert!(off > 0 && off < 1000, "{off} messages without GSO");
    }

    #[test]
    fn single_packets_that_are_lost_make_no_trial() {
        let mut bursts = Bursts::new();
        let mut sent = Sent::default();
        for _ in 0..1000 {
            sent.data += 1;
            sent.again += 1;
            sent.resends += 1;
            assert_eq!(bursts.observe(sent), None);
        }
    }

    #[test]
    fn gso_stays_on_while_bursts_arrive_however_late() {
        let mut bursts = Bursts::new();
        let mut sent = Sent::default();
        for _ in 0..10_000 {
            sent.data += 40;
            sent.joined += 1;
            sent.again += 35;
            sent.resends += 3;
            sent.grants += 1;
            assert_eq!(bursts.observe(sent), None);
        }
    }

    #[test]
    fn a_stalled_peer_that_asks_for_everything_again_makes_no_trial() {
        let mut bursts = Bursts::new();
        let mut sent = Sent::default();
        for _ in 0..100 {
            for _ in 0..100 {
                sent.data += 40;
                assert_eq!(bursts.observe(sent), None);
            }
            sent.resends += 1;
            for _ in 0..15 {
                sent.data += 40;
                sent.joined += 1;
                sent.again += 40;
                assert_eq!(bursts.observe(sent), None);
            }
        }
    }
}
