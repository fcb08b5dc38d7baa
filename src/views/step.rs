//! A training step as a report.

use collcast_reports::model::{Bar, Cell, Column, Report, Table};

use crate::step::{Change, Detail, Outcome, Variant};

/// Least gain that is worth a next step, in per cent.
const WORTH: f64 = 1.0;

impl Outcome {
    /// A step, or its variants, as a report.
    pub fn report(&self) -> Report {
        let outcome = self;
        let mut report = Report::new("simulate", super::VERSION);
        report.predicted = true;
        report.inputs.clone_from(&outcome.inputs);
        report.assumptions.clone_from(&outcome.notes);
        report.warnings.clone_from(&outcome.warnings);
        report.tables.push(variants(&outcome.variants));
        let Some(first) = outcome.variants.first() else { return report };
        let mut next = None;
        if let Some(detail) = &outcome.detail {
            report.tables.push(parts(first));
            report.tables.push(communication(detail));
            report.tables.push(streams(detail));
            report.tables.push(path(detail, first));
            if !detail.links.is_empty() {
                report.tables.push(links(detail));
            }
            if !detail.disturbed.is_empty() {
                report.tables.push(disturbed(detail));
            }
            if let Some(changes) = &detail.advice {
                let gain = |change: &Change| 100.0 * (1.0 - change.step_ms / first.step_ms.max(1e-12));
                report.tables.push(advice(changes, gain));
                let best = changes.iter().find(|change| gain(change) > WORTH && !change.setting.is_empty());
                next = best.map(|best| format!("{}: {} would save {:.1}%", best.what, best.setting, gain(best)));
            }
        }
        let waits = 100.0 * first.exposed_ms / first.step_ms.max(1e-12);
        report.lead =
            format!("A training step takes {:.1} ms, and communication costs {waits:.0}% of that", first.step_ms);
        let mut sentence = format!(
            "a step takes {:.3} ms, of which communication costs {:.3} ms ({waits:.0}%): not hidden {:.3}, slowed kernels {:.3}, copies of the framework {:.3}, launches {:.3}",
            first.step_ms,
            first.exposed_ms,
            first.unhidden_ms,
            first.interference_ms,
            first.framework_ms,
            first.launch_ms,
        );
        if let Some(((fastest, least), (slowest, most))) = ends(&outcome.variants) {
            let count = outcome.variants.len();
            let by = match (uneven(&outcome.variants), jitters(&outcome.variants)) {
                (true, true) => " by micro-batch, at the median of its jitter",
                (true, false) => " by micro-batch",
                (false, true) => " at the median of its jitter",
                (false, false) => "",
            };
            (report.lead, sentence) = match outcome.same_work && outcome.same_gpus {
                true if alike(least, most) => (
                    format!("No difference between {count} variants"),
                    format!("no difference: each of {count} variants takes {least:.3} ms{by}"),
                ),
                true => (
                    format!("Fastest{by}: {}", fastest.label),
                    format!(
                        "fastest of {count}{by}: {}, {least:.3} ms; slowest: {}, {most:.3} ms",
                        fastest.label, slowest.label
                    ),
                ),
                false if outcome.same_work => (
                    format!("{count} variants on different kinds of GPU"),
                    format!(
                        "{count} variants on different kinds of GPU with the same computations, not ranked: {least:.3} to {most:.3} ms{by}"
                    ),
                ),
                false => (
                    format!("{count} variants of different work"),
                    format!(
                        "{count} variants whose layers are different work, not ranked: {least:.3} to {most:.3} ms{by}"
                    ),
                ),
            };
        }
        report.verdict = Some(outcome.grounds.trust().verdict(sentence, next));
        report
    }
}

/// Whether two times in ms are the same as they are shown.
fn alike(a: f64, b: f64) -> bool {
    (a * 1e3).round() == (b * 1e3).round()
}

/// Whether variants have different numbers of micro-batches.
fn uneven(variants: &[Variant]) -> bool {
    variants.windows(2).any(|pair| pair[0].micro_batches != pair[1].micro_batches)
}

/// Whether computations of a variant differ at random.
fn jitters(variants: &[Variant]) -> bool {
    variants.iter().any(|variant| variant.jitter.is_some())
}

