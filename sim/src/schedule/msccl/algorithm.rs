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
pub(super) enum Kind {
    Send,
    Receive,
    ReceiveCopySend,
    ReceiveReduceCopy,
    ReceiveReduceSend,
    ReceiveReduceCopySend,
    Copy,
    Reduce,
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

    pub(super) fn receives(self) -> bool {
        self.name().starts_with('r') && self != Self::Reduce
    }

    pub(super) fn sends(self) -> bool {
        self.name().ends_with('s')
    }

    pub(super) fn reads(self) -> bool {
        !matches!(self, Self::Receive | Self::ReceiveCopySend | Self::Nothing)
    }

    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Send | Self::ReceiveReduceSend | Self::Nothing)
    }
}

/// A chunk of a buffer.
pub(super) type Place = (Buffer, u64);

#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) kind: Kind,
    pub(super) src: Place,
    pub(super) dst: Place,
    /// Chunks in a row.
    pub(super) count: u64,
    /// Block and step that must be over.
    pub(super) after: Option<(usize, usize)>,
    /// Whether others may wait for it.
    pub(super) tells: bool,
    pub(super) line: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) send: Option<u32>,
    pub(super) recv: Option<u32>,
    pub(super) channel: u32,
    pub(super) steps: Vec<Instruction>,
    pub(super) line: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Gpu {
    pub(super) scratch: u64,
    pub(super) blocks: Vec<Block>,
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
    pub(super) gpus: Vec<Gpu>,
}
