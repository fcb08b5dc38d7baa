//! Goal: `--report` and `collcast report` write pages that a browser shows without a fault, the same bytes each time.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::collcast;

/// A folder of a test's own, and the path of a file in it.
fn folder() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, move |name: &str| path.join(name).display().to_string())
}

/// The arguments, and a page at a path.
fn page(args: &str, path: &str) -> String {
    let args: Vec<&str> = args.split(' ').chain(["--report", path]).collect();
    let (code, _, err) = collcast(&args);
    assert!(code <= 1 && err.contains("open it in a browser"), "{args:?}: {err}");
    std::fs::read_to_string(path).unwrap()
}

/// The pictures of a page.
fn pictures(page: &str) -> Vec<&str> {
    page.split("<figure ").skip(1).map(|rest| rest.split("</figure>").next().unwrap()).collect()
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
    ("simulate ddp-buckets", &["Where a step goes", "What would help"]),
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
    (
        "bench --backend host --ranks 2 -s 1K,8K --batches 3 --iterations 2 --warmup 0",
        &["Bus bandwidth of all_reduce over size"],
    ),
];

/// Goal: every command has a page with the answer, its pictures and the command that makes it again.
#[test]
fn commands_write_pages() {
    let (_folder, at) = folder();
    for (args, headings) in COMMANDS {
        let page = page(args, &at("page.html"));
        for part in [&format!("collcast {args}"), "<h1", "Where it comes from", "</html>"] {
            assert!(page.contains(part), "{args}: {part}");
        }
        for heading in headings {
            assert!(page.contains(heading), "{args}: {heading}");
        }
        assert!(page.len() < 2_000_000, "{args}: {}", page.len());
    }
}

/// Goal: the same bytes on any number of threads.
#[test]
fn pages_are_the_same_each_time() {
    for args in [COMMANDS[0].0, COMMANDS[1].0, COMMANDS[3].0] {
        let with = |threads: &str| {
            let folder = tempfile::tempdir().unwrap();
            // The same names of files, in a folder of its own.
            std::os::unix::fs::symlink(
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"),
                folder.path().join("tests"),
            )
            .unwrap();
            let mut run = Command::new(env!("CARGO_BIN_EXE_collcast"));
            run.args(args.split(' ').chain(["--report", "page.html"])).current_dir(folder.path());
            run.env("RAYON_NUM_THREADS", threads)
                .env("COLLCAST_PROFILES", "")
                .stderr(Stdio::null())
                .stdout(Stdio::null());
            run.status().unwrap();
            std::fs::read(folder.path().join("page.html")).unwrap()
        };
        let first = with("1");
        assert!(first == with("4") && first == with("4"), "{args}");
    }
}

/// Goal: a result that is read back has the pictures of the command that wrote it.
#[test]
fn results_in_json_have_the_same_pictures() {
    let (_folder, at) = folder();
    let [json, tune, other] = ["sweep.json", "tune.json", "all.html"].map(&at);
    let sweep = "sweep dgx-h100 --nodes 4 -s 64K:64M:4 --algorithm auto,ring,tree";
    let own = page(sweep, &at("own.html"));
    let words = |args: &str| args.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (args, path) in [(sweep, &json), ("tune dgx-h100 --nodes 2 -s 1M:64M:4", &tune)] {
        let mut args = words(args);
        args.extend(["--format".to_owned(), "json".to_owned()]);
        let (code, out, err) = collcast(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, 0, "{err}");
        std::fs::write(path, out).unwrap();
    }
    let (code, _, err) = collcast(&["report", &json, &tune, "-o", &other]);
    assert_eq!(code, 0, "{err}");
    let all = std::fs::read_to_string(&other).unwrap();
    let (own, all) = (pictures(&own), pictures(&all));
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
        let _ = writeln!(std::io::stderr(), "skipped: pages in a browser: no chromium is installed");
        return;
    };
    let (folder, at) = folder();
    let axe = axe(folder.path());
    if axe.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: rules of axe-core: npm cannot fetch it");
    }
    // As text of an element: its own end must not be in it.
    let axe = axe.map_or_else(String::new, |source| {
        format!("<script type=\"text/plain\" id=\"axe\">{}</script>", source.replace("</", "<\\/"))
    });
    for (index, (args, _)) in COMMANDS.iter().enumerate() {
        let page = page(args, &at("page.html"));
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
        let _ = writeln!(std::io::stderr(), "skipped: printed pages: no chromium or no pdftotext is installed");
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
/// Method: they run in a folder of their own, in order. `UPDATE_GOLDEN=1` writes the pages.
#[test]
fn the_gallery_is_what_its_commands_write() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let gallery = root.join("docs/gallery");
    let folder = tempfile::tempdir().unwrap();
    for name in ["tests", "examples"] {
        std::os::unix::fs::symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_collcast")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let text = std::fs::read_to_string(gallery.join("README.md")).unwrap();
    for command in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let mut run = Command::new("bash");
        run.args(["-c", command]).current_dir(folder.path()).env("PATH", &path).env("COLLCAST_PROFILES", "");
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
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(gallery.join(name), &text).unwrap();
        }
        let same = std::fs::read(gallery.join(name)).is_ok_and(|committed| committed == text);
        assert!(same, "{name:?} is not as committed; if the change is meant, UPDATE_GOLDEN=1 writes it: look at it");
    }
    assert_eq!(pages(&gallery).len(), pages(folder.path()).len(), "a page has no command");
}
