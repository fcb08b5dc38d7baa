//! Shell scripts, as far as settings go: assignments, exports, and the options of launchers that pass variables on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use collcast_topologies::input;

use super::environ::{self, unquoted};
use crate::lint::launch::{Word, look};
use crate::lint::setting::{Scope, Setting, is_name, is_of_interest, is_of_processes};

/// Scripts within scripts (`bash -c "..."`) that are followed.
const DEPTH_MAX: usize = 4;
/// Commands that are told apart by settings of their own; what more of them set is taken together.
const COMMANDS_MAX: usize = 16;
/// Branches of an `if` or a `case` up to which each is read by itself.
const BRANCHES_MAX: usize = 8;
/// Settings of a script up to which commands and branches are told apart.
const SETTINGS_MAX: usize = 1000;

/// A whole script, with the directives of Slurm: a scope for each command that has settings of its own, and each branch by
/// itself. Files that it sources are read where they are here, as they are named or beside it.
pub(super) fn script(path: &Path, text: &str) -> Vec<Scope> {
    let all = read(text, 1);
    let reader = |taken| {
        let folder = path.parent().map(Path::to_owned);
        let mut reader = Reader { directives: Directives::of(text), folder, taken, ..Reader::default() };
        for (line, directive) in directives(text) {
            commands(directive, line).iter().for_each(|command| reader.options(command));
        }
        // These are for all commands.
        reader.lasting = std::mem::take(&mut reader.alone);
        reader.run(&all, 0);
        reader
    };
    let whole = reader(None);
    let most = whole.branches.iter().copied().max().unwrap_or_default();
    let mut seen: Vec<Vec<Setting>> = Vec::new();
    if (2..=BRANCHES_MAX).contains(&most) && whole.scope.settings.len() <= SETTINGS_MAX {
        for nth in 0..most {
            let taken = Taken { nth, of: whole.branches.clone() };
            for settings in reader(Some(taken)).seen() {
                if !seen.contains(&settings) {
                    seen.push(settings);
                }
            }
        }
    } else {
        seen = whole.clone().seen();
    }
    let whole = Scope { settings: Vec::new(), ..whole.finish(text) };
    let (rdma_device, line) = (whole.rdma_device, whole.line);
    let with = |settings| Scope { settings, gpus: whole.gpus, rdma_device, line, ..Scope::default() };
    let mut scopes: Vec<Scope> = seen.into_iter().map(with).collect();
    scopes.push(Scope { gpus: false, ..whole });
    scopes
}

/// A piece of a script that begins at a line.
pub(super) fn parse(text: &str, line: u64) -> Scope {
    let mut reader = Reader::default();
    reader.run(&read(text, line), 0);
    reader.finish(text)
}

/// The command of a container, whose words no shell has parted; those with blanks in them are scripts, or values.
pub(super) fn exec(words: &[Word]) -> Scope {
    let mut reader = Reader::default();
    reader.started(words);
    let text: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    for (at, word) in words.iter().enumerate().filter(|(_, word)| word.text.contains(char::is_whitespace)) {
        if at == 0 || !hands_on(&words[at - 1].text) {
            reader.run(&read(&word.text, word.line), 1);
        }
    }
    reader.finish(&text.join(" "))
}

/// The text of a here-document, with the command that reads it and the line that it begins on.
type Document = (Vec<Word>, String, u64);

/// The commands of a text: their words, without redirections' meaning.
pub(super) fn commands(text: &str, line: u64) -> Vec<Vec<Word>> {
    read(text, line).0
}

