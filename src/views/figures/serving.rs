//! Pictures of serving: the way of single requests, and from which length a cache pays.

use collcast_reports::figure::{Axis, Drawing, Figure, Plane, Point, Series, Span, Stroke, Timeline};
use collcast_reports::model::Report;
use collcast_reports::palette::{GREY, Hue};

use super::rows::rows;

/// Parts of a request's way, by the columns that have them.
const PARTS: [(&str, &str); 4] =
    [("queue_ms", "queue"), ("prefill_ms", "prefill"), ("hand_off_ms", "hand-off"), ("decode_ms", "decode")];

/// What single requests waited for, from their arrival on.
pub(super) fn requests(report: &Report) -> Vec<Figure> {
    let mut timeline = Timeline { lanes: Vec::new(), spans: Vec::new() };
    for row in rows(report, "requests") {
        let (lane, mut from) = (timeline.lanes.len(), 0.0);
        timeline.lanes.push(row.shown("request"));
        for (index, (key, name)) in PARTS.into_iter().enumerate() {
            let to = from + row.number(key).unwrap_or(0.0) * 1e3;
            if to > from {
                timeline.spans.push(Span { lane, from, to, name: name.to_owned(), hue: Hue::nth(index) });
            }
            from = to;
        }
    }
    if timeline.spans.is_empty() {
        return Vec::new();
    }
    let caption = "From the arrival on, of the requests at these percentiles of the whole time.";
    vec![Figure::new("The way of single requests", caption, Drawing::Timeline(timeline))]
}

/// Lines over lengths of prompts, by the columns that have them.
const LINES: [(&str, &str, Stroke); 4] = [
    ("recompute_ms", "computed again", Stroke::Solid),
    ("host_ms", "from host memory", Stroke::Dashed),
    ("drives_ms", "from drives", Stroke::Dotted),
    ("gpus_ms", "from another host's GPUs", Stroke::Solid),
];

/// What it takes to have a cache, by its length: computed again, or fetched; with published times.
pub(super) fn break_even(report: &Report) -> Vec<Figure> {
    let points = |key: &str| -> Vec<Point> {
        rows(report, "rows").filter_map(|row| Some(Point::new(row.number("tokens")?, row.number(key)?))).collect()
    };
    let mut series: Vec<Series> = Vec::new();
    for (index, (key, label, stroke)) in LINES.into_iter().enumerate() {
        let line = points(key);
        if !line.is_empty() {
            series.push(Series { label: label.to_owned(), hue: Hue::nth(index), stroke, line, ..Series::default() });
        }
    }
    // Transfers without lengths have nothing to draw.
    if series.len() < 2 {
        return Vec::new();
    }
    let mut published: Vec<Series> = Vec::new();
    for row in rows(report, "published") {
        let (Some(x), Some(y)) = (row.number("tokens"), row.number("time_ms")) else { continue };
        let (label, point) = (row.text("what").to_owned(), Point { x, y, note: row.text("source").to_owned() });
        match published.iter_mut().find(|series| series.label == label) {
            Some(series) => series.points.push(point),
            None => published.push(Series { label, hue: GREY, points: vec![point], ..Series::default() }),
        }
    }
    series.extend(published);
    let plane = Plane { x: Axis::count("tokens of the prompt"), y: Axis::log("time (ms)"), series };
    let caption = "Lower is faster. Lines: forecasts, with the worker idle. Points: published times; the table below names their machine.";
    vec![Figure::new("Compute a cache again, or fetch it", caption, Drawing::Plane(plane))]
}
