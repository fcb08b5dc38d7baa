//! What is predicted today: NCCL's choices over sizes, and times at a few of them.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use clap::Parser as _;
use collcast_reports::model::Input;
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::domain::Beyond;
use collcast_sim::ids::Rank;
use collcast_sim::model::nccl::{Tuner, Version};
use collcast_sim::predict::{Choice, PredictError, Prediction, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::Call;
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use rayon::prelude::*;

use super::Selectors;
use super::baseline::{Constants, Entries, Entry, Recorded};
use super::suite::MachineSpec;
use crate::error::CliError;
use crate::selectors::{Told, content_hash};

/// A machine of the suite, loaded.
#[derive(Debug)]
pub(crate) struct Machine<'s> {
    pub(crate) spec: &'s MachineSpec,
    /// As its file says, variables included.
    pub(crate) full: Topology,
    /// Without variables: these are part of the settings.
    pub(crate) topology: Topology,
    pub(crate) profile: Profile,
    pub(crate) inputs: Vec<Input>,
    pub(crate) versions: Vec<Version>,
    pub(crate) settings: Run,
    pub(crate) warnings: Vec<String>,
}

/// How NCCL is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) launch: String,
    /// The machine's variables, the suite's, its own; of a name given twice, the last.
    pub(crate) env: Vec<(String, String)>,
}

/// What a version of NCCL makes of the settings.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) settings: Settings,
    pub(crate) tuner: Option<Tuner>,
}

/// NCCL's choice for one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Picked {
    Runs {
        algorithm: Algorithm,
        protocol: Protocol,
        channels: u32,
    },
    /// NCCL would return an error.
    Fails,
}

const FAILS: &str = "NCCL fails";

impl fmt::Display for Picked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs { algorithm, protocol, channels } => write!(f, "{algorithm}/{protocol} {channels}ch"),
            Self::Fails => f.write_str(FAILS),
        }
    }
}

impl FromStr for Picked {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == FAILS {
            return Ok(Self::Fails);
        }
        let (pair, channels) = text.split_once(' ').ok_or(())?;
        let (algorithm, protocol) = pair.split_once('/').ok_or(())?;
        Ok(Self::Runs {
            algorithm: algorithm.parse().map_err(|_| ())?,
            protocol: protocol.parse().map_err(|_| ())?,
            channels: channels.strip_suffix("ch").ok_or(())?.parse().map_err(|_| ())?,
        })
    }
}

impl<'s> Machine<'s> {
    pub(crate) fn load(spec: &'s MachineSpec) -> Result<Self, CliError> {
        let mut args = vec!["check".to_owned(), format!("--topology={}", spec.topology)];
        args.extend(spec.nodes.map(|n| format!("--nodes={n}")));
        args.extend(spec.gpus.map(|n| format!("--gpus={n}")));
        args.extend(spec.profile.iter().map(|name| format!("--profile={name}")));
        let selectors = select(args)?;
        let full = selectors.machine.load(spec.nodes)?;
        let (profile, inputs) = selectors.machine.load_profile(&full)?;
        let mut topology = full.clone();
        let mut env: BTreeMap<String, String> = std::mem::take(&mut topology.software.env).into_iter().collect();
        env.extend(spec.env.iter().cloned());
        let versions = if spec.nccl.is_empty() {
            vec![full.software.nccl.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()]
        } else {
            spec.nccl.clone()
        };
        let launch = match spec.launch {
            Some(launch) => launch,
            None => selectors.call.launch(full.hosts().len())?,
        };
        let settings = Run { launch: launch.name().to_owned(), env: env.into_iter().collect() };
        let mut machine = Self { spec, full, topology, profile, inputs, versions, settings, warnings: Vec::new() };
        for &version in &machine.versions {
            let told = machine.told(version, &machine.settings)?;
            let lines: Vec<String> = told.warnings.iter().map(|w| format!("{}: {w}", spec.name)).collect();
            for line in lines {
                if !machine.warnings.contains(&line) {
                    machine.warnings.push(line);
                }
            }
        }
        Ok(machine)
    }

    fn told(&self, version: Version, run: &Run) -> Result<Told, CliError> {
        let mut args = vec!["check".to_owned(), format!("--nccl={version}"), format!("--launch={}", run.launch)];
        args.extend(run.env.iter().map(|(name, value)| format!("--env={name}={value}")));
        select(args)?.call.told(&self.topology).map_err(|error| match error {
            CliError::Usage { message, hint } => {
                CliError::Usage { message: format!("machine `{}`: {message}", self.spec.name), hint }
            }
            other => other,
        })
    }

    pub(crate) fn setup(&self, version: Version, run: &Run) -> Result<Setup, CliError> {
        let told = self.told(version, run)?;
        Ok(Setup { settings: told.settings, tuner: told.tuner })
    }

