//! How long calls take: one, many, over several numbers of hosts, or as a group.

pub mod explain;
pub mod group;
pub mod pictures;
mod ports;
mod row;
pub mod scaling;
pub mod timeline;

use std::collections::{BTreeMap, BTreeSet};

use collcast_hwbackend::read::UNSAID;
use collcast_reports::model::Input;
use collcast_sim::collective::{Algorithm, Collective};
use collcast_sim::domain::Basis;
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::predict::{PredictError, Prediction, Predictor};
use rayon::prelude::*;
use serde::Serialize;

use crate::confidence::Grounds;
use crate::error::Error;
use crate::health::reached;
use crate::plan::each_once;
use crate::query::{Query, SHARP_LEVELS, UNMEASURED_SWITCHES};
use crate::shard::Shard;
use crate::site::{Site, profile_line};
use crate::watch::Watch;
use explain::Explained;
pub use ports::without_slow_ports;
pub use row::{Asked, Row};
use scaling::Scaling;

/// Calls to forecast on one machine.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The calls.
    pub queries: Vec<Query>,
    /// Also say how NCCL came to its choices.
    pub explain: bool,
    /// Follows the forecast.
    pub watch: Watch,
}

/// Forecasts of calls.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// A row a call, in the order of the machines and queries.
    pub rows: Vec<Row>,
    /// How bandwidth grows with hosts, where there are several numbers of them.
    pub scaling: Option<Scaling>,
    /// How NCCL came to its choices, where that was asked for.
    pub explained: Vec<Explained>,
    /// Files and profiles that the forecasts depend on.
    pub inputs: Vec<Input>,
    /// What was assumed: machine, version, launch mode, profile.
    pub notes: Vec<String>,
    /// What no column or note says of the calls, so that the same cannot be asked for again.
    pub unsaid: Vec<&'static str>,
    /// What to know before using the numbers.
    pub warnings: Vec<String>,
    /// What the forecasts rest on.
    #[serde(skip)]
    pub grounds: Grounds,
}

/// Forecasts calls on one machine, several at a time.
///
/// # Errors
/// A call that has no schedule or no room, graphs of another machine, or that somebody stopped it.
pub fn forecast(site: &Site, request: &Request) -> Result<Outcome, Error> {
    sweep(&[(site, request.queries.as_slice())], request.explain, &request.watch)
}

/// Forecasts calls on several machines, as on more and more hosts of one kind.
///
/// # Errors
/// As of [`forecast`].
pub fn sweep(parts: &[(&Site, &[Query])], explain: bool, watch: &Watch) -> Result<Outcome, Error> {
    merged(parts, Vec::new(), explain, watch)
}

/// What a shard of the calls of [`sweep`] takes, each with its place among all calls; what is too large is left out.
///
/// # Errors
/// As of [`forecast`].
pub fn part(parts: &[(&Site, &[Query])], shard: Shard, watch: &Watch) -> Result<Vec<(usize, Prediction)>, Error> {
    let simulated = simulated(parts, &predictors(parts, watch)?, |place, _| shard.has(place), watch)?;
    Ok(simulated.into_iter().filter_map(|(call, prediction)| Some((call, prediction.ok()?))).collect())
}

