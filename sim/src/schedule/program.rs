//! The form of a worker's program: a small structured code, interpreted through a cursor.
//!
//! A program is generated once per role (a [`Template`]), never per rank or per step: every
//! consumer (verifier, engine, executors) pulls one [`Step`] after another out of it with
//! [`Template::next`], with no allocation and about two hundred bytes of state a lane.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

pub use crate::call::Buffer;
use crate::hash::Fnv;

/// A register of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct Var(pub u8);

/// Number of registers of a lane.
pub const REGISTERS: usize = 16;

/// Integer arithmetic over registers.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Expr {
    /// A constant.
    Const(i64),
    /// A register.
    Var(Var),
    /// Two operands. Division and remainder are Euclidean and give 0 for a zero divisor, so
    /// that no program can panic.
    Binary(Operator, Box<(Expr, Expr)>),
    /// An entry of a table; 0 outside it. For irregular patterns and imported schedules.
    Table(Table, Box<Expr>),
}

/// The table of an [`Expr::Table`]. Clones share its values, and its hash is taken once: every step of an imported
/// schedule refers to one table of all steps.
#[derive(Clone, Debug)]
pub struct Table {
    values: Arc<[i64]>,
    hash: u64,
}

impl FromIterator<i64> for Table {
    fn from_iter<I: IntoIterator<Item = i64>>(values: I) -> Self {
        let values: Arc<[i64]> = values.into_iter().collect();
        let mut hasher = Fnv::default();
        values.hash(&mut hasher);
        Self { hash: hasher.finish(), values }
    }
}

impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.values, &other.values) || self.hash == other.hash && self.values == other.values
    }
}

impl Eq for Table {}

impl Hash for Table {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// An operator of [`Expr::Binary`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Operator {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Euclidean quotient.
    Div,
    /// Euclidean remainder.
    Rem,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

/// A constant.
pub fn c(value: i64) -> Expr {
    Expr::Const(value)
}

impl Default for Expr {
    fn default() -> Self {
        Self::Const(0)
    }
}

impl From<Var> for Expr {
    fn from(var: Var) -> Self {
        Self::Var(var)
    }
}

impl From<i64> for Expr {
    fn from(value: i64) -> Self {
        Self::Const(value)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $operator:ident),+) => {$(
        impl<R: Into<Expr>> std::ops::$trait<R> for Expr {
            type Output = Expr;
            fn $method(self, other: R) -> Expr {
                Expr::binary(Operator::$operator, self, other.into())
            }
        }
        impl<R: Into<Expr>> std::ops::$trait<R> for Var {
            type Output = Expr;
            fn $method(self, other: R) -> Expr {
                Expr::binary(Operator::$operator, self.into(), other.into())
            }
        }
    )+};
}
operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Rem);

impl Expr {
    fn binary(operator: Operator, a: Self, b: Self) -> Self {
        Self::Binary(operator, Box::new((a, b)))
    }

    /// The smaller of both.
    #[must_use]
    pub fn min(self, other: impl Into<Self>) -> Self {
        Self::binary(Operator::Min, self, other.into())
    }

    /// The larger of both.
    #[must_use]
    pub fn max(self, other: impl Into<Self>) -> Self {
        Self::binary(Operator::Max, self, other.into())
    }

    /// Rounded up to a multiple of `grain`.
    #[must_use]
    pub fn round_up(self, grain: impl Into<Self> + Clone) -> Self {
        (self + grain.clone().into() - 1) / grain.clone() * grain
    }

