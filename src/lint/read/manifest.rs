//! Kubernetes and Compose manifests: variables of each container, and what it is given.

use super::yaml::{Node, documents};
use super::{environ, shell};
use crate::lint::launch::{SHM_LEAST, Word, ports, size};
use crate::lint::setting::{Scope, is_name, is_of_interest};

/// Deepest nesting in which containers are looked for.
const DEPTH_MAX: usize = 32;
/// Most settings that containers take whole.
const GIVEN_MAX: usize = 10_000;
/// Keys of what a container runs, in the order of its words.
const COMMAND: [&str; 3] = ["entrypoint", "command", "args"];

/// A scope for each container, each service of Compose and each ConfigMap that no container takes whole, and one for what
/// stands outside of them.
pub(super) fn file(text: &str) -> Vec<Scope> {
    let documents = documents(text);
    let mut maps = Maps::default();
    documents.iter().for_each(|document| maps.add(document, 0));
    let mut found = Scopes::default();
    documents.iter().for_each(|document| found.within(document, &mut maps, Around::default()));
    found.0.extend(maps.all.into_iter().filter(|map| !map.taken).map(|map| map.scope));
    found.0
}

/// Scopes that say something.
#[derive(Default)]
struct Scopes(Vec<Scope>);

impl Scopes {
    /// What a part of a manifest says outside of containers, as a scope of its own.
    fn within(&mut self, node: &Node, maps: &mut Maps, around: Around) {
        let mut rest = Scope::default();
        walk(node, self, &mut rest, maps, around);
        if !rest.settings.is_empty() || !rest.signs.is_empty() {
            self.0.push(rest);
        }
    }
}

/// ConfigMaps.
#[derive(Default)]
struct Maps {
    all: Vec<Map>,
    /// Settings that containers took of them so far.
    given: usize,
}

struct Map {
    name: String,
    scope: Scope,
    /// A container takes all of its variables.
    taken: bool,
}

impl Maps {
    /// Adds what `node` is or has within.
    fn add(&mut self, node: &Node, depth: usize) {
        if let Some(name) = config_map(node) {
            let mut scope = Scope::default();
            for (key, value) in node.get("data").map(Node::entries).unwrap_or_default() {
                if let Some(text) = value.text().filter(|_| is_name(key) && is_of_interest(key)) {
                    scope.set(key, text, Some(value.line));
                }
            }
            self.all.push(Map { name: name.to_owned(), scope, taken: false });
        }
        // Those of a `List`.
        for item in node.get("items").map(Node::items).unwrap_or_default().iter().filter(|_| depth < DEPTH_MAX) {
            self.add(item, depth + 1);
        }
    }

    /// Adds to a container what it takes whole: `envFrom: [{configMapRef: {name: NAME}, prefix: P}]`.
    fn give(&mut self, container: &Node, scope: &mut Scope) {
        for from in container.get("envFrom").map(Node::items).unwrap_or_default() {
            let name = from.get("configMapRef").and_then(|map| map.get("name")).and_then(Node::text);
            let Some(map) = self.all.iter_mut().find(|map| Some(map.name.as_str()) == name) else { continue };
            self.given += map.scope.settings.len();
            if self.given > GIVEN_MAX {
                return;
            }
            map.taken = true;
            let prefix = from.get("prefix").and_then(Node::text).unwrap_or_default();
            for setting in &map.scope.settings {
                scope.set(&format!("{prefix}{}", setting.name), &setting.value, setting.line);
            }
        }
    }
}

/// The name of a ConfigMap, if that is one.
fn config_map(node: &Node) -> Option<&str> {
    node.get("kind").and_then(Node::text).filter(|kind| *kind == "ConfigMap")?;
    node.get("metadata")?.get("name")?.text()
}

/// What stands around a part of a manifest.
#[derive(Clone, Copy, Default)]
struct Around {
    depth: usize,
    /// The pod asks for more networks than the cluster's own.
    networks: bool,
}

impl Around {
    /// What stands around the parts of `node`.
    fn within(self, node: &Node) -> Self {
        // Annotations of Multus, and of multi-networking in GKE.
        let asks = |key: &str| key == "k8s.v1.cni.cncf.io/networks" || key == "networking.gke.io/interfaces";
        let annotations = node.get("metadata").and_then(|metadata| metadata.get("annotations")).map(Node::entries);
        let networks = annotations.unwrap_or_default().iter().any(|(key, _)| asks(key));
        Self { depth: self.depth + 1, networks: self.networks || networks }
    }
}

