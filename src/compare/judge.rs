//! The statistic: is B slower than A?
//!
//! Rows of one series (same collective, ranks and settings) are compared as ln(B/A). Single
//! rows have tails: even where nothing changed, some differ by 30%. Medians over neighbouring
//! sizes do not. Two scales are tested:
//!
//! - **band**: the median of all rows of a size band;
//! - **row**: the median of five neighbouring sizes around it, so that a change at three
//!   sizes or more is found. A row stands for itself that ran five times on both sides, or four times where all of B's runs
//!   lie beyond all of A's. So does a row above 16 MiB that takes 1.75 times as long: noise there is below 1%. A row that lies
//!   apart from its neighbours and does not stand for itself leaves its band open, where its repeats agree or it is above 16 MiB.
//!
//! The interval of a median over n rows is `+- t * sqrt(sum over A and B of m(runs) * offset + m(n) * m(repeats) * row)`,
//! with the variances of a single measurement on each side, and m the variance of a median of so many. Those variances are
//! the known ones of [`crate::noise`], and what the repeats of that side show where that is more. t is Student's, with
//! Welch's degrees of freedom, and such that all intervals of a report hold together: with nothing changed, a report says
//! `slower` with a probability below 1% for all bands and 1% for all rows together (Bonferroni), however many it has. Where both
//! sides name several hosts, each of them is tested against itself as well, and each kind of test has a third of the 2%.
//!
//! A verdict reads off the interval: `slower` where all of it lies above 1 and the ratio itself is at the tolerance or
//! beyond, `no change` where all of it is within the tolerance, else `cannot tell`. One or two sizes of a
//! band that ran once or twice may have been disturbed: the interval of such a change reaches [`TAIL`] times further towards 1.

use std::collections::BTreeMap;

use collcast_sim::units::Bytes;
use serde::Serialize;

use super::sets::{Curve, Matched, Pair, Run, Sample, Series};
use crate::bands::{BANDS, band};
use crate::noise::{Noise, TAIL, known};
use crate::statistics::{NORMAL, mean, median, robust_deviation, student_quantile, variance_of_median};

/// Chance that a report is wrong about anything, where nothing changed: as much for the bands, for
/// the rows, and for hosts where they are named; on one side.
pub const FAMILY_ERROR: f64 = 0.02;
/// Sizes of which a row's verdict takes the median.
const NEIGHBOURS: usize = 5;
/// Rows, or runs of each, below which noise that is not normal could pass for a change of a band.
const ENOUGH: usize = 3;
/// Runs of both sides from which on a row stands for itself: one time in twenty is far out, and of many rows of three runs some
/// have two of these.
const ALONE: usize = 5;
/// Runs of both sides from which on a row stands for itself where all of B's lie beyond all of A's: four of one row are not far
/// out at once.
pub const AGREEING: usize = 4;
/// Change of each of several large sizes from which on they agree: two at once that are off by half are no disturbance. Our
/// estimate.
const AGREED: f64 = 1.5;
/// The band of sizes above 16 MiB.
const LARGE: u8 = 2;
/// Repeats that the known noise counts for beside the user's own: with six runs of the same
/// thing, the user's own machine has the larger say.
const PRIOR: f64 = 4.0;
/// Of how many values the deviation is as well known that the median of deviations is made of, as a part of theirs: P. J.
/// Rousseeuw and C. Croux, "Alternatives to the median absolute deviation", JASA 88 (1993).
const EFFICIENCY: f64 = 0.37;

/// What is said of a row or a band, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// B takes longer, by the tolerance or more.
    Slower,
    /// B takes less time, by the tolerance or more.
    Faster,
    /// Noise may hide a change beyond the tolerance.
    CannotTell,
    /// No change beyond the tolerance.
    Same,
}

impl Change {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::CannotTell => "cannot tell",
            Self::Same => "no change",
        }
    }
}

/// What is between the times of two sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Between {
    /// The noise of measurements.
    Measured,
    /// None: both are forecasts.
    Forecasts,
    /// Nothing at all: they are the same rows of the same files.
    Same,
}

