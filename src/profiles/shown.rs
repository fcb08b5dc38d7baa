//! What profiles are made of.

use std::collections::BTreeSet;
use std::path::PathBuf;

use collcast_sim::profile::{Constant, Layer, OriginKind, Profile};
use serde::Serialize;

use super::published::all;
use super::{Folders, Place, Taken, read, take};
use crate::error::Error;
use crate::site::SiteSpec;
use crate::values::plural;

/// A profile that there is.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Where it is from.
    pub place: Place,
    /// Families of the GPUs that it was made on; none where all of it is cited.
    pub gpus: Vec<String>,
    /// Machines whose measurements it was fitted to, where it says so.
    pub machines: Vec<String>,
    /// Fewest and most ranks.
    pub ranks: Option<[u32; 2]>,
    /// Whether it was made over several hosts.
    pub across_hosts: bool,
    /// Measured rows that it was fitted to.
    pub rows: usize,
    /// How far large and small sizes of runs are off whose publisher it had not seen, as fractions, where that is known.
    pub unseen_error: Option<(f64, f64)>,
    /// Runs and publishers behind that.
    pub unseen: Option<(usize, usize)>,
    /// Why it is taken for the machine that was asked about.
    pub taken: Option<String>,
}

/// The profiles that there are, the user's own first; of a machine, where one is named, which is taken and why.
///
/// # Errors
/// A machine, a folder or a profile that cannot be read.
pub fn list(site: &SiteSpec) -> Result<Vec<Known>, Error> {
    let folders = Folders::of(site.topology.as_deref(), &site.profile_folders);
    let mut known = Vec::new();
    let beside = folders.topology.iter().map(|folder| folder.join(super::BESIDE)).filter(|path| path.is_file());
    for path in beside.chain(folders.profiles()?) {
        known.push(Known::of(&read(&path)?, Place::File(path)));
    }
    for name in Profile::builtin_names() {
        let text = Profile::builtin_text(name).unwrap_or_default();
        known.push(Known::of(&Layer::stacked(text, name)?, Place::BuiltIn));
    }
    if site.topology.is_some() {
        let topology = site.topology()?;
        let Taken { profile, sources, why } = take(&[], &topology, &folders)?;
        let is_file = |path: &String| !path.ends_with(super::BUILT_IN);
        let path = sources.last().and_then(|source| source.path.clone()).filter(is_file).map(PathBuf::from);
        let place = path.map_or(Place::BuiltIn, Place::File);
        let named = || match &topology.profile {
            Some(_) => format!("profile {} is taken: `{}` names it", profile.name, topology.name),
            None => format!(
                "profile {} is taken for {}: `{}` names none",
                profile.name,
                plural(topology.hosts().len(), "host", "hosts"),
                topology.name
            ),
        };
        let why = why.unwrap_or_else(named);
        let is_it = |known: &&mut Known| known.name == profile.name && known.place == place;
        known.iter_mut().filter(is_it).for_each(|known| known.taken = Some(why.clone()));
    }
    Ok(known)
}

impl Known {
    fn of(layer: &Layer, place: Place) -> Self {
        let published = all().iter().find(|published| published.name == layer.name && place == Place::BuiltIn);
        Self {
            name: layer.name.clone(),
            place,
            gpus: layer.gpus.clone(),
            machines: layer.machines.clone(),
            ranks: layer.ranks,
            across_hosts: layer.across_hosts,
            rows: layer.data.iter().map(|data| data.rows).sum(),
            unseen_error: published.map(|p| (p.unseen.large.exp_m1(), p.unseen.small.exp_m1())),
            unseen: published.map(|published| (published.runs, published.publishers)),
            taken: None,
        }
    }
}

/// A constant of a profile.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Value {
    /// Its name in files.
    pub name: &'static str,
    /// Its value, in the unit that its name's declaration gives.
    pub value: f64,
    /// 90% interval of a fitted value.
    pub interval: Option<[f64; 2]>,
    /// Kind of origin.
    pub origin: OriginKind,
    /// File, row, paper or data sheet.
    pub source: String,
}

/// The constants of a profile: those that lie over `prior`, or all of them.
///
/// # Errors
/// No such profile.
pub fn values(name: &str, folders: &Folders, all: bool) -> Result<(Profile, Vec<Value>), Error> {
    let (profile, _) = super::layered(&[name.to_owned()], folders)?;
    let prior = Profile::builtin("prior")?;
    let own: BTreeSet<Constant> =
        Constant::ALL.iter().copied().filter(|&c| all || name == "prior" || profile[c] != prior[c]).collect();
    let values = of(&profile, own);
    Ok((profile, values))
}

/// Every constant of a profile that was read.
pub fn all_values(profile: &Profile) -> Vec<Value> {
    of(profile, Constant::ALL.iter().copied())
}

fn of(profile: &Profile, constants: impl IntoIterator<Item = Constant>) -> Vec<Value> {
    let value = |constant: Constant| {
        let parameter = &profile[constant];
        Value {
            name: constant.name(),
            value: parameter.value,
            interval: parameter.interval,
            origin: parameter.origin,
            source: parameter.source.clone(),
        }
    };
    constants.into_iter().map(value).collect()
}

/// A constant that two profiles have with other values.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// Its name in files.
    pub name: &'static str,
    /// The value of the first.
    pub before: f64,
    /// The value of the second.
    pub after: f64,
    /// Kinds of their origins.
    pub origins: (OriginKind, OriginKind),
}

/// The constants by which two profiles differ, those that differ most first.
///
/// # Errors
/// No such profile.
pub fn differences(before: &str, after: &str, folders: &Folders) -> Result<Vec<Difference>, Error> {
    let of = |names: &str| {
        let layers: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
        super::layered(&layers, folders).map(|(profile, _)| profile)
    };
    let (a, b) = (of(before)?, of(after)?);
    let differ = |&constant: &Constant| {
        let (before, after) = (&a[constant], &b[constant]);
        (before.value != after.value).then_some(Difference {
            name: constant.name(),
            before: before.value,
            after: after.value,
            origins: (before.origin, after.origin),
        })
    };
    let mut differences: Vec<Difference> = Constant::ALL.iter().filter_map(differ).collect();
    let apart = |d: &Difference| (d.after / d.before).ln().abs();
    differences.sort_by(|x, y| apart(y).total_cmp(&apart(x)).then(x.name.cmp(y.name)));
    Ok(differences)
}
