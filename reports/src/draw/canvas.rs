//! Lines below boxes below words, and the colours.

use std::fmt::Write as _;

use collcast_sim::topology::LinkKind;

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
pub(super) struct Canvas {
    lines: String,
    boxes: String,
    words: String,
}

impl Canvas {
    pub(super) fn line(&mut self, from: (i64, i64), to: (i64, i64), kind: LinkKind, width: i64) {
        let _ = writeln!(
            self.lines,
            r#"<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}" stroke-width="{width}"/>"#,
            from.0,
            from.1,
            to.0,
            to.1,
            palette::link(kind)
        );
    }

    /// A line that stands for some that are not drawn.
    pub(super) fn dashed(&mut self, from: (i64, i64), to: (i64, i64)) {
        let _ = writeln!(
            self.lines,
            r##"<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#8d8d88" stroke-width="1" stroke-dasharray="3 4"/>"##,
            from.0, from.1, to.0, to.1
        );
    }

    /// A curve over (`bend` < 0) or under the straight line.
    pub(super) fn arc(&mut self, from: (i64, i64), to: (i64, i64), bend: i64, kind: LinkKind, width: i64) {
        let _ = writeln!(
            self.lines,
            r#"<path d="M{} {} C{} {} {} {} {} {}" fill="none" stroke="{}" stroke-width="{width}"/>"#,
            from.0,
            from.1,
            from.0,
            from.1 + bend,
            to.0,
            to.1 + bend,
            to.0,
            to.1,
            palette::link(kind)
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
        let _ = writeln!(
            // A panel lies below the lines that are drawn in it.
            if fill == Fill::Panel { &mut self.lines } else { &mut self.boxes },
            r#"<rect x="{}" y="{}" width="{}" height="{}" rx="5" fill="{fill_colour}" stroke="{stroke}"{space}{more}/>"#,
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
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
        };
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
