//! Maps: which algorithm and protocol at which sizes.

use collcast_reports::figure::{Axis, Drawing, Figure, Map, MapRow, Range};
use collcast_reports::model::Report;
use collcast_reports::palette::algorithm;

use super::curves::{CHOICE, Request, requests};
use super::rows::{Row, grouped, rows};

/// A range up to here ends nowhere.
const END: f64 = 1e15;
/// Most rows of a map.
const MOST: usize = 24;

/// What NCCL takes at each size of a sweep.
pub(super) fn taken(report: &Report) -> Vec<Figure> {
    let of = rows(report, "rows").map(|row| (row.text("collective"), row));
    let mut map_rows = Vec::new();
    for (collective, rows) in grouped(of) {
        for Request { rows, .. } in requests(&rows).into_iter().filter(|of| of.asked == CHOICE) {
            let ranks = rows.first().map_or_else(String::new, |row| row.shown("ranks"));
            map_rows.push(MapRow { label: format!("{collective}, {ranks} ranks"), ranges: joined(&rows) });
        }
    }
    let caption = "Colour: algorithm. Words: algorithm, protocol and channels (ch) that NCCL takes at these sizes.";
    map("What NCCL takes at which size", caption, map_rows)
}

/// Sizes of a row that are one after another and alike.
fn joined(rows: &[Row<'_>]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for row in rows {
        let Some(size) = row.number("size_bytes").filter(|size| *size > 0.0) else { continue };
        let words = words(row.text("algorithm"), row.text("protocol"), &row.shown("channels"));
        match ranges.last_mut().filter(|last| last.words == words) {
            Some(last) => last.to = size,
            None => ranges.push(Range { from: size, to: size, hue: algorithm(row.text("algorithm")), words }),
        }
    }
    ranges
}

fn words(algorithm: &str, protocol: &str, channels: &str) -> Vec<String> {
    let channels = (!channels.is_empty()).then(|| format!("{channels} ch"));
    [algorithm, protocol].into_iter().map(str::to_owned).chain(channels).collect()
}

/// What NCCL takes, and what `tune` advises.
pub(super) fn advised(report: &Report) -> Vec<Figure> {
    let mut map_rows = Vec::new();
    let of = |row: &Row<'_>| [row.text("communicator"), row.text("collective")].map(str::to_owned);
    for (of, rows) in grouped(rows(report, "rows").map(|row| (of(&row), row))) {
        let call = of.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join(" ");
        for (label, of, by, with) in
            [("NCCL", "default_algorithm", "default_protocol", ""), ("advised", "algorithm", "protocol", "channels")]
        {
            let range = |row: &Row<'_>| {
                let keeps = label == "advised" && row.text("advice") != "change";
                let to = row.number("size_max_bytes").filter(|to| *to < END).unwrap_or(f64::INFINITY);
                // What is kept has the channels that NCCL gives it.
                let channels = if keeps { String::new() } else { row.shown(with) };
                let mut words = words(row.text(of), row.text(by), &channels);
                if keeps {
                    words.push("as NCCL".to_owned());
                }
                Some(Range { from: row.number("size_min_bytes")?, to, words, hue: algorithm(row.text(of)) })
            };
            let ranges = rows.iter().filter_map(range).collect();
            map_rows.push(MapRow { label: format!("{call}: {label}"), ranges });
        }
    }
    let caption =
        "Two rows for each collective, of each communicator: what NCCL takes by itself, and what to take in its place.";
    map("Choices before and after", caption, map_rows)
}

fn map(title: &str, caption: &str, mut rows: Vec<MapRow>) -> Vec<Figure> {
    rows.retain(|row| !row.ranges.is_empty());
    rows.truncate(MOST);
    // One size shows nothing that its row of the table does not.
    if rows.iter().all(|row| row.ranges.iter().all(|range| range.from == range.to) && row.ranges.len() < 2) {
        return Vec::new();
    }
    vec![Figure::new(title, caption, Drawing::Map(Map { x: Axis::bytes(), rows }))]
}
