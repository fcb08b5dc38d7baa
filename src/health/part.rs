//! Parts of a run's sizes, and what can be said of them.

use serde::Serialize;

/// What can be said of a band, a run or a machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is as it should be: a deficit worth acting on would have shown.
    Pass,
    /// Neither can be said: what is expected is known too loosely.
    Unsure,
    /// It is slower than any healthy machine of the kind is likely to be.
    Slow,
}

impl State {
    /// Its name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Unsure => "unsure",
            Self::Slow => "slow",
        }
    }
}

/// A range of sizes that one thing bounds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Latency: at most twice the time of the smallest size.
    Small,
    /// Between the two.
    Middle,
    /// Bandwidth: at least [`PLATEAU`](super::PLATEAU) of the highest, at sizes near the largest one.
    Large,
}

impl Part {
    /// All, in the order of sizes.
    pub const ALL: [Self; 3] = [Self::Small, Self::Middle, Self::Large];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Middle => "middle",
            Self::Large => "large",
        }
    }
}
