//! What is to be served, on what.

use collcast_scenarios::serving::Policy;
use collcast_scenarios::serving::summary::Objective;
use collcast_sim::compute::Precision;
use std::path::PathBuf;

use super::fleet::{Fleet, Group};
use crate::site::SiteSpec;

/// Steps of all workers of an answer at most: an hour of 64 workers has 30 million, which take some 10 s.
pub(super) const MOST_STEPS: u64 = 40_000_000;

/// Which requests arrive.
#[derive(Clone, PartialEq, Debug)]
pub enum Load {
    /// One kind, by a Poisson process.
    Poisson {
        /// Requests a second.
        rate: f64,
        /// Seconds over which they arrive.
        seconds: f64,
        /// Tokens of a prompt.
        input: u64,
        /// Tokens that are generated for each.
        output: u64,
        /// Of the generator.
        seed: u64,
    },
    /// Those of a file: see [`trace`](collcast_scenarios::serving::arrivals::trace).
    Trace(PathBuf),
}

/// A model, the machine that serves it, and who asks.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// A built-in model, a `collcast/model/1` file or a Hugging Face `config.json`.
    pub model: String,
    /// The machine; its hosts are as many as the workers need.
    pub site: SiteSpec,
    /// Profile of the GPU's kernels, by name or file; that of the machine's GPUs where none is named.
    pub gpu: Option<String>,
    /// Precision of linear layers.
    pub precision: Precision,
    /// Who serves.
    pub fleet: Fleet,
    /// Who asks.
    pub load: Load,
    /// How steps are made up.
    pub policy: Policy,
    /// What a request has to meet.
    pub objective: Objective,
}

impl Request {
    /// One worker of eight GPUs for ten minutes of one request a second, as vLLM runs it.
    pub fn new(model: impl Into<String>, machine: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            site: SiteSpec::new(machine),
            gpu: None,
            precision: Precision::Bf16,
            fleet: Fleet::Aggregated(Group { workers: 1, tensor: 8 }),
            load: Load::Poisson { rate: 1.0, seconds: 600.0, input: 2048, output: 256, seed: 1 },
            // vLLM 0.10: `max_num_batched_tokens` 8192 and `max_num_seqs` 1024 of its server on H100, `block_size` 16.
            policy: Policy { chunk: 8192, prompts: 1024, running: 1024, block: 16, steps: MOST_STEPS },
            objective: Objective { ttft: 1.0, tpot: 0.05 },
        }
    }
}
