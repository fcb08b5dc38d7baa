//! Sets of hosts to run next, and who may be slow.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};

use crate::health::suspects::{KNOWN, Plan};
use crate::next::{Failing, GPUS, Next, USUAL_ROUNDS, USUAL_RUNS, log_name};
use crate::values::{NAMED, few, plural};

/// Hosts that a sentence names; the table has all.
const TOLD: usize = NAMED;
/// What to do about runs that failed.
const WHY: &str = "read the logs of the runs that failed for why (NCCL_DEBUG=INFO; `dmesg`, `nvidia-smi -q`)";

impl Next {
    /// A report of nothing but this, where there are no runs. `then`: the commands to go on with.
    pub fn report(&self, then: &str) -> Report {
        let mut report = Report::new("validate", super::VERSION);
        self.add_to(&mut report, then);
        report
    }

    /// Puts tables, notes and the answer into a report of runs. What that had to say becomes a note.
    pub fn add_to(&self, report: &mut Report, then: &str) {
        if self.gpus_assumed {
            report.assumptions.push(format!("{GPUS} GPUs a host are assumed: nothing says how many; --gpus does"));
        }
        if self.left_out > 0 {
            let text = "runs are left out: they name other hosts or none, or lack the sizes of the rest";
            report.warnings.push(format!("{} {text}", self.left_out));
        }
        if self.runs > 0 {
            report.tables.push(self.suspects_table());
        }
        if !self.failing.is_empty() {
            report.tables.push(self.failed_table());
        }
        if let Plan::Run(_) = self.plan {
            report.tables.push(self.sets_table());
        }
        let earlier = report.verdict.take();
        let failed = earlier.as_ref().is_some_and(|v| v.status == Status::Failed);
        let alike = matches!(self.plan, Plan::Known { .. }) && self.named.is_empty();
        if let Some(mut verdict) = earlier.clone().filter(|_| failed && alike && self.failed == 0) {
            // All of them are slow alike.
            verdict.sentence = format!("{}; {}", verdict.sentence, self.sentence());
            report.verdict = Some(verdict);
            return;
        }
        report.assumptions.extend(earlier.as_ref().map(|v| format!("these runs: {}", v.sentence)));
        report.verdict = Some(Verdict {
            status: match () {
                () if failed => Status::Failed,
                () if alike && self.failed == 0 || self.runs + self.failed == 0 => Status::Ok,
                () => Status::Warning,
            },
            sentence: self.sentence(),
            confidence: self.confidence(earlier.is_some()),
            basis: if self.runs + self.failed == 0 { "no runs" } else { "runs over different sets of hosts" }
                .to_owned(),
            next: self.then(then, earlier.and_then(|v| v.next)),
        });
    }

    fn suspects_table(&self) -> Table {
        let columns = [
            Column::text("member", "member"),
            Column::number("chance", "chance"),
            Column::number("times", "times as long"),
            Column::number("runs_with", "runs with"),
            Column::number("runs_without", "without"),
        ];
        let mut table = Table::new("suspects", "who may be slow", columns);
        for suspect in &self.suspects {
            table.push([
                suspect.name.as_str().into(),
                Cell::float(suspect.chance, 2),
                Cell::float(suspect.times, 2),
                suspect.runs_with.into(),
                suspect.runs_without.into(),
            ]);
        }
        table
    }

    fn failed_table(&self) -> Table {
        let columns =
            [Column::text("hosts", "hosts"), Column::number("failed", "failed"), Column::number("runs", "runs")];
        let mut table = Table::new("failed_runs", "hosts whose runs failed", columns);
        for one in &self.failing {
            table.push([one.hosts.join(",").into(), one.failed.into(), one.runs.into()]);
        }
        table
    }

    /// What failed; nothing where all runs ended well.
    fn failures(&self) -> Option<String> {
        if self.failed == 0 {
            return None;
        }
        // Where no run ended well, nothing is told of any host.
        if self.runs == 0 && self.broken.is_empty() && self.failed > 1 {
            return Some(format!("all {} runs failed", self.failed));
        }
        let mut told: Vec<String> = self.failing.iter().take(TOLD).map(Failing::told).collect();
        match self.failing.len().saturating_sub(TOLD) {
            0 if told.is_empty() => {
                told.push(format!("{} failed, with no host in common", plural(self.failed, "run", "runs")));
            }
            0 => {}
            more => told.push(format!("so with {}", plural(more, "more host", "more hosts"))),
        }
        Some(told.join(", "))
    }

    fn sets_table(&self) -> Table {
        let columns = [Column::number("set", "set"), Column::text("hosts", "hosts"), Column::text("log", "log")];
        let how = if self.one_by_one { "one after the other" } else { "at the same time" };
        let mut table = Table::new("next_runs", format!("sets of hosts to run next, {how}"), columns);
        if let Plan::Run(round) = &self.plan {
            for (index, set) in round.sets.iter().enumerate() {
                let log = log_name(index + 1, round.sets.len());
                table.push([(index + 1).into(), set.join(",").into(), log.into()]);
            }
        }
        table
    }

