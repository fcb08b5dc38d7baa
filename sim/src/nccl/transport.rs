//! How NCCL is told to move data: the settings that choose between NVLink, PCIe, shared host
//! memory, RDMA and sockets.
//!
//! Source: NCCL 2.30 `src/graph/paths.cc`, `src/graph/topo.cc`, `src/misc/socket.cc`,
//! `src/transport/{p2p,shm,net,net_ib,net_socket}.cc`, restated.

use std::collections::{BTreeMap, BTreeSet};

use super::graphs::CpuVendor;
use super::parameters::strtoll;
use super::path::PathClass;
use crate::ids::{Rank, VertexId};
use crate::measurement::PeerAccess;
use crate::topology::{LinkKind, Topology, VertexKind};
use crate::units::SimDuration;

/// Which interfaces carry data between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Interface {
    /// The data NICs, with RDMA or the machine's plugin where they have it.
    #[default]
    Data,
    /// The data NICs, with TCP sockets (`NCCL_NET=Socket`, `NCCL_IB_DISABLE=1`, or a container
    /// without the RDMA device).
    Sockets,
    /// The management NIC, with TCP sockets (a wrong `NCCL_SOCKET_IFNAME`).
    Management,
}

/// Settings of NCCL's transports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Transport {
    /// How GPUs of one host reach each other.
    pub peer_access: PeerAccess,
    /// Whether GPUs that do not reach each other directly go through host memory (`NCCL_SHM_DISABLE=0`).
    pub shm: bool,
    /// Worst class of path over which GPUs still reach each other directly (`NCCL_P2P_LEVEL`); where it is not
    /// given, it depends on the node.
    pub p2p_level: Option<PathClass>,
    /// Worst class of path over which a NIC still reads GPU memory (`NCCL_NET_GDR_LEVEL`).
    pub gdr_level: PathClass,
    /// Whether a GPU may use a NIC of another GPU over NVLink (`NCCL_PXN_DISABLE=0`).
    pub pxn: bool,
    /// What carries data between hosts.
    pub interface: Interface,
    /// Helper threads of a connection over sockets (`NCCL_SOCKET_NTHREADS`); by platform where
    /// not given: none, 2 on AWS. With none the proxy's own thread copies.
    pub socket_threads: Option<u32>,
    /// Sockets of each helper thread (`NCCL_NSOCKS_PERTHREAD`): 1, 8 on AWS.
    pub sockets_per_thread: Option<u32>,
    /// Bytes of a message through a socket that go with its header (`NCCL_SOCKET_INLINE`).
    pub socket_inline: u32,
    /// Queue pairs of an RDMA connection (`NCCL_IB_QPS_PER_CONNECTION`), over which its slices
    /// are taken to spread evenly.
    pub queue_pairs: u32,
    /// Which ports of one card act as one network device.
    pub ports: Ports,
    /// The NICs that may be used (`NCCL_IB_HCA`).
    pub nics: NicSet,
    /// How many of the NICs nearest to a GPU its sends and receives take (`NCCL_NETDEVS_POLICY`).
    pub nics_per_gpu: NicsPerGpu,
    /// Whether a channel may enter and leave hosts by different NICs (`NCCL_CROSS_NIC`).
    pub cross_nic: CrossNic,
    /// Whether hosts of one NVLink domain use NVLink between them (`NCCL_MNNVL_ENABLE`).
    pub nvlink_across_hosts: bool,
    /// Whether what a NIC writes into GPU memory is read back before it is used: always (`NCCL_NET_FORCE_FLUSH=1`),
    /// never (`NCCL_GDR_FLUSH_DISABLE=1`), or as the GPU needs it.
    pub flush: Option<bool>,
    /// What a plugin of libfabric reports as the latency of its devices (`OFI_NCCL_NET_LATENCY`); by platform where not given.
    pub net_latency: Option<SimDuration>,
}

/// A list of devices as NCCL reads it: beginnings of names, whole names behind `=`, all others behind `^`; a port may follow
/// each (`parseStringList` and `matchIfList`, `src/misc/utils.cc`).
pub(super) struct Devices<'v> {
    names: Vec<(&'v str, Option<u32>)>,
    whole: bool,
    others: bool,
}

