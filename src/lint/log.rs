//! Logs of `NCCL_DEBUG=INFO`: what NCCL took, beside what the machine has and what we would choose.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use collcast_hwbackend::nccl::{data_type, reduction};
use collcast_hwbackend::read::plain_line;
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use collcast_sim::nccl::parameters::Parameter;
use collcast_sim::nccl::{ALGORITHMS, FUNCTIONS};
use collcast_sim::predict::Choice;
use collcast_sim::schedule::Call;
use collcast_sim::units::Bytes;
use collcast_topologies::log::{variable, version, writer};

use super::cost::Loss;
use super::found::Found;
use super::launch::one_core;
use super::machine::Machine;
use super::names::leads_nowhere;
use super::paths::{At, Paths, first};
use super::rules;
use super::setting::Scope;
use crate::confidence::Grounds;
use crate::error::Error;
use crate::forecast::{Request, Row, forecast};
use crate::query::Query;
use crate::site::{Site, TABLES};
use crate::topo::{GraphsOutcome, GraphsRequest, graphs};
use crate::values::plural;

/// Most different choices that are compared.
const CHOICES_MAX: usize = 256;
/// Most choices that are forecast: those of the largest calls.
const FORECASTS_MAX: usize = 8;
/// Why no RDMA device is used, in words.
const NO_DEVICE: &str = "no RDMA device is found";
const NO_LIBRARY: &str = "libibverbs cannot be opened, so no RDMA device is found";
/// The way out of the latter.
const INSTALL: &str = "put libibverbs into the image: the package libibverbs1, or rdma-core";
/// Beginnings of the variables in which all ranks of a communicator must agree: they change the choice, the channels, the
/// FIFOs, or the way between two ranks.
const OF_ALL: [&str; 23] = [
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_LL",
    "NCCL_MIN_",
    "NCCL_MAX_",
    "NCCL_NCHANNELS_",
    "NCCL_NVLS",
    "NCCL_COLLNET_",
    "NCCL_PAT_",
    "NCCL_P2P_",
    "NCCL_SHM_DISABLE",
    "NCCL_CUMEM_",
    "NCCL_MNNVL_",
    "NCCL_IB_DISABLE",
    "NCCL_CROSS_NIC",
    "NCCL_PXN_",
    "NCCL_TUNER_",
    "NCCL_GRAPH_FILE",
    "NCCL_CTA_POLICY",
    "NCCL_SYM_",
    "NCCL_WIN_",
];
/// Parts of the names of variables that are of one host: its name, its devices, its cores, what it writes.
const OF_ONE: [&str; 8] =
    ["_HOSTID", "_IFNAME", "_IB_HCA", "_IB_GID_INDEX", "_FILE", "NCCL_DEBUG", "_CPUSET", "_CPU_AFFINITY"];
/// Hosts that a finding names beside the first.
const HOSTS_NAMED: usize = 3;

/// What a log says, over all of its lines.
#[derive(Default)]
struct Log {
    scope: Scope,
    /// Names and values in it.
    seen: BTreeSet<(String, String)>,
    /// By host: settings with their values, where first.
    settings: BTreeMap<String, BTreeMap<String, (String, u64)>>,
    /// By host: RDMA devices in use.
    nics: BTreeMap<String, (usize, u64)>,
    /// By version: where first, and by which host; none where the line does not say that.
    versions: BTreeMap<String, (String, u64)>,
    ranks: u32,
    /// NCCL's nodes: hosts, or NVLink domains where it takes one for a node.
    nodes: u32,
    /// Hosts that wrote lines of NCCL: whether a communicator was complete there, so that all settings are in the log.
    writers: BTreeMap<String, bool>,
    /// `Using network IB`.
    network: Option<String>,
    /// Why no RDMA device is used: `NET/IB : No device found`, or no library for them.
    no_device: At<&'static str>,
    /// A channel goes over TCP, or the network is Socket.
    sockets: At<()>,
    shm: At<()>,
    /// A channel leaves a host, or stands for one that does.
    over_net: bool,
    /// A channel goes over RDMA without GPUDirect: how many, and of how many.
    without_gdr: At<u32>,
    with_gdr: u32,
    interface: At<String>,
    channels: At<u32>,
    /// A warning that no rule of the catalogue knows.
    warned: At<String>,
    /// `X/Plugin: Could not find`.
    no_plugin: BTreeMap<&'static str, (String, u64)>,
    gloo: At<()>,
    is_nccl: bool,
    choices: BTreeSet<Taken>,
    /// Of calls of so many bytes: what is combined, and how.
    kinds: BTreeMap<(Collective, u64), BTreeSet<Kind>>,
    /// Calls of a group share channels.
    grouped: bool,
    paths: Paths,
    /// Rules of the catalogue that lines matched: where first, and how often.
    matched: BTreeMap<usize, (u64, u64)>,
    one_core: At<String>,
}

