//! What a prediction says.

use serde::{Deserialize, Serialize};

use super::busy::Busy;
use super::grown::Grown;
use super::proof::ProofKind;
use crate::bounds;
use crate::collective::{Algorithm, Protocol};
use crate::domain::Beyond;
use crate::ids::LinkId;
use crate::nccl::Layer;
use crate::nccl::Plan;
use crate::network::ResourceName;
use crate::units::{Bytes, SimDuration};

/// How busy a link was.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkUse {
    /// The link direction; of all that are equal, the first.
    pub link: LinkId,
    /// Share of its capacity used over the run, protocol overhead and efficiency included.
    pub utilisation: f64,
}

/// What a prediction leaves out where it may matter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Warning {
    /// Many NICs send through one port of a lossless fabric at once: real switches pause, and
    /// times may be longer. Names the port.
    CongestionNotModelled(String),
    /// NVLS with registered buffers: NCCL takes fewer channels and copies less.
    RegisteredNvlsNotModelled,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CongestionNotModelled(port) => write!(
                f,
                "congestion_not_modelled: many NICs send through the port {port} of a lossless fabric at once; pauses and unfairness of real switches may make it slower"
            ),
            Self::RegisteredNvlsNotModelled => f.write_str(
                "not_modelled: NVLS takes fewer channels for registered buffers and copies less; the forecast is of buffers that are not registered",
            ),
        }
    }
}

/// A prediction.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// Algorithm that was simulated.
    pub algorithm: Algorithm,
    /// Protocol that was simulated.
    pub protocol: Protocol,
    /// Which layer of NCCL's choice decided; none where the user or we did.
    pub layer: Option<Layer>,
    /// What NCCL picks where that has no schedule here: the prediction is of its next choice.
    pub instead_of: Option<(Algorithm, Protocol)>,
    /// Channels that a tuner asked for, before the bytes are dealt to them.
    pub tuned_channels: Option<u32>,
    /// The cut of the call.
    pub plan: Plan,
    /// Time of one operation as nccl-tests would show it.
    pub time: SimDuration,
    /// Time on the device: start and end of the kernel, and the simulated run.
    pub kernel: SimDuration,
    /// Interval at which the host issues operations.
    pub issue: SimDuration,
    /// Lower end of the 90% interval.
    pub low: SimDuration,
    /// Upper end of the 90% interval.
    pub high: SimDuration,
    /// How it goes beyond what the profile was made with.
    pub beyond: Beyond,
    /// Slices sent between lanes.
    pub messages: u64,
    /// Events handled, in all parts where it is from fewer hosts.
    pub events: u64,
    /// What it took to simulate, as [`engine::WORK_PER_SECOND`](crate::engine::WORK_PER_SECOND) counts it.
    pub work: u64,
    /// Lanes before and after folding; those after of the largest part where it is from fewer hosts.
    pub folded: (u64, usize),
    /// The part of its time by which the first rank of a call is done before the last: calls of a loop overlap by so much.
    pub apart: f64,
    /// How it was forecast from fewer hosts, where it was.
    pub grown: Option<Grown>,
    /// Of several communicators at once the place of the slowest, whose choice, plan and bound these are.
    pub group: usize,
    /// How the schedule was proved.
    pub proof: ProofKind,
    /// The time below which nothing can be, and why.
    pub bound: bounds::Bound,
    /// The busiest links, busiest first, at most four.
    pub busiest: Vec<LinkUse>,
    /// Share of the busiest lane's instruction rate used.
    pub lane_utilisation: f64,
    /// Share of the busiest thread used that sends and receives through a network.
    pub proxy_utilisation: f64,
    /// Share of the busiest memory of a host used.
    pub memory_utilisation: f64,
    /// What is left out where it may matter.
    pub warnings: Vec<Warning>,
    /// See [`crate::engine::Outcome::trace_hash`]; of all parts where it is from fewer hosts.
    pub trace_hash: u64,
    /// See [`crate::schedule::Schedule::identity`]; of the largest part where it is from fewer hosts.
    pub schedule_hash: u64,
}

impl Prediction {
    /// Algorithm bandwidth in GB/s: nccl-tests' size over time.
    #[expect(clippy::cast_precision_loss, reason = "an edge")]
    pub fn algbw_gb_per_s(&self, size: Bytes) -> f64 {
        size.0 as f64 / self.time.as_us().max(1e-9) / 1e3
    }

    /// What bounds the run: `launch rate` of the host, `links`, `block rate` (instructions of
    /// thread blocks: more channels would help), `proxy threads` (of hosts, which post messages and copy for sockets),
    /// `host memory` (that data is staged in, or what NICs get of GPU memory), or `latency` of steps and kernel.
    pub fn bound_by(&self) -> &'static str {
        self.uses().bound(self.issue >= self.time)
    }

    /// Share of the busiest resource that it uses.
    pub fn busy(&self) -> f64 {
        self.uses().most()
    }

    pub(super) fn uses(&self) -> Busy {
        let link = self.busiest.first().map_or(0.0, |l| l.utilisation);
        let (lane, proxy, memory) = (self.lane_utilisation, self.proxy_utilisation, self.memory_utilisation);
        Busy { link, lane, proxy, memory }
    }
}

/// The share of each resource's capacity that a run used.
pub type Shares = Vec<(ResourceName, f64)>;
