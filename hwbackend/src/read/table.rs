//! CSV with a header.
//!
//! Needed: `collective, ranks, size_bytes` and one of `time_us, algbw_gbps, busbw_gbps`; the
//! others are derived. A row rounded to 0.00 is unusable and counted. A cell that cannot be
//! meant refuses the file: such a table was written by a program, and is wrong throughout.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp, nearest};
use collcast_sim::measurement::{Choice, Measurement, Origin, PeerAccess, Settings};
use collcast_sim::units::{Bytes, SimDuration, parse_size};

use super::bus::{Rate, Sample, bus_factor_fits};
use super::error::ReadError;
use super::parsed::{EXPECTED_WRONG, Input, Parsed, TIME_MAX_US, TIME_MIN_US, is_prediction_mark, wrong_values};
use super::settings::{Env, algorithm, from_env, is_relevant, plain_version};
use super::sidecar::{message, shortened};

/// Most columns, and longest line: far more than any table of measurements has.
const COLUMNS_MAX: usize = 1000;
const LINE_MAX: usize = 64 * 1024;
/// Most bus bandwidth that can be meant, in GB/s of each GPU: eleven times the 900 GB/s of NVLink 5.
const BUSBW_MAX: f64 = 10_000.0;
const NEEDED: [&str; 3] = ["collective", "ranks", "size_bytes"];
const TIMES: [&str; 3] = ["time_us", "algbw_gbps", "busbw_gbps"];
/// Columns that are used where they are there.
const USED: [&str; 24] = [
    "run",
    "nodes",
    "gpus_per_node",
    "gpus",
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
    "registered",
    "variant",
    "nccl_algo_env",
    "origin",
    "dtype",
    "op",
    "root",
    "wrong",
    "nccl_version",
    "hosts",
];
/// A column that forecasts of ours have and measurements have not: also those whose comments somebody took out.
const FORECAST: &str = "time_us_low";
/// Columns that `collcast bench` writes and nothing here needs.
const WRITTEN: [&str; 6] = ["time_us_p5", "time_us_p95", "checked", "nccl_model_us", "schedule_hash", "asked"];

/// Whether a first line could be the header of such a table.
pub(super) fn looks_like_header(line: &str) -> bool {
    let names: Vec<String> = line.split([',', ';', '\t']).map(|name| name.trim().to_lowercase()).collect();
    names.len() >= 4 && names.iter().any(|name| NEEDED.contains(&name.as_str()) || TIMES.contains(&name.as_str()))
}

/// Reads the text of one file.
pub(super) fn parse(input: &Input<'_>) -> Result<Parsed, ReadError> {
    let mut out = Parsed::default();
    let mut sidecar = input.sidecar.clone();
    let header_line = header_line(input, &mut sidecar.env, &mut out)?;
    out.env = sidecar.env.clone();
    out.env.retain(|name, _| is_relevant(name));
    let input = &Input { sidecar: &sidecar, ..*input };
    let Some((header_number, header)) = header_line else {
        out.reason = Some("comments and no header".to_owned());
        return Ok(out);
    };
    let mut reader = cells(input.text, header);
    let mut columns: Option<Columns> = None;
    let mut record = csv::StringRecord::new();
    let mut doubts = Doubts::default();
    loop {
        let more = reader.read_record(&mut record).map_err(|error| ReadError::BadRow {
            path: input.path.to_owned(),
            line: error.position().map_or(0, csv::Position::line),
            message: message(format!("cannot be split into cells: {error}")),
        })?;
        if !more {
            break;
        }
        let line = record.position().map_or(0, csv::Position::line);
        let Some(columns) = &columns else {
            columns = Some(Columns::new(input, header_number, &record, &mut out)?);
            continue;
        };
        if record.iter().all(str::is_empty) {
            continue;
        }
        columns.check_width(input, line, &record)?;
        if out.rows.len() >= input.rows_left {
            return Err(input.too_many_rows());
        }
        let row = TableRow { input, columns, record: &record, line };
        row.check_origin()?;
        out.wrong(line, row.wrong()?);
        match row.measurement(&mut out)? {
            Some((measurement, rates)) => {
                doubts.see(&row, &measurement, rates, &mut out);
                out.rows.push(measurement);
            }
            None => out.unusable += 1,
        }
    }
    doubts.note(&mut out);
    out.nccl.clone_from(&input.sidecar.nccl);
    if out.rows.is_empty() {
        out.reason = Some(match out.unusable {
            0 => "a header and no rows".to_owned(),
            count => format!("all {count} rows are of 0 B, rounded to 0.00 or say no time"),
        });
    }
    Ok(out)
}

