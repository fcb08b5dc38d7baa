//! Whether a machine gives the bus bandwidth that it should: lines a size or a band, cases for CI, and one sentence.

use collcast_hwbackend::read::End;
use collcast_reports::model::{Bar, CaseOutcome, Cell, Column, Table, TestCase};
use collcast_sim::units::Bytes;

use crate::diagnose::NEXT_OF_SMALL;
use crate::health::{Band, Health, Judged, Line, Part, State};
use crate::history::Trend;
use crate::validate::{FIRST, History, Outcome};
use crate::values::few;

/// Sizes up to which each has a line; more runs are told by bands.
const LINES: usize = 48;

/// What people read of a size or a band; files have the name of its state.
fn word(state: State, share: f64, band: &Band) -> &'static str {
    match state {
        State::Slow => "slow",
        State::Unsure => "unsure",
        State::Pass if share < band.low => "between",
        State::Pass => "healthy",
    }
}

/// A percentage of a share.
fn percent(share: f64) -> Cell {
    Cell::float(share * 100.0, 0)
}

/// A bandwidth in GB/s: two digits after the point, and two that count of what is small.
fn bandwidth(gbps: f64) -> Cell {
    let zeros = if gbps > 0.0 { (-gbps.log10()).floor().clamp(0.0, 4.0) as usize } else { 0 };
    Cell::float(gbps, 2 + zeros)
}

/// A line a size; for people of many sizes the bands first, and their lines where every row is shown.
pub(super) fn tables(health: &Health, people: bool, every_row: bool) -> Vec<Table> {
    let sizes: usize = health.runs.iter().map(|run| run.lines.len()).sum();
    let lines = lines(health, people);
    match people && sizes > LINES {
        false => vec![lines],
        true if every_row => vec![bands(health), Table { detail: true, ..lines }],
        true => vec![bands(health)],
    }
}

fn are_several_files(health: &Health) -> bool {
    health.runs.windows(2).any(|pair| pair[0].file != pair[1].file)
}

fn lines(health: &Health, people: bool) -> Table {
    let mut columns = vec![
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::number("size_bytes", "size"),
        Column::number("time_us", "time us"),
        Column::number("busbw_gbps", "busbw GB/s"),
        Column::number("expected_gbps", "expected GB/s"),
        Column::number("low_gbps", "healthy from GB/s"),
        Column::number("percent", "% of expected").barred(Bar::OfHundred),
        Column::number("fails_below_percent", "fails below %"),
        Column::text("state", "verdict"),
    ];
    if !people || are_several_files(health) {
        columns.push(Column::text("file", "file"));
    }
    let mut table = Table::new("sizes", "bus bandwidth by size", columns);
    for run in &health.runs {
        for line in &run.lines {
            let band = run.bands.iter().find(|band| band.part == line.part);
            // Without a column for it the file is not shown.
            table.push([
                run.collective.name().into(),
                run.ranks.into(),
                line.size_bytes.into(),
                Cell::float(line.time_us, 2),
                bandwidth(line.busbw_gbps),
                bandwidth(line.expected_gbps),
                bandwidth(line.low_gbps),
                percent(line.share),
                band.map(|band| percent(band.fails_below())).into(),
                band.filter(|_| people).map_or(line.state.name(), |band| word(line.state, line.share, band)).into(),
                run.file.as_str().into(),
            ]);
        }
    }
    table
}

fn bands(health: &Health) -> Table {
    let columns = [
        Column::text("file", "file"),
        Column::text("collective", "collective"),
        Column::number("ranks", "ranks"),
        Column::text("sizes", "sizes"),
        Column::number("percent", "% of expected busbw").barred(Bar::OfHundred),
        Column::number("low_percent", "healthy from %"),
        Column::number("fails_below_percent", "fails below %"),
        Column::text("state", "verdict"),
    ];
    let mut table = Table::new("bands", "bus bandwidth by band of sizes", columns);
    for run in &health.runs {
        for band in &run.bands {
            table.push([
                run.file.as_str().into(),
                run.collective.name().into(),
                run.ranks.into(),
                range(band).into(),
                percent(band.share),
                percent(band.low),
                percent(band.fails_below()),
                word(band.state, band.share, band).into(),
            ]);
        }
    }
    table
}

