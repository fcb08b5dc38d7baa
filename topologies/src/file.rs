//! Reads the topology file `collcast/topology/1`: TOML to checked values.
//!
//! Two phases: serde fills raw structs with spans kept, then every value is checked with
//! its place at hand. Parsing depends on nothing but the text and what `xml =` names; only
//! [`load_path`] opens files.

mod fabric;
mod host;
mod values;

use std::ops::Range;
use std::path::Path;

use collcast_sim::nccl::{NotAVersion, Version};
use collcast_sim::profile::Profile;
use collcast_sim::topology::Software;

use crate::cluster::{ClusterSpec, HostGroup, MAX_GPUS};
use crate::error::{Diagnostic, Source, TopologiesError, quote};
use crate::fabric::FabricSpec;
use crate::host::HostSpec;
use crate::input::is_topology_file;
use crate::plan::{GpuPlan, HostPlan, draw_management, draw_nics};
use crate::raw::{At, RawFile, RawHost};
use crate::texts;

use values::{MAX_GPUS_U32, Reader, text_of};
pub use values::{MAX_PER_HOST, MAX_SOCKETS};

pub use crate::raw::SCHEMA;

/// Gives the content of a file that a topology names, by the name as written.
pub type Loader<'a> = &'a mut dyn FnMut(&str) -> std::io::Result<Vec<u8>>;

/// Most `like` within `like`; the built-ins need one.
const MAX_LIKE_DEPTH: u32 = 4;

/// The JSON schema of the topology file, for editors and other tools.
pub fn json_schema() -> String {
    let schema = schemars::schema_for!(RawFile);
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

/// Reads a topology file.
///
/// - `text`, `file`: content, and its name for messages.
/// - `load`: gives the files named by `xml =`.
///
/// # Errors
/// Any mistake, with its line and column; see [`TopologiesError`].
pub fn read(text: &str, file: &str, load: Loader<'_>) -> Result<ClusterSpec, TopologiesError> {
    let source = Source::decode(file, text.as_bytes())?;
    let raw = parse(source)?;
    Reader { source, depth: 0 }.cluster(&raw, load)
}

/// Reads a topology from the file system: TOML, NCCL topology XML, `nvidia-smi topo -m`, or a log of NCCL that draws
/// its host.
///
/// Files named by `xml =` lie beside it.
///
/// # Errors
/// [`TopologiesError::Unreadable`] when a file cannot be opened, otherwise as [`read_any`].
pub fn load_path(path: &Path) -> Result<ClusterSpec, TopologiesError> {
    let name = path.display().to_string();
    let bytes = crate::input::read(path).map_err(|error| {
        TopologiesError::Unreadable(Box::new(Diagnostic {
            message: format!("cannot read `{}`: {error}", quote(&name)),
            file: name.clone(),
            at: None,
            label: String::new(),
            hint: "give a built-in name or the path of a .toml, .xml or .txt file".to_owned(),
        }))
    })?;
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let mut beside = |sibling: &str| crate::input::read(&folder.join(sibling));
    read_any(&bytes, &name, &mut beside)
}

/// Reads a topology in any of the formats, told apart by content.
///
/// # Errors
/// As [`read`], [`crate::xml::read`], [`crate::smi::read`] and [`crate::log::read`];
/// [`TopologiesError::NotAMachine`] for a PCIe template, a graph file, and what lists hosts or switches alone.
pub fn read_any(bytes: &[u8], file: &str, load: Loader<'_>) -> Result<ClusterSpec, TopologiesError> {
    let source = Source::decode(file, bytes)?;
    let stem = || Path::new(file).file_stem().map_or_else(|| file.to_owned(), |s| s.to_string_lossy().into_owned());
    let part = |what: &str| {
        Err(TopologiesError::NotAMachine(source.whole(
            format!("`{}` is {what}: it says nothing of GPUs", quote(file)),
            "make a machine of it: topo import FILE --like dgx-h100 -o cluster.toml",
        )))
    };
    match format(source.text) {
        Format::Slurm => return part("Slurm's topology.conf"),
        Format::Ec2 => return part("an answer of EC2's DescribeInstanceTopology"),
        Format::Ibnet => return part("what ibnetdiscover prints"),
        Format::Lstopo => return part("XML of lstopo"),
        Format::Astra => return part("a network of ASTRA-sim"),
        Format::Log => return crate::log::read_cluster(source, &stem()),
        Format::Machine => {}
    }
    if looks_like_xml(source.text) || crate::smi::looks_like(source.text) {
        return Ok(ClusterSpec::single(&stem(), file, read_host(source)?));
    }
    if !is_meant_as_toml(source) {
        return Err(TopologiesError::Syntax(source.whole(
            format!("no known format: `{}` is none of the files that are read", quote(file)),
            "machines are a topology file (TOML), NCCL topology XML (NCCL_TOPO_DUMP_FILE), a log of NCCL_DEBUG=INFO, or the \
             text of `nvidia-smi topo -m`; `topo import` makes them of XML of lstopo, Slurm's topology.conf, what \
             ibnetdiscover prints, EC2's DescribeInstanceTopology and networks of ASTRA-sim",
        )));
    }
    let raw = parse(source)?;
    Reader { source, depth: 0 }.cluster(&raw, load)
}

/// Whether mistakes of a text are best told as those of a topology file: by its name, its schema, or as it is TOML.
fn is_meant_as_toml(source: Source<'_>) -> bool {
    is_topology_file(source.file) || source.text.contains(SCHEMA) || source.text.parse::<toml::Table>().is_ok()
}

/// What a file that says something of a machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// TOML, NCCL's XML, nvidia-smi; whatever else is refused as one of these.
    Machine,
    Log,
    Lstopo,
    Slurm,
    Ibnet,
    Ec2,
    Astra,
}

