//! Measured times of algorithms and protocols that were forced, and of NCCL's own choice.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::collective::{Buffers, Collective, Launch};
use collcast_sim::measurement::{Measurement, PeerAccess};
use collcast_sim::schedule::Call;

use super::tuned::{Pair, Times};
use crate::error::Error;
use crate::statistics::median;

/// Collective, size, algorithm and protocol where forced, channels where forced.
type Key = (Collective, u64, Option<Pair>, Option<u32>);

/// Measured times by collective, size, algorithm, protocol and channels.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Mode of the rows.
    pub(super) launch: Option<Launch>,
    /// Microseconds by run.
    times: BTreeMap<Key, BTreeMap<String, Vec<f64>>>,
    rows: usize,
    left_out: usize,
}

impl Measured {
    /// The rows of `ranks` ranks that leave buffers, threads and peer access as they are.
    ///
    /// # Errors
    /// No row is left.
    pub(super) fn of(rows: &[Measurement], ranks: u32, launch: Launch, told: bool) -> Result<Self, Error> {
        let plain = |m: &&Measurement| {
            let s = &m.settings;
            m.ranks == ranks
                && s.buffers == Buffers::default()
                && s.threads.is_none()
                && s.peer_access == PeerAccess::On
                && s.nccl_algo.is_none()
                && s.algorithm.is_some() == s.protocol.is_some()
        };
        let usable: Vec<&Measurement> = rows.iter().filter(plain).collect();
        let mut modes: BTreeMap<Launch, usize> = BTreeMap::new();
        for row in &usable {
            *modes.entry(row.launch.unwrap_or(launch)).or_default() += 1;
        }
        let most = modes.iter().max_by_key(|(mode, rows)| (**rows, **mode == launch)).map(|(mode, _)| *mode);
        let mode = if told || modes.contains_key(&launch) { Some(launch) } else { most };
        let mut out = Self { launch: mode, ..Self::default() };
        for row in usable.into_iter().filter(|row| Some(row.launch.unwrap_or(launch)) == mode) {
            let pair = row.settings.algorithm.zip(row.settings.protocol);
            let key = (row.collective, row.size.0, pair, row.settings.channels);
            out.times.entry(key).or_default().entry(row.run.clone()).or_default().push(row.time.as_us());
            out.rows += 1;
        }
        out.left_out = rows.len() - out.rows;
        if out.rows == 0 {
            let modes: Vec<String> = modes.iter().map(|(mode, rows)| format!("{mode} ({rows} rows)")).collect();
            let have: BTreeSet<u32> = rows.iter().map(|m| m.ranks).collect();
            return Err(Error::usage(
                format!("no measured row is of {ranks} ranks launched by {launch}"),
                if modes.is_empty() {
                    format!("the rows are of {have:?} ranks: choose with --ranks")
                } else {
                    format!("choose with --launch: {}", modes.join(", "))
                },
            ));
        }
        Ok(out)
    }

    pub(super) fn sizes(&self) -> Vec<u64> {
        let sizes: BTreeSet<u64> = self.times.keys().map(|key| key.1).collect();
        sizes.into_iter().collect()
    }

    pub(super) fn note(&self) -> Option<String> {
        let mode = self.launch?;
        Some(format!(
            "measured times: {} rows launched by {mode}; {} rows of other launches, ranks or settings are not used",
            self.rows, self.left_out
        ))
    }

    /// Times of a candidate; runs without a forced choice are those of the default.
    pub(super) fn times(&self, call: &Call, pair: Pair, channels: Option<u32>, default: bool) -> Option<Times> {
        let forced = self.times.get(&(call.collective, call.size().0, Some(pair), channels));
        let free = self.times.get(&(call.collective, call.size().0, None, channels)).filter(|_| default);
        let runs: Vec<f64> = forced.into_iter().chain(free).flatten().map(|(_, us)| median(us.clone())).collect();
        (!runs.is_empty()).then(|| Times { runs: runs.len(), time_us: median(runs) })
    }
}
