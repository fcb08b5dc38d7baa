//! A step as PyTorch's profiler recorded it, on a machine: computations as long as they were, calls by forecast.
//!
//! A trace has kernels and when they ran, and no dependencies. A call waits for the computations that had ended before it
//! began, since its kernel begins as soon as its own rank is there. A computation waits for the calls that ended in the gap
//! before it, and for gathers and exchanges that ended while the one before it ran. What is left of a gap is kept as it was:
//! the host, or the queue, took it. Computations were slowed by the calls beside them when they were recorded, and are not
//! slowed again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use collcast_hwbackend::trace::{Activity, Call, Kernels, Recorded, Trace, read_paths};
use collcast_sim::collective::{Collective, DataType};
use collcast_sim::ids::Rank;
use collcast_sim::predict::Choice;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{
    Communicate, Compute, Level, Mechanisms, Op, OpGraph, Program, RankSpec, StreamKind, What,
};

use super::loaded::{Machine, gpus, is_of_others};
use super::outcome::Outcome;
use super::simulated::simulated;
use crate::error::Error;
use crate::site::SiteSpec;
use crate::trace::{input, noted, ranks_of, said_of};
use crate::watch::Watch;

/// Most kernels of a computation that is one operation: what the engine cuts one into.
const KERNELS_MAX: u32 = 512;
/// Shortest gap that is kept, in ns: below it is what a GPU takes from one kernel to the next.
const GAP_NS: i64 = 1_000;

/// What a recorded step would take on a machine.
///
/// # Errors
/// Files that are no traces of a profiler, a rank without a file, a machine that is too small, a call that cannot be forecast.
pub fn profiled(paths: &[PathBuf], spec: &SiteSpec, watch: &Watch) -> Result<Outcome, Error> {
    let traces = read_paths(paths, &|done, all| watch.files(done, all))?;
    watch.stage("simulating the step")?;
    let ranks = ranks_of(&traces)?;
    let mut by_rank: BTreeMap<u32, (&Trace, &Kernels)> = BTreeMap::new();
    for (trace, &rank) in traces.iter().zip(&ranks) {
        let Recorded::Kernels(kernels) = &trace.recorded else {
            return Err(Error::usage(
                format!("`{}` is a dump of a flight recorder, which has no computations", trace.path.display()),
                "--on takes traces of the profiler, and Chakra execution traces",
            ));
        };
        by_rank.insert(rank, (trace, kernels));
    }
    let named = traces.iter().flat_map(|trace| &trace.calls).filter_map(|call| call.group.as_deref());
    let highest = named.flat_map(|group| group.ranks.iter().copied()).chain(by_rank.keys().copied()).max().unwrap_or(0);
    let told = traces.iter().filter_map(|trace| trace.world).max().unwrap_or(0);
    let world = told.max(highest.saturating_add(1));
    if let Some(missing) = (0..world).find(|rank| !by_rank.contains_key(rank)) {
        return Err(Error::usage(
            format!("rank {missing} of {world} has no file: what it does is not known"),
            "give the trace of each rank; `prof.export_chrome_trace` writes one in every process",
        ));
    }
    let machine = Machine::new(spec.for_ranks(world, "--on")?, spec.launch)?.followed(watch.clone());
    let memory = (machine.site.profile.gemm_memory() * 1e6).round() as u32;
    let step = chosen(&by_rank);
    let mut said = Said::default();
    let mut graph = OpGraph::default();
    let mut groups: HashMap<Vec<u32>, usize> = HashMap::new();
    for (trace, kernels) in by_rank.values() {
        let (program, own) = Writer::new(trace, world, memory, &mut said).write(kernels, step.map(|step| step.0))?;
        let own = own.into_iter().map(|members| {
            *groups.entry(members).or_insert_with_key(|members| {
                graph.groups.push(members.iter().copied().map(Rank).collect());
                graph.groups.len() - 1
            })
        });
        let own = own.collect();
        let known = graph.programs.iter().position(|other| *other == program);
        let program = known.unwrap_or_else(|| {
            graph.programs.push(program);
            graph.programs.len() - 1
        });
        graph.ranks.push(RankSpec { program, groups: own, pace_ppm: 1_000_000, late: SimDuration::ZERO });
    }
    // What calls cost computations is in the times of these already.
    let on = Mechanisms { interference: false, ..Mechanisms::default() };
    let mut outcome = simulated("", (graph, None), &machine, (Level::Auto, on))?;
    outcome.inputs.extend(traces.iter().map(input));
    let none = match by_rank.values().any(|(_, kernels)| !kernels.steps.is_empty()) {
        true => "no step is marked on all ranks",
        false => "no steps are marked",
    };
    let which = step.map_or_else(
        || format!("the whole recording, as {none} (prof.step() marks them)"),
        |(step, ms)| format!("step {step}, which took {ms:.3} ms on rank 0"),
    );
    outcome.notes.insert(0, format!("replayed: {which}; computations take what they took, calls are forecast"));
    outcome.notes.splice(0..0, said_of(&traces));
    outcome.warnings.extend(traces.iter().flat_map(noted));
    outcome.warnings.extend(said.sentences());
    let recorded: BTreeSet<&str> = traces.iter().filter_map(|trace| trace.gpu.as_deref()).collect();
    if is_of_others(&recorded, &machine.topology) {
        let listed = |names: Vec<&str>| names.join(", ");
        let (names, has) = (recorded.into_iter().collect(), gpus(&machine.topology));
        outcome.warnings.push(format!(
            "recorded on {}, and {} has {}: computations take what they took there, only calls are those of this machine",
            listed(names),
            machine.topology.name,
            listed(has.iter().map(String::as_str).collect()),
        ));
        outcome.same_gpus = false;
        outcome.grounds = outcome.grounds.moved();
    }
    Ok(outcome)
}

