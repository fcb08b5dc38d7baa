//! `collcast serve`: how long users of a served model wait, by its workers and load.

use std::path::PathBuf;

use collcast::serve::{Fleet, Group, Load, Machines, Request, compare, serve, smallest, split};
use collcast::site::DEFAULT_MACHINE;
use collcast::values::{self, size, time};
use collcast::{Error, SiteSpec};
use collcast_reports::model::Status;
use collcast_scenarios::serving::arrivals::Prefixes;
use collcast_scenarios::serving::summary::Objective;
use collcast_scenarios::serving::{Policy, Route};
use collcast_sim::compute::Precision;

use super::call::Code;
use super::output::{OutputArgs, PageArgs};
use super::progress::watched;
use super::scenario;
use super::selectors::{Named, NcclArgs, profile_folders};

/// What help ends with.
const HELP: &str =
    "MODEL is a built-in one (llama3-8b llama3-70b deepseek-v3 and more), a model file, or a Hugging Face config.json.
Workers are copies of the model; 2x8 are two of 8 GPUs each, which split every product. 2x16:pp2 have two stages, and
1x32:ep32 split experts over 32 GPUs with attention on each.

  collcast serve llama3-70b --aggregated 4x8 --rate 10
  collcast serve llama3-70b --prefill 2x8 --decode 2x8 --rate 10 --input 2048 --output-tokens 256
  collcast serve llama3-70b --try-splits 4x8 --rate 10 --slo ttft=1s,tpot=50ms    who should prefill
  collcast serve llama3-70b --smallest 64 --rate 10 --slo ttft=1s@p99,tpot=50ms       how many GPUs
  collcast serve llama3-70b --prefill 1x8 --decode 1x8 --rate 4 --down 0:0 --vary nics=4,2     NICs
  collcast serve llama3-70b --aggregated 4x8 --rate 10 --env NCCL_NVLS_ENABLE=0             NCCL's settings
  collcast serve deepseek-v3 --precision fp8 --smallest 128 --on dgx-h200 --on gb200-nvl72      which machine
  collcast serve llama3-8b --aggregated 8x1 --trace requests.csv
  collcast serve deepseek-v3 --precision fp8 --prefill 1x32:ep32 --decode 1x64:ep64 --rate 20
  collcast serve llama3-70b --prefixes 200,1536 --host-cache 1T --rate 8    prefixes kept in host memory";

/// That, with the scenarios.
fn help() -> String {
    format!("{HELP}\n\nScenarios, to name in place of MODEL:\n{}", scenario::listed())
}

