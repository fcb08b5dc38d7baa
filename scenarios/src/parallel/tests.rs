//! Goal: layouts are read and refused as Megatron-LM does, and groups are its own.

use std::collections::BTreeSet;

use super::*;
use crate::transformer::Transformer;
use crate::transformer::load;

fn model(name: &str) -> Transformer {
    load(name).unwrap().0
}

#[test]
fn layouts_are_read_in_any_order() {
    let layout = Parallel::parse("dp=2, TP=4,pp=8,vpp=5,cp=1,ep=1,gbs=256,sp=on,zero=1").unwrap();
    assert_eq!((layout.tensor, layout.pipeline, layout.virtual_stages, layout.data), (4, 8, 5, 2));
    assert_eq!((layout.ranks(), layout.micro_batches(), layout.schedule), (64, 128, Schedule::Interleaved));
    assert!(layout.sequence_parallel && layout.zero == 1);
    assert_eq!(layout.to_string(), "tp=4,pp=8,vpp=5,dp=2,mbs=1,gbs=256,sp=on,zero=1");
    for text in [
        "mbs=2,gbs=4,seq=8192,hsdp=2,recompute=full,schedule=gpipe",
        "pp=2,vpp=2,mbs=1,gbs=4,recompute=selective",
        "mbs=1,gbs=1,recompute=mla_up_proj+mlp",
        "mbs=1,gbs=1,offload=40",
    ] {
        assert_eq!(Parallel::parse(text).unwrap().to_string(), text);
    }
    for name in ["zb", "zb-h1", "zbh1"] {
        let read = Parallel::parse(&format!("pp=2,schedule={name}")).map(|layout| layout.to_string());
        assert!(read.is_ok_and(|text| text == "pp=2,mbs=1,gbs=2,schedule=zb"), "{name}");
    }
    for (text, error) in [
        ("tpp=4", "the key `tpp` is not known, did you mean `tp`?"),
        ("tp=4,tp=8", "the key `tp` is there twice"),
        ("tp=0", "tp is `0`; expected a whole number from 1"),
        ("pp=99999999999", "pp is `99999999999`; expected at most 4294967295"),
        ("recompute=mlp+moes", "recompute is `mlp+moes`; expected none, selective, full or modules joined by +"),
        ("zero=4", "zero is `4`; expected 0, 1, 2 or 3"),
        ("tp", "`tp` is no key=value"),
    ] {
        let said = Parallel::parse(text).unwrap_err().to_string();
        assert!(said.starts_with(error), "{said}");
    }
}

/// Goal: passes beside each other have the rules of Megatron-LM's `overlap_moe_expert_parallel_comm`, and what is proposed keeps
/// them.
#[test]
fn pairs_of_passes_have_their_rules() -> Result<(), Box<dyn std::error::Error>> {
    let model = model("deepseek-v3");
    for (layout, message) in [
        ("pp=4,ep=64,dp=64,gbs=2048", "need vpp above 1 where pp is 4"),
        ("pp=4,vpp=4,dp=64,gbs=2048", "need ep above 1"),
        ("pp=4,vpp=4,ep=64,dp=64,gbs=2048,recompute=full", "recompute=full"),
        ("pp=4,vpp=4,ep=64,dp=64,gbs=2048,recompute=layernorm+moe", "recompute=layernorm+moe"),
    ] {
        let mut layout = Parallel::parse(layout)?;
        layout.split = Split::of(&model, &layout);
        layout.check(&model)?;
        let refused = layout.check_paired(&model, true).err().ok_or_else(|| format!("{layout} is not refused"))?;
        assert!(refused.to_string().contains(message), "{refused}");
        assert!(!refused.nearest.is_empty(), "nothing is proposed: {refused}");
        assert!(refused.nearest.iter().all(|near| near.check_paired(&model, true).is_ok()), "{refused}");
    }
    // Nearest layouts are interleaved where they have chunks, and only there.
    let uneven = Parallel::parse("pp=16,vpp=3,dp=2,gbs=32")?.check(&self::model("llama3-8b"));
    let uneven = uneven.err().ok_or("32 layers are not 48 chunks")?;
    let alike = |near: &Parallel| (near.virtual_stages > 1) == (near.schedule == Schedule::Interleaved);
    assert!(uneven.nearest.iter().all(alike), "{uneven}");
    assert!(uneven.nearest.iter().any(|near| near.virtual_stages == 1), "{uneven}");
    Ok(())
}

