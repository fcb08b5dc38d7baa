//! Tables of tuner plugins: lines that one of them cannot read, pairs that NCCL has not, sizes without a line, and settings
//! that close what a table chooses.

use std::collections::BTreeSet;

use collcast_sim::collective::{Algorithm, Protocol, nearest};
use collcast_sim::nccl::settings::NcclSettings;
use collcast_sim::nccl::{ALGORITHMS, FUNCTIONS};
use collcast_sim::schedule::{MAX_CHANNELS, valid_algorithms, valid_protocols};
use collcast_tuner::table::{self, A_DOMAIN, BYTES_MAX, COLLECTIVES, END, FOR, PROTOCOLS, Refused};

use super::found::Found;
use super::machine::Machine;
use super::setting::Scope;
use crate::own_tuner;

/// Longest line that NVIDIA's example plugin reads whole.
const LINE_MAX: usize = 255;
/// Size up to which a table should say something: what a call of training has at most. Our estimate.
const SIZE_LEAST: u64 = 1 << 30;

/// A line that can be read.
struct Line {
    number: u64,
    /// Index of the collective in NCCL's order.
    collective: usize,
    from: u64,
    to: u64,
    pair: (Algorithm, Protocol),
    /// What calls it is for: the ranks of a domain, then hosts, ranks, calls of a group and registered buffers, -1 any.
    only: (String, [i64; 4]),
    /// It repeats NCCL's own choice.
    kept: bool,
}