/// Tells formats apart by content.
pub(crate) fn format(text: &str) -> Format {
    if looks_like_xml(text) {
        return if crate::lstopo::looks_like(text) { Format::Lstopo } else { Format::Machine };
    }
    if crate::smi::looks_like(text) {
        Format::Machine
    } else if crate::listed::ec2::looks_like(text) {
        Format::Ec2
    } else if crate::listed::ibnet::looks_like(text) {
        Format::Ibnet
    } else if crate::listed::slurm::looks_like(text) {
        Format::Slurm
    } else if crate::log::looks_like(text) {
        Format::Log
    } else if crate::astra::looks_like(text) {
        Format::Astra
    } else {
        Format::Machine
    }
}

fn looks_like_xml(text: &str) -> bool {
    text.trim_start().starts_with('<')
}

/// Reads one host from XML, the text of nvidia-smi or a log of NCCL.
fn read_host(source: Source<'_>) -> Result<HostSpec, TopologiesError> {
    if looks_like_xml(source.text) {
        crate::xml::read_machine(source.text, source.file)
    } else if format(source.text) == Format::Log {
        let cluster = crate::log::read_cluster(source, "host")?;
        Ok(cluster.groups.into_iter().next().map(|group| group.host).unwrap_or_default())
    } else {
        crate::smi::read(source.text, source.file, None)
    }
}

/// The host, the fabric and all else of a machine that others are like.
fn read_base(
    source: Source<'_>,
    depth: u32,
    load: Loader<'_>,
) -> Result<(HostPlan, Option<FabricSpec>, ClusterSpec), TopologiesError> {
    let raw: RawFile = parse(source)?;
    let reader = Reader { source, depth };
    let plan = match (raw.hosts.as_slice(), &raw.like) {
        ([host], _) => reader.plan(&host.value, &host.span, &mut *load)?.0,
        ([], Some(like)) => reader.base(like, &mut *load)?.0,
        ([], None) => HostPlan::default(),
        _ => {
            return Err(TopologiesError::Contradiction(source.whole(
                format!("`{}` has several kinds of hosts, so that others cannot be like it", quote(source.file)),
                "name a file with one [[hosts]] table",
            )));
        }
    };
    let cluster = reader.cluster(&raw, load)?;
    Ok((plan, cluster.fabric.clone(), cluster))
}

