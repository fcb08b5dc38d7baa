//! Calls between `ncclGroupStart` and `ncclGroupEnd`, which NCCL runs as one kernel.

use collcast_reports::model::Input;
use collcast_sim::collective::{Algorithm, Protocol};
use collcast_sim::predict::{Choice, GroupPrediction};
use collcast_sim::schedule::Call;
use collcast_sim::units::SimDuration;
use serde::Serialize;

use crate::confidence::{Grounds, Said};
use crate::error::Error;
use crate::query::UNMEASURED_SWITCHES;
use crate::site::Site;
use crate::watch::Watch;

/// Calls of one group.
#[derive(Clone, Debug)]
pub struct Request {
    /// The calls, all over the same ranks.
    pub calls: Vec<Call>,
    /// Who decides on their algorithm.
    pub algorithm: Choice<Algorithm>,
    /// Who decides on their protocol.
    pub protocol: Choice<Protocol>,
    /// Channels, exactly; NCCL's number otherwise.
    pub channels: Option<u32>,
    /// Follows the forecast.
    pub watch: Watch,
}

/// The forecast of a group.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Bytes of all calls, as nccl-tests counts them.
    pub size_bytes: u64,
    /// Time of the group, as one of a loop of them.
    pub time_us: f64,
    /// Lower end of its 90% interval.
    pub low_us: f64,
    /// Upper end of it.
    pub high_us: f64,
    /// Bus bandwidth of all calls together, GB/s.
    pub busbw_gbps: f64,
    /// The same calls one after another.
    pub apart_us: f64,
    /// Profiles that it depends on.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using the numbers.
    pub warnings: Vec<String>,
    /// The calls.
    #[serde(skip)]
    pub calls: Vec<Call>,
    /// The answer in full.
    #[serde(skip)]
    pub prediction: GroupPrediction,
    /// What it rests on.
    #[serde(skip)]
    pub grounds: Grounds,
}

/// Forecasts a group of calls.
///
/// # Errors
/// Calls that NCCL does not run as one kernel, or that are not modelled as one.
pub fn group(site: &Site, request: &Request) -> Result<Outcome, Error> {
    let ranks = request.calls.first().map_or(0, |call| call.ranks);
    site.check_graphs(ranks)?;
    let settings = collcast_sim::predict::Settings { channels: request.channels, ..*site.settings() };
    let predictor = site.predictor().telling(request.watch.of_each_run());
    let p = predictor.predict_group(&request.calls, (request.algorithm, request.protocol), &settings)?;
    let part = |end: SimDuration| end.as_us() / p.time.as_us().max(f64::MIN_POSITIVE);
    let said = Said { bound: p.bound, busy: p.busy, interval: (part(p.low), part(p.high)), beyond: &p.beyond };
    let calls = request.calls.iter().map(|call| (call.collective, call.ranks));
    let grounds: Vec<Grounds> = calls.map(|call| Grounds::of(site.on(), call, said)).collect();
    let (low, high) = (grounds.iter().map(|of| of.interval(said.interval)))
        .fold((1.0, 1.0), |(low, high): (f64, f64), (l, h)| (low.min(l), high.max(h)));
    let grounds: Grounds = grounds.into_iter().collect();
    let mut notes = site.notes(grounds.basis);
    notes.push("one kernel; left out: what the host takes to plan a group".to_owned());
    if p.beyond.switches() {
        notes.push(UNMEASURED_SWITCHES.to_owned());
    }
    let mut warnings = site.told.warnings.clone();
    warnings.extend(p.warnings.iter().map(ToString::to_string));
    let on_buses = |call: &Call| call.size().0 as f64 * call.bus_factor();
    let bus: f64 = request.calls.iter().map(on_buses).sum();
    Ok(Outcome {
        ranks,
        size_bytes: request.calls.iter().map(|call| call.size().0).sum(),
        time_us: p.time.as_us(),
        low_us: p.time.as_us() * low,
        high_us: p.time.as_us() * high,
        busbw_gbps: bus / p.time.as_us().max(1e-9) / 1e3,
        apart_us: p.apart.as_us(),
        inputs: site.sources.clone(),
        notes,
        warnings,
        calls: request.calls.clone(),
        grounds,
        prediction: p,
    })
}
