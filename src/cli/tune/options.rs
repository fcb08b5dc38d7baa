//! What NCCL could do for each call, with the time it takes: predicted, and measured where somebody has.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::collective::{Algorithm, Buffers, Collective, Launch, Protocol};
use collcast_sim::engine::Unobserved;
use collcast_sim::measurement::{Measurement, PeerAccess};
use collcast_sim::predict::{Choice, PredictError, Prediction, Predictor, Settings};
use collcast_sim::schedule::Call;
use rayon::prelude::*;

use crate::selectors::Point;
use crate::validate::band;
use collcast::Error as CliError;
use collcast::noise::{known, median};

pub(super) type Pair = (Algorithm, Protocol);

/// What a comparison of two options rests on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Basis {
    Measured,
    Predicted,
    Cited,
    Extrapolated,
}

impl Basis {
    /// That of predictions.
    pub(super) fn of<'o>(options: impl IntoIterator<Item = &'o Opt>) -> Self {
        let basis = options.into_iter().map(|o| match o.prediction.beyond.basis() {
            "predicted" => Self::Predicted,
            "cited" => Self::Cited,
            _ => Self::Extrapolated,
        });
        basis.max().unwrap_or(Self::Predicted)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Predicted => "predicted",
            Self::Cited => "cited",
            Self::Extrapolated => "extrapolated",
        }
    }
}

/// Measured times of one option.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Times {
    /// Median of the runs, in microseconds.
    pub(super) us: f64,
    pub(super) runs: usize,
}

/// One way to do a call.
#[derive(Clone, Debug)]
pub(super) struct Opt {
    pub(super) pair: Pair,
    /// Forced; NCCL's number otherwise.
    pub(super) channels: Option<u32>,
    pub(super) prediction: Prediction,
    pub(super) measured: Option<Times>,
}

impl Opt {
    pub(super) fn predicted_us(&self) -> f64 {
        self.prediction.time.as_us()
    }
}

/// A call with all that NCCL could do for it.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) call: Call,
    pub(super) launch: Launch,
    pub(super) options: Vec<Opt>,
    /// The option that NCCL takes by itself.
    pub(super) default: usize,
    /// Not asked about: what is set for other sizes must not harm it.
    pub(super) beyond: bool,
}

impl Site {
    pub(super) fn default_option(&self) -> &Opt {
        &self.options[self.default]
    }

    /// Whether measured times decide: a forecast does not overrule them.
    pub(super) fn measured(&self) -> bool {
        self.default_option().measured.is_some() && self.options.iter().filter(|o| o.measured.is_some()).count() > 1
    }

    /// NCCL's choice where it has no schedule here.
    pub(super) fn not_modelled(&self) -> Option<Pair> {
        self.default_option().prediction.instead_of
    }

