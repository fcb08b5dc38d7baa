//! Tests of the package, one file a subject. One crate, as each would be built and linked by itself.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod figures;
mod golden;
mod machines;
mod writers;
