//! What all ranks agree on: the worst of each host's graphs, and the channels of the communicator.
//!
//! Source: NCCL 2.30 `src/init.cc`, `src/graph/connect.cc`, `src/graph/paths.cc`,
//! `src/transport/nvls.cc`, restated.

use std::sync::Arc;

use super::options::Options;
use super::options::Sends;
use super::paths::{MAX_CHANNELS, Paths, kind};
use super::system::System;
use crate::nccl::graphs::{ChannelPath, CpuVendor, Graph, Graphs, Pattern};
use crate::nccl::nvlink;
use crate::nccl::path::PathClass;
use crate::nccl::plan::{self, PEER_BATCH};
use crate::nccl::rules::{NvlsTreeChunks, Rules};
use crate::nccl::version::Version;
use crate::units::Bytes;

/// GB/s that one channel of send and receive is to carry over the network (`NCCL_P2P_PER_CHANNEL_NET_BW`).
const P2P_NET_BW: f32 = 14.0;

/// A host of a communicator.
pub(super) struct Member {
    /// Its ranks.
    pub(super) gpus: usize,
    pub(super) searched: Arc<Searched>,
}

/// What is known of a host after its search.
#[derive(Debug)]
pub(super) struct Searched {
    ring: Graph,
    tree: Graph,
    /// CollNet chain, CollNet direct, NVLS.
    others: [Option<Graph>; 3],
    capability: (u32, u32),
    vendor: CpuVendor,
    nvswitch: bool,
    per_peer: PerPeer,
    /// Rate of the slowest network device in GB/s.
    net_bw: f32,
}

impl Searched {
    pub(super) fn new(system: &System, paths: &Paths, ring: Graph, tree: Graph, others: [Option<Graph>; 3]) -> Self {
        let capabilities = || system.gpus.iter().map(|g| g.capability);
        Self {
            ring,
            tree,
            others,
            capability: (capabilities().min().unwrap_or(0), capabilities().max().unwrap_or(0)),
            vendor: system.vendor,
            nvswitch: system.nvswitch.is_some(),
            per_peer: PerPeer::new(system, paths),
            net_bw: slowest(system),
        }
    }

    /// A host that is too large to search: one slow channel in the order of numbers, as NCCL falls back.
    pub(super) fn in_order(system: &System) -> Self {
        let gpus: Vec<u32> = system.gpus.iter().map(|g| g.number).collect();
        let nic = system.nets.first().filter(|_| system.inter).map(|n| (n.nic, n.nic));
        let graph = |pattern| Graph {
            pattern,
            channels: 1,
            speed_intra: 0.1,
            speed_inter: if nic.is_some() { 0.1 } else { 0.0 },
            latency_inter: 0.0,
            type_intra: PathClass::Sys,
            type_inter: PathClass::Sys,
            same_channels: true,
            cross_nic: false,
            paths: vec![vec![ChannelPath { nics: nic, gpus: gpus.clone() }]],
        };
        let capabilities = || system.gpus.iter().map(|g| g.capability);
        Self {
            ring: graph(Pattern::Ring),
            tree: graph(Pattern::Tree),
            others: [None, None, None],
            capability: (capabilities().min().unwrap_or(0), capabilities().max().unwrap_or(0)),
            vendor: system.vendor,
            nvswitch: system.nvswitch.is_some(),
            per_peer: PerPeer { inside: 2, by_rate: 2, by_link: 0 },
            net_bw: slowest(system),
        }
    }
}

fn slowest(system: &System) -> f32 {
    system.nets.iter().map(|n| n.bw).fold(f32::INFINITY, f32::min)
}

/// Fewest channels to one peer that send and receive have in a host's view (`ncclTopoGetNchannels`).
#[derive(Clone, Copy, Debug)]
struct PerPeer {
    /// Inside the host: two for each NVLink, or for PCIe.
    inside: u32,
    /// To another host since 2.29: one for each NIC, or as many as its rate needs.
    by_rate: u32,
    /// The same before: NICs that fill the GPU's own link to a CPU; 0 below a PCIe switch.
    by_link: u32,
}

