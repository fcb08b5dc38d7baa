//! cuBLASLt, bound by hand and found at run time: one matrix product, as computation beside which a
//! collective runs.

#![allow(unsafe_code)] // A foreign interface: each block says what it relies on.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;

use libloading::Library;

use super::driver::{Device, Memory, Stream, python_folders};
use crate::exec::ExecError;

type Raw = *mut c_void;
/// `CUBLAS_COMPUTE_32F`, `CUDA_R_32F` and `CUDA_R_16BF` of the library's headers.
const COMPUTE_32F: c_int = 68;
const R_32F: c_int = 0;
const R_16BF: c_int = 14;

type Matmul = unsafe extern "C" fn(
    Raw,
    Raw,
    *const c_void,
    *const c_void,
    Raw,
    *const c_void,
    Raw,
    *const c_void,
    *const c_void,
    Raw,
    *mut c_void,
    Raw,
    *const c_void,
    *mut c_void,
    usize,
    Raw,
) -> c_int;

/// A square product of bfloat16 on one GPU, ready to be run again and again.
pub(super) struct Product {
    matmul: Matmul,
    /// Handle, description and layout, which stay until the process ends.
    raw: [Raw; 3],
    memory: [Memory; 3],
}

// SAFETY: used by one thread at a time; what it points to lives as long as the process.
unsafe impl Sync for Product {}

fn open() -> Result<Library, ExecError> {
    let mut names: Vec<PathBuf> =
        ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"].into_iter().map(PathBuf::from).collect();
    let mut folders = vec![PathBuf::from("/usr/local/cuda/lib64")];
    folders.extend(python_folders(&["cu13", "cublas"]));
    names.extend(folders.iter().flat_map(|f| ["libcublasLt.so.13", "libcublasLt.so.12"].map(|n| f.join(n))));
    // SAFETY: NVIDIA's library, whose initialisers have no conditions.
    let library = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
    library.ok_or_else(|| ExecError::Missing {
        what: "cuBLASLt (libcublasLt.so) was not found".to_owned(),
        hint: "install the CUDA toolkit or the package nvidia-cublas, and name its folder in LD_LIBRARY_PATH"
            .to_owned(),
    })
}

fn check(call: &'static str, code: c_int) -> Result<(), ExecError> {
    if code == 0 { Ok(()) } else { Err(ExecError::Library { call, message: format!("cuBLAS status {code}") }) }
}

impl Product {
    /// A product of matrices of `size` rows and columns.
    pub(super) fn new(device: &Arc<Device>, size: u64) -> Result<Self, ExecError> {
        let library = open()?;
        let lacks = |e: libloading::Error| ExecError::Missing {
            what: format!("cuBLASLt lacks a function: {e}"),
            hint: "install version 12 or later".to_owned(),
        };
        // SAFETY: the types are those of `cublasLt.h`, stable within a major version, and alike in 12
        // and 13.
        let (create, describe, lay, matmul) = unsafe {
            (
                *library.get::<unsafe extern "C" fn(*mut Raw) -> c_int>(b"cublasLtCreate\0").map_err(lacks)?,
                *library
                    .get::<unsafe extern "C" fn(*mut Raw, c_int, c_int) -> c_int>(b"cublasLtMatmulDescCreate\0")
                    .map_err(lacks)?,
                *library
                    .get::<unsafe extern "C" fn(*mut Raw, c_int, u64, u64, i64) -> c_int>(
                        b"cublasLtMatrixLayoutCreate\0",
                    )
                    .map_err(lacks)?,
                *library.get::<Matmul>(b"cublasLtMatmul\0").map_err(lacks)?,
            )
        };
        std::mem::forget(library); // Handles are used as long as the process runs.
        device.enter()?;
        let bytes = size * size * 2;
        let memory = [Memory::new(device, bytes)?, Memory::new(device, bytes)?, Memory::new(device, bytes)?];
        memory.iter().try_for_each(|m| m.set(0))?;
        let mut raw = [null_mut(); 3];
        // SAFETY: places for handles; the device's context is current.
        unsafe {
            check("cublasLtCreate", create(&mut raw[0]))?;
            check("cublasLtMatmulDescCreate", describe(&mut raw[1], COMPUTE_32F, R_32F))?;
            check("cublasLtMatrixLayoutCreate", lay(&mut raw[2], R_16BF, size, size, size.cast_signed()))?;
        }
        Ok(Self { matmul, raw, memory })
    }

    /// Puts it into a stream of its device, whose context is current.
    pub(super) fn enqueue(&self, stream: &Stream) -> Result<(), ExecError> {
        let ([handle, describe, layout], [a, b, c]) = (self.raw, self.memory.each_ref().map(|m| m.address as Raw));
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: handles of this library; three matrices of the size that the layout names; both
        // factors are read before the call returns (pointer mode host); no algorithm: the library's own.
        let code = unsafe {
            (self.matmul)(
                handle,
                describe,
                (&raw const one).cast(),
                a,
                layout,
                b,
                layout,
                (&raw const zero).cast(),
                c,
                layout,
                c,
                layout,
                std::ptr::null(),
                null_mut(),
                0,
                stream.raw.cast(),
            )
        };
        check("cublasLtMatmul", code)
    }
}
