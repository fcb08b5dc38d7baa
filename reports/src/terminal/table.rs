//! A table on a terminal or a pipe.

use std::collections::BTreeSet;

use comfy_table::{
    Attribute, Cell as Drawn, CellAlignment, Color, ColumnConstraint, ContentArrangement, LineStyle, Table as Grid,
    TableStyle, Width,
};

use collcast_sim::text::one_line;

use super::screen::Screen;
use crate::model::{Align, Bar, Cell, Column, Status, Table};

/// Columns apart under one rule: nothing between the numbers and the eye, and a row splits on
/// whitespace in awk.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('-').junction('-'));
/// What stands between columns: two spaces and the junction of the rule.
const GAP: usize = 2;
const APART: usize = GAP + 1;
/// Characters up to which words of a cell stay on one line.
const SHORT: usize = 16;
/// Characters that a column of words may want before bars get none.
const WORDS: usize = 36;
/// Characters of the longest bar.
const LENGTH: usize = 10;
/// Parts of a character, from an eighth on.
const EIGHTHS: [char; 7] = ['\u{258f}', '\u{258e}', '\u{258d}', '\u{258c}', '\u{258b}', '\u{258a}', '\u{2589}'];

/// The table: whole where it fits; else without columns that are the same in every row, which a line below it tells, and
/// in parts below each other, each with the columns that tell rows apart.
pub(super) fn draw(table: &Table, screen: Screen) -> String {
    if table.rows.is_empty() {
        return "(no rows)\n".to_owned();
    }
    let all: Vec<usize> = (0..table.columns.len()).collect();
    let Some(width) = screen.width.map(usize::from).filter(|width| needed(table, &all, least) > *width) else {
        return part(table, &all, screen);
    };
    let (kept, same) = folded(table);
    let parts: Vec<String> = parts(table, &kept, width).iter().map(|part| self::part(table, part, screen)).collect();
    let mut out = parts.join("\n");
    if !same.is_empty() {
        let told: Vec<String> = (same.into_iter())
            .map(|index| {
                let column = &table.columns[index];
                format!("{} {}", column.headed(), shown(column, table.rows[0].get(index)))
            })
            .collect();
        out.push_str(&screen.wrapped(&format!("in every row: {}", told.join(", ")), "  "));
        out.push('\n');
    }
    out
}

fn shown(column: &Column, cell: Option<&Cell>) -> String {
    match cell {
        Some(Cell::Text(text)) => one_line(text),
        other => column.shown(other.unwrap_or(&Cell::Missing)),
    }
}

/// The columns whose cells differ, and those that are the same in every row.
fn folded(table: &Table) -> (Vec<usize>, Vec<usize>) {
    let differs = |&index: &usize| {
        let mut cells = table.rows.iter().map(|row| row.get(index).unwrap_or(&Cell::Missing));
        let first = cells.next();
        table.rows.len() < 2 || cells.any(|cell| Some(cell) != first)
    };
    let (kept, same): (Vec<usize>, Vec<usize>) = (0..table.columns.len()).partition(differs);
    if kept.is_empty() { (same, kept) } else { (kept, same) }
}

/// Characters of the longest of some texts.
fn longest(texts: impl Iterator<Item = usize>) -> usize {
    texts.max().unwrap_or(0)
}

/// Characters of a column: `of_words` of each text, all of other cells, and `of_heading` of the heading.
fn wide(table: &Table, column: usize, of_words: impl Fn(&str) -> usize, of_heading: impl Fn(&str) -> usize) -> usize {
    let own = &table.columns[column];
    let cells = table.rows.iter().filter_map(|row| row.get(column)).map(|cell| match cell {
        Cell::Text(text) => of_words(&one_line(text)),
        other => own.shown(other).chars().count(),
    });
    longest(cells.chain([of_heading(&own.headed())]))
}

/// What a column may not be narrower than: numbers are whole, and so are words and short texts.
fn least(table: &Table, column: usize) -> usize {
    let word = |text: &str| longest(text.split(' ').map(|word| word.chars().count()));
    let short = |text: &str| Some(text.chars().count()).filter(|n| *n <= SHORT).unwrap_or_else(|| word(text));
    wide(table, column, short, word)
}

/// What a column wants where there is room.
fn wanted(table: &Table, column: usize) -> usize {
    let whole = |text: &str| text.chars().count();
    wide(table, column, whole, whole).min(WORDS.max(least(table, column)))
}

/// Characters of columns beside each other.
fn needed(table: &Table, columns: &[usize], each: impl Fn(&Table, usize) -> usize) -> usize {
    (columns.iter().map(|&column| each(table, column) + APART)).sum::<usize>().saturating_sub(APART)
}

