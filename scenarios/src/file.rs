//! Reads a scenario file, `collcast/scenario/1`: TOML to checked values.
//!
//! Sizes, times and rates are strings with their unit. Times are those of one rank: with tensor
//! parallelism what one rank of a group computes. [`crate::builtin`] holds files to start from.

use std::collections::BTreeSet;
use std::ops::Range;

use collcast_sim::collective::{Algorithm, Protocol};
use collcast_sim::predict::Choice;
use collcast_sim::profile::Profile;
use collcast_sim::units::{Bytes, SimDuration, UnitError, parse_size, parse_time};
use collcast_sim::workload::{Device, Jitter, Mover, OpGraph};
use collcast_topologies::error::{Source, TopologiesError};
use toml::Spanned;

use crate::ddp::Ddp;
use crate::emit::{CallSettings, Costs, MEMORY_WAVES};
use crate::fsdp::Fsdp;
use crate::model::{Layer, Model, Operation, Work};
use crate::pipeline::Schedule;
use crate::programs::Programs;
use crate::raw::{RawCommunication, RawDataParallel, RawFile, RawModel, RawOperation, Text};
use crate::step::{DataParallel, Layout, Straggler, graph};

mod turns;

/// The schema that this module reads.
pub const SCHEMA: &str = "collcast/scenario/1";
/// Most layers, ranks and micro-batches: a slip must not take all memory.
const MAX_LAYERS: u64 = 10_000;
const MAX_RANKS: u64 = collcast_sim::schedule::MAX_RANKS as u64;
const MAX_MICRO_BATCHES: u32 = 4_096;
const MAX_OPERATIONS: u64 = 2_000_000;
/// Most ranks of a communicator: each of its calls is simulated slice by slice (a step of DDP takes 12 s with so many).
const MAX_GROUP: u32 = 1_024;
/// Rate of matrix products where a scenario says none: its layers were measured then, and take from it only how their
/// operations share that time. Assumed, of 989 dense in 16 bits by NVIDIA's data sheet of the H100.
const MATRIX_TFLOPS: f64 = 600.0;
/// Longest kernel of a layer that is taken without a word where nobody says how many kernels it has. Assumed: those of
/// large matrix products take about so long.
const LONG_KERNEL: SimDuration = SimDuration(1_000_000_000);
/// A dimension of a matrix at most, and products of a batch: what a 32-bit index of a kernel reaches.
const MAX_DIMENSION: u64 = 1 << 31;
/// Bytes of an element at most.
const MAX_ELEMENT: u64 = 16;

/// The machine of a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineRef {
    /// Built-in topology or topology file.
    pub topology: String,
    /// Hosts.
    pub nodes: Option<u32>,
    /// GPUs of each host.
    pub gpus: Option<u32>,
    /// Profiles.
    pub profile: Vec<String>,
}

/// Where an operation's time comes from.
#[derive(Clone, PartialEq, Debug)]
struct Cost {
    forward: Time,
    backward: Time,
    kernels: [u32; 2],
    waves: u32,
    /// By pass, of its kernels in turn.
    tiles: [[u32; 2]; 2],
    memory: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Time {
    Measured(SimDuration),
    Operations(f64),
    Memory(u64),
}

#[derive(Clone, PartialEq, Debug)]
struct Part {
    name: String,
    cost: Cost,
    parameters: Vec<u64>,
    sums: [Bytes; 2],
}

#[derive(Clone, PartialEq, Debug)]
struct Block {
    name: String,
    count: u64,
    total: [Option<SimDuration>; 2],
    parts: Vec<Part>,
    output: Bytes,
    /// The longest kernel, where their number is the default.
    assumed: Option<SimDuration>,
}

/// A checked scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub description: String,
    /// Where it runs.
    pub machine: MachineRef,
    /// How ranks share the work.
    pub layout: Layout,
    /// How replicas agree on gradients.
    pub data_parallel: DataParallel,
    /// What NCCL is told.
    pub calls: CallSettings,
    /// How much faster every other GPU is.
    pub spread: f64,
    /// Ranks that are not like the others.
    pub stragglers: Vec<Straggler>,
    /// Ranks with slower links, and the share of their rate that is left.
    pub slow_links: Vec<(u32, f64)>,
    /// Random differences, and over how many seeds.
    pub jitter: Option<(Jitter, u32)>,
    parameter_bytes: u64,
    gradient_bytes: u64,
    matrix_tflops: Option<f64>,
    blocks: Vec<Block>,
    programs: Option<Programs>,
}

