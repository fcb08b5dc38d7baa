//! Goal: `collcast trace` says of recorded steps what was planted in them, and of a healthy machine nothing bad.
//! Method: steps that PyTorch 2.11 recorded on two H100 (tests/data/SOURCES.md): data parallel, the same with a rank that does
//! 40 more products, and fully sharded, with times measured without a profiler; dumps of a flight recorder, from which a
//! call is taken.

use std::path::{Path, PathBuf};

use crate::common::collcast;
use collcast::SiteSpec;
use collcast::trace::{Judgement, Outcome, Request, trace};
use collcast_sim::collective::{Collective, DataType};
use collcast_sim::doctor::{Fault, Part, Question, Timed, curve};
use collcast_sim::ids::Rank;
use collcast_sim::predict::Choice;
use collcast_sim::schedule::Call;
use collcast_sim::units::Bytes;
use serde_json::{Value, json};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/trace").join(name)
}

fn both(name: &str) -> Vec<PathBuf> {
    [0, 1].map(|rank| data(&format!("{name}_{rank}.json.gz"))).to_vec()
}

fn read(files: Vec<PathBuf>) -> Outcome {
    trace(&Request { files, ..Request::default() }).unwrap()
}

fn h100x2() -> SiteSpec {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h100x2/machine.toml");
    SiteSpec::new(machine.display().to_string()).env("NCCL_NVLS_ENABLE", "0")
}

/// Goal: work of two CPUs in a GOAL file runs at once; a call of a SimAI workload runs beside the computation that does not need
/// it, as it is of many kernels.
#[test]
fn what_does_not_need_each_other_runs_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let cpus = "num_ranks 1\nrank 0 {\nl0: calc 1000000 cpu 0\nl1: calc 1000000 cpu 1\nl2: calc 500000 cpu 1\n}\n";
    assert_eq!(step_ms(&["trace", &write("cpus.goal", cpus), "--on", "h200x4"]).0, 1.5);
    let beside = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 4 checkpoints: 0 \
                  checkpoint_initiates: 0\n2\na -1 1000 NONE 0 4000000 NONE 0 1000 NONE 0 1\n\
                  b -1 1000 NONE 0 1000 NONE 0 1000 ALLREDUCE 67108864 1\n";
    let step = step_ms(&["trace", &write("beside.txt", beside), "--on", "h200x4"]).0;
    // The call takes 0.33 ms alone.
    assert!(step > 4.005 && step < 4.005 + 0.1, "{step}");
}

/// Goal: calls of NVLS in a step take as long by their slices as by their flows: ranks share a connection's bytes.
#[test]
fn calls_of_nvls_take_as_long_by_slices_as_by_flows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.toml");
    let text = "schema = \"collcast/scenario/1\"\nname = \"one\"\n[machine]\ntopology = \"dgx-h100\"\n[layout]\ntensor = 8\n\
                [communication]\nalgorithm = \"nvls\"\n[[layers]]\nname = \"l\"\ncount = 1\nforward = \"1 ms\"\n\
                backward = \"1 ms\"\nsum = \"256MiB\"\n";
    std::fs::write(&path, text).unwrap();
    let [slices, flows] =
        ["slices", "flows"].map(|level| step_ms(&["simulate", path.to_str().unwrap(), "--level", level]).0);
    assert!((slices / flows - 1.0).abs() < 0.02, "{slices} {flows}");
}

/// Goal: a step of the trace is the step that CUDA events timed without a profiler, within 3%; its parts add up.
#[test]
fn steps_are_as_long_as_without_a_profiler() {
    for (name, measured_ms) in [("ddp", 14.19), ("slow", 18.22), ("fsdp", 19.58)] {
        let outcome = read(both(name));
        assert!(outcome.marked && outcome.ranks.len() == 2 && outcome.warnings.is_empty(), "{:?}", outcome.warnings);
        for row in &outcome.ranks {
            assert!((row.step_ms / measured_ms - 1.0).abs() < 0.03, "{name}: {row:?}");
            let sum = row.compute_ms + row.exposed_ms + row.starved_ms + row.queued_ms;
            assert!((sum - row.step_ms).abs() < 1e-6, "{row:?}");
            let exposed: f64 = outcome.calls.iter().filter_map(|call| call.exposed_ms).sum();
            assert!(exposed < outcome.ranks.iter().map(|row| row.exposed_ms).fold(0.0, f64::max) + 1e-6);
        }
    }
}

/// Goal: a trace of Holistic Trace Analysis' own tests is read as it is.
#[test]
fn a_trace_of_holistic_trace_analysis_is_read() {
    let outcome = read(vec![data("hta_backward_thread.json")]);
    let [row] = &outcome.ranks[..] else { panic!("{:?}", outcome.ranks) };
    // One kernel of 45 us.
    assert!(outcome.marked && row.steps == 1 && (row.compute_ms - 0.045).abs() < 1e-9, "{row:?}");
    assert!(outcome.calls.is_empty() && !outcome.failed());
}

