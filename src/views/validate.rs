//! Measurements beside what is expected: bus bandwidth, errors of forecasts, files, what is not as it should be, rows,
//! and the verdict.

use collcast_reports::model::{CaseOutcome, Cell, Column, Report, Status, Table, TestCase, Verdict};
use collcast_sim::collective::{Algorithm, Protocol};
use collcast_sim::doctor::Cause;
use collcast_sim::domain::Basis;

use super::health::{self, digits};
use crate::confidence::Level;
use crate::diagnose::{Anomaly, HALVES_DIFFER};
use crate::health::{Gate, Judged, State};
use crate::history::{FEWEST, Trend};
use crate::validate::{Closest, Expected, File, FileOutcome, Group, History, JudgedRow, Outcome, RUN_FAILED, Stats};
use crate::values::few;

/// What a report shows, beside what every one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// For people rather than programs.
    pub for_people: bool,
    /// Errors of the forecasts, by group.
    pub model_errors: bool,
    /// Every row too.
    pub rows: bool,
    /// The table of what is not as it should be also where it is empty.
    pub no_anomalies: bool,
}

impl Outcome {
    /// As tables and a verdict.
    pub fn report(&self, shown: Shown) -> Report {
        let mut report = Report::new("validate", super::VERSION);
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        let differ = |differ| format!("logs differ from those of the runs that judge in: {differ}");
        report.assumptions.extend(self.differ().map(differ));
        report.warnings.clone_from(&self.warnings);
        report.tables.extend(health::tables(&self.health, shown.for_people, shown.rows));
        if shown.model_errors && !self.rows.is_empty() {
            report.tables.push(group_table(&self.groups, &self.overall, shown.for_people));
        }
        let files = files_table(&self.files);
        if !files.rows.is_empty() || !shown.for_people {
            report.tables.push(files);
        }
        if !self.anomalies.is_empty() || shown.no_anomalies {
            report.tables.push(anomalies_table(&self.anomalies, shown.for_people));
        }
        if let Some(history) = &self.history {
            report.tables.push(history_table(history, shown.for_people));
        }
        if shown.rows {
            report.tables.push(rows_table(&self.rows));
        }
        if shown.for_people {
            report.tables.retain(|table| !table.rows.is_empty());
        }
        report.extra.insert("overall".to_owned(), json_of(&self.overall));
        report.extra.insert("overall_with_auto".to_owned(), json_of(&self.overall_with_auto));
        if let Some(causes) = &self.causes {
            report.extra.insert("causes".to_owned(), json_of(causes));
        }
        report.extra.insert("bands".to_owned(), json_of(&self.health.runs));
        report.extra.insert("health".to_owned(), json_of(&self.health.state));
        report.cases = self.cases();
        report.verdict = Some(self.verdict());
        report
    }
}

/// Errors by group.
fn group_table(groups: &[Group], overall: &Stats, people: bool) -> Table {
    let columns = [
        Column::text("launch", "launch"),
        Column::text("group", "group"),
        Column::text("band", "size"),
        Column::number("count", "rows"),
        Column::fraction("median_abs_error", "median"),
        Column::fraction("mean_abs_error", "mean"),
        Column::fraction("p95_abs_error", "p95"),
        Column::fraction("bias", "bias"),
        Column::fraction("coverage", "in interval"),
        Column::fraction("nccl_median_abs_error", "NCCL's model"),
        Column::fraction("closest_median_abs_error", "closest"),
    ];
    let mut table = Table::new("groups", "error = predicted / measured - 1, by group", columns);
    let mut push = |launch: &str, what: &str, band: &str, s: &Stats| {
        let pc = |v: f64| Cell::float(v, 3);
        table.push([
            launch.into(),
            what.into(),
            band.into(),
            s.errors.count.into(),
            pc(s.errors.median_abs_error),
            pc(s.errors.mean_abs_error),
            pc(s.errors.p95_abs_error),
            pc(s.errors.bias),
            Cell::float(s.coverage, 2),
            s.nccl_model.map(|m| pc(m.median_abs_error)).into(),
            s.closest.map(|m| pc(m.median_abs_error)).into(),
        ]);
    };
    for group in groups {
        push(group.launch.name(), &group.group, group.band, &group.stats);
    }
    if overall.errors.count > 0 || !people {
        push("all", "forced algorithm and protocol", "all", overall);
    }
    table
}

