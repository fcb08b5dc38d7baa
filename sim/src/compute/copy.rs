//! Copies between the memory of a host and that of its GPU.
//!
//! Copy engines reach pinned memory: a copy starts and then goes at the rate of the link. Pageable memory goes through
//! pinned buffers of the driver, which a host thread fills or empties piece by piece; that is slower than the link, so that
//! it sets the rate. A short copy to the GPU is put into the driver's commands, and the host thread does not wait for it.
//!
//! Source: CUDA Driver API, "API synchronization behavior".

use super::constants::Constant;
use super::gpu::Compute;
use super::kernel::HostCopy;
use super::work::Work;

/// Bytes from which a copy from pageable memory waits. CUDA's manual says that those of 64 KB or less do not; one H100 and
/// one H200 (driver 580.159, PyTorch 2.11) take 14 and 13 us for 65,536 B, 9 and 5 us for 16,384 B.
const WAITS: u64 = 65_536;

/// Bytes of the driver's buffers: the host thread reads none before the copy engine has filled one. Copies of 256 KiB to
/// 4 MiB take the time of both, one after the other, on the same H100 and H200; beyond that the longer one counts.
const BUFFER: u64 = 4 << 20;

/// Whether the host thread waits for a copy: it goes through the driver's buffers.
pub(super) fn waits(copy: HostCopy) -> bool {
    !copy.pinned && (copy.to_host || copy.bytes >= WAITS)
}

/// What a copy needs of the link to the host, as of a memory of its own.
pub(super) fn work(gpu: &Compute, copy: HostCopy) -> Work {
    let seconds = |bytes: u64, rate: f64| bytes as f64 / rate;
    let link = |bytes: u64| seconds(bytes, gpu.host_copy_rate());
    let (start, moves) = match (waits(copy), copy.to_host) {
        (false, _) => (Constant::CopyStart, link(copy.bytes)),
        (true, false) => {
            let writes = seconds(copy.bytes, gpu.value(Constant::PageableWrite) * 1e9);
            (Constant::PageableStart, writes.max(link(copy.bytes)))
        }
        (true, true) => {
            let reads = seconds(copy.bytes, gpu.value(Constant::PageableRead) * 1e9);
            (Constant::PageableReturn, link(copy.bytes.min(BUFFER)) + reads)
        }
    };
    Work { start: gpu.value(start) * 1e-6, memory: moves, overlap: 1.0, ..Work::default() }
}
