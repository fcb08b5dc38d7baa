//! What a look at settings found: as lines for people, as tables, cases and SARIF for programs.

use std::fmt::Write as _;

use collcast_reports::model::{CaseOutcome, Column, Report, Status, Table, TestCase, Verdict};
use collcast_reports::sarif;
use collcast_sim::text::one_line;

use super::VERSION;
use crate::lint::{Finding, HOST, Kind, Outcome, Severity, rules};
use crate::values::plural;

impl Outcome {
    /// The tables `findings` and `looked_at`, a case for each finding, and the verdict.
    pub fn report(&self) -> Report {
        let mut report = Report::new("lint", VERSION);
        report.assumptions.clone_from(&self.notes);
        report.tables = vec![self.findings_table(), self.places_table()];
        report.cases = self.findings.iter().map(case).collect();
        report.verdict = Some(self.verdict());
        report
    }

    /// Lines as compilers write them: place, severity, what is wrong; then why, and the way out.
    pub fn lines(&self) -> String {
        let mut out = String::new();
        for finding in &self.findings {
            let (severity, rule) = (finding.severity.name(), finding.rule);
            let _ = writeln!(out, "{}: {severity}: {} [{rule}]", place(finding), one_line(&finding.what));
            let _ = writeln!(out, "    why: {}", one_line(&finding.why));
            let _ = writeln!(out, "    way out: {}", one_line(&finding.way_out));
        }
        out
    }

    /// The findings as SARIF.
    pub fn sarif(&self) -> String {
        let used = |rule: &&rules::Rule| self.findings.iter().any(|finding| finding.rule == rule.id);
        let rule = |rule: &rules::Rule| sarif::Rule {
            id: rule.id.clone(),
            why: rule.why.clone(),
            way_out: rule.way_out.clone(),
        };
        let is_file =
            |name: &str| self.looked_at.iter().all(|place| place.name != name || place.kind != Kind::Process.name());
        let found = |finding: &Finding| sarif::Found {
            is_file: is_file(&finding.place.file),
            rule: finding.rule.to_owned(),
            level: finding.severity.name(),
            message: format!("{}. {}. Way out: {}", finding.what, finding.why, finding.way_out),
            file: finding.place.file.clone(),
            line: finding.place.line,
        };
        let rules: Vec<sarif::Rule> = rules::all().iter().filter(used).map(rule).collect();
        sarif::render(VERSION, &rules, &self.findings.iter().map(found).collect::<Vec<_>>())
    }

    fn findings_table(&self) -> Table {
        let columns = [
            Column::text("file", "file"),
            Column::number("line", "line"),
            Column::text("severity", "severity"),
            Column::text("rule", "rule"),
            Column::text("what", "what"),
            Column::text("why", "why"),
            Column::text("way_out", "way out"),
        ];
        let mut table = Table::new("findings", "What is wrong", columns);
        for finding in &self.findings {
            table.push([
                finding.place.file.as_str().into(),
                finding.place.line.into(),
                finding.severity.name().into(),
                finding.rule.into(),
                finding.what.as_str().into(),
                finding.why.as_str().into(),
                finding.way_out.as_str().into(),
            ]);
        }
        table
    }

    fn places_table(&self) -> Table {
        let columns =
            [Column::text("name", "file"), Column::text("kind", "taken for"), Column::number("settings", "settings")];
        let mut table = Table::new("looked_at", "What was looked at", columns);
        table.detail = true;
        for place in &self.looked_at {
            table.push([place.name.as_str().into(), place.kind.into(), place.settings.into()]);
        }
        table
    }

    fn verdict(&self) -> Verdict {
        let [errors, warnings, notes] = [Severity::Error, Severity::Warning, Severity::Note].map(|s| self.count(s));
        let settings: usize = self.looked_at.iter().map(|place| place.settings).sum();
        let (host, files): (Vec<_>, Vec<_>) =
            self.looked_at.iter().partition(|place| place.kind == HOST && place.says.is_some());
        let host = host.iter().find_map(|place| place.says.as_deref());
        let looked =
            format!("{} in {}", plural(settings, "setting", "settings"), plural(files.len(), "place", "places"));
        let logs: Vec<&str> = files.iter().filter_map(|place| place.says.as_deref()).collect();
        let logs = (!logs.is_empty()).then(|| format!("the log of {}", one_line(&logs.join("; "))));
        // Of a machine there would be notes.
        let alone = logs.is_some() && self.findings.is_empty() && self.notes.is_empty();
        let unread = settings == 0 && self.findings.is_empty() && logs.is_none() && host.is_none();
        let mut sentence = if unread {
            format!("no setting of NCCL was found in {}", plural(self.looked_at.len(), "place", "places"))
        } else if self.findings.is_empty() {
            match logs {
                Some(logs) if settings == 0 => format!("nothing is wrong in {logs}"),
                Some(logs) => format!("nothing is wrong with {looked}, nor in {logs}"),
                None if settings == 0 => "nothing is wrong".to_owned(),
                None => format!("nothing is wrong with {looked}"),
            }
        } else {
            let counts = [(errors, "error", "errors"), (warnings, "warning", "warnings"), (notes, "note", "notes")];
            let counts: Vec<String> = counts
                .iter()
                .filter(|(count, ..)| *count > 0)
                .map(|&(count, one, many)| plural(count, one, many))
                .collect();
            let about = if files.is_empty() { String::new() } else { format!(" about {looked}") };
            format!("{}{about}", counts.join(", "))
        };
        sentence.extend(host.map(|says| format!("; {says}")));
        Verdict {
            status: match (errors, warnings) {
                (0, 0) => Status::Ok,
                (0, _) => Status::Warning,
                _ => Status::Failed,
            },
            sentence,
            confidence: match (unread, alone, &self.trust) {
                (.., Some(trust)) => format!("{} (what is said to cost time)", trust.confidence),
                (true, ..) => "none: nothing was judged".to_owned(),
                (_, true, _) => "medium: no machine says what should be in the log".to_owned(),
                _ => "high: what NCCL 2.30 and its plugins read".to_owned(),
            },
            basis: if host.is_some() { "settings as written, and files of the host" } else { "settings as written" }
                .to_owned(),
            next: match (unread, alone) {
                (true, _) => Some("an env file, nccl.conf, a script, a manifest or a log has settings".to_owned()),
                (_, true) => {
                    Some("name the machine, `-t TOPOLOGY`: NICs, channels and choices are held beside it".to_owned())
                }
                _ => None,
            },
        }
    }
}

fn place(finding: &Finding) -> String {
    let file = one_line(&finding.place.file);
    finding.place.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"))
}

fn case(finding: &Finding) -> TestCase {
    let outcome = match finding.severity {
        Severity::Error => CaseOutcome::Failed {
            kind: finding.rule.to_owned(),
            message: finding.what.clone(),
            details: format!("why: {}\nway out: {}", finding.why, finding.way_out),
        },
        Severity::Warning | Severity::Note => CaseOutcome::Noted(format!("{}; {}", finding.what, finding.way_out)),
    };
    let line = finding.place.line;
    TestCase {
        group: finding.rule.to_owned(),
        name: format!("{} {}", place(finding), finding.rule),
        outcome,
        place: line.map(|line| (finding.place.file.clone(), line)),
    }
}
