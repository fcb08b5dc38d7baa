//! What may be wrong with a machine or its settings, as a change of what is simulated.

use std::fmt;

use crate::collective::{Algorithm, Protocol};
use crate::engine::mix;
use crate::ids::HostId;
use crate::measurement::PeerAccess;
use crate::nccl::Selection;
use crate::nccl::{Interface, PathClass};
use crate::profile::{Constant, OriginKind, Profile, Role};
use crate::topology::{Link, LinkKind, Nic, Topology, TopologyError, Vertex, VertexKind};
use crate::units::Bandwidth;

use super::question::Question;

/// What a user would call it: the finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// The machine does what it should.
    Healthy,
    /// RDMA fell back to TCP sockets.
    TcpFallback,
    /// Data takes the management network.
    ManagementNetwork,
    /// NICs do not read and write GPU memory.
    GpudirectOff,
    /// GPUs of a host reach each other through host memory.
    PeerAccessOff,
    /// Some NICs carry nothing.
    NicsIdle,
    /// A port of a NIC is slow.
    NicSlow,
    /// NVLink is slow: links down or throttled.
    NvlinkSlow,
    /// PCIe is slow: fewer lanes or an older generation.
    PcieSlow,
    /// Links between switches carry less than the ports below them.
    FabricOversubscribed,
    /// One GPU is slow, and all wait for it.
    Straggler,
    /// NCCL uses fewer channels than it would.
    FewChannels,
    /// An algorithm is forced that is not the best.
    ForcedAlgorithm,
    /// A protocol is forced that is not the best.
    ForcedProtocol,
    /// NVSwitch does not reduce.
    NvlsOff,
    /// Switches of the network do not reduce.
    SharpOff,
    /// Starting kernels takes longer than small messages.
    LaunchBound,
    /// The first sizes were measured before all was set up.
    ColdStart,
    /// Times scatter.
    Noise,
    /// None of these.
    Unknown,
}

