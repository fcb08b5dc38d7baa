//! A machine with something changed: rates of its links, NICs that its hosts use, constants of its profile.

use collcast_sim::collective::nearest;
use collcast_sim::doctor::{Fault, Part, with_rate};
use collcast_sim::profile::{Constant, Spec};
use collcast_sim::topology::Topology;
use collcast_sim::units::{Bandwidth, parse_rate};

use crate::error::Error;
use crate::site::Site;

/// Something of a machine that may be changed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Key {
    /// The rate of some links.
    Rate(Part),
    /// NICs that each host uses.
    Nics,
    /// A constant of the network's profile.
    Constant(Constant),
}

/// Keys that are no constants.
pub(crate) const KEYS: [(&str, Key); 5] = [
    ("nic.rate", Key::Rate(Part::Nic)),
    ("nvlink.rate", Key::Rate(Part::Nvlink)),
    ("pcie.rate", Key::Rate(Part::Pcie)),
    ("fabric.rate", Key::Rate(Part::Fabric)),
    ("nics", Key::Nics),
];

/// What a key is to be.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum To {
    /// This.
    Set(String),
    /// So many times what it is.
    Times(f64),
    /// So much more than it is.
    Plus(f64),
}

/// A change with its name.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Change<K> {
    pub(crate) name: String,
    pub(crate) settings: Vec<(K, To)>,
}

/// All that carries data between hosts, twice as fast: NICs, the PCIe that leads to them, and switches.
pub(crate) const NETWORK_TWICE: &[(&str, To)] =
    &[("nic.rate", To::Times(2.0)), ("pcie.rate", To::Times(2.0)), ("fabric.rate", To::Times(2.0))];

impl Key {
    /// All of them with their names.
    pub(crate) fn all() -> impl Iterator<Item = (&'static str, Self)> {
        KEYS.into_iter().chain(Constant::ALL.iter().map(|&constant| (constant.name(), Self::Constant(constant))))
    }

    /// The one of a name, for [`crossed`].
    ///
    /// # Errors
    /// Another name, with the nearest.
    pub(crate) fn of(name: &str) -> Result<Vec<Self>, Error> {
        Self::all().find(|known| known.0 == name).map(|known| vec![known.1]).ok_or_else(|| {
            let near = nearest(name, Self::all().map(|known| known.0));
            let near = near.map_or_else(String::new, |near| format!(": did you mean `{near}`?"));
            let known = KEYS.map(|known| known.0).join(" ");
            let hint = format!("keys: {known}, and the constants that `collcast profile show` lists");
            Error::usage(format!("--vary {name}: there is no such key{near}"), hint)
        })
    }

    /// Changes a machine.
    ///
    /// # Errors
    /// A value that the machine cannot have, as a sentence.
    pub(crate) fn set(self, site: &mut Site, to: &To) -> Result<(), String> {
        match self {
            Self::Rate(part) => site.topology = rated(&site.topology, part, to)?,
            Self::Nics => {
                crosses(&site.topology)?;
                let now = site.topology.hosts().iter().map(|host| host.nics.len()).min().unwrap_or(0);
                let used = to.of(now as f64)?;
                if !(1.0..=now as f64).contains(&used) || used.fract() != 0.0 {
                    return Err(format!("a host has {now} NICs, and would use {used}: give a whole number from 1"));
                }
                let changed = Fault::NicsUsed(used as u32).applied(&site.topology, &site.profile, &[]);
                if let Some(changed) = changed.map_err(|e| e.to_string())? {
                    site.topology = changed.topology;
                }
            }
            Self::Constant(constant) => {
                if constant.name().contains("network") {
                    crosses(&site.topology)?;
                }
                let value = to.constant(constant.spec(), site.profile[constant].value)?;
                site.profile.parameters.set(constant, value);
            }
        }
        Ok(())
    }
}

