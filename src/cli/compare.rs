//! `collcast compare A B`: what became slower between two sets of measurements or results.

mod judge;
pub(crate) use collcast::noise;
mod sets;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use collcast_hwbackend::read::Outcome;
use collcast_reports::model::{Case, CaseOutcome, Cell, Column, Input, Report, Status, Table, Verdict};
use collcast_sim::units::Bytes;

use crate::output::{Format, OutputArgs};
use crate::validate::{BANDS, percent};
use collcast::Error as CliError;
use judge::{Band, Between, Change, FAMILY_ERROR, judge};
use sets::{Condition, Matched, SETTINGS, Side, matched};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Rows are matched by collective, ranks, size and every setting that the sources name. A setting with \
one value throughout A and another throughout B is what is compared: the first lines say so. Rows \
alike are repeats: their median counts, and how far they lie apart; without repeats the known \
noise of the launch mode does. Medians over neighbouring sizes decide, not single rows. With \
nothing changed, a report says `slower` with a chance below 2%.

  slower       all of the interval is above 1, and reaches the tolerance
  no change    all of the interval is within the tolerance
  cannot tell  else: repeat the runs (a folder of logs is one set)

  collcast compare before.log after.log
  collcast compare before/ after/ --tolerance 3% --format markdown
  collcast compare runs.csv --where-a run=old --where-b run=new --where size=1M:4G
  collcast compare run.log --where-a in_place=0 --where-b in_place=1
  collcast compare old.json new.json --allow-predicted       two results of `sweep`"
)]
pub(crate) struct Args {
    /// Before: nccl-tests log, JSON, CSV or a folder of them
    #[arg(value_name = "A")]
    a: PathBuf,
    /// After; left out, other rows of A, as --where-b says
    #[arg(value_name = "B")]
    b: Option<PathBuf>,
    /// Slowdown that does not matter
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    tolerance: String,
    /// Only these rows: `collective=all_reduce,all_gather`, `size=1M:4G`; repeat to narrow
    #[arg(long = "where", value_name = "KEY=VALUE", help_heading = "Rows")]
    both: Vec<String>,
    /// Only these rows of A: `run=NAME`, `in_place=0`
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Rows")]
    where_a: Vec<String>,
    /// Only these rows of B
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Rows")]
    where_b: Vec<String>,
    /// Accept our own predictions
    #[arg(long)]
    allow_predicted: bool,
    /// Print every row too
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Bands that a screen shows; the worst come first.
const BANDS_SHOWN: usize = 40;
/// Series without a partner that a warning names.
const ALONE_NAMED: usize = 5;

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let tolerance = percent("--tolerance", &args.tolerance)?;
    let b = match &args.b {
        Some(b) => b,
        None if args.where_a.is_empty() && args.where_b.is_empty() => {
            return Err(CliError::usage(
                "there is nothing to compare A with",
                "name a second file or folder, or two parts of this one: --where-a run=old --where-b run=new",
            ));
        }
        None => &args.a,
    };
    let conditions = |flag: &str, own: &[String]| -> Result<Vec<Condition>, CliError> {
        let both = args.both.iter().map(|text| Condition::parse("--where", text));
        both.chain(own.iter().map(|text| Condition::parse(flag, text))).collect()
    };
    let (where_a, where_b) = (conditions("--where-a", &args.where_a)?, conditions("--where-b", &args.where_b)?);
    let sides = [
        Side::read("A", &args.a, &where_a, args.allow_predicted)?,
        Side::read("B", b, &where_b, args.allow_predicted)?,
    ];
    let matched = matched([&sides[0].rows, &sides[1].rows]);
    if matched.curves.is_empty() {
        return Err(nothing_in_common(&matched));
    }
    let between = match (sides[0].is_same(&sides[1]), sides.iter().all(|side| side.predicted)) {
        (_, true) => Between::Forecasts,
        (true, false) => Between::Same,
        (false, false) => Between::Measured,
    };
    let bands = judge(&matched.curves, tolerance, between);
    let report = report(args, &sides, &matched, bands, tolerance, between);
    args.output.print(&report, None)?;
    let failed = report.verdict.as_ref().is_some_and(|v| v.status == Status::Failed);
    Ok(ExitCode::from(u8::from(failed)))
}

fn nothing_in_common(matched: &Matched) -> CliError {
    let first = |side: usize| {
        let (series, sizes, rows) = &matched.alone[side][0];
        let more = matched.alone[side].len() - 1;
        let more = if more > 0 { format!(" and {more} more series") } else { String::new() };
        format!("{series} ({rows} rows, {sizes}){more}")
    };
    CliError::usage(
        format!("no row of A has a partner in B: A has {}; B has {}", first(0), first(1)),
        "rows are matched by collective, ranks, size and settings; choose parts that answer to each other with --where, --where-a, --where-b",
    )
}

