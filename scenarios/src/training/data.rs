//! What replicas exchange: gradients, and parameters that they share.

use collcast_sim::collective::Collective;

use super::bubble::Around;
use super::calls::{Cost, Exchange, Shape};
use super::error::TrainingError;
use super::kind::Kind;
use super::pass::{Spent, Timer};
use super::streams::{Call, Item, What, run};
use super::timeline::{self, ALL_REDUCES, Doing, Record};
use super::units::{Layers, Part, Stage, Step, Training, Unit};
use crate::parallel::Axis;
use crate::work;

/// Calls of a bucket, one after another.
type Chain = Vec<Call>;

/// A call of a group, if it has one to make.
fn collective(
    timer: &Timer<'_>,
    name: &'static str,
    (shape, collective): (Shape, Collective),
    bytes: f64,
) -> Result<Option<Call>, TrainingError> {
    Ok(timer.call((name, Kind::Data), shape, Exchange::Collective(collective), bytes as u64)?)
}

/// A part of a chunk whose gradients are reduced together.
pub(super) struct Bucket {
    /// Its units in a row.
    pub(super) units: Vec<(Part, u64)>,
    forward: Pass,
    backward: Pass,
    /// Gradients of weights that are put off.
    weights: f64,
    /// Parameters that ranks gather before the forward pass.
    pub(super) gather: Chain,
    /// Gradients after the backward pass.
    pub(super) reduce: Chain,
}

/// A pass on the stream of kernels, in seconds.
#[derive(Clone, Copy, Default)]
struct Pass {
    /// Kernels, and what they wait for that no call of replicas meets.
    kernels: f64,
    /// Calls over the network that they wait for.
    network: f64,
}

impl Pass {
    fn of<'s>(parts: impl IntoIterator<Item = &'s Spent>) -> Self {
        parts.into_iter().fold(Self::default(), |sum, part| Self {
            kernels: sum.kernels + part.seconds - part.network,
            network: sum.network + part.network,
        })
    }

    fn seconds(&self) -> f64 {
        self.kernels + self.network
    }

    /// Adds it to the stream of kernels.
    fn list(&self, items: &mut Vec<Item>, after: Vec<usize>) {
        items.push(Item { stream: 0, what: What::Kernels, seconds: self.kernels, after });
        if self.network > 0.0 {
            items.push(Item { stream: 0, what: What::Network, seconds: self.network, after: Vec::new() });
        }
    }
}

/// What replicas exchange in a step, by stage and chunk.
pub(super) struct Replicas {
    stages: Vec<Vec<Vec<Bucket>>>,
}

/// How the parameters of a group of units are shared: which ranks, and of how many replicas each share is.
fn groups(training: &Training<'_>, timer: &Timer<'_>, experts: bool) -> (Shape, Shape) {
    let axis = if experts { Axis::ExpertData } else { Axis::DataContext };
    let one = timer.shape(axis);
    // Who has the same stage in the other half of a pipeline has the same parameters.
    let whole = Shape { size: one.size * training.parallel.copies(), ..one };
    let shards = if experts { training.parallel.expert_shards() } else { training.parallel.dense_shards() };
    let shards = shards * training.parallel.copies();
    let shards = if training.parallel.zero == 0 { whole.size } else { shards.clamp(1, whole.size.max(1)) };
    (Shape { size: shards, ..whole }, Shape { size: whole.size / shards, stride: whole.stride * shards, ..whole })
}

/// Parameters that replicas exchange together, and their bytes where they are gathered; those of routed experts apart.
#[derive(Clone, Copy, Default)]
struct Shared {
    parameters: [f64; 2],
    bytes: [f64; 2],
}

impl Shared {
    fn of<'u>(training: &Training<'_>, units: impl IntoIterator<Item = &'u Unit>) -> Self {
        units.into_iter().fold(Self::default(), |mut sum, unit| {
            for (place, parameters) in unit.parameters.into_iter().enumerate() {
                sum.parameters[place] += parameters;
                sum.bytes[place] += parameters * unit.part.gathered(&training.software.states);
            }
            sum
        })
    }

    /// How many there are, and bytes of each where they are gathered.
    fn each(&self) -> (u64, f64) {
        let [parameters, bytes] = [self.parameters, self.bytes].map(|of| of.iter().sum::<f64>());
        (parameters as u64, bytes / parameters.max(1.0))
    }
}

