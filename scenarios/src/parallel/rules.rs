//! What a layout has to divide: the rules of Megatron-LM.
//!
//! Source: Megatron-LM d98e8a64dd, `megatron/training/arguments.py`, `megatron/core/parallel_state.py`,
//! `megatron/core/transformer/transformer_config.py`, `megatron/core/num_microbatches_calculator.py`; DualPipe's
//! `dualpipe/dualpipe.py` for its own.

use super::{MAX_RANKS, Module, Modules, Parallel, Recompute, Schedule, Split};
use crate::transformer::{Attention, Transformer};

/// One rule that a layout breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Keys of which a change can help, as [`Parallel::parse`] names them.
    pub keys: &'static [&'static str],
    /// The rule, with its numbers.
    pub message: String,
}
impl Parallel {
    /// Whether it breaks no rule; `paired` as in [`Parallel::check_paired`].
    pub fn is_allowed(&self, model: &Transformer, paired: bool) -> bool {
        self.violations(model, paired).is_empty()
    }

    pub(super) fn violations(&self, model: &Transformer, paired: bool) -> Vec<Violation> {
        let mut broken = Broken(Vec::new());
        self.sizes(&mut broken);
        if broken.0.is_empty() {
            self.tensor_rules(model, &mut broken);
            self.batch_rules(&mut broken);
            self.pipeline_rules(model, &mut broken);
            self.expert_rules(model, &mut broken);
            self.sharing_rules(model, &mut broken);
            self.recompute_rules(model, &mut broken);
            self.offload_rules(model, &mut broken);
            if paired {
                self.pair_rules(&mut broken);
            }
        }
        broken.0
    }

    fn sizes(&self, broken: &mut Broken) {
        for (keys, size) in [
            (&["tp"], self.tensor),
            (&["pp"], self.pipeline),
            (&["vpp"], self.virtual_stages),
            (&["dp"], self.data),
            (&["cp"], self.context),
            (&["ep"], self.expert),
            (&["etp"], self.expert_tensor),
            (&["mbs"], self.micro_batch),
        ] {
            broken.unless(size > 0, keys, || format!("{} is 0; the least is 1", keys[0]));
        }
        broken.unless(self.global_batch > 0, &["gbs"], || "gbs is 0; the least is 1".to_owned());
        broken.unless(self.sequence != Some(0), &["seq"], || "seq is 0; the least is 1".to_owned());
        let most = self.ranks() <= MAX_RANKS;
        broken.unless(most, &["tp", "pp", "dp", "cp"], || format!("the layout has more than {MAX_RANKS} ranks"));
    }

    fn tensor_rules(&self, model: &Transformer, broken: &mut Broken) {
        let (t, c) = (u64::from(self.tensor), u64::from(self.context));
        let (heads, kv_heads) = (model.attention.heads(), model.attention.kv_heads());
        broken.divides(t, "tp", heads, "attention heads", &["tp"]);
        broken.unless(kv_heads.is_multiple_of(t) || t.is_multiple_of(kv_heads), &["tp"], || {
            format!("tp {t} neither divides the {kv_heads} heads of keys and values nor is a multiple of them")
        });
        broken.divides(t, "tp", model.hidden, "hidden elements", &["tp"]);
        if model.dense_layers() > 0 {
            broken.divides(t, "tp", model.width, "columns of the MLP", &["tp"]);
        }
        // Two chunks a rank, an early one and a late one, so that causal work is even.
        let sequence = self.sequence(model);
        let parts = if c > 1 { c.saturating_mul(2) } else { 1 };
        broken.unless(sequence.is_multiple_of(parts), &["cp"], || {
            format!("2 x cp is {parts}, which does not divide the {sequence} tokens of a sequence")
        });
        if self.sequence_parallel && sequence.is_multiple_of(parts) {
            broken.divides(t, "tp", sequence / c, "tokens of a rank's part of the sequence", &["tp", "cp"]);
        }
    }

    fn batch_rules(&self, broken: &mut Broken) {
        let (b, d, batch) = (u64::from(self.micro_batch), u64::from(self.data), self.global_batch);
        broken.unless(batch.is_multiple_of(b * d), &["mbs", "dp", "gbs"], || {
            format!("mbs x dp is {b} x {d} = {}, which does not divide the global batch of {batch}", b * d)
        });
    }

