//! Lines as terminals, launchers, containers and journals keep them, and what a program printed there.

use std::borrow::Cow;

use collcast_sim::hash::fnv1a;

/// Most tags before one line that are looked through.
const TAGS_MAX: usize = 8;
/// Longest name of a host, a container or a pod in a tag.
const TAG_MAX: usize = 256;
/// What journals begin times with.
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A line of Docker's `json-file`.
#[derive(serde::Deserialize)]
struct Kept {
    log: String,
    #[serde(rename = "stream")]
    _stream: String,
}

fn kept(line: &str) -> Option<Kept> {
    line.starts_with('{').then(|| serde_json::from_str(line).ok()).flatten()
}

/// Whether a text is a log in lines of JSON, by its first one.
pub(in crate::read) fn is_of_docker(text: &str) -> bool {
    text.lines().next().is_some_and(|line| kept(line.trim()).is_some())
}

/// A line out of Docker's JSON, without the sequences that colour and clear terminals.
pub fn plain_line(raw: &str) -> Cow<'_, str> {
    let line = raw.trim();
    let line = kept(line).map_or(Cow::Borrowed(line), |kept| Cow::Owned(kept.log));
    if !line.contains(['\u{1b}', '\u{9b}']) {
        return line;
    }
    let mut plain = String::with_capacity(line.len());
    let mut rest = line.as_ref();
    while let Some(at) = rest.find(['\u{1b}', '\u{9b}']) {
        plain.push_str(&rest[..at]);
        rest = without_sequence(&rest[at..]);
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// What follows a control sequence at the beginning. Source: ECMA-48, 5.4 (CSI) and 5.6 (strings).
fn without_sequence(text: &str) -> &str {
    let mut letters = text.chars();
    let short = letters.next() == Some('\u{9b}');
    let rest = letters.as_str();
    if let Some(string) = rest.strip_prefix(']').filter(|_| !short) {
        let ends = |end: &str| string.split_once(end).map(|(_, rest)| rest);
        return ends("\u{7}").or_else(|| ends("\u{1b}\\")).unwrap_or(string);
    }
    let (sequence, last) =
        if short { (rest, '?') } else { rest.strip_prefix('[').map_or((rest, '/'), |rest| (rest, '?')) };
    let end = sequence.trim_start_matches(|c| (' '..=last).contains(&c));
    end.strip_prefix(|c| ('0'..='~').contains(&c)).unwrap_or(end)
}

/// The tags before a line, and the line without them. What no program but a launcher writes is always a tag, such as
/// `[1,0]<stdout>:`; other words are one before what nccl-tests prints, such as `node01: `.
pub(super) fn untagged(line: &str) -> (&str, &str) {
    let mut sure = line;
    while let Some(rest) = without_tag(sure) {
        sure = rest.trim_start();
    }
    let mut rest = sure;
    for _ in 0..TAGS_MAX {
        if is_of_tests(rest) {
            return line.split_at(line.len() - rest.len());
        }
        let Some(next) = without_tag(rest).or_else(|| without_name(rest)) else { break };
        rest = next.trim_start();
    }
    line.split_at(line.len() - sure.len())
}

/// Who wrote a line, by its tags: these without times. Nobody where they do not say.
pub(super) fn writer(tags: &str) -> Option<u64> {
    let is_clock = |word: &str| {
        let word = word.trim_matches(['[', ']']);
        word.bytes().all(|b| b.is_ascii_digit() || b"-:/.,TZ+".contains(&b)) && (word.len() >= 8 || word.contains(':'))
    };
    let words: Vec<&str> = tags.split_whitespace().filter(|word| !is_clock(word)).collect();
    (!words.is_empty()).then(|| fnv1a(words.join(" ").as_bytes()))
}

/// Without a tag that launchers put before a line: `[1,0]<stdout>:`, `0: `, a container's `name | `, the time,
/// `stdout F ` of Kubernetes' files.
fn without_tag(line: &str) -> Option<&str> {
    let (word, rest) = line.split_once(' ').unwrap_or_default();
    if is_time(word) {
        return Some(rest);
    }
    if MONTHS.contains(&word) {
        let (day, rest) = rest.trim_start().split_once(' ')?;
        let (time, rest) = rest.trim_start().split_once(' ')?;
        return (day.parse::<u8>().is_ok() && is_time(time)).then_some(rest);
    }
    if matches!(word, "stdout" | "stderr")
        && let Some(rest) = rest.strip_prefix("F ").or_else(|| rest.strip_prefix("P "))
    {
        return Some(rest);
    }
    if let Some((tag, rest)) = line.split_once(" | ")
        && tag.len() <= 64
        && is_name(tag.trim_end())
    {
        return Some(rest);
    }
    if line.starts_with('[')
        && let Some((tag, rest)) = line.split_once(">:")
        && tag.len() < TAG_MAX
        && tag.contains("]<std")
    {
        return Some(rest);
    }
    let (tag, rest) = line.split_once(": ")?;
    ((1..=6).contains(&tag.len()) && tag.bytes().all(|b| b.is_ascii_digit())).then_some(rest)
}

/// Without words that may be a tag: `node01: ` of pdsh, `[0] ` of Hydra, `[default0]:` of torchrun, `[pod/name/container] ` of
/// kubectl, `node01 slurmd[12]: ` of journals, `pod container ` of stern, `INFO ` of loggers.
fn without_name(line: &str) -> Option<&str> {
    let short = |tag: &str| tag.len() <= TAG_MAX;
    if let Some(inner) = line.strip_prefix('[') {
        let (_, rest) = inner.split_once(']').filter(|(tag, _)| short(tag))?;
        return rest.strip_prefix([' ', ':']);
    }
    let is_program = |word: &str| {
        let number = word.strip_suffix(']').and_then(|word| word.rsplit_once('['));
        is_name(number.filter(|(_, pid)| pid.bytes().all(|b| b.is_ascii_digit())).map_or(word, |(name, _)| name))
    };
    if let Some((tag, rest)) = line.split_once(": ").filter(|(tag, _)| short(tag))
        && tag.split(' ').count() <= 2
        && tag.split(' ').all(is_program)
    {
        return Some(rest);
    }
    let (first, rest) = line.split_once(' ')?;
    if matches!(first, "DEBUG" | "INFO" | "NOTICE") {
        return Some(rest);
    }
    // Names in Kubernetes (RFC 1123).
    let is_label = |word: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b);
        !word.is_empty() && short(word) && !word.starts_with(['-', '.']) && word.bytes().all(inner)
    };
    let (second, rest) = rest.split_once(' ')?;
    (is_label(first) && is_label(second)).then_some(rest)
}

/// A date, a time of day or both, such as `12:00:01`.
fn is_time(word: &str) -> bool {
    word.len() >= 8
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.bytes().all(|b| b.is_ascii_digit() || b"-:/.,TZ+".contains(&b))
        && word.matches(['-', ':', '/']).count() >= 2
}

/// A host or a container.
fn is_name(tag: &str) -> bool {
    !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// A comment or a row of nccl-tests: size, count, type, and at least five cells more.
fn is_of_tests(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let mut number = || words.next().is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit()));
    line.starts_with('#')
        || number()
            && number()
            && words.next().is_some_and(|word| word.starts_with(char::is_alphabetic))
            && words.nth(4).is_some()
}
