//! What links carry and how long news takes over them: NVLink, PCIe, networks and who serves them on a host.

use super::{Constant, OriginKind, Profile};
use crate::collective::Protocol;
use crate::topology::LinkKind;
use crate::units::{Bandwidth, SimDuration};

/// The worst part of a route, which sets its latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Reach {
    /// NVLink only.
    Nvlink,
    /// Through PCIe or the CPU.
    Pcie,
    /// Through the network, with RDMA.
    Network,
    /// Through the network, with EFA's reliable datagrams, which its provider orders in software.
    Efa,
    /// Through the network, with TCP.
    Tcp,
}

impl Profile {
    /// Share of a link's nominal rate that payload gets.
    pub fn efficiency(&self, kind: LinkKind) -> f64 {
        self.value(match kind {
            LinkKind::Nvlink => Constant::EfficiencyNvlink,
            LinkKind::C2c => Constant::EfficiencyC2c,
            LinkKind::Pcie => Constant::EfficiencyPcie,
            LinkKind::CpuInterconnect => Constant::EfficiencyCpuInterconnect,
            LinkKind::Infiniband => Constant::EfficiencyInfiniband,
            LinkKind::Roce | LinkKind::Slingshot => Constant::EfficiencyRoce,
            LinkKind::Efa => Constant::EfficiencyEfa,
            LinkKind::Ethernet => Constant::EfficiencyEthernet,
        })
    }

    /// What blocks of a GPU that sends to several peers get of its NVLink: stores that wait for one hold up others.
    pub fn turns(&self, protocol: Protocol) -> f64 {
        self.value(match protocol {
            Protocol::Ll => Constant::TurnsLl,
            Protocol::Ll128 => Constant::TurnsLl128,
            Protocol::Simple => Constant::TurnsSimple,
        })
    }

    /// Share of a link's nominal rate that payload gets which NVSwitch reduces or multicasts.
    pub fn efficiency_multimem(&self) -> f64 {
        self.value(Constant::EfficiencyNvlinkMultimem)
    }

    /// Share of a port's nominal rate that payload gets which switches of the network reduce.
    pub fn efficiency_sharp(&self) -> f64 {
        self.value(Constant::EfficiencySharp)
    }

    /// Latency of a connection through an NVSwitch that reduces or multicasts: that of its counter, which says no
    /// more than those of other connections, and what is left of the whole: the round trip of the data, for which
    /// the warps wait that load a sum, or that fence a multicast.
    pub fn latency_multimem(&self) -> (SimDuration, SimDuration) {
        let (whole, counter) = (self.time(Constant::LatencyNvlinkMultimem), self.time(Constant::LatencyNvlinkSimple));
        let counter = counter.min(whole);
        (counter, SimDuration(whole.0 - counter.0))
    }

    /// Latency of a connection through switches of the network that reduce.
    pub fn latency_sharp(&self) -> SimDuration {
        self.time(Constant::LatencyNetworkSharp)
    }

    /// Whether all constants of reduction in switches were measured: in NVSwitch, in the network.
    pub fn switches_measured(&self) -> (bool, bool) {
        let measured = |constant| self[constant].origin <= OriginKind::Anchor;
        let both = |a, b| measured(a) && measured(b);
        (
            both(Constant::EfficiencyNvlinkMultimem, Constant::LatencyNvlinkMultimem),
            both(Constant::EfficiencySharp, Constant::LatencyNetworkSharp),
        )
    }

    /// Latency of a connection whose worst part is `reach`.
    pub fn latency(&self, reach: Reach, protocol: Protocol) -> SimDuration {
        let tcp = if reach == Reach::Tcp { self.tcp() } else { SimDuration::ZERO };
        self.time(match (reach, protocol) {
            (Reach::Nvlink, Protocol::Ll) => Constant::LatencyNvlinkLl,
            (Reach::Nvlink, Protocol::Ll128) => Constant::LatencyNvlinkLl128,
            (Reach::Nvlink, Protocol::Simple) => Constant::LatencyNvlinkSimple,
            (Reach::Pcie, Protocol::Ll) => Constant::LatencyPcieLl,
            (Reach::Pcie, Protocol::Ll128) => Constant::LatencyPcieLl128,
            (Reach::Pcie, Protocol::Simple) => Constant::LatencyPcieSimple,
            (Reach::Efa, _) => Constant::LatencyNetworkEfa,
            (_, Protocol::Ll) => Constant::LatencyNetworkLl,
            (_, Protocol::Ll128) => Constant::LatencyNetworkLl128,
            (_, Protocol::Simple) => Constant::LatencyNetworkSimple,
        }) + tcp
    }

