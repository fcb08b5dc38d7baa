//! Questions of the library, in a few lines each. Printed by the views that the command line prints by.
//!
//! `cargo run --release --example questions`

use collcast::reports::{model::Report, terminal};
use collcast::sim::collective::{Algorithm, Collective, Protocol};
use collcast::sim::units::Bytes;
use collcast::{Error, Query, Site, SiteSpec, views};

fn main() -> Result<(), Error> {
    show(&forecast()?);
    show(&step()?);
    show(&plan()?);
    show(&serve()?);
    show(&transfer()?);
    show(&validate()?);
    show(&compare()?);
    show(&tune()?);
    show(&check()?);
    show(&calibrate()?);
    show(&bench()?);
    show(&topo()?);
    println!("{}", convert()?);
    Ok(())
}

fn show(report: &Report) {
    let screen = terminal::Screen::plain(Some(120));
    print!("{}{}", terminal::render(report, screen), terminal::notes(report, screen));
}

/// How long does a call take?
fn forecast() -> Result<Report, Error> {
    let site = SiteSpec::new("aws-p5").nodes(2).load()?;
    let queries = vec![Query::new(&site, Collective::AllReduce, Bytes(64 << 20))];
    let request = collcast::forecast::Request { queries, ..Default::default() };
    Ok(collcast::forecast::forecast(&site, &request)?.detail(&site, true))
}

/// How long does a training step take, and what of it does communication cost?
fn step() -> Result<Report, Error> {
    let request = collcast::step::Request::find("ten-and-twelve");
    let request = request.ok_or_else(|| Error::usage("there is no such scenario", "collcast simulate --help"))?;
    Ok(collcast::step::step(&request)?.report())
}

/// Which layout trains a model fastest?
fn plan() -> Result<Report, Error> {
    let request = collcast::plan::Request { most: 3, ..collcast::plan::Request::new("llama3-8b", "dgx-h100", 16) };
    Ok(collcast::plan::plan(&request, &collcast::Watch::default())?.report())
}

/// How long do users of a served model wait?
fn serve() -> Result<Report, Error> {
    use collcast::serve::{Fleet, Group, Load, Request, serve};
    let worker = Group::new(1, 8);
    let fleet = Fleet::Disaggregated { prefill: worker, decode: worker };
    let load = Load::Poisson { rate: 5.0, seconds: 60.0, input: 2048, output: 256, prefixes: None, seed: 1 };
    Ok(serve(&Request { fleet, load, ..Request::new("llama3-70b", "dgx-h100") })?.report())
}

/// How long does a transfer between two memories take, and by which way?
fn transfer() -> Result<Report, Error> {
    use collcast::transfer::{Request, transfer};
    let site = SiteSpec::new("aws-p5");
    Ok(transfer(&Request { site, ..Request::new("gpu:0", "gpu:8", 1 << 30) })?.report())
}

/// Is what was measured what it should be?
fn validate() -> Result<Report, Error> {
    let request = collcast::validate::Request::new(["tests/data/doctor/p2p_disable_1_4.csv"]);
    let shown = views::validate::Shown { for_people: true, ..Default::default() };
    Ok(collcast::validate::validate(&request)?.report(shown))
}

/// What became slower?
fn compare() -> Result<Report, Error> {
    use collcast::compare::{Request, Set, compare};
    let [before, after] = ["before", "after"].map(|set| Set::new(format!("examples/compare/{set}.log")));
    Ok(compare(&Request::new(before, after))?.report(true))
}

/// Which choice beats NCCL's own?
fn tune() -> Result<Report, Error> {
    let site = Site::load("h200x2")?;
    let sizes = Some(vec![1 << 16, 1 << 20]);
    let request = collcast::tune::Request { sizes, ..Default::default() };
    Ok(collcast::tune::tune(&site, &request)?.report(views::tune::Show::default()))
}

/// Did a choice of NCCL or a forecast change?
fn check() -> Result<Report, Error> {
    let suite = collcast::check::Suite::read("examples/check/before.toml")?;
    let request = collcast::check::Request::new(suite, collcast::check::Baseline::default());
    Ok(collcast::check::check(&request)?.report(true))
}

/// Which constants explain measurements?
fn calibrate() -> Result<Report, Error> {
    let measurements = vec!["tests/data/h200x4_bench/nccl_simple_4.csv".into()];
    let request =
        collcast::calibrate::Request { measurements, fit: vec!["kernel.simple".into()], ..Default::default() };
    Ok(collcast::calibrate::calibrate(&request)?.report(true, None))
}

/// How long does it take for real? Here on CPU threads, every element of every result compared.
fn bench() -> Result<Report, Error> {
    let site = Site::load("h200x2")?;
    let queries = vec![Query::new(&site, Collective::AllReduce, Bytes(1 << 10))];
    let request = collcast::bench::Request::new(collcast::bench::Backend::Host, queries);
    Ok(collcast::bench::bench(&site, &request)?.report())
}

/// Which channels does NCCL find on a machine?
fn topo() -> Result<Report, Error> {
    let request = collcast::topo::GraphsRequest { site: SiteSpec::new("dgx-h100").nodes(2), ranks: None };
    Ok(collcast::topo::graphs(&request)?.report())
}

/// What does an algorithm look like as MSCCL XML?
fn convert() -> Result<String, Error> {
    let query = Query::new(&Site::load("h200x2")?, Collective::AllReduce, Bytes(1 << 20));
    let query = query.forced(Algorithm::Ring, Protocol::Simple).channels(1);
    let written = collcast::convert::convert(&Site::load("h200x2")?, &query, collcast::convert::Target::Msccl)?;
    Ok(String::from_utf8_lossy(&written.bytes).into_owned())
}
