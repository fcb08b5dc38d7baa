//! Goal: steps that were measured on 4 H200 (tests/data/h200x4), forecast from compute times, the
//! collective model and the profile. What each row errs by is printed; bounds are on the groups.

use std::path::Path;

use crate::common::{Machine, builtin};
use collcast_sim::collective::{Collective, DataType};
use collcast_sim::ids::Rank;
use collcast_sim::predict::Choice;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{
    Communicate, Compute, Level, Mechanisms, Op, OpGraph, Program, RankSpec, Simulator, Step, StreamKind, What,
};
use serde_json::Value;

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/data/h200x4").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn rows(name: &str) -> Vec<Value> {
    serde_json::from_str(&data(name)).unwrap()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is missing in {row}"))
}

fn ms(time: SimDuration) -> f64 {
    time.as_us() / 1e3
}

/// Step and exposed time of a scenario, in ms.
fn step(machine: &Machine, simulator: &Simulator<'_>, name: &str, changes: &[(&str, &str)]) -> (f64, f64) {
    let graph = machine.graph(&builtin(name, changes));
    let full = simulator.run(&graph, Mechanisms::default(), Level::Flows).unwrap();
    let quiet = Mechanisms { interference: false, launch: false, framework: false, communication: false };
    let quiet = simulator.run(&graph, quiet, Level::Flows).unwrap();
    (ms(full.time), ms(full.time) - ms(quiet.time))
}

#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    fn add(&mut self, what: &str, predicted: f64, measured: f64) {
        let error = predicted / measured - 1.0;
        println!("{what}: predicted {predicted:.3}, measured {measured:.3}, error {:+.1}%", error * 100.0);
        self.0.push(error.abs());
    }

    fn check(&self, what: &str, mean: f64, worst: f64) {
        let average = self.0.iter().sum::<f64>() / self.0.len() as f64;
        let most = self.0.iter().copied().fold(0.0, f64::max);
        println!("{what}: {} rows, mean {:.1}%, worst {:.1}%", self.0.len(), average * 100.0, most * 100.0);
        assert!(average <= mean && most <= worst, "{what}: mean {average:.3}, worst {most:.3}");
    }
}

/// Goal: exposed time of DDP by bucket size; nothing is fitted to these rows.
#[test]
fn ddp_buckets() {
    let machine = Machine::new("h200x4", None);
    let simulator = machine.simulator();
    let rows = rows("ddp_bucket_overlap.json");
    let compute = number(&rows[0], "fwd_bwd_ms");
    let (mut steps, mut exposed) = (Errors::default(), Errors::default());
    for row in &rows[1..] {
        let bucket = format!("{} MiB", row["bucket_cap_mb"]);
        let (step, over) = step(&machine, &simulator, "ddp-buckets", &[("data_parallel.bucket", &bucket)]);
        steps.add(&format!("bucket {bucket}, step"), step, number(row, "iter_ms"));
        exposed.add(&format!("bucket {bucket}, exposed"), over, number(row, "iter_ms") - compute);
    }
    // Products go in waves, and one more of them waits for calls than did.
    steps.check("DDP steps", 0.025, 0.04);
    exposed.check("DDP exposed", 0.12, 0.16);
}

