//! The field's vocabulary: collectives, algorithms, protocols, data types.
//!
//! Every name is read as Collcast, NCCL and nccl-tests spell it (`all_reduce`, `AllReduce`,
//! `alltoall`, `NVLSTree`), and written as Collcast spells it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::Bytes;

/// A name that is none of the known ones.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("`{given}` is not {what}{}; known: {known}", suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default())]
pub struct UnknownName {
    /// What kind of name was expected, with its article.
    pub what: &'static str,
    /// What was given.
    pub given: String,
    /// The nearest known name, where one is near.
    pub suggestion: Option<String>,
    /// All known names.
    pub known: String,
}

/// The known name nearest to `given`, if it is near enough to be meant: at least half of its letters are right. One letter
/// or digit alone says nothing.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&given.to_lowercase(), &name.to_lowercase()), name))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, name)| {
            let [short, long] = [given.chars().count().min(name.len()), given.chars().count().max(name.len())];
            distance <= (name.len() / 3).max(2) && short > 1 && 2 * distance <= long
        })
        .map(|(_, name)| name)
}

/// The only known name that begins like `plain`, or with it.
fn begun<'a>(plain: &str, known: &[&'a str]) -> Option<&'a str> {
    let begins = |name: &&&str| {
        let name = name.replace('_', "");
        plain.len() > 1 && (name.starts_with(plain) || plain.starts_with(&name))
    };
    let mut found = known.iter().filter(begins);
    found.next().copied().filter(|_| found.next().is_none())
}

macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal, $($(#[$vdoc:meta])* $variant:ident = $name:literal $(| $alias:literal)*),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum $type {
            $($(#[$vdoc])* #[serde(rename = $name)] $variant),+
        }

        impl $type {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in files, flags and tables.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;
            fn from_str(text: &str) -> Result<Self, UnknownName> {
                let plain: String = text.trim().chars().filter(|c| *c != '_' && *c != '-').collect::<String>().to_lowercase();
                let plain = plain.strip_prefix("nccl").unwrap_or(&plain);
                $(for spelling in [$name $(, $alias)*] {
                    if plain == spelling.replace('_', "") {
                        return Ok(Self::$variant);
                    }
                })+
                Err(UnknownName {
                    what: $what,
                    given: text.to_owned(),
                    suggestion: nearest(plain, [$($name),+]).or_else(|| begun(plain, &[$($name),+])).map(str::to_owned),
                    known: [$($name),+].join(" "),
                })
            }
        }
    };
}

names!(
    /// What a group of ranks computes together.
    Collective, "a collective",
    /// Every rank ends with the reduction of all inputs.
    AllReduce = "all_reduce",
    /// Every rank ends with the inputs of all, in rank order.
    AllGather = "all_gather",
    /// Rank r ends with the r-th part of the reduction.
    ReduceScatter = "reduce_scatter",
    /// Every rank ends with the root's input.
    Broadcast = "broadcast" | "bcast",
    /// The root ends with the reduction.
    Reduce = "reduce",
    /// Rank r ends with the r-th part of every input, in rank order.
    AllToAll = "all_to_all" | "a2a",
    /// Rank r sends its buffer to rank r+1, as nccl-tests does it.
    SendRecv = "send_recv",
    /// The root ends with the inputs of all.
    Gather = "gather",
    /// Rank r ends with the r-th part of the root's input.
    Scatter = "scatter",
);

impl Collective {
    /// Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.
    ///
    /// All-reduce `2(n-1)/n`; all-gather, reduce-scatter, all-to-all, gather and scatter
    /// `(n-1)/n`; the others 1. A single rank has no bus traffic: 0 for the first two kinds.
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks.max(1));
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter => (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
        }
    }

    /// Whether inputs are combined.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether NCCL has no algorithm for it: it is grouped sends and receives.
    pub fn point_to_point(self) -> bool {
        matches!(self, Self::SendRecv | Self::AllToAll | Self::Gather | Self::Scatter)
    }

    /// Whether input and output may share memory: what is sent must not be written before it has left.
    pub fn in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::SendRecv)
    }

    /// Whether one rank is special.
    pub fn rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether nccl-tests' size counts the buffers of all ranks (not of one).
    pub fn size_is_total(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter)
    }
}

names!(
    /// A way to do a collective.
    Algorithm, "an algorithm",
    /// Neighbours in a circle.
    Ring = "ring",
    /// Double binary tree.
    Tree = "tree",
    /// CollNet, all local ranks talk to all heads.
    CollnetDirect = "collnet_direct",
    /// CollNet, a chain inside each host.
    CollnetChain = "collnet_chain",
    /// Reduction and multicast in the NVSwitch.
    Nvls = "nvls",
    /// NVLS inside, a tree between hosts.
    NvlsTree = "nvls_tree",
    /// Parallel aggregated trees.
    Pat = "pat",
    /// Two-level pipelined tree.
    CollTree = "coll_tree",
    /// Every pair talks directly: send/receive, all-to-all.
    Direct = "direct",
    /// A schedule from a file.
    Msccl = "msccl",
);

names!(
    /// How data and its readiness travel.
    Protocol, "a protocol",
    /// A flag beside every 4 bytes of data.
    Ll = "ll",
    /// 120 bytes of data and 8 of flag in a 128-byte line.
    Ll128 = "ll128",
    /// Plain data; counters and fences per slice.
    Simple = "simple",
);

/// What is said of a connection's FIFO with each protocol, in bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Buffers<T> {
    /// `NCCL_LL_BUFFSIZE`.
    pub ll: T,
    /// `NCCL_LL128_BUFFSIZE`.
    pub ll128: T,
    /// `NCCL_BUFFSIZE`.
    pub simple: T,
}