/// The JSON schema of the scenario file.
pub fn json_schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(RawFile)).unwrap_or_default()
}

/// Reads a scenario.
///
/// # Errors
/// Any mistake, with its line and column.
pub fn read(text: &str, file: &str) -> Result<Scenario, TopologiesError> {
    let source = Source::decode(file, text.as_bytes())?;
    let raw: RawFile = collcast_topologies::file::parse(source)?;
    Reader { source }.scenario(raw)
}

/// A scenario's text with one scalar replaced, by its dotted path: `data_parallel.bucket`,
/// `layers.0.count`. A value that reads as a number or a flag is one, anything else a string.
///
/// # Errors
/// A text that is no TOML, or a path that leads to no place for a scalar.
pub fn with_value(text: &str, path: &str, value: &str) -> Result<String, String> {
    let mut table: toml::Table = toml::from_str(text).map_err(|e| e.to_string())?;
    let value = match (value.parse::<i64>(), value.parse::<f64>(), value.parse::<bool>()) {
        (Ok(whole), ..) => toml::Value::Integer(whole),
        (_, Ok(real), _) => toml::Value::Float(real),
        (_, _, Ok(flag)) => toml::Value::Boolean(flag),
        _ => toml::Value::String(value.to_owned()),
    };
    let keys: Vec<&str> = path.split('.').collect();
    let Some((last, way)) = keys.split_last() else { return Err("an empty key".to_owned()) };
    let mut here = toml::Value::Table(std::mem::take(&mut table));
    let mut at = &mut here;
    for (depth, key) in way.iter().enumerate() {
        let next_is_new = matches!(at, toml::Value::Table(t) if !t.contains_key(*key));
        if next_is_new && let toml::Value::Table(t) = at {
            t.insert((*key).to_owned(), toml::Value::Table(toml::Table::new()));
        }
        at = match at {
            toml::Value::Table(t) => t.get_mut(*key),
            toml::Value::Array(list) => key.parse::<usize>().ok().and_then(|index| list.get_mut(index)),
            _ => None,
        }
        .ok_or_else(|| format!("`{}` leads nowhere", keys[..=depth].join(".")))?;
    }
    match at {
        toml::Value::Table(t) if !matches!(t.get(*last), Some(toml::Value::Table(_) | toml::Value::Array(_))) => {
            t.insert((*last).to_owned(), value);
        }
        toml::Value::Array(list) => {
            let place = last.parse::<usize>().ok().and_then(|index| list.get_mut(index));
            *place.ok_or_else(|| format!("`{path}` is no place of a list"))? = value;
        }
        _ => return Err(format!("`{path}` is no single value")),
    }
    toml::to_string(&here).map_err(|e| e.to_string())
}

struct Reader<'a> {
    source: Source<'a>,
}