/// The commands of a text, and the here-documents.
pub(super) fn read(text: &str, line: u64) -> (Vec<Vec<Word>>, Vec<Document>) {
    let mut documents = Vec::new();
    let mut all: Vec<Vec<Word>> = vec![Vec::new()];
    let mut word: Option<Word> = None;
    let mut quote: Option<char> = None;
    let mut line = line;
    let mut heredoc: Option<(Vec<Word>, String)> = None;
    let mut letters = text.chars().peekable();
    let close = |word: &mut Option<Word>, all: &mut Vec<Vec<Word>>| {
        if let (Some(word), Some(last)) = (word.take(), all.last_mut()) {
            last.push(word);
        }
    };
    while let Some(c) = letters.next() {
        let now = line;
        line += u64::from(c == '\n');
        let push = |word: &mut Option<Word>, c: char| {
            word.get_or_insert_with(|| Word { text: String::new(), line: now }).text.push(c);
        };
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None | Some('"'), '\\') => match letters.next() {
                Some('\n') => line += 1,
                // Within quotes it stands for itself before most.
                Some(next) if quote.is_some() && !matches!(next, '"' | '$' | '`' | '\\') => {
                    push(&mut word, '\\');
                    push(&mut word, next);
                }
                Some(next) => push(&mut word, next),
                None => {}
            },
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_with(|| Word { text: String::new(), line: now });
            }
            (None, '#') if word.is_none() => while letters.next_if(|&c| c != '\n').is_some() {},
            (None, '\n' | ';' | '&' | '|') => {
                close(&mut word, &mut all);
                // The text of a here-document is data and no command.
                let last = all.last().map(Vec::as_slice).unwrap_or_default();
                heredoc = heredoc.or_else(|| Some((last.to_vec(), here_document(last)?)));
                all.push(Vec::new());
                if let Some((command, end)) = heredoc.take_if(|_| c == '\n') {
                    let (text, lines) = text_to(&end, &mut letters);
                    documents.push((command, text, line));
                    line += lines;
                }
            }
            (None, '(' | ')' | '{' | '}') if word.is_none() => {
                all.push(Vec::new());
            }
            (None, c) if c.is_whitespace() => close(&mut word, &mut all),
            (_, c) => push(&mut word, c),
        }
    }
    close(&mut word, &mut all);
    all.retain(|command| !command.is_empty());
    (all, documents)
}

/// What a script writes into NCCL's own file: `echo NAME=VALUE >> /etc/nccl.conf`, or a here-document.
pub(super) fn configuration((commands, documents): &(Vec<Vec<Word>>, Vec<Document>), scope: &mut Scope) {
    let to_file = |command: &[Word]| command.iter().any(|word| word.text.ends_with("nccl.conf"));
    for command in commands.iter().filter(|command| to_file(command)) {
        if matches!(command[0].text.as_str(), "echo" | "printf") {
            // Both may write a line end as `\n`.
            let lines = command[1..].iter().flat_map(|word| {
                let lines: Vec<String> = word.text.replace("\\n", "\n").lines().map(str::to_owned).collect();
                lines.into_iter().map(|text| (text, word.line))
            });
            for (text, line) in lines {
                if let Some((name, value)) = text.split_once('=').filter(|(name, _)| is_name(name)) {
                    scope.set(name, value, Some(line));
                }
            }
        }
    }
    for (_, text, line) in documents.iter().filter(|(command, ..)| to_file(command)) {
        let inner = environ::conf(text, *line);
        scope.settings.extend(inner.settings);
        scope.signs.extend(inner.signs);
    }
}

/// Programs whose options hand variables on by name alone.
const LAUNCHERS: [&str; 8] = ["mpirun", "mpiexec", "orterun", "prterun", "docker", "podman", "nerdctl", "enroot"];

/// Options of mpiexec that Open MPI alone has.
const OF_OPEN_MPI: [&str; 6] = ["-x", "--mca", "-mca", "--map-by", "--allow-run-as-root", "--bind-to"];

/// Words of scripts whose mpirun is of MPICH or Intel MPI.
const OF_MPICH: [&str; 4] = ["I_MPI_", "HYDRA_", "MPICH_", "mpich"];

