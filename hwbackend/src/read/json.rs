//! JSON: what nccl-tests `-J` writes, and the rows of Collcast's own results.
//!
//! The file of nccl-tests holds the whole environment, secrets included; only variables of
//! NCCL and the network are kept.

use std::collections::BTreeSet;

use collcast_sim::collective::{Collective, Launch};
use collcast_sim::measurement::{Measurement, Origin, Settings};
use collcast_sim::units::{Bytes, SimDuration};
use serde_json::Value;

use super::error::ReadError;
use super::parsed::{EXPECTED_WRONG, Input, Parsed, TIME_MAX_US, TIME_MIN_US, wrong_values};
use super::program::collective_of_program;
use super::settings::{Env, from_env, is_relevant, plain_version, version_of_code};
use super::sidecar::{message, shortened};

/// Reads the text of one file.
pub(super) fn parse(input: &Input<'_>) -> Result<Parsed, ReadError> {
    let value: Value = serde_json::from_str(input.text).map_err(|error| ReadError::Syntax {
        path: input.path.to_owned(),
        format: "JSON",
        line: error.line() as u64,
        column: error.column() as u64,
        message: message(without_place(&error.to_string())),
    })?;
    let schema = value.get("schema").and_then(Value::as_str).unwrap_or("");
    if let Some(kind) = schema.strip_prefix("collcast/") {
        let measured = matches!(kind.split('/').next(), Some("bench" | "probe" | "measurements"));
        if !measured && !input.options.allow_predicted {
            return Err(ReadError::Predicted {
                path: input.path.to_owned(),
                line: line_of(input.text, "\"schema\"", 0),
            });
        }
        return own_rows(input, &value);
    }
    nccl_tests(input, &value)
}

/// The text of nccl-tests' JSON with those variables alone of its environment that are read; `None` where it has none.
pub fn without_secrets(text: &str) -> Option<String> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut value: Value = serde_json::from_str(text).ok()?;
    match value.get_mut("env")? {
        Value::Array(items) => items.retain(|item| {
            let name = item.as_str().and_then(|item| item.split_once('='));
            name.is_some_and(|(name, _)| is_relevant(name))
        }),
        Value::Object(map) => map.retain(|name, _| is_relevant(name)),
        other => *other = Value::Null,
    }
    serde_json::to_string_pretty(&value).ok()
}

fn nccl_tests(input: &Input<'_>, value: &Value) -> Result<Parsed, ReadError> {
    let mut out = Parsed::default();
    let Some(results) = value.get("results").and_then(Value::as_array) else {
        out.reason = Some(format!("JSON without the `results` of nccl-tests -J; {}", outline(value)));
        return Ok(out);
    };
    let run = match JsonRun::new(input, value, &mut out) {
        Ok(run) => run,
        Err(reason) => {
            out.reason = Some(reason);
            return Ok(out);
        }
    };
    let lines = lines_of(input.text, "\"size\"", "\"results\"", results.len());
    for (index, result) in results.iter().enumerate() {
        run.rows(input, lines.get(index).copied().unwrap_or(0), result, &mut out)?;
    }
    out_of_bounds(input, value, &mut out)?;
    if out.rows.is_empty() {
        out.reason = Some(match out.unusable {
            0 => "its `results` are empty".to_owned(),
            count => format!("all {count} times are zero or absent"),
        });
    }
    Ok(out)
}

/// What a JSON text is, for one that is not understood.
fn outline(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let keys: Vec<String> = map.keys().take(6).map(|key| shortened(key)).collect();
            format!("its keys: {}", keys.join(", "))
        }
        Value::Array(items) => format!("it is a list of {}", items.len()),
        _ => "it is a single value".to_owned(),
    }
}

/// What all rows of a file share.
struct JsonRun {
    collective: Collective,
    ranks: u32,
    hosts: Option<u32>,
    launch: Option<Launch>,
    settings: Settings,
}

