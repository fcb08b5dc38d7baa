//! What to take in place of NCCL's choice, as tables and verdict.

use std::path::Path;

use collcast_reports::model::{Bar, Cell, Column, Report, Status, Table, Verdict, basis_in_words};
use collcast_sim::units::Bytes;

use crate::confidence::Trust;
use crate::tune::{Basis, Outcome, Process, Range, Regret, StepGain, Tuned, Variables};

/// What of an outcome is printed, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Show<'f> {
    /// For people rather than programs.
    pub for_people: bool,
    /// Only the sizes where another choice is advised.
    pub changes_only: bool,
    /// Where the settings are written as files too.
    pub written: Option<&'f Path>,
}

/// A range that goes beyond this has no end, in bytes.
const END: u64 = 1 << 60;

impl Outcome {
    /// The report of an outcome.
    pub fn report(&self, show: Show<'_>) -> Report {
        let outcome = self;
        let mut report = Report::new("tune", super::VERSION);
        report.predicted = outcome.ranges.iter().any(|range| range.basis != crate::tune::Basis::Measured);
        report.inputs.clone_from(&outcome.inputs);
        report.assumptions.clone_from(&outcome.notes);
        report.warnings.clone_from(&outcome.warnings);
        let shown = outcome.ranges.iter().filter(|range| !show.changes_only || range.changes);
        let named = outcome.ranges.iter().any(|range| range.communicator.is_some());
        report.tables.push(range_table(shown, (named, show.for_people)));
        report.tables.push(regret_table(&outcome.regrets, (named, show.for_people)));
        if let Some(step) = &outcome.step {
            report.tables.push(call_table(outcome));
            report.tables.push(step_table(step));
        }
        // Programs find these tables, empty or not.
        if !show.for_people || !outcome.variables.effects.is_empty() {
            report.tables.push(variable_table(&outcome.variables));
        } else {
            report.assumptions.push(format!("no environment variable is advised: {}", outcome.variables.why));
        }
        if !show.for_people || !outcome.process.tried.is_empty() {
            report.tables.push(process_table(&outcome.process));
        }
        report.verdict = Some(verdict(outcome, show.written));
        report
    }
}

fn share(fraction: f64) -> Cell {
    Cell::float(fraction, 3)
}

fn range_table<'r>(ranges: impl Iterator<Item = &'r Range>, (named, for_people): (bool, bool)) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::number("size_min_bytes", "from"),
        Column::number("size_max_bytes", "to"),
        Column::text("advice", "advice"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("predicted_us", "advice us"),
        Column::text("default_algorithm", "NCCL algorithm"),
        Column::text("default_protocol", "NCCL protocol"),
        Column::number("default_predicted_us", "NCCL's choice us"),
        Column::fraction("gain", "gain").barred(Bar::OfLargest),
        Column::text("basis", "basis"),
        Column::number("measured_us", "measured us"),
        Column::number("default_measured_us", "NCCL measured us"),
    ];
    let mut table = Table::new(
        "rows",
        "What to take: `advice us` and `NCCL's choice us` are forecasts; `gain` is the likely saving, after measured times where \
         there are any; geometric means over the sizes",
        whose(named).into_iter().chain(columns),
    );
    for r in ranges {
        let cells = [
            r.collective.name().into(),
            r.from_bytes.into(),
            if for_people && r.to_bytes > END { "end".into() } else { r.to_bytes.into() },
            if r.changes { "change" } else { "keep" }.into(),
            r.pair.0.name().into(),
            r.pair.1.name().into(),
            r.channels.into(),
            Cell::float(r.predicted_us, 2),
            r.default_pair.0.name().into(),
            r.default_pair.1.name().into(),
            Cell::float(r.default_predicted_us, 2),
            share(r.gain),
            basis(r.basis, for_people),
            r.measured_us.map(|us| Cell::float(us, 2)).into(),
            r.default_measured_us.map(|us| Cell::float(us, 2)).into(),
        ];
        table.push(name(named, r.communicator.as_ref()).into_iter().chain(cells));
    }
    table
}

/// What a row rests on.
fn basis(basis: Basis, for_people: bool) -> Cell {
    match basis {
        _ if !for_people => basis.name().into(),
        Basis::Measured => "measured times".into(),
        _ => format!("forecasts ({})", basis_in_words(basis.name())).into(),
    }
}

/// The column of the communicator, where there are several.
fn whose(named: bool) -> Option<Column> {
    named.then(|| Column::text("communicator", "communicator"))
}

