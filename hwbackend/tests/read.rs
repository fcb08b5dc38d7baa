//! Reading measurements, through the public way in and with the files people have.

use std::fs;
use std::path::{Path, PathBuf};

use collcast_hwbackend::read::{FileKind, FileReport, Note, Outcome, ReadError, ReadOptions, ReadReport, read_paths};
use collcast_sim::collective::{Algorithm, Collective, DataType, Launch, Protocol, ReduceOp};
use collcast_sim::measurement::{Choice, PeerAccess};
use collcast_sim::units::{Bytes, SimDuration};
use tempfile::TempDir;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn read(path: PathBuf) -> Result<ReadReport, ReadError> {
    read_paths(&[path], &ReadOptions::default())
}

/// Writes the files and reads the first of them by name.
fn read_texts(files: &[(&str, &str)]) -> Result<ReadReport, ReadError> {
    read_texts_with(files, &ReadOptions::default())
}

fn read_texts_with(files: &[(&str, &str)], options: &ReadOptions) -> Result<ReadReport, ReadError> {
    let folder = TempDir::new().expect("a temporary folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("a file in it");
    }
    read_paths(&[folder.path().join(files[0].0)], options)
}

/// Goal: header, settings, both halves and the footer of a whole log, value by value.
#[test]
fn a_whole_log_says_all_its_settings() {
    let report = read(data("G4_all_gather_Ring_LL128.log")).unwrap();
    let file = &report.files[0];
    assert_eq!((file.kind, &file.outcome), (FileKind::Log, &Outcome::Read));
    assert_eq!((file.rows, file.unusable, file.unreadable), (38, 6, 0));
    assert!(file.notes.is_empty(), "{:?}", file.notes);
    assert_eq!(file.nccl.as_deref(), Some("2.28.9"));
    assert_eq!(file.hash.len(), 16);
    let row = &report.measurements[0];
    assert_eq!(row.run, "G4_all_gather_Ring_LL128");
    assert_eq!(row.collective, Collective::AllGather);
    assert_eq!((row.ranks, row.hosts), (4, Some(1)));
    assert_eq!(row.launch, Some(Launch::Graph));
    assert_eq!((row.dtype, row.op, row.root), (Some(DataType::Float32), None, None));
    assert_eq!((row.size, row.in_place), (Bytes(64), false));
    assert_eq!(row.time, SimDuration::from_us(12.94));
    assert_eq!(row.settings.algorithm, Some(Algorithm::Ring));
    assert_eq!(row.settings.protocol, Some(Protocol::Ll128));
    assert_eq!(row.settings.nccl.as_deref(), Some("2.28.9"));
    assert_eq!(row.origin.line, 19);
    let next = &report.measurements[1];
    assert_eq!((next.in_place, next.time), (true, SimDuration::from_us(12.65)));
}

/// Goal: launch modes, channels and roles as the headers of our own runs say them.
#[test]
fn launch_and_channels_come_from_the_header() {
    for (name, collective, launch, channels, ranks) in [
        ("all_reduce_check", Collective::AllReduce, Launch::SingleThread, None, 4),
        ("t2_p2pch16_sendrecv", Collective::SendRecv, Launch::Threads, Some(16), 2),
        ("ch8_all_reduce_Tree_Simple", Collective::AllReduce, Launch::SingleThread, Some(8), 4),
    ] {
        let report = read(data(&format!("{name}.log"))).unwrap();
        let row = &report.measurements[0];
        assert_eq!(row.collective, collective, "{name}");
        assert_eq!(row.launch, Some(launch), "{name}");
        assert_eq!(row.settings.channels, channels, "{name}");
        assert_eq!(row.ranks, ranks, "{name}");
        assert_eq!(row.op, collective.reduces().then_some(ReduceOp::Sum), "{name}");
        assert!(report.files[0].notes.is_empty(), "{name}: {:?}", report.files[0].notes);
    }
}

/// Goal: logs as they are pasted into documents give their ranks and rows all the same.
#[test]
fn pasted_logs_are_read() {
    for (name, rows, ranks, hosts, launch, note) in [
        ("alps_gh200_2n_allreduce_tcp", 50, 8, Some(2), Some(Launch::Processes), ""),
        ("coreweave_gb200_nvl72_allreduce", 10, 72, Some(18), None, "1 of 72 device lines"),
        ("coreweave_a100_4n_allreduce_sharp_2023", 10, 32, None, Some(Launch::Processes), "that of 32"),
        ("gcp_a4_b200_2n_allreduce", 22, 16, None, Some(Launch::Processes), "16 ranks by busbw"),
        ("shahizat_h100_2n_allreduce_default", 22, 16, None, None, "16 ranks by busbw"),
    ] {
        let report = read(data(&format!("{name}.log"))).unwrap();
        let (file, row) = (&report.files[0], &report.measurements[0]);
        assert_eq!((file.rows, file.unreadable), (rows, 0), "{name}");
        assert_eq!((row.ranks, row.hosts, row.launch), (ranks, hosts, launch), "{name}");
        assert_eq!(row.collective, Collective::AllReduce, "{name}");
        assert!(note.is_empty() || file.notes.iter().any(|n| n.text.contains(note)), "{name}: {:?}", file.notes);
    }
}

/// Goal: a log and the CSV made from it hold the same times, and count once in a folder.
/// Method: both alone, compared as sets; then the folder.
#[test]
fn a_log_and_its_csv_agree_and_count_once() {
    for name in ["coreweave_gb200_nvl72_allreduce", "shahizat_h100_2n_allreduce_default"] {
        let times = |extension: &str| {
            let report = read(data(&format!("{name}.{extension}"))).unwrap();
            let mut times: Vec<_> =
                report.measurements.iter().map(|row| (row.size, row.in_place, row.ranks, row.time)).collect();
            times.sort();
            times
        };
        assert_eq!(times("log"), times("csv"), "{name}");
    }
    let once = read(data("")).unwrap();
    let keep = ReadOptions { keep_duplicates: true, ..ReadOptions::default() };
    let twice = read_paths(&[data("")], &keep).unwrap();
    assert_eq!(twice.measurements.len() - once.measurements.len(), 10 + 22);
    let duplicates: usize = once.files.iter().map(|file| file.duplicates).sum();
    assert_eq!(duplicates, 10 + 22);
    // The CSV knows the hosts, the log the element type; the row that stays knows both.
    let row = once.measurements.iter().find(|row| row.run == "coreweave_gb200_nvl72_allreduce").unwrap();
    assert_eq!((row.hosts, row.dtype), (Some(18), Some(DataType::Float32)));
    assert_eq!(once.files.iter().map(|file| file.rows).sum::<usize>(), once.measurements.len());
    // Every file of the folder is accounted for.
    assert_eq!(once.files.len(), fs::read_dir(data("")).unwrap().count());
    let sources = once.files.iter().find(|file| file.path.ends_with("SOURCES.md")).unwrap();
    assert!(matches!(sources.outcome, Outcome::NotUnderstood(_)));
}

/// Goal: of two files with the same times, what either says is kept, whichever is read first.
#[test]
fn twins_complete_each_other_in_either_order() {
    let table = |columns: &str, cells: &str| {
        let rows = (20..24).map(|at| format!("x,all_reduce,8,{},{}.11{cells}\n", 1 << at, at + 40));
        format!("run,collective,ranks,size_bytes,time_us{columns}\n{}", rows.collect::<String>())
    };
    let folder = TempDir::new().unwrap();
    let [plain, full] = ["plain.csv", "full.csv"].map(|name| folder.path().join(name));
    fs::write(&plain, table(",nodes", ",1")).unwrap();
    fs::write(&full, table(",p2p,registered,nthreads", ",off,true,256")).unwrap();
    let read = |files: [&PathBuf; 2]| {
        let report = read_paths(&files.map(Clone::clone), &ReadOptions::default()).unwrap();
        report.measurements.into_iter().map(|row| (row.hosts, row.settings)).collect::<Vec<_>>()
    };
    let rows = read([&plain, &full]);
    assert_eq!(rows, read([&full, &plain]));
    let (hosts, settings) = &rows[0];
    assert_eq!((rows.len(), *hosts, settings.threads), (4, Some(1), Some(256)));
    assert_eq!((settings.peer_access, settings.registered), (PeerAccess::Off, true));
}

/// Goal: a table that is in a file twice counts once; single times that agree are no copies.
#[test]
fn a_table_that_is_there_twice_counts_once() {
    let rows = |from: u64| (0..6).map(|at| format!("all_reduce,8,{},{}\n", 1024 << at, from + at)).collect::<String>();
    let read = |text: String| {
        let report = read_texts(&[("t.csv", &format!("{HEADER}\n{text}"))]).unwrap();
        (report.measurements.len(), report.files[0].rows, report.files[0].duplicates)
    };
    assert_eq!(read(rows(5) + &rows(5)), (6, 6, 6));
    assert_eq!(read(rows(5) + &rows(6)), (12, 12, 0));
    assert_eq!(read("all_reduce,8,1024,5\n".repeat(3)), (3, 3, 0));
    assert_eq!(read("all_reduce,8,1024,5\n".repeat(8)), (8, 8, 0));
    // Real repeats of each size, of which several took as long to the last digit; and such a table twice.
    let repeated = |size: u64| [100, 100, 100, 140].map(|us| format!("all_reduce,8,{size},{us}\n")).concat();
    let repeats: String = (0..9).map(|at| repeated(1024 << at)).collect();
    assert_eq!(read(repeats.clone()), (36, 36, 0));
    assert_eq!(read(repeats.repeat(2)), (36, 36, 36));
    // A table in part, or in another order, is none once more.
    assert_eq!(read(rows(5) + rows(5).split_once('\n').unwrap().1), (11, 11, 0));
}

