//! Goal: a search takes what there is for a whole process, and for each communicator that is on this host: threads and FIFOs
//! where they help all calls together, and never where one call is slower.
//! Method: machines that are made up: they take the time of the forecast, times what the test says, and some noise.

use std::collections::{BTreeMap, BTreeSet};

use collcast::sim::collective::{Collective, Launch};
use collcast::sim::schedule::Call;
use collcast::tune::{
    Budget, Finding, Forced, Outcome, ProcessSetting, ProcessVariable, Request, Spot, Stopwatch, tune_measuring,
};
use collcast::{Error, Query, Site, SiteSpec};
use collcast_tuner::host::Host;
use collcast_tuner::table::{Communicator, MadeFor, Table};

/// What a time is multiplied by: by the values of the process, and the call's bytes.
type Factor = fn(&[ProcessSetting], u64) -> f64;

/// A machine that is made up.
struct Made<'s> {
    site: &'s Site,
    /// What values do.
    factor: Factor,
    /// GPUs that it has.
    gpus: u32,
    /// What its kernel lists.
    host: Host,
    /// Set-ups after which a GPU is gone.
    lasts: usize,
    /// Times so far, for noise of up to 1% either way.
    times: u32,
    /// Forecasts that were asked for, by choice and call.
    known: BTreeMap<(Forced, Collective, u64), f64>,
    /// Ranks that were measured, and the values of each set-up, in order.
    ranks: BTreeSet<(u32, Option<Vec<u32>>)>,
    spot: Option<Spot>,
    set_ups: Vec<(Vec<ProcessSetting>, Forced)>,
}

impl<'s> Made<'s> {
    fn new(site: &'s Site, factor: Factor) -> Self {
        let (known, ranks) = (BTreeMap::new(), BTreeSet::new());
        Self {
            site,
            factor,
            gpus: site.topology.ranks(),
            host: Host::default(),
            lasts: usize::MAX,
            times: 0,
            known,
            ranks,
            spot: None,
            set_ups: Vec::new(),
        }
    }
}

impl Stopwatch for Made<'_> {
    fn measure(&mut self, choice: Forced, calls: &[&Call]) -> Result<Vec<f64>, Error> {
        self.measure_with(&[], choice, calls)
    }

    fn has_settings(&self) -> bool {
        true
    }

    fn measure_with(&mut self, told: &[ProcessSetting], choice: Forced, calls: &[&Call]) -> Result<Vec<f64>, Error> {
        if self.set_ups.len() >= self.lasts {
            return Err(Error::Exec { code: 3, message: "the GPU fell off the bus".to_owned(), hint: None });
        }
        self.set_ups.push((told.to_vec(), choice));
        if let Some(spot) = &self.spot {
            self.ranks.insert((spot.ranks, spot.gpus.clone()));
        }
        let predictor = self.site.predictor();
        let time = |call: &&Call| {
            let forecast = || {
                let query = Query::of((*call).clone());
                let query = match choice {
                    Some(((algorithm, protocol), channels)) => Query { channels, ..query.forced(algorithm, protocol) },
                    None => query,
                };
                query.predict(&predictor, &query.settings(self.site.settings())).unwrap().time.as_us()
            };
            let key = (choice, call.collective, call.size().0);
            let us = *self.known.entry(key).or_insert_with(forecast);
            // Knuth's generator of MMIX: the same everywhere.
            self.times += 1;
            let state =
                u64::from(self.times).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = 1.0 + 0.02 * ((state >> 40) as f64 / f64::from(1 << 24) - 0.5);
            us * noise * (self.factor)(told, call.size().0)
        };
        Ok(calls.iter().map(time).collect())
    }

    fn host(&self) -> Host {
        self.host.clone()
    }

    fn turn_to(&mut self, spot: &Spot) -> bool {
        let here = spot.gpus.as_ref().is_some_and(|gpus| gpus.iter().all(|gpu| *gpu < self.gpus));
        self.spot = Some(spot.clone());
        here
    }
}

fn has(told: &[ProcessSetting], variable: ProcessVariable, value: u32) -> bool {
    told.contains(&ProcessSetting { variable, value })
}

