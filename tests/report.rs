//! Goal: `--report` and `collcast report` write pages that a browser shows without a fault, the same bytes each time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use crate::common::{collcast, program, skipped, without_own};

/// A folder of a test's own, and the path of a file in it.
fn folder() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, move |name: &str| path.join(name).display().to_string())
}

/// The page of a command, run once for all tests.
fn page(args: &str) -> &'static str {
    static PAGES: Mutex<BTreeMap<String, &'static OnceLock<String>>> = Mutex::new(BTreeMap::new());
    let place = *PAGES.lock().unwrap().entry(args.to_owned()).or_insert_with(|| Box::leak(Box::default()));
    place.get_or_init(|| made(args, None))
}

/// A page as a command writes it in a folder of its own, with the same names of files; on so many threads.
fn made(args: &str, threads: Option<&str>) -> String {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tests", "examples"] {
        std::os::unix::fs::symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join(name), folder.path().join(name)).unwrap();
    }
    let run = |args: &str| {
        let threads = threads.map(|threads| ("RAYON_NUM_THREADS", threads));
        program().args(args.split(' ')).current_dir(folder.path()).envs(threads).output().unwrap()
    };
    if args.starts_with("check") {
        run("check examples/check/before.toml --baseline accepted.toml --update");
    }
    let out = run(&format!("{args} --report page.html"));
    let said = String::from_utf8_lossy(&out.stderr);
    let wrote = matches!(out.status.code(), Some(0 | 1)) && said.contains("open it in a browser");
    assert!(wrote, "{args}: {said}");
    std::fs::read_to_string(folder.path().join("page.html")).unwrap()
}

/// The pictures of a page.
fn pictures(page: &str) -> Vec<&str> {
    page.split("<figure ").skip(1).map(|rest| rest.split("</figure>").next().unwrap()).collect()
}

/// What stands between two texts, after the first of the one.
fn between<'t>(text: &'t str, from: &str, to: &str) -> Option<&'t str> {
    text.split_once(from)?.1.split(to).next()
}

/// The legend of a picture: the words of each entry, and how it looks.
fn legend(picture: &str) -> Vec<(&str, &str)> {
    let keys = between(picture, "<ul class=\"keys\"", "</ul>").unwrap_or_default();
    let key = |entry| Some((between(entry, "<span>", "</span>")?, between(entry, "<path ", ">")?));
    keys.split("<li ").filter_map(key).collect()
}

/// Goal: a line has the rows of one request and a name of its own, and none looks like another.
#[test]
fn each_line_is_one_request() {
    let bench = "bench --ranks 2 -s 1K,8K --batches 3";
    let names = |args: &str, expected: &[&str]| {
        let legend = legend(pictures(page(args))[0]);
        let looks: BTreeSet<&str> = legend.iter().map(|key| key.1).collect();
        assert_eq!(legend.iter().map(|key| key.0).collect::<Vec<_>>(), expected, "{args}");
        assert_eq!(looks.len(), expected.len(), "{args}");
    };
    names(
        "sweep h200x4 -c all_gather -s 1000,1010,4000 --algorithm ring --protocol ll,simple",
        &["ring/ll", "ring/simple"],
    );
    names(
        "sweep h200x4 -s 1M,4M --algorithm ring --protocol simple --channels 1,4",
        &["ring/simple, 1 channel", "ring/simple, 4 channels"],
    );
    names(
        "sweep h200x4 -s 1M,4M --algorithm auto,ring,tree",
        &["ring, NCCL's protocol", "tree, NCCL's protocol", "NCCL's choice"],
    );
    names(&format!("{bench} --format nccl-tests"), &["NCCL's choice", "NCCL's choice, in place"]);
    let many = "sweep dgx-h100 --nodes 1,2,4 --algorithm auto,ring,tree -s 1M,4M";
    let looks: BTreeSet<&str> = legend(pictures(page(many))[0]).iter().map(|key| key.1).collect();
    assert_eq!(looks.len(), 9);
    let channels = "validate tests/data/h200x4_bench/nccl_channels_4.csv -t h200x4";
    let first: Vec<&str> = legend(pictures(page(channels))[0]).iter().map(|key| key.0).take(3).collect();
    assert_eq!(first, ["ring/simple, 1 channel", "ring/simple, 4 channels", "ring/simple, 12 channels"]);
}

