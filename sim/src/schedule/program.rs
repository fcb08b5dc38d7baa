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

/// A count as the type of expressions.
pub(crate) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
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
    #[inline]
    pub fn eval(&self, registers: &[i64; REGISTERS]) -> i64 {
        match self {
            Self::Const(value) => *value,
            Self::Var(var) => registers[usize::from(var.0) % REGISTERS],
            Self::Binary(..) | Self::Table(..) => self.compute(registers),
        }
    }

    fn compute(&self, registers: &[i64; REGISTERS]) -> i64 {
        match self {
            Self::Const(_) | Self::Var(_) => self.eval(registers),
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
#[derive(Clone, Debug)]
pub struct Template {
    flat: Vec<Flat>,
    ops: Vec<Op>,
    timing: [bool; REGISTERS],
    /// The level of the loop that a piece enters or goes round.
    levels: Vec<Option<Level>>,
}

impl Hash for Template {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The levels follow from the rest.
        (&self.flat, &self.ops, self.timing).hash(state);
    }
}

/// Loops whose rounds are alike in time, so that a run may leave some of them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The first of a program: all rounds talk to the same peers and give equally many signals, and the last ones may
    /// have less to do.
    First,
    /// Inside of others: nothing but what is moved where depends on its variable, and nobody waits for a signal of it.
    Inside,
}

impl Level {
    /// Both.
    pub const ALL: [Self; 2] = [Self::First, Self::Inside];
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
    /// By [`Level`]: rounds begun of the loop that the worker is in, and how many are to be left out.
    begun: [u32; 2],
    left_out: [i64; 2],
    /// The registers; set the parameters before the first step.
    pub registers: [i64; REGISTERS],
}

impl State {
    /// Rounds begun of the loop of a level that the worker is in, or was in last.
    pub fn begun(&self, level: Level) -> u32 {
        self.begun[level as usize]
    }

