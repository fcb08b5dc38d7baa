//! Figures of products and buses: nominal rates, each with its source.
//!
//! A rate is one direction. NVLink is the data-sheet figure; PCIe and the link between CPU
//! sockets follow NCCL's rule (`src/graph/topo.h`, `topo.cc`), so that a machine read from
//! NCCL's XML and one written by hand agree.

use collcast_sim::nccl::nvlink::Nvlinks;
use collcast_sim::units::Bandwidth;

/// A GPU product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Product {
    /// Name, such as `H100-SXM5-80GB`.
    pub name: &'static str,
    /// PCI device ids (vendor 0x10de); source: the pci.ids database.
    pub device_ids: &'static [u32],
    /// Compute capability times ten; source: NVIDIA, "CUDA GPUs" table.
    pub compute_capability: u32,
    /// Nominal memory rate in GB/s; source: `source`.
    pub memory_gb_per_s: f64,
    /// Streaming multiprocessors; source: `source`, or NVIDIA's architecture paper of its family.
    pub sms: u32,
    /// PCIe generation of its host link; source: `source`.
    pub pcie_generation: u32,
    /// Where the figures come from.
    pub source: &'static str,
}

impl Product {
    /// Nominal memory rate.
    pub fn memory_rate(&self) -> Bandwidth {
        Bandwidth::from_gb_per_s(self.memory_gb_per_s)
    }
}

/// An NVMe drive on four PCIe lanes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Drive {
    /// Name in topology files.
    pub name: &'static str,
    /// Sequential reads in GB/s; source: `source`.
    pub read_gb_per_s: f64,
    /// Sequential writes in GB/s; source: `source`.
    pub write_gb_per_s: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

/// Drives of data centres by the generation of their PCIe link.
pub const DRIVES: [Drive; 3] = [
    Drive { name: "nvme-gen3", read_gb_per_s: 3.0, write_gb_per_s: 1.6, source: "Samsung PM981, data sheet" },
    Drive { name: "nvme-gen4", read_gb_per_s: 7.0, write_gb_per_s: 3.8, source: "Samsung PM1733, data sheet" },
    Drive {
        name: "nvme-gen5",
        read_gb_per_s: 13.0,
        write_gb_per_s: 6.6,
        source: "Samsung PM1743, announcement of 2021",
    },
];

const fn product(
    name: &'static str,
    device_ids: &'static [u32],
    compute_capability: u32,
    memory_gb_per_s: f64,
    sms: u32,
    pcie_generation: u32,
    source: &'static str,
) -> Product {
    Product { name, device_ids, compute_capability, memory_gb_per_s, sms, pcie_generation, source }
}

