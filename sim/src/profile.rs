//! What a machine really does: latencies, efficiencies and rates, each with its origin.
//!
//! A profile is a list of named parameters. [`PARAMETERS`] says what each one means; the
//! built-in profile `prior` gives every one of them a cited value, and a machine's profile
//! replaces those that were measured there. Profiles layer: the later one wins, per parameter.
//! No parameter is indexed by message size, rank count, collective or algorithm.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::collective::{Algorithm, DataType, Launch, Protocol, nearest};
use crate::domain::{Beyond, Reason};
use crate::engine::Access;
use crate::engine::flows::WEIGHT_ONE;
use crate::schedule::Call;
use crate::schedule::plan::{P2P_THREADS, Plan};
use crate::topology::LinkKind;
use crate::units::{Bandwidth, SimDuration};

/// Where a value comes from, the best evidence first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    /// Measured on the machine the profile is for.
    Measured,
    /// Fitted to measurements of such machines, with all others at once.
    Fitted,
    /// One row of a benchmark sweep set it; that row is no evidence for the model any more.
    Anchor,
    /// From a publication, a data sheet or another program's source.
    Cited,
    /// An engineering estimate.
    Assumed,
}

/// A parameter's value and where it is from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// The value, in the unit of its [`ParameterSpec`].
    pub value: f64,
    /// Kind of origin.
    pub origin: OriginKind,
    /// File, row, paper or data sheet.
    pub source: String,
    /// 90% interval of a fitted value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

/// How far measurements were from predictions that are bound alike: rows that the fit had not seen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// See [`Spread::class`].
    pub class: String,
    /// Lower end of the 90% interval of measured over predicted.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Rows behind it.
    pub rows: usize,
}

impl Spread {
    /// What predictions of one class have in common: the launch mode where that is the bound, else
    /// protocol and bound.
    pub fn class(protocol: Protocol, launch: Launch, bound: &str) -> String {
        if bound == "launch rate" { format!("{bound} {launch}") } else { format!("{bound} {protocol}") }
    }
}

/// A file that a profile was fitted to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// Its path, as it was named.
    pub file: String,
    /// Hash of its content, as readers of measurements report it.
    pub hash: String,
    /// Rows that were used.
    pub rows: usize,
}

/// A measured row that set a parameter: left out when predictions are judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// Name of the run.
    pub run: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Both halves of nccl-tests' row are left out.
    #[serde(default)]
    pub parameter: String,
}

/// A profile.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `collcast/profile/1`.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Machine, driver, NCCL version and date of the evidence.
    pub evidence: String,
    /// Built-in profile that it lies over and was fitted with, beside `prior`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// Relative half-width of the 90% interval of a prediction inside the domain.
    pub uncertainty: f64,
    /// GPU models that it was made on.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Launch modes that it was made with; others are extrapolated.
    #[serde(default)]
    pub launches: Vec<Launch>,
    /// Whether it was made across hosts too.
    #[serde(default)]
    pub across_hosts: bool,
    /// Algorithms with the protocols that it was made with, such as `tree/ll128`; others are extrapolated, where it says
    /// any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// Fewest and most ranks that it was made with; others are extrapolated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<[u32; 2]>,
    /// Rows that set parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchors: Vec<Anchor>,
    /// Files that it was fitted to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataFile>,
    /// Intervals of predictions inside its domain, by what bounds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spreads: Vec<Spread>,
    /// The parameters, by name.
    pub parameters: BTreeMap<String, Parameter>,
}

/// What a parameter means.
#[derive(Clone, Copy, Debug)]
pub struct ParameterSpec {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What it is.
    pub meaning: &'static str,
}

macro_rules! parameters {
    ($($name:literal $unit:literal $meaning:literal),+ $(,)?) => {
        /// All parameters there are.
        pub const PARAMETERS: &[ParameterSpec] =
            &[$(ParameterSpec { name: $name, unit: $unit, meaning: $meaning }),+];
    };
}

