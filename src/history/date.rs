//! When a run took place, by the lines of its log.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;

/// Lines in which a date is looked for: headers and the first rows of a log have it.
const LINES: usize = 2000;

/// The date and time that a log says: that of nccl-tests' JSON, of a line that begins or ends with one (its `-S`), or of one
/// that `date` printed. What names no zone is taken for UTC.
pub(super) fn of_text(text: &str) -> Option<Timestamp> {
    text.lines().take(LINES).find_map(|line| {
        let line = line.trim_start_matches(['#', ' ', '\t', '[']).trim_end();
        if let Some((_, value)) = line.split_once("\"start_time\"") {
            return parse(value.trim_matches([':', ' ', '"', ',']));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, month, day, time, .., year] if words.len() <= 6 && time.contains(':') => {
                let text = format!("{month} {day} {time} {year}");
                DateTime::strptime("%b %d %H:%M:%S %Y", text).ok().and_then(of_civil)
            }
            [.., date, time] => begins(&words).or_else(|| parse(time)).or_else(|| parse(&format!("{date} {time}"))),
            [word] => parse(word),
            [] => None,
        }
        .or_else(|| begins(&words))
    })
}

fn begins(words: &[&str]) -> Option<Timestamp> {
    parse(words.first()?).or_else(|| parse(&words.get(..2)?.join(" ")))
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
            "# 2026-11-03 14:25:30",
            "[2026-11-03T14:25:30] starting",
            "2026-11-03T15:25:30+01:00 srun all_reduce_perf",
            "2026-11-03T14:25:30 job 12 node01:444 start",
            "  \"start_time\": \"2026-11-03T14:25:30Z\",",
            "8 2 float sum -1 20.0 0.0 0.0 0 20.0 0.0 0.0 0 2026-11-03 14:25:30",
        ] {
            assert_eq!(of_text(&format!("# nThread 1 nGpus 8\n{line}\n")), Some(expected), "{line}");
        }
        for line in
            ["", "# Out of bounds values : 0 OK", "1048576 262144 float sum -1 25.0 41.9 73.4 0", "NCCL 2026-11-03"]
        {
            assert_eq!(of_text(line), None, "{line}");
        }
        assert_eq!(of_day("2026-11-03"), "2026-11-03T00:00:00Z".parse().ok());
    }
}
