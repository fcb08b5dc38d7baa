//! A file as a stream: unpacked, bounded, and parsed value by value.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read};
use std::marker::PhantomData;
use std::path::Path;

use collcast_sim::hash::fnv1a;
use collcast_topologies::input;
use flate2::bufread::MultiGzDecoder;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::call::Group;
use super::error::TraceError;
use super::head::{BYTES_MAX, Head};
use super::kineto::{self, Events, Kernels};
use super::loose::{Loose, Ranks, objects};
use super::recorder::{self, Entries, Entry};

/// Longest string that is read: a parser holds one at a time.
const STRING_MAX: u64 = 16 << 20;
/// Bytes at the beginning of a file that its hash is of.
const HASHED: usize = 1 << 16;
/// Most items of a list in a file's head, such as its groups.
const ITEMS_MAX: usize = 1 << 16;

/// Opens a file: its text, and its hash.
pub(super) fn open(path: &Path) -> Result<(Box<dyn Read>, String), TraceError> {
    let failed = |source| TraceError::File { path: path.to_owned(), source };
    let file = input::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut reader = BufReader::with_capacity(HASHED, file);
    let beginning = reader.fill_buf().map_err(failed)?;
    let hash = hash_of(beginning, metadata.len());
    match beginning {
        [0x1f, 0x8b, ..] => {
            let text = BufReader::with_capacity(HASHED, Guard::new(MultiGzDecoder::new(reader)));
            Ok((Box::new(text), hash))
        }
        // Protocol 2 and later begin so, and JSON never does.
        [0x80, ..] => Err(TraceError::Pickle { path: path.to_owned() }),
        text if !matches!(text.trim_ascii_start(), [b'{' | b'[', ..]) => {
            Err(TraceError::NoTrace { path: path.to_owned() })
        }
        _ => Ok((Box::new(BufReader::with_capacity(HASHED, Guard::new(reader))), hash)),
    }
}

/// Lets through what a parser can hold: so much text, in strings that are not too long.
struct Guard<R> {
    inner: R,
    left: u64,
    /// Bytes of the string that it is in.
    string: Option<u64>,
    escaped: bool,
}

impl<R> Guard<R> {
    fn new(inner: R) -> Self {
        Self { inner, left: BYTES_MAX, string: None, escaped: false }
    }

    fn check(&mut self, bytes: &[u8]) -> io::Result<()> {
        for &byte in bytes {
            match (&mut self.string, byte) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), b'\\') => self.escaped = true,
                (Some(_), b'"') => self.string = None,
                (Some(length), _) => {
                    *length += 1;
                    if *length > STRING_MAX {
                        return Err(io::Error::other("a string has more than 16 MiB"));
                    }
                }
                (None, b'"') => self.string = Some(0),
                (None, _) => {}
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        self.check(&buffer[..read])?;
        Ok(read)
    }
}

/// A hash of a file's beginning and length: whole files are too large to read twice.
fn hash_of(beginning: &[u8], length: u64) -> String {
    let mut bytes = beginning.to_vec();
    bytes.extend(length.to_le_bytes());
    format!("{:016x}", fnv1a(&bytes))
}

/// What a file has recorded.
#[derive(Clone, PartialEq, Debug)]
pub enum Recorded {
    /// A profiler's trace: all that a GPU did.
    Kernels(Kernels),
    /// A flight recorder's dump: the last calls.
    Calls(Vec<Entry>),
}

/// Parses a text of either kind; nothing is recorded in one of neither.
pub(super) fn parse(reader: impl Read) -> serde_json::Result<(Head, Option<Recorded>)> {
    let mut parts = Parts::default();
    let mut parser = serde_json::Deserializer::from_reader(reader);
    Top(&mut parts).deserialize(&mut parser)?;
    parser.end()?;
    Ok(parts.finish())
}

/// What was met so far.
#[derive(Default)]
struct Parts {
    head: Head,
    events: Option<kineto::Builder>,
    entries: Option<recorder::Builder>,
}

