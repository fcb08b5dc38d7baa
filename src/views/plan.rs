//! A plan as a report: layouts, where a step of the best one goes, its memory, the whole run.

use collcast_reports::model::{Bar, Cell, Column, Report, Status, Table, Verdict};
use collcast_scenarios::training::Traffic;
use serde_json::{Map, Value, json};

use super::VERSION;
use crate::plan::{Layout, Outcome, Variation, Whole, of_gpus};

const GIB: f64 = 1_073_741_824.0;

impl Outcome {
    /// The plan as a report.
    pub fn report(&self) -> Report {
        let mut report = Report::new("plan", VERSION);
        report.predicted = true;
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        report.tables.push(ranking(self));
        let Some(best) = self.layouts.first() else { return report };
        report.tables.push(parts(self, best));
        report.tables.push(calls(self, best));
        report.tables.push(memory(best, self.capacity));
        if let Some(whole) = &self.whole {
            report.tables.push(run(whole));
        }
        report.tables.extend([
            variations("sensitivities", "what matters most for", &self.sensitivities, best, self.whole.as_ref()),
            variations("variations", "other values for", &self.variations, best, self.whole.as_ref()),
        ]);
        report.tables.retain(|table| !table.rows.is_empty());
        report.extra = extra(self);
        if best.fits {
            report.lead = lead(self, best);
        }
        report.verdict = Some(verdict(self, best));
        report
    }
}

fn ranking(outcome: &Outcome) -> Table {
    let columns = [
        Column::text("layout", "layout"),
        Column::number("step_s", "step s"),
        Column::number("low_s", "from"),
        Column::number("high_s", "to"),
        Column::number("tokens_per_s_per_gpu", "tokens/s/GPU"),
        Column::number("tflops_per_gpu", "TFLOP/s/GPU"),
        Column::number("mfu_percent", "MFU %"),
        Column::number("hfu_percent", "HFU %"),
        Column::number("exposed_percent", "exposed %"),
        Column::number("bubble_percent", "bubble %"),
        Column::number("memory_gib", "GiB a GPU"),
        Column::text("fits", "fits"),
    ];
    let title = format!("{} on {} of {}", described(outcome), of_gpus(outcome.gpus), outcome.machine);
    let mut table = Table::new("ranking", title, columns);
    for layout in &outcome.layouts {
        let step = &layout.step;
        let of_step = |seconds: f64| Cell::float(100.0 * seconds / step.seconds.max(1e-12), 1);
        table.push([
            layout.text.as_str().into(),
            Cell::float(step.seconds, 3),
            Cell::float(step.interval.0, 3),
            Cell::float(step.interval.1, 3),
            Cell::float(layout.tokens_per_s_per_gpu, 0),
            Cell::float(layout.tflops, 0),
            Cell::float(100.0 * layout.mfu, 1),
            Cell::float(100.0 * layout.hfu, 1),
            of_step(step.exposed.iter().map(|e| e.1).sum()),
            of_step(step.bubble),
            Cell::float(layout.memory.total() as f64 / GIB, 1),
            layout.fits.into(),
        ]);
    }
    table
}

/// A model with what was read of it: its parameters, and what a token of training takes.
pub(super) fn described(outcome: &Outcome) -> String {
    let Outcome { model, layouts, flops_per_token, .. } = outcome;
    let [all, active] = [model.parameters().total(), model.active_parameters()].map(|count| count as f64 / 1e9);
    let active = if model.experts.is_some() { format!(", {active:.2} B of them active") } else { String::new() };
    let digits = usize::from(*flops_per_token < 1e11);
    let sequence = layouts.first().map_or(model.sequence, |best| best.layout.sequence(model));
    format!(
        "`{}` ({all:.2} B parameters{active}, {:.digits$} GFLOP a token in sequences of {sequence})",
        model.name,
        flops_per_token / 1e9,
    )
}

/// What the stage has whose time is told: `stage 15 of 0 to 15: 1 layer, 1 MTP, head`.
fn holds(outcome: &Outcome, best: &Layout) -> Option<String> {
    let (model, layout) = (&outcome.model, &best.layout);
    let stages = layout.stage_layers(model);
    let last = stages.len() - 1;
    if last == 0 {
        return None;
    }
    let of = |stage: usize| {
        let layers = stages[stage];
        let mut parts = vec![format!("{layers} layer{}", if layers == 1 { "" } else { "s" })];
        if stage == 0 {
            parts.insert(0, "embedding".to_owned());
        }
        if stage == last {
            parts.extend((model.predictions > 0).then(|| format!("{} MTP", model.predictions)));
            parts.push("head".to_owned());
        }
        parts.join(", ")
    };
    let stage = best.step.busiest;
    // Both ends of a pipeline with two directions have the parts of each other.
    let other = (layout.copies() > 1 && last - stage != stage).then(|| format!("; {}", of(last - stage)));
    Some(format!("stage {stage} of 0 to {last}: {}{}", of(stage), other.unwrap_or_default()))
}

