//! Every writer of one report, against golden files.

use crate::golden::check_golden;
use collcast_reports::nccl_tests::{self, NcclTests, NcclTestsRow};
use collcast_reports::perfetto::{Arrow, Counter, FlowEnd, TraceEvent, TraceWriter};
use collcast_reports::{
    CaseOutcome, Cell, Column, Input, Report, Status, Table, TestCase, Verdict, csv, github, json, junit, markdown,
    terminal,
};
use collcast_sim::collective::{Collective, DataType, ReduceOp};
use collcast_sim::units::{SimDuration, SimTime};
use serde_json::{Value, json};

/// A forecast, with a missing value and names that need escapes.
fn sample() -> Report {
    let mut report = Report::new("sweep", "0.1.0");
    report.predicted = true;
    report.inputs.push(Input {
        name: "topology".to_owned(),
        path: Some("my \"cluster\".toml".to_owned()),
        hash: "blake3:00ff".to_owned(),
    });
    report.assumptions =
        vec!["topology: dgx-h100, 2 hosts of 8 GPUs".to_owned(), "NCCL 2.28.9, one process a GPU".to_owned()];
    report.warnings = vec!["congestion_not_modelled: 16 flows meet at `leaf0`".to_owned()];
    let mut rows = Table::new(
        "rows",
        "Expected all_reduce",
        [
            Column::number("size_bytes", "size (B)"),
            Column::text("algorithm", "algorithm"),
            Column::number("time_us", "time (us)"),
            Column::number("busbw_gbps", "busbw (GB/s)"),
            Column::text("folded", "folded"),
            Column::text("note", "note"),
        ],
    );
    for (power, time, note) in [(3, 31.25, None), (20, 52.0, Some("a, \"b\"")), (30, 5e3, None)] {
        let size = 1u64 << power;
        rows.push([
            size.into(),
            "ring".into(),
            Cell::float(time, 2),
            Cell::float(size as f64 / time / 1e3 * 1.875, 2),
            Cell::Bool(power > 10),
            note.into(),
        ]);
    }
    report.tables.push(rows);
    let mut groups = Table::new(
        "groups",
        "By algorithm",
        [Column::text("algorithm", "algorithm"), Column::number("count", "count")],
    );
    groups.push(["ring".into(), 3u32.into()]);
    report.tables.push(groups);
    report.verdict = Some(Verdict {
        status: Status::Ok,
        sentence: "all_reduce should reach 403 GB/s busbw".to_owned(),
        confidence: "medium".to_owned(),
        basis: "predicted".to_owned(),
        next: Some("compare with `collcast validate run.log`".to_owned()),
    });
    report.extra.insert("overall".to_owned(), json!({"count": 3}));
    report
}

#[test]
fn reports_are_as_reviewed() {
    let report = sample();
    check_golden("sweep.txt", &terminal::render(&report, terminal::Screen::plain(Some(100))));
    check_golden("sweep.notes.txt", &terminal::notes(&report, terminal::Screen::default()));
    check_golden("sweep.csv", &csv::render(&report));
    check_golden("sweep.json", &json::render(&report));
}

/// Goal: the JSON contract, by key.
#[test]
fn json_has_what_the_contract_names() {
    let parsed: Value = serde_json::from_str(&json::render(&sample())).unwrap();
    assert_eq!(parsed["schema"], "collcast/sweep/1");
    assert_eq!(parsed["version"], "0.1.0");
    assert_eq!(parsed["predicted"], true);
    assert_eq!(parsed["inputs"][0]["path"], "my \"cluster\".toml");
    assert_eq!(parsed["warnings"].as_array().map(Vec::len), Some(1));
    for key in ["status", "sentence", "confidence", "basis", "next"] {
        assert!(parsed["verdict"][key].is_string(), "{key}");
    }
    assert_eq!(parsed["rows"][0]["time_us"], 31.25);
    assert!(parsed["rows"][0]["note"].is_null());
    assert_eq!(parsed["rows"][1]["note"], "a, \"b\"");
    assert_eq!(parsed["groups"][0]["count"], 3);
    assert_eq!(parsed["overall"]["count"], 3);
}

