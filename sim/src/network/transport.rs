//! How NCCL is told to move data: the settings that choose between NVLink, PCIe, shared host
//! memory, RDMA and sockets.
//!
//! Source: NCCL 2.30 `src/graph/paths.cc`, `src/graph/topo.cc`, `src/misc/socket.cc`,
//! `src/transport/{p2p,shm,net,net_ib,net_socket}.cc`, restated.

use thiserror::Error;

use super::PathClass;
use crate::ids::{Rank, VertexId};
use crate::measurement::PeerAccess;
use crate::model::nccl::Version;
use crate::topology::{Host, LinkKind, Topology};

/// Which interfaces carry data between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Interface {
    /// The data NICs, with RDMA where they have it.
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
    /// Worst class of path over which GPUs still reach each other directly (`NCCL_P2P_LEVEL`).
    pub p2p_level: PathClass,
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

    /// The InfiniBand and RoCE NICs that `NCCL_IB_HCA` selects on all hosts of a machine: names or beginnings of
    /// names, whole names behind `=`, all others behind `^`.
    ///
    /// # Errors
    /// Why the machine does not tell, in words.
    pub fn of_hcas(topology: &Topology, value: &str) -> Result<Self, String> {
        let (value, others) = value.strip_prefix('^').map_or((value, false), |rest| (rest, true));
        let (value, whole) = value.strip_prefix('=').map_or((value, false), |rest| (rest, true));
        // A port may follow; a NIC of a topology is one port.
        let names: Vec<&str> = value.split(',').filter_map(|v| v.split(':').next()).filter(|v| !v.is_empty()).collect();
        let mut found: Option<Self> = None;
        for host in topology.hosts() {
            let mut of_host = Self::default();
            for nic in host.nics.iter().filter_map(|&n| topology.nic(n)) {
                if !matches!(nic.kind, LinkKind::Infiniband | LinkKind::Roce) {
                    continue;
                }
                if nic.name.is_empty() {
                    return Err(format!(
                        "the NICs of `{}` have no names; a topology file gives them (names)",
                        host.name
                    ));
                }
                let listed = names.iter().any(|n| if whole { nic.name == *n } else { nic.name.starts_with(n) });
                if !names.is_empty() && listed == others {
                    of_host.leave_out(nic.index);
                }
            }
            if found.replace(of_host).is_some_and(|known| known != of_host) {
                return Err("it selects other NICs on one host than on another".to_owned());
            }
        }
        Ok(found.unwrap_or_default())
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
            p2p_level: PathClass::Pxb,
            gdr_level: PathClass::Pxn,
            pxn: true,
            interface: Interface::Data,
            socket_threads: None,
            sockets_per_thread: None,
            queue_pairs: 1,
            ports: Ports::default(),
            nics: NicSet::default(),
            nics_per_gpu: NicsPerGpu::default(),
            cross_nic: CrossNic::default(),
            nvlink_across_hosts: true,
            flush: None,
        }
    }
}