parameters! {
    "efficiency.nvlink" "of nominal" "payload that stores of SMs get through NVLink at best",
    "efficiency.nvlink_copy_engine" "of nominal" "the same by copy engines",
    "efficiency.nvlink_multimem" "of nominal" "the same by multicast stores and by loads that NVSwitch reduces",
    "turns.ll" "of a link" "what stores of LL get of NVLink where a GPU sends to several peers through an NVSwitch",
    "turns.ll128" "of a link" "the same with LL128",
    "turns.simple" "of a link" "the same with Simple",
    "efficiency.c2c" "of nominal" "payload through NVLink-C2C",
    "efficiency.pcie" "of nominal" "payload through PCIe, of the rate NCCL assigns to it",
    "efficiency.cpu_interconnect" "of nominal" "payload between CPU sockets, of the rate NCCL assigns to it",
    "efficiency.infiniband" "of nominal" "payload through an InfiniBand port",
    "efficiency.sharp" "of nominal" "payload through a port whose switch reduces",
    "efficiency.roce" "of nominal" "payload through a RoCE or Slingshot port",
    "efficiency.efa" "of nominal" "payload through an EFA port",
    "efficiency.ethernet" "of nominal" "payload of TCP through an Ethernet port",
    "latency.nvlink.ll" "us" "from a line's store to its sight by the peer, over NVLink",
    "latency.nvlink.ll128" "us" "the same for a line of LL128",
    "latency.nvlink.simple" "us" "from the fence after a slice to the peer's sight of the counter, over NVLink",
    "latency.nvlink.multimem" "us" "as of Simple, through an NVSwitch that reduces or multicasts",
    "latency.pcie.ll" "us" "as over NVLink, through PCIe",
    "latency.pcie.ll128" "us" "as over NVLink, through PCIe",
    "latency.pcie.simple" "us" "as over NVLink, through PCIe",
    "latency.network.ll" "us" "from the proxy's post to the peer's sight, per slice",
    "latency.network.ll128" "us" "from the proxy's post to the peer's sight, per slice",
    "latency.network.simple" "us" "from the proxy's post to the peer's sight, per slice",
    "latency.network.control" "us" "of a word between proxies: an empty place, the end of a transfer",
    "latency.network_efa.control" "us" "the same through EFA",
    "latency.network_efa" "us" "the same through EFA, whatever the protocol",
    "latency.network_sharp" "us" "from the last proxy's post to the sight of the result, per slice that switches reduce",
    "latency.network_tcp" "us" "what TCP adds to a slice's network latency",
    "network.flush" "us" "of the read that flushes data which RDMA wrote into the memory of a GPU before Hopper, with Simple",
    "network.proxy" "us" "work of a rank's proxy thread to post a slice with RDMA",
    "proxy.lines" "GB/s" "lines of LL that a proxy thread checks in host memory before it sends them, flags included",
    "proxy.lines_amd" "GB/s" "the same on CPUs of AMD",
    "tcp.message" "us" "work of a proxy thread on a slice that it sends or receives through sockets",
    "tcp.thread" "GB/s" "what one thread copies into or out of sockets",
    "host.memory" "GB/s" "what a CPU socket's memory reads and writes together",
    "sync.simple" "us" "a block's own synchronisation before a slice moves: barriers, fence, counter",
    "both.simple" "us" "what of a block's synchronisation comes on top where a slice is kept as well as sent: two stores to be through",
    "after.ll" "us" "a block's own bookkeeping after a slice of LL has left, before the next",
    "after.ll128" "us" "the same with LL128",
    "block.ll" "GB/s" "what 512 threads of a block send from memory with LL",
    "block.ll128" "GB/s" "what 640 threads of a block send from memory with LL128",
    "block.simple" "GB/s" "what 512 threads of a block send from memory with Simple",
    "store.ll" "of a send" "what of a send the store to the peer takes with LL, whatever the threads; the rest is a load from memory, of which each thread has as much on its way",
    "store.ll128" "of a send" "the same with LL128",
    "store.simple" "of a send" "the same with Simple",
    "fetch.ll" "of a send" "loads of what was received with LL, of all threads",
    "fetch.ll128" "of a send" "the same with LL128",
    "fetch.simple" "of a send" "the same with Simple",
    "keep.ll" "of a send" "instructions to store what is kept in memory with LL",
    "keep.ll128" "of a send" "the same with LL128",
    "keep.simple" "of a send" "the same with Simple",
    "copy.simple" "of a send" "instructions of a copy inside one memory with Simple: what a switch is to combine, or has multicast",
    "reduce.fp16" "copies" "instruction weight of combining 16-bit floats beyond fp32",
    "reduce.int8" "copies" "instruction weight of combining 8-bit integers beyond fp32",
    "kernel.ll" "us" "start and end of a kernel, back to back on one stream",
    "kernel.ll128" "us" "start and end of a kernel, back to back on one stream",
    "kernel.simple" "us" "start and end of a kernel, back to back on one stream",
    "kernel_warp.ll" "us" "the same, more for every warp of a block",
    "kernel_warp.ll128" "us" "the same, more for every warp of a block",
    "kernel_warp.simple" "us" "the same, more for every warp of a block",
    "kernel.block" "us" "from the start of a kernel's block to that of the next: channels do not run in step",
    "kernel.fetch" "us" "one way over PCIe where blocks fetch what they are to do from host memory (NCCL 2.8)",
    "launch.single_thread" "us" "issue interval of one thread, per GPU it serves",
    "launch.threads" "us" "issue interval of a thread per GPU",
    "launch.processes" "us" "issue interval of a process per GPU",
    "launch.graph" "us" "issue interval inside a CUDA graph",
    "launch.gap" "us" "between kernels that a stream is given one by one, above that between those of a graph",
    "efficiency.memory" "of nominal" "what kernels that only copy read and write of a GPU's memory together",
    "interference.memory" "bytes" "memory traffic that a byte sent by blocks costs the kernels beside them",
    "interference.blocks" "times" "how much longer a block of a communication kernel takes for a byte beside kernels that keep memory busy",
    "gemm.memory" "of nominal" "part of the memory system that a large matrix product keeps busy, by what it slows blocks beside it",
    "power.speed" "exponent" "how the speed of a product follows its power where the power limit sets the clock",
    "power.traffic" "of the limit" "power that a communication kernel takes from products, of what they have alone, for each TB/s that it sends",
    "efficiency.strided_copy" "of nominal" "of what plain copies get, what frameworks get that copy many tensors into or out of one buffer",
    "copy_engine.start" "us" "of a copy by a copy engine, from its turn to its first byte",
    "stream.event" "us" "from the end of an operation to the start of one of another stream that waits for it",
    "launch.kernel" "us" "work of the host thread of a framework to launch one kernel",
    "launch.collective" "us" "work of the host thread of a framework to launch one collective",
    "launch.first" "us" "from the call to the kernel's start when nothing is queued",
}

