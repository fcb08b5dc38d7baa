//! `collcast topo`: machines. List, template, description, routes, channels, picture, import.

use std::path::PathBuf;

use clap::Subcommand;
use collcast::topo::{self, GraphsRequest, PathsRequest};
use collcast::{Error, SiteSpec};
use collcast_reports::describe::describe;
use collcast_reports::draw;
use collcast_sim::ids::Rank;

use super::call::Code;
use super::output::{OutputArgs, extension, write};
use super::selectors::{MachineArgs, Named, NcclArgs};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TopoCommand,
}

#[derive(Subcommand, Debug)]
enum TopoCommand {
    /// The built-in machines
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// A commented topology file to start from (--schema: its JSON schema)
    New {
        /// Print the JSON schema of these files: topologies
        #[arg(long)]
        schema: bool,
        /// Write there in place of stdout: whole or not at all
        #[arg(short, long, value_name = "PATH")]
        output: Option<PathBuf>,
    },
    /// One screen about a machine: GPUs, links, NICs, bisection, everything assumed
    Show {
        #[command(flatten)]
        machine: MachineArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// The routes between two GPUs, given by rank
    Paths {
        /// Built-in machine or topology file, unless -t names it; rank that sends; rank that receives
        #[arg(value_names = ["TOPOLOGY", "FROM", "TO"], num_args = 2..=3, required = true)]
        route: Vec<String>,
        /// Built-in machine or topology file: the same as TOPOLOGY without a name
        #[arg(short, long, value_name = "TOPOLOGY")]
        topology: Option<String>,
        /// Hosts
        #[arg(long, alias = "hosts", value_name = "N")]
        nodes: Option<u32>,
        #[command(flatten)]
        nccl: NcclArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// The channels that NCCL's search finds: graphs, NICs, order of GPUs
    Graph {
        #[command(flatten)]
        machine: MachineArgs,
        /// Ranks, from the first GPU; all GPUs by default
        #[arg(long, value_name = "N")]
        ranks: Option<u32>,
        /// The graphs of the first host as XML, as NCCL_GRAPH_DUMP_FILE writes them and for a file that ends in .xml
        #[arg(long)]
        xml: bool,
        #[command(flatten)]
        nccl: NcclArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// A picture: SVG, or DOT for graphviz
    Draw {
        #[command(flatten)]
        machine: MachineArgs,
        /// DOT in place of SVG, as for a file that ends in .dot or .gv
        #[arg(long)]
        dot: bool,
        /// Write there in place of stdout: whole or not at all
        #[arg(short, long, value_name = "PATH", value_parser = picture_file)]
        output: Option<PathBuf>,
    },
    /// Turn what other programs say of a machine into one: an NCCL XML template, nvidia-smi text, a log of NCCL, lstopo's
    /// XML, Slurm's topology.conf, ibnetdiscover's list, EC2's instance topology
    Import {
        /// What to read; its format is told by content
        file: PathBuf,
        /// Machine that gives what the file lacks: GPUs, NICs, rates
        #[arg(long, alias = "onto", value_name = "TOPOLOGY")]
        like: Option<String>,
        /// Write there in place of stdout: a host as NCCL topology XML, a cluster as a topology file
        #[arg(short, long, value_name = "PATH")]
        output: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    match &args.command {
        TopoCommand::List { output } => output.print(&topo::builtins().report(), None)?,
        TopoCommand::New { schema, output } => {
            let text = if *schema {
                collcast_topologies::file::json_schema()
            } else {
                collcast_topologies::TEMPLATE.to_owned()
            };
            write(output.as_deref(), text.as_bytes())?;
        }
        TopoCommand::Show { machine, output } => {
            given.without(&["--profile", "--graph"], "it is no part of a machine", "leave it out")?;
            if let Some(other) = machine.name().and_then(topo::no_machine) {
                output.print(&other.report(), None)?;
                return Ok(Code::SUCCESS);
            }
            let topology = machine.load(machine.one_node_count()?)?;
            let mut report = describe(&topology);
            report.version = env!("CARGO_PKG_VERSION").to_owned();
            output.print(&report, None)?;
        }
        TopoCommand::Paths { route, topology, nodes, nccl, output } => {
            let (machine, from, to) = match (topology, &route[..]) {
                (Some(machine), [from, to]) | (None, [machine, from, to]) => (machine, from, to),
                (Some(_), _) => {
                    return Err(Error::usage("the machine is given twice", "leave TOPOLOGY or --topology out"));
                }
                (None, _) => {
                    let way = "such as `collcast topo paths dgx-h100 0 9 --nodes 2`";
                    return Err(Error::usage("a route is of a machine, from a rank to a rank", way));
                }
            };
            let rank = |text: &str| {
                let rank = text.parse().map(Rank);
                rank.map_err(|_| Error::usage(format!("`{text}` is no rank"), "ranks are numbers from 0"))
            };
            let site = nccl.on(SiteSpec { nodes: *nodes, ..SiteSpec::new(machine) })?;
            let request = PathsRequest { site, from: rank(from)?, to: rank(to)? };
            output.print(&topo::paths(&request)?.report(), None)?;
        }
        TopoCommand::Graph { machine, ranks, xml, nccl, output } => {
            given.without(&["--profile"], "NCCL's search knows no profile", "leave it out")?;
            let named = output.output.as_deref().and_then(extension).is_some_and(|e| e == "xml");
            let xml = *xml || (named && output.format.is_none());
            if xml {
                given.without(&["--format"], "--xml is the format", "leave out one of them")?;
            }
            let site = nccl.on(machine.spec(machine.one_node_count()?)?)?;
            let outcome = topo::graphs(&GraphsRequest { site, ranks: *ranks })?;
            if xml {
                write(output.output.as_deref(), outcome.xml().as_bytes())?;
            } else {
                output.print(&outcome.report(), None)?;
            }
        }
        TopoCommand::Draw { machine, dot, output } => {
            given.without(&["--profile", "--graph"], "it is no part of a machine", "leave it out")?;
            let topology = machine.load(machine.one_node_count()?)?;
            let dot = *dot || output.as_deref().and_then(extension).is_some_and(|e| e == "dot" || e == "gv");
            let text = if dot { draw::dot(&topology) } else { draw::svg(&topology) };
            write(output.as_deref(), text.as_bytes())?;
        }
        TopoCommand::Import { file, like, output } => {
            let imported = collcast_topologies::import_file(file, like.as_deref())?;
            for note in &imported.notes {
                say!("note: {note}");
            }
            write(output.as_deref(), imported.text.as_bytes())?;
        }
    }
    Ok(Code::SUCCESS)
}

/// A file for a picture, whose name may say its format.
fn picture_file(name: &str) -> Result<PathBuf, String> {
    match extension(name.as_ref()).as_deref() {
        None | Some("svg" | "dot" | "gv") => Ok(name.into()),
        Some(ending) => Err(format!("there is no picture as .{ending}; the endings are .svg, .dot and .gv")),
    }
}
