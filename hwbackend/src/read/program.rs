//! Names of test programs and of files, as collectives.

use collcast_sim::collective::Collective;

/// `all_reduce_perf`, with or without its folder and its `_mpi`.
pub(super) fn collective_of_program(name: &str) -> Option<Collective> {
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.strip_suffix("_mpi").unwrap_or(name);
    name.strip_suffix("_perf")?.parse().ok()
}

/// The collective that a file name speaks of: of several spellings in it the first of the list.
pub(super) fn collective_in_name(stem: &str) -> Option<Collective> {
    const SPELLINGS: [(&str, Collective); 11] = [
        ("reducescatter", Collective::ReduceScatter),
        ("allreduce", Collective::AllReduce),
        ("allgather", Collective::AllGather),
        ("alltoall", Collective::AllToAll),
        ("broadcast", Collective::Broadcast),
        ("sendrecv", Collective::SendRecv),
        ("scatter", Collective::Scatter),
        ("gather", Collective::Gather),
        ("reduce", Collective::Reduce),
        ("bcast", Collective::Broadcast),
        ("a2a", Collective::AllToAll),
    ];
    let plain: String = stem.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    SPELLINGS.iter().find(|(spelling, _)| plain.contains(spelling)).map(|&(_, collective)| collective)
}
