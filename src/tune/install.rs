//! Puts a table to use: the lines that load our tuner plugin, into a file of settings and out of it again.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::process::{ProcessSetting, ProcessVariable};
use crate::error::Error;
use crate::files::quoted;
use crate::lint::{Finding, Input, Request, Severity, lint};

/// First line of what is written; what undoes it stands in it.
const BEGIN: &str = "# collcast tune install: begin; `collcast tune undo FILE` takes it out";
/// Last line.
const END: &str = "# collcast tune install: end";
/// In front of a line that was there before and would load another tuner, or set a variable otherwise.
const WAS: &str = "# collcast tune install: was ";
/// File name of our plugin's library.
pub const LIBRARY: &str = "libcollcast_tuner.so";
/// The variable that NCCL loads a tuner by.
pub(super) const PLUGIN: &str = "NCCL_TUNER_PLUGIN";
/// The one that it loads a network by, whose tuner it asks where none is named (`src/plugin/tuner.cc`).
const NET: &str = "NCCL_NET_PLUGIN";
/// Variables of our plugin.
pub(super) const TABLE: &str = "COLLCAST_TUNER_TABLE";
pub(super) const NEXT_TUNER: &str = "COLLCAST_TUNER_NEXT";
const RECORD: &str = "COLLCAST_TUNER_RECORD";
/// Shells that take `export NAME=VALUE`.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "zsh"];
/// Endings of names of scripts and files of settings.
const OF_SETTINGS: [&str; 11] =
    ["sh", "bash", "dash", "zsh", "sbatch", "slurm", "job", "env", "conf", "profile", "bashrc"];
/// Endings of files in which `A=1` is something else.
const OF_OTHERS: [&str; 10] = ["yaml", "yml", "json", "toml", "py", "rb", "jl", "r", "lua", "mk"];

/// What to load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Install {
    /// The library of our plugin.
    pub plugin: PathBuf,
    /// The table that `tune` wrote.
    pub table: PathBuf,
    /// A file for what is asked and chosen.
    pub record: Option<PathBuf>,
    /// The tuner that NCCL asks without the table, where the file names none.
    pub next: Option<String>,
    /// Threads and FIFOs that go with the table.
    pub process: Vec<ProcessSetting>,
    /// The file is sourced by a shell, and not read by NCCL.
    pub exported: bool,
}

impl Install {
    /// Whether the lines of a file begin with `export`: in all but NCCL's own, which `lint` knows by the same names, and those
    /// that set variables without it, as `docker run --env-file` reads them.
    pub fn is_exported(path: &Path, text: &str) -> bool {
        let name = lowered(path);
        !(name.ends_with(".conf") && name.contains("nccl") || is_list(text))
    }

    /// Whether a file can have lines that set variables: a script by its first line or its name, a file of settings by its
    /// name, and one that has nothing but settings. Manifests, recipes and programs have forms of their own.
    pub fn holds_settings(path: &Path, text: &str) -> bool {
        let name = lowered(path);
        match name.rsplit_once('.') {
            // What runs it is looked at with its lines.
            _ if text.starts_with("#!") => true,
            Some((_, ending)) if OF_SETTINGS.contains(&ending) => true,
            Some((_, ending)) => is_list(text) && !OF_OTHERS.contains(&ending),
            None => !["makefile", "gnumakefile", "dockerfile", "containerfile"].contains(&name.as_str()),
        }
    }

