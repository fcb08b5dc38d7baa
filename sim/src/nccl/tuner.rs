//! Tuner plugins: what decides before NCCL's own table.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::aws::{self, Platform};
use super::cost::{Cell, CostTable, Model, place};
use super::rules::TunerInterface;
use super::selection::{ALGORITHMS, FUNCTIONS};
use crate::call::Call;
use crate::collective::{Algorithm, Collective, Protocol};
use crate::topology::Topology;

/// Most lines of a table that are kept.
const LINES_MAX: usize = 1 << 20;
/// Longest line that the example plugin reads whole.
const LINE_MAX: usize = 255;

/// A tuner plugin.
#[derive(Clone, Debug)]
pub enum Tuner {
    /// The region tuner of aws-ofi-nccl.
    Region(Platform),
    /// NVIDIA's example plugin with its table.
    Csv(Arc<CsvTuner>),
    /// `collcast-tuner` with its tables, and the tuner that it asks where these say nothing.
    Own(Arc<dyn Lines>, Option<Platform>),
}

/// The tables of a tuner plugin, which whoever hands them over reads.
pub trait Lines: fmt::Debug + Send + Sync {
    /// The first line for a call whose pair is open, with its channels where it has some.
    fn find(&self, of: &Asked, open: &dyn Fn(&Pair) -> bool) -> Option<(Pair, Option<u32>)>;
}

/// Algorithm and protocol.
pub type Pair = (Algorithm, Protocol);

/// A call as NCCL tells a tuner plugin of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// What.
    pub collective: Collective,
    /// Bytes.
    pub bytes: u64,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its hosts, or NVLink domains where these are larger.
    pub hosts: u32,
    /// The fewest and the most ranks of one.
    pub a_host: (u32, u32),
    /// Calls of the group that share channels.
    pub pipe_ops: u32,
    /// Whether buffers can be registered, as far as NCCL says so.
    pub registered: bool,
}

/// Which tuner plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TunerKind {
    /// The region tuner of aws-ofi-nccl.
    Region,
    /// NVIDIA's example plugin.
    Csv,
    /// `collcast-tuner`.
    Own,
}

impl fmt::Display for TunerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Region => "aws-ofi-nccl region tuner",
            Self::Csv => "NVIDIA's example tuner",
            Self::Own => "collcast-tuner",
        })
    }
}

/// What a tuner makes of a call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Advice {
    /// The pair whose cost it sets to zero.
    pub(super) pair: Option<(Algorithm, Protocol)>,
    /// Channels that it sets.
    pub(super) channels: Option<u32>,
    /// Where this is from.
    pub(super) why: String,
}

impl Tuner {
    /// The tuner that a machine's plugin brings along.
    pub fn of(topology: &Topology) -> Option<Self> {
        Platform::of(topology).map(Self::Region)
    }

    /// Which one it is.
    pub fn kind(&self) -> TunerKind {
        match self {
            Self::Region(_) => TunerKind::Region,
            Self::Csv(_) => TunerKind::Csv,
            Self::Own(..) => TunerKind::Own,
        }
    }

    /// Whether this NCCL with these settings asks the tuner at all.
    pub(super) fn is_asked(&self, model: &Model<'_>) -> bool {
        let set = &model.settings;
        match self {
            _ if set.no_tuner => false,
            Self::Region(_) => is_asked(model) && !set.other_tuner && !set.no_region_tuner,
            Self::Csv(_) => model.rules.tuner == TunerInterface::Costs,
            Self::Own(..) => is_asked(model) && model.rules.version.since(21),
        }
    }

    /// What it makes of a call that moves `bytes` in `calls` calls of one group.
    pub(super) fn advice(&self, model: &Model<'_>, table: &CostTable, call: &Call, bytes: u64, calls: u32) -> Advice {
        let (ranks, hosts) = (model.graphs.ranks, model.graphs.hosts.max(1));
        let open = |&(a, p): &Pair| place(a, p).is_some_and(|(a, p)| matches!(table[a][p], Cell::On(_)));
        let pipe_ops = calls.div_ceil(model.channels()).max(1);
        // NCCL before 2.24 does not say which buffers are registered.
        let registered = model.registered && model.rules.version.since(24);
        match self {
            Self::Region(platform) => region(*platform, (hosts, ranks), call.collective, bytes, open),
            Self::Csv(csv) => csv.advice(call, bytes, [hosts, call.ranks, pipe_ops, u32::from(registered)], open),
            Self::Own(lines, next) => {
                let (collective, a_host) = (call.collective, model.graphs.ranks_per_host);
                let asked = Asked { collective, bytes, ranks, hosts, a_host, pipe_ops, registered };
                // NCCL 2.21 does not say where LL128 is safe, and there the plugin never answers it.
                let blind = model.rules.tuner == TunerInterface::Pair;
                let open_to_it = |pair: &Pair| open(pair) && !(blind && pair.1 == Protocol::Ll128);
                match (lines.find(&asked, &open_to_it), next) {
                    (Some((pair, channels)), _) => {
                        Advice { pair: Some(pair), channels, why: "a line of its table".to_owned() }
                    }
                    (None, Some(platform)) if !model.settings.no_region_tuner => {
                        region(*platform, (hosts, ranks), collective, bytes, open)
                    }
                    (None, _) => Advice::default(),
                }
            }
        }
    }
}

