//! Bytes, simulated time and rates as types, and how people write them.
//!
//! Everything inside the simulator is an integer: time in picoseconds, rates in bytes per
//! second of one direction, sizes in bytes. Floats appear in fits and at the edges only.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Picoseconds in a second.
pub const PS_PER_S: u128 = 1_000_000_000_000;
/// Picoseconds in a microsecond.
pub const PS_PER_US: u64 = 1_000_000;
/// Picoseconds in a nanosecond.
pub const PS_PER_NS: u64 = 1_000;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Bytes(pub u64);

impl Bytes {
    /// As people write it in tables: the largest binary unit that divides it.
    pub fn human(self) -> String {
        for (unit, name) in [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return format!("{} {name}", self.0 / unit);
            }
        }
        format!("{} B", self.0)
    }

    /// The same, but with two digits after the point where that takes more than four digits: sizes between powers of two.
    #[expect(clippy::cast_precision_loss, reason = "a few digits are shown")]
    pub fn about(self) -> String {
        let exact = self.human();
        if exact.find(' ').is_some_and(|digits| digits <= 4) {
            return exact;
        }
        let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];
        let (unit, name) = units.into_iter().find(|(unit, _)| self.0 >= *unit).unwrap_or((1 << 10, "KiB"));
        format!("{:.2} {name}", self.0 as f64 / unit as f64)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.human())
    }
}

/// A point of simulated time, in picoseconds since the start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SimTime(pub u64);

/// A span of simulated time, in picoseconds: at 900 GB/s one byte takes 1.1 ps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct SimDuration(pub u64);

impl SimDuration {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// From microseconds; negative values and NaN give zero, infinity the longest span.
    pub fn from_us(us: f64) -> Self {
        Self((us.max(0.0) * PS_PER_US as f64).round() as u64)
    }

    /// In microseconds.
    pub fn as_us(self) -> f64 {
        self.0 as f64 / PS_PER_US as f64
    }

    /// `count` times this span, saturating.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl Add for SimDuration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for SimDuration {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Add<SimDuration> for SimTime {
    type Output = Self;
    fn add(self, span: SimDuration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for SimTime {
    type Output = SimDuration;
    fn sub(self, earlier: Self) -> SimDuration {
        SimDuration(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for SimDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} ns", self.as_us() * 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} us", self.as_us()),
            _ => write!(f, "{:.3} ms", self.as_us() / 1e3),
        }
    }
}

/// Rate of one direction of a link, in bytes per second. A dead link is absent, not zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Bandwidth(NonZeroU64);

impl Bandwidth {
    /// From bytes per second; `None` for zero.
    pub fn new(bytes_per_s: u64) -> Option<Self> {
        NonZeroU64::new(bytes_per_s).map(Self)
    }

    /// From GB/s (10^9 bytes per second); values below one byte per second become one.
    pub fn from_gb_per_s(rate: f64) -> Self {
        Self(NonZeroU64::new((rate * 1e9).round().max(1.0) as u64).unwrap_or(NonZeroU64::MIN))
    }

    /// Bytes per second.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// GB/s (10^9 bytes per second).
    pub fn gb_per_s(self) -> f64 {
        self.get() as f64 / 1e9
    }

