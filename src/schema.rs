//! The shape of every answer, and of files that people write, as JSON Schema.
//!
//! Those of answers are files in `docs/schemas`, which tests hold against real answers; those of files come from the types
//! that the files are read into.

use std::borrow::Cow;

use collcast_sim::collective::nearest;
use serde_json::Value;

use crate::check;
use crate::error::Error;

/// What a schema describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// What a command prints with `--format json`.
    Answer,
    /// A file that people write, in TOML.
    File,
}

/// A schema with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema {
    /// Name, such as `sweep` or `topology.toml`.
    pub name: &'static str,
    /// What it describes.
    pub of: Of,
    /// The same in some words.
    pub title: String,
    /// The schema, in JSON.
    pub text: Cow<'static, str>,
}

/// The answers with their schemas in `docs/schemas`, by name.
macro_rules! answers {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../docs/schemas/", $name, ".json")))),*]
    };
}

/// Every answer has one: tests run all commands.
const ANSWERS: &[(&str, &str)] = &answers!(
    "bench",
    "calibrate",
    "check",
    "compare",
    "config",
    "graph",
    "lint",
    "paths",
    "plan",
    "probe",
    "profile",
    "profile-diff",
    "profiles",
    "schemas",
    "self-test",
    "serve",
    "simulate",
    "sweep",
    "topologies",
    "topology",
    "topology-file",
    "trace",
    "transfer",
    "tune",
    "validate"
);

/// Makes a schema.
type Make = fn() -> String;

/// Files that people write: name, title, and what makes their schema.
const FILES: [(&str, &str, Make); 4] = [
    ("topology.toml", "A machine, of every command that takes one", collcast_topologies::file::json_schema),
    ("scenario.toml", "A training step, of `simulate` and `tune`", collcast_scenarios::file::json_schema),
    ("model.toml", "A model by its shape, of `plan` and `serve`", collcast_scenarios::transformer::file::json_schema),
    ("suite.toml", "What `check` guards", check::json_schema),
];

/// All schemas, those of answers first.
pub fn all() -> Vec<Schema> {
    let title = |text: &str| serde_json::from_str::<Value>(text).ok()?["title"].as_str().map(str::to_owned);
    let answers = ANSWERS.iter().map(|&(name, text)| Schema {
        name,
        of: Of::Answer,
        title: title(text).unwrap_or_default(),
        text: text.into(),
    });
    let files = FILES.iter().map(|(name, title, make)| Schema {
        name,
        of: Of::File,
        title: (*title).to_owned(),
        text: make().into(),
    });
    answers.chain(files).collect()
}

/// The schema with a name; that of an answer also by what its key `schema` says, such as `collcast/sweep/1`.
///
/// # Errors
/// A name that no schema has.
pub fn find(name: &str) -> Result<Schema, Error> {
    let all = all();
    let short = name.strip_prefix("collcast/").and_then(|rest| rest.split('/').next()).unwrap_or(name);
    all.iter().find(|schema| schema.name == short).cloned().ok_or_else(|| {
        let near = nearest(short, all.iter().map(|schema| schema.name));
        let hint = near.map(|near| format!("did you mean `{near}`?"));
        Error::usage(
            format!("there is no schema `{name}`"),
            hint.unwrap_or_else(|| "`collcast schema` lists them".to_owned()),
        )
    })
}
