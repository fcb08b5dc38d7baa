//! Bars: parts of a whole, and gains and losses beside each other.

use collcast_reports::figure::{Bar, Bars, Drawing, Figure};
use collcast_reports::model::Report;
use collcast_reports::palette::{BAD, GOOD, Hue};

use super::rows::{Row, rows};

/// Most bars of a figure; the rest is in its table.
const MOST: usize = 24;

/// Change, in per cent, from which on a bar is longer than its outline.
const SEEN: f64 = 0.05;

/// One bar a row, of one colour.
fn plain<'r>(
    rows: impl Iterator<Item = Row<'r>>,
    label: impl Fn(Row<'_>) -> String,
    value: impl Fn(Row<'_>) -> Option<f64>,
    hue: impl Fn(f64) -> Hue,
) -> Vec<Bar> {
    let bar = |row| {
        let value = value(row)?;
        Some(Bar { label: label(row), parts: vec![(String::new(), value, hue(value))] })
    };
    rows.filter_map(bar).collect()
}

fn figure(title: &str, caption: &str, label: &str, mut bars: Vec<Bar>) -> Vec<Figure> {
    if bars.is_empty() {
        return Vec::new();
    }
    let more = bars.len().saturating_sub(MOST);
    bars.truncate(MOST);
    let left_out = if more > 0 { format!(" The table has {more} more.") } else { String::new() };
    let caption = format!("{caption}{left_out}");
    let bars = Bars { label: label.to_owned(), bars };
    vec![Figure::new(title, caption, Drawing::Bars(bars))]
}

/// A row's words under a key.
fn under(key: &'static str) -> impl Fn(Row<'_>) -> String {
    move |row| row.text(key).to_owned()
}

/// A size in few digits: ranges begin between sizes that were tried.
fn about(bytes: f64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)].map(|(unit, power)| (unit, f64::from(1 << power)));
    let (unit, of) = units.into_iter().find(|(_, of)| bytes >= *of).unwrap_or(("B", 1.0));
    let size = bytes / of;
    let digits = usize::from(size < 10.0 && size.fract() > 0.0);
    format!("{size:.digits$} {unit}")
}

/// Beginnings of the names of parts that communication adds to a step.
const COSTS: [&str; 6] =
    ["exposed", "not hidden", "copies of the framework", "launches", "slowed kernels", "kernels slowed"];

/// Where a step goes.
pub(super) fn parts(report: &Report) -> Vec<Figure> {
    let costs = |row: Row<'_>| COSTS.iter().any(|part| row.text("part").starts_with(part));
    let of = rows(report, "parts");
    let bar = |row: Row<'_>| {
        let hue = if costs(row) { BAD } else { Hue(0) };
        let name = if costs(row) { "communication" } else { "" };
        Some(Bar { label: row.text("part").to_owned(), parts: vec![(name.to_owned(), row.number("share")?, hue)] })
    };
    let caption = "Each part as a share of the step. Communication: what calls add to it.";
    figure("Where a step goes", caption, "share of the step (%)", of.filter_map(bar).collect())
}

/// What a fit changed of the constants that the measurements tell.
pub(super) fn fitted(report: &Report) -> Vec<Figure> {
    let of = rows(report, "parameters").filter(|row| row.text("identified") == "yes");
    let change = |row: Row<'_>| {
        let (value, prior) = row.number("value").zip(row.number("prior"))?;
        (prior > 0.0).then(|| 100.0 * (value / prior - 1.0))
    };
    let caption = "Constants that the measurements tell, against the profile that the fit began with. The table has their \
                   intervals.";
    let bars = plain(of, under("parameter"), change, |_| Hue(0));
    figure("What the fit changed", caption, "change (%)", bars)
}

/// Ways of a transfer beside each other.
pub(super) fn ways(report: &Report) -> Vec<Figure> {
    let of = || rows(report, "rows").filter(|row| report.kind == "transfer" && !row.text("path").is_empty());
    if of().count() < 2 {
        return Vec::new();
    }
    let label = |row: Row<'_>| format!("{}, {} GB/s", row.text("path"), row.shown("gb_per_s"));
    let bars = plain(of(), label, |row| row.number("time_ms"), |_| Hue(0));
    figure("Ways beside each other", "How long the transfer takes by each way, the fastest first.", "time (ms)", bars)
}

