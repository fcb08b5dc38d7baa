//! Speeds of channels: those that are tried, and the highest that a node allows.
//!
//! Source: NCCL 2.30 `src/graph/search.cc`.

use super::paths::{Path, Paths};
use super::system::{LOC_BW, LinkType, System};

// Speeds of a channel that are tried, in GB/s: inside one host and across hosts, by generation.
const INTRA_BELOW_90: &[f32] = &[40., 30., 20., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3.];
const INTER_BELOW_90: &[f32] =
    &[48., 30., 28., 24., 20., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3., 2.4, 1.2, 0.24, 0.12];
const INTRA_90: &[f32] = &[60., 50., 40., 30., 24., 20., 15., 12., 11., 6., 3.];
const INTER_90: &[f32] = &[48., 45., 42., 40., 30., 24., 22., 20., 17.5, 15., 12., 6., 3., 2.4, 1.2, 0.24, 0.12];
const INTRA_100: &[f32] = &[90., 80., 70., 60., 50., 45., 40., 30., 24., 20., 19., 18.];
const INTER_100: &[f32] =
    &[96., 86., 80., 48., 45.1, 42., 40., 30., 24., 22., 20., 17.5, 15., 12., 6., 3., 2.4, 1.2, 0.24, 0.12];

/// The speeds that are tried for a channel, highest first, by the least compute capability of the GPUs.
pub(super) fn ladder(inter: bool, capability: u32) -> &'static [f32] {
    match (inter, capability) {
        (false, 0..90) => INTRA_BELOW_90,
        (false, 90..100) => INTRA_90,
        (false, _) => INTRA_100,
        (true, 0..90) => INTER_BELOW_90,
        (true, 90..100) => INTER_90,
        (true, _) => INTER_100,
    }
}

/// The highest speed of a channel and of a GPU, in GB/s: what NCCL logs as `maxBw` and `totalBw`.
pub(super) fn most(system: &System, paths: &Paths) -> (f32, f32) {
    if !system.inter && system.gpus.len() == 1 {
        return (LOC_BW, LOC_BW);
    }
    let (mut most, mut total) = (0.0_f32, 0.0_f32);
    for (index, gpu) in system.gpus.iter().enumerate() {
        let mut reach = |path: &Path| {
            if !path.links.is_empty() {
                most = most.max(path.bw);
            }
        };
        if system.inter {
            (0..system.nets.len()).for_each(|n| reach(paths.gpu_to_net(system, index, n)));
        } else {
            (0..system.gpus.len()).for_each(|g| reach(paths.gpu_to_gpu(system, index, g)));
        }
        let (mut nvlink, mut pci) = (0.0_f32, 0.0_f32);
        for &l in &system.links_of[gpu.node] {
            match system.links[l].kind {
                LinkType::Nvlink => nvlink += system.links[l].bw,
                LinkType::Pci => pci = system.links[l].bw,
                _ => {}
            }
        }
        total = total.max(nvlink.max(pci));
    }
    (most, total)
}
