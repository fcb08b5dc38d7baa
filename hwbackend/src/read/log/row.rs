//! One row of the table that nccl-tests prints.

use collcast_sim::collective::{Collective, DataType, ReduceOp};

use crate::read::bus::{Rate, Sample};
use crate::read::parsed::{Parsed, TIME_MAX_US, TIME_MIN_US};
use crate::read::sidecar::shortened;

/// One half of a row: out of place or in place.
#[derive(Clone, Copy)]
pub(super) struct Half {
    /// `None` where it was not measured, or rounded to zero.
    pub(super) time_us: Option<f64>,
    pub(super) sample: Option<Sample>,
}

impl Half {
    /// From its time, algbw, busbw and `#wrong`.
    fn read(size: u64, [time, algbw, busbw, _]: [&str; 4], cpu_time: bool) -> Result<Self, String> {
        let rates = number_or_absent(algbw)?.zip(number_or_absent(busbw)?);
        let printed_time = number_or_absent(time)?;
        let of_call = printed_time.filter(|_| !cpu_time);
        if let Some(((printed, _), time_us)) = rates.zip(of_call)
            && let Some(rate) = Rate::written(algbw, printed).contradicted(size, time, time_us)
        {
            return Err(format!(
                "{size} bytes in {} us are {rate:.2} GB/s, not its algbw of {}: times are expected in us, rates in \
                 GB/s",
                shortened(time),
                shortened(algbw)
            ));
        }
        let sample = rates.map(|(algbw_value, busbw_value)| {
            let mut rate = Rate::written(algbw, algbw_value);
            if let Some(time_us) = of_call {
                rate = rate.refined(size, time, time_us);
            }
            Sample { algbw: rate, busbw: Rate::written(busbw, busbw_value) }
        });
        let time_us = if cpu_time {
            // The printed time is the host's; the rate is still the operation's.
            rates.and_then(|(rate, _)| (rate > 0.0).then(|| size as f64 / rate / 1e3))
        } else {
            printed_time
        };
        if time_us.is_some_and(|time| time > TIME_MAX_US) {
            return Err(format!("its time {time} us is beyond 100 days"));
        }
        Ok(Self { time_us: time_us.filter(|&time| time >= TIME_MIN_US && size > 0), sample })
    }
}

pub(super) struct LogRow {
    pub(super) line: u64,
    pub(super) size: u64,
    count: Option<u64>,
    pub(super) dtype: Option<DataType>,
    pub(super) op: Option<ReduceOp>,
    pub(super) root: Option<u32>,
    pub(super) halves: [Half; 2],
}

impl LogRow {
    /// The row of line `number`; what is not known of it is noted in `out`.
    pub(super) fn read(number: u64, tokens: &[&str], fields: &Fields<'_>, out: &mut Parsed) -> Result<Self, String> {
        let whole = |text: &str, what: &str| {
            text.parse::<u64>().map_err(|_| format!("its {what} is not a whole number below 2^64"))
        };
        let size = whole(tokens.first().unwrap_or(&""), "size in bytes")?;
        let count = fields.count.map(|count| whole(count, "count of elements")).transpose()?;
        let mut row = Self {
            line: number,
            size,
            count,
            dtype: None,
            op: None,
            root: None,
            halves: [Half { time_us: None, sample: None }; 2],
        };
        if let Some(name) = fields.dtype {
            row.dtype = name.parse().ok();
            if row.dtype.is_none() {
                out.note_once(Some(number), format!("element type `{name}` is not known; left open"));
            }
        }
        if let Some(name) = fields.op.filter(|name| *name != "none") {
            row.op = name.parse().ok();
            if row.op.is_none() {
                out.note_once(Some(number), format!("reduction `{name}` is not known; left open"));
            }
        }
        row.root = fields.root.and_then(|root| root.parse().ok());
        for (half, cells) in row.halves.iter_mut().zip(fields.halves) {
            *half = Half::read(size, cells, fields.cpu_time)?;
        }
        if fields.cpu_time {
            out.note_once(Some(number), "the time column is CPU time (-C); times are derived from algbw".to_owned());
        }
        Ok(row)
    }

    /// Why its size is not that of its elements. The count is that of one rank where the size is of all.
    pub(super) fn misfit(&self, collective: Collective, ranks: u32) -> Option<String> {
        let (dtype, count) = (self.dtype?, self.count?);
        let parts = if collective.size_is_total() { ranks } else { 1 };
        let bytes = [dtype.size(), u64::from(parts)].into_iter().try_fold(count, u64::checked_mul);
        let of_all = if parts > 1 { format!(" x {parts} ranks") } else { String::new() };
        (bytes != Some(self.size)).then(|| {
            format!(
                "a row of {} bytes, but {count} elements x {} bytes ({dtype}){of_all} are {}; left out",
                self.size,
                dtype.size(),
                bytes.map_or("more than 2^64".to_owned(), |bytes| bytes.to_string()),
            )
        })
    }
}