impl JsonRun {
    /// From what stands beside the results; says what is missing.
    fn new(input: &Input<'_>, value: &Value, out: &mut Parsed) -> Result<Self, String> {
        let config = value.get("config").unwrap_or(&Value::Null);
        let devices = config
            .get("devices")
            .or_else(|| value.get("devices"))
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        let args = value.get("args").and_then(Value::as_array);
        let program = args.into_iter().flatten().filter_map(Value::as_str).find_map(collective_of_program);
        let (collective, _) = input.collective(program)?;
        let from_devices = devices
            .iter()
            .filter_map(|device| count(device.get("rank")?))
            .max()
            .and_then(|last| u32::try_from(last).ok()?.checked_add(1));
        let Some(ranks) = from_devices.or(input.sidecar.ranks) else {
            return Err(format!(
                "no `devices`, so no number of ranks; say `ranks = 16` in {}.toml beside the file",
                input.stem
            ));
        };
        let hosts: BTreeSet<&str> = devices.iter().filter_map(|device| device.get("hostname")?.as_str()).collect();
        let host_names = hosts.iter().map(|&host| host.to_owned()).collect();
        let hosts = (!hosts.is_empty() && devices.len() == ranks as usize)
            .then(|| u32::try_from(hosts.len()).ok())
            .flatten()
            .or(input.sidecar.nodes);

        let mut env = input.sidecar.env.clone();
        env.extend(environment(value.get("env").unwrap_or(&Value::Null)));
        let mut notes = Vec::new();
        let mut settings = from_env(&env, collective, &mut notes);
        for text in notes {
            out.note_once(None, text);
        }
        settings.nccl = match value.get("nccl_version") {
            Some(Value::String(text)) => match text.parse() {
                Ok(code) => version_of_code(code),
                Err(_) => plain_version(text),
            },
            Some(code) => count(code).and_then(|code| u32::try_from(code).ok()).and_then(version_of_code),
            None => None,
        }
        .or_else(|| input.sidecar.nccl.clone());
        env.retain(|name, _| is_relevant(name));
        out.env = env;
        out.nccl.clone_from(&settings.nccl);
        let launch = launch(config).or(input.sidecar.launch);
        // nccl-tests takes its buffers from `ncclMemAlloc`.
        settings.registered = launch == Some(Launch::Graph);
        settings.host_names = host_names;

        Ok(Self { collective, ranks, hosts, launch, settings })
    }

    /// The measurements of one result: out of place and in place.
    fn rows(&self, input: &Input<'_>, line: u64, result: &Value, out: &mut Parsed) -> Result<(), ReadError> {
        let bad = |column: &str, given: &Value, expected: &'static str| ReadError::BadValue {
            path: input.path.to_owned(),
            line,
            column: column.to_owned(),
            given: shortened(&given.to_string()),
            problem: "cannot be used".to_owned(),
            expected,
        };
        let size = result.get("size").unwrap_or(&Value::Null);
        let size = count(size).ok_or_else(|| bad("size", size, "a number of bytes below 2^64"))?;
        let text = |key: &str| result.get(key).and_then(Value::as_str);
        let root = result.get("root").and_then(|root| match root {
            Value::String(text) => text.parse().ok(),
            root => count(root).and_then(|root| u32::try_from(root).ok()),
        });
        for (key, in_place) in [("out_of_place", false), ("in_place", true)] {
            let Some(half) = result.get(key) else {
                out.unusable += 1;
                continue;
            };
            let wrong = half.get("nwrong").unwrap_or(&Value::Null);
            out.wrong(line, wrong_count(wrong).ok_or_else(|| bad("nwrong", wrong, EXPECTED_WRONG))?);
            let time_us = time_of_half(size, half, &bad)?;
            let Some(time_us) = time_us.filter(|&time| time >= TIME_MIN_US && size > 0) else {
                out.unusable += 1;
                continue;
            };
            if time_us > TIME_MAX_US {
                return Err(bad("time", half, "less than 100 days"));
            }
            if out.rows.len() >= input.rows_left {
                return Err(input.too_many_rows());
            }
            out.rows.push(Measurement {
                run: input.stem.to_owned(),
                collective: self.collective,
                ranks: self.ranks,
                hosts: self.hosts,
                launch: self.launch,
                timing: input.sidecar.timing,
                dtype: text("type").and_then(|name| name.parse().ok()),
                op: text("redop").and_then(|name| name.parse().ok()).filter(|_| self.collective.reduces()),
                root: root.filter(|_| self.collective.rooted()),
                in_place,
                size: Bytes(size),
                time: SimDuration::from_us(time_us),
                settings: self.settings.clone(),
                chosen: None,
                origin: Origin { file: input.path.display().to_string(), line },
            });
        }
        Ok(())
    }
}

