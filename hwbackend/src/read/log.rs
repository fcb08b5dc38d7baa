//! The text that nccl-tests prints, as people keep it: whole, cut, pasted, indented, fenced.
//!
//! Lines are told apart by what they say and not by their `#`, since pasted logs lose it.
//! One file can hold several runs; a header line after a table starts the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::measurement::{Choice, Measurement, Origin};
use collcast_sim::nccl;
use collcast_sim::units::{Bytes, SimDuration};

use super::bus::{Rate, Sample, bus_factor_fits, ranks_of_samples};
use super::error::ReadError;
use super::parsed::{EXPECTED_WRONG, Input, Parsed, TIME_MAX_US, is_prediction_mark, wrong_values};
use super::settings::{Env, assignments, from_env, is_relevant, plain_version, version_of_code, words};
use super::sidecar::shortened;

/// Longest line that is looked at; nccl-tests prints less than 300 bytes.
const LINE_MAX: usize = 64 * 1024;
/// Most rank lines kept of one run.
const RANK_LINES_MAX: usize = 1 << 20;

/// Reads the text of one file.
pub(super) fn parse(input: &Input<'_>) -> Result<Parsed, ReadError> {
    let mut reader = Reader {
        input,
        out: Parsed::default(),
        run: Run::default(),
        env_lines: Env::new(),
        nccl: None,
        runs: 0,
        choices_only: 0,
        debug_lines: 0,
        comma_lines: 0,
    };
    for (index, line) in input.text.lines().enumerate() {
        let number = index as u64 + 1;
        if line.len() > LINE_MAX {
            reader.out.unreadable += 1;
            let text = format!("a line of {} bytes; at most {LINE_MAX} are read", line.len());
            reader.out.note(Some(number), text);
            continue;
        }
        reader.line(number, line)?;
    }
    reader.finish_run()?;
    Ok(reader.finish())
}

/// One half of a row: out of place or in place.
#[derive(Clone, Copy)]
struct Half {
    /// `None` where it was not measured, or rounded to zero.
    time_us: Option<f64>,
    sample: Option<Sample>,
}

struct Row {
    line: u64,
    size: u64,
    count: Option<u64>,
    dtype: Option<DataType>,
    op: Option<ReduceOp>,
    root: Option<u32>,
    halves: [Half; 2],
}

impl Row {
    /// Why its size is not that of its elements. The count is that of one rank where the size is of all.
    fn misfit(&self, collective: Collective, ranks: u32) -> Option<String> {
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

/// What is known of the run whose table comes next or is being read.
#[derive(Default)]
struct Run {
    collective: Option<Collective>,
    /// The name of a test that is none of them; file names are then no help.
    unknown_test: Option<String>,
    threads: Option<u32>,
    gpus: Option<u32>,
    graph: Option<u32>,
    /// Rank to (host, process, device).
    ranks: BTreeMap<u32, (String, u64, u32)>,
    /// What NCCL_DEBUG says of the communicator.
    debug_ranks: Option<u32>,
    debug_hosts: Option<u32>,
    columns: Option<Vec<String>>,
    env: Env,
    choices: HashMap<u64, Choice>,
    rows: Vec<Row>,
    /// Its last lines are there, which say whether results were right.
    finished: bool,
}

struct Reader<'a> {
    input: &'a Input<'a>,
    out: Parsed,
    run: Run,
    /// From `# env:`; holds until the next such line.
    env_lines: Env,
    nccl: Option<String>,
    runs: u32,
    choices_only: usize,
    debug_lines: usize,
    comma_lines: usize,
}

impl Reader<'_> {
    fn line(&mut self, number: u64, raw: &str) -> Result<(), ReadError> {
        let line = without_prefix(raw.trim());
        let commented = line.starts_with('#');
        let text = line.trim_start_matches('#').trim();
        if text.is_empty() || text.starts_with("```") {
            return Ok(());
        }
        if commented && is_prediction_mark(line) && !self.input.options.allow_predicted {
            return Err(ReadError::Predicted { path: self.input.path.to_owned(), line: number });
        }
        if commented {
            self.out.remark(line, &mut self.run.env);
        }
        if !commented && self.data_line(number, text)? {
            return Ok(());
        }
        if !self.header_line(number, text, commented)? {
            self.comma_lines += usize::from(text.matches(',').count() >= 4);
            self.debug_lines += usize::from(text.contains("NCCL INFO"));
            self.out.other_lines += 1;
        }
        Ok(())
    }

