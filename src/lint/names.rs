//! Names and values, beside the table of NCCL's variables.

use std::collections::BTreeMap;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol, nearest};
use collcast_sim::nccl::parameters::{Parameter, is_of_plugin, strtoll};
use collcast_sim::nccl::plugin;
use collcast_sim::nccl::settings::{NcclSettings, SettingsError};
use collcast_sim::nccl::{ALGORITHMS, Environment, FUNCTIONS, NicSet, PathClass, Version};
use collcast_sim::network;
use collcast_sim::predict::{Choice, PredictError};
use collcast_sim::schedule::{Call, MAX_CHANNELS, valid_algorithms, valid_protocols};
use collcast_sim::units::Bytes;

use super::found::Found;
use super::machine::Machine;
use super::setting::{Scope, Setting, meant};
use crate::forecast::{self, forecast};
use crate::query::Query;
use crate::site::Site;
use crate::values::plural;

/// Families of variables that other libraries read, with whose they are.
const OTHERS: [(&str, &str); 8] = [
    ("RCCL_", "RCCL of AMD"),
    ("HSA_", "ROCm of AMD"),
    ("MSCCL_", "MSCCL of Microsoft"),
    ("HCCL_", "HCCL of Huawei and Intel Gaudi"),
    ("MCCL_", "MCCL of Moore Threads"),
    ("CNCL_", "CNCL of Cambricon"),
    ("BCCL_", "BCCL of Baidu"),
    ("CCL_", "oneCCL of Intel"),
];

/// What our tuner plugin reads.
const TUNER: [&str; 4] =
    ["COLLCAST_TUNER_TABLE", "COLLCAST_TUNER_NEXT", "COLLCAST_TUNER_RECORD", "COLLCAST_TUNER_STRICT"];

/// Letters that a slip may change: longer names have room for three.
fn is_slip(given: &str, known: &str) -> bool {
    strsim::damerau_levenshtein(given, known) <= if known.len() >= 16 { 3 } else { 2 }
}

/// Looks at each setting by itself, then at those that belong together.
pub(super) fn check(scope: &Scope, machine: Option<&Machine>, found: &mut Found<'_>) {
    let version = machine.and_then(|machine| machine.site.settings().version).unwrap_or_default();
    for setting in &scope.settings {
        if found.is_full() {
            return;
        }
        if !scope.log {
            name(setting, found);
        }
        if setting.is_known() && Parameter::of(&setting.name).is_some_and(Parameter::is_read) {
            value(setting, version, found);
        }
    }
    together(scope, found);
    out_of_clusters(scope, machine, found);
    let settings = scope.last();
    sends(&settings, machine, found);
    left_without(&settings, version, machine, found);
    if let Some(setting) = settings.get("NCCL_PROTO").filter(|s| s.is_known()) {
        forced_ll128(setting, version, machine, found);
    }
    if machine.is_none() {
        pinned(scope, version, found);
    }
    for name in ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"] {
        if let Some(setting) = settings.get(name).filter(|s| s.is_known()) {
            interface(setting, machine, found);
        }
    }
    if let Some(setting) = settings.get("FI_PROVIDER").filter(|s| s.is_known() && plugin::without_efa(&s.value))
        && let Some(machine) = machine.filter(|machine| machine.has("efa") && machine.has("several-hosts"))
    {
        let what = format!("{}: `{}` has EFA", setting.text(), machine.site.topology.name);
        found.add("other-provider", setting.line, what);
    }
    if let (Some(setting), Some(machine)) = (settings.get("NCCL_IB_HCA").filter(|s| s.is_known()), machine) {
        nics(setting, machine, found);
    }
    if let Some(setting) = settings.get("NCCL_DEBUG_FILE").filter(|s| s.is_known() && !s.value.is_empty()) {
        let value = setting.value.as_str();
        if !value.contains('%') && !matches!(value, "/dev/stdout" | "/dev/stderr" | "/dev/null" | "stdout" | "stderr") {
            found.add("debug-one-file", setting.line, setting.text());
        }
    }
    if scope.gpus && scope.rdma_device == Some(false) {
        let wanted = scope.wants_rdma().map(|setting| (setting.line, setting.text()));
        let there = machine.filter(|m| m.has_rdma()).map(|m| (None, format!("`{}` has RDMA", m.site.topology.name)));
        if let Some((line, why)) = wanted.or(there) {
            found.add("no-rdma-device", line.or(scope.line), format!("{why}, and no RDMA device is given"));
        }
    }
}

