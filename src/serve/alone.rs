//! What a prompt and a token take alone on a fleet's workers, and which options would make them faster.

use collcast_scenarios::serving::{Policy, Role};
use collcast_sim::compute::Precision;
use serde::Serialize;

use super::bound::Demand;
use super::fleet::{Fleet, Group};
use super::request::Request;
use super::setup::{Exchanges, Setup, steps};
use crate::error::Error;

/// Part of its time that an option has to save to be named: forecasts of kernels are no closer.
const WORTH: f64 = 0.1;

/// A prompt, or a token, alone on its worker.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Alone {
    /// Tokens of a prompt: the one that is longer than as many as have to meet the objective.
    pub tokens: u64,
    /// Seconds of it, and of a token of a mean request.
    pub seconds: [f64; 2],
    /// Of a prompt and of a token that takes longer than the objective allows: options that make it faster. Where some are
    /// enough, only they are named.
    pub faster: [Vec<String>; 2],
    /// Options with which the workers that take prompts have more cache a GPU.
    pub roomier: Vec<String>,
}

/// Part of its cache that an option has to add to be named.
const ADDS: f64 = 0.2;

/// Adds which options give the workers that take prompts more cache a GPU: more GPUs a worker, fewer bits.
pub(super) fn roomier(request: &Request, fleet: Fleet, demand: &Demand, alone: &mut Alone) {
    let cache = |request: &Request, group: Group| {
        let setup = Setup::new(request, group.gpus())?;
        Ok::<_, Error>((
            setup.blocks(group, request)? as f64 / f64::from(group.gpus()),
            setup.gpu.supports(request.precision),
        ))
    };
    let Some((_, group)) = fleet.groups().into_iter().next() else { return };
    let Ok((now, _)) = cache(request, group) else { return };
    for (name, request, group) in others(request, group, 1, demand) {
        if cache(&request, group).is_ok_and(|(blocks, runs)| runs && blocks > (1.0 + ADDS) * now) {
            alone.roomier.push(name);
        }
    }
}

/// Adds what makes a prompt or a token faster, where it alone takes longer than it may.
pub(super) fn faster(request: &Request, fleet: Fleet, demand: &Demand, alone: &mut Alone) {
    let limits = [request.objective.ttft, request.objective.tpot];
    for (which, without) in [Role::Decode, Role::Prefill].into_iter().enumerate() {
        let group = fleet.groups().into_iter().find(|(role, _)| *role != without).map(|(_, group)| group);
        let now = alone.seconds[which];
        let Some(group) = group.filter(|_| now > limits[which]) else { continue };
        let mut found: Vec<(String, f64)> = Vec::new();
        for (name, request, group) in others(request, group, which, demand) {
            // What the machine or the model does not allow is no option.
            let Ok(seconds) = seconds(&request, group, which, demand) else { continue };
            if seconds < (1.0 - WORTH) * now {
                found.push((name, seconds));
            }
        }
        if found.iter().any(|(_, seconds)| *seconds <= limits[which]) {
            found.retain(|(_, seconds)| *seconds <= limits[which]);
        }
        alone.faster[which] = found.into_iter().map(|(name, _)| name).collect();
    }
}

/// What may make a prompt (0) or a token (1) of a worker faster: more tensor ranks, with as many GPUs or more, the next
/// precision that has fewer bits, larger steps.
fn others(request: &Request, group: Group, which: usize, demand: &Demand) -> Vec<(String, Request, Group)> {
    let wider = Group { workers: 1, tensor: group.tensor * 2, ..group };
    let same = Group { replicas: group.replicas / 2, ..wider };
    let groups = [Some(same).filter(|_| group.replicas.is_multiple_of(2)), Some(wider)];
    let mut others: Vec<_> = (groups.into_iter().flatten())
        .map(|group| (format!("workers such as {group}"), request.clone(), group))
        .collect();
    if let Some(precision) = lower(request.precision) {
        others.push((format!("--precision {}", precision.name()), Request { precision, ..request.clone() }, group));
    }
    let chunk = demand.longest().next_power_of_two();
    if which == 0 && chunk > request.policy.chunk {
        let policy = Policy { chunk, ..request.policy };
        others.push((format!("--chunk {chunk}"), Request { policy, ..request.clone() }, group));
    }
    others
}

/// The next precision of fewer bits.
fn lower(precision: Precision) -> Option<Precision> {
    Precision::ALL.into_iter().find(|other| other.bytes() < precision.bytes())
}

/// Seconds of a prompt (0) or a token (1) alone on a worker.
fn seconds(request: &Request, group: Group, which: usize, demand: &Demand) -> Result<f64, Error> {
    let setup = Setup::new(request, group.gpus())?;
    setup.blocks(group, request)?;
    let calls = setup.site.calls()?;
    let exchanges = Exchanges::new(&calls);
    let taken = |shape, exchange, bytes| exchanges.taken(shape, exchange, bytes);
    let mut steps = steps(&setup, group, request.precision, &taken)?;
    let seconds = match which {
        0 => demand.prompt_alone(request.policy.chunk, &mut steps),
        _ => demand.token_alone(&mut steps),
    };
    drop(steps);
    exchanges.failed.take().map_or(Ok(seconds), |error| Err(error.into()))
}
