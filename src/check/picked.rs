//! NCCL's choice for a call, as it is written.

use std::fmt;
use std::str::FromStr;

use collcast_sim::collective::{Algorithm, Protocol};
use serde::Serialize;

/// NCCL's choice for one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Picked {
    /// What is run.
    Runs {
        /// Its algorithm.
        algorithm: Algorithm,
        /// Its protocol.
        protocol: Protocol,
        /// Its channels.
        channels: u32,
    },
    /// NCCL would return an error.
    Fails,
}

/// What stands for a choice that there is none of.
pub(super) const FAILS: &str = "NCCL fails";

impl fmt::Display for Picked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs { algorithm, protocol, channels } => write!(f, "{algorithm}/{protocol} {channels}ch"),
            Self::Fails => f.write_str(FAILS),
        }
    }
}

impl FromStr for Picked {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == FAILS {
            return Ok(Self::Fails);
        }
        let (pair, channels) = text.split_once(' ').ok_or(())?;
        let (algorithm, protocol) = pair.split_once('/').ok_or(())?;
        Ok(Self::Runs {
            algorithm: algorithm.parse().map_err(|_| ())?,
            protocol: protocol.parse().map_err(|_| ())?,
            channels: channels.strip_suffix("ch").ok_or(())?.parse().map_err(|_| ())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: choices read back as they are written.
    #[test]
    fn choices_read_back() {
        let runs = Picked::Runs { algorithm: Algorithm::NvlsTree, protocol: Protocol::Ll128, channels: 24 };
        assert_eq!(runs.to_string(), "nvls_tree/ll128 24ch");
        for picked in [runs, Picked::Fails] {
            assert_eq!(picked.to_string().parse(), Ok(picked));
        }
        assert_eq!("tree/ll".parse::<Picked>(), Err(()));
    }
}
