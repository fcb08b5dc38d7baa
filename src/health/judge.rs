//! Judges bands of sizes.

use std::ops::Range;

use collcast_hwbackend::read::End;
use collcast_sim::collective::{Collective, Launch};
use collcast_sim::measurement::Measurement;
use serde::Serialize;

use super::kind::Kind;
use super::part::{Part, State};
use super::run::{Point, Run, how};
use crate::bands::band;
use crate::noise;
use crate::statistics::{median, robust_deviation, upper_quantile};

/// A size as it is told.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    /// Size.
    pub size_bytes: u64,
    /// Time that was measured, in us: the geometric mean of out of place and in place.
    pub time_us: f64,
    /// Bus bandwidth of that time, in GB/s.
    pub busbw_gbps: f64,
    /// What is expected.
    pub expected_gbps: f64,
    /// The least that a healthy machine is likely to reach.
    pub low_gbps: f64,
    /// Measured over expected.
    pub share: f64,
    /// Where it belongs.
    pub part: Part,
    /// What its band says of it.
    pub state: State,
}

impl Line {
    /// Whether it is below what nearly all healthy machines reach.
    pub fn is_low(&self) -> bool {
        self.busbw_gbps < self.low_gbps
    }
}

/// A band of sizes, judged together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Band {
    /// Which.
    pub part: Part,
    /// Its smallest size.
    pub from_bytes: u64,
    /// Its largest size.
    pub to_bytes: u64,
    /// Sizes in it.
    pub sizes: usize,
    /// Bus bandwidth measured over expected: the median.
    pub share: f64,
    /// The least share that a healthy machine is likely to reach.
    pub low: f64,
    /// The share below which a size of it is slow.
    #[serde(skip)]
    pub limit: f64,
    /// Half of the rows lie further from the median of their size than 0.67 of this, as a fraction.
    pub scatter: f64,
    /// Whether that is more than runs have.
    pub unsteady: bool,
    /// What is said of it.
    pub state: State,
}

impl Band {
    /// The share below which it is slow, and so fails: that of the limit, but never what a healthy machine may reach.
    pub fn fails_below(&self) -> f64 {
        self.limit.min(self.low)
    }

    /// Whether its repeats lie too far apart, and its share alone makes it no slow one.
    pub fn is_unsteady_alone(&self) -> bool {
        self.unsteady && self.share >= self.fails_below()
    }
}

/// A run, judged.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judged {
    /// The file, as the user named it.
    pub file: String,
    /// The run's name.
    pub run: String,
    /// What was run.
    pub collective: Collective,
    /// Ranks.
    pub ranks: u32,
    /// Hosts, where that is known.
    pub hosts: Option<u32>,
    /// How kernels were started.
    #[serde(skip)]
    pub launch: Launch,
    /// What its rows say of how they ran, by name.
    #[serde(skip)]
    pub how: Vec<(&'static str, String)>,
    /// The hosts that its log names.
    #[serde(skip)]
    pub host_names: Vec<String>,
    /// How it ended.
    #[serde(skip)]
    pub end: End,
    /// What joins its ranks, where a forecast is expected.
    pub kind: Option<Kind>,
    /// Its sizes.
    pub lines: Vec<Line>,
    /// Its bands, in the order of sizes.
    pub bands: Vec<Band>,
    /// The size from which on it is slow, where a band is; smaller ones that lack at least half as much count too.
    pub slow_from_bytes: Option<u64>,
    /// What is said of it: a slow band counts, then large sizes, then all others. One that did not end well is no pass.
    pub state: State,
}

impl Judged {
    /// A run of which nothing says what to expect, by its first row.
    pub(crate) fn untold(row: &Measurement) -> Self {
        Self {
            file: row.origin.file.clone(),
            run: row.run.clone(),
            collective: row.collective,
            ranks: row.ranks,
            hosts: row.hosts,
            launch: row.launch.unwrap_or(Launch::Processes),
            how: how(row),
            host_names: row.settings.host_names.to_vec(),
            end: End::Whole,
            kind: None,
            lines: Vec::new(),
            bands: Vec::new(),
            slow_from_bytes: None,
            state: State::Unsure,
        }
    }

