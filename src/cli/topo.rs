//! `collcast topo`: machines. List, template, description, routes, channels, picture, import.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use collcast_reports::describe::describe;
use collcast_reports::draw;
use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::ids::{ChannelId, Rank};
use collcast_sim::nccl::search;
use collcast_sim::network::Router;
use collcast_topologies::xml::{self, Document};

use crate::output::write;
use crate::output::{OutputArgs, extension};
use crate::selectors::{MachineArgs, Named, NcclArgs};
use collcast::Error;
use collcast::files::read_text;
use collcast::site::check_graphs;

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
        /// Print the JSON schema of topology files instead
        #[arg(long)]
        schema: bool,
        /// Write there in place of stdout
        #[arg(short, long)]
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
        /// Built-in machine or topology file
        topology: String,
        /// Rank that sends
        from: u32,
        /// Rank that receives
        to: u32,
        /// Hosts
        #[arg(long, alias = "hosts")]
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
        #[arg(long)]
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
        /// Write there in place of stdout
        #[arg(short, long, value_parser = picture_file)]
        output: Option<PathBuf>,
    },
    /// Turn an NCCL XML template or nvidia-smi text into a machine, as NCCL topology XML
    Import {
        /// What to read
        file: PathBuf,
        /// Machine that gives what a template (PCIe only) leaves out
        #[arg(long, value_name = "TOPOLOGY")]
        onto: Option<String>,
        /// Write there in place of stdout
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, Error> {
    match &args.command {
        TopoCommand::List { output } => list(output)?,
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
            if let Some(report) = machine.name().and_then(not_a_machine) {
                output.print(&report, None)?;
                return Ok(ExitCode::SUCCESS);
            }
            let topology = machine.load(machine.one_node_count()?)?;
            let mut report = describe(&topology);
            report.version = env!("CARGO_PKG_VERSION").to_owned();
            output.print(&report, None)?;
        }
        TopoCommand::Paths { topology, from, to, nodes, nccl, output } => {
            paths(topology, (*from, *to), *nodes, nccl, output)?;
        }
        TopoCommand::Graph { machine, ranks, xml, nccl, output } => {
            given.without(&["--profile"], "NCCL's search knows no profile", "leave it out")?;
            let named = output.output.as_deref().and_then(extension).is_some_and(|e| e == "xml");
            let xml = *xml || (named && output.format.is_none());
            if xml {
                given.without(&["--format"], "--xml is the format", "leave out one of them")?;
            }
            graph(machine, *ranks, xml, nccl, output)?;
        }
        TopoCommand::Draw { machine, dot, output } => {
            given.without(&["--profile", "--graph"], "it is no part of a machine", "leave it out")?;
            let topology = machine.load(machine.one_node_count()?)?;
            let dot = *dot || output.as_deref().and_then(extension).is_some_and(|e| e == "dot" || e == "gv");
            let text = if dot { draw::dot(&topology) } else { draw::svg(&topology) };
            write(output.as_deref(), text.as_bytes())?;
        }
        TopoCommand::Import { file, onto, output } => {
            let imported = collcast_topologies::import_file(file, onto.as_deref())?;
            for note in &imported.notes {
                say!("note: {note}");
            }
            write(output.as_deref(), imported.xml.as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A file for a picture, whose name may say its format.
fn picture_file(name: &str) -> Result<PathBuf, String> {
    match extension(name.as_ref()).as_deref() {
        None | Some("svg" | "dot" | "gv") => Ok(name.into()),
        Some(ending) => Err(format!("there is no picture as .{ending}; the endings are .svg, .dot and .gv")),
    }
}

/// What an NCCL XML says that is a template or a graph; `None` for everything else.
fn not_a_machine(name: &str) -> Option<Report> {
    let path = std::path::Path::new(name);
    if !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("xml")) {
        return None;
    }
    // Whatever cannot be read here is refused with its reason where machines are loaded.
    let text = read_text("read", path).ok()?;
    let mut report = Report::new("topology-file", env!("CARGO_PKG_VERSION"));
    let verdict = |sentence: String, next: Option<&str>| Verdict {
        status: Status::Ok,
        sentence,
        confidence: String::new(),
        basis: "the file".to_owned(),
        next: next.map(str::to_owned),
    };
    match xml::read(&text, name).ok()? {
        Document::Machine(_) => None,
        Document::Template(template) => {
            let mut table = Table::new("facts", "", [Column::text("fact", "property"), Column::text("value", "value")]);
            table.push(["class".into(), "template: PCIe only, as clouds ship them; no machine by itself".into()]);
            let counts = [
                ("CPUs", template.cpus.len()),
                ("PCIe switches", template.switches.len()),
                ("places of GPUs", template.gpus.len()),
                ("places of NICs", template.nics.len()),
                ("places of unknown devices", template.unknown.len()),
            ];
            for (what, count) in counts {
                table.push([what.into(), count.into()]);
            }
            report.tables.push(table);
            report.assumptions = template.assumptions.iter().map(|a| format!("assumed: {a}")).collect();
            let next = format!("collcast topo import {name} --onto dgx-h100");
            report.verdict =
                Some(verdict("this is a template: merge it with a machine to use it".to_owned(), Some(&next)));
            Some(report)
        }
        Document::Graph(graph) => {
            let columns = [
                Column::number("id", "id"),
                Column::number("pattern", "pattern"),
                Column::number("channels", "channels"),
                Column::number("speed_intra_gbps", "intra GB/s"),
                Column::number("speed_inter_gbps", "inter GB/s"),
                Column::text("type_intra", "intra"),
                Column::text("type_inter", "inter"),
                Column::text("order", "GPUs of the first channel"),
            ];
            let mut table = Table::new("rows", "class: graph, the channels that NCCL chose", columns);
            for g in &graph.graphs {
                let first =
                    g.channels.first().map(|c| c.gpus.iter().map(|d| format!("{d}")).collect::<Vec<_>>().join(" "));
                table.push([
                    g.id.into(),
                    g.pattern.into(),
                    g.channel_count.into(),
                    Cell::float(g.speed_intra_gb_per_s, 1),
                    Cell::float(g.speed_inter_gb_per_s, 1),
                    g.type_intra.as_str().into(),
                    g.type_inter.as_str().into(),
                    first.into(),
                ]);
            }
            report.tables.push(table);
            report.verdict = Some(verdict("this is NCCL's choice on some machine, not a machine".to_owned(), None));
            Some(report)
        }
    }
}

fn list(output: &OutputArgs) -> Result<(), Error> {
    let mut report = Report::new("topologies", env!("CARGO_PKG_VERSION"));
    let mut table = Table::new("rows", "", [Column::text("name", "name"), Column::text("description", "description")]);
    for name in collcast_topologies::builtin::names() {
        table.push([name.into(), collcast_topologies::builtin::describe(name).unwrap_or_default().into()]);
    }
    report.tables.push(table);
    output.print(&report, None)
}

fn graph(
    machine: &MachineArgs,
    ranks: Option<u32>,
    xml: bool,
    nccl: &NcclArgs,
    output: &OutputArgs,
) -> Result<(), Error> {
    let topology = machine.load(machine.one_node_count()?)?;
    let ranks = ranks.unwrap_or_else(|| topology.ranks());
    if !(1..=topology.ranks()).contains(&ranks) {
        return Err(Error::usage(
            format!("{ranks} ranks, but `{}` has {} GPUs", topology.name, topology.ranks()),
            format!("--ranks takes 1 to {}", topology.ranks()),
        ));
    }
    let given = match &machine.graph {
        Some(file) => {
            let given = collcast_topologies::graph::read_path(file)?;
            check_graphs(&given, file, &topology, ranks)?;
            given
        }
        None => search::Given::default(),
    };
    let told = nccl.told(&topology)?;
    let options = search::Options::new(&topology, &told.settings.nccl, told.settings.transport, given);
    let graphs = search::graphs(&topology, ranks, &options);
    if xml {
        return write(output.output.as_deref(), collcast_topologies::graph::xml(&graphs, 0).as_bytes());
    }
    let mut report = Report::new("graph", env!("CARGO_PKG_VERSION"));
    report.assumptions.extend(topology.assumptions.iter().map(|a| format!("assumed: {a}")));
    report.assumptions.extend(told.notes);
    report.warnings.extend(told.warnings);
    let columns = [
        Column::text("graph", "graph"),
        Column::text("pattern", "pattern"),
        Column::number("channels", "channels"),
        Column::number("speed_intra_gbps", "intra GB/s"),
        Column::number("speed_inter_gbps", "inter GB/s"),
        Column::text("type_intra", "intra"),
        Column::text("type_inter", "inter"),
        Column::text("order", "first channel of the first host"),
    ];
    let mut table = Table::new("rows", "", columns);
    let all = [
        ("ring", Some(&graphs.ring)),
        ("tree", Some(&graphs.tree)),
        ("nvls", graphs.nvls.as_ref()),
        ("collnet_chain", graphs.collnet_chain.as_ref()),
        ("collnet_direct", graphs.collnet_direct.as_ref()),
    ];
    for (name, graph) in all.into_iter().filter_map(|(name, graph)| Some((name, graph?))) {
        let first = graph.paths.first().and_then(|p| p.first()).map(|path| {
            let gpus = path.gpus.iter().map(|g| format!("gpu{g}"));
            let (enter, leave) = path.nics.unzip();
            let nic = |n: Option<u32>| n.map(|n| format!("nic{n}"));
            nic(enter).into_iter().chain(gpus).chain(nic(leave)).collect::<Vec<_>>().join(" ")
        });
        table.push([
            name.into(),
            format!("{:?}", graph.pattern).into(),
            graph.channels.into(),
            Cell::float(graph.speed_intra, 2),
            Cell::float(graph.speed_inter, 2),
            graph.type_intra.name().into(),
            graph.type_inter.name().into(),
            first.into(),
        ]);
    }
    report.tables.push(table);
    report.verdict = Some(Verdict {
        status: Status::Ok,
        sentence: format!(
            "{ranks} ranks on {} host{} get {} channels, {} for NVLS, {} for send and receive ({} to one peer)",
            graphs.hosts,
            if graphs.hosts == 1 { "" } else { "s" },
            graphs.channels,
            graphs.nvls_channels,
            graphs.p2p_channels.0,
            graphs.p2p_channels.1
        ),
        confidence: String::new(),
        basis: "NCCL's graph search, restated".to_owned(),
        next: None,
    });
    output.print(&report, None)
}

fn paths(
    name: &str,
    (from, to): (u32, u32),
    nodes: Option<u32>,
    nccl: &NcclArgs,
    output: &OutputArgs,
) -> Result<(), Error> {
    let topology = collcast_topologies::load_any(name, nodes, None)?;
    for rank in [from, to] {
        if rank >= topology.ranks() {
            return Err(Error::usage(
                format!("rank {rank} is not one of the {} GPUs of `{name}`", topology.ranks()),
                format!("ranks are 0 to {}", topology.ranks() - 1),
            ));
        }
    }
    let told = nccl.told(&topology)?;
    let mut router = Router::with(&topology, told.settings.transport);
    let mut report = Report::new("paths", env!("CARGO_PKG_VERSION"));
    report.assumptions.extend(topology.assumptions.iter().map(|a| format!("assumed: {a}")));
    report.assumptions.extend(told.notes);
    report.warnings.extend(told.warnings);
    let columns = [
        Column::text("channels", "channels"),
        Column::text("class", "class"),
        Column::number("rate_gbps", "narrowest GB/s"),
        Column::text("route", "route"),
    ];
    let mut table = Table::new("rows", "", columns);
    let mut known: Vec<(collcast_sim::network::Route, Vec<String>)> = Vec::new();
    for channel in 0..8 {
        let Some(route) = router.route(Rank(from), Rank(to), ChannelId(channel)) else { continue };
        match known.iter_mut().find(|(r, _)| *r == route) {
            Some((_, channels)) => channels.push(channel.to_string()),
            None => known.push((route, vec![channel.to_string()])),
        }
    }
    if from == to || known.is_empty() {
        return Err(Error::usage(
            format!("there is nothing to route from rank {from} to rank {to}"),
            "give two ranks that are joined by links",
        ));
    }
    for (route, channels) in &known {
        let narrowest = route.links().map(|(l, _)| topology.link(l).rate.gb_per_s()).fold(f64::INFINITY, f64::min);
        let mut words = Vec::new();
        for (link, _) in route.links() {
            let (a, b) = topology.ends(link);
            if words.last() != Some(&topology.vertex(a).name) {
                words.push(topology.vertex(a).name.clone());
            }
            words.push(topology.vertex(b).name.clone());
        }
        table.push([
            channels.join(",").into(),
            route.class.name().into(),
            Cell::float(narrowest, 1),
            words.join(" > ").into(),
        ]);
    }
    report.tables.push(table);
    report.verdict = Some(Verdict {
        status: Status::Ok,
        sentence: format!("{} distinct routes from rank {from} to rank {to} over channels 0 to 7", known.len()),
        confidence: String::new(),
        basis: "topology".to_owned(),
        next: None,
    });
    output.print(&report, None)
}
