//! What goes wrong on purpose.

use serde::{Deserialize, Serialize};

use crate::packet::{HostId, Packet};
use crate::rng::Rng;

/// Faults that packets suffer at random on their way. Probabilities are per packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PacketFaults {
    /// Lost.
    pub loss: f64,
    /// Packets of fewer bytes on the wire are not lost in this way.
    pub spare_below: u32,
    /// Lost in bursts.
    pub bursts: Option<BurstLoss>,
    /// Arrives twice, the copy up to `late_ns` later.
    pub duplicate: f64,
    /// Held up by up to `late_ns`, so that others overtake it.
    pub delay: f64,
    /// Most that a copy or a delayed packet is late, in nanoseconds.
    pub late_ns: u64,
    /// Damaged; the checksum shows it, so that it is lost at its destination.
    pub corrupt: f64,
    /// Damaged in a way that no checksum shows.
    pub garble: f64,
    /// Certain packets, lost without fail.
    pub drop_nth: Vec<NthPacket>,
    /// A box on the way that drops bursts.
    pub middlebox: Option<Middlebox>,
}

/// Losses in bursts, after Gilbert and Elliott: a good state without, a bad state with losses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BurstLoss {
    /// Chance per packet to turn bad.
    pub begin: f64,
    /// Chance per packet to turn good.
    pub end: f64,
    /// Loss while bad.
    pub loss: f64,
}

/// The `nth` packet (from 0) of a kind that a host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NthPacket {
    /// As the transport numbers them.
    pub kind: u8,
    /// Counted over all hosts.
    pub nth: u64,
}

/// Drops what one host sends beyond `packets` packets without a pause of `gap_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Middlebox {
    /// Longest burst that passes.
    pub packets: u32,
    /// A longer pause begins a new burst.
    pub gap_ns: u64,
}

impl PacketFaults {
    /// Whether anything can go wrong at all.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// # Errors
    /// One line that says which value is impossible.
    pub fn check(&self) -> Result<(), String> {
        let burst = self.bursts.unwrap_or(BurstLoss {
            begin: 0.0,
            end: 0.0,
            loss: 0.0,
        });
        for (name, p) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("delay", self.delay),
            ("corrupt", self.corrupt),
            ("garble", self.garble),
            ("bursts.begin", burst.begin),
            ("bursts.end", burst.end),
            ("bursts.loss", burst.loss),
        ] {
            if !(0.0..=1.0).contains(&p) {
                return Err(format!(
                    "faults: {name} is {p}, but a probability lies between 0 and 1"
                ));
            }
        }
        Ok(())
    }
}

/// One thing that happens to hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Packets from the first host to the second are lost from now on.
    Cut(HostId, HostId),
    /// All cuts are mended.
    Mend,
    /// The host does nothing until the given time.
    Pause(HostId, u64),
    /// The host loses its state and falls silent.
    Crash(HostId),
    /// The host comes back, empty.
    Restart(HostId),
    /// Random faults end and all cuts are mended.
    Heal,
}

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// The packet arrives this much late; `None`: never.
    pub late_ns: Option<u64>,
    /// So does a copy.
    pub copy_late_ns: Option<u64>,
    /// It is damaged, and nothing shows it.
    pub garbled: bool,
}

/// Decides the fate of packets.
pub struct Faults {
    settings: PacketFaults,
    active: bool,
    steps: Vec<(u64, Step)>,
    /// Cut directions, as `from × hosts + to`; empty when there are none.
    cuts: std::collections::HashSet<(HostId, HostId)>,
    bad: bool,
    seen_of_kind: [u64; 256],
    /// Per host: when its last packet left, and how many in a row.
    bursts: Vec<(u64, u32)>,
    rng: Rng,
    lost: u64,
}

impl Faults {
    /// The faults of one run, with the steps in order of time.
    #[must_use]
    pub fn new(
        settings: PacketFaults,
        mut steps: Vec<(u64, Step)>,
        hosts: usize,
        seed: u64,
    ) -> Self {
        steps.sort_by_key(|step| step.0);
        Self {
            active: !settings.is_none() || !steps.is_empty(),
            settings,
            steps,
            cuts: std::collections::HashSet::new(),
            bad: false,
            seen_of_kind: [0; 256],
            bursts: vec![(0, 0); hosts],
            rng: Rng::new(seed, 0x6661_756c_7473),
            lost: 0,
        }
    }

    /// Whether packets need to be asked about.
    #[inline]
    #[must_use]
    pub fn active(&self) -> bool {
        self.active
    }

