//! What a log says of the ways that data takes: libfabric's provider, GPUDirect, NVLink domains, multicast, the ring.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::nccl::PathClass;
use collcast_sim::nccl::graphs::Graphs;

use super::found::Found;
use super::machine::Machine;
use super::setting::Scope;

/// Something with the line that first said it.
pub(super) type At<T> = Option<(T, u64)>;

/// Keeps what was said first.
pub(super) fn first<T>(at: &mut At<T>, value: T, line: u64) {
    at.get_or_insert((value, line));
}

/// Channels over the network that are kept to be looked at once the size of a host is known.
const CHANNELS_MAX: usize = 4096;
/// What the ring of a log may move less than that of the search: sums of whole channels differ by more.
const RING_LEAST: f64 = 0.95;

/// What `comm ... nRanks 16 nNodes 2 localRanks 8` says.
type Shape = (u32, u32, u32);

/// What a log says of ways.
#[derive(Default)]
pub(super) struct Paths {
    /// The provider of libfabric that aws-ofi-nccl took first.
    provider: At<String>,
    /// Its NICs by host.
    pub(super) fabric_nics: BTreeMap<String, (usize, u64)>,
    /// `Using transport protocol SENDRECV`.
    sendrecv: At<()>,
    /// Why aws-ofi-nccl forces Simple.
    forced_simple: At<String>,
    /// By host and GPU: whether a NIC reaches it by GPUDirect, and else how NCCL put it.
    gpus: BTreeMap<(String, String), (bool, String, u64)>,
    /// By host: whether any NIC has GPUDirect.
    hcas: BTreeMap<String, (bool, u64)>,
    /// NVLink domains and cliques that are up, and the hosts that say so.
    domains: BTreeSet<(String, String)>,
    in_domains: BTreeSet<String>,
    /// A communicator of several nodes without MNNVL, and whether one has it.
    mnnvl_off: At<()>,
    mnnvl_on: bool,
    shapes: BTreeSet<Shape>,
    no_multicast: At<()>,
    /// The slowest ring that was found: channels, GB/s inside hosts and between them, the class of paths between.
    ring: At<Ring>,
    /// Channels over the network: ranks with their devices.
    over_net: Vec<([(u32, u32); 2], u64)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Ring {
    channels: u32,
    intra: f64,
    inter: f64,
    between: Option<PathClass>,
}

/// The word behind a name.
fn after<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()
}

fn number<T: std::str::FromStr>(text: &str, name: &str) -> Option<T> {
    after(text, name)?.trim_end_matches(',').parse().ok()
}

impl Paths {
    /// Takes what a line of NCCL says.
    pub(super) fn line(&mut self, line: u64, host: &str, text: &str) {
        if let Some(said) = text.strip_prefix("NET/OFI ") {
            self.fabric(line, host, said);
        } else if let Some((_, said)) = text.split_once("GPU Direct RDMA ").filter(|_| !text.starts_with("NET/Socket"))
        {
            self.gpudirect(line, host, said);
        } else if text.starts_with("MNNVL ") && text.contains(" fabric UUID ") {
            let [uuid, clique] = ["UUID", "cliqueId"].map(|name| after(text, name).unwrap_or_default().to_owned());
            // Hosts that are no part of a domain say `0.0`.
            if after(text, "state") == Some("3") && !uuid.split('.').all(|part| part.trim_matches('0').is_empty()) {
                self.domains.insert((uuid, clique));
                self.in_domains.insert(host.to_owned());
            }
        } else if text.starts_with("comm ") && text.contains(" nRanks ") {
            let [ranks, nodes, local] = ["nRanks", "nNodes", "localRanks"].map(|name| number(text, name).unwrap_or(0));
            self.shapes.insert((ranks, nodes, local));
            match after(text, "MNNVL") {
                Some("0") if nodes > 1 => first(&mut self.mnnvl_off, (), line),
                Some("1") => self.mnnvl_on = true,
                _ => {}
            }
        } else if text.starts_with("NVLS multicast support is not available") {
            first(&mut self.no_multicast, (), line);
        } else if text.starts_with("Pattern 4,") {
            self.ring(line, text);
        }
    }

    /// What aws-ofi-nccl says: `Selected provider is efa, fabric is efa-direct (found 32 nics)`.
    fn fabric(&mut self, line: u64, host: &str, said: &str) {
        if said.starts_with("Using transport protocol SENDRECV") {
            first(&mut self.sendrecv, (), line);
        } else if let Some(why) = said.strip_prefix("Need to force simple protocol: ") {
            first(&mut self.forced_simple, why.trim().chars().take(80).collect(), line);
        } else if let Some((_, rest)) = said.split_once("rovider is ").filter(|_| said.starts_with("Selected ")) {
            let end = rest.find([',', '(', ' ']).unwrap_or(rest.len());
            first(&mut self.provider, rest[..end].chars().take(40).collect(), line);
            let nics = rest.split_once("(found ").and_then(|(_, count)| count.split_whitespace().next()?.parse().ok());
            if let Some(count) = nics.filter(|_| !is_tcp(&rest[..end])) {
                self.fabric_nics.entry(host.to_owned()).or_insert((count, line));
            }
        }
    }

