//! Merges a PCIe template of a cloud with a machine that knows its GPUs.
//!
//! The template says where devices sit: CPUs, switches, PCIe rates. The machine says what
//! they are: GPUs, NVLinks, NICs. Devices are matched by bus id where both have it, otherwise
//! by order.

mod any;

pub use any::{Imported, import_file, import_text};

use crate::error::{Diagnostic, TopologiesError};
use crate::host::{HostSpec, Parent};
use crate::plan::{attachment_points, spread};
use crate::xml::{OF_SOCKETS, TemplateDevice, TemplateSpec};

/// The machine `onto` in the PCIe tree of `template`, and what was taken from where.
///
/// # Errors
/// [`TopologiesError::Contradiction`] when the template has places for another number of GPUs
/// than the machine has.
pub fn import(template: &TemplateSpec, onto: &HostSpec) -> Result<(HostSpec, Vec<String>), TopologiesError> {
    let mut notes = Vec::new();
    let mut host = HostSpec {
        cpus: template.cpus.clone(),
        switches: template.switches.clone(),
        gpus: onto.gpus.clone(),
        nics: onto.nics.clone(),
        switch_links: Vec::new(),
        nvlink_domain: onto.nvlink_domain,
        storage: onto.storage,
        assumptions: template.assumptions.clone(),
    };
    for note in &onto.assumptions {
        host.assume(note.clone());
    }
    notes.push(format!("template: {} CPUs, {} PCIe switches and their rates", host.cpus.len(), host.switches.len()));
    take_cpus(template, onto, &mut host, &mut notes);
    place_gpus(template, &mut host, &mut notes)?;
    place_nics(template, &mut host, &mut notes);
    notes.push(format!(
        "machine: {} GPUs with their NVLinks, {} NICs with their rates",
        host.gpus.len(),
        host.nics.len()
    ));
    for note in &notes {
        host.assume(format!("import: {note}"));
    }
    Ok((host, notes))
}

/// A template that does not name its CPUs gets the machine's vendor and interconnect.
fn take_cpus(template: &TemplateSpec, onto: &HostSpec, host: &mut HostSpec, notes: &mut Vec<String>) {
    let Some(first) = onto.cpus.first() else {
        return;
    };
    let mut taken = false;
    for (i, cpu) in host.cpus.iter_mut().enumerate() {
        if template.cpu_named.get(i) == Some(&false) {
            cpu.clone_from(onto.cpus.get(i).unwrap_or(first));
            taken = true;
        }
    }
    if taken {
        host.assumptions.retain(|note| !note.ends_with(OF_SOCKETS));
        notes.push("machine: CPU vendor and rate between sockets".to_owned());
    }
}

fn gpus(count: usize) -> String {
    format!("{count} GPU{}", if count == 1 { "" } else { "s" })
}

fn by_bus<'a>(places: &[&'a TemplateDevice], bus_id: Option<&String>) -> Option<&'a TemplateDevice> {
    let wanted = bus_id?.to_lowercase();
    places.iter().find(|p| p.bus_id == wanted).copied()
}

fn place_gpus(template: &TemplateSpec, host: &mut HostSpec, notes: &mut Vec<String>) -> Result<(), TopologiesError> {
    let places: Vec<&TemplateDevice> = template.gpus.iter().chain(&template.unknown).collect();
    let matched: Vec<Option<&TemplateDevice>> =
        host.gpus.iter().map(|g| by_bus(&places, g.gpu.bus_id.as_ref())).collect();
    if !matched.is_empty() && matched.iter().all(Option::is_some) {
        for (gpu, place) in host.gpus.iter_mut().zip(matched.into_iter().flatten()) {
            gpu.parent = place.parent;
            gpu.pcie_rate = place.rate.unwrap_or(gpu.pcie_rate);
        }
        notes.push("template: places of the GPUs, by PCI bus id".to_owned());
        return Ok(());
    }
    if template.gpus.is_empty() {
        let points = attachment_points(host);
        let count = u32::try_from(host.gpus.len()).unwrap_or(u32::MAX);
        for (i, gpu) in host.gpus.iter_mut().enumerate() {
            gpu.parent = spread(&points, u32::try_from(i).unwrap_or(0), count);
        }
        notes.push(format!(
            "template: lists no GPU; {count} GPUs spread in order over its {}",
            if host.switches.is_empty() { "CPUs" } else { "switches" }
        ));
        return Ok(());
    }
    if template.gpus.len() != host.gpus.len() {
        return Err(TopologiesError::Contradiction(Box::new(Diagnostic {
            message: format!(
                "the template has places for {}, the machine has {}",
                gpus(template.gpus.len()),
                host.gpus.len()
            ),
            file: template.file.clone(),
            at: None,
            label: String::new(),
            hint: format!("choose a machine of {} for --like", gpus(template.gpus.len())),
        })));
    }
    for (gpu, place) in host.gpus.iter_mut().zip(&template.gpus) {
        gpu.parent = place.parent;
        gpu.pcie_rate = place.rate.unwrap_or(gpu.pcie_rate);
        gpu.gpu.bus_id = Some(place.bus_id.clone());
    }
    notes.push("template: places of the GPUs, the n-th GPU in the n-th place".to_owned());
    Ok(())
}

fn place_nics(template: &TemplateSpec, host: &mut HostSpec, notes: &mut Vec<String>) {
    let mut places: Vec<&TemplateDevice> = template.nics.iter().collect();
    let data = host.data_nics().count();
    if places.is_empty() && data > 0 && template.unknown.len().is_multiple_of(data) {
        // A template may list NICs without their class.
        places = template.unknown.iter().collect();
    }
    let all: Vec<&TemplateDevice> = template.nics.iter().chain(&template.unknown).collect();
    let by_bus_id = data > 0 && host.data_nics().all(|n| by_bus(&all, n.bus_id.as_ref()).is_some());
    let gpu_parents: Vec<Parent> = host.gpus.iter().map(|g| g.parent).collect();
    let points = attachment_points(host);
    let mut index = 0_u32;
    let count = u32::try_from(data).unwrap_or(u32::MAX);
    for nic in &mut host.nics {
        if nic.nic.management {
            nic.parent = Parent::Cpu(0);
            continue;
        }
        let nth = |len: usize| {
            let at = u64::from(index) * len as u64 / u64::from(count.max(1));
            usize::try_from(at).unwrap_or(0)
        };
        let place = if by_bus_id { by_bus(&all, nic.bus_id.as_ref()) } else { places.get(nth(places.len())).copied() };
        match place {
            Some(place) => {
                nic.parent = place.parent;
                nic.pcie_rate = place.rate.unwrap_or(nic.pcie_rate);
            }
            None => {
                nic.parent =
                    gpu_parents.get(nth(gpu_parents.len())).copied().unwrap_or_else(|| spread(&points, index, count));
            }
        }
        index += 1;
    }
    if count == 0 {
        return;
    }
    notes.push(if by_bus_id {
        "template: places of the NICs, by PCI bus id".to_owned()
    } else if places.is_empty() {
        format!("template: lists no NIC; {count} NICs placed beside the GPUs in order")
    } else if places.len() == data {
        "template: places of the NICs, the n-th NIC in the n-th place".to_owned()
    } else {
        format!("template: {} places for NICs, shared in order by the machine's {count}", places.len())
    });
}
