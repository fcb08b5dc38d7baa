//! What is to be planned.

use collcast_scenarios::memory::Framework;
use collcast_scenarios::parallel::Recompute;
use collcast_sim::compute::Precision;

use crate::site::SiteSpec;

/// What is to be planned. What is left out is searched, or is the model's own.
#[derive(Clone, Debug)]
pub struct Request {
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
    /// Tokens of a sequence.
    pub sequence: Option<u64>,
    /// Of linear layers.
    pub precision: Precision,
    /// What the backward pass computes again.
    pub recompute: Option<Recompute>,
    /// What replicas share.
    pub zero: Option<u8>,
    /// The framework.
    pub framework: Framework,
    /// Whether exchanges of tensor ranks run beside products (async TP, `tp_comm_overlap`).
    pub overlap_tensor: bool,
    /// Tokens of the whole run.
    pub tokens: Option<f64>,
    /// Price of a GPU and hour, in any currency.
    pub price: Option<f64>,
    /// Layouts of the answer.
    pub most: usize,
}

impl Request {
    /// A model on so many GPUs of a machine, everything else searched.
    pub fn new(model: impl Into<String>, machine: impl Into<String>, gpus: u64) -> Self {
        Self {
            model: model.into(),
            site: SiteSpec::new(machine),
            gpus,
            gpu: None,
            layout: None,
            micro_batch: None,
            global_batch: None,
            sequence: None,
            precision: Precision::Bf16,
            recompute: None,
            zero: None,
            framework: Framework::Megatron,
            overlap_tensor: false,
            tokens: None,
            price: None,
            most: 10,
        }
    }
}