    /// A file of settings with the lines on top, below what a script must begin with. A tuner that it loads is asked where the
    /// table has no line.
    ///
    /// # Errors
    /// A script of another language, lines that set one of the variables otherwise than plainly, and those of [`undo`].
    pub fn added_to(&self, file: &Path, text: &str) -> Result<String, Error> {
        if let Some(other) = interpreter(text).filter(|name| !SHELLS.contains(name)) {
            let message = format!("{} is run by {other}, which does not take the lines", file.display());
            return Err(Error::usage(message, "set the variables as it does; without --into they are printed"));
        }
        let process: Vec<&str> = self.process.iter().map(|setting| setting.variable.name()).collect();
        let record: &[&str] = if self.record.is_some() { &[RECORD] } else { &[] };
        let names = [&[PLUGIN, TABLE, NEXT_TUNER], record, &process].concat();
        let (mut rest, mut tuner, mut next, mut net) = (String::new(), None, None, None);
        // A line may belong to what lines above began: a command or block, a text for a command up to a word, one in quotes.
        let (mut goes_on, mut in_text, mut quote) = (false, None::<&str>, None::<char>);
        for (number, line) in outside(file, text)? {
            match assignment(line).filter(|_| !goes_on && in_text.is_none() && quote.is_none()) {
                Some((name, value)) if names.contains(&name) => {
                    match name {
                        PLUGIN => tuner = Some(value),
                        NEXT_TUNER => next = Some(value),
                        _ => {}
                    }
                    rest.push_str(WAS);
                }
                Some((NET, value)) => net = Some(value),
                _ => {
                    if let Some(name) = names.iter().find(|name| sets(line, name)) {
                        let place = format!("{}:{number}", file.display());
                        let message =
                            format!("{place}: {name} is set within a block, command or text, or beside other words");
                        let hint = format!("write {name}=VALUE, alone on a line on top, or take it out");
                        return Err(Error::usage(message, hint));
                    }
                }
            }
            rest.push_str(line);
            if self.exported {
                goes_on = is_open(line, goes_on);
                quote = if in_text.is_none() { left_open(line, quote) } else { quote };
                in_text = in_text.filter(|word| line.trim() != *word).or_else(|| text_up_to(line));
            }
        }
        let is_own = |tuner: &str| Path::new(tuner).ends_with(LIBRARY) || Path::new(tuner) == self.plugin;
        let before = match tuner.filter(|tuner| !tuner.is_empty()) {
            Some(tuner) if is_own(tuner) => next.or(self.next.as_deref()),
            None => next.or(net).or(self.next.as_deref()),
            other => other,
        };
        let is_other = |tuner: &&str| !tuner.is_empty() && !tuner.eq_ignore_ascii_case("none") && !is_own(tuner);
        let head = script_head(&rest);
        let rest_of = rest.split_off(head);
        Ok(rest + &self.block(before.filter(is_other)) + &rest_of)
    }

    /// What is written.
    fn block(&self, next: Option<&str>) -> String {
        let mut out = format!("{BEGIN}\n");
        let export = if self.exported { "export " } else { "" };
        let mut set = |name: &str, value: &str| {
            // NCCL takes what stands in its own file as it is; a shell does not.
            let value = if self.exported { quoted(value) } else { value.to_owned() };
            let _ = writeln!(out, "{export}{name}={value}");
        };
        set(PLUGIN, &self.plugin.display().to_string());
        set(TABLE, &self.table.display().to_string());
        for setting in &self.process {
            set(setting.variable.name(), &setting.value.to_string());
        }
        if let Some(next) = next {
            set(NEXT_TUNER, next);
        }
        if let Some(record) = &self.record {
            set(RECORD, &record.display().to_string());
        }
        let _ = writeln!(out, "{END}");
        out
    }
}

/// The name of a file, in small letters.
fn lowered(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Whether a file has lines that set variables without `export`, and no others.
fn is_list(text: &str) -> bool {
    let mut settings = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).peekable();
    settings.peek().is_some() && settings.all(|line| !line.starts_with("export ") && assignment(line).is_some())
}

/// What keeps a table from working in a file that loads it, in words: what `lint` says of the file since then.
///
/// # Errors
/// What keeps `lint` from looking at the file.
pub fn doubts(file: &Path, before: &str, with: &str) -> Result<Vec<String>, Error> {
    let told = |text: &str| -> Result<Vec<Finding>, Error> {
        let input = Input { name: file.display().to_string(), text: text.to_owned() };
        Ok(lint(&Request { inputs: vec![input], ..Request::default() })?.findings)
    };
    let known: Vec<(&str, String)> = told(before)?.into_iter().map(|finding| (finding.rule, finding.what)).collect();
    let mut doubts = Vec::new();
    for Finding { rule, severity, what, place, way_out, .. } in told(with)? {
        if severity != Severity::Note && !known.iter().any(|known| (known.0, &known.1) == (rule, &what)) {
            let line = place.line.map_or_else(String::new, |line| format!(":{line}"));
            doubts.push(format!("{}{line}: {what}; {way_out} ({rule})", place.file));
        }
    }
    Ok(doubts)
}