/// What each rank's GPU does in a recorded step.
pub(super) fn ranks(report: &Report) -> Vec<Figure> {
    let parts = [
        ("computation", "compute_ms", Hue(0)),
        ("exposed communication", "exposed_ms", BAD),
        ("idle, not launched", "starved_ms", Hue(5)),
        ("idle, queued", "queued_ms", Hue(2)),
    ];
    let bar = |row: Row<'_>| {
        let part = |(name, key, hue): (&str, &'static str, Hue)| Some((name.to_owned(), row.number(key)?, hue));
        let parts = parts.into_iter().map(part).collect::<Option<Vec<_>>>()?;
        Some(Bar { label: format!("rank {}", row.number("rank")?), parts })
    };
    let caption = "Exposed communication is what no computation hides. A GPU that is idle with nothing launched waits for \
                   its host.";
    figure("What each GPU does", caption, "time (ms)", rows(report, "ranks").filter_map(bar).collect())
}

/// How busy links are.
pub(super) fn links(report: &Report) -> Vec<Figure> {
    let label = |row: Row<'_>| {
        let kind = row.text("kind");
        if kind.is_empty() { row.text("link").to_owned() } else { format!("{} ({kind})", row.text("link")) }
    };
    let bars = plain(rows(report, "links"), label, |row| row.number("utilisation"), |_| Hue(0));
    let caption = "Share of a link's rate that is taken over the whole call or step, protocol overhead included.";
    figure("The busiest links", caption, "used (%)", bars)
}

/// What would make a step shorter.
pub(super) fn advice(report: &Report) -> Vec<Figure> {
    let label = |row: Row<'_>| format!("{} {}", row.text("change"), row.text("setting"));
    let hue = |gain: f64| if gain < 0.0 { BAD } else { GOOD };
    let bars = plain(rows(report, "advice"), label, |row| row.number("gain"), hue);
    figure("What would help", "Each change alone, simulated again.", "shorter step (%)", bars)
}

/// Memory of the fullest stage.
pub(super) fn memory(report: &Report) -> Vec<Figure> {
    let bars = plain(rows(report, "memory"), under("holds"), |row| row.number("gib"), |_| Hue(0));
    let caption = "What fills the memory of a GPU of the fullest stage.";
    figure("Memory of a GPU", caption, "memory (GiB)", bars)
}

/// What one changed thing does to the step, the largest effect first.
pub(super) fn sensitivities(report: &Report) -> Vec<Figure> {
    let hue = |change: f64| if change > 0.0 { BAD } else { GOOD };
    let mut all = Vec::new();
    for (table, title) in
        [("sensitivities", "What the step time hangs on"), ("variations", "The step time with other values")]
    {
        let changed = rows(report, table).filter(|row| row.text("change") != "as planned");
        let mut bars = plain(changed, under("change"), |row| row.number("step_percent"), hue);
        let size = |bar: &Bar| bar.parts.iter().map(|part| part.1.abs()).sum::<f64>();
        bars.retain(|bar| size(bar) >= SEEN);
        bars.sort_by(|a, b| size(b).total_cmp(&size(a)));
        let caption = "The best layout with one thing changed at a time. To the right the step is longer. Changes below 0.05% are left out.";
        all.extend(figure(title, caption, "change of the step time (%)", bars));
    }
    all
}

/// What `tune` saves.
pub(super) fn gains(report: &Report) -> Vec<Figure> {
    let changes = rows(report, "rows").filter(|row| row.text("advice") == "change");
    let label = |row: Row<'_>| {
        let from = about(row.number("size_min_bytes").unwrap_or(0.0));
        format!("{} from {from}: {}/{}", row.text("collective"), row.text("algorithm"), row.text("protocol"))
    };
    let bars = plain(changes, label, |row| row.percent("gain"), |_| GOOD);
    let caption = "Time saved by each change that is advised, as a share of the time with NCCL's choice.";
    figure("What the changes save", caption, "time saved (%)", bars)
}

/// What `check` found, by how much a time changed.
pub(super) fn findings(report: &Report) -> Vec<Figure> {
    let label = |row: Row<'_>| format!("{} {} {}", row.text("machine"), row.text("collective"), row.text("size"));
    let hue = |change: f64| if change > 0.0 { BAD } else { GOOD };
    let bars = plain(rows(report, "findings"), label, |row| row.percent("change"), hue);
    let caption = "Change of the forecast time since the baseline, by finding. To the right it is longer.";
    figure("What moved since the baseline", caption, "change (%)", bars)
}