#[derive(clap::Args, Debug)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// Built-in model, model file or Hugging Face config.json; or a scenario, built in or a file of collcast/serving/1
    #[arg(value_name = "MODEL")]
    model: String,
    /// Built-in machine or topology file; it has as many hosts as the workers need. Several are compared [default: dgx-h100]
    #[arg(long = "on", visible_alias = "topology", short = 't', value_name = "TOPOLOGY", help_heading = "Machine")]
    on: Vec<String>,
    /// Other values of a key: nic.rate, nics (of a host), nvlink.rate, pcie.rate, fabric.rate, constants of the profile, each
    /// beside the machine as it is. x2 and +1 are of the present value
    #[arg(long, value_name = "KEY=A[,B]", help_heading = "Machine")]
    vary: Vec<String>,
    /// Compare the machine with itself when a NIC is down, such as 0:3 (host and NIC, from 0); repeatable
    #[arg(long, value_name = "HOST:NIC", help_heading = "Machine")]
    down: Vec<String>,
    /// Price of a GPU and hour, or that of each machine, as in dgx-h100=2.5,dgx-b200=4
    #[arg(long, value_name = "PRICE", help_heading = "Machine")]
    price: Option<String>,
    /// Profile of the GPU's kernels and copies: by name (a100 h100 h100-500w h200 b200 gb200) or file [default: the machine's GPU]
    #[arg(long, value_name = "GPU", help_heading = "Machine")]
    gpu: Option<String>,
    /// Profile of links and hosts: built-in name or TOML file; several layer, the later wins per parameter
    #[arg(long, value_name = "PROFILE[,PROFILE]", value_delimiter = ',', help_heading = "Machine")]
    profile: Vec<String>,
    #[command(flatten)]
    nccl: NcclArgs,
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
    #[arg(long, alias = "split", value_name = "NxGPUS", conflicts_with_all = ["prefill", "decode", "aggregated"], help_heading = "Workers")]
    try_splits: Option<String>,
    /// Search the smallest fleet of at most so many GPUs that meets the objective, its workers and their layouts
    #[arg(long, value_name = "GPUS", conflicts_with_all = ["prefill", "decode", "aggregated", "try_splits"], help_heading = "Workers")]
    smallest: Option<u32>,
    /// Precision of linear layers: bf16, fp8 or fp4; the cache is in BF16
    #[arg(long, value_name = "NAME", default_value = "bf16", help_heading = "Workers")]
    precision: String,
    /// When caches go from prefill to decode: whole, once a prompt is through, or layers, beside the prefill
    #[arg(long, value_name = "HOW", default_value = "whole", value_parser = ["whole", "layers"], conflicts_with = "aggregated", help_heading = "Workers")]
    hand_off: String,
    /// How requests get to workers: from one queue, or each to the worker with the least to do for it and for those before it, of
    /// which it may know the prefix
    #[arg(long, value_name = "HOW", default_value = "queue", value_parser = ["queue", "prefix"], help_heading = "Workers")]
    route: String,
    /// Host memory for caches of prefixes, such as 1T a host: split evenly over the GPUs of its workers that compute prompts
    #[arg(long, value_name = "SIZE", default_value = "0", help_heading = "Workers")]
    host_cache: String,
    /// Drives of each host that keep prefixes, such as 20T, shared alike
    #[arg(long, value_name = "SIZE", default_value = "0", help_heading = "Workers")]
    drive_cache: String,
    /// Tokens of a step of a replica at most (chunked prefill)
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, help_heading = "Workers")]
    chunk: u64,
    /// Requests of a replica at most, in all its stages; a worker without :ep is one replica
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Workers")]
    running: u64,
    /// Requests a second, which arrive by a Poisson process
    #[arg(long, value_name = "N", default_value_t = 1.0, help_heading = "Load")]
    rate: f64,
    /// Time over which they arrive, such as 600s
    #[arg(long, value_name = "TIME", default_value = "600s", help_heading = "Load")]
    duration: String,
    /// Tokens of a prompt
    #[arg(long, visible_alias = "input-tokens", value_name = "TOKENS", default_value_t = 2048, help_heading = "Load")]
    input: u64,
    /// Tokens that are generated for a request
    #[arg(long, value_name = "TOKENS", default_value_t = 256, help_heading = "Load")]
    output_tokens: u64,
    /// Prefixes that prompts share, as N,TOKENS or N,TOKENS,SKEW: the i-th is drawn as 1 / i^SKEW (0 for all alike)
    #[arg(long, value_name = "N,TOKENS[,SKEW]", help_heading = "Load")]
    prefixes: Option<String>,
    /// Of the generator of arrivals
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    seed: u64,
    /// Requests of a file in place of these: lines of seconds,input,output, or Mooncake's JSON Lines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "duration", "input", "output_tokens", "prefixes", "seed"], help_heading = "Load")]
    trace: Option<PathBuf>,
    /// Times that requests have to meet: to the first token, and from one token to the next; for 90% of them, or another
    /// percentile, as in ttft=1s@p99
    #[arg(
        long,
        alias = "objective",
        value_name = "ttft=TIME[@pN],tpot=TIME[@pN]",
        default_value = "ttft=1s,tpot=50ms",
        help_heading = "Load"
    )]
    slo: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