    /// The size below the large ones that lacks most, where that is more than any healthy machine was seen to: its band may pass.
    pub fn lone(&self) -> Option<&Line> {
        let far = |line: &&Line| line.part != Part::Large && line.is_low() && line.share * noise::TAIL < 1.0;
        self.lines.iter().filter(far).min_by(|a, b| a.share.total_cmp(&b.share))
    }

    /// The band that its state rests on: of slow ones that of large sizes, or the slowest.
    pub fn decisive(&self) -> Option<&Band> {
        let slow = self.bands.iter().filter(|b| b.state == State::Slow);
        let slow =
            slow.max_by(|a, b| (a.part == Part::Large).cmp(&(b.part == Part::Large)).then(b.share.total_cmp(&a.share)));
        slow.or_else(|| self.bands.iter().rfind(|b| b.part == Part::Large)).or_else(|| self.bands.last())
    }
}

/// What is said of all runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Health {
    /// Slow where a run is; unsure where one is; otherwise a pass.
    pub state: State,
    /// The runs, in the order of the files; those that are held against their own past first.
    pub runs: Vec<Judged>,
}

impl Health {
    /// The run and the band that the state rests on: of those with that state, the slowest.
    pub fn decisive(&self) -> Option<(&Judged, &Band)> {
        let of_state = self.runs.iter().filter(|run| run.state == self.state);
        of_state.filter_map(|run| Some((run, run.decisive()?))).min_by(|a, b| a.1.share.total_cmp(&b.1.share))
    }

    /// Whether all that is slow is small calls of one host, which it starts one by one, while large ones are as expected.
    pub fn is_slow_at_small_calls_alone(&self) -> bool {
        let small = |run: &Judged| {
            let mut large = run.bands.iter().filter(|band| band.part == Part::Large).peekable();
            run.hosts == Some(1)
                && run.launch != Launch::Graph
                && large.peek().is_some()
                && large.all(|band| band.state == State::Pass)
        };
        let mut slow = self.runs.iter().filter(|run| run.state == State::Slow).peekable();
        slow.peek().is_some() && slow.all(small)
    }

    /// Scatter of rows below which a band is steady.
    pub fn steady(part: Part) -> f64 {
        UNSTEADY[part as usize]
    }
}

/// The share of the expected bus bandwidth below which a band is slow, where its interval leaves no doubt.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Limits {
    /// That of all bands, where the user set one: nothing above is slow then.
    asked: Option<f64>,
}

impl Limits {
    /// One share for all bands.
    pub fn of(share: f64) -> Self {
        Self { asked: Some(share) }
    }

    /// That of a part whose healthy bands are off by `spread`, a standard deviation of the logarithm.
    ///
    /// At large sizes a band is slow from where it is as likely to lack what is worth acting on as to be healthy, where
    /// one machine of fifty lacks it: 92% where nothing is in doubt, and 89% from a doubt of 4% on, from where the interval decides.
    /// Below them times depend on host and driver, and a quarter more time is the least that is worth a look.
    pub fn of_part(self, part: Part, spread: f64) -> f64 {
        let (lost, spread) = (-WOULD_SHOW[part as usize].ln(), spread.min(LOOSE));
        let as_likely = lost / 2.0 + spread * spread * (1.0 / FALSE_ALARM - 1.0).ln() / lost;
        self.asked.unwrap_or(if part == Part::Large { (-as_likely).exp() } else { 0.80 })
    }
}

/// What lets a machine through.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Gate {
    /// Share of the expected bus bandwidth below which a band of sizes is slow; that of [`Limits`] where none is given.
    pub fail_below: Option<f64>,
    /// Whether a machine of which nothing can be told is held back too.
    pub require_pass: bool,
}

impl Gate {
    /// The shares that it sets.
    pub fn limits(self) -> Limits {
        self.fail_below.map_or_else(Limits::default, Limits::of)
    }

    /// Whether a machine in such a state is held back.
    pub fn holds_back(self, state: State) -> bool {
        state == State::Slow || self.require_pass && state == State::Unsure
    }
}

