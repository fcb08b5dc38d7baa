//! Goal: a page with a picture of each kind is as a person has reviewed it.

use crate::golden::check_golden;
use collcast_reports::figure::{
    Axis, Bar, Bars, Drawing, Figure, Map, MapRow, Message, Plane, Point, Range, Series, Span, Steps, Stroke, Timeline,
};
use collcast_reports::html;
use collcast_reports::model::{Cell, Column, Input, Report, Status, Table, Verdict};
use collcast_reports::palette::{BAD, GREY, Hue, algorithm};

fn plane() -> Figure {
    let sizes = [1024.0, 32_768.0, 1_048_576.0];
    let series = vec![
        Series {
            hue: GREY,
            stroke: Stroke::Thin,
            line: sizes.iter().map(|&x| Point::new(x, x / 9_000.0)).collect(),
            ..Series::default()
        },
        Series {
            label: "ring/ll128".to_owned(),
            hue: algorithm("ring"),
            stroke: Stroke::Dashed,
            points: sizes.iter().map(|&x| Point::new(x, x / 10_000.0)).collect(),
            line: sizes.iter().map(|&x| Point::new(x, x / 11_000.0)).collect(),
            band: sizes.iter().map(|&x| (x, x / 14_000.0, x / 9_000.0)).collect(),
        },
    ];
    let plane = Plane { x: Axis::bytes(), y: Axis::log("bus bandwidth (GB/s)"), series };
    Figure::new("Bus bandwidth over size", "Marks: measured. Line and band: forecast.", Drawing::Plane(plane))
}

fn map() -> Figure {
    let range = |from: f64, to: f64, of: &str, by: &str| Range {
        from,
        to,
        words: vec![of.to_owned(), by.to_owned()],
        hue: algorithm(of),
    };
    let ranges =
        vec![range(1024.0, 65_536.0, "tree", "ll 8 ch"), range(131_072.0, 8_388_608.0, "ring", "simple 16 ch")];
    let map = Map { x: Axis::bytes(), rows: vec![MapRow { label: "all_reduce".to_owned(), ranges }] };
    Figure::new("Choices", "Which choice at which size.", Drawing::Map(map))
}

fn bars() -> Figure {
    let bar = |label: &str, value: f64, hue| Bar { label: label.to_owned(), parts: vec![(String::new(), value, hue)] };
    let bars = vec![bar("power limit -100 W", 10.7, BAD), bar("tensor-core rate x1.1", -3.5, Hue(2))];
    let bars = Bars { label: "change of the step time (%)".to_owned(), bars };
    Figure::new("What the step hangs on", "One thing changed at a time.", Drawing::Bars(bars))
}

fn timeline() -> Figure {
    let span = |lane, from, to, name: &str, hue| Span { lane, from, to, name: name.to_owned(), hue };
    let spans = vec![span(0, 0.5, 2.0, "send", Hue(0)), span(1, 2.0, 3.5, "recv", Hue(1))];
    let timeline = Timeline { lanes: vec!["rank 0".to_owned(), "rank 1".to_owned()], spans };
    Figure::new("Who does what when", "A box for each slice.", Drawing::Timeline(timeline))
}

fn steps() -> Figure {
    let message = |from, to| Message { from, to, what: from.to_string() };
    let steps = vec![vec![message(0, 1), message(1, 2)], vec![message(2, 0)]];
    let ranks = ["0", "1", "2"].map(str::to_owned).to_vec();
    Figure::new("How chunks move", "An arrow is a message.", Drawing::Steps(Steps { ranks, steps }))
}

/// The page without its style and script, which are files of their own.
#[test]
fn the_page_is_as_reviewed() {
    let mut report = Report::new("sweep", "0.0.0");
    report.predicted = true;
    report.inputs.push(Input {
        name: "topology".to_owned(),
        path: Some("a.toml".to_owned()),
        hash: "fnv1a64:1".to_owned(),
    });
    report.assumptions.push("4 GPUs, see `collcast topo show a.toml`".to_owned());
    report.warnings.push("no row was measured".to_owned());
    let mut rows =
        Table::new("rows", "", [Column::text("protocol", "protocol"), Column::number("size_bytes", "size B")]);
    rows.push(["ll".into(), 65_536_u32.into()]);
    rows.push([Cell::Missing, 1_048_576_u32.into()]);
    report.tables.push(rows);
    report.figures = vec![plane(), map(), bars(), timeline(), steps()];
    report.command = Some("collcast sweep a.toml".to_owned());
    report.verdict = Some(Verdict {
        status: Status::Warning,
        sentence: "all_reduce peaks at 354 GB/s".to_owned(),
        confidence: "medium".to_owned(),
        basis: "predicted".to_owned(),
        next: Some("run `nccl-tests` there".to_owned()),
    });
    let page = html::render(&[report]);
    let (body, script) = (page.find("<body>").unwrap(), page.find("<script>").unwrap());
    check_golden("page.html", &page[body..script].replace("><", ">\n<"));
}
