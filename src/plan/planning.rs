//! One search: the layouts of a model on so many GPUs of one machine, and the run that the best one makes.

use std::collections::BinaryHeap;

use collcast_scenarios::memory::{self, Fit, Framework, Software};
use collcast_scenarios::parallel::{MAX_RANKS, Module, Parallel, Recompute, Refused, Schedule, Split};
use collcast_scenarios::programs::Programs;
use collcast_scenarios::training::calls::{Calls, domain};
use collcast_scenarios::training::{self, Span, Training};
use collcast_scenarios::transformer::hugging_face::{OTHER_SEQUENCE, window_of};
use collcast_scenarios::transformer::{self, Activation, Mask, Transformer};
use collcast_scenarios::work::{self, ExpertKernels};
use collcast_sim::compute::{Compute, Constant, Precision};
use rayon::prelude::*;

use super::outcome::{Layout, Outcome, Whole, of_gpus};
use super::request::{Request, says};
use super::search::Place;
use super::{run, search};
use crate::error::Error;
use crate::site::{Site, SiteSpec, gpus_a_host};
use crate::watch::Watch;

/// Hosts whose network is simulated at most: groups that reach farther are extended from these.
const MOST_HOSTS: u32 = 64;
/// Of a GPU's memory what a plan may fill: NVIDIA's planner leaves 5 to 8% free.
const FILLED: f64 = 0.95;
/// Tokens of a step where no batch is given: Llama 3's first and last batch (arXiv 2407.21783, 3.4.1); the larger one from
/// so many GPUs on.
const TOKENS: [u64; 2] = [4 << 20, 16 << 20];
const MANY_GPUS: u64 = 4096;

/// Layouts, the fastest first; how many the model allows, how many of these fit, and how many were simulated.
type Searched = (Vec<Layout>, (usize, usize, usize));

/// What a plan is made with.
pub(super) struct Planning {
    pub(super) model: Transformer,
    pub(super) software: Software,
    pub(super) gpu: Compute,
    /// How many times as long kernels of one GPU take.
    pub(super) slowest: f64,
    base: Parallel,
    framework: Framework,
    trust: Trust,
    /// What was assumed of a batch that nobody gave, for refusals of it.
    assumed: Option<String>,
    notes: Vec<String>,
}

/// How far forecasts of a kind are to be trusted.
struct Trust {
    /// What kernels of a step may be off by, as a part of their time.
    off: f64,
    /// By what published runs of the kind were off by that nothing was fitted to (`docs/accuracy/training.md`).
    why: &'static str,
    /// GPUs of the largest of these runs.
    most: u64,
}

impl Trust {
    /// How far, on so many GPUs.
    fn confidence(&self, gpus: u64) -> String {
        match gpus <= self.most {
            true => self.why.to_owned(),
            false => format!(
                "low: forecasts of this kind were held against published runs of at most {} GPUs, and this is one of {gpus}",
                self.most
            ),
        }
    }
}

/// The machine that a request is simulated on: with all of its hosts, or as many as are simulated at most.
///
/// # Errors
/// A machine that cannot be read.
pub(super) fn spec(request: &Request) -> Result<SiteSpec, Error> {
    let one = SiteSpec { nodes: Some(1), ..request.site.clone() }.topology()?;
    let hosts = u32::try_from(request.gpus.div_ceil(gpus_a_host(&one).into())).unwrap_or(u32::MAX);
    Ok(SiteSpec { nodes: Some(hosts.clamp(1, MOST_HOSTS)), ..request.site.clone() })
}

/// Refuses GPUs that are no whole number of hosts.
///
/// # Errors
/// These.
pub(super) fn whole_hosts(gpus: u64, host: u64) -> Result<(), Error> {
    if gpus == 0 || (gpus > host && !gpus.is_multiple_of(host)) {
        return Err(Error::usage(
            format!("{gpus} GPUs are no whole number of hosts of {host}"),
            format!("ask for 1 to {host}, or a multiple of {host}"),
        ));
    }
    Ok(())
}

