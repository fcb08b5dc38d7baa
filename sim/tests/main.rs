//! Tests of the package, one file a subject. One crate, as each would be built and linked by itself.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;
mod engine;
mod fuzz;
mod grow;
mod msccl;
mod nccl_model;
mod network;
mod plan;
mod schedules;
mod tidy;
mod workload;
