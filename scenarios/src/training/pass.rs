//! Passes of a layer, an embedding or a head in time: kernels at a clock, exchanges beside them or exposed.

use collcast_sim::compute::{Clock, Compute, Kernel};
use collcast_sim::predict::PredictError;

use super::calls::{Calls, Exchange as Asked, Shape};
use super::error::TrainingError;
use super::kind::Kind;
use super::streams::{self, Item, Links, Ran, What, run};
use crate::parallel::{Axis, Parallel};
use crate::work::{Beside, Call, Exchange, Piece};

/// Seconds by what they went to.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Spent {
    /// From start to end.
    pub(crate) seconds: f64,
    /// Kernels, alone.
    pub(crate) kernels: f64,
    /// What kernels take longer beside calls.
    pub(crate) slowed: f64,
    /// What the GPU waits for the host that issues its kernels.
    pub(crate) issued: f64,
    /// What the host needs to issue its kernels, while earlier ones run or while it is waited for.
    pub(crate) host: f64,
    /// Of `seconds`, passes in which the GPU waits for it.
    pub(crate) paced: f64,
    /// Calls with no kernel beside them, by [`Kind`].
    pub(crate) exposed: [f64; Kind::ALL.len()],
    /// Of these, calls over the network between hosts, whose links those of replicas use too.
    pub(crate) network: f64,
    /// Of `seconds`, what calls may take less and more: a variance each.
    pub(crate) variance: [f64; 2],
}

impl Spent {
    /// The GPU waits for the host that issues its kernels.
    pub(super) fn wait(&mut self, seconds: f64) {
        self.issued += seconds;
        self.seconds += seconds;
        if seconds > 0.0 {
            self.paced = self.seconds;
        }
    }

    /// What the host is behind where it was not ahead before.
    pub(super) fn behind(&self) -> f64 {
        (self.host - self.seconds).max(0.0)
    }

    /// No shorter than a copy beside it, which the next one waits for.
    pub(crate) fn after_copy(mut self, copy: f64) -> Self {
        let waits = (copy - self.seconds).max(0.0);
        self.exposed[Kind::Host as usize] += waits;
        self.seconds += waits;
        self
    }

    pub(crate) fn add(&mut self, other: &Self, times: f64) {
        self.seconds += other.seconds * times;
        self.kernels += other.kernels * times;
        self.slowed += other.slowed * times;
        self.issued += other.issued * times;
        self.host += other.host * times;
        self.paced += other.paced * times;
        self.exposed.iter_mut().zip(other.exposed).for_each(|(sum, one)| *sum += one * times);
        self.network += other.network * times;
        // The same call each time: what it is off by adds up.
        self.variance.iter_mut().zip(other.variance).for_each(|(sum, one)| *sum += one * times * times);
    }
}

/// What pieces of work are timed with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer<'a> {
    pub(crate) gpu: &'a Compute,
    /// How many times as long its kernels take.
    pub(crate) pace: f64,
    pub(crate) clock: Clock,
    pub(crate) calls: &'a Calls<'a>,
    pub(crate) parallel: &'a Parallel,
    /// Whether exchanges of tokens have multiprocessors of their own.
    pub(crate) reserves: bool,
    /// Whether sizes of calls are taken between powers of two.
    pub(crate) rough: bool,
}