/// The time of one half in microseconds; with -C there is only the host's time, and the rate is the operation's.
fn time_of_half(
    size: u64,
    half: &Value,
    bad: &impl Fn(&str, &Value, &'static str) -> ReadError,
) -> Result<Option<f64>, ReadError> {
    match half.get("time") {
        Some(time) => match number(time) {
            Number::Value(time) => Ok(Some(time)),
            Number::Absent => Ok(None),
            Number::Bad => Err(bad("time", time, "microseconds, or \"nan\"")),
        },
        None => match half.get("alg_bw").map(number) {
            Some(Number::Value(rate)) if rate > 0.0 => Ok(Some(size as f64 / rate / 1e3)),
            _ => Ok(None),
        },
    }
}

/// `{"count": 0, "okay": "true"}`: what the run as a whole found wrong.
fn out_of_bounds(input: &Input<'_>, value: &Value, out: &mut Parsed) -> Result<(), ReadError> {
    let Some(found) = value.get("out_of_bounds").filter(|found| !found.is_null()) else {
        out.unfinished(input.text.lines().count() as u64);
        return Ok(());
    };
    let line = line_of(input.text, "\"out_of_bounds\"", 0);
    let okay = match found.get("okay") {
        None => Some(true),
        Some(Value::Bool(okay)) => Some(*okay),
        Some(okay) => okay.as_str().and_then(|okay| okay.parse().ok()),
    };
    let count = found.get("count").and_then(wrong_count).flatten();
    let (Some(count), Some(okay)) = (count, okay) else {
        return Err(ReadError::BadValue {
            path: input.path.to_owned(),
            line,
            column: "out_of_bounds".to_owned(),
            given: shortened(&found.to_string()),
            problem: "cannot be used".to_owned(),
            expected: "a count, and \"true\" or \"false\" in `okay`",
        });
    };
    out.out_of_bounds(line, count, !okay);
    Ok(())
}

/// Rows of our own results, by way of the columns that CSV has.
fn own_rows(input: &Input<'_>, value: &Value) -> Result<Parsed, ReadError> {
    let Some(rows) = value.get("rows").and_then(Value::as_array) else {
        return Ok(Parsed { reason: Some("a result of Collcast without `rows`".to_owned()), ..Parsed::default() });
    };
    const COLUMNS: [&str; 24] = [
        "collective",
        "ranks",
        "size_bytes",
        "time_us",
        "algbw_gbps",
        "busbw_gbps",
        "run",
        "nodes",
        "algorithm",
        "protocol",
        "launch",
        "channels",
        "chosen_by",
        "channels_asked",
        "buffsize",
        "nthreads",
        "p2p",
        "in_place",
        "dtype",
        "op",
        "root",
        "registered",
        "nccl_version",
        "wrong",
    ];
    let mut writer = csv::Writer::from_writer(Vec::new());
    let failed = |message: String| ReadError::BadRow { path: input.path.to_owned(), line: 0, message };
    writer.write_record(COLUMNS).map_err(|error| failed(error.to_string()))?;
    for row in rows {
        let cells = COLUMNS.map(|column| match row.get(column) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.replace(['\n', '\r'], " "),
            Some(other) => other.to_string(),
        });
        writer.write_record(&cells).map_err(|error| failed(error.to_string()))?;
    }
    let bytes = writer.into_inner().map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = lines_of(input.text, "\"collective\"", "\"rows\"", rows.len());
    let place = |row: u64| {
        let index = usize::try_from(row.saturating_sub(2)).unwrap_or(usize::MAX);
        lines.get(index).copied().unwrap_or(0)
    };
    let (mut said, mut sidecar) = (Parsed::default(), input.sidecar.clone());
    let remarks = value.get("assumptions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for remark in remarks.iter().filter_map(Value::as_str) {
        said.remark(remark, &mut sidecar.env);
    }
    let mut parsed =
        super::table::parse(&Input { text: &text, sidecar: &sidecar, ..*input }).map_err(|error| match error {
            ReadError::BadValue { path, line, column, given, problem, expected } => {
                ReadError::BadValue { path, line: place(line), column, given, problem, expected }
            }
            other => other,
        })?;
    (parsed.on_cpu, parsed.unsaid) = (said.on_cpu, said.unsaid);
    for row in &mut parsed.rows {
        row.origin.line = place(row.origin.line);
    }
    for note in &mut parsed.notes {
        note.line = note.line.map(place);
    }
    Ok(parsed)
}

