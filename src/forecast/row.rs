//! The forecast of one call.

use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::predict::{Choice, Prediction, Settings};
use collcast_sim::schedule::Call;
use serde::Serialize;

use crate::confidence::{self, Grounds, On};
use crate::query::Query;
use crate::site::Site;

/// The forecast of one call. Times are of one operation as nccl-tests shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Hosts that hold the ranks of the communicator; of several of that on the most.
    pub nodes: u32,
    /// What is done.
    pub collective: Collective,
    /// Ranks of the communicator; of several of the slowest.
    pub ranks: u32,
    /// Size as nccl-tests counts it.
    pub size_bytes: u64,
    /// What runs.
    pub algorithm: Algorithm,
    /// What runs.
    pub protocol: Protocol,
    /// Channels that are used.
    pub channels: u32,
    /// Time of one operation; 0 of one without bytes, which NCCL leaves out.
    pub time_us: f64,
    /// Lower end of its 90% interval.
    pub low_us: f64,
    /// Upper end of it.
    pub high_us: f64,
    /// Size over time, GB/s.
    pub algbw_gbps: f64,
    /// nccl-tests' bus bandwidth, GB/s.
    pub busbw_gbps: f64,
    /// What bounds it: see [`Prediction::bound_by`].
    pub bound: &'static str,
    /// Which layer of NCCL decided; none where the user did.
    pub chosen_by: Option<String>,
    /// What NCCL picks and has no schedule here; the row is of its next choice.
    pub instead_of: Option<(Algorithm, Protocol)>,
    /// How the call was asked for.
    pub asked: Asked,
    /// The question.
    #[serde(skip)]
    pub query: Query,
    /// The answer in full.
    #[serde(skip)]
    pub prediction: Prediction,
    /// What it rests on.
    #[serde(skip)]
    pub grounds: Grounds,
}

/// How a call was asked for, beside algorithm, protocol and channels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Asked {
    /// How kernels are started.
    pub launch: Launch,
    /// Whether NCCL has registered the buffers.
    pub registered: bool,
    /// Whether input and output are one buffer.
    pub in_place: bool,
    /// Element type.
    pub dtype: DataType,
    /// Reduction, of collectives that reduce.
    pub op: Option<ReduceOp>,
    /// Root, of collectives that have one.
    pub root: Option<u32>,
    /// Version whose rules hold.
    pub nccl_version: String,
}

impl Asked {
    fn of(call: &Call, settings: &Settings) -> Self {
        Self {
            launch: settings.launch,
            registered: settings.registered,
            in_place: call.in_place,
            dtype: call.dtype,
            op: call.collective.reduces().then_some(call.op),
            root: call.collective.rooted().then_some(call.root.0),
            nccl_version: settings.version.unwrap_or_default().to_string(),
        }
    }
}

/// What the forecast of a query rests on; that of one communicator alone is held beside published runs, where NCCL chooses.
fn grounds(on: On<'_>, (query, call): (&Query, &Call), prediction: &Prediction) -> Grounds {
    let grounds = Grounds::of(on, (call.collective, call.ranks), prediction.into());
    let auto = (query.algorithm, query.protocol) == (Choice::Auto, Choice::Auto) && query.channels.is_none();
    match auto && query.schedule.is_none() && query.groups.is_none() {
        true => grounds.beside_published(on, (call.collective, call.ranks, call.size()), prediction),
        false => grounds,
    }
}

impl Row {
    pub(super) fn new(site: &Site, query: &Query, prediction: Prediction) -> Self {
        // Of several communicators the hosts of the slowest, not those of as many ranks of the machine.
        let slowest = query.of_group(&site.topology, prediction.group).ok().flatten();
        let (topology, call) = slowest.as_ref().map_or((&site.topology, &query.call), |(view, call)| (view, call));
        let algbw_gbps = prediction.algbw_gb_per_s(call.size());
        let on = On { topology, ..site.on() };
        let (low_us, high_us) = confidence::interval_us(on, call, &prediction);
        // NCCL starts nothing for a call without bytes.
        let runs = |us: f64| if call.size().0 == 0 { 0.0 } else { us };
        Self {
            nodes: site.nodes(),
            collective: call.collective,
            ranks: call.ranks,
            size_bytes: call.size().0,
            algorithm: prediction.algorithm,
            protocol: prediction.protocol,
            channels: prediction.plan.channels,
            time_us: runs(prediction.time.as_us()),
            low_us: runs(low_us),
            high_us: runs(high_us),
            algbw_gbps,
            busbw_gbps: algbw_gbps * call.bus_factor(),
            bound: if call.size().0 == 0 { "nothing to do" } else { prediction.bound_by() },
            chosen_by: prediction.layer.map(|layer| layer.to_string()),
            instead_of: prediction.instead_of,
            asked: Asked::of(call, site.settings()),
            query: query.clone(),
            grounds: grounds(on, (query, call), &prediction),
            prediction,
        }
    }
}
