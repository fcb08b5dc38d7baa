//! Scenarios of serving and transfers: the options of a command by name, built in or in a file.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::error::ErrorKind;
use collcast::files::read_text;
use collcast_scenarios::builtin::serving;
use serde::Deserialize;

/// What a scenario's file begins with.
const SCHEMA: &str = "collcast/serving/1";
/// Commands that scenarios are of, and options of theirs that take a place instead of a name.
const COMMANDS: [(&str, &str); 2] = [("serve", "model"), ("transfer", "topology")];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    schema: String,
    #[serde(rename = "description")]
    _description: String,
    command: String,
    options: toml::Table,
}

/// The text of a scenario by its name, or in a file.
fn text_of(name: &str) -> Option<String> {
    let known = serving().iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    known.or_else(|| {
        let path = Path::new(name);
        let text = path.extension().filter(|e| *e == "toml").and_then(|_| read_text("read", path).ok())?;
        text.contains(SCHEMA).then_some(text)
    })
}

/// Words of a command with a scenario's options in place of its name; those that are given beside it replace its own. Words
/// without a scenario are as they were. `all` are the commands.
pub(super) fn expand(mut all: Command, words: &[OsString]) -> Result<Vec<OsString>, clap::Error> {
    let command = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    if !COMMANDS.iter().any(|(known, _)| *known == command) {
        return Ok(words.to_vec());
    }
    let found =
        words.iter().enumerate().skip(2).find_map(|(at, word)| Some((at, word.to_str()?, text_of(word.to_str()?)?)));
    let Some((at, name, text)) = found else { return Ok(words.to_vec()) };
    // Programs write `--` before it.
    let before = at - usize::from(words[at - 1] == "--");
    let others = || words[2..before].iter().chain(&words[at + 1..]);
    let refuse = |what: String| clap::Error::raw(ErrorKind::ValueValidation, format!("scenario `{name}`: {what}\n"));
    let scenario: Scenario = toml::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    if scenario.schema != SCHEMA {
        return Err(refuse(format!("its schema is `{}`, expected {SCHEMA}", scenario.schema)));
    }
    let Some((command, placed)) = COMMANDS.iter().find(|(command, _)| *command == scenario.command) else {
        return Err(refuse(format!("`{}` is no command of scenarios: take serve or transfer", scenario.command)));
    };
    all.build();
    let options = all.find_subcommand(command);
    let given = |key: &str| {
        let option = options.and_then(|of| of.get_arguments().find(|arg| arg.get_long() == Some(key)));
        let others_of = option.and_then(clap::Arg::get_all_aliases).unwrap_or_default();
        let flags: Vec<String> = std::iter::once(key).chain(others_of).map(|name| format!("--{name}")).collect();
        let short = option.and_then(clap::Arg::get_short).map(|short| format!("-{short}"));
        let is = |word: &str| {
            let name = word.split('=').next().unwrap_or_default();
            flags.iter().any(|flag| flag == name) || short.as_ref().is_some_and(|s| word.starts_with(s.as_str()))
        };
        others().any(|word| word.to_str().is_some_and(is))
    };
    // An option that is given also replaces those that it cannot be with.
    let excludes = |of: &Command, a: &clap::Arg, b: &clap::Arg| {
        of.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id())
    };
    let replaced = |key: &str| {
        let own = options.and_then(|of| Some((of, of.get_arguments().find(|arg| arg.get_long() == Some(key))?)));
        own.is_some_and(|(of, own)| {
            let mut others = of.get_arguments().filter(|other| other.get_long().is_some_and(given));
            others.any(|other| excludes(of, other, own) || excludes(of, own, other))
        })
    };
    let mut expanded: Vec<OsString> = vec![words[0].clone(), (*command).into()];
    for (key, value) in &scenario.options {
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            _ => return Err(refuse(format!("`{key}` is neither a text nor a number"))),
        };
        if key == placed {
            expanded.push(text.into());
        } else if !given(key) && !replaced(key) {
            expanded.push(format!("--{key}={text}").into());
        }
    }
    expanded.extend(others().cloned());
    Ok(expanded)
}

/// Names and descriptions of those that are built in, as help shows them.
pub(super) fn listed() -> String {
    let one = |(name, text): &(&str, &str)| {
        let line = text.lines().find_map(|line| line.strip_prefix("description = "));
        format!("  {name:<22}{}\n", line.unwrap_or_default().trim_matches('"'))
    };
    serving().iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

    use clap::CommandFactory;

    use super::super::program::Cli;
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    /// Goal: a name stands for its options, those beside it win, and other words stay as they are.
    #[test]
    fn names_stand_for_options() {
        let found = expand(Cli::command(), &words("collcast serve llama3-70b-2x8 --rate 3 --format json")).unwrap();
        let found: Vec<&str> = found.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(found[..2], ["collcast", "serve"]);
        assert!(found.contains(&"llama3-70b") && found.contains(&"--decode=1x8"), "{found:?}");
        assert!(found.ends_with(&["--rate", "3", "--format", "json"]) && !found.contains(&"--rate=6"), "{found:?}");
        assert_eq!(expand(Cli::command(), &words("collcast serve kv-1gb")).unwrap()[1], "transfer");
        // By another spelling, and by a letter.
        let found = expand(Cli::command(), &words("collcast serve mooncake-qwen3-8b --topology dgx-h200")).unwrap();
        assert!(!found.iter().any(|word| word.to_string_lossy().starts_with("--on=")), "{found:?}");
        let found = expand(Cli::command(), &words("collcast serve kv-1gb -s 2G")).unwrap();
        assert!(!found.iter().any(|word| word.to_string_lossy().starts_with("--size=")), "{found:?}");
        // What excludes each other: other workers, other requests, another question.
        for (line, left_out) in [
            ("serve llama3-70b-2x8 --aggregated 2x8", &["--prefill", "--decode", "--hand-off"][..]),
            ("serve mooncake-qwen3-8b --trace t.csv", &["--rate", "--input", "--output-tokens"]),
            ("transfer offload-or-recompute --from gpu:0 --to gpu:1 -s 1G", &["--break-even"]),
            ("transfer kv-1gb --break-even llama3-8b", &["--from", "--to", "--size"]),
        ] {
            let own =
                |word: &OsString| left_out.iter().any(|name| word.to_string_lossy().starts_with(&format!("{name}=")));
            let found = expand(Cli::command(), &words(&format!("collcast {line}")));
            assert!(found.as_ref().is_ok_and(|found| !found.iter().any(own)), "{found:?}");
            let read = found.as_ref().is_ok_and(|found| Cli::command().try_get_matches_from(found).is_ok());
            assert!(read, "{found:?}");
        }
        // As programs put it.
        let found = expand(Cli::command(), &words("collcast serve --rate=3 -- llama3-70b-2x8")).unwrap();
        assert!(found.iter().any(|word| word == "--decode=1x8") && !found.iter().any(|word| word == "--"), "{found:?}");
        for same in ["collcast serve llama3-70b", "collcast simulate kv-1gb", "collcast"] {
            assert_eq!(expand(Cli::command(), &words(same)).unwrap(), words(same));
        }
    }
}
