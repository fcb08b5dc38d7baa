//! What works on this machine: what Collcast always needs, and what each back end would find.

use std::time::Duration;

use collcast_hwbackend::cuda::{self, Cuda};
use collcast_hwbackend::exec::{Effort, ExecError};
use collcast_hwbackend::nccl;
use collcast_hwbackend::verbs::{Options, Verbs};
use collcast_sim::collective::{Algorithm, Collective, Launch, Protocol};
use collcast_sim::units::Bytes;

use crate::bench::{self, Backend, bench};
use crate::error::Error;
use crate::forecast::{self, forecast};
use crate::profiles::{Place, list};
use crate::query::Query;
use crate::site::SiteSpec;

/// The machine of the forecast and of the run on CPU threads, and the size of their calls in bytes: proved and run in well
/// below a second.
const MACHINE: &str = "dgx-h100";
const SIZE: u64 = 64 << 10;
/// Ranks of the run on CPU threads.
const RANKS: u32 = 4;

/// One thing that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// What it is for.
    pub serves: &'static str,
    /// Whether Collcast is of no use without it.
    pub needed: bool,
    /// What was found, or what is missing and the way out.
    pub found: Result<String, Missing>,
}

/// What is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// What happened.
    pub what: String,
    /// The way out, where there is one.
    pub hint: Option<String>,
}

impl From<Error> for Missing {
    fn from(error: Error) -> Self {
        let hint = match &error {
            Error::Usage { hint, .. } | Error::Exec { hint, .. } => hint.clone(),
            _ => None,
        };
        Self { what: error.to_string(), hint }
    }
}

impl From<ExecError> for Missing {
    fn from(error: ExecError) -> Self {
        Error::from(error).into()
    }
}

/// What works here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// All that was tried, what is needed first.
    pub parts: Vec<Part>,
    /// Whether this program cannot load libraries, because it is linked statically.
    pub fixed: bool,
}

impl Outcome {
    /// Whether all that is needed works.
    pub fn works(&self) -> bool {
        self.parts.iter().all(|part| !part.needed || part.found.is_ok())
    }
}

/// Tries everything; `site` says where profiles of one's own are. Nothing that is missing is an error.
pub fn self_test(site: &SiteSpec) -> Outcome {
    let needed = |name, serves, found: Result<String, Error>| Part {
        name,
        serves,
        needed: true,
        found: found.map_err(Into::into),
    };
    let other = |name, serves, found: Result<String, Missing>| Part { name, serves, needed: false, found };
    let gpus = cuda::facts().map_err(Missing::from);
    let fact = |key: &str| -> Result<String, Missing> {
        let facts = gpus.as_ref().map_err(Clone::clone)?;
        Ok(facts.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone()).unwrap_or_default())
    };
    let with_gpus = |ask: fn() -> Result<String, Missing>| match &gpus {
        Ok(_) => ask(),
        Err(_) => Err(Missing { what: "there is no GPU".to_owned(), hint: None }),
    };
    let driver = || Ok(format!("{}, driver {}, CUDA {}", fact("gpu")?, fact("driver")?, fact("cuda")?));
    let parts = vec![
        needed("simulator", "every forecast", simulator()),
        needed("schedules on CPU threads", "bench --backend host", run(Backend::Host, RANKS)),
        needed("profiles of your own", "forecasts of your machines", own_profiles(site)),
        other("GPUs", "bench --backend cuda, nccl and transfer; probe", driver()),
        other("topology", "probe, which writes the machine as a file", with_gpus(topology)),
        other("NVRTC", "bench --backend cuda; the check of NCCL's results", cuda::compiler().map_err(Into::into)),
        other("schedules on GPUs", "bench --backend cuda", with_gpus(on_gpus)),
        other("NCCL", "bench --backend nccl; tune --measure", nccl::library().map_err(Into::into)),
        other("cuBLASLt", "probe --kernels-only", cuda::products().map(|()| "found".to_owned()).map_err(Into::into)),
        other("RDMA verbs", "bench and probe --backend verbs", nics()),
    ];
    Outcome { parts, fixed: cfg!(all(target_os = "linux", target_feature = "crt-static")) }
}

/// The call of the test on a machine, by an algorithm that every number of ranks has.
fn query(ranks: u32) -> Result<(crate::Site, Query), Error> {
    let site = SiteSpec { launch: Some(Launch::Threads), ..SiteSpec::new(MACHINE) }.load()?;
    let mut query = Query::new(&site, Collective::AllReduce, Bytes(SIZE)).forced(Algorithm::Ring, Protocol::Simple);
    query.call = collcast_sim::schedule::Call::of_size(Collective::AllReduce, ranks, Bytes(SIZE), query.call.dtype);
    Ok((site, query))
}

/// A forecast, with the proof of its schedule.
fn simulator() -> Result<String, Error> {
    let (site, query) = query(SiteSpec::new(MACHINE).topology()?.ranks())?;
    let outcome = forecast(&site, &forecast::Request { queries: vec![query], ..forecast::Request::default() })?;
    let row = outcome.rows.first().ok_or_else(|| Error::usage("there is no forecast", "please report it"))?;
    let (ranks, size) = (row.ranks, Bytes(row.size_bytes));
    Ok(format!("{} of {size} over {ranks} ranks of {MACHINE}: proved, {:.1} us", row.collective, row.time_us))
}

/// The call, run for real, every element compared with its exact value.
fn run(backend: Backend, ranks: u32) -> Result<String, Error> {
    let (site, query) = query(ranks)?;
    let budget = Duration::from_millis(100);
    let effort = Effort { warmup: 1, iterations: 10, batches: 3, budget, ..Effort::default() };
    let outcome = bench(&site, &bench::Request { effort, ..bench::Request::new(backend, vec![query]) })?;
    if let Some(failure) = outcome.failure {
        return Err(failure.into());
    }
    let checked: u64 = outcome.rows.iter().map(|row| row.checked).sum();
    Ok(format!("all_reduce of {} over {ranks} ranks: {checked} elements exact", Bytes(SIZE)))
}

fn on_gpus() -> Result<String, Missing> {
    let gpus = cuda::gpus()?;
    Ok(run(Backend::Cuda, gpus.max(2))?)
}

fn own_profiles(site: &SiteSpec) -> Result<String, Error> {
    let folders: Vec<String> = site.profile_folders.iter().map(|folder| folder.display().to_string()).collect();
    let own = list(site)?.into_iter().filter(|known| matches!(known.place, Place::File(_))).count();
    Ok(format!("{own} in {}", if folders.is_empty() { "no folder".to_owned() } else { folders.join(", ") }))
}

/// This host, as the driver shows it.
fn topology() -> Result<String, Missing> {
    let seen = Cuda::open()?.seen();
    let links = seen.links.map_or("no NVLink".to_owned(), |links| {
        format!("{} NVLinks a GPU{}", links.count, if links.switched { " to NVSwitches" } else { "" })
    });
    let pcie = seen.pcie.map_or("PCIe unknown".to_owned(), |(generation, lanes)| format!("PCIe {generation} x{lanes}"));
    let reach = if seen.peers { "all reach each other's memory" } else { "they do not reach each other's memory" };
    Ok(format!("{} x {}, {links}, {pcie}, {reach}", seen.gpus, seen.name))
}

fn nics() -> Result<String, Missing> {
    Verbs::find(&Options::default(), 0)?;
    Ok("a NIC that is up".to_owned())
}
