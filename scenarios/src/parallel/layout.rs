//! A layout: sizes of the groups, and what follows from them.

use serde::Serialize;

use super::Recompute;
use crate::transformer::{Attention, Transformer};

/// Most ranks of a layout.
pub const MAX_RANKS: u64 = 1 << 24;

/// How ranks share the work of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Parallel {
    /// Ranks that split each product (TP).
    pub tensor: u32,
    /// Stages of the pipeline (PP).
    pub pipeline: u32,
    /// Chunks of layers a stage (VPP).
    pub virtual_stages: u32,
    /// Replicas (DP).
    pub data: u32,
    /// Ranks that split a sequence (CP).
    pub context: u32,
    /// Ranks that split the experts (EP); they come from those of data, context and tensor.
    pub expert: u32,
    /// Ranks that split the products of an expert (ETP).
    pub expert_tensor: u32,
    /// Sequences of a micro-batch.
    pub micro_batch: u32,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Tokens of a sequence; that of the model's training where none is given.
    pub sequence: Option<u64>,
    /// Whether norms and residuals are split over the tensor ranks too (SP).
    pub sequence_parallel: bool,
    /// What replicas share: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too (ZeRO, FSDP).
    pub zero: u8,
    /// Ranks that share where replicas of the shares are kept (HSDP); all replicas where none is given.
    pub shard: Option<u32>,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// First layers that keep their tensors in host memory (`--cpu-offloading-num-layers`).
    pub offload: u64,
    /// Order of micro-batches in the pipeline.
    pub schedule: Schedule,
    /// How layers are dealt to stages.
    pub split: Split,
}

/// Order of micro-batches in the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    Gpipe,
    /// One forward, one backward pass.
    OneForwardOneBackward,
    /// The same, with several chunks of layers a stage.
    Interleaved,
    /// Weight gradients fill the bubble; each stage holds as much as the first of one forward, one backward (ZB-H1).
    ZeroBubble,
    /// Both directions at once, with two copies of the parameters.
    DualPipe,
}

/// How layers are dealt to stages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// As many to each.
    Even,
    /// These many to the first or the last one, as many to each of the others (Megatron-LM's
    /// `--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers`).
    Ends {
        /// Of the first stage.
        first: Option<u64>,
        /// Of the last stage.
        last: Option<u64>,
    },
    /// As many to each chunk, rounded up, and what is left to the last one, which has the head and modules that predict further
    /// tokens: a layout by hand.
    Filled,
    /// As even as whole layers allow, where embedding, head and each module that predicts a further token count as a layer: a
    /// layout by hand.
    Spread,
}

impl Default for Parallel {
    /// One rank, one sequence, nothing shared.
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
            virtual_stages: 1,
            data: 1,
            context: 1,
            expert: 1,
            expert_tensor: 1,
            micro_batch: 1,
            global_batch: 1,
            sequence: None,
            sequence_parallel: false,
            zero: 0,
            shard: None,
            recompute: Recompute::None,
            offload: 0,
            schedule: Schedule::OneForwardOneBackward,
            split: Split::Even,
        }
    }
}

impl Split {
    /// How the layers of a layout are dealt where nobody says so: evenly, or by Megatron-LM's layouts by hand. Models of
    /// DeepSeek-V3's make fill all chunks but the last one (Megatron-Bridge,
    /// `set_deepseek_v3_pipeline_model_parallel_layout`), but in DualPipe, which it has not. Else embedding, head and modules
    /// that predict further tokens count as a layer each, where that makes it even (`Et|(tt|)*30mL` there for 32 chunks).
    pub fn of(model: &Transformer, parallel: &Parallel) -> Self {
        let whole = u64::from(parallel.pipeline).saturating_mul(parallel.virtual_stages.into()).max(1);
        let by_hand = model.layers + 2 + model.predictions;
        let of_deepseek = model.experts.is_some() && matches!(model.attention, Attention::Mla { .. });
        let fills = (whole - 1).saturating_mul(model.layers.div_ceil(whole)) < model.layers;
        if model.layers.is_multiple_of(whole) {
            Self::Even
        } else if of_deepseek && fills && parallel.schedule != Schedule::DualPipe {
            Self::Filled
        } else if by_hand.is_multiple_of(whole) {
            Self::Spread
        } else {
            Self::Even
        }
    }
}

impl Parallel {
    /// Ranks of the job. At most [`MAX_RANKS`] where the layout is [checked](Parallel::check).
    pub fn ranks(&self) -> u64 {
        [self.tensor, self.pipeline, self.data, self.context]
            .into_iter()
            .fold(1, |ranks: u64, size| ranks.saturating_mul(u64::from(size)))
    }

    /// Micro-batches of a step that each replica runs; 0 where the batch has not enough.
    pub fn micro_batches(&self) -> u64 {
        self.global_batch / (u64::from(self.micro_batch) * u64::from(self.data)).max(1)
    }