/// Goal: a result without its last row still has a line for each request.
#[test]
fn what_was_interrupted_keeps_its_lines() {
    let (_folder, at) = folder();
    let [json, html] = ["bench.json", "bench.html"].map(&at);
    let args = "bench --ranks 2 -s 1K,8K,64K --protocol ll,simple --batches 3 --format json";
    let (code, out, err) = collcast(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(code, 0, "{err}");
    let mut result: serde_json::Value = serde_json::from_str(&out).unwrap();
    result["rows"].as_array_mut().unwrap().pop();
    std::fs::write(&json, result.to_string()).unwrap();
    assert_eq!(collcast(&["report", &json, "-o", &html]).0, 0);
    let page = std::fs::read_to_string(&html).unwrap();
    let names: Vec<&str> = legend(pictures(&page)[0]).iter().map(|key| key.0).collect();
    assert_eq!(names, ["ll, NCCL's algorithm", "simple, NCCL's algorithm"]);
}

/// Goal: pictures leave nothing out that counts: not the ninth collective, the largest effect, or the health of many sizes.
#[test]
fn pictures_leave_nothing_out_that_counts() {
    let all = page("sweep h200x4 -c all -s 1M,4M");
    assert_eq!(pictures(all).iter().filter(|picture| picture.contains("Bus bandwidth of ")).count(), 9);
    let values: Vec<String> = (1..=25).map(|n| format!("x1.{n:02}")).collect();
    let vary =
        format!("plan llama3-8b --on dgx-h100 --gpus 16 --layout tp=1 --vary nic.rate={},x0.01", values.join(","));
    let bars = pictures(page(&vary)).into_iter().find(|picture| picture.contains("The step time with other values"));
    assert!(bars.is_some_and(|bars| bars.contains("x0.01")));
    let healthy = page("validate tests/data/h200x4/nccl.csv -t h200x4");
    let health = pictures(healthy).into_iter().find(|picture| picture.contains("How healthy, by size")).unwrap();
    assert!(
        legend(health).iter().any(|(state, look)| *state == "healthy" && look.contains("mark c2")),
        "{:?}",
        legend(health)
    );
}

/// Goal: what a reader points at is told with its true ends and what it is of.
#[test]
fn words_of_pictures_are_true() {
    let tune = page("tune h200x2 --measurements tests/data/h200x4/nccl.csv --launch graph");
    assert!(tune.contains(": NCCL, 0 B to 1.41 MiB: ") && tune.contains(" to end: "));
    let compare = page(COMMANDS[4].0);
    assert!(compare.contains("(all_reduce, 4 ranks, ") && !compare.contains("( over"));
}

/// Goal: options with names of their own are series of their own, with what the run may take, and a machine's counts one line.
#[test]
fn options_are_told_by_their_names() {
    let (_folder, at) = folder();
    let file = at("options.toml");
    let option = |name: &str| format!("[[options]]\nname = \"{name}\"\non = \"dgx-h100\"\n");
    let text = format!(
        "schema = \"collcast/plan-request/1\"\nmodel = \"llama3-8b\"\ntokens = \"1T\"\n{}gpus = 16\n{}gpus = [16, 32]\n",
        option("one"),
        option("other"),
    );
    std::fs::write(&file, text).unwrap();
    let page = made(&format!("plan {file}"), None);
    let options = pictures(&page).into_iter().find(|picture| picture.contains("Machines and counts")).unwrap();
    assert_eq!(legend(options).iter().map(|key| key.0).collect::<Vec<_>>(), ["one", "other: dgx-h100"]);
    assert!(options.contains("the step&#39;s interval") || options.contains("the step's interval"));
    assert!(options.contains("class=\"line c0\"") && options.contains("class=\"band c1\""));
}

/// Commands with committed data, and the headings of their pictures.
const COMMANDS: [(&str, &[&str]); 9] = [
    (
        "sweep dgx-h100 --nodes 2,4 -s 64K:64M:8 -c all_reduce,all_gather",
        &[
            "Bus bandwidth of all_reduce over size",
            "Time of all_gather over size",
            "What NCCL takes at which size",
            "How all_reduce scales",
        ],
    ),
    (
        "simulate h200x4 -s 1M --algorithm ring",
        &["How the chunks move", "Which links are busy", "What the ranks do, and when", "The busiest links"],
    ),
    ("simulate ddp-buckets", &["Which links are busy", "Where a step goes", "What would help"]),
    (
        "validate tests/data/doctor/p2p_disable_1_4.csv",
        &[
            "all_reduce over 4 ranks, launched by",
            "Forecast against measured",
            "Errors by size",
            "How healthy, by size",
        ],
    ),
    ("compare tests/data/doctor/p2p_disable_0_4.csv tests/data/doctor/p2p_disable_1_4.csv", &["What changed, by size"]),
    (
        "tune h200x2 --measurements tests/data/h200x4/nccl.csv --launch graph",
        &["Choices before and after", "What the changes save"],
    ),
    (
        "plan llama3-8b --on dgx-h100 --gpus 8 --sensitivities --top 6",
        &["Layouts: speed against memory", "Where a step goes", "Memory of a GPU", "What the step time hangs on"],
    ),
    ("plan llama3-8b --on dgx-h100 --on dgx-b200 --gpus 8,16", &["Machines and counts beside each other"]),
    ("bench --backend host --ranks 2 -s 1K,8K --batches 3", &["Bus bandwidth of all_reduce over size"]),
];

/// Goal: the map of a step says of a link what its table says, though calls beside computation take longer than alone.
#[test]
fn the_map_of_a_step_agrees_with_its_table() {
    let page = page("simulate ddp-buckets");
    let after = |mark: &str, end: char| page.split(mark).nth(1).and_then(|rest| rest.split(end).next()).unwrap();
    let most: f64 = after("Most of each kind: nvlink ", '%').parse().unwrap();
    let used: f64 = after("host0/nvswitch</td><td>", '<').parse().unwrap();
    assert!((most - used).abs() <= 0.51 && used > 10.0, "{most}% on the map, {used}% in the table");
}

/// Goal: every command has a page with the answer, its pictures and the command that makes it again.
#[test]
fn commands_write_pages() {
    for (args, headings) in COMMANDS {
        let page = page(args);
        for part in [&format!("collcast {args}"), "<h1", "Where it comes from", "</html>"] {
            assert!(page.contains(part), "{args}: {part}");
        }
        for heading in headings {
            assert!(page.contains(heading), "{args}: {heading}");
        }
        assert!(page.len() < 2_000_000, "{args}: {}", page.len());
    }
}

/// Goal: runs write the same bytes, on 1, 2, 8 and as many threads as cores: every page but that of `bench`, which measures.
#[test]
fn pages_are_the_same_each_time() {
    let more = [
        "check examples/check/after.toml --baseline accepted.toml",
        "calibrate tests/data/h200x4_bench/nccl_processes_2.csv -t h200x4 --hold-back none -o mine.toml",
        "trace tests/data/trace/slow_0.json.gz tests/data/trace/slow_1.json.gz -t dgx-h100 --gpus 2",
        "trace tests/data/trace/fsdp_0.json.gz tests/data/trace/fsdp_1.json.gz --on dgx-h100 --gpus 1",
        "serve llama3-70b-2x8",
        "transfer --from gpu:0 --to gpu:9 -s 1G",
        "transfer h800-roce --gpu h100 --break-even qwen3-8b",
        "simulate dgx-h100 --nodes 4 --group 64K*8",
    ];
    for args in COMMANDS.iter().map(|command| command.0).chain(more).filter(|args| !args.starts_with("bench")) {
        let first = page(args);
        assert!(["1", "8"].into_iter().all(|threads| made(args, Some(threads)) == first), "{args}");
    }
}

/// Goal: the committed result of `bench` has the rows that it measured.
#[test]
fn the_result_of_bench_is_what_was_measured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("tests/data/report/bench.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    let measured = root.join("tests/data/h200x4_bench/nccl_default_4.csv");
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_path(measured).unwrap();
    let keys = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let rows = rows.iter().filter(|row| ["all_reduce", "all_gather"].contains(&&row[1]));
    let of_result = result["rows"].as_array().unwrap();
    assert_eq!(rows.clone().count(), of_result.len());
    for (row, shown) in rows.zip(of_result) {
        for (key, cell) in keys.iter().zip(row) {
            let same = match &shown[key] {
                serde_json::Value::Null => cell.is_empty(),
                serde_json::Value::String(text) => text == cell,
                number => number.as_f64() == cell.parse().ok(),
            };
            assert!(same, "{key}: {cell} is {}", shown[key]);
        }
    }
}

/// A result of `sweep` with so many rows: a forecast again and again, at other sizes and times.
fn long_result(rows: usize) -> String {
    let sweep = ["sweep", "h200x4", "-s", "8:8G:2", "-c", "all_reduce,all_gather,broadcast", "--format", "json"];
    let (code, out, err) = collcast(&sweep);
    assert_eq!(code, 0, "{err}");
    let mut result: serde_json::Value = serde_json::from_str(&out).unwrap();
    let few = result["rows"].as_array().unwrap().clone();
    let again = |index: usize| {
        let mut row = few[index % few.len()].clone();
        let turn = index / few.len();
        row["size_bytes"] = (row["size_bytes"].as_u64().unwrap() + 4 * turn as u64).into();
        row["time_us"] = (row["time_us"].as_f64().unwrap() * (1.0 + 0.001 * turn as f64)).into();
        row
    };
    result["rows"] = (0..rows).map(again).collect::<Vec<_>>().into();
    result.to_string()
}

/// Goal: 10,000 rows are one page that can be mailed, with every row and every picture, and it opens with few of them in
/// sight: what is folded away is not laid out, and what is unfolded shows 200 rows at a time, sorted among all.
#[test]
fn ten_thousand_rows_are_a_page() {
    const ROWS: usize = 10_000;
    let (folder, at) = folder();
    let [json, html] = ["long.json", "long.html"].map(&at);
    std::fs::write(&json, long_result(ROWS)).unwrap();
    let (code, _, err) = collcast(&["report", &json, "-o", &html]);
    assert_eq!(code, 0, "{err}");
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.len() < 2_000_000, "{}", page.len());
    assert!(!page.contains("left out, as this page") && page.matches("<tr><td>").count() >= ROWS);
    assert!(page.contains("one point of ") && page.contains("one range of "), "{}", pictures(&page).len());
    let Some(browser) = browser() else {
        skipped("many rows in a browser: no chromium is installed");
        return;
    };
    let look = r#"<script>addEventListener("load", () => {
        const seen = () => [...document.querySelectorAll("tbody tr")].filter((row) => row.checkVisibility()).length;
        const said = [seen()];
        const fold = document.querySelector("details");
        fold.addEventListener("toggle", () => {
            const table = fold.querySelector("table");
            const first = (row, column) => table.tBodies[0].rows[row].cells[column].textContent;
            said.push(seen() - said[0], table.tBodies[0].rows.length, document.querySelector("details .tools span").textContent);
            const column = [...table.querySelectorAll("th")].findIndex((head) => head.textContent.startsWith("size"));
            for (const turn of [1, 2]) table.querySelectorAll("th button")[column].click();
            said.push(first(0, column));
            document.querySelector("details .tools button:last-child").click();
            said.push(document.querySelector("details .tools span").textContent);
            document.body.insertAdjacentHTML("beforeend", `<pre id="said">${said.join("|")}</pre>`);
        });
        fold.open = true;
    });</script></body>"#;
    std::fs::write(&html, page.replace("</body>", look)).unwrap();
    let run = Command::new(&browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{html}"))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&run.stdout);
    let said = dom.rsplit("<pre id=\"said\">").next().and_then(|rest| rest.split("</pre>").next()).unwrap_or("nothing");
    let said: Vec<&str> = said.split('|').collect();
    assert!(said[0].parse::<usize>().is_ok_and(|seen| seen < 60), "{said:?}");
    assert_eq!(said[1..], ["200", "200", "Rows 1 to 200 of 10000", "8 GiB", "Rows 201 to 400 of 10000"], "{said:?}");
}

