//! Lengths beside each other, from zero to the right or to the left.

use maud::{Markup, html};

use crate::figure::{Bar, Bars, Scale};
use crate::palette::Hue;

use super::parts::{Key, WIDE, folded, keys, series_of, text_width, ticks};
use super::scale::{Ruler, number, px};

/// Most room for the names of bars.
const NAMES: f64 = 340.0;
const TOP: f64 = 8.0;
const ROW: f64 = 26.0;
/// Room for a name above its bar, where a picture is narrow, and for each line of it but the first.
const ABOVE: f64 = 17.0;
const LINE: f64 = 12.5;
/// Room behind the longest bar for its value.
const VALUE: f64 = 64.0;

pub(super) fn legend(bars: &Bars) -> Vec<Key> {
    keys(bars.bars.iter().flat_map(|bar| &bar.parts).map(|(name, _, hue)| (name, *hue)))
}

pub(super) fn draw(bars: &Bars, width: f64) -> Option<(f64, Markup)> {
    let names = legend(bars);
    let left = bars.bars.iter().map(|bar| text_width(&bar.label)).fold(40.0, f64::max).min(NAMES) + 20.0;
    let narrow = width < WIDE;
    let lines = bars.bars.iter().map(|bar| folded(&bar.label, width - 12.0).len()).max().unwrap_or(1);
    let (left, above) = if narrow { (6.0, ABOVE + LINE * (lines as f64 - 1.0)) } else { (left, 0.0) };
    let row = ROW + above;
    let sums = |sign: f64| {
        let of = move |parts: &[(String, f64, Hue)]| parts.iter().map(|p| p.1).filter(|v| v * sign > 0.0).sum::<f64>();
        bars.bars.iter().map(move |bar| of(&bar.parts))
    };
    let ends = sums(1.0).chain(sums(-1.0)).chain([0.0]);
    let negative = sums(-1.0).any(|sum| sum < 0.0);
    let places = (left + if negative { VALUE } else { 0.0 }, width - VALUE);
    let x = Ruler::around(Scale::Linear, ends, places).filter(|_| !bars.bars.is_empty())?;
    let zero = x.at(0.0).unwrap_or(left);
    let bottom = TOP + row * bars.bars.len() as f64;
    let inner = html! {
        @for (place, words) in x.ticks(ticks(places.1 - places.0).min(6)) {
            line class="grid" x1=(px(place)) x2=(px(place)) y1=(px(TOP)) y2=(px(bottom)) {}
            text class="tick" x=(px(place)) y=(px(bottom + 18.0)) text-anchor="middle" { (words) }
        }
        text class="label" x=(px((places.0 + places.1) / 2.0)) y=(px(bottom + 38.0)) text-anchor="middle" { (bars.label) }
        line class="axis" x1=(px(zero)) x2=(px(zero)) y1=(px(TOP)) y2=(px(bottom)) {}
        @for (index, bar) in bars.bars.iter().enumerate() {
            @let top = TOP + row * index as f64 + above;
            @if narrow { (over(&bar.label, left, top, width)) } @else { (beside(&bar.label, left, top)) }
            (parts(bar, &names, &x, top))
            @let (low, high) = ends_of(bar);
            @if high > 0.0 || low == 0.0 {
                text class="tick" x=(px(x.at(high).unwrap_or(zero) + 6.0)) y=(px(top + 17.0)) { (number(high)) }
            }
            @if low < 0.0 {
                text class="tick" x=(px(x.at(low).unwrap_or(zero) - 6.0)) y=(px(top + 17.0)) text-anchor="end" { (number(low)) }
            }
        }
    };
    Some((bottom + 44.0, inner))
}

/// The name of a bar above it, on two lines where it is long.
fn over(label: &str, left: f64, top: f64, width: f64) -> Markup {
    let lines = folded(label, width - 12.0);
    let class = if lines.len() == 1 { "word halo" } else { "small halo" };
    html! {
        @for (line, words) in lines.iter().rev().enumerate() {
            text class=(class) x=(px(left)) y=(px(top - LINE * line as f64)) { (words) }
        }
    }
}

/// The name of a bar before it, on two lines where it is long.
fn beside(label: &str, left: f64, top: f64) -> Markup {
    let lines = folded(label, left - 14.0);
    let (class, first) = if lines.len() == 1 { ("word", 17.0) } else { ("small", 11.5) };
    html! {
        @for (line, words) in lines.iter().enumerate() {
            text class=(class) x=(px(left - 10.0)) y=(px(top + first + LINE * line as f64)) text-anchor="end" { (words) }
        }
    }
}

/// How far a bar goes to the left and to the right.
fn ends_of(bar: &Bar) -> (f64, f64) {
    let sum = |sign: f64| bar.parts.iter().map(|p| p.1).filter(|v| v * sign > 0.0).sum::<f64>();
    (sum(-1.0), sum(1.0))
}

/// The parts of a bar, joined from zero.
fn parts(bar: &Bar, names: &[Key], x: &Ruler, top: f64) -> Markup {
    let (mut low, mut high) = (0.0, 0.0);
    let mut joined = |value: f64| {
        let end = if value < 0.0 { &mut low } else { &mut high };
        let from: f64 = *end;
        *end += value;
        (x.at(from.min(*end)).unwrap_or(0.0), x.at(from.max(*end)).unwrap_or(0.0))
    };
    html! {
        @for (name, value, hue) in &bar.parts {
            @let places = joined(*value);
            @let series = series_of(names, name);
            @let of = if name.is_empty() { String::new() } else { format!(", {name}") };
            rect class=(format!("fill c{}", hue.0)) data-s=[series] x=(px(places.0)) y=(px(top + 4.0)) width=(px((places.1 - places.0).max(0.5))) height=(px(ROW - 8.0)) data-x=(px((places.0 + places.1) / 2.0)) data-t=(format!("{}{of}: {}", bar.label, number(*value))) {}
        }
    }
}
