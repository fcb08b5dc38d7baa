//! Files that were changed: no reader panics, says more than can be read, or takes wrong results for right ones.

#[path = "../../sim/tests/common/fuzzing.rs"]
mod fuzzing;

use std::fs;
use std::path::Path;

use collcast_hwbackend::read::{FileReport, ReadError, ReadOptions, ReadReport, read_paths};
use fuzzing::fuzz;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tempfile::TempDir;

/// A valid file of each reader, with the `.toml` that it needs.
struct Sample {
    name: &'static str,
    text: &'static str,
    toml: &'static str,
}

const fn sample(name: &'static str, text: &'static str, toml: &'static str) -> Sample {
    Sample { name, text, toml }
}

const JSON: &str = r#"{"version": 1, "args": ["./build/all_reduce_perf", "-g", "2"], "env": ["NCCL_ALGO=Ring"],
 "nccl_version": 22809, "config": {"nthreads": 1, "ngpus": 2, "graph": 0, "devices": [
 {"rank": 0, "group": 0, "pid": 1, "hostname": "a", "device": 0}, {"rank": 1, "group": 0, "pid": 1, "hostname": "a", "device": 1}]},
 "results": [
{"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": {"time": 10.5, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": 0.000000}, "in_place": {"time": 10.5, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": 0.000000}},
{"size": 2048, "count": 512, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": {"time": 11, "alg_bw": 0.2, "bus_bw": 0.2, "nwrong": 0.000000}, "in_place": {"time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": 0.000000}}],
 "out_of_bounds": {"count": 0, "okay": "true"}, "average_bus_bandwidth": {"bandwidth": 0.1, "okay": "unchecked"}}
"#;

const CSV: &str = "# a comment\nrun,collective,ranks,nodes,algorithm,protocol,launch,size_bytes,time_us,algbw_gbps,busbw_gbps,in_place,wrong
a,all_reduce,8,1,ring,ll,graph,1024,10.0,0.10,0.18,0,0\na,all_reduce,8,1,ring,ll,graph,1024,11.0,0.09,0.16,1,0
b,alltoall,8,1,,,,1MiB,100,10.49,9.18,0,0\n";

const OWN: &str = r#"{"schema": "collcast/bench/1", "assumptions": ["measured by backend nccl"], "rows": [
 {"collective": "all_reduce", "ranks": 8, "size_bytes": 1024, "time_us": 5.0, "algorithm": "ring"},
 {"collective": "all_gather", "ranks": 8, "size_bytes": 2048, "time_us": 6.5, "algbw_gbps": 0.31, "busbw_gbps": 0.27}]}
"#;

macro_rules! data {
    ($name:literal) => {
        include_str!(concat!("data/", $name))
    };
}

const INSPECTOR: &str = r#"{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.0","hostname":"h","pid":1},"coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":277.210914,"coll_busbw_gbs":485.119099}}
{"header":{"id":"0xe6","rank":4,"n_ranks":8,"nnodes":1},"coll_perf":{"coll":"ReduceScatter","coll_algo":"RING","coll_proto":"SIMPLE","coll_sn":1,"coll_msg_size_bytes":2147483648,"coll_exec_time_us":41057,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":418.439467,"coll_busbw_gbs":366.134533}}
"#;

const PROFILER: &str = r#"[
{"name": "Group API", "cat": "GROUP_API", "ph": "b", "id": 0, "ts": 1.0},
{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "ts": 1.0, "args": {"SeqNum": 0, "CommHash": 99, "Rank": 3, "Count": 1048576, "Datatype": "ncclFloat32", "Algorithm": "RING", "Protocol": "SIMPLE", "nChannels": 1}},
{"name": "KernelCh", "cat": "GPU", "ph": "b", "id": 0, "ts": 1.0, "args": {"Channel": 0, "StartGpuClk": 1000000, "StopGpuClk": 1100000}},
{"name": "KernelCh", "cat": "GPU", "ph": "e", "id": 0, "ts": 2.0},
{"name": "AllReduce", "cat": "COLL", "ph": "e", "id": 0, "ts": 2.0},
{"name": "Group API", "cat": "GROUP_API", "ph": "e", "id": 0, "ts": 2.0},
{}]
"#;

const SAMPLES: [Sample; 11] = [
    sample("all_reduce_check.log", data!("all_reduce_check.log"), ""),
    sample("G4_all_gather_Ring_LL128.log", data!("G4_all_gather_Ring_LL128.log"), ""),
    sample("t2_p2pch16_sendrecv.log", data!("t2_p2pch16_sendrecv.log"), ""),
    sample(
        "coreweave_allreduce.log",
        data!("coreweave_a100_4n_allreduce_sharp_2023.log"),
        data!("coreweave_a100_4n_allreduce_sharp_2023.toml"),
    ),
    sample(
        "shahizat_allreduce.log",
        data!("shahizat_h100_2n_allreduce_default.log"),
        data!("shahizat_h100_2n_allreduce_default.toml"),
    ),
    sample("run.json", JSON, ""),
    sample("run.csv", CSV, ""),
    sample(
        "azure_allreduce.csv",
        data!("azure_nd_h100_v5_1n_allreduce.csv"),
        data!("azure_nd_h100_v5_1n_allreduce.toml"),
    ),
    sample("own.json", OWN, ""),
    sample("host-pid1.log", INSPECTOR, ""),
    sample("dump_99_3.json", PROFILER, ""),
];

/// Those that count wrong values.
const COUNTED: [usize; 5] = [0, 1, 2, 5, 6];

fn read(sample: &Sample, bytes: &[u8]) -> Result<ReadReport, ReadError> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(sample.name);
    fs::write(&path, bytes).unwrap();
    if !sample.toml.is_empty() {
        fs::write(path.with_extension("toml"), sample.toml).unwrap();
    }
    read_paths(&[path], &ReadOptions::default())
}

