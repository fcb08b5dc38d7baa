//! Which calls an algorithm has a schedule for.

use super::error::ScheduleError;
use super::order::Order;
use super::valid::valid_algorithms;
use crate::call::Call;
use crate::collective::{Algorithm, Collective};
use crate::nccl::cost::not_in_switches;
use crate::nccl::plan::MAX_NVLS_HEADS;

/// Whether an algorithm has a generator for a collective.
///
/// # Errors
/// [`ScheduleError::Unsupported`], naming what would work.
pub fn check_supported(collective: Collective, algorithm: Algorithm) -> Result<(), ScheduleError> {
    let valid = valid_algorithms(collective);
    if valid.contains(&algorithm) {
        return Ok(());
    }
    let valid = valid.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ");
    let valid = if valid.is_empty() { "nothing yet".to_owned() } else { valid };
    Err(ScheduleError::Unsupported { algorithm, collective, valid })
}

/// Whether an algorithm has a schedule for a call on ranks that are on hosts like this: NCCL's
/// own limits (`src/graph/tuning.cc`, `src/init.cc`, `src/include/device.h`, restated).
///
/// # Errors
/// [`ScheduleError::Unsupported`], [`ScheduleError::Shape`] or [`ScheduleError::InSwitch`].
pub fn check_fits(call: &Call, algorithm: Algorithm, order: &Order) -> Result<(), ScheduleError> {
    check_supported(call.collective, algorithm)?;
    let nvls = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    let collnet = matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain);
    if !nvls && !collnet {
        return Ok(());
    }
    let sizes = || order.hosts.iter().map(Vec::len);
    let (hosts, fewest, most) = (order.hosts.len(), sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let all_reduce = call.collective == Collective::AllReduce;
    let needs = if nvls && fewest < 2 {
        Some("at least 2 ranks on every host")
    } else if algorithm != Algorithm::Nvls && hosts < 2 {
        Some("at least 2 hosts")
    } else if collnet && most > MAX_COLLNET_LOCAL {
        Some("at most 8 ranks on a host")
    } else if nvls && !all_reduce && most > MAX_NVLS_HEADS {
        Some("at most 32 ranks on a host for this collective")
    } else if !all_reduce && fewest != most {
        Some("equally many ranks on every host for this collective")
    } else if !all_reduce && hosts > MAX_GATHER_HOSTS {
        Some("at most 256 hosts for this collective")
    } else {
        None
    };
    if let Some(needs) = needs {
        let on = if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts, {fewest} to {most} on each") };
        let have = format!("{} ranks are on {on}", call.ranks);
        return Err(ScheduleError::Shape { algorithm, needs, have });
    }
    let (op, dtype) = (call.op, call.dtype);
    let able = if call.collective.reduces() { not_in_switches(nvls, op, dtype) } else { None };
    able.map_or(Ok(()), |able| Err(ScheduleError::InSwitch { algorithm, op, dtype, able }))
}

/// NCCL's `NCCL_MAX_DIRECT_ARITY` and the rank itself.
const MAX_COLLNET_LOCAL: usize = 8;
/// All-gather and reduce-scatter have a connection from every host to all others: their number
/// grows with the square of the hosts.
const MAX_GATHER_HOSTS: usize = 256;
