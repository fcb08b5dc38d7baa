//! What all strategies share: adding computations, collectives and messages to a program.

use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::predict::Choice;
use collcast_sim::profile::Profile;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{Communicate, Compute, Device, Mover, Op, Program, StreamKind, What};

use crate::model::{Layer, Work};

/// What calls are told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CallSettings {
    /// Algorithm.
    pub algorithm: Choice<Algorithm>,
    /// Protocol.
    pub protocol: Choice<Protocol>,
    /// Channels; NCCL's number by default.
    pub channels: Option<u32>,
    /// Streams of communication have high priority.
    pub high_priority: bool,
    /// How pipelines send.
    pub mover: Mover,
}

impl Default for CallSettings {
    fn default() -> Self {
        Self {
            algorithm: Choice::Auto,
            protocol: Choice::Auto,
            channels: None,
            high_priority: true,
            mover: Mover::Blocks,
        }
    }
}

/// What frameworks cost on a GPU: bandwidth for copies, time of the host to launch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Bytes a second that kernels get which only copy, reads and writes together.
    pub memory: f64,
    /// The same of kernels that copy many tensors into or out of one buffer.
    pub strided: f64,
    /// Of the host, to launch a kernel.
    pub launch_kernel: SimDuration,
    /// Of the host, to launch a collective.
    pub launch_collective: SimDuration,
}

/// Waves of a kernel that only reads and writes memory: its blocks are short, so others may start on the way. Their
/// number bounds what a call waits for such a kernel, at an eighth of its time: our estimate.
pub const MEMORY_WAVES: u32 = 8;

impl Costs {
    /// Those of a GPU with a profile.
    pub fn of(profile: &Profile, device: Device) -> Self {
        Self {
            memory: profile.memory(device.memory),
            strided: profile.memory(device.memory) * profile.strided_copy(),
            launch_kernel: profile.launch_kernel(),
            launch_collective: profile.launch_collective(),
        }
    }

    /// A kernel that reads and writes so many bytes in all at a rate, and computes next to nothing.
    pub fn memory_kernel(bytes: u64, rate: f64) -> Compute {
        Compute {
            time: SimDuration::from_us(bytes as f64 / rate * 1e6),
            kernels: 1,
            waves: MEMORY_WAVES,
            tiles: [0; 2],
            memory_ppm: 1_000_000,
        }
    }
}

/// Where the groups of a rank stand in its list; none where it is alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slots {
    /// Tensor parallel.
    pub tensor: Option<usize>,
    /// Data parallel.
    pub data: Option<usize>,
    /// With the stage before, and after; with the other end of the pipeline.
    pub before: Option<usize>,
    /// See `before`.
    pub after: Option<usize>,
    /// See `before`.
    pub around: Option<usize>,
}

/// A program that is being written.
#[derive(Debug)]
pub struct Writer<'a> {
    /// So far.
    pub program: Program,
    calls: &'a CallSettings,
    /// What frameworks cost.
    pub costs: &'a Costs,
    /// The rank's groups.
    pub slots: Slots,
    compute: usize,
    /// What the next computation of the model waits for: sums of the one before.
    pending: Vec<usize>,
}

impl<'a> Writer<'a> {
    /// An empty program with a stream for computation.
    pub fn new(calls: &'a CallSettings, costs: &'a Costs, slots: Slots) -> Self {
        let mut program = Program::default();
        let compute = program.stream("compute", StreamKind::Compute, false);
        Self { program, calls, costs, slots, compute, pending: Vec::new() }
    }

    /// The communication stream of a name, made when it is first used.
    fn stream(&mut self, name: &str) -> usize {
        let known = self.program.streams.iter().position(|s| &*s.name == name);
        known.unwrap_or_else(|| {
            let kind = if self.calls.mover == Mover::CopyEngine && name.starts_with("send") {
                StreamKind::Copy
            } else {
                StreamKind::Communication
            };
            self.program.stream(name, kind, self.calls.high_priority)
        })
    }

    /// Adds kernels of the model to the stream of computation.
    pub fn compute(&mut self, label: &str, kind: &str, compute: Compute, after: &[usize]) -> usize {
        self.program.push(Op {
            label: label.into(),
            kind: kind.into(),
            stream: self.compute,
            what: What::Compute(compute),
            after: after.to_vec(),
            issue: SimDuration::ZERO,
            framework: false,
        })
    }

