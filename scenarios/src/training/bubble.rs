//! A pipeline in time: passes of micro-batches over stages, in the order of a schedule, with the messages between them.

use std::collections::VecDeque;

use super::timeline::{Doing, Record, Span};
use crate::pipeline::{Pass, Schedule, Turn, dual_pipe, pairs, passes};

/// What the passes of one stage take, in seconds, by chunk.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct StageTimes {
    /// Forward passes.
    pub(crate) forward: Vec<f64>,
    /// Backward passes, without `weights`.
    pub(crate) backward: Vec<f64>,
    /// Gradients of weights that no other stage waits for; 0 where they are part of the backward pass.
    pub(crate) weights: Vec<f64>,
    /// By chunk, and within it by chunk: the forward pass of the former beside the whole backward pass of the latter, where an
    /// order has such.
    pub(crate) both: Vec<f64>,
}

/// Which pass follows which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Micro-batches go one way; gradients of weights fill what is idle.
    By(Schedule),
    /// The same with forward passes beside backward ones, see [`pairs`].
    Pairs(Schedule),
    /// See [`dual_pipe`].
    DualPipe,
}

impl Order {
    fn turns(self, stage: u32, stages: u32, micro_batches: u32, chunks: u32) -> Vec<Turn> {
        match self {
            Self::By(schedule) => {
                passes(schedule, stage, stages, micro_batches, chunks).into_iter().map(Turn::One).collect()
            }
            Self::Pairs(schedule) => pairs(schedule, stage, stages, micro_batches, chunks),
            Self::DualPipe => dual_pipe(stage, stages, micro_batches),
        }
    }

    /// Which part of the model the chunk of a stage is, of all parts in order; those of the second way after the first.
    fn part(self, stage: usize, chunk: usize, stages: usize) -> usize {
        match self {
            Self::By(_) | Self::Pairs(_) => chunk * stages + stage,
            Self::DualPipe if (stage < stages / 2) == (chunk == 0) => stage,
            Self::DualPipe => 2 * stages - 1 - stage,
        }
    }

    /// The stage that has a part.
    fn owner(self, part: usize, stages: usize) -> usize {
        match self {
            Self::DualPipe if part >= stages => 2 * stages - 1 - part,
            _ => part % stages,
        }
    }

    /// The part after one, or before it; `None` where the model ends.
    fn beside(self, part: usize, forward: bool, (stages, chunks): (usize, usize)) -> Option<usize> {
        let way = if self == Self::DualPipe { stages } else { stages * chunks };
        let at_end = if forward { part % way == way - 1 } else { part.is_multiple_of(way) };
        (!at_end).then(|| if forward { part + 1 } else { part - 1 })
    }
}

/// What a step does besides its passes, by stage.
pub(crate) trait Around {
    /// When the first forward pass of a chunk ends, from when it could start and what it takes alone; and how much longer its
    /// kernels take beside calls.
    fn first(&self, stage: usize, chunk: usize, times: (f64, f64), record: &mut Record<'_>) -> (f64, f64);
}

/// A pipeline.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pipeline {
    /// Order of passes.
    pub(crate) order: Order,
    /// Micro-batches.
    pub(crate) micro_batches: u32,
    /// By stage.
    pub(crate) stages: Vec<StageTimes>,
    /// Seconds of a message between two stages.
    pub(crate) message: f64,
    /// Seconds in which a stage puts a message together that its tensor ranks have received in parts.
    pub(crate) joins: f64,
    /// Whether a stage waits until its message has left, before its next pass.
    pub(crate) waits: bool,
}

/// How it went, in seconds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PipelineTimes {
    /// When each stage has done its last pass.
    pub(crate) ends: Vec<f64>,
    /// When each stage begins the last backward pass of each of its chunks.
    pub(crate) last_begins: Vec<Vec<f64>>,
    /// Time in passes, by stage.
    pub(crate) busy: Vec<f64>,
    /// Time in which a stage waits for messages to leave, and puts together what came in parts.
    pub(crate) sending: Vec<f64>,
    /// Time in which first passes wait for parameters, by stage.
    pub(crate) gathering: Vec<f64>,
    /// What kernels of first passes take longer beside calls, by stage.
    pub(crate) slowed: Vec<f64>,
    /// Forward passes that ran beside a backward pass, by stage and by both their chunks as in [`StageTimes::both`].
    pub(crate) beside: Vec<Vec<u32>>,
}