/// Whether mpirun is given hosts beside its own: two or more, a list that is not known here, or a file of them.
fn names_other_hosts(command: &[Word]) -> bool {
    command.iter().enumerate().any(|(at, word)| {
        let (option, glued) = word.text.split_once('=').unzip();
        let value = glued.or(command.get(at + 1).map(|next| next.text.as_str())).unwrap_or_default();
        match option.unwrap_or(&word.text) {
            "--hostfile" | "-hostfile" | "--machinefile" | "-machinefile" => true,
            "-H" | "--host" | "-host" => {
                let hosts: BTreeSet<&str> = value.split(',').filter_map(|host| host.split(':').next()).collect();
                hosts.len() > 1 || value.contains('$')
            }
            _ => false,
        }
    })
}

/// Whether the launcher is one of MPICH's family (Hydra, of Intel MPI too), which hand on all that is exported, or Open MPI is
/// given a list of variables in place of `-x`.
fn hands_all_on(command: &[Word]) -> bool {
    command.iter().any(|word| {
        let text = word.text.as_str();
        let of_hydra = matches!(text, "-hosts" | "-ppn" | "-perhost" | "-bootstrap" | "-iface" | "-rmk");
        of_hydra || text.starts_with("-genv") || text.starts_with("-env") || text.contains("mca_base_env_list")
    })
}

/// Whether an option hands a variable on.
fn hands_on(option: &str) -> bool {
    matches!(option, "-x" | "-e" | "--env" | "-env" | "--environment")
}

/// What an option hands on: of a list `A=1,B=2` each; a comma within a value is no end of it.
fn assignments_of(text: &str, listed: bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in text.split(',') {
        let begins = part.split_once('=').is_some_and(|(name, _)| is_name(name));
        match all.last_mut() {
            Some(last) if !listed || !begins => {
                last.push(',');
                last.push_str(part);
            }
            _ => all.push(part.to_owned()),
        }
    }
    all
}

/// The word that ends a here-document, if the command begins one.
pub(super) fn here_document(command: &[Word]) -> Option<String> {
    let at = command.iter().position(|word| word.text.starts_with("<<") && !word.text.starts_with("<<<"))?;
    let word = command[at].text.trim_start_matches("<<").trim_start_matches('-');
    let word = if word.is_empty() { &command.get(at + 1)?.text } else { word };
    Some(unquoted(word).to_owned())
}

/// The lines up to one that is `end`, and how many they are with that.
fn text_to(end: &str, letters: &mut impl Iterator<Item = char>) -> (String, u64) {
    let (mut text, mut lines, mut current) = (String::new(), 0, String::new());
    for c in letters {
        current.push(c);
        if c != '\n' {
            continue;
        }
        lines += 1;
        if current.trim() == end {
            return (text, lines);
        }
        text.push_str(&current);
        current.clear();
    }
    (text + &current, lines)
}

/// The options of `#SBATCH` lines, with these.
fn directives(text: &str) -> impl Iterator<Item = (u64, &str)> {
    (1_u64..).zip(text.lines()).filter_map(|(line, text)| Some((line, text.trim_start().strip_prefix("#SBATCH")?)))
}

/// `#SBATCH` options that matter here, beside those that set variables.
#[derive(Clone, Default)]
struct Directives {
    cpus_per_task: Option<(u64, u64)>,
    gpus_per_node: Option<u64>,
    export_none: Option<u64>,
}

impl Directives {
    fn of(text: &str) -> Self {
        let mut found = Self::default();
        for (line, rest) in directives(text) {
            let words: Vec<&str> =
                rest.split(|c: char| c.is_whitespace() || c == '=').filter(|w| !w.is_empty()).collect();
            let number = |text: Option<&&str>| -> Option<u64> {
                let text = text?;
                text.rsplit(':').next()?.parse().ok()
            };
            match words.first().copied().unwrap_or_default() {
                "--cpus-per-task" | "-c" => found.cpus_per_task = number(words.get(1)).map(|n| (n, line)),
                "--gpus-per-node" => found.gpus_per_node = number(words.get(1)),
                "--gres" if words.get(1).is_some_and(|w| w.starts_with("gpu")) => {
                    found.gpus_per_node = number(words.get(1));
                }
                "--export" if words.get(1).is_some_and(|w| w.eq_ignore_ascii_case("none")) => {
                    found.export_none = Some(line);
                }
                _ => {}
            }
        }
        found
    }
}