    /// Its value with the given registers; overflow wraps.
    pub fn eval(&self, registers: &[i64; REGISTERS]) -> i64 {
        match self {
            Self::Const(value) => *value,
            Self::Var(var) => registers[usize::from(var.0) % REGISTERS],
            Self::Binary(operator, operands) => {
                let (a, b) = (operands.0.eval(registers), operands.1.eval(registers));
                match operator {
                    Operator::Add => a.wrapping_add(b),
                    Operator::Sub => a.wrapping_sub(b),
                    Operator::Mul => a.wrapping_mul(b),
                    Operator::Div => a.checked_div_euclid(b).unwrap_or(0),
                    Operator::Rem => a.checked_rem_euclid(b).unwrap_or(0),
                    Operator::Min => a.min(b),
                    Operator::Max => a.max(b),
                }
            }
            Self::Table(table, index) => {
                usize::try_from(index.eval(registers)).ok().and_then(|i| table.values.get(i)).copied().unwrap_or(0)
            }
        }
    }

    fn variables(&self, into: &mut [bool; REGISTERS]) {
        match self {
            Self::Const(_) => {}
            Self::Var(var) => into[usize::from(var.0) % REGISTERS] = true,
            Self::Binary(_, operands) => {
                operands.0.variables(into);
                operands.1.variables(into);
            }
            Self::Table(_, index) => index.variables(into),
        }
    }
}

/// A place in a buffer, in elements.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Ref {
    /// Which buffer.
    pub buffer: Buffer,
    /// Offset in elements.
    pub offset: Expr,
}

/// One fused instruction: receive, reduce, copy and send are spellings of it with fields absent.
///
/// All sources (what arrives on the `recv` ports, and `src`) are combined element by element
/// when `reduce` is set; otherwise there is exactly one source. The result goes to `dst` and
/// to every `send` port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Op {
    /// Ports received from: indices into the worker's receive connections.
    pub recv: SmallVec<[Expr; 1]>,
    /// Whether sources are combined.
    pub reduce: bool,
    /// Local source.
    pub src: Option<Ref>,
    /// Local destination.
    pub dst: Option<Ref>,
    /// The destination is a source too: what it holds is combined with the others.
    pub accumulate: bool,
    /// Ports sent to: indices into the worker's send connections.
    pub send: SmallVec<[Expr; 1]>,
    /// Exact number of elements; values below 0 count as 0.
    pub count: Expr,
    /// Number of elements for timing: the aligned chunk, equal on symmetric workers.
    pub span: Expr,
    /// Starts only when another lane of the rank has signalled so often.
    pub wait: Option<Wait>,
    /// Signals the rank's other lanes when it is over.
    pub signal: bool,
}

/// A token of another lane of the same rank.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Wait {
    /// Index into the worker's [`tokens`](super::Worker::tokens).
    pub port: Expr,
    /// How many of its instructions must have signalled.
    pub count: Expr,
}

/// A piece of structured code.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "a program is built once and is mostly instructions")]
pub enum Code {
    /// `for var in from..to`.
    For(Var, Expr, Expr, Vec<Code>),
    /// `var = value`.
    Let(Var, Expr),
    /// An instruction.
    Op(Op),
}

#[derive(Clone, Debug, Hash)]
enum Flat {
    /// Enters a loop, or jumps past its end (`usize`) when it is empty.
    Enter(Var, Expr, Expr, usize),
    /// Next round (jump to `usize`), or falls out.
    Again(Var, Expr, usize),
    Let(Var, Expr),
    Op(usize),
}

/// The program of one role.
#[derive(Clone, Debug, Hash)]
pub struct Template {
    flat: Vec<Flat>,
    ops: Vec<Op>,
    timing: [bool; REGISTERS],
}

/// What an instruction does, whatever the sizes and peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Ports received from and sent to.
    ports: (usize, usize),
    /// Buffers read and written.
    buffers: (Option<Buffer>, Option<Buffer>),
    /// Whether sources are combined, and the destination is one.
    adds: (bool, bool),
    /// Whether it waits for another lane, and signals.
    tokens: (bool, bool),
}

/// A change of one instruction: see [`Template::mutated`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// Leaves it out.
    Delete,
    /// Does it twice.
    Duplicate,
    /// Exchanges it with the one after it in the program text.
    SwapWithNext,
    /// Does other work before it, which moves no data.
    Delay,
    /// Does not wait for another lane.
    Unordered,
    /// Does not signal other lanes.
    Silent,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Delete, Self::Duplicate, Self::SwapWithNext, Self::Delay, Self::Unordered, Self::Silent];
}