/// How values are combined, and their type.
type Kind = (ReduceOp, DataType);

/// What NCCL took for a call, and where it says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Taken {
    collective: Collective,
    bytes: u64,
    algorithm: Algorithm,
    protocol: Protocol,
    channels: Option<u32>,
    line: u64,
}

/// What was understood of a log.
pub(super) struct Understood {
    /// The settings that it names.
    pub(super) scope: Scope,
    /// What was understood, in words.
    pub(super) says: Option<String>,
    /// What forecasts of findings rest on.
    pub(super) grounds: Vec<Grounds>,
}

/// Reads a log and reports on it: the settings that it names, which are left to the other rules, and what was understood.
pub(super) fn check(text: &str, machine: Option<&Machine>, found: &mut Found<'_>) -> Result<Understood, Error> {
    let log = Log::read(text);
    log.report(found);
    log.report_network(machine, found);
    let grounds = machine.map_or(Ok(Vec::new()), |machine| log.report_machine(machine, found))?;
    let says = log.says();
    Ok(Understood { scope: log.scope, says, grounds })
}

impl Log {
    fn read(text: &str) -> Self {
        let mut log = Self { scope: Scope { log: true, ..Scope::default() }, ..Self::default() };
        let patterns: Vec<(usize, &str)> = (rules::all().iter().enumerate())
            .flat_map(|(index, rule)| rule.log.iter().map(move |pattern| (index, pattern.as_str())))
            .collect();
        for (number, line) in (1_u64..).zip(text.lines()) {
            let line = plain_line(line);
            if line.contains("[Gloo] Rank ") {
                first(&mut log.gloo, (), number);
            }
            let mut matched = false;
            for &(index, _) in patterns.iter().filter(|(_, pattern)| line.contains(pattern)) {
                log.matched.entry(index).or_insert((number, 0)).1 += 1;
                matched = true;
            }
            if let Some((_, text)) = line.split_once("NCCL WARN ").filter(|_| !matched) {
                first(&mut log.warned, text.trim().chars().take(100).collect(), number);
            }
            if let Some(at) = line.find("NCCL INFO ").or_else(|| line.find("NCCL WARN ")) {
                log.is_nccl = true;
                log.line(number, host(&line[..at]), line[at + "NCCL INFO ".len()..].trim());
            } else if let Some(version) = version(&line) {
                log.is_nccl = true;
                log.versions.entry(version.to_owned()).or_insert((String::new(), number));
            }
        }
        log
    }

