//! The page and its parts.

use super::*;
use crate::figure::{
    Axis, Bar, Bars, Machine, Map, MapRow, Message, Plane, Point, Range, Series, Span, Steps, Stroke, Timeline,
};
use crate::model::{Cell, Column, Input, Table};
use crate::palette::{Hue, algorithm, heat};
use collcast_sim::topology::{Gpu, Link, LinkKind, TopologyBuilder, VertexKind};
use collcast_sim::units::Bandwidth;

/// What a stranger may write into a name.
const HOSTILE: &str = "</title><script>alert(1)</script>\" onload='x' \u{202e}\u{1b}[31m&amp;`b`";

/// One figure of each kind, with a name in every place that takes one.
fn figures(name: &str) -> Vec<Figure> {
    let drawings = [
        Drawing::Plane(Plane {
            x: Axis::bytes(),
            y: Axis::log("bus bandwidth (GB/s)"),
            series: vec![Series {
                label: name.to_owned(),
                hue: algorithm("ring"),
                stroke: Stroke::Dashed,
                points: vec![Point { x: 1024.0, y: 2.0, note: name.to_owned() }],
                line: vec![Point::new(1024.0, 1.5), Point::new(1_048_576.0, 90.0)],
                band: vec![(1024.0, 1.0, 2.0), (1_048_576.0, 80.0, 99.0)],
            }],
        }),
        Drawing::Map(Map {
            x: Axis::bytes(),
            rows: vec![MapRow {
                label: name.to_owned(),
                ranges: vec![Range { from: 1024.0, to: 4096.0, words: vec![name.to_owned()], hue: Hue(2) }],
            }],
        }),
        Drawing::Bars(Bars {
            label: "time (us)".to_owned(),
            bars: vec![Bar {
                label: name.to_owned(),
                parts: vec![(name.to_owned(), -2.0, Hue(0)), ("b".to_owned(), 3.0, Hue(1))],
            }],
        }),
        Drawing::Timeline(Timeline {
            lanes: vec![name.to_owned()],
            spans: vec![Span { lane: 0, from: 0.0, to: 3.0, name: name.to_owned(), hue: Hue(0) }],
        }),
        Drawing::Steps(Steps {
            ranks: vec![name.to_owned(), "1".to_owned()],
            steps: vec![vec![Message { from: 0, to: 1, what: name.to_owned() }]],
        }),
        Drawing::Machine(Box::new(machine(name))),
    ];
    drawings.into_iter().map(|drawing| Figure::new(name, name, drawing)).collect()
}

/// Two GPUs with a link of which one direction is busy half of the time, and more in the second half.
fn machine(name: &str) -> Machine {
    let mut builder = TopologyBuilder::new(name);
    let host = builder.host(name);
    let [a, b] = [0, 1].map(|index| {
        let (model, memory_rate, bus_id) = (name.to_owned(), None, None);
        let gpu = Gpu { index, model, compute_capability: 90, memory_rate, bus_id };
        builder.vertex(format!("{name}{index}"), VertexKind::Gpu(gpu), Some(host))
    });
    let rate = Bandwidth::from_gb_per_s(25.0);
    builder.duplex(a, b, Link { kind: LinkKind::Nvlink, rate, width: 4 });
    let topology = builder.build().unwrap();
    let busy = topology.links().take(1).map(|link| (link.0, vec![0.5, 0.25, 0.75])).collect();
    Machine { topology, times: ["whole call", "0 to 2 us", "2 to 4 us"].map(str::to_owned).to_vec(), busy }
}