fn files_table(files: &[File]) -> Table {
    let columns = [Column::text("file", "file"), Column::number("rows", "rows"), Column::text("outcome", "outcome")];
    let mut table = Table::new("files", "files that gave no rows, or of which there is something to tell", columns);
    for file in files {
        let mut text = match &file.outcome {
            FileOutcome::Read if file.notes.is_empty() => continue,
            FileOutcome::Read => "read".to_owned(),
            FileOutcome::Metadata => "describes the data files of its stem".to_owned(),
            FileOutcome::NotUnderstood(reason) => format!("not understood: {reason}"),
            FileOutcome::Refused(error) => format!("refused: {error}"),
        };
        if let Some(first) = file.notes.first() {
            text += &match file.notes.len() {
                1 => format!("; {first}"),
                more => format!("; {more} notes, the first: {first}"),
            };
        }
        table.push([file.path.as_str().into(), file.rows.into(), text.into()]);
    }
    table
}

/// The table `anomalies`: a row each for files, for people a line each of its evidence and what to
/// run next.
pub(super) fn anomalies_table(anomalies: &[Anomaly], people: bool) -> Table {
    let title = "what is not as it should be";
    let severity = |a: &Anomaly| if a.error { "error" } else { "warning" };
    let (kind, level) = (Column::text("kind", "kind"), Column::text("severity", "severity"));
    if !people {
        let columns = [kind, level, Column::text("evidence", "evidence"), Column::text("suggestion", "suggestion")];
        let mut table = Table::new("anomalies", title, columns);
        for a in anomalies {
            table.push([a.kind.into(), severity(a).into(), a.evidence.as_str().into(), a.suggestion.as_str().into()]);
        }
        return table;
    }
    let mut table =
        Table::new("anomalies", title, [kind, level, Column::text("evidence", "evidence, and what to run next")]);
    for a in anomalies {
        let next = format!("next: {}", a.suggestion);
        let lines = parts(&a.evidence).into_iter().chain(parts(&next));
        for (index, line) in lines.enumerate() {
            let (kind, severity) = if index == 0 { (a.kind, severity(a)) } else { ("", "") };
            table.push([kind.into(), severity.into(), line.into()]);
        }
    }
    table
}

/// The parts of a text with `; ` between them, but for those in brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ';' if depth == 0 && at >= begin && text[at..].starts_with("; ") => {
                parts.push(&text[begin..at]);
                begin = at + 2;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

/// Sets of hosts up to which each has a row for people, also where it did not change.
const HOSTS: usize = 8;

/// How hosts changed: the runs of all, and of each set of hosts; for people, of many sets those that changed.
fn history_table(history: &[History], people: bool) -> Table {
    let columns = [
        Column::text("hosts", "hosts"),
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::number("runs", "runs"),
        Column::text("since", "since"),
        Column::number("percent", "% of healthy earlier"),
        Column::text("changed", "changed"),
        Column::number("changed_runs", "runs since"),
        Column::number("changed_percent", "% of before"),
    ];
    let mut table =
        Table::new("history", "bus bandwidth of this run beside earlier ones, and since when it changed", columns);
    let trends = || history.iter().flat_map(|h| &h.trends);
    let mut all: Vec<&Trend> = trends().collect();
    if people && trends().filter(|trend| trend.host_sets == 1).count() > HOSTS {
        all.retain(|trend| trend.host_sets > 1 || trend.changed.is_some());
    }
    all.sort_by_key(|trend| trend.host_sets == 1);
    for trend in all {
        let hosts = match (trend.host_sets, trend.hosts.len()) {
            (1, 0) => "not named".to_owned(),
            (1, _) => trend.hosts.join(","),
            (sets, _) => format!("all {sets} sets of hosts"),
        };
        let changed = trend.changed.as_ref();
        table.push([
            hosts.into(),
            trend.collective.name().into(),
            trend.ranks.into(),
            trend.runs.into(),
            trend.since.as_str().into(),
            Cell::float(trend.share * 100.0, 0),
            changed.map(|c| Cell::from(c.since.as_str())).into(),
            changed.map(|c| Cell::from(c.runs)).into(),
            changed.map(|c| Cell::float(c.share * 100.0, 0)).into(),
        ]);
    }
    table
}

/// What a row's run asked for, with its hosts where there are several.
fn asked(row: &JudgedRow) -> String {
    match row.hosts {
        Some(hosts) if hosts > 1 => format!("{}, {hosts} hosts", row.asked()),
        _ => row.asked(),
    }
}