fn range(band: &Band) -> String {
    let (from, to) = (Bytes(band.from_bytes), Bytes(band.to_bytes));
    if from == to { from.to_string() } else { format!("{from} to {to}") }
}

/// What a run is held against.
pub(super) struct Against<'o>(pub(super) &'o Outcome);

impl Against<'_> {
    /// How its own hosts changed, where it is judged by their past.
    fn own(&self, run: &Judged) -> Option<&Trend> {
        let is_its = |h: &&History| (&h.file, &h.run, &h.how) == (&run.file, &run.run, &run.how);
        let is_like = |t: &&Trend| t.host_sets == 1 && (t.collective, t.ranks) == (run.collective, run.ranks);
        let by_past = self.0.by_past && run.kind.is_none();
        self.0.history.iter().flatten().filter(is_its).flat_map(|h| &h.trends).find(is_like).filter(|_| by_past)
    }

    fn name(&self, run: &Judged) -> String {
        match self.own(run) {
            Some(own) => {
                let first = if own.healthy > FIRST { format!("the first {FIRST} of ") } else { String::new() };
                format!("the median of {first}{} earlier runs since {}", own.healthy, own.since)
            }
            None => "the expected bus bandwidth".to_owned(),
        }
    }

    /// Since when it is slower, and whether other hosts are too.
    fn since(&self, run: &Judged) -> Option<String> {
        let changed = |trend: &Trend| trend.changed.clone().filter(|changed| changed.share < 1.0);
        let own = changed(self.own(run)?)?;
        let count = |runs: usize| if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") };
        Some(format!("; slower since {} ({})", own.since, count(own.runs)))
    }
}