impl Reader<'_> {
    fn bad(&self, span: Range<usize>, message: String, label: &str, hint: &str) -> TopologiesError {
        TopologiesError::Value(self.source.at(span, message, label, hint))
    }

    fn unit<T>(
        &self,
        text: &Text,
        parse: fn(&str) -> Result<T, UnitError>,
        example: &str,
    ) -> Result<T, TopologiesError> {
        parse(text.get_ref()).map_err(|e| self.bad(text.span(), e.to_string(), &format!("expected {example}"), ""))
    }

    fn time(&self, text: &Text) -> Result<SimDuration, TopologiesError> {
        self.unit(text, parse_time, "a time such as \"1.2 ms\"")
    }

    fn size(&self, text: &Text) -> Result<Bytes, TopologiesError> {
        self.unit(text, parse_size, "a size such as \"25 MiB\"")
    }

    fn size_or_none(&self, text: Option<&Text>) -> Result<Bytes, TopologiesError> {
        text.map_or(Ok(Bytes(0)), |t| self.size(t))
    }

    fn name<T: Clone>(&self, text: &Text, what: &str, known: &[(&str, T)]) -> Result<T, TopologiesError> {
        let given = text.get_ref().as_str();
        known.iter().find(|(name, _)| *name == given).map(|(_, value)| value.clone()).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            let near = collcast_sim::collective::nearest(given, names.iter().copied());
            let label = near.map_or_else(|| "not a known name".to_owned(), |n| format!("did you mean `{n}`?"));
            let message = format!("`{given}` is not {what}");
            TopologiesError::UnknownName(self.source.at(
                text.span(),
                message,
                label,
                format!("known: {}", names.join(", ")),
            ))
        })
    }

    fn count(&self, number: Option<&Spanned<u32>>, what: &str, most: u32) -> Result<u32, TopologiesError> {
        match number {
            Some(n) if !(1..=most).contains(n.get_ref()) => {
                let message = format!("{what} is {}", n.get_ref());
                Err(self.bad(n.span(), message, &format!("expected 1 to {most}"), ""))
            }
            other => Ok(other.map_or(1, |n| *n.get_ref())),
        }
    }

    fn share(&self, number: &Spanned<f64>, what: &str, most: f64) -> Result<f64, TopologiesError> {
        let value = *number.get_ref();
        if value > 0.0 && value <= most {
            return Ok(value);
        }
        let label = format!("expected more than 0 and at most {most}");
        Err(self.bad(number.span(), format!("{what} is {value}"), &label, ""))
    }

    /// The same, or 0 for none.
    fn share_or_none(&self, number: &Spanned<f64>, what: &str) -> Result<f64, TopologiesError> {
        if *number.get_ref() == 0.0 { Ok(0.0) } else { self.share(number, what, 1.0) }
    }

    fn scenario(&self, raw: RawFile) -> Result<Scenario, TopologiesError> {
        if raw.schema.get_ref() != SCHEMA {
            let message = format!("the schema is `{}`", raw.schema.get_ref());
            let at = self.source.at(raw.schema.span(), message, format!("expected `{SCHEMA}`"), "");
            return Err(TopologiesError::Schema(at));
        }
        for (key, bytes) in
            [("parameter_bytes", raw.model.parameter_bytes), ("gradient_bytes", raw.model.gradient_bytes)]
        {
            if bytes.is_some_and(|b| !(1..=MAX_ELEMENT).contains(&b)) {
                let message = format!("{key} is {}", bytes.unwrap_or_default());
                return Err(TopologiesError::Value(self.source.whole(message, format!("expected 1 to {MAX_ELEMENT}"))));
            }
        }
        let programs = self.programs(&raw)?;
        let (blocks, layout) = match &programs {
            Some(_) => (Vec::new(), Layout::default()),
            None => {
                let blocks = self.blocks(&raw)?;
                let layout = self.layout(&raw, &blocks)?;
                (blocks, layout)
            }
        };
        let ranks = programs.as_ref().map_or(layout.ranks(), |programs| programs.ranks().into());
        let data_parallel = match &programs {
            Some(_) => DataParallel::None,
            None => self.data_parallel(&raw.data_parallel, &layout)?,
        };
        let mut stragglers = Vec::new();
        let mut slow_links = Vec::new();
        for s in &raw.stragglers {
            let rank = *s.rank.get_ref();
            if u64::from(rank) >= ranks {
                let message = format!("there is no rank {rank}");
                return Err(self.bad(s.rank.span(), message, &format!("expected 0 to {}", ranks - 1), ""));
            }
            if stragglers.iter().any(|known: &Straggler| known.rank == rank) {
                let message = format!("rank {rank} is in two [[stragglers]]");
                return Err(self.bad(s.rank.span(), message, "expected one for each rank, with all its keys", ""));
            }
            let slow = s.slow.as_ref().map_or(Ok(1.0), |n| self.share(n, "slow", 1000.0))?;
            let late = s.late.as_ref().map_or(Ok(SimDuration::ZERO), |t| self.time(t))?;
            if let Some(link) = &s.link {
                slow_links.push((rank, self.share(link, "link", 1.0)?));
                slow_links.retain(|(_, share)| *share < 1.0);
            }
            stragglers.push(Straggler { rank, pace_ppm: (slow * 1e6).round() as u64, late });
        }
        let jitter = match &raw.jitter {
            Some(j) => {
                let relative = self.share_or_none(&j.relative, "relative")?;
                let seeds = match &j.seeds {
                    None => 5,
                    some => self.count(some.as_ref(), "seeds", 1000)?,
                };
                Some((Jitter { ppm: (relative * 1e6).round() as u32, seed: j.seed.unwrap_or(1) }, seeds))
            }
            None => None,
        };
        Ok(Scenario {
            name: raw.name,
            description: raw.description,
            machine: MachineRef {
                topology: raw.machine.topology,
                nodes: raw.machine.nodes,
                gpus: raw.machine.gpus,
                profile: raw.machine.profile,
            },
            layout,
            data_parallel,
            calls: self.calls(&raw.communication)?,
            spread: raw.machine.spread.as_ref().map_or(Ok(0.0), |n| self.share_or_none(n, "spread"))?,
            stragglers,
            slow_links,
            jitter,
            parameter_bytes: raw.model.parameter_bytes.unwrap_or(2),
            gradient_bytes: raw.model.gradient_bytes.unwrap_or(2),
            matrix_tflops: raw.model.matrix_tflops.as_ref().map(|n| self.share(n, "matrix_tflops", 1e6)).transpose()?,
            blocks,
            programs,
        })
    }

    fn layout(&self, raw: &RawFile, blocks: &[Block]) -> Result<Layout, TopologiesError> {
        let l = &raw.layout;
        let most = MAX_RANKS as u32;
        let schedules = [
            ("1f1b", Schedule::OneForwardOneBackward),
            ("gpipe", Schedule::Gpipe),
            ("interleaved", Schedule::Interleaved),
        ];
        let layout = Layout {
            tensor: self.count(l.tensor.as_ref(), "tensor", most)?,
            pipeline: self.count(l.pipeline.as_ref(), "pipeline", most)?,
            data: self.count(l.data.as_ref(), "data", most)?,
            micro_batches: self.count(l.micro_batches.as_ref(), "micro_batches", MAX_MICRO_BATCHES)?,
            schedule: l
                .schedule
                .as_ref()
                .map_or(Ok(Schedule::default()), |t| self.name(t, "a schedule", &schedules))?,
            chunks: self.count(l.chunks.as_ref(), "chunks", 1024)?,
        };
        let whole = |message: String, hint: &str| TopologiesError::Contradiction(self.source.whole(message, hint));
        if layout.ranks() > MAX_RANKS {
            let most = format!("at most {MAX_RANKS} are simulated");
            return Err(whole(format!("the layout has {} ranks", layout.ranks()), &most));
        }
        let largest = layout.data.max(layout.tensor);
        if largest > MAX_GROUP {
            let message = format!("the layout has communicators of {largest} ranks");
            let hint = "at most 1024 are simulated: raise `tensor` or `pipeline`, or time one call by \
                        `collcast simulate MACHINE -c all_reduce`";
            return Err(TopologiesError::TooLarge(self.source.whole(message, hint)));
        }
        let layers: u64 = blocks.iter().map(|b| b.count).sum();
        if u64::from(layout.pipeline) * u64::from(layout.chunks) > layers {
            let message = format!("{} stages of {} chunks share {layers} layers", layout.pipeline, layout.chunks);
            return Err(whole(message, "every chunk needs a layer: lower `pipeline` or `chunks`"));
        }
        // Operations of all programs: each micro-batch goes through all layers, there and back.
        let parts = |b: &Block| b.count * b.parts.iter().map(|p| 2 + 3 * p.parameters.len() as u64).sum::<u64>();
        let passes = u64::from(layout.pipeline) * u64::from(layout.chunks);
        let operations =
            u64::from(layout.micro_batches).saturating_mul(2 * blocks.iter().map(parts).sum::<u64>() + 4 * passes);
        if operations > MAX_OPERATIONS {
            let message = format!("the step has about {operations} operations");
            let error = self.source.whole(message, "at most 2 million are simulated: lower `micro_batches` or `count`");
            return Err(TopologiesError::TooLarge(error));
        }
        let interleaved = layout.schedule == Schedule::Interleaved;
        if layout.chunks > 1 && !interleaved {
            return Err(whole("`chunks` is more than 1".to_owned(), "say schedule = \"interleaved\""));
        }
        if interleaved && !layout.micro_batches.is_multiple_of(layout.pipeline) {
            let message = format!("{} micro-batches over {} stages", layout.micro_batches, layout.pipeline);
            return Err(whole(message, "interleaved needs micro_batches to be a multiple of pipeline"));
        }
        Ok(layout)
    }

    fn data_parallel(&self, raw: &RawDataParallel, layout: &Layout) -> Result<DataParallel, TopologiesError> {
        let ddp = Ddp::default();
        let bucket = raw.bucket.as_ref().map_or(Ok(ddp.bucket), |t| self.size(t))?;
        let first_bucket = raw.first_bucket.as_ref().map_or(Ok(ddp.first_bucket), |t| self.size(t))?;
        let ddp =
            Ddp { bucket, first_bucket, copies: raw.copies.unwrap_or(true), view: raw.bucket_view.unwrap_or(false) };
        let fsdp = Fsdp {
            prefetch: raw.prefetch.unwrap_or(1) as usize,
            reshard: raw.reshard.unwrap_or(true),
            copies: raw.copies.unwrap_or(true),
        };
        let kinds = [
            ("ddp", DataParallel::Ddp(ddp)),
            ("at_end", DataParallel::AtEnd),
            ("one_gpu", DataParallel::OneGpu),
            ("fsdp", DataParallel::Fsdp(fsdp)),
            ("none", DataParallel::None),
        ];
        let Some(kind) = &raw.kind else { return Ok(kinds[0].1) };
        let chosen = self.name(kind, "a kind of data parallelism", &kinds)?;
        if matches!(chosen, DataParallel::Fsdp(_)) && (layout.pipeline > 1 || layout.micro_batches > 1) {
            let message = "fsdp together with a pipeline or micro-batches is not modelled".to_owned();
            return Err(self.bad(
                kind.span(),
                message,
                "one stage and one micro-batch only",
                "use ddp or at_end there",
            ));
        }
        Ok(chosen)
    }

    fn calls(&self, raw: &RawCommunication) -> Result<CallSettings, TopologiesError> {
        let defaults = CallSettings::default();
        let algorithms: Vec<(&str, Choice<Algorithm>)> = [("auto", Choice::Auto), ("best", Choice::Best)]
            .into_iter()
            .chain(Algorithm::ALL.iter().map(|&a| (a.name(), Choice::Forced(a))))
            .collect();
        let protocols: Vec<(&str, Choice<Protocol>)> = [("auto", Choice::Auto), ("best", Choice::Best)]
            .into_iter()
            .chain(Protocol::ALL.iter().map(|&p| (p.name(), Choice::Forced(p))))
            .collect();
        let algorithm =
            raw.algorithm.as_ref().map_or(Ok(Choice::Auto), |t| self.name(t, "an algorithm", &algorithms))?;
        let protocol = raw.protocol.as_ref().map_or(Ok(Choice::Auto), |t| self.name(t, "a protocol", &protocols))?;
        let priorities = [("high", true), ("normal", false)];
        let movers = [("blocks", Mover::Blocks), ("copy_engine", Mover::CopyEngine)];
        Ok(CallSettings {
            algorithm,
            protocol,
            channels: match &raw.channels {
                None => None,
                some => Some(self.count(some.as_ref(), "channels", collcast_sim::schedule::MAX_CHANNELS)?),
            },
            high_priority: raw.priority.as_ref().map_or(Ok(true), |t| self.name(t, "a priority", &priorities))?,
            mover: raw.send.as_ref().map_or(Ok(defaults.mover), |t| self.name(t, "a way to send", &movers))?,
        })
    }

    fn blocks(&self, raw: &RawFile) -> Result<Vec<Block>, TopologiesError> {
        let mut blocks = Vec::new();
        let mut total = 0;
        for layer in &raw.layers {
            let count = layer.count.as_ref().map_or(1, |n| *n.get_ref());
            total += count.min(MAX_LAYERS + 1);
            if count == 0 || total > MAX_LAYERS {
                let span = layer.count.as_ref().map_or(layer.name.span(), Spanned::span);
                let message = format!("{count} layers of `{}`", layer.name.get_ref());
                return Err(self.bad(span, message, &format!("expected 1 to {MAX_LAYERS} layers in all"), ""));
            }
            let time = |t: &Option<Text>| t.as_ref().map(|t| self.time(t)).transpose();
            let total = [time(&layer.forward)?, time(&layer.backward)?];
            let parts = if layer.operations.is_empty() {
                let [Some(forward), Some(backward)] = total else {
                    let message = format!("the layer `{}` has neither both times nor operations", layer.name.get_ref());
                    let hint = "give forward = \"1.2 ms\" and backward = \"2.4 ms\", or [[layers.operations]]";
                    return Err(self.bad(layer.name.span(), message, "needs times", hint));
                };
                let kernels = layer.kernels.unwrap_or(1).max(1);
                vec![Part {
                    name: String::new(),
                    cost: Cost {
                        forward: Time::Measured(forward),
                        backward: Time::Measured(backward),
                        kernels: [kernels, kernels.saturating_mul(2)],
                        waves: 1,
                        tiles: [[0; 2]; 2],
                        memory: layer.memory.as_ref().map(|n| self.share(n, "memory", 1.0)).transpose()?,
                    },
                    parameters: layer.parameters.clone(),
                    sums: [self.size_or_none(layer.sum.as_ref())?, self.size_or_none(layer.sum_backward.as_ref())?],
                }]
            } else {
                layer.operations.iter().map(|o| self.operation(o, &raw.model, &total)).collect::<Result<_, _>>()?
            };
            let sum = parts.iter().flat_map(|p| &p.parameters).try_fold(0_u64, |sum, &n| sum.checked_add(n));
            if sum.is_none_or(|s| s > 1 << 40) {
                let message = format!("`{}` has too many parameters", layer.name.get_ref());
                return Err(self.bad(layer.name.span(), message, "at most 2^40 elements", ""));
            }
            let output = self.size_or_none(layer.output.as_ref())?;
            let assumed = match total {
                [Some(forward), Some(backward)] if layer.operations.is_empty() && layer.kernels.is_none() => {
                    Some(forward.max(SimDuration(backward.0 / 2)))
                }
                _ => None,
            };
            blocks.push(Block { name: layer.name.get_ref().clone(), count, total, parts, output, assumed });
        }
        if blocks.is_empty() {
            let whole = self.source.whole("there are no layers", "give at least one [[layers]]");
            return Err(TopologiesError::Key(whole));
        }
        Ok(blocks)
    }

    fn operation(
        &self,
        raw: &RawOperation,
        model: &RawModel,
        total: &[Option<SimDuration>; 2],
    ) -> Result<Part, TopologiesError> {
        let name = raw.name.get_ref();
        let dimension = |value: u64, what: &str, span: Range<usize>| match value {
            1..=MAX_DIMENSION => Ok(value),
            _ => Err(self.bad(span, format!("{what} of `{name}` is {value}"), "expected 1 to 2147483648", "")),
        };
        let shape = match &raw.matrix {
            Some(matrix) => {
                let [m, n, k] = *matrix.get_ref();
                let one = |(value, what)| dimension(value, what, matrix.span());
                [(m, "m"), (n, "n"), (k, "k")].into_iter().try_for_each(|size| one(size).map(drop))?;
                Some([m, n, k])
            }
            None => None,
        };
        let batch = raw.batch.as_ref().map_or(Ok(1), |batch| dimension(*batch.get_ref(), "batch", batch.span()))?;
        let work = |[m, n, k]: [u64; 3]| 2.0 * m as f64 * n as f64 * k as f64 * batch as f64;
        let forward = match (&raw.forward, shape, &raw.bytes) {
            (Some(time), ..) => Time::Measured(self.time(time)?),
            (None, Some(shape), _) => Time::Operations(work(shape)),
            (None, None, Some(bytes)) => Time::Memory(self.size(bytes)?.0),
            (None, None, None) => {
                let message = format!("`{name}` has no time, no shape and no bytes");
                let hint = "give forward = \"80 us\", matrix = [m, n, k], or bytes = \"32 MiB\"";
                return Err(self.bad(raw.name.span(), message, "needs one of them", hint));
            }
        };
        if matches!(forward, Time::Operations(_)) && model.matrix_tflops.is_none() && total.contains(&None) {
            let message = format!("`{name}` is given by its shape, and nothing says how fast products are");
            let hint = "give [model] matrix_tflops, or measured forward and backward of the layer";
            return Err(self.bad(raw.name.span(), message, "needs a rate", hint));
        }
        let backward = match (&raw.backward, forward) {
            (Some(time), _) => Time::Measured(self.time(time)?),
            // A product for the operand and one for the parameters.
            (None, Time::Measured(time)) => Time::Measured(time.times(2)),
            (None, Time::Operations(work)) => Time::Operations(2.0 * work),
            // Input, gradient and result for input and result alone.
            (None, Time::Memory(bytes)) => Time::Memory(bytes.saturating_add(bytes / 2)),
        };
        let kernels = raw.kernels.unwrap_or(1).max(1);
        let twice = if matches!(forward, Time::Memory(_)) { 1 } else { 2 };
        let memory = match &raw.memory {
            Some(n) => Some(self.share(n, "memory", 1.0)?),
            None => matches!(forward, Time::Memory(_)).then_some(1.0),
        };
        let waves = raw.waves.unwrap_or(if matches!(forward, Time::Memory(_)) { MEMORY_WAVES } else { 1 });
        Ok(Part {
            name: name.clone(),
            cost: Cost {
                forward,
                backward,
                kernels: [kernels, kernels.saturating_mul(twice)],
                waves: waves.max(1),
                // Backward there are two products, for the operand and for the parameters.
                tiles: match shape {
                    Some([m, n, k]) => {
                        let tiles = |m, n| tiles(m, n, batch, kernels);
                        [[tiles(m, n); 2], [tiles(m, k), tiles(k, n)]]
                    }
                    None => [[0; 2]; 2],
                },
                memory,
            },
            parameters: raw.parameters.clone(),
            sums: [self.size_or_none(raw.sum.as_ref())?, self.size_or_none(raw.sum_backward.as_ref())?],
        })
    }
}

