//! `collcast serve`: how long users of a served model wait, by its workers and load.

use std::path::PathBuf;

use collcast::serve::{Fleet, Group, Load, Request, serve, split};
use collcast::site::DEFAULT_MACHINE;
use collcast::values::time;
use collcast::{Error, SiteSpec};
use collcast_scenarios::serving::Policy;
use collcast_scenarios::serving::summary::Objective;
use collcast_sim::compute::Precision;

use super::call::Code;
use super::output::{OutputArgs, watched};
use super::selectors::profile_folders;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "MODEL is a built-in one (llama3-8b llama3-70b deepseek-v3 and more), a model file, or a Hugging Face config.json.
Workers are copies of the model; 2x8 are two of 8 GPUs each, which split every product.

  collcast serve llama3-70b --aggregated 4x8 --rate 10
  collcast serve llama3-70b --prefill 2x8 --decode 2x8 --rate 10 --input 2048 --output 256
  collcast serve llama3-70b --split 4x8 --rate 10 --objective ttft=1s,tpot=50ms    who should prefill
  collcast serve llama3-8b --aggregated 8x1 --trace requests.csv"
)]
pub(crate) struct Args {
    /// Built-in model, model file or Hugging Face config.json
    #[arg(value_name = "MODEL")]
    model: String,
    /// Built-in machine or topology file; it has as many hosts as the workers need
    #[arg(long = "on", visible_alias = "topology", short = 't', value_name = "MACHINE", default_value = DEFAULT_MACHINE, help_heading = "Machine")]
    on: String,
    /// Profile of the GPU's kernels, by name (a100 h100 h200 b200 gb200) or file [default: the machine's GPU]
    #[arg(long, value_name = "GPU", help_heading = "Machine")]
    gpu: Option<String>,
    /// Profile of links and hosts: built-in name or TOML file; several layer
    #[arg(long, value_name = "PROFILE", help_heading = "Machine")]
    profile: Vec<String>,
    /// Workers that prefill, such as 2x8; with --decode
    #[arg(long, value_name = "NxGPUS", requires = "decode", help_heading = "Workers")]
    prefill: Option<String>,
    /// Workers that decode; with --prefill
    #[arg(long, value_name = "NxGPUS", requires = "prefill", help_heading = "Workers")]
    decode: Option<String>,
    /// Workers that do both in the same steps [default: 1x8]
    #[arg(long, value_name = "NxGPUS", conflicts_with_all = ["prefill", "decode"], help_heading = "Workers")]
    aggregated: Option<String>,
    /// Try each split of so many workers, and all of them for both
    #[arg(long, value_name = "NxGPUS", conflicts_with_all = ["prefill", "decode", "aggregated"], help_heading = "Workers")]
    split: Option<String>,
    /// Precision of linear layers: bf16, fp8 or fp4; the cache is in BF16
    #[arg(long, value_name = "NAME", default_value = "bf16", help_heading = "Workers")]
    precision: String,
    /// Tokens of a step at most (chunked prefill)
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, help_heading = "Workers")]
    chunk: u64,
    /// Requests of a worker at most
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Workers")]
    running: u64,
    /// Requests a second, which arrive by a Poisson process
    #[arg(long, value_name = "N", default_value_t = 1.0, help_heading = "Load")]
    rate: f64,
    /// Time over which they arrive, such as 600s
    #[arg(long, value_name = "TIME", default_value = "600s", help_heading = "Load")]
    duration: String,
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, help_heading = "Load")]
    input: u64,
    /// Tokens that are generated for a request
    #[arg(long, value_name = "TOKENS", default_value_t = 256, help_heading = "Load")]
    output_tokens: u64,
    /// Of the generator of arrivals
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    seed: u64,
    /// Requests of a file in place of these: lines of seconds,input,output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "duration", "input", "output_tokens", "seed"], help_heading = "Load")]
    trace: Option<PathBuf>,
    /// Times that a request has to meet: to its first token, and from one token to the next
    #[arg(long, value_name = "ttft=TIME,tpot=TIME", default_value = "ttft=1s,tpot=50ms", help_heading = "Load")]
    objective: String,
    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    fn request(&self) -> Result<Request, Error> {
        let fleet = match (&self.prefill, &self.decode, &self.aggregated) {
            (Some(prefill), Some(decode), _) => {
                Fleet::Disaggregated { prefill: prefill.parse()?, decode: decode.parse()? }
            }
            (_, _, Some(both)) => Fleet::Aggregated(both.parse()?),
            _ => Fleet::Aggregated(Group { workers: 1, tensor: 8 }),
        };
        let load = match &self.trace {
            Some(path) => Load::Trace(path.clone()),
            None => Load::Poisson {
                rate: self.rate,
                seconds: time("--duration", &self.duration)?,
                input: self.input,
                output: self.output_tokens,
                seed: self.seed,
            },
        };
        let base = Request::new(&self.model, &self.on);
        Ok(Request {
            site: SiteSpec { profiles: self.profile.clone(), profile_folders: profile_folders(), ..base.site },
            gpu: self.gpu.clone(),
            precision: precision(&self.precision)?,
            fleet,
            load,
            policy: Policy { chunk: self.chunk, running: self.running, ..base.policy },
            objective: objective(&self.objective)?,
            ..base
        })
    }
}

/// A precision by its name.
pub(crate) fn precision(name: &str) -> Result<Precision, Error> {
    Precision::ALL
        .into_iter()
        .find(|precision| precision.name() == name)
        .ok_or_else(|| Error::usage(format!("--precision: `{name}` is no precision"), "take bf16, fp8 or fp4"))
}

/// `ttft=1s,tpot=50ms`; what is left out always holds.
fn objective(text: &str) -> Result<Objective, Error> {
    let mut objective = Objective { ttft: f64::INFINITY, tpot: f64::INFINITY };
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("ttft", text)) => objective.ttft = time("--objective ttft", text)?,
            Some(("tpot", text)) => objective.tpot = time("--objective tpot", text)?,
            _ => {
                let message = format!("--objective: `{part}` is neither ttft=TIME nor tpot=TIME");
                return Err(Error::usage(message, "write it as ttft=1s,tpot=50ms"));
            }
        }
    }
    Ok(objective)
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let request = args.request()?;
    let report = match &args.split {
        Some(text) => {
            let all: Group = text.parse()?;
            watched(all.workers as usize, |watch| split(&request, all, watch))?.report()
        }
        None => serve(&request)?.report(),
    };
    args.output.print(&report, None)?;
    Ok(Code::SUCCESS)
}
