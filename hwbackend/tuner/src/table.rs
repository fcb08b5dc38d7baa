//! Tables as `collcast tune` writes them: read once a communicator, then searched without allocation.
//!
//! Lines below a comment `# ranks of a domain: 4 to 8` are for communicators with such NVLink domains, up to one of `any`.
//! NCCL says what they are from 2.28 on.
//!
//! Lines below a comment `# kept:`, up to one of `# changes:`, repeat NCCL's own choice for that example: here they
//! leave it to NCCL, whatever later lines say.
//!
//! A line is `collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks[,pipe ops[,registered]]`, as NVIDIA's
//! example plugin takes it. A comment `# for: nccl=2.28.9 gpu=H200 form=other` says what the table was made for, and
//! `# for: gpus=8x2335 switches=4x22a3 nics=8x400` on which host it was measured. A table with such a comment ends in
//! `# end: 31 lines`. Comments `# with: NCCL_NVLS_ENABLE=0` say which variables NCCL was told. Unlike the example, a line with a
//! name that does not exist is an error, and with it the whole table: half of a table is none.

use std::fmt;

use crate::abi::{COLLNET_CHAIN, COLLNET_DIRECT, NVLS};
use crate::host::{Host, NICS, PARTS, kinds};

/// Algorithms in NCCL's order.
pub const ALGORITHMS: [&str; 7] = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
/// Protocols in NCCL's order.
pub const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
/// Collectives in NCCL's order.
pub const COLLECTIVES: [&str; 5] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"];
/// Most bytes of a table that are read: those of `collcast tune` are some KiB.
pub const BYTES_MAX: usize = 1 << 20;
/// Begins a comment above lines that hold for so many ranks of the communicator in each NVLink domain.
pub const A_DOMAIN: &str = "# ranks of a domain:";
/// Begins a comment that says what a table was made for.
pub const FOR: &str = "# for:";
/// Begins a comment with a variable that NCCL was told when the table was made: `# with: NCCL_NVLS_ENABLE=0`.
pub const WITH: &str = "# with:";
/// Begins a comment with the tuner that NCCL asks without the table: `# next: libnccl-net.so`.
pub const NEXT: &str = "# next:";
/// Begins the last comment of such a table: `# end: 31 lines`.
pub const END: &str = "# end:";
/// Most channels that NCCL has (`MAXCHANNELS`).
const CHANNELS_MAX: u32 = 64;

/// What to take for calls of some sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Smallest call, in bytes as NCCL counts them.
    pub from: u64,
    /// Largest.
    pub to: u64,
    /// Index of the algorithm.
    pub algorithm: usize,
    /// Index of the protocol.
    pub protocol: usize,
    /// Channels; 0 leaves them to NCCL, as always where switches of the network reduce.
    pub channels: u32,
    /// Calls of a group; any where there is none.
    pub pipe_ops: Option<u32>,
    /// Whether buffers can be registered; any where there is none.
    pub registered: Option<bool>,
    /// Whether it leaves such calls to NCCL, whose own choice it repeats.
    pub kept: bool,
}

/// What a table was made for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MadeFor {
    /// Major and minor version of NCCL.
    pub nccl: Option<(u32, u32)>,
    /// The GPU, such as `H200`.
    pub gpu: Option<String>,
    /// Its form, see [`form`].
    pub form: Option<String>,
    /// Variables that NCCL was told, with their values.
    pub with: Vec<(String, String)>,
    /// The tuner that NCCL asks without the table.
    pub next: Option<String>,
    /// Parts of the host that was measured, with their names: see [`Host`].
    pub host: Vec<(String, String)>,
}

/// A communicator, as NCCL says which it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Communicator {
    /// Ranks.
    pub ranks: usize,
    /// Hosts, or NVLink domains where these are larger.
    pub nodes: usize,
    /// The fewest and the most ranks of a domain, where NCCL says so.
    pub a_domain: Option<(usize, usize)>,
}

/// The lines of one communicator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// By collective: entries in the order of the file, of which the first that matches holds.
    entries: [Vec<Entry>; 5],
    /// By collective: entries are in order of size and do not overlap, so that they can be searched.
    sorted: [bool; 5],
}

