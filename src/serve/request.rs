//! What is to be served, on what.

use collcast_scenarios::serving::arrivals::Prefixes;
use collcast_scenarios::serving::summary::Objective;
use collcast_scenarios::serving::{Policy, Route};
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
        /// Prefixes that prompts begin with, where they share some.
        prefixes: Option<Prefixes>,
        /// Of the generator.
        seed: u64,
    },
    /// Those of a file: see [`trace`](collcast_scenarios::serving::arrivals::trace), and of JSON Lines
    /// [`mooncake`](collcast_scenarios::serving::arrivals::mooncake).
    Trace(PathBuf),
}

/// A model, the machine that serves it, and who asks.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// A built-in model, a `collcast/model/1` file or a Hugging Face `config.json`.
    pub model: String,
    /// The machine; its hosts are as many as the workers need.
    pub site: SiteSpec,
    /// What of the machine is changed, such as `nics=4`.
    pub vary: Vec<String>,
    /// Profile of the GPU's kernels, by name or file; that of the machine's GPUs where none is named.
    pub gpu: Option<String>,
    /// Precision of linear layers.
    pub precision: Precision,
    /// Memory of a host for caches, shared evenly by GPUs of its workers that take prompts; 0 for none.
    pub host_cache: u64,
    /// Drives of a host for caches, shared alike; 0 for none.
    pub drive_cache: u64,
    /// Who serves.
    pub fleet: Fleet,
    /// Who asks.
    pub load: Load,
    /// How steps are made up.
    pub policy: Policy,
    /// What a request has to meet.
    pub objective: Objective,
}

impl Load {
    /// Seconds over which requests are to arrive; 0 of a trace, whose requests say it.
    pub(super) fn window(&self) -> f64 {
        match *self {
            Self::Trace(_) => 0.0,
            Self::Poisson { seconds, .. } => seconds,
        }
    }
}

impl Request {
    /// One worker of eight GPUs for ten minutes of one request a second, as vLLM runs it.
    pub fn new(model: impl Into<String>, machine: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            site: SiteSpec::new(machine),
            vary: Vec::new(),
            gpu: None,
            host_cache: 0,
            drive_cache: 0,
            precision: Precision::Bf16,
            fleet: Fleet::Aggregated(Group::new(1, 8)),
            load: Load::Poisson { rate: 1.0, seconds: 600.0, input: 2048, output: 256, prefixes: None, seed: 1 },
            // vLLM 0.10: `max_num_batched_tokens` 8192 and `max_num_seqs` 1024 of its server on H100, `block_size` 16.
            policy: Policy {
                chunk: 8192,
                prompts: 1024,
                running: 1024,
                block: 16,
                route: Route::Queue,
                by_layers: false,
                steps: MOST_STEPS,
            },
            objective: Objective::new(1.0, 0.05),
        }
    }
}
