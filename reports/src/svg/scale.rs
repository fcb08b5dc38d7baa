//! From values to places: scales, their ticks, and numbers as people read them.

use collcast_sim::units::Bytes;

use crate::figure::Scale;

/// An axis on the page: which values it holds, and between which places.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ruler {
    scale: Scale,
    values: (f64, f64),
    places: (f64, f64),
    /// The values that it was made for, in order.
    shown: Vec<f64>,
}

impl Ruler {
    /// Around values that it can show; none where there is none.
    pub(super) fn around(scale: Scale, values: impl Iterator<Item = f64>, places: (f64, f64)) -> Option<Self> {
        let mut shown: Vec<f64> = values.filter(|v| shows(scale, *v)).collect();
        shown.sort_by(f64::total_cmp);
        shown.dedup();
        let (low, high) = (*shown.first()?, *shown.last()?);
        let values = match scale {
            // A quarter of a doubling beyond the outermost.
            Scale::Bytes | Scale::Powers => (low / 1.19, high * 1.19),
            Scale::Log => (low / 1.15, high * 1.15),
            Scale::Linear if low == high => (low.min(0.0), if high > 0.0 { high * 1.1 } else { 1.0 }),
            Scale::Linear => {
                let room = 0.06 * (high - low);
                // What starts at zero, or close to it, is shown from there.
                let from = if low >= 0.0 && low < 0.35 * high { 0.0 } else { low - room };
                (from, high + room)
            }
        };
        Some(Self { scale, values, places, shown })
    }

    /// Where a value stands; none for one that this scale cannot show.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        if !shows(self.scale, value) {
            return None;
        }
        let of = |v: f64| if self.scale == Scale::Linear { v } else { v.ln() };
        let (low, high) = (of(self.values.0), of(self.values.1));
        Some(self.places.0 + (self.places.1 - self.places.0) * (of(value) - low) / (high - low))
    }

    /// Values that are written beside the axis, with their places and words.
    pub(super) fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let round = match self.scale {
            Scale::Bytes | Scale::Powers => sizes(self.values, most),
            Scale::Log => decades(self.values, most),
            Scale::Linear => steps(self.values, most),
        };
        // One number tells nothing of an axis, and none tells less.
        let values = match self.scale {
            _ if round.len() > 1 => round,
            Scale::Bytes | Scale::Powers => self.apart(most),
            Scale::Log | Scale::Linear => steps(self.values, most),
        };
        values.into_iter().filter_map(|v| Some((self.at(v)?, self.words(v)))).collect()
    }

    /// The values themselves, but those that are too near to the one before for words of their own.
    fn apart(&self, most: usize) -> Vec<f64> {
        let room = (self.places.1 - self.places.0).abs() / most.max(1) as f64;
        let mut last = f64::NEG_INFINITY;
        let far = |value: &f64| {
            let place = self.at(*value).unwrap_or(last);
            let far = place - last >= room;
            last = if far { place } else { last };
            far
        };
        self.shown.iter().copied().filter(far).collect()
    }

    /// A value as a reader says it.
    pub(super) fn words(&self, value: f64) -> String {
        match self.scale {
            Scale::Bytes => Bytes(value.round() as u64).to_string(),
            Scale::Powers | Scale::Log | Scale::Linear => number(value),
        }
    }
}

/// Beyond it, or below its inverse, a value is no time, size or rate, and differences would not be finite.
const LARGEST: f64 = 1e100;

fn shows(scale: Scale, value: f64) -> bool {
    value.abs() < LARGEST && (scale == Scale::Linear || value > 1.0 / LARGEST)
}

/// Powers of two, as far apart as it takes: 1 KiB, 32 KiB, 1 MiB.
fn sizes((low, high): (f64, f64), most: usize) -> Vec<f64> {
    let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
    let apart = [1, 2, 5, 10, 20].into_iter().find(|apart| (last - first) / apart < most as i32).unwrap_or(20);
    (first..=last).filter(|power| power.rem_euclid(apart) == 0).map(|power| 2_f64.powi(power)).collect()
}