/// Whether NCCL asks a tuner under these settings, whichever it is.
fn is_asked(model: &Model<'_>) -> bool {
    match model.rules.tuner {
        TunerInterface::None => false,
        TunerInterface::Pair => model.settings.algorithms.is_free() && model.settings.protocols.is_free(),
        TunerInterface::Costs => true,
    }
}

/// What the region tuner makes of a call over so many hosts and ranks.
fn region(
    platform: Platform,
    (hosts, ranks): (u32, u32),
    collective: Collective,
    bytes: u64,
    open: impl Fn(&Pair) -> bool,
) -> Advice {
    let pair = aws::wanted(platform, hosts, ranks, collective, bytes).find(open);
    let channels = pair.and_then(|pair| aws::channels(platform, hosts, ranks, pair, bytes));
    let why = match pair {
        _ if hosts <= 2 => "it leaves one and two hosts to NCCL".to_owned(),
        Some(_) => format!("{} regions for {} ranks a host", platform.name(), ranks / hosts),
        None => format!("no {} region for {} ranks a host holds it", platform.name(), ranks / hosts),
    };
    Advice { pair, channels, why }
}

/// The table of NVIDIA's example plugin (`plugins/tuner/example`), read with its defects: a
/// misspelt collective is all-reduce, algorithm ring, protocol Simple; empty fields collapse.
#[derive(Clone, Debug, Default)]
pub struct CsvTuner {
    rules: Vec<Rule>,
    /// What the plugin reads otherwise than it looks.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
struct Rule {
    line: usize,
    collective: Collective,
    bytes: (u64, u64),
    pair: (Algorithm, Protocol),
    channels: i64,
    /// Hosts, ranks, pipelined operations, registered buffers; -1 is any.
    only: [i64; 4],
}

impl CsvTuner {
    /// Reads the text of a table, as the plugin would: lines that it cannot read are passed over
    /// with a warning.
    pub fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for (number, line) in (1..).zip(text.lines()).take(LINES_MAX) {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if line.len() > LINE_MAX {
                out.warnings.push(format!("line {number}: only {LINE_MAX} bytes of a line are read"));
            }
            match out.rule(number, line) {
                Some(rule) => out.rules.push(rule),
                None => out.warnings.push(format!("line {number}: not 8 to 10 fields; passed over")),
            }
        }
        out
    }

    fn rule(&mut self, line: usize, text: &str) -> Option<Rule> {
        let fields: Vec<&str> = text.split(',').map(str::trim).filter(|field| !field.is_empty()).collect();
        if !(8..=10).contains(&fields.len()) {
            return None;
        }
        // C's atoi and strtoull: the digits in front, else 0. The latter takes the most for what is larger, and turns a
        // number below zero round.
        let digits = |field: &str| {
            let signed = field.strip_prefix('-').unwrap_or(field);
            let end = signed.find(|c: char| !c.is_ascii_digit()).unwrap_or(signed.len());
            signed[..end].parse::<u64>().unwrap_or(if end > 0 { u64::MAX } else { 0 })
        };
        let number = |field: &str| {
            let number = i64::try_from(digits(field)).unwrap_or(0);
            if field.starts_with('-') { -number } else { number }
        };
        let bytes = |field: &str| if field.starts_with('-') { digits(field).wrapping_neg() } else { digits(field) };
        let mut named = |field: &str, known: &[&str], default: usize| {
            known.iter().position(|&name| name == field).unwrap_or_else(|| {
                self.warnings.push(format!("line {line}: `{field}` is none of its names; taken as {}", known[default]));
                default
            })
        };
        let names = FUNCTIONS.map(|(name, _)| name.to_lowercase());
        let collective = named(fields[0], &names.each_ref().map(String::as_str), 4);
        let names: Vec<&str> = ALGORITHMS.iter().map(|a| a.name()).collect();
        let algorithm = named(fields[3], &names, 1);
        let names: Vec<&str> = Protocol::ALL.iter().map(|p| p.name()).collect();
        let protocol = named(fields[4], &names, 2);
        let channels = number(fields[5]);
        if channels < 1 {
            self.warnings.push(format!("line {line}: channels {channels} leaves 1 channel, not NCCL's number"));
        }
        Some(Rule {
            line,
            collective: FUNCTIONS[collective].1,
            bytes: (bytes(fields[1]), bytes(fields[2])),
            pair: (ALGORITHMS[algorithm], Protocol::ALL[protocol]),
            channels,
            only: std::array::from_fn(|index| fields.get(6 + index).map_or(-1, |field| number(field))),
        })
    }

