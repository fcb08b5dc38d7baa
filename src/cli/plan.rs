//! `collcast plan`: which layout trains a model fastest on so many GPUs, and when the run is done.

use std::process::ExitCode;

use collcast::plan::{Request, plan};
use collcast::scenarios::memory::Framework;
use collcast::scenarios::parallel::Recompute;
use collcast::sim::compute::Precision;
use collcast::{Error, SiteSpec};

use crate::output::{OutputArgs, watched};
use crate::selectors::profile_folders;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "MODEL is a built-in one (llama3-8b llama3-70b llama3-405b gpt3-175b nemotron4-15b nemotron4-340b mixtral-8x7b
mixtral-8x22b deepseek-v3 and more), a TOML file with schema collcast/model/1, or a Hugging Face config.json.

  collcast plan llama3-70b --on dgx-h100 --gpus 1024 --tokens 15T
  collcast plan llama3-405b --on dgx-h100 --gpus 1024 --layout tp=8,pp=8,vpp=4 --global-batch 512
  collcast plan my/config.json --on aws-p5 --gpus 64 --framework torchtitan-compiled --seq 8192"
)]
pub(crate) struct Args {
    /// Built-in model, model file, or Hugging Face config.json
    #[arg(value_name = "MODEL")]
    model: String,
    /// Built-in machine or topology file; it has as many hosts as the GPUs need
    #[arg(long = "on", visible_alias = "topology", short = 't', value_name = "MACHINE", default_value = collcast::site::DEFAULT_MACHINE, help_heading = "Machine")]
    machine: String,
    /// GPUs of the job
    #[arg(long, value_name = "N", help_heading = "Machine")]
    gpus: u64,
    /// Profile of the GPU's kernels, by name (a100 h100 h100-500w h200 b200 gb200) or file [default: the machine's GPU]
    #[arg(long, value_name = "GPU", help_heading = "Machine")]
    gpu: Option<String>,
    /// Network profile: built-in name or TOML file; several layer
    #[arg(long, value_name = "PROFILE", help_heading = "Machine")]
    profile: Vec<String>,
    /// Layout, such as tp=8,pp=4,vpp=5,cp=1,ep=1; dp follows from the GPUs [default: searched]
    #[arg(long, value_name = "K=V[,K=V]", help_heading = "Training")]
    layout: Option<String>,
    /// Sequences of a micro-batch [default: searched]
    #[arg(long, value_name = "N", help_heading = "Training")]
    micro_batch: Option<u32>,
    /// Sequences of a step [default: 4 Mi tokens, from 4,096 GPUs on 16 Mi]
    #[arg(long, value_name = "N", help_heading = "Training")]
    global_batch: Option<u64>,
    /// Tokens of a sequence [default: the model's]
    #[arg(long, value_name = "N", help_heading = "Training")]
    seq: Option<u64>,
    /// Precision of linear layers: bf16, fp8 or fp4
    #[arg(long, value_name = "NAME", default_value = "bf16", value_parser = precision, help_heading = "Training")]
    precision: Precision,
    /// What the backward pass computes again: none, selective or full [default: searched]
    #[arg(long, value_name = "NAME", value_parser = recompute, help_heading = "Training")]
    recompute: Option<Recompute>,
    /// What replicas share: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too [default: 1; torchtitan and llm-foundry 3]
    #[arg(long, value_name = "0..3", value_parser = clap::value_parser!(u8).range(0..=3), help_heading = "Training")]
    zero: Option<u8>,
    /// Framework: megatron, eager, compiled, torchtitan, torchtitan-compiled, llm-foundry or megatron-paper
    #[arg(long, value_name = "NAME", default_value = "megatron", value_parser = Framework::parse, help_heading = "Training")]
    framework: Framework,
    /// Tensor ranks exchange beside products, in pieces (async TP, Megatron's --tp-comm-overlap)
    #[arg(long, help_heading = "Training")]
    overlap_tensor: bool,
    /// Tokens of the whole run, such as 15T: says when it is done, with failures
    #[arg(long, value_name = "N", value_parser = tokens, help_heading = "Run")]
    tokens: Option<f64>,
    /// Price of a GPU and hour
    #[arg(long, value_name = "PRICE", requires = "tokens", help_heading = "Run")]
    price: Option<f64>,
    /// Layouts of the answer
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Output")]
    top: u16,
    #[command(flatten)]
    output: OutputArgs,
}

/// Layouts on a progress bar's whole length.
const LAYOUTS: usize = 10_000;

/// A value by its name.
fn named<T: Copy>(given: &str, known: &[(&'static str, T)]) -> Result<T, String> {
    let names = || known.iter().map(|k| k.0);
    known.iter().find(|k| k.0.eq_ignore_ascii_case(given)).map(|k| k.1).ok_or_else(|| {
        let near = collcast::sim::collective::nearest(given, names());
        let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
        format!("not known{near}; known: {}", names().collect::<Vec<_>>().join(", "))
    })
}

fn precision(given: &str) -> Result<Precision, String> {
    named(given, &Precision::ALL.map(|p| (p.name(), p)))
}

fn recompute(given: &str) -> Result<Recompute, String> {
    named(given, &[("none", Recompute::None), ("selective", Recompute::Selective), ("full", Recompute::Full)])
}

/// A count with the letters of tokens: K, M, B and T are powers of a thousand.
fn tokens(given: &str) -> Result<f64, String> {
    let (number, factor) = match given.char_indices().last() {
        Some((at, 'k' | 'K')) => (&given[..at], 1e3),
        Some((at, 'm' | 'M')) => (&given[..at], 1e6),
        Some((at, 'b' | 'B' | 'g' | 'G')) => (&given[..at], 1e9),
        Some((at, 't' | 'T')) => (&given[..at], 1e12),
        _ => (given, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && (value * factor) <= 1e18 => Ok(value * factor),
        _ => Err("expected a number of tokens above 0, such as 15T or 300B".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if args.price.is_some_and(|price| !price.is_finite() || price < 0.0) {
        return Err(Error::usage("--price is no price", "give a number from 0 on, such as 2.5"));
    }
    let request = Request {
        site: SiteSpec {
            topology: Some(args.machine.clone()),
            profiles: args.profile.clone(),
            profile_folders: profile_folders(),
            ..SiteSpec::default()
        },
        gpu: args.gpu.clone(),
        layout: args.layout.clone(),
        micro_batch: args.micro_batch,
        global_batch: args.global_batch,
        sequence: args.seq,
        precision: args.precision,
        recompute: args.recompute,
        zero: args.zero,
        framework: args.framework,
        overlap_tensor: args.overlap_tensor,
        tokens: args.tokens,
        price: args.price,
        most: usize::from(args.top),
        ..Request::new(args.model.clone(), args.machine.clone(), args.gpus)
    };
    let outcome = watched(LAYOUTS, |watch| plan(&request, watch))?;
    args.output.print(&outcome.report(), None)?;
    Ok(ExitCode::SUCCESS)
}
