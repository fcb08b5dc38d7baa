//! Reads the topology file `collcast/topology/1`: TOML to checked values.
//!
//! Two phases: serde fills raw structs with spans kept, then every value is checked with
//! its place at hand. Parsing depends on nothing but the text and what `xml =` names; only
//! [`load_path`] opens files.

use std::ops::Range;
use std::path::Path;

use collcast_sim::profile::Profile;
use collcast_sim::topology::{LinkKind, Software};
use collcast_sim::units::{Bandwidth, parse_rate};

use crate::catalogue;
use crate::cluster::{ClusterSpec, Deviation, Exception, HostGroup, MAX_GPUS};
use crate::error::{Diagnostic, Source, TopologiesError, quote};
use crate::fabric::{
    FabricKind, FabricPlaces, FabricSpec, LeafSpec, MAX_SWITCHES, Oversubscription, Routing, SpineSpec,
};
use crate::host::HostSpec;
use crate::hostlist;
use crate::plan::{
    GpuPlan, HostPlan, ManagementPlan, NicPlan, NvlinkKind, NvlinkPlan, PciePlan, draw_management, draw_nics,
};
use crate::raw::{
    At, RawException, RawFabric, RawFile, RawGpus, RawHost, RawManagement, RawNics, RawNvlink, RawPcie, RawRate, Scalar,
};
use crate::texts;

/// The schema that this module reads.
pub const SCHEMA: &str = "collcast/topology/1";

/// Most GPUs, NICs or NVLinks of one host: far above any machine, and a bound on memory.
pub const MAX_PER_HOST: u32 = 1024;
/// Most ports of a card.
const MAX_PORTS: u32 = 4;

/// Most sockets of a host, and most PCIe switches behind one.
pub const MAX_SOCKETS: u32 = 64;

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

/// Reads a topology from the file system: TOML, NCCL topology XML or `nvidia-smi topo -m`.
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
/// As [`read`], [`crate::xml::read`] and [`crate::smi::read`];
/// [`TopologiesError::NotAMachine`] for a PCIe template or a graph file.
pub fn read_any(bytes: &[u8], file: &str, load: Loader<'_>) -> Result<ClusterSpec, TopologiesError> {
    let source = Source::decode(file, bytes)?;
    if looks_like_xml(source.text) || crate::smi::looks_like(source.text) {
        let host = read_host(source)?;
        let stem = Path::new(file).file_stem().map_or_else(|| file.to_owned(), |s| s.to_string_lossy().into_owned());
        return Ok(ClusterSpec::single(&stem, file, host));
    }
    let raw = parse(source)?;
    Reader { source, depth: 0 }.cluster(&raw, load)
}

fn looks_like_xml(text: &str) -> bool {
    text.trim_start().starts_with('<')
}

/// Reads one host from XML or the text of nvidia-smi.
fn read_host(source: Source<'_>) -> Result<HostSpec, TopologiesError> {
    if looks_like_xml(source.text) {
        crate::xml::read_machine(source.text, source.file)
    } else {
        crate::smi::read(source.text, source.file, None)
    }
}

/// The host and the fabric of a built-in, which are our own files.
pub(crate) fn read_builtin(
    text: &str,
    file: &str,
    depth: u32,
) -> Result<(HostPlan, Option<FabricSpec>, ClusterSpec), TopologiesError> {
    let source = Source::new(file, text);
    let raw: RawFile = parse(source)?;
    let reader = Reader { source, depth };
    let plan = match raw.hosts.first() {
        Some(host) => reader.plan(&host.value, &host.span)?.0,
        None => HostPlan::default(),
    };
    let mut none = |_: &str| Err(std::io::Error::other("a built-in names no file"));
    let cluster = reader.cluster(&raw, &mut none)?;
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
    TopologiesError::Syntax(source.at(
        span,
        format!("the file cannot be read as TOML: {}", quote(line)),
        "here",
        "strings are quoted, tables are [name], and each key is given once",
    ))
}

/// Phase two: one file being checked.
#[derive(Clone, Copy)]
struct Reader<'a> {
    source: Source<'a>,
    depth: u32,
}

