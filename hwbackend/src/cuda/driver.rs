//! The CUDA driver and the run-time compiler, found at run time and made to answer with plain
//! errors; and owners of what they hand out.
//!
//! cudarc looks every symbol up on its first call and panics when the library is not there, so
//! nothing here is reached before [`open`] has seen both libraries.

#![allow(unsafe_code)] // A foreign interface: each block says what it relies on.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::sys as cu;
use cudarc::nvrtc::{result as rtc, sys as rtc_sys};

use crate::exec::ExecError;

/// Calls a function of the driver.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the library was seen by `open`; the arguments are valid for the call by the
        // types that own them (`Device`, `Memory`, `Stream`, `Event`), which outlive it.
        check(stringify!($function), unsafe { cu::$function($($argument),*) })
    };
}

fn check(call: &'static str, code: cu::CUresult) -> Result<(), ExecError> {
    if code == cu::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(ExecError::Library { call, message: format!("{:?}", cudarc::driver::DriverError(code)) })
}

fn missing(what: impl Into<String>, hint: &str) -> ExecError {
    ExecError::Missing { what: what.into(), hint: hint.to_owned() }
}

/// Queues of a device, which streams are dealt. Kernels in one queue run one after another, so ranks of one GPU must not share
/// one: they wait for each other. By default there are 8; with 8 ranks on one H200 some shared one (2026-11-28).
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// Most that there are (CUDA programming guide).
const MOST_CONNECTIONS: &str = "32";

/// The number of devices of this machine, none of which is touched.
///
/// # Errors
/// No driver, or no device.
pub(crate) fn count() -> Result<i32, ExecError> {
    // SAFETY: opens the library by name and closes it again.
    if !unsafe { cu::is_culib_present() } {
        return Err(missing(
            "the CUDA driver library (libcuda.so.1) was not found",
            "run on a machine with an NVIDIA driver; `collcast bench --backend host` needs none",
        ));
    }
    static QUEUES: Once = Once::new();
    QUEUES.call_once(|| {
        if std::env::var_os(CONNECTIONS).is_none() {
            // SAFETY: no other code here writes the environment, and std's readers take a lock with this. The driver, which
            // reads it without, has not started.
            unsafe { std::env::set_var(CONNECTIONS, MOST_CONNECTIONS) };
        }
    });
    if let Err(error) = cu!(cuInit(0)) {
        return Err(missing(
            format!("the CUDA driver does not start: {error}"),
            "check `nvidia-smi`; `collcast bench --backend host` needs no GPU",
        ));
    }
    let mut version = 0;
    cu!(cuDriverGetVersion(&mut version))?;
    if version < OLDEST {
        let said = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(missing(
            format!("the driver's interface is CUDA {said}; 12.8 is the oldest that is used here"),
            "update the NVIDIA driver to 570 or later; `collcast bench --backend host` needs none",
        ));
    }
    let mut count = 0;
    cu!(cuDeviceGetCount(&mut count))?;
    if count == 0 {
        return Err(missing("the CUDA driver sees no GPU", "check CUDA_VISIBLE_DEVICES and `nvidia-smi`"));
    }
    Ok(count)
}

/// The devices of this machine.
///
/// # Errors
/// No driver, or no device.
pub(crate) fn open() -> Result<Vec<Arc<Device>>, ExecError> {
    (0..count()?).map(|ordinal| Device::new(ordinal).map(Arc::new)).collect()
}

/// The newest function that is used here is of CUDA 12.8 (`cuEventElapsedTime_v2`).
const OLDEST: i32 = 12_080;

/// Version of the driver's interface, such as `13.0`.
pub(crate) fn driver_version() -> String {
    let mut version = 0;
    match cu!(cuDriverGetVersion(&mut version)) {
        Ok(()) => format!("{}.{}", version / 1000, version % 1000 / 10),
        Err(_) => "unknown".to_owned(),
    }
}

/// A GPU with its primary context, which is made where it is first used: it takes hundreds of MB of the GPU, and is refused to
/// a second process where the GPU is for one alone.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: i32,
    handle: cu::CUdevice,
    context: OnceLock<cu::CUcontext>,
    pub(crate) name: String,
    pub(crate) pci: String,
    /// Such as 90 for compute capability 9.0.
    pub(crate) arch: i32,
    pub(crate) multiprocessors: u32,
}

