//! Which workers there are: how many, of how many GPUs, for what.

use std::fmt;
use std::str::FromStr;

use collcast_scenarios::serving::Role;
use serde::Serialize;

use crate::error::Error;

/// Workers at most.
const MOST: u32 = 4096;
/// GPUs of a worker at most: tensor ranks stay in one NVLink domain.
const MOST_TENSOR: u32 = 72;

/// Workers of one kind, such as `4x8`: four of eight GPUs each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Group {
    /// How many.
    pub workers: u32,
    /// GPUs of each, which split every product.
    pub tensor: u32,
}

impl FromStr for Group {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            let hint = format!("workers look like 4x8: four of 8 GPUs each, at most {MOST} of {MOST_TENSOR}");
            Error::usage(format!("`{text}` says not how many workers of how many GPUs"), hint)
        };
        let (workers, tensor) = text.split_once('x').ok_or_else(wrong)?;
        let (workers, tensor) = (workers.parse().map_err(|_| wrong())?, tensor.parse().map_err(|_| wrong())?);
        if !(1..=MOST).contains(&workers) || !(1..=MOST_TENSOR).contains(&tensor) {
            return Err(wrong());
        }
        Ok(Self { workers, tensor })
    }
}

/// All workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Fleet {
    /// Some prefill, others decode.
    Disaggregated {
        /// Who prefills.
        prefill: Group,
        /// Who decodes.
        decode: Group,
    },
    /// Each does both.
    Aggregated(Group),
}

impl Fleet {
    /// Its groups, in the order of their GPUs.
    pub fn groups(&self) -> Vec<(Role, Group)> {
        match *self {
            Self::Disaggregated { prefill, decode } => vec![(Role::Prefill, prefill), (Role::Decode, decode)],
            Self::Aggregated(group) => vec![(Role::Both, group)],
        }
    }

    /// GPUs of all workers.
    pub fn gpus(&self) -> u32 {
        self.groups().iter().map(|(_, group)| group.workers * group.tensor).sum()
    }
}

impl fmt::Display for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disaggregated { prefill: p, decode: d } => {
                write!(f, "{}x{} prefill, {}x{} decode", p.workers, p.tensor, d.workers, d.tensor)
            }
            Self::Aggregated(all) => write!(f, "{}x{} aggregated", all.workers, all.tensor),
        }
    }
}