fn report(
    args: &Args,
    sides: &[Side; 2],
    matched: &Matched,
    mut bands: Vec<Band<'_>>,
    tolerance: f64,
    between: Between,
) -> Report {
    let exact = between == Between::Forecasts;
    let mut report = Report::new("compare", env!("CARGO_PKG_VERSION"));
    report.predicted = exact;
    for (name, side) in ["A", "B"].into_iter().zip(sides) {
        report.assumptions.push(format!("{name}: {}, {} rows", side.label, side.rows.len()));
        report.inputs.extend(side.files.iter().filter(|f| f.rows > 0).map(|f| Input {
            name: name.to_owned(),
            path: Some(f.path.display().to_string()),
            hash: f.hash.clone(),
        }));
        for file in &side.files {
            let unread = !matches!(file.outcome, Outcome::Read | Outcome::Metadata) || file.unreadable > 0;
            let trouble = unread || !file.defects.is_empty() || !file.unfinished.is_empty();
            report
                .warnings
                .extend(file.warnings().into_iter().take(usize::from(trouble)).map(|w| format!("{name}: {w}")));
        }
    }
    report.assumptions.extend(matched.differs.iter().map(|d| format!("A and B differ in {d}")));
    let noise = match (between, matched.repeats) {
        (Between::Same, _) => "A and B are the same rows of the same files: no noise is between them".to_owned(),
        (Between::Forecasts, _) => "forecasts have no noise".to_owned(),
        (Between::Measured, [0, 0]) => "no repeats: intervals are from the known noise of the launch mode".to_owned(),
        (Between::Measured, [a, b]) => {
            format!("{a} repeats in A and {b} in B, joined with the known noise of the launch mode")
        }
    };
    report.assumptions.push(format!(
        "{noise}; all intervals hold together with {:.0}%; tolerance {}%",
        (1.0 - FAMILY_ERROR) * 100.0,
        shown(tolerance * 100.0)
    ));
    if !exact && let Some(side) = ["A", "B"].iter().zip(sides).find(|(_, side)| side.predicted) {
        report
            .warnings
            .push(format!("{} has forecasts, whose error is in no interval; `validate` judges those", side.0));
    }
    for (name, alone) in ["A", "B"].into_iter().zip(&matched.alone) {
        let rows: usize = alone.iter().map(|a| a.2).sum();
        if rows > 0 {
            let named: Vec<String> =
                alone.iter().take(ALONE_NAMED).map(|(s, sizes, rows)| format!("{s}: {rows} ({sizes})")).collect();
            let more = if alone.len() > ALONE_NAMED { "; ..." } else { "" };
            report.warnings.push(format!("{rows} rows are in {name} only: {}{more}", named.join("; ")));
        }
    }
    report.warnings.extend(matched.choices.iter().map(|c| format!("NCCL ran something else, {c}")));

    report.verdict = Some(verdict(&bands, tolerance, between));
    report.cases = bands.iter().map(|band| case(band, tolerance)).collect();
    report.extra.insert("overall".to_owned(), overall(&bands, matched, tolerance));

    let format = args.output.format();
    let people = !matches!(format, Format::Json | Format::Csv);
    let rows = rows_table(&bands, people);
    if people {
        bands.sort_by_key(|b| b.change);
    }
    let mut table = bands_table(&bands, people);
    if format == Format::Table && table.rows.len() > BANDS_SHOWN {
        report.warnings.push(format!(
            "{} more bands are not shown; --format csv, json or markdown has them",
            table.rows.len() - BANDS_SHOWN
        ));
        table.rows.truncate(BANDS_SHOWN);
    }
    report.tables = match format {
        // CSV holds one table.
        Format::Csv => vec![rows, table],
        Format::Table if !args.rows => vec![table],
        _ => vec![table, rows],
    };
    if format == Format::Json {
        report.tables.push(alone_table(matched));
    }
    report
}