/// Calls that bring parameters to all ranks.
fn gather(training: &Training<'_>, timer: &Timer<'_>, of: Shared) -> Result<Chain, TrainingError> {
    let mut chain = Chain::new();
    for (experts, bytes) in [(false, of.bytes[0]), (true, of.bytes[1])] {
        let (shard, _) = groups(training, timer, experts);
        let name = if experts { "parameters of experts" } else { "parameters" };
        chain.extend(collective(timer, name, (shard, Collective::AllGather), bytes)?);
    }
    Ok(chain)
}

/// Calls that sum gradients: among ranks that share parameters, then the shares over their replicas (HSDP).
struct Sum {
    shares: Option<Call>,
    replicas: Option<Call>,
}

/// Calls that sum the gradients of parameters.
fn reduce(training: &Training<'_>, timer: &Timer<'_>, of: Shared) -> Result<Vec<Sum>, TrainingError> {
    let mut sums = Vec::new();
    for (experts, count) in [(false, of.parameters[0]), (true, of.parameters[1])] {
        let (shard, replicas) = groups(training, timer, experts);
        let bytes = count * training.software.states.reduced;
        let [name, over] = match experts {
            false => ["gradients", "gradients of shares over replicas"],
            true => ["gradients of experts", "gradients of experts' shares over replicas"],
        };
        sums.push(match training.parallel.zero {
            0 => Sum { shares: collective(timer, name, (shard, Collective::AllReduce), bytes)?, replicas: None },
            _ => Sum {
                shares: collective(timer, name, (shard, Collective::ReduceScatter), bytes)?,
                replicas: collective(timer, over, (replicas, Collective::AllReduce), bytes / shard.size as f64)?,
            },
        });
    }
    Ok(sums)
}

impl Replicas {
    pub(super) fn new(training: &Training<'_>, timer: &Timer<'_>, stages: &[Stage]) -> Result<Self, TrainingError> {
        let bucket = |units: &[&Unit]| -> Result<Bucket, TrainingError> {
            let of = Shared::of(training, units.iter().copied());
            let shares = training.parallel.zero > 0;
            let rows = units.chunk_by(|one, other| one.part == other.part);
            Ok(Bucket {
                units: rows.map(|row| (row[0].part, row.len() as u64)).collect(),
                forward: Pass::of(units.iter().map(|unit| &unit.forward)),
                backward: Pass::of(units.iter().flat_map(|unit| [&unit.recompute, &unit.backward])),
                weights: units.iter().map(|unit| unit.weights.seconds).sum(),
                gather: if shares { gather(training, timer, of)? } else { Chain::new() },
                // Megatron-LM runs both on one stream (`start_grad_sync`).
                reduce: reduce(training, timer, of)?
                    .into_iter()
                    .flat_map(|s| [s.shares, s.replicas])
                    .flatten()
                    .collect(),
            })
        };
        let chunk = |place: (usize, usize), units: &Vec<Unit>| -> Result<Vec<Bucket>, TrainingError> {
            let least = training.software.execution.bucket(training.parallel, place);
            let mut buckets = Vec::new();
            let mut open: Vec<&Unit> = Vec::new();
            for unit in units.iter().flat_map(|unit| std::iter::repeat_n(unit, unit.count as usize)) {
                open.push(unit);
                if open.iter().map(|u| u.parameters[0] + u.parameters[1]).sum::<f64>() >= least {
                    buckets.push(bucket(&open)?);
                    open.clear();
                }
            }
            if !open.is_empty() {
                buckets.push(bucket(&open)?);
            }
            Ok(buckets)
        };
        let stages = stages.iter().enumerate().map(|(stage, of)| {
            let chunks = of.chunks.iter().enumerate();
            chunks.map(|(at, units)| chunk((stage, at), units)).collect::<Result<_, _>>()
        });
        Ok(Self { stages: stages.collect::<Result<_, TrainingError>>()? })
    }