impl Timer<'_> {
    /// The time of pieces in order. Those that only `weights` wait for are timed by themselves or left out.
    pub(crate) fn pieces(&self, pieces: &[Piece], weights: Option<bool>) -> Result<Spent, TrainingError> {
        Ok(self.listed(pieces, weights)?.spent())
    }

    /// Pieces in order as items of streams.
    pub(super) fn listed(&self, pieces: &[Piece], weights: Option<bool>) -> Result<Listed, TrainingError> {
        let mut listed = Listed::default();
        let mut order = InOrder::default();
        for piece in pieces {
            self.list(&mut listed, &mut order, piece, weights)?;
        }
        Ok(listed)
    }

    /// The time of two lists of pieces beside each other: whenever one waits for an exchange of experts' tokens, the other has its
    /// kernels run. Other exchanges stop both, which have one stream of kernels.
    pub(crate) fn both(&self, one: &[Piece], other: &[Piece]) -> Result<Spent, TrainingError> {
        let mut listed = Listed::default();
        let mut sides = [(one, InOrder::default()), (other, InOrder::default())];
        let mut turn = 0;
        while sides.iter().any(|(pieces, _)| !pieces.is_empty()) {
            let (pieces, order) = &mut sides[turn % 2];
            while let Some((piece, rest)) = pieces.split_first() {
                *pieces = rest;
                self.list(&mut listed, order, piece, None)?;
                let of_experts = |of: &Exchange| matches!(of.axis, Axis::Expert | Axis::ExpertTensor);
                if order.wait.is_some() && matches!(piece, Piece::Exchange(of) if of_experts(of)) {
                    break;
                }
            }
            turn += 1;
        }
        Ok(listed.spent())
    }

    /// Lists a piece after those before it.
    fn list(
        &self,
        Listed { items }: &mut Listed,
        order: &mut InOrder,
        piece: &Piece,
        weights: Option<bool>,
    ) -> Result<(), TrainingError> {
        match piece {
            Piece::Kernel(of) => {
                if weights.is_some_and(|wanted| wanted != of.weights) {
                    return Ok(());
                }
                let each = self.kernel(&of.kernel)?;
                let after = order.wait.take().into_iter().collect();
                items.push(Item { stream: 0, what: What::Kernels, seconds: each * f64::from(of.count), after });
                order.kernel = Some(items.len() - 1);
            }
            Piece::Exchange(of) if weights != Some(true) => {
                let Some(mut call) = self.exchange(of)? else { return Ok(()) };
                if self.reserves && matches!(of.call, Call::Tokens(_)) {
                    (call.cost.leaves, call.cost.blocks_leave) = (self.calls.leaves_by_power(&call.cost), 1.0);
                }
                items.push(Item::call(1, call, order.kernel.into_iter().collect()));
                order.exchange = Some(items.len() - 1);
                if of.beside == Beside::Before
                    && let Some(first) = order.kernel
                {
                    let rest = items[first].seconds * self.after_first_piece();
                    items[first].seconds -= rest;
                    items.push(Item { stream: 0, what: What::Kernels, seconds: rest, after: Vec::new() });
                    order.kernel = Some(items.len() - 1);
                }
                if of.beside != Beside::Next {
                    order.wait = order.exchange;
                }
            }
            Piece::Exchange(_) => {}
            Piece::Wait => order.wait = order.exchange,
        }
        Ok(())
    }

    /// Of a product that runs in a piece for each tensor rank, the part after the first piece.
    pub(super) fn after_first_piece(&self) -> f64 {
        1.0 - 1.0 / f64::from(self.parallel.tensor)
    }

    /// The kernels of pieces alone.
    pub(crate) fn kernels(&self, pieces: &[Piece], weights: Option<bool>) -> Result<Spent, TrainingError> {
        let mut seconds = 0.0;
        for piece in pieces {
            if let Piece::Kernel(of) = piece
                && weights.is_none_or(|wanted| wanted == of.weights)
            {
                seconds += self.kernel(&of.kernel)? * f64::from(of.count);
            }
        }
        Ok(Spent { seconds, kernels: seconds, ..Spent::default() })
    }

    pub(super) fn kernel(&self, kernel: &Kernel) -> Result<f64, TrainingError> {
        Ok(self.gpu.time(kernel, self.clock)?.as_us() * 1e-6 * self.pace)
    }

    pub(super) fn exchange(&self, of: &Exchange) -> Result<Option<streams::Call>, PredictError> {
        let exchange = match of.call {
            Call::Collective(collective) => Asked::Collective(collective),
            Call::Ring => Asked::Shift,
            Call::Tokens(routing) => Asked::Tokens(routing),
        };
        let call = self.call((of.name, Kind::of(of.axis)), self.shape(of.axis), exchange, of.bytes)?;
        let links = if of.axis == Axis::Tensor { Links::Own } else { Links::Network };
        Ok(call.map(|call| streams::Call { links, ..call }))
    }

    /// A call of a group, if it has one to make.
    pub(super) fn call(
        &self,
        (name, kind): (&'static str, Kind),
        shape: Shape,
        exchange: Asked,
        bytes: u64,
    ) -> Result<Option<streams::Call>, PredictError> {
        let cost =
            if self.rough { self.calls.rough(shape, exchange, bytes) } else { self.calls.cost(shape, exchange, bytes) };
        let links = self.links(shape);
        Ok(cost?.map(|cost| streams::Call { name, kind, shape, exchange, bytes, cost, links }))
    }

    /// Where the members of a kind of groups are.
    pub(crate) fn shape(&self, axis: Axis) -> Shape {
        let (size, stride) = self.parallel.spacing(axis);
        Shape { share: self.calls.share(self.parallel.ranks()), ..Shape::new(size, stride) }
    }

    /// What calls of a group share with those of others.
    pub(crate) fn links(&self, shape: Shape) -> Links {
        if self.calls.together(shape) < shape.size { Links::Network } else { Links::Domain }
    }
}

/// Pieces as items of streams.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) items: Vec<Item>,
}

/// The last kernel and exchange of pieces in order, and the exchange that the next kernel waits for.
#[derive(Default)]
struct InOrder {
    kernel: Option<usize>,
    exchange: Option<usize>,
    wait: Option<usize>,
}

impl Listed {
    /// How they run.
    pub(super) fn ran(&self) -> Ran {
        run(&self.items)
    }

    fn spent(&self) -> Spent {
        let ran = self.ran();
        let mut spent = Spent { seconds: ran.end(), slowed: ran.slowed, ..Spent::default() };
        for (call, exposed) in ran.calls(&self.items) {
            spent.exposed[call.kind as usize] += exposed;
            spent.network += if call.links == Links::Network { exposed } else { 0.0 };
        }
        spent.kernels =
            self.items.iter().filter(|i| matches!(i.what, What::Kernels)).map(|i| i.seconds).sum::<f64>() + 0.0;
        let all: f64 = ran.calls(&self.items).map(|(call, _)| call.cost.seconds).sum();
        let exposed: f64 = spent.exposed.iter().sum();
        // What a call is off by, others of its name and size are.
        let mut alike: Vec<(&streams::Call, f64)> = Vec::new();
        for (call, _) in ran.calls(&self.items) {
            match alike.iter_mut().find(|(known, _)| (known.name, known.bytes) == (call.name, call.bytes)) {
                Some(known) => known.1 += call.cost.seconds,
                None => alike.push((call, call.cost.seconds)),
            }
        }
        for (call, seconds) in alike {
            // Of a call the part that is exposed, as much of each.
            let (part, (low, high)) = (seconds * exposed / all.max(1e-12), call.cost.interval);
            spent.variance[0] += (part * (1.0 - low)).powi(2);
            spent.variance[1] += (part * (high - 1.0)).powi(2);
        }
        spent
    }
}
