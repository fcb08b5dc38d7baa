//! The nearest layouts that work: of as many ranks, the fewest keys changed, then the least change of sizes.

use std::collections::BTreeSet;

use super::{Parallel, Recompute, Schedule, Split, Violation};
use crate::transformer::Transformer;

/// A model, and whether passes are [paired](Parallel::check_paired).
type Rules<'m> = (&'m Transformer, bool);

/// Layouts that are named.
const NAMED: usize = 3;
/// Most keys that are changed at once.
const CHANGES: usize = 3;
/// Values of a key that are tried, by the number of keys: at most 286 x 8^3 = 146,000 layouts.
const TRIED: [usize; CHANGES] = [64, 16, 8];

/// Layouts without a violation, nearest first; none where no change of a few keys helps, or of the batch with them.
/// Replicas take what the others leave of the ranks.
pub(super) fn layouts(from: &Parallel, model: Rules<'_>, violations: &[Violation]) -> Vec<Parallel> {
    if violations.iter().any(|violation| violation.keys.iter().all(|key| get(from, key).is_none())) {
        return Vec::new();
    }
    // Other replicas may need another batch; and where there are none left to take, a group of ranks becomes smaller.
    let broken = || violations.iter().flat_map(|violation| violation.keys).copied().chain(["gbs"]);
    let found = with_keys(from, model, broken());
    if found.is_empty() { with_keys(from, model, broken().chain(["tp", "cp"])) } else { found }
}

/// Those that change some of the keys.
fn with_keys<'k>(from: &Parallel, model: Rules<'_>, keys: impl Iterator<Item = &'k str>) -> Vec<Parallel> {
    let keys: BTreeSet<&str> = keys.filter(|key| get(from, key).is_some()).collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    for changes in 1..=CHANGES.min(keys.len()) {
        let mut found = Vec::new();
        for chosen in choices(&keys, changes) {
            let near = |key| (key, values(get(from, key).unwrap_or(1), model.0, TRIED[changes - 1]));
            let chosen: Vec<(&str, Vec<u64>)> = chosen.into_iter().map(near).collect();
            change(*from, &chosen, (model, from.ranks()), &mut found);
        }
        if found.is_empty() {
            continue;
        }
        // None is below zero, so their bits are ordered as they are.
        found.sort_by_cached_key(|to| distance(from, to).to_bits());
        found.dedup();
        found.truncate(NAMED);
        return found;
    }
    Vec::new()
}

/// All sets of `count` keys.
fn choices<'a>(keys: &[&'a str], count: usize) -> Vec<Vec<&'a str>> {
    let Some((first, rest)) = keys.split_first() else {
        return if count == 0 { vec![Vec::new()] } else { Vec::new() };
    };
    if count == 0 {
        return vec![Vec::new()];
    }
    let with = choices(rest, count - 1).into_iter().map(|mut set| {
        set.insert(0, *first);
        set
    });
    with.chain(choices(rest, count)).collect()
}

/// All layouts with one of its values for each key.
fn change(
    mut layout: Parallel,
    keys: &[(&str, Vec<u64>)],
    (model, ranks): (Rules<'_>, u64),
    found: &mut Vec<Parallel>,
) {
    let Some(((key, values), rest)) = keys.split_first() else {
        let others = Parallel { data: 1, ..layout }.ranks();
        layout.data = u32::try_from(ranks / others.max(1)).unwrap_or(u32::MAX);
        if !matches!(layout.split, Split::Ends { .. }) {
            layout.split = Split::of(model.0, &layout);
        }
        if layout.ranks() == ranks && layout.is_allowed(model.0, model.1) {
            found.push(layout);
        }
        return;
    };
    for &value in values {
        let mut changed = layout;
        if set(&mut changed, key, value) {
            change(changed, rest, (model, ranks), found);
        }
    }
}

/// Values near another: small ones and none, powers of two times 1, 1.25, 1.5 and 1.75, divisors of the layers.
fn values(from: u64, model: &Transformer, most: usize) -> Vec<u64> {
    let steps = (2..30).flat_map(|power| (4..8).map(move |quarter| quarter << power));
    let divisors = (1..=model.layers.min(256)).filter(|size| model.layers.is_multiple_of(*size));
    let all: BTreeSet<u64> = (0..16).chain(steps).chain(divisors).filter(|&value| value != from).collect();
    let mut all: Vec<u64> = all.into_iter().collect();
    all.sort_by(|a, b| ratio(*a, from).total_cmp(&ratio(*b, from)));
    all.truncate(most);
    all
}

fn ratio(a: u64, b: u64) -> f64 {
    (a.max(1) as f64 / b.max(1) as f64).ln().abs()
}

fn distance(from: &Parallel, to: &Parallel) -> f64 {
    const KEYS: [&str; 11] = ["tp", "pp", "vpp", "dp", "cp", "ep", "etp", "mbs", "gbs", "hsdp", "offload"];
    KEYS.iter().filter_map(|key| Some(ratio(get(from, key)?, get(to, key)?))).sum()
}

fn get(layout: &Parallel, key: &str) -> Option<u64> {
    Some(match key {
        "tp" => layout.tensor.into(),
        "pp" => layout.pipeline.into(),
        "vpp" => layout.virtual_stages.into(),
        "dp" => layout.data.into(),
        "cp" => layout.context.into(),
        "ep" => layout.expert.into(),
        "etp" => layout.expert_tensor.into(),
        "mbs" => layout.micro_batch.into(),
        "gbs" => layout.global_batch,
        "hsdp" => return layout.shard.map(u64::from),
        "sp" => u64::from(layout.sequence_parallel),
        "offload" => layout.offload,
        "recompute" => u64::from(layout.recompute != Recompute::None),
        _ => return None,
    })
}

fn set(layout: &mut Parallel, key: &str, value: u64) -> bool {
    if key == "gbs" {
        layout.global_batch = value;
        return true;
    }
    let Ok(size) = u32::try_from(value) else { return false };
    match key {
        "tp" => layout.tensor = size,
        "pp" => layout.pipeline = size,
        "vpp" => {
            // What has several chunks is interleaved, and what has one is not.
            layout.schedule = match layout.schedule {
                Schedule::Interleaved if size == 1 => Schedule::OneForwardOneBackward,
                Schedule::OneForwardOneBackward if layout.virtual_stages == 1 => Schedule::Interleaved,
                schedule => schedule,
            };
            layout.virtual_stages = size;
        }
        "dp" => layout.data = size,
        "cp" => layout.context = size,
        "ep" => layout.expert = size,
        "etp" => layout.expert_tensor = size,
        "mbs" => layout.micro_batch = size,
        "hsdp" => layout.shard = Some(size),
        "offload" => layout.offload = value,
        "recompute" if size > 0 => return false,
        "recompute" => layout.recompute = Recompute::None,
        _ => layout.sequence_parallel = size > 0,
    }
    true
}
