//! Runs beside their forecasts.

use std::collections::{BTreeMap, HashMap, HashSet};

use collcast_sim::collective::{Collective, Launch};
use collcast_sim::domain::Beyond;
use collcast_sim::profile::Profile;
use collcast_sim::topology::Topology;

use super::judge::HEAVY_TAIL;
use super::kind::{Doubt, Kind};
use super::run::{Point, Run, how, used};
use crate::statistics::INTERVAL;
use crate::validate::judged::{Asked, Judged};

/// How much looser a forecast is for other GPUs than the profile was measured on: as for intervals of profiles.
pub(crate) const OTHER_GPUS: f64 = 1.5;

/// A call of a file, however it was forced.
type Called<'j> = (&'j str, Collective, u32, Launch);

fn called<'j>(j: &Judged<'j>) -> Called<'j> {
    (j.row.origin.file.as_str(), j.row.collective, j.row.ranks, j.launch())
}

/// Whether a row is of a run that is judged: NCCL chose, or it chose for no row of this call of the file.
pub(crate) fn counted<'j>(judged: &[Judged<'j>]) -> impl Fn(&Judged<'j>) -> bool {
    let chose: HashSet<Called<'j>> = judged.iter().filter(|j| !j.row.forced()).map(called).collect();
    move |j: &Judged<'j>| !j.row.forced() || !chose.contains(&called(j))
}

/// Rows by run, of those that are [`counted`].
///
/// A profile's own account of its errors counts where it was measured inside one host: those fitted across hosts are
/// among what [`Kind::unseen`] is made of.
pub(crate) fn runs_of(judged: &[Judged<'_>], topology: &Topology, profile: &Profile) -> Vec<Run> {
    let counted = counted(judged);
    let mut places: HashMap<(&str, &str, Asked<'_>), usize> = HashMap::new();
    let mut groups: Vec<BTreeMap<u64, Vec<&Judged<'_>>>> = Vec::new();
    for j in judged.iter().filter(|j| counted(j)) {
        let place = *places.entry((&j.row.origin.file, &j.row.run, Asked::of(j.row))).or_insert_with(|| {
            groups.push(BTreeMap::new());
            groups.len() - 1
        });
        groups[place].entry(j.row.size.0).or_default().push(j);
    }
    groups.iter().filter_map(|sizes| run(sizes, topology, profile)).collect()
}

fn run(sizes: &BTreeMap<u64, Vec<&Judged<'_>>>, topology: &Topology, profile: &Profile) -> Option<Run> {
    let first = *sizes.values().next()?.first()?;
    let row = first.row;
    let beyond: Beyond = sizes.values().flatten().map(|j| j.prediction.beyond.clone()).collect();
    let kind = Kind::of(topology, (row.collective, row.ranks), &first.question.settings);
    let doubt = kind.unseen().map_or(Doubt::UNKNOWN, |unseen| unseen.doubt);
    Some(Run {
        file: row.origin.file.clone(),
        name: row.run.clone(),
        collective: row.collective,
        ranks: row.ranks,
        hosts: row.hosts.or_else(|| (topology.hosts().len() == 1).then_some(1)),
        how: how(row),
        used: used(&row.settings),
        end: first.end,
        launch: first.launch(),
        kind: Some(kind),
        points: sizes.iter().map(|(&size, rows)| point(size, rows, !profile.across_hosts)).collect(),
        doubt: if beyond.other_gpus() { doubt.times(OTHER_GPUS) } else { doubt },
    })
}

/// How far hosts of like machines lie apart in what they take to launch a call, as a standard deviation of the logarithm. A
/// process that drives one GPU launches every 5.1 us on our first host of H200, every 6.5 to 10 us on another and every 10 to 12 us
/// on that of H100: all within three of these. A thread a GPU, of which several take turns in one process, launches every 8.8 to 9.5
/// us on both hosts of H200 and every 9.8 to 12.8 us on that of H100.
fn hosts_launch(launch: Launch) -> f64 {
    match launch {
        Launch::Processes => 0.3,
        Launch::SingleThread | Launch::Threads => 0.16,
        // The device launches them.
        Launch::Graph => 0.0,
    }
}

/// How far callers lie apart in what a call of their CUDA graphs takes, in us: NCCL records an event after each. Graphs of 5 and
/// 20 calls that PyTorch captures take 0 to 7 more a call than those of `collcast bench`, at 8 KiB as at 64 MiB
/// (`tests/data/h200x2_graphs`): within three of these.
const EVENTS: f64 = 2.5;

fn point(size: u64, rows: &[&Judged<'_>], own: bool) -> Point {
    let p = &rows[0].prediction;
    // In place and out of place may have forecasts of their own: times are told beside the first.
    let measured = |j: &&Judged<'_>| j.row.time.as_us() * p.time.as_us() / j.prediction.time.as_us();
    let own = if own && p.beyond.is_empty() { (p.high.as_us() / p.low.as_us()).ln() / INTERVAL } else { 0.0 };
    // Calls that the host keeps, or one that is slower and healthy would keep, say how fast it launches.
    let (launch, settings) = (rows[0].launch(), &rows[0].question.settings);
    let host = match launch {
        Launch::Graph if settings.nccl.no_graph_events => 0.0,
        Launch::Graph => (EVENTS / p.time.as_us()).ln_1p(),
        _ => hosts_launch(launch) + (p.issue.as_us() / p.time.as_us()).ln().min(0.0) / HEAVY_TAIL,
    };
    Point {
        size_bytes: size,
        measured_us: rows.iter().map(measured).collect(),
        in_place: rows.iter().map(|j| j.row.in_place).collect(),
        expected_us: p.time.as_us(),
        doubt: own.max(host),
    }
}
