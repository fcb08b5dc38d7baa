//! Goal: strategies take what they take by hand, to the picosecond, where nothing disturbs them.

use crate::common::{Machine, builtin, read};
use collcast_scenarios::file::Scenario;
use collcast_scenarios::study;
use collcast_sim::units::SimDuration;
use collcast_sim::workload::{Jitter, Level, Mechanisms, OpGraph, Step};

const CALM: Mechanisms = Mechanisms { interference: false, launch: false, framework: false, communication: true };
const SILENT: Mechanisms = Mechanisms { communication: false, ..CALM };

fn us(us: u64) -> SimDuration {
    SimDuration(us * 1_000_000)
}

/// A scenario of equal layers on 4 H200.
fn layers(layout: &str, strategy: &str, count: u32, forward: u64, backward: u64, elements: u64) -> String {
    format!(
        "schema = \"collcast/scenario/1\"\nname = \"t\"\nmachine = {{ topology = \"h200x4\" }}\nlayout = {{ {layout} }}\n\
         data_parallel = {{ {strategy} }}\n[[layers]]\nname = \"layer\"\ncount = {count}\nforward = \"{forward} us\"\n\
         backward = \"{backward} us\"\nparameters = [{elements}]\noutput = \"1 MiB\"\n"
    )
}

fn run(text: &str, mechanisms: Mechanisms) -> Step {
    let machine = Machine::new("h200x4", None);
    let scenario = read(text);
    machine.simulator().run(&machine.graph(&scenario), mechanisms, Level::Flows).unwrap()
}

/// How long the only call of a kind takes alone.
fn call(step: &Step, kind: &str) -> SimDuration {
    let calls = step.ranks[0].communication[kind];
    SimDuration(calls.busy.0 / calls.count as u64)
}

/// Goal: bubbles are those of the papers on ideal links.
#[test]
fn pipelines_have_the_bubbles_of_their_closed_forms() {
    for p in [2_u32, 4] {
        for m in [p, 2 * p, 4 * p] {
            // 8 layers: a stage takes f and b for all of them together.
            let (f, b) = (u64::from(8 / p) * 12, u64::from(8 / p) * 20);
            for schedule in ["gpipe", "1f1b"] {
                let layout = format!("pipeline = {p}, micro_batches = {m}, schedule = \"{schedule}\"");
                let step = run(&layers(&layout, "kind = \"none\"", 8, 12, 20, 0), SILENT);
                assert_eq!(step.time, us(u64::from(m + p - 1) * (f + b)), "{schedule} {p} {m}");
            }
            for v in [2, 8 / p] {
                let layout = format!("pipeline = {p}, micro_batches = {m}, schedule = \"interleaved\", chunks = {v}");
                let step = run(&layers(&layout, "kind = \"none\"", 8, 12, 20, 0), SILENT);
                let expected = u64::from(m) * (f + b) + u64::from(p - 1) * (f + b) / u64::from(v);
                assert_eq!(step.time, us(expected), "interleaved {p} {m} {v}");
            }
        }
    }
}

/// Goal: stages wait for each other where layers hand on nothing too, slice by slice as well as by flows.
#[test]
fn stages_without_output_wait_for_each_other() {
    let machine = Machine::new("h200x4", None);
    for (chunks, schedule) in [(1_u32, "gpipe"), (1, "1f1b"), (2, "interleaved")] {
        let layout = format!("pipeline = 4, micro_batches = 4, schedule = \"{schedule}\", chunks = {chunks}");
        let text = layers(&layout, "kind = \"none\"", 8, 1200, 2000, 0);
        // 2 layers a stage, 4 micro-batches, and a bubble of 3 stages.
        let serial = us(4 * 2 * 3200 + 3 * 2 * 3200 / u64::from(chunks));
        for output in ["", "output = \"0 B\"\n"] {
            let graph = machine.graph(&read(&text.replace("output = \"1 MiB\"\n", output)));
            for level in [Level::Flows, Level::Slices] {
                let time = machine.simulator().run(&graph, CALM, level).unwrap().time;
                assert!(time > serial && time < serial + us(1000), "{schedule} {level:?}: {time}, not {serial}");
            }
        }
    }
}