// SAFETY: a context may be used from any thread that makes it current first, as `enter` does.
unsafe impl Send for Device {}
// SAFETY: see above; the driver locks what it shares.
unsafe impl Sync for Device {}

impl Device {
    fn new(ordinal: i32) -> Result<Self, ExecError> {
        let mut handle = 0;
        cu!(cuDeviceGet(&mut handle, ordinal))?;
        let mut text = [0 as c_char; 128];
        cu!(cuDeviceGetName(text.as_mut_ptr(), 128, handle))?;
        let name = string(&text);
        cu!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 128, handle))?;
        let attribute = |which| -> Result<i32, ExecError> {
            let mut value = 0;
            cu!(cuDeviceGetAttribute(&mut value, which, handle))?;
            Ok(value)
        };
        use cu::CUdevice_attribute as A;
        let arch = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs();
        Ok(Self { ordinal, handle, context: OnceLock::new(), name, pci: string(&text), arch, multiprocessors })
    }

    fn attribute(&self, which: cu::CUdevice_attribute) -> Option<i32> {
        let mut value = 0;
        cu!(cuDeviceGetAttribute(&mut value, which, self.handle)).ok().map(|()| value)
    }

    /// Rate of its memory in GB/s: two transfers a clock over the width of the bus.
    pub(crate) fn memory_gbps(&self) -> f64 {
        use cu::CUdevice_attribute as A;
        let khz = self.attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0);
        let bits = self.attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0);
        f64::from(khz) * 1e3 * 2.0 * f64::from(bits) / 8.0 / 1e9
    }

    /// Whether the driver offers multicast between GPUs.
    pub(crate) fn multicast(&self) -> bool {
        self.attribute(cu::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == Some(1)
    }

    fn context(&self) -> Result<cu::CUcontext, ExecError> {
        if let Some(&context) = self.context.get() {
            return Ok(context);
        }
        let mut context = null_mut();
        cu!(cuDevicePrimaryCtxRetain(&mut context, self.handle))?;
        // Another thread may have been faster: it is the same context.
        Ok(*self.context.get_or_init(|| context))
    }

    /// Makes this device's context the calling thread's.
    pub(crate) fn enter(&self) -> Result<(), ExecError> {
        cu!(cuCtxSetCurrent(self.context()?))
    }

    /// Lets kernels of this device reach the memory of another.
    pub(crate) fn reach(&self, other: &Self) -> Result<(), ExecError> {
        let mut can = 0;
        cu!(cuDeviceCanAccessPeer(&mut can, self.handle, other.handle))?;
        if can == 0 {
            return Err(missing(
                format!("GPU {} cannot reach the memory of GPU {}", self.ordinal, other.ordinal),
                "the CUDA backend needs peer access (NVLink, or PCIe without isolation); `collcast bench --backend nccl` does not",
            ));
        }
        self.enter()?;
        match cu!(cuCtxEnablePeerAccess(other.context()?, 0)) {
            Err(ExecError::Library { message, .. }) if message.contains("ALREADY_ENABLED") => Ok(()),
            other => other,
        }
    }
}