/// Time of a step, of a micro-batch.
fn micro_batch_ms(variant: &Variant) -> f64 {
    variant.usual_ms() / variant.micro_batches as f64
}

/// A variant with its time in ms.
type Timed<'v> = (&'v Variant, f64);

/// The fastest and the slowest of several variants, with their times; those of a micro-batch where steps have different
/// numbers of them.
fn ends(variants: &[Variant]) -> Option<(Timed<'_>, Timed<'_>)> {
    let time = if uneven(variants) { micro_batch_ms } else { Variant::usual_ms };
    let timed = || variants.iter().map(|variant| (variant, time(variant)));
    let by_time = |a: &Timed<'_>, b: &Timed<'_>| a.1.total_cmp(&b.1);
    timed().min_by(by_time).zip(timed().max_by(by_time)).filter(|_| variants.len() > 1)
}

fn variants(variants: &[Variant]) -> Table {
    let varied = variants.iter().any(|variant| !variant.label.is_empty());
    let uneven = uneven(variants);
    let mut columns = Vec::new();
    if varied {
        columns.push(Column::text("variant", "variant"));
    }
    columns.extend([Column::number("ranks", "ranks"), Column::number("step_ms", "step ms")]);
    let jitters = jitters(variants);
    if jitters {
        columns.extend([
            Column::number("median_ms", "with jitter ms"),
            Column::number("low_ms", "shortest ms"),
            Column::number("high_ms", "longest ms"),
        ]);
    }
    if uneven {
        columns.push(Column::number("micro_batch_ms", "ms a micro-batch"));
    }
    columns.extend([
        Column::number("compute_ms", "without calls ms"),
        Column::number("exposed_ms", "communication costs ms"),
        Column::number("interference_ms", "slowed kernels ms"),
        Column::number("launch_ms", "launches ms"),
        Column::number("framework_ms", "copies of the framework ms"),
        Column::number("unhidden_ms", "not hidden ms"),
        Column::number("bubble_ms", "bubble ms"),
        Column::number("straggler_ms", "stragglers ms"),
        Column::number("events", "events"),
    ]);
    let mut table = Table::new("rows", "", columns);
    for v in variants {
        let times = [
            v.compute_ms,
            v.exposed_ms,
            v.interference_ms,
            v.launch_ms,
            v.framework_ms,
            v.unhidden_ms,
            v.bubble_ms,
            v.straggler_ms,
        ];
        let mut row: Vec<Cell> = Vec::new();
        if varied {
            row.push(v.label.as_str().into());
        }
        row.extend([v.ranks.into(), Cell::float(v.step_ms, 3)]);
        if jitters {
            let times = v.jitter.map(|jitter| [jitter.median_ms, jitter.range_ms.0, jitter.range_ms.1]);
            row.extend((0..3).map(|at| times.map_or(Cell::Missing, |times| Cell::float(times[at], 3))));
        }
        if uneven {
            row.push(Cell::float(micro_batch_ms(v), 3));
        }
        row.extend(times.map(|time| Cell::float(time, 3)));
        row.push(v.events.into());
        table.push(row);
    }
    table
}

fn parts(step: &Variant) -> Table {
    let columns = [
        Column::text("part", "part"),
        Column::number("time_ms", "ms"),
        Column::number("share", "% of step").barred(Bar::OfHundred),
    ];
    let mut table =
        Table::new("parts", "where the step goes: each part left out in turn, so that they add up", columns);
    for (part, value) in [
        ("computation of the busiest rank, without stragglers", step.compute_ms - step.bubble_ms - step.straggler_ms),
        ("waits for other stages (bubble)", step.bubble_ms),
        ("slow and late ranks (stragglers)", step.straggler_ms),
        ("not hidden: last calls, and those that computation waits for", step.unhidden_ms),
        ("copies of the framework", step.framework_ms),
        ("launches, and streams that wait for each other", step.launch_ms),
        ("slowed kernels: shared SMs and memory, kernels that wait for a turn", step.interference_ms),
    ] {
        table.push([part.into(), Cell::float(value, 3), Cell::float(100.0 * value / step.step_ms.max(1e-12), 1)]);
    }
    table
}

