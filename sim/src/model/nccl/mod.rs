//! What NCCL itself predicts and picks: its channels, cost table and choice.
//!
//! Restated from NCCL 2.28 to 2.30 (`src/graph/tuning.cc`, `src/graph/search.cc`). It is a
//! baseline that our prediction must beat, and what `auto` resolves through. Ring and tree
//! only so far; NVLS, CollNet and PAT are reported as not modelled.
//!
//! The graph search is reduced to machines whose GPUs are all alike: the highest speed of
//! NCCL's ladder that the GPU's links carry, and as many channels as fit.

pub mod graphs;
pub mod search;

use crate::collective::{Algorithm, Collective, Protocol};
use crate::schedule::Call;
use crate::topology::{LinkKind, Topology, VertexKind};

/// What NCCL's graph search finds on a uniform machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Graph {
    /// Ranks.
    pub ranks: u32,
    /// Hosts.
    pub hosts: u32,
    /// Channels of the ring and tree graphs.
    pub channels: u32,
    /// Speed of one channel inside hosts, in GB/s.
    pub speed_intra: f64,
    /// Speed of one channel between hosts, in GB/s.
    pub speed_inter: f64,
    /// GPUs of a host are joined by NVLink only.
    pub nvlink: bool,
    /// Compute capability times ten, the lowest.
    pub compute_capability: u32,
    /// An AMD CPU.
    pub amd: bool,
    /// Channels of the communicator.
    pub comm_channels: u32,
}

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

/// The graph NCCL finds for the first `ranks` GPUs of a machine.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive counts")]
pub fn graph(topology: &Topology, ranks: u32) -> Graph {
    use crate::ids::Rank;
    let hosts = (0..ranks).map(|r| topology.host_of(Rank(r))).collect::<std::collections::BTreeSet<_>>().len();
    let gpu = topology.gpu_of(Rank(0));
    let cc = match topology.compute_capability() {
        0 => 90,
        known => known,
    };
    let links: u32 = topology.links_from(gpu).filter(|l| l.2.kind == LinkKind::Nvlink).map(|l| l.2.width).sum();
    let nvlink = links > 0;
    let pcie = topology
        .links_from(gpu)
        .filter(|l| l.2.kind == LinkKind::Pcie)
        .map(|l| l.2.rate.gb_per_s())
        .fold(0.0, f64::max);
    let total = f64::from(links) * nvlink_speed(cc);
    let total = if nvlink { total } else { pcie.max(1.0) };
    let amd = topology.vertices().any(|(_, v)| matches!(&v.kind, VertexKind::Cpu { vendor } if vendor.contains("AMD")));
    let (intra, inter) = match cc {
        0..90 => (INTRA_BELOW_90, INTER_BELOW_90),
        90..100 => (INTRA_90, INTER_90),
        _ => (INTRA_100, INTER_100),
    };
    let (channels, speed_intra, speed_inter);
    if hosts > 1 {
        // One channel a NIC: the speed of its port, or of the PCIe link before it.
        let host = &topology.hosts()[topology.host_of(Rank(0)).index()];
        let nics: Vec<f64> = host.nics.iter().filter_map(|&n| topology.nic(n)).map(|n| n.rate.gb_per_s()).collect();
        // EFA devices of one GPU act as one device.
        let efa = host.nics.iter().filter_map(|&n| topology.nic(n)).any(|n| n.kind == LinkKind::Efa);
        let bundle = if efa { (nics.len() / host.gpus.len().max(1)).max(1) } else { 1 };
        let devices = (nics.len() / bundle).max(1);
        let port = nics.first().copied().unwrap_or(1.0) * bundle as f64;
        let most = port.min(if nvlink { pcie.max(port) } else { pcie.max(1.0) }).min(total);
        let speed = inter.iter().copied().find(|&s| s <= most).unwrap_or(0.12);
        // A GPU is the entry of one channel, whose bytes come from its NIC and not by NVLink.
        let fit = (total / speed).floor() + if nvlink { 1.0 } else { 0.0 };
        let found = (devices as f64).min(fit).max(1.0);
        channels = found as u32;
        (speed_intra, speed_inter) = (speed, speed);
    } else {
        let speed = intra.iter().copied().find(|&s| s <= total).unwrap_or(3.0);
        let found = ((total / speed).floor().max(1.0) as u32).min(16);
        // Channels are doubled and halved in speed where each is fast enough for two.
        let double = speed >= 25.0 && !(cc > 80 && speed < 50.0 && found > 4);
        channels = if double { found * 2 } else { found };
        speed_intra = if double { speed / 2.0 } else { speed };
        speed_inter = speed_intra;
    }
    let hosts = u32::try_from(hosts).unwrap_or(u32::MAX);
    let mut comm = channels * 2;
    if cc >= 90 && hosts > 1 && speed_intra > 45.0 && comm < 16 {
        comm *= 2;
    }
    Graph {
        ranks,
        hosts,
        channels,
        speed_intra,
        speed_inter,
        nvlink,
        compute_capability: cc,
        amd,
        comm_channels: comm.clamp(1, if cc >= 100 { 64 } else { 32 }),
    }
}

