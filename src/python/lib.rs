//! Collcast for Python: commands with options by name, and answers that Python can hold. The package in `package/` makes
//! functions and tables of it.

mod kept;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use collcast::cli::{self, Answer, Takes, Value};
use collcast::reports::model::Report;
use collcast::reports::terminal::Screen;
use collcast::reports::{csv, html, json, junit, markdown, terminal};
use collcast::views::figures;
use kept::{KeptReport, keep, restore};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyType;

create_exception!(collcast, Error, PyException, "Why there is no answer: what is wrong, where, and the way out.");

/// How often Python is asked whether somebody pressed Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(50);
/// Stack of the thread that answers: as large as that of a program.
const STACK: usize = 8 << 20;

/// An error as Python raises it, with the exit code of the command.
fn raised(py: Python<'_>, error: &collcast::Error) -> PyErr {
    let text = error.render();
    let raised = Error::new_err(text.strip_prefix("error: ").unwrap_or(&text).to_owned());
    match raised.value(py).setattr("code", error.code()) {
        Ok(()) => raised,
        Err(other) => other,
    }
}

/// A report: an answer that is not yet text.
#[pyclass(frozen, module = "collcast._collcast", name = "Report")]
struct PyReport(Report);

#[pymethods]
impl PyReport {
    /// One that was pickled.
    #[new]
    fn new(py: Python<'_>, kept: KeptReport) -> PyResult<Self> {
        restore(kept).map(Self).map_err(|error| raised(py, &error))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (KeptReport,)) {
        (py.get_type::<Self>(), (keep(&self.0),))
    }

    /// As `--format json` prints it.
    fn json(&self) -> String {
        json::render(&self.0)
    }

    /// As a terminal shows it, with at most so many rows a table.
    fn text(&self, width: u16, rows: usize) -> String {
        let mut report = self.0.clone();
        let mut left_out = 0;
        for table in &mut report.tables {
            left_out += table.rows.len().saturating_sub(rows);
            table.rows.truncate(rows);
        }
        let mut text = terminal::render(&report, Screen::plain(Some(width)));
        if left_out > 0 {
            text.push_str(&format!("... and {left_out} rows more\n"));
        }
        text + &terminal::notes(&report, Screen::default())
    }

    /// As a page for a browser.
    fn html(&self) -> String {
        let mut report = self.0.clone();
        figures::add(&mut report);
        html::render(&[report])
    }

    /// Writes it as the ending of the name says, whole or not at all.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 gives values so")]
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let text = match ending.as_str() {
            "html" | "htm" => self.html(),
            "json" | "" => self.json(),
            "csv" => csv::render(&self.0),
            "md" => markdown::render(&self.0),
            "xml" => junit::render(&self.0),
            "txt" => terminal::render(&self.0, Screen::default()),
            _ => {
                let what = format!("there is no answer as .{ending}");
                let hint = "the endings are .html, .json, .csv, .md (markdown), .xml (junit), .txt (table)";
                return Err(raised(py, &collcast::Error::usage(what, hint)));
            }
        };
        collcast::files::write(&path, text.as_bytes()).map_err(|error| raised(py, &error))
    }

    /// Its tables: name, title, keys of the columns.
    fn tables(&self) -> Vec<(String, String, Vec<String>)> {
        let keys = |table: &collcast::reports::model::Table| table.columns.iter().map(|c| c.key.to_string()).collect();
        self.0.tables.iter().map(|table| (table.name.clone(), table.title.clone(), keys(table))).collect()
    }
}

/// A value of an option, as Python gives it.
#[derive(FromPyObject)]
enum Given {
    Flag(bool),
    Text(String),
    Many(Vec<String>),
}

/// Answers a command: its reports, other text that it prints, notes, and its exit code.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 gives values so")]
fn ask(
    py: Python<'_>,
    command: &str,
    values: Vec<String>,
    options: Vec<(String, Given)>,
    program: Option<PathBuf>,
) -> PyResult<(Vec<PyReport>, String, String, u8)> {
    let options: Vec<(String, Value)> = (options.into_iter())
        .map(|(name, given)| {
            let value = match given {
                Given::Flag(flag) => Value::Flag(flag),
                Given::Text(text) => Value::Text(text),
                Given::Many(many) => Value::Many(many),
            };
            (name, value)
        })
        .collect();
    let words = cli::words(command, &values, &options).map_err(|error| raised(py, &error))?;
    let Answer { reports, text, notes, code } = answered(py, words, program)?;
    Ok((reports.into_iter().map(PyReport).collect(), text, notes, code))
}

/// Answers on a thread of its own, so that this one can see Ctrl-C.
fn answered(py: Python<'_>, words: Vec<OsString>, program: Option<PathBuf>) -> PyResult<Answer> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let (send, mut receive) = sync_channel(1);
    let answer = move || {
        // Nobody listens any more after Ctrl-C.
        let _ = send.send(cli::ask(words, program, flag));
    };
    thread::Builder::new().name("collcast".to_owned()).stack_size(STACK).spawn(answer)?;
    loop {
        let receive = &mut receive;
        match py.detach(move || receive.recv_timeout(PATIENCE)) {
            Ok(answer) => return answer.map_err(|error| raised(py, &error)),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupt) = py.check_signals() {
                    stop.store(true, Ordering::Relaxed);
                    return Err(interrupt);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("internal error of collcast: please report it with this call"));
            }
        }
    }
}

/// Runs the program with words as a shell gives them, its name first; gives the exit code.
#[pyfunction]
fn main(py: Python<'_>, words: Vec<OsString>, program: Option<PathBuf>) -> u8 {
    py.detach(|| cli::exit_code(words, program))
}

/// The commands, with what each is for.
#[pyfunction]
fn commands(py: Python<'_>) -> PyResult<Vec<(String, String)>> {
    let with = |name: String| cli::about(&name).map(|about| (name, about)).map_err(|error| raised(py, &error));
    cli::commands().into_iter().map(with).collect()
}

/// What a command can be asked with: name, whether it is positional, `flag`, `value` or `values`, and what it is for.
#[pyfunction]
fn choices(py: Python<'_>, command: &str) -> PyResult<Vec<(String, bool, &'static str, String)>> {
    let takes = |takes| match takes {
        Takes::Flag => "flag",
        Takes::Value => "value",
        Takes::Values => "values",
    };
    let all = cli::choices(command).map_err(|error| raised(py, &error))?;
    Ok(all.into_iter().map(|c| (c.name, c.positional, takes(c.takes), c.help)).collect())
}

/// The extension module.
#[pymodule]
fn _collcast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let error = module.py().get_type::<Error>();
    // Of one that Python makes itself: bad input.
    error.setattr("code", 2)?;
    module.add("Error", error)?;
    module.add_class::<PyReport>()?;
    module.add_function(wrap_pyfunction!(ask, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(commands, module)?)?;
    module.add_function(wrap_pyfunction!(choices, module)?)?;
    Ok(())
}
