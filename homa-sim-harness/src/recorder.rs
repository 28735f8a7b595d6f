//! What is noted of every message that counts, and the figures made of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::packet::Waited;

#[derive(Clone, Copy, Debug)]
struct Sample {
    slowdown: f32,
    micros: f32,
    card: f32,
    ports: f32,
}

/// Times of messages, by length.
#[derive(Default)]
pub struct Recorder {
    by_length: BTreeMap<u32, Vec<Sample>>,
    count: u64,
}

/// Percentiles of messages of a range of lengths. Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Longest message in it.
    pub max_bytes: u32,
    /// Messages.
    pub count: u64,
    /// Slowdown: time over best possible time on the idle network.
    pub mean_slowdown: f64,
    /// Median.
    pub p50_slowdown: f64,
    /// 99th percentile.
    pub p99_slowdown: f64,
    /// 99.9th percentile.
    pub p999_slowdown: f64,
    /// Median time.
    pub p50_us: f64,
    /// 99th percentile of the time.
    pub p99_us: f64,
    /// 99.9th percentile of the time.
    pub p999_us: f64,
    /// Where the time of those around the 99th percentile went.
    pub p99_parts: Parts,
}

/// Where the time of messages went: means in microseconds, which add up to their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// Best possible time on the idle network, software included.
    pub ideal_us: f64,
    /// Before the last packet, and that of the answer, were handed to the card, beyond the best possible time: held back by pacing, by
    /// other messages, for grants, after losses.
    pub sender_us: f64,
    /// Those packets waited for the card.
    pub card_us: f64,
    /// Those packets waited in switches.
    pub ports_us: f64,
}

impl Parts {
    fn mean(samples: &[Sample]) -> Self {
        let mean = |part: fn(&Sample) -> f32| {
            let sum: f64 = samples.iter().map(|sample| f64::from(part(sample))).sum();
            sum / samples.len().max(1) as f64
        };
        let time_us = mean(|sample| sample.micros);
        let ideal_us = mean(|sample| sample.micros / sample.slowdown);
        let (card_us, ports_us) = (mean(|sample| sample.card), mean(|sample| sample.ports));
        Self {
            ideal_us,
            sender_us: time_us - ideal_us - card_us - ports_us,
            card_us,
            ports_us,
        }
    }
}

/// Upper ends of the classes that reports show: one packet at last in the second.
const CLASS_ENDS: [u32; 9] = [
    100,
    1_400,
    10_000,
    100_000,
    999_999,
    1_000_000,
    3_000_000,
    10_000_000,
    u32::MAX,
];

impl Recorder {
    /// Notes a message that took `nanos` where `ideal_ns` are possible.
    pub fn add(&mut self, bytes: u32, nanos: u64, ideal_ns: f64, waited: Waited) {
        self.count += 1;
        self.by_length.entry(bytes).or_default().push(Sample {
            slowdown: (nanos as f64 / ideal_ns) as f32,
            micros: (nanos as f64 / 1000.0) as f32,
            card: waited.card_ns as f32 / 1000.0,
            ports: waited.ports_ns as f32 / 1000.0,
        });
    }