impl Pipeline {
    /// Runs it.
    pub(crate) fn run(&self, around: &dyn Around, record: &mut Record<'_>) -> PipelineTimes {
        let stages = self.stages.len();
        let chunks = self.stages[0].forward.len();
        let micro_batches = self.micro_batches as usize;
        let order: Vec<Vec<Turn>> = (0..stages as u32)
            .map(|stage| self.order.turns(stage, stages as u32, self.micro_batches, chunks as u32))
            .collect();
        let mut run = Run {
            pipeline: self,
            shape: (stages, chunks),
            inputs: vec![vec![f64::NAN; stages * chunks * micro_batches]; 2],
            free: vec![0.0; stages],
            put_off: vec![VecDeque::new(); stages],
            held: vec![0; stages],
            todo: (0..stages).rev().collect(),
            times: PipelineTimes {
                ends: vec![0.0; stages],
                last_begins: vec![vec![0.0; chunks]; stages],
                busy: vec![0.0; stages],
                sending: vec![0.0; stages],
                gathering: vec![0.0; stages],
                slowed: vec![0.0; stages],
                beside: vec![vec![0; chunks * chunks]; stages],
            },
        };
        for part in (0..stages * chunks).filter(|&part| self.order.beside(part, false, (stages, chunks)).is_none()) {
            run.inputs[0][part * micro_batches..][..micro_batches].fill(0.0);
        }
        let mut next = vec![0; stages];
        let mut first = vec![vec![true; chunks]; stages];
        while let Some(stage) = run.todo.pop() {
            while let Some(&turn) = order[stage].get(next[stage]) {
                let of = &self.stages[stage];
                let seconds = |pass: Pass| {
                    let chunk = pass.chunk as usize;
                    if pass.forward { of.forward[chunk] } else { of.backward[chunk] }
                };
                match turn {
                    Turn::One(pass) | Turn::Split(pass) => {
                        let input = run.input(stage, pass);
                        if input.is_nan() {
                            break;
                        }
                        run.fill_until(stage, input, record);
                        if pass.forward {
                            run.make_room(stage, record);
                        }
                        let joins = if run.receives(stage, pass) { self.joins } else { 0.0 };
                        run.times.sending[stage] += joins;
                        let start = run.free[stage].max(input) + joins;
                        let chunk = pass.chunk as usize;
                        let weights = if pass.forward { 0.0 } else { of.weights[chunk] };
                        // All gradients of weights are put off, or those that the order says.
                        let later = self.order != Order::DualPipe || matches!(turn, Turn::Split(_));
                        let alone = seconds(pass) + if later { 0.0 } else { weights };
                        let end = if pass.forward && std::mem::take(&mut first[stage][chunk]) {
                            let (end, slowed) = around.first(stage, chunk, (start, alone), record);
                            run.times.slowed[stage] += slowed;
                            run.times.gathering[stage] += end - start - alone - slowed;
                            end
                        } else {
                            start + alone
                        };
                        if later && weights > 0.0 {
                            run.put_off[stage].push_back(weights);
                        }
                        match self.order {
                            Order::By(_) if pass.forward => run.held[stage] += 1,
                            Order::By(_) if weights == 0.0 => run.held[stage] -= 1,
                            _ => {}
                        }
                        run.times.busy[stage] += seconds(pass) + weights;
                        run.done(stage, pass, (start, end), record);
                        run.send(stage, &[pass], end, record);
                    }
                    Turn::Both(forward, backward) => {
                        let input = run.input(stage, forward) + run.input(stage, backward);
                        if input.is_nan() {
                            break;
                        }
                        let start = run.free[stage].max(run.input(stage, forward)).max(run.input(stage, backward));
                        let both = forward.chunk as usize * chunks + backward.chunk as usize;
                        let end = start + of.both[both];
                        run.times.busy[stage] += end - start;
                        run.times.beside[stage][both] += 1;
                        // They run beside each other; drawn one after the other.
                        let other = seconds(backward) + of.weights[backward.chunk as usize];
                        let between = start + (end - start) * seconds(forward) / (seconds(forward) + other).max(1e-12);
                        run.done(stage, forward, (start, between), record);
                        run.done(stage, backward, (between, end), record);
                        run.send(stage, &[forward, backward], end, record);
                    }
                    Turn::Weights => {
                        let (start, oldest) = (run.free[stage], run.put_off[stage].pop_front().unwrap_or(0.0));
                        run.weights(stage, start, oldest, record);
                    }
                }
                next[stage] += 1;
                run.times.ends[stage] = run.free[stage];
            }
        }
        for stage in 0..stages {
            let left: f64 = run.put_off[stage].drain(..).sum();
            run.weights(stage, run.free[stage], left, record);
            run.times.ends[stage] = run.free[stage];
        }
        run.times
    }
}