/// Goal: a receive that waits is no communication. 1F1B with 4 stages of 3.2 ms and 2 micro-batches: rank 0 waits the bubble of
/// 9.6 ms, and the way to the end has the passes of all stages that it waits for.
#[test]
fn waits_for_a_sender_are_no_communication() {
    const KIND: &str = "pipeline send/recv";
    let machine = Machine::new("h200x4", None);
    let graph = machine.graph(&read(&layers("pipeline = 4, micro_batches = 2", "kind = \"none\"", 4, 1200, 2000, 0)));
    for level in [Level::Flows, Level::Slices] {
        let step = machine.simulator().run(&graph, CALM, level).unwrap();
        let calls = step.ranks[0].communication[KIND];
        assert!(calls.count == 4 && calls.exposed <= calls.busy && calls.busy < us(500), "{level:?}: {calls:?}");
        assert!(calls.waits > us(9_500) && calls.waits < us(10_500), "{level:?}: {calls:?}");
        let of = |kind: &str| -> u64 {
            step.path.iter().filter(|part| &*part.what == kind).map(|part| (part.to - part.from).0).sum()
        };
        assert!(of(KIND) < us(500).0, "{level:?}: {:?}", step.path);
        assert_eq!(of("forward") + of("backward"), us(16_000).0, "{level:?}: {:?}", step.path);
        assert_eq!(step.path.iter().map(|part| (part.to - part.from).0).sum::<u64>(), step.time.0, "{level:?}");
    }
}

/// Goal: 10 ms and 12 ms: one after the other their sum; overlapped, the first gradient and all
/// buckets one after another, since those take longer than what makes them.
#[test]
fn ten_and_twelve() {
    let machine = Machine::new("h200x4", None);
    let simulator = machine.simulator();
    let step = |changes: &[(&str, &str)], mechanisms| {
        let scenario = builtin("ten-and-twelve", changes);
        simulator.run(&machine.graph(&scenario), mechanisms, Level::Flows).unwrap()
    };
    let serial = step(&[("data_parallel.kind", "at_end")], CALM);
    let reduce = call(&serial, "data-parallel all_reduce");
    assert_eq!(serial.time, us(10_000) + reduce);
    assert!((reduce.as_us() - 12_000.0).abs() < 120.0, "{reduce}");
    let overlapped = step(&[("data_parallel.kind", "ddp")], CALM);
    let bucket = call(&overlapped, "data-parallel all_reduce");
    assert!(bucket > us(250));
    assert_eq!(overlapped.time, us(250) + bucket.times(40));
    assert_eq!(step(&[("data_parallel.kind", "ddp")], SILENT).time, us(10_000));
    assert_eq!(step(&[("data_parallel.kind", "none")], Mechanisms::default()).time, us(10_000));
}

/// Goal: FSDP by hand, with `n` units, gather `g`, scatter `r`, passes `f` and `b`.
///
/// Where computation takes longer (`f > g`, `b > g + r`) only the first gather and the last scatter
/// show: `n (f + b) + g + r`. Where communication takes longer (`f < g`, `b < g`, `b < r`) it is busy
/// from the first gather to the last, then the last forward pass runs, then it is busy to the end:
/// `n g + f + (n - 1) g + n r`; with parameters kept only the scatters follow: `n g + f + b + n r`.
#[test]
fn fsdp_exposes_what_a_hand_calculation_says() {
    let strategy = |reshard| format!("kind = \"fsdp\", reshard = {reshard}, copies = false");
    let n = 6;
    for (f, b) in [(4000, 8000), (100, 200)] {
        for reshard in [true, false] {
            let step = run(&layers("data = 4", &strategy(reshard), n, f, b, 200_000_000), CALM);
            let (g, r) = (call(&step, "fsdp all_gather"), call(&step, "fsdp reduce_scatter"));
            let (f, b, n) = (us(f), us(b), u64::from(n));
            let expected = if f > g {
                assert!(b > g + r);
                (f + b).times(n) + g + r
            } else if reshard {
                assert!(b < g && b < r);
                g.times(n) + f + g.times(n - 1) + r.times(n)
            } else {
                g.times(n) + f + b + r.times(n)
            };
            assert_eq!(step.time, expected, "{f} {b} {reshard}");
        }
    }
}

