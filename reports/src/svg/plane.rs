//! Points, lines and bands over two axes.

use maud::{Markup, html};

use crate::figure::{Plane, Point, Series, Stroke};

use super::parts::{Key, mark_path, ticks};
use super::scale::{Ruler, px};

/// Places of the axes: left, top, bottom; and the height of the whole.
const LEFT: f64 = 66.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 330.0;
const HEIGHT: f64 = 376.0;
/// Marks along the upright axis at most.
const TICKS: usize = 8;

pub(super) fn legend(plane: &Plane) -> Vec<Key> {
    let named = plane.series.iter().enumerate().filter(|(_, series)| !series.label.is_empty());
    let key = |(index, series): (usize, &Series)| Key {
        series: index,
        words: series.label.clone(),
        hue: series.hue,
        mark: mark(series.stroke),
    };
    named.map(key).collect()
}

fn mark(stroke: Stroke) -> &'static str {
    match stroke {
        Stroke::Solid => "circle",
        Stroke::Dashed => "square",
        Stroke::Dotted => "triangle",
        Stroke::Thin => "dot",
    }
}

fn class(stroke: Stroke) -> &'static str {
    match stroke {
        Stroke::Solid => "line",
        Stroke::Dashed => "line dashed",
        Stroke::Dotted => "line dotted",
        Stroke::Thin => "line thin",
    }
}

/// The picture; of more marks than `marks` some are drawn, evenly.
pub(super) fn draw(plane: &Plane, marks: usize, width: f64) -> Option<(f64, Markup)> {
    let right = width - 14.0;
    let all = || plane.series.iter().flat_map(|s| s.points.iter().chain(&s.line));
    let bands = || plane.series.iter().flat_map(|s| &s.band);
    let x = Ruler::around(plane.x.scale, all().map(|p| p.x).chain(bands().map(|b| b.0)), (LEFT, right))?;
    let heights = all().map(|p| p.y).chain(bands().flat_map(|b| [b.1, b.2]));
    let y = Ruler::around(plane.y.scale, heights, (BOTTOM, TOP))?;
    let every = plane.series.iter().map(|series| marked(series).count()).sum::<usize>().div_ceil(marks).max(1);
    let inner = html! {
        @for (place, words) in y.ticks(TICKS) {
            line class="grid" x1=(px(LEFT)) x2=(px(right)) y1=(px(place)) y2=(px(place)) {}
            text class="tick" x=(px(LEFT - 8.0)) y=(px(place + 4.0)) text-anchor="end" { (words) }
        }
        @for (place, words) in x.ticks(ticks(right - LEFT)) {
            line class="grid" x1=(px(place)) x2=(px(place)) y1=(px(TOP)) y2=(px(BOTTOM)) {}
            text class="tick" x=(px(place)) y=(px(BOTTOM + 18.0)) text-anchor="middle" { (words) }
        }
        line class="axis" x1=(px(LEFT)) x2=(px(right)) y1=(px(BOTTOM)) y2=(px(BOTTOM)) {}
        text class="label" x=(px((LEFT + right) / 2.0)) y=(px(HEIGHT - 8.0)) text-anchor="middle" { (plane.x.label) }
        text class="label" transform=(format!("translate(14 {}) rotate(-90)", px((TOP + BOTTOM) / 2.0))) text-anchor="middle" { (plane.y.label) }
        @if every > 1 { text class="tick" x=(px(right)) y=(px(TOP - 2.0)) text-anchor="end" { "one point of " (every) " is drawn" } }
        @for (index, series) in plane.series.iter().enumerate() {
            g data-s=(index) { (one(series, every, plane, &x, &y)) }
        }
    };
    Some((HEIGHT, inner))
}

/// The marks of one series: the band lowest, then the line, then points.
fn one(series: &Series, every: usize, plane: &Plane, x: &Ruler, y: &Ruler) -> Markup {
    let place = |p: (f64, f64)| Some((x.at(p.0)?, y.at(p.1)?));
    let band = thinned(&series.band, every);
    let rim: Vec<(f64, f64)> =
        (band.iter().map(|b| (b.0, b.1))).chain(band.iter().rev().map(|b| (b.0, b.2))).filter_map(place).collect();
    let line: Vec<(f64, f64)> = thinned(&series.line, every).iter().filter_map(|p| place((p.x, p.y))).collect();
    let hue = series.hue.0;
    let kind = mark(series.stroke);
    let said = |p: &Point| {
        let name = if series.label.is_empty() { String::new() } else { format!("{}: ", series.label) };
        let note = if p.note.is_empty() { String::new() } else { format!(" ({})", p.note) };
        format!("{name}{} {} at {}{note}", y.words(p.y), unit(&plane.y.label), x.words(p.x))
    };
    html! {
        @if rim.len() > 2 { path class=(format!("band c{hue}")) d=(format!("{}z", path(&rim))) {} }
        // A band at one place has no breadth.
        @if rim.len() == 2 { path class=(format!("line c{hue}")) d=(path(&rim)) {} }
        @if line.len() > 1 { path class=(format!("{} c{hue}", class(series.stroke))) d=(path(&line)) {} }
        @if series.stroke != Stroke::Thin || !series.label.is_empty() {
            @for (p, small) in marked(series).step_by(every) {
                @if let Some((at_x, at_y)) = place((p.x, p.y)) {
                    path class=(format!("mark c{hue}")) d=(mark_path(if small { "dot" } else { kind }, at_x, at_y)) data-x=(px(at_x)) data-t=(said(p)) {}
                }
            }
        }
    }
}

/// One of every so many values of a line, and its end.
fn thinned<T: Clone>(values: &[T], every: usize) -> Vec<T> {
    let last = values.len().saturating_sub(1);
    values.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last).map(|(_, value)| value.clone()).collect()
}

/// The values that are marked, each with whether it is small: those of a line where it has no points of its own.
fn marked(series: &Series) -> impl Iterator<Item = (&Point, bool)> {
    let line: &[Point] = if series.points.is_empty() { &series.line } else { &[] };
    line.iter().map(|p| (p, true)).chain(series.points.iter().map(|p| (p, false)))
}

/// What stands in brackets at the end of a label.
fn unit(label: &str) -> &str {
    label.rsplit_once('(').map_or("", |(_, unit)| unit.trim_end_matches(')'))
}

fn path(places: &[(f64, f64)]) -> String {
    let mut out = String::new();
    for (index, (x, y)) in places.iter().enumerate() {
        out.push(if index == 0 { 'M' } else { 'L' });
        out.push_str(&px(*x));
        out.push(' ');
        out.push_str(&px(*y));
    }
    out
}
