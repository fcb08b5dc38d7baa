//! What does a recorded training step say: what of its communication is exposed, where the GPU waits for the host, which rank
//! is late, and which calls take longer than they should?
//!
//! [`trace()`] reads what PyTorch recorded, a file for each rank. Times of calls are those of the rank that came last: a kernel
//! of NCCL begins when its own rank is there, and waits for the others inside.

mod causes;
mod expected;
mod matched;
mod outcome;
mod pending;
mod timeline;

use std::collections::BTreeMap;
use std::path::PathBuf;

use collcast_hwbackend::trace::{Call, Recorded, State, Trace, read_paths};
use collcast_reports::model::Input;

use crate::error::Error;
use crate::site::SiteSpec;
use crate::watch::Watch;

use matched::Seen;
use outcome::GAPS;
pub(crate) use outcome::of_ranks;
pub use outcome::{CallRow, Expected, GapRow, Judgement, Kind, Outcome, RankRow, Stuck};
use timeline::Lane;

/// What is to be read, and what it is held against.
#[derive(Clone, Debug)]
pub struct Request {
    /// Files, or folders of them: one for each rank.
    pub files: Vec<PathBuf>,
    /// The machine that it ran on, where calls are to be judged; as many hosts as the ranks need where no number is given.
    pub site: Option<SiteSpec>,
    /// Whether causes are looked for, of calls that are slower than they should be on it.
    pub doctor: bool,
    /// Follows the forecasts.
    pub watch: Watch,
}

impl Default for Request {
    fn default() -> Self {
        Self { files: Vec::new(), site: None, doctor: true, watch: Watch::default() }
    }
}

/// Reads traces and says what is in them.
///
/// # Errors
/// A file that is no trace, files of different kinds or of one rank, a machine that is too small, or that somebody stopped it.
pub fn trace(request: &Request) -> Result<Outcome, Error> {
    if request.files.is_empty() {
        return Err(Error::usage("no trace is named", "name the files that the profiler wrote, one for each rank"));
    }
    let traces = read_paths(&request.files, &|done, all| request.watch.files(done, all))?;
    request.watch.stage("the files are read")?;
    let ranks = ranks_of(&traces)?;
    let kind = match traces.first().map(|trace| &trace.recorded) {
        Some(Recorded::Kernels(_)) => Kind::Profile,
        _ => Kind::Recorder,
    };
    let mut outcome = Outcome {
        kind,
        marked: false,
        world: traces.iter().filter_map(|trace| trace.world).max(),
        ranks: Vec::new(),
        calls: Vec::new(),
        gaps: Vec::new(),
        stuck: Vec::new(),
        inputs: traces.iter().map(input).collect(),
        notes: said_of(&traces),
        warnings: Vec::new(),
        anomalies: Vec::new(),
        causes: None,
        other_gpus: false,
        several_gpus: false,
        grounds: None,
    };
    for (trace, rank) in traces.iter().zip(&ranks) {
        outcome.warnings.extend(noted(trace));
        outcome.several_gpus |= matches!(&trace.recorded, Recorded::Kernels(kernels) if kernels.devices.len() > 1);
        if trace.rank.is_none() {
            outcome.notes.push(format!("{}: no rank is named, taken as rank {rank}", trace.path.display()));
        }
    }
    let seen = match kind {
        Kind::Profile => profiled(&traces, &ranks, &mut outcome)?,
        Kind::Recorder => recorded(&traces, &ranks, &mut outcome),
    };
    let matched = matched::matched(&seen);
    matched.add_to(&mut outcome);
    if let Some(site) = &request.site {
        expected::judge(&mut outcome, (&traces, &matched), site, request.doctor, &request.watch)?;
    }
    Ok(outcome)
}

/// The rank of each file.
pub(crate) fn ranks_of(traces: &[Trace]) -> Result<Vec<u32>, Error> {
    let mut by_rank: BTreeMap<u32, &Trace> = BTreeMap::new();
    let mut ranks = Vec::new();
    for trace in traces {
        let free = || (0..).find(|rank| !by_rank.contains_key(rank)).unwrap_or(0);
        let rank = trace.rank.unwrap_or_else(free);
        if let Some(other) = by_rank.insert(rank, trace) {
            return Err(Error::usage(
                format!("`{}` and `{}` are both of rank {rank}", other.path.display(), trace.path.display()),
                "give one file for each rank; where files do not say theirs, their names do: trace_rank3.json",
            ));
        }
        ranks.push(rank);
    }
    let profiles = traces.iter().filter(|trace| matches!(trace.recorded, Recorded::Kernels(_))).count();
    if profiles != 0 && profiles != traces.len() {
        return Err(Error::usage(
            "some of the files are a profiler's traces, others a flight recorder's dumps",
            "give those of one kind: their times are of different clocks",
        ));
    }
    Ok(ranks)
}

