//! The tuner that was there before: loaded through its newest interface that can be served, asked where we have no line.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use libloading::Library;

use crate::abi::{
    COLLNET_DIRECT, Chunk, End, Get2, Get3, Get4, Init2, Interface, Logger, NAME, NVLS, Plugin, Plugin2, Plugin3,
    Plugin4, Plugin5, Plugin6, SIMPLE, SUCCESS, cells,
};

/// How it is asked.
#[derive(Clone, Copy, Debug)]
enum Ask {
    V2(Get2),
    V3(Get3),
    V4(Get4),
}

/// Another tuner with its context of this communicator.
#[derive(Debug)]
pub struct Next {
    context: *mut c_void,
    ask: Ask,
    end: Option<End>,
    chunk: Option<Chunk>,
}

/// What NCCL gave to our own `init`.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Through which interface.
    pub interface: Interface,
    /// The communicator.
    pub communicator: u64,
    /// Its ranks.
    pub ranks: usize,
    /// Its hosts.
    pub nodes: usize,
    /// NCCL's logger.
    pub logger: Option<Logger>,
    /// Domains of NVLink; null before v5.
    pub domains: *mut c_void,
    /// Constants of the cost model; null before v5.
    pub constants: *mut c_void,
}

/// A call, as the interfaces from v3 on ask.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Index of the collective.
    pub collective: c_int,
    /// Bytes as NCCL counts them.
    pub bytes: usize,
    /// Calls of the group.
    pub pipe_ops: c_int,
    /// NCCL's costs.
    pub costs: *mut *mut f32,
    /// Its algorithms.
    pub algorithms: c_int,
    /// Its protocols.
    pub protocols: c_int,
    /// Whether buffers can be registered.
    pub registered: c_int,
    /// Where channels are asked for.
    pub channels: *mut c_int,
}

/// A symbol of a library, copied.
fn symbol<T: Copy>(library: &Library, name: &CStr) -> Option<T> {
    // SAFETY: the symbol is a variable of NCCL's type for this name, by NCCL's convention; it is copied out.
    unsafe { library.get::<*const T>(name.to_bytes_with_nul()).ok().and_then(|found| found.as_ref().copied()) }
}

