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

/// The slope of the line through points (x, y) that fits best; 0 for fewer than two.
#[must_use]
pub(super) fn slope(points: &[(f64, f64)]) -> f64 {
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
    if down > 0.0 { up / down } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_of_a_line_is_its_slope() {
        let points: Vec<(f64, f64)> = (0..9).map(f64::from).map(|x| (x, 7.0 - 3.0 * x)).collect();
        assert!((slope(&points) + 3.0).abs() < 1e-9);
        assert_eq!(slope(&points[..1]), 0.0);
        assert_eq!(slope(&[]), 0.0);
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
