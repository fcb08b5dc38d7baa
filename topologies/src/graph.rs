//! NCCL's graph files: taken in place of the search, and written from its result.
//!
//! # Source
//! NCCL `src/graph/search.cc`: ids, attributes, order of a dump.

use std::fmt::Write as _;
use std::path::Path;

use collcast_sim::nccl::PathClass;
use collcast_sim::nccl::graphs::{ChannelPath, Graph, Graphs, Pattern};
use collcast_sim::nccl::search::Given;

use crate::error::{Diagnostic, Source, TopologiesError, quote};
use crate::xml::{self, Document, GraphSpec};

/// Bits of a device number; NCCL keeps the host in those above.
const DEVICE_BITS: u32 = 56;

/// Reads a graph file; see [`given`].
///
/// # Errors
/// As [`xml::read`] and [`given`]; [`TopologiesError::Schema`] for XML that is no graph file.
pub fn read_path(path: &Path) -> Result<Given, TopologiesError> {
    let name = path.display().to_string();
    let bytes = crate::input::read(path).map_err(|error| {
        TopologiesError::Unreadable(Box::new(Diagnostic {
            message: format!("cannot read `{}`: {error}", quote(&name)),
            file: name.clone(),
            at: None,
            label: String::new(),
            hint: "give the path of a graph XML, as NCCL_GRAPH_DUMP_FILE writes it".to_owned(),
        }))
    })?;
    let text = Source::decode(&name, &bytes)?.text;
    match xml::read(text, &name)? {
        Document::Graph(spec) => given(&spec, &name),
        other => Err(TopologiesError::Schema(Source::new(&name, text).whole(
            format!("`{}` is a {}, not a graph file", quote(&name), other.class()),
            "NCCL writes the channels it chose with NCCL_GRAPH_DUMP_FILE=graph.xml",
        ))),
    }
}

/// The graphs of a file (`NCCL_GRAPH_FILE`), to be taken in place of the search.
///
/// # Errors
/// [`TopologiesError::Value`] for an unknown pattern, path class or device,
/// [`TopologiesError::Contradiction`] where fewer channels are listed than counted or an id comes twice.
pub fn given(spec: &GraphSpec, file: &str) -> Result<Given, TopologiesError> {
    let mut given = Given::default();
    for graph in spec.graphs.iter().filter(|g| g.channel_count > 0) {
        let slot = match graph.id {
            0 => &mut given.ring,
            1 => &mut given.tree,
            2 => &mut given.collnet_chain,
            3 => &mut given.nvls,
            4 => &mut given.collnet_direct,
            _ => continue,
        };
        let found = convert(graph).map_err(|(message, contradiction)| {
            let at = Box::new(Diagnostic {
                message: format!("graph {}: {message}", graph.id),
                file: file.to_owned(),
                at: None,
                label: String::new(),
                hint: "NCCL writes such a file with NCCL_GRAPH_DUMP_FILE=graph.xml".to_owned(),
            });
            if contradiction { TopologiesError::Contradiction(at) } else { TopologiesError::Value(at) }
        })?;
        *slot = Some(found);
    }
    Ok(given)
}

/// What is wrong, and whether it is two facts that contradict each other.
type Flaw = (String, bool);