/// Goal: a call whose split lists have equal entries is forecast, one with different ones is not; kernels of two GPUs in one
/// file are told, and nothing is sure then.
#[test]
fn splits_and_gpus_of_a_file_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, split: &str, devices: &[u32]| {
        let kernel = |device: &u32| {
            let args = json!({"device": device, "stream": 7, "Collective name": "all_to_allv", "In msg nelems": 2 << 20,
                "Out msg nelems": 2 << 20, "Group size": 2, "dtype": "Float", "In split size": split,
                "Out split size": split, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"});
            json!({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "ts": 1000, "dur": 60, "args": args})
        };
        let events: Vec<Value> = devices.iter().map(kernel).collect();
        let path = folder.path().join(format!("{name}_rank0.json"));
        std::fs::write(&path, json!({"traceEvents": events}).to_string()).unwrap();
        trace(&Request { files: vec![path], site: Some(h100x2()), ..Request::default() }).unwrap()
    };
    let why = |outcome: &Outcome| outcome.calls[0].not_forecast.clone().unwrap_or_default();
    let even = made("even", "[1048576, 1048576]", &[0]);
    assert!(even.calls[0].expected.is_some() && !even.several_gpus, "{}", why(&even));
    assert!(why(&made("uneven", "[1048576, 1048575]", &[0])).contains("different amounts"));
    assert!(why(&made("cut", "[1048576, ..., 1048576]", &[0])).contains("leaves out"));
    let two = made("two", "[]", &[0, 1]);
    assert!(two.several_gpus && two.warnings.iter().any(|w| w.contains("kernels of 2 GPUs")), "{:?}", two.warnings);
    let verdict = two.report(true).verdict.unwrap();
    assert!(verdict.confidence.starts_with("low: a file has kernels of several GPUs"), "{}", verdict.confidence);
}

/// Traces of two ranks, each with its kernels of NCCL one after another: what was called, and us.
fn kernels(folder: &Path, of: [&[(&str, u32)]; 2]) -> Outcome {
    let files = [0, 1].map(|rank| {
        let kernel = |(place, (name, us)): (usize, &(&str, u32))| {
            let args = json!({"device": rank, "stream": 7, "Collective name": name, "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
                "Group size": 2, "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"});
            json!({"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 1000 * (place + 1), "dur": us, "args": args})
        };
        let events: Vec<Value> = of[rank].iter().enumerate().map(kernel).collect();
        let path = folder.join(format!("rank{rank}.json"));
        let info = json!({"rank": rank, "world_size": 2});
        std::fs::write(&path, json!({"distributedInfo": info, "traceEvents": events}).to_string()).unwrap();
        path
    });
    read(files.to_vec())
}

/// Traces of two ranks whose step has 6 ms of a product and, 4 ms behind its beginning, 4 ms of an all-reduce: as they are
/// written, with `change` made of each event of rank 1 or of both.
fn steps(folder: &Path, kernel: &str, change: &dyn Fn(u32, &mut Value)) -> Request {
    let files = [0, 1].map(|rank| {
        let mut events = Vec::new();
        for step in 0..3 {
            let at = |us: u32| 1_000_000 + 10_000 * step + us;
            events.push(json!({"ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{step}"), "ts": at(0), "dur": 10_000, "args": {}}));
            let call = json!({"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "Group size": 2,
                "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"});
            for (number, (name, begin, us, args)) in
                [("gemm", 500, 6000, json!({})), (kernel, 4500, 4000, call), ("adam", 9500, 500, json!({}))].into_iter().enumerate()
            {
                let id = 3 * step + number as u32;
                let mut args = args;
                args["correlation"] = json!(id);
                args["device"] = json!(rank);
                events.push(json!({"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": at(100), "dur": 5, "args": {"correlation": id}}));
                events.push(json!({"ph": "X", "cat": "kernel", "name": name, "ts": at(begin), "dur": us, "args": args}));
            }
        }
        events.iter_mut().for_each(|event| change(rank, event));
        let path = folder.join(format!("rank{rank}.json"));
        let info = json!({"rank": rank, "world_size": 2});
        let text = json!({"distributedInfo": info, "traceEvents": events}).to_string();
        // An annotation without arguments, and a key twice, as some programs that change traces leave them.
        let text = text.replace("\"ph\":\"X\"", "\"ph\":\"i\",\"ph\":\"X\"").replace("\"args\":{}", "\"args\":null");
        std::fs::write(&path, text).unwrap();
        path
    });
    Request { files: files.to_vec(), site: Some(h100x2()), ..Request::default() }
}

/// Goal: kernels of NCCL are communication by any of its names, and by a collective's name beside them. Those for symmetric
/// memory have no forecast, and say so.
#[test]
fn kernels_of_nccl_are_known_by_all_their_names() {
    let folder = tempfile::tempdir().unwrap();
    for (kernel, symmetric) in [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", false),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST(x)", true),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST(x)", true),
        ("of another library", false),
    ] {
        let outcome = trace(&steps(folder.path(), kernel, &|_, _| ())).unwrap();
        for row in &outcome.ranks {
            assert!((row.compute_ms - 6.5).abs() < 0.01 && (row.exposed_ms - 2.0).abs() < 0.01, "{kernel}: {row:?}");
        }
        let why = outcome.calls[0].not_forecast.clone().unwrap_or_default();
        assert!(
            why.contains("symmetric memory") == symmetric && outcome.calls[0].time_us == Some(4000.0),
            "{kernel}: {why}"
        );
    }
}

/// Goal: a rank whose file tells no steps is left out beside ranks that mark them, with a warning, and changes none of their rows.
#[test]
fn ranks_without_steps_are_left_out_beside_others() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)";
    let of = |category: &str, name: &str| {
        let drop = |rank: u32, event: &mut Value| {
            if rank == 1 && event["cat"] == category {
                event["ph"] = json!("i");
            }
        };
        let outcome = trace(&steps(folder.path(), kernel, &drop)).unwrap();
        let ranks: Vec<u32> = outcome.ranks.iter().map(|row| row.rank).collect();
        assert!(ranks == [0] && outcome.calls[0].calls == 1.0, "{:?}", outcome.calls);
        assert!((outcome.ranks[0].step_ms - 9.833).abs() < 0.001, "{:?}", outcome.ranks);
        assert!(
            outcome.warnings.iter().any(|w| w.contains("rank1.json: rank 1 is left out") && w.contains(name)),
            "{:?}",
            outcome.warnings
        );
    };
    of("user_annotation", "prof.step()");
    of("cuda_runtime", "ProfilerActivity.CPU");
}