/// Share of the highest expected bus bandwidth from which on a size counts as large.
pub const PLATEAU: f64 = 0.9;
/// Share of a size's expected time that must grow with size for it to count as large.
const GROWS: f64 = 0.75;
/// How many times smaller than the largest size of a run a large one may be: where bandwidth is all that counts. Below,
/// forecasts of the plateau's onset are off by 30% where NCCL's protocol is another than forecast.
const NEAR: u64 = 16;
/// Times the expected time of the smallest size up to which a size counts as small.
const SMALL: f64 = 2.0;
/// Sizes from which on parts of a band are judged too, and how many make its end.
const HALVED: usize = 5;
const END: usize = 2;
/// A band passes where a deficit as large as this would have shown: 15% of the bandwidth at large sizes, half as much
/// time again in the middle, a doubled latency at small ones.
const WOULD_SHOW: [f64; 3] = [0.5, 0.67, 0.85];
/// Standard deviation from which on large sizes are slow where no healthy machine is likely to be, and nowhere else.
const LOOSE: f64 = 0.04;
/// Chance that a healthy band is called slow, of all bands of large sizes that are judged together; and that a machine is a
/// slow one, before it is measured.
const FALSE_ALARM: f64 = 0.02;
/// Standard deviations beyond which others are called slow, at least: forecasts there are off by more than a normal
/// distribution has it, since NCCL may choose another protocol than forecast.
pub(super) const HEAVY_TAIL: f64 = 3.0;
/// Standard deviations within which 95% of healthy machines are, on the slow side.
const ONE_SIDED: f64 = 1.645;
/// Scatter of rows from which on a band is unsteady: ten times that of `crate::noise` at large sizes, five times
/// below.
const UNSTEADY: [f64; 3] = [0.25, 0.25, 0.05];
/// Fewest sizes whose scatter counts: one that was disturbed does not move the median of three.
const SCATTERED: usize = 3;

/// Judges runs.
pub fn judge(runs: &[Run], limits: Limits) -> Health {
    let alarm = upper_quantile(FALSE_ALARM / runs.len().max(1) as f64);
    let runs: Vec<Judged> = runs.iter().filter_map(|run| judge_run(run, limits, alarm)).collect();
    let state = runs.iter().map(|run| run.state).max().unwrap_or(State::Unsure);
    Health { state, runs }
}

/// Logarithm of measured over expected time of a size: the mean of its repeats.
fn excess(point: &Point) -> f64 {
    let logs = point.measured_us.iter().map(|us| (us / point.expected_us).ln());
    logs.sum::<f64>() / point.measured_us.len() as f64
}

/// Times as fast as a forecast as no healthy machine of the kind is at large sizes: published ones reach 1.3 times at most.
pub const TOO_FAST: f64 = 1.5;
/// Share of the expected bandwidth below which no run is healthy, whatever large sizes reach.
const FAR_OFF: f64 = 2.0 / 3.0;
/// Size from which a call is bound by bandwidth, where no smaller one tells: ring steps over 1,000 ranks carry 1 MiB.
const LARGE_ALONE: u64 = 1 << 30;

/// Share of each size's expected time that does not grow with it, from the size below; all of it at the smallest, unless that
/// is large by itself.
fn latency_shares(points: &[Point]) -> Vec<f64> {
    let share = |pair: &[Point]| {
        let slope = (pair[1].expected_us - pair[0].expected_us) / (pair[1].size_bytes - pair[0].size_bytes) as f64;
        (1.0 - slope * pair[1].size_bytes as f64 / pair[1].expected_us).clamp(0.0, 1.0)
    };
    let first = points.first().map(|p| if p.size_bytes >= LARGE_ALONE { 0.0 } else { 1.0 });
    first.into_iter().chain(points.windows(2).map(share)).collect()
}