/// Goal: a result that is read back has the pictures of the command that wrote it.
#[test]
fn results_in_json_have_the_same_pictures() {
    let (_folder, at) = folder();
    let [json, tune, other] = ["sweep.json", "tune.json", "all.html"].map(&at);
    let sweep = "sweep dgx-h100 --nodes 4 -s 64K:64M:4 --algorithm auto,ring,tree";
    let own = page(sweep);
    let words = |args: &str| args.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let [serve, transfer] = ["serve.json", "transfer.json"].map(&at);
    let model = "serve llama3-8b --on dgx-h100 --aggregated 1x2 --rate 2 --duration 20s --seed 1";
    for (args, path) in [
        (sweep, &json),
        ("tune dgx-h100 --nodes 2 -s 1M:64M:4", &tune),
        (model, &serve),
        ("transfer --from gpu:0 --to gpu:9 -s 1G", &transfer),
    ] {
        let mut args = words(args);
        args.extend(["--format".to_owned(), "json".to_owned()]);
        let (code, out, err) = collcast(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, 0, "{err}");
        std::fs::write(path, out).unwrap();
    }
    let (code, _, err) = collcast(&["report", &serve, &transfer, "-o", &other]);
    assert_eq!(code, 0, "{err}");
    assert!(pictures(&std::fs::read_to_string(&other).unwrap()).len() >= 2);
    let (code, _, err) = collcast(&["report", &json, &tune, "-o", &other]);
    assert_eq!(code, 0, "{err}");
    let all = std::fs::read_to_string(&other).unwrap();
    let (own, all) = (pictures(own), pictures(&all));
    assert!(own.len() >= 3 && all.len() > own.len() && all[..own.len()] == own[..]);
}

