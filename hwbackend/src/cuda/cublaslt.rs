//! cuBLASLt, bound by hand and found at run time: matrix products as layers run them.

#![allow(unsafe_code)] // A foreign interface: each block says what it relies on.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;

use libloading::Library;

use super::driver::{Device, Memory, Stream, python_folders};
use crate::exec::ExecError;

/// The call that refuses a product which the GPU has not.
pub const CHOOSES: &str = "cublasLtMatmulAlgoGetHeuristic";

type Raw = *mut c_void;
/// `CUBLAS_COMPUTE_32F`, and the element types `CUDA_R_32F`, `CUDA_R_16BF` and `CUDA_R_8F_E4M3` of the library's headers.
const COMPUTE_32F: c_int = 68;
const R_32F: c_int = 0;
const R_16BF: c_int = 14;
const R_8F_E4M3: c_int = 28;
/// `CUBLASLT_MATMUL_DESC_TRANSA` and `TRANSB`, and the size of a workspace as a preference.
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const MOST_WORKSPACE: c_int = 1;
/// Bytes that a product may work in: what PyTorch gives cuBLASLt on Hopper.
const WORKSPACE: u64 = 32 << 20;

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
type Create = unsafe extern "C" fn(*mut Raw) -> c_int;
type Describe = unsafe extern "C" fn(*mut Raw, c_int, c_int) -> c_int;
type Lay = unsafe extern "C" fn(*mut Raw, c_int, u64, u64, i64) -> c_int;
type Set = unsafe extern "C" fn(Raw, c_int, *const c_void, usize) -> c_int;
type Ask = unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Algorithm, *mut c_int) -> c_int;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Algorithm {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Elements of a product's inputs; its result is of BF16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// bfloat16.
    Bf16,
    /// Float of eight bits with four of exponent, one scale a tensor.
    Fp8,
}

impl Element {
    const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::Fp8 => 1,
        }
    }

    const fn code(self) -> c_int {
        match self {
            Self::Bf16 => R_16BF,
            Self::Fp8 => R_8F_E4M3,
        }
    }

    /// The element nearest to a number of size 4 or less.
    #[expect(clippy::cast_possible_truncation, reason = "the upper half of the bits, and codes of eight bits")]
    fn of(self, value: f32) -> [u8; 2] {
        match self {
            Self::Bf16 => ((value.to_bits() >> 16) as u16).to_le_bytes(),
            Self::Fp8 => {
                // Three bits of mantissa, and an exponent that is 7 where the number is from 1 to 2.
                let bits = value.to_bits();
                let exponent = ((bits >> 23) & 0xff).cast_signed() - 120;
                let code = if exponent < 1 { 0 } else { (exponent.cast_unsigned() << 3) | ((bits >> 20) & 7) };
                [((bits >> 24) & 0x80 | code) as u8, 0]
            }
        }
    }
}

/// A product of a linear layer that maps `inputs` to `outputs` for each of `tokens`; matrices are stored by rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linear {
    /// Elements of the inputs.
    pub element: Element,
    /// Rows of the activation.
    pub tokens: u64,
    /// Columns of the result.
    pub outputs: u64,
    /// Columns of the activation.
    pub inputs: u64,
    /// Which of the three products of a layer.
    pub pass: LinearPass,
}

/// A product of a linear layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinearPass {
    /// Activation by weights: tokens x inputs by inputs x outputs.
    Forward,
    /// Gradient of the result by weights: tokens x outputs by outputs x inputs.
    GradInput,
    /// Gradient of the result by activation: outputs x tokens by tokens x inputs.
    GradWeight,
}

/// A matrix as the library takes it, by columns, and whether it is transposed.
type Operand = (u64, u64, bool);

impl Linear {
    /// A product of square matrices of BF16.
    pub const fn square(size: u64) -> Self {
        Self { element: Element::Bf16, tokens: size, outputs: size, inputs: size, pass: LinearPass::Forward }
    }