    /// Whether it was (or looked like) a row of the table.
    fn data_line(&mut self, number: u64, text: &str) -> Result<bool, ReadError> {
        let tokens: Vec<&str> = text.split_whitespace().take(64).collect();
        if !looks_like_row(&tokens) {
            return Ok(false);
        }
        let tokens = without_timestamp(&tokens);
        let fields = self.fields(tokens);
        if let Ok(fields) = &fields {
            self.wrong(number, fields)?;
        }
        match fields.and_then(|fields| self.row(number, tokens, &fields)) {
            Ok(row) => {
                if self.out.rows.len() + self.run.rows.len() * 2 >= self.input.rows_left {
                    return Err(self.input.too_many_rows());
                }
                self.run.rows.push(row);
            }
            Err(problem) => {
                self.out.unreadable += 1;
                let text = format!("`{}` looks like a row, but {problem}", shortened(text));
                self.out.note(Some(number), text);
            }
        }
        Ok(true)
    }

    /// The texts of a row: by the names above it, where there are any.
    fn fields<'a>(&self, tokens: &[&'a str]) -> Result<Fields<'a>, String> {
        let (fields, those) = match &self.run.columns {
            Some(columns) => (by_columns(columns, tokens), format!("the {} named above", columns.len())),
            None => (by_shape(tokens), "those of nccl-tests".to_owned()),
        };
        fields.ok_or_else(|| format!("its {} columns are not {those}", tokens.len()))
    }

    /// Counts the values that were wrong. Old versions print how far off results were, such as 1e-07, in its place.
    fn wrong(&mut self, number: u64, fields: &Fields<'_>) -> Result<(), ReadError> {
        for [_, _, _, text] in fields.halves {
            let count = wrong_values(text).ok_or_else(|| ReadError::BadValue {
                path: self.input.path.to_owned(),
                line: number,
                column: "#wrong".to_owned(),
                given: shortened(text),
                problem: "cannot be used".to_owned(),
                expected: EXPECTED_WRONG,
            })?;
            if fields.counts_wrong {
                self.out.wrong(number, count);
            }
        }
        Ok(())
    }

    fn row(&mut self, number: u64, tokens: &[&str], fields: &Fields<'_>) -> Result<Row, String> {
        let whole = |text: &str, what: &str| {
            text.parse::<u64>().map_err(|_| format!("its {what} is not a whole number below 2^64"))
        };
        let size = whole(tokens.first().unwrap_or(&""), "size in bytes")?;
        let count = fields.count.map(|count| whole(count, "count of elements")).transpose()?;
        let mut row = Row {
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
                self.out.note_once(Some(number), format!("element type `{name}` is not known; left open"));
            }
        }
        if let Some(name) = fields.op.filter(|name| *name != "none") {
            row.op = name.parse().ok();
            if row.op.is_none() {
                self.out.note_once(Some(number), format!("reduction `{name}` is not known; left open"));
            }
        }
        row.root = fields.root.and_then(|root| root.parse().ok());
        for (half, [time, algbw, busbw, _]) in row.halves.iter_mut().zip(fields.halves) {
            let rates = number_or_absent(algbw)?.zip(number_or_absent(busbw)?);
            let printed_time = number_or_absent(time)?;
            let of_call = printed_time.filter(|_| !fields.cpu_time);
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
            half.sample = rates.map(|(algbw_value, busbw_value)| {
                let mut rate = Rate::written(algbw, algbw_value);
                if let Some(time_us) = of_call {
                    rate = rate.refined(size, time, time_us);
                }
                Sample { algbw: rate, busbw: Rate::written(busbw, busbw_value) }
            });
            let time_us = if fields.cpu_time {
                // The printed time is the host's; the rate is still the operation's.
                rates.and_then(|(rate, _)| (rate > 0.0).then(|| size as f64 / rate / 1e3))
            } else {
                printed_time
            };
            if time_us.is_some_and(|time| time > TIME_MAX_US) {
                return Err(format!("its time {time} us is beyond 100 days"));
            }
            half.time_us = time_us.filter(|&time| time > 0.0 && size > 0);
        }
        if fields.cpu_time {
            self.out
                .note_once(Some(number), "the time column is CPU time (-C); times are derived from algbw".to_owned());
        }
        Ok(row)
    }

    /// Whether the line was one of those that are understood.
    fn header_line(&mut self, number: u64, text: &str, commented: bool) -> Result<bool, ReadError> {
        if commented && let Some(rest) = text.strip_prefix("env:") {
            self.next_run()?;
            self.env_lines = assignments(&words(rest));
            return Ok(true);
        }
        if let Some(rest) = text.strip_prefix("cmd:").filter(|_| commented).or_else(|| text.strip_prefix("$ ")) {
            self.next_run()?;
            self.command(rest);
            return Ok(true);
        }
        if let Some(rest) = text.strip_prefix("Collective test starting:") {
            self.next_run()?;
            self.program(number, rest.trim());
            return Ok(true);
        }
        if text.starts_with("Collective test concluded") {
            return Ok(true);
        }
        if text.starts_with("nThread ") {
            self.next_run()?;
            let words: Vec<&str> = text.split_whitespace().collect();
            let value = |key: &str| {
                words
                    .windows(2)
                    .find(|pair| pair[0].trim_end_matches(':') == key)
                    .and_then(|pair| pair[1].parse::<u32>().ok())
            };
            self.run.threads = value("nThread");
            self.run.gpus = value("nGpus");
            self.run.graph = value("graph");
            return Ok(true);
        }
        if text == "Using devices" {
            self.next_run()?;
            return Ok(true);
        }
        if text.starts_with("Rank ") && text.contains(" device ") {
            self.next_run()?;
            match rank_line(text) {
                Some((rank, place)) if self.run.ranks.len() < RANK_LINES_MAX => {
                    self.run.ranks.insert(rank, place);
                    // What follows the bus: `[0000:00:06] NVIDIA H200`.
                    self.out.gpus.extend(text.split_once("] ").map(|(_, name)| shortened(name.trim())));
                }
                _ => {
                    self.out.unreadable += 1;
                    let text = format!("`{}` is not a device line", shortened(text));
                    self.out.note(Some(number), text);
                }
            }
            return Ok(true);
        }
        if let Some(at) = text.find("nccl-tests version ") {
            self.next_run()?;
            let code = text[at..].split_once("nccl-library=").and_then(|(_, code)| code.trim().parse().ok());
            if self.nccl.is_none() {
                self.nccl = code.and_then(version_of_code);
            }
            return Ok(true);
        }
        if let Some((_, version)) = text.split_once("NCCL version ") {
            let version = version.split_whitespace().next().unwrap_or_default();
            if let Some(version) = plain_version(version) {
                self.nccl = Some(version); // What ran wins over what was linked.
                return Ok(true);
            }
        }
        if let Some((before, after)) = text.split_once(" Bytes -> Algo ") {
            self.choice(number, before, after);
            return Ok(true);
        }
        if let Some((before, value)) = text.split_once(" set by environment to ") {
            let name = before.split_whitespace().last().unwrap_or_default();
            if is_relevant(name) {
                let value = value.trim().trim_end_matches('.').to_owned();
                self.run.env.insert(name.to_owned(), value);
            }
            return Ok(true);
        }
        if text.contains("NCCL INFO") {
            let words: Vec<&str> = text.split_whitespace().collect();
            for pair in words.windows(2) {
                let value = || pair[1].parse::<u32>().ok().filter(|&value| value > 0);
                match pair[0] {
                    "nranks" | "nRanks" => self.run.debug_ranks = value(),
                    "nNodes" => self.run.debug_hosts = value(),
                    _ => {}
                }
            }
            return Ok(false);
        }
        if text.starts_with("size") && text.contains("busbw") && text.contains("time") {
            self.units(number, text)?;
            self.run.columns = columns(text);
            return Ok(true);
        }
        if text.starts_with('(') && text.matches('(').count() >= 5 {
            self.units(number, text)?;
            return Ok(true);
        }
        if let Some(rest) = text.strip_prefix("Out of bounds values") {
            self.out_of_bounds(number, rest.trim_start_matches([' ', ':']))?;
            return Ok(true);
        }
        if text.starts_with("Avg bus bandwidth") {
            self.run.finished = true;
            return Ok(true);
        }
        if text.contains("Test NCCL failure") || text.contains("Test CUDA failure") {
            let text = format!("the run says: {}", shortened(text));
            self.out.defect(number, text);
            return Ok(true);
        }
        if text.contains("_perf") && self.run.collective.is_none() && self.run.rows.is_empty() {
            self.command(text);
        }
        Ok(false)
    }

    /// Refuses a table in other units than nccl-tests', which are `(B) (elements) (us) (GB/s)`.
    fn units(&self, number: u64, text: &str) -> Result<(), ReadError> {
        let units = text.split('(').skip(1).map(|rest| rest.split(')').next().unwrap_or_default().trim());
        let is_ours = |unit: &&str| {
            let unit = unit.to_lowercase();
            matches!(unit.as_str(), "b" | "bytes" | "elements" | "us" | "usec" | "gb/s" | "%" | "")
        };
        match units.into_iter().find(|unit| !is_ours(unit)) {
            None => Ok(()),
            Some(unit) => Err(ReadError::BadValue {
                path: self.input.path.to_owned(),
                line: number,
                column: "units of the table".to_owned(),
                given: format!("({})", shortened(unit)),
                problem: "not a unit of nccl-tests".to_owned(),
                expected: "sizes in (B), times in (us), rates in (GB/s)",
            }),
        }
    }

    /// `3 FAILED` or `0 OK`: what the run as a whole found wrong.
    fn out_of_bounds(&mut self, number: u64, text: &str) -> Result<(), ReadError> {
        let count = text.split_whitespace().next().and_then(wrong_values).flatten();
        let count = count.ok_or_else(|| ReadError::BadValue {
            path: self.input.path.to_owned(),
            line: number,
            column: "Out of bounds values".to_owned(),
            given: shortened(text),
            problem: "cannot be used".to_owned(),
            expected: "a number of values, and OK or FAILED",
        })?;
        self.out.out_of_bounds(number, count, text.contains("FAILED"));
        self.run.finished = true;
        Ok(())
    }

    /// A header line: the table before it, if any, is finished.
    fn next_run(&mut self) -> Result<(), ReadError> {
        if self.run.rows.is_empty() {
            return Ok(());
        }
        self.finish_run()
    }

    /// The name of the test program.
    fn program(&mut self, number: u64, name: &str) {
        match collective_of_program(name) {
            Some(collective) => self.run.collective = Some(collective),
            None => {
                let text = format!("test `{}` is none of the known collectives", shortened(name));
                self.out.note(Some(number), text.clone());
                self.run.unknown_test = Some(text);
            }
        }
    }

    /// A command line: variables, the program and its flags, as far as the header is silent.
    fn command(&mut self, line: &str) {
        let words = words(line);
        self.run.env.extend(assignments(&words));
        let Some(at) = words.iter().position(|word| {
            word.split(|c: char| !(c.is_ascii_alphanumeric() || "_/.-".contains(c)))
                .any(|part| part.ends_with("_perf") && collective_of_program(part).is_some())
        }) else {
            return;
        };
        self.run.collective = words[at]
            .split(|c: char| !(c.is_ascii_alphanumeric() || "_/.-".contains(c)))
            .find_map(collective_of_program)
            .or(self.run.collective);
        for pair in words[at..].windows(2) {
            let value = pair[1].parse::<u32>().ok();
            let slot = match pair[0].as_str() {
                "-t" | "--nthreads" => &mut self.run.threads,
                "-g" | "--ngpus" => &mut self.run.gpus,
                "-G" | "--cudagraph" => &mut self.run.graph,
                _ => continue,
            };
            *slot = slot.or(value);
        }
    }

    /// `AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}`, and the older form
    /// with numbers for names.
    fn choice(&mut self, number: u64, before: &str, after: &str) {
        let bytes = before.split_whitespace().last().and_then(|text| text.parse::<u64>().ok());
        let mut words = after.split_whitespace();
        let algorithm = words.next().and_then(|text| match text.parse::<usize>() {
            Ok(index) => nccl::ALGORITHMS.get(index).copied(),
            Err(_) => text.parse::<Algorithm>().ok(),
        });
        let protocol = (words.next() == Some("proto")).then(|| words.next()).flatten().and_then(|text| {
            match text.parse::<usize>() {
                Ok(index) => Protocol::ALL.get(index).copied(),
                Err(_) => text.parse::<Protocol>().ok(),
            }
        });
        let channels = after.split_once("={").and_then(|(_, range)| {
            let (low, high) = range.split_once('}')?.0.split_once("..")?;
            let (low, high) = (low.parse::<u32>().ok()?, high.parse::<u32>().ok()?);
            high.checked_sub(low)?.checked_add(1)
        });
        let (Some(bytes), Some(algorithm), Some(protocol)) = (bytes, algorithm, protocol) else {
            self.out.unreadable += 1;
            let text = format!(
                "`{} Bytes -> Algo {}` is not a choice that is understood",
                shortened(before),
                shortened(after)
            );
            self.out.note(Some(number), text);
            return;
        };
        self.choices_only += 1;
        let choice = Choice { algorithm, protocol, channels };
        if let Some(earlier) = self.run.choices.insert(bytes, choice)
            && earlier != choice
        {
            let text = format!("NCCL chose twice for {bytes} bytes; the last choice is used");
            self.out.note_once(Some(number), text);
        }
    }

    fn finish_run(&mut self) -> Result<(), ReadError> {
        let choices = std::mem::take(&mut self.run.choices);
        let run = std::mem::take(&mut self.run);
        if run.rows.is_empty() {
            return Ok(());
        }
        self.runs += 1;
        if !run.finished {
            self.out.unfinished(run.rows.last().map_or(0, |row| row.line));
        }
        let first_line = run.rows.first().map(|row| row.line);
        let sidecar = self.input.sidecar;
        if let Some(text) = run.unknown_test {
            self.out.lack(first_line, format!("{text}; its rows are left out"));
            return Ok(());
        }
        let Some(collective) = run.collective.or(sidecar.collective).or_else(|| collective_in_name(self.input.stem))
        else {
            let text = format!(
                "{} rows name no collective; say `collective = \"all_reduce\"` in {}.toml beside the file, or keep the line `Collective test starting`",
                run.rows.len(),
                self.input.stem
            );
            self.out.lack(first_line, text);
            return Ok(());
        };
        let ranks = match self.ranks(&run, collective) {
            Ok(ranks) => ranks,
            Err(text) => {
                self.out.lack(first_line, text);
                return Ok(());
            }
        };
        let hosts = self.hosts(&run, ranks);
        let launch = launch(&run).or(sidecar.launch);

        let mut env = sidecar.env.clone();
        env.extend(self.env_lines.clone());
        env.extend(run.env);
        let mut notes = Vec::new();
        let mut settings = from_env(&env, collective, &mut notes);
        for text in notes {
            self.out.note_once(None, text);
        }
        env.retain(|name, _| is_relevant(name));
        settings.nccl = self.nccl.clone().or_else(|| sidecar.nccl.clone());
        // nccl-tests takes its buffers from `ncclMemAlloc`.
        settings.registered = launch == Some(Launch::Graph);
        let named: BTreeSet<&String> = run.ranks.values().map(|(host, _, _)| host).filter(|h| !h.is_empty()).collect();
        settings.host_names = named.into_iter().cloned().collect();

        let name = match self.runs {
            1 => self.input.stem.to_owned(),
            more => format!("{}#{more}", self.input.stem),
        };
        self.out.env.extend(env.clone());
        self.out.run_env.insert(name.clone(), env);
        for row in &run.rows {
            if let Some(problem) = row.misfit(collective, ranks) {
                self.out.unreadable += 1;
                self.out.note(Some(row.line), problem);
                continue;
            }
            for (half, in_place) in row.halves.iter().zip([false, true]) {
                let Some(time_us) = half.time_us else {
                    self.out.unusable += 1;
                    continue;
                };
                self.out.rows.push(Measurement {
                    run: name.clone(),
                    collective,
                    ranks,
                    hosts,
                    launch,
                    timing: sidecar.timing,
                    dtype: row.dtype,
                    op: row.op.filter(|_| collective.reduces()),
                    root: row.root.filter(|_| collective.rooted()),
                    in_place,
                    size: Bytes(row.size),
                    time: SimDuration::from_us(time_us),
                    settings: settings.clone(),
                    chosen: choice_for(&choices, collective, ranks, row.size),
                    origin: Origin { file: self.input.path.display().to_string(), line: row.line },
                });
            }
        }
        Ok(())
    }

    /// From the device lines, if they agree with the rates; else from what is left.
    fn ranks(&mut self, run: &Run, collective: Collective) -> Result<u32, String> {
        let first_line = run.rows.first().map(|row| row.line);
        let samples: Vec<Sample> = run.rows.iter().flat_map(|row| row.halves).filter_map(|half| half.sample).collect();
        let by_rate = ranks_of_samples(collective, &samples);
        let sidecar = self.input.sidecar;
        // What the sibling file says of ranks, it says because the list is cut.
        let listed = sidecar
            .ranks
            .or_else(|| Some(run.ranks.last_key_value()?.0 + 1))
            .or(run.debug_ranks)
            .or_else(|| sidecar.nodes?.checked_mul(sidecar.gpus_per_node?));
        match (listed, by_rate) {
            (Some(listed), _) if bus_factor_fits(collective, listed, &samples) => {
                if !run.ranks.is_empty() && run.ranks.len() < listed as usize && sidecar.ranks.is_none() {
                    let text = format!(
                        "only {} of {listed} device lines; {listed} ranks by the last of them",
                        run.ranks.len()
                    );
                    self.out.note(first_line, text);
                }
                Ok(listed)
            }
            (Some(listed), Some((ranks, last))) if ranks == last => {
                let text = format!("{listed} ranks are named, but busbw / algbw is that of {ranks}; {ranks} is used");
                self.out.note(first_line, text);
                Ok(ranks)
            }
            (Some(listed), Some((first, last))) => Err(format!(
                "{listed} ranks are named, but busbw / algbw is that of {}; say `ranks = N` in {}.toml beside the file",
                range(first, last),
                self.input.stem
            )),
            (Some(listed), None) => {
                let text = format!("busbw / algbw is not that of {listed} ranks, nor of any other number");
                self.out.note(first_line, text);
                Ok(listed)
            }
            (None, Some((ranks, last))) if ranks == last => {
                let text = format!("no device lines; {ranks} ranks by busbw / algbw");
                self.out.note(first_line, text);
                Ok(ranks)
            }
            (None, by_rate) => Err(format!(
                "{} rows and no device lines, so no number of ranks (busbw / algbw {}); say `ranks = N` in {}.toml beside the file",
                run.rows.len(),
                by_rate.map_or("does not tell".to_owned(), |(first, last)| {
                    format!("is that of {}", range(first, last))
                }),
                self.input.stem
            )),
        }
    }

    fn hosts(&mut self, run: &Run, ranks: u32) -> Option<u32> {
        let sidecar = self.input.sidecar;
        if let Some(nodes) = sidecar.nodes {
            return Some(nodes);
        }
        let names: BTreeSet<&str> = run.ranks.values().map(|(host, _, _)| host.as_str()).collect();
        let named = u32::try_from(names.len()).ok()?;
        if named > 0 && run.ranks.len() == ranks as usize {
            return Some(named);
        }
        // The devices of the last host tell the GPUs of each, if its last line is there.
        let last = run.ranks.last_key_value().map(|(&last, _)| last + 1);
        let per_host = run
            .ranks
            .values()
            .filter(|_| last == Some(ranks))
            .map(|&(_, _, device)| device.saturating_add(1))
            .max()
            .or(sidecar.gpus_per_node);
        match per_host {
            Some(per_host) if ranks.is_multiple_of(per_host) && ranks / per_host >= named => {
                self.out.note_once(
                    None,
                    format!(
                        "number of hosts: {}, of {per_host} GPUs, by the devices that are listed",
                        ranks / per_host
                    ),
                );
                Some(ranks / per_host)
            }
            _ => run.debug_hosts,
        }
    }

    fn finish(mut self) -> Parsed {
        self.out.nccl = self.nccl.or_else(|| self.input.sidecar.nccl.clone());
        if self.out.rows.is_empty() && self.out.reason.is_none() {
            self.out.reason = Some(if self.out.unusable > 0 {
                format!("all {} times are 0.00 or absent", self.out.unusable)
            } else if self.choices_only > 0 {
                format!("{} choices of NCCL_DEBUG, but no table of times", self.choices_only)
            } else if self.out.unreadable > 0 {
                format!("{} lines look like rows, but none could be read", self.out.unreadable)
            } else if self.debug_lines > 0 {
                format!("{} lines of NCCL_DEBUG, but no table of times", self.debug_lines)
            } else if self.comma_lines * 2 > self.out.other_lines {
                "CSV whose first line lacks collective, ranks, size_bytes and a time".to_owned()
            } else {
                "text with no row of nccl-tests (size, count, type, time, algbw, busbw)".to_owned()
            });
        }
        self.out
    }
}

