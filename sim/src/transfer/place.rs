//! Where a transfer begins or ends.

use std::fmt;

use crate::ids::{HostId, Rank};

/// Memory that a transfer reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// Memory of a GPU.
    Gpu(Rank),
    /// Pinned memory of a host: at the CPU nearest to the GPU at the other end, else at the first.
    Host(HostId),
    /// NVMe drives of a host.
    Disk(HostId),
    /// Files that the page cache of a host holds.
    Cached(HostId),
    /// An object store, beyond the storage ports of hosts.
    Store,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(rank) => write!(f, "gpu:{rank}"),
            Self::Host(host) => write!(f, "host:{}", host.0),
            Self::Disk(host) => write!(f, "disk:{}", host.0),
            Self::Cached(host) => write!(f, "cache:{}", host.0),
            Self::Store => f.write_str("store:0"),
        }
    }
}
