//! The real world: executors that run calls, and readers of what others measured.
//!
//! An [`exec::Executor`] runs a call, checks every element of its result and times it: [`host`]
//! on CPU threads, [`cuda`] on GPUs (both run schedules), [`nccl`] through NCCL's own
//! collectives, [`verbs`] over RDMA between processes. [`probe`] asks a new machine what it is, [`storage`] times files. Libraries are found at run time. [`read`] turns files and folders (nccl-tests
//! logs and JSON, CSV) into [`Measurement`](collcast_sim::measurement::Measurement)s, and says
//! of every file and line it could not use why. [`trace`] reads what PyTorch recorded of training steps.

pub mod check;
pub mod cuda;
pub mod exec;
mod fifo;
pub mod flat;
pub mod host;
pub mod nccl;
mod nvml;
pub mod probe;
pub mod read;
pub mod rendezvous;
pub mod storage;
mod sync;
pub mod trace;
pub mod verbs;
