//! Any file that says something of a machine, as a machine: told apart by content.

use std::path::Path;

use super::import;
use crate::TopologiesError;
use crate::builtin::spec_any;
use crate::cluster::{ClusterSpec, HostGroup};
use crate::error::{Diagnostic, Source, quote};
use crate::export;
use crate::file::{Format, format};
use crate::host::HostSpec;
use crate::input::is_topology_file;
use crate::listed::{Listed, ec2, ibnet, slurm};
use crate::xml::{self, Document, TemplateSpec};
use crate::{astra, log, lstopo};

/// What `topo import` made of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// The machine: a host as NCCL topology XML, a cluster as a topology file.
    pub text: String,
    /// What was taken from where, and what was assumed.
    pub notes: Vec<String>,
}

/// Turns a file that says something of a machine into a machine; `like` names one that gives what the file lacks.
///
/// # Errors
/// As the readers; a file that is no machine without `like`; a file and a machine that do not fit.
pub fn import_file(path: &Path, like: Option<&str>) -> Result<Imported, TopologiesError> {
    let name = path.display().to_string();
    let bytes = crate::input::read(path).map_err(|error| {
        TopologiesError::Unreadable(Box::new(Diagnostic {
            message: format!("cannot read `{name}`: {error}"),
            file: name.clone(),
            at: None,
            label: String::new(),
            hint: "give the path of what nvidia-smi, NCCL, lstopo, Slurm, ibnetdiscover or EC2 writes".to_owned(),
        }))
    })?;
    import_text(Source::decode(&name, &bytes)?, like)
}

/// [`import_file`] of a text.
///
/// # Errors
/// As of [`import_file`].
pub fn import_text(source: Source<'_>, like: Option<&str>) -> Result<Imported, TopologiesError> {
    let listing = match format(source.text) {
        Format::Slurm => slurm::read(source)?,
        Format::Ec2 => ec2::read(source, like.is_some())?,
        Format::Ibnet => {
            let host = host_of(&spec_any(needed(source, like)?)?);
            let names: Vec<String> = host.data_nics().map(|nic| nic.nic.name.clone()).collect();
            let rate = host.data_nics().map(|nic| nic.nic.rate).max();
            ibnet::read(source)?.listing(source, &names, rate)?
        }
        Format::Log => return of_log(source, like),
        Format::Lstopo => {
            let template = lstopo::read(source)?;
            return of_template(&template, &spec_any(needed(source, like)?)?);
        }
        Format::Astra => {
            let like = needed(source, like)?;
            let (text, notes) = astra::read(source, &base(like)?, like)?;
            // What cannot be drawn is refused here and not by who reads the result.
            let mut named = |name: &str| crate::input::read(Path::new(name));
            crate::file::read(&text, source.file, &mut named)?.build()?;
            return Ok(Imported { text, notes });
        }
        Format::Machine => return of_machine(source, like),
    };
    let listed = listing.complete(source.file, like, &mut base)?;
    Ok(Imported { text: export::toml(&listed), notes: listed.notes })
}

/// A machine that hosts of a topology file can be like: a built-in, a topology file with one kind of host, or one host of
/// NCCL's XML or nvidia-smi.
fn base(name: &str) -> Result<ClusterSpec, TopologiesError> {
    let spec = spec_any(name)?;
    let plain = spec.host_count() == 1 && spec.exceptions.is_empty();
    if spec.groups.len() == 1 && (plain || is_topology_file(name)) || crate::texts::text(name).is_some() {
        return Ok(spec);
    }
    Err(TopologiesError::Contradiction(Box::new(Diagnostic {
        message: format!("hosts cannot be like `{}`, which has several kinds of them, or several hosts", quote(name)),
        file: name.to_owned(),
        at: None,
        label: String::new(),
        hint: "--like takes a built-in (collcast topo list), a topology file with one [[hosts]] table, or one host as NCCL \
               topology XML"
            .to_owned(),
    })))
}

fn host_of(spec: &ClusterSpec) -> HostSpec {
    spec.groups.first().map(|group| group.host.clone()).unwrap_or_default()
}

fn needed<'a>(source: Source<'_>, like: Option<&'a str>) -> Result<&'a str, TopologiesError> {
    like.ok_or_else(|| {
        TopologiesError::Key(source.whole(
            format!("`{}` does not say what the GPUs and the rates are", quote(source.file)),
            "name a machine that does: --like dgx-h100 (`collcast topo list` has all)",
        ))
    })
}