/// Goal: an all-reduce is the same call on a rank that sends once before it and on one that sends twice.
#[test]
fn sends_do_not_shift_collectives() {
    let folder = tempfile::tempdir().unwrap();
    let reduce = ("allreduce", 400);
    let outcome = kernels(folder.path(), [&[("send", 50), reduce], &[("send", 50), ("send", 50), reduce]]);
    let calls: Vec<_> = outcome.calls.iter().map(|c| (c.collective.as_str(), c.calls, c.members)).collect();
    assert_eq!(calls, [("all_reduce", 1.0, 2), ("send_recv", 1.5, 1)], "{:?}", outcome.warnings);
}

/// Goal: where ranks do different calls at one place, all of them stay in the table, and none is compared.
#[test]
fn calls_that_ranks_do_not_agree_on_stay() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = kernels(folder.path(), [&[("allreduce", 400)], &[("_allgather_base", 300)]]);
    let calls: Vec<_> = outcome.calls.iter().map(|c| (c.collective.as_str(), c.members, c.waited_ms)).collect();
    assert_eq!(calls, [("all_gather", 1, None), ("all_reduce", 1, None)]);
    assert!(outcome.warnings.iter().any(|warning| warning.contains("different calls at the same place")));
}

/// Goal: rank 1 does 40 products of 0.1 ms more in each step: it is named, and no more than these 4.2 ms are charged to it.
#[test]
fn a_late_rank_is_named() {
    let late =
        |name| read(both(name)).ranks.iter().map(|row| (row.late_ms.unwrap(), row.last.unwrap())).collect::<Vec<_>>();
    let slow = late("slow");
    assert!((1.5..4.4).contains(&slow[1].0) && slow[1].1 > 0.9, "{slow:?}");
    assert!(slow[0].0 < 0.1, "{slow:?}");
    // With nothing planted, neither rank costs the other what would show in a step.
    assert!(late("ddp").iter().all(|(late, _)| *late < 0.4), "{:?}", late("ddp"));
    let (code, _, err) = collcast(&["trace", &both("slow")[0].to_string_lossy(), &both("slow")[1].to_string_lossy()]);
    assert!(code == 0 && err.contains("a step for rank 1"), "{err}");
}

/// Goal: of a fully sharded step, sizes are those that nccl-tests would count, and launch gaps are those of one rank.
#[test]
fn calls_and_gaps_are_found() {
    let outcome = read(both("fsdp"));
    let calls: Vec<_> =
        outcome.calls.iter().map(|call| (call.collective.as_str(), call.size_bytes.unwrap(), call.calls)).collect();
    // Four units gathered twice, and reduced once: two linear layers of 4096 x 16384 in bf16 with their biases.
    let unit = 2 * (2 * 4096 * 16384 + 4096 + 16384);
    assert_eq!(calls, [("all_gather", unit, 8.0), ("reduce_scatter", unit, 4.0)]);
    let starved: Vec<f64> = outcome.ranks.iter().map(|row| row.starved_ms).collect();
    assert!(starved[0] > 1.0 && starved[1] < 0.1, "{starved:?}");
    assert!(outcome.gaps[0].rank == 0 && outcome.gaps[0].length_us > 400.0);
}

/// Goal: on the machine that it ran on no call is slower than it should be; on one that promises more, all are, and one
/// rank's file alone cannot tell.
#[test]
fn calls_are_judged_by_the_machine() {
    for name in ["ddp", "slow", "fsdp"] {
        let outcome = trace(&Request { files: both(name), site: Some(h100x2()), ..Request::default() }).unwrap();
        let judged: Vec<_> = outcome.calls.iter().map(|c| c.expected.as_ref().unwrap().judgement).collect();
        assert!(judged.iter().all(|j| *j == Judgement::AsExpected), "{name}: {:?}", outcome.calls);
        assert!(!outcome.failed() && !outcome.other_gpus, "{:?}", outcome.warnings);
    }
    let site = SiteSpec { gpus: Some(2), ..SiteSpec::new("dgx-b200") }.env("NCCL_NVLS_ENABLE", "0");
    let on = |files| trace(&Request { files, site: Some(site.clone()), ..Request::default() }).unwrap();
    let outcome = on(both("fsdp"));
    assert!(outcome.failed() && outcome.slower().count() == 2, "{:?}", outcome.calls);
    assert!(outcome.slower().all(|(_, expected)| expected.lost_ms > 0.1));
    // It names its GPUs, which that machine has not.
    let told = outcome.warnings.iter().find(|warning| warning.contains("name the machine that was measured"));
    assert!(told.is_some_and(|told| told.contains("is of NVIDIA H100 80GB HBM3, `dgx-b200` has B200")), "{told:?}");
    let verdict = outcome.report(true).verdict.unwrap();
    assert!(
        verdict.confidence.starts_with("low: what is expected is of other GPUs")
            && verdict.next.unwrap().contains("-t")
    );
    let alone = on(vec![data("fsdp_0.json.gz")]);
    assert!(!alone.failed() && alone.calls[0].expected.as_ref().unwrap().judgement == Judgement::CannotTell);
}