fn string(text: &[c_char]) -> String {
    text.iter().take_while(|&&c| c != 0).map(|&c| char::from(c.cast_unsigned())).collect()
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct Memory {
    device: Arc<Device>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Memory {
    /// Plain device memory: kernels of peers reach it, which memory from a pool they do not.
    pub(crate) fn new(device: &Arc<Device>, bytes: u64) -> Result<Self, ExecError> {
        device.enter()?;
        let mut address = 0;
        cu!(cuMemAlloc_v2(&mut address, bytes.max(16) as usize))?;
        Ok(Self { device: Arc::clone(device), address, bytes })
    }

    pub(crate) fn of<T: Copy>(device: &Arc<Device>, values: &[T]) -> Result<Self, ExecError> {
        let memory = Self::new(device, size_of_val(values) as u64)?;
        if !values.is_empty() {
            cu!(cuMemcpyHtoD_v2(memory.address, values.as_ptr().cast(), size_of_val(values)))?;
        }
        Ok(memory)
    }

    /// Sets all bytes; done when it returns.
    pub(crate) fn set(&self, byte: u8) -> Result<(), ExecError> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.device.enter()?;
        cu!(cuMemsetD8_v2(self.address, byte, self.bytes as usize))?;
        cu!(cuCtxSynchronize())
    }

    /// A descriptor that stands for it, which other devices take (dma-buf); its bytes are a multiple of a page.
    ///
    /// # Errors
    /// A driver that hands none out.
    pub(crate) fn shared(&self) -> Result<OwnedFd, ExecError> {
        let mut descriptor: c_int = -1;
        let kind = cu::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        self.device.enter()?;
        let place = (&raw mut descriptor).cast();
        cu!(cuMemGetHandleForAddressRange(place, self.address, self.bytes as usize, kind, 0))?;
        // SAFETY: the driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Reads one value from the start.
    pub(crate) fn read<T: Copy + Default>(&self) -> Result<T, ExecError> {
        assert!(size_of::<T>() as u64 <= self.bytes, "a read beyond the memory");
        let mut value = T::default();
        self.device.enter()?;
        cu!(cuMemcpyDtoH_v2((&raw mut value).cast(), self.address, size_of::<T>()))?;
        Ok(value)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = cu!(cuMemFree_v2(self.address));
    }
}

/// Memory of the host that kernels can write to.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    device: Arc<Device>,
    value: *mut T,
}

// SAFETY: pinned memory belongs to no thread.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: the host accesses it from one thread at a time, between batches, and as volatile.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Copy + Default> Pinned<T> {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, ExecError> {
        device.enter()?;
        let mut memory: *mut c_void = null_mut();
        cu!(cuMemHostAlloc(&mut memory, size_of::<T>(), cu::CU_MEMHOSTALLOC_PORTABLE | cu::CU_MEMHOSTALLOC_DEVICEMAP))?;
        let value = memory.cast::<T>();
        // SAFETY: fresh, aligned to a page and large enough.
        unsafe { value.write(T::default()) };
        Ok(Self { device: Arc::clone(device), value })
    }

    pub(crate) fn address(&self) -> u64 {
        self.value as u64
    }

    pub(crate) fn write(&self, value: T) {
        // SAFETY: valid as long as self; a device may read it, hence volatile.
        unsafe { self.value.write_volatile(value) };
    }

    pub(crate) fn read(&self) -> T {
        // SAFETY: valid as long as self; a device may write it, hence volatile.
        unsafe { self.value.read_volatile() }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = cu!(cuMemFreeHost(self.value.cast()));
    }
}

/// Memory of the host for copies: pinned, or pages that the system may move.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    /// Of pinned memory.
    device: Option<Arc<Device>>,
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for HostBuffer {}
// SAFETY: it is written through `&mut` alone, or by copies that `Stream::to_host` asks `&mut` for.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// So many bytes of zeros, at the start of a page.
    pub(crate) fn new(device: &Arc<Device>, bytes: u64, pinned: bool) -> Result<Self, ExecError> {
        const PAGE: usize = 4096;
        let too_much = |_| missing(format!("{bytes} bytes of host memory cannot be had"), "give smaller sizes");
        let layout = Layout::from_size_align((bytes as usize).max(1), PAGE).map_err(|_| too_much(()))?;
        let mut start: *mut c_void = null_mut();
        if pinned {
            device.enter()?;
            cu!(cuMemHostAlloc(&mut start, layout.size(), cu::CU_MEMHOSTALLOC_PORTABLE))?;
            // SAFETY: fresh and large enough.
            unsafe { start.cast::<u8>().write_bytes(0, layout.size()) };
        } else {
            // SAFETY: the layout is of one byte or more.
            start = unsafe { alloc_zeroed(layout) }.cast();
        }
        if start.is_null() {
            return Err(too_much(()));
        }
        Ok(Self { device: pinned.then(|| Arc::clone(device)), start: start.cast(), layout })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and written above, valid as long as self.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        match &self.device {
            Some(device) => {
                let _ = device.enter();
                let _ = cu!(cuMemFreeHost(self.start.cast()));
            }
            // SAFETY: allocated with this layout, freed once.
            None => unsafe { dealloc(self.start, self.layout) },
        }
    }
}

/// A queue of work of one device.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: Arc<Device>,
    pub(crate) raw: cu::CUstream,
}