/// NCCL's count is that of one rank where nccl-tests' size is of all.
fn choice_for(choices: &HashMap<u64, Choice>, collective: Collective, ranks: u32, size: u64) -> Option<Choice> {
    if choices.is_empty() {
        return None;
    }
    let bytes = match collective {
        Collective::AllGather | Collective::ReduceScatter => size / u64::from(ranks.max(1)),
        _ => size,
    };
    choices.get(&bytes).copied()
}

fn range(first: u32, last: u32) -> String {
    match last {
        u32::MAX => format!("{first} or more"),
        last => format!("{first} to {last}"),
    }
}

fn launch(run: &Run) -> Option<Launch> {
    if run.graph.is_some_and(|graph| graph > 0) {
        return Some(Launch::Graph);
    }
    match (run.threads, run.gpus) {
        (_, Some(gpus)) if gpus > 1 => Some(Launch::SingleThread),
        (Some(threads), Some(_)) if threads > 1 => Some(Launch::Threads),
        (Some(_), Some(_)) => Some(Launch::Processes),
        _ => {
            let processes: BTreeSet<(&str, u64)> =
                run.ranks.values().map(|(host, process, _)| (host.as_str(), *process)).collect();
            (processes.len() > 1 && processes.len() == run.ranks.len()).then_some(Launch::Processes)
        }
    }
}

