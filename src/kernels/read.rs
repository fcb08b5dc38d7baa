//! Reads tables of measured kernels.

use collcast_sim::compute::Compute;
use collcast_sim::compute::fit::Sample;

use super::table::{Cells, Table, sample};

/// What one file gives about a GPU.
#[derive(Clone, PartialEq, Debug)]
pub struct Read {
    /// Which table it is.
    pub table: Table,
    /// Rows of the GPU, each with its line, from 1.
    pub samples: Vec<(u64, Sample)>,
    /// Rows of other GPUs.
    pub others: usize,
}

/// Why a file cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It is no table of kernels: its header is of none.
    Header {
        /// Line, from 1.
        line: u64,
        /// The header; empty where there is none.
        header: String,
    },
    /// It is one, and a row is wrong.
    Row {
        /// Line, from 1.
        line: u64,
        /// What is wrong there.
        message: String,
    },
}

/// Lines of a table with their numbers, from 1; comments and blank lines are none.
fn lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    (1_u64..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty())
}

/// The header of a table, and the lines below it.
pub(super) fn headed(text: &str) -> (Vec<&str>, impl Iterator<Item = (u64, &str)>) {
    let mut lines = lines(text);
    (lines.next().map_or_else(Vec::new, |(_, first)| cells(first)), lines)
}

/// Reads a table about `gpu` from its text; lines that begin with `#` are comments.
///
/// # Errors
/// A header of no known table; a row without a cell, or with one that is not what its column is about.
pub fn read(text: &str, gpu: &Compute) -> Result<Read, Trouble> {
    let mut lines = lines(text);
    let (line, first) = lines.next().unwrap_or((1, ""));
    let header = cells(first);
    let unknown = || Trouble::Header { line, header: first.to_owned() };
    let table = Table::of_header(&header).ok_or_else(unknown)?;
    let mut read = Read { table, samples: Vec::new(), others: 0 };
    for (line, text) in lines {
        let cells = cells(text);
        if cells.len() != header.len() {
            let message = format!("{} cells, but the header has {}", cells.len(), header.len());
            return Err(Trouble::Row { line, message });
        }
        let row = Cells { header: &header, cells };
        if table.names_gpus() && !gpu.is_of(row.text("gpu")) {
            read.others += 1;
        } else {
            let sample = sample(table, &row).map_err(|message| Trouble::Row { line, message })?;
            read.samples.extend(sample.map(|sample| (line, sample)));
        }
    }
    Ok(read)
}

/// Cells of a line: a comma between double quotes belongs to its cell.
pub(super) fn cells(line: &str) -> Vec<&str> {
    let mut quoted = false;
    let split = move |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    line.split(split).map(|cell| cell.trim().trim_matches('"')).collect()
}
