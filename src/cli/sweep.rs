//! `collcast sweep`: a table over sizes, algorithms, protocols, channels and node counts.

use collcast::forecast::{self, Outcome};
use collcast::shard::{Parts, question};
use collcast::sim::predict::Prediction;
use collcast::{Error, Query, Site, views};

use super::call::Code;
use super::output::{Format, OutputArgs, PageArgs, with_nccl_tests};
use super::progress::watched;
use super::queries::queries;
use super::selectors::{CallArgs, MachineArgs, Named, default_sizes};
use super::shard::{ShardArgs, write_part};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Sizes default to 8:8GiB:2. `auto` is what NCCL picks: by its environment (--env), the tuner plugin \
of the machine, or its cost table. Where that has no schedule here, NCCL's next choice is \
predicted and the output says so. `best` is what this forecast finds fastest. Several node counts \
(--nodes 2,4,8) print how bandwidth scales and where the choice changes; every row is in \
--format csv and json."
)]
#[command(mut_arg("format", with_nccl_tests))]
#[command(mut_arg("size", default_sizes("8:8GiB:2")))]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    call: CallArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) page: PageArgs,
    #[command(flatten)]
    shard: ShardArgs,
}

pub(crate) fn run(args: &Args, given: &Named) -> Result<Code, Error> {
    answer(args, given, None)
}

/// A part of the answer, or all of it; of that parts may be known.
pub(super) fn answer(args: &Args, given: &Named, merged: Option<&Parts>) -> Result<Code, Error> {
    args.call.check(given)?;
    args.machine.note_default();
    let hosts = match args.machine.nodes.as_slice() {
        [] => vec![None],
        list => list.iter().copied().map(Some).collect(),
    };
    let mut sites: Vec<Site> =
        hosts.into_iter().map(|nodes| args.call.site(&args.machine, nodes)).collect::<Result<_, Error>>()?;
    sites.sort_by_key(|site| site.topology.hosts().len());
    sites.dedup_by_key(|site| site.topology.hosts().len());
    let before = sites.len();
    if args.call.asked_ranks()?.is_some() && args.machine.placement.read()?.is_none() && args.call.split.is_none() {
        // The first ranks are on the same hosts of each.
        sites.dedup_by_key(|site| site.nodes());
    }
    if let (Some(site), true) = (sites.last(), sites.len() < before) {
        let hosts = site.nodes();
        say!(
            "note: the ranks are on {hosts} host{} with several of these --nodes: shown once",
            if hosts == 1 { "" } else { "s" }
        );
    }
    // Bandwidth grows with hosts, and not with another launch mode.
    if let Some(launch) = sites.last().map(|site| site.settings().launch) {
        sites.iter_mut().for_each(|site| site.told.settings.launch = launch);
    }
    let points = queries(&args.call, &sites)?;
    if let Some(shard) = args.shard.of(merged) {
        let part = watched("simulating calls", |watch| forecast::part(&of_sites(&sites, &points), shard, watch))?;
        return write_part(&args.output, &question(&sites, &points), shard, &part);
    }
    let known = merged.map_or(Ok(Vec::new()), |parts| parts.answers(&question(&sites, &points)))?;
    let outcome = forecast(&sites, &points, known, args.call.explain_choice)?;
    args.page.write(|| {
        let mut report = outcome.report(false, &[]);
        report.tables.extend(sites.last().map(|site| views::profile::constants(&site.profile)));
        report
    })?;
    let people = args.output.for_people();
    let nccl_tests = match (args.output.format(), sites.last()) {
        (Format::NcclTests, Some(site)) => {
            let report = outcome.report(people, &views::forecast::unsaid_in_text(&outcome));
            let in_place =
                forecast(&sites, &points.iter().map(|of| in_place(of)).collect::<Vec<_>>(), Vec::new(), false)?;
            Some((views::forecast::as_nccl_tests(site, &report, &outcome, &in_place)?, report))
        }
        _ => None,
    };
    match nccl_tests {
        Some((text, report)) => args.output.print(&report, Some(text))?,
        None => args.output.print(&outcome.report(people, &[]), None)?,
    }
    Ok(Code::SUCCESS)
}

/// Forecasts the queries of each machine, of which some may be known.
fn forecast(
    sites: &[Site],
    queries: &[Vec<Query>],
    known: Vec<(usize, Prediction)>,
    explain: bool,
) -> Result<Outcome, Error> {
    watched("simulating calls", |watch| forecast::merged(&of_sites(sites, queries), known, explain, watch))
}

/// Each machine with its queries.
fn of_sites<'s>(sites: &'s [Site], queries: &'s [Vec<Query>]) -> Vec<(&'s Site, &'s [Query])> {
    sites.iter().zip(queries.iter().map(Vec::as_slice)).collect()
}

/// The same calls in place, where there is such a form.
fn in_place(queries: &[Query]) -> Vec<Query> {
    let mut queries = queries.to_vec();
    for query in &mut queries {
        query.call.in_place = query.call.collective.in_place();
    }
    queries
}
