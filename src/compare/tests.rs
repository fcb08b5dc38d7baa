#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

//! Goal: on real runs where nothing changed nothing is called slower, and planted slowdowns are
//! found. Method: the statistic itself on every run of the committed measurements, with real
//! noise (in place against out of place of one run) and with noise that is drawn.

#[path = "../../tests/common/random.rs"]
mod random;

use std::collections::BTreeSet;
use std::path::PathBuf;

use collcast_hwbackend::read::{ReadOptions, read_paths};
use collcast_sim::collective::{Collective, Launch};
use collcast_sim::measurement::Measurement;
use collcast_sim::units::SimDuration;

use super::judge::judge;
use super::sets::{Matched, matched};
use super::{Between, Change, Condition, Request, Set, compare};
use crate::bands::band;
use crate::noise::known;
use random::Random;

/// Trials of a rate: half of them without `COLLCAST_ALL_TESTS=1`.
fn sampled(all: usize) -> usize {
    if std::env::var_os("COLLCAST_ALL_TESTS").is_some() { all } else { all / 2 }
}

fn data() -> Vec<Measurement> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/h200x4/nccl.csv"));
    read_paths(&[path], &ReadOptions::default()).unwrap().measurements
}

fn runs(rows: &[Measurement]) -> Vec<String> {
    rows.iter().map(|r| r.run.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn select(rows: &[Measurement], run: &str, keep: impl Fn(&Measurement) -> bool) -> Vec<Measurement> {
    rows.iter().filter(|r| r.run == run && keep(r)).cloned().collect()
}

fn times(rows: &[Measurement], mut factor: impl FnMut(&Measurement) -> f64) -> Vec<Measurement> {
    let scaled = |row: &Measurement| {
        let mut scaled = row.clone();
        // As logs have it: two decimals.
        scaled.time = SimDuration::from_us((row.time.as_us() * factor(row) * 100.0).round() / 100.0);
        scaled
    };
    rows.iter().map(scaled).collect()
}

/// Of each band: its index, its rows, what is said of it.
fn judged(a: &[Measurement], b: &[Measurement]) -> Vec<(u8, usize, Change)> {
    judged_beyond(0.05, a, b)
}

/// The same with another tolerance.
fn judged_beyond(tolerance: f64, a: &[Measurement], b: &[Measurement]) -> Vec<(u8, usize, Change)> {
    let matched = matched([a, b]);
    judge(&matched, tolerance, Between::Measured).0.iter().map(|b| (b.band, b.rows.len(), b.change)).collect()
}

fn any_slower(a: &[Measurement], b: &[Measurement]) -> bool {
    judged(a, b).iter().any(|b| b.2 == Change::Slower)
}

/// In place, these spare the copy of a rank's own part: they are really faster.
fn spares_a_copy(row: &Measurement) -> bool {
    matches!(row.collective, Collective::AllGather | Collective::AllToAll | Collective::ReduceScatter)
}

/// The rows as another run would give them: one offset for each band, noise for each row, and
/// one row in twenty far out. `share`: of the known noise, which is that of a difference of two.
fn again(rows: &[Measurement], random: &mut Random, share: f64) -> Vec<Measurement> {
    let offsets = [random.normal(), random.normal(), random.normal()];
    let draws: Vec<f64> = rows
        .iter()
        .map(|row| {
            let band = band(row.size.0);
            let noise = known(&[row.launch], band);
            let tail = if random.uniform() < 0.05 { 6.0 } else { 1.0 };
            (share * (offsets[usize::from(band)] * noise.offset + random.normal() * noise.row * tail)).exp()
        })
        .collect();
    let mut draws = draws.into_iter();
    let mut out = rows.to_vec();
    for row in &mut out {
        row.time = SimDuration::from_us(row.time.as_us() * draws.next().unwrap());
    }
    out
}

/// So many runs of the rows, each drawn by itself.
fn repeated(count: usize, mut draw: impl FnMut() -> Vec<Measurement>) -> Vec<Measurement> {
    let run = |index: usize| draw().into_iter().map(move |row| Measurement { run: format!("run {index}"), ..row });
    (0..count).flat_map(run).collect()
}

#[test]
fn in_place_against_out_of_place_is_never_slower() {
    let data = data();
    for run in runs(&data) {
        let (a, b) = (select(&data, &run, |r| !r.in_place), select(&data, &run, |r| r.in_place));
        assert!(!any_slower(&a, &b), "{run}: {:?}", judged(&a, &b));
    }
    // All at once: one comparison of 176 bands.
    let side = |in_place| data.iter().filter(|r| r.in_place == in_place).cloned().collect::<Vec<_>>();
    assert!(!any_slower(&side(false), &side(true)));
}

/// Sizes in bytes at which NCCL chose ring with a protocol for all-reduce over 4 GPUs, as its log
/// of the same machine says.
fn chosen(protocol: &str) -> BTreeSet<u64> {
    let text = include_str!("../../tests/data/h200x4/nccl_choice_4gpu.txt");
    let line = |line: &str| {
        let (size, rest) = line.strip_prefix("AllReduce: ")?.split_once(" Bytes -> Algo RING proto ")?;
        (rest.split_whitespace().next() == Some(protocol)).then(|| size.parse().unwrap())
    };
    text.lines().filter_map(line).collect()
}

/// Goal: two runs of the same thing are no change, whichever comes first: NCCL's own choice and
/// the run that forced the same, at the sizes where it was the same.
#[test]
fn a_default_run_is_like_the_forced_run_of_what_nccl_chose() {
    let data = data();
    let (ll, ll128, simple) = (chosen("LL"), chosen("LL128"), chosen("SIMPLE"));
    assert!(ll.len() >= 19 && ll128.len() >= 2 && simple.len() >= 3);
    let large: BTreeSet<u64> = (20..=32).map(|power| 1 << power).collect();
    for (default, forced, sizes) in [
        ("all_reduce_default", "all_reduce_Ring_LL", &ll),
        ("all_reduce_default", "all_reduce_Ring_LL128", &ll128),
        ("all_reduce_default", "all_reduce_Ring_Simple", &simple),
        ("t4_all_reduce_default", "t4_all_reduce_Ring_LL", &ll),
        ("t4_all_reduce_default", "t4_all_reduce_Ring_LL128", &ll128),
        ("t4_all_reduce_default", "t4_all_reduce_Ring_Simple", &simple),
        // 24 channels are what NCCL takes at these sizes.
        ("all_reduce_Ring_Simple", "ch24_all_reduce_Ring_Simple", &large),
        ("all_reduce_Tree_Simple", "ch24_all_reduce_Tree_Simple", &large),
    ] {
        let [a, b] = [default, forced].map(|run| select(&data, run, |r| sizes.contains(&r.size.0)));
        for (a, b) in [(&a, &b), (&b, &a)] {
            let said = judged(a, b);
            assert!(said.len() >= 2, "{default} {forced}: {said:?}");
            assert!(said.iter().all(|b| matches!(b.2, Change::Same | Change::CannotTell)), "{default} {forced}");
            // Where the noise is small enough to say so, it is said.
            assert!(said.iter().all(|b| b.0 < 2 || b.2 == Change::Same), "{default} {forced}: {said:?}");
        }
    }
}

/// Slowdowns by size band that must be found, with a tolerance that all of them are beyond.
const PLANTS: [(u8, f64); 3] = [(0, 1.15), (1, 1.15), (2, 1.05)];
const BELOW_PLANTS: f64 = 0.03;

/// Goal: a planted slowdown is found in every run that has enough rows, beside real noise:
/// in place against out of place, where the former is not really faster.
#[test]
fn planted_slowdowns_are_found_in_every_run() {
    let data = data();
    for (planted, factor) in PLANTS {
        let (mut found, mut found_real, mut real, mut all) = (0, 0, 0, 0);
        for run in runs(&data) {
            let plant = |rows: &[Measurement]| times(rows, |r| if band(r.size.0) == planted { factor } else { 1.0 });
            let a = select(&data, &run, |r| !r.in_place);
            let is_found = |b: &[Measurement]| {
                let said = judged_beyond(BELOW_PLANTS, &a, b);
                assert!(said.iter().all(|b| b.0 == planted || b.2 != Change::Slower), "{run}: {said:?}");
                said.iter().any(|b| b.0 == planted && b.2 == Change::Slower)
            };
            if a.iter().filter(|r| band(r.size.0) == planted).count() < 3 {
                continue;
            }
            all += 1;
            found += usize::from(is_found(&plant(&a)));
            let b = select(&data, &run, |r| r.in_place);
            if !spares_a_copy(&a[0]) && a.iter().filter(|r| band(r.size.0) == planted).count() >= 5 {
                real += 1;
                found_real += usize::from(is_found(&plant(&b)));
            }
        }
        println!("band {planted}, {factor}: {found} of {all} runs; {found_real} of {real} against the other column");
        assert!(all >= 45 && real >= 20, "{all} {real}");
        assert!(found == all && found_real * 10 >= real * 9, "{found}/{all}, {found_real}/{real}");
    }
}

/// Goal: the error rate that every report states holds, and planted slowdowns are found, with
/// noise as large as the known one and heavier in its tails; of one run a side, three and five.
#[test]
fn rates_hold_with_drawn_noise() {
    let data = data();
    for repeats in [1, 3, 4, 5] {
        let (mut trials, mut alarms, mut tenths) = (0, 0, 0);
        let mut found = [(0, 0); 3];
        for seed in 1..=sampled(20) as u64 {
            let mut random = Random::new(seed);
            for run in runs(&data) {
                let once = select(&data, &run, |_| true);
                let mut drawn = |share: f64| repeated(repeats, || again(&once, &mut random, share));
                // Of one run the other side has all of the noise.
                let (a, b) = match repeats {
                    1 => (drawn(0.0), drawn(1.0)),
                    _ => (drawn(0.5_f64.sqrt()), drawn(0.5_f64.sqrt())),
                };
                trials += 1;
                alarms += usize::from(any_slower(&a, &b));
                tenths += usize::from(any_slower(&a, &times(&b, |_| 1.1)));
                for (planted, factor) in PLANTS {
                    let b = times(&b, |r| if band(r.size.0) == planted { factor } else { 1.0 });
                    let said = judged_beyond(BELOW_PLANTS, &a, &b);
                    for said in said.iter().filter(|s| s.0 == planted && s.1 >= 5) {
                        found[usize::from(planted)].0 += usize::from(said.2 == Change::Slower);
                        found[usize::from(planted)].1 += 1;
                    }
                }
            }
        }
        println!("{repeats}: false alarms {alarms} of {trials}; found {found:?}; a tenth in {tenths}");
        assert!(alarms * 100 <= trials * 2, "{repeats}: {alarms} of {trials}");
        assert!(found.iter().all(|(found, of)| found * 10 >= of * 8), "{repeats}: {found:?}");
        assert!(repeats == 1 || tenths * 10 >= trials * 9, "{repeats}: a tenth more time in {tenths} of {trials}");
    }
}

/// The rows as several hosts ran them, once each: each with an offset of its own, and one of each run.
fn fleet(once: &[Measurement], hosts: usize, (own, run): (&[f64], f64), random: &mut Random) -> Vec<Measurement> {
    let of_host = |host: usize| {
        let offset = own[host] + run * random.normal();
        let mut rows = times(once, |_| (offset + 0.3 * run * random.normal()).exp());
        for row in &mut rows {
            row.run = format!("run of {host}");
            row.settings.host_names = vec![format!("gpu{host:02}")].into();
        }
        rows
    };
    (0..hosts).flat_map(of_host).collect()
}

/// Goal: the rate holds where hosts are named, whatever hosts differ by and with more noise than the known one, and one host
/// that is slower is named, and no other.
#[test]
fn rates_hold_by_host() {
    let trials = sampled(150);
    let data = data();
    let once = select(&data, "all_reduce_Ring_Simple", |_| true);
    for (hosts, noise) in [(16, 0.005), (16, 0.02), (4, 0.005), (2, 0.005)] {
        let mut random = Random::new(hosts as u64);
        let (mut alarms, mut found, mut others) = (0, 0, 0);
        for _ in 0..trials {
            let own: Vec<f64> = (0..hosts).map(|_| 0.03 * random.normal()).collect();
            let [a, b] = [0, 1].map(|_| fleet(&once, hosts, (&own, noise), &mut random));
            let slower = |b: &[Measurement]| -> BTreeSet<String> {
                let (bands, by_host) = judge(&matched([&a, b]), 0.05, Between::Measured);
                let all = bands.iter().filter(|band| band.change == Change::Slower).map(|_| "all".to_owned());
                let of_hosts = by_host.iter().filter(|band| band.change == Change::Slower);
                all.chain(of_hosts.map(|band| band.hosts.clone())).collect()
            };
            alarms += usize::from(!slower(&b).is_empty());
            let named = slower(&times(&b, |r| if r.settings.host_names[0] == "gpu01" { 1.3 } else { 1.0 }));
            found += usize::from(named.contains("gpu01"));
            others += usize::from(named.iter().any(|name| name != "gpu01"));
        }
        println!("{hosts} hosts {noise}: false alarms {alarms}, found {found}, others {others} of {trials}");
        assert!(alarms * 100 <= trials * 2, "{hosts} {noise}: {alarms}");
        assert!(found * 10 >= trials * 9 && others * 100 <= trials * 2, "{hosts} {noise}: {found} {others}");
    }
}

/// Goal: hosts that became slower are no noise of the others, however many they are, and what all of them gained hides none.
#[test]
fn half_of_the_hosts_slower_is_no_noise() {
    let data = data();
    let once = select(&data, "all_reduce_Ring_Simple", |_| true);
    let mut random = Random::new(4);
    for factors in [
        &[2.0, 2.0, 1.0, 1.0][..],
        &[1.5, 1.5, 1.5, 1.0, 1.0, 1.0],
        &[1.3, 1.6, 1.9, 2.2],
        &[1.0, 1.1, 1.2],
        &[1.3, 0.7, 0.7, 0.7, 0.7],
    ] {
        let hosts = factors.len();
        let [a, b] = [0, 1].map(|_| fleet(&once, hosts, (&vec![0.0; hosts], 0.003), &mut random));
        let host = |name: &str| name.strip_prefix("gpu")?.parse::<usize>().ok();
        let b = times(&b, |row| host(&row.settings.host_names[0]).map_or(f64::NAN, |host| factors[host]));
        let by_host = judge(&matched([&a, &b]), 0.05, Between::Measured).1;
        let large = by_host.iter().filter(|of| of.band == 2 && of.change == Change::Slower);
        let named: BTreeSet<usize> = large.filter_map(|of| host(&of.hosts)).collect();
        assert_eq!(named, (0..hosts).filter(|&host| factors[host] > 1.0).collect(), "{factors:?}");
    }
}

/// Goal: one size that is slower in all of four repeats counts by itself, in two repeats it leaves its band open, and in one
/// run too at large sizes; a row of small calls that ran once is not asked.
#[test]
fn one_size_that_is_slower_in_all_repeats_is_not_passed() {
    let data = data();
    let once = select(&data, "t4_all_reduce_default", |r| !r.in_place);
    let said = |size: u64, repeats: usize| {
        let mut random = Random::new(7);
        let mut drawn = || repeated(repeats, || times(&once, |_| (0.002 * random.normal()).exp()));
        let (a, b) = (drawn(), drawn());
        let b = times(&b, |row| if row.size.0 == size { 1.6 } else { 1.0 });
        let bands = judge(&matched([&a, &b]), 0.05, Between::Measured).0;
        let own = bands.into_iter().find(|of| of.band == band(size))?;
        Some((own.change, own.at.map(|at| at.0), own.apart().map(|row| row.size_bytes).collect::<Vec<u64>>()))
    };
    let large = 256 << 20;
    assert_eq!(said(large, 4), Some((Change::Slower, Some(large), vec![])));
    assert_eq!(said(large, 2), Some((Change::CannotTell, None, vec![large])));
    assert_eq!(said(large, 1), Some((Change::CannotTell, None, vec![large])));
    assert_eq!(said(1 << 20, 4).map(|told| told.0), Some(Change::Slower));
    assert!(said(1 << 20, 1).is_some_and(|told| told.2.is_empty()));
}

/// Goal: the rate holds for a machine with more noise than the known one, or more on one side, and a slowdown of a tenth is
/// found in it.
#[test]
fn rates_hold_for_noise_of_another_kind() {
    let trials = sampled(200);
    let data = data();
    let once = select(&data, "all_reduce_Ring_Simple", |_| true);
    for (repeats, noise) in [3, 5].into_iter().flat_map(|n| [(n, [0.02, 0.02]), (n, [0.05, 0.05]), (n, [0.002, 0.05])])
    {
        let mut random = Random::new(1);
        let (mut alarms, mut tenths) = (0, 0);
        for _ in 0..trials {
            let [a, b] = noise.map(|noise| repeated(repeats, || times(&once, |_| (random.normal() * noise).exp())));
            alarms += usize::from(any_slower(&a, &b));
            tenths += usize::from(any_slower(&a, &times(&b, |_| 1.1)));
        }
        println!("{repeats} {noise:?}: false alarms {alarms}, a tenth in {tenths} of {trials}");
        assert!(alarms * 100 <= trials * 2, "{repeats} {noise:?}: {alarms} of {trials}");
        assert!(tenths * 10 >= trials * 9, "{repeats} {noise:?}: a tenth more time in {tenths} of {trials}");
    }
}

/// Goal: a change that is certain and below the tolerance does not matter; one of just the tolerance does.
#[test]
fn the_tolerance_is_what_does_not_matter() {
    let data = data();
    let once = select(&data, "all_reduce_Ring_Simple", |r| r.size.0 > 16 << 20);
    for (factor, expected) in [(1.035, Change::CannotTell), (1.05, Change::Slower), (1.07, Change::Slower)] {
        let said = judged(&once, &times(&once, |_| factor));
        assert!(said.iter().all(|band| band.2 == expected), "{factor}: {said:?}");
    }
    let said = judged_beyond(0.03, &once, &times(&once, |_| 1.035));
    assert!(said.iter().all(|band| band.2 == Change::Slower), "{said:?}");
}

/// Goal: a slowdown of three neighbouring sizes in nine is found, and one row is not believed.
#[test]
fn local_slowdowns_are_found_and_single_rows_are_not_believed() {
    let data = data();
    let a = select(&data, "t4_all_reduce_default", |r| !r.in_place);
    let three = times(&a, |r| if (1 << 20..=4 << 20).contains(&r.size.0) { 1.3 } else { 1.0 });
    assert_eq!(judged(&a, &three), [(0, 13, Change::CannotTell), (1, 9, Change::Slower), (2, 6, Change::Same)]);
    let one = times(&a, |r| if r.size.0 == 256 << 20 { 1.5 } else { 1.0 });
    assert!(!any_slower(&a, &one));
    let matched = matched([&a, &one]);
    let bands = judge(&matched, 0.05, Between::Measured).0;
    let row = bands[2].rows.iter().find(|r| r.size_bytes == 256 << 20).unwrap();
    assert_eq!(row.change, Change::CannotTell, "it is not called unchanged either");
    // What no noise was seen to do is believed of one size too, and where there are few.
    let far = times(&a, |r| if r.size.0 == 256 << 20 { 2.0 } else { 1.0 });
    assert!(any_slower(&a, &far));
    let few = select(&data, "t4_all_reduce_default", |r| !r.in_place && r.size.0 >= 128 << 20);
    assert!(any_slower(&few[..2], &times(&few[..2], |_| 2.0)) && !any_slower(&few[..2], &times(&few[..2], |_| 1.3)));
}

/// Goal: repeats that agree show what single runs cannot: a single size, and smaller changes.
#[test]
fn repeats_sharpen() {
    let data = data();
    let once = select(&data, "t4_all_reduce_default", |r| !r.in_place);
    let repeated = |factor: f64| -> Vec<Measurement> {
        let runs = (0..6).flat_map(|repeat| {
            let mut rows = times(&once, |r| {
                let wobble = 1.0 + 0.002 * f64::from((repeat * 7 + r.size.0.trailing_zeros()) % 5);
                if r.size.0 == 256 << 20 || band(r.size.0) == 0 { wobble * factor } else { wobble }
            });
            for row in &mut rows {
                row.run = format!("repeat{repeat}");
            }
            rows
        });
        runs.collect()
    };
    let (a, b) = (repeated(1.0), repeated(1.06));
    let matched = matched([&a, &b]);
    assert_eq!(matched.repeats, [5 * once.len(); 2]);
    let bands = judge(&matched, 0.05, Between::Measured).0;
    let said: Vec<_> = bands.iter().map(|b| (b.band, b.change, b.at)).collect();
    let size = 256 << 20;
    assert_eq!(said, [(0, Change::Slower, None), (1, Change::Same, None), (2, Change::Slower, Some((size, size)))]);
    assert!(judged(&a, &a).iter().all(|b| b.2 == Change::Same));
    // Rows alike within one run say nothing of how far runs lie apart.
    let one_run = |rows: &[Measurement]| -> Vec<Measurement> {
        rows.iter().cloned().map(|r| Measurement { run: "one".to_owned(), ..r }).collect()
    };
    let said = judged(&one_run(&a), &one_run(&a));
    assert!(said.iter().all(|b| b.0 == 2 || b.2 == Change::CannotTell), "{said:?}");
}

/// Goal: exact forecasts are compared by the tolerance alone.
#[test]
fn forecasts_have_no_noise() {
    let data = data();
    let a = select(&data, "t4_all_reduce_default", |r| !r.in_place && r.size.0 >= 1 << 20);
    for (factor, expected) in [(1.0, Change::Same), (1.04, Change::Same), (1.06, Change::Slower), (0.9, Change::Faster)]
    {
        let b = times(&a, |_| factor);
        let matched = matched([&a, &b]);
        assert!(judge(&matched, 0.05, Between::Forecasts).0.iter().all(|b| b.change == expected), "{factor}");
    }
}

fn differences(matched: &Matched) -> Vec<String> {
    matched.differs.iter().map(ToString::to_string).collect()
}

/// Goal: rows answer to each other only where what both name is the same; what one side alone
/// says, or changed throughout, does not keep them apart.
#[test]
fn rows_are_matched_by_what_both_name() {
    let data = data();
    let ring = select(&data, "all_reduce_Ring_LL", |_| true);
    let tree = select(&data, "all_reduce_Tree_LL", |_| true);
    let both = [ring.clone(), tree.clone()].concat();
    let m = matched([&both, &ring]);
    assert_eq!((m.curves.len(), m.alone[0].len(), m.alone[1].len()), (2, 2, 0), "tree has no partner");
    assert_eq!(m.alone[0].iter().map(|a| a.rows).sum::<usize>(), tree.len());
    assert!(m.differs.is_empty());
    let m = matched([&ring, &tree]);
    assert_eq!(differences(&m), ["algorithm: ring -> tree"]);
    assert_eq!(m.curves.iter().map(|c| c.pairs.len()).sum::<usize>(), ring.len());
    let silent: Vec<Measurement> = ring.iter().cloned().map(|r| Measurement { launch: None, ..r }).collect();
    assert_eq!(differences(&matched([&silent, &ring])), ["launch: not said -> single_thread"]);
    let other = select(&data, "t2_all_reduce_Ring_LL", |_| true);
    assert!(matched([&ring, &other]).curves.is_empty(), "2 ranks are no partner of 4");
    let graph = ring.iter().cloned().map(|r| Measurement { launch: Some(Launch::Graph), ..r });
    assert_eq!(matched([&ring, &graph.collect::<Vec<_>>()]).curves[0].launches.len(), 2);
}

/// Goal: an outcome is data for other programs: settings by name, numbers with their units, nothing of the rows' files.
#[test]
fn an_outcome_can_be_serialised() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/h200x4/all_reduce_Ring_Simple.log");
    let side = |place| Set { conditions: vec![Condition::parse("--where", place).unwrap()], ..Set::new(log) };
    let outcome = compare(&Request::new(side("in_place=0"), side("in_place=1"))).unwrap();
    let json = serde_json::to_value(&outcome).unwrap();
    let band = &json["bands"][0];
    assert_eq!((&json["between"], &json["sides"][0]["predicted"]), (&"measured".into(), &false.into()));
    assert_eq!((&band["series"]["collective"], &band["series"]["ranks"]), (&"all_reduce".into(), &4.into()));
    assert!(band["series"]["settings"]["algorithm"].is_string(), "{band}");
    assert!(
        band["series"]["settings"]["in_place"].is_null(),
        "what differs throughout is no setting of a series: {band}"
    );
    assert_eq!(json["differences"][0]["setting"], "in_place");
    let row = &band["rows"][0];
    assert!(row["size_bytes"].as_u64() > Some(0) && row["time_us"][1].as_f64() > Some(0.0), "{row}");
    assert!(json["sides"][0].get("measurements").is_none());
}
