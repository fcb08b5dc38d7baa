//! What happens when: a lane for each who does something, time to the right.

use maud::{Markup, html};

use crate::figure::{Scale, Timeline};

use super::parts::{Key, fitting, keys, series_of, text_width, ticks};
use super::scale::{Ruler, number, px};

const TOP: f64 = 8.0;
const ROW: f64 = 18.0;
const NAMES: f64 = 170.0;
/// Units of time, each with its microseconds.
const UNITS: [(&str, f64); 3] = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];

pub(super) fn legend(timeline: &Timeline) -> Vec<Key> {
    keys(timeline.spans.iter().map(|span| (&span.name, span.hue)))
}

pub(super) fn draw(timeline: &Timeline, width: f64) -> Option<(f64, Markup)> {
    let names = legend(timeline);
    let left =
        timeline.lanes.iter().map(|lane| text_width(lane)).fold(40.0, f64::max).min(NAMES.min(width / 3.0)) + 16.0;
    let longest = timeline.spans.iter().map(|span| span.to).fold(0.0, f64::max);
    let (unit, us) = UNITS.into_iter().rfind(|(_, us)| longest >= 10.0 * us).unwrap_or(UNITS[0]);
    let ends = timeline.spans.iter().flat_map(|span| [span.from / us, span.to / us]).chain([0.0]);
    let x = Ruler::around(Scale::Linear, ends, (left, width - 24.0)).filter(|_| !timeline.spans.is_empty())?;
    let bottom = TOP + ROW * timeline.lanes.len() as f64;
    let inner = html! {
        @for (index, lane) in timeline.lanes.iter().enumerate() {
            @let top = TOP + ROW * index as f64;
            @if index % 2 == 0 { rect class="stripe" x=(px(left)) y=(px(top)) width=(px(width - 24.0 - left)) height=(px(ROW)) {} }
            text class="small" x=(px(left - 8.0)) y=(px(top + 13.0)) text-anchor="end" { (fitting(lane, left - 10.0)) }
        }
        @for (place, words) in x.ticks(ticks(width - left)) {
            line class="grid" x1=(px(place)) x2=(px(place)) y1=(px(TOP)) y2=(px(bottom)) {}
            text class="tick" x=(px(place)) y=(px(bottom + 18.0)) text-anchor="middle" { (words) }
        }
        text class="label" x=(px((left + width) / 2.0)) y=(px(bottom + 38.0)) text-anchor="middle" { "time (" (unit) ")" }
        @for span in timeline.spans.iter().filter(|span| span.lane < timeline.lanes.len()) {
            @let series = series_of(&names, &span.name);
            @let (from, to) = (x.at(span.from / us).unwrap_or(left), x.at(span.to / us).unwrap_or(left));
            @let said = format!("{}: {}, {} to {} {unit}", timeline.lanes[span.lane], span.name, number(span.from / us), number(span.to / us));
            rect class=(format!("fill c{}", span.hue.0)) data-s=[series] x=(px(from)) y=(px(TOP + ROW * span.lane as f64 + 3.0)) width=(px((to - from).max(0.6))) height=(px(ROW - 6.0)) data-x=(px((from + to) / 2.0)) data-t=(said) {}
        }
    };
    Some((bottom + 44.0, inner))
}
