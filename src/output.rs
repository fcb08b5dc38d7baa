//! Where a report goes: stdout or a file, in the format asked for; notes to stderr.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use collcast_reports::model::Report;
use collcast_reports::{csv, github, json, junit, markdown, terminal};

use terminal_size::{Width, terminal_size_of};

use crate::error::CliError;
use crate::files::write;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns for people
    Table,
    /// Comma-separated values with a header
    Csv,
    /// One JSON object of the documented schema
    Json,
    /// The table nccl-tests prints
    NcclTests,
    /// XML for the test views of GitLab and Jenkins
    Junit,
    /// A comment for a pull request
    Markdown,
    /// Workflow commands: annotations on GitHub
    Github,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OutputArgs {
    /// How to print
    #[arg(long, value_enum, default_value = "table", help_heading = "Output")]
    pub(crate) format: Format,
    /// Write there in place of stdout: whole or not at all
    #[arg(short, long, value_name = "PATH", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
}

impl OutputArgs {
    /// Prints a report; `nccl_tests` is its text in that format, where it has one.
    pub(crate) fn print(&self, report: &Report, nccl_tests: Option<String>) -> Result<(), CliError> {
        let text = match self.format {
            Format::Table => terminal::render(report, self.width()),
            Format::Csv => csv::render(report),
            Format::Json => json::render(report),
            Format::Junit => junit::render(report),
            Format::Markdown => markdown::render(report),
            Format::Github => github::render(report),
            Format::NcclTests => nccl_tests.ok_or_else(|| {
                CliError::usage(
                    "this result has no nccl-tests form",
                    "use --format table, csv, json, junit or markdown",
                )
            })?,
        };
        write(self.output.as_deref(), text.as_bytes())?;
        tell(&terminal::notes(report));
        Ok(())
    }

    fn width(&self) -> Option<u16> {
        let told = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let asked = || terminal_size_of(std::io::stdout()).map(|(Width(columns), _)| columns);
        let terminal = self.output.is_none() && std::io::stdout().is_terminal();
        terminal.then(|| told().or_else(asked).unwrap_or(120))
    }
}

/// Writes text for people to stderr. Where that is closed or full nobody reads it, which is no reason to fail.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// [`tell`] with one line, formatted: what names and files put into it cannot drive a terminal or a CI log.
macro_rules! say {
    ($($part:tt)*) => {
        $crate::output::tell(&format!("{}\n", collcast_sim::text::one_line(&format!($($part)*))))
    };
}