/// Steps of GPT blocks on so many GPUs: errors of steps, of exposed times, and of these with the bubble of pipelines,
/// which is no computation either. `blocks`: ms of a block forward and backward in pipelines and in other steps.
fn gpt_steps(rows: &[Value], gpus: u32, blocks: [f64; 2]) -> [Errors; 3] {
    let topology = format!("h200x{gpus}");
    let machine = Machine::new(&topology, None);
    let simulator = machine.simulator();
    let [mut steps, mut exposed, mut bubbles] = <[Errors; 3]>::default();
    let mut tp: Option<(f64, f64)> = None;
    for row in rows {
        let text = |key: &str| row[key].to_string().trim_matches('"').to_owned();
        let count = gpus.to_string();
        let mut changes = vec![("machine.topology", topology.clone())];
        match row["max_nch"].as_str() {
            None | Some("") => {}
            Some(channels) => changes.push(("communication.channels", channels.to_owned())),
        }
        // Forward and backward as block_compute divides them.
        let times = |block: f64| {
            let forward = block * 1.2855 / 4.1314;
            [("layers.0.forward", format!("{forward} ms")), ("layers.0.backward", format!("{} ms", block - forward))]
        };
        let mut bubble = 0.0;
        let (name, compute, measured) = match row["kind"].as_str().unwrap() {
            "fsdp2" => {
                changes.extend(times(blocks[1]));
                changes.extend([("layout.data", count), ("data_parallel.reshard", text("reshard_after_forward"))]);
                ("gpt-fsdp", 12.0 * blocks[1], number(row, "iter_ms"))
            }
            "ddp_gpt" => {
                changes.extend(times(blocks[1]));
                changes.push(("layout.data", count));
                changes.push(("data_parallel.bucket", format!("{} MiB", row["bucket_cap_mb"])));
                ("gpt-ddp", 12.0 * blocks[1], number(row, "iter_ms"))
            }
            "pp" => {
                let micro_batches = number(row, "micro_batches");
                changes.extend(times(blocks[0]));
                changes.extend([("layout.pipeline", count), ("layers.0.count", (2 * gpus).to_string())]);
                changes
                    .extend([("layout.schedule", text("schedule")), ("layout.micro_batches", text("micro_batches"))]);
                bubble = 2.0 * blocks[0] * (f64::from(gpus) - 1.0);
                ("gpt-pipeline", 2.0 * blocks[0] * micro_batches + bubble, number(row, "iter_ms"))
            }
            "tp" if row["comm"] == false => {
                tp = Some((number(row, "fwd_ms"), number(row, "fwd_bwd_ms")));
                continue;
            }
            "tp" => {
                let (forward, both) = tp.unwrap();
                let sum = format!("{} MiB", number(row, "hidden") / 256.0);
                changes.extend([
                    ("layout.tensor", count),
                    ("layers.0.forward", format!("{} ms", forward / 16.0)),
                    ("layers.0.backward", format!("{} ms", (both - forward) / 16.0)),
                    ("layers.0.sum", sum.clone()),
                    ("layers.0.sum_backward", sum),
                ]);
                ("gpt-tensor", both, number(row, "fwd_bwd_ms"))
            }
            _ => continue,
        };
        let what: Vec<&str> =
            changes.iter().skip(1).filter(|c| !c.0.starts_with("layers.0.")).map(|c| c.1.as_str()).collect();
        let what = format!("{name} {}", what.join(" "));
        let changes: Vec<(&str, &str)> = changes.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let (step, over) = step(&machine, &simulator, name, &changes);
        steps.add(&format!("{what}, step"), step, measured);
        // Below 5% exposed time is mostly noise.
        if measured - compute > 0.05 * measured {
            exposed.add(&format!("{what}, exposed"), over, measured - compute);
        }
        if measured - compute + bubble > 0.05 * measured {
            bubbles.add(&format!("{what}, not computing"), over + bubble, measured - compute + bubble);
        }
    }
    [steps, exposed, bubbles]
}

/// Goal: steps of GPT blocks on 4 GPUs.
#[test]
fn training_steps() {
    let rows = rows("training_steps.json");
    let alone = rows.iter().find(|r| r["kind"] == "fsdp2").map(|r| number(r, "compute_only_ms")).unwrap();
    let [steps, exposed, bubbles] = gpt_steps(&rows, 4, [number(&rows[0], "fwd_bwd_ms"), alone / 12.0]);
    steps.check("steps", 0.04, 0.08);
    exposed.check("exposed", 0.20, 0.60);
    bubbles.check("exposed, bubbles with it", 0.14, 0.30);
}

