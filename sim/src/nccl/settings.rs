//! Variables that NCCL reads, as far as its choice depends on them.
//!
//! Whole numbers are read as NCCL reads them (C's `strtoll`): `8M` is 8, `true` is 0, and -2
//! means automatic. Names that NCCL does not have are told apart from those that only do not
//! matter here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use thiserror::Error;

use super::parameters::{Parameter, is_of_plugin, strtoll};
use super::rules::Rules;
use super::selection::{Listed, Selection, SelectionError};
use super::tables::{LL, LL128, SIMPLE};
use super::transport::Transport;
use super::version::Version;
use crate::collective::{Algorithm, Buffers, Protocol, nearest};
use crate::units::Bytes;

/// Which paths of the library are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CtaPolicy {
    /// Fastest.
    #[default]
    Default,
    /// NVLS for registered all-gather and reduce-scatter.
    Efficiency,
    /// Copy engines.
    Zero,
}

/// Settings of NCCL that its choice depends on; the default is NCCL's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NcclSettings {
    /// `NCCL_ALGO`.
    pub algorithms: Selection<Algorithm>,
    /// `NCCL_PROTO`; a protocol that it names skips the checks of LL128.
    pub protocols: Selection<Protocol>,
    /// `NCCL_MIN_NCHANNELS` or its older name `NCCL_MIN_NRINGS`.
    pub min_channels: Option<u32>,
    /// `NCCL_MAX_NCHANNELS` or its older name `NCCL_MAX_NRINGS`.
    pub max_channels: Option<u32>,
    /// `NCCL_MIN_CTAS`.
    pub min_ctas: Option<u32>,
    /// `NCCL_MAX_CTAS`.
    pub max_ctas: Option<u32>,
    /// `NCCL_MIN_P2P_NCHANNELS`.
    pub min_p2p_channels: Option<u32>,
    /// `NCCL_MAX_P2P_NCHANNELS`.
    pub max_p2p_channels: Option<u32>,
    /// `NCCL_P2P_LL_THRESHOLD`: most bytes that a channel sends by LL.
    pub p2p_ll_bytes: Option<u64>,
    /// `NCCL_NCHANNELS_PER_NET_PEER`.
    pub channels_per_net_peer: Option<u32>,
    /// `NCCL_P2P_NVL_CHUNKSIZE`, `NCCL_P2P_PCI_CHUNKSIZE` and `NCCL_P2P_NET_CHUNKSIZE`.
    pub p2p_chunks: [Option<Bytes>; 3],
    /// `NCCL_NTHREADS`: LL and Simple.
    pub threads: Option<u32>,
    /// `NCCL_LL128_NTHREADS`.
    pub ll128_threads: Option<u32>,
    /// `NCCL_THREAD_THRESHOLDS`: `[tree, ring][LL, LL128, Simple]`, bytes a thread.
    pub thresholds: [[Option<u64>; 3]; 2],
    /// FIFOs.
    pub buffers: Buffers<Option<Bytes>>,
    /// `NCCL_NVLS_ENABLE`; `None` is automatic.
    pub nvls: Option<bool>,
    /// `NCCL_NVLS_NCHANNELS`.
    pub nvls_channels: Option<u32>,
    /// `NCCL_NVLS_CHUNKSIZE` and `NCCL_NVLSTREE_MAX_CHUNKSIZE`.
    pub nvls_chunks: [Option<Bytes>; 2],
    /// `NCCL_PAT_ENABLE`; `None` is automatic.
    pub pat: Option<bool>,
    /// `NCCL_GRAPH_MIXING_SUPPORT=0`: no event after calls in CUDA graphs.
    pub no_graph_events: bool,
    /// `NCCL_COLLNET_ENABLE`.
    pub collnet: bool,
    /// `NCCL_COLLNET_NODE_THRESHOLD`, hosts; 2 by default.
    pub collnet_hosts: Option<u32>,
    /// `NCCL_LL128_C2C` is 0.
    pub no_ll128_c2c: bool,
    /// `NCCL_NET_OVERHEAD` in nanoseconds.
    pub net_overhead_ns: Option<u32>,
    /// `NCCL_TUNER_PLUGIN` is `none`.
    pub no_tuner: bool,
    /// `NCCL_TUNER_PLUGIN` names a library.
    pub other_tuner: bool,
    /// `OFI_NCCL_TUNER_TYPE` is not `REGION`, or `OFI_NCCL_FORCE_NUM_RAILS` is set.
    pub no_region_tuner: bool,
    /// `NCCL_CTA_POLICY`.
    pub cta_policy: CtaPolicy,
}

