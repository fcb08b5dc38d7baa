//! Where the blocks of a kernel lie on a GPU, and what of a full link that leaves to each.
//!
//! The stores of all multiprocessors meet on their way to NVLink. Where the link is full, they are served in turns by where
//! they come from. On H200 each half of the GPU gets half of the link, and in a half each block gets as much as the others
//! (`tests/data/h200x4/full_link.csv`).

/// Blocks that NCCL starts as a cluster, so that they lie in one graphics processing cluster of the GPU (GPC). A kernel whose
/// blocks are no multiple of it has no clusters (NCCL 2.28 `src/enqueue.cc`, `NCCL_CGA_CLUSTER_SIZE`).
const CLUSTER: u32 = 4;
/// Compute capability of Hopper, the first that has clusters, and the only one that this was measured on.
const HOPPER: u32 = 90;
/// Blocks that come first where there are no clusters: two on each port, where later ones have a port for themselves.
const PAIRED: u32 = 8;

/// Whether a cluster, of so many, lies in the first half of the GPU, in the order in which H200 places them.
fn in_first_half(cluster: u32, clusters: u32) -> bool {
    cluster + 1 < clusters && matches!(cluster, 0..3 | 6)
}

/// What the block `index` of a kernel of so many gets of a full link, in proportion to the others: small integers.
pub(super) fn share(compute_capability: u32, index: u32, blocks: u32) -> u64 {
    if compute_capability != HOPPER || blocks <= 2 * CLUSTER {
        return 1;
    }
    if !blocks.is_multiple_of(CLUSTER) {
        return if index < PAIRED { 1 } else { 2 };
    }
    let clusters = blocks / CLUSTER;
    let first = (0..clusters).filter(|&cluster| in_first_half(cluster, clusters)).count() as u64;
    let second = u64::from(clusters) - first;
    // In proportion to what is in the other half.
    let beside = if in_first_half(index / CLUSTER, clusters) { second } else { first };
    if first == second { 1 } else { beside }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Goal: shares are those that blocks had of a full link.
    /// Method: 8 MiB a block to the other of two H200, all at once. Where clusters fill the link, what a block got lies within
    /// 12% of its share; without clusters the first blocks take from 1.5 to 2.4 times as long as the last. A block that has all
    /// it can send is left out.
    #[test]
    fn shares_are_as_measured() {
        let data = include_str!("../../../tests/data/h200x4/full_link.csv");
        let mut runs: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
        for row in data.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>()) {
            let [cluster, what, blocks, _, _, _, eight_us, _] = row[..] else { panic!("{row:?}") };
            if what == "send" {
                let of = (cluster.parse().unwrap(), blocks.parse().unwrap());
                runs.entry(of).or_default().push(8.0 * 1048.576 / eight_us.parse::<f64>().unwrap());
            }
        }
        // What a block sends by itself, in GB/s: within 10% of that it is not the link which holds it back.
        let alone = runs[&(4, 4)].iter().copied().fold(0.0, f64::max);
        let mut judged = 0;
        for (&(cluster, blocks), rates) in &runs {
            let shares: Vec<f64> = (0..blocks).map(|index| share(HOPPER, index, blocks) as f64).collect();
            let held = |index: &usize| rates[*index] < 0.9 * alone;
            if cluster == CLUSTER && blocks > 8 {
                let held: Vec<usize> = (0..rates.len()).filter(held).collect();
                let mean = held.iter().map(|&i| rates[i] / shares[i]).sum::<f64>() / held.len() as f64;
                for index in held {
                    let off = rates[index] / shares[index] / mean - 1.0;
                    assert!(off.abs() < 0.12, "{blocks} blocks, block {index}: {off:+.2}");
                    judged += 1;
                }
            }
            if cluster == 1 && blocks > 16 && !blocks.is_multiple_of(CLUSTER) {
                let mean = |of: std::ops::Range<usize>| rates[of.clone()].iter().sum::<f64>() / of.len() as f64;
                let times = mean(8..blocks as usize) / mean(0..8);
                assert!((1.5..2.4).contains(&times), "{blocks} blocks: {times:.2}");
                judged += 1;
            }
        }
        assert!(judged > 80, "{judged}");
    }
}