/// A flight recorder's dumps of all ranks of some hosts of `dgx-h100`, which do all-reduces of these sizes in these groups at
/// once, with the times that the model gives under a fault.
fn with_fault(folder: &Path, fault: Fault, sizes: &[u64], hosts: u32, groups: &[Vec<u32>]) -> Vec<PathBuf> {
    let site = SiteSpec::new("dgx-h100").nodes(hosts).load().unwrap();
    let (ranks, together) = (groups[0].len() as u32, groups.len() as u32);
    let question = |&size: &u64| Question {
        call: Call::of_size(Collective::AllReduce, ranks, Bytes(size), DataType::Float32),
        together,
        algorithm: Choice::Auto,
        protocol: Choice::Auto,
        settings: *site.settings(),
        timed: Timed::Kernel,
    };
    let questions: Vec<Question> = sizes.iter().map(question).collect();
    let gpus: Vec<_> = groups.iter().flatten().map(|&rank| site.topology.gpu_of(Rank(rank))).collect();
    let placed = site.topology.placed(&gpus).unwrap();
    let changed = fault.applied(&placed, site.predictor().profile(), &questions).unwrap().unwrap();
    let times = curve(&changed).unwrap().0.unwrap();
    let dump = |rank: u32| {
        let (group, ranks) = groups.iter().enumerate().find(|(_, ranks)| ranks.contains(&rank)).unwrap();
        let name = group.to_string();
        let entry = |number: usize| {
            json!({
                "profiling_name": "nccl:all_reduce", "process_group": [name, "dp"], "collective_seq_id": number + 1,
                "is_p2p": false, "state": "completed", "duration_ms": times[number] / 1e3,
                "input_sizes": [[sizes[number] / 4]], "output_sizes": [[sizes[number] / 4]],
                "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            })
        };
        let config = json!({ name.as_str(): {"name": name, "desc": "dp", "ranks": format!("{ranks:?}")} });
        let entries: Vec<Value> = (0..sizes.len()).map(entry).collect();
        let path = folder.join(format!("dump_rank{rank}.json"));
        let text = json!({"version": "2.10", "pg_config": config, "entries": entries}).to_string();
        std::fs::write(&path, text).unwrap();
        path
    };
    groups.iter().flatten().map(|&rank| dump(rank)).collect()
}

/// Goal: of slow calls the cause is named that was planted, alone or with the groups beside them; too few sizes tell none, and
/// that is said. Method: times that the model gives of 16 GPUs with that fault.
#[test]
fn slow_calls_have_their_cause() {
    let room = tempfile::tempdir().unwrap();
    let sizes: Vec<u64> = (0..8).map(|i| (64 << 10) << (2 * i)).collect();
    let all = [(0..16).collect::<Vec<u32>>()];
    let apart =
        |hosts: u32| (0..8).map(|rank| (0..hosts).map(|host| 8 * host + rank).collect()).collect::<Vec<Vec<u32>>>();
    let nics = Fault::Slow(Part::Nic, 25);
    let site = |hosts| Some(SiteSpec::new("dgx-h100").nodes(hosts));
    // Causes are tried on four hosts of the eight.
    let cases =
        [(2, &all[..], nics), (2, &all[..], Fault::GpudirectOff), (2, &apart(2)[..], nics), (8, &apart(8)[..], nics)];
    for (hosts, groups, fault) in cases {
        let files = with_fault(room.path(), fault, &sizes, hosts, groups);
        let outcome = trace(&Request { files: files.clone(), site: site(hosts), ..Request::default() }).unwrap();
        assert!(
            outcome.failed() && outcome.calls.iter().all(|call| call.not_forecast.is_none()),
            "{:?}",
            outcome.calls
        );
        let first = &outcome.anomalies[0];
        let (cause, alike) = (fault.cause().name(), &outcome.causes.as_ref().unwrap()[0].alike);
        assert!(first.error && (first.kind == cause || alike.contains(&cause)), "{fault}: {first:?}");
        assert!(first.evidence.contains("all_reduce in dp, ") && !first.suggestion.is_empty(), "{first:?}");
        let report = outcome.report(false);
        let verdict = report.verdict.unwrap();
        assert!(verdict.sentence.contains(&format!("likely cause: {}", first.kind)), "{}", verdict.sentence);
        assert_eq!(verdict.next, Some(first.suggestion.clone()));
        let unasked = trace(&Request { files, site: site(hosts), doctor: false, ..Request::default() }).unwrap();
        assert!(unasked.failed() && unasked.anomalies.is_empty() && unasked.causes.is_none());
    }
    let files = with_fault(room.path(), nics, &sizes[6..7], 2, &all);
    let outcome = trace(&Request { files, site: site(2), ..Request::default() }).unwrap();
    let [one] = &outcome.anomalies[..] else { panic!("{:?}", outcome.anomalies) };
    assert!(
        one.kind == "cause_unknown" && one.evidence.contains("1 size is too little to tell causes apart"),
        "{one:?}"
    );
    let next = outcome.report(false).verdict.unwrap().next.unwrap();
    assert!(next.contains("all_reduce_perf -b 262144 -e 1073741824 -f 2"), "{next}");
}

/// A dump without its last calls of a group, the newest of which did not end.
fn hang(folder: &Path, rank: u32, calls: usize, change: impl Fn(&mut Value)) -> PathBuf {
    let text = std::fs::read_to_string(data(&format!("recorder_{rank}.json"))).unwrap();
    let mut dump: Value = serde_json::from_str(&text).unwrap();
    let entries = dump["entries"].as_array_mut().unwrap();
    entries.truncate(calls);
    change(entries.last_mut().unwrap());
    let path = folder.join(format!("recorder_{rank}.json"));
    std::fs::write(&path, dump.to_string()).unwrap();
    path
}

/// Goal: of a hang, the rank that never came is named, or that ranks do not agree; dumps of a job that ended say so.
#[test]
fn a_hang_names_the_missing_rank() {
    let healthy = read(vec![data("recorder_0.json"), data("recorder_1.json")]);
    assert!(healthy.stuck.is_empty() && !healthy.failed() && healthy.ranks.is_empty());
    let folder = tempfile::tempdir().unwrap();
    let open = |entry: &mut Value| entry["state"] = json!("scheduled");
    let files = vec![hang(folder.path(), 0, 30, open), hang(folder.path(), 1, 29, |_| {})];
    let outcome = read(files.clone());
    assert_eq!((&outcome.stuck[0].waiting[..], &outcome.stuck[0].missing[..]), (&[0][..], &[1][..]));
    let (code, out, err) = collcast(&["trace", &files[0].to_string_lossy(), &files[1].to_string_lossy()]);
    assert!(code == 1 && err.contains("failed: ") && err.contains("ranks 1 never came"), "{out}{err}");
    // Without the other's dump nobody knows.
    let (code, _, err) = collcast(&["trace", &files[0].to_string_lossy()]);
    assert!(code == 1 && err.contains("give the dumps of ranks 1 too"), "{err}");
    let other = |entry: &mut Value| {
        open(entry);
        entry["profiling_name"] = json!("nccl:broadcast");
    };
    let outcome = read(vec![hang(folder.path(), 0, 30, open), hang(folder.path(), 1, 30, other)]);
    assert_eq!((outcome.stuck[0].names.len(), outcome.stuck[0].missing.len()), (2, 0));
}

/// Goal: a call that all ranks came to, and that did not end, is never reported as ended: a warning where ranks agree, a failure
/// where sizes differ, where a rank has not begun what others have ended, or where a message has no other end.
#[test]
fn a_hang_that_all_ranks_are_in_is_told() {
    type Change<'c> = &'c dyn Fn(&mut Value);
    let state = |state: &'static str| move |entry: &mut Value| entry["state"] = json!(state);
    let larger = |entry: &mut Value| {
        entry["state"] = json!("started");
        for key in ["input_sizes", "output_sizes"] {
            entry[key] = json!([[1 << 20]]);
        }
    };
    let send = |entry: &mut Value| {
        entry["state"] = json!("started");
        entry["is_p2p"] = json!(true);
        entry["profiling_name"] = json!("nccl:send 0->1");
    };
    let batched = |entry: &mut Value| {
        send(entry);
        entry["state"] = json!("scheduled");
    };
    let started = state("started");
    let cases: [(Change<'_>, Change<'_>, i32, &str); 6] = [
        (&started, &started, 0, "on ranks 0-1, though all ranks came: the network or a GPU hangs"),
        (&started, &state("scheduled"), 0, "on ranks 0-1, and did not begin on rank 1"),
        (&state("scheduled"), &state("completed"), 1, "ranks 0 have not begun it, and others have ended it"),
        (&started, &larger, 1, "MiB on rank 0) did not end: ranks do not agree"),
        (&send, &|_| {}, 1, "(nccl:send 0->1) did not end: ranks 1 never came"),
        (&batched, &|_| {}, 0, "all of which ended"),
    ];
    for (first, second, expected, says) in cases {
        let folder = tempfile::tempdir().unwrap();
        let files = [hang(folder.path(), 0, 30, first), hang(folder.path(), 1, 30, second)];
        let (code, out, err) = collcast(&["trace", &files[0].to_string_lossy(), &files[1].to_string_lossy()]);
        assert!(code == expected && err.contains(says), "{says}: {code}\n{out}{err}");
        assert_eq!(err.contains("all of which ended"), says == "all of which ended", "{err}");
    }
}

/// Goal: ranks that call two groups in different orders are told so, and not that all ranks came: each waits in the call that the
/// other has not begun. Where the dumps have no times, `-t` says that nothing was judged.
#[test]
fn groups_called_in_different_orders_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let dump = |rank: u32, states: [&str; 2]| {
        let entry = |(group, state): (&str, &str)| {
            json!({
                "profiling_name": "nccl:all_reduce", "process_group": [group, group], "collective_seq_id": 1, "is_p2p": false,
                "state": state, "input_sizes": [[1024]], "output_sizes": [[1024]],
                "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            })
        };
        let config = |group: &str| json!({"name": group, "desc": group, "ranks": "[0, 1]"});
        let entries: Vec<Value> = ["dp", "tp"].into_iter().zip(states).map(entry).collect();
        let config = json!({"dp": config("dp"), "tp": config("tp")});
        let path = folder.path().join(format!("dump_rank{rank}.json"));
        std::fs::write(&path, json!({"version": "2.10", "pg_config": config, "entries": entries}).to_string()).unwrap();
        path.display().to_string()
    };
    let told = |first: [&str; 2], second: [&str; 2], more: &[&str]| {
        let files = [dump(0, first), dump(1, second)];
        let (code, out, err) = collcast(&[&["trace", &files[0], &files[1]], more].concat());
        (code, out + &err)
    };
    let (code, text) = told(["started", "scheduled"], ["scheduled", "started"], &[]);
    assert!(code == 1 && text.contains("it did not begin on rank 1, where call 1 of group tp waits"), "{text}");
    assert!(
        text.contains("ranks call the two groups in different orders") && !text.contains("all ranks came"),
        "{text}"
    );
    // Both wait in the first, and neither has begun the second: in one order.
    let (code, text) = told(["started", "scheduled"], ["started", "scheduled"], &[]);
    assert!(code == 0 && text.contains("though all ranks came"), "{text}");
    let (code, text) = told(["completed"; 2], ["completed"; 2], &["-t", "dgx-h100"]);
    assert!(code == 0 && text.contains("warning: no call was judged"), "{text}");
}

/// Goal: what is no trace is refused with what, where and the way out.
#[test]
fn refusals_say_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let whole = std::fs::read(data("ddp_0.json.gz")).unwrap();
    let (ddp, recorder) = (data("ddp_0.json.gz").display().to_string(), data("recorder_1.json").display().to_string());
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (args, why) in [
        (vec![file("a.json", b"{\"traceEvents\": [")], "was cut while it was written"),
        (vec![file("w.txt", b"1\nlayer -1 1 NONE 0\n")], "a SimAI workload with its policy"),
        (vec![file("e.txt", b"")], "A GOAL schedule begins with `num_ranks`"),
        (vec![file("b.json.gz", &whole[..whole.len() / 2])], "b.json.gz"),
        (vec![file("c.json", b"\x80\x04\x95")], "json.dump(pickle.load"),
        (vec![file("d.json", b"{\"nodes\": []}")], "without `traceEvents`"),
        (vec![file("e.json", b"{\"traceEvents\": [{\"ph\": \"i\"}]}")], "has no kernel of a GPU"),
        (vec![file("f.json", b"{\"traceEvents\": [3}")], "line 1 column"),
        (vec![ddp.clone(), ddp.clone()], "are both of rank 0"),
        (vec![ddp.clone(), recorder], "of different clocks"),
        (vec![empty.display().to_string()], "no file that ends in .json"),
        (vec!["/dev/null".to_owned()], "give a regular file"),
        (vec![ddp.clone(), "--env".to_owned(), "NCCL_ALGO=Ring".to_owned()], "no machine is named"),
        (
            vec![
                ddp.clone(),
                "-t".to_owned(),
                "dgx-h100".to_owned(),
                "--gpus".to_owned(),
                "1".to_owned(),
                "--nodes".to_owned(),
                "1".to_owned(),
            ],
            "the trace is of 2 ranks",
        ),
    ] {
        let args: Vec<&str> = std::iter::once("trace").chain(args.iter().map(String::as_str)).collect();
        let (code, out, err) = collcast(&args);
        assert!(code == 2 && out.is_empty() && err.starts_with("error: ") && err.contains(why), "{args:?}: {err}");
    }
}

/// Goal: every format holds the calls, and a page has pictures.
#[test]
fn formats_hold_the_calls() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let files = both("fsdp").iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    let (code, out, _) = collcast(&["trace", &files[0], &files[1], "--format", "csv", "--report", &page]);
    assert!(code == 0 && out.contains("group,ranks,collective,dtype,size_bytes,calls,time_us"), "{out}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    let (_, out, _) = collcast(&["trace", &files[0], &files[1], "--format", "json"]);
    let result: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&result["schema"], &result["predicted"]), (&json!("collcast/trace/1"), &json!(false)));
    assert_eq!(result["calls"].as_array().unwrap().len(), 2);
    assert_eq!(result["ranks"][1]["rank"], 1);
}

