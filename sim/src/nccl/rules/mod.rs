//! What a version of NCCL does, as data: the one place that compares versions.
//!
//! Newer versions change the fields of [`Rules`] here, those of the cost model in `costs.rs`. What only versions before
//! 2.19 do is in `nccl/old.rs`.

mod costs;
mod record;

use super::old;
use super::tables::{NVLS_TREE, PAT};
use super::transport::Ports;
use super::version::Version;

pub(crate) use costs::{Costs, NetLatency, NvlsSpeed};
pub use record::{Cut, Dealing, Deals, Fallback, Float8, NvlsTreeChunks, Rules, TunerInterface};

impl Rules {
    /// The rules of a version, or of the nearest that is known ([`Version::nearest`]).
    pub fn of(version: Version) -> Self {
        let version = version.nearest();
        let mut algorithms = [true; 7];
        // NCCL's release notes: NVLS tree came with 2.18, PAT with 2.23.
        algorithms[NVLS_TREE] = version.since(18);
        algorithms[PAT] = version.since(23);
        let rules = Self {
            version,
            algorithms,
            max_channels: if version.since(26) { 64 } else { 32 },
            ports: match version {
                _ if version.since(24) => Ports::Merged,
                _ if version.since(20) => Ports::AllOrNone,
                _ => Ports::Apart,
            },
            pxn: version.since(12),
            strict_lists: version.since(24),
            fallback: match version {
                _ if version.since(24) => Fallback::Refuse,
                _ if version.since(22) => Fallback::Ring,
                // `ringbdw` of `src/graph/tuning.cc`. Until 2.18 `NCCL_ALGO` takes the ring from all-reduce alone, and
                // `NCCL_PROTO` holds for it.
                _ if version.since(19) => Fallback::RingWithAnyProtocol,
                _ => Fallback::Ring,
            },
            tuner: match version {
                _ if version.since(22) => TunerInterface::Costs,
                _ if version >= Version::new(2, 21, 5) => TunerInterface::Pair,
                _ => TunerInterface::None,
            },
            // 2.20.3 and 2.21.5 `src/enqueue.cc` and `src/transport/nvls.cc`; `src/graph/tuning.cc`.
            unread: match version {
                _ if version.since(27) => &[],
                _ if version.since(21) => &["NCCL_LL128_C2C"],
                _ if version.since(20) => &["NCCL_LL128_C2C", "NCCL_NVLS_CHUNKSIZE"],
                _ => &["NCCL_LL128_C2C", "NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE"],
            },
            ll128_kinds: match version {
                _ if version.since(27) => None,
                _ if version.since(25) => Some(&[70, 80, 90, 100, 120]),
                _ => Some(&[70, 80, 90]),
            },
            ll128_on_mixed_gpus: version.since(29),
            // Read in 2.25.1 and 2.28.3; those between refuse all-gathers too, as their users report.
            float8: match version {
                _ if version.since(28) => Float8::ReductionsFromHopper,
                _ if version.since(24) => Float8::CollectivesFromHopper,
                _ => Float8::None,
            },
            // Read in 2.18.1, 2.19.3 and 2.26.2; the cost model of 2.27 has more hosts.
            nvls_gathers: match version {
                _ if version.since(27) => u32::MAX,
                _ if version.since(19) => 1,
                _ => 0,
            },
            nvls_ranks: if version.since(29) { 2 } else { 3 },
            collnet_gathers: version.since(20),
            nvls_tree_chunks: match version {
                _ if version.since(21) => NvlsTreeChunks::NvlsOrLess,
                _ if version >= Version::new(2, 19, 3) => NvlsTreeChunks::StepOrLess,
                _ => NvlsTreeChunks::Step,
            },
            cut: Cut {
                tree_in_turn: false,
                // 2.21.5 has it, 2.22.3 has not.
                tree_threads_of_ring: !version.since(22),
                // 2.19.3 has it, 2.20 has not.
                tree_fills_depth: !version.since(20),
                least_threads: 96,
                fetches_work: false,
            },
            dealing: Dealing {
                deals: match version {
                    _ if version.since(22) => Deals::Traffic,
                    _ if version.since(20) => Deals::Aligned,
                    _ => Deals::Loops,
                },
                least_traffic: match version {
                    _ if version.since(29) => 32 << 10,
                    _ if version.since(24) => 16 << 10,
                    _ => 512,
                },
                whole_cells: version.since(24),
                ll_traffic: if version.since(26) { 4 } else { 1 },
                rounds_shares: version.since(29),
            },
            costs: Costs::of(version),
        };
        if version.since(19) { rules } else { old::amend(rules) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a version that is not known has the rules of the nearest, and the newest none of the early ones.
    #[test]
    fn rules_are_those_of_the_nearest_version() {
        let rules = |minor| Rules::of(Version::new(2, minor, 0));
        assert_eq!(rules(5), rules(8));
        assert_eq!(Rules::of(Version::new(2, 99, 0)), Rules::of(Version::NEWEST));
        assert!(rules(8).cut.fetches_work && !rules(9).cut.fetches_work);
        assert!(rules(9).cut.tree_in_turn && !rules(10).cut.tree_in_turn);
        assert!(rules(19).cut.tree_fills_depth && !rules(20).cut.tree_fills_depth);
        assert!(rules(21).cut.tree_threads_of_ring && !rules(22).cut.tree_threads_of_ring);
        assert_eq!(
            [19, 20, 22].map(|minor| rules(minor).dealing.deals),
            [Deals::Loops, Deals::Aligned, Deals::Traffic]
        );
        let tuner = |patch| Rules::of(Version::new(2, 21, patch)).tuner;
        assert_eq!((tuner(4), tuner(5)), (TunerInterface::None, TunerInterface::Pair));
    }
}