// SAFETY: streams may be used from any thread whose current context is theirs.
unsafe impl Send for Stream {}
// SAFETY: see above; the driver locks what it shares.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, ExecError> {
        device.enter()?;
        let mut raw = null_mut();
        cu!(cuStreamCreate(&mut raw, cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        Ok(Self { device: Arc::clone(device), raw })
    }

    /// Waits for all work, for `patience` at most.
    pub(crate) fn wait(&self, patience: Duration) -> Result<(), ExecError> {
        self.device.enter()?;
        let deadline = Instant::now() + patience;
        loop {
            // SAFETY: the stream is alive.
            match unsafe { cu::cuStreamQuery(self.raw) } {
                cu::CUresult::CUDA_ERROR_NOT_READY if Instant::now() < deadline => std::hint::spin_loop(),
                cu::CUresult::CUDA_ERROR_NOT_READY => {
                    return Err(ExecError::Library {
                        call: "cuStreamQuery",
                        message: format!("GPU {} did not finish within {} s", self.device.ordinal, patience.as_secs()),
                    });
                }
                code => return check("cuStreamQuery", code),
            }
        }
    }

    /// Holds back what is put into it from here on until the host has written 1.
    pub(crate) fn hold(&self, gate: &Pinned<u32>) -> Result<(), ExecError> {
        cu!(cuStreamWaitValue32_v2(self.raw, gate.address(), 1, 0))
    }

    pub(crate) fn record(&self, event: &Event) -> Result<(), ExecError> {
        cu!(cuEventRecord(event.raw, self.raw))
    }

    /// The same in a stream that is captured: the event is recorded by each replay of the graph.
    pub(crate) fn record_in_graph(&self, event: &Event) -> Result<(), ExecError> {
        const EXTERNAL: u32 = cu::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
        cu!(cuEventRecordWithFlags(event.raw, self.raw, EXTERNAL))
    }

    /// Puts a kernel into the stream; the device's context must be current.
    ///
    /// # Safety
    /// `arguments` must point to the values that the kernel declares, in order, and all memory
    /// that it touches must live until the stream is done with it.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        blocks: u32,
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), ExecError> {
        // SAFETY: as the caller says.
        unsafe { self.launch_grid(kernel, (blocks, 1), threads, shared, arguments) }
    }

    /// The same over a grid of columns and rows of blocks.
    ///
    /// # Safety
    /// As [`Self::launch`].
    pub(crate) unsafe fn launch_grid(
        &self,
        kernel: &Kernel,
        blocks: (u32, u32),
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), ExecError> {
        cu!(cuLaunchKernel(
            kernel.function,
            blocks.0,
            blocks.1,
            1,
            threads,
            1,
            1,
            shared,
            self.raw,
            arguments.as_mut_ptr(),
            null_mut()
        ))
    }

    /// Sets bytes from the start of a memory to zero.
    pub(crate) fn fill(&self, memory: &Memory, bytes: u64) -> Result<(), ExecError> {
        assert!(bytes <= memory.bytes, "a fill beyond the memory");
        cu!(cuMemsetD8Async(memory.address, 0, bytes as usize, self.raw))
    }

    /// Copies memory to memory, of this device or a peer that it reaches, by a copy engine.
    pub(crate) fn copy(&self, to: &Memory, from: &Memory, bytes: u64) -> Result<(), ExecError> {
        assert!(bytes <= to.bytes && bytes <= from.bytes, "a copy beyond the memory");
        cu!(cuMemcpyDtoDAsync_v2(to.address, from.address, bytes as usize, self.raw))
    }

    /// Copies the first bytes of a memory to a place behind them.
    pub(crate) fn copy_on(&self, memory: &Memory, to: u64, bytes: u64) -> Result<(), ExecError> {
        assert!(bytes <= to && to + bytes <= memory.bytes, "a copy beyond the memory");
        cu!(cuMemcpyDtoDAsync_v2(memory.address + to, memory.address, bytes as usize, self.raw))
    }

    /// Copies from a place of host memory to the same place of a memory; the buffer lives until the stream is done.
    pub(crate) fn to_device(&self, to: &Memory, from: &HostBuffer, range: Range<u64>) -> Result<(), ExecError> {
        let part = &from.bytes()[range.start as usize..range.end as usize];
        assert!(range.end <= to.bytes, "a copy beyond the memory");
        cu!(cuMemcpyHtoDAsync_v2(to.address + range.start, part.as_ptr().cast(), part.len(), self.raw))
    }

    /// Copies to a place of host memory from the same place of a memory; the buffer lives, unread, until the stream is done.
    pub(crate) fn to_host(&self, to: &mut HostBuffer, from: &Memory, range: Range<u64>) -> Result<(), ExecError> {
        assert!(range.end <= from.bytes, "a copy beyond the memory");
        let part = &mut to.bytes_mut()[range.start as usize..range.end as usize];
        cu!(cuMemcpyDtoHAsync_v2(part.as_mut_ptr().cast(), from.address + range.start, part.len(), self.raw))
    }

    pub(crate) fn begin_capture(&self) -> Result<(), ExecError> {
        self.device.enter()?;
        cu!(cuStreamBeginCapture_v2(self.raw, cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))
    }

    pub(crate) fn end_capture(&self) -> Result<Graph, ExecError> {
        self.device.enter()?;
        let (mut graph, mut raw) = (null_mut(), null_mut());
        cu!(cuStreamEndCapture(self.raw, &mut graph))?;
        let made = cu!(cuGraphInstantiateWithFlags(&mut raw, graph, 0));
        cu!(cuGraphDestroy(graph))?;
        made?;
        Ok(Graph { device: Arc::clone(&self.device), raw })
    }

    pub(crate) fn replay(&self, graph: &Graph) -> Result<(), ExecError> {
        cu!(cuGraphLaunch(graph.raw, self.raw))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = cu!(cuStreamDestroy_v2(self.raw));
    }
}

