//! Several schedules at once on one machine: they share links and memories, in one communicator proxies.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::laid::{Laid, ResourceName};
use crate::engine::Instance;
use crate::schedule::wiring::{UNUSED, Wiring};

/// One instance of what was laid on the same machine one by one. The wiring is that of the
/// first: ranks of different communicators have the same numbers.
pub fn join<'a>(laid: impl IntoIterator<Item = Laid<'a>>, one_communicator: bool) -> Laid<'a> {
    let mut all = Laid {
        instance: Instance::default(),
        names: Vec::new(),
        wiring: Wiring { workers: Vec::new(), conns: Vec::new() },
        congested: None,
        folds: Arc::default(),
    };
    let mut shared: FxHashMap<ResourceName, u32> = FxHashMap::default();
    let mut all_conns = Vec::new();
    for (index, one) in laid.into_iter().enumerate() {
        if index == 0 {
            all.wiring = one.wiring;
        }
        let number = |n: usize| u32::try_from(n).unwrap_or(UNUSED);
        let (conns, lanes) = (number(all_conns.len()), number(all.instance.lanes.len()));
        let (kernels, jobs) = (number(all.instance.kernels.len()), number(all.instance.schedules.len()));
        let Instance { resources, conns: its_conns, lanes: its_lanes, kernels: its_kernels, schedules, tasks } =
            one.instance;
        let place: Vec<u32> = resources
            .into_iter()
            .zip(one.names)
            .map(|(rate, name)| {
                let next = number(all.names.len());
                let place = match name {
                    ResourceName::Link(_) | ResourceName::Memory(_) | ResourceName::Direct(..) => {
                        *shared.entry(name).or_insert(next)
                    }
                    ResourceName::Proxy(_) if one_communicator => *shared.entry(name).or_insert(next),
                    ResourceName::Lane(..)
                    | ResourceName::Own(..)
                    | ResourceName::Proxy(_)
                    | ResourceName::Helpers(_) => next,
                };
                if place == next {
                    all.instance.resources.push(rate);
                    all.names.push(name);
                }
                place
            })
            .collect();
        all_conns.extend(Arc::unwrap_or_clone(its_conns).into_iter().map(|mut conn| {
            conn.uses.renumber(|resource| place[resource as usize]);
            conn
        }));
        let later = |base: u32| move |id: &mut u32| *id = if *id == UNUSED { UNUSED } else { *id + base };
        all.instance.lanes.extend(its_lanes.into_iter().map(|mut lane| {
            lane.recv.iter_mut().chain(&mut lane.send).for_each(later(conns));
            lane.tokens.iter_mut().for_each(later(lanes));
            lane.issue.0 = place[lane.issue.0 as usize];
            lane.own.iter_mut().for_each(|own| own.0 = place[own.0 as usize]);
            lane.kernel += kernels;
            lane.job += jobs;
            lane
        }));
        all.instance.kernels.extend(its_kernels);
        all.instance.schedules.extend(schedules);
        let first = number(all.instance.tasks.len());
        all.instance.tasks.extend(tasks.into_iter().map(|mut task| {
            task.uses.iter_mut().chain(&mut task.holds).for_each(|u| u.0 = place[u.0 as usize]);
            task.after.iter_mut().for_each(|a| a.0 += first);
            task.until.iter_mut().for_each(|t| *t += first);
            task.kernels.iter_mut().for_each(|k| *k += kernels);
            task
        }));
        all.congested = all.congested.or(one.congested);
    }
    all.instance.conns = Arc::new(all_conns);
    all
}
