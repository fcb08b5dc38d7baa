//! Lines below boxes below words, and the colours: fixed ones in a file of its own, classes of the page's style where lines
//! say how busy links are.

use std::fmt::Write as _;

use collcast_sim::ids::VertexId;
use collcast_sim::topology::LinkKind;

use super::busy::{Busy, Load};
use crate::machine::cut;
use crate::palette;
use collcast_sim::text::one_line;

/// How words look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// The name of the machine.
    Title,
    /// The name of a box.
    Name,
    /// Details.
    Small,
}

/// Where words stand, seen from their point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
        }
    }
}

/// What a box stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    Panel,
    Gpu,
    NvSwitch,
    PcieSwitch,
    Cpu,
    Nic,
    Management,
    NetSwitch,
    Host,
    FirstHost,
    Elided,
}

impl Fill {
    /// What the style of a page calls it.
    fn class(self) -> &'static str {
        match self {
            Self::Panel => "panel",
            Self::Gpu => "gpu",
            Self::NvSwitch => "nvswitch",
            Self::PcieSwitch => "pcie",
            Self::Cpu => "cpu",
            Self::Nic => "nic",
            Self::Management | Self::Elided => "aside",
            Self::NetSwitch => "net",
            Self::Host => "host",
            Self::FirstHost => "host first",
        }
    }

    fn colours(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Panel => ("#ffffff", "#1d5f99", "stroke-width=\"1.5\""),
            Self::Gpu => ("#e4f2dc", "#3f7d2c", ""),
            Self::NvSwitch => ("#cfe6c2", "#3f7d2c", ""),
            Self::PcieSwitch => ("#e9edf0", "#5b6770", ""),
            Self::Cpu => ("#f4ead9", "#96702f", ""),
            Self::Nic => ("#dfebf7", "#2b6ca3", ""),
            Self::Management => ("#f3f3f1", "#8d8d88", ""),
            Self::NetSwitch => ("#d2e3f3", "#2b6ca3", ""),
            Self::Host => ("#ffffff", "#6a737b", ""),
            Self::FirstHost => ("#ffffff", "#1d5f99", "stroke-width=\"2\""),
            Self::Elided => ("#fbfaf7", "#8d8d88", "stroke-dasharray=\"4 3\""),
        }
    }
}

/// Widths of text in the fonts that browsers have for sans-serif; generous, since nothing may
/// overlap.
pub(super) fn small_width(text: &str) -> i64 {
    chars(text) * 6
}

fn chars(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX / 16)
}

#[derive(Default)]
pub(super) struct Canvas<'m> {
    busy: Option<Busy<'m>>,
    lines: String,
    boxes: String,
    words: String,
}

impl<'m> Canvas<'m> {
    /// For a page, with lines by how busy they are.
    pub(super) fn of(busy: Busy<'m>) -> Self {
        Self { busy: Some(busy), ..Self::default() }
    }

    /// Whether lines say how busy they are.
    pub(super) fn is_of_loads(&self) -> bool {
        self.busy.is_some()
    }

    /// How busy the links of a kind between two sets of vertices are; none where that is not asked.
    pub(super) fn load(
        &self,
        kind: LinkKind,
        a: impl Fn(VertexId) -> bool,
        b: impl Fn(VertexId) -> bool,
    ) -> Option<Load> {
        Some(self.busy.as_ref()?.between(kind, &a, &b))
    }

