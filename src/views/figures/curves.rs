//! Curves over message sizes.

use std::collections::BTreeSet;

use collcast_reports::figure::{Axis, Drawing, Figure, Plane, Point, Series, Stroke};
use collcast_reports::model::Report;
use collcast_reports::palette::{BAD, GOOD, GREY, Hue, algorithm};

use super::rows::{Row, grouped, rows};
use crate::values::plural;

/// Most figures of one kind: as many as there are collectives. A page is read, not searched.
pub(super) const MOST: usize = 9;

/// Bus bandwidth and time of a forecast over sizes, each collective by itself.
pub(super) fn forecast(report: &Report) -> Vec<Figure> {
    let caption = "Line: forecast. Band: where 90% of such calls should lie.";
    by_collective(report, ["time_us_low", "time_us_high"], caption)
}

/// Bus bandwidth and time that were measured.
pub(super) fn measured(report: &Report) -> Vec<Figure> {
    let caption = "Line: median of the measured batches. Band: from the 5th to the 95th percentile.";
    by_collective(report, ["time_us_p5", "time_us_p95"], caption)
}

fn by_collective(report: &Report, ends: [&str; 2], caption: &str) -> Vec<Figure> {
    let of = rows(report, "rows").map(|row| (row.text("collective"), row));
    let mut figures = Vec::new();
    for (collective, rows) in grouped(of).into_iter().take(MOST) {
        let sizes = grouped(rows.iter().map(|row| (row.shown("size_bytes"), ()))).len();
        if sizes < 2 {
            continue;
        }
        let requests = requests(&rows);
        for (title, label, rate) in [("Bus bandwidth", "bus bandwidth (GB/s)", true), ("Time", "time (us)", false)] {
            let series = series_of(&requests, |row| {
                let (time, busbw) = (row.number("time_us")?, row.number("busbw_gbps")?);
                let at = |key: &str| row.number(key).map(|us| if rate { busbw * time / us } else { us });
                Some((if rate { busbw } else { time }, at(ends[0]).zip(at(ends[1]))))
            });
            let plane = Plane { x: Axis::bytes(), y: Axis::log(label), series };
            let title = format!("{title} of {collective} over size");
            figures.push(Figure::new(title, caption, Drawing::Plane(plane)));
        }
    }
    figures
}

/// What a request is called that leaves all to NCCL.
pub(super) const CHOICE: &str = "NCCL's choice";

/// What was asked for in a row; of a result that does not say so what ran.
pub(super) fn asked(row: Row<'_>) -> String {
    match [row.text("asked"), row.text("algorithm"), row.text("protocol")] {
        ["", "", _] => CHOICE.to_owned(),
        ["", algorithm, protocol] => format!("{algorithm}/{protocol}"),
        [asked, ..] => asked.to_owned(),
    }
}

/// Rows that answer one request at several sizes.
pub(super) struct Request<'r> {
    /// What was asked for.
    pub(super) asked: String,
    /// The same, with what tells it from the others.
    pub(super) label: String,
    /// The rows.
    pub(super) rows: Vec<Row<'r>>,
}

/// Rows by what was asked for, over which ranks, and of which buffers.
pub(super) fn requests<'r>(rows: &[Row<'r>]) -> Vec<Request<'r>> {
    let count =
        |row: &Row<'_>, key, of: &str, all| row.number(key).map(|n| plural(n as usize, of, all)).unwrap_or_default();
    let parts = |row: &Row<'_>| {
        let in_place = row.is("in_place") || row.number("in_place") == Some(1.0);
        let place = if in_place { "in place" } else { "" };
        let (ranks, hosts) = (count(row, "ranks", "rank", "ranks"), count(row, "nodes", "host", "hosts"));
        [asked(*row), ranks, hosts, row.text("run").to_owned(), place.to_owned()]
    };
    let groups = grouped(rows.iter().map(|row| (parts(row), *row)));
    let mut labels: Vec<String> = groups.iter().map(|(parts, _)| parts[0].clone()).collect();
    let are = |of: &[String]| of.iter().collect::<BTreeSet<_>>().len();
    for part in 1..5 {
        let of: Vec<String> = groups.iter().map(|(parts, _)| parts[part].clone()).collect();
        if are(&of) > 1 && are(&labels) < groups.len() {
            for (label, of) in labels.iter_mut().zip(of).filter(|(_, of)| !of.is_empty()) {
                label.push_str(&format!(", {of}"));
            }
        }
    }
    labels.into_iter().zip(groups).map(|(label, ([asked, ..], rows))| Request { asked, label, rows }).collect()
}

/// How lines look, by what each is of: in the colour of its algorithm and the stroke of its protocol, or in turn where some
/// would look alike. Beside others NCCL's choice has no colour, and lies in dashes on that which it is.
pub(super) fn looks<'a>(asked: impl Iterator<Item = &'a str> + Clone) -> Vec<(Hue, Stroke)> {
    let own: Vec<(Hue, Stroke)> = asked.map(look).collect();
    let alike = own.iter().collect::<BTreeSet<_>>().len() < own.len();
    if alike || own == [look(CHOICE)] { (0..own.len()).map(|n| (Hue::nth(n), Stroke::nth(n))).collect() } else { own }
}

