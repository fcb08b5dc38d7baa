//! What can go wrong: what and where it is, the way out, and the exit code that a command gives it.

use std::path::{Path, PathBuf};

use collcast_hwbackend::exec::ExecError;
use collcast_hwbackend::nccl::job::Answer;
use collcast_hwbackend::read::ReadError;
use collcast_hwbackend::trace::TraceError;
use collcast_sim::call::CallError;
use collcast_sim::collective::nearest;
use collcast_sim::predict::PredictError;
use collcast_sim::profile::ProfileError;
use collcast_sim::schedule::ScheduleError;
use collcast_sim::schedule::msccl::plan::PlanError;
use collcast_sim::schedule::msccl::{ExportError, MscclError};
use collcast_sim::text::one_line;
use collcast_topologies::TopologiesError;
use collcast_topologies::error::Diagnostic;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A question that makes no sense, with the way out.
    #[error("{message}")]
    Usage {
        /// What is wrong, and where.
        message: String,
        /// The way out.
        hint: Option<String>,
    },
    /// A mistake in a file, with its place.
    #[error("{}", .0.message)]
    Diagnostic(Box<Diagnostic>),
    /// A machine that cannot be read.
    #[error(transparent)]
    Topology(#[from] TopologiesError),
    /// A profile that cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A call that has no forecast.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// An algorithm in MSCCL XML that cannot be read.
    #[error(transparent)]
    Msccl(#[from] MscclError),
    /// A schedule that MSCCL XML cannot hold.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// An algorithm that is no execution plan of MSCCL++.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Measurements that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A trace that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A file that cannot be read or written.
    #[error("cannot {what} `{path}`: {source}", path = path.display())]
    File {
        /// What was to be done, such as `read the profile`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A run on hardware, here or in a process of its own.
    #[error("{message}")]
    Exec {
        /// The exit code of a command: 1 a wrong result, 2 a call that cannot run, 3 hardware or a library that is missing.
        code: u8,
        /// What happened.
        message: String,
        /// The way out.
        hint: Option<String>,
    },
    /// A mistake of ours: what a panic says, and where in the code it was.
    #[error("{0}")]
    Internal(String),
    /// Whoever asked no longer wants the answer.
    #[error("stopped before the end")]
    Cancelled,
    /// The reader of our output has gone: not an error.
    #[error("the reader of the output has gone")]
    BrokenPipe,
}

impl Error {
    /// A question that makes no sense, with the way out.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// The same, saying at which point of a run.
    #[must_use]
    pub fn at(self, point: &str) -> Self {
        match self {
            Self::Exec { code, message, hint } if !point.is_empty() => {
                Self::Exec { code, message: format!("{point}: {message}"), hint }
            }
            other => other,
        }
    }

    /// The exit code of a command: 2 bad input, 3 hardware or library missing, 4 our own fault, 130 stopped.
    pub fn code(&self) -> u8 {
        match self {
            Self::Predict(error) if error.is_internal() => 4,
            Self::Internal(_) => 4,
            Self::Exec { code, .. } => *code,
            Self::Cancelled => 130,
            _ => 2,
        }
    }

    /// What, where and the way out, readable without colour.
    pub fn render(&self) -> String {
        match self {
            Self::Topology(error) => error.render(),
            Self::Diagnostic(diagnostic) => diagnostic.render(),
            Self::Predict(error) if error.is_internal() => internal(&error.to_string()),
            Self::Internal(what) => internal(what),
            Self::Usage { message, hint } | Self::Exec { message, hint, .. } => with_hint(message, hint.as_deref()),
            Self::Predict(error) => with_hint(&self.to_string(), way_out(error)),
            Self::File { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                with_hint(&self.to_string(), Some(&instead_of(path)))
            }
            _ => with_hint(&self.to_string(), None),
        }
    }
}

fn internal(what: &str) -> String {
    let hint =
        "this is a bug of collcast, no number was printed; please report it with the command line and the input files";
    format!("internal error: {}\n\nhint: {hint}", lines(what))
}

/// What to do about a call that cannot be forecast.
fn way_out(error: &PredictError) -> Option<&'static str> {
    let schedule = match error {
        PredictError::Disproved { .. } => {
            return Some(
                "the file is understood but wrong: mend the step that is named, or the dependency that is missing",
            );
        }
        PredictError::TooFewGpus { .. } => {
            return Some("give the cluster more hosts with --nodes, or ask for fewer with --ranks");
        }
        PredictError::NothingToChoose(_) => return Some("leave --algorithm and --protocol out for NCCL's choice"),
        PredictError::NothingLeft { .. } => {
            return Some("leave out what closes them: NCCL_ALGO and NCCL_PROTO of --env");
        }
        PredictError::NoFloat8 { .. } => {
            return Some("take --nccl 2.24 or later, or --dtype uint8: as many bytes, to move and not to add");
        }
        PredictError::Float8BeforeHopper { collective, .. } if collective.reduces() => {
            return Some("take --dtype float16 or bfloat16, the smallest floats that such GPUs add");
        }
        PredictError::Float8BeforeHopper { .. } => {
            return Some("take --dtype uint8, which moves the same bytes, or --nccl 2.28 or later");
        }
        PredictError::Schedule(schedule) => schedule,
        _ => return None,
    };
    Some(match schedule {
        ScheduleError::Call(CallError::Ranks(_)) => "leave --ranks out for all GPUs of the machine",
        ScheduleError::Channels(_) => "leave --channels out for as many as NCCL takes",
        ScheduleError::Call(CallError::Root { .. }) => {
            "name one of them with --root; --ranks and --nodes say how many there are"
        }
        ScheduleError::Call(CallError::TooLarge) => {
            "sizes look like 64K, 1MiB or 4G; take a smaller one, or fewer ranks"
        }
        ScheduleError::Call(CallError::Counts { .. } | CallError::CountsElsewhere) => {
            "--counts goes with -c all_to_all without --in-place, one row and column for each rank"
        }
        ScheduleError::Call(CallError::InPlace(_)) => "leave --in-place out",
        ScheduleError::Unsupported { .. } => "name one of these with --algorithm, or leave it out for NCCL's choice",
        ScheduleError::Shape { .. } => "leave --algorithm out for NCCL's choice, or change --nodes, --gpus and --ranks",
        ScheduleError::InSwitch { .. } => "take another --op or --dtype, or leave --algorithm out for NCCL's choice",
        ScheduleError::NoKernel { .. } => "name one of these with --protocol, or leave it out for NCCL's choice",
    })
}

/// What might be meant by the name of a file that is not there.
fn instead_of(path: &Path) -> String {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or_else(|| Path::new("."));
    let Ok(entries) = folder.read_dir() else {
        return format!("there is no folder `{}`; paths start where the command runs", folder.display());
    };
    let names: Vec<String> =
        entries.flatten().take(1000).map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match nearest(&name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{}`?", path.with_file_name(near).display()),
        None => format!("there is no such file in `{}`; paths start where the command runs", folder.display()),
    }
}

impl From<ExecError> for Error {
    fn from(error: ExecError) -> Self {
        match Answer::from(&error) {
            Answer::Error { code, message, hint } => Self::Exec { code, message, hint },
            _ => Self::Exec { code: 1, message: error.to_string(), hint: None },
        }
    }
}

impl From<Box<Diagnostic>> for Error {
    fn from(diagnostic: Box<Diagnostic>) -> Self {
        Self::Diagnostic(diagnostic)
    }
}

fn with_hint(message: &str, hint: Option<&str>) -> String {
    let message = lines(message);
    match hint {
        Some(hint) => format!("error: {message}\n\nhint: {}", lines(hint)),
        None => format!("error: {message}"),
    }
}

/// Text of several lines, of which only the first begins at the margin, where CI logs look for commands.
fn lines(text: &str) -> String {
    text.trim().lines().map(one_line).collect::<Vec<_>>().join("\n  | ")
}
