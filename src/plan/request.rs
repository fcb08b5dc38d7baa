//! What is to be planned.

use collcast_scenarios::memory::Framework;
use collcast_scenarios::parallel::{Parallel, Recompute};
use collcast_scenarios::work::Dispatch;
use collcast_sim::compute::Precision;

use crate::site::SiteSpec;

/// How a job is run among failures. What is left out is assumed, and the answer says so.
#[derive(Clone, PartialEq, Debug)]
pub struct Upkeep {
    /// Failure rates, by name or file.
    pub failures: Option<String>,
    /// How many times as often as these say.
    pub failures_times: f64,
    /// Hosts that stand by; as many as it takes where none is given.
    pub spares: Option<u32>,
    /// Seconds until a host that failed stands by again.
    pub repair: Option<f64>,
    /// Seconds from a failure to the first new step.
    pub restart: Option<f64>,
    /// B/s that storage takes from the whole job.
    pub storage: Option<f64>,
    /// Seconds of work between checkpoints; those of the highest goodput where none is given.
    pub checkpoint_every: Option<f64>,
    /// Whether a step waits until its checkpoint is in storage.
    pub blocking: bool,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            failures: None,
            failures_times: 1.0,
            spares: None,
            repair: None,
            restart: None,
            storage: None,
            checkpoint_every: None,
            blocking: false,
        }
    }
}

/// What is to be planned. What is left out is searched, or is the model's own.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// What it is called among others; its count and machine where it has no name.
    pub name: Option<String>,
    /// A built-in model, a `collcast/model/1` file or a Hugging Face `config.json`.
    pub model: String,
    /// The machine; its hosts are as many as `gpus` needs.
    pub site: SiteSpec,
    /// GPUs of the job.
    pub gpus: u64,
    /// Profile of the GPU's kernels, by name or file; the one of the machine's GPUs where none is named.
    pub gpu: Option<String>,
    /// A layout such as `tp=4,pp=8,dp=2`; searched where none is given.
    pub layout: Option<String>,
    /// Sequences of a micro-batch.
    pub micro_batch: Option<u32>,
    /// Sequences of a step.
    pub global_batch: Option<u64>,
    /// GPUs that the batch is for where none is given; those of the job where this is not given either.
    pub batch_gpus: Option<u64>,
    /// Tokens of a sequence.
    pub sequence: Option<u64>,
    /// Of linear layers.
    pub precision: Precision,
    /// In which replicas gather weights of layers; as the framework does where none is given.
    pub param_gather: Option<Precision>,
    /// What the backward pass computes again.
    pub recompute: Option<Recompute>,
    /// What replicas share.
    pub zero: Option<u8>,
    /// The framework.
    pub framework: Framework,
    /// Whether exchanges of tensor ranks run beside products (async TP, `tp_comm_overlap`).
    pub overlap_tensor: bool,
    /// Whether exchanges of experts' tokens run beside other kernels (`overlap_moe_expert_parallel_comm`).
    pub overlap_experts: bool,
    /// Whether SwiGLU of experts and its casts are within their products (`use_transformer_engine_op_fuser`).
    pub fuse_experts: bool,
    /// How experts' tokens are exchanged; as the framework does where none is given.
    pub dispatch: Option<Dispatch>,
    /// Tokens of the whole run.
    pub tokens: Option<f64>,
    /// Price of a GPU and hour, in any currency.
    pub price: Option<f64>,
    /// Those of several machines as they were given, where they were: another machine that is looked at has its own.
    pub prices: Option<String>,
    /// How the job is run among failures.
    pub upkeep: Upkeep,
    /// Whether the best layout is simulated again with one thing changed at a time.
    pub sensitivities: bool,
    /// Values of what else the best layout is simulated with, as in `nic.rate=200Gb/s,x2`; several make a grid.
    pub vary: Vec<String>,
    /// Layouts of the answer.
    pub most: usize,
}

impl Request {
    /// A model on so many GPUs of a machine, everything else searched.
    pub fn new(model: impl Into<String>, machine: impl Into<String>, gpus: u64) -> Self {
        Self {
            name: None,
            model: model.into(),
            site: SiteSpec::new(machine),
            gpus,
            gpu: None,
            layout: None,
            micro_batch: None,
            global_batch: None,
            batch_gpus: None,
            sequence: None,
            precision: Precision::Bf16,
            param_gather: None,
            recompute: None,
            zero: None,
            framework: Framework::Megatron,
            overlap_tensor: false,
            overlap_experts: false,
            fuse_experts: false,
            dispatch: None,
            tokens: None,
            price: None,
            prices: None,
            upkeep: Upkeep::default(),
            sensitivities: false,
            vary: Vec::new(),
            most: 10,
        }
    }

    /// The stage of ZeRO where nobody says one: the framework's own.
    pub(super) fn usual_zero(&self) -> u8 {
        if self.framework.shards_parameters() { 3 } else { 1 }
    }

    /// Whether passes are to run beside each other by the schedule: hai-llm has that in DualPipe alone.
    pub(super) fn beside_by_schedule(&self) -> bool {
        self.overlap_experts && self.framework == Framework::HaiLlm
    }

    /// What the layout that is given says of a key; none where it does not say it, or cannot be read.
    fn laid<T>(&self, key: &str, of: impl Fn(&Parallel) -> T) -> Option<T> {
        let text = self.layout.as_deref().filter(|text| says(text, key))?;
        Parallel::parse(text).ok().as_ref().map(of)
    }

    /// The stage of ZeRO that is asked for.
    pub(super) fn asked_zero(&self) -> Option<u8> {
        self.zero.or_else(|| self.laid("zero", |layout| layout.zero))
    }

    /// The tokens of a sequence that are asked for.
    pub(super) fn asked_sequence(&self) -> Option<u64> {
        self.sequence.or_else(|| self.laid("seq", |layout| layout.sequence).flatten())
    }

    /// The machine, as it was named.
    pub fn machine(&self) -> &str {
        self.site.topology.as_deref().unwrap_or(crate::site::DEFAULT_MACHINE)
    }
}

/// Whether a layout has a key, in whatever case.
pub(super) fn says(layout: &str, key: &str) -> bool {
    layout.split(',').filter_map(|part| part.split('=').next()).any(|name| name.trim().eq_ignore_ascii_case(key))
}
