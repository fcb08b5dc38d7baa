//! NCCL's classes of paths inside a host.

use super::parameters::strtoll;

/// NCCL's classes of paths inside a host, better first (`src/graph/topo.h`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum PathClass {
    /// The same device.
    Loc,
    /// NVLink, through NVSwitch or not.
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// Chip-to-chip to the CPU.
    C2c,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// Chip-to-chip to the CPU, then PCIe to a NIC of that CPU.
    P2c,
    /// NVLink to another GPU, then PCIe to its NIC.
    Pxn,
    /// Through a CPU.
    Phb,
    /// Between CPU sockets.
    Sys,
}

impl PathClass {
    /// All classes, better first.
    pub const ALL: &'static [Self] =
        &[Self::Loc, Self::Nvl, Self::Nvb, Self::C2c, Self::Pix, Self::Pxb, Self::P2c, Self::Pxn, Self::Phb, Self::Sys];

    /// As NCCL prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Nvb => "NVB",
            Self::C2c => "C2C",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::P2c => "P2C",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
        }
    }

    /// The class that a level of NCCL's environment names: a name as it stands, or a number of old.
    pub(crate) fn of_level(text: &str) -> Option<Self> {
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return Self::ALL.iter().copied().find(|c| c.name() == text);
        }
        Some(match strtoll(text).0 {
            0 => Self::Loc,
            1 => Self::Pix,
            2 => Self::Pxb,
            3 => Self::Phb,
            _ => Self::Sys,
        })
    }
}