/// Powers of ten, with 2 and 5 between them where there is room.
pub(crate) fn decades((low, high): (f64, f64), most: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let of = |digits: &[f64], apart: i32| -> Vec<f64> {
        let powers = (first..=last).filter(|power| power.rem_euclid(apart) == 0);
        let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
        all.filter(|v| (low..=high).contains(v)).collect()
    };
    let every: Vec<f64> = (1..10).map(f64::from).collect();
    let finer = [of(&every, 1), of(&[1.0, 2.0, 5.0], 1), of(&[1.0], 1), of(&[1.0], 2)];
    finer.into_iter().find(|ticks| ticks.len() <= most).unwrap_or_else(|| of(&[1.0], 3))
}

/// Multiples of 1, 2 or 5 of a power of ten.
fn steps((low, high): (f64, f64), most: usize) -> Vec<f64> {
    let rough = (high - low) / most.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let apart = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough);
    let apart = apart.unwrap_or(10.0 * power);
    let (first, last) = ((low / apart).ceil() as i64, (high / apart).floor() as i64);
    (first..=last).map(|step| step as f64 * apart).collect()
}

/// A number with three digits that count, and marks between thousands; very large and very small ones with their power.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !(1e-6..1e12).contains(&value.abs()) {
        return format!("{value:.1e}");
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("\u{2212}", rest));
    let (whole, fraction) = text.split_once('.').map_or((text, ""), |(whole, fraction)| (whole, fraction));
    let mut out = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// A place on the page, to a tenth.
pub(super) fn px(place: f64) -> String {
    let text = format!("{place:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ticks are round, in order, inside the axis, and few enough to stand beside each other.
    #[test]
    fn ticks_are_round_and_few() {
        let words = |scale, values: &[f64]| -> Vec<String> {
            let ruler = Ruler::around(scale, values.iter().copied(), (0.0, 600.0)).unwrap();
            let ticks = ruler.ticks(8);
            assert!(ticks.len() <= 9 && ticks.is_sorted_by(|a, b| a.0 < b.0), "{ticks:?}");
            assert!(ticks.iter().all(|tick| (-0.01..=600.01).contains(&tick.0)), "{ticks:?}");
            ticks.into_iter().map(|tick| tick.1).collect()
        };
        let gib = f64::from(1 << 30);
        assert_eq!(words(Scale::Bytes, &[8.0, 8.0 * gib]), ["32 B", "1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"]);
        assert_eq!(words(Scale::Log, &[3.0, 40_000.0]), ["10", "100", "1,000", "10,000"]);
        assert_eq!(words(Scale::Log, &[0.02, 0.3]), ["0.02", "0.05", "0.1", "0.2"]);
        assert_eq!(words(Scale::Linear, &[-18.0, 32.0]), ["\u{2212}20", "\u{2212}10", "0", "10", "20", "30"]);
        assert_eq!(words(Scale::Log, &[350.0, 353.0]), ["320", "340", "360", "380", "400"]);
        assert_eq!(words(Scale::Powers, &[24.0, 24.0]), ["24"]);
        assert_eq!(words(Scale::Bytes, &[3.0 * gib, 5.0 * gib]), ["3 GiB", "5 GiB"]);
        assert_eq!(words(Scale::Linear, &[5.0]).first().map(String::as_str), Some("0"));
    }

    /// Goal: what an axis cannot show has no place on it.
    #[test]
    fn what_cannot_be_shown_has_no_place() {
        assert_eq!(Ruler::around(Scale::Log, [0.0, -1.0, f64::NAN].into_iter(), (0.0, 1.0)), None);
        let ruler = Ruler::around(Scale::Log, [1.0, 100.0].into_iter(), (0.0, 1.0)).unwrap();
        assert_eq!((ruler.at(0.0), ruler.at(f64::INFINITY), ruler.at(1e300)), (None, None, None));
        let ruler = Ruler::around(Scale::Linear, [-1e308, 1e308, 2.0].into_iter(), (0.0, 1.0)).unwrap();
        assert!(ruler.at(1.0).is_some_and(f64::is_finite));
        assert_eq!([1e15, 2e-9, 1234.0].map(number), ["1.0e15", "2.0e-9", "1,234"]);
    }
}
