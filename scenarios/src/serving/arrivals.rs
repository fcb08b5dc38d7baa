//! Requests: when they arrive, what they bring and what they want.

use std::sync::Arc;

use collcast_sim::engine::mix;
use serde::Deserialize;
use thiserror::Error;

use super::prefix::Part;

/// Requests of a run at most: some hundred bytes each.
pub const MOST_REQUESTS: usize = 2_000_000;

/// A request.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Request {
    /// When it arrives, in seconds.
    pub at: f64,
    /// Tokens of its prompt.
    pub input: u64,
    /// Tokens that are generated for it.
    pub output: u64,
    /// Parts of its prompt that other requests may have in common with it, from its first token on; none where nothing of it
    /// is kept.
    pub prefix: Option<Arc<[Part]>>,
}

impl Request {
    /// Parts of its prompt that workers keep, from its first token on.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.prefix.iter().flat_map(|parts| parts.iter().copied())
    }
}

/// Prefixes that prompts begin with, such as instructions and documents.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prefixes {
    /// How many there are; each request draws one.
    pub count: u64,
    /// Tokens of each.
    pub tokens: u64,
    /// How much more the first are asked for than the last: the i-th as 1 / i to this power (Zipf); 0 for all alike.
    pub skew: f64,
}

/// Gives each request one of some prefixes, drawn by a seed; what is left of its prompt is its own, and kept too.
///
/// Prompts that are no longer than the prefix are left as they are.
pub fn share(requests: &mut [Request], prefixes: Prefixes, seed: u64) {
    let mut total = 0.0;
    let ends: Vec<f64> = (1..=prefixes.count)
        .map(|nth| {
            total += (nth as f64).powf(-prefixes.skew);
            total
        })
        .collect();
    for (index, request) in (0..).zip(requests) {
        let Some(own) = request.input.checked_sub(prefixes.tokens).filter(|&own| own > 0) else { continue };
        let drawn = (mix(mix(seed, 2), index) >> 11) as f64 / (1_u64 << 53) as f64 * total;
        let nth = ends.partition_point(|&end| end <= drawn) as u64;
        let common = Part { key: mix(mix(seed, 3), nth), tokens: prefixes.tokens };
        request.prefix = Some(Arc::from([common, Part { key: mix(mix(seed, 4), index), tokens: own }]));
    }
}

/// A trace that cannot be read.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("line {line}: {message}")]
pub struct TraceError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// A draw from the exponential distribution of mean 1: the `index`-th of a seed and purpose.
pub fn exponential(seed: u64, purpose: u64, index: u64) -> f64 {
    let bits = mix(mix(seed, purpose), index) >> 11;
    -((bits as f64 + 0.5) / (1_u64 << 53) as f64).ln()
}

/// Requests of one length by a Poisson process of `rate` a second over `seconds`.
pub fn poisson(rate: f64, seconds: f64, (input, output): (u64, u64), seed: u64) -> Vec<Request> {
    let mut at = 0.0;
    let arrives = |index| {
        at += exponential(seed, 0, index) / rate;
        Request { at, input, output, prefix: None }
    };
    (0..MOST_REQUESTS as u64).map(arrives).take_while(|request| request.at < seconds).collect()
}