/// Goal: a model without communication, and the same with communication left out, take the same.
#[test]
fn without_communication_a_step_is_its_computation() {
    for (strategy, layout) in
        [("ddp", "data = 4"), ("at_end", "data = 4"), ("one_gpu", "data = 4"), ("fsdp", "data = 4")]
    {
        let kind = format!("kind = \"{strategy}\"");
        let silent = run(&layers(layout, &kind, 5, 70, 130, 3_000_000), SILENT);
        assert_eq!(silent.time, us(5 * 200), "{strategy}");
    }
}

/// Goal: running one rank of each role is running all of them.
#[test]
fn folded_and_unfolded_steps_are_equal() {
    let machine = Machine::new("dgx-h100", Some(2));
    let simulator = machine.simulator();
    for changes in [
        &[("layout.tensor", "2"), ("layout.pipeline", "2"), ("layout.data", "4")][..],
        &[("layout.tensor", "2"), ("layout.pipeline", "4"), ("layout.data", "2")],
    ] {
        let mut all = vec![("layout.micro_batches", "4"), ("machine.nodes", "2"), ("layers.0.count", "8")];
        all.extend_from_slice(changes);
        let mut graph = machine.graph(&builtin("megatron-128", &all));
        let folded = simulator.run(&graph, Mechanisms::default(), Level::Flows).unwrap();
        // Jitter of nothing tells all ranks apart and changes no time.
        graph.jitter = Some(Jitter { ppm: 0, seed: 1 });
        let unfolded = simulator.run(&graph, Mechanisms::default(), Level::Flows).unwrap();
        assert_eq!(unfolded.ranks.len(), 16);
        assert!(folded.ranks.len() < 16, "{}", folded.ranks.len());
        assert!((folded.time.as_us() / unfolded.time.as_us() - 1.0).abs() < 0.002, "{} {}", folded.time, unfolded.time);
    }
}

/// Goal: one flow a call comes near to all its slices, with and without interference. Method: layers of no shape; products, which lose
/// power to what calls send; and NVLS, whose sums are loaded through switches, by all blocks at once: a flow spreads them evenly.
#[test]
fn flows_agree_with_slices() {
    let by_strategy = ["ddp", "fsdp", "at_end"].map(|kind| {
        let text = layers("data = 4", &format!("kind = \"{kind}\""), 3, 150, 300, 8_000_000);
        ("h200x4", kind, 0.005, read(&text.replace("parameters", "kernels = 3\nparameters")))
    });
    let products = ("h200x4", "products", 0.005, builtin("ddp-buckets", &[("layers.0.count", "6")]));
    let switches = ("dgx-h100", "switches", 0.015, builtin("backward-100mb", &[("communication.algorithm", "nvls")]));
    for (machine, name, bound, scenario) in by_strategy.into_iter().chain([products, switches]) {
        let machine = Machine::new(machine, None);
        let mut simulator = machine.simulator();
        simulator.settings.nccl.nvls = None;
        let graph = machine.graph(&scenario);
        for mechanisms in [CALM, Mechanisms::default()] {
            let [flows, slices] =
                [Level::Flows, Level::Slices].map(|level| simulator.run(&graph, mechanisms, level).unwrap());
            let ratio = flows.time.as_us() / slices.time.as_us();
            println!("{name} {mechanisms:?}: flows {} slices {} ratio {ratio:.4}", flows.time, slices.time);
            assert!((ratio - 1.0).abs() < bound, "{name} {mechanisms:?}: {ratio}");
        }
    }
}