/// Goal: a step written as Chakra's traces is read as the step that it was, by the program, on the same machine, as the guide's
/// table says; on a machine with a slower network it takes longer.
#[test]
fn a_chakra_trace_is_the_step_that_it_was() {
    let room = tempfile::tempdir().unwrap();
    let step = |arguments: &[&str]| -> f64 {
        let (code, out, err) = collcast(&[arguments, &["--format", "json"]].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<Value>(&out).unwrap()["rows"][0]["step_ms"].as_f64().unwrap()
    };
    let guide = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/howto/trace.md")).unwrap();
    for name in ["ddp-buckets", "gpt-ddp", "gpt-fsdp", "gpt-tensor", "gpt-pipeline"] {
        let folder = room.path().join(name).display().to_string();
        let scenario = step(&["simulate", name, "--chakra", &folder]);
        let trace = step(&["trace", &folder, "--on", "h200x4"]);
        let row = guide.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).unwrap();
        assert!(row.ends_with(&format!(" | {scenario:.2} | {trace:.2} |")), "{row}: {scenario} {trace}");
        assert!((trace / scenario - 1.0).abs() < 0.02, "{name}: {trace} ms of the trace, {scenario} of the scenario");
        let alone = step(&["trace", &folder, "--on", "dgx-h100", "--gpus", "1"]);
        assert!(alone > trace * 1.05, "{name}: {alone} ms with a GPU a host, {trace} with four");
    }
}

