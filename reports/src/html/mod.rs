//! Reports as one page of HTML that needs nothing else: no network, no fonts, no library.
//!
//! The answer comes first, then what it looks like, then tables, then what it was made from. A page reads without its
//! script, which sorts tables, switches series, shows values under the pointer and steps through schedules. Templates are
//! maud's: they are checked when the program is built, and what is put into them is escaped unless it says otherwise.

mod table;
mod words;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use collcast_sim::text::one_line;

use crate::figure::{Drawing, Figure};
use crate::model::{Report, Status, Verdict, basis_in_words};
use crate::palette::HEAT;
use crate::svg::{self, Key};
use words::{headline, parted, region, sentence, words};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// What a browser may fetch for the page: nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
/// Most bytes of all figures and tables of a page, which stays below 2 MB so that it can be mailed; and of its figures.
const BYTES_MAX: usize = 1_850_000;
const FIGURE_BYTES_MAX: usize = 1_100_000;
/// Bytes that tables leave to figures.
const FIGURE_BYTES: usize = 400_000;
/// Marks of a picture at most, about 200 bytes each; the next of these where all pictures find no room.
const MARKS: [usize; 6] = [4_000, 1_500, 500, 150, 60, 25];

/// Reports below each other on one page.
pub fn render(reports: &[Report]) -> String {
    let title = match reports {
        [one] => format!("collcast {}", command_of(one)),
        several => format!("collcast: {} reports", several.len()),
    };
    let mut room = BYTES_MAX;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(svg::STYLE)) (PreEscaped(svg::colours())) (PreEscaped(table::sides(reports))) }
            }
            body {
                a class="skip" href="#content" { "Skip to the content" }
                header {
                    div class="brand" { "Collcast " span { (title.trim_start_matches("collcast").trim_start_matches(':').trim()) } }
                    button id="theme" type="button" hidden { "Dark" }
                }
                main id="content" {
                    @if reports.len() > 1 {
                        nav aria-label="Reports" { ul {
                            @for (index, report) in reports.iter().enumerate() {
                                li { a href=(format!("#r{}", index + 1)) { (title_of(report)) } }
                            }
                        } }
                    }
                    @for (index, report) in reports.iter().enumerate() {
                        (one(report, &format!("r{}", index + 1), reports.len() > 1, &mut room))
                    }
                }
                footer { "Made by collcast " (reports.first().map_or("", |r| r.version.as_str())) ". This page is one file and loads nothing." }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    svg::drawn(&page.into_string())
}

/// The command that answered: a step of `trace --on` is a report of the kind that `simulate` makes.
fn command_of(report: &Report) -> &str {
    let words = report.command.as_deref().map(|command| command.split(' '));
    words.and_then(|mut words| words.nth(1)).unwrap_or(report.kind)
}

/// What a list of reports calls one.
fn title_of(report: &Report) -> String {
    let of = report.source.as_ref().map_or_else(String::new, |source| format!(": {}", one_line(source)));
    format!("{}{of}", report.kind)
}

fn one(report: &Report, id: &str, among: bool, room: &mut usize) -> Markup {
    let reserved = FIGURE_BYTES.min(*room);
    *room -= reserved;
    let tables: Vec<Markup> = (report.tables.iter().filter(|table| !table.rows.is_empty()))
        .zip(1..)
        .map(|(table, number)| table::render(table, &format!("{id}-table-{number}"), room))
        .collect();
    *room += reserved;
    let (figures, left_out) = pictures(report, id, room);
    html! {
        article class="report" id=(id) {
            (answer(report, among))
            @if !report.warnings.is_empty() {
                section class="warnings" {
                    h2 { "Know before you use the numbers" }
                    ul { @for line in &report.warnings { li { (words(line)) } } }
                }
            }
            @for (figure, drawn, id) in &figures { (shown(figure, drawn, id)) }
            @if left_out > 0 { p class="note" { (left_out) " more figures are left out, as this page would be too large." } }
            @for table in &tables { (table) }
            (origin(report, id))
        }
    }
}