/// A run of a pipeline.
struct Run<'p> {
    pipeline: &'p Pipeline,
    /// Stages, and chunks of each.
    shape: (usize, usize),
    /// When the input of a pass is there: of forward passes by part of the model and micro-batch, then of backward passes.
    inputs: Vec<Vec<f64>>,
    /// When each stage is free.
    free: Vec<f64>,
    /// Gradients of weights that are still to be computed, by stage.
    put_off: Vec<VecDeque<f64>>,
    /// Passes forward whose gradients of weights are still to be computed, by stage.
    held: Vec<usize>,
    /// Stages that may go on.
    todo: Vec<usize>,
    times: PipelineTimes,
}

impl Run<'_> {
    fn place(&self, part: usize, micro_batch: u32) -> usize {
        part * self.pipeline.micro_batches as usize + micro_batch as usize
    }

    fn part(&self, stage: usize, pass: Pass) -> usize {
        self.pipeline.order.part(stage, pass.chunk as usize, self.shape.0)
    }

    /// Whether the input of a pass comes from another stage.
    fn receives(&self, stage: usize, pass: Pass) -> bool {
        let order = self.pipeline.order;
        let from = order.beside(self.part(stage, pass), !pass.forward, self.shape);
        from.is_some_and(|from| order.owner(from, self.shape.0) != stage)
    }

    /// When the input of a pass is there; NaN where that is not known yet.
    fn input(&self, stage: usize, pass: Pass) -> f64 {
        self.inputs[usize::from(!pass.forward)][self.place(self.part(stage, pass), pass.micro_batch)]
    }

    /// Computes gradients of weights in the time that is idle until some moment.
    fn fill_until(&mut self, stage: usize, until: f64, record: &mut Record<'_>) {
        if self.pipeline.order == Order::DualPipe {
            return;
        }
        let mut idle = (until - self.free[stage]).max(0.0);
        let start = self.free[stage];
        let mut filled = 0.0;
        while let Some(oldest) = self.put_off[stage].front_mut().filter(|_| idle > 0.0) {
            let part = oldest.min(idle);
            *oldest -= part;
            (idle, filled) = (idle - part, filled + part);
            if *oldest <= 0.0 {
                self.put_off[stage].pop_front();
                self.held[stage] -= 1;
            }
        }
        self.weights(stage, start, filled, record);
    }

    /// Computes the oldest gradients of weights before a forward pass, where a stage would else hold more micro-batches than
    /// there are stages: every stage may hold as many as the first does (Qi et al., ZB-H1).
    fn make_room(&mut self, stage: usize, record: &mut Record<'_>) {
        let (stages, chunks) = self.shape;
        while self.held[stage] >= stages * chunks
            && self.pipeline.order != Order::DualPipe
            && let Some(oldest) = self.put_off[stage].pop_front()
        {
            self.held[stage] -= 1;
            self.weights(stage, self.free[stage], oldest, record);
        }
    }

    fn weights(&mut self, stage: usize, start: f64, seconds: f64, record: &mut Record<'_>) {
        if seconds > 0.0 {
            record(Span::new(stage, Doing::Weights, (start, start + seconds)));
            self.free[stage] = start + seconds;
        }
    }

    /// Takes note of a pass.
    fn done(&mut self, stage: usize, pass: Pass, (start, end): (f64, f64), record: &mut Record<'_>) {
        let Pass { forward, chunk, micro_batch } = pass;
        record(Span::new(stage, Doing::Pass { forward, chunk, micro_batch }, (start, end)));
        if !forward {
            self.times.last_begins[stage][chunk as usize] = start;
        }
    }

    /// Hands on what passes that ended together have made.
    fn send(&mut self, stage: usize, passes: &[Pass], end: f64, record: &mut Record<'_>) {
        let (order, message) = (self.pipeline.order, self.pipeline.message);
        self.free[stage] = end;
        let mut sent = false;
        for &pass in passes {
            let (forward, part) = (pass.forward, self.part(stage, pass));
            let Some(to) = order.beside(part, forward, self.shape) else {
                // The last part turns around by itself.
                if forward {
                    let place = self.place(part, pass.micro_batch);
                    self.inputs[1][place] = end;
                }
                continue;
            };
            let owner = order.owner(to, self.shape.0);
            let sends = owner != stage;
            let arrives = end + if sends { message } else { 0.0 };
            let place = self.place(to, pass.micro_batch);
            self.inputs[usize::from(!forward)][place] = arrives;
            if sends {
                record(Span::new(stage, Doing::Message { forward }, (end, arrives)));
                self.todo.push(owner);
                sent = true;
            }
        }
        if sent && self.pipeline.waits {
            self.free[stage] = end + message;
            self.times.sending[stage] += message;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::unseen;
    use super::*;
    use crate::memory::in_flight;
    use crate::parallel::Parallel;

    struct Nothing;
    impl Around for Nothing {
        fn first(&self, _: usize, _: usize, (start, alone): (f64, f64), _: &mut Record<'_>) -> (f64, f64) {
            (start + alone, 0.0)
        }
    }

    fn pipeline(order: Schedule, stages: usize, chunks: usize, micro_batches: u32, weights: f64) -> Pipeline {
        let each = |time: f64| vec![time / chunks as f64; chunks];
        let (forward, backward) = (each(1.0), each(2.0 - weights));
        let times = StageTimes { forward, backward, weights: each(weights), ..StageTimes::default() };
        Pipeline {
            order: Order::By(order),
            micro_batches,
            stages: vec![times; stages],
            message: 0.0,
            joins: 0.0,
            waits: false,
        }
    }

    fn step(order: Schedule, stages: usize, chunks: usize, micro_batches: u32, weights: f64) -> f64 {
        let ran = pipeline(order, stages, chunks, micro_batches, weights).run(&Nothing, &mut unseen);
        ran.ends.into_iter().fold(0.0, f64::max)
    }

    /// Goal: a zero-bubble stage holds as many micro-batches as its memory counts, until their gradients of weights are
    /// made.
    #[test]
    fn stages_hold_what_memory_counts() {
        for micro_batches in [2_u32, 16] {
            let schedule = crate::parallel::Schedule::ZeroBubble;
            let global_batch = u64::from(micro_batches);
            let parallel = Parallel { pipeline: 4, global_batch, schedule, ..Parallel::default() };
            let mut spans = Vec::new();
            pipeline(Schedule::OneForwardOneBackward, 4, 1, micro_batches, 1.0)
                .run(&Nothing, &mut |span| spans.push(span));
            for stage in 0..4 {
                let own = || spans.iter().filter(|span| span.stage == stage);
                let held = |at: f64| -> f64 {
                    let change = |span: &Span| match span.doing {
                        Doing::Pass { forward: true, .. } if span.start <= at => 1.0,
                        Doing::Weights => -(span.end.min(at) - span.start).max(0.0),
                        _ => 0.0,
                    };
                    own().map(change).sum()
                };
                let most = own().map(|span| held(span.start)).fold(0.0, f64::max);
                let counted = in_flight(&parallel, stage as u64, &[1], false);
                assert!((most - counted).abs() < 1e-9, "{stage} of {micro_batches}: {most} for {counted}");
            }
        }
    }

    /// Goal: the published lengths. Source: Narayanan et al., SC 2021, 2.2; Qi et al., "Zero bubble pipeline
    /// parallelism", ICLR 2024, table 2 (ZB-H1: `(p - 1)(F + B - W)`, B the input gradients).
    #[test]
    fn steps_are_as_long_as_published() {
        for (p, m) in [(1, 4), (4, 8), (8, 8), (8, 32)] {
            let (stages, batches) = (p as f64, f64::from(m));
            for order in [Schedule::Gpipe, Schedule::OneForwardOneBackward] {
                assert!((step(order, p, 1, m, 0.0) - (batches + stages - 1.0) * 3.0).abs() < 1e-9, "{order:?} {p} {m}");
            }
            for v in [2, 4] {
                let expected = (batches + (stages - 1.0) / v as f64) * 3.0;
                let got = step(Schedule::Interleaved, p, v, m, 0.0);
                assert!((got - expected).abs() < 1e-9, "{p} {v} {m}: {got} for {expected}");
            }
            let zero_bubble = step(Schedule::OneForwardOneBackward, p, 1, m, 1.0);
            let published = batches * 3.0 + (stages - 1.0);
            assert!((zero_bubble - published).abs() < 1e-9, "{p} {m}: {zero_bubble} for {published}");
        }
    }

    /// Goal: passes beside each other save what they hide in each round of two micro-batches, nothing while the pipeline fills
    /// and empties; before each pair a stage holds what its memory counts.
    #[test]
    fn pairs_save_in_steady_rounds_alone() {
        for (p, v, m) in [(1, 1, 1), (1, 1, 4), (1, 1, 16), (4, 2, 8), (4, 2, 32), (8, 4, 64)] {
            let order = if p == 1 { Schedule::OneForwardOneBackward } else { Schedule::Interleaved };
            let of = |both: f64| {
                let mut pipeline = pipeline(order, p, v, m, 0.0);
                pipeline.order = Order::Pairs(order);
                pipeline.stages.iter_mut().for_each(|stage| stage.both = vec![both / v as f64; v * v]);
                let mut spans = Vec::new();
                let ran = pipeline.run(&Nothing, &mut |span| spans.push(span));
                (ran.ends.iter().copied().fold(0.0, f64::max), ran, spans)
            };
            let (alone, ..) = of(3.0);
            let (end, ran, spans) = of(2.0);
            for stage in 0..p {
                let rounds = (f64::from(m) * v as f64 - (2 * (p - 1 - stage) + (v - 1) * p + 1) as f64).max(0.0);
                let saved = f64::from(m) * 3.0 - ran.busy[stage];
                assert!((saved - rounds / v as f64).abs() < 1e-9, "{p} {v} {m} {stage}: {saved} {rounds}");
                // Before each pair as many passes as without pairs when one forward pass has ended.
                let (mut held, mut most) = (0, 0);
                let mut own: Vec<&Span> = spans.iter().filter(|span| span.stage == stage).collect();
                own.sort_by(|a, b| a.start.total_cmp(&b.start));
                for pass in own {
                    let Doing::Pass { forward, .. } = pass.doing else { continue };
                    most = if forward && most < held { held } else { most };
                    held += if forward { 1 } else { -1 };
                }
                let layout = if p == 1 { "mbs=1".to_owned() } else { format!("pp={p},vpp={v}") };
                let parallel = Parallel { global_batch: m.into(), ..Parallel::parse(&layout).unwrap_or_default() };
                let [plain, paired] =
                    [false, true].map(|paired| in_flight(&parallel, stage as u64, &vec![1; v], paired) * v as f64);
                let one_more = if rounds > 0.0 { 1.0 } else { 0.0 };
                assert!((paired - plain - one_more).abs() < 1e-9, "{p} {v} {m} {stage}: {plain} {paired}");
                assert!(rounds == 0.0 || (f64::from(most) - plain).abs() < 1e-9, "{p} {v} {m} {stage}: {most} {plain}");
            }
            let most = (f64::from(m) - 1.0).max(0.0);
            assert!(end <= alone + 1e-9 && end >= alone - most - 1e-9, "{p} {v} {m}: {end} {alone}");
        }
    }

    /// Goal: DualPipe's published bubble, `(p/2 - 1)(F&B + B - 3 W)` with F&B both passes beside each other (DeepSeek-AI,
    /// "DeepSeek-V3 technical report", 2024, table 2), where both take as long as alone; less time in all where they
    /// hide what the other waits for.
    #[test]
    fn dual_pipe_has_the_published_bubble() {
        let of = |p: usize, m: u32, both: f64| {
            let times = StageTimes {
                forward: vec![1.0; 2],
                backward: vec![1.0; 2],
                weights: vec![1.0; 2],
                both: vec![both; 4],
            };
            let pipeline = Pipeline {
                order: Order::DualPipe,
                micro_batches: m,
                stages: vec![times; p],
                message: 0.0,
                joins: 0.0,
                waits: false,
            };
            let ran = pipeline.run(&Nothing, &mut unseen);
            let end = ran.ends.iter().copied().fold(0.0, f64::max);
            (end, end - ran.busy.iter().copied().fold(0.0, f64::max))
        };
        for (p, m) in [(2, 4), (4, 8), (4, 20), (8, 16), (8, 64), (16, 120)] {
            let (end, bubble) = of(p, m, 3.0);
            let published = |both: f64| (p as f64 / 2.0 - 1.0) * (both + 2.0 - 3.0);
            assert!((bubble - published(3.0)).abs() < 1e-9, "{p} {m}: {bubble}");
            let (shorter, bubble) = of(p, m, 2.5);
            assert!(bubble <= published(2.5) + 1e-9, "{p} {m}: {bubble}");
            // In each of the steady rounds both passes save half of a forward pass.
            assert!(shorter <= end - 0.5 * (f64::from(m) - 1.5 * p as f64), "{p} {m}: {shorter} {end}");
        }
    }

    /// Goal: a message that stages wait for is paid at each pass of the steady part; one that they do not, only while the
    /// pipeline fills and empties.
    #[test]
    fn messages_are_paid_where_stages_wait() {
        let times = StageTimes { forward: vec![1.0], backward: vec![2.0], weights: vec![0.0], both: Vec::new() };
        let of = |(waits, joins): (bool, f64)| {
            let pipeline = Pipeline {
                order: Order::By(Schedule::OneForwardOneBackward),
                micro_batches: 16,
                stages: vec![times.clone(); 4],
                message: 0.1,
                joins,
                waits,
            };
            pipeline.run(&Nothing, &mut unseen).ends.into_iter().fold(0.0, f64::max)
        };
        let free = (16.0 + 3.0) * 3.0;
        let [beside, waited] = [(false, 0.0), (true, 0.0)].map(of);
        // Three messages there and three back at least; in 1F1B a stage then waits for its neighbour in each round.
        assert!(beside >= free + 6.0 * 0.1 - 1e-9 && beside < free + 16.0 * 2.0 * 0.1, "{beside}");
        assert!(waited > beside + 0.1 && waited < free + 19.0 * 4.0 * 0.1, "{waited} {beside}");
        // What comes in parts is put together by the stage that receives it, which does nothing else: each of its passes is
        // longer, on all stages but the one where passes begin.
        let joined = of((true, 0.2));
        assert!(joined > waited + 16.0 * 0.2 && joined < waited + 19.0 * 0.4, "{joined} {waited}");
    }
}