enum Number {
    Value(f64),
    Absent,
    Bad,
}

fn number(value: &Value) -> Number {
    match value {
        Value::Null => Number::Absent,
        Value::String(text) if matches!(text.as_str(), "nan" | "-nan" | "N/A" | "inf") => Number::Absent,
        value => {
            let number = match value {
                Value::String(text) => text.parse().ok(),
                value => value.as_f64(),
            };
            match number {
                Some(number) if number.is_finite() && number >= 0.0 => Number::Value(number),
                _ => Number::Bad,
            }
        }
    }
}

fn count(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_u64(),
    }
}

/// See [`wrong_values`]; whatever the form of the number.
fn wrong_count(value: &Value) -> Option<Option<f64>> {
    match value {
        Value::Null => Some(None),
        Value::String(text) => wrong_values(text.trim()),
        value => wrong_values(&value.as_f64()?.to_string()),
    }
}

fn launch(config: &Value) -> Option<Launch> {
    let number = |key: &str| config.get(key).and_then(count);
    if number("graph").is_some_and(|graph| graph > 0) {
        return Some(Launch::Graph);
    }
    match (number("nthreads")?, number("ngpus")?) {
        (_, gpus) if gpus > 1 => Some(Launch::SingleThread),
        (threads, _) if threads > 1 => Some(Launch::Threads),
        _ => Some(Launch::Processes),
    }
}

/// A list of `NAME=value`, or an object.
fn environment(value: &Value) -> Env {
    match value {
        Value::Array(items) => items
            .iter()
            .filter_map(|item| item.as_str()?.split_once('='))
            .filter(|(name, _)| is_relevant(name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        Value::Object(map) => map
            .iter()
            .filter(|(name, _)| is_relevant(name))
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect(),
        _ => Env::new(),
    }
}

/// serde_json's message without the place that it ends with.
fn without_place(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(text, _)| text).to_owned()
}

fn line_of(text: &str, needle: &str, nth: usize) -> u64 {
    text.match_indices(needle).nth(nth).map_or(0, |(at, _)| text[..at].matches('\n').count() as u64 + 1)
}

/// The lines of the first `count` places of `needle` after `start`: the parsed value has none.
fn lines_of(text: &str, needle: &str, start: &str, count: usize) -> Vec<u64> {
    let from = text.find(start).unwrap_or(0);
    let mut line = text[..from].matches('\n').count() as u64 + 1;
    let mut last = from;
    text[from..]
        .match_indices(needle)
        .take(count)
        .map(|(at, _)| {
            line += text[last..from + at].matches('\n').count() as u64;
            last = from + at;
            line
        })
        .collect()
}
