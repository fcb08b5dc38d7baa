//! The text that nccl-tests prints, as people keep it: whole, cut, pasted, indented, fenced.
//!
//! Lines are told apart by what they say and not by their `#`, since pasted logs lose it.
//! One file can hold several runs; a header line after a table starts the next one.

mod failed;
mod line;
mod row;
mod run;

use std::collections::BTreeSet;

use collcast_sim::collective::{Algorithm, DataType, Launch, Protocol};
use collcast_sim::measurement::{Choice, Measurement, Origin};
use collcast_sim::nccl;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_topologies::log::{variable, version};

use super::error::ReadError;
use super::parsed::{BY_NAME, Broken, EXPECTED_WRONG, End, Input, NOTES_MAX, Parsed, is_prediction_mark, wrong_values};
use super::program::collective_of_program;
use super::settings::{Env, assignments, from_env, is_relevant, plain_version, version_of_code, words};
use super::sidecar::shortened;
pub(super) use line::is_of_docker;
pub use line::plain_line;
use line::{untagged, writer};
use row::{Fields, LogRow, by_columns, by_shape, columns, looks_like_row, without_timestamp};
use run::{LogRun, SEVERAL, rank_line};

/// Longest line that is looked at; nccl-tests prints less than 300 bytes.
const LINE_MAX: usize = 64 * 1024;
/// Columns of nccl-tests' table, both halves.
const COLUMNS: usize = 13;
/// What is said of a run without rows.
const EARLY: &str = "the run ended before its first row";
/// Most rank lines kept of one run.
const RANK_LINES_MAX: usize = 1 << 20;

/// Reads the text of one file.
pub(super) fn parse(input: &Input<'_>) -> Result<Parsed, ReadError> {
    let mut reader = Reader {
        input,
        out: Parsed::default(),
        run: LogRun::default(),
        env_lines: Env::new(),
        env_used: false,
        next_command: None,
        open_row: None,
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
    reader.close_row()?;
    reader.ended_early(input.text.lines().count() as u64);
    reader.finish_run()?;
    Ok(reader.finish())
}

struct Reader<'a> {
    input: &'a Input<'a>,
    out: Parsed,
    run: LogRun,
    /// From `# env:`; what stands in several such lines before a run holds until the next one after it.
    env_lines: Env,
    /// Whether a run began since the last such line.
    env_used: bool,
    /// A command line that came after a table, of the run that comes next.
    next_command: Option<String>,
    /// The line and text of a row that a line of NCCL_DEBUG broke off; its other cells come later.
    open_row: Option<(u64, String)>,
    /// NCCL's version; holds for runs that do not say theirs.
    nccl: Option<String>,
    runs: u32,
    choices_only: usize,
    debug_lines: usize,
    comma_lines: usize,
}

