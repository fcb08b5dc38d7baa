//! Forecasts against measurements.

use collcast_reports::figure::{Axis, Drawing, Figure, Plane, Point, Series, Stroke};
use collcast_reports::model::Report;
use collcast_reports::palette::{BAD, GOOD, GREY, Hue};
use collcast_sim::collective::Collective;

use super::curves::{MOST, asked, level, looks, sort};
use super::rows::{Row, grouped, rows};

/// Most curves of one figure, whose bands would hide each other; more go into a second.
const CURVES: usize = 6;

/// Bus bandwidth of a row that takes so long, in GB/s.
fn busbw(row: Row<'_>, us: f64) -> Option<f64> {
    let collective: Collective = row.text("collective").parse().ok()?;
    let ranks = row.number("ranks")? as u32;
    Some(row.number("size_bytes")? / us / 1e3 * collective.bus_factor(ranks))
}

/// Measured bus bandwidth on the forecast and its band: a figure for each collective, number of ranks, launch mode and kind
/// of buffers.
pub(super) fn curves(report: &Report) -> Vec<Figure> {
    let of = rows(report, "rows")
        .map(|row| ((row.text("collective"), row.shown("ranks"), row.text("launch"), row.is("in_place")), row));
    let mut families = grouped(of);
    families.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.len()));
    families.retain(|(_, rows)| grouped(rows.iter().map(|row| (row.shown("size_bytes"), ()))).len() > 1);
    let mut figures = Vec::new();
    for ((collective, ranks, launch, in_place), rows) in families {
        let curves = grouped(rows.into_iter().map(|row| (asked(row), row)));
        let parts = curves.len().div_ceil(CURVES);
        for (part, curves) in (1..).zip(curves.chunks(CURVES)) {
            let place = if in_place { ", in place" } else { "" };
            let part = if parts > 1 { format!(", part {part} of {parts}") } else { String::new() };
            let title = format!("{collective} over {ranks} ranks, launched by {launch}{place}{part}");
            figures.push(Figure::new(title, CAPTION, Drawing::Plane(plane(curves))));
        }
    }
    let more = figures.len().saturating_sub(MOST);
    figures.truncate(MOST);
    if let Some(last) = figures.last_mut().filter(|_| more > 0) {
        last.caption += &format!(" {more} more such pictures are left out; the table has their rows.");
    }
    figures
}

const CAPTION: &str =
    "Marks: measured. Lines and bands: forecast with its 90% interval. Thin lines: NCCL's own cost model.";

