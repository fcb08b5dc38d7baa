//! What one rank runs for a layer, an embedding, a head or a step of the optimizer: kernels and exchanges, in order.
//!
//! [`layer`] and its neighbours list [`Piece`]s of one micro-batch on one rank, by the shape of a model, a layout and a
//! framework. [`single`] gives them a time on one GPU, with the host that issues them; a simulation of several ranks gives
//! [`Exchange`]s theirs.

mod attention;
mod cached;
mod elements;
mod ends;
mod execution;
mod experts;
mod pieces;
mod rank;
pub mod single;
mod update;

pub use cached::cached;
pub use execution::{ContextKind, Dispatch, Elements, Execution, ExpertKernels, Scaling, TOKEN_BLOCKS, Units};
pub use pieces::{Beside, Call, Exchange, Passes, Piece, Repeated, Routing};
pub use update::{accumulate, norms, optimizer, unit};

use collcast_sim::compute::Kernel;

use crate::memory::{Selective, Software};
use crate::parallel::{Module, Parallel, Recompute};
use crate::transformer::{Attention, LayerKind, Transformer};

use rank::{Operation, Rank, Role};

/// What one rank runs for one micro-batch in one layer. For layouts that are [checked](Parallel::check).
///
/// Ranks of a layout run the same, but for experts, whose tokens [`Execution::imbalance`] says.
pub fn layer(model: &Transformer, kind: LayerKind, parallel: &Parallel, software: &Software) -> Passes {
    let rank = Rank::new(model, parallel, software);
    let norm = |name, after_sum, readers, several| {
        let norm = rank.norm(name, after_sum, readers);
        if software.norm_apart(several) { norm.of(Module::Layernorm) } else { norm }
    };
    let latent = matches!(model.attention, Attention::Mla { .. });
    let mut row = vec![norm("norm before attention", false, if software.fused_qkv { 1 } else { 3 }, latent)];
    row.extend(rank.attention());
    row.push(rank.sum("residual after attention", false));
    match (kind, &model.experts) {
        (LayerKind::Experts, Some(experts)) => {
            let readers = 2 + u64::from(experts.shared > 0 && rank.gate_apart());
            row.push(norm("norm before the MLP", true, readers, true));
            row.extend(rank.experts(experts).into_iter().map(|operation| operation.of(Module::Moe)));
        }
        _ => {
            row.push(norm("norm before the MLP", true, if rank.gate_apart() { 2 } else { 1 }, false));
            row.extend(rank.mlp(model.width, true).into_iter().map(|operation| operation.of(Module::Mlp)));
        }
    }
    row.push(rank.sum("residual after the MLP", true));
    let recompute = recomputed(&row, parallel.recompute, software);
    Passes { recompute, ..passes(row) }
}

/// What one rank of the first stage runs for the embedding of one micro-batch.
pub fn embedding(model: &Transformer, parallel: &Parallel, software: &Software) -> Passes {
    passes(Rank::new(model, parallel, software).embedding())
}

/// What one rank of the last stage runs for the last norm, the logits and the loss of one micro-batch.
pub fn head(model: &Transformer, parallel: &Parallel, software: &Software) -> Passes {
    passes(Rank::new(model, parallel, software).head())
}

/// What one rank of the last stage runs for one module that predicts a further token (MTP): the embedding, the product that
/// joins it with what came before, a layer like the model's last, and the head.
pub fn prediction(model: &Transformer, parallel: &Parallel, software: &Software) -> Passes {
    let rank = Rank::new(model, parallel, software);
    let before = passes(rank.embedding().into_iter().chain(rank.joined_inputs()).collect());
    let layer = layer(model, model.kind(model.layers.saturating_sub(1)), parallel, software);
    let head = head(model, parallel, software);
    Passes {
        forward: [before.forward, layer.forward, head.forward].concat(),
        backward: [head.backward, layer.backward, before.backward].concat(),
        recompute: layer.recompute,
    }
}

/// Floating-point operations of products and attention that a step of all ranks runs again in its backward passes, as models are
/// counted ([`Repeated::model_flops`]).
pub fn flops_again(model: &Transformer, parallel: &Parallel, software: &Software) -> f64 {
    let again = |kind, count: u64| {
        let of = |piece: &Piece| match piece {
            Piece::Kernel(run) if matches!(run.kernel, Kernel::Product(_) | Kernel::Attention(_)) => run.model_flops(),
            _ => 0.0,
        };
        // A model need not have layers of a kind.
        let pieces = if count > 0 { layer(model, kind, parallel, software).recompute } else { Vec::new() };
        count as f64 * pieces.iter().map(of).sum::<f64>()
    };
    let dense = model.dense_layers();
    let layers = again(LayerKind::Dense, dense) + again(LayerKind::Experts, model.layers - dense);
    let further = again(model.kind(model.layers.saturating_sub(1)), model.predictions);
    // Ranks that share a micro-batch, and micro-batches of all replicas.
    let ranks = f64::from(parallel.tensor) * f64::from(parallel.context);
    let micro_batches = parallel.micro_batches() as f64 * f64::from(parallel.data);
    (layers + further) * ranks * micro_batches
}

fn passes(row: Vec<Operation>) -> Passes {
    let (forward, mut backward): (Vec<_>, Vec<_>) =
        row.into_iter().map(|operation| (operation.forward, operation.backward)).unzip();
    backward.reverse();
    Passes { forward: forward.concat(), backward: backward.concat(), recompute: Vec::new() }
}

/// What the backward pass runs again first.
fn recomputed(row: &[Operation], recompute: Recompute, software: &Software) -> Vec<Piece> {
    let mut products = 0;
    let again = |operation: &&Operation| {
        let product = operation.role == Role::Product;
        products += usize::from(product);
        match (recompute, software.selective) {
            (Recompute::None, _) => false,
            (Recompute::Full, _) => operation.role != Role::Output || !software.execution.stops_early,
            (Recompute::Selective, Selective::Modules(modules)) | (Recompute::Modules(modules), _) => {
                operation.modules.meets(modules) || (operation.role == Role::Core && modules.has(Module::CoreAttn))
            }
            // The first, third and further ones are kept.
            (Recompute::Selective, Selective::EverySecondProduct { .. }) => match operation.role {
                Role::Element => true,
                Role::Product => products % 2 == 0,
                Role::Core | Role::Reduced | Role::Output => false,
            },
        }
    };
    row.iter().filter(again).flat_map(|operation| operation.forward.iter().cloned()).collect()
}

#[cfg(test)]
mod tests;