impl NcclSettings {
    /// The fewest and the most channels of a communicator.
    pub fn channels(&self) -> (Option<u32>, Option<u32>) {
        let both =
            |a: Option<u32>, b: Option<u32>, of: fn(u32, u32) -> u32| a.zip(b).map(|(a, b)| of(a, b)).or(a).or(b);
        (both(self.min_channels, self.min_ctas, u32::max), both(self.max_channels, self.max_ctas, u32::min))
    }
}

/// Variables as they were understood.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Environment {
    /// What they mean for the choice.
    pub settings: NcclSettings,
    /// `NCCL_TUNER_CONFIG_FILE`: the table of NVIDIA's example tuner.
    pub tuner_file: Option<String>,
    /// `COLLCAST_TUNER_TABLE`, where `NCCL_TUNER_PLUGIN` names `collcast-tuner`: its tables, with `:` between them, or none.
    pub own_tables: Option<String>,
    /// `COLLCAST_TUNER_NEXT`: whom that asks where its tables say nothing.
    pub next_tuner: Option<String>,
    /// Known names without effect on the forecast.
    pub ignored: Vec<String>,
    /// Settings that ask for something that is not modelled.
    pub not_modelled: Vec<String>,
    /// Names and values that NCCL silently reads otherwise than they look.
    pub warnings: Vec<String>,
}

/// Why variables cannot be used.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum SettingsError {
    /// No `NAME=VALUE`.
    #[error("`{0}` is not a setting; expected NAME=VALUE such as NCCL_ALGO=Ring")]
    NotAPair(String),
    /// NCCL would not start with this.
    #[error("{name}={value}: {error}")]
    Refused {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        error: SelectionError,
    },
    /// A FIFO that holds no data: NCCL does not check it, and divides by its chunks of zero bytes.
    #[error("{name}={value}: {bytes} bytes are too few for a FIFO: its 8 steps need {least} bytes or more")]
    SmallBuffer {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// How NCCL reads it, in bytes.
        bytes: u64,
        /// Bytes that hold one line or unit a step.
        least: u64,
    },
}

/// Reads the `NAME=VALUE` pairs of a file: one a line, `#` comments, `export` before a name. A file that is called as
/// one of NCCL's, `nccl.conf` or `.nccl.conf`, is read as NCCL reads it.
///
/// # Errors
/// A line that is no pair.
pub fn pairs_of_file(path: &str, text: &str) -> Result<Vec<(String, String)>, SettingsError> {
    if Path::new(path).file_name().is_some_and(|name| name == "nccl.conf" || name == ".nccl.conf") {
        return Ok(pairs_of_nccl_conf(text));
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| pair(line.strip_prefix("export ").unwrap_or(line))).collect()
}

/// What stands before the first `=` of a line is a name and the rest its value, blanks and quotes with them. The first
/// line of a name counts, and lines without `=` do not.
///
/// Source: NCCL 2.30 `setEnvFile`, `src/misc/param.cc`, restated.
fn pairs_of_nccl_conf(text: &str) -> Vec<(String, String)> {
    let mut seen = BTreeSet::new();
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    let pairs = lines.filter(|(name, _)| !name.is_empty() && seen.insert(*name));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Reads one `NAME=VALUE`; quotes around the value are dropped.
///
/// # Errors
/// No `=`, or a name that is none.
pub fn pair(text: &str) -> Result<(String, String), SettingsError> {
    let bad = || SettingsError::NotAPair(text.chars().take(80).collect());
    let (name, value) = text.split_once('=').ok_or_else(bad)?;
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(bad());
    }
    let quoted = |quote| value.strip_prefix(quote).and_then(|v: &str| v.strip_suffix(quote));
    let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
    Ok((name.to_owned(), value.to_owned()))
}

/// Variables of `collcast-tuner` that decide what it answers: its tables, and whom it asks where they say nothing.
pub const OWN: [&str; 2] = ["COLLCAST_TUNER_TABLE", "COLLCAST_TUNER_NEXT"];

