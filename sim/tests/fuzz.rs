//! Goal: whatever a file of MSCCL XML says, it is refused with its line, disproved, or runs to its end; whatever NCCL's
//! variables say, they are refused or calls run under them.
//!
//! Method: valid files, ours and a stranger's, with numbers, attributes and lines changed, left out and doubled, or with
//! more of something than any file has; variables with numbers at the limits of what they count.

#[path = "common/fuzzing.rs"]
mod fuzzing;

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Duration;

use crate::common::{nvswitch_box, prior};
use collcast_sim::collective::{Algorithm, Buffers, Collective, DataType, Protocol};
use collcast_sim::engine::{Unobserved, run, run_steady};
use collcast_sim::nccl::{Environment, Version};
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::network::{lay, order};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::schedule::Call;
use collcast_sim::schedule::msccl::{Imported, MscclError, export, one_loop};
use collcast_sim::schedule::verify::verify;
use collcast_sim::units::Bytes;
use fuzzing::fuzz;
use proptest::prelude::*;
use proptest::sample::select;
use rustix::time::{ClockId, clock_gettime};

/// Valid files.
static FILES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let ours = |collective, algorithm, ranks: u32, channels| {
        let call = Call::of_size(collective, ranks, Bytes(1 << 20), DataType::Float32);
        let limits = Limits { channels, p2p_channels: (channels, channels), exact_channels: true, ..Limits::default() };
        let plan = Plan::new(&call, algorithm, Protocol::Simple, &limits);
        export(&one_loop(&call, &plan, &order(&nvswitch_box(ranks, 450.0), ranks)).unwrap(), "ours").unwrap()
    };
    vec![
        include_str!("data/pairs2.xml").to_owned(),
        ours(Collective::AllReduce, Algorithm::Ring, 3, 2),
        ours(Collective::AllReduce, Algorithm::Tree, 3, 1),
        ours(Collective::AllGather, Algorithm::Pat, 5, 1),
        ours(Collective::ReduceScatter, Algorithm::Ring, 2, 1),
        ours(Collective::AllToAll, Algorithm::Direct, 3, 1),
    ]
});

/// One change of a file: which, where and to what.
type Change = (u8, usize, usize);

const VALUES: [&str; 14] =
    ["-1", "-7", "0", "1", "2", "3", "5", "32", "16777216", "99999999999999999999", "", "x", "s", "rrc"];

/// Where the attributes of a line are: key and value.
fn attributes(line: &str) -> Vec<(&str, std::ops::Range<usize>)> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(equals) = line[at..].find("=\"").map(|e| at + e) {
        let key = line[at..equals].rsplit(' ').next().unwrap();
        let Some(end) = line[equals + 2..].find('"').map(|e| equals + 2 + e) else { break };
        all.push((key, equals + 2..end));
        at = end + 1;
    }
    all
}

fn changed(text: &str, changes: &[Change]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for &(kind, place, what) in changes {
        let (count, at) = (lines.len(), place % lines.len());
        let line = lines[at].clone();
        let found = attributes(&line);
        let one = (!found.is_empty()).then(|| &found[what % found.len()]);
        match (kind, one) {
            (0..=5, Some((_, value))) => lines[at].replace_range(value.clone(), VALUES[what / 16 % VALUES.len()]),
            (6, Some((key, value))) => lines[at].replace_range(value.start - key.len() - 2..=value.end, ""),
            (7, Some((key, value))) => lines[at].insert_str(value.end + 1, &format!(" {key}=\"1\"")),
            (8, _) if lines.len() > 1 => drop(lines.remove(at)),
            (9, _) => lines.insert(what % lines.len(), line),
            (10, _) => lines.swap(at, what % count),
            (11, _) => lines[at].truncate(what),
            _ => {}
        }
    }
    lines.join("\n")
}

