//! From text.

use std::collections::BTreeSet;

use collcast_sim::collective::Collective;
use collcast_sim::units::Bytes;

use super::workload::{Call, GPUS_MAX, Group, LAYERS_MAX, Layer, OPS_MAX, Pass, SimaiError, Workload};

/// Policies whose order of passes is run.
const POLICIES: [&str; 2] = ["HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER"];
/// Policies that SimAI and ASTRA-sim 1 have beside them.
const OTHERS: [&str; 9] = [
    "DATA",
    "MODEL",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "HYBRID_CUSTOMIZED",
    "MICRO",
    "DISTRIBUTED_INFERENCE",
];
/// Keys that no other kind of file has in its first line.
const KEYS: [&str; 2] = ["model_parallel_NPU_group", "all_gpus"];
/// Columns of a layer.
const COLUMNS: usize = 12;

/// Whether a text begins as a workload does: with a policy, or with a header's key behind another word.
pub fn looks_like(text: &str) -> bool {
    let mut words = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().split_whitespace();
    let policy = words.next().is_some_and(|first| POLICIES.contains(&first) || OTHERS.contains(&first));
    policy || words.any(|word| KEYS.contains(&word.trim_end_matches(':')))
}

/// Reads a workload; `file` is its name for messages. `machine` has the GPUs of the job where the header does not say how many,
/// as those of ASTRA-sim 1.
///
/// # Errors
/// A policy that is not run, a header without its numbers, a layer with other columns, numbers that contradict each other.
pub fn read(text: &str, file: &str, machine: Option<u32>) -> Result<Workload, SimaiError> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let error = |line: usize, reason: String| SimaiError { file: file.to_owned(), line, reason };
    let (number, head) = lines.next().ok_or_else(|| error(1, "the file is empty".to_owned()))?;
    let mut workload = header(head, machine).map_err(|reason| error(number, reason))?;
    let (number, count) = lines.next().ok_or_else(|| error(number, "the number of layers is missing".to_owned()))?;
    let count: usize =
        count.trim().parse().map_err(|_| error(number, format!("`{}` is no number of layers", short(count.trim()))))?;
    if count == 0 || count > LAYERS_MAX {
        return Err(error(number, format!("{count} layers: 1 to {LAYERS_MAX} are read")));
    }
    for (number, line) in lines.by_ref().take(count) {
        workload.layers.push(layer(line).map_err(|reason| error(number, reason))?);
    }
    if workload.layers.len() < count {
        return Err(error(
            number,
            format!("{count} layers, but {} follow: the file was cut off", workload.layers.len()),
        ));
    }
    let more = lines.count();
    if more > 0 {
        workload
            .notes
            .push(format!("{more} lines after the last of the {count} layers are passed over, as SimAI does"));
    }
    let last = u32::try_from(count).unwrap_or(u32::MAX);
    if let Some(layer) = workload.checkpoints.iter().chain(&workload.initiates).find(|layer| **layer >= last) {
        return Err(error(1, format!("a checkpoint is layer {layer}; layers are 0 to {}", last - 1)));
    }
    if let Some(layer) = workload.initiates.iter().find(|layer| workload.checkpoints.first().is_none_or(|c| c > *layer))
    {
        return Err(error(1, format!("layer {layer} begins to recompute, and no checkpoint is at or before it")));
    }
    let again: usize = (0..last).map(|place| 2 * workload.again(place).len()).sum();
    if again > OPS_MAX {
        return Err(error(1, format!("{again} operations are computed again: at most {OPS_MAX} are run")));
    }
    Ok(workload)
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