/// All-reduce of 1 to 256 MiB on 4 GPUs in graphs: Simple at the large ones.
fn searched(factor: Factor, budget: Budget) -> (Outcome, Vec<(Vec<ProcessSetting>, Forced)>) {
    let site =
        SiteSpec::new("h200x4").profile("prior").env("NCCL_NVLS_ENABLE", "0").launch(Launch::Graph).load().unwrap();
    let mut made = Made::new(&site, factor);
    let sizes = (20..=28).map(|octave| 1_u64 << octave).collect();
    let request = Request { sizes: Some(sizes), this_launch: true, ..Request::default() };
    let outcome = tune_measuring(&site, &request, &mut made, budget).unwrap();
    for tried in &outcome.process.tried {
        println!(
            "{} {:?} {:.4} {:?} {:?} {} {:?}",
            tried.words(),
            tried.finding,
            tried.gain,
            tried.doubt,
            tried.spread,
            tried.rounds,
            tried.least
        );
    }
    (outcome, made.set_ups)
}

/// Goal: larger FIFOs that save a tenth from 16 MiB up are found among all values, with what they really save, in files with
/// the line that undoes them; each was measured five times in turns with NCCL's own.
#[test]
fn a_fifo_that_helps_is_found() {
    let factor: Factor =
        |told, bytes| if has(told, ProcessVariable::Fifo, 8 << 20) && bytes >= 16 << 20 { 0.9 } else { 1.0 };
    let (outcome, set_ups) = searched(factor, Budget::default());
    let tried = outcome.process.advised().unwrap();
    assert_eq!(tried.words(), "NCCL_BUFFSIZE=8388608");
    // 5 of 9 sizes save a tenth each.
    let real = 1.0 - 0.9_f64.powf(5.0 / 9.0);
    assert!((tried.gain - real).abs() < 0.01 && tried.rounds >= 5 && tried.calls == 9, "{tried:?} {real}");
    assert!(tried.least.as_ref().unwrap().size_bytes < 16 << 20, "{tried:?}");
    assert!(
        outcome.nccl_env.contains("\nNCCL_BUFFSIZE=8388608\n# Undo: unset NCCL_BUFFSIZE\n"),
        "{}",
        outcome.nccl_env
    );
    let with: Vec<bool> = set_ups.iter().map(|(told, _)| has(told, ProcessVariable::Fifo, 8 << 20)).collect();
    let first = with.iter().position(|with| *with).unwrap();
    assert!(
        with.iter().filter(|with| **with).count() >= 6 && with[first..].windows(3).all(|w| w != [true; 3]),
        "{with:?}"
    );
    let report = outcome.report(Default::default());
    assert!(report.verdict.unwrap().sentence.contains("NCCL_BUFFSIZE=8388608 saves"));
}

/// Goal: where no value helps, none is advised, and NCCL's own stay out of the file.
#[test]
fn nothing_to_gain_is_nothing_advised() {
    let (outcome, set_ups) = searched(|_, _| 1.0, Budget::default());
    assert!(outcome.process.advised().is_none() && !outcome.nccl_env.contains("SIZE="), "{:?}", outcome.process);
    assert!(set_ups.iter().any(|(told, _)| !told.is_empty()), "nothing was tried");
}

/// Goal: values that gain over all and slow one size are not advised, however much they gain.
#[test]
fn a_size_that_is_slower_forbids_a_value() {
    let factor: Factor = |told, bytes| match bytes {
        _ if told.iter().all(|setting| setting.variable != ProcessVariable::Fifo) => 1.0,
        0x200_0000 => 1.05,
        _ => 0.85,
    };
    let (outcome, _) = searched(factor, Budget::default());
    assert!(outcome.process.advised().is_none(), "{:?}", outcome.process);
    assert!(outcome.process.tried.iter().any(|tried| tried.finding == Finding::Slows), "{:?}", outcome.process);
}

/// Goal: two values that help more together are both taken.
#[test]
fn values_add_up() {
    let factor: Factor = |told, bytes| {
        let fifo = if has(told, ProcessVariable::Fifo, 16 << 20) && bytes >= 16 << 20 { 0.88 } else { 1.0 };
        let threads = if has(told, ProcessVariable::Threads, 256) && bytes < 16 << 20 { 0.85 } else { 1.0 };
        fifo * threads
    };
    let (outcome, _) = searched(factor, Budget::default());
    let words = outcome.process.advised().map(collcast::tune::Tried::words).unwrap_or_default();
    assert!(words.contains("NCCL_BUFFSIZE=16777216") && words.contains("NCCL_NTHREADS=256"), "{words}");
}