impl Cause {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::TcpFallback => "tcp_fallback",
            Self::ManagementNetwork => "management_network",
            Self::GpudirectOff => "gpudirect_off",
            Self::PeerAccessOff => "peer_access_off",
            Self::NicsIdle => "nics_idle",
            Self::NicSlow => "nic_slow",
            Self::NvlinkSlow => "nvlink_slow",
            Self::PcieSlow => "pcie_slow",
            Self::FabricOversubscribed => "fabric_oversubscribed",
            Self::Straggler => "straggler",
            Self::FewChannels => "few_channels",
            Self::ForcedAlgorithm => "forced_algorithm",
            Self::ForcedProtocol => "forced_protocol",
            Self::NvlsOff => "nvls_off",
            Self::SharpOff => "sharp_off",
            Self::LaunchBound => "launch_bound",
            Self::ColdStart => "cold_start",
            Self::Noise => "noise",
            Self::Unknown => "cause_unknown",
        }
    }

    /// Whether something is broken or set wrongly, rather than measured in an unlucky way.
    pub fn is_defect(self) -> bool {
        !matches!(self, Self::Healthy | Self::LaunchBound | Self::ColdStart | Self::Noise | Self::Unknown)
    }

    /// Whether it is TCP in place of RDMA, over whichever port: one remedy for both.
    pub fn is_sockets(self) -> bool {
        matches!(self, Self::TcpFallback | Self::ManagementNetwork)
    }

    /// Whether NCCL might choose so by itself.
    pub fn is_choice(self) -> bool {
        matches!(
            self,
            Self::FewChannels | Self::ForcedAlgorithm | Self::ForcedProtocol | Self::NvlsOff | Self::SharpOff
        )
    }

    /// What to run next to confirm it.
    pub fn next(self) -> &'static str {
        match self {
            Self::Healthy => "",
            Self::TcpFallback => {
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET ... | grep -E 'NET/|Using network': `NET/Socket` confirms it; then `ibv_devinfo` in the container, and unset NCCL_NET=Socket or NCCL_IB_DISABLE=1"
            }
            Self::ManagementNetwork => {
                "NCCL_DEBUG=INFO ... | grep -E 'NET/|Using network' names the interface; set NCCL_SOCKET_IFNAME and NCCL_IB_HCA to the data ports"
            }
            Self::GpudirectOff => {
                "NCCL_DEBUG=INFO ... | grep -E 'GDRDMA|GPU Direct'; then `lsmod | grep nvidia_peermem`, NCCL_NET_GDR_LEVEL, and ACS with `lspci -vvv | grep ACSCtl`"
            }
            Self::PeerAccessOff => {
                "NCCL_DEBUG=INFO ... | grep -E 'via (P2P|SHM|NET)': `via SHM` confirms it; then `nvidia-smi topo -p2p r`, NCCL_P2P_DISABLE, NCCL_P2P_LEVEL"
            }
            Self::NicsIdle => {
                "NCCL_DEBUG=INFO ... | grep -E 'NET/(IB|OFI|Socket)' lists the NICs in use; compare with `ibstat -l` and NCCL_IB_HCA"
            }
            Self::NicSlow => "`ibstat | grep -E 'CA |Rate|State'` on every host (`ethtool DEV | grep Speed` with RoCE)",
            Self::NvlinkSlow => "`nvidia-smi nvlink -s` and `nvidia-smi nvlink -e` on every host; `nvidia-smi topo -m`",
            Self::PcieSlow => {
                "`nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv` under load; `lspci -vv | grep LnkSta` for NICs"
            }
            Self::FabricOversubscribed => {
                "run pairs of hosts under one switch and under two; `ibdiagnet --sc` or the switch counters show PortXmitWait; `collcast topo draw`"
            }
            Self::Straggler => {
                "`nvidia-smi --query-gpu=index,clocks.sm,clocks_throttle_reasons.active,temperature.gpu --format=csv` on every host; halve the host list to find it"
            }
            Self::FewChannels => {
                "NCCL_DEBUG=INFO ... | grep -E 'coll channels|MAX_NCHANNELS|MAX_CTAS' shows their number"
            }
            Self::ForcedAlgorithm => {
                "env | grep NCCL_ALGO; cat /etc/nccl.conf ~/.nccl.conf; NCCL_DEBUG_SUBSYS=TUNING names what ran"
            }
            Self::ForcedProtocol => {
                "env | grep NCCL_PROTO; cat /etc/nccl.conf ~/.nccl.conf; NCCL_DEBUG_SUBSYS=TUNING names what ran"
            }
            Self::NvlsOff => {
                "NCCL_DEBUG=INFO ... | grep -i nvls: `NVLS multicast support is not available` confirms it; then fabric manager, NCCL_NVLS_ENABLE"
            }
            Self::SharpOff => {
                "NCCL_DEBUG=INFO ... | grep -iE 'collnet|sharp'; NCCL_COLLNET_ENABLE=1, and the plugin of nccl-rdma-sharp-plugins on LD_LIBRARY_PATH"
            }
            Self::LaunchBound => {
                "run with one process a GPU (-g 1) or with CUDA graphs (-G 1), and look at the host's clock governor and CPU affinity"
            }
            Self::ColdStart => "raise the warm-up (-w 20) and run again",
            Self::Noise => {
                "repeat the run (-N 5) and give both to `collcast compare`; look for other jobs on hosts and fabric"
            }
            Self::Unknown => "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,TUNING and give the log",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A part of the machine whose links may be slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// NVLink.
    Nvlink,
    /// PCIe.
    Pcie,
    /// From NICs to their switches.
    Nic,
    /// Between switches.
    Fabric,
}

/// One way in which a cause may show.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    /// See [`Cause::Healthy`].
    Healthy,
    /// None: constants off by what is known of them, one draw of several.
    Constants(u32),
    /// Sockets over all data ports, copied by so many helper threads a connection; by platform where
    /// it does not say.
    TcpFallback(Option<u32>),
    /// Sockets over one port of so many Gb/s a host.
    OnePort(u32),
    /// See [`Cause::GpudirectOff`].
    GpudirectOff,
    /// See [`Cause::PeerAccessOff`].
    PeerAccessOff,
    /// So many of each host's NICs are used.
    NicsUsed(u32),
    /// All links of a part run at a percentage. The slowest sets the pace, so all stand for one.
    Slow(Part, u32),
    /// What GPUs do themselves takes so many percent of its time. All stand for one.
    SlowGpu(u32),
    /// At most so many channels.
    Channels(u32),
    /// `NCCL_ALGO`.
    Algorithm(Algorithm),
    /// `NCCL_PROTO`.
    Protocol(Protocol),
    /// `NCCL_NVLS_ENABLE=0`, or no multicast.
    NvlsOff,
    /// `NCCL_COLLNET_ENABLE=0`, or no plugin.
    SharpOff,
    /// A call is not issued before so many us have passed since the last.
    LaunchFloor(u32),
    /// So many of the first sizes are slow.
    Cold(u32),
    /// Times scatter by so many percent.
    Noise(u32),
    /// Some other curve.
    Unknown,
}