impl PerPeer {
    fn new(system: &System, paths: &Paths) -> Self {
        let gpus = system.gpus.len();
        let mut least = Self { inside: u32::MAX, by_rate: u32::MAX, by_link: u32::MAX };
        for g in 0..gpus {
            for peer in (0..gpus).filter(|&p| p != g) {
                let path = paths.gpu_to_gpu(system, peer, g);
                let links = (path.bw / nvlink::counted(system.gpus[g].capability) as f32) as u32;
                least.inside = least.inside.min(if path.kind == kind::NVL { 2 * links.max(1) } else { 2 });
            }
            let fill = |nets: Vec<usize>, enough: f32| {
                let (mut count, mut bw) = (0_u32, 0.0_f32);
                for net in nets {
                    if bw >= enough {
                        break;
                    }
                    count += 1;
                    bw += paths.gpu_to_net(system, g, net).bw;
                }
                (count, bw)
            };
            let (nets, bw) = fill(paths.preferred_nets(system, g), paths.cpu_bw(system, g));
            let needed = if nets == 0 { 2 } else { nets.max((bw.trunc() / P2P_NET_BW).ceil() as u32) };
            least.by_rate = least.by_rate.min(needed);
            let own = system.links_of[system.gpus[g].node].iter().map(|&l| &system.links[l]);
            let own = own.filter(|link| system.cpus.contains(&link.to)).map(|link| link.bw).fold(0.0, f32::max);
            least.by_link = least.by_link.min(fill(paths.local_nets(system, g), own).0);
        }
        least
    }
}

/// The graphs of a communicator over its hosts, in order.
pub(super) fn agree(members: &[Member], options: &Options) -> Graphs {
    let hosts = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let searched = || members.iter().map(|m| m.searched.as_ref());
    let sizes = || members.iter().map(|m| u32::try_from(m.gpus).unwrap_or(u32::MAX));
    let ranks_per_host = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let mut ring = merge(searched().map(|s| &s.ring));
    let mut tree = merge(searched().map(|s| &s.tree));
    for graph in [&mut ring, &mut tree] {
        exchange_pairs(graph);
    }
    let channels = ring.channels.min(tree.channels);
    for graph in [&mut ring, &mut tree] {
        cut(graph, channels);
    }
    let optional = |which: usize| {
        let all: Option<Vec<&Graph>> = searched().map(|s| s.others[which].as_ref()).collect();
        all.map(|all| merge(all.into_iter())).filter(|g| g.channels > 0)
    };
    let (collnet_chain, collnet_direct) = (optional(0), optional(1));
    let collnet = options.collnet && collnet_chain.is_some();
    let nvswitch = searched().all(|s| s.nvswitch);
    let capability =
        (searched().map(|s| s.capability.0).min().unwrap_or(0), searched().map(|s| s.capability.1).max().unwrap_or(0));
    let least = Rules::of(options.sends.version).nvls_ranks;
    let nvls = optional(2).filter(|_| ranks_per_host.0 >= least && capability.0 >= 90 && nvswitch);
    let vendor = searched().next().map(|s| s.vendor);

    let most = u32::try_from(MAX_CHANNELS).unwrap_or(u32::MAX);
    // A second set of channels, which the second tree needs.
    let mut all = 2 * channels;
    // More of them where CollNet leaves bandwidth inside hosts over.
    let chain = collnet_chain.as_ref().filter(|_| collnet);
    if chain.is_some_and(|g| g.speed_intra > g.speed_inter) && ranks_per_host.1 > 1 {
        all += all / 2;
    }
    // Few fast channels do not reach the bandwidth of Hopper and later.
    if capability.0 >= 90 && hosts > 1 && ring.speed_intra > 45.0 && all < 16 {
        all *= 2;
    }
    let all = all.clamp(1, most);
    let (nvls_channels, nvls_chunks) = match &nvls {
        Some(graph) => nvls_sizes(members, capability.0, (ranks_per_host.0, graph.type_inter), options.sends.version),
        None => (0, (NVLS_CHUNK, None)),
    };
    let ranks: u32 = sizes().sum();
    Graphs {
        ranks,
        hosts,
        ranks_per_host,
        compute_capability: capability,
        cpu_vendor: vendor.filter(|&v| searched().all(|s| s.vendor == v)),
        nvswitch,
        multicast: nvls.is_some(),
        collnet,
        collnet_chain: collnet_chain.filter(|_| collnet),
        collnet_direct: collnet_direct.filter(|_| collnet),
        nvls,
        channels: all,
        nvls_channels,
        nvls_chunks,
        p2p_channels: p2p_channels(members, ranks, (all, nvls_channels), &options.sends),
        ring,
        tree,
    }
}

/// The worst of all hosts: fewest channels, lowest speeds, worst types.
fn merge<'a>(mut graphs: impl Iterator<Item = &'a Graph>) -> Graph {
    let Some(first) = graphs.next() else { unreachable!("a communicator has hosts") };
    let mut merged = first.clone();
    for graph in graphs {
        merged.pattern = if graph.pattern as u32 > merged.pattern as u32 { graph.pattern } else { merged.pattern };
        merged.channels = merged.channels.min(graph.channels);
        merged.speed_intra = merged.speed_intra.min(graph.speed_intra);
        merged.speed_inter = merged.speed_inter.min(graph.speed_inter);
        merged.latency_inter = merged.latency_inter.max(graph.latency_inter);
        merged.type_intra = merged.type_intra.max(graph.type_intra);
        merged.type_inter = merged.type_inter.max(graph.type_inter);
        merged.same_channels &= graph.same_channels;
        merged.cross_nic |= graph.cross_nic;
        merged.paths.extend_from_slice(&graph.paths);
    }
    let channels = merged.channels;
    cut(&mut merged, channels);
    merged
}