/// Goal: what is no page and what is no result is refused, with the way out, and nothing is written.
#[test]
fn what_is_no_page_is_refused() {
    let (_folder, at) = folder();
    let [text, none] = ["text.json", "none.html"].map(&at);
    std::fs::write(&text, "{}").unwrap();
    for (args, why) in [
        (vec!["sweep", "--report", "page.pdf"], "ends in .html"),
        (vec!["sweep", "-o", "page.html"], "--report FILE.html"),
        (vec!["report", "-o", "page.html"], "RESULT.json"),
        (vec!["report", &text, "-o", &none], "no key `schema`"),
        (vec!["report", &none, "-o", &none], "cannot read the result"),
    ] {
        let (code, _, err) = collcast(&args);
        assert!(code == 2 && err.contains(why), "{args:?}: {err}");
    }
    assert!(!Path::new(&none).exists());
}

/// A browser without a window, where one is installed.
fn browser() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&paths).flat_map(|folder| names.map(|name| folder.join(name))).find(|path| path.is_file())
}

/// What runs in the browser: it writes what is wrong with a page into the document, a line each.
const JUDGE: &str = include_str!("data/report/judge.js");

/// axe-core, of the version that the pages were last mended for; none where npm cannot fetch it. It is 650 KB of somebody
/// else's program that only this test needs, so it is fetched and not committed.
fn axe(folder: &Path) -> Option<String> {
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).current_dir(folder).stderr(Stdio::null()).output();
        out.is_ok_and(|out| out.status.success())
    };
    let there = run("npm", &["pack", "axe-core@4.14.1", "--silent", "--fetch-retries=0", "--fetch-timeout=20000"])
        && run("tar", &["xzf", "axe-core-4.14.1.tgz", "package/axe.min.js"]);
    there.then(|| std::fs::read_to_string(folder.join("package/axe.min.js")).ok()).flatten()
}