/// A time over which requests arrive; a bare number is seconds.
fn duration(text: &str) -> Result<f64, Error> {
    values::time_or_bare(text, 1.0).map_err(|expected| {
        Error::usage(format!("--duration: `{text}` is no time"), format!("{expected}; a bare number is seconds"))
    })
}

impl Args {
    fn request(&self) -> Result<Request, Error> {
        // Who writes --input 2048 writes --output 256 beside it, and would wonder where the answer is.
        let written = self.output.output.as_ref().map(|path| path.to_string_lossy());
        if let Some(number) = written.filter(|path| path.bytes().all(|byte| byte.is_ascii_digit())) {
            let message = format!("--output {number} would write the answer to a file named `{number}`");
            return Err(Error::usage(message, format!("write --output-tokens {number}, or ./{number} for the file")));
        }
        let fleet = match (&self.prefill, &self.decode, &self.aggregated) {
            (Some(prefill), Some(decode), _) => {
                Fleet::Disaggregated { prefill: prefill.parse()?, decode: decode.parse()? }
            }
            (_, _, Some(both)) => Fleet::Aggregated(both.parse()?),
            _ => Fleet::Aggregated(Group::new(1, 8)),
        };
        let load = match &self.trace {
            Some(path) => Load::Trace(path.clone()),
            None => Load::Poisson {
                rate: self.rate,
                seconds: duration(&self.duration)?,
                input: self.input,
                output: self.output_tokens,
                prefixes: self.prefixes.as_deref().map(prefixes).transpose()?,
                seed: self.seed,
            },
        };
        let base = Request::new(&self.model, self.on.first().map_or(DEFAULT_MACHINE, String::as_str));
        Ok(Request {
            site: self.nccl.on(SiteSpec {
                profiles: self.profile.clone(),
                profile_folders: profile_folders()?,
                ..base.site
            })?,
            gpu: self.gpu.clone(),
            precision: precision(&self.precision)?,
            host_cache: bytes("--host-cache", &self.host_cache)?,
            drive_cache: bytes("--drive-cache", &self.drive_cache)?,
            fleet,
            load,
            policy: Policy {
                chunk: self.chunk,
                running: self.running,
                route: if self.route == "prefix" { Route::Prefix } else { Route::Queue },
                by_layers: self.hand_off == "layers",
                ..base.policy
            },
            objective: objective(&self.slo)?,
            ..base
        })
    }
}

