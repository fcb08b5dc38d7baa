//! What was run and measured: the table of its calls, also as nccl-tests prints it, and the verdict.

use collcast_reports::model::{Bar, Cell, Column, Report, Status, Table, Verdict};
use collcast_reports::nccl_tests::{self, NcclTests, NcclTestsRow};
use collcast_sim::collective::{Algorithm, Protocol};

use crate::bench::{Backend, MeasuredCall, Outcome, Planned};
use crate::error::Error;

impl Outcome {
    /// As a table and a verdict.
    pub fn report(&self) -> Report {
        let mut report = Report::new("bench", super::VERSION);
        report.assumptions = self.notes();
        report.tables.push(rows_table(self.backend.name(), &self.rows));
        report.verdict = verdict(self);
        if self.interrupted {
            report.warnings.push(format!("interrupted: {} of {} points ran", self.rows.len(), self.points));
        }
        report
    }

    /// Who measured, on what.
    fn notes(&self) -> Vec<String> {
        let fact = |key: &str| self.facts.iter().find(|f| f.0 == key).map(|f| f.1.as_str());
        let on = fact("gpu").or_else(|| fact("host")).unwrap_or("unknown hardware");
        let mut notes = vec![format!("measured by backend {} on {on}; launch {}", self.backend.name(), self.launch)];
        let libraries: Vec<String> = (["driver", "cuda", "nvrtc", "nccl_version"].iter())
            .filter_map(|k| Some(format!("{k} {}", fact(k)?)))
            .collect();
        if !libraries.is_empty() {
            notes.push(libraries.join(", "));
        }
        let nvls = self.environment.iter().filter(|(name, _)| name == "NCCL_NVLS_ENABLE");
        notes.extend(nvls.map(|(name, value)| format!("{name}={value}")));
        notes
    }

    /// As nccl-tests prints it.
    ///
    /// # Errors
    /// Several collectives, algorithms, protocols or channel counts, which its table cannot hold.
    pub fn nccl_tests(&self) -> Result<String, Error> {
        let series = |p: &Planned| (p.query.call.collective, p.query.algorithm, p.query.protocol, p.query.channels);
        let Some(first) = self.planned.first() else {
            return Err(Error::usage("there is nothing to run", "name a size"));
        };
        if self.planned.iter().any(|p| series(p) != series(first)) {
            return Err(Error::usage(
                "nccl-tests' table holds one collective, algorithm, protocol and channel count",
                "ask for one of each, or use --format table, csv or json",
            ));
        }
        let mut rows: Vec<NcclTestsRow> = Vec::new();
        for row in &self.rows {
            let call = &self.planned[row.planned].query.call;
            if call.in_place {
                if let Some(last) = rows.last_mut() {
                    last.in_place_us = Some(row.time_us);
                }
                continue;
            }
            rows.push(NcclTestsRow {
                size_bytes: row.size_bytes,
                count: call.count,
                data_type: call.dtype,
                redop: call.collective.reduces().then_some(call.op),
                root: call.collective.rooted().then_some(call.root.0),
                out_of_place_us: row.time_us,
                in_place_us: None,
                bus_factor: call.bus_factor(),
            });
        }
        Ok(nccl_tests::render(&NcclTests {
            collective: first.query.call.collective,
            predicted: false,
            checked: true,
            comments: self.notes(),
            rows,
        }))
    }
}

/// The calls that were measured; `run` says by whom. Where sets of GPUs ran them, each is a run of its own.
pub(super) fn rows_table(run: &str, rows: &[MeasuredCall]) -> Table {
    let over_sets = rows.iter().any(|row| row.set.is_some());
    let columns = [
        Column::text("run", "backend"),
        Column::text("collective", "collective"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("ranks", "ranks"),
        Column::text("launch", "launch"),
        Column::number("channels", "ch"),
        Column::text("dtype", "type"),
        Column::text("op", "op"),
        Column::number("in_place", "in place"),
        Column::number("size_bytes", "size"),
        Column::number("time_us", "time us"),
        Column::number("time_us_p5", "p5 us"),
        Column::number("time_us_p95", "p95 us"),
        Column::number("algbw_gbps", "algbw GB/s"),
        Column::number("busbw_gbps", "busbw GB/s").barred(Bar::OfLargest),
        Column::number("checked", "checked"),
        Column::number("nccl_model_us", "NCCL says us"),
        Column::text("schedule_hash", "schedule hash"),
    ];
    let columns = columns.into_iter().chain(over_sets.then(|| Column::text("gpus", "GPUs")));
    // Words with commas come last.
    let columns = columns.chain([Column::text("asked", "asked for")]);
    let mut table = Table::new("rows", "", columns);
    for row in rows {
        let cells = [
            run_of(run, row).into(),
            row.collective.name().into(),
            row.algorithm.map(Algorithm::name).into(),
            row.protocol.map(Protocol::name).into(),
            row.ranks.into(),
            row.launch.name().into(),
            row.channels.into(),
            row.dtype.name().into(),
            row.op.name().into(),
            u8::from(row.in_place).into(),
            row.size_bytes.into(),
            Cell::float(row.time_us, 2),
            Cell::float(row.time_us_p5, 2),
            Cell::float(row.time_us_p95, 2),
            Cell::float(row.algbw_gbps, 2),
            Cell::float(row.busbw_gbps, 2),
            row.checked.into(),
            row.nccl_model_us.map_or(Cell::Missing, |us| Cell::float(us, 2)),
            row.schedule_hash.as_deref().into(),
        ];
        let cells = cells.into_iter().chain(over_sets.then(|| row.gpus.join(" ").into()));
        table.push(cells.chain([row.asked.as_str().into()]));
    }
    table
}

/// `nccl 0+3`, and `nccl 0+3 again 2` in the second round.
fn run_of(by: &str, row: &MeasuredCall) -> String {
    let Some(set) = &row.set else { return by.to_owned() };
    let gpus: Vec<String> = set.gpus.iter().map(u32::to_string).collect();
    let again = if set.round > 1 { format!(" again {}", set.round) } else { String::new() };
    format!("{by} {}{again}", gpus.join("+"))
}

fn verdict(outcome: &Outcome) -> Option<Verdict> {
    // A rank alone sends nothing over a bus.
    let alone = outcome.rows.iter().all(|row| row.busbw_gbps == 0.0);
    let rate = |row: &MeasuredCall| if alone { row.algbw_gbps } else { row.busbw_gbps };
    let best = outcome.rows.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let checked: u64 = outcome.rows.iter().map(|row| row.checked).sum();
    Some(Verdict {
        status: if outcome.interrupted || outcome.failure.is_some() { Status::Warning } else { Status::Ok },
        sentence: format!(
            "{} of {} points ran, {checked} elements exact; best {} bandwidth {:.1} GB/s ({})",
            outcome.rows.len(),
            outcome.points,
            if alone { "algorithm" } else { "bus" },
            rate(best),
            outcome.planned[best.planned].words(),
        ),
        confidence: "high: every element was compared".to_owned(),
        basis: "measured".to_owned(),
        next: Some(match outcome.backend {
            Backend::Host => "results are right; times of CPU threads say nothing of GPUs".to_owned(),
            _ => "hold it against the forecast: `collcast validate FILE.csv -t TOPOLOGY`".to_owned(),
        }),
    })
}