/// What published runs of a kind say of its forecasts.
fn trust(framework: Framework, model: &Transformer) -> Trust {
    let (off, most, why) = match framework {
        _ if model.experts.is_some() => (
            0.5,
            if framework == Framework::HaiLlm { 2048 } else { 256 },
            "low: published runs of models with experts were forecast 20% off on average, some twice as fast as they were",
        ),
        Framework::Megatron | Framework::MegatronBridge => (
            0.15,
            1024,
            "medium: published runs of dense models by Megatron were forecast 3 to 6% off on average, 15% at most",
        ),
        Framework::MegatronPaper => (0.15, 512, "medium: eight published steps were forecast 2 to 9% too fast"),
        Framework::LlmFoundry => (0.2, 512, "medium: published runs of this framework were forecast 6% off on average"),
        _ => (
            0.3,
            512,
            "low: replicas alone were forecast within 9%, layers or sequences that are split up to 25% too fast",
        ),
    };
    Trust { off, why, most }
}

/// Sequences of a step where nobody says: replicas share them evenly, 72 GPUs those of 9 x 64.
fn batch(request: &Request, sequence: u64) -> u64 {
    let tokens = TOKENS[usize::from(request.batch_gpus.unwrap_or(request.gpus) >= MANY_GPUS)];
    let odd = odd_factor(request.gpus);
    odd * (tokens / sequence).max(1).div_ceil(odd).next_power_of_two()
}

fn odd_factor(number: u64) -> u64 {
    let number = number.max(1);
    number >> number.trailing_zeros()
}

/// What a sequence is split by as a rule, and which length near it would be: tensor and context ranks have equal parts of it.
fn odd_sequence(sequence: u64) -> Option<String> {
    /// Ranks that most layouts split a sequence over: those of a host.
    const PARTS: u64 = 8;
    if sequence.is_multiple_of(PARTS) {
        return None;
    }
    let nearest = ((sequence + PARTS / 2) / PARTS).max(1) * PARTS;
    Some(format!(
        "tensor and context ranks have equal parts of a sequence, and {sequence} tokens are no multiple of {PARTS}: --seq {nearest} allows more layouts"
    ))
}