/// Ratio of times, B over A, with its interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The best guess.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Ratio {
    fn new(log: f64, half_width: f64) -> Self {
        Self { value: log.exp(), low: (log - half_width).exp(), high: (log + half_width).exp() }
    }

    fn change(self, tolerance: f64) -> Change {
        // To the three digits that are printed: a change of just the tolerance must not hang on further ones.
        let printed = |ratio: f64| (ratio * 1e3).round();
        let reaches = |slowdown: f64| printed(slowdown) >= printed(1.0 + tolerance);
        match self {
            r if r.low == 1.0 && r.high == 1.0 => Change::Same,
            r if r.low > 1.0 && reaches(r.value) => Change::Slower,
            r if r.high < 1.0 && reaches(1.0 / r.value) => Change::Faster,
            r if !reaches(r.high) && !reaches(1.0 / r.low) => Change::Same,
            _ => Change::CannotTell,
        }
    }
}

/// A row that both sets have.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SizePair {
    /// Size as nccl-tests counts it.
    pub size_bytes: u64,
    /// Times that A and B have, one or more each.
    pub repeats: [usize; 2],
    /// Median times of A and of B.
    pub time_us: [f64; 2],
    /// Median of B over median of A.
    pub ratio: f64,
    /// The same over the neighbouring sizes.
    pub near: Ratio,
    /// What is said of it.
    pub change: Change,
    /// Whether it lies apart from its neighbours, and more than noise speaks for it: repeats that agree, or a size above 16 MiB.
    pub apart: bool,
}

/// The rows of one series in one size band.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Band {
    /// What the rows are of.
    pub series: Series,
    /// Index in [`BANDS`].
    pub band: u8,
    /// By size.
    pub rows: Vec<SizePair>,
    /// Median over its rows.
    pub ratio: Ratio,
    /// What is said of it.
    pub change: Change,
    /// Whether one disturbed measurement could be all of its change.
    pub disturbed: bool,
    /// First and last size in bytes of the rows that are slower (or faster) than the band as a whole would say.
    pub at: Option<(u64, u64)>,
}

impl Band {
    /// Its range of sizes, in words.
    pub fn sizes(&self) -> &'static str {
        BANDS[usize::from(self.band)]
    }

    /// The ratio that the verdict reads off: where only some rows changed, that of the worst.
    pub fn decisive(&self) -> Ratio {
        let changed = self.rows.iter().filter(|row| self.at.is_some() && row.change == self.change);
        let worst = changed.max_by(|a, b| a.near.value.ln().abs().total_cmp(&b.near.value.ln().abs()));
        worst.map_or(self.ratio, |row| row.near)
    }

    /// The sizes of the rows that changed where only some did: `256 MiB`, or `1 MiB to 4 MiB`.
    pub fn at_sizes(&self) -> Option<String> {
        self.at.map(|(from, to)| match from == to {
            true => Bytes(from).to_string(),
            false => format!("{} to {}", Bytes(from), Bytes(to)),
        })
    }

    /// `1.050 (1.020 to 1.080)`, and where only some rows changed, at which sizes.
    pub fn finding(&self) -> String {
        let r = self.decisive();
        let at = self.at_sizes().map_or_else(String::new, |sizes| format!("at {sizes} "));
        format!("{at}{:.3} ({:.3} to {:.3})", r.value, r.low, r.high)
    }

    /// The rows that leave it open: each lies apart from its neighbours.
    pub fn apart(&self) -> impl Iterator<Item = &SizePair> {
        self.rows.iter().filter(|row| row.apart && self.change == Change::CannotTell)
    }
}

/// The rows of one series in one size band that one set of hosts ran on both sides.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HostBand {
    /// Their names, with commas between them.
    pub hosts: String,
    /// What the rows are of.
    pub series: Series,
    /// Index in [`BANDS`].
    pub band: u8,
    /// Median over its rows.
    pub ratio: Ratio,
    /// What is said of it.
    pub change: Change,
}

impl HostBand {
    /// Its range of sizes, in words.
    pub fn sizes(&self) -> &'static str {
        BANDS[usize::from(self.band)]
    }
}

/// The size bands of a curve.
fn bands(curve: &Curve) -> impl Iterator<Item = (&Curve, &[Pair])> {
    curve.pairs.chunk_by(|a, b| band(a.size) == band(b.size)).map(move |pairs| (curve, pairs))
}