/// A profile that cannot be used.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum ProfileError {
    /// Not TOML, or not of the right form.
    #[error("{file}: not a profile: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A schema of another kind or version.
    #[error("{file}: schema is `{found}`, expected `collcast/profile/1`")]
    Schema {
        /// The file.
        file: String,
        /// What it says.
        found: String,
    },
    /// A parameter that does not exist.
    #[error("{file}: there is no parameter `{name}`{}", suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default())]
    UnknownParameter {
        /// The file.
        file: String,
        /// The name.
        name: String,
        /// A name near to it.
        suggestion: Option<String>,
    },
    /// A value outside physics.
    #[error("{file}: `{name}` is {value} {unit}, expected {expected}")]
    BadValue {
        /// The file.
        file: String,
        /// The parameter.
        name: String,
        /// Its value.
        value: f64,
        /// Its unit.
        unit: &'static str,
        /// What would do.
        expected: &'static str,
    },
    /// No built-in profile of this name.
    #[error("there is no built-in profile `{name}`{}; known: {known}", suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default())]
    Unknown {
        /// The name.
        name: String,
        /// A name near to it.
        suggestion: Option<String>,
        /// All of them.
        known: String,
    },
}

/// Threads of a block that `block.*` and the weights are of: most that NCCL gives it.
fn all_threads(protocol: Protocol) -> f64 {
    if protocol == Protocol::Ll128 { 640.0 } else { 512.0 }
}

fn weight(value: f64) -> u64 {
    (value * WEIGHT_ONE as f64) as u64
}

const BUILTIN: &[(&str, &str)] = &[
    ("prior", include_str!("../profiles/prior.toml")),
    ("h200-nvswitch", include_str!("../profiles/h200-nvswitch.toml")),
    ("a100-nvswitch", include_str!("../profiles/a100-nvswitch.toml")),
    ("b200-nvswitch", include_str!("../profiles/b200-nvswitch.toml")),
    ("v100-nvlink", include_str!("../profiles/v100-nvlink.toml")),
    ("tcp-loopback", include_str!("../profiles/tcp-loopback.toml")),
    ("a100-efa-published", include_str!("../profiles/a100-efa-published.toml")),
    ("a100-ib-published", include_str!("../profiles/a100-ib-published.toml")),
    ("hopper-ib-published", include_str!("../profiles/hopper-ib-published.toml")),
    ("hopper-efa-published", include_str!("../profiles/hopper-efa-published.toml")),
    ("b200-ib-published", include_str!("../profiles/b200-ib-published.toml")),
    ("gb200-published", include_str!("../profiles/gb200-published.toml")),
    ("slingshot-published", include_str!("../profiles/slingshot-published.toml")),
];

