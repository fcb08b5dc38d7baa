//! How a collective scales with hosts: bandwidth, efficiency, and where the choice changes.

use std::collections::BTreeMap;

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use serde::Serialize;

use super::row::Row;

/// Sizes that scaling is read at: latency, the middle of training's messages, bandwidth.
const READ_AT: [u64; 4] = [8 << 10, 1 << 20, 32 << 20, 1 << 30];

/// Scaling over numbers of hosts.
#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// The fastest way at a few sizes, by collective, size and hosts.
    pub points: Vec<ScalingPoint>,
    /// Ranges of sizes with one choice.
    pub ranges: Vec<ChoiceRange>,
}

/// The fastest way to do a call on one number of hosts.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingPoint {
    /// What is done.
    pub collective: Collective,
    /// Size as nccl-tests counts it.
    pub size_bytes: u64,
    /// Hosts.
    pub nodes: u32,
    /// Ranks.
    pub ranks: u32,
    /// What is fastest.
    pub algorithm: Algorithm,
    /// What is fastest.
    pub protocol: Protocol,
    /// Its time.
    pub time_us: f64,
    /// Lower end of its 90% interval.
    pub low_us: f64,
    /// Upper end of it.
    pub high_us: f64,
    /// Its bus bandwidth, GB/s.
    pub busbw_gbps: f64,
    /// Bus bandwidth over that of the fewest hosts at the same size.
    pub efficiency: Option<f64>,
}

/// Sizes over which one choice is fastest.
#[derive(Clone, Debug, Serialize)]
pub struct ChoiceRange {
    /// What is done.
    pub collective: Collective,
    /// Hosts.
    pub nodes: u32,
    /// Smallest size.
    pub from_bytes: u64,
    /// Largest size.
    pub to_bytes: u64,
    /// What is fastest.
    pub algorithm: Algorithm,
    /// What is fastest.
    pub protocol: Protocol,
}

/// The fastest of all series, by collective, nodes and size.
type Fastest<'a> = BTreeMap<(Collective, u32, u64), &'a Row>;

/// Scaling of forecasts over several numbers of hosts; none over one.
pub(super) fn scaling(rows: &[Row]) -> Option<Scaling> {
    let fewest = rows.iter().map(|row| row.nodes).min().filter(|&n| rows.iter().any(|row| row.nodes != n))?;
    let mut fastest = Fastest::new();
    for row in rows {
        let entry = fastest.entry((row.collective, row.nodes, row.size_bytes)).or_insert(row);
        if row.prediction.time < entry.prediction.time {
            *entry = row;
        }
    }
    Some(Scaling { points: points(&fastest, fewest), ranges: ranges(&fastest) })
}

fn points(fastest: &Fastest<'_>, fewest: u32) -> Vec<ScalingPoint> {
    let mut collectives: Vec<Collective> = fastest.keys().map(|k| k.0).collect();
    collectives.dedup();
    let mut points = Vec::new();
    for collective in collectives {
        // Sizes that every node count has (a total size rounds to whole elements per rank), by
        // their place in the sweep.
        let by_nodes = by_nodes(fastest, collective);
        let places = by_nodes.values().map(Vec::len).min().unwrap_or(0);
        let size_at = |place: usize| by_nodes.values().next().map_or(0, |rows| rows[place].size_bytes);
        let mut read: Vec<usize> = READ_AT
            .iter()
            .filter_map(|&wanted| (0..places).min_by_key(|&place| size_at(place).abs_diff(wanted)))
            .collect();
        read.dedup();
        for place in read {
            let base = by_nodes.get(&fewest).map(|rows| rows[place].busbw_gbps).filter(|&base| base > 0.0);
            points.extend(by_nodes.values().map(|rows| {
                let row = rows[place];
                ScalingPoint {
                    collective,
                    size_bytes: row.size_bytes,
                    nodes: row.nodes,
                    ranks: row.ranks,
                    algorithm: row.algorithm,
                    protocol: row.protocol,
                    time_us: row.time_us,
                    low_us: row.low_us,
                    high_us: row.high_us,
                    busbw_gbps: row.busbw_gbps,
                    efficiency: base.map(|base| row.busbw_gbps / base),
                }
            }));
        }
    }
    points
}

fn by_nodes<'a>(fastest: &Fastest<'a>, collective: Collective) -> BTreeMap<u32, Vec<&'a Row>> {
    let mut by_nodes: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for (&(_, nodes, _), &row) in fastest.iter().filter(|(k, _)| k.0 == collective) {
        by_nodes.entry(nodes).or_default().push(row);
    }
    by_nodes
}

fn ranges(fastest: &Fastest<'_>) -> Vec<ChoiceRange> {
    let mut ranges: Vec<ChoiceRange> = Vec::new();
    for (&(collective, nodes, size), row) in fastest {
        let same = |r: &ChoiceRange| {
            (r.collective, r.nodes, r.algorithm, r.protocol) == (collective, nodes, row.algorithm, row.protocol)
        };
        match ranges.last_mut().filter(|range| same(range)) {
            Some(range) => range.to_bytes = size,
            None => ranges.push(ChoiceRange {
                collective,
                nodes,
                from_bytes: size,
                to_bytes: size,
                algorithm: row.algorithm,
                protocol: row.protocol,
            }),
        }
    }
    ranges
}
