//! What is known of one communicator: its lines of the table, the tuner before, the record.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_ulong, c_void};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::{env, fs, ptr};

use libloading::os::unix::{Library, RTLD_LAZY};

use crate::abi::{Domains, LOG_INFO, LOG_WARN, Logger, SUBSYSTEM_INIT};
use crate::host::Host;
use crate::next::{Next, Start};
use crate::record::{Line, Record};
use crate::table::{self, BYTES_MAX, Communicator, Entry, MadeFor, Refused, Table};

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
    /// Ranks of the communicator.
    pub ranks: usize,
    /// Its hosts, or NVLink domains where these are larger.
    pub nodes: usize,
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
    /// Reads what the variables name. What cannot be used is left out, with one line of the log each; none where a table
    /// is, and `COLLCAST_TUNER_STRICT` forbids that.
    pub fn new(start: &Start) -> Option<Self> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let strict = variable("COLLCAST_TUNER_STRICT").is_some_and(|value| value != "0");
        let table = match tables(start, variable("COLLCAST_TUNER_TABLE").as_deref()) {
            (_, false) if strict => return None,
            (table, _) => table,
        };
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
        Some(Self { table, next, record, communicator, ranks, nodes })
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

/// The lines of all tables that are named, and whether none of them was refused. One without lines for the communicator is
/// not: that is so on each of its ranks.
fn tables(start: &Start, paths: Option<&OsStr>) -> (Table, bool) {
    let (mut table, mut whole) = (Table::default(), true);
    let Some(paths) = paths else { return (table, whole) };
    let (version, gpu) = (version(start), gpu());
    let mut used = false;
    for path in env::split_paths(paths) {
        match read(&path).and_then(|text| lines(&text, start, version, gpu.as_deref())) {
            Ok((found, unlike)) => {
                table.append(found);
                used = true;
                if !unlike.is_empty() {
                    log(start.logger, &format!("{}: used, though it was measured {unlike}", path.display()));
                }
            }
            Err(why @ Refused::Nothing) => log(start.logger, &format!("{}: not used: {why}", path.display())),
            Err(why) => {
                whole = false;
                let text = format!("{}: not used: {why}. A job hangs where other ranks use it", path.display());
                warn(start.logger, &text);
            }
        }
    }
    if used {
        let (lines, hash) = table.fingerprint();
        log(start.logger, &format!("{lines} lines in use, hash {hash:016x}"));
    }
    (table, whole)
}

/// The lines of a text for a communicator, where it is for this machine, and what this host has otherwise.
fn lines(text: &str, start: &Start, version: Version, gpu: Option<&str>) -> Result<(Table, String), Refused> {
    let made_for = MadeFor::of(text);
    let known = match (version, made_for.nccl) {
        (Version::Known(major, minor), _) => Some((major, minor)),
        // The interface alone bounds it.
        (Version::Within(from, to), Some((2, minor))) if !(from..=to).contains(&minor) => Some((2, from)),
        _ => None,
    };
    made_for.check(known, gpu)?;
    let host = if made_for.host.is_empty() { Host::default() } else { Host::here() };
    made_for.check_host(&host)?;
    made_for.check_settings(|name| env::var(name).ok())?;
    let unlike = made_for.unlike(&host).map(|(part, table, here)| format!("with {part} {table}, and here are {here}"));
    Ok((Table::read(text, communicator(start))?, unlike.collect::<Vec<_>>().join(", ")))
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
fn read(path: &Path) -> Result<String, Refused> {
    let refused = |why: std::io::Error| Refused::File(why.to_string());
    if !fs::metadata(path).map_err(refused)?.is_file() {
        return Err(Refused::File("it is no file".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(refused)?;
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(refused)?;
    table::text(&bytes).map(str::to_owned)
}

/// What is known of NCCL's version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    /// Major and minor.
    Known(u32, u32),
    /// Minors of NCCL 2 that have the interface.
    Within(u32, u32),
}

/// The version of the NCCL that asks: of the library that its logger is in, or of this process, else by the interface.
fn version(start: &Start) -> Version {
    // An interpreter has no loader to ask.
    let told = if cfg!(miri) {
        None
    } else {
        start.logger.and_then(library_of).and_then(|library| told(&library)).or_else(|| told(&Library::this()))
    };
    told.unwrap_or_else(|| {
        let (from, to) = start.interface.minors();
        Version::Within(from, to)
    })
}

/// The version that an NCCL says it has.
fn told(library: &Library) -> Option<Version> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut code: c_int = 0;
    // SAFETY: a function of that name is NCCL's, which writes one number.
    let told = unsafe { library.get::<GetVersion>(b"ncclGetVersion\0").is_ok_and(|get| get(&mut code) == 0) };
    let code = u32::try_from(code).ok().filter(|_| told)?;
    // `NCCL_VERSION(2, 28, 9)` is 22809 from 2.9 on.
    (code >= 10_000).then_some(Version::Known(code / 10_000, code % 10_000 / 100))
}

/// `Dl_info` of `<dlfcn.h>`: a library's file and place, the next symbol's name and place.
#[repr(C)]
struct Place {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

/// `RTLD_NOLOAD` of Linux: a library that is loaded already, or none.
const RTLD_NOLOAD: c_int = 4;

unsafe extern "C" {
    fn dladdr(address: *const c_void, place: *mut Place) -> c_int;
}

/// NCCL's library, by a function in it. Python loads it for itself alone, so that its symbols are not those of the process.
fn library_of(logger: Logger) -> Option<Library> {
    let none = ptr::null_mut();
    let mut place = Place { file: ptr::null(), base: none, symbol: ptr::null(), address: none };
    // SAFETY: the address is only looked up, and the place is ours.
    let found = unsafe { dladdr(logger as *const c_void, &raw mut place) } != 0 && !place.file.is_null();
    // SAFETY: the loader's name of a library, which stays as long as the library does: it is the one that calls.
    let file = found.then(|| unsafe { CStr::from_ptr(place.file) })?;
    // SAFETY: what is loaded already runs no initialiser.
    unsafe { Library::open(Some(OsStr::from_bytes(file.to_bytes())), RTLD_LAZY | RTLD_NOLOAD) }.ok()
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
    say(logger, (LOG_INFO, SUBSYSTEM_INIT), text);
}

/// One that `NCCL_DEBUG=WARN` shows too, whatever `NCCL_DEBUG_SUBSYS` is.
fn warn(logger: Option<Logger>, text: &str) {
    say(logger, (LOG_WARN, c_ulong::MAX), text);
}

fn say(logger: Option<Logger>, (level, subsystems): (c_int, c_ulong), text: &str) {
    const FILE: &CStr = c"collcast-tuner";
    let text = text.replace('\0', " ");
    if let (Some(logger), Ok(text)) = (logger, CString::new(format!("TUNER/Collcast: {text}"))) {
        // SAFETY: NCCL's logger takes a `printf` format and its values: `%s` and a text that ends in a zero.
        unsafe { logger(level, subsystems, FILE.as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) };
    }
}