/// A variable that cannot be applied.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// Not one of those that decide how data moves.
    #[error("{0} does not choose how data moves; known here: {known}", known = Transport::VARIABLES.join(" "))]
    Unknown(String),
    /// A value that NCCL would not take.
    #[error("{name}={value}: expected {expected}")]
    Value {
        /// The variable.
        name: String,
        /// What it is set to.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

impl Transport {
    /// The ranks that NCCL takes for those of one node: with one number. Ranks that reach each other over NVLink;
    /// those of a host where they do not; each alone where host memory is not shared either.
    pub(crate) fn node_of(&self, topology: &Topology, rank: Rank) -> u32 {
        match self.peer_access {
            PeerAccess::On if self.nvlink_across_hosts => topology.node_of(rank).0,
            PeerAccess::On | PeerAccess::Off => topology.host_of(rank).0,
            PeerAccess::Net => rank.0,
        }
    }

    /// The environment variables of [`Self::from_env`].
    pub const VARIABLES: &'static [&'static str] = &[
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_SHM_DISABLE",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_PXN_DISABLE",
        "NCCL_NET",
        "NCCL_IB_DISABLE",
        "NCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_NTHREADS",
        "NCCL_NSOCKS_PERTHREAD",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_MERGE_NICS",
        "NCCL_NET_MERGE_LEVEL",
        "NCCL_IB_HCA",
        "NCCL_NETDEVS_POLICY",
        "NCCL_CROSS_NIC",
        "NCCL_MNNVL_ENABLE",
        "NCCL_GDR_FLUSH_DISABLE",
        "NCCL_NET_FORCE_FLUSH",
    ];

    /// What an environment makes of the transports of a version of NCCL on a machine.
    ///
    /// # Errors
    /// A variable that is not modelled here, or a value that NCCL would not take.
    pub fn from_env<'v>(
        topology: &Topology,
        version: Version,
        variables: impl IntoIterator<Item = (&'v str, &'v str)>,
    ) -> Result<Self, TransportError> {
        let ports = match version {
            _ if version.since(24) => Ports::Merged,
            _ if version.since(20) => Ports::AllOrNone,
            _ => Ports::Apart,
        };
        let mut transport = Self { ports, ..Self::default() };
        let mut socket_name = None;
        let mut variables: Vec<(&str, &str)> = variables.into_iter().collect();
        // NCCL_P2P_DISABLE before NCCL_SHM_DISABLE, which matters only then.
        variables.sort_unstable();
        for (name, value) in variables {
            match name {
                "NCCL_SOCKET_IFNAME" => socket_name = Some(value.trim_start_matches('=')),
                // Where the machine does not tell, all are used, and whoever says what is not modelled says so.
                "NCCL_IB_HCA" => transport.nics = NicSet::of_hcas(topology, value).unwrap_or_default(),
                _ => transport.set(name, value)?,
            }
        }
        // Without any of its NICs NCCL takes sockets.
        let none = |host: &Host| {
            let of_host = || host.nics.iter().filter_map(|&n| topology.nic(n));
            of_host().next().is_some() && !of_host().any(|n| transport.nics.has(n.index))
        };
        if transport.interface == Interface::Data && topology.hosts().iter().any(none) {
            transport.interface = Interface::Sockets;
        }
        // The name of a socket interface matters where sockets carry the data.
        let named = |&n: &VertexId| topology.nic(n).zip(socket_name).is_some_and(|(n, name)| n.name.starts_with(name));
        let rdma = |&n: &VertexId| topology.nic(n).is_some_and(|n| n.kind != LinkKind::Ethernet);
        let hosts = topology.hosts();
        let sockets = transport.interface == Interface::Sockets || !hosts.iter().any(|h| h.nics.iter().any(rdma));
        if sockets && hosts.iter().all(|h| h.management.iter().any(named)) {
            transport.interface = Interface::Management;
        }
        Ok(transport)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), TransportError> {
        let bad = |expected| TransportError::Value { name: name.to_owned(), value: value.to_owned(), expected };
        let number = |most: u32, expected| value.parse().ok().filter(|n| *n <= most).ok_or_else(|| bad(expected));
        let flag = || number(1, "0 or 1").map(|n| n == 1);
        let level = || PathClass::of_level(value).ok_or_else(|| bad("LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS"));
        match name {
            // Without peer access through host memory, without that too through the network.
            "NCCL_P2P_DISABLE" => {
                if flag()? && self.peer_access == PeerAccess::On {
                    self.peer_access = PeerAccess::Off;
                }
            }
            "NCCL_SHM_DISABLE" => {
                if flag()? && self.peer_access == PeerAccess::Off {
                    self.peer_access = PeerAccess::Net;
                }
            }
            "NCCL_P2P_LEVEL" => self.p2p_level = level()?,
            "NCCL_NET_GDR_LEVEL" => self.gdr_level = level()?,
            "NCCL_PXN_DISABLE" => self.pxn = !flag()?,
            // Sorted before the other, and stronger: the read is skipped where it would be made.
            "NCCL_GDR_FLUSH_DISABLE" => self.flush = flag()?.then_some(false),
            "NCCL_NET_FORCE_FLUSH" => self.flush = self.flush.or(flag()?.then_some(true)),
            "NCCL_NET" => {
                if value.eq_ignore_ascii_case("socket") {
                    self.interface = Interface::Sockets;
                }
            }
            "NCCL_IB_DISABLE" => {
                if flag()? {
                    self.interface = Interface::Sockets;
                }
            }
            "NCCL_SOCKET_NTHREADS" => self.socket_threads = Some(number(16, "0 to 16")?),
            "NCCL_NSOCKS_PERTHREAD" => self.sockets_per_thread = Some(number(64, "0 to 64")?),
            "NCCL_IB_MERGE_NICS" => {
                if !flag()? {
                    self.ports = Ports::Apart;
                }
            }
            // A level of 2.24 and later; below it there is no such variable.
            "NCCL_NET_MERGE_LEVEL" => match (value, self.ports) {
                ("LOC", Ports::Merged) => self.ports = Ports::Apart,
                ("LOC" | "PORT" | "NVL", _) => {}
                _ => return Err(bad("LOC or PORT: NICs of several cards as one are not modelled")),
            },
            "NCCL_NETDEVS_POLICY" => {
                self.nics_per_gpu = match value.strip_prefix("MAX:").map(str::parse::<u32>) {
                    Some(Ok(most)) if most > 0 => NicsPerGpu::Most(most),
                    None if value.eq_ignore_ascii_case("all") => NicsPerGpu::All,
                    None if matches!(value.to_ascii_lowercase().as_str(), "auto" | "") => NicsPerGpu::Share,
                    _ => return Err(bad("AUTO, ALL or MAX:n")),
                }
            }
            "NCCL_CROSS_NIC" => {
                self.cross_nic = match number(2, "0, 1 or 2")? {
                    0 => CrossNic::Never,
                    1 => CrossNic::Always,
                    _ => CrossNic::Pairs,
                }
            }
            // 2, the default, takes what there is.
            "NCCL_MNNVL_ENABLE" => self.nvlink_across_hosts = number(2, "0, 1 or 2")? > 0,
            "NCCL_IB_QPS_PER_CONNECTION" => self.queue_pairs = number(128, "1 to 128")?.max(1),
            _ => return Err(TransportError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}