/// Its cell.
fn name(named: bool, name: Option<&String>) -> Option<Cell> {
    named.then(|| name.map(String::as_str).into())
}

/// The calls of a step.
fn call_table(outcome: &Outcome) -> Table {
    let columns = [
        Column::text("communicator", "communicator"),
        Column::text("collective", "collective"),
        Column::number("size_bytes", "size"),
        Column::number("calls", "calls"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("time_us", "us"),
        Column::text("default_algorithm", "NCCL algorithm"),
        Column::text("default_protocol", "NCCL protocol"),
        Column::number("default_time_us", "NCCL's choice us"),
    ];
    let mut table = Table::new("calls", "The calls of a step, for one rank", columns);
    for call in outcome.asked() {
        let (taken, default) = (call.taken(), call.default_candidate());
        table.push([
            call.communicator.name.as_deref().into(),
            call.collective.name().into(),
            call.size_bytes.into(),
            call.in_step.into(),
            taken.pair.0.name().into(),
            taken.pair.1.name().into(),
            Cell::float(taken.belief.time_us, 2),
            default.pair.0.name().into(),
            default.pair.1.name().into(),
            Cell::float(default.belief.time_us, 2),
        ]);
    }
    table
}

fn step_table(step: &StepGain) -> Table {
    let columns = [
        Column::number("default_ms", "by NCCL's choice ms"),
        Column::number("tuned_ms", "with the table ms"),
        Column::fraction("saved", "saved"),
    ];
    let mut table = Table::new("step", "The step, simulated", columns);
    table.push([Cell::float(step.default_ms, 3), Cell::float(step.tuned_ms, 3), share(step.saved())]);
    table
}

fn regret_table(regrets: &[Regret], (named, for_people): (bool, bool)) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::text("basis", "by"),
        Column::number("sizes", "sizes"),
        Column::fraction("default_mean", "lost by NCCL, mean"),
        Column::fraction("default_max", "worst"),
        Column::number("default_max_at_bytes", "at"),
        Column::fraction("forecast_mean", "lost by forecasts alone, mean"),
        Column::fraction("forecast_max", "worst"),
    ];
    let columns = whose(named).into_iter().chain(columns);
    let mut table =
        Table::new("regret", "Time lost against the best choice at each size, as a share of the best time", columns);
    for r in regrets {
        let cells = [
            r.collective.name().into(),
            basis(r.basis, for_people),
            r.sizes.into(),
            share(r.default.mean),
            share(r.default.max),
            r.default.max_at_bytes.into(),
            r.forecast.as_ref().map(|f| share(f.mean)).into(),
            r.forecast.as_ref().map(|f| share(f.max)).into(),
        ];
        table.push(name(named, r.communicator.as_ref()).into_iter().chain(cells));
    }
    table
}

fn variable_table(variables: &Variables) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::text("algorithms", "NCCL_ALGO"),
        Column::text("protocols", "NCCL_PROTO"),
        Column::number("sizes", "sizes that gain"),
        Column::fraction("gain_max", "most"),
    ];
    let title = match variables.lines.as_slice() {
        [] => format!("Environment: none ({})", variables.why),
        _ => "Environment".to_owned(),
    };
    let mut table = Table::new("environment", title, columns);
    for e in &variables.effects {
        let algorithms: Vec<&str> = e.lists.0.iter().map(|algorithm| algorithm.name()).collect();
        let protocols: Vec<&str> = e.lists.1.iter().map(|protocol| protocol.name()).collect();
        table.push([
            e.collective.name().into(),
            algorithms.join(",").into(),
            protocols.join(",").into(),
            e.sizes.into(),
            share(e.gain),
        ]);
    }
    table
}

fn process_table(process: &Process) -> Table {
    let columns = [
        Column::text("settings", "settings"),
        Column::text("advice", "advice"),
        Column::fraction("gain", "gain").barred(Bar::OfLargest),
        Column::fraction("doubt", "doubt"),
        Column::fraction("default_spread", "rounds without differ by"),
        Column::fraction("spread", "rounds with differ by"),
        Column::number("rounds", "rounds"),
        Column::number("calls", "calls"),
        Column::text("least_collective", "gains least"),
        Column::number("least_size_bytes", "size"),
        Column::fraction("least_gain", "its gain"),
    ];
    let title = match process.advised() {
        None => "The whole process: NCCL's threads and FIFOs stand",
        Some(_) => "The whole process, with the table",
    };
    let mut table = Table::new("process", title, columns);
    for tried in &process.tried {
        let least = tried.least.as_ref();
        table.push([
            tried.words().into(),
            tried.finding.name().into(),
            share(tried.gain),
            tried.doubt.map(share).into(),
            tried.spread.map(|spread| share(spread.0)).into(),
            tried.spread.map(|spread| share(spread.1)).into(),
            tried.rounds.into(),
            tried.calls.into(),
            least.map(|least| least.collective.name()).into(),
            least.map(|least| least.size_bytes).into(),
            least.map(|least| share(least.gain)).into(),
        ]);
    }
    table
}