/// What a reader says of any file can be read, and what it gives can be meant.
fn check_bounded(result: &Result<ReadReport, ReadError>, bytes: usize) {
    match result {
        Err(error) => assert!((1..2000).contains(&error.to_string().len()), "{error}"),
        Ok(report) => {
            assert!(report.measurements.len() <= bytes && !report.measurements.is_empty());
            for row in &report.measurements {
                assert!(row.ranks > 0 && row.time.0 > 0 && row.size.0 > 0, "{row:?}");
            }
            for said in report.files.iter().flat_map(FileReport::warnings) {
                assert!(said.len() < 2000, "{said}");
            }
        }
    }
}

/// A token or number that a program, an editor or a full disk may leave.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "",
            "0",
            "-1",
            "1",
            "nan",
            "-nan",
            "inf",
            "N/A",
            "null",
            "true",
            "1e400",
            "1e-400",
            "4294967296",
            "\"",
            "18446744073709551615",
            "18446744073709551616",
            "#",
            ",",
            "{",
            "]",
            "float",
            "sum",
            "size",
            "time",
            "(ms)",
            "\u{1b}[31m",
            "\u{202e}",
            "::error::",
            "\u{feff}",
            "NCCL_ALGO=^",
            "Rank",
            "device",
            "=\n",
            "\r",
        ])
        .prop_map(str::to_owned),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        (1..40_000usize).prop_map(|length| "x".repeat(length)),
    ]
}

#[derive(Clone, Debug)]
enum Edit {
    Byte(Index, u8),
    /// In place of a word, as a language of blanks, commas and quotes has them.
    Word(Index, String),
    Cut(Index),
    Remove(Index),
    Repeat(Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let index = any::<Index>;
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Edit::Byte(at, byte)),
        (index(), token()).prop_map(|(at, token)| Edit::Word(at, token)),
        index().prop_map(Edit::Cut),
        index().prop_map(Edit::Remove),
        (index(), index()).prop_map(|(from, to)| Edit::Repeat(from, to)),
    ]
}

/// Begin and end of each word.
fn words(text: &[u8]) -> Vec<(usize, usize)> {
    let is_part = |byte: u8| !byte.is_ascii_whitespace() && !b",:;\"{}[]".contains(&byte);
    let mut words = Vec::new();
    let mut begin = None;
    for (at, &byte) in text.iter().chain(b" ").enumerate() {
        match (begin, is_part(byte)) {
            (None, true) => begin = Some(at),
            (Some(from), false) => {
                words.push((from, at));
                begin = None;
            }
            _ => {}
        }
    }
    words
}

