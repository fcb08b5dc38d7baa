//! A step as a GOAL schedule: what its ranks compute, and the messages of its calls.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use collcast_scenarios::goal::{self, Goal, GoalError};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Call;
use collcast_sim::workload::Communicate;

use super::outcome::Outcome;
use crate::convert;
use crate::error::Error;
use crate::files;
use crate::query::Query;
use crate::site::Site;

/// A schedule that was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Ranks.
    pub ranks: usize,
    /// Operations of all ranks.
    pub operations: usize,
    /// Kinds of calls that switches would do, and that are rings there.
    pub as_rings: BTreeSet<String>,
}

/// Writes a step as a GOAL schedule: in LogGOPSim's binary form where the name ends in `.bin`, else in text. A call is the messages
/// of the algorithm that NCCL would choose, on one channel.
///
/// # Errors
/// A call that has no messages, more operations than are read, a file that cannot be written.
pub fn write_goal(outcome: &Outcome, path: &Path) -> Result<Written, Error> {
    let mut known: HashMap<(Communicate, Vec<Rank>), Rc<Goal>> = HashMap::new();
    let mut as_rings = BTreeSet::new();
    let messages = |call: &Communicate, ranks: &[Rank]| -> Result<Rc<Goal>, Failed> {
        let key = (Communicate { group: 0, ..call.clone() }, ranks.to_vec());
        if let Some(goal) = known.get(&key) {
            return Ok(Rc::clone(goal));
        }
        let (goal, as_ring) = of_call(&outcome.site, call, ranks)?;
        if as_ring {
            as_rings.insert(format!("{} over {} ranks", call.collective, ranks.len()));
        }
        Ok(Rc::clone(known.entry(key).or_insert_with(|| Rc::new(goal))))
    };
    let goal = Goal::of_step(&outcome.graph, messages).map_err(|failed| failed.0)?;
    let binary = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("bin"));
    let bytes = match binary {
        true => goal::to_binary(&goal).map_err(|error| Failed::from(error).0)?,
        false => {
            let what =
                format!("{}: a step of {} ranks, calls as messages on one channel", outcome.scenario, goal.ranks.len());
            goal::write(&goal, &what).into_bytes()
        }
    };
    files::write(path, &bytes)?;
    Ok(Written { ranks: goal.ranks.len(), operations: goal.operations(), as_rings })
}

/// The messages of a call, and whether they are a ring's in place of what switches do.
fn of_call(site: &Site, call: &Communicate, ranks: &[Rank]) -> Result<(Goal, bool), Failed> {
    let gpus: Vec<_> = ranks.iter().map(|&rank| site.topology.gpu_of(rank)).collect();
    let topology = site.topology.placed(&gpus).map_err(|error| Error::usage(error.to_string(), "leave out --goal"));
    let site = Site { topology: topology.map_err(Failed)?, ..site.clone() };
    let over = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    let asked = Call { in_place: call.in_place, ..Call::of_size(call.collective, over, call.bytes, call.dtype) };
    let query = Query { algorithm: call.algorithm, protocol: call.protocol, ..Query::of(asked.aligned()) };
    convert::messages(&site, &query).map_err(Failed)
}

/// An error on its way through the writer of schedules.
struct Failed(Error);

impl From<GoalError> for Failed {
    fn from(error: GoalError) -> Self {
        Self(Error::usage(error.to_string(), "take fewer ranks, layers or micro-batches, or leave out --goal"))
    }
}
