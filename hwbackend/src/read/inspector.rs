//! What NCCL Inspector writes, NVIDIA's profiler plugin that comes with NCCL: a record of JSON for each call of a rank.
//!
//! Keys are those of its `json/inspector_json.cc` up to format 4.4. A time is that of the kernel, which waits inside for the
//! last rank; of all calls that are alike, the lower quartile is taken.

use std::collections::BTreeMap;

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::measurement::{Choice, Measurement, Origin, Settings};
use collcast_sim::units::{Bytes, SimDuration};
use serde::Deserialize;

use super::error::ReadError;
use super::parsed::{Input, Parsed, TIME_MAX_US, TIME_MIN_US};
use super::sidecar::shortened;

/// Keys of which every record has one, and nothing else that is read.
const MARKS: [&[u8]; 2] = [b"\"inspector_output_format_version\"", b"\"coll_perf\""];
/// Bytes at the beginning of a text that are searched for them: they stand in front of the traces of events.
const HEAD: usize = 1 << 16;
/// How far the rate of a record may be from its size over its time for both to be of one call: rates have six digits.
const RATE_ERROR: f64 = 0.02;

/// Whether a text is one of such records.
pub(super) fn is(text: &str) -> bool {
    let head = &text.as_bytes()[..text.len().min(HEAD)];
    let has = |mark: &[u8]| head.windows(mark.len()).any(|window| window == mark);
    text.trim_start().starts_with('{') && MARKS.iter().any(|mark| has(mark))
}

#[derive(Deserialize)]
struct Record {
    header: Header,
    /// None of calls between two ranks.
    coll_perf: Option<Perf>,
}

#[derive(Deserialize)]
struct Header {
    n_ranks: u32,
    nnodes: Option<u32>,
}

#[derive(Deserialize)]
struct Perf {
    coll: String,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: f64,
    coll_timing_source: Option<String>,
    coll_algobw_gbs: Option<f64>,
    coll_algo: Option<String>,
    coll_proto: Option<String>,
}

/// Calls that are alike.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    collective: Collective,
    ranks: u32,
    hosts: Option<u32>,
    size: u64,
    chosen: Option<Choice>,
}

/// Times of calls that are alike, and the line of the first.
#[derive(Default)]
struct Times {
    line: u64,
    us: Vec<f64>,
}

/// Reads the text of one file: records a line each, or set over several lines.
pub(super) fn parse(input: &Input<'_>) -> Result<Parsed, ReadError> {
    let mut out = Parsed::default();
    let mut all: BTreeMap<Alike, Times> = BTreeMap::new();
    let (mut by_host, mut pairs) = (0_u64, 0_u64);
    let mut take = |line: u64, record: Record, out: &mut Parsed| match usable(record) {
        Ok((alike, us)) => {
            let times = all.entry(alike).or_insert_with(|| Times { line, us: Vec::new() });
            times.us.push(us);
        }
        Err(Unused::Pair) => pairs += 1,
        Err(Unused::HostClock) => by_host += 1,
        Err(Unused::Because(why)) => {
            out.unusable += 1;
            out.note(Some(line), why);
        }
    };
    let first = input.text.trim_start().lines().next().unwrap_or_default();
    if serde_json::from_str::<Record>(first).is_ok() {
        for (line, text) in (1..).zip(input.text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            match serde_json::from_str(text) {
                Ok(record) => take(line, record, &mut out),
                Err(error) => unreadable(line, &error, &mut out),
            }
        }
    } else {
        let mut records = serde_json::Deserializer::from_str(input.text).into_iter::<Record>();
        let (mut line, mut seen) = (1, 0);
        while let Some(record) = records.next() {
            match record {
                Ok(record) => take(line, record, &mut out),
                Err(error) => unreadable(error.line() as u64, &error, &mut out),
            }
            let until = records.byte_offset();
            line += input.text[seen..until].matches('\n').count() as u64;
            seen = until;
        }
    }
    if pairs > 0 {
        out.note(None, format!("{pairs} calls between two ranks are left out: what else was under way is not known"));
    }
    if by_host > 0 {
        out.note(
            None,
            format!(
                "{by_host} calls are left out: the host timed them, not the GPU (coll_timing_source is not kernel_gpu)"
            ),
        );
    }
    let calls: usize = all.values().map(|times| times.us.len()).sum();
    for (alike, times) in all {
        if out.rows.len() >= input.rows_left {
            return Err(input.too_many_rows());
        }
        out.rows.push(row(input, &alike, times));
    }
    if out.rows.is_empty() {
        out.reason = Some("no record of NCCL Inspector in it has a time of a GPU".to_owned());
    } else {
        out.note(
            None,
            format!(
                "{calls} calls by NCCL Inspector, of {} kinds: a row is the lower quartile of its calls, since kernels wait \
                 for late ranks. Launches are not in these times, so that small calls seem fast",
                out.rows.len()
            ),
        );
    }
    Ok(out)
}

