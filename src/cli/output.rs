//! Where a report goes: stdout or a file, in the format asked for; notes to stderr.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, ValueEnum};
use collcast_reports::model::{Input, Report};
use collcast_reports::terminal::Screen;
use collcast_reports::{csv, github, html, json, junit, markdown, terminal};

use terminal_size::{Width, terminal_size_of};

use super::call;
use super::progress::watched;
use collcast::Error;
use collcast::files::{failed, quoted};
use collcast::views::figures;
use collcast_sim::text::no_commands;

/// [`tell`] with one line, formatted: what names and files put into it cannot drive a terminal or a CI log.
macro_rules! say {
    ($($part:tt)*) => {
        super::output::tell(&format!("{}\n", collcast_sim::text::one_line(&format!($($part)*))))
    };
}

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
    /// SARIF 2.1.0, for code scanning
    Sarif,
}

impl Format {
    /// Those that every command has.
    const OF_ALL: [Self; 6] = [Self::Table, Self::Csv, Self::Json, Self::Junit, Self::Markdown, Self::Github];
}

/// Reads the name of a format that every command has.
pub(crate) fn formats() -> impl TypedValueParser<Value = Format> {
    formats_and(&[])
}

fn formats_and(own: &[Format]) -> impl TypedValueParser<Value = Format> + use<> {
    let names: Vec<_> = Format::OF_ALL.iter().chain(own).filter_map(ValueEnum::to_possible_value).collect();
    PossibleValuesParser::new(names).map(|name| Format::from_str(&name, false).unwrap_or(Format::Table))
}

/// Reads the name of a format of a command that finds faults in files.
pub(crate) fn formats_of_findings() -> impl TypedValueParser<Value = Format> {
    formats_and(&[Format::Sarif])
}

/// `--format` of a command that has nccl-tests' table too.
pub(crate) fn with_nccl_tests(arg: clap::Arg) -> clap::Arg {
    arg.value_parser(formats_and(&[Format::NcclTests]))
}

/// What the endings of names of files say.
const ENDINGS: [(&str, Format); 8] = [
    ("csv", Format::Csv),
    ("json", Format::Json),
    ("md", Format::Markdown),
    ("xml", Format::Junit),
    ("txt", Format::Table),
    ("log", Format::Table),
    ("out", Format::Table),
    ("sarif", Format::Sarif),
];

/// Options that say what is written, whatever the file is called.
const OWN_FORM: [&str; 4] = ["format", "scenario_schema", "shard", "xml"];

/// Endings of what no report is, whatever an option says.
const FOREIGN: [&str; 10] = ["dot", "parquet", "pdf", "png", "svg", "toml", "tsv", "xlsx", "yaml", "yml"];

/// Refuses a report in a file whose ending says no format that the command has, where no option does.
fn has_format(command: &Command, matches: &ArgMatches) -> Result<(), Error> {
    let is_report = command.get_groups().any(|group| group.get_id() == "OutputArgs");
    let format = command.get_arguments().find(|arg| is_report && arg.get_id() == "format");
    let given = |arg: &&Arg| {
        let source = || matches.value_source(arg.get_id().as_str());
        OWN_FORM.contains(&arg.get_id().as_str()) && source().is_some_and(|source| source != ValueSource::DefaultValue)
    };
    let Some(format) = format else { return Ok(()) };
    let Some(ending) = matches.get_one::<PathBuf>("output").and_then(|path| extension(path)) else { return Ok(()) };
    let values = format.get_possible_values();
    let is_of =
        |of: Format| of.to_possible_value().is_some_and(|of| values.iter().any(|v| v.get_name() == of.get_name()));
    let endings: Vec<&str> = ENDINGS.into_iter().filter(|(_, of)| is_of(*of)).map(|(ending, _)| ending).collect();
    let is_told = command.get_arguments().any(|arg| given(&arg)) && !FOREIGN.contains(&ending.as_str());
    if is_told || endings.contains(&ending.as_str()) {
        return Ok(());
    }
    Err(Error::usage(
        format!("there is no report as .{ending}; the endings are .{}", endings.join(", .")),
        if FOREIGN.contains(&ending.as_str()) {
            "take one of them"
        } else {
            "take one of them, or name the format with --format"
        },
    ))
}

/// A file for a report, whose name may say its format.
fn report_file(name: &str) -> Result<PathBuf, String> {
    match extension(name.as_ref()).as_deref() {
        Some("html" | "htm") => Err("--report FILE.html writes a page, beside what is printed".to_owned()),
        _ => in_folder(name),
    }
}

