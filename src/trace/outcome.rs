//! What traces say.

use collcast_reports::model::Input;
use serde::Serialize;

use crate::confidence::Grounds;
use crate::diagnose::{Anomaly, Causes};
use crate::values::in_runs;

/// Gaps that are told apart; the longest come first.
pub(super) const GAPS: usize = 20;

/// What kind of files were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Traces of a profiler: all that GPUs did.
    Profile,
    /// Dumps of a flight recorder: the last calls.
    Recorder,
}

/// What one rank's GPU did. Times are milliseconds of a step, on average over the steps recorded. Computation, exposed
/// communication and both kinds of idle time add up to the step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RankRow {
    /// The rank.
    pub rank: u32,
    /// Steps recorded.
    pub steps: u32,
    /// The step.
    pub step_ms: f64,
    /// Kernels that are not NCCL's, and copies.
    pub compute_ms: f64,
    /// Kernels of NCCL with nothing beside them.
    pub exposed_ms: f64,
    /// Kernels of NCCL beside computation.
    pub hidden_ms: f64,
    /// Idle, and the host had launched nothing: a launch gap.
    pub starved_ms: f64,
    /// Idle, and the next kernel was launched: it waited for another stream, or to start.
    pub queued_ms: f64,
    /// What other ranks waited, exposed, in calls that it was the last to reach; none where no other rank's file is there.
    pub late_ms: Option<f64>,
    /// Of the calls that several ranks' files have, the part that it was the last to reach.
    pub last: Option<f64>,
}

/// A call that is done again and again.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CallRow {
    /// What its group is for, else the group's name.
    pub group: String,
    /// Ranks of the group; 0 where nothing says.
    pub ranks: u32,
    /// As NCCL names it, else as the framework does.
    pub collective: String,
    /// Element type.
    pub dtype: Option<&'static str>,
    /// Size as nccl-tests counts it.
    pub size_bytes: Option<u64>,
    /// Calls of a rank in a step; in the whole recording where no steps are marked.
    pub calls: f64,
    /// Ranks of a call whose files are there, at most.
    pub members: u32,
    /// Median time on the rank that came last: without waiting, where all ranks' files are there.
    pub time_us: Option<f64>,
    /// Bus bandwidth of that, GB/s.
    pub busbw_gbps: Option<f64>,
    /// Time of a step in which nothing else ran, ms.
    pub exposed_ms: Option<f64>,
    /// Part of its time beside computation.
    pub beside: Option<f64>,
    /// What ranks waited for the last one, ms of a step, on average.
    pub waited_ms: Option<f64>,
    /// The rank that came last most often, where that is no accident.
    pub last_rank: Option<u32>,
    /// What it should take.
    pub expected: Option<Expected>,
    /// Why it has no forecast, where one was asked for.
    pub not_forecast: Option<String>,
}

/// What a call should take on the machine.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Expected {
    /// What NCCL runs.
    pub algorithm: &'static str,
    /// What NCCL runs.
    pub protocol: &'static str,
    /// Time of its kernel, with as much of it beside computation.
    pub time_us: f64,
    /// Lower end of the 90% interval.
    pub low_us: f64,
    /// Upper end of it, of a call that is beside computation all the time.
    pub high_us: f64,
    /// How it compares.
    pub judgement: Judgement,
    /// What the calls of a step take too long, ms; 0 where they do not.
    pub lost_ms: f64,
}

/// How a measured time compares with the forecast.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Below the interval.
    Faster,
    /// Within it.
    AsExpected,
    /// Above it.
    Slower,
    /// Above it, and ranks are missing whose files would say whether it waited for them.
    CannotTell,
}

impl Judgement {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::AsExpected => "as expected",
            Self::Slower => "slower",
            Self::CannotTell => "cannot tell",
        }
    }
}