impl Args {
    /// What the load is run on beside the first machine.
    fn machines(&self) -> Result<Machines, Error> {
        let down = |text: &String| {
            let wrong = || {
                let message = format!("--down: `{text}` names no NIC of a host");
                Error::usage(message, "write it as 0:3, the host and its NIC, both from 0")
            };
            let (host, nic) = text.split_once(':').ok_or_else(wrong)?;
            Ok((host.parse().map_err(|_| wrong())?, nic.parse().map_err(|_| wrong())?))
        };
        Ok(Machines {
            others: self.on.iter().skip(1).cloned().collect(),
            vary: self.vary.clone(),
            down: self.down.iter().map(down).collect::<Result<_, Error>>()?,
            smallest: self.smallest,
            price: self.price.clone(),
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

/// Bytes of a size, or none.
fn bytes(flag: &str, text: &str) -> Result<u64, Error> {
    if text == "0" {
        return Ok(0);
    }
    match size(text) {
        Ok(bytes) => Ok(bytes.0),
        Err(error) => Err(Error::usage(format!("{flag}: {error}"), "give a size such as 512G or 1T, or 0")),
    }
}

/// `100,1024` or `100,1024,1.0`.
fn prefixes(text: &str) -> Result<Prefixes, Error> {
    let wrong = || {
        let message = format!("--prefixes: `{text}` says not how many prefixes of how many tokens");
        Error::usage(message, "write it as 100,1024, or with a skew as 100,1024,1.0")
    };
    let cells: Vec<&str> = text.split(',').collect();
    let (&[count, tokens] | &[count, tokens, _]) = cells.as_slice() else { return Err(wrong()) };
    let skew = cells.get(2).map_or(Ok(0.0), |skew| skew.parse::<f64>()).map_err(|_| wrong())?;
    if !(0.0..=10.0).contains(&skew) {
        return Err(wrong());
    }
    Ok(Prefixes { count: count.parse().map_err(|_| wrong())?, tokens: tokens.parse().map_err(|_| wrong())?, skew })
}

/// `ttft=1s@p99,tpot=50ms`; what is left out always holds, and 90% of the requests have to meet what has no percentile.
fn objective(text: &str) -> Result<Objective, Error> {
    let mut objective = Objective::new(f64::INFINITY, f64::INFINITY);
    let mut given = [false; 2];
    for part in text.split(',') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let (limit, percentile) = value.split_once('@').unwrap_or((value, ""));
        let (which, flag) = match name {
            "ttft" => (0, "--slo ttft"),
            "tpot" => (1, "--slo tpot"),
            _ => {
                let message = format!("--slo: `{part}` is neither ttft=TIME nor tpot=TIME");
                return Err(Error::usage(message, "write it as ttft=1s,tpot=50ms, or ttft=1s@p99 for 99% of requests"));
            }
        };
        if std::mem::replace(&mut given[which], true) {
            return Err(Error::usage(format!("--slo: {name} is there twice"), "leave one of them out"));
        }
        let limit = time(flag, limit)?;
        *[&mut objective.ttft, &mut objective.tpot][which] = limit;
        if !percentile.is_empty() {
            let number = percentile.strip_prefix('p').and_then(|number| number.parse::<f64>().ok());
            let number = number.filter(|number| *number > 0.0 && *number <= 100.0).ok_or_else(|| {
                Error::usage(format!("{flag}: `{percentile}` is no percentile"), "write it as ttft=1s@p99: p1 to p100")
            })?;
            objective.parts[which] = number / 100.0;
        }
    }
    Ok(objective)
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    if args.decode.is_none() && args.try_splits.is_none() && args.smallest.is_none() {
        given.without(
            &["--hand-off"],
            "no worker hands a cache off",
            "leave it out, or give --prefill and --decode",
        )?;
    }
    if args.prefixes.is_none() && args.trace.is_none() {
        let hint = "leave it out, or give --prefixes";
        given.without(&["--host-cache", "--drive-cache"], "no two prompts share a prefix", hint)?;
    }
    let request = args.request()?;
    let machines = args.machines()?;
    let report = match (&args.try_splits, args.smallest) {
        (None, _) if machines.several() || machines.price.is_some() => {
            watched("simulating fleets", |watch| compare(&request, &machines, watch))?.report()
        }
        (Some(_), _) if machines.several() => {
            return Err(Error::usage("--try-splits is of one machine", "take --smallest GPUS, or name the workers"));
        }
        (Some(_), _) if machines.price.is_some() => {
            let hint = "leave out --price, or name the workers: their answer has the cost";
            return Err(Error::usage("--try-splits compares fleets of as many GPUs each, at one price", hint));
        }
        (Some(text), _) => {
            let all: Group = text.parse()?;
            watched("simulating splits", |watch| split(&request, all, watch))?.report()
        }
        (_, Some(gpus)) => watched("simulating fleets", |watch| smallest(&request, gpus, watch))?.report(),
        _ => watched("simulating requests", |_| serve(&request))?.report(),
    };
    args.page.write(|| report.clone())?;
    args.output.print(&report, None)?;
    let failed = report.verdict.is_some_and(|verdict| verdict.status == Status::Failed);
    Ok(if failed { Code::FAILURE } else { Code::SUCCESS })
}