/// Goal: with twice the NICs the same trace takes as long to compute, and its calls over the network about half.
/// Method: a step of four GPUs as two hosts, in `examples/trace`; what is not exposed is the computation.
#[test]
fn twice_the_nics_halve_the_calls() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let room = tempfile::tempdir().unwrap();
    let folder = room.path().display().to_string();
    let row = |arguments: &[&str]| -> Value {
        let (code, out, err) = collcast(&[arguments, &["--format", "json"]].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<Value>(&out).unwrap()["rows"][0].take()
    };
    row(&["simulate", "gpt-ddp", "--chakra", &folder]);
    let [one, two] = ["one-nic", "two-nics"].map(|name| {
        let machine = root.join(format!("examples/trace/{name}.toml")).display().to_string();
        let row = row(&["trace", &folder, "--on", &machine, "--gpus", "2"]);
        let of = |key: &str| row[key].as_f64().unwrap();
        (of("step_ms"), of("exposed_ms"))
    });
    let [alone, other] = [one.0 - one.1, two.0 - two.1];
    assert!((alone / other - 1.0).abs() < 0.02, "computation takes {alone} and {other} ms");
    // All that a step over one NIC waits for, less what computation hides of half of it.
    assert!(two.1 < 0.5 * one.1 && two.0 > 0.5 * one.0, "{one:?} {two:?}");
}

