//! The calls that options name: those of NCCL, or by an algorithm of a file.

use std::collections::BTreeSet;
use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::predict::Choice;
use collcast_sim::schedule::msccl::Imported;
use collcast_sim::schedule::{check_supported, valid_protocols};

use collcast::{Error, Query, Site};

use super::selectors::CallArgs;

/// Most points of a sweep: a slip such as `1:8G:1` must not run for ever.
const MAX_POINTS: usize = 100_000;

/// What is asked of each machine.
pub(crate) fn queries(call: &CallArgs, sites: &[Site]) -> Result<Vec<Vec<Query>>, Error> {
    if let Some(imported) = call.imported()? {
        return of_imported(call, imported, sites.len());
    }
    let (algorithms, protocols, channels) = (call.algorithms()?, call.protocols()?, call.channel_counts()?);
    let (collectives, sizes) = (call.collectives()?, call.sizes()?);
    let count = [sites.len(), collectives.len(), algorithms.len(), protocols.len(), channels.len(), sizes.len()]
        .into_iter()
        .fold(1_usize, usize::saturating_mul);
    if count > MAX_POINTS {
        return Err(Error::usage(
            format!("the sweep has {count} points; at most {MAX_POINTS} are run"),
            "take fewer sizes or algorithms",
        ));
    }
    let pairs: Vec<Pair> =
        algorithms.iter().flat_map(|&algorithm| protocols.iter().map(move |&protocol| (algorithm, protocol))).collect();
    let of_each: Vec<Vec<Pair>> = collectives.iter().map(|&collective| fitting(collective, &pairs)).collect();
    let mut all = Vec::new();
    for site in sites {
        let topology = &site.topology;
        let ranks = call.ranks.unwrap_or(topology.ranks());
        let groups = call.groups(topology, ranks)?;
        let ranks = groups.as_ref().and_then(|g| g.first()).map_or(ranks, |g| u32::try_from(g.len()).unwrap_or(ranks));
        let mut queries = Vec::new();
        for (&collective, pairs) in collectives.iter().zip(&of_each) {
            for &(algorithm, protocol) in pairs {
                for &channels in &channels {
                    let mut seen = BTreeSet::new();
                    for &size in &sizes {
                        let (call, groups) = (call.call(collective, ranks, size)?, groups.clone());
                        // Sizes round down to whole elements of each rank.
                        if seen.insert(call.size().0) {
                            queries.push(Query { call, algorithm, protocol, channels, schedule: None, groups });
                        }
                    }
                }
            }
        }
        all.push(queries);
    }
    let shown = all.iter().map(Vec::len).sum::<usize>();
    let each = sizes.len() * channels.len() * of_each.iter().map(Vec::len).sum::<usize>();
    if shown < each * sites.len() && call.counts.is_none() {
        say!("note: sizes that round down to as many elements of each rank are one row");
    }
    Ok(all)
}

/// Who decides on an algorithm and a protocol.
type Pair = (Choice<Algorithm>, Choice<Protocol>);

/// The pairs asked for that a collective has: what lists name for others is left out. Where it has none of them all are there,
/// and the forecast says what it can use.
fn fitting(collective: Collective, asked: &[Pair]) -> Vec<Pair> {
    let does = |&(algorithm, protocol): &Pair| match (algorithm, protocol) {
        (Choice::Forced(algorithm), Choice::Forced(protocol)) => {
            check_supported(collective, algorithm).is_ok() && valid_protocols(algorithm).contains(&protocol)
        }
        (Choice::Forced(algorithm), _) => check_supported(collective, algorithm).is_ok(),
        _ => true,
    };
    let (fit, lacking): (Vec<Pair>, Vec<Pair>) = asked.iter().copied().partition(does);
    if lacking.is_empty() || fit.is_empty() {
        return asked.to_vec();
    }
    let name = |(algorithm, protocol): &Pair| match (algorithm, protocol) {
        (Choice::Forced(algorithm), Choice::Forced(protocol)) => Some(format!("{algorithm}/{protocol}")),
        (Choice::Forced(algorithm), _) => Some(algorithm.to_string()),
        _ => None,
    };
    let names: Vec<String> = lacking.iter().filter_map(name).collect();
    say!("note: {collective} has no {}: left out", names.join(", "));
    fit
}

/// The queries of an imported algorithm: the sizes that it is for, on each machine.
fn of_imported(call: &CallArgs, imported: &Arc<Imported>, machines: usize) -> Result<Vec<Vec<Query>>, Error> {
    let (mut queries, mut misfits) = (Vec::new(), Vec::new());
    let mut sizes = call.sizes()?;
    // Those of a range are nobody's choice one by one.
    if call.size.as_deref().is_none_or(|text| text.contains(':')) {
        let asked = sizes.clone();
        for size in &mut sizes {
            *size = call.fitting(imported, *size)?;
        }
        if sizes != asked {
            say!(
                "note: sizes of a range are rounded down to what the {} chunks of the file are equal parts of",
                imported.chunks
            );
        }
        sizes.dedup();
    }
    for size in sizes {
        let call = call.call(imported.collective, call.ranks.unwrap_or(imported.ranks), size)?;
        match imported.check(&call) {
            Ok(()) => {
                let query = Query::of(call).forced(Algorithm::Msccl, imported.protocol);
                queries.push(Query { schedule: Some(Arc::clone(imported)), ..query });
            }
            Err(error) => misfits.push(error),
        }
    }
    match misfits.into_iter().next() {
        Some(error) if queries.is_empty() => return Err(error.into()),
        Some(error) => say!("note: sizes that the file is not for are left out: {}", error.what),
        None => {}
    }
    Ok(vec![queries; machines])
}
