//! Where another choice is worth it, over which sizes, and what is lost without it.

use collcast_sim::collective::Collective;

use super::options::{Basis, Opt, Pair, Site};
use collcast::noise::upper_quantile;

/// Chance that any advice from measured times is noise.
const FAMILY_ERROR: f64 = 0.05;

/// A better option at one site.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Advice {
    /// Index among the site's options.
    pub(super) option: usize,
    /// Saved time, as a fraction of what NCCL's choice takes.
    pub(super) gain: f64,
    pub(super) basis: Basis,
}

/// Standard deviations that a measured gain must exceed: all comparisons hold together.
pub(super) fn z(sites: &[Site]) -> f64 {
    let tests: usize = sites.iter().filter(|s| !s.beyond).map(|s| s.options.len() - 1).sum();
    upper_quantile(FAMILY_ERROR / tests.max(1) as f64)
}

/// The best certain change of each site, if there is one. Measured options are judged among
/// themselves: a forecast does not overrule a measurement.
pub(super) fn advise(sites: &[Site]) -> Vec<Option<Advice>> {
    let z = z(sites);
    sites
        .iter()
        .map(|site| {
            if site.beyond || site.not_modelled().is_some() {
                return None;
            }
            let option = if site.measured() {
                site.fastest(|o| o.measured.map(|m| m.us))?
            } else {
                site.fastest(|o| Some(o.predicted_us()))?
            };
            let better = &site.options[option];
            let advice = Advice { option, gain: site.gain(better), basis: site.basis(better) };
            (option != site.default && site.is_certain(better, z)).then_some(advice)
        })
        .collect()
}

/// Neighbouring sizes with one answer.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Range {
    pub(super) collective: Collective,
    /// First and last byte count; neighbours meet at the geometric mean of their sizes.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) pair: Pair,
    /// At its largest size.
    pub(super) channels: u32,
    pub(super) default_pair: Pair,
    pub(super) changes: bool,
    pub(super) basis: Basis,
    /// Geometric means over its sizes.
    pub(super) predicted_us: f64,
    pub(super) default_predicted_us: f64,
    /// The same of measured times, with those of NCCL's choice.
    pub(super) measured_us: Option<(f64, f64)>,
    pub(super) gain: f64,
}

/// Last byte count for which the smaller of two neighbouring sizes stands.
pub(super) fn boundary(small: u64, large: u64) -> u64 {
    let mean = (small as f64 * large as f64).sqrt() as u64;
    mean.clamp(small, large.saturating_sub(1).max(small))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

/// The option that is advised at a site, or NCCL's own.
pub(super) fn taken<'s>(site: &'s Site, advice: Option<&Advice>) -> &'s Opt {
    &site.options[advice.map_or(site.default, |a| a.option)]
}

/// Neighbouring sites, with the first and last byte count that they stand for.
pub(super) struct Run<'s> {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) members: Vec<(&'s Site, Option<&'s Advice>)>,
}

/// Runs of neighbouring sites with equal `key`, each with its first and last byte count.
pub(super) fn runs<'s, K: PartialEq>(
    sites: &'s [Site],
    advice: &'s [Option<Advice>],
    key: impl Fn(&Site, Option<&Advice>) -> K,
) -> Vec<Run<'s>> {
    let all: Vec<(&Site, Option<&Advice>)> = sites.iter().zip(advice.iter().map(Option::as_ref)).collect();
    let same = |a: &(&Site, Option<&Advice>), b: &(&Site, Option<&Advice>)| {
        a.0.call.collective == b.0.call.collective && key(a.0, a.1) == key(b.0, b.1)
    };
    let chunks: Vec<_> = all.chunk_by(same).collect();
    let size = |site: &Site| site.call.size().0;
    let mut out = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let (first, last) = (chunk[0].0, chunk[chunk.len() - 1].0);
        let neighbour = |other: Option<&&[(&'s Site, Option<&'s Advice>)]>| {
            other.filter(|c| c[0].0.call.collective == first.call.collective).map(|c| (c[0].0, c[c.len() - 1].0))
        };
        let before = index.checked_sub(1).and_then(|i| neighbour(chunks.get(i)));
        let after = neighbour(chunks.get(index + 1));
        let from = before.map_or(0, |(_, below)| boundary(size(below), size(first)) + 1);
        let to = after.map_or(i64::MAX as u64, |(above, _)| boundary(size(last), size(above)));
        out.push(Run { from, to, members: chunk.to_vec() });
    }
    out
}