fn name(setting: &Setting, found: &mut Found<'_>) {
    let name = setting.name.as_str();
    if let Some(meant) = meant(name) {
        let what = format!("{name} is not a variable of NCCL");
        return found.add_with("misspelt-name", setting.line, what, Some(format!("did you mean {meant}?")));
    }
    if let Some((_, whose)) = OTHERS.iter().find(|(family, _)| name.starts_with(family)) {
        return found.add("other-stack", setting.line, format!("{name} is a variable of {whose}"));
    }
    if name.starts_with("COLLCAST_TUNER_") && !TUNER.contains(&name) {
        let meant = nearest(name, TUNER).map(|meant| format!("did you mean {meant}?"));
        return found.add_with("misspelt-name", setting.line, format!("{name} is not a variable of our tuner"), meant);
    }
    match Parameter::of(name) {
        None if is_of_plugin(name) => {}
        None if name.starts_with("NCCL_") || name.starts_with("OFI_NCCL_") => {
            let read = Parameter::names().filter(|known| Parameter::of(known).is_some_and(Parameter::is_read));
            let near = nearest(name, read);
            let slip = near.filter(|near| is_slip(name, near));
            let rule = if slip.is_some() { "misspelt-name" } else { "unknown-name" };
            let way_out = near.map(|near| format!("did you mean {near}?"));
            found.add_with(rule, setting.line, format!("{name} is not a variable of NCCL"), way_out);
        }
        None => {}
        Some(known) => {
            let (rule, what) = match known.kind {
                "not-nccl" => ("made-up-name", "is not a variable of NCCL"),
                "pytorch" => ("pytorch-name", "is not a variable of NCCL"),
                "removed" | "ofi-plugin-removed" => ("removed-name", "is no longer read"),
                _ => return,
            };
            let note = known.note.strip_prefix("no such variable").unwrap_or(known.note).trim_start_matches("; ");
            let note = Some(note).filter(|note| !note.is_empty() && *note != "removed");
            let way_out = note.map(|note| format!("take the line out: {note}"));
            found.add_with(rule, setting.line, format!("{name} {what}"), way_out);
        }
    }
}

/// Whether NCCL starts with a setting on no machine.
pub(super) fn is_refused(setting: &Setting, machine: &Machine) -> bool {
    understood(setting, machine.site.settings().version.unwrap_or_default()).is_err()
}

/// What NCCL makes of one variable.
fn understood(setting: &Setting, version: Version) -> Result<Environment, SettingsError> {
    Environment::parse(&[(setting.name.clone(), setting.value.clone())], version)
}

fn value(setting: &Setting, version: Version, found: &mut Found<'_>) {
    let (text, line) = (setting.text(), setting.line);
    let value = setting.value.trim();
    let Some(known) = Parameter::of(&setting.name).filter(|_| !value.is_empty()) else { return };
    match word(value).filter(|_| known.values.starts_with("0|1")) {
        Some(true) => {
            let way_out = format!("write {}=1", setting.name);
            return found.add_with("number-with-text", line, format!("{text} is read as 0"), Some(way_out));
        }
        Some(false) => return found.add("word-for-zero", line, format!("{text} is read as 0")),
        None => {}
    }
    if known.is_number() {
        let (number, rest) = strtoll(value);
        let octal = value.len() > 1 && value.starts_with('0') && value.bytes().all(|b| b.is_ascii_digit());
        if rest {
            return found.add("number-with-text", line, format!("{text} is read as {number}"));
        }
        if octal {
            return found.add(
                "number-with-text",
                line,
                format!("{text} is read as {number}: a 0 in front means octal"),
            );
        }
    }
    match setting.name.as_str() {
        "NCCL_DEBUG_SUBSYS" => return subsystems(setting, found),
        "NCCL_CTA_POLICY" => policies(setting, found),
        "NCCL_SYM_KERNEL" => kernel(setting, found),
        _ => {}
    }
    if LISTS.contains(&setting.name.as_str())
        && let Some(device) = blank(&setting.value)
    {
        let way_out = format!("write {}={}", setting.name, setting.value.split_whitespace().collect::<String>());
        return found.add_with("bad-value", line, format!("{text}: no device is called `{device}`"), Some(way_out));
    }
    if known.kind == "level" && value == PathClass::P2c.name() && version < P2C {
        let what = format!("{text}: NCCL {version} knows no such level, and takes its default");
        return found.add_with(
            "bad-value",
            line,
            what,
            Some("name another level, or run NCCL 2.27 or later".to_owned()),
        );
    }
    match understood(setting, version) {
        Err(error) => found.add("refused-value", line, error.to_string()),
        Ok(environment) => {
            if let Some(warning) = environment.warnings.into_iter().next() {
                return found.add("bad-value", line, warning);
            }
            if known.takes(value) == Some(false) {
                let way_out = format!("NCCL takes {}", known.values.replace('|', ", "));
                found.add_with("bad-value", line, format!("{text} is none of its values"), Some(way_out));
            }
        }
    }
}

