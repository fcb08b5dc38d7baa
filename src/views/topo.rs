//! Machines as tables: the built-in ones, files that are none, NCCL's channels, routes.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};

use super::VERSION;
use crate::topo::{Builtins, CHANNELS_ROUTED, GraphsOutcome, NoMachine, PathsOutcome};

impl Builtins {
    /// Names and descriptions.
    pub fn report(&self) -> Report {
        let mut report = Report::new("topologies", VERSION);
        let columns = [Column::text("name", "name"), Column::text("description", "description")];
        let mut table = Table::new("rows", "", columns);
        for machine in &self.machines {
            table.push([machine.name.into(), machine.description.as_str().into()]);
        }
        report.tables.push(table);
        report
    }
}

/// What is said of machines is as sure as what it rests on.
fn verdict(sentence: String, basis: &str, next: Option<String>) -> Verdict {
    Verdict { status: Status::Ok, sentence, confidence: String::new(), basis: basis.to_owned(), next }
}

impl NoMachine {
    /// What the file is, and how it is used.
    pub fn report(&self) -> Report {
        let mut report = Report::new("topology-file", VERSION);
        report.tables.push(self.facts());
        let (sentence, next) = match self {
            Self::Template { file, assumptions, .. } => {
                report.assumptions = assumptions.iter().map(|a| format!("assumed: {a}")).collect();
                let next = format!("collcast topo import {file} --like dgx-h100");
                ("this is a template: merge it with a machine to use it", Some(next))
            }
            Self::Graphs(_) => ("this is NCCL's choice on some machine, not a machine", None),
        };
        report.verdict = Some(verdict(sentence.to_owned(), "the file", next));
        report
    }

    fn facts(&self) -> Table {
        match self {
            Self::Template { cpus, switches, gpus, nics, unknown, .. } => {
                let columns = [Column::text("fact", "property"), Column::text("value", "value")];
                let mut table = Table::new("facts", "", columns);
                table.push(["class".into(), "template: PCIe only, as clouds ship them; no machine by itself".into()]);
                for (what, &count) in [
                    ("CPUs", cpus),
                    ("PCIe switches", switches),
                    ("places of GPUs", gpus),
                    ("places of NICs", nics),
                    ("places of unknown devices", unknown),
                ] {
                    table.push([what.into(), count.into()]);
                }
                table
            }
            Self::Graphs(graphs) => {
                let columns = [
                    Column::number("id", "id"),
                    Column::number("pattern", "pattern"),
                    Column::number("channels", "channels"),
                    Column::number("speed_intra_gbps", "intra GB/s"),
                    Column::number("speed_inter_gbps", "inter GB/s"),
                    Column::text("type_intra", "intra"),
                    Column::text("type_inter", "inter"),
                    Column::text("order", "GPUs of the first channel"),
                ];
                let mut table = Table::new("rows", "class: graph, the channels that NCCL chose", columns);
                for graph in graphs {
                    table.push([
                        graph.id.into(),
                        graph.pattern.into(),
                        graph.channel_count.into(),
                        Cell::float(graph.speed_intra_gb_per_s, 1),
                        Cell::float(graph.speed_inter_gb_per_s, 1),
                        graph.type_intra.as_str().into(),
                        graph.type_inter.as_str().into(),
                        graph.channels.first().map(|channel| joined(&channel.gpus, " ")).into(),
                    ]);
                }
                table
            }
        }
    }
}

impl GraphsOutcome {
    /// A row a graph.
    pub fn report(&self) -> Report {
        let mut report = Report::new("graph", VERSION);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        let columns = [
            Column::text("graph", "graph"),
            Column::text("pattern", "pattern"),
            Column::number("channels", "channels"),
            Column::number("speed_intra_gbps", "intra GB/s"),
            Column::number("speed_inter_gbps", "inter GB/s"),
            Column::text("type_intra", "intra"),
            Column::text("type_inter", "inter"),
            Column::text("order", "first channel of the first host"),
        ];
        let mut table = Table::new("rows", "", columns);
        for row in &self.rows {
            table.push([
                row.graph.into(),
                format!("{:?}", row.pattern).into(),
                row.channels.into(),
                Cell::float(row.speed_intra_gbps, 2),
                Cell::float(row.speed_inter_gbps, 2),
                row.type_intra.name().into(),
                row.type_inter.name().into(),
                (!row.order.is_empty()).then(|| row.order.join(" ")).into(),
            ]);
        }
        report.tables.push(table);
        let sentence = format!(
            "{} ranks on {} host{} get {} channels, {} for NVLS, {} for send and receive ({} to one peer)",
            self.ranks,
            self.hosts,
            if self.hosts == 1 { "" } else { "s" },
            self.channels,
            self.nvls_channels,
            self.p2p_channels.0,
            self.p2p_channels.1
        );
        report.verdict = Some(verdict(sentence, "NCCL's graph search, restated", None));
        report
    }
}

impl PathsOutcome {
    /// A row a route.
    pub fn report(&self) -> Report {
        let mut report = Report::new("paths", VERSION);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        let columns = [
            Column::text("channels", "channels"),
            Column::text("class", "class"),
            Column::number("rate_gbps", "narrowest GB/s"),
            Column::text("route", "route"),
        ];
        let mut table = Table::new("rows", "", columns);
        for route in &self.routes {
            table.push([
                joined(&route.channels, ",").into(),
                route.class.name().into(),
                Cell::float(route.rate_gbps, 1),
                route.devices.join(" > ").into(),
            ]);
        }
        report.tables.push(table);
        let sentence = format!(
            "{} distinct routes from rank {} to rank {} over channels 0 to {}",
            self.routes.len(),
            self.from,
            self.to,
            CHANNELS_ROUTED - 1
        );
        report.verdict = Some(verdict(sentence, "topology", None));
        report
    }
}

fn joined<T: ToString>(items: &[T], between: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}