/// What could not be taken as it is, in numbers.
#[derive(Default)]
struct Said {
    /// Calls without a forecast, by why, which keep their time.
    kept: BTreeMap<&'static str, u64>,
    /// Gaps that are kept, in ns, of all ranks.
    gaps: i64,
    /// Ranks.
    ranks: u64,
}

impl Said {
    fn sentences(&self) -> Vec<String> {
        let calls = self.kept.iter().map(|(why, count)| format!("{count} calls take what they took: {why}"));
        let gap = self.gaps as f64 / 1e6 / self.ranks.max(1) as f64;
        let gaps = (self.gaps > 0).then(|| {
            format!(
                "{gap:.3} ms of a step are gaps between kernels (launches of the host, the queue), kept as they were"
            )
        });
        calls.chain(gaps).collect()
    }
}

/// The step that launched an activity, as the host marked it.
fn step_of(kernels: &Kernels, activity: &Activity) -> Option<u32> {
    let launched = activity.launched?;
    kernels.steps.iter().find(|(_, begin, end)| (*begin..=*end).contains(&launched)).map(|(number, ..)| *number)
}

/// The step of middle length on the first rank, of those that all ranks marked, with its length in ms.
fn chosen(by_rank: &BTreeMap<u32, (&Trace, &Kernels)>) -> Option<(u32, f64)> {
    let lengths = |kernels: &Kernels| -> BTreeMap<u32, (i64, i64)> {
        let mut spans: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
        for activity in kernels.activities.iter().filter(|a| a.end > a.begin) {
            if let Some(step) = step_of(kernels, activity) {
                let span = spans.entry(step).or_insert((activity.begin, activity.end));
                *span = (span.0.min(activity.begin), span.1.max(activity.end));
            }
        }
        spans
    };
    let mut all = by_rank.values().map(|(_, kernels)| lengths(kernels));
    let first = all.next()?;
    let others: Vec<_> = all.collect();
    let shared = first.into_iter().filter(|(step, _)| others.iter().all(|other| other.contains_key(step)));
    let mut steps: Vec<(i64, u32)> = shared.map(|(step, (begin, end))| (end - begin, step)).collect();
    steps.sort_unstable();
    let &(length, step) = steps.get(steps.len() / 2)?;
    Some((step, length as f64 / 1e6))
}