/// Judges each size band of each curve, and of each set of hosts where both sides name several.
///
/// - `tolerance`: the fraction of time that may be lost.
/// - `between`: whether the times have noise.
pub(super) fn judge(matched: &Matched, tolerance: f64, between: Between) -> (Vec<Band>, Vec<HostBand>) {
    let by_hosts: Vec<BTreeMap<usize, Curve>> = match between {
        Between::Measured => matched.curves.iter().map(Curve::by_hosts).filter(|hosts| hosts.len() > 1).collect(),
        Between::Forecasts | Between::Same => Vec::new(),
    };
    // Bands, rows, and bands of hosts: each may be wrong as often.
    let kinds = if by_hosts.is_empty() { 2.0 } else { 3.0 };
    let all = judge_all(&matched.curves, tolerance, between, FAMILY_ERROR / kinds);
    let tests: usize = by_hosts.iter().flat_map(BTreeMap::values).map(|curve| bands(curve).count()).sum();
    let chance = FAMILY_ERROR / kinds / tests.max(1) as f64;
    let of_curve = |curves: &BTreeMap<usize, Curve>| judge_hosts(curves, &matched.hosts, tolerance, chance);
    (all, by_hosts.iter().flat_map(of_curve).collect())
}

/// Hosts from which on they say of each other how far two runs of one of them lie apart.
const HOSTS: usize = 3;

/// Judges the bands of each set of hosts. How far its own runs lie apart is known by repeats, of all hosts together, or by
/// what the changes of hosts show, where that is more than the known noise.
fn judge_hosts(curves: &BTreeMap<usize, Curve>, names: &[String], tolerance: f64, chance: f64) -> Vec<HostBand> {
    let Some(Curve { series, launches, .. }) = curves.values().next() else { return Vec::new() };
    let mut of_bands: BTreeMap<u8, Vec<(usize, &[Pair])>> = BTreeMap::new();
    for (&hosts, curve) in curves {
        for (_, pairs) in bands(curve) {
            of_bands.entry(band(pairs[0].size)).or_default().push((hosts, pairs));
        }
    }
    let mut judged = Vec::new();
    for (band, of_hosts) in of_bands {
        let groups: Vec<&[Pair]> = of_hosts.iter().map(|of| of.1).collect();
        let noise = known(launches, band);
        let spread = Spread::of_sides(&groups, noise);
        let repeated = groups.iter().any(|pairs| pairs.iter().any(|pair| pair.runs.iter().any(|&runs| runs > 1)));
        let logs = groups.iter().map(|pairs| median(pairs.iter().map(log_ratio).collect())).collect::<Vec<f64>>();
        let apart = if repeated || logs.len() < HOSTS { None } else { noise_of_hosts(&logs, noise) };
        for (hosts, pairs) in of_hosts {
            let mut test = Test::new(pairs, spread, tolerance, false);
            test.hosts = apart;
            let (ratio, change) = test.whole(band, chance);
            judged.push(HostBand { hosts: names[hosts].clone(), series: series.clone(), band, ratio, change });
        }
    }
    judged
}

/// Times their noise that hosts which nothing happened to lie above the middle at most: of a normal variable one in 30,000 lies
/// further.
const REACH: f64 = 4.0;

/// Times the known noise that hosts reach where they have more of it than known.
const FAR: f64 = 10.0;

/// The noise that changes of hosts show. Noise makes as many hosts faster as slower: those below the median tell how far it
/// reaches, or those below no change where the median is above. Hosts further above have become slower. They are no noise,
/// however many they are. Where half of the hosts are as near as noise brings them, those far below became faster, which is no
/// noise either.
fn noise_of_hosts(logs: &[f64], known: Noise) -> Option<Variance> {
    let centre = median(logs.to_vec()).min(0.0);
    let far = FAR * known.offset;
    let near = logs.iter().filter(|&log| (log - centre).abs() <= far).count();
    let most = if 2 * near >= logs.len() { far } else { f64::INFINITY };
    let below: Vec<f64> = logs.iter().map(|log| centre - log).filter(|&below| below > 0.0 && below <= most).collect();
    let reach = REACH * NORMAL * median(below);
    let unchanged: Vec<f64> = logs.iter().map(|log| log - centre).filter(|&above| above <= reach).collect();
    let freedom = EFFICIENCY * (unchanged.len() as f64 - 1.0);
    let value = (NORMAL * median(unchanged.into_iter().map(f64::abs).collect())).powi(2);
    (reach > 0.0 && freedom > 0.0).then_some(Variance { value, freedom })
}