/// The first line that is no comment, with its number. Comments go to `env` and `out`.
fn header_line<'a>(input: &Input<'a>, env: &mut Env, out: &mut Parsed) -> Result<Option<(u64, &'a str)>, ReadError> {
    let mut header_line = None;
    for (index, line) in input.text.lines().enumerate() {
        if line.len() > LINE_MAX {
            return Err(ReadError::BadRow {
                path: input.path.to_owned(),
                line: index as u64 + 1,
                message: format!("has {} bytes; at most {LINE_MAX} are read", line.len()),
            });
        }
        if line.starts_with('#') {
            out.remark(line, env);
            if is_prediction_mark(line) && !input.options.allow_predicted {
                return Err(ReadError::Predicted { path: input.path.to_owned(), line: index as u64 + 1 });
            }
        } else if header_line.is_none() && !line.trim().is_empty() {
            header_line = Some((index as u64 + 1, line));
        }
    }
    Ok(header_line)
}

/// The cells of a table, split at what its header has most of.
fn cells<'a>(text: &'a str, header: &str) -> csv::Reader<&'a [u8]> {
    let separator = [b',', b';', b'\t']
        .into_iter()
        .max_by_key(|&separator| (header.bytes().filter(|&b| b == separator).count(), separator == b','))
        .unwrap_or(b',');
    csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(separator)
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes())
}

/// What makes the times of a table doubtful, as far as its rows tell.
#[derive(Default)]
struct Doubts {
    /// Rates of rows that give both, by collective and ranks, with their lines.
    groups: BTreeMap<(Collective, u32), Vec<(u64, Sample)>>,
    /// Rows whose time is not that of their algbw.
    disagreeing: usize,
    /// Rows whose time comes from a rate of few digits.
    imprecise: usize,
    /// Rows whose `time_us` says no time, so that it comes from a rate.
    untimed: usize,
}

impl Doubts {
    fn see(&mut self, row: &TableRow<'_>, measurement: &Measurement, rates: Option<Rates>, out: &mut Parsed) {
        self.imprecise += usize::from(row.is_imprecise());
        self.untimed += usize::from(row.cell("time_us").is_some() && row.time_us().is_none());
        let Some((algbw, sample)) = rates else { return };
        let exact = measurement.size.0 as f64 / measurement.time.as_us().max(1e-9) / 1e3;
        if (exact - algbw).abs() > 0.05 * algbw + 0.01 {
            self.disagreeing += 1;
            if self.disagreeing == 1 {
                out.note(
                    Some(row.line),
                    format!("time_us gives {exact:.2} GB/s, algbw_gbps says {algbw}; time_us is used"),
                );
            }
        }
        self.groups.entry((measurement.collective, measurement.ranks)).or_default().push((row.line, sample));
    }

    /// Says what all rows together show.
    fn note(self, out: &mut Parsed) {
        if self.disagreeing > 1 {
            out.note(None, format!("time_us and algbw_gbps disagree in {} rows", self.disagreeing));
        }
        if self.untimed > 0 {
            out.note(None, format!("{} rows say no time in time_us; it comes from their rate", self.untimed));
        }
        if self.imprecise > 0 {
            out.note(
                None,
                format!(
                    "{} times are derived from a rate of so few digits that they are off by up to 5% or more",
                    self.imprecise
                ),
            );
        }
        for ((collective, ranks), samples) in self.groups {
            let line = samples.first().map(|&(line, _)| line);
            let samples: Vec<Sample> = samples.into_iter().map(|(_, sample)| sample).collect();
            if !bus_factor_fits(collective, ranks, &samples) {
                out.note(line, format!("busbw_gbps / algbw_gbps is not that of {collective} with {ranks} ranks"));
            }
        }
    }
}

struct Columns {
    index: BTreeMap<String, usize>,
    count: usize,
}

