//! Ranges of sizes that are judged together.

/// Ranges of sizes in which one thing bounds the time: launch and latency, caches and
/// protocols, links.
pub const BANDS: [&str; 3] = ["< 64 KiB", "64 KiB-16 MiB", "> 16 MiB"];

/// Index in [`BANDS`] of a size in bytes.
pub fn band(size: u64) -> u8 {
    match size {
        0..65_536 => 0,
        65_536..=16_777_216 => 1,
        _ => 2,
    }
}
