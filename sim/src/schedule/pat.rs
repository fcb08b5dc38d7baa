//! PAT, parallel aggregated trees: all-gather and reduce-scatter in about log2(n) latencies.
//!
//! Let a rank's offset be its distance to the owner of a chunk (all-gather) or to where its sum
//! is wanted (reduce-scatter), modulo `n`. A chunk travels along a binomial tree of offsets: in
//! dimension `d` between `s` and `s + 2^d`, `d` below the lowest set bit of `s`. All chunks use
//! the same tree of offsets, so every rank runs the same list of steps. The far part of the
//! tree is walked breadth first, `width` offsets at a time; the rest depth first, in groups of
//! `width`. A partial sum waits for the other children of its offset in scratch memory, where
//! NCCL lets it wait in the FIFO slot it will be sent from.
//!
//! NCCL packs the chunks of small messages into one FIFO step and deals steps to up to 16 groups
//! of warps. Here every chunk is handed over on its own (a FIFO holds as many bytes as NCCL's:
//! [`Plan::aggregate`] chunks a step), those of a step share what a proxy does for a message, and
//! one lane of all warps does one step after another.
//!
//! Source: NCCL 2.30 `src/include/collectives.h`, `src/device/all_gather.h`,
//! `src/device/reduce_scatter.h`, restated.

use smallvec::{SmallVec, smallvec};

use super::form::Form;
use super::program::{Buffer, Code, Expr, Op, Ref, Table, Template, Var, c, signed};
use super::{Call, Conn, Generator, Worker};
use crate::collective::Collective;
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::plan::{Plan, STEPS};

const RANK: Var = Var(0);
const CHANNEL: Var = Var(1);
const START: Var = Var(2);
const LEN: Var = Var(3);
const L: Var = Var(4);
const OFF: Var = Var(5);
const SIZE: Var = Var(6);
const I: Var = Var(7);
const GUARD: Var = Var(8);

/// One step of every rank: what it does with the chunk that is `offset` away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    /// Dimension that the chunk comes from; `None` where it is the rank's own data.
    from: Option<u32>,
    /// Dimension that it goes to; `None` where it stays.
    to: Option<u32>,
    offset: u32,
    /// The first step with this chunk.
    first: bool,
    /// The last step with this chunk.
    last: bool,
}

#[derive(Debug)]
struct Pat {
    call: Call,
    plan: Plan,
    dimensions: u32,
    slots: u64,
}

/// A rank sends every chunk but one, half of them to its nearest. Where a FIFO has room for many small chunks a call has
/// less than fills it, so that this is taken to.
pub(super) fn form(call: &Call, plan: &Plan) -> Form {
    Form { channels: 2, chunks: 1, sends: u64::from(call.ranks - 1), each: u64::from(plan.fifo_slices) }
}

pub(super) fn generate(call: &Call, plan: &Plan) -> (u32, Vec<Template>, Box<dyn Generator>) {
    let width = width(call.ranks, plan.aggregate);
    let (template, slots) = if call.collective == Collective::AllGather {
        (all_gather(call, plan, &all_gather_steps(call.ranks, width)), 0)
    } else {
        reduce_scatter(call, plan, &reduce_scatter_steps(call.ranks, width))
    };
    let dimensions = call.ranks.next_power_of_two().trailing_zeros();
    (1, vec![template], Box::new(Pat { call: call.clone(), plan: *plan, dimensions, slots }))
}

/// Offsets walked at a time: as many as are packed into a FIFO step, and up to 8 times as many,
/// one a step of the FIFO, while that is below half of the ranks.
fn width(ranks: u32, aggregate: u32) -> u32 {
    let mut width = 1;
    for mut limit in [aggregate, STEPS] {
        while limit > 1 && width < ranks / 2 {
            limit /= 2;
            width *= 2;
        }
    }
    width
}