/// What runs a script, by its first line.
fn interpreter(text: &str) -> Option<&str> {
    let mut words = text.strip_prefix("#!")?.lines().next()?.split_whitespace();
    words.find(|word| !word.ends_with("/env") && !word.starts_with('-') && !word.contains('='))?.rsplit('/').next()
}

/// Bytes of a script's first lines that must stay first: what runs it, and the options of a batch system.
fn script_head(text: &str) -> usize {
    if !text.starts_with("#!") {
        return 0;
    }
    let first = |line: &&str| line.ends_with('\n') && (line.starts_with('#') || line.trim().is_empty());
    text.split_inclusive('\n').take_while(first).map(str::len).sum()
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The variable and the value of a line that is an assignment at the left margin, alone, of what a shell takes as it stands.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_end();
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let inner = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    let is_plain = match inner {
        Some(inner) => !inner.contains(['"', '\'', '$', '`', '\\']),
        None => value.chars().all(|c| is_of_name(c) || "/.-,@:+%".contains(c)),
    };
    (is_plain && name.chars().all(is_of_name)).then_some((name, inner.unwrap_or(value)))
}

/// Whether a line may set a variable, or take it out, wherever it stands in it. To hand on its value changes nothing.
fn sets(line: &str, name: &str) -> bool {
    let at = |at: usize| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        let handed_on = |rest: &str| rest.strip_prefix(name).is_some_and(|rest| !rest.starts_with(is_of_name));
        let value = after.strip_prefix('=').map_or("", |value| value.trim_start_matches(['"', '$', '{']));
        let sets = ["=", "+=", ":="].iter().any(|sign| after.starts_with(sign)) && !handed_on(value);
        let told = ["unset ", "printf -v "].iter().any(|command| before.contains(command))
            || before.split(|c: char| !is_of_name(c)).any(|word| word == "read");
        let changes = sets || told && !before.trim_end_matches('{').ends_with('$');
        changes && !before.ends_with(is_of_name) && !after.starts_with(is_of_name)
    };
    !line.trim_start().starts_with('#') && line.match_indices(name).any(|(found, _)| at(found))
}

/// Whether the next line may belong to a command that began, or to a block that must not be empty.
fn is_open(line: &str, before: bool) -> bool {
    let line = line.split_once(" #").map_or(line, |(line, _)| line).trim();
    if line.is_empty() || line.starts_with('#') {
        return before;
    }
    let word = line.rsplit([' ', ';', '\t']).next().unwrap_or_default();
    let is_case = line.ends_with(')') && !line.contains('(');
    is_case || line.ends_with(['\\', '{', '(', '|']) || ["then", "do", "else", "&&"].contains(&word)
}

/// The quote that a line leaves open, `before` being the one that it begins within.
fn left_open(line: &str, before: Option<char>) -> Option<char> {
    let (mut open, mut last, mut escaped) = (before, ' ', false);
    for c in line.chars() {
        match open {
            _ if escaped => escaped = false,
            None | Some('"') if c == '\\' => escaped = true,
            Some(quote) if c == quote => open = None,
            None if c == '#' && (last.is_whitespace() || last == ';') => break,
            None if c == '"' || c == '\'' => open = Some(c),
            _ => {}
        }
        last = c;
    }
    open
}

