//! `collcast self-test`: what works on this machine.

use collcast::self_test::self_test;
use collcast::{Error, SiteSpec};

use super::call::Code;
use super::output::OutputArgs;
use super::selectors::profile_folders;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Forecasts a call, proves its schedule, runs it on CPU threads and compares every element: these must work, else the \
exit code is 1. GPUs, CUDA's compiler, NCCL and RDMA are looked for as `bench` and `probe` look for them. A part that is \
missing is no failure; the last column says how to get it."
)]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let outcome = self_test(&SiteSpec { profile_folders: profile_folders()?, ..SiteSpec::default() });
    args.output.print(&outcome.report(), None)?;
    Ok(if outcome.works() { Code::SUCCESS } else { Code::FAILURE })
}