/// Why a table is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It cannot be read, in the system's words.
    File(String),
    /// A line that is none, from 1.
    Line(usize),
    /// It has no line for this communicator.
    Nothing,
    /// More bytes than are read.
    TooLong,
    /// The file does not end in a line end: its writer was stopped, or it was cut.
    Cut,
    /// Its last line is not there, or counts other lines.
    End,
    /// It is for another version of NCCL: the table's, and this one.
    Version((u32, u32), (u32, u32)),
    /// It is for another GPU: the table's, and this one.
    Gpu(String, String),
    /// It is for another form of the GPU: the table's, and this GPU.
    Form(String, String),
    /// It was made for an NCCL that is told otherwise: the variable, the table's value, and the one here.
    Setting(String, String, Option<String>),
    /// It was measured on another kind of host: the part, the table's, and this one's.
    Host(String, String, String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(why) => f.write_str(why),
            Self::Line(line) => write!(f, "line {line} is no line of a table"),
            Self::Nothing => write!(f, "no line is for this number of ranks and hosts"),
            Self::TooLong => write!(f, "it has more than {BYTES_MAX} bytes"),
            Self::Cut => write!(f, "it ends within a line"),
            Self::End => write!(f, "its last line, `{END}`, is not there or counts other lines: it was cut or edited"),
            Self::Version(table, here) => {
                write!(f, "it is for NCCL {}.{}, and this is {}.{}", table.0, table.1, here.0, here.1)
            }
            Self::Gpu(table, here) => write!(f, "it is for {table}, and this is {here}"),
            Self::Form(table, here) => write!(f, "it is for GPUs of form={table}, and this is {here}"),
            Self::Setting(name, table, here) => {
                let here = here.as_ref().map_or_else(|| "not set".to_owned(), |value| format!("{name}={value}"));
                write!(f, "it was made with {name}={table}, and here it is {here}")
            }
            Self::Host(part, table, here) => {
                write!(f, "it was measured on another kind of host: its {part} are {table}, and here {here}")
            }
        }
    }
}

/// The text of a file, without the byte-order mark that editors begin files with.
///
/// # Errors
/// More bytes than are read, or no UTF-8.
pub fn text(bytes: &[u8]) -> Result<&str, Refused> {
    if bytes.len() > BYTES_MAX {
        return Err(Refused::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|why| Refused::File(format!("it is not UTF-8 text: {why}")))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

impl MadeFor {
    /// What the comments of a text say.
    pub fn of(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            if let Some((name, value)) = line.strip_prefix(WITH).and_then(|set| set.trim().split_once('=')) {
                found.with.push((name.to_owned(), value.to_owned()));
            }
            found.next = found.next.or_else(|| line.strip_prefix(NEXT).map(|name| name.trim().to_owned()));
        }
        let lines = text.lines().filter_map(|line| line.strip_prefix(FOR));
        for (key, value) in lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('=')) {
            match key {
                "nccl" => {
                    let mut numbers = value.split('.').map_while(|number| number.parse().ok());
                    found.nccl = numbers.next().zip(numbers.next());
                }
                "gpu" => found.gpu = Some(value.to_owned()),
                "form" => found.form = Some(value.to_owned()),
                part if PARTS.contains(&part) => found.host.push((part.to_owned(), value.to_owned())),
                _ => {}
            }
        }
        found
    }

    /// Whether it is the machine that this runs on, as far as both are known. Versions count to their minor.
    ///
    /// # Errors
    /// Another version, another GPU.
    pub fn check(&self, nccl: Option<(u32, u32)>, gpu: Option<&str>) -> Result<(), Refused> {
        if let (Some(table), Some(here)) = (self.nccl, nccl)
            && table != here
        {
            return Err(Refused::Version(table, here));
        }
        if let (Some(table), Some(here)) = (&self.gpu, gpu)
            && !names(here, table)
        {
            return Err(Refused::Gpu(table.clone(), here.to_owned()));
        }
        if let (Some(table), Some(here)) = (&self.form, gpu)
            && form(here) != table
        {
            return Err(Refused::Form(table.clone(), here.to_owned()));
        }
        Ok(())
    }

    /// Whether NCCL is told here what it was told when the table was made. A table that names nothing holds anywhere.
    ///
    /// # Errors
    /// A variable with another value, or none.
    pub fn check_settings(&self, here: impl Fn(&str) -> Option<String>) -> Result<(), Refused> {
        let other = |(name, value): &(String, String)| {
            let here = here(name);
            let same = here.as_ref().is_some_and(|here| here.trim().eq_ignore_ascii_case(value));
            (!same).then(|| Refused::Setting(name.clone(), value.clone(), here))
        };
        self.with.iter().find_map(other).map_or(Ok(()), Err)
    }

    /// Whether it was measured on this kind of host, as far as both are known: what differs among hosts of one job does not count.
    ///
    /// # Errors
    /// GPUs or switches of another kind.
    pub fn check_host(&self, host: &Host) -> Result<(), Refused> {
        let lacks = |here: &str, table: &str| kinds(table).any(|kind| kinds(here).all(|other| other != kind));
        let other = self.unlike(host).find(|(part, table, here)| *part != NICS && lacks(here, table));
        let own = |(part, table, here): (&str, &str, &str)| Refused::Host(part.into(), table.into(), here.into());
        other.map(own).map_or(Ok(()), Err)
    }

    /// Parts of a host that are not as where it was measured, each with the table's value and the host's.
    pub fn unlike<'t>(&'t self, host: &'t Host) -> impl Iterator<Item = (&'t str, &'t str, &'t str)> {
        let parts =
            self.host.iter().filter_map(|(part, table)| Some((part.as_str(), table.as_str(), host.part(part)?)));
        parts.filter(|(_, table, here)| table != here)
    }
}