/// Goal: what is not a whole trace is refused with the reason and the way out, exit code 2.
#[test]
fn refusals_of_chakra_traces_say_the_way_out() {
    let room = tempfile::tempdir().unwrap();
    let folder = room.path().join("traces");
    let folder = folder.to_str().unwrap();
    assert_eq!(collcast(&["simulate", "gpt-ddp", "--chakra", folder]).0, 0);
    let file = |rank: u32| format!("{folder}/step.{rank}.et");
    let kineto = data("ddp_0.json.gz").display().to_string();
    let refused = |arguments: &[&str], says: [&str; 2]| {
        let (code, _, err) = collcast(&[&["trace"], arguments].concat());
        assert_eq!(code, 2, "{err}");
        for part in says {
            assert!(err.contains(part), "{part}: {err}");
        }
    };
    refused(&[folder], ["nothing to judge", "--on"]);
    refused(&[&kineto, "--on", "h200x4"], ["rank 1 of 2 has no file", "the trace of each rank"]);
    let dump = data("recorder_0.json").display().to_string();
    refused(&[&dump, "--on", "h200x4"], ["flight recorder", "--on takes"]);
    refused(&[&file(0), &file(2), "--on", "h200x4"], ["step.2.et", "one file for each rank"]);
    refused(&[folder, "--on", "h200x4", "--gpus", "1", "--nodes", "1"], ["4 ranks", "--on"]);
    let whole = std::fs::read(file(1)).unwrap();
    std::fs::write(file(1), &whole[..whole.len() / 2]).unwrap();
    refused(&[folder, "--on", "h200x4"], ["step.1.et", "cut"]);
    let (code, _, err) = collcast(&["simulate", "h200x4", "--chakra", folder]);
    assert!(code == 2 && err.contains("--chakra"), "{err}");
    // A file of an earlier and larger step would be one rank more.
    std::fs::rename(file(3), file(4)).unwrap();
    let (code, _, err) = collcast(&["simulate", "gpt-ddp", "--chakra", folder]);
    assert!(code == 2 && err.contains("step.4.et` would count as a rank of this step, which has 4"), "{err}");
    // What is the machine's is in no file.
    let vary = ["--vary", "jitter.relative=0.01", "--chakra", &format!("{folder}/jitter")];
    let (code, _, err) = collcast(&[&["simulate", "gpt-ddp"], &vary[..]].concat());
    assert!(code == 0 && err.contains("has no jitter: a forecast from it is one without"), "{err}");
}