/// Judges each size band of each curve, with that chance to be wrong about any band, and about any row.
fn judge_all(curves: &[Curve], tolerance: f64, between: Between, error: f64) -> Vec<Band> {
    let exact = between != Between::Measured;
    let split: Vec<(&Curve, &[Pair])> = curves.iter().flat_map(bands).collect();
    let rows: usize = split.iter().map(|(_, pairs)| pairs.len()).sum();
    let chance = |tests: usize| error / tests.max(1) as f64;
    let (of_band, of_row) = (chance(split.len()), chance(rows));
    split
        .into_iter()
        .map(|(curve, pairs)| {
            let band = band(pairs[0].size);
            let noise = if exact { Noise { offset: 0.0, row: 0.0 } } else { known(&curve.launches, band) };
            let spread = match between {
                Between::Same => [Spread::of(None, None, noise); 2],
                _ => Spread::of_sides(&[pairs], noise),
            };
            let test = Test::new(pairs, spread, tolerance, exact);
            test.band(&curve.series, band, of_band, of_row)
        })
        .collect()
}

/// A variance, and the degrees of freedom that it is known by.
#[derive(Clone, Copy, Debug)]
struct Variance {
    value: f64,
    freedom: f64,
}

impl Variance {
    /// What repeats show, with the known variance, which never makes it smaller: a machine may have more noise than ours.
    fn joined(own: Option<Self>, known: f64) -> Self {
        let Some(own) = own else { return Self { value: known, freedom: f64::INFINITY } };
        let freedom = PRIOR + own.freedom;
        let value = (PRIOR * known + own.freedom * own.value) / freedom;
        Self { value: value.max(own.value), freedom }
    }

    fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, ..self }
    }
}

/// Variances of the logarithm of a single measurement of one side.
#[derive(Clone, Copy, Debug)]
struct Spread {
    offset: Variance,
    row: Variance,
}

impl Spread {
    fn of(offset: Option<Variance>, row: Option<Variance>, noise: Noise) -> Self {
        // The known noise is that of a difference of two.
        let known = |deviation: f64| deviation * deviation / 2.0;
        Self { offset: Variance::joined(offset, known(noise.offset)), row: Variance::joined(row, known(noise.row)) }
    }

    /// Those of A and of B; a side without repeats has what the other shows.
    fn of_sides(groups: &[&[Pair]], noise: Noise) -> [Self; 2] {
        let [(offset_a, row_a), (offset_b, row_b)] = [0, 1].map(|side| repeats(groups, side));
        [
            Self::of(offset_a.or(offset_b), row_a.or(row_b), noise),
            Self::of(offset_b.or(offset_a), row_b.or(row_a), noise),
        ]
    }
}

/// How far repeats of one side lie apart: their runs as wholes, and single rows of these. None of what was not repeated. Each
/// group has runs of its own, which are repeats of each other.
fn repeats(groups: &[&[Pair]], side: usize) -> (Option<Variance>, Option<Variance>) {
    let (mut count, mut freedom, mut of_runs) = (0.0, 0.0, 0.0);
    let (mut squares, mut residuals) = (0.0, Vec::new());
    for pairs in groups {
        // Of each run, how far its rows lie from the mean of all runs.
        let mut runs: BTreeMap<&Run, Vec<f64>> = BTreeMap::new();
        for samples in pairs.iter().map(|pair| &pair.samples[side]).filter(|samples| samples.len() > 1) {
            let mean = samples.iter().map(|s| s.log).sum::<f64>() / samples.len() as f64;
            count += samples.len() as f64;
            freedom += samples.len() as f64 - 1.0;
            for sample in samples {
                runs.entry(&sample.run).or_default().push(sample.log - mean);
            }
        }
        of_runs += runs.len().saturating_sub(1) as f64;
        for rows in runs.into_values() {
            let offset = median(rows.clone());
            squares += offset * offset;
            residuals.extend(rows.into_iter().map(|log| log - offset));
        }
    }
    let freedom = freedom - of_runs;
    let offset = (of_runs > 0.0).then(|| Variance { value: squares / of_runs, freedom: of_runs });
    let row = (freedom > 0.0).then(|| {
        // What the means and offsets took with them.
        let value = robust_deviation(residuals).powi(2) * count / freedom;
        Variance { value, freedom: EFFICIENCY * freedom }
    });
    (offset, row)
}

