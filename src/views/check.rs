//! What moved since the baseline: what changed and how much of it explains, the differences, the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use collcast_reports::model::{CaseOutcome, Cell, Column, Input, Report, Status, Table, TestCase, Verdict};
use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::nccl::Version;

use super::{VERSION, hide};
use crate::check::{Asked, Cause, Changed, Finding, Kind, Outcome, Picked, Tolerance, digits, signed};
use crate::confidence::Trust;
use crate::values::plural;

/// Machines that a line names.
const NAMED: usize = 4;

impl Outcome {
    /// The tables `changed` and `findings`; for people none where there is no finding, and those that differ in the
    /// version only are one row.
    pub fn report(&self, for_people: bool) -> Report {
        let mut report = Report::new("check", VERSION);
        report.predicted = true;
        report.inputs = self.suite.iter().chain(&self.baseline).chain(&self.sources).cloned().collect();
        report.assumptions = self.assumptions();
        report.warnings.clone_from(&self.warnings);
        report.verdict = Some(self.verdict());
        report.cases = self.cases();
        report.extra.insert("overall".to_owned(), self.overall());
        if !for_people || !self.findings.is_empty() {
            report.tables =
                vec![changed_table(&self.changed, &self.findings), findings_table(&self.findings, for_people)];
        }
        report
    }

    /// The report as a page has it: with numbers for its pictures, and without what programs alone read.
    pub fn page(&self) -> Report {
        let mut report = self.report(false);
        let keys = [&NUMBERS[..], &NAMES].concat();
        report.tables.iter_mut().filter(|table| table.name == "findings").for_each(|table| hide(table, &keys));
        report
    }

    fn assumptions(&self) -> Vec<String> {
        let percent = |fraction: f64| digits(fraction * 100.0);
        let Tolerance { time, choice, error } = self.tolerance;
        let mut lines = vec![
            format!(
                "baseline {} of collcast {}: {}",
                path(self.baseline.as_ref()).unwrap_or("given"),
                self.accepted_by,
                self.accepted
            ),
            format!(
                "tolerances: times {}%, loss of a changed choice {}%, points of measured error {}%{}",
                percent(time),
                percent(choice),
                percent(error),
                if self.strict { "; strict: everything that is reported fails" } else { "" }
            ),
        ];
        let versions = self.asked.iter().flat_map(|asked| &asked.versions).filter_map(|text| text.parse().ok());
        let versions: BTreeSet<Version> = versions.collect();
        lines.extend(versions.iter().filter_map(|version| version.covered().1));
        lines
    }

    /// One case for each version and collective of a machine, for each set of measurements, and for what only the
    /// baseline has.
    fn cases(&self) -> Vec<TestCase> {
        let mut cases = Vec::new();
        for asked in &self.asked {
            let name = &asked.machine;
            for version in &asked.versions {
                for collective in &asked.collectives {
                    let about = self.findings.iter().filter(|f| {
                        let of_version = f.nccl.as_ref().is_none_or(|nccl| nccl.after == *version);
                        let of_collective = f.collective.is_none_or(|c| c == *collective);
                        f.machine == *name && of_version && of_collective && !f.is_of_measurements()
                    });
                    cases.push(TestCase {
                        group: name.clone(),
                        name: format!("{name}, NCCL {version}, {collective}"),
                        outcome: came_of(&about.collect::<Vec<_>>()),
                        place: None,
                    });
                }
            }
        }
        for name in &self.measured {
            let about = self.findings.iter().filter(|f| f.machine == *name && f.is_of_measurements());
            cases.push(TestCase {
                group: "measured".to_owned(),
                name: format!("measured {name}"),
                outcome: came_of(&about.collect::<Vec<_>>()),
                place: None,
            });
        }
        let gone = self.findings.iter().filter(|f| f.kind() == Kind::Removed && !self.asks(f));
        cases.extend(gone.map(|f| {
            let what = if f.is_of_measurements() { "measured " } else { "" };
            let (name, outcome) = (format!("{what}{}", f.place().join(", ")), came_of(&[f]));
            TestCase { group: f.machine.clone(), name, outcome, place: None }
        }));
        cases
    }

