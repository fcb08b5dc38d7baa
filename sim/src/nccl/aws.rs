//! AWS instances as aws-ofi-nccl knows them: what it sets, the latency it reports and its region tuner.
//!
//! For each platform, number of ranks a host and collective the tuner has an ordered list of
//! polygons in the plane of (log2 bytes, log2 ranks); the first that contains a call forces its
//! algorithm and protocol.
//!
//! Source: aws-ofi-nccl master 2daf7d30 (2026-08-21), `src/tuner`, `src/platform-aws.*`; the
//! polygons are in `data/aws-ofi-nccl-regions.txt`.

use std::sync::LazyLock;

use super::selection::{FUNCTIONS, Listed};
use super::version::Version;
use crate::collective::{Algorithm, Collective, Protocol};
use crate::ids::Rank;
use crate::topology::{LinkKind, Topology};

/// Name of the plugin in topology files.
pub const PLUGIN: &str = "aws-ofi-nccl";

/// An instance type that the plugin has a tuner for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    /// p5.48xlarge, p5e.48xlarge: Hopper, 100 Gb/s cards.
    P5,
    /// p5en.48xlarge: Hopper, 200 Gb/s cards.
    P5en,
    /// p6-b200.48xlarge.
    P6B200,
    /// p6-b300.48xlarge.
    P6B300,
}

impl Platform {
    /// As the plugin's tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::P5 => "p5/p5e",
            Self::P5en => "p5en",
            Self::P6B200 => "p6-b200",
            Self::P6B300 => "p6-b300",
        }
    }

    /// The platform of a machine that runs the plugin, by its GPUs and cards.
    pub fn of(topology: &Topology) -> Option<Self> {
        // P6e has GPUs of P6 beside Grace, and no regions.
        let grace = topology.gpu(topology.gpu_of(Rank(0))).is_some_and(|gpu| gpu.family().starts_with("GB"));
        if topology.software.plugin.as_deref() != Some(PLUGIN) || grace {
            return None;
        }
        match (topology.compute_capability(), card_rate(topology)?) {
            (90..100, ..=150) => Some(Self::P5),
            (90..100, _) => Some(Self::P5en),
            (100..103, _) => Some(Self::P6B200),
            (103.., _) => Some(Self::P6B300),
            _ => None,
        }
    }
}

/// What the plugin sets for collectives of every instance since p4d, from [`FIFOS_SINCE`] on.
const FIFOS: [(&str, &str); 2] = [("NCCL_BUFFSIZE", "8388608"), ("NCCL_P2P_NET_CHUNKSIZE", "524288")];
/// The NCCL that was current when the plugin began to set them (aws-ofi-nccl pull request 896, merged in May 2025, released in
/// 1.16; the log of 1.11 on p4d in its issue 715 has none). Who has an older NCCL is taken to have an older plugin too.
const FIFOS_SINCE: u16 = 26;
/// Where EFA does not keep the order of bytes, or does not reach GPU memory (`platform_config_endpoint`).
const IN_NO_ORDER: (&str, &str) = ("NCCL_PROTO", "Simple");
const P4D: [(&str, &str); 3] = [FIFOS[0], FIFOS[1], IN_NO_ORDER];
const P5: [(&str, &str); 5] = [
    FIFOS[0],
    FIFOS[1],
    ("NCCL_NVLSTREE_MAX_CHUNKSIZE", "524288"),
    ("NCCL_NVLS_CHUNKSIZE", "524288"),
    ("NCCL_NET_FORCE_FLUSH", "0"),
];

/// What the plugin sets before NCCL of a version reads it, where the user does not (`platform_data_map`): p4d and p4de, p5
/// and later, and what it has no settings for, which keeps no order. Graphics cards since Ada are not in its table.
pub(super) fn settings(
    topology: &Topology,
    version: Version,
) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
    let runs = topology.software.plugin.as_deref() == Some(PLUGIN) && card_rate(topology).is_some();
    let all: &[_] = match topology.compute_capability() {
        _ if !runs => &[],
        80 => &P4D,
        90..110 => &P5,
        ..80 | 81..90 => std::slice::from_ref(&IN_NO_ORDER),
        _ => &[],
    };
    all.iter().copied().filter(move |pair| version.since(FIFOS_SINCE) || !FIFOS.contains(pair))
}