/// A percentage as it was given: without digits that only floats have.
pub(super) fn digits(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

/// Whether a band passes, though nearly all healthy machines reach more.
fn is_between(band: &Band) -> bool {
    band.state == State::Pass && band.share < band.low
}

/// What is said of a band: which sizes, what share, what healthy machines reach.
fn told(run: &Judged, band: &Band, against: &Against<'_>) -> String {
    let of = format!("{} over {} ranks", run.collective, run.ranks);
    let share = band.share * 100.0;
    let least = band.low * 100.0;
    let sizes = range(band);
    let reaches = |digits| format!("{of} reaches {share:.digits$}% of {} at {sizes}", against.name(run));
    let (reaches, exactly) = (reaches(0), reaches(1));
    let healthy = if against.own(run).is_some() { "steady hosts" } else { "healthy machines" };
    match (band.state, band.is_unsteady_alone()) {
        (State::Slow | State::Unsure, true) => format!(
            "{of} is unsteady at {sizes}: repeats of a size lie {:.0}% apart, where steady runs lie below {:.0}%",
            band.scatter * 100.0,
            Health::steady(band.part) * 100.0
        ),
        (State::Pass, _) if is_between(band) => format!(
            "{exactly}, between the {:.1}% that nearly all {healthy} reach and the {:.1}% below which it fails",
            band.low * 100.0,
            band.fails_below() * 100.0
        ),
        (State::Slow, false) | (State::Pass, _) => format!("{reaches}, where {healthy} reach {least:.0}% or more"),
        (State::Unsure, _) if band.share < band.low => {
            let limit = digits(band.limit * 100.0);
            format!("{reaches}, below the {least:.0}% that {healthy} reach, but not below the limit of {limit}%")
        }
        (State::Unsure, _) => format!("{reaches}, and {healthy} may reach only {least:.0}%"),
    }
}

/// The finding as one sentence, with the runs that are not as the first ones are counted.
pub(super) fn sentence(health: &Health, against: &Against<'_>) -> String {
    let count = health.runs.iter().filter(|run| run.state == health.state).count();
    let all = health.runs.len();
    let more = if all > 1 { format!(" ({count} of {all} runs)") } else { String::new() };
    let cut = cut(health);
    let Some((run, band)) = health.decisive() else {
        let untold = health.runs.iter().find(|run| run.state == health.state);
        let of = untold.map_or_else(String::new, |run| format!(" of {}", run.file));
        // Others of the file may be judged as a run of their own.
        let is_judged = |other: &Judged| untold.is_some_and(|run| run.file == other.file) && !other.bands.is_empty();
        let which = if health.runs.iter().any(is_judged) { "not every row" } else { "no row" };
        return format!("cannot tell{more}: {which}{of} could be judged{cut}");
    };
    let told = told(run, band, against);
    match health.state {
        State::Unsure if against.0.which_gpus.is_some() => {
            format!("cannot tell{more}: {}{cut}", against.0.which_gpus.as_deref().unwrap_or_default())
        }
        State::Slow => {
            let from = against
                .since(run)
                .unwrap_or_else(|| if band.is_unsteady_alone() { String::new() } else { slow_sizes(run) });
            format!("slow{more}: {told}{from}{}{cut}", places(health))
        }
        State::Pass => {
            let word = if is_between(band) { "below healthy, above the limit" } else { "healthy" };
            let (hidden, below, lacking) = (hidden(run, band), below(run), lacking(run));
            format!("{word}{more}: {told}{hidden}{below}{lacking}{}", places(health))
        }
        State::Unsure if band.state == State::Slow => {
            format!(
                "cannot tell{more}: {told}{}; or NCCL chose another protocol there than forecast, since neither the smallest nor the \
                 largest sizes are slow{}{cut}",
                slow_sizes(run),
                places(health)
            )
        }
        State::Unsure if band.state == State::Pass => {
            format!("cannot tell{more}: {told}{}{}{}{cut}", below(run), lacking(run), places(health))
        }
        State::Unsure => format!("cannot tell{more}: {told}{}{cut}", places(health)),
    }
}

/// What a pass beside a forecast leaves open: the fastest healthy machine is as far above the forecast as the slowest is below it,
/// and this one may lack what it has less than that.
fn hidden(run: &Judged, band: &Band) -> String {
    let lost = 1.0 - band.share * band.low;
    match () {
        () if run.kind.is_none() || is_between(band) => String::new(),
        () if lost < 0.0 => " (it is faster than all of them: the forecast is too slow for this machine)".to_owned(),
        () => format!(" (a loss of up to {:.0}% would look the same)", lost * 100.0),
    }
}

/// The runs of the worst state, the slowest first.
fn worst(health: &Health) -> Vec<&Judged> {
    let mut runs: Vec<&Judged> = health.runs.iter().filter(|run| run.state == health.state).collect();
    let share = |run: &Judged| run.decisive().map_or(f64::INFINITY, |band| band.share);
    runs.sort_by(|a, b| share(a).total_cmp(&share(b)));
    runs
}

/// The hosts of runs that each ran on one, without those that are there already.
fn hosts_of<'r>(runs: &[&'r Judged]) -> Vec<&'r str> {
    let hosts: Option<Vec<&str>> =
        runs.iter().map(|run| <&[String; 1]>::try_from(&run.host_names[..]).ok().map(|[one]| one.as_str())).collect();
    once(hosts.unwrap_or_default())
}

fn once<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for one in all {
        if !kept.contains(&one) {
            kept.push(one);
        }
    }
    kept
}

