//! Forecasts as reports.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use collcast_reports::model::{Bar, Cell, Column, Report, Table, Verdict};
use collcast_reports::nccl_tests::{self, NcclTests, NcclTestsRow};
use collcast_sim::collective::{Algorithm, Launch};
use collcast_sim::ids::Rank;
use collcast_sim::predict::{Choice, GroupCall};
use collcast_sim::schedule::{Call, valid_algorithms};
use collcast_sim::units::{Bytes, SimDuration};

use super::{asked_cells, asked_columns, hide};
use crate::confidence::Grounds;
use crate::error::Error;
use crate::forecast::explain::Explained;
use crate::forecast::scaling::Scaling;
use crate::forecast::{Outcome, Row, group, unsaid_note};
use crate::query::asked;
use crate::site::Site;

impl Outcome {
    /// A table of forecasts. `people`: without the columns that only files need.
    pub fn report(&self, people: bool, more_unsaid: &[&'static str]) -> Report {
        let outcome = self;
        let mut report = begin("sweep", outcome, more_unsaid);
        let mut rows = rows(&outcome.rows);
        if people {
            for_people(&mut rows, &outcome.rows);
        }
        // On a screen the tables over node counts say what hundreds of rows would hide.
        if !people || outcome.scaling.is_none() {
            report.tables.push(rows);
        }
        report.tables.extend(outcome.scaling.as_ref().into_iter().flat_map(scaling));
        if !outcome.explained.is_empty() {
            report.tables.extend(explained(&outcome.explained));
        }
        report.verdict = verdict(outcome);
        report
    }
}

impl Outcome {
    /// One call in detail: how its time comes about, and the busiest links.
    pub fn detail(&self, site: &Site, people: bool) -> Report {
        let outcome = self;
        let mut report = begin("simulate", outcome, &[]);
        let Some(row) = outcome.rows.first() else { return report };
        let mut table = one_row(row);
        if people {
            hide(&mut table, &asked_columns().each_ref().map(|column| &*column.key));
        }
        report.tables.push(table);
        report.tables.push(facts(row, people));
        report.tables.push(links(site, row));
        if !outcome.explained.is_empty() {
            report.tables.extend(explained(&outcome.explained));
        }
        let sentence = format!(
            "{} of {} over {} takes {}{}, bound by {}",
            row.collective,
            Bytes(row.size_bytes),
            ranks(row.ranks),
            SimDuration::from_us(row.time_us),
            rate(row).map_or_else(String::new, |rate| format!(" ({rate}, {})", likely(row))),
            row.bound
        );
        report.verdict = Some(row.grounds.trust().verdict(sentence, None));
        report
    }
}

/// A row's bandwidth: of the bus, over which a rank alone sends nothing; none of 0 B, nor of a rank alone in place, where nothing
/// moves.
fn bandwidth(row: &Row) -> Option<(f64, &'static str)> {
    if row.ranks == 1 && row.asked.in_place {
        return None;
    }
    [(row.busbw_gbps, "bus"), (row.algbw_gbps, "algorithm")].into_iter().find(|(gbps, _)| *gbps > 0.0)
}

fn ranks(count: u32) -> String {
    format!("{count} rank{}", if count == 1 { "" } else { "s" })
}

/// The same in words.
fn rate(row: &Row) -> Option<String> {
    bandwidth(row).map(|(gbps, of)| format!("{} GB/s of {of} bandwidth", three(gbps)))
}

/// The 90% interval of a row's bandwidth.
fn likely(row: &Row) -> String {
    let gbps = bandwidth(row).map_or(0.0, |(gbps, _)| gbps);
    let at = |us: f64| if us > 0.0 { gbps * row.time_us / us } else { 0.0 };
    format!("likely {} to {}", three(at(row.high_us)), three(at(row.low_us)))
}

/// A rate with three digits, more before the point.
fn three(gbps: f64) -> String {
    match gbps {
        _ if gbps >= 100.0 => format!("{gbps:.0}"),
        _ if gbps >= 10.0 => format!("{gbps:.1}"),
        _ if gbps >= 1.0 => format!("{gbps:.2}"),
        _ => format!("{gbps:.3}"),
    }
}

fn begin(kind: &'static str, outcome: &Outcome, more_unsaid: &[&'static str]) -> Report {
    let mut report = Report::new(kind, super::VERSION);
    report.predicted = true;
    report.inputs.clone_from(&outcome.inputs);
    report.assumptions.clone_from(&outcome.notes);
    report.assumptions.extend(unsaid_note(&[&outcome.unsaid, more_unsaid].concat()));
    report.warnings.clone_from(&outcome.warnings);
    report
}

