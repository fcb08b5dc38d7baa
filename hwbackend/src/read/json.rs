//! JSON: what nccl-tests `-J` writes, and the rows of Collcast's own results.
//!
//! The file of nccl-tests holds the whole environment, secrets included; only variables of
//! NCCL and the network are kept.

use std::collections::BTreeSet;

use collcast_sim::collective::{Collective, Launch};
use collcast_sim::measurement::{Measurement, Origin, Settings, Timing};
use collcast_sim::units::{Bytes, SimDuration};
use serde_json::Value;

use super::bus::{Rate, Sample, bus_factor_fits, ranks_of_samples};
use super::error::ReadError;
use super::parsed::{EXPECTED_WRONG, Input, Parsed, TIME_MAX_US, TIME_MIN_US, several_communicators, wrong_values};
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
    let run = match JsonRun::new(input, value, results, &mut out) {
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
    let whole = out_of_bounds(input, value, &mut out)? && out.defects.is_empty();
    failures((input.text, whole), value, &mut out);
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
    /// Calls of the timed loop that were asked for; a result says how many there were.
    calls: Option<u32>,
    settings: Settings,
}

impl JsonRun {
    /// From what stands beside the results; says what is missing.
    fn new(input: &Input<'_>, value: &Value, results: &[Value], out: &mut Parsed) -> Result<Self, String> {
        let config = value.get("config").unwrap_or(&Value::Null);
        no_single_calls(config)?;
        let devices = config
            .get("devices")
            .or_else(|| value.get("devices"))
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        let groups = devices.iter().filter_map(|device| number(device, "group")).collect();
        if let Some(problem) = several_communicators(&groups) {
            return Err(problem);
        }
        let models = devices.iter().filter_map(|device| device.get("device_info")?.as_str());
        out.gpus.extend(models.map(|model| shortened(model.trim())));
        let args = value.get("args").and_then(Value::as_array);
        let program = args.into_iter().flatten().filter_map(Value::as_str).find_map(collective_of_program);
        let named = input.collective(program)?;
        let collective = named.0;
        let each = ranks_of_entry(config, devices);
        let last = devices.iter().filter_map(|device| number(device, "rank")).max();
        let Some(listed) = input.sidecar.ranks.or_else(|| last?.checked_add(each)) else {
            return Err(format!(
                "no `devices`, so no number of ranks; say `ranks = 16` in {}.toml beside the file",
                input.stem
            ));
        };
        let ranks = checked_ranks(input, named, listed, results, out)?;
        let hosts: BTreeSet<&str> = devices.iter().filter_map(|device| device.get("hostname")?.as_str()).collect();
        let host_names = hosts.iter().map(|&host| host.to_owned()).collect();
        let all_are_listed = devices.len() as u64 * u64::from(each) == u64::from(ranks);
        let hosts = input
            .sidecar
            .nodes
            .or_else(|| u32::try_from(hosts.len()).ok().filter(|&count| count > 0 && all_are_listed));

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

        Ok(Self { collective, ranks, hosts, launch, calls: number(config, "iterations"), settings })
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
        let root = number(result, "root");
        let calls = number(result, "actual_iterations").or(self.calls).filter(|&calls| calls > 0);
        let loops =
            calls.map(|calls| Timing { calls, ..Timing::default() }).filter(|&loops| loops != Timing::default());
        let timing = input.sidecar.timing.or(loops);
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
                timing,
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

/// Refuses runs of which no time is that of one call alone.
fn no_single_calls(config: &Value) -> Result<(), String> {
    if let Some(together) = number(config, "aggregated_iterations").filter(|&together| together > 1) {
        return Err(format!(
            "its calls were made in groups of {together} (-m {together}), so no time is that of one call; measure without -m"
        ));
    }
    let blocking = config.get("blocking_collectives");
    if blocking.is_some_and(|blocking| truth(blocking) == Some(true) || count(blocking).is_some_and(|way| way > 0)) {
        return Err(
            "its host waited for each call (-z), so times hold more than the call; measure without -z".to_owned()
        );
    }
    Ok(())
}

/// How many ranks one of `devices` stands for: nccl-tests keeps only the first line of each process, so that its ranks are
/// multiples of those of a process.
fn ranks_of_entry(config: &Value, devices: &[Value]) -> u32 {
    let count = |key: &str| number(config, key).filter(|&count| count > 0).unwrap_or(1);
    let of_process = count("nthreads").saturating_mul(count("ngpus"));
    let begins = |device: &Value| number(device, "rank").is_some_and(|rank| rank.is_multiple_of(of_process));
    if devices.iter().all(begins) { of_process } else { 1 }
}

/// The ranks that are listed, unless the rates of the rows are those of another number. `by` says who named the collective.
fn checked_ranks(
    input: &Input<'_>,
    (collective, by): (Collective, &str),
    listed: u32,
    results: &[Value],
    out: &mut Parsed,
) -> Result<u32, String> {
    let halves = results.iter().flat_map(|result| [result.get("out_of_place"), result.get("in_place")]).flatten();
    let samples: Vec<Sample> = halves
        .filter_map(|half| Some(Sample { algbw: rate(half.get("alg_bw")?)?, busbw: rate(half.get("bus_bw")?)? }))
        .collect();
    if bus_factor_fits(collective, listed, &samples) {
        return Ok(listed);
    }
    match ranks_of_samples(collective, &samples) {
        Some((ranks, last)) if ranks == last => {
            out.note(
                None,
                format!("{listed} ranks are named, but bus_bw / alg_bw is that of {ranks}; {ranks} is used"),
            );
            Ok(ranks)
        }
        Some(_) => Err(format!(
            "{listed} ranks are named, but bus_bw / alg_bw is that of another number; say `ranks = N` in {}.toml beside the file",
            input.stem
        )),
        None => {
            out.note(
                None,
                format!(
                    "bus_bw / alg_bw is not that of {collective} ({by}) over {listed} ranks, nor over any other number"
                ),
            );
            Ok(listed)
        }
    }
}

/// A rate as far as its digits tell; `None` where there is none.
fn rate(value: &Value) -> Option<Rate> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite())?;
    Some(Rate::written(&text, rate))
}

