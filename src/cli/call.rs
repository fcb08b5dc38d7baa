//! Who calls a command: a shell, which wants text and an exit code, or a program, which wants the answer.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use collcast_reports::model::Report;

/// What a command answered to a program.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Answer {
    /// Its reports, as JSON has them; none of a command that writes a file.
    pub reports: Vec<Report>,
    /// What it would have written to stdout beside reports.
    pub text: String,
    /// What it would have told people on stderr beside the notes of reports.
    pub notes: String,
    /// The exit code: 0, or 1 where the answer is "no".
    pub code: u8,
}

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Code(pub(super) u8);

impl Code {
    /// Done.
    pub(super) const SUCCESS: Self = Self(0);
    /// A comparison failed.
    pub(super) const FAILURE: Self = Self(1);
}

impl From<u8> for Code {
    fn from(code: u8) -> Self {
        Self(code)
    }
}

/// How the command of this thread was called.
#[derive(Default)]
struct Call {
    /// The words of the command, with the program first; those of the process where nobody gave any.
    words: Option<Vec<OsString>>,
    /// What to start for a process of our own, where it is not the program that runs.
    program: Option<PathBuf>,
    /// The answer so far, and what stops it, where a program asks.
    asked: Option<(Answer, Arc<AtomicBool>)>,
    /// Whether nothing but errors goes to stderr.
    quiet: bool,
    /// Defaults from outside, in words, and whether the answer has told them.
    defaults: Vec<String>,
    told: bool,
}

/// A path that nothing can have, for a program that asks and names nothing to start. It may be an interpreter, which takes
/// our words for files.
pub(super) const NO_PROGRAM: &str = "/dev/null/collcast";

thread_local! {
    static CALL: RefCell<Call> = RefCell::default();
}

/// Begins a call by a shell.
pub(super) fn by_shell(words: Vec<OsString>, program: Option<PathBuf>) {
    CALL.set(Call { words: Some(words), program, ..Call::default() });
}

/// Makes a call for a program, and gives what was kept of it.
pub(super) fn by_program<T>(
    words: Vec<OsString>,
    program: Option<PathBuf>,
    stop: Arc<AtomicBool>,
    call: impl FnOnce() -> T,
) -> (T, Answer) {
    let asked = Some((Answer::default(), stop));
    CALL.set(Call { words: Some(words), program, asked, ..Call::default() });
    let result = call();
    (result, CALL.take().asked.map(|(answer, _)| answer).unwrap_or_default())
}

/// Tells people nothing but errors.
pub(super) fn be_quiet() {
    CALL.with_borrow_mut(|call| call.quiet = true);
}

/// Whether people are told nothing but errors.
pub(super) fn quiet() -> bool {
    CALL.with_borrow(|call| call.quiet)
}

/// Says which defaults from outside the call takes.
pub(super) fn with_defaults(defaults: Vec<String>) {
    CALL.with_borrow_mut(|call| call.defaults = defaults);
}

/// The defaults from outside.
pub(super) fn defaults() -> Vec<String> {
    CALL.with_borrow(|call| call.defaults.clone())
}

/// An answer tells them.
pub(super) fn told() {
    CALL.with_borrow_mut(|call| call.told = true);
}

/// The defaults from outside that no answer has told.
pub(super) fn untold() -> Vec<String> {
    CALL.with_borrow(|call| if call.told { Vec::new() } else { call.defaults.clone() })
}

/// The words of the command, with the program first.
pub(super) fn words() -> Vec<OsString> {
    CALL.with_borrow(|call| call.words.clone()).unwrap_or_else(|| std::env::args_os().collect())
}

/// What to start for a process of our own.
pub(super) fn program() -> io::Result<PathBuf> {
    match other_program() {
        Some(program) if program.as_os_str() == NO_PROGRAM => Err(io::Error::other(NO_PROGRAM)),
        Some(program) => Ok(program),
        None => std::env::current_exe(),
    }
}

/// The same, where it is not the program that runs: of a program that asks, only what it names.
pub(super) fn other_program() -> Option<PathBuf> {
    let none = |call: &Call| call.asked.is_some().then(|| NO_PROGRAM.into());
    CALL.with_borrow(|call| call.program.clone().or_else(|| none(call)))
}

/// Whether a program asks.
pub(super) fn asked() -> bool {
    CALL.with_borrow(|call| call.asked.is_some())
}

/// What stops the command, where a program asks.
pub(super) fn stop() -> Option<Arc<AtomicBool>> {
    CALL.with_borrow(|call| call.asked.as_ref().map(|(_, stop)| Arc::clone(stop)))
}

/// Keeps a part of the answer where a program asks; says whether it did.
pub(super) fn keep(part: impl FnOnce(&mut Answer)) -> bool {
    CALL.with_borrow_mut(|call| call.asked.as_mut().map(|(answer, _)| part(answer))).is_some()
}