fn rows(rows: &[Row]) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("time_us", "time us"),
        Column::number("time_us_low", "low us"),
        Column::number("time_us_high", "high us"),
        Column::number("algbw_gbps", "algbw GB/s"),
        Column::number("busbw_gbps", "busbw GB/s").barred(Bar::OfLargest),
        Column::text("bound", "bound by"),
        Column::number("messages", "messages"),
        Column::text("folded", "folded"),
        Column::text("chosen_by", "chosen by"),
        Column::number("channels_asked", "channels asked"),
        Column::text("instead_of", "instead of"),
    ];
    // Words with commas come last.
    let columns = columns.into_iter().chain(asked_columns()).chain([Column::text("asked", "asked for")]);
    let mut table = Table::new("rows", "", columns);
    for row in rows {
        let p = &row.prediction;
        let cells = [
            row.collective.name().into(),
            row.nodes.into(),
            row.ranks.into(),
            row.size_bytes.into(),
            row.algorithm.name().into(),
            row.protocol.name().into(),
            row.channels.into(),
            Cell::float(row.time_us, 2),
            Cell::float(row.low_us, 2),
            Cell::float(row.high_us, 2),
            Cell::float(row.algbw_gbps, 2),
            Cell::float(row.busbw_gbps, 2),
            row.bound.into(),
            p.messages.into(),
            format!("{} -> {}", p.folded.0, p.folded.1).into(),
            row.chosen_by.clone().into(),
            row.query.channels.into(),
            row.instead_of.map(|(a, p)| format!("{a}/{p}, not modelled")).into(),
        ];
        let asked = asked(row.query.algorithm, row.query.protocol, row.query.channels);
        table.push(cells.into_iter().chain(asked_cells(&row.asked)).chain([asked.into()]));
    }
    table
}

/// For a screen: what is the same in every row goes into the title, what only files need goes.
fn for_people(table: &mut Table, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    table.title = format!("{} over {}", first.collective, ranks(first.ranks));
    let settings = asked_columns();
    let settings = settings.each_ref().map(|column| &*column.key);
    let mut hidden = [&["messages", "folded", "chosen_by", "channels_asked", "asked"], &settings[..]].concat();
    if rows.iter().all(|row| row.instead_of.is_none()) {
        hidden.push("instead_of");
    }
    if rows.iter().all(|row| (row.collective, row.nodes) == (first.collective, first.nodes)) {
        hidden.extend(["collective", "nodes", "ranks"]);
    } else {
        table.title.clear();
    }
    hide(table, &hidden);
}