/// What a fault makes of the machine.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The machine.
    pub topology: Topology,
    /// Its constants.
    pub profile: Profile,
    /// What is asked of it.
    pub questions: Vec<Question>,
}

impl Fault {
    /// What it is a case of.
    pub fn cause(self) -> Cause {
        match self {
            Self::Healthy | Self::Constants(_) => Cause::Healthy,
            // What hosts are managed through.
            Self::OnePort(..=25) => Cause::ManagementNetwork,
            Self::TcpFallback(_) | Self::OnePort(_) => Cause::TcpFallback,
            Self::GpudirectOff => Cause::GpudirectOff,
            Self::PeerAccessOff => Cause::PeerAccessOff,
            Self::NicsUsed(_) => Cause::NicsIdle,
            Self::Slow(Part::Nic, _) => Cause::NicSlow,
            Self::Slow(Part::Nvlink, _) => Cause::NvlinkSlow,
            Self::Slow(Part::Pcie, _) => Cause::PcieSlow,
            Self::Slow(Part::Fabric, _) => Cause::FabricOversubscribed,
            Self::SlowGpu(_) => Cause::Straggler,
            Self::Channels(_) => Cause::FewChannels,
            Self::Algorithm(_) => Cause::ForcedAlgorithm,
            Self::Protocol(_) => Cause::ForcedProtocol,
            Self::NvlsOff => Cause::NvlsOff,
            Self::SharpOff => Cause::SharpOff,
            Self::LaunchFloor(_) => Cause::LaunchBound,
            Self::Cold(_) => Cause::ColdStart,
            Self::Noise(_) => Cause::Noise,
            Self::Unknown => Cause::Unknown,
        }
    }

    /// Whether it changes what is simulated; the others change how times are judged.
    pub fn is_simulated(self) -> bool {
        !matches!(self, Self::Healthy | Self::LaunchFloor(_) | Self::Cold(_) | Self::Noise(_) | Self::Unknown)
    }

    /// How bad it is, where that is a number of what is simulated that may have any value.
    fn severity(&mut self) -> Option<&mut u32> {
        match self {
            Self::NicsUsed(s) | Self::Slow(_, s) | Self::SlowGpu(s) | Self::Channels(s) => Some(s),
            _ => None,
        }
    }

    /// The same fault as bad as it is told; none where that is no number.
    fn as_bad_as(mut self, severity: u32) -> Option<Self> {
        *self.severity()? = severity;
        Some(self)
    }

    /// The same where a rate or a time is 100% of what it should be: the machine as it should be.
    fn as_healthy(self) -> Option<Self> {
        matches!(self, Self::Slow(..) | Self::SlowGpu(_)).then(|| self.as_bad_as(100)).flatten()
    }

