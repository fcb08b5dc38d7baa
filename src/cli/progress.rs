//! How far a long answer is: on stderr, where that is a terminal, once it takes longer than a second.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use collcast::Watch;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::call;

/// How long an answer takes before a line about it appears, and how often that moves.
const PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(120);
/// Parts of which one tells how long the others take.
const TELLING: usize = 50;
/// The line where parts are counted, and where there are none to count.
const COUNTED: &str = "{msg} [{bar:24}] {percent}%, about {left} left";
const UNCOUNTED: &str = "{spinner} {msg}, {elapsed} so far";

/// The line of an answer; it goes with this.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Whether parts are counted.
    counted: Arc<AtomicBool>,
    /// Ends the thread that shows the line.
    shown: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// A line that says what is being done, where somebody can see it.
    fn begin(doing: &str) -> Self {
        let counted = Arc::default();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_message(doing.to_owned());
        if call::quiet() || call::asked() || !std::io::stderr().is_terminal() {
            return Self { bar, counted, shown: None };
        }
        set(&bar, UNCOUNTED);
        let (end, ended) = channel();
        let line = bar.clone();
        let thread = std::thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                line.set_draw_target(ProgressDrawTarget::stderr());
                line.enable_steady_tick(TICK);
            }
        });
        Self { bar, counted, shown: Some((end, thread)) }
    }

    /// A watch that moves the line.
    fn watch(&self) -> Watch {
        if self.shown.is_none() {
            return Watch::default();
        }
        let (bar, counted) = (self.bar.clone(), Arc::clone(&self.counted));
        Watch::default().on_progress(move |done, all| {
            // Of one part there is no half, and the first few tell nothing of the others.
            if all < 2 || !counted.load(Ordering::Relaxed) && done * TELLING < all {
                return;
            }
            if !counted.swap(true, Ordering::Relaxed) {
                set(&bar, COUNTED);
            }
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.shown.take() {
            drop(end);
            let _ = thread.join();
            self.bar.finish_and_clear();
        }
    }
}

fn set(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> ").with_key("left", left));
    }
}

/// What is left where each part takes as long as those before did on average: the last of them may have been known
/// already, and tell nothing.
fn left(state: &ProgressState, line: &mut dyn Write) {
    let (done, all) = (state.pos(), state.len().unwrap_or(0));
    let left = state.elapsed().mul_f64(all.saturating_sub(done) as f64 / done.max(1) as f64);
    let _ = write!(line, "{:#}", HumanDuration(left));
}

/// Answers a question, and says how far it is.
pub(crate) fn watched<T>(doing: &str, answer: impl FnOnce(&Watch) -> T) -> T {
    let progress = Progress::begin(doing);
    let (bar, counted) = (progress.bar.clone(), Arc::clone(&progress.counted));
    let watch = progress.watch().on_stage(move |line| {
        bar.set_message(line.to_owned());
        bar.reset_elapsed();
        bar.set_position(0);
        counted.store(false, Ordering::Relaxed);
        set(&bar, UNCOUNTED);
    });
    answer(&call::stop().into_iter().fold(watch, Watch::until))
}

/// The same of what takes minutes: lines about what is done stay, with `mark` before them, and Ctrl-C ends it with what
/// there is, as does the request to end that launchers and `timeout` send (SIGTERM).
pub(crate) fn told(doing: &str, mark: &'static str) -> (Progress, Watch) {
    let progress = Progress::begin(doing);
    let asked = call::stop();
    let stop = asked.clone().unwrap_or_default();
    // A second Ctrl-C while the first is being honoured changes nothing; what was measured is kept.
    // A program that asks has a handler of its own.
    if asked.is_none() {
        for signal in [SIGINT, SIGTERM] {
            let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
        }
    }
    let (above, quiet) = (progress.bar.clone(), call::quiet());
    let watch = progress.watch().until(stop).on_stage(move |line| {
        if !quiet {
            above.suspend(|| say!("{mark}{line}"));
        }
    });
    (progress, watch)
}