    /// The buckets of a stage, by chunk.
    pub(super) fn chunks(&self, stage: usize) -> &[Vec<Bucket>] {
        &self.stages[stage]
    }

    /// The interval of a stage's calls, as parts of what they take together: what one of them is off by, all alike are.
    pub(super) fn interval(&self, stage: usize) -> (f64, f64) {
        let buckets = self.stages[stage].iter().flatten();
        let calls =
            || buckets.clone().flat_map(|bucket| bucket.gather.iter().chain(&bucket.reduce)).map(|call| &call.cost);
        let all: f64 = calls().map(|cost| cost.seconds).sum();
        let part = |of: fn(&Cost) -> f64| calls().map(|cost| cost.seconds * of(cost)).sum::<f64>() / all;
        if all > 0.0 { (part(|cost| cost.interval.0), part(|cost| cost.interval.1)) } else { (1.0, 1.0) }
    }

    /// When the gradients of a stage are summed, if its last backward passes through its chunks begin at `begins`, its passes
    /// end at `end` and those of all stages at `drained`; and how much longer its kernels take beside the sums. Gradients that
    /// are put off are there last.
    pub(super) fn tail(
        &self,
        stage: usize,
        (begins, end, drained): (&[f64], f64, f64),
        record: &mut Record<'_>,
    ) -> (f64, f64) {
        let chunks = &self.stages[stage];
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by(|&a, &b| begins[a].total_cmp(&begins[b]));
        let put_off: f64 = chunks.iter().flatten().map(|bucket| bucket.weights).sum();
        let start = if put_off > 0.0 { end - put_off } else { begins.iter().copied().fold(end, f64::min) };
        let (mut items, mut now) = (Vec::new(), start);
        let mut before: Option<usize> = None;
        for chunk in order {
            if put_off <= 0.0 && begins[chunk] > now {
                let (seconds, after) = (begins[chunk] - now, before.into_iter().collect());
                items.push(Item { stream: 0, what: What::Idle, seconds, after });
                before = Some(items.len() - 1);
                now = begins[chunk];
            }
            for bucket in chunks[chunk].iter().rev() {
                let weights = Pass { kernels: bucket.weights, network: 0.0 };
                let pass = if put_off > 0.0 { weights } else { bucket.backward };
                pass.list(&mut items, before.into_iter().collect());
                before = Some(items.len() - 1);
                now += pass.seconds();
                calls(&mut items, &bucket.reduce, before.as_slice());
            }
        }
        let mut ran = run(&items);
        // While other stages have passes left, this one would wait without its sums too.
        for (exposed, end) in ran.exposed.iter_mut().zip(&ran.ends) {
            *exposed = exposed.min((start + end - drained).max(0.0));
        }
        timeline::ran(&items, &ran, (stage, Doing::Gradients, start), record);
        (end.max(start + ran.end()), ran.slowed)
    }
}

impl Around for Replicas {
    fn first(&self, stage: usize, chunk: usize, (start, alone): (f64, f64), record: &mut Record<'_>) -> (f64, f64) {
        let chunks = &self.stages[stage];
        if chunks[chunk].iter().all(|bucket| bucket.gather.is_empty()) {
            return (start + alone, 0.0);
        }
        let seconds = |chain: &Chain| chain.iter().map(|call| call.cost.seconds).sum::<f64>();
        let earlier: f64 = chunks[..chunk].iter().flatten().map(|bucket| seconds(&bucket.gather)).sum();
        let idle = |stream: usize, seconds: f64| Item { stream, what: What::Idle, seconds, after: Vec::new() };
        let mut items = vec![idle(0, start), idle(1, earlier)];
        for bucket in &chunks[chunk] {
            calls(&mut items, &bucket.gather, &[]);
            let after = if bucket.gather.is_empty() { Vec::new() } else { vec![items.len() - 1] };
            bucket.forward.list(&mut items, after);
        }
        let last = items.len() - 1;
        let ran = run(&items);
        timeline::ran(&items, &ran, (stage, Doing::Parameters { chunk: chunk as u32 }, 0.0), record);
        (ran.ends[last], ran.slowed)
    }
}

