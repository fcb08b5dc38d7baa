//! NCCL, bound by hand and found at run time.

#![allow(unsafe_code)] // A foreign interface: each block says what it relies on.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use collcast_sim::collective::{DataType, ReduceOp};
use libloading::Library;

use crate::cuda::driver::python_folders;
use crate::exec::ExecError;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclSimInfo_t` with its initialiser (`nccl.h`, since 2.22).
#[repr(C)]
struct SimInfo {
    size: usize,
    magic: u32,
    version: u32,
    estimated_us: f32,
}

/// `ncclComm_t`.
pub(super) type RawComm = *mut c_void;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty,)+) => {
        #[allow(non_snake_case)] // The library's names.
        #[derive(Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl Functions {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of `nccl.h`, stable within version 2.
                unsafe { Ok(Self { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)+ }) }
            }
        }
    };
}

functions! {
    ncclGetVersion: fn(*mut c_int) -> c_int,
    ncclGetUniqueId: fn(*mut UniqueId) -> c_int,
    ncclCommInitRank: fn(*mut RawComm, c_int, UniqueId, c_int) -> c_int,
    ncclCommInitAll: fn(*mut RawComm, c_int, *const c_int) -> c_int,
    ncclGetErrorString: fn(c_int) -> *const c_char,
    ncclGetLastError: fn(RawComm) -> *const c_char,
    ncclAllReduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    ncclReduceScatter: fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    ncclAllGather: fn(*const c_void, *mut c_void, usize, c_int, RawComm, *mut c_void) -> c_int,
    ncclBroadcast: fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    ncclReduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, *mut c_void) -> c_int,
    ncclSend: fn(*const c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    ncclRecv: fn(*mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    ncclGroupStart: fn() -> c_int,
    ncclGroupEnd: fn() -> c_int,
}

/// The library.
#[derive(Debug)]
pub(super) struct Api {
    functions: Functions,
    simulate_end: Option<unsafe extern "C" fn(*mut SimInfo) -> c_int>,
    abort: Option<unsafe extern "C" fn(RawComm) -> c_int>,
    async_error: Option<unsafe extern "C" fn(RawComm, *mut c_int) -> c_int>,
    version: c_int,
}

/// One rank's buffers, communicator and stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) comm: RawComm,
    pub(super) stream: *mut c_void,
}

impl Api {
    /// Finds the library: `COLLCAST_NCCL_LIBRARY`, what the loader finds, Python's packages.
    pub(super) fn open() -> Result<Self, ExecError> {
        let mut names: Vec<PathBuf> = match std::env::var_os("COLLCAST_NCCL_LIBRARY") {
            Some(path) => vec![path.into()],
            None => vec!["libnccl.so.2".into(), "libnccl.so".into()],
        };
        names.extend(python_folders(&["nccl"]).into_iter().map(|folder| folder.join("libnccl.so.2")));
        let missing = |what: String| ExecError::Missing {
            what,
            hint: "install NCCL, and name its folder in LD_LIBRARY_PATH or the file in COLLCAST_NCCL_LIBRARY"
                .to_owned(),
        };
        let library = names.iter().find_map(|name| {
            // SAFETY: NCCL's initialisers read the environment only.
            unsafe { Library::new(name) }.ok()
        });
        let names = || names.iter().map(|n| n.display().to_string()).collect::<Vec<_>>().join(", ");
        let library = library.ok_or_else(|| missing(format!("NCCL was not found as {}", names())))?;
        let functions = Functions::load(&library).map_err(|e| missing(format!("NCCL lacks a function: {e}")))?;
        // SAFETY: as in `Functions::load`.
        let simulate_end = unsafe { library.get(b"ncclGroupSimulateEnd\0").ok().map(|f| *f) };
        // SAFETY: as in `Functions::load`.
        let abort = unsafe { library.get(b"ncclCommAbort\0").ok().map(|f| *f) };
        // SAFETY: as in `Functions::load`.
        let async_error = unsafe { library.get(b"ncclCommGetAsyncError\0").ok().map(|f| *f) };
        std::mem::forget(library); // Its threads may outlive every owner.
        let mut api = Self { functions, simulate_end, abort, async_error, version: 0 };
        let mut version = 0;
        // SAFETY: a place for a number.
        let code = unsafe { (api.functions.ncclGetVersion)(&mut version) };
        api.check("ncclGetVersion", code)?;
        api.version = version;
        Ok(api)
    }

    /// Such as `2.28.9`.
    pub(super) fn version(&self) -> String {
        let v = self.version;
        // NCCL before 2.9 counted by hundreds.
        if v < 10_000 {
            format!("{}.{}.{}", v / 1000, v % 1000 / 100, v % 100)
        } else {
            format!("{}.{}.{}", v / 10_000, v % 10_000 / 100, v % 100)
        }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), ExecError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: both return texts that live as long as the library; a null communicator asks
        // for the last error of any.
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: see above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        // SAFETY: see above.
        let (what, last) = unsafe {
            (
                text((self.functions.ncclGetErrorString)(code)),
                text((self.functions.ncclGetLastError)(std::ptr::null_mut())),
            )
        };
        Err(ExecError::Library { call, message: format!("{what}; {}", last.trim()) })
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, ExecError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a place for an id.
        let code = unsafe { (self.functions.ncclGetUniqueId)(&mut id) };
        self.check("ncclGetUniqueId", code).map(|()| id)
    }

    /// Joins a communicator of several processes; the device's context must be current.
    pub(super) fn join(&self, id: UniqueId, size: u32, rank: u32) -> Result<RawComm, ExecError> {
        let mut comm = std::ptr::null_mut();
        // SAFETY: a place for a communicator.
        let code = unsafe { (self.functions.ncclCommInitRank)(&mut comm, int(size), id, int(rank)) };
        self.check("ncclCommInitRank", code).map(|()| comm)
    }

    /// Communicators of devices of this process.
    pub(super) fn init_all(&self, devices: &[c_int]) -> Result<Vec<RawComm>, ExecError> {
        let mut comms = vec![std::ptr::null_mut(); devices.len()];
        // SAFETY: as many places as devices.
        let code = unsafe {
            (self.functions.ncclCommInitAll)(comms.as_mut_ptr(), int(devices.len() as u32), devices.as_ptr())
        };
        self.check("ncclCommInitAll", code).map(|()| comms)
    }

    /// What went wrong in a communicator while its kernels waited, such as a link that broke; none where NCCL knows of nothing.
    pub(super) fn background(&self, comm: RawComm) -> Option<ExecError> {
        /// `ncclInProgress`.
        const IN_PROGRESS: c_int = 7;
        let mut state = 0;
        // SAFETY: a communicator that was made, and a place for a number.
        let code = unsafe { (self.async_error?)(comm, &mut state) };
        let state = if code == 0 { state } else { code };
        if state == IN_PROGRESS { None } else { self.check("ncclCommGetAsyncError", state).err() }
    }

    /// Ends what kernels of these communicators wait for; nobody uses them any more. It gives up after a while, since NCCL
    /// itself may wait.
    pub(super) fn abort(&self, comms: &[RawComm]) {
        const LONGEST: Duration = Duration::from_secs(5);
        let Some(abort) = self.abort else { return };
        let comms: Vec<usize> = comms.iter().map(|comm| comm.expose_provenance()).collect();
        let (send, done) = mpsc::channel();
        let ended = move || {
            for comm in comms {
                // SAFETY: a communicator that was made, is aborted once and is used no more.
                let _ = unsafe { abort(std::ptr::with_exposed_provenance_mut(comm)) };
            }
            let _ = send.send(());
        };
        let _ = std::thread::Builder::new().spawn(ended);
        let _ = done.recv_timeout(LONGEST);
    }

    pub(super) fn group(&self, inside: impl FnOnce() -> Result<(), ExecError>) -> Result<(), ExecError> {
        // SAFETY: no arguments.
        let code = unsafe { (self.functions.ncclGroupStart)() };
        self.check("ncclGroupStart", code)?;
        let result = inside();
        // SAFETY: ends the group begun above.
        let code = unsafe { (self.functions.ncclGroupEnd)() };
        result.and(self.check("ncclGroupEnd", code))
    }

    /// NCCL's own prediction for a group, which is not run, in microseconds.
    pub(super) fn simulate(&self, inside: impl FnOnce() -> Result<(), ExecError>) -> Result<Option<f64>, ExecError> {
        let Some(simulate_end) = self.simulate_end else {
            return Ok(None);
        };
        // SAFETY: no arguments.
        let code = unsafe { (self.functions.ncclGroupStart)() };
        self.check("ncclGroupStart", code)?;
        let result = inside();
        let mut info = SimInfo {
            size: size_of::<SimInfo>(),
            magic: 0x7468_5283,
            version: self.version.unsigned_abs(),
            estimated_us: -1.0,
        };
        // SAFETY: ends the group begun above; `info` says how large it is.
        let code = unsafe { simulate_end(&mut info) };
        result.and(self.check("ncclGroupSimulateEnd", code))?;
        Ok((info.estimated_us > 0.0).then(|| f64::from(info.estimated_us)))
    }

    pub(super) fn all_reduce(&self, at: Place, count: u64, dtype: c_int, op: c_int) -> Result<(), ExecError> {
        // SAFETY: the place is one rank's; its buffers hold what the call needs.
        let code = unsafe {
            (self.functions.ncclAllReduce)(
                at.input as *const c_void,
                at.output as *mut c_void,
                count as usize,
                dtype,
                op,
                at.comm,
                at.stream,
            )
        };
        self.check("ncclAllReduce", code)
    }

    pub(super) fn reduce_scatter(&self, at: Place, count: u64, dtype: c_int, op: c_int) -> Result<(), ExecError> {
        // SAFETY: as for `all_reduce`.
        let code = unsafe {
            (self.functions.ncclReduceScatter)(
                at.input as *const c_void,
                at.output as *mut c_void,
                count as usize,
                dtype,
                op,
                at.comm,
                at.stream,
            )
        };
        self.check("ncclReduceScatter", code)
    }

    pub(super) fn all_gather(&self, at: Place, count: u64, dtype: c_int) -> Result<(), ExecError> {
        // SAFETY: as for `all_reduce`.
        let code = unsafe {
            (self.functions.ncclAllGather)(
                at.input as *const c_void,
                at.output as *mut c_void,
                count as usize,
                dtype,
                at.comm,
                at.stream,
            )
        };
        self.check("ncclAllGather", code)
    }

    pub(super) fn broadcast(&self, at: Place, count: u64, dtype: c_int, root: u32) -> Result<(), ExecError> {
        // SAFETY: as for `all_reduce`.
        let code = unsafe {
            (self.functions.ncclBroadcast)(
                at.input as *const c_void,
                at.output as *mut c_void,
                count as usize,
                dtype,
                int(root),
                at.comm,
                at.stream,
            )
        };
        self.check("ncclBroadcast", code)
    }

    pub(super) fn reduce(&self, at: Place, count: u64, dtype: c_int, op: c_int, root: u32) -> Result<(), ExecError> {
        // SAFETY: as for `all_reduce`.
        let code = unsafe {
            (self.functions.ncclReduce)(
                at.input as *const c_void,
                at.output as *mut c_void,
                count as usize,
                dtype,
                op,
                int(root),
                at.comm,
                at.stream,
            )
        };
        self.check("ncclReduce", code)
    }

    pub(super) fn send(&self, at: Place, from: u64, count: u64, dtype: c_int, peer: u32) -> Result<(), ExecError> {
        // SAFETY: as for `all_reduce`.
        let code = unsafe {
            (self.functions.ncclSend)(from as *const c_void, count as usize, dtype, int(peer), at.comm, at.stream)
        };
        self.check("ncclSend", code)
    }

    pub(super) fn recv(&self, at: Place, to: u64, count: u64, dtype: c_int, peer: u32) -> Result<(), ExecError> {
        // SAFETY: as for `all_reduce`.
        let code = unsafe {
            (self.functions.ncclRecv)(to as *mut c_void, count as usize, dtype, int(peer), at.comm, at.stream)
        };
        self.check("ncclRecv", code)
    }
}

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// `ncclDataType_t`.
pub fn data_type(dtype: DataType) -> c_int {
    match dtype {
        DataType::Int8 => 0,
        DataType::Uint8 => 1,
        DataType::Int32 => 2,
        DataType::Uint32 => 3,
        DataType::Int64 => 4,
        DataType::Uint64 => 5,
        DataType::Float16 => 6,
        DataType::Float32 => 7,
        DataType::Float64 => 8,
        DataType::Bfloat16 => 9,
        DataType::Float8E4m3 => 10,
        DataType::Float8E5m2 => 11,
    }
}

/// `ncclRedOp_t`.
pub fn reduction(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Avg => 4,
    }
}
