//! Serving a model: requests that arrive, workers that prefill and decode them, caches of keys and values between them.
//!
//! [`arrivals`] makes requests. [`simulate()`] runs them through workers, step by step, on a [`Machine`] that says what a step
//! and a hand-off take. [`prefix`] is what workers keep of prompts. [`Steps`] is what a step of a model takes on GPUs; [`summary`] counts what users see.

pub mod arrivals;
mod beside;
pub mod prefix;
mod simulate;
mod step;
pub mod summary;
#[cfg(test)]
mod tests;

pub use arrivals::Request;
pub use beside::{Beside, Taken, WAYS};
pub use simulate::{Batch, Machine, Outcome, Policy, Role, Route, Served, ServingError, Worker, simulate};
pub use step::Steps;
