//! What is predicted today: NCCL's choices over sizes, and times at a few of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol};
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::nccl::{NcclSettings, Plan, Tuner, Version};
use collcast_sim::predict::{Choice, PredictError, Prediction, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::Call;
use collcast_sim::topology::{Gpu, Nic, Topology, VertexKind};
use collcast_sim::units::{Bandwidth, Bytes};
use rayon::prelude::*;

use super::baseline::{Constants, Entries, Entry, Recorded};
use super::picked::Picked;
use super::suite::MachineSpec;
use crate::confidence::{Grounds, On};
use crate::error::Error;
use crate::files::content_hash;
use crate::site::{Site, SiteSpec, TABLES, Told, told};

/// A machine of the suite, loaded.
#[derive(Debug)]
pub(super) struct Machine<'s> {
    pub(super) spec: &'s MachineSpec,
    /// Without variables: these are part of the settings.
    pub(super) site: Site,
    /// The variables that its file says.
    own_env: Vec<(String, String)>,
    pub(super) run: Setup,
    /// What each version of NCCL that is asked about makes of that.
    pub(super) versions: Vec<(Version, Told)>,
    pub(super) warnings: Vec<String>,
}

/// How NCCL is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setup {
    pub(super) launch: Launch,
    /// The machine's variables, the suite's, its own; of a name given twice, the last.
    pub(super) env: Vec<(String, String)>,
}

impl<'s> Machine<'s> {
    pub(super) fn load(spec: &'s MachineSpec) -> Result<Self, Error> {
        if spec.site.cold || spec.site.registered || spec.site.graph.is_some() {
            return Err(Error::usage(
                format!("machine `{}`: a baseline does not hold cold calls, registered buffers and graphs", spec.name),
                "leave them out of the site",
            ));
        }
        let mut topology = spec.site.topology()?;
        let own_env = std::mem::take(&mut topology.software.env);
        let site = SiteSpec { nccl: None, env: Vec::new(), ..spec.site.clone() }.load_onto(topology)?;
        let mut env: BTreeMap<String, String> = own_env.iter().cloned().collect();
        env.extend(spec.site.env.iter().cloned());
        let run = Setup { launch: site.settings().launch, env: env.into_iter().collect() };
        let mut machine = Self { spec, site, own_env, run, versions: Vec::new(), warnings: Vec::new() };
        let own = [machine.site.topology.software.nccl.unwrap_or_default()];
        let versions = if spec.nccl.is_empty() { &own[..] } else { &spec.nccl };
        for &version in versions {
            let told = machine.told(version, &machine.run)?;
            for warning in &told.warnings {
                if !machine.warnings.contains(warning) {
                    machine.warnings.push(warning.clone());
                }
            }
            machine.versions.push((version, told));
        }
        Ok(machine)
    }

    /// The machine as its file says, variables included.
    pub(super) fn as_written(&self) -> Topology {
        let mut topology = self.site.topology.clone();
        topology.software.env.clone_from(&self.own_env);
        topology
    }

    /// What a version of NCCL makes of settings.
    pub(super) fn told(&self, version: Version, run: &Setup) -> Result<Told, Error> {
        let env: Vec<(String, String)> = run.env.iter().map(|pair| self.placed(pair)).collect();
        let mut told = told(&self.site.topology, Some(&version.to_string()), &env).map_err(|error| match error {
            Error::Usage { message, hint } => {
                Error::Usage { message: format!("machine `{}`: {message}", self.spec.name), hint }
            }
            other => other,
        })?;
        told.settings.launch = run.launch;
        Ok(told)
    }

    /// A variable as NCCL is told it: the table that one of the suite names lies beside the suite. Baselines keep what
    /// is written, which is the same wherever the suite lies.
    fn placed(&self, pair: &(String, String)) -> (String, String) {
        let (name, value) = pair.clone();
        if !TABLES.contains(&name.as_str()) || value.is_empty() || self.own_env.contains(pair) {
            return (name, value);
        }
        // NVIDIA's example takes one table, `collcast-tuner` several.
        let tables: Vec<&str> = if name == TABLES[0] { vec![&value] } else { value.split(':').collect() };
        let placed = tables.iter().map(|table| self.spec.folder.join(table).display().to_string());
        let placed: Vec<String> = placed.collect();
        (name, placed.join(":"))
    }

