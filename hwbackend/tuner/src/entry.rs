//! The symbols that NCCL looks for, newest first: `ncclTunerPlugin_v6` to `_v2`.
//!
//! No panic passes this border: whatever happens inside, NCCL is told that all went well, and decides by itself. Only `init`
//! fails, where the user asks for that (`COLLCAST_TUNER_STRICT`).

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::abi::{
    ALL_GATHER, ALL_REDUCE, COLLNET_CHAIN, COLLNET_DIRECT, Get2, Get3, Get4, INVALID_USAGE, Init2, Init5, Interface,
    LL128, Logger, NAME, NVLS, NVLS_TREE, Plugin, Plugin2, Plugin3, Plugin4, Plugin5, Plugin6, REDUCE_SCATTER, RING,
    SIMPLE, SUCCESS, TREE, cells,
};
use crate::context::{Call, Context};
use crate::next::{Asked, Start};
use crate::table::Entry;

/// Ranks beyond which NCCL multiplies Ring's costs of FP8 by 1024, since a ring adds too often for it (2.24 to 2.30,
/// `src/enqueue.cc`).
const FP8_RANKS: usize = 8;
/// A ring that costs so many times another choice is one of these.
const RELEGATED: f32 = 500.0;

/// Runs what may not fail.
fn guarded(work: impl FnOnce()) -> c_int {
    let _ = catch_unwind(AssertUnwindSafe(work));
    SUCCESS
}

/// The context that `init` made.
///
/// # Safety
/// `context` is null or of `init`, and not yet destroyed.
unsafe fn context<'a>(context: *mut c_void) -> Option<&'a Context> {
    // SAFETY: as the caller says.
    unsafe { context.cast::<Context>().as_ref() }
}

fn call(collective: c_int, bytes: usize, pipe_ops: c_int, registered: c_int) -> Call {
    Call {
        // No collective has the number that stands for a negative one.
        collective: usize::try_from(collective).unwrap_or(usize::MAX),
        bytes: bytes as u64,
        pipe_ops: u32::try_from(pipe_ops).unwrap_or(0),
        registered: registered != 0,
    }
}

/// Makes a context.
///
/// # Safety
/// `out` is null or NCCL's; `start` is of NCCL.
unsafe fn start(out: *mut *mut c_void, start: &Start) -> c_int {
    // Null is a context too: that of a communicator without a table.
    // SAFETY: as the caller says.
    let Some(out) = (unsafe { out.as_mut() }) else { return SUCCESS };
    *out = ptr::null_mut();
    let mut code = SUCCESS;
    guarded(|| match Context::new(start) {
        Some(context) => *out = Box::into_raw(Box::new(context)).cast(),
        None => code = INVALID_USAGE,
    });
    code
}

macro_rules! init_of {
    ($name:ident, $interface:expr) => {
        unsafe extern "C" fn $name(ranks: usize, nodes: usize, logger: Option<Logger>, out: *mut *mut c_void) -> c_int {
            let (domains, constants) = (ptr::null_mut(), ptr::null_mut());
            let given = Start { interface: $interface, communicator: 0, ranks, nodes, logger, domains, constants };
            // SAFETY: NCCL gives what it says.
            unsafe { start(out, &given) }
        }
    };
    ($name:ident, $interface:expr, new) => {
        unsafe extern "C" fn $name(
            out: *mut *mut c_void,
            communicator: u64,
            ranks: usize,
            nodes: usize,
            logger: Option<Logger>,
            domains: *mut c_void,
            constants: *mut c_void,
        ) -> c_int {
            let given = Start { interface: $interface, communicator, ranks, nodes, logger, domains, constants };
            // SAFETY: NCCL gives what it says.
            unsafe { start(out, &given) }
        }
    };
}
init_of!(init2, Interface::V2);
init_of!(init3, Interface::V3);
init_of!(init4, Interface::V4);
init_of!(init5, Interface::V5, new);
init_of!(init6, Interface::V6, new);