/// Steps in NCCL's order, `(offset, dimension sent to)`, cleaned of offsets that do not exist.
fn all_gather_steps(ranks: u32, width: u32) -> Vec<Step> {
    let padded = ranks.next_power_of_two();
    let distance = padded / width;
    let near = distance.trailing_zeros();
    let mut visits: Vec<(u32, Option<u32>)> = Vec::new();
    for dimension in (near..padded.trailing_zeros()).rev() {
        visits.extend((0..padded).step_by(2 << dimension).map(|s| (s, Some(dimension))));
    }
    // Depth first, far dimensions first: `(offset in the group, dimensions still below it)`.
    let mut stack = vec![(0, near)];
    while let Some((at, below)) = stack.pop() {
        let group = (0..width).map(|i| i * distance + at);
        match below.checked_sub(1) {
            Some(dimension) => {
                visits.extend(group.map(|s| (s, Some(dimension))));
                stack.push((at, dimension));
                stack.push((at + (1 << dimension), dimension));
            }
            None if at % 2 == 1 => visits.extend(group.map(|s| (s, None))),
            None => {}
        }
    }
    let exists = |&(s, to): &(u32, Option<u32>)| s < ranks && to.is_none_or(|d| s + (1 << d) < ranks);
    let forwards = |s: u32| s + 1 < ranks && s.is_multiple_of(2);
    let mut seen = vec![false; ranks as usize];
    let mut steps: Vec<Step> = Vec::new();
    for visit in visits {
        let (offset, to) = visit;
        if offset >= ranks || (!exists(&visit) && (forwards(offset) || seen[offset as usize])) {
            continue;
        }
        let to = to.filter(|_| exists(&visit));
        let from = (offset > 0).then(|| offset.trailing_zeros());
        let first = !std::mem::replace(&mut seen[offset as usize], true);
        steps.push(Step { from, to, offset, first, last: to.is_none() || to == Some(0) });
    }
    steps
}

/// `i` mirrored and inverted in `max` values: 0 is the last.
fn mirrored(i: u32, max: u32) -> u32 {
    if max == 1 { 0 } else { max - 1 - (i.reverse_bits() >> (32 - max.trailing_zeros())) }
}

/// Steps in NCCL's order: who has all its children sends, the farthest first.
fn reduce_scatter_steps(ranks: u32, width: u32) -> Vec<Step> {
    let distance = ranks.next_power_of_two() / width;
    // `(offset, child)`; an odd offset has none.
    let mut visits: Vec<(u32, Option<u32>)> = Vec::new();
    let parent = |child: u32| child & (child - 1);
    for at in (1..distance).rev() {
        let group = || (0..width).map(|i| mirrored(i, width) * distance + at);
        if at % 2 == 1 {
            visits.extend(group().map(|s| (s, None)));
        }
        if at > 1 {
            visits.extend(group().map(|s| (parent(s), Some(s))));
        }
    }
    let mut scale = 1;
    while scale < width {
        let half = width / (2 * scale);
        let heads = || (0..half).map(|i| (2 * mirrored(i, half) + 1) * scale * distance);
        visits.extend(heads().map(|s| (s, Some(s + 1))));
        visits.extend(heads().map(|s| (parent(s), Some(s))));
        scale *= 2;
    }
    visits.push((0, Some(1)));
    let mut seen = vec![false; ranks as usize];
    let mut steps = Vec::new();
    for (offset, child) in visits.into_iter().filter(|v| v.0 < ranks) {
        let from = child.filter(|&s| s < ranks).map(|s| (s - offset).trailing_zeros());
        // The nearest child comes last; where it is missing, so are all others.
        let last = child.is_none_or(|s| s == offset + 1);
        if from.is_none() && !last {
            continue;
        }
        let to = (last && offset > 0).then(|| offset.trailing_zeros());
        let first = !std::mem::replace(&mut seen[offset as usize], true);
        steps.push(Step { from, to, offset, first, last });
    }
    steps
}

/// Entry `I` of a table with a value a step.
fn table(steps: &[Step], value: impl Fn(&Step) -> u32) -> Expr {
    let values: Table = steps.iter().map(|s| i64::from(value(s))).collect();
    Expr::Table(values, Box::new(I.into()))
}