    fn advice(&self, call: &Call, bytes: u64, here: [u32; 4], open: impl Fn(&(Algorithm, Protocol)) -> bool) -> Advice {
        let rule = self.rules.iter().find(|rule| {
            rule.collective == call.collective
                && (rule.bytes.0..=rule.bytes.1).contains(&bytes)
                && rule.only.iter().zip(here).all(|(&only, here)| only == -1 || only == i64::from(here))
                && open(&rule.pair)
        });
        // The plugin sets one channel before it looks for a line.
        let channels = rule.and_then(|rule| u32::try_from(rule.channels).ok()).filter(|&channels| channels > 0);
        Advice {
            pair: rule.map(|rule| rule.pair),
            channels: Some(channels.unwrap_or(1)),
            why: rule.map_or_else(
                || "no line matches; the plugin leaves 1 channel".to_owned(),
                |rule| format!("line {} of its table", rule.line),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::DataType;
    use crate::units::Bytes;

    fn advice(csv: &CsvTuner, collective: Collective, bytes: u64) -> Advice {
        let call = Call::of_size(collective, 8, Bytes(bytes), DataType::Float32);
        csv.advice(&call, bytes, [1, 8, 1, 0], |pair| pair.0 != Algorithm::Nvls)
    }

    /// Goal: the first open line that matches wins; ranges include both ends; defects are kept.
    #[test]
    fn lines_match_as_in_the_plugin() {
        let csv = CsvTuner::parse(
            "# comment\n\
             allreduce,0,65536,tree,ll,4,-1,-1\n\
             allreduce,65537,1048576,nvls,simple,16,-1,8,-1,-1\n\
             allreduce,65537,1048576,ring,ll128,-1,1,8,1\n\
             allgather,0,4294967295,ring,simple,2,2,-1\n\
             alreduce,2097152,2097152,rign,ll129,3,-1,-1\n\
             reduce,1048576,18446744073709551615,ring,ll128,4,-1,-1\n\
             broadcast,5,99999999999999999999,ring,ll,2,-1,-1\n\
             reducescatter,0,-1,ring,ll,2,-1,-1\n\
             allreduce,1,2,3\n",
        );
        let pair = |collective, bytes| advice(&csv, collective, bytes).pair;
        let channels = |collective, bytes| advice(&csv, collective, bytes).channels;
        assert_eq!(pair(Collective::AllReduce, 65_536), Some((Algorithm::Tree, Protocol::Ll)));
        assert_eq!(channels(Collective::AllReduce, 65_536), Some(4));
        // The line of NVLS is skipped, since its cell is closed; -1 channels leaves 1.
        assert_eq!(pair(Collective::AllReduce, 65_537), Some((Algorithm::Ring, Protocol::Ll128)));
        assert_eq!(channels(Collective::AllReduce, 65_537), Some(1));
        // Two hosts only; no line leaves 1 channel too.
        assert_eq!((pair(Collective::AllGather, 64), channels(Collective::AllGather, 64)), (None, Some(1)));
        // A number of more than 63 bits, of more than 64, and one below zero: C's strtoull.
        assert_eq!(channels(Collective::Reduce, u64::MAX), Some(4));
        assert_eq!(channels(Collective::Broadcast, u64::MAX), Some(2));
        assert_eq!(channels(Collective::ReduceScatter, u64::MAX), Some(2));
        // Misspelt names.
        assert_eq!(pair(Collective::AllReduce, 2 << 20), Some((Algorithm::Ring, Protocol::Simple)));
        assert_eq!(csv.warnings.len(), 5, "{:?}", csv.warnings);
    }
}