/// The time of a step in ms, by the program's JSON, and its warnings.
fn step_ms(arguments: &[&str]) -> (f64, String) {
    let (code, out, err) = collcast(&[arguments, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    (result["rows"][0]["step_ms"].as_f64().unwrap(), result["warnings"].to_string())
}

/// Goal: a profiler's trace on the machine that it ran on is the step that it was, and with a network between its ranks a
/// longer one. Method: three steps of two H100.
#[test]
fn a_profilers_trace_is_the_step_that_it_was() {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h100x2/machine.toml").display().to_string();
    for (name, measured_ms) in [("ddp", 14.19), ("slow", 18.22), ("fsdp", 19.58)] {
        let files: Vec<String> = both(name).iter().map(|path| path.display().to_string()).collect();
        let on = |more: &[&str]| step_ms(&[&["trace", &files[0], &files[1]], more].concat()).0;
        let there = on(&["--on", &machine, "--env", "NCCL_NVLS_ENABLE=0"]);
        assert!((there / measured_ms - 1.0).abs() < 0.05, "{name}: {there} ms, measured {measured_ms}");
        let apart = on(&["--on", "dgx-h100", "--gpus", "1"]);
        assert!(apart > there * 1.05, "{name}: {apart} ms over the network, {there} over NVLink");
    }
}

/// Goal: a step as a GOAL schedule is a step of about that length where calls are rings too, in text and in binary; what is
/// left out is said. Method: steps of four GPUs, whose calls and computations slow each other by some percent.
#[test]
fn a_step_is_a_schedule() {
    let room = tempfile::tempdir().unwrap();
    for name in ["gpt-ddp", "gpt-fsdp", "gpt-tensor", "gpt-pipeline"] {
        let (text, binary) = (room.path().join(format!("{name}.goal")), room.path().join(format!("{name}.bin")));
        let (text, binary) = (text.display().to_string(), binary.display().to_string());
        let (scenario, _) = step_ms(&["simulate", name, "--goal", &text]);
        assert_eq!(step_ms(&["simulate", name, "--goal", &binary]).0, scenario);
        let (goal, _) = step_ms(&["trace", &text, "--on", "h200x4"]);
        println!("{name}: {scenario} {goal}");
        assert!((goal / scenario - 1.0).abs() < 0.2, "{name}: {goal} ms of the schedule, {scenario} of the scenario");
        assert_eq!(step_ms(&["trace", &binary, "--on", "h200x4"]).0, goal);
    }
    let (code, _, err) = collcast(&["simulate", "h200x4", "--goal", "x.goal"]);
    assert!(code == 2 && err.contains("--goal"), "{err}");
}

/// Goal: schedules and workloads of other simulators run as they are, and our own messages come back as a schedule.
#[test]
fn schedules_and_workloads_of_other_simulators_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sample = |name: &str| root.join("scenarios/tests/data").join(name).display().to_string();
    // Three messages of 8 B after each other in the longest chain of the broadcast.
    let (broadcast, _) = step_ms(&["trace", &sample("goal/schedule.goal"), "--on", "dgx-h100"]);
    assert!((0.001..0.1).contains(&broadcast), "{broadcast} ms");
    // 556 us of computation, and then the call that `sweep` forecasts.
    let (micro, _) = step_ms(&["trace", &sample("simai/microAllReduce.txt"), "--on", "dgx-h100"]);
    let (code, out, err) = collcast(&["sweep", "dgx-h100", "-s", "512M", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let call = serde_json::from_str::<Value>(&out).unwrap()["rows"][0]["time_us"].as_f64().unwrap() / 1e3;
    assert!((micro - 0.556 - call).abs() < 0.05 * call, "{micro} ms, of which {call} for the call");
    // A workload of ASTRA-sim 1 takes the machine's GPUs.
    let (transformer, warnings) = step_ms(&[
        "trace",
        &sample("astra/Transformer_HybridParallel_Fwd_In_Bckwd.txt"),
        "--on",
        "dgx-h100",
        "--nodes",
        "2",
    ]);
    assert!(transformer > 300.0 && warnings.contains("16 GPUs of the machine"), "{transformer} ms: {warnings}");
    let (experts, warnings) = step_ms(&["trace", &sample("simai/workload_ep_test.txt"), "--on", "dgx-h100"]);
    assert!(experts > 100.0 && warnings == "[]", "{experts} ms: {warnings}");
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("ring.goal").display().to_string();
    let call = ["--ranks", "4", "--algorithm", "ring", "-s", "64M"];
    let (code, _, err) = collcast(&[&["convert", "dgx-h100"], &call[..], &["-o", &file]].concat());
    assert_eq!(code, 0, "{err}");
    let (ring, _) = step_ms(&["trace", &file, "--on", "dgx-h100"]);
    // 6 steps of a quarter each leave a GPU at no more than its NVLinks carry, 450 GB/s.
    assert!(ring > 1.5 * f64::from(64 << 20) / 450e9 * 1e3, "{ring} ms");
    // The binary form is the same schedule.
    let binary = room.path().join("ring.bin").display().to_string();
    let (code, _, err) = collcast(&[&["convert", "dgx-h100"], &call[..], &["-o", &binary]].concat());
    assert_eq!(code, 0, "{err}");
    assert_eq!(step_ms(&["trace", &binary, "--on", "dgx-h100"]).0, ring);
    let whole = std::fs::read(&binary).unwrap();
    std::fs::write(&binary, &whole[..whole.len() / 2]).unwrap();
    let (code, _, err) = collcast(&["trace", &binary, "--on", "dgx-h100"]);
    assert!(code == 2 && err.contains("it was cut") && err.contains("txt2bin"), "{err}");
    let (code, _, err) = collcast(&["trace", &file, &sample("goal/schedule.goal"), "--on", "dgx-h100"]);
    assert!(code == 2 && err.contains("it is read alone"), "{err}");
    let (code, _, err) = collcast(&["trace", &file]);
    assert!(code == 2 && err.contains("nothing to judge"), "{err}");
}