/// Goal: a straggler holds up all, a late host too, faster neighbours wait, and a seed gives the same step each time.
#[test]
fn stragglers_and_jitter() {
    let base = layers("data = 4", "kind = \"at_end\"", 4, 1000, 2000, 1_000_000);
    let even = run(&base, CALM);
    let slow = run(&format!("{base}[[stragglers]]\nrank = 2\nslow = 1.5\n"), CALM);
    assert_eq!(slow.time.0 - even.time.0, us(6000).0);
    let (machine, scenario) =
        (Machine::new("h200x4", None), read(&format!("{base}[[stragglers]]\nrank = 2\nslow = 1.5\n")));
    let without = machine.graph(&scenario.even().unwrap());
    let parts = study::breakdown(&machine.simulator(), (&machine.graph(&scenario), Some(&without)), &slow).unwrap();
    assert_eq!((parts.stragglers, parts.busiest, parts.compute), (us(6000).0 as i64, us(12_000), us(18_000)));
    let late = run(&format!("{base}[[stragglers]]\nrank = 3\nlate = \"700 us\"\n"), CALM);
    assert_eq!(late.time.0 - even.time.0, us(700).0);
    let spread = run(&base.replace("topology = \"h200x4\"", "topology = \"h200x4\", spread = 0.5"), CALM);
    assert_eq!(spread.time, even.time);
    assert_eq!(spread.ranks.iter().map(|r| r.count).collect::<Vec<_>>(), [2, 2]);
    // A slow one of the faster ranks is that much slower than it was, and the others keep their pace without it.
    let paced = base.replace("topology = \"h200x4\"", "topology = \"h200x4\", spread = 0.25");
    let scenario = read(&format!("{paced}[[stragglers]]\nrank = 1\nslow = 1.5\n"));
    let pace = |scenario: &Scenario| {
        let graph = Machine::new("h200x4", None).graph(scenario);
        graph.ranks.iter().map(|rank| rank.pace_ppm).collect::<Vec<_>>()
    };
    assert_eq!(pace(&scenario), [1_000_000, 1_200_000, 1_000_000, 800_000]);
    assert_eq!(pace(&scenario.even().unwrap()), pace(&read(&paced)));
    // Seeds go on past the largest, and of two times the median is between them.
    let jitter = Jitter { ppm: 20_000, seed: u64::MAX };
    let (simulator, graph) = (machine.simulator(), machine.graph(&read(&base)));
    let found = study::spread(&simulator, &graph, (jitter, 2), Level::Flows).unwrap();
    let [low, median, high] = found.quantiles();
    assert!(found.times[1].0 == 0 && low < median && median.0 == u64::midpoint(low.0, high.0), "{found:?}");
    let machine = Machine::new("h200x4", None);
    let mut graph = machine.graph(&read(&base));
    let mut with = |seed| {
        graph.jitter = Some(Jitter { ppm: 20_000, seed });
        machine.simulator().run(&graph, CALM, Level::Flows).unwrap().time
    };
    let (a, again, b) = (with(1), with(1), with(2));
    assert_eq!(a, again);
    assert_ne!(a, b);
}

/// Goal: a turn waits for what it names, and a name that no earlier turn has is refused at its place: a misspelt one, its own, a
/// later one. A block that runs again waits for its last time.
#[test]
fn turns_wait_for_earlier_ones() {
    let text = |turns: &str| {
        format!(
            "schema = \"collcast/scenario/1\"\nname = \"t\"\nmachine = {{ topology = \"h200x4\" }}\n[[communicators]]\nname = \"c\"\n\
             size = 4\nranks = [0, 3]\n[[communicators]]\nname = \"unused\"\nsize = 2\nranks = [0, 3]\n[[blocks]]\nname = \"b\"\n\
             turns = [{{ name = \"in it\", time = \"1 ms\", id = \"in it\", after = [\"in it\"] }}]\n[[programs]]\nranks = [0, 3]\nturns = [\n\
             {{ name = \"g\", call = \"all_gather\", on = \"c\", size = \"1 GiB\", hidden = true, id = \"g\" }},\n{turns}]\n"
        )
    };
    let kernel = |after: &str| text(&format!("{{ name = \"k\", time = \"1 ms\", id = \"k\", after = [\"{after}\"] }}"));
    let machine = Machine::new("h200x4", None);
    let graph = machine.graph(&read(&kernel("g")));
    // Nobody makes a call on the other communicator.
    assert_eq!((graph.groups.len(), &graph.programs[0].ops[1].after), (1, &vec![0]));
    let refused = |text: &str, parts: &[&str]| {
        let error = collcast_scenarios::file::read(text, "test.toml").unwrap_err().render();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    };
    refused(&kernel("typo"), &["no turn before `k` has the id `typo`", "test.toml:19", "known: g, k"]);
    refused(&kernel("k"), &["no turn before `k` has the id `k`", "turns run in order"]);
    let later = "{ name = \"k\", time = \"1 ms\", after = [\"l\"] }, { name = \"l\", time = \"1 ms\", id = \"l\" }";
    refused(&text(later), &["no turn before `k` has the id `l`", "turns run in order"]);
    let block = |times: u32| text(&format!("{{ name = \"b\", block = \"b\", times = {times} }}"));
    assert_eq!(machine.graph(&read(&block(2))).programs[0].ops.len(), 3);
    refused(&block(1), &["no turn before `in it` has the id `in it`", "test.toml:14"]);
    // A call, and a message, of some ranks of a group alone.
    let half = kernel("g").replace("[[programs]]\nranks = [0, 3]", "[[programs]]\nranks = [0, 1]")
        + "[[programs]]\nranks = [2, 3]\nturns = [{ name = \"k\", time = \"1 ms\" }]\n";
    refused(&half, &["`c` joins ranks 0 and 2: rank 0 makes calls on it, and rank 2 none", "test.toml:5"]);
}

