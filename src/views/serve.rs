//! Serving as a report: what users wait for, what workers do, which split is best, and when a cache pays.

use collcast_reports::model::{Bar, Cell, Column, Report, Status, Table, Verdict};
use collcast_scenarios::serving::prefix::Reuse;
use collcast_scenarios::serving::summary::{GOOD, Objective, Percentiles};

use super::VERSION;
use crate::plan::{each_once, told};
use crate::serve::{BreakEven, Candidate, Compared, Fleet, Outcome, Row, Sized, Smallest, Split};

/// How sure forecasts of serving are.
const CONFIDENCE: &str = "low: kernels and transfers were held against measurements, whole engines that serve were not";
/// What they rest on.
const BASIS: &str = "kernels by measured shapes of this kind of GPU; calls and transfers by the profile's constants";

fn ms(seconds: f64) -> Cell {
    Cell::float(seconds * 1e3, 2)
}

/// A part of requests in percent, to a tenth: what is not met never reads as if it were.
fn percent(part: f64) -> f64 {
    (part * 1000.0 + 1e-9).floor() / 10.0
}

/// Part of a worker's cache from which on requests wait for memory.
const FULL: f64 = 0.95;

impl Outcome {
    /// The run as a report.
    pub fn report(&self) -> Report {
        let mut report = Report::new("serve", VERSION);
        report.predicted = true;
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
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
            Column::number("p99_ms", "p99 ms").barred(Bar::OfLargest),
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
            Column::number("busy_percent", "busy %").barred(Bar::OfHundred),
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
        // Requests come at random: in a short time more, or fewer, than the rate says.
        let over = match summary.goodput {
            0.0 => String::new(),
            goodput => format!(" over {:.0} s", summary.requests as f64 * summary.met / goodput),
        };
        let sentence = format!(
            "{:.1}% of {} requests met {}: goodput {:.2} requests/s{over}, {:.1} tokens/s a GPU",
            percent(summary.met),
            summary.requests,
            asked(objective),
            summary.goodput,
            summary.tokens_per_s / f64::from(self.fleet.gpus().max(1))
        );
        Verdict {
            status: if objective.held(summary) == [true; 2] { Status::Ok } else { Status::Warning },
            sentence,
            confidence: CONFIDENCE.to_owned(),
            basis: BASIS.to_owned(),
            next: self.next(),
        }
    }

    /// What to change where objectives are not met.
    fn next(&self) -> Option<String> {
        let (cause, advice) = self.short()?;
        Some(format!("{cause}: {advice}"))
    }

    /// Which objectives too few requests met.
    fn misses(&self) -> Option<String> {
        let held = self.objective.held(&self.summary);
        let missed = ["TTFT", "TPOT"].into_iter().enumerate().filter(|(which, _)| !held[*which]);
        let missed: Vec<String> = missed
            .map(|(which, name)| {
                let met = percent(self.summary.met_each[which]);
                format!("{met:.1}% meet {name}, not {}%", exact(self.objective.parts[which] * 100.0))
            })
            .collect();
        (!missed.is_empty()).then(|| missed.join("; "))
    }

    /// What takes the time of requests that do not meet their objective, and what to change.
    fn short(&self) -> Option<(String, String)> {
        let (summary, objective, alone) = (&self.summary, &self.objective, &self.alone);
        let [first, tokens] = objective.held(summary);
        if first && tokens {
            return None;
        }
        let faster = |which: usize| match &alone.faster[which][..] {
            [] => "a looser objective, or another machine".to_owned(),
            options => options.join(", or "),
        };
        let of = |cause: &str, advice: &str| Some((cause.to_owned(), advice.to_owned()));
        let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let aggregated = matches!(self.fleet, Fleet::Aggregated(_));
        let more = if aggregated { "more workers" } else { "more workers that prefill" };
        if !first && alone.seconds[0] > objective.ttft {
            let cause = format!("a prompt of {} tokens alone takes {}", alone.tokens, ms(alone.seconds[0]));
            Some((cause, faster(0)))
        } else if !tokens && alone.seconds[1] > objective.tpot {
            Some((format!("a token alone takes {}", ms(alone.seconds[1])), faster(1)))
        } else if first && aggregated {
            of("tokens come too slowly", "a smaller --chunk, fewer requests a worker (--running), or more workers")
        } else if first {
            of("tokens come too slowly", "fewer requests a worker (--running), or more workers that decode")
        } else if summary.hand_off.p90 > objective.ttft / 2.0 {
            // Prompts that no decoder takes fill the memory of who prefills, and others queue for it.
            of("prompts wait for memory or for their cache's way", "more workers that decode, or faster NICs")
        } else if summary.queue.p90 > summary.ttft.p90 / 2.0 {
            if self.workers.first().is_some_and(|takes| takes.cache_peak > FULL) {
                let advice = [&alone.roomier[..], &[format!("{more}, or shorter requests")]].concat().join(", or ");
                return of("requests wait for memory", &advice);
            }
            of("requests wait for their turn", &format!("{more}, or a lower rate"))
        } else {
            let smaller = if aggregated { "" } else { ", or a smaller --chunk" };
            of("prompts wait for others in their step", &format!("{more}{smaller}"))
        }
    }
}