impl Columns {
    fn new(input: &Input<'_>, line: u64, header: &csv::StringRecord, out: &mut Parsed) -> Result<Self, ReadError> {
        if header.len() > COLUMNS_MAX {
            return Err(ReadError::BadRow {
                path: input.path.to_owned(),
                line,
                message: format!("has {} columns; at most {COLUMNS_MAX} are read", header.len()),
            });
        }
        let mut index = BTreeMap::new();
        for (at, name) in header.iter().enumerate() {
            let mut name = name.trim_matches('\u{feff}').trim().to_lowercase();
            name = match name.as_str() {
                "hosts" => "nodes".to_owned(),
                "#wrong" | "nwrong" => "wrong".to_owned(),
                _ => name,
            };
            let known = NEEDED.iter().chain(&TIMES).chain(&USED).any(|&known| known == name);
            if index.insert(name.clone(), at).is_some() && known {
                return Err(ReadError::DuplicateColumn { path: input.path.to_owned(), line, column: name });
            }
        }
        if index.contains_key(FORECAST) && !input.options.allow_predicted {
            return Err(ReadError::Predicted { path: input.path.to_owned(), line });
        }
        let mut missing: Vec<String> =
            NEEDED.iter().filter(|&&name| !index.contains_key(name)).map(|name| format!("`{name}`")).collect();
        let mut hint = NEEDED.iter().filter(|&&name| !index.contains_key(name)).find_map(|name| {
            let near = nearest(name, index.keys().map(String::as_str))?;
            Some(format!("is `{near}` meant as `{name}`?"))
        });
        if !TIMES.iter().any(|&name| index.contains_key(name)) {
            missing.push("a time (`time_us`, `algbw_gbps` or `busbw_gbps`)".to_owned());
            hint = hint.or_else(|| {
                let near = nearest("time_us", index.keys().map(String::as_str))?;
                Some(format!("is `{near}` meant as `time_us`?"))
            });
        }
        if !missing.is_empty() {
            return Err(ReadError::MissingColumn {
                path: input.path.to_owned(),
                line,
                missing,
                found: shortened_list(header),
                hint,
            });
        }
        for name in index.keys() {
            let used = NEEDED.iter().chain(&TIMES).chain(&USED).chain(&WRITTEN);
            if !name.is_empty() && !used.clone().any(|known| known == name) {
                let meant = nearest(name, USED).map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
                out.note(Some(line), format!("column `{}` is not used{meant}", shortened(name)));
            }
        }
        Ok(Self { index, count: header.len() })
    }

    /// Refuses a row that has not the cells of the header; empty ones may follow.
    fn check_width(&self, input: &Input<'_>, line: u64, record: &csv::StringRecord) -> Result<(), ReadError> {
        let extra = record.iter().skip(self.count).any(|cell| !cell.is_empty());
        if record.len() < self.count || extra {
            return Err(ReadError::BadRow {
                path: input.path.to_owned(),
                line,
                message: format!("has {} cells; the header has {}", record.len(), self.count),
            });
        }
        Ok(())
    }
}

fn shortened_list(header: &csv::StringRecord) -> String {
    let names: Vec<String> = header.iter().take(16).map(shortened).collect();
    let more = header.len().saturating_sub(names.len());
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", names.join(", "))
}

/// The algbw of a row, and both its rates as intervals.
type Rates = (f64, Sample);

struct TableRow<'a> {
    input: &'a Input<'a>,
    columns: &'a Columns,
    record: &'a csv::StringRecord,
    line: u64,
}

