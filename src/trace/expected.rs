//! What calls should take on the machine that they ran on.

use collcast_hwbackend::trace::{Call, Group, Trace};
use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::ids::Rank;
use collcast_sim::predict::{Choice, Predictor};
use collcast_sim::profile::{Constant, OriginKind};
use collcast_sim::schedule::Call as Asked;
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use rayon::prelude::*;

use super::causes::{self, Forecast};
use super::matched::{Kin, Matched};
use super::outcome::{Expected, Judgement, Outcome};
use crate::confidence::{self, Grounds};
use crate::error::Error;
use crate::health::OTHER_GPUS;
use crate::site::{Site, SiteSpec};
use crate::validate::gpus_of_another;
use crate::watch::Watch;

/// Holds the calls against forecasts, and those that are slow against causes where a `doctor` is asked for.
pub(super) fn judge(
    outcome: &mut Outcome,
    (traces, matched): (&[Trace], &Matched),
    spec: &SiteSpec,
    doctor: bool,
    watch: &Watch,
) -> Result<(), Error> {
    let groups = || matched.kinds().filter_map(|kin| kin.call.group.as_deref());
    let highest = groups().flat_map(|group| group.ranks.iter().copied().chain(group.size.checked_sub(1))).max();
    let world = outcome.world.unwrap_or(0).max(highest.map_or(0, |rank| rank.saturating_add(1)));
    let site = spec.for_ranks(world, "-t")?;
    let of_another =
        |trace: &Trace| gpus_of_another(&trace.path, &trace.gpu.as_deref().into_iter().collect(), &site.topology);
    let foreign = traces.iter().find_map(of_another);
    outcome.other_gpus = foreign.is_some();
    outcome.warnings.extend(foreign);
    let predictor = site.predictor();
    let progress = watch.parts(outcome.calls.len());
    let kinds: Vec<&Kin> = matched.kinds().collect();
    let forecasts: Vec<Told> = (kinds.par_iter().with_max_len(1))
        .map(|kin| {
            let forecast = forecast(&site, &predictor, kin, world);
            progress.done()?;
            Ok(forecast)
        })
        .collect::<Result<_, Error>>()?;
    let (mut grounds, mut asked) = (Vec::new(), Vec::new());
    for (row, forecast) in outcome.calls.iter_mut().zip(forecasts) {
        match forecast {
            Ok((expected, on, forecast)) => {
                asked.push(Some(forecast));
                row.expected = row.time_us.map(|time| {
                    let alone = row.members < row.ranks && row.collective != Collective::SendRecv.name();
                    judged(expected, time, row.calls, alone)
                });
                grounds.push(on);
            }
            Err(why) => {
                asked.push(None);
                row.not_forecast = Some(why);
            }
        }
    }
    if doctor {
        watch.stage("slow calls are held against causes")?;
        causes::look_into(outcome, &asked, &site, watch);
    }
    let grounds: Grounds = grounds.into_iter().collect();
    outcome.notes.extend(site.notes(grounds.basis));
    outcome.notes.push(
        "forecast: the time of the kernel, as long beside computation as it was; the other groups of its kind do the same \
         call at once"
            .to_owned(),
    );
    outcome.warnings.extend(site.told.warnings.iter().cloned());
    outcome.inputs.extend(site.sources.iter().cloned());
    outcome.grounds = Some(grounds);
    Ok(())
}

/// A forecast with what it rests on, or why there is none.
type Told = Result<(Expected, Grounds, Forecast), String>;

fn forecast(site: &Site, predictor: &Predictor<'_>, kin: &Kin, world: u32) -> Told {
    let asked = asked(&kin.call)?;
    let groups = groups(&site.topology, kin.call.group.as_deref(), world)?;
    let call = |ranks: u32| {
        let call = Asked::of_size(asked.0, ranks, asked.1, kin.call.dtype.unwrap_or(asked.2)).aligned();
        Asked { in_place: asked.0 == Collective::AllReduce, ..call }
    };
    let profile = predictor.profile();
    let kept = profile.block_speed(profile.gemm_memory());
    let auto: (Choice<Algorithm>, Choice<Protocol>) = (Choice::Auto, Choice::Auto);
    let (alone, _, slower) =
        predictor.predict_groups(&groups, &call, auto, site.settings(), Some(kept)).map_err(|e| e.to_string())?;
    let one = call(u32::try_from(groups[0].len()).unwrap_or(1));
    let (low, high) = confidence::interval_us(site.on(), &one, &alone);
    let of = |end: f64| end / alone.time.as_us().max(f64::MIN_POSITIVE);
    // The median call may be beside computation for longer than calls are on average: that bounds what is not slow.
    let beside = kin.beside().unwrap_or(0.0);
    let slowed = slower.map_or(alone.kernel, |s| s.kernel).as_us();
    let time_us = alone.kernel.as_us() * (1.0 - beside) + slowed * beside;
    // How computation slows calls is known of the GPU where it was measured; of others as loosely as all else is.
    let measured = profile[Constant::InterferenceBlocks].origin <= OriginKind::Anchor;
    let looser = if measured { 1.0 } else { OTHER_GPUS };
    let most_us = alone.kernel.as_us() + (slowed - alone.kernel.as_us()) * looser;
    let expected = Expected {
        algorithm: alone.algorithm.name(),
        protocol: alone.protocol.name(),
        time_us,
        low_us: time_us * of(low),
        high_us: (if kin.beside() == Some(0.0) { time_us } else { most_us.max(time_us) }) * of(high),
        judgement: Judgement::AsExpected,
        lost_ms: 0.0,
    };
    let mut grounds = Grounds::of(site.on(), (one.collective, one.ranks), (&alone).into());
    if groups.len() == 1 {
        grounds = grounds.beside_published(site.on(), (one.collective, one.ranks, one.size()), &alone);
    }
    Ok((expected, grounds, Forecast { groups, call: one, alone }))
}

