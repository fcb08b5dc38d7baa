//! What NCCL Inspector writes, NVIDIA's profiler plugin that comes with NCCL: a record of JSON for each call of a rank.
//!
//! Keys are those of its `json/inspector_json.cc` up to format 4.4. A time is that of the kernel, which waits inside for the
//! last rank; of all calls that are alike, the lower quartile is taken.

use collcast_sim::collective::{Algorithm, Collective, Protocol};
use collcast_sim::measurement::Choice;
use serde::Deserialize;

use super::alike::{Alike, Calls};
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
    /// NCCL's nodes. Nothing says whether these are hosts or NVLink domains of several.
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

/// Reads the text of one file: records a line each, or set over several lines.
pub(super) fn parse(input: &Input<'_>) -> Result<Parsed, ReadError> {
    let mut out = Parsed::default();
    let mut all = Calls::default();
    let (mut by_host, mut pairs) = (0_u64, 0_u64);
    let mut take = |line: u64, record: Record, out: &mut Parsed| match usable(record) {
        Ok((alike, us)) => all.add(line, alike, us),
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
    if all.kinds() == 0 {
        out.reason = Some("no record of NCCL Inspector in it has a time of a GPU".to_owned());
    } else {
        out.note(None, all.told("NCCL Inspector"));
    }
    out.rows = input.rows_of(all)?;
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
    let Header { n_ranks, nnodes } = record.header;
    Ok((Alike { collective, ranks: n_ranks, hosts: nnodes, dtype: None, size, chosen }, us))
}
