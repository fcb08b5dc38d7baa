//! What a new machine is asked: its topology as the driver sees it, as a file, and schedules that
//! measure one thing each.

use std::collections::BTreeMap;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::ids::{ChannelId, Lane, Rank};
use collcast_sim::nccl::{Limits, Plan};
use collcast_sim::schedule::program::{Buffer, Code, Op, Ref, Template, Var, c};
use collcast_sim::schedule::{Call, Conn, Generator, Schedule, Worker};
use collcast_sim::text::toml_string;
use collcast_sim::units::Bytes;

pub use crate::nvml::Links;

/// A host as the driver sees it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    /// GPUs.
    pub gpus: u32,
    /// Name of the GPUs, such as `NVIDIA H200`.
    pub name: String,
    /// Such as 90 for compute capability 9.0.
    pub arch: i32,
    /// Rate of a GPU's memory in GB/s, from its clock and width.
    pub memory_gbps: f64,
    /// NVLinks of a GPU; of the GPU with the fewest.
    pub links: Option<Links>,
    /// Whether every GPU reaches the memory of all others.
    pub peers: bool,
    /// Generation and lanes of the GPUs' PCIe links.
    pub pcie: Option<(u32, u32)>,
    /// Whether the driver offers NVLink multicast; asked for, not used.
    pub multicast: bool,
    /// Version of NCCL, where it is there.
    pub nccl: Option<String>,
    /// Vendor and number of the CPUs.
    pub cpu: (String, u32),
}

/// Version of NVLink and data rate of one link in one direction in GB/s, by the number that NVML has
/// for it (`nvmlNvlinkVersion_t` of `nvml.h`; 6 was seen on H200). Rates: NVIDIA's white papers of P100,
/// V100, A100, H100 and B200: 160, 300, 600, 900 and 1800 GB/s both directions over 4, 6, 12, 18 and 18
/// links.
fn link(version: u32) -> Option<(&'static str, u32)> {
    match version {
        1 => Some(("1.0", 20)),
        2 => Some(("2.0", 25)),
        3 => Some(("2.2", 25)),
        4 => Some(("3.0", 25)),
        5 => Some(("3.1", 25)),
        6 => Some(("4.0", 25)),
        7 => Some(("5.0", 50)),
        _ => None,
    }
}

impl Seen {
    /// The host as a topology file. What the driver does not tell is assumed, and the file says so.
    pub fn toml(&self, name: &str, date: &str) -> String {
        let kind = self.name.trim_start_matches("NVIDIA ").replace(' ', "-");
        let nccl = self.nccl.as_deref().map_or_else(String::new, |nccl| format!("nccl = {}\n", toml_string(nccl)));
        let links = self.links.filter(|_| self.peers && self.gpus > 1);
        let known = links.and_then(|links| Some((links, link(links.version)?)));
        let nvlink = match (known, links) {
            (Some((Links { count, switched, .. }, (version, rate))), _) => format!(
                "# NVML: {count} links of NVLink {version}; the rate is that of the version.\n\
                 nvlink = {{ kind = \"{}\", links_per_gpu = {count}, rate_per_link = \"{rate} GB/s\" }}",
                if switched { "nvswitch" } else { "mesh" },
            ),
            (None, Some(Links { count, version, .. })) => format!(
                "# NVML: {count} links of a version, number {version}, whose rate is not known here: write it in.\n\
                 nvlink = {{ kind = \"none\" }}"
            ),
            (None, None) => "# NVML names no NVLink, or GPUs do not reach each other.\n\
                             nvlink = { kind = \"none\" }"
                .to_owned(),
        };
        let ((generation, lanes), (cpu, sockets)) = (self.pcie.unwrap_or((4, 16)), &self.cpu);
        format!(
            r#"# As the driver sees this machine; written by `collcast probe` on {date}.
schema = "collcast/topology/1"
name = {}
description = {}

[software]
{nccl}multicast = {}

[[hosts]]
# Memory: clock and width that the driver names.
gpus = {{ count = {}, kind = {}, compute_capability = {}, memory_rate = "{:.0} GB/s" }}
{nvlink}
# {}. PCIe switches: assumed, none. `xml = "FILE"` with NCCL_TOPO_DUMP_FILE's is better.
pcie = {{ generation = {generation}, lanes = {lanes}, switches_per_socket = 0, sockets = {}, cpu = {} }}
# No NIC is probed: this is for one host. Add [hosts.nics] and the fabric for more.

[fabric]
kind = "single-switch"
routing = "adaptive"
"#,
            toml_string(name),
            toml_string(&format!("{} x {kind}, probed", self.gpus)),
            self.multicast,
            self.gpus,
            toml_string(&kind),
            self.arch,
            self.memory_gbps,
            if self.pcie.is_some() { "NVML" } else { "Assumed: the driver does not tell" },
            (*sockets).max(1),
            toml_string(cpu),
        )
    }
}

/// Vendor and number of the CPUs, as Linux tells.
pub(crate) fn cpus() -> (String, u32) {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let values = |key: &'static str| {
        text.lines().filter_map(move |l| l.split_once(':').filter(|l| l.0.trim() == key).map(|l| l.1.trim().to_owned()))
    };
    let packages: std::collections::BTreeSet<String> = values("physical id").collect();
    let vendor = values("vendor_id")
        .next()
        .unwrap_or_else(|| if cfg!(target_arch = "aarch64") { "ARM" } else { "GenuineIntel" }.to_owned());
    (vendor, packages.len().max(1) as u32)
}