impl Environment {
    /// What variables mean to a version of NCCL; of a name given twice, the last counts.
    ///
    /// # Errors
    /// A `NCCL_ALGO` or `NCCL_PROTO` that fails the start of a communicator.
    pub fn parse(pairs: &[(String, String)], version: Version) -> Result<Self, SettingsError> {
        let variables: BTreeMap<&str, &str> =
            pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut out = Self::default();
        for (&name, &value) in &variables {
            out.read(name, value, version)?;
        }
        // The newer names win over those of rings.
        for (old, new) in [("NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS"), ("NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS")] {
            if let (Some(_), Some(value)) = (variables.get(old), variables.get(new)) {
                out.read(new, value, version)?;
            }
        }
        if let (Some(least), Some(most)) = (out.settings.min_ctas, out.settings.max_ctas)
            && least > most
        {
            out.settings.min_ctas = Some(most);
            out.warnings
                .push(format!("NCCL_MIN_CTAS={least} is above NCCL_MAX_CTAS={most}, and both are taken as {most}"));
        }
        // A word of its library's name.
        let own = variables.get("NCCL_TUNER_PLUGIN").is_some_and(|name| name.contains("collcast_tuner"));
        if out.settings.other_tuner && !own && out.tuner_file.is_none() {
            let name = variables.get("NCCL_TUNER_PLUGIN").unwrap_or(&"");
            out.not_modelled.push(format!("NCCL_TUNER_PLUGIN={name}: what it chooses; NCCL's cost table decides here"));
        }
        let given = |name: &str| own.then(|| variables.get(name).map(ToString::to_string).unwrap_or_default());
        (out.own_tables, out.next_tuner) = (given(OWN[0]), given(OWN[1]).filter(|next| !next.is_empty()));
        out.ignored.extend(OWN.iter().filter(|name| !own && variables.contains_key(*name)).map(ToString::to_string));
        out.warnings.dedup();
        out.check_buffers(&variables)?;
        Ok(out)
    }

    fn check_buffers(&self, variables: &BTreeMap<&str, &str>) -> Result<(), SettingsError> {
        let (Buffers { ll, ll128, simple }, least) = (self.settings.buffers, Buffers::LEAST);
        for (name, bytes, least) in [
            ("NCCL_LL_BUFFSIZE", ll, least.ll),
            ("NCCL_LL128_BUFFSIZE", ll128, least.ll128),
            ("NCCL_BUFFSIZE", simple, least.simple),
        ] {
            if let Some(Bytes(bytes)) = bytes.filter(|&bytes| bytes < least) {
                let value = variables.get(name).unwrap_or(&"").chars().take(80).collect();
                return Err(SettingsError::SmallBuffer { name, value, bytes, least: least.0 });
            }
        }
        Ok(())
    }