impl Parts {
    fn finish(self) -> (Head, Option<Recorded>) {
        let Self { mut head, events, entries } = self;
        let recorded = match (events, entries) {
            (Some(events), _) => Some(Recorded::Kernels(events.finish(&mut head))),
            (None, Some(entries)) => Some(Recorded::Calls(entries.finish(&mut head))),
            (None, None) => None,
        };
        (head, recorded)
    }

    fn say(&mut self, info: DistributedInfo) {
        let small = |value: &Loose| value.count().and_then(|n| u32::try_from(n).ok());
        self.head.rank = small(&info.rank);
        self.head.world = small(&info.world_size);
        if let Some(version) = info.nccl_version.text() {
            self.head.nccl = Some(version.to_owned());
        }
        self.groups(info.pg_config);
    }

    fn groups(&mut self, groups: Items<GroupOf>) {
        for (key, group) in groups.0 {
            let text = |a: &Loose, b: &Loose| a.text().or(b.text()).map(str::to_owned);
            let name = text(&group.pg_name, &group.name).unwrap_or(key);
            let description = text(&group.pg_desc, &group.desc).unwrap_or_default();
            let size = group.pg_size.count().map_or(group.ranks.0.len(), |n| usize::try_from(n).unwrap_or(0));
            let size = u32::try_from(size).unwrap_or(0);
            let ranks = group.ranks.0;
            self.head.groups.insert(name.clone(), Group { name, description, ranks, size });
        }
    }
}

/// The whole of a file.
struct Top<'p>(&'p mut Parts);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        while let Some(key) = parts.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => parts.next_value_seed(Events(self.0.events.get_or_insert_default()))?,
                "entries" => parts.next_value_seed(Entries(self.0.entries.get_or_insert_default()))?,
                "distributedInfo" => {
                    let info = parts.next_value()?;
                    self.0.say(info);
                }
                "pg_config" => {
                    let groups = parts.next_value()?;
                    self.0.groups(groups);
                }
                "deviceProperties" => {
                    let devices: Items<Device> = parts.next_value()?;
                    let name = devices.0.into_iter().find_map(|(_, device)| device.name.text().map(str::to_owned));
                    self.0.head.gpu = name;
                }
                "nccl_version" | "comm_lib_version" => {
                    let version: Loose = parts.next_value()?;
                    self.0.head.nccl = version.text().map(str::to_owned);
                }
                _ => {
                    parts.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    /// A list of events alone, as Chrome's tracing allows.
    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<(), A::Error> {
        Events(self.0.events.get_or_insert_default()).visit_seq(parts)
    }
}

objects! {
    /// The job, as the profiler knows it.
    struct DistributedInfo {
        "rank" => rank: Loose,
        "world_size" => world_size: Loose,
        "nccl_version" => nccl_version: Loose,
        "pg_config" => pg_config: Items<GroupOf>,
    }

    /// A communicator.
    struct GroupOf {
        "pg_name" => pg_name: Loose,
        "pg_desc" => pg_desc: Loose,
        "pg_size" => pg_size: Loose,
        "name" => name: Loose,
        "desc" => desc: Loose,
        "ranks" => ranks: Ranks,
    }

    /// A GPU.
    struct Device {
        "name" => name: Loose,
    }
}

/// The items of a list or an object, with their keys; nothing where it is neither.
struct Items<T>(Vec<(String, T)>);

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Of<T> {
            type Value = Items<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_unit<E>(self) -> Result<Items<T>, E> {
                Ok(Items::default())
            }

            fn visit_str<E>(self, _: &str) -> Result<Items<T>, E> {
                Ok(Items::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Items<T>, A::Error> {
                let mut items = Vec::new();
                while items.len() < ITEMS_MAX {
                    let Some(item) = parts.next_element()? else { return Ok(Items(items)) };
                    items.push((items.len().to_string(), item));
                }
                while parts.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Items(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Items<T>, A::Error> {
                let mut items = Vec::new();
                while items.len() < ITEMS_MAX {
                    let Some(item) = parts.next_entry()? else { return Ok(Items(items)) };
                    items.push(item);
                }
                while parts.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Items(items))
            }
        }
        deserializer.deserialize_any(Of(PhantomData))
    }
}
