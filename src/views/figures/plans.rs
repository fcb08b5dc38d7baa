//! Plans: memory against speed of layouts, and options beside each other.

use collcast_reports::figure::{Axis, Drawing, Figure, Plane, Point, Series, Stroke};
use collcast_reports::model::Report;
use collcast_reports::palette::{BAD, GOOD, Hue};

use super::rows::{Row, grouped, rows};

/// Layouts by memory and speed, with the front that no other beats in both.
pub(super) fn front(report: &Report) -> Vec<Figure> {
    let point = |row: Row<'_>| {
        Some((
            row.is("fits") || row.text("fits") == "yes",
            Point {
                x: row.number("memory_gib")?,
                y: row.number("tokens_per_s_per_gpu")?,
                note: row.text("layout").to_owned(),
            },
        ))
    };
    let all: Vec<(bool, Point)> = rows(report, "ranking").filter_map(point).collect();
    if all.len() < 2 {
        return Vec::new();
    }
    let of = |fits: bool| -> Vec<Point> { all.iter().filter(|p| p.0 == fits).map(|p| p.1.clone()).collect() };
    let front = best(of(true));
    let behind = of(true).into_iter().filter(|point| !front.contains(point)).collect();
    let series = vec![
        Series {
            label: "on the front".to_owned(),
            stroke: Stroke::Dashed,
            hue: GOOD,
            line: front.clone(),
            points: front,
            ..Series::default()
        },
        Series {
            label: "does not fit".to_owned(),
            hue: BAD,
            stroke: Stroke::Dotted,
            points: of(false),
            ..Series::default()
        },
        Series { label: "fits, and another beats it".to_owned(), points: behind, ..Series::default() },
    ];
    let series = series.into_iter().filter(|s| !s.points.is_empty() || s.line.len() > 1).collect();
    let plane = Plane { x: Axis::linear("memory of a GPU (GiB)"), y: Axis::linear("speed (tokens/s/GPU)"), series };
    let caption =
        "Each point is a layout. Up is faster, left takes less memory. No layout on the front is beaten in both.";
    vec![Figure::new("Layouts: speed against memory", caption, Drawing::Plane(plane))]
}

/// Points from the least memory on, each faster than those before.
fn best(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a.x.total_cmp(&b.x).then(b.y.total_cmp(&a.y)));
    let mut fastest = f64::MIN;
    points.retain(|p| {
        let better = p.y > fastest;
        fastest = fastest.max(p.y);
        better
    });
    points
}

/// What a line is of: an option by its own name without the count, or a machine.
fn name(row: Row<'_>) -> String {
    let (name, machine) = (row.text("name"), row.text("machine"));
    let of_several = format!(": {} {machine}", row.shown("gpus"));
    match name.strip_suffix(&of_several) {
        Some(name) => format!("{name}: {machine}"),
        None if name.is_empty() || name.ends_with(&format!(" of {machine}")) => machine.to_owned(),
        None => name.to_owned(),
    }
}

/// Options over the number of GPUs: days of the run, or speed.
pub(super) fn options(report: &Report) -> Vec<Figure> {
    let runs = rows(report, "comparison").any(|row| row.number("days").is_some());
    let (key, label) =
        if runs { ("days", "time of the run (days)") } else { ("tokens_per_s_per_gpu", "speed (tokens/s/GPU)") };
    let of = rows(report, "comparison").map(|row| (name(row), row));
    let one = |(index, (name, rows)): (usize, (String, Vec<Row<'_>>))| {
        let value = |row: &Row<'_>, key: &str| row.number(key).zip(row.number("gpus"));
        let point = |row: &Row<'_>| {
            let (y, x) = value(row, key)?;
            Some(Point { x, y, note: row.text("layout").to_owned() })
        };
        let band = |row: &Row<'_>| Some((row.number("gpus")?, row.number("days_low")?, row.number("days_high")?));
        let mut series = Series {
            label: name,
            hue: Hue::nth(index),
            points: rows.iter().filter_map(point).collect(),
            line: rows.iter().filter_map(point).collect(),
            band: if runs { rows.iter().filter_map(band).collect() } else { Vec::new() },
            ..Series::default()
        };
        super::curves::sort(&mut series);
        series
    };
    let series: Vec<Series> = grouped(of).into_iter().enumerate().map(one).collect();
    if series.iter().all(|series| series.points.is_empty()) {
        return Vec::new();
    }
    let plane = Plane { x: Axis::count("GPUs"), y: Axis::log(label), series };
    let band = if runs { " Band or bar: the step's interval, and 10 to 90 of 100 runs." } else { "" };
    let caption = format!("A line for each option or machine, with the best layout at each number of GPUs.{band}");
    vec![Figure::new("Machines and counts beside each other", caption, Drawing::Plane(plane))]
}
