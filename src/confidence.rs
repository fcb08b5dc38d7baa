//! How sure forecasts are: by how far off they were for runs that their constants had not seen, and by how far a call goes
//! beyond what its profile was made with.

use std::collections::BTreeMap;
use std::fmt;

use collcast_reports::model::{Status, Verdict};
use collcast_sim::call::Call;
use collcast_sim::collective::{Collective, Protocol};
use collcast_sim::domain::{Basis, Beyond};
use collcast_sim::nccl::{Environment, Transport, plugin};
use collcast_sim::predict::{Prediction, Settings};
use collcast_sim::profile::{Profile, Spread};
use collcast_sim::topology::Topology;
use collcast_sim::units::{Bytes, SimDuration};

use crate::health::{Doubt, Kind, PLATEAU, Part, Reached, of_same};
use crate::profiles;
use crate::statistics::{INTERVAL, upper_quantile};

/// How sure an answer is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Healthy machines were farther off than is worth acting on, or nobody knows how far.
    Low,
    /// Large deficits would show.
    Medium,
    /// Deficits that are worth acting on would show.
    High,
}

impl Level {
    /// The most that nearly all healthy machines may be off by: 15%, above which a deficit at large sizes is worth acting
    /// on, and twice that.
    const WITHIN: [(f64, Self); 2] = [(0.15, Self::High), (0.30, Self::Medium)];

    /// That of an answer where nearly all healthy machines are `within` a share of what is expected: low beyond what the
    /// profile was measured on, and at most medium where its constants are cited.
    pub fn of(within: f64, basis: Basis) -> Self {
        let known = Self::WITHIN.iter().find(|(most, _)| within <= *most).map_or(Self::Low, |(_, level)| *level);
        match basis {
            Basis::Predicted => known,
            Basis::Cited => known.min(Self::Medium),
            Basis::Extrapolated => Self::Low,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        })
    }
}

/// Chance that a healthy machine is farther below its forecast than "nearly all" are.
const RARE: f64 = 0.02;

/// Share of the busiest resource, below that of large sizes, over which the doubt of the middle turns into theirs.
const BELOW: f64 = 0.1;

/// What bounds the calls that the time of a step depends on most.
const LINKS: &str = "links";
/// Why a step is never sure: see `docs/howto/capacity.md`.
const OVERLAP: &str = "how calls and computation slow each other was measured on H200 alone";

/// Why a step whose kernels were timed on another kind of GPU is never sure.
const MOVED: &str = "computations take what they took on another kind of GPU";

/// Runs that forecasts were held against.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Unseen {
    /// Rows that the profile's fit held back.
    HeldBack,
    /// Published runs of a kind.
    Published(Kind),
}

/// What forecasts rest on; that of several is collected.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Grounds {
    /// How they go beyond what the profile was made with.
    pub beyond: Beyond,
    /// What they rest on: not extrapolated where published runs, as far from the profile, say how far off that was.
    pub basis: Basis,
    /// How far such forecasts were off, at small or large sizes: standard deviations of ln(measured / expected).
    errors: BTreeMap<(Part, Unseen), f64>,
    /// By machine and call, the highest forecast where others published runs of the same.
    peaks: BTreeMap<(String, Collective, u32), Peak>,
    /// Whether computation runs beside the calls.
    overlapped: bool,
    /// Whether times of computation are those of another kind of GPU.
    moved: bool,
}

/// A forecast of a call that links bound, and what others published of the same.
#[derive(Clone, PartialEq, Debug)]
struct Peak {
    bytes: Bytes,
    /// Ends of the 90% interval of its bus bandwidth, in GB/s.
    busbw: (f64, f64),
    /// Share of the busiest resource that it uses.
    busy: f64,
    runs: Vec<&'static Reached>,
}

impl Peak {
    /// The published run that is farthest outside of the interval; none where all are inside.
    fn denied_by(&self) -> Option<&'static Reached> {
        let off = |run: &Reached| {
            // A larger size may reach what the busiest resource has left.
            let room = if self.bytes.0 < run.size_bytes { self.busy } else { 1.0 };
            (self.busbw.0 / run.busbw_gbps).max(run.busbw_gbps * room / self.busbw.1)
        };
        let outside = self.runs.iter().copied().filter(|run| off(run) > 1.0);
        outside.max_by(|a, b| off(a).total_cmp(&off(b)))
    }
}

/// How far to trust an answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Trust {
    /// A warning where confidence is low.
    pub status: Status,
    /// The level with its reason.
    pub confidence: String,
    /// What the answer rests on: `predicted`, `cited` or `extrapolated`.
    pub basis: String,
}