impl Next {
    /// Loads a tuner and starts it. The library stays loaded: contexts of other communicators use it.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn load(name: &str, start: &Start) -> Result<Self, String> {
        let names = [name.to_owned(), format!("libnccl-tuner-{name}.so"), format!("libnccl-net-{name}.so")];
        // SAFETY: the user names this library as NCCL's tuner, whose initialisers NCCL would run as well.
        let library = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let library = ManuallyDrop::new(library.ok_or_else(|| format!("{name} cannot be loaded"))?);
        let library: &Library = &library;
        let mut context = ptr::null_mut();
        let failed = |code: c_int| format!("{name} does not start: {code}");
        let itself = || format!("{name} is this plugin");
        let Start { interface, communicator, ranks, nodes, logger, domains, constants } = *start;
        if interface >= Interface::V5 {
            let newest = symbol::<Plugin6>(library, c"ncclTunerPlugin_v6");
            let plugin = newest.map(|p| p.base).or_else(|| symbol::<Plugin5>(library, c"ncclTunerPlugin_v5"));
            if let Some(Plugin5 { name: theirs, init: Some(init), get: Some(get), end }) = plugin {
                if is_own(theirs) {
                    return Err(itself());
                }
                // SAFETY: all of it is NCCL's own, handed on within NCCL's call.
                let code = unsafe { init(&mut context, communicator, ranks, nodes, logger, domains, constants) };
                let chunk = newest.and_then(|plugin| plugin.chunk);
                return (code == SUCCESS)
                    .then_some(Self { context, ask: Ask::V4(get), end, chunk })
                    .ok_or_else(|| failed(code));
            }
        }
        let old = if interface >= Interface::V3 { older(library) } else { None };
        let Old { name: theirs, init, ask, end } =
            old.or_else(|| oldest(library)).ok_or_else(|| format!("{name} has no interface for this NCCL"))?;
        if is_own(theirs) {
            return Err(itself());
        }
        // SAFETY: as above.
        let code = unsafe { init(ranks, nodes, logger, &mut context) };
        (code == SUCCESS).then_some(Self { context, ask, end, chunk: None }).ok_or_else(|| failed(code))
    }

    /// Asks it through costs.
    ///
    /// # Safety
    /// What `asked` points to is as NCCL gives it: costs of so many algorithms and protocols, or null.
    pub unsafe fn ask(&self, asked: &Asked) {
        let Asked { collective, bytes, pipe_ops, costs, algorithms, protocols, registered, channels } = *asked;
        match self.ask {
            Ask::V4(get) => {
                // SAFETY: the context is of this plugin's `init`; the rest is as the caller says.
                unsafe {
                    get(self.context, collective, bytes, pipe_ops, costs, algorithms, protocols, registered, channels)
                };
            }
            Ask::V3(get) => {
                // SAFETY: as above.
                unsafe { get(self.context, collective, bytes, pipe_ops, costs, algorithms, protocols, channels) };
            }
            Ask::V2(get) => {
                // SAFETY: as the caller says.
                let Some((cells, width)) = (unsafe { cells(costs, algorithms, protocols) }) else { return };
                let is_open = |algorithm: usize| cells.get(algorithm * width + SIMPLE).is_some_and(|&cost| cost >= 0.0);
                let (collnet, nvls) = (c_int::from(is_open(COLLNET_DIRECT)), c_int::from(is_open(NVLS)));
                let (mut algorithm, mut protocol) = (-1, -1);
                // SAFETY: as above; the two numbers are ours.
                unsafe {
                    get(
                        self.context,
                        collective,
                        bytes,
                        collnet,
                        nvls,
                        pipe_ops,
                        &mut algorithm,
                        &mut protocol,
                        channels,
                    )
                };
                if let (Ok(algorithm), Ok(protocol)) = (usize::try_from(algorithm), usize::try_from(protocol))
                    && protocol < width
                    && let Some(cost) = cells.get_mut(algorithm * width + protocol).filter(|cost| **cost >= 0.0)
                {
                    *cost = 0.0;
                }
            }
        }
    }

    /// Asks it as v2 does, where it is one of v2.
    ///
    /// # Safety
    /// The three places are NCCL's.
    pub unsafe fn ask2(&self, asked: (c_int, usize, c_int, c_int, c_int), out: (*mut c_int, *mut c_int, *mut c_int)) {
        if let Ask::V2(get) = self.ask {
            // SAFETY: the context is of this plugin's `init`; the rest is as the caller says.
            unsafe { get(self.context, asked.0, asked.1, asked.2, asked.3, asked.4, out.0, out.1, out.2) };
        }
    }

    /// Asks it for a chunk, where it has an opinion.
    ///
    /// # Safety
    /// `chunk` is NCCL's.
    pub unsafe fn chunk(&self, call: (c_int, usize, c_int, c_int, c_int), chunk: *mut usize) {
        if let Some(ask) = self.chunk {
            // SAFETY: as above.
            unsafe { ask(self.context, call.0, call.1, call.2, call.3, call.4, chunk) };
        }
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        if let Some(end) = self.end {
            // SAFETY: the context is of this plugin's `init`, and nobody asks it any more.
            unsafe { end(self.context) };
        }
    }
}

/// A tuner of an interface before v5.
struct Old {
    name: *const c_char,
    init: Init2,
    ask: Ask,
    end: Option<End>,
}

impl Old {
    fn of<G>(plugin: Plugin<Init2, G>, ask: fn(G) -> Ask) -> Option<Self> {
        Some(Self { name: plugin.name, init: plugin.init?, ask: ask(plugin.get?), end: plugin.end })
    }
}

/// A tuner of v4 or v3.
fn older(library: &Library) -> Option<Old> {
    let v4 = symbol::<Plugin4>(library, c"ncclTunerPlugin_v4").and_then(|plugin| Old::of(plugin, Ask::V4));
    v4.or_else(|| symbol::<Plugin3>(library, c"ncclTunerPlugin_v3").and_then(|plugin| Old::of(plugin, Ask::V3)))
}

/// A tuner of v2.
fn oldest(library: &Library) -> Option<Old> {
    symbol::<Plugin2>(library, c"ncclTunerPlugin_v2").and_then(|plugin| Old::of(plugin, Ask::V2))
}

/// Whether a plugin has our name: one that asks itself would not end.
fn is_own(name: *const c_char) -> bool {
    // SAFETY: a plugin's name is a constant of its library that ends in a zero, or null.
    !name.is_null() && unsafe { CStr::from_ptr(name) } == NAME
}
