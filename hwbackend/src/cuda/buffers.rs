//! Inputs and outputs of the ranks that this process drives: filled, poisoned and compared on
//! their devices.

#![allow(unsafe_code)] // Kernel arguments are passed by address.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collcast_sim::collective::{DataType, ReduceOp};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Call;
use collcast_sim::schedule::program::Buffer;

use super::driver::{Device, Kernel, Memory, Stream, compile};
use crate::check::{POISON, Part, parts, range};
use crate::exec::{ExecError, Mismatch};
use crate::flat::{buffer_bytes, element_macro};

/// Kernels that fill and compare, for one element type and reduction.
#[derive(Debug)]
pub(crate) struct Checker {
    fill: Kernel,
    check: Kernel,
}

/// The macros that tell device code its element type and reduction.
pub(crate) fn macros(call: &Call) -> Result<[String; 2], ExecError> {
    macros_of(call, element_macro(call.dtype)?)
}

fn macros_of(call: &Call, element: u32) -> Result<[String; 2], ExecError> {
    let reduce = match call.op {
        ReduceOp::Sum => 0,
        ReduceOp::Max => 1,
        ReduceOp::Min => 2,
        other => {
            return Err(ExecError::Refused {
                what: format!("the device code does not know the reduction {other}"),
                hint: "it knows sum, min and max",
            });
        }
    };
    Ok([format!("-DELEMENT={element}"), format!("-DREDUCE={reduce}")])
}