/// What a word switches, where NCCL reads a number.
fn word(value: &str) -> Option<bool> {
    match value.to_lowercase().as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Lists of devices, each with a port or without. Source: NCCL 2.28 `src/misc/utils.cc`, `parseStringList`.
const LISTS: [&str; 3] = ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"];

/// The first device of a list with a blank, which NCCL takes for a part of its name.
fn blank(list: &str) -> Option<&str> {
    let devices = list.trim_start_matches('^').trim_start_matches('=').split(',');
    devices.filter_map(|device| device.split(':').next()).find(|device| device.contains(char::is_whitespace))
}

/// Parts of NCCL's log. Source: NCCL 2.28 `src/debug.cc`.
const SUBSYSTEMS: [&str; 17] = [
    "INIT",
    "COLL",
    "P2P",
    "SHM",
    "NET",
    "GRAPH",
    "TUNING",
    "ENV",
    "ALLOC",
    "CALL",
    "PROXY",
    "NVLS",
    "BOOTSTRAP",
    "REG",
    "PROFILE",
    "RAS",
    "ALL",
];

/// Names that are one letter beside a part of the log, or begin as one: NCCL passes over what it does not know, and newer
/// versions know more.
fn subsystems(setting: &Setting, found: &mut Found<'_>) {
    for part in setting.value.trim().trim_start_matches('^').split(',').map(str::trim) {
        let is = |known: &str| known.eq_ignore_ascii_case(part);
        let upper = part.to_uppercase();
        let begins = |known: &str| part.len() > 3 && known.len() > 3 && upper.get(..3) == known.get(..3);
        let near = |known: &&str| part.len() > 2 && (strsim::damerau_levenshtein(&upper, known) == 1 || begins(known));
        if let Some(meant) = SUBSYSTEMS.iter().find(|known| near(known)).filter(|_| !SUBSYSTEMS.iter().any(|k| is(k))) {
            let what = format!("{}: `{part}` is no part of NCCL's log", setting.text());
            found.add_with("bad-value", setting.line, what, Some(format!("did you mean {meant}?")));
        }
    }
}

/// Policies of CTAs, which `|` joins. Source: NCCL 2.30.7 `src/nccl.h.in`.
const POLICIES: [&str; 3] = ["DEFAULT", "EFFICIENCY", "ZERO"];

/// Words that are no policy; a number has a bit for each of the last two.
fn policies(setting: &Setting, found: &mut Found<'_>) {
    let (number, rest) = strtoll(setting.value.trim());
    let words = || setting.value.split('|').map(str::trim);
    let none = |word: &&str| !POLICIES.iter().any(|known| known.eq_ignore_ascii_case(word));
    let bad = if rest {
        words().find(none).map(str::to_owned)
    } else {
        Some(number).filter(|n| !(0..4).contains(n)).map(|n| n.to_string())
    };
    if let Some(bad) = bad {
        let what = format!("{}: `{bad}` is no policy", setting.text());
        let meant = nearest(&bad.to_uppercase(), POLICIES).map(|meant| format!("did you mean {meant}?"));
        let way_out = meant.unwrap_or_else(|| format!("NCCL takes {}", POLICIES.join(", ")));
        found.add_with("bad-value", setting.line, what, Some(way_out));
    }
}

/// Collectives that symmetric kernels are named by. Source: NCCL 2.30.7 `src/include/sym_kernels.h`; newer versions have
/// more kernels of each.
const OF_KERNELS: [&str; 3] = ["AllReduce_", "AllGather_", "ReduceScatter_"];

/// A name that is none of a symmetric kernel.
fn kernel(setting: &Setting, found: &mut Found<'_>) {
    let value = setting.value.trim();
    if !OF_KERNELS.iter().any(|collective| value.starts_with(collective)) && value != "^" {
        let way_out = "NCCL takes one name, such as AllReduce_AGxLL_R or ReduceScatter_LD".to_owned();
        found.add_with("bad-value", setting.line, format!("{} is no symmetric kernel", setting.text()), Some(way_out));
    }
}

/// Pairs of bounds, and of older names with their newer ones.
fn together(scope: &Scope, found: &mut Found<'_>) {
    let settings = scope.last();
    let number = |name: &str| {
        let setting = settings.get(name).filter(|s| s.is_known())?;
        let (number, rest) = strtoll(setting.value.trim());
        (!rest && number > 0).then_some((number, *setting))
    };
    for (least, most) in [
        ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        ("NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"),
        ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
        ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
    ] {
        if let (Some((least, one)), Some((most, other))) = (number(least), number(most))
            && least > most
        {
            found.add("min-above-max", one.line.max(other.line), format!("{} and {}", one.text(), other.text()));
        }
    }
    for (old, new) in [("NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS"), ("NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS")] {
        if let (Some(old), Some(new)) = (settings.get(old), settings.get(new)) {
            found.add("old-and-new-name", old.line, format!("{} and {}", old.text(), new.text()));
        }
    }
    // MAX_SOCKETS and MAX_THREADS of NCCL's socket transport, `src/transport/net_socket.cc`.
    const SOCKETS_MOST: i64 = 64;
    if let (Some((threads, one)), Some((each, other))) =
        (number("NCCL_SOCKET_NTHREADS"), number("NCCL_NSOCKS_PERTHREAD"))
        && threads.saturating_mul(each) > SOCKETS_MOST
    {
        let what = format!("{} and {}: {} sockets", one.text(), other.text(), threads.saturating_mul(each));
        found.add("socket-threads", one.line.max(other.line), what);
    }
}

/// A bound of all channels that sends and receives go beyond.
fn sends(settings: &BTreeMap<&str, &Setting>, machine: Option<&Machine>, found: &mut Found<'_>) {
    let Some(setting) = settings.get("NCCL_MAX_NCHANNELS").filter(|setting| setting.is_known()) else { return };
    let (most, rest) = strtoll(setting.value.trim());
    // No more, a power of two, are ever taken.
    let Some(most) = u32::try_from(most).ok().filter(|most| !rest && (1..MAX_CHANNELS).contains(most)) else { return };
    if settings.contains_key("NCCL_MAX_P2P_NCHANNELS") {
        return;
    }
    let taken = match machine.and_then(|machine| machine.with_all(settings, &[]).ok()) {
        Some(site) => site.predictor().graph(site.topology.ranks(), site.settings()).p2p_channels.0,
        None => most.next_power_of_two(),
    };
    if taken > most {
        let what = format!("{}: sends and receives take up to {taken} channels", setting.text());
        found.add("max-channels-and-sends", setting.line, what);
    }
}

/// Numbers of channels with which NCCL starts blocks in no clusters, on a machine with clusters or on one that nobody named.
fn out_of_clusters(scope: &Scope, machine: Option<&Machine>, found: &mut Found<'_>) {
    let capability = machine.map_or(network::HOPPER, |machine| machine.site.topology.compute_capability());
    let settings = scope.last();
    for name in ["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"] {
        let Some(setting) = settings.get(name).filter(|setting| setting.is_known()) else { continue };
        let (channels, rest) = strtoll(setting.value.trim());
        // NCCL takes no more than it has.
        let out = |channels: u32| network::out_of_clusters(capability, channels.min(MAX_CHANNELS));
        if !rest && u32::try_from(channels).is_ok_and(out) {
            found.add("channels-out-of-clusters", setting.line, format!("{} is no multiple of four", setting.text()));
        }
    }
}

/// First version that fails a collective to which lists leave nothing; others take a ring.
const LEFT_WITHOUT: Version = Version { major: 2, minor: 24, patch: 0 };
/// First version that knows paths of class P2C.
const P2C: Version = Version { major: 2, minor: 27, patch: 0 };

/// Lists of algorithms and protocols that leave some collective none that NCCL has for it, or none that it has on the
/// machine: first the algorithms alone, then all settings together.
fn left_without(
    settings: &BTreeMap<&str, &Setting>,
    version: Version,
    machine: Option<&Machine>,
    found: &mut Found<'_>,
) {
    let lists = ["NCCL_ALGO", "NCCL_PROTO"].map(|name| settings.get(name).copied().filter(|s| s.is_known()));
    // CollNet is off by itself; a machine may say otherwise, and is asked below.
    let asked = settings.get("NCCL_COLLNET_ENABLE").is_some_and(|s| !s.is_known() || strtoll(s.value.trim()).0 == 1);
    let sharp = asked || machine.is_some();
    let mut known: Vec<&str> = Vec::new();
    let alone = lists[0].map(|list| (vec![list], machine.map(|machine| machine.with(&pairs(&[list])))));
    let all: Vec<&Setting> = lists.into_iter().flatten().collect();
    let together = (all.clone(), machine.map(|machine| machine.with_all(settings, &[])));
    for (lists, here) in alone.into_iter().chain(Some(together)).filter(|(lists, _)| !lists.is_empty()) {
        let Ok(Environment { settings: set, .. }) = Environment::parse(&pairs(&lists), version) else { return };
        let here = here.and_then(Result::ok);
        let open = |collective: Collective, algorithm: Algorithm| {
            ALGORITHMS.contains(&algorithm)
                && (sharp || !matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain))
                && set.algorithms.allows(collective, algorithm) != Some(false)
                && valid_protocols(algorithm).iter().any(|&p| set.protocols.allows(collective, p) != Some(false))
        };
        let none = |collective: Collective| {
            !valid_algorithms(collective).iter().any(|&algorithm| open(collective, algorithm))
                || here.as_ref().is_some_and(|site| fails(site, collective))
        };
        let of = FUNCTIONS.iter().map(|(_, c)| (c.name(), *c)).filter(|(name, _)| !known.contains(name));
        let without: Vec<&str> = of.filter(|(_, c)| none(*c)).map(|(name, _)| name).collect();
        if !without.is_empty() {
            let texts: Vec<String> = lists.iter().map(|list| list.text()).collect();
            let leave = if lists.len() == 1 { "leaves" } else { "together leave" };
            let what = format!("{} {leave} nothing for {}", texts.join(" and "), without.join(", "));
            let rule = if version < LEFT_WITHOUT { "collective-by-ring" } else { "collective-left-without" };
            found.add(rule, lists.iter().filter_map(|list| list.line).max(), what);
        }
        known.extend(without);
    }
}