    fn read(&mut self, name: &str, value: &str, version: Version) -> Result<(), SettingsError> {
        match name {
            _ if Rules::of(version).unread.contains(&name) => {
                self.warnings.push(format!("{name} has no effect: NCCL {version} does not read it, later versions do"));
                self.ignored.push(name.to_owned());
            }
            "NCCL_ALGO" => self.settings.algorithms = self.selection("NCCL_ALGO", value, version)?,
            "NCCL_PROTO" => self.settings.protocols = self.selection("NCCL_PROTO", value, version)?,
            "NCCL_MIN_NCHANNELS" | "NCCL_MIN_NRINGS" => self.settings.min_channels = self.count(name, value),
            "NCCL_MAX_NCHANNELS" | "NCCL_MAX_NRINGS" => self.settings.max_channels = self.most_channels(name, value),
            "NCCL_MIN_CTAS" => self.settings.min_ctas = self.count(name, value),
            "NCCL_MAX_CTAS" => self.settings.max_ctas = self.count(name, value),
            "NCCL_MIN_P2P_NCHANNELS" => self.settings.min_p2p_channels = self.count(name, value),
            "NCCL_MAX_P2P_NCHANNELS" => self.settings.max_p2p_channels = self.count(name, value),
            "NCCL_P2P_NVL_CHUNKSIZE" => self.settings.p2p_chunks[0] = self.bytes(name, value),
            "NCCL_P2P_PCI_CHUNKSIZE" => self.settings.p2p_chunks[1] = self.bytes(name, value),
            "NCCL_P2P_NET_CHUNKSIZE" => self.settings.p2p_chunks[2] = self.bytes(name, value),
            "NCCL_P2P_LL_THRESHOLD" => {
                let bytes = self.number(name, value);
                self.settings.p2p_ll_bytes = bytes.map(|bytes| u64::try_from(bytes).unwrap_or(0));
            }
            "NCCL_NVLS_CHUNKSIZE" => self.settings.nvls_chunks[0] = self.bytes(name, value),
            "NCCL_NVLSTREE_MAX_CHUNKSIZE" => self.settings.nvls_chunks[1] = self.bytes(name, value),
            "NCCL_NCHANNELS_PER_NET_PEER" => self.settings.channels_per_net_peer = self.count(name, value),
            "NCCL_NTHREADS" => self.settings.threads = self.threads(name, value, 64, 512),
            "NCCL_LL128_NTHREADS" => self.settings.ll128_threads = self.threads(name, value, 160, 640),
            "NCCL_THREAD_THRESHOLDS" => self.thresholds(value),
            "NCCL_BUFFSIZE" => self.settings.buffers.simple = self.bytes(name, value),
            "NCCL_LL_BUFFSIZE" => self.settings.buffers.ll = self.bytes(name, value),
            "NCCL_LL128_BUFFSIZE" => self.settings.buffers.ll128 = self.bytes(name, value),
            "NCCL_NVLS_ENABLE" => self.settings.nvls = self.number(name, value).filter(|&v| v != 2).map(|v| v != 0),
            "NCCL_NVLS_NCHANNELS" => self.settings.nvls_channels = self.count(name, value),
            "NCCL_PAT_ENABLE" => self.settings.pat = self.number(name, value).filter(|&v| v != 2).map(|v| v != 0),
            "NCCL_GRAPH_MIXING_SUPPORT" => self.settings.no_graph_events = self.number(name, value) == Some(0),
            "NCCL_COLLNET_ENABLE" => self.collnet(name, value),
            "NCCL_COLLNET_NODE_THRESHOLD" => {
                self.settings.collnet_hosts = self.number(name, value).map(|v| u32::try_from(v).unwrap_or(0));
            }
            "NCCL_LL128_C2C" => self.settings.no_ll128_c2c = self.number(name, value) == Some(0),
            "NCCL_NET_OVERHEAD" => {
                self.settings.net_overhead_ns = self.number(name, value).map(|v| u32::try_from(v).unwrap_or(0));
            }
            "NCCL_TUNER_PLUGIN" => {
                self.settings.no_tuner = value.eq_ignore_ascii_case("none");
                self.settings.other_tuner =
                    !value.is_empty() && !self.settings.no_tuner && !value.to_lowercase().contains("ofi");
            }
            "NCCL_TUNER_CONFIG_FILE" => self.tuner_file = Some(value.to_owned()).filter(|path| !path.is_empty()),
            // With the plugin that reads them.
            _ if OWN.contains(&name) => {}
            "OFI_NCCL_TUNER_TYPE" => self.tuner_type(value),
            "OFI_NCCL_FORCE_NUM_RAILS" => {
                self.settings.no_region_tuner |= self.number(name, value).is_some_and(|v| v != 0);
            }
            "NCCL_CTA_POLICY" => self.cta_policy(value),
            "NCCL_SYM_KERNEL" | "NCCL_SYM_NOWIN_ENABLE" if !matches!(value, "" | "0") => {
                self.not_modelled.push(format!("{name}={value}: kernels for symmetric memory"));
            }
            "NCCL_CHUNK_SIZE" | "NCCL_GRAPH_FILE" if !value.is_empty() => self.default_is_used(name, value),
            // What is modelled is the default; of NCCL_NET_GDR_READ that is as 1 from Ampere on.
            "NCCL_NET_GDR_READ" | "NCCL_PXN_C2C" if self.number(name, value) == Some(0) => {
                self.default_is_used(name, value);
            }
            "NCCL_P2P_PXN_LEVEL" if self.number(name, value).is_some_and(|level| level != 2) => {
                self.default_is_used(name, value);
            }
            "NCCL_P2P_PER_CHANNEL_NET_BW" if self.number(name, value).is_some_and(|rate| rate != 14) => {
                self.default_is_used(name, value);
            }
            "NCCL_NVB_DISABLE" | "NCCL_ALLOC_P2P_NET_LL_BUFFERS" | "NCCL_P2P_USE_CUDA_MEMCPY"
                if self.number(name, value).is_some_and(|v| v != 0) =>
            {
                self.default_is_used(name, value);
            }
            _ => {
                self.warnings.extend(Transport::misread(name, value));
                self.without_effect(name);
            }
        }
        Ok(())
    }

    fn default_is_used(&mut self, name: &str, value: &str) {
        self.not_modelled.push(format!("{name}={value}: NCCL's default is used"));
    }

