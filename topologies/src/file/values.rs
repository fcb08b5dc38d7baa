//! Single values of a topology file, checked with their place at hand.

use std::ops::Range;

use collcast_sim::units::{Bandwidth, SimDuration, parse_rate, parse_time};

use crate::cluster::MAX_GPUS;
use crate::error::{Source, TopologiesError, quote};
use crate::hostlist;
use crate::raw::{At, RawList, RawRate, Scalar};

/// Most GPUs, NICs or NVLinks of one host: far above any machine, and a bound on memory.
pub const MAX_PER_HOST: u32 = 1024;
/// Most sockets of a host, and most PCIe switches behind one.
pub const MAX_SOCKETS: u32 = 64;

/// Phase two: one file being checked.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) source: Source<'a>,
    pub(super) depth: u32,
}

impl Reader<'_> {
    pub(super) fn value(&self, span: &Range<usize>, message: String, label: &str, hint: &str) -> TopologiesError {
        TopologiesError::Value(self.source.at(span.clone(), message, label, hint))
    }

    pub(super) fn contradiction(
        &self,
        span: &Range<usize>,
        message: String,
        label: &str,
        hint: &str,
    ) -> TopologiesError {
        TopologiesError::Contradiction(self.source.at(span.clone(), message, label, hint))
    }

    /// A whole number within bounds.
    pub(super) fn number(&self, what: &str, number: &At<i64>, min: u32, max: u32) -> Result<u32, TopologiesError> {
        match u32::try_from(number.value) {
            Ok(value) if (min..=max).contains(&value) => Ok(value),
            Ok(value) if value > max => Err(TopologiesError::TooLarge(self.source.at(
                number.span.clone(),
                format!("{what} is {value}; at most {max} is supported"),
                format!("expected a whole number from {min} to {max}"),
                "",
            ))),
            _ => Err(self.value(
                &number.span,
                format!("{what} is {}", number.value),
                &format!("expected a whole number from {min} to {max}"),
                if min > 0 { "leave the table out if there is none" } else { "" },
            )),
        }
    }

    pub(super) fn optional_number(
        &self,
        what: &str,
        number: Option<&At<i64>>,
        min: u32,
        max: u32,
    ) -> Result<Option<u32>, TopologiesError> {
        number.map(|n| self.number(what, n, min, max)).transpose()
    }

    pub(super) fn rate(&self, what: &str, rate: &At<RawRate>) -> Result<Bandwidth, TopologiesError> {
        const EXPECTED: &str = "expected a string such as \"50 GB/s\" or \"400 Gb/s\"";
        let text = match &rate.value.0 {
            Scalar::Text(text) => text,
            other => {
                return Err(self.value(
                    &rate.span,
                    format!("{what} has no unit: `{other}`"),
                    EXPECTED,
                    &unit_hint(&other.to_string()),
                ));
            }
        };
        parse_rate(text).map_err(|error| {
            self.value(&rate.span, format!("{what} cannot be read: {error}"), EXPECTED, &unit_hint(text))
        })
    }

    /// A time with its unit.
    pub(super) fn time(&self, what: &str, time: &At<String>) -> Result<SimDuration, TopologiesError> {
        parse_time(&time.value).map_err(|error| {
            self.value(&time.span, format!("{what} cannot be read: {error}"), "expected a string such as \"35 us\"", "")
        })
    }

    /// A name out of a list.
    pub(super) fn choice<T: Copy>(
        &self,
        what: &str,
        given: &At<String>,
        known: &[(T, &str)],
    ) -> Result<T, TopologiesError> {
        known.iter().find(|(_, name)| *name == given.value).map(|(value, _)| *value).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(_, name)| *name).collect();
            self.source.unknown_name(given.span.clone(), what, &given.value, &names)
        })
    }

    /// The names of a host list, which NICs have too.
    pub(super) fn expand(&self, list: &At<RawList>, example: &str, hint: &str) -> Result<Vec<String>, TopologiesError> {
        hostlist::expand(&list.value.0).map_err(|error| {
            let message = format!("`{}` is not a host list: {error}", quote(&list.value.0));
            self.value(&list.span, message, &format!("expected a list such as \"{example}\""), hint)
        })
    }

    /// The first line of a table, so that the carets do not cover all of it.
    pub(super) fn heading(&self, span: &Range<usize>) -> Range<usize> {
        let text = self.source.text.get(span.start..).unwrap_or_default();
        let line = text.lines().next().map_or(0, str::len);
        span.start..span.start + line
    }
}

#[allow(clippy::cast_possible_truncation)]
pub(super) const MAX_GPUS_U32: u32 = MAX_GPUS as u32;

pub(super) fn text_of(text: Option<&At<String>>) -> String {
    text.map(|t| t.value.clone()).unwrap_or_default()
}

/// Bits or bytes: the usual slip, with the value at hand.
fn unit_hint(text: &str) -> String {
    let number: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 => {
            format!("data sheets give bits; {number} Gb/s is {} GB/s", value / 8.0)
        }
        _ => "a rate is one direction and more than zero; a dead port is state = \"down\"".to_owned(),
    }
}