/// Goal: each rule is named with its numbers, and what is proposed works.
/// Goal: replicas of an expert are those of the ranks that share the model, as Megatron-LM and torchtitan have them.
#[test]
fn experts_are_shared_within_a_replica() {
    for (layout, dense, experts) in [
        ("dp=512,ep=8", 512, 64),
        ("dp=512,ep=8,hsdp=64", 64, 8),
        ("tp=8,dp=64,ep=8,hsdp=16", 16, 16),
        ("tp=4,cp=2,dp=64,ep=8,etp=4,hsdp=8", 8, 1),
    ] {
        let layout = Parallel::parse(layout).unwrap();
        assert_eq!((layout.dense_shards(), layout.expert_shards()), (dense, experts), "{layout}");
    }
}

#[test]
fn broken_rules_are_named_with_a_way_out() {
    for (name, layout, message) in [
        ("llama3-8b", "tp=3", "tp 3 does not divide the 32 attention heads"),
        ("llama3-8b", "pp=5", "pp x vpp is 5 x 1 = 5, which does not divide the 32 layers"),
        ("llama3-70b", "tp=4,pp=8,vpp=4,dp=2", "pp x vpp is 8 x 4 = 32, which does not divide the 80 layers"),
        ("llama3-8b", "vpp=2", "vpp is 2, but pp is 1"),
        ("llama3-8b", "dp=3,gbs=128", "mbs x dp is 1 x 3 = 3, which does not divide the global batch of 128"),
        ("llama3-8b", "pp=4,vpp=2,gbs=6", "in groups of pp 4; each replica has 6"),
        ("llama3-8b", "cp=3", "2 x cp is 6, which does not divide the 8192 tokens"),
        ("llama3-8b", "ep=2,dp=2", "ep is 2 and etp 1, but the model has no experts"),
        ("mixtral-8x7b", "ep=16,dp=16", "ep 16 does not divide the 8 experts"),
        ("mixtral-8x7b", "ep=8,dp=4", "ep x etp is 8 x 1, which does not divide the 4 ranks of a stage"),
        ("mixtral-8x7b", "tp=2,dp=2", "tensor parallelism needs sequence parallelism"),
        ("llama3-8b", "pp=3,dp=2,schedule=dualpipe,gbs=12", "DualPipe needs an even number of stages"),
        ("llama3-8b", "dp=8,hsdp=3", "hsdp is 3, which does not divide the 8 ranks"),
        ("llama3-70b", "tp=8,pp=8,hsdp=2", "hsdp is 2, which does not divide the 1 ranks"),
        ("mixtral-8x7b", "dp=48,ep=8,hsdp=4", "does not divide the 4 ranks that share the model (tp x hsdp)"),
        ("llama3-8b", "recompute=mla_up_proj", "recompute has mla_up_proj, but the model has no latents"),
        ("mixtral-8x7b", "recompute=core_attn+mlp", "recompute has mlp, but the model has no layers without experts"),
        ("llama3-8b", "offload=32", "offload is 32; the last of the 32 layers stays on the GPU"),
        ("llama3-8b", "offload=4,pp=2", "offload is 4, which needs pp 1; pp is 2"),
        ("llama3-8b", "offload=4,recompute=full", "offload is 4, which goes with recompute=none only"),
        ("llama3-8b", "tp=4294967295,pp=4294967295,dp=4294967295", "more than 16777216 ranks"),
    ] {
        let layout = Parallel::parse(layout).unwrap();
        let model = model(name);
        let refused = layout.check(&model).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains(message), "{said}");
        assert!(refused.nearest.iter().all(|near| near.check(&model).is_ok()), "{said}");
        assert!(refused.nearest.iter().all(|near| near.ranks() == layout.ranks()), "{said}");
        assert!(model.experts.is_some() || !said.contains("ep x etp"), "{said}");
        // No number mends this.
        assert!(message.contains("more than") || !refused.nearest.is_empty(), "nothing is proposed: {said}");
    }
    let refused = Parallel::parse("tp=4,pp=8,vpp=4,dp=2").unwrap().check(&model("llama3-70b")).unwrap_err();
    assert_eq!(refused.nearest[0].to_string(), "tp=4,pp=8,vpp=5,dp=2,mbs=1,gbs=16", "one change, as many GPUs");
    // Embedding, head and the module for a further token count as layers where that makes 61 of them even.
    let layout = Parallel::parse("pp=8,vpp=3,dp=64,ep=32,gbs=1024").ok();
    let near = layout.and_then(|layout| layout.check(&model("deepseek-v3")).err()).map(|refused| refused.nearest);
    let split = |near: Parallel| (near.virtual_stages, near.split);
    let near: Vec<(u32, Split)> = near.into_iter().flatten().map(split).take(2).collect();
    assert_eq!(near, [(4, Split::Spread), (2, Split::Filled)]);
}

