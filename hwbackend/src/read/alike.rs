//! Times of kernels from jobs: of all calls that are alike one row. A kernel waits inside for the last rank, so that the lower
//! quartile of their times is taken.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::collective::{Collective, DataType, Launch};
use collcast_sim::measurement::{Choice, Measurement, Origin, Settings};
use collcast_sim::units::{Bytes, SimDuration};

/// What makes calls alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Alike {
    pub(super) collective: Collective,
    /// 0 where nothing has said yet.
    pub(super) ranks: u32,
    pub(super) hosts: Option<u32>,
    pub(super) dtype: Option<DataType>,
    pub(super) size: u64,
    pub(super) chosen: Option<Choice>,
}

/// Times of calls that are alike, and the line of the first.
#[derive(Clone, Default, Debug)]
struct Times {
    line: u64,
    us: Vec<f64>,
}

/// Whose calls they are.
#[derive(Clone, Default, Debug)]
pub(super) struct Whose {
    pub(super) run: String,
    pub(super) file: String,
    pub(super) hosts: Option<u32>,
    pub(super) launch: Option<Launch>,
    pub(super) nccl: Option<String>,
}

/// Calls by what makes them alike.
#[derive(Clone, Default, Debug)]
pub(super) struct Calls(BTreeMap<Alike, Times>);

impl Calls {
    pub(super) fn add(&mut self, line: u64, alike: Alike, us: f64) {
        self.0.entry(alike).or_insert_with(|| Times { line, us: Vec::new() }).us.push(us);
    }

    /// Takes over those of another rank.
    pub(super) fn extend(&mut self, other: Self) {
        for (alike, times) in other.0 {
            self.0.entry(alike).or_insert_with(|| Times { line: times.line, us: Vec::new() }).us.extend(times.us);
        }
    }

    pub(super) fn kinds(&self) -> usize {
        self.0.len()
    }

    pub(super) fn count(&self) -> usize {
        self.0.values().map(|times| times.us.len()).sum()
    }

    /// What rows of them are, in words.
    pub(super) fn told(&self, by: &str) -> String {
        format!(
            "{} calls by {by}, of {} kinds: a row is the lower quartile of its calls, since kernels wait for late ranks. \
             Launches are not in these times, so that small calls seem fast",
            self.count(),
            self.kinds()
        )
    }

    /// A row a kind.
    pub(super) fn rows(self, whose: &Whose) -> Vec<Measurement> {
        self.0.into_iter().map(|(alike, times)| row(whose, &alike, times)).collect()
    }
}

fn row(whose: &Whose, alike: &Alike, times: Times) -> Measurement {
    let mut us = times.us;
    us.sort_by(f64::total_cmp);
    Measurement {
        run: whose.run.clone(),
        collective: alike.collective,
        ranks: alike.ranks,
        hosts: alike.hosts.filter(|&hosts| hosts > 0).or(whose.hosts),
        launch: whose.launch,
        timing: None,
        dtype: alike.dtype,
        op: None,
        root: None,
        in_place: false,
        size: Bytes(alike.size),
        time: SimDuration::from_us(us[us.len() / 4]),
        settings: Settings { nccl: whose.nccl.clone(), ..Settings::default() },
        chosen: alike.chosen,
        origin: Origin { file: whose.file.clone(), line: times.line },
    }
}

/// Calls of a communicator, of the ranks whose files were read.
pub(super) struct Profile {
    pub(super) calls: Calls,
    pub(super) ranks: BTreeSet<u32>,
    /// Ranks that the `.toml` beside the file says there are.
    pub(super) said: Option<u32>,
    pub(super) whose: Whose,
}

/// Profiles by `CommHash`.
pub(super) type Profiles = BTreeMap<u64, Profile>;

impl Profile {
    /// Takes over the calls of another rank.
    pub(super) fn extend(&mut self, other: Self) {
        self.calls.extend(other.calls);
        self.ranks.extend(other.ranks);
        self.said = self.said.or(other.said);
    }

    /// Its rows and what to say of them, once all ranks are read.
    ///
    /// # Errors
    /// Why its number of ranks is not known, and the way out.
    pub(super) fn finish(self) -> Result<(Vec<Measurement>, Vec<String>), String> {
        let highest = self.ranks.last().copied().unwrap_or(0);
        let ranks = self.said.unwrap_or(highest.saturating_add(1));
        if ranks < 2 {
            return Err(
                "how many ranks there are is not in a profiler's file: give those of all ranks, or write `ranks = \
                        8` into a .toml of its name beside it"
                    .to_owned(),
            );
        }
        let mut notes = vec![self.calls.told("the profiler plugin of NCCL")];
        if self.said.is_none() && self.ranks.len() <= highest as usize {
            notes.push(format!(
                "{} of the ranks up to {highest} have files: {ranks} ranks are taken, and `ranks` in the .toml beside it says \
                 where there are more",
                self.ranks.len()
            ));
        }
        let mut rows = self.calls.rows(&self.whose);
        for row in &mut rows {
            row.ranks = ranks;
            // NCCL counts what a rank gives or gets, nccl-tests all of it.
            if matches!(row.collective, Collective::AllGather | Collective::ReduceScatter) {
                row.size.0 = row.size.0.saturating_mul(u64::from(ranks));
            }
        }
        Ok((rows, notes))
    }
}