/// Which branch of each `if` and `case` is read: the `nth`, or the last of fewer.
#[derive(Clone)]
struct Taken {
    nth: usize,
    /// How many branches each has, in the order of the text.
    of: Vec<usize>,
}

/// An `if`, a `case` or a loop that is open.
#[derive(Clone, Copy)]
struct Block {
    /// Its place among all of the text.
    place: usize,
    /// How many of its branches have begun.
    begun: usize,
    is_case: bool,
}

#[derive(Clone, Default)]
struct Reader {
    /// All that is set, and what is said.
    scope: Scope,
    /// What is set for all commands that follow.
    lasting: Vec<Setting>,
    /// What is set for the command that is read alone.
    alone: Vec<Setting>,
    /// What each command saw that had settings of its own.
    commands: Vec<Vec<Setting>>,
    /// Something was set since then.
    unseen: bool,
    directives: Directives,
    /// Values with their lines of names that are not exported where they are set.
    pending: BTreeMap<String, (String, u64)>,
    /// `set -a` was seen: every assignment is exported.
    exports_all: bool,
    /// Blocks that are open: what is set in them may not be.
    blocks: Vec<Block>,
    /// How many branches each block has, in the order of the text.
    branches: Vec<usize>,
    /// Which of them are read; none where all are.
    taken: Option<Taken>,
    /// Settings outside of blocks, by name: whether another line sets them otherwise.
    firm: BTreeMap<String, String>,
    /// Settings that were exported in front of commands.
    exported: BTreeSet<String>,
    /// Settings of the command that is read alone, in front of it.
    own: BTreeSet<String>,
    /// The folder of the script; none where no file is to be sourced.
    folder: Option<PathBuf>,
    /// Files that are sourced, each once.
    sourced: BTreeSet<PathBuf>,
}

impl Reader {
    fn run(&mut self, all: &(Vec<Vec<Word>>, Vec<Document>), depth: usize) {
        // What a process is given goes before what NCCL's file says.
        let mut file = Scope::default();
        configuration(all, &mut file);
        self.lasting.extend(file.settings.iter().cloned());
        self.scope.settings.append(&mut file.settings);
        self.scope.signs.append(&mut file.signs);
        for command in &all.0 {
            self.command(command, depth);
        }
    }

    /// What the commands see: each that has settings of its own, and the others.
    fn seen(mut self) -> Vec<Vec<Setting>> {
        if self.unseen || self.commands.is_empty() {
            self.commands.push(self.lasting);
        }
        self.commands
    }

    fn finish(mut self, text: &str) -> Scope {
        if OF_MPICH.iter().any(|word| text.contains(word)) {
            self.scope.signs.retain(|sign| sign.rule != "not-forwarded");
        }
        let mut pending: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (name, (value, line)) in std::mem::take(&mut self.pending) {
            let used = text.contains(&format!("${name}")) || text.contains(&format!("${{{name}"));
            if is_of_processes(&name) && !used {
                pending.entry(line).or_default().push(format!("{name}={value}"));
            }
        }
        for (line, texts) in pending {
            let what = match &texts[..] {
                [one] => format!("{one} is not exported"),
                all => format!("{} and {} more are not exported", all[0], all.len() - 1),
            };
            self.scope.sign("not-exported", Some(line), what);
        }
        self.scope
    }

    fn command(&mut self, words: &[Word], depth: usize) {
        let Some(words) = self.within_blocks(words) else { return };
        let (outside, told_apart) = (self.alone.len(), self.commands.len());
        self.simple(words, depth);
        // One within it has seen what is set for it.
        if self.alone.len() > outside && self.commands.len() == told_apart {
            if self.lasting.len() > SETTINGS_MAX {
                self.lasting.extend(self.alone.drain(outside..));
                self.unseen = true;
            } else if let Some(last) = self.commands.last_mut().filter(|_| told_apart == COMMANDS_MAX) {
                last.extend_from_slice(&self.alone);
            } else {
                self.commands.push([&self.lasting[..], &self.alone].concat());
                self.unseen = false;
            }
        }
        self.alone.truncate(outside);
    }

