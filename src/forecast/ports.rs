//! What dead and slow ports do to a call, beyond the time that it takes.

use collcast_reports::ports::{down, names, slow};
use collcast_sim::engine::WORK_PER_SECOND;
use collcast_sim::nccl::graphs::Graphs;
use collcast_sim::topology::Topology;

use super::Row;
use crate::error::Error;
use crate::site::{Site, SiteSpec};

/// Why a machine with a dead or a slow port may have more channels than one without. NCCL 2.30 lays each channel of its
/// search four times, and not twice, where twice is below 16 (`src/graph/connect.cc`).
pub(super) fn more_channels(topology: &Topology, graphs: &Graphs) -> Option<String> {
    let found = graphs.ring.channels.min(graphs.tree.channels);
    let odd: Vec<_> = down(topology).into_iter().chain(slow(topology).into_iter().map(|slow| slow.port)).collect();
    (graphs.channels == 4 * found && found < 8 && !odd.is_empty()).then(|| {
        format!(
            "NCCL finds {found} channels without {} and lays each four times, {} in all; from 8 on it lays each twice. So a call \
             that its blocks bound may be faster here than on a healthy machine; NCCL_MIN_NCHANNELS=32 gives that as many",
            names(topology, &odd),
            graphs.channels
        )
    })
}

/// What a call takes with the ports taken out that are slower than their peers, where each of their hosts has others. Only of
/// what is simulated whole within a second.
///
/// # Errors
/// A machine that cannot be read again.
pub fn without_slow_ports(site: &Site, row: &Row) -> Result<Option<String>, Error> {
    let slow: Vec<_> = slow(&site.topology).into_iter().map(|slow| slow.port).collect();
    let left =
        |host: usize| site.topology.hosts()[host].nics.len() > slow.iter().filter(|port| port.host == host).count();
    // What takes long is not asked twice.
    let soon = row.prediction.grown.is_none() && row.prediction.work < WORK_PER_SECOND;
    if slow.is_empty() || !soon || !slow.iter().all(|port| left(port.host)) {
        return Ok(None);
    }
    let mut spec = SiteSpec { ..site.spec.clone() };
    spec.down.extend(slow.iter().map(|port| (u32::try_from(port.host).unwrap_or(u32::MAX), port.nic)));
    let without = Site { topology: spec.topology()?, ..site.clone() };
    let Ok(prediction) = row.query.predict(&without.predictor(), &row.query.settings(without.settings())) else {
        return Ok(None);
    };
    let (now, then) = (row.prediction.time, prediction.time);
    let change = (then.as_us() / now.as_us().max(f64::MIN_POSITIVE) - 1.0) * 100.0;
    let change = match change {
        less if less <= -0.5 => format!("{then} and not {now}, {:.0}% less", -less),
        more if more >= 0.5 => format!("{then} and not {now}, {more:.0}% more"),
        _ => "as long".to_owned(),
    };
    let names = names(&site.topology, &slow);
    Ok(Some(format!("without {names} (NCCL_IB_HCA=^NAME on the host) this call takes {change}")))
}