/// A PCIe tree with the devices of a machine.
fn of_template(template: &TemplateSpec, onto: &ClusterSpec) -> Result<Imported, TopologiesError> {
    let (host, mut notes) = import(template, &host_of(onto))?;
    notes.extend(template.assumptions.iter().filter(|note| host.assumptions.contains(note)).cloned());
    notes.extend(left_out(onto));
    Ok(Imported { text: export::xml(&host), notes })
}

fn of_machine(source: Source<'_>, like: Option<&str>) -> Result<Imported, TopologiesError> {
    let other = like.map(spec_any).transpose()?;
    let template = match xml::read(source.text, source.file) {
        Ok(Document::Template(template)) => Some(template),
        _ => None,
    };
    if let (Some(template), Some(other)) = (&template, &other) {
        return of_template(template, other);
    }
    // A machine needs nothing more; everything else is refused with its reason.
    let spec = spec_any(source.file)?;
    if like.is_some() {
        return Err(TopologiesError::Contradiction(source.whole(
            format!("`{}` is a machine, and needs none to be like", quote(source.file)),
            "leave --like out: it is for files that lack GPUs or rates",
        )));
    }
    let host = host_of(&spec);
    let mut notes = host.assumptions.clone();
    notes.extend(left_out(&spec));
    Ok(Imported { text: export::xml(&host), notes })
}

/// A log that draws its host as XML of it; one that does not as a topology file of hosts that are like a machine.
fn of_log(source: Source<'_>, like: Option<&str>) -> Result<Imported, TopologiesError> {
    let product =
        like.map(spec_any).transpose()?.as_ref().and_then(|spec| {
            host_of(spec).gpus.first().map(|gpu| gpu.gpu.model.clone()).filter(|model| !model.is_empty())
        });
    let log = log::read(source, product.as_deref())?;
    let mut notes = log.notes;
    if let Some(host) = log.host {
        notes.extend(host.assumptions.iter().cloned());
        if log.hosts.len() > 1 {
            notes.push(format!(
                "not in the XML, which is of one host: the {} hosts of the log; the log itself is a machine with them",
                log.hosts.len()
            ));
        }
        return Ok(Imported { text: export::xml(&host), notes });
    }
    let like = needed(source, like)?;
    let spec = base(like)?;
    let gpus = host_of(&spec).gpus.len();
    if log.ranks_a_host != gpus {
        notes.push(format!(
            "warning: a host of the log has {} ranks, one of `{like}` {gpus} GPUs; --gpus and --ranks choose some",
            log.ranks_a_host
        ));
    }
    notes.push(format!("machine: GPUs, NICs and all rates from `{like}`"));
    let mut software = spec.software.clone();
    software.nccl = log.software.nccl.or(software.nccl);
    for (name, value) in log.software.env {
        software.env.retain(|(known, _)| *known != name);
        software.env.push((name, value));
    }
    let groups = vec![HostGroup { names: log.hosts, host: host_of(&spec), new_domain: false }];
    let stem = Path::new(source.file).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let cluster = ClusterSpec { name: stem, file: source.file.to_owned(), software, groups, ..spec };
    cluster.build()?;
    let listed = Listed { cluster, like: vec![like.to_owned()], notes };
    Ok(Imported { text: export::toml(&listed), notes: listed.notes })
}

/// What of a machine the XML of one host cannot hold.
fn left_out(spec: &ClusterSpec) -> Option<String> {
    let (software, host) = (&spec.software, host_of(spec));
    let parts = [
        (spec.groups.len() > 1, "the hosts of other kinds than the first"),
        (spec.fabric.is_some(), "the fabric"),
        (!spec.exceptions.is_empty(), "the exceptions"),
        (host.nvlink_domain.is_some(), "the NVLink domain"),
        (host.storage.is_some(), "the storage"),
        (spec.profile.is_some(), "the profile"),
        (software.nccl.is_some(), "the NCCL version"),
        (software.plugin.is_some(), "the plugin"),
        (software.multicast_off, "that there is no multicast"),
        (!software.env.is_empty(), "the environment"),
    ];
    let names: Vec<&str> = parts.into_iter().filter(|p| p.0).map(|p| p.1).collect();
    (!names.is_empty()).then(|| {
        format!(
            "not in the XML, which is of one host: {} of `{}`; for them write a topology file with `xml` in [[hosts]] \
             (collcast topo new)",
            names.join(", "),
            spec.name
        )
    })
}