fn verdict(outcome: &Outcome, written: Option<&Path>) -> Verdict {
    let asked = outcome.asked().count();
    if let Some(why) = &outcome.refused {
        let (status, what, next) = match written {
            Some(_) => (
                Status::Warning,
                "the settings are written by --force, in spite of this",
                "check the times before you load tuner.csv: `collcast validate`",
            ),
            None => (Status::Failed, "nothing to use", "`--force --output DIR` writes the settings all the same"),
        };
        return Verdict {
            status,
            sentence: format!("{what}: {why}"),
            confidence: "none: judged on these times".to_owned(),
            basis: "measured".to_owned(),
            next: Some(next.to_owned()),
        };
    }
    let process = outcome.process.advised().map_or_else(String::new, |tried| {
        format!("; {} saves {:.1}% over all calls", tried.words(), 100.0 * tried.gain)
    });
    let Some((call, advice)) = outcome.changes().max_by(|a, b| a.1.gain.total_cmp(&b.1.gain)) else {
        let measured = outcome.asked().all(Tuned::measured);
        let next = if measured {
            "with more runs of each choice smaller gains show"
        } else {
            "with forced runs of nccl-tests as --measurements smaller gains show"
        };
        let sentence = format!(
            "NCCL's choice stands at {}: {}{process}",
            if asked == 1 { "the one size".to_owned() } else { format!("all {asked} sizes") },
            if outcome.in_vain {
                "other choices make calls faster, and the step takes no less time"
            } else {
                "nothing beats it beyond doubt"
            }
        );
        return judged(outcome, measured, sentence, next);
    };
    let (taken, default) = (call.taken().pair, call.default_candidate().pair);
    let (low, high) = call.taken().belief.interval();
    let sentence = format!(
        "{} of {asked} sizes gain, most {} at {}: {}/{} in place of {}/{} saves {:.0}% ({:.0}% to {:.0}%){}",
        outcome.changes().count(),
        call.collective,
        Bytes(call.size_bytes).about(),
        taken.0,
        taken.1,
        default.0,
        default.1,
        100.0 * advice.gain,
        100.0 * low,
        100.0 * high,
        if outcome.variables.lines.is_empty() { "; no environment variable alone does it" } else { "" },
    );
    let step = outcome.step.as_ref().map(|step| {
        let StepGain { default_ms, tuned_ms } = step;
        format!("; the step takes {tuned_ms:.1} ms in place of {default_ms:.1}, {:.1}% less", 100.0 * step.saved())
    });
    let sentence = sentence + &step.unwrap_or_default() + &process;
    let install;
    let next = if !call.is_clear() {
        "the gain lies within the intervals of the forecasts: `collcast tune --measure` on that machine tells whether it is there"
    } else if let Some(folder) = written {
        install = format!(
            "`collcast tune install {}` prints the variables that load it, once the plugin is built; then measure again and \
             `collcast compare`",
            folder.display()
        );
        &install
    } else {
        "`--output DIR` writes the settings"
    };
    judged(outcome, advice.basis == Basis::Measured, sentence, next)
}

/// A verdict as sure as what it rests on: measured times, or forecasts.
fn judged(outcome: &Outcome, measured: bool, sentence: String, next: &str) -> Verdict {
    let doubt = match outcome {
        Outcome { other_gpus: true, .. } => Some("low: the measured times are of other GPUs than the machine has"),
        Outcome { contradicted: true, .. } => {
            Some("low: most measured times are far from any forecast; are they of this machine and of these protocols?")
        }
        _ => None,
    };
    let (status, confidence) = match (doubt, measured) {
        (Some(doubt), _) => (Status::Warning, doubt.to_owned()),
        (None, true) => (Status::Ok, "high: measured here".to_owned()),
        (None, false) => (outcome.status, outcome.confidence.clone()),
    };
    let basis = if measured { "measured".to_owned() } else { outcome.basis.clone() };
    Trust { status, confidence, basis }.verdict(sentence, Some(next.to_owned()))
}