    /// A command behind the words that open and close blocks; none where nothing is left of it, or it is in a branch that is
    /// not read.
    fn within_blocks<'w>(&mut self, words: &'w [Word]) -> Option<&'w [Word]> {
        let mut words = words;
        while let Some(first) = words.first() {
            let word = first.text.as_str();
            match word {
                "if" | "case" | "for" | "while" | "until" => {
                    let is_case = word == "case";
                    self.blocks.push(Block { place: self.branches.len(), begun: usize::from(!is_case), is_case });
                    self.branches.push(1);
                }
                "fi" | "esac" | "done" => _ = self.blocks.pop(),
                "else" | "elif" => self.begin_branch(),
                "then" | "do" | "time" | "exec" | "sudo" | "!" => {}
                // A pattern, as in `a) export NCCL_DEBUG=INFO`.
                _ if self.blocks.last().is_some_and(|block| block.is_case)
                    && word.ends_with(')')
                    && !word.contains(['(', '=']) =>
                {
                    self.begin_branch();
                }
                _ => break,
            }
            words = match word {
                "if" | "for" | "while" | "until" | "elif" => return None,
                "case" => &words[words.iter().position(|word| word.text == "in")? + 1..],
                _ => &words[1..],
            };
        }
        let is_read = |block: &Block| {
            self.taken.as_ref().is_none_or(|taken| {
                let last = taken.of.get(block.place).map_or(0, |of| of - 1);
                block.begun.saturating_sub(1) == taken.nth.min(last)
            })
        };
        self.blocks.iter().all(is_read).then_some(words)
    }

    fn begin_branch(&mut self) {
        if let Some(block) = self.blocks.last_mut() {
            block.begun += 1;
            self.branches[block.place] = block.begun.max(1);
        }
    }

    /// A command, with its assignments in front.
    fn simple(&mut self, words: &[Word], depth: usize) {
        let assigned = words.iter().take_while(|word| assignment(word).is_some()).count();
        let (assignments, command) = words.split_at(assigned);
        self.own.clear();
        for word in assignments {
            let Some((name, value)) = assignment(word) else { continue };
            if !is_of_interest(name) {
                continue;
            }
            if command.is_empty() && !self.exports_all && !self.exported.contains(name) {
                self.pending.insert(name.to_owned(), (value.to_owned(), word.line));
            } else {
                self.set(name, value, word.line, command.is_empty());
                self.own.extend((!command.is_empty()).then(|| name.to_owned()));
            }
        }
        let Some(program) = command.first() else { return };
        match program.text.rsplit('/').next().unwrap_or_default() {
            "export" | "declare" | "typeset" => self.export(&command[1..]),
            "set" => {
                for pair in command.windows(2) {
                    match (pair[0].text.as_str(), pair[1].text.as_str()) {
                        (_, "-a") | ("-o", "allexport") => self.exports_all = true,
                        (_, "+a") | ("+o", "allexport") => self.exports_all = false,
                        _ => {}
                    }
                }
            }
            "source" | "." if depth < DEPTH_MAX => {
                if let Some(file) = command.get(1) {
                    self.source(file, depth);
                }
            }
            "setenv" => {
                if let [_, name, value] = command {
                    self.set(&name.text, &value.text, name.line, true);
                }
            }
            "unset" => {
                let gone = |name: &str| command[1..].iter().any(|word| word.text == name);
                self.scope.settings.retain(|setting| !gone(&setting.name));
                self.lasting.retain(|setting| !gone(&setting.name));
                self.firm.retain(|name, _| !gone(name));
                self.exported.retain(|name| !gone(name));
                self.pending.retain(|name, _| !gone(name));
            }
            _ => {
                self.started(command);
                if depth < DEPTH_MAX {
                    for pair in command.windows(2) {
                        if matches!(pair[0].text.as_str(), "-c" | "-lc" | "-ec") && pair[1].text.contains(' ') {
                            self.run(&read(&pair[1].text, pair[1].line), depth + 1);
                        }
                    }
                }
            }
        }
    }

    /// The commands of a file that is sourced, all as if at the line that does so. What the script sets otherwise stands
    /// beside it on purpose.
    fn source(&mut self, file: &Word, depth: usize) {
        let Some(folder) = &self.folder else { return };
        let paths = [PathBuf::from(&file.text), folder.join(&file.text)];
        let Some(path) = paths.into_iter().find(|path| path.is_file()) else { return };
        let Ok(bytes) = input::read(&path) else { return };
        if !self.sourced.insert(path) {
            return;
        }
        let firm = std::mem::take(&mut self.firm);
        let mut commands = commands(&input::lossy(&bytes), 1);
        commands.iter_mut().flatten().for_each(|word| word.line = file.line);
        commands.iter().for_each(|command| self.command(command, depth + 1));
        self.firm = firm;
    }

    /// A program that is started, with its words.
    fn started(&mut self, command: &[Word]) {
        self.options(command);
        look(command, &mut self.scope);
        self.launcher(command);
    }

    fn export(&mut self, words: &[Word]) {
        for word in words {
            match assignment(word) {
                Some((name, value)) => self.set(name, value, word.line, true),
                None => {
                    if let Some((value, line)) = self.pending.remove(&word.text) {
                        self.set(&word.text, &value, line, true);
                    }
                }
            }
        }
    }

    /// `lasting`: for all commands that follow, rather than for one.
    fn set(&mut self, name: &str, value: &str, line: u64, lasting: bool) {
        if !is_name(name) || !is_of_interest(name) {
            return;
        }
        self.scope.set(name, value, Some(line));
        let setting = Setting { name: name.to_owned(), value: value.to_owned(), line: Some(line) };
        if !lasting {
            self.alone.push(setting);
            return;
        }
        self.lasting.push(setting);
        self.unseen = true;
        self.exported.insert(name.to_owned());
        let itself = value.contains('$');
        if self.blocks.is_empty() && !itself {
            let earlier = self.firm.insert(name.to_owned(), value.to_owned());
            if let Some(earlier) = earlier.filter(|earlier| earlier != value) {
                self.scope.sign("set-twice", Some(line), format!("{name}={value}, and {earlier} above"));
            }
        }
    }

    /// A variable that an option hands on with the value that it has outside, which is not known here.
    fn pass(&mut self, name: &str, line: u64) {
        let known = |settings: &[Setting]| settings.iter().any(|setting| setting.name == name);
        if !known(&self.lasting) && !known(&self.alone) && !self.pending.contains_key(name) {
            self.set(name, &format!("${name}"), line, false);
        }
    }

    /// Variables that options hand to the program that is started.
    fn options(&mut self, command: &[Word]) {
        let is = |word: &Word, names: &[&str]| names.contains(&word.text.rsplit('/').next().unwrap_or_default());
        // Of words alone the image's own program comes first.
        let launches = command.first().is_some_and(|first| first.text.starts_with('-') || is(first, &LAUNCHERS));
        for (at, word) in command.iter().enumerate() {
            let next = command.get(at + 1);
            let (option, glued) = match word.text.split_once('=') {
                Some((option, rest)) if option.starts_with('-') => (option, Some(rest)),
                _ => (word.text.as_str(), None),
            };
            match option {
                option if hands_on(option) => {
                    let (text, line) = match (glued, next) {
                        (Some(text), _) => (text, word.line),
                        (None, Some(next)) => (next.text.as_str(), next.line),
                        (None, None) => continue,
                    };
                    let listed = command[..at].iter().any(|word| is(word, &["apptainer", "singularity"]));
                    for text in assignments_of(text, listed) {
                        match text.split_once('=') {
                            Some((name, value)) => self.set(name, unquoted(value), line, false),
                            None if launches => self.pass(&text, line),
                            None => {}
                        }
                    }
                }
                "--export" => {
                    if let Some((text, line)) =
                        glued.map(|text| (text, word.line)).or(next.map(|w| (w.text.as_str(), w.line)))
                    {
                        self.pairs(text, line);
                    }
                }
                // Pyxis: the container keeps what these are outside, whatever its image sets.
                "--container-env" => {
                    if let Some((text, line)) =
                        glued.map(|text| (text, word.line)).or(next.map(|w| (w.text.as_str(), w.line)))
                    {
                        text.split(',').for_each(|name| self.pass(name, line));
                    }
                }
                "-genv" => {
                    if let (Some(name), Some(value)) = (next, command.get(at + 2)) {
                        self.set(&name.text, &value.text, name.line, false);
                    }
                }
                "env" => {
                    for (name, value, line) in
                        command[at + 1..].iter().map_while(|w| assignment(w).map(|(n, v)| (n, v, w.line)))
                    {
                        self.set(name, value, line, false);
                    }
                }
                _ => {}
            }
        }
    }

    /// What `--export` of srun and sbatch hands on: `ALL,A=1,B='2,3'`. A comma ends a value that has no quotes. Without
    /// `ALL` nothing else of the environment goes with it.
    fn pairs(&mut self, text: &str, line: u64) {
        let mut quoted = false;
        let parts: Vec<&str> = text
            .split(|c: char| {
                quoted ^= c == '\'';
                c == ',' && !quoted
            })
            .collect();
        for (name, value) in parts.iter().filter_map(|part| part.split_once('=')) {
            self.set(name, unquoted(value), line, false);
        }
        if parts.iter().any(|part| part.eq_ignore_ascii_case("all")) {
            return;
        }
        let named = |name: &String| parts.iter().any(|part| part.split('=').next() == Some(name.as_str()));
        if let Some(left) = self.left_behind(named) {
            let what = format!("{left}: exported, and --export={text} leaves it out");
            self.scope.sign("srun-export", Some(line), what);
        }
    }

    /// Settings that a launcher has and does not name, in words.
    fn left_behind(&self, named: impl Fn(&String) -> bool) -> Option<String> {
        let mut left = self.exported.union(&self.own).filter(|name| is_of_processes(name) && !named(name));
        let first = left.next()?;
        Some(match left.count() {
            0 => first.clone(),
            more => format!("{first} and {more} more"),
        })
    }

    /// What a launcher of processes does with what is set.
    fn launcher(&mut self, command: &[Word]) {
        let Some(program) = command.first() else { return };
        let has = |options: &[&str]| command.iter().any(|word| options.contains(&word.text.as_str()));
        let name = program.text.rsplit('/').next().unwrap_or_default();
        if matches!(name, "mpirun" | "orterun" | "prterun") || (name == "mpiexec" && has(&OF_OPEN_MPI)) {
            let named =
                |name: &String| command.iter().any(|w| w.text == *name || w.text.starts_with(&format!("{name}=")));
            let elsewhere = names_other_hosts(command) && !hands_all_on(command);
            if let Some(left) = self.left_behind(named).filter(|_| elsewhere) {
                let what = format!("{left}: exported, and not named by -x");
                self.scope.sign("not-forwarded", Some(program.line), what);
            }
        }
        let with_gpus = || command.iter().any(|word| word.text.starts_with("--gpus") || word.text.contains("nvidia"));
        if matches!(name, "docker" | "podman" | "nerdctl") && has(&["run"]) && with_gpus() {
            let file = command.iter().any(|word| word.text.starts_with("--env-file"));
            let passed = |name: &String| {
                let given = |text: &str| text == name || text.starts_with(&format!("{name}="));
                command.iter().any(|word| {
                    let glued = word.text.split_once('=').filter(|(option, _)| hands_on(option)).map(|(_, text)| text);
                    given(&word.text) || glued.is_some_and(given)
                })
            };
            if let Some(left) = self.left_behind(passed).filter(|_| !file) {
                let what = format!("{left}: exported, and not named by -e");
                self.scope.sign("docker-env", Some(program.line), what);
            }
        }
        let torchrun = command.iter().any(|w| w.text.ends_with("torchrun") || w.text == "torch.distributed.run");
        if let Some(line) = self.directives.export_none.take_if(|_| !self.exported.is_empty()) {
            self.scope.sign("export-none", Some(line), "--export=NONE, and the script exports settings of NCCL");
        }
        if !torchrun {
            return;
        }
        if let Some((_, line)) = self.directives.cpus_per_task.take_if(|(cpus, _)| *cpus == 1) {
            let what = "--cpus-per-task=1: all processes that torchrun starts share one core";
            self.scope.sign("one-core", Some(line), what);
        }
        let processes = command.iter().enumerate().find_map(|(at, word)| {
            let (option, glued) = word.text.split_once('=').unwrap_or((&word.text, ""));
            let option = option.replace('_', "-");
            let value = if glued.is_empty() { command.get(at + 1).map_or("", |w| w.text.as_str()) } else { glued };
            (option == "--nproc-per-node").then(|| value.parse::<u64>().ok())?
        });
        self.scope.processes = self.scope.processes.saturating_add(processes.unwrap_or(0));
        if let (Some(processes), Some(gpus)) = (processes, self.directives.gpus_per_node)
            && processes < gpus
        {
            let what = format!("{processes} processes on a host of which {gpus} GPUs are asked for");
            self.scope.sign("unused-gpus", Some(program.line), what);
        }
    }
}

