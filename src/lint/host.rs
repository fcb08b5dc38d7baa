//! A host, read through a folder that stands for its `/`: what the kernel, the limits and the libraries say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use collcast_topologies::input;

use super::finding::Finding;
use super::found::Found;
use super::launch::{SHM_LEAST, ports, size};
use super::setting::Scope;
use crate::error::Error;
use crate::values::plural;

/// Most entries of a folder that are looked at.
const ENTRIES_MAX: usize = 4096;
/// Most bytes of a file of /proc or /sys that are looked at.
const BYTES_MAX: u64 = 1 << 20;
/// Locked memory below which NCCL's own buffers do not fit, in bytes: 4 MiB a channel and peer, with 64 channels. Our
/// estimate; sites set it to `unlimited`.
const MEMLOCK_LEAST: u64 = 256 << 20;

/// Folders of `/` of which a host has one at least.
const FOLDERS: [&str; 3] = ["proc", "sys", "etc"];

/// Looks at a host; says in words what was checked, and what was not since its file cannot be read. None where nothing was.
///
/// # Errors
/// A folder that is not `/` of a host.
pub(super) fn check(root: &Path, findings: &mut Vec<Finding>) -> Result<Option<String>, Error> {
    if !FOLDERS.iter().any(|folder| root.join(folder).is_dir()) {
        let what = if root.is_dir() { "has no folder proc, sys or etc" } else { "is no folder" };
        return Err(Error::usage(
            format!("`{}` {what}: it is not `/` of a host", root.display()),
            "name the folder where the host's `/` is mounted, such as --host-root /host",
        ));
    }
    let mut host = Host { root, findings };
    let checks = [
        ("ports", "/proc/sys/net/ipv4/ip_local_port_range", host.ports()),
        ("locked memory", "/proc/self/limits", host.memlock()),
        ("/dev/shm", "/proc/mounts", host.shm()),
        ("RDMA devices", "/sys/class/infiniband", host.rdma()),
        ("PCIe bridges", "/sys/bus/pci/devices/*/config whole, as root can", host.bridges()),
        ("IOMMU", "/proc/cmdline", host.iommu()),
        ("CPU mask", "/proc/self/status", host.cores()),
        ("versions of NCCL", "folders of libraries", host.libraries()),
    ];
    let ran: Vec<&str> = checks.iter().filter(|(.., ran)| ran.is_some()).map(|(name, ..)| *name).collect();
    let unread = checks.iter().filter(|(.., ran)| ran.is_none());
    let unread: Vec<String> = unread.map(|(name, file, _)| format!("{name} (cannot read {file})")).collect();
    let left = if unread.is_empty() { String::new() } else { format!("; not checked: {}", unread.join(", ")) };
    let count = plural(ran.len(), "check", "checks");
    Ok((!ran.is_empty()).then(|| format!("{count} of the host ran: {}{left}", ran.join(", "))))
}

struct Host<'h> {
    root: &'h Path,
    findings: &'h mut Vec<Finding>,
}

