//! From files of many kinds to the settings in them.

mod docker;
mod environ;
mod manifest;
mod notebook;
mod python;
mod shell;
mod yaml;

use std::path::Path;

use collcast_hwbackend::read::plain_line;
use collcast_topologies::log::version;

use super::setting::Scope;
use super::table::is_table;

pub(super) use environ::of_process;

/// What lines of logs have.
const MARKS: [&str; 3] = ["NCCL INFO ", "NCCL WARN ", "[Gloo] Rank "];

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `NAME=VALUE` lines: an environment file.
    Environment,
    /// The same as NCCL itself reads it: `/etc/nccl.conf`, `~/.nccl.conf`.
    Conf,
    /// What `/proc/PID/environ` holds.
    Process,
    /// A shell script, also of Slurm.
    Shell,
    /// A Dockerfile.
    Docker,
    /// Kubernetes, Compose, Helm: YAML or JSON.
    Manifest,
    /// Python that sets variables.
    Python,
    /// A notebook of Jupyter.
    Notebook,
    /// A table of a tuner plugin.
    Table,
    /// What NCCL or Gloo printed.
    Log,
}

impl Kind {
    /// What a file is, by its name and what is in it.
    pub fn of(path: &Path, text: &str) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
        let head = || text.lines().take(200);
        let begins = |word: &str| head().any(|line| line.trim_start().starts_with(word));
        if text.contains('\0') {
            Self::Process
        } else if ending == "ipynb" {
            Self::Notebook
        } else if text.lines().map(plain_line).any(|line| {
            MARKS.iter().any(|mark| line.contains(mark)) || line.starts_with("NCCL ") && version(&line).is_some()
        }) {
            Self::Log
        } else if is_table(text) {
            Self::Table
        } else if name.starts_with("dockerfile") || name.starts_with("containerfile") || ending == "dockerfile" {
            Self::Docker
        } else if matches!(ending, "yaml" | "yml" | "json") || begins("apiVersion:") {
            Self::Manifest
        } else if ending == "py" {
            Self::Python
        } else if matches!(ending, "sh" | "bash" | "slurm" | "sbatch" | "job") || text.starts_with("#!") {
            Self::Shell
        } else if ending == "conf" && name.contains("nccl") {
            Self::Conf
        } else if matches!(ending, "env" | "conf") {
            Self::Environment
        } else if begins("FROM ") {
            Self::Docker
        } else if ["#SBATCH ", "torchrun ", "mpirun ", "srun "].iter().any(|word| begins(word)) {
            Self::Shell
        } else {
            Self::Environment
        }
    }
}

impl Kind {
    /// Its name in outputs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment file",
            Self::Conf => "configuration of NCCL",
            Self::Process => "environment of a process",
            Self::Shell => "shell script",
            Self::Docker => "Dockerfile",
            Self::Manifest => "manifest",
            Self::Python => "Python",
            Self::Notebook => "notebook",
            Self::Table => "table of a tuner",
            Self::Log => "log",
        }
    }
}

/// The settings of a file, by those who see them; of a log and a table none, which have rules of their own.
pub(super) fn scopes(kind: Kind, path: &Path, text: &str) -> Vec<Scope> {
    match kind {
        Kind::Environment => vec![environ::file(text)],
        Kind::Conf => vec![environ::conf(text, 1)],
        Kind::Process => vec![environ::process(text)],
        Kind::Shell => shell::script(path, text),
        Kind::Docker => docker::file(text),
        Kind::Manifest => manifest::file(text),
        Kind::Python => vec![python::file(text)],
        Kind::Notebook => notebook::file(text),
        Kind::Table | Kind::Log => Vec::new(),
    }
}