/// Goal: a CSV with a bus bandwidth alone gives times, and says how little it knows.
#[test]
fn times_are_derived_from_rates() {
    let report = read(data("azure_nd_h100_v5_1n_allreduce.csv")).unwrap();
    let row = &report.measurements[0];
    // 1024 B * 1.75 / 0.07 GB/s.
    assert_eq!(row.time, SimDuration::from_us(25.6));
    assert_eq!((row.in_place, row.settings.algorithm), (true, Some(Algorithm::Nvls)));
    let notes = &report.files[0].notes;
    assert!(notes.iter().any(|note| note.text.contains("so few digits")), "{notes:?}");
    // So does one whose time is none.
    let text = format!("{HEADER},algbw_gbps\nall_reduce,8,1000000,0,20\nall_reduce,8,1000000,nan,20\n");
    let report = read_texts(&[("t.csv", &text)]).unwrap();
    assert!(report.measurements.iter().all(|row| row.time == SimDuration::from_us(50.0)), "{report:?}");
    assert!(report.files[0].notes.iter().any(|note| note.text.contains("2 rows say no time")), "{report:?}");
}

const HEADER: &str = "collective,ranks,size_bytes,time_us";

/// Goal: a time below a picosecond, which no type of ours holds, is as good as none.
#[test]
fn times_that_round_to_nothing_are_unusable() {
    let text = format!("{HEADER}\nall_reduce,8,1024,5e-324\nall_reduce,8,2048,9e-7\nall_reduce,8,4,1e-6\n");
    let report = read_texts(&[("t.csv", &text)]).unwrap();
    assert_eq!((report.files[0].rows, report.files[0].unusable), (1, 2));
}

/// Goal: each column of the contract, in every spelling it has.
#[test]
fn every_column_of_the_contract_is_used() {
    let text = "# a comment\n\
        run,collective,ranks,nodes,gpus_per_node,algorithm,protocol,launch,channels,buffsize,nthreads,p2p,in_place,size_bytes,time_us,algbw_gbps,busbw_gbps,odd\n\
        a,AllReduce,16,2,8,Ring,LL128,threads,8,4194304,512,off,1,1048576,100,10.49,19.66,x\n\
        b,alltoall,16,2,,,,,,,,net,false,1MiB,,10.49,,\n\
        b,alltoall,16,,8,,,,,,,,,1048576,,,0.00,\n\
        b,broadcast,1,,,auto,,,,,,,,8,5.0,,,\n";
    let report = read_texts(&[("t.csv", text)]).unwrap();
    let file = &report.files[0];
    assert_eq!((file.rows, file.unusable), (3, 1));
    assert_eq!(file.notes.len(), 1, "{:?}", file.notes);
    assert!(file.notes[0].text.contains("`odd` is not used"));
    let [first, second, third] = report.measurements.as_slice() else {
        panic!("three rows");
    };
    assert_eq!((first.run.as_str(), first.ranks, first.hosts), ("a", 16, Some(2)));
    assert_eq!(first.settings.algorithm, Some(Algorithm::Ring));
    assert_eq!(first.settings.protocol, Some(Protocol::Ll128));
    assert_eq!(first.launch, Some(Launch::Threads));
    assert_eq!((first.settings.channels, first.settings.threads), (Some(8), Some(512)));
    assert_eq!(first.settings.buffers.simple, Some(Bytes(4 << 20)));
    assert_eq!((first.settings.peer_access, first.in_place), (PeerAccess::Off, true));
    assert_eq!(first.origin.line, 3);
    assert_eq!(second.settings.peer_access, PeerAccess::Net);
    assert!((second.time.as_us() - 1_048_576.0 / 10.49e3).abs() < 1e-6);
    assert_eq!((third.settings.algorithm, third.hosts), (None, None));
}

/// Goal: NCCL_ALGO in a column means what NCCL makes of it for each collective.
#[test]
fn variants_are_read_as_nccl_algo() {
    let text = "collective,variant,nccl_algo_env,ranks,size_bytes,time_us\n\
        all_gather,PAT,allgather:pat;reducescatter:pat,4,1024,10\n\
        all_reduce,PAT,allgather:pat;reducescatter:pat,4,1024,10\n\
        all_reduce,tree,,4,1024,10\n\
        all_reduce,default,,4,1024,10\n\
        all_reduce,baseline,,4,1024,10\n";
    let report = read_texts(&[("t.csv", text)]).unwrap();
    let got: Vec<_> =
        report.measurements.iter().map(|row| (row.settings.algorithm, row.settings.nccl_algo.is_some())).collect();
    assert_eq!(
        got,
        [(Some(Algorithm::Pat), true), (None, true), (Some(Algorithm::Tree), false), (None, false), (None, false),]
    );
    assert!(report.files[0].notes[0].text.contains("`baseline`"));
}

/// Goal: what the file cannot say is taken from the `.toml` beside it.
#[test]
fn the_toml_beside_a_file_completes_it() {
    let log = "1024 256 float sum -1 10.0 0.10 0.19 0 10.0 0.10 0.19 0\n";
    let toml = "topology = \"aws-p5\"\nnccl_version = \"2.26.2+cuda12.8\"\ncollective = \"all_reduce\"\nranks = 16\nnodes = 2\n[env]\nNCCL_ALGO = \"Tree\"\n";
    let report = read_texts(&[("x.log", log), ("x.toml", toml)]).unwrap();
    let row = &report.measurements[0];
    assert_eq!((row.ranks, row.hosts), (16, Some(2)));
    assert_eq!(row.settings.algorithm, Some(Algorithm::Tree));
    assert_eq!(row.settings.nccl.as_deref(), Some("2.26.2"));
    assert_eq!(report.machine(), Some("aws-p5"));
    let error = read_texts(&[("x.log", log)]).unwrap_err().to_string();
    assert!(error.contains("collective = \"all_reduce\"` in x.toml"), "{error}");
    let error = read_texts(&[("all_reduce.log", log)]).unwrap_err().to_string();
    assert!(error.contains("say `ranks = N` in all_reduce.toml"), "{error}");
}

/// Goal: NCCL's count of nodes is that of hosts, but not where its nodes are NVLink domains.
#[test]
fn nodes_of_a_log_are_hosts_outside_of_nvlink_domains() {
    for (domains, hosts) in [("", Some(2)), (" MNNVL 0", Some(2)), (" MNNVL 1", None)] {
        let log = format!(
            "a:1:1 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0{domains}\n\
             # Collective test starting: all_reduce_perf\n\
             1048576 262144 float sum -1 60.0 17.48 32.77 0 60.0 17.48 32.77 0\n"
        );
        let row = read_texts(&[("run.log", &log)]).unwrap().measurements[0].clone();
        assert_eq!((row.ranks, row.hosts), (16, hosts), "{domains}");
    }
}

/// Goal: one file with several runs, old columns, choices, extra columns and lines that fail.
#[test]
fn variants_of_the_text_are_told_apart() {
    let log = "\
# cmd: mpirun -np 2 -x NCCL_PROTO=LL ./build/all_reduce_perf -b 8 -e 64K
# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#   Rank  0 Pid 10 on a device  0 [0x27] A100-SXM4-40GB
#   Rank  1 Pid 11 on b device  0 [0x27] A100-SXM4-40GB
a:10:10 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 1048576.
a:10:10 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}
a:10:10 [0] NCCL INFO AllReduce: 2048 Bytes -> Algo 0 proto 2 time 12.5
# size count type redop time algbw busbw error time algbw busbw error
 1024 256 float sum 10.0 0.10 0.10 2e-07 11 0.09 0.09 2e-07
 2048 512 float sum 10.0 0.20 0.20 2e-07 N/A N/A N/A N/A
 4096 512 float sum 10.0 zero 0.20 2e-07 11 0.09 0.09 2e-07
 99999999999999999999999 1 float sum 1.0 1.0 1.0 0 1.0 1.0 1.0 0
[1,0]<stdout>:# Collective test starting: broadcast_perf
# nThread 2 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) graph: 0
#  Rank  0 Group 0 Pid 10 on a device  0 [0x27] A100-SXM4-40GB
#  Rank  1 Group 0 Pid 10 on a device  1 [0x27] A100-SXM4-40GB
# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp
[1,0]<stdout>: 4096 2048 half none 1 7.0 0.59 0.59 3 1 2 3 4 8.0 0.51 0.51 0 1 2 3 4 2025-01-01 10:00:00
# Out of bounds values : 3 FAILED
";
    let report = read_texts(&[("run.log", log)]).unwrap();
    let file = &report.files[0];
    assert_eq!((file.rows, file.unusable, file.unreadable), (5, 1, 2));
    let lines = |notes: &[Note]| notes.iter().filter_map(|note| note.line).collect::<Vec<_>>();
    assert_eq!((lines(&file.notes), lines(&file.defects)), (vec![11, 12], vec![18, 19]), "{file:?}");
    assert_eq!(file.unfinished, [10]);
    let first = &report.measurements[0];
    assert_eq!((first.collective, first.run.as_str()), (Collective::AllReduce, "run"));
    assert_eq!((first.hosts, first.launch), (Some(2), Some(Launch::Processes)));
    assert_eq!(first.settings.protocol, Some(Protocol::Ll));
    assert_eq!(first.settings.buffers.simple, Some(Bytes(1 << 20)));
    let ring = Choice { algorithm: Algorithm::Ring, protocol: Protocol::Ll, channels: Some(4) };
    assert_eq!(first.chosen, Some(ring));
    let tree = Choice { algorithm: Algorithm::Tree, protocol: Protocol::Simple, channels: None };
    assert_eq!(report.measurements[2].chosen, Some(tree));
    let last = &report.measurements[4];
    assert_eq!((last.collective, last.run.as_str()), (Collective::Broadcast, "run#2"));
    assert_eq!((last.root, last.dtype), (Some(1), Some(DataType::Float16)));
    assert_eq!((last.in_place, last.time), (true, SimDuration::from_us(8.0)));
    assert_eq!(last.launch, Some(Launch::Threads));
    assert_eq!(last.settings.protocol, None);
}

