//! The file of defaults: options as keys, commands as tables.

use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use collcast::Error;
use collcast::files::read_text;
use collcast_sim::collective::nearest;
use toml::de::{DeTable, DeValue};

use super::known::{Default, FILE, folder, has_none, options};

/// The file, where there is one.
pub(super) fn path() -> Option<PathBuf> {
    match std::env::var_os(FILE) {
        Some(named) if named.is_empty() => None,
        Some(named) => Some(named.into()),
        None => folder().map(|folder| folder.join("config.toml")).filter(|file| file.exists()),
    }
}

/// The defaults of the file for a command, those of all commands first. The keys of the whole file are read: one that is unknown
/// is told whatever command runs.
pub(super) fn defaults(all: &Command, names: &[String]) -> Result<Vec<Default>, Error> {
    let Some(path) = path() else { return Ok(Vec::new()) };
    let text = read_text("read the defaults", &path)?;
    let reader = Reader { path: &path, text: &text };
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        reader.refused(at, error.message(), "keys are options without dashes, tables are commands, as in [sweep]")
    })?;
    let mut found = Vec::new();
    reader.read(all, table.get_ref(), Some(names), &mut found)?;
    found.sort_by_key(|default| std::cmp::Reverse(default.rank));
    Ok(found)
}

/// A file while it is read.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    /// File and line of a byte.
    fn place(&self, at: usize) -> String {
        format!("{}:{}", self.path.display(), self.text[..at].matches('\n').count() + 1)
    }

    fn refused(&self, at: usize, what: &str, hint: &str) -> Error {
        Error::usage(format!("{}: {what}", self.place(at)), hint)
    }

    /// Reads the table of a command, and those within it. `names` are the words that still name the command that runs; none in
    /// tables of others.
    fn read(
        &self,
        command: &Command,
        table: &DeTable<'_>,
        names: Option<&[String]>,
        found: &mut Vec<Default>,
    ) -> Result<(), Error> {
        for (key, value) in table {
            let (at, key) = (key.span().start, key.get_ref().as_ref());
            if let DeValue::Table(inner) = value.get_ref() {
                let known = || command.get_subcommands().filter(|inner| !inner.is_hide_set());
                let Some(of) = known().find(|of| of.get_name() == key) else {
                    return Err(self.unknown(&format!("[{key}]"), at, nearest(key, known().map(Command::get_name))));
                };
                let rest =
                    names.and_then(<[String]>::split_first).filter(|(first, _)| *first == key).map(|(_, rest)| rest);
                self.read(of, inner, rest, found)?;
                continue;
            }
            let known = options(command);
            if has_none(key) {
                let hint = "give it each time: it says what a command is for, what it writes, or what it tells";
                return Err(self.refused(at, &format!("`{key}` has no default"), hint));
            }
            // Another command's old spelling may be what this one is called.
            let exact = known.iter().find(|arg| arg.get_long() == Some(key));
            let option = exact.or_else(|| known.iter().find(|arg| is_spelling(arg, key)));
            let Some(option) = option.and_then(|arg| arg.get_long()) else {
                return Err(self.unknown(
                    &format!("`{key}`"),
                    at,
                    nearest(key, known.iter().filter_map(|arg| arg.get_long())),
                ));
            };
            let values = texts(value.get_ref()).ok_or_else(|| {
                self.refused(
                    at,
                    &format!("`{key}` is neither text nor number, yes or no, nor a list of these"),
                    "write it as \"...\"",
                )
            })?;
            if let Some(names) = names {
                let (option, rank) = (option.to_owned(), 1 + names.len());
                found.push(Default { option, values, from: self.place(at), rank });
            }
        }
        Ok(())
    }

    fn unknown(&self, key: &str, at: usize, near: Option<&str>) -> Error {
        let hint = near.map_or_else(
            || "keys are options without dashes, tables are commands, as in [sweep]".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        self.refused(at, &format!("{key} is no option or command"), &hint)
    }
}

/// Whether a name is another spelling of an option.
fn is_spelling(arg: &Arg, name: &str) -> bool {
    arg.get_all_aliases().unwrap_or_default().contains(&name)
}

fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::String(text) => Some(vec![text.to_string()]),
        DeValue::Integer(number) => Some(vec![number.to_string()]),
        DeValue::Float(number) => Some(vec![number.to_string()]),
        DeValue::Boolean(yes) => Some(vec![yes.to_string()]),
        DeValue::Array(several) => {
            several.iter().map(|one| texts(one.get_ref())).collect::<Option<Vec<_>>>().map(|all| all.concat())
        }
        DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}