/// Tiles of one of so many kernels of a batch of matrix products with results of m x n: of 128 x 256 elements, with which
/// cuBLAS is most efficient.
///
/// Source: NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantization.
fn tiles(m: u64, n: u64, batch: u64, kernels: u32) -> u32 {
    /// With room for the next multiple of a GPU's SMs.
    const MOST: u32 = u32::MAX / 2;
    let all = u128::from(m.div_ceil(128)) * u128::from(n.div_ceil(256)) * u128::from(batch);
    u32::try_from(all.div_ceil(kernels.into())).unwrap_or(MOST).min(MOST)
}

impl Scenario {
    /// The model in times of a GPU with a profile.
    pub fn model(&self, profile: &Profile, device: Device) -> Model {
        let mut layers = Vec::new();
        for block in &self.blocks {
            // Nominal times; where the layer was measured they are its shares.
            let nominal = |time: Time| match time {
                Time::Measured(time) => time.as_us(),
                Time::Operations(work) => work / (self.matrix_tflops.unwrap_or(MATRIX_TFLOPS) * 1e12) * 1e6,
                Time::Memory(bytes) => bytes as f64 / profile.memory(device.memory) * 1e6,
            };
            let scale = |pass: usize, of: fn(&Cost) -> Time| {
                let sum: f64 = block.parts.iter().map(|p| nominal(of(&p.cost))).sum();
                block.total[pass].map_or(1.0, |total| total.as_us() / sum.max(1e-9))
            };
            let scales = [scale(0, |c| c.forward), scale(1, |c| c.backward)];
            let work = |pass: usize, cost: &Cost, time: Time| Work {
                time: match (time, block.total[pass]) {
                    (Time::Measured(time), _) if scales[pass] == 1.0 => time,
                    _ => SimDuration::from_us(nominal(time) * scales[pass]),
                },
                kernels: cost.kernels[pass],
                waves: cost.waves,
                tiles: cost.tiles[pass],
                memory_ppm: (cost.memory.unwrap_or_else(|| profile.gemm_memory()) * 1e6).round() as u32,
            };
            let operations: Vec<Operation> = (block.parts.iter())
                .map(|part| Operation {
                    name: part.name.as_str().into(),
                    forward: work(0, &part.cost, part.cost.forward),
                    backward: work(1, &part.cost, part.cost.backward),
                    parameters: part.parameters.clone(),
                    sum_forward: part.sums[0],
                    sum_backward: part.sums[1],
                })
                .collect();
            for number in 0..block.count {
                let name = if block.count > 1 { format!("{} {number}", block.name) } else { block.name.clone() };
                layers.push(Layer { name: name.into(), operations: operations.clone(), output: block.output });
            }
        }
        Model { layers, parameter_bytes: self.parameter_bytes, gradient_bytes: self.gradient_bytes }
    }