fn verdict(outcome: &Outcome) -> Option<Verdict> {
    let best_of = |is: &dyn Fn(&&Row) -> bool| {
        outcome
            .rows
            .iter()
            .filter(|row| is(row))
            .max_by(|a, b| a.busbw_gbps.total_cmp(&b.busbw_gbps).then(a.algbw_gbps.total_cmp(&b.algbw_gbps)))
    };
    let best = best_of(&|_| true)?;
    let like = |of: &Row| (of.nodes, of.collective);
    let grounds = |of: &Row| -> Grounds {
        outcome.rows.iter().filter(|row| like(row) == like(of)).map(|row| row.grounds.clone()).collect()
    };
    // Of several numbers of hosts the least certain: no other verdict holds for all of them.
    let mut of_nodes: BTreeMap<u32, &Row> = BTreeMap::new();
    for row in outcome.rows.iter().filter(|row| row.collective == best.collective) {
        of_nodes.entry(row.nodes).or_insert(row);
    }
    let least =
        of_nodes.into_values().min_by_key(|row| (grounds(row).level(), row.nodes != best.nodes, Reverse(row.nodes)))?;
    let alike = |row: &&Row| like(row) == like(least);
    let best = best_of(&alike)?;
    // The best at the smallest size that is not 0 B, as the peak is the best of all.
    let size = |row: &Row| (row.size_bytes == 0, row.size_bytes);
    let first = |a: &&Row, b: &&Row| size(a).cmp(&size(b)).then(a.time_us.total_cmp(&b.time_us));
    let smallest = outcome.rows.iter().filter(alike).min_by(first)?;
    let peak = rate(best).map_or_else(
        || ":".to_owned(),
        |rate| {
            let (likely, size) = (likely(best), Bytes(best.size_bytes));
            let Row { algorithm, protocol, bound, .. } = best;
            format!(" peaks at {rate} ({likely}; {algorithm}/{protocol} at {size}), bound by {bound};")
        },
    );
    let sentence = format!(
        "{} over {}{peak} {} takes {:.1} us (likely {:.1} to {:.1})",
        best.collective,
        ranks(best.ranks),
        Bytes(smallest.size_bytes),
        smallest.time_us,
        smallest.low_us,
        smallest.high_us,
    );
    let next = Some("run nccl-tests there, then `collcast validate LOG -t TOPOLOGY`".to_owned());
    Some(grounds(best).trust().verdict(sentence, next))
}

/// Tables `scaling` and `crossovers`.
fn scaling(scaling: &Scaling) -> [Table; 2] {
    let columns = [
        Column::text("collective", "collective"),
        Column::number("size_bytes", "size"),
        Column::number("nodes", "nodes"),
        Column::number("ranks", "ranks"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("time_us", "time us"),
        Column::number("time_us_low", "low"),
        Column::number("time_us_high", "high"),
        Column::number("busbw_gbps", "busbw GB/s").barred(Bar::OfLargest),
        Column::number("efficiency", "efficiency"),
    ];
    let mut points = Table::new("scaling", "Scaling", columns);
    for p in &scaling.points {
        points.push([
            p.collective.name().into(),
            p.size_bytes.into(),
            p.nodes.into(),
            p.ranks.into(),
            p.algorithm.name().into(),
            p.protocol.name().into(),
            Cell::float(p.time_us, 1),
            Cell::float(p.low_us, 1),
            Cell::float(p.high_us, 1),
            Cell::float(p.busbw_gbps, 2),
            p.efficiency.map_or(Cell::Missing, |e| Cell::float(e, 2)),
        ]);
    }
    let columns = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("size_min_bytes", "from"),
        Column::number("size_max_bytes", "to"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
    ];
    let mut ranges = Table::new("crossovers", "Which choice at which sizes", columns);
    for r in &scaling.ranges {
        ranges.push([
            r.collective.name().into(),
            r.nodes.into(),
            r.from_bytes.into(),
            r.to_bytes.into(),
            r.algorithm.name().into(),
            r.protocol.name().into(),
        ]);
    }
    [points, ranges]
}

/// Tables `choices` and `cost_table`.
fn explained(all: &[Explained]) -> [Table; 2] {
    let choices = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("size_bytes", "size"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::text("layer", "decided by"),
        Column::text("why", "why"),
    ];
    let costs = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("size_bytes", "size"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("latency_us", "latency us"),
        Column::number("bandwidth_gbps", "bandwidth GB/s"),
        Column::number("time_us", "NCCL's estimate us"),
        Column::text("state", "state"),
    ];
    let mut choices = Table::new("choices", "NCCL's choice (channels before the bytes are dealt to them)", choices);
    let mut costs = Table::new("cost_table", "NCCL's cost table: what its own model estimates, and chooses by", costs);
    for one in all {
        let call = || [one.collective.name().into(), one.nodes.into(), one.size_bytes.into()].into_iter();
        choices.push(call().chain([
            one.algorithm.name().into(),
            one.protocol.name().into(),
            one.channels.into(),
            one.layer.as_str().into(),
            one.why.as_str().into(),
        ]));
        for cost in &one.costs {
            let float = |value: Option<f32>| value.map(|value| Cell::float(f64::from(value), 2)).into();
            costs.push(call().chain([
                cost.algorithm.name().into(),
                cost.protocol.name().into(),
                float(cost.latency_us),
                float(cost.bandwidth_gbps),
                float(cost.time_us),
                cost.state.as_str().into(),
            ]));
        }
    }
    [choices, costs]
}

fn one_row(row: &Row) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::number("ranks", "ranks"),
        Column::number("nodes", "nodes"),
        Column::number("size_bytes", "size"),
        Column::number("time_us", "time us"),
        Column::number("time_us_low", "low us"),
        Column::number("time_us_high", "high us"),
        Column::number("algbw_gbps", "algbw GB/s"),
        Column::number("busbw_gbps", "busbw GB/s").barred(Bar::OfLargest),
        Column::number("messages", "messages"),
        Column::text("folded", "folded"),
    ];
    let mut table = Table::new("rows", "", columns.into_iter().chain(asked_columns()));
    let p = &row.prediction;
    let cells = [
        row.collective.name().into(),
        row.algorithm.name().into(),
        row.protocol.name().into(),
        row.channels.into(),
        row.ranks.into(),
        row.nodes.into(),
        row.size_bytes.into(),
        Cell::float(row.time_us, 2),
        Cell::float(row.low_us, 2),
        Cell::float(row.high_us, 2),
        Cell::float(row.algbw_gbps, 2),
        Cell::float(row.busbw_gbps, 2),
        p.messages.into(),
        format!("{} -> {}", p.folded.0, p.folded.1).into(),
    ];
    table.push(cells.into_iter().chain(asked_cells(&row.asked)));
    table
}