impl Buffers<Bytes> {
    /// NCCL's defaults (2.30 `src/init.cc`).
    pub const NCCL: Self = Self { ll: Bytes(512 << 10), ll128: Bytes(4_915_200), simple: Bytes(4 << 20) };
    /// Eight steps of the least that NCCL cuts: 16 bytes of LL and 1,920 of LL128, each with its flags, and 512 of
    /// Simple (2.30 `src/include/device.h`, `ncclProtoGrainSize`). With less its chunks have zero bytes.
    pub const LEAST: Self = Self { ll: Bytes(8 * 32), ll128: Bytes(8 * 2048), simple: Bytes(8 * 512) };
}

impl Buffers<Option<Bytes>> {
    /// What is set, else what the other says.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { ll: self.ll.or(other.ll), ll128: self.ll128.or(other.ll128), simple: self.simple.or(other.simple) }
    }

    /// What is set, else NCCL's default.
    pub fn resolved(self) -> Buffers<Bytes> {
        let Buffers { ll, ll128, simple } = Buffers::NCCL;
        Buffers { ll: self.ll.unwrap_or(ll), ll128: self.ll128.unwrap_or(ll128), simple: self.simple.unwrap_or(simple) }
    }
}

names!(
    /// How the host starts kernels.
    Launch, "a launch mode",
    /// One thread starts the kernels of all GPUs of a host, one after another.
    SingleThread = "single_thread",
    /// One thread a GPU.
    Threads = "threads",
    /// One process a GPU.
    Processes = "processes",
    /// CUDA graphs: the host is out of the way.
    Graph = "graph",
);

names!(
    /// Element type of a buffer.
    DataType, "a data type",
    /// 8-bit signed.
    Int8 = "int8" | "i8",
    /// 8-bit unsigned.
    Uint8 = "uint8" | "u8",
    /// 32-bit signed.
    Int32 = "int32" | "i32" | "int",
    /// 32-bit unsigned.
    Uint32 = "uint32" | "u32",
    /// 64-bit signed.
    Int64 = "int64" | "i64",
    /// 64-bit unsigned.
    Uint64 = "uint64" | "u64",
    /// IEEE half.
    Float16 = "float16" | "half" | "f16" | "fp16",
    /// Brain float.
    Bfloat16 = "bfloat16" | "bf16",
    /// IEEE single.
    Float32 = "float32" | "float" | "f32" | "fp32",
    /// IEEE double.
    Float64 = "float64" | "double" | "f64" | "fp64",
    /// 8-bit float of 4 bits of exponent, from NCCL 2.24 on.
    Float8E4m3 = "float8_e4m3" | "f8e4m3" | "fp8e4m3" | "float8_e4m3fn",
    /// 8-bit float of 5 bits of exponent, from NCCL 2.24 on.
    Float8E5m2 = "float8_e5m2" | "f8e5m2" | "fp8e5m2",
);

impl DataType {
    /// Bytes of one element.
    pub fn size(self) -> u64 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8E4m3 | Self::Float8E5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// The name nccl-tests prints.
    pub fn nccl_tests_name(self) -> &'static str {
        match self {
            Self::Float32 => "float",
            Self::Float64 => "double",
            Self::Float16 => "half",
            Self::Float8E4m3 => "f8e4m3",
            Self::Float8E5m2 => "f8e5m2",
            other => other.name(),
        }
    }
}

names!(
    /// How values are combined.
    ReduceOp, "a reduction",
    /// Sum.
    Sum = "sum",
    /// Product.
    Prod = "prod",
    /// Smallest.
    Min = "min",
    /// Largest.
    Max = "max",
    /// Mean.
    Avg = "avg",
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the spellings of NCCL and nccl-tests are the same things; typos are helped.
    #[test]
    fn names_are_read_in_every_spelling_of_the_field() {
        assert_eq!("AllReduce".parse(), Ok(Collective::AllReduce));
        assert_eq!("alltoall".parse(), Ok(Collective::AllToAll));
        assert_eq!("sendrecv".parse(), Ok(Collective::SendRecv));
        assert_eq!("NVLSTree".parse(), Ok(Algorithm::NvlsTree));
        assert_eq!("CollNetDirect".parse(), Ok(Algorithm::CollnetDirect));
        assert_eq!("Simple".parse(), Ok(Protocol::Simple));
        assert_eq!("float".parse(), Ok(DataType::Float32));
        assert_eq!("ncclBcast".parse(), Ok(Collective::Broadcast));
        for (text, dtype) in
            [("fp16", DataType::Float16), ("FP32", DataType::Float32), ("ncclFloat64", DataType::Float64)]
        {
            assert_eq!(text.parse(), Ok(dtype));
        }
        for (text, dtype) in [
            ("float8_e4m3", DataType::Float8E4m3),
            ("ncclFloat8e5m2", DataType::Float8E5m2),
            ("fp8_e5m2", DataType::Float8E5m2),
        ] {
            assert_eq!((text.parse(), dtype.size()), (Ok(dtype), 1));
            assert_eq!(dtype.nccl_tests_name().parse(), Ok(dtype));
        }
        assert_eq!("scat".parse::<Collective>().unwrap_err().suggestion.as_deref(), Some("scatter"));
        assert_eq!(nearest("po", ["op", "root"]), Some("op"));
        assert_eq!([nearest("foo", ["op"]), nearest("9", ["0"]), nearest("10", ["0"]), nearest("", ["op"])], [None; 4]);
        let error = "al_reduse".parse::<Collective>().unwrap_err();
        assert_eq!(error.suggestion.as_deref(), Some("all_reduce"));
        assert!("banana".parse::<Algorithm>().unwrap_err().suggestion.is_none());
    }
}