    /// What forecasts its calls with a profile, where NCCL is told so.
    pub(super) fn predictor<'p>(&'p self, profile: &'p Profile, told: &Told) -> Predictor<'p> {
        Predictor::new(&self.site.topology, profile).with_tuner(told.tuner.clone())
    }

    /// What the baseline records of it beside its entries.
    pub(super) fn recorded(&self) -> Result<Recorded, Error> {
        let env: Vec<String> = self.run.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let tuner = self.versions[0].1.tuner.as_ref();
        Ok(Recorded {
            topology: content_hash(description(&self.site.topology).as_bytes()),
            links: links(&self.site.topology),
            profile: self.site.profile.name.clone(),
            launch: self.run.launch.name().to_owned(),
            settings: content_hash(settings(self.run.launch, &env, tuner).as_bytes()),
            env,
            nccl: BTreeMap::new(),
        })
    }

    pub(super) fn constants(&self) -> Constants {
        let parameters = &self.site.profile.parameters;
        Constants::new(parameters.iter().map(|(constant, p)| (constant.name().to_owned(), p.value)).collect())
    }

    pub(super) fn call(&self, collective: Collective, size: u64) -> Call {
        Call::of_size(collective, self.site.topology.ranks(), Bytes(size), DataType::Float32).aligned()
    }

    /// Everything that the suite asks of it, by version and collective, and what that rests on; of some calls it is known
    /// what they take.
    pub(super) fn entries(&self, mut known: BTreeMap<usize, Timed>) -> Result<(Entries, Grounds), Error> {
        self.with_jobs(|predictor, jobs, planned| {
            let ways = ways(jobs, planned);
            let rest = self.simulated(predictor, &ways, |place| !known.contains_key(&place))?;
            known.extend(rest);
            let predictions: BTreeMap<&Way, &Prediction> = (ways.iter().zip(known.values()))
                .filter_map(|((way, _), timed)| Some((*way, timed.as_ref()?)))
                .collect();
            let mut entries = Entries::new();
            for (job, planned) in jobs.iter().zip(planned) {
                let us = planned.ways.iter().filter_map(|way| Some((way.size, predictions.get(way)?.time.as_us())));
                let entry = Entry::new(&planned.choices, &us.collect::<Vec<_>>());
                entries.entry(job.version.to_string()).or_default().insert(job.collective, entry);
            }
            let rests = jobs.iter().zip(planned).flat_map(|(job, planned)| {
                let on = On { settings: job.settings, ..self.site.on() };
                let (collective, ranks) = (job.collective, on.topology.ranks());
                let of = move |way: &Way, p: &Prediction| {
                    let asked = (collective, ranks, Bytes(way.size));
                    Grounds::of(on, (collective, ranks), p.into()).beside_published(on, asked, p)
                };
                planned.ways.iter().filter_map(|way| Some(of(way, predictions.get(way)?))).collect::<Vec<_>>()
            });
            Ok((entries, rests.collect()))
        })
    }

    /// What calls of the suite take there: those at the places that are `wanted`.
    pub(super) fn part(&self, wanted: impl Fn(usize) -> bool) -> Result<Vec<(usize, Timed)>, Error> {
        self.with_jobs(|predictor, jobs, planned| self.simulated(predictor, &ways(jobs, planned), wanted))
    }

    /// Does something with all entries of the baseline, and what they need simulated.
    fn with_jobs<T>(
        &self,
        then: impl FnOnce(&Predictor<'_>, &[Job<'_>], &[Planned]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let predictor = self.predictor(&self.site.profile, &self.versions[0].1);
        let jobs: Vec<Job<'_>> = (self.versions.iter())
            .flat_map(|(version, told)| self.spec.collectives.iter().map(|&c| (*version, &told.settings, c)))
            .map(|(version, settings, collective)| Job { version, settings, collective })
            .collect();
        let planned: Vec<Planned> = (jobs.par_iter())
            .map(|job| self.planned(&predictor, job).map_err(|error| self.named(job, error)))
            .collect::<Result<_, _>>()?;
        then(&predictor, &jobs, &planned)
    }

