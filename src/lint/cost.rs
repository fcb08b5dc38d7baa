//! What a setting costs on a machine: forecasts with it, and without it.

use std::collections::BTreeMap;

use collcast_sim::collective::Collective;
use collcast_sim::units::Bytes;

use super::found::Found;
use super::machine::Machine;
use super::setting::Setting;
use crate::error::Error;
use crate::forecast::{Request, Row, forecast};
use crate::query::Query;
use crate::site::Site;
use crate::values::plural;

/// Sizes that settings are judged at: latency, the middle, bandwidth. A tuning that helps one of them and harms another
/// shows.
const SIZES: [u64; 4] = [8 << 10, 1 << 20, 64 << 20, 1 << 30];
/// Collectives that training uses most.
const COLLECTIVES: [Collective; 3] = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
/// Loss below which nothing is said: what two runs of one setting differ by.
const LOSS_LEAST: f64 = 0.05;

/// Forecasts every setting that a forecast depends on.
pub(super) fn check(
    settings: &BTreeMap<&str, &Setting>,
    machine: &Machine,
    found: &mut Found<'_>,
) -> Result<(), Error> {
    // What NCCL would not start with is a finding of its own.
    let Ok(with) = machine.with_all(settings, None) else { return Ok(()) };
    let mut rows: Option<Vec<Option<Row>>> = None;
    for setting in settings.values().filter(|setting| setting.is_read()) {
        let Ok(without) = machine.with_all(settings, Some(&setting.name)) else { continue };
        if without.settings() == with.settings() {
            continue;
        }
        if rows.is_none() {
            rows = Some(times(&with)?);
        }
        let slower = rows.iter().flatten().zip(times(&without)?).filter_map(|(with, without)| {
            let (with, without) = (with.as_ref()?, without?);
            Some((with.time_us / without.time_us - 1.0, with.clone(), without))
        });
        let Some((loss, with, without)) = slower.max_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        if loss >= LOSS_LEAST {
            let row = |row: &Row| {
                let channels = plural(row.channels as usize, "channel", "channels");
                format!("{}/{} on {channels} {:.1} us", row.algorithm, row.protocol, row.time_us)
            };
            let what = format!(
                "{} costs {:.0}% of {} at {} by the forecast: {}, without it {}",
                setting.text(),
                100.0 * loss,
                with.collective,
                Bytes(with.size_bytes),
                row(&with),
                row(&without),
            );
            found.add("costs-time", setting.line, what);
        }
    }
    Ok(())
}

/// Times of all calls; none where a call has no choice left.
fn times(site: &Site) -> Result<Vec<Option<Row>>, Error> {
    let mut all = Vec::new();
    for collective in COLLECTIVES {
        let queries = SIZES.map(|size| Query::new(site, collective, Bytes(size))).to_vec();
        let rows = match forecast(site, &Request { queries, ..Request::default() }) {
            Ok(outcome) => outcome.rows.into_iter().map(Some).collect(),
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(_) => vec![None; SIZES.len()],
        };
        all.extend(rows);
    }
    Ok(all)
}
