//! What has a generator and a kernel: algorithms by collective, protocols by algorithm, channels.

use crate::collective::{Algorithm, Collective, Protocol};

pub use crate::nccl::plan::MAX_CHANNELS;

/// Algorithms that have a generator for a collective.
pub fn valid_algorithms(collective: Collective) -> &'static [Algorithm] {
    match collective {
        Collective::AllReduce => &[
            Algorithm::Ring,
            Algorithm::Tree,
            Algorithm::CollnetDirect,
            Algorithm::CollnetChain,
            Algorithm::Nvls,
            Algorithm::NvlsTree,
            Algorithm::CollTree,
        ],
        Collective::AllGather | Collective::ReduceScatter => {
            &[Algorithm::Ring, Algorithm::CollnetDirect, Algorithm::Nvls, Algorithm::Pat]
        }
        Collective::Broadcast | Collective::Reduce => &[Algorithm::Ring],
        Collective::AllToAll | Collective::SendRecv | Collective::Gather | Collective::Scatter => &[Algorithm::Direct],
    }
}

/// Protocols that an algorithm has a kernel for.
pub fn valid_protocols(algorithm: Algorithm) -> &'static [Protocol] {
    match algorithm {
        Algorithm::Ring | Algorithm::Tree | Algorithm::CollTree => &[Protocol::Ll, Protocol::Ll128, Protocol::Simple],
        Algorithm::Direct => &[Protocol::Ll, Protocol::Simple],
        _ => &[Protocol::Simple],
    }
}

/// The names of [`valid_protocols`], for people.
pub(super) fn protocol_names(algorithm: Algorithm) -> String {
    valid_protocols(algorithm).iter().map(|p| p.name()).collect::<Vec<_>>().join(", ")
}