impl Planning {
    /// What a request names, read and checked; on a machine of [`site`].
    ///
    /// # Errors
    /// A model or a profile that cannot be read, a machine of unknown GPUs, a number or a flag that has no meaning.
    pub(super) fn new(request: &Request, site: &Site) -> Result<Self, Error> {
        let (model, mut notes) = transformer::load(&request.model)?;
        let zero = |what: &str| Error::usage(format!("{what} is 0"), "give 1 or more, or leave it out");
        if request.sequence == Some(0) {
            return Err(zero("--seq"));
        }
        if request.global_batch == Some(0) || request.micro_batch == Some(0) {
            return Err(zero("a batch"));
        }
        run::check(request)?;
        let hosts = request.gpus.div_ceil(gpus_a_host(&site.topology).into());
        if hosts > u64::from(MOST_HOSTS) {
            notes.push(format!(
                "calls are simulated on {MOST_HOSTS} of {hosts} hosts, and extended to all by their steps"
            ));
        }
        if request.framework == Framework::HaiLlm && request.precision == Precision::Bf16 {
            return Err(Error::usage(
                "hai-llm is DeepSeek's training in FP8, and the precision is bf16",
                "give --precision fp8",
            ));
        }
        let of_experts = [
            ("--overlap-experts", request.overlap_experts),
            ("--fuse-experts", request.fuse_experts),
            ("--dispatch", request.dispatch.is_some()),
        ];
        if let Some((option, _)) = of_experts.iter().find(|(_, given)| *given && model.experts.is_none()) {
            return Err(Error::usage(
                format!("{option} is of models with experts, and `{}` has none", model.name),
                "leave it out",
            ));
        }
        let of_megatron =
            matches!(request.framework, Framework::Megatron | Framework::MegatronBridge | Framework::HaiLlm);
        if request.overlap_experts && !of_megatron {
            return Err(Error::usage(
                format!("--overlap-experts is Megatron's, and {} has no such passes", request.framework.name()),
                "leave it out, or give --framework megatron",
            ));
        }
        let mut gpu = crate::kernels::gpu_of(&site.topology, request.gpu.as_deref())?;
        if let Some(own) = request.gpu.as_deref().and_then(|name| Compute::builtin(name).ok())
            && own.capacity() != gpu.capacity()
        {
            let [has, of] = [gpu.capacity(), own.capacity()].map(|bytes| bytes as f64 / f64::from(1 << 30));
            let (name, machine) = (gpu.name(), &site.topology.name);
            notes.push(format!(
                "kernels are those of {name}; the memory is that of {machine}, {has:.1} GiB a GPU and not {of:.1}: give --on a machine that has them, or --vary gpu.capacity=GB"
            ));
        }
        let sequence = request.asked_sequence().unwrap_or(model.sequence);
        if request.asked_sequence().is_some() {
            notes.retain(|note| !note.ends_with(OTHER_SEQUENCE));
        }
        notes.retain(|note| window_of(note).is_none_or(|window| window < sequence));
        if request.layout.is_none() {
            notes.extend(odd_sequence(sequence));
        }
        notes.extend(model.too_long(sequence, "a sequence"));
        let given = request.layout.as_deref().is_some_and(|layout| says(layout, "gbs"));
        let mut assumed = None;
        let batch = request.global_batch.unwrap_or_else(|| {
            let sequences = batch(request, sequence);
            if given {
                return sequences;
            }
            assumed = Some(match request.asked_sequence() {
                None => {
                    format!(" ({sequences} sequences of {sequence} tokens are assumed: give --global-batch or --seq)")
                }
                Some(_) => format!(" ({sequences} sequences are assumed: give --global-batch)"),
            });
            notes.push(format!(
                "a step has {sequences} sequences of {sequence} tokens{}: give --global-batch for another",
                match odd_factor(request.gpus) {
                    1 => String::new(),
                    odd =>
                        format!(", a multiple of {odd}, so that the replicas of {} share them", of_gpus(request.gpus)),
                }
            ));
            sequences
        });
        let mut software = request.framework.software().with_precision(request.precision);
        software.execution.overlaps_tensor |= request.overlap_tensor;
        software.execution.overlaps_experts |= request.overlap_experts && !request.beside_by_schedule();
        if request.fuse_experts {
            // Transformer Engine, `pytorch/ops/fused/grouped_mlp.py`, `is_supported`: compute capability 10, MXFP8.
            let is_written = software.execution.expert_kernels == ExpertKernels::Written;
            let eight = request.precision == Precision::Fp8 && gpu.supports(Precision::Fp4);
            if !is_written || !eight || model.activation != Activation::SwiGlu {
                return Err(Error::usage(
                    "--fuse-experts is a kernel of Transformer Engine for SwiGLU in FP8 on Blackwell",
                    "leave it out, or give --framework megatron, --precision fp8 and a machine of such GPUs",
                ));
            }
            software.execution.expert_kernels = ExpertKernels::Fused;
        }
        if Self::gathers_8_bits(request, &gpu)? {
            software.states.gathered_in_layers = 1.0;
            notes.extend(request.param_gather.is_none().then(|| {
                let framework = request.framework.name();
                format!(
                    "replicas gather weights of layers in FP8, as {framework} does: --param-gather bf16 for 16 bits"
                )
            }));
        }
        if software.execution.reserves > 0 {
            let left = gpu[Constant::Sms].value - f64::from(software.execution.reserves);
            gpu.set(Constant::Sms, left.max(1.0));
        }
        software.execution.dispatch = request.dispatch.unwrap_or(software.execution.dispatch);
        let base = Parallel {
            global_batch: batch,
            sequence: request.sequence,
            zero: request.zero.unwrap_or(request.usual_zero()),
            schedule: Schedule::OneForwardOneBackward,
            ..Parallel::default()
        };
        let peak = gpu.peak(request.precision) / 1e12;
        notes.push(format!(
            "MFU and HFU are parts of {peak:.0} TFLOP/s a GPU, its dense peak in {}",
            request.precision.name()
        ));
        let (framework, trust) = (request.framework, trust(request.framework, &model));
        let planning = Self { framework, trust, software, model, gpu, slowest: 1.0, base, assumed, notes };
        if let Some(recompute) = request.recompute {
            planning.check_recompute(recompute)?;
        }
        Ok(planning)
    }

