//! MSCCL XML: algorithms that strangers bring, and ours in their form.
//!
//! One file is one algorithm for one number of ranks. Each GPU has thread blocks with at most
//! one peer to send to and one to receive from. Each block has a list of steps over chunks, and
//! may wait for other blocks of its GPU. [`Imported::parse`] reads and checks it, and
//! [`Imported::schedule`] makes a [`Schedule`] of it, which is proved, timed and run like any
//! other. [`export`] writes any schedule. Pure functions between text and schedules: whoever
//! calls them opens the files.
//!
//! The buffer is cut into `nchunksperloop` chunks. Where a chunk is larger than what the FIFO takes
//! at once ([`Plan::imported`]), all steps are done for one part of every chunk after another, as
//! MSCCL's interpreter does; chunks of one step that fit into that together travel together.
//!
//! # Source
//! The format of microsoft/msccl `src/graph/msccl.cc` (parser and limits) and msccl-tools
//! `msccl/language/ir.py` (writer, both spellings).

mod algorithm;
pub mod plan;
mod read;
mod write;

use rustc_hash::FxHashMap;
use smallvec::smallvec;

pub use algorithm::{Block, Gpu, Imported, Instruction, Kind, MscclError};
pub use write::{ExportError, export, one_loop, rewrite};

use super::program::{Buffer, Code, Expr, Op, Ref, Table, Template, Var, Wait, c, signed};
use super::{Call, Conn, Generator, Schedule, Worker};
use crate::ids::{ChannelId, Lane, Rank};
use crate::nccl::{Limits, Plan};
use crate::units::Bytes;

/// Most pieces of all steps of a schedule, each of which is an instruction of a program.
const MAX_PIECES: u64 = 1_000_000;

const BASE: Var = Var(0);
const L: Var = Var(1);
const OFF: Var = Var(2);
const SIZE: Var = Var(3);

/// What tells templates apart: a step without its places.
type Shape = (Kind, Buffer, Buffer, u64, Option<(usize, u64, u64)>, bool);

/// Blocks of a GPU with what others wait for.
struct Tokens {
    /// By block: steps that somebody waits for, in order.
    told: Vec<Vec<usize>>,
    /// By block: the blocks that it waits for.
    waits: Vec<Vec<usize>>,
}

impl Tokens {
    fn new(gpu: &Gpu) -> Self {
        let mut tokens = Self { told: vec![vec![]; gpu.blocks.len()], waits: vec![vec![]; gpu.blocks.len()] };
        for (index, block) in gpu.blocks.iter().enumerate() {
            for (other, step) in block.steps.iter().filter_map(|s| s.after).filter(|a| a.0 != index) {
                tokens.told[other].push(step);
                if !tokens.waits[index].contains(&other) {
                    tokens.waits[index].push(other);
                }
            }
        }
        for told in &mut tokens.told {
            told.sort_unstable();
            told.dedup();
        }
        tokens
    }
}

#[derive(Debug)]
struct Program {
    imported: Imported,
    /// `[rank][block]`: template and where its places begin in the table.
    blocks: Vec<Vec<(usize, i64)>>,
    /// `[rank][block]`: blocks that it waits for.
    waits: Vec<Vec<Vec<usize>>>,
    /// Elements of a chunk.
    element: u64,
    threads: u32,
}

impl Imported {
    /// Reads an algorithm; `file` is its name for messages.
    ///
    /// # Errors
    /// What cannot be understood, or does not fit together: see [`MscclError`].
    pub fn parse(text: &str, file: &str) -> Result<Self, MscclError> {
        read::parse(text, file)
    }

    /// Steps of all blocks.
    pub fn steps(&self) -> usize {
        self.gpus.iter().flat_map(|g| &g.blocks).map(|b| b.steps.len()).sum()
    }

    fn error(&self, what: String, hint: impl Into<String>) -> MscclError {
        MscclError { what, file: self.file.clone(), line: self.line, hint: hint.into() }
    }

