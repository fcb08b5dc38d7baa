//! What the example profiler plugin of NCCL writes (`ext-profiler/example`): events of a rank in Chrome's format, one a line.
//!
//! Categories and keys are those of its `print_event.cc` and, before NCCL 2.28, `print_event.c`. The end of a collective's own
//! event is when the host had launched it or its proxies were done. So only calls count whose channels have clocks of the GPU
//! (`KernelCh` with `StartGpuClk` and `StopGpuClk`): from the first start to the last stop. A file does not say how many ranks
//! there are; those of its communicator do, all together.

use std::collections::BTreeSet;

use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::measurement::Choice;
use serde::Deserialize;

use super::alike::{Alike, Calls, Profile};
use super::parsed::{Input, Parsed, TIME_MAX_US, TIME_MIN_US};
use super::sidecar::shortened;

/// A key of every collective and message, and of no other program's traces.
const MARK: &str = "\"CommHash\"";
/// Bytes at the beginning of a text that are searched for it: events of launches stand in front.
const HEAD: usize = 1 << 16;
/// What to do where no GPU timed the calls.
const WAY_OUT: &str =
    "set NCCL_PROFILE_EVENT_MASK=66 (collectives, channels of kernels) with a plugin that prints StartGpuClk";

/// Whether a text is of this plugin.
pub(super) fn is(text: &str) -> bool {
    let head = &text.as_bytes()[..text.len().min(HEAD)];
    text.trim_start().starts_with('[') && head.windows(MARK.len()).any(|window| window == MARK.as_bytes())
}

#[derive(Deserialize)]
struct Event {
    name: Option<String>,
    cat: Option<String>,
    ph: Option<String>,
    #[serde(default)]
    args: Args,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Args {
    #[serde(rename = "CommHash")]
    communicator: u64,
    #[serde(rename = "Rank")]
    rank: u32,
    #[serde(rename = "Count")]
    count: u64,
    #[serde(rename = "Datatype")]
    dtype: String,
    #[serde(rename = "Algorithm")]
    algorithm: String,
    #[serde(rename = "Protocol")]
    protocol: String,
    #[serde(rename = "nChannels")]
    channels: Option<u32>,
    #[serde(rename = "StartGpuClk")]
    start: u64,
    #[serde(rename = "StopGpuClk")]
    stop: u64,
}

/// A collective.
struct Call {
    line: u64,
    name: String,
    args: Args,
    /// From the first start to the last stop of its channels, by the GPU's clock in ns; none before the first of them.
    clock: Option<(u64, u64)>,
    /// Some channel has no clock.
    unclocked: bool,
}

/// Why calls give no time.
#[derive(Default)]
struct LeftOut {
    unclocked: u64,
    grouped: u64,
    pairs: u64,
    copied: u64,
    cut: u64,
}

/// Reads the text of one file.
pub(super) fn parse(input: &Input<'_>) -> Parsed {
    let mut out = Parsed::default();
    let mut left_out = LeftOut::default();
    let (mut depth, mut open): (u32, Option<Call>) = (0, None);
    let mut group: Vec<Call> = Vec::new();
    let mut events = 0_u64;
    for (line, text) in (1..).zip(input.text.lines()) {
        let text = text.trim().trim_start_matches('[').trim_end_matches([']', ',']).trim_end();
        if text.is_empty() || text == "{}" {
            continue;
        }
        let event: Event = match serde_json::from_str(text) {
            Ok(event) => event,
            // Events of the API before NCCL 2.29 have words without quotes; no time is in them.
            Err(_) if text.contains("_API\"") || text.contains("\"KERNEL_LAUNCH\"") => continue,
            Err(error) => {
                out.unreadable += 1;
                out.note(Some(line), format!("no event of a profiler: {}", shortened(&error.to_string())));
                continue;
            }
        };
        events += 1;
        match (event.cat.as_deref(), event.ph.as_deref()) {
            (Some("GROUP" | "GROUP_API"), Some("b")) => depth += 1,
            (Some("GROUP" | "GROUP_API"), Some("e")) => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    take(std::mem::take(&mut group), input, &mut left_out, &mut out);
                }
            }
            (Some("COLL"), Some("b")) => {
                left_out.cut += u64::from(open.is_some());
                let name = event.name.unwrap_or_default();
                open = Some(Call { line, name, args: event.args, clock: None, unclocked: false });
            }
            (Some("COLL"), Some("e")) => group.extend(open.take()),
            (Some("GPU"), Some("b")) => {
                let Some(call) = &mut open else { continue };
                let (start, stop) = (event.args.start, event.args.stop);
                if start == 0 || stop <= start {
                    call.unclocked = true;
                } else {
                    let (first, last) = call.clock.unwrap_or((start, stop));
                    call.clock = Some((first.min(start), last.max(stop)));
                }
            }
            (Some("P2P"), Some("b")) => left_out.pairs += 1,
            (Some("CE_COLL"), Some("b")) => left_out.copied += 1,
            _ => {}
        }
    }
    left_out.cut += u64::from(open.is_some());
    take(group, input, &mut left_out, &mut out);
    left_out.tell(&mut out);
    if out.profiles.is_empty() {
        let none = "no call in it was timed by a GPU";
        out.reason = Some(match events {
            0 => format!("it has no event of a profiler in a line of its own, as the plugin writes them; {none}"),
            _ => format!("{none}: {WAY_OUT}"),
        });
    }
    out
}

