//! `collcast calibrate`: from measurements to a profile, with intervals and held-out errors.

use std::collections::BTreeSet;
use std::iter::once;
use std::path::PathBuf;

use collcast::calibrate::{Request, calibrate};
use collcast::files::make_folder;
use collcast::kernels::{self, Probed};
use collcast::{Error, SiteSpec, Watch};
use collcast_sim::calibrate::Split;
use collcast_sim::collective::{Launch, nearest};
use collcast_sim::units::parse_size;

use super::call::Code;
use super::output::{FormatArgs, PageArgs, keeps, paths, write};
use super::progress;
use super::selectors::{Named, ReadArgs, profile_folders};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Reads what `validate` reads: nccl-tests logs (text and JSON), CSV, `collcast bench`. Fits latencies, \
rates and launch intervals to all rows at once, over the simulator, starting from a profile whose values \
stay where the data say nothing. Errors are told on the rows fitted to and on rows held back. A fit that errs by \
more than 25% on rows held back, or no less than the profile it started from, ends with exit code 1 and is not \
written without --force.

Files may come from several machines of one kind: the .toml beside each names its `topology`, and may name \
who measured (`publisher = \"...\"`; else each file is a source of its own). One profile is fitted to all.

  collcast calibrate LOGS -t h200x4 -o mine.toml
  collcast validate OTHER_LOGS -t h200x4 --profile mine.toml
  collcast calibrate transfer.csv -t dgx-h100 -o copies.toml      copies between GPUs, of bench --backend transfer
  collcast calibrate verbs.csv -t dgx-h100 -o network.toml     NICs, of probe --backend verbs
  collcast calibrate SITE_A.csv SITE_B.csv --hold-back source -o both.toml"
)]
pub(crate) struct Args {
    /// Measurements: files or folders
    #[arg(required = true, value_name = "MEASUREMENTS")]
    measurements: Vec<PathBuf>,
    /// Built-in machine or topology file: of all measurements [default: what the .toml beside each names]
    #[arg(short, long, value_name = "TOPOLOGY", help_heading = "Machine")]
    topology: Option<String>,
    /// Profile of links and hosts: where the fit starts, the prior; built-in name or TOML file; several layer
    #[arg(
        long,
        value_name = "PROFILE[,PROFILE]",
        value_delimiter = ',',
        default_value = "prior",
        help_heading = "Machine"
    )]
    profile: Vec<String>,
    /// Read tables of kernels (docs/formats.md): fit this GPU's profile to them, which is a100, h100, h100-500w, h200, b200 or gb200
    #[arg(long, value_name = "GPU", help_heading = "Machine", conflicts_with_all = [
        "topology", "profile", "launch", "min_size", "fit", "keep", "hold_back", "held_out", "folds", "collective",
        "allow_predicted",
    ])]
    compute: Option<String>,
    /// How kernels are started: the launch mode of rows that do not say theirs
    #[arg(long, value_name = "MODE")]
    launch: Option<String>,
    /// Smallest size that counts, in nccl-tests' column
    #[arg(long, value_name = "SIZE", default_value = "1K")]
    min_size: String,
    /// Fit these parameters only; `latency.` takes all that begin so
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', conflicts_with = "keep")]
    fit: Vec<String>,
    /// Leave these parameters at their prior
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    keep: Vec<String>,
    /// Properties of rows by which some are held back: source, run, collective, algorithm, protocol, ranks, channels, size, all or none
    #[arg(long, alias = "split", value_name = "BY[,BY]", value_delimiter = ',', default_value = "run")]
    hold_back: Vec<String>,
    /// Also write, into a folder, a profile fitted without each source: SOURCE.toml
    #[arg(long, value_name = "DIR")]
    held_out: Option<PathBuf>,
    /// Groups in which runs are held back; other splits hold back one value at a time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..))]
    folds: u16,
    /// Name of the profile [default: the stem of --output]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    read: ReadArgs,
    /// Write in spite of doubt: also a profile that errs by more than 25% on rows held back, or no less than the one it started from
    #[arg(long)]
    force: bool,
    /// Write there: the profile
    #[arg(short, long, value_name = "PATH", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    page: PageArgs,
}

/// Options that say which rows of collectives are fitted to, and how.
const OF_COLLECTIVES: [&str; 9] = [
    "--launch",
    "--min-size",
    "--fit",
    "--keep",
    "--hold-back",
    "--held-out",
    "--folds",
    "--collective",
    "--allow-predicted",
];

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    if let Some(gpu) = &args.compute {
        return fit_kernels(args, gpu);
    }
    let probed: Vec<Option<Probed>> =
        args.measurements.iter().map(|path| Probed::of(path)).collect::<Result<_, Error>>()?;
    if let Some(probed) = probed.into_iter().flatten().next() {
        given.without(
            &OF_COLLECTIVES,
            &format!("{} are fitted, and no collectives", probed.name()),
            "leave these options out",
        )?;
        return match probed {
            Probed::Copies => fit_peers(args),
            Probed::Network => fit_network(args),
        };
    }
    let request = request(args)?;
    if !request.splits.contains(&Split::Run) {
        given.without(&["--folds"], "only runs are held back in groups", "leave it out, or add --hold-back run")?;
    }
    let (line, watch) = progress::told("fitting", "");
    let outcome = calibrate(&Request { watch, ..request })?;
    drop(line);
    let usable = outcome.standing.refused.is_none();
    let output = args.output.as_deref().filter(|_| usable || args.force);
    if let Some(folder) = args.held_out.as_ref().filter(|_| usable || args.force) {
        make_folder(folder)?;
        let mut taken = BTreeSet::new();
        for (source, without) in &outcome.without {
            let name = plain(source, &mut taken);
            write(Some(&folder.join(format!("{name}.toml"))), without.toml.as_bytes())?;
        }
    }
    if let Some(path) = output {
        keeps(path, paths(&outcome.inputs))?;
        write(Some(path), outcome.fitted.toml.as_bytes())?;
    }
    args.page.write(|| outcome.report(true, output))?;
    let report = outcome.report(args.format.for_people(), output);
    args.format.print(&report)?;
    Ok(if usable || args.force { Code::SUCCESS } else { Code::FAILURE })
}