/// The words of a GPU's name.
fn words(model: &str) -> impl Iterator<Item = &str> {
    model.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

/// The form of a GPU by its name: `pcie` and `nvl` are cards whose names say so, such as `NVIDIA H100 PCIe`; `other` are all
/// else, such as `NVIDIA H100 80GB HBM3`.
pub fn form(model: &str) -> &'static str {
    let cards = [("PCIe", "pcie"), ("NVL", "nvl")];
    let card = cards.into_iter().find(|(name, _)| words(model).any(|word| word.eq_ignore_ascii_case(name)));
    card.map_or("other", |(_, form)| form)
}

/// Whether the driver's name of a GPU (`NVIDIA H100 80GB HBM3`, `NVIDIA RTX 6000D`) has a short one in it: `H100`,
/// `RTX6000D`, as one word or as several in a row.
fn names(model: &str, short: &str) -> bool {
    let words: Vec<&str> = words(model).collect();
    let is_short = |words: &[&str]| words.concat().eq_ignore_ascii_case(short);
    (0..words.len()).any(|from| (from..words.len()).any(|to| is_short(&words[from..=to])))
}

impl Table {
    /// The lines of a text that are for a communicator.
    ///
    /// # Errors
    /// A text that is no table, or has no line for it.
    pub fn read(text: &str, communicator: Communicator) -> Result<Self, Refused> {
        let (mut table, mut known) = (Self::default(), false);
        walk(text, communicator, |collective, entry, here| {
            known |= here;
            if here {
                table.entries[collective].push(entry);
            }
        })?;
        if !known {
            return Err(Refused::Nothing);
        }
        table.sort();
        Ok(table)
    }

    /// How many lines of a text change NCCL's own choice, whatever communicators they are for.
    ///
    /// # Errors
    /// A text that is no table, or has no line.
    pub fn check(text: &str) -> Result<usize, Refused> {
        let (mut lines, mut changes) = (0, 0);
        let any = Communicator { ranks: 0, nodes: 0, a_domain: None };
        walk(text, any, |_, entry, _| {
            lines += 1;
            changes += usize::from(!entry.kept);
        })?;
        if lines == 0 { Err(Refused::Nothing) } else { Ok(changes) }
    }

