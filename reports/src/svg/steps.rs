//! Who sends what to whom: ranks on a circle, a picture for each step. Without a script all stand beside each other; with
//! one, a slider shows one at a time.

use maud::{Markup, html};

use collcast_sim::text::one_line;

use crate::figure::{Message, Steps};
use crate::palette::Hue;

use super::parts::fitting;
use super::scale::px;

/// Side of the picture of a step, and the circle that ranks stand on.
const SIDE: f64 = 300.0;
const RADIUS: f64 = 112.0;
/// Where on its way a message is named: near who sends, as ways cross in the middle.
const NEAR: f64 = 0.28;
/// Half the size of a rank.
const RANK: f64 = 17.0;

pub(super) fn draw(steps: &Steps) -> Markup {
    let last = steps.steps.len().saturating_sub(1);
    html! {
        div class="player" {
            @for (index, messages) in steps.steps.iter().enumerate() {
                div class="frame" {
                    p class="step" { "Step " (index + 1) " of " (last + 1) }
                    (one(&steps.ranks, messages))
                }
            }
        }
    }
}

fn place(rank: usize, of: usize) -> (f64, f64) {
    let turn = std::f64::consts::TAU * rank as f64 / of.max(1) as f64 - std::f64::consts::FRAC_PI_2;
    (SIDE / 2.0 + RADIUS * turn.cos(), SIDE / 2.0 + RADIUS * turn.sin())
}

fn one(ranks: &[String], messages: &[Message]) -> Markup {
    let said: Vec<String> = messages
        .iter()
        .filter_map(|m| Some(format!("rank {} to rank {}: chunk {}", ranks.get(m.from)?, ranks.get(m.to)?, m.what)))
        .collect();
    html! {
        svg class="ranks" viewBox="0 0 300 300" role="img" aria-label=(one_line(&said.join("; "))) {
            @for message in messages.iter().filter(|m| m.from < ranks.len() && m.to < ranks.len()) {
                (arrow(message, ranks.len()))
            }
            @for (index, name) in ranks.iter().enumerate() {
                @let (x, y) = place(index, ranks.len());
                circle class="rank" cx=(px(x)) cy=(px(y)) r=(px(RANK)) {}
                text class="small" x=(px(x)) y=(px(y + 4.0)) text-anchor="middle" { (fitting(name, 2.0 * RANK)) }
            }
        }
    }
}

/// A place on the curve from one end to the other, of which the middle one is the bend (Bézier's of the second degree).
fn on_curve(start: (f64, f64), bend: (f64, f64), end: (f64, f64), share: f64) -> (f64, f64) {
    let rest = 1.0 - share;
    let mix = |a: f64, b: f64, c: f64| rest * rest * a + 2.0 * share * rest * b + share * share * c;
    (mix(start.0, bend.0, end.0), mix(start.1, bend.1, end.1))
}

/// A message, bent to the right of its way so that an answer does not lie on it.
fn arrow(message: &Message, ranks: usize) -> Markup {
    let (from, to) = (place(message.from, ranks), place(message.to, ranks));
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let long = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / long, dy / long);
    let start = (from.0 + ux * (RANK + 2.0), from.1 + uy * (RANK + 2.0));
    let end = (to.0 - ux * (RANK + 7.0), to.1 - uy * (RANK + 7.0));
    let bend = ((start.0 + end.0) / 2.0 - uy * 0.12 * long, (start.1 + end.1) / 2.0 + ux * 0.12 * long);
    // The head points along the end of the curve.
    let (hx, hy) = (end.0 - bend.0, end.1 - bend.1);
    let head = hx.hypot(hy).max(1.0);
    let (hx, hy) = (hx / head, hy / head);
    let corner = |side: f64| format!("L{} {}", px(end.0 - side * hy * 4.0), px(end.1 + side * hx * 4.0));
    let hue = Hue::nth(message.from).0;
    let tip = format!("M{} {}{}{}z", px(end.0 + hx * 7.0), px(end.1 + hy * 7.0), corner(1.0), corner(-1.0));
    let label = on_curve(start, bend, end, NEAR);
    html! {
        path class=(format!("line c{hue}")) d=(format!("M{} {}Q{} {} {} {}", px(start.0), px(start.1), px(bend.0), px(bend.1), px(end.0), px(end.1))) {}
        path class=(format!("fill c{hue}")) d=(tip) {}
        text class="small halo" x=(px(label.0)) y=(px(label.1 + 4.0)) text-anchor="middle" { (fitting(&message.what, 60.0)) }
    }
}
