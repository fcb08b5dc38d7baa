//! Calls of collectives as a framework names them.

use std::sync::Arc;

use collcast_sim::collective::{Collective, DataType};
use collcast_sim::units::Bytes;

/// A communicator as the framework knows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Group {
    /// Its name, unique within a job, such as `0`.
    pub name: String,
    /// What it is for, such as `default_pg` or `mesh_tp`.
    pub description: String,
    /// Its ranks of the job, in order; empty where the file leaves them out.
    pub ranks: Vec<u32>,
    /// How many they are; 0 where nothing says.
    pub size: u32,
}

/// A call: what, over whom, and how much.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Call {
    /// As the framework names it, such as `_allgather_base`.
    pub name: String,
    /// What NCCL does for it; none where it is of several, or of none.
    pub collective: Option<Collective>,
    /// Over whom; none where the file does not say.
    pub group: Option<Arc<Group>>,
    /// Element type; none where NCCL has none of it.
    pub dtype: Option<DataType>,
    /// Elements that go in, on one rank.
    pub inputs: u64,
    /// Elements that come out, on one rank.
    pub outputs: u64,
    /// How elements are dealt out to ranks.
    pub split: Split,
    /// A kernel for symmetric memory does it.
    pub symmetric: bool,
}

/// Whether a rank gives as many elements to each of the others, and gets as many of each. What is less sure is larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Split {
    /// It does.
    #[default]
    Even,
    /// The file leaves out part of a list whose rest is even.
    Unknown,
    /// It does not.
    Uneven,
}

impl Split {
    /// Of the text of a list, as PyTorch writes it: `[4, 4]`, or `[4, 4, ..., 4]` where it is long.
    pub(super) fn of_text(text: &str) -> Self {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        let first = numbers.next();
        match numbers.all(|number| Some(number) == first) {
            false => Self::Uneven,
            true if text.contains("...") => Self::Unknown,
            true => Self::Even,
        }
    }
}

impl Call {
    /// Why a call of a known collective has no forecast, where it has none.
    pub fn not_forecast(&self) -> Option<&'static str> {
        match self.split {
            _ if self.symmetric => Some("a kernel for symmetric memory, which is not modelled"),
            Split::Even => None,
            Split::Unknown => Some("the trace leaves out part of what each rank sends"),
            Split::Uneven => Some("ranks send different amounts"),
        }
    }

    /// Size as nccl-tests counts it: the larger of both buffers. None where the type or the elements are not known.
    pub fn size(&self) -> Option<Bytes> {
        let elements = match self.collective? {
            Collective::AllGather | Collective::Gather => self.outputs,
            Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter => self.inputs,
            _ => self.inputs.max(self.outputs),
        };
        let bytes = elements.checked_mul(self.dtype?.size()).filter(|&bytes| bytes > 0)?;
        Some(Bytes(bytes))
    }
}

/// What NCCL does for a call of PyTorch: `nccl:_all_gather_base` and `_allgather_base` are an all-gather. None for calls that
/// were made as one (`coalesced`) and for what is no call.
pub fn framework_collective(name: &str) -> Option<Collective> {
    let plain: String =
        name.trim_start_matches("nccl:").chars().filter(|c| *c != '_').collect::<String>().to_lowercase();
    if plain.contains("coalesced") {
        return None;
    }
    // A barrier is an all-reduce of one element.
    let names = [
        ("allreduce", Collective::AllReduce),
        ("barrier", Collective::AllReduce),
        ("allgather", Collective::AllGather),
        ("reducescatter", Collective::ReduceScatter),
        ("alltoall", Collective::AllToAll),
        ("broadcast", Collective::Broadcast),
        ("reduce", Collective::Reduce),
        ("gather", Collective::Gather),
        ("scatter", Collective::Scatter),
        ("send", Collective::SendRecv),
        ("recv", Collective::SendRecv),
    ];
    names.into_iter().find(|(begin, _)| plain.starts_with(begin)).map(|(_, collective)| collective)
}

/// The type that PyTorch names, where NCCL has it. Bits that are only moved count as bytes.
pub(super) fn framework_dtype(name: &str) -> Option<DataType> {
    Some(match name {
        "Float" => DataType::Float32,
        "Double" => DataType::Float64,
        "Half" => DataType::Float16,
        "BFloat16" => DataType::Bfloat16,
        "Int" => DataType::Int32,
        "Long" => DataType::Int64,
        "Char" => DataType::Int8,
        "Byte" | "Bool" => DataType::Uint8,
        float8 if float8.starts_with("Float8") => DataType::Uint8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_uneven_where_their_entries_differ() {
        for (text, split) in [
            ("[]", Split::Even),
            ("[1048576, 1048576]", Split::Even),
            ("[8, 9]", Split::Uneven),
            ("[8, 8, ..., 8]", Split::Unknown),
            ("[8, 8, ..., 9]", Split::Uneven),
        ] {
            assert_eq!(Split::of_text(text), split, "{text}");
        }
    }

    #[test]
    fn names_of_pytorch_are_known() {
        for (name, collective) in [
            ("allreduce", Some(Collective::AllReduce)),
            ("nccl:all_reduce", Some(Collective::AllReduce)),
            ("nccl:all_reduce_barrier", Some(Collective::AllReduce)),
            ("_allgather_base", Some(Collective::AllGather)),
            ("nccl:_reduce_scatter_base", Some(Collective::ReduceScatter)),
            ("all_to_allv", Some(Collective::AllToAll)),
            ("reduce", Some(Collective::Reduce)),
            ("nccl:send 0->1", Some(Collective::SendRecv)),
            ("nccl:coalesced", None),
            ("allgather_into_tensor_coalesced", None),
            ("wait", None),
        ] {
            assert_eq!(framework_collective(name), collective, "{name}");
        }
    }
}
