//! The variables that choose between NCCL's transports.
//!
//! Source: as in `transport.rs`.

use std::collections::BTreeMap;

use thiserror::Error;

use super::parameters::strtoll;
use super::path::PathClass;
use super::plugin::{has_efa, is_beyond_sockets, needs_plugin, without_efa};
use super::rules::Rules;
use super::transport::{CrossNic, Devices, Interface, NicSet, NicsPerGpu, Ports, Transport};
use super::version::Version;
use crate::ids::VertexId;
use crate::measurement::PeerAccess;
use crate::topology::{Host, LinkKind, Topology};
use crate::units::SimDuration;

/// A variable that cannot be applied.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// Not one of those that decide how data moves.
    #[error("{0} does not choose how data moves; known here: {known}", known = Transport::VARIABLES.join(" "))]
    Unknown(String),
    /// A value with which NCCL would not start, or whose effect is not modelled.
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
        "NCCL_NET_GDR_C2C",
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
        "NCCL_CUMEM_ENABLE",
        "NCCL_GDR_FLUSH_DISABLE",
        "NCCL_NET_FORCE_FLUSH",
        "OFI_NCCL_NET_LATENCY",
        "FI_PROVIDER",
    ];

    /// What an environment makes of the transports of a version of NCCL on a machine.
    ///
    /// # Errors
    /// A variable that is not modelled here, a value that is not, or one with which NCCL would not start.
    pub fn from_env<'v>(
        topology: &Topology,
        version: Version,
        variables: impl IntoIterator<Item = (&'v str, &'v str)>,
    ) -> Result<Self, TransportError> {
        let Rules { ports, pxn, .. } = Rules::of(version);
        let mut transport = Self { ports, pxn, ..Self::default() };
        let (mut sockets_of, mut gdr_level, mut gdr_c2c, mut cumem) = (None, false, true, true);
        // The last of a name counts. In order, since NCCL_GDR_FLUSH_DISABLE is stronger than NCCL_NET_FORCE_FLUSH.
        let variables: BTreeMap<&str, &str> = variables.into_iter().collect();
        for (name, value) in variables {
            match name {
                "NCCL_NET" if value.eq_ignore_ascii_case("ib") && needs_plugin(topology) => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    let expected =
                        "Socket or the machine's plugin by name: NCCL's own verbs use no EFA, Slingshot or TCPX";
                    return Err(TransportError::Value { name, value, expected });
                }
                "NCCL_NET_PLUGIN" => {
                    if value.eq_ignore_ascii_case("none") && needs_plugin(topology) {
                        transport.interface = Interface::Sockets;
                    }
                }
                // Libfabric then has no EFA: whether the plugin takes its TCP or gives way to NCCL's sockets, TCP carries the data.
                "FI_PROVIDER" => {
                    if has_efa(topology) && without_efa(value) {
                        transport.interface = Interface::Sockets;
                    }
                }
                // A single letter is passed over.
                "NCCL_SOCKET_IFNAME" => sockets_of = Some(Devices::parse(value)).filter(|_| value.len() > 1),
                // Where the machine does not tell, all are used, and whoever says what is not modelled says so.
                "NCCL_IB_HCA" => transport.nics = NicSet::of_hcas(topology, value).unwrap_or_default(),
                // It switches NCCL's own verbs off, which carry nothing there.
                "NCCL_IB_DISABLE" if needs_plugin(topology) => {}
                // -2 is automatic; other numbers below zero are off (`ncclCuMemEnable` of `src/misc/cudawrap.cc`).
                "NCCL_CUMEM_ENABLE" => cumem = value.is_empty() || strtoll(value).0 == -2 || strtoll(value).0 > 0,
                "NCCL_NET_GDR_C2C" => gdr_c2c = value.is_empty() || strtoll(value).0 != 0,
                _ => {
                    gdr_level |= name == "NCCL_NET_GDR_LEVEL" && PathClass::of_level(value).is_some();
                    transport.set(name, value)?;
                }
            }
        }
        if !gdr_c2c && !gdr_level {
            transport.gdr_level = PathClass::Pxb;
        }
        // NVLink across hosts maps memory of others by cuMem, whatever NCCL_MNNVL_ENABLE is (`ncclMnnvlCheck` of `src/mnnvl.cc`).
        transport.nvlink_across_hosts &= cumem;
        // Without any of its NICs NCCL takes sockets.
        let none = |host: &Host| {
            let of_host = || host.nics.iter().filter_map(|&n| topology.nic(n));
            of_host().next().is_some() && !of_host().any(|n| transport.nics.has(n.index))
        };
        if transport.interface == Interface::Data && topology.hosts().iter().any(none) {
            transport.interface = Interface::Sockets;
        }
        // The name of a socket interface matters where sockets carry the data. The interfaces of RDMA devices have
        // names of their own, which no topology has.
        let takes = |nics: &[VertexId]| {
            nics.iter().filter_map(|&n| topology.nic(n)).any(|nic| {
                let name = if nic.kind == LinkKind::Ethernet { nic.name.as_str() } else { "" };
                sockets_of.as_ref().is_some_and(|devices| devices.take(name, None))
            })
        };
        let beyond = |&n: &VertexId| topology.nic(n).is_some_and(is_beyond_sockets);
        let hosts = topology.hosts();
        let sockets = transport.interface == Interface::Sockets || !hosts.iter().any(|h| h.nics.iter().any(beyond));
        if sockets && hosts.iter().all(|h| takes(&h.management) && !takes(&h.nics)) {
            transport.interface = Interface::Management;
        }
        Ok(transport)
    }

    /// How NCCL takes a value, where that is otherwise than it looks.
    pub(super) fn misread(name: &str, value: &str) -> Option<String> {
        Self::default().set(name, value).ok().flatten()
    }

    /// Sets what a variable says, and gives back what [`Self::misread`] does.
    fn set(&mut self, name: &str, value: &str) -> Result<Option<String>, TransportError> {
        let (number, rest) = strtoll(value);
        // -2 is automatic.
        let given = !value.is_empty() && number != -2;
        if let Some(taken) = given.then(|| self.set_number(name, number)).flatten() {
            let why = if rest { ": NCCL takes whole numbers only" } else { "" };
            return Ok((rest || taken != number).then(|| format!("{name}={value} is read as {taken}{why}")));
        }
        match name {
            "NCCL_P2P_LEVEL" | "NCCL_NET_GDR_LEVEL" => {
                let Some(level) = PathClass::of_level(value) else {
                    let levels = PathClass::ALL.iter().map(|class| class.name()).collect::<Vec<_>>().join(" ");
                    let none = format!("{name}={value} is no level, and NCCL takes its default; levels are {levels}");
                    return Ok(Some(none).filter(|_| !value.is_empty()));
                };
                match (name, level) {
                    ("NCCL_NET_GDR_LEVEL", _) => self.gdr_level = level,
                    (_, PathClass::Loc) => self.peer_access = PeerAccess::Off,
                    _ => self.p2p_level = Some(level),
                }
            }
            "NCCL_NET" => {
                if value.eq_ignore_ascii_case("socket") {
                    self.interface = Interface::Sockets;
                }
            }
            // A level of 2.24 and later; below it there is no such variable.
            "NCCL_NET_MERGE_LEVEL" => match (value, self.ports) {
                ("LOC", Ports::Merged) => self.ports = Ports::Apart,
                ("LOC" | "PORT" | "NVL", _) => {}
                _ => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    let expected = "LOC or PORT: NICs of several cards as one are not modelled";
                    return Err(TransportError::Value { name, value, expected });
                }
            },
            // A fraction may be; below zero, or where it is none, the plugin stops. 1e6 us are more than any device reports.
            "OFI_NCCL_NET_LATENCY" => match value.trim().parse::<f64>() {
                Ok(us) if (0.0..=1e6).contains(&us) => self.net_latency = Some(SimDuration::from_us(us)),
                _ if value.is_empty() => {}
                _ => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    return Err(TransportError::Value { name, value, expected: "microseconds, such as 35" });
                }
            },
            "NCCL_NETDEVS_POLICY" => {
                let policy = value.to_ascii_uppercase();
                let most = policy.strip_prefix("MAX:").and_then(|most| u32::try_from(strtoll(most).0).ok());
                self.nics_per_gpu = match (policy.as_str(), most) {
                    (_, Some(most @ 1..)) => NicsPerGpu::Most(most),
                    ("ALL", _) => NicsPerGpu::All,
                    ("AUTO" | "", _) => NicsPerGpu::Share,
                    _ => return Ok(Some(format!("{name}={value} is read as AUTO: NCCL takes AUTO, ALL or MAX:n"))),
                };
            }
            // Read with the machine, or a number that is automatic.
            _ if Self::VARIABLES.contains(&name) => {}
            _ => return Err(TransportError::Unknown(name.to_owned())),
        }
        Ok(None)
    }

    /// Sets what a whole number says, and gives back the number that NCCL takes it for: it compares with 1 in some
    /// places, with 0 in others, and knows limits. `None` for variables without a number.
    fn set_number(&mut self, name: &str, number: i64) -> Option<i64> {
        let (is_one, is_set) = (number == 1, number != 0);
        let within = |least, most| u32::try_from(number.clamp(least, most)).unwrap_or(u32::MAX);
        let taken = match name {
            // Without peer access through host memory, without that too through the network.
            "NCCL_P2P_DISABLE" => {
                if is_one {
                    self.peer_access = PeerAccess::Off;
                }
                is_one.into()
            }
            "NCCL_SHM_DISABLE" => {
                self.shm = !is_one;
                is_one.into()
            }
            "NCCL_PXN_DISABLE" => {
                self.pxn &= !is_one;
                is_one.into()
            }
            // Sorted before the other, and stronger: the read is skipped where it would be made.
            "NCCL_GDR_FLUSH_DISABLE" => {
                self.flush = is_set.then_some(false);
                is_set.into()
            }
            "NCCL_NET_FORCE_FLUSH" => {
                self.flush = self.flush.or(is_set.then_some(true));
                is_set.into()
            }
            "NCCL_IB_DISABLE" => {
                if is_set {
                    self.interface = Interface::Sockets;
                }
                is_set.into()
            }
            "NCCL_NET_GDR_C2C" => is_set.into(),
            "NCCL_IB_MERGE_NICS" => {
                if !is_set {
                    self.ports = Ports::Apart;
                }
                is_set.into()
            }
            "NCCL_CROSS_NIC" => {
                self.cross_nic = match number {
                    1 => CrossNic::Always,
                    2 => CrossNic::Pairs,
                    _ => CrossNic::Never,
                };
                if (0..=2).contains(&number) { number } else { 0 }
            }
            // 2, the default, takes what there is.
            "NCCL_MNNVL_ENABLE" => {
                self.nvlink_across_hosts = is_set;
                if (0..=2).contains(&number) { number } else { 2 }
            }
            "NCCL_SOCKET_NTHREADS" => i64::from(*self.socket_threads.insert(within(0, 16))),
            "NCCL_NSOCKS_PERTHREAD" => i64::from(*self.sockets_per_thread.insert(within(0, 64))),
            "NCCL_SOCKET_INLINE" => {
                self.socket_inline = within(0, u32::MAX.into());
                self.socket_inline.into()
            }
            "NCCL_IB_QPS_PER_CONNECTION" => {
                self.queue_pairs = within(1, 128);
                self.queue_pairs.into()
            }
            _ => return None,
        };
        Some(taken)
    }
}