/// The products that are known by name.
pub const PRODUCTS: &[Product] = &[
    product("P100-SXM2-16GB", &[0x15f9], 60, 732.0, 56, 3, "NVIDIA Tesla P100 data sheet"),
    product("V100-SXM2-16GB", &[0x1db1], 70, 900.0, 80, 3, "NVIDIA V100 data sheet"),
    product("V100-SXM2-32GB", &[0x1db5], 70, 900.0, 80, 3, "NVIDIA V100 data sheet"),
    product("T4-16GB", &[0x1eb8], 75, 320.0, 40, 3, "NVIDIA T4 data sheet"),
    product("A100-SXM4-40GB", &[0x20b0], 80, 1555.0, 108, 4, "NVIDIA A100 data sheet"),
    product("A100-SXM4-80GB", &[0x20b2], 80, 2039.0, 108, 4, "NVIDIA A100 80GB data sheet"),
    product("A100-PCIE-40GB", &[0x20f1], 80, 1555.0, 108, 4, "NVIDIA A100 data sheet"),
    product("A100-PCIE-80GB", &[0x20b5], 80, 1935.0, 108, 4, "NVIDIA A100 80GB data sheet"),
    product("A10G", &[0x2237], 86, 600.0, 80, 4, "NVIDIA A10 data sheet; AWS G5 page"),
    product("A40", &[0x2235], 86, 696.0, 84, 4, "NVIDIA A40 data sheet"),
    product("L4", &[0x27b8], 89, 300.0, 58, 4, "NVIDIA L4 data sheet"),
    product("L40S", &[0x26b9], 89, 864.0, 142, 4, "NVIDIA L40S data sheet"),
    product("RTX-4090", &[0x2684], 89, 1008.0, 128, 4, "NVIDIA Ada GPU architecture paper"),
    product("H100-PCIE-80GB", &[0x2331], 90, 2000.0, 114, 5, "NVIDIA H100 PCIe data sheet"),
    product("H100-NVL-94GB", &[0x2321], 90, 3938.0, 132, 5, "NVIDIA H100 NVL product brief, HBM3"),
    product("H100-SXM5-80GB", &[0x2330], 90, 3350.0, 132, 5, "NVIDIA H100 data sheet"),
    product("GH200-120GB", &[0x2342], 90, 4000.0, 132, 5, "NVIDIA GH200 data sheet, HBM3"),
    product("H200-SXM5-141GB", &[0x2335], 90, 4800.0, 132, 5, "NVIDIA H200 data sheet"),
    product("B200-SXM6-180GB", &[0x2901], 100, 8000.0, 148, 5, "NVIDIA DGX B200 data sheet (64 TB/s for 8)"),
    product("GB200", &[0x2941], 100, 8000.0, 148, 5, "NVIDIA GB200 NVL72 data sheet (576 TB/s for 72)"),
    product("B300-SXM6-270GB", &[], 103, 8000.0, 148, 6, "NVIDIA HGX B300 (8 TB/s each); SMs as GB300"),
    product("GB300", &[], 103, 8000.0, 148, 5, "NVIDIA GB300 NVL72 data sheet (576 TB/s for 72)"),
    product("RTX-PRO-6000", &[0x2bb1, 0x2bb5], 120, 1792.0, 188, 5, "NVIDIA RTX PRO 6000 Blackwell data sheet"),
    product("RTX-6000D", &[], 120, 1398.0, 156, 5, "press reports: GDDR7 on 448 bits"),
];

fn key(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect::<String>()
        .trim_start_matches("nvidia")
        .to_owned()
}

/// A product by name or by what its driver calls it: any case and punctuation, and also by an unambiguous start, such as
/// `NVIDIA H200` for `H200-SXM5-141GB`.
pub fn by_name(name: &str) -> Option<&'static Product> {
    let driver = DRIVERS.iter().find(|(driver, _)| key(driver) == key(name));
    let wanted = key(driver.map_or(name, |(_, product)| product));
    if wanted.is_empty() {
        return None;
    }
    PRODUCTS.iter().find(|p| key(p.name) == wanted).or_else(|| {
        let mut like = PRODUCTS.iter().filter(|p| key(p.name).starts_with(&wanted));
        let first = like.next()?;
        // Variants with the same figures (memory sizes of V100) are no ambiguity.
        like.all(|p| p.memory_gb_per_s == first.memory_gb_per_s).then_some(first)
    })
}

/// What is said of a name that no product has: those that begin with it, or the nearest.
pub(crate) fn did_you_mean(name: &str) -> Option<String> {
    let wanted = key(name);
    let names = PRODUCTS.iter().map(|product| product.name);
    let mut meant: Vec<&str> =
        names.clone().filter(|name| !wanted.is_empty() && key(name).starts_with(&wanted)).collect();
    if meant.is_empty() {
        meant.extend(collcast_sim::collective::nearest(name, names));
    }
    let meant: Vec<String> = meant.into_iter().map(|name| format!("`{name}`")).collect();
    (!meant.is_empty()).then(|| format!("did you mean {}?", meant.join(" or ")))
}

/// Names by which drivers call products whose own names they do not begin with; source: output of `nvidia-smi -L` in
/// public logs.
const DRIVERS: [(&str, &str); 6] = [
    ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
    ("NVIDIA H100 PCIe", "H100-PCIE-80GB"),
    ("NVIDIA H100 NVL", "H100-NVL-94GB"),
    ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
    ("NVIDIA GH200 480GB", "GH200-120GB"),
    ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
];

