//! Reads the network file of ASTRA-sim's analytical backends, in YAML or JSON: dimensions of NPUs with a shape, a bandwidth and a latency.
//!
//! The inner dimension is a host, whose GPUs NVLink joins in that shape. The next one are hosts, with a NIC for each GPU on a
//! switch of its own. What the GPUs are comes from a machine that the user names.
//!
//! # Source
//! ASTRA-sim 2's analytical network backend: four lists of equal length, the innermost dimension first; its GB/s are of 2^30
//! bytes.

use std::fmt::Write as _;

use collcast_sim::units::Bandwidth;

use crate::cluster::ClusterSpec;
use crate::error::{Source, TopologiesError, quote};
use crate::export::{exact, named, quoted as text};
use crate::raw::SCHEMA;

/// Keys of the file.
const KEYS: [&str; 4] = ["topology", "npus_count", "bandwidth", "latency"];
/// Most entries of a list.
const MAX_DIMENSIONS: usize = 16;
/// Bytes of a GB in the file; source: ASTRA-sim multiplies by 2^30.
const GIB: f64 = 1_073_741_824.0;

/// Whether a text is such a file.
pub(crate) fn looks_like(text: &str) -> bool {
    let has = |key: &str| {
        text.lines().take(200).any(|line| line.starts_with(key) && line[key.len()..].trim_start().starts_with(':'))
    };
    is_json(text) || has("topology") && has("npus_count")
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"topology\"") && text.contains("\"npus_count\"")
}

/// How NPUs of a dimension are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Ring,
    FullyConnected,
    Switch,
}

/// A dimension.
#[derive(Clone, Copy, Debug)]
struct Dimension {
    shape: Shape,
    npus: u32,
    rate: Bandwidth,
}

/// A value with its place.
type At<'a> = (&'a str, usize);

