//! Plots.
use crate::report::Report;

/// x
pub fn times(_r: &[Report]) -> String {
    String::new()
}
/// x
pub fn slowdowns(_r: &[Report], _p: &[()]) -> String {
    String::new()
}
/// x
pub fn read_published(_t: &str, _w: &str) -> Result<Vec<()>, String> {
    Ok(vec![])
}