/// Fits a profile of kernels in place of one of collectives.
fn fit_kernels(args: &Args, gpu: &str) -> Result<Code, Error> {
    let measurements = args.measurements.clone();
    told(args, &kernels::fit(&kernels::FitRequest { measurements, gpu: gpu.to_owned(), name: name(args) })?)
}

/// Fits what copies between two GPUs take.
fn fit_peers(args: &Args) -> Result<Code, Error> {
    let Some(machine) = &args.topology else {
        let hint = "name it with -t for copies between GPUs, or the GPU with --compute for those with host memory";
        return Err(Error::usage("a table of copies says not on which machine they ran", hint));
    };
    let (site, measurements) = (site(args, machine, 1)?, args.measurements.clone());
    told(args, &kernels::fit_peers(&kernels::PeerRequest { measurements, site, name: name(args) })?)
}

/// Fits what NICs between two hosts take.
fn fit_network(args: &Args) -> Result<Code, Error> {
    let Some(machine) = &args.topology else {
        let hint = "name it with -t: what its ports carry says what the bandwidths are of";
        return Err(Error::usage("a table of NICs says not on which machine they are", hint));
    };
    let (site, measurements) = (site(args, machine, 2)?, args.measurements.clone());
    told(args, &kernels::fit_network(&kernels::NetworkFitRequest { measurements, site, name: name(args) })?)
}

/// So many hosts of a machine.
fn site(args: &Args, machine: &str, nodes: u32) -> Result<SiteSpec, Error> {
    Ok(SiteSpec {
        nodes: Some(nodes),
        profiles: args.profile.clone(),
        profile_folders: profile_folders()?,
        ..SiteSpec::new(machine)
    })
}

/// Writes a profile that was fitted, and says how good it is.
fn told(args: &Args, fitted: &kernels::Fitted) -> Result<Code, Error> {
    let usable = fitted.refused().is_none() || args.force;
    let output = args.output.as_deref().filter(|_| usable);
    if let Some(path) = output {
        keeps(path, paths(&fitted.inputs))?;
        write(Some(path), fitted.toml.as_bytes())?;
    }
    let report = fitted.report(output);
    args.page.write(|| report.clone())?;
    args.format.print(&report)?;
    Ok(if usable { Code::SUCCESS } else { Code::FAILURE })
}

/// The name of the profile: as asked for, else the stem of its file.
fn name(args: &Args) -> String {
    let stem = args.output.as_ref().and_then(|p| p.file_stem()).map(|s| s.to_string_lossy().into_owned());
    args.name.clone().or(stem).unwrap_or_else(|| "fitted".to_owned())
}

fn request(args: &Args) -> Result<Request, Error> {
    Ok(Request {
        measurements: args.measurements.clone(),
        topology: args.topology.clone(),
        profiles: args.profile.clone(),
        profile_folders: profile_folders()?,
        splits: splits(&args.hold_back)?,
        min_size: parse_size(&args.min_size)
            .map_err(|e| Error::usage(format!("--min-size: {e}"), "sizes look like 1K or 64KiB"))?,
        launch: (args.launch.as_deref())
            .map(|l| l.parse::<Launch>().map_err(|e| Error::Usage { message: e.to_string(), hint: None }))
            .transpose()?,
        fit: args.fit.clone(),
        keep: args.keep.clone(),
        folds: usize::from(args.folds),
        without_sources: args.held_out.is_some(),
        name: name(args),
        read: args.read.options()?,
        watch: Watch::default(),
    })
}

fn splits(names: &[String]) -> Result<Vec<Split>, Error> {
    let mut splits = Vec::new();
    for name in names {
        match Split::ALL.into_iter().find(|s| s.name() == name) {
            Some(split) => splits.push(split),
            None if name == "all" => splits.extend(Split::ALL),
            None if name == "none" => {}
            None => {
                let known = Split::ALL.map(Split::name);
                let hint = nearest(name, known).map_or_else(
                    || format!("it is one of {}, all, none", known.join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                return Err(Error::usage(format!("--hold-back: `{name}` is no property of rows"), hint));
            }
        }
    }
    Ok(splits)
}

/// A source's name as that of a file; numbered where another one's is `taken`.
fn plain(source: &str, taken: &mut BTreeSet<String>) -> String {
    let name: String =
        source.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let mut names = once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
    names.find(|name| taken.insert(name.clone())).unwrap_or(name)
}
