//! The same load on several machines side by side: other machines, other NICs, a NIC that is down.

use serde::Serialize;

use super::outcome::Outcome;
use super::request::Request;
use super::run::serve;
use super::smallest::smallest;
use crate::error::Error;
use crate::plan::fields::price;
use crate::site::{DEFAULT_MACHINE, SiteSpec};
use crate::vary::{Key, ONE_HOST, crossed};
use crate::watch::Watch;

/// Machines of an answer at most.
const MOST: usize = 64;

/// What a load is run on beside the machine of its request.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Machines {
    /// Other machines, by name or file.
    pub others: Vec<String>,
    /// Changes of each, such as `nics=4,2` or `nic.rate=200Gb/s`: every value of one with every value of the others.
    pub vary: Vec<String>,
    /// NICs that are down, one at a time: host and NIC, both counted from 0.
    pub down: Vec<(u32, u32)>,
    /// The smallest fleet of at most so many GPUs on each, in place of the request's.
    pub smallest: Option<u32>,
    /// Price of a GPU and hour, or that of each machine, as in `dgx-h100=2.5,gb200-nvl72=6`.
    pub price: Option<String>,
}

impl Machines {
    /// Whether there is more than the machine of the request.
    pub fn several(&self) -> bool {
        !(self.others.is_empty() && self.vary.is_empty() && self.down.is_empty())
    }
}

/// A machine, with what came of the load on it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The machine, and what of it is changed.
    pub name: String,
    /// What came of it, or why it serves nothing.
    pub outcome: Result<Outcome, String>,
    /// Tokens of a step at most with which the smallest fleet was found.
    pub chunk: Option<u64>,
    /// Of a GPU and hour.
    pub price: Option<f64>,
}

impl Row {
    /// Cost of a million generated tokens, in the currency of the price.
    pub fn cost(&self) -> Option<f64> {
        let outcome = self.outcome.as_ref().ok()?;
        Some(self.price? * f64::from(outcome.fleet.gpus()) / (outcome.summary.tokens_per_s * 3600.0) * 1e6)
    }
}

/// A load on several machines, that of the request first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Compared {
    /// One by one.
    pub rows: Vec<Row>,
    /// Whether each has a fleet of its own, the smallest.
    pub smallest: bool,
}

/// Runs the load of a request on its machine and on others.
///
/// # Errors
/// Machines, changes or prices that make no sense; a load that none of the machines serves.
pub fn compare(request: &Request, machines: &Machines, watch: &Watch) -> Result<Compared, Error> {
    let all = variants(request, machines)?;
    if all.len() > MOST {
        return Err(Error::usage(
            format!("{} machines are too many", all.len()),
            format!("at most {MOST} are compared"),
        ));
    }
    let known: Vec<&str> = all.iter().map(|(_, request)| machine(request)).collect();
    let of = |text: &String| known.iter().map(|machine| price(text, machine)).collect::<Result<Vec<f64>, String>>();
    let prices = machines.price.as_ref().map(of).transpose();
    let prices = prices.map_err(|why| Error::usage(format!("--price: {why}"), "such as 2.5, or dgx-h100=2.5"))?;
    for (of, _) in machines.price.iter().flat_map(|price| price.split(',')).filter_map(|one| one.split_once('=')) {
        if !known.contains(&of.trim()) {
            let message = format!("--price: `{}` is none of the machines that serve", of.trim());
            return Err(Error::usage(message, "leave it out, or name it with --on"));
        }
    }
    let parts = watch.parts(all.len());
    let mut rows = Vec::new();
    let mut failed = None;
    for (name, request) in &all {
        let mut chunk = None;
        let outcome = match machines.smallest {
            None => serve(request).map(Ok),
            Some(gpus) => smallest(request, gpus, &watch.one_of(rows.len(), all.len())).map(|found| {
                let met = found.fleets.into_iter().find(|sized| sized.meets);
                chunk = met.as_ref().map(|sized| sized.chunk);
                let none = || format!("no fleet of at most {gpus} GPUs meets the objective");
                met.map_or_else(|| Err(none()), |sized| sized.candidate.outcome)
            }),
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            // A machine may be too small, or have no network; another change that it cannot have was mistyped.
            Err(error) if *name != machine(request) && !error.to_string().ends_with(ONE_HOST) => return Err(error),
            Err(error) => {
                let text = error.to_string();
                failed = Some(error);
                Err(text)
            }
        };
        let price = prices.as_ref().map(|prices| prices[rows.len()]);
        rows.push(Row { name: name.clone(), outcome, chunk, price });
        parts.done()?;
    }
    match failed {
        Some(error) if rows.iter().all(|row| row.outcome.is_err()) => Err(error),
        _ => Ok(Compared { rows, smallest: machines.smallest.is_some() }),
    }
}

/// The machine of a request.
fn machine(request: &Request) -> &str {
    request.site.topology.as_deref().unwrap_or(DEFAULT_MACHINE)
}

/// Each machine as it is, then with each change, then with each NIC down.
fn variants(request: &Request, machines: &Machines) -> Result<Vec<(String, Request)>, Error> {
    let changes = crossed(&machines.vary, MOST, Key::of)?;
    let first = request.site.topology.clone().unwrap_or_else(|| DEFAULT_MACHINE.to_owned());
    let mut all = Vec::new();
    for machine in std::iter::once(&first).chain(&machines.others) {
        let with = |site: SiteSpec| Request { site, ..request.clone() };
        let site = SiteSpec { topology: Some(machine.clone()), ..request.site.clone() };
        let plain = with(site.clone());
        all.push((machine.clone(), plain.clone()));
        all.extend(changes.iter().map(|change| {
            let vary = change.name.split(", ").map(str::to_owned).collect();
            (format!("{machine}, {}", change.name), Request { vary, ..plain.clone() })
        }));
        all.extend(machines.down.iter().map(|&(host, nic)| {
            let name = format!("{machine}, NIC {nic} of host {host} down");
            (name, with(SiteSpec { down: vec![(host, nic)], ..site.clone() }))
        }));
    }
    Ok(all)
}