/// A comparison that failed, with names that each format must not take for its own markup.
fn compared() -> Report {
    let mut report = sample();
    report.kind = "compare";
    report.predicted = false;
    report.assumptions = vec!["A: a|b <old> @octocat \u{1b}[31m, B: `new` #7".to_owned()];
    report.tables[0].rows.extend((0..20u64).map(|i| vec![(31 + i).into(), "tree|x".into()]));
    report.tables[1].detail = true;
    let case =
        |name: &str, outcome| TestCase { group: "all_reduce".to_owned(), name: name.to_owned(), outcome, place: None };
    report.cases = vec![
        case("4 ranks, ring/ll, < 64 KiB", CaseOutcome::Passed),
        case(
            "4 ranks, ring/simple, > 16 MiB",
            CaseOutcome::Failed {
                kind: "slower".to_owned(),
                message: "ratio 1.052 (1.021 to 1.084), 100% sure: \"yes\"".to_owned(),
                details: "33554432 B  171.36 us -> 180.1 us\n67108864 B  320.76 us -> 337.5 us\u{1}\n".to_owned(),
            },
        ),
        case(
            "4 ranks, ring/ll128, < 64 KiB",
            CaseOutcome::Noted("faster: 10.0 -> 8.0 us, cause: <profile>".to_owned()),
        ),
        case("4 ranks, tree/ll, < 64 KiB", CaseOutcome::Skipped("cannot tell: 0.9 to 1.1 & no repeats".to_owned())),
    ];
    report.verdict = Some(Verdict {
        status: Status::Failed,
        sentence: "all_reduce is slower in 1 of 3 bands".to_owned(),
        confidence: "high".to_owned(),
        basis: "measured".to_owned(),
        next: None,
    });
    report
}

#[test]
fn comparisons_are_as_reviewed() {
    let report = compared();
    check_golden("compare.junit.xml", &junit::render(&report));
    check_golden("compare.md", &markdown::render(&report));
    check_golden("compare.github.txt", &github::render(&report));
}

/// Goal: GitLab and Jenkins take the file. Method: the elements and attributes that the schema
/// of Jenkins' xUnit plugin (jenkins-junit.xsd) requires or allows, checked one by one.
#[test]
fn junit_is_of_the_schema() {
    for report in [compared(), sample()] {
        let text = junit::render(&report);
        let document = roxmltree::Document::parse(&text).unwrap();
        let allowed = |name: &str| -> (&[&str], &[&str]) {
            match name {
                "testsuites" => (&["name", "tests", "failures", "errors"], &["testsuite"]),
                "testsuite" => (&["name", "tests", "failures", "errors", "skipped"], &["testcase", "system-out"]),
                "testcase" => (&["classname", "name"], &["failure", "skipped", "system-out"]),
                "failure" => (&["message", "type"], &[]),
                "skipped" => (&["message"], &[]),
                "system-out" => (&[], &[]),
                other => panic!("{other} is no element of JUnit"),
            }
        };
        for node in document.descendants().filter(roxmltree::Node::is_element) {
            let (attributes, children) = allowed(node.tag_name().name());
            let found: Vec<&str> = node.attributes().map(|a| a.name()).collect();
            assert_eq!(found, attributes, "of {}", node.tag_name().name());
            assert!(
                node.children().filter(roxmltree::Node::is_element).all(|c| children.contains(&c.tag_name().name()))
            );
        }
        let suite = document.descendants().find(|n| n.has_tag_name("testsuite")).unwrap();
        let count = |tag: &str| document.descendants().filter(|n| n.has_tag_name(tag)).count().to_string();
        assert_eq!(suite.attribute("tests"), Some(count("testcase").as_str()));
        assert_eq!(suite.attribute("failures"), Some(count("failure").as_str()));
        assert_eq!(suite.attribute("skipped"), Some(count("skipped").as_str()));
        assert!(suite.attribute("tests") != Some("0"), "a file without tests is an error to Jenkins");
    }
}

