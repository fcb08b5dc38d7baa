//! Inputs whose exact result is known, and what every element of the output must be.
//!
//! Every input element is a small whole number drawn by its rank and place, so that a chunk in
//! the wrong place, counted twice or left out shows; the numbers are small enough that every
//! combination of them is exact in the element type.

use collcast_sim::collective::{Collective, DataType, ReduceOp};
use collcast_sim::ids::Rank;
use collcast_sim::schedule::Call;

use crate::exec::ExecError;

/// What a byte of an output holds before a run: as a float not a number, as an integer below 0.
pub const POISON: u8 = 0xff;

/// `count` elements of an output from `at` hold the combination of the inputs of `ranks` ranks
/// from `first`, each from its element `from`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// First element in the output.
    pub at: u64,
    /// Elements.
    pub count: u64,
    /// First element in the inputs.
    pub from: u64,
    /// First rank.
    pub first: u32,
    /// Number of ranks.
    pub ranks: u32,
}

/// The output of a rank by the definition of the collective. What it leaves undefined (the
/// output of `reduce` elsewhere than at the root) is in no part.
pub fn parts(call: &Call, rank: Rank) -> Vec<Part> {
    let (n, count, r) = (call.ranks, call.count, u64::from(rank.0));
    let whole = |first, ranks, from, at| Part { at, count, from, first, ranks };
    let parts = match call.collective {
        Collective::AllReduce => vec![whole(0, n, 0, 0)],
        Collective::Reduce if rank == call.root => vec![whole(0, n, 0, 0)],
        Collective::ReduceScatter => vec![whole(0, n, r * count, 0)],
        Collective::AllGather => (0..n).map(|peer| whole(peer, 1, 0, u64::from(peer) * count)).collect(),
        Collective::Gather if rank == call.root => {
            (0..n).map(|peer| whole(peer, 1, 0, u64::from(peer) * count)).collect()
        }
        Collective::Broadcast => vec![whole(call.root.0, 1, 0, 0)],
        Collective::Scatter => vec![whole(call.root.0, 1, r * count, 0)],
        Collective::SendRecv => vec![whole((rank.0 + n - 1) % n, 1, 0, 0)],
        Collective::AllToAll => (0..n)
            .map(|peer| Part {
                at: call.recv_offset(Rank(peer), rank),
                count: call.pair_count(Rank(peer), rank),
                from: call.send_offset(Rank(peer), rank),
                first: peer,
                ranks: 1,
            })
            .collect(),
        Collective::Reduce | Collective::Gather => vec![],
    };
    parts.into_iter().filter(|p| p.count > 0).collect()
}

/// Values are drawn from `0..range`.
///
/// # Errors
/// A type, reduction or number of ranks whose results would not be exact.
pub fn range(call: &Call) -> Result<u32, ExecError> {
    let refuse = |what: String| ExecError::Refused {
        what,
        hint: "bench checks float32, float16, bfloat16, int32 and types of 8 bits with sum, min and max",
    };
    // Whole numbers up to here are exact: 24, 11, 8, 4 and 3 bits of significand, and no sign.
    let exact: u32 = match call.dtype {
        DataType::Float32 => 1 << 24,
        DataType::Int32 => 1 << 30,
        DataType::Float16 => 1 << 11,
        DataType::Bfloat16 => 1 << 8,
        DataType::Int8 | DataType::Uint8 => 1 << 7,
        DataType::Float8E4m3 => 1 << 4,
        DataType::Float8E5m2 => 1 << 3,
        other => return Err(refuse(format!("the result of {other} is not checked"))),
    };
    if !matches!(call.op, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max) {
        return Err(refuse(format!("the result of {} is not checked", call.op)));
    }
    let added = if call.collective.reduces() && call.op == ReduceOp::Sum { call.ranks.max(1) } else { 1 };
    let range = (exact / added).min(1 << 16);
    if range < 2 {
        return Err(refuse(format!("a sum over {} ranks is not exact in {}", call.ranks, call.dtype)));
    }
    Ok(range)
}