    /// Ranks of a pipeline that have the same stage: two where micro-batches come from both ends.
    pub fn copies(&self) -> u64 {
        if self.schedule == Schedule::DualPipe { 2 } else { 1 }
    }

    /// Tokens of a sequence.
    pub fn sequence(&self, model: &Transformer) -> u64 {
        self.sequence.unwrap_or(model.sequence)
    }

    /// Tokens of a micro-batch on one rank, before tensor parallelism.
    pub fn tokens(&self, model: &Transformer) -> f64 {
        f64::from(self.micro_batch) * self.sequence(model) as f64 / f64::from(self.context)
    }

    /// Replicas of a dense parameter's shard: ranks over which ZeRO shares it.
    pub fn dense_shards(&self) -> u64 {
        self.shard.map_or(u64::from(self.data) * u64::from(self.context), u64::from)
    }

    /// The same of a routed expert's parameter: those of the `tp x` [`Parallel::dense_shards`] ranks that share the model which
    /// have the same expert.
    ///
    /// Source: Megatron-LM, `core/parallel_state.py`, `intra_partial_expert_data_parallel_size`; torchtitan, `parallel_dims.py`,
    /// `dp_shard_in_ep`.
    pub fn expert_shards(&self) -> u64 {
        let ranks = u64::from(self.tensor) * self.dense_shards();
        (ranks / (u64::from(self.expert) * u64::from(self.expert_tensor)).max(1)).max(1)
    }

    /// Layers of each stage, from the first.
    pub fn stage_layers(&self, model: &Transformer) -> Vec<u64> {
        let (stages, layers) = (u64::from(self.pipeline), model.layers);
        (0..stages).map(|stage| self.layers_of(stage, stages, layers, model.predictions)).collect()
    }

    /// Layers of each chunk of each stage: by stage, then in the order of its chunks. Stages take turns: the first chunks of all
    /// of them come before the second ones.
    pub fn chunk_layers(&self, model: &Transformer) -> Vec<Vec<u64>> {
        let chunks = u64::from(self.virtual_stages).max(1);
        let stages = self.stage_layers(model);
        let last = stages.len() - 1;
        let each = self.filled(model.layers);
        let dealt = |(stage, layers): (usize, u64)| -> Vec<u64> {
            if self.split == Split::Filled {
                return (0..chunks).map(|chunk| layers.saturating_sub(chunk * each).min(each)).collect();
            }
            // In a layout by hand embedding and head take the place of layers, at both ends of the model.
            let spread = self.split == Split::Spread && last > 0;
            let before = u64::from(spread && stage == 0);
            let after = if spread && stage == last { 1 + model.predictions } else { 0 };
            let pieces = layers + before + after;
            let mut counts: Vec<u64> =
                (0..chunks).map(|chunk| pieces / chunks + u64::from(chunk < pieces % chunks)).collect();
            // What takes the place of more layers than a chunk has takes those of its neighbours.
            take(before, counts.iter_mut());
            take(after, counts.iter_mut().rev());
            counts
        };
        stages.into_iter().enumerate().map(dealt).collect()
    }

    /// Layers of a chunk where all but the last one have as many.
    fn filled(&self, layers: u64) -> u64 {
        layers.div_ceil(u64::from(self.pipeline).saturating_mul(self.virtual_stages.into()).max(1))
    }

    fn layers_of(&self, stage: u64, stages: u64, layers: u64, predictions: u64) -> u64 {
        if stages == 1 {
            return layers;
        }
        match self.split {
            Split::Even => layers / stages + u64::from(stage < layers % stages),
            Split::Ends { first: Some(first), .. } if stage == 0 => first,
            Split::Ends { last: Some(last), .. } if stage + 1 == stages => last,
            Split::Ends { first, last } => {
                let given = first.unwrap_or(0).saturating_add(last.unwrap_or(0));
                let others = stages - u64::from(first.is_some()) - u64::from(last.is_some());
                let (left, place) = (layers.saturating_sub(given), stage - u64::from(first.is_some()));
                left / others + u64::from(place < left % others)
            }
            Split::Filled => {
                let whole = self.filled(layers).saturating_mul(self.virtual_stages.into());
                whole.min(layers.saturating_sub(stage.saturating_mul(whole)))
            }
            Split::Spread => {
                let all = layers + 2 + predictions;
                let whole = all / stages;
                // What is left over goes to the stages after the first, which have neither embedding nor head.
                let extra = u64::from((1..=all % stages).contains(&stage));
                let ends = u64::from(stage == 0) + if stage + 1 == stages { 1 + predictions } else { 0 };
                (whole + extra).saturating_sub(ends)
            }
        }
    }
}

/// Takes so many from counts, the first ones first.
fn take<'a>(mut many: u64, counts: impl Iterator<Item = &'a mut u64>) {
    for count in counts {
        let taken = many.min(*count);
        *count -= taken;
        many -= taken;
    }
}
