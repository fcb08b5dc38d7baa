//! Goal: the flat records say exactly what the schedule says, and the device code knows no
//! algorithm.
//! Method: a reference interpreter of the records on the CPU, with bounded FIFOs and bytes.

use std::collections::VecDeque;

use crate::common::{Dice, random_all_reduce};
use collcast_hwbackend::check::{expected, parts, range, value};
use collcast_hwbackend::exec::ExecError;
use collcast_hwbackend::flat::{
    ACCUMULATE, DST_OUTPUT, DST_SCRATCH, Flat, FlatLane, HAS_DST, HAS_SRC, Record, SIGNAL, SRC_OUTPUT, SRC_SCRATCH,
    buffer_bytes,
};
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::schedule::msccl::{Imported, export, one_loop};
use collcast_sim::schedule::program::{Buffer, Code, Op, Ref, Template, Wait, c};
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Generator, Order, Schedule, Worker, valid_algorithms, valid_protocols};
use collcast_sim::units::Bytes;
use proptest::prelude::*;
use smallvec::smallvec;

/// Memory of a rank: input, output and scratch.
type Memory = [Vec<u8>; 3];

fn combine(into: &mut [u8], other: &[u8], op: ReduceOp) {
    for (a, b) in into.chunks_exact_mut(4).zip(other.chunks_exact(4)) {
        let (x, y) = (i32::from_le_bytes(a.try_into().unwrap()), i32::from_le_bytes(b.try_into().unwrap()));
        let sum = match op {
            ReduceOp::Max => x.max(y),
            ReduceOp::Min => x.min(y),
            _ => x.wrapping_add(y),
        };
        a.copy_from_slice(&sum.to_le_bytes());
    }
}

/// One record, when all it waits for is there; whether it was done.
fn step(
    lane: &FlatLane,
    record: &Record,
    memory: &mut Memory,
    fifos: &mut [VecDeque<Vec<u8>>],
    (depth, signals): (usize, &[u64]),
    op: ReduceOp,
) -> bool {
    if record.waits > 0 {
        let token = usize::from(record.waits) - 1 - lane.ports.len();
        return signals[lane.tokens[token] as usize] >= record.src;
    }
    let (receives, sends) = (usize::from(record.receives), usize::from(record.sends));
    let conn = |end: usize| lane.ports[usize::from(record.ports[end])].conn as usize;
    if (0..receives).any(|e| fifos[conn(e)].is_empty())
        || (receives..receives + sends).any(|e| fifos[conn(e)].len() >= depth)
    {
        return false;
    }
    let buffer = |output: u8, scratch: u8| {
        usize::from(record.flags & output != 0) + 2 * usize::from(record.flags & scratch != 0)
    };
    let mut sources: Vec<Vec<u8>> = (0..receives).map(|e| fifos[conn(e)].pop_front().unwrap()).collect();
    if record.flags & HAS_SRC != 0 {
        sources.push(memory[buffer(SRC_OUTPUT, SRC_SCRATCH)][record.src as usize..][..record.bytes as usize].to_vec());
    }
    let dst = buffer(DST_OUTPUT, DST_SCRATCH);
    if record.flags & ACCUMULATE != 0 {
        sources.push(memory[dst][record.dst as usize..][..record.bytes as usize].to_vec());
    }
    let mut data = sources.first().cloned().unwrap_or_default();
    assert_eq!(data.len(), record.bytes as usize, "sender and receiver disagree about a slice");
    for source in &sources[1.min(sources.len())..] {
        combine(&mut data, source, op);
    }
    if record.flags & HAS_DST != 0 {
        memory[dst][record.dst as usize..][..data.len()].copy_from_slice(&data);
    }
    for end in receives..receives + sends {
        fifos[conn(end)].push_back(data.clone());
    }
    true
}

/// Runs all lanes in turn; `false` when they wait for each other.
fn interpret(flat: &Flat, memory: &mut [Memory], op: ReduceOp) -> bool {
    let mut fifos = vec![VecDeque::new(); flat.conns];
    let mut at = vec![0; flat.lanes.len()];
    let mut signals = vec![0; flat.lanes.len()];
    loop {
        let mut moved = false;
        for (index, (lane, at)) in flat.lanes.iter().zip(&mut at).enumerate() {
            while *at < lane.records.len() {
                let (record, memory) = (&lane.records[*at], &mut memory[lane.rank as usize]);
                if !step(lane, record, memory, &mut fifos, (flat.depth as usize, &signals), op) {
                    break;
                }
                signals[index] += u64::from(record.flags & SIGNAL != 0);
                (*at, moved) = (*at + 1, true);
            }
        }
        if flat.lanes.iter().zip(&at).all(|(lane, &at)| at == lane.records.len()) {
            let told = flat.lanes.iter().zip(&signals).all(|(lane, &s)| u64::from(lane.signals) == s);
            return told && fifos.iter().all(VecDeque::is_empty);
        }
        if !moved {
            return false;
        }
    }
}