/// Answers through costs.
///
/// # Safety
/// All of `asked` is as NCCL gives it.
unsafe fn answer(given: *mut c_void, asked: &Asked) {
    // SAFETY: as the caller says.
    let Some(context) = (unsafe { context(given) }) else { return };
    let call = call(asked.collective, asked.bytes, asked.pipe_ops, asked.registered);
    // SAFETY: as the caller says.
    let Some((costs, width)) = (unsafe { cells(asked.costs, asked.algorithms, asked.protocols) }) else { return };
    let place = |algorithm: usize, protocol: usize| (protocol < width).then_some(algorithm * width + protocol);
    let adds = context.ranks > FP8_RANKS && [REDUCE_SCATTER, ALL_REDUCE].contains(&call.collective);
    // A negative cost is of what NCCL cannot do here; -1024 is one that it made of -1.
    let chosen = context.choose(call, |entry| {
        let cost = place(entry.algorithm, entry.protocol).and_then(|at| costs.get(at));
        let is_relegated = |cost: f32| costs.iter().any(|&other| other > 0.0 && cost > RELEGATED * other);
        cost.is_some_and(|&cost| cost >= 0.0 && !(adds && entry.algorithm == RING && is_relegated(cost)))
    });
    if let Some(entry) = chosen {
        if let Some(cost) = place(entry.algorithm, entry.protocol).and_then(|at| costs.get_mut(at)) {
            *cost = 0.0;
        }
        // SAFETY: as the caller says.
        let channels = unsafe { asked.channels.as_mut() };
        if let (Some(channels), Ok(number @ 1..)) = (channels, c_int::try_from(entry.channels)) {
            *channels = number;
        }
    } else if let Some(next) = &context.next {
        // SAFETY: as the caller says; the slice is not used while the other tuner writes.
        unsafe { next.ask(asked) };
    }
    if context.records() {
        let by = match (&chosen, &context.next) {
            (Some(_), _) => "table",
            (None, Some(_)) => "next",
            (None, None) => "nccl",
        };
        // SAFETY: as the caller says.
        let (pair, channels) = unsafe { (cheapest(asked), asked.channels.as_ref().copied().unwrap_or(0)) };
        context.record(call, by, pair, channels);
    }
}

/// The open cell that costs least, which NCCL takes.
///
/// # Safety
/// As [`cells`].
unsafe fn cheapest(asked: &Asked) -> Option<(usize, usize)> {
    // SAFETY: as the caller says.
    let (costs, width) = unsafe { cells(asked.costs, asked.algorithms, asked.protocols) }?;
    let open = costs.iter().enumerate().filter(|(_, cost)| **cost >= 0.0);
    open.min_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| (at / width, at % width))
}

unsafe extern "C" fn get4(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    pipe_ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> c_int {
    let asked = Asked { collective, bytes, pipe_ops, costs, algorithms, protocols, registered, channels };
    // SAFETY: NCCL gives what it says.
    guarded(|| unsafe { answer(context, &asked) })
}

unsafe extern "C" fn get3(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    pipe_ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> c_int {
    let asked = Asked { collective, bytes, pipe_ops, costs, algorithms, protocols, registered: 0, channels };
    // SAFETY: NCCL gives what it says.
    guarded(|| unsafe { answer(context, &asked) })
}

unsafe extern "C" fn get2(
    given: *mut c_void,
    collective: c_int,
    bytes: usize,
    collnet: c_int,
    nvls: c_int,
    pipe_ops: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: NCCL gives a context of `init`.
        let Some(context) = (unsafe { context(given) }) else { return };
        let call = call(collective, bytes, pipe_ops, 0);
        let chosen = context.choose(call, |entry| has(context.nodes, collective, entry, (collnet != 0, nvls != 0)));
        // SAFETY: the three places are NCCL's own numbers.
        let places = unsafe { (algorithm.as_mut(), protocol.as_mut(), channels.as_mut()) };
        let (by, pair, number) = match (chosen, places) {
            (Some(entry), (Some(algorithm), Some(protocol), Some(channels))) => {
                let number = |index: usize| c_int::try_from(index).unwrap_or(-1);
                (*algorithm, *protocol) = (number(entry.algorithm), number(entry.protocol));
                if let Ok(number @ 1..) = c_int::try_from(entry.channels) {
                    *channels = number;
                }
                ("table", Some((entry.algorithm, entry.protocol)), *channels)
            }
            _ => {
                if let Some(next) = &context.next {
                    let asked = (collective, bytes, collnet, nvls, pipe_ops);
                    // SAFETY: the three places are NCCL's own numbers.
                    unsafe { next.ask2(asked, (algorithm, protocol, channels)) };
                }
                (if context.next.is_some() { "next" } else { "nccl" }, None, 0)
            }
        };
        context.record(call, by, pair, number);
    })
}