/// Of several runs, which are of the worst state: their hosts, and the files to look into.
fn places(health: &Health) -> String {
    let worst = worst(health);
    let (true, Some(first)) = (health.runs.len() > 1, worst.first()) else { return String::new() };
    let hosts = hosts_of(&worst);
    let all = hosts_of(&health.runs.iter().collect::<Vec<_>>());
    match health.state {
        State::Pass if all.len() > 1 => format!("; the slowest is {}: {}", hosts[0], first.file),
        State::Pass if are_several_files(health) => format!("; the slowest is {}", first.file),
        State::Pass => String::new(),
        // Where one host ran all of them its name tells nothing.
        _ if !hosts.is_empty() && all.len() != 1 => format!("; on {}; see {}", few(&hosts), first.file),
        _ => format!("; see {}", few(&once(worst.iter().map(|run| run.file.as_str()).collect()))),
    }
}

/// The files whose runs were cut.
fn cut(health: &Health) -> String {
    let cut = health.runs.iter().filter(|run| run.end == End::Cut);
    let files = once(cut.map(|run| run.file.as_str()).collect());
    match files.len() {
        0 => String::new(),
        _ => format!("; cut before nccl-tests' last words: {}", few(&files)),
    }
}

/// Whether runs were cut, so that nothing can be told of them.
pub(super) fn is_cut(health: &Health) -> bool {
    health.state == State::Unsure && health.runs.iter().any(|run| run.end == End::Cut)
}

/// The large sizes that lie below what healthy machines reach though their band does not, or is not slow.
fn below(run: &Judged) -> String {
    let large: Vec<&Line> = run.lines.iter().filter(|line| line.part == Part::Large).collect();
    let below: Vec<&&Line> = large.iter().filter(|line| line.is_low()).collect();
    let worst = below.iter().min_by(|a, b| a.share.total_cmp(&b.share));
    let band = run.bands.iter().find(|band| band.part == Part::Large);
    let Some((worst, band)) = worst.zip(band) else { return String::new() };
    let (count, of, share) = (below.len(), large.len(), worst.share * 100.0);
    if count == 1 {
        return format!("; but {} alone reaches {share:.0}%: repeat the run", Bytes(worst.size_bytes));
    }
    format!(
        "; but {count} of {of} large sizes lie below the {:.0}% that healthy machines reach, down to {share:.0}%",
        band.low * 100.0
    )
}

/// The band below the large sizes that lacks most of what would make it slow, were that certain, and what would tell; or the
/// size that is far off by itself.
fn lacking(run: &Judged) -> String {
    let lacks = |b: &&Band| b.part != Part::Large && b.state == State::Unsure && b.share < b.limit;
    let worst = run.bands.iter().filter(lacks).min_by(|a, b| a.share.total_cmp(&b.share));
    let Some(band) = worst else {
        let told = |line: &Line| {
            format!("; but {} reaches {:.0}%: repeat the run", Bytes(line.size_bytes), line.share * 100.0)
        };
        return run.lone().map_or_else(String::new, told);
    };
    let why = match run.kind {
        // It would be slow but for one of its two sizes.
        _ if band.share < band.low => ", one of its two sizes alone: repeat the run".to_owned(),
        None => format!(", as good runs may ({:.0}% or more): repeats would tell", band.low * 100.0),
        Some(_) => format!(
            ", as healthy machines may ({:.0}% or more): a good run would tell, or a log with NCCL_DEBUG_SUBSYS=TUNING, \
             whether NCCL chose as forecast",
            band.low * 100.0
        ),
    };
    format!("; but {} reaches {:.0}%{why}", range(band), band.share * 100.0)
}

/// The sizes at which a run is slow.
fn slow_sizes(run: &Judged) -> String {
    let Some(from) = run.slow_from_bytes else { return String::new() };
    let size = |line: Option<&Line>| line.map_or(from, |line| line.size_bytes);
    let (first, last) = (size(run.lines.first()), size(run.lines.last()));
    let to = size(run.lines.iter().rfind(|line| line.state == State::Slow));
    // Sizes below those that are slow may lack nearly as much, and be above their own limit.
    let is_slow = run.lines.iter().any(|line| line.size_bytes == from && line.state == State::Slow);
    let does = if is_slow { "it is slow" } else { "bandwidth is lost" };
    match (from == first, to == last) {
        (true, true) => format!("; {does} at all sizes"),
        (true, false) => format!("; {does} up to {}", Bytes(to)),
        (false, true) => format!("; {does} from {} on", Bytes(from)),
        (false, false) => format!("; {does} from {} to {}", Bytes(from), Bytes(to)),
    }
}

