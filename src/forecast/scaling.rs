//! How a collective scales with hosts: bandwidth, efficiency, and where the choice changes.

use std::collections::BTreeMap;

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use serde::Serialize;

use super::row::Row;

/// Sizes that scaling is read at: latency, the middle of training's messages, bandwidth.
const READ_AT: [u64; 4] = [8 << 10, 1 << 20, 32 << 20, 1 << 30];
/// Sizes that differ by less are one: of an all-gather over 24 ranks 8 KiB are 8,064 B, as each rank gives whole units of 16 B.
const ROUNDED: f64 = 0.02;

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
        let by_nodes = by_nodes(fastest, collective);
        let Some(base) = by_nodes.get(&fewest) else { continue };
        // Of each size of the fewest hosts what every number of hosts has beside it.
        let common: Vec<Vec<&Row>> = (base.iter().filter(|row| row.size_bytes > 0))
            .filter_map(|row| by_nodes.values().map(|rows| alike(row.size_bytes, rows)).collect())
            .collect();
        let size_of = |place: usize| common[place].first().map_or(0, |row| row.size_bytes);
        let mut read: Vec<usize> = (READ_AT.iter())
            .filter_map(|&wanted| (0..common.len()).min_by_key(|&place| size_of(place).abs_diff(wanted)))
            .collect();
        read.dedup();
        for rows in read.into_iter().map(|place| &common[place]) {
            let base = rows.first().map(|row| row.busbw_gbps).filter(|&base| base > 0.0);
            points.extend(rows.iter().map(|row| ScalingPoint {
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
            }));
        }
    }
    points
}

/// The row of a size among those of another number of hosts, but for what rounding to whole units of a rank changes.
fn alike<'a>(size: u64, rows: &[&'a Row]) -> Option<&'a Row> {
    let nearest = rows.iter().min_by_key(|row| row.size_bytes.abs_diff(size))?;
    (nearest.size_bytes.abs_diff(size) as f64 <= ROUNDED * size as f64).then_some(*nearest)
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
