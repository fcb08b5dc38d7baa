//! What is known of one communicator: its lines of the table, the tuner before, the record.

use std::ffi::{CStr, CString, OsStr, c_int};
use std::io::Read as _;
use std::path::Path;
use std::{env, fs};

use libloading::os::unix::Library;

use crate::abi::{Domains, Interface, LOG_INFO, Logger, SUBSYSTEM_INIT};
use crate::host::Host;
use crate::next::{Next, Start};
use crate::record::{Line, Record};
use crate::table::{BYTES_MAX, Communicator, Entry, MadeFor, Refused, Table};

/// Files of the driver that name GPUs.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// One communicator.
#[derive(Debug)]
pub struct Context {
    table: Table,
    /// The tuner before.
    pub next: Option<Next>,
    record: Option<Record>,
    communicator: u64,
    ranks: usize,
    nodes: usize,
}

/// A call, without what only one interface knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Index of the collective.
    pub collective: usize,
    /// Bytes as NCCL counts them.
    pub bytes: u64,
    /// Calls of the group.
    pub pipe_ops: u32,
    /// Whether buffers can be registered.
    pub registered: bool,
}

impl Context {
    /// Reads what the variables name. What cannot be used is left out, with one line of the log each.
    pub fn new(start: &Start) -> Self {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let mut table = Table::default();
        if let Some(paths) = variable("COLLCAST_TUNER_TABLE") {
            let here = (version(start.interface), gpu());
            for path in env::split_paths(&paths) {
                match read(&path).and_then(|text| lines(&text, start, here.0, here.1.as_deref())) {
                    Ok(found) => table.append(found),
                    Err(why) => log(start.logger, &format!("{}: not used: {why}", path.display())),
                }
            }
        }
        let named = variable("COLLCAST_TUNER_NEXT").filter(|name| name != OsStr::new("none"));
        let next = named.and_then(|name| match Next::load(&name.to_string_lossy(), start) {
            Ok(next) => Some(next),
            Err(why) => {
                log(start.logger, &format!("the next tuner is not asked: {why}"));
                None
            }
        });
        let record = variable("COLLCAST_TUNER_RECORD").and_then(|path| {
            let opened = Record::open(Path::new(&path));
            if let Err(why) = &opened {
                log(start.logger, &format!("{}: no record: {why}", path.display()));
            }
            opened.ok()
        });
        let Start { communicator, ranks, nodes, .. } = *start;
        Self { table, next, record, communicator, ranks, nodes }
    }

    /// What the table says of a call, first of what NCCL can do.
    pub fn choose(&self, call: Call, is_open: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let Call { collective, bytes, pipe_ops, registered } = call;
        self.table.matching(collective, bytes, pipe_ops, registered).find(|entry| is_open(entry)).copied()
    }

    /// Writes what was asked and chosen, where somebody wants to know.
    pub fn record(&self, call: Call, by: &'static str, pair: Option<(usize, usize)>, channels: c_int) {
        if let Some(record) = &self.record {
            let Self { communicator, ranks, nodes, .. } = *self;
            let Call { collective, bytes, pipe_ops, registered } = call;
            record.write(&Line {
                communicator,
                ranks,
                nodes,
                collective,
                bytes,
                pipe_ops,
                registered,
                by,
                pair,
                channels,
            });
        }
    }

    /// Whether anybody wants to know.
    pub fn records(&self) -> bool {
        self.record.is_some()
    }
}

/// The lines of a text for a communicator, where it is for this machine.
fn lines(text: &str, start: &Start, version: Version, gpu: Option<&str>) -> Result<Table, String> {
    let made_for = MadeFor::of(text);
    let known = match (version, made_for.nccl) {
        (Version::Known(major, minor), _) => Some((major, minor)),
        // The interface alone bounds it.
        (Version::Within(from, to), Some((2, minor))) if !(from..=to).contains(&minor) => Some((2, from)),
        _ => None,
    };
    let host = || if made_for.host.is_empty() { Host::default() } else { Host::here() };
    made_for
        .check(known, gpu)
        .and_then(|()| made_for.check_host(&host()))
        .and_then(|()| Table::read(text, communicator(start)))
        .map_err(|why: Refused| why.to_string())
}

/// What NCCL says of the communicator.
fn communicator(start: &Start) -> Communicator {
    // SAFETY: null before v5, else NCCL's, which stays while it starts a communicator.
    let domains = unsafe { start.domains.cast::<Domains>().as_ref() };
    let ranks = |number: c_int| usize::try_from(number).ok().filter(|&ranks| ranks > 0);
    let a_domain = domains.and_then(|domains| ranks(domains.least).zip(ranks(domains.most)));
    Communicator { ranks: start.ranks, nodes: start.nodes, a_domain }
}

/// Reads a file within bounds; a pipe or a device is none.
fn read(path: &Path) -> Result<String, String> {
    let is_file = fs::metadata(path).map_err(|why| why.to_string())?.is_file();
    if !is_file {
        return Err("it is no file".to_owned());
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|why| why.to_string())?;
    file.take(BYTES_MAX as u64 + 1).read_to_string(&mut text).map_err(|why| why.to_string())?;
    Ok(text)
}

/// What is known of NCCL's version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    /// Major and minor.
    Known(u32, u32),
    /// Minors of NCCL 2 that have the interface.
    Within(u32, u32),
}

/// The version of the NCCL that asks: of the library in this process, else by the interface.
fn version(interface: Interface) -> Version {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut code: c_int = 0;
    // An interpreter has no loader to ask.
    let library = (!cfg!(miri)).then(Library::this);
    // SAFETY: a function of that name is NCCL's, which writes one number.
    let ask = |library: Library| unsafe {
        library.get::<GetVersion>(b"ncclGetVersion\0").is_ok_and(|get| get(&mut code) == 0)
    };
    let told = library.is_some_and(ask);
    match u32::try_from(code) {
        // `NCCL_VERSION(2, 28, 9)` is 22809 from 2.9 on.
        Ok(code @ 10_000..) if told => Version::Known(code / 10_000, code % 10_000 / 100),
        _ => {
            let (from, to) = interface.minors();
            Version::Within(from, to)
        }
    }
}

/// The first GPU's name, as the driver has it: `Model: NVIDIA H200`.
fn gpu() -> Option<String> {
    let gpus = fs::read_dir(GPUS).ok()?;
    gpus.flatten().find_map(|gpu| {
        let text = fs::read_to_string(gpu.path().join("information")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Model:")).map(|model| model.trim().to_owned())
    })
}

/// One line of NCCL's log, where there is one.
fn log(logger: Option<Logger>, text: &str) {
    const FILE: &CStr = c"collcast-tuner";
    let text = text.replace('\0', " ");
    if let (Some(logger), Ok(text)) = (logger, CString::new(format!("TUNER/Collcast: {text}"))) {
        // SAFETY: NCCL's logger takes a `printf` format and its values: `%s` and a text that ends in a zero.
        unsafe { logger(LOG_INFO, SUBSYSTEM_INIT, FILE.as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) };
    }
}