/// What would tell more where all that is slow is small calls of one host.
pub(super) fn next_of_small(health: &Health) -> Option<String> {
    health.is_slow_at_small_calls_alone().then(|| NEXT_OF_SMALL.to_owned())
}

/// What would tell more, where nothing can be told.
pub(super) fn next(health: &Health, beside_runs: bool) -> Option<String> {
    let large = |run: &Judged| run.bands.iter().any(|b| b.part == Part::Large);
    match health.state {
        State::Pass => None,
        State::Slow if health.runs.iter().filter(|run| run.state == State::Slow).all(|run| run.hosts == Some(1)) => {
            let hosts = hosts_of(&worst(health));
            let on = if health.runs.len() > 1 && !hosts.is_empty() { format!("on {}, ", few(&hosts)) } else { String::new() };
            Some(format!(
                "{on}measure pairs of its GPUs (`collcast bench --backend nccl --pairs`, from 3 on), to find which one is slow; \
                 `nvidia-smi nvlink -s`, `nvidia-smi -q -d CLOCK,PERFORMANCE`"
            ))
        }
        State::Slow if health.runs.iter().filter(|run| run.state == State::Slow).all(|run| run.hosts == Some(2)) => Some(
            "measure each of the two hosts alone with the same command; where both are well, test the NICs and links \
             between them (`ib_write_bw` over each pair of NICs)"
                .to_owned(),
        ),
        State::Slow => {
            Some("measure halves and pairs of the hosts with the same command, to find which one is slow".to_owned())
        }
        State::Unsure if !health.runs.iter().any(large) => {
            Some("measure up to 4 GiB (nccl-tests: -b 8 -e 4G -f 2): bandwidth shows at large sizes alone".to_owned())
        }
        State::Unsure if beside_runs || health.decisive().is_some_and(|(_, band)| band.is_unsteady_alone()) => {
            Some("measure again, with more iterations (-n 50), while nothing else runs".to_owned())
        }
        State::Unsure => Some(
            "hold it beside a run that is known to be good, of this or a like machine: --against GOOD.log".to_owned(),
        ),
    }
}

/// A case for each band.
pub(super) fn cases(health: &Health, against: &Against<'_>) -> Vec<TestCase> {
    let mut cases = Vec::new();
    let several = are_several_files(health);
    for run in &health.runs {
        // An annotation has no more than the name.
        let of = if several { format!(", {}", run.file) } else { String::new() };
        for band in &run.bands {
            let told = told(run, band, against);
            let failed = |kind: &str, message| CaseOutcome::Failed {
                kind: kind.to_owned(),
                message,
                details: format!("{}, {}", run.file, range(band)),
            };
            let untold = match run.end {
                End::Whole => format!("cannot tell: {told}"),
                End::Cut => format!("cannot tell: {told}; the run was stopped or the file cut"),
                End::Failed => format!("cannot tell: {told}; the run failed"),
            };
            cases.push(TestCase {
                group: format!("{} {}", run.collective, run.run),
                name: format!("{} ranks, {} sizes{of}", run.ranks, band.part.name()),
                outcome: match (band.state, run.state) {
                    (State::Pass, _) if run.end == End::Whole => CaseOutcome::Passed,
                    (State::Slow, State::Slow) if band.is_unsteady_alone() => failed("unsteady", told),
                    (State::Slow, State::Slow) => failed("slow", told),
                    (_, State::Unsure) if against.0.gate.require_pass => failed("unsure", untold),
                    _ => CaseOutcome::Noted(untold),
                },
                place: None,
            });
        }
    }
    cases
}