    /// Takes in what another has noted.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        for (bytes, samples) in &other.by_length {
            self.by_length.entry(*bytes).or_default().extend(samples);
        }
    }

    /// Messages noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes in all messages noted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.by_length
            .iter()
            .map(|(bytes, samples)| u64::from(*bytes) * samples.len() as u64)
            .sum()
    }

    fn class(&self, first: u32, last: u32) -> Option<Class> {
        let mut samples: Vec<Sample> = self
            .by_length
            .range(first..=last)
            .flat_map(|(_, samples)| samples.iter().copied())
            .collect();
        let max_bytes = *self.by_length.range(first..=last).next_back()?.0;
        let mean = samples.iter().map(|s| f64::from(s.slowdown)).sum::<f64>();
        let mut slowdowns: Vec<f32> = samples.iter().map(|s| s.slowdown).collect();
        let mut micros: Vec<f32> = samples.iter().map(|s| s.micros).collect();
        slowdowns.sort_unstable_by(f32::total_cmp);
        micros.sort_unstable_by(f32::total_cmp);
        samples.sort_unstable_by(|a, b| a.micros.total_cmp(&b.micros));
        let rank = |per_mille: usize| (samples.len() * per_mille).div_ceil(1000);
        let around = rank(985).saturating_sub(1)..rank(995);
        Some(Class {
            max_bytes,
            p99_parts: Parts::mean(&samples[around]),
            count: samples.len() as u64,
            mean_slowdown: mean / samples.len() as f64,
            p50_slowdown: quantile(&slowdowns, 0.5),
            p99_slowdown: quantile(&slowdowns, 0.99),
            p999_slowdown: quantile(&slowdowns, 0.999),
            p50_us: quantile(&micros, 0.5),
            p99_us: quantile(&micros, 0.99),
            p999_us: quantile(&micros, 0.999),
        })
    }

    /// Messages by class of length; empty classes are left out. Each class is named by its limit.
    #[must_use]
    pub fn classes(&self) -> Vec<Class> {
        let mut first = 0;
        let mut classes = Vec::new();
        for end in CLASS_ENDS {
            if let Some(mut class) = self.class(first, end) {
                if end != u32::MAX {
                    class.max_bytes = end;
                }
                classes.push(class);
            }
            first = end.saturating_add(1);
        }
        classes
    }

    /// Messages by exact length. Where there are more than 200 lengths, as in [`bands`](Self::bands).
    #[must_use]
    pub fn by_length(&self) -> Vec<Class> {
        if self.by_length.len() > 200 {
            return self.bands();
        }
        self.by_length
            .keys()
            .filter_map(|&bytes| self.class(bytes, bytes))
            .collect()
    }

    /// Neighbouring lengths taken together until a percentile means something: 2000 messages, or a fortieth of
    /// all, or 100 whose lengths differ by half.
    #[must_use]
    pub fn bands(&self) -> Vec<Class> {
        let mut bands = Vec::new();
        let (mut first, mut held) = (None, 0);
        for (&bytes, samples) in &self.by_length {
            let from = *first.get_or_insert(bytes);
            held += samples.len() as u64;
            let wide = u64::from(bytes) * 2 >= u64::from(from) * 3;
            if held >= 2000 || held * 40 >= self.count || (held >= 100 && wide) {
                bands.extend(self.class(from, bytes));
                (first, held) = (None, 0);
            }
        }
        if let Some(from) = first {
            bands.extend(self.class(from, u32::MAX));
        }
        bands
    }

    /// Messages of one packet: up to 1,400 bytes.
    #[must_use]
    pub fn one_packet(&self) -> Class {
        self.class(0, 1400).unwrap_or_default()
    }

    /// All messages in one class.
    #[must_use]
    pub fn all(&self) -> Class {
        self.class(0, u32::MAX).unwrap_or_default()
    }

    /// The shortest tenth of the messages: whole lengths until they make up a tenth.
    #[must_use]
    pub fn smallest_tenth(&self) -> Class {
        let mut held = 0;
        for (&bytes, samples) in &self.by_length {
            held += samples.len() as u64;
            if held * 10 >= self.count {
                return self.class(0, bytes).unwrap_or_default();
            }
        }
        Class::default()
    }
}

/// The P99 slowdown of each length, weighted by the number of its messages.
#[must_use]
pub fn count_weighted_p99(by_length: &[Class]) -> f64 {
    let count: u64 = by_length.iter().map(|class| class.count).sum();
    let sum: f64 = by_length
        .iter()
        .map(|class| class.p99_slowdown * class.count as f64)
        .sum();
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// The smallest value that at least `fraction` of the values do not exceed.
fn quantile(sorted: &[f32], fraction: f64) -> f64 {
    let rank = (sorted.len() as f64 * fraction).ceil() as usize;
    sorted
        .get(rank.max(1) - 1)
        .map_or(0.0, |value| f64::from(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank() {
        let values: Vec<f32> = (1..=200u8).map(f32::from).collect();
        assert_eq!(quantile(&values, 0.5), 100.0);
        assert_eq!(quantile(&values, 0.99), 198.0);
        assert_eq!(quantile(&values, 1.0), 200.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn classes_cover_everything_once() {
        let mut recorder = Recorder::default();
        for bytes in [1, 100, 101, 1400, 1401, 1_000_000, 20_000_000] {
            recorder.add(bytes, 3000, 1500.0, Waited::default());
        }
        let classes = recorder.classes();
        assert_eq!(classes.iter().map(|class| class.count).sum::<u64>(), 7);
        assert_eq!(classes[0].count, 2);
        assert_eq!(classes.last().unwrap().max_bytes, 20_000_000);
        assert!(classes.iter().all(|class| class.p99_slowdown == 2.0));
        assert_eq!(
            recorder.bands().iter().map(|band| band.count).sum::<u64>(),
            7
        );
        assert_eq!(recorder.smallest_tenth().max_bytes, 1);
        assert_eq!(count_weighted_p99(&recorder.by_length()), 2.0);
    }
}
