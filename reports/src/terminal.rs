//! A report for people: assumptions first, then aligned tables.
//!
//! Data goes to stdout ([`render`]); warnings and the closing verdict line to stderr ([`notes`]). A pipe gets plain text,
//! each fact and row on one line. A screen gets lines that fit, bars beside numbers where there is room, and colours where
//! they are wanted; none of these says anything that words do not.

mod screen;
mod table;

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use collcast_sim::text::{no_commands, one_line};

use crate::model::{Report, Status, Verdict};
pub use screen::Screen;

/// How good and bad news look.
fn tone(status: Status) -> Style {
    let colour = match status {
        Status::Ok => AnsiColor::Green,
        Status::Warning => AnsiColor::Yellow,
        Status::Failed => AnsiColor::Red,
    };
    colour.on_default().bold()
}

/// The assumptions and the tables.
pub fn render(report: &Report, screen: Screen) -> String {
    let mut out = String::new();
    let predicted = report.predicted.then_some("predicted, not measured");
    for line in predicted.into_iter().chain(report.assumptions.iter().map(String::as_str)) {
        let line = screen.wrapped(&format!("# {}", one_line(line)), "#   ");
        let _ = writeln!(out, "{}", screen.painted(Style::new().dimmed(), &line));
    }
    for table in &report.tables {
        if !out.is_empty() {
            out.push('\n');
        }
        if !table.title.is_empty() {
            let title = screen.wrapped(&one_line(&table.title), "");
            let _ = writeln!(out, "{}", screen.painted(Style::new().bold(), &title));
        }
        out.push_str(&table::draw(table, screen));
    }
    no_commands(&out)
}

/// The warnings and the verdict.
pub fn notes(report: &Report, screen: Screen) -> String {
    let mut out = String::new();
    for warning in &report.warnings {
        out.push_str(&headed("warning:", Status::Warning, &format!("warning: {}", one_line(warning)), screen));
    }
    if let Some(verdict) = &report.verdict {
        out.push_str(&closing(verdict, screen));
    }
    no_commands(&out)
}

/// Spaces before lines that go on.
const INDENT: &str = "    ";
const DEEPER: &str = "      ";

/// A line, with the word that it begins with in colour.
fn headed(word: &str, status: Status, line: &str, screen: Screen) -> String {
    let line = screen.wrapped(line, INDENT);
    format!("{}{}\n", screen.painted(tone(status), word), line.strip_prefix(word).unwrap_or(&line))
}

/// The verdict: one line for a pipe; on a screen the finding first, then what it rests on, a line each.
fn closing(verdict: &Verdict, screen: Screen) -> String {
    let word = format!("{}:", verdict.status.name());
    if screen.width.is_none() {
        return headed(&word, verdict.status, &verdict_line(verdict), screen);
    }
    let sentence = one_line(&format!("{word} {}.", verdict.sentence.trim_end_matches('.')));
    let mut out = headed(&word, verdict.status, &sentence, screen);
    for (name, words) in verdict.facts() {
        let line = screen.wrapped(&format!("{INDENT}{}", one_line(&format!("{name}: {words}"))), DEEPER);
        let _ = writeln!(out, "{}", screen.painted(Style::new().dimmed(), &line));
    }
    if let Some(next) = &verdict.next {
        let line = format!("{INDENT}{}", one_line(&format!("next: {next}")));
        // A command is copied: breaks would come along.
        let _ = writeln!(out, "{}", if next.contains('`') { line } else { screen.wrapped(&line, DEEPER) });
    }
    out
}

/// The closing line: `ok: ... (confidence: high; basis: measured). Next: ...`.
pub fn verdict_line(verdict: &Verdict) -> String {
    let facts: Vec<String> = verdict.facts().map(|(name, words)| format!("{name}: {words}")).collect();
    let mut line = format!("{}: {}", verdict.status.name(), verdict.sentence.trim_end_matches('.'));
    if !facts.is_empty() {
        let _ = write!(line, " ({})", facts.join("; "));
    }
    line.push('.');
    if let Some(next) = &verdict.next {
        let _ = write!(line, " Next: {next}");
    }
    one_line(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cell, Column, Status, Table};

    fn sample() -> Report {
        let mut report = Report::new("sweep", "0.1.0");
        let mut table = Table::new(
            "rows",
            "",
            [Column::number("size_bytes", "size"), Column::text("note", "note"), Column::number("time_us", "time")],
        );
        table.push([8u64.into(), "a long remark that has to wrap somewhere".into(), Cell::float(1.25, 2)]);
        table.push([1_073_741_824u64.into(), Cell::Missing, Cell::float(f64::NAN, 2)]);
        report.tables.push(table);
        report
    }

    /// Goal: a narrow terminal wraps words and never a number.
    #[test]
    fn narrow_terminals_wrap_text_and_keep_numbers_whole() {
        let narrow = render(&sample(), Screen::plain(Some(40)));
        assert!(narrow.lines().all(|l| l.chars().count() <= 40), "{narrow}");
        assert!(narrow.contains("1 GiB"), "{narrow}");
        assert_eq!(render(&sample(), Screen::default()).lines().count(), 4);
    }

    /// Goal: at any width every word and number of a wide table is whole, and no line is wider unless one word is.
    #[test]
    fn no_word_is_broken_at_any_width() {
        let columns = (0..12).map(|i| match i % 3 {
            0 => Column::text("key", "collective name"),
            1 => Column::number("n", "busbw GB/s"),
            _ => Column::text("t", "instead of"),
        });
        let mut table = Table::new("rows", "", columns);
        table.push((0..12).map(|i| match i % 3 {
            0 => "reduce_scatter by ring/ll128".into(),
            1 => 1_073_741_824_u64.into(),
            _ => Cell::Missing,
        }));
        let mut report = Report::new("sweep", "0.1.0");
        report.tables.push(table);
        for width in [34, 40, 60, 80, 100, 200] {
            let text = render(&report, Screen::plain(Some(width)));
            let found = |word: &str| text.split_whitespace().filter(|w| *w == word).count();
            for word in ["reduce_scatter", "ring/ll128", "1073741824", "collective", "instead", "GB/s"] {
                assert!(found(word) >= 4, "{width}: {word} is broken:\n{text}");
            }
            assert!(text.lines().all(|l| l.chars().count() <= usize::from(width)), "{width}:\n{text}");
        }
    }

    /// Goal: no name from a file reaches the terminal as a control sequence.
    #[test]
    fn control_characters_are_not_passed_on() {
        let mut report = sample();
        report.assumptions.push("evil \u{1b}[31m\nname".to_owned());
        report.tables[0].push([Cell::Missing, "\u{1b}]0;x\u{7}".into()]);
        assert!(!render(&report, Screen::default()).contains('\u{1b}'));
        assert!(render(&report, Screen::default()).starts_with("# evil \\u{1b}[31m name\n"));
    }

    /// Goal: the verdict stays on one line and ends in one full stop.
    #[test]
    fn the_verdict_is_one_line() {
        let verdict = Verdict {
            status: Status::Warning,
            sentence: "two of 20 sizes are slow.".to_owned(),
            confidence: "medium".to_owned(),
            basis: "predicted".to_owned(),
            next: Some("collcast validate run.log".to_owned()),
        };
        assert_eq!(
            verdict_line(&verdict),
            "warning: two of 20 sizes are slow (confidence: medium; basis: measured constants). \
             Next: collcast validate run.log"
        );
    }
}
