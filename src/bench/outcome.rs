//! What a run gave: its rows, and why it ended.

use collcast_hwbackend::exec::Sample;
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use serde::Serialize;

use super::request::Backend;
use super::sets::Set;
use crate::error::Error;
use crate::query::{Query, asked};

/// What a run gave.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Who ran it.
    pub backend: Backend,
    /// How kernels were started.
    pub launch: Launch,
    /// How many calls were to be run.
    pub points: usize,
    /// The calls that were to be run.
    #[serde(skip)]
    pub planned: Vec<Planned>,
    /// Those that ran, in their order.
    pub rows: Vec<MeasuredCall>,
    /// What it ran on: devices, driver, libraries; key and value.
    pub facts: Vec<(String, String)>,
    /// What NCCL's processes were given, beside what they inherit.
    pub environment: Vec<(String, String)>,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    /// What ended it before its end.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// The name of the GPUs that ran it, as their driver has it.
    pub fn gpu(&self) -> Option<&str> {
        let (_, devices) = self.facts.iter().find(|(key, _)| key == "gpu")?;
        devices.split_once(" x ")?.1.split(',').next()
    }
}

/// A call with what is known about it before it runs.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What is asked.
    pub query: Query,
    /// The algorithm; none where NCCL chooses.
    pub algorithm: Option<Algorithm>,
    /// The protocol; none where NCCL chooses.
    pub protocol: Option<Protocol>,
    /// Channels; none where NCCL chooses.
    pub channels: Option<u32>,
    /// The GPUs that run it, where these are a set of this host's.
    pub set: Option<Set>,
    /// Their names.
    pub gpus: Vec<String>,
}

impl Planned {
    /// A call of which NCCL chooses the rest, on the first GPUs.
    pub fn new(query: Query) -> Self {
        let channels = query.channels;
        Self { query, algorithm: None, protocol: None, channels, set: None, gpus: Vec::new() }
    }

    /// In words, for messages.
    pub fn words(&self) -> String {
        let call = &self.query.call;
        let name = |text: Option<&str>| text.unwrap_or("auto").to_owned();
        format!(
            "{} {}/{}, {} ranks, {}{}{}",
            call.collective,
            name(self.algorithm.map(Algorithm::name)),
            name(self.protocol.map(Protocol::name)),
            call.ranks,
            call.size(),
            if call.in_place { " in place" } else { "" },
            if self.gpus.is_empty() { String::new() } else { format!(", on {}", self.gpus.join(" ")) },
        )
    }
}

/// A call that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredCall {
    /// Its index among those that were planned.
    pub planned: usize,
    /// What was run.
    pub collective: Collective,
    /// The algorithm; none where NCCL chose.
    pub algorithm: Option<Algorithm>,
    /// The protocol; none where NCCL chose.
    pub protocol: Option<Protocol>,
    /// Ranks.
    pub ranks: u32,
    /// The set of GPUs that ran it, where these are not the first of this host.
    #[serde(skip)]
    pub set: Option<Set>,
    /// Names of these GPUs, with their host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// How kernels were started.
    pub launch: Launch,
    /// Channels; none where NCCL chose.
    pub channels: Option<u32>,
    /// What was asked for, in words.
    pub asked: String,
    /// Element type.
    pub dtype: DataType,
    /// Reduction.
    pub op: ReduceOp,
    /// Whether input and output were one buffer.
    pub in_place: bool,
    /// Size, as nccl-tests counts it.
    pub size_bytes: u64,
    /// Time of one operation: the median of the batches, each the slowest rank's.
    pub time_us: f64,
    /// Time that 5% of the batches do not exceed.
    pub time_us_p5: f64,
    /// Time that 95% of the batches do not exceed.
    pub time_us_p95: f64,
    /// Size over time.
    pub algbw_gbps: f64,
    /// The same as nccl-tests corrects it for the collective.
    pub busbw_gbps: f64,
    /// Elements compared with their exact values, over all ranks.
    pub checked: u64,
    /// NCCL's own prediction, where it has one.
    pub nccl_model_us: Option<f64>,
    /// Identity of the schedule that was run, where one was, as 16 hexadecimal digits.
    pub schedule_hash: Option<String>,
    /// Time of one operation of each batch.
    pub times_us: Vec<f64>,
}

impl MeasuredCall {
    /// A call's times; `schedule` is the identity of what was run.
    pub(crate) fn new(index: usize, plan: &Planned, launch: Launch, sample: Sample, schedule: Option<u64>) -> Self {
        let call = &plan.query.call;
        let (size_bytes, time_us) = (call.size().0, sample.median_us());
        let algbw_gbps = size_bytes as f64 / time_us / 1e3;
        Self {
            planned: index,
            collective: call.collective,
            algorithm: plan.algorithm,
            protocol: plan.protocol,
            ranks: call.ranks,
            set: plan.set.clone(),
            gpus: plan.gpus.clone(),
            launch,
            channels: plan.channels,
            asked: asked(plan.query.algorithm, plan.query.protocol, plan.query.channels),
            dtype: call.dtype,
            op: call.op,
            in_place: call.in_place,
            size_bytes,
            time_us,
            time_us_p5: sample.percentile(5),
            time_us_p95: sample.percentile(95),
            algbw_gbps,
            busbw_gbps: algbw_gbps * call.bus_factor(),
            checked: sample.checked,
            nccl_model_us: sample.predicted_us,
            schedule_hash: schedule.map(|hash| format!("{hash:016x}")),
            times_us: sample.times_us,
        }
    }
}

/// What ended a run that has rows worth keeping.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failure {
    /// The exit code of a command: see [`Error::Exec`].
    pub code: u8,
    /// What happened, and in which call.
    pub message: String,
    /// The way out.
    pub hint: Option<String>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Exec { code, message, hint } => Self { code, message, hint },
            Error::Usage { message, hint } => Self { code: 2, message, hint },
            other => Self { code: other.code(), message: other.to_string(), hint: None },
        }
    }
}

impl From<Failure> for Error {
    fn from(Failure { code, message, hint }: Failure) -> Self {
        Self::Exec { code, message, hint }
    }
}
