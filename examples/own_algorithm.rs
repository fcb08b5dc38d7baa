//! An algorithm of your own, as MSCCL XML: proved, then forecast beside what NCCL chooses.
//!
//! `cargo run --release --example own_algorithm [FILE.xml]`

use std::sync::Arc;

use collcast::forecast::{Request, forecast};
use collcast::sim::collective::{Algorithm, DataType};
use collcast::sim::schedule::Call;
use collcast::sim::schedule::msccl::Imported;
use collcast::sim::units::Bytes;
use collcast::{Error, Query, Site, files};

fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "examples/own_algorithm/pairs.xml".to_owned());
    let own = Arc::new(Imported::parse(&files::read_text("read the algorithm", &path)?, &path)?);
    let site = Site::load("h200x4")?;
    let call = Call::of_size(own.collective, own.ranks, Bytes(8 << 20), DataType::Float32).aligned();
    let call = Call { in_place: true, ..call };
    let mut mine = Query::of(call.clone()).forced(Algorithm::Msccl, own.protocol);
    mine.schedule = Some(Arc::clone(&own));
    // A schedule that does not do what it says is an error here: nothing is forecast that is not proved.
    let outcome = forecast(&site, &Request { queries: vec![mine, Query::of(call)], ..Request::default() })?;
    for (name, row) in [own.name.as_str(), "NCCL's choice"].iter().zip(&outcome.rows) {
        println!("{name:20} {:12} {:8.1} us, {:5.1} GB/s of bus bandwidth", row.algorithm, row.time_us, row.busbw_gbps);
    }
    Ok(())
}