/// Whether NCCL 2.21 has a choice for a collective (`src/graph/tuning.cc`). What it can do here it says of the network and of
/// switches alone, and it takes an answer as it is (`getAlgoInfo`, `src/enqueue.cc`). So what rests on more than these is left to
/// it: LL128, which corrupts data over paths that its rule excludes, and gathers that need a NIC for each GPU.
fn has(nodes: usize, collective: c_int, entry: &Entry, (collnet, nvls): (bool, bool)) -> bool {
    match (usize::try_from(collective), entry.algorithm, entry.protocol) {
        (_, _, LL128) => false,
        (_, RING, _) | (Ok(ALL_REDUCE), TREE, _) => true,
        (Ok(ALL_REDUCE), COLLNET_DIRECT | COLLNET_CHAIN, SIMPLE) => collnet,
        (Ok(ALL_REDUCE), NVLS, SIMPLE) => nvls && (nodes == 1 || collnet),
        (Ok(ALL_GATHER | REDUCE_SCATTER), NVLS, SIMPLE) => nvls && nodes == 1,
        (Ok(ALL_REDUCE), NVLS_TREE, SIMPLE) => nvls && nodes > 1,
        _ => false,
    }
}

unsafe extern "C" fn end(context: *mut c_void) -> c_int {
    guarded(|| {
        if !context.is_null() {
            // SAFETY: it is of `init`, and NCCL destroys it once.
            drop(unsafe { Box::from_raw(context.cast::<Context>()) });
        }
    })
}

unsafe extern "C" fn chunk(
    given: *mut c_void,
    collective: c_int,
    bytes: usize,
    algorithm: c_int,
    protocol: c_int,
    channels: c_int,
    chunk: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: NCCL gives a context of `init`, and a number of its own.
        unsafe {
            if let Some(next) = context(given).and_then(|context| context.next.as_ref()) {
                next.chunk((collective, bytes, algorithm, protocol, channels), chunk);
            }
        }
    })
}

const fn plugin<I: Copy, G: Copy>(init: I, get: G) -> Plugin<I, G> {
    Plugin { name: NAME.as_ptr(), init: Some(init), get: Some(get), end: Some(end) }
}

macro_rules! exported {
    ($($(#[$doc:meta])+ $name:ident: $interface:ty = $plugin:expr;)+) => {$(
        $(#[$doc])+
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
        pub static $name: $interface = $plugin;
    )+};
}
exported! {
    /// For NCCL 2.21.
    ncclTunerPlugin_v2: Plugin2 = plugin(init2 as Init2, get2 as Get2);
    /// For NCCL 2.22 and 2.23.
    ncclTunerPlugin_v3: Plugin3 = plugin(init3 as Init2, get3 as Get3);
    /// For NCCL 2.24 to 2.27.
    ncclTunerPlugin_v4: Plugin4 = plugin(init4 as Init2, get4 as Get4);
    /// For NCCL 2.28 and 2.29.
    ncclTunerPlugin_v5: Plugin5 = plugin(init5 as Init5, get4 as Get4);
    /// For NCCL 2.30.
    ncclTunerPlugin_v6: Plugin6 = Plugin6 { base: plugin(init6 as Init5, get4 as Get4), chunk: Some(chunk) };
}