    /// Whether the suite asks for what a finding is about.
    fn asks(&self, finding: &Finding) -> bool {
        let of_machine = |asked: &Asked| {
            asked.machine == finding.machine
                && finding.nccl.as_ref().is_none_or(|nccl| asked.versions.contains(&nccl.after))
                && finding.collective.is_none_or(|collective| asked.collectives.contains(&collective))
        };
        match finding.is_of_measurements() {
            true => self.measured.contains(&finding.machine),
            false => self.asked.iter().any(of_machine),
        }
    }

    fn overall(&self) -> serde_json::Value {
        let count = |kind: Kind| self.findings.iter().filter(|f| f.kind() == kind).count();
        serde_json::json!({
            "machines": self.asked.len(),
            "entries": self.today.counts().entries,
            "findings": self.findings.len(),
            "failed": self.findings.iter().filter(|f| f.failed).count(),
            "choices_changed": count(Kind::Choice),
            "slower": count(Kind::Slower),
            "faster": count(Kind::Faster),
            "model_moved": count(Kind::ModelMoved),
            "errors_changed": count(Kind::Error),
            "new": count(Kind::New),
            "removed": count(Kind::Removed),
            "time_tolerance": self.tolerance.time,
            "choice_tolerance": self.tolerance.choice,
            "error_tolerance": self.tolerance.error,
            "strict": self.strict,
        })
    }

    fn verdict(&self) -> Verdict {
        let failed = self.findings.iter().filter(|f| f.failed).count();
        let Trust { confidence, basis, .. } = self.grounds.trust();
        let told = self.findings.iter().filter(|f| !matches!(f.kind(), Kind::New | Kind::Removed));
        let (told, untold): (Vec<&Finding>, Vec<&Finding>) = told.partition(|f| f.causes.len() == 1);
        let suite = path(self.suite.as_ref()).unwrap_or("SUITE");
        Verdict {
            status: match (failed, self.findings.is_empty()) {
                (0, true) => Status::Ok,
                (0, false) => Status::Warning,
                _ => Status::Failed,
            },
            sentence: self.sentence(failed),
            confidence: match (told.len(), untold.len()) {
                (told, untold) if untold > 0 && self.grounds.beyond.is_empty() => {
                    format!("medium: {told} of {} have one cause", told + untold)
                }
                _ => confidence,
            },
            basis,
            next: (!self.findings.is_empty()).then(|| {
                if self.findings.iter().all(Finding::is_beyond_limit) {
                    return format!("find why forecasts are off, or raise max_error in {suite}");
                }
                let own = crate::check::baseline_of(Path::new(suite));
                let other = path(self.baseline.as_ref()).filter(|path| Path::new(path) != own);
                let baseline = other.map_or_else(String::new, |path| format!(" --baseline {path}"));
                let all_gone = self.findings.iter().filter(|f| f.failed).all(|f| f.kind() == Kind::Removed);
                let else_do = match () {
                    () if !self.is_compared() => "name this suite's baseline with --baseline",
                    () if all_gone && failed > 0 => "put back what is gone",
                    () => "undo the cause",
                };
                format!("accept it with `collcast check {suite}{baseline} --update`, or {else_do}")
            }),
        }
    }

    /// Whether something could be compared, or nothing is accepted yet.
    fn is_compared(&self) -> bool {
        self.compared > 0 || self.baseline.is_none()
    }

