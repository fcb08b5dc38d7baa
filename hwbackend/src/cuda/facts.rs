//! What the GPUs of a run are, for people and files.

use std::sync::Arc;

use super::driver::{Device, driver_version};
use crate::nvml::Nvml;

/// Devices and driver.
pub(crate) fn device_facts(devices: &[Arc<Device>]) -> Vec<(&'static str, String)> {
    let gpu = devices.first().map_or_else(String::new, |d| {
        format!("{} x {}, sm_{}, {} multiprocessors", devices.len(), d.name, d.arch, d.multiprocessors)
    });
    let buses: Vec<&str> = devices.iter().map(|d| d.pci.as_str()).collect();
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| {
        text.split_whitespace().find(|w| w.chars().filter(|&c| c == '.').count() == 2).map(str::to_owned)
    });
    let clocks = Nvml::open().and_then(|nvml| {
        let all: Vec<String> = devices
            .iter()
            .filter_map(|d| nvml.clocks_mhz(&d.pci).map(|[sm, memory]| format!("{sm}/{memory}")))
            .collect();
        (!all.is_empty()).then(|| all.join(" "))
    });
    vec![
        ("gpu", gpu),
        ("pci", buses.join(" ")),
        ("driver", driver.unwrap_or_else(|| "unknown".to_owned())),
        ("cuda", driver_version()),
        ("clocks_mhz", clocks.unwrap_or_else(|| "unknown".to_owned())),
    ]
}