    fn without_effect(&mut self, name: &str) {
        // In whatever case: NCCL reads capitals alone.
        let of_nccl = |word: &str| {
            let word = word.to_ascii_uppercase();
            word.starts_with("NCCL_") || word.starts_with("OFI_NCCL_")
        };
        let is_read = |known: &&str| Parameter::of(known).is_some_and(Parameter::is_read);
        match Parameter::of(name) {
            None if is_of_plugin(name) => self.ignored.push(name.to_owned()),
            // Blanks in a name come from a file of NCCL's own.
            None if name.split_whitespace().any(of_nccl) => {
                let near = nearest(name, Parameter::names().filter(is_read));
                let near = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
                let name = if name.contains(char::is_whitespace) { format!("`{name}`") } else { name.to_owned() };
                self.warnings.push(format!("{name} is not a variable of NCCL, which passes over it in silence{near}"));
            }
            Some(known) if !known.is_read() && !known.is_of_builds() => {
                self.warnings.push(format!("{name} is no longer, or never was, a variable of NCCL: it has no effect"));
            }
            _ => self.ignored.push(name.to_owned()),
        }
    }

    fn selection<T: Listed>(
        &mut self,
        name: &'static str,
        value: &str,
        version: Version,
    ) -> Result<Selection<T>, SettingsError> {
        let (selection, passed_over) = Selection::parse(value, version).map_err(|error| SettingsError::Refused {
            name,
            value: value.chars().take(80).collect(),
            error,
        })?;
        if !passed_over.is_empty() {
            let names = passed_over.join("`, `");
            self.warnings.push(format!("{name}={value}: NCCL {version} passes over `{names}` in silence"));
        }
        Ok(selection)
    }

    /// A whole number; `None` for what means automatic.
    fn number(&mut self, name: &str, value: &str) -> Option<i64> {
        if value.is_empty() {
            return None;
        }
        let (number, rest) = strtoll(value);
        if rest {
            self.warnings.push(format!("{name}={value} is read as {number}: NCCL takes whole numbers only"));
        }
        (number != -2).then_some(number)
    }

    /// A positive whole number.
    fn count(&mut self, name: &str, value: &str) -> Option<u32> {
        let number = self.number(name, value)?;
        let count = u32::try_from(number).ok().filter(|&count| count > 0);
        if count.is_none() {
            self.warnings.push(format!("{name}={value} is out of range and has no effect"));
        }
        count
    }

    /// The most channels, which are one at least.
    fn most_channels(&mut self, name: &str, value: &str) -> Option<u32> {
        let number = self.number(name, value)?;
        if number < 1 {
            self.warnings.push(format!("{name}={value} is taken as 1"));
        }
        Some(u32::try_from(number.max(1)).unwrap_or(u32::MAX))
    }

    fn collnet(&mut self, name: &str, value: &str) {
        let number = self.number(name, value);
        self.settings.collnet = number == Some(1);
        if number.is_some_and(|number| !matches!(number, 0 | 1)) {
            self.warnings.push(format!("{name}={value} is taken as 0: NCCL takes 0 or 1"));
        }
    }

    fn bytes(&mut self, name: &str, value: &str) -> Option<Bytes> {
        self.count(name, value).map(|bytes| Bytes(u64::from(bytes)))
    }

    /// Threads of a block; NCCL takes the most it allows where the number is not a multiple of 32.
    fn threads(&mut self, name: &str, value: &str, least: u32, most: u32) -> Option<u32> {
        let asked = self.count(name, value)?;
        let used = if asked.is_multiple_of(32) { asked.clamp(least, most) } else { most };
        if used != asked {
            self.warnings.push(format!("{name}={value} is taken as {used}: multiples of 32 from {least} to {most}"));
        }
        Some(used)
    }

    /// Six numbers: tree then ring, LL, LL128, Simple; negative ones leave the default.
    fn thresholds(&mut self, value: &str) {
        let numbers: Vec<i64> = value.split_whitespace().map_while(|word| word.parse().ok()).collect();
        if numbers.len() < 6 {
            self.warnings.push(format!("NCCL_THREAD_THRESHOLDS={value}: {} of 6 numbers could be read", numbers.len()));
        }
        for (index, number) in numbers.into_iter().take(6).enumerate() {
            self.settings.thresholds[index / 3][[LL, LL128, SIMPLE][index % 3]] = u64::try_from(number).ok();
        }
    }

    fn tuner_type(&mut self, value: &str) {
        let kind = value.to_uppercase();
        if !matches!(kind.as_str(), "" | "REGION") {
            self.settings.no_region_tuner = true;
        }
        if kind == "MODEL" {
            self.not_modelled.push("OFI_NCCL_TUNER_TYPE=MODEL: NCCL's own table is used".to_owned());
        }
    }

