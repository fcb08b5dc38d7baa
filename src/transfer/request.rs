//! What is to be transferred.

use super::beside::Beside;
use crate::site::SiteSpec;

/// A transfer. What is left out is the machine's own, or one contiguous piece at once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Request {
    /// The machine; as many hosts as the places need where no number is given.
    pub site: SiteSpec,
    /// Profile of the GPU's copies, by name or file; that of the machine's GPUs where none is named.
    pub gpu: Option<String>,
    /// Where bytes are: see [`places`](super::places()).
    pub from: String,
    /// Where they go: as many places, or one.
    pub to: String,
    /// Bytes of all pairs together, which share them evenly.
    pub bytes: u64,
    /// Bytes of a contiguous piece; those of a pair and layer where none are given.
    pub block: Option<u64>,
    /// The ways to go by, at once: back ends joined by `+`. All ways one by one where none is named.
    pub path: Option<String>,
    /// Parts of equal size, of which each goes once it is there.
    pub layers: u64,
    /// Seconds of the prefill that makes these parts one after another.
    pub prefill: f64,
    /// Whether memory is registered with NICs first.
    pub register: bool,
    /// A collective that runs beside: see [`Beside`].
    pub beside: Option<Beside>,
    /// NVMe drives of a host; those of the topology where none are given.
    pub drives: Option<u32>,
}

impl Request {
    /// A transfer at once.
    pub fn new(from: impl Into<String>, to: impl Into<String>, bytes: u64) -> Self {
        Self { from: from.into(), to: to.into(), bytes, layers: 1, ..Self::default() }
    }
}