    /// `count` such links side by side, saturating; `count` 0 counts as 1.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(NonZeroU64::new(count).unwrap_or(NonZeroU64::MIN)))
    }

    /// Bytes that take `time`, rounded up; saturates.
    pub fn bytes_in(self, time: SimDuration) -> Bytes {
        let bytes = (u128::from(time.0) * u128::from(self.get())).div_ceil(PS_PER_S);
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Time to carry `bytes`, rounded up, so that no link ever beats its rate; saturates.
    pub fn time_for(self, bytes: Bytes) -> SimDuration {
        let ps = (u128::from(bytes.0) * PS_PER_S).div_ceil(u128::from(self.get()));
        SimDuration(u64::try_from(ps).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.3}", self.gb_per_s());
        write!(f, "{} GB/s", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A quantity that could not be understood.
#[derive(Debug, Error, PartialEq, Eq, Clone)]
pub enum UnitError {
    /// No number at the start.
    #[error("`{0}` does not start with a number")]
    NotANumber(String),
    /// Digits and points that are no number, such as two of them.
    #[error("`{number}` in `{text}` is not a number; a range of sizes is FROM:TO, with a colon")]
    NotOneNumber {
        /// What was written.
        text: String,
        /// Where a number was expected.
        number: String,
    },
    /// A rate that is too low to be one.
    #[error("`{0}` is less than one byte a second; `b` is bits and `B` bytes, such as `400 Gb/s` or `50 GB/s`")]
    TooSlow(String),
    /// A rate or a time without its unit.
    #[error("`{text}` has no unit; expected {expected}")]
    MissingUnit {
        /// What was written.
        text: String,
        /// An example of what is expected.
        expected: &'static str,
    },
    /// A unit that is not known.
    #[error("`{unit}` in `{text}` is not a known unit; expected {expected}")]
    UnknownUnit {
        /// What was written.
        text: String,
        /// The unit of it.
        unit: String,
        /// An example of what is expected.
        expected: &'static str,
    },
    /// Zero or negative where that has no meaning.
    #[error("`{0}` must be greater than zero")]
    NotPositive(String),
    /// A value that does not fit.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

fn split(text: &str) -> Result<(f64, &str), UnitError> {
    let text = text.trim();
    let end = text
        .char_indices()
        .find(|&(i, c)| !(c.is_ascii_digit() || c == '.' || (i == 0 && (c == '-' || c == '+'))))
        .map_or(text.len(), |(i, _)| i);
    let number: f64 = text[..end].parse().map_err(|_| match text[..end].contains(|c: char| c.is_ascii_digit()) {
        true => UnitError::NotOneNumber { text: text.to_owned(), number: text[..end].to_owned() },
        false => UnitError::NotANumber(text.to_owned()),
    })?;
    Ok((number, text[end..].trim()))
}

fn whole(text: &str, value: f64) -> Result<u64, UnitError> {
    // 2^63: more than any buffer or rate, and exact as a float.
    if value >= 9_223_372_036_854_775_808.0 {
        return Err(UnitError::TooLarge(text.to_owned()));
    }
    if value < 0.0 {
        return Err(UnitError::NotPositive(text.to_owned()));
    }
    Ok(value.round() as u64)
}

/// Reads a size: `8`, `8B`; `K M G T` and `KiB MiB GiB` are binary (as in nccl-tests),
/// `kB MB GB` decimal.
///
/// # Errors
/// Anything else, a negative number, or one beyond 2^63.
pub fn parse_size(text: &str) -> Result<Bytes, UnitError> {
    let (number, unit) = split(text)?;
    let factor: f64 = match unit {
        "" | "B" => 1.0,
        "K" | "k" | "KiB" => 1024.0,
        "M" | "m" | "MiB" => 1_048_576.0,
        "G" | "g" | "GiB" => 1_073_741_824.0,
        "T" | "t" | "TiB" => 1_099_511_627_776.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => {
            return Err(UnitError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
                expected: "a size such as `8`, `64K`, `1MiB` or `4G`",
            });
        }
    };
    whole(text, number * factor).map(Bytes)
}

const RATE_EXAMPLE: &str = "a rate of one direction such as `50 GB/s` or `400 Gb/s`";

/// Reads a rate of one direction: `50 GB/s`, `400 Gb/s`, `400Gbps`, `46 GiB/s`.
///
/// # Errors
/// A missing or unknown unit, zero, a negative number, or one beyond 2^63 bytes per second.
pub fn parse_rate(text: &str) -> Result<Bandwidth, UnitError> {
    let (number, unit) = split(text)?;
    let per_s = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps"));
    let factor: f64 = match per_s {
        _ if unit.is_empty() => {
            return Err(UnitError::MissingUnit { text: text.to_owned(), expected: RATE_EXAMPLE });
        }
        Some("B") => 1.0,
        Some("kB" | "KB") => 1e3,
        Some("MB") => 1e6,
        Some("GB") => 1e9,
        Some("TB") => 1e12,
        Some("KiB") => 1024.0,
        Some("MiB") => 1_048_576.0,
        Some("GiB") => 1_073_741_824.0,
        Some("b") => 1.0 / 8.0,
        Some("kb" | "Kb") => 1e3 / 8.0,
        Some("Mb") => 1e6 / 8.0,
        Some("Gb") => 1e9 / 8.0,
        Some("Tb") => 1e12 / 8.0,
        _ => {
            return Err(UnitError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
                expected: RATE_EXAMPLE,
            });
        }
    };
    if number <= 0.0 {
        return Err(UnitError::NotPositive(text.to_owned()));
    }
    Bandwidth::new(whole(text, number * factor)?).ok_or_else(|| UnitError::TooSlow(text.to_owned()))
}

/// Reads a time: `12 ms`, `3.5us`, `800 ns`, `2 s`, `10min`, `24h`, `2d`.
///
/// # Errors
/// A missing or unknown unit, a negative number, or more than 106 days.
pub fn parse_time(text: &str) -> Result<SimDuration, UnitError> {
    const EXAMPLE: &str = "a time such as `12 ms` or `3.5 us`";
    let (number, unit) = split(text)?;
    let factor: f64 = match unit {
        "ps" => 1.0,
        "ns" => 1e3,
        "us" | "µs" => 1e6,
        "ms" => 1e9,
        "s" => 1e12,
        "m" | "min" => 60e12,
        "h" => 3600e12,
        "d" => 86_400e12,
        "" => {
            return Err(UnitError::MissingUnit { text: text.to_owned(), expected: EXAMPLE });
        }
        _ => {
            return Err(UnitError::UnknownUnit { text: text.to_owned(), unit: unit.to_owned(), expected: EXAMPLE });
        }
    };
    whole(text, number * factor).map(SimDuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes that people know are exact, and others have few digits.
    #[test]
    fn sizes_are_shown_in_few_digits() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 34, "16 GiB"),
            (1_482_911, "1.41 MiB"),
            (262_184 << 10, "256.04 MiB"),
            (11_585, "11.31 KiB"),
            (9_999, "9999 B"),
        ] {
            assert_eq!(Bytes(bytes).about(), shown);
        }
    }

    /// Goal: the contract's spellings, by value, and no others.
    #[test]
    fn sizes_rates_and_times_are_read_as_people_write_them() {
        for (text, bytes) in
            [("8", 8), ("8B", 8), ("64K", 65536), ("1MiB", 1 << 20), ("4G", 4 << 30), ("1 MB", 1_000_000)]
        {
            assert_eq!(parse_size(text), Ok(Bytes(bytes)), "{text}");
        }
        for (text, rate) in [("50 GB/s", 50e9), ("400 Gb/s", 50e9), ("400Gbps", 50e9), ("1 GiB/s", 1_073_741_824.0)] {
            assert_eq!(parse_rate(text).map(Bandwidth::get), Ok(rate as u64), "{text}");
        }
        assert_eq!(parse_time("12 ms"), Ok(SimDuration::from_us(12_000.0)));
        for bad in ["400", "0 GB/s", "-1 GB/s", "GB/s", "5 GB", "nan GB/s", "5 parsecs/s"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        for bad in ["", "x", "8 Q", "-8", "1e9", "99999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    /// Goal: what is no number, and what is too slow, is said to be that.
    #[test]
    fn slips_are_named() {
        let slow = parse_rate("1 b/s").unwrap_err().to_string();
        assert!(slow.contains("less than one byte a second") && slow.contains("bits"), "{slow}");
        assert!(parse_rate("0 b/s").unwrap_err().to_string().contains("greater than zero"));
        let range = parse_size("1..2").unwrap_err().to_string();
        assert!(range.contains("`1..2`") && range.contains("FROM:TO") && !range.contains("start"), "{range}");
        assert!(parse_size("x").unwrap_err().to_string().contains("does not start with a number"));
    }

    /// Goal: a transfer is never faster than its link, however it divides.
    #[test]
    fn transfer_times_round_up() {
        let rate = Bandwidth::new(3).unwrap();
        assert_eq!(rate.time_for(Bytes(1)), SimDuration(333_333_333_334));
        assert_eq!(rate.time_for(Bytes(u64::MAX)), SimDuration(u64::MAX));
    }
}
