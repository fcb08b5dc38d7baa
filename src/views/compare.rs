//! What became slower: bands of sizes, the worst first; each row; the verdict.

use std::collections::BTreeSet;

use collcast_reports::model::{CaseOutcome, Cell, Column, Report, Status, Table, TestCase, Verdict};
use collcast_sim::units::Bytes;

use super::VERSION;
use crate::compare::{
    AGREEING, Alone, Band, Between, Change, Defect, Difference, FAMILY_ERROR, HostBand, Mixed, NAMES, Outcome, Series,
};
use crate::values::{few, plural};

/// Series without a partner that a warning names.
const ALONE_NAMED: usize = 5;

impl Outcome {
    /// The tables `bands` and `rows`. For programs, columns are apart, and `unmatched` are the rows without a partner.
    pub fn report(&self, for_people: bool) -> Report {
        let mut report = Report::new("compare", VERSION);
        report.predicted = self.between == Between::Forecasts;
        report.inputs = self.sides.iter().flat_map(|side| side.inputs.clone()).collect();
        report.assumptions = self.assumptions();
        report.warnings = self.warnings();
        report.lead = self.lead();
        report.verdict = Some(self.verdict());
        let slower = self.hosts.iter().filter(|host| host.change == Change::Slower).map(of_host);
        report.cases = self
            .bands
            .iter()
            .map(|band| self.case(band))
            .chain(slower)
            .chain(self.defects.iter().map(failure))
            .chain(self.missing())
            .collect();
        report.extra.insert("overall".to_owned(), self.overall());
        let mut worst_first: Vec<&Band> = self.bands.iter().collect();
        if for_people {
            worst_first.sort_by_key(|band| band.change);
        }
        report.tables = vec![bands_table(&worst_first, for_people), rows_table(&self.bands, for_people)];
        let is_told = |host: &HostBand| !for_people || matches!(host.change, Change::Slower | Change::Faster);
        if self.hosts.iter().any(is_told) || !for_people {
            report.tables.insert(1, hosts_table(&self.hosts, for_people));
        }
        if !for_people {
            report.tables.extend([unmatched_table(&self.unmatched), self.differences_table()]);
        }
        report
    }

    fn assumptions(&self) -> Vec<String> {
        let sides = NAMES.iter().zip(&self.sides);
        let copies = |count: usize| match count {
            0 => String::new(),
            _ => format!("; {count} more were second copies of rows of its files"),
        };
        let said =
            sides.map(|(name, side)| format!("{name}: {}, {} rows{}", side.label, side.rows, copies(side.copies)));
        let mut lines: Vec<String> = said.collect();
        lines.extend(self.differences.iter().map(|d| format!("A and B differ in {d}")));
        if !self.said.is_empty() {
            let said: Vec<String> = self.said.iter().map(ToString::to_string).collect();
            lines.push(format!(
                "rows are not matched by what logs say of their runs, and differ in: {}",
                said.join("; ")
            ));
        }
        let noise = match (self.between, self.repeats) {
            (Between::Same, _) => "A and B are the same rows of the same files: no noise is between them".to_owned(),
            (Between::Forecasts, _) => "forecasts have no noise".to_owned(),
            (Between::Measured, [0, 0]) => {
                "no repeats: intervals are from the known noise of the launch mode".to_owned()
            }
            (Between::Measured, [a, b]) => {
                format!("{a} repeats in A and {b} in B, joined with the known noise of the launch mode")
            }
        };
        if !self.hosts.is_empty() {
            lines.push(format!(
                "{} hosts, or sets of hosts, are each held against themselves as well",
                self.host_sets()
            ));
        }
        lines.push(format!(
            "{noise}; all intervals hold together with {:.0}%; tolerance {}%",
            (1.0 - FAMILY_ERROR) * 100.0,
            self.limit()
        ));
        lines
    }