    /// The machine with the fault; none where it would change nothing.
    ///
    /// # Errors
    /// A machine that falls apart.
    pub fn applied(
        self,
        topology: &Topology,
        profile: &Profile,
        questions: &[Question],
    ) -> Result<Option<Changed>, TopologyError> {
        let mut changed =
            Changed { topology: topology.clone(), profile: profile.clone(), questions: questions.to_vec() };
        let told = |change: &dyn Fn(&mut Question) -> bool, questions: &mut Vec<Question>| {
            questions.iter_mut().map(change).fold(false, |any, one| any | one)
        };
        let any = match self {
            Self::Healthy | Self::LaunchFloor(_) | Self::Cold(_) | Self::Noise(_) | Self::Unknown => false,
            Self::Constants(draw) => {
                changed.profile = drawn(profile, draw);
                true
            }
            Self::TcpFallback(threads) => told(
                &|q| {
                    let transport = &mut q.settings.transport;
                    transport.socket_threads = threads.or(transport.socket_threads);
                    std::mem::replace(&mut transport.interface, Interface::Sockets) == Interface::Data
                },
                &mut changed.questions,
            ),
            Self::OnePort(gbit) => {
                changed.topology = with_management(topology, gbit)?;
                told(
                    &|q| {
                        std::mem::replace(&mut q.settings.transport.interface, Interface::Management)
                            != Interface::Management
                    },
                    &mut changed.questions,
                )
            }
            Self::GpudirectOff => told(
                &|q| std::mem::replace(&mut q.settings.transport.gdr_level, PathClass::Loc) != PathClass::Loc,
                &mut changed.questions,
            ),
            Self::PeerAccessOff => told(
                &|q| std::mem::replace(&mut q.settings.transport.peer_access, PeerAccess::Off) == PeerAccess::On,
                &mut changed.questions,
            ),
            Self::NicsUsed(used) => {
                changed.topology = with_nics(topology, used)?;
                true
            }
            Self::Slow(part, percent) => {
                changed.topology = with_slow(topology, part, percent, None)?;
                true
            }
            Self::SlowGpu(percent) => {
                slow_down(&mut changed.profile, f64::from(percent) / 100.0);
                true
            }
            Self::Channels(most) => told(
                &|q| {
                    let nccl = &mut q.settings.nccl;
                    let (_, before) = nccl.channels();
                    for least in [&mut nccl.min_channels, &mut nccl.min_ctas] {
                        *least = least.map(|c| c.min(most));
                    }
                    nccl.nvls_channels = Some(nccl.nvls_channels.unwrap_or(most).min(most));
                    nccl.max_channels = Some(most);
                    before.is_none_or(|c| c > most)
                },
                &mut changed.questions,
            ),
            Self::Algorithm(algorithm) => told(
                &|q| {
                    q.settings.nccl.algorithms = Selection::only(algorithm);
                    q.algorithm == crate::predict::Choice::Auto
                },
                &mut changed.questions,
            ),
            Self::Protocol(protocol) => told(
                &|q| {
                    q.settings.nccl.protocols = Selection::only(protocol);
                    q.protocol == crate::predict::Choice::Auto
                },
                &mut changed.questions,
            ),
            Self::NvlsOff => told(
                &|q| q.settings.nccl.nvls.replace(false) != Some(false) && q.algorithm == crate::predict::Choice::Auto,
                &mut changed.questions,
            ),
            Self::SharpOff => told(&|q| std::mem::take(&mut q.settings.nccl.collnet), &mut changed.questions),
        };
        Ok(any.then_some(changed))
    }
}

/// A fault whose severity lies between two that were simulated.
#[derive(Clone, Debug)]
pub(super) struct Between {
    pub(super) fault: Fault,
    /// Its times, in the unit of theirs.
    pub(super) curve: Vec<f64>,
    /// Indices of the two; twice the same where the other is the healthy machine.
    pub(super) of: [usize; 2],
}

/// Steps of severities, as a logarithm: finer than what noise leaves of a curve.
const SEVERITY_STEP: f64 = 0.15;