    /// Whether rounds of a level are left out.
    pub fn leapt(&self, level: Level) -> bool {
        self.left_out[level as usize] > 0
    }
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
        let mut template = Self { flat: Vec::new(), ops: Vec::new(), timing: [false; REGISTERS], levels: Vec::new() };
        template.flatten(code);
        template.find_timing_registers();
        template.find_levels();
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
        State { pc: 0, begun: [0; 2], left_out: [0; 2], registers }
    }

    /// The most rounds that a loop of a level has, of a worker with these parameters.
    pub fn rounds(&self, start: &State, level: Level) -> i64 {
        let mut registers = start.registers;
        let mut most = 0;
        for (piece, of) in self.flat.iter().zip(&self.levels) {
            match piece {
                Flat::Let(var, value) => registers[usize::from(var.0) % REGISTERS] = value.eval(&registers),
                Flat::Enter(var, from, to, _) => {
                    let first = from.eval(&registers);
                    registers[usize::from(var.0) % REGISTERS] = first;
                    if *of == Some(level) {
                        most = most.max(to.eval(&registers).saturating_sub(first));
                    }
                }
                Flat::Again(..) | Flat::Op(_) => {}
            }
        }
        most
    }

    /// Rounds that come after the one at hand, of the loop of a level that a worker is in; `None` where it is in none.
    pub fn rounds_left(&self, state: &State, level: Level) -> Option<i64> {
        let mut at = state.pc;
        while let Some(piece) = self.flat.get(at) {
            match piece {
                Flat::Enter(.., end) => at = *end,
                Flat::Again(var, to, _) if self.levels[at] == Some(level) => {
                    let round = state.registers[usize::from(var.0) % REGISTERS] + state.left_out[level as usize];
                    return Some(to.eval(&state.registers) - round - 1);
                }
                Flat::Again(..) | Flat::Let(..) | Flat::Op(_) => at += 1,
            }
        }
        None
    }

    /// Leaves out so many rounds after the one at hand of the loop of a level that a worker is in, for timing only: fewer
    /// than are left. All workers that it exchanges data with must leave out as many. Gives the signals that it gives in them.
    pub fn leave_out(&self, state: &mut State, level: Level, rounds: i64) -> u64 {
        state.left_out[level as usize] += rounds;
        // Those of loops inside of a round are not the ones that were begun before.
        state.begun[level as usize..].fill(0);
        self.signals_of(level, rounds)
    }

    /// Signals that so many rounds of the loop of a level give.
    pub fn signals_of(&self, level: Level, rounds: i64) -> u64 {
        let signals = if level == Level::First { self.signals_a_round().unwrap_or(0) } else { 0 };
        u64::try_from(rounds).unwrap_or(0) * signals
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

    /// Finds the loops of each [`Level`].
    fn find_levels(&mut self) {
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
        let mut ports = [false; REGISTERS];
        for port in self.ops.iter().flat_map(|op| op.recv.iter().chain(&op.send)) {
            port.variables(&mut ports);
        }
        let begins = self.flat.iter().position(|flat| !matches!(flat, Flat::Let(..)));
        let mut levels = vec![None; self.flat.len()];
        let mut depth = 0;
        for (index, flat) in self.flat.iter().enumerate() {
            match flat {
                Flat::Enter(var, from, to, end) => {
                    let var = usize::from(var.0) % REGISTERS;
                    let level = if depth == 0 {
                        let first = begins == Some(index) && !ports[var] && self.signals_a_round().is_some();
                        first.then_some(Level::First)
                    } else {
                        let alike = is_fixed(from) && is_fixed(to) && !self.timing[var];
                        (alike && self.flat[index + 1..end - 1].iter().all(quiet)).then_some(Level::Inside)
                    };
                    (levels[index], levels[end - 1]) = (level, level);
                    depth += 1;
                }
                Flat::Again(..) => depth -= 1,
                Flat::Let(..) | Flat::Op(_) => {}
            }
        }
        self.levels = levels;
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
    #[doc(hidden)]
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
        mutant.find_levels();
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
        self.advance::<true>(state, step)
    }

    /// [`Self::next`] for timing: offsets and exact elements of the step are 0, and so are registers that time does not
    /// depend on.
    pub fn next_timed(&self, state: &mut State, step: &mut Step) -> bool {
        self.advance::<false>(state, step)
    }

    fn advance<const EXACT: bool>(&self, state: &mut State, step: &mut Step) -> bool {
        while let Some(piece) = self.flat.get(state.pc) {
            let level = self.levels[state.pc].map(|level| level as usize);
            state.pc += 1;
            match piece {
                Flat::Enter(var, from, to, end) => {
                    let from = from.eval(&state.registers);
                    if from < to.eval(&state.registers) {
                        state.registers[usize::from(var.0) % REGISTERS] = from;
                        level.into_iter().for_each(|level| state.begun[level] = 1);
                    } else {
                        state.pc = *end;
                    }
                }
                Flat::Again(var, to, start) => {
                    let left_out = level.map_or(0, |level| std::mem::take(&mut state.left_out[level]));
                    let next = state.registers[usize::from(var.0) % REGISTERS] + 1 + left_out;
                    if next < to.eval(&state.registers) {
                        state.registers[usize::from(var.0) % REGISTERS] = next;
                        level.into_iter().for_each(|level| state.begun[level] += 1);
                        state.pc = *start;
                    }
                }
                Flat::Let(var, value) => {
                    let var = usize::from(var.0) % REGISTERS;
                    if EXACT || self.timing[var] {
                        state.registers[var] = value.eval(&state.registers);
                    }
                }
                Flat::Op(index) => {
                    self.resolve::<EXACT>(*index, &state.registers, step);
                    return true;
                }
            }
        }
        false
    }

    fn resolve<const EXACT: bool>(&self, index: usize, registers: &[i64; REGISTERS], step: &mut Step) {
        let op = &self.ops[index];
        let unsigned = |e: &Expr| u64::try_from(e.eval(registers)).unwrap_or(0);
        let port = |e: &Expr| usize::try_from(e.eval(registers)).unwrap_or(usize::MAX);
        step.op = index;
        step.recv.clear();
        step.recv.extend(op.recv.iter().map(port));
        step.send.clear();
        step.send.extend(op.send.iter().map(port));
        step.reduce = op.reduce;
        let exact = |e: &Expr| if EXACT { unsigned(e) } else { 0 };
        step.src = op.src.as_ref().map(|r| (r.buffer, exact(&r.offset)));
        step.dst = op.dst.as_ref().map(|r| (r.buffer, exact(&r.offset)));
        step.count = exact(&op.count);
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

    /// Goal: a worker leaves out rounds of both levels, wherever it is in them, and the steps that are left are the last.
    #[test]
    fn rounds_are_left_out() {
        let (i, j) = (Var(0), Var(1));
        let op = |count: Expr| Code::Op(Op { count, signal: true, ..Op::default() });
        let quiet = Code::Op(Op { count: i * 100 + j, ..Op::default() });
        let code = [Code::For(i, c(0), c(9), vec![op(i * 100 + 99), Code::For(j, c(0), c(8), vec![quiet])])];
        let template = Template::new(&code);
        let (mut state, mut step) = (template.start(&[]), Step::default());
        assert_eq!(Level::ALL.map(|level| template.rounds(&state, level)), [9, 8]);
        let mut next = |state: &mut State| template.next(state, &mut step).then_some(step.count);
        assert_eq!((next(&mut state), next(&mut state), next(&mut state)), (Some(99), Some(0), Some(1)));
        let left = |state: &State| Level::ALL.map(|level| template.rounds_left(state, level));
        assert_eq!((left(&state), Level::ALL.map(|level| state.begun(level))), ([Some(8), Some(6)], [1, 2]));
        assert_eq!(template.leave_out(&mut state, Level::Inside, 4), 0);
        assert_eq!((left(&state), next(&mut state)), ([Some(8), Some(2)], Some(6)));
        assert_eq!(template.leave_out(&mut state, Level::First, 5), 5);
        assert_eq!((next(&mut state), next(&mut state)), (Some(7), Some(699)));
        let rest: Vec<u64> = std::iter::from_fn(|| next(&mut state)).collect();
        assert_eq!((rest.len(), rest.last()), (8 + 2 * 9, Some(&807)));
        assert_eq!(left(&state), [None, None]);
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