/// Goal: mistakes are shown at their place, with a way out.
#[test]
fn bad_scenarios_are_refused_with_their_place() {
    let good = layers("data = 4", "kind = \"ddp\"", 2, 10, 20, 100);
    for (from, to, expected) in [
        ("data = 4", "dat = 4", &["test.toml:4", "^^^", "did you mean `data`"][..]),
        ("\"ddp\"", "\"dpp\"", &["did you mean `ddp`", "known: ddp"]),
        ("forward = \"10 us\"", "forward = \"10\"", &["test.toml:9", "expected a time such as"]),
        ("count = 2", "count = 0", &["0 layers"]),
        ("data = 4", "pipeline = 4", &["4 stages of 1 chunks share 2 layers"]),
        ("data = 4", "data = 0", &["data is 0", "expected 1 to"]),
        ("data = 4", "data = 2048", &["communicators of 2048 ranks", "at most 1024"]),
        ("\"ddp\"", "\"fsdp\" }\njitter = { relative = 3.0", &["relative is 3"]),
        ("scenario/1", "scenario/2", &["expected `collcast/scenario/1`"]),
        ("backward = \"20 us\"\n", "", &["neither both times nor operations"]),
        ("parameters = [100]", "parameters = [2000000000000]", &["too many parameters"]),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let error = collcast_scenarios::file::read(&text, "test.toml").unwrap_err().render();
        for part in expected {
            assert!(error.contains(part), "{from}: `{part}` is missing in:\n{error}");
        }
    }
    let huge = good.replace("count = 2", "count = 10000").replace("data = 4", "micro_batches = 4096");
    let error = collcast_scenarios::file::read(&huge, "test.toml").unwrap_err().render();
    assert!(error.contains("the step has about"), "{error}");
    for name in collcast_scenarios::builtin::names() {
        builtin(name, &[]);
    }
    assert!(collcast_scenarios::file::json_schema().contains("first_bucket"));
}

/// Goal: 1,024 ranks are a few.
#[test]
fn a_thousand_ranks_are_a_few() {
    let scenario = builtin("megatron-1024", &[]);
    let machine = Machine::new("dgx-h100", Some(128));
    let step = machine.simulator().run(&machine.graph(&scenario), Mechanisms::default(), Level::Flows).unwrap();
    assert_eq!(step.ranks.iter().map(|r| r.count).sum::<usize>(), 1024);
    assert!(step.ranks.len() <= 64, "{}", step.ranks.len());
    println!("{} roles, {} events", step.ranks.len(), step.events);
}

/// Goal: NCCL's search of channels is done once for nodes that are alike, whatever groups and calls there are.
#[test]
fn nodes_that_are_alike_are_searched_once() {
    let machine = Machine::new("dgx-h100", Some(4));
    let changes =
        [("machine.nodes", "4"), ("layout.data", "4"), ("layout.micro_batches", "1"), ("layers.0.count", "8")];
    let graph = machine.graph(&builtin("megatron-128", &changes));
    let simulator = machine.simulator();
    for level in [Level::Flows, Level::Slices] {
        simulator.run(&graph, CALM, level).unwrap();
    }
    // In a node of 8 GPUs: pairs of a tensor group or of stages, and the GPUs of a data group.
    let searched = simulator.predictor().searches();
    assert!((1..=16).contains(&searched), "{searched} nodes were searched");
}