/// One size band of one curve.
struct Test<'a> {
    pairs: &'a [Pair],
    spread: [Spread; 2],
    /// Variance that ratios of rows have beyond what these explain: it makes the median less certain.
    unexplained: f64,
    /// How far changes of hosts lie apart, where nothing else says how far their runs do.
    hosts: Option<Variance>,
    tolerance: f64,
    exact: bool,
}

impl<'a> Test<'a> {
    fn new(pairs: &'a [Pair], spread: [Spread; 2], tolerance: f64, exact: bool) -> Self {
        let mut test = Self { pairs, spread, unexplained: 0.0, hosts: None, tolerance, exact };
        if pairs.len() >= NEIGHBOURS && !exact {
            let scatter = robust_deviation(pairs.iter().map(log_ratio).collect());
            let explained: f64 = [0, 1].map(|side| test.row_variance(pairs, side).value).iter().sum();
            test.unexplained = (scatter * scatter - explained).max(0.0);
        }
        test
    }

    fn band(&self, series: &Series, band: u8, of_band: f64, of_row: f64) -> Band {
        let count = self.pairs.len();
        let (ratio, mut change) = self.whole(band, of_band);
        let rows: Vec<SizePair> = (0..count).map(|index| self.row(index, ratio, change, of_row)).collect();
        let mut at = None;
        for local in [Change::Slower, Change::Faster] {
            let sizes: Vec<u64> = rows.iter().filter(|r| r.change == local).map(|r| r.size_bytes).collect();
            if let (true, Some(first), Some(last)) = (change > local, sizes.first(), sizes.last()) {
                change = local;
                at = Some((*first, *last));
            }
        }
        if change == Change::Same && rows.iter().any(|row| row.apart) {
            change = Change::CannotTell;
        }
        let few = change == Change::CannotTell && self.is_few(band);
        let disturbed = few && self.ratio(self.pairs, of_band).change(self.tolerance) != Change::CannotTell;
        Band { series: series.clone(), band, rows, ratio, change, disturbed, at }
    }

    /// What all rows say together. One or two sizes that ran once or twice may have been disturbed: then the interval reaches
    /// as much further towards no change as a disturbance is.
    fn whole(&self, band: u8, chance: f64) -> (Ratio, Change) {
        let ratio = self.ratio(self.pairs, chance);
        let ratio = match ratio.change(self.tolerance) {
            Change::Slower if self.is_few(band) => Ratio { low: ratio.low / TAIL, ..ratio },
            Change::Faster if self.is_few(band) => Ratio { high: ratio.high * TAIL, ..ratio },
            _ => ratio,
        };
        (ratio, ratio.change(self.tolerance))
    }

    /// Whether one disturbed measurement could be all of a change.
    fn is_few(&self, band: u8) -> bool {
        let repeated = |pair: &Pair| has_runs(pair, ENOUGH);
        let enough = self.exact || self.pairs.len() >= ENOUGH || self.pairs.iter().all(repeated) || self.agree(band);
        !enough
    }

    /// Whether several large sizes changed alike, and by more than any of them is off by itself: a disturbance lasts for one.
    fn agree(&self, band: u8) -> bool {
        let logs: Vec<f64> = self.pairs.iter().map(log_ratio).collect();
        let beyond = |sign: f64| logs.iter().all(|log| sign * log > AGREED.ln());
        band == LARGE && logs.len() > 1 && (beyond(1.0) || beyond(-1.0))
    }

