//! A transformer by its shape: what it holds, what a token costs, how it is named and read.
//!
//! [`load`] takes a built-in name, a `collcast/model/1` file ([`mod@file`]) or a Hugging Face `config.json`
//! ([`hugging_face`]). [`Transformer::parameters`] counts exactly, [`Transformer::flops`] as Megatron-LM does.

pub mod builtin;
pub mod file;
mod flops;
pub mod hugging_face;
mod load;
mod parameters;
mod shape;

pub use flops::{Flops, Mask};
pub use load::{MAX_FILE_BYTES, load, read};
pub use parameters::Parameters;
pub use shape::{Activation, Attention, Biases, Experts, LayerKind, MAX_PARAMETERS, Norm, Transformer};

#[cfg(test)]
mod tests;