impl Reader<'_> {
    fn value(&self, span: &Range<usize>, message: String, label: &str, hint: &str) -> TopologiesError {
        TopologiesError::Value(self.source.at(span.clone(), message, label, hint))
    }

    fn contradiction(&self, span: &Range<usize>, message: String, label: &str, hint: &str) -> TopologiesError {
        TopologiesError::Contradiction(self.source.at(span.clone(), message, label, hint))
    }

    /// A whole number within bounds.
    fn number(&self, what: &str, number: &At<i64>, min: u32, max: u32) -> Result<u32, TopologiesError> {
        match u32::try_from(number.value) {
            Ok(value) if (min..=max).contains(&value) => Ok(value),
            Ok(value) if value > max => Err(TopologiesError::TooLarge(self.source.at(
                number.span.clone(),
                format!("{what} is {value}; at most {max} is supported"),
                format!("expected a whole number from {min} to {max}"),
                "",
            ))),
            _ => Err(self.value(
                &number.span,
                format!("{what} is {}", number.value),
                &format!("expected a whole number from {min} to {max}"),
                if min > 0 { "leave the table out if there is none" } else { "" },
            )),
        }
    }

    fn optional_number(
        &self,
        what: &str,
        number: Option<&At<i64>>,
        min: u32,
        max: u32,
    ) -> Result<Option<u32>, TopologiesError> {
        number.map(|n| self.number(what, n, min, max)).transpose()
    }

    fn rate(&self, what: &str, rate: &At<RawRate>) -> Result<Bandwidth, TopologiesError> {
        const EXPECTED: &str = "expected a string such as \"50 GB/s\" or \"400 Gb/s\"";
        let text = match &rate.value.0 {
            Scalar::Text(text) => text,
            other => {
                return Err(self.value(
                    &rate.span,
                    format!("{what} has no unit: `{other}`"),
                    EXPECTED,
                    &unit_hint(&other.to_string()),
                ));
            }
        };
        parse_rate(text).map_err(|error| {
            self.value(&rate.span, format!("{what} cannot be read: {error}"), EXPECTED, &unit_hint(text))
        })
    }

    /// A name out of a list.
    fn choice<T: Copy>(&self, what: &str, given: &At<String>, known: &[(T, &str)]) -> Result<T, TopologiesError> {
        known.iter().find(|(_, name)| *name == given.value).map(|(value, _)| *value).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(_, name)| *name).collect();
            self.source.unknown_name(given.span.clone(), what, &given.value, &names)
        })
    }

    /// The name of a built-in profile.
    fn profile(&self, name: &At<String>) -> Result<String, TopologiesError> {
        if Profile::builtin_text(&name.value).is_some() {
            return Ok(name.value.clone());
        }
        let known = Profile::builtin_names_near(&name.value);
        Err(self.source.unknown_name(name.span.clone(), "a built-in profile", &name.value, &known))
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
            ..ClusterSpec::default()
        };
        if let Some(software) = &raw.software {
            cluster.software = Software {
                nccl: software.nccl.as_ref().map(|v| v.value.clone()),
                plugin: software.plugin.as_ref().map(|v| v.value.clone()),
                env: software.env.iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect(),
                multicast_off: software.multicast == Some(false),
            };
        }
        let mut from_like = None;
        if let Some(like) = &raw.like {
            self.short_form(raw, like, &mut cluster)?;
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
                cluster.assumptions.push(format!("fabric: that of the built-in `{name}`"));
            }
            cluster.fabric = Some(fabric);
        }
        if !raw.exceptions.is_empty() {
            self.source.text.clone_into(&mut cluster.text);
        }
        for exception in &raw.exceptions {
            let exception = self.exception(&exception.value, &exception.span)?;
            cluster.exceptions.push(exception);
        }
        Ok(cluster)
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
    fn short_form(&self, raw: &RawFile, like: &At<String>, cluster: &mut ClusterSpec) -> Result<(), TopologiesError> {
        if let Some(host) = raw.hosts.first() {
            return Err(self.contradiction(
                &like.span,
                "`like` at the top and [[hosts]] tables say the same thing twice".to_owned(),
                "short form",
                &format!("move it into the [[hosts]] table of line {}", self.source.locate(host.span.clone()).line),
            ));
        }
        let (_, fabric, base) = self.builtin(like)?;
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
        cluster.assumptions = base.assumptions;
        if cluster.profile.is_none() {
            cluster.profile = base.profile;
        }
        if raw.software.is_none() {
            cluster.software = base.software;
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

    fn builtin(&self, like: &At<String>) -> Result<(HostPlan, Option<FabricSpec>, ClusterSpec), TopologiesError> {
        if self.depth >= MAX_LIKE_DEPTH {
            return Err(self.contradiction(
                &like.span,
                format!("`like` within `like`, {MAX_LIKE_DEPTH} deep"),
                "too deep",
                "",
            ));
        }
        match texts::text(&like.value) {
            Some(text) => read_builtin(text, &format!("<built-in {}>", like.value), self.depth + 1),
            None => {
                Err(self.source.unknown_name(like.span.clone(), "a built-in topology", &like.value, &texts::names()))
            }
        }
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
            let (plan, base) = self.plan(host, &raw.span)?;
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
        Ok((HostGroup { names, host: spec }, fabric, profile))
    }

    /// The names of a host list, which NICs have too.
    fn expand(&self, list: &At<String>, example: &str, hint: &str) -> Result<Vec<String>, TopologiesError> {
        hostlist::expand(&list.value).map_err(|error| {
            let message = format!("`{}` is not a host list: {error}", quote(&list.value));
            self.value(&list.span, message, &format!("expected a list such as \"{example}\""), hint)
        })
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
                format!("count is {count}, but `{}` names {} hosts", quote(&list.value), names.len()),
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
    ) -> Result<(HostPlan, Option<(String, Option<FabricSpec>, Option<String>)>), TopologiesError> {
        let (mut plan, base) = match &raw.like {
            Some(like) => {
                let (plan, fabric, cluster) = self.builtin(like)?;
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
        Ok((plan, base))
    }

    /// The first line of a table, so that the carets do not cover all of it.
    fn heading(&self, span: &Range<usize>) -> Range<usize> {
        let text = self.source.text.get(span.start..).unwrap_or_default();
        let line = text.lines().next().map_or(0, str::len);
        span.start..span.start + line
    }

    fn host_from_xml(&self, raw: &RawHost, xml: &At<String>, load: Loader<'_>) -> Result<HostSpec, TopologiesError> {
        let clash = [
            ("like", raw.like.as_ref().map(|x| &x.span)),
            ("nvlink", raw.nvlink.as_ref().map(|x| &x.span)),
            ("pcie", raw.pcie.as_ref().map(|x| &x.span)),
        ];
        if let Some((key, Some(span))) = clash.iter().find(|(_, s)| s.is_some()) {
            return Err(self.contradiction(
                span,
                format!("`{key}` and `xml` both say what the host is"),
                "given beside `xml`",
                "keep one of them; `topo import FILE --onto dgx-h100` merges a template",
            ));
        }
        let bytes = load(&xml.value).map_err(|error| {
            TopologiesError::Unreadable(self.source.at(
                xml.span.clone(),
                format!("cannot read `{}`: {error}", quote(&xml.value)),
                "no such file beside this one",
                "NCCL writes it with NCCL_TOPO_DUMP_FILE=nccl_topo.xml",
            ))
        })?;
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
        Ok(host)
    }

    fn gpus(&self, raw: &RawGpus, span: &Range<usize>, plan: &mut HostPlan) -> Result<(), TopologiesError> {
        let count = self.number("the count of GPUs", &raw.count, 1, MAX_PER_HOST)?;
        let Some(kind) = &raw.kind else {
            let Some(base) = &plan.gpus else {
                return Err(TopologiesError::Key(self.source.at(
                    span.clone(),
                    "the GPUs have no `kind`",
                    "needs `kind`",
                    "for example kind = \"H100-SXM5-80GB\"",
                )));
            };
            if count > base.count {
                return Err(self.contradiction(
                    &raw.count.span,
                    format!("{count} GPUs of a host that has {}", base.count),
                    &format!("at most {}", base.count),
                    "a count without `kind` keeps the first GPUs; give `kind` to replace them",
                ));
            }
            plan.keep_gpus = Some(count);
            return Ok(());
        };
        let product = catalogue::by_name(&kind.value);
        let capability = self.optional_number("compute_capability", raw.compute_capability.as_ref(), 10, 999)?;
        let memory_rate = raw.memory_rate.as_ref().map(|r| self.rate("memory_rate", r)).transpose()?;
        let Some(compute_capability) = capability.or_else(|| product.map(|p| p.compute_capability)) else {
            let known: Vec<&str> = catalogue::PRODUCTS.iter().map(|p| p.name).collect();
            let near = collcast_sim::collective::nearest(&kind.value, known.iter().copied());
            return Err(TopologiesError::UnknownName(self.source.at(
                kind.span.clone(),
                format!("the GPU `{}` is not known", quote(&kind.value)),
                near.map_or_else(|| "unknown product".to_owned(), |n| format!("did you mean `{n}`?")),
                format!(
                    "for another product add compute_capability = 90 and memory_rate = \"3.35 \
                     TB/s\"; known: {}",
                    known.join(", ")
                ),
            )));
        };
        plan.gpus = Some(GpuPlan {
            count,
            model: product.map_or_else(|| kind.value.clone(), |p| p.name.to_owned()),
            compute_capability,
            memory_rate: memory_rate.or_else(|| product.map(catalogue::Product::memory_rate)),
            c2c: raw.c2c.as_ref().map(|r| self.rate("c2c", r)).transpose()?,
        });
        plan.keep_gpus = None;
        Ok(())
    }

    fn nvlink(&self, raw: &RawNvlink, span: &Range<usize>, gpus: u32) -> Result<Option<NvlinkPlan>, TopologiesError> {
        let kind = self.choice(
            "a way to join GPUs",
            &raw.kind,
            &[
                (Some(NvlinkKind::Switch), "nvswitch"),
                (Some(NvlinkKind::Mesh), "mesh"),
                (Some(NvlinkKind::Pairs), "pairs"),
                (None, "none"),
            ],
        )?;
        let Some(kind) = kind else {
            return Ok(None);
        };
        let missing = |key: &str| {
            TopologiesError::Key(self.source.at(
                span.clone(),
                format!("the key `{key}` is missing"),
                format!("needs `{key}`"),
                "for example links_per_gpu = 18, rate_per_link = \"25 GB/s\"",
            ))
        };
        let links = raw.links_per_gpu.as_ref().ok_or_else(|| missing("links_per_gpu"))?;
        let rate = raw.rate_per_link.as_ref().ok_or_else(|| missing("rate_per_link"))?;
        let links_per_gpu = self.number("links_per_gpu", links, 1, MAX_PER_HOST)?;
        if kind == NvlinkKind::Mesh && gpus > 1 && !links_per_gpu.is_multiple_of(gpus - 1) {
            return Err(self.contradiction(
                &links.span,
                format!("{links_per_gpu} links of a GPU do not spread evenly over {} others", gpus - 1),
                &format!("expected a multiple of {}", gpus - 1),
                "an uneven mesh is written as NCCL topology XML: xml = \"nccl_topo.xml\"",
            ));
        }
        let domain = self.optional_number("the hosts of an NVLink domain", raw.domain.as_ref(), 1, MAX_PER_HOST)?;
        if let Some(place) = raw.domain.as_ref().filter(|_| kind != NvlinkKind::Switch) {
            return Err(self.contradiction(
                &place.span,
                "an NVLink domain of several hosts needs NVSwitches".to_owned(),
                "without nvswitch",
                "say kind = \"nvswitch\", or leave `domain` out",
            ));
        }
        let domain = domain.filter(|&hosts| hosts > 1);
        Ok(Some(NvlinkPlan { kind, links_per_gpu, rate_per_link: self.rate("rate_per_link", rate)?, domain }))
    }

    fn pcie(&self, raw: &RawPcie) -> Result<PciePlan, TopologiesError> {
        let generation = self.number("the PCIe generation", &raw.generation, 1, 6)?;
        let lanes = self.number("lanes", &raw.lanes, 1, 32)?;
        let rate = catalogue::pcie_generation_rate(generation, lanes).ok_or_else(|| {
            self.value(&raw.generation.span, "the PCIe generation is not known".to_owned(), "expected 1 to 6", "")
        })?;
        Ok(PciePlan {
            rate,
            switches_per_socket: self.number("switches_per_socket", &raw.switches_per_socket, 0, MAX_SOCKETS)?,
            sockets: self.number("sockets", &raw.sockets, 1, MAX_SOCKETS)?,
            interconnect: raw.interconnect.as_ref().map(|r| self.rate("interconnect", r)).transpose()?,
            cpu: text_of(raw.cpu.as_ref()),
        })
    }

    fn nic_names(&self, list: &At<String>, count: u32) -> Result<Vec<String>, TopologiesError> {
        let names = self.expand(list, "mlx5_[0,3-6]", "devices are listed as Slurm lists hosts")?;
        if names.len() != count as usize {
            return Err(self.contradiction(
                &list.span,
                format!("count is {count}, but `{}` names {} NICs", quote(&list.value), names.len()),
                &format!("{} names", names.len()),
                "one name per port",
            ));
        }
        Ok(names)
    }

    fn nics(&self, raw: &RawNics, gpus: u32, sockets: u32) -> Result<NicPlan, TopologiesError> {
        let kinds: Vec<(LinkKind, &str)> =
            LinkKind::ALL.iter().filter(|k| k.is_network()).map(|&k| (k, k.name())).collect();
        let kind = self.choice("a kind of NIC", &raw.kind, &kinds)?;
        let count = self.number("the count of NICs", &raw.count, 1, MAX_PER_HOST)?;
        let names = raw.names.as_ref().map(|list| self.nic_names(list, count)).transpose()?.unwrap_or_default();
        let rate = self.rate("the rate of the NICs", &raw.rate)?;
        let per_gpu = self.optional_number("per_gpu", raw.per_gpu.as_ref(), 1, MAX_PER_HOST)?;
        if let (Some(per), Some(place)) = (per_gpu, &raw.per_gpu)
            && per.saturating_mul(gpus) != count
        {
            return Err(self.contradiction(
                &place.span,
                format!("{per} NICs per GPU x {gpus} GPUs is not count = {count}"),
                &format!("{per} x {gpus} = {}", u64::from(per) * u64::from(gpus)),
                "list the GPUs in `gpu` where they have unequal numbers of NICs",
            ));
        }
        let ports = self.optional_number("ports", raw.ports.as_ref(), 1, MAX_PORTS)?.unwrap_or(1);
        if let Some(place) = &raw.ports
            && !count.is_multiple_of(ports)
        {
            return Err(self.contradiction(
                &place.span,
                format!("count = {count} ports are no whole number of cards with {ports}"),
                &format!("a multiple of {ports}"),
                "count counts ports, not cards",
            ));
        }
        let gpu = raw.gpu.as_ref().map(|list| self.gpu_list(list, count, gpus)).transpose()?;
        if let Some(place) = raw.socket.as_ref().filter(|_| gpu.is_some() || per_gpu.is_some()) {
            return Err(self.contradiction(
                &place.span,
                "`socket` beside `gpu` or `per_gpu`".to_owned(),
                "one of them",
                "a NIC is behind the switch of a GPU or hangs from a CPU",
            ));
        }
        let socket =
            (raw.socket.as_ref()).map(|list| self.list("socket", list, count, sockets, "sockets")).transpose()?;
        let rail =
            raw.rail.as_ref().map(|list| self.list("rail", list, count, MAX_PER_HOST, "rail numbers")).transpose()?;
        let gpudirect_rate = raw.gpudirect_rate.as_ref().map(|r| self.rate("gpudirect_rate", r)).transpose()?;
        let gpudirect = raw.gpudirect;
        Ok(NicPlan { kind, count, names, rate, gpu, socket, per_gpu, rail, ports, gpudirect, gpudirect_rate })
    }

    /// A list with one number per NIC, each below `limit`.
    fn list(
        &self,
        key: &str,
        list: &At<Vec<At<i64>>>,
        count: u32,
        limit: u32,
        what: &str,
    ) -> Result<Vec<u32>, TopologiesError> {
        if list.value.len() != count as usize {
            return Err(self.contradiction(
                &list.span,
                format!("`{key}` has {} entries, but there are {count} NICs", list.value.len()),
                &format!("expected {count} entries"),
                "one entry per NIC, in order",
            ));
        }
        list.value
            .iter()
            .map(|entry| match u32::try_from(entry.value) {
                Ok(value) if value < limit => Ok(value),
                _ => Err(self.contradiction(
                    &entry.span,
                    format!("`{key}` names {}, which is none", entry.value),
                    &format!("expected {what} from 0 to {}", limit.saturating_sub(1)),
                    "they are counted from 0",
                )),
            })
            .collect()
    }

    /// Each GPU that is listed must be listed equally often: a mistyped index shows that way.
    fn gpu_list(&self, list: &At<Vec<At<i64>>>, count: u32, gpus: u32) -> Result<Vec<u32>, TopologiesError> {
        let indices = self.list("gpu", list, count, gpus, "GPUs")?;
        let times = |gpu: u32| indices.iter().filter(|&&g| g == gpu).count();
        let fewest = indices.iter().map(|&g| times(g)).min().unwrap_or(0);
        for (i, &gpu) in indices.iter().enumerate() {
            let seen = indices[..=i].iter().filter(|&&g| g == gpu).count();
            if seen > fewest {
                return Err(self.contradiction(
                    &list.value[i].span,
                    format!("GPU {gpu} is listed {} times in `gpu`, others less often", times(gpu)),
                    "listed again",
                    "list each GPU equally often; an uneven machine is written as NCCL topology \
                     XML: xml = \"nccl_topo.xml\"",
                ));
            }
        }
        Ok(indices)
    }

    fn management(&self, raw: &RawManagement) -> Result<ManagementPlan, TopologiesError> {
        Ok(ManagementPlan {
            name: raw.name.value.clone(),
            rate: self.rate("the rate of the management NIC", &raw.rate)?,
        })
    }

    fn fabric(&self, raw: &RawFabric) -> Result<FabricSpec, TopologiesError> {
        let kind = self.choice("a kind of fabric", &raw.kind, FabricKind::ALL)?;
        let place = |span: &Range<usize>| Some(self.source.locate(span.clone()));
        let by_rail = matches!(kind, FabricKind::RailOptimised | FabricKind::RailOnly);
        let mut leaf = None;
        if let Some(written) = &raw.leaf {
            if let Some(per) = &written.value.per {
                let rail = self.choice("a set of ports", per, &[(true, "rail"), (false, "unit")])?;
                if rail != by_rail {
                    return Err(self.contradiction(
                        &per.span,
                        format!("leaves per {} in a {} fabric", per.value, kind.name()),
                        if by_rail { "expected \"rail\"" } else { "expected \"unit\"" },
                        "only rail-optimised and rail-only fabrics have leaves per rail",
                    ));
                }
            }
            let rate = written.value.rate.as_ref();
            leaf = Some(LeafSpec {
                rate: rate.map(|r| self.rate("the rate of the leaf", r)).transpose()?,
                down: self.optional_number("down", written.value.down.as_ref(), 1, 100_000)?,
                up: self.optional_number("up", written.value.up.as_ref(), 0, MAX_SWITCHES)?,
            });
        }
        let spine = raw
            .spine
            .as_ref()
            .map(|s| {
                Ok::<_, TopologiesError>(SpineSpec {
                    count: self.number("the count of spines", &s.value.count, 1, MAX_SWITCHES)?,
                    ports: self.number("the ports of a spine", &s.value.ports, 1, 100_000)?,
                })
            })
            .transpose()?;
        let hosts_per_unit = self.optional_number("hosts_per_unit", raw.hosts_per_unit.as_ref(), 1, MAX_GPUS_U32)?;
        Ok(FabricSpec {
            kind,
            hosts_per_unit,
            leaf,
            spine,
            routing: self.routing(raw)?,
            oversubscription: self.oversubscription(raw)?,
            sharp: raw.sharp.unwrap_or(false),
            places: FabricPlaces {
                file: self.source.file.to_owned(),
                kind: place(&raw.kind.span),
                hosts_per_unit: raw.hosts_per_unit.as_ref().and_then(|x| place(&x.span)),
                leaf: raw.leaf.as_ref().and_then(|x| place(&x.span)),
                spine: raw.spine.as_ref().and_then(|x| place(&x.span)),
                oversubscription: raw.oversubscription.as_ref().and_then(|x| place(&x.span)),
            },
        })
    }

    fn routing(&self, raw: &RawFabric) -> Result<Routing, TopologiesError> {
        let Some(routing) = &raw.routing else {
            return Ok(Routing::Adaptive);
        };
        match &routing.value.0 {
            Scalar::Hash(seed) => Ok(Routing::Hash(seed.unsigned_abs())),
            Scalar::Text(text) => {
                let given = At { value: text.clone(), span: routing.span.clone() };
                self.choice("a kind of routing", &given, &[(Routing::Adaptive, "adaptive"), (Routing::Spray, "spray")])
            }
            other => Err(self.value(
                &routing.span,
                format!("`{other}` is not a kind of routing"),
                "expected \"adaptive\", \"spray\" or { hash = 7 }",
                "static ECMP is { hash = SEED }",
            )),
        }
    }

    fn oversubscription(&self, raw: &RawFabric) -> Result<Oversubscription, TopologiesError> {
        let Some(given) = &raw.oversubscription else {
            return Ok(Oversubscription::NotGiven);
        };
        let ratio = match &given.value.0 {
            Scalar::Text(text) if text == "unknown" => return Ok(Oversubscription::Unknown),
            Scalar::Text(text) => text.split_once(':').and_then(|(down, up)| {
                let number = |t: &str| t.trim().parse::<f64>().ok().filter(|x| *x > 0.0);
                Some(number(down)? / number(up)?)
            }),
            Scalar::Whole(number) => Some(*number as f64),
            Scalar::Real(number) => Some(*number),
            _ => None,
        };
        match ratio {
            Some(ratio) if (1.0..=1000.0).contains(&ratio) => {
                Ok(Oversubscription::Thousandths((ratio * 1000.0).round() as u32))
            }
            _ => Err(self.value(
                &given.span,
                format!("`{}` is not an over-subscription", quote(&given.value.0.to_string())),
                "expected a number from 1, \"3:2\" or \"unknown\"",
                "it is the rate into a leaf over the rate out of it upwards",
            )),
        }
    }

    fn exception(&self, raw: &RawException, span: &Range<usize>) -> Result<Exception, TopologiesError> {
        let deviation = match (&raw.rate, &raw.state) {
            (Some(rate), None) => Deviation::Rate(self.rate("the rate of the exception", rate)?),
            (None, Some(state)) => {
                self.choice("a state of a NIC", state, &[((), "down")])?;
                Deviation::Down
            }
            (Some(_), Some(state)) => {
                return Err(self.contradiction(
                    &state.span,
                    "the exception gives a rate and a state".to_owned(),
                    "both",
                    "a port runs at a rate or is down",
                ));
            }
            (None, None) => {
                return Err(TopologiesError::Key(self.source.at(
                    self.heading(span),
                    "the exception does not say what is different",
                    "needs `rate` or `state`",
                    "for example rate = \"200 Gb/s\", or state = \"down\"",
                )));
            }
        };
        Ok(Exception {
            host: raw.host.value.clone(),
            nic: self.optional_number("nic", raw.nic.as_ref(), 0, MAX_PER_HOST)?,
            deviation,
            host_at: Some(raw.host.span.clone()),
            nic_at: raw.nic.as_ref().map(|n| n.span.clone()),
        })
    }
}

#[allow(clippy::cast_possible_truncation)]
const MAX_GPUS_U32: u32 = MAX_GPUS as u32;

fn text_of(text: Option<&At<String>>) -> String {
    text.map(|t| t.value.clone()).unwrap_or_default()
}

/// Bits or bytes: the usual slip, with the value at hand.
fn unit_hint(text: &str) -> String {
    let number: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 => {
            format!("data sheets give bits; {number} Gb/s is {} GB/s", value / 8.0)
        }
        _ => "a rate is one direction and more than zero; a dead port is state = \"down\"".to_owned(),
    }
}