/// What texts such as `nic.rate=200Gb/s,800Gb/s` change: every value of one with every value of the others, `most` at most.
///
/// # Errors
/// A text without a value, a key that `keys` does not know, or too many of them.
pub(crate) fn crossed<K: Copy>(
    texts: &[String],
    most: usize,
    keys: impl Fn(&str) -> Result<Vec<K>, Error>,
) -> Result<Vec<Change<K>>, Error> {
    let mut variations = Vec::new();
    for text in texts {
        let Some((key, values)) = text.split_once('=') else {
            let way = "give --vary KEY=A,B, such as --vary nic.rate=200Gb/s,800Gb/s or --vary gpu.memory=x1.2";
            return Err(Error::usage(format!("--vary {text} has no value"), way));
        };
        let keys = keys(key.trim())?;
        let below = if variations.is_empty() {
            vec![Change { name: String::new(), settings: Vec::new() }]
        } else {
            std::mem::take(&mut variations)
        };
        for change in &below {
            for value in values.split(',').map(str::trim) {
                let comma = if change.name.is_empty() { "" } else { ", " };
                let name = format!("{}{comma}{}={value}", change.name, key.trim());
                let more = keys.iter().map(|&key| (key, to(value)));
                variations.push(Change { name, settings: change.settings.iter().cloned().chain(more).collect() });
            }
        }
        if variations.len() > most {
            return Err(Error::usage(
                format!("--vary makes {} variations; at most {most} are simulated", variations.len()),
                "vary fewer values",
            ));
        }
    }
    Ok(variations)
}

/// Reads a value: `x2` and `+10` are of what it is.
fn to(text: &str) -> To {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    match (text.strip_prefix('x').and_then(number), text.starts_with(['+', '-']).then(|| number(text)).flatten()) {
        (Some(times), _) => To::Times(times),
        (_, Some(plus)) => To::Plus(plus),
        _ => To::Set(text.to_owned()),
    }
}

impl To {
    /// A number that is `now`, where it is to be.
    pub(crate) fn of(&self, now: f64) -> Result<f64, String> {
        let value = match self {
            Self::Times(times) => now * times,
            Self::Plus(plus) => now + plus,
            Self::Set(text) => {
                text.parse().map_err(|_| format!("`{text}` is no number; x2 and +10 are of what it is"))?
            }
        };
        if value.is_finite() { Ok(value) } else { Err("that is no finite number".to_owned()) }
    }

    /// The value of a constant.
    pub(crate) fn constant(&self, spec: Spec, now: f64) -> Result<f64, String> {
        let value = self.of(now)?;
        let [least, most] = spec.bounds;
        match (least..=most).contains(&value) {
            true => Ok(value),
            false => Err(format!("it would be {value} {}, and can be {least} to {most}", spec.unit)),
        }
    }
}

/// Why nothing of the network can be changed.
pub(crate) const ONE_HOST: &str = "the job is on one host, and nothing crosses the network";

/// Refuses a job that no network carries anything for.
fn crosses(topology: &Topology) -> Result<(), String> {
    match topology.hosts().len() {
        0 | 1 => Err(ONE_HOST.to_owned()),
        _ => Ok(()),
    }
}

/// A machine with another rate of some links.
fn rated(topology: &Topology, part: Part, to: &To) -> Result<Topology, String> {
    if matches!(part, Part::Nic | Part::Fabric) {
        crosses(topology)?;
    }
    let set = match to {
        To::Set(text) => Some(parse_rate(text).map_err(|e| e.to_string())?),
        To::Times(times) if *times > 0.0 => None,
        To::Times(_) | To::Plus(_) => return Err("a rate is given as 400Gb/s, or as x2 of what it is".to_owned()),
    };
    let times = |rate: Bandwidth| {
        let rate = to.of(rate.get() as f64).map_or(rate.get(), |rate| rate as u64);
        Bandwidth::new(rate.max(1))
    };
    let with = |at: &dyn Fn(Bandwidth) -> Bandwidth| with_rate(topology, part, at, None).map_err(|e| e.to_string());
    let other = with(&|rate| Bandwidth::new(rate.get() / 2 + 1).unwrap_or(rate))?;
    if other.links().eq(topology.links()) {
        return Err("the machine has no such links".to_owned());
    }
    with(&|rate| set.or_else(|| times(rate)).unwrap_or(rate))
}