    fn pipeline_rules(&self, model: &Transformer, broken: &mut Broken) {
        let (p, v, m) = (u64::from(self.pipeline), u64::from(self.virtual_stages), self.micro_batches());
        let layers = model.layers;
        broken
            .unless(v == 1 || p > 1, &["vpp", "pp"], || format!("vpp is {v}, but pp is 1: only a pipeline has chunks"));
        let interleaved = self.schedule == Schedule::Interleaved;
        broken.unless(v == 1 || interleaved, &["vpp"], || format!("vpp is {v}, but the schedule is not interleaved"));
        // In a layout by hand embedding and head may have a chunk to themselves.
        let pieces = if self.split == Split::Spread { layers + 2 } else { layers };
        broken.unless(pieces >= p * v, &["pp", "vpp"], || {
            format!("pp x vpp is {p} x {v} = {}, more than the {layers} layers", p * v)
        });
        match self.split {
            Split::Even => broken.unless(layers.is_multiple_of(p * v) || layers < p * v, &["pp", "vpp"], || {
                format!("pp x vpp is {p} x {v} = {}, which does not divide the {layers} layers", p * v)
            }),
            Split::Ends { first, last } => {
                let given = || [first, last].into_iter().flatten();
                let ends = given().fold(0, u64::saturating_add);
                let (between, others) = (layers.saturating_sub(ends), p.saturating_sub(given().count() as u64));
                let even = match others {
                    0 => ends == layers,
                    _ => ends < layers && between.is_multiple_of(others * v),
                };
                let of_chunks = given().all(|layers| layers > 0 && layers.is_multiple_of(v));
                broken.unless(p > 1, &["pp"], || "first and last are of a pipeline, and pp is 1".to_owned());
                broken.unless(p == 1 || even && of_chunks, &["pp", "vpp"], || {
                    let of = |layers: Option<u64>, stage| layers.map(|layers| format!("{layers} in the {stage} stage"));
                    let told: Vec<String> = of(first, "first").into_iter().chain(of(last, "last")).collect();
                    format!(
                        "with {} of {layers} layers, {between} are left for {others} stages of {v} chunks",
                        told.join(" and ")
                    )
                });
            }
            Split::Filled | Split::Spread => {}
        }
        broken.unless(!interleaved || v == 1 || m.is_multiple_of(p), &["pp", "mbs", "gbs", "dp"], || {
            format!("an interleaved pipeline takes micro-batches in groups of pp {p}; each replica has {m}")
        });
        if self.schedule == Schedule::DualPipe {
            broken
                .unless(p.is_multiple_of(2), &["pp"], || format!("DualPipe needs an even number of stages; pp is {p}"));
            broken.unless(m >= 2 * p && m.is_multiple_of(2), &["pp", "mbs", "gbs", "dp"], || {
                format!(
                    "DualPipe needs an even number of micro-batches, and 2 a stage; each replica has {m} for {p} stages"
                )
            });
        }
    }

    fn expert_rules(&self, model: &Transformer, broken: &mut Broken) {
        let (e, etp, t) = (u64::from(self.expert), u64::from(self.expert_tensor), u64::from(self.tensor));
        let Some(experts) = model.experts else {
            broken.unless(e == 1 && etp == 1, &["ep", "etp"], || {
                format!("ep is {e} and etp {etp}, but the model has no experts")
            });
            return;
        };
        broken.divides(e, "ep", experts.count, "experts", &["ep"]);
        broken.divides(etp, "etp", experts.width, "columns of an expert", &["etp"]);
        let ranks = self.ranks() / u64::from(self.pipeline);
        broken.unless(ranks.is_multiple_of(e.saturating_mul(etp)), &["ep", "etp", "dp", "tp", "cp"], || {
            format!("ep x etp is {e} x {etp}, which does not divide the {ranks} ranks of a stage (tp x cp x dp)")
        });
        broken.unless(t == 1 || self.sequence_parallel, &["tp", "sp"], || {
            "with experts, tensor parallelism needs sequence parallelism (sp=on)".to_owned()
        });
    }

