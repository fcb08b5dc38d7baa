//! Serving as a report: what users wait for, what workers do, which split is best, and when a cache pays.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_scenarios::serving::prefix::Reuse;
use collcast_scenarios::serving::summary::Percentiles;

use super::VERSION;
use crate::serve::{BreakEven, Outcome, Split};

/// How sure forecasts of serving are.
const CONFIDENCE: &str = "low: kernels and transfers were held against measurements, whole engines that serve were not";

/// Part of the requests that has to meet its objective: the level at which serving benchmarks report goodput (DistServe,
/// OSDI 2024).
const GOOD: f64 = 0.9;

fn ms(seconds: f64) -> Cell {
    Cell::float(seconds * 1e3, 2)
}

impl Outcome {
    /// The run as a report.
    pub fn report(&self) -> Report {
        let mut report = Report::new("serve", VERSION);
        report.predicted = true;
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.tables.extend([self.waits(), self.worker_table()]);
        report.tables.extend(self.reuse.map(reuse_table));
        report.tables.push(self.phase_table());
        report.extra.insert("summary".to_owned(), serde_json::to_value(self.summary).unwrap_or_default());
        report.verdict = Some(self.verdict());
        report
    }

    fn waits(&self) -> Table {
        let columns = [
            Column::text("time", "time"),
            Column::number("mean_ms", "mean ms"),
            Column::number("p50_ms", "p50 ms"),
            Column::number("p90_ms", "p90 ms"),
            Column::number("p99_ms", "p99 ms"),
        ];
        let title = format!("`{}` by {} on {}", self.model, self.fleet, self.machine);
        let mut table = Table::new("rows", title, columns);
        let summary = &self.summary;
        let mut row = |name: &str, p: &Percentiles| {
            table.push([name.into(), ms(p.mean), ms(p.p50), ms(p.p90), ms(p.p99)]);
        };
        row("to the first token (TTFT)", &summary.ttft);
        row("of it in the queue", &summary.queue);
        if self.path.is_some() {
            row("of it memory and transfer", &summary.hand_off);
        }
        row("a token after that (TPOT)", &summary.tpot);
        row("to the last token", &summary.whole);
        table
    }

    fn worker_table(&self) -> Table {
        let columns = [
            Column::text("role", "workers"),
            Column::number("workers", "count"),
            Column::number("gpus", "GPUs each"),
            Column::number("busy_percent", "busy %"),
            Column::number("cache_tokens", "cache tokens"),
            Column::number("cache_peak_percent", "most used %"),
        ];
        let mut table = Table::new("workers", "what workers do", columns);
        for row in &self.workers {
            table.push([
                row.role.into(),
                row.workers.into(),
                row.gpus.into(),
                Cell::float(row.busy * 100.0, 0),
                row.cache_tokens.into(),
                Cell::float(row.cache_peak * 100.0, 0),
            ]);
        }
        table
    }

    fn phase_table(&self) -> Table {
        let columns = [
            Column::text("request", "request"),
            Column::number("at_s", "arrives s"),
            Column::number("queue_ms", "queue ms"),
            Column::number("prefill_ms", "prefill ms"),
            Column::number("hand_off_ms", "hand-off ms"),
            Column::number("decode_ms", "decode ms"),
        ];
        let mut table = Table::new("requests", "the way of single requests, by their whole time", columns);
        for phase in &self.phases {
            let name = format!("p{}", phase.percentile);
            let at = Cell::float(phase.at, 3);
            table.push([name.into(), at, ms(phase.queue), ms(phase.prefill), ms(phase.hand_off), ms(phase.decode)]);
        }
        table.detail = true;
        table
    }

    fn verdict(&self) -> Verdict {
        let (summary, objective) = (&self.summary, &self.objective);
        let asked = [("TTFT", objective.ttft), ("TPOT", objective.tpot)];
        let asked: Vec<String> = (asked.iter().filter(|(_, most)| most.is_finite()))
            .map(|(name, most)| format!("{name} {:.0} ms", most * 1e3))
            .collect();
        let sentence = format!(
            "{:.1}% of {} requests met {}: goodput {:.2} requests/s, {:.1} tokens/s a GPU",
            summary.met * 100.0,
            summary.requests,
            asked.join(" and "),
            summary.goodput,
            summary.tokens_per_s / f64::from(self.fleet.gpus().max(1))
        );
        Verdict {
            status: if summary.met >= GOOD { Status::Ok } else { Status::Warning },
            sentence,
            confidence: CONFIDENCE.to_owned(),
            basis: "predicted".to_owned(),
            next: self.next(),
        }
    }

    /// What to change where objectives are not met: by what takes the time of those requests.
    fn next(&self) -> Option<String> {
        let (summary, objective) = (&self.summary, &self.objective);
        let advice = if summary.met >= GOOD {
            return None;
        } else if summary.ttft.p90 <= objective.ttft {
            "tokens come too slowly: a smaller --chunk, fewer requests a worker (--running), or more workers that decode"
        } else if summary.queue.p90 > summary.ttft.p90 / 2.0 {
            "requests wait for their turn: more workers that prefill, or a lower rate"
        } else if summary.hand_off.p90 > summary.ttft.p90 / 2.0 {
            "prompts wait for memory or for their cache's way: more workers that decode, or faster NICs"
        } else {
            "prompts themselves take too long: more GPUs a worker, --precision fp8, or a larger --chunk"
        };
        Some(advice.to_owned())
    }
}