#[test]
fn stages_share_all_layers() {
    let spread = |pipeline, name: &str| {
        Parallel { pipeline, split: Split::Spread, ..Parallel::default() }.stage_layers(&model(name))
    };
    // The paper of Llama 3, 3.3.2: one layer less in the first and in the last stage.
    assert_eq!(spread(8, "llama3-405b"), [15, 16, 16, 16, 16, 16, 16, 15]);
    assert_eq!(spread(16, "llama3-405b").iter().sum::<u64>(), 126);
    assert_eq!(spread(4, "deepseek-v3"), [15, 16, 16, 14]);
    let ends = Parallel { pipeline: 4, split: Split::Ends { first: Some(7), last: Some(5) }, ..Parallel::default() };
    assert_eq!(ends.stage_layers(&model("llama3-8b")), [7, 10, 10, 5]);
    assert!(ends.check(&model("llama3-8b")).is_ok());
}

/// Goal: layers of the first and the last stage may be given; those that do not go with the others are refused.
#[test]
fn ends_may_be_given() -> Result<(), super::ParallelError> {
    let text = "pp=4,vpp=2,dp=2,first=8,mbs=1,gbs=8";
    let given = Parallel::parse("gbs=8,first=8,pp=4,vpp=2,dp=2")?;
    assert_eq!((given.to_string().as_str(), given.stage_layers(&model("llama3-8b"))), (text, vec![8; 4]));
    assert!(given.check(&model("llama3-8b")).is_ok());
    for (text, why) in [
        ("pp=4,first=7", "with 7 in the first stage of 32 layers, 25 are left for 3 stages of 1 chunks"),
        ("pp=2,first=9,last=9", "with 9 in the first stage and 9 in the last stage of 32 layers, 14 are left"),
        ("first=9", "first and last are of a pipeline, and pp is 1"),
    ] {
        let said = Parallel::parse(text)?.check(&model("llama3-8b")).err().map(|refused| refused.to_string());
        assert!(said.as_ref().is_some_and(|said| said.contains(why)), "{text}: {said:?}");
    }
    Ok(())
}