/// The part of each size.
fn parts(points: &[Point], latency: &[f64]) -> Vec<Part> {
    let rate = |p: &Point| p.size_bytes as f64 / p.expected_us;
    let peak = points.iter().map(rate).fold(0.0, f64::max);
    let least = points.first().map_or(0.0, |p| p.expected_us);
    let last = points.last().map_or(0, |p| p.size_bytes);
    let part = |(p, latency): (&Point, &f64)| match () {
        () if *latency <= 1.0 - GROWS && rate(p) >= PLATEAU * peak && p.size_bytes >= last / NEAR => Part::Large,
        () if p.expected_us <= SMALL * least => Part::Small,
        () => Part::Middle,
    };
    points.iter().zip(latency).map(part).collect()
}

fn judge_run(run: &Run, limits: Limits, alarm: f64) -> Option<Judged> {
    let latency = latency_shares(&run.points);
    let parts = parts(&run.points, &latency);
    let of = |part| -> Vec<(&Point, f64)> {
        let all = run.points.iter().zip(&latency).zip(&parts);
        all.filter(|(_, p)| **p == part).map(|((point, &latency), _)| (point, latency)).collect()
    };
    let bands: Vec<Band> =
        Part::ALL.into_iter().filter_map(|part| judge_band(part, &of(part), run, limits, alarm)).collect();
    let state_of = |part| bands.iter().find(|b| b.part == part).map(|b| b.state);
    let large = state_of(Part::Large);
    // Where neither the smallest nor the largest sizes are slow, others are as likely NCCL's, which chose otherwise than
    // forecast. That leaves large sizes as they should be: where these lack too, it is no excuse for the middle.
    let smallest = run.points.first()?.size_bytes;
    let lacks = |b: &Band| b.part == Part::Large && b.state == State::Unsure && b.share < b.limit;
    let lacking = bands.iter().any(lacks);
    let forecast_alone = |band: &Band| {
        run.kind.is_some()
            && band.from_bytes > smallest
            && large != Some(State::Slow)
            && !(lacking && band.part == Part::Middle)
    };
    let state = match () {
        () if bands.iter().any(|b| b.state == State::Slow && !forecast_alone(b)) => State::Slow,
        () if bands.iter().any(|b| b.state == State::Slow) => State::Unsure,
        () => large.or_else(|| bands.iter().map(|b| b.state).max())?,
    };
    // Large sizes do not answer for others that take half as long again.
    let far_off = |band: &Band| band.state == State::Unsure && band.part == Part::Middle && band.share < FAR_OFF;
    let state = if bands.iter().any(far_off) { state.max(State::Unsure) } else { state };
    // What is faster than any such machine is of another one.
    let too_fast = |band: &Band| run.kind.is_some() && band.part == Part::Large && band.share > TOO_FAST;
    let state = if bands.iter().any(too_fast) { state.max(State::Unsure) } else { state };
    // One size that far off may be a disturbance, or not.
    let far = |(point, part): (&Point, &Part)| *part == Part::Large && excess(point).exp() > noise::TAIL;
    let state = if run.points.iter().zip(&parts).any(far) { state.max(State::Unsure) } else { state };
    let factor = run.collective.bus_factor(run.ranks) / 1e3;
    let line = |(point, &part): (&Point, &Part)| {
        let band = bands.iter().find(|b| b.part == part)?;
        let expected = point.size_bytes as f64 * factor / point.expected_us;
        let share = (-excess(point)).exp();
        // A size of its own may be as it should be in a slow band, and not in one that passes; what healthy machines may
        // reach is not slow.
        let state = match band.state {
            State::Slow if !band.unsteady && share >= band.limit => State::Pass,
            State::Slow if share >= band.low => State::Unsure,
            State::Pass if share < band.fails_below() => State::Unsure,
            state => state,
        };
        let (busbw_gbps, low_gbps) = (expected * share, expected * band.low);
        let time_us = point.expected_us / share;
        Some(Line {
            size_bytes: point.size_bytes,
            time_us,
            busbw_gbps,
            expected_gbps: expected,
            low_gbps,
            share,
            part,
            state,
        })
    };
    let mut lines: Vec<Line> = run.points.iter().zip(&parts).filter_map(line).collect();
    let slow_from_bytes = slow_from(&mut lines, &bands);
    let Run { file, name, collective, ranks, hosts, launch, how, used, end, kind, .. } = run.clone();
    // Sizes may be missing, or results wrong.
    let state = if end == End::Whole { state } else { state.max(State::Unsure) };
    // One process runs on one host.
    let hosts = hosts.or((launch != Launch::Processes && launch != Launch::Graph).then_some(1));
    let host_names = used.hosts.into_iter().collect();
    Some(Judged {
        file,
        run: name,
        collective,
        ranks,
        hosts,
        launch,
        how,
        host_names,
        end,
        kind,
        lines,
        bands,
        slow_from_bytes,
        state,
    })
}

