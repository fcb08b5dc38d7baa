//! A GPU: its constants by name, and what follows from its data sheet.

use thiserror::Error;

use super::constants::Constant;
use super::kernel::{Kernel, Precision};
use super::work::Droop;
use crate::profile::{DataFile, Parameter};
use crate::units::SimDuration;

/// A clock of the multiprocessors, of the boost clock: above 0, at most 1.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Clock(pub(super) f64);

impl Clock {
    /// The boost clock.
    pub const BOOST: Self = Self(1.0);

    /// Of the boost clock.
    pub fn share(self) -> f64 {
        self.0
    }
}

/// A precision that a GPU does not multiply in.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{gpu} has no tensor cores for {precision}; `gpu.tensor_{precision}` of its profile is 0")]
pub struct Unsupported {
    /// The GPU.
    pub gpu: String,
    /// The precision.
    pub precision: &'static str,
}

/// One GPU: what it is and what its kernels reach. See [`Compute::builtin`] and [`Compute::parse`].
#[derive(Clone, PartialEq, Debug)]
pub struct Compute {
    pub(super) name: String,
    pub(super) evidence: String,
    pub(super) gpus: Vec<String>,
    pub(super) data: Vec<DataFile>,
    pub(super) errors: std::collections::BTreeMap<String, f64>,
    pub(super) parameters: Vec<Parameter>,
    /// Values of the same, side by side.
    pub(super) values: Vec<f64>,
}

impl Compute {
    /// Kernels as they do on this GPU, on the hardware of another: a first idea of one that nobody has measured.
    #[must_use]
    pub fn on(&self, other: &Self) -> Self {
        let mut moved = self.clone();
        for &constant in Constant::ALL.iter().filter(|&&constant| !constant.is_fitted()) {
            moved.parameters[constant as usize] = other.parameters[constant as usize].clone();
            moved.values[constant as usize] = other.values[constant as usize];
        }
        moved
    }

    /// Bytes of its memory that a program can have.
    pub fn capacity(&self) -> u64 {
        (self.value(Constant::Capacity) * 1e9) as u64
    }

    /// FLOP/s of its data sheet in a precision, without sparsity: what MFU is counted by.
    pub fn peak(&self, precision: Precision) -> f64 {
        self.value(Constant::Peak) * 1e12 * self.times(precision)
    }

    /// Whether its tensor cores multiply in that precision.
    pub fn supports(&self, precision: Precision) -> bool {
        self.times(precision) > 0.0
    }

    /// The same with another value of a constant, or the nearest to it that the constant may have; its origin stays.
    pub fn set(&mut self, constant: Constant, value: f64) {
        let value = constant.bounded(value);
        self.values[constant as usize] = value;
        self.parameters[constant as usize].value = value;
    }

    /// Whether it can run a kernel.
    pub(super) fn check(&self, kernel: &Kernel) -> Result<(), Unsupported> {
        match kernel {
            Kernel::Product(p) if !self.supports(p.precision) => {
                Err(Unsupported { gpu: self.name.clone(), precision: p.precision.name() })
            }
            _ => Ok(()),
        }
    }

    /// A constant's value.
    pub(super) fn value(&self, constant: Constant) -> f64 {
        self.values[constant as usize]
    }

    /// Clocks a second at the boost clock.
    pub(super) fn boost(&self) -> f64 {
        self.value(Constant::Boost) * 1e6
    }

    /// B/s of memory, both ways together.
    pub(super) fn memory_rate(&self) -> f64 {
        self.value(Constant::Memory) * 1e9 * self.value(Constant::MemoryShare)
    }

    /// What copies between its memory and pinned memory of a host get of the link's nominal rate, and their start.
    pub fn host_copies(&self) -> (f64, SimDuration) {
        (self.value(Constant::CopyShare), SimDuration::from_us(self.value(Constant::CopyStart)))
    }

    /// B/s of copies between its memory and pinned memory of the host, one way.
    pub(super) fn host_copy_rate(&self) -> f64 {
        self.value(Constant::HostLink) * 1e9 * self.value(Constant::CopyShare)
    }

    pub(super) fn times(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Bf16 => 1.0,
            Precision::Fp8 => self.value(Constant::TensorFp8),
            Precision::Fp4 => self.value(Constant::TensorFp4),
        }
    }

    /// What tensor cores at work do to their clock.
    pub(super) fn droop(&self) -> Droop {
        Droop { firm: self.value(Constant::PowerFirm), loses: self.value(Constant::PowerYield) }
    }

    /// FLOP/s of a multiprocessor by its data sheet at the boost clock, and J of an operation.
    pub(super) fn tensor_peak(&self, precision: Precision) -> (f64, f64) {
        let energy = match precision {
            Precision::Bf16 => Constant::EnergyBf16,
            Precision::Fp8 => Constant::EnergyFp8,
            Precision::Fp4 => Constant::EnergyFp4,
        };
        let rate = self.value(Constant::Tensor) * self.times(precision) * self.boost();
        (rate, self.value(energy) * 1e-12)
    }

    /// The same as products' inner loops reach it.
    pub(super) fn tensor(&self, precision: Precision) -> (f64, f64) {
        let share = match precision {
            Precision::Bf16 => Constant::ProductBf16,
            Precision::Fp8 => Constant::ProductFp8,
            Precision::Fp4 => Constant::ProductFp4,
        };
        let (peak, energy) = self.tensor_peak(precision);
        (peak * self.value(share), energy)
    }
}

impl std::ops::Index<Constant> for Compute {
    type Output = Parameter;

    fn index(&self, constant: Constant) -> &Parameter {
        &self.parameters[constant as usize]
    }
}