/// Two ranks that send their buffers to and fro, one channel, `rounds` times.
pub fn ping_pong(protocol: Protocol, bytes: u64, rounds: u32) -> Schedule {
    let call = Call::of_size(Collective::SendRecv, 2, Bytes(bytes.max(4)), DataType::Float32);
    let limits = Limits { channels: 1, p2p_channels: (1, 1), exact_channels: true, ..Limits::default() };
    let mut plan = Plan::new(&call, Algorithm::Ring, protocol, &limits);
    (plan.channels, plan.slices, plan.chunk) = (1, 1, call.count.max(1));
    let count = i64::try_from(call.count).unwrap_or(i64::MAX);
    let place = |buffer| Some(Ref { buffer, offset: c(0) });
    let one = || std::iter::once(c(0)).collect();
    let op = Op { count: c(count), span: c(count), ..Op::default() };
    let send = Code::Op(Op { src: place(Buffer::Input), send: one(), ..op.clone() });
    let recv = Code::Op(Op { dst: place(Buffer::Output), recv: one(), ..op });
    let rounds = |body| Template::new(&[Code::For(Var(0), c(0), c(i64::from(rounds)), body)]);
    let templates = vec![rounds(vec![send.clone(), recv.clone()]), rounds(vec![recv, send])];
    Schedule::from_parts(call, plan, 1, templates, Box::new(Pair { threads: plan.threads }))
}

#[derive(Debug)]
struct Pair {
    threads: u32,
}

impl Generator for Pair {
    fn worker(&self, rank: Rank, channel: ChannelId, _: Lane) -> Option<Worker> {
        let peer = Rank(1 - rank.0.min(1));
        Some(Worker {
            template: rank.index(),
            parameters: vec![],
            recv: vec![Conn::pair(peer, rank, channel, 0)],
            send: vec![Conn::pair(rank, peer, channel, 0)],
            tokens: vec![],
            threads: self.threads,
            others: 0,
        })
    }
}

/// Which GPUs copy to which at once, to see what they share: names and pairs.
pub fn patterns(gpus: u32) -> BTreeMap<String, Vec<(u32, u32)>> {
    let mut all = BTreeMap::new();
    if gpus < 2 {
        return all;
    }
    all.insert("both_ways".to_owned(), vec![(0, 1), (1, 0)]);
    for others in 2..gpus.min(4) {
        all.insert(format!("fan_out_{others}"), (1..=others).map(|peer| (0, peer)).collect());
        all.insert(format!("fan_in_{others}"), (1..=others).map(|peer| (peer, 0)).collect());
    }
    all.insert("ring".to_owned(), (0..gpus).map(|gpu| (gpu, (gpu + 1) % gpus)).collect());
    all.insert(
        "all_pairs".to_owned(),
        (0..gpus).flat_map(|a| (0..gpus).map(move |b| (a, b))).filter(|(a, b)| a != b).collect(),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{CallToRun, Effort, Executor};
    use crate::host::Host;
    use collcast_sim::collective::Launch;
    use collcast_sim::schedule::verify::verify;
    use collcast_sim::topology::LinkKind;

    /// Goal: a probed machine is one that our own reader takes, with the GPUs and links it has.
    #[test]
    fn a_probed_machine_is_read_back() {
        let h200 = Seen {
            gpus: 4,
            name: "NVIDIA H200".to_owned(),
            arch: 90,
            memory_gbps: 4917.0,
            links: Some(Links { count: 18, version: 6, switched: true }),
            peers: true,
            pcie: Some((5, 16)),
            multicast: false,
            nccl: Some("2.28.9".to_owned()),
            cpu: ("GenuineIntel".to_owned(), 1),
        };
        let bare = Seen { gpus: 2, name: "NVIDIA L40S".to_owned(), arch: 89, memory_gbps: 864.0, ..h200.clone() };
        let bare = Seen { links: None, pcie: None, nccl: None, cpu: (String::new(), 0), ..bare };
        let odd = Seen { name: "NVIDIA \"odd\" card".to_owned(), ..bare.clone() };
        for (seen, egress) in [(h200, 18 * 25_000_000_000), (bare, 0), (odd, 0)] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("topology.toml");
            std::fs::write(&path, seen.toml("probed", "2026-11-21")).unwrap();
            let topology = collcast_topologies::load_any(path.to_str().unwrap(), None, None).unwrap();
            assert_eq!((topology.ranks(), topology.hosts().len()), (seen.gpus, 1));
            let rate = topology.total_rate(topology.gpu_of(Rank(0)), LinkKind::Nvlink);
            assert_eq!(rate, egress, "{}", seen.name);
        }
    }

    /// Goal: a ping-pong is a proved schedule whose result is that of send/recv, in any number of
    /// rounds.
    #[test]
    fn ping_pongs_are_proved_and_exact() {
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            for (bytes, rounds) in [(4, 1), (8, 3), (4096, 20)] {
                let schedule = ping_pong(protocol, bytes, rounds);
                verify(&schedule).unwrap();
                let case = CallToRun { call: &schedule.call, schedule: Some(&schedule), launch: Launch::Threads };
                let effort = Effort { batches: 3, budget: std::time::Duration::from_millis(1), ..Effort::default() };
                assert_eq!(Host.run(&case, &effort).unwrap().checked, 2 * bytes / 4);
            }
        }
    }
}