/// Reads the file, and writes a topology file whose GPUs are those of `base`, a built-in that is called `like`.
///
/// # Errors
/// A list that is missing or has another length, a number that is none, a shape that is not drawn, three dimensions.
pub fn read(source: Source<'_>, base: &ClusterSpec, like: &str) -> Result<(String, Vec<String>), TopologiesError> {
    let lists = if is_json(source.text) { lists_of_json(source)? } else { lists(source)? };
    let [shapes, counts, rates, latencies] = &lists;
    let mut dimensions = Vec::new();
    for ((shape, count), rate) in shapes.iter().zip(counts).zip(rates) {
        dimensions.push(dimension(source, shape, count, rate)?);
    }
    let mut notes = Vec::new();
    let told: Vec<&str> = latencies.iter().map(|latency| latency.0).collect();
    notes.push(format!("passed over: the latency ({} ns); latencies are those of the profile", told.join(", ")));
    let (places, all) = (shapes, dimensions.clone());
    dimensions.retain(|dimension| dimension.npus > 1);
    let host = base.groups.first().map(|group| &group.host);
    let gpu = host.and_then(|host| host.gpus.first()).filter(|gpu| !gpu.gpu.model.is_empty());
    let Some(gpu) = gpu else {
        return Err(TopologiesError::Contradiction(
            source.whole(format!("the GPUs of `{}` have no kind", quote(like)), "name another machine with --like"),
        ));
    };
    // The first dimension is a host, also where it has one GPU.
    let lone = all.len() > 1 && all[0].npus == 1;
    let (inner, outer) = match dimensions[..] {
        [] => (None, None),
        [outer] if lone => (None, Some(outer)),
        [inner] => (Some(inner), None),
        [inner, outer] => (Some(inner), Some(outer)),
        _ => {
            return Err(TopologiesError::Contradiction(source.whole(
                format!(
                    "the network has {} dimensions of several NPUs; hosts and a network between them are two",
                    dimensions.len()
                ),
                "describe it by a topology file: collcast topo new",
            )));
        }
    };
    // The outer one of two that count is the last that has several NPUs.
    let last = all.iter().rposition(|dimension| dimension.npus > 1);
    if let (Some(outer), Some(place)) = (outer.filter(|outer| outer.shape != Shape::Switch), last) {
        let (name, at) = places[place];
        return Err(TopologiesError::Contradiction(source.at(
            at..at + name.len(),
            format!("{} hosts in a {name}: hosts are joined through switches here", outer.npus),
            "expected Switch",
            "describe the network by a topology file: collcast topo new",
        )));
    }
    let gpus = inner.map_or(1, |inner| inner.npus);
    let hosts = outer.map_or(1, |outer| outer.npus);
    let stem =
        std::path::Path::new(source.file).file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    notes.push(format!("machine: the GPUs ({}), PCIe and CPUs from `{like}`", gpu.gpu.model));
    let mut out = String::new();
    let _ = writeln!(
        out,
        "schema = {}\nname = {}\n\n[[hosts]]\ncount = {hosts}\nlike = {}",
        text(SCHEMA),
        text(&stem),
        text(&named(like))
    );
    let _ = writeln!(out, "gpus = {{ count = {gpus}, kind = {} }}", text(&gpu.gpu.model));
    let rate = |rate: Bandwidth| text(&exact(rate));
    // NCCL's search counts links: those of the GPU, as many as come nearest to the rate.
    let link = gpu.nvlinks.first().map(|link| link.rate_per_link);
    let links = |all: Bandwidth, ways: u32| {
        let each = link.map_or(1, |link| ((all.get() as f64 / link.get() as f64).round() as u64).max(1));
        let one = Bandwidth::new(all.get() / each).unwrap_or(all);
        format!("links_per_gpu = {}, rate_per_link = {}", each * u64::from(ways), rate(one))
    };
    let nvlink = match inner {
        None => "{ kind = \"none\" }".to_owned(),
        Some(Dimension { shape: Shape::Switch, rate: one, .. }) => {
            format!("{{ kind = \"nvswitch\", {} }}", links(one, 1))
        }
        Some(Dimension { shape: Shape::FullyConnected, rate: one, npus }) => {
            format!("{{ kind = \"mesh\", {} }}", links(one, npus - 1))
        }
        Some(Dimension { shape: Shape::Ring, rate: one, .. }) => {
            format!("{{ kind = \"ring\", {} }}", links(one, 2))
        }
    };
    let _ = writeln!(out, "nvlink = {nvlink}");
    if let Some(outer) = outer {
        let kind = host.and_then(|host| host.data_nics().next()).map_or("infiniband", |nic| nic.nic.kind.name());
        let all: Vec<u32> = (0..gpus).collect();
        let _ = writeln!(
            out,
            "[hosts.nics]\nkind = \"{kind}\"\ncount = {gpus}\nrate = {}\ngpu = {all:?}\nrail = {all:?}\ngpudirect = true",
            rate(outer.rate)
        );
        let _ = writeln!(out, "\n[fabric]\nkind = \"rail-only\"\nhosts_per_unit = {hosts}");
        notes.push(format!(
            "hosts: {hosts} with {gpus} GPUs each; a switch joins the n-th GPUs of all hosts, as the file has it"
        ));
    }
    let head: String = notes.iter().map(|note| format!("# {note}\n")).collect();
    Ok((head + &out, notes))
}

fn dimension(source: Source<'_>, shape: &At<'_>, count: &At<'_>, rate: &At<'_>) -> Result<Dimension, TopologiesError> {
    let wrong = |at: &At<'_>, message: String, label: &str, hint: &str| {
        TopologiesError::Value(source.at(at.1..at.1 + at.0.len(), message, label, hint))
    };
    let shape = match shape.0 {
        "Ring" => Shape::Ring,
        "FullyConnected" => Shape::FullyConnected,
        "Switch" => Shape::Switch,
        other => {
            let hint = "ASTRA-sim's analytical backends know these three";
            return Err(wrong(
                shape,
                format!("`{}` is no shape that is read", quote(other)),
                "expected Ring, FullyConnected or Switch",
                hint,
            ));
        }
    };
    let npus = count.0.parse::<u32>().ok().filter(|npus| (1..=100_000).contains(npus));
    let npus = npus.ok_or_else(|| {
        wrong(count, format!("`{}` is no number of NPUs", quote(count.0)), "expected 1 to 100000", "")
    })?;
    let gigabytes = rate.0.parse::<f64>().ok().filter(|rate| *rate > 0.0 && *rate < 1e6);
    let gigabytes =
        gigabytes.ok_or_else(|| wrong(rate, format!("`{}` is no bandwidth", quote(rate.0)), "expected GB/s", ""))?;
    Ok(Dimension { shape, npus, rate: Bandwidth::from_gb_per_s(gigabytes * GIB / 1e9) })
}