/// Requests of a trace: lines of seconds, tokens of the prompt, tokens to generate, or in the order of the names in a first
/// line, where a time whose name ends in `ms` is in milliseconds; lines that begin with `#` and empty ones are left out. In the order of their arrival.
///
/// # Errors
/// A line of something else, or more than are simulated.
pub fn trace(text: &str) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    let (mut order, mut unit) = ([0, 1, 2], 1.0);
    for (line, text) in (1..).zip(text.lines()).filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#')) {
        let wrong = |message: String| TraceError { line, message };
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        let &[_, _, _] = cells.as_slice() else {
            return Err(wrong(format!("{} cells, expected 3: seconds,input,output", cells.len())));
        };
        if requests.is_empty() && cells.iter().all(|cell| cell.parse::<f64>().is_err()) {
            let hint = "expected seconds,input,output, in any order; arrival_ms for milliseconds";
            (order, unit) =
                named(&cells).ok_or_else(|| wrong(format!("`{text}` does not name the columns: {hint}")))?;
            continue;
        }
        let [at, input, output] = order.map(|place| cells[place]);
        let Ok(at) = at.parse::<f64>().map(|at| at * unit) else {
            return Err(wrong(format!("`{at}` is no number for a time")));
        };
        let tokens = |cell: &str| {
            let count = cell.parse::<u64>().ok().filter(|count| (1..=1 << 30).contains(count));
            count.ok_or_else(|| wrong(format!("`{cell}` is no count of tokens, from 1")))
        };
        if !(0.0..=1e8).contains(&at) {
            return Err(wrong(format!("`{at}` is no time in seconds from the start")));
        }
        if requests.len() == MOST_REQUESTS {
            return Err(wrong(format!("at most {MOST_REQUESTS} requests are simulated")));
        }
        requests.push(Request { at, input: tokens(input)?, output: tokens(output)?, prefix: None });
    }
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    Ok(requests)
}

/// Where columns of these names have the time, tokens of the prompt and tokens to generate, and seconds of a unit of the time.
fn named(names: &[&str]) -> Option<([usize; 3], f64)> {
    let of = |parts: &[&str]| {
        let is = |name: &&str| parts.iter().any(|part| name.to_ascii_lowercase().contains(part));
        names.iter().position(is)
    };
    let (input, output) = (of(&["input", "prompt", "context"])?, of(&["output", "generated", "completion"])?);
    let at = (0..3).find(|place| ![input, output].contains(place)).filter(|_| input != output)?;
    let name = names[at].to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let last = *words.last()?;
    let is_time = ["time", "arriv", "start"].iter().any(|part| name.contains(part));
    let known = is_time || words.len() == 1 && ["t", "at", "s", "sec", "seconds", "second", "ms"].contains(&last);
    let is = |units: &[&str]| units.iter().any(|unit| last.ends_with(unit));
    let in_ms = is(&["ms", "msec"]) || name.contains("milli");
    let other =
        is(&["us", "usec", "ns", "nsec", "min", "minutes", "hours"]) || name.contains("micro") || name.contains("nano");
    (known && !other).then_some(([at, input, output], if in_ms { 1e-3 } else { 1.0 }))
}

/// A line of a trace as Mooncake publishes them.
#[derive(Deserialize)]
struct Line {
    /// In ms.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    /// Of pages of [`PAGE`] tokens of the prompt, each of all up to its end.
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// Tokens of a page that `hash_ids` of Mooncake's traces name.
const PAGE: u64 = 512;

/// Requests of a trace in the format of Mooncake's (JSON Lines): timestamp in ms, input_length, output_length, hash_ids.
///
/// # Errors
/// A line of something else, or more than are simulated.
pub fn mooncake(text: &str) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, l)| !l.trim().is_empty()) {
        let wrong = |message: String| TraceError { line, message };
        let read: Line = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if !(0.0..=1e11).contains(&read.timestamp) {
            return Err(wrong(format!("`{}` is no time in ms from the start", read.timestamp)));
        }
        let good = |count: u64| (1..=1 << 30).contains(&count);
        if !good(read.input_length) || !good(read.output_length) {
            return Err(wrong("a prompt and its answer have 1 token or more".to_owned()));
        }
        if read.hash_ids.len() as u64 > read.input_length.div_ceil(PAGE) {
            return Err(wrong(format!("{} pages of {PAGE} tokens are more than its prompt", read.hash_ids.len())));
        }
        if requests.len() == MOST_REQUESTS {
            return Err(wrong(format!("at most {MOST_REQUESTS} requests are simulated")));
        }
        let tokens = |nth: u64| PAGE.min(read.input_length - nth * PAGE);
        let parts: Vec<Part> =
            (0..).zip(&read.hash_ids).map(|(nth, &id)| Part { key: mix(5, id), tokens: tokens(nth) }).collect();
        let prefix = (!parts.is_empty()).then(|| Arc::from(parts));
        let (at, input, output) = (read.timestamp * 1e-3, read.input_length, read.output_length);
        requests.push(Request { at, input, output, prefix });
    }
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    Ok(requests)
}
