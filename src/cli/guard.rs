//! `collcast bench --expect`: whether this host is fit for a job.

use std::path::{Path, PathBuf};

use collcast::bench::Outcome;
use collcast::guard::{Expected, guard};
use collcast::views::guard::prometheus;
use collcast::views::validate::Shown;
use collcast::{Error, SiteSpec};
use collcast_hwbackend::read::{ReadOptions, read_paths};

use super::call::Code;
use super::output::{Format, OutputArgs, PageArgs, in_folder, keeps, write};
use super::selectors::{GateArgs, Named, NcclArgs};

/// Sizes of a quick run: latency below 1 MiB, and five that bandwidth bounds, since bands are judged and never single
/// sizes.
pub(crate) const SIZES: &str = "8K,64K,1M,8M,64M,128M,256M,512M,1G";
/// The same on CPU threads.
pub(crate) const SIZES_OF_THREADS: &str = "8K,16K,32K,64K,128K,256K,512K,1M";

#[derive(clap::Args, Debug)]
pub(crate) struct GuardArgs {
    /// Take less time: nine sizes up to 1 GiB in a few seconds, unless sizes are given; with --expect one line says how it went
    #[arg(long, help_heading = "Guard")]
    quick: bool,
    /// Exit 1 where this host is slow beside the forecast for this machine
    #[arg(long, value_name = "TOPOLOGY", help_heading = "Guard", conflicts_with = "expect_from")]
    expect: Option<String>,
    /// Exit 1 where this host is slow beside runs that are known to be good: files of `bench` or nccl-tests, or a folder
    #[arg(long, value_name = "GOOD", num_args = 1.., help_heading = "Guard")]
    expect_from: Vec<PathBuf>,
    #[command(flatten)]
    gate: GateArgs,
    /// Write metrics for the textfile collector of Prometheus' node exporter
    #[arg(long, value_name = "FILE", value_parser = in_folder, help_heading = "Guard")]
    prometheus: Option<PathBuf>,
}

impl GuardArgs {
    /// Whether a run is judged.
    pub(crate) fn judges(&self) -> bool {
        self.expect.is_some() || !self.expect_from.is_empty()
    }

    pub(crate) fn quick(&self) -> bool {
        self.quick
    }

    /// The machine that is expected, which is planned for too.
    pub(crate) fn machine(&self) -> Option<&str> {
        self.expect.as_deref()
    }

    /// Refuses what nothing would heed.
    pub(crate) fn check(&self, given: &Named, output: Option<&Path>) -> Result<(), Error> {
        if !self.judges() {
            let why = "nothing says what is expected";
            given.without(
                &["--fail-below", "--require-pass", "--prometheus"],
                why,
                "add --expect MACHINE or --expect-from FILE",
            )?;
        }
        if let Some(output) = output {
            for good in &self.expect_from {
                let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let inside = good.is_dir()
                    && folder.canonicalize().ok().zip(good.canonicalize().ok()).is_some_and(|(o, g)| o.starts_with(g));
                if inside {
                    return Err(Error::usage(
                        format!("`{}` would be one of the good runs of `{}`", output.display(), good.display()),
                        "give --output another folder; copy it there once it is known to be good",
                    ));
                }
            }
            keeps(output, self.expect_from.iter().map(PathBuf::as_path))?;
        }
        if let Some(missing) = self.expect_from.iter().find(|path| !path.exists()) {
            let message = format!("--expect-from {}: there is no such file or folder", missing.display());
            return Err(Error::usage(
                message,
                "give results of `collcast bench` or nccl-tests that are known to be good",
            ));
        }
        self.gate.gate().map(|_| ())
    }

    /// Reads what a run is to be held beside, which is no matter of this host: before anything is measured.
    pub(crate) fn readable(&self, site: &SiteSpec, nccl: &NcclArgs) -> Result<(), Error> {
        if let Some(machine) = &self.expect {
            nccl.on(SiteSpec { topology: Some(machine.clone()), ..site.clone() })?.load()?;
        }
        if !self.expect_from.is_empty()
            && read_paths(&self.expect_from, &ReadOptions::default())?.measurements.is_empty()
        {
            let named: Vec<String> = self.expect_from.iter().map(|path| format!("`{}`", path.display())).collect();
            return Err(Error::usage(
                format!("--expect-from: no measurement is in {}", named.join(", ")),
                "give results of `collcast bench` or nccl-tests that are known to be good",
            ));
        }
        Ok(())
    }

    /// Judges a run, and prints what was found in place of its rows.
    pub(crate) fn judge(
        &self,
        run: &Outcome,
        site: SiteSpec,
        output: &OutputArgs,
        page: &PageArgs,
    ) -> Result<Code, Error> {
        let expected = match &self.expect {
            Some(machine) => Expected::Machine(Box::new(SiteSpec { topology: Some(machine.clone()), ..site })),
            None => Expected::Runs(self.expect_from.clone()),
        };
        let outcome = guard(run, &expected, self.gate.gate()?)?;
        // What was found is printed, and then what keeps these files from being written.
        let metrics = self.metrics(Some(&outcome));
        let page = page.write(|| outcome.report(Shown { for_people: true, rows: true, ..Shown::default() }));
        // A file that is named holds the rows.
        let to_stdout = OutputArgs { output: None, format: output.format.filter(|_| output.output.is_none()) };
        let format = to_stdout.format();
        let people = to_stdout.for_people();
        let mut report = outcome.report(Shown { for_people: people, ..Shown::default() });
        if self.quick && format == Format::Table {
            (report.tables, report.assumptions) = (Vec::new(), Vec::new());
        }
        to_stdout.print(&report, None)?;
        match metrics.and(page) {
            // The answer is no, whether or not it could be written.
            Err(error) if outcome.failed => say!("warning: {error}"),
            written => written?,
        }
        Ok(Code::from(u8::from(outcome.failed)))
    }

    /// That GPUs are missing, as it is told: the verdict where a host is judged.
    pub(crate) fn lacking(&self, error: Error) -> Error {
        if !self.judges() {
            return error;
        }
        self.metrics_of_failure();
        let message = format!("this host is not fit: {error}");
        let hint = Some(
            "look at `nvidia-smi -L` and `dmesg | grep -i xid`; a GPU that is gone comes back with a reset".to_owned(),
        );
        Error::Exec { code: 1, message, hint }
    }

    /// Writes the metrics of a run that failed, which is told whether or not they can be written.
    pub(crate) fn metrics_of_failure(&self) {
        if let Err(error) = self.metrics(None) {
            say!("warning: {error}");
        }
    }

    /// Writes the metrics; of a run that failed without an outcome.
    fn metrics(&self, outcome: Option<&collcast::validate::Outcome>) -> Result<(), Error> {
        let Some(path) = &self.prometheus else { return Ok(()) };
        write(Some(path), prometheus(outcome, jiff::Timestamp::now().as_second()).as_bytes())
    }
}
