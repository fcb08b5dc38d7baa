//! Graphs of machines whose GPUs and hosts are all alike, without a search: the highest speed of
//! NCCL's ladder that a GPU's links carry, and as many channels as fit.
//!
//! Facts: NCCL 2.30 `src/graph/search.cc`, `topo.h`, `connect.cc`, restated. The channels' paths
//! are left empty.

use std::collections::BTreeMap;

use super::aws::reported_latency_us;
use super::graphs::{CpuVendor, Graph, Graphs, Pattern};
use crate::ids::Rank;
use crate::network::PathClass;
use crate::topology::{LinkKind, Topology, VertexKind};

const INTRA_BELOW_90: &[f64] = &[40., 30., 20., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3.];
const INTER_BELOW_90: &[f64] =
    &[48., 30., 28., 24., 20., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3., 2.4, 1.2, 0.24, 0.12];
const INTRA_90: &[f64] = &[60., 50., 40., 30., 24., 20., 15., 12., 11., 6., 3.];
const INTER_90: &[f64] = &[48., 45., 42., 40., 30., 24., 22., 20., 17.5, 15., 12., 6., 3., 2.4, 1.2, 0.24, 0.12];
const INTRA_100: &[f64] = &[90., 80., 70., 60., 50., 45., 40., 30., 24., 20., 19., 18.];
const INTER_100: &[f64] =
    &[96., 86., 80., 48., 45.1, 42., 40., 30., 24., 22., 20., 17.5, 15., 12., 6., 3., 2.4, 1.2, 0.24, 0.12];

/// What NCCL counts for one NVLink, in GB/s (`src/graph/topo.h`).
fn nvlink_speed(compute_capability: u32) -> f64 {
    match compute_capability {
        0..70 => 18.0,
        86 => 12.0,
        70..90 => 20.0,
        90..100 => 20.6,
        _ => 40.1,
    }
}

fn ladder(speeds: &[f64], most: f64) -> f64 {
    let least = speeds.last().copied().unwrap_or(0.1);
    speeds.iter().copied().find(|&speed| speed <= most).unwrap_or(least)
}

