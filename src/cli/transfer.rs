//! `collcast transfer`: how long a transfer between two memories takes, and by which way.

use collcast::serve;
use collcast::site::DEFAULT_MACHINE;
use collcast::transfer::{Request, transfer};
use collcast::values::{size, time};
use collcast::{Error, SiteSpec};

use super::call::Code;
use super::output::{OutputArgs, PageArgs};
use super::selectors::{Named, NcclArgs, profile_folders};
use super::serve::precision;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each line is a way: NVLink or PCIe copies, GPUDirect RDMA, RDMA or TCP through host memory, GPUDirect Storage or \
files. The time is from the wish to the receiver's knowledge that all bytes are there.

  collcast transfer --from gpu:0 --to gpu:9 -s 1G                 one piece between two hosts of DGX H100
  collcast transfer --from gpu:0-7 --to gpu:8-15 -s 10G --block 4K    a paged cache of eight tensor ranks: blocks of 4 KiB
  collcast transfer --from gpu:0 --to host:0 -s 1G                 off-load to host memory
  collcast transfer --from gpu:0 --to gpu:8 -s 10G --path rdma+tcp     two ways at once
  collcast transfer --from gpu:0 --to gpu:8 -s 10G --layers 80 --overlap-prefill 1.2s
  collcast transfer --break-even llama3-70b                        recompute a cache, or fetch it"
)]
pub(crate) struct Args {
    /// Built-in machine or topology file; as many hosts as the places need [default: dgx-h100]
    #[arg(value_name = "TOPOLOGY", help_heading = "Machine")]
    machine: Option<String>,
    /// Built-in machine or topology file: the same as TOPOLOGY without a name
    #[arg(short, long, value_name = "TOPOLOGY", conflicts_with = "machine", help_heading = "Machine")]
    topology: Option<String>,
    /// Hosts
    #[arg(long, value_name = "N", help_heading = "Machine")]
    nodes: Option<u32>,
    /// Profile of links and hosts: built-in name or TOML file; several layer, the later wins per parameter
    #[arg(long, value_name = "PROFILE[,PROFILE]", value_delimiter = ',', help_heading = "Machine")]
    profile: Vec<String>,
    /// Profile of the GPU's kernels and copies: by name (a100 h100 h100-500w h200 b200 gb200) or file [default: the machine's GPU]
    #[arg(long, value_name = "GPU", help_heading = "Machine")]
    gpu: Option<String>,
    /// NVMe drives of each host, which share their bytes [default: the machine's]
    #[arg(long, value_name = "N", help_heading = "Machine")]
    drives: Option<u32>,
    /// Where bytes are: gpu:0, gpu:0-7, host:0, disk:0, cache:0 (page cache) or store:0 (object store); GPUs are numbered through all hosts
    #[arg(long, value_name = "PLACE", required_unless_present = "break_even", help_heading = "Transfer")]
    from: Option<String>,
    /// Where they go: as many places, or one
    #[arg(long, value_name = "PLACE", required_unless_present = "break_even", help_heading = "Transfer")]
    to: Option<String>,
    /// Size of the data: bytes of all pairs together, such as 1G
    #[arg(short, long, value_name = "SIZE", required_unless_present = "break_even", help_heading = "Transfer")]
    size: Option<String>,
    /// Bytes of a contiguous piece, each with a descriptor of its own: 4K for one head of 128 in blocks of 16 tokens
    /// [default: all of a pair and layer]
    #[arg(long, value_name = "SIZE", help_heading = "Transfer")]
    block: Option<String>,
    /// Ways to take at once, joined by +, each with bytes by its rate [default: every way, one by one]
    #[arg(long, value_name = "WAY[+WAY]", help_heading = "Transfer")]
    path: Option<String>,
    /// Layers, which go one by one as a prefill makes them
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Transfer")]
    layers: u64,
    /// Time of that prefill, such as 350ms or 1.2s
    #[arg(long, value_name = "TIME", help_heading = "Transfer")]
    overlap_prefill: Option<String>,
    /// Register memory with NICs first, as where buffers are new
    #[arg(long, help_heading = "Transfer")]
    register: bool,
    /// A collective that begins at once with it and shares its links, such as all_reduce,256M,gpu:0-15
    #[arg(long, value_name = "COLLECTIVE,SIZE,GPUS", help_heading = "Transfer")]
    beside: Option<String>,
    /// In place of a transfer: from which prompt on it is faster to fetch a cache of this model than to compute it again
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["from", "to", "size", "block", "path", "layers", "overlap_prefill", "register", "beside", "nodes"], help_heading = "Break-even")]
    break_even: Option<String>,
    /// GPUs that the model is on
    #[arg(long, value_name = "N", default_value_t = 8, requires = "break_even", help_heading = "Break-even")]
    tensor: u32,
    /// Precision of linear layers: bf16, fp8 or fp4
    #[arg(long, value_name = "NAME", default_value = "bf16", requires = "break_even", help_heading = "Break-even")]
    precision: String,
    #[command(flatten)]
    nccl: NcclArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    if args.break_even.is_none() {
        given.without(&["--tensor", "--precision"], "a transfer has no model", "leave it out, or give --break-even")?;
    }
    if args.break_even.is_none() {
        let hint = "leave it out, or give --break-even";
        let none = match args.beside {
            None => "a transfer has no collective",
            Some(_) => "--beside counts a collective's bytes on links, whatever NCCL is told",
        };
        given.without(&["--nccl", "--env"], none, hint)?;
    }
    let site = args.nccl.on(SiteSpec {
        topology: args.machine.clone().or_else(|| args.topology.clone()),
        nodes: args.nodes,
        profiles: args.profile.clone(),
        profile_folders: profile_folders()?,
        ..SiteSpec::default()
    })?;
    if let Some(model) = &args.break_even {
        let request = serve::Request {
            site,
            gpu: args.gpu.clone(),
            precision: precision(&args.precision)?,
            ..serve::Request::new(model, DEFAULT_MACHINE)
        };
        let group = serve::Group::new(1, args.tensor);
        let report = serve::break_even(&request, group, args.drives)?.report();
        args.page.write(|| report.clone())?;
        args.output.print(&report, None)?;
        return Ok(Code::SUCCESS);
    }
    let prefill = args.overlap_prefill.as_deref().map(|text| time("--overlap-prefill", text)).transpose()?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let outcome = transfer(&Request {
        site,
        gpu: args.gpu.clone(),
        block: args.block.as_deref().map(|text| Ok::<u64, Error>(size(text)?.0)).transpose()?,
        path: args.path.clone(),
        layers: args.layers,
        prefill: prefill.unwrap_or(0.0),
        drives: args.drives,
        register: args.register,
        beside: args.beside.as_deref().map(str::parse).transpose()?,
        ..Request::new(text(&args.from), text(&args.to), size(&text(&args.size))?.0)
    })?;
    args.page.write(|| outcome.report())?;
    args.output.print(&outcome.report(), None)?;
    Ok(Code::SUCCESS)
}
