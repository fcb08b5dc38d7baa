//! What a rank does: kernels and exchanges, in order.

use collcast_sim::collective::Collective;
use collcast_sim::compute::{Kernel, Pass};
use serde::{Deserialize, Serialize};

use crate::parallel::Axis;

/// One thing that a rank does, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Kernels of one shape.
    Kernel(Repeated),
    /// A call to other ranks.
    Exchange(Exchange),
    /// The kernels that follow wait for all exchanges before.
    Wait,
}

/// Which kernels an exchange runs beside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// None: those that follow wait for it.
    Nothing,
    /// Those that follow, up to a [`Piece::Wait`].
    Next,
    /// Those of the product before it, which runs in as many pieces as there are tensor ranks: all but the first piece. What
    /// follows waits.
    Before,
}

/// Kernels of one shape, one after another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repeated {
    /// What they do.
    pub name: &'static str,
    /// Their shape.
    pub kernel: Kernel,
    /// How many.
    pub count: u32,
    /// Of the kernels of each, those that an operator launches beside its first, so that the host has little to do for them.
    pub inner: u32,
    /// Whether only this rank's own step needs the result: gradients of weights, which zero-bubble schedules put off.
    pub weights: bool,
}

impl Repeated {
    /// Floating-point operations as models are counted ([`crate::transformer::Transformer::flops`]): of causal attention the scores of earlier
    /// tokens only, of its backward pass twice the forward pass, whatever the kernel does.
    pub fn model_flops(&self) -> f64 {
        let once = match &self.kernel {
            Kernel::Attention(a) => {
                let (queries, keys) = (a.queries as f64, a.keys as f64);
                // The last query sees all keys, each one before it one less.
                let seen = if a.causal { queries * (keys - queries / 2.0) } else { queries * keys };
                let passes = if a.pass == Pass::Forward { 2.0 } else { 4.0 };
                passes * (a.batch * a.heads) as f64 * (a.head_dim + a.value_dim) as f64 * seen
            }
            kernel => kernel.flops(),
        };
        once * f64::from(self.count)
    }
}

/// A call to the ranks of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// What they carry.
    pub name: &'static str,
    /// Which ranks.
    pub axis: Axis,
    /// What they do.
    pub call: Call,
    /// Its bytes as nccl-tests counts them: the whole tensor of a collective, what one rank sends of a ring.
    pub bytes: u64,
    /// Which kernels the framework runs it beside.
    pub beside: Beside,
}

/// What an exchange does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// A collective.
    Collective(Collective),
    /// Each rank sends to the next one of its group, which is a ring.
    Ring,
    /// Each rank sends its tokens to the ranks of their experts, once to every host, where they go on (DeepEP).
    Tokens(Routing),
}

/// Which experts a token goes to, as far as it matters where they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Routing {
    /// Experts of a token.
    pub experts: u32,
    /// Even groups of all experts.
    pub groups: u32,
    /// Groups that have all experts of one token.
    pub chosen: u32,
}

impl Routing {
    /// The part of tokens of which one of so many even parts of all experts has some. Any groups are as likely as others, and
    /// so are experts within the chosen ones.
    pub fn reaches(&self, parts: f64) -> f64 {
        let [k, groups, chosen] = [self.experts, self.groups.max(1), self.chosen.max(1)].map(f64::from);
        let some = |share: f64| 1.0 - (1.0 - share).max(0.0).powf(k);
        let parts = parts.max(1.0);
        if parts >= groups {
            // A part of one group.
            return chosen / groups * some(groups / parts / chosen);
        }
        // So many whole groups, of which each is chosen or not.
        let whole = |held: u32| -> f64 {
            // How likely it is that so many of the groups seen so far are chosen.
            let mut likely = vec![1.0];
            for seen in 0..held {
                let mut next = vec![0.0; likely.len() + 1];
                for (had, likely) in likely.iter().enumerate() {
                    let one_more = (chosen - had as f64).max(0.0) / (groups - f64::from(seen));
                    next[had] += likely * (1.0 - one_more);
                    next[had + 1] += likely * one_more;
                }
                likely = next;
            }
            likely.iter().enumerate().map(|(had, likely)| likely * some(had as f64 / chosen)).sum()
        };
        let held = groups / parts;
        let (fewer, along) = (held.floor() as u32, held.fract());
        let more = if along > 0.0 { whole(fewer + 1) } else { 0.0 };
        (1.0 - along) * whole(fewer) + along * more
    }
}

/// The passes of one micro-batch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Passes {
    /// From inputs to outputs.
    pub forward: Vec<Piece>,
    /// Gradients.
    pub backward: Vec<Piece>,
    /// What runs again before the backward pass; empty without recomputation.
    pub recompute: Vec<Piece>,
}
