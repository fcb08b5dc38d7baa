//! Curves over message sizes.

use std::collections::BTreeMap;

use collcast_reports::figure::{Axis, Drawing, Figure, Plane, Point, Series, Stroke};
use collcast_reports::model::Report;
use collcast_reports::palette::{BAD, GOOD, GREY, Hue, algorithm};

use super::rows::{Row, grouped, rows};

/// Most figures of one kind: a page is read, not searched.
pub(super) const MOST: usize = 8;

/// How a protocol is told from others of the same colour.
pub(super) fn stroke(protocol: &str) -> Stroke {
    match protocol {
        "ll" => Stroke::Dotted,
        "ll128" => Stroke::Dashed,
        _ => Stroke::Solid,
    }
}

/// Bus bandwidth and time of a forecast over sizes, each collective by itself.
pub(super) fn forecast(report: &Report) -> Vec<Figure> {
    by_collective(report, "time_us_low", "time_us_high", "Line: forecast. Band: where 90% of such calls should lie.")
}

/// Bus bandwidth and time that were measured.
pub(super) fn measured(report: &Report) -> Vec<Figure> {
    let caption = "Line: median of the measured batches. Band: from the 5th to the 95th percentile.";
    by_collective(report, "time_us_p5", "time_us_p95", caption)
}

fn by_collective(report: &Report, low: &str, high: &str, caption: &str) -> Vec<Figure> {
    let of = rows(report, "rows").map(|row| (row.text("collective"), row));
    let mut figures = Vec::new();
    for (collective, rows) in grouped(of).into_iter().take(MOST) {
        let sizes = grouped(rows.iter().map(|row| (row.shown("size_bytes"), ()))).len();
        if sizes < 2 {
            continue;
        }
        let several = grouped(rows.iter().map(|row| (row.shown("ranks"), ()))).len() > 1;
        for (title, label, rate) in [("Bus bandwidth", "bus bandwidth (GB/s)", true), ("Time", "time (us)", false)] {
            let series = series_of(&rows, several, |row| {
                let (time, busbw) = (row.number("time_us")?, row.number("busbw_gbps")?);
                let at = |key: &str| row.number(key).map(|us| if rate { busbw * time / us } else { us });
                Some((if rate { busbw } else { time }, at(low).zip(at(high))))
            });
            let plane = Plane { x: Axis::bytes(), y: Axis::log(label), series };
            let title = format!("{title} of {collective} over size");
            figures.push(Figure::new(title, caption, Drawing::Plane(plane)));
        }
    }
    figures
}

/// What [`requests`] calls NCCL's own choice.
pub(super) const CHOICE: &str = "NCCL's choice";

/// Rows by what was asked for, with a name: the n-th row of each size answers the n-th combination of algorithm, protocol
/// and channels, as a sweep asks for every combination at every size. Small sizes that are rounded to the same one have
/// all combinations again.
pub(super) fn requests<'r>(rows: &[Row<'r>]) -> Vec<(String, Vec<Row<'r>>)> {
    let of = |row: &Row<'_>| (row.shown("ranks"), row.shown("in_place"));
    let mut counts: BTreeMap<(String, String), BTreeMap<String, usize>> = BTreeMap::new();
    for row in rows {
        *counts.entry(of(row)).or_default().entry(row.shown("size_bytes")).or_default() += 1;
    }
    let fewest = |sizes: BTreeMap<String, usize>| sizes.into_values().min().unwrap_or(1);
    let combinations: BTreeMap<_, usize> = counts.into_iter().map(|(of, sizes)| (of, fewest(sizes))).collect();
    let mut seen: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    let mut nth = |row: &Row<'_>| {
        let (ranks, in_place) = of(row);
        let combinations = combinations.get(&of(row)).copied().unwrap_or(1);
        let count = seen.entry((ranks.clone(), in_place.clone(), row.shown("size_bytes"))).or_default();
        *count += 1;
        (ranks, in_place, (*count - 1) % combinations)
    };
    let groups = grouped(rows.iter().map(|row| (nth(row), *row)));
    let alone = groups.iter().all(|((_, _, nth), _)| *nth == 0);
    let name = |rows: &[Row<'_>]| {
        let all = |key: &'static str| grouped(rows.iter().map(|row| (row.text(key), ())));
        let chosen = rows.iter().all(|row| !row.text("chosen_by").is_empty());
        match (&all("algorithm")[..], &all("protocol")[..]) {
            ([("", _)], _) => "NCCL".to_owned(),
            _ if chosen && alone => CHOICE.to_owned(),
            ([(algorithm, _)], [(protocol, _)]) => format!("{algorithm}/{protocol}"),
            ([(algorithm, _)], _) => (*algorithm).to_owned(),
            _ if chosen => CHOICE.to_owned(),
            _ => "the fastest forecast".to_owned(),
        }
    };
    groups.into_iter().map(|(_, rows)| (name(&rows), rows)).collect()
}

/// A value, with the ends of its interval.
type Valued = (f64, Option<(f64, f64)>);

/// Rows as series: one for each thing that was asked for, and number of ranks.
fn series_of(rows: &[Row<'_>], several: bool, value: impl Fn(Row<'_>) -> Option<Valued>) -> Vec<Series> {
    let mut all = Vec::new();
    let requests = requests(rows);
    let alone = requests.len() == 1;
    for (index, (what, rows)) in requests.into_iter().enumerate() {
        let (of, by) = what.split_once('/').unwrap_or((&what, ""));
        // Beside forced algorithms, NCCL's choice takes none of their colours, and lies in dashes on that which it is.
        let beside = what == CHOICE && !alone && !several;
        let hue = match what.as_str() {
            CHOICE if beside => GREY,
            CHOICE | "NCCL" => Hue::nth(index),
            _ if several => Hue::nth(index),
            _ => algorithm(of),
        };
        let ranks = rows.first().map_or_else(String::new, |row| row.shown("ranks"));
        let mut series = Series {
            label: if several { format!("{what}, {ranks} ranks") } else { what.clone() },
            hue,
            stroke: match beside {
                true => Stroke::Dashed,
                false if several => Stroke::Solid,
                false => stroke(by),
            },
            ..Series::default()
        };
        for row in rows {
            let (Some(x), Some((y, interval))) = (row.number("size_bytes"), value(row)) else { continue };
            let ch = row.shown("channels");
            let note = format!("{}/{}, {ch} channels", row.text("algorithm"), row.text("protocol"));
            series.line.push(Point { x, y, note: if row.text("algorithm").is_empty() { String::new() } else { note } });
            series.band.extend(interval.map(|(from, to)| (x, from, to)));
        }
        sort(&mut series);
        all.push(series);
    }
    all.sort_by_key(|series: &Series| series.label == CHOICE);
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
            let ranks = row.shown("ranks");
            let note = format!("{} over {ranks} ranks", row.text("collective"));
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
