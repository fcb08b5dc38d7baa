//! A scenario file as it is written, before its values are checked.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

/// A string with a unit.
pub(crate) type Text = Spanned<String>;

/// A scenario as written.
#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFile {
    /// `collcast/scenario/1`.
    #[schemars(with = "String")]
    pub(crate) schema: Text,
    /// Name of the scenario.
    pub(crate) name: String,
    /// What it shows, and where its times come from.
    #[serde(default)]
    pub(crate) description: String,
    /// Where it runs.
    pub(crate) machine: RawMachine,
    /// How ranks share the work; one rank by default.
    #[serde(default)]
    pub(crate) layout: RawLayout,
    /// How replicas agree on gradients.
    #[serde(default)]
    pub(crate) data_parallel: RawDataParallel,
    /// What NCCL is told.
    #[serde(default)]
    pub(crate) communication: RawCommunication,
    /// Element sizes and rates.
    #[serde(default)]
    pub(crate) model: RawModel,
    /// The model, in forward order.
    #[serde(default)]
    pub(crate) layers: Vec<RawLayer>,
    /// In place of layers, layout and data_parallel: groups of ranks that exchange data.
    #[serde(default)]
    pub(crate) communicators: Vec<RawCommunicator>,
    /// In place of layers: turns that programs have often.
    #[serde(default)]
    pub(crate) blocks: Vec<RawBlock>,
    /// In place of layers: what ranks do, turn by turn.
    #[serde(default)]
    pub(crate) programs: Vec<RawProgram>,
    /// Ranks that are slower or later than the others.
    #[serde(default)]
    pub(crate) stragglers: Vec<RawStraggler>,
    /// Random differences between computations.
    #[serde(default)]
    pub(crate) jitter: Option<RawJitter>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMachine {
    /// Built-in topology or topology file.
    pub(crate) topology: String,
    /// Hosts, where the topology can have any number.
    pub(crate) nodes: Option<u32>,
    /// GPUs of each host, from the first.
    pub(crate) gpus: Option<u32>,
    /// Profiles; that of the topology by default.
    #[serde(default)]
    pub(crate) profile: Vec<String>,
    /// How much faster every other GPU is than the one that times of layers are of: 0.015 is 1.5%; 0 by default.
    #[schemars(with = "Option<f64>")]
    pub(crate) spread: Option<Spanned<f64>>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLayout {
    /// Ranks that split each operation.
    #[schemars(with = "Option<u32>")]
    pub(crate) tensor: Option<Spanned<u32>>,
    /// Stages of the pipeline.
    #[schemars(with = "Option<u32>")]
    pub(crate) pipeline: Option<Spanned<u32>>,
    /// Replicas.
    #[schemars(with = "Option<u32>")]
    pub(crate) data: Option<Spanned<u32>>,
    /// Micro-batches of a step.
    #[schemars(with = "Option<u32>")]
    pub(crate) micro_batches: Option<Spanned<u32>>,
    /// `1f1b` (default), `gpipe` or `interleaved`.
    #[schemars(with = "Option<String>")]
    pub(crate) schedule: Option<Text>,
    /// Chunks of layers a stage has, for `interleaved`.
    #[schemars(with = "Option<u32>")]
    pub(crate) chunks: Option<Spanned<u32>>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDataParallel {
    /// `ddp` (default), `at_end`, `one_gpu`, `fsdp` or `none`.
    #[schemars(with = "Option<String>")]
    pub(crate) kind: Option<Text>,
    /// `ddp`: size from which a bucket is full, 25 MiB by default.
    #[schemars(with = "Option<String>")]
    pub(crate) bucket: Option<Text>,
    /// `ddp`: the same of the first bucket, 1 MiB by default.
    #[schemars(with = "Option<String>")]
    pub(crate) first_bucket: Option<Text>,
    /// `fsdp`: units gathered ahead at most, 1 by default.
    pub(crate) prefetch: Option<u32>,
    /// `fsdp`: free parameters after the forward pass, true by default.
    pub(crate) reshard: Option<bool>,
    /// The framework copies gradients into buckets and back (`ddp`) or units out of and into gathered
    /// buffers (`fsdp`), true by default.
    pub(crate) copies: Option<bool>,
    /// `ddp`: PyTorch's gradient_as_bucket_view, which saves the way back; false by default.
    pub(crate) bucket_view: Option<bool>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCommunication {
    /// `auto` (NCCL's choice, default), `best`, or an algorithm.
    #[schemars(with = "Option<String>")]
    pub(crate) algorithm: Option<Text>,
    /// `auto`, `best`, or a protocol.
    #[schemars(with = "Option<String>")]
    pub(crate) protocol: Option<Text>,
    /// Channels; NCCL's number by default.
    #[schemars(with = "Option<u32>")]
    pub(crate) channels: Option<Spanned<u32>>,
    /// `high` (default) or `normal`: priority of streams of communication.
    #[schemars(with = "Option<String>")]
    pub(crate) priority: Option<Text>,
    /// What moves messages of a pipeline: `blocks` (default) or `copy_engine`.
    #[schemars(with = "Option<String>")]
    pub(crate) send: Option<Text>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawModel {
    /// Bytes of a parameter where it is gathered; 2 by default.
    pub(crate) parameter_bytes: Option<u64>,
    /// Bytes of a gradient where it is reduced; 2 by default.
    pub(crate) gradient_bytes: Option<u64>,
    /// What a GPU reaches with large matrix products, in 10^12 operations a second; for operations
    /// that are given by their shape.
    #[schemars(with = "Option<f64>")]
    pub(crate) matrix_tflops: Option<Spanned<f64>>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLayer {
    /// Name.
    #[schemars(with = "String")]
    pub(crate) name: Text,
    /// How many of it follow each other; 1 by default.
    #[schemars(with = "Option<u64>")]
    pub(crate) count: Option<Spanned<u64>>,
    /// Measured time of the forward pass. With `operations` it is shared among them in proportion.
    #[schemars(with = "Option<String>")]
    pub(crate) forward: Option<Text>,
    /// Measured time of the backward pass.
    #[schemars(with = "Option<String>")]
    pub(crate) backward: Option<Text>,
    /// Without `operations`: kernels of the forward pass, 1 by default; the backward pass has twice as many. Calls wait for
    /// the end of a kernel.
    pub(crate) kernels: Option<u32>,
    /// Without `operations`: part of the memory's rate that it needs.
    #[schemars(with = "Option<f64>")]
    pub(crate) memory: Option<Spanned<f64>>,
    /// Without `operations`: elements of its tensors of parameters, in order of use.
    #[serde(default)]
    pub(crate) parameters: Vec<u64>,
    /// What it hands to the next layer, for one micro-batch.
    #[schemars(with = "Option<String>")]
    pub(crate) output: Option<Text>,
    /// Without `operations`: what tensor parallelism all-reduces after the forward pass.
    #[schemars(with = "Option<String>")]
    pub(crate) sum: Option<Text>,
    /// The same after the backward pass.
    #[schemars(with = "Option<String>")]
    pub(crate) sum_backward: Option<Text>,
    /// Operations, in forward order.
    #[serde(default)]
    pub(crate) operations: Vec<RawOperation>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawOperation {
    /// Name.
    #[schemars(with = "String")]
    pub(crate) name: Text,
    /// Measured time of the forward pass.
    #[schemars(with = "Option<String>")]
    pub(crate) forward: Option<Text>,
    /// Measured time of the backward pass; twice the forward pass by default.
    #[schemars(with = "Option<String>")]
    pub(crate) backward: Option<Text>,
    /// A matrix product of m x k by k x n: `[m, n, k]`, each 1 to 2^31.
    #[schemars(with = "Option<[u64; 3]>")]
    pub(crate) matrix: Option<Spanned<[u64; 3]>>,
    /// Products of this shape, such as heads: 1 to 2^31; 1 by default.
    #[schemars(with = "Option<u64>")]
    pub(crate) batch: Option<Spanned<u64>>,
    /// Memory that is read and written, for what computes little; the backward pass moves 1.5 times
    /// that by default (two inputs, one output).
    #[schemars(with = "Option<String>")]
    pub(crate) bytes: Option<Text>,
    /// Kernels of the forward pass; 1 by default. The backward pass of a product has two.
    pub(crate) kernels: Option<u32>,
    /// Waves of blocks of each kernel; 1 by default, as for kernels whose blocks stay.
    pub(crate) waves: Option<u32>,
    /// Part of the memory's rate that it needs; 1 for `bytes`, the profile's gemm.memory otherwise.
    #[schemars(with = "Option<f64>")]
    pub(crate) memory: Option<Spanned<f64>>,
    /// Elements of its tensors of parameters, in order of use.
    #[serde(default)]
    pub(crate) parameters: Vec<u64>,
    /// What tensor parallelism all-reduces after the forward pass.
    #[schemars(with = "Option<String>")]
    pub(crate) sum: Option<Text>,
    /// The same after the backward pass.
    #[schemars(with = "Option<String>")]
    pub(crate) sum_backward: Option<Text>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawStraggler {
    /// The rank.
    #[schemars(with = "u32")]
    pub(crate) rank: Spanned<u32>,
    /// How many times longer its computations take; 1 by default.
    #[schemars(with = "Option<f64>")]
    pub(crate) slow: Option<Spanned<f64>>,
    /// How late its host starts.
    #[schemars(with = "Option<String>")]
    pub(crate) late: Option<Text>,
    /// Share of their rate that the links of its GPU and its NIC still have.
    #[schemars(with = "Option<f64>")]
    pub(crate) link: Option<Spanned<f64>>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawJitter {
    /// Standard deviation of a computation's time, relative to it; 0 for none, to compare with.
    #[schemars(with = "f64")]
    pub(crate) relative: Spanned<f64>,
    /// Of the generator; 1 by default.
    pub(crate) seed: Option<u64>,
    /// How many seeds, from that one on, the spread is taken over; 5 by default.
    #[schemars(with = "Option<u32>")]
    pub(crate) seeds: Option<Spanned<u32>>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCommunicator {
    /// Name, which turns have it by.
    #[schemars(with = "String")]
    pub(crate) name: Text,
    /// Ranks of a group.
    pub(crate) size: u32,
    /// Ranks from one member to the next; 1 by default.
    pub(crate) stride: Option<u32>,
    /// First and last rank that groups lie among, one block of size times stride ranks after another.
    pub(crate) ranks: [u32; 2],
    /// Groups that lie within each other in a block; as many as the stride by default.
    pub(crate) within: Option<u32>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBlock {
    /// Name, which turns have it by.
    #[schemars(with = "String")]
    pub(crate) name: Text,
    /// What it does, in order; no blocks.
    pub(crate) turns: Vec<RawTurn>,
}

#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawProgram {
    /// First and last rank that run it.
    #[schemars(with = "[u32; 2]")]
    pub(crate) ranks: Spanned<[u32; 2]>,
    /// What they do, in order.
    pub(crate) turns: Vec<RawTurn>,
}

/// One of `time`, `call`, `send`, `receive` and `block`.
#[derive(Deserialize, JsonSchema, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTurn {
    /// Name.
    #[schemars(with = "String")]
    pub(crate) name: Text,
    /// Kernels of the model that take so long in all.
    #[schemars(with = "Option<String>")]
    pub(crate) time: Option<Text>,
    /// How many kernels these are; 1 by default.
    pub(crate) kernels: Option<u32>,
    /// Part of the memory's rate that they need; 0.5 by default.
    #[schemars(with = "Option<f64>")]
    pub(crate) memory: Option<Spanned<f64>>,
    /// A collective.
    #[schemars(with = "Option<String>")]
    pub(crate) call: Option<Text>,
    /// Its size, as nccl-tests counts it.
    #[schemars(with = "Option<String>")]
    pub(crate) size: Option<Text>,
    /// A message of so many bytes to the other rank of a group of two.
    #[schemars(with = "Option<String>")]
    pub(crate) send: Option<Text>,
    /// The other end of one.
    #[schemars(with = "Option<String>")]
    pub(crate) receive: Option<Text>,
    /// The communicator of a call or message.
    #[schemars(with = "Option<String>")]
    pub(crate) on: Option<Text>,
    /// A block.
    #[schemars(with = "Option<String>")]
    pub(crate) block: Option<Text>,
    /// How often; 1 by default.
    pub(crate) times: Option<u32>,
    /// Kernels after it do not wait for this call or message; false by default.
    #[serde(default)]
    pub(crate) hidden: bool,
    /// A name by which later turns come after it.
    pub(crate) id: Option<String>,
    /// Earlier turns that it waits for, in place of the kernels before it.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(crate) after: Vec<Text>,
}
