//! One answer from several machines: each works out a part of its calls, and the parts are put together.
//!
//! `collcast sweep --shard 2/16` writes a part, and `collcast merge` reads all [`Parts`] and answers what `sweep` answers. A part is
//! read by the version that wrote it.

use std::fmt;
use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use collcast_sim::MODEL;
use collcast_sim::hash::Fnv;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::files::read_text;
use crate::site::Site;
use crate::values::in_runs;

/// What a file with a part begins with.
const SCHEMA: &str = "collcast/part/1";

/// Parts of an answer at most: more than any machine runs jobs.
const MOST: usize = 1_000_000;
/// Runs of missing parts that are listed.
const LISTED: usize = 8;

/// One of several shares of an answer's calls: `2/16` is the second of 16.
///
/// ```
/// let shard: collcast::shard::Shard = "2/3".parse()?;
/// assert_eq!((0..6).filter(|&call| shard.has(call)).collect::<Vec<_>>(), [1, 4]);
/// # Ok::<(), collcast::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Shard {
    index: usize,
    of: usize,
}

impl Shard {
    /// Whether the call at a place is in it. Neighbours are in different ones: they take about as long.
    pub fn has(&self, place: usize) -> bool {
        place % self.of + 1 == self.index
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let read = text.split_once('/').and_then(|(index, of)| Some(Self { index: number(index)?, of: number(of)? }));
        read.filter(|shard| (1..=shard.of).contains(&shard.index) && shard.of <= MOST).ok_or_else(|| {
            Error::usage(format!("`{text}` is no shard: write 1/N to N/N, N at most {MOST}"), "such as 2/16")
        })
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

/// A hash of what an answer depends on: parts with the same one go together.
pub fn question<'s>(sites: impl IntoIterator<Item = &'s Site>, calls: &impl fmt::Debug) -> String {
    let mut hash = Hashed::default();
    for Site { topology, profile, told, graphs, .. } in sites {
        let _ = write!(hash, "{topology:?} {profile:?} {told:?} {graphs:?}");
    }
    let _ = write!(hash, "{calls:?}");
    format!("fnv1a64:{:016x}", hash.0.finish())
}

/// A hash of text that is never there as a whole: that of 65,536 GPUs is long.
#[derive(Default)]
struct Hashed(Fnv);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The version, and the hash of the model, that write and read parts.
fn version() -> String {
    format!("{} ({MODEL})", env!("CARGO_PKG_VERSION"))
}

/// A part of an answer, as a file has it.
#[derive(Serialize, Deserialize)]
struct Part<T> {
    schema: String,
    version: String,
    /// The command with its words.
    command: Vec<String>,
    /// Of machines, profiles, settings and calls.
    question: String,
    shard: Shard,
    /// What was worked out, by place.
    answers: T,
}

/// The text of the file of one part, which `command` made.
pub fn write<T: Serialize>(command: Vec<String>, question: &str, shard: Shard, answers: &[T]) -> String {
    let part =
        Part { schema: SCHEMA.to_owned(), version: version(), command, question: question.to_owned(), shard, answers };
    // What has only strings as keys has a form in JSON.
    serde_json::to_string(&part).unwrap_or_default() + "\n"
}

/// All parts of one answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Parts {
    /// The command that made them: its words without the program, which part it is and where that is written.
    pub command: Vec<String>,
    question: String,
    answers: Vec<(PathBuf, Value)>,
}