/// A product by PCI device id.
pub fn by_device_id(device: u32) -> Option<&'static Product> {
    PRODUCTS.iter().find(|p| p.device_ids.contains(&device))
}

/// Nominal rate of one NVLink, one direction, by compute capability times ten.
pub fn nvlink_rate(compute_capability: u32) -> Option<Bandwidth> {
    Nvlinks::of(compute_capability).map(|links| Bandwidth::from_gb_per_s(links.nominal))
}

/// Compute capability, times ten, of the oldest GPUs with so many NVLinks: V100, A100 and H100, by their data sheets.
pub fn capability_of_nvlinks(links: u32) -> Option<u32> {
    match links {
        6 => Some(70),
        12 => Some(80),
        18 => Some(90),
        _ => None,
    }
}

/// What is assumed for an NVLink of a GPU whose generation is not known, in GB/s: that of Volta to Hopper.
const UNKNOWN_NVLINK_GB_PER_S: f64 = 25.0;

/// [`nvlink_rate`] where nothing tells the generation.
pub fn unknown_nvlink_rate() -> Bandwidth {
    Bandwidth::from_gb_per_s(UNKNOWN_NVLINK_GB_PER_S)
}

/// PCIe 3.0 x16 in GB/s, which NCCL assumes where it is told no speed; source: NCCL `src/graph/topo.cc`.
const UNKNOWN_PCIE_GB_PER_S: f64 = 12.0;

/// [`pcie_rate`] where nothing tells the speed.
pub fn unknown_pcie_rate() -> Bandwidth {
    Bandwidth::from_gb_per_s(UNKNOWN_PCIE_GB_PER_S)
}

/// Rate of a PCIe link, one direction, from the speed of a lane in GT/s and the lanes.
///
/// Width 0 means 16. `None` for a speed that is no PCIe generation.
///
/// # Source
/// NCCL `src/graph/topo.cc`: lanes x figure / 80, with 15, 30, 60, 120, 240, 480 for 2.5, 5,
/// 8, 16, 32, 64 GT/s. Gen 5 x16 is 48 GB/s: what is left after the bus protocol.
pub fn pcie_rate(giga_transfers: f64, lanes: u32) -> Option<Bandwidth> {
    let figure: u64 = match giga_transfers {
        2.5 => 15,
        5.0 => 30,
        8.0 => 60,
        16.0 => 120,
        32.0 => 240,
        64.0 => 480,
        _ => return None,
    };
    let lanes = if lanes == 0 { 16 } else { u64::from(lanes) };
    Bandwidth::new(lanes.saturating_mul(figure).saturating_mul(1_000_000_000) / 80)
}

/// [`pcie_rate`] by generation, 1 to 6.
pub fn pcie_generation_rate(generation: u32, lanes: u32) -> Option<Bandwidth> {
    let speed = match generation {
        1 => 2.5,
        2 => 5.0,
        3 => 8.0,
        4 => 16.0,
        5 => 32.0,
        6 => 64.0,
        _ => return None,
    };
    pcie_rate(speed, lanes)
}

/// Rate between CPU sockets, one direction, and what it was chosen for.
///
/// # Source
/// NCCL `src/graph/topo.h`: POWER9 32; Arm 6; Intel 6, from Skylake (model 0x55) 10, from
/// Sapphire Rapids (0x8F) 22, from model 0xCF 40; AMD 16; Zhaoxin 6.
pub fn cpu_interconnect(arch: &str, vendor: &str, model: u32) -> (Bandwidth, &'static str) {
    let (gb_per_s, what) = match (arch, vendor.trim()) {
        ("ppc64", _) => (32.0, "POWER9"),
        ("arm64" | "aarch64", _) => (6.0, "Arm"),
        (_, "AuthenticAMD") => (16.0, "AMD"),
        (_, "CentaurHauls" | "Shanghai") => (6.0, "Zhaoxin"),
        (_, "GenuineIntel") => match model {
            0..0x55 => (6.0, "Intel before Skylake"),
            0x55..0x8f => (10.0, "Intel Skylake and later"),
            0x8f..0xcf => (22.0, "Intel Sapphire Rapids and later"),
            _ => (40.0, "Intel from model 0xCF on"),
        },
        _ => (10.0, "a CPU that the source does not name"),
    };
    (Bandwidth::from_gb_per_s(gb_per_s), what)
}