fn look(asked: &str) -> (Hue, Stroke) {
    let parts = || asked.split([',', '/']).map(str::trim);
    let stroke = parts().find_map(|part| match part {
        "ll" => Some(Stroke::Dotted),
        "ll128" | CHOICE => Some(Stroke::Dashed),
        _ => None,
    });
    (algorithm(parts().next().unwrap_or_default()), stroke.unwrap_or_default())
}

/// A value, with the ends of its interval.
type Valued = (f64, Option<(f64, f64)>);

/// A series for each request; NCCL's choice is drawn over the others.
fn series_of(requests: &[Request<'_>], value: impl Fn(Row<'_>) -> Option<Valued>) -> Vec<Series> {
    let mut all = Vec::new();
    for (request, (hue, stroke)) in requests.iter().zip(looks(requests.iter().map(|request| &*request.asked))) {
        let mut series = Series { label: request.label.clone(), hue, stroke, ..Series::default() };
        for row in &request.rows {
            let (Some(x), Some((y, interval))) = (row.number("size_bytes"), value(*row)) else { continue };
            let ch = row.shown("channels");
            let note = format!("{}/{}, {ch} channels", row.text("algorithm"), row.text("protocol"));
            series.line.push(Point { x, y, note: if row.text("algorithm").is_empty() { String::new() } else { note } });
            series.band.extend(interval.map(|(from, to)| (x, from, to)));
        }
        sort(&mut series);
        all.push(series);
    }
    all.sort_by_key(|series: &Series| (series.hue, series.stroke) == look(CHOICE));
    all
}

/// Puts the values of a series in the order of their places.
pub(super) fn sort(series: &mut Series) {
    series.line.sort_by(|a, b| a.x.total_cmp(&b.x));
    series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    series.band.sort_by(|a, b| a.0.total_cmp(&b.0));
}

/// How bus bandwidth changes with the number of ranks, a line a size.
pub(super) fn scaling(report: &Report) -> Vec<Figure> {
    let of = rows(report, "scaling").map(|row| (row.text("collective"), row));
    let figure = |(collective, rows): (&str, Vec<Row<'_>>)| {
        let mut by_size = grouped(rows.into_iter().map(|row| (row.number("size_bytes").unwrap_or(0.0) as u64, row)));
        by_size.retain(|(_, rows)| rows.len() > 1);
        // Sizes far apart tell more than all of them.
        let apart = by_size.len().div_ceil(6).max(1);
        let series = by_size.into_iter().rev().step_by(apart).enumerate().map(|(index, (size, rows))| Series {
            label: collcast_sim::units::Bytes(size).to_string(),
            hue: Hue::nth(index),
            line: rows
                .iter()
                .filter_map(|row| {
                    let note = format!("{}/{}", row.text("algorithm"), row.text("protocol"));
                    Some(Point { x: row.number("ranks")?, y: row.number("busbw_gbps")?, note })
                })
                .collect(),
            ..Series::default()
        });
        let plane = Plane { x: Axis::count("ranks"), y: Axis::log("bus bandwidth (GB/s)"), series: series.collect() };
        let caption = "A line for each size. Level: each rank keeps its bandwidth as the machine grows.";
        let title = format!("How {collective} scales");
        Figure::new(title, caption, Drawing::Plane(plane))
    };
    grouped(of).into_iter().take(MOST).map(figure).collect()
}

/// Time after over time before, with its interval.
pub(super) fn ratios(report: &Report) -> Vec<Figure> {
    let mut series: Vec<Series> = Vec::new();
    for (verdict, rows) in grouped(rows(report, "rows").map(|row| (row.text("verdict"), row))) {
        let hue = match verdict {
            "slower" => BAD,
            "faster" => GOOD,
            _ => GREY,
        };
        let point = |row: &Row<'_>| {
            // Tables for people name all that a row is of in one column.
            let note = match row.text("series") {
                "" => format!("{} over {} ranks", row.text("collective"), row.shown("ranks")),
                series => series.to_owned(),
            };
            Some(Point { x: row.number("size_bytes")?, y: 100.0 * (row.number("ratio")? - 1.0), note })
        };
        let stroke = if hue == BAD { Stroke::Dotted } else { Stroke::Solid };
        let points = rows.iter().filter_map(point).collect();
        series.push(Series { label: verdict.to_owned(), hue, stroke, points, ..Series::default() });
    }
    if series.iter().all(|series| series.points.is_empty()) {
        return Vec::new();
    }
    series.insert(0, level(&series, 0.0));
    let plane = Plane { x: Axis::bytes(), y: Axis::linear("change of time (%)"), series };
    let caption = "Each point is one row of both sets. Above the line B takes longer than A.";
    vec![Figure::new("What changed, by size", caption, Drawing::Plane(plane))]
}

/// A level line under points, as a reference.
pub(super) fn level(series: &[Series], y: f64) -> Series {
    let places = || series.iter().flat_map(|s| &s.points).map(|p| p.x);
    let (from, to) = (places().fold(f64::MAX, f64::min), places().fold(f64::MIN, f64::max));
    let line = vec![Point::new(from, y), Point::new(to, y)];
    Series { hue: GREY, stroke: Stroke::Thin, line, ..Series::default() }
}
