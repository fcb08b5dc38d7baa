//! Goal: algorithms in MSCCL XML are read, refused, proved and timed like our own, and ours are
//! written so that reading them gives the same steps.

use std::sync::Arc;

use crate::common::{cluster, naive, nvswitch_box, prior};
use collcast_sim::collective::{Algorithm, Buffers, Collective, DataType, Protocol};
use collcast_sim::engine::{Unobserved, fold, run, run_steady};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::network::{lay, order};
use collcast_sim::predict::{PredictError, Predictor, Settings};
use collcast_sim::schedule::msccl::{Imported, export, one_loop};
use collcast_sim::schedule::program::{Mutation, Step, Template};
use collcast_sim::schedule::verify::{VerifyError, verify};
use collcast_sim::schedule::{Call, Generator, Order, Schedule, Worker, valid_algorithms};
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;

const PAIRS: &str = include_str!("data/pairs2.xml");

/// All-reduce over two GPUs in place; every `re` needs what another block has received. Written
/// by hand after msccl-tools' `allreduce_allpairs`.
fn pairs(text: &str) -> Imported {
    Imported::parse(text, "pairs2.xml").unwrap()
}

fn in_place(collective: Collective, ranks: u32, count: u64) -> Call {
    let call = Call::of_size(collective, ranks, Bytes(0), DataType::Float32);
    Call { count, in_place: true, ..call }
}

fn schedule(imported: &Imported, call: &Call) -> Schedule {
    imported.schedule(call.clone(), &Limits::default()).unwrap()
}

/// Goal: what a stranger wrote is proved at every size it allows: in one part of each chunk, in
/// several, ragged.
#[test]
fn a_strangers_file_is_proved() {
    for count in [0, 2, 4, 1000, 262_144, 262_146, 1_000_002] {
        verify(&schedule(&pairs(PAIRS), &in_place(Collective::AllReduce, 2, count))).unwrap();
    }
}