/// A file to be written in a folder that is there: else a run of hours would end without its answer.
pub(crate) fn in_folder(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(format!("there is no folder `{}`; make it first", folder.display())),
        None => Ok(path),
    }
}

/// What the name of a file ends in, after the last point.
pub(crate) fn extension(path: &Path) -> Option<String> {
    path.extension().map(|ending| ending.to_string_lossy().to_lowercase())
}

/// `--format` of a command whose `--output` is not what it prints.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FormatArgs {
    /// How to print [default: table]
    #[arg(long, value_parser = formats(), help_heading = "Output")]
    format: Option<Format>,
}

impl FormatArgs {
    fn to_stdout(&self) -> OutputArgs {
        OutputArgs { format: self.format, output: None }
    }

    /// [`OutputArgs::for_people`].
    pub(crate) fn for_people(&self) -> bool {
        self.to_stdout().for_people()
    }

    /// Prints a report to stdout.
    pub(crate) fn print(&self, report: &Report) -> Result<(), Error> {
        self.to_stdout().print(report, None)
    }
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OutputArgs {
    /// How to print [default: as the name of --output ends (.csv, .json, .md, .xml for junit), else table]
    #[arg(long, value_parser = formats(), help_heading = "Output")]
    pub(crate) format: Option<Format>,
    /// Write there in place of stdout: whole or not at all
    #[arg(short, long, value_name = "PATH", value_parser = report_file, help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
}

impl OutputArgs {
    /// The format asked for, by name or by that of the file; all that there is where a program asks.
    pub(crate) fn format(&self) -> Format {
        let of_file = || {
            let ending = extension(self.output.as_deref()?)?;
            ENDINGS.into_iter().find_map(|(known, format)| (known == ending).then_some(format))
        };
        let unsaid = if call::asked() { Format::Json } else { Format::Table };
        self.format.or_else(of_file).unwrap_or(unsaid)
    }

    /// Whether tables are for people to read, and not for programs.
    pub(crate) fn for_people(&self) -> bool {
        matches!(self.format(), Format::Table | Format::Markdown)
    }

    /// Prints a report; `own` is its text in a format that not every command has.
    pub(crate) fn print(&self, report: &Report, own: Option<String>) -> Result<(), Error> {
        // Formats without a place for what was assumed leave the telling to a note.
        let format = self.format();
        if !matches!(format, Format::Github | Format::Sarif | Format::NcclTests) {
            call::told();
        }
        let report = &with_defaults(report.clone());
        if call::keep(|answer| answer.reports.push(report.clone())) && self.output.is_none() {
            return Ok(());
        }
        let text = match format {
            Format::Table => terminal::render(report, self.screen()),
            Format::Csv => csv::render(report),
            Format::Json => json::render(report),
            Format::Junit => junit::render(report),
            Format::Markdown => markdown::render(report),
            Format::Github => github::render(report),
            Format::NcclTests | Format::Sarif => own.ok_or_else(|| {
                Error::usage("this result has no such form", "use --format table, csv, json, junit or markdown")
            })?,
        };
        if let Some(path) = &self.output {
            keeps(path, paths(&report.inputs))?;
        }
        write(self.output.as_deref(), text.as_bytes())?;
        tell(&terminal::notes(report, screen_of(&std::io::stderr())));
        Ok(())
    }

    fn screen(&self) -> Screen {
        if self.output.is_some() { Screen::default() } else { screen_of(&std::io::stdout()) }
    }
}

/// The files among inputs.
pub(crate) fn paths(inputs: &[Input]) -> impl Iterator<Item = &Path> {
    inputs.iter().filter_map(|input| input.path.as_deref()).map(Path::new)
}

/// Refuses to write over a file that the answer rests on, or over the `.toml` that says what it is of.
pub(crate) fn keeps<'p>(output: &Path, files: impl IntoIterator<Item = &'p Path>) -> Result<(), Error> {
    let Ok(there) = output.canonicalize() else { return Ok(()) };
    for read in files {
        let is_there = |path: &Path| path.canonicalize().is_ok_and(|path| path == there);
        if is_there(read) || is_there(&read.with_extension("toml")) {
            let with = if read == output { String::new() } else { format!(" as part of `{}`", read.display()) };
            return Err(Error::usage(
                format!("`{}` would be written over, and it is read{with}", output.display()),
                "give what is written another name",
            ));
        }
    }
    Ok(())
}

/// Options that name a file to write.
const WRITTEN: [&str; 7] = ["goal", "output", "profile_out", "prometheus", "report", "timeline", "write_scenario"];