    fn row(&self, index: usize, band: Ratio, change: Change, chance: f64) -> SizePair {
        let count = self.pairs.len();
        let pair = &self.pairs[index];
        let ratio = log_ratio(pair).exp();
        let large = crate::bands::band(pair.size) == LARGE;
        let far = large && ratio.max(1.0 / ratio) >= TAIL;
        let agreeing = self.is_agreeing(pair);
        let alone = self.exact || has_runs(pair, ALONE) || far || agreeing && has_runs(pair, AGREEING);
        let (near, change) = if !alone && count < NEIGHBOURS {
            (band, change)
        } else {
            let window = if alone { 1 } else { NEIGHBOURS };
            let first = index.saturating_sub(window / 2).min(count - window);
            let near = self.ratio(&self.pairs[first..first + window], chance);
            (near, near.change(self.tolerance))
        };
        // One row far out of line among good neighbours: a single measurement cannot say.
        let apart = ratio.max(1.0 / ratio) > 1.0 + self.tolerance && !(near.low..=near.high).contains(&ratio);
        let change = if change == Change::Same && apart { Change::CannotTell } else { change };
        let apart = apart && change == Change::CannotTell && (large || agreeing);
        SizePair {
            size_bytes: pair.size,
            repeats: pair.samples.each_ref().map(Vec::len),
            time_us: pair.samples.each_ref().map(|samples| median_log(samples).exp()),
            ratio,
            near,
            change,
            apart,
        }
    }

    /// Whether a row ran more than once on both sides, and all of its times in B lie beyond all of those in A, by the tolerance.
    fn is_agreeing(&self, pair: &Pair) -> bool {
        let [a, b] = pair.samples.each_ref().map(|samples| {
            let logs = || samples.iter().map(|sample| sample.log);
            [logs().fold(f64::INFINITY, f64::min), logs().fold(f64::NEG_INFINITY, f64::max)]
        });
        has_runs(pair, 2) && (b[0] - a[1]).max(a[0] - b[1]) > self.tolerance.ln_1p()
    }

    /// The median over some rows, with the interval that it is beyond with that chance on each side.
    fn ratio(&self, pairs: &[Pair], chance: f64) -> Ratio {
        let of_rows = variance_of_median(pairs.len());
        let of_side = |side: usize| {
            let runs = mean(pairs.iter().map(|pair| variance_of_median(pair.runs[side])));
            [self.spread[side].offset.times(runs), self.row_variance(pairs, side).times(of_rows)]
        };
        // Few rows may agree by chance: what the whole band has counts for them as well.
        let unexplained = if pairs.len() > 1 { self.unexplained } else { 0.0 };
        let unexplained = Variance { value: unexplained * of_rows, freedom: f64::INFINITY };
        let parts = [of_side(0), of_side(1)].concat().into_iter().chain([unexplained]);
        let (sum, squares) = parts.fold((0.0, 0.0), |(sum, squares), part| {
            (sum + part.value, squares + part.value * part.value / part.freedom)
        });
        // What hosts show of their runs counts where it is more, as well as it is known beside what is known before.
        let (sum, squares) = match self.hosts.map(|own| Variance::joined(Some(own), sum)) {
            Some(joined) => (joined.value, joined.value * joined.value / joined.freedom),
            None => (sum, squares),
        };
        let width = if sum > 0.0 { student_quantile(chance, sum * sum / squares) * sum.sqrt() } else { 0.0 };
        Ratio::new(median(pairs.iter().map(log_ratio).collect()), width)
    }

    /// What rows by themselves add to the logarithm of a ratio, from one side: the median of its repeats counts.
    fn row_variance(&self, pairs: &[Pair], side: usize) -> Variance {
        self.spread[side].row.times(mean(pairs.iter().map(|pair| variance_of_median(pair.samples[side].len()))))
    }
}

/// ln of the median of B over the median of A.
fn log_ratio(pair: &Pair) -> f64 {
    median_log(&pair.samples[1]) - median_log(&pair.samples[0])
}

/// ln of the median time in us.
fn median_log(samples: &[Sample]) -> f64 {
    median(samples.iter().map(|s| s.log).collect())
}

fn has_runs(pair: &Pair, least: usize) -> bool {
    pair.runs.iter().all(|&runs| runs >= least)
}