/// Where a worker is in its program.
#[derive(Clone, Debug)]
pub struct State {
    pc: usize,
    /// Rounds of the first loop that are left out: see [`Template::shortened`].
    skip: i64,
    /// Rounds of each loop over one of [`Self::over`] that are left out: see [`Template::shortened_inside`].
    inside: i64,
    /// A bit for each variable of such loops.
    over: u16,
    /// The registers; set the parameters before the first step.
    pub registers: [i64; REGISTERS],
}

/// Port numbers of one step.
pub type Ports = SmallVec<[usize; 2]>;

/// One instruction with its operands resolved.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// Which instruction of the template; for messages.
    pub op: usize,
    /// Receive ports.
    pub recv: Ports,
    /// Whether sources are combined.
    pub reduce: bool,
    /// Local source: buffer and offset in elements.
    pub src: Option<(Buffer, u64)>,
    /// Local destination: buffer and offset in elements.
    pub dst: Option<(Buffer, u64)>,
    /// Send ports.
    pub send: Ports,
    /// Exact number of elements.
    pub count: u64,
    /// Number of elements for timing.
    pub span: u64,
    /// Whether the destination is a source too.
    pub accumulate: bool,
    /// Which lane must have signalled before, and how often.
    pub wait: Option<(usize, u64)>,
    /// Whether it signals when it is over.
    pub signal: bool,
}

impl Template {
    /// Flattens structured code.
    pub fn new(code: &[Code]) -> Self {
        let mut template = Self { flat: Vec::new(), ops: Vec::new(), timing: [false; REGISTERS] };
        template.flatten(code);
        template.find_timing_registers();
        template
    }

    /// What its instructions do, in the order of the program text: what it has in common with the program of the same
    /// role in a schedule of another size.
    pub fn shape(&self) -> Vec<Shape> {
        let shape = |op: &Op| Shape {
            ports: (op.recv.len(), op.send.len()),
            buffers: (op.src.as_ref().map(|at| at.buffer), op.dst.as_ref().map(|at| at.buffer)),
            adds: (op.reduce, op.accumulate),
            tokens: (op.wait.is_some(), op.signal),
        };
        self.ops.iter().map(shape).collect()
    }

    fn flatten(&mut self, code: &[Code]) {
        for piece in code {
            match piece {
                Code::For(var, from, to, body) => {
                    let enter = self.flat.len();
                    self.flat.push(Flat::Enter(*var, from.clone(), to.clone(), 0));
                    self.flatten(body);
                    self.flat.push(Flat::Again(*var, to.clone(), enter + 1));
                    let end = self.flat.len();
                    if let Flat::Enter(_, _, _, target) = &mut self.flat[enter] {
                        *target = end;
                    }
                }
                Code::Let(var, value) => self.flat.push(Flat::Let(*var, value.clone())),
                Code::Op(op) => {
                    self.flat.push(Flat::Op(self.ops.len()));
                    self.ops.push(op.clone());
                }
            }
        }
    }

    /// Registers that loop bounds, spans and ports depend on, also through `let`.
    fn find_timing_registers(&mut self) {
        let mut timing = [false; REGISTERS];
        for op in &self.ops {
            op.span.variables(&mut timing);
            for port in op.recv.iter().chain(&op.send) {
                port.variables(&mut timing);
            }
            if let Some(wait) = &op.wait {
                wait.port.variables(&mut timing);
                wait.count.variables(&mut timing);
            }
        }
        for piece in &self.flat {
            if let Flat::Enter(_, from, to, _) = piece {
                from.variables(&mut timing);
                to.variables(&mut timing);
            }
        }
        loop {
            let before = timing;
            for piece in &self.flat {
                if let Flat::Let(var, value) = piece
                    && timing[usize::from(var.0)]
                {
                    value.variables(&mut timing);
                }
            }
            if before == timing {
                break;
            }
        }
        self.timing = timing;
    }