/// An instruction, and the steps that are such.
type Piece = (Op, Box<dyn Fn(&Step) -> bool>);

/// All steps for one chunk after another.
fn program(call: &Call, plan: &Plan, steps: &[Step], pieces: Vec<Piece>) -> Template {
    let (chunk, grain) = (signed(plan.chunk), signed(plan.grain));
    let body = pieces
        .into_iter()
        .filter(|(_, chosen)| steps.iter().any(chosen))
        .map(|(op, chosen)| Code::For(GUARD, c(0), table(steps, |s| chosen(s).into()), vec![Code::Op(op)]))
        .collect();
    assert!(call.ranks > 1, "one rank has no peer, and its call is a copy or nothing");
    Template::new(&[Code::For(
        L,
        c(0),
        (LEN + chunk - 1) / chunk,
        vec![
            Code::Let(OFF, L * chunk),
            Code::Let(SIZE, (LEN - OFF).round_up(grain).min(chunk)),
            Code::For(I, c(0), c(signed(steps.len() as u64)), body),
        ],
    )])
}

/// The instruction that all pieces are made from.
struct Base {
    from: Expr,
    to: Expr,
}

impl Base {
    fn new(steps: &[Step]) -> Self {
        Self { from: table(steps, |s| s.from.unwrap_or(0)), to: table(steps, |s| s.to.unwrap_or(0)) }
    }

    fn op(&self, recv: bool, send: bool, src: Option<Ref>, dst: Option<Ref>) -> Op {
        let port =
            |used: bool, e: &Expr| -> SmallVec<[Expr; 1]> { if used { smallvec![e.clone()] } else { smallvec![] } };
        Op {
            recv: port(recv, &self.from),
            send: port(send, &self.to),
            reduce: recv && src.is_some(),
            src,
            dst,
            count: (LEN - OFF).min(SIZE),
            span: SIZE.into(),
            ..Op::default()
        }
    }
}

/// Where the part of the rank that is this far away begins.
fn part(call: &Call, steps: &[Step]) -> Expr {
    (RANK + table(steps, |s| s.offset)) % i64::from(call.ranks) * signed(call.count) + START + OFF
}

fn all_gather(call: &Call, plan: &Plan, steps: &[Step]) -> Template {
    let base = Base::new(steps);
    let here = || Some(Ref { buffer: Buffer::Input, offset: START + OFF });
    let there = || Some(Ref { buffer: Buffer::Output, offset: part(call, steps) });
    let own = there().filter(|_| !call.in_place);
    program(
        call,
        plan,
        steps,
        vec![
            (base.op(false, true, here(), own), Box::new(|s| s.offset == 0 && s.first)),
            (base.op(false, true, here(), None), Box::new(|s| s.offset == 0 && !s.first)),
            (base.op(true, true, None, there()), Box::new(|s| s.offset > 0 && s.first && s.to.is_some())),
            (base.op(true, false, None, there()), Box::new(|s| s.offset > 0 && s.first && s.to.is_none())),
            (base.op(false, true, there(), None), Box::new(|s| s.offset > 0 && !s.first)),
        ],
    )
}

/// The program, and how many partial sums wait at once.
fn reduce_scatter(call: &Call, plan: &Plan, steps: &[Step]) -> (Template, u64) {
    let (places, slots) = slots(steps);
    let chunk = signed(plan.chunk);
    let place = Expr::Table(places, Box::new(I.into()));
    let base = Base::new(steps);
    let input = || Some(Ref { buffer: Buffer::Input, offset: part(call, steps) });
    let output = || Some(Ref { buffer: Buffer::Output, offset: START + OFF });
    let scratch = || Some(Ref { buffer: Buffer::Scratch, offset: (CHANNEL * signed(slots) + place.clone()) * chunk });
    let template = program(
        call,
        plan,
        steps,
        vec![
            (base.op(false, true, input(), None), Box::new(|s| s.from.is_none())),
            (base.op(true, true, input(), None), Box::new(|s| s.from.is_some() && s.offset > 0 && s.first && s.last)),
            (base.op(true, false, input(), scratch()), Box::new(|s| s.offset > 0 && s.first && !s.last)),
            (base.op(true, false, scratch(), scratch()), Box::new(|s| s.offset > 0 && !s.first && !s.last)),
            (base.op(true, true, scratch(), None), Box::new(|s| s.offset > 0 && !s.first && s.last)),
            (base.op(true, false, input(), output()), Box::new(|s| s.offset == 0 && s.first)),
            (base.op(true, false, output(), output()), Box::new(|s| s.offset == 0 && !s.first)),
        ],
    );
    (template, slots)
}

