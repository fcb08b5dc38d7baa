//! Recorded training steps as a report: where the time of each rank goes, the calls, launch gaps, calls that did not end.

use collcast_reports::model::{Bar, Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::doctor::Cause;
use collcast_sim::units::Bytes;

use super::VERSION;
use super::validate::{ON_OTHER_GPUS, anomalies_table};
use crate::diagnose::Anomaly;
use crate::trace::{CallRow, Judgement, Outcome, RankRow, Stuck, of_ranks};
use crate::values::in_runs;

/// Part of a step from which on what others wait for a rank is worth a word in the verdict.
const WORTH: f64 = 0.03;
/// Sizes around a slow one that tell latencies from rates: ten powers of two below it.
const OCTAVES_BELOW: u64 = 1 << 10;
/// See [`OCTAVES_BELOW`]; two above.
const OCTAVES_ABOVE: u64 = 1 << 2;
/// Calls that the verdict names.
const NAMED: usize = 1;

impl Outcome {
    /// The answer as a report, with evidence in lines where it is `for_people`.
    pub fn report(&self, for_people: bool) -> Report {
        let mut report = Report::new("trace", VERSION);
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        if !self.ranks.is_empty() {
            report.tables.push(self.rank_table());
        }
        if self.calls.is_empty() {
            // People see no empty table, and programs the key that is always there.
            report.extra.insert("calls".to_owned(), serde_json::json!([]));
        } else {
            report.tables.push(self.call_table());
        }
        if !self.anomalies.is_empty() {
            report.tables.push(anomalies_table(&self.anomalies, for_people));
        }
        if !self.stuck.is_empty() {
            report.tables.push(self.stuck_table());
        }
        if !self.gaps.is_empty() {
            report.tables.push(self.gap_table());
        }
        report.verdict = Some(self.verdict());
        report.extra.insert("recorded".to_owned(), serde_json::json!(self.kind));
        report.extra.insert("steps_marked".to_owned(), self.marked.into());
        if let Some(causes) = &self.causes {
            report.extra.insert("causes".to_owned(), serde_json::json!(causes));
        }
        report
    }

    /// What times are of.
    fn of(&self) -> &'static str {
        if self.marked { "of a step" } else { "of the whole recording" }
    }

    fn rank_table(&self) -> Table {
        let columns = [
            Column::number("rank", "rank"),
            Column::number("steps", "steps"),
            Column::number("step_ms", "ms"),
            Column::number("compute_ms", "computation"),
            Column::number("exposed_ms", "exposed").barred(Bar::OfLargest),
            Column::number("starved_ms", "not launched"),
            Column::number("queued_ms", "queued"),
            Column::number("hidden_ms", "hidden"),
            Column::number("late_ms", "others waited for it"),
            Column::number("last_percent", "came last %"),
        ];
        let title = format!("each rank, ms {}: computation, exposed, not launched and queued add up", self.of());
        let mut table = Table::new("ranks", title, columns);
        let ms = |value: f64| Cell::float(value, 3);
        for row in &self.ranks {
            table.push([
                row.rank.into(),
                row.steps.into(),
                ms(row.step_ms),
                ms(row.compute_ms),
                ms(row.exposed_ms),
                ms(row.starved_ms),
                ms(row.queued_ms),
                ms(row.hidden_ms),
                row.late_ms.map(ms).into(),
                row.last.map(|part| Cell::float(part * 100.0, 0)).into(),
            ]);
        }
        table
    }

    fn call_table(&self) -> Table {
        let columns = [
            Column::text("group", "group"),
            Column::number("ranks", "ranks"),
            Column::text("collective", "collective"),
            Column::text("dtype", "type"),
            Column::number("size_bytes", "size"),
            Column::number("calls", "calls"),
            Column::number("time_us", "us"),
            Column::number("busbw_gbps", "busbw GB/s"),
            Column::number("exposed_ms", "exposed ms").barred(Bar::OfLargest),
            Column::number("beside_percent", "beside computation %"),
            Column::number("waited_ms", "waited ms"),
            Column::number("last_rank", "last rank"),
            Column::text("forecast", "forecast"),
            Column::number("expected_us", "expected us"),
            Column::number("low_us", "low us"),
            Column::number("high_us", "high us"),
            Column::text("judgement", "is"),
            Column::number("lost_ms", "lost ms"),
        ];
        let title = format!("calls: calls, exposed, waited and lost are {}", self.of());
        let mut table = Table::new("calls", title, columns);
        let (ms, us) = (|value: f64| Cell::float(value, 3), |value: f64| Cell::float(value, 1));
        let mut rows: Vec<&CallRow> = self.calls.iter().collect();
        let weight = |row: &CallRow| row.exposed_ms.unwrap_or(row.time_us.unwrap_or(0.0) * row.calls / 1e3);
        rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        for row in rows {
            let expected = row.expected.as_ref();
            table.push([
                row.group.as_str().into(),
                (row.ranks > 0).then_some(row.ranks).into(),
                row.collective.as_str().into(),
                row.dtype.map(Cell::from).into(),
                row.size_bytes.into(),
                Cell::float(row.calls, usize::from(row.calls.fract() > 0.0)),
                row.time_us.map(us).into(),
                row.busbw_gbps.map(|busbw| Cell::float(busbw, 2)).into(),
                row.exposed_ms.map(ms).into(),
                row.beside.map(|part| Cell::float(part * 100.0, 0)).into(),
                row.waited_ms.map(ms).into(),
                row.last_rank.into(),
                match (expected, &row.not_forecast) {
                    (Some(e), _) => format!("{}/{}", e.algorithm, e.protocol).into(),
                    (None, Some(why)) => format!("none: {why}").into(),
                    (None, None) => Cell::Missing,
                },
                expected.map(|e| us(e.time_us)).into(),
                expected.map(|e| us(e.low_us)).into(),
                expected.map(|e| us(e.high_us)).into(),
                expected.map(|e| Cell::from(e.judgement.name())).into(),
                expected.map(|e| ms(e.lost_ms)).into(),
            ]);
        }
        table
    }

    fn stuck_table(&self) -> Table {
        let columns = [
            Column::text("group", "group"),
            Column::number("sequence", "call"),
            Column::text("names", "is"),
            Column::text("waiting", "ranks that wait"),
            Column::text("missing", "ranks that never came"),
            Column::text("unknown", "ranks without a file"),
        ];
        let mut table = Table::new("stuck", "calls that did not end: the first of each group, and messages", columns);
        for row in &self.stuck {
            table.push([
                row.group.as_str().into(),
                row.sequence.into(),
                row.names.join(" or ").into(),
                in_runs(&row.waiting).into(),
                in_runs(&row.missing).into(),
                in_runs(&row.unknown).into(),
            ]);
        }
        table
    }

    fn gap_table(&self) -> Table {
        let columns = [
            Column::number("rank", "rank"),
            Column::number("step", "step"),
            Column::number("at_ms", "at ms"),
            Column::number("length_us", "us"),
            Column::text("before", "before the kernel"),
        ];
        let mut table = Table::new("gaps", "longest launch gaps: the GPU idle, and nothing launched", columns);
        for gap in &self.gaps {
            table.push([
                gap.rank.into(),
                gap.step.into(),
                Cell::float(gap.at_ms, 3),
                Cell::float(gap.length_us, 1),
                gap.before.as_str().into(),
            ]);
        }
        table.detail = true;
        table
    }

    fn verdict(&self) -> Verdict {
        let mut parts = Vec::new();
        let slowest = self.ranks.iter().max_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        parts.extend(slowest.map(|row| self.step_in_words(row)));
        parts.extend(self.stuck.first().map(stuck_in_words));
        parts.extend(self.late_in_words());
        parts.extend(self.judged_in_words());
        if parts.is_empty() {
            let calls: f64 = self.calls.iter().map(|row| row.calls).sum();
            parts.push(match self.calls.len() {
                0 => "no call that was timed, and none that did not end".to_owned(),
                _ => format!("{calls:.0} timed calls of a rank, all of which ended"),
            });
        }
        let trust = self.grounds.as_ref().map(crate::confidence::Grounds::trust);
        let least = match (self.failed(), self.stuck.is_empty()) {
            (true, _) => Status::Failed,
            (false, clean) if !clean || self.unjudged() => Status::Warning,
            (false, _) => Status::Ok,
        };
        let doubt = match (self.other_gpus, self.several_gpus) {
            (true, _) => Some(ON_OTHER_GPUS),
            (false, true) => Some("low: a file has kernels of several GPUs, which count as those of one"),
            (false, false) => None,
        };
        let status = match &trust {
            _ if doubt.is_some() => Status::Warning,
            Some(trust) => trust.status,
            None => Status::Ok,
        };
        Verdict {
            status: status.max(least),
            sentence: parts.join("; "),
            confidence: match (doubt, trust) {
                (Some(doubt), _) => doubt.to_owned(),
                (None, Some(trust)) => trust.confidence,
                (None, None) => "high: counted, not forecast".to_owned(),
            },
            basis: if self.grounds.is_some() { "measured and predicted" } else { "measured" }.to_owned(),
            next: self.next(),
        }
    }

    fn step_in_words(&self, row: &RankRow) -> String {
        let what = if self.marked { "a step takes" } else { "the recording has" };
        let part = |ms: f64| 100.0 * ms / row.step_ms.max(f64::MIN_POSITIVE);
        let mut words = format!(
            "{what} {:.3} ms on rank {}, {:.3} ms ({:.0}%) of it exposed communication",
            row.step_ms,
            row.rank,
            row.exposed_ms,
            part(row.exposed_ms)
        );
        if row.starved_ms > WORTH * row.step_ms {
            words += &format!(" and {:.3} ms ({:.0}%) without a launch", row.starved_ms, part(row.starved_ms));
        }
        words
    }

    fn late_in_words(&self) -> Option<String> {
        let late = |row: &RankRow| row.late_ms.unwrap_or(0.0);
        let row = self.ranks.iter().max_by(|a, b| late(a).total_cmp(&late(b)))?;
        (late(row) > WORTH * row.step_ms)
            .then(|| format!("others wait {:.3} ms a step for rank {}", late(row), row.rank))
    }

    /// Whether calls were to be held against forecasts, and none was.
    fn unjudged(&self) -> bool {
        self.grounds.is_some() && self.calls.iter().all(|row| row.expected.is_none())
    }

    fn judged_in_words(&self) -> Option<String> {
        self.grounds.as_ref()?;
        let mut slower: Vec<_> = self.slower().collect();
        slower.sort_by(|a, b| b.1.lost_ms.total_cmp(&a.1.lost_ms));
        let lost: f64 = slower.iter().map(|(_, expected)| expected.lost_ms).sum();
        let named: Vec<String> = (slower.iter().take(NAMED))
            .map(|(row, expected)| {
                let size = row.size_bytes.map_or_else(String::new, |bytes| format!(" of {}", Bytes(bytes).about()));
                let factor = row.time_us.unwrap_or(0.0) / expected.time_us.max(f64::MIN_POSITIVE);
                format!("{}{size} over {} ranks takes {factor:.1} times what it should", row.collective, row.ranks)
            })
            .collect();
        let told = |wanted: Judgement| {
            let is = |row: &&CallRow| row.expected.as_ref().is_some_and(|e| e.judgement == wanted);
            self.calls.iter().filter(is).count()
        };
        let cause = self.cause().map_or_else(String::new, |anomaly| format!("; likely cause: {}", anomaly.kind));
        Some(match (named.first(), slower.len() - named.len(), told(Judgement::CannotTell)) {
            (Some(first), 0, _) => format!("{first}, {lost:.3} ms {}{cause}", self.of()),
            (Some(first), more, _) => format!("{first}, and {more} more are slow: {lost:.3} ms {}{cause}", self.of()),
            (None, _, 0) if self.unjudged() => "no call was judged: none has both a time and a forecast".to_owned(),
            (None, _, 0) => "no call is slower than it should be".to_owned(),
            (None, _, untold) => format!("{untold} kinds of calls are slow, or wait for ranks whose files are missing"),
        })
    }

    fn next(&self) -> Option<String> {
        if self.other_gpus {
            return Some("name the machine that it ran on with -t (collcast topo list)".to_owned());
        }
        let cannot = |row: &CallRow| row.expected.as_ref().is_some_and(|e| e.judgement == Judgement::CannotTell);
        if let Some(stuck) = self.stuck.iter().find(|stuck| !stuck.unknown.is_empty()) {
            return Some(format!("give the dumps of ranks {} too", in_runs(&stuck.unknown)));
        }
        if self.calls.iter().any(cannot) {
            return Some("give the files of all ranks, which tell slow calls from late ranks".to_owned());
        }
        if let Some(anomaly) = self.cause() {
            return Some(anomaly.suggestion.clone());
        }
        let slower = self.slower().next()?;
        let size = slower.0.size_bytes?;
        Some(format!(
            "run nccl-tests on the same GPUs over more sizes, `{}_perf -b {} -e {} -f 2`, and `collcast validate` its log: \
             sizes tell causes apart",
            slower.0.collective,
            size / OCTAVES_BELOW,
            size.saturating_mul(OCTAVES_ABOVE)
        ))
    }

    /// The cause that fits slow calls clearly best, where one does.
    fn cause(&self) -> Option<&Anomaly> {
        self.anomalies.iter().find(|anomaly| anomaly.kind != Cause::Unknown.name())
    }
}