fn applied(text: &[u8], edit: &Edit) -> Vec<u8> {
    let mut text = text.to_vec();
    if text.is_empty() {
        return text;
    }
    let mut lines: Vec<Vec<u8>> = text.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    match edit {
        Edit::Byte(at, byte) => {
            let at = at.index(text.len());
            text[at] = *byte;
        }
        Edit::Word(at, token) => {
            let words = words(&text);
            if !words.is_empty() {
                let (from, to) = words[at.index(words.len())];
                text.splice(from..to, token.bytes());
            }
        }
        Edit::Cut(at) => text.truncate(at.index(text.len())),
        Edit::Remove(at) => {
            lines.remove(at.index(lines.len()));
            text = lines.concat();
        }
        Edit::Repeat(from, to) => {
            let line = lines[from.index(lines.len())].clone();
            lines.insert(to.index(lines.len()), line);
            text = lines.concat();
        }
    }
    text
}

/// Where a file counts wrong values: begin and end of each `0` or `N/A`.
fn counts(sample: &Sample) -> Vec<(usize, usize)> {
    let is_json = Path::new(sample.name).extension().is_some_and(|extension| extension == "json");
    if is_json {
        let places = sample.text.match_indices("\"nwrong\": ").map(|(at, key)| at + key.len());
        return places.map(|at| (at, at + sample.text[at..].find(['}', ',']).unwrap())).collect();
    }
    let mut places = Vec::new();
    let mut begin = 0;
    let table = sample.text.contains(",wrong\n");
    for line in sample.text.split_inclusive('\n') {
        if table && !line.starts_with('#') && !line.contains("wrong") {
            places.push((begin + line.rfind(',').unwrap() + 1, begin + line.trim_end().len()));
        }
        let cells = words(line.as_bytes());
        let named = sample.text.contains("#wrong") && line.trim_start().starts_with(|c: char| c.is_ascii_digit());
        if !table && named && cells.len() == 13 {
            places.extend([8, 12].map(|at| (begin + cells[at].0, begin + cells[at].1)));
        }
        begin += line.len();
    }
    places
}

