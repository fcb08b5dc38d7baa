//! GPUs and tables that users name.

use std::path::{Path, PathBuf};

use collcast_sim::compute::fit::Sample;
use collcast_sim::compute::{Compute, Constant};
use collcast_sim::hash::fnv1a;
use collcast_sim::ids::Rank;
use collcast_sim::topology::Topology;

use super::columns::{headers, tables_in};
use super::read::{Read, Trouble, read};
use super::table::Table;
use crate::error::Error;
use crate::files::read_text;

/// A GPU: one that the program knows (`h100`, `H200`), or a profile in a file.
///
/// # Errors
/// An unknown name, with the one that is likely meant; a file that cannot be read.
pub fn gpu(name: &str) -> Result<Compute, Error> {
    let path = Path::new(name);
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) || path.is_file() {
        return Ok(Compute::parse(&read_text("read the GPU's profile", path)?, name)?);
    }
    Ok(Compute::builtin(name)?)
}

/// The GPU of a machine: that which `named` says, else the profile of its kind.
///
/// # Errors
/// As of [`gpu`]; a machine of GPUs that no profile is of.
pub fn gpu_of(topology: &Topology, named: Option<&str>) -> Result<Compute, Error> {
    let kind = topology.gpu(topology.gpu_of(Rank(0))).map(|g| g.model.clone()).unwrap_or_default();
    let mut known = Compute::builtin_names().filter_map(|name| Compute::builtin(name).ok());
    let own = known.find(|gpu| gpu.is_of(&kind));
    if let Some(name) = named {
        let mut gpu = gpu(name)?;
        // Kernels as another GPU's; the memory is that of the machine's, unless a file says how much it is.
        let capacity = own.as_ref().map(Compute::capacity).or_else(|| memory_of(&kind));
        if let Some(capacity) = capacity.filter(|_| Compute::builtin_names().any(|known| known == name)) {
            gpu.set(Constant::Capacity, capacity as f64 * 1e-9);
        }
        return Ok(gpu);
    }
    own.ok_or_else(|| {
        let names: Vec<&str> = Compute::builtin_names().collect();
        let names = names.join(", ");
        Error::usage(
            format!("no profile says how fast the kernels of a `{kind}` are"),
            format!("take one with --gpu: {names}; `collcast calibrate FILES --compute GPU` makes one"),
        )
    })
}

/// Bytes that a program can have of the memory that a GPU is named for, such as `T4-16GB`: what CUDA leaves of an H100's
/// 80 GiB, 99%.
fn memory_of(kind: &str) -> Option<u64> {
    let gib: u64 = kind.rsplit('-').next()?.strip_suffix("GB")?.parse().ok()?;
    Some((gib << 30) / 100 * 99)
}

/// A table that was read.
pub(super) struct Loaded {
    /// Its path, as it was named or met.
    pub(super) file: String,
    /// Hash of its content.
    pub(super) hash: String,
    /// What it gives.
    pub(super) read: Read,
    /// The GPU that its first lines name, where that is another one.
    pub(super) of_another: Option<String>,
}

impl Loaded {
    /// Its rows.
    pub(super) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.read.samples.iter().map(|(_, sample)| sample)
    }
}

/// What files and folders have about a GPU: of a folder all tables of kernels, by their names. The second: files of folders
/// that are none.
///
/// # Errors
/// A file that cannot be read, or that was named and is no such table.
pub(super) fn load(paths: &[PathBuf], gpu: &Compute) -> Result<(Vec<Loaded>, Vec<String>), Error> {
    let (mut tables, mut skipped) = (Vec::new(), Vec::new());
    for path in paths {
        if !path.is_dir() {
            tables.push(table(path, gpu)??);
            continue;
        }
        for file in tables_in(path)? {
            match table(&file, gpu)? {
                Ok(table) => tables.push(table),
                Err(_) => skipped.push(file.display().to_string()),
            }
        }
    }
    Ok((tables, skipped))
}

/// What of them is not used: rows of other GPUs, and files that are no such tables.
pub(super) fn left_aside(tables: &[Loaded], skipped: &[String], (used, kinds): (&str, &str)) -> Vec<String> {
    let others: usize = tables.iter().map(|table| table.read.others).sum();
    let others = (others > 0).then(|| format!("{others} rows are of other GPUs and are not {used}"));
    let skipped = (!skipped.is_empty()).then(|| format!("no tables of {kinds}: {}", skipped.join(" ")));
    others.into_iter().chain(skipped).collect()
}

/// The GPU that a table's first lines name, as `probe` writes them.
fn measured_on(text: &str) -> Option<&str> {
    let comments = text.lines().take_while(|line| line.starts_with('#'));
    let said = comments.filter(|line| line.starts_with("# measured")).find_map(|line| line.split_once(" on "))?.1;
    let name = said.split(',').next()?;
    Some(name.split_once(" x ").map_or(name, |(_, name)| name).trim())
}

/// Tables that another GPU was measured for.
pub(super) fn of_others(tables: &[Loaded], gpu: &Compute) -> Vec<String> {
    let of = |table: &Loaded| {
        let other = table.of_another.as_ref()?;
        Some(format!(
            "{} was measured on {other}, and profile {} is of another GPU: name the one that was measured with --compute",
            table.file,
            gpu.name()
        ))
    };
    tables.iter().filter_map(of).collect()
}

/// Refuses tables without a row of the GPU.
///
/// # Errors
/// There is none.
pub(super) fn some(tables: &[Loaded], gpu: &Compute) -> Result<(), Error> {
    if tables.iter().any(|table| !table.read.samples.is_empty()) {
        return Ok(());
    }
    let others: usize = tables.iter().map(|table| table.read.others).sum();
    let message = match others {
        0 => "the measurements have no row".to_owned(),
        _ => format!("none of the {others} rows is of {}", gpu.name()),
    };
    Err(Error::usage(message, "name the GPU that they are of, with --compute"))
}

/// A table; inside, why a file is none.
fn table(path: &Path, gpu: &Compute) -> Result<Result<Loaded, Error>, Error> {
    let file = path.display().to_string();
    let text = read_text("read the measurements", path)?;
    let hash = format!("{:016x}", fnv1a(text.as_bytes()));
    let of_another = measured_on(&text).filter(|name| !gpu.is_of(name)).map(str::to_owned);
    match read(&text, gpu) {
        Ok(read) => Ok(Ok(Loaded { file, hash, read, of_another })),
        Err(Trouble::Row { line, message }) => {
            Err(Error::usage(format!("{file}:{line}: {message}"), "docs/formats.md says what each column has"))
        }
        Err(Trouble::Header { line, header }) => {
            let kernels = Table::ALL.iter().map(|table| table.columns().join(","));
            let known: Vec<String> = kernels.chain(headers()).collect();
            let message = format!("{file}:{line}: `{header}` is the header of no table of kernels, layers or models");
            Ok(Err(Error::usage(
                message,
                format!("these are known, with more columns or without:\n  {}", known.join("\n  ")),
            )))
        }
    }
}
