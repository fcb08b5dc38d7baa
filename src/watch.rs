//! How far a long answer has got, and a way to stop it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use collcast_sim::engine::{Far, Teller};

use crate::error::Error;

/// Told of progress: how many parts are done, and how many there are.
type Progress = dyn Fn(usize, usize) + Send + Sync;
/// Told what is done, as a line.
type Stage = dyn Fn(&str) + Send + Sync;

/// Parts that an answer has whose progress is a share.
const SHARES: usize = 1000;

/// Follows a long answer and may stop it. By itself it does neither.
///
/// ```
/// let watch = collcast::Watch::default().on_progress(|done, all| eprintln!("{done} of {all}"));
/// let other = watch.clone();
/// other.stop();
/// assert!(watch.stopped());
/// ```
#[derive(Clone, Default)]
pub struct Watch {
    progress: Option<Arc<Progress>>,
    stage: Option<Arc<Stage>>,
    stop: Arc<AtomicBool>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("stopped", &self.stopped()).finish_non_exhaustive()
    }
}

impl Watch {
    /// Calls `told` with the number of parts that are done, and of all, from any thread.
    #[must_use]
    pub fn on_progress(self, told: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(told)), ..self }
    }

    /// Calls `told` with a line about each stage that is done, where an answer has stages.
    #[must_use]
    pub fn on_stage(self, told: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { stage: Some(Arc::new(told)), ..self }
    }

    /// Stops when `flag` is set, as by a handler of Ctrl-C.
    #[must_use]
    pub fn until(self, flag: Arc<AtomicBool>) -> Self {
        Self { stop: flag, ..self }
    }

    /// Stops whatever this watch, or a clone of it, was given to: it ends with [`Error::Cancelled`], or with what it
    /// has so far where that is of use.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether somebody wants it to stop.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The flag that stops it.
    pub fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// The watch of one answer of several, whose parts count as equal.
    pub(crate) fn one_of(&self, index: usize, answers: usize) -> Self {
        let progress = self
            .progress
            .clone()
            .map(|told| -> Arc<Progress> { Arc::new(move |done, all| told(index * all + done, answers * all)) });
        Self { progress, ..self.clone() }
    }

    /// A share of an answer is done, 0 to 1.
    pub(crate) fn share(&self, done: f64) {
        if let Some(progress) = &self.progress {
            progress((done.clamp(0.0, 1.0) * SHARES as f64) as usize, SHARES);
        }
    }

    /// So many files are read, of all.
    pub(crate) fn files(&self, done: usize, all: usize) {
        if let Some(progress) = &self.progress {
            progress(done, all);
        }
    }

    /// Follows simulations that come one after the other, each for itself.
    pub(crate) fn of_each_run(&self) -> Teller {
        if self.progress.is_none() {
            return Teller::default();
        }
        let watch = self.clone();
        Teller::new(move |far| match far {
            // Who wants to stop is heard where the answer looks.
            Far::Begins(what) => drop(watch.stage(what)),
            Far::Share(done) => watch.share(done),
        })
    }

    /// Follows so many simulations that come one after the other, as one answer.
    pub(crate) fn of_runs(&self, all: usize) -> Teller {
        if self.progress.is_none() {
            return Teller::default();
        }
        let (watch, begun) = (self.clone(), AtomicUsize::new(0));
        Teller::new(move |far| {
            let (over, of_next) = match far {
                Far::Begins(_) => (begun.fetch_add(1, Ordering::Relaxed), 0.0),
                Far::Share(done) => (begun.load(Ordering::Relaxed).saturating_sub(1), done),
            };
            watch.share((over as f64 + of_next) / all.max(1) as f64);
        })
    }

    /// A stage is done.
    ///
    /// # Errors
    /// [`Error::Cancelled`] where it is to stop.
    pub(crate) fn stage(&self, line: &str) -> Result<(), Error> {
        if let Some(stage) = &self.stage {
            stage(line);
        }
        if self.stopped() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// The parts of one answer.
    pub(crate) fn parts(&self, all: usize) -> Parts<'_> {
        Parts { watch: self, done: AtomicUsize::new(0), all }
    }
}

/// Counts the parts of one answer that are done.
pub(crate) struct Parts<'w> {
    watch: &'w Watch,
    done: AtomicUsize,
    all: usize,
}

impl Parts<'_> {
    /// One more is done.
    ///
    /// # Errors
    /// [`Error::Cancelled`] where it is to stop.
    pub(crate) fn done(&self) -> Result<(), Error> {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(progress) = &self.watch.progress {
            progress(done, self.all);
        }
        if self.watch.stopped() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