    fn sentence(&self, failed: usize) -> String {
        let mut all = plural(self.today.counts().entries, "entry", "entries");
        if self.refused > 0 {
            all += &format!(" (NCCL refuses calls of {})", self.refused);
        }
        let differences = plural(self.findings.len(), "difference", "differences");
        let named = |finding: &Finding| format!("{}: {finding}", finding.place().join(" "));
        match self.findings.first() {
            None => format!("no choice and no time beyond tolerance changed in {all}{}", self.moved_inputs()),
            Some(first) if !self.is_compared() => {
                let what = "nothing was compared: the suite and the baseline have no entry in common";
                format!("{what}; {differences} in {all}, the first in {}", named(first))
            }
            Some(first) if failed > 0 => {
                let mut by: BTreeMap<&str, usize> = BTreeMap::new();
                for finding in self.findings.iter().filter(|f| f.failed && !f.causes.is_empty()) {
                    let one = if let [one] = finding.causes.as_slice() { one.name() } else { "several causes" };
                    *by.entry(one).or_default() += 1;
                }
                let by: Vec<String> = by.iter().map(|(cause, count)| format!("{count} by {cause}")).collect();
                let by = if by.is_empty() { String::new() } else { format!(" ({})", by.join("; ")) };
                format!("{failed} of {differences} in {all} fail{by}, the first in {}", named(first))
            }
            Some(first) => {
                format!("nothing got worse; {differences} in {all}, the first in {}", named(first))
            }
        }
    }

    /// The versions and settings that changed and moved nothing: what is not modelled among them.
    fn moved_inputs(&self) -> String {
        let of = |cause: Cause, name: &str| {
            let changed = self.changed.iter().filter(|changed| changed.what.cause() == cause);
            let mut words: Vec<String> = changed.map(|changed| changed.what.to_string()).collect();
            words.dedup();
            (!words.is_empty()).then(|| format!(", though {name} did: {}", words.join("; ")))
        };
        [(Cause::Version, "the version of NCCL"), (Cause::Settings, "settings")]
            .into_iter()
            .filter_map(|(cause, name)| of(cause, name))
            .collect()
    }
}

fn path(input: Option<&Input>) -> Option<&str> {
    input?.path.as_deref()
}

