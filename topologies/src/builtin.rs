//! The machines that are known by name: topology files like any other, compiled in.

use std::path::Path;

use collcast_sim::topology::Topology;

use crate::cluster::ClusterSpec;
use crate::error::{Diagnostic, TopologiesError, quote};
use crate::file;

pub use crate::texts::{names, text};

/// One line about a built-in; none for an unknown name.
pub fn describe(name: &str) -> Option<String> {
    spec(name).ok().map(|s| s.description)
}

/// A built-in as checked values.
///
/// # Errors
/// [`TopologiesError::UnknownName`] with a did-you-mean.
pub fn spec(name: &str) -> Result<ClusterSpec, TopologiesError> {
    let text = text(name).ok_or_else(|| unknown(name))?;
    let file = format!("<built-in {name}>");
    file::read(text, &file, &mut |_| Err(std::io::Error::other("a built-in names no file")))
}

fn unknown(name: &str) -> TopologiesError {
    let near = collcast_sim::collective::nearest(name, names());
    TopologiesError::UnknownName(Box::new(Diagnostic {
        message: format!("`{}` is neither a built-in topology nor a file", quote(name)),
        file: String::new(),
        at: None,
        label: near.map_or_else(String::new, |n| format!("did you mean `{n}`?")),
        hint: format!("built-ins: {}; files end in .toml, .xml or .txt", names().join(", ")),
    }))
}

/// A built-in, with other counts where given.
///
/// - `nodes`: number of hosts; the product's network joins them.
/// - `gpus`: keeps the first GPUs of each host.
///
/// # Errors
/// An unknown name, or a count of zero or too many.
pub fn load(name: &str, nodes: Option<u32>, gpus: Option<u32>) -> Result<Topology, TopologiesError> {
    resize(spec(name)?, nodes, gpus)?.build()
}

/// What a user names: a built-in, or the path of a .toml, .xml or .txt file.
///
/// # Errors
/// As [`load`] and [`file::load_path`].
pub fn load_any(arg: &str, nodes: Option<u32>, gpus: Option<u32>) -> Result<Topology, TopologiesError> {
    resize(spec_any(arg)?, nodes, gpus)?.build()
}

/// [`load_any`] without drawing: for the fabric's routing, and to change more.
///
/// # Errors
/// As [`load_any`].
pub fn spec_any(arg: &str) -> Result<ClusterSpec, TopologiesError> {
    if text(arg).is_some() {
        return spec(arg);
    }
    let path = Path::new(arg);
    let like_a_file = path.extension().is_some() || arg.contains(['/', '\\']) || path.exists();
    if like_a_file { file::load_path(path) } else { Err(unknown(arg)) }
}

/// Applies `--nodes` and `--gpus`.
///
/// # Errors
/// As [`ClusterSpec::with_nodes`] and [`ClusterSpec::with_gpus`].
pub fn resize(spec: ClusterSpec, nodes: Option<u32>, gpus: Option<u32>) -> Result<ClusterSpec, TopologiesError> {
    let spec = match gpus {
        Some(gpus) => spec.with_gpus(gpus)?,
        None => spec,
    };
    match nodes {
        Some(nodes) => spec.with_nodes(nodes),
        None => Ok(spec),
    }
}
