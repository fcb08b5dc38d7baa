//! Tables of copies and of NICs: each is fitted by itself.

use std::path::{Path, PathBuf};

use collcast_reports::model::Input;
use collcast_sim::hash::fnv1a;

use super::read::headed;
use super::table::Table;
use crate::error::Error;
use crate::files::read_text;

/// Columns by which a table of NICs is known.
const NETWORK: [&str; 8] = ["kind", "src", "dst", "qps", "size_bytes", "time_us", "time_us_p5", "time_us_p95"];

/// What a table is of that has neither collectives nor kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probed {
    /// Copies, as `bench --backend transfer` writes it.
    Copies,
    /// NICs, as `probe --backend verbs` writes it.
    Network,
}

impl Probed {
    /// What a file is of, by its header; none where it is no such table, or a folder.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(path: &Path) -> Result<Option<Self>, Error> {
        if path.is_dir() || !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv")) {
            return Ok(None);
        }
        let text = read_text("read the table", path)?;
        let (header, _) = headed(&text);
        let is_copies = Table::of_header(&header) == Some(Table::HostCopy) && header.contains(&"us_min");
        let is_network = NETWORK.iter().all(|column| header.contains(column));
        Ok(is_copies.then_some(Self::Copies).or(is_network.then_some(Self::Network)))
    }

    /// What its rows are.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Network => "NICs",
        }
    }

    /// The rows of files, all of which are such tables.
    pub(super) fn read<T>(
        self,
        paths: &[PathBuf],
        rows_of: impl Fn(&str, &str) -> Result<Vec<T>, Error>,
    ) -> Result<(Vec<T>, Vec<Input>), Error> {
        let (mut rows, mut inputs) = (Vec::new(), Vec::new());
        for path in paths {
            let file = path.display().to_string();
            if Self::of(path)? != Some(self) {
                let message = format!("`{file}` is no table of {}, as another file is", self.name());
                return Err(Error::usage(message, "fit each kind of measurements by a command of its own"));
            }
            let text = read_text("read the table", path)?;
            rows.extend(rows_of(&file, &text)?);
            let hash = format!("fnv1a64:{:016x}", fnv1a(text.as_bytes()));
            inputs.push(Input { name: "measurements".to_owned(), path: Some(file), hash });
        }
        Ok((rows, inputs))
    }
}