    /// Whether replicas gather weights of layers in 8 bits: where that is asked for, or else as the framework does.
    ///
    /// # Errors
    /// What its framework, its precision or what replicas share does not allow.
    fn gathers_8_bits(request: &Request, gpu: &Compute) -> Result<bool, Error> {
        let (framework, eight) = (request.framework, request.precision == Precision::Fp8);
        let zero = request.asked_zero().unwrap_or(request.usual_zero());
        let usual = eight && zero > 0 && framework.gathers_8_bits(gpu.supports(Precision::Fp4));
        let instead = "leave --param-gather out for what the framework does";
        match (request.param_gather, framework.least_zero_of_8_bits()) {
            (None, _) => Ok(usual),
            (Some(Precision::Fp8), _) if !eight => Err(Error::usage(
                format!("--param-gather fp8 is of products in FP8, and --precision is {}", request.precision.name()),
                "give --precision fp8, or leave it out",
            )),
            (Some(Precision::Fp8), None) => {
                Err(Error::usage(format!("{} gathers no weights in FP8", framework.name()), instead))
            }
            (Some(Precision::Fp8), Some(least)) if zero < least => {
                let message = format!("--param-gather fp8 takes --zero {least} or more with {}", framework.name());
                Err(Error::usage(message, instead))
            }
            (Some(Precision::Bf16), _) if framework == Framework::HaiLlm => {
                Err(Error::usage("hai-llm has its weights in FP8, and gathers them so", instead))
            }
            (Some(precision), _) => Ok(precision == Precision::Fp8),
        }
    }

    /// Whether layers have what the backward pass is to compute again: where they have not, it would change nothing.
    fn check_recompute(&self, recompute: Recompute) -> Result<(), Error> {
        let Self { model, software, .. } = self;
        let instead = "leave it out, or take `selective`: what is cheap for its bytes";
        if let Err(Refused { violations, .. }) = (Parallel { recompute, ..Parallel::default() }).check(model) {
            let broken: Vec<&str> = violations.iter().map(|violation| violation.message.as_str()).collect();
            return Err(Error::usage(broken.join("; "), instead));
        }
        let norms = matches!(recompute, Recompute::Modules(modules) if modules.has(Module::Layernorm));
        if norms && !software.has_norms_apart(model) {
            let message = format!(
                "recompute has layernorm, but all norms of `{}` run as one with the product after them, and keep no output",
                model.name
            );
            return Err(Error::usage(message, instead));
        }
        Ok(())
    }

    /// The layout given, or those that a search finds, and the run that the best one makes.
    ///
    /// # Errors
    /// GPUs that no layout fits or divides, a layout that breaks a rule.
    pub(super) fn plan(
        &self,
        request: &Request,
        site: &Site,
        calls: &Calls<'_>,
        watch: &Watch,
    ) -> Result<Outcome, Error> {
        whole_hosts(request.gpus, calls.host())?;
        let (layouts, looked_at) = match &request.layout {
            Some(text) => {
                let layout = self.given(request, text, calls)?;
                let fitting = usize::from(layout.fits);
                (vec![layout], (1, fitting, 1))
            }
            None => self.search(request, calls, watch)?,
        };
        let best = &layouts[0];
        let traffic = training::traffic(&self.training(&best.layout, calls, false), &training::Known::default());
        let (whole, assumed) = self.whole(request, site, best)?;
        let searched = request.layout.is_none().then(|| search::left_out(request));
        let strange = self.strange(&best.layout);
        let tokens_per_step = self.tokens(&best.layout);
        Ok(Outcome {
            machine: site.topology.name.clone(),
            gpus: request.gpus,
            gpu: self.gpu.name().to_owned(),
            capacity: (self.gpu.capacity(), self.usable()),
            tokens_per_step,
            calls: traffic.map_err(|error| self.failed(error))?,
            flops_per_token: self.flops(&best.layout) / tokens_per_step,
            looked_at,
            confidence: self.trust.confidence(request.gpus),
            whole,
            refused: Vec::new(),
            warnings: site.told.warnings.clone(),
            inputs: site.sources.clone(),
            notes: (site.rules())
                .chain(self.notes.iter().cloned())
                .chain(searched)
                .chain(strange)
                .chain(assumed)
                .collect(),
            layouts,
            model: self.model.clone(),
            sensitivities: Vec::new(),
            variations: Vec::new(),
        })
    }

    /// A layout that cannot be, with what was assumed where the batch is why.
    fn failed(&self, error: training::TrainingError) -> Error {
        let by_batch = match &error {
            training::TrainingError::Layout(refused) => refused.violations.iter().any(|v| v.keys.contains(&"gbs")),
            training::TrainingError::Passes(_) => true,
            _ => false,
        };
        match (failed(error), &self.assumed) {
            (Error::Usage { message, hint }, Some(assumed)) if by_batch => {
                Error::Usage { message: message + assumed, hint }
            }
            (error, _) => error,
        }
    }