/// Microseconds that the plugin reports as the latency of a card (`platform_data_map`): 150 of p3dn, 35 of p5en and p6,
/// which have cards of 200 Gb/s and more, and 75 of p4d, p5, g5 and whatever it does not know.
pub(super) fn latency_us(capability: u32, gb_per_s: f64) -> f32 {
    match capability {
        70 => 150.0,
        _ if gb_per_s < 25.0 => 75.0,
        _ => 35.0,
    }
}

/// Rate of the first EFA card in Gb/s.
fn card_rate(topology: &Topology) -> Option<u64> {
    let host = &topology.hosts()[topology.host_of(Rank(0)).index()];
    let mut cards = host.nics.iter().filter_map(|&nic| topology.nic(nic)).filter(|nic| nic.kind == LinkKind::Efa);
    Some(cards.next()?.rate.get() * 8 / 1_000_000_000)
}

/// A polygon of the tuner.
#[derive(Clone, PartialEq, Debug)]
struct Region {
    platform: &'static str,
    ranks_per_host: u32,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    /// (log2 bytes, log2 ranks)
    vertices: Vec<Point>,
}

type Point = (f64, f64);

/// Largest size and rank count that the tuner looks at.
const BYTES_MAX: f64 = (100_u64 << 30) as f64;
const RANKS_MAX: f64 = 1_048_576.0;
/// Distance, in powers of two, within which a point is on an edge.
const ON_EDGE: f64 = 1e-12;

const DATA: &str = include_str!("data/aws-ofi-nccl-regions.txt");

static REGIONS: LazyLock<Vec<Region>> = LazyLock::new(|| data_lines().filter_map(region).collect());

fn data_lines() -> impl Iterator<Item = &'static str> {
    DATA.lines().filter(|line| !line.starts_with('#'))
}

fn region(line: &'static str) -> Option<Region> {
    let fields: Vec<&'static str> = line.split(" | ").collect();
    let [platform, per_host, collective, _, pair, _, vertices] = fields.as_slice() else { return None };
    let (algorithm, protocol) = pair.split_once('/')?;
    Some(Region {
        platform,
        ranks_per_host: per_host.parse().ok()?,
        collective: named(&FUNCTIONS, collective)?,
        algorithm: named(Algorithm::NAMES, algorithm)?,
        protocol: named(Protocol::NAMES, protocol)?,
        vertices: vertices.split_whitespace().map(vertex).collect::<Option<_>>()?,
    })
}

fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    names.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
}

/// `(bytes,ranks)`, `E[a->b]`, or a pair of which one part is that of an `E`.
fn vertex(text: &str) -> Option<Point> {
    if text.starts_with("E[") {
        return extended(text);
    }
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let mut depth = 0;
    let comma = inner.find(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    })?;
    Some((coordinate(&inner[..comma])?, coordinate(&inner[comma + 1..])?))
}

/// The logarithm of a number, `XMAX`, `YMAX`, or one part of an `E`.
fn coordinate(text: &str) -> Option<f64> {
    if let Some(line) = text.strip_suffix(".x") {
        return Some(extended(line)?.0);
    }
    if let Some(line) = text.strip_suffix(".y") {
        return Some(extended(line)?.1);
    }
    let value = match text {
        "XMAX" => BYTES_MAX,
        "YMAX" => RANKS_MAX,
        number => number.parse().ok()?,
    };
    Some(log2(value))
}

/// The plugin takes 0 as a millionth before the logarithm.
fn log2(value: f64) -> f64 {
    value.max(1e-6).log2()
}