    fn warnings(&self) -> Vec<String> {
        let sides = || NAMES.iter().zip(&self.sides);
        let mut lines: Vec<String> =
            sides().flat_map(|(name, side)| side.warnings.iter().map(move |w| format!("{name}: {w}"))).collect();
        if self.between != Between::Forecasts
            && let Some((name, _)) = sides().find(|(_, side)| side.predicted)
        {
            lines.push(format!("{name} has forecasts, whose error is in no interval; `validate` judges those"));
        }
        for (name, alone) in NAMES.iter().zip(&self.unmatched).filter(|(_, alone)| !alone.is_empty()) {
            let rows = rows_of(alone);
            let named: Vec<String> =
                (alone.iter().take(ALONE_NAMED)).map(|a| format!("{}: {} ({})", a.series, a.rows, a.sizes())).collect();
            let more = if alone.len() > ALONE_NAMED { "; ..." } else { "" };
            let rows = plural(rows, "row is", "rows are");
            lines.push(format!("{rows} in {name} only: {}{more}", named.join("; ")));
        }
        for band in &self.bands {
            let apart: Vec<String> =
                band.apart().map(|row| format!("{} {:.3}", Bytes(row.size_bytes), row.ratio)).collect();
            if !apart.is_empty() {
                lines.push(format!(
                    "{}, {}: apart from the sizes beside it: {}; repeat both runs, {AGREEING} times or more",
                    band.series,
                    band.sizes(),
                    few(&apart)
                ));
            }
        }
        for band in self.bands.iter().filter(|band| band.disturbed) {
            let rows: Vec<String> =
                band.rows.iter().map(|row| format!("{} {:.3}", Bytes(row.size_bytes), row.ratio)).collect();
            lines.push(format!(
                "{}, {}: too few sizes, and one disturbed measurement could be all of the change ({}): repeat the runs",
                band.series,
                band.sizes(),
                rows.join(", ")
            ));
        }
        for mixed in &self.mixed {
            let sides = NAMES.iter().zip(&mixed.values).filter(|(_, values)| !values.is_empty());
            let several = sides.clone().filter(|(_, values)| values.len() > 1).map(|(name, _)| *name);
            let values: Vec<String> =
                sides.map(|(name, values)| format!("{name} has {}", joined(values, ", "))).collect();
            let mixes = several.collect::<Vec<_>>().join(" and ");
            lines.push(format!("{mixes}: several of {}, and medians are of all: {}", mixed.setting, values.join("; ")));
        }
        lines.extend(self.rerouted.iter().map(|r| format!("NCCL ran something else, {r}")));
        lines
    }

    /// What differs throughout or is mixed, for programs.
    fn differences_table(&self) -> Table {
        let columns = ["kind", "setting", "a", "b", "collectives"].map(|key| Column::text(key, key));
        let mut table = Table::new("differences", "what differs between A and B beside times", columns);
        let differ = |kind, all: &[Difference]| {
            let names = |d: &Difference| d.collectives.iter().map(|c| c.name()).collect::<Vec<_>>().join(",");
            let row = |d: &Difference| [kind, &*d.setting, &*d.a, &*d.b, &*names(d)].map(Cell::from).to_vec();
            all.iter().map(row).collect::<Vec<_>>()
        };
        let mixed = |mixed: &Mixed| {
            let [a, b] = mixed.values.each_ref().map(|values| joined(values, ","));
            ["mixed", &*mixed.setting, &*a, &*b, ""].map(Cell::from).to_vec()
        };
        let mut rows = differ("compared", &self.differences);
        rows.extend(differ("said", &self.said));
        rows.extend(self.mixed.iter().map(mixed));
        rows.into_iter().for_each(|row| table.push(row));
        table
    }

    /// The tolerance in percent, in the fewest digits that say it.
    fn limit(&self) -> String {
        format!("{:.2}", self.tolerance * 100.0).trim_end_matches('0').trim_end_matches('.').to_owned()
    }