fn rows_table(rows: &[JudgedRow]) -> Table {
    let columns = [
        Column::text("run", "run"),
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size"),
        Column::text("in_place", "in place"),
        Column::text("launch", "launch"),
        Column::text("forced", "forced"),
        Column::text("asked", "asked for"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("measured_us", "measured us"),
        Column::number("predicted_us", "predicted us"),
        Column::number("error", "error"),
        Column::number("low_us", "low us"),
        Column::number("high_us", "high us"),
        Column::number("nccl_model_us", "NCCL's model us"),
        Column::text("closest_algorithm", "closest algorithm"),
        Column::text("closest_protocol", "closest protocol"),
        Column::number("closest_us", "closest us"),
        Column::number("closest_error", "closest error"),
        Column::text("bound", "bound by"),
        Column::text("file", "file"),
        Column::number("line", "line"),
    ];
    let mut table = Table::new("rows", "", columns);
    for row in rows {
        let closest = |cell: fn(&Closest) -> Cell| row.closest.as_ref().map(cell).into();
        table.push([
            row.run.as_str().into(),
            row.collective.name().into(),
            row.ranks.into(),
            row.size_bytes.into(),
            row.in_place.into(),
            row.launch.name().into(),
            row.forced.into(),
            asked(row).into(),
            row.algorithm.name().into(),
            row.protocol.name().into(),
            row.channels.into(),
            Cell::float(row.measured_us, 2),
            Cell::float(row.predicted_us, 2),
            Cell::float(row.error, 3),
            Cell::float(row.low_us, 2),
            Cell::float(row.high_us, 2),
            row.nccl_model_us.map(|us| Cell::float(us, 2)).into(),
            closest(|c| Algorithm::name(c.algorithm).into()),
            closest(|c| Protocol::name(c.protocol).into()),
            closest(|c| Cell::float(c.predicted_us, 2)),
            closest(|c| Cell::float(c.error, 3)),
            row.bound_by.into(),
            row.file.as_str().into(),
            row.line.into(),
        ]);
    }
    table
}

impl Outcome {
    /// What went wrong beside slow bands: wrong results, causes that are certain, gates.
    fn failures(&self) -> Vec<String> {
        let mut failures: Vec<String> =
            self.anomalies.iter().filter(|a| a.error).map(|a| format!("{}: {}", a.kind, a.evidence)).collect();
        if let (Some(most), Some(Group { launch, group, band, stats, .. })) = (self.max_error, &self.worst)
            && stats.errors.median_abs_error > most
        {
            let (is, most) = (stats.errors.median_abs_error * 100.0, digits(most * 100.0));
            failures.push(format!(
                "the forecasts of {launch} {group} {band} are off by {is:.1}% in the median, more than the {most}% of --max-error"
            ));
        }
        if self.max_error.is_some() && self.rows.is_empty() && !self.health.runs.is_empty() {
            failures.push(
                "--max-error: other runs judge all rows and no forecast does, so that it is not passed".to_owned(),
            );
        }
        failures
    }

    /// Where runs failed, but for the first of them that are told already.
    fn more_failed(&self, what: &str, told: usize) -> String {
        let failed = self.anomalies.iter().filter(|a| a.kind == RUN_FAILED);
        let places: Vec<&str> = failed.filter_map(|a| a.evidence.split(": ").next()).skip(told).collect();
        if places.is_empty() { String::new() } else { format!("; {what} {}", few(&places)) }
    }

    fn cases(&self) -> Vec<TestCase> {
        let mut cases = health::cases(&self.health, &health::Against(self));
        // Those of what is not as it should be come first.
        let next = self.anomalies.iter().filter(|a| a.error).map(|a| a.suggestion.clone());
        for (failure, details) in self.failures().into_iter().zip(next.chain(std::iter::repeat(String::new()))) {
            let mut parts = failure.split(':');
            let kind = parts.next().unwrap_or_default();
            // Several runs may have failed: programs tell cases apart by their names.
            let of = parts.next().filter(|_| kind == RUN_FAILED).map_or_else(String::new, |file| format!(",{file}"));
            cases.push(TestCase {
                group: "run".to_owned(),
                name: format!("{kind}{of}"),
                outcome: CaseOutcome::Failed { kind: "failed".to_owned(), message: failure, details },
                place: None,
            });
        }
        if cases.is_empty() {
            let outcome = match self.failed {
                true => {
                    CaseOutcome::Failed { kind: "unjudged".to_owned(), message: self.nothing(), details: String::new() }
                }
                false => CaseOutcome::Skipped(NOTHING.to_owned()),
            };
            cases.push(TestCase { group: "run".to_owned(), name: "rows".to_owned(), outcome, place: None });
        }
        cases.extend(self.unjudged.iter().map(|one| TestCase {
            group: "not judged".to_owned(),
            name: one.file.clone(),
            outcome: match self.gate.require_pass {
                true => CaseOutcome::Failed {
                    kind: "unjudged".to_owned(),
                    message: one.why.clone(),
                    details: String::new(),
                },
                false => CaseOutcome::Skipped(one.why.clone()),
            },
            place: None,
        }));
        cases
    }

    /// What is said where nothing was held against a row: a gate is not passed then.
    fn nothing(&self) -> String {
        let gated = self.max_error.is_some() || self.gate != Gate::default();
        NOTHING.to_owned() + if gated { ", so that the gate is not passed" } else { "" }
    }

    /// What keeps a machine back of which all is as it should be that was judged.
    fn in_part(&self) -> Option<String> {
        let first = self.unjudged.first().filter(|_| self.gate.require_pass && self.health.state == State::Pass)?;
        let more = self.unjudged.len() - 1;
        let more = if more > 0 { format!("; {more} more such files or runs") } else { String::new() };
        Some(format!("cannot tell of all, where --require-pass asks for a pass: {}{more}", first.why))
    }

    /// Whether the verdict rests on other runs, and not on a forecast.
    fn is_beside_runs(&self) -> bool {
        let decisive = self.health.decisive();
        decisive.map_or(matches!(self.expected, Expected::Runs { .. }), |(run, _)| run.kind.is_none())
    }

    fn verdict(&self) -> Verdict {
        let slow = self.health.state == State::Slow;
        let failures = self.failures();
        let sentence = match (&self.health.runs[..], failures.first()) {
            ([], None) => self.nothing(),
            (_, Some(first)) if !slow => format!("{first}{}", self.more_failed("so at", 1)),
            _ => self.in_part().unwrap_or_else(|| {
                health::sentence(&self.health, &health::Against(self))
                    + &self.limit()
                    + &self.likely()
                    + &self.more_failed("runs failed at", 0)
            }),
        };
        let told = self.anomalies.iter().filter(|a| !failures.is_empty() || a.error || slow);
        let (unknown, mut named): (Vec<_>, Vec<_>) = told.partition(|a| a.kind == Cause::Unknown.name());
        // What makes others slow comes before runs that failed.
        named.sort_by_key(|a| slow && a.kind == RUN_FAILED);
        let first = |anomalies: Vec<&Anomaly>| anomalies.first().map(|a| a.suggestion.clone());
        let beside_runs = self.is_beside_runs();
        Verdict {
            status: match self.health.state {
                _ if self.failed => Status::Failed,
                State::Pass if self.anomalies.is_empty() && self.too_fast().is_none() => Status::Ok,
                _ => Status::Warning,
            },
            sentence,
            confidence: match failures.first() {
                Some(first) if !slow && first.starts_with(RUN_FAILED) => OF_ITS_LOG.to_owned(),
                _ => self.confidence(),
            },
            basis: if beside_runs { "measured against measured" } else { "measured against predicted" }.to_owned(),
            next: first(named)
                .or_else(|| self.of_another_machine())
                .or_else(|| self.of_other_settings())
                .or_else(|| (self.on_cpu && self.health.state != State::Pass).then(|| NEXT_OF_THREADS.to_owned()))
                .or_else(|| health::next_of_small(&self.health))
                .or_else(|| first(unknown))
                .or_else(|| self.too_early())
                .or_else(|| self.in_part().map(|_| MEASURE_REST.to_owned()))
                .or_else(|| health::is_cut(&self.health).then(|| MEASURE_REST.to_owned()))
                .or_else(|| health::next(&self.health, beside_runs)),
        }
    }

    /// What to do where the runs are of another machine than the one that is expected.
    fn of_another_machine(&self) -> Option<String> {
        let forecast = matches!(self.expected, Expected::Forecast { .. });
        let unfit = forecast && self.health.runs.is_empty() && !self.warnings.is_empty();
        let other = self.other_gpus || (forecast && self.too_fast().is_some());
        (unfit || other)
            .then(|| "name the machine that was measured: -t, --nodes, --gpus (collcast topo list)".to_owned())
    }

    /// In what logs differ from those of the runs that judge.
    fn differ(&self) -> Option<String> {
        let differ: Vec<String> = self.differences.iter().map(ToString::to_string).collect();
        (!differ.is_empty()).then(|| few(&differ))
    }

    /// What to do where runs that lack something ran under other settings than those that they are held against.
    fn of_other_settings(&self) -> Option<String> {
        let differ = self.differ().filter(|_| self.health.state != State::Pass)?;
        Some(format!(
            "measure again with the settings of the runs that judge, which differ and may be the cause: {differ}"
        ))
    }

    /// What to do where the history is too short, and no machine is named.
    fn too_early(&self) -> Option<String> {
        let nothing = self.history.is_some() && self.health.decisive().is_none() && self.rows.is_empty();
        nothing.then(|| {
            format!("record {FEWEST} runs of these hosts, or name the machine with -t, so that a forecast judges")
        })
    }

    /// The limit that was asked for and is not met.
    fn limit(&self) -> String {
        match (self.health.state, self.gate.fail_below) {
            (State::Slow, Some(least)) => format!(", less than the {}% of --fail-below", digits(least * 100.0)),
            (State::Unsure, _) if self.gate.require_pass => ", where --require-pass asks for a pass".to_owned(),
            _ => String::new(),
        }
    }

    /// The cause of what is slow, where one fits.
    fn likely(&self) -> String {
        // Failed runs are told by themselves, and may be others.
        let known = |a: &&Anomaly| a.error && ![Cause::Unknown.name(), RUN_FAILED].contains(&a.kind);
        let named = self.anomalies.iter().find(known);
        let or = |a: &Anomaly| a.alike.iter().map(|kind| format!(" or {kind}")).collect::<String>();
        match named {
            Some(a) if a.kind == HALVES_DIFFER => "; calls in place and out of place differ".to_owned(),
            Some(a) => format!("; likely cause: {}{}", a.kind, or(a)),
            None => String::new(),
        }
    }

    /// How many times as fast a run is as what it is held against, where that cannot be of such a machine in good health.
    fn too_fast(&self) -> Option<f64> {
        let least = |run: &Judged| if run.kind.is_none() { FASTER } else { crate::health::TOO_FAST };
        let shares = self.health.runs.iter().filter_map(|run| Some((run.decisive()?.share, least(run))));
        shares.filter(|(share, least)| share > least).map(|(share, _)| share).max_by(f64::total_cmp)
    }

    /// How sure the verdict is: by what healthy machines were off by where it rests, and never high on a forecast that
    /// no measurement of such calls is behind.
    fn confidence(&self) -> String {
        let of_state = self.health.runs.iter().filter(|run| run.state == self.health.state);
        let decisive = of_state.filter_map(|run| Some((run.kind.is_none(), run.decisive()?)));
        let Some((beside_runs, band)) = decisive.min_by(|a, b| a.1.low.total_cmp(&b.1.low)) else {
            return "low: nothing was judged".to_owned();
        };
        if self.other_gpus {
            return ON_OTHER_GPUS.to_owned();
        }
        if let Some(times) = self.too_fast() {
            let doubt = if beside_runs { "was that a good run?" } else { "is that the machine that was measured?" };
            return format!("low: it is {times:.1} times as fast as what it is held against; {doubt}");
        }
        let (within, percent) = (1.0 - band.low, (1.0 - band.low) * 100.0);
        // A size that is far off by itself makes a pass less sure.
        let lone = self.health.runs.iter().any(|run| run.state == State::Pass && run.lone().is_some());
        let level = |basis, seen| match self.health.state {
            State::Unsure => Level::Low,
            _ if seen => Level::Low,
            State::Pass if lone => Level::of(within, basis).min(Level::Medium),
            _ => Level::of(within, basis),
        };
        if beside_runs {
            return format!("{}: good runs lie at most {percent:.0}% below each other", level(Basis::default(), false));
        }
        let denied = self.grounds.denied();
        let level =
            level(self.grounds.basis, self.seen).min(if denied.is_some() { Level::Medium } else { Level::High });
        let denied = denied.map_or_else(String::new, |denied| format!("; {denied}"));
        let beyond = &self.grounds.beyond;
        let beyond = if beyond.is_empty() { String::new() } else { format!("; {beyond}") };
        let seen = if self.seen { "; the profile was fitted to such a file, so that it cannot judge it" } else { "" };
        format!(
            "{level}: nearly all healthy machines were at most {percent:.0}% below such forecasts{denied}{beyond}{seen}"
        )
    }
}

/// Times as fast as a good run beyond which that one is doubted: two healthy runs of a machine differ by far less.
const FASTER: f64 = 1.25;
/// How sure a verdict is on other GPUs.
pub(super) const ON_OTHER_GPUS: &str = "low: what is expected is of other GPUs than those that were measured";
/// What to do where CPU threads were measured.
const NEXT_OF_THREADS: &str = "measure again, while nothing else runs on these cores";
/// How sure it is that a run failed.
const OF_ITS_LOG: &str = "high: its own log says so";
/// What to do where some of the files were not judged.
const MEASURE_REST: &str = "measure these again, whole, or leave the files out";
/// What is said where there is nothing to judge.
const NOTHING: &str = "cannot tell: no row could be judged";

fn json_of(value: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}
