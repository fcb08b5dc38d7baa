//! The real world of Collcast: what was measured, read from the files people have.
//!
//! [`read`] turns files and folders (nccl-tests logs and JSON, CSV) into
//! [`Measurement`](collcast_sim::measurement::Measurement)s. It depends on nothing but the
//! files, and says of every file and line it could not use why.

pub mod read;