/// Phase one: TOML to spans and strings; mistakes are shown where they are.
///
/// # Errors
/// No TOML, a wrong type, an unknown key or a missing one.
pub fn parse<T: serde::de::DeserializeOwned>(source: Source<'_>) -> Result<T, TopologiesError> {
    toml::from_str(source.text).map_err(|error| syntax(source, &error))
}

/// Text between the first pair of back quotes after `from`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A TOML error in our form; unknown keys get a did-you-mean.
fn syntax(source: Source<'_>, error: &toml::de::Error) -> TopologiesError {
    let span = error.span().unwrap_or(0..0);
    let message = error.message().trim();
    let line = message.lines().next().unwrap_or("not TOML");
    let mut names = quoted(line);
    if line.starts_with("unknown field") {
        let given = names.next().unwrap_or_default();
        let known: Vec<&str> = names.collect();
        let near = collcast_sim::collective::nearest(given, known.iter().copied());
        return TopologiesError::Key(source.at(
            span,
            format!("the key `{}` is not known here", quote(given)),
            near.map_or_else(|| "unknown key".to_owned(), |n| format!("did you mean `{n}`?")),
            format!("keys here: {}", known.join(", ")),
        ));
    }
    if line.starts_with("missing field") {
        let key = names.next().unwrap_or_default();
        return TopologiesError::Key(source.at(
            span,
            format!("the key `{key}` is missing"),
            format!("needs `{key}`"),
            format!("add `{key} = ...` to this table; it has no default"),
        ));
    }
    if let Some((_, form)) = line.split_once("expected names in one string") {
        return TopologiesError::Syntax(source.at(
            span,
            format!("the file cannot be read as TOML: {}", quote(line)),
            format!("expected one string{form}"),
            "a list of names is one string, as Slurm writes it: \"leaf[0-7]\" or \"a,b\"",
        ));
    }
    if line.contains("expected struct ") {
        let before = source.text.get(..span.start).unwrap_or_default().trim_end_matches(['=', ' ']);
        let key = before.rsplit(['\n', ',', '{', ' ']).next().unwrap_or_default();
        return TopologiesError::Syntax(source.at(
            span,
            format!("`{}` is a table", quote(key)),
            "expected `{ key = value }`",
            "for none leave the key out; with `like` a host has those of the other, so describe it without `like`",
        ));
    }
    TopologiesError::Syntax(source.at(
        span,
        format!("the file cannot be read as TOML: {}", quote(line)),
        "here",
        "strings are quoted, tables are [name], and each key is given once",
    ))
}