    /// Whether the file is for a call.
    ///
    /// # Errors
    /// Another collective, number of ranks or size.
    pub fn check(&self, call: &Call) -> Result<(), MscclError> {
        call.check().map_err(|e| self.error(e.to_string(), "give a call that has a meaning"))?;
        if call.collective != self.collective || call.counts.is_some() {
            let what = format!("`{}` does {}, not this {}", self.name, self.collective, call.collective);
            return Err(self.error(what, format!("ask for --collective {}", self.collective)));
        }
        if call.ranks != self.ranks {
            let what = format!("`{}` is for {} ranks, the call has {}", self.name, self.ranks, call.ranks);
            return Err(self.error(what, format!("take {} GPUs, or generate the file for {}", self.ranks, call.ranks)));
        }
        if (call.in_place && !self.in_place) || (!call.in_place && !self.out_of_place) {
            let (is, hint) =
                if self.in_place { ("in", "ask for --in-place") } else { ("out of", "leave out --in-place") };
            let what = format!("`{}` is for buffers {is} place only", self.name);
            return Err(self.error(what, hint));
        }
        let size = call.size();
        let (min, max) = (self.min_bytes.unwrap_or(0), self.max_bytes.unwrap_or(u64::MAX));
        if size.0 < min || size.0 > max {
            let what = format!("`{}` is for {} to {}, not for {size}", self.name, Bytes(min), Bytes(max));
            return Err(self.error(what, "take a size inside minBytes and maxBytes, or change them"));
        }
        if !self.total(call).is_multiple_of(self.chunks) {
            let what = format!("`{}` cuts the buffer into {} chunks, which {size} are not", self.name, self.chunks);
            let unit = Bytes(self.chunks * call.dtype.size());
            return Err(self.error(what, format!("take a multiple of {} bytes, as MSCCL demands", unit.0)));
        }
        Ok(())
    }

    fn parts(&self) -> u64 {
        if self.collective.size_is_total() { u64::from(self.ranks) } else { 1 }
    }

    /// Elements of the whole buffer, which the chunks are parts of.
    fn total(&self, call: &Call) -> u64 {
        call.count * self.parts()
    }

    /// The schedule of a call.
    ///
    /// # Errors
    /// A call that the file is not for: another collective, number of ranks or size.
    pub fn schedule(&self, call: Call, limits: &Limits) -> Result<Schedule, MscclError> {
        self.check(&call)?;
        let plan = Plan::imported(&call, self.protocol, self.channels, self.threads, limits);
        let together = together(self.total(&call) / self.chunks, &plan);
        let steps = self.gpus.iter().flat_map(|g| &g.blocks).flat_map(|b| &b.steps);
        let pieces: u64 = steps.map(|s| s.count.div_ceil(together).max(1)).sum();
        if pieces > MAX_PIECES {
            let what = format!("`{}` moves {pieces} chunks one by one in a call of {}", self.name, call.size());
            return Err(self.error(what, format!("at most {MAX_PIECES} are run: take a smaller size or larger chunks")));
        }
        Ok(self.build(call, plan))
    }

    /// The same pattern as one of its schedules that goes more than three times through its
    /// chunks, with three times.
    pub(crate) fn small_twin(&self, schedule: &Schedule) -> Option<Schedule> {
        let plan = schedule.plan.of_short_chunks();
        let count = self.chunks / self.parts() * (2 * plan.chunk + 1);
        let large = self.total(&schedule.call) / self.chunks > 3 * schedule.plan.chunk;
        large.then(|| self.build(Call { count, ..schedule.call.clone() }, plan))
    }

    fn build(&self, call: Call, plan: Plan) -> Schedule {
        let element = self.total(&call) / self.chunks;
        let mut places: Vec<i64> = Vec::new();
        let mut shapes: FxHashMap<Vec<Shape>, usize> = FxHashMap::default();
        let mut order: Vec<Vec<Shape>> = Vec::new();
        let (mut blocks, mut waits) = (Vec::new(), Vec::new());
        for gpu in &self.gpus {
            let tokens = Tokens::new(gpu);
            let of_gpu = gpu.blocks.iter().enumerate().map(|(index, block)| {
                let shape: Vec<Shape> =
                    block.steps.iter().enumerate().map(|(at, step)| shape(&tokens, index, at, step)).collect();
                let base = signed(places.len() as u64);
                places.extend(block.steps.iter().flat_map(|s| [signed(s.src.1), signed(s.dst.1)]));
                let next = order.len();
                let template = *shapes.entry(shape).or_insert_with_key(|shape| {
                    order.push(shape.clone());
                    next
                });
                (template, base)
            });
            blocks.push(of_gpu.collect());
            waits.push(tokens.waits);
        }
        let places: Table = places.into_iter().collect();
        let templates = order.iter().map(|shape| template(shape, &places, element, &plan)).collect();
        let lanes = self.gpus.iter().map(|g| g.blocks.len()).max().unwrap_or(0).max(1);
        let lanes = u32::try_from(lanes).unwrap_or(u32::MAX);
        let program = Program { imported: self.clone(), blocks, waits, element, threads: plan.threads };
        Schedule::from_parts(call, plan, lanes, templates, Box::new(program))
    }
}

