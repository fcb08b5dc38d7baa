//! Measured times of algorithms and protocols that were forced, and of NCCL's own choice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::collective::{Algorithm, Collective, Launch};
use collcast_sim::measurement::{Measurement, PeerAccess};
use collcast_sim::nccl::{Selection, Version};
use collcast_sim::predict;
use collcast_sim::schedule::Call;

use super::request::Request;
use super::tuned::{Pair, Times};
use crate::bands::{BANDS, band};
use crate::error::Error;
use crate::noise::known;
use crate::statistics::median;

/// Collective, size, algorithm and protocol where forced, channels where forced.
type Key = (Collective, u64, Option<Pair>, Option<u32>);

/// Times measured twice from which on they say themselves how far they scatter.
const ENOUGH: usize = 10;
/// Median of the absolute value of a normal variable with a standard deviation of 1.
const MEDIAN_OF_NORMAL: f64 = 0.6745;
/// Least standard deviation of a time's logarithm: clocks and temperature move from run to run by as much. Origin: 0.5% is
/// the row noise of sizes above 16 MiB (`noise`).
const LEAST: f64 = 0.005;

/// Measured times by collective, size, algorithm, protocol and channels.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Mode of the rows.
    pub(super) launch: Option<Launch>,
    /// Whether NCCL had registered the buffers of the rows.
    pub(super) registered: Option<bool>,
    /// Whether input and output of the rows were one buffer.
    pub(super) in_place: Option<bool>,
    /// The version of NCCL that all rows name.
    pub(super) nccl: Option<Version>,
    /// All that rows name.
    versions: BTreeSet<String>,
    /// Microseconds.
    times: BTreeMap<Key, Vec<f64>>,
    /// Standard deviation of the logarithm of one time, by size band.
    deviations: [f64; BANDS.len()],
    rows: usize,
    left_out: usize,
    /// Rows of collectives that nobody asks about: they say how much times of this machine differ, and no more.
    not_asked: usize,
    /// Why the first of these are, each with how many.
    others: Vec<String>,
}

/// Whether threads, FIFOs, peer access and lists that a row says are those that NCCL is told; a forced algorithm with its
/// protocol is none.
fn is_told(row: &Measurement, settings: &predict::Settings) -> bool {
    let (of_row, nccl) = (&row.settings, &settings.nccl);
    let listed = |text: &String| {
        let read = Selection::<Algorithm>::parse(text, settings.version.unwrap_or_default());
        read.is_ok_and(|(algorithms, _)| algorithms == nccl.algorithms)
    };
    let forced = of_row.algorithm.is_some() && of_row.protocol.is_some();
    let as_told = of_row.algorithm.is_none_or(|of| nccl.algorithms.forced(row.collective) == Some(of))
        && of_row.protocol.is_none_or(|of| nccl.protocols.forced(row.collective) == Some(of));
    of_row.buffers.or(nccl.buffers) == nccl.buffers
        && of_row.threads.is_none_or(|threads| nccl.threads == Some(threads))
        && (of_row.peer_access == PeerAccess::On || of_row.peer_access == settings.transport.peer_access)
        && of_row.nccl_algo.as_ref().is_none_or(listed)
        && (forced || as_told)
}

