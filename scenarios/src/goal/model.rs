//! A schedule as values.

use thiserror::Error;

/// Most operations of all ranks, which Chakra's traces share: there ranks that are alike count once.
pub const OPS_MAX: usize = 1_500_000;
/// Most ranks.
pub const RANKS_MAX: u32 = 65_536;
/// Most dependencies of all ranks; in Chakra's traces, of one file.
pub const DEPENDENCIES_MAX: usize = 8_000_000;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A message leaves.
    Send {
        /// Its size.
        bytes: u64,
        /// Where to.
        to: u32,
        /// It meets a receive with the same tag.
        tag: u32,
    },
    /// A message comes.
    Recv {
        /// Its size.
        bytes: u64,
        /// Where from; any rank where absent.
        from: Option<u32>,
        /// Its tag; any where absent.
        tag: Option<u32>,
    },
    /// The CPU is busy for so many ns.
    Calc(u64),
}

/// An operation of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// What it does.
    pub what: What,
    /// Which CPU of the rank.
    pub cpu: u32,
    /// Which NIC of the rank.
    pub nic: u32,
    /// Operations of the rank, by place, that must be over before it starts.
    pub requires: Vec<u32>,
    /// The same for those that must have started.
    pub irequires: Vec<u32>,
}

impl Operation {
    /// On CPU and NIC 0, after nothing.
    pub fn new(what: What) -> Self {
        Self { what, cpu: 0, nic: 0, requires: Vec::new(), irequires: Vec::new() }
    }
}

/// What all ranks do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Goal {
    /// By rank, in file order.
    pub ranks: Vec<Vec<Operation>>,
}

/// Why a schedule cannot be read or run: what, where and the way out.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GoalError {
    /// A line that is none of the format's.
    #[error("{file}:{line}: {reason}")]
    Line {
        /// The file.
        file: String,
        /// From 1.
        line: u64,
        /// What is wrong, and the way out.
        reason: String,
    },
    /// A schedule that cannot end.
    #[error("{0}")]
    Run(String),
}
