//! Message sizes and arrival times: what is sent and when, fixed by a seed.

use anyhow::{Context, Result, ensure};

/// W4: a Hadoop cluster at Facebook, SIGCOMM '18.
const W4: &str = include_str!("../workloads/w4.csv");

/// Shortest message drawn, in bytes.
pub const MIN_BYTES: u32 = 50;
/// Longest message drawn, in bytes: what the published measurements cap their messages at.
pub const MAX_BYTES: u32 = 1_000_000;

/// A small, fast generator with a full period of 2^64 (SplitMix64): the load needs to be
/// repeatable, not unpredictable.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..bound; `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift; the bias is below bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// SplitMix64's output function: spreads every input bit over the word.
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[derive(Clone, Copy, Debug)]
struct Step {
    /// Fraction of messages up to and including this step.
    cumulative: f64,
    mean: u32,
    /// Lengths are drawn uniformly from mean − spread to mean + spread.
    spread: u32,
}

/// A distribution of message lengths: steps of a published curve, each spread evenly around its
/// length without touching its neighbours, so that all lengths occur and the mean is kept.
#[derive(Clone, Debug)]
pub struct Sizes {
    steps: Vec<Step>,
}

impl Sizes {
    /// W4, between [`MIN_BYTES`] and [`MAX_BYTES`].
    ///
    /// # Panics
    /// Never: the table is part of the program and tested.
    #[must_use]
    pub fn w4() -> Self {
        Self::parse(W4).expect("the built-in table is well formed")
    }

    /// Reads `length,cumulative fraction` lines; `#` starts a comment.
    pub fn parse(csv: &str) -> Result<Self> {
        let mut points = Vec::new();
        for line in csv.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (length, cumulative) = line.split_once(',').context("a line without a comma")?;
            let length: u32 = length.trim().parse().context("not a length")?;
            let cumulative: f64 = cumulative.trim().parse().context("not a fraction")?;
            if let Some(&(last_length, last_cumulative)) = points.last() {
                ensure!(length > last_length, "lengths must increase");
                ensure!(cumulative >= last_cumulative, "fractions must not decrease");
            }
            points.push((length, cumulative));
        }
        let last = points.last().context("an empty table")?;
        ensure!((last.1 - 1.0).abs() < 1e-9, "the last fraction must be 1");
        ensure!(points[0].0 >= MIN_BYTES, "lengths start at {MIN_BYTES}");

        let steps = (0..points.len())
            .map(|i| {
                let mean = points[i].0;
                let below = if i == 0 {
                    mean - MIN_BYTES
                } else {
                    (mean - points[i - 1].0) / 2
                };
                let above = match points.get(i + 1) {
                    Some(next) => (next.0 - mean) / 2,
                    None => below,
                };
                Step {
                    cumulative: points[i].1,
                    mean,
                    spread: below.min(above),
                }
            })
            .collect();
        Ok(Self { steps })
    }

    /// Draws a length.
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let at = rng.unit();
        let index = self.steps.partition_point(|step| step.cumulative <= at);
        let step = self.steps[index.min(self.steps.len() - 1)];
        let shift = rng.below(u64::from(step.spread) * 2 + 1) as u32;
        (step.mean - step.spread + shift).min(MAX_BYTES)
    }

    /// The mean of lengths capped at [`MAX_BYTES`].
    #[must_use]
    pub fn mean(&self) -> f64 {
        let mut below = 0.0;
        let mut sum = 0.0;
        for step in &self.steps {
            sum += (step.cumulative - below) * f64::from(step.mean.min(MAX_BYTES));
            below = step.cumulative;
        }
        sum
    }
}

/// One RPC to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When, in nanoseconds from the start of the run.
    pub at_ns: u64,
    /// Bytes of the request.
    pub size: u32,
}

/// Open-loop Poisson arrivals at `rate` per second over `seconds`: they do not wait for replies.
#[must_use]
pub fn arrivals(sizes: &Sizes, rate: f64, seconds: f64, seed: u64) -> Vec<Arrival> {
    let mut rng = Rng::new(seed);
    let mut list = Vec::with_capacity((rate * seconds * 1.1) as usize);
    let mut at = 0.0;
    loop {
        // 1 − unit() is in (0, 1], so that the logarithm is finite.
        at -= (1.0 - rng.unit()).ln() / rate;
        if at >= seconds {
            return list;
        }
        list.push(Arrival {
            at_ns: (at * 1e9) as u64,
            size: sizes.draw(&mut rng),
        });
    }
}

/// Message contents: each id has its own stretch of one random block, so that making a message
/// is a copy and checking one a comparison, and a mixed-up reply shows.
#[derive(Debug)]
pub struct Pattern {
    block: Vec<u8>,
    seed: u64,
}