/// `E[a->b]`: where the line from `a` through `b` leaves the plane, at the largest size or the
/// largest number of ranks.
fn extended(text: &str) -> Option<Point> {
    let (a, b) = text.strip_prefix("E[")?.strip_suffix(']')?.split_once("->")?;
    let (a, b) = (vertex(a)?, vertex(b)?);
    let (dx, dy) = (b.0 - a.0, b.1 - a.1);
    let (most_x, most_y) = (log2(BYTES_MAX), log2(RANKS_MAX));
    let y_at_most_x = b.1 + dy / dx * (most_x - b.0);
    Some(if dx > 0.0 && y_at_most_x <= most_y {
        (most_x, y_at_most_x)
    } else {
        (b.0 + dx / dy * (most_y - b.1), most_y)
    })
}

/// Whether a polygon contains a point; its edges belong to it.
fn contains(polygon: &[Point], (x, y): Point) -> bool {
    let mut inside = false;
    for (index, &(x1, y1)) in polygon.iter().enumerate() {
        let (x2, y2) = polygon[(index + 1) % polygon.len()];
        let (dx, dy) = (x2 - x1, y2 - y1);
        let length = dx * dx + dy * dy;
        let along = if length > 0.0 { (((x - x1) * dx + (y - y1) * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
        if (x - x1 - along * dx).hypot(y - y1 - along * dy) <= ON_EDGE {
            return true;
        }
        if (y1 > y) != (y2 > y) && x < x1 + (y - y1) / dy * dx {
            inside = !inside;
        }
    }
    inside
}

/// The pairs that the tuner wants for a call, best first.
pub(super) fn wanted(
    platform: Platform,
    hosts: u32,
    ranks: u32,
    collective: Collective,
    bytes: u64,
) -> impl Iterator<Item = (Algorithm, Protocol)> {
    // One and two hosts are left to NCCL, and so is an uneven number of ranks a host.
    let per_host = if hosts > 2 && ranks.is_multiple_of(hosts) { ranks / hosts } else { 0 };
    let point = (log2(bytes as f64), log2(f64::from(ranks)));
    REGIONS
        .iter()
        .filter(move |r| (r.platform, r.ranks_per_host, r.collective) == (platform.name(), per_host, collective))
        .filter(move |r| contains(&r.vertices, point))
        .map(|r| (r.algorithm, r.protocol))
}

/// Channels that the tuner asks for together with a pair.
pub(super) fn channels(
    platform: Platform,
    hosts: u32,
    ranks: u32,
    pair: (Algorithm, Protocol),
    bytes: u64,
) -> Option<u32> {
    if platform != Platform::P6B200 {
        return None;
    }
    match (pair, ranks / hosts.max(1)) {
        ((Algorithm::Tree, Protocol::Ll128), 8) if (4 << 20..=32 << 20).contains(&bytes) => {
            [16, 24, 32].into_iter().max_by_key(|&channels| (tree_ll128_chunk(bytes, channels, hosts, 8), channels))
        }
        ((Algorithm::Pat, _), 1) if bytes <= 32 << 20 => match bytes.div_ceil(64 << 10).div_ceil(u64::from(hosts)) {
            0 | 1 => Some(1),
            2 => Some(2),
            _ => None,
        },
        _ => None,
    }
}

/// Bytes of a chunk of tree/LL128 on so many channels (NCCL `src/enqueue.cc`).
fn tree_ll128_chunk(bytes: u64, channels: u32, hosts: u32, ranks_per_host: u32) -> u64 {
    let steps = 1.0 + f64::from(hosts.ilog2()) + 0.1 * f64::from(ranks_per_host);
    let loops = |chunk: u64| bytes as f64 / (f64::from(channels) * chunk as f64);
    let mut chunk = 576_000;
    for (share, least) in [(64.0, 128 << 10), (16.0, 32 << 10)] {
        while loops(chunk) < steps * share / f64::from(ranks_per_host) && chunk > least {
            chunk /= 2;
        }
    }
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(platform: Platform, per_host: u32, hosts: u32, collective: Collective, bytes: u64) -> Option<String> {
        let pair = wanted(platform, hosts, hosts * per_host, collective, bytes).next();
        pair.map(|(a, p)| format!("{a}/{p}"))
    }

    /// Goal: every line of the data is understood, with as many vertices as it says.
    #[test]
    fn every_region_is_read() {
        assert_eq!(REGIONS.len(), data_lines().count());
        assert_eq!(REGIONS.len(), 88);
        for (line, region) in data_lines().zip(REGIONS.iter()) {
            let count = line.split(" | ").nth(5).unwrap();
            assert_eq!(format!("{0}/{0}", region.vertices.len()), count, "{line}");
            assert!(region.vertices.iter().all(|v| v.0.is_finite() && v.1.is_finite()), "{line}");
        }
    }

    /// Goal: regions hold inside, on their edges and not beyond, on the corners of the tables.
    #[test]
    fn regions_hold_up_to_their_edges() {
        use Collective::{AllGather, AllReduce, ReduceScatter};
        use Platform::{P5, P5en, P6B200};
        for (platform, per_host, hosts, collective, bytes, expected) in [
            // p5: tree/LL128 up to the corner (31457280, 16), then NVLS tree on the line of 16
            // ranks; hosts = 2 is NCCL's.
            (P5, 8, 4, AllReduce, 1024, Some("tree/ll128")),
            (P5, 8, 4, AllReduce, 37_748_736, Some("tree/ll128")),
            (P5, 8, 4, AllReduce, 37_748_737, Some("ring/ll128")),
            (P5, 8, 2, AllReduce, 1024, None),
            (P5, 8, 16, AllReduce, 301_989_888, Some("tree/ll128")),
            (P5, 8, 16, AllReduce, 301_989_889, Some("ring/ll128")),
            (P5, 8, 16, AllReduce, 2_147_483_648, Some("ring/ll128")),
            (P5, 8, 16, AllReduce, 2_147_483_649, Some("nvls_tree/simple")),
            (P5, 8, 16, AllReduce, 6_442_450_944, Some("nvls_tree/simple")),
            (P5, 8, 16, AllReduce, 6_500_000_000, Some("ring/simple")),
            (P5, 8, 16, AllReduce, 200 << 30, None),
            (P5, 8, 16, AllGather, 1 << 20, None),
            (P5, 1, 4, AllGather, 4_194_304, None),
            (P5, 1, 1024, ReduceScatter, 4_294_967_296, Some("ring/simple")),
            (P5, 2, 4, AllReduce, 1_051_648, Some("tree/ll128")),
            (P5, 4, 4, AllReduce, 1 << 20, None),
            // p5en: the vertical edge of tree/LL at 196608 bytes.
            (P5en, 8, 8, AllReduce, 196_608, Some("tree/ll")),
            (P5en, 8, 8, AllReduce, 196_609, Some("tree/ll128")),
            (P5en, 8, 8, AllReduce, 0, Some("tree/ll")),
            (P5en, 8, 64, AllReduce, 100 << 30, Some("ring/simple")),
            (P5en, 8, 16, AllGather, 4_718_592, Some("ring/ll")),
            (P5en, 8, 16, AllGather, 4_718_593, Some("ring/ll128")),
            (P5en, 1, 8, AllGather, 8_388_608, Some("pat/simple")),
            (P5en, 1, 8, AllGather, 8_388_700, Some("ring/ll128")),
            (P5en, 2, 8, AllReduce, 1 << 20, None),
            // p6-b200: the vertical edge of tree/LL at 393216 bytes, up to the most ranks.
            (P6B200, 8, 8, AllReduce, 393_216, Some("tree/ll")),
            (P6B200, 8, 8, AllReduce, 393_217, Some("tree/ll128")),
            (P6B200, 8, 131_072, AllReduce, 393_216, Some("tree/ll")),
            (P6B200, 8, 4, AllReduce, 435_159_040, Some("nvls_tree/simple")),
            (P6B200, 8, 4, AllReduce, 435_160_000, Some("ring/simple")),
            (P6B200, 8, 8, AllGather, 2_621_440, Some("ring/ll")),
            (P6B200, 8, 8, AllGather, 2_621_441, Some("ring/ll128")),
            (P6B200, 1, 4, AllGather, 65_536, Some("ring/ll")),
            (P6B200, 1, 4, AllGather, 65_537, Some("pat/simple")),
            (P6B200, 1, 16, ReduceScatter, 1 << 20, Some("pat/simple")),
        ] {
            let got = first(platform, per_host, hosts, collective, bytes);
            assert_eq!(got.as_deref(), expected, "{platform:?} {per_host} x {hosts} {collective} {bytes}");
        }
    }

    /// Goal: latencies are those of the plugin's table, and 75 us of what it does not know, as g4dn.
    #[test]
    fn latencies_go_by_the_platform() {
        for (capability, gb_per_s, us) in [
            (70, 12.5, 150.0),
            (75, 12.5, 75.0),
            (80, 12.5, 75.0),
            (90, 12.5, 75.0),
            (90, 25.0, 35.0),
            (100, 50.0, 35.0),
        ] {
            assert_eq!(latency_us(capability, gb_per_s), us, "{capability} {gb_per_s}");
        }
    }

    /// Goal: lines are extended to the border that they meet first.
    #[test]
    fn lines_are_extended_to_the_border() {
        let near = |a: Point, b: Point| (a.0 - b.0).abs() < 1e-12 && (a.1 - b.1).abs() < 1e-12;
        let most_x = (100.0_f64 * 1024.0 * 1024.0 * 1024.0).log2();
        assert!(near(vertex("E[(1024,2)->(1024,4)]").unwrap(), (10.0, 20.0)));
        assert!(near(vertex("E[(1024,2)->(2048,4)]").unwrap(), (29.0, 20.0)));
        assert!(near(vertex("E[(1024,2)->(1048576,4)]").unwrap(), (most_x, 2.0 + (most_x - 20.0) / 10.0)));
        assert!(near(vertex("(0,E[(1024,2)->(1024,4)].y)").unwrap(), (1e-6_f64.log2(), 20.0)));
        assert!(near(vertex("(XMAX,17)").unwrap(), (most_x, 17.0_f64.log2())));
        assert!(contains(&[(0.0, 0.0), (1.0, 0.0), (0.0, 0.0)], (0.5, 0.0)));
        assert!(!contains(&[(0.0, 0.0), (1.0, 0.0), (0.0, 0.0)], (0.5, 0.1)));
    }

    /// Goal: the channels that the tuner asks for on p6-b200.
    #[test]
    fn channels_are_asked_for_on_p6() {
        let pat = (Algorithm::Pat, Protocol::Simple);
        for (bytes, expected) in [(1 << 20, Some(1)), ((1 << 20) + 1, Some(2)), (2 << 20, Some(2)), (3 << 20, None)] {
            assert_eq!(channels(Platform::P6B200, 16, 16, pat, bytes), expected, "{bytes}");
        }
        let tree = (Algorithm::Tree, Protocol::Ll128);
        assert_eq!(channels(Platform::P6B200, 8, 64, tree, 1 << 20), None);
        // 4 MiB on 8 hosts: 4.8 * 2 = 9.6 loops are wanted of the smallest chunk, 35156 B at 3
        // halvings and 18000 at 5; 16 channels keep the largest.
        let best = channels(Platform::P6B200, 8, 64, tree, 4 << 20).unwrap();
        for other in [16, 24, 32] {
            assert!(tree_ll128_chunk(4 << 20, best, 8, 8) >= tree_ll128_chunk(4 << 20, other, 8, 8));
        }
        assert_eq!(channels(Platform::P5en, 8, 64, tree, 8 << 20), None);
    }
}
