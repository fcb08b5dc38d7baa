//! What the ratio of the two printed rates tells of the number of ranks.

use collcast_sim::collective::Collective;

/// The interval in which a printed rate lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    low: f64,
    high: f64,
}

/// Half a unit of the last printed digit, and a little more: several numbers of a row were
/// rounded from the same exact value.
fn half_unit(text: &str) -> f64 {
    let (text, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent = exponent.parse::<i32>().unwrap_or(0).clamp(-300, 300);
    let decimals = text.split_once('.').map_or(0, |(_, digits)| digits.len().min(12));
    0.51 * 0.1f64.powi(i32::try_from(decimals).unwrap_or(0) - exponent)
}

impl Rate {
    /// `text` gives the digits that were printed.
    pub(super) fn written(text: &str, value: f64) -> Self {
        let half = half_unit(text);
        Self { low: value - half, high: value + half }
    }

    /// How far it can be off, as a fraction of its lower end (infinite where that is zero).
    pub(super) fn relative_half_width(self) -> f64 {
        match self.low > 0.0 {
            true => (self.high - self.low) / 2.0 / self.low,
            false => f64::INFINITY,
        }
    }

    /// The rate that size and printed time give, in GB/s, where this is another one: by more than digits explain.
    pub(super) fn contradicted(self, size: u64, time: &str, time_us: f64) -> Option<f64> {
        let half = half_unit(time);
        let rate = |us: f64| size as f64 / us / 1e3;
        if time_us <= half {
            return None; // All of it is rounding.
        }
        let (low, high) = (rate(time_us + half), rate(time_us - half));
        (self.high < 0.99 * low || self.low > 1.01 * high).then(|| rate(time_us))
    }

    /// The same rate, known better where the printed time tells more than its own digits.
    pub(super) fn refined(self, size: u64, time: &str, time_us: f64) -> Self {
        let half = half_unit(time);
        let rate = |us: f64| size as f64 / us / 1e3;
        if time_us <= 2.0 * half {
            return self;
        }
        let (low, high) = (rate(time_us + half), rate(time_us - half));
        let refined = Self { low: self.low.max(low), high: self.high.min(high) };
        // Where they contradict each other the printed rate stands.
        if refined.low <= refined.high { refined } else { self }
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
        let width = self.algbw.high - self.algbw.low;
        (self.algbw.low > width).then(|| (self.busbw.low / self.algbw.high, self.busbw.high / self.algbw.low))
    }
}

/// The numbers of ranks, first and last, that every row allows; `None` if there is none, or
/// if the rates tell nothing.
pub(super) fn ranks_of_samples(collective: Collective, samples: &[Sample]) -> Option<(u32, u32)> {
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
    if low > high || low >= top {
        return None;
    }
    let first = (top / (top - low)).ceil().max(1.0) as u32; // Casts saturate.
    let last = match high < top {
        true => (top / (top - high)).floor() as u32,
        false => u32::MAX,
    };
    (first <= last).then_some((first, last))
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

    /// Goal: a printed rate holds beside its size and time as far as digits go, and not beyond.
    #[test]
    fn rates_hold_beside_size_and_time() {
        for (size, time, algbw, holds) in [
            (1024, "10.0", "0.10", true),
            (1048, "10.0", "0.11", true), // 1048 bytes in 9.95 us are 0.1053 GB/s.
            (1024, "10.0", "0.11", false),
            (8, "24.31", "0.00", true),
            (1 << 30, "10653.7", "100.79", true),
            (1 << 30, "10653.7", "10079", false),
            (1 << 30, "10653.7", "1.01", false),
            (1 << 36, "1.2e+07", "5.64", true),
            (1 << 36, "1.2e+07", "5.30", false),
            (1 << 30, "0.00", "100.79", true),
        ] {
            let rate = Rate::written(algbw, algbw.parse().unwrap());
            let found = rate.contradicted(size, time, time.parse().unwrap());
            assert_eq!(found.is_none(), holds, "{size} {time} {algbw}: {found:?}");
        }
    }

    /// Goal: the ratio names the ranks where its digits suffice, and only there.
    #[test]
    fn rates_tell_the_ranks_where_their_digits_suffice() {
        let table = [sample("248.92", "466.73"), sample("0.00", "0.01")];
        let ranks = |table: &[Sample]| ranks_of_samples(Collective::AllReduce, table);
        assert_eq!(ranks(&table), Some((16, 16)));
        assert!(bus_factor_fits(Collective::AllReduce, 16, &table));
        assert!(!bus_factor_fits(Collective::AllReduce, 8, &table));
        assert_eq!(ranks(&[sample("0.05", "0.09")]), Some((5, u32::MAX)));
        assert_eq!(ranks_of_samples(Collective::Broadcast, &table), None);
        assert_eq!(ranks_of_samples(Collective::AllToAll, &[sample("10.85", "10.18")]), Some((16, 16)));
        assert_eq!(ranks(&[sample("425.49", "839.16")]), Some((72, 72)));
        // Contradictions tell nothing.
        assert_eq!(ranks(&[sample("10.00", "10.00"), sample("10.00", "15.00")]), None);
    }
}
