//! What is to be run, and by whom.

use std::path::PathBuf;

use collcast_hwbackend::exec::Effort;
use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs;
use serde::Serialize;

use super::sets::Set;
use crate::query::Query;
use crate::watch::Watch;

/// Who runs the calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Schedules on CPU threads: works everywhere, says nothing of a GPU's speed.
    Host,
    /// Schedules on the GPUs of this host, by an interpreter kernel.
    Cuda,
    /// NCCL's own collectives, in processes of their own.
    Nccl,
    /// Schedules on the GPUs of this host, every slice a message of ncclSend and ncclRecv.
    NcclP2p,
    /// Schedules over RDMA verbs, one process a rank.
    Verbs,
}

impl Backend {
    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
            Self::Nccl => "nccl",
            Self::NcclP2p => "nccl-p2p",
            Self::Verbs => "verbs",
        }
    }
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who runs it.
    pub backend: Backend,
    /// The calls, one after another.
    pub queries: Vec<Query>,
    /// Sets of GPUs that run the calls, one after the other: [`Sets::of`](super::Sets::of). The first ranks of this host,
    /// where none are given. The calls have as many ranks as a set has GPUs.
    pub sets: Vec<Set>,
    /// How long and how often.
    pub effort: Effort,
    /// Whether NCCL may use NVLink multicast (NVLS).
    pub nvls: bool,
    /// Variables that NCCL's processes are given, beside those that they inherit; `{rank}` in a value is the rank.
    pub env: Vec<(String, String)>,
    /// The place of this process among those that a launcher started, of [`Backend::Nccl`] and [`Backend::Verbs`]: rank
    /// 0 has the rows.
    pub world: Option<World>,
    /// NICs and queue pairs of [`Backend::Verbs`].
    pub verbs: verbs::Options,
    /// The program that does NCCL's calls in processes of its own: with the argument [`COMMAND`](super::COMMAND) it must
    /// call [`work`](super::work). This program, where none is named.
    pub worker: Option<PathBuf>,
    /// Follows it and may stop it: the outcome then has the rows until there. Lines that NCCL prints are its stages.
    pub watch: Watch,
}

impl Request {
    /// Calls, run as long and as often as is usual.
    pub fn new(backend: Backend, queries: Vec<Query>) -> Self {
        Self {
            backend,
            queries,
            sets: Vec::new(),
            effort: Effort::default(),
            nvls: false,
            env: Vec::new(),
            world: None,
            verbs: verbs::Options::default(),
            worker: None,
            watch: Watch::default(),
        }
    }
}
