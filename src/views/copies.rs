//! Copies that were run: a row for each, and what the best of each kind reached.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};

use super::VERSION;
use crate::bench::{Copied, TransferOutcome};

impl TransferOutcome {
    /// The copies as a report; its columns are those that `calibrate --compute` reads.
    pub fn report(&self) -> Report {
        let mut report = Report::new("bench", VERSION);
        report.assumptions.push(format!("measured by backend transfer on {}", self.on));
        report.assumptions.extend(self.skipped.iter().map(|what| format!("left out: {what}")));
        let columns = [
            Column::text("way", "way"),
            Column::text("memory", "memory"),
            Column::number("bytes", "bytes"),
            Column::number("chunk", "chunk"),
            Column::number("parallel", "at once"),
            Column::number("us", "us"),
            Column::number("us_min", "least"),
            Column::number("us_max", "most"),
            Column::number("gb_per_s", "GB/s"),
            Column::number("checked", "bytes compared"),
            Column::text("caller", "called by"),
        ];
        let mut table = Table::new("rows", "copies", columns);
        for row in &self.rows {
            let [us, least, most] = row.us;
            table.push([
                row.way.into(),
                row.memory.into(),
                row.bytes.into(),
                row.chunk.into(),
                row.parallel.into(),
                Cell::float(us, 3),
                Cell::float(least, 3),
                Cell::float(most, 3),
                Cell::float(row.gb_per_s(), 2),
                row.checked.into(),
                "driver".into(),
            ]);
        }
        report.tables.push(table);
        report.verdict = Some(self.verdict());
        report
    }

    fn verdict(&self) -> Verdict {
        let mut best: Vec<&Copied> = Vec::new();
        for row in &self.rows {
            match best.iter_mut().find(|known| (known.way, known.memory) == (row.way, row.memory)) {
                Some(known) if known.gb_per_s() < row.gb_per_s() => *known = row,
                Some(_) => {}
                None => best.push(row),
            }
        }
        let named = |row: &&Copied| format!("{} {} {:.1}", row.way, row.memory, row.gb_per_s());
        let all = best.iter().map(named).collect::<Vec<_>>().join(", ");
        Verdict {
            status: Status::Ok,
            sentence: format!("{} copies, every byte right; GB/s at best: {all}", self.rows.len()),
            confidence: "high: each is a median over batches".to_owned(),
            basis: "measured".to_owned(),
            next: None,
        }
    }
}