/// Rows by what their runs asked for.
fn plane(curves: &[(String, Vec<Row<'_>>)]) -> Plane {
    let mut series = Vec::new();
    for ((label, rows), (hue, stroke)) in curves.iter().zip(looks(curves.iter().map(|(asked, _)| &**asked))) {
        let mut one = Series { label: label.clone(), hue, stroke, ..Series::default() };
        let mut model = Series { hue, stroke: Stroke::Thin, ..Series::default() };
        for row in rows {
            let Some(x) = row.number("size_bytes") else { continue };
            let at = |key: &str| row.number(key).and_then(|us| busbw(*row, us));
            let error =
                row.number("error").map_or_else(String::new, |error| format!("forecast {:+.0}%", 100.0 * error));
            one.points.extend(at("measured_us").map(|y| Point { x, y, note: format!("measured; {error}") }));
            one.line.extend(at("predicted_us").map(|y| Point { x, y, note: "forecast".to_owned() }));
            one.band.extend(at("low_us").zip(at("high_us")).map(|(from, to)| (x, from, to)));
            model.line.extend(at("nccl_model_us").map(|y| Point::new(x, y)));
        }
        // Rows of several runs share one forecast.
        for series in [&mut one, &mut model] {
            sort(series);
            series.line.dedup_by_key(|p| p.x);
            series.band.dedup_by_key(|b| b.0);
        }
        series.extend([model, one]);
    }
    Plane { x: Axis::bytes(), y: Axis::log("bus bandwidth (GB/s)"), series }
}

/// A row with its measured and its forecast time, in microseconds.
type Judged<'r> = (Row<'r>, f64, f64);

/// Rows by collective, of those with a measured and a forecast time.
fn by_collective(report: &Report) -> Vec<(String, Vec<Judged<'_>>)> {
    let of = |row| {
        let row: Row<'_> = row;
        // Rows of a calibration name the run in place of the collective.
        let name = if row.text("collective").is_empty() { "rows" } else { row.text("collective") };
        Some((name.to_owned(), (row, row.number("measured_us")?, row.number("predicted_us")?)))
    };
    grouped(rows(report, "rows").filter_map(of))
}

/// Forecast against measured time.
pub(super) fn scatter(report: &Report) -> Vec<Figure> {
    let all = by_collective(report);
    let count: usize = all.iter().map(|(_, rows)| rows.len()).sum();
    if count < 2 {
        return Vec::new();
    }
    let mut series: Vec<Series> = (all.iter().enumerate())
        .map(|(index, (name, rows))| Series {
            label: name.clone(),
            hue: Hue::nth(index),
            points: rows.iter().map(|(row, x, y)| Point { x: *x, y: *y, note: note(*row) }).collect(),
            ..Series::default()
        })
        .collect();
    let ends = |of: fn(f64, f64) -> f64, from: f64| all.iter().flat_map(|(_, rows)| rows).map(|r| r.1).fold(from, of);
    let line = [ends(f64::min, f64::MAX), ends(f64::max, f64::MIN)].map(|v| Point::new(v, v)).to_vec();
    series.insert(0, Series { hue: GREY, stroke: Stroke::Thin, line, ..Series::default() });
    let plane = Plane { x: Axis::log("measured time (us)"), y: Axis::log("forecast time (us)"), series };
    let caption = "Each point is one measured row. On the line the forecast is exact, above it too slow.";
    vec![Figure::new("Forecast against measured", caption, Drawing::Plane(plane))]
}

fn note(row: Row<'_>) -> String {
    let size =
        row.number("size_bytes").map_or_else(String::new, |size| collcast_sim::units::Bytes(size as u64).to_string());
    if row.text("algorithm").is_empty() { size } else { format!("{}, {size}", asked(row)) }
}

/// Errors by size; what lies inside its interval apart from what does not.
pub(super) fn residuals(report: &Report) -> Vec<Figure> {
    let (mut inside, mut outside, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for (row, measured, predicted) in by_collective(report).into_iter().flat_map(|(_, rows)| rows) {
        let Some(x) = row.number("size_bytes") else { continue };
        let point = Point { x, y: 100.0 * (predicted / measured - 1.0), note: note(row) };
        match row.number("low_us").zip(row.number("high_us")) {
            Some((low, high)) if (low..=high).contains(&measured) => inside.push(point),
            Some(_) => outside.push(point),
            None => plain.push(point),
        }
    }
    let judged = inside.len() + outside.len();
    if judged + plain.len() < 2 {
        return Vec::new();
    }
    let covered = match judged {
        0 => String::new(),
        all => format!(
            " {} of {all} rows ({:.0}%) lie inside their 90% interval.",
            inside.len(),
            100.0 * inside.len() as f64 / all as f64
        ),
    };
    let named =
        |label: &str, hue, stroke, points| Series { label: label.to_owned(), hue, stroke, points, ..Series::default() };
    let mut series = vec![
        named("inside the interval", Hue(0), Stroke::Solid, inside),
        named("outside the interval", BAD, Stroke::Dotted, outside),
        named("rows", Hue(0), Stroke::Solid, plain),
    ];
    series.retain(|series| !series.points.is_empty());
    series.insert(0, level(&series, 0.0));
    let plane = Plane { x: Axis::bytes(), y: Axis::linear("forecast over measured (%)"), series };
    let caption = format!("Each point is one measured row. Above the line the forecast is too slow.{covered}");
    vec![Figure::new("Errors by size", caption, Drawing::Plane(plane))]
}

/// Measured bus bandwidth as a share of what is expected.
pub(super) fn health(report: &Report) -> Vec<Figure> {
    let mut series: Vec<Series> = Vec::new();
    for (state, rows) in grouped(rows(report, "sizes").map(|row| (row.text("state"), row))) {
        let (hue, stroke) = match state {
            "pass" | "healthy" => (GOOD, Stroke::Solid),
            "slow" => (BAD, Stroke::Dotted),
            _ => (GREY, Stroke::Dashed),
        };
        let point = |row: &Row<'_>| {
            let note = format!("{} over {} ranks", row.text("collective"), row.shown("ranks"));
            Some(Point { x: row.number("size_bytes")?, y: row.number("percent")?, note })
        };
        let points: Vec<Point> = rows.iter().filter_map(point).collect();
        series.push(Series { label: state.to_owned(), hue, stroke, points, ..Series::default() });
    }
    if series.iter().map(|series| series.points.len()).sum::<usize>() < 2 {
        return Vec::new();
    }
    series.insert(0, level(&series, 100.0));
    let plane = Plane { x: Axis::bytes(), y: Axis::linear("measured over expected bus bandwidth (%)"), series };
    let caption = "Each point is a size of a run. The line is what is expected.";
    vec![Figure::new("How healthy, by size", caption, Drawing::Plane(plane))]
}