fn communication(detail: &Detail) -> Table {
    let columns = [
        Column::number("rank", "rank"),
        Column::number("like", "like it"),
        Column::text("kind", "communication"),
        Column::number("calls", "calls"),
        Column::number("busy_ms", "busy ms"),
        Column::number("exposed_ms", "alone ms"),
        Column::number("waits_ms", "waits ms"),
        Column::text("how", "how"),
    ];
    let title = "communication by kind; alone: no computation and no copy of the framework beside it, as in waits for other ranks before";
    let mut table = Table::new("communication", title, columns);
    for c in &detail.communication {
        table.push([
            c.rank.into(),
            (c.like as u64).into(),
            c.kind.as_str().into(),
            (c.calls as u64).into(),
            Cell::float(c.busy_ms, 3),
            Cell::float(c.exposed_ms, 3),
            Cell::float(c.waits_ms, 3),
            c.how.as_str().into(),
        ]);
    }
    table
}

fn streams(detail: &Detail) -> Table {
    let columns = [
        Column::number("rank", "rank"),
        Column::text("stream", "stream"),
        Column::number("busy_ms", "busy ms"),
        Column::number("idle_ms", "idle ms"),
    ];
    let mut table = Table::new("streams", "streams", columns);
    for s in &detail.streams {
        table.push([s.rank.into(), s.stream.as_str().into(), Cell::float(s.busy_ms, 3), Cell::float(s.idle_ms, 3)]);
    }
    table
}

fn path(detail: &Detail, step: &Variant) -> Table {
    let columns = [
        Column::text("what", "on the critical path"),
        Column::number("parts", "parts"),
        Column::number("time_ms", "ms"),
        Column::number("share", "% of step").barred(Bar::OfHundred),
        Column::text("bound_by", "bound by"),
    ];
    let mut table = Table::new("path", "the way that led to the end of the step", columns);
    for p in &detail.path {
        let share = 100.0 * p.time_ms / step.step_ms.max(1e-12);
        table.push([
            p.what.as_str().into(),
            p.parts.into(),
            Cell::float(p.time_ms, 3),
            Cell::float(share, 1),
            p.bound_by.as_str().into(),
        ]);
    }
    table
}

fn links(detail: &Detail) -> Table {
    let columns =
        [Column::text("link", "link where calls met"), Column::number("utilisation", "used %").barred(Bar::OfHundred)];
    let mut table = Table::new("links", "links that different calls shared (the first of those alike)", columns);
    for (link, share) in &detail.links {
        table.push([link.as_str().into(), Cell::float(share * 100.0, 1)]);
    }
    table
}

fn disturbed(detail: &Detail) -> Table {
    let columns = [
        Column::text("case", "case"),
        Column::number("step_ms", "step ms"),
        Column::number("low_ms", "shortest ms"),
        Column::number("high_ms", "longest ms"),
        Column::text("seeds", "seeds"),
    ];
    let mut table = Table::new("disturbed", "stragglers and jitter", columns);
    for d in &detail.disturbed {
        let (low, high) = d.range_ms.unzip();
        let time = |ms: Option<f64>| ms.map_or(Cell::Missing, |ms| Cell::float(ms, 3));
        let seeds = d.seeds.map_or_else(String::new, |(first, last)| format!("{first} to {last}"));
        table.push([d.case.as_str().into(), Cell::float(d.step_ms, 3), time(low), time(high), seeds.into()]);
    }
    table
}

fn advice(changes: &[Change], gain: impl Fn(&Change) -> f64) -> Table {
    let mut columns = vec![
        Column::text("change", "change"),
        Column::text("setting", "setting (the best that was tried)"),
        Column::number("step_ms", "step ms"),
        Column::number("gain", "gain %").barred(Bar::OfLargest),
        Column::number("memory_gib", "GiB more a GPU"),
    ];
    let chooses = changes.iter().any(|change| !change.choice.is_empty());
    if chooses {
        columns.push(Column::text("choice", "NCCL chooses otherwise"));
    }
    let mut table = Table::new("advice", "what would help, each simulated", columns);
    for change in changes {
        let mut row: Vec<Cell> = vec![
            change.what.as_str().into(),
            change.setting.as_str().into(),
            Cell::float(change.step_ms, 3),
            Cell::float(gain(change), 1),
            change.memory_gib.map_or(Cell::Missing, |gib| Cell::float(gib, 1)),
        ];
        if chooses {
            row.push(change.choice.as_str().into());
        }
        table.push(row);
    }
    table
}