    /// Operands and result: the library stores by columns, so all are transposed and change places.
    const fn operands(self) -> [Operand; 3] {
        let Self { tokens, outputs, inputs, .. } = self;
        let (activation, weights, result) = ((inputs, tokens), (inputs, outputs), (outputs, tokens));
        match self.pass {
            LinearPass::Forward => {
                [(weights.0, weights.1, true), (activation.0, activation.1, false), (result.0, result.1, false)]
            }
            LinearPass::GradInput => {
                [(weights.0, weights.1, false), (result.0, result.1, false), (activation.0, activation.1, false)]
            }
            LinearPass::GradWeight => {
                [(activation.0, activation.1, false), (result.0, result.1, true), (weights.0, weights.1, false)]
            }
        }
    }
}

/// A product on one GPU, ready to be run again and again.
pub(super) struct Product {
    matmul: Matmul,
    handle: Raw,
    describe: Raw,
    layouts: [Raw; 3],
    algorithm: Algorithm,
    memory: [Memory; 3],
    workspace: Memory,
}

// SAFETY: used by one thread at a time; what it points to lives as long as the process.
unsafe impl Sync for Product {}

pub(super) fn open() -> Result<Library, ExecError> {
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

/// Elements of random numbers, about normal: power, and with it the clock, depends on what is multiplied.
fn random(element: Element, count: u64, seed: u64) -> Vec<u8> {
    /// Numbers that are made; a matrix repeats them.
    const MADE: u64 = 1 << 20;
    let mut state = seed | 1;
    let mut uniform = || {
        // Marsaglia's xorshift of 64 bits.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    let bytes = element.bytes() as usize;
    // The sum of twelve uniform numbers has a variance of one.
    let one = |uniform: &mut dyn FnMut() -> f32| (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
    let made: Vec<u8> =
        (0..count.min(MADE)).flat_map(|_| element.of(one(&mut uniform)).into_iter().take(bytes)).collect();
    let whole = count as usize * bytes;
    let mut all = Vec::with_capacity(whole);
    while all.len() < whole {
        all.extend_from_slice(&made[..made.len().min(whole - all.len())]);
    }
    all
}

impl Product {
    /// A product of random matrices.
    pub(super) fn new(device: &Arc<Device>, linear: Linear) -> Result<Self, ExecError> {
        let library = open()?;
        let lacks = |e: libloading::Error| ExecError::Missing {
            what: format!("cuBLASLt lacks a function: {e}"),
            hint: "install version 12 or later".to_owned(),
        };
        // SAFETY: the types are those of `cublasLt.h`, stable within a major version, and alike in 12
        // and 13.
        let (create, describe, lay, set, prefer, set_preference, ask, matmul) = unsafe {
            (
                *library.get::<Create>(b"cublasLtCreate\0").map_err(lacks)?,
                *library.get::<Describe>(b"cublasLtMatmulDescCreate\0").map_err(lacks)?,
                *library.get::<Lay>(b"cublasLtMatrixLayoutCreate\0").map_err(lacks)?,
                *library.get::<Set>(b"cublasLtMatmulDescSetAttribute\0").map_err(lacks)?,
                *library.get::<Create>(b"cublasLtMatmulPreferenceCreate\0").map_err(lacks)?,
                *library.get::<Set>(b"cublasLtMatmulPreferenceSetAttribute\0").map_err(lacks)?,
                *library.get::<Ask>(b"cublasLtMatmulAlgoGetHeuristic\0").map_err(lacks)?,
                *library.get::<Matmul>(b"cublasLtMatmul\0").map_err(lacks)?,
            )
        };
        std::mem::forget(library); // Handles are used as long as the process runs.
        device.enter()?;
        let [a, b, d] = linear.operands();
        let matrix = |(rows, columns, _): Operand, seed| {
            Memory::of(device, &random(linear.element, rows.saturating_mul(columns), seed))
        };
        let memory = [matrix(a, 1)?, matrix(b, 2)?, Memory::new(device, 2 * d.0 * d.1)?];
        let workspace = Memory::new(device, WORKSPACE)?;
        let (mut handle, mut description, mut preference) = (null_mut(), null_mut(), null_mut());
        let mut layouts = [null_mut(); 3];
        let (mut algorithm, mut found) = (Algorithm::default(), 0);
        let transposed = [a.2, b.2].map(c_int::from);
        // SAFETY: places for handles; attributes are of the sizes that the headers give; the device's context is current.
        unsafe {
            check("cublasLtCreate", create(&raw mut handle))?;
            check("cublasLtMatmulDescCreate", describe(&raw mut description, COMPUTE_32F, R_32F))?;
            for (attribute, value) in [TRANSPOSE_A, TRANSPOSE_B].into_iter().zip(&transposed) {
                let code = set(description, attribute, std::ptr::from_ref(value).cast(), size_of::<c_int>());
                check("cublasLtMatmulDescSetAttribute", code)?;
            }
            let types = [linear.element.code(), linear.element.code(), R_16BF];
            for ((layout, (rows, columns, _)), element) in layouts.iter_mut().zip([a, b, d]).zip(types) {
                check("cublasLtMatrixLayoutCreate", lay(layout, element, rows, columns, rows.cast_signed()))?;
            }
            check("cublasLtMatmulPreferenceCreate", prefer(&raw mut preference))?;
            let code =
                set_preference(preference, MOST_WORKSPACE, std::ptr::from_ref(&WORKSPACE).cast(), size_of::<u64>());
            check("cublasLtMatmulPreferenceSetAttribute", code)?;
            let [a, b, d] = layouts;
            let code = ask(handle, description, a, b, d, d, preference, 1, &raw mut algorithm, &raw mut found);
            check(CHOOSES, code)?;
        }
        check(CHOOSES, algorithm.state)?;
        if found < 1 {
            let message = "no algorithm for this product".to_owned();
            return Err(ExecError::Library { call: CHOOSES, message });
        }
        Ok(Self { matmul, handle, describe: description, layouts, algorithm, memory, workspace })
    }

    /// Puts it into a stream of its device, whose context is current.
    pub(super) fn enqueue(&self, stream: &Stream) -> Result<(), ExecError> {
        let [a, b, d] = self.memory.each_ref().map(|m| m.address as Raw);
        let [of_a, of_b, of_d] = self.layouts;
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: handles of this library; three matrices of the sizes that the layouts name; both
        // factors are read before the call returns (pointer mode host); the algorithm is of these layouts.
        let code = unsafe {
            (self.matmul)(
                self.handle,
                self.describe,
                (&raw const one).cast(),
                a,
                of_a,
                b,
                of_b,
                (&raw const zero).cast(),
                d,
                of_d,
                d,
                of_d,
                self.algorithm.algorithm.as_ptr().cast(),
                self.workspace.address as *mut c_void,
                WORKSPACE as usize,
                stream.raw.cast(),
            )
        };
        check("cublasLtMatmul", code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: elements are those of their formats.
    #[test]
    fn numbers_are_rounded_to_elements() {
        for (value, bf16, fp8) in [
            (1.0_f32, 0x3f80_u16, 0x38_u8),
            (-1.5, 0xbfc0, 0xbc),
            (3.5, 0x4060, 0x46),
            (0.0, 0, 0),
            (-0.25, 0xbe80, 0xa8),
        ] {
            assert_eq!(u16::from_le_bytes(Element::Bf16.of(value)), bf16, "{value}");
            assert_eq!(Element::Fp8.of(value)[0], fp8, "{value}");
        }
    }

    /// Goal: the operands of each pass have the sizes that its product needs.
    #[test]
    fn operands_meet() {
        let (tokens, outputs, inputs) = (3, 5, 7);
        for (pass, [rows, columns, inner]) in [
            (LinearPass::Forward, [outputs, tokens, inputs]),
            (LinearPass::GradInput, [inputs, tokens, outputs]),
            (LinearPass::GradWeight, [inputs, outputs, tokens]),
        ] {
            let [a, b, d] = Linear { element: Element::Bf16, tokens, outputs, inputs, pass }.operands();
            let turned =
                |(rows, columns, transposed): Operand| if transposed { (columns, rows) } else { (rows, columns) };
            assert_eq!(
                (turned(a), turned(b), turned(d)),
                ((rows, inner), (inner, columns), (rows, columns)),
                "{pass:?}"
            );
        }
    }
}