/// Goal: a line is as busy as the busier direction of its link, at each of the times, and says so in a number.
#[test]
fn lines_say_how_busy_they_are() {
    let figure = Figure::new("links", "all", Drawing::Machine(Box::new(machine("m"))));
    let drawn = svg::draw(&figure, "f", 100).into_string();
    let wire = r#"class="wire h3" data-n="m0 -&gt; m1, NVLink" data-u="50 25 75""#;
    assert!(drawn.contains(wire), "{drawn}");
    assert!(drawn.contains(r#"data-u="50 25 75">50%</text>"#), "{drawn}");
    assert!(drawn.contains(r#"data-times="whole call|0 to 2 us|2 to 4 us""#), "{drawn}");
    assert_eq!([0.0, 0.001, 0.2, 0.21, 1.0, 7.0].map(heat), [0, 1, 1, 2, 5, 5]);
}

fn report(name: &str, rows: usize) -> Report {
    let mut report = Report::new("sweep", "0");
    report.inputs.push(Input { name: name.to_owned(), path: Some(name.to_owned()), hash: name.to_owned() });
    report.assumptions.push(name.to_owned());
    report.warnings.push(name.to_owned());
    let mut table = Table::new("rows", name, [Column::text("name", name), Column::number("size_bytes", "size")]);
    (0..rows).for_each(|row| table.push([Cell::from(name), Cell::from(1024 * row)]));
    report.tables.push(table);
    report.figures = figures(name);
    report.command = Some(name.to_owned());
    report.verdict = Some(Verdict {
        status: Status::Warning,
        sentence: name.to_owned(),
        confidence: name.to_owned(),
        basis: name.to_owned(),
        next: Some(name.to_owned()),
    });
    report
}

/// Goal: a name is text, wherever it stands: no element, no attribute, nothing that turns or hides text.
/// Method: a page of hostile names has the same elements and attributes as one of plain ones.
#[test]
fn names_are_text() {
    let shape = |name: &str| -> Vec<String> {
        let page = render(&[report(name, 3)]);
        assert!(!page.contains(['\u{202e}', '\u{1b}']), "{name:?}");
        let body = page[page.find("<body>").unwrap()..page.find("<script>").unwrap()].to_owned();
        let body = format!("{body}</body>").replace(" hidden", " hidden=\"\"");
        let tree = roxmltree::Document::parse(&body).unwrap();
        let element = |node: roxmltree::Node<'_, '_>| {
            // Long words wrap by a class, which is not the name's to say.
            let attributes: Vec<&str> = node.attributes().map(|a| a.name()).filter(|name| *name != "class").collect();
            format!("{} {}", node.tag_name().name(), attributes.join(" "))
        };
        // Backticks make code of what is between them.
        tree.descendants().filter(|n| n.is_element() && !n.has_tag_name("code")).map(element).collect()
    };
    let (hostile, plain) = (shape(HOSTILE), shape(&one_line(HOSTILE).replace(|c| c != ' ', "x")));
    let differs = hostile.iter().zip(&plain).find(|(a, b)| a != b);
    assert_eq!((differs, hostile.len()), (None, plain.len()));
}

/// Goal: the page loads nothing and says so; its parts are there without its script.
#[test]
fn a_page_stands_alone() {
    let page = render(&[report("ring", 3), report("tree", 3)]);
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for part in
        ["default-src 'none'", "<h1>", "<caption>", "scope=\"col\"", "<desc", "Step 1 of 1", "href=\"#r2\"", "2 KiB"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page, render(&[report("ring", 3), report("tree", 3)]));
}

/// Goal: a page can be mailed whatever the number of rows; what is left out is told.
#[test]
fn a_page_is_below_two_megabytes() {
    let page = render(&[report(&"long words ".repeat(20), 40_000)]);
    assert!((1_400_000..2_000_000).contains(&page.len()), "{}", page.len());
    assert!(page.contains(" more rows are left out"));
}

/// Goal: what is the same in every row of a wide table is said once, and what is nowhere is not said at all.
#[test]
fn wide_tables_tell_once_what_never_changes() {
    let columns = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|key| Column::text(key, format!("column {key}")));
    let mut table = Table::new("rows", "", columns);
    for row in 0..4_usize {
        table.push([Cell::from(row), "same".into(), Cell::Missing, row.into(), row.into(), row.into(), row.into()]);
    }
    let text = table::render(&table, "t", &mut 10_000).into_string();
    assert!(text.contains("In every row: column b same."), "{text}");
    assert!(!text.contains("column c") && !text.contains("column h"), "{text}");
    assert_eq!(text.matches("<th ").count(), 5);
}

/// Goal: a figure without a value that its axes can show is left out, with its heading.
#[test]
fn figures_without_values_are_left_out() {
    let mut empty = report("x", 1);
    empty.figures.truncate(1);
    if let Drawing::Plane(plane) = &mut empty.figures[0].drawing {
        plane.series[0] = Series { points: vec![Point::new(0.0, f64::NAN)], ..Series::default() };
    }
    assert!(!render(&[empty]).contains("<figure"));
}