    /// The times of all steps.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        self.steps.iter().map(|step| step.0)
    }

    /// A step by its number, and what it changes here done.
    pub fn step(&mut self, number: u32) -> Step {
        let step = self.steps[number as usize].1.clone();
        match step {
            Step::Cut(from, to) => {
                self.cuts.insert((from, to));
            }
            Step::Mend => self.cuts.clear(),
            Step::Heal => {
                self.cuts.clear();
                self.settings = PacketFaults::default();
                self.bad = false;
            }
            Step::Pause(..) | Step::Crash(_) | Step::Restart(_) => {}
        }
        step
    }

    /// Packets lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Decides about a packet that leaves its host at `now`.
    pub fn fate(&mut self, now: u64, packet: &Packet) -> Fate {
        let nth = self.seen_of_kind[usize::from(packet.kind)];
        self.seen_of_kind[usize::from(packet.kind)] += 1;
        if self.is_lost(now, packet, nth) {
            self.lost += 1;
            return Fate::default();
        }
        let (settings, rng) = (&self.settings, &mut self.rng);
        let late =
            |rng: &mut Rng, p: f64| rng.chance(p).then(|| rng.below(settings.late_ns.max(1)));
        Fate {
            late_ns: Some(late(rng, settings.delay).unwrap_or(0)),
            copy_late_ns: late(rng, settings.duplicate),
            garbled: rng.chance(settings.garble),
        }
    }

    fn is_lost(&mut self, now: u64, packet: &Packet, nth: u64) -> bool {
        let settings = &self.settings;
        if self.cuts.contains(&(packet.from, packet.to)) {
            return true;
        }
        if settings
            .drop_nth
            .iter()
            .any(|drop| drop.kind == packet.kind && drop.nth == nth)
        {
            return true;
        }
        if let Some(middlebox) = settings.middlebox {
            let (last, count) = &mut self.bursts[usize::from(packet.from)];
            *count = if now.saturating_sub(*last) > middlebox.gap_ns {
                1
            } else {
                *count + 1
            };
            *last = now;
            if *count > middlebox.packets {
                return true;
            }
        }
        if let Some(bursts) = settings.bursts {
            let turn = if self.bad { bursts.end } else { bursts.begin };
            self.bad ^= self.rng.chance(turn);
            if self.bad && self.rng.chance(bursts.loss) {
                return true;
            }
        }
        let is_spared = packet.wire_bytes < settings.spare_below;
        !is_spared && self.rng.chance(settings.loss) || self.rng.chance(settings.corrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(settings: PacketFaults) -> Faults {
        Faults::new(settings, Vec::new(), 4, 3)
    }

    #[test]
    fn rates_are_kept() {
        let mut faults = faults(PacketFaults {
            loss: 0.1,
            duplicate: 0.2,
            delay: 0.3,
            late_ns: 100,
            ..PacketFaults::default()
        });
        let n = 50_000;
        let fates: Vec<Fate> = (0..n)
            .map(|now| faults.fate(now, &Packet::default()))
            .collect();
        let share =
            |f: fn(&Fate) -> bool| fates.iter().filter(|fate| f(fate)).count() as f64 / n as f64;
        assert!((share(|fate| fate.late_ns.is_none()) - 0.1).abs() < 0.01);
        assert!((share(|fate| fate.copy_late_ns.is_some()) - 0.18).abs() < 0.01);
        assert!((share(|fate| fate.late_ns.is_some_and(|late| late > 0)) - 0.27).abs() < 0.01);
        assert!(fates.iter().all(|fate| fate.late_ns < Some(100)));
    }

    #[test]
    fn the_nth_packet_of_a_kind_is_lost() {
        let mut faults = faults(PacketFaults {
            drop_nth: vec![NthPacket { kind: 2, nth: 3 }],
            ..PacketFaults::default()
        });
        let lost: Vec<u64> = (0..20)
            .filter(|&now| {
                let kind = if now % 2 == 0 { 2 } else { 1 };
                let packet = Packet {
                    kind,
                    ..Packet::default()
                };
                faults.fate(now, &packet).late_ns.is_none()
            })
            .collect();
        assert_eq!(lost, [6]);
    }

    #[test]
    fn middlebox_lets_short_bursts_pass() {
        let mut faults = faults(PacketFaults {
            middlebox: Some(Middlebox {
                packets: 3,
                gap_ns: 100,
            }),
            ..PacketFaults::default()
        });
        let passed: Vec<u64> = [1000, 1010, 1020, 1030, 1040, 2000, 2010]
            .into_iter()
            .filter(|&now| faults.fate(now, &Packet::default()).late_ns.is_some())
            .collect();
        assert_eq!(passed, [1000, 1010, 1020, 2000, 2010]);
    }

    #[test]
    fn cuts_have_a_direction_and_can_be_mended() {
        let steps = vec![(5, Step::Mend), (1, Step::Cut(1, 2))];
        let mut faults = Faults::new(PacketFaults::default(), steps, 4, 1);
        assert!(faults.times().eq([1, 5]));
        let to = |from, to| Packet {
            from,
            to,
            ..Packet::default()
        };
        faults.step(0);
        assert_eq!(faults.fate(1, &to(1, 2)).late_ns, None);
        assert_eq!(faults.fate(1, &to(2, 1)).late_ns, Some(0));
        faults.step(1);
        assert_eq!(faults.fate(1, &to(1, 2)).late_ns, Some(0));
    }

    #[test]
    fn impossible_values_are_refused() {
        let text: PacketFaults = toml::from_str("loss = 1.5").unwrap();
        assert!(text.check().unwrap_err().contains("loss"));
        assert!(toml::from_str::<PacketFaults>("lose = 0.5").is_err());
    }
}