fn facts(row: &Row, people: bool) -> Table {
    let p = &row.prediction;
    let mut table =
        Table::new("facts", "how it comes about", [Column::text("fact", "fact"), Column::text("value", "value")]);
    let element = row.asked.dtype.size();
    let chosen = match (row.query.algorithm, p.layer) {
        _ if p.algorithm == Algorithm::Msccl => "the file".to_owned(),
        _ if p.algorithm == Algorithm::Direct => "NCCL's rule for send and receive".to_owned(),
        (_, Some(layer)) => layer.to_string(),
        (Choice::Best, _) => "the fastest of all that were predicted".to_owned(),
        _ => "the user".to_owned(),
    };
    let of_part = p.grown.map_or(String::new(), |grown| format!(" (that of {} hosts)", grown.hosts[2]));
    let values: [(&str, String); 11] = [
        ("chosen by", chosen),
        (
            if people { "GPU time of a call" } else { "on the device" },
            format!("{}; the host can launch a call every {}", p.kernel, p.issue),
        ),
        ("threads a block", p.plan.threads.to_string()),
        (
            "chunk",
            format!(
                "{} in {} slice(s), {} slices fit a FIFO",
                Bytes(p.plan.chunk * element),
                p.plan.slices,
                p.plan.fifo_slices
            ),
        ),
        ("schedule", p.proof.to_string()),
        ("schedule hash", schedule_hash(p.schedule_hash) + &of_part),
        ("cannot be below", format!("{} ({})", p.bound.time, p.bound.what)),
        ("bound by", p.bound_by().to_owned()),
        ("busiest lane", format!("{:.0}% of its instruction rate", p.lane_utilisation * 100.0)),
        ("busiest proxy thread", format!("{:.0}% of its time", p.proxy_utilisation * 100.0)),
        ("events", p.events.to_string()),
    ];
    for (fact, value) in values {
        table.push([fact.into(), value.into()]);
    }
    table
}

/// How outputs write [`collcast_sim::schedule::Schedule::identity`].
pub fn schedule_hash(hash: u64) -> String {
    format!("{hash:016x}")
}

fn links(site: &Site, row: &Row) -> Table {
    let columns = [
        Column::text("link", "link (the first of its kind)"),
        Column::text("kind", "kind"),
        Column::number("rate_gbps", "rate GB/s"),
        Column::number("utilisation", "used %").barred(Bar::OfHundred),
    ];
    let mut table = Table::new("links", "busiest links, protocol overhead included", columns);
    for used in &row.prediction.busiest {
        let link = site.topology.link(used.link);
        table.push([
            site.topology.link_name(used.link).into(),
            link.kind.name().into(),
            Cell::float(link.rate.gb_per_s(), 1),
            Cell::float(used.utilisation * 100.0, 1),
        ]);
    }
    table
}