    fn case(&self, band: &Band) -> TestCase {
        let (change, finding) = (band.change.name(), band.finding());
        let outcome = match band.change {
            Change::Same | Change::Faster => CaseOutcome::Passed,
            Change::CannotTell => CaseOutcome::Skipped(format!(
                "cannot tell: time of B / time of A is {finding}; repeat the runs to see less than {}%",
                self.limit()
            )),
            Change::Slower => {
                let rows = band.rows.iter().map(|row| {
                    let [a, b] = row.time_us;
                    format!("{:>12} B  {a:>12.2} us -> {b:>12.2} us  x {:.3}\n", row.size_bytes, row.ratio)
                });
                CaseOutcome::Failed {
                    kind: change.to_owned(),
                    message: format!("{change}: time of B / time of A is {finding}"),
                    details: rows.collect(),
                }
            }
        };
        TestCase {
            group: band.series.collective.name().to_owned(),
            name: format!("{}, {}", band.series, band.sizes()),
            outcome,
            place: None,
        }
    }

    fn overall(&self) -> serde_json::Value {
        serde_json::json!({
            "verdict": self.change().name(),
            "tolerance": self.tolerance,
            "error_rate": FAMILY_ERROR,
            "bands": self.bands.len(),
            "bands_slower": self.count(Change::Slower),
            "bands_faster": self.count(Change::Faster),
            "bands_cannot_tell": self.count(Change::CannotTell),
            "bands_no_change": self.count(Change::Same),
            "rows": self.bands.iter().map(|b| b.rows.len()).sum::<usize>(),
            "rows_only_in_a": rows_of(&self.unmatched[0]),
            "rows_only_in_b": rows_of(&self.unmatched[1]),
            "repeats_a": self.repeats[0],
            "repeats_b": self.repeats[1],
        })
    }

    /// The verdict's first statement in percent; nothing where no band differs.
    fn lead(&self) -> String {
        let change = self.change();
        let (word, extent, sign) = match change {
            Change::Slower => ("slower", "at worst", 100.0),
            Change::Faster => ("faster", "at best", -100.0),
            Change::Same | Change::CannotTell => return String::new(),
        };
        let Some(band) = self.most(change) else { return self.by_host().unwrap_or_default() };
        let ratio = band.decisive();
        let [value, low, high] = [ratio.value, ratio.low, ratio.high].map(|ratio| sign * (ratio - 1.0));
        let (count, total) = (self.count(change), self.bands.len());
        format!(
            "B is {word} than A in {count} of {total} ranges of sizes, {extent} by {value:.1}% ({:.1}% to {:.1}%)",
            low.min(high),
            low.max(high)
        )
    }