    fn cta_policy(&mut self, value: &str) {
        let (bits, _) = strtoll(value);
        let named = |name: &str| value.to_uppercase().split('|').any(|part| part.trim() == name);
        self.settings.cta_policy = if named("ZERO") || bits & 2 != 0 {
            CtaPolicy::Zero
        } else if named("EFFICIENCY") || bits & 1 != 0 {
            CtaPolicy::Efficiency
        } else {
            CtaPolicy::Default
        };
        let what = match self.settings.cta_policy {
            CtaPolicy::Default => return,
            CtaPolicy::Efficiency => "NVLS for registered buffers",
            CtaPolicy::Zero => "copy-engine collectives",
        };
        self.not_modelled.push(format!("NCCL_CTA_POLICY={value}: {what} bypass the cost table"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;
    use proptest::prelude::*;

    fn environment(pairs: &[&str]) -> Environment {
        let pairs: Vec<_> = pairs.iter().map(|text| pair(text).unwrap()).collect();
        Environment::parse(&pairs, Version::NEWEST).unwrap()
    }

    /// Goal: a variable that a version does not read changes nothing and is told: `NCCL_NVLSTREE_MAX_CHUNKSIZE` came with
    /// 2.20, `NCCL_NVLS_CHUNKSIZE` with 2.21, `NCCL_LL128_C2C` with 2.27.
    #[test]
    fn variables_of_later_versions_have_no_effect() -> Result<(), SettingsError> {
        let texts = ["NCCL_NVLSTREE_MAX_CHUNKSIZE=524288", "NCCL_NVLS_CHUNKSIZE=262144", "NCCL_LL128_C2C=0"];
        let pairs = texts.into_iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        let (most, chunk) = (Some(Bytes(512 << 10)), Some(Bytes(256 << 10)));
        for (version, chunks, c2c_off) in [
            (Version::new(2, 19, 3), [None, None], false),
            (Version::new(2, 20, 3), [None, most], false),
            (Version::new(2, 21, 5), [chunk, most], false),
            (Version::new(2, 27, 3), [chunk, most], true),
        ] {
            let told = Environment::parse(&pairs, version)?;
            assert_eq!((told.settings.nvls_chunks, told.settings.no_ll128_c2c), (chunks, c2c_off), "{version}");
            let unread = 3 - chunks.iter().flatten().count() - usize::from(c2c_off);
            assert_eq!((told.warnings.len(), told.ignored.len()), (unread, unread), "{version}: {:?}", told.warnings);
        }
        Ok(())
    }

    /// Goal: each variable lands in its setting.
    #[test]
    fn variables_become_settings() {
        let got = environment(&[
            "NCCL_ALGO=allreduce:tree",
            "NCCL_PROTO=^LL128",
            "NCCL_MAX_NRINGS=4",
            "NCCL_MAX_NCHANNELS=8",
            "NCCL_MIN_CTAS=2",
            "NCCL_NTHREADS=250",
            "NCCL_LL128_NTHREADS=64",
            "NCCL_THREAD_THRESHOLDS=1 2 3 4 -2 6",
            "NCCL_BUFFSIZE=8388608M",
            "NCCL_LL_BUFFSIZE=131072",
            "NCCL_LL128_BUFFSIZE=262144",
            "NCCL_NVLS_ENABLE=0",
            "NCCL_NVLS_CHUNKSIZE=262144",
            "NCCL_PAT_ENABLE=1",
            "NCCL_NET_OVERHEAD=2500",
            "NCCL_COLLNET_ENABLE=1",
            "NCCL_LL128_C2C=0",
            "NCCL_DEBUG=INFO",
            "PATH=/bin",
        ]);
        let set = got.settings;
        assert_eq!(set.algorithms.forced(Collective::AllReduce), Some(Algorithm::Tree));
        assert_eq!(set.protocols.allows(Collective::Reduce, Protocol::Ll128), Some(false));
        assert_eq!((set.max_channels, set.min_ctas), (Some(8), Some(2)));
        assert_eq!((set.threads, set.ll128_threads), (Some(512), Some(160)));
        assert_eq!(set.thresholds, [[Some(1), Some(2), Some(3)], [Some(4), None, Some(6)]]);
        assert_eq!(set.buffers.simple, Some(Bytes(8_388_608)));
        assert_eq!((set.buffers.ll, set.buffers.ll128), (Some(Bytes(131_072)), Some(Bytes(262_144))));
        assert_eq!((set.nvls, set.pat, set.collnet), (Some(false), Some(true), true));
        assert_eq!((set.net_overhead_ns, set.no_ll128_c2c), (Some(2500), true));
        assert_eq!(got.ignored, ["NCCL_DEBUG", "PATH"]);
        assert_eq!(got.warnings.len(), 3, "{:?}", got.warnings);
        assert!(environment(&[]).settings == NcclSettings::default());
        assert_eq!(
            environment(&["NCCL_PAT_ENABLE=2", "NCCL_NVLS_ENABLE=2", "NCCL_MAX_CTAS=-2"]).settings,
            NcclSettings::default()
        );
    }

    /// Goal: FIFOs that hold no data are refused, with how NCCL read the value and the least that would do.
    #[test]
    fn buffers_without_room_are_refused() {
        for (name, value, read, least) in [
            ("NCCL_BUFFSIZE", "8M", "8 bytes", "4096"),
            ("NCCL_BUFFSIZE", "4095", "4095 bytes", "4096"),
            ("NCCL_LL_BUFFSIZE", "63", "63 bytes", "256"),
            ("NCCL_LL128_BUFFSIZE", "1K", "1 bytes", "16384"),
        ] {
            let error = Environment::parse(&[(name.to_owned(), value.to_owned())], Version::NEWEST).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(read) && text.contains(least) && text.contains(value), "{text}");
            assert!(Environment::parse(&[(name.to_owned(), least.to_owned())], Version::NEWEST).is_ok(), "{name}");
        }
    }

    /// Goal: names that NCCL does not have are noticed; paths that bypass the table are named.
    #[test]
    fn slips_and_bypasses_are_named() {
        let got = environment(&["NCCL_ALGOS=Ring", "NCCL_NRINGS=4", "NCCL_CTA_POLICY=EFFICIENCY|ZERO"]);
        assert!(got.warnings.iter().any(|w| w.contains("did you mean NCCL_ALGO?")), "{:?}", got.warnings);
        assert!(got.warnings.iter().any(|w| w.contains("NCCL_NRINGS")), "{:?}", got.warnings);
        assert_eq!(got.settings.cta_policy, CtaPolicy::Zero);
        assert!(got.not_modelled[0].contains("copy-engine"));
        let pairs = [("NCCL_ALGO".to_owned(), "rong".to_owned())];
        assert!(Environment::parse(&pairs, Version::NEWEST).unwrap_err().to_string().contains("did you mean `Ring`"));
        assert!(!Environment::parse(&pairs, Version::new(2, 20, 5)).unwrap().warnings.is_empty());
    }

    /// Goal: who misspells a name is told one that NCCL reads, and names in small letters are none. `NCCL_ROOT` is of builds.
    #[test]
    fn guesses_are_names_that_nccl_reads() {
        for (given, name, guess) in [
            ("NCCL_FOO=1", "NCCL_FOO", None),
            ("nccl_algo=ring", "nccl_algo", Some("NCCL_ALGO")),
            ("Nccl_Proto=LL", "Nccl_Proto", Some("NCCL_PROTO")),
            ("ofi_nccl_protocol=RDMA", "ofi_nccl_protocol", Some("OFI_NCCL_PROTOCOL")),
        ] {
            let got = environment(&[given]);
            assert_eq!(got.warnings.len(), 1, "{:?}", got.warnings);
            let begin = format!("{name} is not a variable of NCCL, which passes over it in silence");
            assert!(
                got.warnings[0].starts_with(&begin) && !got.warnings[0].contains("NCCL_ROOT"),
                "{:?}",
                got.warnings
            );
            assert!(
                guess.is_none_or(|guess| got.warnings[0].ends_with(&format!(", did you mean {guess}?"))),
                "{got:?}"
            );
            assert_eq!(got.settings, NcclSettings::default(), "{given}");
        }
    }

    /// Goal: environment files of shells and of NCCL are read, each as its reader does.
    #[test]
    fn files_hold_pairs() {
        let text = "# tuned\nexport NCCL_ALGO=\"Ring,Tree\"\n\nNCCL_PROTO = Simple\nNCCL_NTHREADS=64\n";
        let pairs = pairs_of_file("job.env", text).unwrap();
        assert_eq!(pairs[0], ("NCCL_ALGO".to_owned(), "Ring,Tree".to_owned()));
        assert_eq!(pairs[1], ("NCCL_PROTO".to_owned(), "Simple".to_owned()));
        assert!(pairs_of_file("job.env", "NCCL_ALGO Ring").is_err());
        assert!(pair("=x").is_err());
        let text = format!("{text}NCCL_NTHREADS=128\nno pair\n");
        for path in ["/etc/nccl.conf", ".nccl.conf"] {
            let pairs = pairs_of_file(path, &text).unwrap();
            let names: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let algo = ("export NCCL_ALGO", "\"Ring,Tree\"");
            assert_eq!(names, [algo, ("NCCL_PROTO ", " Simple"), ("NCCL_NTHREADS", "64")]);
            let got = Environment::parse(&pairs, Version::NEWEST).unwrap();
            let set = NcclSettings { threads: Some(64), ..NcclSettings::default() };
            assert_eq!(got.settings, set);
            assert!(got.warnings.iter().any(|w| w.starts_with("`export NCCL_ALGO` is not")), "{:?}", got.warnings);
            assert!(got.warnings.iter().any(|w| w.contains("did you mean NCCL_PROTO?")), "{:?}", got.warnings);
        }
        let quoted = pairs_of_file("nccl.conf", "NCCL_ALGO=\"Ring\"").unwrap();
        assert!(Environment::parse(&quoted, Version::NEWEST).is_err());
    }

    /// Goal: values out of range are what NCCL makes of them, and are told; what is not modelled is named.
    #[test]
    fn values_out_of_range_are_read_as_nccl_reads_them() {
        for (pairs, least_and_most, warnings) in [
            (&["NCCL_MAX_NCHANNELS=0"][..], (None, Some(1)), 1),
            (&["NCCL_MAX_NRINGS=-1"], (None, Some(1)), 1),
            (&["NCCL_MAX_NCHANNELS=-2"], (None, None), 0),
            (&["NCCL_MAX_CTAS=0"], (None, None), 1),
            (&["NCCL_MIN_CTAS=16", "NCCL_MAX_CTAS=4"], (Some(4), Some(4)), 1),
            (&["NCCL_MIN_NCHANNELS=16", "NCCL_MAX_NCHANNELS=4"], (Some(16), Some(4)), 0),
        ] {
            let got = environment(pairs);
            assert_eq!((got.settings.channels(), got.warnings.len()), (least_and_most, warnings), "{:?}", got.warnings);
        }
        for (value, collnet, warnings) in [("0", false, 0), ("1", true, 0), ("2", false, 1), ("true", false, 1)] {
            let got = environment(&[&format!("NCCL_COLLNET_ENABLE={value}")]);
            assert_eq!((got.settings.collnet, got.warnings.len()), (collnet, warnings), "{value}: {:?}", got.warnings);
        }
        for (text, warning) in [
            ("NCCL_P2P_DISABLE=true", "is read as 0: NCCL takes whole numbers only"),
            ("NCCL_P2P_DISABLE=2", "is read as 0"),
            ("NCCL_IB_DISABLE=yes", "is read as 0: NCCL takes whole numbers only"),
            ("NCCL_P2P_LEVEL=nvl", "is no level"),
            ("NCCL_NETDEVS_POLICY=max", "is read as AUTO"),
            ("NCCL_CROSS_NIC=3", "is read as 0"),
            ("NCCL_MNNVL_ENABLE=3", "is read as 2"),
            ("NCCL_PXN_DISABLE=-1", "is read as 0"),
        ] {
            let warnings = environment(&[text]).warnings;
            assert!(warnings.len() == 1 && warnings[0].contains(warning), "{text}: {warnings:?}");
        }
        for text in ["NCCL_NETDEVS_POLICY=max:2", "NCCL_P2P_LEVEL=NVL", "NCCL_IB_DISABLE=", "NCCL_CROSS_NIC=-2"] {
            assert!(environment(&[text]).warnings.is_empty(), "{text}");
        }
        for (name, plain, other) in [
            ("NCCL_NET_GDR_READ", "1", "0"),
            ("NCCL_PXN_C2C", "1", "0"),
            ("NCCL_P2P_PXN_LEVEL", "2", "1"),
            ("NCCL_NVB_DISABLE", "0", "1"),
            ("NCCL_P2P_PER_CHANNEL_NET_BW", "14", "50"),
            ("NCCL_ALLOC_P2P_NET_LL_BUFFERS", "0", "1"),
            ("NCCL_P2P_USE_CUDA_MEMCPY", "0", "1"),
            ("NCCL_TUNER_PLUGIN", "none", "libnccl-tuner-other.so"),
        ] {
            let not_modelled = |value: &str| environment(&[&format!("{name}={value}")]).not_modelled;
            assert!(not_modelled(plain).is_empty() && not_modelled(other).len() == 1, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(name in 0..Parameter::names().count(), value in "\\PC{0,40}") {
            let name = Parameter::names().nth(name).unwrap().to_owned();
            let _ = Environment::parse(&[(name, value)], Version::NEWEST);
        }
    }
}