/// Goal: a comment is never refused for its size, mentions nobody, and says what it left out.
#[test]
fn comments_fit_and_say_what_is_left_out() {
    let mut report = compared();
    report.tables[1].rows = (0..5000u64).map(|i| vec![format!("ring {i}").into(), i.into()]).collect();
    report.warnings = vec!["a long warning".repeat(20); 100];
    let text = markdown::render(&report);
    assert!(text.chars().count() < 65_536, "{}", text.len());
    let shown = text.matches("| ring ").count() - 3;
    assert!(shown > 1000 && text.contains(&format!("{} more rows are not shown here", 5000 - shown)), "{shown}");
    assert!(text.contains("more lines"));
    assert!(!text.contains("@octocat") && !text.contains("<old>") && !text.contains('\u{1b}'));
    assert_eq!(text.matches("<details>").count(), text.matches("</details>").count());
    for table in text.lines().filter(|l| l.starts_with("| ")) {
        let bars = table.replace("\\|", "").matches('|').count();
        assert!(bars == 7 || bars == 3, "{table}");
    }
}

#[test]
fn nccl_tests_text_is_as_reviewed() {
    let row = |size: u64, time: f64, in_place: Option<f64>| NcclTestsRow {
        size_bytes: size,
        count: size / 4,
        data_type: DataType::Float32,
        redop: Some(ReduceOp::Sum),
        root: None,
        out_of_place_us: time,
        in_place_us: in_place,
        bus_factor: 1.875,
    };
    let run = NcclTests {
        collective: Collective::AllReduce,
        predicted: true,
        checked: false,
        comments: vec!["topology: dgx-h100, 2 hosts of 8 GPUs".to_owned(), "two\nlines".to_owned()],
        rows: vec![
            row(0, 0.0, Some(0.0)),
            row(8, 31.25, Some(31.25)),
            row(1 << 30, 5_000.0, None),
            row(1 << 34, 80_000.0, Some(123_456.7)),
        ],
    };
    let text = nccl_tests::render(&run);
    check_golden("all_reduce.nccl-tests.txt", &text);
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(lines.len(), 4, "no comment may break into the data");
    assert!(lines.iter().all(|l| l.split_whitespace().count() == 13));
}

