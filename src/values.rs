//! Values as people write them: sizes, ranges of sizes and percentages.

use std::str::FromStr;

use collcast_sim::units::{UnitError, parse_size, parse_time};

use crate::error::Error;

/// A number as a message names it: one of very many digits by its power of ten.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        1e-15..1e15 | 0.0 => value.to_string(),
        _ => format!("{value:e}"),
    }
}

/// What sizes look like.
const A_SIZE: &str = "sizes look like 8, 64K, 1MiB or 4G";
/// What several of them look like.
const SIZES: &str = "sizes look like 8, 64K, 1MiB or 4G; a list is 1M,4M, and a range 1M:1G:2";
/// What a time looks like.
const A_TIME: &str = "expected a time such as 500ms, 90s, 10min, 24h or 2d";
/// What ranges of sizes look like.
const A_RANGE: &str = "ranges are FROM:TO:FACTOR, such as 8:8GiB:2";
/// The factor between the sizes of a range that names none.
const FACTOR: u64 = 2;

/// Sizes, as a list of sizes and ranges names them: `64M`, `1K,1M`, `8:8GiB:2`.
///
/// ```
/// let sizes: collcast::values::Sizes = "1K,8:64:2".parse()?;
/// assert_eq!(sizes.bytes, [1024, 8, 16, 32, 64]);
/// # Ok::<(), collcast::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// In the order named, in bytes.
    pub bytes: Vec<u64>,
    /// What a reader may have meant otherwise.
    pub notes: Vec<String>,
}

/// The numbers of a list of numbers and ranges, whose numbers `one` reads; ranges go by factors of two or by their own.
fn listed(text: &str, one: &mut dyn FnMut(&str) -> Result<u64, Error>) -> Result<Vec<u64>, Error> {
    let mut all = Vec::new();
    for item in text.split(',') {
        let ends = item.replace("..", ":");
        let (from, to, factor) = match ends.split(':').collect::<Vec<_>>().as_slice() {
            [single] => {
                all.push(one(single)?);
                continue;
            }
            &[from, to] => (from, to, None),
            &[from, to, factor] => (from, to, Some(factor)),
            _ => return Err(Error::usage(format!("`{item}` is not a number or a range"), A_RANGE)),
        };
        let factor = match factor {
            None => FACTOR,
            Some(f) => f.trim().parse::<u64>().ok().filter(|&f| f >= 2).ok_or_else(|| {
                Error::usage(format!("the factor `{f}` of the range `{item}` must be a whole number from 2"), A_RANGE)
            })?,
        };
        let (from, to) = (one(from)?, one(to)?);
        if from == 0 || from > to {
            return Err(Error::usage(
                format!("the range `{item}` is empty"),
                "ranges go from a number above 0 up to a larger one",
            ));
        }
        let steps = std::iter::successors(Some(from), |at| at.checked_mul(factor));
        all.extend(steps.take_while(|&at| at <= to));
    }
    Ok(all)
}

impl FromStr for Sizes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut notes = Vec::new();
        let bytes = listed(text, &mut |one| {
            let (bytes, note) = size(one).map_err(|error| match error {
                Error::Usage { message, .. } => Error::usage(message, SIZES),
                other => other,
            })?;
            notes.extend(note);
            Ok(bytes)
        });
        match bytes {
            Ok(bytes) => Ok(Self { bytes, notes }),
            Err(error) => Err(noted(error, &notes)),
        }
    }
}

/// Counts, as a list of counts and ranges names them: `8`, `512,1024`, `256:4096`, `256..4096`.
///
/// # Errors
/// What is no count, or an empty range.
///
/// ```
/// assert_eq!(collcast::values::counts("8,256..1024")?, [8, 256, 512, 1024]);
/// # Ok::<(), collcast::Error>(())
/// ```
pub fn counts(text: &str) -> Result<Vec<u64>, Error> {
    for (from, to) in text.split(',').filter_map(|part| part.split_once("..")) {
        let ends = [from, to].map(|end| end.trim().parse::<u64>().ok().filter(|&count| count > 0));
        if let [Some(least), Some(most)] = ends
            && most >= least
            && !(most.is_multiple_of(least) && (most / least).is_power_of_two())
        {
            let message = format!("doubling {least} does not reach {most}");
            return Err(Error::usage(message, format!("name each count, as in {least},{most}")));
        }
    }
    listed(text, &mut |one| {
        one.trim().parse().map_err(|_| {
            Error::usage(format!("`{one}` is no count"), "counts look like 1024, 512,2048 or 256..4096 (powers of two)")
        })
    })
}

