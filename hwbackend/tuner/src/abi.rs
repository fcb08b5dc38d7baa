//! What NCCL and its tuner plugins say to each other: layouts of the interfaces v2 to v6.
//!
//! Source: NCCL 2.21.5 (v2), 2.22.3 (v3), 2.24 (v4), 2.28 (v5), 2.30.3 (v6). Tables of costs are NCCL's arrays
//! `float[algorithms][protocols]` in one piece, whatever their C type says.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

/// The name of this plugin.
pub const NAME: &CStr = c"collcast";
/// `ncclSuccess`.
pub const SUCCESS: c_int = 0;
/// `ncclInvalidUsage`.
pub const INVALID_USAGE: c_int = 5;
/// `NCCL_LOG_WARN`.
pub const LOG_WARN: c_int = 2;
/// `NCCL_LOG_INFO`.
pub const LOG_INFO: c_int = 3;
/// `NCCL_INIT`, which is on wherever `NCCL_DEBUG=INFO` is.
pub const SUBSYSTEM_INIT: c_ulong = 1;

/// `NCCL_ALGO_TREE`, as the other algorithms an index into [`ALGORITHMS`](crate::table::ALGORITHMS).
pub const TREE: usize = 0;
/// `NCCL_ALGO_RING`.
pub const RING: usize = 1;
/// `NCCL_ALGO_COLLNET_DIRECT`.
pub const COLLNET_DIRECT: usize = 2;
/// `NCCL_ALGO_COLLNET_CHAIN`.
pub const COLLNET_CHAIN: usize = 3;
/// `NCCL_ALGO_NVLS`.
pub const NVLS: usize = 4;
/// `NCCL_ALGO_NVLS_TREE`.
pub const NVLS_TREE: usize = 5;
/// `NCCL_PROTO_LL128`, as [`SIMPLE`].
pub const LL128: usize = 1;
/// `NCCL_PROTO_SIMPLE`, an index into [`PROTOCOLS`](crate::table::PROTOCOLS).
pub const SIMPLE: usize = 2;
/// `ncclFuncAllGather`, as the other collectives an index into [`COLLECTIVES`](crate::table::COLLECTIVES).
pub const ALL_GATHER: usize = 2;
/// `ncclFuncReduceScatter`.
pub const REDUCE_SCATTER: usize = 3;
/// `ncclFuncAllReduce`.
pub const ALL_REDUCE: usize = 4;

/// NCCL's logger: level, subsystems, file, line, `printf` format and its values.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// `init` of v2 to v4: ranks, hosts, logger, context.
pub type Init2 = unsafe extern "C" fn(usize, usize, Option<Logger>, *mut *mut c_void) -> c_int;
/// `ncclNvlDomainInfo_v5_t`, of v5 and v6: NVLink domains, and ranks of the communicator in each, the fewest and the most.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domains {
    /// Domains: what NCCL calls nodes.
    pub count: c_int,
    /// Ranks in the one with the fewest.
    pub least: c_int,
    /// Ranks in the one with the most.
    pub most: c_int,
}

/// `init` of v5 and v6: context, communicator, ranks, hosts, logger, NVLink domains, constants of the cost model.
pub type Init5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, usize, usize, Option<Logger>, *mut c_void, *mut c_void) -> c_int;
/// `getCollInfo` of v2: context, collective, bytes, CollNet, NVLS, calls of the group; algorithm, protocol, channels.
pub type Get2 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
/// `getCollInfo` of v3: context, collective, bytes, calls of the group, costs, algorithms, protocols; channels.
pub type Get3 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> c_int;
/// `getCollInfo` of v4 to v6: as v3, with whether buffers can be registered before the channels.
pub type Get4 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, c_int, *mut c_int) -> c_int;
/// `destroy` or `finalize`.
pub type End = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `getChunkSize` of v6: context, collective, bytes, algorithm, protocol, channels; chunk in bytes.
pub type Chunk = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int;

/// A plugin of one interface: name and functions, in NCCL's order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plugin<I, G> {
    /// Its name, which NCCL logs.
    pub name: *const c_char,
    /// Called once a communicator.
    pub init: Option<I>,
    /// Called once a call.
    pub get: Option<G>,
    /// Called when the communicator ends.
    pub end: Option<End>,
}

// SAFETY: the name is a constant of a library that stays loaded, and functions are shared anyway.
unsafe impl<I: Sync, G: Sync> Sync for Plugin<I, G> {}

/// `ncclTuner_v2_t`.
pub type Plugin2 = Plugin<Init2, Get2>;
/// `ncclTuner_v3_t`.
pub type Plugin3 = Plugin<Init2, Get3>;
/// `ncclTuner_v4_t`.
pub type Plugin4 = Plugin<Init2, Get4>;
/// `ncclTuner_v5_t`.
pub type Plugin5 = Plugin<Init5, Get4>;

/// `ncclTuner_v6_t`: v5 with one function more, which may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plugin6 {
    /// What v5 has.
    pub base: Plugin5,
    /// Called once a call whose chunk NCCL has chosen.
    pub chunk: Option<Chunk>,
}

/// An interface by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Interface {
    /// NCCL 2.21.
    V2,
    /// From 2.22 on.
    V3,
    /// From 2.24 on.
    V4,
    /// From 2.28 on.
    V5,
    /// From 2.30 on.
    V6,
}

impl Interface {
    /// The minor versions of NCCL 2 that ask through it, from and to: each takes the newest that it knows.
    pub fn minors(self) -> (u32, u32) {
        match self {
            Self::V2 => (0, 21),
            Self::V3 => (22, 27),
            Self::V4 => (24, 27),
            Self::V5 => (28, 29),
            Self::V6 => (30, u32::MAX),
        }
    }
}

/// Most algorithms or protocols that a table of costs may have: NCCL 2.30 has 7 and 3.
const SIDE_MAX: c_int = 64;

/// NCCL's costs as one slice, with the number of protocols.
///
/// # Safety
/// `costs` is null or NCCL's array of `algorithms` times `protocols`, which nobody else uses during the call.
pub unsafe fn cells<'a>(costs: *mut *mut f32, algorithms: c_int, protocols: c_int) -> Option<(&'a mut [f32], usize)> {
    if costs.is_null() || !(1..=SIDE_MAX).contains(&algorithms) || !(1..=SIDE_MAX).contains(&protocols) {
        return None;
    }
    let width = usize::try_from(protocols).ok()?;
    let count = usize::try_from(algorithms).ok()? * width;
    // SAFETY: the array is in one piece, whatever its C type says; the caller vouches for its size.
    Some((unsafe { std::slice::from_raw_parts_mut(costs.cast::<f32>(), count) }, width))
}
