//! Which workers there are: how many, of how many GPUs, for what.

use std::fmt;
use std::str::FromStr;

use collcast_scenarios::parallel::Parallel;
use collcast_scenarios::serving::Role;
use collcast_sim::ids::Rank;
use collcast_sim::topology::Topology;
use serde::Serialize;

use crate::error::Error;

/// Workers at most.
const MOST: u32 = 4096;
/// GPUs of a worker at most: DeepSeek-V3's report decodes on 320.
const MOST_GPUS: u32 = 1024;

/// Workers of one kind, such as `4x8`: four of eight GPUs each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Group {
    /// How many.
    pub workers: u32,
    /// GPUs of each that split every product.
    pub tensor: u32,
    /// Stages of each, which split the layers.
    pub pipeline: u32,
    /// Replicas of attention of each, over which experts are split: more than one is expert parallelism.
    pub replicas: u32,
}

impl Group {
    /// Workers of so many GPUs, which split every product.
    pub const fn new(workers: u32, tensor: u32) -> Self {
        Self { workers, tensor, pipeline: 1, replicas: 1 }
    }

    /// GPUs of a worker.
    pub fn gpus(&self) -> u32 {
        self.stage() * self.pipeline
    }

    /// GPUs of a stage of a worker.
    pub fn stage(&self) -> u32 {
        self.tensor * self.replicas
    }

    /// How a worker's GPUs share the model, as planning says it.
    pub fn parallel(&self) -> Parallel {
        let (expert, expert_tensor) = if self.replicas > 1 { (self.stage(), 1) } else { (1, self.tensor) };
        // Where tokens go to experts of other ranks, each tensor rank sends a part of them.
        let sequence_parallel = self.replicas > 1 && self.tensor > 1;
        let pipeline = self.pipeline;
        Parallel { tensor: self.tensor, pipeline, expert, expert_tensor, sequence_parallel, ..Parallel::default() }
    }
}

impl FromStr for Group {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            let hint = format!(
                "workers look like 4x8 (four of 8 GPUs each), 2x16:pp2 (two stages) or 1x32:ep32 (experts on 32); at most \
                 {MOST} workers of {MOST_GPUS} GPUs"
            );
            Error::usage(format!("`{text}` says not how many workers of how many GPUs"), hint)
        };
        let (count, keys) = text.split_once(':').unwrap_or((text, ""));
        let (workers, gpus) = count.split_once('x').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (workers, gpus) = (number(workers)?, number(gpus)?);
        if !(1..=MOST).contains(&workers) || !(1..=MOST_GPUS).contains(&gpus) {
            return Err(wrong());
        }
        let [mut tensor, mut pipeline, mut expert] = [None; 3];
        for key in keys.split(',').filter(|key| !key.is_empty()) {
            let (name, value) = key.split_at_checked(2).ok_or_else(wrong)?;
            let value = Some(number(value)?).filter(|value| (1..=gpus).contains(value)).ok_or_else(wrong)?;
            let given = match name {
                "tp" => &mut tensor,
                "pp" => &mut pipeline,
                "ep" => &mut expert,
                _ => return Err(wrong()),
            };
            if given.replace(value).is_some() {
                return Err(Error::usage(format!("`{text}`: {name} is there twice"), "leave one of them out"));
            }
        }
        let (pipeline, expert) = (pipeline.unwrap_or(1), expert.unwrap_or(1));
        let tensor = tensor.unwrap_or(if expert > 1 { 1 } else { gpus / pipeline }).max(1);
        let replicas = gpus / pipeline / tensor;
        let group = Self { workers, tensor, pipeline, replicas };
        let split = if replicas > 1 { group.stage() } else { 1 };
        if replicas == 0 || group.gpus() != gpus || expert != split {
            let message =
                format!("`{text}`: {gpus} GPUs are not tp x pp, or tp x pp x replicas with experts on all of a stage");
            return Err(Error::usage(message, "for example 1x32:ep32, 1x32:tp4,ep32, 2x16:pp2 or 1x64:pp2,ep32"));
        }
        Ok(group)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.workers, self.gpus())?;
        let mut keys = Vec::new();
        if self.pipeline > 1 {
            keys.push(format!("pp{}", self.pipeline));
        }
        if self.replicas > 1 {
            keys.push(format!("tp{},ep{}", self.tensor, self.stage()));
        }
        if keys.is_empty() { Ok(()) } else { write!(f, ":{}", keys.join(",")) }
    }
}

/// All workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Fleet {
    /// Some prefill, others decode.
    Disaggregated {
        /// Who prefills.
        prefill: Group,
        /// Who decodes.
        decode: Group,
    },
    /// Each does both.
    Aggregated(Group),
}

impl Fleet {
    /// Its groups, in the order of their GPUs.
    pub fn groups(&self) -> Vec<(Role, Group)> {
        match *self {
            Self::Disaggregated { prefill, decode } => vec![(Role::Prefill, prefill), (Role::Decode, decode)],
            Self::Aggregated(group) => vec![(Role::Both, group)],
        }
    }

    /// GPUs of all workers.
    pub fn gpus(&self) -> u32 {
        self.groups().iter().map(|(_, group)| group.workers * group.gpus()).sum()
    }

    /// Its workers on the GPUs of a machine. Who fits into an NVLink domain is not laid over two; others begin with one.
    pub(super) fn laid(&self, topology: &Topology) -> Laid {
        let node = |gpu: u32| topology.node_of(Rank(gpu));
        let place = |at: u32, gpus: u32| {
            // Nothing is known of GPUs that a machine does not have.
            if at == 0 || at + gpus > topology.ranks() || node(at - 1) != node(at) || node(at) == node(at + gpus - 1) {
                return at;
            }
            (at..topology.ranks()).find(|&gpu| node(gpu) != node(at)).unwrap_or(topology.ranks())
        };
        let mut end = 0;
        let mut worker = |group: Group| -> Vec<u32> {
            end = place(end, group.gpus());
            let mut stage = |_| {
                let first = place(end, group.stage());
                end = first + group.stage();
                first
            };
            (0..group.pipeline).map(&mut stage).collect()
        };
        let mut of = |(_, group): (Role, Group)| (0..group.workers).map(|_| worker(group)).collect();
        let groups = self.groups().into_iter().map(&mut of).collect();
        Laid { groups, end }
    }
}

/// Where the workers of a fleet are.
pub(super) struct Laid {
    /// By group and worker: the first GPU of each stage.
    pub(super) groups: Vec<Vec<Vec<u32>>>,
    /// The GPU behind the last.
    pub(super) end: u32,
}

impl fmt::Display for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disaggregated { prefill: p, decode: d } => {
                write!(f, "{p} prefill, {d} decode")
            }
            Self::Aggregated(all) => write!(f, "{all} aggregated"),
        }
    }
}