/// Looks for containers, and for maps whose keys are variables (Compose's `environment`, the values of a chart).
fn walk(node: &Node, scopes: &mut Scopes, rest: &mut Scope, maps: &mut Maps, around: Around) {
    if around.depth > DEPTH_MAX {
        return;
    }
    let within = around.within(node);
    for sysctl in node.get("sysctls").map(Node::items).unwrap_or_default() {
        let named = sysctl.get("name").and_then(Node::text) == Some("net.ipv4.ip_local_port_range");
        if let Some((range, line)) = sysctl.get("value").filter(|_| named).and_then(|v| Some((v.text()?, v.line))) {
            ports(range, Some(line), rest);
        }
    }
    // Of Compose, and of containers that stand alone. Arguments of a build are variables.
    let run: &[&str] = if node.get("image").or(node.get("command")).is_some() { &COMMAND } else { &COMMAND[..2] };
    commands(node, run, rest);
    let is_run = |key: &str, value: &Node| run.contains(&key) && value.entries().is_empty();
    let is_map = config_map(node).is_some();
    for (key, value) in node.entries().iter().filter(|(key, value)| !is_run(key, value)) {
        // The variables of a ConfigMap are known; files in it are not.
        if is_map {
            walk(value, scopes, &mut Scope::default(), maps, within);
            continue;
        }
        if matches!(key.as_str(), "containers" | "initContainers") {
            let of = |container| of_container(container, node, maps, around.networks);
            scopes.0.extend(value.items().iter().map(of));
            continue;
        }
        // Of Compose: each is a process of its own.
        if key == "services" && around.depth == 0 {
            value.entries().iter().for_each(|(_, service)| scopes.within(service, maps, within));
            continue;
        }
        // A file of a ConfigMap.
        if let Some(text) = value.text().filter(|_| key.ends_with("nccl.conf")) {
            scopes.0.push(environ::conf(text, value.line));
        }
        if let Some(text) = value.text().filter(|_| is_name(key) && is_of_interest(key)) {
            rest.set(key, text, Some(value.line));
        }
        walk(value, scopes, rest, maps, within);
    }
    for item in node.items() {
        let pair = item.text().and_then(|text| text.split_once('='));
        if let Some((name, value)) = pair.filter(|(name, _)| is_name(name) && is_of_interest(name)) {
            rest.set(name, value, Some(item.line));
        }
        variable(item, rest);
        walk(item, scopes, rest, maps, within);
    }
}

fn of_container(container: &Node, pod: &Node, maps: &mut Maps, networks: bool) -> Scope {
    let mut scope = Scope { line: Some(container.line), ..Scope::default() };
    let variables = container.get("env").map(Node::items).unwrap_or_default();
    variables.iter().for_each(|one| variable(one, &mut scope));
    scope.sign_twice();
    // What the container sets itself goes before what it takes whole.
    let own = std::mem::take(&mut scope.settings);
    maps.give(container, &mut scope);
    scope.settings.extend(own);
    commands(container, &["command", "args"], &mut scope);
    let resources = container.get("resources");
    let limits = resources.and_then(|r| r.get("limits").or_else(|| r.get("requests")));
    let limits = limits.map(Node::entries).unwrap_or_default();
    let is_gpu = |name: &str| name.contains("/gpu") || name.contains("nvidia.com/mig");
    if let Some((_, gpus)) = limits.iter().find(|(name, _)| is_gpu(name)) {
        scope.gpus = true;
        of_gpus(container, pod, limits, gpus, &mut scope);
        // Whoever runs the cluster names its resources: what a claim, a network or another resource brings is not known.
        let claims = resources.and_then(|r| r.get("claims")).is_some_and(|claims| !claims.items().is_empty());
        let other = limits.iter().any(|(name, _)| name.contains('/') && !is_gpu(name));
        if scope.rdma_device == Some(false) && (claims || networks || other) {
            scope.rdma_device = None;
        }
    }
    scope
}