/// A launch gap: the GPU had nothing to do because the host had launched nothing.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GapRow {
    /// The rank.
    pub rank: u32,
    /// The step, as the program numbers it; none where no steps are marked.
    pub step: Option<u32>,
    /// When, from the first kernel of the steps recorded.
    pub at_ms: f64,
    /// How long.
    pub length_us: f64,
    /// The kernel that ended it.
    pub before: String,
}

/// A call that did not end.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stuck {
    /// Its group.
    pub group: String,
    /// Its number in that group.
    pub sequence: u64,
    /// What the ranks that reached it call it; where they do not agree, with type, size and ranks.
    pub names: Vec<String>,
    /// Whether the ranks that reached it agree on what it is, its type and its size.
    pub agree: bool,
    /// Ranks that wait in it.
    pub waiting: Vec<u32>,
    /// Those of them that have not begun it, though others have ended it and could not without them.
    pub not_begun: Vec<u32>,
    /// Those of them that have not begun it, though others have.
    pub idle: Vec<u32>,
    /// The call in which these wait, and which others that wait here have not begun: ranks call the two groups in different
    /// orders.
    pub crossed: Option<String>,
    /// Ranks of the group whose files do not have it, though they have earlier calls.
    pub missing: Vec<u32>,
    /// Ranks of the group whose files were not given.
    pub unknown: Vec<u32>,
}

/// What traces say.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was read.
    pub kind: Kind,
    /// Whether the program marked its steps.
    pub marked: bool,
    /// Ranks of the job, where a file says.
    pub world: Option<u32>,
    /// A row a rank; none of a flight recorder, which does not see computation.
    pub ranks: Vec<RankRow>,
    /// A row a kind of call, those with most exposed time first.
    pub calls: Vec<CallRow>,
    /// The longest launch gaps.
    pub gaps: Vec<GapRow>,
    /// Calls that did not end.
    pub stuck: Vec<Stuck>,
    /// The files, and the profiles of the machine.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using the numbers.
    pub warnings: Vec<String>,
    /// What is wrong where calls are slower than they should be.
    pub anomalies: Vec<Anomaly>,
    /// The causes that were held against slow calls, a run being one collective of a group; none where nobody was to look.
    pub causes: Option<Vec<Causes>>,
    /// Whether files are of other GPUs than the machine has.
    pub other_gpus: bool,
    /// Whether a file has kernels of several GPUs, which count as those of one.
    pub several_gpus: bool,
    /// What forecasts rest on, where there are any.
    #[serde(skip)]
    pub grounds: Option<Grounds>,
}

/// Ranks in short: `rank 8`, `ranks 0-3, 8`.
pub(crate) fn of_ranks(ranks: &[u32]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, in_runs(ranks))
}

impl Stuck {
    /// Whether a rank waits in it that has not begun another call.
    pub(super) fn awaits(&self, other: &Self) -> bool {
        let begun = |rank: &u32| self.waiting.contains(rank) && !self.idle.contains(rank);
        !self.idle.is_empty() && other.idle.iter().any(begun)
    }

    /// Whether it shows a fault. A call that all ranks are in, and agree on, may have been under way when the dump was written.
    pub fn failed(&self) -> bool {
        !self.agree
            || self.crossed.is_some()
            || [&self.not_begun, &self.missing, &self.unknown].iter().any(|ranks| !ranks.is_empty())
    }
}

impl Outcome {
    /// Calls that are slower than they should be.
    pub fn slower(&self) -> impl Iterator<Item = (&CallRow, &Expected)> {
        let expected = self.calls.iter().filter_map(|call| Some((call, call.expected.as_ref()?)));
        expected.filter(|(_, expected)| expected.judgement == Judgement::Slower)
    }

    /// Whether something is wrong: a call slower than it should be, or one that ranks did not reach or do not agree on.
    pub fn failed(&self) -> bool {
        self.stuck.iter().any(Stuck::failed) || self.slower().next().is_some()
    }
}
