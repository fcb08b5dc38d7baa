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
    let mut with = machine.with_all(&settings, &[]);
    if with.is_err() {
        for (setting, why) in machine.refused(&settings) {
            settings.remove(setting.name.as_str());
            // What no machine takes is a finding of its own, and what is not modelled is none.
            if !is_refused(setting, machine) && !why.contains("not modelled") {
                let way_out = format!("take {} out, or give it a value of this machine", setting.name);
                found.add_with("refused-value", setting.line, why, Some(way_out));
            }
        }
        with = machine.with_all(&settings, &[]);
    }
    let Ok(with) = with else { return Ok(Vec::new()) };
    let mut grounds = Vec::new();
    let mut rows: Option<Vec<Option<Row>>> = None;
    let mut heeded: Vec<&Setting> = Vec::new();
    // What settings lose one by one, summed for each call.
    let mut alone = [0.0; COLLECTIVES.len() * SIZES.len()];
    for setting in settings.values().filter(|setting| setting.is_read()) {
        let Ok(without) = machine.with_all(&settings, &[setting]) else { continue };
        if without.settings() == with.settings() {
            continue;
        }
        if rows.is_none() {
            rows = Some(times(&with)?);
        }
        let costs = costs(&with, rows.as_deref().unwrap_or_default(), &without)?;
        for (sum, cost) in alone.iter_mut().zip(&costs) {
            *sum += cost.as_ref().map_or(0.0, |cost| cost.loss.lost.max(0.0));
        }
        heeded.push(setting);
        if let Some(worst) = worst(costs.into_iter().flatten()) {
            worst.report(&[setting], found, &mut grounds);
        }
    }
    let Some(rows) = rows.filter(|_| heeded.len() > 1) else { return Ok(grounds) };
    // Each may leave NCCL no better choice as long as the others are there.
    let without = |some: &[&Setting]| match machine.with_all(&settings, some) {
        Ok(without) => costs(&with, &rows, &without),
        Err(_) => Ok(Vec::new()),
    };
    let hidden = |(cost, alone): (Option<Cost>, f64)| cost.filter(|cost| cost.loss.lost > alone + LOSS_LEAST.ln_1p());
    if let Some(mut worst) = worst(without(&heeded)?.into_iter().zip(alone).filter_map(hidden)) {
        let least = Loss { lost: worst.loss.lost - LOSS_LEAST.ln_1p(), ..worst.loss };
        let call = (worst.with.collective, worst.with.size_bytes);
        let mut together = heeded.clone();
        for setting in heeded {
            let fewer: Vec<&Setting> = together.iter().copied().filter(|other| *other != setting).collect();
            let same = |cost: &Cost| (cost.with.collective, cost.with.size_bytes) == call && cost.loss >= least;
            if let Some(cost) = without(&fewer)?.into_iter().flatten().find(same) {
                (together, worst) = (fewer, cost);
            }
        }
        worst.report(&together, found, &mut grounds);
    }
    Ok(grounds)
}

/// A call with settings, and the same without some of them.
struct Cost {
    loss: Loss,
    with: Row,
    without: Row,
}

impl Cost {
    /// Adds the finding that settings cost so much.
    fn report(self, by: &[&Setting], found: &mut Found<'_>, grounds: &mut Vec<Grounds>) {
        let Self { loss, with, without } = self;
        let row = |row: &Row| {
            let channels = plural(row.channels as usize, "channel", "channels");
            format!("{}/{} on {channels} {:.1} us", row.algorithm, row.protocol, row.time_us)
        };
        let texts: Vec<String> = by.iter().map(|setting| setting.text()).collect();
        let (cost, them) = if by.len() > 1 { ("together cost", "them") } else { ("costs", "it") };
        let what = format!(
            "{} {cost} {} of {} at {} by the forecast: {}, without {them} {}",
            texts.join(" and "),
            loss.words(),
            with.collective,
            Bytes(with.size_bytes),
            row(&with),
            row(&without),
        );
        let line = by.iter().filter_map(|setting| setting.line).max();
        let rule = if loss.certain { "costs-time" } else { "may-cost-time" };
        let all = "take these lines out together: one alone gains less, or nothing";
        found.add_with(rule, line, what, (by.len() > 1).then(|| all.to_owned()));
        grounds.extend([with.grounds, without.grounds]);
    }
}

/// What all calls lose, of which `rows` are with the settings; none where a call has no choice left.
fn costs(with: &Site, rows: &[Option<Row>], without: &Site) -> Result<Vec<Option<Cost>>, Error> {
    let paths = without.settings().transport == with.settings().transport;
    let cost = |(with, without): (&Option<Row>, Option<Row>)| {
        let (with, without) = (with.clone()?, without?);
        Some(Cost { loss: Loss::of(&with, &without, paths), with, without })
    };
    Ok(rows.iter().zip(times(without)?).map(cost).collect())
}

/// The call that loses most, if that is worth a word.
fn worst(costs: impl Iterator<Item = Cost>) -> Option<Cost> {
    let worst = costs.max_by(|a, b| a.loss.partial_cmp(&b.loss).unwrap_or(Ordering::Equal));
    worst.filter(|cost| cost.loss.is_worth_a_word())
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
