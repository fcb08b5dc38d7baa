//! Operations over elements, as a framework fuses them: norms, residuals, rotations, activations, dropout.
//!
//! Bytes are those of 16-bit elements. Eager PyTorch runs a kernel for each operator, as its profiler lists them; compiled
//! layers join an operation with its neighbours; Transformer Engine, Apex and Megatron-LM have written the usual joins.

use collcast_sim::compute::{Kernel, Memory, MemoryKind};

use super::rank::{Operation, Rank, Role, elements, kernel, times};
use super::{Elements, Piece};
use crate::transformer::{Activation, Norm};

/// Kernels of a rotation in eager PyTorch: to 32 bits, each half times cosine and sine, a sum and a difference, both halves
/// joined, to 16 bits; the gradient adds one sum more. Source: profile of such a layer, PyTorch 2.11, H100, 2026-11.
const ROTATION: [u32; 2] = [9, 10];
/// Bytes that they move of each element: 6, 4 times 4, 2 times 6, 8, 6; and 6 more.
const ROTATION_BYTES: [f64; 2] = [48.0, 54.0];
/// How much longer than their bytes those of them take that go over halves of heads and so compute an address an element:
/// 30 of the 48 B, at 1.7 times (a cast), 1.4 (products) and 1.6 (a join) the time of a copy. The same profile: 327 us for
/// 16.8 M elements, of which 27 us start kernels.
const ROTATION_STRIDED: f64 = 1.15;

impl Rank<'_> {
    fn norm_kind(&self) -> MemoryKind {
        match self.model.norm {
            Norm::Rms => MemoryKind::Norm,
            Norm::Layer => MemoryKind::LayerNorm,
        }
    }

    /// A norm of the residual; `joined`: the sum before it is its own in compiled layers; `parts`: how many products that
    /// read it give it a gradient each.
    pub(super) fn norm(&self, name: &'static str, joined: bool, parts: u64) -> Operation {
        let (kind, rows, width) = (self.norm_kind(), self.local, self.hidden);
        let of = |kind, reads, writes| elements(name, kind, rows, width, reads, writes);
        let sum = |reads| elements("sum of gradients", MemoryKind::Copy, rows, width, reads, 2);
        let [forward, backward] = match self.execution().elements {
            Elements::Eager => {
                let mut backward: Vec<Piece> = (1..parts).map(|_| sum(4)).collect();
                backward.extend([of(kind, 4, 2), of(MemoryKind::Copy, 4, 0), sum(4)]);
                [vec![of(kind, 2, 2)], backward]
            }
            // Sums of gradients are read by the kernel that makes the next one.
            Elements::Compiled => {
                let forward = if joined { of(kind, 4, 4) } else { of(kind, 2, 2) };
                [vec![forward], vec![of(kind, 4 + 2 * parts, 2), of(MemoryKind::Copy, 4, 0)]]
            }
            Elements::Written => [vec![of(kind, 2, 2)], vec![of(kind, 4, 2), sum(4)]],
        };
        Operation { forward, backward, ..Operation::default() }
    }

    /// A norm of part of a layer: heads or latents.
    pub(super) fn inner_norm(&self, name: &'static str, rows: u64, width: u64) -> Operation {
        let kind = self.norm_kind();
        let mut backward = vec![elements(name, kind, rows, width, 4, 2)];
        if self.execution().elements != Elements::Written {
            backward.push(elements(name, MemoryKind::Copy, rows, width, 4, 0));
        }
        Operation { forward: vec![elements(name, kind, rows, width, 2, 2)], backward, ..Operation::default() }
    }

    /// Dropout of a sublayer's output and its sum with the residual; `last` of the layer: a compiler leaves the other sum to
    /// the norm after it.
    pub(super) fn sum(&self, name: &'static str, last: bool) -> Operation {
        let of = |name, reads, writes| elements(name, MemoryKind::Copy, self.local, self.hidden, reads, writes);
        let role = if last { Role::Output } else { Role::Element };
        let mut made = Operation { role, ..Operation::default() };
        if self.model.dropout {
            // Masks of a byte.
            if self.execution().elements == Elements::Eager {
                made.forward.push(of("dropout", 2, 3));
            }
            made.backward.push(of("dropout", 3, 2));
        }
        let mask = u64::from(self.model.dropout && self.execution().elements != Elements::Eager);
        if last || self.execution().elements != Elements::Compiled {
            made.forward.push(of(name, 4, 2 + mask));
        }
        made
    }

    /// Rotation of queries and keys, in place or not.
    pub(super) fn rotation(&self, rows: u64, width: u64) -> Operation {
        let name = "rotation";
        if self.execution().elements != Elements::Eager {
            let one = vec![elements(name, MemoryKind::Copy, rows, width, 2, 2)];
            return Operation { forward: one.clone(), backward: one, ..Operation::default() };
        }
        let [forward, backward] = [0, 1].map(|pass| {
            let bytes = (times(&[rows, width]) as f64 * ROTATION_BYTES[pass] * ROTATION_STRIDED / 2.0) as u64;
            // Queries and keys each.
            let kernels = 2 * ROTATION[pass];
            let all = Memory { kind: MemoryKind::Copy, reads: bytes, writes: bytes, rows, width, kernels };
            vec![kernel(name, Kernel::Memory(all))]
        });
        Operation { forward, backward, ..Operation::default() }
    }

    /// Gradients of parts joined to that of one product's output, where that is a kernel of its own.
    pub(super) fn join(&self, rows: u64, width: u64) -> Operation {
        let one = elements("join of gradients", MemoryKind::Copy, rows, width, 2, 2);
        let execution = self.execution();
        let separate = execution.elements != Elements::Compiled && !execution.joins_gradients;
        let backward = if separate { vec![one] } else { Vec::new() };
        Operation { backward, ..Operation::default() }
    }

    /// What an MLP does between its products, over `width` columns.
    pub(super) fn activation(&self, rows: u64, width: u64) -> Operation {
        let of = |name, kind, reads, writes| elements(name, kind, rows, width, reads, writes);
        let (copy, curve) = (MemoryKind::Copy, MemoryKind::Activation);
        let fused = self.execution().elements != Elements::Eager;
        let [forward, backward] = match self.model.activation {
            Activation::SwiGlu if fused => [vec![of("SwiGLU", copy, 4, 2)], vec![of("SwiGLU", copy, 6, 4)]],
            Activation::SwiGlu => [
                vec![of("SiLU", copy, 2, 2), of("gate", copy, 4, 2)],
                vec![of("gate", copy, 4, 2), of("gate", copy, 4, 2), of("SiLU", copy, 4, 2)],
            ],
            Activation::GeGlu if fused => [vec![of("GEGLU", curve, 4, 2)], vec![of("GEGLU", curve, 6, 4)]],
            Activation::GeGlu => [
                vec![of("GELU", curve, 2, 2), of("gate", copy, 4, 2)],
                vec![of("gate", copy, 4, 2), of("gate", copy, 4, 2), of("GELU", curve, 4, 2)],
            ],
            Activation::Gelu => [vec![of("GELU", curve, 2, 2)], vec![of("GELU", curve, 4, 2)]],
            Activation::SquaredRelu if fused => {
                [vec![of("squared ReLU", copy, 2, 2)], vec![of("squared ReLU", copy, 4, 2)]]
            }
            Activation::SquaredRelu => [
                vec![of("ReLU", copy, 2, 2), of("square", copy, 2, 2)],
                vec![of("square", copy, 4, 2), of("square", copy, 2, 2), of("ReLU", copy, 4, 2)],
            ],
        };
        Operation { forward, backward, ..Operation::default() }
    }
}
