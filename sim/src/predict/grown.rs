//! What a forecast from fewer hosts says of itself.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Numbers of hosts that are compared.
pub(super) const COMPARED: usize = 3;
/// The most by which forecasts were seen to differ from runs of all hosts where these are even, and where they are not: on 128
/// to 250 hosts, by `sim/tests/grow.rs`.
const SEEN_OFF: [f64; 2] = [0.01, 0.07];

/// How a call over many hosts was forecast from fewer.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Grown {
    /// Numbers of hosts that were simulated, ascending.
    pub hosts: [u32; COMPARED],
    /// Hosts of the call.
    pub of: u32,
    /// Whether hosts are no power of two, one is unlike the others, or they can fill a switch.
    pub uneven: bool,
    /// The part of the forecast by which the two differences that were seen disagree over what was left out.
    pub off: f64,
}

impl Grown {
    /// The part of the forecast by which it may be off a run of all hosts.
    fn within(&self) -> f64 {
        self.off.max(SEEN_OFF[usize::from(self.uneven)])
    }
}

impl fmt::Display for Grown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([a, b, c], of, within) = (self.hosts, self.of, self.within() * 100.0);
        write!(f, "forecast from {a}, {b} and {c} of {of} hosts, likely within {within:.2}% of a run of all of them")
    }
}