/// An architecture, and of Intel a model, of a CPU of a vendor that has a rate between sockets by [`cpu_interconnect`]; that of most
/// machines where none has.
pub fn cpu_of(vendor: &str, rate: Bandwidth) -> (&'static str, Option<u32>) {
    // NCCL's models: Broadwell, Skylake, Sapphire Rapids, later.
    let models: &[u32] = if vendor.trim() == "GenuineIntel" { &[0x4f, 0x55, 0x8f, 0xcf] } else { &[0] };
    let all = ["x86_64", "arm64", "ppc64"].into_iter().flat_map(|arch| models.iter().map(move |&model| (arch, model)));
    let found = all.into_iter().find(|&(arch, model)| cpu_interconnect(arch, vendor, model).0 == rate);
    found.map_or(("x86_64", None), |(arch, model)| (arch, (model > 0).then_some(model)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: NCCL's own figures for the common links.
    #[test]
    fn bus_rates_are_those_of_nccl() {
        assert_eq!(pcie_generation_rate(3, 16).unwrap().gb_per_s(), 12.0);
        assert_eq!(pcie_generation_rate(4, 16).unwrap().gb_per_s(), 24.0);
        assert_eq!(pcie_rate(32.0, 0).unwrap().gb_per_s(), 48.0);
        assert!(pcie_rate(7.0, 16).is_none());
        assert!(pcie_generation_rate(0, 16).is_none());
        assert_eq!(cpu_interconnect("x86_64", "GenuineIntel", 0x55).0.gb_per_s(), 10.0);
        for (arch, vendor, model) in
            [("x86_64", "GenuineIntel", 0x8f), ("x86_64", "AuthenticAMD", 0), ("arm64", "ARM", 0)]
        {
            let found = cpu_of(vendor, cpu_interconnect(arch, vendor, model).0);
            assert_eq!(found, (arch, (model > 0).then_some(model)), "{vendor}");
        }
    }

    /// Goal: names of products and of drivers have the family that people speak of.
    #[test]
    fn families_are_told_apart() {
        for (name, family) in [
            ("H100-SXM5-80GB", "H100"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA GH200 480GB", "GH200"),
            ("GB200", "GB200"),
            ("Tesla V100-SXM2-32GB", "V100"),
            ("NVIDIA RTX A6000", "RTX-A6000"),
            ("RTX-PRO-6000", "RTX-PRO-6000"),
            ("AMD Instinct MI300X", "MI300X"),
            ("NVIDIA Graphics Device", "NVIDIA Graphics Device"),
            ("", ""),
        ] {
            assert_eq!(collcast_sim::topology::family(name), family);
        }
    }

    /// Goal: what people and drivers call a GPU finds its figures.
    #[test]
    fn products_are_found_by_what_people_call_them() {
        for (name, found) in [
            ("H100-SXM5-80GB", Some("H100-SXM5-80GB")),
            ("h100 sxm5 80gb", Some("H100-SXM5-80GB")),
            ("NVIDIA H200", Some("H200-SXM5-141GB")),
            ("GB200", Some("GB200")),
            ("H100", None), // PCIe and SXM differ.
            ("", None),
            ("MI300X", None),
        ] {
            assert_eq!(by_name(name).map(|p| p.name), found, "{name}");
        }
        for (driver, product) in DRIVERS {
            assert_eq!(by_name(driver).map(|p| p.name), Some(product));
        }
        assert_eq!(by_device_id(0x2335).map(|p| p.compute_capability), Some(90));
    }
}