fn parts(outcome: &Outcome, best: &Layout) -> Table {
    let columns = [
        Column::text("part", "part"),
        Column::number("time_s", "s"),
        Column::number("share", "% of step").barred(Bar::OfHundred),
    ];
    let mut table = Table::new("parts", format!("where a step of {} goes", best.text), columns);
    let step = &best.step;
    let mut row = |part: String, seconds: f64| {
        if seconds > 0.0 {
            table.push([
                part.into(),
                Cell::float(seconds, 4),
                Cell::float(100.0 * seconds / step.seconds.max(1e-12), 1),
            ]);
        }
    };
    let of = holds(outcome, best).map_or_else(String::new, |holds| format!(" of the busiest stage ({holds})"));
    row(format!("kernels{of}"), step.kernels - step.recomputed);
    row("kernels that run again (recomputation)".to_owned(), step.recomputed);
    row("kernels slowed by calls beside them".to_owned(), step.slowed);
    row("GPU waits for the host that issues kernels".to_owned(), step.issued);
    for (kind, seconds) in &step.exposed {
        row(format!("exposed: {}", kind.name()), *seconds);
    }
    row("bubble: waits for other stages".to_owned(), step.bubble);
    row("optimizer".to_owned(), step.optimizer);
    table
}

/// The calls of a rank in a step of the best layout.
fn calls(outcome: &Outcome, best: &Layout) -> Table {
    let columns = [
        Column::text("traffic", "traffic"),
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size"),
        Column::number("count", "a step"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("time_us", "time us"),
        Column::number("all_ms", "all ms"),
        Column::number("exposed_ms", "exposed ms"),
    ];
    let of = if best.layout.pipeline > 1 { format!(" of stage {}", best.step.busiest) } else { String::new() };
    let title = format!("calls of a rank{of} in a step of {}", best.text);
    let mut table = Table::new("calls", title, columns);
    for Traffic { call, count, exposed, of_optimizer } in &outcome.calls {
        let kind = if *of_optimizer { "optimizer" } else { call.kind.name() };
        table.push([
            format!("{kind}: {}", call.name).into(),
            call.exchange.collective().to_string().into(),
            call.shape.size.into(),
            call.bytes.into(),
            Cell::float(*count, 0),
            call.cost.algorithm.to_string().into(),
            call.cost.protocol.to_string().into(),
            u64::from(call.cost.channels).into(),
            Cell::float(call.cost.seconds * 1e6, 2),
            Cell::float(call.cost.seconds * count * 1e3, 3),
            Cell::float(exposed * 1e3, 3),
        ]);
    }
    table
}

fn memory(best: &Layout, (capacity, usable): (u64, u64)) -> Table {
    let columns = [
        Column::text("holds", "holds"),
        Column::number("gib", "GiB"),
        Column::number("share", "% of GPU").barred(Bar::OfHundred),
    ];
    let total = best.memory.total();
    let over = match total.saturating_sub(capacity) {
        0 => String::new(),
        over => format!(" ({:.1} too many)", over as f64 / GIB),
    };
    let title = format!(
        "memory of stage {}, the fullest: {:.1} GiB of {:.1}{over}, and a search fills at most {:.1}",
        best.memory.stage,
        total as f64 / GIB,
        capacity as f64 / GIB,
        usable as f64 / GIB
    );
    let mut table = Table::new("memory", title, columns);
    for (part, bytes) in best.memory.parts().into_iter().filter(|p| p.1 > 0) {
        table.push([
            part.into(),
            Cell::float(bytes as f64 / GIB, 2),
            Cell::float(100.0 * bytes as f64 / capacity as f64, 1),
        ]);
    }
    table
}

fn run(whole: &Whole) -> Table {
    let mut table = Table::new("run", "the whole run", [Column::text("what", "what"), Column::text("value", "value")]);
    let mut row = |what: &str, value: String| table.push([what.into(), value.into()]);
    let failures = &whole.failures;
    row("tokens", counted(whole.tokens));
    row("steps", format!("{:.0}", whole.steps));
    row("days without failures, by the forecast of the step", days(whole.days));
    let [early, middle, late] = whole.finish_days;
    for (of, number) in [
        ("low, by the short end of the step's interval", early),
        ("median", middle),
        ("high, by the long end of it", late),
        ("mean", whole.mean_days()),
    ] {
        row(&format!("days with failures: {of}"), days(number));
    }
    row("failures", format!("{:.0}", failures.failures));
    row("hours between failures", format!("{:.1}", failures.mtbf_s / 3600.0));
    for (of, share) in [
        ("goodput", failures.goodput),
        ("lost work", failures.lost),
        ("saves of checkpoints", failures.saving),
        ("restarts", failures.down),
        ("waits for repair", failures.waiting),
        ("slow ranks (stragglers)", failures.slow),
    ] {
        row(&format!("% of the time: {of}"), format!("{:.1}", 100.0 * share));
    }
    if let Some(enough) = failures.spares_enough {
        row("spare hosts that are enough 99% of the time", enough.to_string());
    }
    row("GiB of a checkpoint", format!("{:.0}", failures.checkpoint_bytes / GIB));
    row("minutes between two checkpoints", format!("{:.1}", failures.interval_s / 60.0));
    row("GPU hours", format!("{:.0}", whole.gpu_hours));
    if let Some(cost) = whole.cost {
        row("cost", format!("{cost:.0}"));
    }
    table
}

/// The best layout as it is, and with each change.
fn variations(name: &str, title: &str, all: &[Variation], best: &Layout, whole: Option<&Whole>) -> Table {
    let mut columns = vec![
        Column::text("change", "change"),
        Column::number("step_s", "step s"),
        Column::number("step_percent", "% of step"),
        Column::number("tokens_per_s_per_gpu", "tokens/s/GPU"),
        Column::number("memory_gib", "GiB a GPU"),
        Column::text("fits", "fits"),
        Column::number("days", "mean days"),
        Column::number("days_percent", "% of days"),
        Column::number("gpu_hours", "GPU hours"),
        Column::number("cost", "cost"),
    ];
    let before = columns.len();
    if all.iter().any(|variation| !variation.choice.is_empty()) {
        columns.push(Column::text("choice", "NCCL chooses otherwise"));
    }
    let mut table = Table::new(name, format!("{title} {}", best.text), columns);
    let mut row = |change: &str, layout: &Layout, run: Option<&Whole>, choice: &str| {
        let mut cells = vec![
            change.into(),
            Cell::float(layout.step.seconds, 3),
            Cell::float(100.0 * (layout.step.seconds / best.step.seconds - 1.0), 1),
            Cell::float(layout.tokens_per_s_per_gpu, 0),
            Cell::float(layout.memory.total() as f64 / GIB, 1),
            layout.fits.into(),
        ];
        if let (Some(run), Some(whole)) = (run, whole) {
            let [days, before] = [run, whole].map(Whole::mean_days);
            cells.extend([Cell::float(days, 1), Cell::float(100.0 * (days / before - 1.0), 1)]);
            cells.push(Cell::float(run.gpu_hours, 0));
            cells.extend(run.cost.map(|cost| Cell::float(cost, 0)));
        }
        if !choice.is_empty() {
            cells.resize(before, Cell::Missing);
            cells.push(choice.into());
        }
        table.push(cells);
    };
    if !all.is_empty() {
        row("as planned", best, whole, "");
    }
    for variation in all {
        row(&variation.change, &variation.layout, variation.whole.as_ref(), &variation.choice);
    }
    table
}

/// Tokens as people say them: 15T, 300B.
pub(super) fn counted(tokens: f64) -> String {
    let units = [("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)];
    let (unit, size) = units.into_iter().find(|(_, size)| tokens >= *size).unwrap_or(("", 1.0));
    let number = format!("{:.3}", tokens / size);
    format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// What JSON has of a plan beside its tables.
pub(super) fn extra(outcome: &Outcome) -> Map<String, Value> {
    let layout = |layout: &Layout| {
        let exposed: Map<String, Value> =
            layout.step.exposed.iter().map(|(kind, seconds)| (kind.name().to_owned(), json!(seconds))).collect();
        let memory: Map<String, Value> =
            layout.memory.parts().into_iter().map(|(part, bytes)| (part.to_owned(), json!(bytes))).collect();
        json!({
            "layout": layout.layout,
            "text": layout.text,
            "step_time_s": layout.step.seconds,
            "low_s": layout.step.interval.0,
            "high_s": layout.step.interval.1,
            "tokens_per_s_per_gpu": layout.tokens_per_s_per_gpu,
            "tflops_per_gpu": layout.tflops,
            "mfu": layout.mfu,
            "hfu": layout.hfu,
            "memory_bytes": layout.memory.total(),
            "memory": memory,
            "fits": layout.fits,
            "busiest_stage": layout.step.busiest,
            "stage_layers": layout.layout.stage_layers(&outcome.model),
            "kernels_s": layout.step.kernels,
            "recomputed_s": layout.step.recomputed,
            "slowed_s": layout.step.slowed,
            "issued_s": layout.step.issued,
            "exposed_s": exposed,
            "bubble_s": layout.step.bubble,
            "optimizer_s": layout.step.optimizer,
            "clock": layout.step.clock,
        })
    };
    let (allowed, fitting, simulated) = outcome.looked_at;
    let mut extra = Map::new();
    let mut model = json!(outcome.model);
    model["parameters"] = json!(outcome.model.parameters().total());
    model["active_parameters"] = json!(outcome.model.active_parameters());
    model["training_flops_per_token"] = json!(outcome.flops_per_token);
    extra.insert("model".to_owned(), model);
    extra.insert("machine".to_owned(), json!(outcome.machine));
    extra.insert("gpus".to_owned(), json!(outcome.gpus));
    extra.insert("tokens_per_step".to_owned(), json!(outcome.tokens_per_step));
    extra.insert("searched".to_owned(), json!({"allowed": allowed, "fitting": fitting, "simulated": simulated}));
    extra.insert("layouts".to_owned(), outcome.layouts.iter().map(layout).collect());
    extra.insert("goodput".to_owned(), json!(outcome.whole.as_ref().map(|whole| whole.failures.goodput)));
    let mut whole = json!(outcome.whole);
    if let Some(run) = &outcome.whole {
        whole["mean_days"] = json!(run.mean_days());
    }
    extra.insert("whole".to_owned(), whole);
    extra
}

/// How long it takes, for those who do not know layouts.
fn lead(outcome: &Outcome, best: &Layout) -> String {
    let Outcome { gpus, machine, model, whole, .. } = outcome;
    let trains = format!("{} of {machine} train{}", of_gpus(*gpus), if *gpus == 1 { "s" } else { "" });
    match whole {
        Some(whole) => {
            format!("{trains} {} on {} tokens in {}", model.name, counted(whole.tokens), finish(whole))
        }
        None => format!("{trains} a step of {} in {:.2} s", model.name, best.step.seconds),
    }
}

/// Days, in tenths where they are few.
fn days(days: f64) -> String {
    let digits = if days < 1.0 { 2 } else { 1 };
    format!("{days:.digits$}")
}

/// When a run is done: `12 days (10 to 15)`, in tenths below 10 days.
pub(super) fn finish(whole: &Whole) -> String {
    let [early, middle, late] = whole.finish_days;
    let digits = match middle {
        ..1.0 => 2,
        1.0..10.0 => 1,
        _ => 0,
    };
    format!("{middle:.digits$} days ({early:.digits$} to {late:.digits$})")
}

fn verdict(outcome: &Outcome, best: &Layout) -> Verdict {
    let step = &best.step;
    let done = outcome
        .whole
        .as_ref()
        .map_or_else(String::new, |whole| format!("; {} tokens take {}", counted(whole.tokens), finish(whole)));
    let (capacity, searched) = outcome.capacity;
    let fits = match best.lacks {
        None if best.memory.total() > searched => {
            let free = capacity.saturating_sub(best.memory.total()) as f64 / GIB;
            let least = (capacity - searched) as f64 / GIB;
            format!(", with {free:.1} GiB free, where a search leaves {least:.1}")
        }
        None => String::new(),
        Some((bytes, most)) => format!(", and does not fit: it lacks {:.1} GiB, most is {most}", bytes as f64 / GIB),
    };
    let (allowed, fitting, simulated) = outcome.looked_at;
    let searched = if allowed > 1 {
        format!(", the fastest of {allowed} layouts ({fitting} fit, {simulated} simulated)")
    } else {
        String::new()
    };
    let refused = match outcome.refused.as_slice() {
        [] => String::new(),
        refused => format!("; not varied: {}", refused.join("; ")),
    };
    let status = match (best.fits, refused.is_empty()) {
        (false, _) => Status::Failed,
        (true, false) => Status::Warning,
        (true, true) => Status::Ok,
    };
    Verdict {
        status,
        sentence: format!(
            "{}{searched}: a step takes {:.2} s ({:.2} to {:.2}), {:.0} tokens/s a GPU, MFU {:.1}%{fits}{done}{refused}",
            best.text,
            step.seconds,
            step.interval.0,
            step.interval.1,
            best.tokens_per_s_per_gpu,
            100.0 * best.mfu
        ),
        confidence: outcome.confidence.clone(),
        basis: "kernels by measured shapes of this kind of GPU; calls simulated with the network's profile".to_owned(),
        next: None,
    }
}
