//! What kernels of collectives and their blocks take.

use super::{Constant, Profile};
use crate::collective::{Algorithm, DataType, Protocol};
use crate::engine::Access;
use crate::engine::flows::WEIGHT_ONE;
use crate::nccl::plan::{P2P_THREADS, Plan};
use crate::units::{Bandwidth, SimDuration};

/// Threads of a block that `block.*` and the weights are of: most that NCCL gives it.
fn all_threads(protocol: Protocol) -> f64 {
    if protocol == Protocol::Ll128 { 640.0 } else { 512.0 }
}

fn weight(value: f64) -> u64 {
    (value * WEIGHT_ONE as f64) as u64
}

impl Profile {
    /// A block's own synchronisation before a slice moves. Line-flagged protocols have none.
    pub fn sync(&self, protocol: Protocol) -> SimDuration {
        if protocol == Protocol::Simple { self.time(Constant::SyncSimple) } else { SimDuration::ZERO }
    }

    /// What is added to [`Self::sync`] where a slice is kept as well as sent.
    pub fn both(&self, protocol: Protocol) -> SimDuration {
        if protocol == Protocol::Simple { self.time(Constant::BothSimple) } else { SimDuration::ZERO }
    }

    /// A block's own bookkeeping after a slice has left: with lines, barriers of its warps before it says that a
    /// place is free and before it takes the next one (NCCL 2.30 `src/device/prims_ll.h`). With Simple it is part of
    /// the next slice's synchronisation.
    pub fn after(&self, protocol: Protocol) -> SimDuration {
        match protocol {
            Protocol::Ll => self.time(Constant::AfterLl),
            Protocol::Ll128 => self.time(Constant::AfterLl128),
            Protocol::Simple => SimDuration::ZERO,
        }
    }

