//! What a file says beside its events, and how much of it is read.

use std::collections::BTreeMap;

use super::call::{Call, Group};

/// Most files that are read at once: a rank each.
pub const FILES_MAX: usize = 4096;
/// Most kernels, copies and launches of a file, and entries of a flight recorder.
pub const EVENTS_MAX: usize = 20_000_000;
/// Most bytes of text that are read, unpacked: a bound on time, and on what a small file may unpack to.
pub const BYTES_MAX: u64 = 8 << 30;

/// What the parts of a file say, before they are put together.
#[derive(Default)]
pub(super) struct Head {
    pub(super) rank: Option<u32>,
    pub(super) world: Option<u32>,
    pub(super) nccl: Option<String>,
    pub(super) gpu: Option<String>,
    pub(super) calls: Vec<Call>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) notes: Vec<String>,
}