/// The size from which on a run is slow: the first slow one that none follows which passes, up to the last slow one; and down
/// from there as long as neighbours lack at least half as much, but for one, and nearly all healthy machines reach more than they.
/// Of these, those are slow that lie below the limit of their band, whatever that says as a whole.
fn slow_from(lines: &mut [Line], bands: &[Band]) -> Option<u64> {
    let last = lines.iter().rposition(|line| line.state == State::Slow)?;
    let passes = |line: &Line| line.state == State::Pass && !line.is_low();
    let passed = lines[..last].iter().rposition(passes).map_or(0, |at| at + 1);
    let slow: Vec<usize> = (passed..=last).filter(|&at| lines[at].state == State::Slow).collect();
    let lack = |at: usize| -lines[at].share.ln();
    let half = median(slow.iter().map(|&at| lack(at)).collect()) / 2.0;
    let first = *slow.first()?;
    let (mut from, mut spared) = (first, false);
    for at in (passed..first).rev() {
        match lines[at].is_low() && lack(at) >= half {
            true => from = at,
            false if !spared => spared = true,
            false => break,
        }
    }
    let fails = |line: &Line| bands.iter().any(|b| b.part == line.part && line.share < b.fails_below());
    let slow: Vec<usize> = (from..first).filter(|&at| fails(&lines[at]) && lack(at) >= half).collect();
    slow.into_iter().for_each(|at| lines[at].state = State::Slow);
    Some(lines[from].size_bytes)
}

/// Judges a band as a whole and, of many sizes, its halves and its end: the slow piece that is furthest beyond what its
/// interval leaves, or the whole. What makes a machine slow may begin inside a band. Of small sizes those come first that
/// begin at the smallest one: there it is latency, and not what NCCL chose.
fn judge_band(part: Part, points: &[(&Point, f64)], run: &Run, limits: Limits, alarm: f64) -> Option<Band> {
    let count = points.len();
    let whole = 0..count;
    let pieces = match count {
        0 => return None,
        1..HALVED => vec![whole],
        _ => vec![whole, 0..count / 2, count / 2..count, count - END..count],
    };
    // Noise is that of the sizes in the middle, also of pieces: by themselves they would be told by their noise.
    let noise = noise::known(&[Some(run.launch)], band(points[count / 2].0.size_bytes)).offset;
    let judge = |piece: Range<usize>| {
        judge_piece(part, (&points[piece.clone()], piece.len() == count, noise), run, limits, alarm)
    };
    let judged: Vec<Band> = pieces.into_iter().map(judge).collect();
    let later = |band: &Band| part == Part::Small && band.from_bytes > points[0].0.size_bytes;
    let beyond = |band: &Band| band.share / band.low;
    let slow = judged.iter().filter(|b| b.state == State::Slow);
    let slow = slow.min_by(|a, b| later(a).cmp(&later(b)).then(beyond(a).total_cmp(&beyond(b))));
    slow.or(judged.first()).cloned()
}