/// An error of a list with what a reader may have meant otherwise in it, which may be the mistake.
fn noted(error: Error, notes: &[String]) -> Error {
    match error {
        Error::Usage { message, hint } => {
            let parts: Vec<String> = hint.into_iter().chain(notes.iter().cloned()).collect();
            Error::Usage { message, hint: (!parts.is_empty()).then(|| parts.join("; ")) }
        }
        other => other,
    }
}

/// A size in bytes, and a note where its unit is decimal: nccl-tests' units are binary.
///
/// # Errors
/// What is not a size.
pub fn size(text: &str) -> Result<(u64, Option<String>), Error> {
    let bytes = parse_size(text).map_err(|e| Error::usage(e.to_string(), A_SIZE))?.0;
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim();
    let decimal = matches!(unit, "kB" | "KB" | "MB" | "GB" | "TB");
    let note = || format!("{text} is decimal: {bytes} bytes; nccl-tests' {} is binary", unit.trim_end_matches('B'));
    Ok((bytes, decimal.then(note)))
}

/// A time in seconds; `what` it is, for messages, such as `--overlap-prefill`.
///
/// # Errors
/// What is no time.
pub fn time(what: &str, text: &str) -> Result<f64, Error> {
    let read =
        parse_time(text).map_err(|e| Error::usage(format!("{what}: {e}"), "times look like 350ms, 1.2s or 10min"))?;
    Ok(read.as_us() * 1e-6)
}

/// A time in seconds, where a number without a unit is in units of `bare` seconds.
///
/// # Errors
/// What is expected.
pub fn time_or_bare(text: &str, bare: f64) -> Result<f64, String> {
    if let Ok(number) = text.trim().parse::<f64>() {
        return if number.is_finite() && number >= 0.0 { Ok(number * bare) } else { Err(A_TIME.to_owned()) };
    }
    parse_time(text).map(|time| time.as_us() * 1e-6).map_err(|error| match error {
        UnitError::TooLarge(_) => "expected at most 106 days".to_owned(),
        _ => A_TIME.to_owned(),
    })
}

/// A percentage as a fraction; the `%` may be left out. `what` it is, for messages, such as `--tolerance`.
///
/// # Errors
/// What is no number, or below 0.
pub fn percent(what: &str, text: &str) -> Result<f64, Error> {
    let number = text.trim().trim_end_matches('%').trim();
    if !text.contains('%')
        && let Ok(fraction) = number.parse::<f64>()
        && fraction > 0.0
        && fraction < 1.0
    {
        return Err(Error::usage(
            format!("{what}: `{text}` may be a share or a percentage"),
            format!("write `{what} {}%` or `{what} {fraction}%`", (fraction * 1e8).round() / 1e6),
        ));
    }
    number.parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0).map(|p| p / 100.0).ok_or_else(|| {
        Error::usage(format!("{what}: `{text}` is not a percentage"), format!("write it as `{what} 20%`"))
    })
}

/// Names that a sentence has of many.
pub const NAMED: usize = 4;

/// `a, b and c`; of more than [`NAMED`] the first, and how many more there are.
pub fn few<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    match (names.len(), shown.split_last()) {
        (0, _) | (_, None) => String::new(),
        (1, Some((one, _))) => (*one).to_owned(),
        (2..=NAMED, Some((last, rest))) => format!("{} and {last}", rest.join(", ")),
        (all, _) => format!("{} and {} more", shown.join(", "), all - NAMED),
    }
}

/// `1 machine`, or `2 machines`.
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Numbers in order, with runs in short: `0-3, 8`.
pub(crate) fn in_runs(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |&(begin, end): &(u32, u32)| if begin == end { begin.to_string() } else { format!("{begin}-{end}") };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: that a unit is decimal is told with the list, and with why the list is refused.
    #[test]
    fn decimal_units_are_told_of_lists_that_are_refused_too() {
        let note = "1MB is decimal: 1000000 bytes; nccl-tests' M is binary";
        assert_eq!("8,1MB".parse::<Sizes>().unwrap().notes, [note]);
        for (list, wrong) in [("1MB,2X", A_SIZE), ("1MiB:1MB", "ranges go from"), ("1MB,1:2:3:4", A_RANGE)] {
            let error = list.parse::<Sizes>().unwrap_err().render();
            assert!(error.contains(wrong) && error.contains(note), "{error}");
        }
        assert!(!"8,2X".parse::<Sizes>().unwrap_err().render().contains("decimal"));
    }
}
