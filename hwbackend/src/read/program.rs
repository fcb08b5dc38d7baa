//! Names of test programs and of files, as collectives.

use collcast_sim::collective::Collective;

/// `all_reduce_perf`, with or without its folder and its `_mpi`.
pub(super) fn collective_of_program(name: &str) -> Option<Collective> {
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.strip_suffix("_mpi").unwrap_or(name);
    name.strip_suffix("_perf")?.parse().ok()
}

/// The collective that a file name speaks of, in whole words (`all-reduce`, `AllReduce`, `allreduce8`): of several spellings
/// in it the first of the list.
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
    let words: Vec<String> = stem
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let is_said = |spelling: &str| {
        (1..=3).any(|count| {
            words.windows(count).any(|some| {
                let text = some.concat();
                let text = text.strip_prefix("nccl").unwrap_or(&text);
                text.trim_end_matches(|c: char| c.is_ascii_digit()) == spelling
            })
        })
    };
    SPELLINGS.iter().find(|(spelling, _)| is_said(spelling)).map(|&(_, collective)| collective)
}
