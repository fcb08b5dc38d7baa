//! What is asked beside the call: who decides, and how NCCL is run.

use crate::collective::Launch;
use crate::measurement::Timing;
use crate::nccl::{NcclSettings, Transport, Version};

/// Who decides on algorithm or protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Choice<T> {
    /// NCCL, by its cost table.
    Auto,
    /// We, by predicting all and taking the fastest.
    Best,
    /// The user.
    Forced(T),
}

/// The communicator that groups are a part of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Whole {
    /// Its ranks.
    pub ranks: u32,
    /// The hosts that they are on; those of one NVLink domain count as one.
    pub hosts: u32,
}

/// Settings of a prediction beyond the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// How kernels are started.
    pub launch: Launch,
    /// One first call in place of a steady loop.
    pub cold: bool,
    /// The loop, where some ranks are done before others.
    pub timing: Timing,
    /// Channels, exactly; NCCL's number otherwise.
    pub channels: Option<u32>,
    /// NCCL version; that of the machine, or the newest known, otherwise.
    pub version: Option<Version>,
    /// What NCCL's environment says.
    pub nccl: NcclSettings,
    /// How NCCL is told to move data.
    pub transport: Transport,
    /// NCCL has registered the buffers with the peers, who store right into them where it saves a copy: memory of
    /// `ncclMemAlloc` in a CUDA graph (`NCCL_GRAPH_REGISTER`), or of `ncclCommRegister`.
    pub registered: bool,
    /// Blocks of send and receive serve all peers at once, as kernels do that are not NCCL's.
    pub spread: bool,
    /// Groups are the first members of a larger communicator: NCCL chooses and cuts for all of it, and each member does what
    /// it does there.
    pub whole: Option<Whole>,
    /// Fold symmetric lanes; off only to check that folding changes nothing.
    pub fold: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            launch: Launch::Threads,
            cold: false,
            timing: Timing::default(),
            channels: None,
            version: None,
            nccl: NcclSettings::default(),
            transport: Transport::default(),
            registered: false,
            spread: false,
            whole: None,
            fold: true,
        }
    }
}
