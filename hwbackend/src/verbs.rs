//! The place of an executor over RDMA verbs, which is not there yet: schedules of several hosts, each
//! connection a queue pair, slots written with RDMA and counters behind them. It will implement
//! [`Executor`](crate::exec::Executor) as the others do; until then it says that it is missing.

use std::convert::Infallible;

use crate::exec::ExecError;

/// Would find RDMA devices.
///
/// # Errors
/// Always: there is no such executor yet.
pub fn open() -> Result<Infallible, ExecError> {
    Err(ExecError::Missing {
        what: "there is no executor over RDMA verbs yet".to_owned(),
        hint: "--backend nccl runs NCCL over the same NICs; --backend host runs the schedule on this CPU".to_owned(),
    })
}
