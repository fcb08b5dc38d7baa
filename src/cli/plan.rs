//! `collcast plan`: which layout trains a model fastest on so many GPUs, and when the run is done.

use std::path::PathBuf;

use collcast::plan::fields::{Layer, requests};
use collcast::plan::{self, Choice, Request, Sites, file, left_out, scenario, timeline};
use collcast::shard::{Parts, question};
use collcast::views::without_empty;
use collcast::{Error, SiteSpec};

use super::call::Code;
use super::output::{OutputArgs, PageArgs, write};
use super::progress::watched;
use super::selectors::{NcclArgs, profile_folders};
use super::shard::{ShardArgs, write_part};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "MODEL is a built-in one (llama3-8b llama3-70b llama3-405b gpt3-175b nemotron4-15b nemotron4-340b mixtral-8x7b
mixtral-8x22b deepseek-v3 and more), a TOML file with schema collcast/model/1, or a Hugging Face config.json.

  collcast plan llama3-70b --on dgx-h100 --gpus 1024 --tokens 15T
  collcast plan llama3-405b --on dgx-h100 --gpus 1024 --layout tp=8,pp=8,vpp=4 --global-batch 512
  collcast plan llama3-70b --on dgx-h100 --on dgx-b200 --gpus 512..2048 --tokens 15T
  collcast plan examples/plan/options.toml      options as a file: its fields are these flags
  collcast plan my/config.json --on aws-p5 --gpus 64 --framework torchtitan-compiled --seq 8192

Built-in machines whose GPUs have a profile: dgx-a100 dgx-h100 dgx-h200 dgx-b200 h200x2 h200x4 ib-rail gb200-nvl72 aws-p4de
aws-p5 aws-p5e aws-p5en aws-p6-b200 aws-p6e-gb200 azure-nd-h100-v5 azure-nd-h200-v5 azure-nd-gb200-v6 gcp-a3 gcp-a3-mega
gcp-a3-ultra gcp-a4 gcp-a4x oci-h100 oci-b200 oci-gb200 kestrel-h100 h800-roce. Others need --gpu.

