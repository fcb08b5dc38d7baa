//! Dockerfiles: `ENV`, and what `RUN` installs.

use super::shell;
use crate::files::quoted;
use crate::lint::launch::Word;
use crate::lint::setting::{Scope, is_name, is_of_interest};

/// Most settings that stages take from others.
const TAKEN_MAX: usize = 10_000;

/// A stage of a build: what it sets and installs, beginning with that of the stage it is from.
#[derive(Default)]
struct Stage {
    name: String,
    scope: Scope,
    /// Packages of NCCL with their versions and lines.
    versions: Vec<(String, String, u64)>,
}

/// A scope for each stage.
pub(super) fn file(text: &str) -> Vec<Scope> {
    let mut stages: Vec<Stage> = vec![Stage::default()];
    let mut taken = 0;
    for (line, instruction) in instructions(text) {
        let Some(Stage { scope, versions, .. }) = stages.last_mut() else { continue };
        let Some((word, rest)) = instruction.trim_start().split_once(char::is_whitespace) else { continue };
        let word = word.to_uppercase();
        match word.as_str() {
            "FROM" => {
                let stage = from(rest, &stages, &mut taken);
                stages.push(stage);
            }
            "ENV" => environment(&shell::commands(rest, line).concat(), scope),
            "RUN" | "CMD" | "ENTRYPOINT" => {
                let rest = &as_shell(rest);
                let inner = shell::parse(rest, line);
                scope.signs.extend(inner.signs.into_iter().filter(|sign| sign.rule != "not-exported"));
                if word != "RUN" {
                    scope.settings.extend(inner.settings);
                }
                let mut all = shell::read(rest, line);
                // The text of `RUN <<EOF` is a script.
                for (command, text, line) in std::mem::take(&mut all.1) {
                    if command.len() > 1 {
                        all.1.push((command, text, line));
                        continue;
                    }
                    let inner = shell::read(&text, line);
                    all.0.extend(inner.0);
                    all.1.extend(inner.1);
                }
                if word == "RUN" {
                    shell::configuration(&all, scope);
                }
                for command in all.0 {
                    versions.extend(command.iter().filter_map(|w| {
                        let (package, version) = package(&w.text)?;
                        Some((package.to_owned(), version.to_owned(), w.line))
                    }));
                }
            }
            "COPY" | "ADD" => shell::configuration(&shell::read(&instruction, line), scope),
            _ => {}
        }
    }
    stages.into_iter().map(Stage::judged).collect()
}

/// The stage that `FROM IMAGE [AS NAME]` begins, with what that of the image's name has. Names know no case.
fn from(rest: &str, stages: &[Stage], taken: &mut usize) -> Stage {
    let mut words = rest.split_whitespace().filter(|word| !word.starts_with("--"));
    let image = words.next().unwrap_or_default();
    let name = words.nth(1).unwrap_or_default().to_owned();
    let mut stage = Stage { name, ..Stage::default() };
    if let Some(base) = stages.iter().rev().find(|stage| stage.name.eq_ignore_ascii_case(image)) {
        *taken += base.scope.settings.len() + base.versions.len();
        if *taken <= TAKEN_MAX {
            stage.scope.settings.clone_from(&base.scope.settings);
            stage.versions.clone_from(&base.versions);
        }
    }
    stage
}

impl Stage {
    fn judged(self) -> Scope {
        let Self { mut scope, versions, .. } = self;
        if let Some((one, other)) = versions.iter().zip(versions.iter().skip(1)).find(|(a, b)| a.1 != b.1) {
            let what = format!("{} is {} and {} is {}", one.0, one.1, other.0, other.1);
            scope.sign("two-nccls", Some(other.2), what);
        }
        scope
    }
}

/// `ENV A=1 B=2`, or the older `ENV A 1`.
fn environment(words: &[Word], scope: &mut Scope) {
    let mut set = |name: &str, value: &str, line| {
        if is_name(name) && is_of_interest(name) {
            scope.set(name, value, Some(line));
        }
    };
    match words {
        [name, rest @ ..] if !name.text.contains('=') => {
            let value: Vec<&str> = rest.iter().map(|word| word.text.as_str()).collect();
            set(&name.text, &value.join(" "), name.line);
        }
        _ => words.iter().for_each(|word| {
            if let Some((name, value)) = word.text.split_once('=') {
                set(name, value, word.line);
            }
        }),
    }
}

/// A command as a shell has it: of the list `["a", "b c"]` its words in quotes.
fn as_shell(text: &str) -> String {
    let words: Option<Vec<String>> = serde_json::from_str(text.trim()).ok();
    words.map_or_else(|| text.to_owned(), |words| words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" "))
}

/// A package of NCCL and its plain version: `libnccl2=2.18.3-1+cuda12.1`, `nvidia-nccl-cu12==2.21.5`.
fn package(word: &str) -> Option<(&str, &str)> {
    let (name, version) = word.split_once('=')?;
    let version = version.trim_start_matches('=');
    let end = version.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(version.len());
    let known = name == "libnccl2" || name == "libnccl-dev" || name.starts_with("nvidia-nccl-cu");
    (known && end > 0).then(|| (name, &version[..end]))
}

/// Instructions with the line that each begins on; what a line ends in `\` goes on in the next, comments between them are
/// dropped. A here-document belongs to its instruction.
fn instructions(text: &str) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    let mut open: Option<(u64, String)> = None;
    let mut lines = (1_u64..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        if line.trim_start().starts_with('#') {
            // Keeps the count of lines within an instruction.
            if let Some((_, text)) = &mut open {
                text.push_str("\\\n");
            }
            continue;
        }
        let (from, mut whole) = open.take().unwrap_or((number, String::new()));
        whole.push_str(line);
        if line.trim_end().ends_with('\\') {
            whole.push('\n');
            open = Some((from, whole));
            continue;
        }
        if let Some(end) = shell::commands(&whole, from).iter().find_map(|command| shell::here_document(command)) {
            for (_, line) in lines.by_ref() {
                whole.push('\n');
                whole.push_str(line);
                if line.trim() == end {
                    break;
                }
            }
            whole.push('\n');
        }
        all.push((from, whole));
    }
    all.extend(open);
    all
}