fn check_exact(schedule: &Schedule) {
    let call = &schedule.call;
    let (flat, range) = (Flat::new(schedule).unwrap(), range(call).unwrap());
    let offset = |rank: Rank, buffer| if call.in_place { call.in_place_offset(rank, buffer) as usize * 4 } else { 0 };
    let mut memory: Vec<Memory> = (0..call.ranks)
        .map(Rank)
        .map(|rank| {
            let [input, output] = buffer_bytes(call, rank);
            let scratch = schedule.scratch_len(rank) * call.dtype.size();
            let mut memory = [input, output, scratch].map(|bytes| vec![0xff; bytes as usize]);
            let at = offset(rank, Buffer::Input);
            for element in 0..call.input_len(rank) {
                let bytes = value(rank.0, element, range).to_le_bytes();
                memory[0][at + element as usize * 4..][..4].copy_from_slice(&bytes);
            }
            memory
        })
        .collect();
    assert!(interpret(&flat, &mut memory, call.op), "{call:?}: lanes wait for each other, or data is left over");
    for rank in (0..call.ranks).map(Rank) {
        let output = &memory[rank.index()][usize::from(!call.in_place)][offset(rank, Buffer::Output)..];
        for part in parts(call, rank) {
            for index in 0..part.count {
                let found = u32::from_le_bytes(output[(part.at + index) as usize * 4..][..4].try_into().unwrap());
                assert_eq!(
                    found,
                    expected(&part, index, call.op, range),
                    "{call:?}, {rank:?}, element {index} of {part:?}"
                );
            }
        }
    }
}

fn schedule(
    call: Call,
    algorithm: Algorithm,
    protocol: Protocol,
    channels: u32,
    grains: u64,
    order: &Order,
) -> Option<Schedule> {
    let limits = Limits { channels, p2p_channels: (channels, channels), exact_channels: true, ..Limits::default() };
    let mut plan = Plan::new(&call, algorithm, protocol, &limits);
    plan.chunk = plan.grain * grains;
    plan.min_slice = plan.grain;
    if algorithm == Algorithm::Direct {
        plan.per_channel = call.count.div_ceil(u64::from(plan.channels_per_peer)).max(1);
    }
    Schedule::new(call, plan, order).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Goal: every algorithm, protocol and collective gives exact results through its records, on
    /// any hosts; only what needs a switch that combines is refused. The same for the schedule written
    /// as MSCCL XML and read back, which has scratch memory and tokens.
    #[test]
    fn records_give_exact_results(
        collective in 0..Collective::ALL.len(),
        ranks in 1_u32..10,
        count in 0_u64..700,
        channels in 1_u32..4,
        grains in 1_u64..9,
        op in 0..3_usize,
        in_place: bool,
        root in 0_u32..10,
        per_host in 1_usize..10,
    ) {
        let hosts: Vec<Vec<u32>> = (0..ranks).collect::<Vec<_>>().chunks(per_host).map(<[u32]>::to_vec).collect();
        let order = Order::of_rings(vec![(0..ranks).collect()], hosts);
        let collective = Collective::ALL[collective];
        for &algorithm in valid_algorithms(collective) {
            for &protocol in valid_protocols(algorithm) {
                let mut call = Call::of_size(collective, ranks, Bytes(0), DataType::Int32);
                call.count = count;
                call.op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][op];
                call.root = Rank(root % ranks);
                call.in_place = in_place && collective.in_place();
                let schedule = schedule(call.clone(), algorithm, protocol, channels, grains, &order);
                let switches = matches!(
                    algorithm,
                    Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetDirect | Algorithm::CollnetChain
                );
                let Some(schedule) = schedule else {
                    prop_assert!(switches, "{}: no schedule", algorithm);
                    continue;
                };
                if switches && let Err(error) = Flat::new(&schedule) {
                    prop_assert!(error.to_string().contains("a group at an end"), "{}", error);
                    continue;
                }
                check_exact(&schedule);
                if protocol == Protocol::Simple && collective != Collective::SendRecv && ranks > 1 {
                    let small = one_loop(&call, &schedule.plan, &order).unwrap();
                    let imported = Imported::parse(&export(&small, "ours").unwrap(), "ours.xml").unwrap();
                    let call = Call { count: small.call.count * (1 + count % 3), ..small.call.clone() };
                    let schedule = imported.schedule(call, &Limits::default()).unwrap();
                    // PAT sends more chunks before it receives than MSCCL's FIFOs hold.
                    if algorithm != Algorithm::Pat || verify(&schedule).is_ok() {
                        check_exact(&schedule);
                    }
                }
            }
        }
    }
}