/// Faults between neighbouring severities, of which the mildest is `healthy`: the logarithm of a time goes straight from
/// one to the other over the logarithm of the severity. What is bound by a rate does; around the size where another bound
/// takes over it is some percent off.
pub(super) fn between(simulated: &[(Fault, Vec<f64>)], healthy: &[f64]) -> Vec<Between> {
    let mut curves: Vec<(Fault, &[f64], usize)> =
        simulated.iter().enumerate().map(|(index, (fault, curve))| (*fault, &**curve, index)).collect();
    for (index, (fault, _)) in simulated.iter().enumerate() {
        if let Some(mildest) = fault.as_healthy().filter(|mildest| curves.iter().all(|curve| curve.0 != *mildest)) {
            curves.push((mildest, healthy, index));
        }
    }
    let mut found = Vec::new();
    let severity = |index: usize| ({ curves[index].0 }).severity().copied();
    for low in 0..curves.len() {
        let Some(from) = severity(low) else { continue };
        let others = (0..curves.len()).filter_map(|i| Some((severity(i)?, i)));
        let same = others.filter(|&(to, i)| to > from && curves[i].0.as_bad_as(from) == Some(curves[low].0));
        let Some((to, high)) = same.min() else { continue };
        let span = (f64::from(to) / f64::from(from)).ln();
        let steps = (span / SEVERITY_STEP).ceil();
        let mut last = from;
        for step in (1..).map(f64::from).take_while(|&s| s < steps) {
            let wanted = (f64::from(from) * (span * step / steps).exp()).round() as u32;
            if wanted <= last || wanted >= to {
                continue;
            }
            last = wanted;
            let x = (f64::from(wanted) / f64::from(from)).ln() / span;
            let time = |(a, b): (&f64, &f64)| a * (b / a).powf(x);
            let curve = curves[low].1.iter().zip(curves[high].1).map(time).collect();
            let Some(fault) = curves[low].0.as_bad_as(wanted) else { continue };
            found.push(Between { fault, curve, of: [curves[low].2, curves[high].2] });
        }
    }
    found
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => write!(f, "the machine as it should be"),
            Self::Constants(draw) => write!(f, "constants within what is known of them, draw {draw}"),
            Self::TcpFallback(None) => write!(f, "TCP sockets in place of RDMA"),
            Self::TcpFallback(Some(threads)) => {
                write!(f, "TCP sockets in place of RDMA, with {threads} helper threads a connection")
            }
            Self::OnePort(gbit) => write!(f, "TCP sockets over one port of {gbit} Gb/s a host"),
            Self::GpudirectOff => write!(f, "NICs that stage in host memory (GPUDirect off)"),
            Self::PeerAccessOff => write!(f, "GPUs of a host that reach each other through host memory (P2P off)"),
            Self::NicsUsed(used) => write!(f, "{used} NICs of a host in use"),
            Self::Slow(Part::Nvlink, percent) => write!(f, "NVLink at {percent}% of its rate"),
            Self::Slow(Part::Pcie, percent) => write!(f, "PCIe at {percent}% of its rate"),
            Self::Slow(Part::Nic, percent) => write!(f, "a NIC port at {percent}% of its rate"),
            Self::Slow(Part::Fabric, percent) => write!(f, "links between switches at {percent}% of their rate"),
            Self::SlowGpu(percent) => write!(f, "a GPU that takes {percent}% of the time for what it does itself"),
            Self::Channels(most) => write!(f, "at most {most} channels"),
            Self::Algorithm(algorithm) => write!(f, "NCCL_ALGO={algorithm}"),
            Self::Protocol(protocol) => write!(f, "NCCL_PROTO={protocol}"),
            Self::NvlsOff => write!(f, "no reduction in NVSwitch"),
            Self::SharpOff => write!(f, "no reduction in the network's switches"),
            Self::LaunchFloor(us) => write!(f, "a launch every {us} us"),
            Self::Cold(sizes) => write!(f, "the first {sizes} sizes cold"),
            Self::Noise(percent) => write!(f, "scatter of {percent}%"),
            Self::Unknown => write!(f, "something else"),
        }
    }
}

/// Half-widths of what constants may be off by, where no fit says more: parts of one kind differ by 15%,
/// estimates by 30%. Both are our estimates.
const KNOWN: f64 = 0.15;
const ASSUMED: f64 = 0.30;

/// Makes all that a GPU's kernels and their blocks do themselves take `factor` times as long.
fn slow_down(profile: &mut Profile, factor: f64) {
    for &constant in Constant::ALL {
        let value = profile[constant].value;
        match constant.role() {
            Role::BlockRate => profile.parameters.set(constant, value / factor),
            Role::BlockTime | Role::Kernel => profile.parameters.set(constant, value * factor),
            _ => {}
        }
    }
}