/// The graphs of the first `ranks` GPUs of a machine.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive counts")]
pub fn graphs(topology: &Topology, ranks: u32) -> Graphs {
    let mut per_host: BTreeMap<u32, u32> = BTreeMap::new();
    for rank in 0..ranks {
        *per_host.entry(topology.node_of(Rank(rank)).0).or_default() += 1;
    }
    let hosts = u32::try_from(per_host.len()).unwrap_or(u32::MAX).max(1);
    let local = (per_host.values().copied().min().unwrap_or(1), per_host.values().copied().max().unwrap_or(1));
    let gpu = topology.gpu_of(Rank(0));
    let cc = match topology.compute_capability() {
        0 => 90,
        known => known,
    };
    let nvlinks = || topology.links_from(gpu).filter(|l| l.2.kind == LinkKind::Nvlink);
    let links: u32 = nvlinks().map(|l| l.2.width).sum();
    let nvlink = links > 0;
    let nvswitch = nvlink && nvlinks().all(|l| matches!(topology.vertex(l.1).kind, VertexKind::NvSwitch));
    let pcie = topology.links_from(gpu).filter(|l| l.2.kind == LinkKind::Pcie).map(|l| l.2.rate.gb_per_s());
    let pcie = pcie.fold(0.0, f64::max);
    let total = if nvlink { f64::from(links) * nvlink_speed(cc) } else { pcie.max(1.0) };
    let (intra, inter) = match cc {
        0..90 => (INTRA_BELOW_90, INTER_BELOW_90),
        90..100 => (INTRA_90, INTER_90),
        _ => (INTRA_100, INTER_100),
    };
    let host = &topology.hosts()[topology.host_of(Rank(0)).index()];
    let nics: Vec<_> = host.nics.iter().filter_map(|&n| topology.nic(n)).collect();
    let (channels, speed);
    if hosts > 1 {
        // One channel a NIC: the speed of its port, or of the PCIe link before it. EFA devices
        // of one GPU act as one device.
        let efa = nics.iter().any(|n| n.kind == LinkKind::Efa);
        let bundle = if efa { (nics.len() / host.gpus.len().max(1)).max(1) } else { 1 };
        let devices = (nics.len() / bundle).max(1);
        let port = nics.first().map_or(1.0, |n| n.rate.gb_per_s()) * bundle as f64;
        let most = port.min(if nvlink { pcie.max(port) } else { pcie.max(1.0) }).min(total);
        speed = ladder(inter, most);
        // A GPU is the entry of one channel, whose bytes come from its NIC and not by NVLink.
        let fit = (total / speed).floor() + if nvlink { 1.0 } else { 0.0 };
        channels = (devices as f64).min(fit).max(1.0) as u32;
    } else {
        let found_speed = ladder(intra, total);
        let found = ((total / found_speed).floor().max(1.0) as u32).min(16);
        // Channels are doubled and halved in speed where each is fast enough for two.
        let double = found_speed >= 25.0 && !(cc > 80 && found_speed < 50.0 && found > 4);
        channels = if double { found * 2 } else { found };
        speed = if double { found_speed / 2.0 } else { found_speed };
    }
    let mut comm = channels * 2;
    if cc >= 90 && hosts > 1 && speed > 45.0 && comm < 16 {
        comm *= 2;
    }
    let alone = local.1 == 1;
    let graph = |pattern| Graph {
        pattern,
        channels,
        speed_intra: speed,
        speed_inter: speed,
        latency_inter: if hosts > 1 { reported_latency_us(topology) } else { 0.0 },
        type_intra: match nvlink {
            _ if alone => PathClass::Loc,
            true => PathClass::Nvl,
            false => PathClass::Phb,
        },
        type_inter: if hosts == 1 || nics.iter().any(|n| n.gpudirect) { PathClass::Pix } else { PathClass::Phb },
        same_channels: true,
        cross_nic: false,
        paths: Vec::new(),
    };
    // Across Hopper hosts the search ends with the plain tree.
    let tree = graph(if hosts > 1 && (cc >= 90 || alone) { Pattern::Tree } else { Pattern::BalancedTree });
    let multicast = nvswitch && cc >= 90 && !alone;
    // One channel a GPU inside a host, one a NIC between hosts; every byte goes to the switch.
    let nvls = multicast.then(|| {
        let heads = if hosts == 1 { local.1 } else { local.1.min(channels) }.min(32);
        let inside = ladder(intra, total / f64::from(heads));
        let between = if hosts == 1 { ladder(intra, inside * 2.0) } else { speed };
        Graph { channels: heads, speed_intra: inside, speed_inter: between, ..graph(Pattern::Nvls) }
    });
    let nvls_channels = match cc {
        _ if nvls.is_none() => 0,
        0..100 => 16,
        _ if hosts == 1 => 24,
        _ => 32,
    };
    // Twice the NVLinks to a peer, or 2 over PCIe, up to a power of two; 32 at most.
    let p2p = (2 * links).max(2).next_power_of_two().min(32);
    Graphs {
        ranks,
        hosts,
        ranks_per_host: local,
        compute_capability: (cc, cc),
        cpu_vendor: Some(cpu_vendor(topology)),
        nvswitch,
        multicast,
        collnet: false,
        ring: graph(Pattern::Ring),
        tree,
        collnet_chain: None,
        collnet_direct: None,
        nvls,
        channels: comm.clamp(1, if cc >= 100 { 64 } else { 32 }),
        nvls_channels,
        p2p_channels: (p2p, p2p),
    }
}

/// The vendor of the first CPU that says one.
fn cpu_vendor(topology: &Topology) -> CpuVendor {
    let mut vendors = topology.vertices().filter_map(|(_, v)| match &v.kind {
        VertexKind::Cpu { vendor } if !vendor.is_empty() => Some(vendor.to_lowercase()),
        _ => None,
    });
    match vendors.next() {
        Some(name) if name.contains("amd") => CpuVendor::Amd,
        Some(name) if name.contains("arm") || name.contains("grace") => CpuVendor::Arm,
        Some(name) if !name.contains("intel") => CpuVendor::Other,
        _ => CpuVendor::Intel,
    }
}
