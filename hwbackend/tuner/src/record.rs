//! A line for each call, in the file that `COLLCAST_TUNER_RECORD` names.
//!
//! A line is made on the stack and written in one piece to the end of the file, so that ranks of a host may share it.

use std::fs::File;
use std::io::{self, Cursor, Write as _};
use std::path::Path;

use crate::table::{ALGORITHMS, COLLECTIVES, PROTOCOLS};

/// The columns. `by`: `table`, `next` (the other tuner) or `nccl`. Algorithm and protocol are the cheapest cell when NCCL
/// goes on; channels 0 are NCCL's.
pub const HEADER: &str =
    "communicator,ranks,nodes,collective,bytes,pipe_ops,registered,by,algorithm,protocol,channels\n";
/// Bytes of the longest line: eleven numbers of up to 20 digits.
const LINE_MAX: usize = 256;

/// What was asked and chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// NCCL's number of the communicator; 0 before 2.28.
    pub communicator: u64,
    /// Its ranks.
    pub ranks: usize,
    /// Its hosts.
    pub nodes: usize,
    /// Index of the collective.
    pub collective: usize,
    /// Bytes as NCCL counts them.
    pub bytes: u64,
    /// Calls of the group.
    pub pipe_ops: u32,
    /// Whether buffers can be registered.
    pub registered: bool,
    /// Who decided.
    pub by: &'static str,
    /// Indices of algorithm and protocol, where one is open.
    pub pair: Option<(usize, usize)>,
    /// Channels.
    pub channels: i32,
}

/// The file.
#[derive(Debug)]
pub struct Record(File);

impl Record {
    /// Opens the file at its end; a new one gets the header.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::options().append(true).create(true).open(path)?;
        if file.metadata()?.len() == 0 {
            file.write_all(HEADER.as_bytes())?;
        }
        Ok(Self(file))
    }

    /// Writes a line; what the disk says is nobody's business in a job.
    pub fn write(&self, line: &Line) {
        let mut buffer = [0; LINE_MAX];
        let mut text = Cursor::new(&mut buffer[..]);
        let name = |known: &[&'static str], index: usize| known.get(index).copied().unwrap_or("-");
        let algorithm = line.pair.map_or("-", |(algorithm, _)| name(&ALGORITHMS, algorithm));
        let protocol = line.pair.map_or("-", |(_, protocol)| name(&PROTOCOLS, protocol));
        let Line { communicator, ranks, nodes, bytes, pipe_ops, by, channels, .. } = line;
        let (collective, registered) = (name(&COLLECTIVES, line.collective), u8::from(line.registered));
        let made = writeln!(
            text,
            "{communicator:x},{ranks},{nodes},{collective},{bytes},{pipe_ops},{registered},{by},{algorithm},{protocol},{channels}"
        );
        let length = usize::try_from(text.position()).unwrap_or(0);
        if made.is_ok() {
            let _ = (&self.0).write(buffer.get(..length).unwrap_or_default());
        }
    }
}
