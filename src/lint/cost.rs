//! What a setting costs on a machine: forecasts with it, and without it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use collcast_sim::collective::Collective;
use collcast_sim::units::Bytes;

use super::found::Found;
use super::machine::Machine;
use super::names::is_refused;
use super::setting::Setting;
use crate::confidence::Grounds;
use crate::error::Error;
use crate::forecast::{Request, Row, forecast};
use crate::query::Query;
use crate::site::Site;
use crate::tune::{SURE, deviation_of, together};
use crate::values::plural;

/// Sizes that settings are judged at: latency, the middle, bandwidth. A tuning that helps one of them and harms another
/// shows.
const SIZES: [u64; 4] = [8 << 10, 1 << 20, 64 << 20, 1 << 30];
/// Collectives that training uses most.
const COLLECTIVES: [Collective; 3] = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
/// Loss below which nothing is said: what two runs of one setting differ by.
const LOSS_LEAST: f64 = 0.05;

/// What one way to do a call loses to another by the forecast.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Loss {
    /// Logarithm of its time over the other's.
    lost: f64,
    /// Standard deviation of that.
    doubt: f64,
    /// Whether it is slower beyond doubt, as `tune` judges.
    pub(super) certain: bool,
}

impl Loss {
    /// Of two forecasts of one call. `paths`: the data takes the same ways in both, so that their errors are alike.
    pub(super) fn of(slow: &Row, fast: &Row, paths: bool) -> Self {
        let [a, b] = [slow, fast].map(|row| deviation_of(row.time_us, row.high_us));
        let alike = paths && (slow.algorithm, slow.protocol) == (fast.algorithm, fast.protocol);
        let common = together(alike, [slow.channels, fast.channels]);
        let doubt = (a * a + b * b - 2.0 * a * b * common).max(0.0).sqrt();
        let lost = (slow.time_us / fast.time_us).ln();
        Self { lost, doubt, certain: lost > SURE * doubt }
    }

    /// As a share of the other's time.
    fn share(&self) -> f64 {
        self.lost.exp_m1()
    }

    /// Whether it is more than two runs of one setting differ by.
    pub(super) fn is_worth_a_word(&self) -> bool {
        self.share() >= LOSS_LEAST
    }

    /// `29%`, and its 90% interval where that reaches zero.
    pub(super) fn words(&self) -> String {
        let at = |lost: f64| 100.0 * lost.exp_m1();
        let likely = format!("{:.0}%", at(self.lost));
        if self.certain {
            return likely;
        }
        let (low, high) = (at(self.lost - SURE * self.doubt), at(self.lost + SURE * self.doubt));
        format!("{likely} (likely {low:.0} to {high:.0}%)")
    }
}

impl PartialOrd for Loss {
    /// What is certain goes before what is not.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let key = |loss: &Self| loss.certain && loss.is_worth_a_word();
        Some(key(self).cmp(&key(other)).then(self.lost.total_cmp(&other.lost)))
    }
}

/// Forecasts every setting that a forecast depends on; gives back what the findings rest on.
pub(super) fn check(
    settings: &BTreeMap<&str, &Setting>,
    machine: &Machine,
    found: &mut Found<'_>,
) -> Result<Vec<Grounds>, Error> {
    let mut settings = settings.clone();
    let mut with = machine.with_all(&settings, None);
    if with.is_err() {
        for (setting, why) in machine.refused(&settings) {
            settings.remove(setting.name.as_str());
            // What no machine takes is a finding of its own, and what is not modelled is none.
            if !is_refused(setting, machine) && !why.contains("not modelled") {
                let way_out = format!("take {} out, or give it a value of this machine", setting.name);
                found.add_with("refused-value", setting.line, why, Some(way_out));
            }
        }
        with = machine.with_all(&settings, None);
    }
    let Ok(with) = with else { return Ok(Vec::new()) };
    let mut grounds = Vec::new();
    let mut rows: Option<Vec<Option<Row>>> = None;
    for setting in settings.values().filter(|setting| setting.is_read()) {
        let Ok(without) = machine.with_all(&settings, Some(&setting.name)) else { continue };
        if without.settings() == with.settings() {
            continue;
        }
        if rows.is_none() {
            rows = Some(times(&with)?);
        }
        let paths = without.settings().transport == with.settings().transport;
        let losses = rows.iter().flatten().zip(times(&without)?).filter_map(|(with, without)| {
            let (with, without) = (with.as_ref()?, without?);
            Some((Loss::of(with, &without, paths), with.clone(), without))
        });
        let worst = losses.max_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal));
        if let Some((loss, with, without)) = worst.filter(|(loss, ..)| loss.is_worth_a_word()) {
            let row = |row: &Row| {
                let channels = plural(row.channels as usize, "channel", "channels");
                format!("{}/{} on {channels} {:.1} us", row.algorithm, row.protocol, row.time_us)
            };
            let what = format!(
                "{} costs {} of {} at {} by the forecast: {}, without it {}",
                setting.text(),
                loss.words(),
                with.collective,
                Bytes(with.size_bytes),
                row(&with),
                row(&without),
            );
            found.add(if loss.certain { "costs-time" } else { "may-cost-time" }, setting.line, what);
            grounds.extend([with.grounds, without.grounds]);
        }
    }
    Ok(grounds)
}

/// Times of all calls; none where a call has no choice left, which is a finding of its own.
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