/// [`sweep`], of whose calls some are known: see [`part`].
///
/// # Errors
/// As of [`forecast`]; what is too large is left out, with a warning, where something is not.
pub fn merged(
    parts: &[(&Site, &[Query])],
    known: Vec<(usize, Prediction)>,
    explain: bool,
    watch: &Watch,
) -> Result<Outcome, Error> {
    let (Some((first, _)), Some((last, _))) = (parts.first(), parts.last()) else {
        return Err(Error::usage("there is nothing to forecast", "name a machine"));
    };
    let predictors = predictors(parts, watch)?;
    let mut predictions: BTreeMap<usize, Prediction> = known.into_iter().collect();
    let mut refused = Vec::new();
    for (call, prediction) in simulated(parts, &predictors, |_, call| !predictions.contains_key(&call), watch)? {
        match prediction {
            Ok(prediction) => drop(predictions.insert(call, prediction)),
            Err(error) => refused.push(error),
        }
    }
    let all = calls(parts).count();
    let left_out = match refused.first() {
        Some(first) if !predictions.is_empty() => {
            Some(format!("{} of {all} calls are left out: {first}", refused.len()))
        }
        Some(_) => return Err(refused.swap_remove(0).into()),
        None => None,
    };
    let (mut rows, mut explained) = (Vec::new(), Vec::new());
    let mut bases = vec![Basis::default(); parts.len()];
    for (call, (part, query)) in (0..).zip(calls(parts)) {
        let Some(prediction) = predictions.remove(&call) else { continue };
        let site = parts[part].0;
        let row = Row::new(site, query, prediction);
        if explain {
            explained.extend(explain::explain(site, &row, &predictors[part])?);
        }
        bases[part] = bases[part].max(row.grounds.basis);
        rows.push(row);
    }
    let grounds: Grounds = rows.iter().map(|row| row.grounds.clone()).collect();
    let mut notes = machines(parts, &bases);
    notes.extend(rows.first().and_then(|row| row.query.split_note()));
    notes.extend(
        rows.iter().filter_map(|row| row.prediction.grown).max_by(|a, b| a.off.total_cmp(&b.off)).map(|grown| {
            format!("{grown}{}", if rows.len() > 1 { " (the least sure of these forecasts)" } else { "" })
        }),
    );
    notes.extend(published(parts));
    let graphs = |row: &Row| predictors.last().map(|of| of.graph(row.ranks, &row.query.settings(last.settings())));
    notes.extend(rows.last().and_then(graphs).and_then(|graphs| ports::more_channels(&last.topology, &graphs)));
    let in_network = |row: &&Row| match row.algorithm {
        Algorithm::CollnetDirect | Algorithm::CollnetChain => true,
        Algorithm::Nvls => graphs(row).is_some_and(|graphs| graphs.hosts > 1),
        _ => false,
    };
    notes.extend(rows.iter().find(in_network).map(|_| SHARP_LEVELS.to_owned()));
    if grounds.beyond.switches() {
        notes.push(UNMEASURED_SWITCHES.to_owned());
    }
    let mut warnings = first.told.warnings.clone();
    warnings.extend(left_out);
    warnings.extend(warnings_of(&rows));
    warnings.extend(not_modelled(&rows));
    let scaling = scaling::scaling(&rows);
    let inputs = each_once(parts.iter().flat_map(|(site, _)| site.sources.iter().cloned()));
    Ok(Outcome { scaling, explained, inputs, notes, unsaid: unsaid(parts), warnings, grounds, rows })
}

/// What is said of the machines: all of the last one, and of the others how launch mode and profile differ from its own.
fn machines(parts: &[(&Site, &[Query])], bases: &[Basis]) -> Vec<String> {
    let of = |site: &Site, basis: Basis| {
        let launch = format!("launch {}", site.settings().launch);
        [launch, profile_line(&site.communicator(), &site.profile, basis)].into_iter().chain(site.why.clone())
    };
    let (Some((last, _)), Some(&basis)) = (parts.last(), bases.last()) else { return Vec::new() };
    let said: Vec<String> = of(last, basis).collect();
    let mut others: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for ((site, _), &basis) in parts.iter().zip(bases) {
        let lines: Vec<String> = of(site, basis).filter(|line| !said.contains(line)).collect();
        match others.iter_mut().find(|(known, _)| *known == lines) {
            Some((_, hosts)) => hosts.push(site.nodes().to_string()),
            None => others.push((lines, vec![site.nodes().to_string()])),
        }
    }
    let mut notes = last.notes(basis);
    for (lines, hosts) in others {
        let plural = if hosts == ["1"] { "" } else { "s" };
        notes.extend(lines.into_iter().map(|line| format!("on {} host{plural}: {line}", hosts.join(", "))));
    }
    notes
}

/// What published runs reached, of each collective on each machine.
fn published(parts: &[(&Site, &[Query])]) -> Vec<String> {
    let whole = |query: &&Query| query.groups.is_none() && query.schedule.is_none();
    let calls: BTreeSet<(Collective, usize, u32)> = (parts.iter().enumerate())
        .flat_map(|(part, (_, queries))| {
            queries.iter().filter(whole).map(move |q| (q.call.collective, part, q.call.ranks))
        })
        .collect();
    let mut notes: Vec<String> = (calls.into_iter())
        .filter_map(|(collective, part, ranks)| reached(&parts[part].0.topology, collective, ranks))
        .collect();
    notes.dedup();
    notes
}

/// What forecasts the calls of each machine.
fn predictors<'s>(parts: &[(&'s Site, &[Query])], watch: &Watch) -> Result<Vec<Predictor<'s>>, Error> {
    for (site, queries) in parts {
        if let Some(ranks) = queries.iter().map(|q| q.call.ranks).max() {
            site.check_graphs(ranks)?;
        }
    }
    // Of several calls it is said how many are done.
    let alone = calls(parts).count() == 1;
    let predictors = parts.iter().map(|(site, _)| site.predictor());
    Ok(predictors.map(|of| if alone { of.telling(watch.of_each_run()) } else { of }).collect())
}