impl Measured {
    /// The rows of `ranks` ranks whose buffers, threads, peer access and lists of algorithms are those of the machine, and that
    /// are of the calls asked about: their element type, reduction, root and buffers, with `settings` of the machine.
    /// `elsewhere` says why a row was measured elsewhere, or with NCCL told otherwise.
    ///
    /// # Errors
    /// No row is left.
    pub(super) fn of<'r>(
        rows: &'r [Measurement],
        ranks: u32,
        settings: &predict::Settings,
        request: &Request,
        elsewhere: &dyn Fn(&'r Measurement) -> Option<String>,
    ) -> Result<Self, Error> {
        let (launch, told) = (settings.launch, request.this_launch);
        // As with launches: where nothing was measured as the machine has it, what was measured takes its place.
        let of_ranks = || rows.iter().filter(|m| m.ranks == ranks && elsewhere(m).is_none());
        let is_launched = |m: &&Measurement| m.launch.is_none_or(|of| of == launch);
        let mut own: Vec<&Measurement> = of_ranks().filter(is_launched).collect();
        if own.is_empty() {
            own = of_ranks().collect();
        }
        let all = |is: fn(&Measurement) -> bool| !own.is_empty() && own.iter().all(|m| is(m));
        let registered = settings.registered || all(|m| m.settings.registered);
        let in_place = request.in_place || all(|m| m.in_place);
        let other = |m: &'r Measurement| -> Option<String> {
            if m.ranks != ranks {
                return Some(format!("are of {} ranks (--ranks)", m.ranks));
            }
            if let Some(why) = elsewhere(m) {
                return Some(why);
            }
            if let Some(root) = m.root.filter(|&root| root != request.root.0 && m.collective.rooted()) {
                return Some(format!("have root {root} (--root)"));
            }
            if m.in_place != in_place {
                return Some(format!("are {} (--in-place)", if m.in_place { "in place" } else { "out of place" }));
            }
            if m.settings.registered != registered {
                let not = if m.settings.registered { "" } else { "not " };
                return Some(format!("have buffers that are {not}registered (--registered)"));
            }
            if let Some(op) = m.op.filter(|&op| op != request.op && m.collective.reduces()) {
                return Some(format!("reduce by {op} (--op)"));
            }
            if let Some(dtype) = m.dtype.filter(|&dtype| dtype != request.dtype) {
                return Some(format!("are of {dtype} (--dtype)"));
            }
            (!is_told(m, settings)).then(|| "set threads, FIFOs, peer access or lists of algorithms".to_owned())
        };
        let mut others: BTreeMap<String, usize> = BTreeMap::new();
        let mut usable: Vec<&Measurement> = Vec::new();
        for row in rows {
            match other(row) {
                Some(why) => *others.entry(why).or_default() += 1,
                None => usable.push(row),
            }
        }
        let mut modes: BTreeMap<Launch, usize> = BTreeMap::new();
        for row in &usable {
            *modes.entry(row.launch.unwrap_or(launch)).or_default() += 1;
        }
        let most = modes.iter().max_by_key(|(mode, rows)| (**rows, **mode == launch)).map(|(mode, _)| *mode);
        let mode = if told || modes.contains_key(&launch) { Some(launch) } else { most };
        let mut out = Self { launch: mode, registered: Some(registered), in_place: Some(in_place), ..Self::default() };
        let mut versions: BTreeSet<Option<&str>> = BTreeSet::new();
        for row in usable.into_iter().filter(|row| Some(row.launch.unwrap_or(launch)) == mode) {
            let pair = row.settings.algorithm.zip(row.settings.protocol);
            let key = (row.collective, row.size.0, pair, row.settings.channels);
            out.times.entry(key).or_default().push(row.time.as_us());
            out.rows += 1;
            out.not_asked += usize::from(request.step.is_none() && !request.collectives.contains(&row.collective));
            versions.insert(row.settings.nccl.as_deref());
        }
        out.left_out = rows.len() - out.rows;
        let mut others: Vec<(String, usize)> = others.into_iter().collect();
        others.sort_by_key(|(_, rows)| Reverse(*rows));
        out.others = others.iter().take(4).map(|(why, rows)| format!("{rows} {why}")).collect();
        let one = (versions.len() == 1).then(|| versions.first().copied()).flatten().flatten();
        out.nccl = one.and_then(|text| text.parse().ok());
        out.versions = versions.iter().copied().flatten().map(str::to_owned).collect();
        out.judge_noise(mode.unwrap_or(launch));
        if out.rows == 0 {
            let modes: Vec<String> = modes.iter().map(|(mode, rows)| format!("{mode} ({rows} rows)")).collect();
            return Err(Error::usage(
                format!("no measured row is of this call on {ranks} ranks launched by {launch}"),
                if modes.is_empty() {
                    format!("of {} rows {}", rows.len(), out.others.join(", "))
                } else {
                    format!("choose with --launch: {}", modes.join(", "))
                },
            ));
        }
        Ok(out)
    }

    /// One more time.
    pub(super) fn add(&mut self, call: &Call, pair: Option<Pair>, channels: Option<u32>, time_us: f64) {
        self.times.entry((call.collective, call.size().0, pair, channels)).or_default().push(time_us);
        self.rows += 1;
    }

    /// Finds how far the times scatter.
    pub(super) fn judge_noise(&mut self, launch: Launch) {
        self.launch = Some(launch);
        self.deviations = std::array::from_fn(|band| self.deviation(band as u8, launch));
    }

    /// How far two times of one thing lie apart, where enough were measured more than once.
    fn deviation(&self, of: u8, launch: Launch) -> f64 {
        let again = self.times.iter().filter(|(key, _)| band(key.1) == of);
        let apart = again.flat_map(|(_, us)| us.windows(2).map(|two| (two[0] / two[1]).ln().abs()));
        let apart: Vec<f64> = apart.collect();
        // Noise is that of a ratio of two single measurements: half of its variance is one's.
        let ratio = if apart.len() < ENOUGH {
            let noise = known(&[Some(launch)], of);
            noise.offset.hypot(noise.row)
        } else {
            median(apart) / MEDIAN_OF_NORMAL
        };
        (ratio / std::f64::consts::SQRT_2).max(LEAST)
    }

    /// Standard deviation of the logarithm of one time of a size.
    pub(super) fn scatter(&self, bytes: u64) -> f64 {
        self.deviations[usize::from(band(bytes))]
    }

    pub(super) fn sizes(&self) -> Vec<u64> {
        let sizes: BTreeSet<u64> = self.times.keys().map(|key| key.1).collect();
        sizes.into_iter().collect()
    }

    pub(super) fn note(&self) -> Option<String> {
        let mode = self.launch?;
        Some(format!(
            "measured times: {} rows launched by {mode}{}{}{}; {} rows of other launches, ranks or settings are not used{}",
            self.rows,
            if self.in_place == Some(true) { ", in place" } else { "" },
            if self.registered == Some(true) { ", with registered buffers" } else { "" },
            match self.not_asked {
                0 => String::new(),
                some => format!(", {some} of them of other collectives than are tuned (-c)"),
            },
            self.left_out,
            if self.others.is_empty() { String::new() } else { format!(": {}", self.others.join(", ")) }
        ))
    }

    /// What to know of rows that several versions of NCCL ran.
    pub(super) fn mixed(&self) -> Option<String> {
        let versions: Vec<&str> = self.versions.iter().map(String::as_str).collect();
        (versions.len() > 1).then(|| {
            format!(
                "measured times are of NCCL {} and count as of one: name files of one version, and that with --nccl",
                versions.join(" and ")
            )
        })
    }

    /// Times of a candidate; runs without a forced choice are those of the default.
    pub(super) fn times(&self, call: &Call, pair: Pair, channels: Option<u32>, default: bool) -> Option<Times> {
        let bytes = call.size().0;
        let forced = self.times.get(&(call.collective, bytes, Some(pair), channels));
        let free = self.times.get(&(call.collective, bytes, None, channels)).filter(|_| default);
        let times: Vec<f64> = forced.into_iter().chain(free).flatten().copied().collect();
        let runs = times.len();
        // Two runs of one choice that differ leave their mean unsure by half of that, however many times each has.
        let apart = forced.zip(free).map_or(0.0, |(forced, free)| (median(forced.clone()) / median(free.clone())).ln());
        let deviation = self.scatter(bytes).max(apart.abs() / 2.0 * (runs as f64).sqrt());
        (runs > 0).then(|| Times { runs, time_us: median(times), deviation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteSpec;
    use collcast_hwbackend::read::{ReadOptions, read_paths};

    /// Goal: rows of the threads, FIFOs and lists that NCCL is told are its own; those of others are not.
    #[test]
    fn rows_of_what_is_told_count() -> Result<(), Error> {
        let file = tempfile::Builder::new().suffix(".csv").tempfile().map_err(|e| Error::Internal(e.to_string()))?;
        let rows = "collective,ranks,size_bytes,time_us,algorithm,protocol,nthreads,buffsize,nccl_algo_env\n\
            all_reduce,8,1024,9,,,,,\nall_reduce,8,1024,9,tree,ll,,,\nall_reduce,8,1024,9,ring,,,,\n\
            all_reduce,8,1024,9,,,256,,\nall_reduce,8,1024,9,,,,1048576,\nall_reduce,8,1024,9,,,,,^nvls\n";
        crate::files::write(file.path(), rows.as_bytes())?;
        let rows = read_paths(&[file.path().to_owned()], &ReadOptions::default())?.measurements;
        let told = |env: &[(&str, &str)]| -> Result<Vec<usize>, Error> {
            let site =
                env.iter().fold(SiteSpec::new("dgx-h100"), |site, (name, value)| site.env(*name, *value)).load()?;
            Ok((0..rows.len()).filter(|&row| is_told(&rows[row], site.settings())).collect())
        };
        assert_eq!(told(&[])?, [0, 1]);
        assert_eq!(told(&[("NCCL_ALGO", "Ring"), ("NCCL_NTHREADS", "256")])?, [0, 1, 2, 3]);
        assert_eq!(told(&[("NCCL_ALGO", "^NVLS"), ("NCCL_BUFFSIZE", "1048576")])?, [0, 1, 4, 5]);
        Ok(())
    }
}