/// The four lists of the form in JSON.
fn lists_of_json(source: Source<'_>) -> Result<[Vec<At<'_>>; 4], TopologiesError> {
    let text = source.text;
    let whole = |message: String, hint: &str| TopologiesError::Contradiction(source.whole(message, hint));
    let value: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| whole(format!("it is no JSON: {error}"), "give the file as ASTRA-sim reads it"))?;
    let keys =
        value.as_object().map(|object| object.keys().map(String::as_str).collect::<Vec<_>>()).unwrap_or_default();
    if let Some(other) = keys.into_iter().find(|key| !KEYS.contains(key)) {
        let hint = "expected topology, npus_count, bandwidth and latency";
        return Err(whole(format!("the key `{}` is not read", quote(other)), hint));
    }
    let mut lists: [Vec<At<'_>>; 4] = Default::default();
    for (list, key) in lists.iter_mut().zip(KEYS) {
        // Words of the file have no brackets in them, so that a list ends at the first.
        let begin = text.find(&format!("\"{key}\"")).and_then(|at| Some(at + text[at..].find('[')? + 1));
        let end = begin.and_then(|begin| Some(begin + text[begin..].find(']')?));
        let Some((begin, end)) = begin.zip(end) else { continue };
        for part in text[begin..end].split(',').filter(|part| !part.trim().is_empty()) {
            let value = part.trim().trim_matches('"');
            list.push((value, value.as_ptr() as usize - text.as_ptr() as usize));
        }
        if list.len() > MAX_DIMENSIONS {
            return Err(whole(format!("`{key}` has more than {MAX_DIMENSIONS} dimensions"), "take a smaller network"));
        }
    }
    of_equal_length(source, lists)
}

/// The four lists, of equal length.
fn lists(source: Source<'_>) -> Result<[Vec<At<'_>>; 4], TopologiesError> {
    let mut lists: [Vec<At<'_>>; 4] = Default::default();
    let mut open: Option<usize> = None;
    let mut at = 0;
    for line in source.text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let kept = line.split('#').next().unwrap_or_default().trim_end();
        let wrong = |message: String, label: &str| {
            let span = start..start + kept.len().max(1);
            let hint = "a line is such as `npus_count: [ 8, 4 ]`";
            TopologiesError::Syntax(source.at(span, message, label, hint))
        };
        if kept.trim().is_empty() || kept.trim() == "---" {
            continue;
        }
        let place = |part: &str| start + (part.as_ptr() as usize - line.as_ptr() as usize);
        let mut add = |key: usize, part: &'_ str| {
            let value = part.trim().trim_matches(['"', '\'']);
            // Parts are of the text, so their places are those in it.
            let from = place(value);
            lists[key].push((&source.text[from..from + value.len()], from));
            lists[key].len() <= MAX_DIMENSIONS
        };
        if let (Some(key), Some(item)) = (open, kept.trim_start().strip_prefix("- ")) {
            if !add(key, item) {
                return Err(wrong(format!("more than {MAX_DIMENSIONS} dimensions"), "too many"));
            }
            continue;
        }
        let Some((key, value)) = kept.split_once(':') else {
            return Err(wrong(
                format!("`{}` is no line of the file", quote(kept.trim())),
                "expected a key with a list",
            ));
        };
        let Some(known) = KEYS.iter().position(|known| *known == key.trim()) else {
            return Err(wrong(
                format!("the key `{}` is not read", quote(key.trim())),
                "expected topology, npus_count, bandwidth or latency",
            ));
        };
        let value = value.trim();
        open = value.is_empty().then_some(known);
        if open.is_some() {
            continue;
        }
        let inside = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let Some(inside) = inside else {
            return Err(wrong(format!("`{}` is no list", quote(value)), "expected [ a, b ]"));
        };
        for part in inside.split(',') {
            if !add(known, part) {
                return Err(wrong(format!("more than {MAX_DIMENSIONS} dimensions"), "too many"));
            }
        }
    }
    of_equal_length(source, lists)
}

fn of_equal_length<'a>(source: Source<'_>, lists: [Vec<At<'a>>; 4]) -> Result<[Vec<At<'a>>; 4], TopologiesError> {
    let length = lists[0].len();
    match lists.iter().zip(KEYS).find(|(list, _)| list.len() != length || list.is_empty()) {
        None => Ok(lists),
        Some((list, key)) => Err(TopologiesError::Contradiction(source.whole(
            format!("`{key}` has {} entries, `topology` {length}", list.len()),
            "each of topology, npus_count, bandwidth and latency has an entry for each dimension",
        ))),
    }
}