    /// The cases of what B lacks: nothing is told of it.
    fn missing(&self) -> impl Iterator<Item = TestCase> {
        let case = |why: &'static str| {
            move |name: &String| TestCase {
                group: "missing".to_owned(),
                name: name.clone(),
                outcome: CaseOutcome::Skipped(format!("cannot tell: {why}: {name}")),
                place: None,
            }
        };
        let absent = self.absent.iter().map(case("B has no run of these hosts of A"));
        let lost = self.lost.iter().map(case("B lacks what A has"));
        absent.chain(lost).chain(self.unread.iter().map(case("the file could not be read")))
    }

    /// Sets of hosts that both sides have.
    fn host_sets(&self) -> usize {
        self.hosts.iter().map(|host| &host.hosts).collect::<BTreeSet<_>>().len()
    }

    /// The one host that all slower sets have, where they are several and other sets have it seldom.
    fn shared_host(&self) -> Option<&str> {
        let mut slower = self.slower_hosts().map(|(hosts, _)| hosts.split(',').collect::<BTreeSet<_>>());
        let first = slower.next()?;
        let (count, shared) = slower.fold((1, first), |(count, shared), hosts| (count + 1, &shared & &hosts));
        let only = (count > 1 && shared.len() == 1).then(|| shared.into_iter().next());
        only.flatten()
    }

    /// Hosts that are slower, and how many times as long they take.
    fn by_host(&self) -> Option<String> {
        let slower: Vec<String> =
            self.slower_hosts().map(|(hosts, band)| format!("{hosts} {:.2}x", band.ratio.value)).collect();
        let verb = if slower.len() == 1 { "takes" } else { "take" };
        let (count, all) = (slower.len(), self.host_sets());
        // A set of several has commas between them.
        let what = if self.hosts.iter().any(|host| host.hosts.contains(',')) { "sets of hosts" } else { "hosts" };
        let shared = self.shared_host().map_or_else(String::new, |host| format!("; {host} is in all of these"));
        (count > 0).then(|| format!("{count} of {all} {what} {verb} longer in B than in A: {}{shared}", few(&slower)))
    }

    fn verdict(&self) -> Verdict {
        let (change, total) = (self.change(), self.bands.len());
        let count = self.count(change);
        let most = self
            .most(change)
            .map_or_else(String::new, |band| format!("{}, {}: {}", band.series, band.sizes(), band.finding()));
        let unclear = self.count(Change::CannotTell);
        let unseen = format!("a change up to {:.0}% could not be seen", self.unseen() * 100.0);
        let sentence = match change {
            // All together are not slower.
            Change::Slower if count == 0 => self.by_host().unwrap_or_default(),
            Change::Slower => format!("B is slower in {count} of {total} bands of sizes, most in {most}"),
            Change::Faster if unclear > 0 => format!(
                "nothing is slower beyond noise; B is faster in {count} of {total} bands of sizes, most in {most}; in {unclear} {unseen}"
            ),
            Change::Faster => {
                format!("nothing is slower; B is faster in {count} of {total} bands of sizes, most in {most}")
            }
            Change::Same => format!("no change beyond {}% in any of {total} bands of sizes", self.limit()),
            Change::CannotTell => {
                format!("nothing is slower beyond noise; in {count} of {total} bands of sizes {unseen}")
            }
        };
        let by_host = self.by_host().filter(|_| count > 0 && change == Change::Slower);
        let sentence = by_host.map_or(sentence.clone(), |by_host| format!("{sentence}; {by_host}"));
        let alone = self.unmatched.each_ref().map(|alone| rows_of(alone));
        let mut alone_text = match alone {
            [0, 0] => String::new(),
            [a, b] => format!("; {a} rows of A and {b} of B have no partner"),
        };
        if !self.absent.is_empty() {
            let are_sets = self.absent.iter().any(|hosts| hosts.contains(','));
            let (one, many) = if are_sets { ("set of hosts", "sets of hosts") } else { ("host", "hosts") };
            let count = plural(self.absent.len(), &format!("{one} of A is"), &format!("{many} of A are"));
            alone_text += &format!("; {count} not in B: {}", few(&self.absent));
        }
        if !self.unread.is_empty() {
            alone_text += &format!("; {} of B could not be read", plural(self.unread.len(), "file", "files"));
        }
        if !self.lost.is_empty() {
            alone_text += &format!("; B lacks {}", few(&self.lost));
        }
        let lacks = !self.absent.is_empty() || !self.lost.is_empty() || !self.unread.is_empty();
        if let Some(Defect { what, .. }) = self.defects.first() {
            let more = match self.defects.len() - 1 {
                0 => String::new(),
                more => format!(" ({more} more such files)"),
            };
            let [a, b] = self.defective;
            let lead = match a {
                0 => "B is not as A was".to_owned(),
                _ => format!("{} of B and {a} of A are wrong, failed or were cut", plural(b, "file", "files")),
            };
            return Verdict {
                status: Status::Failed,
                sentence: format!("{lead}: {what}{more}; {sentence}{alone_text}"),
                confidence: "high: its own log says so".to_owned(),
                basis: "measured".to_owned(),
                next: Some(NEXT_OF_DEFECTS.to_owned()),
            };
        }
        // A change for the better is no answer for what noise hides.
        let is_open = unclear > 0 && change != Change::Slower;
        let beside_forecasts = self.between != Between::Forecasts && self.sides.iter().any(|side| side.predicted);
        // What either has alone may be the same call under other settings.
        let both_alone = alone.iter().all(|&rows| rows > 0);
        Verdict {
            status: match change {
                Change::Slower => Status::Failed,
                _ if is_open => Status::Warning,
                Change::Faster | Change::Same if both_alone || lacks => Status::Warning,
                Change::Faster | Change::Same | Change::CannotTell => Status::Ok,
            },
            sentence: sentence + &alone_text,
            confidence: match change {
                _ if beside_forecasts => "low: the error of forecasts is in no interval".to_owned(),
                _ if is_open => "low: too few repeats for so much noise".to_owned(),
                _ if self.between == Between::Same => "high: they are the same rows".to_owned(),
                _ if self.between == Between::Forecasts => {
                    "medium: forecasts have no noise, but may be off from what a machine does".to_owned()
                }
                _ => format!("high: wrong with a chance below {:.0}% if nothing changed", FAMILY_ERROR * 100.0),
            },
            basis: match self.between {
                Between::Forecasts => "forecasts",
                _ if beside_forecasts => "measured beside forecasts",
                Between::Measured | Between::Same => "measured",
            }
            .to_owned(),
            next: match change {
                _ if is_open => Some("repeat both runs a few times and compare the folders".to_owned()),
                Change::Slower if self.slower_hosts().next().is_some() => {
                    let hosts: Vec<&str> = self.slower_hosts().map(|(hosts, _)| hosts).collect();
                    Some(format!(
                        "run B's tests again on {}, then look for what is slow there (`collcast validate`)",
                        few(&hosts)
                    ))
                }
                Change::Slower if self.between == Between::Forecasts => Some("look at each size (--rows)".to_owned()),
                Change::Slower => Some("look at each size (--rows); repeat both runs to be surer".to_owned()),
                Change::Faster | Change::Same if lacks => {
                    Some("look why B lacks them: did their runs not start, or are the logs elsewhere?".to_owned())
                }
                Change::Faster | Change::Same if both_alone => Some(
                    "see in what they differ in the warnings; choose what answers to what with --where-a, --where-b"
                        .to_owned(),
                ),
                Change::Faster | Change::Same | Change::CannotTell => None,
            },
        }
    }
}