    /// An error of one job, with the way out.
    fn named(&self, job: &Job<'_>, error: PredictError) -> Error {
        if error.is_internal() {
            return Error::from(error);
        }
        Error::usage(
            format!("machine `{}`, NCCL {}, {}: {error}", self.spec.name, job.version, job.collective),
            "leave this collective out for this machine, or correct what it names",
        )
    }

    /// NCCL's choices over the range, and how it does the calls whose times are asked for.
    fn planned(&self, predictor: &Predictor<'_>, job: &Job<'_>) -> Result<Planned, PredictError> {
        let &Job { settings, collective, .. } = job;
        let choice = |&size| Ok((size, pick(predictor, settings, &self.call(collective, size))?.to_string()));
        let way = |&size| {
            let call = self.call(collective, size);
            let Some(resolved) = may_fail(predictor.resolve(&call, Choice::Auto, Choice::Auto, settings))? else {
                return Ok(None);
            };
            let settings = Settings { channels: settings.channels.or(resolved.channels), ..*settings };
            let plan = predictor.schedule(&call, resolved.algorithm, resolved.protocol, &settings)?.plan;
            Ok(Some(Way { size, collective, plan }))
        };
        Ok(Planned {
            choices: self.spec.range.iter().map(choice).collect::<Result<_, PredictError>>()?,
            ways: self.spec.sizes.iter().filter_map(|s| way(s).transpose()).collect::<Result<_, PredictError>>()?,
        })
    }

