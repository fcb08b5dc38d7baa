//! Text of reports as words of a page.

use maud::{Markup, html};

use collcast_sim::text::one_line;

/// With a capital where it begins with a plain word.
pub(super) fn sentence(text: &str) -> String {
    let first = text.split([' ', ',', ';']).next().unwrap_or_default();
    let first = first.split(':').next().unwrap_or_default();
    let plain = !first.is_empty() && first.chars().all(|c| c.is_ascii_lowercase());
    if plain { first[..1].to_uppercase() + &text[1..] } else { text.to_owned() }
}

/// What a screen reader calls a part that scrolls: of several reports on a page, each has its own.
pub(super) fn region(kind: &str, title: &str, id: &str) -> String {
    let report = id.split('-').next().and_then(|first| first.strip_prefix('r')).filter(|number| *number != "1");
    let of = report.map_or_else(String::new, |number| format!(" (report {number})"));
    format!("{kind}: {}{of}", one_line(title))
}

/// Text with what stands in backticks as code.
pub(super) fn words(text: &str) -> Markup {
    let line = one_line(text);
    let parts: Vec<&str> = line.split('`').collect();
    // An odd number of parts: every backtick has its twin.
    if parts.len().is_multiple_of(2) {
        return broken(&line);
    }
    html! { @for (index, part) in parts.iter().enumerate() { @if index % 2 == 1 { code { (broken(part)) } } @else { (broken(part)) } } }
}

/// Text whose longest words may break behind a comma, as layouts do.
fn broken(text: &str) -> Markup {
    const LONG: usize = 24;
    let long = text.split(' ').any(|word| word.len() > LONG && word.contains(','));
    let pieces: Vec<&str> = if long { text.split_inclusive(',').collect() } else { vec![text] };
    html! { @for (index, piece) in pieces.iter().enumerate() { @if index > 0 { wbr; } (piece) } }
}
