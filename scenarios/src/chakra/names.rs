//! Names of attributes. Those that begin with `collcast.` are ours: what an [`OpGraph`](collcast_sim::workload::OpGraph) has and
//! Chakra's vocabulary does not. Other programs pass over them, and a trace without them has the defaults of a scenario.

use collcast_sim::collective::Collective;

/// Whether the CPU does it.
pub(super) const IS_CPU_OP: &str = "is_cpu_op";
/// Which collective: see [`COLLECTIVES`].
pub(super) const COMM_TYPE: &str = "comm_type";
/// Bytes of a message or a collective as ASTRA-sim takes them: of an all-gather what a rank gives, else as nccl-tests counts.
pub(super) const COMM_SIZE: &str = "comm_size";
/// Ends of a message.
pub(super) const COMM_SRC: &str = "comm_src";
/// See [`COMM_SRC`].
pub(super) const COMM_DST: &str = "comm_dst";
/// Messages of one pair with the same tag meet in order.
pub(super) const COMM_TAG: &str = "comm_tag";
/// The group of a collective, by either name.
pub(super) const PG_NAME: [&str; 2] = ["pg_name", "comm_group"];
/// Topology dimensions of a collective.
pub(super) const INVOLVED_DIM: &str = "involved_dim";
/// The GPU's stream.
pub(super) const STREAM: &str = "stream";
/// Bookkeeping of converters, which says nothing of time.
pub(super) const BOOKKEEPING: [&str; 12] = [
    "rf_id",
    "fw_parent",
    "seq_id",
    "scope",
    "tid",
    "fw_tid",
    "op_schema",
    "cid",
    "pg_desc",
    "kernel_backend",
    "kernel_file",
    "is_finalized",
];
/// What computations have in place of a duration, or beside it.
pub(super) const WORK: [&str; 2] = ["num_ops", "tensor_size"];

/// In the global metadata, with the stream's number behind it: name, kind and whether its kernels go first, by tabs.
pub(super) const STREAMS: &str = "collcast.stream.";
/// Picoseconds to add to the duration in microseconds.
pub(super) const REST: &str = "collcast.rest_ps";
/// What the operation counts as in tables.
pub(super) const KIND: &str = "collcast.kind";
/// Kernels of a computation.
pub(super) const KERNELS: &str = "collcast.kernels";
/// Waves of each kernel.
pub(super) const WAVES: &str = "collcast.waves";
/// Tiles of its kernels in turn.
pub(super) const TILES: [&str; 2] = ["collcast.tiles", "collcast.tiles_of_others"];
/// Part of the memory's rate, in millionths.
pub(super) const MEMORY: &str = "collcast.memory_ppm";
/// Whether a framework adds it.
pub(super) const FRAMEWORK: &str = "collcast.framework";
/// Whether a copy engine does it.
pub(super) const COPY_ENGINE: &str = "collcast.copy_engine";
/// Bytes of an all-gather as nccl-tests counts them: what all ranks give. Files from before it have those in [`COMM_SIZE`].
pub(super) const TOTAL: &str = "collcast.total_bytes";
/// Element type of a collective; all of ours have it.
pub(super) const DTYPE: &str = "collcast.dtype";
/// Whether input and output share memory.
pub(super) const IN_PLACE: &str = "collcast.in_place";
/// Algorithm, where NCCL does not choose.
pub(super) const ALGORITHM: &str = "collcast.algorithm";
/// Protocol, where NCCL does not choose.
pub(super) const PROTOCOL: &str = "collcast.protocol";
/// Channels, where NCCL does not choose.
pub(super) const CHANNELS: &str = "collcast.channels";
/// The choice of the fastest by forecast.
pub(super) const BEST: &str = "best";

/// `CollectiveCommType` by number; 9 is a barrier.
pub(super) const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::AllGather,
    Collective::Gather,
    Collective::Scatter,
    Collective::Broadcast,
    Collective::AllToAll,
    Collective::ReduceScatter,
    Collective::ReduceScatter,
];
/// A barrier's number.
pub(super) const BARRIER: i64 = 9;
