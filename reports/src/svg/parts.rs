//! What several kinds of picture share: the legend, marks, and how wide words are.

use collcast_sim::text::one_line;

use super::scale::px;
use crate::palette::Hue;

/// Width of a picture, in its own units: of a page's column, and of a phone, where words stand above what they are of.
pub(super) const WIDE: f64 = 760.0;
pub(super) const NARROW: f64 = 360.0;

/// How many marks an axis of so many units has room for: a size or number with its unit takes some 70.
pub(super) fn ticks(length: f64) -> usize {
    ((length / 70.0) as usize).clamp(3, 8)
}

/// Entries of a legend at most: nobody reads more.
const MOST: usize = 24;

/// An entry of a legend.
pub(crate) struct Key {
    /// The number of what a switch hides.
    pub(crate) series: usize,
    /// Its name.
    pub(crate) words: String,
    /// Its colour.
    pub(crate) hue: Hue,
    /// The kind of its mark: see [`mark_path`].
    pub(crate) mark: &'static str,
}

/// An entry for each name, in the order in which they first appear.
pub(super) fn keys<'n>(names: impl Iterator<Item = (&'n String, Hue)>) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for (name, hue) in names {
        if keys.len() == MOST {
            break;
        }
        if !name.is_empty() && keys.iter().all(|known| known.words != *name) {
            keys.push(Key { series: keys.len(), words: name.clone(), hue, mark: "box" });
        }
    }
    keys
}

/// The number of what has a name; none of what the legend does not name.
pub(super) fn series_of(keys: &[Key], name: &str) -> Option<usize> {
    keys.iter().find(|key| key.words == name).map(|key| key.series)
}

/// Width of words in the font of pictures; generous, as nothing may overlap.
pub(super) fn text_width(text: &str) -> f64 {
    6.6 * text.chars().count() as f64
}

/// Words cut to a width.
pub(super) fn fitting(text: &str, width: f64) -> String {
    crate::machine::cut(&one_line(text), (width / 6.6).max(2.0) as usize)
}

/// Part of the width of words that they take in the font of two lines.
const SMALL: f64 = 11.0 / 12.0;

/// Words on one line where they fit into a width, else on two in a smaller font; what is longer still is cut.
pub(super) fn folded(text: &str, width: f64) -> Vec<String> {
    let text = one_line(text);
    if text_width(&text) <= width {
        return vec![text];
    }
    let width = width / SMALL;
    let fits = |at: &usize| text_width(&text[..*at]) <= width;
    let spaces = text.match_indices(' ').map(|(at, _)| at).filter(fits);
    // Both fit, if they can, and are about as long as each other.
    let middle = spaces.max_by_key(|&at| (text_width(&text[at + 1..]) <= width, at.min(text.len() - at), at));
    let (first, second) = middle.map_or((text.as_str(), ""), |at| (&text[..at], &text[at + 1..]));
    [first, second].into_iter().filter(|line| !line.is_empty()).map(|line| fitting(line, width)).collect()
}

/// The outline of a mark of a kind, around a place.
pub(crate) fn mark_path(kind: &str, x: f64, y: f64) -> String {
    let (x, y) = (px(x), px(y));
    match kind {
        "square" => format!("M{x} {y}m-3.5-3.5h7v7h-7z"),
        "triangle" => format!("M{x} {y}m0-4.5l4.5 8h-9z"),
        "dot" => format!("M{x} {y}m-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0z"),
        "box" => format!("M{x} {y}m-6-5h12v10h-12z"),
        _ => format!("M{x} {y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
    }
}