impl Profile {
    /// Names of the built-in profiles.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// The same, with the one first that is likely meant by `name`.
    pub fn builtin_names_near(name: &str) -> Vec<&'static str> {
        let near = nearest(name, Self::builtin_names());
        let mut names: Vec<_> = Self::builtin_names().collect();
        names.sort_by_key(|&known| near != Some(known));
        names
    }

    /// The text of a built-in profile, whatever the case of its name.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, text)| *text)
    }

    /// A built-in profile, over the cited values of `prior`.
    ///
    /// # Errors
    /// An unknown name.
    pub fn builtin(name: &str) -> Result<Self, ProfileError> {
        let prior = Self::parse(BUILTIN[0].1, "prior")?;
        Ok(prior.layered(Self::stacked(Self::known_text(name)?, name)?))
    }

    /// Reads a profile from text as [`Profile::parse`] does, with the one that it lies [over](Self::over).
    ///
    /// # Errors
    /// As of `parse`; an unknown name below it.
    pub fn stacked(text: &str, file: &str) -> Result<Self, ProfileError> {
        let profile = Self::parse(text, file)?;
        match &profile.over {
            Some(below) => Ok(Self::stacked(Self::known_text(below)?, below)?.layered(profile)),
            None => Ok(profile),
        }
    }

    fn known_text(name: &str) -> Result<&'static str, ProfileError> {
        Self::builtin_text(name).ok_or_else(|| ProfileError::Unknown {
            name: name.to_owned(),
            suggestion: nearest(name, Self::builtin_names()).map(str::to_owned),
            known: Self::builtin_names_near(name).join(" "),
        })
    }

    /// Reads one profile from text; `file` is for messages.
    ///
    /// # Errors
    /// A syntax error, a wrong schema, an unknown parameter, or a value outside physics.
    pub fn parse(text: &str, file: &str) -> Result<Self, ProfileError> {
        let file = file.to_owned();
        let profile: Self = toml::from_str(text)
            .map_err(|e| ProfileError::Syntax { file: file.clone(), message: e.to_string().trim().to_owned() })?;
        if profile.schema != "collcast/profile/1" {
            return Err(ProfileError::Schema { file, found: profile.schema });
        }
        for (name, parameter) in &profile.parameters {
            let Some(spec) = PARAMETERS.iter().find(|p| p.name == name) else {
                let suggestion = nearest(name, PARAMETERS.iter().map(|p| p.name)).map(str::to_owned);
                return Err(ProfileError::UnknownParameter { file, name: name.clone(), suggestion });
            };
            let value = parameter.value;
            let (good, expected) = match spec.unit {
                "of nominal" => ((1e-3..=1.0).contains(&value), "10^-3 or more and at most 1"),
                "GB/s" => ((1e-3..1e6).contains(&value), "10^-3 or more and below 10^6"),
                "us" => ((0.0..1e6).contains(&value), "0 or more and below 10^6"),
                _ => ((0.0..100.0).contains(&value), "0 or more and below 100"),
            };
            let around = parameter.interval.is_none_or(|[low, high]| low <= value && value <= high);
            let expected = if good { "a value inside its `interval`" } else { expected };
            if !good || !around {
                return Err(ProfileError::BadValue { file, name: name.clone(), value, unit: spec.unit, expected });
            }
        }
        if !(0.0..10.0).contains(&profile.uncertainty) {
            return Err(ProfileError::BadValue {
                file,
                name: "uncertainty".to_owned(),
                value: profile.uncertainty,
                unit: "relative",
                expected: "0 or more and below 10",
            });
        }
        Ok(profile)
    }

    /// This profile with another one over it: the later wins per parameter.
    #[must_use]
    pub fn layered(mut self, over: Self) -> Self {
        self.parameters.extend(over.parameters);
        self.anchors.extend(over.anchors);
        self.data.extend(over.data);
        Self { parameters: self.parameters, anchors: self.anchors, data: self.data, ..over }
    }

    /// A parameter's value. Every name used here exists in `prior`, which a test checks.
    fn value(&self, name: &str) -> f64 {
        self.parameters.get(name).map_or(0.0, |p| p.value)
    }

    fn time(&self, name: &str) -> SimDuration {
        SimDuration::from_us(self.value(name))
    }

    /// Share of a link's nominal rate that payload gets.
    pub fn efficiency(&self, kind: LinkKind) -> f64 {
        self.value(match kind {
            LinkKind::Nvlink => "efficiency.nvlink",
            LinkKind::C2c => "efficiency.c2c",
            LinkKind::Pcie => "efficiency.pcie",
            LinkKind::CpuInterconnect => "efficiency.cpu_interconnect",
            LinkKind::Infiniband => "efficiency.infiniband",
            LinkKind::Roce | LinkKind::Slingshot => "efficiency.roce",
            LinkKind::Efa => "efficiency.efa",
            LinkKind::Ethernet => "efficiency.ethernet",
        })
        .clamp(1e-3, 1.0)
    }

    /// What blocks of a GPU that sends to several peers get of its NVLink: stores that wait for one hold up others.
    pub fn turns(&self, protocol: Protocol) -> f64 {
        let name = match protocol {
            Protocol::Ll => "turns.ll",
            Protocol::Ll128 => "turns.ll128",
            Protocol::Simple => "turns.simple",
        };
        self.value(name).clamp(0.1, 1.0)
    }

    /// Share of a link's nominal rate that payload gets which NVSwitch reduces or multicasts.
    pub fn efficiency_multimem(&self) -> f64 {
        self.value("efficiency.nvlink_multimem").clamp(1e-3, 1.0)
    }

    /// Share of a port's nominal rate that payload gets which switches of the network reduce.
    pub fn efficiency_sharp(&self) -> f64 {
        self.value("efficiency.sharp").clamp(1e-3, 1.0)
    }

    /// Latency of a connection through an NVSwitch that reduces or multicasts: that of its counter, which says no
    /// more than those of other connections, and what is left of the whole: the round trip of the data, for which
    /// the warps wait that load a sum, or that fence a multicast.
    pub fn latency_multimem(&self) -> (SimDuration, SimDuration) {
        let (whole, counter) = (self.time("latency.nvlink.multimem"), self.time("latency.nvlink.simple"));
        let counter = counter.min(whole);
        (counter, SimDuration(whole.0 - counter.0))
    }

    /// Latency of a connection through switches of the network that reduce.
    pub fn latency_sharp(&self) -> SimDuration {
        self.time("latency.network_sharp")
    }

    /// Whether all constants of reduction in switches were measured: in NVSwitch, in the network.
    pub fn switches_measured(&self) -> (bool, bool) {
        let measured = |name: &str| self.parameters.get(name).is_some_and(|p| p.origin <= OriginKind::Anchor);
        let both = |a, b| measured(a) && measured(b);
        (
            both("efficiency.nvlink_multimem", "latency.nvlink.multimem"),
            both("efficiency.sharp", "latency.network_sharp"),
        )
    }

    /// Latency of a connection whose worst part is `reach`.
    pub fn latency(&self, reach: Reach, protocol: Protocol) -> SimDuration {
        let tcp = if reach == Reach::Tcp { self.time("latency.network_tcp") } else { SimDuration::ZERO };
        self.time(match (reach, protocol) {
            (Reach::Nvlink, Protocol::Ll) => "latency.nvlink.ll",
            (Reach::Nvlink, Protocol::Ll128) => "latency.nvlink.ll128",
            (Reach::Nvlink, Protocol::Simple) => "latency.nvlink.simple",
            (Reach::Pcie, Protocol::Ll) => "latency.pcie.ll",
            (Reach::Pcie, Protocol::Ll128) => "latency.pcie.ll128",
            (Reach::Pcie, Protocol::Simple) => "latency.pcie.simple",
            (Reach::Efa, _) => "latency.network_efa",
            (_, Protocol::Ll) => "latency.network.ll",
            (_, Protocol::Ll128) => "latency.network.ll128",
            (_, Protocol::Simple) => "latency.network.simple",
        }) + tcp
    }

    /// From one end of a network connection to the other without data: that a place is free, or that
    /// a transfer has ended. Sockets take data into the kernel's buffers at once, and ask for it there.
    pub fn control(&self, reach: Reach) -> SimDuration {
        match reach {
            Reach::Tcp => SimDuration::ZERO,
            Reach::Efa => self.time("latency.network_efa.control"),
            _ => self.time("latency.network.control"),
        }
    }

    /// A block's own synchronisation before a slice moves. Line-flagged protocols have none.
    pub fn sync(&self, protocol: Protocol) -> SimDuration {
        if protocol == Protocol::Simple { self.time("sync.simple") } else { SimDuration::ZERO }
    }

    /// What is added to [`Self::sync`] where a slice is kept as well as sent.
    pub fn both(&self, protocol: Protocol) -> SimDuration {
        if protocol == Protocol::Simple { self.time("both.simple") } else { SimDuration::ZERO }
    }

    /// A block's own bookkeeping after a slice has left: with lines, barriers of its warps before it says that a
    /// place is free and before it takes the next one (NCCL 2.30 `src/device/prims_ll.h`). With Simple it is part of
    /// the next slice's synchronisation.
    pub fn after(&self, protocol: Protocol) -> SimDuration {
        match protocol {
            Protocol::Ll => self.time("after.ll"),
            Protocol::Ll128 => self.time("after.ll128"),
            Protocol::Simple => SimDuration::ZERO,
        }
    }

    /// What all threads of a block send from memory.
    pub fn block_rate(&self, protocol: Protocol) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(match protocol {
            Protocol::Ll => "block.ll",
            Protocol::Ll128 => "block.ll128",
            Protocol::Simple => "block.simple",
        }))
    }

    /// Instruction weights of what `threads` threads of a block access, in sends of all its threads. A load takes
    /// its latency, and every thread has as many bytes on their way; stores go at the rate of the block.
    pub fn access(&self, protocol: Protocol, threads: u32) -> Access {
        let [store, fetch, keep] = match protocol {
            Protocol::Ll => ["store.ll", "fetch.ll", "keep.ll"],
            Protocol::Ll128 => ["store.ll128", "fetch.ll128", "keep.ll128"],
            Protocol::Simple => ["store.simple", "fetch.simple", "keep.simple"],
        };
        let of = |name| self.value(name).clamp(0.0, 4.0);
        let load = (1.0 - of(store)).max(0.0);
        let loads = |value| weight(value * all_threads(protocol) / f64::from(threads.max(1)));
        Access { load: loads(load), fetch: loads(of(fetch)), store: weight(of(store)), keep: weight(of(keep)) }
    }

    /// Instruction weight of loading what was received where it waits in host memory, in a lane of that rate: a thread
    /// has 4 loads of 16 bytes on their way (NCCL 2.8.4 `COLL_UNROLL`), which take PCIe there and back.
    pub fn fetch_from_host(&self, rate: Bandwidth, threads: u32) -> u64 {
        let there_and_back = self.latency(Reach::Pcie, Protocol::Ll).times(2);
        let taken = rate.bytes_in(there_and_back).0;
        taken.saturating_mul(WEIGHT_ONE) / u64::from(64 * threads.max(1))
    }

    /// Instruction weights of what `threads` threads access in a copy inside one memory with Simple: its store is
    /// that of what is kept.
    pub fn copy(&self, threads: u32) -> Access {
        let half = self.value("copy.simple") / 2.0;
        let load = weight(half * all_threads(Protocol::Simple) / f64::from(threads.max(1)));
        Access { load, fetch: load, store: weight(half), keep: weight(half) }
    }

    /// Instruction weight of combining beyond that of fp32, in copies.
    pub fn reduce_weight(&self, dtype: DataType) -> f64 {
        match dtype {
            DataType::Float16 | DataType::Bfloat16 => self.value("reduce.fp16"),
            DataType::Int8 | DataType::Uint8 => self.value("reduce.int8"),
            _ => 0.0,
        }
    }

    /// Start and end of the kernel of a call, back to back on one stream. NCCL compiles a kernel for LL and one
    /// for sends and receives; the other protocols of collectives are functions that the kernel of LL calls
    /// through a table, which takes longer with every warp (NCCL 2.28 `src/device/generate.py`, `common.h`).
    pub fn kernel(&self, plan: &Plan) -> SimDuration {
        let own = plan.algorithm == Algorithm::Direct;
        let (protocol, threads) = if own { (Protocol::Ll, P2P_THREADS) } else { (plan.protocol, plan.threads) };
        let (alone, warp) = match protocol {
            Protocol::Ll => ("kernel.ll", "kernel_warp.ll"),
            Protocol::Ll128 => ("kernel.ll128", "kernel_warp.ll128"),
            Protocol::Simple => ("kernel.simple", "kernel_warp.simple"),
        };
        self.time(alone) + self.time(warp).times(u64::from(threads / 32))
    }

    /// From the start of a kernel to that of its block `index`.
    pub fn block_start(&self, index: u32) -> SimDuration {
        self.time("kernel.block").times(index.into())
    }

    /// From the start of a kernel to that of its block `index`, where all but the first fetch their work from host
    /// memory: what to do, then whether to go on (`load_coll` in NCCL 2.8's `src/collectives/device/common.h`), so two
    /// reads in a row, each there and back over PCIe; blocks are served one after another.
    pub fn block_fetch(&self, index: u32) -> SimDuration {
        let there_and_back = self.time("kernel.fetch").times(2);
        let next = self.time("kernel.fetch").times(index.saturating_sub(1).into());
        if index == 0 { SimDuration::ZERO } else { there_and_back + there_and_back + next }
    }

    /// The parameter that holds a launch mode's issue interval.
    pub fn launch_parameter(launch: Launch) -> &'static str {
        match launch {
            Launch::SingleThread => "launch.single_thread",
            Launch::Threads => "launch.threads",
            Launch::Processes => "launch.processes",
            Launch::Graph => "launch.graph",
        }
    }

    /// What passes between two kernels back to back, above what passes between those of a CUDA graph.
    pub fn gap(&self, launch: Launch) -> SimDuration {
        if launch == Launch::Graph { SimDuration::ZERO } else { self.time("launch.gap") }
    }

    /// How often the host can issue one operation to `gpus` GPUs of a host.
    pub fn issue_interval(&self, launch: Launch, gpus: u32) -> SimDuration {
        let gpus = if launch == Launch::SingleThread { gpus } else { 1 };
        self.time(Self::launch_parameter(launch)).times(u64::from(gpus))
    }

    /// The 90% interval of a prediction, in parts of its time: what unseen measurements of its class
    /// showed, or the profile's general uncertainty, wider outside its domain.
    pub fn interval(&self, class: &str, extrapolated: bool) -> (f64, f64) {
        let known = self.spreads.iter().find(|s| s.class == class).filter(|_| !extrapolated);
        let width = self.uncertainty * if extrapolated { 1.5 } else { 1.0 };
        known.map_or((1.0 / (1.0 + width), 1.0 + width), |s| (s.low, s.high))
    }

    /// Says that it was made with these calls.
    pub fn set_domain<'c>(&mut self, calls: impl Iterator<Item = (Algorithm, Protocol, &'c Call)>) {
        let mut choices = BTreeSet::new();
        self.ranks = None;
        for (algorithm, protocol, call) in calls {
            choices.insert(format!("{algorithm}/{protocol}"));
            let [fewest, most] = self.ranks.unwrap_or([call.ranks; 2]);
            self.ranks = Some([fewest.min(call.ranks), most.max(call.ranks)]);
        }
        self.choices = choices.into_iter().collect();
    }

    /// Whether no measurement is behind it: its values are cited.
    pub fn is_cited(&self) -> bool {
        self.gpus.is_empty() && self.launches.is_empty()
    }

    /// How a call goes beyond the choices and ranks that it was made with, where it says with which. Sizes do not count:
    /// small messages all go in one slice, and what bounds large ones bounds larger ones too.
    pub fn beyond(&self, algorithm: Algorithm, protocol: Protocol, call: &Call) -> Beyond {
        let mut beyond = Beyond::default();
        if !self.choices.is_empty() && !self.choices.contains(&format!("{algorithm}/{protocol}")) {
            beyond.insert(Reason::Choice(algorithm, protocol));
        }
        if let Some(seen) = self.ranks.filter(|[fewest, most]| !(fewest..=most).contains(&&call.ranks)) {
            beyond.insert(Reason::Ranks { seen, here: call.ranks });
        }
        beyond
    }

    /// Of some files' hashes, those that it was fitted to.
    pub fn fitted_to<'h>(&self, hashes: impl Iterator<Item = &'h str>) -> usize {
        hashes.filter(|hash| self.data.iter().any(|d| d.hash == *hash)).count()
    }

    /// From the call to the kernel's start when nothing is queued.
    pub fn first_launch(&self) -> SimDuration {
        self.time("launch.first")
    }

    /// Memory rate that a kernel gets which only copies: reads and writes together.
    pub fn memory(&self, nominal: Bandwidth) -> f64 {
        nominal.gb_per_s() * 1e9 * self.value("efficiency.memory").clamp(1e-3, 1.0)
    }

    /// Memory traffic per byte that blocks send.
    pub fn traffic_per_byte(&self) -> f64 {
        self.value("interference.memory")
    }

    /// What blocks of a communication kernel keep of their rate beside a kernel that keeps a part of the memory
    /// system busy: they take longer for a byte in proportion to that part.
    pub fn block_speed(&self, memory_share: f64) -> f64 {
        1.0 / (1.0 + self.value("interference.blocks") * memory_share)
    }

    /// Part of the memory system that a large matrix product keeps busy.
    pub fn gemm_memory(&self) -> f64 {
        self.value("gemm.memory")
    }

    /// How much of its speed a matrix product keeps, at the power limit, beside a kernel that holds SMs and sends so
    /// many bytes a second: it has more rounds of tiles to do than before, with fewer of them at once, which leaves
    /// each a higher clock; and the kernel takes power.
    pub fn product_speed(&self, (before, after): (u32, u32), sent: f64) -> f64 {
        let speed = self.value("power.speed");
        let rounds = f64::from(before) / f64::from(after.max(before).max(1));
        let taken = self.value("power.traffic") * sent / 1e12;
        rounds.powf(1.0 - speed) * (1.0 - taken).clamp(0.1, 1.0).powf(speed)
    }

    /// Of what plain copies get, what frameworks get that copy many tensors into or out of one buffer.
    pub fn strided_copy(&self) -> f64 {
        self.value("efficiency.strided_copy").clamp(1e-3, 1.0)
    }

    /// What copy engines get through NVLink, over what blocks get.
    pub fn copy_engine_over_blocks(&self) -> f64 {
        self.value("efficiency.nvlink_copy_engine") / self.value("efficiency.nvlink").max(1e-3)
    }

    /// From a copy engine's turn to its first byte.
    pub fn copy_start(&self) -> SimDuration {
        self.time("copy_engine.start")
    }

    /// From the end of an operation to the start of one of another stream that waits for it.
    pub fn stream_event(&self) -> SimDuration {
        self.time("stream.event")
    }

    /// Work of the host thread of a framework to launch one kernel.
    pub fn launch_kernel(&self) -> SimDuration {
        self.time("launch.kernel")
    }

    /// Work of the host thread of a framework to launch one collective.
    pub fn launch_collective(&self) -> SimDuration {
        self.time("launch.collective")
    }

    /// Of the read that flushes data of Simple which RDMA wrote into GPU memory.
    pub fn flush(&self) -> SimDuration {
        self.time("network.flush")
    }

    /// Work of a rank's proxy thread to post a slice with RDMA.
    pub fn proxy(&self) -> SimDuration {
        self.time("network.proxy")
    }

    /// Lines of LL that a proxy thread checks in host memory before it sends them.
    pub fn lines(&self, amd: bool) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(if amd { "proxy.lines_amd" } else { "proxy.lines" }))
    }

    /// Work of a proxy thread on a slice at each end of a connection over sockets.
    pub fn socket_message(&self) -> SimDuration {
        self.time("tcp.message")
    }

    /// What one host thread copies into or out of sockets.
    pub fn proxy_thread(&self) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value("tcp.thread"))
    }

    /// What the memory of a CPU socket reads and writes together.
    pub fn host_memory(&self) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value("host.memory"))
    }
}