    /// What each stage does when.
    ///
    /// # Errors
    /// A layout that breaks a rule.
    pub(super) fn spans(&self, layout: &Parallel, calls: &Calls<'_>) -> Result<Vec<Span>, Error> {
        let training = self.training(layout, calls, false);
        Ok(training::timeline(&training, &training::Known::default()).map_err(|error| self.failed(error))?.1)
    }

    /// What each rank does.
    ///
    /// # Errors
    /// An order of passes that a scenario cannot say.
    pub(super) fn written(&self, layout: &Parallel, calls: &Calls<'_>) -> Result<Programs, Error> {
        let training = self.training(layout, calls, false);
        training::written(&training, &training::Known::default()).map_err(|error| self.failed(error))
    }

    /// The run that a layout makes, and what was assumed of it.
    ///
    /// # Errors
    /// Failure rates that cannot be read, a run that never ends.
    pub(super) fn whole(
        &self,
        request: &Request,
        site: &Site,
        best: &Layout,
    ) -> Result<(Option<Whole>, Option<String>), Error> {
        let bytes = self.model.parameters().held() as f64 * self.software.states.checkpoint();
        run::whole(request, &site.topology, best, (self.tokens(&best.layout), bytes))
    }

    /// What a layout has that its framework has not.
    pub(super) fn strange(&self, layout: &Parallel) -> Option<String> {
        let of = |what: &str, has: String| {
            format!("{} has no {what}, which is forecast as if it had: it has {has}", self.framework.name())
        };
        let (schedules, zeros) = (self.framework.schedules(), self.framework.zero_stages());
        if layout.pipeline > 1 && !schedules.contains(&layout.schedule) {
            let names: Vec<&str> = schedules.iter().map(|schedule| schedule.name()).collect();
            return Some(of(&format!("schedule {}", layout.schedule.name()), names.join(", ")));
        }
        let shares = layout.data.saturating_mul(layout.context) > 1;
        (shares && !zeros.contains(&layout.zero)).then(|| {
            let stages: Vec<String> = zeros.iter().map(u8::to_string).collect();
            of(&format!("ZeRO {}", layout.zero), stages.join(", "))
        })
    }

    fn usable(&self) -> u64 {
        (self.gpu.capacity() as f64 * FILLED) as u64
    }

    fn tokens(&self, parallel: &Parallel) -> f64 {
        parallel.global_batch as f64 * parallel.sequence(&self.model) as f64
    }

    /// FLOPs of the model in a step.
    fn flops(&self, parallel: &Parallel) -> f64 {
        self.model.flops(parallel.sequence(&self.model), Mask::Causal).training() * self.tokens(parallel)
    }

    fn training<'a>(&'a self, parallel: &'a Parallel, calls: &'a Calls<'a>, rough: bool) -> Training<'a> {
        let Self { model, software, gpu, .. } = self;
        Training { model, parallel, software, gpu, calls, kernels_off: self.trust.off, rough, slowest: self.slowest }
    }