/// Checks; none where what it reads is not there.
impl Host<'_> {
    fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        input::open(&self.root.join(path)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn text(&self, path: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(path)?).into_owned())
    }

    /// Names of a folder, in order.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten().take(ENTRIES_MAX);
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn add(&mut self, rule: &str, path: &str, line: Option<u64>, what: impl Into<String>) {
        Found::of(format!("/{path}"), self.findings).add(rule, line, what);
    }

    fn ports(&mut self) -> Option<()> {
        const PATH: &str = "proc/sys/net/ipv4/ip_local_port_range";
        let mut scope = Scope::default();
        ports(&self.text(PATH)?, None, &mut scope);
        for sign in scope.signs {
            self.add(sign.rule, PATH, None, sign.what);
        }
        Some(())
    }

    fn memlock(&mut self) -> Option<()> {
        const PATH: &str = "proc/self/limits";
        let text = self.text(PATH)?;
        let (number, line) = (1..).zip(text.lines()).find(|(_, line)| line.starts_with("Max locked memory"))?;
        let soft = line.split_whitespace().nth(3).and_then(|limit| limit.parse::<u64>().ok());
        if let Some(limit) = soft.filter(|&limit| limit < MEMLOCK_LEAST && self.has_rdma()) {
            self.add("memlock", PATH, Some(number), format!("{} KiB may be locked", limit >> 10));
        }
        Some(())
    }

    /// The `size=` of the file system at /dev/shm.
    fn shm(&mut self) -> Option<()> {
        const PATH: &str = "proc/mounts";
        let text = self.text(PATH)?;
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let options = words.get(3).filter(|_| words.get(1) == Some(&"/dev/shm"));
            let limit = options.and_then(|o| o.split(',').find_map(|option| option.strip_prefix("size=")));
            if let Some(limit) = limit.filter(|limit| size(limit).is_some_and(|bytes| bytes < SHM_LEAST)) {
                self.add("small-shm", PATH, Some(number), format!("/dev/shm holds {limit}"));
            }
        }
        Some(())
    }

    fn has_rdma(&self) -> bool {
        !self.names("sys/class/infiniband").is_empty()
    }

    fn rdma(&mut self) -> Option<()> {
        let devices = Some(self.names("sys/class/infiniband")).filter(|devices| !devices.is_empty())?;
        if !self.names("dev/infiniband").iter().any(|name| name.starts_with("uverbs")) {
            let what = format!("{} RDMA devices in /sys, and no uverbs device", devices.len());
            self.add("no-rdma-device", "dev/infiniband", None, what);
        }
        let peer = ["nvidia_peermem", "nv_peer_mem"].iter().any(|m| self.root.join("sys/module").join(m).exists());
        if !peer && self.root.join("sys/module/nvidia").exists() {
            self.add("no-peer-memory", "sys/module", None, "neither nvidia_peermem nor nv_peer_mem is loaded");
        }
        for device in devices {
            for port in self.names(&format!("sys/class/infiniband/{device}/ports")) {
                let path = format!("sys/class/infiniband/{device}/ports/{port}/state");
                // `4: ACTIVE`, by the kernel's `ib_port_state`.
                let state = self.text(&path).unwrap_or_default();
                if !state.is_empty() && !state.trim().starts_with('4') {
                    self.add("port-down", &path, None, format!("port {port} of {device} is {}", state.trim()));
                }
            }
        }
        Some(())
    }

    /// PCIe bridges whose access control sends traffic between devices upwards. Only root reads what says it.
    fn bridges(&mut self) -> Option<()> {
        let mut on = Vec::new();
        let mut read = false;
        for device in self.names("sys/bus/pci/devices") {
            let config = self.bytes(&format!("sys/bus/pci/devices/{device}/config")).unwrap_or_default();
            read |= config.len() > EXTENDED;
            on.extend(redirects(&config).then_some(device));
        }
        if let Some(first) = on.first() {
            let what = format!("{} bridges redirect traffic between devices, {first} first", on.len());
            self.add("acs-on", &format!("sys/bus/pci/devices/{first}/config"), None, what);
        }
        read.then_some(())
    }

    /// An IOMMU that translates.
    fn iommu(&mut self) -> Option<()> {
        let line = self.text("proc/cmdline")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let on = words.iter().find(|w| matches!(**w, "intel_iommu=on" | "amd_iommu=on" | "iommu=on" | "iommu=force"));
        if let Some(on) = on.filter(|_| !words.iter().any(|w| matches!(*w, "iommu=pt" | "iommu.passthrough=1"))) {
            self.add("iommu-on", "proc/cmdline", None, format!("the kernel runs with {on} and without iommu=pt"));
        }
        Some(())
    }

    /// The mask of CPUs, beside the NUMA nodes of GPUs.
    fn cores(&mut self) -> Option<()> {
        const PATH: &str = "proc/self/status";
        let text = self.text(PATH)?;
        let (number, line) = (1..).zip(text.lines()).find(|(_, line)| line.starts_with("Cpus_allowed_list:"))?;
        let list = line.split_once(':')?.1.trim();
        let allowed = cpus(list);
        let online = cpus(self.text("sys/devices/system/cpu/online").unwrap_or_default().trim());
        if allowed.len() == 1 && online.len() != 1 {
            self.add("one-core", PATH, Some(number), format!("the mask is CPU {list}"));
            return Some(());
        }
        let mut far: BTreeMap<String, usize> = BTreeMap::new();
        for device in self.names("sys/bus/pci/devices") {
            let read = |what: &str| self.text(&format!("sys/bus/pci/devices/{device}/{what}")).unwrap_or_default();
            let is_gpu = read("class").trim().starts_with("0x03") && read("vendor").trim() == "0x10de";
            let node = read("numa_node").trim().to_owned();
            let near =
                cpus(self.text(&format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default().trim());
            if is_gpu && !near.is_empty() && near.is_disjoint(&allowed) {
                *far.entry(node).or_default() += 1;
            }
        }
        for (node, gpus) in far {
            let what = format!("the mask {list} has no CPU of NUMA node {node}, where {gpus} GPUs are");
            self.add("far-cores", PATH, Some(number), what);
        }
        Some(())
    }

    /// NCCL of the system beside that of Python packages.
    fn libraries(&mut self) -> Option<()> {
        let of_system =
            ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib", "opt/nccl/lib"];
        let of_python = ["usr/lib", "usr/local/lib", "opt/venv/lib", "opt/conda/lib"];
        if !of_system.iter().chain(&of_python).any(|folder| self.root.join(folder).is_dir()) {
            return None;
        }
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for folder in of_system {
            for name in self.names(folder) {
                let version = name.strip_prefix("libnccl.so.").filter(|v| v.matches('.').count() == 2);
                found.extend(version.map(|version| (version.to_owned(), Path::new(folder).join(&name))));
            }
        }
        for place in of_python {
            for python in self.names(place).into_iter().filter(|name| name.starts_with("python3")) {
                for packages in ["site-packages", "dist-packages"] {
                    let folder = format!("{place}/{python}/{packages}");
                    for name in self.names(&folder).into_iter().filter(|name| name.starts_with("nvidia_nccl_cu")) {
                        let version = name.strip_suffix(".dist-info").and_then(|n| n.rsplit_once('-')).map(|(_, v)| v);
                        found.extend(version.map(|version| (version.to_owned(), Path::new(&folder).join(&name))));
                    }
                }
            }
        }
        // Builds of one release have a fourth number.
        let release = |version: &str| version.split('.').take(3).collect::<Vec<_>>().join(".");
        if let [(one, at), rest @ ..] = found.as_slice()
            && let Some((other, place)) = rest.iter().find(|(other, _)| release(other) != release(one))
        {
            let what = format!("NCCL {one} in /{}, {other} in /{}", at.display(), place.display());
            self.add("two-nccls", &place.display().to_string(), None, what);
        }
        Some(())
    }
}