fn protocol_index(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Ll => 0,
        Protocol::Ll128 => 1,
        Protocol::Simple => 2,
    }
}

/// Correction of the tree's bandwidth by size, per protocol; index `log2(bytes / 64)`.
const TREE_CORRECTION: [[f64; 24]; 3] = [
    [1., 1., 1., 1., 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1., 1., 1., 1., 1.],
    [1., 1., 1., 1., 1., 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1., 1., 1.],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ],
];

/// Latency (us) and algorithm bandwidth (GB/s) that NCCL assigns; `None` where it has no kernel.
pub fn latency_and_bandwidth(
    graph: &Graph,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
) -> Option<(f64, f64)> {
    let tree = match (algorithm, collective) {
        (Algorithm::Ring, _) => false,
        (Algorithm::Tree, Collective::AllReduce) => true,
        _ => return None,
    };
    let p = protocol_index(protocol);
    let (n, hosts) = (f64::from(graph.ranks), f64::from(graph.hosts));
    let per_host = n / hosts;
    let steps = match collective {
        Collective::AllReduce => 2.0 * (n - 1.0),
        Collective::AllGather | Collective::ReduceScatter => n - 1.0,
        Collective::Broadcast | Collective::Reduce => n,
        _ => return None,
    };
    let inter_steps = match collective {
        _ if graph.hosts == 1 => 0.0,
        Collective::AllReduce => 2.0 * (hosts - 1.0),
        Collective::AllGather | Collective::ReduceScatter => hosts - 1.0,
        _ => 0.0,
    };
    let scale = (graph.hosts.max(1) as usize - 1).min(2);
    let arch = match graph.compute_capability {
        0..80 => 0,
        80..90 => 1,
        90..100 => 2,
        _ => 3,
    };
    const LL_MAX: [[f64; 3]; 4] = [[39., 39., 20.4], [87.7, 22.5, 19.], [141., 45., 35.], [282., 90., 70.]];
    let ll_row = if graph.hosts == 1 { arch } else { usize::from(graph.amd) };
    let ll_max = LL_MAX[ll_row][scale];
    const RING_LL128: [f64; 4] = [20., 20., 36.7, 40.];
    const TREE_LL128: [[f64; 3]; 4] = [[20.; 3], [20.; 3], [36.7, 36.7, 29.], [55.6, 31.67, 20.]];
    const TREE: [[f64; 3]; 4] = [[26.5, 18.5, 10.], [24., 23.6, 17.8], [38.7, 41.4, 36.], [70., 42.8, 24.]];
    let channels = f64::from(graph.channels);
    let speed = if graph.hosts <= 2 { graph.speed_intra } else { graph.speed_inter };
    let mut bus = channels * speed;
    if tree {
        bus = (0.92 * bus).min(channels * TREE[arch][scale]);
        bus = match protocol {
            Protocol::Ll => (bus / 3.8).min(ll_max),
            Protocol::Ll128 => {
                let share = if graph.hosts == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
                (bus * share).min(channels * TREE_LL128[arch][scale])
            }
            Protocol::Simple => bus,
        };
        // Across Hopper hosts the search ends with the plain TREE pattern.
        if graph.hosts > 1 && graph.compute_capability >= 90 {
            bus *= 0.85;
        }
    } else {
        bus = match protocol {
            Protocol::Ll => ll_max.min(0.5 * bus),
            Protocol::Ll128 => (0.92 * bus).min(channels * RING_LL128[arch]),
            Protocol::Simple => bus,
        };
    }
    let bandwidth = bus * if tree { 0.5 } else { n / steps };

    const BASE: [[f64; 3]; 2] = [[6.6, 14.0, 8.4], [6.8, 14.0, 8.4]];
    // [tree][NVLink, PCI, network][protocol]
    const STEP: [[[f64; 3]; 3]; 2] =
        [[[0.6, 1.9, 3.4], [1.0, 2.5, 5.7], [2.7, 4.0, 14.0]], [[0.6, 1.25, 4.0], [1.0, 1.9, 4.0], [5.0, 8.5, 14.0]]];
    let t = usize::from(tree);
    let intra = STEP[t][usize::from(!graph.nvlink)][p];
    let inter = STEP[if per_host <= 1.0 { 1 } else { t }][2][p];
    let hardware = if graph.hosts == 1 { intra } else { inter };
    let mut latency = BASE[t][p];
    if tree {
        latency += 2.0 * ((n / hosts).floor() - 1.0) * intra + 2.0 * hosts.log2().floor() * inter;
    } else if matches!(collective, Collective::Broadcast | Collective::Reduce) {
        latency += hardware;
    } else {
        let mut overhead = 0.0;
        if graph.hosts > 1 {
            overhead = if graph.amd { 2.0 } else { 1.0 } * if protocol == Protocol::Simple { 3.0 } else { 1.0 };
        }
        latency += (steps - inter_steps) * intra.max(overhead) + inter_steps * inter;
    }
    Some((latency, bandwidth))
}