/// Work captured from a stream, ready to be replayed.
#[derive(Debug)]
pub(crate) struct Graph {
    device: Arc<Device>,
    raw: cu::CUgraphExec,
}

// SAFETY: used by one thread at a time, whose current context is its device's.
unsafe impl Send for Graph {}
// SAFETY: see above.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = cu!(cuGraphExecDestroy(self.raw));
    }
}

/// A point in a stream whose time is kept.
#[derive(Debug)]
pub(crate) struct Event {
    device: Arc<Device>,
    raw: cu::CUevent,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}
// SAFETY: as for streams.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, ExecError> {
        device.enter()?;
        let mut raw = null_mut();
        cu!(cuEventCreate(&mut raw, 0))?;
        Ok(Self { device: Arc::clone(device), raw })
    }

    /// Microseconds from another event to this; both must be over.
    pub(crate) fn since_us(&self, start: &Self) -> Result<f64, ExecError> {
        let mut ms = 0.0;
        cu!(cuEventElapsedTime_v2(&mut ms, start.raw, self.raw))?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = cu!(cuEventDestroy_v2(self.raw));
    }
}

/// A kernel loaded on a device; stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Kernel {
    function: cu::CUfunction,
}

// SAFETY: a function handle is immutable.
unsafe impl Send for Kernel {}
// SAFETY: see above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Loads machine code and finds its functions now, since a lookup may synchronise.
    pub(crate) fn load(device: &Device, code: &[u8], names: &[&CStr]) -> Result<Vec<Self>, ExecError> {
        device.enter()?;
        let mut module = null_mut();
        cu!(cuModuleLoadData(&mut module, code.as_ptr().cast()))?;
        names
            .iter()
            .map(|name| {
                let mut function = null_mut();
                cu!(cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
                Ok(Self { function })
            })
            .collect()
    }
}

