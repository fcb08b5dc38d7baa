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

/// Characters of what stands as a headline, and of what comes after it, at least.
const HEADLINE: usize = 24;

/// A finding as its first statement, which is the headline, and those that come after it.
pub(super) fn headline(text: &str) -> (String, Vec<String>) {
    let whole = || (text.to_owned(), Vec::new());
    let ends = ["; ", ": ", " ("].into_iter().flat_map(|end| text.match_indices(end));
    let inside = |at: usize| text[..at].matches('(').count() > text[..at].matches(')').count();
    // A short remark in brackets, as a share, belongs to what it stands behind.
    let remark = |at: usize| text[at..].find(')').is_some_and(|end| end < HEADLINE / 2);
    let ends = ends.filter(|(at, end)| *at >= HEADLINE && !inside(*at) && !(*end == " (" && remark(*at)));
    let Some((at, end)) = ends.min() else { return whole() };
    let rest = if end == " (" { &text[at + 1..] } else { &text[at + end.len()..] };
    if rest.chars().count() < HEADLINE { whole() } else { (text[..at].to_owned(), parted(rest)) }
}

/// The statements of a finding, with what stands in brackets before them as plain words.
pub(super) fn parted(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0_usize);
    for piece in text.split_inclusive("; ") {
        if let Some(last) = parts.last_mut() {
            last.push_str(piece);
        }
        depth = (depth + piece.matches('(').count()).saturating_sub(piece.matches(')').count());
        if depth == 0 && piece.ends_with("; ") {
            parts.push(String::new());
        }
    }
    let plain = |part: String| {
        let part = part.trim_end_matches("; ").to_owned();
        let opened = part.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        opened.map_or(part.clone(), |(inside, rest)| format!("{inside}{rest}"))
    };
    parts.into_iter().map(plain).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a page begins with one statement, and loses none.
    #[test]
    fn the_first_statement_is_the_headline() {
        for (text, first, others) in [
            ("nothing is slower", "nothing is slower", &[][..]),
            (
                "a step takes 59 ms, 43 ms (73%) of it exposed: launches 0.3, not hidden 43.2 ms",
                "a step takes 59 ms, 43 ms (73%) of it exposed",
                &["launches 0.3, not hidden 43.2 ms"],
            ),
            (
                "all_reduce peaks at 347 GB/s of bus bandwidth (likely 325 to 370; ring at 4 GiB), bound by links; 1 KiB takes 39 us",
                "all_reduce peaks at 347 GB/s of bus bandwidth",
                &["likely 325 to 370; ring at 4 GiB, bound by links", "1 KiB takes 39 us"],
            ),
            (
                "slow (2 of 2 runs): all_reduce reaches 8% of it; see a.csv, where its rows are",
                "slow (2 of 2 runs): all_reduce reaches 8% of it",
                &["see a.csv, where its rows are"],
            ),
        ] {
            assert_eq!(headline(text), (first.to_owned(), others.iter().map(|part| (*part).to_owned()).collect()));
        }
    }
}
