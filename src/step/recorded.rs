//! A step as Chakra execution traces, a GOAL schedule or a SimAI workload have it, on a machine; and a step as Chakra's traces.

use std::io::{Cursor, Read as _};
use std::path::{Path, PathBuf};

use collcast_reports::model::Input;
use collcast_scenarios::chakra::{self, ChakraError, Reader};
use collcast_scenarios::{goal, simai};
use collcast_sim::ids::Rank;
use collcast_sim::workload::{Level, OpGraph};
use collcast_topologies::input;

use super::loaded::Machine;
use super::outcome::Outcome;
use super::simulated::of_graph;
use crate::error::Error;
use crate::files;
use crate::site::SiteSpec;
use crate::watch::Watch;

/// Most files that are read: a rank each.
const FILES_MAX: usize = 4096;
/// Bytes of a file that its hash is of, beside its length.
const HASHED: u64 = 64 << 10;

/// Bytes that say what a text is.
const TOLD_BY: u64 = 4 << 10;

/// Whether a file is a workload: a Chakra execution trace by its name, a folder with such, a GOAL schedule or a SimAI
/// workload by their first words.
pub fn is_recorded(path: &Path) -> bool {
    is_named(path) || path.is_dir() && files_of(path).is_ok_and(|found| !found.is_empty()) || text_of(path).is_some()
}

/// What a text file describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Text {
    Goal,
    /// Of LogGOPSim's binary form.
    GoalBinary,
    Simai,
}

/// What a regular file is by its first words.
fn text_of(path: &Path) -> Option<Text> {
    let mut start = Vec::new();
    input::open(path).ok()?.take(TOLD_BY).read_to_end(&mut start).ok()?;
    if goal::is_binary(&start) {
        return Some(Text::GoalBinary);
    }
    let start = String::from_utf8_lossy(&start);
    let named = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("goal"));
    if named || goal::looks_like(&start) { Some(Text::Goal) } else { simai::looks_like(&start).then_some(Text::Simai) }
}

fn is_named(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.ends_with(".et") || name.ends_with(".et.gz")
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::File { what: "read the folder", path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        found.extend(Some(path).filter(|path| is_named(path) && path.is_file()));
    }
    Ok(found)
}

/// What a step would take on a machine that Chakra's traces recorded, a file for each rank (`trace.0.et`, `trace.1.et`), or
/// that one GOAL schedule or SimAI workload describes. Computations take the time that they took; calls are forecast.
///
/// # Errors
/// Files that are none of these or do not fit each other, a machine that is too small, a call that cannot be forecast.
pub fn recorded(paths: &[PathBuf], spec: &SiteSpec, watch: &Watch) -> Result<Outcome, Error> {
    match paths.iter().find_map(|path| Some((path, text_of(path)?))) {
        None => traced(paths, spec, watch),
        Some((path, kind)) if paths.len() == 1 => described(path, kind, spec, watch),
        Some((path, _)) => Err(Error::usage(
            format!("`{}` describes all ranks: it is read alone", path.display()),
            "give the other files to a command of their own",
        )),
    }
}

/// A file with what all ranks do.
fn described(path: &Path, kind: Text, spec: &SiteSpec, watch: &Watch) -> Result<Outcome, Error> {
    let name = path.display().to_string();
    let (text, bytes) = match kind {
        Text::GoalBinary => (String::new(), files::read_bytes("read", path)?),
        Text::Goal | Text::Simai => (files::read_text("read", path)?, Vec::new()),
    };
    let hash = files::content_hash(if bytes.is_empty() { text.as_bytes() } else { &bytes });
    let bad = |reason: String, hint: &str| Error::usage(reason, hint);
    let (graph, notes, what, machine): (OpGraph, Vec<String>, String, Machine) = match kind {
        Text::Goal | Text::GoalBinary => {
            let hint =
                "GOAL's text form is what LogGOPSim's txt2bin and ATLAHS read; the binary form is what txt2bin makes";
            let goal = match kind {
                Text::GoalBinary => goal::from_binary(&bytes, &name),
                _ => goal::read(&text, &name),
            };
            let goal = goal.map_err(|error| bad(error.to_string(), hint))?;
            let run = goal.graph().map_err(|error| bad(error.to_string(), hint))?;
            let world = u32::try_from(goal.ranks.len()).unwrap_or(u32::MAX);
            let machine = Machine::new(spec.for_ranks(world, "--on")?, spec.launch)?.followed(watch.clone());
            let what = format!("schedule: {} operations of {world} ranks in GOAL", goal.operations());
            (run.graph, run.notes, what, machine)
        }
        Text::Simai => {
            let hint = "AICB writes such files: a header, the number of layers, a line of 12 columns for each";
            let all = spec.topology()?.ranks();
            let workload = simai::read(&text, &name, Some(all)).map_err(|error| bad(error.to_string(), hint))?;
            let machine = Machine::new(spec.for_ranks(workload.gpus, "--on")?, spec.launch)?.followed(watch.clone());
            let memory = (machine.site.profile.gemm_memory() * 1e6).round() as u32;
            let run = workload.graph(memory);
            let what = format!("workload: {} layers on {} GPUs, from SimAI", workload.layers.len(), workload.gpus);
            (run.graph, run.notes, what, machine)
        }
    };
    let mut outcome = of_graph("", graph, &machine, Level::Auto)?;
    outcome.inputs.push(Input { name: "workload".to_owned(), path: Some(name), hash });
    outcome.notes.insert(0, format!("{what}; computations take what the file says"));
    outcome.warnings.extend(notes);
    Ok(outcome)
}