    /// `Disabled for GPU 0 / HCA 0 (distance 9 > 5)`, `Enabled for HCA 0 'mlx5_0'`, `(DMABUF) enabled for HCA 0`.
    fn gpudirect(&mut self, line: u64, host: &str, said: &str) {
        let words: Vec<&str> = said.split_whitespace().skip_while(|word| word.starts_with('(')).collect();
        let [state, "for", what, name, ..] = words[..] else { return };
        let on = match state.to_lowercase().as_str() {
            "enabled" => true,
            "disabled" => false,
            _ => return,
        };
        match what {
            "GPU" => {
                let why = said.split_once('(').map_or("", |(_, why)| why.split(')').next().unwrap_or_default());
                let why = why.chars().take(40).collect();
                self.gpus.entry((host.to_owned(), name.to_owned())).or_insert((on, why, line)).0 |= on;
            }
            "HCA" => self.hcas.entry(host.to_owned()).or_insert((on, line)).0 |= on,
            _ => {}
        }
    }

    /// `Pattern 4, crossNic 0, nChannels 8, bw 24.000000/24.000000, type NVL/PHB, sameChannels 1`.
    fn ring(&mut self, line: u64, text: &str) {
        let pair = |name| after(text, name)?.trim_end_matches(',').split_once('/');
        let parsed = || {
            let (intra, inter) = pair("bw")?;
            let (_, between) = pair("type")?;
            let between = PathClass::ALL.iter().find(|class| class.name() == between).copied();
            let channels = number(text, "nChannels")?;
            Some(Ring { channels, intra: intra.parse().ok()?, inter: inter.parse().ok()?, between })
        };
        let Some(ring) = parsed() else { return };
        let rate = |ring: &Ring| f64::from(ring.channels) * ring.inter;
        if self.ring.is_none_or(|(known, _)| rate(&ring) < rate(&known)) {
            self.ring = Some((ring, line));
        }
    }

    /// A channel over the network: `Channel 00/0 : 0[0] -> 8[0] [send]`. Older versions have bus numbers in brackets.
    pub(super) fn channel(&mut self, line: u64, what: &str) {
        let rank = |text: &str| {
            let (rank, device) = text.trim().split_once('[')?;
            Some((rank.trim().parse().ok()?, device.split(']').next()?.parse().ok()?))
        };
        let ends = what.split_once(" : ").and_then(|(_, ends)| ends.split_once(" -> "));
        if let Some(ends) = ends.and_then(|(a, b)| Some([rank(a)?, rank(b)?]))
            && self.over_net.len() < CHANNELS_MAX
        {
            self.over_net.push((ends, line));
        }
    }

    /// How many kinds of communicators the log names.
    pub(super) fn communicators(&self) -> usize {
        self.shapes.len()
    }

    /// The provider of libfabric, where that is TCP.
    pub(super) fn tcp(&self) -> Option<(&str, u64)> {
        self.provider.as_ref().map(|(name, line)| (name.as_str(), *line)).filter(|(name, _)| is_tcp(name))
    }

    /// GPUs that no NIC reaches by GPUDirect, or hosts of which no NIC does, in words.
    fn without_gpudirect(&self) -> At<String> {
        let off: Vec<_> = self.gpus.values().filter(|(on, ..)| !on).collect();
        if let Some((_, why, line)) = off.iter().min_by_key(|(.., line)| *line) {
            let what = format!("NCCL disabled GPUDirect RDMA for {} of {} GPUs: {why}", off.len(), self.gpus.len());
            return Some((what, *line));
        }
        let (host, (_, line)) = self.hcas.iter().filter(|(_, (on, _))| !on).min_by_key(|(_, (_, line))| *line)?;
        Some((format!("NCCL disabled GPUDirect RDMA for all RDMA devices of {host}"), *line))
    }