    /// The layout that a user gives.
    fn given(&self, request: &Request, text: &str, calls: &Calls<'_>) -> Result<Layout, Error> {
        let mut parallel = Parallel::parse(text)
            .map_err(|e| Error::usage(format!("--layout: {e}"), "as in --layout tp=4,pp=8,dp=2"))?;
        let says = |key: &str| says(text, key);
        for (key, flag, differs) in [
            ("mbs", "--micro-batch", request.micro_batch.is_some_and(|n| n != parallel.micro_batch)),
            ("gbs", "--global-batch", request.global_batch.is_some_and(|n| n != parallel.global_batch)),
            ("seq", "--seq", request.sequence.is_some() && request.sequence != parallel.sequence),
            ("zero", "--zero", request.zero.is_some_and(|n| n != parallel.zero)),
            ("recompute", "--recompute", request.recompute.is_some_and(|r| r != parallel.recompute)),
        ] {
            if differs && says(key) {
                let message = format!("{flag} and `{key}` of --layout say different things");
                return Err(Error::usage(message, format!("leave {flag} out, or `{key}`")));
            }
        }
        if !says("mbs") {
            parallel.micro_batch = request.micro_batch.unwrap_or(1);
        }
        if !says("gbs") {
            parallel.global_batch = self.base.global_batch;
        }
        if !says("seq") {
            parallel.sequence = request.sequence;
        }
        if !says("zero") {
            parallel.zero = self.base.zero;
        }
        if !says("sp") {
            parallel.sequence_parallel = parallel.tensor > 1;
        }
        if let Some(recompute) = request.recompute.filter(|_| !says("recompute")) {
            parallel.recompute = recompute;
        }
        if request.beside_by_schedule() && parallel.schedule != Schedule::DualPipe {
            let schedule = parallel.schedule.name();
            return Err(Error::usage(
                format!("hai-llm has passes beside each other in DualPipe alone, and the schedule is {schedule}"),
                "add schedule=dualpipe to --layout, or leave --overlap-experts out",
            ));
        }
        let plain = parallel.schedule == Schedule::OneForwardOneBackward || parallel.virtual_stages > 1;
        for (what, given, key, size) in [
            (format!("schedule={}", parallel.schedule.name()), !plain, "pp", parallel.pipeline),
            ("--overlap-tensor".to_owned(), request.overlap_tensor, "tp", parallel.tensor),
            ("--dispatch".to_owned(), request.dispatch.is_some(), "ep", parallel.expert),
        ] {
            if given && size == 1 {
                let message = format!("{what} has no meaning here: {key} of --layout is 1");
                return Err(Error::usage(message, format!("leave it out, or give {key}=2 or more")));
            }
        }
        self.timed(self.on(request.gpus, parallel, says("dp"))?, calls)
    }

    /// A layout on so many GPUs: its replicas, unless they are given, and its stages.
    ///
    /// # Errors
    /// GPUs that it has no use for, or lacks.
    pub(super) fn on(&self, gpus: u64, mut parallel: Parallel, replicas_given: bool) -> Result<Parallel, Error> {
        let others = Parallel { data: 1, ..parallel }.ranks();
        if !replicas_given && gpus.is_multiple_of(others) {
            parallel.data = u32::try_from(gpus / others).unwrap_or(u32::MAX);
        }
        if !matches!(parallel.split, Split::Ends { .. }) {
            parallel.split = Split::of(&self.model, &parallel);
        }
        if parallel.ranks() != gpus {
            return Err(Error::usage(
                format!("the layout {parallel} has {} ranks, and there are {gpus} GPUs", parallel.ranks()),
                if replicas_given {
                    "leave dp out: it becomes what the GPUs allow"
                } else {
                    "choose tp, pp and cp whose product divides the GPUs; dp is the rest"
                },
            ));
        }
        Ok(parallel)
    }

    /// A layout with its time and memory.
    ///
    /// # Errors
    /// A layout that breaks a rule.
    pub(super) fn timed(&self, parallel: Parallel, calls: &Calls<'_>) -> Result<Layout, Error> {
        let memory =
            memory::plan(&self.model, &parallel, &self.software).map_err(|refused| self.failed(refused.into()))?;
        self.check_recompute(parallel.recompute)?;
        let memory = memory.within(self.gpu.capacity());
        let step = training::step(&self.training(&parallel, calls, false), &training::Known::default())
            .map_err(|error| self.failed(error))?;
        // A search leaves some memory free; a layout that is given may take all.
        let fit = memory.fits(self.gpu.capacity());
        let tokens = self.tokens(&parallel);
        let flops = self.flops(&parallel);
        let again = work::flops_again(&self.model, &parallel, &self.software);
        let gpu_seconds = parallel.ranks() as f64 * step.seconds;
        let rate = self.gpu.peak(self.software.execution.precision) * gpu_seconds;
        Ok(Layout {
            text: parallel.to_string(),
            tokens_per_s_per_gpu: tokens / step.seconds / parallel.ranks() as f64,
            tflops: flops / gpu_seconds / 1e12,
            mfu: flops / rate,
            hfu: (flops + again) / rate,
            memory: memory.worst(),
            fits: matches!(fit, Fit::Fits { .. }),
            lacks: match fit {
                Fit::Fits { .. } => None,
                Fit::TooLarge { lacks, most, .. } => Some((lacks, most)),
            },
            layout: parallel,
            step,
        })
    }