    fn line(&mut self, number: u64, host: &str, text: &str) {
        if !self.writers.contains_key(host) {
            self.writers.insert(host.to_owned(), false);
        }
        if text.ends_with("Init COMPLETE") {
            self.writers.insert(host.to_owned(), true);
        }
        self.paths.line(number, host, text);
        if let Some(network) = text.strip_prefix("Using network ") {
            self.network.get_or_insert_with(|| network.trim().chars().take(40).collect());
        }
        if let Some((name, value)) = variable(text) {
            self.setting(number, host, name, value);
        } else if let Some(version) = version(text) {
            self.versions.entry(version.to_owned()).or_insert((host.to_owned(), number));
        } else if let Some(rest) = text.strip_prefix("NET/IB : ") {
            self.verbs(number, host, rest);
        } else if text.starts_with("NET/OFI No eligible providers") {
            first(&mut self.no_device, NO_DEVICE, number);
        } else if text.starts_with("Failed to open libibverbs") {
            first(&mut self.no_device, NO_LIBRARY, number);
        } else if text.starts_with("Using network Socket") {
            first(&mut self.sockets, (), number);
        } else if let Some((_, rest)) = text.split_once("OOB ").or_else(|| text.split_once("NET/Socket : Using [0]")) {
            let interface = rest.split(':').next().unwrap_or_default();
            if leads_nowhere(interface) {
                first(&mut self.interface, interface.to_owned(), number);
            }
        } else if let Some((what, path)) = text.split_once(" via ") {
            self.channel(number, what, path);
        } else if text.starts_with("comm ") && text.contains(" nRanks ") {
            let words: Vec<&str> = text.split_whitespace().collect();
            let after = |name| words.windows(2).find(|w| w[0] == name).and_then(|w| w[1].parse::<u32>().ok());
            if let Some(ranks) = after("nRanks").filter(|&ranks| ranks > self.ranks) {
                (self.ranks, self.nodes) = (ranks, after("nNodes").unwrap_or(0));
            }
        } else if let Some((count, _)) = text.split_once(" coll channels") {
            if let Ok(count) = count.trim().parse() {
                first(&mut self.channels, count, number);
            }
        } else if let Some((plugin, _)) = text.split_once("/Plugin: Could not find") {
            let known = ["NET", "TUNER", "PROFILER"].into_iter().find(|known| *known == plugin);
            if let Some(plugin) = known {
                let library = text.rsplit(' ').find(|w| w.contains(".so")).unwrap_or_default();
                self.no_plugin.entry(plugin).or_insert((library.trim_end_matches('.').to_owned(), number));
            }
        } else if let Some((name, call)) = text.split_once(": opCount ") {
            self.kind(name, call);
        } else if let Some((before, after)) = text.split_once(" Bytes -> Algo ") {
            self.choice(number, before, after);
        } else if text.contains("ffinity") {
            self.affinity(number, text);
        }
    }

