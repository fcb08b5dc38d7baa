//! Measures candidates with the executors of `bench`.

use collcast_sim::nccl::Version;
use collcast_sim::schedule::Call;

use super::search::{Forced, Stopwatch, words};
use crate::bench::{self, Backend, bench};
use crate::error::Error;
use crate::query::Query;
use crate::site::Site;

/// A back end of `bench` that measures on this host.
pub struct Live<'s> {
    /// The machine, with the launch mode that is tuned for.
    pub site: &'s Site,
    /// Back end, effort, environment; its calls are not used.
    pub request: bench::Request,
    /// The GPU that has run calls.
    pub gpu: Option<String>,
}

impl Stopwatch for Live<'_> {
    fn nccl(&self) -> Option<Version> {
        let installed = || collcast_hwbackend::nccl::version()?.parse().ok();
        (self.request.backend == Backend::Nccl).then(installed)?
    }

    fn gpu(&self) -> Option<&str> {
        self.gpu.as_deref()
    }

    fn measure(&mut self, choice: Forced, calls: &[&Call]) -> Result<Vec<f64>, Error> {
        let query = |call: &&Call| {
            let free = Query::of((*call).clone());
            let own = self.site.settings().channels;
            match choice {
                Some(((algorithm, protocol), channels)) => {
                    Query { channels: channels.or(own), ..free.forced(algorithm, protocol) }
                }
                None => Query { channels: own, ..free },
            }
        };
        let queries = calls.iter().map(query).collect();
        let outcome = bench(self.site, &bench::Request { queries, ..self.request.clone() })?;
        self.gpu = outcome.gpu().map(str::to_owned).or(self.gpu.take());
        match outcome.failure {
            Some(failure) => Err(Error::from(failure).at(&words(choice))),
            None => Ok(outcome.rows.iter().map(|row| row.time_us).collect()),
        }
    }
}
