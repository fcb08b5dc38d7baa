//! Memory that NICs read and write by themselves: of the host, or of a GPU.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use super::device::{Nic, Order, Region};
use super::reach::{Registers, Way, register};
use crate::cuda::driver::{self, Device};
use crate::exec::ExecError;

/// Alignment of memory that is registered: a page.
const PAGE: usize = 4096;
/// What memory of a GPU is a multiple of: a page of CUDA, which no other allocation shares then.
const GPU_PAGE: usize = 2 << 20;

/// Memory that NICs read and write.
#[derive(Debug)]
pub(crate) struct Memory {
    /// One for each NIC; they go before the memory does.
    regions: Vec<Region>,
    address: u64,
    bytes: usize,
    _gpu: Option<driver::Memory>,
    host: Option<Pages>,
}

/// Pages of the host.
#[derive(Debug)]
struct Pages {
    base: *mut u8,
    layout: Layout,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated so.
        unsafe { dealloc(self.base, self.layout) };
    }
}

impl Memory {
    /// Zeros on the host, registered with all NICs.
    ///
    /// # Errors
    /// Memory that cannot be had or registered.
    pub(crate) fn new(bytes: usize, nics: &[Arc<Nic>], order: Order) -> Result<Self, ExecError> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(bytes, PAGE)
            .map_err(|_| ExecError::Library { call: "alloc", message: format!("{bytes} bytes are too many") })?;
        // SAFETY: not of size 0.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(ExecError::Library { call: "alloc", message: format!("no {bytes} bytes of memory") });
        }
        let mut memory =
            Self { regions: Vec::new(), address: base as u64, bytes, _gpu: None, host: Some(Pages { base, layout }) };
        for nic in nics {
            memory.regions.push(nic.register(memory.address, bytes, order).map_err(|error| {
                ExecError::Missing {
                    what: format!("{bytes} bytes of memory cannot be registered with {}: {error}", nic.name),
                    hint: "the limit of locked memory is likely too low: `ulimit -l unlimited`, in Slurm \
                       PropagateResourceLimitsExcept=MEMLOCK; or take fewer --channels or a smaller --size"
                        .to_owned(),
                }
            })?);
        }
        Ok(memory)
    }

    /// Zeros on a GPU, registered with all NICs; and how.
    ///
    /// # Errors
    /// Memory that cannot be had, or that a NIC cannot reach: what lacks.
    pub(crate) fn of_gpu(
        bytes: usize,
        nics: &[Arc<Nic>],
        order: Order,
        gpu: &Arc<Device>,
    ) -> Result<(Self, Way), ExecError> {
        let bytes = bytes.max(1).next_multiple_of(GPU_PAGE);
        let memory = driver::Memory::new(gpu, bytes as u64)?;
        memory.set(0)?;
        let mut regions = Vec::new();
        let mut ways = Vec::new();
        for nic in nics {
            let on = OnGpu { memory: &memory, nic, order };
            let (region, way) = register(&on).map_err(|why| why.error(gpu.ordinal, &nic.name))?;
            regions.push(region);
            ways.push(way);
        }
        let way = ways.into_iter().max().unwrap_or(Way::DmaBuf);
        Ok((Self { regions, address: memory.address, bytes, _gpu: Some(memory), host: None }, way))
    }

    /// Where it begins, as NICs address it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is of the host, so that this thread may read and write it.
    pub(crate) fn on_host(&self) -> bool {
        self.host.is_some()
    }

    /// The keys that we and peers reach it with, by the NIC's index.
    pub(crate) fn keys(&self, nic: usize) -> (u32, u32) {
        self.regions[nic].keys()
    }

    /// So many bytes from there on, of memory of the host. Only the probe has a GPU's, and it leaves out every kind of which a
    /// thread looks at memory.
    fn place(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at + length <= self.bytes, "{at} + {length} bytes of {}", self.bytes);
        let Some(host) = &self.host else { unreachable!("no thread looks at memory of a GPU") };
        // SAFETY: inside.
        unsafe { host.base.add(at) }
    }

    /// Eight bytes that a peer may write at any time.
    pub(crate) fn word(&self, at: usize) -> u64 {
        // SAFETY: so many bytes. What a NIC changes is read anew each time.
        unsafe { self.place(at, 8).cast::<u64>().read_volatile() }
    }

    /// Writes such eight bytes, which a NIC may read at any time.
    pub(crate) fn set_word(&mut self, at: usize, word: u64) {
        // SAFETY: so many bytes.
        unsafe { self.place(at, 8).cast::<u64>().write_volatile(word) };
    }

    /// Bytes that are ours to write: a slot that was sent and acknowledged.
    pub(crate) fn bytes_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        // SAFETY: so many bytes, borrowed alone; NICs read only slots that are being sent, which this is none of.
        unsafe { std::slice::from_raw_parts_mut(self.place(at, length), length) }
    }
}

/// Memory of a GPU, for one NIC.
struct OnGpu<'a> {
    memory: &'a driver::Memory,
    nic: &'a Arc<Nic>,
    order: Order,
}

impl Registers for OnGpu<'_> {
    type Region = Region;

    fn dma_buf(&self) -> Result<Region, String> {
        let memory = self.memory;
        let descriptor = memory.shared().map_err(|error| error.to_string())?;
        self.nic
            .register_shared(&descriptor, memory.address, memory.bytes as usize, self.order)
            .map_err(|error| error.to_string())
    }

    fn peer(&self) -> Result<Region, String> {
        let memory = self.memory;
        self.nic.register(memory.address, memory.bytes as usize, self.order).map_err(|error| error.to_string())
    }
}