/// Goal: a page shows without an error or a request; tables sort, switches and sliders work, words can be read in both
/// themes, nothing is wider than a phone, and axe-core finds no violation.
/// Method: a page holds the report in frames of a phone's and a desk's width, and `judge.js` tries it there.
#[test]
fn a_browser_shows_pages() {
    let Some(browser) = browser() else {
        skipped("pages in a browser: no chromium is installed");
        return;
    };
    let (folder, at) = folder();
    let axe = axe(folder.path());
    if axe.is_none() {
        skipped("rules of axe-core: npm cannot fetch it");
    }
    // As text of an element: its own end must not be in it.
    let axe = axe.map_or_else(String::new, |source| {
        format!("<script type=\"text/plain\" id=\"axe\">{}</script>", source.replace("</", "<\\/"))
    });
    for (index, (args, _)) in COMMANDS.iter().enumerate() {
        let page = page(args);
        let quoted = page.replace('&', "&amp;").replace('"', "&quot;");
        let frames: String = [375, 1200]
            .map(|wide| format!("<iframe width=\"{wide}\" height=\"900\" srcdoc=\"{quoted}\"></iframe>"))
            .concat();
        let harness = at("harness.html");
        let html = format!(
            "<!DOCTYPE html><meta charset=\"utf-8\">{frames}<pre id=\"found\">not run</pre>{axe}<script>{JUDGE}</script>"
        );
        std::fs::write(&harness, html).unwrap();
        let run = Command::new(&browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"])
            .args(["--enable-logging=stderr", "--v=0"])
            .arg(format!("--user-data-dir={}", folder.path().join(format!("profile{index}")).display()))
            .arg(format!("file://{harness}"))
            .output()
            .unwrap();
        let (dom, log) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        let found = dom.split("<pre id=\"found\">").nth(1).and_then(|rest| rest.split("</pre>").next());
        let said: Vec<&str> = log.lines().filter(|line| line.contains(":CONSOLE")).collect();
        assert_eq!((found, said), (Some("tried 2 pages"), Vec::new()), "{args}");
    }
}

/// Words between tags, without what stands between words.
fn plain(markup: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in markup.chars() {
        match c {
            '<' => inside = true,
            '>' => inside = false,
            c if !inside && !c.is_whitespace() => out.push(c),
            _ => {}
        }
    }
    out.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// Goal: a printed page is whole: every heading, table and row is on it, folded ones too, and no sheet is blank.
/// Method: the browser prints the gallery to PDF, and pdftotext reads it.
#[test]
fn printed_pages_are_whole() {
    let reader = Command::new("pdftotext").arg("-v").output().is_ok();
    let Some(browser) = browser().filter(|_| reader) else {
        skipped("printed pages: no chromium or no pdftotext is installed");
        return;
    };
    let (folder, at) = folder();
    let gallery = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gallery");
    let pages = std::fs::read_dir(&gallery).unwrap().map(|entry| entry.unwrap().path());
    for path in pages.filter(|path| path.extension().is_some_and(|e| e == "html")) {
        let pdf = at("page.pdf");
        let run = Command::new(&browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"])
            .args(["--virtual-time-budget=20000", &format!("--print-to-pdf={pdf}")])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .arg(format!("file://{}", path.display()))
            .output()
            .unwrap();
        assert!(run.status.success(), "{path:?}");
        let text = Command::new("pdftotext").args(["-layout", &pdf, "-"]).output().unwrap().stdout;
        let text = String::from_utf8(text).unwrap();
        let sheets: Vec<&str> = text.trim_end_matches('\u{c}').split('\u{c}').collect();
        assert!(sheets.iter().all(|sheet| !sheet.trim().is_empty()), "{path:?}: a blank sheet of {}", sheets.len());
        let html = std::fs::read_to_string(&path).unwrap();
        let body = html.split("<script>").next().unwrap();
        let all: String = text.split_whitespace().collect();
        let of = |tag: &str, end: &str| -> Vec<String> {
            body.split(tag).skip(1).map(|rest| plain(&format!("<{}", rest.split(end).next().unwrap()))).collect()
        };
        for words in [of("<h2", "</h2>"), of("<caption", "</caption>"), of("text class=\"label\"", "</text>")].concat()
        {
            // Long ones break their line beside other columns.
            let begin: String = words.chars().take(24).collect();
            assert!(all.contains(&begin), "{path:?}: not printed: {words}");
        }
        // The first cell of the last row of each table: what was folded or on a later page of rows.
        for table in body.split("<tbody>").skip(1).map(|rest| rest.split("</tbody>").next().unwrap()) {
            let row = table.rsplit("<tr>").next().unwrap();
            let first = plain(&format!("<td{}", row.split("<td").nth(1).unwrap_or_default()));
            let begin: String = first.chars().take(12).collect();
            assert!(all.contains(&begin), "{path:?}: a row is not printed: {first}");
        }
    }
}

/// Goal: the gallery is what its commands write.
/// Method: they run in a folder of their own, in order. `COLLCAST_UPDATE=1` writes the pages.
#[test]
fn the_gallery_is_what_its_commands_write() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let gallery = root.join("docs/gallery");
    let folder = tempfile::tempdir().unwrap();
    for name in ["tests", "examples"] {
        std::os::unix::fs::symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    let own = Path::new(env!("CARGO_BIN_EXE_collcast")).parent().unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    let text = std::fs::read_to_string(gallery.join("README.md")).unwrap();
    for command in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let mut run = Command::new("bash");
        run.args(["-c", command]).current_dir(folder.path()).env("PATH", &path);
        without_own(&mut run).env("COLLCAST_PROFILES", "").env("COLLCAST_CONFIG", "");
        assert!(matches!(run.output().unwrap().status.code(), Some(0 | 1)), "{command}");
    }
    let pages = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut pages: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "html")).collect();
        pages.sort();
        pages
    };
    for page in pages(folder.path()) {
        let (name, text) = (page.file_name().unwrap(), std::fs::read(&page).unwrap());
        assert!(String::from_utf8_lossy(text.as_slice()).len() < 300_000, "{name:?} is no small page: {}", text.len());
        if std::env::var_os("COLLCAST_UPDATE").is_some() {
            std::fs::write(gallery.join(name), &text).unwrap();
        }
        let same = std::fs::read(gallery.join(name)).is_ok_and(|committed| committed == text);
        assert!(same, "{name:?} is not as committed; if the change is meant, COLLCAST_UPDATE=1 writes it: look at it");
    }
    assert_eq!(pages(&gallery).len(), pages(folder.path()).len(), "a page has no command");
}