/// The value of one input element; `value` of `cuda/check.cu`. A mixer of 64 bits (Steele, Lea,
/// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: SplitMix64).
pub fn value(rank: u32, element: u64, range: u32) -> u32 {
    let mut x = element.wrapping_add(u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x >> 33) % u64::from(range)) as u32
}

/// What the element `index` of a part must be.
pub fn expected(part: &Part, index: u64, op: ReduceOp, range: u32) -> u32 {
    let values = (part.first..part.first + part.ranks).map(|rank| value(rank, part.from + index, range));
    match op {
        ReduceOp::Max => values.max().unwrap_or(0),
        ReduceOp::Min => values.min().unwrap_or(0),
        _ => values.sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::units::Bytes;

    /// Goal: the parts of every output tile it, so that no element goes unchecked.
    #[test]
    fn parts_tile_the_output() {
        for &collective in Collective::ALL {
            let mut call = Call::of_size(collective, 5, Bytes(0), DataType::Float32);
            call.count = 7;
            call.root = Rank(3);
            for rank in 0..5 {
                let parts = parts(&call, Rank(rank));
                let mut at = 0;
                for part in &parts {
                    assert_eq!(part.at, at, "{collective}");
                    at += part.count;
                }
                let rooted = matches!(collective, Collective::Reduce | Collective::Gather) && rank != 3;
                assert_eq!(at, if rooted { 0 } else { call.output_len(Rank(rank)) }, "{collective}");
            }
        }
    }

    /// Goal: sums of all ranks stay exact in every type, by the bits of its significand.
    #[test]
    fn sums_are_exact() {
        for (dtype, exact) in [(DataType::Float32, 1_u64 << 24), (DataType::Float16, 2048), (DataType::Bfloat16, 256)] {
            for ranks in [1, 2, 16, 100] {
                let call = Call::of_size(Collective::AllReduce, ranks, Bytes(64), dtype);
                let range = u64::from(range(&call).unwrap());
                assert!(range >= 2 && (range - 1) * u64::from(ranks) <= exact, "{dtype} {ranks}");
            }
        }
        let call = Call::of_size(Collective::AllReduce, 200, Bytes(64), DataType::Bfloat16);
        assert!(range(&call).is_err());
    }

    /// Goal: types of 8 bits are checked as far as their sums are exact, and what is only moved or compared at any size.
    #[test]
    fn eight_bits_hold_the_sums_of_few_ranks() {
        for (dtype, most) in
            [(DataType::Int8, 64), (DataType::Uint8, 64), (DataType::Float8E4m3, 8), (DataType::Float8E5m2, 4)]
        {
            let of = |collective, ranks| range(&Call::of_size(collective, ranks, Bytes(1024), dtype)).ok();
            assert_eq!(of(Collective::AllReduce, most), Some(2), "{dtype}");
            assert_eq!(of(Collective::AllReduce, 2 * most), None, "{dtype}");
            assert_eq!(of(Collective::AllGather, 2 * most), Some(2 * most), "{dtype}");
            let max = Call { op: ReduceOp::Max, ..Call::of_size(Collective::AllReduce, 128, Bytes(1024), dtype) };
            assert_eq!(range(&max).ok(), Some(2 * most), "{dtype}");
        }
    }

    /// Goal: ranks and places are told apart: no two of the first thousand inputs are alike.
    #[test]
    fn values_depend_on_rank_and_place() {
        let column = |rank: u32, from: u64| (0..32).map(|e| value(rank, from + e, 64)).collect::<Vec<_>>();
        let mut seen = std::collections::BTreeSet::new();
        for rank in 0..16 {
            for chunk in 0..64 {
                assert!(seen.insert(column(rank, chunk * 32)));
            }
        }
    }
}