/// A place in scratch for every step whose sum waits or has waited, and how many there are.
fn slots(steps: &[Step]) -> (Table, u64) {
    let (mut free, mut count) = (Vec::new(), 0);
    let mut taken = rustc_hash::FxHashMap::default();
    let places = steps
        .iter()
        .map(|step| {
            if step.offset == 0 || (step.first && step.last) {
                return 0;
            }
            let place = *taken.entry(step.offset).or_insert_with(|| {
                free.pop().unwrap_or_else(|| {
                    count += 1;
                    count - 1
                })
            });
            if step.last {
                free.push(place);
            }
            place
        })
        .collect();
    (places, u64::try_from(count).unwrap_or(0))
}

impl Generator for Pat {
    fn worker(&self, rank: Rank, channel: ChannelId, _lane: Lane) -> Option<Worker> {
        let n = self.call.ranks;
        let (from, to) = self.plan.range(channel.0, self.call.count);
        let conn = |src, dst| Conn::pair(src, dst, channel, 0);
        let up = |d: u32| Rank((rank.0 + (1 << d)) % n);
        let down = |d: u32| Rank((rank.0 + n - (1 << d)) % n);
        // The chunk comes down to its owner's lower neighbours, a sum goes up to where it is wanted.
        let gathers = self.call.collective == Collective::AllGather;
        let (before, after): (Vec<Rank>, Vec<Rank>) =
            (0..self.dimensions).map(|d| if gathers { (up(d), down(d)) } else { (down(d), up(d)) }).unzip();
        Some(Worker {
            template: 0,
            parameters: vec![
                (RANK, i64::from(rank.0)),
                (CHANNEL, i64::from(channel.0)),
                (START, signed(from)),
                (LEN, signed(to - from)),
            ],
            recv: before.into_iter().map(|r| conn(r, rank)).collect(),
            send: after.into_iter().map(|r| conn(rank, r)).collect(),
            tokens: vec![],
            threads: self.plan.threads,
            others: 0,
        })
    }

    /// Chunks that go in one dimension one after the other, as many as a step of the FIFO takes.
    fn packed(&self, src: Rank, dst: Rank) -> u32 {
        let n = self.call.ranks;
        let (low, high) = if self.call.collective == Collective::AllGather { (dst, src) } else { (src, dst) };
        let distance = ((high.0 + n - low.0) % n).max(1);
        n.saturating_sub(distance).div_ceil(2 * distance).clamp(1, self.plan.aggregate)
    }

