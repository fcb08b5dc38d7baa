//! What stands in place of the executor in a build without the feature `verbs`.

use std::convert::Infallible;
use std::time::Duration;

use super::measured::Measured;
use super::options::Options;
use crate::exec::{CallToRun, Effort, ExecError, Executor, Sample};
use crate::rendezvous::World;

/// The executor over RDMA verbs, which this build has not.
#[derive(Debug)]
pub struct Verbs(Infallible);

impl Verbs {
    /// Says that it is missing.
    ///
    /// # Errors
    /// Always, in this build.
    pub fn find(_: &Options, _: u32) -> Result<(), ExecError> {
        Err(ExecError::Missing {
            what: "this build has no executor over RDMA verbs".to_owned(),
            hint: "build it with `cargo build --features verbs`, which takes cmake and libclang; --backend nccl runs \
                   NCCL over the same NICs; --backend host runs the schedule on this CPU"
                .to_owned(),
        })
    }

    /// Says that it is missing.
    ///
    /// # Errors
    /// Always, in this build.
    pub fn open(world: &World, options: &Options, _: Duration) -> Result<Self, ExecError> {
        Self::find(options, world.local).and_then(|()| Err(ExecError::no_schedule()))
    }

    /// Never called.
    ///
    /// # Errors
    /// None: there is nobody to ask.
    pub fn probe(&mut self, _: bool, _: u32, _: Duration, _: &mut dyn FnMut(&str)) -> Result<Vec<Measured>, ExecError> {
        match self.0 {}
    }
}

impl Executor for Verbs {
    fn run(&mut self, _: &CallToRun<'_>, _: &Effort) -> Result<Sample, ExecError> {
        match self.0 {}
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        match self.0 {}
    }
}