impl group::Outcome {
    /// A group of calls. `people`: calls that are alike and one after another in one row.
    pub fn report(&self, people: bool) -> Report {
        let outcome = self;
        let p = &outcome.prediction;
        let mut report = Report::new("simulate", super::VERSION);
        report.predicted = true;
        report.inputs.clone_from(&outcome.inputs);
        report.assumptions.clone_from(&outcome.notes);
        report.warnings.clone_from(&outcome.warnings);
        report.tables.push(group_row(outcome));
        report.tables.push(of_calls(outcome, people));
        let sentence = format!(
            "{} call{} of {} in all over {} ranks: {} as one group, bound by {}; {} one after another",
            outcome.calls.len(),
            if outcome.calls.len() == 1 { "" } else { "s" },
            Bytes(outcome.size_bytes),
            outcome.ranks,
            p.time,
            p.bound,
            p.apart
        );
        report.verdict = Some(outcome.grounds.trust().verdict(sentence, None));
        report
    }
}

fn group_row(outcome: &group::Outcome) -> Table {
    let columns = [
        Column::number("calls", "calls"),
        Column::number("size_bytes", "size"),
        Column::number("time_us", "time us"),
        Column::number("time_us_low", "low us"),
        Column::number("time_us_high", "high us"),
        Column::number("busbw_gbps", "busbw GB/s").barred(Bar::OfLargest),
        Column::number("kernel_us", "GPU time us"),
        Column::number("apart_us", "one by one us"),
        Column::number("events", "events"),
    ];
    let mut table = Table::new("rows", "", columns);
    table.push([
        outcome.calls.len().into(),
        outcome.size_bytes.into(),
        Cell::float(outcome.time_us, 2),
        Cell::float(outcome.low_us, 2),
        Cell::float(outcome.high_us, 2),
        Cell::float(outcome.busbw_gbps, 2),
        Cell::float(outcome.prediction.kernel.as_us(), 2),
        Cell::float(outcome.apart_us, 2),
        outcome.prediction.events.into(),
    ]);
    table
}

/// The calls; for people (`brief`) those that are alike and one after another in one row.
fn of_calls(outcome: &group::Outcome, brief: bool) -> Table {
    let (calls, p) = (&outcome.calls, &outcome.prediction);
    let columns = [
        Column::text("call", "call"),
        Column::text("collective", "collective"),
        Column::number("size_bytes", "size"),
        Column::number("choice", "choice"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::text("channels", "channels"),
        Column::text("layer", "decided by"),
    ];
    let title = match brief {
        true => "NCCL's choices (calls of one number share it), and the channels of the calls of a row",
        false => "NCCL's choices (calls of one number share it), and the channels of each call",
    };
    let mut table = Table::new("calls", title, columns);
    let range = |first: u32, last: u32| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let all: Vec<_> = (1..).zip(calls.iter().zip(&p.calls)).collect();
    let alike = |a: &(u32, (&Call, &GroupCall)), b: &(u32, (&Call, &GroupCall))| {
        brief && a.1.1.choice == b.1.1.choice && a.1.0.size() == b.1.0.size()
    };
    for run in all.chunk_by(alike) {
        let [(first, (call, chosen)), ..] = run else { continue };
        let last = run.last().map_or(*first, |one| one.0);
        let channels = run.iter().map(|one| one.1.1.dealt);
        let most = channels.clone().map(|dealt| dealt.last).max().unwrap_or(0);
        table.push([
            range(*first, last).into(),
            call.collective.name().into(),
            call.size().0.into(),
            (chosen.choice + 1).into(),
            chosen.algorithm.name().into(),
            chosen.protocol.name().into(),
            range(channels.map(|dealt| dealt.first).min().unwrap_or(0), most).into(),
            chosen.layer.map_or("the user".to_owned(), |layer| layer.to_string()).into(),
        ]);
    }
    table
}

/// What nccl-tests' table cannot say, beside what other formats cannot.
pub fn unsaid_in_text(outcome: &Outcome) -> Vec<&'static str> {
    let any = |what: &dyn Fn(&Row) -> bool| outcome.rows.iter().any(what);
    let flags = [
        // nccl-tests registers its buffers in CUDA graphs, and nowhere else.
        ("--registered", any(&|row| row.asked.registered != (row.asked.launch == Launch::Graph))),
        ("--in-place", any(&|row| row.asked.in_place)),
        ("best", any(&|row| row.query.algorithm == Choice::Best || row.query.protocol == Choice::Best)),
    ];
    flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0).collect()
}

