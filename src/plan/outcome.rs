//! A plan: layouts with their times, and the run that the best one makes.

use collcast_reports::model::Input;
use collcast_scenarios::memory;
use collcast_scenarios::parallel::Parallel;
use collcast_scenarios::training::{Step, Traffic};
use collcast_scenarios::transformer::Transformer;
use serde::Serialize;

/// So many GPUs, as people say it.
pub fn of_gpus(gpus: u64) -> String {
    format!("{gpus} GPU{}", if gpus == 1 { "" } else { "s" })
}

/// One layout with its time.
#[derive(Clone, Debug, Serialize)]
pub struct Layout {
    /// The layout.
    pub layout: Parallel,
    /// As [`Parallel::parse`] reads it.
    pub text: String,
    /// A step.
    pub step: Step,
    /// Tokens a second and GPU.
    pub tokens_per_s_per_gpu: f64,
    /// FLOPs of the model (causal, head counted, nothing computed again) a second and GPU, in TFLOP/s.
    pub tflops: f64,
    /// The same over the dense peak of its precision.
    pub mfu: f64,
    /// The same with products and attention that are computed again.
    pub hfu: f64,
    /// Memory of the fullest stage.
    pub memory: memory::Stage,
    /// Whether it fits.
    pub fits: bool,
    /// What it lacks where it does not: bytes, and what takes most.
    pub lacks: Option<(u64, &'static str)>,
}

/// The best layout with something changed.
#[derive(Clone, Debug, Serialize)]
pub struct Variation {
    /// What was changed.
    pub change: String,
    /// The layout, as it was but for what was changed of it.
    pub layout: Layout,
    /// The run that it makes.
    pub whole: Option<Whole>,
    /// Its days, or its step where no run is given, by those without the change, less 1.
    pub effect: f64,
    /// Collectives for which NCCL chooses another algorithm then.
    pub choice: String,
}

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The model.
    pub model: Transformer,
    /// The machine.
    pub machine: String,
    /// GPUs of the job.
    pub gpus: u64,
    /// Kind of GPU, as the compute profile is called.
    pub gpu: String,
    /// Bytes of its memory, and those that a plan may fill.
    pub capacity: (u64, u64),
    /// Tokens of a step.
    pub tokens_per_step: f64,
    /// FLOPs of the model that a token of training takes: causal, head counted, nothing computed again.
    pub flops_per_token: f64,
    /// Layouts, the fastest first.
    pub layouts: Vec<Layout>,
    /// Calls of a step of the first one, on a rank of the stage that is told, those first that have most exposed.
    #[serde(skip)]
    pub calls: Vec<Traffic>,
    /// Layouts that the model allows, those of them that fit, and those that were simulated.
    pub looked_at: (usize, usize, usize),
    /// How far to trust it, and why.
    pub confidence: String,
    /// The run that the best one makes.
    pub whole: Option<Whole>,
    /// The best layout with one thing changed at a time, what matters most first; where asked for.
    pub sensitivities: Vec<Variation>,
    /// The best layout with each of the values asked for.
    pub variations: Vec<Variation>,
    /// Values asked for that cannot be simulated, and why.
    pub refused: Vec<String>,
    /// Files that were read.
    #[serde(skip)]
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using the numbers.
    pub warnings: Vec<String>,
}

/// What failures leave.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Goodput {
    /// Share of the time that becomes progress.
    pub goodput: f64,
    /// Mean seconds between failures.
    pub mtbf_s: f64,
    /// Seconds between checkpoints.
    pub interval_s: f64,
    /// Seconds by which a checkpoint stops the step.
    pub stall_s: f64,
    /// Seconds until it is durable.
    pub durable_s: f64,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: f64,
    /// Failures of the whole run.
    pub failures: f64,
    /// Share of the time in work that was lost and is done again.
    pub lost: f64,
    /// Share in saves.
    pub saving: f64,
    /// Share in restarts.
    pub down: f64,
    /// Share in waits for a host to be repaired.
    pub waiting: f64,
    /// Share by which slow ranks make steps longer.
    pub slow: f64,
    /// Spare hosts that are enough in 99 of 100 repairs, where a repair has a length.
    pub spares_enough: Option<u32>,
}

/// The whole run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Whole {
    /// Tokens.
    pub tokens: f64,
    /// Steps.
    pub steps: f64,
    /// Days without any failure.
    pub days: f64,
    /// Days with failures: in 10, 50 and 90 of 100 runs, at the lower end, the middle and the upper end of the step's interval.
    pub finish_days: [f64; 3],
    /// GPU hours in the mean of all runs, with those of hosts that stand by.
    pub gpu_hours: f64,
    /// Its cost, in the currency of the price.
    pub cost: Option<f64>,
    /// What failures leave.
    pub failures: Goodput,
}

impl Whole {
    /// Days in the mean of all runs, among them few that wait long for a repair, which the run in the middle does not.
    pub fn mean_days(&self) -> f64 {
        self.days / self.failures.goodput
    }
}
