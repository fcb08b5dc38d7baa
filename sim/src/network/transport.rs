//! How NCCL is told to move data: the settings that choose between NVLink, PCIe, shared host
//! memory, RDMA and sockets.
//!
//! Source: NCCL 2.30 `src/graph/paths.cc`, `src/transport/{p2p,shm,net,net_socket}.cc`, restated.

use thiserror::Error;

use super::PathClass;
use crate::ids::VertexId;
use crate::measurement::PeerAccess;
use crate::model::nccl::Version;
use crate::topology::{LinkKind, Topology};

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
                _ => transport.set(name, value)?,
            }
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
            "NCCL_IB_QPS_PER_CONNECTION" => self.queue_pairs = number(128, "1 to 128")?.max(1),
            _ => return Err(TransportError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}
