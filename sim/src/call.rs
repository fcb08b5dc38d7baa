//! One collective call: what is asked, without how; and where its data lies.

use std::sync::Arc;

use thiserror::Error;

use crate::collective::{Collective, DataType, ReduceOp};
use crate::ids::Rank;
use crate::units::Bytes;

/// Largest number of ranks of one call.
pub const MAX_RANKS: u32 = 131_072;

/// Bytes of a line of GPU memory, as caches hold it (CUDA C++ Programming Guide, compute capabilities, global memory).
const MEMORY_LINE: u64 = 128;

/// One collective call: what is asked, without how.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Call {
    /// What.
    pub collective: Collective,
    /// How many ranks take part.
    pub ranks: u32,
    /// Elements: of the buffer of one rank for all-reduce, broadcast, reduce and send/recv; of
    /// the part of one rank for all-gather, reduce-scatter, gather, scatter and all-to-all.
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Reduction.
    pub op: ReduceOp,
    /// Root, for rooted collectives.
    pub root: Rank,
    /// Whether input and output share memory.
    pub in_place: bool,
    /// For all-to-all: `[ranks][ranks]` elements from row to column, in place of `count`.
    pub counts: Option<Arc<[u64]>>,
}

impl Call {
    /// A call of nccl-tests' size column: rounded down to whole elements per rank.
    pub fn of_size(collective: Collective, ranks: u32, size: Bytes, dtype: DataType) -> Self {
        let parts = if collective.size_is_total() { u64::from(ranks.max(1)) } else { 1 };
        Self {
            collective,
            ranks,
            count: size.0 / dtype.size() / parts,
            dtype,
            op: ReduceOp::Sum,
            root: Rank(0),
            in_place: false,
            counts: None,
        }
    }

    /// The call that nccl-tests makes of it: the part of every rank starts on 16 bytes (`src/all_gather.cu` and its
    /// like), but for parts smaller than that, of which it moves nothing.
    #[must_use]
    pub fn aligned(mut self) -> Self {
        let grain = 16 / self.dtype.size();
        if self.collective.size_is_total() && self.count > grain {
            self.count -= self.count % grain;
        }
        self
    }

    /// nccl-tests' size column of this call.
    pub fn size(&self) -> Bytes {
        let parts = if self.collective.size_is_total() { u64::from(self.ranks) } else { 1 };
        match &self.counts {
            Some(counts) => {
                let n = self.ranks as usize;
                let most = (0..n).map(|r| counts[r * n..(r + 1) * n].iter().sum::<u64>()).max();
                Bytes(most.unwrap_or(0).saturating_mul(self.dtype.size()))
            }
            None => Bytes(self.count.saturating_mul(parts).saturating_mul(self.dtype.size())),
        }
    }

    /// Bus bandwidth over algorithm bandwidth: nccl-tests', or with counts the most that a rank sends to others, or receives
    /// from them, over [`Self::size`].
    pub fn bus_factor(&self) -> f64 {
        if self.counts.is_none() {
            return self.collective.bus_factor(self.ranks);
        }
        let others = |rank: u32| (0..self.ranks).filter(move |&other| other != rank);
        let sent = |rank| others(rank).map(|to| self.pair_count(Rank(rank), Rank(to))).sum::<u64>();
        let received = |rank| others(rank).map(|from| self.pair_count(Rank(from), Rank(rank))).sum::<u64>();
        let most = (0..self.ranks).map(|rank| sent(rank).max(received(rank))).max().unwrap_or(0);
        (most * self.dtype.size()) as f64 / self.size().0.max(1) as f64
    }

    /// Elements that rank `from` sends to rank `to` in an all-to-all.
    pub fn pair_count(&self, from: Rank, to: Rank) -> u64 {
        match &self.counts {
            Some(counts) => counts[from.index() * self.ranks as usize + to.index()],
            None => self.count,
        }
    }

    /// Where in its input rank `from` keeps what it sends to `to` in an all-to-all.
    pub fn send_offset(&self, from: Rank, to: Rank) -> u64 {
        match &self.counts {
            Some(_) => (0..to.0).map(|r| self.pair_count(from, Rank(r))).sum(),
            None => self.count * u64::from(to.0),
        }
    }

    /// Where in its output rank `to` keeps what it gets from `from` in an all-to-all.
    pub fn recv_offset(&self, from: Rank, to: Rank) -> u64 {
        match &self.counts {
            Some(_) => (0..from.0).map(|r| self.pair_count(Rank(r), to)).sum(),
            None => self.count * u64::from(from.0),
        }
    }

