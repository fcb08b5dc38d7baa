//! Error figures by group, and the tables of `validate`.

use std::collections::BTreeMap;

use collcast_hwbackend::read::{FileReport, Outcome};
use collcast_reports::model::{Cell, Column, Table};
use collcast_sim::collective::Launch;

use super::judged::{Judged, closest_error};
use crate::bands::{BANDS, band};
use crate::statistics::quantile;

/// What makes rows comparable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    pub forced: bool,
    pub launch: Launch,
    pub what: String,
    pub band: u8,
}

pub fn group<'j, 'a>(judged: &'j [Judged<'a>]) -> BTreeMap<Key, Vec<&'j Judged<'a>>> {
    let mut groups: BTreeMap<Key, Vec<&Judged<'_>>> = BTreeMap::new();
    for j in judged {
        let forced = j.row.forced();
        let what = if forced {
            format!("{} {}", j.prediction.algorithm, j.prediction.protocol)
        } else {
            format!("{} as NCCL chose", j.row.collective)
        };
        groups.entry(Key { forced: !forced, launch: j.launch(), what, band: band(j.row.size.0) }).or_default().push(j);
    }
    // Forced groups sort first; the flag then says what it means.
    groups.into_iter().map(|(k, v)| (Key { forced: !k.forced, ..k }, v)).collect()
}

/// Error figures of a set of rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub count: usize,
    pub mean: f64,
    pub median: f64,
    pub p95: f64,
    pub bias: f64,
    pub coverage: f64,
    pub nccl_median: Option<f64>,
    pub closest_median: Option<f64>,
}

impl Stats {
    pub fn of(rows: &[&Judged<'_>]) -> Self {
        let count = rows.len();
        if count == 0 {
            return Self::default();
        }
        let n = count as f64;
        let mut errors: Vec<f64> = rows.iter().map(|j| j.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        // Of all rows or of none: a median over some would be compared with one over all.
        let median_of_all = |of: fn(&Judged<'_>) -> Option<f64>| {
            let mut errors: Vec<f64> = rows.iter().filter_map(|j| of(j)).map(f64::abs).collect();
            errors.sort_by(f64::total_cmp);
            (errors.len() == count).then(|| quantile(&errors, 0.5))
        };
        let inside = rows.iter().filter(|j| (j.prediction.low..=j.prediction.high).contains(&j.row.time)).count();
        Self {
            count,
            mean: errors.iter().sum::<f64>() / n,
            median: quantile(&errors, 0.5),
            p95: quantile(&errors, 0.95),
            bias: rows.iter().map(|j| j.error()).sum::<f64>() / n,
            coverage: inside as f64 / n,
            nccl_median: median_of_all(|j| Some(j.nccl_us? / j.row.time.as_us() - 1.0)),
            closest_median: median_of_all(closest_error),
        }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "count": self.count,
            "mean_abs_error": self.mean,
            "median_abs_error": self.median,
            "p95_abs_error": self.p95,
            "bias": self.bias,
            "coverage": self.coverage,
            "nccl_model": self.nccl_median.map(|m| serde_json::json!({ "median_abs_error": m })),
            "closest": self.closest_median.map(|m| serde_json::json!({ "median_abs_error": m })),
        })
    }
}