    /// How many lines change a choice, and a hash of all (FNV-1a of 64 bits): hosts that answer alike have the same.
    pub fn fingerprint(&self) -> (usize, u64) {
        let (mut lines, mut hash) = (0, 0xcbf2_9ce4_8422_2325_u64);
        for (collective, entry) in
            (0_u64..).zip(&self.entries).flat_map(|(c, entries)| entries.iter().map(move |e| (c, e)))
        {
            let Entry { from, to, algorithm, protocol, channels, pipe_ops, registered, kept } = *entry;
            lines += usize::from(!kept);
            let (pipe_ops, registered) = (pipe_ops.map_or(u64::MAX, u64::from), registered.map_or(u64::MAX, u64::from));
            let taken = [algorithm as u64, protocol as u64, channels.into()].map(|of| if kept { u64::MAX } else { of });
            let [algorithm, protocol, channels] = taken;
            let numbers = [collective, from, to, algorithm, protocol, channels, pipe_ops, registered];
            for byte in numbers.into_iter().flat_map(u64::to_le_bytes) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        (lines, hash)
    }

    /// Appends the lines of another table, which hold where this one has none.
    pub fn append(&mut self, other: Self) {
        for (mine, theirs) in self.entries.iter_mut().zip(other.entries) {
            mine.extend(theirs);
        }
        self.sort();
    }

    fn sort(&mut self) {
        for (entries, sorted) in self.entries.iter_mut().zip(&mut self.sorted) {
            let mut by_size = entries.clone();
            by_size.sort_by_key(|entry| entry.from);
            let free = entries.iter().all(|e| e.pipe_ops.is_none() && e.registered.is_none());
            *sorted = free && by_size.windows(2).all(|pair| pair[0].to < pair[1].from);
            if *sorted {
                *entries = by_size;
            }
        }
    }

    /// The entries of a call, the first of which holds unless NCCL cannot do it; none from one on that leaves it to NCCL.
    pub fn matching(
        &self,
        collective: usize,
        bytes: u64,
        pipe_ops: u32,
        registered: bool,
    ) -> impl Iterator<Item = &Entry> {
        let all = self.entries.get(collective).map(Vec::as_slice).unwrap_or_default();
        let entries = if self.sorted.get(collective) == Some(&true) {
            let at = all.partition_point(|entry| entry.to < bytes);
            all.get(at..(at + 1).min(all.len())).unwrap_or_default()
        } else {
            all
        };
        let of_call = move |entry: &&Entry| {
            (entry.from..=entry.to).contains(&bytes)
                && entry.pipe_ops.is_none_or(|ops| ops == pipe_ops)
                && entry.registered.is_none_or(|needed| needed == registered)
        };
        entries.iter().filter(of_call).take_while(|entry| !entry.kept)
    }
}

/// Hands on each line of a text: its collective, what to take, and whether it is for a communicator.
fn walk(text: &str, of: Communicator, mut take: impl FnMut(usize, Entry, bool)) -> Result<(), Refused> {
    if text.len() > BYTES_MAX {
        return Err(Refused::TooLong);
    }
    if !text.ends_with('\n') {
        return Err(Refused::Cut);
    }
    let (mut kept, mut shaped) = (false, true);
    // Several tables may stand one after another: what is open is the last.
    let (mut headed, mut lines) = (false, 0);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(text) = line.strip_prefix(A_DOMAIN) {
            shaped = is_shape(text, of.a_domain).ok_or(Refused::Line(number))?;
        } else if let Some(text) = line.strip_prefix(END) {
            if text.trim() != format!("{lines} lines") {
                return Err(Refused::End);
            }
            (headed, lines) = (false, 0);
        } else if line.is_empty() || line.starts_with('#') {
            kept = (kept || line.starts_with("# kept:")) && !line.starts_with("# changes:");
            headed |= line.starts_with(FOR);
        } else {
            let (collective, entry, here) = parse(line, of).ok_or(Refused::Line(number))?;
            lines += 1;
            take(collective, Entry { kept, ..entry }, here && shaped);
        }
    }
    if headed { Err(Refused::End) } else { Ok(()) }
}