    /// What was understood, in words: `1 host: IB, 8 devices, GDRDMA`; none where that is nothing.
    fn says(&self) -> Option<String> {
        let counts = || self.nics().into_values().map(|(count, _)| count);
        let devices = counts().min().zip(counts().max()).map(|(least, most)| match least == most {
            true => plural(most, "device", "devices"),
            false => format!("{least} to {most} devices"),
        });
        let parts = [
            self.versions.keys().next().map(|version| format!("NCCL {}", version.chars().take(40).collect::<String>())),
            (self.ranks > 0).then(|| plural(self.ranks as usize, "rank", "ranks")),
            self.network.clone(),
            devices,
            (self.with_gdr > 0 && self.without_gdr.is_none()).then(|| "GDRDMA".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty())
            .then(|| format!("{}: {}", plural(self.writers.len().max(1), "host", "hosts"), parts.join(", ")))
    }

    fn setting(&mut self, number: u64, host: &str, name: &str, value: &str) {
        if !super::setting::is_name(name) {
            return;
        }
        let new = (value.to_owned(), number);
        self.settings.entry(host.to_owned()).or_default().entry(name.to_owned()).or_insert(new);
        if self.seen.insert((name.to_owned(), value.to_owned())) {
            self.scope.set(name, value, Some(number));
        }
    }

    /// `No device found.`, or `Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:192.0.2.1<0>`.
    fn verbs(&mut self, number: u64, host: &str, rest: &str) {
        if rest.starts_with("No device found") {
            first(&mut self.no_device, NO_DEVICE, number);
            return;
        }
        if let Some((devices, oob)) = rest.split_once("; OOB ") {
            let count = devices.split_whitespace().filter(|word| word.starts_with('[') && word.contains(":")).count();
            if count > 0 {
                self.nics.entry(host.to_owned()).or_insert((count, number));
            }
            let interface = oob.split(':').next().unwrap_or_default();
            if leads_nowhere(interface) {
                first(&mut self.interface, interface.to_owned(), number);
            }
        }
    }

    /// `Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA`.
    fn channel(&mut self, number: u64, what: &str, path: &str) {
        if !what.starts_with("Channel ") {
            return;
        }
        self.over_net |= path.starts_with("NET/");
        if path.starts_with("NET/Socket") {
            first(&mut self.sockets, (), number);
        } else if path.starts_with("SHM") {
            first(&mut self.shm, (), number);
        } else if path.starts_with("NET/") {
            self.paths.channel(number, what);
            // Plugins of which no line with GPUDirect is known.
            let unknown = ["TCPX", "FasTrak"].iter().any(|plugin| path.contains(plugin));
            if path.contains("/GDRDMA") {
                self.with_gdr += 1;
            } else if !unknown {
                first(&mut self.without_gdr, 0, number);
                if let Some((count, _)) = &mut self.without_gdr {
                    *count += 1;
                }
            }
        }
    }

    /// By host: RDMA devices in use, of NCCL's own verbs or of libfabric.
    fn nics(&self) -> BTreeMap<&str, (usize, u64)> {
        let all = self.nics.iter().chain(&self.paths.fabric_nics);
        all.map(|(host, nics)| (host.as_str(), *nics)).collect()
    }

    /// `AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 24 datatype 7 op 0 root 0 comm 0x3 [nranks=8] stream 0x4`, of the
    /// part COLL.
    fn kind(&mut self, name: &str, call: &str) {
        let words: Vec<&str> = call.split_whitespace().collect();
        let after = |name| words.windows(2).find(|w| w[0] == name).and_then(|w| w[1].parse::<u64>().ok());
        let is = |number: u64, of: std::ffi::c_int| u64::try_from(of) == Ok(number);
        let dtype = after("datatype").and_then(|number| DataType::ALL.iter().find(|&&d| is(number, data_type(d))));
        // Numbers beyond NCCL's own are of scaled sums, which NCCL makes of averages too.
        let op = after("op").map(|number| ReduceOp::ALL.iter().find(|&&op| is(number, reduction(op))));
        if let (Some(collective), Some(count), Some(&dtype), Some(op)) = (collective(name), after("count"), dtype, op)
            && self.kinds.len() < CHOICES_MAX
        {
            let op = op.copied().unwrap_or(ReduceOp::Avg);
            self.kinds.entry((collective, count.saturating_mul(dtype.size()))).or_default().insert((op, dtype));
        }
    }

    /// What may have been combined in a call, and how: what the log says of calls of so many bytes, or all that NCCL
    /// chooses differently for.
    fn kinds_of(&self, taken: &Taken) -> Vec<Kind> {
        let plain = (ReduceOp::Sum, DataType::Float32);
        match self.kinds.get(&(taken.collective, taken.bytes)) {
            _ if !taken.collective.reduces() => vec![plain],
            Some(kinds) => kinds.iter().copied().collect(),
            None => vec![plain, (ReduceOp::Avg, DataType::Float32), (ReduceOp::Sum, DataType::Float8E4m3)],
        }
    }

    /// `AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}`, and the older form with numbers for names.
    fn choice(&mut self, number: u64, before: &str, after: &str) {
        let Some((name, bytes)) = before.rsplit_once(": ") else { return };
        let collective = collective(name);
        let mut words = after.split_whitespace();
        let algorithm = words.next().and_then(|text| match text.parse::<usize>() {
            Ok(index) => ALGORITHMS.get(index).copied(),
            Err(_) => text.parse::<Algorithm>().ok(),
        });
        let protocol = words.nth(1).and_then(|text| match text.parse::<usize>() {
            Ok(index) => Protocol::ALL.get(index).copied(),
            Err(_) => text.parse::<Protocol>().ok(),
        });
        let range = after.split_once("={").and_then(|(_, range)| range.split('}').next()?.split_once(".."));
        let range = range.and_then(|(low, high)| Some((low.parse::<u32>().ok()?, high.parse::<u32>().ok()?)));
        self.grouped |= range.is_some_and(|(low, _)| low > 0);
        let channels = range.and_then(|(low, high)| high.checked_sub(low)?.checked_add(1));
        if let (Some(collective), Ok(bytes), Some(algorithm), Some(protocol)) =
            (collective, bytes.trim().parse(), algorithm, protocol)
            && self.choices.len() < CHOICES_MAX
            && !self
                .choices
                .iter()
                .any(|c| (c.collective, c.bytes, c.algorithm, c.protocol) == (collective, bytes, algorithm, protocol))
        {
            self.choices.insert(Taken { collective, bytes, algorithm, protocol, channels, line: number });
        }
    }

    /// `Setting affinity for GPU 0 to ff`, or `Affinity for GPU 0 is 3. (GPU affinity = 0-31 ; CPU affinity = 3).`
    fn affinity(&mut self, number: u64, text: &str) {
        let mask = match text.split_once("CPU affinity = ") {
            Some((_, list)) => (list.trim_end_matches(['.', ')']), true),
            None => match text.strip_prefix("Setting affinity for GPU ").and_then(|rest| rest.split_once(" to ")) {
                // A list where it has a dash, else a mask.
                Some((_, mask)) => (mask.trim_end_matches('.'), mask.contains('-')),
                None => return,
            },
        };
        if one_core(mask.0, mask.1) {
            first(&mut self.one_core, mask.0.to_owned(), number);
        }
    }

    /// What no machine is needed for.
    fn report(&self, found: &mut Found<'_>) {
        for (&index, &(line, times)) in &self.matched {
            let rule = &rules::all()[index];
            let times = if times > 1 { format!(" ({times} lines)") } else { String::new() };
            found.add(&rule.id, Some(line), format!("{}{times}", rule.what));
        }
        if let (Some((_, line)), false) = (self.gloo, self.is_nccl) {
            found.add("gloo", Some(line), "the log is of Gloo, and NCCL says nothing in it");
        }
        if let Some((mask, line)) = &self.one_core {
            found.add("one-core", Some(*line), format!("the mask of the process is one CPU: {mask}"));
        }
        let known = self.versions.iter().filter(|(_, (host, _))| !host.is_empty());
        let mut versions: Vec<(&String, &(String, u64))> = known.collect();
        versions.sort_by_key(|(_, (_, line))| *line);
        // Runs of one host one after the other may differ; hosts of one job may not.
        if let [(one, (host, _)), rest @ ..] = versions.as_slice()
            && let Some((other, (elsewhere, line))) =
                rest.iter().find(|(other, (of, _))| of != host && number_of(other) != number_of(one))
        {
            let what = format!("NCCL {one} on {host}, {other} on {elsewhere}");
            found.add("log-mixed-versions", Some(*line), what);
        }
        self.report_uneven(found);
        for (plugin, (library, line)) in &self.no_plugin {
            let variable = format!("NCCL_{plugin}_PLUGIN");
            let asked = self.scope.settings.iter().find(|s| s.name == variable && s.value != "none");
            if let Some(asked) = asked {
                found.add("log-no-plugin", Some(*line), format!("{}, and {library} is not found", asked.text()));
            }
        }
    }

    /// What differs between hosts.
    fn report_uneven(&self, found: &mut Found<'_>) {
        let nics = self.nics();
        let fewest = nics.iter().min_by_key(|(_, (count, _))| *count);
        let most = nics.iter().max_by_key(|(_, (count, _))| *count);
        if let (Some((host, (fewest, line))), Some((other, (most, _)))) = (fewest, most)
            && fewest < most
        {
            found.add("log-uneven-nics", Some(*line), format!("{host} has {fewest} RDMA devices, {other} has {most}"));
        }
        let names: BTreeSet<&String> = self.settings.values().flat_map(BTreeMap::keys).collect();
        for name in names {
            let is_any = |parts: &[&str], is: fn(&str, &str) -> bool| parts.iter().any(|part| is(name, part));
            let of_all = matches!(name.as_str(), "NCCL_NET" | "NCCL_NET_PLUGIN" | "NCCL_NET_OVERHEAD")
                || is_any(&OF_ALL, |name, part| name.starts_with(part));
            let rule = match is_any(&OF_ONE, |name, part| name.contains(part)) {
                _ if of_all => "log-uneven-settings",
                true => continue,
                false => "log-other-settings",
            };
            let mut set = self.settings.iter().filter_map(|(host, all)| Some((host, all.get(name)?)));
            let Some((host, (value, line))) = set.next() else { continue };
            // To set a default changes nothing.
            let default = Parameter::of(name).map_or("", |known| known.default);
            let is_default = value == default || default.is_empty() && value == "0";
            let lacking = |complete: &bool, host: &String| match self.settings.get(host) {
                Some(settings) => !settings.contains_key(name),
                None => *complete,
            };
            let other = set.find(|(_, (other, _))| other != value);
            let (with, line) = match other {
                Some((other, (theirs, line))) => (format!("{theirs} on {other}"), line),
                None => {
                    let lacking = self.writers.iter().find(|(host, complete)| lacking(complete, host));
                    match lacking.filter(|_| of_all && !is_default) {
                        Some((other, _)) => (format!("not set on {other}"), line),
                        None => continue,
                    }
                }
            };
            found.add(rule, Some(*line), format!("{name} is {value} on {host}, {with}"));
        }
    }

    /// Whether the job has several hosts: as NCCL counts them, or else by who wrote, where channels go, and the machine.
    fn has_several_hosts(&self, machine: Option<&Machine>) -> bool {
        let of_machine = || machine.is_some_and(|machine| machine.site.nodes() > 1);
        match self.nodes {
            0 => self.writers.len() > 1 || self.over_net || of_machine(),
            nodes => nodes > 1,
        }
    }

    /// How data leaves hosts; and what NCCL warned of.
    fn report_network(&self, machine: Option<&Machine>, found: &mut Found<'_>) {
        let several = self.has_several_hosts(machine);
        if let Some((text, line)) = &self.warned {
            found.add("log-warning", Some(*line), format!("NCCL warns: {text}"));
        }
        if let (Some((interface, line)), true) = (&self.interface, several) {
            found.add("log-interface", Some(*line), format!("set-up goes through `{interface}`"));
        }
        if let (Some((_, line)), true) = (self.sockets, several) {
            let told = self.scope.settings.iter().any(|s| s.name == "NCCL_IB_DISABLE" && s.value == "1");
            let cause = self.no_device.map(|(cause, _)| cause);
            let way_out = cause.filter(|cause| *cause == NO_LIBRARY).map(|_| INSTALL.to_owned());
            let because = cause.filter(|_| way_out.is_some()).map_or(String::new(), |cause| format!(": {cause}"));
            if machine.is_some_and(Machine::has_rdma) {
                let what = format!("the network is Socket, and the machine has RDMA{because}");
                found.add_with("log-tcp", Some(line), what, way_out);
            } else if let Some(cause) = cause.filter(|_| machine.is_none() && !told) {
                found.add_with("log-tcp-perhaps", Some(line), format!("{cause}, and the network is Socket"), way_out);
            }
        }
        if let Some((provider, line)) = self.paths.tcp().filter(|_| several) {
            let what = format!("libfabric's provider is {provider}");
            if machine.is_some_and(Machine::has_rdma) {
                found.add("log-tcp", Some(line), format!("{what}, and the machine has RDMA"));
            } else if machine.is_none() {
                found.add("log-tcp-perhaps", Some(line), what);
            }
        }
        let over_rdma = machine.is_none_or(Machine::has_gpudirect) && self.paths.tcp().is_none();
        let without = self.without_gdr.filter(|_| over_rdma);
        if let Some((without, line)) = without {
            let all = without + self.with_gdr;
            found.add("log-no-gdr", Some(line), format!("{without} of {all} channels over RDMA are without GDRDMA"));
        }
        self.paths.report(machine, &self.scope, without.is_some() || self.paths.tcp().is_some(), found);
    }

    /// What the machine has, beside what NCCL took.
    fn report_machine(&self, machine: &Machine, found: &mut Found<'_>) -> Result<Vec<Grounds>, Error> {
        if let Some((_, line)) = self.shm.filter(|_| machine.has_nvlink()) {
            found.add("log-shm", Some(line), "channels go through SHM");
        }
        let has = machine.nics();
        let nics = self.nics();
        let mut lacking: Vec<_> = nics.iter().filter(|(_, (count, _))| *count < has).collect();
        lacking.sort_by_key(|(_, (count, _))| *count);
        if let [(host, (count, line)), others @ ..] = &lacking[..] {
            let mut what = format!("{host} uses {count} of {has} RDMA devices");
            for (host, (count, _)) in others.iter().take(HOSTS_NAMED) {
                what += &format!(", {host} {count}");
            }
            if let more @ 1.. = others.len().saturating_sub(HOSTS_NAMED) {
                what += &format!(", and {more} more hosts lack some");
            }
            found.add("log-fewer-nics", Some(*line), what);
        }
        let topology = &machine.site.topology;
        if self.ranks != topology.ranks() {
            return Ok(Vec::new());
        }
        let mut spec = machine.site.spec.clone();
        if let Some(version) = self.versions.keys().next() {
            spec.nccl = Some(number_of(version).to_owned());
        }
        // Lines of channels and of choices do not say which communicator they are of.
        let several = self.paths.communicators() > 1;
        if let Some((count, line)) = self.channels.filter(|_| !several) {
            let ours = graphs(&GraphsRequest { site: spec.clone(), ranks: None });
            if let Ok(GraphsOutcome { channels: expected, hosts: nodes, .. }) = ours
                && nodes == self.nodes
                && count < expected
            {
                let what = format!("{count} channels, and NCCL's search finds {expected} on `{}`", topology.name);
                found.add("log-fewer-channels", Some(line), what);
            }
        }
        spec.env.extend(self.scope.settings.iter().map(|s| (s.name.clone(), s.value.clone())));
        spec.env.retain(|(name, _)| !TABLES.contains(&name.as_str()));
        let Ok(site) = spec.load_onto(topology.clone()) else { return Ok(Vec::new()) };
        let ours = site.predictor().graph(self.ranks, site.settings());
        self.paths.report_graphs(
            machine,
            &ours,
            (self.nodes, self.sockets.is_some() || self.paths.tcp().is_some()),
            found,
        );
        // As NCCL counts them under these settings.
        if ours.hosts != self.nodes || several {
            return Ok(Vec::new());
        }
        self.report_choices(&site, found)
    }

    /// Choices that differ from ours, with what the worst of them costs by the forecast.
    fn report_choices(&self, site: &Site, found: &mut Found<'_>) -> Result<Vec<Grounds>, Error> {
        let predictor = site.predictor();
        let mut differ = Vec::new();
        for &taken in &self.choices {
            // NCCL counts the bytes of a rank where nccl-tests counts those of all.
            let of_rank = matches!(taken.collective, Collective::AllGather | Collective::ReduceScatter);
            let size = if of_rank { taken.bytes.saturating_mul(self.ranks.into()) } else { taken.bytes };
            let of_kind = |(op, dtype): Kind| {
                let call = Call::of_size(taken.collective, site.topology.ranks(), Bytes(size), dtype).aligned();
                let query = Query::of(Call { op, ..call });
                let ours = predictor.decide(&query.call, Choice::Auto, Choice::Auto, site.settings()).ok()?;
                let pair = (ours.algorithm, ours.protocol) != (taken.algorithm, taken.protocol);
                // How calls of a group are dealt to channels is not known here.
                let few = taken.channels.filter(|&channels| !self.grouped && channels < ours.channels);
                let other = pair || few.is_some();
                Some(other.then_some((Taken { channels: few, ..taken }, query, (ours.algorithm, ours.protocol), pair)))
            };
            // Where several kinds may be meant, all must differ.
            let all: Option<Vec<_>> = self.kinds_of(&taken).into_iter().filter_map(of_kind).collect();
            differ.extend(all.unwrap_or_default().into_iter().next());
        }
        // Large calls cost most.
        differ.sort_by_key(|(taken, _, _, pair)| (!pair, Reverse(taken.bytes), taken.line));
        let mut worst: Option<(Loss, usize, [Grounds; 2])> = None;
        for (index, (taken, query, ..)) in differ.iter().enumerate().take(FORECASTS_MAX) {
            let theirs = query.clone().forced(taken.algorithm, taken.protocol);
            let theirs = match taken.channels {
                Some(channels) => theirs.channels(channels),
                None => theirs,
            };
            let rows = match forecast(site, &Request { queries: vec![theirs, query.clone()], ..Request::default() }) {
                Ok(outcome) => outcome.rows,
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(_) => continue,
            };
            let Ok([theirs, ours]) = <[Row; 2]>::try_from(rows) else { continue };
            let loss = Loss::of(&theirs, &ours, true);
            if worst.as_ref().is_none_or(|(known, ..)| loss > *known) {
                worst = Some((loss, index, [theirs.grounds, ours.grounds]));
            }
        }
        let said = |(taken, _, ours, _): &(Taken, Query, (Algorithm, Protocol), bool)| {
            let Taken { collective, bytes, algorithm, protocol, channels, .. } = taken;
            let channels = channels.map(|count| format!(" on {}", plural(count as usize, "channel", "channels")));
            let channels = channels.unwrap_or_default();
            format!("{collective} of {bytes} bytes: {algorithm}/{protocol}{channels}, ours {}/{}", ours.0, ours.1)
        };
        let pairs = || differ.iter().filter(|(.., pair)| *pair);
        if let Some((loss, index, grounds)) = worst.filter(|(loss, ..)| loss.is_worth_a_word()) {
            let what = format!("{}; it costs {} by the forecast", said(&differ[index]), loss.words());
            found.add(if loss.certain { "log-slow-choice" } else { "log-choice" }, Some(differ[index].0.line), what);
            return Ok(grounds.into());
        }
        if let Some(first) = pairs().min_by_key(|(taken, ..)| taken.line) {
            let (count, all) = (pairs().count(), self.choices.len());
            let what = format!("{count} of {all} choices differ from ours; {}", said(first));
            found.add("log-choice", Some(first.0.line), what);
        }
        Ok(Vec::new())
    }
}

/// The version that ranks compare: without the CUDA that NCCL was built with, as in `2.28.9+cuda13.0`.
fn number_of(version: &str) -> &str {
    version.split('+').next().unwrap_or_default()
}

/// The collective of a line: `AllReduce`, behind whatever stands before it.
fn collective(before: &str) -> Option<Collective> {
    let name = before.split_whitespace().last()?;
    FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, collective)| *collective)
}

/// The host of `[time] host:pid:tid [0] `.
fn host(prefix: &str) -> &str {
    writer(prefix).map_or("this host", |writer| writer.host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: hosts are found behind what launchers and timestamps put in front.
    #[test]
    fn hosts_are_found() {
        for (prefix, name) in [
            ("gpu01:12:34 [0] ", "gpu01"),
            ("[2026-01-01 10:11:12] gpu02:12:34 [0] ", "gpu02"),
            ("[1,0]<stdout>:gpu03:12:34 [0] ", "gpu03"),
            ("", "this host"),
        ] {
            assert_eq!(host(prefix), name, "{prefix}");
        }
    }

    proptest::proptest! {
        /// Goal: no text panics.
        #[test]
        fn any_text_is_read(
            text in "(a:1:2 \\[0\\] NCCL INFO |NET/IB : |Using |; OOB | via |Channel |AllReduce: |[0-9]{1,20}| Bytes -> Algo | coll channels|comm | nRanks | set by environment to |CPU affinity = |[ :.\n]|\\PC)*"
        ) {
            let mut findings = Vec::new();
            check(&text, None, &mut Found::of("x.log", &mut findings)).unwrap();
        }
    }
}