A fleet that serves a model is planned by `collcast serve MODEL --smallest GPUS`."
)]
pub(crate) struct Args {
    /// Built-in model, model file, Hugging Face config.json, or a file of schema collcast/plan-request/1 with several options
    #[arg(value_name = "MODEL|FILE")]
    model: Option<String>,
    /// Built-in machine or topology file; it has as many hosts as the GPUs need. Several are compared [default: dgx-h100]
    #[arg(long = "on", visible_alias = "topology", short = 't', value_name = "TOPOLOGY", help_heading = "Machine")]
    on: Vec<String>,
    /// GPUs of the job; several are compared, as in 512,2048 or 256..4096 (powers of two)
    #[arg(long, value_name = "N[,N]|N..N", help_heading = "Machine")]
    gpus: Option<String>,
    /// Profile of the GPU's kernels and copies: by name (a100 h100 h100-500w h200 b200 gb200) or file [default: the machine's GPU]
    #[arg(long, value_name = "GPU", help_heading = "Machine")]
    gpu: Option<String>,
    /// Profile of links and hosts: built-in name or TOML file; several layer, the later wins per parameter
    #[arg(long, value_name = "PROFILE[,PROFILE]", value_delimiter = ',', help_heading = "Machine")]
    profile: Vec<String>,
    #[command(flatten)]
    nccl: NcclArgs,
    /// Layout, such as tp=8,pp=4,vpp=5,cp=1,ep=1; dp follows from the GPUs; first= and last= are layers of these stages [default: searched]
    #[arg(long, value_name = "K=V[,K=V]", help_heading = "Training")]
    layout: Option<String>,
    /// Sequences of a micro-batch [default: searched]
    #[arg(long, value_name = "N", help_heading = "Training")]
    micro_batch: Option<String>,
    /// Sequences of a step [default: 4 Mi tokens, from 4,096 GPUs on 16 Mi, or the next number that replicas of an odd count share evenly]
    #[arg(long, value_name = "N", help_heading = "Training")]
    global_batch: Option<String>,
    /// Tokens of a sequence [default: the model's]
    #[arg(long, value_name = "N", help_heading = "Training")]
    seq: Option<String>,
    /// Precision of linear layers: bf16, fp8 or fp4 [default: bf16]
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    precision: Option<String>,
    /// In what replicas gather the weights of layers: bf16, or fp8 with --precision fp8 (Megatron's --fp8-param-gather, torchao's
    /// enable_fsdp_float8_all_gather) [default: bf16; with --precision fp8 on Hopper fp8 of megatron-bridge, and of hai-llm]
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    param_gather: Option<String>,
    /// What the backward pass computes again: none, selective, full, or Megatron's modules, such as mla_up_proj+mlp [default: searched]
    #[arg(long, value_name = "NAME[+NAME]", help_heading = "Training")]
    recompute: Option<String>,
    /// What replicas share: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too [default: searched; of a --layout 1, with torchtitan and llm-foundry 3]
    #[arg(long, value_name = "0..3", help_heading = "Training")]
    zero: Option<String>,
    /// Framework: megatron, megatron-bridge (its recipes for performance), eager, compiled, torchtitan, torchtitan-compiled, those of 2024 (torchtitan-2024, torchtitan-2024-compiled), llm-foundry, hai-llm (DeepSeek-V3, in FP8) or megatron-paper [default: megatron]
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    framework: Option<String>,
    /// Tensor ranks exchange beside products, in pieces (async TP, Megatron's --tp-comm-overlap)
    #[arg(long, help_heading = "Training")]
    overlap_tensor: bool,
    /// Forward passes run beside backward passes of other micro-batches, and hide exchanges of experts' tokens (Megatron's --overlap-moe-expert-parallel-comm)
    #[arg(long, help_heading = "Training")]
    overlap_experts: bool,
    /// Products of all experts are one kernel with SwiGLU and the casts to 8 bits inside (Megatron's --use-transformer-engine-op-fuser)
    #[arg(long, help_heading = "Training")]
    fuse_experts: bool,
    /// How tokens go to experts: alltoall, a copy for each expert, or deepep, once to every host (also HybridEP) [default: alltoall]
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    dispatch: Option<String>,
    /// Tokens of the whole run, such as 15T: says when it is done, with failures
    #[arg(long, value_name = "N", help_heading = "Run")]
    tokens: Option<String>,
    /// Price of a GPU and hour, or that of each machine, as in dgx-h100=2.5,dgx-b200=4
    #[arg(long, value_name = "PRICE", allow_negative_numbers = true, help_heading = "Run")]
    price: Option<String>,
    /// Failure rates, by name (llama3-405b rsc-1 rsc-2 bloom) or file of schema collcast/failures/1 [default: llama3-405b]
    #[arg(long, value_name = "NAME|FILE", help_heading = "Failures")]
    failures: Option<String>,
    /// Hosts that stand by; with --repair [default: as many as it takes]
    #[arg(long, value_name = "HOSTS", help_heading = "Failures")]
    spares: Option<String>,
    /// From the failure of a host until it stands by again, such as 24h; a bare number is hours
    #[arg(long, value_name = "TIME", help_heading = "Failures")]
    repair: Option<String>,
    /// From a failure to the first new step, such as 5min; a bare number is seconds [default: 10min]
    #[arg(long, value_name = "TIME", help_heading = "Failures")]
    restart: Option<String>,
    /// Rate at which storage takes a checkpoint of the whole job, such as "2 TB/s" [default: 122 MB/s a GPU]
    #[arg(long, value_name = "RATE", help_heading = "Failures")]
    storage: Option<String>,
    /// Work between two checkpoints, such as 30min; a bare number is minutes [default: the optimum]
    #[arg(long, value_name = "TIME", help_heading = "Failures")]
    checkpoint_every: Option<String>,
    /// A step waits until its checkpoint is in storage [default: until it is in host memory]
    #[arg(long, help_heading = "Failures")]
    blocking_checkpoints: bool,
    /// Simulate the best layout with one thing changed at a time: rates, latencies, power, failures
    #[arg(long, help_heading = "What if")]
    sensitivities: bool,
    /// Other values of a key: the best layout is simulated with each; keys are constants of both profiles, nic.rate, nvlink.rate, pcie.rate,
    /// fabric.rate, nics, slowest-gpu, bucket, failure-rate, on, gpus, a key of the layout such as tp, or a flag of this help. x2, +10 and -10
    /// are of the present value
    #[arg(long, value_name = "KEY=A[,B]", help_heading = "What if")]
    vary: Vec<String>,
    /// List the calls of the best layout's step: ranks, size, how many, algorithm, time, and what no kernel hides. JSON always has them
    #[arg(long, help_heading = "Output")]
    calls: bool,
    /// Write a timeline for ui.perfetto.dev: passes, messages and calls by stage of the best layout's step
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    timeline: Option<PathBuf>,
    /// Write the best layout's step as a scenario, kernel by kernel and call by call: `collcast simulate FILE` runs it
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    write_scenario: Option<PathBuf>,
    /// Layouts of the answer, of one machine and count [default: 10]
    #[arg(long, value_name = "N", help_heading = "Output")]
    top: Option<String>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) page: PageArgs,
    #[command(flatten)]
    shard: ShardArgs,
}

