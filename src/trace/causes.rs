//! Why calls are slow: the sizes of one collective in one group are a run, which the doctor looks into.

use std::borrow::Cow;
use std::collections::BTreeMap;

use collcast_sim::collective::DataType;
use collcast_sim::doctor::{Case, Point, Question, Timed};
use collcast_sim::ids::Rank;
use collcast_sim::predict::{Choice, Prediction};
use collcast_sim::schedule::Call;
use collcast_sim::units::SimDuration;

use super::outcome::{CallRow, Judgement, Outcome};
use crate::diagnose::{Run, examine_runs};
use crate::health::State;
use crate::site::Site;
use crate::watch::Watch;

/// What was forecast for a kind of calls.
pub(super) struct Forecast {
    /// The group, and those that do the same call at once.
    pub(super) groups: Vec<Vec<Rank>>,
    pub(super) call: Call,
    /// With nothing beside it.
    pub(super) alone: Prediction,
}

/// Which sizes are a run.
type Key<'o> = (&'o str, &'o [Vec<Rank>], &'o str, Option<&'static str>);

/// Says of slow calls which cause fits their times; `forecasts` are those of the rows.
pub(super) fn look_into(outcome: &mut Outcome, forecasts: &[Option<Forecast>], site: &Site, watch: &Watch) {
    let mut runs: BTreeMap<Key<'_>, Vec<(&CallRow, &Forecast)>> = BTreeMap::new();
    for (row, forecast) in outcome.calls.iter().zip(forecasts) {
        if let Some(forecast) = forecast {
            let key = (row.group.as_str(), &*forecast.groups, row.collective.as_str(), row.dtype);
            runs.entry(key).or_default().push((row, forecast));
        }
    }
    let slow = |(row, _): &(&CallRow, &Forecast)| {
        row.expected.as_ref().is_some_and(|expected| expected.judgement == Judgement::Slower)
    };
    let runs = runs.into_values().filter(|rows| rows.iter().any(slow));
    let runs: Vec<Run<'_>> = runs.filter_map(|rows| run(&rows, site)).collect();
    if runs.is_empty() {
        return;
    }
    let found = examine_runs(&runs, site.predictor().profile(), watch);
    outcome.anomalies = found.anomalies;
    outcome.causes = Some(found.causes);
    outcome.warnings.extend(found.warnings);
}

/// None where no size was timed.
fn run(rows: &[(&CallRow, &Forecast)], site: &Site) -> Option<Run<'static>> {
    let (first, Forecast { groups, .. }) = rows.first()?;
    let gpus: Vec<_> = groups.iter().flatten().map(|&rank| site.topology.gpu_of(rank)).collect();
    let topology = site.topology.placed(&gpus).ok()?;
    let together = u32::try_from(groups.len()).ok()?;
    let point = |(row, forecast): &(&CallRow, &Forecast)| {
        let (time, expected) = (row.time_us?, row.expected.as_ref()?);
        let alone = &forecast.alone;
        // What the call takes longer, it takes longer of the part beside computation too.
        let longer = time / expected.time_us.max(f64::MIN_POSITIVE);
        let of = |end: SimDuration| {
            SimDuration::from_us(end.as_us() / alone.time.as_us().max(f64::MIN_POSITIVE) * alone.kernel.as_us())
        };
        Some(Point {
            question: Question {
                call: forecast.call.clone(),
                together,
                algorithm: Choice::Auto,
                protocol: Choice::Auto,
                settings: *site.settings(),
                timed: Timed::Kernel,
            },
            measured: SimDuration::from_us(alone.kernel.as_us() * longer),
            expected: Prediction { time: alone.kernel, low: of(alone.low), high: of(alone.high), ..alone.clone() },
        })
    };
    let case = Case::new(rows.iter().filter_map(point).collect())?;
    let dtype = first.dtype.filter(|name| *name != DataType::Float32.name());
    let dtype = dtype.map_or_else(String::new, |name| format!(" of {name}"));
    Some(Run {
        name: format!("{}{dtype} in {}, {} ranks", first.collective, first.group, first.ranks),
        run: first.group.clone(),
        ranks: first.ranks,
        state: State::Slow,
        case,
        said: None,
        topology: Cow::Owned(topology),
    })
}