/// Constants that are each a standard deviation up or down, as the draw says.
fn drawn(profile: &Profile, draw: u32) -> Profile {
    let mut drawn = profile.clone();
    for (index, (constant, parameter)) in (0..).zip(profile.parameters.iter()) {
        let least = if parameter.origin == OriginKind::Assumed { ASSUMED } else { KNOWN };
        // Of a uniform distribution; 90% of a normal one are within 1.645 standard deviations.
        let fitted = parameter.interval.map_or(0.0, |[low, high]| (high / low).ln() / 2.0 / 1.645);
        let deviation = fitted.max(least / 3_f64.sqrt());
        let up = mix(u64::from(draw), index) & 1 == 0;
        // However wide its interval, no value is drawn near zero.
        drawn.parameters.set(constant, parameter.value * if up { 1.0 + deviation } else { 1.0 - deviation.min(0.9) });
    }
    drawn
}

/// A machine of which some links of a part run at a percentage: all, or those of one host.
///
/// # Errors
/// None for a machine that is whole.
pub fn with_slow(
    topology: &Topology,
    part: Part,
    percent: u32,
    only: Option<HostId>,
) -> Result<Topology, TopologyError> {
    let slow = |rate: Bandwidth| {
        let rate = u128::from(rate.get()) * u128::from(percent) / 100;
        Bandwidth::new(u64::try_from(rate).unwrap_or(u64::MAX).max(1)).expect("at least 1 B/s")
    };
    with_rate(topology, part, &slow, only)
}

/// A machine of which some links of a part have another rate: all, or those of one host. The rate of a NIC goes with it.
///
/// # Errors
/// None for a machine that is whole.
pub fn with_rate(
    topology: &Topology,
    part: Part,
    at: &dyn Fn(Bandwidth) -> Bandwidth,
    only: Option<HostId>,
) -> Result<Topology, TopologyError> {
    let here = |v: &Vertex| only.is_none() || v.host == only;
    let slow = |from: &Vertex, to: &Vertex, link: Link| {
        let hit = match part {
            Part::Nvlink => link.kind == LinkKind::Nvlink,
            Part::Pcie => link.kind == LinkKind::Pcie,
            Part::Nic => link.kind.is_network() && (is_data_nic(from) || is_data_nic(to)),
            Part::Fabric => {
                matches!((&from.kind, &to.kind), (VertexKind::NetSwitch { .. }, VertexKind::NetSwitch { .. }))
            }
        };
        Some(if hit && (here(from) || here(to)) { Link { rate: at(link.rate), ..link } } else { link })
    };
    let kind = |v: &Vertex| match &v.kind {
        VertexKind::Nic(nic) if part == Part::Nic && !nic.management && here(v) => {
            VertexKind::Nic(Nic { rate: at(nic.rate), ..nic.clone() })
        }
        other => other.clone(),
    };
    topology.edited(kind, slow).build_like(topology)
}

fn is_data_nic(vertex: &Vertex) -> bool {
    matches!(&vertex.kind, VertexKind::Nic(nic) if !nic.management)
}

/// A machine whose hosts use `used` of their NICs, spread evenly over them.
fn with_nics(topology: &Topology, used: u32) -> Result<Topology, TopologyError> {
    let mut down = std::collections::BTreeSet::new();
    for host in topology.hosts() {
        let of = host.nics.len();
        for (index, &nic) in host.nics.iter().enumerate() {
            // Every n/used-th of them.
            if index * used as usize % of.max(1) >= used as usize {
                down.insert(topology.vertex(nic).name.clone());
            }
        }
    }
    let cut = |from: &Vertex, to: &Vertex, link: Link| {
        let dead = link.kind.is_network() && (down.contains(&from.name) || down.contains(&to.name));
        (!dead).then_some(link)
    };
    topology.edited(|v| v.kind.clone(), cut).build_like(topology)
}

/// What the links of a management NIC to its CPU carry, in GB/s: 8 lanes of PCIe 4.0, more than any of its ports.
const MANAGEMENT_PCIE: f64 = 16.0;