/// What came of a case, by the findings about it.
fn came_of(about: &[&Finding]) -> CaseOutcome {
    match (about.first(), about.iter().filter(|f| f.failed).count()) {
        (None, _) => CaseOutcome::Passed,
        (Some(first), 0) if first.is_all_new() => CaseOutcome::Skipped("not in the baseline yet".to_owned()),
        (Some(_), 0) => CaseOutcome::Noted(about.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        (Some(first), failed) => {
            let more = if failed > 1 { format!("; {} more fail here", failed - 1) } else { String::new() };
            CaseOutcome::Failed {
                kind: first.kind().name().to_owned(),
                message: format!("{first}{more}"),
                details: about.iter().map(|f| format!("{f}\n")).collect(),
            }
        }
    }
}

/// What changed, with the machines that it changed on and how much it explains.
fn changed_table(changed: &[Changed], findings: &[Finding]) -> Table {
    let columns = [
        Column::text("input", "what changed"),
        Column::text("from_to", "from -> to"),
        Column::text("machines", "machines"),
        Column::number("caused", "caused"),
        Column::number("failed", "of these fail"),
    ];
    let mut table = Table::new("changed", "what changed since the baseline", columns);
    let mut groups: BTreeMap<(Cause, String), BTreeSet<&str>> = BTreeMap::new();
    for change in changed {
        groups.entry((change.what.cause(), change.what.to_string())).or_default().insert(&change.machine);
    }
    for ((cause, what), machines) in groups {
        let caused = || findings.iter().filter(|f| f.causes == [cause] && machines.contains(f.machine.as_str()));
        let more = machines.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named: Vec<&str> = machines.iter().copied().take(NAMED).collect();
        table.push([
            cause.name().into(),
            what.into(),
            format!("{}{more}", named.join(", ")).into(),
            caused().count().into(),
            caused().filter(|f| f.failed).count().into(),
        ]);
    }
    table
}

/// Findings, each with its versions; for people, those that differ in the version only are together.
fn rows(findings: &[Finding], for_people: bool) -> Vec<(&Finding, String)> {
    let mut rows: Vec<(&Finding, String)> = Vec::new();
    for finding in findings {
        let versions = finding.nccl.as_ref().map_or_else(String::new, ToString::to_string);
        let alike = |row: &&mut (&Finding, String)| Finding { nccl: finding.nccl.clone(), ..row.0.clone() } == *finding;
        match rows.iter_mut().find(alike).filter(|_| for_people) {
            Some(row) => row.1 = format!("{}, {versions}", row.1),
            None => rows.push((finding, versions)),
        }
    }
    rows
}

fn findings_table(findings: &[Finding], for_people: bool) -> Table {
    let mut columns = vec![
        Column::text("verdict", "verdict"),
        Column::text("kind", "what"),
        Column::text("machine", "machine"),
        Column::text("nccl", "NCCL"),
        Column::text("collective", "collective"),
        Column::text("size", "size"),
        Column::text("before", "before"),
        Column::text("after", "after"),
        Column::number("change", if for_people { "change" } else { "change of time (1 is 100%)" }),
        Column::text("cause", "cause"),
    ];
    if !for_people {
        columns.extend(NUMBERS.map(|key| Column::number(key, key)));
        columns.extend(NAMES.map(|key| Column::text(key, key)));
    }
    let title = "differences from the baseline; the change of a choice is in its predicted time";
    let mut table = Table::new("findings", title, columns);
    for (finding, versions) in rows(findings, for_people) {
        // Programs read a text in each: a null was never promised.
        let text = |text: String| if for_people && text.is_empty() { Cell::Missing } else { text.into() };
        let change = |change: f64| match for_people {
            true if finding.kind() == Kind::Error => format!("{:+.1} points", change * 100.0).into(),
            true => signed(change).into(),
            false => Cell::float(change, 4),
        };
        let [before, after] = finding.values().unwrap_or_default();
        let mut cells = vec![
            if finding.failed { "failed" } else { "reported" }.into(),
            finding.kind().name().into(),
            finding.machine.as_str().into(),
            text(versions),
            text(finding.collective.map(Collective::name).unwrap_or_default().to_owned()),
            text(finding.sizes()),
            text(before),
            text(after),
            finding.change().map(change).into(),
            match finding.kind() {
                Kind::New | Kind::Removed if finding.causes.is_empty() => text(String::new()),
                _ => text(finding.cause()),
            },
        ];
        if !for_people {
            cells.extend(parts(finding));
        }
        table.push(cells);
    }
    table
}

/// Keys of findings that programs alone read: numbers, and names.
const NUMBERS: [&str; 6] = ["from_bytes", "to_bytes", "before_us", "after_us", "channels_before", "channels_after"];
const NAMES: [&str; 4] = ["algorithm_before", "algorithm_after", "protocol_before", "protocol_after"];

/// The cells of [`NUMBERS`] and [`NAMES`].
fn parts(finding: &Finding) -> impl Iterator<Item = Cell> {
    let sizes = finding.bytes().map_or([Cell::Missing, Cell::Missing], |bytes| bytes.map(Cell::from));
    let times = finding.times_us().map_or([Cell::Missing, Cell::Missing], |us| us.map(|us| Cell::float(us, 2)));
    let runs = finding.picked().map(|picked| {
        picked.map(|picked| match picked {
            Picked::Runs { algorithm, protocol, channels } => Some((algorithm, protocol, channels)),
            Picked::Fails => None,
        })
    });
    let [before, after] = runs.unwrap_or_default();
    let of = |cell: fn((Algorithm, Protocol, u32)) -> Cell| [before.map(cell).into(), after.map(cell).into()];
    let (channels, algorithms, protocols) = (of(|r| r.2.into()), of(|r| r.0.name().into()), of(|r| r.1.name().into()));
    [sizes, times, channels, algorithms, protocols].into_iter().flatten()
}
