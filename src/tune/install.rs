//! Puts a table to use: the lines that load our tuner plugin, into a file of settings and out of it again.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::process::ProcessSetting;
use crate::files::quoted;

/// First line of what is written; what undoes it stands in it.
const BEGIN: &str = "# collcast tune install: begin; `collcast tune undo FILE` takes it out";
/// Last line.
const END: &str = "# collcast tune install: end";
/// In front of a line that was there before and would load another tuner, or set a variable otherwise.
const WAS: &str = "# collcast tune install: was ";
/// File name of our plugin's library.
pub const LIBRARY: &str = "libcollcast_tuner.so";
/// The variable that NCCL loads a tuner by.
const PLUGIN: &str = "NCCL_TUNER_PLUGIN";

/// What to load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Install {
    /// The library of our plugin.
    pub plugin: PathBuf,
    /// The table that `tune` wrote.
    pub table: PathBuf,
    /// A file for what is asked and chosen.
    pub record: Option<PathBuf>,
    /// Threads and FIFOs that go with the table.
    pub process: Vec<ProcessSetting>,
    /// The file is sourced by a shell, and not read by NCCL.
    pub exported: bool,
}

impl Install {
    /// Whether a file is for a shell: by its name, or by lines that are there already.
    pub fn is_exported(path: &Path, text: &str) -> bool {
        let named =
            path.extension().is_some_and(|ending| ["sh", "bash", "sbatch", "slurm"].iter().any(|e| ending == *e));
        named || text.starts_with("#!") || text.lines().any(|line| line.starts_with("export "))
    }

    /// Whether a file can have lines that set variables: manifests and recipes of images have forms of their own.
    pub fn holds_settings(path: &Path) -> bool {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let manifest = [".yaml", ".yml", ".json", ".toml"].iter().any(|ending| name.ends_with(ending));
        !manifest && !name.contains("dockerfile") && !name.contains("containerfile")
    }

    /// A file of settings with the lines on top, below what a script must begin with. A tuner that it loads is asked where the
    /// table has no line.
    pub fn added_to(&self, text: &str) -> String {
        let before = undo(text);
        let mut rest = String::new();
        let mut next = None;
        for line in before.split_inclusive('\n') {
            if let Some(tuner) = value_of(PLUGIN, line) {
                next = Some(tuner.to_owned());
                rest.push_str(WAS);
            } else if self.process.iter().any(|setting| value_of(setting.variable.name(), line).is_some()) {
                rest.push_str(WAS);
            }
            rest.push_str(line);
        }
        let head = script_head(&rest);
        let rest_of = rest.split_off(head);
        let mut out = format!("{rest}{BEGIN}\n");
        let export = if self.exported { "export " } else { "" };
        let mut set = |name: &str, value: &str| {
            // NCCL takes what stands in its own file as it is; a shell does not.
            let value = if self.exported { quoted(value) } else { value.to_owned() };
            let _ = writeln!(out, "{export}{name}={value}");
        };
        set(PLUGIN, &self.plugin.display().to_string());
        set("COLLCAST_TUNER_TABLE", &self.table.display().to_string());
        for setting in &self.process {
            set(setting.variable.name(), &setting.value.to_string());
        }
        if let Some(next) = next.filter(|next| !next.is_empty() && next != "none") {
            set("COLLCAST_TUNER_NEXT", &next);
        }
        if let Some(record) = &self.record {
            set("COLLCAST_TUNER_RECORD", &record.display().to_string());
        }
        let _ = writeln!(out, "{END}");
        out + &rest_of
    }
}

/// Bytes of a script's first lines that must stay first: what runs it, and the options of a batch system.
fn script_head(text: &str) -> usize {
    if !text.starts_with("#!") {
        return 0;
    }
    let first = |line: &&str| line.ends_with('\n') && (line.starts_with('#') || line.trim().is_empty());
    text.split_inclusive('\n').take_while(first).map(str::len).sum()
}

/// The value that a line gives a variable.
fn value_of<'l>(name: &str, line: &'l str) -> Option<&'l str> {
    let line = line.trim();
    let value = line.strip_prefix("export ").unwrap_or(line).strip_prefix(name)?.strip_prefix('=')?;
    Some(value.trim_matches(['"', '\'']))
}

