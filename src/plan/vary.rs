//! The best layout again with something changed: of the machine, its GPUs, the framework, the batch or the run.

use collcast_scenarios::parallel::{Parallel, Schedule};
use collcast_scenarios::training::calls::Calls;
use collcast_sim::collective::nearest;
use collcast_sim::compute;
use rayon::prelude::*;

use super::fields;
use super::outcome::{Outcome, Variation};
use super::planning::{Planning, spec, whole_hosts};
use super::request::Request;
use super::run;
use crate::error::Error;
use crate::site::Site;
use crate::vary::{self as machine, Change, To, crossed};

/// Variations of one answer at most: each simulates calls again, for seconds on a large machine.
const MOST: usize = 200;

/// Part of a step, or of a run, by which it is longer at least where faster links are said to be worse: above rounding.
const LONGER: f64 = 0.005;

/// Something that may be changed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Key {
    /// A field of the request.
    Field(&'static str),
    /// Something of the machine.
    Machine(machine::Key),
    /// A constant of the profile of the GPU's kernels.
    Kernel(compute::Constant),
    /// The speed of one GPU, of the others'.
    Slowest,
    /// Parameters of a bucket of gradients.
    Bucket,
    /// How often something fails.
    Failures,
    /// The machine itself.
    On,
    /// How many GPUs there are; replicas are what they allow.
    Gpus,
    /// A key of the layout.
    Layout(&'static str),
}

impl Key {
    /// Whether the machine is read again for it, with what others change.
    fn of_site(self) -> bool {
        matches!(self, Self::On | Self::Gpus | Self::Field("profile" | "nccl" | "env"))
    }
}

/// Keys that are neither constants, fields, of the layout nor of the machine's parts.
const KEYS: [(&str, Key); 5] = [
    ("slowest-gpu", Key::Slowest),
    ("bucket", Key::Bucket),
    ("failure-rate", Key::Failures),
    ("on", Key::On),
    ("gpus", Key::Gpus),
];

/// Keys of a layout that no field is for.
const LAYOUT: [&str; 12] = ["tp", "pp", "vpp", "first", "last", "cp", "ep", "etp", "sp", "hsdp", "schedule", "offload"];

/// Fields that a layout is simulated again with; others are of the search, or of several options.
const FIELDS: [&str; 20] = [
    "gpu",
    "profile",
    "nccl",
    "env",
    "micro-batch",
    "global-batch",
    "seq",
    "precision",
    "param-gather",
    "recompute",
    "zero",
    "framework",
    "overlap-tensor",
    "overlap-experts",
    "fuse-experts",
    "dispatch",
    "failures",
    "restart",
    "storage",
    "checkpoint-every",
];

/// All that is asked for.
pub(super) struct Changes {
    sensitivities: Vec<Change<Key>>,
    variations: Vec<Change<Key>>,
}

/// What is changed for the table of sensitivities: parts of a machine that are bought, and what goes wrong with them.
const SENSITIVITIES: [(&str, &[(&str, To)]); 16] = [
    ("NIC rate x2", &[("nic.rate", To::Times(2.0))]),
    ("network rate x2: NICs, PCIe and switches", machine::NETWORK_TWICE),
    ("NIC rate x0.5", &[("nic.rate", To::Times(0.5))]),
    ("one rail lost", &[("nics", To::Plus(-1.0))]),
    ("one GPU at 90% of its speed", &[("slowest-gpu", To::Times(0.9))]),
    ("NVLink rate x0.5", &[("nvlink.rate", To::Times(0.5))]),
    ("memory rate x1.1", &[("gpu.memory", To::Times(1.1))]),
    ("tensor-core rate x1.1", &[("gpu.tensor", To::Times(1.1))]),
    ("power limit -100 W", &[("power.limit", To::Plus(-100.0))]),
    ("gradient buckets x8", &[("bucket", To::Times(8.0))]),
    ("network latency x2", &[("latency.network*", To::Times(2.0))]),
    ("NVLink latency x2", &[("latency.nvlink*", To::Times(2.0))]),
    ("host time to issue a kernel x2", &[("issue.element", To::Times(2.0))]),
    ("checkpoint storage x2", &[("storage", To::Times(2.0))]),
    ("checkpoint storage x0.5", &[("storage", To::Times(0.5))]),
    ("failure rate x2", &[("failure-rate", To::Times(2.0))]),
];

/// What a request asks for, read.
///
/// # Errors
/// A key that is none, with the nearest; a value that no key has; too many of them.
pub(super) fn asked(request: &Request) -> Result<Changes, Error> {
    let mut sensitivities = Vec::new();
    for (name, settings) in SENSITIVITIES.iter().filter(|_| request.sensitivities) {
        let settings = settings.iter().map(|(key, to)| Ok(keys(key)?.into_iter().map(|key| (key, to.clone()))));
        let settings = settings.collect::<Result<Vec<_>, Error>>()?;
        sensitivities.push(Change { name: (*name).to_owned(), settings: settings.into_iter().flatten().collect() });
    }
    let variations = crossed(&request.vary, MOST, keys)?;
    Ok(Changes { sensitivities, variations })
}

/// The keys of a name: one, or all constants that begin as it does where it ends in `*`.
fn keys(name: &str) -> Result<Vec<Key>, Error> {
    let machine = machine::Key::all().map(|(name, key)| (name, Key::Machine(key)));
    let kernels = compute::Constant::ALL.iter().map(|&constant| (constant.name(), Key::Kernel(constant)));
    let fields = FIELDS.into_iter().map(|field| (field, Key::Field(field)));
    let layout = LAYOUT.into_iter().map(|key| (key, Key::Layout(key)));
    let all: Vec<(&str, Key)> = KEYS.into_iter().chain(machine).chain(layout).chain(fields).chain(kernels).collect();
    let plain = name.replace('_', "-");
    let found: Vec<Key> = match name.strip_suffix('*') {
        Some(begins) => all.iter().filter(|(known, _)| known.starts_with(begins)).map(|known| known.1).collect(),
        None => all.iter().filter(|(known, _)| *known == name || *known == plain).map(|known| known.1).collect(),
    };
    if !found.is_empty() {
        return Ok(found);
    }
    let near = nearest(name, all.iter().map(|known| known.0));
    let near = near.map_or_else(String::new, |near| format!(": did you mean `{near}`?"));
    let machine = machine::KEYS.iter().map(|known| known.0);
    let own: Vec<&str> = machine.chain(KEYS.iter().map(|known| known.0)).chain(LAYOUT).chain(FIELDS).collect();
    Err(Error::usage(
        format!("--vary {name}: there is no such key{near}"),
        format!("keys: {}, and the constants that `collcast profile show` and a GPU's profile list", own.join(", ")),
    ))
}

/// What is simulated again.
struct Varied {
    request: Request,
    parallel: Parallel,
    site: Site,
    /// Whether calls on it take other times than before.
    elsewhere: bool,
    /// Whether the layout's ranks are others.
    laid: bool,
    kernels: Vec<(Key, To)>,
}

impl Varied {
    fn set(&mut self, key: Key, to: &To) -> Result<(), String> {
        match key {
            Key::Field(name) => return self.field(name, to),
            Key::Failures => {
                self.runs()?;
                let times = to.of(self.request.upkeep.failures_times)?;
                if times <= 0.0 {
                    return Err("nothing would fail: a rate is above 0".to_owned());
                }
                self.request.upkeep.failures_times = times;
            }
            Key::Machine(key) => key.set(&mut self.site, to)?,
            Key::On => {
                self.request.site.topology = Some(Self::named(to)?);
                if let Some(prices) = self.request.prices.clone() {
                    fields::set(&mut self.request, "price", &prices)?;
                }
            }
            Key::Gpus => {
                let gpus = to.of(self.request.gpus as f64)?;
                if gpus < 1.0 || gpus.fract() != 0.0 {
                    return Err(format!("there would be {gpus} GPUs: expected a whole number from 1"));
                }
                (self.request.gpus, self.laid) = (gpus as u64, true);
            }
            Key::Layout(name) => self.layout(name, to)?,
            Key::Kernel(_) | Key::Slowest | Key::Bucket => {
                self.kernels.push((key, to.clone()));
                return Ok(());
            }
        }
        self.elsewhere |= matches!(key, Key::Machine(_));
        Ok(())
    }

    /// Refuses what is of the whole run where there is none.
    fn runs(&self) -> Result<(), String> {
        let none = || "it is of the whole run, which --tokens asks for".to_owned();
        self.request.tokens.map(|_| ()).ok_or_else(none)
    }

    fn layout(&mut self, name: &'static str, to: &To) -> Result<(), String> {
        let value = Self::named(to)?;
        let (before, now) = (self.parallel, &mut self.parallel);
        now.set(name, &value).map_err(|expected| format!("{name} is `{value}`; expected {expected}"))?;
        // As in a layout that leaves out what follows from these.
        if name == "tp" && (before.tensor == 1) != (now.tensor == 1) {
            now.sequence_parallel = now.tensor > 1;
        }
        if name == "vpp" && matches!(now.schedule, Schedule::Interleaved | Schedule::OneForwardOneBackward) {
            now.schedule = if now.virtual_stages > 1 { Schedule::Interleaved } else { Schedule::OneForwardOneBackward };
        }
        self.laid = true;
        Ok(())
    }

    /// A value that is no number to be changed.
    fn named(to: &To) -> Result<String, String> {
        match to {
            To::Set(text) => Ok(text.clone()),
            _ => Err("it has values of its own; x2 and +10 are for rates and constants".to_owned()),
        }
    }

    fn field(&mut self, name: &'static str, to: &To) -> Result<(), String> {
        if matches!(name, "failures" | "restart" | "storage" | "checkpoint-every") {
            self.runs()?;
        }
        let text = match (name, to) {
            ("storage", To::Times(_) | To::Plus(_)) => format!("{} B/s", to.of(run::storage(&self.request))?.round()),
            _ => Self::named(to)?,
        };
        fields::set(&mut self.request, name, &text)?;
        let (request, parallel) = (&self.request, &mut self.parallel);
        match name {
            "seq" => parallel.sequence = request.sequence,
            "global-batch" => parallel.global_batch = request.global_batch.unwrap_or(parallel.global_batch),
            "micro-batch" => parallel.micro_batch = request.micro_batch.unwrap_or(parallel.micro_batch),
            "zero" => parallel.zero = request.zero.unwrap_or(parallel.zero),
            "recompute" => parallel.recompute = request.recompute.unwrap_or(parallel.recompute),
            // As where the framework is given: each has a stage of its own.
            "framework" if request.asked_zero().is_none() => parallel.zero = request.usual_zero(),
            _ => {}
        }
        Ok(())
    }
}

/// Simulates the best layout with each change.
fn simulated(
    request: &Request,
    (site, known): (&Site, &Calls<'_>),
    outcome: &Outcome,
    change: &Change<Key>,
) -> Result<(Variation, Option<String>), Error> {
    let refused = |why: String| Error::usage(why, "vary something else");
    let best = &outcome.layouts[0];
    let mut varied = Varied {
        request: request.clone(),
        parallel: best.layout,
        site: site.clone(),
        elsewhere: false,
        laid: false,
        kernels: Vec::new(),
    };
    let (of_site, others): (Vec<_>, Vec<_>) = change.settings.iter().partition(|(key, _)| key.of_site());
    for (key, to) in &of_site {
        varied.set(*key, to).map_err(refused)?;
    }
    if !of_site.is_empty() {
        varied.site = spec(&varied.request)?.load()?;
        varied.elsewhere = true;
    }
    for (key, to) in others {
        varied.set(*key, to).map_err(refused)?;
    }
    let mut planning = Planning::new(&varied.request, &varied.site)?;
    if varied.laid {
        varied.parallel = planning.on(varied.request.gpus, varied.parallel, false)?;
    }
    for (key, to) in &varied.kernels {
        match *key {
            Key::Kernel(constant) => {
                let value = to.constant(constant.spec(), planning.gpu[constant].value).map_err(refused)?;
                planning.gpu.set(constant, value);
            }
            Key::Slowest => {
                let speed = to.of(1.0).map_err(refused)?;
                if !(speed > 0.0 && speed <= 1.0) {
                    return Err(refused("the slowest GPU has a speed above 0, and at most 1".to_owned()));
                }
                planning.slowest = 1.0 / speed;
            }
            _ if varied.parallel.zero == 3 => {
                return Err(refused("ZeRO-3 has no buckets: it sums gradients layer by layer".to_owned()));
            }
            _ => {
                let bucket = match to {
                    To::Set(text) => fields::counted(text)
                        .ok_or_else(|| refused(format!("`{text}` is no number of parameters, such as 40M")))?,
                    to => to.of(planning.software.execution.bucket(&varied.parallel, (0, 0))).map_err(refused)?,
                };
                if bucket < 1.0 {
                    return Err(refused("a bucket has a parameter at least".to_owned()));
                }
                (planning.software.execution.bucket, planning.software.execution.bucket_each) = (bucket, 0.0);
            }
        }
    }
    let mut choice = String::new();
    let layout = match varied.elsewhere {
        true => {
            let calls = varied.site.calls()?;
            whole_hosts(varied.request.gpus, calls.host())?;
            let layout = planning.timed(varied.parallel, &calls)?;
            choice = known.others(&calls).into_iter().collect::<Vec<_>>().join("; ");
            layout
        }
        false => planning.timed(varied.parallel, known)?,
    };
    let whole = planning.whole(&varied.request, &varied.site, &layout)?.0;
    let days = |whole: &Option<super::Whole>| whole.as_ref().map(super::Whole::mean_days);
    let effect = match (days(&whole), days(&outcome.whole)) {
        (Some(now), Some(before)) => now / before,
        _ => layout.step.seconds / best.step.seconds,
    } - 1.0;
    let strange = planning.strange(&layout.layout);
    Ok((Variation { change: change.name.clone(), layout, whole, effect, choice }, strange))
}

/// Warns of links that are faster, and a step that takes longer.
fn worse(change: &Change<Key>, variation: &Variation) -> Option<String> {
    let faster = |(key, to): &(Key, To)| {
        matches!(key, Key::Machine(machine::Key::Rate(_))) && matches!(to, To::Times(times) if *times > 1.0)
    };
    if variation.effect < LONGER || !change.settings.iter().all(faster) {
        return None;
    }
    let (change, choice, percent) = (&change.name, &variation.choice, 100.0 * variation.effect);
    let why = if choice.is_empty() { String::new() } else { format!(", as NCCL chooses otherwise: {choice}") };
    Some(format!("{change}: links are faster, and it takes {percent:.1}% longer{why}"))
}

/// The outcome with all that was asked to be changed of its best layout.
///
/// # Errors
/// Variations of which none can be simulated.
pub(super) fn varied(
    request: &Request,
    place: (&Site, &Calls<'_>),
    mut outcome: Outcome,
    changes: &Changes,
) -> Result<Outcome, Error> {
    let all = |changes: &[Change<Key>]| -> Vec<Result<(Variation, Option<String>), Error>> {
        changes.par_iter().map(|change| simulated(request, place, &outcome, change)).collect()
    };
    let (sensitivities, variations) = (all(&changes.sensitivities), all(&changes.variations));
    let both = [(false, &changes.sensitivities, sensitivities), (true, &changes.variations, variations)];
    for (wanted, changes, results) in both {
        let mut refused = None;
        for (change, result) in changes.iter().zip(results) {
            match result {
                Ok((variation, strange)) => {
                    outcome.warnings.extend(worse(change, &variation));
                    let known = |note: &String| wanted && !outcome.notes.contains(note);
                    outcome.notes.extend(strange.filter(known));
                    if wanted { &mut outcome.variations } else { &mut outcome.sensitivities }.push(variation);
                }
                // Our own faults, and whoever stops us, are no answer.
                Err(error) if error.code() != 2 => return Err(error),
                Err(error) => {
                    let hint = if let Error::Usage { hint, .. } = &error { hint.clone() } else { None };
                    let message = format!("{}: {error}", change.name);
                    outcome.notes.push(format!("not varied: {message}"));
                    outcome.refused.extend(wanted.then(|| message.clone()));
                    refused.get_or_insert(Error::Usage { message, hint });
                }
            }
        }
        if let Some(error) = refused.filter(|_| wanted && outcome.variations.is_empty()) {
            return Err(error);
        }
    }
    outcome.sensitivities.sort_by(|a, b| b.effect.abs().total_cmp(&a.effect.abs()));
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key means one thing, and all that the table of sensitivities changes is one.
    #[test]
    fn keys_are_told_apart() {
        let constants = machine::Key::all().map(|known| known.0).chain(compute::Constant::ALL.iter().map(|c| c.name()));
        let names: Vec<&str> = KEYS.iter().map(|known| known.0).chain(LAYOUT).chain(FIELDS).chain(constants).collect();
        for name in &names {
            assert_eq!(keys(name).unwrap().len(), 1, "{name}");
        }
        assert!(FIELDS.iter().all(|field| fields::NAMES.contains(field)));
        for (name, settings) in &SENSITIVITIES {
            assert!(settings.iter().all(|(key, _)| !keys(key).unwrap().is_empty()), "{name}");
        }
        assert!(keys("latency.network*").unwrap().len() > 4 && keys("latency.netwrk*").is_err());
    }
}
