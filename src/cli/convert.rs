//! `collcast convert`: an algorithm as MSCCL XML.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use collcast_sim::network::order;
use collcast_sim::predict::{PredictError, Prediction, Predictor, Settings};
use collcast_sim::schedule::msccl::{Imported, export, one_loop};
use collcast_sim::schedule::plan::Plan;
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Order, Schedule};

use crate::output::write;
use crate::selectors::{CallArgs, MachineArgs, Named, Point, default_sizes, points};
use collcast::Error as CliError;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Writes the algorithm, protocol and channels that a call of the size would use, once through its loop \
of chunks. Read it back with `collcast simulate --schedule FILE`."
)]
#[command(mut_arg("size", default_sizes("64M")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Write there in place of stdout: whole or not at all
    #[arg(short, long, value_name = "PATH", help_heading = "Output")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<ExitCode, CliError> {
    let mut call_args = args.call.clone();
    call_args.no_split("convert")?;
    given.without(&["--graph", "--explain-choice"], "the file holds no graph and no reason", "leave it out")?;
    call_args.check(given)?;
    if call_args.size.is_none() && call_args.minbytes.is_none() {
        say!("note: no size given; this is what 64 MiB would use");
        call_args.size = Some("64M".to_owned());
    }
    let topology = args.machine.load(args.machine.one_node_count()?)?;
    let (profile, _) = args.machine.load_profile(&topology)?;
    let told = call_args.told(&topology)?;
    let machines = BTreeMap::from([(u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX), topology)]);
    let points = points(&call_args, &machines)?;
    let ([point], Some(topology)) = (points.as_slice(), machines.values().next()) else {
        return Err(CliError::usage(
            format!("convert takes exactly one point, this is {}", points.len()),
            "give one collective, size, algorithm, protocol and channel count",
        ));
    };
    let predictor = Predictor::new(topology, &profile).with_tuner(told.tuner);
    let settings = Settings { channels: point.channels, ..told.settings };
    let prediction = point.predict(&predictor, &settings)?;
    let xml = match &point.schedule {
        Some(imported) => written(&predictor.imported_schedule(imported, &point.call, &settings)?, &imported.name)?,
        None => generated(point, &prediction, &order(topology, point.call.ranks))?,
    };
    write(args.output.as_deref(), xml.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The algorithm of a prediction, on as many of its channels as cut the call's buffer into equal chunks.
fn generated(point: &Point, prediction: &Prediction, order: &Order) -> Result<String, CliError> {
    let Prediction { algorithm, protocol, plan, .. } = prediction;
    let name = format!("collcast {} {algorithm} {protocol}", point.call.collective);
    let (wanted, size) = (plan.channels, point.call.size());
    let of_channels = |channels| {
        let schedule = one_loop(&point.call, &Plan { channels, ..*plan }, order).map_err(PredictError::from)?;
        written(&schedule, &name)
    };
    let least = if point.channels.is_some() { wanted } else { 1 };
    for channels in (least..=wanted).rev() {
        let xml = of_channels(channels)?;
        if Imported::parse(&xml, "")?.check(&point.call).is_ok() {
            if channels < wanted {
                say!("note: {channels} channels, not {wanted}, whose chunks cannot all be equal parts of {size}");
            }
            return Ok(xml);
        }
    }
    say!(
        "warning: the file is not for {size}: its elements are no multiple of the chunks of {wanted} channels; leave out \
         --channels, or use it for sizes that are"
    );
    of_channels(wanted)
}

/// A proved schedule as a file.
fn written(schedule: &Schedule, name: &str) -> Result<String, CliError> {
    verify(schedule).map_err(|error| PredictError::Unproved { what: name.to_owned(), error })?;
    Ok(export(schedule, name)?)
}
