//! What a machine was found to be and to do: its tables as files and as a report.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::collective::Protocol;

use super::bench::rows_table;
use crate::kernels::NetworkRow;
use crate::probe::{NetworkOutcome, Outcome, SPOTS, Times};

impl Outcome {
    /// What is no collective, as `probe.csv` has it.
    pub fn spots_report(&self) -> Report {
        self.with(SPOTS.map(str::to_owned).to_vec(), vec![self.spots_table()])
    }

    /// The collectives, as `collectives.csv` has them.
    pub fn rows_report(&self) -> Report {
        self.with(Vec::new(), vec![rows_table("cuda", &self.rows)])
    }

    /// The kernels, as files of these names have them.
    pub fn kernel_reports(&self) -> Vec<(&'static str, Report)> {
        let files = ["products.csv", "sustained.csv", "memory.csv"].into_iter().zip(self.kernel_tables());
        let some = files.filter(|(_, table)| !table.rows.is_empty());
        some.map(|(name, table)| (name, self.with(Vec::new(), vec![table]))).collect()
    }

    /// Everything, with a verdict.
    pub fn report(&self) -> Report {
        let tables = [self.spots_table(), rows_table("cuda", &self.rows)].into_iter().chain(self.kernel_tables());
        let mut report = self.with(Vec::new(), tables.filter(|table| !table.rows.is_empty()).collect());
        let folder = self.folder.display();
        report.verdict = Some(Verdict {
            status: if self.interrupted { Status::Warning } else { Status::Ok },
            sentence: format!(
                "{} times of collectives, {} of kernels and {} others are in {folder}{}",
                self.rows.len(),
                self.kernels.products.len() + self.kernels.sustained.len() + self.kernels.memory.len(),
                self.spots.len(),
                if self.interrupted { ", interrupted before the end" } else { "" }
            ),
            confidence: match self.rows.is_empty() {
                true => "medium: medians of some batches; results were not compared",
                false => "high: every result of a collective was compared",
            }
            .to_owned(),
            basis: "measured".to_owned(),
            next: Some(match self.rows.is_empty() {
                true => format!("fit a profile of the GPU: `collcast calibrate {folder} --compute GPU -o mine.toml`"),
                false => format!("fit a profile: `collcast calibrate {folder} -t {}`", self.topology.display()),
            }),
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

    fn kernel_tables(&self) -> [Table; 3] {
        let times =
            || [Column::number("us", "us"), Column::number("us_min", "least"), Column::number("us_max", "most")];
        let cells = |t: Times| [t.us, t.least_us, t.most_us].map(|us| Cell::float(us, 3));
        let [m, n, k] =
            [("m", "tokens"), ("n", "outputs"), ("k", "inputs")].map(|(key, title)| Column::number(key, title));
        let columns = [
            Column::text("dtype", "elements"),
            Column::text("kind", "product"),
            m,
            n,
            k,
            Column::number("batch", "batch"),
        ];
        let mut products =
            Table::new("products", "products of layers, back to back", columns.into_iter().chain(times()));
        for row in &self.kernels.products {
            let [m, n, k] = row.shape.map(Cell::from);
            let shape = [row.dtype.into(), row.kind.into(), m, n, k, 1_u64.into()];
            products.push(shape.into_iter().chain(cells(row.times)));
        }
        let [m, n, k] = ["m", "n", "k"].map(|key| Column::number(key, key));
        let long = [
            Column::text("dtype", "elements"),
            Column::text("kernel", "kernel"),
            m,
            n,
            k,
            Column::number("seconds", "s"),
        ];
        let mut sustained = Table::new(
            "sustained",
            "one product from an idle GPU",
            long.into_iter().chain([Column::number("us", "us")]),
        );
        for row in &self.kernels.sustained {
            let [m, n, k] = [row.size; 3].map(Cell::from);
            let shape = ["bf16".into(), "product".into(), m, n, k, Cell::float(row.seconds, 2)];
            sustained.push(shape.into_iter().chain([Cell::float(row.us, 3)]));
        }
        let columns =
            [Column::text("kernel", "kernel"), Column::number("rows", "bytes"), Column::number("width", "width")];
        let mut memory = Table::new("memory", "kernels that memory bounds", columns.into_iter().chain(times()));
        for row in &self.kernels.memory {
            memory.push([row.kernel.into(), row.bytes.into(), 1_u64.into()].into_iter().chain(cells(row.times)));
        }
        [products, sustained, memory]
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

/// What the columns of `verbs.csv` mean, for its first lines.
const NETWORK: [&str; 6] = [
    "latency_*: half of a round trip of one message: RDMA writes seen in memory, writes with immediate, sends",
    "post, completion: time of the thread for one of them; message_rate: one of many writes of 8 bytes",
    "latency_write_far: by a thread of another NUMA node than the NIC's, where there is one",
    "bandwidth: one of many writes over so many queue pairs; _both: while the peer does so too; _relaxed: in any order",
    "lines: a thread of rank 0 checks so many bytes of LL that another thread wrote",
    "us is the median of the batches of one message, p5 and p95 what 5% and 95% do not exceed; GB/s counts 1e9 bytes",
];

impl NetworkOutcome {
    /// The times, as `verbs.csv` has them.
    pub fn rows_report(&self) -> Report {
        let mut report = Report::new("probe", super::VERSION);
        let host = self.facts.iter().find(|(key, _)| key == "host").map(|(_, value)| value.as_str());
        report.assumptions.push(format!("measured between {}", host.unwrap_or("processes")));
        report.assumptions.extend(NETWORK.map(str::to_owned));
        report.tables = vec![self.rows_table()];
        report
    }

    /// Times and constants, with a verdict.
    pub fn report(&self) -> Report {
        let mut report = self.rows_report();
        let columns = [
            Column::text("constant", "constant"),
            Column::text("unit", "unit"),
            Column::number("value", "value"),
            Column::number("low", "from"),
            Column::number("high", "to"),
            Column::text("source", "source"),
        ];
        let mut constants = Table::new("constants", "constants of the network", columns);
        for (constant, p) in self.constants() {
            let [low, high] = p.interval.unwrap_or([p.value; 2]);
            let numbers = [p.value, low, high].map(|v| Cell::float(v, 2));
            constants.push(
                [constant.name().into(), constant.spec().unit.into()]
                    .into_iter()
                    .chain(numbers)
                    .chain([p.source.into()]),
            );
        }
        report.tables.push(constants);
        let folder = self.folder.display();
        report.verdict = Some(Verdict {
            status: Status::Ok,
            sentence: format!("{} times between processes are in {folder}", self.rows.len()),
            confidence: "medium: medians of some batches of each".to_owned(),
            basis: "measured".to_owned(),
            next: Some(format!("forecast with it: `collcast sweep --profile prior --profile {folder}/network.toml`")),
        });
        report
    }

    fn rows_table(&self) -> Table {
        let columns = [
            Column::text("kind", "kind"),
            Column::number("src", "src"),
            Column::number("dst", "dst"),
            Column::text("nic", "NIC"),
            Column::number("qps", "queue pairs"),
            Column::number("size_bytes", "size"),
            Column::number("time_us", "us"),
            Column::number("time_us_p5", "p5"),
            Column::number("time_us_p95", "p95"),
            Column::number("gbps", "GB/s"),
        ];
        let mut table = Table::new("verbs", "what the NICs do", columns);
        for row in &self.rows {
            let found = NetworkRow::of(row);
            let [us, p5, p95] = found.us.map(|us| Cell::float(us, 2));
            table.push([
                row.kind.name().into(),
                row.src.into(),
                row.dst.into(),
                row.nic.as_str().into(),
                row.qps.into(),
                row.bytes.into(),
                us,
                p5,
                p95,
                Cell::float(found.gbps(0), 3),
            ]);
        }
        table
    }
}