/// Settings as names with values.
fn pairs(settings: &[&Setting]) -> Vec<(String, String)> {
    settings.iter().map(|setting| (setting.name.clone(), setting.value.clone())).collect()
}

/// Whether NCCL fails a call, of whatever size: what is open to it does not depend on that.
fn fails(site: &Site, collective: Collective) -> bool {
    let call = Call::of_size(collective, site.topology.ranks(), Bytes(1 << 20), DataType::Float32);
    let decided = site.predictor().decide(&call, Choice::Auto, Choice::Auto, site.settings());
    matches!(decided, Err(PredictError::NothingLeft { .. }))
}

/// A list that names LL128, by which NCCL skips its checks; on a machine where these let it be, nothing is wrong.
fn forced_ll128(setting: &Setting, version: Version, machine: Option<&Machine>, found: &mut Found<'_>) {
    let Ok(Environment { settings: NcclSettings { protocols, .. }, .. }) = understood(setting, version) else { return };
    let forced = FUNCTIONS.iter().any(|&(_, collective)| protocols.allows(collective, Protocol::Ll128) == Some(true));
    // Google's own list for TCPXO names it.
    let by_list = |machine: &Machine| machine.site.topology.software.plugin.as_deref() == Some(plugin::TCPXO);
    if forced && !machine.is_some_and(|machine| has_ll128(machine) || by_list(machine)) {
        let mut lists = setting.value.split(';').filter(|list| !list.contains('^'));
        let named = lists.any(|list| list.to_lowercase().contains("ll128"));
        let does = if named { "names LL128" } else { "leaves LL128 in, as naming it does" };
        found.add("forced-ll128", setting.line, format!("{} {does}", setting.text()));
    }
}