#[test]
fn traces_are_as_reviewed() {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    writer.process_name(0, "host <0> \"a\"").unwrap();
    for rank in 0..2u64 {
        let name = format!("rank {rank}, channel 0");
        writer.thread_name(0, rank * 64, &name).unwrap();
        writer
            .event(&TraceEvent {
                name: "send & reduce\nchunk".to_owned(),
                category: "ring/simple".to_owned(),
                process: 0,
                thread: rank * 64,
                start: SimTime(1_234_567 * (rank + 1)),
                duration: SimDuration(1_000_001),
                args: vec![("bytes".to_owned(), "4096".to_owned()), ("step".to_owned(), rank.to_string())],
            })
            .unwrap();
    }
    let end = |rank: u64| FlowEnd { process: 0, thread: rank * 64, time: SimTime(1_234_567 * (rank + 1) + 7) };
    writer
        .flow(&Arrow {
            id: 1,
            name: "message".to_owned(),
            category: "ring/simple".to_owned(),
            from: end(0),
            to: end(1),
        })
        .unwrap();
    writer
        .counter(&Counter {
            name: "gpu0 -> nvswitch".to_owned(),
            process: 0,
            time: SimTime(5),
            values: vec![("GB/s".to_owned(), 450)],
        })
        .unwrap();
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    check_golden("trace.json", &text);
    let parsed: Value = serde_json::from_str(&text).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap();
    let phases: String = events.iter().filter_map(|e| e["ph"].as_str()).collect();
    assert_eq!(phases, "MMMXMXsfC");
    assert_eq!(events[3]["name"], "send & reduce\nchunk");
    assert!(text.contains(r#""ts":1.234567,"dur":1.000001"#));
}

/// A report with a name in every place that takes one.
fn named(name: &str) -> Report {
    let mut report = sample();
    report.inputs = vec![Input { name: name.to_owned(), path: Some(name.to_owned()), hash: name.to_owned() }];
    report.assumptions = vec![name.to_owned()];
    report.warnings = vec![name.to_owned()];
    let mut table =
        Table::new("rows", name, [Column::text("name", name), Column::text("verdict", "v"), Column::number("n", "n")]);
    (0..3_u32).for_each(|row| table.push([name.into(), name.into(), row.into()]));
    report.tables = vec![table];
    let case = |outcome: CaseOutcome| TestCase {
        group: name.to_owned(),
        name: name.to_owned(),
        outcome,
        place: Some((name.to_owned(), 3)),
    };
    report.cases = vec![
        case(CaseOutcome::Noted(name.to_owned())),
        case(CaseOutcome::Failed { kind: name.to_owned(), message: name.to_owned(), details: name.to_owned() }),
        case(CaseOutcome::Skipped(name.to_owned())),
    ];
    report.verdict = Some(Verdict {
        status: Status::Failed,
        sentence: name.to_owned(),
        confidence: name.to_owned(),
        basis: name.to_owned(),
        next: Some(name.to_owned()),
    });
    report.command = Some(name.to_owned());
    report.source = Some(name.to_owned());
    report
}

/// Goal: names of strangers are text in every format: no element, no command, nothing that drives a terminal.
/// Method: what a reader of the format acts on is the same with plain names.
#[test]
fn names_do_nothing_in_any_format() {
    let hostile =
        "</pre></details><script>alert(1)</script>\" 'x' \u{1b}]0;t\u{7}\u{1b}[31m\u{202e}\n::error::gone\n| a |";
    let [evil, plain] = [named(hostile), named("plain name")];
    let screens = [None, Some(40), Some(80), Some(300)].map(|width| terminal::Screen { width, colour: true });
    let texts = |report: &Report| -> Vec<String> {
        let mut all = vec![junit::render(report), github::render(report), markdown::render(report)];
        for screen in screens {
            all.extend([terminal::render(report, screen), terminal::notes(report, screen)]);
        }
        all
    };
    // Without the colours that the writer itself sets.
    let bare = |text: &str| {
        let mut parts = text.split("\u{1b}[");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |mut all, part| {
            let (code, rest) = part.split_once('m').unwrap_or_else(|| panic!("no colour: {part:?}"));
            assert!(code.chars().all(|c| c.is_ascii_digit() || c == ';'), "{code:?}");
            all.push_str(rest);
            all
        })
    };
    for (index, (text, same)) in texts(&evil).iter().zip(texts(&plain)).enumerate() {
        let text = bare(text);
        let drives = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(drives), "{text:?}");
        let commands = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("::")).count();
        // What a log of CI gets: annotations, and what goes to a pipe. Files keep the lines of evidence, and screens wrap.
        let logged = [1, 3, 4].contains(&index);
        assert!(!logged || commands(&text) == commands(&same), "{text}");
    }
    for name in ["::error::x", "  ::set-output name=a::b", "##[group]x", "a ##vso[task.setvariable variable=a]b"] {
        let report = named(name);
        let lists = csv::render(&report);
        let rows = || ::csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(lists.as_bytes()).into_records();
        assert!(rows().all(|row| &row.unwrap()[0] == name), "{lists}");
        let mut logged = vec![lists, json::render(&report)];
        for screen in screens.map(|screen| terminal::Screen { colour: false, ..screen }) {
            logged.extend([terminal::render(&report, screen), terminal::notes(&report, screen)]);
        }
        for (place, text) in logged.iter().enumerate() {
            assert!(!text.lines().any(|line| line.trim_start().starts_with("::")), "{text}");
            // In CSV a cell is as it is.
            assert!(place == 0 || !text.contains("##[") && !text.contains("##vso["), "{text}");
        }
    }
    let elements = |text: &str| -> Vec<String> {
        let tree = roxmltree::Document::parse(text).unwrap();
        tree.descendants().filter(roxmltree::Node::is_element).map(|node| node.tag_name().name().to_owned()).collect()
    };
    assert_eq!(elements(&junit::render(&evil)), elements(&junit::render(&plain)));
    let tags = |text: &str| text.matches("<script").count() + text.matches("</details>").count();
    assert_eq!(tags(&markdown::render(&evil)), tags(&markdown::render(&plain)), "{}", markdown::render(&evil));
}
