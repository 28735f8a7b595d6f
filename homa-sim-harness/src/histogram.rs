//! Histograms with buckets about 6 % wide, from 0 to 2^64.

const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;

/// Weights by value. Memory grows with the logarithm of the largest value only.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    weights: Vec<u64>,
    total: u64,
}

#[inline]
fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    (u64::from(shift + 1) * SUB + (value >> shift) - SUB) as usize
}

/// The largest value that falls into a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    (((bucket % SUB + SUB) << shift) - 1) + (1 << shift)
}

impl Histogram {
    /// Counts `value` with the given weight.
    #[inline]
    pub fn add(&mut self, value: u64, weight: u64) {
        let at = bucket(value);
        if at >= self.weights.len() {
            self.weights.resize(at + 1, 0);
        }
        self.weights[at] += weight;
        self.total += weight;
    }

    /// Sum of the weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The smallest bucket limit that at least `fraction` of the weight does not exceed; 0 when empty.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> u64 {
        let wanted = (self.total as f64 * fraction).ceil() as u64;
        let mut sum = 0;
        for (at, weight) in self.weights.iter().enumerate() {
            sum += weight;
            if sum >= wanted && sum > 0 {
                return upper(at);
            }
        }
        0
    }

    /// Takes in another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.weights.len() < other.weights.len() {
            self.weights.resize(other.weights.len(), 0);
        }
        for (mine, theirs) in self.weights.iter_mut().zip(&other.weights) {
            *mine += theirs;
        }
        self.total += other.total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut previous = 0;
        for value in (0..5000)
            .chain((0..64).map(|bit| 1u64 << bit))
            .chain([u64::MAX])
        {
            let at = bucket(value);
            assert!(at >= previous || value < 5000);
            previous = at;
            assert!(upper(at) >= value);
            assert!(upper(at) - value <= value / 16);
            assert!(at == 0 || upper(at - 1) < value);
        }
    }

    #[test]
    fn quantiles() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), 0);
        (0..=9).for_each(|value| histogram.add(value, 10));
        assert_eq!(histogram.quantile(0.5), 4);
        assert_eq!(histogram.quantile(0.51), 5);
        assert_eq!(histogram.quantile(1.0), 9);
    }
}