/// Numbers of an accepted file that mean nothing: less than none, or none where a step needs one.
fn meaningless(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let found = attributes(line);
        let of = |key: &str| found.iter().find(|a| a.0 == key).map(|a| &line[a.1.clone()]);
        let kind = of("type").unwrap_or("nop");
        let bad = |(key, value): &(&str, std::ops::Range<usize>)| {
            let least = match *key {
                "srcoff" if !["r", "rcs", "nop"].contains(&kind) => 0,
                "dstoff" if !["s", "rrs", "nop"].contains(&kind) => 0,
                "cnt" if kind != "nop" => 0,
                "depid" | "deps" | "send" | "recv" | "chan" => -1,
                _ => return false,
            };
            line[value.clone()].parse().is_ok_and(|n: i64| n < least)
        };
        let used = line.trim_start().starts_with("<step") || line.trim_start().starts_with("<tb");
        (used && found.iter().any(bad)).then(|| line.to_owned())
    })
}

#[test]
fn changed_files_are_refused_disproved_or_run() {
    let values = (
        0..6_usize,
        prop::collection::vec((0..12_u8, 0..1000_usize, 0..1000_usize), 1..4),
        select(vec![1_u64, 40_000, 300_000]),
    );
    let [refused, disproved, ran] = [const { Cell::new(0) }; 3];
    fuzz(6000, &values, |(file, changes, factor)| {
        let text = changed(&FILES[file], &changes);
        let imported = match Imported::parse(&text, "fuzz.xml") {
            Ok(imported) => imported,
            Err(error) => {
                let lines = text.lines().count().max(1) + 1;
                prop_assert!(!error.hint.is_empty() && (1..=lines).contains(&(error.line as usize)), "{error}\n{text}");
                refused.update(|count| count + 1);
                return Ok(());
            }
        };
        // A step that stands outside of blocks is not read.
        if text.matches("<step").count() == imported.steps() {
            prop_assert_eq!(meaningless(&text), None, "{}", text);
        }
        let parts = if imported.collective.size_is_total() { u64::from(imported.ranks) } else { 1 };
        let call = Call {
            count: imported.chunks / parts * factor,
            in_place: !imported.out_of_place,
            ..Call::of_size(imported.collective, imported.ranks, Bytes(0), DataType::Float32)
        };
        let Ok(schedule) = imported.schedule(call, &Limits::default()) else { return Ok(()) };
        if verify(&schedule).is_err() {
            disproved.update(|count| count + 1);
            return Ok(());
        }
        let topology = nvswitch_box(imported.ranks, 450.0);
        let laid = lay(&topology, &prior(), &Default::default(), &schedule).unwrap();
        let (whole, steady) = (run(&laid.instance, &mut Unobserved), run_steady(&laid.instance));
        prop_assert!(whole.is_ok() && steady.is_ok(), "{whole:?} {steady:?}\n{text}");
        ran.update(|count| count + 1);
        Ok(())
    });
    // Of 6,000.
    let [refused, disproved, ran] = [refused, disproved, ran].map(Cell::into_inner);
    assert!(refused >= 1000 && disproved >= 30 && ran >= 500, "{refused} {disproved} {ran}");
}

/// How much more CPU time a file of eight times as much may take: 8 where it is in proportion, 64 where it grows with the
/// square.
const EIGHTFOLD: u32 = 24;
/// CPU time below which times say nothing.
const LEAST: Duration = Duration::from_millis(1);

/// CPU time of this thread while it reads a file, without what others do meanwhile.
fn read(text: &str) -> (Duration, Result<Imported, MscclError>) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let begin = now();
    let read = Imported::parse(text, "fuzz.xml");
    (now() - begin, read)
}

