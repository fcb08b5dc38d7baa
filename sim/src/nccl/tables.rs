//! The places of algorithms, protocols and kinds of links in NCCL's tables.
//!
//! Source: NCCL 2.30 `src/include/nccl_tuner.h` and `src/graph/tuning.cc`.

/// Algorithms, in the order of [`ALGORITHMS`](super::selection::ALGORITHMS).
pub(super) const TREE: usize = 0;
pub(super) const RING: usize = 1;
pub(super) const COLLNET_DIRECT: usize = 2;
pub(super) const COLLNET_CHAIN: usize = 3;
pub(super) const NVLS: usize = 4;
pub(super) const NVLS_TREE: usize = 5;
pub(super) const PAT: usize = 6;

/// Protocols.
pub(super) const LL: usize = 0;
pub(super) const LL128: usize = 1;
pub(super) const SIMPLE: usize = 2;

/// What joins two neighbours of a pattern.
pub(super) const NVLINK: usize = 0;
pub(super) const PCI: usize = 1;
pub(super) const NETWORK: usize = 2;