/// The word that ends a text which begins below a line, as of `cat <<END`.
fn text_up_to(line: &str) -> Option<&str> {
    let is_other = line.trim_start().starts_with('#') || line.contains("<<<") || line.contains("((");
    let (_, after) = line.split_once("<<").filter(|_| !is_other)?;
    let word = after.trim_start_matches('-').split_whitespace().next()?.split(';').next()?;
    Some(word.trim_matches(['"', '\'', '\\']))
}

/// A file as it was before an install; one without it stays as it is.
///
/// # Errors
/// What was written has lost its first or its last line, or has lines of others.
pub fn undo(file: &Path, text: &str) -> Result<String, Error> {
    Ok(outside(file, text)?.into_iter().map(|(_, line)| line).collect())
}

/// The lines of a file without what was written, with their numbers.
fn outside<'t>(file: &Path, text: &'t str) -> Result<Vec<(usize, &'t str)>, Error> {
    let refused = |number: usize, what: &str| {
        let hint = "put the lines between `begin` and `end` right, or take them out, by hand";
        Error::usage(format!("{}:{number}: {what}", file.display()), hint)
    };
    let mut out = Vec::new();
    let mut begun = None;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let bare = line.trim_end_matches(['\n', '\r']);
        match (bare, begun) {
            (BEGIN, None) => begun = Some(number),
            (END, Some(_)) => begun = None,
            (END, None) => return Err(refused(number, "`# collcast tune install: end` has no `begin`")),
            (_, Some(_)) if !is_written(bare) => {
                return Err(refused(number, "a line within what `tune install` wrote is not its own"));
            }
            (_, Some(_)) => {}
            (_, None) => out.push((number, line.strip_prefix(WAS).unwrap_or(line))),
        }
    }
    match begun {
        Some(number) => Err(refused(number, "`# collcast tune install: begin` has no `end`")),
        None => Ok(out),
    }
}