/// Goal: a file that has very much of something is read in a time in proportion, or refused: attributes of one element,
/// elements beside or inside of each other, lines, comments, text.
#[test]
fn large_files_are_read_in_proportion() {
    let kinds: [fn(usize) -> String; 7] = [
        |n| format!("<x{}/>", (0..n).map(|i| format!(" a{i}=\"\"")).collect::<String>()),
        |n| (0..n).map(|i| format!("<step s=\"{i}\"/>")).collect(),
        |n| (0..n).map(|i| format!("<tb id=\"{i}\"/>\n")).collect(),
        |n| "<x>".repeat(n),
        |n| "\n".repeat(n),
        |n| "<!-- -->".repeat(n),
        |n| "x&lt;".repeat(n),
    ];
    let values = (0..6_usize, 0..kinds.len(), 100_000..400_000_usize, 0..1000_usize);
    fuzz(14, &values, |(file, kind, many, place)| {
        let text = &FILES[file];
        let ends: Vec<usize> = text.match_indices('>').map(|(at, _)| at + 1).collect();
        let at = ends[place % ends.len()];
        let with = |many| [&text[..at], &kinds[kind](many), &text[at..]].concat();
        let ((eighth, _), (whole, read)) = (read(&with(many / 8)), read(&with(many)));
        let most = EIGHTFOLD * eighth.max(LEAST);
        prop_assert!(whole < most, "{whole:?} for kind {kind}, {many} times, and {eighth:?} for an eighth");
        prop_assert!(read.is_ok() || read.is_err_and(|e| e.to_string().len() < 2000), "kind {kind}, {many} times");
        Ok(())
    });
}

/// NCCL's variables that count something.
const COUNTS: [&str; 14] = [
    "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_LL128_NTHREADS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_THREAD_THRESHOLDS",
    "NCCL_NVLS_NCHANNELS",
    "NCCL_NET_OVERHEAD",
];

/// Goal: whatever NCCL's variables say, they are refused, or calls under them run and take time.
#[test]
fn any_variables_are_refused_or_run() {
    let value = || {
        prop_oneof![
            (-3_i64..80).prop_map(|n| n.to_string()),
            (0..63_u32, -1..=1_i64).prop_map(|(bit, by)| ((1_i64 << bit) + by).to_string()),
            (0..2000_u32, select(vec!["K", "M", "G", "T", " ", "x"])).prop_map(|(n, unit)| format!("{n}{unit}")),
        ]
    };
    let version = select(vec!["2.8.4", "2.18.3", "2.22.3", "2.28.9"]);
    let values = (prop::collection::vec((select(COUNTS.to_vec()), value()), 1..4), version, 0..3_usize, 0..24_u32);
    let (topology, profile) = (nvswitch_box(4, 450.0), prior());
    let predictor = Predictor::new(&topology, &profile);
    let [refused, ran] = [const { Cell::new(0) }; 2];
    fuzz(600, &values, |(pairs, version, protocol, octave)| {
        let pairs: Vec<(String, String)> = pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let version: Version = version.parse().unwrap();
        let Ok(environment) = Environment::parse(&pairs, version) else {
            refused.update(|count| count + 1);
            return Ok(());
        };
        let (set, least) = (environment.settings.buffers, Buffers::LEAST);
        let fits = [(set.ll, least.ll), (set.ll128, least.ll128), (set.simple, least.simple)];
        prop_assert!(fits.iter().all(|(bytes, least)| bytes.is_none_or(|bytes| bytes >= *least)), "{pairs:?}");
        let settings = Settings { version: Some(version), nccl: environment.settings, ..Settings::default() };
        let protocol = [Protocol::Ll, Protocol::Ll128, Protocol::Simple][protocol];
        for collective in [Collective::AllReduce, Collective::AllToAll] {
            let call = Call::of_size(collective, 4, Bytes(1 << octave), DataType::Float32);
            match predictor.predict(&call, Choice::Auto, Choice::Forced(protocol), &settings) {
                Ok(prediction) => {
                    prop_assert!(prediction.time.0 > 0, "{pairs:?}");
                    ran.update(|count| count + 1);
                }
                Err(error) => prop_assert!(!error.is_internal(), "{pairs:?}: {error}"),
            }
        }
        Ok(())
    });
    // Of 600 sets of variables and 1,200 calls.
    assert!(refused.get() >= 60 && ran.get() >= 300, "{refused:?} {ran:?}");
}