/// Goal: the same on 2 GPUs with 24 and with 8 channels, measured when the mechanisms were settled.
#[test]
fn training_steps_on_two() {
    let rows = rows("training_steps_2.json");
    for channels in ["", "8"] {
        let rows: Vec<Value> = rows.iter().filter(|r| r["max_nch"] == channels).cloned().collect();
        let alone = number(&rows[0], "compute_only_ms") / 12.0;
        let [steps, exposed, bubbles] = gpt_steps(&rows, 2, [alone; 2]);
        steps.check("steps on 2 GPUs", 0.04, 0.10);
        exposed.check("exposed on 2 GPUs", 0.20, 0.50);
        bubbles.check("exposed on 2 GPUs, bubbles with it", 0.19, 0.50);
    }
}

/// Products or copies beside collectives of a group of 4, on streams of their own, that of the collectives `urgent`
/// (of high priority) or not.
fn beside(
    compute: Compute,
    (calls, urgent): (usize, bool),
    collective: Collective,
    bytes: Bytes,
    channels: Option<u32>,
) -> OpGraph {
    let mut program = Program::default();
    let (computing, communicating) = (
        program.stream("compute", StreamKind::Compute, false),
        program.stream("comm", StreamKind::Communication, urgent),
    );
    let op = |stream, what| Op {
        label: "op".into(),
        kind: "op".into(),
        stream,
        what,
        after: Vec::new(),
        issue: SimDuration::ZERO,
        framework: false,
    };
    for _ in 0..calls {
        let call = Communicate {
            group: 0,
            collective,
            bytes,
            dtype: DataType::Bfloat16,
            in_place: collective == Collective::AllReduce,
            algorithm: Choice::Auto,
            protocol: Choice::Auto,
            channels,
        };
        program.push(op(communicating, What::Collective(call)));
    }
    program.push(op(computing, What::Compute(compute)));
    let rank = RankSpec { program: 0, groups: vec![0], pace_ppm: 1_000_000, late: SimDuration::ZERO };
    OpGraph { programs: vec![program], ranks: vec![rank; 4], groups: vec![(0..4).map(Rank).collect()], jitter: None }
}

/// Of a product of square matrices, as `collcast_scenarios` counts them.
fn tiles(m: f64) -> [u32; 2] {
    [(m / 128.0 * m / 256.0) as u32; 2]
}

/// When the computation and when the last call ended, in ms.
fn ends(step: &Step) -> [f64; 2] {
    let activities = &step.ranks[0].activities;
    let end = |compute: bool| {
        let last = activities.len() - 1;
        activities.iter().filter(|a| (a.op == last) == compute).map(|a| a.end.0 as f64 / 1e9).fold(0.0, f64::max)
    };
    [end(true), end(false)]
}

