//! Ranges of sizes that are judged together.

use collcast_sim::calibrate::{LARGE_ABOVE, SIZE_BANDS, SMALL_BELOW};

/// Ranges of sizes in which one thing bounds the time: launch and latency, caches and
/// protocols, links. Those of [`SIZE_BANDS`], with the two in the middle as one.
pub const BANDS: [&str; 3] = [SIZE_BANDS[0], "64 KiB-16 MiB", SIZE_BANDS[3]];

/// Index in [`BANDS`] of a size in bytes.
pub fn band(size: u64) -> u8 {
    match size {
        0..SMALL_BELOW => 0,
        SMALL_BELOW..=LARGE_ABOVE => 1,
        _ => 2,
    }
}
