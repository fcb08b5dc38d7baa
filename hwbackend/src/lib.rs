//! The real world: executors that run schedules, and readers of what others measured.
//!
//! [`host`] runs a schedule on CPU threads. [`read`] turns files and folders (nccl-tests logs
//! and JSON, CSV) into [`Measurement`](collcast_sim::measurement::Measurement)s, and says of
//! every file and line it could not use why.

pub mod host;
pub mod read;
