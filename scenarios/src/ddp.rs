//! Data parallelism by all-reduce of gradients: PyTorch's DistributedDataParallel, and simpler ways.
//!
//! DDP puts gradients into buckets in the reverse order of the parameters. A bucket is full when it
//! has at least its size: 1 MiB for the first, so that communication starts early, 25 MiB for the
//! others. It is all-reduced when its last gradient is there. Each gradient is copied into its
//! bucket, divided by the number of ranks, and out of it at the end. `gradient_as_bucket_view` saves the
//! way back: in a step of GPT blocks on 2 H200 its 2.5 ms of copies are gone, the 96 kernels of 2.7 ms
//! that fill buckets are not (`tests/data/h200x4/ddp_kernels.json`).
//!
//! Source: PyTorch 2.11 `torch/nn/parallel/distributed.py`, `torch/csrc/distributed/c10d/reducer.cpp`;
//! Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.

use collcast_sim::collective::Collective;
use collcast_sim::units::Bytes;

use crate::emit::Writer;

/// How DDP buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ddp {
    /// Size from which a bucket is full.
    pub bucket: Bytes,
    /// The same of the first.
    pub first_bucket: Bytes,
    /// Gradients are copied into buckets and back; not where a framework computes them there.
    pub copies: bool,
    /// Gradients stay in their buckets, `gradient_as_bucket_view`: no way back.
    pub view: bool,
}

impl Default for Ddp {
    /// As in PyTorch: `bucket_cap_mb` of 25, and `_DEFAULT_FIRST_BUCKET_BYTES` (`torch/nn/parallel/distributed.py`).
    fn default() -> Self {
        Self { bucket: Bytes(25 << 20), first_bucket: Bytes(1 << 20), copies: true, view: false }
    }
}

/// Buckets while a backward pass runs.
#[derive(Debug)]
pub struct Buckets {
    how: Ddp,
    open: u64,
    sent: Vec<(usize, u64)>,
}

const NAME: (&str, &str) = ("data-parallel all_reduce", "gradients");

impl Buckets {
    /// Before the backward pass.
    pub fn new(how: Ddp) -> Self {
        Self { how, open: 0, sent: Vec::new() }
    }

    /// A gradient of so many bytes is there, after what was last computed.
    pub fn gradient(&mut self, writer: &mut Writer<'_>, bytes: u64, computed: usize) {
        let mut ready = computed;
        if self.how.copies {
            ready = writer.copy("copy into bucket", 2 * bytes, &[computed]);
        }
        self.open += bytes;
        let full = if self.sent.is_empty() { self.how.first_bucket } else { self.how.bucket };
        if self.open >= full.0 {
            self.send(writer, ready);
        }
    }

    fn send(&mut self, writer: &mut Writer<'_>, ready: usize) {
        let Some(group) = writer.slots.data else { return };
        let size = std::mem::take(&mut self.open);
        let label = format!("bucket {}", self.sent.len());
        let sent = writer.collective((&label, NAME.0, NAME.1), group, Collective::AllReduce, Bytes(size), &[ready]);
        self.sent.push((sent, size));
    }

    /// The backward pass is over: the last bucket goes, and every bucket is copied back once it is reduced.
    pub fn finish(mut self, writer: &mut Writer<'_>, computed: usize) {
        if self.open > 0 {
            self.send(writer, computed);
        }
        if self.how.copies && !self.how.view {
            for (sent, size) in self.sent {
                writer.copy("copy out of bucket", 2 * size, &[sent]);
            }
        }
    }
}

/// All gradients in one all-reduce at the end.
pub fn all_reduce_at_end(writer: &mut Writer<'_>, gradients: Bytes, computed: usize) {
    if let Some(group) = writer.slots.data {
        writer.collective(("all gradients", NAME.0, NAME.1), group, Collective::AllReduce, gradients, &[computed]);
    }
}

/// `DataParallel` of old: one GPU owns the model, broadcasts it before and reduces gradients after
/// each step.
pub fn broadcast_from_one(writer: &mut Writer<'_>, parameters: Bytes) -> Vec<usize> {
    let Some(group) = writer.slots.data else { return Vec::new() };
    let name = ("parameters", "broadcast from one GPU", "gradients");
    vec![writer.collective(name, group, Collective::Broadcast, parameters, &[])]
}

/// See [`broadcast_from_one`].
pub fn reduce_to_one(writer: &mut Writer<'_>, gradients: Bytes, computed: usize) {
    if let Some(group) = writer.slots.data {
        let name = ("gradients", "reduce to one GPU", "gradients");
        writer.collective(name, group, Collective::Reduce, gradients, &[computed]);
    }
}
