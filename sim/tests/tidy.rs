//! Holds the code to rules that no compiler knows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use collcast_sim::profile::Constant;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All Rust files below a directory, with their text.
fn rust_files(directory: &Path, into: &mut Vec<(PathBuf, String)>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            into.push((path, text));
        }
    }
}

/// The `src` of every crate of the workspace.
fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut crates: Vec<PathBuf> = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Cargo.toml").is_file() && path.join("src").is_dir())
        .collect();
    crates.push(root());
    crates.sort();
    for path in &crates {
        rust_files(&path.join("src"), &mut files);
    }
    files.retain(|(path, _)| path.file_name().is_none_or(|name| name != "tests.rs"));
    assert!(crates.len() >= 6 && files.len() > 20, "found {} crates, {} files", crates.len(), files.len());
    files
}

/// The lines of a file before its tests, with their numbers.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).take_while(|(_, line)| line.trim() != "#[cfg(test)]")
}

/// Fails with every place at which `is_bad` holds.
fn check_lines(files: &[(PathBuf, String)], rule: &str, is_bad: impl Fn(&str) -> bool) {
    let places: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| code_lines(text).map(move |(number, line)| (path, number, line)))
        .filter(|(_, _, line)| !line.trim_start().starts_with("//") && is_bad(line))
        .map(|(path, number, line)| format!("{}:{number}: {}", path.display(), line.trim()))
        .collect();
    assert!(places.is_empty(), "{rule}:\n{}", places.join("\n"));
}

/// Goal: the engine knows nothing of what is computed, so that no result is special-cased.
#[test]
fn the_engine_names_no_algorithm() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src/engine"), &mut files);
    assert!(files.len() >= 3);
    for (path, text) in files {
        for word in ["Algorithm", "Collective"] {
            assert!(!text.contains(word), "{} contains `{word}`", path.display());
        }
    }
}

/// Goal: what NCCL decides is known without a schedule, a schedule without a machine's network or clock.
#[test]
fn rooms_point_one_way() {
    let later = ["schedule", "network", "profile", "engine", "predict", "workload"];
    for (room, later) in [("nccl", &later[..]), ("schedule", &later[1..])] {
        let mut files = Vec::new();
        rust_files(&root().join("sim/src").join(room), &mut files);
        assert!(files.len() > 10, "{room}");
        let of_later = |line: &str| later.iter().any(|later| line.contains(&format!("crate::{later}")));
        check_lines(&files, &format!("`{room}` uses what comes after it"), of_later);
    }
}

/// Goal: a profile has no knob without effect.
#[test]
fn every_constant_is_used() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src/profile"), &mut files);
    let code: String = files.iter().flat_map(|(_, text)| code_lines(text).map(|(_, line)| line)).collect();
    let words: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != ':').collect();
    for constant in Constant::ALL {
        assert!(words.contains(format!("Constant::{constant:?}").as_str()), "`{constant}` is not used");
    }
}

/// Whether a line declares numbers that are no integers: shares, times, rates, odds.
fn declares_numbers(line: &str) -> bool {
    let declared = line.split_once("const ").and_then(|(_, rest)| rest.split_once(':'));
    let Some((name, declared)) = declared else { return false };
    let shouted = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let of = declared.split('=').next().unwrap_or_default();
    shouted && (of.contains("f64") || of.contains("f32"))
}

/// Goal: a number that is in no profile has its reason or its origin beside it: the comment above it or above those
/// that it stands with. No time and no rate is written where it is used.
#[test]
fn numbers_outside_profiles_say_why() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src"), &mut files);
    rust_files(&root().join("scenarios/src"), &mut files);
    rust_files(&root().join("topologies/src"), &mut files);
    let mut declared = 0;
    for (path, text) in &files {
        let mut explained = false;
        for (number, line) in code_lines(text) {
            let line = line.trim();
            if declares_numbers(line) {
                assert!(explained, "{}:{number}: {line}", path.display());
                declared += 1;
            }
            explained = !line.is_empty() && (explained || line.starts_with("//"));
        }
    }
    assert!(declared > 40, "{declared}");
    let is_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    check_lines(&files, "numbers without a name", |line| {
        ["from_us(", "from_gb_per_s("].iter().any(|call| line.split(call).skip(1).any(is_digit))
    });
}