/// NCCL's own prediction for one call, in us; `None` where it would not use the pair.
#[expect(clippy::cast_precision_loss, reason = "NCCL computes in floats")]
pub fn predicted_us(graph: &Graph, call: &Call, algorithm: Algorithm, protocol: Protocol) -> Option<f64> {
    if graph.ranks <= 1 {
        return (algorithm == Algorithm::Ring && protocol == Protocol::Simple).then_some(0.0);
    }
    let (mut latency, mut bandwidth) = latency_and_bandwidth(graph, call.collective, algorithm, protocol)?;
    let bytes = call.size().0;
    if algorithm == Algorithm::Tree && bytes >= 64 {
        let index = (bytes >> 6).ilog2() as usize;
        if index < 23 {
            bandwidth *= TREE_CORRECTION[protocol_index(protocol)][index];
        }
    }
    let per_step = bytes / u64::from(graph.comm_channels * graph.ranks);
    let plateau = algorithm == Algorithm::Ring
        && protocol == Protocol::Simple
        && call.collective == Collective::AllReduce
        && graph.hosts > 1;
    if plateau && per_step >= 64 {
        latency *= if graph.compute_capability >= 80 { 1.4 } else { 1.9 };
    }
    Some(latency + bytes as f64 / (1000.0 * bandwidth))
}

/// Whether NCCL's automatic rule has a protocol on.
pub fn enabled(graph: &Graph, protocol: Protocol) -> bool {
    // LL128 needs 128-byte stores to arrive whole: NVLink inside; outside since Hopper.
    protocol != Protocol::Ll128
        || (graph.compute_capability >= 70 && graph.nvlink && (graph.hosts == 1 || graph.compute_capability >= 90))
}

