//! Collects the findings of one place.

use super::finding::Finding;
use super::rules::Rule;
use super::setting::Place;

/// Most findings of one place: whoever has more mends these first, and no file takes long.
const FINDINGS_MAX: usize = 1000;

/// Findings of one place.
pub(super) struct Found<'f> {
    file: String,
    findings: &'f mut Vec<Finding>,
    /// How many there were before.
    before: usize,
}

impl<'f> Found<'f> {
    /// Findings of a file, after those of others.
    pub(super) fn of(file: impl Into<String>, findings: &'f mut Vec<Finding>) -> Self {
        Self { file: file.into(), before: findings.len(), findings }
    }

    /// Whether nothing more is taken.
    pub(super) fn is_full(&self) -> bool {
        self.findings.len() >= self.before + FINDINGS_MAX
    }

    /// Whether a rule found something in a line.
    pub(super) fn has(&self, rule: &str, line: Option<u64>) -> bool {
        let is = |one: &Finding| one.rule == rule && one.place.line == line && one.place.file == self.file;
        self.findings.iter().any(is)
    }

    /// Adds what a rule found; the same rule says the same of a line once.
    pub(super) fn add(&mut self, rule: &str, line: Option<u64>, what: impl Into<String>) {
        self.add_with(rule, line, what, None);
    }

    /// The same with a way out of its own.
    pub(super) fn add_with(&mut self, rule: &str, line: Option<u64>, what: impl Into<String>, way_out: Option<String>) {
        let Some(rule) = Rule::of(rule).filter(|_| !self.is_full()) else { return };
        let finding = Finding {
            rule: &rule.id,
            severity: rule.severity,
            place: Place { file: self.file.clone(), line },
            what: what.into(),
            why: rule.why.clone(),
            way_out: way_out.unwrap_or_else(|| rule.way_out.clone()),
        };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}