    /// The fastest layouts that fit: exactly those that simulating all of them would give, since a layout is left out only
    /// where its bound is no better than the last of those that are kept.
    fn search(&self, request: &Request, calls: &Calls<'_>, watch: &Watch) -> Result<Searched, Error> {
        let place = Place { host: calls.host(), domain: calls.domain() };
        let all = search::layouts((&self.model, &self.software), request, &self.base, place);
        if all.is_empty() {
            return Err(self.nothing_divides(request));
        }
        let usable = self.usable();
        let fits = |p: &Parallel| {
            memory::plan(&self.model, p, &self.software).is_ok_and(|m| matches!(m.fits(usable), Fit::Fits { .. }))
        };
        // Without units ZeRO-2 takes as long as ZeRO-1, and is worth a look where that does not fit.
        let saves = |p: &Parallel| {
            p.zero != 2
                || request.zero == Some(2)
                || self.software.execution.by_units(2)
                || !fits(&Parallel { zero: 1, ..*p })
        };
        let fitting: Vec<&Parallel> = all.par_iter().filter(|p| fits(p) && saves(p)).collect();
        if fitting.is_empty() {
            return Err(self.nothing_fits(&all, request, place));
        }
        let known = training::Known::default();
        let mut bounded: Vec<(f64, &Parallel)> = (fitting.par_iter())
            .map(|&parallel| Ok((training::bound(&self.training(parallel, calls, true), &known)?, parallel)))
            .collect::<Result<_, training::TrainingError>>()
            .map_err(|error| self.failed(error))?;
        bounded.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.to_string().cmp(&b.1.to_string())));
        let parts = watch.parts(bounded.len());
        let most = request.most.saturating_add(SPARE);
        let mut kept: BinaryHeap<Ranked> = BinaryHeap::new();
        let mut simulated = 0;
        for part in bounded.chunks(AT_ONCE) {
            let last = if kept.len() >= most { kept.peek().map_or(f64::INFINITY, |r| r.0) } else { f64::INFINITY };
            if part[0].0 > last {
                break;
            }
            let steps: Vec<Result<Option<Ranked>, Error>> = (part.par_iter())
                .map(|&(bound, parallel)| {
                    parts.done()?;
                    if bound > last {
                        return Ok(None);
                    }
                    let step = training::step(&self.training(parallel, calls, true), &known)
                        .map_err(|error| self.failed(error))?;
                    Ok(Some(Ranked(step.seconds, parallel.to_string(), *parallel)))
                })
                .collect();
            for ranked in steps {
                let Some(ranked) = ranked? else { continue };
                simulated += 1;
                kept.push(ranked);
                if kept.len() > most {
                    kept.pop();
                }
            }
        }
        let mut layouts: Vec<Layout> = kept.into_iter().map(|r| self.timed(r.2, calls)).collect::<Result<_, _>>()?;
        layouts.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds).then_with(|| a.text.cmp(&b.text)));
        layouts.truncate(request.most);
        Ok((layouts, (all.len(), fitting.len(), simulated)))
    }

    fn nothing_divides(&self, request: &Request) -> Error {
        if request.overlap_experts {
            let message =
                format!("no layout of `{}` on {} GPUs has passes beside each other", self.model.name, request.gpus);
            return Error::usage(message, "leave --overlap-experts out; a --layout says which of its rules it breaks");
        }
        Error::usage(
            format!(
                "no layout of `{}` divides {} with {} sequences a step{}",
                self.model.name,
                of_gpus(request.gpus),
                self.base.global_batch,
                self.assumed.as_deref().unwrap_or_default()
            ),
            "change --gpus or --global-batch; `--layout tp=8,pp=4` says which rule a layout breaks",
        )
    }

    /// By how much the smallest layout is too large, whether it would fit if replicas shared parameters, and on how few GPUs.
    fn nothing_fits(&self, all: &[Parallel], request: &Request, place: Place) -> Error {
        let total = |p: &Parallel| memory::plan(&self.model, p, &self.software).map_or(u64::MAX, |m| m.worst().total());
        let best = all.iter().min_by_key(|p| total(p));
        let (needs, text) = best.map_or((0, String::new()), |p| (total(p), p.to_string()));
        // More GPUs may be more of a rack.
        let most = SiteSpec { nodes: Some(MOST_HOSTS), ..request.site.clone() }.topology();
        let place = Place { domain: most.map_or(place.domain, |topology| domain(&topology)), ..place };
        let fits = |gpus: u64, zero: Option<u8>| {
            let request = Request { gpus, zero, ..request.clone() };
            let global_batch = request.global_batch.unwrap_or_else(|| batch(&request, self.base.sequence(&self.model)));
            let base = Parallel { global_batch, ..self.base };
            let more = search::layouts((&self.model, &self.software), &request, &base, place);
            more.par_iter().any(|p| total(p) <= self.usable())
        };
        let shared = (request.zero.is_some_and(|zero| zero < 3) && fits(request.gpus, Some(3)))
            .then(|| format!("--zero 3, with which it fits on {}", of_gpus(request.gpus)));
        // Each parameter is there once at least.
        let bytes = self.model.parameters().held() as f64 * self.software.states.held(0, 1);
        let least = (bytes / self.usable() as f64) as u64;
        let fewest = counts_above(request.gpus.max(least), place.host)
            .filter(|&gpus| gpus > request.gpus)
            .find(|&gpus| fits(gpus, request.zero))
            .map(|gpus| format!("it fits on {} of this kind", of_gpus(gpus)));
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let way = match (shared, fewest) {
            (Some(shared), Some(fewest)) => format!("{fewest}; or give {shared}"),
            (Some(shared), None) => format!("give {shared}"),
            (None, Some(fewest)) => fewest,
            (None, None) => "take a smaller model, shorter sequences or GPUs with more memory".to_owned(),
        };
        Error::usage(
            format!(
                "`{}` does not fit on {}: the smallest layout ({text}) needs {:.1} GiB a GPU, of {:.1} that may be filled",
                self.model.name,
                of_gpus(request.gpus),
                gib(needs),
                gib(self.usable())
            ),
            way,
        )
    }
}