/// From where the tokens of prompts came.
fn reuse_table(reuse: Reuse) -> Table {
    let columns = [
        Column::text("tier", "prompts from"),
        Column::number("tokens", "tokens"),
        Column::number("percent", "of prompts %"),
        Column::number("written", "written there tokens"),
    ];
    let mut table = Table::new("prefixes", "where the tokens of prompts came from", columns);
    let all = reuse.hits.iter().sum::<u64>() + reuse.computed;
    let percent = |tokens: u64| Cell::float(tokens as f64 * 100.0 / all.max(1) as f64, 1);
    let names = ["GPU memory", "host memory", "drives"];
    for ((name, &tokens), &written) in names.into_iter().zip(&reuse.hits).zip(&reuse.written) {
        table.push([name.into(), tokens.into(), percent(tokens), written.into()]);
    }
    table.push(["computed".into(), reuse.computed.into(), percent(reuse.computed), Cell::Missing]);
    let known = [("though a slower tier had them", reuse.recomputed)];
    for (name, tokens) in known.into_iter().filter(|(_, tokens)| *tokens > 0) {
        table.push([name.into(), tokens.into(), percent(tokens), Cell::Missing]);
    }
    table
}

impl Split {
    /// The fleets as a report, the best first.
    pub fn report(&self) -> Report {
        let mut report = Report::new("serve", VERSION);
        report.predicted = true;
        let columns = [
            Column::text("fleet", "workers"),
            Column::number("goodput", "goodput requests/s"),
            Column::number("met_percent", "met %"),
            Column::number("ttft_p50_ms", "TTFT p50 ms"),
            Column::number("ttft_p99_ms", "p99 ms"),
            Column::number("tpot_p50_ms", "TPOT p50 ms"),
            Column::number("tpot_p99_ms", "p99 ms"),
            Column::number("whole_p90_ms", "last token p90 ms"),
            Column::text("refused", "why not"),
        ];
        let mut table = Table::new("rows", "who prefills and who decodes", columns);
        for candidate in &self.candidates {
            let name = Cell::from(candidate.fleet.to_string());
            table.push(match &candidate.outcome {
                Ok(outcome) => {
                    let s = &outcome.summary;
                    let mut row = vec![name, Cell::float(s.goodput, 2), Cell::float(s.met * 100.0, 1)];
                    row.extend([s.ttft.p50, s.ttft.p99, s.tpot.p50, s.tpot.p99, s.whole.p90].map(ms));
                    row
                }
                Err(why) => {
                    let mut row = vec![name];
                    row.extend(std::iter::repeat_n(Cell::Missing, 7));
                    row.push(why.as_str().into());
                    row
                }
            });
        }
        if self.candidates.iter().all(|candidate| candidate.outcome.is_ok()) {
            super::hide(&mut table, &["refused"]);
        }
        report.tables.push(table);
        let best = self.candidates.iter().find_map(|candidate| candidate.outcome.as_ref().ok());
        if let Some(best) = best {
            report.inputs.clone_from(&best.inputs);
            report.assumptions.clone_from(&best.notes);
            report.verdict =
                Some(Verdict { sentence: format!("{}: {}", best.fleet, best.verdict().sentence), ..best.verdict() });
        }
        report
    }
}

impl BreakEven {
    fn published_table(&self) -> Table {
        let columns = [
            Column::text("what", "what"),
            Column::number("tokens", "tokens"),
            Column::number("time_ms", "ms"),
            Column::text("source", "by"),
        ];
        let mut table = Table::new("published", "published times of this model, on machines of their own", columns);
        for point in &self.published {
            let time = Cell::float(point.time_ms, 2);
            table.push([point.what.as_str().into(), point.tokens.into(), time, point.source.as_str().into()]);
        }
        table.detail = true;
        table
    }

    /// The lengths as a report.
    pub fn report(&self) -> Report {
        let mut report = Report::new("transfer", VERSION);
        report.predicted = true;
        report.assumptions.clone_from(&self.notes);
        let keys = ["host_ms", "drives_ms", "gpus_ms"];
        let mut columns = vec![
            Column::number("tokens", "tokens"),
            Column::number("bytes", "cache"),
            Column::number("recompute_ms", "recompute ms"),
        ];
        let tiers = self.tiers.iter().zip(keys);
        columns.extend(tiers.map(|((tier, way), key)| Column::number(key, format!("{tier} ({way}) ms"))));
        columns.push(Column::text("fastest", "fastest"));
        let title = format!("a cache of `{}` on {} GPUs of {}", self.model, self.tensor, self.machine);
        let mut table = Table::new("rows", title, columns);
        for length in &self.lengths {
            let mut best = ("recompute", length.recompute);
            for ((tier, _), &seconds) in self.tiers.iter().zip(&length.fetch) {
                if seconds < best.1 {
                    best = (tier, seconds);
                }
            }
            let mut row = vec![length.tokens.into(), length.bytes.into(), ms(length.recompute)];
            row.extend(length.fetch.iter().map(|&seconds| ms(seconds)));
            row.push(best.0.into());
            table.push(row);
        }
        report.tables.push(table);
        if !self.published.is_empty() {
            report.tables.push(self.published_table());
        }
        let from = |(index, (tier, _)): (usize, &(&str, &str))| match self.from(index) {
            Some(tokens) if Some(tokens) == self.lengths.first().map(|length| length.tokens) => {
                format!("{tier} at every length")
            }
            Some(tokens) => format!("{tier} from {tokens} tokens on"),
            None => format!("{tier} at no length"),
        };
        let pays: Vec<String> = self.tiers.iter().enumerate().map(from).collect();
        report.verdict = Some(Verdict {
            status: Status::Ok,
            sentence: format!("to fetch beats to recompute: {}", pays.join(", ")),
            confidence: CONFIDENCE.to_owned(),
            basis: "predicted".to_owned(),
            next: None,
        });
        report
    }
}
