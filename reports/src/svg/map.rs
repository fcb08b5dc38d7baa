//! Which choice holds from where to where: a row a call, a box a choice.

use std::f64::consts::SQRT_2;

use maud::{Markup, html};

use collcast_sim::units::Bytes;

use crate::figure::{Map, Range};

use super::parts::{Key, WIDE, fitting, keys, series_of, text_width, ticks};
use super::scale::{Ruler, px};

/// How far a range without an end is drawn beyond the ends of the others: four doublings.
const OPEN: f64 = 16.0;

/// Room for the names of rows: beside them, and above them where a picture is narrow.
const BESIDE: f64 = 150.0;
const ABOVE: f64 = 18.0;
const TOP: f64 = 8.0;
/// Height of a row, and of a line of words in it.
const ROW: f64 = 58.0;
const LINE: f64 = 14.0;
/// Lines of a box at most.
const LINES: usize = 3;
/// Boxes narrower than this hold no words.
const WORDS: f64 = 24.0;

pub(super) fn legend(map: &Map) -> Vec<Key> {
    let ranges = map.rows.iter().flat_map(|row| &row.ranges);
    keys(ranges.filter_map(|range| Some((range.words.first()?, range.hue))))
}

/// The picture; of more ranges than `marks` some are drawn, evenly, each up to the next.
pub(super) fn draw(map: &Map, marks: usize, width: f64) -> Option<(f64, Markup)> {
    let (left, above) = if width < WIDE { (8.0, ABOVE) } else { (BESIDE, 0.0) };
    let (right, row_height) = (width - 14.0, ROW + above);
    let names = legend(map);
    let x = Ruler::around(map.x.scale, ends(map).into_iter(), (left, right))?;
    let every = map.rows.iter().map(|row| row.ranges.len()).sum::<usize>().div_ceil(marks).max(1);
    let bottom = TOP + row_height * map.rows.len() as f64;
    let inner = html! {
        @for (place, words) in x.ticks(ticks(right - left)) {
            line class="grid" x1=(px(place)) x2=(px(place)) y1=(px(TOP)) y2=(px(bottom + 4.0)) {}
            text class="tick" x=(px(place)) y=(px(bottom + 18.0)) text-anchor="middle" { (words) }
        }
        text class="label" x=(px((left + right) / 2.0)) y=(px(bottom + 38.0)) text-anchor="middle" { (map.x.label) }
        @if every > 1 { text class="tick" x=(px(right)) y=(px(bottom + 54.0)) text-anchor="end" { "one range of " (every) " is drawn" } }
        @for (index, row) in map.rows.iter().enumerate() {
            @let top = TOP + row_height * index as f64 + above;
            @if above > 0.0 {
                text class="word" x=(px(left)) y=(px(top - 5.0)) { (fitting(&row.label, right - left)) }
            } @else {
                text class="word" x=(px(left - 10.0)) y=(px(top + ROW / 2.0 + 2.0)) text-anchor="end" { (fitting(&row.label, left - 14.0)) }
            }
            @let ranges: Vec<&Range> = row.ranges.iter().step_by(every).collect();
            @for (place, range) in ranges.iter().enumerate() {
                @let (from, to) = borders(&ranges, place);
                @let from = x.at(from).unwrap_or(left).max(left);
                @let to = x.at(to).unwrap_or(right).min(right);
                @let series = range.words.first().and_then(|word| series_of(&names, word));
                @let middle = (from + to) / 2.0;
                @let said = format!("{}, {}: {}", row.label, span(range), range.words.join(", "));
                g data-s=[series] data-x=(px(middle)) data-t=(said) {
                    rect class=(format!("cell c{}", range.hue.0)) x=(px(from + 0.75)) y=(px(top + 1.5)) width=(px((to - from - 1.5).max(1.0))) height=(px(ROW - 5.0)) rx="3" {}
                    rect class=(format!("fill c{}", range.hue.0)) x=(px(from + 0.75)) y=(px(top + 1.5)) width=(px((to - from - 1.5).max(1.0))) height="4" {}
                    @if to - from >= WORDS {
                        @let lines = lines(&range.words, to - from - 3.0);
                        @let first = top + (ROW - LINE * lines.len() as f64) / 2.0 + 10.0;
                        @for (line, words) in lines.iter().enumerate() {
                            text class="small" x=(px(middle)) y=(px(first + LINE * line as f64)) text-anchor="middle" { (words) }
                        }
                    }
                }
            }
        }
    };
    Some((bottom + if every > 1 { 60.0 } else { 44.0 }, inner))
}

/// Where ranges begin and end, and how far those are drawn that do neither.
fn ends(map: &Map) -> Vec<f64> {
    let all = || map.rows.iter().flat_map(|row| &row.ranges).flat_map(|range| [range.from, range.to]);
    let mut ends: Vec<f64> = all().filter(|end| *end > 0.0 && end.is_finite()).collect();
    let (first, last) = (ends.iter().copied().fold(f64::MAX, f64::min), ends.iter().copied().fold(1.0, f64::max));
    ends.extend(all().any(|end| end == 0.0).then_some(first / OPEN));
    ends.extend(all().any(f64::is_infinite).then_some(last * OPEN));
    ends
}

/// The sizes of a range, as its table has them.
fn span(range: &Range) -> String {
    let words = |end: f64| if end.is_finite() { Bytes(end.round() as u64).about() } else { "end".to_owned() };
    format!("{} to {}", words(range.from), words(range.to))
}

/// Words in lines of a box: the first by itself, then as many on a line as find room. Words without room are left out.
fn lines(words: &[String], room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (place, word) in words.iter().enumerate().filter(|(_, word)| text_width(word) <= room) {
        let joined = lines.last().filter(|_| place > 1).map(|last| format!("{last} {word}"));
        match joined.filter(|joined| text_width(joined) <= room) {
            Some(joined) => {
                lines.pop();
                lines.push(joined);
            }
            None if lines.len() < LINES => lines.push(word.clone()),
            None => {}
        }
    }
    lines
}

/// Where a range is drawn from and to: half way to its neighbours on a logarithmic axis, and as far beyond the outermost.
fn borders(ranges: &[&Range], place: usize) -> (f64, f64) {
    let range = ranges[place];
    let before = place.checked_sub(1).map(|before| ranges[before].to);
    let after = ranges.get(place + 1).map(|after| after.from);
    (
        before.map_or(range.from / SQRT_2, |to| (to * range.from).sqrt()),
        after.map_or(range.to * SQRT_2, |from| (range.to * from).sqrt()),
    )
}
