//! What is asked: a call, and who decides how it is done.

use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use collcast_sim::engine::Unobserved;
use collcast_sim::ids::Rank;
use collcast_sim::measurement::Measurement;
use collcast_sim::predict::{Choice, PredictError, Prediction, Predictor, Settings};
use collcast_sim::schedule::Call;
use collcast_sim::schedule::msccl::Imported;
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;

use crate::site::Site;
use crate::values::plural;

/// A call, and who decides on its algorithm, protocol and channels.
///
/// ```
/// use collcast::sim::{collective::Collective, units::Bytes};
/// let site = collcast::Site::load("h200x4")?;
/// let query = collcast::Query::new(&site, Collective::AllReduce, Bytes(64 << 20));
/// assert_eq!(query.call.ranks, 4);
/// # Ok::<(), collcast::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Query {
    /// The call; of several communicators at once, that of the first.
    pub call: Call,
    /// Who decides on the algorithm.
    pub algorithm: Choice<Algorithm>,
    /// Who decides on the protocol.
    pub protocol: Choice<Protocol>,
    /// Channels, exactly; NCCL's number otherwise.
    pub channels: Option<u32>,
    /// An imported algorithm in place of algorithm, protocol and channels.
    pub schedule: Option<Arc<Imported>>,
    /// The communicators that do the call at once, if there are several.
    pub groups: Option<Arc<Vec<Vec<Rank>>>>,
}

/// What was asked for, in words: `ring/simple, 4 channels`. What nobody named NCCL chooses.
pub(crate) fn asked(algorithm: Choice<Algorithm>, protocol: Choice<Protocol>, channels: Option<u32>) -> String {
    let words = match (algorithm, protocol) {
        (Choice::Forced(a), Choice::Forced(p)) => format!("{a}/{p}"),
        (Choice::Forced(a), Choice::Auto) => format!("{a}, NCCL's protocol"),
        (Choice::Auto, Choice::Forced(p)) => format!("{p}, NCCL's algorithm"),
        (Choice::Auto, Choice::Auto) => "NCCL's choice".to_owned(),
        (Choice::Forced(a), Choice::Best) => format!("{a}, the fastest protocol"),
        (Choice::Best, Choice::Forced(p)) => format!("{p}, the fastest algorithm"),
        (Choice::Best, _) | (_, Choice::Best) => "the fastest forecast".to_owned(),
    };
    match channels {
        Some(channels) => format!("{words}, {}", plural(channels as usize, "channel", "channels")),
        None => words,
    }
}

impl Query {
    /// What NCCL would choose for a call of all ranks, of float32, a sum from rank 0; sizes as nccl-tests counts them.
    pub fn new(site: &Site, collective: Collective, size: Bytes) -> Self {
        Self::of(Call::of_size(collective, site.topology.ranks(), size, DataType::Float32).aligned())
    }

    /// What NCCL would choose for a call.
    pub fn of(call: Call) -> Self {
        let (algorithm, protocol) = (Choice::Auto, Choice::Auto);
        Self { call, algorithm, protocol, channels: None, schedule: None, groups: None }
    }

    /// What a measured row asks. What NCCL said it ran goes before what its cost table would choose; channels, FIFOs
    /// and the like are settings of NCCL, of which a query knows nothing.
    pub fn of_measurement(row: &Measurement) -> Self {
        let mut call = Call::of_size(row.collective, row.ranks, row.size, row.dtype.unwrap_or(DataType::Float32));
        call.op = row.op.unwrap_or(ReduceOp::Sum);
        call.root = Rank(row.root.unwrap_or(0).min(row.ranks - 1));
        // A pair's in-place row moves the same bytes between other buffers.
        call.in_place = row.in_place && row.collective.in_place();
        let ran = row.chosen.as_ref();
        let algorithm = row.settings.algorithm.or(ran.map(|c| c.algorithm)).map_or(Choice::Auto, Choice::Forced);
        let protocol = row.settings.protocol.or(ran.map(|c| c.protocol)).map_or(Choice::Auto, Choice::Forced);
        Self { algorithm, protocol, ..Self::of(call) }
    }

    /// With an algorithm and a protocol of the user's.
    #[must_use]
    pub fn forced(self, algorithm: Algorithm, protocol: Protocol) -> Self {
        Self { algorithm: Choice::Forced(algorithm), protocol: Choice::Forced(protocol), ..self }
    }

    /// With a number of channels.
    #[must_use]
    pub fn channels(self, channels: u32) -> Self {
        Self { channels: Some(channels), ..self }
    }

    /// Settings of a site with the channels of this query.
    pub fn settings(&self, of_site: &Settings) -> Settings {
        Settings { channels: self.channels, ..*of_site }
    }

    /// Forecasts it.
    ///
    /// # Errors
    /// See [`PredictError`].
    pub fn predict(&self, predictor: &Predictor<'_>, settings: &Settings) -> Result<Prediction, PredictError> {
        match &self.schedule {
            Some(imported) => predictor.predict_imported(imported, &self.call, settings, &mut Unobserved),
            None => match &self.groups {
                Some(groups) => {
                    let choice = (self.algorithm, self.protocol);
                    predictor.predict_split(groups, &|ranks| self.call_of(ranks), choice, settings)
                }
                None => predictor.predict(&self.call, self.algorithm, self.protocol, settings),
            },
        }
    }

    /// Of several communicators, the machine as one of them sees it, and its call.
    ///
    /// # Errors
    /// Ranks that the machine does not have.
    pub(crate) fn of_group(&self, topology: &Topology, group: usize) -> Result<Option<(Topology, Call)>, PredictError> {
        let Some(group) = self.groups.as_ref().and_then(|groups| groups.get(group)) else { return Ok(None) };
        let gpus: Vec<_> = group.iter().map(|&rank| topology.gpu_of(rank)).collect();
        let view = topology.placed(&gpus)?;
        let call = self.call_of(view.ranks());
        Ok(Some((view, call)))
    }

    /// What an answer says of several communicators at once.
    pub fn split_note(&self) -> Option<String> {
        let groups = self.groups.as_ref()?;
        let most = groups.iter().map(Vec::len).max().unwrap_or(0);
        Some(format!("{} communicators of up to {most} ranks at once; the slowest counts", groups.len()))
    }

    /// A call of the same size over another number of ranks.
    fn call_of(&self, ranks: u32) -> Call {
        let count = Call::of_size(self.call.collective, ranks, self.call.size(), self.call.dtype).aligned().count;
        Call { count, ranks, ..self.call.clone() }
    }
}

/// What predictions assume of switches in a network that reduce.
pub const SHARP_LEVELS: &str = "assumed: every switch on the way reduces (SHARP), whatever its level, and one latency holds for all \
                                depths; the levels and jobs that an aggregation manager allows are not modelled";
/// What predictions say that rest on constants of switches which nobody measured.
pub const UNMEASURED_SWITCHES: &str =
    "reduction and multicast in switches: constants cited from NCCL's cost model, not measured";
