//! A table of a page: sorted and turned page by page by the script, whole without it.

use maud::{Markup, PreEscaped, html};

use collcast_sim::text::one_line;

use super::words::{region, sentence, words};
use crate::model::{Align, Cell, Column, Report, Table};

/// Columns up to which each is shown; of a wider table, those that are the same in every row are told below it.
const WIDE: usize = 7;
/// Rows from which on "every row" says something.
const FEW: usize = 3;
/// Characters from which on a cell may break its line.
const LONG: usize = 32;
/// Rows of a table that is unfolded at once.
const FOLDED: usize = 60;
/// Rows from which on a table is written as short as HTML may be: 10,000 rows of a sweep take 1.2 MB in place of 3.9.
const MANY: usize = 200;

/// The table, as far as there is room left.
pub(super) fn render(table: &Table, id: &str, room: &mut usize) -> Markup {
    let all = || table.rows.iter().map(|row| table.cells(row).collect::<Vec<_>>());
    let same = |index: usize| {
        let mut cells = table.rows.iter().map(|row| row.get(index).unwrap_or(&Cell::Missing));
        let first = cells.next();
        cells.all(|cell| Some(cell) == first)
    };
    let empty = |index: usize| table.rows.iter().all(|row| row.get(index).is_none_or(|cell| *cell == Cell::Missing));
    let folds = table.columns.len() > WIDE && table.rows.len() >= FEW;
    let (mut kept, mut told) = (Vec::new(), Vec::new());
    for (index, column) in table.columns.iter().enumerate() {
        match (empty(index), folds && same(index)) {
            (true, _) => {}
            (false, true) => told.push(format!("{} {}", column.headed(), shown(column, &table.rows[0][index]))),
            (false, false) => kept.push(index),
        }
    }
    let mut rows = String::new();
    let mut left = table.rows.len();
    for row in all() {
        let mut line = html! { tr { @for &index in &kept { (cell(row[index].0, row[index].1)) } } }.into_string();
        if table.rows.len() > MANY {
            // HTML needs no end tags of rows and cells, and what names hold is escaped.
            line = line.replace("</td>", "").replace("</tr>", "");
        }
        if line.len() > *room {
            break;
        }
        *room -= line.len();
        left -= 1;
        rows.push_str(&line);
    }
    let heading = match (table.title.as_str(), table.name.as_str()) {
        ("", "rows") => "All rows".to_owned(),
        ("", name) => sentence(&name.replace('_', " ")),
        (title, _) => sentence(&one_line(title)),
    };
    let right: Vec<String> = (kept.iter().zip(1..))
        .filter(|(index, _)| table.columns[**index].align == Align::Right)
        .map(|(_, place)| format!("n{place}"))
        .collect();
    let body = html! {
        div class="scroll" tabindex="0" role="region" aria-label=(region("Table", &heading, id)) {
            table class=[(!right.is_empty()).then(|| right.join(" "))] {
                caption { span { (words(&heading)) } }
                thead { tr { @for &index in &kept {
                    @let column = &table.columns[index];
                    th scope="col" class=[(column.align == Align::Right).then_some("n")] { (column.headed()) }
                } } }
                tbody { (PreEscaped(&rows)) }
            }
        }
        @if !told.is_empty() { p class="note" { "In every row: " (one_line(&told.join(", "))) "." } }
        @if left > 0 { p class="note" { (left) " more rows are left out, as this page would be too large. --format csv or json has them." } }
    };
    html! {
        @if table.detail || table.rows.len() > FOLDED {
            details id=(id) {
                summary { (words(&heading)) " (" (table.rows.len()) " rows)" }
                div { (body) }
            }
        } @else {
            section class="part" id=(id) { (body) }
        }
    }
}

fn cell(column: &Column, cell: &Cell) -> Markup {
    let text = shown(column, cell);
    if column.align == Align::Left && text.chars().count() > LONG {
        return html! { td class="long" { (words(&text)) } };
    }
    html! { td { (text) } }
}

/// A rule for each column of the widest table: numbers stand right where the table says so.
pub(super) fn sides(reports: &[Report]) -> String {
    let columns = reports.iter().flat_map(|report| &report.tables).map(|table| table.columns.len()).max().unwrap_or(0);
    let places: Vec<String> = (1..=columns).map(|place| format!(".n{place} td:nth-child({place})")).collect();
    if places.is_empty() {
        String::new()
    } else {
        format!("{}{{text-align:right;white-space:nowrap}}", places.join(","))
    }
}

/// A cell as people read it, without what would break a line.
fn shown(column: &Column, cell: &Cell) -> String {
    match cell {
        Cell::Text(own) => one_line(own),
        other => column.shown(other),
    }
}