const JSON: &str = r#"{
 "version": "2.19.6", "args": ["./build/reduce_scatter_perf", "-g", "4"],
 "env": ["NCCL_ALGO=Ring", "AWS_SECRET_ACCESS_KEY=hunter2"], "nccl_version": 22809,
 "config": {"nthreads": 1, "ngpus": 2, "graph": "0", "devices": [
  {"rank": 0, "pid": 1, "hostname": "a", "device": 0}, {"rank": 1, "pid": 1, "hostname": "a", "device": 1}]},
 "results": [
  {"size": 1024, "count": 128, "type": "float", "redop": "sum", "root": "-1",
   "out_of_place": {"time": 10.5, "alg_bw": 0.1, "bus_bw": 0.05, "nwrong": "0"},
   "in_place": {"time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": "N/A"}},
  {"size": 2048, "count": 256, "type": "float", "redop": "sum", "root": "-1",
   "out_of_place": {"time": 11, "alg_bw": 0.1, "bus_bw": 0.05, "nwrong": 0},
   "in_place": {"time": 12, "alg_bw": 0.1, "bus_bw": 0.05, "nwrong": 1}}]}
"#;

/// Goal: the JSON of nccl-tests, without the secrets that it holds.
#[test]
fn json_is_read_without_its_secrets() {
    let report = read_texts(&[("r.json", JSON)]).unwrap();
    let file = &report.files[0];
    assert_eq!((file.kind, file.rows, file.unusable), (FileKind::Json, 3, 1));
    assert_eq!(file.env.keys().collect::<Vec<_>>(), ["NCCL_ALGO"]);
    let row = &report.measurements[1];
    assert_eq!(row.collective, Collective::ReduceScatter);
    assert_eq!((row.ranks, row.hosts, row.origin.line), (2, Some(1), 10));
    assert_eq!(row.launch, Some(Launch::SingleThread));
    assert_eq!((row.op, row.root), (Some(ReduceOp::Sum), None));
    assert_eq!(row.settings.algorithm, Some(Algorithm::Ring));
    assert_eq!(row.settings.nccl.as_deref(), Some("2.28.9"));
    assert!(!format!("{report:?}").contains("hunter2"));
}

/// Goal: JSON of ours, and the `.toml` beside any measurements, say which GPUs they are of.
#[test]
fn results_of_ours_name_their_gpus() {
    let own = r#"{"schema": "collcast/bench/1", "assumptions": ["measured by backend nccl on 2 x NVIDIA H200, sm_90; launch graph"],
        "rows": [{"collective": "all_reduce", "ranks": 2, "size_bytes": 1024, "time_us": 10}]}"#;
    let table = "collective,ranks,size_bytes,time_us\nall_reduce,2,1024,10\n";
    let beside = "gpu = \"2 x NVIDIA H200, sm_90, 132 multiprocessors\"\n";
    for files in [&[("a.json", own)][..], &[("b.csv", table), ("b.toml", beside)]] {
        let report = read_texts(files).unwrap();
        let gpus: Vec<&str> = report.files[0].gpus.iter().map(String::as_str).collect();
        assert_eq!((report.measurements.len(), gpus), (1, vec!["NVIDIA H200"]));
    }
}