/// Goal: the newer spelling (`op`, `step`, `buf`, `off`, defaults left out) is the same file.
#[test]
fn both_spellings_are_read() {
    let newer = PAIRS.replace("<step s=", "<op step=").replace(r#" depid="-1" deps="-1""#, "");
    let newer = newer.replace(r#" cnt="1""#, "").replace(r#" hasdep="0""#, "").replace(r#" o_chunks="0""#, "");
    let newer = newer.replace(r#"type="s" srcbuf="i" srcoff="#, r#"type="s" buf="i" off="#);
    assert_ne!(newer, PAIRS);
    let call = in_place(Collective::AllReduce, 2, 64);
    let (a, b) = (schedule(&pairs(PAIRS), &call), schedule(&pairs(&newer), &call));
    assert_eq!(steps(&a), steps(&b));
}

/// Goal: a file of many steps is read, proved and told apart in time that grows with its steps.
/// Method: 400,000 steps, for which time that grows with their square would be an hour.
#[test]
fn many_steps_are_read() {
    const STEPS: usize = 100_000;
    let mut text =
        String::from(r#"<algo name="many" proto="LL" nchannels="1" ngpus="2" coll="allgather" nchunksperloop="2">"#);
    for gpu in 0..2 {
        let places = r#"depid="-1" deps="-1" hasdep="0"/>"#;
        text += &format!(r#"<gpu id="{gpu}" i_chunks="1" o_chunks="2" s_chunks="0">"#);
        for (tb, send, recv, kind, from) in [(0, 1 - gpu, -1, "s", gpu), (1, -1, 1 - gpu, "r", 1 - gpu)] {
            text += &format!(r#"<tb id="{tb}" send="{send}" recv="{recv}" chan="0">"#);
            for step in 0..STEPS {
                let (kind, from) = if tb == 0 && step == 0 { ("cpy", gpu) } else { (kind, from) };
                let src = if kind == "r" { ("o", from) } else { ("i", 0) };
                text += &format!(
                    r#"<step s="{step}" type="{kind}" srcbuf="{}" srcoff="{}" dstbuf="o" dstoff="{from}" cnt="1" {places}"#,
                    src.0, src.1
                );
                if tb == 1 && step + 2 == STEPS {
                    break;
                }
            }
            text += "</tb>";
        }
        text += "</gpu>";
    }
    let call = Call::of_size(Collective::AllGather, 2, Bytes(1 << 20), DataType::Float32);
    let schedule = schedule(&pairs(&(text + "</algo>")), &call);
    verify(&schedule).unwrap();
    assert_eq!(schedule.identity(), schedule.identity());
}

/// Goal: each mistake has its own message, with the line and a way out.
#[test]
fn bad_files_are_refused() {
    let machine = Imported::parse("\n<system version=\"1\"/>", "x.xml").unwrap_err();
    assert!(machine.what.contains("root is <system>") && machine.line == 2, "{machine}");
    let dependency = r#"depid="0" deps="1" hasdep="1""#;
    for (from, to, expected, line) in [
        ("</algo>", "", "not XML", 1),
        (r#"coll="allreduce""#, r#"coll="allreduse""#, "did you mean `all_reduce`", 1),
        (r#"coll="allreduce""#, r#"coll="custom""#, "promises nothing", 1),
        (r#"proto="Simple""#, "", "no proto", 1),
        (r#"ngpus="2""#, r#"ngpus="3""#, "gpu 2 is missing", 1),
        (r#"ngpus="2""#, r#"ngpus="4000000000""#, "ngpus=\"4000000000\" is not from 1", 1),
        (r#"nchannels="2""#, r#"nchannels="1""#, "chan=\"1\" of tb 1 is not below", 7),
        (r#"type="re""#, r#"type="rex""#, "`rex` is no step", 8),
        (r#"type="re""#, r#"type="ra""#, "residual", 8),
        (r#"<tb id="0" send="1""#, r#"<tb id="0" send="-1""#, "`s` sends, but tb 0 on gpu 0 has no peer", 4),
        (r#"<tb id="0" send="1""#, r#"<tb id="0" send="0""#, "is no other GPU", 3),
        (r#"<tb id="0" send="1""#, r#"<tb id="7" send="1""#, "tb 1 of gpu 0 stands where tb 0 should", 7),
        (r#"srcoff="1""#, r#"srcoff="2""#, "chunks 2 to 3 of buffer i, which has 2", 4),
        (r#"srcoff="1""#, r#"srcoff="99999999999999999999""#, "is not a number that fits", 4),
        (r#"srcoff="1""#, r#"srcoff="-1""#, "srcoff=\"-1\" of a step that needs it", 4),
        (r#"srcoff="1""#, r#"srcoff="-7""#, "srcoff=\"-7\" of <step> is negative", 4),
        (r#"dstoff="0" cnt="1""#, r#"dstoff="0" cnt="-1""#, "cnt=\"-1\" of a step that needs it", 4),
        (
            r#"s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1""#,
            r#"s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0""#,
            "hasdep=\"0\" and never tells",
            8,
        ),
        (dependency, r#"depid="5" deps="1" hasdep="1""#, "step 1 of tb 5, which gpu 0 does not have", 8),
        (dependency, r#"depid="1" deps="2" hasdep="1""#, "a cycle", 8),
        (
            r#"srcoff="1" dstbuf="s" dstoff="0" cnt="1""#,
            r#"srcoff="0" dstbuf="s" dstoff="0" cnt="2""#,
            "1 chunks are received from gpu 0 to gpu 1 on channel 0, but line 4 sends 2",
            16,
        ),
        (
            r#"s="1" type="s""#,
            r#"s="1" type="nop""#,
            "0 steps send from gpu 0 to gpu 1 on channel 1, and 1 receive",
            21,
        ),
        (r#"send="1" recv="1" chan="1""#, r#"send="1" recv="1" chan="0""#, "two blocks of gpu 0 send", 7),
        (r#"i_chunks="2""#, r#"i_chunks="3""#, "i_chunks=\"3\" of gpu 0", 2),
    ] {
        let text = PAIRS.replacen(from, to, 1);
        assert_ne!(text, PAIRS, "{from}");
        let error = Imported::parse(&text, "x.xml").unwrap_err();
        assert!(error.what.contains(expected), "{error}");
        assert_eq!(error.line, line, "{error}");
        assert!(!error.hint.is_empty());
    }
}

/// Goal: calls that a file is not for are refused, with what would do.
#[test]
fn calls_that_do_not_fit_are_refused() {
    let call = in_place(Collective::AllReduce, 2, 1000);
    for (text, call, expected) in [
        (PAIRS.to_owned(), Call { count: 1001, ..call.clone() }, "multiple of 8 bytes"),
        (PAIRS.to_owned(), Call { in_place: false, ..call.clone() }, "ask for --in-place"),
        (
            PAIRS.to_owned(),
            Call { collective: Collective::Broadcast, ..call.clone() },
            "ask for --collective all_reduce",
        ),
        (PAIRS.to_owned(), in_place(Collective::AllReduce, 3, 1000), "is for 2 ranks"),
        (PAIRS.replace("inplace", r#"maxBytes="1024" inplace"#), call, "is for 0 B to 1 KiB"),
    ] {
        let error = pairs(&text).schedule(call, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Goal: a file whose steps fit together but compute something else is disproved, as the user's
/// mistake and not ours.
#[test]
fn wrong_algorithms_are_disproved() {
    let topology = nvswitch_box(2, 450.0);
    let profile = prior();
    let predictor = Predictor::new(&topology, &profile);
    let wait = r#"depid="0" deps="1""#;
    for (from, to, race) in [
        // Without its token the sum may come before what it adds.
        (wait, r#"depid="-1" deps="-1""#, true),
        (
            r#"type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="0""#,
            r#"type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="1""#,
            false,
        ),
        (r#"type="re" srcbuf="s""#, r#"type="cpy" srcbuf="s""#, false),
    ] {
        for count in [2, 1000, 4_000_000] {
            let text = PAIRS.replacen(from, to, 1);
            let call = in_place(Collective::AllReduce, 2, count);
            let error =
                predictor.predict_imported(&pairs(&text), &call, &Settings::default(), &mut Unobserved).unwrap_err();
            assert!(!error.is_internal());
            let PredictError::Disproved { error, .. } = error else { panic!("{error}") };
            let found = matches!(error, VerifyError::Race { .. } | VerifyError::BadRead { .. });
            assert!(!race || found, "{error}");
        }
    }
}

/// Another schedule's workers.
#[derive(Debug)]
struct Borrowed(Arc<Schedule>);

impl Generator for Borrowed {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        self.0.worker(rank, channel, lane)
    }
    fn scratch(&self, rank: Rank) -> u64 {
        self.0.scratch_len(rank)
    }
}

/// Goal: an instruction of an imported program that is left out, doubled, exchanged, or does not
/// wait or signal is noticed.
#[test]
fn every_mutation_of_a_file_is_noticed() {
    let topology = nvswitch_box(2, 450.0);
    let original = Arc::new(schedule(&pairs(PAIRS), &in_place(Collective::AllReduce, 2, 1000)));
    let hash = |schedule: &Schedule| {
        let laid = lay(&topology, &prior(), &Default::default(), schedule).unwrap();
        run(&laid.instance, &mut Unobserved).map(|o| (o.end, o.trace_hash))
    };
    let mut noticed = 0;
    for (t, template) in original.templates.iter().enumerate() {
        for (op, instruction) in template.ops().iter().enumerate() {
            for mutation in Mutation::ALL {
                let changes = match mutation {
                    Mutation::Unordered => instruction.wait.is_some(),
                    Mutation::Silent => instruction.signal && template.ops().len() == 2,
                    Mutation::SwapWithNext => op + 1 < template.ops().len(),
                    _ => true,
                };
                if !changes {
                    continue;
                }
                let mut templates = original.templates.clone();
                templates[t] = template.mutated(mutation, op);
                let generator = Box::new(Borrowed(Arc::clone(&original)));
                let (call, plan) = (original.call.clone(), original.plan);
                let mutant = Schedule::from_parts(call, plan, original.lanes, templates, generator);
                assert!(verify(&mutant).is_err() || hash(&mutant) != hash(&original), "{mutation:?} of {op} in {t}");
                noticed += 1;
            }
        }
    }
    assert!(noticed > 15, "{noticed}");
}

/// What every worker does, without the instruction's number in its program.
fn steps(schedule: &Schedule) -> Vec<(Rank, Vec<Step>)> {
    let of = |w: &Worker| {
        let steps = schedule.templates[w.template].steps(&w.parameters, usize::MAX);
        steps.into_iter().map(|s| Step { op: 0, span: 0, ..s }).collect()
    };
    schedule.workers().map(|(rank, _, _, w)| (rank, of(&w))).collect()
}

fn ours(collective: Collective, algorithm: Algorithm, topology: &Topology, channels: u32, in_place: bool) -> Schedule {
    let ranks = topology.ranks();
    let call = Call { in_place, ..Call::of_size(collective, ranks, Bytes(1 << 20), DataType::Float32) };
    let limits =
        Limits { channels, p2p_channels: (2 * channels, 2 * channels), exact_channels: true, ..Limits::default() };
    let plan = Plan::new(&call, algorithm, Protocol::Simple, &limits);
    one_loop(&call, &plan, &order(topology, ranks)).unwrap()
}

/// Goal: a ring that is written and read back has the very steps it had.
#[test]
fn a_written_ring_has_the_same_steps() {
    for ranks in [2, 3, 8] {
        for (collective, in_place) in
            [(Collective::AllReduce, false), (Collective::AllGather, true), (Collective::ReduceScatter, false)]
        {
            let ring = ours(collective, Algorithm::Ring, &nvswitch_box(ranks, 450.0), 2, in_place);
            let text = export(&ring, "ring").unwrap();
            let imported = Imported::parse(&text, "ring.xml").unwrap();
            assert_eq!(steps(&schedule(&imported, &ring.call)), steps(&ring), "{collective} {ranks}\n{text}");
        }
    }
}

/// PAT sends three chunks before it receives from six ranks on, and MSCCL's FIFOs hold two.
fn sends_too_far_ahead(algorithm: Algorithm, topology: &Topology) -> bool {
    algorithm == Algorithm::Pat && topology.ranks() > 5
}

/// Goal: everything we generate between pairs of ranks can be written, and what is read back is proved, but where MSCCL
/// would wait for ever; written again it is the same file.
#[test]
fn every_algorithm_survives_the_format() {
    let mut written = 0;
    for topology in
        [nvswitch_box(1, 450.0), nvswitch_box(2, 450.0), nvswitch_box(7, 450.0), cluster(3, 2, 2), cluster(5, 1, 1)]
    {
        for &collective in Collective::ALL {
            for &algorithm in valid_algorithms(collective) {
                for in_place in [false, true] {
                    // What switches combine has no words in the format.
                    let switches = matches!(
                        algorithm,
                        Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetDirect | Algorithm::CollnetChain
                    );
                    if (in_place && !collective.in_place()) || collective == Collective::SendRecv || switches {
                        continue;
                    }
                    let original = ours(collective, algorithm, &topology, 3, in_place);
                    let what = format!("{} {collective} {algorithm} {in_place}", topology.name);
                    verify(&original).unwrap_or_else(|e| panic!("{what}: {e}"));
                    let text = export(&original, "a \"b\" & c").unwrap();
                    let imported = Imported::parse(&text, "a.xml").unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
                    assert_eq!(imported.name, "a \"b\" & c");
                    // At its own size, and at one with several loops and a ragged end.
                    for factor in [1, 7, 524_288] {
                        let call = Call { count: original.call.count * factor, ..original.call.clone() };
                        let twin = Imported::parse(&text, "a.xml").unwrap();
                        if factor < 8 || topology.ranks() < 4 {
                            match verify(&schedule(&twin, &call)) {
                                Ok(_) => {}
                                Err(VerifyError::Deadlock { .. }) if sends_too_far_ahead(algorithm, &topology) => {}
                                Err(e) => panic!("{what} {factor}: {e}\n{text}"),
                            }
                        }
                    }
                    let again = export(&schedule(&imported, &original.call), "x").unwrap();
                    let third = Imported::parse(&again, "x").unwrap();
                    assert_eq!(export(&schedule(&third, &original.call), "x").unwrap(), again, "{what}");
                    written += 1;
                }
            }
        }
    }
    assert!(written > 80, "{written}");
}

/// Goal: imported schedules are timed like any other: the naive engine and the folded run agree
/// with the engine, and a symmetric file folds.
#[test]
fn files_are_timed_exactly() {
    let two = nvswitch_box(2, 450.0);
    let hosts = cluster(4, 1, 1);
    let ring = export(&ours(Collective::AllReduce, Algorithm::Ring, &hosts, 2, false), "ring").unwrap();
    let tree = export(&ours(Collective::AllReduce, Algorithm::CollTree, &cluster(3, 2, 2), 1, false), "tree").unwrap();
    let ring = Imported::parse(&ring, "ring.xml").unwrap();
    let tree = Imported::parse(&tree, "tree.xml").unwrap();
    let of = |ranks, count| Call { in_place: false, ..in_place(Collective::AllReduce, ranks, count) };
    for (topology, imported, call, folds) in [
        (&two, pairs(PAIRS), in_place(Collective::AllReduce, 2, 1000), true),
        (&two, pairs(PAIRS), in_place(Collective::AllReduce, 2, 600_000), true),
        (&hosts, ring.clone(), of(4, 8), true),
        (&hosts, ring, of(4, 800_000), true),
        (&cluster(3, 2, 2), tree, of(6, 60_000), false),
    ] {
        let schedule = schedule(&imported, &call);
        let laid = lay(topology, &prior(), &Default::default(), &schedule).unwrap();
        let fast = run(&laid.instance, &mut Unobserved).unwrap();
        let slow = naive::run(&laid.instance);
        assert_eq!((fast.end.0, &fast.load), (slow.end, &slow.load), "{}", imported.name);
        assert_eq!(fast.messages, slow.log.messages.len() as u64);
        let folded = fold(&laid.instance);
        let one = run(&folded.instance, &mut Unobserved).unwrap();
        assert_eq!((one.end, one.trace_hash, one.messages), (fast.end, fast.trace_hash, fast.messages));
        assert!(!folds || folded.instance.lanes.len() < laid.instance.lanes.len(), "{}", imported.name);
    }
}

/// Goal: long calls whose blocks wait for each other end, and carry what they carry when nothing is left out.
/// Method: FIFOs of 32 KiB make hundreds of loops, on machines of one and several hosts.
#[test]
fn long_calls_with_dependencies_end() {
    let buffers = Buffers { simple: Bytes(32_768), ll: Bytes(8_192), ll128: Bytes(61_440) };
    let limits = Limits { buffers, ..Limits::default() };
    let mut shorter = 0;
    let mut check = |topology: &Topology, imported: &Imported, call: &Call| {
        let schedule = imported.schedule(call.clone(), &limits).unwrap();
        if schedule.templates.iter().flat_map(Template::ops).all(|op| op.wait.is_none()) {
            return;
        }
        let what = format!("{} over {} of {}", imported.name, call.size(), topology.name);
        let laid = lay(topology, &prior(), &Default::default(), &schedule).unwrap();
        let instance = fold(&laid.instance).instance;
        let steady = run_steady(&instance).unwrap_or_else(|e| panic!("{what}: {e}"));
        let whole = run(&instance, &mut Unobserved).unwrap();
        let off = steady.end.0.abs_diff(whole.end.0) as f64 / whole.end.0 as f64;
        println!("{what}: {off:.1e}, {} of {} events", steady.events, whole.events);
        assert!(off < 5e-3, "{what}: {} not {}", steady.end.0, whole.end.0);
        assert_eq!((steady.messages, &steady.load), (whole.messages, &whole.load), "{what}");
        shorter += usize::from(steady.events < whole.events);
    };
    check(&nvswitch_box(2, 450.0), &pairs(PAIRS), &in_place(Collective::AllReduce, 2, 3_145_728));
    for topology in [nvswitch_box(8, 450.0), cluster(2, 4, 2)] {
        for (collective, algorithm) in
            Collective::ALL.iter().flat_map(|c| valid_algorithms(*c).iter().map(|a| (*c, *a)))
        {
            let switches = matches!(
                algorithm,
                Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetDirect | Algorithm::CollnetChain
            );
            if switches || collective == Collective::SendRecv || sends_too_far_ahead(algorithm, &topology) {
                continue;
            }
            let original = ours(collective, algorithm, &topology, 2, false);
            let imported = Imported::parse(&export(&original, algorithm.name()).unwrap(), "a.xml").unwrap();
            check(&topology, &imported, &Call { count: original.call.count * 1200 * 1024, ..original.call.clone() });
            // Of these, blocks that others only wait for are five times as fast as those, until they are through.
            if algorithm == Algorithm::CollTree && collective == Collective::AllReduce {
                let count = (300 << 20) / original.call.dtype.size();
                check(&topology, &imported, &Call { count, ..original.call.clone() });
            }
        }
    }
    // Of four that wait: the pairs, the tree, and two CollTrees, whose blocks beat too slowly for this many loops.
    assert!(shorter > 1, "{shorter}");
}

/// Goal: a written ring takes as long as NCCL's ring of whole chunks, by each protocol: MSCCL cuts as NCCL does.
#[test]
fn a_written_ring_takes_as_long() {
    let topology = nvswitch_box(4, 450.0);
    let limits = Limits { channels: 2, exact_channels: true, ..Limits::default() };
    let end = |schedule: &Schedule| {
        let laid = lay(&topology, &prior(), &Default::default(), schedule).unwrap();
        run(&laid.instance, &mut Unobserved).unwrap().end
    };
    for protocol in [Protocol::Ll, Protocol::Simple] {
        let call = |count| Call { count, ..Call::of_size(Collective::AllReduce, 4, Bytes(1 << 26), DataType::Float32) };
        let plan = Plan::new(&call(1 << 24), Algorithm::Ring, protocol, &limits);
        // Five times a chunk for each rank and channel.
        let call = call(5 * plan.chunk * 8);
        let plan = Plan { threads: 512, ..Plan::new(&call, Algorithm::Ring, protocol, &limits) };
        let ring = Schedule::new(call.clone(), plan, &Order::one_host(4)).unwrap();
        let small = one_loop(&call, &plan, &Order::one_host(4)).unwrap();
        let imported = Imported::parse(&export(&small, "ring").unwrap(), "ring.xml").unwrap();
        assert_eq!(end(&schedule(&imported, &call)), end(&ring), "{protocol}");
    }
}

/// Goal: a block that sends before it receives may be as many chunks ahead as MSCCL's FIFOs hold: two of Simple, which
/// takes four of eight steps for a chunk, and eight of LL. Method: two ranks exchange chunks, all sent first.
#[test]
fn fifos_are_as_deep_as_those_of_msccl() {
    let exchange = |protocol, chunks: usize| {
        let mut text = format!(
            r#"<algo name="x" proto="{protocol}" nchannels="1" ngpus="2" coll="allgather" nchunksperloop="{}">"#,
            2 * chunks
        );
        for gpu in 0..2 {
            let other = 1 - gpu;
            text += &format!(
                r#"<gpu id="{gpu}" i_chunks="{chunks}" o_chunks="{}" s_chunks="0"><tb id="0" send="{other}" recv="{other}" chan="0">"#,
                2 * chunks
            );
            for (step, (kind, rank)) in (0..).zip([("cpy", gpu), ("s", gpu), ("r", other)]) {
                for chunk in 0..chunks {
                    text += &format!(
                        r#"<step s="{}" type="{kind}" srcbuf="i" srcoff="{chunk}" dstbuf="o" dstoff="{}" cnt="1" depid="-1" deps="-1" hasdep="0"/>"#,
                        step * chunks + chunk,
                        rank * chunks + chunk
                    );
                }
            }
            text += "</tb></gpu>";
        }
        pairs(&(text + "</algo>"))
    };
    let topology = nvswitch_box(2, 450.0);
    let profile = prior();
    let predictor = Predictor::new(&topology, &profile);
    for (protocol, most) in [("Simple", 2), ("LL", 8), ("LL128", 8)] {
        for chunks in [1, most, most + 1] {
            // In one part of each chunk, and in several.
            for count in [1 << 6, 1 << 22] {
                let call = Call { count: count * chunks as u64, ..in_place(Collective::AllGather, 2, 0) };
                let call = Call { in_place: false, ..call };
                let imported = exchange(protocol, chunks);
                let found = predictor.predict_imported(&imported, &call, &Settings::default(), &mut Unobserved);
                assert_eq!(found.is_ok(), chunks <= most, "{protocol} {chunks} {count}: {found:?}");
            }
        }
    }
}
