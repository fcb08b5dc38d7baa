//! `collcast lint FILE...`: what is wrong with settings, a host or a log, before anything is measured.

use std::path::PathBuf;

use collcast::lint::{Input, Request, Severity, lint};
use collcast::{Error, SiteSpec};
use collcast_reports::terminal;

use super::call::Code;
use super::output::{Format, OutputArgs, formats_of_findings, screen_of, tell, write};

#[derive(clap::Args, Debug)]
#[command(mut_arg("format", |arg| arg.value_parser(formats_of_findings())))]
#[command(
    after_help = "Reads environment files, /etc/nccl.conf, shell and Slurm scripts, lines of torchrun, mpirun and docker run, \
Dockerfiles, manifests of Kubernetes and Compose, Python that sets os.environ, tables of tuner plugins, and logs of NCCL_DEBUG=INFO. What a \
file is, its name and its text say.

Exit 1 where there is an error: a setting that stops a job, gives wrong sums, or has no effect.

  collcast lint job.sbatch pod.yaml Dockerfile     settings, as CI would look at them
  collcast lint job.env -t aws-p5 --nodes 4        also what each setting costs on that machine
  collcast lint nccl.log -t dgx-h100 --nodes 2     what NCCL took, beside what the machine has
  collcast lint --pid 4711                         the environment of a process that runs
  collcast lint --host                             limits, devices, PCIe and libraries of this host
  collcast lint job.env --format sarif -o lint.sarif"
)]
pub(crate) struct Args {
    /// Files to look at
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Look at the variables that this command is run with
    #[arg(long, alias = "env", conflicts_with = "pid")]
    own_env: bool,
    /// Look at the variables of a process
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// Look at this host: ports, limits, /dev/shm, RDMA devices, PCIe, CPU mask, versions of NCCL
    #[arg(long)]
    host: bool,
    /// Folder that stands for `/` of the host
    #[arg(long, alias = "root", value_name = "DIR", default_value = "/", requires = "host")]
    host_root: PathBuf,
    /// Built-in machine or topology file: the one that the job runs on
    #[arg(short, long, value_name = "TOPOLOGY", help_heading = "Machine")]
    topology: Option<String>,
    /// Hosts
    #[arg(long, value_name = "N", requires = "topology", help_heading = "Machine")]
    nodes: Option<u32>,
    /// GPUs of each host, from the first
    #[arg(long, value_name = "N", requires = "topology", help_heading = "Machine")]
    gpus: Option<u32>,
    /// NCCL version whose rules choose [default: the machine's, else the newest known]
    #[arg(long, value_name = "VERSION", requires = "topology", help_heading = "Machine")]
    nccl: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let mut inputs = args.files.iter().map(|file| Input::read(file)).collect::<Result<Vec<_>, _>>()?;
    if let Some(pid) = args.pid {
        inputs.push(Input::read(&PathBuf::from(format!("/proc/{pid}/environ")))?);
    }
    let variables = || {
        let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
        std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
    };
    let machine = args.topology.as_ref().map(|topology| SiteSpec {
        nodes: args.nodes,
        gpus: args.gpus,
        nccl: args.nccl.clone(),
        ..SiteSpec::new(topology)
    });
    let outcome = lint(&Request {
        inputs,
        process: args.own_env.then(|| ("the environment".to_owned(), variables())),
        machine,
        host: args.host.then(|| args.host_root.clone()),
        ..Request::default()
    })?;
    let report = outcome.report();
    match args.output.format() {
        Format::Table => {
            write(args.output.output.as_deref(), outcome.lines().as_bytes())?;
            tell(&terminal::notes(&report, screen_of(&std::io::stderr())));
        }
        Format::Sarif => args.output.print(&report, Some(outcome.sarif()))?,
        _ => args.output.print(&report, None)?,
    }
    Ok(Code::from(u8::from(outcome.count(Severity::Error) > 0)))
}