impl Args {
    /// What the flags say.
    fn layer(&self) -> Layer {
        let texts = [
            ("model", &self.model),
            ("gpu", &self.gpu),
            ("nccl", &self.nccl.nccl),
            ("layout", &self.layout),
            ("micro-batch", &self.micro_batch),
            ("global-batch", &self.global_batch),
            ("seq", &self.seq),
            ("precision", &self.precision),
            ("param-gather", &self.param_gather),
            ("recompute", &self.recompute),
            ("zero", &self.zero),
            ("framework", &self.framework),
            ("dispatch", &self.dispatch),
            ("tokens", &self.tokens),
            ("price", &self.price),
            ("failures", &self.failures),
            ("spares", &self.spares),
            ("repair", &self.repair),
            ("restart", &self.restart),
            ("storage", &self.storage),
            ("checkpoint-every", &self.checkpoint_every),
            ("top", &self.top),
        ];
        let mut fields: Vec<(&'static str, String)> =
            texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?))).collect();
        if !self.profile.is_empty() {
            fields.push(("profile", self.profile.join(",")));
        }
        fields.extend(self.nccl.env.iter().map(|text| ("env", text.clone())));
        let flags = [
            ("overlap-tensor", self.overlap_tensor),
            ("overlap-experts", self.overlap_experts),
            ("fuse-experts", self.fuse_experts),
            ("blocking-checkpoints", self.blocking_checkpoints),
        ];
        fields.extend(flags.into_iter().filter(|flag| flag.1).map(|(name, _)| (name, "on".to_owned())));
        Layer { name: None, on: self.on.clone(), gpus: self.gpus.clone(), fields }
    }
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    answer(args, None)
}

/// A part of the answer, or all of it; of that parts may be known.
pub(super) fn answer(args: &Args, merged: Option<&Parts>) -> Result<Code, Error> {
    let site = SiteSpec { profile_folders: profile_folders()?, ..SiteSpec::default() };
    let (sensitivities, vary) = (args.sensitivities, args.vary.clone());
    let base = Request { site, sensitivities, vary, ..Request::new("", "", 0) };
    let flags = args.layer();
    let options = match args.model.as_deref().map(file::find).transpose()?.flatten() {
        Some(options) => {
            let flags =
                Layer { fields: flags.fields.into_iter().filter(|field| field.0 != "model").collect(), ..flags };
            options.iter().map(|option| option.under(&flags)).collect()
        }
        None => vec![flags],
    };
    let asked = requests(&options, &base)?;
    let mut requests: Vec<Request> = Vec::new();
    for request in &asked {
        if !requests.contains(request) {
            requests.push(request.clone());
        }
    }
    if requests.len() < asked.len() {
        say!("note: {} of {} options are there before: shown once", asked.len() - requests.len(), asked.len());
    }
    let [one] = requests.as_slice() else {
        let of_one = [
            ("--timeline", args.timeline.is_some()),
            ("--write-scenario", args.write_scenario.is_some()),
            ("--calls", args.calls),
        ];
        for (option, given) in of_one {
            if given {
                let message = format!("{option} is of one machine and count, and these are several");
                return Err(Error::usage(message, "name one of them"));
            }
        }
        let sites = Sites::of(&requests)?;
        let question = || question(&sites.sites, &requests);
        if let Some(shard) = args.shard.of(merged) {
            let part = watched("simulating layouts", |watch| plan::part(&requests, &sites, shard, watch))?;
            return write_part(&args.output, &question(), shard, &part);
        }
        let known = merged.map_or(Ok(Vec::new()), |parts| parts.answers(&question()))?;
        let options = watched("simulating layouts", |watch| plan::merged(&requests, &sites, known, watch))?;
        args.page.write(|| options.report())?;
        args.output.print(&options.report(), None)?;
        return Ok(if options.options.iter().any(Choice::fits) { Code::SUCCESS } else { Code::FAILURE });
    };
    if args.shard.of(merged).is_some() {
        return Err(Error::usage(
            "--shard divides machines and counts, and this is one of each",
            "leave it out: one search takes seconds",
        ));
    }
    let outcome = watched("simulating layouts", |watch| plan::plan(one, watch))?;
    if let Some(path) = &args.timeline {
        write(Some(path), &timeline(one, &outcome)?)?;
        say!("note: timeline in {}; open it in ui.perfetto.dev", path.display());
    }
    if let Some(path) = &args.write_scenario {
        write(Some(path), scenario(one, &outcome)?.as_bytes())?;
        say!("note: scenario in {}; `collcast simulate` runs it", path.display());
        if let Some(less) = left_out(&outcome) {
            say!("warning: scenario: {less}");
        }
    }
    args.page.write(|| outcome.report())?;
    let mut report = outcome.report();
    if args.output.for_people() {
        without_empty(&mut report, &["sensitivities", "variations"]);
        report.tables.retain(|table| args.calls || table.name != "calls");
    }
    args.output.print(&report, None)?;
    Ok(if outcome.layouts.iter().any(|layout| layout.fits) { Code::SUCCESS } else { Code::FAILURE })
}