    /// How a line looks: by its kind, or by its load.
    fn stroke(kind: LinkKind, width: i64, load: Option<&Load>) -> String {
        let Some(load) = load else {
            return format!(r#"stroke="{}" stroke-width="{width}""#, palette::link(kind));
        };
        format!(
            r#"class="wire h{}" data-n="{}" data-u="{}""#,
            palette::heat(f64::from(load.whole()) / 100.0),
            escape(&one_line(&load.name)),
            load.list()
        )
    }

    pub(super) fn line(
        &mut self,
        from: (i64, i64),
        to: (i64, i64),
        (kind, width): (LinkKind, i64),
        load: Option<&Load>,
    ) {
        let _ = writeln!(
            self.lines,
            r#"<line x1="{}" y1="{}" x2="{}" y2="{}" {}/>"#,
            from.0,
            from.1,
            to.0,
            to.1,
            Self::stroke(kind, width, load)
        );
    }

    /// The words of a line: what it is, or how busy.
    pub(super) fn label(&mut self, at: (i64, i64), words: &str, anchor: Anchor, load: Option<&Load>) {
        let Some(load) = load else {
            return self.text(at.0, at.1, words, Style::Small, anchor);
        };
        let _ = writeln!(
            self.words,
            r#"<text class="share" x="{}" y="{}" text-anchor="{}" data-u="{}">{}%</text>"#,
            at.0,
            at.1,
            anchor.name(),
            load.list(),
            load.whole()
        );
    }

    /// A line that stands for some that are not drawn.
    pub(super) fn dashed(&mut self, from: (i64, i64), to: (i64, i64)) {
        let look = match self.busy {
            None => r##"stroke="#8d8d88" stroke-width="1" stroke-dasharray="3 4""##,
            Some(_) => r#"class="left-out""#,
        };
        let _ = writeln!(self.lines, r#"<line x1="{}" y1="{}" x2="{}" y2="{}" {look}/>"#, from.0, from.1, to.0, to.1);
    }

    /// A curve over (`bend` < 0) or under the straight line.
    pub(super) fn arc(
        &mut self,
        (from, to): ((i64, i64), (i64, i64)),
        bend: i64,
        (kind, width): (LinkKind, i64),
        load: Option<&Load>,
    ) {
        let _ = writeln!(
            self.lines,
            r#"<path d="M{} {} C{} {} {} {} {} {}" fill="none" {}/>"#,
            from.0,
            from.1,
            from.0,
            from.1 + bend,
            to.0,
            to.1 + bend,
            to.0,
            to.1,
            Self::stroke(kind, width, load)
        );
    }

    /// A box with centred lines of words, the first in bold; each is cut to fit.
    pub(super) fn labelled(&mut self, area: Area, fill: Fill, words: &[String]) {
        self.area(area, fill);
        let lines = i64::try_from(words.len()).unwrap_or(0);
        let mut y = area.y + (area.h - 14 * lines) / 2 + 11;
        for (index, word) in words.iter().enumerate() {
            let style = if index == 0 { Style::Name } else { Style::Small };
            let each = if index == 0 { 7 } else { 6 };
            let fits = usize::try_from((area.w - 6) / each).unwrap_or(0);
            self.text(area.x + area.w / 2, y, &cut(&one_line(word), fits), style, Anchor::Middle);
            y += 14;
        }
    }

    pub(super) fn area(&mut self, area: Area, fill: Fill) {
        let (fill_colour, stroke, more) = fill.colours();
        let space = if more.is_empty() { "" } else { " " };
        let look = match self.busy {
            None => format!(r#"fill="{fill_colour}" stroke="{stroke}"{space}{more}"#),
            Some(_) => format!(r#"class="box {}""#, fill.class()),
        };
        let _ = writeln!(
            // A panel lies below the lines that are drawn in it.
            if fill == Fill::Panel { &mut self.lines } else { &mut self.boxes },
            r#"<rect x="{}" y="{}" width="{}" height="{}" rx="5" {look}/>"#,
            area.x,
            area.y,
            area.w,
            area.h
        );
    }

    pub(super) fn text(&mut self, x: i64, y: i64, text: &str, style: Style, anchor: Anchor) {
        let class = match style {
            Style::Title => "t",
            Style::Name => "n",
            Style::Small => "s",
        };
        let anchor = anchor.name();
        let _ = writeln!(
            self.words,
            r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{}</text>"#,
            escape(&one_line(text))
        );
    }

    pub(super) fn finish(self, title: &str, width: i64, height: i64) -> String {
        let title = escape(&one_line(title));
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<style>
text {{ font-family: "DejaVu Sans", Verdana, Helvetica, Arial, sans-serif; fill: #1c2328 }}
.t {{ font-size: 20px; font-weight: bold }}
.n {{ font-size: 11px; font-weight: bold }}
.s {{ font-size: 10px; fill: #3d474e }}
</style>
<rect width="{width}" height="{height}" fill="#fbfaf7"/>
{}{}{}</svg>
"##,
            self.lines, self.boxes, self.words
        )
    }
}

impl Canvas<'_> {
    /// The picture as an element of a page, whose name and words are elsewhere on it.
    pub(super) fn finish_inside(self, times: &str, labels: &str, width: i64, height: i64) -> String {
        format!(
            "<svg class=\"machine\" viewBox=\"0 0 {width} {height}\" style=\"--wide:{width}px\" role=\"img\" \
             aria-labelledby=\"{labels}\" data-times=\"{}\">\n{}{}{}</svg>",
            escape(&one_line(times)),
            self.lines,
            self.boxes,
            self.words
        )
    }
}

/// A rectangle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) x: i64,
    pub(super) y: i64,
    pub(super) w: i64,
    pub(super) h: i64,
}

/// As text between tags or in a quoted attribute: without what no XML may hold, not even escaped.
fn escape(text: &str) -> String {
    quick_xml::escape::escape(text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")).into_owned()
}
