//! Percentiles, size classes, tables and JSON files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// Upper bounds of the size classes of a mixed load, in bytes. 1,400 is about one packet.
pub const CLASS_BOUNDS: [u32; 8] = [300, 600, 1_400, 10_000, 50_000, 100_000, 300_000, 1_000_000];

/// The nearest-rank percentile of a sorted slice: the least value that at least the `fraction`
/// of values do not exceed. `None` when there are no values.
#[must_use]
pub fn percentile<T: Copy>(sorted: &[T], fraction: f64) -> Option<T> {
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied()
}

/// The middle value (the mean of the two middle ones), NaN when there are none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Every latency by message size, exactly: a run of a minute fits in memory.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// (bytes, nanoseconds)
    samples: Vec<(u32, u64)>,
}

/// Figures of one size class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClassLatency {
    /// RPCs in the class.
    pub count: usize,
    /// Median, in microseconds; `None` without samples.
    pub p50_us: Option<f64>,
    /// 99th percentile, in microseconds; `None` without samples.
    pub p99_us: Option<f64>,
}

impl Latencies {
    /// With room for so many RPCs.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        Self {
            samples: Vec::with_capacity(count),
        }
    }

    /// Records an RPC of `size` bytes that took `nanos`.
    pub fn record(&mut self, size: u32, nanos: u64) {
        self.samples.push((size, nanos));
    }

    /// Adds the samples of another run.
    pub fn extend(&mut self, other: &Self) {
        self.samples.extend_from_slice(&other.samples);
    }

    /// RPCs recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Figures of the sizes above `over` up to `up_to`.
    #[must_use]
    pub fn class(&self, over: u32, up_to: u32) -> ClassLatency {
        let mut nanos: Vec<u64> = self
            .samples
            .iter()
            .filter(|(size, _)| *size > over && *size <= up_to)
            .map(|(_, nanos)| *nanos)
            .collect();
        nanos.sort_unstable();
        let us = |fraction| percentile(&nanos, fraction).map(|nanos| nanos as f64 / 1e3);
        ClassLatency {
            count: nanos.len(),
            p50_us: us(0.5),
            p99_us: us(0.99),
        }
    }
}

/// A table with right-aligned columns, ready to print. Each row has as many cells as `header`.
#[must_use]
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| {
            let pad = width - cell.chars().count();
            format!("{}{cell}", " ".repeat(pad))
        });
        padded.collect::<Vec<_>>().join("  ") + "\n"
    };
    let mut out = line(header.to_vec());
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    out += &line(rule.iter().map(String::as_str).collect());
    for row in rows {
        out += &line(row.iter().map(String::as_str).collect());
    }
    out
}

/// A whole number with commas between groups of three digits.
#[must_use]
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Microseconds with three or so significant digits, and their unit.
#[must_use]
pub fn micros(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 100.0 => format!("{us:.1} µs"),
        Some(us) if us < 10_000.0 => format!("{us:.0} µs"),
        Some(us) => format!("{:.1} ms", us / 1e3),
    }
}

/// A quotient for a table; "-" when a side is missing.
#[must_use]
pub fn ratio(over: Option<f64>, under: Option<f64>) -> String {
    match (over, under) {
        (Some(over), Some(under)) if under > 0.0 => format!("{:.2}×", over / under),
        _ => "-".into(),
    }
}

/// A JSON file that is opened before a long run, so that a wrong path fails at once.
#[derive(Debug)]
pub struct JsonFile {
    file: File,
    path: PathBuf,
}

impl JsonFile {
    /// Opens the file for writing; what is in it stays until [`JsonFile::write`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    /// Replaces the contents by `value`.
    pub fn write(self, value: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        self.write_text(&text)
    }

    /// Replaces the contents by text that need not be JSON.
    pub fn write_text(mut self, text: &str) -> Result<()> {
        self.replace(text)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn replace(&mut self, text: &str) -> Result<()> {
        // Not every writable path can be cut to length (/dev/stdout, for one).
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By definition, from scratch: the least value with enough values at or below it.
    fn slow_percentile(values: &[u64], fraction: f64) -> Option<u64> {
        let enough = |v: &&u64| {
            let at_most = values.iter().filter(|w| w <= v).count();
            at_most as f64 >= fraction * values.len() as f64
        };
        values.iter().filter(enough).min().copied()
    }

    #[test]
    fn percentile_is_the_nearest_rank() {
        let mut rng = crate::workload::Rng::new(5);
        for len in 0..120 {
            let mut values: Vec<u64> = (0..len).map(|_| rng.below(50)).collect();
            let expected = [0.01, 0.5, 0.99, 0.999, 1.0].map(|f| (f, slow_percentile(&values, f)));
            values.sort_unstable();
            for (fraction, expected) in expected {
                assert_eq!(
                    percentile(&values, fraction),
                    expected,
                    "{values:?} {fraction}"
                );
            }
        }
    }

    #[test]
    fn medians() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    fn classes_split_the_samples() {
        let mut latencies = Latencies::default();
        for size in 1..=1_000u32 {
            latencies.record(size * 1_000, u64::from(size) * 1_000);
        }
        let mut over = 0;
        let mut count = 0;
        for up_to in CLASS_BOUNDS {
            let class = latencies.class(over, up_to);
            count += class.count;
            if class.count > 0 {
                assert!(class.p50_us.unwrap() > f64::from(over) / 1e3);
                assert!(class.p99_us.unwrap() <= f64::from(up_to) / 1e3);
            } else {
                assert_eq!((class.p50_us, class.p99_us), (None, None));
            }
            over = up_to;
        }
        assert_eq!(count, latencies.len());
        assert_eq!(latencies.class(0, u32::MAX).p50_us, Some(500.0));
        assert_eq!(latencies.class(0, u32::MAX).p99_us, Some(990.0));
    }

    #[test]
    fn tables_align_by_characters() {
        let rows = vec![
            vec!["300 B".into(), "1.0 µs".into()],
            vec!["1,000,000 B".into(), "12.5 ms".into()],
        ];
        let table = table(&["up to", "P50"], &rows);
        let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths, vec![widths[0]; 4]);
        assert!(table.ends_with("1,000,000 B  12.5 ms\n"));
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(micros(Some(9.96)), "10.0 µs");
        assert_eq!(micros(Some(123.4)), "123 µs");
        assert_eq!(micros(Some(12_345.0)), "12.3 ms");
        assert_eq!(micros(None), "-");
        assert_eq!(ratio(Some(3.0), Some(2.0)), "1.50×");
        assert_eq!(ratio(Some(3.0), None), "-");
    }
}