    /// What to know before using the numbers: layers with longer kernels than a GPU runs, which keep calls waiting.
    pub fn warnings(&self) -> Vec<String> {
        let long = |block: &&Block| self.layout.ranks() > 1 && block.assumed.is_some_and(|kernel| kernel > LONG_KERNEL);
        let words = |block: &Block| {
            format!(
                "layer `{}`: its forward pass is taken as 1 kernel and its backward pass as 2, up to {} long, and calls \
                 wait for the end of a kernel; say `kernels`, or give its operations",
                block.name,
                block.assumed.unwrap_or_default()
            )
        };
        self.blocks.iter().filter(long).map(words).collect()
    }

    /// Whether a micro-batch is the same work here and there, whatever kernels do it.
    pub fn same_work(&self, other: &Self) -> bool {
        let parts = |block: &Block| {
            let part = |p: &Part| (p.cost.forward, p.cost.backward, p.parameters.clone(), p.sums);
            block.parts.iter().map(part).collect::<Vec<_>>()
        };
        let work = |s: &Self| s.blocks.iter().map(|b| (b.count, b.total, b.output, parts(b))).collect::<Vec<_>>();
        work(self) == work(other) && self.programs == other.programs
    }

    /// Ranks of its largest communicator.
    pub fn largest_group(&self) -> u32 {
        match &self.programs {
            Some(programs) => programs.communicators.iter().map(|of| of.size).max().unwrap_or(1),
            None => self.layout.data,
        }
    }

