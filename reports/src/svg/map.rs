//! Which choice holds from where to where: a row a call, a box a choice.

use std::f64::consts::SQRT_2;

use maud::{Markup, html};

use crate::figure::{Map, Range};

use super::parts::{Key, WIDTH, fitting, keys, series_of, text_width};
use super::scale::{Ruler, px};

const LEFT: f64 = 150.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 8.0;
/// Height of a row, and of a line of words in it.
const ROW: f64 = 46.0;
const LINE: f64 = 14.0;
/// Boxes narrower than this hold no words.
const WORDS: f64 = 24.0;

pub(super) fn legend(map: &Map) -> Vec<Key> {
    let ranges = map.rows.iter().flat_map(|row| &row.ranges);
    keys(ranges.filter_map(|range| Some((range.words.first()?, range.hue))))
}

pub(super) fn draw(map: &Map) -> Option<(f64, Markup)> {
    let names = legend(map);
    let ends = map.rows.iter().flat_map(|row| &row.ranges).flat_map(|range| [range.from, range.to]);
    let x = Ruler::around(map.x.scale, ends, (LEFT, RIGHT))?;
    let bottom = TOP + ROW * map.rows.len() as f64;
    let inner = html! {
        @for (place, words) in x.ticks(8) {
            line class="grid" x1=(px(place)) x2=(px(place)) y1=(px(TOP)) y2=(px(bottom + 4.0)) {}
            text class="tick" x=(px(place)) y=(px(bottom + 18.0)) text-anchor="middle" { (words) }
        }
        text class="label" x=(px((LEFT + RIGHT) / 2.0)) y=(px(bottom + 38.0)) text-anchor="middle" { (map.x.label) }
        @for (index, row) in map.rows.iter().enumerate() {
            @let top = TOP + ROW * index as f64;
            text class="word" x=(px(LEFT - 10.0)) y=(px(top + ROW / 2.0 + 2.0)) text-anchor="end" { (fitting(&row.label, LEFT - 14.0)) }
            @for (place, range) in row.ranges.iter().enumerate() {
                @let (from, to) = borders(&row.ranges, place);
                @let from = x.at(from).unwrap_or(LEFT).max(LEFT);
                @let to = x.at(to).unwrap_or(RIGHT).min(RIGHT);
                @let series = range.words.first().and_then(|word| series_of(&names, word));
                @let middle = (from + to) / 2.0;
                @let said = format!("{}, {} to {}: {}", row.label, x.words(range.from), x.words(range.to), range.words.join(", "));
                g data-s=[series] data-x=(px(middle)) data-t=(said) {
                    rect class=(format!("cell c{}", range.hue.0)) x=(px(from + 0.75)) y=(px(top + 1.5)) width=(px((to - from - 1.5).max(1.0))) height=(px(ROW - 5.0)) rx="3" {}
                    rect class=(format!("fill c{}", range.hue.0)) x=(px(from + 0.75)) y=(px(top + 1.5)) width=(px((to - from - 1.5).max(1.0))) height="4" {}
                    @if to - from >= WORDS {
                        @let lines: Vec<&String> = range.words.iter().filter(|word| text_width(word) <= to - from - 3.0).take(2).collect();
                        @for (line, word) in lines.iter().enumerate() {
                            text class="small" x=(px(middle)) y=(px(top + 20.0 + LINE * line as f64)) text-anchor="middle" { (word) }
                        }
                    }
                }
            }
        }
    };
    Some((bottom + 44.0, inner))
}

/// Where a range is drawn from and to: half way to its neighbours on a logarithmic axis, and as far beyond the outermost.
fn borders(ranges: &[Range], place: usize) -> (f64, f64) {
    let range = &ranges[place];
    let before = place.checked_sub(1).map(|before| ranges[before].to);
    let after = ranges.get(place + 1).map(|after| after.from);
    (
        before.map_or(range.from / SQRT_2, |to| (to * range.from).sqrt()),
        after.map_or(range.to * SQRT_2, |from| (range.to * from).sqrt()),
    )
}