/// Adds calls to the stream for replicas; the first waits for items.
fn calls(items: &mut Vec<Item>, chain: &Chain, after: &[usize]) {
    items.extend(chain.iter().map(|&call| Item::call(1, call, after.to_vec())));
}

/// A step whose replicas share parameters unit by unit ([`work::Execution::by_units`]), without a pipeline. A unit is gathered
/// once the unit before the last one is there, used, and freed; its gradients are summed. Both are calls of one communicator,
/// in the order of their launch. Sums over replicas of the shares run beside them, on a stream that nothing waits for before
/// the end. Where the framework keeps its root, embedding and head are one unit: it is
/// gathered before anything runs, stays, and is summed after everything has run.
///
/// Source: PyTorch 2.11, `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` (`all_reduce_stream`), and FSDP1's
/// `_runtime_utils.py` (`_all_reduce_stream`); [`crate::fsdp`] runs the same as a graph of operations.
pub(super) fn sharded(
    training: &Training<'_>,
    layers: &Layers,
    timer: &Timer<'_>,
    record: &mut Record<'_>,
) -> Result<Step, TrainingError> {
    // Else the host may be ahead of all that the GPU runs, copies too, which whoever sums the step up sees.
    let stages = if training.host_waits() { training.stages_with_host(layers) } else { training.stages(layers) };
    let Sharded { items, framework, .. } = by_units(training, &stages[0], timer)?;
    let ran = run(&items);
    for micro_batch in 0..training.parallel.micro_batches() {
        timeline::ran(&items, &ran, (0, Doing::Shared, micro_batch as f64 * ran.end()), record);
    }
    let mut one = stages[0].spent();
    // What is inside a unit is exposed there, what is between units here.
    let between: f64 = ran.exposed.iter().sum();
    one.seconds = ran.end();
    one.kernels += framework;
    one.slowed += ran.slowed;
    one.exposed[Kind::Data as usize] += between;
    let (low, high) = interval(training, timer, stages[0].units().next())?;
    one.variance[0] += (between * (1.0 - low)).powi(2);
    one.variance[1] += (between * (high - 1.0)).powi(2);
    let mut spent = Spent::default();
    spent.add(&one, training.parallel.micro_batches() as f64);
    training.whole(&stages, (0, spent), timer)
}

/// An item that is a pass through a unit: its place, the unit, and whether forward.
pub(super) type PassAt = (usize, Part, bool);

/// What a micro-batch of such a step runs, and which of it are passes through units, forward or backward.
pub(super) fn items(
    training: &Training<'_>,
    stage: &Stage,
    timer: &Timer<'_>,
) -> Result<(Vec<Item>, Vec<PassAt>), TrainingError> {
    let Sharded { items, passes, .. } = by_units(training, stage, timer)?;
    Ok((items, passes))
}

fn by_units<'s>(training: &'s Training<'s>, stage: &Stage, timer: &'s Timer<'s>) -> Result<Sharded<'s>, TrainingError> {
    let units: Vec<&Unit> =
        stage.chunks[0].iter().flat_map(|unit| std::iter::repeat_n(unit, unit.count as usize)).collect();
    let is_root = |index: usize| training.software.keeps_root && (index == 0 || index + 1 == units.len());
    let shared: Vec<Shared> = units.iter().map(|&unit| Shared::of(training, [unit])).collect();
    let root = Shared::of(training, units.iter().enumerate().filter(|one| is_root(one.0)).map(|one| *one.1));
    let mut step = Sharded {
        training,
        timer,
        items: Vec::new(),
        passes: Vec::new(),
        framework: 0.0,
        copies: Vec::new(),
        scattered: None,
    };
    let gathered = step.gather(root, None)?;
    step.copy_out(root, gathered)?;
    for (index, unit) in units.iter().enumerate() {
        if !is_root(index) {
            let before = step.copies.len().checked_sub(2).map(|index| step.copies[index]);
            let gathered = step.gather(shared[index], before)?;
            step.copy_out(shared[index], gathered)?;
        }
        step.passes.push((step.items.len(), unit.part, true));
        Pass::of([&unit.forward]).list(&mut step.items, Vec::new());
    }
    step.copies.clear();
    let freed = training.parallel.zero == 3;
    let mut gathered: Option<usize> = None;
    for (index, unit) in units.iter().enumerate().rev() {
        step.copy_out(shared[index], gathered.take())?;
        // The next unit's parameters come while this one is used, or once it is summed, if any were freed.
        let next = index.checked_sub(1).filter(|&next| freed && !is_root(next));
        let late = training.software.execution.gathers_after_sum;
        if let Some(next) = next.filter(|_| !late) {
            let before = step.copies.last().copied();
            gathered = step.gather(shared[next], before)?;
        }
        step.passes.push((step.items.len(), unit.part, false));
        Pass::of([&unit.recompute, &unit.backward]).list(&mut step.items, Vec::new());
        if !is_root(index) {
            step.reduce(shared[index])?;
        }
        if let Some(next) = next.filter(|_| late) {
            gathered = step.gather(shared[next], step.scattered)?;
        }
    }
    step.reduce(root)?;
    Ok(step)
}