impl TableRow<'_> {
    /// The cell, unless it is empty or its column is not there.
    fn cell(&self, column: &str) -> Option<&str> {
        let at = *self.columns.index.get(column)?;
        self.record.get(at).filter(|cell| !cell.is_empty())
    }

    fn bad(&self, column: &str, problem: impl Display, expected: &'static str) -> ReadError {
        ReadError::BadValue {
            path: self.input.path.to_owned(),
            line: self.line,
            column: column.to_owned(),
            given: shortened(self.cell(column).unwrap_or_default()),
            problem: message(problem.to_string()),
            expected,
        }
    }

    fn needed(&self, column: &str, expected: &'static str) -> Result<&str, ReadError> {
        self.cell(column).ok_or_else(|| self.bad(column, "the cell is empty", expected))
    }

    fn name<T>(&self, column: &str, expected: &'static str) -> Result<Option<T>, ReadError>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.cell(column)
            .filter(|text| !matches!(text.to_lowercase().as_str(), "auto" | "default" | "none" | "any"))
            .map(|text| text.parse().map_err(|error| self.bad(column, error, expected)))
            .transpose()
    }

    fn count(&self, column: &str, expected: &'static str) -> Result<Option<u32>, ReadError> {
        let Some(text) = self.cell(column) else {
            return Ok(None);
        };
        match text.parse::<u32>() {
            Ok(0) => Err(self.bad(column, "zero", expected)),
            Ok(count) => Ok(Some(count)),
            Err(_) if text.bytes().all(|b| b.is_ascii_digit()) => Err(self.bad(column, "too large", expected)),
            Err(_) => Err(self.bad(column, "not a whole number", expected)),
        }
    }

    fn flag(&self, column: &str) -> Result<bool, ReadError> {
        match self.cell(column).map(str::to_lowercase).as_deref() {
            None | Some("0" | "false" | "no") => Ok(false),
            Some("1" | "true" | "yes") => Ok(true),
            Some(_) => Err(self.bad(column, "not known", "0, 1, true or false")),
        }
    }

    fn size(&self, column: &str) -> Result<Option<Bytes>, ReadError> {
        let Some(text) = self.cell(column) else {
            return Ok(None);
        };
        let size = match text.parse::<u64>() {
            Ok(size) => Ok(Bytes(size)),
            Err(_) => parse_size(text),
        };
        size.map(Some).map_err(|error| {
            let expected = "a size in bytes below 2^63, such as 1048576 or 1MiB";
            self.bad(column, error, expected)
        })
    }

    /// A number of zero or more; `None` where the cell is empty or `N/A`.
    fn number(&self, column: &str) -> Result<Option<f64>, ReadError> {
        let Some(text) = self.cell(column) else {
            return Ok(None);
        };
        if matches!(text.to_lowercase().as_str(), "n/a" | "na" | "nan" | "-") {
            return Ok(None);
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && value >= 0.0 => Ok(Some(value)),
            Ok(_) => Err(self.bad(column, "negative or not finite", "a number such as 12.34")),
            Err(_) => Err(self.bad(column, "not a number", "a number such as 12.34")),
        }
    }

    fn time_us(&self) -> Option<f64> {
        self.number("time_us").ok().flatten().filter(|&us| us > 0.0)
    }

    /// Whether the time must come from a rate whose last digit is over a twentieth of it.
    fn is_imprecise(&self) -> bool {
        let value = |column| self.number(column).ok().flatten().filter(|&value| value > 0.0);
        if self.time_us().is_some() {
            return false;
        }
        ["algbw_gbps", "busbw_gbps"]
            .into_iter()
            .find_map(|column| Some((self.cell(column)?, value(column)?)))
            .is_some_and(|(text, value)| Rate::written(text, value).relative_half_width() > 0.05)
    }

    /// Values that were wrong; `None` where nothing was checked.
    fn wrong(&self) -> Result<Option<f64>, ReadError> {
        let count = self.cell("wrong").map_or(Some(None), wrong_values);
        count.ok_or_else(|| self.bad("wrong", "cannot be used", EXPECTED_WRONG))
    }

    fn check_origin(&self) -> Result<(), ReadError> {
        let predicted = self.cell("origin").is_some_and(|origin| origin.to_lowercase().starts_with("predicted"));
        if predicted && !self.input.options.allow_predicted {
            return Err(ReadError::Predicted { path: self.input.path.to_owned(), line: self.line });
        }
        Ok(())
    }

    fn ranks(&self) -> Result<(u32, Option<u32>), ReadError> {
        let expected = "a number of ranks from 1";
        self.needed("ranks", expected)?;
        let ranks = self.count("ranks", expected)?.unwrap_or(1);
        let nodes = self.count("nodes", "a number of hosts from 1")?;
        let gpus_per_node = self.count("gpus_per_node", "a number of GPUs from 1")?;
        let mismatch = |nodes, gpus_per_node| ReadError::RanksMismatch {
            path: self.input.path.to_owned(),
            line: self.line,
            ranks,
            nodes,
            gpus_per_node,
        };
        match (nodes, gpus_per_node) {
            (Some(nodes), Some(gpus)) if u64::from(nodes) * u64::from(gpus) != u64::from(ranks) => {
                Err(mismatch(nodes, gpus))
            }
            (Some(nodes), None) if nodes > ranks => Err(mismatch(nodes, 1)),
            (None, Some(gpus)) if ranks.is_multiple_of(gpus) => Ok((ranks, Some(ranks / gpus))),
            (nodes, _) => Ok((ranks, nodes.or(self.input.sidecar.nodes))),
        }
    }

    /// The GPUs that ran it, as [`Settings::gpus`] has them: `node1:0 node1:3`.
    fn gpus(&self, ranks: u32) -> Result<Vec<(String, String)>, ReadError> {
        let expected = "a GPU for each rank, as in `node1:0 node1:3`";
        let gpu = |word: &str| match word.split_once(':') {
            Some((host, gpu)) if !host.is_empty() && !gpu.is_empty() => Ok((shortened(host), shortened(gpu))),
            _ => Err(self.bad("gpus", "no host and GPU with a colon between them", expected)),
        };
        let words = self.cell("gpus").unwrap_or_default().split_whitespace();
        let mut gpus = words.map(gpu).collect::<Result<Vec<_>, ReadError>>()?;
        gpus.sort_unstable();
        gpus.dedup();
        if !gpus.is_empty() && gpus.len() != ranks as usize {
            let problem = format!("{} GPUs for {ranks} ranks", gpus.len());
            return Err(self.bad("gpus", problem, expected));
        }
        Ok(gpus)
    }

    /// What a forecast says that NCCL chooses, which is then no setting; channels that were asked for are one.
    fn chosen(&self, settings: &mut Settings) -> Result<Option<Choice>, ReadError> {
        let (Some(_), Some(algorithm), Some(protocol)) =
            (self.cell("chosen_by"), settings.algorithm, settings.protocol)
        else {
            return Ok(None);
        };
        let channels = settings.channels;
        (settings.algorithm, settings.protocol) = (None, None);
        settings.channels = self.count("channels_asked", "a number from 1, or nothing")?;
        Ok(Some(Choice { algorithm, protocol, channels }))
    }

    fn settings(&self, collective: Collective, out: &mut Parsed) -> Result<Settings, ReadError> {
        let mut notes = Vec::new();
        // What the row says wins over the variables of the file beside it.
        let mut env = self.input.sidecar.env.clone();
        let has_algo = self.cell("nccl_algo_env").is_some() || self.cell("variant").is_some();
        if has_algo {
            env.remove("NCCL_ALGO");
        }
        let mut settings = from_env(&env, collective, &mut notes);
        if let Some(text) = self.cell("nccl_algo_env") {
            algorithm(text, collective, &mut settings, &mut notes);
        } else if let Some(text) = self.cell("variant").filter(|text| !is_default(text)) {
            let before = settings.clone();
            let mut problems = Vec::new();
            algorithm(text, collective, &mut settings, &mut problems);
            if !problems.is_empty() {
                settings = before;
                notes.push(format!("variant `{}` is no NCCL_ALGO; taken as a label", shortened(text)));
            }
        }
        if let Some(name) = self.name::<Algorithm>("algorithm", "an algorithm, or nothing for NCCL's choice")? {
            settings.algorithm = Some(name);
            settings.nccl_algo = None;
        }
        if let Some(name) = self.name::<Protocol>("protocol", "ll, ll128 or simple, or nothing")? {
            settings.protocol = Some(name);
        }
        let expected = "a number from 1, or nothing";
        settings.channels = self.count("channels", expected)?.or(settings.channels);
        settings.threads = self.count("nthreads", expected)?.or(settings.threads);
        let size = self.size("buffsize")?.filter(|size| size.0 > 0);
        settings.buffers.simple = size.or(settings.buffers.simple);
        if let Some(text) = self.cell("p2p") {
            settings.peer_access = match text.to_lowercase().as_str() {
                "on" | "1" | "true" => PeerAccess::On,
                "off" | "0" | "false" => PeerAccess::Off,
                "net" => PeerAccess::Net,
                _ => return Err(self.bad("p2p", "not known", "on, off or net")),
            };
        }
        settings.registered = self.flag("registered")?;
        settings.nccl = self.cell("nccl_version").and_then(plain_version).or_else(|| self.input.sidecar.nccl.clone());
        for text in notes {
            out.note_once(Some(self.line), text);
        }
        Ok(settings)
    }

    /// The measurement, with its rates where both are given; `None` if it is unusable.
    fn measurement(&self, out: &mut Parsed) -> Result<Option<(Measurement, Option<Rates>)>, ReadError> {
        let expected = "a collective such as all_reduce";
        let collective: Collective =
            self.needed("collective", expected)?.parse().map_err(|error| self.bad("collective", error, expected))?;
        let (ranks, hosts) = self.ranks()?;
        self.needed("size_bytes", "a size in bytes")?;
        let size = self.size("size_bytes")?.unwrap_or_default();
        let in_place = match self.cell("in_place").map(str::to_lowercase).as_deref() {
            Some("out_of_place" | "out-of-place") => false,
            Some("in_place" | "in-place") => true,
            _ => self.flag("in_place")?,
        };
        let mut settings = self.settings(collective, out)?;
        let chosen = self.chosen(&mut settings)?;
        let gpus = self.gpus(ranks)?;
        let names: BTreeSet<&String> = gpus.iter().map(|(host, _)| host).collect();
        let hosts = hosts.or(u32::try_from(names.len()).ok().filter(|&count| count > 0));
        settings.host_names = names.into_iter().cloned().collect();
        settings.gpus = gpus.into();

        let [time, algbw, busbw] = [self.number("time_us")?, self.number("algbw_gbps")?, self.number("busbw_gbps")?];
        let positive = |value: Option<f64>| value.filter(|&value| value > 0.0);
        let factor = collective.bus_factor(ranks);
        let time_us = positive(time)
            .or_else(|| positive(algbw).map(|rate| size.0 as f64 / rate / 1e3))
            .or_else(|| positive(busbw).filter(|_| factor > 0.0).map(|rate| size.0 as f64 * factor / rate / 1e3));
        let Some(time_us) = time_us.filter(|&time| time >= TIME_MIN_US && size.0 > 0) else {
            return Ok(None);
        };
        let column = TIMES.into_iter().zip([time, algbw, busbw]).find(|&(_, value)| positive(value).is_some());
        let column = column.map_or("time_us", |(column, _)| column);
        if time_us > TIME_MAX_US {
            return Err(self.bad(column, "a time of over 100 days", "microseconds"));
        }
        let reached = size.0 as f64 * factor / time_us / 1e3;
        if ranks > 1 && reached > BUSBW_MAX && !self.input.options.allow_predicted {
            let problem = format!("{reached:.0} GB/s of bus bandwidth a GPU, which no machine has");
            return Err(self.bad(column, problem, "us and GB/s without separators of thousands (4038, not 4.038)"));
        }
        let rate = |column: &str, value: f64| Rate::written(self.cell(column).unwrap_or_default(), value);
        let sample = algbw.zip(busbw).map(|(alg, bus)| {
            let sample = Sample { algbw: rate("algbw_gbps", alg), busbw: rate("busbw_gbps", bus) };
            (alg, sample)
        });
        let measurement = Measurement {
            run: self.cell("run").unwrap_or(self.input.stem).to_owned(),
            collective,
            ranks,
            hosts,
            launch: self
                .name::<Launch>("launch", "single_thread, threads, processes or graph")?
                .or(self.input.sidecar.launch),
            timing: self.input.sidecar.timing,
            dtype: self.name::<DataType>("dtype", "a data type such as float32")?,
            op: self.name::<ReduceOp>("op", "a reduction such as sum")?,
            root: match self.cell("root") {
                None | Some("-1") => None,
                Some(text) => Some(
                    text.parse::<u32>()
                        .ok()
                        .filter(|&root| root < ranks)
                        .ok_or_else(|| self.bad("root", "no rank", "a rank from 0"))?,
                ),
            },
            in_place,
            size,
            time: SimDuration::from_us(time_us),
            settings,
            chosen,
            origin: Origin { file: self.input.path.display().to_string(), line: self.line },
        };
        Ok(Some((measurement, sample)))
    }
}

fn is_default(text: &str) -> bool {
    matches!(text.to_lowercase().as_str(), "default" | "auto" | "none")
}
