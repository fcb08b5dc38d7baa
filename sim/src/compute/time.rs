//! Time of a kernel on a GPU.

use super::gpu::{Clock, Compute, Unsupported};
use super::kernel::{Kernel, MemoryKind};
use super::work::Work;
use super::{attention, copy, memory, product};
use crate::units::SimDuration;

impl Kernel {
    /// Floating-point operations of its products; a multiply-add is two, masked scores are none.
    pub fn flops(&self) -> f64 {
        match self {
            Self::Product(p) => product::flops(p),
            Self::Attention(a) => attention::flops(a),
            Self::Memory(m) if m.kind == MemoryKind::Multiply => 2.0 * m.rows as f64 * m.width as f64,
            Self::Memory(_) | Self::Optimizer(_) | Self::HostCopy(_) => 0.0,
        }
    }
}

impl Compute {
    /// Time of one kernel among others of a step, whose operands come from memory.
    ///
    /// # Errors
    /// A precision that the GPU has not.
    pub fn time(&self, kernel: &Kernel, clock: Clock) -> Result<SimDuration, Unsupported> {
        self.check(kernel)?;
        Ok(duration(self.work(kernel, false).seconds(clock.0)))
    }

    /// Time of one of many calls of a kernel back to back, as benchmarks have it: operands that fit stay in L2.
    ///
    /// # Errors
    /// A precision that the GPU has not.
    pub fn time_repeated(&self, kernel: &Kernel, clock: Clock) -> Result<SimDuration, Unsupported> {
        self.check(kernel)?;
        Ok(duration(self.work(kernel, true).seconds(clock.0)))
    }

    /// What it asks of this GPU; `repeated`: the call before used the same operands.
    pub(super) fn work(&self, kernel: &Kernel, repeated: bool) -> Work {
        match kernel {
            Kernel::Product(p) => product::work(self, p, repeated),
            Kernel::Attention(a) => attention::work(self, a),
            Kernel::Memory(m) => memory::work(self, m, repeated),
            Kernel::Optimizer(o) => memory::step(self, o),
            Kernel::HostCopy(c) => copy::work(self, *c),
        }
    }
}

fn duration(seconds: f64) -> SimDuration {
    SimDuration::from_us(seconds * 1e6)
}