/// What such a step has run so far.
struct Sharded<'s> {
    training: &'s Training<'s>,
    timer: &'s Timer<'s>,
    items: Vec<Item>,
    /// Which of them are passes through units, forward or backward.
    passes: Vec<PassAt>,
    /// Seconds of kernels around the calls.
    framework: f64,
    /// Those that copied units out of gathered buffers.
    copies: Vec<usize>,
    /// The last sum among ranks that share parameters, which the next copies of gradients wait for.
    scattered: Option<usize>,
}

impl Sharded<'_> {
    fn kernels(&mut self, seconds: f64, after: Option<usize>) {
        self.items.push(Item { stream: 0, what: What::Kernels, seconds, after: after.into_iter().collect() });
    }

    /// Kernels before or after a call about parameters.
    fn copies(&mut self, of: Shared, reduced: bool, after: Option<usize>) -> Result<(), TrainingError> {
        let pieces = &work::unit(of.each(), self.training.parallel, self.training.software)[usize::from(reduced)];
        let seconds = self.timer.pieces(pieces, None)?.seconds;
        self.framework += seconds;
        self.kernels(seconds, after);
        Ok(())
    }

    /// The call that gathers parameters, if any.
    fn gather(&mut self, of: Shared, after: Option<usize>) -> Result<Option<usize>, TrainingError> {
        let chain = gather(self.training, self.timer, of)?;
        calls(&mut self.items, &chain, after.as_slice());
        Ok((!chain.is_empty()).then(|| self.items.len() - 1))
    }

    /// Their way out of the buffer.
    fn copy_out(&mut self, of: Shared, gathered: Option<usize>) -> Result<(), TrainingError> {
        if gathered.is_some() {
            self.copies(of, false, gathered)?;
            self.copies.push(self.items.len() - 1);
        }
        Ok(())
    }

    /// The sum of their gradients.
    fn reduce(&mut self, of: Shared) -> Result<(), TrainingError> {
        let sums = reduce(self.training, self.timer, of)?;
        if sums.iter().all(|sum| sum.shares.is_none() && sum.replicas.is_none()) {
            return Ok(());
        }
        self.copies(of, true, self.scattered)?;
        let copied = self.items.len() - 1;
        self.scattered = Some(copied);
        for sum in sums {
            let mut summed = copied;
            if let Some(call) = sum.shares {
                self.items.push(Item::call(1, call, vec![copied]));
                summed = self.items.len() - 1;
                self.scattered = Some(summed);
            }
            if let Some(call) = sum.replicas {
                self.items.push(Item::call(ALL_REDUCES, call, vec![summed]));
            }
        }
        Ok(())
    }
}

/// That of the calls between units, as the first of them has it.
fn interval(training: &Training<'_>, timer: &Timer<'_>, unit: Option<&Unit>) -> Result<(f64, f64), TrainingError> {
    let Some(unit) = unit else { return Ok((1.0, 1.0)) };
    Ok(gather(training, timer, Shared::of(training, [unit]))?.first().map_or((1.0, 1.0), |call| call.cost.interval))
}
