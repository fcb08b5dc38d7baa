//! What the reader of one form of file is given, and what it gives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use collcast_sim::collective::Collective;
use collcast_sim::measurement::Measurement;

use super::alike::{Calls, Profiles, Whose};
use super::error::ReadError;
use super::program::collective_in_name;
use super::settings;
use super::sidecar::{Sidecar, counted_gpu, message};

/// Most measurements kept by one call.
pub const ROWS_MAX: usize = 1_000_000;
/// Most notes kept of one file; the others are counted.
pub(super) const NOTES_MAX: usize = 200;
/// Longest time that can be meant: 100 days, well inside the type that carries it.
pub(super) const TIME_MAX_US: f64 = 100.0 * 86_400.0 * 1e6;
/// Shortest time that is one: a picosecond, the unit of times. A row with less has as little of a time as one of 0.00.
pub(super) const TIME_MIN_US: f64 = 1e-6;

/// Who named a collective that only the file's name tells.
pub(super) const BY_NAME: &str = "by the file's name";

/// Begins a line in forecasts of ours that ask for what no row says.
pub const UNSAID: &str = "rows do not say ";
/// Begins the line in results of ours that lists NCCL's variables.
pub const ENVIRONMENT: &str = "NCCL's environment: ";

/// How to read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadOptions {
    /// Read our own predictions as if they were measurements.
    pub allow_predicted: bool,
    /// Keep rows that two files hold alike (a log and its CSV) twice.
    pub keep_duplicates: bool,
    /// The collective of logs and JSON of nccl-tests that name none, neither inside nor in the `.toml` beside them. It goes
    /// before the file's name.
    pub collective: Option<Collective>,
    /// The NCCL version of files that say none, neither inside nor in the `.toml` beside them.
    pub nccl: Option<String>,
    /// Variables that NCCL ran with, where files and the `.toml` beside them do not say otherwise.
    pub env: BTreeMap<String, String>,
    /// Read logs of runs that failed before their first row as files without rows; such a file is an error otherwise, where
    /// it is named or nothing else is in its folder.
    pub keep_failed: bool,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum End {
    /// With its last words.
    #[default]
    Whole,
    /// Without them: it was stopped, or its file cut.
    Cut,
    /// It failed by words of the file, gave wrong results, or ended before its first row.
    Failed,
}

/// A run that did not end well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Its name, as its rows have it; empty where it gave none.
    pub run: String,
    /// The hosts that its device lines name.
    pub hosts: Vec<String>,
    /// How it ended.
    pub end: End,
}

/// Something to tell about a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Line from 1; `None` for the whole file.
    pub line: Option<u64>,
    /// What there is to tell.
    pub text: String,
}

/// What the parser of one form is given.
pub(super) struct Input<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    pub(super) stem: &'a str,
    pub(super) sidecar: &'a Sidecar,
    pub(super) options: &'a ReadOptions,
    pub(super) rows_left: usize,
}

impl Input<'_> {
    /// The collective that was run: what the file says inside, else the `.toml` beside it, who asks, or its name; and which
    /// of these, for messages.
    ///
    /// # Errors
    /// Where none says, with the ways out.
    pub(super) fn collective(&self, said: Option<Collective>) -> Result<(Collective, &'static str), String> {
        let named = || collective_in_name(self.stem).map(|name| (name, BY_NAME));
        (said.map(|said| (said, "by the file itself")))
            .or(self.sidecar.collective.map(|beside| (beside, "by the .toml beside it")))
            .or(self.options.collective.map(|asked| (asked, "as it was asked for")))
            .or_else(named)
            .ok_or_else(|| {
                format!(
                    "it does not say its collective; name it with `-c all_reduce`, in the file's name (all_reduce.log), or as \
                     `collective = \"all_reduce\"` in {}.toml beside it",
                    self.stem
                )
            })
    }

    /// Whose calls are in it, as a run of this name.
    pub(super) fn whose(&self, run: &str) -> Whose {
        Whose {
            run: run.to_owned(),
            file: self.path.display().to_string(),
            hosts: self.sidecar.nodes,
            launch: self.sidecar.launch,
            nccl: self.sidecar.nccl.clone(),
        }
    }

    /// The rows of calls in it.
    ///
    /// # Errors
    /// More rows than one call may read.
    pub(super) fn rows_of(&self, calls: Calls) -> Result<Vec<Measurement>, ReadError> {
        if calls.kinds() > self.rows_left {
            return Err(self.too_many_rows());
        }
        Ok(calls.rows(&self.whose(self.stem)))
    }

    pub(super) fn too_many_rows(&self) -> ReadError {
        ReadError::TooManyRows { path: self.path.to_owned(), limit: ROWS_MAX }
    }
}

/// What the parser of one form gives.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) rows: Vec<Measurement>,
    pub(super) defects: Vec<Note>,
    pub(super) notes: Vec<Note>,
    pub(super) notes_left_out: usize,
    pub(super) unusable: usize,
    pub(super) unreadable: usize,
    pub(super) other_lines: usize,
    pub(super) unfinished: Vec<u64>,
    pub(super) broken: Vec<Broken>,
    pub(super) nccl: Option<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) run_env: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) gpus: BTreeSet<String>,
    pub(super) on_cpu: bool,
    pub(super) unsaid: Option<String>,
    /// Calls whose rows come when the files of all ranks are read.
    pub(super) profiles: Profiles,
    /// Why there are no rows.
    pub(super) reason: Option<String>,
}