/// The pair that NCCL picks, ties to the first in its order (tree before ring).
///
/// `algorithms` and `protocols`: what the user left it; empty means all.
pub fn choose(
    graph: &Graph,
    call: &Call,
    algorithms: &[Algorithm],
    protocols: &[Protocol],
) -> Option<(Algorithm, Protocol)> {
    let mut best: Option<(f64, Algorithm, Protocol)> = None;
    for algorithm in [Algorithm::Tree, Algorithm::Ring] {
        for &protocol in Protocol::ALL {
            let on = if protocols.is_empty() { enabled(graph, protocol) } else { protocols.contains(&protocol) };
            if !on || !(algorithms.is_empty() || algorithms.contains(&algorithm)) {
                continue;
            }
            if let Some(time) = predicted_us(graph, call, algorithm, protocol)
                && best.is_none_or(|(t, _, _)| time < t)
            {
                best = Some((time, algorithm, protocol));
            }
        }
    }
    best.map(|(_, a, p)| (a, p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::DataType;
    use crate::units::Bytes;

    fn one_host() -> Graph {
        Graph {
            ranks: 8,
            hosts: 1,
            channels: 12,
            speed_intra: 30.0,
            speed_inter: 30.0,
            nvlink: true,
            compute_capability: 90,
            amd: false,
            comm_channels: 24,
        }
    }

    fn sixteen_hosts() -> Graph {
        Graph {
            ranks: 128,
            hosts: 16,
            channels: 8,
            speed_intra: 48.0,
            speed_inter: 48.0,
            comm_channels: 16,
            ..one_host()
        }
    }

    fn check(
        graph: &Graph,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        size: u64,
        expected: f64,
    ) {
        let call = Call::of_size(collective, graph.ranks, Bytes(size), DataType::Float32);
        let got = predicted_us(graph, &call, algorithm, protocol).unwrap();
        // The expected values are rounded to a nanosecond.
        assert!((got - expected).abs() <= 0.000_501, "{collective} {algorithm} {protocol} {size}: {got} {expected}");
    }

    /// Goal: the restatement gives NCCL 2.30.7's times, by value (computed from its rules).
    #[test]
    fn times_are_those_of_nccl() {
        use Algorithm::{Ring, Tree};
        use Collective::{AllGather, AllReduce, Broadcast};
        use Protocol::{Ll, Ll128, Simple};
        let (one, many) = (one_host(), sixteen_hosts());
        for (algorithm, protocol, small, large) in [
            (Tree, Ll, 17.706, 6174.951),
            (Tree, Ll128, 32.348, 2115.626),
            (Tree, Simple, 65.060, 1865.497),
            (Ring, Ll, 15.813, 3346.646),
            (Ring, Ll128, 40.946, 1458.964),
            (Ring, Simple, 56.319, 1360.895),
        ] {
            check(&one, AllReduce, algorithm, protocol, 64 << 10, small);
            check(&one, AllReduce, algorithm, protocol, 256 << 20, large);
        }
        for (algorithm, protocol, small, large) in [
            (Tree, Ll, 67.798, 31016.614),
            (Tree, Ll128, 100.608, 2821.969),
            (Tree, Simple, 177.292, 2613.178),
            (Ring, Ll, 317.975, 26423.198),
            (Ring, Ll128, 560.043, 2373.894),
            (Ring, Simple, 1190.339, 3053.179),
        ] {
            check(&many, AllReduce, algorithm, protocol, 64 << 10, small);
            check(&many, AllReduce, algorithm, protocol, 256 << 20, large);
        }
        check(&one, AllGather, Ring, Ll128, 16 << 20, 71.624);
        check(&one, Broadcast, Ring, Simple, 1 << 20, 14.713);
        check(&many, AllGather, Ring, Simple, 1 << 30, 3373.557);
        check(&many, Broadcast, Ring, Ll128, 1 << 20, 21.571);
    }
}