    fn scratch(&self, _rank: Rank) -> u64 {
        self.slots * self.plan.chunk * u64::from(self.plan.channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn triples(steps: &[Step]) -> String {
        let dimension = |d: Option<u32>| d.map_or("-".to_owned(), |d| d.to_string());
        // NCCL names where a sum will go at every step of it, we at the last only.
        let to =
            |s: &Step| if s.last || s.to.is_some() { s.to } else { (s.offset > 0).then(|| s.offset.trailing_zeros()) };
        let show = |s: &Step| format!("({},{},{})", dimension(s.from), dimension(to(s)), s.offset);
        steps.iter().map(show).collect()
    }

    /// Goal: NCCL's schedules of 8 ranks, as (dimension received from, sent to, offset), by value.
    #[test]
    fn eight_ranks_follow_nccl() {
        assert_eq!(
            triples(&all_gather_steps(8, width(8, 1))),
            "(-,2,0)(-,1,0)(2,1,4)(-,0,0)(1,0,2)(2,0,4)(1,0,6)(0,-,1)(0,-,3)(0,-,5)(0,-,7)"
        );
        assert_eq!(
            triples(&all_gather_steps(8, 1)),
            "(-,2,0)(2,1,4)(1,0,6)(0,-,7)(2,0,4)(0,-,5)(-,1,0)(1,0,2)(0,-,3)(-,0,0)(0,-,1)"
        );
        assert_eq!(
            triples(&reduce_scatter_steps(8, width(8, 1))),
            "(-,0,7)(-,0,3)(-,0,5)(-,0,1)(0,1,6)(0,1,2)(1,2,4)(1,-,0)(0,2,4)(2,-,0)(0,-,0)"
        );
    }

    /// Goal: what one dimension carries goes as one message, as far as a step of the FIFO takes it: of 6 ranks 3
    /// chunks over distance 1, one over 2 and one over 4 (offsets 0, 2, 4; 0 to 2; 0 to 4).
    #[test]
    fn chunks_of_a_dimension_are_packed() {
        for (collective, aggregate, expected) in [
            (Collective::AllGather, 1, [1, 1, 1]),
            (Collective::AllGather, 2, [2, 1, 1]),
            (Collective::ReduceScatter, 4, [3, 1, 1]),
        ] {
            let call = Call::of_size(collective, 6, crate::units::Bytes(96), crate::collective::DataType::Float32);
            let limits = crate::nccl::Limits::default();
            let mut plan =
                Plan::new(&call, crate::collective::Algorithm::Pat, crate::collective::Protocol::Simple, &limits);
            plan.aggregate = aggregate;
            let (_, _, pat) = generate(&call, &plan);
            let up = |d: u32| (Rank(2), Rank((2 + d) % 6));
            let packed = [1, 2, 4].map(|d| match (collective, up(d)) {
                (Collective::AllGather, (low, high)) => pat.packed(high, low),
                (_, (low, high)) => pat.packed(low, high),
            });
            assert_eq!(packed, expected, "{collective} {aggregate}");
        }
    }

    /// Goal: for any number of ranks and any width, every rank sends and receives n-1 chunks, one
    /// of each offset, in one order on both ends of a dimension; lists are 3n/2 long at most.
    #[test]
    fn every_offset_travels_once() {
        for ranks in 2..=70_u32 {
            for aggregate in [1, 2, 4, 16, 64] {
                let width = width(ranks, aggregate);
                assert!(width.is_power_of_two() && (width == 1 || width < ranks), "{ranks} {width}");
                for (gathers, steps) in
                    [(true, all_gather_steps(ranks, width)), (false, reduce_scatter_steps(ranks, width))]
                {
                    assert!(2 * steps.len() <= 3 * ranks as usize, "{ranks} {width} {}", steps.len());
                    let sent: Vec<(u32, u32)> = steps
                        .iter()
                        .filter_map(|s| s.to.map(|d| (d, if gathers { s.offset + (1 << d) } else { s.offset })))
                        .collect();
                    let received: Vec<(u32, u32)> = steps
                        .iter()
                        .filter(|s| !gathers || s.first)
                        .filter_map(|s| s.from.map(|d| (d, if gathers { s.offset } else { s.offset + (1 << d) })))
                        .collect();
                    let by_dimension = |pairs: &[(u32, u32)]| {
                        let mut sorted = pairs.to_vec();
                        sorted.sort_by_key(|p| p.0);
                        sorted
                    };
                    assert_eq!(by_dimension(&sent), by_dimension(&received), "{ranks} {width} {gathers}");
                    let mut offsets: Vec<u32> = sent.iter().map(|p| p.1).collect();
                    offsets.sort_unstable();
                    assert_eq!(offsets, (1..ranks).collect::<Vec<_>>(), "{ranks} {width} {gathers}");
                }
            }
        }
    }
}