/// The first line that is no comment.
fn first_line(text: &str) -> Option<(u64, &str)> {
    let mut lines = (1_u64..).zip(text.lines().map(str::trim)).take(200);
    lines.find(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Whether a text is a table: its first line that is no comment has the fields of one.
pub(super) fn is_table(text: &str) -> bool {
    let fields: Vec<&str> = first_line(text).map_or("", |(_, line)| line).split(',').map(str::trim).collect();
    let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let number = |text: &str| text.parse::<i128>().is_ok();
    match fields[..] {
        [collective, from, to, algorithm, protocol, channels, nodes, ..] => {
            let words = [collective, algorithm, protocol];
            words.into_iter().all(|text| word(text) && !number(text))
                && [from, to, channels, nodes].into_iter().all(number)
        }
        _ => false,
    }
}

/// Looks at a table; gives back how many lines it has.
pub(super) fn check(text: &str, found: &mut Found<'_>) -> usize {
    if let Some((number, _)) = first_line(text).filter(|_| !is_table(text)) {
        found.add("table-line", Some(number), "no table of a tuner: the first line is none of it");
        return 0;
    }
    let (count, lines) = read(text, found);
    for line in &lines {
        let (algorithm, protocol) = line.pair;
        let (name, collective) = (COLLECTIVES[line.collective], FUNCTIONS[line.collective].1);
        if !valid_algorithms(collective).contains(&algorithm) {
            found.add("table-pair", Some(line.number), format!("NCCL has no {name} by {algorithm}"));
        } else if !valid_protocols(algorithm).contains(&protocol) {
            found.add("table-pair", Some(line.number), format!("{algorithm} has no protocol {protocol}"));
        }
    }
    gaps(&lines, found);
    count
}

/// Whether a table is one of our plugin, by comments that it alone reads.
pub(super) fn is_ours(text: &str) -> bool {
    text.lines().any(|line| [FOR, A_DOMAIN, END].iter().any(|mark| line.starts_with(mark)))
}

/// Reports why our plugin would not use a table at all: what it was made for, beside the machine and the settings of the
/// process that names it.
pub(super) fn refused(text: &str, machine: Option<&Machine>, scope: Option<&Scope>, found: &mut Found<'_>) {
    let settings = scope.map(Scope::last);
    let value_of = |name: &str| Some(settings.as_ref()?.get(name)?.value.clone());
    let told: Option<own_tuner::Told<'_>> = scope.is_some().then_some(&value_of);
    let topology = machine.map(|machine| &machine.site.topology);
    let why = |told| own_tuner::usable(text, topology, machine.and_then(Machine::version), told).err();
    // Settings can be mended in the job; the table itself comes first.
    let Some(why) = why(None).or_else(|| why(told)) else { return };
    let line = if let Refused::Line(line) = why { u64::try_from(line).ok() } else { None };
    let rule = match &why {
        Refused::Setting(name, _, Some(_)) => {
            let setting = settings.as_ref().and_then(|settings| settings.get(name.as_str()));
            // A shell or a template says later what it is.
            if setting.is_some_and(|setting| !setting.is_known()) {
                return;
            }
            "table-refused"
        }
        Refused::Setting(..) => "table-settings",
        _ => "table-refused",
    };
    if line.is_none() || !found.has("table-line", line) {
        found.add(rule, line, format!("collcast's plugin does not use the table: {why}"));
    }
}

/// Lines of a table; what cannot be read is reported.
fn read(text: &str, found: &mut Found<'_>) -> (usize, Vec<Line>) {
    let (mut count, mut lines) = (0, Vec::new());
    let (mut kept, mut domain) = (false, String::new());
    for (number, line) in (1_u64..).zip(text.lines()) {
        let line = line.trim();
        if let Some(ranks) = line.strip_prefix(A_DOMAIN) {
            domain = ranks.trim().to_owned();
        }
        if line.is_empty() || line.starts_with('#') {
            kept = (kept || line.starts_with("# kept:")) && !line.starts_with("# changes:");
            continue;
        }
        count += 1;
        match parse(number, line, (&domain, kept)) {
            Ok(line) => {
                if let Some(channels) = line.1 {
                    found.add("table-channels", Some(number), channels);
                }
                lines.push(line.0);
            }
            Err((what, way_out)) => found.add_with("table-line", Some(number), what, way_out),
        }
    }
    (count, lines)
}

/// A line, with what is wrong with its channels; or what is wrong with it, and the way out.
fn parse(
    number: u64,
    line: &str,
    (domain, kept): (&str, bool),
) -> Result<(Line, Option<String>), (String, Option<String>)> {
    let fields: Vec<&str> = line.trim_end_matches(',').split(',').map(str::trim).collect();
    if fields.contains(&"") {
        return Err(("an empty field, in whose place the next is read".to_owned(), None));
    }
    if !(8..=10).contains(&fields.len()) {
        return Err((format!("{} fields, and a line has 8 to 10", fields.len()), None));
    }
    if line.len() > LINE_MAX {
        return Err((format!("{} bytes, and NVIDIA's example plugin reads {LINE_MAX} of a line", line.len()), None));
    }
    let name = |what: &str, known: &[&'static str], field: &str| {
        known.iter().position(|known| *known == field).ok_or_else(|| {
            let field: String = field.chars().take(40).collect();
            let lower = field.to_lowercase();
            let meant = nearest(&lower, known.iter().copied()).map(|meant| format!("did you mean {meant}?"));
            (format!("`{field}` is no {what} of NCCL"), meant)
        })
    };
    let whole = |field: &str| field.parse().map_err(|_| (format!("`{field}` is no whole number"), None));
    let collective = name("collective", &COLLECTIVES, fields[0])?;
    let size = |field: &str| field.parse::<u64>().map_err(|_| (format!("`{field}` is no number of bytes"), None));
    let (from, to) = (size(fields[1])?, size(fields[2])?);
    if from > to {
        return Err((format!("from {from} to {to} bytes: no call has so many"), None));
    }
    let algorithm = name("algorithm", &table::ALGORITHMS, fields[3])?;
    let protocol = name("protocol", &PROTOCOLS, fields[4])?;
    let channels: i64 = whole(fields[5])?;
    let mut only = [-1; 4];
    for (only, field) in only.iter_mut().zip(&fields[6..]) {
        *only = whole(field)?;
        if *only < -1 {
            return Err((format!("{only}: no communicator or call has so many, and -1 stands for any"), None));
        }
    }
    let bad = match channels {
        ..1 => Some(format!("{channels} channels: NVIDIA's example plugin leaves 1 channel, not NCCL's number")),
        _ if channels > i64::from(MAX_CHANNELS) => {
            Some(format!("{channels} channels: NCCL has at most {MAX_CHANNELS}"))
        }
        _ => None,
    };
    let pair = (ALGORITHMS[algorithm], Protocol::ALL[protocol]);
    Ok((Line { number, collective, from, to, pair, only: (domain.to_owned(), only), kept }, bad))
}

/// Sizes without a line, of collectives and communicators that have some: the first of each.
fn gaps(lines: &[Line], found: &mut Found<'_>) {
    let whose: BTreeSet<_> = lines.iter().map(|line| (line.collective, &line.only)).collect();
    for (collective, only) in whose {
        let holds = |line: &&Line| {
            let wider = line.only.1.iter().zip(only.1).all(|(&theirs, own)| theirs == -1 || theirs == own);
            line.collective == collective && wider && (line.only.0.is_empty() || line.only.0 == only.0)
        };
        let mut of: Vec<&Line> = lines.iter().filter(holds).collect();
        of.sort_by_key(|line| (line.from, line.to));
        // Bytes up to which there are lines, and the line that comes next.
        let mut next = 0_u64;
        let gap = of.iter().find_map(|line| {
            let gap = (line.from > next).then(|| (format!("{next} to {} bytes", line.from - 1), line.number));
            next = next.max(line.to.saturating_add(1));
            gap
        });
        let last = of.iter().max_by_key(|line| line.to).map_or(0, |line| line.number);
        let gap = gap.or((next < SIZE_LEAST).then(|| (format!("more than {} bytes", next.saturating_sub(1)), last)));
        if let Some((sizes, line)) = gap {
            let names = ["hosts", "ranks", "calls of a group", "registered buffers"];
            let for_whom: Vec<String> = (names.iter().zip(only.1).filter(|(_, only)| *only != -1))
                .map(|(name, only)| format!("{name} {only}"))
                .collect();
            let for_whom = if for_whom.is_empty() { String::new() } else { format!(" ({})", for_whom.join(", ")) };
            found.add("table-gap", Some(line), format!("{}{for_whom}: no line for {sizes}", COLLECTIVES[collective]));
        }
    }
}

/// How many lines that change NCCL's choice lists of algorithms and protocols close, and of how many.
pub(super) fn closed(text: &str, set: &NcclSettings) -> (usize, usize) {
    let mut unread = Vec::new();
    let (_, lines) = read(text, &mut Found::of("", &mut unread));
    let changes = lines.iter().filter(|line| !line.kept);
    let is_closed = |line: &&Line| {
        let collective = FUNCTIONS[line.collective].1;
        set.algorithms.allows(collective, line.pair.0) == Some(false)
            || set.protocols.allows(collective, line.pair.1) == Some(false)
    };
    (changes.clone().filter(is_closed).count(), changes.count())
}

/// Whether a text is too long for a table.
pub(super) fn is_too_long(text: &str) -> bool {
    text.len() > BYTES_MAX
}