    fn sentence(&self) -> String {
        match self.failures() {
            Some(failures) => format!("{failures}; {}", self.of_times()),
            None => self.of_times(),
        }
    }

    /// What times say.
    fn of_times(&self) -> String {
        let hosts = match self.broken.len() {
            0 => self.hosts.len().to_string(),
            broken => format!("the other {}", self.hosts.len() - broken),
        };
        let told = |(name, chance): &(String, f64)| format!("{name} ({:.0}% certain)", chance * 100.0);
        let mut slow: Vec<String> = self.named.iter().take(TOLD).map(told).collect();
        if self.named.len() > TOLD {
            slow.push(format!("and {} more", self.named.len() - TOLD));
        }
        let slow = slow.join(", ");
        let runs = plural(self.runs, "run", "runs");
        let sets = match &self.plan {
            Plan::Run(round) => plural(round.sets.len(), "set", "sets"),
            _ => String::new(),
        };
        match &self.plan {
            Plan::Known { chance } if self.named.is_empty() => {
                format!("of {hosts} hosts none is slower than the others: {:.1}% certain after {runs}", chance * 100.0)
            }
            Plan::Known { .. } => format!("known: of {hosts} hosts this is slow after {runs}: {slow}"),
            Plan::Run(_) if self.runs == 0 && self.failed > 0 => format!("to run: {sets}"),
            Plan::Run(_) if self.runs == 0 && self.one_by_one => {
                let (one, two) = USUAL_RUNS;
                format!(
                    "the {hosts} hosts are to run in {sets}; usually {one} runs say which host is slow, {two} which two"
                )
            }
            Plan::Run(_) if self.runs == 0 => {
                let (usual, most) = USUAL_ROUNDS;
                format!(
                    "the {hosts} hosts are to run in {sets}; usually {usual} rounds say who is slow, at most {most}"
                )
            }
            Plan::Run(_) if self.is_known() => {
                format!("known to be slow after {runs}: {slow}; whether others are is not certain yet; to run: {sets}")
            }
            Plan::Run(_) => {
                let so_far = if slow.is_empty() { "no host is likely slow".to_owned() } else { slow };
                format!("not certain yet after {runs}: {so_far}; to run: {sets}")
            }
            Plan::Alike if self.is_known() => {
                format!(
                    "known to be slow after {runs}: {slow}; sets of {hosts} hosts cannot show whether others are slow too"
                )
            }
            Plan::Alike => {
                let so_far = if slow.is_empty() { String::new() } else { format!("; likely slow: {slow}") };
                let these = if self.broken.is_empty() { "these " } else { "" };
                format!("no sets of {these}{hosts} hosts tell apart who of them is slow{so_far}")
            }
        }
    }

    /// Whether all that are named are slow with certainty.
    fn is_known(&self) -> bool {
        !self.named.is_empty() && self.named.iter().all(|(_, chance)| *chance >= KNOWN)
    }

    /// How sure it is. `judged`: whether a forecast or good runs said how fast these are.
    fn confidence(&self, judged: bool) -> String {
        match &self.plan {
            Plan::Known { chance } if self.named.is_empty() && !judged => format!(
                "{:.1}% certain; whether all are slow alike, a forecast (-t) or a good run (--against) says",
                chance * 100.0
            ),
            Plan::Known { chance } => format!("high: {:.1}% certain", chance * 100.0),
            Plan::Run(round) => format!("low: the next round tells {:.1} bits", round.bits),
            Plan::Alike if self.is_known() => "high for what is named; of others nothing is known".to_owned(),
            Plan::Alike => "low: sets would all be slow, or none".to_owned(),
        }
    }

    fn then(&self, then: &str, otherwise: Option<String>) -> Option<String> {
        let broken = match self.broken.len() {
            0 if self.failed == 0 => None,
            0 => Some(WHY.to_owned()),
            _ => Some(format!("leave out {}; {WHY}", few(&self.broken))),
        };
        let of_times = self.then_by_times(then, otherwise);
        match (broken, of_times) {
            (Some(broken), Some(next)) => Some(format!("{broken}; {next}")),
            (one, other) => one.or(other),
        }
    }

    fn then_by_times(&self, then: &str, otherwise: Option<String>) -> Option<String> {
        match &self.plan {
            Plan::Run(_) => Some(then.to_owned()),
            Plan::Known { .. } if self.named.is_empty() => None,
            Plan::Known { .. } => {
                let names: Vec<String> = self.named.iter().map(|(name, _)| name.clone()).collect();
                let first = format!("leave out {} and run again", few(&names));
                // The doctor says more of it.
                otherwise.filter(|next| next.starts_with(&first)).or(Some(first))
            }
            Plan::Alike => Some(
                "run each host alone and hold it against a good one (--against), or name more hosts with --host-names"
                    .to_owned(),
            ),
        }
    }
}