    /// A worker at the start of its program, with its parameters.
    pub fn start(&self, parameters: &[(Var, i64)]) -> State {
        let mut registers = [0; REGISTERS];
        for &(var, value) in parameters {
            registers[usize::from(var.0) % REGISTERS] = value;
        }
        State { pc: 0, skip: 0, inside: 0, over: 0, registers }
    }

    /// Rounds of the first loop of a worker's program, if it begins with one whose rounds all talk
    /// to the same peers and give equally many signals.
    pub fn rounds(&self, start: &State) -> Option<i64> {
        let mut registers = start.registers;
        for piece in &self.flat {
            match piece {
                Flat::Let(var, value) => registers[usize::from(var.0) % REGISTERS] = value.eval(&registers),
                Flat::Enter(var, from, to, _) => {
                    let mut used = [false; REGISTERS];
                    for port in self.ops.iter().flat_map(|op| op.recv.iter().chain(&op.send)) {
                        port.variables(&mut used);
                    }
                    let alike = !used[usize::from(var.0) % REGISTERS] && self.signals_a_round().is_some();
                    return alike.then(|| (to.eval(&registers) - from.eval(&registers)).max(0));
                }
                Flat::Again(..) | Flat::Op(_) => return None,
            }
        }
        Some(0)
    }

    /// A worker's start without the first `rounds` rounds of its first loop: what a long call
    /// does once it is under way, for timing only. All workers must leave out as many.
    #[must_use]
    pub fn shortened(&self, start: &State, rounds: i64) -> State {
        State { skip: rounds, ..start.clone() }
    }

    /// For the first `count` receive ports (or send ports) of a worker, the first of those that are always used along
    /// with it: which of them has which connection makes no difference in time.
    pub fn ports_alike(&self, count: usize, sends: bool) -> Ports {
        let constant = |port: &Expr| match port {
            Expr::Const(port) => usize::try_from(*port).ok(),
            _ => None,
        };
        let ops = self.ops.iter().map(|op| if sends { &op.send } else { &op.recv });
        let Some(ops) = ops.map(|ports| ports.iter().map(constant).collect()).collect::<Option<Vec<Vec<usize>>>>()
        else {
            return (0..count).collect();
        };
        let uses = |port: usize| ops.iter().map(move |ports| ports.iter().filter(|&&p| p == port).count());
        (0..count).map(|port| (0..port).find(|&first| uses(first).eq(uses(port))).unwrap_or(port)).collect()
    }

    /// Rounds of each loop inside of the first one whose rounds are all alike in time: they hold instructions alone,
    /// nothing but what is moved where depends on their variable, and nobody waits for a signal of them. With the
    /// variables of those loops, a bit each.
    pub fn rounds_inside(&self, start: &State) -> (Vec<i64>, u16) {
        let set = |flat: &Flat| match flat {
            Flat::Enter(var, ..) | Flat::Let(var, _) => Some(usize::from(var.0)),
            Flat::Again(..) | Flat::Op(_) => None,
        };
        // Bounds that nothing changes.
        let is_fixed = |bound: &Expr| {
            let mut used = [false; REGISTERS];
            bound.variables(&mut used);
            !self.flat.iter().filter_map(set).any(|var| used[var])
        };
        let quiet = |flat: &Flat| match flat {
            Flat::Op(op) => self.ops[*op].wait.is_none() && !self.ops[*op].signal,
            _ => false,
        };
        let (mut rounds, mut alike, mut other) = (Vec::new(), 0_u16, 0_u16);
        let mut depth = 0;
        for (index, flat) in self.flat.iter().enumerate() {
            match flat {
                Flat::Enter(var, from, to, end) => {
                    let bit = 1 << var.0;
                    let body = &self.flat[index + 1..end - 1];
                    let fixed = is_fixed(from) && is_fixed(to);
                    if depth > 0 && fixed && !self.timing[usize::from(var.0)] && body.iter().all(quiet) {
                        rounds.push((to.eval(&start.registers) - from.eval(&start.registers)).max(0));
                        alike |= bit;
                    } else {
                        other |= bit;
                    }
                    depth += 1;
                }
                Flat::Again(..) => depth -= 1,
                Flat::Let(..) | Flat::Op(_) => {}
            }
        }
        if alike & other == 0 { (rounds, alike) } else { (Vec::new(), 0) }
    }

