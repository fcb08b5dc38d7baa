//! What the ratio of the two printed rates tells of the number of ranks.

use collcast_sim::collective::Collective;

/// A printed rate and half a unit of its last digit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    value: f64,
    half_unit: f64,
}

impl Rate {
    /// `text` gives the digits that were printed.
    pub(super) fn written(text: &str, value: f64) -> Self {
        let decimals = text.split_once('.').map_or(0, |(_, digits)| digits.len().min(12));
        // A little more than half a unit: the two were rounded from the same exact value.
        Self { value, half_unit: 0.51 * 0.1f64.powi(i32::try_from(decimals).unwrap_or(0)) }
    }
}

/// The two rates of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) algbw: Rate,
    pub(super) busbw: Rate,
}

impl Sample {
    /// The interval in which busbw / algbw lies, if the digits tell anything.
    fn factor(&self) -> Option<(f64, f64)> {
        let low = (self.busbw.value - self.busbw.half_unit) / (self.algbw.value + self.algbw.half_unit);
        let high = (self.busbw.value + self.busbw.half_unit) / (self.algbw.value - self.algbw.half_unit);
        (self.algbw.value > 2.0 * self.algbw.half_unit).then_some((low, high))
    }
}

/// The one number of ranks that every row allows, if it is one.
pub(super) fn ranks_of_samples(collective: Collective, samples: &[Sample]) -> Option<u32> {
    let (low, high) = samples
        .iter()
        .filter_map(Sample::factor)
        .fold((0.0f64, f64::INFINITY), |(low, high), (l, h)| (low.max(l), high.min(h)));
    // factor = top * (n - 1) / n, so n = top / (top - factor).
    let top = match collective {
        Collective::AllReduce => 2.0,
        Collective::Broadcast | Collective::Reduce | Collective::SendRecv => return None,
        _ => 1.0,
    };
    if low > high || high >= top {
        return None;
    }
    let (first, last) = ((top / (top - low)).ceil(), (top / (top - high)).floor());
    (first == last && (2.0..1e6).contains(&first)).then_some(first as u32)
}

/// Whether most rows allow `ranks`.
pub(super) fn bus_factor_fits(collective: Collective, ranks: u32, samples: &[Sample]) -> bool {
    let factor = collective.bus_factor(ranks);
    let intervals: Vec<(f64, f64)> = samples.iter().filter_map(Sample::factor).collect();
    let fitting = intervals.iter().filter(|&&(low, high)| low <= factor && factor <= high).count();
    fitting * 2 >= intervals.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(algbw: &str, busbw: &str) -> Sample {
        let rate = |text: &str| Rate::written(text, text.parse().unwrap());
        Sample { algbw: rate(algbw), busbw: rate(busbw) }
    }

    /// Goal: the ratio names the ranks where its digits suffice, and only there.
    #[test]
    fn rates_tell_the_ranks_where_their_digits_suffice() {
        let table = [sample("248.92", "466.73"), sample("0.00", "0.01")];
        assert_eq!(ranks_of_samples(Collective::AllReduce, &table), Some(16));
        assert!(bus_factor_fits(Collective::AllReduce, 16, &table));
        assert!(!bus_factor_fits(Collective::AllReduce, 8, &table));
        let coarse = [sample("0.05", "0.09")];
        assert_eq!(ranks_of_samples(Collective::AllReduce, &coarse), None);
        assert_eq!(ranks_of_samples(Collective::Broadcast, &table), None);
        assert_eq!(
            ranks_of_samples(Collective::AllToAll, &[sample("10.85", "10.18")]),
            None, // 15 to 17 ranks.
        );
        assert_eq!(ranks_of_samples(Collective::AllReduce, &[sample("425.49", "839.16")]), Some(72));
    }
}
