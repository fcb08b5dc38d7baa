//! Measures candidates with the executors of `bench`.

use collcast_sim::nccl::Version;
use collcast_sim::schedule::Call;
use collcast_tuner::host::Host;

use super::communicator::Spot;
use super::process::ProcessSetting;
use super::search::{Forced, Stopwatch, words};
use crate::bench::{self, Backend, Set, bench, plays_hosts};
use crate::error::Error;
use crate::query::Query;
use crate::site::Site;

/// A back end of `bench` that measures on this host.
pub struct Live<'s> {
    /// The machine, with the launch mode that is tuned for. Its NCCL is told what `request` gives the processes, and what they
    /// inherit: forecasts and the table are for that.
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

    fn host(&self) -> Host {
        match self.request.backend {
            Backend::Nccl => Host::here(),
            _ => Host::default(),
        }
    }

    fn measure(&mut self, choice: Forced, calls: &[&Call]) -> Result<Vec<f64>, Error> {
        self.measure_with(&[], choice, calls)
    }

    fn has_settings(&self) -> bool {
        true
    }

    fn measure_with(
        &mut self,
        settings: &[ProcessSetting],
        choice: Forced,
        calls: &[&Call],
    ) -> Result<Vec<f64>, Error> {
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
        // NCCL takes them from its environment, schedules of our own from the site.
        let mut told = self.site.clone();
        settings.iter().for_each(|setting| setting.put(&mut told.told.settings.nccl));
        let pair = |setting: &ProcessSetting| (setting.variable.name().to_owned(), setting.value.to_string());
        let env = self.request.env.iter().cloned().chain(settings.iter().map(pair)).collect();
        let outcome = bench(&told, &bench::Request { queries, env, ..self.request.clone() })?;
        self.gpu = outcome.gpu().map(str::to_owned).or(self.gpu.take());
        match outcome.failure {
            Some(failure) => Err(Error::from(failure).at(&words(choice))),
            None => Ok(outcome.rows.iter().map(|row| row.time_us).collect()),
        }
    }

    fn turn_to(&mut self, spot: &Spot) -> bool {
        let backend = self.request.backend;
        let here = || collcast_hwbackend::cuda::gpus().unwrap_or(0);
        // Back ends that play ranks need no GPU for each.
        let played =
            backend != Backend::Nccl || plays_hosts(Some(self.site.settings().launch.name()), &self.request.env);
        let set = match &spot.gpus {
            _ if spot.first => (played || spot.ranks <= here()).then(Vec::new),
            Some(gpus)
                if backend == Backend::Host || backend == Backend::Nccl && gpus.iter().all(|gpu| *gpu < here()) =>
            {
                Some(vec![Set { round: 1, gpus: gpus.clone() }])
            }
            _ => None,
        };
        let found = set.is_some();
        self.request.sets = set.unwrap_or_default();
        found
    }
}