impl<'v> Devices<'v> {
    pub(super) fn parse(value: &'v str) -> Self {
        let (value, others) = value.strip_prefix('^').map_or((value, false), |rest| (rest, true));
        let (value, whole) = value.strip_prefix('=').map_or((value, false), |rest| (rest, true));
        let entry = |entry: &'v str| {
            let mut parts = entry.split(':');
            let name = parts.next().filter(|name| !name.is_empty())?;
            let port = parts.next().filter(|port| !port.is_empty());
            Some((name, port.map(|port| u32::try_from(strtoll(port).0).unwrap_or(0))))
        };
        Self { names: value.split(',').filter_map(entry).collect(), whole, others }
    }

    /// Whether it takes a port of the device of a name, or the device where that has no ports; one without a name is not listed.
    pub(super) fn take(&self, name: &str, port: Option<u32>) -> bool {
        let is = |&(listed, of): &(&str, Option<u32>)| {
            let named = if self.whole { name == listed } else { name.starts_with(listed) };
            named && of.is_none_or(|of| port.is_none_or(|port| port == of))
        };
        // No list takes all, and `^` alone leaves all out.
        (self.names.is_empty() || self.names.iter().any(is)) != self.others
    }
}

/// NICs by their numbers in a host, of which the first 128 can be left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NicSet {
    left_out: u128,
}

impl NicSet {
    /// Whether a NIC with that number in its host is in it.
    pub fn has(self, index: u32) -> bool {
        index >= 128 || self.left_out >> index & 1 == 0
    }

    fn leave_out(&mut self, index: u32) {
        self.left_out |= 1_u128.checked_shl(index).unwrap_or(0);
    }

    /// The InfiniBand and RoCE NICs that `NCCL_IB_HCA` selects on all hosts of a machine.
    ///
    /// # Errors
    /// Why the machine does not tell, in words.
    pub fn of_hcas(topology: &Topology, value: &str) -> Result<Self, String> {
        let devices = Devices::parse(value);
        let listed = Self::listed(value);
        let mut found: Option<Self> = None;
        for host in topology.hosts() {
            let mut of_host = Self::default();
            // A NIC of a topology is one port: the first of its device, or the next where one has several.
            let mut ports: BTreeMap<&str, u32> = BTreeMap::new();
            for nic in host.nics.iter().filter_map(|&n| topology.nic(n)) {
                if !matches!(nic.kind, LinkKind::Infiniband | LinkKind::Roce) {
                    continue;
                }
                if nic.name.is_empty() {
                    let few = listed.filter(|&listed| listed < host.nics.len());
                    let though =
                        few.map_or_else(String::new, |few| format!(", though {few} of {} are listed", host.nics.len()));
                    return Err(format!(
                        "the NICs of `{}` have no names, so all are used{though}; a topology file gives them (names)",
                        host.name
                    ));
                }
                let port = ports.entry(&nic.name).or_insert(0);
                *port += 1;
                if !devices.take(&nic.name, Some(*port)) {
                    of_host.leave_out(nic.index);
                }
            }
            if found.replace(of_host).is_some_and(|known| known != of_host) {
                return Err("it selects other NICs on one host than on another".to_owned());
            }
        }
        Ok(found.unwrap_or_default())
    }

    /// The first name in a value of `NCCL_IB_HCA` that is a device's own and stands for others too, which it does not
    /// list: without `=`, `mlx5_1` is also the beginning of `mlx5_10`.
    pub fn stands_for_more<'t, 'v>(topology: &'t Topology, value: &'v str) -> Option<(&'v str, Vec<&'t str>)> {
        let devices = Devices::parse(value);
        let nics = topology.hosts().first()?.nics.iter().filter_map(|&nic| topology.nic(nic));
        let names: Vec<&str> = nics.map(|nic| nic.name.as_str()).collect();
        let is_listed = |name: &str| devices.names.iter().any(|(listed, _)| *listed == name);
        let listed = devices.names.iter().map(|(listed, _)| *listed);
        listed.filter(|listed| !devices.whole && names.contains(listed)).find_map(|listed| {
            let more = names.iter().filter(|name| name.starts_with(listed) && !is_listed(name));
            let more: Vec<&str> = more.copied().collect();
            (!more.is_empty()).then_some((listed, more))
        })
    }