/// A prime, so that ids that differ by a power of two start at different places.
const STARTS: u64 = 65_521;

impl Pattern {
    /// Contents for messages of up to `max_len` bytes.
    #[must_use]
    pub fn new(seed: u64, max_len: usize) -> Self {
        let mut rng = Rng::new(seed);
        let words = (max_len + STARTS as usize).div_ceil(8);
        let block = (0..words)
            .flat_map(|_| rng.next_u64().to_le_bytes())
            .collect();
        Self { block, seed }
    }

    /// The contents of message `id` with `len` bytes.
    ///
    /// # Panics
    /// When `len` is above the limit given to [`Pattern::new`].
    #[must_use]
    pub fn message(&self, id: u64, len: usize) -> &[u8] {
        let start = (mix(id ^ self.seed) % STARTS) as usize;
        &self.block[start..start + len]
    }

    /// Whether these are the contents of message `id`, byte for byte.
    #[must_use]
    pub fn matches(&self, id: u64, len: usize, bytes: &[u8]) -> bool {
        bytes == self.message(id, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w4_has_the_published_capped_mean() {
        let mean = Sizes::w4().mean();
        assert!((mean - 60_175.0).abs() < 60.0, "{mean}");
    }

    #[test]
    fn draws_keep_the_mean_and_the_range() {
        let sizes = Sizes::w4();
        let mut rng = Rng::new(7);
        let count = 2_000_000;
        let (mut sum, mut least, mut most) = (0.0, u32::MAX, 0);
        for _ in 0..count {
            let size = sizes.draw(&mut rng);
            sum += f64::from(size);
            least = least.min(size);
            most = most.max(size);
        }
        let mean = sum / f64::from(count);
        // The standard error of the mean is about 115 bytes here.
        assert!((mean / sizes.mean() - 1.0).abs() < 0.01, "{mean}");
        assert_eq!((least, most), (MIN_BYTES, MAX_BYTES));
    }

    #[test]
    fn draws_follow_the_curve() {
        let sizes = Sizes::w4();
        let mut rng = Rng::new(11);
        let draws: Vec<u32> = (0..200_000).map(|_| sizes.draw(&mut rng)).collect();
        for step in &sizes.steps {
            let bound = (step.mean + step.spread).min(MAX_BYTES);
            let share = draws.iter().filter(|&&d| d <= bound).count() as f64 / 200_000.0;
            let expected = if bound == MAX_BYTES {
                1.0
            } else {
                step.cumulative
            };
            assert!((share - expected).abs() < 0.006, "{step:?}: {share}");
        }
    }

    #[test]
    fn malformed_tables_are_refused() {
        for bad in [
            "",
            "100",
            "x,1",
            "100,x",
            "100,0.5",
            "200,0.5\n100,1",
            "100,0.9\n200,0.5\n300,1",
            "10,1",
        ] {
            assert!(Sizes::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Sizes::parse("# only\n100,0.5\n200,1\n").is_ok());
    }

    #[test]
    fn arrivals_come_at_the_rate_and_repeat_with_the_seed() {
        let sizes = Sizes::w4();
        let list = arrivals(&sizes, 10_000.0, 10.0, 3);
        // Poisson: the standard deviation of the count is the root of the mean.
        assert!(
            (list.len() as f64 - 100_000.0).abs() < 5.0 * 316.0,
            "{}",
            list.len()
        );
        assert!(list.is_sorted_by_key(|a| a.at_ns));
        assert!(list.last().unwrap().at_ns < 10_000_000_000);
        // Exponential gaps: the share above the mean gap is 1/e.
        let long = list
            .windows(2)
            .filter(|w| w[1].at_ns - w[0].at_ns > 100_000)
            .count();
        let share = long as f64 / list.len() as f64;
        assert!((share - (-1f64).exp()).abs() < 0.01, "{share}");
        assert_eq!(list, arrivals(&sizes, 10_000.0, 10.0, 3));
        assert_ne!(list, arrivals(&sizes, 10_000.0, 10.0, 4));
    }

    #[test]
    fn patterns_tell_messages_and_bytes_apart() {
        let pattern = Pattern::new(1, 1000);
        for id in 0..1000 {
            let mut bytes = pattern.message(id, 1000).to_vec();
            assert!(pattern.matches(id, 1000, &bytes));
            assert!(!pattern.matches(id + 1, 1000, &bytes));
            assert!(!pattern.matches(id, 999, &bytes));
            let at = (id % 1000) as usize;
            bytes[at] ^= 1;
            assert!(!pattern.matches(id, 1000, &bytes));
        }
    }
}