/// Fewest digits that say it.
fn shown(value: f64) -> String {
    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn sizes(at: (u64, u64)) -> String {
    format!("{} to {}", Bytes(at.0), Bytes(at.1))
}

/// The columns that say what a row is: one for people, each of its own for programs.
fn identity(people: bool) -> Vec<Column> {
    if people {
        return vec![Column::text("series", "what")];
    }
    let settings = SETTINGS.iter().map(|(key, _)| Column::text(key, *key));
    [Column::text("collective", "collective"), Column::number("ranks", "ranks")].into_iter().chain(settings).collect()
}

fn identify(band: &Band<'_>, people: bool) -> Vec<Cell> {
    let series = &band.curve.series;
    if people {
        return vec![series.to_string().into()];
    }
    let text = |s: &String| if s.is_empty() { Cell::Missing } else { s.as_str().into() };
    [series.collective.name().into(), series.ranks.into()].into_iter().chain(series.settings.iter().map(text)).collect()
}

fn bands_table(bands: &[Band<'_>], people: bool) -> Table {
    let mut columns = vec![Column::text("verdict", "verdict")];
    columns.extend(identity(people));
    columns.extend([
        Column::text("band", "size"),
        Column::number("rows", "rows"),
        Column::number("ratio", "ratio"),
        Column::number("low", "low"),
        Column::number("high", "high"),
        Column::text("at", "at"),
    ]);
    let mut table = Table::new(
        "bands",
        "time of B / time of A (above 1: B is slower), medians by size, or of the sizes in `at`",
        columns,
    );
    for band in bands {
        let ratio = decisive(band);
        let mut row = vec![band.change.name().into()];
        row.extend(identify(band, people));
        row.extend([
            BANDS[usize::from(band.band)].into(),
            band.rows.len().into(),
            Cell::float(ratio.value, 3),
            Cell::float(ratio.low, 3),
            Cell::float(ratio.high, 3),
            band.at.map(sizes).into(),
        ]);
        table.push(row);
    }
    table
}

fn median_us(samples: &[sets::Sample]) -> f64 {
    noise::median(samples.iter().map(|s| s.log).collect()).exp()
}

fn rows_table(bands: &[Band<'_>], people: bool) -> Table {
    let mut columns = identity(people);
    columns.extend([
        Column::number("size_bytes", "size B"),
        Column::number("repeats_a", "A"),
        Column::number("repeats_b", "B"),
        Column::number("time_a_us", "A us"),
        Column::number("time_b_us", "B us"),
        Column::number("ratio", "ratio"),
        Column::number("ratio_near", "near"),
        Column::number("low", "low"),
        Column::number("high", "high"),
        Column::text("verdict", "verdict"),
    ]);
    let title = "each size; near, low and high are of the neighbouring sizes too";
    let mut table = Table { detail: true, ..Table::new("rows", title, columns) };
    for band in bands {
        for row in &band.rows {
            let [a, b] = &row.pair.samples;
            let mut cells = identify(band, people);
            cells.extend([
                row.pair.size.into(),
                a.len().into(),
                b.len().into(),
                Cell::float(median_us(a), 2),
                Cell::float(median_us(b), 2),
                Cell::float(row.ratio, 3),
                Cell::float(row.near.value, 3),
                Cell::float(row.near.low, 3),
                Cell::float(row.near.high, 3),
                row.change.name().into(),
            ]);
            table.push(cells);
        }
    }
    table
}

fn alone_table(matched: &Matched) -> Table {
    let columns = [
        Column::text("set", "set"),
        Column::text("series", "what"),
        Column::text("sizes", "sizes"),
        Column::number("rows", "rows"),
    ];
    let mut table = Table::new("unmatched", "rows without a partner", columns);
    for (name, alone) in ["A", "B"].into_iter().zip(&matched.alone) {
        for (series, sizes, rows) in alone {
            table.push([name.into(), series.as_str().into(), sizes.as_str().into(), (*rows).into()]);
        }
    }
    table
}

/// The ratio that the verdict on a band reads off: where only some rows changed, that of the worst.
fn decisive(band: &Band<'_>) -> judge::Ratio {
    let changed = band.rows.iter().filter(|row| band.at.is_some() && row.change == band.change);
    let worst = changed.max_by(|a, b| a.near.value.ln().abs().total_cmp(&b.near.value.ln().abs()));
    worst.map_or(band.ratio, |row| row.near)
}

/// `1.05 (1.02 to 1.08)`, or where only some rows changed, where and by how much.
fn finding(band: &Band<'_>) -> String {
    let r = decisive(band);
    let at = band.at.map_or_else(String::new, |at| format!("at {} ", sizes(at)));
    format!("{at}{:.3} ({:.3} to {:.3})", r.value, r.low, r.high)
}

fn case(band: &Band<'_>, tolerance: f64) -> Case {
    let (change, finding) = (band.change.name(), finding(band));
    let outcome = match band.change {
        Change::Same | Change::Faster => CaseOutcome::Passed,
        Change::CannotTell => CaseOutcome::Skipped(format!(
            "cannot tell: time of B / time of A is {finding}; repeat the runs to see less than {}%",
            shown(tolerance * 100.0)
        )),
        Change::Slower => {
            let rows = band.rows.iter().map(|row| {
                let [a, b] = row.pair.samples.each_ref().map(|s| median_us(s));
                format!("{:>12} B  {a:>12.2} us -> {b:>12.2} us  x {:.3}\n", row.pair.size, row.ratio)
            });
            CaseOutcome::Failed {
                kind: change.to_owned(),
                message: format!("{change}: time of B / time of A is {finding}"),
                details: rows.collect(),
            }
        }
    };
    Case {
        group: band.curve.series.collective.name().to_owned(),
        name: format!("{}, {}", band.curve.series, BANDS[usize::from(band.band)]),
        outcome,
    }
}

/// The change of the whole: the worst that was found.
fn change_of(bands: &[Band<'_>]) -> Change {
    bands.iter().map(|b| b.change).min().unwrap_or(Change::CannotTell)
}

fn count(bands: &[Band<'_>], change: Change) -> usize {
    bands.iter().filter(|b| b.change == change).count()
}

fn overall(bands: &[Band<'_>], matched: &Matched, tolerance: f64) -> serde_json::Value {
    let alone = matched.alone.each_ref().map(|a| a.iter().map(|a| a.2).sum::<usize>());
    serde_json::json!({
        "verdict": change_of(bands).name(),
        "tolerance": tolerance,
        "error_rate": FAMILY_ERROR,
        "bands": bands.len(),
        "bands_slower": count(bands, Change::Slower),
        "bands_faster": count(bands, Change::Faster),
        "bands_cannot_tell": count(bands, Change::CannotTell),
        "bands_no_change": count(bands, Change::Same),
        "rows": bands.iter().map(|b| b.rows.len()).sum::<usize>(),
        "rows_only_in_a": alone[0],
        "rows_only_in_b": alone[1],
        "repeats_a": matched.repeats[0],
        "repeats_b": matched.repeats[1],
    })
}

fn verdict(bands: &[Band<'_>], tolerance: f64, between: Between) -> Verdict {
    let (change, total) = (change_of(bands), bands.len());
    let (slower, faster, unclear) =
        (count(bands, Change::Slower), count(bands, Change::Faster), count(bands, Change::CannotTell));
    let limit = shown(tolerance * 100.0);
    let extreme = |change: Change| {
        let size = |b: &Band<'_>| b.rows.iter().map(|r| r.near.value.ln().abs()).fold(0.0, f64::max);
        bands
            .iter()
            .filter(|b| b.change == change)
            .max_by(|a, b| size(a).total_cmp(&size(b)))
            .map_or_else(String::new, |b| format!("{}, {}: {}", b.curve.series, BANDS[usize::from(b.band)], finding(b)))
    };
    // What a change must exceed to be seen, where it is more than the tolerance.
    let blind = bands.iter().filter(|b| b.change == Change::CannotTell).map(|b| b.ratio.high / b.ratio.value - 1.0);
    let blind = blind.fold(0.0, f64::max);
    let sentence = match change {
        Change::Slower => format!("B is slower in {slower} of {total} bands of sizes, most in {}", extreme(change)),
        Change::Faster => {
            format!("nothing is slower; B is faster in {faster} of {total} bands of sizes, most in {}", extreme(change))
        }
        Change::Same => format!("no change beyond {limit}% in any of {total} bands of sizes"),
        Change::CannotTell => format!(
            "nothing is slower beyond noise; in {unclear} of {total} bands of sizes a change up to {:.0}% could not be seen",
            blind * 100.0
        ),
    };
    let sides = if between == Between::Forecasts { "predicted" } else { "measured" };
    Verdict {
        status: match change {
            Change::Slower => Status::Failed,
            Change::CannotTell => Status::Warning,
            Change::Faster | Change::Same => Status::Ok,
        },
        sentence,
        confidence: match change {
            Change::CannotTell => "low: too few repeats for so much noise".to_owned(),
            _ if between != Between::Measured => "high".to_owned(),
            _ => format!("high: wrong with a chance below {:.0}% if nothing changed", FAMILY_ERROR * 100.0),
        },
        basis: sides.to_owned(),
        next: match change {
            Change::CannotTell => Some("repeat both runs a few times and compare the folders".to_owned()),
            Change::Slower => Some("look at each size (--rows); repeat both runs to be surer".to_owned()),
            Change::Faster | Change::Same => None,
        },
    }
}