impl Parsed {
    pub(super) fn note(&mut self, line: Option<u64>, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { line, text: message(text) });
        } else {
            self.notes_left_out += 1;
        }
    }

    /// Something that makes what was measured doubtful.
    pub(super) fn defect(&mut self, line: u64, text: String) {
        if self.defects.len() < NOTES_MAX {
            self.defects.push(Note { line: Some(line), text: message(text) });
        }
    }

    /// Results that were wrong.
    pub(super) fn wrong(&mut self, line: u64, count: Option<f64>) {
        if let Some(count) = count.filter(|&count| count > 0.0) {
            self.defect(line, format!("{count} values were wrong"));
        }
    }

    /// Values that the whole run counted out of bounds, and whether its own check failed.
    pub(super) fn out_of_bounds(&mut self, line: u64, count: f64, failed: bool) {
        if failed || count > 0.0 {
            self.defect(line, format!("the run failed its own check: {count} values were out of bounds"));
        }
    }

    /// NCCL's last warning, as nccl-tests prints it in the end: NCCL keeps it, and runs that went well have one.
    pub(super) fn last_error(&mut self, line: u64, text: &str) {
        self.note(Some(line), format!("NCCL's last warning: {}", text.trim()));
    }

    /// Whether a run of it ended before its first row.
    pub(super) fn ended_early(&self) -> bool {
        self.broken.iter().any(|broken| broken.run.is_empty())
    }

    /// A run without its last words, by its last line.
    pub(super) fn unfinished(&mut self, line: u64) {
        if self.unfinished.len() < NOTES_MAX {
            self.unfinished.push(line);
        }
    }

    /// Takes what results of ours say above their rows: a comment, or a line of `assumptions`; variables go to `env`.
    pub(super) fn remark(&mut self, line: &str, env: &mut settings::Env) {
        let line = line.trim_start_matches('#').trim();
        self.on_cpu |= line.starts_with("measured by backend host ");
        if line.starts_with("measured ") {
            self.gpus.extend(gpu_of(line));
        }
        if let Some(what) = line.strip_prefix(UNSAID) {
            self.unsaid = Some(message(what.to_owned()));
        }
        if let Some(variables) = line.strip_prefix(ENVIRONMENT) {
            env.extend(settings::assignments(&settings::words(variables)));
        }
    }

    /// A note that would come with every row.
    pub(super) fn note_once(&mut self, line: Option<u64>, text: String) {
        let text = message(text);
        if !self.notes.iter().any(|note| note.text == text) {
            self.note(line, text);
        }
    }

    /// A run that cannot be used for want of something.
    pub(super) fn lack(&mut self, line: Option<u64>, text: String) {
        let text = message(text);
        self.reason.get_or_insert_with(|| text.clone());
        self.note(line, text);
    }

    pub(super) fn reason(&self) -> String {
        let mut reason = self.reason.clone().unwrap_or_else(|| "it has no rows".to_owned());
        if let Some(Note { line: Some(line), text }) = self.notes.first()
            && *text != reason
        {
            reason.push_str(&format!("; line {line}: {text}"));
        }
        reason
    }
}

/// The GPU of `measured by backend nccl on 4 x NVIDIA H100 80GB HBM3, sm_90, ...`, as its driver calls it.
fn gpu_of(measured: &str) -> Option<String> {
    counted_gpu(measured.split_once(" on ")?.1)
}

/// Values that were wrong, as nccl-tests counts them: printed with `%g` (`6.71089e+07`), in its JSON with `%lf`
/// (`4096.000000`). `None` where nothing was checked; no error is taken for `none`.
pub(super) fn wrong_values(text: &str) -> Option<Option<f64>> {
    if text.eq_ignore_ascii_case("n/a") {
        return Some(None);
    }
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let underflows = |count: f64| count == 0.0 && mantissa.contains(|c: char| matches!(c, '1'..='9'));
    let count = text.parse::<f64>().ok().filter(|&count| count.is_finite() && count >= 0.0);
    count.filter(|&count| !underflows(count)).map(Some)
}

/// What a count of wrong values must be.
pub(super) const EXPECTED_WRONG: &str = "a number of wrong values, or N/A (in JSON null) where nothing was checked";

/// Our own mark on predictions.
pub(super) fn is_prediction_mark(line: &str) -> bool {
    line.trim_start_matches('#').trim_start().starts_with("collcast: predicted")
}

/// Why times of a run are not those of one communicator, by the groups of its ranks.
pub(super) fn several_communicators(groups: &BTreeSet<u32>) -> Option<String> {
    let (first, last) = (groups.first()?, groups.last()?);
    (first < last).then(|| {
        format!("several communicators at once (NCCL_TESTS_SPLIT): groups {first} to {last}; measure one alone, without a split")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what our own results say above their rows tells which GPUs they are of, as rank lines of logs do.
    #[test]
    fn results_of_ours_name_their_gpus() {
        for (line, gpu) in [
            ("# measured by backend nccl on 4 x NVIDIA H100 80GB HBM3, sm_90", Some("NVIDIA H100 80GB HBM3")),
            ("measured by backend cuda on 2 x NVIDIA H200; launch graph", Some("NVIDIA H200")),
            ("# measured on 2 x NVIDIA H200, sm_90, 132 multiprocessors", Some("NVIDIA H200")),
            ("# measured by backend host on threads on 2 CPU cores; no GPU is involved", None),
            ("# measured by backend nccl", None),
            ("# run on 2 x NVIDIA H200, sm_90", None),
        ] {
            let mut parsed = Parsed::default();
            parsed.remark(line, &mut settings::Env::new());
            assert_eq!(parsed.gpus.first().map(String::as_str), gpu, "{line}");
        }
    }
}