/// Whether NCCL's own rule has LL128 on.
fn has_ll128(machine: &Machine) -> bool {
    // Any size will do: the rule knows none.
    let query = Query::new(&machine.site, Collective::AllReduce, Bytes(1 << 20));
    let request = forecast::Request { queries: vec![query], explain: true, ..forecast::Request::default() };
    forecast(&machine.site, &request).is_ok_and(|outcome| {
        let costs = outcome.explained.iter().flat_map(|explained| &explained.costs);
        costs.into_iter().any(|cost| cost.protocol == Protocol::Ll128 && cost.latency_us.is_some())
    })
}

/// What holds for all sizes, where no machine says what it costs.
fn pinned(scope: &Scope, version: Version, found: &mut Found<'_>) {
    for (name, setting) in scope.last() {
        let pins = match name {
            "NCCL_ALGO" | "NCCL_PROTO" => understood(setting, version).is_ok_and(|environment| {
                let set = environment.settings;
                set.algorithms.forced_everywhere().is_some() || set.protocols.forced_everywhere().is_some()
            }),
            "NCCL_NTHREADS" | "NCCL_BUFFSIZE" | "NCCL_MIN_NCHANNELS" => {
                understood(setting, version).is_ok_and(|environment| environment.settings != NcclSettings::default())
            }
            _ => false,
        };
        if pins && setting.is_known() {
            found.add("pinned", setting.line, format!("{} holds for every call", setting.text()));
        }
    }
}