    /// Simulates the ways at the places that are `wanted`.
    fn simulated(
        &self,
        predictor: &Predictor<'_>,
        ways: &[(&Way, &Job<'_>)],
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Vec<(usize, Timed)>, Error> {
        let wanted: Vec<usize> = (0..ways.len()).filter(|&place| wanted(place)).collect();
        (wanted.into_par_iter())
            .with_max_len(1)
            .map(|place| {
                let (way, job) = ways[place];
                let run = predicted(predictor, job.settings, &self.call(way.collective, way.size));
                Ok((place, run.map_err(|error| self.named(job, error))?))
            })
            .collect()
    }
}

/// What a call takes; none that NCCL would refuse.
pub(super) type Timed = Option<Prediction>;

/// The ways of all entries, those first that take longest: of large sizes. What several versions do in the same way is
/// simulated once.
fn ways<'p>(jobs: &'p [Job<'p>], planned: &'p [Planned]) -> Vec<(&'p Way, &'p Job<'p>)> {
    let mut once: BTreeMap<&Way, &Job<'_>> = BTreeMap::new();
    for (job, planned) in jobs.iter().zip(planned) {
        once.extend(planned.ways.iter().map(|way| (way, job)));
    }
    once.into_iter().rev().collect()
}

/// One entry of the baseline.
struct Job<'t> {
    version: Version,
    settings: &'t Settings,
    collective: Collective,
}

/// What one entry needs simulated.
struct Planned {
    choices: Vec<(u64, String)>,
    ways: Vec<Way>,
}

/// One way to do a call: on one machine with one way to start kernels, it has one time. By size first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Way {
    size: u64,
    collective: Collective,
    plan: Plan,
}

/// None where NCCL would return an error.
fn may_fail<T>(result: Result<T, PredictError>) -> Result<Option<T>, PredictError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(PredictError::NothingLeft { .. } | PredictError::NothingToChoose(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// NCCL's choice.
pub(super) fn pick(predictor: &Predictor<'_>, settings: &Settings, call: &Call) -> Result<Picked, PredictError> {
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
pub(super) fn time(predictor: &Predictor<'_>, settings: &Settings, call: &Call) -> Result<Option<f64>, PredictError> {
    Ok(predicted(predictor, settings, call)?.map(|p| p.time.as_us()))
}

/// Time of a call as it was done before, in us; none where that has no schedule here, or not with as many channels.
///
/// Where algorithm and protocol have other channels today, NCCL is told their number by every variable that sets one.
pub(super) fn time_as(predictor: &Predictor<'_>, settings: &Settings, call: &Call, before: Picked) -> Option<f64> {
    let Picked::Runs { algorithm, protocol, channels } = before else { return None };
    let (all, today) = (Some(channels), settings.nccl);
    let nccl = NcclSettings {
        min_channels: all,
        max_channels: all,
        min_ctas: None,
        max_ctas: None,
        min_p2p_channels: all,
        max_p2p_channels: all,
        nvls_channels: all,
        ..today
    };
    let settings = [today, nccl]
        .map(|nccl| Settings { nccl, ..*settings })
        .into_iter()
        .find(|settings| channels_of(predictor, settings, call, (algorithm, protocol)) == channels)?;
    let prediction = predictor.predict(call, Choice::Forced(algorithm), Choice::Forced(protocol), &settings).ok()?;
    Some(prediction.time.as_us())
}

/// Channels that NCCL gives a call of an algorithm and protocol that it is told, whatever a tuner asks for.
fn channels_of(
    predictor: &Predictor<'_>,
    settings: &Settings,
    call: &Call,
    (algorithm, protocol): (Algorithm, Protocol),
) -> u32 {
    if algorithm == Algorithm::Direct {
        return predictor.limits(call.ranks, settings).p2p_channels.0;
    }
    let graphs = predictor.graph(call.ranks, settings);
    predictor.model(&graphs, settings).call_channels(algorithm, protocol, call.size().0)
}

/// Time of what NCCL picks today, in us; none where that has no schedule here.
pub(super) fn time_now(predictor: &Predictor<'_>, settings: &Settings, call: &Call) -> Option<f64> {
    let prediction = predictor.predict(call, Choice::Auto, Choice::Auto, settings).ok()?;
    prediction.instead_of.is_none().then(|| prediction.time.as_us())
}

/// What a baseline holds a hash of: launch mode, variables, and the table that one of them may name. The text stays as it
/// is, down to its quotes: another one would be another hash, and every baseline would say that its settings changed.
fn settings(launch: Launch, env: &[String], tuner: Option<&Tuner>) -> String {
    format!("{} {env:?} {tuner:?}", launch.name())
}

/// Everything about a machine that NCCL or the simulation looks at, one fact a line. The same
/// text means the same machine, whatever file it was read from. Baselines hold its hash: what is written here stays.
fn description(topology: &Topology) -> String {
    let mut out = format!("hash {:?}\nplugin {:?}\n", topology.hash, topology.software.plugin);
    for (_, vertex) in topology.vertices() {
        let host = vertex.host.map(|host| format!("HostId({host})"));
        let _ = writeln!(out, "{} {} {}", vertex.name, option(host), kind(&vertex.kind));
    }
    for (_, from, to, link) in topology.links() {
        let (from, to) = (&topology.vertex(from).name, &topology.vertex(to).name);
        let _ = writeln!(out, "{from} -> {to} {} {} {}", link.kind.name(), link.rate.get(), link.width);
    }
    for rank in (0..topology.ranks()).map(Rank) {
        let (gpu, HostId(node)) = (topology.gpu_of(rank).index(), topology.node_of(rank));
        let _ = writeln!(out, "rank {rank} {gpu} node HostId({node})");
    }
    // A line only where it is so: other machines keep the hash of the first baselines.
    switches(topology).for_each(|what| out += &format!("{what}\n"));
    out
}

fn option(text: Option<String>) -> String {
    text.map_or_else(|| "None".to_owned(), |text| format!("Some({text})"))
}

/// A vertex with all its fields: a field that is added is left out here, or every baseline would name the topology as a
/// cause.
fn kind(kind: &VertexKind) -> String {
    let rate = |rate: Bandwidth| format!("Bandwidth({})", rate.get());
    match kind {
        VertexKind::Gpu(Gpu { index, model, compute_capability, memory_rate, bus_id }) => format!(
            "Gpu(Gpu {{ index: {index}, model: {model:?}, compute_capability: {compute_capability}, memory_rate: {}, \
             bus_id: {bus_id:?} }})",
            option(memory_rate.map(rate))
        ),
        VertexKind::NvSwitch => "NvSwitch".to_owned(),
        VertexKind::PcieSwitch => "PcieSwitch".to_owned(),
        VertexKind::Cpu { vendor } => format!("Cpu {{ vendor: {vendor:?} }}"),
        VertexKind::Nic(nic) => {
            let Nic { index, name, kind, gpudirect, rail, card, management, .. } = nic;
            format!(
                "Nic(Nic {{ index: {index}, name: {name:?}, kind: {kind:?}, rate: {}, gpudirect: {gpudirect}, \
                 gpudirect_rate: {}, rail: {rail:?}, card: {card:?}, management: {management} }})",
                rate(nic.rate),
                option(nic.gpudirect_rate.map(rate))
            )
        }
        VertexKind::NetSwitch { level } => format!("NetSwitch {{ level: {level} }}"),
    }
}

/// What NCCL asks of switches beside links.
fn switches(topology: &Topology) -> impl Iterator<Item = &'static str> {
    let known = [(topology.sharp, "SHARP"), (topology.software.multicast_off, "no NVLink multicast")];
    known.into_iter().filter_map(|(is_so, what)| is_so.then_some(what))
}

/// `64 nvlink of 450 GB/s`: both directions are counted. Then what switches do.
fn links(topology: &Topology) -> Vec<String> {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for (_, _, _, link) in topology.links() {
        *counts.entry((link.kind, link.rate.get())).or_default() += 1;
    }
    let shown = |((kind, rate), count): (&(collcast_sim::topology::LinkKind, u64), &usize)| {
        let gb = format!("{:.3}", *rate as f64 / 1e9);
        format!("{count} {} of {} GB/s", kind.name(), gb.trim_end_matches('0').trim_end_matches('.'))
    };
    counts.iter().map(shown).chain(switches(topology).map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use collcast_sim::topology::LinkKind;

    use super::*;

    /// Goal: the hash of a machine does not move with our code. Method: the text that it is of, as the first baselines
    /// were written with it.
    #[test]
    fn vertices_are_described_as_in_the_first_baselines() {
        let gb = |n: u64| Bandwidth::from_gb_per_s(n as f64);
        let gpu = Gpu {
            index: 1,
            model: "H200-SXM5-141GB".to_owned(),
            compute_capability: 90,
            memory_rate: Some(gb(4800)),
            bus_id: Some("0000:1b:00.0".to_owned()),
        };
        let nic = Nic {
            index: 0,
            name: "mlx5_0".to_owned(),
            kind: LinkKind::Infiniband,
            rate: gb(50),
            gpudirect: true,
            gpudirect_rate: None,
            rail: Some(3),
            card: None,
            management: false,
            latency: None,
        };
        for (vertex, text) in [
            (
                VertexKind::Gpu(gpu),
                "Gpu(Gpu { index: 1, model: \"H200-SXM5-141GB\", compute_capability: 90, memory_rate: \
                 Some(Bandwidth(4800000000000)), bus_id: Some(\"0000:1b:00.0\") })",
            ),
            (
                VertexKind::Nic(nic),
                "Nic(Nic { index: 0, name: \"mlx5_0\", kind: Infiniband, rate: Bandwidth(50000000000), gpudirect: true, \
                 gpudirect_rate: None, rail: Some(3), card: None, management: false })",
            ),
            (VertexKind::Cpu { vendor: String::new() }, "Cpu { vendor: \"\" }"),
            (VertexKind::NetSwitch { level: 2 }, "NetSwitch { level: 2 }"),
        ] {
            assert_eq!(kind(&vertex), text);
        }
        let env = ["NCCL_ALGO=Ring".to_owned()];
        assert_eq!(settings(Launch::Graph, &env, None), "graph [\"NCCL_ALGO=Ring\"] None");
    }
}