/// Goal: times whose sums cannot be held are refused, not cut: of a rank, of its lateness, and of ranks one after
/// another; shorter ones stay exact.
#[test]
fn times_that_no_step_takes_are_refused() {
    let machine = Machine::new("h200x4", None);
    let hours = |forward: u64, backward: u64, layout: &str, more: &str| {
        let h = 3_600_000_000;
        let text = layers(layout, "kind = \"none\"", 4, forward * h / 4, backward * h / 4, 0) + more;
        let graph = machine.graph(&read(&text));
        [Level::Flows, Level::Slices].map(|level| {
            let step = machine.simulator().run(&graph, CALM, level);
            step.map(|s| s.time).map_err(|e| e.to_string())
        })
    };
    assert_eq!(hours(1, 3, "data = 1", ""), [Ok(us(4 * 3_600_000_000)), Ok(us(4 * 3_600_000_000))]);
    let late = "[[stragglers]]\nrank = 1\nlate = \"18000 s\"\n";
    for (forward, backward, layout, more, expected) in [
        (2, 4, "data = 1", "", "what rank 0 does takes over 5 hours"),
        (2000, 2400, "data = 1", "", "what rank 0 does takes over 5 hours"),
        (0, 1, "data = 4", late, "what rank 1 does takes over 5 hours"),
        (4, 8, "pipeline = 4", "", "the step takes over 5 hours"),
    ] {
        for result in hours(forward, backward, layout, more) {
            let error = result.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}

/// Goal: a step of many operations is simulated once for ranks that are alike, not slice by slice on each; where all
/// differ it is refused before it is run.
#[test]
fn many_operations_are_folded_or_refused() {
    let machine = Machine::new("h200x4", None);
    let simulator = machine.simulator();
    let with = |parameters: usize| {
        let list = vec!["64"; parameters].join(", ");
        machine.graph(&read(&layers("data = 4", "kind = \"ddp\"", 1, 10, 20, 64).replace("[64]", &format!("[{list}]"))))
    };
    let run = |graph: &OpGraph, level| simulator.run(graph, CALM, level).map(|s| (s.slices, s.ranks.len()));
    let (few, mut many) = (run(&with(1), Level::Auto).unwrap(), with(50_000));
    assert_eq!(few, (true, 4));
    assert_eq!(run(&many, Level::Auto).unwrap(), (false, 1));
    let error = run(&many, Level::Slices).unwrap_err().to_string();
    assert!(error.contains("simulate it as flows: at most 6000000"), "{error}");
    many.jitter = Some(Jitter { ppm: 1, seed: 1 });
    let error = run(&many, Level::Auto).unwrap_err().to_string();
    assert!(error.contains("of 4 ranks that differ: at most 1500000 are simulated"), "{error}");
}

/// Goal: kernels of which a wave takes less than a picosecond, or of more tiles than are counted, begin and end once; sizes
/// that no kernel has are refused with their place.
#[test]
fn operations_of_any_size_run_or_are_refused() {
    let with = |shape: &str| {
        layers("data = 4", "kind = \"ddp\"", 1, 10, 20, 64)
            + "[[layers.operations]]\nname = \"large\"\nbytes = \"1 GiB\"\nparameters = [64]\n"
            + &format!("[[layers.operations]]\nname = \"odd\"\n{shape}\n")
    };
    let most = "matrix = [2147483648, 2147483648, 2147483648]\nbatch = 2147483648";
    for shape in ["bytes = \"100 B\"", "bytes = \"200 B\"", "matrix = [1, 1, 1]", most] {
        assert!(run(&with(shape), Mechanisms::default()).time >= us(30), "{shape}");
    }
    for (shape, line) in [
        ("matrix = [0, 64, 64]", 19),
        ("matrix = [64, 64, 4294967296]", 19),
        ("matrix = [64, 9223372036854775807, 64]", 19),
        ("matrix = [64, 64, 64]\nbatch = 0", 20),
        ("matrix = [64, 64, 64]\nbatch = 4294967296", 20),
    ] {
        let error = collcast_scenarios::file::read(&with(shape), "test.toml").unwrap_err().render();
        assert!(error.contains("expected 1 to 2147483648") && error.contains(&format!("test.toml:{line}")), "{error}");
    }
}
