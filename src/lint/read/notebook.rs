//! Notebooks of Jupyter: the Python of their cells, `%env`, and what `!` and `%%bash` hand to a shell.

use serde::Deserialize;

use super::{python, shell};
use crate::lint::setting::{Scope, is_name, is_of_interest};

#[derive(Deserialize, Default)]
struct Notebook {
    #[serde(default)]
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    source: Source,
}

/// A text by its lines, or whole.
#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    Lines(Vec<String>),
    Whole(String),
}

/// What the kernel will see, and by itself what each command sees that it starts.
pub(super) fn file(text: &str) -> Vec<Scope> {
    let notebook: Notebook = serde_json::from_str(text).unwrap_or_default();
    let mut place = Place { rest: text, line: 1 };
    let (mut kernel, mut started) = (Scope::default(), Vec::new());
    // The Python of all cells, and the line of the file of each of its lines.
    let (mut code, mut lines_of_code) = (String::new(), Vec::new());
    for cell in notebook.cells.into_iter().filter(|cell| cell.cell_type == "code") {
        let texts = match cell.source {
            Source::Lines(lines) => lines,
            Source::Whole(text) => vec![text],
        };
        let mut lines = Vec::new();
        for text in &texts {
            let line = place.of(text);
            lines.extend(text.lines().map(|text| (line, text)));
        }
        let Some(&(first, head)) = lines.first() else { continue };
        if ["%%bash", "%%sh", "%%script"].contains(&head.split_whitespace().next().unwrap_or_default()) {
            let script: Vec<&str> = lines[1..].iter().map(|(_, text)| *text).collect();
            started.push(shell::parse(&script.join("\n"), first + 1));
            continue;
        }
        for (line, text) in lines {
            if let Some(command) = text.trim_start().strip_prefix('!') {
                started.push(shell::parse(command, line));
            } else if let Some(magic) = text.trim_start().strip_prefix('%') {
                set(magic, line, &mut kernel);
            } else {
                code += text;
            }
            code.push('\n');
            lines_of_code.push(line);
        }
    }
    let mut python = python::file(&code);
    let lines =
        python.settings.iter_mut().map(|one| &mut one.line).chain(python.signs.iter_mut().map(|one| &mut one.line));
    for line in lines {
        *line = line.and_then(|line| lines_of_code.get(usize::try_from(line).ok()?.checked_sub(1)?).copied());
    }
    kernel.settings.append(&mut python.settings);
    kernel.settings.sort_by_key(|setting| setting.line);
    kernel.signs.append(&mut python.signs);
    started.insert(0, kernel);
    started
}

/// `env NAME=VALUE` or `set_env NAME VALUE`, which take quotes for a part of the value.
fn set(magic: &str, line: u64, scope: &mut Scope) {
    let Some((_, rest)) = magic.split_once(' ').filter(|(word, _)| matches!(*word, "env" | "set_env")) else { return };
    let parted = rest.split_once('=').or_else(|| rest.trim_start().split_once(' '));
    if let Some((name, value)) = parted.map(|(name, value)| (name.trim(), value.trim()))
        && is_name(name)
        && is_of_interest(name)
    {
        scope.set(name, value, Some(line));
    }
}

/// How far the text of a file was looked through.
struct Place<'t> {
    rest: &'t str,
    line: u64,
}

impl Place<'_> {
    /// The line of a text as JSON writes it; that of the one before, where JSON wrote it otherwise.
    fn of(&mut self, text: &str) -> u64 {
        let written = serde_json::to_string(text).unwrap_or_default();
        if let Some(at) = self.rest.find(&written) {
            self.line += self.rest[..at].matches('\n').count() as u64;
            self.rest = &self.rest[at + written.len()..];
        }
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what cells set is seen with its line in the file; texts, outputs and other magics are not.
    #[test]
    fn cells_are_read() {
        let text = r##"{
 "cells": [
  {"cell_type": "markdown", "source": ["%env NCCL_ALGO=Tree"]},
  {
   "cell_type": "code",
   "outputs": [{"text": ["gpu01:1:2 [0] NCCL INFO NCCL_NET set by environment to IB."]}],
   "source": [
    "import os\n",
    "os.environ[\"NCCL_ALGO\"] = \"Ring\"  # don't\n",
    "%env NCCL_PROTO=LL\n",
    "%set_env NCCL_DEBUG INFO\n",
    "%time run()\n",
    "!NCCL_NTHREADS=256 ./run --name=it's\n",
    "os.environ[\"NCCL_PROTO\"] = \"Simple\""
   ]
  },
  {"cell_type": "code", "source": "%%bash\nexport NCCL_IB_HCA=mlx5_0\n./run"}
 ]
}"##;
        let seen: Vec<Vec<String>> = (file(text).iter())
            .map(|scope| scope.settings.iter().map(|s| format!("{}:{}", s.line.unwrap_or(0), s.text())).collect())
            .collect();
        assert_eq!(seen[0], ["9:NCCL_ALGO=Ring", "10:NCCL_PROTO=LL", "11:NCCL_DEBUG=INFO", "14:NCCL_PROTO=Simple"]);
        assert_eq!(seen[1..], [vec!["13:NCCL_NTHREADS=256"], vec!["18:NCCL_IB_HCA=mlx5_0"]]);
    }

    proptest::proptest! {
        /// Goal: no text panics.
        #[test]
        fn any_text_is_read(text in "(\\{\"cells\":\\[|\\{\"cell_type\":\"code\",\"source\":|\"%env NCCL_A|[\"\\\\\n =\\[\\]{}:,%!])*", other: String) {
            let _ = file(&text);
            let _ = file(&other);
        }
    }
}
