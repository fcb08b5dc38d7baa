//! How far two runs of the same thing lie apart when nothing has changed.

use collcast_sim::collective::Launch;

/// Noise of one comparison, as standard deviations of ln(B/A) between two single measurements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Noise {
    /// What all rows of a band have in common in one run: the pace of the host thread, clocks.
    pub offset: f64,
    /// What each row has of its own.
    pub row: f64,
}

/// Noise by size band, where a host thread launches each operation and where a CUDA graph does.
///
/// Origin: out of place against in place in each of the 66 runs of `tests/data/h200x4/nccl.csv`
/// (4 and 2 H200, NCCL 2.28.9), without the collectives whose in-place form spares a copy
/// (all-gather, all-to-all, reduce-scatter). `offset` is the root mean square of the runs'
/// medians; `row` that of the rows about the median of their run, tails included:
///
/// | | < 64 KiB | 64 KiB-16 MiB | > 16 MiB |
/// |---|---|---|---|
/// | single_thread, 26 runs | 2.8%, 4.9% | 1.5%, 5.5% | 0.2%, 0.2% |
/// | threads, 15 runs | 3.0%, 4.8% | 2.1%, 3.2% | 0.9%, 0.5% |
/// | graph, 10 runs | 0.2%, 0.9% | 3.6%, 4.4% | too few rows |
///
/// Graph below 64 KiB is without Simple, which is really faster in place there (by 2% to 11%, all
/// rows of a run alike); with so few runs left it counts as 1.0% and 1.4%. Of the modes that a
/// host thread launches, the larger is used. Two runs of the same thing (`all_reduce_default` and the forced
/// runs at the sizes where NCCL chose the same) lie within it, but for one: host threads of
/// `t2_all_reduce_Ring_LL` were 13% faster throughout. For `processes` the same is used: in 42
/// published logs of 2 to 1440 GPUs the medians of runs have 2.5%, 1.0% and 0.4% and the rows
/// 1.4%, 1.1% and 0.4% (robust figures; 2% of the rows are far out, which a median ignores).
const HOST_LAUNCHED: [Noise; 3] =
    [Noise { offset: 0.030, row: 0.050 }, Noise { offset: 0.021, row: 0.055 }, Noise { offset: 0.009, row: 0.005 }];
const GRAPH: [Noise; 3] =
    [Noise { offset: 0.010, row: 0.014 }, Noise { offset: 0.036, row: 0.044 }, Noise { offset: 0.009, row: 0.005 }];

/// Times apart that no row was seen to be where nothing had changed: most are within 1.3, and large ones of healthy published
/// runs reach 61% of their forecast at least.
pub const TAIL: f64 = 1.75;

/// Noise in a size band. `launch` names the modes of both sides, where they are said; the
/// larger noise counts.
pub fn known(launch: &[Option<Launch>], band: u8) -> Noise {
    let of = |launch: &Option<Launch>| match launch {
        Some(Launch::Graph) => GRAPH,
        _ => HOST_LAUNCHED,
    };
    let band = usize::from(band).min(2);
    launch.iter().map(of).fold(Noise { offset: 0.0, row: 0.0 }, |worst, noise| Noise {
        offset: worst.offset.max(noise[band].offset),
        row: worst.row.max(noise[band].row),
    })
}