/// What to do where runs of B failed, were cut or gave wrong results.
const NEXT_OF_DEFECTS: &str = "find what corrupts the data or stops the run (NCCL_DEBUG=INFO, ECC and link errors of \
     nvidia-smi -q) and measure again";

/// The case of hosts that are slower.
fn of_host(host: &HostBand) -> TestCase {
    let HostBand { hosts, series, ratio, .. } = host;
    let message = format!(
        "slower: time of B / time of A is {:.3} ({:.3} to {:.3}) on {hosts}",
        ratio.value, ratio.low, ratio.high
    );
    TestCase {
        group: series.collective.name().to_owned(),
        name: format!("{series}, {}, {hosts}", host.sizes()),
        outcome: CaseOutcome::Failed { kind: host.change.name().to_owned(), message, details: String::new() },
        place: None,
    }
}

/// The bands of each set of hosts; for people those that changed, the worst first.
fn hosts_table(hosts: &[HostBand], for_people: bool) -> Table {
    let mut columns = vec![Column::text("verdict", "verdict"), Column::text("hosts", "hosts")];
    columns.extend(identity(for_people));
    columns.extend([
        Column::text("band", "size"),
        Column::number("ratio", "ratio"),
        Column::number("low", "low"),
        Column::number("high", "high"),
    ]);
    let mut table = Table::new("hosts", "time of B / time of A by host, each beside itself, where it changed", columns);
    let mut shown: Vec<&HostBand> = hosts.iter().collect();
    if for_people {
        shown.retain(|host| matches!(host.change, Change::Slower | Change::Faster));
        shown.sort_by(|a, b| a.change.cmp(&b.change).then(b.ratio.value.total_cmp(&a.ratio.value)));
    }
    for host in shown {
        let mut row = vec![host.change.name().into(), host.hosts.as_str().into()];
        row.extend(identify(&host.series, for_people));
        row.extend([
            host.sizes().into(),
            Cell::float(host.ratio.value, 3),
            Cell::float(host.ratio.low, 3),
            Cell::float(host.ratio.high, 3),
        ]);
        table.push(row);
    }
    table
}