    /// How many devices a value of `NCCL_IB_HCA` lists by name and port; `None` where it leaves some out, or has the
    /// beginning of names, as `mlx5`. Without `=` each may be the beginning of more names.
    pub fn listed(value: &str) -> Option<usize> {
        let list = value.trim_start_matches('=').split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let list: BTreeSet<&str> = list.collect();
        // Devices have numbers, as `mlx5_0` and `ibp24s0`; what is letters alone in front of one is a driver.
        let is_device = |entry: &&str| {
            let name = entry.split(':').next().unwrap_or_default();
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            stem.len() < name.len() && !stem.bytes().all(|b| b.is_ascii_alphabetic())
        };
        (!list.is_empty() && !value.starts_with('^') && list.iter().all(is_device)).then_some(list.len())
    }
}

/// How many of the network devices nearest to a GPU its sends and receives take.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum NicsPerGpu {
    /// Its share of them (`AUTO`).
    #[default]
    Share,
    /// All.
    All,
    /// At most so many (`MAX:n`).
    Most(u32),
}

/// Whether a channel may enter and leave a host by different NICs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CrossNic {
    /// Not (0): where each rail is a network of its own.
    Never,
    /// Wherever it likes (1).
    Always,
    /// Two channels may exchange their NICs on alternate hosts (2).
    #[default]
    Pairs,
}

/// How NCCL takes the ports of a card: each a device, or all together one that sends every message in equal
/// parts over all of them.
///
/// Source: NCCL 2.20.5 and 2.30 `src/transport/net_ib.cc`, 2.24 `src/graph/topo.cc`, restated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ports {
    /// Each port is a device: until 2.19, with `NCCL_IB_MERGE_NICS=0` or `NCCL_NET_MERGE_LEVEL=LOC`.
    Apart,
    /// One device a card where all cards of the host have as many ports: 2.20 to 2.23.
    AllOrNone,
    /// One device a card.
    #[default]
    Merged,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            peer_access: PeerAccess::On,
            shm: true,
            p2p_level: None,
            gdr_level: PathClass::Pxn,
            pxn: true,
            interface: Interface::Data,
            socket_threads: None,
            sockets_per_thread: None,
            // NCCL 2.30 `src/transport/net_socket.cc`.
            socket_inline: 128,
            queue_pairs: 1,
            ports: Ports::default(),
            nics: NicSet::default(),
            nics_per_gpu: NicsPerGpu::default(),
            cross_nic: CrossNic::default(),
            nvlink_across_hosts: true,
            flush: None,
            net_latency: None,
        }
    }
}

impl Transport {
    /// The ranks that NCCL takes for those of one node: with one number. Ranks that reach each other over NVLink;
    /// those of a host where they do not; each alone where host memory is not shared either.
    pub fn node_of(&self, topology: &Topology, rank: Rank) -> u32 {
        let apart = self.peer_access == PeerAccess::Net || self.peer_access == PeerAccess::Off && !self.shm;
        match self.peer_access {
            _ if apart => rank.0,
            PeerAccess::On if self.nvlink_across_hosts => topology.node_of(rank).0,
            _ => topology.host_of(rank).0,
        }
    }

    /// Worst class of path over which the GPUs of a node reach each other directly. By default these are several
    /// PCIe switches, and all paths between two GPUs, or fewer, below AMD CPUs.
    ///
    /// Source: NCCL 2.30 `ncclTopoCheckP2p`, `src/graph/paths.cc`, restated.
    pub(crate) fn direct_up_to(&self, vendor: CpuVendor, gpus: usize) -> PathClass {
        match self.p2p_level {
            _ if self.peer_access != PeerAccess::On => PathClass::Loc,
            Some(level) => level,
            None if vendor == CpuVendor::Amd && gpus <= 2 => PathClass::Sys,
            None => PathClass::Pxb,
        }
    }

    /// The same on the host of a GPU, of whose GPUs some are members of the communicator.
    pub(crate) fn direct_beside(
        &self,
        topology: &Topology,
        gpu: VertexId,
        member: impl Fn(&VertexId) -> bool,
    ) -> PathClass {
        let host = topology.vertex(gpu).host.and_then(|host| topology.hosts().get(host.index()));
        let cpu = host.and_then(|host| host.cpus.first()).map(|&cpu| &topology.vertex(cpu).kind);
        let vendor = match cpu {
            Some(VertexKind::Cpu { vendor }) => CpuVendor::of(vendor),
            _ => CpuVendor::Other,
        };
        let members = host.map_or(0, |host| host.gpus.iter().filter(|&gpu| member(gpu)).count());
        self.direct_up_to(vendor, members)
    }
}