/// A machine with one more NIC of each host, for management, all at one switch.
fn with_management(topology: &Topology, gbit: u32) -> Result<Topology, TopologyError> {
    // Those that the machine has are taken out of use, so that the rate is that of the new one.
    let kind = |v: &Vertex| match &v.kind {
        VertexKind::Nic(nic) if nic.management => VertexKind::Nic(Nic { management: false, ..nic.clone() }),
        other => other.clone(),
    };
    let without = |from: &Vertex, to: &Vertex, link: Link| {
        let management = |v: &Vertex| matches!(&v.kind, VertexKind::Nic(nic) if nic.management);
        (!(link.kind.is_network() && (management(from) || management(to)))).then_some(link)
    };
    let mut builder = topology.edited(kind, without);
    let rate = Bandwidth::from_gb_per_s(f64::from(gbit) / 8.0);
    let switch = builder.vertex("doctor/management", VertexKind::NetSwitch { level: 0 }, None);
    for (index, host) in (0..).zip(topology.hosts()) {
        let Some(&cpu) = host.cpus.first() else { continue };
        let nic = Nic {
            index: 1000,
            name: "management".to_owned(),
            kind: LinkKind::Ethernet,
            rate,
            gpudirect: false,
            gpudirect_rate: None,
            rail: None,
            card: None,
            management: true,
            latency: None,
        };
        let nic = builder.vertex(format!("doctor/nic{index}"), VertexKind::Nic(nic), Some(HostId(index)));
        builder.duplex(
            cpu,
            nic,
            Link { kind: LinkKind::Pcie, rate: Bandwidth::from_gb_per_s(MANAGEMENT_PCIE), width: 8 },
        );
        builder.duplex(nic, switch, Link { kind: LinkKind::Ethernet, rate, width: 1 });
    }
    builder.build_like(topology)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a slow GPU is slow in all that its kernels and their blocks do themselves, and in nothing else: links,
    /// hosts, memory and the ratios of instructions are as before.
    #[test]
    fn a_slow_gpu_slows_what_it_does_itself() {
        let healthy = Profile::builtin("h200-nvswitch").unwrap();
        let mut slow = healthy.clone();
        slow_down(&mut slow, 2.0);
        let mut changed = Vec::new();
        for &constant in Constant::ALL {
            let (before, after) = (healthy[constant].value, slow[constant].value);
            let expected = match constant.spec().unit {
                _ if !constant.role().is_of_blocks() => before,
                "GB/s" => before / 2.0,
                _ => before * 2.0,
            };
            assert_eq!(after, expected, "{constant}");
            changed.extend((after != before).then_some(constant.name()));
        }
        let mut families: Vec<&str> = changed.iter().filter_map(|name| name.split('.').next()).collect();
        families.dedup();
        assert_eq!(families, ["sync", "both", "after", "block", "kernel", "kernel_warp", "kernel"]);
        assert_eq!(changed.len(), 15);
    }

    /// Goal: between two rates, and between one and the healthy machine, the time is that of the rate where rates bound it,
    /// and severities are whole.
    #[test]
    fn severities_between_are_those_of_the_rate() {
        let curves = [
            (Fault::Slow(Part::Nic, 50), vec![10.0, 200.0]),
            (Fault::Healthy, vec![10.0, 100.0]),
            (Fault::Slow(Part::Nic, 25), vec![10.0, 400.0]),
            (Fault::Slow(Part::Pcie, 30), vec![10.0, 300.0]),
            (Fault::Channels(2), vec![1.0, 1.0]),
            (Fault::Channels(4), vec![1.0, 1.0]),
            (Fault::Channels(1), vec![1.0, 1.0]),
        ];
        let found = between(&curves, &curves[1].1);
        let channels: Vec<Fault> = found.iter().map(|b| b.fault).filter(|f| matches!(f, Fault::Channels(_))).collect();
        assert_eq!(channels, [Fault::Channels(3)]);
        let nics: Vec<_> = found.iter().filter(|b| b.of == [2, 0]).collect();
        let mild: Vec<_> = found.iter().filter(|b| b.of == [0, 0]).collect();
        let pcie = found.iter().filter(|b| matches!(b.fault, Fault::Slow(Part::Pcie, 31..100))).count();
        assert_eq!((nics.len(), mild.len(), pcie, found.len()), (4, 4, 8, 17));
        for b in nics.into_iter().chain(mild) {
            let percent = { b.fault }.severity().copied().unwrap_or_default();
            assert_eq!(b.fault, Fault::Slow(Part::Nic, percent));
            assert!((b.curve[0] - 10.0).abs() < 1e-9, "{b:?}");
            assert!((b.curve[1] * f64::from(percent) - 1e4).abs() < 1e-6, "{b:?}");
        }
    }
}