/// Goal: the work of reading a file is in proportion to it: no line is counted from the start of the text.
#[test]
fn importers_do_not_count_lines_again() {
    let mut files = Vec::new();
    rust_files(&root().join("sim/src/schedule/msccl"), &mut files);
    check_lines(&files, "lines are found in an index, once made", |line| line.contains("text_pos_at"));
}

/// Goal: nothing is left for later.
#[test]
fn nothing_is_unfinished() {
    let places = ["todo!", "unimplemented!"];
    check_lines(&sources(), "unfinished code", |line| places.iter().any(|p| line.contains(p)));
}

/// Goal: errors are values outside of tests.
#[test]
fn nothing_is_unwrapped_outside_tests() {
    check_lines(&sources(), "`.unwrap()` outside tests", |line| line.contains(".unwrap()"));
}

/// The command line, a crate of its own beside the library.
const CLI: &str = "src/cli/";

/// A file of a crate as the search for circles sees it.
struct Module {
    file: String,
    /// Its names from the root of its crate on.
    path: Vec<String>,
    /// Its code without comments, tests and `use`.
    code: String,
    uses: Vec<Use>,
}

/// One name that a file brings into scope.
struct Use {
    name: String,
    /// From the root of the crate on.
    path: Vec<String>,
    exported: bool,
}

/// The names of modules that a file under `src` stands for.
fn names_of(file: &Path) -> Vec<String> {
    let mut names: Vec<String> = file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if names.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        names.pop();
    }
    names
}