/// A rank's program while it is written.
struct Writer<'a> {
    trace: &'a Trace,
    world: u32,
    memory: u32,
    said: &'a mut Said,
    program: Program,
    compute: usize,
    streams: HashMap<String, usize>,
    /// Members of each of its groups, in the order of their first calls.
    groups: Vec<Vec<u32>>,
}

impl<'a> Writer<'a> {
    fn new(trace: &'a Trace, world: u32, memory: u32, said: &'a mut Said) -> Self {
        let mut program = Program::default();
        let compute = program.stream("compute", StreamKind::Compute, false);
        said.ranks += 1;
        Self { trace, world, memory, said, program, compute, streams: HashMap::new(), groups: Vec::new() }
    }

    fn write(mut self, kernels: &Kernels, step: Option<u32>) -> Result<(Program, Vec<Vec<u32>>), Error> {
        let within = |a: &&Activity| a.end > a.begin && (step.is_none() || step_of(kernels, a) == step);
        let mine: Vec<&Activity> = kernels.activities.iter().filter(within).collect();
        let computations: Vec<&Activity> = mine.iter().copied().filter(|a| !a.nccl).collect();
        if computations.is_empty() {
            return Err(Error::usage(
                format!("`{}` has no computation in the step", self.trace.path.display()),
                "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            ));
        }
        let calls: Vec<&Activity> = mine.into_iter().filter(|a| a.nccl).collect();
        // Computations that had ended when a call began: an operation ends there.
        let mut ends: Vec<i64> = computations.iter().map(|a| a.end).collect();
        for at in 1..ends.len() {
            // Kernels of several streams may end in another order than they begin.
            ends[at] = ends[at].max(ends[at - 1]);
        }
        let before: Vec<usize> = calls.iter().map(|call| ends.partition_point(|end| *end <= call.begin)).collect();
        let mut call_ops: Vec<Option<usize>> = vec![None; calls.len()];
        // By number of computations: the operation that is their last.
        let mut last_op: Option<usize> = None;
        let mut next_call = 0;
        let mut by_end: Vec<usize> = (0..calls.len()).collect();
        by_end.sort_by_key(|&call| calls[call].end);
        let mut ended = 0;
        let mut at = 0;
        let mut now = computations[0].begin;
        loop {
            while let Some(call) = calls.get(next_call).filter(|_| before[next_call] <= at) {
                call_ops[next_call] = Some(self.call(call, last_op)?);
                next_call += 1;
            }
            let Some(first) = computations.get(at) else { break };
            // Calls that ended since the last computation, and how much of the gap they leave.
            let mut after = Vec::new();
            let mut since = now;
            while let Some(&call) = by_end.get(ended).filter(|call| calls[**call].end <= first.begin) {
                if calls[call].end > now || self.is_read(calls[call]) {
                    after.extend(call_ops[call]);
                    since = since.max(calls[call].end);
                }
                ended += 1;
            }
            let gap = first.begin - since;
            if gap > GAP_NS && at > 0 {
                self.said.gaps += gap;
                let none = Compute { time: ns(gap), kernels: 1, waves: 1, tiles: [0; 2], memory_ppm: 0 };
                self.push(self.compute, "not launched", "gaps of the host", What::Compute(none), after);
                after = Vec::new();
            }
            // One operation up to the next call that waits for it, or gap.
            let stop = before[next_call..].first().copied().unwrap_or(computations.len()).max(at + 1);
            let (mut busy, mut count) = (0, 0_u32);
            now = now.max(first.begin);
            while let Some(kernel) = computations.get(at).filter(|kernel| at < stop && kernel.begin - now <= GAP_NS) {
                busy += (kernel.end - now.max(kernel.begin)).max(0);
                now = now.max(kernel.end);
                (at, count) = (at + 1, count + 1);
                if count == KERNELS_MAX || by_end.get(ended).is_some_and(|call| calls[*call].end <= now) {
                    break;
                }
            }
            let what =
                Compute { time: ns(busy), kernels: count.max(1), waves: 1, tiles: [0; 2], memory_ppm: self.memory };
            last_op = Some(self.push(self.compute, "kernels", "computation", What::Compute(what), after));
        }
        Ok((self.program, self.groups))
    }

    /// Whether computations read what a call brings, rather than an optimiser much later.
    fn is_read(&self, activity: &Activity) -> bool {
        let call = activity.call.and_then(|call| self.trace.calls.get(call as usize));
        let collective = call.and_then(|call| call.collective);
        collective.is_some_and(|c| !matches!(c, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce))
    }

    fn push(&mut self, stream: usize, label: &str, kind: &str, what: What, after: Vec<usize>) -> usize {
        let (label, kind) = (label.into(), kind.into());
        self.program.push(Op { label, kind, stream, what, after, issue: SimDuration::ZERO, framework: false })
    }

    /// A kernel of NCCL.
    fn call(&mut self, activity: &Activity, after: Option<usize>) -> Result<usize, Error> {
        let call = activity.call.and_then(|call| self.trace.calls.get(call as usize));
        let asked = match call {
            None => Err("their kernels name no call (launched before the recording, or by PyTorch before 2.3)"),
            Some(call) => asked(call),
        };
        let after = after.into_iter().collect();
        match (asked, call) {
            (Ok((collective, bytes, dtype)), Some(call)) => {
                let members = self.members(call)?;
                let name = crate::trace::named(call);
                let stream = self.stream(&name);
                if members.len() < 2 {
                    let none = Compute { time: ns(1), kernels: 1, waves: 1, tiles: [0; 2], memory_ppm: 0 };
                    return Ok(self.push(stream, "call of one rank", "call of one rank", What::Compute(none), after));
                }
                let group = self.groups.iter().position(|known| *known == members).unwrap_or_else(|| {
                    self.groups.push(members);
                    self.groups.len() - 1
                });
                let what = What::Collective(Communicate {
                    group,
                    collective,
                    bytes,
                    dtype,
                    in_place: collective == Collective::AllReduce,
                    algorithm: Choice::Auto,
                    protocol: Choice::Auto,
                    channels: None,
                });
                Ok(self.push(stream, &call.name, &format!("{collective} of {name}"), what, after))
            }
            (why, _) => {
                *self.said.kept.entry(why.err().unwrap_or_default()).or_default() += 1;
                let stream = self.stream("calls without a forecast");
                let time = ns(activity.end - activity.begin);
                let what = Compute { time, kernels: 1, waves: 1, tiles: [0; 2], memory_ppm: 0 };
                Ok(self.push(stream, "call", "call without a forecast", What::Compute(what), after))
            }
        }
    }

    fn stream(&mut self, name: &str) -> usize {
        if let Some(&stream) = self.streams.get(name) {
            return stream;
        }
        let stream = self.program.stream(name, StreamKind::Communication, true);
        self.streams.insert(name.to_owned(), stream);
        stream
    }

    /// The ranks of a call.
    fn members(&self, call: &Call) -> Result<Vec<u32>, Error> {
        let group = call.group.as_deref();
        match group.map(|group| (group.ranks.as_slice(), group.size)) {
            Some((ranks, _)) if !ranks.is_empty() => Ok(ranks.to_vec()),
            Some((_, size)) if size == self.world => Ok((0..self.world).collect()),
            None => Ok((0..self.world).collect()),
            Some((_, size)) => Err(Error::usage(
                format!("the trace does not list the {size} ranks of a group (`{}`)", crate::trace::named(call)),
                "record with PyTorch 2.3 or later, whose traces have `Process Group Ranks`",
            )),
        }
    }
}

fn ns(ns: i64) -> SimDuration {
    SimDuration(u64::try_from(ns).unwrap_or(0).saturating_mul(1000))
}

/// What NCCL is asked for, or why that is not known.
fn asked(call: &Call) -> Result<(Collective, Bytes, DataType), &'static str> {
    let collective = call.collective.ok_or("they are several calls in one, or none that NCCL knows")?;
    if collective == Collective::SendRecv {
        return Err("they are between two ranks, and the trace does not say which");
    }
    if let Some(why) = call.not_forecast() {
        return Err(why);
    }
    let (Some(bytes), Some(dtype)) = (call.size(), call.dtype) else {
        return Err("their size or element type is not in the trace");
    };
    Ok((collective, bytes, dtype))
}