/// The time of one half in microseconds; with -C there is only the host's time, and the rate is the operation's.
fn time_of_half(
    size: u64,
    half: &Value,
    bad: &impl Fn(&str, &Value, &'static str) -> ReadError,
) -> Result<Option<f64>, ReadError> {
    match half.get("time") {
        Some(time) => match cell(time) {
            Number::Value(time) => Ok(Some(time)),
            Number::Absent => Ok(None),
            Number::Bad => Err(bad("time", time, "microseconds, or \"nan\"")),
        },
        None => match half.get("alg_bw").map(cell) {
            Some(Number::Value(rate)) if rate > 0.0 => Ok(Some(size as f64 / rate / 1e3)),
            _ => Ok(None),
        },
    }
}

/// `{"count": 0, "okay": "true"}`: what the run as a whole found wrong. Says whether it is there.
fn out_of_bounds(input: &Input<'_>, value: &Value, out: &mut Parsed) -> Result<bool, ReadError> {
    let Some(found) = value.get("out_of_bounds").filter(|found| !found.is_null()) else {
        out.unfinished(input.text.lines().count() as u64);
        return Ok(false);
    };
    let line = line_of(input.text, "\"out_of_bounds\"", 0);
    let okay = match found.get("okay") {
        None => Some(true),
        Some(okay) => truth(okay),
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
    Ok(true)
}

/// What NCCL warned of last, which is an error where the run did not come to a good end; and a bandwidth below the one that was
/// asked for.
fn failures((text, whole): (&str, bool), value: &Value, out: &mut Parsed) {
    let errors = value.get("errors").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    for error in errors.filter(|error| !error.trim().is_empty()) {
        let line = line_of(text, "\"errors\"", 0);
        match whole {
            true => out.last_error(line, error),
            false => out.defect(line, format!("the run says: {}", shortened(error.trim()))),
        }
    }
    let average = value.get("average_bus_bandwidth").unwrap_or(&Value::Null);
    if average.get("okay").and_then(truth) == Some(false) {
        let reached = average.get("bandwidth").unwrap_or(&Value::Null);
        out.defect(
            line_of(text, "\"average_bus_bandwidth\"", 0),
            format!(
                "the run failed its own check: an average bus bandwidth of {} GB/s is too low",
                shortened(&reached.to_string())
            ),
        );
    }
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
    parsed.gpus.extend(said.gpus);
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

fn cell(value: &Value) -> Number {
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

/// A number below 2^32 under a key.
fn number(value: &Value, key: &str) -> Option<u32> {
    u32::try_from(count(value.get(key)?)?).ok()
}

/// `true`, or `"true"` as nccl-tests writes it.
fn truth(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| value.as_str()?.parse().ok())
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
    if number(config, "graph").is_some_and(|graph| graph > 0) {
        return Some(Launch::Graph);
    }
    match (number(config, "nthreads")?, number(config, "ngpus")?) {
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
