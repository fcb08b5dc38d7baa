//! How NCCL came to its choice: who decided, and the table that it was made from.

use std::collections::BTreeMap;

use collcast_reports::model::{Cell, Column, Table};
use collcast_sim::nccl;
use collcast_sim::predict::{Choice, Prediction, Predictor, Settings};

use crate::error::CliError;
use crate::selectors::Point;

/// Says where NCCL picks what has no schedule here.
pub(crate) fn not_modelled(predictions: &[Prediction]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for p in predictions {
        if let Some((algorithm, protocol)) = p.instead_of {
            let what = format!(
                "NCCL picks {algorithm}/{protocol}, which has no schedule here: {}/{}, its next choice, is predicted",
                p.algorithm, p.protocol
            );
            *counts.entry(what).or_default() += 1;
        }
    }
    counts.into_iter().map(|(what, count)| format!("not_modelled in {count} rows: {what}")).collect()
}

/// Tables `choices` and `cost_table` of the points that NCCL decides on.
pub(crate) fn tables(
    points: &[Point],
    predictors: &BTreeMap<u32, Predictor<'_>>,
    settings: &BTreeMap<u32, Settings>,
) -> Result<Vec<Table>, CliError> {
    let mut out = empty();
    for point in points {
        add(&mut out, point, &predictors[&point.nodes], &settings[&point.nodes])?;
    }
    Ok(out.into())
}

/// As [`tables`], of one point.
pub(crate) fn table_of_one(
    point: &Point,
    predictor: &Predictor<'_>,
    settings: &Settings,
) -> Result<Vec<Table>, CliError> {
    let mut out = empty();
    add(&mut out, point, predictor, settings)?;
    Ok(out.into())
}

fn empty() -> [Table; 2] {
    let choices = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("size_bytes", "size B"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("channels", "ch"),
        Column::text("layer", "decided by"),
        Column::text("why", "why"),
    ];
    let costs = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("size_bytes", "size B"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("latency_us", "latency us"),
        Column::number("bandwidth_gbps", "bandwidth GB/s"),
        Column::number("time_us", "NCCL's time us"),
        Column::text("state", "state"),
    ];
    [
        Table::new("choices", "NCCL's choice (channels before the bytes are dealt to them)", choices),
        Table::new("cost_table", "NCCL's cost table", costs),
    ]
}

fn add(tables: &mut [Table; 2], point: &Point, predictor: &Predictor<'_>, settings: &Settings) -> Result<(), CliError> {
    let best = point.algorithm == Choice::Best || point.protocol == Choice::Best;
    let forced = matches!((point.algorithm, point.protocol), (Choice::Forced(_), Choice::Forced(_)));
    if best || forced {
        return Ok(());
    }
    let call = &point.call;
    let decision = predictor.decide(call, point.algorithm, point.protocol, settings)?;
    let [choices, costs] = tables;
    choices.push([
        call.collective.name().into(),
        point.nodes.into(),
        call.size().0.into(),
        decision.algorithm.name().into(),
        decision.protocol.name().into(),
        decision.channels.into(),
        decision.layer.to_string().into(),
        decision.why.as_str().into(),
    ]);
    for candidate in &decision.candidates {
        let chosen = (candidate.algorithm, candidate.protocol) == (decision.algorithm, decision.protocol);
        let (cost, state) = match candidate.cell {
            nccl::Cell::On(cost) if chosen => (Some(cost), "chosen"),
            nccl::Cell::On(cost) => (Some(cost), ""),
            nccl::Cell::Off(why) => (None, why),
            nccl::Cell::NoKernel => (None, "no kernel"),
        };
        let float = |value: f32| Cell::float(f64::from(value), 2);
        costs.push([
            call.collective.name().into(),
            point.nodes.into(),
            call.size().0.into(),
            candidate.algorithm.name().into(),
            candidate.protocol.name().into(),
            cost.map(|c| float(c.latency_us)).into(),
            cost.map(|c| float(c.bandwidth_gb_per_s)).into(),
            candidate.time_us.map(float).into(),
            if candidate.tuned { format!("{state} (the tuner sets 0)") } else { state.to_owned() }.into(),
        ]);
    }
    Ok(())
}
