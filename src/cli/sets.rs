//! `collcast bench --pairs`: sets of the GPUs of this host, whose times say which of them is slow.

use collcast::Error;
use collcast::bench::{Set, Sets};

#[derive(clap::Args, Debug)]
pub(crate) struct SetsArgs {
    /// Run on all pairs of the GPUs of this host: which GPU or link is slow?
    #[arg(long, help_heading = "Sets of GPUs", conflicts_with_all = ["halves", "alone"])]
    pairs: bool,
    /// Run on halves of them, beginning at each GPU in turn: which GPU is slow among many?
    #[arg(long, help_heading = "Sets of GPUs", conflicts_with = "alone")]
    halves: bool,
    /// Run on each by itself, which copies in its own memory: whose memory or clock is slow?
    #[arg(long, help_heading = "Sets of GPUs")]
    alone: bool,
    /// How often all sets run, one after the other; a link or a GPU by itself needs 3 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Sets of GPUs")]
    rounds: Option<u32>,
}

impl SetsArgs {
    fn kind(&self) -> Option<Sets> {
        let kinds = [(self.pairs, Sets::Pairs), (self.halves, Sets::Halves), (self.alone, Sets::Alone)];
        kinds.into_iter().find(|kind| kind.0).map(|kind| kind.1)
    }

    /// Whether sets run.
    pub(crate) fn any(&self) -> bool {
        self.kind().is_some()
    }

    /// The sets of so many GPUs; none where all run together.
    pub(crate) fn of(&self, gpus: u32) -> Result<Vec<Set>, Error> {
        match (self.kind(), self.rounds) {
            (Some(kind), rounds) => kind.of(gpus, rounds.unwrap_or(1)),
            (None, Some(_)) => {
                Err(Error::usage("--rounds has no meaning here: no sets are run", "add --pairs or --halves"))
            }
            (None, None) => Ok(Vec::new()),
        }
    }
}