/// The texts of one row.
pub(super) struct Fields<'a> {
    count: Option<&'a str>,
    dtype: Option<&'a str>,
    op: Option<&'a str>,
    root: Option<&'a str>,
    /// Time, algbw, busbw and `#wrong` of each half.
    pub(super) halves: [[&'a str; 4]; 2],
    pub(super) counts_wrong: bool,
    cpu_time: bool,
}

impl<'a> Fields<'a> {
    fn new() -> Self {
        Self {
            count: None,
            dtype: None,
            op: None,
            root: None,
            halves: [["N/A"; 4]; 2],
            counts_wrong: false,
            cpu_time: false,
        }
    }
}

/// The names above a table, if they are those of both halves or of one; words around them and the timestamp that `-S` puts last
/// are no columns of ours.
pub(super) fn columns(text: &str) -> Option<Vec<String>> {
    let plain = |name: &str| name.trim_start_matches('#').split('(').next().unwrap_or_default().to_lowercase();
    let names = text.split_whitespace().take(64).map(plain);
    let is_ours = |name: &String| !matches!(name.as_str(), "timestamp" | "|" | "out-of-place" | "in-place");
    let names: Vec<String> = names.filter(is_ours).collect();
    (1..=2).contains(&names.iter().filter(|name| is_time(name)).count()).then_some(names)
}

pub(super) fn is_time(name: &str) -> bool {
    matches!(name, "time" | "cputime")
}

/// By the names above the table; `None` if these do not fit the row.
pub(super) fn by_columns<'a>(columns: &[String], tokens: &[&'a str]) -> Option<Fields<'a>> {
    if columns.len() != tokens.len() {
        return None;
    }
    let mut fields = Fields::new();
    let mut half: Option<usize> = None;
    for (name, token) in columns.iter().zip(tokens) {
        match name.as_str() {
            "count" => fields.count = Some(token),
            "type" => fields.dtype = Some(token),
            "redop" => fields.op = Some(token),
            "root" => fields.root = Some(token),
            name if is_time(name) => {
                let next = half.map_or(0, |half| half + 1);
                fields.cpu_time |= name == "cputime";
                fields.halves.get_mut(next)?[0] = token;
                half = Some(next);
            }
            "algbw" => fields.halves[half?][1] = token,
            "busbw" => fields.halves[half?][2] = token,
            "wrong" => {
                fields.halves[half?][3] = token;
                fields.counts_wrong = true;
            }
            "error" => fields.halves[half?][3] = token,
            _ => {}
        }
    }
    Some(fields)
}

/// By the row's own shape, where the names above it were lost.
pub(super) fn by_shape<'a>(tokens: &[&'a str]) -> Option<Fields<'a>> {
    let is_name = |token: &&str| {
        token.starts_with(|c: char| c.is_ascii_alphabetic())
            && !matches!(token.to_lowercase().as_str(), "n/a" | "nan" | "inf")
    };
    let mut fields = Fields::new();
    let mut at = 1;
    if tokens.get(2).is_some_and(is_name) {
        (fields.count, fields.dtype) = (Some(tokens[1]), Some(tokens[2]));
        at = 3;
        if tokens.get(3).is_some_and(is_name) {
            fields.op = Some(tokens[3]);
            at = 4;
        }
        if matches!(tokens.len() - at, 7 | 9) {
            fields.root = Some(tokens[at]);
            at += 1;
        }
    }
    let rest = tokens.get(at..)?;
    let width = match rest.len() {
        6 => 3,
        8 => 4,
        _ => return None,
    };
    for (half, cells) in fields.halves.iter_mut().zip(rest.chunks_exact(width)) {
        half[..width].copy_from_slice(cells);
    }
    // Old versions print an error such as 1e-07 in the place of the count, which has an exponent from 1e+06 on only.
    let is_error = |text: &str| text.contains('e') && text.parse::<f64>().is_ok_and(|error| error < 1e6);
    let [first, second] = fields.halves.map(|half| half[3]);
    let is_absent = |text: &str| text.eq_ignore_ascii_case("n/a");
    let errors = is_error(first) && (is_error(second) || is_absent(second)) || is_absent(first) && is_error(second);
    fields.counts_wrong = !errors;
    Some(fields)
}

/// Whether a line begins with a size and a count; also where these cannot be meant, if it has the other cells of a row.
pub(super) fn looks_like_row(tokens: &[&str]) -> bool {
    let [size, count, rest @ ..] = tokens else { return false };
    let is_whole = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let is_number = |text: &str| text.starts_with(['-', '+', '.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    let begins = is_whole(size) && count.starts_with(|c: char| c.is_ascii_digit()) && !count.contains([':', '-']);
    let of_known_type = rest.first().is_some_and(|name| name.parse::<DataType>().is_ok());
    begins || rest.len() >= 6 && (of_known_type && (is_number(size) || is_number(count)))
}

/// Without the timestamp that `-S` puts last.
pub(super) fn without_timestamp<'a, 'b>(tokens: &'a [&'b str]) -> &'a [&'b str] {
    match tokens {
        [rest @ .., date, clock] if date.len() == 10 && date.contains('-') && clock.contains(':') => rest,
        [rest @ .., stamp] if stamp.contains(':') => rest,
        _ => tokens,
    }
}

/// A cell: a number, or absent (`N/A`, nan).
fn number_or_absent(text: &str) -> Result<Option<f64>, String> {
    let lower = text.to_lowercase();
    if matches!(lower.as_str(), "n/a" | "nan" | "-nan" | "inf" | "-") {
        return Ok(None);
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(Some(value)),
        _ => Err(format!("`{}` is not a number", shortened(text))),
    }
}