/// C's `%g`: six digits, and an exponent of at least two.
fn c_general(value: f64) -> String {
    let shown = format!("{value:.5e}");
    let (mantissa, exponent) = shown.split_once('e').unwrap();
    let exponent: i32 = exponent.parse().unwrap();
    let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
    match exponent {
        0..6 => format!("{}", value.round().max(1.0)),
        _ => format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Numbers that are not 0, in the forms that they are printed in, and what is none.
fn not_zero() -> impl Strategy<Value = String> {
    let count = prop_oneof![1..1_000_000u64, 1..u64::MAX];
    prop_oneof![
        count.clone().prop_map(|count| count.to_string()),
        count.clone().prop_map(|count| format!("{count}.000000")),
        count.clone().prop_map(|count| c_general(count as f64)),
        count.clone().prop_map(|count| format!("-{count}")),
        count.prop_map(|count| format!("{count}00000000000000000000")),
        (1e-300..1.0).prop_map(|part: f64| format!("{part:e}")),
        select(vec!["-1", "nan", "-nan", "inf"]).prop_map(str::to_owned),
    ]
}

/// Goal: no change of a valid file makes a reader panic, or say more than can be read.
#[test]
fn changed_files_are_read_or_refused() {
    fuzz(384, &(0..SAMPLES.len(), prop::collection::vec(edit(), 1..6)), |(which, edits)| {
        let sample = &SAMPLES[which];
        let bytes = edits.iter().fold(sample.text.as_bytes().to_vec(), |text, edit| applied(&text, edit));
        check_bounded(&read(sample, &bytes), bytes.len());
        Ok(())
    });
}

/// Goal: a file that counts wrong values never reads as correct, however the count is written and whatever else
/// of the file is lost.
#[test]
fn wrong_values_never_read_as_correct() {
    let values =
        (select(COUNTED.to_vec()), any::<Index>(), not_zero(), any::<bool>(), prop::option::of(any::<Index>()));
    fuzz(384, &values, |(which, place, count, quoted, lost)| {
        let sample = &SAMPLES[which];
        let places = counts(sample);
        let (from, to) = places[place.index(places.len())];
        let is_json = sample.name.ends_with(".json");
        let count = if quoted && is_json { format!("\"{count}\"") } else { count };
        let mut text = sample.text.to_owned();
        text.replace_range(from..to, &count);
        if let Some(lost) = lost.filter(|_| !is_json) {
            // Another line, as where a log was pasted in part; not those above the table, which tell what its columns are.
            let begin = text[..from].rfind('\n').map_or(0, |at| at + 1);
            let after: Vec<&str> = text[begin..].split_inclusive('\n').collect();
            let at = 1 + lost.index(after.len());
            let kept: String = after.iter().enumerate().filter(|&(i, _)| i != at).map(|(_, line)| *line).collect();
            text = text[..begin].to_owned() + &kept;
        }
        let result = read(sample, text.as_bytes());
        check_bounded(&result, text.len());
        if let Ok(report) = result {
            prop_assert!(
                !report.files[0].defects.is_empty(),
                "{}: {count} in bytes {from} to {to} reads as correct",
                sample.name
            );
        }
        Ok(())
    });
}

/// Goal: the samples are what the properties above change: valid, and with counts to change.
#[test]
fn samples_are_valid() {
    for sample in &SAMPLES {
        let report = read(sample, sample.text.as_bytes()).unwrap();
        assert!(report.files[0].rows > 0 && report.files[0].defects.is_empty(), "{}", sample.name);
    }
    let counted = COUNTED.map(|which| counts(&SAMPLES[which]).len());
    assert!(counted[..3].iter().all(|&count| count >= 6), "{counted:?}");
    assert_eq!(counted[3..], [4, 3]);
}

/// Traces of a profiler and of a flight recorder, in every form that a value takes.
const TRACES: [&str; 2] = [
    r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
"distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}], "nccl_version": "2.28.9"},
"traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 7, "tid": 7, "ts": 100.5, "dur": 50.0},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": 101.0, "dur": 4.5, "args": {"correlation": 12}},
{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 110, "dur": 20.25, "args": {"correlation": 12, "stream": 7}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 7, "tid": 7, "ts": 106.0, "dur": 4.5, "args": {"correlation": 13}},
{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "pid": 0, "tid": 17, "ts": 120, "dur": 30.0, "args": {"correlation": 13, "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 2, "dtype": "BFloat16", "In split size": "[]", "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, ..., 1]"}},
{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 200.0}],
"traceName": "x"}"#,
    r#"{"version": "2.10", "comm_lib_version": "2.28.9", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
"entries": [
{"record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 7, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce", "time_created_ns": 1795636226417227804, "duration_ms": 0.5, "input_sizes": [[3, 4]], "input_dtypes": ["Float"], "output_sizes": [[3, 4]], "state": "completed", "is_p2p": false},
{"record_id": 2, "process_group": ["0", "default_pg"], "collective_seq_id": 8, "p2p_seq_id": 1, "profiling_name": "nccl:send 0->1", "input_sizes": [3], "input_dtypes": ["Half"], "output_sizes": [], "state": "scheduled", "is_p2p": true, "duration_ms": null}]}"#,
];

/// Goal: a changed trace is read or refused, says no more than can be read, and holds no more than its text.
#[test]
fn changed_traces_are_read_or_refused() {
    let folder = TempDir::new().unwrap();
    fuzz(512, &(0..TRACES.len(), prop::collection::vec(edit(), 0..6)), |(which, edits)| {
        let bytes = edits.iter().fold(TRACES[which].as_bytes().to_vec(), |text, edit| applied(&text, edit));
        let path = folder.path().join("trace_1.json");
        fs::write(&path, &bytes).unwrap();
        match collcast_hwbackend::trace::read(&path) {
            Err(error) => prop_assert!((1..2000).contains(&error.to_string().len()), "{error}"),
            Ok(trace) => {
                prop_assert!(trace.calls.len() <= bytes.len() && trace.notes.iter().all(|note| note.len() < 500));
                if let collcast_hwbackend::trace::Recorded::Kernels(kernels) = &trace.recorded {
                    prop_assert!(kernels.activities.iter().all(|a| a.begin <= a.end));
                }
            }
        }
        Ok(())
    });
    for (text, calls) in TRACES.iter().zip([1, 2]) {
        let path = folder.path().join("whole_1.json");
        fs::write(&path, text).unwrap();
        let trace = collcast_hwbackend::trace::read(&path).unwrap();
        assert_eq!((trace.rank, trace.calls.len(), trace.notes.len()), (Some(1), calls, 0));
        assert_eq!(trace.nccl.as_deref(), Some("2.28.9"));
    }
}