/// How many of the first columns tell rows apart; one where they leave too little room.
fn keys(table: &Table, columns: &[usize], width: usize) -> usize {
    let apart = |count: &usize| {
        let row = |row: &Vec<Cell>| -> Vec<String> {
            columns[..*count].iter().map(|&index| shown(&table.columns[index], row.get(index))).collect()
        };
        table.rows.iter().map(row).collect::<BTreeSet<_>>().len() == table.rows.len()
    };
    (1..columns.len())
        .take_while(|&count| needed(table, &columns[..count], least) <= width / 2)
        .find(apart)
        .unwrap_or(1)
}

/// The columns side by side, or as many as fit over the next ones.
fn parts(table: &Table, columns: &[usize], width: usize) -> Vec<Vec<usize>> {
    let keys = &columns[..keys(table, columns, width)];
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut part: Vec<usize> = Vec::new();
    for &column in columns {
        part.push(column);
        if needed(table, &part, least) > width && part.len() > keys.len() + 1 {
            part.pop();
            parts.push(std::mem::replace(&mut part, keys.iter().copied().chain([column]).collect()));
        }
    }
    parts.push(part);
    parts
}

/// Some columns of a table; text wraps at spaces where it is wide.
fn part(table: &Table, columns: &[usize], screen: Screen) -> String {
    let barred = barred(table, columns, screen);
    let bars: Vec<Option<f64>> =
        columns.iter().map(|column| barred.iter().find(|(index, _)| index == column).map(|bar| bar.1)).collect();
    let mut grid = Grid::new();
    grid.load_style(STYLE).force_no_tty();
    if screen.colour {
        grid.enforce_styling().style_text_only();
    }
    match screen.width {
        Some(width) => grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => grid.set_content_arrangement(ContentArrangement::Disabled),
    };
    let each = || columns.iter().zip(&bars);
    grid.set_header(each().flat_map(|(&column, bar)| {
        let heading = Drawn::new(table.columns[column].headed()).add_attribute(Attribute::Bold);
        [Some(heading), bar.map(|_| Drawn::new(""))].into_iter().flatten()
    }));
    for row in &table.rows {
        grid.add_row(each().flat_map(|(&column, bar)| {
            let own = &table.columns[column];
            let text = shown(own, row.get(column));
            let tone = tone(own, &text);
            let cell = Drawn::new(text);
            let cell = tone.map_or(cell.clone(), |tone| cell.fg(tone));
            let drawn = bar.map(|most| self::bar(value(row.get(column)).unwrap_or(0.0) / most));
            [Some(cell), drawn.map(|bar| Drawn::new(bar).fg(Color::Cyan))].into_iter().flatten()
        }));
    }
    let mut place = 0;
    for (position, (&column, bar)) in each().enumerate() {
        let last = position + 1 == columns.len();
        let gap = if last || bar.is_some() { 0 } else { GAP };
        set(&mut grid, place, least(table, column), gap, table.columns[column].align);
        place += 1;
        if bar.is_some() {
            set(&mut grid, place, LENGTH, if last { 0 } else { GAP }, Align::Left);
            place += 1;
        }
    }
    let mut text = grid.trim_fmt();
    text.push('\n');
    text
}

/// Sets how wide a drawn column is, and where its cells stand.
fn set(grid: &mut Grid, place: usize, least: usize, gap: usize, align: Align) {
    let Some(drawn) = grid.column_mut(place) else { return };
    drawn.set_padding((0, u16::try_from(gap).unwrap_or(0)));
    drawn.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(u16::try_from(least + gap).unwrap_or(u16::MAX))));
    if align == Align::Right {
        drawn.set_cell_alignment(CellAlignment::Right);
    }
}

/// The columns that have bars where there is room, each with the value of the longest.
fn barred(table: &Table, columns: &[usize], screen: Screen) -> Vec<(usize, f64)> {
    let mut room = screen.width.map_or(0, usize::from).saturating_sub(needed(table, columns, wanted));
    let mut found = Vec::new();
    for &column in columns {
        let values = || table.rows.iter().filter_map(|row| value(row.get(column)));
        let full = match table.columns[column].bar {
            Bar::None => continue,
            Bar::OfLargest => 0.0,
            Bar::OfHundred => 100.0,
        };
        let most = values().fold(full, f64::max);
        if room >= LENGTH + APART && values().count() > 1 && most > 0.0 && values().all(|value| value >= 0.0) {
            room -= LENGTH + APART;
            found.push((column, most));
        }
    }
    found
}

