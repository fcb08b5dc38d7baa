//! A report as a comment on a pull request, in GitHub's Markdown (GitLab reads the same).
//!
//! The finding comes first, then what matters of each table; the rest is folded. The whole
//! stays below what GitHub takes in one comment; what is left out is counted.

use std::fmt::Write as _;

use crate::model::{Align, Cell, Report, Status, Table};

/// Characters of a verdict that is a heading.
const HEADING_MAX: usize = 160;
/// Rows of a table that are shown unfolded.
const ROWS_SHOWN: usize = 12;
/// Most bytes of all tables: GitHub refuses comments over 65,536 characters, and the lines
/// around the tables need room too.
const TABLE_BYTES_MAX: usize = 48_000;
/// Most bytes of the lines around them.
const NOTE_BYTES_MAX: usize = 10_000;

/// The comment.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    let title = format!("collcast {}", report.kind);
    match &report.verdict {
        None => {
            let _ = writeln!(out, "### {title}");
        }
        Some(verdict) => {
            let icon = match verdict.status {
                Status::Ok => "✅",
                Status::Warning => "⚠️",
                Status::Failed => "❌",
            };
            // A long sentence is no heading.
            if verdict.sentence.chars().count() <= HEADING_MAX {
                let _ = writeln!(out, "### {icon} {title}: {}", escaped(&verdict.sentence));
            } else {
                let lead = if report.lead.is_empty() { String::new() } else { format!(": {}", escaped(&report.lead)) };
                let _ = writeln!(out, "### {icon} {title}{lead}\n\n{}", escaped(&verdict.sentence));
            }
            let facts: Vec<String> =
                verdict.facts().map(|(name, words)| format!("{name}: {}", escaped(words))).collect();
            if !facts.is_empty() {
                let _ = writeln!(out, "\n{}", facts.join("; "));
            }
            if let Some(next) = &verdict.next {
                let _ = writeln!(out, "\n**Next:** {}", escaped(next));
            }
        }
    }
    if report.predicted {
        out.push_str("\n**Predicted, not measured.**\n");
    }
    let mut room = TABLE_BYTES_MAX;
    for table in report.tables.iter().filter(|t| !t.rows.is_empty()) {
        let heading = if table.title.is_empty() { &table.name } else { &table.title };
        let shown = if table.detail { 0 } else { table.rows.len().min(ROWS_SHOWN) };
        if shown > 0 {
            if !table.title.is_empty() {
                let _ = writeln!(out, "\n**{}**", escaped(&table.title));
            }
            out.push('\n');
            out.push_str(&grid(table, &table.rows[..shown], &mut room));
        }
        let folded = &table.rows[shown..];
        if !folded.is_empty() {
            let more = if shown > 0 { "more " } else { "" };
            let plural = if folded.len() == 1 { "" } else { "s" };
            let summary = format!("{heading}: {} {more}row{plural}", folded.len());
            fold(&mut out, &summary, &grid(table, folded, &mut room));
        }
    }
    let mut notes = String::new();
    let inputs = report.inputs.iter().map(|input| {
        let path = input.path.as_deref().unwrap_or("built-in");
        format!("{}: {path} ({})", input.name, input.hash)
    });
    let warnings = report.warnings.iter().map(|line| format!("warning: {line}"));
    let lines: Vec<String> = report.assumptions.iter().cloned().chain(warnings).chain(inputs).collect();
    for (index, line) in lines.iter().enumerate() {
        let line = format!("- {}\n", escaped(line));
        if notes.len() + line.len() > NOTE_BYTES_MAX {
            let _ = writeln!(notes, "- and {} more lines", lines.len() - index);
            break;
        }
        notes.push_str(&line);
    }
    if !notes.is_empty() {
        fold(&mut out, "What was compared and assumed", &notes);
    }
    let _ = writeln!(out, "\n<sub>collcast {}</sub>", escaped(&report.version));
    out
}

/// The summary is HTML; an empty line after it makes what follows Markdown again.
fn fold(out: &mut String, summary: &str, text: &str) {
    let summary = collcast_sim::text::one_line(summary).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = write!(out, "\n<details><summary>{summary}</summary>\n\n{text}\n</details>\n");
}

/// Rows under the columns of a table, within the room that is left.
fn grid(table: &Table, rows: &[Vec<Cell>], room: &mut usize) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = line(table.columns.iter().map(|c| escaped(&c.headed())).collect());
    let rule = table.columns.iter().map(|c| if c.align == Align::Right { "--:" } else { ":--" });
    out.push_str(&line(rule.map(str::to_owned).collect()));
    let mut shown = 0;
    for row in rows {
        let cells = table.cells(row).map(|(column, cell)| match cell {
            Cell::Text(text) => escaped(text),
            other => column.shown(other),
        });
        let text = line(cells.collect());
        if out.len() + text.len() > *room {
            break;
        }
        out.push_str(&text);
        shown += 1;
    }
    *room = room.saturating_sub(out.len());
    let left = rows.len() - shown;
    if left > 0 {
        let _ = writeln!(out, "\n{left} more rows are not shown here.");
    }
    out
}

/// Text that stays text: no markup, no mention, no end of a cell.
fn escaped(text: &str) -> String {
    let chars: Vec<char> = collcast_sim::text::one_line(text).chars().collect();
    let mut out = String::with_capacity(chars.len());
    for (index, &c) in chars.iter().enumerate() {
        let beside = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphanumeric());
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Escapes and entities would still notify whoever has that name, and link issues.
            '@' | '#' => {
                out.push(c);
                out.push_str("<!-- -->");
            }
            // Inside a word, as in all_reduce, it is no markup.
            '_' if beside(index.checked_sub(1)) && beside(Some(index + 1)) => out.push('_'),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '$' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