/// What a container with GPUs is given beside them.
fn of_gpus(container: &Node, pod: &Node, limits: &[(String, Node)], gpus: &Node, scope: &mut Scope) {
    let line = Some(container.line);
    let security = container.get("securityContext");
    let privileged = security.and_then(|s| s.get("privileged")).and_then(Node::text) == Some("true");
    let names = ["rdma", "efa", "infiniband", "hca", "hostdev", "roce", "sriov", "mlnx"];
    let rdma = limits.iter().any(|(name, _)| names.iter().any(|word| name.contains(word)));
    let mounts = |path: &str| mounted(container, pod, path);
    let devices = mounts("/dev/infiniband").is_some();
    scope.rdma_device = Some(rdma || privileged || devices);
    let added = security.and_then(|s| s.get("capabilities")).and_then(|c| c.get("add")).map(Node::items);
    let locks = |capability: &Node| matches!(capability.text(), Some("IPC_LOCK" | "ALL" | "SYS_RESOURCE"));
    if (rdma || devices) && !privileged && !added.unwrap_or_default().iter().any(locks) {
        scope.sign("memlock", line, "an RDMA device without the capability IPC_LOCK");
    }
    let of_host = pod.get("hostIPC").and_then(Node::text) == Some("true");
    let count = gpus.text().and_then(|n| n.parse::<u64>().ok());
    if let Some(count) = count.filter(|&count| (1..count).contains(&scope.processes)) {
        let what = format!("{} processes in a container that asks for {count} GPUs", scope.processes);
        scope.sign("unused-gpus", line, what);
    }
    let several = count.is_none_or(|count| count > 1);
    match mounts("/dev/shm") {
        _ if of_host => {}
        None if several => scope.sign("small-shm", line, "GPUs, and nothing mounted at /dev/shm"),
        None => {}
        Some(limit) => {
            if let Some(text) = limit.filter(|text| size(text).is_some_and(|bytes| bytes < SHM_LEAST)) {
                scope.sign("small-shm", line, format!("/dev/shm of {text}"));
            }
        }
    }
    let cpu = limits.iter().find(|(name, _)| name == "cpu");
    if let Some((_, cpu)) = cpu.filter(|(_, cpu)| cpu.text() == Some("1")) {
        scope.sign("one-core", Some(cpu.line), "the container has 1 CPU");
    }
}

/// Whether a path is mounted, and the limit on its size where the volume says one.
fn mounted(container: &Node, pod: &Node, path: &str) -> Option<Option<String>> {
    let mounts = container.get("volumeMounts").map(Node::items).unwrap_or_default();
    let mount = mounts.iter().find(|m| m.get("mountPath").and_then(Node::text) == Some(path))?;
    let name = mount.get("name").and_then(Node::text);
    let volumes = pod.get("volumes").map(Node::items).unwrap_or_default();
    let volume = volumes.iter().find(|v| v.get("name").and_then(Node::text) == name);
    let limit = volume.and_then(|v| v.get("emptyDir")).and_then(|e| e.get("sizeLimit")).and_then(Node::text);
    Some(limit.map(str::to_owned))
}

/// Reads the command that a map gives under these keys, as one.
fn commands(node: &Node, keys: &[&str], scope: &mut Scope) {
    let texts = |node: &Node| -> Vec<Word> {
        let lone = node.text().map(|text| Word { text: text.to_owned(), line: node.line });
        lone.into_iter()
            .chain(
                node.items()
                    .iter()
                    .flat_map(|item| item.text().map(|text| Word { text: text.to_owned(), line: item.line })),
            )
            .collect()
    };
    let words: Vec<Word> = keys.iter().filter_map(|key| node.get(key)).flat_map(texts).collect();
    let inner = shell::exec(&words);
    scope.settings.extend(inner.settings);
    scope.signs.extend(inner.signs);
    scope.processes = scope.processes.saturating_add(inner.processes);
}

/// `{name: NAME, value: VALUE}`, as lists of variables have it.
fn variable(node: &Node, scope: &mut Scope) {
    let field = |name| node.get(name).and_then(Node::text);
    if let (Some(name), Some(value)) = (field("name"), field("value"))
        && is_name(name)
        && is_of_interest(name)
    {
        scope.set(name, value, Some(node.line));
    }
}
