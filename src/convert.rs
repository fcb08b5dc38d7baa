//! `collcast convert`: an algorithm as MSCCL XML.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use collcast_sim::network::order;
use collcast_sim::predict::{PredictError, Predictor, Settings};
use collcast_sim::schedule::msccl::{export, one_loop};
use collcast_sim::schedule::verify::verify;

use crate::error::CliError;
use crate::output::write;
use crate::selectors::{CallArgs, MachineArgs, points};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Writes the algorithm, protocol and channels that a call of the size would use, once through its loop
of chunks. Read it back with `collcast simulate --schedule FILE`."
)]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    /// Write there (to a temporary file first, then renamed) in place of stdout
    #[arg(short, long, value_name = "PATH", help_heading = "Output")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let mut call_args = args.call.clone();
    call_args.no_split("convert")?;
    if call_args.size.is_none() && call_args.minbytes.is_none() {
        eprintln!("note: no size given; this is what 64 MiB would use");
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
    let (schedule, name) = match &point.schedule {
        Some(imported) => (predictor.imported_schedule(imported, &point.call, &settings)?, imported.name.clone()),
        None => {
            let (algorithm, protocol) = (prediction.algorithm, prediction.protocol);
            let schedule = one_loop(&point.call, &prediction.plan, &order(topology, point.call.ranks))
                .map_err(PredictError::from)?;
            (schedule, format!("collcast {} {algorithm} {protocol}", point.call.collective))
        }
    };
    verify(&schedule).map_err(|error| PredictError::Unproved { what: name.clone(), error })?;
    write(args.output.as_deref(), export(&schedule, &name)?.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
