//! The pure core of Collcast.
//!
//! No files, clock, environment, logging or GPU: topologies, schedules, the verifier, the
//! engine and the models are functions from values to values. Start with [`schedule`], then
//! [`engine`].

/// Hash of the code of this crate, comments and tests left out: what predictions depend on beside
/// their inputs.
pub const MODEL: &str = env!("COLLCAST_MODEL");

pub mod bounds;
pub mod calibrate;
pub mod call;
pub mod collective;
pub mod compute;
pub mod doctor;
pub mod domain;
pub mod engine;
pub mod hash;
pub mod ids;
pub mod measurement;
mod memo;
pub mod nccl;
pub mod network;
pub mod predict;
pub mod profile;
pub mod schedule;
pub mod split;
pub mod text;
pub mod topology;
pub mod transfer;
pub mod units;
pub mod workload;
