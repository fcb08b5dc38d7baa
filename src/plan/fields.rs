//! Fields of a request by name: those that flags, request files and `--vary` have in common.

use collcast_scenarios::memory::Framework;
use collcast_scenarios::parallel::Recompute;
use collcast_scenarios::work::Dispatch;
use collcast_sim::collective::nearest;
use collcast_sim::compute::Precision;
use collcast_sim::units::parse_rate;

use super::request::Request;
use crate::error::Error;
use crate::site::variables;
use crate::values::{counts, time_or_bare};

/// Their names: of flags without the dashes; files may write `_` for `-`.
pub const NAMES: [&str; 28] = [
    "model",
    "gpu",
    "profile",
    "nccl",
    "env",
    "layout",
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
    "tokens",
    "price",
    "failures",
    "spares",
    "repair",
    "restart",
    "storage",
    "checkpoint-every",
    "blocking-checkpoints",
    "top",
];

/// Sets a field of a request to what a text says.
///
/// # Errors
/// What is expected in its place; the nearest name where there is none of this one.
pub fn set(request: &mut Request, name: &str, text: &str) -> Result<(), String> {
    let text = text.trim();
    let upkeep = &mut request.upkeep;
    match name {
        "model" => text.clone_into(&mut request.model),
        "gpu" => request.gpu = Some(text.to_owned()),
        "profile" => request.site.profiles = text.split(',').map(|one| one.trim().to_owned()).collect(),
        "nccl" => request.site.nccl = Some(text.to_owned()),
        "env" => request.site.env.extend(variables(text).map_err(|e| e.to_string())?),
        "layout" => request.layout = Some(text.to_owned()),
        "micro-batch" => request.micro_batch = Some(whole(text)?),
        "global-batch" => request.global_batch = Some(whole(text)?),
        "seq" => request.sequence = Some(whole(text)?),
        "precision" => request.precision = named(text, &Precision::ALL.map(|p| (p.name(), p)))?,
        "param-gather" => {
            let known = [Precision::Bf16, Precision::Fp8].map(|precision| (precision.name(), precision));
            request.param_gather = Some(named(text, &known)?);
        }
        "recompute" => {
            request.recompute =
                Some(Recompute::parse(text).ok_or_else(|| format!("expected {}", Recompute::EXPECTED))?);
        }
        "zero" => request.zero = Some(named(text, &[("0", 0), ("1", 1), ("2", 2), ("3", 3)])?),
        "framework" => request.framework = Framework::parse(text)?,
        "overlap-tensor" => request.overlap_tensor = flag(text)?,
        "overlap-experts" => request.overlap_experts = flag(text)?,
        "fuse-experts" => request.fuse_experts = flag(text)?,
        "dispatch" => request.dispatch = Some(named(text, &Dispatch::ALL)?),
        "tokens" => request.tokens = Some(tokens(text)?),
        "price" => {
            request.price = Some(price(text, request.machine())?);
            request.prices = text.contains('=').then(|| text.to_owned());
        }
        "failures" => upkeep.failures = Some(text.to_owned()),
        "spares" => upkeep.spares = Some(whole(text)?),
        "repair" => upkeep.repair = Some(time_or_bare(text, 3600.0)?),
        "restart" => upkeep.restart = Some(time_or_bare(text, 1.0)?),
        "storage" => upkeep.storage = Some(parse_rate(text).map_err(|e| e.to_string())?.get() as f64),
        "checkpoint-every" => {
            upkeep.checkpoint_every = Some(time_or_bare(text, 60.0)?).filter(|every| *every > 0.0);
            if upkeep.checkpoint_every.is_none() {
                return Err("expected a time above 0".to_owned());
            }
        }
        "blocking-checkpoints" => upkeep.blocking = flag(text)?,
        "top" => {
            request.most = whole::<usize>(text)?;
            if !(1..=MOST).contains(&request.most) {
                return Err(format!("expected 1 to {MOST}"));
            }
        }
        other => {
            let near = nearest(other, NAMES).map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
            return Err(format!("not known{near}; known: {}", NAMES.join(", ")));
        }
    }
    Ok(())
}

/// Layouts of an answer at most: more than anybody reads.
const MOST: usize = 1000;
/// Options that are searched at most: each takes seconds.
const MOST_OPTIONS: usize = 200;

/// What several requests have in common, or one of them says over that.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// What it is called.
    pub name: Option<String>,
    /// Machines.
    pub on: Vec<String>,
    /// Counts of GPUs, as a list.
    pub gpus: Option<String>,
    /// Other fields by name, and what they are to be.
    pub fields: Vec<(&'static str, String)>,
}

impl Layer {
    /// With another layer over it, whose fields win.
    #[must_use]
    pub fn under(&self, over: &Self) -> Self {
        let or = |own: &Option<String>, below: &Option<String>| own.clone().or_else(|| below.clone());
        Self {
            name: or(&over.name, &self.name),
            on: if over.on.is_empty() { self.on.clone() } else { over.on.clone() },
            gpus: or(&over.gpus, &self.gpus),
            fields: self.fields.iter().chain(&over.fields).cloned().collect(),
        }
    }