/// The lines of nccl-tests above its table, as its readers understand them: what ran where.
fn header(site: &Site, row: &Row) -> Vec<String> {
    let call = &row.query.call;
    let mut set = Vec::new();
    if let Choice::Forced(algorithm) = row.query.algorithm {
        set.push(format!("NCCL_ALGO={algorithm}"));
    }
    if let Choice::Forced(protocol) = row.query.protocol {
        set.push(format!("NCCL_PROTO={protocol}"));
    }
    if let Some(channels) = row.query.channels {
        let peers = if valid_algorithms(call.collective) == [Algorithm::Direct] { "P2P_" } else { "" };
        set.extend(["MIN", "MAX"].map(|end| format!("NCCL_{end}_{peers}NCHANNELS={channels}")));
    }
    set.push(nccl_tests::perf_name(call.collective).to_owned());
    let (threads, gpus) = match row.asked.launch {
        Launch::Threads => (call.ranks, 1),
        Launch::SingleThread => (1, call.ranks),
        Launch::Processes | Launch::Graph => (1, 1),
    };
    let graph = u8::from(row.asked.launch == Launch::Graph);
    let mut lines = vec![
        format!("cmd: {}", set.join(" ")),
        format!("NCCL version {}", row.asked.nccl_version),
        format!("nThread {threads} nGpus {gpus} graph: {graph}"),
        "Using devices".to_owned(),
    ];
    let topology = &site.topology;
    lines.extend((0..call.ranks.min(topology.ranks())).map(|rank| {
        let host = topology.host_of(Rank(rank));
        let gpu = topology.gpu(topology.gpu_of(Rank(rank)));
        let (device, model) = gpu.map_or((0, ""), |gpu| (gpu.index, gpu.model.as_str()));
        let name = topology.hosts().get(host.index()).map_or("host", |host| host.name.as_str());
        format!(" Rank {rank:2} Group  0 Pid {:6} on {name} device {device:2} [{device:02x}] {model}", rank + 1)
    }));
    lines
}

/// Forecasts as nccl-tests prints measurements; `in_place`: the same calls in place.
///
/// # Errors
/// More than one collective, algorithm, protocol, channel or node count.
pub fn as_nccl_tests(site: &Site, report: &Report, outcome: &Outcome, in_place: &Outcome) -> Result<String, Error> {
    let series = |row: &Row| (row.nodes, row.collective, row.query.algorithm, row.query.protocol, row.query.channels);
    let one = outcome.rows.first().filter(|first| outcome.rows.iter().all(|row| series(row) == series(first)));
    let Some(first) = one else {
        return Err(Error::usage(
            "nccl-tests' table holds one collective, algorithm, protocol and node count",
            "ask for one of each, or use --format table, csv or json",
        ));
    };
    let rows = outcome.rows.iter().zip(&in_place.rows).map(|(row, in_place)| NcclTestsRow {
        size_bytes: row.size_bytes,
        count: row.query.call.count,
        data_type: row.asked.dtype,
        redop: row.asked.op,
        root: row.asked.root,
        out_of_place_us: row.time_us,
        in_place_us: Some(in_place.time_us),
        bus_factor: Call { ranks: row.ranks, ..row.query.call.clone() }.bus_factor(),
    });
    Ok(nccl_tests::render(&NcclTests {
        collective: first.collective,
        predicted: true,
        checked: false,
        comments: [report.assumptions.clone(), header(site, first)].concat(),
        rows: rows.collect(),
    }))
}
