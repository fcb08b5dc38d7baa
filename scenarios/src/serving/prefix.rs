//! What a worker keeps of prompts that it has seen: in its GPUs' memory, then in host memory, then on drives.
//!
//! A prompt is a chain of [`Part`]s. A part is kept as a whole. What no running request uses goes to the next tier when its
//! room is wanted, the least recently used first; from the last tier it is gone.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

/// Tiers: GPU memory, host memory, drives.
pub const TIERS: usize = 3;
/// The tier of GPU memory.
const GPU: usize = 0;

/// A part of a prompt. Requests that have a part of the same key have all parts before it in common too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// Which.
    pub key: u64,
    /// Its tokens.
    pub tokens: u64,
}

/// What prefixes did in a run, in tokens; summed over workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Reuse {
    /// Of prompts that were taken from each tier.
    pub hits: [u64; TIERS],
    /// Of prompts that were computed.
    pub computed: u64,
    /// Of `computed`, those that a slower tier had, and that were faster to compute.
    pub recomputed: u64,
    /// Written to each tier from the one above it.
    pub written: [u64; TIERS],
    /// Gone from the last tier.
    pub dropped: u64,
}

/// A part that is kept.
#[derive(Clone, Copy, Debug)]
struct Kept {
    tier: usize,
    blocks: u64,
    /// Running requests that use it.
    users: u64,
    /// Its place in the order of its tier, where nobody uses it.
    stamp: u64,
}

/// Parts that a worker keeps.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    /// Blocks of each tier; of GPU memory none, since its worker counts those.
    capacity: [u64; TIERS],
    /// Blocks of parts that nobody uses.
    idle: [u64; TIERS],
    /// By tier: parts that nobody uses, the least recently used first.
    order: [BTreeMap<u64, u64>; TIERS],
    kept: FxHashMap<u64, Kept>,
    stamps: u64,
    /// Blocks that went to each tier from above, and that were lost.
    pub(super) written: [u64; TIERS],
    pub(super) dropped: u64,
}

impl Tiers {
    /// With so many blocks of host memory and drives.
    pub(super) fn new([host, drives]: [u64; 2]) -> Self {
        Self {
            capacity: [0, host, drives],
            idle: [0; TIERS],
            order: Default::default(),
            kept: FxHashMap::default(),
            stamps: 0,
            written: [0; TIERS],
            dropped: 0,
        }
    }

    /// Where a part is, and whether a running request uses it.
    pub(super) fn find(&self, key: u64) -> Option<(usize, bool)> {
        self.kept.get(&key).map(|kept| (kept.tier, kept.users > 0))
    }

    /// Blocks of each tier that hold parts which nobody uses.
    #[cfg(test)]
    pub(super) fn load(&self) -> [u64; TIERS] {
        self.idle
    }

    /// Takes a part into GPU memory for one more request; gives the blocks that this adds to those in use.
    pub(super) fn take(&mut self, key: u64) -> u64 {
        let Some(kept) = self.kept.get_mut(&key) else { return 0 };
        kept.users += 1;
        if kept.users > 1 {
            return 0;
        }
        self.order[kept.tier].remove(&kept.stamp);
        self.idle[kept.tier] -= kept.blocks;
        kept.tier = GPU;
        kept.blocks
    }

    /// Keeps a part that a request has just computed and goes on using; false where it is known already.
    pub(super) fn insert(&mut self, key: u64, blocks: u64) -> bool {
        let new = !self.kept.contains_key(&key);
        if new {
            self.kept.insert(key, Kept { tier: GPU, blocks, users: 1, stamp: 0 });
        }
        new
    }

    /// A request is through with a part; gives the blocks that are no more in use.
    pub(super) fn leave(&mut self, key: u64) -> u64 {
        let Some(kept) = self.kept.get_mut(&key) else { return 0 };
        kept.users -= 1;
        if kept.users > 0 {
            return 0;
        }
        self.stamps += 1;
        kept.stamp = self.stamps;
        self.order[GPU].insert(kept.stamp, key);
        self.idle[GPU] += kept.blocks;
        kept.blocks
    }

    /// Puts parts off until so many blocks of GPU memory, at most, hold parts that nobody uses.
    pub(super) fn shrink(&mut self, most: u64) {
        while self.idle[GPU] > most {
            self.put_off(GPU);
        }
    }

    /// Moves the least recently used part of a tier to the next that can hold it.
    fn put_off(&mut self, tier: usize) {
        let Some((stamp, key)) = self.order[tier].pop_first() else { return };
        let Some(&Kept { blocks, .. }) = self.kept.get(&key) else { return };
        self.idle[tier] -= blocks;
        let Some(next) = (tier + 1..TIERS).find(|&next| self.capacity[next] >= blocks) else {
            self.kept.remove(&key);
            self.dropped += blocks;
            return;
        };
        while self.idle[next] + blocks > self.capacity[next] {
            self.put_off(next);
        }
        self.written[next] += blocks;
        self.idle[next] += blocks;
        self.order[next].insert(stamp, key);
        if let Some(kept) = self.kept.get_mut(&key) {
            kept.tier = next;
        }
    }
}