    /// A request for each machine and count, each of them over `base`.
    fn requests(&self, base: &Request) -> Result<Vec<Request>, Error> {
        let Some(gpus) = &self.gpus else {
            return Err(Error::usage("nothing says how many GPUs there are", "give --gpus, such as --gpus 1024"));
        };
        let counts = counts(gpus)?;
        let machines = if self.on.is_empty() { vec![base.machine().to_owned()] } else { self.on.clone() };
        most(counts.len() * machines.len())?;
        let mut all = Vec::new();
        for machine in &machines {
            for &gpus in &counts {
                let mut request = Request { gpus, ..base.clone() };
                request.site.topology = Some(machine.clone());
                for (name, text) in &self.fields {
                    set(&mut request, name, text).map_err(|e| refused(name, text, &e))?;
                }
                if request.model.is_empty() {
                    return Err(Error::usage("no model is named", "give one, such as llama3-70b"));
                }
                request.name = match &self.name {
                    Some(name) if machines.len() * counts.len() > 1 => Some(format!("{name}: {gpus} {machine}")),
                    name => name.clone(),
                };
                all.push(request);
            }
        }
        Ok(all)
    }
}

/// The requests of several options, one for each machine and count, each of them over `base`.
///
/// # Errors
/// A field that cannot be read, no model, no count, or more of them than are searched.
pub fn requests(options: &[Layer], base: &Request) -> Result<Vec<Request>, Error> {
    let mut all = Vec::new();
    for option in options {
        all.append(&mut option.requests(base)?);
        most(all.len())?;
    }
    Ok(all)
}

/// Refuses more options than are searched.
fn most(options: usize) -> Result<(), Error> {
    match options > MOST_OPTIONS {
        true => Err(Error::usage(
            format!("these are {options} options; at most {MOST_OPTIONS} are searched"),
            "name fewer machines or counts",
        )),
        false => Ok(()),
    }
}

/// A field that cannot be what it was told to be.
fn refused(name: &str, text: &str, why: &str) -> Error {
    Error::usage(format!("--{name}: `{text}`: {why}"), "`collcast plan --help` says what each takes")
}

/// A value by its name.
fn named<T: Copy>(given: &str, known: &[(&'static str, T)]) -> Result<T, String> {
    let names = || known.iter().map(|k| k.0);
    known.iter().find(|k| k.0.eq_ignore_ascii_case(given)).map(|k| k.1).ok_or_else(|| {
        let near = nearest(given, names()).map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
        format!("not known{near}; known: {}", names().collect::<Vec<_>>().join(", "))
    })
}

fn whole<T: std::str::FromStr>(given: &str) -> Result<T, String> {
    given.parse().map_err(|_| "expected a whole number".to_owned())
}

fn flag(given: &str) -> Result<bool, String> {
    named(given, &[("true", true), ("on", true), ("false", false), ("off", false)])
}

/// A number and the unit behind it, which may be empty.
fn split(given: &str) -> (Option<f64>, &str) {
    let unit = match given.parse::<f64>() {
        Ok(_) => given.len(),
        Err(_) => given.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len(),
    };
    let number = given[..unit].trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    (number, &given[unit..])
}

/// A count, where K, M, B and T are powers of a thousand.
pub(super) fn counted(given: &str) -> Option<f64> {
    let (number, unit) = split(given);
    let factor =
        named(&unit.to_ascii_uppercase(), &[("", 1.0), ("K", 1e3), ("M", 1e6), ("B", 1e9), ("G", 1e9), ("T", 1e12)]);
    Some(number? * factor.ok()?).filter(|count| *count <= 1e18)
}

/// A count of tokens.
fn tokens(given: &str) -> Result<f64, String> {
    let wrong = || "expected a number of tokens above 0, such as 15T or 300B".to_owned();
    counted(given).filter(|count| *count > 0.0).ok_or_else(wrong)
}

/// A price, or that of a machine in a list such as `dgx-h100=2.5,dgx-b200=4`.
pub(crate) fn price(given: &str, machine: &str) -> Result<f64, String> {
    let mut of_machine = given.split(',').filter_map(|one| one.split_once('=')).filter(|(of, _)| of.trim() == machine);
    let own = if given.contains('=') { of_machine.next().map(|price| price.1) } else { Some(given) };
    if of_machine.next().is_some() {
        return Err(format!("`{machine}` has two prices"));
    }
    let Some(own) = own else { return Err(format!("there is no price of `{machine}` in it")) };
    let number = own.trim().parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    number.ok_or_else(|| "expected a number from 0 on, such as 2.5, or dgx-h100=2.5,dgx-b200=4".to_owned())
}
