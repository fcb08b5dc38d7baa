//! Where the blocks of a kernel lie on a GPU, and what of a full link that leaves to each.
//!
//! The stores of all multiprocessors meet on their way to NVLink. Where the link is full, they are served in turns by where
//! they come from. On H200 each half of the GPU gets half of the link, and in a half each block gets as much as the others
//! (`tests/data/h200x4/full_link.csv`). Those that lie alike do not get the same all the time either: see [`APART`].

use crate::engine::flows::WEIGHT_ONE;

/// Blocks that NCCL starts as a cluster, so that they lie in one graphics processing cluster of the GPU (GPC). A kernel whose
/// blocks are no multiple of it has no clusters (NCCL 2.28 `src/enqueue.cc`, `NCCL_CGA_CLUSTER_SIZE`).
const CLUSTER: u32 = 4;
/// Compute capability of Hopper, the first that has clusters, and the only one that this was measured on.
pub const HOPPER: u32 = 90;
/// Blocks up to which no link is full.
const FILL_NO_LINK: u32 = 8;
/// Blocks that come first where there are no clusters: two on each port, where later ones have a port for themselves.
const PAIRED: u32 = 8;

/// How far what blocks get of a full link lies apart from the first group of channels to the last, as a part of its mean. In
/// `full_link.csv` 24 blocks in clusters took 507 to 573 us for their first 8 MiB, with a standard deviation of 3.6%: that of
/// four groups 9.7% apart. So blocks in step come out of step, and use the link while others wait or load.
const APART: f64 = 0.1;

/// Whether a cluster, of so many, lies in the first half of the GPU, in the order in which H200 places them.
fn in_first_half(cluster: u32, clusters: u32) -> bool {
    cluster + 1 < clusters && matches!(cluster, 0..3 | 6)
}

/// Whether a kernel of so many blocks may fill a link and has no clusters, on GPUs that know them: then blocks share ports.
pub fn out_of_clusters(compute_capability: u32, blocks: u32) -> bool {
    compute_capability == HOPPER && blocks > FILL_NO_LINK && !blocks.is_multiple_of(CLUSTER)
}

/// What the block `index` of a kernel of so many gets of a full link beside others, scaled by [`WEIGHT_ONE`]. It is of a group
/// of channels that is so far from the middle one, from -0.5 to 0.5 of [`APART`].
pub(super) fn share(compute_capability: u32, index: u32, blocks: u32, group: f64) -> u64 {
    if compute_capability != HOPPER || blocks <= FILL_NO_LINK {
        return WEIGHT_ONE;
    }
    let apart = (WEIGHT_ONE as f64 * (1.0 - APART * group)) as u64;
    apart * by_place(compute_capability, index, blocks)
}

/// What follows from where the block lies: in proportion to the others, small integers.
fn by_place(compute_capability: u32, index: u32, blocks: u32) -> u64 {
    if out_of_clusters(compute_capability, blocks) {
        return if index < PAIRED { 1 } else { 2 };
    }
    let clusters = blocks / CLUSTER;
    let first = (0..clusters).filter(|&cluster| in_first_half(cluster, clusters)).count() as u64;
    let second = u64::from(clusters) - first;
    // In proportion to what is in the other half.
    let beside = if in_first_half(index / CLUSTER, clusters) { second } else { first };
    if first == second { 1 } else { beside }
}
