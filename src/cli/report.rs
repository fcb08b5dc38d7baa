//! `collcast report`: results of other commands as one page for a browser.

use std::path::{Path, PathBuf};

use collcast::Error;
use collcast::files::read_text;
use collcast_reports::model::Report;
use collcast_reports::read::read;

use super::call::Code;
use super::output::{page_file, write_page};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each result has its answer, pictures, tables and inputs on the page, in the order given. `--report FILE.html` of \
a command writes the page of that command alone, with headings for people.

  collcast sweep dgx-h100 --nodes 4 --format json -o sweep.json
  collcast tune dgx-h100 --nodes 4 --format json > tune.json
  collcast report sweep.json tune.json -o page.html"
)]
pub(crate) struct Args {
    /// Results that other commands wrote with --format json
    #[arg(required = true, value_name = "RESULT.json")]
    results: Vec<PathBuf>,
    /// Write the page there: whole or not at all
    #[arg(short, long, value_name = "FILE.html", value_parser = page_file, help_heading = "Output")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let reports = args.results.iter().map(|path| load(path)).collect::<Result<_, Error>>()?;
    write_page(&args.output, reports)?;
    Ok(Code::SUCCESS)
}

fn load(path: &Path) -> Result<Report, Error> {
    let report = read(&read_text("read the result", path)?).map_err(|error| {
        Error::usage(
            format!("`{}` is no result of a command: {error}", path.display()),
            "write one: collcast sweep --format json -o sweep.json",
        )
    })?;
    Ok(Report { source: Some(path.display().to_string()), ..report })
}
