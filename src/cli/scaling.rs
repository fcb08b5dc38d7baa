//! How a collective scales with hosts: bandwidth, efficiency, and where the choice changes.

use std::collections::BTreeMap;

use collcast_reports::model::{Cell, Column, Table};
use collcast_sim::collective::Collective;
use collcast_sim::predict::Prediction;

use crate::selectors::Point;
use crate::sweep::busbw;

/// Sizes that a scaling table is read at: latency, the middle of training's messages, bandwidth.
const READ_AT: [u64; 4] = [8 << 10, 1 << 20, 32 << 20, 1 << 30];

/// The fastest of all series, by collective, nodes and size.
type Fastest<'a> = BTreeMap<(Collective, u32, u64), (&'a Point, &'a Prediction)>;

fn fastest<'a>(points: &'a [Point], predictions: &'a [Prediction]) -> Fastest<'a> {
    let mut fastest = Fastest::new();
    for (point, prediction) in points.iter().zip(predictions) {
        let key = (point.call.collective, point.nodes, point.call.size().0);
        let entry = fastest.entry(key).or_insert((point, prediction));
        if prediction.time < entry.1.time {
            *entry = (point, prediction);
        }
    }
    fastest
}

/// Tables `scaling` and `crossovers` of a sweep over several node counts; none over one.
///
/// Efficiency is the bus bandwidth over that of the fewest nodes at the same size. A row of
/// `crossovers` is a range of sizes with one choice.
pub(crate) fn tables(points: &[Point], predictions: &[Prediction]) -> Vec<Table> {
    let fastest = fastest(points, predictions);
    let Some(fewest) = points.iter().map(|p| p.nodes).min().filter(|&n| points.iter().any(|p| p.nodes != n)) else {
        return Vec::new();
    };
    vec![scaling(&fastest, fewest), crossovers(&fastest)]
}

fn scaling(fastest: &Fastest<'_>, fewest: u32) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::number("size_bytes", "size B"),
        Column::number("nodes", "nodes"),
        Column::number("ranks", "ranks"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
        Column::number("time_us", "time us"),
        Column::number("busbw_gbps", "busbw GB/s"),
        Column::number("efficiency", "efficiency"),
    ];
    let mut table = Table::new("scaling", "Scaling", columns);
    let mut collectives: Vec<Collective> = fastest.keys().map(|k| k.0).collect();
    collectives.dedup();
    for collective in collectives {
        // Sizes that every node count has (a total size rounds to whole elements per rank), by
        // their place in the sweep.
        let by_nodes = by_nodes(fastest, collective);
        let places = by_nodes.values().map(Vec::len).min().unwrap_or(0);
        let size_at = |place: usize| by_nodes.values().next().map_or(0, |rows| rows[place].0.call.size().0);
        let mut read: Vec<usize> = READ_AT
            .iter()
            .filter_map(|&wanted| (0..places).min_by_key(|&place| size_at(place).abs_diff(wanted)))
            .collect();
        read.dedup();
        for place in read {
            let base = by_nodes.get(&fewest).map(|rows| busbw(rows[place].0, rows[place].1));
            for rows in by_nodes.values() {
                let (point, prediction) = rows[place];
                let bus = busbw(point, prediction);
                table.push([
                    collective.name().into(),
                    point.call.size().0.into(),
                    point.nodes.into(),
                    point.call.ranks.into(),
                    prediction.algorithm.name().into(),
                    prediction.protocol.name().into(),
                    Cell::float(prediction.time.as_us(), 1),
                    Cell::float(bus, 2),
                    base.filter(|&b| b > 0.0).map_or(Cell::Missing, |b| Cell::float(bus / b, 2)),
                ]);
            }
        }
    }
    table
}

fn by_nodes<'a>(fastest: &Fastest<'a>, collective: Collective) -> BTreeMap<u32, Vec<(&'a Point, &'a Prediction)>> {
    let mut by_nodes: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for (&(_, nodes, _), &row) in fastest.iter().filter(|(k, _)| k.0 == collective) {
        by_nodes.entry(nodes).or_default().push(row);
    }
    by_nodes
}

fn crossovers(fastest: &Fastest<'_>) -> Table {
    let columns = [
        Column::text("collective", "collective"),
        Column::number("nodes", "nodes"),
        Column::number("size_min_bytes", "from B"),
        Column::number("size_max_bytes", "to B"),
        Column::text("algorithm", "algorithm"),
        Column::text("protocol", "protocol"),
    ];
    let mut table = Table::new("crossovers", "Which choice at which sizes", columns);
    let mut open: Option<(Collective, u32, u64, u64, &Prediction)> = None;
    let mut close = |range: Option<(Collective, u32, u64, u64, &Prediction)>| {
        if let Some((collective, nodes, from, to, p)) = range {
            let names = [p.algorithm.name().into(), p.protocol.name().into()];
            table.push([collective.name().into(), nodes.into(), from.into(), to.into()].into_iter().chain(names));
        }
    };
    for (&(collective, nodes, size), &(_, prediction)) in fastest {
        let choice = (prediction.algorithm, prediction.protocol);
        match &mut open {
            Some((c, n, _, to, p)) if (*c, *n, (p.algorithm, p.protocol)) == (collective, nodes, choice) => *to = size,
            _ => close(open.replace((collective, nodes, size, size, prediction))),
        }
    }
    close(open);
    table
}
