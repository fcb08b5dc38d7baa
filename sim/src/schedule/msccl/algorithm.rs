//! An algorithm as its file has it: steps of thread blocks over chunks.

use thiserror::Error;

use crate::collective::{Collective, Protocol};
use crate::schedule::program::Buffer;

/// What is wrong with a file, where, and the way out.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{what}\n  --> {file}:{line}\n\nhint: {hint}")]
pub struct MscclError {
    /// What.
    pub what: String,
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
    /// The way out.
    pub hint: String,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Sends its source.
    Send,
    /// Receives into its destination.
    Receive,
    /// Receives into its destination, and sends the same on.
    ReceiveCopySend,
    /// Receives, adds its source, keeps the sum.
    ReceiveReduceCopy,
    /// Receives, adds its source, sends the sum on.
    ReceiveReduceSend,
    /// Receives, adds its source, keeps the sum and sends it on.
    ReceiveReduceCopySend,
    /// Copies its source to its destination.
    Copy,
    /// Adds its source to its destination.
    Reduce,
    /// Waits alone.
    Nothing,
}

impl Kind {
    pub(super) const ALL: [(Self, &'static str); 9] = [
        (Self::Send, "s"),
        (Self::Receive, "r"),
        (Self::ReceiveCopySend, "rcs"),
        (Self::ReceiveReduceCopy, "rrc"),
        (Self::ReceiveReduceSend, "rrs"),
        (Self::ReceiveReduceCopySend, "rrcs"),
        (Self::Copy, "cpy"),
        (Self::Reduce, "re"),
        (Self::Nothing, "nop"),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|k| k.0 == self).map_or("", |k| k.1)
    }

    /// Whether it receives.
    pub fn receives(self) -> bool {
        self.name().starts_with('r') && self != Self::Reduce
    }

    /// Whether it sends.
    pub fn sends(self) -> bool {
        self.name().ends_with('s')
    }

    /// Whether it reads its source.
    pub(super) fn reads(self) -> bool {
        !matches!(self, Self::Receive | Self::ReceiveCopySend | Self::Nothing)
    }

    /// Whether it writes its destination.
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Send | Self::ReceiveReduceSend | Self::Nothing)
    }
}

/// A chunk of a buffer.
pub(super) type Place = (Buffer, u64);

/// A step of a thread block.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// What it does.
    pub kind: Kind,
    /// Where it reads from.
    pub(super) src: Place,
    /// Where it writes to.
    pub(super) dst: Place,
    /// Chunks in a row.
    pub count: u64,
    /// Block and step of the same GPU that must be over.
    pub after: Option<(usize, usize)>,
    /// Whether others may wait for it.
    pub(super) tells: bool,
    pub(super) line: u32,
}

/// A thread block: its steps run one after another.
#[derive(Clone, Debug)]
pub struct Block {
    /// The rank that it sends to.
    pub send: Option<u32>,
    /// The rank that it receives from.
    pub recv: Option<u32>,
    /// Its channel.
    pub channel: u32,
    /// Its steps.
    pub steps: Vec<Instruction>,
    pub(super) line: u32,
}

/// What a rank does.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Chunks of scratch.
    pub scratch: u64,
    /// Its thread blocks.
    pub blocks: Vec<Block>,
}

/// An algorithm read from a file: consistent in itself, whatever it computes.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its name.
    pub name: String,
    /// What it claims to compute.
    pub collective: Collective,
    /// How.
    pub protocol: Protocol,
    /// Number of ranks that it is for.
    pub ranks: u32,
    /// Channels.
    pub channels: u32,
    /// Chunks of the whole buffer.
    pub chunks: u64,
    /// Whether it may be used with input and output in one buffer.
    pub in_place: bool,
    /// Whether it may be used with input and output apart.
    pub out_of_place: bool,
    /// Smallest size that it is for, in bytes, where the file says so.
    pub min_bytes: Option<u64>,
    /// Largest size, likewise.
    pub max_bytes: Option<u64>,
    /// Threads of a block, where the file says so.
    pub threads: Option<u32>,
    /// The file, for messages.
    pub file: String,
    pub(super) line: u32,
    /// By rank.
    pub gpus: Vec<Gpu>,
}