/// The calls of all machines, each with the place of its machine.
fn calls<'q>(parts: &[(&Site, &'q [Query])]) -> impl Iterator<Item = (usize, &'q Query)> {
    parts.iter().enumerate().flat_map(|(part, &(_, queries))| queries.iter().map(move |query| (part, query)))
}

/// The forecast of a call, or that it is too large to be simulated.
type Simulated = Result<Prediction, PredictError>;

/// Simulates calls in parallel: those of which `wanted` says so, by place in the order of simulation and by call.
fn simulated(
    parts: &[(&Site, &[Query])],
    predictors: &[Predictor<'_>],
    wanted: impl Fn(usize, usize) -> bool,
    watch: &Watch,
) -> Result<Vec<(usize, Simulated)>, Error> {
    let all: Vec<(usize, &Query)> = calls(parts).collect();
    // Large calls first: they take longest.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse((all[i].0, all[i].1.call.size())));
    let order: Vec<usize> =
        order.into_iter().enumerate().filter(|&(place, call)| wanted(place, call)).map(|(_, call)| call).collect();
    let progress = watch.parts(order.len());
    (order.into_par_iter())
        .with_max_len(1)
        .map(|call| {
            let (part, query) = all[call];
            let prediction = query.predict(&predictors[part], &query.settings(parts[part].0.settings()));
            progress.done()?;
            match prediction {
                Err(error) if !error.is_too_large() => Err(error.into()),
                other => Ok((call, other)),
            }
        })
        .collect()
}

/// The warnings of forecasts, each kind and place once, with how many rows it is about.
fn warnings_of(rows: &[Row]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for warning in rows.iter().flat_map(|row| &row.prediction.warnings) {
        *counts.entry(warning.to_string()).or_default() += 1;
    }
    let of = rows.len();
    let with_count = |(text, count)| if of > 1 { format!("{text} ({count} of {of} rows)") } else { text };
    counts.into_iter().map(with_count).collect()
}

/// Says where NCCL picks what has no schedule here.
fn not_modelled(rows: &[Row]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows {
        if let Some((algorithm, protocol)) = row.instead_of {
            let what = format!(
                "NCCL picks {algorithm}/{protocol}, which has no schedule here: {}/{}, its next choice, is predicted",
                row.algorithm, row.protocol
            );
            *counts.entry(what).or_default() += 1;
        }
    }
    counts.into_iter().map(|(what, count)| format!("not_modelled in {count} rows: {what}")).collect()
}

/// What of the calls no column or note says.
fn unsaid(parts: &[(&Site, &[Query])]) -> Vec<&'static str> {
    let queries = || parts.iter().flat_map(|(_, queries)| queries.iter());
    let site = |what: &dyn Fn(&Site) -> bool| parts.iter().any(|(site, _)| what(site));
    let flags = [
        ("--split", queries().any(|q| q.groups.is_some())),
        ("--schedule", queries().any(|q| q.schedule.is_some())),
        ("--counts", queries().any(|q| q.call.counts.is_some())),
        ("--cold", site(&|s| s.settings().cold)),
        ("--placement", site(&|s| s.spec.placement.is_some())),
        ("--graph", site(&|s| s.spec.graph.is_some())),
        ("how many ranks each host has", !parts.iter().all(|(site, queries)| spread_evenly(site, queries))),
    ];
    flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0).collect()
}

/// Whether the ranks of all calls are as many on each host that has some.
fn spread_evenly(site: &Site, queries: &[Query]) -> bool {
    let topology = &site.topology;
    let total = |query: &Query| match &query.groups {
        Some(groups) => groups.iter().map(Vec::len).sum::<usize>() as u32,
        None => query.call.ranks,
    };
    let ranks: std::collections::BTreeSet<u32> = queries.iter().map(total).collect();
    ranks.into_iter().all(|ranks| {
        let mut on: BTreeMap<HostId, u32> = BTreeMap::new();
        for rank in 0..ranks.min(topology.ranks()) {
            *on.entry(topology.host_of(Rank(rank))).or_default() += 1;
        }
        let mut each = on.values();
        let first = each.next();
        each.all(|ranks| Some(ranks) == first)
    })
}

/// The note that tells readers of an output so.
pub fn unsaid_note(what: &[&str]) -> Option<String> {
    (!what.is_empty()).then(|| format!("{UNSAID}{}: `validate` cannot ask for the same again", what.join(", ")))
}