/// Makes the run-time compiler available.
///
/// # Errors
/// Where it was looked for.
pub(crate) fn open_compiler() -> Result<String, ExecError> {
    // SAFETY: opens the library by name and closes it again.
    if !unsafe { rtc_sys::is_culib_present() } {
        preload_compiler()?;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present; both are places for a number.
    match unsafe { rtc_sys::nvrtcVersion(&mut major, &mut minor) } {
        rtc_sys::nvrtcResult::NVRTC_SUCCESS => Ok(format!("{major}.{minor}")),
        code => Err(ExecError::Library { call: "nvrtcVersion", message: format!("{code:?}") }),
    }
}

/// Loads NVRTC from the usual homes of CUDA. Its other half first: the one in Python packages
/// does not find it by itself.
fn preload_compiler() -> Result<(), ExecError> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(std::env::var_os(variable).map(|home| PathBuf::from(home).join("lib64")));
    }
    folders.extend(["/usr/local/cuda/lib64".into(), "/opt/cuda/lib64".into()]);
    folders.extend(python_folders(&["cu13", "cuda_nvrtc"]));
    let opened = folders.iter().any(|folder| {
        ["libnvrtc-builtins.so", "libnvrtc.so"].into_iter().all(|start| {
            let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start)))
                .filter(|p| !p.to_string_lossy().contains(".alt."))
                .collect();
            files.sort();
            // SAFETY: NVIDIA's libraries, whose initialisers have no conditions.
            files.iter().any(|file| unsafe { libloading::Library::new(file) }.map(std::mem::forget).is_ok())
        })
    });
    if opened {
        return Ok(());
    }
    let looked: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    Err(missing(
        format!("the CUDA run-time compiler (libnvrtc.so) was not found by the loader, nor in {}", looked.join(", ")),
        "install the CUDA toolkit or the package nvidia-cuda-nvrtc, and name its folder in LD_LIBRARY_PATH",
    ))
}

/// Folders of NVIDIA's Python packages in the active environment.
pub(crate) fn python_folders(packages: &[&str]) -> Vec<PathBuf> {
    let homes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    homes
        .flat_map(|home| std::fs::read_dir(home.join("lib")).into_iter().flatten().flatten())
        .map(|entry| entry.path().join("site-packages/nvidia"))
        .flat_map(|nvidia| packages.iter().map(move |package| nvidia.join(package).join("lib")))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Compiles to machine code of one architecture.
pub(crate) fn compile(source: &str, arch: i32, options: &[String]) -> Result<Vec<u8>, ExecError> {
    let failed = |call: &'static str, message: String| ExecError::Library { call, message };
    let source = CString::new(source).map_err(|e| failed("nvrtcCreateProgram", e.to_string()))?;
    let program = rtc::create_program(&source, None).map_err(|e| failed("nvrtcCreateProgram", e.to_string()))?;
    let options: Vec<String> =
        [format!("-arch=sm_{arch}"), "-std=c++17".to_owned()].into_iter().chain(options.iter().cloned()).collect();
    // SAFETY: the program was made above and is destroyed below, once.
    let compiled = unsafe { rtc::compile_program(program, &options) };
    let code = compiled.map_err(|error| {
        // SAFETY: as above; the log is text that ends in zero.
        let log = unsafe { rtc::get_program_log(program) }.unwrap_or_default();
        let log = log.into_iter().map(|c| char::from(c.cast_unsigned())).collect::<String>();
        failed("nvrtcCompileProgram", format!("{error}: {}", log.trim_end_matches('\0')))
    });
    let code = code.and_then(|()| {
        let mut size = 0;
        // SAFETY: the program is compiled; the buffer has the size that NVRTC names.
        unsafe {
            rtc_sys::nvrtcGetCUBINSize(program, &mut size)
                .result()
                .map_err(|e| failed("nvrtcGetCUBINSize", e.to_string()))?;
            let mut code = vec![0_u8; size];
            rtc_sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast())
                .result()
                .map_err(|e| failed("nvrtcGetCUBIN", e.to_string()))?;
            Ok(code)
        }
    });
    // SAFETY: made above, used no more.
    unsafe { rtc::destroy_program(program) }.map_err(|e| failed("nvrtcDestroyProgram", e.to_string()))?;
    code
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Goal: memory of a GPU has a descriptor that other devices take, which is the kernel's dma-buf; a driver that hands
    /// none out says so.
    #[test]
    fn memory_has_a_descriptor() {
        let devices = match open() {
            Ok(devices) => devices,
            Err(error) => return println!("skipped: {error}"),
        };
        let memory = Memory::new(&devices[0], 2 << 20).unwrap();
        match memory.shared() {
            Ok(descriptor) => {
                let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap();
                println!("GPU 0: {}", link.display());
                assert!(link.to_string_lossy().contains("dmabuf"), "{}", link.display());
            }
            Err(error) => {
                println!("GPU 0: {error}");
                assert!(error.to_string().contains("cuMemGetHandleForAddressRange"), "{error}");
            }
        }
    }
}
