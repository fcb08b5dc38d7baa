//! How long one kernel takes on one GPU, by its shape.
//!
//! [`Compute`] is a GPU: its data sheet, and constants that say what kernels reach of it. [`Compute::time`] is the way in:
//! a [`Kernel`] at a [`Clock`]. [`Compute::sustained`] says which clock the limit of power leaves to a mix of kernels.
//! [`fit()`](fit::fit) finds constants from measured times. No constant is indexed by shape.

mod attention;
mod constants;
mod copy;
mod file;
pub mod fit;
mod gpu;
mod kernel;
mod memory;
mod power;
mod product;
#[cfg(test)]
mod tests;
mod time;
mod work;

pub use constants::Constant;
pub use gpu::{Clock, Compute, Unsupported};
pub use kernel::{
    Attention, Backend, HostCopy, Kernel, Memory, MemoryKind, Optimizer, Pass, Precision, Product, ProductPass, Tokens,
};
pub use power::Duty;