/// Interfaces that lead nowhere.
fn interface(setting: &Setting, machine: Option<&Machine>, found: &mut Found<'_>) {
    let list = setting.value.trim();
    let one_host = machine.is_some_and(|machine| machine.site.nodes() == 1);
    if list.starts_with('^') || one_host {
        return;
    }
    let first = list.trim_start_matches('=').split(',').map(str::trim).find(|name| !name.is_empty());
    if let Some(name) = first.filter(|name| leads_nowhere(name)) {
        found.add("loopback-interface", setting.line, format!("{}: `{name}` stays on this host", setting.text()));
    }
}

/// Whether an interface joins what is on one host alone.
pub(super) fn leads_nowhere(interface: &str) -> bool {
    interface == "lo" || ["docker", "virbr", "veth", "cni", "flannel", "br-"].iter().any(|p| interface.starts_with(p))
}

/// Which RDMA devices of the machine a list leaves.
fn nics(setting: &Setting, machine: &Machine, found: &mut Found<'_>) {
    let topology = &machine.site.topology;
    let of_first = topology.hosts().first().map(|host| host.nics.as_slice()).unwrap_or_default();
    let nics: Vec<u32> = of_first.iter().filter_map(|&nic| topology.nic(nic)).map(|nic| nic.index).collect();
    let Ok(taken) = NicSet::of_hcas(topology, &setting.value) else {
        // NICs of built-in machines have no names: then their number counts.
        if let Some(listed) = NicSet::listed(&setting.value).filter(|&n| n < machine.nics() && machine.has("verbs")) {
            let devices = plural(listed, "device", "devices");
            let by = if setting.value.starts_with('=') { "" } else { " by the beginnings of names" };
            let what = format!("{}: lists {devices}{by}, and a host has {} NICs", setting.text(), machine.nics());
            found.add("fewer-nics", setting.line, what);
        }
        return;
    };
    if let Some((name, more)) = NicSet::stands_for_more(topology, &setting.value) {
        let what = format!("{}: `{name}` also stands for {}", setting.text(), more.join(", "));
        found.add("hca-beginning", setting.line, what);
    }
    let left = nics.iter().filter(|&&index| taken.has(index)).count();
    if nics.is_empty() || left == nics.len() || !machine.has_rdma() {
        return;
    }
    if left == 0 {
        found.add(
            "no-such-nic",
            setting.line,
            format!("{}: none of the {} NICs of a host", setting.text(), nics.len()),
        );
    } else {
        found.add("fewer-nics", setting.line, format!("{}: {left} of {} NICs of a host", setting.text(), nics.len()));
    }
}
