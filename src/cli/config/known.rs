//! Which options may have a default, and what a default is.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};

/// The variable that names the file; empty for none.
pub(super) const FILE: &str = "COLLCAST_CONFIG";
/// What the variable of an option begins with.
pub(super) const PREFIX: &str = "COLLCAST_";
/// The option that shows all this.
pub(super) const SHOW: &str = "show_config";
/// Options of the program itself, which say how it talks; a default would silence the note that tells of it.
pub(super) const OWN: [&str; 2] = [SHOW, "quiet"];
/// Options that no default gives: what is written, where, and whether something is replaced is said each time.
const NEVER: [&str; 21] = [
    "baseline",
    "break-even",
    "chakra",
    "folder",
    "force",
    "goal",
    "held-out",
    "history",
    "into",
    "measure",
    "next-runs",
    "output",
    "plots",
    "profile-out",
    "prometheus",
    "record",
    "report",
    "scenario-schema",
    "schema",
    "timeline",
    "update",
];
/// Variables that begin alike and are no defaults: of the program, of the tuner plugin, and of the script for Slurm.
pub(super) const OTHERS: [&str; 10] = [
    FILE,
    "COLLCAST_ALWAYS",
    "COLLCAST_GOOD",
    "COLLCAST_NCCL_LIBRARY",
    "COLLCAST_PORT",
    "COLLCAST_PROFILES",
    "COLLCAST_TUNER_NEXT",
    "COLLCAST_TUNER_RECORD",
    "COLLCAST_TUNER_STRICT",
    "COLLCAST_TUNER_TABLE",
];

/// A default of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) struct Default {
    /// The option without dashes.
    pub(super) option: String,
    /// One value, or several of an option that takes them.
    pub(super) values: Vec<String>,
    /// Where it is from: a variable, or file and line.
    pub(super) from: String,
    /// 0 of a variable, 1 of the command's own table in the file, more of those around it: the lower one wins.
    pub(super) rank: usize,
}

impl Default {
    /// For people, such as `--nodes 2 is from COLLCAST_NODES`.
    pub(in super::super) fn told(&self) -> String {
        format!("--{} {} is from {}", self.option, self.values.join(" "), self.from)
    }
}

/// The folder of the user's configuration.
pub(in super::super) fn folder() -> Option<PathBuf> {
    let configuration = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    configuration.or_else(home).map(|folder| folder.join("collcast"))
}

/// Whether an option has no default, by its name without dashes in front.
pub(super) fn has_none(option: &str) -> bool {
    NEVER.contains(&option) || OWN.contains(&option.replace('-', "_").as_str())
}

/// Whether an option may have a default.
pub(super) fn may(arg: &Arg) -> bool {
    let automatic = matches!(arg.get_action(), ArgAction::Help | ArgAction::Version);
    arg.get_long().is_some_and(|long| !has_none(long)) && !automatic && !arg.is_hide_set()
}

/// The variable of an option.
pub(super) fn variable(option: &str) -> Option<String> {
    let name = format!("{PREFIX}{}", option.replace('-', "_").to_uppercase());
    (!OTHERS.contains(&name.as_str())).then_some(name)
}

/// All options of a command and of those within it that may have a default.
pub(super) fn options(command: &Command) -> Vec<&Arg> {
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set()).flat_map(options);
    command.get_arguments().filter(|arg| may(arg)).chain(inner).collect()
}