    /// Index of the option with the smallest time.
    pub(super) fn fastest(&self, time: impl Fn(&Opt) -> Option<f64>) -> Option<usize> {
        let timed = self.options.iter().enumerate().filter_map(|(index, o)| Some((index, time(o)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
    }

    /// How a change from the default to an option would be judged.
    pub(super) fn basis(&self, option: &Opt) -> Basis {
        let default = self.default_option();
        match (default.measured, option.measured) {
            (Some(_), Some(_)) => Basis::Measured,
            _ => Basis::of([default, option]),
        }
    }

    /// The time saved by an option, as a fraction of the default's.
    pub(super) fn gain(&self, option: &Opt) -> f64 {
        let default = self.default_option();
        match (default.measured, option.measured) {
            (Some(default), Some(option)) => 1.0 - option.us / default.us,
            _ => 1.0 - option.predicted_us() / default.predicted_us(),
        }
    }

    /// Whether NCCL's choice was measured outside of what is forecast for it.
    pub(super) fn is_contradicted(&self) -> bool {
        let default = self.default_option();
        let interval = default.prediction.low.as_us()..=default.prediction.high.as_us();
        default.measured.is_some_and(|m| !interval.contains(&m.us))
    }

    /// Whether an option's gain exceeds what is not known: the 90% intervals of both forecasts,
    /// taken as independent, or the spread of measured times at `z` standard deviations.
    ///
    /// Nothing is gained where the host's launches set the pace of both, whatever two runs say: its
    /// thread may have been slower in one. A forecast that the measured default contradicts is none.
    pub(super) fn is_certain(&self, option: &Opt, z: f64) -> bool {
        let default = self.default_option();
        let launched = |o: &Opt| o.prediction.issue >= o.prediction.kernel;
        if launched(default) && launched(option) {
            return false;
        }
        if option.measured.is_none() && self.is_contradicted() {
            return false;
        }
        let saved = -(1.0 - self.gain(option)).ln();
        let doubt = match (default.measured, option.measured) {
            (Some(a), Some(b)) => {
                // Noise is that of a ratio of two single measurements: half of it is one's.
                let noise = known(&[Some(self.launch)], band(self.call.size().0));
                let one = (noise.offset.powi(2) + noise.row.powi(2)) / 2.0;
                z * (one / a.runs as f64 + one / b.runs as f64).sqrt()
            }
            _ => {
                let width = |p: &Prediction| (p.high.as_us() / p.time.as_us()).ln().max(0.0);
                width(&default.prediction).hypot(width(&option.prediction))
            }
        };
        saved > doubt
    }
}

/// Collective, size, algorithm and protocol where forced, channels where forced.
type Key = (Collective, u64, Option<Pair>, Option<u32>);

/// Measured times by collective, size, algorithm, protocol and channels.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Mode of the rows.
    pub(super) launch: Option<Launch>,
    /// Microseconds by run.
    times: BTreeMap<Key, BTreeMap<String, Vec<f64>>>,
    rows: usize,
    left_out: usize,
}

impl Measured {
    /// The rows of `ranks` ranks that leave buffers, threads and peer access as they are.
    ///
    /// # Errors
    /// No row is left.
    pub(super) fn of(rows: &[Measurement], ranks: u32, launch: Launch, told: bool) -> Result<Self, CliError> {
        let plain = |m: &&Measurement| {
            let s = &m.settings;
            m.ranks == ranks
                && s.buffers == Buffers::default()
                && s.threads.is_none()
                && s.peer_access == PeerAccess::On
                && s.nccl_algo.is_none()
                && s.algorithm.is_some() == s.protocol.is_some()
        };
        let usable: Vec<&Measurement> = rows.iter().filter(plain).collect();
        let mut modes: BTreeMap<Launch, usize> = BTreeMap::new();
        for row in &usable {
            *modes.entry(row.launch.unwrap_or(launch)).or_default() += 1;
        }
        let most = modes.iter().max_by_key(|(mode, rows)| (**rows, **mode == launch)).map(|(mode, _)| *mode);
        let mode = if told || modes.contains_key(&launch) { Some(launch) } else { most };
        let mut out = Self { launch: mode, ..Self::default() };
        for row in usable.into_iter().filter(|row| Some(row.launch.unwrap_or(launch)) == mode) {
            let pair = row.settings.algorithm.zip(row.settings.protocol);
            let key = (row.collective, row.size.0, pair, row.settings.channels);
            out.times.entry(key).or_default().entry(row.run.clone()).or_default().push(row.time.as_us());
            out.rows += 1;
        }
        out.left_out = rows.len() - out.rows;
        if out.rows == 0 {
            let modes: Vec<String> = modes.iter().map(|(mode, rows)| format!("{mode} ({rows} rows)")).collect();
            let have: BTreeSet<u32> = rows.iter().map(|m| m.ranks).collect();
            return Err(CliError::usage(
                format!("no measured row is of {ranks} ranks launched by {launch}"),
                if modes.is_empty() {
                    format!("the rows are of {have:?} ranks: choose with --ranks")
                } else {
                    format!("choose with --launch: {}", modes.join(", "))
                },
            ));
        }
        Ok(out)
    }

    pub(super) fn sizes(&self) -> Vec<u64> {
        let sizes: BTreeSet<u64> = self.times.keys().map(|key| key.1).collect();
        sizes.into_iter().collect()
    }

    pub(super) fn note(&self) -> Option<String> {
        let mode = self.launch?;
        Some(format!(
            "measured times: {} rows launched by {mode}; {} rows of other launches, ranks or settings are not used",
            self.rows, self.left_out
        ))
    }

    /// Times of an option; runs without a forced choice are those of the default.
    fn times(&self, call: &Call, pair: Pair, channels: Option<u32>, default: bool) -> Option<Times> {
        let forced = self.times.get(&(call.collective, call.size().0, Some(pair), channels));
        let free = self.times.get(&(call.collective, call.size().0, None, channels)).filter(|_| default);
        let runs: Vec<f64> = forced.into_iter().chain(free).flatten().map(|(_, us)| median(us.clone())).collect();
        (!runs.is_empty()).then(|| Times { runs: runs.len(), us: median(runs) })
    }
}

/// Times all options of each point.
///
/// # Errors
/// What has no forecast.
pub(super) fn sites(
    points: &[Point],
    predictor: &Predictor<'_>,
    settings: &Settings,
    measured: &Measured,
) -> Result<Vec<Site>, CliError> {
    let mut calls: Vec<(Call, Vec<Option<u32>>)> = Vec::new();
    for point in points {
        match calls.iter_mut().find(|(call, _)| *call == point.call) {
            Some((_, channels)) => channels.push(point.channels),
            None => calls.push((point.call.clone(), vec![point.channels])),
        }
    }
    let site = |(call, channels): (Call, Vec<Option<u32>>)| -> Result<Site, PredictError> {
        let chosen = predictor.predict(&call, Choice::Auto, Choice::Auto, settings)?;
        let pair = (chosen.algorithm, chosen.protocol);
        let mut options = vec![Opt {
            pair,
            channels: settings.channels,
            measured: measured.times(&call, pair, settings.channels, true),
            prediction: chosen,
        }];
        // What NCCL's table has closed, no tuner opens; a variable that names it could do harm.
        let table = predictor.decide(&call, Choice::Auto, Choice::Auto, settings)?.candidates;
        let open = |a, p| table.iter().any(|c| (c.algorithm, c.protocol) == (a, p) && c.time_us.is_some());
        for (algorithm, protocol) in predictor.candidates(&call, Choice::Best, Choice::Best, settings) {
            if !open(algorithm, protocol) {
                continue;
            }
            for &channels in channels.iter().filter(|&&c| (algorithm, protocol) != pair || c != settings.channels) {
                let own = Settings { channels: channels.or(settings.channels), ..*settings };
                options.push(Opt {
                    pair: (algorithm, protocol),
                    channels: own.channels,
                    measured: measured.times(&call, (algorithm, protocol), own.channels, false),
                    prediction: predictor.predict_one(&call, algorithm, protocol, &own, &mut Unobserved)?,
                });
            }
        }
        Ok(Site { call, launch: settings.launch, options, default: 0, beyond: false })
    };
    // Large calls first: they take longest.
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(calls[index].0.size()));
    let mut done = order
        .into_par_iter()
        .with_max_len(1)
        .map(|index| Ok((index, site(calls[index].clone())?)))
        .collect::<Result<Vec<(usize, Site)>, PredictError>>()?;
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, site)| site).collect())
}

/// Of some points those whose sizes are below or above all that were asked about: what is set holds there too.
pub(super) fn beyond(asked: &[Site], mut points: Vec<Point>) -> Vec<Point> {
    points.retain(|point| {
        let of = asked.iter().filter(|s| s.call.collective == point.call.collective);
        let sizes: Vec<_> = of.map(|s| s.call.size()).collect();
        let size = point.call.size();
        !sizes.is_empty() && (sizes.iter().all(|&s| size < s) || sizes.iter().all(|&s| size > s))
    });
    points
}

/// Both kinds of sites, by collective and size.
pub(super) fn joined(mut asked: Vec<Site>, mut others: Vec<Site>) -> Vec<Site> {
    others.iter_mut().for_each(|s| s.beyond = true);
    let collectives: Vec<Collective> = asked.iter().map(|s| s.call.collective).collect();
    asked.extend(others);
    asked.sort_by_key(|s| (collectives.iter().position(|c| *c == s.call.collective), s.call.size()));
    asked
}