    /// A worker's start without so many rounds of each loop of [`Self::rounds_inside`], for timing only. All workers
    /// must leave out as many.
    #[must_use]
    pub fn shortened_inside(&self, start: &State, rounds: i64) -> State {
        State { inside: rounds, over: self.rounds_inside(start).1, ..start.clone() }
    }

    /// Signals of one round of the first loop; `None` where a loop inside of it gives some.
    fn signals_a_round(&self) -> Option<u64> {
        let enter = self.flat.iter().position(|piece| matches!(piece, Flat::Enter(..)))?;
        let (mut depth, mut signals) = (0, 0);
        for piece in &self.flat[enter..] {
            match piece {
                Flat::Enter(..) => depth += 1,
                Flat::Again(..) if depth == 1 => break,
                Flat::Again(..) => depth -= 1,
                Flat::Op(op) if self.ops[*op].signal && depth > 1 => return None,
                Flat::Op(op) => signals += u64::from(self.ops[*op].signal),
                Flat::Let(..) => {}
            }
        }
        Some(signals)
    }

    /// Signals that a worker has given in the rounds that its start leaves out ([`Self::shortened`]): who waits
    /// counts from the first round.
    pub fn signals_left_out(&self, start: &State) -> u64 {
        let rounds = u64::try_from(start.skip).unwrap_or(0);
        if rounds == 0 { 0 } else { rounds * self.signals_a_round().unwrap_or(0) }
    }

    /// The registers that can change when something happens (not what is moved where), the
    /// others as 0: two workers with equal ones run in the same way in time.
    pub fn timing_registers(&self, start: &State) -> [i64; REGISTERS] {
        std::array::from_fn(|i| if self.timing[i] { start.registers[i] } else { 0 })
    }

    /// The instructions, in program order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// This program with one instruction changed, for tests that must notice it. `op` is the
    /// index of an instruction in [`Self::ops`]; another index changes nothing.
    #[must_use]
    pub fn mutated(&self, mutation: Mutation, op: usize) -> Self {
        let mut mutant = self.clone();
        let place = |op: usize| self.flat.iter().position(|piece| matches!(piece, Flat::Op(i) if *i == op));
        let Some(at) = place(op) else {
            return mutant;
        };
        match mutation {
            Mutation::Delete => mutant.flat[at] = Flat::Let(Var(0), Var(0).into()),
            Mutation::Duplicate => mutant.insert(at, Flat::Op(op)),
            Mutation::SwapWithNext => {
                if let Some(next) = place(op + 1) {
                    mutant.flat.swap(at, next);
                }
            }
            Mutation::Delay => {
                let local = |buffer| Some(Ref { buffer, offset: c(0) });
                mutant.ops.push(Op {
                    src: local(Buffer::Input),
                    dst: local(Buffer::Output),
                    span: c(64),
                    ..Op::default()
                });
                mutant.insert(at, Flat::Op(mutant.ops.len() - 1));
            }
            Mutation::Unordered => mutant.ops[op].wait = None,
            Mutation::Silent => mutant.ops[op].signal = false,
        }
        mutant.find_timing_registers();
        mutant
    }

    /// Puts a piece before the instruction at `at`; jumps to the instruction reach it too.
    fn insert(&mut self, at: usize, piece: Flat) {
        for jump in &mut self.flat {
            if let Flat::Enter(_, _, _, target) | Flat::Again(_, _, target) = jump
                && *target > at
            {
                *target += 1;
            }
        }
        self.flat.insert(at, piece);
    }