/// Goal: a budget that ends within the rounds leaves NCCL's values.
#[test]
fn few_rounds_are_no_finding() {
    let factor: Factor =
        |told, bytes| if has(told, ProcessVariable::Fifo, 8 << 20) && bytes >= 16 << 20 { 0.7 } else { 1.0 };
    let all = searched(factor, Budget::default()).0;
    let times = all.times + all.process.times / 4;
    let (outcome, _) = searched(factor, Budget { times, ..Budget::default() });
    assert!(outcome.process.advised().is_none(), "{:?}", outcome.process);
    assert!(outcome.process.tried.iter().all(|tried| tried.rounds < 5), "{:?}", outcome.process);
}

/// Goal: an error within the rounds keeps what calls gain, leaves NCCL's values, and is told with its exit code; the first
/// set-up's is the answer.
#[test]
fn an_error_within_rounds_leaves_the_values() {
    let site =
        SiteSpec::new("h200x4").profile("prior").env("NCCL_NVLS_ENABLE", "0").launch(Launch::Graph).load().unwrap();
    let request = Request { sizes: Some(vec![64 << 20, 256 << 20]), this_launch: true, ..Request::default() };
    let factor: Factor = |told, _| if has(told, ProcessVariable::Fifo, 8 << 20) { 0.8 } else { 1.0 };
    let tuned = |lasts| {
        let mut made = Made { lasts, ..Made::new(&site, factor) };
        tune_measuring(&site, &request, &mut made, Budget::default()).map(|outcome| (outcome, made.set_ups))
    };
    let (whole, set_ups) = tuned(usize::MAX).unwrap();
    assert!(whole.process.advised().is_some() && whole.ended.is_none());
    let first = set_ups.iter().position(|(told, _)| !told.is_empty()).unwrap();
    let (outcome, _) = tuned(first + 3).unwrap();
    assert_eq!(outcome.ended.as_ref().map(|ended| ended.code), Some(3));
    assert!(outcome.process.advised().is_none() && !outcome.process.tried.is_empty(), "{:?}", outcome.process);
    assert_eq!(outcome.times, whole.times);
    assert!(matches!(tuned(0), Err(Error::Exec { code: 3, .. })));
}

/// Goal: each communicator whose GPUs are on this host is measured on its own; one that spans hosts is tuned by forecasts,
/// and an answer says so.
#[test]
fn communicators_are_measured_on_their_own_gpus() {
    let site = SiteSpec::new("dgx-h100").nodes(2).load().unwrap();
    let mut made = Made { gpus: 8, ..Made::new(&site, |_, _| 1.0) };
    let request = Request {
        communicators: Some("tp=2,cp=4,dp=2".parse().unwrap()),
        sizes: Some(vec![64 << 10, 16 << 20]),
        ..Request::default()
    };
    let outcome = tune_measuring(&site, &request, &mut made, Budget::default()).unwrap();
    let spots: Vec<(u32, Option<Vec<u32>>)> = made.ranks.into_iter().collect();
    assert_eq!(spots, [(2, Some(vec![0, 1])), (4, Some(vec![0, 2, 4, 6]))]);
    assert!(
        outcome.notes.iter().any(|note| note.starts_with("dp (2 ranks, 2 nodes) is not on the GPUs")),
        "{:?}",
        outcome.notes
    );
    let csv = outcome.measured_csv.unwrap();
    let runs: BTreeSet<&str> = csv.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(runs.into_iter().collect::<Vec<_>>(), ["search:cp", "search:tp"]);
    let measured = |name: &str| {
        outcome.calls.iter().any(|call| {
            call.communicator.name.as_deref() == Some(name) && call.candidates.iter().any(|c| c.measured.is_some())
        })
    };
    assert!(measured("tp") && measured("cp") && !measured("dp"));

    // What was measured of each is its own when it is read again.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.csv");
    std::fs::write(&path, csv).unwrap();
    let again = Request { measurements: vec![path.display().to_string().into()], ..request };
    let again = collcast::tune::tune(&site, &again).unwrap();
    for (before, after) in outcome.calls.iter().zip(&again.calls).filter(|(before, _)| !before.beyond) {
        let times = |call: &collcast::tune::Tuned| {
            call.default_candidate().measured.map(|m| (m.runs, (m.time_us * 1e4).round()))
        };
        assert_eq!(times(before), times(after), "{:?} {}", before.communicator, before.size_bytes);
    }
}