fn value(cell: Option<&Cell>) -> Option<f64> {
    match cell? {
        Cell::Int(value) => Some(*value as f64),
        Cell::Float { value, .. } => Some(*value).filter(|value| value.is_finite()),
        Cell::Text(_) | Cell::Bool(_) | Cell::Missing => None,
    }
}

/// A bar of a share of the longest.
fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (8 * LENGTH) as f64).round() as usize;
    let whole = std::iter::repeat_n('\u{2588}', eighths / 8);
    whole.chain((eighths % 8).checked_sub(1).map(|part| EIGHTHS[part])).collect()
}

/// The colour of a judgement.
fn tone(column: &Column, text: &str) -> Option<Color> {
    let judges = ["verdict", "state", "judgement", "severity", "status", "result", "fits"].contains(&&*column.key);
    let status = match text {
        "slow" | "slower" | "error" | "failed" | "no" => Status::Failed,
        "warning" | "cannot tell" | "unsure" | "doubtful" => Status::Warning,
        "healthy" | "faster" | "ok" | "pass" | "passed" | "yes" => Status::Ok,
        _ => return None,
    };
    judges.then_some(match status {
        Status::Ok => Color::Green,
        Status::Warning => Color::Yellow,
        Status::Failed => Color::Red,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(
            "rows",
            "",
            [
                Column::text("backend", "backend"),
                Column::text("collective", "collective"),
                Column::number("size_bytes", "size"),
                Column::number("busbw_gbps", "busbw GB/s").barred(Bar::OfLargest),
                Column::text("state", "verdict"),
            ],
        );
        for (size, busbw) in [(1024_u64, 4.0), (2048, 10.0), (4096, 16.0)] {
            table.push([
                "host".into(),
                "all_reduce".into(),
                size.into(),
                Cell::float(busbw, 2),
                if busbw < 5.0 { "slow".into() } else { "pass".into() },
            ]);
        }
        table
    }

    /// Goal: where a table fits nothing is left out, and bars come with room.
    #[test]
    fn bars_come_where_there_is_room() {
        let wide = draw(&sample(), Screen::plain(Some(80)));
        assert!(wide.contains("4.00 \u{2588}\u{2588}\u{258c}"), "{wide}");
        assert!(wide.contains(&format!("16.00 {}", "\u{2588}".repeat(LENGTH))), "{wide}");
        assert!(!draw(&sample(), Screen::default()).contains('\u{2588}'));
        assert!(!draw(&sample(), Screen::plain(Some(62))).contains('\u{2588}'));
    }

    /// Goal: what is the same in every row makes room first, and is told; parts are told apart by the same columns.
    #[test]
    fn what_is_the_same_is_told_once() {
        let folded = draw(&sample(), Screen::plain(Some(40)));
        assert!(folded.contains("in every row: backend host,"), "{folded}");
        assert!(folded.lines().all(|line| line.chars().count() <= 40), "{folded}");
        let split = draw(&sample(), Screen::plain(Some(22)));
        assert_eq!(split.matches("2 KiB").count(), 2, "{split}");
    }

    /// Goal: judgements are in colour, and widths do not count the codes.
    #[test]
    fn judgements_have_colours() {
        let [plain, coloured] = [false, true].map(|colour| draw(&sample(), Screen { width: Some(80), colour }));
        let mut bare = String::new();
        let mut inside = false;
        for c in coloured.chars() {
            match c {
                '\u{1b}' => inside = true,
                'm' if inside => inside = false,
                c if !inside => bare.push(c),
                _ => {}
            }
        }
        let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        assert_eq!(trimmed(&bare), trimmed(&plain));
        // Red and green.
        for cell in ["\u{1b}[38;5;9mslow", "\u{1b}[38;5;10mpass"] {
            assert!(coloured.contains(cell), "{coloured:?}");
        }
        let state = Column::text("state", "verdict");
        let tones = ["pass", "unsure", "slow", "other"].map(|word| tone(&state, word));
        assert_eq!(tones, [Some(Color::Green), Some(Color::Yellow), Some(Color::Red), None]);
    }

    /// Goal: a bar is as long as its share, to an eighth of a character.
    #[test]
    fn bars_are_as_long_as_their_shares() {
        assert_eq!((bar(0.0), bar(1.0)), (String::new(), "\u{2588}".repeat(LENGTH)));
        assert_eq!((bar(0.0125), bar(0.1125)), ("\u{258f}".to_owned(), "\u{2588}\u{258f}".to_owned()));
    }
}