    /// What the baseline records of it beside its entries.
    pub(crate) fn recorded(&self) -> Result<Recorded, CliError> {
        let env: Vec<String> = self.settings.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let tuner = self.setup(self.versions[0], &self.settings)?.tuner;
        let settings = content_hash(format!("{} {env:?} {tuner:?}", self.settings.launch).as_bytes());
        Ok(Recorded {
            topology: content_hash(description(&self.topology).as_bytes()),
            links: links(&self.topology),
            profile: self.profile.name.clone(),
            launch: self.settings.launch.clone(),
            env,
            settings,
            nccl: BTreeMap::new(),
        })
    }

    pub(crate) fn constants(&self) -> Constants {
        Constants::new(
            self.profile.parameters.iter().map(|(constant, p)| (constant.name().to_owned(), p.value)).collect(),
        )
    }

    pub(crate) fn call(&self, collective: Collective, size: u64) -> Call {
        Call::of_size(collective, self.topology.ranks(), Bytes(size), DataType::Float32).aligned()
    }

    /// Everything that the suite asks of it, by version and collective, and how that goes beyond its profile.
    pub(crate) fn entries(&self) -> Result<(Entries, Beyond), CliError> {
        let setups: Vec<(Version, Setup)> = (self.versions.iter())
            .map(|&version| Ok((version, self.setup(version, &self.settings)?)))
            .collect::<Result<_, CliError>>()?;
        let tuner = setups[0].1.tuner.clone();
        let predictor = Predictor::new(&self.topology, &self.profile).with_tuner(tuner);
        let jobs: Vec<(Version, &Settings, Collective)> = (setups.iter())
            .flat_map(|(version, setup)| self.spec.collectives.iter().map(|&c| (*version, &setup.settings, c)))
            .collect();
        let named = |(version, _, collective): (Version, &Settings, Collective), error: PredictError| {
            if error.is_internal() {
                return CliError::from(error);
            }
            CliError::usage(
                format!("machine `{}`, NCCL {version}, {collective}: {error}", self.spec.name),
                "leave this collective out for this machine, or correct what it names",
            )
        };
        let planned: Vec<Planned> = (jobs.par_iter())
            .map(|&job| self.planned(&predictor, job.1, job.2).map_err(|error| named(job, error)))
            .collect::<Result<_, _>>()?;
        // What several versions do in the same way is simulated once; large sizes take longest.
        let mut once: BTreeMap<&Way, (Version, &Settings, Collective)> = BTreeMap::new();
        for (job, planned) in jobs.iter().zip(&planned) {
            once.extend(planned.ways.iter().map(|way| (way, *job)));
        }
        let times: BTreeMap<&Way, Option<Prediction>> = (once.into_iter().rev().collect::<Vec<_>>().into_par_iter())
            .with_max_len(1)
            .map(|(way, job)| {
                let run = predicted(&predictor, job.1, &self.call(way.collective, way.size));
                Ok((way, run.map_err(|error| named(job, error))?))
            })
            .collect::<Result<_, CliError>>()?;
        let mut out = Entries::new();
        for ((version, _, collective), planned) in jobs.iter().zip(&planned) {
            let us = planned.ways.iter().filter_map(|way| Some((way.size, times[way].as_ref()?.time.as_us())));
            let us: Vec<(u64, f64)> = us.collect();
            let entry = Entry::new(&planned.choices, &us);
            out.entry(version.to_string()).or_default().insert(collective.name().to_owned(), entry);
        }
        Ok((out, times.values().flatten().map(|run| run.beyond.clone()).collect()))
    }

    /// NCCL's choices over the range, and how it does the calls whose times are asked for.
    fn planned(
        &self,
        predictor: &Predictor<'_>,
        settings: &Settings,
        collective: Collective,
    ) -> Result<Planned, PredictError> {
        let choice = |&size| Ok((size, pick(predictor, settings, &self.call(collective, size))?.to_string()));
        let way = |&size| {
            let call = self.call(collective, size);
            let Some(resolved) = may_fail(predictor.resolve(&call, Choice::Auto, Choice::Auto, settings))? else {
                return Ok(None);
            };
            let settings = Settings { channels: settings.channels.or(resolved.channels), ..*settings };
            let plan = predictor.schedule(&call, resolved.algorithm, resolved.protocol, &settings)?.plan;
            Ok(Some(Way { size, collective, plan: format!("{plan:?}") }))
        };
        Ok(Planned {
            choices: self.spec.range.iter().map(choice).collect::<Result<_, PredictError>>()?,
            ways: self.spec.sizes.iter().filter_map(|s| way(s).transpose()).collect::<Result<_, PredictError>>()?,
        })
    }
}

/// What one entry needs simulated.
struct Planned {
    choices: Vec<(u64, String)>,
    ways: Vec<Way>,
}

/// One way to do a call: on one machine with one way to start kernels, it has one time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Way {
    size: u64,
    collective: Collective,
    plan: String,
}

