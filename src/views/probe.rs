//! What a machine was found to be and to do: its tables as files and as a report.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::collective::Protocol;

use super::bench::rows_table;
use crate::probe::{Outcome, SPOTS};

impl Outcome {
    /// What is no collective, as `probe.csv` has it.
    pub fn spots_report(&self) -> Report {
        self.with(SPOTS.map(str::to_owned).to_vec(), vec![self.spots_table()])
    }

    /// The collectives, as `collectives.csv` has them.
    pub fn rows_report(&self) -> Report {
        self.with(Vec::new(), vec![rows_table("cuda", &self.rows)])
    }

    /// Everything, with a verdict.
    pub fn report(&self) -> Report {
        let mut report = self.with(Vec::new(), vec![self.spots_table(), rows_table("cuda", &self.rows)]);
        let folder = self.folder.display();
        report.verdict = Some(Verdict {
            status: if self.interrupted { Status::Warning } else { Status::Ok },
            sentence: format!(
                "{} times of collectives and {} others are in {folder}{}",
                self.rows.len(),
                self.spots.len(),
                if self.interrupted { ", interrupted before the end" } else { "" }
            ),
            confidence: "high: every result of a collective was compared".to_owned(),
            basis: "measured".to_owned(),
            next: Some(format!("fit a profile: `collcast calibrate {folder} -t {}`", self.topology.display())),
        });
        report
    }

    fn with(&self, assumptions: Vec<String>, tables: Vec<Table>) -> Report {
        let mut report = Report::new("probe", super::VERSION);
        let gpu = self.facts.iter().find(|(key, _)| key == "gpu").map(|(_, value)| value.as_str());
        report.assumptions.push(format!("measured on {}", gpu.unwrap_or("unknown hardware")));
        report.assumptions.extend(assumptions);
        report.tables = tables;
        report
    }

    fn spots_table(&self) -> Table {
        let columns = [
            Column::text("kind", "kind"),
            Column::number("src", "src"),
            Column::number("dst", "dst"),
            Column::number("bytes", "bytes"),
            Column::number("channels", "ch"),
            Column::text("protocol", "protocol"),
            Column::number("us", "us"),
            Column::number("gbps", "GB/s"),
        ];
        let mut table = Table::new("spots", "what is no collective", columns);
        for spot in &self.spots {
            table.push([
                spot.kind.as_str().into(),
                spot.src.into(),
                spot.dst.into(),
                spot.size_bytes.into(),
                spot.channels.into(),
                spot.protocol.map(Protocol::name).into(),
                Cell::float(spot.time_us, 3),
                spot.gbps.map_or(Cell::Missing, |v| Cell::float(v, 2)),
            ]);
        }
        table
    }
}