/// A file as it was before an install; one without it stays as it is.
pub fn undo(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        match line.trim_end_matches(['\n', '\r']) {
            BEGIN => inside = true,
            END if inside => inside = false,
            _ if inside => {}
            _ => out.push_str(line.strip_prefix(WAS).unwrap_or(line)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn install() -> Install {
        Install {
            plugin: "/opt/libcollcast_tuner.so".into(),
            table: "/opt/tuner.csv".into(),
            record: None,
            process: Vec::new(),
            exported: false,
        }
    }

    /// Goal: the lines are on top, once; the tuner that was there is next, and its line sleeps.
    #[test]
    fn the_tuner_before_is_next() {
        let text = "NCCL_DEBUG=WARN\nNCCL_TUNER_PLUGIN=ofi\n";
        let with = install().added_to(text);
        assert_eq!(with.lines().nth(1), Some("NCCL_TUNER_PLUGIN=/opt/libcollcast_tuner.so"));
        assert!(with.contains("\nCOLLCAST_TUNER_NEXT=ofi\n"), "{with}");
        assert!(with.contains("\n# collcast tune install: was NCCL_TUNER_PLUGIN=ofi\n"), "{with}");
        assert_eq!(install().added_to(&with), with);
        assert_eq!(undo(&with), text);
        assert!(!install().added_to("NCCL_TUNER_PLUGIN=none\n").contains("NEXT"));
        let exported = Install { exported: true, ..install() }.added_to("");
        assert!(exported.contains("\nexport COLLCAST_TUNER_TABLE=/opt/tuner.csv\n"), "{exported}");
    }

    /// Goal: threads and FIFOs of the table's folder go in with it; lines of the file that set them otherwise sleep until it
    /// is undone. Of the folder's file nothing else counts.
    #[test]
    fn values_for_the_process_go_with_the_table() {
        let written =
            "# x\nNCCL_ALGO=allreduce:ring\nNCCL_BUFFSIZE=8388608\n# Undo: unset NCCL_BUFFSIZE\nNCCL_NTHREADS=x\n";
        let process = ProcessSetting::of_file(written);
        assert_eq!(process.iter().map(ToString::to_string).collect::<Vec<_>>(), ["NCCL_BUFFSIZE=8388608"]);
        let text = "NCCL_BUFFSIZE=1\nNCCL_LL_BUFFSIZE=2\n";
        let with = Install { process, ..install() }.added_to(text);
        assert!(with.contains("\nNCCL_BUFFSIZE=8388608\n# collcast tune install: end\n"), "{with}");
        assert!(with.ends_with("# collcast tune install: was NCCL_BUFFSIZE=1\nNCCL_LL_BUFFSIZE=2\n"), "{with}");
        assert_eq!(undo(&with), text);
    }

    /// Goal: what runs a script and the options of its batch system stay first.
    #[test]
    fn scripts_begin_as_they_did() {
        let text = "#!/bin/bash\n#SBATCH -N 2\n\nsrun train\n";
        let with = install().added_to(text);
        assert!(with.starts_with("#!/bin/bash\n#SBATCH -N 2\n\n# collcast tune install: begin"), "{with}");
        assert!(with.ends_with("# collcast tune install: end\nsrun train\n"), "{with}");
        assert_eq!((undo(&with).as_str(), install().added_to(&with)), (text, with));
        assert!(Install::is_exported(Path::new("job"), text) && Install::is_exported(Path::new("a.sbatch"), ""));
        assert!(["pod.yaml", "Dockerfile"].iter().all(|name| !Install::holds_settings(Path::new(name))));
        assert!(["nccl.conf", "new.env", "job.sh"].iter().all(|name| Install::holds_settings(Path::new(name))));
    }

    proptest! {
        /// Goal: what is undone is what was there.
        #[test]
        fn undone_is_as_before(text in "((export )?NCCL_(TUNER_PLUGIN|BUFFSIZE)=[a-z]{0,4}\n|[A-Z]=1\r?\n|#.{0,9}\n|\n){0,8}[a-z]{0,3}") {
            let process = ProcessSetting::of_file("NCCL_BUFFSIZE=8388608");
            prop_assert_eq!(undo(&Install { process, ..install() }.added_to(&text)), text);
        }
    }
}
