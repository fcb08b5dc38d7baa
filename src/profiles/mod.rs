//! Profiles: which there are, which is taken for a machine where none is named, and what sets two apart.
//!
//! ```
//! use collcast::profiles::list;
//! let all = list(&collcast::SiteSpec::new("dgx-a100").nodes(2))?;
//! let taken = all.iter().find(|profile| profile.taken.is_some()).unwrap();
//! assert_eq!(taken.name, "a100-ib-published");
//! # Ok::<(), collcast::Error>(())
//! ```

mod published;
mod shown;

use std::path::{Path, PathBuf};

use collcast_reports::model::Input;
use collcast_sim::profile::{Layer, Profile};
use collcast_sim::topology::Topology;
use collcast_topologies::cluster::profile_for;
use serde::Serialize;

use crate::error::Error;
use crate::files::{content_hash, read_text};
pub use published::{Published, fitted_to_published, published_for};
pub(crate) use published::{families, networks};
pub use shown::{Difference, Known, Value, all_values, differences, list, values};

/// The file that is taken by itself beside a topology file.
pub const BESIDE: &str = "profile.toml";

/// Where a profile is from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The program brings it along.
    BuiltIn,
    /// A file.
    File(PathBuf),
}

/// Where profiles of a name are looked for, before the built-in ones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Folders {
    /// The folder of the topology file, where the machine is from one.
    pub topology: Option<PathBuf>,
    /// The user's own, the first one first.
    pub own: Vec<PathBuf>,
}

impl Folders {
    /// Those of a machine, by its built-in name or file.
    pub fn of(topology: Option<&str>, own: &[PathBuf]) -> Self {
        let file = topology.map(Path::new).filter(|path| path.is_file());
        Self { topology: file.and_then(Path::parent).map(Path::to_owned), own: own.to_owned() }
    }

    fn each(&self) -> impl Iterator<Item = &PathBuf> {
        self.topology.iter().chain(&self.own)
    }

    /// The profiles in the user's own folders, by name; one in an earlier folder hides those of its name in later ones.
    ///
    /// # Errors
    /// A folder or a profile that cannot be read.
    fn profiles(&self) -> Result<Vec<PathBuf>, Error> {
        let mut found: Vec<PathBuf> = Vec::new();
        for folder in self.own.iter().filter(|folder| folder.is_dir()) {
            let entries = std::fs::read_dir(folder).map_err(|source| {
                let (what, path) = ("read the profiles", folder.clone());
                Error::File { what, path, source }
            })?;
            let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
            files.retain(|f| f.extension().is_some_and(|e| e == "toml"));
            files.retain(|f| found.iter().all(|known| known.file_name() != f.file_name()));
            files.sort();
            found.extend(files);
        }
        Ok(found)
    }

