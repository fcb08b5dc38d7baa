//! The variables that choose between NCCL's transports.
//!
//! Source: as in `transport.rs`.

use thiserror::Error;

use super::path::PathClass;
use super::rules::Rules;
use super::transport::{CrossNic, Interface, NicSet, NicsPerGpu, Ports, Transport};
use super::version::Version;
use crate::ids::VertexId;
use crate::measurement::PeerAccess;
use crate::topology::{Host, LinkKind, Topology};

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

/// Whether NCCL reaches the NICs of a machine through a plugin only.
fn needs_plugin(topology: &Topology) -> bool {
    let nics = topology.hosts().iter().flat_map(|host| &host.nics).filter_map(|&n| topology.nic(n));
    let mut data = nics.filter(|nic| !nic.management).peekable();
    data.peek().is_some() && data.all(|nic| matches!(nic.kind, LinkKind::Efa | LinkKind::Slingshot))
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
        "NCCL_NET_PLUGIN",
        "NCCL_IB_DISABLE",
        "NCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_NTHREADS",
        "NCCL_NSOCKS_PERTHREAD",
        "NCCL_SOCKET_INLINE",
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
        let mut transport = Self { ports: Rules::of(version).ports, ..Self::default() };
        let mut socket_name = None;
        let mut variables: Vec<(&str, &str)> = variables.into_iter().collect();
        // NCCL_P2P_DISABLE before NCCL_SHM_DISABLE, which matters only then.
        variables.sort_unstable();
        for (name, value) in variables {
            match name {
                "NCCL_NET" if value.eq_ignore_ascii_case("ib") && needs_plugin(topology) => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    let expected =
                        "Socket or the name of the machine's plugin: NCCL's own verbs do not use EFA or Slingshot";
                    return Err(TransportError::Value { name, value, expected });
                }
                "NCCL_NET_PLUGIN" => {
                    if value.eq_ignore_ascii_case("none") && needs_plugin(topology) {
                        transport.interface = Interface::Sockets;
                    }
                }
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
            "NCCL_SOCKET_INLINE" => self.socket_inline = number(u32::MAX, "a number of bytes")?,
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