impl Checker {
    pub(crate) fn new(device: &Device, call: &Call) -> Result<Self, ExecError> {
        // What is only filled and compared may have 8 bits.
        let element = match call.dtype {
            DataType::Int8 | DataType::Uint8 => 4,
            DataType::Float8E4m3 => 5,
            DataType::Float8E5m2 => 6,
            other => element_macro(other)?,
        };
        let code = compile(include_str!("check.cu"), device.arch, &macros_of(call, element)?)?;
        let mut kernels = Kernel::load(device, &code, &[c"fill", c"check"])?.into_iter();
        match (kernels.next(), kernels.next()) {
            (Some(fill), Some(check)) => Ok(Self { fill, check }),
            _ => Err(ExecError::Library { call: "cuModuleGetFunction", message: "too few functions".to_owned() }),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Verdict {
    wrong: u64,
    /// The complement of the first wrong element.
    not_first: u64,
}

/// The buffers of one rank.
#[derive(Debug)]
pub(crate) struct RankBuffers {
    pub(crate) rank: Rank,
    memory: [Memory; 2],
    /// Bytes from one set to the next.
    stride: [u64; 2],
    sets: u64,
    turn: AtomicU64,
    call: Call,
    range: u32,
    parts: Memory,
    part_count: u32,
    verdict: Memory,
}

/// Longest wait for the filling and comparing kernels, which wait for nobody.
const CHECK_PATIENCE: Duration = Duration::from_secs(60);
/// Blocks and threads of these kernels: enough to fill any GPU.
const GRID: (u32, u32) = (1024, 256);
/// Operations one after another take turns on so many bytes, so that none finds its buffers in a
/// cache: twice the second level of a B200 (126 MB) and more of others. nccl-tests does likewise, over the largest
/// size of its sweep. A graph repeats the calls of one batch, which may fit a cache: long calls are few a batch.
const ROTATED: u64 = 256 << 20;
/// Sets are aligned as memory from the driver is, by 256 bytes at least.
const ALIGNED: u64 = 256;

impl RankBuffers {
    /// One set of buffers.
    pub(crate) fn new(device: &Arc<Device>, call: &Call, rank: Rank) -> Result<Self, ExecError> {
        Self::sets(device, call, rank, |_| 1)
    }

    /// As many sets as [`Self::turn`] needs to pass all caches by.
    pub(crate) fn rotating(device: &Arc<Device>, call: &Call, rank: Rank) -> Result<Self, ExecError> {
        Self::sets(device, call, rank, |bytes| (ROTATED / bytes).max(1))
    }

    fn sets(device: &Arc<Device>, call: &Call, rank: Rank, sets: impl Fn(u64) -> u64) -> Result<Self, ExecError> {
        let stride = buffer_bytes(call, rank).map(|bytes| bytes.next_multiple_of(ALIGNED));
        let sets = sets((stride[0] + stride[1]).max(ALIGNED));
        let parts = parts(call, rank);
        Ok(Self {
            rank,
            memory: [Memory::new(device, stride[0] * sets)?, Memory::new(device, stride[1] * sets)?],
            stride,
            sets,
            turn: AtomicU64::new(0),
            call: call.clone(),
            range: range(call)?,
            part_count: parts.len() as u32,
            parts: Memory::of::<Part>(device, &parts)?,
            verdict: Memory::new(device, size_of::<Verdict>() as u64)?,
        })
    }

    /// Where the memory behind input and output starts; in place both are the same.
    pub(crate) fn bases(&self) -> [u64; 2] {
        [self.memory[0].address, if self.call.in_place { self.memory[0].address } else { self.memory[1].address }]
    }

    /// Where input and output start.
    pub(crate) fn addresses(&self) -> [u64; 2] {
        let at = |buffer| match self.call.in_place {
            true => self.call.in_place_offset(self.rank, buffer) * self.call.dtype.size(),
            false => 0,
        };
        let bases = self.bases();
        [bases[0] + at(Buffer::Input), bases[1] + at(Buffer::Output)]
    }

    /// How far from the first set's input and output the next operation finds its own.
    pub(crate) fn turn(&self) -> [u64; 2] {
        self.shift(self.turn.fetch_add(1, Ordering::Relaxed))
    }

    fn shift(&self, turn: u64) -> [u64; 2] {
        let [input, output] = self.stride.map(|bytes| bytes * (turn % self.sets));
        [input, if self.call.in_place { input } else { output }]
    }

    /// Whether an operation that follows another on the same set leaves the same there: sums in place grow.
    pub(crate) fn repeats(&self) -> bool {
        !(self.call.in_place && self.call.collective.reduces() && self.call.op == ReduceOp::Sum)
    }

    /// Clears what operations from here on are to write, in all sets: in place by filling the inputs anew. Sums in place stay.
    pub(crate) fn blank(&self, checker: &Checker, stream: &Stream) -> Result<(), ExecError> {
        match self.call.in_place {
            false => self.memory[1].set(POISON),
            true if self.repeats() => self.fill(checker, stream),
            true => Ok(()),
        }
    }

    /// Poisons the outputs and fills the inputs of all sets.
    pub(crate) fn fill(&self, checker: &Checker, stream: &Stream) -> Result<(), ExecError> {
        self.memory[0].set(POISON)?;
        self.memory[1].set(POISON)?;
        let (mut to, mut count) = (self.addresses()[0], self.call.input_len(self.rank));
        let (mut rank, mut range) = (self.rank.0, self.range);
        let mut arguments =
            [(&raw mut to).cast(), (&raw mut count).cast(), (&raw mut rank).cast(), (&raw mut range).cast::<c_void>()];
        stream.device.enter()?;
        // SAFETY: the arguments are those of `fill`; the memory is ours and waited for below.
        unsafe { stream.launch(&checker.fill, GRID.0, GRID.1, 0, &mut arguments)? };
        // The other sets are copies of the first; each copy doubles how many there are.
        let (all, mut done) = (self.stride[0] * self.sets, self.stride[0]);
        while done < all {
            let bytes = done.min(all - done);
            stream.copy_on(&self.memory[0], done, bytes)?;
            done += bytes;
        }
        stream.wait(CHECK_PATIENCE)
    }

    /// Compares every element that the collective defines, in the set of the last operation; returns how many those are.
    pub(crate) fn check(&self, checker: &Checker, stream: &Stream) -> Result<u64, ExecError> {
        self.verdict.set(0)?;
        let last = self.shift(self.turn.load(Ordering::Relaxed).saturating_sub(1));
        let (mut out, mut parts, mut count) = (self.addresses()[1] + last[1], self.parts.address, self.part_count);
        let (mut range, mut verdict) = (self.range, self.verdict.address);
        let mut arguments = [
            (&raw mut out).cast(),
            (&raw mut parts).cast(),
            (&raw mut count).cast(),
            (&raw mut range).cast(),
            (&raw mut verdict).cast::<c_void>(),
        ];
        stream.device.enter()?;
        // SAFETY: the arguments are those of `check`; the memory is ours and waited for below.
        unsafe { stream.launch(&checker.check, GRID.0, GRID.1, 0, &mut arguments)? };
        stream.wait(CHECK_PATIENCE)?;
        let found: Verdict = self.verdict.read()?;
        if found.wrong > 0 {
            return Err(ExecError::Wrong(Mismatch {
                rank: self.rank.0,
                element: !found.not_first,
                wrong: found.wrong,
            }));
        }
        Ok(crate::check::parts(&self.call, self.rank).iter().map(|p| p.count).sum())
    }
}
