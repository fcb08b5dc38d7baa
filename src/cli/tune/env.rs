//! Environment variables that help: they hold for all sizes of a collective, so most advice has none.

use collcast_reports::model::{Cell, Column, Table};
use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::nccl::{Environment, FUNCTIONS, Selection, Version};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::schedule::Call;

use super::advice::{Advice, z};
use super::options::{Pair, Site};
use super::write::Machine;
use collcast::Error as CliError;

/// What a variable may cost at a size where it does not help: less than two runs differ by.
const TOLERANCE: f64 = 0.01;

/// Variables with what they do.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Env {
    /// `NCCL_ALGO=...`, `NCCL_PROTO=...`.
    pub(super) lines: Vec<String>,
    effects: Vec<Effect>,
    /// Why there is none.
    why: String,
}

/// What the variables do to one collective.
#[derive(Clone, PartialEq, Debug)]
struct Effect {
    collective: Collective,
    lists: Lists,
    /// Sizes whose choice changes for the better beyond doubt, and the largest gain among them.
    sizes: usize,
    gain: f64,
}

fn names<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> String {
    all.iter().map(|&item| name(item)).collect::<Vec<_>>().join(",")
}

/// NCCL's spelling of a collective.
fn function(collective: Collective) -> String {
    let known = FUNCTIONS.iter().find(|(_, c)| *c == collective);
    known.map_or_else(String::new, |(name, _)| name.to_lowercase())
}

/// All lists of some of the items.
fn subsets<T: Copy>(items: &[T]) -> Vec<Vec<T>> {
    (1..1_usize << items.len())
        .map(|mask| (0..items.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| items[bit]).collect())
        .collect()
}

/// What a collective is left.
type Lists = (Vec<Algorithm>, Vec<Protocol>);

/// Finds lists of algorithms and protocols that beat NCCL's free choice at some size of a
/// collective beyond doubt, and lose at none.
///
/// A list of protocols never names LL128 where NCCL's own rule has it off: naming it would turn
/// it on. That also forbids `^LL` and the like, which turn on all the rest, so lists are positive.
///
/// # Errors
/// The settings found would stop NCCL: a fault of this search.
pub(super) fn find(
    sites: &[Site],
    advice: &[Option<Advice>],
    predictor: &Predictor<'_>,
    settings: &Settings,
) -> Result<Env, CliError> {
    if !predictor.version(settings).since(24) {
        let why = "lists by collective need NCCL 2.24; use the tuner table".to_owned();
        return Ok(Env { why, ..Env::default() });
    }
    if settings.nccl.algorithms != Selection::default() || settings.nccl.protocols != Selection::default() {
        let why = "lists would take the place of NCCL_ALGO and NCCL_PROTO as given; use the tuner table".to_owned();
        return Ok(Env { why, ..Env::default() });
    }
    let certain = z(sites);
    let mut env =
        Env { why: "no list helps one size without loss at another; use the tuner table".to_owned(), ..Env::default() };
    if advice.iter().all(Option::is_none) {
        env.why = "nothing is to be gained beyond doubt".to_owned();
        return Ok(env);
    }
    for of in sites.chunk_by(|a, b| a.call.collective == b.call.collective) {
        let collective = of[0].call.collective;
        let mut algorithms: Vec<Algorithm> = of.iter().flat_map(|s| s.options.iter().map(|o| o.pair.0)).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let mut protocols: Vec<Protocol> = of.iter().flat_map(|s| s.options.iter().map(|o| o.pair.1)).collect();
        protocols.sort_unstable();
        protocols.dedup();
        let mut best: Option<(f64, usize, Effect)> = None;
        for algorithms in subsets(&algorithms) {
            for protocols in subsets(&protocols) {
                let lists = (algorithms.clone(), protocols.clone());
                let told = apply(settings, predictor.version(settings), &sections(&[(collective, &lists)]))?;
                let Some((total, sizes, gain)) = judge(of, predictor, &told, certain) else { continue };
                let free = algorithms.len() + protocols.len();
                let better = best.as_ref().is_none_or(|(t, f, _)| total > t + 1e-9 || total > t - 1e-9 && free > *f);
                if sizes > 0 && better {
                    best = Some((total, free, Effect { collective, lists, sizes, gain }));
                }
            }
        }
        env.effects.extend(best.map(|(_, _, effect)| effect));
    }
    let lists: Vec<_> = env.effects.iter().map(|e| (e.collective, &e.lists)).collect();
    env.lines = sections(&lists);
    if env.lines.is_empty() {
        return Ok(env);
    }
    // Together they must leave every collective a choice, and slow none.
    let told = apply(settings, predictor.version(settings), &env.lines)?;
    let harmless = sites
        .chunk_by(|a, b| a.call.collective == b.call.collective)
        .all(|of| judge(of, predictor, &told, certain).is_some());
    let open = FUNCTIONS.iter().all(|&(_, collective)| {
        sites.iter().all(|s| {
            let call = Call::of_size(collective, s.call.ranks, s.call.size(), s.call.dtype);
            predictor.decide(&call, Choice::Auto, Choice::Auto, &told).is_ok()
        })
    });
    if !harmless || !open {
        return Ok(Env {
            why: "lists that help one collective harm another; use the tuner table".to_owned(),
            ..Env::default()
        });
    }
    Ok(env)
}