/// Goal: ranks in JSON are those of all processes, of which it lists the first each; the `.toml` beside it and the rates of the
/// rows win over the list. Calls made in groups or waited for are left out with the reason.
#[test]
fn json_lists_the_first_rank_of_each_process() {
    let json = |config: &str, entries: &[(u32, &str)]| {
        let entries: Vec<String> =
            entries.iter().map(|(rank, host)| format!(r#"{{"rank": {rank}, "hostname": "{host}"}}"#)).collect();
        let half = r#"{"time": 1087.641, "alg_bw": 246.805, "bus_bw": 431.909, "nwrong": 0}"#;
        format!(
            r#"{{"args": ["all_reduce_perf"], "config": {{{config}, "iterations": 20, "devices": [{}]}}, "results": [
            {{"size": 268435456, "out_of_place": {half}, "in_place": {half}, "actual_iterations": 7}}]}}"#,
            entries.join(", ")
        )
    };
    let read = |text: &str, toml: &str| {
        let report = read_texts(&[("r.json", text), ("r.toml", toml)]).map_err(|error| error.to_string())?;
        let row = &report.measurements[0];
        Ok::<_, String>((row.ranks, row.hosts, row.timing.map(|timing| timing.calls), report.files[0].notes.len()))
    };
    let eight: Vec<(u32, &str)> = (0..8).map(|rank| (rank, "a")).collect();
    for (config, entries) in [
        (r#""nthreads": 1, "ngpus": 8"#, &eight[..1]),
        (r#""nthreads": 2, "ngpus": 4"#, &eight[..1]),
        (r#""nthreads": 1, "ngpus": 1"#, &eight),
        (r#""nthreads": 1, "ngpus": 8"#, &eight),
    ] {
        assert_eq!(read(&json(config, entries), ""), Ok((8, Some(1), Some(7), 0)), "{config} {entries:?}");
    }
    let two = json(r#""nthreads": 1, "ngpus": 8"#, &[(0, "a"), (8, "b")]);
    let sixteen = two.replace("431.909", "462.759");
    assert_eq!(read(&sixteen, ""), Ok((16, Some(2), Some(7), 0)));
    assert_eq!(read(&two, "ranks = 8\n"), Ok((8, None, Some(7), 0)));
    assert_eq!(read(&two, ""), Ok((8, None, Some(7), 1)));
    for (config, why) in [
        (r#""ngpus": 8, "aggregated_iterations": 10"#, "(-m 10)"),
        (r#""ngpus": 8, "blocking_collectives": "true""#, "(-z)"),
    ] {
        let error = read(&json(config, &eight), "").unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

/// Goal: wrong values count in whatever form their number is written, also those of the whole run; what is no count is
/// refused and never taken for none.
#[test]
fn wrong_values_in_json_are_counted() {
    let defects = |wrong: &str, bounds: &str| {
        let text = JSON.replace(r#""nwrong": 1}"#, &format!(r#""nwrong": {wrong}}}"#));
        let text = text.trim_end().trim_end_matches('}').to_owned() + &format!(", \"out_of_bounds\": {bounds}}}");
        read_texts(&[("r.json", &text)]).map(|report| report.files[0].defects.clone())
    };
    let okay = r#"{"count": 0, "okay": "true"}"#;
    for none in ["0", "0.000000", "\"0\"", "null", "\"N/A\""] {
        assert_eq!(defects(none, okay), Ok(vec![]), "{none}");
    }
    for (wrong, count) in
        [("4096.000000", "4096"), ("\"4096\"", "4096"), ("6.71089e+07", "67108900"), ("1", "1"), ("0.5", "0.5")]
    {
        let found = defects(wrong, okay).unwrap();
        assert_eq!(found, [Note { line: Some(10), text: format!("{count} values were wrong") }], "{wrong}");
    }
    for bad in ["-1", "\"nan\"", "\"many\"", "true", "[1]", "-1.000000"] {
        let error = defects(bad, okay).unwrap_err().to_string();
        assert!(error.contains("in `nwrong`") && error.contains("r.json:10"), "{bad}: {error}");
    }
    for bounds in [r#"{"count": 3, "okay": "false"}"#, r#"{"count": 3.0, "okay": "true"}"#, r#"{"count": "3"}"#] {
        let found = defects("0", bounds).unwrap();
        assert!(found[0].text.contains("3 values were out of bounds"), "{bounds}: {found:?}");
    }
    for bad in [r#"{"count": -1, "okay": "true"}"#, r#"{"count": 0, "okay": "perhaps"}"#, "3"] {
        let error = defects("0", bad).unwrap_err().to_string();
        assert!(error.contains("in `out_of_bounds`"), "{bad}: {error}");
    }
    let low = r#""average_bus_bandwidth": {"bandwidth": 100.5, "okay": "false"}"#;
    let found = defects("0", &format!("{okay}, {low}")).unwrap();
    assert!(found.len() == 1 && found[0].text.contains("average bus bandwidth of 100.5 GB/s"), "{found:?}");
    // NCCL's last warning is a failure where the run did not come to a good end.
    let errors = r#""errors": ["unhandled system error"]"#;
    assert_eq!(defects("0", &format!("{okay}, {errors}")), Ok(vec![]));
    let found = defects("0", &format!(r#"{{"count": 3, "okay": "false"}}, {errors}"#)).unwrap();
    assert!(found.iter().any(|note| note.text.contains("the run says: unhandled system error")), "{found:?}");
    let healthy = r#""errors": [""], "average_bus_bandwidth": {"bandwidth": 100.5, "okay": "unchecked"}"#;
    assert_eq!(defects("0", &format!("{okay}, {healthy}")), Ok(vec![]));
    // A time that was not printed does not hide what was wrong.
    let text = JSON.replace(r#""nwrong": "N/A""#, r#""nwrong": 7.000000"#);
    let report = read_texts(&[("r.json", &text)]).unwrap();
    assert!(report.files[0].defects[0].text.contains("7 values"), "{:?}", report.files[0].defects);
}

/// Goal: wrong values count in every form that text gives them, what is no count is refused with its line, and an old
/// version's size of errors is not taken for one.
#[test]
fn wrong_values_in_text_are_counted() {
    const NAMES: &str = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
    const END: &str = "# Out of bounds values : 0 OK\n# Avg bus bandwidth : 0.15\n";
    let defects = |names: &str, wrong: &str, end: &str| {
        let text = format!("{names}1024 256 float sum -1 10.0 0.10 0.19 0 10.0 0.10 0.19 {wrong}\n{end}");
        let toml = "collective = \"all_reduce\"\nranks = 16\n";
        let report = read_texts(&[("x.log", &text), ("x.toml", toml)])?;
        let lines = report.files[0].defects.iter().filter_map(|note| note.line).collect::<Vec<_>>();
        Ok::<_, ReadError>((lines, report.files[0].unfinished.clone(), report.files[0].notes.len()))
    };
    let old = NAMES.replace("#wrong", "error");
    for (names, line) in [(NAMES, 2), ("", 1)] {
        for wrong in ["1", "4096", "6.71089e+07", "1e+06", "1.84467e+19", "18446744073709551616", "0.5"] {
            assert_eq!(defects(names, wrong, END), Ok((vec![line], vec![], 0)), "{names:?} {wrong}");
        }
        for none in ["0", "N/A", "n/a"] {
            assert_eq!(defects(names, none, END), Ok((vec![], vec![], 0)), "{names:?} {none}");
        }
        for bad in ["-1", "nan", "-nan", "inf", "1e400", "1e-400", "0x10", "many"] {
            let error = defects(names, bad, END).unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}` in `#wrong`")), "{error}");
            assert!(error.contains(&format!("x.log:{line}")) && error.contains("N/A"), "{error}");
        }
        let failed = ["# Out of bounds values : 3 FAILED", "# Out of bounds values : 3 OK"];
        for end in failed.into_iter().chain(["# Out of bounds values : 2.68435e+08 FAILED"]) {
            assert_eq!(defects(names, "0", end), Ok((vec![line + 1], vec![], 0)), "{end}");
        }
        for end in ["# Out of bounds values : -3 FAILED", "# Out of bounds values :", "# Out of bounds values : nan OK"]
        {
            let error = defects(names, "0", end).unwrap_err().to_string();
            assert!(error.contains("in `Out of bounds values`"), "{error}");
        }
        // A file that ends before these lines says nothing of them.
        assert_eq!(defects(names, "0", ""), Ok((vec![], vec![line], 0)));
    }
    assert_eq!(defects(&old, "2e-07", END), Ok((vec![], vec![], 0)));
    assert_eq!(defects("", "0", END).unwrap().0, defects("", "0e+00", END).unwrap().0);
    // A row that was cut has fewer columns than the names above, and is not read as if these were others.
    let report = read_texts(&[(
        "all_reduce.log",
        &format!("{NAMES}{}", "1024 256 float sum 0 10.0 0.10 0.19 7 10.0 0.10 0.19\n"),
    )]);
    assert!(report.unwrap_err().to_string().contains("12 columns are not the 13 named above"));
}

/// Goal: rows that contradict themselves are left out and told with line and reason; a table in other units is refused.
#[test]
fn rows_that_contradict_themselves_are_told() {
    const OF_REDUCE: &str = "1024 256 float sum -1 10.0 0.10 0.18 0 10.0 0.10 0.18 0";
    const OF_GATHER: &str = "1024 32 float none -1 10.0 0.10 0.09 0 10.0 0.10 0.09 0";
    let read = |head: &str, row: &str, good: &str| {
        let text = format!("{head}{row}\n{good}\n# Out of bounds values : 0 OK\n");
        read_texts(&[("x.log", &text), ("x.toml", "ranks = 8\n")]).map(|report| report.files[0].clone())
    };
    let reduce = "# Collective test starting: all_reduce_perf\n";
    let gather = "# Collective test starting: all_gather_perf\n";
    for (head, row, says) in [
        (reduce, "-2048 512 float sum -1 10.0 0.20 0.36 0 10.0 0.20 0.36 0", "size in bytes is not a whole"),
        (reduce, "2048.5 512 float sum -1 10.0 0.20 0.36 0 10.0 0.20 0.36 0", "size in bytes is not a whole"),
        (reduce, "2048 -512 float sum -1 10.0 0.20 0.36 0 10.0 0.20 0.36 0", "count of elements is not a whole"),
        (reduce, "2048 many float sum -1 10.0 0.20 0.36 0 10.0 0.20 0.36 0", "count of elements is not a whole"),
        (
            reduce,
            "2048 256 float sum -1 10.0 0.20 0.36 0 10.0 0.20 0.36 0",
            "256 elements x 4 bytes (float32) are 1024",
        ),
        (reduce, "2048 512 half sum -1 10.0 0.20 0.36 0 10.0 0.20 0.36 0", "512 elements x 2 bytes (float16) are 1024"),
        (reduce, "2048 512 float sum -1 1000.0 0.20 0.36 0 10.0 0.20 0.36 0", "0.00 GB/s, not its algbw of 0.20"),
        (reduce, "2048 512 float sum -1 10.0 0.20 0.36 0 10.0 20.48 36.0 0", "0.20 GB/s, not its algbw of 20.48"),
        (gather, "2048 512 float none -1 10.0 0.20 0.18 0 10.0 0.20 0.18 0", "x 4 bytes (float32) x 8 ranks are 16384"),
    ] {
        let file = read(head, row, if head == gather { OF_GATHER } else { OF_REDUCE }).unwrap();
        assert_eq!((file.rows, file.unreadable), (2, 1), "{row}: {file:?}");
        let [Note { line: Some(2), text }] = file.notes.as_slice() else { panic!("{row}: {:?}", file.notes) };
        assert!(text.contains(says), "{row}: {text}");
    }
    let units = "# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)\n";
    let names = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
    for (ours, other) in [("(us)", "(ms)"), ("(GB/s)", "(GiB/s)"), ("(B)", "(KB)")] {
        let error = read(&format!("{names}{}", units.replacen(ours, other, 1)), "", OF_REDUCE).unwrap_err().to_string();
        assert!(error.contains(other) && error.contains("x.log:2") && error.contains("times in (us)"), "{error}");
    }
    let error = read(&names.replacen("time", "time(ms)", 1), "", OF_REDUCE).unwrap_err().to_string();
    assert!(error.contains("(ms)") && error.contains("x.log:1"), "{error}");
}

/// Goal: our own predictions are no measurements, in any form, unless asked for.
#[test]
fn predictions_are_refused_unless_allowed() {
    let csv = format!("# collcast: predicted, not measured\n{HEADER}\nall_reduce,8,1024,5\n");
    let column = format!("{HEADER},origin\nall_reduce,8,1024,5,predicted\n");
    let json = r#"{"schema": "collcast/sweep/1", "rows": [
        {"collective": "all_reduce", "ranks": 8, "size_bytes": 1024, "time_us": 5.0}]}"#;
    let log = "# collcast: predicted, not measured\n# Collective test starting: all_reduce_perf\n#  Rank  7 Group  0 Pid 1 on a device  7 [0] H100\n1024 256 float sum -1 5 0.20 0.36 0 5 0.20 0.36 0\n";
    // Without its comments a forecast still has its interval.
    let bare = format!("{HEADER},time_us_low,time_us_high\nall_reduce,8,1024,5,4,6\n");
    let all = [("a.csv", csv.as_str()), ("b.csv", &column), ("c.json", json), ("d.log", log), ("e.csv", &bare)];
    for (name, text) in all {
        let error = read_texts(&[(name, text)]).unwrap_err();
        assert!(matches!(error, ReadError::Predicted { .. }), "{name}: {error}");
        let options = ReadOptions { allow_predicted: true, ..ReadOptions::default() };
        let report = read_texts_with(&[(name, text)], &options).unwrap();
        assert_eq!(report.measurements[0].time, SimDuration::from_us(5.0), "{name}");
    }
    let bench = json.replace("sweep", "bench");
    assert_eq!(read_texts(&[("c.json", &bench)]).unwrap().measurements.len(), 1);
}

/// Goal: each kind of bad input has its own message, with place and a way out.
#[test]
fn bad_input_is_refused_with_its_own_message() {
    let row = |row: &str| format!("{HEADER}\n{row}\n");
    for (name, text, parts) in [
        ("a.csv", row("all_reduse,8,1024,5"), vec!["did you mean `all_reduce`", "a.csv:2"]),
        ("a.csv", row("all_reduce,0,1024,5"), vec!["`0` in `ranks`: zero", "a.csv:2"]),
        ("a.csv", row("all_reduce,8,99999999999999999999,5"), vec!["too large", "a.csv:2", "below 2^63"]),
        ("a.csv", row("all_reduce,8,1024,fast"), vec!["`fast` in `time_us`: not a number"]),
        ("a.csv", row("all_reduce,8,1024,-5"), vec!["negative"]),
        ("a.csv", row("all_reduce,8,1024,1e300"), vec!["over 100 days"]),
        ("a.csv", row("all_reduce,8,1073741824,4.038"), vec!["`4.038` in `time_us`: 465341 GB/s", "a.csv:2"]),
        ("a.csv", row("all_reduce,8,,5"), vec!["cell is empty", "a.csv:2"]),
        ("a.csv", row("all_reduce,8,1024"), vec!["3 cells; the header has 4"]),
        ("a.csv", row("all_reduce,8,1024,0.00"), vec!["1 rows are of 0 B, rounded to 0.00"]),
        ("a.csv", format!("{HEADER}\n"), vec!["a header and no rows"]),
        ("a.csv", format!("{HEADER},ranks\n"), vec!["`ranks` appears twice"]),
        (
            "a.csv",
            "collective,rank,size_bytes,time_us\n".into(),
            vec!["without `ranks`", "is `rank` meant as `ranks`?"],
        ),
        ("a.csv", "kind,us\n".into(), vec!["`collective` and `ranks`", "kind, us"]),
        (
            "a.csv",
            "collective,ranks,nodes,gpus_per_node,size_bytes,time_us\nall_reduce,8,2,8,1,1\n".into(),
            vec!["8 ranks are not 2 nodes times 8 GPUs"],
        ),
        ("a.log", String::new(), vec!["is empty"]),
        ("a.log", "a\0b".into(), vec!["binary", "offset 1"]),
        ("a.log", "hello\n".into(), vec!["no row of nccl-tests"]),
        (
            "a.log",
            "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n".into(),
            vec!["1 choices of NCCL_DEBUG"],
        ),
        (
            "all_reduce.log",
            "# Collective test starting: hypercube_perf\n1024 256 float none -1 5 0.20 0.36 0 5 0.20 0.36 0\n".into(),
            vec!["hypercube_perf"],
        ),
        ("a.json", "{\"results\": [".into(), vec!["not valid JSON", "a.json:1:13", "cut off"]),
        ("a.json", "[1]".into(), vec!["a list of 1"]),
        ("a.xml", "<system version=\"1\">".into(), vec!["topology XML"]),
        ("a.toml", "x = 1".into(), vec!["without a data file"]),
    ] {
        let error = read_texts(&[(name, &text)]).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{text:?}: no {part:?} in {error}");
        }
    }
    let error = read_texts(&[("x.csv", &row("all_reduce,8,8,5")), ("x.toml", "a =\n")]).unwrap_err();
    assert!(error.to_string().contains("x.toml:1"), "{error}");
}

/// Goal: paths and folders that cannot be used say so; a bad file does not hide good ones.
#[test]
fn paths_and_folders_say_what_is_wrong() {
    assert_eq!(read_paths(&[], &ReadOptions::default()), Err(ReadError::NoPaths));
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_owned();
    assert!(matches!(read(path.join("no.log")), Err(ReadError::Missing { .. })));
    assert!(matches!(read(path.clone()), Err(ReadError::EmptyFolder { .. })));
    fs::write(path.join("a.txt"), "hello\n").unwrap();
    let error = read(path.clone()).unwrap_err().to_string();
    assert!(error.contains("none of its 1 files"), "{error}");
    assert!(error.contains("a.txt: text with no row"), "{error}");

    fs::create_dir(path.join("deep")).unwrap();
    fs::create_dir(path.join(".git")).unwrap();
    fs::write(path.join("deep/b.csv"), format!("{HEADER}\nall_reduce,8,1024,5\n")).unwrap();
    fs::write(path.join("deep/c.csv"), format!("{HEADER}\nall_reduce,x,1024,5\n")).unwrap();
    fs::write(path.join("lonely.toml"), "").unwrap();
    let report = read(path.clone()).unwrap();
    let outcomes: Vec<_> = report
        .files
        .iter()
        .map(|file| {
            let name = file.path.file_name().unwrap().to_string_lossy().into_owned();
            let outcome = match &file.outcome {
                Outcome::Read => "read",
                Outcome::Metadata => "metadata",
                Outcome::NotUnderstood(_) => "not understood",
                Outcome::Refused(_) => "refused",
            };
            (name, outcome)
        })
        .collect();
    let expected = [
        (".git", "not understood"),
        ("a.txt", "not understood"),
        ("b.csv", "read"),
        ("c.csv", "refused"),
        ("lonely.toml", "not understood"),
    ];
    assert_eq!(outcomes, expected.map(|(name, outcome)| (name.to_owned(), outcome)));
    assert!(report.files[3].warnings()[0].contains("c.csv:2"));
    // The same file twice is read once.
    let both = [path.join("deep/b.csv"), path];
    let report = read_paths(&both, &ReadOptions::default()).unwrap();
    assert_eq!(report.measurements.len(), 1);
}

/// Goal: what `collcast bench` writes is read without a remark.
#[test]
fn our_own_columns_are_no_news() {
    let text = include_str!("../../tests/data/h200x4_bench/nccl_channels_2.csv");
    let report = read_texts(&[("t.csv", text)]).unwrap();
    assert!(report.files[0].rows > 0 && report.files[0].notes.is_empty(), "{:?}", report.files[0].notes);
}

/// Goal: whatever a file holds, messages quote it at a length that can be read.
#[test]
fn messages_quote_files_at_bounded_length() {
    let long = "x".repeat(50_000);
    let digits = "9".repeat(50_000);
    let row =
        |cells: &str| format!("collective,ranks,size_bytes,time_us,algorithm,variant,nccl_algo_env,p2p\n{cells}\n");
    let good = "all_reduce,4,1024,5,,,,";
    let log = |line: &str| format!("{line}\n1024 256 float sum -1 10.0 0.10 0.15 0 10.0 0.10 0.15 0\n");
    let files = [
        ("a.csv", row(&format!("{long},4,1024,5,,,,"))),
        ("a.csv", row(&format!("all_reduce,{digits},1024,5,,,,"))),
        ("a.csv", row(&format!("all_reduce,4,{long},5,,,,"))),
        ("a.csv", row(&format!("all_reduce,4,1024,{long},,,,"))),
        ("a.csv", row(&format!("all_reduce,4,1024,5,{long},,,"))),
        ("a.csv", row(&format!("all_reduce,4,1024,5,,{long},,"))),
        ("a.csv", row(&format!("all_reduce,4,1024,5,,,{long},"))),
        ("a.csv", row(&format!("all_reduce,4,1024,5,,,,{long}"))),
        ("a.csv", format!("{long},{long}1,ranks\n1,2,3\n")),
        ("a.csv", row(good).replace("p2p", &long)),
        ("a.log", log(&format!("# Collective test starting: {long}"))),
        ("a.log", log(&format!("# size {long} time algbw busbw wrong time algbw busbw wrong"))),
        ("a.log", log(&format!("1024 256 {long} sum -1 10.0 0.10 0.15 0 10.0 0.10 0.15 0"))),
        ("a.log", log(&format!("1024 256 float {long} -1 10.0 0.10 0.15 0 10.0 0.10 0.15 0"))),
        ("a.log", log(&format!("1024 256 float sum -1 10.0 0.10 0.15 {long} 10.0 0.10 0.15 0"))),
        ("a.log", log(&format!("# Out of bounds values : {long}"))),
        ("a.log", log(&format!("x: Test NCCL failure {long}"))),
        ("a.log", log(&format!("# env: NCCL_ALGO={long} NCCL_PROTO={long} NCCL_BUFFSIZE={long}"))),
        ("a.log", log(&format!("#  Rank {long} device {long}"))),
        ("a.json", format!("{{\"{long}\": 1}}")),
        ("a.json", JSON.replace("\"nwrong\": 1}", &format!("\"nwrong\": \"{long}\"}}"))),
        ("a.json", JSON.replace("NCCL_ALGO=Ring", &format!("NCCL_ALGO={long}"))),
        ("a.json", JSON.replace("reduce_scatter_perf", &long)),
    ];
    let tomls = [
        format!("{long} = 1\n{long} = 2\n"),
        format!("ranks = \"{long}\"\n"),
        format!("nccl_version = \"{long}\"\n"),
        format!("[env]\nNCCL_PROTO = \"{long} (so they say)\"\n"),
        format!("ranks = {long}\n"),
        "ranks = 4\ncollective = \"all_reduce\"\n".to_owned(),
    ];
    let whole = tomls.iter().map(|toml| ("a.csv", row(good), toml.as_str()));
    for (name, text, toml) in files.iter().map(|(name, text)| (*name, text.clone(), tomls[5].as_str())).chain(whole) {
        let said = match read_texts(&[(name, &text), ("a.toml", toml)]) {
            Err(error) => vec![error.to_string()],
            Ok(report) => report.files.iter().flat_map(FileReport::warnings).collect(),
        };
        for said in said {
            assert!(said.len() < 1500, "{name}: {} bytes: {}", said.len(), &said[..300]);
        }
    }
}

/// Sizes of the tables written here, with times in us.
const TABLE: [(u64, f64); 3] = [(1 << 20, 25.0), (1 << 24, 120.0), (1 << 28, 1400.0)];

/// One run of 8 ranks as nccl-tests prints it, without the line that names the test; `factor` is busbw over algbw, `halves`
/// 2 for out of place and in place.
fn table(header: &str, factor: f64, halves: usize) -> String {
    let mut text = format!("# {header}\n# Using devices\n");
    for rank in 0..8 {
        text +=
            &format!("#  Rank {rank} Group 0 Pid {} on n1 device {rank} [0000:0{rank}:00] NVIDIA H100\n", 100 + rank);
    }
    text += &format!(
        "#       size         count      type   redop    root  {}\n",
        "time algbw busbw #wrong ".repeat(halves)
    );
    for (size, time) in TABLE {
        let rate = size as f64 / time / 1e3;
        let half = format!("{time:.2} {rate:.2} {:.2} 0 ", rate * factor);
        text += &format!("{size} {} float sum -1 {}\n", size / 4, half.repeat(halves));
    }
    text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 200 \n"
}

const PROCESSES: &str = "nThread 1 nGpus 1 minBytes 8 maxBytes 1 step: 2(factor)";

/// Goal: the collective of a log without `Collective test starting` is the one of its command line, whoever launched it;
/// else of the `.toml` beside it, of the file's name, or the one that was asked for, in this order.
#[test]
fn the_collective_is_found_wherever_it_is_said() {
    let asked = |name: &str, before: &str, collective| {
        let options = ReadOptions { collective, ..ReadOptions::default() };
        let text = format!("{before}\n{}", table(PROCESSES, 1.75, 2));
        read_texts_with(&[(name, &text)], &options).map(|read| read.measurements[0].collective)
    };
    for command in [
        "+ ./build/all_reduce_perf -b 8 -e 256M -f 2 -g 1",
        "# cmd: NCCL_ALGO=Ring all_reduce_perf -b 8",
        "user@n1:~$ ./all_reduce_perf -b 8",
        "mpirun -np 8 -N 8 --bind-to none -x NCCL_DEBUG=INFO ./build/all_reduce_perf -b 8 -e 256M -f 2 -g 1",
        "srun -N1 -n8 /opt/nccl-tests/build/all_reduce_perf_mpi -b 8",
        "bash -c 'all_reduce_perf -b 8'",
    ] {
        for name in ["run.log", "all_gather.log"] {
            assert_eq!(asked(name, command, Some(Collective::Reduce)), Ok(Collective::AllReduce), "{command}");
        }
    }
    for name in ["all_reduce.log", "allreduce-8.txt", "AllReduce_h100.log", "n1-all-reduce.log", "ncclAllReduce2.log"] {
        assert_eq!(asked(name, "", None), Ok(Collective::AllReduce), "{name}");
        let options = ReadOptions { collective: Some(Collective::Reduce), ..ReadOptions::default() };
        let read = read_texts_with(&[(name, &table(PROCESSES, 1.0, 2))], &options).unwrap();
        assert_eq!(read.measurements[0].collective, Collective::Reduce, "{name}");
    }
    let by_name = read_texts(&[("all_reduce.log", &table(PROCESSES, 1.75, 2))]).unwrap();
    assert!(by_name.files[0].notes[0].text.contains("all_reduce by the file's name"), "{:?}", by_name.files[0].notes);
    // Neither a part of a word nor a word of a script is a name.
    for (name, before) in [("gathered_h100.log", ""), ("run.log", "all_reduce_perf done"), ("alltoallv.log", "")] {
        assert!(asked(name, before, None).unwrap_err().to_string().contains("-c all_reduce"), "{name} {before}");
    }
    let sent = asked("all_to_all.log", "# Collective test starting: alltoallv_perf", None).unwrap_err().to_string();
    assert!(sent.contains("none of the known collectives"), "{sent}");
    assert_eq!(asked("run.log", "", Some(Collective::AllReduce)), Ok(Collective::AllReduce));
    let error = asked("run.log", "", None).unwrap_err().to_string();
    for way in ["-c all_reduce", "the file's name", "run.toml"] {
        assert!(error.contains(way), "{error}");
    }
    let error = asked("all_gather.log", "", None).unwrap_err().to_string();
    assert!(error.contains("all_gather (by the file's name)"), "{error}");
    let json = r#"{"results": [], "config": {"devices": [{"rank": 7}]}}"#;
    let error = read_texts(&[("run.json", json)]).unwrap_err().to_string();
    assert!(error.contains("-c all_reduce"), "{error}");
}

/// Goal: of several runs in one file each has the collective of the command line before it, and the NCCL version that was
/// said for it.
#[test]
fn runs_of_one_file_are_told_apart() {
    let said = |texts: [String; 2]| -> Vec<(String, Collective, Option<String>)> {
        let text = texts.map(|before| format!("{before}\n{}", table(PROCESSES, 1.75, 2))).concat();
        let read = read_texts(&[("all_reduce.log", &text)]).unwrap();
        let mut runs: Vec<_> =
            read.measurements.iter().map(|m| (m.run.clone(), m.collective, m.settings.nccl.clone())).collect();
        runs.dedup();
        assert_eq!(read.measurements.len(), 12);
        runs
    };
    let versions =
        |texts: [&str; 2]| said(texts.map(str::to_owned)).into_iter().map(|run| run.2.unwrap()).collect::<Vec<_>>();
    assert_eq!(versions(["NCCL version 2.19.3+cuda12.4", "NCCL version 2.28.9+cuda13.0"]), ["2.19.3", "2.28.9"]);
    let linked = |code| format!("# nccl-tests version 2.17.6 nccl-headers={code} nccl-library={code}");
    assert_eq!(versions([&linked(21903), &linked(22809)]), ["2.19.3", "2.28.9"]);
    assert_eq!(versions([&linked(22809), ""]), ["2.28.9", "2.28.9"]);
    assert_eq!(versions([&(linked(22809) + "\nNCCL version 2.27.3"), ""]), ["2.27.3", "2.27.3"]);
    let two = ["+ ./all_reduce_perf -b 8", "+ ./sendrecv_perf -b 8"];
    let text = format!("{}\n{}{}\n{}", two[0], table(PROCESSES, 1.75, 2), two[1], table(PROCESSES, 1.0, 2));
    let read = read_texts(&[("run.log", &text)]).unwrap();
    let runs: std::collections::BTreeSet<_> =
        read.measurements.iter().map(|m| (m.run.as_str(), m.collective.name())).collect();
    assert_eq!(runs, [("run", "all_reduce"), ("run#2", "send_recv")].into());
}

/// Goal: ranks are processes x threads x GPUs of each, and the launch mode follows; a step in place of a factor, and a
/// table of one half, are read as they are.
#[test]
fn threads_gpus_and_halves_are_those_of_the_header() {
    for (header, launch) in [
        (PROCESSES, Launch::Processes),
        ("nThread 1 nGpus 8 minBytes 8 maxBytes 1 step: 1048576(bytes)", Launch::SingleThread),
        ("nThread 8 nGpus 1 minBytes 8 maxBytes 1 step: 2(factor)", Launch::Threads),
        ("nThread 2 nGpus 4 minBytes 8 maxBytes 1 step: 2(factor)", Launch::SingleThread),
    ] {
        for halves in [1, 2] {
            let read = read_texts(&[("all_reduce.log", &table(header, 1.75, halves))]).unwrap();
            let row = &read.measurements[0];
            assert_eq!((row.ranks, row.hosts, row.launch), (8, Some(1), Some(launch)), "{header}");
            let file = &read.files[0];
            assert_eq!((read.measurements.len(), file.unusable, file.unreadable), (3 * halves, 0, 0), "{file:?}");
        }
        // Rates of a broadcast tell no ranks; one process has as many as its header says.
        let bare: String =
            table(header, 1.0, 2).lines().filter(|l| !l.contains("Rank")).map(|l| format!("{l}\n")).collect();
        let ranks = read_texts(&[("broadcast.log", &bare)]).map(|read| read.measurements[0].ranks).ok();
        assert_eq!(ranks, (launch != Launch::Processes).then_some(8), "{header}");
    }
}

/// A record as NCCL Inspector writes it.
fn inspected(coll: &str, bytes: u64, us: u64, rate: f64, more: &str) -> String {
    format!(
        r#"{{"header":{{"id":"0x7f8c","rank":2,"n_ranks":8,"nnodes":1}},"metadata":{{"inspector_output_format_version":"v4.4"}},"coll_perf":{{"coll":"{coll}","coll_sn":7,"coll_msg_size_bytes":{bytes},"coll_exec_time_us":{us},"coll_algobw_gbs":{rate}{more}}}}}"#
    )
}

/// Goal: the two records that NVIDIA's README shows have the sizes of nccl-tests, for one of which eight ranks count; of
/// calls that are alike the lower quartile is taken, and what a host timed is left out.
#[test]
fn records_of_the_inspector_are_rows() {
    let gpu = r#","coll_timing_source":"kernel_gpu""#;
    let chosen = r#","coll_timing_source":"kernel_gpu","coll_algo":"RING","coll_proto":"LL128""#;
    let mut lines = vec![
        inspected("AllReduce", 17_179_869_184, 61_974, 277.210914, ""),
        inspected("ReduceScatter", 2_147_483_648, 41_057, 418.439467, gpu),
        inspected("AllReduce", 1 << 20, 500, 2.0, r#","coll_timing_source":"collective_cpu""#),
        inspected("AllGather", 1 << 20, 100, 123.0, gpu),
        r#"{"header":{"id":"0x7f8c","rank":2,"n_ranks":8,"nnodes":1},"p2p_perf":{"p2p":"Send"}}"#.to_owned(),
        "{".to_owned(),
    ];
    lines.extend(
        [40, 10, 20, 30].map(|us| inspected("AllGather", 1 << 17, us, (1 << 20) as f64 / us as f64 / 1e3, chosen)),
    );
    let report = read_texts(&[("host-pid1.log", &lines.join("\n"))]).unwrap();
    let file = &report.files[0];
    assert_eq!((file.kind, file.rows, file.unusable, file.unreadable), (FileKind::Json, 3, 1, 1), "{:?}", file.notes);
    let rows: Vec<_> =
        report.measurements.iter().map(|m| (m.collective, m.size.0, m.time, m.chosen.map(|c| c.protocol))).collect();
    let us = SimDuration::from_us;
    assert_eq!(
        rows,
        [
            (Collective::AllReduce, 17_179_869_184, us(61_974.0), None),
            (Collective::AllGather, 1 << 20, us(20.0), Some(Protocol::Ll128)),
            (Collective::ReduceScatter, 8 * 2_147_483_648, us(41_057.0), None),
        ]
    );
    assert!(report.measurements.iter().all(|m| (m.ranks, m.hosts) == (8, Some(1))));
    let said: String = file.warnings().join("\n");
    for word in [
        "host-pid1.log:4: its rate",
        "host-pid1.log:6: no record",
        "1 calls between two ranks",
        "the host timed",
        "6 calls by",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // Set over several lines, as the README has them.
    let value: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    let report = read_texts(&[("a.jsonl", &format!("{pretty}\n{pretty}\n"))]).unwrap();
    assert_eq!((report.measurements.len(), report.measurements[0].origin.line), (1, 1));
}

/// Events of a rank as NCCL's example profiler prints them: the calls between `before` and `after`, each of so many us by the
/// GPU's clock over two channels.
fn profiled(rank: u32, calls: &[(&str, u64, &str, f64)], more: &str) -> String {
    let mut text = "[\n".to_owned();
    for (id, (name, count, dtype, us)) in calls.iter().enumerate() {
        let (start, stop) = (1_765_223_116_927_674_000_u64, 1_765_223_116_927_674_000 + (us * 1e3) as u64);
        let event = |cat: &str, name: &str, ph: &str, args: &str| {
            format!(
                r#"{{"name": "{name}", "cat": "{cat}", "ph": "{ph}", "id": {id}, "pid": 7, "tid": 1, "ts": 5.0{args}}},"#
            )
        };
        let of_call = format!(
            r#", "args": {{"SeqNum": {id}, "CommHash": 99, "Rank": {rank}, "Count": {count}, "Datatype": "{dtype}", "Algorithm": "RING", "Protocol": "SIMPLE", "nChannels": 2}}"#
        );
        // The second channel begins 400 ns later, and the first ends as much earlier.
        let channel = |c: u32, begin: u64, end: u64| {
            format!(r#", "args": {{"Channel": {c}, "StartGpuClk": {begin}, "StopGpuClk": {end}}}"#)
        };
        text += &[
            event("GROUP_API", "Group API", "b", r#", "args": {"groupApiId": 0, "groupDepth": 1}"#),
            r#"{"name": "AllReduce", "cat": "COLL_API", "ph": "b", "id": 0, "ts": 0.0, "args": {"count": 4, "datatype": ncclFloat32, "Stream": 0x4142e90}},"#
                .to_owned(),
            event("COLL", name, "b", &of_call),
            event("GPU", "KernelCh", "b", &channel(0, start, stop - 400)),
            event("GPU", "KernelCh", "e", ""),
            event("GPU", "KernelCh", "b", &channel(1, start + 400, stop)),
            event("GPU", "KernelCh", "e", ""),
            event("COLL", name, "e", ""),
            event("GROUP_API", "Group API", "e", ""),
        ]
        .join("\n");
        text.push('\n');
    }
    text + more + "{}]\n"
}

/// Goal: calls that NCCL's example profiler saw are rows with NCCL's choice, of as many ranks as have files, in one run of
/// all ranks; what is left out is counted, and one rank's file says what lacks.
#[test]
fn events_of_the_example_profiler_are_rows() {
    let folder = TempDir::new().unwrap();
    let file = |rank: u32| folder.path().join(format!("dump_99_{rank}.json"));
    let pair = r#"{"name": "Send", "cat": "P2P", "ph": "b", "id": 0, "ts": 1.0, "args": {"CommHash": 99, "Rank": 0, "Peer": 1, "Count": 8, "Datatype": "ncclFloat32"}},
{"name": "Send", "cat": "P2P", "ph": "e", "id": 0, "ts": 2.0},
"#;
    for rank in 0..4 {
        let late = f64::from(rank);
        let calls = [
            ("AllReduce", 1 << 20, "ncclFloat32", 100.0 + late),
            ("AllReduce", 1 << 20, "ncclFloat32", 200.0),
            ("AllGather", 1 << 20, "ncclInt8", 50.0),
            ("ReduceScatter", 1 << 20, "ncclBfloat16", 60.0),
        ];
        fs::write(file(rank), profiled(rank, &calls, pair)).unwrap();
    }
    let report = read_paths(&[folder.path().to_owned()], &ReadOptions::default()).unwrap();
    let rows: Vec<_> = (report.measurements.iter())
        .map(|row| (row.collective.name(), row.ranks, row.size.0, row.time.as_us(), row.dtype.map(DataType::name)))
        .collect();
    // Of the all-reduces, the third shortest of eight.
    let expected = [
        ("all_reduce", 4, 4 << 20, 102.0, Some("float32")),
        ("all_gather", 4, 4 << 20, 50.0, None),
        ("reduce_scatter", 4, 8 << 20, 60.0, Some("bfloat16")),
    ];
    assert_eq!(rows, expected);
    let row = &report.measurements[0];
    let chosen = row.chosen.unwrap();
    assert_eq!((row.run.as_str(), row.origin.line, chosen.channels), ("dump", 4, Some(2)));
    assert_eq!((chosen.algorithm.name(), chosen.protocol.name()), ("ring", "simple"));
    assert_eq!((report.files.len(), report.files[0].rows, report.files[3].rows), (4, 3, 0));
    let told = report.files.iter().flat_map(FileReport::warnings).collect::<Vec<_>>().join("\n");
    assert!(told.contains("16 calls by the profiler plugin of NCCL, of 3 kinds"), "{told}");
    assert!(told.contains("1 calls are left out: they are between two ranks"), "{told}");
    // Of some ranks' files the highest says how many there are.
    let some = read_paths(&[file(1), file(3)], &ReadOptions::default()).unwrap();
    assert!(
        some.measurements[0].ranks == 4
            && some.files[0].notes.iter().any(|n| n.text.contains("2 of the ranks up to 3"))
    );
    let error = read_paths(&[file(0)], &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("give those of all ranks"), "{error}");
    fs::write(folder.path().join("dump_99_0.toml"), "ranks = 8\n").unwrap();
    let told = read_paths(&[file(0)], &ReadOptions::default()).unwrap();
    assert_eq!((told.measurements[0].ranks, told.measurements[1].size.0), (8, 8 << 20));
}

/// Goal: calls without a clock of the GPU, made in groups or by copy engines are left out by name, as in the example of the
/// plugin's documentation.
#[test]
fn what_a_profiler_does_not_time_is_left_out() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nccl_profiler_readme.json");
    let error = read_paths(&[readme], &ReadOptions::default()).unwrap_err().to_string();
    assert!(
        error.contains("no call in it was timed by a GPU") && error.contains("NCCL_PROFILE_EVENT_MASK=66"),
        "{error}"
    );
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("dump-host-1234.txt");
    let one = profiled(3, &[("AllReduce", 1 << 20, "ncclFloat32", 100.0)], "");
    let body: Vec<&str> = one.lines().filter(|line| line.contains("\"COLL\"") || line.contains("\"GPU\"")).collect();
    let body = body.join("\n");
    let group =
        |ph: &str| format!("{{\"name\": \"Group\", \"cat\": \"GROUP\", \"ph\": \"{ph}\", \"id\": 0, \"ts\": 1.0}},\n");
    let copies = "{\"name\": \"AllGather\", \"cat\": \"CE_COLL\", \"ph\": \"b\", \"id\": 0, \"ts\": 1.0},\n";
    let open = body.lines().next().unwrap();
    // A call alone; two in one group; one that the file cuts.
    let text =
        format!("[\n{}{body}\n{}{}{body}\n{body}\n{}{copies}{open}\n", group("b"), group("e"), group("b"), group("e"));
    fs::write(&path, text).unwrap();
    let report = read_paths(&[path], &ReadOptions::default()).unwrap();
    assert_eq!((report.measurements.len(), report.measurements[0].ranks), (1, 4));
    let told = report.files[0].warnings().join("\n");
    for why in [
        "2 calls are left out: they were made in one group",
        "1 calls are left out: copy engines",
        "1 calls are left out: they have no end",
    ] {
        assert!(told.contains(why), "{why}: {told}");
    }
}

/// Goal: a run whose times are not those of calls is left out with the reason, and one that failed by its own words is
/// defective.
/// Method: a good log, with one line more or other devices.
#[test]
fn what_a_log_says_against_its_rows_is_heard() {
    const START: &str = "# Collective test starting: all_reduce_perf\n";
    let good = format!("{START}{}", table(PROCESSES, 1.75, 2));
    let read = |text: &str| read_texts(&[("run.log", text)]);
    assert!(read(&good).unwrap().files[0].defects.is_empty());

    // Two hosts at once, each with its own ranks 0 to 7: lines in turn, devices one after the other, tables alone mixed.
    let other = good.replace(" on n1 ", " on n2 ").replace("Pid 1", "Pid 2");
    let in_turn: String = good.lines().zip(other.lines()).map(|(a, b)| format!("{a}\n{b}\n")).collect();
    let (head, rows) = good.split_at(good.find("1048576 ").unwrap());
    let (other_head, other_rows) = other.split_at(other.find("1048576 ").unwrap());
    let rows: String = rows.lines().zip(other_rows.lines()).map(|(a, b)| format!("{a}\n{b}\n")).collect();
    for mixed in [in_turn, format!("{head}{other_head}{rows}")] {
        let error = read(&mixed).unwrap_err().to_string();
        assert!(error.contains("several runs at once") && error.contains("MPI=1"), "{error}");
    }
    // A run that ended before its table is no other run at once.
    let report = read(&format!("{other_head}{good}")).unwrap();
    assert_eq!((report.measurements.len(), report.files[0].defects.len()), (6, 0));

    for (line, says) in [
        ("# Avg bus bandwidth    : 113.884 FAILED", "113.884 FAILED"),
        ("h0: Test timeout (60s) common.cu:371", "Test timeout"),
        (" .. h0 pid 1000: Test failure common.cu:583", "Test failure"),
    ] {
        let text = good.replace("# Avg bus bandwidth    : 200 ", line);
        let report = read(&text).unwrap();
        let [defect] = report.files[0].defects.as_slice() else { panic!("{line}: {:?}", report.files[0].defects) };
        assert!(defect.text.contains(says), "{defect:?}");
    }

    let loops = |more: &str| good.replace(PROCESSES, &format!("{PROCESSES} warmup iters: 5 {more}"));
    for (text, says) in [
        (loops("iters: 20 agg iters: 10"), "10 calls in one group"),
        (loops("iters: 20\n# Blocking Enabled: wait for completion after each collective"), "the host waits"),
        (format!("# cmd: ./all_reduce_perf -z 1\n{good}"), "the host waits"),
    ] {
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    for (text, calls, registered) in [
        (loops("iters: 20 agg iters: 1"), None, false),
        (loops("iters: 100 agg iters: 1"), Some(100), false),
        (format!("# cmd: ./all_reduce_perf -n 1 -R 2\n{good}"), Some(1), true),
        (format!("# cmd: ./all_reduce_perf -R 0\n{good}"), None, false),
    ] {
        let row = read(&text).unwrap().measurements.remove(0);
        assert_eq!((row.timing.map(|timing| timing.calls), row.settings.registered), (calls, registered), "{text}");
    }

    // Containers that are all called alike.
    let again: String = (8..16)
        .map(|rank| {
            format!(
                "#  Rank {rank} Group 0 Pid {} on n1 device {} [0000:0{}:00] NVIDIA H100\n",
                100 + rank,
                rank - 8,
                rank - 8
            )
        })
        .collect();
    let alike = table(PROCESSES, 1.875, 2).replace("#       size", &format!("{again}#       size"));
    let report = read(&format!("{START}{alike}")).unwrap();
    assert_eq!((report.measurements[0].ranks, report.measurements[0].hosts), (16, None));
    assert!(report.files[0].notes[0].text.contains("nodes = N"), "{:?}", report.files[0].notes);
}

/// Goal: what launchers put before lines, and what `NCCL_DEBUG` writes into rows, takes no row away.
#[test]
fn tags_and_debug_lines_take_no_row_away() {
    let good = format!("# Collective test starting: all_reduce_perf\n{}", table(PROCESSES, 1.75, 2));
    let times = |text: &str| {
        let report = read_texts(&[("run.log", text)]).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!((report.files[0].unreadable, report.files[0].notes.len()), (0, 0), "{:?}", report.files[0]);
        let row = &report.measurements[0];
        assert_eq!((row.ranks, row.hosts, row.launch), (8, Some(1), Some(Launch::Processes)));
        report.measurements.iter().map(|row| (row.size, row.in_place, row.time)).collect::<Vec<_>>()
    };
    for tag in [
        "node01: ",
        "[0] ",
        "2024-05-01 12:00:00 ",
        "[2024-05-01 12:00:00] ",
        "12:00:01 ",
        "[pod/nccl-launcher/mpi] ",
        "[prterun-multi-node-nccl-test-launcher-17@1,0]<stdout>: ",
        "2024-05-01T12:00:00.123456Z [1,0]<stdout>:",
        "\u{1b}[36mnccl-1  |\u{1b}[0m ",
        "\u{1b}[?2004l\r",
        "\u{1b}]0;node01: title\u{7}\u{1b}(B\u{1b}[2K",
        "[pod/n-0/nccl] 2024-05-01T12:00:00.123456789Z ",
        "2024-05-01T12:00:00.123456789Z stdout F ",
        "May  1 12:00:00 node01 slurmd[123]: ",
        "May 11 12:00:00 node01 nccl: ",
        "2024-05-01T12:00:00+0000 node01 slurmd[123]: ",
        "nccl-launcher-x7k2p nccl ",
        "10-0-0-1 2024-05-01 12:00:00,123 INFO ",
        "[default0]:",
    ] {
        let tagged: String = good.lines().map(|line| format!("{tag}{line}\n")).collect();
        assert_eq!(times(&tagged), times(&good), "{tag}");
    }
    let reset = good.replace('\n', "\u{1b}[0m\n");
    assert_eq!(times(&reset), times(&good));
    let line = |line: &str| serde_json::json!({"log": format!("{line}\n"), "stream": "stdout", "time": ""}).to_string();
    let docker: Vec<String> = reset.lines().map(line).collect();
    assert_eq!(times(&docker.join("\n")), times(&good));
    let debug = "n-1:7:8 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}\n";
    let before = good.replace(" sum -1 ", &format!(" sum -1{debug}{debug}"));
    let halves = before.replace(" 0 25.00", &format!(" 0{debug}25.00"));
    let behind = good.replace(" 0 \n", &format!(" 0{debug}"));
    let rows = good.replace("\n1048576 ", &format!("\n{} 1048576 ", debug.trim_end()));
    assert_ne!(rows, good);
    for text in [&before, &halves, &behind, &rows] {
        assert_eq!(times(text), times(&good), "{text}");
        let row = read_texts(&[("run.log", text)]).unwrap().measurements.remove(0);
        assert_eq!(row.chosen.map(|choice| choice.algorithm), Some(Algorithm::Ring));
    }
}

/// Goal: rows that two programs write at once are those of none, whatever their tags; the times of one clock are no two tags.
#[test]
fn tables_of_two_programs_are_not_mixed() {
    let good = format!("# Collective test starting: all_reduce_perf\n{}", table(PROCESSES, 1.75, 2));
    let head: String = good.lines().filter(|line| !line.contains(" device ")).map(|line| format!("{line}\n")).collect();
    let at_once = |tags: &dyn Fn(usize) -> [String; 2]| {
        let twice = head.lines().enumerate().flat_map(|(at, line)| tags(at).map(|tag| format!("{tag}{line}\n")));
        let cut: String = twice.filter(|line| !line.contains("Avg bus")).collect();
        read_texts(&[("run.log", &cut)]).unwrap_err().to_string()
    };
    let pods = |_: usize| ["nccl-a nccl ".to_owned(), "nccl-b nccl ".to_owned()];
    let ranks = |at: usize| ["0", "1"].map(|rank| format!("12:00:{at:02} [default{rank}]:"));
    for error in [at_once(&pods), at_once(&ranks)] {
        assert!(error.contains("several runs at once"), "{error}");
    }
    let clock: String = good.lines().enumerate().map(|(at, line)| format!("[12:00:{at:02}] {line}\n")).collect();
    assert!(read_texts(&[("run.log", &clock)]).unwrap().files[0].defects.is_empty());
}

/// Goal: a log in UTF-16, in either order of bytes, is read as the same in UTF-8.
#[test]
fn utf_16_is_read() {
    let good =
        format!("# Collective test starting: all_reduce_perf\n{}", table(PROCESSES, 1.75, 2)).replace('\n', "\r\n");
    let rows = |bytes: &[u8]| {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("run.log");
        fs::write(&path, bytes).unwrap();
        let report = read(path).unwrap_or_else(|error| panic!("{error}"));
        report.measurements.iter().map(|row| (row.size, row.in_place, row.time)).collect::<Vec<_>>()
    };
    let with_mark = format!("\u{feff}{good}");
    let little: Vec<u8> = with_mark.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = with_mark.encode_utf16().flat_map(u16::to_be_bytes).collect();
    assert_eq!([rows(&little), rows(&big)], [rows(good.as_bytes()), rows(good.as_bytes())]);
}

/// Goal: variables that stand in several lines before a run are all its own, and none of them is the next run's.
#[test]
fn lines_of_variables_add_up() {
    let run = |env: &str, time: f64| {
        format!(
            "{env}# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 4 minBytes 8\n\
             1024 256 float sum -1 {time} 0.10 0.15 0 {time} 0.10 0.15 0\n# Out of bounds values : 0 OK\n"
        )
    };
    let two = run("# env: NCCL_ALGO=Ring\n# env: NCCL_PROTO=Simple\n", 10.0);
    let text = two + &run("", 10.1) + &run("# env: NCCL_PROTO=LL\n", 10.2);
    let report = read_texts(&[("a.log", &text)]).unwrap();
    let forced: Vec<_> =
        report.measurements.iter().map(|row| (row.settings.algorithm, row.settings.protocol)).collect();
    let ring = (Some(Algorithm::Ring), Some(Protocol::Simple));
    let ll = (None, Some(Protocol::Ll));
    // Out of place and in place.
    assert_eq!(forced, [ring, ring, ring, ring, ll, ll]);
}