    /// What all threads of a block send from memory.
    pub fn block_rate(&self, protocol: Protocol) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(match protocol {
            Protocol::Ll => Constant::BlockLl,
            Protocol::Ll128 => Constant::BlockLl128,
            Protocol::Simple => Constant::BlockSimple,
        }))
    }

    /// Instruction weights of what `threads` threads of a block access, in sends of all its threads. A load takes
    /// its latency, and every thread has as many bytes on their way; stores go at the rate of the block. `missed` is the
    /// share of what was received that L2 no longer holds, `unaligned` that of what is kept which begins inside a line of
    /// memory.
    ///
    /// With lines a thread waits for its load, then stores. With Simple other warps issue what they load and store
    /// meanwhile (NCCL 2.28 `src/device/common_kernel.h` has 8 loads of 16 bytes of a thread on their way).
    pub fn access(&self, protocol: Protocol, threads: u32, missed: f64, unaligned: f64) -> Access {
        let constants = match protocol {
            Protocol::Ll => [Constant::StoreLl, Constant::FetchLl, Constant::FetchMissed, Constant::KeepLl],
            Protocol::Ll128 => [Constant::StoreLl128, Constant::FetchLl128, Constant::FetchMissed, Constant::KeepLl128],
            Protocol::Simple => {
                [Constant::StoreSimple, Constant::FetchSimple, Constant::WaitMissed, Constant::KeepSimple]
            }
        };
        let [store, fetch, longer, mut keep] = constants.map(|constant| self.value(constant));
        if protocol == Protocol::Ll {
            keep += unaligned * self.value(Constant::KeepLlUnaligned);
        }
        let waits = |value| weight(value * all_threads(protocol) / f64::from(threads.max(1)));
        let (load, beside) = match protocol {
            Protocol::Simple => (self.value(Constant::WaitSimple), Some(weight(1.0 - store))),
            Protocol::Ll | Protocol::Ll128 => (1.0 - store, None),
        };
        let fetch = fetch * (1.0 + longer * missed);
        Access { load: waits(load), fetch: waits(fetch), store: weight(store), keep: weight(keep), beside }
    }

    /// Instruction weight of loading what was received where it waits in host memory, in a lane of that rate whose
    /// threads have `each` bytes of data on their way, which take PCIe there and back.
    pub fn fetch_from_host(&self, rate: Bandwidth, threads: u32, each: u64) -> u64 {
        let taken = rate.bytes_in(self.host_read()).0;
        taken.saturating_mul(WEIGHT_ONE) / (each * u64::from(threads)).max(1)
    }

    /// Instruction weights of what `threads` threads access in a copy inside one memory with Simple: its store is
    /// that of what is kept.
    pub fn copy(&self, threads: u32) -> Access {
        let half = self.value(Constant::CopySimple) / 2.0;
        let load = weight(half * all_threads(Protocol::Simple) / f64::from(threads.max(1)));
        Access { load, fetch: load, store: weight(half), keep: weight(half), beside: None }
    }

    /// Instruction weight of combining beyond that of fp32, in copies.
    pub fn reduce_weight(&self, dtype: DataType) -> f64 {
        match dtype {
            DataType::Float16 | DataType::Bfloat16 => self.value(Constant::ReduceFp16),
            // Nobody has measured 8-bit floats: as integers of their size.
            DataType::Int8 | DataType::Uint8 | DataType::Float8E4m3 | DataType::Float8E5m2 => {
                self.value(Constant::ReduceInt8)
            }
            _ => 0.0,
        }
    }

    /// Start and end of the kernel of a call, back to back on one stream. NCCL compiles a kernel for LL and one
    /// for sends and receives; the other protocols of collectives are functions that the kernel of LL calls
    /// through a table, which takes longer with every warp (NCCL 2.28 `src/device/generate.py`, `common.h`).
    pub fn kernel(&self, plan: &Plan) -> SimDuration {
        let own = plan.algorithm == Algorithm::Direct;
        let (protocol, threads) = if own { (Protocol::Ll, P2P_THREADS) } else { (plan.protocol, plan.threads) };
        let (alone, warp) = match protocol {
            Protocol::Ll => (Constant::KernelLl, Constant::KernelWarpLl),
            Protocol::Ll128 => (Constant::KernelLl128, Constant::KernelWarpLl128),
            Protocol::Simple => (Constant::KernelSimple, Constant::KernelWarpSimple),
        };
        let more = if own { self.time(Constant::KernelDirect) } else { SimDuration::ZERO };
        self.time(alone) + self.time(warp).times(u64::from(threads / 32)) + more
    }

    /// From the start of a kernel to that of its block `index`.
    pub fn block_start(&self, index: u32) -> SimDuration {
        self.time(Constant::KernelBlock).times(index.into())
    }

    /// From the start of a kernel to that of its block `index`, where all but the first fetch their work from host
    /// memory: what to do, then whether to go on (`load_coll` in NCCL 2.8's `src/collectives/device/common.h`), so two
    /// reads in a row, each there and back over PCIe; blocks are served one after another.
    pub fn block_fetch(&self, index: u32) -> SimDuration {
        let there_and_back = self.time(Constant::KernelFetch).times(2);
        let next = self.time(Constant::KernelFetch).times(index.saturating_sub(1).into());
        if index == 0 { SimDuration::ZERO } else { there_and_back + there_and_back + next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;
    use crate::collective::Collective;
    use crate::nccl::Limits;
    use crate::units::Bytes;

    /// Goal: sends and receives have a kernel of their own, which costs what that of LL does with 640 threads and
    /// `kernel.direct`, whatever the protocol; the function of another protocol costs more.
    #[test]
    fn sends_and_receives_need_no_table_of_functions() {
        let prior = Profile::builtin("prior").unwrap();
        let call = |collective| Call::of_size(collective, 2, Bytes(1 << 20), DataType::Float32);
        let plan = |collective, algorithm, protocol| {
            Plan::new(&call(collective), algorithm, protocol, &Limits { channels: 1, ..Limits::default() })
        };
        let [ll, sends, simple] = [
            plan(Collective::AllReduce, Algorithm::Tree, Protocol::Ll),
            plan(Collective::SendRecv, Algorithm::Direct, Protocol::Simple),
            plan(Collective::AllReduce, Algorithm::Tree, Protocol::Simple),
        ]
        .map(|plan| prior.kernel(&plan));
        let own = prior.time(Constant::KernelDirect);
        assert!(ll + own == sends && simple.as_us() > 1.5 * ll.as_us(), "{ll} {sends} {simple}");
    }
}