/// Errors by group: percentages for people, fractions for files.
pub fn group_table(groups: &BTreeMap<Key, Vec<&Judged<'_>>>, overall: &[&Judged<'_>], people: bool) -> Table {
    let (scale, digits) = if people { (100.0, 1) } else { (1.0, 4) };
    let columns = [
        Column::text("launch", "launch"),
        Column::text("group", "group"),
        Column::text("band", "size"),
        Column::number("count", "rows"),
        Column::number("median_abs_error", "median %"),
        Column::number("mean_abs_error", "mean %"),
        Column::number("p95_abs_error", "p95 %"),
        Column::number("bias", "bias %"),
        Column::number("coverage", "in interval %"),
        Column::number("nccl_median_abs_error", "NCCL's model %"),
        Column::number("closest_median_abs_error", "closest %"),
    ];
    let mut table = Table::new("groups", "error = predicted / measured - 1, by group", columns);
    let mut push = |launch: &str, what: &str, band: &str, rows: &[&Judged<'_>]| {
        let s = Stats::of(rows);
        let pc = |v: f64| Cell::float(v * scale, digits);
        table.push([
            launch.into(),
            what.into(),
            band.into(),
            s.count.into(),
            pc(s.median),
            pc(s.mean),
            pc(s.p95),
            pc(s.bias),
            Cell::float(s.coverage * scale, digits.saturating_sub(1)),
            s.nccl_median.map(pc).into(),
            s.closest_median.map(pc).into(),
        ]);
    };
    for (key, rows) in groups {
        push(key.launch.name(), &key.what, BANDS[usize::from(key.band)], rows);
    }
    push("all", "forced algorithm and protocol", "all", overall);
    table
}

pub fn files_table(files: &[FileReport]) -> Table {
    let columns = [Column::text("file", "file"), Column::number("rows", "rows"), Column::text("outcome", "outcome")];
    let mut table = Table::new("files", "files that gave no rows, or of which there is something to tell", columns);
    for file in files {
        let outcome = match &file.outcome {
            Outcome::Read if file.notes.is_empty() => continue,
            Outcome::Read => "read".to_owned(),
            Outcome::Metadata => "describes the data files of its stem".to_owned(),
            Outcome::NotUnderstood(reason) => format!("not understood: {reason}"),
            Outcome::Refused(error) => format!("refused: {error}"),
        };
        let notes: Vec<String> = match &file.outcome {
            Outcome::Read => file.warnings(),
            _ => Vec::new(),
        };
        let mut text = outcome;
        if let Some(first) = notes.first() {
            text += &match notes.len() {
                1 => format!("; {first}"),
                more => format!("; {more} notes, the first: {first}"),
            };
        }
        table.push([file.path.display().to_string().into(), file.rows.into(), text.into()]);
    }
    table
}

pub fn rows_table(judged: &[Judged<'_>]) -> Table {
    let columns = [
        Column::text("run", "run"),
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size B"),
        Column::text("in_place", "in place"),
        Column::text("launch", "launch"),
        Column::text("forced", "forced"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("measured_us", "measured us"),
        Column::number("predicted_us", "predicted us"),
        Column::number("error", "error"),
        Column::number("low_us", "low us"),
        Column::number("high_us", "high us"),
        Column::number("nccl_model_us", "NCCL's model us"),
        Column::text("closest_algorithm", "closest algorithm"),
        Column::text("closest_protocol", "closest protocol"),
        Column::number("closest_us", "closest us"),
        Column::number("closest_error", "closest error"),
        Column::text("bound", "bound by"),
        Column::text("file", "file"),
        Column::number("line", "line"),
    ];
    let mut table = Table::new("rows", "", columns);
    for j in judged {
        let p = &j.prediction;
        table.push([
            j.row.run.as_str().into(),
            j.row.collective.name().into(),
            j.row.ranks.into(),
            j.row.size.0.into(),
            j.row.in_place.into(),
            j.launch().name().into(),
            j.row.forced().into(),
            p.algorithm.name().into(),
            p.protocol.name().into(),
            p.plan.channels.into(),
            Cell::float(j.row.time.as_us(), 2),
            Cell::float(p.time.as_us(), 2),
            Cell::float(j.error(), 3),
            Cell::float(p.low.as_us(), 2),
            Cell::float(p.high.as_us(), 2),
            j.nccl_us.map(|us| Cell::float(us, 2)).into(),
            j.closest.as_ref().map(|c| Cell::from(c.algorithm.name())).into(),
            j.closest.as_ref().map(|c| Cell::from(c.protocol.name())).into(),
            j.closest.as_ref().map(|c| Cell::float(c.time.as_us(), 2)).into(),
            closest_error(j).map(|e| Cell::float(e, 3)).into(),
            p.bound_by().into(),
            j.row.origin.file.as_str().into(),
            j.row.origin.line.into(),
        ]);
    }
    table
}