fn shape(tokens: &Tokens, block: usize, at: usize, step: &Instruction) -> Shape {
    let wait = step.after.filter(|a| a.0 != block).map(|(other, step)| {
        let port = tokens.waits[block].iter().position(|&b| b == other).unwrap_or(0);
        let number = tokens.told[other].partition_point(|&s| s < step) + 1;
        (port, tokens.told[other].len() as u64, number as u64)
    });
    let signal = tokens.told[block].binary_search(&at).is_ok();
    (step.kind, step.src.0, step.dst.0, step.count, wait, signal)
}

/// Chunks of a step that go together: several where all of each fits.
fn together(element: u64, plan: &Plan) -> u64 {
    let chunk = plan.chunk.max(1);
    if element <= chunk { (chunk / element.max(1)).max(1) } else { 1 }
}

fn template(shape: &[Shape], places: &Table, element: u64, plan: &Plan) -> Template {
    let (chunk, grain) = (plan.chunk.max(1), signed(plan.grain));
    let loops = element.div_ceil(chunk);
    let together = together(element, plan);
    let mut body = vec![
        Code::Let(OFF, L * signed(chunk)),
        Code::Let(SIZE, (c(signed(element)) - OFF).round_up(grain).min(signed(chunk))),
    ];
    for (index, &(kind, src, dst, count, wait, signal)) in (0..).zip(shape) {
        let pieces = count.div_ceil(together).max(1);
        for piece in 0..pieces {
            let many = signed(together.min(count - (piece * together).min(count)));
            let place = |used: bool, buffer, entry: i64| {
                let chunk = Expr::Table(places.clone(), Box::new(BASE + (2 * index + entry)));
                let offset = (chunk + signed(piece * together)) * signed(element) + OFF;
                used.then_some(Ref { buffer, offset })
            };
            let size = |whole: Expr, one: Expr| if kind == Kind::Nothing { c(0) } else { whole * (many - 1) + one };
            let exact = (c(signed(element)) - OFF).min(signed(chunk));
            let port = |used: bool| if used { smallvec![c(0)] } else { smallvec![] };
            body.push(Code::Op(Op {
                recv: port(kind.receives()),
                send: port(kind.sends()),
                src: place(kind.reads(), src, 0),
                dst: place(kind.writes(), dst, 1),
                reduce: (kind.receives() && kind.reads()) || kind == Kind::Reduce,
                accumulate: kind == Kind::Reduce,
                count: size(c(signed(element)), exact),
                span: size(c(signed(element)), SIZE.into()),
                wait: wait.filter(|_| piece == 0).map(|(port, of, number)| Wait {
                    port: c(signed(port as u64)),
                    count: L * signed(of) + signed(number),
                }),
                signal: signal && piece + 1 == pieces,
            }));
        }
    }
    Template::new(&[Code::For(L, c(0), c(signed(loops)), body)])
}

impl Generator for Program {
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        let blocks = &self.imported.gpus[rank.index()].blocks;
        let block = blocks.get(lane.index()).filter(|b| b.channel == channel.0)?;
        let (template, base) = self.blocks[rank.index()][lane.index()];
        let tokens = self.waits[rank.index()][lane.index()].iter();
        let tokens =
            tokens.map(|&other| (ChannelId(blocks[other].channel), Lane(u32::try_from(other).unwrap_or(u32::MAX))));
        let uses = |f: fn(Kind) -> bool| block.steps.iter().any(|s| f(s.kind));
        let conn = |src, dst| Conn::pair(src, dst, channel, 0);
        let recv = block.recv.filter(|_| uses(Kind::receives)).map(|peer| conn(Rank(peer), rank));
        let send = block.send.filter(|_| uses(Kind::sends)).map(|peer| conn(rank, Rank(peer)));
        Some(Worker {
            template,
            parameters: vec![(BASE, base)],
            recv: recv.into_iter().collect(),
            send: send.into_iter().collect(),
            tokens: tokens.collect(),
            threads: self.threads,
            others: 0,
        })
    }

    fn scratch(&self, rank: Rank) -> u64 {
        self.imported.gpus[rank.index()].scratch * self.element
    }
}
