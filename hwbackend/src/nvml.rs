//! NVIDIA's management library, bound by hand and found at run time. Only asks; sets nothing.

#![allow(unsafe_code)] // A foreign interface: each block says what it relies on.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use libloading::Library;

/// `NVML_NVLINK_MAX_LINKS` of `nvml.h`.
const MAX_LINKS: c_uint = 18;
/// `NVML_CLOCK_SM` and `NVML_CLOCK_MEM` of `nvml.h`.
const CLOCKS: [c_int; 2] = [1, 2];
/// `NVML_NVLINK_DEVICE_TYPE_SWITCH` of `nvml.h`.
const SWITCH: c_int = 2;

type Handle = *mut c_void;
type Ask<T> = unsafe extern "C" fn(Handle, *mut T) -> c_int;
type AskOf<K, T> = unsafe extern "C" fn(Handle, K, *mut T) -> c_int;

/// The library, started.
#[derive(Debug)]
pub(crate) struct Nvml {
    by_bus: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int,
    clock: AskOf<c_int, c_uint>,
    link_state: AskOf<c_uint, c_int>,
    link_version: AskOf<c_uint, c_uint>,
    link_remote: Option<AskOf<c_uint, c_int>>,
    pcie_generation: Ask<c_uint>,
    pcie_lanes: Ask<c_uint>,
}

/// The NVLinks of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Links {
    /// Links that are up.
    pub count: u32,
    /// NVML's number of the version of NVLink: 6 is 4.0.
    pub version: u32,
    /// Whether they lead to NVSwitches.
    pub switched: bool,
}

impl Nvml {
    /// Finds and starts the library; `None` where it is not there or does not start.
    pub(crate) fn open() -> Option<Self> {
        // SAFETY: the driver's own library, whose initialisers have no conditions.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: the types are those of `nvml.h`, stable within version 2 of its functions.
        let (start, nvml) = unsafe {
            let start = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").ok()?;
            let nvml = Self {
                by_bus: *library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?,
                clock: *library.get(b"nvmlDeviceGetClockInfo\0").ok()?,
                link_state: *library.get(b"nvmlDeviceGetNvLinkState\0").ok()?,
                link_version: *library.get(b"nvmlDeviceGetNvLinkVersion\0").ok()?,
                link_remote: library.get(b"nvmlDeviceGetNvLinkRemoteDeviceType\0").ok().map(|f| *f),
                pcie_generation: *library.get(b"nvmlDeviceGetMaxPcieLinkGeneration\0").ok()?,
                pcie_lanes: *library.get(b"nvmlDeviceGetMaxPcieLinkWidth\0").ok()?,
            };
            (start, nvml)
        };
        std::mem::forget(library); // The functions are used as long as the program runs.
        // SAFETY: no arguments.
        (unsafe { start() } == 0).then_some(nvml)
    }

    fn device(&self, bus: &str) -> Option<Handle> {
        let (bus, mut handle) = (CString::new(bus).ok()?, std::ptr::null_mut());
        // SAFETY: text that ends in zero, and a place for a handle.
        (unsafe { (self.by_bus)(bus.as_ptr(), &mut handle) } == 0).then_some(handle)
    }

    /// Clocks of a GPU's multiprocessors and of its memory now, in MHz.
    pub(crate) fn clocks_mhz(&self, bus: &str) -> Option<[u32; 2]> {
        let device = self.device(bus)?;
        let [sm, memory] = CLOCKS.map(|which| ask_of(self.clock, device, which));
        Some([sm?, memory?])
    }

    /// The NVLinks of a GPU; `None` where it has none or the driver does not tell.
    pub(crate) fn links(&self, bus: &str) -> Option<Links> {
        let device = self.device(bus)?;
        let up: Vec<c_uint> = (0..MAX_LINKS).filter(|&l| ask_of(self.link_state, device, l) == Some(1)).collect();
        let &first = up.first()?;
        Some(Links {
            count: up.len() as u32,
            version: ask_of(self.link_version, device, first).unwrap_or(0),
            switched: self.link_remote.and_then(|remote| ask_of(remote, device, first)) == Some(SWITCH),
        })
    }

    /// Generation and lanes of a GPU's PCIe link, at most.
    pub(crate) fn pcie(&self, bus: &str) -> Option<(u32, u32)> {
        let device = self.device(bus)?;
        Some((ask(self.pcie_generation, device)?, ask(self.pcie_lanes, device)?))
    }
}

fn ask<T: Default>(function: Ask<T>, device: Handle) -> Option<T> {
    let mut value = T::default();
    // SAFETY: a handle of this library, and a place for the answer.
    (unsafe { function(device, &mut value) } == 0).then_some(value)
}

fn ask_of<K, T: Default>(function: AskOf<K, T>, device: Handle, which: K) -> Option<T> {
    let mut value = T::default();
    // SAFETY: a handle of this library, and a place for the answer.
    (unsafe { function(device, which, &mut value) } == 0).then_some(value)
}
