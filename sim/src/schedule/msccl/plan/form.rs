//! A plan as its file has it.

use serde::{Deserialize, Serialize};

/// Operations of a thread block (`MAX_OPERATION`).
pub const MAX_OPERATIONS: usize = 64;

/// A plan: what each GPU does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What it computes, such as `allreduce`.
    pub collective: String,
    /// `Simple`: data and signals apart.
    pub protocol: String,
    /// Whether input and output are one buffer.
    pub inplace: bool,
    /// Whether plans share scratch.
    pub reuse_resources: bool,
    /// By rank.
    pub gpus: Vec<Gpu>,
    /// Threads of a block.
    pub num_threads_per_block: u32,
    /// Whether calls take halves of the scratch in turn.
    pub use_double_scratch_buffer: bool,
    /// Bytes that chunks are multiples of.
    pub buffer_alignment: u32,
    /// Smallest size in bytes: of the output for an all-gather, else of the input.
    pub min_message_size: u64,
    /// Largest size: offsets have 32 bits.
    pub max_message_size: u64,
}

/// What a GPU does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gpu {
    /// Its rank.
    pub id: u32,
    /// Chunks of the input.
    pub input_chunks: u64,
    /// Chunks of the output.
    pub output_chunks: u64,
    /// Chunks of scratch.
    pub scratch_chunks: u64,
    /// Thread blocks, which run side by side.
    pub threadblocks: Vec<ThreadBlock>,
    /// Channels by type: the ranks at their other ends.
    pub channels: Vec<Connected>,
    /// Memory of other ranks that it writes.
    pub remote_buffers: Vec<RemoteBuffer>,
    /// What thread blocks wait for each other by.
    pub semaphores: Vec<Semaphore>,
}

/// Channels of a GPU. The n-th of a rank to another is the other end of the n-th back.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Connected {
    /// `memory`.
    pub channel_type: String,
    /// The rank at the other end of each.
    pub connected_to: Vec<u32>,
}

/// Memory of another rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemoteBuffer {
    /// Whose it is.
    pub rank: u32,
    /// `i` input, `o` output, `s` scratch.
    pub r#type: String,
    /// Channels that reach it.
    pub access_channel_types: Vec<String>,
}

/// A counter of a GPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Semaphore {
    /// Its value before the first call.
    pub init_value: u32,
}

/// A thread block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ThreadBlock {
    /// Its number on the GPU.
    pub id: u32,
    /// What it does, one after another.
    pub ops: Vec<Operation>,
    /// Which of the GPU's channels it has, by type.
    pub channels: Vec<ChannelIds>,
    /// Which of the remote buffers it has.
    pub remote_buffer_refs: Vec<BufferIds>,
}

/// Channels of a thread block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ChannelIds {
    /// `memory`.
    pub channel_type: String,
    /// Their numbers on the GPU.
    pub channel_ids: Vec<u32>,
}

/// Remote buffers of a thread block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BufferIds {
    /// `memory`.
    pub access_channel_type: String,
    /// Their numbers on the GPU.
    pub remote_buffer_ids: Vec<u32>,
}

/// What an operation does. Its threads meet at [`Name::Nop`] alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    /// Threads of the block meet.
    Nop,
    /// Copies into another rank's memory.
    Put,
    /// Copies within the GPU.
    Copy,
    /// Adds sources into the first destination.
    Re,
    /// The same, and writes the sum to other ranks too.
    Res,
    /// Counts a channel up.
    Signal,
    /// Waits for the other end to count it up.
    Wait,
    /// Counts a semaphore up.
    SemRelease,
    /// Waits until one counts, and counts it down.
    SemAcquire,
}

/// An operation. Channels and buffers are numbered as those of the thread block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// What it does.
    pub name: Name,
    /// Where it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub src_buff: Vec<Chunks>,
    /// Where it writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dst_buff: Vec<Chunks>,
    /// Which channels it counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channel_ids: Vec<u32>,
    /// Their type, and that of the channel which reaches a remote buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_type: Option<String>,
    /// `sum`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce_op: Option<String>,
    /// Which semaphores it counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub semaphore_ids: Vec<u32>,
}

/// Chunks in a row: of the GPU's own buffer by type, or of a remote one by number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chunks {
    /// `i` input, `o` output, `s` scratch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    /// Number among the remote buffers of the thread block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_id: Option<u32>,
    /// The first of them.
    pub index: u64,
    /// How many.
    pub size: u64,
}
