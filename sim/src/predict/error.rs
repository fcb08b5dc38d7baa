//! Why a call has no prediction.

use thiserror::Error;

use crate::engine::EngineError;
use crate::nccl::Version;
use crate::network::LayError;
use crate::schedule::ScheduleError;
use crate::schedule::msccl::MscclError;
use crate::schedule::verify::VerifyError;
use crate::schedule::wiring::WiringError;
use crate::topology::TopologyError;

/// Why there is no prediction.
#[derive(Debug, Error)]
pub enum PredictError {
    /// The call has no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// More ranks than GPUs.
    #[error("the call has {ranks} ranks but `{topology}` has {gpus} GPUs")]
    TooFewGpus {
        /// Ranks of the call.
        ranks: u32,
        /// Name of the machine.
        topology: String,
        /// GPUs of the machine.
        gpus: u32,
    },
    /// Nothing that is modelled.
    #[error("nothing that is modelled can do {0} with these algorithms and protocols")]
    NothingToChoose(crate::collective::Collective),
    /// An algorithm that a version has not.
    #[error("NCCL {version} has no {algorithm}{}", .since.map(|v| format!("; it came with {}.{}", v.major, v.minor)).unwrap_or_default())]
    NotYet {
        /// The version.
        version: Version,
        /// The algorithm.
        algorithm: crate::collective::Algorithm,
        /// The first release that has it.
        since: Option<Version>,
    },
    /// Fewer ranks on a host than a version sets NVLS up for.
    #[error("NCCL {version} needs 3 ranks on every host for {algorithm}, and one has {fewest}; NCCL 2.29 takes 2")]
    NvlsRanks {
        /// The version.
        version: Version,
        /// The algorithm.
        algorithm: crate::collective::Algorithm,
        /// Ranks of the host with the fewest.
        fewest: usize,
    },
    /// A type that a version has not.
    #[error("NCCL {version} has no {dtype}; it came with 2.24")]
    NoFloat8 {
        /// The version.
        version: Version,
        /// The type.
        dtype: crate::collective::DataType,
    },
    /// A type that a version does not take on these GPUs.
    #[error(
        "NCCL {version} does {collective} of {dtype} from compute capability 9.0 on (Hopper), and these GPUs have {}.{}",
        .capability / 10, .capability % 10
    )]
    Float8BeforeHopper {
        /// The version.
        version: Version,
        /// The collective.
        collective: crate::collective::Collective,
        /// The type.
        dtype: crate::collective::DataType,
        /// The least compute capability of the GPUs, times ten.
        capability: u32,
    },
    /// NCCL would fail the call.
    #[error("NCCL {version} would fail {collective}: {reasons}")]
    NothingLeft {
        /// The version.
        version: Version,
        /// The collective.
        collective: crate::collective::Collective,
        /// Why each pair is closed.
        reasons: String,
    },
    /// Ranks that cannot be placed.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// No route between two ranks.
    #[error(transparent)]
    Lay(#[from] LayError),
    /// Calls that are no group, or none that is modelled.
    #[error("these calls cannot be forecast as one group: {0}")]
    NoGroup(String),
    /// An imported schedule does not fit the call.
    #[error(transparent)]
    Misfit(#[from] MscclError),
    /// An imported schedule is wrong.
    #[error("`{name}` of {file} does not do what it says: {error}")]
    Disproved {
        /// Its name.
        name: String,
        /// Its file.
        file: String,
        /// The flaw.
        error: VerifyError,
    },
    /// A generator's schedule is wrong: our bug.
    #[error("the schedule of {what} is wrong: {error}")]
    Unproved {
        /// Which schedule.
        what: String,
        /// The flaw.
        error: VerifyError,
    },
    /// The engine stopped: our bug, unless the run was too long.
    #[error("{what}: {error}")]
    Engine {
        /// Which schedule.
        what: String,
        /// What happened.
        error: EngineError,
    },
    /// A result that physics forbids: our bug.
    #[error("self-check violated for {what}: {violation}")]
    SelfCheck {
        /// Which schedule.
        what: String,
        /// What is impossible about it.
        violation: String,
    },
}

impl PredictError {
    /// Whether it would take too long, or too much memory, to simulate.
    pub fn is_too_large(&self) -> bool {
        match self {
            Self::Engine { error, .. } => *error == EngineError::TooLong,
            Self::Lay(LayError::Wiring(error)) => matches!(error, WiringError::TooLarge { .. }),
            _ => false,
        }
    }

    /// Whether it is our bug and not the user's input.
    pub fn is_internal(&self) -> bool {
        match self {
            Self::Engine { error, .. } => !error.is_limit(),
            Self::Unproved { .. } | Self::SelfCheck { .. } => true,
            _ => false,
        }
    }
}
