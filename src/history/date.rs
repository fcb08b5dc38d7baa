//! When a run took place, by the lines of its log.

use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};

/// Lines in which a date is looked for: headers and the first rows of a log have it.
const LINES: usize = 2000;

/// Zones that `date` prints by a name, and their minutes from UTC. Names of one offset alone in the IANA database; those of
/// North America as mail has them (RFC 2822, 4.3). `CST` and `IST` are of several countries with GPUs, and not here.
const ZONES: [(&str, i32); 25] = [
    ("UTC", 0),
    ("GMT", 0),
    ("Z", 0),
    ("WET", 0),
    ("WEST", 60),
    ("BST", 60),
    ("CET", 60),
    ("CEST", 120),
    ("EET", 120),
    ("EEST", 180),
    ("MSK", 180),
    ("HKT", 480),
    ("JST", 540),
    ("KST", 540),
    ("AEST", 600),
    ("AEDT", 660),
    ("NZST", 720),
    ("NZDT", 780),
    ("EST", -300),
    ("EDT", -240),
    ("CDT", -300),
    ("MST", -420),
    ("MDT", -360),
    ("PST", -480),
    ("PDT", -420),
];

/// A zone that several places use, or none that we know.
pub(super) type Unknown = String;

/// The date and time that a log says: that of nccl-tests' JSON, of a line that begins or ends with one (its `-S`), or of one
/// that `date` printed. What names no zone is taken for UTC.
pub(super) fn of_text(text: &str) -> Option<Result<Timestamp, Unknown>> {
    text.lines().take(LINES).find_map(|line| {
        let line = line.trim_start_matches(['#', ' ', '\t', '[']).trim_end();
        if let Some((_, value)) = line.split_once("\"start_time\"") {
            return parse(value.trim_matches([':', ' ', '"', ','])).map(Ok);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let ends = || match words[..] {
            [.., date, time] => parse(time).or_else(|| parse(&format!("{date} {time}"))),
            _ => None,
        };
        printed(&words).or_else(|| begins(&words).or_else(ends).map(Ok))
    })
}

/// What `date` prints behind the day of the week: `Nov  3 14:25:30 UTC 2026`, or in another order where the language has one.
fn printed(words: &[&str]) -> Option<Result<Timestamp, Unknown>> {
    let (mut month, mut day, mut year, mut time, mut half, mut zone) = (None, None, None, None, None, None);
    for &word in words.get(1..).filter(|rest| rest.len() <= 6)? {
        let is = |what: fn(&u8) -> bool| word.bytes().all(|byte| what(&byte));
        let part = match word {
            "AM" | "PM" => &mut half,
            _ if word.contains(':') && word.as_bytes()[0].is_ascii_digit() => &mut time,
            _ if is(u8::is_ascii_digit) => {
                if word.len() == 4 {
                    &mut year
                } else {
                    &mut day
                }
            }
            _ if is(u8::is_ascii_uppercase) || word.starts_with(['+', '-']) => &mut zone,
            _ => &mut month,
        };
        if part.replace(word).is_some() {
            return None;
        }
    }
    let (clock, half) = half.map_or(("%H:%M:%S", ""), |half| ("%I:%M:%S%p", half));
    let text = format!("{} {} {} {}{half}", month?, day?, year?, time?);
    let civil = DateTime::strptime(format!("%b %d %Y {clock}"), text).ok()?;
    match zone.map_or(Some(Offset::UTC), offset) {
        Some(offset) => offset.to_timestamp(civil).ok().map(Ok),
        None => zone.map(|zone| Err(zone.to_owned())),
    }
}

/// A zone as `date` prints it: a name, or hours with minutes or without (`+0530`, `-03`).
fn offset(zone: &str) -> Option<Offset> {
    let minutes = match ZONES.into_iter().find(|(name, _)| *name == zone) {
        Some((_, minutes)) => minutes,
        None => {
            let digits: String = zone.strip_prefix(['+', '-'])?.chars().filter(|c| *c != ':').collect();
            let (hours, minutes) = digits.split_at_checked(2)?;
            let minutes: i32 = if minutes.is_empty() { 0 } else { minutes.parse().ok()? };
            (hours.parse::<i32>().ok()? * 60 + minutes) * if zone.starts_with('-') { -1 } else { 1 }
        }
    };
    Offset::from_seconds(minutes * 60).ok()
}

/// A date in front, whose zone may be a word of its own.
fn begins(words: &[&str]) -> Option<Timestamp> {
    parse(words.first()?).or_else(|| {
        let at = parse(&words.get(..2)?.join(" "))?;
        let zone = words.get(2).and_then(|zone| offset(zone)).unwrap_or(Offset::UTC);
        at.checked_sub(SignedDuration::from_secs(zone.seconds().into())).ok()
    })
}

/// `2026-11-03T14:25:30Z`, with a space for the T or without a zone.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim_matches([']', ',', '"']);
    let like_date = text.len() >= 19 && text.as_bytes()[..4].iter().all(u8::is_ascii_digit);
    if !like_date {
        return None;
    }
    text.parse::<Timestamp>().ok().or_else(|| of_civil(text.parse::<DateTime>().ok()?))
}

/// A day, as `.toml` files say it.
pub(super) fn of_day(text: &str) -> Option<Timestamp> {
    parse(text).or_else(|| of_civil(text.get(..10)?.parse::<Date>().ok()?.at(0, 0, 0, 0)))
}

fn of_civil(date: DateTime) -> Option<Timestamp> {
    Offset::UTC.to_timestamp(date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: dates as logs have them, and none in what is not one.
    #[test]
    fn dates_of_logs_are_found() {
        let expected: Timestamp = "2026-11-03T14:25:30Z".parse().unwrap();
        for line in [
            "Tue Nov  3 14:25:30 UTC 2026",
            "Tue Nov  3 14:25:30 2026",
            "Tue Nov  3 06:25:30 PST 2026",
            "Tue Nov  3 06:25:30 AM PST 2026",
            "Tue 03 Nov 2026 02:25:30 PM UTC",
            "Wed  4 Nov 01:25:30 +11 2026",
            "Tue, 03 Nov 2026 19:55:30 +0530",
            "2026-11-03 06:25:30 PST starting",
            "2026-11-03 06:25:30-08:00",
            "# 2026-11-03 14:25:30",
            "[2026-11-03T14:25:30] starting",
            "2026-11-03T15:25:30+01:00 srun all_reduce_perf",
            "2026-11-03T14:25:30 job 12 node01:444 start",
            "  \"start_time\": \"2026-11-03T14:25:30Z\",",
            "8 2 float sum -1 20.0 0.0 0.0 0 20.0 0.0 0.0 0 2026-11-03 14:25:30",
        ] {
            assert_eq!(of_text(&format!("# nThread 1 nGpus 8\n{line}\n")), Some(Ok(expected)), "{line}");
        }
        assert_eq!(of_text("Tue Nov  3 22:25:30 CST 2026"), Some(Err("CST".to_owned())));
        for line in
            ["", "# Out of bounds values : 0 OK", "1048576 262144 float sum -1 25.0 41.9 73.4 0", "NCCL 2026-11-03"]
        {
            assert_eq!(of_text(line), None, "{line}");
        }
        assert_eq!(of_day("2026-11-03"), "2026-11-03T00:00:00Z".parse().ok());
    }
}