/// The variables of lists by collective.
fn sections(lists: &[(Collective, &Lists)]) -> Vec<String> {
    let join = |list: &dyn Fn(&Lists) -> String| {
        lists.iter().map(|(c, both)| format!("{}:{}", function(*c), list(both))).collect::<Vec<_>>().join(";")
    };
    if lists.is_empty() {
        return Vec::new();
    }
    let spelt = |algorithm: Algorithm| match algorithm {
        Algorithm::CollnetDirect => "collnetdirect",
        Algorithm::CollnetChain => "collnetchain",
        Algorithm::NvlsTree => "nvlstree",
        other => other.name(),
    };
    vec![
        format!("NCCL_ALGO={}", join(&|both| names(&both.0, spelt))),
        format!("NCCL_PROTO={}", join(&|both| names(&both.1, Protocol::name))),
    ]
}

/// Settings with variables on top.
fn apply(settings: &Settings, version: Version, lines: &[String]) -> Result<Settings, CliError> {
    let pairs: Vec<(String, String)> =
        lines.iter().filter_map(|l| l.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let added = Environment::parse(&pairs, version)
        .map_err(|e| CliError::usage(format!("the settings found are refused: {e}"), "please report this"))?;
    let mut told = *settings;
    told.nccl.algorithms = added.settings.algorithms;
    told.nccl.protocols = added.settings.protocols;
    Ok(told)
}

/// Total gain, sizes that gain beyond doubt, and the largest gain; none where a size loses, has
/// no choice left, or would take what was not timed.
fn judge(of: &[Site], predictor: &Predictor<'_>, told: &Settings, z: f64) -> Option<(f64, usize, f64)> {
    let (mut total, mut sizes, mut most) = (0.0, 0, 0.0_f64);
    for site in of {
        let decision = predictor.decide(&site.call, Choice::Auto, Choice::Auto, told).ok()?;
        let pair: Pair = (decision.algorithm, decision.protocol);
        let default = site.default_option();
        if site.not_modelled().is_some_and(|p| p == pair) || default.pair == pair {
            continue;
        }
        let option = site.options.iter().find(|o| o.pair == pair && o.channels == default.channels)?;
        if site.measured() && option.measured.is_none() {
            return None;
        }
        let gain = site.gain(option);
        if gain < -TOLERANCE {
            return None;
        }
        total -= (1.0 - gain).ln();
        if !site.beyond && site.is_certain(option, z) {
            sizes += 1;
            most = most.max(gain);
        }
    }
    Some((total, sizes, most))
}

impl Env {
    /// For the report.
    pub(super) fn table(&self) -> Table {
        let columns = [
            Column::text("collective", "collective"),
            Column::text("algorithms", "NCCL_ALGO"),
            Column::text("protocols", "NCCL_PROTO"),
            Column::number("sizes", "sizes that gain"),
            Column::number("gain_max", "most"),
        ];
        let title =
            if self.lines.is_empty() { format!("Environment: none ({})", self.why) } else { "Environment".to_owned() };
        let mut table = Table::new("environment", title, columns);
        for e in &self.effects {
            table.push([
                e.collective.name().into(),
                names(&e.lists.0, Algorithm::name).into(),
                names(&e.lists.1, Protocol::name).into(),
                e.sizes.into(),
                Cell::float(e.gain, 3),
            ]);
        }
        table
    }

    /// The file.
    pub(super) fn text(&self, machine: &Machine<'_>) -> String {
        let mut out = format!(
            "# NCCL settings for {}, {} ranks, hosts: {}. {}\n",
            machine.name,
            machine.ranks,
            machine.hosts,
            super::write::PREDICTED
        );
        if self.lines.is_empty() {
            out.push_str(&format!("# None: {}.\n", self.why));
        }
        for line in &self.lines {
            out.push_str(line);
            out.push('\n');
        }
        out
    }
}