/// The case of a file that is wrong.
fn failure(defect: &Defect) -> TestCase {
    let outcome =
        CaseOutcome::Failed { kind: "failed".to_owned(), message: defect.what.clone(), details: String::new() };
    TestCase { group: "run".to_owned(), name: format!("run_failed, {}", defect.file), outcome, place: None }
}

fn joined(values: &BTreeSet<String>, between: &str) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(between)
}

fn rows_of(alone: &[Alone]) -> usize {
    alone.iter().map(|a| a.rows).sum()
}

/// The columns that say what a row is: one for people, each of its own for programs.
fn identity(for_people: bool) -> Vec<Column> {
    if for_people {
        return vec![Column::text("series", "what")];
    }
    let settings = Series::keys().map(|key| Column::text(key, key));
    [Column::text("collective", "collective"), Column::number("ranks", "ranks")].into_iter().chain(settings).collect()
}

fn identify(series: &Series, for_people: bool) -> Vec<Cell> {
    if for_people {
        return vec![series.to_string().into()];
    }
    let text = |s: &str| if s.is_empty() { Cell::Missing } else { s.into() };
    [series.collective.name().into(), series.ranks.into()].into_iter().chain(series.settings().map(text)).collect()
}

fn bands_table(bands: &[&Band], for_people: bool) -> Table {
    let mut columns = vec![Column::text("verdict", "verdict")];
    columns.extend(identity(for_people));
    columns.extend([
        Column::text("band", "size"),
        Column::number("rows", "rows"),
        Column::number("ratio", "ratio"),
        Column::number("low", "low"),
        Column::number("high", "high"),
        Column::text("at", "at"),
    ]);
    let title = "time of B / time of A (above 1: B is slower), medians by size, or of the sizes in `at`";
    let mut table = Table::new("bands", title, columns);
    for band in bands {
        let ratio = band.decisive();
        let mut row = vec![band.change.name().into()];
        row.extend(identify(&band.series, for_people));
        row.extend([
            band.sizes().into(),
            band.rows.len().into(),
            Cell::float(ratio.value, 3),
            Cell::float(ratio.low, 3),
            Cell::float(ratio.high, 3),
            band.at_sizes().into(),
        ]);
        table.push(row);
    }
    table
}

fn rows_table(bands: &[Band], for_people: bool) -> Table {
    let mut columns = identity(for_people);
    columns.extend([
        Column::number("size_bytes", "size"),
        Column::number("repeats_a", "A"),
        Column::number("repeats_b", "B"),
        Column::number("time_a_us", "A us"),
        Column::number("time_b_us", "B us"),
        Column::number("ratio", "ratio"),
        Column::number("ratio_near", "near"),
        Column::number("low", "low"),
        Column::number("high", "high"),
        Column::text("verdict", "verdict"),
    ]);
    let title = "each size; near, low and high are of the neighbouring sizes too";
    let mut table = Table { detail: true, ..Table::new("rows", title, columns) };
    for band in bands {
        for row in &band.rows {
            let mut cells = identify(&band.series, for_people);
            cells.extend([
                row.size_bytes.into(),
                row.repeats[0].into(),
                row.repeats[1].into(),
                Cell::float(row.time_us[0], 2),
                Cell::float(row.time_us[1], 2),
                Cell::float(row.ratio, 3),
                Cell::float(row.near.value, 3),
                Cell::float(row.near.low, 3),
                Cell::float(row.near.high, 3),
                row.change.name().into(),
            ]);
            table.push(cells);
        }
    }
    table
}

fn unmatched_table(unmatched: &[Vec<Alone>; 2]) -> Table {
    let columns = [
        Column::text("set", "set"),
        Column::text("series", "what"),
        Column::text("sizes", "sizes"),
        Column::number("rows", "rows"),
    ];
    let mut table = Table::new("unmatched", "rows without a partner", columns);
    for (name, alone) in NAMES.into_iter().zip(unmatched) {
        for alone in alone {
            table.push([name.into(), alone.series.to_string().into(), alone.sizes().into(), alone.rows.into()]);
        }
    }
    table
}