impl Parts {
    /// Reads them, in any order.
    ///
    /// # Errors
    /// A file that is no part, or of another version or question; a part that is missing or there twice.
    pub fn read(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut parts = paths.iter().map(|path| Ok((path, read(path)?))).collect::<Result<Vec<_>, Error>>()?;
        parts.sort_by_key(|(_, part)| part.shard);
        let Some((first_path, first)) = parts.first() else {
            return Err(Error::usage("there are no parts", "name the files that --shard wrote"));
        };
        for (path, part) in &parts {
            let differ = if part.shard.of != first.shard.of {
                format!("one of {}, the other of {}", first.shard.of, part.shard.of)
            } else if asked(part) != asked(first) {
                format!("`{}` and `{}`", asked(first).join(" "), asked(part).join(" "))
            } else if part.question != first.question {
                "a machine, suite, profile, setting or default changed in between".to_owned()
            } else {
                continue;
            };
            return Err(Error::usage(
                format!("`{}` and `{}` are parts of different answers: {differ}", first_path.display(), path.display()),
                "give the parts of one command",
            ));
        }
        if let Some([(one, part), (other, _)]) = parts.array_windows().find(|[a, b]| a.1.shard == b.1.shard) {
            return Err(Error::usage(
                format!("`{}` and `{}` are both part {}", one.display(), other.display(), part.shard),
                "leave one of them out",
            ));
        }
        let is_missing = |index: &usize| parts.binary_search_by_key(index, |(_, part)| part.shard.index).is_err();
        let missing: Vec<u32> = (1..=first.shard.of).filter(is_missing).map(|index| index as u32).collect();
        if let Some(one) = missing.first() {
            let of = first.shard.of;
            let runs = in_runs(&missing);
            let runs: Vec<&str> = runs.split(", ").collect();
            let (list, more) = (runs[..runs.len().min(LISTED)].join(","), runs.len().saturating_sub(LISTED));
            let (more, all) = match more {
                0 => (String::new(), format!("or all with `sbatch --array={list}`")),
                more => (format!(" and {more} more runs of them"), format!("or some with `sbatch --array={list}`")),
            };
            return Err(Error::usage(
                format!("of {of} parts these are missing: {list}{more}"),
                format!("work them out, the first with --shard {one}/{of}, {all}"),
            ));
        }
        Ok(Self {
            command: asked(first),
            question: first.question.clone(),
            answers: parts.into_iter().map(|(path, part)| (path.clone(), part.answers)).collect(),
        })
    }

    /// What the parts say of a question.
    ///
    /// # Errors
    /// That they are of another one: a file or a default has changed since; a file that was written by hand.
    pub fn answers<T: DeserializeOwned>(&self, question: &str) -> Result<Vec<T>, Error> {
        if self.question != question {
            return Err(Error::usage(
                "a machine, suite, profile, setting or default is not what it was when the parts were made",
                "make all parts again, or put it back",
            ));
        }
        let mut all = Vec::new();
        for (path, answers) in &self.answers {
            let answers: Vec<T> =
                serde_json::from_value(answers.clone()).map_err(|error| no_part(path, &error.to_string()))?;
            all.extend(answers);
        }
        Ok(all)
    }
}

/// The words that made a part, but for the program, which part it is, where it is written and whether notes are (`-q`).
fn asked(part: &Part<Value>) -> Vec<String> {
    let mut words = part.command.iter().skip(1).map(String::as_str);
    let mut asked = Vec::new();
    while let Some(word) = words.next() {
        // Letters may stand together, as in `-qo part.json`.
        let letters = word.strip_prefix('-').filter(|rest| !rest.is_empty() && !rest.starts_with('-'));
        match (word, letters.map(|letters| letters.trim_start_matches('q'))) {
            ("--shard" | "--output", _) | (_, Some("o")) => drop(words.next()),
            ("--quiet", _) | (_, Some("")) => {}
            (_, Some(letters)) if letters.starts_with('o') => {}
            (_, Some(letters)) => asked.push(format!("-{letters}")),
            _ if ["--shard=", "--output="].iter().any(|name| word.starts_with(name)) => {}
            _ => asked.push(word.to_owned()),
        }
    }
    asked
}

fn no_part(path: &Path, why: &str) -> Error {
    Error::usage(
        format!("`{}` is no part of an answer: {why}", path.display()),
        "make one: collcast sweep --shard 1/4 -o part-1.json",
    )
}

fn read(path: &Path) -> Result<Part<Value>, Error> {
    let text = read_text("read the part", path)?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| no_part(path, if error.is_eof() { "it is cut short, or empty" } else { "it is no JSON" }))?;
    match value["schema"].as_str() {
        Some(SCHEMA) => {}
        Some(other) => return Err(no_part(path, &format!("its schema is {other}"))),
        None => return Err(no_part(path, "it has no key `schema`")),
    }
    let (theirs, ours) = (value["version"].as_str().unwrap_or_default(), version());
    if theirs != ours {
        return Err(Error::usage(
            format!("`{}` was made by version {theirs}, and this is {ours}", path.display()),
            "make and merge parts with one version",
        ));
    }
    let part: Part<Value> = serde_json::from_value(value).map_err(|error| no_part(path, &error.to_string()))?;
    // Whoever wrote it by hand.
    part.shard.to_string().parse::<Shard>().map_err(|error| no_part(path, &error.to_string()))?;
    Ok(part)
}
