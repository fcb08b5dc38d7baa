//! Pictures: measured bandwidth over size on the forecast and its interval.

use std::collections::{BTreeMap, BTreeSet};

use collcast_reports::chart::{Chart, Series, render};

use super::{JudgedRow, Outcome};
use crate::error::Error;

/// Curves in one picture; more go into a second.
const CURVES: usize = 6;

/// A picture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Picture {
    /// What a file of it is called: collective, ranks and hosts, launch mode.
    pub name: String,
    /// The picture.
    pub svg: String,
}

/// The pictures of an answer, in a stable order, of rows in place only where there are no others: one for each collective, number of ranks and
/// hosts, and launch mode, or several where there are many curves.
///
/// # Errors
/// A picture that cannot be drawn.
pub fn plots(outcome: &Outcome) -> Result<Vec<Picture>, Error> {
    let drawn = |(name, chart): (String, Chart)| match render(&chart) {
        Ok(svg) => Ok(Picture { name, svg }),
        Err(error) => Err(Error::Usage { message: error.to_string(), hint: None }),
    };
    charts(&outcome.rows).into_iter().map(drawn).collect()
}

fn charts(rows: &[JudgedRow]) -> Vec<(String, Chart)> {
    let mut families: BTreeMap<(String, String), BTreeMap<String, Series>> = BTreeMap::new();
    let of = |row: &JudgedRow| (row.collective, row.ranks, row.hosts, row.launch);
    let out_of_place: BTreeSet<_> = rows.iter().filter(|row| !row.in_place).map(of).collect();
    for row in rows.iter().filter(|row| !row.in_place || !out_of_place.contains(&of(row))) {
        let hosts = row.hosts.filter(|&h| h > 1);
        let on = hosts.map_or_else(String::new, |h| format!(" on {h} hosts"));
        let place = if row.in_place { ", in place" } else { "" };
        let title = format!("{} over {} ranks{on}, launched by {}{place}", row.collective, row.ranks, row.launch);
        let name = format!(
            "{}_{}{}_{}",
            row.collective,
            row.ranks,
            hosts.map_or_else(String::new, |h| format!("x{h}")),
            row.launch
        );
        let bytes = row.size_bytes as f64;
        let moved = bytes / 1e3 * row.collective.bus_factor(row.ranks);
        let rate = |us: f64| moved / us;
        let label = row.asked();
        let series = families
            .entry((name, title))
            .or_default()
            .entry(label.clone())
            .or_insert_with(|| Series { label, ..Series::default() });
        series.points.push((bytes, rate(row.measured_us)));
        series.line.push((bytes, rate(row.predicted_us), rate(row.high_us), rate(row.low_us)));
        series.baseline.extend(row.nccl_model_us.map(|us| (bytes, rate(us))));
    }
    let mut out = Vec::new();
    for ((name, title), series) in families {
        let mut series: Vec<Series> = series.into_values().collect();
        for s in &mut series {
            s.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            // Rows of several runs share one forecast.
            s.line.sort_by(|a, b| a.0.total_cmp(&b.0));
            s.line.dedup_by_key(|p| p.0);
            s.baseline.sort_by(|a, b| a.0.total_cmp(&b.0));
            s.baseline.dedup_by_key(|p| p.0);
        }
        let parts = series.len().div_ceil(CURVES);
        for (index, chunk) in series.chunks(CURVES).enumerate() {
            let part = |text: &str| if parts == 1 { String::new() } else { format!("{text}{}", index + 1) };
            let chart = Chart { title: format!("{title}{}", part(", part ")), series: chunk.to_vec() };
            out.push((format!("{name}{}.svg", part("_")), chart));
        }
    }
    out
}