    /// Moves to the next instruction and resolves it into `step`; `false` at the end.
    pub fn next(&self, state: &mut State, step: &mut Step) -> bool {
        while let Some(piece) = self.flat.get(state.pc) {
            state.pc += 1;
            match piece {
                Flat::Enter(var, from, to, end) => {
                    let left_out = if state.over >> var.0 & 1 == 1 { state.inside } else { 0 };
                    let from = from.eval(&state.registers) + std::mem::take(&mut state.skip) + left_out;
                    if from < to.eval(&state.registers) {
                        state.registers[usize::from(var.0) % REGISTERS] = from;
                    } else {
                        state.pc = *end;
                    }
                }
                Flat::Again(var, to, start) => {
                    let next = state.registers[usize::from(var.0) % REGISTERS] + 1;
                    if next < to.eval(&state.registers) {
                        state.registers[usize::from(var.0) % REGISTERS] = next;
                        state.pc = *start;
                    }
                }
                Flat::Let(var, value) => {
                    state.registers[usize::from(var.0) % REGISTERS] = value.eval(&state.registers);
                }
                Flat::Op(index) => {
                    self.resolve(*index, &state.registers, step);
                    return true;
                }
            }
        }
        false
    }

    fn resolve(&self, index: usize, registers: &[i64; REGISTERS], step: &mut Step) {
        let op = &self.ops[index];
        let unsigned = |e: &Expr| u64::try_from(e.eval(registers)).unwrap_or(0);
        let port = |e: &Expr| usize::try_from(e.eval(registers)).unwrap_or(usize::MAX);
        step.op = index;
        step.recv.clear();
        step.recv.extend(op.recv.iter().map(port));
        step.send.clear();
        step.send.extend(op.send.iter().map(port));
        step.reduce = op.reduce;
        step.src = op.src.as_ref().map(|r| (r.buffer, unsigned(&r.offset)));
        step.dst = op.dst.as_ref().map(|r| (r.buffer, unsigned(&r.offset)));
        step.count = unsigned(&op.count);
        step.span = unsigned(&op.span);
        step.accumulate = op.accumulate;
        step.wait = op.wait.as_ref().map(|w| (port(&w.port), unsigned(&w.count)));
        step.signal = op.signal;
    }

    /// Every step of a worker, for tests and tools; at most `limit` of them.
    pub fn steps(&self, parameters: &[(Var, i64)], limit: usize) -> Vec<Step> {
        let mut state = self.start(parameters);
        let mut steps = Vec::new();
        let mut step = Step::default();
        while steps.len() < limit && self.next(&mut state, &mut step) {
            steps.push(step.clone());
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nested loops, empty loops and `let` run as written.
    #[test]
    fn a_program_runs_its_loops() {
        let (i, j, size) = (Var(0), Var(1), Var(2));
        let op = Op { count: i * 10 + j, span: size.into(), ..Op::default() };
        let code = [Code::For(
            i,
            c(0),
            c(3),
            vec![Code::Let(size, c(7).min(i + 5)), Code::For(j, c(0), i.into(), vec![Code::Op(op)])],
        )];
        let counts: Vec<(u64, u64)> = Template::new(&code).steps(&[], 99).iter().map(|s| (s.count, s.span)).collect();
        assert_eq!(counts, [(10, 6), (20, 7), (21, 7)]);
    }

    /// Goal: arithmetic that people get wrong: no panic on a zero divisor, Euclidean remainder.
    #[test]
    fn arithmetic_never_panics() {
        let zero = [0; REGISTERS];
        assert_eq!((c(-1) % 4).eval(&zero), 3);
        assert_eq!((c(5) / 0).eval(&zero), 0);
        assert_eq!((c(i64::MIN) / -1).eval(&zero), 0);
        assert_eq!(c(13).round_up(4).eval(&zero), 16);
        assert_eq!((c(i64::MAX) + 1).eval(&zero), i64::MIN);
    }
}
