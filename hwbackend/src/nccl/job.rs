//! A list of calls for a process with NCCL's settings in its environment: read from its
//! standard input, answered line by line on its standard output.

use std::io::Write;
use std::time::Duration;

use collcast_sim::collective::{Algorithm, Launch, Protocol};
use collcast_sim::ids::Rank;
use collcast_sim::nccl::selection::Listed;
use collcast_sim::schedule::Call;
use collcast_sim::units::Bytes;
use serde::{Deserialize, Serialize};

use super::Nccl;
use crate::exec::{CallToRun, Effort, ExecError, Executor, Sample};
use crate::rendezvous::{Group, World};

/// How long processes wait for each other at the start, and for a message later: the first run
/// of a large case, with its fill and check, lies between two messages.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longest time between two answers of a process that goes on. It begins with up to a wait for the others; then come some ten
/// operations, each of which may take about half of the longest wait, and what the budget allows.
pub fn longest(effort: &Effort) -> Duration {
    PATIENCE + (effort.longest() + effort.budget) * 6
}

/// A call in words.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Words {
    collective: String,
    ranks: u32,
    count: u64,
    dtype: String,
    op: String,
    root: u32,
    in_place: bool,
    counts: Option<Vec<u64>>,
}

/// Calls to run, one after another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Job {
    calls: Vec<Words>,
    launch: String,
    effort: Effort,
}

/// A line of the answer, after `MARK`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// What it runs on.
    Facts(Vec<(String, String)>),
    /// The next call's times.
    Sample(Sample),
    /// Another rank is as far.
    Goes,
    /// Why there are no more.
    Error {
        /// Exit code that the command ends with.
        code: u8,
        /// What happened.
        message: String,
        /// The way out.
        hint: Option<String>,
    },
}

/// What lines of the answer begin with; NCCL itself may print others.
const MARK: &str = "#collcast ";

impl Answer {
    /// Reads a line; `None` for what is not of the answer. It may stand behind a piece of a line: NCCL writes what
    /// NCCL_DEBUG asks for to the same output, in blocks that end anywhere.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.split_once(MARK)?.1).ok()
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let text = serde_json::to_string(self)?;
        // At once, so that nothing of NCCL's gets in between.
        out.write_all(format!("{MARK}{text}\n").as_bytes())?;
        out.flush()
    }
}

impl From<&ExecError> for Answer {
    fn from(error: &ExecError) -> Self {
        let (code, hint) = match error {
            ExecError::Missing { hint, .. } => (3, Some(hint.clone())),
            ExecError::Refused { hint, .. } => (2, Some((*hint).to_owned())),
            _ => (1, None),
        };
        Self::Error { code, message: error.to_string(), hint }
    }
}

impl Job {
    /// A job of calls.
    pub fn new(calls: &[&Call], launch: Launch, effort: &Effort) -> Self {
        let words = |call: &&Call| Words {
            collective: call.collective.name().to_owned(),
            ranks: call.ranks,
            count: call.count,
            dtype: call.dtype.name().to_owned(),
            op: call.op.name().to_owned(),
            root: call.root.0,
            in_place: call.in_place,
            counts: call.counts.as_ref().map(|c| c.to_vec()),
        };
        Self { calls: calls.iter().map(words).collect(), launch: launch.name().to_owned(), effort: *effort }
    }

    fn calls(&self) -> Result<(Vec<Call>, Launch), ExecError> {
        let bad = |e: collcast_sim::collective::UnknownName| ExecError::Rendezvous(e.to_string());
        let call = |words: &Words| -> Result<Call, ExecError> {
            let mut call = Call::of_size(
                words.collective.parse().map_err(bad)?,
                words.ranks,
                Bytes(0),
                words.dtype.parse().map_err(bad)?,
            );
            call.count = words.count;
            call.op = words.op.parse().map_err(bad)?;
            call.root = Rank(words.root);
            call.in_place = words.in_place;
            call.counts = words.counts.clone().map(Into::into);
            Ok(call)
        };
        Ok((self.calls.iter().map(call).collect::<Result<_, _>>()?, self.launch.parse().map_err(bad)?))
    }