    /// The same without its stragglers: ranks that are slow or late, or have slow links; none where it has none.
    pub fn even(&self) -> Option<Self> {
        (!self.stragglers().is_empty()).then(|| {
            let stragglers = self.stragglers.iter().copied().filter(|of| !of.lags()).collect();
            Self { stragglers, slow_links: Vec::new(), ..self.clone() }
        })
    }

    /// Ranks that are slow or late, or have slow links.
    pub fn stragglers(&self) -> BTreeSet<u32> {
        let lag = self.stragglers.iter().filter(|of| of.lags()).map(|of| of.rank);
        lag.chain(self.slow_links.iter().map(|of| of.0)).collect()
    }

    /// The graph of one step. Jitter is not part of it.
    pub fn graph(&self, profile: &Profile, device: Device) -> OpGraph {
        let costs = Costs::of(profile, device);
        if let Some(programs) = &self.programs {
            let mut graph = programs.graph(&self.calls, &costs);
            for straggler in &self.stragglers {
                let rank = &mut graph.ranks[straggler.rank as usize];
                (rank.pace_ppm, rank.late) = (straggler.pace_ppm, straggler.late);
            }
            return graph;
        }
        let model = self.model(profile, device);
        graph(&model, &self.layout, self.data_parallel, &self.calls, &costs, (self.spread, &self.stragglers))
    }
}
