//! A line for each call, in the file that `COLLCAST_TUNER_RECORD` names.
//!
//! A line is made on the stack and written in one piece to the end of the file, so that ranks of a host may share it.

use std::fs::File;
use std::io::{self, Cursor, Write as _};
use std::path::Path;
use std::process;

use crate::table::{ALGORITHMS, COLLECTIVES, PROTOCOLS};

/// The columns. `by`: `table`, `next` (the other tuner) or `nccl`. Algorithm and protocol are the cheapest cell when NCCL
/// goes on; channels 0 are NCCL's.
pub const HEADER: &str =
    "communicator,ranks,nodes,collective,bytes,pipe_ops,registered,by,algorithm,protocol,channels,pid\n";
/// Bytes of the longest line: twelve numbers of up to 20 digits.
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
pub struct Record {
    file: File,
    pid: u32,
}

impl Record {
    /// Opens the file at its end. Who makes it writes the header: of several processes that is one.
    ///
    /// # Errors
    /// What the system says, or a path that is no file: a pipe would hold up the job.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = match File::options().append(true).create_new(true).open(path) {
            Ok(mut new) => {
                new.write_all(HEADER.as_bytes())?;
                new
            }
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
                if !path.metadata()?.is_file() {
                    return Err(io::Error::other("it is no file"));
                }
                File::options().append(true).open(path)?
            }
            Err(why) => return Err(why),
        };
        Ok(Self { file, pid: process::id() })
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
        let Self { file, pid } = self;
        let mut file = file;
        let made = writeln!(
            text,
            "{communicator:x},{ranks},{nodes},{collective},{bytes},{pipe_ops},{registered},{by},{algorithm},{protocol},{channels},{pid}"
        );
        let length = usize::try_from(text.position()).unwrap_or(0);
        if made.is_ok() {
            let _ = file.write(buffer.get(..length).unwrap_or_default());
        }
    }
}