/// What to take over which sizes, of those that were asked about.
pub(super) fn ranges(sites: &[Site], advice: &[Option<Advice>]) -> Vec<Range> {
    let key = |site: &Site, advice: Option<&Advice>| {
        let option = taken(site, advice);
        (option.pair, option.channels, site.default_option().pair, advice.map(|a| a.basis))
    };
    runs(sites, advice, key)
        .into_iter()
        .filter_map(|Run { from, to, mut members }| {
            members.retain(|(site, _)| !site.beyond);
            let &(site, last) = members.last()?;
            let option = taken(site, last);
            let both =
                |(s, a): &(&Site, Option<&Advice>)| Some((taken(s, *a).measured?.us, s.default_option().measured?.us));
            let measured: Option<Vec<(f64, f64)>> = members.iter().map(both).collect();
            let measured_us = measured.map(|all| (mean(all.iter().map(|m| m.0)), mean(all.iter().map(|m| m.1))));
            let predicted_us = mean(members.iter().map(|(s, a)| taken(s, *a).predicted_us()));
            let default_predicted_us = mean(members.iter().map(|(s, _)| s.default_option().predicted_us()));
            let basis = last.map_or_else(|| site.basis(option), |a| a.basis);
            let (us, default_us) =
                measured_us.filter(|_| basis == Basis::Measured).unwrap_or((predicted_us, default_predicted_us));
            Some(Range {
                collective: site.call.collective,
                from,
                to,
                pair: option.pair,
                channels: option.prediction.plan.channels,
                default_pair: site.default_option().pair,
                changes: last.is_some(),
                basis,
                predicted_us,
                default_predicted_us,
                measured_us,
                gain: 1.0 - us / default_us,
            })
        })
        .collect()
}

/// Time lost against the best option, as fractions of its time.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Loss {
    pub(super) mean: f64,
    pub(super) max: f64,
    /// Size of the largest.
    pub(super) at: u64,
}

impl Loss {
    fn of(losses: &[(u64, f64)]) -> Self {
        let max = losses.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
        let mean = losses.iter().map(|l| l.1).sum::<f64>() / losses.len().max(1) as f64;
        Self { mean, max: max.1, at: max.0 }
    }
}

/// What a collective loses by each way to choose.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Regret {
    pub(super) collective: Collective,
    pub(super) basis: Basis,
    pub(super) sizes: usize,
    /// By NCCL's choice.
    pub(super) default: Loss,
    /// By the forecast's, against measured times; its own times have none.
    pub(super) forecast: Option<Loss>,
}

/// Regret by the forecast, and by measured times where NCCL's choice and another were measured.
/// The best of several measured times is partly luck, so measured regret is a little too high.
pub(super) fn regrets(sites: &[Site]) -> Vec<Regret> {
    let mut out = Vec::new();
    for of in sites.chunk_by(|a, b| a.call.collective == b.call.collective) {
        let of: Vec<&Site> = of.iter().filter(|s| !s.beyond).collect();
        let collective = of[0].call.collective;
        let size = |s: &Site| s.call.size().0;
        let predicted: Vec<(u64, f64)> = of
            .iter()
            .filter(|s| s.not_modelled().is_none())
            .filter_map(|s| {
                let best = s.fastest(|o| Some(o.predicted_us()))?;
                Some((size(s), s.default_option().predicted_us() / s.options[best].predicted_us() - 1.0))
            })
            .collect();
        out.push(Regret {
            collective,
            basis: Basis::of(of.iter().flat_map(|s| &s.options)),
            sizes: predicted.len(),
            default: Loss::of(&predicted),
            forecast: None,
        });
        let measured: Vec<(u64, f64, f64)> = of
            .iter()
            .filter(|s| s.options.iter().filter(|o| o.measured.is_some()).count() > 1)
            .filter_map(|s| {
                let us = |index: usize| s.options[index].measured.map(|m| m.us);
                let best = us(s.fastest(|o| o.measured.map(|m| m.us))?)?;
                let pick = us(s.fastest(|o| o.measured.map(|_| o.predicted_us()))?)?;
                Some((size(s), us(s.default)? / best - 1.0, pick / best - 1.0))
            })
            .collect();
        if !measured.is_empty() {
            out.push(Regret {
                collective,
                basis: Basis::Measured,
                sizes: measured.len(),
                default: Loss::of(&measured.iter().map(|m| (m.0, m.1)).collect::<Vec<_>>()),
                forecast: Some(Loss::of(&measured.iter().map(|m| (m.0, m.2)).collect::<Vec<_>>())),
            });
        }
    }
    out
}