impl Reader<'_> {
    /// The name of a built-in profile.
    fn profile(&self, name: &At<String>) -> Result<String, TopologiesError> {
        if Profile::builtin_text(&name.value).is_some() {
            return Ok(name.value.clone());
        }
        let known = Profile::builtin_names_near(&name.value);
        Err(self.source.unknown_name(name.span.clone(), "a built-in profile", &name.value, &known))
    }

    /// A version of NCCL.
    fn version(&self, text: &At<String>) -> Result<Version, TopologiesError> {
        text.value.parse().map_err(|error: NotAVersion| {
            self.value(
                &text.span,
                error.to_string(),
                "expected a version such as \"2.28.9\"",
                "leave it out for the newest",
            )
        })
    }

    fn cluster(&self, raw: &RawFile, load: Loader<'_>) -> Result<ClusterSpec, TopologiesError> {
        self.check_schema(raw)?;
        let stem =
            Path::new(self.source.file).file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let mut cluster = ClusterSpec {
            name: raw.name.as_ref().map_or(stem, |n| n.value.clone()),
            description: text_of(raw.description.as_ref()),
            file: self.source.file.to_owned(),
            profile: raw.profile.as_ref().map(|name| self.profile(name)).transpose()?,
            assumptions: raw.note.iter().map(|note| note.value.clone()).collect(),
            ..ClusterSpec::default()
        };
        let like = raw.like.as_ref().or_else(|| raw.hosts.iter().find_map(|host| host.value.like.as_ref()));
        let base = like.map(|like| self.base(like, &mut *load)).transpose()?.map(|base| base.2).unwrap_or_default();
        if !base.exceptions.is_empty() {
            cluster.assumptions.push(format!(
                "exceptions: those of the file `{}` are of its own hosts and switches, and are left out",
                quote(&base.file)
            ));
        }
        cluster.software = self.software(raw, base.software)?;
        let mut from_like = None;
        if let Some(like) = &raw.like {
            self.short_form(raw, like, &mut cluster, load)?;
        } else {
            if let Some(count) = &raw.count {
                return Err(self.contradiction(
                    &count.span,
                    "`count` stands alone".to_owned(),
                    "count of what?",
                    "give `like = \"aws-p5\"` beside it, or put it into a [[hosts]] table",
                ));
            }
            if raw.hosts.is_empty() {
                return Err(TopologiesError::Key(self.source.whole(
                    "the file has no hosts",
                    "add a [[hosts]] table, or the short form like = \"dgx-h100\", count = 4",
                )));
            }
            for host in &raw.hosts {
                let (group, fabric, profile) = self.group(host, cluster.host_count(), &mut *load)?;
                if from_like.is_none() {
                    from_like = fabric;
                }
                if cluster.profile.is_none() && raw.hosts.len() == 1 {
                    cluster.profile = profile;
                }
                cluster.groups.push(group);
                if cluster.gpu_count() > MAX_GPUS {
                    return Err(self.too_many_gpus(&host.span, cluster.gpu_count()));
                }
            }
        }
        if let Some(fabric) = &raw.fabric {
            cluster.fabric = Some(self.fabric(&fabric.value)?);
        } else if let Some((name, fabric)) = from_like {
            if cluster.host_count() > 1 {
                cluster.assumptions.push(format!(
                    "fabric: that of the {} `{name}`",
                    if is_topology_file(&name) { "file" } else { "built-in" }
                ));
            }
            cluster.fabric = Some(fabric);
        }
        if !raw.exceptions.is_empty() {
            self.source.text.clone_into(&mut cluster.text);
        }
        for exception in &raw.exceptions {
            let span = &exception.span;
            let exception = self.exception(&exception.value, span)?;
            let place = (exception.owner, &exception.name, exception.port);
            if cluster.exceptions.iter().any(|other| (other.owner, &other.name, other.port) == place) {
                return Err(self.contradiction(
                    &self.heading(span),
                    format!("two exceptions are about the same port of `{}`", exception.name),
                    "the second",
                    "leave one of them out: a port runs at a rate or is down",
                ));
            }
            cluster.exceptions.push(exception);
        }
        Ok(cluster)
    }

    /// What the file says of NCCL, over what runs on the first machine that its hosts are like.
    fn software(&self, raw: &RawFile, mut software: Software) -> Result<Software, TopologiesError> {
        if let Some(own) = &raw.software {
            if let Some(version) = &own.nccl {
                software.nccl = Some(self.version(version)?);
            }
            if let Some(plugin) = &own.plugin {
                software.plugin = Some(plugin.value.clone());
            }
            for (name, value) in own.env.iter().flatten() {
                software.env.retain(|(known, _)| known != name);
                software.env.push((name.clone(), value.clone()));
            }
            software.multicast_off = own.multicast.map_or(software.multicast_off, |on| !on);
        }
        Ok(software)
    }

    fn check_schema(&self, raw: &RawFile) -> Result<(), TopologiesError> {
        match &raw.schema {
            Some(schema) if schema.value == SCHEMA => Ok(()),
            Some(schema) => Err(TopologiesError::Schema(self.source.at(
                schema.span.clone(),
                format!("the schema `{}` is not known", quote(&schema.value)),
                format!("expected \"{SCHEMA}\""),
                if schema.value.starts_with("collcast/topology/") {
                    "the file is of another version of Collcast"
                } else {
                    "this is not a topology file"
                },
            ))),
            None => Err(TopologiesError::Schema(
                self.source.whole("the file does not say its schema", format!("start it with: schema = \"{SCHEMA}\"")),
            )),
        }
    }

    /// `like = "aws-p5"`, `count = 32`.
    fn short_form(
        &self,
        raw: &RawFile,
        like: &At<String>,
        cluster: &mut ClusterSpec,
        load: Loader<'_>,
    ) -> Result<(), TopologiesError> {
        if let Some(host) = raw.hosts.first() {
            return Err(self.contradiction(
                &like.span,
                "`like` at the top and [[hosts]] tables say the same thing twice".to_owned(),
                "short form",
                &format!("move it into the [[hosts]] table of line {}", self.source.locate(host.span.clone()).line),
            ));
        }
        let (_, fabric, base) = self.base(like, load)?;
        let nodes = self.optional_number("count", raw.count.as_ref(), 1, MAX_GPUS_U32)?.unwrap_or(1);
        cluster.groups = base.groups;
        let gpus = cluster.gpu_count();
        if gpus.saturating_mul(nodes as usize) > MAX_GPUS {
            let span = raw.count.as_ref().map_or(&like.span, |c| &c.span);
            return Err(self.too_many_gpus(span, gpus.saturating_mul(nodes as usize)));
        }
        if let Some(group) = cluster.groups.first_mut() {
            group.names = (0..nodes).map(|i| format!("host{i}")).collect();
        }
        cluster.fabric = fabric;
        cluster.assumptions.extend(base.assumptions);
        if cluster.profile.is_none() {
            cluster.profile = base.profile;
        }
        Ok(())
    }

    fn too_many_gpus(&self, span: &Range<usize>, gpus: usize) -> TopologiesError {
        TopologiesError::TooLarge(self.source.at(
            span.clone(),
            format!("the cluster has {gpus} GPUs; at most {MAX_GPUS} are supported"),
            "too many hosts",
            "the largest clusters that are built have about half of that",
        ))
    }

    /// What `like` names: a built-in, or a topology file.
    fn base(
        &self,
        like: &At<String>,
        load: Loader<'_>,
    ) -> Result<(HostPlan, Option<FabricSpec>, ClusterSpec), TopologiesError> {
        if self.depth >= MAX_LIKE_DEPTH {
            return Err(self.contradiction(
                &like.span,
                format!("`like` within `like`, {MAX_LIKE_DEPTH} deep"),
                "too deep",
                "",
            ));
        }
        let depth = self.depth + 1;
        if let Some(text) = texts::text(&like.value) {
            let mut none = |_: &str| Err(std::io::Error::other("a built-in names no file"));
            return read_base(Source::new(&format!("<built-in {}>", like.value), text), depth, &mut none);
        }
        if !is_topology_file(&like.value) {
            return Err(self.source.unknown_name(
                like.span.clone(),
                "a built-in topology",
                &like.value,
                &texts::names(),
            ));
        }
        let bytes =
            load(&like.value).map_err(|error| self.unreadable(like, &error, "name a built-in or a topology file"))?;
        let folder = Path::new(&like.value).parent().unwrap_or_else(|| Path::new(""));
        // What that file names lies beside it.
        let mut beside = |name: &str| load(&folder.join(name).to_string_lossy());
        read_base(Source::decode(&like.value, &bytes)?, depth, &mut beside)
    }

    /// A file beside this one that cannot be read.
    fn unreadable(&self, named: &At<String>, error: &std::io::Error, hint: &str) -> TopologiesError {
        TopologiesError::Unreadable(self.source.at(
            named.span.clone(),
            format!("cannot read `{}`: {error}", quote(&named.value)),
            "no such file beside this one",
            hint,
        ))
    }

    /// One [[hosts]] table: the group, the fabric and the profile of what it is like.
    #[allow(clippy::type_complexity)]
    fn group(
        &self,
        raw: &At<RawHost>,
        before: usize,
        load: Loader<'_>,
    ) -> Result<(HostGroup, Option<(String, FabricSpec)>, Option<String>), TopologiesError> {
        let host = &raw.value;
        let names = self.names(host, before)?;
        let mut fabric = None;
        let mut profile = None;
        let spec = if let Some(xml) = &host.xml {
            self.host_from_xml(host, xml, load)?
        } else {
            let (plan, base) = self.plan(host, &raw.span, load)?;
            if let Some((name, base_fabric, base_profile)) = base {
                fabric = base_fabric.map(|f| (name, f));
                // Own GPUs or NVLinks make it another machine.
                if host.nvlink.is_none() && host.gpus.as_ref().is_none_or(|g| g.value.kind.is_none()) {
                    profile = base_profile;
                }
            }
            plan.draw()
        };
        let gpus = spec.gpus.len().saturating_mul(names.len());
        if gpus > MAX_GPUS {
            return Err(self.too_many_gpus(&raw.span, gpus));
        }
        let new_domain = host.new_domain.unwrap_or(false);
        if new_domain && spec.nvlink_domain.is_none() {
            return Err(self.contradiction(
                &raw.span,
                "new_domain begins an NVLink domain of several hosts, and these hosts are in none".to_owned(),
                "each host by itself",
                "leave `new_domain` out, or say how many hosts share NVSwitches: `nvlink.domain`",
            ));
        }
        Ok((HostGroup { names, host: spec, new_domain }, fabric, profile))
    }

    fn names(&self, host: &RawHost, before: usize) -> Result<Vec<String>, TopologiesError> {
        let count = self.optional_number("count", host.count.as_ref(), 1, MAX_GPUS_U32)?;
        let Some(list) = &host.names else {
            let count = count.unwrap_or(1) as usize;
            return Ok((before..before + count).map(|i| format!("host{i}")).collect());
        };
        let names = self.expand(list, "gpu[001-064]", "Slurm writes it with `scontrol show hostlist`")?;
        if let (Some(count), Some(raw)) = (count, &host.count)
            && count as usize != names.len()
        {
            return Err(self.contradiction(
                &raw.span,
                format!("count is {count}, but `{}` names {} hosts", quote(&list.value.0), names.len()),
                &format!("expected {}", names.len()),
                "leave `count` out; the names say it",
            ));
        }
        Ok(names)
    }

    /// What a host is, without drawing it; and what it is like: name, fabric, profile.
    #[allow(clippy::type_complexity)]
    fn plan(
        &self,
        raw: &RawHost,
        span: &Range<usize>,
        load: Loader<'_>,
    ) -> Result<(HostPlan, Option<(String, Option<FabricSpec>, Option<String>)>), TopologiesError> {
        let (mut plan, base) = match &raw.like {
            Some(like) => {
                let (plan, fabric, cluster) = self.base(like, load)?;
                (plan, Some((like.value.clone(), fabric, cluster.profile.clone())))
            }
            None => (HostPlan::default(), None),
        };
        if let Some(gpus) = &raw.gpus {
            self.gpus(&gpus.value, &gpus.span, &mut plan)?;
        }
        if let Some(pcie) = &raw.pcie {
            plan.pcie = Some(self.pcie(&pcie.value)?);
        }
        let gpus = match (&plan.gpus, &plan.pcie) {
            (Some(gpus), Some(_)) => gpus.count,
            (gpus, _) => {
                let missing = if gpus.is_none() { "gpus" } else { "pcie" };
                return Err(TopologiesError::Key(self.source.at(
                    self.heading(span),
                    format!("the host has no `{missing}`"),
                    format!("needs `{missing}`, or `like`, or `xml`"),
                    "figures of physics have no defaults; like = \"dgx-h100\" copies a whole \
                     machine",
                )));
            }
        };
        if let Some(nvlink) = &raw.nvlink {
            plan.nvlink = self.nvlink(&nvlink.value, &nvlink.span, gpus)?;
        }
        if let Some(nics) = &raw.nics {
            let sockets = plan.pcie.as_ref().map_or(1, |p| p.sockets);
            plan.nics = Some(self.nics(&nics.value, gpus, sockets)?);
        }
        if let Some(management) = &raw.management {
            plan.management = Some(self.management(&management.value)?);
        }
        if let Some(storage) = &raw.storage {
            plan.storage = Some(self.storage(&storage.value, &storage.span)?);
        }
        Ok((plan, base))
    }

    fn host_from_xml(&self, raw: &RawHost, xml: &At<String>, load: Loader<'_>) -> Result<HostSpec, TopologiesError> {
        let clash = [
            ("like", raw.like.as_ref().map(|x| &x.span)),
            ("nvlink", raw.nvlink.as_ref().filter(|nvlink| !nvlink.value.is_domain()).map(|x| &x.span)),
            ("pcie", raw.pcie.as_ref().map(|x| &x.span)),
        ];
        if let Some((key, Some(span))) = clash.iter().find(|(_, s)| s.is_some()) {
            return Err(self.contradiction(
                span,
                format!("`{key}` and `xml` both say what the host is"),
                "given beside `xml`",
                "keep one of them; `topo import FILE --like dgx-h100` merges a template, and nvlink = { kind = \"nvswitch\", \
                 domain = 18 } beside `xml` says how many hosts share NVSwitches",
            ));
        }
        let hint = "NCCL writes it with NCCL_TOPO_DUMP_FILE=nccl_topo.xml";
        let bytes = load(&xml.value).map_err(|error| self.unreadable(xml, &error, hint))?;
        let mut host = read_host(Source::decode(&xml.value, &bytes)?)?;
        if let Some(gpus) = &raw.gpus {
            let mut plan = HostPlan {
                gpus: Some(GpuPlan {
                    count: u32::try_from(host.gpus.len()).unwrap_or(u32::MAX),
                    model: String::new(),
                    compute_capability: 0,
                    memory_rate: None,
                    c2c: None,
                }),
                ..HostPlan::default()
            };
            self.gpus(&gpus.value, &gpus.span, &mut plan)?;
            if let Some(keep) = plan.keep_gpus {
                host.keep_gpus(keep as usize);
            } else if let Some(named) = plan.gpus
                && !named.model.is_empty()
            {
                if named.count as usize != host.gpus.len() {
                    return Err(self.contradiction(
                        &gpus.value.count.span,
                        format!("count is {}, but `{}` has {} GPUs", named.count, quote(&xml.value), host.gpus.len()),
                        &format!("expected {}", host.gpus.len()),
                        "leave `gpus` out, or give only a smaller count",
                    ));
                }
                for gpu in &mut host.gpus {
                    gpu.gpu.model.clone_from(&named.model);
                    gpu.gpu.compute_capability = named.compute_capability;
                    gpu.gpu.memory_rate = named.memory_rate;
                }
            }
        }
        if let Some(nvlink) = &raw.nvlink {
            if !host.has_nvswitch() {
                return Err(self.contradiction(
                    &nvlink.span,
                    format!("`{}` has no NVSwitches that hosts could share", quote(&xml.value)),
                    "a domain of several hosts",
                    "leave `nvlink` out",
                ));
            }
            host.nvlink_domain = self.domain(&nvlink.value)?;
        }
        let gpus = u32::try_from(host.gpus.len()).unwrap_or(u32::MAX);
        if let Some(nics) = &raw.nics {
            let sockets = u32::try_from(host.cpus.len()).unwrap_or(u32::MAX);
            let plan = self.nics(&nics.value, gpus, sockets)?;
            let rate = host.gpus.first().map_or(plan.rate, |g| g.pcie_rate);
            draw_nics(&mut host, &plan, rate);
        }
        if let Some(management) = &raw.management {
            draw_management(&mut host, &self.management(&management.value)?);
        }
        if let Some(storage) = &raw.storage {
            host.storage = Some(self.storage(&storage.value, &storage.span)?);
        }
        Ok(host)
    }
}