/// Goal: a schedule at its real cut, with slices and partial loops, and odd sizes.
#[test]
fn real_cuts_give_exact_results() {
    for (collective, algorithm) in [
        (Collective::AllReduce, Algorithm::Ring),
        (Collective::AllReduce, Algorithm::Tree),
        (Collective::AllGather, Algorithm::Ring),
        (Collective::ReduceScatter, Algorithm::Ring),
        (Collective::AllToAll, Algorithm::Direct),
    ] {
        for &protocol in valid_protocols(algorithm) {
            let mut call = Call::of_size(collective, 3, Bytes(0), DataType::Int32);
            call.count = 123_457;
            let plan = Plan::new(&call, algorithm, protocol, &Limits { channels: 2, ..Limits::default() });
            check_exact(&Schedule::new(call, plan, &Order::one_host(3)).unwrap());
        }
    }
}

/// Goal: random schedules (random trees, peers, lanes, chunks), proved first, are exact.
#[test]
fn random_schedules_give_exact_results() {
    for seed in 1..=60 {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let ranks = 2 + dice.below(7) as u32;
        let mut schedule = random_all_reduce(&mut dice, ranks, Protocol::Simple, false);
        schedule.call.dtype = DataType::Int32; // What the reference interpreter knows.
        verify(&schedule).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        check_exact(&schedule);
        let broken = random_all_reduce(&mut Dice(seed), ranks, Protocol::Simple, true);
        assert!(broken.call.count == 0 || verify(&broken).is_err(), "seed {seed}");
    }
}

#[derive(Debug)]
struct Lonely;

impl Generator for Lonely {
    fn worker(&self, _: Rank, _: ChannelId, _: Lane) -> Option<Worker> {
        Some(Worker {
            template: 0,
            parameters: vec![],
            recv: vec![],
            send: vec![],
            threads: 32,
            others: 0,
            tokens: vec![],
        })
    }
}

/// Goal: what would harm a device is refused before it gets there: a reach outside a buffer,
/// a port without a connection, data from nowhere.
#[test]
fn harmful_schedules_are_refused() {
    let check = |op: Op, says: &str| {
        let mut call = Call::of_size(Collective::AllReduce, 1, Bytes(0), DataType::Float32);
        call.count = 10;
        let plan = Plan::new(&call, Algorithm::Ring, Protocol::Simple, &Limits::default());
        let schedule = Schedule::from_parts(call, plan, 1, vec![Template::new(&[Code::Op(op)])], Box::new(Lonely));
        let error = Flat::new(&schedule).unwrap_err();
        assert!(matches!(&error, ExecError::Refused { what, .. } if what.contains(says)), "{error}");
    };
    let op = |from: i64| Op {
        recv: smallvec![],
        reduce: false,
        src: Some(Ref { buffer: Buffer::Input, offset: c(from) }),
        dst: Some(Ref { buffer: Buffer::Output, offset: c(0) }),
        send: smallvec![],
        count: c(8),
        span: c(8),
        accumulate: false,
        wait: None,
        signal: false,
    };
    check(op(3), "element 10 is outside the Input of 10");
    check(Op { send: smallvec![c(0)], ..op(0) }, "a port without a connection");
    check(Op { src: None, ..op(0) }, "data from nowhere");
    check(Op { wait: Some(Wait { port: c(0), count: c(1) }), ..op(0) }, "waits for a lane that is not there");
    let scratch = Some(Ref { buffer: Buffer::Scratch, offset: c(0) });
    check(Op { dst: scratch, ..op(0) }, "element 7 is outside the Scratch of 0");
}

/// Goal: the device code contains no algorithm and no collective.
#[test]
fn device_code_names_no_algorithm() {
    let source = concat!(
        include_str!("../src/cuda/element.cu"),
        include_str!("../src/cuda/interpret.cu"),
        include_str!("../src/cuda/combine.cu"),
        include_str!("../src/cuda/check.cu")
    )
    .to_lowercase();
    let words: Vec<&str> = source.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let names = Algorithm::ALL.iter().map(|a| a.name()).chain(Collective::ALL.iter().map(|c| c.name()));
    for name in names.flat_map(|n| [n.to_owned(), n.replace('_', "")]).filter(|n| n != "reduce") {
        assert!(!words.contains(&name.as_str()) && !source.contains(&format!("_{name}")), "`{name}` in device code");
    }
}