fn stuck_in_words(stuck: &Stuck) -> String {
    let what = format!("call {} of group {} ({}) did not end", stuck.sequence, stuck.group, stuck.names.join(" or "));
    let ranks = |ranks: &[u32]| if ranks.is_empty() { None } else { Some(in_runs(ranks)) };
    if !stuck.agree {
        format!("{what}: ranks do not agree on what it is")
    } else if let Some(missing) = ranks(&stuck.missing) {
        format!("{what}: ranks {missing} never came")
    } else if let Some(idle) = ranks(&stuck.not_begun) {
        format!("{what}: ranks {idle} have not begun it, and others have ended it, which they could not without them")
    } else if let Some(other) = &stuck.crossed {
        let idle = of_ranks(&stuck.idle);
        format!(
            "{what}: it did not begin on {idle}, where {other} waits: ranks call the two groups in different orders"
        )
    } else if stuck.unknown.is_empty() && !stuck.idle.is_empty() {
        format!(
            "{what} on ranks {}, and did not begin on {}: GPUs are at something before it, or it was under way when the dumps \
             were written",
            in_runs(&stuck.waiting),
            of_ranks(&stuck.idle)
        )
    } else if stuck.unknown.is_empty() {
        let waiting = in_runs(&stuck.waiting);
        format!(
            "{what} on ranks {waiting}, though all ranks came: the network or a GPU hangs, or it was under way when the \
             dumps were written"
        )
    } else {
        format!("{what}: ranks {} wait in it", in_runs(&stuck.waiting))
    }
}