/// The machine, the profile and the settings of forecasts.
#[derive(Clone, Copy)]
pub struct On<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// The profile.
    pub profile: &'a Profile,
    /// What NCCL is told.
    pub settings: &'a Settings,
}

/// What a forecast says of itself.
#[derive(Clone, Copy)]
pub struct Said<'a> {
    /// What bounds it.
    pub bound: &'a str,
    /// Share of the busiest resource that it uses.
    pub busy: f64,
    /// Ends of the 90% interval by its profile's own account, as parts of its time.
    pub interval: (f64, f64),
    /// How it goes beyond what the profile was made with.
    pub beyond: &'a Beyond,
}

impl Trust {
    /// A verdict that rests on forecasts. Where confidence is low its sentence begins so: a warning alone reads as if the
    /// machine were at fault.
    pub fn verdict(self, sentence: String, next: Option<String>) -> Verdict {
        let Self { status, confidence, basis } = self;
        let sentence = if status == Status::Ok { sentence } else { format!("low confidence: {sentence}") };
        Verdict { status, sentence, confidence, basis, next }
    }
}

impl<'a> From<&'a Prediction> for Said<'a> {
    fn from(p: &'a Prediction) -> Self {
        let part = |end: SimDuration| end.as_us() / p.time.as_us().max(f64::MIN_POSITIVE);
        Self { bound: p.bound_by(), busy: p.busy(), interval: (part(p.low), part(p.high)), beyond: &p.beyond }
    }
}

/// Ends of the 90% interval of a forecast of a call, in us; no call takes less than its bytes need.
pub fn interval_us(on: On<'_>, call: &Call, prediction: &Prediction) -> (f64, f64) {
    let said = Said::from(prediction);
    let (low, high) = Grounds::of(on, (call.collective, call.ranks), said).interval(said.interval);
    let [low, high] = [low, high].map(|part| prediction.time.as_us() * part);
    (low.max(prediction.bound.time.as_us()), high)
}

impl Grounds {
    /// Those of a call over the first ranks of a machine.
    pub fn of(on: On<'_>, (collective, ranks): (Collective, u32), said: Said<'_>) -> Self {
        let On { topology, profile, settings } = on;
        let part = match said.bound {
            // Messages bound small sizes; what proxies copy is bytes, but seldom what NCCL chooses for large ones.
            "latency" | "launch rate" | "proxy threads" => Part::Small,
            _ if said.busy < PLATEAU => Part::Middle,
            _ => Part::Large,
        };
        let mut basis = said.beyond.basis();
        let known = match basis == Basis::Predicted && !profiles::fitted_to_published(&profile.name) {
            true => (Unseen::HeldBack, (said.interval.1 / said.interval.0).ln() / INTERVAL),
            false => {
                let kind = Kind::of(topology, (collective, ranks), settings);
                let unseen = kind.unseen();
                if unseen.is_some_and(|unseen| unseen.covers(ranks, said.beyond)) {
                    basis = basis.min(Basis::Cited);
                }
                let doubt = unseen.map_or(Doubt::UNKNOWN, |unseen| unseen.doubt);
                // The middle ends where large sizes begin: no size is suddenly far surer than the one before it.
                let near = if part == Part::Middle { (1.0 - (PLATEAU - said.busy) / BELOW).max(0.0) } else { 0.0 };
                (Unseen::Published(kind), doubt.of(part) * (1.0 - near) + doubt.large * near)
            }
        };
        let errors = BTreeMap::from([((part, known.0), known.1)]);
        Self { beyond: said.beyond.clone(), basis, errors, ..Self::default() }
    }

    /// The same, held beside what others published of such a call on the very machine: where NCCL chose, and runs as it does
    /// by itself.
    #[must_use]
    pub fn beside_published(
        mut self,
        on: On<'_>,
        (collective, ranks, bytes): (Collective, u32, Bytes),
        p: &Prediction,
    ) -> Self {
        let large = self.errors.keys().any(|(part, _)| *part == Part::Large);
        let runs = if large { of_same(on.topology, collective, ranks) } else { Vec::new() };
        if !runs.is_empty() && runs_by_itself(on) {
            let (low, high) = self.interval(Said::from(p).interval);
            let busbw = p.algbw_gb_per_s(bytes) * collective.bus_factor(ranks);
            let peak = Peak { bytes, busbw: (busbw / high, busbw / low), busy: p.busy(), runs };
            self.peaks.insert((on.topology.name.clone(), collective, ranks), peak);
        }
        self
    }

    /// What a published run of the same says against these forecasts, in words.
    pub fn denied(&self) -> Option<String> {
        let run = self.peaks.values().find_map(Peak::denied_by)?;
        Some(format!(
            "{} published {:.0} GB/s at {} on such a machine, outside of the forecast's interval",
            run.publisher,
            run.busbw_gbps,
            Bytes(run.size_bytes)
        ))
    }