/// Counts of GPUs from one on: those of a part of a host, then whole hosts that layouts divide well, which have no prime above
/// 7, then powers of two.
fn counts_above(gpus: u64, host: u64) -> impl Iterator<Item = u64> {
    let from = gpus.div_ceil(host).max(1);
    let left = |count: u64, prime: u64| {
        std::iter::successors(Some(count), |n| n.is_multiple_of(prime).then(|| n / prime)).last()
    };
    let divides = move |count: &u64| [2, 3, 5, 7].into_iter().try_fold(*count, left) == Some(1);
    let near = (from..=from.saturating_mul(2)).filter(divides).take(NEAR_COUNTS);
    let far = (1..=10).map(move |log| from.next_power_of_two() << log);
    let hosts = near.chain(far).map(move |hosts| hosts.saturating_mul(host));
    (gpus.max(1)..host).chain(hosts).take_while(|&gpus| gpus <= MAX_RANKS)
}

/// Counts of GPUs near one that are tried, before its multiples are.
const NEAR_COUNTS: usize = 16;

/// Layouts that are compared in detail beside those that are shown: what is nearly as fast may change places with the last.
const SPARE: usize = 5;

/// Layouts that are simulated at once, before those that are left are held against the best.
const AT_ONCE: usize = 32;

/// A step with its layout, the slowest first.
struct Ranked(f64, String, Parallel);

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Ranked {}
impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then_with(|| self.1.cmp(&other.1))
    }
}

fn failed(error: training::TrainingError) -> Error {
    match error {
        training::TrainingError::Predict(error) => error.into(),
        training::TrainingError::Layout(refused) => {
            let nearest: Vec<String> = refused.nearest.iter().map(ToString::to_string).collect();
            let way = if nearest.is_empty() {
                "change more of the layout, --gpus or --global-batch: no near layout of as many GPUs works".to_owned()
            } else {
                format!("these work: {}", nearest.join("; "))
            };
            let broken: Vec<&str> = refused.violations.iter().map(|v| v.message.as_str()).collect();
            Error::usage(broken.join("; "), way)
        }
        training::TrainingError::NotWritten(_) => Error::usage(
            error.to_string(),
            "write a layout with 1F1B, interleaved 1F1B or GPipe and without offload, such as --layout pp=4,vpp=2",
        ),
        training::TrainingError::Passes(_) => {
            Error::usage(error.to_string(), "raise dp or mbs, or lower the global batch")
        }
        other => Error::usage(other.to_string(), "take another schedule or precision"),
    }
}
