//! What kind of host this is, by what its kernel lists: GPUs, NVSwitches, ports of NICs. A table that was measured on one
//! kind says so, and is refused where the GPUs or NVSwitches are of another. NICs never refuse one, nor does how many there are
//! of anything: a port that is down, a NIC for storage or a GPU that fell off the bus is of one host, and its ranks must
//! choose as those of the others do.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// NVIDIA's number among makers of PCI devices.
const NVIDIA: &str = "0x10de";
/// Classes of PCI devices, without their programming interface: displays and 3D controllers, which GPUs are.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// Bridges of no other class, which NVSwitches are.
const SWITCH_CLASS: &str = "0x0680";

/// Names of the parts, as `# for:` has them.
pub const PARTS: [&str; 3] = ["gpus", "switches", NICS];
/// The part that hosts of one job may have otherwise.
pub const NICS: &str = "nics";

/// A kind of host, part by part; none where it is not known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Host([Option<String>; 3]);

impl Host {
    /// The host that this runs on.
    pub fn here() -> Self {
        Self::of(Path::new("/sys"))
    }

    /// What a `/sys` lists.
    pub fn of(sys: &Path) -> Self {
        let (mut gpus, mut switches, mut ports) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for device in entries(&sys.join("bus/pci/devices")) {
            let is = |name: &str| text(&device.join(name));
            if is("vendor").as_deref() != Some(NVIDIA) {
                continue;
            }
            let (Some(class), Some(number)) = (is("class"), is("device")) else { continue };
            let kind = class.get(..6).unwrap_or_default();
            let of = match () {
                () if GPU_CLASSES.contains(&kind) => &mut gpus,
                () if kind == SWITCH_CLASS => &mut switches,
                () => continue,
            };
            *of.entry(number.trim_start_matches("0x").to_owned()).or_insert(0_u32) += 1;
        }
        for port in entries(&sys.join("class/infiniband")).iter().flat_map(|nic| entries(&nic.join("ports"))) {
            // `400 Gb/sec (4X NDR)`.
            if let Some(rate) = text(&port.join("rate")).and_then(|rate| Some(rate.split(' ').next()?.to_owned())) {
                *ports.entry(rate).or_insert(0_u32) += 1;
            }
        }
        // Who sees no GPU sees no switch either: that says nothing.
        let sees = !gpus.is_empty();
        Self([
            counted(&gpus),
            if sees && switches.is_empty() { Some("none".to_owned()) } else { counted(&switches) },
            counted(&ports),
        ])
    }

    /// A part, by its name.
    pub fn part(&self, name: &str) -> Option<&str> {
        PARTS.iter().position(|known| *known == name).and_then(|at| self.0[at].as_deref())
    }
}

/// The kinds of a part: `400` and `200` of `8x400+2x200`, `none` of `none`.
pub fn kinds(part: &str) -> impl Iterator<Item = &str> {
    part.split('+').map(|counted| counted.split_once('x').map_or(counted, |(_, kind)| kind))
}

/// `8x2330`, `8x400+2x200`; none where there is nothing.
fn counted(of: &BTreeMap<String, u32>) -> Option<String> {
    let parts: Vec<String> = of.iter().map(|(kind, count)| format!("{count}x{kind}")).collect();
    (!parts.is_empty()).then(|| parts.join("+"))
}

fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    /// Goal: devices are counted by kind, those of others are not, and what is not there is not known.
    #[test]
    fn devices_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(Host::of(folder.path()), Host::default());
        let devices = [
            ("0x10de", "0x2330", "0x030200"),
            ("0x10de", "0x2330", "0x030200"),
            ("0x10de", "0x22a3", "0x068000"),
            ("0x15b3", "0x1021", "0x020700"),
            ("0x1a03", "0x2000", "0x030000"),
        ];
        for (at, (vendor, device, class)) in devices.into_iter().enumerate() {
            for (name, text) in [("vendor", vendor), ("device", device), ("class", class)] {
                write(format!("bus/pci/devices/{at}/{name}"), &format!("{text}\n"));
            }
        }
        let host = Host::of(folder.path());
        assert_eq!(PARTS.map(|part| host.part(part)), [Some("2x2330"), Some("1x22a3"), None]);
        for (nic, rate) in [
            ("mlx5_0", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_1", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_2", "25 Gb/sec (1X EDR)\n"),
        ] {
            write(format!("class/infiniband/{nic}/ports/1/rate"), rate);
        }
        fs::remove_dir_all(folder.path().join("bus/pci/devices/2")).unwrap();
        let host = Host::of(folder.path());
        assert_eq!(PARTS.map(|part| host.part(part)), [Some("2x2330"), Some("none"), Some("1x25+2x400")]);
        assert_eq!(host.part("other"), None);
    }
}
