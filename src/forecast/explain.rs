//! How NCCL came to its choice: who decided, and the table that it was made from.

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::nccl::{Cell, Decision};
use collcast_sim::predict::{Choice, Predictor};
use collcast_sim::schedule::Call;
use serde::Serialize;

use super::row::Row;
use crate::error::Error;
use crate::site::Site;

/// NCCL's choice for one call, and how it came about.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// What is done.
    pub collective: Collective,
    /// Hosts of the communicator; of several those of the slowest.
    pub nodes: u32,
    /// Size as nccl-tests counts it.
    pub size_bytes: u64,
    /// The choice.
    pub algorithm: Algorithm,
    /// The choice.
    pub protocol: Protocol,
    /// Channels before the bytes are dealt to them.
    pub channels: u32,
    /// Which layer of NCCL decided.
    pub layer: String,
    /// Its reason.
    pub why: String,
    /// NCCL's cost table.
    pub costs: Vec<Cost>,
}

/// One cell of NCCL's cost table.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Algorithm of the row.
    pub algorithm: Algorithm,
    /// Protocol of the column.
    pub protocol: Protocol,
    /// NCCL's latency, where the cell is open.
    pub latency_us: Option<f32>,
    /// NCCL's bandwidth, where the cell is open.
    pub bandwidth_gbps: Option<f32>,
    /// NCCL's time for this call.
    pub time_us: Option<f32>,
    /// `chosen`, why it is closed, or nothing.
    pub state: String,
}

/// The choice that NCCL makes for a call that was forecast; none where it has none.
pub(super) fn explain(site: &Site, row: &Row, predictor: &Predictor<'_>) -> Result<Option<Explained>, Error> {
    let query = &row.query;
    let best = query.algorithm == Choice::Best || query.protocol == Choice::Best;
    let forced = matches!((query.algorithm, query.protocol), (Choice::Forced(_), Choice::Forced(_)));
    if best || forced {
        return Ok(None);
    }
    let decide = |predictor: &Predictor<'_>, call: &Call| -> Result<(u32, Decision), Error> {
        let decision = predictor.decide(call, query.algorithm, query.protocol, &query.settings(site.settings()))?;
        Ok((predictor.hosts(call.ranks), decision))
    };
    let (nodes, decision) = match &query.of_group(&site.topology, row.prediction.group)? {
        Some((view, call)) => decide(&predictor.on(view), call)?,
        None => decide(predictor, &query.call)?,
    };
    let cost = |candidate: &collcast_sim::nccl::Candidate| {
        let chosen = (candidate.algorithm, candidate.protocol) == (decision.algorithm, decision.protocol);
        let (cost, state) = match candidate.cell {
            Cell::On(cost) if chosen => (Some(cost), "chosen"),
            Cell::On(cost) => (Some(cost), ""),
            Cell::Off(why) => (None, why),
            Cell::NoKernel => (None, "no kernel"),
        };
        Cost {
            algorithm: candidate.algorithm,
            protocol: candidate.protocol,
            latency_us: cost.map(|c| c.latency_us),
            bandwidth_gbps: cost.map(|c| c.bandwidth_gb_per_s),
            time_us: candidate.time_us,
            state: if candidate.tuned { format!("{state} (the tuner sets 0)") } else { state.to_owned() },
        }
    };
    Ok(Some(Explained {
        collective: query.call.collective,
        nodes,
        size_bytes: query.call.size().0,
        algorithm: decision.algorithm,
        protocol: decision.protocol,
        channels: query.channels.unwrap_or(decision.channels),
        layer: decision.layer.to_string(),
        why: decision.why.clone(),
        costs: decision.candidates.iter().map(cost).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::{Request, forecast};
    use crate::query::Query;
    use collcast_sim::units::Bytes;

    /// Goal: a choice is explained for the channels that are asked for.
    #[test]
    fn channels_that_are_asked_for_count() -> Result<(), Error> {
        let site = Site::load("h200x4")?;
        let free = Query::new(&site, Collective::AllReduce, Bytes(64 << 20));
        let asked = Query { channels: Some(2), ..free.clone() };
        let channels = |query: &Query| -> Result<Vec<u32>, Error> {
            let request = Request { queries: vec![query.clone()], explain: true, ..Request::default() };
            Ok(forecast(&site, &request)?.explained.iter().map(|explained| explained.channels).collect())
        };
        assert_eq!([channels(&free)?, channels(&asked)?], [[24], [2]]);
        Ok(())
    }
}
