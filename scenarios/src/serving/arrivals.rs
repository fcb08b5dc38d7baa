//! Requests: when they arrive, what they bring and what they want.

use collcast_sim::engine::mix;
use thiserror::Error;

/// Requests of a run at most: some hundred bytes each.
pub const MOST_REQUESTS: usize = 2_000_000;

/// A request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request {
    /// When it arrives, in seconds.
    pub at: f64,
    /// Tokens of its prompt.
    pub input: u64,
    /// Tokens that are generated for it.
    pub output: u64,
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
        Request { at, input, output }
    };
    (0..MOST_REQUESTS as u64).map(arrives).take_while(|request| request.at < seconds).collect()
}

/// Requests of a trace: lines of seconds, tokens of the prompt, tokens to generate; a first line of names, lines that begin
/// with `#` and empty ones are left out. In the order of their arrival.
///
/// # Errors
/// A line of something else, or more than are simulated.
pub fn trace(text: &str) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#')) {
        let wrong = |message: String| TraceError { line, message };
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        let &[at, input, output] = cells.as_slice() else {
            return Err(wrong(format!("{} cells, expected 3: seconds,input,output", cells.len())));
        };
        let Ok(at) = at.parse::<f64>() else {
            if requests.is_empty() && input.parse::<u64>().is_err() {
                continue;
            }
            return Err(wrong(format!("`{at}` is no time in seconds")));
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
        requests.push(Request { at, input: tokens(input)?, output: tokens(output)? });
    }
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    Ok(requests)
}
