//! Bus bandwidth of all-reduce on two hosts of 8 H100, by NCCL's choice and by a forced ring.
//!
//! `cargo run --release --example forecast`

use collcast::forecast::{Request, forecast};
use collcast::sim::collective::{Algorithm, Collective, Protocol};
use collcast::sim::units::Bytes;
use collcast::{Error, Query, SiteSpec};

fn main() -> Result<(), Error> {
    let site = SiteSpec::new("dgx-h100").nodes(2).load()?;
    let mut queries = Vec::new();
    for size in [64 << 10, 1 << 20, 64 << 20, 1 << 30] {
        let query = Query::new(&site, Collective::AllReduce, Bytes(size));
        queries.push(query.clone().forced(Algorithm::Ring, Protocol::Simple));
        queries.push(query);
    }
    let outcome = forecast(&site, &Request { queries, ..Request::default() })?;
    for note in &outcome.notes {
        println!("# {note}");
    }
    for row in &outcome.rows {
        let how = format!("{}/{} on {} channels", row.algorithm, row.protocol, row.channels);
        println!(
            "{:>11} B  {how:32} {:8.1} us ({:.1} to {:.1})  {:6.1} GB/s, bound by {}",
            row.size_bytes, row.time_us, row.low_us, row.high_us, row.busbw_gbps, row.bound
        );
    }
    Ok(())
}