    /// What needs no search of ours; `by_channels` says whether channels without GPUDirect are reported already.
    pub(super) fn report(&self, machine: Option<&Machine>, scope: &Scope, by_channels: bool, found: &mut Found<'_>) {
        let gpudirect = machine.is_none_or(Machine::has_gpudirect);
        if let Some((what, line)) = self.without_gpudirect().filter(|_| gpudirect && !by_channels) {
            found.add("log-no-gdr", Some(line), what);
        }
        if let Some((what, line)) = self.inside() {
            found.add("log-net-inside", Some(line), what);
        }
        let Some(machine) = machine else {
            let told = scope.settings.iter().any(|s| s.name == "NCCL_MNNVL_ENABLE" && s.value == "0");
            // Hosts of other domains have none in common.
            if let Some((_, line)) = self.mnnvl_off.filter(|_| !self.mnnvl_on && !told && self.domains.len() == 1) {
                let what = "MNNVL is 0, and the log names one NVLink domain that is up";
                found.add("log-no-mnnvl-perhaps", Some(line), what);
            }
            return;
        };
        // TCP, a finding of its own, explains the rest.
        if !machine.has("efa") || self.tcp().is_some() {
            return;
        }
        if let Some((_, line)) = self.sendrecv.filter(|_| machine.nics_a_gpu() > 1) {
            let what = format!("aws-ofi-nccl takes SENDRECV, and a GPU has {} NICs", machine.nics_a_gpu());
            found.add("log-sendrecv", Some(line), what);
        }
        if let Some((why, line)) = self.forced_simple.as_ref().filter(|_| gpudirect) {
            found.add("log-forced-simple", Some(*line), format!("aws-ofi-nccl forces Simple: {why}"));
        }
    }

    /// What NCCL found, beside what our search finds for the same communicator: `nodes` as the log counts them.
    pub(super) fn report_graphs(
        &self,
        machine: &Machine,
        ours: &Graphs,
        (nodes, tcp): (u32, bool),
        found: &mut Found<'_>,
    ) {
        let name = &machine.site.topology.name;
        if let Some((_, line)) = self.mnnvl_off.filter(|_| ours.hosts < nodes && machine.site.nodes() == nodes) {
            let what = format!("NCCL counts {nodes} nodes, and NVLink joins the hosts of `{name}` to {}", ours.hosts);
            found.add("log-no-mnnvl", Some(line), what);
        }
        if ours.hosts != nodes {
            return;
        }
        if let Some((_, line)) = self.no_multicast.filter(|_| ours.nvls_channels > 0) {
            let what = format!("NCCL finds no multicast, and `{name}` has it: {} channels of NVLS", ours.nvls_channels);
            found.add("log-no-nvls", Some(line), what);
        }
        // Smaller communicators have rings of their own.
        if let Some((ring, line)) = self.ring.filter(|_| self.shapes.len() == 1 && !tcp) {
            let rate =
                |channels: u32, intra: f64, inter: f64| f64::from(channels) * if nodes > 1 { inter } else { intra };
            let known = &ours.ring;
            let (theirs, best) = (
                rate(ring.channels, ring.intra, ring.inter),
                rate(known.channels, known.speed_intra, known.speed_inter),
            );
            let far = |class: PathClass| matches!(class, PathClass::Phb | PathClass::Sys);
            let through_cpu = ring.between.filter(|&class| nodes > 1 && far(class) && !far(known.type_inter));
            if theirs < RING_LEAST * best {
                let path = through_cpu.map_or(String::new(), |class| format!(", through the CPU ({})", class.name()));
                let what =
                    format!("NCCL's ring has {theirs:.0} GB/s{path}; on `{name}` the search finds {best:.0} GB/s");
                found.add("log-slow-paths", Some(line), what);
            } else if let Some(class) = through_cpu {
                let what = format!(
                    "NCCL's ring goes through the CPU ({}); on `{name}` the search finds {}",
                    class.name(),
                    known.type_inter.name()
                );
                found.add("log-slow-paths", Some(line), what);
            }
        }
    }

    /// Channels over the network between ranks of one host, where ranks are dealt host by host.
    fn inside(&self) -> At<String> {
        let mut shapes = self.shapes.iter();
        let (Some(&(ranks, nodes, local)), None) = (shapes.next(), shapes.next()) else { return None };
        if local < 2 || nodes.checked_mul(local) != Some(ranks) {
            return None;
        }
        let is_at = |(rank, device): (u32, u32)| rank < ranks && rank % local == device;
        let inside = |[a, b]: [(u32, u32); 2]| is_at(a) && is_at(b) && a.0 != b.0 && a.0 / local == b.0 / local;
        let mut all = self.over_net.iter().filter(|(ends, _)| inside(*ends));
        let &([a, b], line) = all.next()?;
        let more = 1 + all.count();
        let channels = if more == 1 { "1 channel goes".to_owned() } else { format!("{more} channels go") };
        Some((format!("{channels} over the network between ranks of one host, as of {} and {}", a.0, b.0), line))
    }
}

/// Whether a provider of libfabric is TCP, by itself or below another.
fn is_tcp(provider: &str) -> bool {
    ["tcp", "sockets", "udp"].iter().any(|kind| provider.starts_with(kind))
}