impl LeftOut {
    fn tell(&self, out: &mut Parsed) {
        let told = [
            (self.unclocked, format!("no clock of the GPU timed all their channels: {WAY_OUT}")),
            (self.grouped, "they were made in one group with others, and share a kernel".to_owned()),
            (self.pairs, "they are between two ranks: what else was under way is not known".to_owned()),
            (self.copied, "copy engines did them, which no forecast is about".to_owned()),
            (self.cut, "they have no end".to_owned()),
        ];
        for (count, why) in told.into_iter().filter(|(count, _)| *count > 0) {
            out.note(None, format!("{count} calls are left out: {why}"));
        }
    }
}

/// Takes the collectives of one group.
fn take(mut group: Vec<Call>, input: &Input<'_>, left_out: &mut LeftOut, out: &mut Parsed) {
    if group.len() > 1 {
        left_out.grouped += group.len() as u64;
        return;
    }
    let Some(call) = group.pop() else { return };
    let Some((start, stop)) = call.clock.filter(|_| !call.unclocked) else {
        left_out.unclocked += 1;
        return;
    };
    let us = (stop - start) as f64 / 1e3;
    let alike = match alike(&call) {
        Ok(alike) if (TIME_MIN_US..=TIME_MAX_US).contains(&us) => alike,
        other => {
            out.unusable += 1;
            out.note(Some(call.line), other.err().unwrap_or_else(|| "no time".to_owned()));
            return;
        }
    };
    let Args { communicator, rank, .. } = call.args;
    let profile = out.profiles.entry(communicator).or_insert_with(|| Profile {
        calls: Calls::default(),
        ranks: BTreeSet::new(),
        said: input.sidecar.ranks,
        // Newer ones name files by communicator and rank.
        whose: input.whose(input.stem.strip_suffix(&format!("_{communicator}_{rank}")).unwrap_or(input.stem)),
    });
    profile.ranks.insert(rank);
    profile.calls.add(call.line, alike, us);
}

fn alike(call: &Call) -> Result<Alike, String> {
    let Ok(collective) = call.name.parse::<Collective>() else {
        return Err(format!("`{}` is no collective", shortened(&call.name)));
    };
    let Args { count, dtype, algorithm, protocol, channels, .. } = &call.args;
    let Ok(dtype) = dtype.parse::<DataType>() else {
        return Err(format!("`{}` is no type of NCCL", shortened(dtype)));
    };
    let size = count.checked_mul(dtype.size()).filter(|&size| size > 0 && size < 1 << 50).ok_or("no size")?;
    let algorithm = algorithm.parse::<Algorithm>().ok();
    let chosen = algorithm.zip(protocol.parse::<Protocol>().ok());
    let chosen = chosen.map(|(algorithm, protocol)| Choice { algorithm, protocol, channels: *channels });
    // Where nothing is added, NCCL counts bytes.
    let dtype = collective.reduces().then_some(dtype);
    Ok(Alike { collective, ranks: 0, hosts: None, dtype, size, chosen })
}
