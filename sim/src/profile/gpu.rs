//! What else a GPU, its host and a framework take: starts of kernels, memory, copies, power.

use super::{Constant, Profile};
use crate::collective::Launch;
use crate::units::{Bandwidth, SimDuration};

impl Profile {
    /// The constant that holds a launch mode's issue interval.
    pub fn launch_parameter(launch: Launch) -> Constant {
        match launch {
            Launch::SingleThread => Constant::LaunchSingleThread,
            Launch::Threads => Constant::LaunchThreads,
            Launch::Processes => Constant::LaunchProcesses,
            Launch::Graph => Constant::LaunchGraph,
        }
    }

    /// What passes between two kernels back to back, above what passes between those of a CUDA graph.
    pub fn gap(&self, launch: Launch) -> SimDuration {
        if launch == Launch::Graph { SimDuration::ZERO } else { self.time(Constant::LaunchGap) }
    }

    /// What NCCL's event after each call in a CUDA graph takes.
    pub fn event(&self) -> SimDuration {
        self.time(Constant::KernelEvent)
    }

    /// How often the host can issue one operation of so many channels to `gpus` GPUs of a host.
    pub fn issue_interval(&self, launch: Launch, gpus: u32, channels: u32) -> SimDuration {
        let gpus = if launch == Launch::SingleThread { gpus } else { 1 };
        let channels = if launch == Launch::Graph { 0 } else { channels };
        let each = self.time(Self::launch_parameter(launch));
        (each + self.time(Constant::LaunchChannel).times(u64::from(channels))).times(u64::from(gpus))
    }

    /// From the call to the kernel's start when nothing is queued.
    pub fn first_launch(&self) -> SimDuration {
        self.time(Constant::LaunchFirst)
    }

    /// Memory rate that a kernel gets which only copies: reads and writes together.
    pub fn memory(&self, nominal: Bandwidth) -> f64 {
        nominal.gb_per_s() * 1e9 * self.value(Constant::EfficiencyMemory)
    }

    /// Memory traffic per byte that blocks send.
    pub fn traffic_per_byte(&self) -> f64 {
        self.value(Constant::InterferenceMemory)
    }

    /// What blocks of a communication kernel keep of their rate beside a kernel that keeps a part of the memory
    /// system busy: they take longer for a byte in proportion to that part.
    pub fn block_speed(&self, memory_share: f64) -> f64 {
        1.0 / (1.0 + self.value(Constant::InterferenceBlocks) * memory_share)
    }

    /// Part of the memory system that a large matrix product keeps busy.
    pub fn gemm_memory(&self) -> f64 {
        self.value(Constant::GemmMemory)
    }

    /// How much of its speed a matrix product keeps, at the power limit, beside a kernel that holds SMs and sends so
    /// many bytes a second: it has more rounds of tiles to do than before, with fewer of them at once, which leaves
    /// each a higher clock; and the kernel takes power.
    pub fn product_speed(&self, (before, after): (u32, u32), sent: f64) -> f64 {
        let speed = self.value(Constant::PowerSpeed);
        let rounds = f64::from(before) / f64::from(after.max(before).max(1));
        let taken = self.value(Constant::PowerTraffic) * sent / 1e12;
        // However much is sent, a tenth of the power is left to the product: no machine was measured near that.
        rounds.powf(1.0 - speed) * (1.0 - taken).clamp(0.1, 1.0).powf(speed)
    }

    /// Of what plain copies get, what frameworks get that copy many tensors into or out of one buffer.
    pub fn strided_copy(&self) -> f64 {
        self.value(Constant::EfficiencyStridedCopy)
    }

    /// What copy engines get through NVLink, over what blocks get.
    pub fn copy_engine_over_blocks(&self) -> f64 {
        self.copy_engine() / self.value(Constant::EfficiencyNvlink)
    }

    /// From a copy engine's turn to its first byte.
    pub fn copy_start(&self) -> SimDuration {
        self.time(Constant::CopyEngineStart)
    }

    /// From the end of an operation to the start of one of another stream that waits for it.
    pub fn stream_event(&self) -> SimDuration {
        self.time(Constant::StreamEvent)
    }

    /// Work of the host thread of a framework to launch one kernel.
    pub fn launch_kernel(&self) -> SimDuration {
        self.time(Constant::LaunchKernel)
    }

    /// Work of the host thread of a framework to launch one collective.
    pub fn launch_collective(&self) -> SimDuration {
        self.time(Constant::LaunchCollective)
    }
}