    /// Adds a kernel that a framework needs, which moves `bytes` in the GPU's memory.
    pub fn copy(&mut self, label: &str, bytes: u64, after: &[usize]) -> usize {
        self.framework(label, Costs::memory_kernel(bytes, self.costs.memory), after)
    }

    /// The same for one that copies many tensors into or out of one buffer.
    pub fn pack(&mut self, label: &str, bytes: u64, after: &[usize]) -> usize {
        self.framework(label, Costs::memory_kernel(bytes, self.costs.strided), after)
    }

    fn framework(&mut self, label: &str, kernel: Compute, after: &[usize]) -> usize {
        self.program.push(Op {
            label: label.into(),
            kind: "copies of the framework".into(),
            stream: self.compute,
            what: What::Compute(kernel),
            after: after.to_vec(),
            issue: self.costs.launch_kernel,
            framework: true,
        })
    }

    /// Adds a collective on a stream of its own name; `size` as nccl-tests counts it.
    pub fn collective(
        &mut self,
        (label, kind, stream): (&str, &str, &str),
        group: usize,
        collective: Collective,
        size: Bytes,
        after: &[usize],
    ) -> usize {
        let stream = self.stream(stream);
        let what = What::Collective(Communicate {
            group,
            collective,
            bytes: size,
            // Timing depends on bytes; gradients are reduced in 16-bit floats.
            dtype: if collective.reduces() { DataType::Bfloat16 } else { DataType::Uint8 },
            // Frameworks gather into the buffer that holds the own part, and scatter out of a buffer of copies.
            in_place: collective.in_place() && collective != Collective::ReduceScatter,
            algorithm: self.calls.algorithm,
            protocol: self.calls.protocol,
            channels: self.calls.channels,
        });
        self.call(label, kind, stream, what, after)
    }

    /// Adds a send or a receive.
    pub fn message(
        &mut self,
        label: &str,
        send: bool,
        (group, stream): (usize, &str),
        bytes: Bytes,
        after: &[usize],
    ) -> usize {
        let stream = self.stream(stream);
        let mover = self.calls.mover;
        let what = if send { What::Send { group, bytes, mover } } else { What::Recv { group, bytes, mover } };
        self.call(label, "pipeline send/recv", stream, what, after)
    }

    fn call(&mut self, label: &str, kind: &str, stream: usize, what: What, after: &[usize]) -> usize {
        self.program.push(Op {
            label: label.into(),
            kind: kind.into(),
            stream,
            what,
            after: after.to_vec(),
            issue: self.costs.launch_collective,
            framework: false,
        })
    }

    /// Adds the forward pass of a layer, with the all-reduces of tensor parallelism; its first
    /// computation waits for `after`. Gives its last operation.
    pub fn forward(&mut self, layer: &Layer, suffix: &str, after: &[usize]) -> usize {
        let mut last = 0;
        for (index, operation) in layer.operations.iter().enumerate() {
            let label = format!("{} {}{suffix}", layer.name, operation.name);
            let after = if index == 0 { after } else { &[] };
            last = self.pass(&label, "forward", operation.forward, operation.sum_forward, after);
        }
        last
    }

    /// Adds one pass over one operation. The next one waits for its sum.
    pub fn pass(&mut self, label: &str, kind: &str, work: Work, sum: Bytes, after: &[usize]) -> usize {
        let mut waits = std::mem::take(&mut self.pending);
        waits.extend_from_slice(after);
        let mut last = self.compute(label, kind, work.compute(), &waits);
        if let Some(group) = self.slots.tensor.filter(|_| sum.0 > 0) {
            let name = ("all-reduce of activations", "tensor-parallel all_reduce", "tensor parallel");
            last = self.collective(name, group, Collective::AllReduce, sum, &[last]);
            self.pending.push(last);
        }
        last
    }

    /// The finished program.
    pub fn finish(self) -> Program {
        self.program
    }
}

/// A label of a micro-batch, or nothing where there is one only.
pub fn suffix(micro_batch: u32, micro_batches: u32) -> Arc<str> {
    if micro_batches > 1 { format!(" #{micro_batch}").into() } else { "".into() }
}
