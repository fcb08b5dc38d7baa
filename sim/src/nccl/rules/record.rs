//! The facts in which versions of NCCL differ, each named by what NCCL does.

use super::costs::Costs;
use crate::nccl::transport::Ports;
use crate::nccl::version::Version;

/// What a version of NCCL does. [`Rules::of`] builds it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// The version: the one asked for, or the nearest known.
    pub version: Version,
    /// Which algorithms it has, in the order of [`ALGORITHMS`](crate::nccl::ALGORITHMS) (`src/include/nccl_tuner.h`).
    pub algorithms: [bool; 7],
    /// Most channels of a communicator (`MAXCHANNELS`, `src/include/device.h`).
    pub max_channels: u32,
    /// How the ports of a card become devices (`src/transport/net_ib.cc`; `src/graph/topo.cc` from 2.24).
    pub ports: Ports,
    /// GPUs reach NICs through other GPUs (PXN: `src/graph/paths.cc` from 2.12).
    pub pxn: bool,
    /// `NCCL_ALGO` and `NCCL_PROTO` have sections for collectives, and names that NCCL does not know fail the
    /// start of a communicator (`parseList`, `src/graph/tuning.cc`).
    pub strict_lists: bool,
    /// What happens where settings leave a call no pair (`src/enqueue.cc`).
    pub fallback: Fallback,
    /// What a tuner plugin is asked (`src/plugin/tuner.cc`).
    pub tuner: TunerInterface,
    /// Variables that later versions read and it does not.
    pub unread: &'static [&'static str],
    /// Compute capabilities with LL128; `None` for all from 7.0 on (`src/graph/tuning.cc`).
    pub ll128_kinds: Option<&'static [u32]>,
    /// LL128 also runs on GPUs of different kinds, all from Hopper on (`src/graph/tuning.cc`): 2.30 does, 2.27 does
    /// not, and we take 2.28 for the first.
    pub ll128_on_mixed_gpus: bool,
    /// Which calls may have 8-bit floats.
    pub float8: Float8,
    /// Hosts over which NVLS gathers and scatters, at most (`src/enqueue.cc`).
    pub nvls_gathers: u32,
    /// Fewest ranks of a host with which NVLS is set up (`ncclNvlsInit`).
    pub nvls_ranks: u32,
    /// CollNet direct gathers and scatters (`src/enqueue.cc`).
    pub collnet_gathers: bool,
    /// Which chunks NVLS tree has.
    pub nvls_tree_chunks: NvlsTreeChunks,
    /// How it cuts one call.
    pub cut: Cut,
    /// How it deals calls to channels.
    pub dealing: Dealing,
    /// Its cost model.
    pub(crate) costs: Costs,
}

/// What happens where settings leave a call no algorithm and protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// The call fails.
    Refuse,
    /// Ring, with the protocols that the settings leave.
    Ring,
    /// Ring, with every protocol.
    RingWithAnyProtocol,
}

/// Which calls may have 8-bit floats (`taskAppend`, `src/enqueue.cc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Float8 {
    /// None: there is no such type (`ncclDataType_t`, `src/nccl.h.in`).
    None,
    /// Sends everywhere, collectives on GPUs from compute capability 9.0 on.
    CollectivesFromHopper,
    /// All everywhere, but reductions on GPUs from compute capability 9.0 on.
    ReductionsFromHopper,
}

/// Most bytes of a chunk of NVLS tree that nothing tunes (`src/enqueue.cc`; `src/transport/nvls.cc` from 2.29).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NvlsTreeChunks {
    /// A step of Simple's FIFO.
    Step,
    /// The same, but 64 KiB over four hosts and more.
    StepOrLess,
    /// Those of NVLS, but 64 KiB over four hosts and more.
    NvlsOrLess,
}

/// What a tuner plugin is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunerInterface {
    /// Nothing.
    None,
    /// A pair for each call (`ncclTuner_v2`); a plugin that speaks it stands back for `NCCL_ALGO` and `NCCL_PROTO`.
    Pair,
    /// Changes of the cost table (`ncclTuner_v3` and later).
    Costs,
}

/// How one call is cut (`src/enqueue.cc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// A block of a tree with LL or Simple reduces all its chunks up before it broadcasts the first; later ones do both
    /// at once.
    pub tree_in_turn: bool,
    /// A block of a tree has the threads of a ring, fewer where a call is small; later ones always have all.
    pub tree_threads_of_ring: bool,
    /// Chunks of tree/Simple get smaller until as many as the tree is deep are on their way.
    pub tree_fills_depth: bool,
    /// Threads that a block of a small call keeps.
    pub least_threads: u64,
    /// Blocks, all but the first of a kernel, fetch what they are to do from host memory.
    pub fetches_work: bool,
}

/// How calls are dealt to channels (`src/enqueue.cc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dealing {
    /// What is dealt.
    pub deals: Deals,
    /// Traffic below which a channel is not worth its while, in bytes.
    pub least_traffic: u64,
    /// A cell has that traffic and the last one of a channel is whole; otherwise a cell has 16 bytes.
    pub whole_cells: bool,
    /// How often a byte counts that goes with LL.
    pub ll_traffic: u64,
    /// The traffic of a channel is rounded up to 16 bytes; otherwise it is no less than the least that is worth it.
    pub rounds_shares: bool,
}

/// What channels are dealt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deals {
    /// Loops over all channels, the last of them rounded up.
    Loops,
    /// Equal parts of a call, in units of what a block's threads move at once.
    Aligned,
    /// Equal traffic, over all calls of a group (`scheduleCollTasksToPlan`).
    Traffic,
}