/// What NCCL is asked for.
fn asked(call: &Call) -> Result<(Collective, Bytes, collcast_sim::collective::DataType), String> {
    let collective = call.collective.ok_or("several calls in one, or none that NCCL knows")?;
    if collective == Collective::SendRecv {
        return Err("between two ranks: which calls are under way at once is not in the trace".to_owned());
    }
    if let Some(why) = call.not_forecast() {
        return Err(why.to_owned());
    }
    let (Some(size), Some(dtype)) = (call.size(), call.dtype) else {
        return Err("its size or element type is not in the trace".to_owned());
    };
    Ok((collective, size, dtype))
}

/// The group, and those of its kind on the same hosts: shifted copies of it, where its ranks are evenly apart.
fn groups(topology: &Topology, group: Option<&Group>, world: u32) -> Result<Vec<Vec<Rank>>, String> {
    let group = group.ok_or("its group is not in the trace")?;
    let members: Vec<u32> = match group.ranks.as_slice() {
        [] => (0..group.size).collect(),
        ranks => ranks.to_vec(),
    };
    if members.len() < 2 {
        return Err("a group of one rank".to_owned());
    }
    let on_hosts = |ranks: &[u32]| -> Vec<_> { ranks.iter().map(|&rank| topology.host_of(Rank(rank))).collect() };
    let own = on_hosts(&members);
    let mut all = vec![members.clone()];
    let (size, stride) = (members.len() as u64, u64::from(members[1].saturating_sub(members[0])));
    let even = stride > 0 && members.windows(2).all(|pair| u64::from(pair[1].saturating_sub(pair[0])) == stride);
    let block = stride * size;
    if even && block <= u64::from(world) && u64::from(world) % block == 0 {
        for begin in (0..u64::from(world)).filter(|rank| rank % block < stride) {
            let other: Vec<u32> = (0..size).filter_map(|i| u32::try_from(begin + i * stride).ok()).collect();
            if other != members && on_hosts(&other).iter().any(|host| own.contains(host)) {
                all.push(other);
            }
        }
    }
    Ok(all.into_iter().map(|ranks| ranks.into_iter().map(Rank).collect()).collect())
}

/// Compares a time with its forecast. A time of `some` of the ranks may hold waiting for those that are not there.
fn judged(expected: Expected, time_us: f64, calls: f64, some: bool) -> Expected {
    let judgement = match time_us {
        time if time < expected.low_us => Judgement::Faster,
        time if time <= expected.high_us => Judgement::AsExpected,
        _ if some => Judgement::CannotTell,
        _ => Judgement::Slower,
    };
    let lost = (time_us - expected.time_us).max(0.0) * calls / 1e3;
    Expected { lost_ms: if judgement == Judgement::Slower { lost } else { 0.0 }, judgement, ..expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: data-parallel groups of 8 apart come with the seven beside them; an odd one comes alone.
    #[test]
    fn groups_come_with_their_kind() {
        let topology = SiteSpec::new("dgx-h100").nodes(2).topology().unwrap();
        let of = |ranks: &[u32]| {
            let group = Group { ranks: ranks.to_vec(), size: ranks.len() as u32, ..Group::default() };
            groups(&topology, Some(&group), 16).unwrap()
        };
        let apart = of(&[3, 11]);
        assert_eq!((apart.len(), &apart[0]), (8, &vec![Rank(3), Rank(11)]));
        assert_eq!(of(&[0, 1, 2, 3]).len(), 2, "two groups of four on a host");
        assert_eq!(of(&[0, 1, 5]).len(), 1);
        assert_eq!(of(&(0..16).collect::<Vec<_>>()).len(), 1);
    }
}