/// The figures with their ids that find room, and how many do not. All of them with fewer marks are better than some.
fn pictures<'r>(report: &'r Report, id: &str, room: &mut usize) -> (Vec<(&'r Figure, Markup, String)>, usize) {
    let drawn = |marks: usize| -> Vec<(&'r Figure, Markup, String)> {
        (report.figures.iter().zip(1..))
            .map(|(figure, number)| (figure, format!("{id}-figure-{number}")))
            .map(|(figure, id)| (figure, svg::draw(figure, &id, marks), id))
            .filter(|(_, drawn, _)| !drawn.0.is_empty())
            .collect()
    };
    let bytes =
        |figures: &[(&Figure, Markup, String)]| figures.iter().map(|(_, drawn, _)| drawn.0.len()).sum::<usize>();
    let most = FIGURE_BYTES_MAX.min(*room);
    let mut figures = Vec::new();
    for marks in MARKS {
        figures = drawn(marks);
        if bytes(&figures) <= most {
            break;
        }
    }
    let all = figures.len();
    while bytes(&figures) > most {
        figures.pop();
    }
    *room -= bytes(&figures);
    let left_out = all - figures.len();
    (figures, left_out)
}

/// Bytes of an answer from which on it is set smaller.
const LONG_ANSWER: usize = 150;

/// The verdict, with how sure it is.
fn answer(report: &Report, among: bool) -> Markup {
    let status = report.verdict.as_ref().map(|verdict| verdict.status);
    let (class, mark) = match status {
        Some(Status::Ok) => ("answer ok", "\u{2713} ok"),
        Some(Status::Warning) => ("answer warning", "! warning"),
        Some(Status::Failed) => ("answer failed", "\u{2717} failed"),
        None => ("answer", ""),
    };
    let whole = report.verdict.as_ref().map_or_else(|| title_of(report), |verdict| verdict.sentence.clone());
    let (first, others) = if report.lead.is_empty() { headline(&whole) } else { (report.lead.clone(), parted(&whole)) };
    let first = sentence(&first);
    html! {
        section class=(class) {
            p class="kind" {
                b { (mark) } " " @if among { (title_of(report)) } @else { (command_of(report)) }
                @if report.predicted { " \u{b7} predicted, not measured" }
            }
            h1 class=[(first.len() > LONG_ANSWER).then_some("long")] { (words(&first)) }
            @if let [one] = &others[..] { p class="more" { (words(&sentence(one))) } }
            @else if !others.is_empty() { ul class="more" { @for one in &others { li { (words(&sentence(one))) } } } }
            @if let Some(Verdict { confidence, basis, next, .. }) = &report.verdict {
                dl {
                    @if !confidence.is_empty() { dt { "How sure" } dd { (words(confidence)) } }
                    @if !basis.is_empty() { dt { "Rests on" } dd { (words(basis_in_words(basis))) } }
                    @if let Some(next) = next { dt { "Next" } dd { (words(next)) } }
                }
            }
        }
    }
}

fn shown(figure: &Figure, drawn: &Markup, id: &str) -> Markup {
    let keys = svg::legend(figure);
    html! {
        figure id=(id) aria-labelledby=(format!("{id}-h")) {
            figcaption {
                h2 id=(format!("{id}-h")) { (words(&figure.title)) }
                p id=(format!("{id}-p")) { (words(&figure.caption)) }
            }
            @if !keys.is_empty() {
                ul class="keys" aria-label="Series" {
                    @for Key { series, words, hue, mark } in &keys {
                        li data-s=(series) { (swatch(hue.0, mark)) span { (one_line(words)) } }
                    }
                }
            }
            @if matches!(figure.drawing, Drawing::Machine(_)) { (heat()) }
            @if matches!(figure.drawing, Drawing::Steps(_)) { (drawn) } @else {
                div class="scroll" tabindex="0" role="region" aria-label=(region("Picture", &figure.title, id)) { (drawn) }
            }
        }
    }
}

/// What the colours of busy links mean.
fn heat() -> Markup {
    let most = HEAT.len() - 1;
    html! {
        ul class="heat" aria-label="How busy" {
            @for step in 0..=most {
                li {
                    svg viewBox="0 0 26 14" aria-hidden="true" { path class=(format!("wire h{step}")) d="M1 7h24" {} }
                    span { @if step == 0 { "not used" } @else { "to " (100 * step / most) "%" } }
                }
            }
        }
    }
}

fn swatch(hue: u8, mark: &str) -> Markup {
    html! { svg viewBox="0 0 14 14" aria-hidden="true" { path class=(format!("mark c{hue}")) d=(svg::mark_path(mark, 7.0, 7.0)) {} } }
}

/// What the report was made from, and how to make it again.
fn origin(report: &Report, id: &str) -> Markup {
    html! {
        section class="part" {
            h2 { "Where it comes from" }
            @if !report.assumptions.is_empty() {
                ul class="facts" { @for line in &report.assumptions { li { (words(line)) } } }
            }
            @if !report.inputs.is_empty() {
                div class="scroll" tabindex="0" role="region" aria-label=(region("Table", "Inputs", id)) {
                    table {
                        caption { span { "Inputs" } }
                        thead { tr { th scope="col" { "input" } th scope="col" { "read from" } th scope="col" { "hash" } } }
                        tbody { @for input in &report.inputs { tr {
                            td { (one_line(&input.name)) }
                            td class="long" { (input.path.as_deref().map_or_else(|| "built-in".to_owned(), one_line)) }
                            td { code { (one_line(&input.hash)) } }
                        } } }
                    }
                }
            }
            @if let Some(command) = &report.command {
                p class="note" { "This command makes it again:" }
                pre { code { (one_line(command)) } }
            }
        }
    }
}

#[cfg(test)]
mod tests;