fn unreadable(line: u64, error: &serde_json::Error, out: &mut Parsed) {
    out.unreadable += 1;
    out.note(Some(line), format!("no record of NCCL Inspector: {}", shortened(&error.to_string())));
}

/// Why a record gives no time.
enum Unused {
    Pair,
    HostClock,
    Because(String),
}

/// What was done, and how long it took.
fn usable(record: Record) -> Result<(Alike, f64), Unused> {
    let perf = record.coll_perf.ok_or(Unused::Pair)?;
    if perf.coll_timing_source.is_some_and(|source| source != "kernel_gpu") {
        return Err(Unused::HostClock);
    }
    let because = |why: String| Err(Unused::Because(why));
    let Ok(collective) = perf.coll.parse::<Collective>() else {
        return because(format!("`{}` is no collective", shortened(&perf.coll)));
    };
    let us = perf.coll_exec_time_us;
    if !(TIME_MIN_US..=TIME_MAX_US).contains(&us) || perf.coll_msg_size_bytes == 0 || record.header.n_ranks == 0 {
        return because("no size, time or ranks".to_owned());
    }
    // It counts what one rank gives or gets; the rate is that of all where nccl-tests' size is of all.
    let ranks = u64::from(record.header.n_ranks);
    let (one, all) = (perf.coll_msg_size_bytes, perf.coll_msg_size_bytes.saturating_mul(ranks));
    let of_all = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
    let size = match perf.coll_algobw_gbs.filter(|rate| *rate > 0.0) {
        None => {
            if of_all {
                all
            } else {
                one
            }
        }
        Some(rate) => {
            let told = rate * us * 1e3;
            let near = |size: u64| (told / size as f64 - 1.0).abs() < RATE_ERROR;
            match (near(one), near(all)) {
                (true, _) if !of_all || !near(all) => one,
                (_, true) => all,
                _ => return because("its rate is not that of its size and time".to_owned()),
            }
        }
    };
    let algorithm = perf.coll_algo.and_then(|name| name.parse::<Algorithm>().ok());
    let protocol = perf.coll_proto.and_then(|name| name.parse::<Protocol>().ok());
    let chosen = algorithm.zip(protocol).map(|(algorithm, protocol)| Choice { algorithm, protocol, channels: None });
    Ok((Alike { collective, ranks: record.header.n_ranks, hosts: record.header.nnodes, size, chosen }, us))
}

fn row(input: &Input<'_>, alike: &Alike, times: Times) -> Measurement {
    let mut us = times.us;
    us.sort_by(f64::total_cmp);
    Measurement {
        run: input.stem.to_owned(),
        collective: alike.collective,
        ranks: alike.ranks,
        hosts: alike.hosts.filter(|&hosts| hosts > 0).or(input.sidecar.nodes),
        launch: input.sidecar.launch,
        timing: None,
        dtype: None,
        op: None,
        root: None,
        in_place: false,
        size: Bytes(alike.size),
        time: SimDuration::from_us(us[us.len() / 4]),
        settings: Settings { nccl: input.sidecar.nccl.clone(), ..Settings::default() },
        chosen: alike.chosen,
        origin: Origin { file: input.path.display().to_string(), line: times.line },
    }
}