/// Goal: stages of DeepSeek-V3 and Kimi K2 are those of Megatron-Bridge.
/// Source: `set_deepseek_v3_pipeline_model_parallel_layout` of its `recipes/deepseek/deepseek_v3.py`: embedding and four
/// layers, 14 times four, and one layer with the head for 16 chunks; eight, six times eight, and five for 8.
#[test]
fn stages_of_deepseek_are_filled() {
    // Kimi K2 has as many layers, and no module that predicts a further token.
    for predictions in [1, 0] {
        let model = Transformer { predictions, ..model("deepseek-v3") };
        let chunks = |pipeline, virtual_stages| {
            let layout = Parallel { pipeline, virtual_stages, ..Parallel::default() };
            Parallel { split: Split::of(&model, &layout), ..layout }.chunk_layers(&model)
        };
        let last = |chunks: Vec<Vec<u64>>| chunks.last().cloned();
        assert_eq!(chunks(16, 1).concat(), [vec![4; 15], vec![1]].concat());
        assert_eq!(chunks(8, 1).concat(), [vec![8; 7], vec![5]].concat());
        assert_eq!((chunks(8, 2)[0].clone(), last(chunks(8, 2))), (vec![4, 4], Some(vec![4, 1])));
        assert_eq!(last(chunks(4, 4)), Some(vec![4, 4, 4, 1]));
    }
}

/// Goal: the groups that Megatron-LM's documentation of `initialize_model_parallel` lists for 16 GPUs with tp 2 and pp 4.
#[test]
fn groups_are_those_of_megatron() {
    let layout = Parallel { tensor: 2, pipeline: 4, data: 2, ..Parallel::default() };
    let groups = |axis| layout.groups(axis).collect::<Vec<_>>();
    assert_eq!(groups(Axis::Data)[..4], [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(groups(Axis::Tensor)[..2], [[0, 1], [2, 3]]);
    assert_eq!(groups(Axis::Pipeline), [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]);
    assert_eq!((layout.stage(9), layout.neighbours(9)), (2, (Some(5), Some(13))));
    assert_eq!(layout.neighbours(1), (None, Some(5)));
}

proptest::proptest! {
    /// Goal: groups of every kind partition the ranks, and a rank's group is the one that it is in.
    #[test]
    fn groups_partition_the_ranks(t in 0_u32..4, c in 0_u32..3, d in 1_u32..6, p in 1_u32..5, e in 0_u32..4, etp in 0_u32..2) {
        let [tensor, context, expert, expert_tensor] = [t, c, e, etp].map(|power| 1 << power);
        let layout =
            Parallel { tensor, context, data: d, pipeline: p, expert, expert_tensor, ..Parallel::default() };
        proptest::prop_assume!((tensor * context * d).is_multiple_of(expert * expert_tensor));
        for axis in Axis::ALL {
            let mut seen = BTreeSet::new();
            for group in layout.groups(axis) {
                proptest::prop_assert_eq!(group.len() as u64, layout.group_size(axis));
                for &rank in &group {
                    proptest::prop_assert_eq!(&layout.group(axis, rank), &group);
                    proptest::prop_assert!(seen.insert(rank), "{:?}: {} is in two groups", axis, rank);
                }
            }
            proptest::prop_assert_eq!(seen.len() as u64, layout.ranks(), "{:?}", axis);
            proptest::prop_assert_eq!(seen.last().copied(), Some(layout.ranks() - 1));
        }
    }

    /// Goal: no numbers stop the check.
    #[test]
    fn no_layout_breaks_the_check(sizes in proptest::collection::vec(proptest::num::u32::ANY, 9), shift in 0_u32..32, batch: u64) {
        let size = |place: usize| sizes[place] >> shift;
        let layout = Parallel {
            tensor: size(0),
            pipeline: size(1),
            virtual_stages: size(2),
            data: size(3),
            context: size(4),
            expert: size(5),
            expert_tensor: size(6),
            micro_batch: size(7),
            shard: Some(size(8)),
            global_batch: batch >> shift,
            zero: if batch % 2 == 0 { 7 } else { 3 },
            split: Split::Ends { first: Some(batch), last: Some(u64::MAX) },
            ..Parallel::default()
        };
        let refused = layout.check(&model("mixtral-8x7b")).unwrap_err();
        proptest::prop_assert!(!refused.violations.is_empty());
    }
}
