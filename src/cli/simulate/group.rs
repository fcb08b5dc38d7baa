//! `collcast simulate --group`: several calls as one kernel.

use std::process::ExitCode;

use collcast_reports::model::{Cell, Column, Report, Table, Verdict};
use collcast_sim::predict::{GroupCall, GroupPrediction, Predictor, Settings};
use collcast_sim::schedule::Call;

use super::Args;
use crate::output::Format;
use crate::selectors::{UNMEASURED_SWITCHES, assumptions, trust};
use collcast::Error as CliError;

/// Forecasts the calls that `text` names.
pub(super) fn run(args: &Args, text: &str) -> Result<ExitCode, CliError> {
    let topology = args.machine.load(args.machine.one_node_count()?)?;
    let (profile, inputs) = args.machine.load_profile(&topology)?;
    let told = args.call.told(&topology)?;
    let ranks = args.call.ranks.unwrap_or_else(|| topology.ranks());
    let calls = args.call.grouped(text, ranks)?;
    let (algorithms, protocols, channels) =
        (args.call.algorithms()?, args.call.protocols()?, args.call.channel_counts()?);
    let ([algorithm], [protocol], [channels]) = (&algorithms[..], &protocols[..], &channels[..]) else {
        return Err(CliError::usage(
            "a group takes one algorithm, one protocol and one number of channels",
            "leave them out for NCCL's choice, or name one of each",
        ));
    };
    let settings = Settings { channels: *channels, ..told.settings };
    let given = args.machine.graphs(&topology, Some(ranks))?;
    let predictor = Predictor::new(&topology, &profile).with_tuner(told.tuner).with_graphs(given);
    let p = predictor.predict_group(&calls, (*algorithm, *protocol), &settings)?;

    let mut report = Report::new("simulate", env!("CARGO_PKG_VERSION"));
    report.predicted = true;
    report.inputs = inputs;
    report.assumptions = assumptions(&topology, &profile, &settings, &p.beyond);
    report.assumptions.extend(told.notes);
    report.assumptions.push("one kernel; left out: what the host takes to plan a group".to_owned());
    report.warnings.extend(told.warnings);
    report.warnings.extend(p.warnings.iter().map(ToString::to_string));
    report.tables.push(row(&calls, &p));
    report.tables.push(of_calls(&calls, &p, args.output.format() == Format::Table));
    if p.beyond.switches() {
        report.assumptions.push(UNMEASURED_SWITCHES.to_owned());
    }
    let (status, confidence, basis) = trust(&p.beyond);
    let bytes: u64 = calls.iter().map(|call| call.size().0).sum();
    report.verdict = Some(Verdict {
        status,
        sentence: format!(
            "{} call{} of {} in all over {ranks} ranks: {} as one group, bound by {}; {} one after another",
            calls.len(),
            if calls.len() == 1 { "" } else { "s" },
            collcast_sim::units::Bytes(bytes),
            p.time,
            p.bound,
            p.apart
        ),
        confidence,
        basis,
        next: None,
    });
    args.output.print(&report, None)?;
    Ok(ExitCode::SUCCESS)
}

fn row(calls: &[Call], p: &GroupPrediction) -> Table {
    let columns = [
        Column::number("calls", "calls"),
        Column::number("size_bytes", "size B"),
        Column::number("time_us", "time us"),
        Column::number("time_us_low", "low"),
        Column::number("time_us_high", "high"),
        Column::number("busbw_gbps", "busbw GB/s"),
        Column::number("kernel_us", "on the device us"),
        Column::number("apart_us", "one by one us"),
        Column::number("events", "events"),
    ];
    let bytes: f64 = calls.iter().map(|call| call.size().0 as f64 * call.collective.bus_factor(call.ranks)).sum();
    let mut table = Table::new("rows", "", columns);
    table.push([
        calls.len().into(),
        calls.iter().map(|call| call.size().0).sum::<u64>().into(),
        Cell::float(p.time.as_us(), 2),
        Cell::float(p.low.as_us(), 2),
        Cell::float(p.high.as_us(), 2),
        Cell::float(bytes / p.time.as_us().max(1e-9) / 1e3, 2),
        Cell::float(p.kernel.as_us(), 2),
        Cell::float(p.apart.as_us(), 2),
        p.events.into(),
    ]);
    table
}

/// The calls; for people (`brief`) those that are alike and one after another in one row.
fn of_calls(calls: &[Call], p: &GroupPrediction, brief: bool) -> Table {
    let columns = [
        Column::text("call", "call"),
        Column::text("collective", "collective"),
        Column::number("size_bytes", "size B"),
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