/// `Rank  0 Group  0 Pid   4542 on         vm device  0 [0000:00:06] NVIDIA H200`.
fn rank_line(text: &str) -> Option<(u32, (String, u64, u32))> {
    let words: Vec<&str> = text.split_whitespace().take(64).collect();
    let after = |key: &str| words.windows(2).find(|pair| pair[0] == key).map(|pair| pair[1]);
    let rank: u32 = after("Rank")?.parse().ok()?;
    let process = after("Pid").and_then(|pid| pid.parse().ok()).unwrap_or(0);
    let device = after("device")?.parse().ok()?;
    (rank < 1 << 24).then(|| (rank, (after("on").unwrap_or_default().to_owned(), process, device)))
}

/// `all_reduce_perf`, with or without its folder and its `_mpi`.
pub(super) fn collective_of_program(name: &str) -> Option<Collective> {
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.strip_suffix("_mpi").unwrap_or(name);
    name.strip_suffix("_perf")?.parse().ok()
}

/// The collective that a file name speaks of, the longest spelling first.
pub(super) fn collective_in_name(stem: &str) -> Option<Collective> {
    const SPELLINGS: [(&str, Collective); 11] = [
        ("reducescatter", Collective::ReduceScatter),
        ("allreduce", Collective::AllReduce),
        ("allgather", Collective::AllGather),
        ("alltoall", Collective::AllToAll),
        ("broadcast", Collective::Broadcast),
        ("sendrecv", Collective::SendRecv),
        ("scatter", Collective::Scatter),
        ("gather", Collective::Gather),
        ("reduce", Collective::Reduce),
        ("bcast", Collective::Broadcast),
        ("a2a", Collective::AllToAll),
    ];
    let plain: String = stem.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    SPELLINGS.iter().find(|(spelling, _)| plain.contains(spelling)).map(|&(_, collective)| collective)
}

