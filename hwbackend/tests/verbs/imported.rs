//! Random algorithms, as files of MSCCL.

use std::fmt::Write as _;

use collcast_sim::collective::{Collective, DataType};
use collcast_sim::nccl::Limits;
use collcast_sim::schedule::msccl::Imported;
use collcast_sim::schedule::verify::verify;
use collcast_sim::schedule::{Call, Schedule};
use collcast_sim::units::Bytes;

use crate::random::Random;

/// A thread block of an algorithm: whom it sends to, whom it receives from, its channel, its steps.
type Block = (i64, i64, usize, Vec<String>);

/// A random algorithm over so many ranks: each chunk goes its own way, along random trees, on random channels.
fn random_algorithm(random: &mut Random, ranks: usize, reduce: bool) -> String {
    let mut below = |most: usize| (random.uniform() * most as f64) as usize;
    let chunks = ranks * (1 + below(2));
    let channels = 1 + below(3);
    // By rank.
    let mut blocks: Vec<Vec<Block>> = vec![Vec::new(); ranks];
    // The last step that touched a chunk at a rank.
    let mut last = vec![vec![(-1_i64, -1_i64); chunks]; ranks];
    let buffer = if reduce { 'i' } else { 'o' };
    let mut step = |rank: usize, ends: (i64, i64), channel: usize, kind: &str, chunk: usize| {
        let found = blocks[rank].iter().position(|b| (b.0, b.1, b.2) == (ends.0, ends.1, channel));
        let block = found.unwrap_or_else(|| {
            blocks[rank].push((ends.0, ends.1, channel, Vec::new()));
            blocks[rank].len() - 1
        });
        let steps = &mut blocks[rank][block].3;
        let number = steps.len();
        let (from, at) = if kind == "cpy" { ('i', chunk % (chunks / ranks)) } else { (buffer, chunk) };
        let depends = last[rank][chunk];
        let depends = if depends.0 == block as i64 { (-1, -1) } else { depends };
        steps.push(format!(
            r#"<step s="{number}" type="{kind}" srcbuf="{from}" srcoff="{at}" dstbuf="{buffer}" dstoff="{chunk}" cnt="1" depid="{}" deps="{}" hasdep="1"/>"#,
            depends.0, depends.1
        ));
        last[rank][chunk] = (block as i64, number as i64);
    };
    for chunk in 0..chunks {
        let root = chunk / (chunks / ranks);
        if !reduce {
            step(root, (-1, -1), 0, "cpy", chunk);
        }
        let channel = below(channels);
        // A random tree: each rank hangs on one that is in it already.
        let mut order: Vec<usize> = (0..ranks).filter(|&r| r != root).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, below(i + 1)));
        let mut inside = vec![root];
        let mut edges = Vec::new();
        for rank in order {
            edges.push((inside[below(inside.len())], rank));
            inside.push(rank);
        }
        if reduce {
            for &(parent, child) in edges.iter().rev() {
                step(child, (parent as i64, -1), channel, "s", chunk);
                step(parent, (-1, child as i64), channel, "rrc", chunk);
            }
        }
        for &(parent, child) in &edges {
            step(parent, (child as i64, -1), channel, "s", chunk);
            step(child, (-1, parent as i64), channel, "r", chunk);
        }
    }
    let (name, input) = if reduce { ("allreduce", chunks) } else { ("allgather", chunks / ranks) };
    let mut text = format!(
        r#"<algo name="random" proto="Simple" nchannels="{channels}" ngpus="{ranks}" coll="{name}" nchunksperloop="{chunks}" inplace="{}">"#,
        u8::from(reduce)
    );
    for (rank, blocks) in blocks.iter().enumerate() {
        let output = if reduce { 0 } else { chunks };
        write!(text, r#"<gpu id="{rank}" i_chunks="{input}" o_chunks="{output}" s_chunks="0">"#).unwrap();
        for (id, (send, recv, channel, steps)) in blocks.iter().enumerate() {
            let steps = steps.concat();
            write!(text, r#"<tb id="{id}" send="{send}" recv="{recv}" chan="{channel}">{steps}</tb>"#).unwrap();
        }
        text += "</gpu>";
    }
    text + "</algo>"
}

/// Random algorithms of so many ranks, proved.
pub(crate) fn random_schedules(seed: u64, ranks: u32, count: usize) -> Vec<Schedule> {
    let mut random = Random::new(seed);
    let schedule = |at: usize| {
        let reduce = at % 2 == 1;
        let text = random_algorithm(&mut random, ranks as usize, reduce);
        let imported = Imported::parse(&text, "random.xml").unwrap_or_else(|e| panic!("{e}\n{text}"));
        let collective = if reduce { Collective::AllReduce } else { Collective::AllGather };
        let mut call = Call::of_size(collective, ranks, Bytes(0), DataType::Float32);
        call.count = u64::from(2 * ranks) * (1 + (random.uniform() * 3000.0) as u64);
        call.in_place = reduce;
        let schedule = imported.schedule(call, &Limits::default()).unwrap();
        verify(&schedule).unwrap_or_else(|e| panic!("{e}\n{text}"));
        schedule
    };
    (0..count).map(schedule).collect()
}