fn cut(graph: &mut Graph, channels: u32) {
    graph.channels = channels;
    for paths in &mut graph.paths {
        paths.truncate(channels as usize);
    }
}

/// Where rings cross NICs, odd hosts exchange the channels of each pair: so no ring changes the rail
/// between hosts.
fn exchange_pairs(graph: &mut Graph) {
    if graph.pattern == Pattern::Ring && graph.cross_nic && graph.channels.is_multiple_of(2) {
        for paths in graph.paths.iter_mut().skip(1).step_by(2) {
            for pair in paths.chunks_exact_mut(2) {
                pair.swap(0, 1);
            }
        }
    }
}

/// Chunks of NVLS that nothing tunes (`NCCL_NVLS_CHUNKSIZE`; `src/enqueue.cc` before 2.21).
const NVLS_CHUNK: Bytes = Bytes(128 << 10);

/// Channels of NVLS, and most bytes of its chunks and of those of NVLS tree, where they have a bound of their own
/// (`src/transport/nvls.cc`, `ncclNvlsTuning`). Since 2.29 those of Blackwell over several hosts follow the NICs:
/// `(fewest ranks of a host, way from a GPU to its NIC)`.
fn nvls_sizes(
    members: &[Member],
    capability: u32,
    (ranks, way): (u32, PathClass),
    version: Version,
) -> (u32, (Bytes, Option<Bytes>)) {
    let hosts = members.len();
    let lowers = Rules::of(version).nvls_tree_chunks != NvlsTreeChunks::Step;
    let untuned = (NVLS_CHUNK, (lowers && hosts >= 4).then_some(Bytes(64 << 10)));
    if capability < 100 || hosts == 1 {
        return (if capability < 100 { 16 } else { 24 }, untuned);
    }
    let nic = members.iter().map(|m| m.searched.net_bw).fold(f32::INFINITY, f32::min);
    let near = way <= PathClass::Pxb;
    let (channels, chunk, tree_chunk) = match (hosts, ranks) {
        _ if !version.since(29) || nic < 48.0 => return (32, untuned),
        (2, ..=4) => (32, 256, 256),
        (2, 16..) => (32, 128, 64),
        (2, ..=8) if near && nic < 96.0 => (32, 128, 64),
        (2, _) => (32, 128, 128),
        (_, ..=8) if nic >= 96.0 => (24, 256, 256),
        (_, 32..) if nic >= 96.0 => (32, 128, 64),
        _ if nic >= 96.0 => (32, 128, 128),
        _ => (24, 128, if near { 64 } else { 128 }),
    };
    (channels, (Bytes(chunk << 10), Some(Bytes(tree_chunk << 10))))
}

/// Channels of send and receive, and those to one peer; both powers of two (`ncclTopoComputeP2pChannels`).
fn p2p_channels(members: &[Member], ranks: u32, (all, nvls): (u32, u32), told: &Sends) -> (u32, u32) {
    let least = |of: fn(&PerPeer) -> u32| members.iter().map(|m| of(&m.searched.per_peer)).min().unwrap_or(1);
    let (fewest, most) = told.channels;
    let channels = all.min(most.unwrap_or(u32::MAX)).max(fewest.unwrap_or(1));
    // Those of NVLS count until 2.27.
    let channels = if told.version.since(28) { channels } else { channels.max(nvls) };
    let channels =
        channels.min(told.most.unwrap_or(u32::MAX)).max(told.least.unwrap_or(1)).clamp(1, plan::MAX_CHANNELS);
    let mut per_peer = least(|of| of.inside);
    let several = members.len() > 1;
    if several {
        per_peer = per_peer.min(match told.per_peer {
            Some(set) => set,
            None if told.version.since(29) => least(|of| of.by_rate),
            // A block that serves many peers has no warp left to wait for them.
            None if told.version.since(19) => {
                let few = 2 * ranks > channels * PEER_BATCH / 2;
                least(|of| of.by_link).max(if few { 1 } else { 2 })
            }
            None if told.version.since(12) => 2,
            None => 1,
        });
    }
    let mut per_peer = per_peer.clamp(1, channels).next_power_of_two();
    let channels = channels.next_power_of_two();
    if several && told.per_peer.is_none() && told.version.since(29) {
        // So that all peers fit into one round.
        while per_peer > 1 && per_peer * ranks.div_ceil(PEER_BATCH) > channels {
            per_peer /= 2;
        }
    }
    (channels, per_peer.min(channels))
}