/// A number as it was given: to a thousandth of a microsecond.
fn exact(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// What is asked for, in words.
fn asked(objective: &Objective) -> String {
    let limits = [("TTFT", objective.ttft), ("TPOT", objective.tpot)].into_iter().zip(objective.parts);
    let asked: Vec<String> = (limits.filter(|((_, most), _)| most.is_finite()))
        .map(|((name, most), part)| {
            let percentile = if part == GOOD { String::new() } else { format!(" at p{}", exact(part * 100.0)) };
            format!("{name} {} ms{percentile}", exact(most * 1e3))
        })
        .collect();
    asked.join(" and ")
}

/// From where the tokens of prompts came.
fn reuse_table(reuse: Reuse) -> Table {
    let columns = [
        Column::text("tier", "prompts from"),
        Column::number("tokens", "tokens"),
        Column::number("percent", "of prompts %"),
        Column::number("written", "tokens stored there"),
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
            Column::number("met_percent", "met %").barred(Bar::OfHundred),
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
                    let mut row = vec![name, Cell::float(s.goodput, 2), Cell::float(percent(s.met), 1)];
                    row.extend([s.ttft.p50, s.ttft.p99, s.tpot.p50, s.tpot.p99, s.whole.p90].map(ms));
                    row.extend(outcome.misses().map(Cell::from));
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
        let fails = |candidate: &Candidate| candidate.outcome.as_ref().map_or(true, |run| run.misses().is_some());
        if !self.candidates.iter().any(fails) {
            super::hide(&mut table, &["refused"]);
        }
        report.tables.push(table);
        let best = self.candidates.iter().find_map(|candidate| candidate.outcome.as_ref().ok());
        if let Some(best) = best {
            report.inputs.clone_from(&best.inputs);
            report.assumptions.clone_from(&best.notes);
            report.warnings.clone_from(&best.warnings);
            report.verdict =
                Some(Verdict { sentence: format!("{}: {}", best.fleet, best.verdict().sentence), ..best.verdict() });
        }
        report
    }
}

/// Fleets of an answer that are listed at most.
const LISTED: usize = 12;

impl Smallest {
    /// The fleets as a report: the answer first, then why each other is not it.
    pub fn report(&self) -> Report {
        let mut report = Report::new("serve", VERSION);
        report.predicted = true;
        let columns = [
            Column::text("fleet", "workers"),
            Column::number("chunk", "--chunk"),
            Column::number("gpus", "GPUs"),
            Column::number("ttft_met_percent", "TTFT met %"),
            Column::number("tpot_met_percent", "TPOT met %"),
            Column::number("ttft_p50_ms", "TTFT p50 ms"),
            Column::number("ttft_p99_ms", "p99 ms"),
            Column::number("tpot_p50_ms", "TPOT p50 ms"),
            Column::number("tpot_p99_ms", "p99 ms"),
            Column::text("why", "why not"),
        ];
        let mut table = Table::new("rows", format!("fleets of at most {} GPUs, as simulated", self.most), columns);
        for sized in self.fleets.iter().take(LISTED) {
            let fleet = sized.candidate.fleet;
            let mut row = vec![Cell::from(fleet.to_string()), sized.chunk.into(), fleet.gpus().into()];
            match &sized.candidate.outcome {
                Ok(run) => {
                    let s = &run.summary;
                    row.extend(s.met_each.map(|met| Cell::float(percent(met), 1)));
                    row.extend([s.ttft.p50, s.ttft.p99, s.tpot.p50, s.tpot.p99].map(ms));
                    row.push(self.why(sized).into());
                }
                Err(why) => {
                    row.extend(std::iter::repeat_n(Cell::Missing, 6));
                    row.push(why.as_str().into());
                }
            }
            table.push(row);
        }
        report.tables.extend([table, self.layout_table()]);
        let first = self.fleets.iter().find_map(|sized| sized.candidate.outcome.as_ref().ok());
        if let Some(first) = first {
            report.inputs.clone_from(&first.inputs);
            report.assumptions.clone_from(&first.notes);
            report.warnings.clone_from(&first.warnings);
        }
        let (run, all) = (self.fleets.len(), self.layouts.len());
        report.assumptions.push(format!("{all} layouts of a worker were bounded, and {run} fleets of them run"));
        if self.cut {
            report.assumptions.push("larger fleets were not run: the search ended at its limit of runs".to_owned());
        }
        report.verdict = Some(self.verdict());
        report
    }

    /// Why a fleet is not the answer.
    fn why(&self, sized: &Sized) -> String {
        let first = self.fleets.first();
        let best = first.map(|best| best.candidate.fleet);
        match (&sized.candidate.outcome, sized.meets) {
            (Ok(run), false) => run.short().map_or_else(String::new, |(cause, _)| cause),
            (_, true) if first == Some(sized) => String::new(),
            (_, true) if Some(sized.candidate.fleet.gpus()) > best.map(|best| best.gpus()) => "more GPUs".to_owned(),
            _ => "meets it too; last tokens come later".to_owned(),
        }
    }

    fn layout_table(&self) -> Table {
        let columns = [
            Column::text("role", "worker"),
            Column::text("layout", "layout"),
            Column::number("chunk", "--chunk"),
            Column::number("least", "at least"),
            Column::number("gpus", "GPUs"),
            Column::text("why", "why none is enough"),
        ];
        let mut table = Table::new("layouts", "workers that the load needs at least, before any run", columns);
        for layout in &self.layouts {
            let mut row: Vec<Cell> = vec![layout.role.into(), layout.worker.to_string().into(), layout.chunk.into()];
            match &layout.least {
                Ok(least) => {
                    let gpus = u64::from(*least) * u64::from(layout.worker.gpus());
                    row.extend([(*least).into(), gpus.into(), Cell::Missing]);
                }
                Err(why) => row.extend([Cell::Missing, Cell::Missing, why.as_str().into()]),
            }
            table.push(row);
        }
        if self.layouts.iter().all(|layout| layout.least.is_ok()) {
            super::hide(&mut table, &["why"]);
        }
        table.detail = true;
        table
    }

    fn verdict(&self) -> Verdict {
        let asked = asked(&self.objective);
        let met = self.fleets.first().filter(|sized| sized.meets);
        let met = met.and_then(|sized| Some((sized.candidate.fleet, sized, sized.candidate.outcome.as_ref().ok()?)));
        let (status, sentence, next) = match met {
            Some((fleet, sized, run)) => {
                let of_kind = |fleet: &Fleet| matches!(fleet, Fleet::Aggregated(_));
                let other = (self.fleets.iter().filter(|sized| sized.meets))
                    .find(|sized| of_kind(&sized.candidate.fleet) != of_kind(&fleet));
                let other = match (other, of_kind(&fleet)) {
                    (Some(other), _) => format!("; {} needs {}", other.candidate.fleet, other.candidate.fleet.gpus()),
                    (None, true) if self.cut => "; the search ended before a disaggregated one was found".to_owned(),
                    (None, false) if self.cut => "; the search ended before an aggregated one was found".to_owned(),
                    (None, true) => "; no disaggregated fleet does".to_owned(),
                    (None, false) => "; no aggregated fleet does".to_owned(),
                };
                let sentence = format!(
                    "{fleet} with --chunk {} is the smallest fleet: {} GPUs meet {asked}, goodput {:.2} requests/s{other}",
                    sized.chunk,
                    fleet.gpus(),
                    run.summary.goodput
                );
                (Status::Ok, sentence, None)
            }
            None => {
                let mut sentence = format!("no fleet of at most {} GPUs meets {asked}", self.most);
                if let Some(nearest) = self.fleets.first() {
                    let met = nearest.candidate.outcome.as_ref().map_or(0.0, |run| percent(run.summary.met));
                    sentence += &format!("; {} comes nearest with {met:.1}% of requests", nearest.candidate.fleet);
                }
                let lower = self.lower.map_or_else(String::new, |precision| format!("--precision {precision} or "));
                let next = format!("allow more GPUs, loosen the objective, or take {lower}another machine");
                (Status::Failed, sentence, Some(next))
            }
        };
        Verdict { status, sentence, confidence: CONFIDENCE.to_owned(), basis: BASIS.to_owned(), next }
    }
}

impl Row {
    /// Its fleet, with the steps that it was found with.
    fn fleet_of(&self, run: &Outcome) -> String {
        let chunk = self.chunk.map_or_else(String::new, |chunk| format!(" with --chunk {chunk}"));
        format!("{}{chunk}", run.fleet)
    }
}

impl Compared {
    /// The machines as a report, one a row.
    pub fn report(&self) -> Report {
        let mut report = Report::new("serve", VERSION);
        report.predicted = true;
        let columns = [
            Column::text("machine", "machine"),
            Column::text("fleet", "workers"),
            Column::number("chunk", "--chunk"),
            Column::number("gpus", "GPUs"),
            Column::number("met_percent", "met %").barred(Bar::OfHundred),
            Column::number("ttft_p50_ms", "TTFT p50 ms"),
            Column::number("ttft_p99_ms", "p99 ms"),
            Column::number("ttft_change_percent", "p99 change %"),
            Column::number("hand_off_p50_ms", "hand-off p50 ms"),
            Column::number("tpot_p50_ms", "TPOT p50 ms"),
            Column::number("tpot_p99_ms", "p99 ms"),
            Column::number("cost", "cost of 1M tokens"),
            Column::text("refused", "why not"),
        ];
        let title = if self.smallest { "the smallest fleet on each machine" } else { "the same fleet on each machine" };
        let mut table = Table::new("rows", title, columns);
        let base = self.rows.first().and_then(|row| row.outcome.as_ref().ok()).map(|run| run.summary.ttft.p99);
        for (index, row) in self.rows.iter().enumerate() {
            let name = Cell::from(row.name.as_str());
            table.push(match &row.outcome {
                Ok(run) => {
                    let s = &run.summary;
                    let change = base.filter(|base| index > 0 && *base > 0.0).map(|base| s.ttft.p99 / base - 1.0);
                    let change = change.map_or(Cell::Missing, |change| Cell::float(change * 100.0, 1));
                    let hand_off = run.path.as_ref().map_or(Cell::Missing, |_| ms(s.hand_off.p50));
                    let chunk = row.chunk.map_or(Cell::Missing, Cell::from);
                    let mut cells = vec![name, run.fleet.to_string().into(), chunk, run.fleet.gpus().into()];
                    cells.extend([Cell::float(percent(s.met), 1), ms(s.ttft.p50), ms(s.ttft.p99), change, hand_off]);
                    cells.extend([s.tpot.p50, s.tpot.p99].map(ms));
                    cells.push(row.cost().map_or(Cell::Missing, |cost| Cell::float(cost, 2)));
                    cells.extend(run.misses().map(Cell::from));
                    cells
                }
                Err(why) => {
                    let mut cells = vec![name];
                    cells.extend(std::iter::repeat_n(Cell::Missing, 11));
                    cells.push(why.as_str().into());
                    cells
                }
            });
        }
        let ran = || self.rows.iter().filter_map(|row| Some((row.name.as_str(), row.outcome.as_ref().ok()?)));
        let mut hidden = Vec::new();
        hidden.extend((!self.smallest).then_some("chunk"));
        hidden.extend(ran().all(|(_, run)| run.path.is_none()).then_some("hand_off_p50_ms"));
        hidden.extend(self.rows.iter().all(|row| row.price.is_none()).then_some("cost"));
        let good = ran().filter(|(_, run)| run.misses().is_none()).count();
        hidden.extend((good == self.rows.len()).then_some("refused"));
        super::hide(&mut table, &hidden);
        report.tables.push(table);
        report.inputs = each_once(ran().flat_map(|(_, run)| run.inputs.iter().cloned()));
        let all = |of: fn(&Outcome) -> &[String]| told(&ran().map(|(name, run)| (name, of(run))).collect::<Vec<_>>());
        (report.assumptions, report.warnings) = (all(|run| &run.notes), all(|run| &run.warnings));
        report.verdict = Some(self.verdict());
        report
    }

    /// Of one machine what it serves and costs. Of several the best that meets the objective: by cost, then by GPUs where fleets
    /// differ, then by the wait at p99.
    fn verdict(&self) -> Verdict {
        let missed = |run: &Outcome| run.objective.missed(&run.summary);
        let key = |row: &Row, run: &Outcome| {
            let gpus = if self.smallest { f64::from(run.fleet.gpus()) } else { 0.0 };
            [missed(run), row.cost().unwrap_or(0.0), gpus, run.summary.ttft.p99]
        };
        let ran = || self.rows.iter().filter_map(|row| Some((row, row.outcome.as_ref().ok()?)));
        let best = ran().min_by(|a, b| key(a.0, a.1).partial_cmp(&key(b.0, b.1)).unwrap_or(std::cmp::Ordering::Equal));
        if let ([_], Some((row, run))) = (&self.rows[..], best) {
            let cost = row.cost().map_or_else(String::new, |cost| format!("; {cost:.2} for 1M generated tokens"));
            let Verdict { sentence, .. } = run.verdict();
            let fleet = row.fleet_of(run);
            return Verdict { sentence: format!("{fleet} on {}: {sentence}{cost}", row.name), ..run.verdict() };
        }
        let number = self.rows.len();
        let (status, sentence, next) = match best {
            Some((row, run)) if missed(run) > 0.0 => {
                let (asked, met) = (asked(&run.objective), percent(run.summary.met));
                let nearest = format!("{} comes nearest with {met:.1}% of requests", row.name);
                (Status::Warning, format!("none of {number} machines meets {asked}; {nearest}"), run.next())
            }
            Some((row, run)) => {
                let what = |row: &Row, run: &Outcome| match (row.cost(), self.smallest) {
                    (Some(cost), _) => format!("serves at the lowest cost, {cost:.2} for 1M tokens"),
                    (None, true) => format!("takes the fewest GPUs, {}", run.fleet.gpus()),
                    (None, false) => format!("has the lowest TTFT at p99, {:.0} ms", run.summary.ttft.p99 * 1e3),
                };
                let best = what(row, run);
                let good = || ran().filter(|(_, run)| missed(run) == 0.0);
                let alike: Vec<&str> =
                    good().filter(|(row, run)| what(row, run) == best).map(|(row, _)| row.name.as_str()).collect();
                let who = match alike[..] {
                    [_] | [] => row.name.clone(),
                    [one, other] => format!("`{one}` and `{other}` tie: each"),
                    [one, ..] => format!("`{one}` and {} others tie: each", alike.len() - 1),
                };
                let short = match ran().count() - good().count() {
                    0 => String::new(),
                    1 => format!(", one of which misses {}", asked(&run.objective)),
                    short => format!(", {short} of which miss {}", asked(&run.objective)),
                };
                let fleet =
                    row.chunk.map_or_else(String::new, |_| format!("; {} takes {}", row.name, row.fleet_of(run)));
                (Status::Ok, format!("{who} {best}; {number} machines were compared{short}{fleet}"), None)
            }
            None => (Status::Failed, "no machine meets the objective".to_owned(), None),
        };
        Verdict { status, sentence, confidence: CONFIDENCE.to_owned(), basis: BASIS.to_owned(), next }
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
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
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
            basis: BASIS.to_owned(),
            next: None,
        });
        report
    }
}