fn convert(graph: &xml::Graph) -> Result<Graph, Flaw> {
    let pattern = match (graph.id, graph.pattern) {
        (1 | 2, 1) => Pattern::BalancedTree,
        (1 | 2, 2) => Pattern::SplitTree,
        // On hosts of one GPU every pattern but the ring becomes a tree.
        (1..=4, 3) => Pattern::Tree,
        (0, 4) => Pattern::Ring,
        (3, 5) => Pattern::Nvls,
        (4, 6) => Pattern::CollnetDirect,
        (_, other) => return Err((format!("the pattern {other} does not belong to it"), false)),
    };
    let count = graph.channel_count as usize;
    if graph.channels.len() < count {
        return Err((format!("{count} channels are counted, {} listed", graph.channels.len()), true));
    }
    let device = |dev: u64| {
        u32::try_from(dev & ((1 << DEVICE_BITS) - 1)).map_err(|_| (format!("there is no device {dev:#x}"), false))
    };
    let paths = graph.channels[..count]
        .iter()
        .map(|channel| {
            let nets = channel.net_in.or(channel.net_out).zip(channel.net_out.or(channel.net_in));
            Ok(ChannelPath {
                nics: nets.map(|(enter, leave)| Ok::<_, Flaw>((device(enter)?, device(leave)?))).transpose()?,
                gpus: channel.gpus.iter().map(|&g| device(g)).collect::<Result<_, _>>()?,
            })
        })
        .collect::<Result<Vec<_>, Flaw>>()?;
    Ok(Graph {
        pattern,
        channels: graph.channel_count,
        speed_intra: graph.speed_intra_gb_per_s,
        speed_inter: graph.speed_inter_gb_per_s,
        latency_inter: graph.latency_inter_us,
        type_intra: class(&graph.type_intra)?,
        type_inter: class(&graph.type_inter)?,
        same_channels: graph.same_channels,
        cross_nic: graph.cross_nic,
        paths: vec![paths],
    })
}

fn class(name: &str) -> Result<PathClass, Flaw> {
    PathClass::ALL
        .iter()
        .copied()
        .find(|c| c.name() == name)
        .ok_or_else(|| (format!("`{}` is no class of paths", quote(name)), false))
}

/// The graphs of one host of a communicator as NCCL dumps them (`NCCL_GRAPH_DUMP_FILE`); empty for a
/// host that is not there.
pub fn xml(graphs: &Graphs, host: usize) -> String {
    let mut text = "<graphs version=\"1\">\n".to_owned();
    let all = [
        (0, 4, Some(&graphs.ring)),
        (1, 1, Some(&graphs.tree)),
        (4, 6, graphs.collnet_direct.as_ref()),
        (2, 3, graphs.collnet_chain.as_ref()),
        (3, 5, graphs.nvls.as_ref()),
    ];
    for (id, pattern, graph) in all {
        // Writing to a string cannot fail.
        let _ = match graph.and_then(|g| Some((g, g.paths.get(host)?))) {
            Some((graph, paths)) => one(&mut text, id, graph, paths),
            None => writeln!(
                text,
                "  <graph id=\"{id}\" pattern=\"{pattern}\" crossnic=\"0\" nchannels=\"0\" speedintra=\"0\" \
                 speedinter=\"0\" latencyinter=\"0\" typeintra=\"LOC\" typeinter=\"LOC\" samechannels=\"0\"/>"
            ),
        };
    }
    text + "</graphs>\n"
}

fn one(text: &mut String, id: u32, graph: &Graph, paths: &[ChannelPath]) -> std::fmt::Result {
    // A ring that crosses NICs does so in pairs, which NCCL counts as 2.
    let cross = if graph.cross_nic { 2 } else { 0 };
    writeln!(
        text,
        "  <graph id=\"{id}\" pattern=\"{}\" crossnic=\"{cross}\" nchannels=\"{}\" speedintra=\"{}\" \
         speedinter=\"{}\" latencyinter=\"{}\" typeintra=\"{}\" typeinter=\"{}\" samechannels=\"{}\">",
        graph.pattern as u32,
        graph.channels,
        graph.speed_intra,
        graph.speed_inter,
        graph.latency_inter,
        graph.type_intra.name(),
        graph.type_inter.name(),
        u8::from(graph.same_channels),
    )?;
    let device = |n: u32| if n == 0 { "0".to_owned() } else { format!("{n:#x}") };
    for path in paths {
        writeln!(text, "    <channel>")?;
        if let Some((enter, _)) = path.nics {
            writeln!(text, "      <net dev=\"{}\"/>", device(enter))?;
        }
        for &gpu in &path.gpus {
            writeln!(text, "      <gpu dev=\"{}\"/>", device(gpu))?;
        }
        if let Some((_, leave)) = path.nics {
            writeln!(text, "      <net dev=\"{}\"/>", device(leave))?;
        }
        writeln!(text, "    </channel>")?;
    }
    writeln!(text, "  </graph>")
}