    /// The 90% interval of a forecast of these grounds alone, as parts of its time: what such forecasts of runs that
    /// others published were off by, where they are what is known; else the profile's own account. Beyond what either
    /// was made with it is the wider one.
    pub fn interval(&self, own: (f64, f64)) -> (f64, f64) {
        let Some(((_, Unseen::Published(_)), error)) = self.errors.first_key_value() else { return own };
        let half = error * INTERVAL / 2.0;
        let (low, high) = ((-half).exp(), half.exp());
        if self.basis == Basis::Extrapolated { (own.0.min(low), own.1.max(high)) } else { (low, high) }
    }

    /// Those of a step over the first ranks of a machine, whose calls are large and have computation beside them.
    pub fn of_step(on: On<'_>, ranks: u32, beyond: &Beyond) -> Self {
        let class = Spread::class(Protocol::Simple, on.settings.launch, LINKS);
        let interval = on.profile.interval(&class, !beyond.is_empty());
        let said = Said { bound: LINKS, busy: 1.0, interval, beyond };
        Self { overlapped: true, ..Self::of(on, (Collective::AllReduce, ranks), said) }
    }

    /// The same, with times of computation from another kind of GPU.
    #[must_use]
    pub fn moved(self) -> Self {
        Self { moved: true, ..self }
    }

    /// How sure an answer is: see [`Grounds::trust`].
    pub fn level(&self) -> Level {
        self.judged().0
    }

    /// How far to trust an answer: by its large sizes where there are any.
    pub fn trust(&self) -> Trust {
        let (level, errors) = self.judged();
        let overlap = if self.overlapped { OVERLAP.to_owned() } else { String::new() };
        let moved = if self.moved { MOVED.to_owned() } else { String::new() };
        let denied = self.denied().unwrap_or_default();
        let reasons = [moved, self.beyond.to_string(), errors, denied, overlap].into_iter().filter(|r| !r.is_empty());
        let reasons: Vec<String> = reasons.collect();
        Trust {
            status: if level == Level::Low { Status::Warning } else { Status::Ok },
            confidence: format!("{level}: {}", reasons.join("; ")),
            basis: self.basis.name().to_owned(),
        }
    }

    /// The level, and how far off such forecasts were.
    fn judged(&self) -> (Level, String) {
        let of_part = |part: Part| {
            let of = self.errors.iter().filter(move |((p, _), _)| *p == part);
            of.max_by(|a, b| a.1.total_cmp(b.1)).map(|((_, unseen), error)| (*unseen, *error))
        };
        let (small, middle, large) = (of_part(Part::Small), of_part(Part::Middle), of_part(Part::Large));
        let Some((unseen, decisive)) = large.or(middle).or(small) else {
            return (Level::Low, "nothing was forecast".to_owned());
        };
        let within = -(-decisive * upper_quantile(RARE)).exp_m1();
        let sizes = match (large, middle, small) {
            (Some(_), _, Some((_, small))) => {
                format!("{} at large sizes, which decide, and {} at small ones", off(decisive), off(small))
            }
            (Some(_), ..) => format!("{} at large sizes", off(decisive)),
            (None, Some(_), _) => format!("{} at sizes in the middle", off(decisive)),
            _ => format!("{} at small sizes", off(decisive)),
        };
        let errors = match unseen {
            Unseen::HeldBack => format!("forecasts of rows that the fit had not seen were {sizes}"),
            Unseen::Published(kind) => match kind.unseen() {
                None => format!("no run over {} is known", kind.name()),
                Some(known) => {
                    let plural = if known.runs == 1 { "" } else { "s" };
                    format!(
                        "forecasts of unseen runs on all machines of this kind ({} run{plural}, {}) were {sizes}, root mean \
                         square over publishers",
                        known.runs,
                        kind.name()
                    )
                }
            },
        };
        let level = Level::of(within, self.basis);
        let most = match (self.moved, self.overlapped || self.denied().is_some()) {
            (true, _) => Level::Low,
            (_, true) => Level::Medium,
            _ => Level::High,
        };
        (level.min(most), errors)
    }
}

/// Whether NCCL is told nothing but what the machine and its plugin tell it.
fn runs_by_itself(On { topology, settings, .. }: On<'_>) -> bool {
    let version = settings.version.or(topology.software.nccl).unwrap_or_default();
    let own = plugin::environment(topology, version, &[]);
    let moving = own.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let moving = moving.filter(|(name, _)| Transport::VARIABLES.contains(name));
    settings.channels.is_none()
        && Environment::parse(&own, version).is_ok_and(|own| own.settings == settings.nccl)
        && Transport::from_env(topology, version, moving).is_ok_and(|own| own == settings.transport)
}