/// The traces of all ranks.
fn traced(paths: &[PathBuf], spec: &SiteSpec, watch: &Watch) -> Result<Outcome, Error> {
    let in_order = in_rank_order(paths)?;
    let world = u32::try_from(in_order.len()).unwrap_or(u32::MAX);
    let machine = Machine::new(spec.for_ranks(world, "--on")?, spec.launch)?.followed(watch.clone());
    let memory = (machine.site.profile.gemm_memory() * 1e6).round() as u32;
    let mut reader = Reader::new(world, memory);
    let mut inputs = Vec::new();
    for path in &in_order {
        let failed = |source| Error::File { what: "read", path: path.clone(), source };
        let file = input::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut beginning = Vec::new();
        (&file).take(HASHED).read_to_end(&mut beginning).map_err(failed)?;
        let said = "of the first 64 KiB and the length";
        let hash = format!("{} {said}", files::content_hash(&[&beginning[..], &metadata.len().to_le_bytes()].concat()));
        reader.add(&path.display().to_string(), Cursor::new(beginning).chain(file)).map_err(|error| broken(&error))?;
        inputs.push(Input { name: "trace".to_owned(), path: Some(path.display().to_string()), hash });
    }
    let read = reader.finish().map_err(|error| broken(&error))?;
    let mut outcome = of_graph("", read.graph, &machine, Level::Auto)?;
    outcome.inputs.extend(inputs);
    outcome.warnings.extend(read.warnings);
    let ranks = if world == 1 { "rank" } else { "ranks" };
    outcome
        .notes
        .insert(0, format!("recorded: {world} {ranks} as Chakra execution traces; computations take what they took"));
    Ok(outcome)
}

/// The files, and those of folders, by the rank in their names: 0, 1, 2 and so on.
fn in_rank_order(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut files: Vec<(u32, PathBuf)> = Vec::new();
    for path in paths {
        let found = if path.is_dir() { files_of(path)? } else { vec![path.clone()] };
        for path in found {
            let rank = rank_of(&path).ok_or_else(|| {
                Error::usage(
                    format!("`{}` does not say its rank", path.display()),
                    "Chakra's traces have their rank before the ending, such as trace.3.et",
                )
            })?;
            files.push((rank, path));
        }
    }
    if files.len() > FILES_MAX {
        return Err(Error::usage(format!("{} files: at most {FILES_MAX} are read", files.len()), "take a smaller job"));
    }
    files.sort();
    for ((rank, path), place) in files.iter().zip(0..) {
        if *rank != place {
            return Err(Error::usage(
                format!("`{}` is of rank {rank}; the next one after those before it is {place}", path.display()),
                "give one file for each rank, from trace.0.et on",
            ));
        }
    }
    if files.is_empty() {
        return Err(Error::usage("no file ends in .et", "name the traces, one for each rank: trace.0.et, trace.1.et"));
    }
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// The number before the ending.
fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let stem = name.strip_suffix(".gz").unwrap_or(&name).strip_suffix(".et")?;
    let digits = stem.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn broken(error: &ChakraError) -> Error {
    Error::usage(error.to_string(), "`collcast simulate SCENARIO --chakra DIR` writes such files")
}

/// Writes a step as Chakra's traces, `step.0.et` and so on, and gives their number.
///
/// # Errors
/// A folder that cannot be made, a file that cannot be written, a call that Chakra does not have.
pub fn write_recorded(outcome: &Outcome, folder: &Path) -> Result<u32, Error> {
    files::make_folder(folder)?;
    let ranks = u32::try_from(outcome.graph.ranks.len()).unwrap_or(u32::MAX);
    let own = |path: &PathBuf| (0..ranks).any(|rank| path.ends_with(format!("step.{rank}.et")));
    if let Some(other) = files_of(folder)?.into_iter().find(|path| !own(path)) {
        return Err(Error::usage(
            format!("`{}` would count as a rank of this step, which has {ranks}", other.display()),
            "remove it, or give --chakra a folder of its own",
        ));
    }
    for rank in 0..ranks {
        let bytes = chakra::write(&outcome.graph, Rank(rank))
            .map_err(|error| Error::usage(error.to_string(), "leave out --chakra"))?;
        files::write(&folder.join(format!("step.{rank}.et")), &bytes)?;
    }
    Ok(ranks)
}