/// Without the tags that launchers put before a line: `[1,0]<stdout>:` and `0: `.
fn without_prefix(line: &str) -> &str {
    if line.starts_with('[')
        && let Some((tag, rest)) = line.split_once(">:")
        && tag.len() < 32
        && tag.contains("]<std")
    {
        return rest.trim_start();
    }
    if let Some((tag, rest)) = line.split_once(": ")
        && !tag.is_empty()
        && tag.len() <= 6
        && tag.bytes().all(|b| b.is_ascii_digit())
    {
        return rest.trim_start();
    }
    line
}

/// Without the timestamp that `-S` puts last.
fn without_timestamp<'a, 'b>(tokens: &'a [&'b str]) -> &'a [&'b str] {
    match tokens {
        [rest @ .., date, clock] if date.len() == 10 && date.contains('-') && clock.contains(':') => rest,
        [rest @ .., stamp] if stamp.contains(':') => rest,
        _ => tokens,
    }
}

/// Whether a line begins with a size and a count; also where these cannot be meant, if it has the other cells of a row.
fn looks_like_row(tokens: &[&str]) -> bool {
    let [size, count, rest @ ..] = tokens else { return false };
    let is_whole = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let is_number = |text: &str| text.starts_with(['-', '+', '.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    let begins = is_whole(size) && count.starts_with(|c: char| c.is_ascii_digit()) && !count.contains([':', '-']);
    let of_known_type = rest.first().is_some_and(|name| name.parse::<DataType>().is_ok());
    begins || rest.len() >= 6 && (of_known_type && (is_number(size) || is_number(count)))
}

/// The texts of one row.
struct Fields<'a> {
    count: Option<&'a str>,
    dtype: Option<&'a str>,
    op: Option<&'a str>,
    root: Option<&'a str>,
    /// Time, algbw, busbw and `#wrong` of each half.
    halves: [[&'a str; 4]; 2],
    counts_wrong: bool,
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

/// The names above a table, if they are those of both halves; words around them and the timestamp that `-S` puts last
/// are no columns of ours.
fn columns(text: &str) -> Option<Vec<String>> {
    let plain = |name: &str| name.trim_start_matches('#').split('(').next().unwrap_or_default().to_lowercase();
    let names = text.split_whitespace().take(64).map(plain);
    let is_ours = |name: &String| !matches!(name.as_str(), "timestamp" | "|" | "out-of-place" | "in-place");
    let names: Vec<String> = names.filter(is_ours).collect();
    (names.iter().filter(|name| is_time(name)).count() == 2).then_some(names)
}

fn is_time(name: &str) -> bool {
    matches!(name, "time" | "cputime")
}

/// By the names above the table; `None` if these do not fit the row.
fn by_columns<'a>(columns: &[String], tokens: &[&'a str]) -> Option<Fields<'a>> {
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
fn by_shape<'a>(tokens: &[&'a str]) -> Option<Fields<'a>> {
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
