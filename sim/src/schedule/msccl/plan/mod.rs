//! Execution plans of MSCCL++: an algorithm as its executor runs it, in JSON.
//!
//! A thread block of a plan puts data straight into another GPU's memory, signals, and waits for signals; nothing is staged
//! but where the plan says so. [`Imported::plan`] writes an algorithm so, and [`Plan::check`] runs what was written with
//! symbols: it proves what a plan computes, and that it neither hangs nor touches memory in an undefined order.
//!
//! # Source
//! microsoft/mscclpp `src/executor/execution_plan.cc` (names and meaning of keys), `src/include/execution_kernel.hpp`
//! (what operations do, and which of them threads of a block meet at) and `execution_common.hpp` (limits).

mod check;
mod form;
mod write;

pub use check::Flaw;
pub use form::{
    BufferIds, ChannelIds, Chunks, Connected, Gpu, MAX_OPERATIONS, Name, Operation, Plan, RemoteBuffer, Semaphore,
    ThreadBlock,
};
pub use write::PlanError;
use write::{Landing, written};

use super::Imported;

impl Imported {
    /// The algorithm as a plan that is proved: with data put where it belongs, or staged where that would be a race.
    ///
    /// # Errors
    /// What a plan cannot hold; a flaw of the algorithm.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        let direct = written(self, Landing::Direct)?;
        if direct.check().is_ok() {
            return Ok(direct);
        }
        let staged = written(self, Landing::Staged)?;
        staged.check()?;
        Ok(staged)
    }
}