/// A file as an input of the answer.
pub(crate) fn input(trace: &Trace) -> Input {
    Input {
        name: "trace".to_owned(),
        path: Some(trace.path.display().to_string()),
        hash: format!("fnv1a64:{} of the first 64 KiB and the length", trace.hash),
    }
}

/// What the group of a call is for, else its name.
pub(crate) fn named(call: &Call) -> String {
    call.group.as_deref().map_or_else(|| "unnamed".to_owned(), matched::named)
}

/// What could not be used of a file.
pub(crate) fn noted(trace: &Trace) -> impl Iterator<Item = String> {
    trace.notes.iter().map(|note| format!("{}: {note}", trace.path.display()))
}

/// What the files say of where they come from.
pub(crate) fn said_of(traces: &[Trace]) -> Vec<String> {
    let distinct = |values: Vec<&str>| {
        let mut values = values;
        values.sort_unstable();
        values.dedup();
        values.join(", ")
    };
    let gpus = distinct(traces.iter().filter_map(|t| t.gpu.as_deref()).collect());
    let nccl = distinct(traces.iter().filter_map(|t| t.nccl.as_deref()).collect());
    let world = traces.iter().filter_map(|t| t.world).max();
    let of = world.map_or_else(String::new, |world| format!(" of {world}"));
    let mut parts = vec![format!("{} rank{}{of}", traces.len(), if traces.len() == 1 { "" } else { "s" })];
    parts.extend((!gpus.is_empty()).then_some(gpus));
    parts.extend((!nccl.is_empty()).then(|| format!("NCCL {nccl}")));
    vec![format!("recorded: {}", parts.join("; "))]
}

/// What a profiler's traces hold.
fn profiled(traces: &[Trace], ranks: &[u32], outcome: &mut Outcome) -> Result<Vec<Seen>, Error> {
    let mut lanes = Vec::new();
    for (trace, &rank) in traces.iter().zip(ranks) {
        let Recorded::Kernels(kernels) = &trace.recorded else { continue };
        let lane = Lane::of(kernels).ok_or_else(|| {
            Error::usage(
                format!("`{}` has no kernel of a GPU", trace.path.display()),
                "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and read the trace of the steps \
                 that were active",
            )
        })?;
        outcome.marked |= lane.marked;
        lanes.push((trace, rank, kernels, lane));
    }
    let (mut seen, mut unnamed) = (Vec::new(), 0);
    for (trace, rank, kernels, lane) in &lanes {
        if outcome.marked && !lane.marked {
            let why = if kernels.steps.is_empty() {
                "it marks no step, which prof.step() does"
            } else {
                "it does not say which step launched a kernel: record ProfilerActivity.CPU too"
            };
            outcome.warnings.push(format!("{}: rank {rank} is left out, as {why}", trace.path.display()));
            continue;
        }
        unnamed += lane.spans.iter().filter(|span| span.call.is_none()).count();
        outcome.ranks.push(lane.row(*rank));
        outcome.gaps.extend(lane.gaps.iter().map(|gap| gap.row(*rank, kernels)));
        seen.extend(Seen::of_lane(trace, *rank, lane));
    }
    outcome.ranks.sort_by_key(|row| row.rank);
    outcome.gaps.sort_by(|a, b| b.length_us.total_cmp(&a.length_us));
    outcome.gaps.truncate(GAPS);
    if unnamed > 0 {
        outcome.warnings.push(format!(
            "{unnamed} kernels of NCCL name no call and are in no row of the calls: they were launched before the \
             recording began, or by a program that is not PyTorch 2.3 or later"
        ));
    }
    if !outcome.marked {
        outcome
            .notes
            .push("no steps are marked (prof.step() marks them): times are those of the whole recording".to_owned());
    }
    Ok(seen)
}

/// What a flight recorder's dumps hold.
fn recorded(traces: &[Trace], ranks: &[u32], outcome: &mut Outcome) -> Vec<Seen> {
    let mut seen = Vec::new();
    let (mut untimed, mut batched) = (0_usize, 0_usize);
    for (trace, &rank) in traces.iter().zip(ranks) {
        let Recorded::Calls(entries) = &trace.recorded else { continue };
        untimed += entries.iter().filter(|e| e.state == State::Completed && e.duration_ms.is_none()).count();
        batched += entries.iter().filter(|e| e.pair && e.state == State::Scheduled).count();
        seen.extend(Seen::of_entries(trace, rank, entries));
    }
    outcome.stuck = pending::stuck(traces, ranks);
    if batched > 0 {
        outcome.notes.push(format!("{batched} messages have no state of their own, as those of a batch"));
    }
    if untimed > 0 {
        outcome.warnings.push(format!(
            "{untimed} calls have no duration: set TORCH_NCCL_ENABLE_TIMING=1 before the job, which times every call"
        ));
    }
    seen
}
