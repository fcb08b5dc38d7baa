//! Times of kernels from jobs: of all calls that are alike one row. A kernel waits inside for the last rank, so that the lower
//! quartile of their times is taken.

use std::collections::BTreeMap;

use collcast_sim::collective::{Collective, DataType, Launch};
use collcast_sim::measurement::{Choice, Measurement, Origin, Settings};
use collcast_sim::units::{Bytes, SimDuration};

use super::error::ReadError;
use super::parsed::Input;

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
    run: String,
    file: String,
    hosts: Option<u32>,
    launch: Option<Launch>,
    nccl: Option<String>,
}

impl Whose {
    pub(super) fn of(input: &Input<'_>, run: &str) -> Self {
        Self {
            run: run.to_owned(),
            file: input.path.display().to_string(),
            hosts: input.sidecar.nodes,
            launch: input.sidecar.launch,
            nccl: input.sidecar.nccl.clone(),
        }
    }
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

    /// The same, within the limit of rows.
    ///
    /// # Errors
    /// More rows than one call may read.
    pub(super) fn rows_of(self, input: &Input<'_>) -> Result<Vec<Measurement>, ReadError> {
        if self.kinds() > input.rows_left {
            return Err(input.too_many_rows());
        }
        Ok(self.rows(&Whose::of(input, input.stem)))
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