    /// Runs the job in this process; rank 0 answers.
    ///
    /// # Errors
    /// The output is gone. What goes wrong with the job is part of the answer, and `Ok(false)`.
    pub fn work(&self, out: &mut dyn Write) -> std::io::Result<bool> {
        match self.run(out) {
            Ok(result) => result,
            Err(error) => Answer::from(&error).write(out).map(|()| false),
        }
    }

    fn run(&self, out: &mut dyn Write) -> Result<std::io::Result<bool>, ExecError> {
        let (calls, launch) = self.calls()?;
        let world = match launch {
            Launch::Processes => World::from_env(&|name| std::env::var(name).ok())?,
            _ => None,
        };
        let job = match world {
            Some(world) => {
                let group = Group::join(&world, PATIENCE)?;
                Some((world, group))
            }
            None => None,
        };
        let answers = job.as_ref().is_none_or(|(world, _)| world.rank == 0);
        let mut nccl = Nccl::open(job)?;
        let facts = nccl.facts().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut write = |answer: Answer| if answers { answer.write(out) } else { Answer::Goes.write(out) };
        if let Err(error) = write(Answer::Facts(facts)) {
            return Ok(Err(error));
        }
        for call in &calls {
            let written = match nccl.run(&CallToRun { call, schedule: None, launch }, &self.effort) {
                Ok(sample) => write(Answer::Sample(sample)),
                // Before NCCL goes, which may take long.
                Err(error) => return Ok(Answer::from(&error).write(out).map(|()| false)),
            };
            if let Err(error) = written {
                return Ok(Err(error));
            }
        }
        Ok(Ok(true))
    }
}

/// NCCL's environment for forced settings. Channels bound both ends.
pub fn environment(
    algorithm: Option<Algorithm>,
    protocol: Option<Protocol>,
    channels: Option<u32>,
) -> Vec<(&'static str, String)> {
    // Of some algorithms NCCL has none.
    let algorithm = algorithm.and_then(Listed::spelling);
    let protocol = protocol.and_then(Listed::spelling);
    let channels = channels.map(|c| c.to_string());
    [
        ("NCCL_ALGO", algorithm.map(str::to_owned)),
        ("NCCL_PROTO", protocol.map(str::to_owned)),
        ("NCCL_MIN_CTAS", channels.clone()),
        ("NCCL_MAX_CTAS", channels),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::collective::{Collective, DataType};

    /// Goal: a job survives the way to its process, an answer the way back, among other lines.
    #[test]
    fn jobs_and_answers_survive_the_way() {
        let mut call = Call::of_size(Collective::ReduceScatter, 4, Bytes(4096), DataType::Bfloat16);
        call.in_place = true;
        let job = Job::new(&[&call], Launch::Processes, &Effort::default());
        let back: Job = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
        assert_eq!(back.calls().unwrap(), (vec![call], Launch::Processes));
        let answer = Answer::Sample(Sample { times_us: vec![1.5, 2.0], checked: 7, predicted_us: Some(3.0) });
        let mut line = Vec::new();
        answer.write(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        assert_eq!(Answer::parse(line), Some(answer.clone()));
        assert_eq!(Answer::parse(&format!("host:7:9 [0] NCCL INFO AllReduce: opC{line}")), Some(answer));
        assert_eq!(Answer::parse("NCCL version 2.28.9+cuda13.0"), None);
    }

    /// Goal: NCCL's spelling of forced settings, by value.
    #[test]
    fn forced_settings_are_spelt_as_nccl_reads_them() {
        let forced = environment(Some(Algorithm::Tree), Some(Protocol::Ll128), Some(8));
        let expected = [("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"), ("NCCL_MIN_CTAS", "8"), ("NCCL_MAX_CTAS", "8")];
        assert_eq!(forced, expected.map(|(k, v)| (k, v.to_owned())));
        assert!(environment(None, None, None).is_empty());
    }
}