/// Refuses words by which nothing should be written, before anything runs.
pub(crate) fn may_write(command: &Command, matches: &ArgMatches) -> Result<(), Error> {
    keeps_named(command, matches)?;
    has_format(command, matches)
}

/// Refuses words that name one file to read and to write.
fn keeps_named(command: &Command, matches: &ArgMatches) -> Result<(), Error> {
    let values = |arg: &Arg| matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    let (written, others): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().partition(|arg| WRITTEN.contains(&arg.get_id().as_str()));
    let others: Vec<String> = others.into_iter().flat_map(values).map(|v| v.to_string_lossy().into_owned()).collect();
    let names = others.iter().flat_map(|value| value.split(',')).map(|name| name.trim_start_matches('@'));
    let read: Vec<&Path> = names.map(Path::new).filter(|path| path.is_file()).collect();
    written.into_iter().flat_map(values).try_for_each(|output| keeps(output.as_ref(), read.iter().copied()))
}

/// Columns of a terminal that does not say how many it has.
const COLUMNS: u16 = 120;

/// What a stream shows: COLUMNS says how wide a terminal is, and it says so itself where that is not set; NO_COLOR, CLICOLOR
/// and CLICOLOR_FORCE say whether there are colours.
pub(crate) fn screen_of<S: RawStream + AsFd>(stream: &S) -> Screen {
    if call::asked() {
        return Screen::default();
    }
    let told = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    let asked = || terminal_size_of(stream).map(|(Width(columns), _)| columns);
    let width = stream.is_terminal().then(|| told().or_else(asked).unwrap_or(COLUMNS));
    Screen { width, colour: AutoStream::choice(stream) != ColorChoice::Never }
}

/// A report that says which defaults are from outside: without them the same command answers otherwise.
fn with_defaults(mut report: Report) -> Report {
    report.assumptions.extend(call::defaults());
    report
}

/// A file for a page, by whose name a browser knows what it is.
pub(crate) fn page_file(name: &str) -> Result<PathBuf, String> {
    match extension(name.as_ref()).as_deref() {
        Some("html" | "htm") => in_folder(name),
        _ => Err("a page is HTML: give a name that ends in .html".to_owned()),
    }
}

/// `--report`, of every command whose answer has pictures.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct PageArgs {
    /// Also write a page for a browser: the answer, pictures, tables and inputs in one file that loads nothing
    #[arg(long, value_name = "FILE.html", value_parser = page_file, help_heading = "Output")]
    report: Option<PathBuf>,
}

impl PageArgs {
    /// Writes the page of a report, where one is asked for.
    pub(crate) fn write(&self, report: impl FnOnce() -> Report) -> Result<(), Error> {
        self.write_drawn(|| Ok(report()))
    }

    /// [`Self::write`] of a report with pictures that may fail.
    pub(crate) fn write_drawn(&self, report: impl FnOnce() -> Result<Report, Error>) -> Result<(), Error> {
        let Some(path) = &self.report else { return Ok(()) };
        let words: Vec<String> =
            call::words().into_iter().skip(1).map(|word| quoted(&word.to_string_lossy())).collect();
        let command = Some(format!("collcast {}", words.join(" ")));
        let report = watched("drawing the page", |_| report())?;
        write_page(path, vec![Report { command, ..with_defaults(report) }])
    }
}

/// Writes reports with their pictures as one page.
pub(crate) fn write_page(path: &Path, mut reports: Vec<Report>) -> Result<(), Error> {
    reports.iter_mut().for_each(figures::add);
    write(Some(path), html::render(&reports).as_bytes())?;
    say!("note: page in {}; open it in a browser", path.display());
    Ok(())
}

/// Writes text for people to stderr, unless they want to be told nothing.
pub(crate) fn tell(text: &str) {
    if !call::quiet() {
        complain(text);
    }
}

/// Writes an error to stderr. Where that is closed or full nobody reads it, which is no reason to fail.
pub(crate) fn complain(text: &str) {
    if call::keep(|answer| answer.notes.push_str(text)) {
        return;
    }
    let _ = std::io::stderr().lock().write_all(no_commands(text).as_bytes());
}

/// Writes to a file, whole or not at all, or to stdout.
pub(crate) fn write(path: Option<&Path>, bytes: &[u8]) -> Result<(), Error> {
    let Some(path) = path else {
        if call::keep(|answer| answer.text.push_str(&String::from_utf8_lossy(bytes))) {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        return out.write_all(bytes).and_then(|()| out.flush()).map_err(|source| failed("stdout".as_ref(), source));
    };
    collcast::files::write(path, bytes)
}