/// A file's code without comments and tests; `pub` for every visibility.
fn bare_code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            if lines.next().is_some_and(|next| next.trim_end().ends_with(';')) {
                continue;
            }
            break;
        }
        if !line.trim_start().starts_with("//") {
            code += line;
            code.push('\n');
        }
    }
    let mut parts = code.split("pub(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + "pub" + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// The paths of a tree as in `a::{b, c::d as e}`, each with the name it brings.
fn leaves(tree: &str, before: &[String], into: &mut Vec<(String, Vec<String>)>) {
    let tree = tree.trim();
    let (head, group) = match tree.split_once('{') {
        Some((head, rest)) => (head, rest.strip_suffix('}')),
        None => (tree, None),
    };
    let (head, alias) = head.split_once(" as ").map_or((head, None), |(head, alias)| (head, Some(alias.trim())));
    let mut path = before.to_vec();
    path.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty() && *part != "self").map(str::to_owned));
    if head.trim_start().starts_with("self::") {
        path.insert(0, "self".to_owned());
    }
    let Some(group) = group else {
        let name = alias.or(path.last().map(String::as_str)).unwrap_or_default().to_owned();
        return into.push((name, path));
    };
    let (mut depth, mut from) = (0_i32, 0);
    for (at, letter) in group.char_indices().chain([(group.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[from..at].trim().is_empty() {
                    leaves(&group[from..at], &path, into);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

impl Module {
    fn new(file: String, path: Vec<String>, text: &str, all: &BTreeSet<Vec<String>>) -> Self {
        let mut module = Self { file, path, code: String::new(), uses: Vec::new() };
        let code = bare_code(text);
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let plain = line.trim_start();
            let exported = plain.starts_with("pub use ");
            let Some(start) = plain.strip_prefix("pub ").unwrap_or(plain).strip_prefix("use ") else {
                module.code += line;
                module.code.push('\n');
                continue;
            };
            let mut tree = start.to_owned();
            while !tree.contains(';') {
                let Some(more) = lines.next() else { break };
                tree.push(' ');
                tree += more;
            }
            let mut found = Vec::new();
            leaves(tree.split(';').next().unwrap_or_default(), &[], &mut found);
            for (name, path) in found {
                if let Some(path) = module.rooted(&path, all) {
                    module.uses.push(Use { name, path, exported });
                }
            }
        }
        module
    }

    /// A path as it is written here from the root of the crate on; `None` for what belongs to another crate.
    fn rooted(&self, path: &[String], all: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
        let mut base = self.path.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (base, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            child => {
                let own: Vec<String> = base.iter().cloned().chain([child.to_owned()]).collect();
                if !all.contains(&own) {
                    return None;
                }
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// All paths that it names: what it brings into scope, unless it only passes that on from its children, and those
    /// in its code.
    fn named(&self, all: &BTreeSet<Vec<String>>) -> Vec<Vec<String>> {
        let mut named = Vec::new();
        let words: BTreeSet<&str> = self.code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for one in &self.uses {
            let passed_on = one.exported && one.path.starts_with(&self.path);
            if !passed_on || words.contains(one.name.as_str()) {
                named.push(one.path.clone());
            }
        }
        for word in self.code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
            let path: Vec<String> = word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
            if path.len() > 1 {
                named.extend(self.rooted(&path, all));
            }
        }
        named
    }
}

/// The file in which what a path names is defined: through all modules that pass it on.
fn defined_in<'m>(modules: &'m BTreeMap<Vec<String>, Module>, path: &[String], depth: usize) -> Option<&'m Module> {
    let length = (0..=path.len()).rev().find(|&length| modules.contains_key(&path[..length]))?;
    let module = &modules[&path[..length]];
    let passed_on = path.get(length).and_then(|item| module.uses.iter().find(|u| u.name == *item));
    match passed_on.filter(|_| depth < 8) {
        Some(one) => {
            let path: Vec<String> = one.path.iter().chain(&path[length + 1..]).cloned().collect();
            defined_in(modules, &path, depth + 1)
        }
        None => Some(module),
    }
}

/// The circles of a crate's files, each by its place under `src`: the files, and which names which how.
fn circles(folder: &str, files: &[(PathBuf, String)]) -> Vec<(BTreeSet<String>, Vec<String>)> {
    let names: Vec<Vec<String>> = files.iter().map(|(path, _)| names_of(path)).collect();
    let all: BTreeSet<Vec<String>> = names.iter().cloned().collect();
    let modules: BTreeMap<Vec<String>, Module> = files
        .iter()
        .zip(names)
        .map(|((file, text), path)| {
            let file = format!("{folder}{}", file.display());
            (path.clone(), Module::new(file, path, text, &all))
        })
        .collect();
    let mut graph: DiGraphMap<&str, ()> = DiGraphMap::new();
    let mut how: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for module in modules.values() {
        for path in module.named(&all) {
            let Some(to) = defined_in(&modules, &path, 0).filter(|to| to.file != module.file) else { continue };
            graph.add_edge(module.file.as_str(), to.file.as_str(), ());
            how.entry((&module.file, &to.file)).or_insert_with(|| path.join("::"));
        }
    }
    let of = |component: Vec<&str>| {
        let inside: BTreeSet<String> = component.into_iter().map(str::to_owned).collect();
        let edges = how.iter().filter(|((from, to), _)| inside.contains(*from) && inside.contains(*to));
        let edges = edges.map(|((from, to), path)| format!("  {from} -> {to}: {path}")).collect();
        (inside, edges)
    };
    tarjan_scc(&graph).into_iter().filter(|component| component.len() > 1).map(of).collect()
}

/// Goal: who uses the library compiles no clap, and nothing of it prints.
#[test]
fn the_library_has_no_command_line() {
    let mut files = Vec::new();
    rust_files(&root().join("src"), &mut files);
    files.retain(|(path, _)| !path.starts_with(root().join(CLI)) && !path.ends_with("tests.rs"));
    assert!(files.len() > 30, "{} files", files.len());
    for word in ["clap", "println!", "eprintln!", "process::exit", "ExitCode", "say!"] {
        check_lines(&files, &format!("`{word}` in the library"), |line| line.contains(word));
    }
}

/// Lines of a file, its tests aside, from which on its head has to say why.
const LONG_FILE: usize = 800;

/// Goal: a file can be read in one go.
#[test]
fn files_are_short() {
    let mut files = sources();
    rust_files(&root().join(CLI), &mut files);
    let long = files.iter().filter(|(_, text)| code_lines(text).count() > LONG_FILE);
    let unsaid: Vec<String> = long
        .filter(|(_, text)| {
            !text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains("One file"))
        })
        .map(|(path, text)| format!("{}: {} lines", path.display(), code_lines(text).count()))
        .collect();
    assert!(
        unsaid.is_empty(),
        "over {LONG_FILE} lines; split them, or say `One file: ...` in the head:\n{}",
        unsaid.join("\n")
    );
}

/// Goal: files can be read one after another, each before those that use it.
///
/// A module that declares its children and passes their names on uses none of them; one that calls them does.
#[test]
fn files_form_no_circle() {
    let crates = ["sim/src/", "topologies/src/", "scenarios/src/", "hwbackend/src/", "reports/src/", "src/", CLI];
    let mut found = Vec::new();
    for folder in crates {
        let mut files = Vec::new();
        rust_files(&root().join(folder), &mut files);
        files.retain(|(path, _)| path.file_name().is_none_or(|name| name != "tests.rs"));
        files.retain(|(path, _)| folder == CLI || !path.starts_with(root().join(CLI)));
        files.iter_mut().for_each(|file| file.0 = file.0.strip_prefix(root().join(folder)).unwrap().to_owned());
        found.extend(circles(folder, &files).into_iter().map(|(_, edges)| edges.join("\n")));
    }
    assert!(found.is_empty(), "files that use each other:\n{}", found.join("\n\n"));
}

/// Goal: the search sees circles through `use`, paths in code, parents and names that are passed on, and no others.
#[test]
fn circles_are_seen() {
    let circle = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        circles("", &files).into_iter().map(|(files, _)| files.into_iter().collect()).collect::<Vec<Vec<String>>>()
    };
    let none: Vec<Vec<String>> = Vec::new();
    let three =
        [("a.rs", "use crate::b::{self, c as d};"), ("b.rs", "use super::c::C;"), ("c.rs", "fn f() { crate::a::g() }")];
    assert_eq!(circle(&three), [["a.rs", "b.rs", "c.rs"]]);
    let told = [("a.rs", "// use crate::b;\n"), ("b.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests {}")];
    assert_eq!(circle(&told), none);
    let tests = [("a.rs", "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n"), ("b.rs", "use crate::a::A;")];
    assert_eq!(circle(&tests), none);
    // A parent that only passes its child on, and one that calls it.
    let child = ("p/x.rs", "use super::Y;");
    assert_eq!(circle(&[("p/mod.rs", "mod x;\npub use x::X;\npub struct Y;"), child]), none);
    for parent in ["mod x;\npub struct Y;\nfn f() { x::g() }", "pub use x::X;\npub struct Y(X);"] {
        assert_eq!(circle(&[("p/mod.rs", parent), child]), [["p/mod.rs", "p/x.rs"]], "{parent}");
    }
    // Who names what a parent passes on uses the file that defines it.
    let parent = ("p/mod.rs", "pub(crate) use s::S;\npub use t::{T};");
    let passed_on = |t| circle(&[parent, ("p/s.rs", "use crate::p::T;"), ("p/t.rs", t)]);
    assert_eq!(passed_on("pub struct T;"), none);
    assert_eq!(passed_on("use super::S;"), [["p/s.rs", "p/t.rs"]]);
}