fn header(line: &str, machine: Option<u32>) -> Result<Workload, String> {
    let mut words = line.split_whitespace();
    let policy = words.next().unwrap_or_default();
    if OTHERS.contains(&policy) {
        return Err(format!("the policy {policy} is not run: {} are", POLICIES.join(" and ")));
    }
    if !POLICIES.contains(&policy) {
        return Err(format!("`{}` is no policy of SimAI: {} are run", short(policy), POLICIES.join(" and ")));
    }
    let (mut tensor, mut expert, mut pipeline, mut gpus) = (None, None, None, None);
    let (mut parts, mut batches) = (Some(1), Some(1));
    let (mut checkpoints, mut initiates) = (Vec::new(), Vec::new());
    let mut notes = Vec::new();
    let mut seen = BTreeSet::new();
    while let Some(key) = words.next() {
        let key = key.trim_end_matches(':');
        if !seen.insert(key) {
            return Err(format!("`{}` is twice in the header: leave one of them out", short(key)));
        }
        let mut number = |what: &str| -> Result<u64, String> {
            let word = words.next().ok_or_else(|| format!("`{}` has no value", short(what)))?;
            word.parse().map_err(|_| format!("`{}` is `{}`, which is no number", short(what), short(word)))
        };
        match key {
            "model_parallel_NPU_group" => tensor = Some(number(key)?),
            "ep" => expert = Some(number(key)?),
            "pp" => pipeline = Some(number(key)?),
            "all_gpus" => gpus = Some(number(key)?),
            "checkpoints" | "checkpoint_initiates" => {
                let count = number(key)?;
                if count > LAYERS_MAX as u64 {
                    return Err(format!("{count} {key}: at most {LAYERS_MAX} are read"));
                }
                let list = if key == "checkpoints" { &mut checkpoints } else { &mut initiates };
                for _ in 0..count {
                    list.push(u32::try_from(number(key)?).unwrap_or(u32::MAX));
                }
                list.sort_unstable();
            }
            "pp_comm" => {
                number(key)?;
                notes.push(
                    "messages between pipeline stages (pp_comm) are left out: the file has the layers of one stage"
                        .to_owned(),
                );
            }
            "vpp" => parts = Some(number(key)?),
            "ga" => batches = Some(number(key)?),
            other => return Err(format!("`{}` is no key of the header", short(other))),
        }
    }
    let positive = |value: Option<u64>, what: &str| match value {
        Some(value) if (1..=u64::from(GPUS_MAX)).contains(&value) => Ok(value as u32),
        Some(value) => Err(format!("`{what}` is {value}: 1 to {GPUS_MAX} are read")),
        None => Err(format!("the header has no `{what}`")),
    };
    if let (None, Some(machine)) = (gpus, machine) {
        notes.push(format!(
            "the header has no `all_gpus`: the {machine} GPUs of the machine take part, as with ASTRA-sim"
        ));
    }
    let gpus = positive(gpus.or(machine.map(u64::from)), "all_gpus")?;
    let tensor = positive(tensor, "model_parallel_NPU_group")?;
    let expert = positive(expert.or(Some(1)), "ep")?;
    let pipeline = positive(pipeline.or(Some(1)), "pp")?;
    let turns = u64::from(positive(batches, "ga")?) * u64::from(positive(parts, "vpp")?);
    let stage = u64::from(tensor) * u64::from(pipeline);
    if !u64::from(gpus).is_multiple_of(stage) {
        return Err(format!("{gpus} GPUs are no multiple of {tensor} tensor parallel ranks x {pipeline} stages"));
    }
    let data = u64::from(gpus) / stage;
    if !data.is_multiple_of(u64::from(expert)) {
        return Err(format!("{data} data parallel ranks are no multiple of {expert} expert parallel ones"));
    }
    if pipeline > 1 && !notes.iter().any(|note| note.contains("pp_comm")) {
        notes.push(format!("{pipeline} stages do the same, without messages between them"));
    }
    if pipeline > 1 {
        notes.push(format!(
            "the bubble of {pipeline} stages is left out: SimAI adds {}/{turns} of the time of passes, (pp - 1) / (ga x vpp)",
            pipeline - 1
        ));
    }
    Ok(Workload { gpus, tensor, expert, pipeline, checkpoints, initiates, layers: Vec::new(), notes })
}

fn layer(line: &str) -> Result<Layer, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.len() != COLUMNS {
        return Err(format!("a layer has {COLUMNS} columns, this line {}: {}", words.len(), short(line)));
    }
    let number = |at: usize| -> Result<u64, String> {
        words[at].parse().map_err(|_| format!("column {} is `{}`, which is no number", at + 1, short(words[at])))
    };
    let pass = |at: usize, usual: Group| -> Result<Pass, String> {
        Ok(Pass { ns: number(at)?, call: call(words[at + 1], number(at + 2)?, usual)? })
    };
    Ok(Layer {
        name: short(words[0]),
        forward: pass(2, Group::Tensor)?,
        input: pass(5, Group::Tensor)?,
        weight: pass(8, Group::Data)?,
        update_ns: number(11)?,
    })
}

fn call(word: &str, bytes: u64, usual: Group) -> Result<Option<Call>, String> {
    if word == "NONE" {
        return Ok(None);
    }
    let (name, group) = match (word.strip_suffix("_DP_EP"), word.strip_suffix("_EP")) {
        (Some(name), _) => (name, Group::ExpertData),
        (None, Some(name)) => (name, Group::Expert),
        (None, None) => (word, usual),
    };
    let collective = match name {
        "ALLREDUCE" => Collective::AllReduce,
        "ALLGATHER" => Collective::AllGather,
        "REDUCESCATTER" => Collective::ReduceScatter,
        "ALLTOALL" => Collective::AllToAll,
        "ALLREDUCEALLTOALL" => {
            return Err("ALLREDUCEALLTOALL is not run: SimAI itself takes it as ALLREDUCE; write it so".to_owned());
        }
        _ => {
            let known = "NONE, ALLREDUCE, ALLGATHER, REDUCESCATTER, ALLTOALL, with _EP or _DP_EP behind";
            return Err(format!("`{}` is no communication: {known}", short(word)));
        }
    };
    Ok((bytes > 0).then_some(Call { collective, group, bytes: Bytes(bytes) }))
}
