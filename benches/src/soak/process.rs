//! What this process holds of the system.

use std::fs;
use std::io;
use std::time::Duration;

/// Open file descriptors.
pub(super) fn descriptors() -> io::Result<usize> {
    // One of them is that of the directory.
    Ok(fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

/// For how long the calling thread has been ready to run and did not.
pub(super) fn thread_delay() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text
        .split_whitespace()
        .nth(1)
        .and_then(|nanos| nanos.parse().ok());
    nanos
        .map(Duration::from_nanos)
        .ok_or_else(|| io::Error::other("the system does not tell the delay of threads"))
}

/// The lowest point of each of so many equal parts of a series: of memory, what is in use when nothing
/// happens to need much.
pub(super) fn lows(points: &[(f64, f64)], parts: usize) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(parts).max(1);
    let lowest = |part: &[(f64, f64)]| part.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    points.chunks(each).filter_map(lowest).collect()
}

/// The slope of the line through points (x, y) that fits best, and its standard error; 0 for fewer than
/// three.
#[must_use]
pub(super) fn slope(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let (sum_x, sum_y) = points
        .iter()
        .fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let (mut up, mut down) = (0.0, 0.0);
    for (x, y) in points {
        up += (x - mean_x) * (y - mean_y);
        down += (x - mean_x) * (x - mean_x);
    }
    if points.len() < 3 || down <= 0.0 {
        return (0.0, 0.0);
    }
    let slope = up / down;
    let off = |(x, y): &(f64, f64)| (y - mean_y - slope * (x - mean_x)).powi(2);
    let rest: f64 = points.iter().map(off).sum();
    (slope, (rest / (count - 2.0) / down).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_of_a_line_is_its_slope() {
        let points: Vec<(f64, f64)> = (0..9).map(f64::from).map(|x| (x, 7.0 - 3.0 * x)).collect();
        let (found, error) = slope(&points);
        assert!((found + 3.0).abs() < 1e-9 && error < 1e-6);
        assert_eq!(slope(&points[..1]), (0.0, 0.0));
        assert_eq!(slope(&[]), (0.0, 0.0));
    }

    #[test]
    fn noise_is_no_slope_and_a_leak_is_one() {
        // Something in use now and then, on what is there all the time.
        let noise = |x: f64| f64::from((x * 7919.0) as u32 % 13) * 400.0;
        let series = |leak: f64| -> Vec<(f64, f64)> {
            let times = (0..120).map(|at| f64::from(at) / 60.0);
            times.map(|x| (x, 60_000.0 + noise(x) + leak * x)).collect()
        };
        let certain = |leak| {
            let (slope, error) = slope(&lows(&series(leak), 12));
            slope - 3.0 * error
        };
        assert!(certain(0.0) < 200.0, "{}", certain(0.0));
        assert!(certain(4_000.0) > 2_000.0, "{}", certain(4_000.0));
    }

    #[test]
    fn descriptors_that_are_taken_are_seen() {
        let files: Vec<_> = (0..64)
            .map(|_| fs::File::open("/proc/self/status").unwrap())
            .collect();
        // Other tests of the process open files too.
        assert!(descriptors().unwrap() >= files.len());
    }
}