impl Reader<'_> {
    fn line(&mut self, number: u64, raw: &str) -> Result<(), ReadError> {
        let plain = plain_line(raw);
        let (tags, line) = untagged(plain.trim());
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
            self.close_row()?;
        }
        if !commented && self.broken_row(number, text)? {
            return Ok(());
        }
        let rows = self.run.rows.len();
        if !commented && self.data_line(number, text)? {
            if self.run.rows.len() > rows {
                self.written_by(number, tags);
            }
            return Ok(());
        }
        if !self.header_line(number, text, commented)? {
            self.comma_lines += usize::from(text.matches(',').count() >= 4);
            self.debug_lines += usize::from(text.contains("NCCL INFO"));
            self.out.other_lines += 1;
        }
        Ok(())
    }

    /// A table has one writer: where another one wrote rows in between, it is two tables.
    fn written_by(&mut self, number: u64, tags: &str) {
        let Some(writer) = writer(tags) else { return };
        if self.run.writer.replace(writer) != Some(writer) && !self.run.writers.insert(writer) {
            self.several_at_once(number);
        }
    }

    /// Whether it was a piece of a row into which NCCL_DEBUG wrote, or a row behind what that wrote.
    fn broken_row(&mut self, number: u64, text: &str) -> Result<bool, ReadError> {
        let columns = self.run.columns.as_ref().map_or(COLUMNS, Vec::len);
        if let Some((said, row)) = behind_nccl(text, columns) {
            self.header_line(number, said, false)?;
            return self.data_line(number, row);
        }
        let is_cell = |text: &str| text == "N/A" || text.parse::<f64>().is_ok();
        let begins = |cells: &str| looks_like_row(&cells.split_whitespace().take(64).collect::<Vec<_>>());
        let (cells, said) = match cut_by_nccl(text) {
            Some((cells, said)) if self.open_row.is_some() || begins(cells) => (cells, Some(said)),
            None if text.split_whitespace().all(is_cell) => (text, None),
            _ if text.contains("NCCL ") => return Ok(false),
            _ => {
                self.close_row()?;
                return Ok(false);
            }
        };
        let (first, row) = match self.open_row.take() {
            Some((first, open)) => (first, format!("{open} {cells}")),
            None if said.is_some() => (number, cells.to_owned()),
            None => return Ok(false),
        };
        if row.split_whitespace().count() < columns {
            self.open_row = Some((first, row));
        } else {
            self.data_line(first, &row)?;
        }
        if let Some(said) = said {
            self.header_line(number, said, false)?;
        }
        Ok(true)
    }

    /// The rest of a broken row did not come.
    fn close_row(&mut self) -> Result<(), ReadError> {
        if let Some((number, row)) = self.open_row.take() {
            self.data_line(number, &row)?;
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
        match fields.and_then(|fields| LogRow::read(number, tokens, &fields, &mut self.out)) {
            Ok(row) => {
                if self.out.rows.len() + self.run.rows.len() * 2 >= self.input.rows_left {
                    return Err(self.input.too_many_rows());
                }
                self.run.rows.push(row);
            }
            Err(problem) => {
                self.out.unreadable += 1;
                self.run.unread += 1;
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
                self.run.failed |= count.is_some_and(|count| count > 0.0);
                self.out.wrong(number, count);
            }
        }
        Ok(())
    }

    /// Whether the line was one of those that are understood.
    fn header_line(&mut self, number: u64, text: &str, commented: bool) -> Result<bool, ReadError> {
        if self.start_line(number, text, commented)? || self.nccl_line(number, text)? {
            return Ok(true);
        }
        if text.contains("NCCL WARN ") {
            self.out.note_once(Some(number), "NCCL warns; `collcast lint` says what of".to_owned());
        }
        if text.contains("NCCL INFO") {
            self.communicator(text);
            return Ok(false);
        }
        if self.table_line(number, text)? {
            return Ok(true);
        }
        if is_command(text) {
            match self.run.rows.is_empty() {
                true if self.run.collective.is_none() => self.command(text),
                true => {}
                // What comes after a table is of the next one.
                false => self.next_command = Some(text.to_owned()),
            }
        }
        Ok(false)
    }

    /// Whether it was a line that comes before the table: how the run was started, and its devices.
    fn start_line(&mut self, number: u64, text: &str, commented: bool) -> Result<bool, ReadError> {
        if commented && let Some(rest) = text.strip_prefix("env:") {
            self.next_run()?;
            if std::mem::take(&mut self.env_used) {
                self.env_lines.clear();
            }
            self.env_lines.extend(assignments(&words(rest)));
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
            self.env_used = true;
            self.threads(text);
            return Ok(true);
        }
        if commented && let Some(said) = text.strip_prefix("error: ") {
            self.out.last_error(number, said);
            return Ok(true);
        }
        if text.starts_with("Blocking Enabled") {
            self.run.blocking = Some(1);
            return Ok(true);
        }
        if text == "Using devices" {
            self.next_run()?;
            // A run that ended before its table has listed its devices. The same test, if it does not say why, was started anew.
            if self.run.failed || self.run.listed != self.run.collective {
                self.ended_early(number);
            }
            self.run.listed = self.run.collective;
            self.run.failed = false;
            self.run.ranks.clear();
            self.run.gpus_used.clear();
            self.run.same_gpu = false;
            self.run.groups.clear();
            return Ok(true);
        }
        if text.starts_with("Rank ") && text.contains(" device ") {
            self.next_run()?;
            self.device(number, text);
            return Ok(true);
        }
        if let Some(at) = text.find("nccl-tests version ") {
            self.next_run()?;
            let code = text[at..].split_once("nccl-library=").and_then(|(_, code)| code.trim().parse().ok());
            self.run.linked = code.and_then(version_of_code).or(self.run.linked.take());
            return Ok(true);
        }
        Ok(false)
    }

    /// `nThread 1 nGpus 8 ... graph: 0`.
    fn threads(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let value = |key: &str| {
            words
                .windows(2)
                .find(|pair| pair[0].trim_end_matches(':') == key)
                .and_then(|pair| pair[1].parse::<u32>().ok())
        };
        // `warmup iters: 5 iters: 20 agg iters: 1`.
        let iters = |is_meant: &dyn Fn(&str) -> bool| {
            let of = words.windows(3).find(|three| three[1] == "iters:" && is_meant(three[0]));
            of.and_then(|three| three[2].parse::<u32>().ok())
        };
        self.run.threads = value("nThread");
        self.run.gpus = value("nGpus");
        self.run.graph = value("graph");
        self.run.calls = iters(&|before| before.parse::<u32>().is_ok()).or(self.run.calls);
        self.run.together = iters(&|before| before == "agg").or(self.run.together);
    }

    /// A device line: where a rank ran.
    fn device(&mut self, number: u64, text: &str) {
        match rank_line(text) {
            Some((rank, group, place)) if self.run.ranks.len() < RANK_LINES_MAX => {
                self.run.groups.insert(group);
                // The bus and not the number: that changes with CUDA_VISIBLE_DEVICES.
                let bus = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                let gpu = bus.map(|(bus, _)| (place.0.clone(), shortened(bus)));
                match self.run.ranks.insert(rank, place.clone()) {
                    Some(earlier) if earlier != place => self.several_at_once(number),
                    Some(_) => {}
                    None => self.run.same_gpu |= gpu.as_ref().is_some_and(|gpu| self.run.gpus_used.contains(gpu)),
                }
                self.run.gpus_used.extend(gpu);
                // What follows the bus: `[0000:00:06] NVIDIA H200`.
                self.out.gpus.extend(text.split_once("] ").map(|(_, name)| shortened(name.trim())));
            }
            _ => {
                self.out.unreadable += 1;
                let text = format!("`{}` is not a device line", shortened(text));
                self.out.note(Some(number), text);
            }
        }
    }

    /// Lines of several runs are mixed: no row can be told to be of one of them.
    fn several_at_once(&mut self, number: u64) {
        if !self.run.mixed {
            self.run.mixed = true;
            self.out.defect(number, SEVERAL.to_owned());
        }
    }

    /// Whether it was NCCL that said so: its version, its choice, or a variable that it was given.
    fn nccl_line(&mut self, number: u64, text: &str) -> Result<bool, ReadError> {
        if let Some(version) = version(text).and_then(plain_version) {
            // Another version after a table is that of the next run.
            if self.run.finished || self.run.nccl.as_ref().is_some_and(|earlier| *earlier != version) {
                self.next_run()?;
            }
            self.run.nccl = Some(version);
            return Ok(true);
        }
        if let Some((before, after)) = text.split_once(" Bytes -> Algo ") {
            self.choice(number, before, after);
            return Ok(true);
        }
        if let Some((name, value)) = variable(text) {
            if is_relevant(name) {
                self.run.env.insert(name.to_owned(), value.to_owned());
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// The size of the communicator, as NCCL_DEBUG tells it.
    fn communicator(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.windows(2) {
            let value = || pair[1].parse::<u32>().ok().filter(|&value| value > 0);
            match pair[0] {
                "nranks" | "nRanks" => self.run.debug_ranks = value(),
                "nNodes" => self.run.debug_nodes = value(),
                "MNNVL" => self.run.domains = value().is_some(),
                _ => {}
            }
        }
    }

    /// Whether it was a line of the table that is no row, or one that comes after it.
    fn table_line(&mut self, number: u64, text: &str) -> Result<bool, ReadError> {
        if text.starts_with("size") && text.contains("busbw") && text.contains("time") {
            if self.next_command.is_some() {
                self.next_run()?;
            }
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
            // The second such line after the same rows.
            if self.run.averaged.replace(self.run.rows.len()) == Some(self.run.rows.len()) {
                self.several_at_once(number);
            }
            if text.ends_with("FAILED") {
                self.says(number, text);
            }
            return Ok(true);
        }
        if failed::says_so(text) {
            self.says(number, text);
            return Ok(true);
        }
        Ok(false)
    }

    /// A run that failed by its own words.
    fn says(&mut self, number: u64, text: &str) {
        self.run.failed = true;
        self.out.defect(number, format!("the run says: {}", shortened(text)));
    }

    /// Keeps a run that did not end well, under the name of its rows.
    fn broken(&mut self, run: String, hosts: &BTreeSet<&String>, end: End) {
        if end != End::Whole && self.out.broken.len() < NOTES_MAX {
            self.out.broken.push(Broken { run, hosts: hosts.iter().map(|&host| host.clone()).collect(), end });
        }
    }

    /// A run that listed its devices and ended before its first row.
    fn ended_early(&mut self, number: u64) {
        if !self.run.rows.is_empty() || self.run.ranks.is_empty() || self.run.finished || self.run.unread > 0 {
            return;
        }
        if !self.run.failed {
            self.out.defect(number, EARLY.to_owned());
        }
        let run = std::mem::take(&mut self.run);
        self.broken(String::new(), &run.named_hosts(), End::Failed);
        self.run = run;
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
        self.run.failed |= count > 0.0 || text.contains("FAILED");
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
                .any(|part| collective_of_program(part).is_some())
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
                "-n" | "--iters" => &mut self.run.calls,
                "-m" | "--agg_iters" => &mut self.run.together,
                "-z" | "--blocking" => &mut self.run.blocking,
                "-R" | "--local_register" => &mut self.run.register,
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
        let run = std::mem::take(&mut self.run);
        if run.rows.is_empty() {
            return Ok(());
        }
        self.env_used = true;
        if let Some(line) = self.next_command.take() {
            self.command(&line);
        }
        self.nccl = run.nccl.clone().or_else(|| run.linked.clone()).or(self.nccl.take());
        self.runs += 1;
        let name = match self.runs {
            1 => self.input.stem.to_owned(),
            more => format!("{}#{more}", self.input.stem),
        };
        if !run.finished {
            self.out.unfinished(run.rows.last().map_or(0, |row| row.line));
        }
        self.broken(name.clone(), &run.named_hosts(), run.end());
        let first_line = run.rows.first().map(|row| row.line);
        let sidecar = self.input.sidecar;
        if let Some(text) = &run.unknown_test {
            self.out.lack(first_line, format!("{text}; its rows are left out"));
            return Ok(());
        }
        if let Some(text) = run.problem() {
            self.out.lack(first_line, format!("{text}; its rows are left out"));
            return Ok(());
        }
        let found = self.input.collective(run.collective);
        let found = found.and_then(|named| Ok((named, run.ranks(named, self.input, &mut self.out)?)));
        let ((collective, by), ranks) = match found {
            Ok(found) => found,
            Err(text) => {
                self.out.lack(first_line, text);
                return Ok(());
            }
        };
        if by == BY_NAME {
            self.out.note_once(None, format!("it is taken for {collective} by the file's name"));
        }
        let hosts = run.hosts(ranks, sidecar, &mut self.out);
        let launch = run.launch().or(sidecar.launch);

        let mut env = sidecar.env.clone();
        env.extend(self.env_lines.clone());
        env.extend(run.env.clone());
        let mut notes = Vec::new();
        let mut settings = from_env(&env, collective, &mut notes);
        for text in notes {
            self.out.note_once(None, text);
        }
        env.retain(|name, _| is_relevant(name));
        settings.nccl = self.nccl.clone().or_else(|| sidecar.nccl.clone());
        // nccl-tests takes its buffers from `ncclMemAlloc`; `-R` registers them (1 local, 2 symmetric).
        settings.registered = launch == Some(Launch::Graph) || run.register.is_some_and(|how| how > 0);
        settings.host_names = run.named_hosts().into_iter().cloned().collect();
        settings.gpus = run.gpus_used.iter().cloned().collect();

        self.out.env.extend(env.clone());
        self.out.run_env.insert(name.clone(), env);
        for row in &run.rows {
            if let Some(problem) = row.misfit(collective, ranks) {
                self.out.unreadable += 1;
                self.out.note(Some(row.line), problem);
                continue;
            }
            for (half, in_place) in row.halves.iter().zip([false, true]).take(run.halves()) {
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
                    timing: sidecar.timing.or(run.timing()),
                    dtype: row.dtype,
                    op: row.op.filter(|_| collective.reduces()),
                    root: row.root.filter(|_| collective.rooted()),
                    in_place,
                    size: Bytes(row.size),
                    time: SimDuration::from_us(time_us),
                    settings: settings.clone(),
                    chosen: run.choice_for(collective, ranks, row.size),
                    origin: Origin { file: self.input.path.display().to_string(), line: row.line },
                });
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Parsed {
        self.out.nccl = self.nccl.or_else(|| self.input.sidecar.nccl.clone());
        if self.out.rows.is_empty() && self.out.reason.is_none() {
            self.out.reason = Some(if self.out.ended_early() {
                EARLY.to_owned()
            } else if self.out.unusable > 0 {
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

/// Whether a line runs a test: a flag follows the program, or the line begins as commands do.
fn is_command(text: &str) -> bool {
    let Some((_, after)) = text.split_once("_perf") else { return false };
    let after = after.strip_prefix("_mpi").unwrap_or(after).trim_start();
    let is_flag = |c: char| c == '-' || c.is_ascii_alphabetic();
    let has_flag = after.strip_prefix('-').is_some_and(|flag| flag.starts_with(is_flag));
    let first = text.split_whitespace().next().unwrap_or_default();
    let is_launcher = matches!(first, "mpirun" | "mpiexec" | "prterun" | "srun");
    has_flag || is_launcher || first.starts_with(['+', '$', '/']) || first.contains("./") || first.starts_with("~/")
}

/// Where a line of NCCL_DEBUG begins in the midst of a row: the cells before `host:pid:tid [n] NCCL`, and the rest. The last
/// cell has no space after it, so that hosts which begin with a digit cannot be told from it.
fn cut_by_nccl(text: &str) -> Option<(&str, &str)> {
    let (before, _) = text.split_once("] NCCL ")?;
    let (before, _) = before.rsplit_once(" [")?;
    let at = before.rfind(' ')? + 1;
    let word = &before[at..];
    let digits = word.trim_start_matches('-').trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let host = word.strip_prefix("N/A").unwrap_or(digits);
    let is_cut = host.len() < word.len() && host.starts_with(|c: char| c.is_ascii_alphabetic()) && host.contains(':');
    is_cut.then(|| text.split_at(at + word.len() - host.len()))
}

/// A line of NCCL_DEBUG without its end, and the row of the table that follows it.
fn behind_nccl(text: &str, columns: usize) -> Option<(&str, &str)> {
    let from = text.find("NCCL INFO ").or_else(|| text.find("NCCL WARN "))?;
    let words: Vec<&str> = text[from..].split_whitespace().collect();
    let row = words.len().checked_sub(columns).filter(|&before| before > 2).map(|before| &words[before..])?;
    let is_row = looks_like_row(row) && row.get(2).is_some_and(|name| name.parse::<DataType>().is_ok());
    let begin = row.first()?.as_ptr() as usize - text.as_ptr() as usize;
    is_row.then(|| text.split_at(begin))
}