/// A standard deviation of ln(measured / expected), in words.
fn off(error: f64) -> String {
    match error.exp() {
        factor if factor < 2.0 => format!("{:.0}% off", (factor - 1.0) * 100.0),
        factor => format!("off by a factor of {factor:.1}"),
    }
}

impl FromIterator<Grounds> for Grounds {
    fn from_iter<I: IntoIterator<Item = Grounds>>(all: I) -> Self {
        let (mut beyond, mut basis, mut overlapped, mut moved) = (Vec::new(), Basis::default(), false, false);
        let (mut errors, mut peaks) = (BTreeMap::new(), BTreeMap::<_, Peak>::new());
        for grounds in all {
            beyond.push(grounds.beyond);
            basis = basis.max(grounds.basis);
            overlapped |= grounds.overlapped;
            moved |= grounds.moved;
            for (key, error) in grounds.errors {
                let most: &mut f64 = errors.entry(key).or_insert(error);
                *most = most.max(error);
            }
            for (key, peak) in grounds.peaks {
                if peaks.get(&key).is_none_or(|known| known.busbw.1 < peak.busbw.1) {
                    peaks.insert(key, peak);
                }
            }
        }
        Self { beyond: beyond.into_iter().collect(), basis, errors, peaks, overlapped, moved }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: only what was measured is called high; what goes beyond its measurements is always low.
    #[test]
    fn levels_follow_errors_and_reach() {
        for (within, basis, level) in [
            (0.15, Basis::Predicted, Level::High),
            (0.16, Basis::Predicted, Level::Medium),
            (0.31, Basis::Predicted, Level::Low),
            (0.01, Basis::Cited, Level::Medium),
            (0.31, Basis::Cited, Level::Low),
            (0.01, Basis::Extrapolated, Level::Low),
        ] {
            assert_eq!(Level::of(within, basis), level, "{within} {basis:?}");
        }
    }

    /// Goal: where a published run of the very machine lies outside of the interval, no forecast is sure; a larger size may
    /// reach more than a smaller one was forecast to.
    #[test]
    fn what_published_runs_deny_is_not_high() {
        let run = |busbw_gbps| -> &'static Reached {
            Box::leak(Box::new(Reached {
                publisher: "Somebody".to_owned(),
                source: String::new(),
                gpus: BTreeSet::new(),
                networks: BTreeSet::new(),
                nics_gbps: 400.0,
                hosts: 2,
                ranks: 16,
                collective: Collective::AllReduce,
                size_bytes: 1 << 33,
                busbw_gbps,
            }))
        };
        let level = |bytes: u64, reached: &[f64]| {
            let runs = reached.iter().copied().map(run).collect();
            let peak = Peak { bytes: Bytes(bytes), busbw: (90.0, 110.0), busy: 0.95, runs };
            let grounds = Grounds {
                errors: BTreeMap::from([((Part::Large, Unseen::HeldBack), 0.01)]),
                peaks: BTreeMap::from([((String::new(), Collective::AllReduce, 16), peak)]),
                ..Grounds::default()
            };
            (grounds.level(), grounds.trust().confidence.contains("Somebody published"))
        };
        let (sure, doubted) = ((Level::High, false), (Level::Medium, true));
        assert_eq!(level(1 << 33, &[]), sure);
        assert_eq!(level(1 << 33, &[91.0, 109.0]), sure);
        assert_eq!(level(1 << 33, &[100.0, 89.0]), doubted);
        assert_eq!(level(1 << 33, &[111.0]), doubted);
        assert_eq!(level(1 << 30, &[111.0]), sure);
        assert_eq!(level(1 << 30, &[117.0]), doubted);
        assert_eq!(level(1 << 30, &[89.0]), doubted);
    }

    /// Goal: an answer over all sizes is told by its large ones, and one of small sizes alone by these; of several
    /// calls the widest error counts.
    #[test]
    fn large_sizes_decide() {
        let of = |part, error: f64| Grounds {
            errors: BTreeMap::from([((part, Unseen::HeldBack), error)]),
            ..Default::default()
        };
        let small = of(Part::Small, 0.4);
        let all: Grounds = [small.clone(), of(Part::Large, 0.01), of(Part::Large, 0.02)].into_iter().collect();
        assert_eq!(
            all.trust().confidence,
            "high: forecasts of rows that the fit had not seen were 2% off at large sizes, which decide, and \
             49% off at small ones"
        );
        assert_eq!(small.trust().status, Status::Warning);
        assert_eq!(
            small.trust().confidence,
            "low: forecasts of rows that the fit had not seen were 49% off at small sizes"
        );
        assert!(Grounds::default().trust().confidence.starts_with("low: "));
    }
}
