//! What was measured: one row of a benchmark, wherever it came from.

use std::sync::Arc;

use crate::collective::{Algorithm, Buffers, Collective, DataType, Launch, Protocol, ReduceOp};
use crate::units::{Bytes, SimDuration};

/// How GPUs of one host reached each other in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerAccess {
    /// Directly.
    #[default]
    On,
    /// Through host memory.
    Off,
    /// Through the NIC.
    Net,
}

/// Settings under which a row was measured; `None` means NCCL's own choice, or not said.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Settings {
    /// Forced algorithm.
    pub algorithm: Option<Algorithm>,
    /// Forced protocol.
    pub protocol: Option<Protocol>,
    /// The raw `NCCL_ALGO` where it is more than one name.
    pub nccl_algo: Option<String>,
    /// Forced number of channels (minimum and maximum alike).
    pub channels: Option<u32>,
    /// FIFOs.
    pub buffers: Buffers<Option<Bytes>>,
    /// `NCCL_NTHREADS`.
    pub threads: Option<u32>,
    /// How GPUs of one host reach each other.
    pub peer_access: PeerAccess,
    /// Whether NCCL had registered the buffers: see [`crate::predict::Settings::registered`].
    pub registered: bool,
    /// NCCL version.
    pub nccl: Option<String>,
    /// Names of the hosts, where the source gives them: sorted, each once.
    pub host_names: Arc<[String]>,
    /// GPUs, where the source gives them: host and place on its PCIe bus, sorted, each once.
    pub gpus: Arc<[(String, String)]>,
    /// NICs that `NCCL_IB_HCA` names: sorted, each once; none where it excludes some or says nothing.
    pub nics: Arc<[String]>,
}

/// Where a row came from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// File, as the user named it.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
}

/// What NCCL said it ran (`NCCL_DEBUG`): the outcome where [`Settings`] leave the choice to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Choice {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// Number of channels, where said.
    pub channels: Option<u32>,
}

/// The loop of calls that was timed, where only some ranks wait in a call for others (a broadcast).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timing {
    /// Calls, whose time together is divided by their number (nccl-tests' `-n`).
    pub calls: u32,
    /// Whether the time is that of rank 0, as nccl-tests printed it before it had averages over ranks (`-a`, in the
    /// course of 2021), and not until the last rank is done.
    pub of_rank_0: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self { calls: 20, of_rank_0: false }
    }
}

/// One measured time.
#[derive(Clone, PartialEq, Debug)]
pub struct Measurement {
    /// Name of the run it belongs to.
    pub run: String,
    /// What was run.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts, where the source says; NCCL Inspector counts NCCL's nodes, which may be NVLink domains.
    pub hosts: Option<u32>,
    /// How kernels were started, where the source says.
    pub launch: Option<Launch>,
    /// What was timed, where the source says.
    pub timing: Option<Timing>,
    /// Element type, where the source says.
    pub dtype: Option<DataType>,
    /// Reduction, where the source says.
    pub op: Option<ReduceOp>,
    /// Root, where there is one.
    pub root: Option<u32>,
    /// Whether input and output were one buffer.
    pub in_place: bool,
    /// nccl-tests' size column.
    pub size: Bytes,
    /// Time of one operation.
    pub time: SimDuration,
    /// Settings.
    pub settings: Settings,
    /// What NCCL said it chose, where the source says.
    pub chosen: Option<Choice>,
    /// File and line.
    pub origin: Origin,
}

impl Measurement {
    /// Whether algorithm and protocol were both forced by the user.
    pub fn forced(&self) -> bool {
        self.settings.algorithm.is_some() && self.settings.protocol.is_some()
    }

    /// Takes over what it leaves open and another record of the same time says.
    pub fn complete(&mut self, twin: Self) {
        let Self { hosts, launch, timing, dtype, op, root, settings, chosen, .. } = twin;
        self.hosts = self.hosts.or(hosts);
        self.launch = self.launch.or(launch);
        self.timing = self.timing.or(timing);
        self.dtype = self.dtype.or(dtype);
        self.op = self.op.or(op);
        self.root = self.root.or(root);
        self.chosen = self.chosen.or(chosen);
        self.settings.complete(settings);
    }
}

impl Settings {
    /// Takes over what it leaves open and the other says. What has no open form is open where it is the default.
    fn complete(&mut self, other: Self) {
        let Self {
            algorithm,
            protocol,
            nccl_algo,
            channels,
            buffers,
            threads,
            peer_access,
            registered,
            nccl,
            host_names,
            gpus,
            nics,
        } = other;
        self.algorithm = self.algorithm.or(algorithm);
        self.protocol = self.protocol.or(protocol);
        self.nccl_algo = self.nccl_algo.take().or(nccl_algo);
        self.channels = self.channels.or(channels);
        self.buffers = self.buffers.or(buffers);
        self.threads = self.threads.or(threads);
        if self.peer_access == PeerAccess::default() {
            self.peer_access = peer_access;
        }
        self.registered |= registered;
        self.nccl = self.nccl.take().or(nccl);
        fill(&mut self.host_names, host_names);
        fill(&mut self.gpus, gpus);
        fill(&mut self.nics, nics);
    }
}

fn fill<T>(list: &mut Arc<[T]>, other: Arc<[T]>) {
    if list.is_empty() {
        *list = other;
    }
}