fn judge_piece(
    part: Part,
    (points, whole, noise): (&[(&Point, f64)], bool, f64),
    run: &Run,
    limits: Limits,
    alarm: f64,
) -> Band {
    let middle = median(points.iter().map(|(p, _)| excess(p)).collect());
    let scatter = scatter(points, part, run.collective);
    let place = part as usize;
    let size = |point: Option<&(&Point, f64)>| point.map_or(0, |(p, _)| p.size_bytes);
    let doubt = doubt(part, points, run);
    let spread = (doubt * doubt + noise * noise + 1.57 * scatter * scatter / points.len() as f64).sqrt();
    let unsteady = whole && points.len() >= SCATTERED && scatter > UNSTEADY[place];
    let standard = if part == Part::Large { alarm } else { alarm.max(HEAVY_TAIL) };
    // Nothing is left open that both errors allow to be told: where no healthy machine is likely to be, and what is worth
    // acting on is not ruled out.
    let (healthy, passing) = (standard * spread, -WOULD_SHOW[place].ln() - ONE_SIDED * spread);
    let limit = -limits.of_part(part, spread).ln();
    let limit = if whole && limits.asked.is_none() { limit.min(passing.max(healthy)) } else { limit };
    let beyond = healthy.max(limit);
    // The median of two is their mean, which one of them moves: the other has to be slow too.
    let both = points.len() != END || points.iter().all(|(p, _)| excess(p) > beyond / 2.0);
    let slow = middle > beyond && both || unsteady && limits.asked.is_none();
    let passes = middle <= passing && !unsteady;
    Band {
        part,
        from_bytes: size(points.first()),
        to_bytes: size(points.last()),
        sizes: points.len(),
        share: (-middle).exp(),
        low: (-healthy).exp(),
        limit: (-limit).exp(),
        scatter,
        unsteady,
        state: match () {
            () if slow => State::Slow,
            () if passes => State::Pass,
            () => State::Unsure,
        },
    }
}

/// How far the expected times of a band may be off, as a standard deviation of the logarithm: what healthy machines of
/// the kind showed, or the profile's own account where that is larger. Latency that is left in large sizes is known as
/// loosely as that of small ones.
fn doubt(part: Part, points: &[(&Point, f64)], run: &Run) -> f64 {
    let own = median(points.iter().map(|(p, _)| p.doubt).collect());
    let latency = if part == Part::Large { median(points.iter().map(|(_, share)| *share).collect()) } else { 0.0 };
    run.doubt.of(part).hypot(latency * run.doubt.small).max(own)
}

/// How much longer calls in place take than those out of place, as a logarithm: the median over sizes that have both. None
/// of a few sizes, of which it would take the scatter with it.
fn in_place_excess(points: &[(&Point, f64)]) -> f64 {
    let mean = |p: &Point, within: bool| {
        let half: Vec<f64> =
            p.measured_us.iter().zip(&p.in_place).filter(|(_, is)| **is == within).map(|(us, _)| us.ln()).collect();
        (!half.is_empty()).then(|| half.iter().sum::<f64>() / half.len() as f64)
    };
    let apart: Vec<f64> = points.iter().filter_map(|(p, _)| Some(mean(p, true)? - mean(p, false)?)).collect();
    if apart.len() < SCATTERED { 0.0 } else { median(apart) }
}

/// How far single rows lie from what their size takes, as a standard deviation of the logarithm: from repeats of sizes,
/// which do the same work, or from the neighbours of each where nothing was repeated. What calls in place take longer at all
/// sizes is no scatter.
fn scatter(points: &[(&Point, f64)], part: Part, collective: Collective) -> f64 {
    // Small all-gathers and the like spare a copy in place.
    let same_work =
        part == Part::Large || matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
    let repeats = |(p, _): &&(&Point, f64)| same_work && p.measured_us.len() > 1;
    let within = in_place_excess(points);
    let apart: Vec<f64> = (points.iter().filter(repeats))
        .map(|(p, _)| {
            let halves = p.measured_us.iter().zip(&p.in_place);
            let logs: Vec<f64> = halves.map(|(us, is)| us.ln() - if *is { within } else { 0.0 }).collect();
            let mean = logs.iter().sum::<f64>() / logs.len() as f64;
            (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (logs.len() - 1) as f64).sqrt()
        })
        .collect();
    if !apart.is_empty() {
        // Of two repeats the standard deviation is a normal variable without its sign.
        return median(apart) / 0.6745;
    }
    if part != Part::Large || points.len() < 3 {
        return 0.0;
    }
    let bends = points.windows(3).map(|w| excess(w[1].0) - f64::midpoint(excess(w[0].0), excess(w[2].0)));
    robust_deviation(bends.collect()) / 1.5_f64.sqrt()
}