/// Goal: products and copies beside collectives: how much longer each takes until its stream ends.
///
/// What blocks cost memory was set by the default channels and 4 channels; 2 and 8 channels are left out of it. What
/// products and blocks beside them lose was measured elsewhere (`beside.json`). Calls alone were measured right after
/// products, at their clock: those of 8 channels took 2.6 to 2.9 ms, 2.1 by nccl-tests on the same GPUs.
#[test]
fn interference() {
    let machine = Machine::new("h200x4", None);
    let simulator = machine.simulator();
    let gemm = (machine.profile.gemm_memory() * 1e6) as u32;
    let mut errors: [Errors; 2] = Default::default();
    let mut left_out: [Errors; 2] = Default::default();
    let mut ends_left_out = Errors::default();
    let mut check = |what: &str, fitted: bool, graph: &OpGraph, measured: [f64; 2], alone: [f64; 2]| {
        let calm = Mechanisms { interference: false, ..Mechanisms::default() };
        let [quiet, both] =
            [calm, Mechanisms::default()].map(|m| ends(&simulator.run(graph, m, Level::Flows).unwrap()));
        for side in [0, 1] {
            let name = ["computation", "communication"][side];
            let group = if fitted { &mut errors } else { &mut left_out };
            group[side].add(&format!("{what}, {name}"), both[side] / quiet[side], measured[side] / alone[side]);
            if side == 1 && !fitted {
                ends_left_out.add(&format!("{what}, ms of {name}"), both[side], measured[side]);
            }
        }
    };
    for row in rows("training_steps.json").iter().filter(|r| r["kind"] == "interference") {
        let copy = row["compute"] == "copy512MB";
        let compute = Compute {
            time: SimDuration::from_us(number(row, "compute_ms") * 1e3),
            kernels: number(row, "ncompute") as u32,
            waves: if copy { 8 } else { 1 },
            tiles: if copy { [0; 2] } else { tiles(8192.0) },
            memory_ppm: if copy { 1_000_000 } else { gemm },
        };
        let collective = row["comm"].as_str().unwrap().parse().unwrap();
        let channels = row["max_nch"].as_str().unwrap().parse().ok();
        let graph = beside(compute, (number(row, "ncomm") as usize, true), collective, Bytes(256 << 20), channels);
        let what = format!("{} {} {:?} channels", row["compute"], row["comm"], channels);
        let measured = [number(row, "compute_in_both_ms"), number(row, "comm_in_both_ms")];
        check(&what, true, &graph, measured, [number(row, "compute_ms"), number(row, "comm_ms")]);
    }
    let files = [("gemm_overlap.csv", None), ("gemm_overlap_ch2.csv", Some(2)), ("gemm_overlap_ch8.csv", Some(8))];
    let fields = |file| -> Vec<Vec<f64>> {
        data(file).lines().skip(1).map(|l| l.split(',').map(|f| f.parse().unwrap_or(0.0)).collect()).collect()
    };
    // The same products alone differ by up to 18% from row to row, with the clock. The first row of
    // each file ran on a GPU that was cold until then (7.05 to 7.30 ms against 7.59 to 8.36 ms in the
    // next two): the median of the others is what products take that run beside something.
    let alone_of = |m: f64| {
        let warm = files.iter().flat_map(|f| fields(f.0).into_iter().skip(1));
        let mut times: Vec<f64> = warm.filter(|r| r[1] == m).map(|r| r[5]).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    for (file, channels) in files {
        for field in fields(file) {
            let alone = alone_of(field[1]);
            let compute = Compute {
                time: SimDuration::from_us(alone * 1e3),
                kernels: field[2] as u32,
                waves: 1,
                tiles: tiles(field[1]),
                memory_ppm: gemm,
            };
            let graph = beside(
                compute,
                (field[4] as usize, false),
                Collective::AllReduce,
                Bytes((field[3] as u64) << 20),
                channels,
            );
            let what =
                format!("{}^3 x{} beside {} x {} MB, {channels:?} channels", field[1], field[2], field[4], field[3]);
            check(&what, channels.is_none(), &graph, [field[8], field[9]], [alone, field[6]]);
        }
    }
    errors[0].check("computation, fitted channels", 0.035, 0.11);
    errors[1].check("communication, fitted channels", 0.10, 0.35);
    left_out[0].check("computation, channels left out", 0.065, 0.14);
    left_out[1].check("communication, channels left out", 0.15, 0.33);
    ends_left_out.check("ms of communication, channels left out", 0.11, 0.34);
}

/// Goal: computations without pause beside all-reduces without pause, on 2 GPUs: how much longer the computations
/// take, to which nothing is fitted, and what a call takes meanwhile. Where a call just fits between two products or
/// just does not, it is a product off; the median tells the rest.
#[test]
fn without_pause() {
    let machine = Machine::new("h200x2", None);
    let simulator = machine.simulator();
    let gemm = (machine.profile.gemm_memory() * 1e6) as u32;
    let all: Value = serde_json::from_str(&data("beside.json")).unwrap();
    let rows = |of: &str| all[of]["rows"].as_array().unwrap().clone();
    let alone = |compute: &str| {
        let row = rows("beside").into_iter().find(|r| r["compute"] == compute && r["beside"] == "alone").unwrap();
        number(&row, "ms")
    };
    // How many times longer the computation takes, and ms of a call meanwhile.
    let run = |name: &str, channels: u32, bytes: u64| {
        let product = |m: u64, n: u64| {
            let kernels = (100.0 / alone(name)).round();
            Compute {
                time: SimDuration::from_us(alone(name) * 1e3 * kernels),
                kernels: kernels as u32,
                waves: 1,
                tiles: [(m.div_ceil(128) * n.div_ceil(256)) as u32; 2],
                memory_ppm: gemm,
            }
        };
        let mut graph = match name {
            "gpt" => {
                let changes = [("data_parallel.kind", "none"), ("layout.data", "2"), ("machine.topology", "h200x2")];
                machine.graph(&builtin("gpt-ddp", &changes))
            }
            "sq8192" => beside(product(8192, 8192), (0, true), Collective::AllReduce, Bytes(0), None),
            "up" => beside(product(2048, 16384), (0, true), Collective::AllReduce, Bytes(0), None),
            _ => beside(product(2048, 4096), (0, true), Collective::AllReduce, Bytes(0), None),
        };
        graph.ranks = vec![RankSpec { program: 0, groups: vec![0], pace_ppm: 1_000_000, late: SimDuration::ZERO }; 2];
        graph.groups = vec![vec![Rank(0), Rank(1)]];
        let calm = Mechanisms { interference: false, ..Mechanisms::default() };
        let quiet = simulator.run(&graph, calm, Level::Flows).unwrap().time.as_us() / 1e3;
        let program = &mut graph.programs[0];
        let first = program.ops.len();
        let stream = program.stream("beside", StreamKind::Communication, true);
        let call = What::Collective(Communicate {
            group: 0,
            collective: Collective::AllReduce,
            bytes: Bytes(bytes),
            dtype: DataType::Bfloat16,
            in_place: true,
            algorithm: Choice::Auto,
            protocol: Choice::Auto,
            channels: Some(channels),
        });
        let calls = (300e9 / bytes as f64).clamp(200.0, 1500.0) as usize;
        for _ in 0..calls {
            program.push(Op {
                label: "op".into(),
                kind: "op".into(),
                stream,
                what: call.clone(),
                after: Vec::new(),
                issue: SimDuration::ZERO,
                framework: false,
            });
        }
        let step = simulator.run(&graph, Mechanisms::default(), Level::Flows).unwrap();
        let activities = &step.ranks[0].activities;
        let end = activities.iter().filter(|a| a.op < first).map(|a| a.end.0).max().unwrap();
        let ends: Vec<u64> = activities.iter().filter(|a| a.op >= first && a.end.0 < end).map(|a| a.end.0).collect();
        let meanwhile = (ends[ends.len() - 1] - ends[0]) as f64 / 1e9 / (ends.len() - 1) as f64;
        (end as f64 / 1e9 / quiet, meanwhile)
    };
    let (mut computation, mut communication) = (Errors::default(), Errors::default());
    for row in rows("beside").iter().filter(|r| r["beside"] == "all_reduce") {
        let name = row["compute"].as_str().unwrap();
        let channels = number(row, "channels") as u32;
        let (slower, _) = run(name, channels, 402_685_952);
        computation.add(&format!("{name}, {channels} channels"), slower, number(row, "ms") / alone(name));
    }
    for row in rows("meanwhile").iter().filter(|r| number(r, "mb") >= 16.0 && r["compute"] != "none") {
        let name = row["compute"].as_str().unwrap();
        let (channels, mb) = (number(row, "channels") as u32, number(row, "mb"));
        let (_, meanwhile) = run(name.split(' ').next().unwrap(), channels, (mb * 1e6) as u64);
        communication.add(&format!("{mb} MB beside {name}, {channels} channels"), meanwhile, number(row, "ms"));
    }
    computation.check("computation without pause", 0.022, 0.04);
    communication.check("all-reduce without pause", 0.145, 1.30);
}

/// Goal: DDP of GPT blocks on 2 GPUs with 24 and with 4 channels, and without its all-reduces. Nothing is fitted to
/// these rows.
#[test]
fn ddp_on_two() {
    let machine = Machine::new("h200x2", None);
    let simulator = machine.simulator();
    let all: Value = serde_json::from_str(&data("beside.json")).unwrap();
    let (mut steps, mut exposed) = (Errors::default(), Errors::default());
    for channels in [24, 4] {
        let measured = |step: &str| {
            let rows = all["clocks"]["rows"].as_array().unwrap();
            number(rows.iter().find(|r| r["step"] == step && r["channels"] == channels).unwrap(), "ms")
        };
        let alone = measured("gpt");
        // As in the scenario, whose times are of another day.
        let pass = |ms: f64| format!("{} ms", ms / (1.3444 + 2.9764) * alone / 12.0);
        let (forward, backward, channels) = (pass(1.3444), pass(2.9764), channels.to_string());
        let changes = [
            ("machine.topology", "h200x2"),
            ("layout.data", "2"),
            ("layers.0.forward", forward.as_str()),
            ("layers.0.backward", &backward),
            ("communication.channels", &channels),
        ];
        let silent = Mechanisms { communication: false, ..Mechanisms::default() };
        let graph = machine.graph(&builtin("gpt-ddp", &changes));
        let silent = ms(simulator.run(&graph, silent, Level::Flows).unwrap().time);
        let (full, over) = step(&machine, &simulator, "gpt-ddp", &changes);
        steps.add(&format!("{channels} channels, no all-reduce"), silent, measured("ddp without all-reduce"));
        steps.add(&format!("{channels} channels, step"), full, measured("ddp"));
        exposed.add(&format!("{channels} channels, exposed"), over, measured("ddp") - alone);
    }
    steps.check("DDP on 2 GPUs", 0.02, 0.03);
    exposed.check("DDP on 2 GPUs, exposed", 0.10, 0.15);
}

/// Goal: what the calls of DDP and FSDP take beside blocks of GPT on 2 GPUs, with 24 and with 8 channels, where the
/// kernels of both GPUs run. Nothing is fitted to these rows.
#[test]
fn calls_in_steps() {
    let machine = Machine::new("h200x2", None);
    let simulator = machine.simulator();
    let all: Value = serde_json::from_str(&data("traced.json")).unwrap();
    let alone = [0, 1].map(|rank| all["alone_ms"][rank].as_f64().unwrap());
    let spread = (alone[0] / alone[1] - 1.0).to_string();
    let mut calls = Errors::default();
    for row in all["rows"].as_array().unwrap() {
        let (kind, reshard) = (row["step"].as_str().unwrap(), row["reshard"].to_string());
        let channels = row["channels"].to_string();
        let mut changes =
            vec![("machine.topology", "h200x2"), ("layout.data", "2"), ("communication.channels", &channels)];
        changes.push(("machine.spread", &spread));
        if kind == "fsdp" {
            changes.push(("data_parallel.reshard", &reshard));
        }
        let graph = machine.graph(&builtin(&format!("gpt-{kind}"), &changes));
        let step = simulator.run(&graph, Mechanisms::default(), Level::Flows).unwrap();
        let collective: Collective = row["collective"].as_str().unwrap().parse().unwrap();
        let of_kind =
            |op: usize| matches!(&graph.programs[0].ops[op].what, What::Collective(c) if c.collective == collective);
        let busy: u64 = step.ranks[0].activities.iter().filter(|a| of_kind(a.op)).map(|a| a.end.0 - a.start.0).sum();
        let what = format!("{kind} reshard {reshard} {collective}, {channels} channels");
        calls.add(&what, busy as f64 / 1e9, number(row, "both"));
    }
    calls.check("calls in steps", 0.045, 0.16);
}