/// Whether a line within is one that [`Install`] writes.
fn is_written(line: &str) -> bool {
    let name = line.strip_prefix("export ").unwrap_or(line).split_once('=').map(|(name, _)| name);
    let process = ProcessVariable::ALL.map(ProcessVariable::name);
    name.is_some_and(|name| [PLUGIN, TABLE, NEXT_TUNER, RECORD].contains(&name) || process.contains(&name))
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
            next: None,
            process: Vec::new(),
            exported: true,
        }
    }

    fn added(text: &str) -> String {
        install().added_to(Path::new("job.sh"), text).unwrap()
    }

    fn undone(text: &str) -> String {
        undo(Path::new("job.sh"), text).unwrap()
    }

    /// Goal: the lines are on top, once; the tuner that was there is next, and its line sleeps. What an earlier table or a
    /// pasted `slurm.sh` set sleeps too, and our own library is never next.
    #[test]
    fn the_tuner_before_is_next() {
        let text = "export NCCL_DEBUG=WARN\nNCCL_TUNER_PLUGIN=ofi\n";
        let with = added(text);
        assert_eq!(with.lines().nth(1), Some("export NCCL_TUNER_PLUGIN=/opt/libcollcast_tuner.so"));
        assert!(with.contains("\nexport COLLCAST_TUNER_NEXT=ofi\n"), "{with}");
        assert!(with.contains("\n# collcast tune install: was NCCL_TUNER_PLUGIN=ofi\n"), "{with}");
        assert_eq!((added(&with), undone(&with).as_str()), (with, text));
        let conf = Install { exported: false, ..install() }.added_to(Path::new("nccl.conf"), "").unwrap();
        assert!(conf.contains("\nCOLLCAST_TUNER_TABLE=/opt/tuner.csv\n"), "{conf}");
        for (text, next) in [
            ("NCCL_TUNER_PLUGIN=none\nNCCL_NET_PLUGIN=ofi\n", None),
            ("NCCL_NET_PLUGIN=ofi\n", Some("ofi")),
            ("NCCL_NET_PLUGIN=none\n", None),
            ("export NCCL_TUNER_PLUGIN='/a b/libcollcast_tuner.so'\nexport COLLCAST_TUNER_TABLE=/a/tuner.csv\n", None),
            ("NCCL_TUNER_PLUGIN=/a/libcollcast_tuner.so\nCOLLCAST_TUNER_NEXT=\"ofi\"\n", Some("ofi")),
        ] {
            let with = added(text);
            let set: Vec<&str> = with.lines().filter(|line| line.starts_with("export COLLCAST_TUNER_")).collect();
            let next = next.map(|next| format!("export COLLCAST_TUNER_NEXT={next}"));
            let expected = ["export COLLCAST_TUNER_TABLE=/opt/tuner.csv"].into_iter().chain(next.as_deref());
            assert_eq!(set, expected.collect::<Vec<_>>(), "{with}");
            assert_eq!(undone(&with), text);
        }
    }

    /// Goal: what cannot be put to sleep line by line is refused with its line; so is a script of another language.
    #[test]
    fn what_is_not_plain_is_refused() {
        for (line, text) in [
            (2, "if true; then\n  export NCCL_TUNER_PLUGIN=ofi\nfi\n"),
            (2, "if true; then\nexport NCCL_TUNER_PLUGIN=ofi\nfi\n"),
            (2, "env A=1 \\\nNCCL_TUNER_PLUGIN=ofi\n"),
            (2, "if true; then # efa\nexport NCCL_TUNER_PLUGIN=ofi\nfi\n"),
            (2, "[ -d /efa ] &&\nexport NCCL_TUNER_PLUGIN=ofi\n"),
            (2, "true ||\nexport NCCL_TUNER_PLUGIN=ofi\n"),
            (2, "case x in\nexport NCCL_TUNER_PLUGIN=ofi;;\nesac\n"),
            (2, "cat > x <<END\nNCCL_TUNER_PLUGIN=ofi\nEND\n"),
            (1, "NCCL_TUNER_PLUGIN=ofi NCCL_DEBUG=INFO\n"),
            (1, "NCCL_TUNER_PLUGIN=$HOME/x.so # aws\n"),
            (1, "exec srun --export=ALL,NCCL_TUNER_PLUGIN=ofi ./train\n"),
            (1, "unset NCCL_TUNER_PLUGIN\n"),
            (1, "read -r NCCL_TUNER_PLUGIN < tuner\n"),
            (1, "printf -v NCCL_TUNER_PLUGIN %s ofi\n"),
            (2, "echo \"a # b\nNCCL_TUNER_PLUGIN=ofi\n\" > x\n"),
            (3, "echo it\\'s 'a\n\"\nNCCL_TUNER_PLUGIN=ofi\n'\n"),
            (3, "#!/bin/sh\n\n: ${COLLCAST_TUNER_TABLE:=/x}\n"),
        ] {
            let error = install().added_to(Path::new("job.sh"), text).unwrap_err().to_string();
            assert!(error.contains(&format!("job.sh:{line}: ")), "{text}: {error}");
        }
        for text in ["#!/usr/bin/env python3\n", "#! /bin/csh -f\n"] {
            let error = install().added_to(Path::new("job"), text).unwrap_err().to_string();
            assert!(error.contains(" is run by "), "{error}");
        }
        for text in [
            "#!/usr/bin/env -S bash -e\n",
            "# NCCL_TUNER_PLUGIN=ofi\necho $NCCL_TUNER_PLUGIN\n",
            "read A <<< \"${NCCL_TUNER_PLUGIN}\"\n",
            // Quotes that end, or are none: within another, in a comment, escaped, in a text up to a word.
            "A=\"it's\" # don't\ncat <<END\n'\nEND\necho \\\" ${A#'}'}\nNCCL_TUNER_PLUGIN=ofi\n",
        ] {
            assert_eq!(undone(&added(text)), text);
        }
    }

    /// Goal: nothing is taken out of a file that `tune install` did not write.
    #[test]
    fn lines_of_others_are_not_taken_out() {
        let with = added("echo a\n");
        for (text, line) in [
            (with.replace(&format!("{END}\n"), ""), 4),
            (with.replace(END, "NCCL_DEBUG=INFO"), 4),
            (with.replace(END, &format!("NCCL_DEBUG=INFO\n{END}")), 4),
            (with.replace(&format!("{BEGIN}\n"), ""), 3),
        ] {
            for error in [undo(Path::new("x"), &text), install().added_to(Path::new("x"), &text)] {
                let error = error.unwrap_err().to_string();
                assert!(error.contains(&format!("x:{line}: ")), "{text}: {error}");
            }
        }
        let cut = with.split_inclusive(END).next().unwrap().replace(&format!("\n{END}"), "");
        assert!(undo(Path::new("x"), &cut).unwrap_err().to_string().contains("x:1: "), "{cut}");
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
        let with = Install { process, ..install() }.added_to(Path::new("a.env"), text).unwrap();
        assert!(with.contains("\nexport NCCL_BUFFSIZE=8388608\n# collcast tune install: end\n"), "{with}");
        assert!(with.ends_with("# collcast tune install: was NCCL_BUFFSIZE=1\nNCCL_LL_BUFFSIZE=2\n"), "{with}");
        assert_eq!(undone(&with), text);
    }

    /// Goal: what runs a script and the options of its batch system stay first.
    #[test]
    fn scripts_begin_as_they_did() {
        let text = "#!/bin/bash\n#SBATCH -N 2\n\nsrun train\n";
        let with = added(text);
        assert!(with.starts_with("#!/bin/bash\n#SBATCH -N 2\n\n# collcast tune install: begin"), "{with}");
        assert!(with.ends_with("# collcast tune install: end\nsrun train\n"), "{with}");
        assert_eq!((undone(&with).as_str(), added(&with)), (text, with));
        let is_exported = |name: &&str, text: &str| Install::is_exported(Path::new(name), text);
        assert!(["job", "a.sbatch", "job.env", "a.conf"].iter().all(|name| is_exported(name, "")));
        assert!(["/etc/nccl.conf", "~/.nccl.conf"].iter().all(|name| !is_exported(name, "")));
        assert!(is_exported(&"job.env", "export A=1\n") && !is_exported(&"job.env", "# docker\nNCCL_DEBUG=INFO\n"));
        // A line below what ended is alone again; to hand a value on sets nothing.
        let text = "cat <<END >x\nA\nEND\nB=$(hostname)\nexport NCCL_TUNER_PLUGIN=ofi\nrun -x NCCL_TUNER_PLUGIN=$NCCL_TUNER_PLUGIN\n";
        assert!(added(text).contains("was export NCCL_TUNER_PLUGIN=ofi\n"), "{}", added(text));
        let holds = |name: &str, text: &str| Install::holds_settings(Path::new(name), text);
        for name in ["pod.yaml", "Dockerfile", "Makefile", "x.py", "x.R", "x.lua", "x.ipynb", "x.fish", "x.csh", "x.c"]
        {
            assert!(!holds(name, "import os\n"), "{name}");
        }
        for name in ["nccl.conf", "new.env", "job.sh", "a.sbatch", "run", ".bashrc"] {
            assert!(holds(name, "srun ./train\n"), "{name}");
        }
        assert!(holds("x.py", "#!/bin/bash\n") && holds("vars.txt", "# a\nNCCL_DEBUG=INFO\n"));
        assert!(!holds("x.py", "A=1\n") && !holds("x.txt", "hello\n"));
    }

    proptest! {
        /// Goal: what is undone is what was there.
        #[test]
        fn undone_is_as_before(text in "((export )?NCCL_(TUNER_PLUGIN|BUFFSIZE)=[a-z]{0,4}\n|[A-Z]=1\r?\n|#.{0,9}\n|\n){0,8}[a-z]{0,3}") {
            let process = ProcessSetting::of_file("NCCL_BUFFSIZE=8388608");
            // A first line of chance that names an interpreter.
            if let Ok(with) = (Install { process, ..install() }).added_to(Path::new("x"), &text) {
                prop_assert_eq!(undone(&with), text);
            } else {
                prop_assert!(text.starts_with("#!"));
            }
        }
    }
}