/// `NAME=VALUE`.
fn assignment(word: &Word) -> Option<(&str, &str)> {
    word.text.split_once('=').filter(|(name, _)| is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Vec<String> {
        parse(text, 1).settings.iter().map(|s| format!("{}:{}", s.line.unwrap_or_default(), s.text())).collect()
    }

    /// Goal: every way of setting a variable for a program is seen, with its line; data and comments are not.
    #[test]
    fn ways_of_setting_are_seen() {
        let text = "\
export NCCL_DEBUG=INFO # why
NCCL_ALGO=Ring NCCL_PROTO=\"LL,Simple\" ./run
mpirun -x NCCL_IB_HCA=mlx5_0,mlx5_1 \\
  -x NCCL_NET=IB ./run
srun --export=ALL,NCCL_NTHREADS=256 ./run
docker run -e NCCL_SHM_DISABLE=1 image bash -c \"export NCCL_PAT_ENABLE=0; run\"
cat <<EOF > file
export NCCL_BUFFSIZE=1
EOF
echo NCCL_CROSS_NIC=1
NCCL_MAX_CTAS=3
export NCCL_MAX_CTAS
env NCCL_LAUNCH_MODE=GROUP ./run
mpirun -x NCCL_IGNORE_CPU_AFFINITY -x NCCL_MAX_CTAS ./run
mpirun apptainer run --env NCCL_IB_HCA=mlx5_0,mlx5_1,NCCL_MIN_CTAS=2 image
grep -e NCCL_WIN_ENABLE log
";
        assert_eq!(
            settings(text),
            [
                "1:NCCL_DEBUG=INFO",
                "2:NCCL_ALGO=Ring",
                "2:NCCL_PROTO=LL,Simple",
                "3:NCCL_IB_HCA=mlx5_0,mlx5_1",
                "4:NCCL_NET=IB",
                "5:NCCL_NTHREADS=256",
                "6:NCCL_SHM_DISABLE=1",
                "6:NCCL_PAT_ENABLE=0",
                "11:NCCL_MAX_CTAS=3",
                "13:NCCL_LAUNCH_MODE=GROUP",
                // Its value is not known here; that of the other is set above.
                "14:NCCL_IGNORE_CPU_AFFINITY=$NCCL_IGNORE_CPU_AFFINITY",
                "15:NCCL_IB_HCA=mlx5_0,mlx5_1",
                "15:NCCL_MIN_CTAS=2",
            ]
        );
    }

    proptest::proptest! {
        /// Goal: no text panics.
        #[test]
        fn any_text_is_read(text in "(export |-x |NCCL_A=|if |fi|<<E|[\"'\\\\#;\n =$(){}|&])*", other: String) {
            let _ = script(Path::new(""), &text);
            let _ = script(Path::new(""), &other);
        }
    }
}
