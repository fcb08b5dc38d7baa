//! What is asked about: the communicators, and the calls of each.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::collective::Collective;
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Call;
use collcast_sim::units::Bytes;

use super::communicator::{Group, Machine};
use super::options::Asked;
use super::request::{ALL_SIZES, Request};
use crate::error::Error;
use crate::site::Site;
use crate::step::Collectives;

/// A communicator, and what it is asked to do.
pub(super) struct Job {
    pub(super) group: Group,
    /// Where a machine is asked about, known once measurements are read.
    pub(super) asked: Vec<Asked>,
}

/// The communicators with their calls, and what is to be known of them.
pub(super) fn jobs(site: &Site, request: &Request) -> Result<(Vec<Job>, Vec<String>), Error> {
    if let Some(step) = &request.step {
        return step_jobs(step, request);
    }
    let on = Machine::of(site);
    let ranks = request.ranks.unwrap_or(site.topology.ranks());
    if request.communicators.is_none() && ranks < 2 {
        return Err(Error::usage(
            format!("NCCL has nothing to choose for a communicator of {ranks} ranks"),
            "take --ranks 2 or more, on a machine with as many GPUs",
        ));
    }
    let (groups, notes) = match &request.communicators {
        Some(communicators) => communicators.on(&on)?,
        None => (vec![Group::whole(&on, ranks)], Vec::new()),
    };
    Ok((groups.into_iter().map(|group| Job { group, asked: Vec::new() }).collect(), notes))
}

/// Those of a step. Roles with as many hosts and ranks are one to NCCL's plugin, as a note says. A rank that has several of
/// them makes the calls of all.
fn step_jobs(step: &Collectives, request: &Request) -> Result<(Vec<Job>, Vec<String>), Error> {
    let (mut jobs, mut notes) = (Vec::<Job>::new(), BTreeSet::new());
    // How often each rank makes a call, by job, collective and size.
    let mut made: BTreeMap<(usize, Collective, Bytes), BTreeMap<Rank, u64>> = BTreeMap::new();
    let on = Machine::of(&step.site);
    for role in &step.roles {
        let others = role.others.iter().map(Vec::as_slice);
        let group = Group::named(&role.name, &on, &role.ranks, others);
        let shape = |group: &Group| group.communicator.shape();
        let at = jobs.iter().position(|job| shape(&job.group) == shape(&group)).unwrap_or(jobs.len());
        if at == jobs.len() {
            jobs.push(Job { group, asked: Vec::new() });
        }
        let Job { group: Group { communicator, .. }, asked } = &mut jobs[at];
        if communicator.name.as_ref() != Some(&role.name) {
            notes.insert(communicator.stands_for(&role.name));
        }
        for (call, times) in &role.calls {
            let by_rank = made.entry((at, call.collective, call.size())).or_default();
            for rank in role.ranks.iter().chain(role.others.iter().flatten()) {
                *by_rank.entry(*rank).or_default() += times;
            }
            let times = by_rank.values().copied().max().unwrap_or_default();
            let same = |a: &&mut Asked| (a.call.collective, a.call.size()) == (call.collective, call.size());
            match asked.iter_mut().find(same) {
                Some(known) => known.times = times,
                None => {
                    let (call, channels) = (call.clone(), request.channels.clone());
                    asked.push(Asked { call, channels, beyond: false, times });
                }
            }
        }
    }
    for job in &mut jobs {
        let collectives: BTreeSet<Collective> = job.asked.iter().map(|asked| asked.call.collective).collect();
        let own = Request { collectives: collectives.into_iter().collect(), ..request.clone() };
        let around = calls(&own, job.group.communicator.ranks, &ALL_SIZES, true)?;
        job.asked.extend(around.into_iter().filter(|other| is_outside(&job.asked, other)).collect::<Vec<_>>());
    }
    Ok((jobs, notes.into_iter().collect()))
}

/// Most calls with channels: a slip in the sizes must not run for ever.
const MAX_POINTS: usize = 100_000;

/// The calls asked about, and those of sizes below, above and far from all of these.
pub(super) fn asked(request: &Request, ranks: u32, measured: &[u64]) -> Result<Vec<Asked>, Error> {
    let free = if measured.is_empty() { &ALL_SIZES } else { measured };
    let mut sizes = request.sizes.as_deref().unwrap_or(free).to_vec();
    // Advice reaches from a size to the next, so what was measured between them has a word in it.
    if let Some((&least, &most)) = sizes.iter().min().zip(sizes.iter().max()) {
        sizes.extend(measured.iter().filter(|size| (least..=most).contains(size)));
        sizes.sort_unstable();
        sizes.dedup();
    }
    let mut asked = calls(request, ranks, &sizes, false)?;
    if asked.is_empty() {
        return Err(Error::usage("there is no size or collective to tune", "name one, or leave both out"));
    }
    let mut around = calls(request, ranks, &ALL_SIZES, true)?;
    // And what was measured of smaller and larger calls tells how far forecasts are off.
    around.extend(calls(request, ranks, measured, true)?);
    for other in around {
        if is_outside(&asked, &other) && !asked.iter().any(|known| known.call == other.call) {
            asked.push(other);
        }
    }
    Ok(asked)
}

/// Whether nothing is asked about calls of its size: it is smaller or larger than all of its collective, or between two
/// that are more than four times apart, twice the one and half of the other or further. No advice reaches that far from a size.
fn is_outside(asked: &[Asked], other: &Asked) -> bool {
    let of = asked.iter().filter(|a| !a.beyond && a.call.collective == other.call.collective);
    let sizes: Vec<Bytes> = of.map(|asked| asked.call.size()).collect();
    let size = other.call.size();
    let below = sizes.iter().filter(|&&s| s <= size).max();
    let above = sizes.iter().filter(|&&s| s >= size).min();
    match (below, above) {
        (Some(below), Some(above)) => above.0 > 4 * below.0 && size.0 >= 2 * below.0 && above.0 >= 2 * size.0,
        _ => true,
    }
}

/// The calls of some sizes, each with the channels to try.
fn calls(request: &Request, ranks: u32, sizes: &[u64], beyond: bool) -> Result<Vec<Asked>, Error> {
    let Request { collectives, channels, .. } = request;
    let count = [collectives.len(), channels.len(), sizes.len()].into_iter().fold(1, usize::saturating_mul);
    if count > MAX_POINTS {
        return Err(Error::usage(
            format!("the sweep has {count} points; at most {MAX_POINTS} are run"),
            "take fewer sizes or algorithms",
        ));
    }
    let mut calls: Vec<Asked> = Vec::new();
    for &collective in collectives {
        for &forced in channels {
            for &size in sizes {
                let (op, root, in_place) = (request.op, request.root, request.in_place);
                let call = Call::of_size(collective, ranks, Bytes(size), request.dtype).aligned();
                let call = Call { op, root, in_place, ..call };
                // NCCL starts nothing for a call without bytes.
                if call.size().0 == 0 {
                    continue;
                }
                match calls.iter_mut().find(|asked| asked.call == call) {
                    Some(asked) => asked.channels.push(forced),
                    None => calls.push(Asked { call, channels: vec![forced], beyond, times: 1 }),
                }
            }
        }
    }
    Ok(calls)
}