    /// Share of the parts that ranks put together in one buffer which do not begin on a line of GPU memory, 128
    /// bytes; none where a counts table sets their places.
    pub fn unaligned(&self) -> f64 {
        let gathers = matches!(self.collective, Collective::AllGather | Collective::Gather | Collective::AllToAll);
        let over = self.count.saturating_mul(self.dtype.size()) % MEMORY_LINE;
        if !gathers || self.counts.is_some() || over == 0 {
            return 0.0;
        }
        // Lines are a power of two: as many parts further one begins on a line again as the lowest bit of `over` says.
        let aligned = u64::from(self.ranks).div_ceil(MEMORY_LINE >> over.trailing_zeros());
        1.0 - aligned as f64 / f64::from(self.ranks.max(1))
    }

    /// Elements in the input buffer of a rank.
    pub fn input_len(&self, rank: Rank) -> u64 {
        match self.collective {
            Collective::ReduceScatter => self.count * u64::from(self.ranks),
            Collective::Scatter if rank == self.root => self.count * u64::from(self.ranks),
            Collective::Scatter => 0,
            Collective::AllToAll => (0..self.ranks).map(|to| self.pair_count(rank, Rank(to))).sum(),
            _ => self.count,
        }
    }

    /// Elements in the output buffer of a rank.
    pub fn output_len(&self, rank: Rank) -> u64 {
        match self.collective {
            Collective::AllGather => self.count * u64::from(self.ranks),
            Collective::Gather if rank == self.root => self.count * u64::from(self.ranks),
            Collective::Gather => 0,
            Collective::AllToAll => (0..self.ranks).map(|from| self.pair_count(Rank(from), rank)).sum(),
            _ => self.count,
        }
    }

    /// Where in the shared memory of a rank a buffer starts, when in place.
    ///
    /// All-gather, and gather at the root: a rank's input is its part of the output.
    /// Reduce-scatter, and scatter at the root: its output is its part of the input. Otherwise
    /// both start together.
    pub fn in_place_offset(&self, rank: Rank, buffer: Buffer) -> u64 {
        match (self.collective, buffer) {
            (Collective::AllGather, Buffer::Input) | (Collective::ReduceScatter, Buffer::Output) => {
                self.count * u64::from(rank.0)
            }
            (Collective::Gather, Buffer::Input) | (Collective::Scatter, Buffer::Output) if rank == self.root => {
                self.count * u64::from(rank.0)
            }
            _ => 0,
        }
    }

    /// Whether it has a meaning.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn check(&self) -> Result<(), CallError> {
        if self.ranks == 0 || self.ranks > MAX_RANKS {
            return Err(CallError::Ranks(self.ranks));
        }
        if self.collective.rooted() && self.root.0 >= self.ranks {
            return Err(CallError::Root { root: self.root.0, ranks: self.ranks });
        }
        // 2^50 elements in all keep every offset far from overflow.
        let total = self.count.checked_mul(u64::from(self.ranks)).and_then(|t| t.checked_mul(self.dtype.size()));
        if total.is_none_or(|t| t > 1 << 50) {
            return Err(CallError::TooLarge);
        }
        if self.in_place && !self.collective.in_place() && self.ranks > 1 {
            return Err(CallError::InPlace(self.collective));
        }
        if let Some(counts) = &self.counts {
            if self.collective != Collective::AllToAll || self.in_place {
                return Err(CallError::CountsElsewhere);
            }
            let sum = counts.iter().try_fold(0_u64, |sum, &count| sum.checked_add(count));
            if counts.len() != (self.ranks as usize).pow(2) || sum.is_none_or(|s| s > 1 << 50) {
                return Err(CallError::Counts { rows: counts.len(), ranks: self.ranks });
            }
        }
        Ok(())
    }
}

/// Why a call has no meaning.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum CallError {
    /// No ranks, or too many.
    #[error("a collective needs 1 to {MAX_RANKS} ranks, not {0}")]
    Ranks(u32),
    /// A root outside the ranks.
    #[error("root {root} is not one of the {ranks} ranks 0..{ranks}")]
    Root {
        /// The root given.
        root: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// Buffers beyond 1 PiB.
    #[error("the buffers of all ranks together exceed 1 PiB; check the unit of the size")]
    TooLarge,
    /// A count matrix of the wrong shape or sum.
    #[error("a count matrix needs {ranks} x {ranks} numbers of at most 1 PiB in all, not {rows} numbers")]
    Counts {
        /// How many numbers were given.
        rows: usize,
        /// Number of ranks.
        ranks: u32,
    },
    /// A collective that would overwrite what it has yet to send.
    #[error("{0} has no in-place form: what arrives would overwrite what is still to be sent")]
    InPlace(Collective),
    /// A count matrix where it has no meaning.
    #[error("a count matrix belongs to an out-of-place all_to_all only")]
    CountsElsewhere,
}

/// A buffer of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Buffer {
    /// What the user passes in.
    Input,
    /// What the user gets back; the same memory as the input when in place.
    Output,
    /// Memory of the schedule's own, for what is neither given nor asked for: partial sums.
    /// Holds nothing at the start. Its length is [`Schedule::scratch_len`](crate::schedule::Schedule::scratch_len).
    Scratch,
}
