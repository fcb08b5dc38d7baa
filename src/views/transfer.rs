//! A transfer as a report: its ways, the fastest first.

use collcast_reports::model::{Bar, Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::units::Bytes;

use super::VERSION;
use crate::transfer::Outcome;

/// Part of the time from which on what is busy bounds a transfer.
const HALF: f64 = 0.5;

impl Outcome {
    /// The transfer as a report.
    pub fn report(&self) -> Report {
        let mut report = Report::new("transfer", VERSION);
        report.predicted = true;
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.tables.push(self.ways());
        report.verdict = self.verdict();
        report
    }

    fn ways(&self) -> Table {
        let columns = [
            Column::text("path", "path"),
            Column::number("time_ms", "ms").barred(Bar::OfLargest),
            Column::number("exposed_ms", "after prefill ms"),
            Column::number("gb_per_s", "GB/s"),
            Column::number("alone_ms", "alone ms"),
            Column::number("collective_percent", "collective longer %"),
            Column::text("bound", "used most"),
            Column::number("busy_percent", "busy %"),
            Column::text("nixl", "NIXL's choice"),
        ];
        let pairs = if self.pairs == 1 { String::new() } else { format!(" in {} pairs", self.pairs) };
        let title =
            format!("{} from {} to {}{pairs} on {}", Bytes(self.bytes).human(), self.from, self.to, self.machine);
        let mut table = Table::new("rows", title, columns);
        for row in &self.rows {
            table.push([
                row.path.as_str().into(),
                Cell::float(row.seconds * 1e3, 3),
                Cell::float(row.exposed_s * 1e3, 3),
                Cell::float(row.gb_per_s, 1),
                row.beside.map_or(Cell::Missing, |(alone, _)| Cell::float(alone * 1e3, 3)),
                row.beside.map_or(Cell::Missing, |(_, longer)| Cell::float(longer * 100.0, 1)),
                row.bound.as_str().into(),
                Cell::float(row.busy * 100.0, 0),
                row.nixl.into(),
            ]);
        }
        if self.rows.iter().all(|row| row.exposed_s == row.seconds) {
            super::hide(&mut table, &["exposed_ms"]);
        }
        if self.rows.iter().all(|row| row.beside.is_none()) {
            super::hide(&mut table, &["alone_ms", "collective_percent"]);
        }
        table
    }

    fn verdict(&self) -> Option<Verdict> {
        let best = self.rows.first()?;
        let nixl = self.rows.iter().find(|row| row.nixl).filter(|row| row.path != best.path);
        let than =
            nixl.map_or(String::new(), |row| format!("; NIXL takes {}, in {:.3} ms", row.path, row.seconds * 1e3));
        let takes = format!("{} takes {:.3} ms ({:.1} GB/s)", best.path, best.seconds * 1e3, best.gb_per_s);
        let sentence = match best.busy {
            _ if best.seconds > best.exposed_s => {
                format!("{} is through {:.3} ms after the prefill", best.path, best.exposed_s * 1e3)
            }
            busy if busy < HALF => format!("{takes}, most of it latency{than}"),
            _ => {
                let assumed = if best.assumed.is_some() { ", whose rate is assumed" } else { "" };
                format!("{takes}, bound by {}{assumed}{than}", best.bound)
            }
        };
        let (status, pieces) = match best.pieces_left_out {
            true => (Status::Warning, "; what copies of its pieces cost is not counted"),
            false => (Status::Ok, ""),
        };
        Some(Verdict {
            status,
            sentence: sentence + pieces,
            confidence: "low: nine published transfers between two hosts were forecast within 8%, others were not \
                         measured"
                .to_owned(),
            basis: "constants of the profile; routes of the machine".to_owned(),
            next: None,
        })
    }
}
