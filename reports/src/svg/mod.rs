//! Figures as SVG: the only place that knows where on a page a value stands.
//!
//! To add a kind of picture: a variant of [`Drawing`], a file here that draws it, and a line in [`draw`]. Colours, lines
//! and words are classes of `figure.css`, so that a page can be light or dark. What a reader points at is an element with
//! `data-t`, its words, and `data-x`, its place: the page's script shows all of one place.

mod bars;
mod map;
mod parts;
mod plane;
pub(crate) mod scale;
mod steps;
mod timeline;

use maud::{Markup, PreEscaped, html};

use collcast_sim::text::{is_shown, one_line};

use crate::draw::busy;
use crate::figure::{Drawing, Figure};
use crate::palette::{COLOURS, HEAT};
pub(crate) use parts::{Key, mark_path};
use parts::{NARROW, WIDE};
use scale::px;

/// Looks of the parts of a picture.
pub(crate) const STYLE: &str = include_str!("figure.css");

/// A class for each colour and each step of heat of the palette.
pub(crate) fn colours() -> String {
    let class = |(index, (r, g, b)): (usize, &(u8, u8, u8))| format!(".c{index}{{--c:rgb({r} {g} {b})}}");
    let heat = |(index, (light, dark)): (usize, &(&str, &str))| format!(".h{index}{{--h:light-dark({light},{dark})}}");
    COLOURS.iter().enumerate().map(class).chain(HEAT.iter().enumerate().map(heat)).collect()
}

/// What the legend of a figure names.
pub(crate) fn legend(figure: &Figure) -> Vec<Key> {
    match &figure.drawing {
        Drawing::Plane(plane) => plane::legend(plane),
        Drawing::Map(map) => map::legend(map),
        Drawing::Bars(bars) => bars::legend(bars),
        Drawing::Timeline(timeline) => timeline::legend(timeline),
        Drawing::Steps(_) | Drawing::Machine(_) => Vec::new(),
    }
}

/// The picture as elements of a page, with so many marks at most; empty where there is nothing to show. What is plotted
/// is there twice, for a page's column and for a phone: styles show one of them.
pub(crate) fn draw(figure: &Figure, id: &str, marks: usize) -> Markup {
    let drawn = |width: f64| match &figure.drawing {
        Drawing::Plane(plane) => plane::draw(plane, marks, width),
        Drawing::Map(map) => map::draw(map, marks, width),
        Drawing::Bars(bars) => bars::draw(bars, width),
        Drawing::Timeline(timeline) => timeline::draw(timeline, width),
        Drawing::Steps(_) | Drawing::Machine(_) => None,
    };
    match &figure.drawing {
        Drawing::Steps(steps) => return steps::draw(steps),
        Drawing::Machine(machine) => return PreEscaped(busy(machine, &format!("{id}-h {id}-p"))),
        Drawing::Plane(_) | Drawing::Map(_) | Drawing::Bars(_) | Drawing::Timeline(_) => {}
    }
    let widths = [(WIDE, "picture wide", id.to_owned()), (NARROW, "picture narrow", format!("{id}-n"))];
    html! {
        @for (width, class, id) in widths {
            @if let Some((height, inner)) = drawn(width) { (frame(figure, (&id, class), (width, height), &inner)) }
        }
    }
}

/// Without what no reader sees, as marks that turn the direction of text: such characters are escaped.
pub(crate) fn drawn(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || is_shown(c) { out.push(c) } else { out.extend(c.escape_unicode()) }
    }
    out
}

/// The outermost element: a picture with its name and what it says, for those who do not see it.
fn frame(figure: &Figure, (id, class): (&str, &str), (width, height): (f64, f64), inner: &Markup) -> Markup {
    html! {
        svg class=(class) viewBox=(format!("0 0 {} {}", px(width), px(height))) role="img" aria-labelledby=(format!("{id}-t {id}-d")) {
            title id=(format!("{id}-t")) { (one_line(&figure.title)) }
            desc id=(format!("{id}-d")) { (one_line(&figure.caption)) }
            (inner)
        }
    }
}