/// The worst part of a route, which sets its latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Reach {
    /// NVLink only.
    Nvlink,
    /// Through PCIe or the CPU.
    Pcie,
    /// Through the network, with RDMA.
    Network,
    /// Through the network, with EFA's reliable datagrams, which its provider orders in software.
    Efa,
    /// Through the network, with TCP.
    Tcp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;
    use crate::schedule::Call;
    use crate::schedule::plan::Limits;
    use crate::units::Bytes;

    /// Goal: no parameter without a cited value, none without a source, at most 40 that data of
    /// one machine set.
    #[test]
    fn the_prior_gives_every_parameter_a_source() {
        let prior = Profile::builtin("prior").unwrap();
        for spec in PARAMETERS {
            let parameter = prior.parameters.get(spec.name).unwrap_or_else(|| panic!("{} is missing", spec.name));
            assert!(parameter.source.len() > 10, "{}", spec.name);
        }
        for name in Profile::builtin_names() {
            let profile = Profile::builtin(name).unwrap();
            let is_fitted = |p: &&Parameter| matches!(p.origin, OriginKind::Fitted | OriginKind::Anchor);
            let fitted = profile.parameters.values().filter(is_fitted).count();
            assert!(fitted <= 40, "{name}: {fitted}");
        }
    }

    /// Goal: what a profile scales is the prior's value of today, by the ratio that it names: sources of the form
    /// "N of the prior, ...: A to B".
    #[test]
    fn scaled_values_follow_the_prior() {
        let prior = Profile::builtin("prior").unwrap();
        let mut scaled = 0;
        for name in Profile::builtin_names() {
            let own: Profile = toml::from_str(Profile::builtin_text(name).unwrap()).unwrap();
            for (key, parameter) in &own.parameters {
                let Some((of, how)) = parameter.source.split_once(" of the prior") else { continue };
                let (of, ratio) = (of.parse::<f64>().unwrap(), how.rsplit_once([':', ',']).unwrap().1);
                let ratio: Vec<f64> = ratio.split_whitespace().filter_map(|word| word.parse().ok()).collect();
                // Clocks are named from the prior's GPU to this one: more time; rates the other way round.
                let factor = ratio[0] / ratio[1];
                assert_eq!(of, prior.parameters[key].value, "{name}: {key}");
                assert!((parameter.value / (of * factor) - 1.0).abs() < 0.03, "{name}: {key} {}", parameter.value);
                scaled += 1;
            }
        }
        assert_eq!(scaled, 21);
    }

    /// Goal: sends and receives have a kernel of their own, which costs what that of LL does with 640 threads,
    /// whatever the protocol; the function of another protocol costs more.
    #[test]
    fn sends_and_receives_need_no_table_of_functions() {
        let prior = Profile::builtin("prior").unwrap();
        let call = |collective| Call::of_size(collective, 2, Bytes(1 << 20), DataType::Float32);
        let plan = |collective, algorithm, protocol| {
            Plan::new(&call(collective), algorithm, protocol, &Limits { channels: 1, ..Limits::default() })
        };
        let [ll, sends, simple] = [
            plan(Collective::AllReduce, Algorithm::Tree, Protocol::Ll),
            plan(Collective::SendRecv, Algorithm::Direct, Protocol::Simple),
            plan(Collective::AllReduce, Algorithm::Tree, Protocol::Simple),
        ]
        .map(|plan| prior.kernel(&plan));
        assert!(ll == sends && simple.as_us() > 1.5 * ll.as_us(), "{ll} {sends} {simple}");
    }

    /// Goal: mistakes in a profile are named.
    #[test]
    fn bad_profiles_are_refused() {
        let good = Profile::builtin_text("prior").unwrap();
        for (from, to, expected) in [
            ("collcast/profile/1", "collcast/profile/9", "schema"),
            ("\"efficiency.nvlink\"", "\"efficiency.nvlnk\"", "did you mean `efficiency.nvlink`?"),
            ("uncertainty", "unsertainty", "unsertainty"),
        ] {
            let error = Profile::parse(&good.replacen(from, to, 1), "x.toml").unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("x.toml"), "{error}");
        }
        let mut bad: Profile = toml::from_str(good).unwrap();
        bad.parameters.get_mut("efficiency.nvlink").unwrap().value = 1.5;
        let error = Profile::parse(&toml::to_string(&bad).unwrap(), "x.toml").unwrap_err().to_string();
        assert!(error.contains("1.5 of nominal"), "{error}");
    }
}
