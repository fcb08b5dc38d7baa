//! Curves over message sizes as SVG: measured points on predicted lines with their intervals.
//!
//! The only place that knows the plotting library.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use collcast_sim::text::one_line;

use crate::palette::Hue;
use crate::svg::scale::{decades, number};

/// A picture with logarithmic axes: bytes, and bus bandwidth in GB/s.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// Curves; at most eight have a colour of their own.
    pub series: Vec<Series>,
}

/// One curve.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Series {
    /// In the legend.
    pub label: String,
    /// Measured: size in bytes, GB/s.
    pub points: Vec<(f64, f64)>,
    /// Predicted: size in bytes, GB/s, and the ends of the 90% interval.
    pub line: Vec<(f64, f64, f64, f64)>,
    /// A baseline: size in bytes, GB/s; dashed.
    pub baseline: Vec<(f64, f64)>,
}

const WIDTH: u32 = 860;
const HEIGHT: u32 = 560;
/// Of the upper panel; the lower one has the errors.
const UPPER: u32 = 390;
/// Numbers beside the upper panel at most.
const TICKS: usize = 16;
/// Errors beyond are drawn at the rim.
const ERROR_MAX: f64 = 40.0;

/// The colour of the n-th curve.
fn nth(index: usize) -> RGBColor {
    let (r, g, b) = Hue::nth(index).rgb();
    RGBColor(r, g, b)
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum ChartError {
    /// No point with a positive size and rate.
    #[error("the chart `{0}` has nothing to show: no row has a positive size and time")]
    Empty(String),
    /// The plotting library refused.
    #[error("the chart `{title}` cannot be drawn: {why}")]
    Library {
        /// Which chart.
        title: String,
        /// What the library says.
        why: String,
    },
}

fn shown(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Bytes as `64K`.
fn bytes(value: f64) -> String {
    const UNITS: [(&str, f64); 4] = [("G", 1024.0 * 1024.0 * 1024.0), ("M", 1024.0 * 1024.0), ("K", 1024.0), ("", 1.0)];
    let (unit, of) = UNITS.into_iter().find(|(_, of)| value >= *of).unwrap_or(("", 1.0));
    format!("{:.0}{unit}", value / of)
}

/// The SVG of a chart. The same chart gives the same bytes.
///
/// # Errors
/// [`ChartError`]: nothing to show.
pub fn render(chart: &Chart) -> Result<String, ChartError> {
    let title = one_line(&chart.title);
    let failed = |why: String| ChartError::Library { title: title.clone(), why };
    let all = chart.series.iter().flat_map(|s| {
        let line = s.line.iter().flat_map(|&(x, _, low, high)| [(x, low), (x, high)]);
        s.points.iter().copied().chain(line).chain(s.baseline.iter().copied())
    });
    let (mut x, mut y) = ((f64::MAX, 0.0_f64), (f64::MAX, 0.0_f64));
    for (size, rate) in all.filter(|&(size, rate)| shown(size) && shown(rate)) {
        x = (x.0.min(size), x.1.max(size));
        y = (y.0.min(rate), y.1.max(rate));
    }
    if x.1 <= 0.0 {
        return Err(ChartError::Empty(title));
    }
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(|e| failed(e.to_string()))?;
        let (upper, lower) = area.split_vertically(UPPER);
        let rates = (y.0 / 1.2, y.1 * 1.2);
        let mut plane = ChartBuilder::on(&upper)
            .caption(&title, ("sans-serif", 16))
            .margin(10)
            .margin_right(230)
            .x_label_area_size(24)
            .y_label_area_size(62)
            .build_cartesian_2d(
                (x.0 / 1.3..x.1 * 1.3).log_scale().base(2.0),
                (rates.0..rates.1).log_scale().with_key_points(decades(rates, TICKS)),
            )
            .map_err(|e| failed(e.to_string()))?;
        plane
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_labels(12)
            .x_label_formatter(&|v| bytes(*v))
            .y_label_formatter(&|v| number(*v))
            .y_desc("bus bandwidth (GB/s)")
            .draw()
            .map_err(|e| failed(e.to_string()))?;
        for (index, series) in chart.series.iter().enumerate() {
            let colour = nth(index);
            let line: Vec<_> =
                series.line.iter().copied().filter(|&(x, y, l, h)| [x, y, l, h].into_iter().all(shown)).collect();
            let rim = line.iter().map(|p| (p.0, p.3)).chain(line.iter().rev().map(|p| (p.0, p.2)));
            plane
                .draw_series(std::iter::once(Polygon::new(rim.collect::<Vec<_>>(), colour.mix(0.12))))
                .map_err(|e| failed(e.to_string()))?;
            plane
                .draw_series(LineSeries::new(line.iter().map(|p| (p.0, p.1)), colour.stroke_width(2)))
                .map_err(|e| failed(e.to_string()))?;
            let baseline = series.baseline.iter().copied().filter(|&(x, y)| shown(x) && shown(y));
            plane
                .draw_series(DashedLineSeries::new(baseline, 4, 4, colour.mix(0.7).stroke_width(1)))
                .map_err(|e| failed(e.to_string()))?;
            let points = series.points.iter().copied().filter(|&(x, y)| shown(x) && shown(y));
            plane
                .draw_series(points.map(|at| Circle::new(at, 3, colour.filled())))
                .map_err(|e| failed(e.to_string()))?;
        }
        errors(&lower, chart, x).map_err(failed)?;
        legend(&area, chart).map_err(failed)?;
        area.present().map_err(|e| failed(e.to_string()))?;
    }
    Ok(svg)
}

/// The lower panel: predicted over measured time, in percent off.
fn errors(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    chart: &Chart,
    x: (f64, f64),
) -> Result<(), String> {
    let mut plane = ChartBuilder::on(area)
        .margin(10)
        .margin_top(0)
        .margin_right(230)
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d((x.0 / 1.3..x.1 * 1.3).log_scale().base(2.0), -ERROR_MAX..ERROR_MAX)
        .map_err(|e| e.to_string())?;
    plane
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_labels(12)
        .y_labels(5)
        .x_label_formatter(&|v| bytes(*v))
        .y_label_formatter(&|v| format!("{v:+.0}%"))
        .x_desc("size (B)")
        .y_desc("time, predicted / measured")
        .draw()
        .map_err(|e| e.to_string())?;
    for (index, series) in chart.series.iter().enumerate() {
        let colour = nth(index);
        let off = off(series).map(|(x, error)| (x, error.clamp(-ERROR_MAX, ERROR_MAX)));
        plane.draw_series(off.map(|at| Circle::new(at, 2, colour.filled()))).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Sizes, and how far the forecasts are off there, in percent.
fn off(series: &Series) -> impl Iterator<Item = (f64, f64)> {
    series.points.iter().filter_map(|&(x, y)| {
        let predicted = series.line.iter().find(|p| p.0 == x)?.1;
        // Rates: the inverse of times.
        [x, y, predicted].into_iter().all(shown).then(|| (x, 100.0 * (y / predicted - 1.0)))
    })
}

/// Labels at the right, and what marks and lines mean.
fn legend(area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, chart: &Chart) -> Result<(), String> {
    let left = WIDTH as i32 - 220;
    let font = ("sans-serif", 12).into_font();
    let anchor = Pos::new(HPos::Left, VPos::Center);
    let text = |words: &str, at: (i32, i32), colour: RGBColor| {
        area.draw(&Text::new(words.to_owned(), at, TextStyle::from(font.clone()).color(&colour).pos(anchor)))
            .map_err(|e| e.to_string())
    };
    let mut top = 50;
    for (index, series) in chart.series.iter().enumerate() {
        let colour = nth(index);
        area.draw(&PathElement::new(vec![(left, top), (left + 22, top)], colour.stroke_width(2)))
            .map_err(|e| e.to_string())?;
        area.draw(&Circle::new((left + 11, top), 3, colour.filled())).map_err(|e| e.to_string())?;
        text(&one_line(&series.label), (left + 30, top), BLACK)?;
        top += 20;
    }
    let mut notes = vec!["points: measured", "line, band: predicted, 90%"];
    if chart.series.iter().any(|s| !s.baseline.is_empty()) {
        notes.push("dashed: NCCL's own model");
    }
    if chart.series.iter().flat_map(off).any(|(_, error)| error.abs() > ERROR_MAX) {
        notes.push("at the rim below: more than 40% off");
    }
    top += 10;
    for note in notes {
        text(note, (left, top), RGBColor(90, 90, 90))?;
        top += 18;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Chart {
        let sizes = [1024.0, 65_536.0, 4_194_304.0];
        Chart {
            title: "all_reduce <4 ranks>".to_owned(),
            series: vec![Series {
                label: "ring/simple".to_owned(),
                points: sizes.iter().map(|&s| (s, s / 10_000.0)).collect(),
                line: sizes.iter().map(|&s| (s, s / 9_000.0, s / 12_000.0, s / 8_000.0)).collect(),
                baseline: sizes.iter().map(|&s| (s, s / 7_000.0)).collect(),
            }],
        }
    }

    /// Goal: a chart is well-formed XML with its points, and the same bytes each time.
    #[test]
    fn charts_are_svg() {
        let svg = render(&example()).expect("a chart");
        assert_eq!(svg, render(&example()).expect("a chart"));
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let circles = document.descendants().filter(|n| n.has_tag_name("circle")).count();
        // Three points in each panel and one mark of the legend.
        assert_eq!(circles, 7);
        for words in ["all_reduce &lt;4 ranks&gt;", "ring/simple", "dashed: NCCL's own model", "64K"] {
            let shown = svg.contains(words) || svg.contains(&words.replace('\'', "&apos;"));
            assert!(shown, "{words} in {svg}");
        }
    }

    /// Goal: rates have round numbers beside them, each once, and errors that are drawn at the rim are said to be larger.
    #[test]
    fn axes_are_told() {
        let mut chart = example();
        chart.series[0].points[0].1 *= 0.5;
        let numbers = |svg: &str| -> Vec<String> {
            let document = roxmltree::Document::parse(svg).expect("XML");
            let words = document
                .descendants()
                .filter(roxmltree::Node::is_text)
                .filter_map(|n| n.text())
                .map(|text| text.trim().to_owned());
            words.filter(|text| text.parse::<f64>().is_ok()).collect()
        };
        let svg = render(&chart).expect("a chart");
        assert_eq!(numbers(&svg), ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50", "100", "200", "500"]);
        assert!(svg.contains("more than 40% off") && !render(&example()).expect("a chart").contains("more than 40%"));
    }

    /// Goal: what cannot be shown on logarithmic axes is left out, and nothing at all is refused.
    #[test]
    fn what_is_not_positive_is_left_out() {
        let mut chart = example();
        chart.series[0].points.push((8.0, 0.0));
        chart.series[0].points.push((f64::NAN, 1.0));
        assert_eq!(render(&chart), render(&example()));
        assert_eq!(render(&Chart::default()), Err(ChartError::Empty(String::new())));
    }
}