/// None where NCCL would return an error.
fn may_fail<T>(result: Result<T, PredictError>) -> Result<Option<T>, PredictError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(PredictError::NothingLeft { .. } | PredictError::NothingToChoose(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn select(args: Vec<String>) -> Result<Selectors, CliError> {
    Selectors::try_parse_from(args).map_err(|error| CliError::usage(error.to_string(), "see --help"))
}

/// NCCL's choice.
pub(crate) fn pick(predictor: &Predictor<'_>, settings: &Settings, call: &Call) -> Result<Picked, PredictError> {
    let decision = may_fail(predictor.decide(call, Choice::Auto, Choice::Auto, settings))?;
    Ok(decision.map_or(Picked::Fails, |d| Picked::Runs {
        algorithm: d.algorithm,
        protocol: d.protocol,
        channels: d.channels,
    }))
}

/// What NCCL picks; none where NCCL would fail.
fn predicted(predictor: &Predictor<'_>, settings: &Settings, call: &Call) -> Result<Option<Prediction>, PredictError> {
    may_fail(predictor.predict(call, Choice::Auto, Choice::Auto, settings))
}

/// Time of what NCCL picks in us; none where NCCL would fail.
pub(crate) fn time(predictor: &Predictor<'_>, settings: &Settings, call: &Call) -> Result<Option<f64>, PredictError> {
    Ok(predicted(predictor, settings, call)?.map(|p| p.time.as_us()))
}

/// Time of a call as it was done before, in us; none where that has no schedule here.
///
/// - `now`: what NCCL picks today. Where only channels differ, NCCL is told their number.
pub(crate) fn time_as(
    predictor: &Predictor<'_>,
    settings: &Settings,
    call: &Call,
    before: Picked,
    now: Picked,
) -> Option<f64> {
    let (Picked::Runs { algorithm, protocol, channels }, Picked::Runs { algorithm: a, protocol: p, .. }) =
        (before, now)
    else {
        return None;
    };
    let mut settings = *settings;
    if (a, p) == (algorithm, protocol) {
        (settings.nccl.min_channels, settings.nccl.max_channels) = (Some(channels), Some(channels));
        (settings.nccl.min_p2p_channels, settings.nccl.max_p2p_channels) = (Some(channels), Some(channels));
    }
    let (algorithm, protocol) = (Choice::Forced(algorithm), Choice::Forced(protocol));
    let prediction = predictor.predict(call, algorithm, protocol, &settings).ok()?;
    prediction.instead_of.is_none().then(|| prediction.time.as_us())
}

/// Time of what NCCL picks today, in us; none where that has no schedule here.
pub(crate) fn time_now(predictor: &Predictor<'_>, settings: &Settings, call: &Call) -> Option<f64> {
    let prediction = predictor.predict(call, Choice::Auto, Choice::Auto, settings).ok()?;
    prediction.instead_of.is_none().then(|| prediction.time.as_us())
}

/// Everything about a machine that NCCL or the simulation looks at, one fact a line. The same
/// text means the same machine, whatever file it was read from.
fn description(topology: &Topology) -> String {
    let mut out = format!("hash {:?}\nplugin {:?}\n", topology.hash, topology.software.plugin);
    for (_, vertex) in topology.vertices() {
        let _ = writeln!(out, "{} {:?} {:?}", vertex.name, vertex.host, vertex.kind);
    }
    for (_, from, to, link) in topology.links() {
        let (from, to) = (&topology.vertex(from).name, &topology.vertex(to).name);
        let _ = writeln!(out, "{from} -> {to} {} {} {}", link.kind.name(), link.rate.get(), link.width);
    }
    for rank in 0..topology.ranks() {
        let _ = writeln!(
            out,
            "rank {rank} {} node {:?}",
            topology.gpu_of(Rank(rank)).index(),
            topology.node_of(Rank(rank))
        );
    }
    out
}

/// `64 nvlink of 450 GB/s`: both directions are counted.
fn links(topology: &Topology) -> Vec<String> {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for (_, _, _, link) in topology.links() {
        *counts.entry((link.kind, link.rate.get())).or_default() += 1;
    }
    let shown = |((kind, rate), count): (&(collcast_sim::topology::LinkKind, u64), &usize)| {
        let gb = format!("{:.3}", *rate as f64 / 1e9);
        format!("{count} {} of {} GB/s", kind.name(), gb.trim_end_matches('0').trim_end_matches('.'))
    };
    counts.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: choices read back as they are written.
    #[test]
    fn choices_read_back() {
        let runs = Picked::Runs { algorithm: Algorithm::NvlsTree, protocol: Protocol::Ll128, channels: 24 };
        assert_eq!(runs.to_string(), "nvls_tree/ll128 24ch");
        for picked in [runs, Picked::Fails] {
            assert_eq!(picked.to_string().parse(), Ok(picked));
        }
        assert_eq!("tree/ll".parse::<Picked>(), Err(()));
    }
}
