//! What tables cannot say of a step: which links are busy, and when.

use std::collections::{BTreeMap, BTreeSet};

use collcast_reports::figure::Figure;
use collcast_sim::ids::LinkId;
use collcast_sim::units::SimTime;

use super::outcome::Outcome;
use crate::forecast::pictures::busy_links;

/// Parts of a step's time at each of which links are shown.
const PARTS: usize = 12;
/// Most ranks of a machine whose links are drawn, as of calls.
const MOST_DRAWN: u32 = 1_024;

/// The pictures of a step that was simulated: the machine with its busy links; none where no link is used.
pub fn pictures(outcome: &Outcome) -> Vec<Figure> {
    let step = &outcome.step;
    let whole = step.time.as_us();
    if outcome.topology.ranks() > MOST_DRAWN || whole <= 0.0 || outcome.variants.len() > 1 {
        return Vec::new();
    }
    let part = whole / PARTS as f64;
    let mut used: BTreeMap<LinkId, Vec<f64>> = BTreeMap::new();
    let mut seen: BTreeSet<(LinkId, SimTime, SimTime)> = BTreeSet::new();
    for call in &outcome.link_use {
        let [from, to] = [call.from, call.to].map(|at| (at - SimTime::default()).as_us());
        for &(link, share) in &call.links {
            // Both ends of a call name it.
            if !seen.insert((link, call.from, call.to)) {
                continue;
            }
            let times = used.entry(link).or_insert_with(|| vec![0.0; PARTS + 1]);
            times[0] += share * (to - from) / whole;
            for (index, time) in times[1..].iter_mut().enumerate() {
                let (begins, ends) = (part * index as f64, part * (index + 1) as f64);
                *time += share * (to.min(ends) - from.max(begins)).max(0.0) / part;
            }
        }
    }
    // A call moves its bytes evenly here, and in truth more slowly while others do too.
    used.values_mut().flatten().for_each(|share| *share = share.min(1.0));
    let time = |index: usize| {
        let [from, to] = [index, index + 1].map(|at| part * at as f64 / 1e3);
        format!("{from:.2} to {to:.2} ms")
    };
    let times = ["whole step".to_owned()].into_iter().chain((0..PARTS).map(time)).collect();
    let note = if step.ranks.iter().any(|rank| rank.count > 1) {
        " Of ranks that do the same one was run: links of the others are as busy."
    } else {
        ""
    };
    busy_links(&outcome.topology, times, used, "the whole step", note).into_iter().collect()
}