/// A `/sys` with GPUs of a kind and a NIC.
fn sys(gpus: u32, nic: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: String, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for gpu in 0..gpus {
        for (name, text) in [("vendor", "0x10de\n"), ("device", "0x2335\n"), ("class", "0x030200\n")] {
            write(format!("bus/pci/devices/{gpu}/{name}"), text);
        }
    }
    write("class/infiniband/mlx5_0/ports/1/rate".to_owned(), nic);
    folder
}

/// Goal: a table says on which kind of host it was measured, and our plugin refuses it on another; how many GPUs one has is
/// no kind, since a host of the job may have lost one.
#[test]
fn a_table_is_for_the_host_that_was_measured() {
    let site = Site::load("h200x4").unwrap();
    let request = Request { sizes: Some(vec![1 << 20]), ..Request::default() };
    let measured = sys(4, "400 Gb/sec (4X NDR)");
    let mut made = Made { host: Host::of(measured.path()), ..Made::new(&site, |_, _| 1.0) };
    let outcome = tune_measuring(&site, &request, &mut made, Budget::default()).unwrap();
    assert!(outcome.tuner_csv.contains("\n# for: gpus=4x2335 switches=none\n"), "{}", outcome.tuner_csv);
    let made_for = MadeFor::of(&outcome.tuner_csv);
    assert!(made_for.check_host(&Host::of(measured.path())).is_ok() && made_for.check_host(&Host::default()).is_ok());
    assert!(made_for.check_host(&Host::of(sys(8, "400 Gb/sec (4X NDR)").path())).is_ok());
    let other = MadeFor::of(&outcome.tuner_csv.replace("4x2335", "4x2330"));
    assert!(other.check_host(&Host::of(measured.path())).is_err());
    assert!(made_for.check_host(&Host::of(sys(4, "200 Gb/sec (4X HDR)").path())).is_ok());
    // Forecasts are of no host that could be known again.
    assert!(!collcast::tune::tune(&site, &request).unwrap().tuner_csv.contains("gpus="));
}

/// Goal: a line is for NVLink domains, which NCCL calls nodes, and for ranks of each where domains differ; our plugin then
/// takes it for that communicator alone.
#[test]
fn lines_are_for_nvlink_domains() {
    let table_of = |spec: SiteSpec, ranks: u32| {
        let site = spec.load().unwrap();
        let request = Request { sizes: Some(vec![1 << 20]), ranks: Some(ranks), ..Request::default() };
        collcast::tune::tune(&site, &request).unwrap().tuner_csv.replace("# kept:", "#")
    };
    let table = |machine: &str, nodes: u32, ranks: u32| table_of(SiteSpec::new(machine).nodes(nodes), ranks);
    let has = |text: &str, ranks, nodes, a_domain| Table::read(text, Communicator { ranks, nodes, a_domain }).is_ok();
    let rack = table("gb200-nvl72", 2, 8);
    assert!(has(&rack, 8, 1, Some((8, 8))) && !has(&rack, 8, 2, None), "{rack}");
    // Without MNNVL NCCL counts hosts.
    for (name, value) in [("NCCL_MNNVL_ENABLE", "0"), ("NCCL_CUMEM_ENABLE", "0")] {
        let apart = table_of(SiteSpec::new("gb200-nvl72").nodes(2).env(name, value), 8);
        assert!(has(&apart, 8, 2, Some((4, 4))) && !has(&apart, 8, 1, None), "{name}: {apart}");
    }
    let even = table("dgx-h100", 2, 16);
    assert!(has(&even, 16, 2, Some((8, 8))) && !even.contains("# ranks of a domain"), "{even}");
    let uneven = table("dgx-h100", 2, 12);
    assert!(uneven.contains("\n# ranks of a domain: 4 to 8\n"), "{uneven}");
    assert!(
        has(&uneven, 12, 2, Some((4, 8))) && has(&uneven, 12, 2, None) && !has(&uneven, 12, 2, Some((6, 6))),
        "{uneven}"
    );
}