    fn sharing_rules(&self, model: &Transformer, broken: &mut Broken) {
        broken.unless(self.zero <= 3, &["zero"], || format!("zero is {}; the most is 3", self.zero));
        if let Some(shard) = self.shard.map(u64::from) {
            let replicas = u64::from(self.data) * u64::from(self.context);
            broken.unless(shard > 0 && replicas.is_multiple_of(shard.max(1)), &["hsdp", "dp", "cp"], || {
                format!("hsdp is {shard}, which does not divide the {replicas} ranks of dp x cp")
            });
            let (ranks, experts) =
                (u64::from(self.tensor) * shard, u64::from(self.expert) * u64::from(self.expert_tensor));
            broken.unless(
                model.experts.is_none() || ranks.is_multiple_of(experts.max(1)),
                &["hsdp", "ep", "etp"],
                || {
                    format!(
                        "ep x etp is {} x {}, which does not divide the {ranks} ranks that share the model (tp x hsdp)",
                        self.expert, self.expert_tensor
                    )
                },
            );
        }
    }

    fn offload_rules(&self, model: &Transformer, broken: &mut Broken) {
        let offload = self.offload;
        broken.unless(offload < model.layers, &["offload"], || {
            format!("offload is {offload}; the last of the {} layers stays on the GPU", model.layers)
        });
        broken.unless(offload == 0 || self.pipeline == 1, &["offload", "pp"], || {
            format!("offload is {offload}, which needs pp 1; pp is {}", self.pipeline)
        });
        broken.unless(offload == 0 || self.recompute == Recompute::None, &["offload", "recompute"], || {
            format!("offload is {offload}, which goes with recompute=none only")
        });
    }

    /// Exchanges of experts' tokens beside passes of other micro-batches. Source: Megatron-LM, `transformer_config.py`,
    /// `overlap_moe_expert_parallel_comm`.
    fn pair_rules(&self, broken: &mut Broken) {
        let (p, v) = (self.pipeline, self.virtual_stages);
        broken.unless(p == 1 || v > 1, &["vpp", "pp"], || {
            format!("exchanges of experts beside other passes need vpp above 1 where pp is {p}; vpp is {v}")
        });
        broken.unless(self.expert > 1, &["ep"], || {
            "exchanges of experts beside other passes need ep above 1; ep is 1".to_owned()
        });
        let again = match self.recompute {
            Recompute::Full => true,
            Recompute::Modules(modules) => modules.has(Module::Moe),
            Recompute::None | Recompute::Selective => false,
        };
        broken.unless(!again, &["recompute"], || {
            format!("exchanges of experts beside other passes do not go with recompute={}", self.recompute)
        });
    }

    /// A module that no layer has is a mistake: nothing would be computed again.
    fn recompute_rules(&self, model: &Transformer, broken: &mut Broken) {
        let Recompute::Modules(modules) = self.recompute else { return };
        let latent = matches!(model.attention, Attention::Mla { .. });
        let shared = model.experts.is_some_and(|experts| experts.shared > 0);
        for (module, there, what) in [
            (Module::MlaUpProj, latent, "latents of attention (MLA)"),
            (Module::Mlp, model.dense_layers() > 0, "layers without experts"),
            (Module::MoeAct, model.experts.is_some(), "experts"),
            (Module::Moe, model.experts.is_some(), "experts"),
            (Module::SharedExperts, shared, "shared experts"),
        ] {
            broken.unless(there || !modules.has(module), &["recompute"], || {
                let name = Modules::of(&[module]);
                format!("recompute has {name}, but the model has no {what}: leave it out")
            });
        }
    }
}

struct Broken(Vec<Violation>);

impl Broken {
    fn unless(&mut self, holds: bool, keys: &'static [&'static str], message: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Violation { keys, message: message() });
        }
    }

    fn divides(&mut self, size: u64, key: &str, whole: u64, what: &str, keys: &'static [&'static str]) {
        self.unless(whole.is_multiple_of(size), keys, || format!("{key} {size} does not divide the {whole} {what}"));
    }
}