    /// The profile of the user's own that says that this is its name.
    fn named(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        for path in self.profiles()? {
            let layer = Layer::stacked(&read_text("read the profile", &path)?, &path.display().to_string());
            if layer.is_ok_and(|layer| layer.name == name) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Where a profile is, by name or as the path of a file.
    fn place(&self, name: &str) -> Result<Place, Error> {
        let beside = |folder: &PathBuf| {
            let path = folder.join(format!("{}.toml", name.strip_suffix(".toml").unwrap_or(name)));
            path.is_file().then_some(path)
        };
        let is_path = name.ends_with(".toml") || name.contains('/');
        match () {
            () if is_path && Path::new(name).is_file() => Ok(Place::File(name.into())),
            () if let Some(path) = self.each().find_map(beside) => Ok(Place::File(path)),
            () if is_path => Ok(Place::File(name.into())),
            // What a list calls it, where its file is called otherwise. A built-in profile keeps its name.
            () if Profile::builtin_text(name).is_none()
                && let Some(path) = self.named(name)? =>
            {
                Ok(Place::File(path))
            }
            () => Profile::builtin(name).map(|_| Place::BuiltIn).map_err(Error::from),
        }
    }
}

/// A profile that was read, and why where nobody named it.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The profile.
    pub profile: Profile,
    /// The files that were read, with hashes.
    pub sources: Vec<Input>,
    /// Why it was taken, where neither a user nor the machine named it.
    pub why: Option<String>,
}

/// What follows the name of a profile that no file holds, in place of its path.
const BUILT_IN: &str = " (built-in)";

/// The profiles of these names, layered over `prior`; the later wins per constant.
///
/// # Errors
/// A file that cannot be read; a name that does not exist.
pub fn layered(names: &[String], folders: &Folders) -> Result<(Profile, Vec<Input>), Error> {
    let mut profile = Profile::builtin("prior")?;
    let mut sources = Vec::new();
    for name in names {
        let (text, path) = match folders.place(name)? {
            Place::BuiltIn => (Profile::builtin_text(name).unwrap_or_default().to_owned(), None),
            Place::File(path) => (read_text("read the profile", &path)?, Some(path.display().to_string())),
        };
        profile = profile.layered(Layer::stacked(&text, path.as_deref().unwrap_or(name))?);
        let path = path.unwrap_or_else(|| format!("{name}{BUILT_IN}"));
        sources.push(Input { name: "profile".to_owned(), path: Some(path), hash: content_hash(text.as_bytes()) });
    }
    Ok((profile, sources))
}

/// The profiles named, or else the best there is for a machine: one beside its file, the user's own that was fitted to
/// this machine, and the one that the machine names, or that is of such GPUs. Over this lies one that is fitted to published
/// runs of such machines, where it is surely [nearer](Published::nearer) on those that it had not seen.
///
/// # Errors
/// A file that cannot be read; a name that does not exist.
pub fn take(names: &[String], topology: &Topology, folders: &Folders) -> Result<Taken, Error> {
    let chosen = if names.is_empty() { choose(topology, folders)? } else { (names.to_vec(), None) };
    let (profile, sources) = layered(&chosen.0, folders)?;
    Ok(Taken { profile, sources, why: chosen.1 })
}

/// The names to take where none is given, and why.
fn choose(topology: &Topology, folders: &Folders) -> Result<(Vec<String>, Option<String>), Error> {
    let one = |path: &Path, why: String| (vec![path.display().to_string()], Some(why));
    if let Some(path) = folders.topology.as_ref().map(|folder| folder.join(BESIDE)).filter(|path| path.is_file()) {
        let layer = read(&path)?;
        if layer.machines.contains(&topology.name) || (layer.machines.is_empty() && same_gpus(&layer, topology)) {
            let why = format!("profile {} is taken: `{}` lies beside the topology file", layer.name, path.display());
            return Ok(one(&path, why));
        }
    }
    for path in folders.profiles()? {
        let layer = read(&path)?;
        if layer.machines.contains(&topology.name) {
            let (name, file) = (&layer.name, path.display());
            let why = format!("profile {name} is taken: `{file}` was fitted to measurements of `{}`", topology.name);
            return Ok(one(&path, why));
        }
    }
    let (own, hardware) = match (&topology.profile, profile_for(topology)) {
        (Some(named), _) => (named.clone(), None),
        (None, Some((fits, all))) => {
            let of = if all { "hardware" } else { "hardware of the first of several kinds of hosts" };
            (fits.to_owned(), Some(format!("profile {fits} is taken: it matches the {of}")))
        }
        (None, None) => ("prior".to_owned(), None),
    };
    let published = published_for(topology);
    let why =
        [hardware, published.map(Published::why)].into_iter().flatten().reduce(|own, over| format!("{own}; {over}"));
    Ok((std::iter::once(own).chain(published.map(|published| published.name.clone())).collect(), why))
}

fn read(path: &Path) -> Result<Layer, Error> {
    let text = read_text("read the profile", path)?;
    Ok(Layer::stacked(&text, &path.display().to_string())?)
}

/// Whether a profile was made on GPUs of the families that have ranks.
fn same_gpus(layer: &Layer, topology: &Topology) -> bool {
    let families = families(topology);
    !families.is_empty() && families.iter().all(|family| layer.gpus.contains(family))
}