/// Whether ranks of a domain are those of a comment, as far as NCCL says them: `4 to 8`, or `any`.
fn is_shape(text: &str, here: Option<(usize, usize)>) -> Option<bool> {
    if text.trim() == "any" {
        return Some(true);
    }
    let (least, most) = text.split_once(" to ")?;
    let wanted = (least.trim().parse().ok()?, most.trim().parse().ok()?);
    Some(here.is_none_or(|here| here == wanted))
}

/// A line: its collective, what to take, and whether it is for this communicator.
fn parse(line: &str, of: Communicator) -> Option<(usize, Entry, bool)> {
    let mut fields = line.split(',').map(str::trim);
    let mut field = || fields.next();
    let place = |known: &[&str], name: &str| known.iter().position(|known| *known == name);
    let collective = place(&COLLECTIVES, field()?)?;
    let (from, to) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let (algorithm, protocol) = (place(&ALGORITHMS, field()?)?, place(&PROTOCOLS, field()?)?);
    // -1 is any.
    let number = |text: &str| text.parse::<i64>().ok().filter(|&number| number >= -1);
    let channels = u32::try_from(number(field()?)?.max(0)).ok().filter(|&channels| channels <= CHANNELS_MAX)?;
    // NCCL does not bound these by the channels that the communicator has (`isCollnet` of `src/enqueue.cc`).
    let unbounded = matches!(algorithm, COLLNET_DIRECT | COLLNET_CHAIN) || algorithm == NVLS && of.nodes > 1;
    let channels = if unbounded { 0 } else { channels };
    let is = |only: i64, here: usize| only == -1 || usize::try_from(only) == Ok(here);
    let here = is(number(field()?)?, of.nodes) & is(number(field()?)?, of.ranks);
    let pipe_ops = u32::try_from(field().map_or(Some(-1), number)?).ok();
    let registered = field().map_or(Some(-1), number)?;
    let registered = (registered >= 0).then_some(registered > 0);
    let whole = field().is_none() && from <= to;
    let kept = false;
    whole.then_some((collective, Entry { from, to, algorithm, protocol, channels, pipe_ops, registered, kept }, here))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str, ranks: usize, nodes: usize) -> Result<Table, Refused> {
        Table::read(text, Communicator { ranks, nodes, a_domain: None })
    }

    const TEXT: &str = "# for: nccl=2.28.9 gpu=H200\n\
        allreduce,0,1024,ring,ll,4,1,8,-1,-1\n\
        allreduce,1025,18446744073709551615,nvls,simple,16,1,8,-1,-1\n\
        allgather,0,100,ring,ll128,-1,-1,-1\n\
        allreduce,0,1024,tree,ll,2,2,16\n\
        # end: 4 lines\n";

    /// Goal: a communicator gets its lines; ends of ranges belong to them.
    #[test]
    fn lines_are_those_of_the_communicator() {
        let table = read(TEXT, 8, 1).unwrap();
        let taken = |bytes| table.matching(4, bytes, 1, false).next().map(|e| (e.algorithm, e.protocol, e.channels));
        assert_eq!(taken(0), Some((1, 0, 4)));
        assert_eq!(taken(1024), Some((1, 0, 4)));
        assert_eq!(taken(1025), Some((4, 2, 16)));
        assert_eq!(taken(u64::MAX), Some((4, 2, 16)));
        assert_eq!(table.matching(2, 101, 1, false).next(), None);
        assert_eq!(table.matching(2, 100, 1, false).next().unwrap().channels, 0);
        assert_eq!(table.matching(9, 1, 1, false).next(), None);
        assert_eq!(read(TEXT, 16, 2).unwrap().matching(4, 5, 1, true).next().unwrap().algorithm, 0);
        // What differs in a line that is used differs in the hash; comments do not count.
        let print = |text: &str| read(text, 8, 1).unwrap().fingerprint();
        assert_eq!((print(TEXT).0, print(&TEXT.replace("H200", "H100"))), (3, print(TEXT)));
        assert_ne!(print(TEXT), print(&TEXT.replace("ll,4,", "ll,8,")));
    }

    /// Goal: what repeats NCCL's own choice is left to NCCL, in each of several tables in a row, and is no reason to refuse one.
    #[test]
    fn kept_lines_are_left_to_nccl() {
        let kept = "# kept: x\nallreduce,0,9,ring,ll,4,1,8\n";
        let changed = "# changes:\nallreduce,10,99,ring,ll,4,1,8\n";
        let both = read(&format!("{changed}{kept}{changed}"), 8, 1).unwrap();
        let found = |table: &Table, bytes| table.matching(4, bytes, 1, false).count();
        assert_eq!((found(&both, 9), found(&both, 10)), (0, 2));
        // Of two tables for a call the first holds, where it keeps NCCL's choice too.
        let later = "allreduce,0,99,tree,ll,2,1,8\n";
        let beside = |first: &str, second: &str| {
            let mut all = read(first, 8, 1).unwrap();
            all.append(read(second, 8, 1).unwrap());
            (found(&all, 9), found(&all, 10), all.fingerprint().0)
        };
        assert_eq!((beside(kept, later), beside(later, kept)), ((0, 1, 1), (1, 1, 1)));
        assert_eq!(both.sorted, [true, true, true, true, false], "what overlaps is walked");
        assert!(read(&format!("{changed}{kept}"), 8, 1).unwrap().sorted[4], "lines in any order are searched");
        assert_eq!(found(&read(kept, 8, 1).unwrap(), 9), 0);
        assert_eq!(read(kept, 4, 1), Err(Refused::Nothing));
        assert_eq!((Table::check(kept), Table::check(&format!("{changed}{kept}"))), (Ok(0), Ok(1)));
    }

    /// Goal: a table that is not whole is refused with its line.
    #[test]
    fn what_is_no_table_is_refused() {
        for (text, why) in [
            ("", Refused::Cut),
            ("allreduce,0,1,ring,ll,4,1,8", Refused::Cut),
            ("allreduce,0,1,ring,ll,4,1,8\nallreduce,2,3,ri\n", Refused::Line(2)),
            ("alreduce,0,1,ring,ll,4,1,8\n", Refused::Line(1)),
            ("allreduce,5,1,ring,ll,4,1,8\n", Refused::Line(1)),
            ("allreduce,0,1,ring,ll,65,1,8\n", Refused::Line(1)),
            ("allreduce,0,1,ring,ll,4,1,8,-1,-1,-1\n", Refused::Line(1)),
            ("allreduce,0,1,ring,ll,4,1,4\n", Refused::Nothing),
            ("# nothing\n", Refused::Nothing),
            ("# for: gpu=H200\nallreduce,0,1,ring,ll,4,1,8\n", Refused::End),
            (&TEXT.replace("\nallgather,0,100,ring,ll128,-1,-1,-1", ""), Refused::End),
            (&format!("{TEXT}# for: gpu=H200\n"), Refused::End),
        ] {
            assert_eq!(read(text, 8, 1), Err(why), "{text}");
        }
        assert_eq!(read(&"#\n".repeat(BYTES_MAX), 8, 1), Err(Refused::TooLong));
        assert!(read(&TEXT.repeat(2), 8, 1).is_ok());
    }

    /// Goal: a table is refused for another version or GPU, and only where both are known.
    #[test]
    fn machines_are_told_apart() {
        let made_for = MadeFor::of(TEXT);
        assert!(made_for.check(Some((2, 28)), Some("NVIDIA H200")).is_ok());
        assert!(made_for.check(None, None).is_ok());
        assert!(MadeFor::default().check(Some((2, 30)), Some("x")).is_ok());
        assert_eq!(made_for.check(Some((2, 27)), None), Err(Refused::Version((2, 28), (2, 27))));
        assert!(matches!(made_for.check(None, Some("NVIDIA H100 80GB HBM3")), Err(Refused::Gpu(..))));
        for (model, short, same) in [
            ("NVIDIA H100 80GB HBM3", "H100", true),
            ("NVIDIA H200", "H20", false),
            ("NVIDIA GB200", "B200", false),
            ("NVIDIA RTX 6000D", "RTX6000D", true),
        ] {
            assert_eq!(names(model, short), same, "{model} {short}");
        }
    }

    /// Goal: a table of modules is refused on PCIe cards of the same name and the other way round; one that names no form is
    /// taken on both, as it was before tables named one.
    #[test]
    fn forms_are_told_apart() {
        for (gpu, form) in [
            ("NVIDIA H100 80GB HBM3", "other"),
            ("NVIDIA H100 PCIe", "pcie"),
            ("NVIDIA H100 NVL", "nvl"),
            ("NVIDIA A100-PCIE-40GB", "pcie"),
            ("NVIDIA GB200", "other"),
        ] {
            assert_eq!(super::form(gpu), form, "{gpu}");
        }
        let of = |comment: &str| MadeFor::of(comment).check(None, Some("NVIDIA H100 PCIe"));
        assert!(of("# for: gpu=H100\n").is_ok() && of("# for: gpu=H100 form=pcie\n").is_ok());
        assert!(matches!(of("# for: gpu=H100 form=other\n"), Err(Refused::Form(..))));
    }

    /// Goal: a table that was made with variables is refused where NCCL is told otherwise; one that names none is not.
    #[test]
    fn settings_are_told_apart() {
        let here = |name: &str| (name == "NCCL_ALGO").then(|| "ring".to_owned());
        let check = |comments: &str| MadeFor::of(comments).check_settings(here);
        assert!(check("# for: gpu=H200\n").is_ok() && check("# with: NCCL_ALGO=Ring\n").is_ok());
        let missing = Refused::Setting("NCCL_NVLS_ENABLE".to_owned(), "0".to_owned(), None);
        assert_eq!(check("# with: NCCL_ALGO=Ring\n# with: NCCL_NVLS_ENABLE=0\n"), Err(missing.clone()));
        assert_eq!(missing.to_string(), "it was made with NCCL_NVLS_ENABLE=0, and here it is not set");
        assert!(check("# with: NCCL_ALGO=tree;a=b\n").is_err());
    }

    /// Goal: a table that was measured on GPUs or switches of another kind is refused, and only where both are known. What one
    /// host of a job may have otherwise is told, and refuses nothing: NICs, and how many there are of anything.
    #[test]
    fn hosts_are_told_apart() {
        let measured = "# for: nccl=2.28.9 gpu=H200\n# for: gpus=8x2335 switches=none nics=2x400\n";
        let made_for = MadeFor::of(measured);
        assert_eq!(made_for.gpu.as_deref(), Some("H200"));
        assert!(made_for.check_host(&Host::default()).is_ok() && MadeFor::of(TEXT).check_host(&Host::here()).is_ok());
        let sys = tempfile::tempdir().unwrap();
        let port = sys.path().join("class/infiniband/mlx5_0/ports/1");
        std::fs::create_dir_all(&port).unwrap();
        std::fs::write(port.join("rate"), "400 Gb/sec (4X NDR)\n").unwrap();
        let one_port_down = Host::of(sys.path());
        assert_eq!(made_for.unlike(&one_port_down).collect::<Vec<_>>(), [("nics", "2x400", "1x400")]);
        assert!(made_for.check_host(&one_port_down).is_ok());
        for gpu in 0..7 {
            let device = sys.path().join(format!("bus/pci/devices/{gpu}"));
            std::fs::create_dir_all(&device).unwrap();
            for (name, text) in [("vendor", "0x10de\n"), ("device", "0x2335\n"), ("class", "0x030200\n")] {
                std::fs::write(device.join(name), text).unwrap();
            }
        }
        let seven = Host::of(sys.path());
        assert!(made_for.check_host(&seven).is_ok() && made_for.unlike(&seven).count() == 2);
        for (other, part) in [("gpus=8x2330", "gpus"), ("gpus=4x2335 switches=4x22a3", "switches")] {
            let refused = MadeFor::of(&format!("# for: {other}\n")).check_host(&seven).unwrap_err();
            assert!(matches!(&refused, Refused::Host(of, ..) if of == part), "{refused}");
        }
    }

    /// Goal: where switches of the network reduce, a line's channels are left to NCCL: it does not bound them by those that the
    /// communicator has.
    #[test]
    fn channels_of_collnet_are_nccls() {
        let text = "allreduce,0,9,collnet_direct,simple,64,-1,-1\nallgather,0,9,nvls,simple,64,-1,-1\n\
            reducescatter,0,9,nvls_tree,simple,64,-1,-1\nbroadcast,0,9,ring,simple,64,-1,-1\n";
        let channels = |nodes| {
            let table = read(text, 16, nodes).unwrap();
            [4, 2, 3, 0].map(|of| table.matching(of, 5, 1, false).next().unwrap().channels)
        };
        assert_eq!((channels(1), channels(2)), ([0, 64, 64, 64], [0, 0, 64, 64]));
    }

    /// Goal: of lines for as many ranks and hosts those hold whose NVLink domains are the communicator's; all that may be,
    /// where NCCL does not say.
    #[test]
    fn domains_pick_among_lines() {
        let text = "# ranks of a domain: 8 to 8\nallreduce,0,9,ring,ll,1,2,16\n\
            # ranks of a domain: 4 to 12\nallreduce,0,9,tree,ll,2,2,16\n\
            # ranks of a domain: any\nallgather,0,9,ring,ll,3,2,16\n";
        let channels = |a_domain| {
            let table = Table::read(text, Communicator { ranks: 16, nodes: 2, a_domain }).unwrap();
            [4, 2].map(|of| table.matching(of, 5, 1, false).map(|e| e.channels).collect::<Vec<_>>())
        };
        assert_eq!(channels(Some((8, 8))), [vec![1], vec![3]]);
        assert_eq!(channels(Some((4, 12))), [vec![2], vec![3]]);
        assert_eq!(channels(Some((6, 10))), [vec![], vec![3]]);
        assert_eq!(channels(None), [vec![1, 2], vec![3]]);
        for bad in ["8", "a to b", "8 to", ""] {
            let text = format!("# ranks of a domain: {bad}\nallreduce,0,9,ring,ll,1,2,16\n");
            assert_eq!(read(&text, 16, 2), Err(Refused::Line(1)), "{bad}");
        }
    }

    proptest! {
        /// Goal: a search gives what a walk over the lines gives, in order or not.
        #[test]
        fn a_search_is_a_walk(
            ends in proptest::collection::vec((0_u64..200, 0_u64..200, -1_i64..3, -1_i64..2), 1..12),
            bytes in 0_u64..220,
            ops in 0_u32..3,
            registered: bool,
        ) {
            let ends: Vec<_> = ends.into_iter().map(|(a, b, ops, reg)| (a.min(b), a.max(b), ops, reg)).collect();
            let line = |(i, (from, to, ops, reg)): (usize, &(u64, u64, i64, i64))| {
                format!("allreduce,{from},{to},ring,ll,{},-1,-1,{ops},{reg}\n", i + 1)
            };
            let text: String = ends.iter().enumerate().map(line).collect();
            let table = read(&text, 8, 1).unwrap();
            let walked = ends.iter().position(|&(from, to, o, reg)| {
                (from..=to).contains(&bytes)
                    && (o == -1 || o == i64::from(ops))
                    && (reg == -1 || (reg == 1) == registered)
            });
            let found = table.matching(4, bytes, ops, registered).next().map(|e| e.channels as usize - 1);
            prop_assert_eq!(found, walked);
        }

        /// Goal: no text panics, be it any, a table that was cut, or one with bytes overwritten; nor does who asks it.
        #[test]
        fn any_text_is_read(text: String, cut in 0_usize..300, over in "[0-9,#\n\u{0}x-]{1,9}", bytes: u64) {
            let cut = cut.min(TEXT.len());
            let mut other = TEXT.to_owned();
            other.replace_range(cut..(cut + over.len()).min(TEXT.len()), &over);
            for text in [&text, &TEXT[..cut], &other] {
                let _ = MadeFor::of(text);
                let table = read(text, 8, 1).unwrap_or_default();
                for collective in 0..6 {
                    let _ = table.matching(collective, bytes, 1, true).count();
                }
            }
        }
    }
}