    /// Of a load from host memory by a block.
    pub fn host_read(&self) -> SimDuration {
        self.time(Constant::LatencyPcieRead)
    }

    /// From one end of a network connection to the other without data: that a place is free, or that
    /// a transfer has ended. Sockets take data into the kernel's buffers at once, and ask for it there.
    pub fn control(&self, reach: Reach) -> SimDuration {
        match reach {
            Reach::Tcp => SimDuration::ZERO,
            Reach::Efa => self.time(Constant::LatencyNetworkEfaControl),
            _ => self.time(Constant::LatencyNetworkControl),
        }
    }

    /// Of the read that flushes data of Simple which RDMA wrote into GPU memory. EFA reads through the NIC, as a message to
    /// itself (aws-ofi-nccl, its `flush`).
    pub fn flush(&self, reach: Reach) -> SimDuration {
        self.time(if reach == Reach::Efa { Constant::LatencyNetworkEfa } else { Constant::NetworkFlush })
    }

    /// What TCP adds to a slice's network latency.
    pub fn tcp(&self) -> SimDuration {
        self.time(Constant::LatencyNetworkTcp)
    }

    /// Work of a rank's proxy thread to post a slice with RDMA.
    pub fn proxy(&self) -> SimDuration {
        self.time(Constant::NetworkProxy)
    }

    /// Work of a rank's proxy thread on a slice that RDMA brought.
    pub fn receive(&self) -> SimDuration {
        self.time(Constant::NetworkReceive)
    }

    /// Lines of LL that a proxy thread checks in host memory before it sends them.
    pub fn lines(&self, amd: bool) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(if amd { Constant::ProxyLinesAmd } else { Constant::ProxyLines }))
    }

    /// Work of a proxy thread on a slice at each end of a connection over sockets.
    pub fn socket_message(&self) -> SimDuration {
        self.time(Constant::TcpMessage)
    }

    /// What one host thread copies into or out of sockets.
    pub fn proxy_thread(&self) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(Constant::TcpThread))
    }

    /// What the memory of a CPU socket reads and writes together.
    pub fn host_memory(&self, arm: bool) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(if arm { Constant::HostMemoryArm } else { Constant::HostMemory }))
    }

    /// Between hosts, from the wish for a transfer until its first bytes are posted.
    pub fn transfer_request(&self) -> SimDuration {
        self.time(Constant::TransferRequest)
    }

    /// Work on each contiguous piece of a transfer through a NIC.
    pub fn transfer_descriptor(&self) -> SimDuration {
        self.time(Constant::TransferDescriptor)
    }

    /// Memory that a host registers with its NICs.
    pub fn registration(&self) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(Constant::TransferRegister))
    }

    /// What an NVMe drive reads and writes: where that was measured, or nothing says what the drive's are.
    pub fn drive(&self, nominal: Option<(Bandwidth, Bandwidth)>) -> (Bandwidth, Bandwidth) {
        let rate = |constant, nominal: Option<Bandwidth>| {
            let own = Bandwidth::from_gb_per_s(self.value(constant));
            let measured = self[constant].origin == OriginKind::Measured;
            nominal.filter(|_| !measured).unwrap_or(own)
        };
        let (read, write) = nominal.unzip();
        (rate(Constant::DriveRate, read), rate(Constant::DriveWrite, write))
    }

    /// From a request to an NVMe drive to its first byte.
    pub fn drive_latency(&self) -> SimDuration {
        self.time(Constant::DriveLatency)
    }

    /// What one thread copies between page cache and a buffer.
    pub fn file_thread(&self) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.value(Constant::FileThread))
    }

    /// An object store: what one request carries, and the time to its first byte.
    pub fn store(&self) -> (Bandwidth, SimDuration) {
        (Bandwidth::from_gb_per_s(self.value(Constant::StoreRequest)), self.time(Constant::StoreLatency))
    }

    /// What copy engines get of NVLink's nominal rate.
    pub fn copy_engine(&self) -> f64 {
        self.value(Constant::EfficiencyNvlinkCopyEngine)
    }
}