/// CPUs of a list such as `0-3,8`; at most as many as Linux can have.
fn cpus(list: &str) -> BTreeSet<u32> {
    /// `NR_CPUS` of x86-64 kernels of distributions.
    const CPUS_MAX: u32 = 8192;
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?))
    });
    ranges.flat_map(|(first, last)| first..=last.min(CPUS_MAX)).collect()
}

/// Where extended capabilities begin in the configuration space of a PCI device; who is not root reads less.
const EXTENDED: usize = 0x100;

/// Whether the configuration space of a PCI device has access control that redirects requests between peers upwards.
///
/// PCI Express Base Specification, 7.7.11: extended capability 0x000d, whose control register is 6 bytes in; bit 2 is P2P
/// Request Redirect, bit 3 P2P Completion Redirect.
fn redirects(config: &[u8]) -> bool {
    const ACS: u32 = 0x000d;
    const REDIRECT: u8 = 0b1100;
    let mut at = EXTENDED;
    // Each capability takes 4 bytes or more of 4 KiB, so a list that is longer is a circle.
    for _ in 0..1024 {
        let Some(header) = config.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes) else {
            return false;
        };
        if header & 0xffff == ACS {
            return config.get(at + 6).is_some_and(|control| control & REDIRECT != 0);
        }
        at = (header >> 20) as usize;
        if at < EXTENDED {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lists of CPUs, and the capability wherever it is in the list; circles end.
    #[test]
    fn lists_and_capabilities() {
        assert_eq!(cpus("0-2,8").into_iter().collect::<Vec<_>>(), [0, 1, 2, 8]);
        assert!(cpus("x,4-1").is_empty());
        let mut config = vec![0; 0x200];
        config[0x100..0x104].copy_from_slice(&(1_u32 | 0x148 << 20).to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x000d_u32.to_le_bytes());
        assert!(!redirects(&config));
        config[0x14e] = 0x1d;
        assert!(redirects(&config));
        config[0x100..0x104].copy_from_slice(&(1_u32 | 0x100 << 20).to_le_bytes());
        assert!(!redirects(&config));
        assert!(!redirects(&config[..64]));
    }
}
